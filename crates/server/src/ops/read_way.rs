//! Whether a read is served from memory that the server keeps, and how much it brings there for others.
//!
//! Owns: the decision, as one pure function of what the server knows at that moment. Does not own: what follows
//! (`cached_read`), how reads lie beside each other (`amphi_object::read_pattern`).
//!
//! What is kept is served. Otherwise a mount that is alone keeps what it reads itself, and large reads go from the disk
//! to the mount without a copy. Of the rest, a read that lies beside no other one brings nothing: reading at random
//! costs what it cost, and one look at everything fills no memory. A neighbour brings its 64 KiB, and reads of several
//! mounts that lie together their whole mebibyte, which the next ones find.
//!
//! A program that says how it reads is believed: what it reads once is not kept, what it reads in sequence brings its
//! mebibyte from the first read on, and what it reads at random is kept without what lies around it.

use amphi_object::Beside;
use amphi_types::limits::BLOCK;
use amphi_wire::ReadAdvice;

/// Reads of so many bytes go past the memory, bytes.
const LARGE_BYTES: u64 = 256 << 10;
/// What a read brings that has a neighbour: the whole blocks of so many bytes around it.
const NEAR_UNIT_BYTES: u64 = 64 << 10;
/// What one brings that is part of a sequence.
const FAR_UNIT_BYTES: u64 = 1 << 20;

/// What is known when a read comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Memory may be used.
    pub open: bool,
    /// All of it is there.
    pub is_kept: bool,
    /// There is one mount.
    pub alone: bool,
    /// Bytes of the read.
    pub len: u64,
    /// What its program has said.
    pub advice: ReadAdvice,
    /// Whatever was read before it.
    pub beside: Beside,
}

/// Where a read is served from, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadWay {
    /// From memory.
    Kept,
    /// From the disk, with all around it up to multiples of so many bytes, which are kept.
    Unit(u64),
    /// From the disk: nothing is kept.
    DirectOff,
    /// Likewise: it is large.
    DirectLarge,
    /// Likewise: the mount keeps it.
    DirectAlone,
    /// Likewise: nobody has read beside it.
    DirectFirst,
    /// Likewise: nobody reads it again.
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

    /// Goal: each part of the state moves the decision, and the reason names it. Method: one change at a time.
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
