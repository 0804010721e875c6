//! `Away`: the inodes that exist and are not in memory.
//!
//! Owns: which they are, and to whom they are charged. Does not own: which inodes go (`Inodes`), or where they are read
//! from (the server).
//!
//! An inode that is away has one bit. Its account is counted by block, so that inodes can be counted by account without
//! reading them. An inode does not change while it is away.

use super::{SLOT_BITS, place};
use amphi_types::Owner;
use std::collections::BTreeMap;

/// Memory for the entry of a block, whose inodes mostly have one owner, bytes.
pub(super) const ENTRY_BYTES: usize = 2 * size_of::<(u64, Gone)>() + 32;

/// The inodes of a block that are away.
#[derive(Clone, Default)]
pub(super) struct Gone {
    bits: u64,
    /// Number of them by owner.
    owners: Vec<(Owner, u8)>,
}

impl Gone {
    /// Their numbers, ascending, in the block with this number.
    fn numbers(&self, block: u64) -> impl Iterator<Item = u64> {
        let bits = self.bits;
        (0..1 << SLOT_BITS).filter(move |slot| bits & 1 << slot != 0).map(move |slot| block << SLOT_BITS | slot)
    }
}

/// Inodes that are not in memory, by block.
#[derive(Clone, Default)]
pub(super) struct Away {
    blocks: BTreeMap<u64, Gone>,
    len: usize,
}

impl Away {
    /// Number of them.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.len() * ENTRY_BYTES
    }

    /// Whether the inode is away.
    pub(super) fn has(&self, local: u64) -> bool {
        let (number, slot) = place(local);
        self.blocks.get(&number).is_some_and(|gone| gone.bits & 1 << slot != 0)
    }

    /// An inode of this owner left memory.
    pub(super) fn add(&mut self, local: u64, owner: Owner) {
        let (number, slot) = place(local);
        let gone = self.blocks.entry(number).or_default();
        assert!(gone.bits & 1 << slot == 0, "inode {local} left memory twice");
        gone.bits |= 1 << slot;
        self.len += 1;
        match gone.owners.iter_mut().find(|(of, _)| *of == owner) {
            Some((_, count)) => *count += 1,
            None => {
                gone.owners.reserve_exact(1);
                gone.owners.push((owner, 1));
            }
        }
    }

    /// An inode of this owner came back. Returns false if it was not away.
    pub(super) fn remove(&mut self, local: u64, owner: Owner) -> bool {
        let (number, slot) = place(local);
        let Some(gone) = self.blocks.get_mut(&number).filter(|gone| gone.bits & 1 << slot != 0) else { return false };
        gone.bits &= !(1 << slot);
        self.len -= 1;
        let counted = gone.owners.iter_mut().find(|(of, _)| *of == owner);
        counted.expect("an inode keeps its owner while it is away").1 -= 1;
        gone.owners.retain(|(_, count)| *count > 0);
        if gone.bits == 0 {
            self.blocks.remove(&number);
        }
        true
    }

    /// The numbers of inodes of the same block, ascending.
    pub(super) fn beside(&self, local: u64) -> impl Iterator<Item = u64> {
        let number = place(local).0;
        self.blocks.get(&number).into_iter().flat_map(move |gone| gone.numbers(number))
    }

    /// The owner of the inodes of this one's block that are away, if they have the same.
    pub(super) fn owner_of_all(&self, local: u64) -> Option<Owner> {
        match &*self.blocks.get(&place(local).0)?.owners {
            [(owner, _)] => Some(*owner),
            _ => None,
        }
    }

    /// The owners of inodes, each with a number of them.
    pub(super) fn owners(&self) -> impl Iterator<Item = (Owner, u8)> {
        self.blocks.values().flat_map(|gone| gone.owners.iter().copied())
    }

    /// The numbers of inodes from this one on, ascending.
    pub(super) fn numbers(&self, from: u64) -> impl Iterator<Item = u64> {
        let blocks = self.blocks.range(place(from).0..);
        let all = blocks.flat_map(|(&number, gone)| gone.numbers(number));
        all.filter(move |&local| local >= from)
    }
}
