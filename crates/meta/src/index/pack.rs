//! The contents of an entry about its inode, in the 64 bits that the tree keeps for a name.
//!
//! Owns: the form of these bits. Does not own: inodes whose number does not fit, which the index keeps in a separate
//! map.
//!
//! | bits | content |
//! |---|---|
//! | 0 to 2 | kind; 7: the inode is in the separate map |
//! | 3 to 47 | number of the inode local to its target, below 2^45 |
//! | 48 to 63 | its target, as the difference from the directory's |
//!
//! The difference is 0 for almost all entries, so that the value of a young inode has few bytes.

use super::Named;
use amphi_types::{Ino, Kind, TargetId};

const KIND_BITS: u32 = 3;
const LOCAL_BITS: u32 = 45;
const TARGET_SHIFT: u32 = KIND_BITS + LOCAL_BITS;
/// The value of an entry whose inode is in the separate map.
pub(super) const BESIDE: u64 = 7;
const _: () = assert!(TARGET_SHIFT + u16::BITS == u64::BITS, "the target takes the rest of the bits");
const _: () = assert!(KINDS.len() as u64 == BESIDE && BESIDE < 1 << KIND_BITS, "each kind has a number");

const KINDS: [Kind; 7] =
    [Kind::File, Kind::Dir, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::CharDev, Kind::BlockDev];

/// The bits, or `None` if the number of the inode is too large for them.
pub(super) fn pack(own: TargetId, named: Named) -> Option<u64> {
    let kind = KINDS.iter().position(|kind| *kind == named.kind)? as u64;
    let local = named.child.local();
    let target = u64::from(named.child.target().0 ^ own.0);
    (local >> LOCAL_BITS == 0).then_some(target << TARGET_SHIFT | local << KIND_BITS | kind)
}

/// The decoded bits, or `None` if the inode is in the separate map.
pub(super) fn unpack(own: TargetId, bits: u64) -> Option<Named> {
    let kind = *KINDS.get((bits & ((1 << KIND_BITS) - 1)) as usize)?;
    let target = TargetId((bits >> TARGET_SHIFT) as u16 ^ own.0);
    let local = (bits >> KIND_BITS) & ((1 << LOCAL_BITS) - 1);
    Some(Named { child: Ino::new(target, local), kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every inode that fits is decoded unchanged, others are refused. Method: each kind, numbers around the
    /// bound, own and other targets.
    #[test]
    fn inodes_come_back() {
        for kind in KINDS {
            for (local, fits) in [(1, true), ((1 << 45) - 1, true), (1 << 45, false), (Ino::MAX_LOCAL, false)] {
                for (own, target) in [(0, 0), (5, 5), (5, u16::MAX), (u16::MAX, 0)] {
                    let named = Named { child: Ino::new(TargetId(target), local), kind };
                    let bits = pack(TargetId(own), named);
                    assert_eq!(bits.and_then(|bits| unpack(TargetId(own), bits)), fits.then_some(named));
                    assert!(own != target || bits.is_none_or(|bits| bits < 8 << 45));
                }
            }
        }
        assert_eq!(unpack(TargetId(5), BESIDE), None);
    }
}
