//! Whether a write is accepted into memory or goes to the disk before it is answered.
//!
//! Owns: the decision, as one pure function of what the server knows at that moment. Does not own: what follows
//! (`accept`, `data`).
//!
//! Small writes are accepted: each would cost a request of the disk and an extent of its own, and in memory they join
//! their neighbours. Large ones go through, since memory would only copy what the disk takes as it is. What is large
//! depends on the state: a disk that needs milliseconds for a write takes larger ones from memory; a memory that fills
//! takes smaller ones, so that the disk sees part of the load before nothing is left.
//!
//! Answering from memory costs the worker copies: into the memory, out of it, and checksums of both. Elsewhere they are
//! made up for by requests of the disk that it need not make. Where there are many cores and the disk is fast, the
//! kernel carries requests on other cores while the copies all fall on the worker; if that is what everybody waits for,
//! writes that are large enough go through: eight mounts on 16 cores wrote records of 47,008 bytes a quarter slower
//! from memory than through.
//!
//! What comes with others in one message shares a request of the disk with them already. It is accepted only if its
//! blocks would otherwise lie alone: small files that come whole lie in one piece each, and a mount that is the only
//! one overwrites blocks where they are.

/// What a slow disk needs for a write, ns. An SSD takes a tenth of it.
const SLOW_NS: u64 = 2_000_000;
/// Factor by which writes to a slow disk may be larger.
const SLOW_FACTOR: u64 = 4;

/// A worker that found work waiting in so many of its last hundred turns is what others wait for.
const BUSY_PERCENT: u8 = 90;
/// What a fast disk needs for a write at most, ns: less than the mounts of a busy worker wait for their turn.
const FAST_NS: u64 = 1_000_000;
/// Cores from which on the kernel carries requests of the disk beside a busy worker and the mounts.
const MANY_CORES: u16 = 8;
/// Writes of so many bytes take a worker longer to copy than to hand to the disk.
const COPIED_BYTES: u64 = 16 << 10;

/// What is known when a write comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// The memory is there and is to be used.
    pub open: bool,
    /// Bytes of the write.
    pub len: u64,
    /// Writes of so many bytes go through, in an empty memory above a fast disk.
    pub through_bytes: u64,
    /// Pages of the memory in use, and all.
    pub pages: (u64, u64),
    /// Delayed extents of the target, and how many there may be.
    pub extents: (u64, u64),
    /// The file system below has room for what is promised.
    pub is_roomy: bool,
    /// What a write takes the disk, about, ns.
    pub disk_ns: u64,
    /// Of the last turns of the worker, how many in a hundred found work waiting.
    pub busy_percent: u8,
    /// Cores that the server may use.
    pub cores: u16,
    /// The disk rotates.
    pub rotating: bool,
    /// It comes with others in one message, and the disk has it in one piece also if it goes through.
    pub is_together: bool,
}

/// Where a write goes, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Into memory.
    Back,
    /// Nothing is accepted: switched off, or no memory that outlives the server.
    ThroughOff,
    /// It is large.
    ThroughLarge,
    /// It would have been small enough for an emptier memory.
    ThroughFull,
    /// There are as many extents as a record can name.
    ThroughExtents,
    /// The file system below the target has little room left.
    ThroughRoom,
    /// It goes to the disk together with others.
    ThroughTogether,
    /// The worker is what everybody waits for, and the disk is faster.
    ThroughBusy,
}

/// The decision.
pub(super) fn way(s: &State) -> Way {
    let (used, all) = s.pages;
    let is_fast = s.disk_ns > 0 && s.disk_ns < FAST_NS && !s.rotating;
    let is_worker_short = s.busy_percent >= BUSY_PERCENT && s.cores >= MANY_CORES;
    let slow = s.rotating || s.disk_ns >= SLOW_NS;
    let base = s.through_bytes.saturating_mul(if slow { SLOW_FACTOR } else { 1 });
    // From half full on the limit falls, to nothing when there is no page left.
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

    /// Goal: each part of the state moves the decision, and the reason names it. Method: one change at a time.
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

    /// Goal: a busy worker hands large enough writes to a disk that is faster, and only then. Method: one change at a
    /// time.
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
