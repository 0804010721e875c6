//! `Inodes`: the inodes of a target in memory, as compact records.
//!
//! Owns: the records, their blocks, and their memory. Does not own: what is stored of an inode on the disk (`codec`),
//! and how inodes change.
//!
//! Inodes whose numbers differ only in the lowest six bits share a *block*: one byte string with their records in the
//! order of their numbers, and the length of each (`block`). A record contains only the differences of its inode from
//! the usual values (`record`). Inodes that were made one after the other are neighbours, so most of their values are
//! usual for their block. The target of a symbolic link is in its record as well; one that is too long for that is in a
//! separate map.
//!
//! Inodes go in and come out by value, because nothing in memory has the form of an `Inode` that could be borrowed.
//!
//! Invariants: a decoded inode equals the encoded one, for every value of every field. A block has at least one record.
//! A block has at most a quarter and 32 bytes more memory than its records need. Only an inode whose record has the
//! flag for it has a target in the separate map.
//!
//! The number that drove the design: an inode as a structure has 176 bytes, and takes 340 in an ordered map. An empty
//! file takes 8 to 9 here, and one that was written 13. docs/design/inode_records.md has the measurements.

mod block;
mod record;

use crate::inode::InodeFlags;
use crate::{Inode, Pending};
use amphi_quota::Usage;
use amphi_types::{Kind, Owner};
use block::Block;
use record::{Record, Usual};
use std::collections::BTreeMap;
use std::fmt;

/// The bits of a number that give the place within its block.
const SLOT_BITS: u32 = block::SLOTS.trailing_zeros();
const _: () = assert!(block::SLOTS == 1 << SLOT_BITS, "the bits give each place");
/// Memory for an entry of the map of blocks, whose nodes are half full, bytes.
const ENTRY_BYTES: usize = 2 * size_of::<(u64, Box<Block>)>();

/// Inodes by their number local to the target.
#[derive(Clone, Default)]
pub(crate) struct Inodes {
    blocks: BTreeMap<u64, Box<Block>>,
    /// Targets of symbolic links that are too long for a record.
    targets: BTreeMap<u64, Box<[u8]>>,
    len: usize,
    bytes: usize,
    /// Inodes by account, while they are counted.
    usage: Option<Usage>,
}

/// The attributes for checks of names and links: the first fields of a record. The others need not be decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brief {
    pub(crate) kind: Kind,
    pub(crate) nlink: u32,
    pub(crate) entries: u64,
    pub(crate) flags: InodeFlags,
    pub(crate) pending: Pending,
}

/// The account to which an inode is charged. An inode that is being destroyed is not charged to any account, though it
/// stays until its objects on all targets are certain to be removed.
fn counted(inode: &Inode) -> Option<Owner> {
    (!inode.pending.destroy).then(|| inode.charged())
}

/// Number of the block of an inode, and the inode's place in it.
fn place(local: u64) -> (u64, usize) {
    (local >> SLOT_BITS, (local & (block::SLOTS as u64 - 1)) as usize)
}

impl Inodes {
    /// Number of inodes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory of all inodes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether there is an inode of this number.
    pub(crate) fn contains(&self, local: u64) -> bool {
        self.record(local).is_some()
    }

    /// The inode of this number.
    pub(crate) fn get(&self, local: u64) -> Option<Inode> {
        let (usual, record) = self.record(local)?;
        Some(self.decode(local, usual, record))
    }

    /// The first fields of the inode of this number.
    pub(crate) fn brief(&self, local: u64) -> Option<Brief> {
        let (usual, record) = self.record(local)?;
        Some(record::brief(usual, record))
    }

    /// The inodes from this number on, ascending.
    pub(crate) fn iter(&self, from: u64) -> impl Iterator<Item = (u64, Inode)> {
        self.records(from).map(|(local, usual, record)| (local, self.decode(local, usual, record)))
    }

    /// The numbers of inodes from this one on, ascending.
    pub(crate) fn numbers(&self, from: u64) -> impl Iterator<Item = u64> {
        self.records(from).map(|(local, ..)| local)
    }

    /// Inserts an inode, or replaces an earlier one.
    pub(crate) fn insert(&mut self, local: u64, inode: &Inode) {
        self.charge(local, Some(inode));
        let (number, slot) = place(local);
        let block = self.blocks.entry(number).or_insert_with(|| {
            self.bytes += ENTRY_BYTES;
            Box::new(Block::new(Usual::of(inode)))
        });
        let record = Record::encode(inode, block.usual());
        let before = if block.is_empty() { 0 } else { block.bytes() };
        let was_there = block.put(slot, record.as_bytes());
        assert!(before <= self.bytes, "a block of {before} bytes, all have {}", self.bytes);
        self.bytes = self.bytes - before + block.bytes();
        self.len += usize::from(!was_there);
        self.put_target(local, record.target_beside().then_some(&*inode.symlink));
    }

    /// Changes the inode of this number. Returns false if there is none.
    pub(crate) fn edit(&mut self, local: u64, change: impl FnOnce(&mut Inode)) -> bool {
        let Some(mut inode) = self.get(local) else { return false };
        change(&mut inode);
        self.insert(local, &inode);
        true
    }

    /// Removes an inode. It is no error if there is none.
    pub(crate) fn remove(&mut self, local: u64) {
        self.charge(local, None);
        let (number, slot) = place(local);
        let Some(block) = self.blocks.get_mut(&number) else { return };
        let before = block.bytes();
        if !block.remove(slot) {
            return;
        }
        assert!(self.len > 0 && before <= self.bytes, "{} inodes, {before} of {} bytes", self.len, self.bytes);
        self.len -= 1;
        if block.is_empty() {
            self.blocks.remove(&number);
            self.bytes -= before + ENTRY_BYTES;
        } else {
            self.bytes = self.bytes - before + block.bytes();
        }
        self.put_target(local, None);
    }

    /// Switches the counting of inodes by account on or off.
    pub(crate) fn set_counting(&mut self, on: bool) {
        if on == self.usage.is_some() {
            return;
        }
        self.usage = on.then(|| {
            let mut usage = Usage::default();
            for owner in self.iter(0).filter_map(|(_, inode)| counted(&inode)) {
                let owner = usage.number(owner);
                usage.charge(owner, 0, 1);
            }
            usage
        });
    }

    /// Inodes by account, while they are counted.
    pub(crate) fn usage(&self) -> Option<&Usage> {
        self.usage.as_ref()
    }

    /// Called when the inode of this number becomes `after`.
    fn charge(&mut self, local: u64, after: Option<&Inode>) {
        if self.usage.is_none() {
            return;
        }
        let before = self.get(local).as_ref().and_then(counted);
        let after = after.and_then(counted);
        if let (Some(usage), true) = (&mut self.usage, before != after) {
            for (owner, was, is) in [(before, 1, 0), (after, 0, 1)] {
                if let Some(owner) = owner {
                    let number = usage.number(owner);
                    usage.charge(number, was, is);
                }
            }
        }
    }

    fn record(&self, local: u64) -> Option<(&Usual, &[u8])> {
        let (number, slot) = place(local);
        let block = self.blocks.get(&number)?;
        Some((block.usual(), block.record(slot)?))
    }

    fn records(&self, from: u64) -> impl Iterator<Item = (u64, &Usual, &[u8])> {
        let (first, slot) = place(from);
        self.blocks.range(first..).flat_map(move |(&number, block)| {
            let from = if number == first { slot } else { 0 };
            block.records(from).map(move |(slot, record)| (number << SLOT_BITS | slot as u64, block.usual(), record))
        })
    }

    fn decode(&self, local: u64, usual: &Usual, record: &[u8]) -> Inode {
        record::decode(usual, record, || self.targets.get(&local).cloned().unwrap_or_default())
    }

    /// Stores the target of a symbolic link, or removes it.
    fn put_target(&mut self, local: u64, target: Option<&[u8]>) {
        let cost = |target: &[u8]| target.len() + 2 * size_of::<(u64, Box<[u8]>)>();
        let old = match target {
            Some(target) => {
                self.bytes += cost(target);
                self.targets.insert(local, target.into())
            }
            None => self.targets.remove(&local),
        };
        let freed = old.map_or(0, |old| cost(&old));
        assert!(freed <= self.bytes, "a target of {freed} bytes, all have {}", self.bytes);
        self.bytes -= freed;
    }
}

/// Two that have the same inodes are equal, however their blocks have come about.
impl PartialEq for Inodes {
    fn eq(&self, other: &Inodes) -> bool {
        self.len == other.len && self.iter(0).eq(other.iter(0))
    }
}

impl Eq for Inodes {}

impl fmt::Debug for Inodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter(0)).finish()
    }
}
