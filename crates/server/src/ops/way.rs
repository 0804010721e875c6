//! Whether a write is accepted into memory, or is written to the disk before it is answered.
//!
//! Owns: the decision, as one pure function of the server's state at that moment. Does not own: the consequences
//! (`accept`, `data`).
//!
//! Small writes are accepted into memory, because each would cost a disk request and an extent of its own. In memory
//! they are joined with their neighbours. Large writes are written through, since memory would only add a copy. The
//! threshold depends on the state. If the disk needs milliseconds for a write, larger writes go to memory. If the
//! memory fills, smaller writes go through, so that the disk takes a part of the load before the memory is full.
//!
//! Answering from memory costs the worker copies: into the memory, out of it, and checksums of both. Usually the saved
//! disk requests compensate for that. With many cores and a fast disk, the kernel executes disk requests on other cores
//! while all copies are made by the worker. If the worker is the bottleneck, writes that are large enough are written
//! through. Eight mounts on 16 cores wrote records of 47,008 bytes a quarter slower through memory than through the
//! disk.
//!
//! Writes that arrive in one message with others share a disk request already. In this case a write is accepted only if
//! its blocks would otherwise be scattered. Small files that are written as a whole are contiguous, and a sole mount
//! overwrites blocks in place.

/// Time of a write on a slow disk, ns. An SSD needs a tenth of it.
const SLOW_NS: u64 = 2_000_000;
/// Factor by which writes to a slow disk may be larger.
const SLOW_FACTOR: u64 = 4;

/// A worker that found work waiting in this many percent of its last turns is the bottleneck.
const BUSY_PERCENT: u8 = 90;
/// Time of a write on a fast disk at most, ns: less than mounts wait for the turn of a busy worker.
const FAST_NS: u64 = 1_000_000;
/// Cores from which on the kernel carries requests of the disk beside a busy worker and the mounts.
const MANY_CORES: u16 = 8;
/// Writes of this many bytes take a worker longer to copy than to hand to the disk.
const COPIED_BYTES: u64 = 16 << 10;

/// The inputs of the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// The server has memory for accepted writes, and write-back is on.
    pub open: bool,
    /// Bytes of the write.
    pub len: u64,
    /// Writes of at least this many bytes are written through. The threshold is 4 times as high for a slow disk, and
    /// falls when the memory is more than half full.
    pub through_bytes: u64,
    /// Pages of the memory that are in use, and all pages.
    pub pages: (u64, u64),
    /// Delayed extents of the target, and how many there may be.
    pub extents: (u64, u64),
    /// The local file system below the zone has space for what is reserved.
    pub is_roomy: bool,
    /// The estimated time of a disk write, in nanoseconds.
    pub disk_ns: u64,
    /// The percentage of the worker's last turns in which it found work waiting.
    pub busy_percent: u8,
    /// Cores that the server may use.
    pub cores: u16,
    /// The disk rotates.
    pub rotating: bool,
    /// The write is in one message with others, and even if it is written through, its bytes are contiguous on the
    /// disk.
    pub is_together: bool,
}

/// Whether a write is accepted or written through, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Into memory.
    Back,
    /// No write is accepted into memory, because write-back is switched off or because there is no memory that outlives
    /// the server.
    ThroughOff,
    /// The write is large.
    ThroughLarge,
    /// The write would be small enough if the memory were emptier.
    ThroughFull,
    /// There are already as many extents as a record can name.
    ThroughExtents,
    /// The file system below the target has little space left.
    ThroughRoom,
    /// The write is made to the disk together with others.
    ThroughTogether,
    /// The worker is the bottleneck, and the disk is faster.
    ThroughBusy,
}

/// The decision.
pub(super) fn way(s: &State) -> Way {
    let (used, all) = s.pages;
    let is_fast = s.disk_ns > 0 && s.disk_ns < FAST_NS && !s.rotating;
    let is_worker_short = s.busy_percent >= BUSY_PERCENT && s.cores >= MANY_CORES;
    let slow = s.rotating || s.disk_ns >= SLOW_NS;
    let base = s.through_bytes.saturating_mul(if slow { SLOW_FACTOR } else { 1 });
    // When the memory is more than half full, the threshold falls, to zero when no page is free.
    let limit = if used * 2 > all { base / all.max(1) * (all - used.min(all)) * 2 } else { base };
    if !s.open {
        Way::ThroughOff
    } else if s.is_together {
        Way::ThroughTogether
    } else if s.len >= base {
        Way::ThroughLarge
    } else if s.len >= limit {
        Way::ThroughFull
    } else if is_fast && is_worker_short && s.len >= COPIED_BYTES {
        Way::ThroughBusy
    } else if s.extents.0 >= s.extents.1 {
        Way::ThroughExtents
    } else if !s.is_roomy {
        Way::ThroughRoom
    } else {
        Way::Back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each part of the state changes the decision, and the reason names it. Method: each reason is tested by
    /// changing one input at a time.
    #[test]
    fn each_reason_has_its_state() {
        let calm = State {
            open: true,
            len: 47_008,
            through_bytes: 65_536,
            pages: (100, 1000),
            extents: (5, 100),
            is_roomy: true,
            disk_ns: 100_000,
            busy_percent: 60,
            cores: 16,
            rotating: false,
            is_together: false,
        };
        assert_eq!(way(&calm), Way::Back);
        assert_eq!(way(&State { open: false, ..calm }), Way::ThroughOff);
        assert_eq!(way(&State { len: 65_536, ..calm }), Way::ThroughLarge);
        assert_eq!(way(&State { len: 65_536, disk_ns: SLOW_NS, ..calm }), Way::Back);
        assert_eq!(way(&State { len: 65_536, rotating: true, ..calm }), Way::Back);
        assert_eq!(way(&State { pages: (800, 1000), ..calm }), Way::ThroughFull);
        assert_eq!(way(&State { pages: (800, 1000), len: 4096, ..calm }), Way::Back);
        assert_eq!(way(&State { pages: (1000, 1000), len: 1, ..calm }), Way::ThroughFull);
        assert_eq!(way(&State { pages: (0, 0), len: 1, ..calm }), Way::Back, "no page is found later");
        assert_eq!(way(&State { extents: (100, 100), ..calm }), Way::ThroughExtents);
        assert_eq!(way(&State { is_roomy: false, ..calm }), Way::ThroughRoom);
        assert_eq!(way(&State { is_together: true, ..calm }), Way::ThroughTogether);
    }

    /// Goal: a busy worker hands large enough writes to a disk that is faster, and only then. Method: each reason is
    /// tested by changing one input at a time.
    #[test]
    fn a_busy_worker_hands_writes_on() {
        let busy = State {
            open: true,
            len: 47_008,
            through_bytes: 65_536,
            pages: (100, 1000),
            extents: (5, 100),
            is_roomy: true,
            disk_ns: 100_000,
            busy_percent: 95,
            cores: 16,
            rotating: false,
            is_together: false,
        };
        assert_eq!(way(&busy), Way::ThroughBusy);
        for calm in [
            State { busy_percent: 89, ..busy },
            State { cores: 4, ..busy },
            State { disk_ns: FAST_NS, ..busy },
            State { disk_ns: 0, ..busy },
            State { rotating: true, ..busy },
            State { len: COPIED_BYTES - 1, ..busy },
        ] {
            assert_eq!(way(&calm), Way::Back, "{calm:?}");
        }
        assert_eq!(way(&State { pages: (1000, 1000), ..busy }), Way::ThroughFull, "the first reason counts");
    }
}
