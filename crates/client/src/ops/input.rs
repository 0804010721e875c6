//! What is known for the hybrid decision and for who serves the reads of an open file, and the count of what was
//! decided.
//!
//! Owns: gathering the inputs of `decision` for one request and of `kernel_reads` for one open file. Does not own: the
//! rules, the measurements (`locality`, `caller_memory`, `cache`).
//!
//! Invariants: nothing here waits or reads a file; what only matters in the window is only asked there, and in the
//! order of the rules, so that a request that contention sends direct uses up no probe of locality.

use crate::api::Ctx;
use crate::coherence::tokens;
use crate::inode::{Inode, OpenFile};
use crate::mount::Mount;
use crate::ops::read;
use crate::policy::decision::{self, Input, Mode, Reason};
use crate::policy::kernel_reads::{self, Server};
use crate::telemetry::stats::{Copied, Count, Way};
use crate::telemetry::tunables::Tunable;
use amphi_env::memory_groups::SHORT_PERCENT;
use amphi_pagecache::Dirty;
use amphi_pagecache::LocalityRule;
use amphi_pagecache::PAGE;
use amphi_types::{ByteRange, Errno, IoMode, Result, limits};
use amphi_wire::LockExtent;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

impl Mount {
    /// What is known for the decision about a request of `bytes` that the cache does not serve.
    /// `range`: where it, or the piece of it at hand, lies.
    pub(crate) fn input(&self, ctx: &Ctx, open: &OpenFile, way: Way, (range, bytes): (ByteRange, u64)) -> Input {
        let t = &self.tunables;
        let file = &open.file;
        let small_bytes = t.get(Tunable::Small);
        let in_window = bytes >= small_bytes;
        let contended = in_window && t.on(Tunable::Contention) && self.is_contended(file);
        let group_short = in_window && !contended && self.is_group_short(ctx);
        let cache_full = in_window && !contended && self.is_full_of_dirty();
        let full = || file.cached.bytes.load(SeqCst) >= self.share(t.get(Tunable::OvercacheBytes));
        let overcache = in_window && t.on(Tunable::Overcache) && full();
        let large_bytes = self.large_bytes(file, way, bytes);
        let large = bytes >= large_bytes;
        // The rule of size asks nothing, unless what was learnt may say otherwise.
        let matters = in_window && !contended && !group_short && !overcache && (!large || t.on(Tunable::Learn));
        let no_locality = matters && self.lacks_locality(file, way, bytes, large);
        let cache_is_faster = no_locality && t.on(Tunable::Learn) && self.policy.throughput.cache_is_faster(way, bytes);
        // To wait for room in the cache is part of what its way was measured to take.
        let memory_short = group_short || (cache_full && !cache_is_faster);
        Input {
            size: bytes,
            o_direct: open.flags.direct,
            open_mode: open.io_mode(),
            file_mode: file.io_mode(),
            process_mode: open.process_mode,
            mount_mode: t.mode(),
            large_bytes,
            small_bytes,
            contended,
            memory_short,
            overcache,
            no_locality,
            cache_is_faster,
            misfit: self.misfits(range),
        }
    }

    /// Whether bytes may not be asked for past the cache for where they lie.
    fn misfits(&self, range: ByteRange) -> bool {
        !self.tunables.on(Tunable::Unaligned) && !(range.start | range.end).is_multiple_of(limits::BLOCK)
    }

    /// Errors: EINVAL if a request that has to go past the cache may not, for where its bytes lie.
    pub(crate) fn may_pass_cache(&self, range: ByteRange) -> Result<()> {
        if self.misfits(range) { Err(Errno::Inval) } else { Ok(()) }
    }

    /// Whether requests like this one go past the cache for lack of locality where nothing else speaks first, but for
    /// probes.
    pub(crate) fn passes_cache_by(&self, open: &OpenFile, way: Way, bytes: u64) -> bool {
        let t = &self.tunables;
        let file = &open.file;
        bytes >= t.get(Tunable::Small)
            && decision::asked([open.io_mode(), file.io_mode()], open.process_mode, t.mode()) == IoMode::Auto
            && self.lacks_locality(file, way, bytes, false)
            && !(t.on(Tunable::Learn) && self.policy.throughput.cache_is_faster(way, bytes))
    }

    /// Counts a request that went the way `reason` says.
    pub(crate) fn count_io(&self, open: &OpenFile, way: Way, reason: Reason, bytes: u64, copied: Copied) {
        self.stats.io(way, reason, bytes, copied);
        open.ledger.io(way, reason, bytes);
        match reason {
            Reason::DirectLocality => open.file.cached.locality.went_direct(bytes.div_ceil(PAGE)),
            Reason::BufferedDefault => open.file.cached.locality.went_buffered(),
            Reason::BufferedFaster => {
                open.file.cached.locality.went_buffered();
                self.policy.throughput.tried(way, bytes, self.clock.now_ns());
            }
            _ => {}
        }
    }

    fn share(&self, limit: u64) -> u64 {
        limit / 100 * SHORT_PERCENT
    }

    /// The large threshold: higher where the file lies on rotating storage (FEATURES H12).
    fn large_bytes(&self, file: &Inode, way: Way, bytes: u64) -> u64 {
        let t = &self.tunables;
        let (plain, rotating) = match way {
            Way::Read => (Tunable::LargeRead, Tunable::LargeReadRotating),
            Way::Write => (Tunable::LargeWrite, Tunable::LargeWriteRotating),
        };
        let (plain, rotating) = (t.get(plain), t.get(rotating));
        let known = &self.policy.rotational;
        let matters = bytes >= plain && bytes < rotating && known.are_there();
        let held = || known.hold(file.ino, &file.layout(), file.size().saturating_add(bytes));
        if matters && held() { rotating } else { plain }
    }

    /// How wide locks for a request are asked for: past the cache, on a file that others want too, as wide as its own
    /// bytes. Through the cache they grow also on contended files: asking for each record costs more than the callbacks
    /// do (docs/PERFORMANCE.md).
    pub(crate) fn extent(&self, open: &OpenFile, mode: Mode) -> LockExtent {
        let narrow = mode == Mode::Direct && read::is_wanted_elsewhere(self, &open.file);
        if narrow { LockExtent::Exact } else { open.extent() }
    }

    pub(crate) fn is_contended(&self, file: &Inode) -> bool {
        let until = file.locks.contended_until_ns.load(SeqCst);
        until > 0 && until > self.clock.now_ns()
    }

    /// Clean bytes make room; a cache is short when it is full of dirty ones.
    fn is_full_of_dirty(&self) -> bool {
        let t = &self.tunables;
        let limit = || self.share(self.dirty_max());
        t.on(Tunable::Memory) && self.cache.dirty_bytes() >= limit()
    }

    fn is_group_short(&self, ctx: &Ctx) -> bool {
        let t = &self.tunables;
        let caller = || {
            t.on(Tunable::CallerMemory)
                && self.host.read_text.is_some()
                && self.policy.caller_memory.is_short(ctx.pid, self.clock.now_ns())
        };
        t.on(Tunable::Memory) && (self.policy.group_short.load(Relaxed) || caller())
    }

    /// `large`: the request is no probe, whatever went before it.
    fn lacks_locality(&self, file: &Inode, way: Way, bytes: u64, large: bool) -> bool {
        let t = &self.tunables;
        if !t.on(Tunable::Locality) {
            return false;
        }
        let rule = LocalityRule {
            window_pages: t.get(Tunable::LocalityPages),
            probe: t.get(Tunable::LocalityProbe),
            cache_pages: t.get(Tunable::CacheBytes) / PAGE,
        };
        let least = || if t.on(Tunable::Learn) { self.policy.throughput.least_share(way, bytes) } else { 0 };
        if large {
            file.cached.locality.lacks(rule, least)
        } else {
            file.cached.locality.speaks_for_direct(rule, least)
        }
    }
}

/// What a front end that has a page cache does with an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontCache {
    /// It serves reads from its pages.
    pub serves: bool,
    /// Pages of the file that it has from before are true.
    pub keeps: bool,
}

/// Decides for a file that was just opened, and counts it.
pub(crate) fn front_cache(mount: &Mount, open: &OpenFile) -> FrontCache {
    let t = &mount.tunables;
    let file = &open.file;
    let alone = mount.coherence.sharing.is_alone();
    let (executable, size) = {
        let attr = &file.known.lock().view.attr;
        (attr.perm & 0o111 != 0, attr.size)
    };
    let only_reads = open.flags.read && !open.flags.write && !open.flags.direct && !open.flags.truncate;
    // In company who holds the attributes' token knows that nobody else has the file open for writing. But others may
    // write it later.
    let follows = || mount.coherence.sharing.pages().is_some_and(|front| front.follows_sizes());
    let written = || file.has_writers() || !(alone || (tokens::holds_attributes(mount, file.ino) && follows()));
    let server = kernel_reads::decide(&kernel_reads::Input {
        kernel_cache: kernel_reads::asked(file.advice().kernel_cache(), t.kernel_cache()),
        only_reads,
        asked: decision::asked([open.io_mode(), file.io_mode()], open.process_mode, t.mode()),
        contended: t.on(Tunable::Contention) && mount.is_contended(file),
        written: only_reads && written(),
        executable,
        size: size.max(file.size()),
        large_bytes: t.get(Tunable::LargeRead),
        small_reads: file.pages.small_reads.load(SeqCst),
    });
    mount.stats.count(count_of(server));
    let serves = server.is_kernel();
    open.by_front.store(serves, SeqCst);
    let rule = mount.coherence.sharing.rule();
    // Of a lone mount the front end has seen every change. A read that it serves is not seen here: the first one has to
    // be.
    let covered = mount.coherence.sharing.has_always_been_alone() || file.pages.covered_rule.load(SeqCst) == rule;
    let keeps = covered && !(serves && read_is_missed(mount, open));
    open.emptied_rule.store(if keeps { 0 } else { rule }, SeqCst);
    FrontCache { serves, keeps }
}

/// A read was answered that a front end keeps in its pages: what is clean of these bytes is not kept here as well.
/// Where the pages will not be kept for the next open it is.
pub(crate) fn kept_by_front(mount: &Mount, open: &OpenFile, range: ByteRange) {
    let keeps = !mount.coherence.sharing.is_alone() || mount.coherence.sharing.has_always_been_alone();
    if keeps && open.by_front.load(SeqCst) {
        mount.cache.forget(&open.file, range, Dirty::Keep);
    }
}

/// Whether a read has to come here, since it renews the access time.
fn read_is_missed(mount: &Mount, open: &OpenFile) -> bool {
    !open.flags.no_atime && mount.tunables.on(Tunable::Atime) && open.file.access_is_due(mount.clock.wall())
}

fn count_of(server: Server) -> Count {
    match server {
        Server::KernelSmallFile => Count::OpenKernelSmallFile,
        Server::KernelExecutable => Count::OpenKernelExecutable,
        Server::KernelSmallReads => Count::OpenKernelSmallReads,
        Server::KernelUser => Count::OpenKernelUser,
        Server::MountOff => Count::OpenMountOff,
        Server::MountOpen => Count::OpenMountOpen,
        Server::MountUser => Count::OpenMountUser,
        Server::MountContended => Count::OpenMountContended,
        Server::MountWritten => Count::OpenMountWritten,
        Server::MountLarge => Count::OpenMountLarge,
    }
}
