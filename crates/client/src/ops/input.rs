//! What is known for the hybrid decision, and the count of what was decided.
//!
//! Owns: gathering the inputs of `decision` for one request. Does not own: the rule (`decision`), the measurements (`locality`,
//! `callers`, `cache`).
//!
//! Invariants: nothing here waits or reads a file; what only matters in the window is only asked there, and in the order of
//! the rules, so that a request that contention sends direct uses up no probe of locality.

use crate::api::Ctx;
use crate::cache::PAGE;
use crate::core::Core;
use crate::inode::{File, OpenFile};
use crate::ops::read;
use crate::policy::decision::{self, Input, Mode, Reason};
use crate::policy::locality::Rule;
use crate::telemetry::stats::{Copied, Way};
use crate::telemetry::tunables::Knob;
use amphi_types::{ByteRange, Errno, IoMode, Result, limits};
use amphi_wire::LockExtent;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

impl Core {
    /// What is known for the decision about a request of `bytes` that the cache does not serve.
    /// `range`: where it, or the piece of it at hand, lies.
    pub(crate) fn input(&self, ctx: &Ctx, open: &OpenFile, way: Way, (range, bytes): (ByteRange, u64)) -> Input {
        let t = &self.tunables;
        let file = &open.file;
        let small_bytes = t.get(Knob::Small);
        let in_window = bytes >= small_bytes;
        let contended = in_window && t.on(Knob::Contention) && self.is_contended(file);
        let group_short = in_window && !contended && self.is_group_short(ctx);
        let cache_full = in_window && !contended && self.is_full_of_dirty();
        let full = || file.cached_bytes.load(SeqCst) >= self.share(t.get(Knob::OvercacheBytes));
        let overcache = in_window && t.on(Knob::Overcache) && full();
        let large_bytes = self.large_bytes(file, way, bytes);
        let large = bytes >= large_bytes;
        // The rule of size asks nothing, unless what was learnt may say otherwise.
        let matters = in_window && !contended && !group_short && !overcache && (!large || t.on(Knob::Learn));
        let no_locality = matters && self.lacks_locality(file, way, bytes, large);
        let cache_is_faster = no_locality && t.on(Knob::Learn) && self.learned.cache_is_faster(way, bytes);
        // To wait for room in the cache is part of what its way was measured to take.
        let memory_short = group_short || (cache_full && !cache_is_faster);
        Input {
            size: bytes,
            o_direct: open.flags.direct,
            open_mode: open.io_mode(),
            file_mode: file.io_mode(),
            process_mode: open.process_mode.filter(|_| t.on(Knob::ProcessMode)),
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
        !self.tunables.on(Knob::Unaligned) && !(range.start | range.end).is_multiple_of(limits::BLOCK)
    }

    /// Errors: EINVAL if a request that has to go past the cache may not, for where its bytes lie.
    pub(crate) fn may_pass_cache(&self, range: ByteRange) -> Result<()> {
        if self.misfits(range) { Err(Errno::Inval) } else { Ok(()) }
    }

    /// Whether requests like this one go past the cache for lack of locality where nothing else speaks first, but for probes.
    pub(crate) fn passes_cache_by(&self, open: &OpenFile, way: Way, bytes: u64) -> bool {
        let t = &self.tunables;
        let file = &open.file;
        let process_mode = open.process_mode.filter(|_| t.on(Knob::ProcessMode));
        bytes >= t.get(Knob::Small)
            && decision::asked([open.io_mode(), file.io_mode()], process_mode, t.mode()) == IoMode::Auto
            && self.lacks_locality(file, way, bytes, false)
            && !(t.on(Knob::Learn) && self.learned.cache_is_faster(way, bytes))
    }

    /// Counts a request that went the way `reason` says.
    pub(crate) fn count_io(&self, open: &OpenFile, way: Way, reason: Reason, bytes: u64, copied: Copied) {
        self.stats.io(way, reason, bytes, copied);
        open.ledger.io(way, reason, bytes);
        match reason {
            Reason::DirectLocality => open.file.locality.went_direct(bytes.div_ceil(PAGE)),
            Reason::BufferedDefault => open.file.locality.went_buffered(),
            Reason::BufferedFaster => {
                open.file.locality.went_buffered();
                self.learned.tried(way, bytes, self.clock.now_ns());
            }
            _ => {}
        }
    }

    fn share(&self, limit: u64) -> u64 {
        limit / 100 * self.tunables.get(Knob::MemoryPercent)
    }

    /// The large threshold: higher where the file lies on rotating storage (FEATURES H12).
    fn large_bytes(&self, file: &File, way: Way, bytes: u64) -> u64 {
        let t = &self.tunables;
        let (plain, rotating) = match way {
            Way::Read => (Knob::LargeRead, Knob::LargeReadRotating),
            Way::Write => (Knob::LargeWrite, Knob::LargeWriteRotating),
        };
        let (plain, rotating) = (t.get(plain), t.get(rotating));
        let matters = bytes >= plain && bytes < rotating && t.on(Knob::Rotating);
        if matters && self.rotating.holds(file, bytes) { rotating } else { plain }
    }

    /// How wide locks for a request are asked for: past the cache, on a file that others want too, as wide as its own bytes. Through the cache
    /// they grow also on contended files: asking for each record costs more than the callbacks do (docs/PERFORMANCE.md).
    pub(crate) fn extent(&self, open: &OpenFile, mode: Mode) -> LockExtent {
        let narrow = mode == Mode::Direct && read::is_wanted_elsewhere(self, &open.file);
        if narrow { LockExtent::Exact } else { open.extent() }
    }

    pub(crate) fn is_contended(&self, file: &File) -> bool {
        let until = file.contended_until_ns.load(SeqCst);
        until > 0 && until > self.clock.now_ns()
    }

    /// Clean bytes make room; a cache is short when it is full of dirty ones.
    fn is_full_of_dirty(&self) -> bool {
        let t = &self.tunables;
        let limit = || self.share(t.get(Knob::CacheBytes) / 100 * t.get(Knob::DirtyPercent));
        t.on(Knob::Memory) && self.cache.dirty_bytes() >= limit()
    }

    fn is_group_short(&self, ctx: &Ctx) -> bool {
        let t = &self.tunables;
        let caller = || {
            t.on(Knob::CallerMemory) && self.read_text.is_some() && self.callers.is_short(ctx.pid, self.clock.now_ns())
        };
        t.on(Knob::Memory) && (self.group_short.load(Relaxed) || caller())
    }

    /// `large`: the request is no probe, whatever went before it.
    fn lacks_locality(&self, file: &File, way: Way, bytes: u64, large: bool) -> bool {
        let t = &self.tunables;
        if !t.on(Knob::Locality) {
            return false;
        }
        let rule = Rule {
            window_pages: t.get(Knob::LocalityPages),
            fraction: t.get(Knob::LocalityFraction),
            probe: t.get(Knob::LocalityProbe),
            inherit: t.on(Knob::LocalityInherit),
            cache_pages: t.get(Knob::CacheBytes) / PAGE,
        };
        let least = || if t.on(Knob::Learn) { self.learned.least_share(way, bytes) } else { 0 };
        if large { file.locality.lacks(rule, least) } else { file.locality.speaks_for_direct(rule, least) }
    }
}
