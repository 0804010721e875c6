//! The inputs of the hybrid decision, and counting its results.
//!
//! Owns: gathering the inputs of `decision` for one request. Does not own: the rules, the measurements (`locality`,
//! `caller_memory`, `cache`), who serves the reads of an open file (`front`).
//!
//! Invariants: no function here waits or reads a file. Inputs that matter only in the window are determined only there,
//! in the order of the rules, so that a request that is direct because of contention uses up no probe of locality.

use crate::api::Ctx;
use crate::inode::{Inode, OpenFile};
use crate::mount::Mount;
use crate::ops::read;
use crate::policy::decision::{self, Input, Mode, Reason};
use crate::policy::thresholds::Asked;
use crate::telemetry::calls;
use crate::telemetry::stats::{Copied, Way};
use crate::telemetry::tunables::Tunable;
use amphi_env::memory_groups::SHORT_PERCENT;
use amphi_pagecache::LocalityRule;
use amphi_pagecache::PAGE;
use amphi_types::{ByteRange, Errno, IoMode, Result, limits};
use amphi_wire::LockExtent;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

impl Mount {
    /// The inputs of the decision about a request of `bytes` that the cache does not serve. `range`: the range of the
    /// request, or of its present piece.
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
        let modes = [open.io_mode(), file.io_mode()];
        let asked = decision::set(decision::asked(modes, open.process_mode, t.mode()));
        let is_auto = !open.flags.direct && asked.is_none();
        let large_bytes = match is_auto {
            true => self.learnt_large_bytes(file, way, bytes, !(contended || group_short || cache_full || overcache)),
            false => self.large_bytes(file, way, bytes),
        };
        let large = bytes >= large_bytes;
        // The rule for large requests needs no further input, unless learnt rates may say otherwise.
        let matters = in_window && !contended && !group_short && !overcache && (!large || t.on(Tunable::Learn));
        let no_locality = matters && self.lacks_locality(file, way, bytes, large);
        let cache_is_faster = no_locality && t.on(Tunable::Learn) && self.policy.throughput.cache_is_faster(way, bytes);
        // The wait for space in the cache is part of the measured speed of buffered requests.
        let memory_short = group_short || (cache_full && !cache_is_faster);
        Input {
            size: bytes,
            o_direct: open.flags.direct,
            asked,
            large_bytes,
            small_bytes,
            kernel_keeps: false,
            contended,
            memory_short,
            overcache,
            no_locality,
            cache_is_faster,
            misfit: self.misfits(range),
        }
    }

    /// Returns whether bytes cannot be requested directly because of their alignment.
    fn misfits(&self, range: ByteRange) -> bool {
        !self.tunables.on(Tunable::Unaligned) && !(range.start | range.end).is_multiple_of(limits::BLOCK)
    }

    /// Errors: EINVAL if a request that has to be direct may not be direct, because of its alignment.
    pub(crate) fn may_pass_cache(&self, range: ByteRange) -> Result<()> {
        if self.misfits(range) { Err(Errno::Inval) } else { Ok(()) }
    }

    /// Returns whether requests like this one, except probes, are direct for lack of locality if no earlier rule
    /// decides.
    pub(crate) fn passes_cache_by(&self, open: &OpenFile, way: Way, bytes: u64) -> bool {
        let t = &self.tunables;
        let file = &open.file;
        bytes >= t.get(Tunable::Small)
            && decision::asked([open.io_mode(), file.io_mode()], open.process_mode, t.mode()) == IoMode::Auto
            && self.lacks_locality(file, way, bytes, false)
            && !(t.on(Tunable::Learn) && self.policy.throughput.cache_is_faster(way, bytes))
    }

    /// Counts a request by `reason`.
    pub(crate) fn count_io(&self, open: &OpenFile, way: Way, reason: Reason, range: ByteRange, copied: Copied) {
        let bytes = range.len();
        self.stats.io(way, reason, bytes, copied);
        open.ledger.io(way, reason, range);
        if self.panel.recorder.is_on() {
            calls::note_reason(reason);
        }
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

    /// The large threshold. It is higher if the file is on rotating storage.
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

    /// The large threshold for a request of `bytes`, moved by what was measured or is being tried. `may_try`: no other
    /// rule decides this request.
    fn learnt_large_bytes(&self, file: &Inode, way: Way, bytes: u64, may_try: bool) -> u64 {
        let t = &self.tunables;
        let large_bytes = self.large_bytes(file, way, bytes);
        let plain = if way == Way::Read { Tunable::LargeRead } else { Tunable::LargeWrite };
        if !t.on(Tunable::Learn) || t.is_set(plain) || large_bytes != t.get(plain) {
            return large_bytes;
        }
        let is_large = self.policy.throughput.thresholds.is_large(Asked {
            way,
            bytes,
            default_bytes: large_bytes,
            in_company: !self.coherence.sharing.is_alone(),
            is_reused: !file.cached.locality.is_not_read_back(),
            may_try,
        });
        if is_large { large_bytes.min(bytes) } else { large_bytes.max(bytes + 1) }
    }

    /// How locks for a request grow: for a direct request on a file that other mounts use too, they cover exactly its
    /// bytes. For buffered requests they grow also on contended files, because requesting a lock for each record costs
    /// more than the callbacks do.
    pub(crate) fn extent(&self, open: &OpenFile, mode: Mode) -> LockExtent {
        let narrow = mode == Mode::Direct && read::is_wanted_elsewhere(self, &open.file);
        if narrow { LockExtent::Exact } else { open.extent() }
    }

    pub(crate) fn is_contended(&self, file: &Inode) -> bool {
        let until = file.locks.contended_until_ns.load(SeqCst);
        until > 0 && until > self.clock.now_ns()
    }

    /// Clean bytes can be dropped, so a cache is short of memory only when it is full of dirty bytes.
    fn is_full_of_dirty(&self) -> bool {
        let t = &self.tunables;
        let limit = || self.share(self.dirty_max());
        t.on(Tunable::Memory) && self.cache.dirty_bytes() >= limit()
    }

    pub(crate) fn is_group_short(&self, ctx: &Ctx) -> bool {
        let t = &self.tunables;
        let caller = || {
            t.on(Tunable::CallerMemory)
                && self.host.read_text.is_some()
                && self.policy.caller_memory.is_short(ctx.pid, self.clock.now_ns())
        };
        t.on(Tunable::Memory) && (self.policy.group_short.load(Relaxed) || caller())
    }

    /// `large`: the request is not a probe, whatever requests preceded it.
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
