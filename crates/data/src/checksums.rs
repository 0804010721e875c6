//! `Checksums`: the checksums of the blocks of the data region.
//!
//! Owns: the expected checksum of each physical block, as far as it is known, and the items that store it. Does not
//! own: when blocks are read and compared (the server), where the bytes of a file lie (`extent`).
//!
//! Invariants:
//!
//! * The item with a block's checksum is in the record that maps the block, or in a later one, and that record follows
//!   the block's bytes (`Order::AfterData`). So a checksum survives a crash only if its block's bytes do.
//! * A block that has a checksum is never overwritten in place (`write::reuse_blocks`). Such a block is written again
//!   only when it is free and the record that freed it is stable.
//!
//! So after any crash, a mapped block with a checksum reads as the checksum says, or the medium is damaged.
//!
//! The number behind the groups: an item covers 32 blocks. A change of one block logs 143 bytes, a change of 1 MiB logs
//! 1.1 KiB, and the checksums take 0.11 % of the data in memory. With 256 blocks in an item, the log of a small write
//! would grow by 1 KiB; with 16 blocks, the log of a mebibyte by 1.3 KiB.

use crate::alloc::{Allocator, Run};
use amphi_types::item::{Key, Txn, tag};
use amphi_types::limits::BLOCK;
use std::collections::{BTreeMap, BTreeSet};

/// Blocks of one item.
pub const GROUP_BLOCKS: u64 = 32;
/// Most bytes that one item adds to a record.
pub const CHECKSUM_ITEM_BYTES: u64 = 6 + 9 + GROUP_BLOCKS * 4;
/// Most items of free blocks that one record deletes in addition to its own changes.
const EMPTIED_MAX: usize = 32;

/// Checksum of a block, as it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(u32);

impl Checksum {
    /// The block has no checksum and is not verified.
    pub const NONE: Checksum = Checksum(0);
    /// Some bytes of the block are lost, and it must not be read. No content has this checksum.
    pub const DAMAGED: Checksum = Checksum(1);

    /// The checksum of a block's bytes: their CRC-32C. A CRC that equals one of the two special values is replaced by
    /// that value plus two.
    pub fn of(block: &[u8]) -> Checksum {
        debug_assert_eq!(block.len() as u64, BLOCK);
        let crc = crc32c::crc32c(block);
        Checksum(if crc < 2 { crc + 2 } else { crc })
    }

    /// The checksums of each block of `bytes`, which are whole blocks.
    pub fn of_each(bytes: &[u8]) -> Vec<Checksum> {
        bytes.chunks_exact(BLOCK as usize).map(Checksum::of).collect()
    }

    /// Returns whether the block has a checksum.
    pub fn is_known(self) -> bool {
        self != Checksum::NONE
    }
}

type Group = [Checksum; GROUP_BLOCKS as usize];

/// The checksums of a target's blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checksums {
    groups: BTreeMap<u64, Box<Group>>,
    /// Groups of which all blocks may be free, so that their items can be deleted.
    emptied: BTreeSet<u64>,
}

impl Checksums {
    /// Returns whether no block has a checksum.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Number of items.
    pub fn items(&self) -> u64 {
        self.groups.len() as u64
    }

    /// The checksum of one block.
    pub fn get(&self, physical: u64) -> Checksum {
        let group = self.groups.get(&(physical / GROUP_BLOCKS));
        group.map_or(Checksum::NONE, |g| g[(physical % GROUP_BLOCKS) as usize])
    }

    /// The checksums of consecutive blocks.
    pub fn of_run(&self, physical: u64, blocks: u64) -> Vec<Checksum> {
        let mut all = Vec::with_capacity(blocks as usize);
        let mut at = physical;
        while at < physical + blocks {
            let first = (at % GROUP_BLOCKS) as usize;
            let n = (GROUP_BLOCKS - at % GROUP_BLOCKS).min(physical + blocks - at) as usize;
            match self.groups.get(&(at / GROUP_BLOCKS)) {
                Some(g) => all.extend_from_slice(&g[first..first + n]),
                None => all.resize(all.len() + n, Checksum::NONE),
            }
            at += n as u64;
        }
        all
    }

    /// Returns those of these blocks that have a checksum, ascending.
    pub(crate) fn known(&self, physical: u64, blocks: u64) -> Vec<u64> {
        if self.groups.is_empty() {
            return Vec::new();
        }
        let all = self.of_run(physical, blocks);
        (physical..).zip(all).filter(|(_, sum)| sum.is_known()).map(|(at, _)| at).collect()
    }

    /// Returns whether one of these blocks has a checksum.
    pub fn has_any(&self, physical: u64, blocks: u64) -> bool {
        !self.groups.is_empty() && self.of_run(physical, blocks).into_iter().any(Checksum::is_known)
    }

    /// Sets the checksums of consecutive blocks and appends the items that changed.
    pub(crate) fn put(&mut self, physical: u64, sums: &[Checksum], txn: &mut Txn) {
        let (mut at, mut rest) = (physical, sums);
        while !rest.is_empty() {
            let n = rest.len().min((GROUP_BLOCKS - at % GROUP_BLOCKS) as usize);
            let (part, behind) = rest.split_at(n);
            self.put_in_group(at / GROUP_BLOCKS, (at % GROUP_BLOCKS) as usize, part, txn);
            (at, rest) = (at + n as u64, behind);
        }
    }

    /// Removes the checksums of consecutive blocks and appends the items that changed.
    pub(crate) fn clear(&mut self, physical: u64, blocks: u64, txn: &mut Txn) {
        if !self.groups.is_empty() {
            self.put(physical, &vec![Checksum::NONE; blocks as usize], txn);
        }
    }

    fn put_in_group(&mut self, group: u64, first: usize, part: &[Checksum], txn: &mut Txn) {
        let had = self.groups.get(&group);
        let same = match had {
            Some(g) => g[first..first + part.len()] == *part,
            None => part.iter().all(|sum| !sum.is_known()),
        };
        if same {
            return;
        }
        let g = self.groups.entry(group).or_insert_with(|| Box::new(Group::default()));
        g[first..first + part.len()].copy_from_slice(part);
        if g.iter().any(|sum| sum.is_known()) {
            txn.put(key(group), value(g));
        } else {
            self.groups.remove(&group);
            txn.delete(key(group));
        }
    }

    /// Notes that blocks became free. The item of a group that is free as a whole can be deleted.
    pub(crate) fn note_free(&mut self, run: Run, alloc: &Allocator) {
        if self.groups.is_empty() {
            return;
        }
        let groups = run.start / GROUP_BLOCKS..=(run.end() - 1) / GROUP_BLOCKS;
        let emptied = self.groups.range(groups).map(|(&g, _)| g).filter(|&g| is_free(g, alloc));
        self.emptied.extend(emptied);
    }

    /// Appends the deletion of some items whose blocks are free. These items are not read, so the moment of the
    /// deletion does not matter.
    pub(crate) fn delete_emptied(&mut self, alloc: &Allocator, txn: &mut Txn) {
        for _ in 0..EMPTIED_MAX {
            let Some(group) = self.emptied.pop_first() else { return };
            if is_free(group, alloc) && self.groups.remove(&group).is_some() {
                txn.delete(key(group));
            }
        }
    }

    /// Loads an item.
    pub(crate) fn load(&mut self, group: u64, bytes: &[u8], blocks: u64) -> Result<(), String> {
        let decoded = decode(group, bytes, blocks)?;
        self.groups.insert(group, Box::new(decoded));
        Ok(())
    }

    /// Called when all items have been loaded.
    pub(crate) fn finish_load(&mut self, alloc: &Allocator) {
        self.emptied = self.groups.keys().copied().filter(|&g| is_free(g, alloc)).collect();
    }

    pub(crate) fn value(&self, group: u64) -> Option<Vec<u8>> {
        self.groups.get(&group).map(|g| value(g))
    }

    /// Keys of the items that follow the item of group `after`, at most `max`.
    pub(crate) fn keys_after(&self, after: Option<u64>, max: usize) -> Vec<Key> {
        let from = after.map_or(0, |group| group + 1);
        self.groups.range(from..).take(max).map(|(&group, _)| key(group)).collect()
    }
}

fn is_free(group: u64, alloc: &Allocator) -> bool {
    let start = group * GROUP_BLOCKS;
    alloc.is_free(Run { start, blocks: GROUP_BLOCKS.min(alloc.blocks() - start) as u32 })
}

fn key(group: u64) -> Key {
    let mut key = Vec::with_capacity(9);
    key.push(tag::CHECKSUM);
    key.extend_from_slice(&group.to_be_bytes());
    key
}

fn value(group: &Group) -> Vec<u8> {
    group.iter().flat_map(|sum| sum.0.to_le_bytes()).collect()
}

/// Decodes an item's value, and checks its place among `blocks` blocks.
pub(crate) fn decode(group: u64, bytes: &[u8], blocks: u64) -> Result<Group, String> {
    let (words, rest) = bytes.as_chunks::<4>();
    if words.len() as u64 != GROUP_BLOCKS || !rest.is_empty() {
        return Err(format!("checksums of group {group}: the value of {} bytes does not decode", bytes.len()));
    }
    if group.checked_mul(GROUP_BLOCKS).is_none_or(|first| first >= blocks) {
        return Err(format!("checksums of group {group}: it is outside of the {blocks} blocks of the zone"));
    }
    let mut decoded = Group::default();
    for (sum, word) in decoded.iter_mut().zip(words) {
        *sum = Checksum(u32::from_le_bytes(*word));
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the checksums of a run over several items are those that were put; an item is logged when it changes, and
    /// deleted when it is empty. Method: a sequence of changes that the test chooses.
    #[test]
    fn runs_lie_in_several_items() {
        let mut sums = Checksums::default();
        let some: Vec<Checksum> = (0..70).map(|i| Checksum(100 + i)).collect();
        let mut txn = Txn::default();
        sums.put(30, &some, &mut txn);
        assert_eq!(txn.len(), 4, "blocks 30 to 99");
        assert_eq!(sums.of_run(30, 70), some);
        assert_eq!((sums.get(29), sums.get(99), sums.get(100)), (Checksum::NONE, Checksum(169), Checksum::NONE));
        let mut again = Txn::default();
        sums.put(40, &some[10..20], &mut again);
        sums.clear(200, 50, &mut again);
        assert!(again.is_empty(), "nothing changed");
        assert!(sums.has_any(0, 31) && !sums.has_any(0, 30) && !sums.has_any(100, 500));
        let mut loaded = Checksums::default();
        for change in txn.changes() {
            let group = u64::from_be_bytes(change.key()[1..].try_into().unwrap());
            loaded.load(group, change.value().unwrap(), 100).unwrap();
        }
        assert_eq!(loaded, sums);
        sums.clear(30, 70, &mut txn);
        assert!(sums.is_empty() && txn.changes().skip(4).all(|c| c.is_deletion()));
    }

    /// Goal: what does not decode is refused. Goal: items that do not decode are refused.
    #[test]
    fn bad_items_are_refused() {
        let whole = [0; 128];
        assert!(decode(3, &whole, 97).is_ok());
        assert!(decode(3, &whole, 96).unwrap_err().contains("outside"));
        assert!(decode(u64::MAX, &whole, 97).unwrap_err().contains("outside"));
        assert!(decode(0, &whole[1..], 97).unwrap_err().contains("does not decode"));
    }

    /// Goal: the checksum of a block finds each changed bit, and is never one of the two that mean something else.
    /// Method: each bit of a block. The rare values are not searched for; the test maps them by their inverse.
    #[test]
    fn each_bit_counts() {
        let mut block = vec![0x5A; BLOCK as usize];
        let whole = Checksum::of(&block);
        for bit in (0..BLOCK as usize * 8).step_by(61) {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Checksum::of(&block), whole);
            block[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(Checksum::of_each(&[block.clone(), block].concat()), [whole, whole]);
        assert!(whole.is_known() && Checksum::DAMAGED.is_known() && !Checksum::NONE.is_known());
    }
}
