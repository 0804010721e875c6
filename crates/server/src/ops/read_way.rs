//! Whether a read is served from the server's read cache, and how much it loads there for others.
//!
//! Owns: the decision, as one pure function of the server's state at that moment. Does not own: carrying it out
//! (`cached_read`), recognising adjacent reads (`amphi_object::read_pattern`).
//!
//! Kept blocks are served from memory. Otherwise a sole mount caches what it reads itself, and large reads are sent
//! from the disk to the mount without a copy. Among the other reads, a read that has no other read nearby loads only
//! its own bytes. So random reads cost no more than without the cache, and reading everything once fills no memory. A
//! read near another one loads the 64 KiB around it. Nearby reads of several mounts load the whole mebibyte around
//! them, and the next reads find it.
//!
//! The advice of a program is followed. Bytes that a program reads once are not kept. Bytes that it reads in sequence
//! load the whole mebibyte from the first read on. Bytes that it reads at random are kept without their surroundings.

use amphi_object::Beside;
use amphi_types::limits::BLOCK;
use amphi_wire::ReadAdvice;

/// Reads of this many bytes go past the memory, bytes.
const LARGE_BYTES: u64 = 256 << 10;
/// The bytes that a read near another one loads: all whole blocks of this many bytes around it.
const NEAR_UNIT_BYTES: u64 = 64 << 10;
/// The piece that a read in a sequence loads.
const FAR_UNIT_BYTES: u64 = 1 << 20;

/// The inputs of the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Memory may be used.
    pub open: bool,
    /// Whether all bytes of the read are in memory.
    pub is_kept: bool,
    /// Whether there is only one mount.
    pub alone: bool,
    /// Bytes of the read.
    pub len: u64,
    /// The advice of the program that reads.
    pub advice: ReadAdvice,
    /// The relation of this read to earlier reads.
    pub beside: Beside,
}

/// How a read is served, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadWay {
    /// The bytes are read from the read cache in memory.
    Kept,
    /// From the disk, together with all surrounding blocks up to multiples of this many bytes; all of these are kept.
    Unit(u64),
    /// The bytes are read from the disk, and nothing is kept.
    DirectOff,
    /// From the disk, without keeping anything: the read is large.
    DirectLarge,
    /// The bytes are read from the disk, and nothing is kept: the mount caches the bytes that it reads.
    DirectAlone,
    /// From the disk, without keeping anything: there was no other read nearby.
    DirectFirst,
    /// From the disk, without keeping anything: the bytes are not read again.
    DirectOnce,
}

/// The decision.
pub(super) fn way(s: &State) -> ReadWay {
    if !s.open {
        ReadWay::DirectOff
    } else if s.is_kept {
        ReadWay::Kept
    } else if s.advice == ReadAdvice::Once {
        ReadWay::DirectOnce
    } else if s.len >= LARGE_BYTES {
        ReadWay::DirectLarge
    } else if s.alone {
        ReadWay::DirectAlone
    } else {
        match (s.advice, s.beside) {
            (ReadAdvice::Sequential, _) => ReadWay::Unit(FAR_UNIT_BYTES),
            (_, Beside::Nothing) => ReadWay::DirectFirst,
            (ReadAdvice::Random, _) => ReadWay::Unit(BLOCK),
            (_, Beside::Neighbour) => ReadWay::Unit(NEAR_UNIT_BYTES),
            (_, Beside::Together) => ReadWay::Unit(FAR_UNIT_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each part of the state changes the decision, and the reason names it. Method: each reason is tested by
    /// changing one input at a time.
    #[test]
    fn each_reason_has_its_state() {
        let (advice, beside) = (ReadAdvice::Normal, Beside::Neighbour);
        let calm = State { open: true, is_kept: false, alone: false, len: 47_008, advice, beside };
        assert_eq!(way(&calm), ReadWay::Unit(NEAR_UNIT_BYTES));
        assert_eq!(way(&State { beside: Beside::Together, ..calm }), ReadWay::Unit(FAR_UNIT_BYTES));
        assert_eq!(way(&State { beside: Beside::Nothing, ..calm }), ReadWay::DirectFirst);
        assert_eq!(way(&State { alone: true, ..calm }), ReadWay::DirectAlone);
        assert_eq!(way(&State { len: LARGE_BYTES, ..calm }), ReadWay::DirectLarge);
        assert_eq!(way(&State { open: false, ..calm }), ReadWay::DirectOff);
        let (once, random, sequential) = (ReadAdvice::Once, ReadAdvice::Random, ReadAdvice::Sequential);
        assert_eq!(way(&State { advice: once, beside: Beside::Together, ..calm }), ReadWay::DirectOnce);
        assert_eq!(way(&State { advice: random, beside: Beside::Together, ..calm }), ReadWay::Unit(BLOCK));
        assert_eq!(way(&State { advice: random, beside: Beside::Nothing, ..calm }), ReadWay::DirectFirst);
        let first = State { advice: sequential, beside: Beside::Nothing, ..calm };
        assert_eq!(way(&first), ReadWay::Unit(FAR_UNIT_BYTES));
        assert_eq!(way(&State { alone: true, ..first }), ReadWay::DirectAlone);
        assert_eq!(way(&State { len: LARGE_BYTES, ..first }), ReadWay::DirectLarge);
        let kept = State { is_kept: true, alone: true, len: 1 << 20, beside: Beside::Nothing, ..calm };
        assert_eq!(way(&kept), ReadWay::Kept, "what is there is served to everybody");
        assert_eq!(way(&State { advice: once, ..kept }), ReadWay::Kept);
        assert_eq!(way(&State { open: false, ..kept }), ReadWay::DirectOff);
    }
}
