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
//! If the memory is bounded, inodes leave it that were not used for long, by blocks (`let_go`), and are *away* until
//! they are put back in (`restore`). Directories never leave, nor do inodes that a start has to find without reading
//! all of them (those without a name, with unfinished work, or whose size is gathered from objects), nor those with
//! access control lists, which a start compares with them. Code that asks for an inode that is away gets nothing, and
//! the question is noted (`take_missed`).
//!
//! Invariants: an inode that is away exists, and does not change. A decoded inode equals the encoded one, for every
//! value of every field. A block has at least one record. A block has at most a quarter and 32 bytes more memory than
//! its records need. Only an inode whose record has the flag for it has a target in the separate map.
//!
//! The number that drove the design: an inode as a structure has 176 bytes, and takes 340 in an ordered map. An empty
//! file takes 8 to 9 here, and one that was written 13. docs/design/inode_records.md has the measurements.

mod away;
mod block;
mod record;

use crate::inode::InodeFlags;
use crate::{Inode, Pending};
use amphi_quota::Usage;
use amphi_types::{Kind, Owner};
use away::Away;
use block::Block;
use record::{Record, Usual};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

/// The bits of a number that give the place within its block.
const SLOT_BITS: u32 = block::SLOTS.trailing_zeros();
const _: () = assert!(block::SLOTS == 1 << SLOT_BITS, "the bits give each place");
/// Memory for an entry of the map of blocks, whose nodes are half full, bytes.
const ENTRY_BYTES: usize = 2 * size_of::<(u64, Box<Block>)>();

/// Blocks that `let_go` looks at in one call.
const LOOKS_MAX: usize = 16;

/// Inodes by their number local to the target.
#[derive(Clone, Default)]
pub(crate) struct Inodes {
    blocks: BTreeMap<u64, Box<Block>>,
    /// Targets of symbolic links that are too long for a record.
    targets: BTreeMap<u64, Box<[u8]>>,
    /// All inodes, with those that are away.
    len: usize,
    /// Memory without that of `away`.
    bytes: usize,
    /// Inodes by account, while they are counted.
    usage: Option<Usage>,
    away: Away,
    /// An inode that was asked for and is away.
    missed: Cell<Option<u64>>,
    /// Whether whoever asks now will look whether something was missed.
    is_attempt: Cell<bool>,
    /// Changes of inodes, which tell whether a step has changed something.
    changes: u64,
    leaving: Leaving,
}

/// Which inodes are considered for removal from memory next.
#[derive(Clone, Debug)]
struct Leaving {
    /// Memory above which inodes go.
    bytes_max: usize,
    /// The block that is looked at next.
    hand: u64,
    /// Whether an inode went, or a block was used, since the first block was looked at.
    any: bool,
    /// The last round has found nothing that could go, so that the next one begins when there is more memory than this.
    again_at: usize,
}

impl Default for Leaving {
    fn default() -> Leaving {
        Leaving { bytes_max: usize::MAX, hand: 0, any: true, again_at: 0 }
    }
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

/// Whether an inode may leave memory.
fn may_leave(inode: &Inode) -> bool {
    let is_needed = inode.kind == Kind::Dir || inode.nlink == 0 || inode.flags.has(InodeFlags::LISTS);
    !is_needed && inode.pending == Pending::default() && !inode.objects.spread
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
        self.bytes + self.away.bytes()
    }

    /// Whether there is an inode of this number, in memory or away.
    pub(crate) fn contains(&self, local: u64) -> bool {
        self.peek(local).is_some() || self.away.has(local)
    }

    /// Number of inodes that are away.
    pub(crate) fn away_count(&self) -> usize {
        self.away.len()
    }

    /// The numbers of inodes that are away, ascending.
    pub(crate) fn away(&self) -> impl Iterator<Item = u64> {
        self.away.numbers(0)
    }

    /// The numbers of inodes of the same block that are away, ascending.
    pub(crate) fn away_beside(&self, local: u64) -> impl Iterator<Item = u64> {
        self.away.beside(local)
    }

    /// The number of the block of an inode.
    pub(crate) fn block_of(local: u64) -> u64 {
        place(local).0
    }

    /// The owner of an inode that is away, if all inodes of its block that are away have the same.
    pub(crate) fn owner_away(&self, local: u64) -> Option<Owner> {
        self.away.owner_of_all(local)
    }

    /// Whether inodes take at least half of the memory that they may.
    pub(crate) fn is_near_bound(&self) -> bool {
        self.bytes >= self.leaving.bytes_max / 2
    }

    /// Whether inodes are away.
    pub(crate) fn any_away(&self) -> bool {
        self.away.len() > 0
    }

    /// Whether the inode of this number is away.
    pub(crate) fn is_away(&self, local: u64) -> bool {
        self.away.has(local)
    }

    /// The number of an inode that was asked for since the last call, and is away.
    pub(crate) fn take_missed(&self) -> Option<u64> {
        self.missed.take()
    }

    /// Whoever asks from now on will look at `take_missed`, or not any more.
    pub(crate) fn set_attempt(&self, on: bool) {
        self.is_attempt.set(on);
    }

    /// Number of changes that were made.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
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

    /// The inodes in memory from this number on, ascending.
    pub(crate) fn iter(&self, from: u64) -> impl Iterator<Item = (u64, Inode)> {
        self.records(from).map(|(local, usual, record)| (local, self.decode(local, usual, record)))
    }

    /// The numbers of inodes from this one on, ascending.
    pub(crate) fn numbers(&self, from: u64) -> impl Iterator<Item = u64> {
        let mut here = self.records(from).map(|(local, ..)| local).peekable();
        let mut away = self.away.numbers(from).peekable();
        std::iter::from_fn(move || match (here.peek(), away.peek()) {
            (Some(a), Some(b)) if b < a => away.next(),
            (None, _) => away.next(),
            _ => here.next(),
        })
    }

    /// Inserts an inode, or replaces an earlier one.
    pub(crate) fn insert(&mut self, local: u64, inode: &Inode) {
        assert!(!self.away.has(local), "inode {local} is changed, and is not in memory");
        self.changes += 1;
        self.charge(local, Some(inode));
        self.len += usize::from(self.put(local, inode));
    }

    /// Puts an inode back that was away, as it was. Returns false if it is not away.
    pub(crate) fn restore(&mut self, local: u64, inode: &Inode) -> bool {
        let was_away = self.away.remove(local, inode.charged());
        if was_away {
            self.put(local, inode);
        }
        was_away
    }

    /// Puts an inode into memory. Returns whether it is new there.
    fn put(&mut self, local: u64, inode: &Inode) -> bool {
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
        block.note_use();
        self.put_target(local, record.target_beside().then_some(&*inode.symlink));
        !was_there
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
        assert!(!self.away.has(local), "inode {local} is removed, and is not in memory");
        self.changes += 1;
        self.charge(local, None);
        self.len -= usize::from(self.drop_record(local));
    }

    /// Removes an inode from memory. Returns whether it was there.
    fn drop_record(&mut self, local: u64) -> bool {
        let (number, slot) = place(local);
        let Some(block) = self.blocks.get_mut(&number) else { return false };
        let before = block.bytes();
        if !block.remove(slot) {
            return false;
        }
        assert!(self.len > 0 && before <= self.bytes, "{} inodes, {before} of {} bytes", self.len, self.bytes);
        if block.is_empty() {
            self.blocks.remove(&number);
            self.bytes -= before + ENTRY_BYTES;
        } else {
            self.bytes = self.bytes - before + block.bytes();
        }
        self.put_target(local, None);
        true
    }

    /// Bounds the memory of inodes in memory.
    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.leaving = Leaving { bytes_max, ..Leaving::default() };
    }

    /// Lets some inodes leave memory if there is more of it than the bound, without those that are to stay. What was
    /// changed must be in records of the log. Returns whether any has left.
    pub(crate) fn let_go(&mut self, stays: impl Fn(u64) -> bool) -> bool {
        let mut any = false;
        for _ in 0..LOOKS_MAX {
            if self.bytes <= self.leaving.bytes_max || self.bytes < self.leaving.again_at {
                break;
            }
            let Some((&number, block)) = self.blocks.range(self.leaving.hand..).next() else {
                let fruitless = !std::mem::take(&mut self.leaving.any);
                let is_bounded = self.leaving.bytes_max > 0;
                self.leaving.again_at = if fruitless && is_bounded { self.bytes + self.bytes / 16 } else { 0 };
                self.leaving.hand = 0;
                continue;
            };
            self.leaving.hand = number + 1;
            if block.take_use() && self.leaving.bytes_max > 0 {
                self.leaving.any = true;
                continue;
            }
            for slot in 0..block::SLOTS {
                let local = number << SLOT_BITS | slot as u64;
                let Some((usual, record)) = self.peek(local) else { continue };
                let inode = self.decode(local, usual, record);
                if may_leave(&inode) && !stays(local) {
                    self.drop_record(local);
                    self.away.add(local, inode.charged());
                    self.leaving.any = true;
                    any = true;
                }
            }
        }
        any
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
            for (owner, count) in self.away.owners() {
                let owner = usage.number(owner);
                usage.charge(owner, 0, u64::from(count));
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

    /// The record of an inode that is needed.
    fn record(&self, local: u64) -> Option<(&Usual, &[u8])> {
        let (number, slot) = place(local);
        let found = self.blocks.get(&number).and_then(|block| {
            block.note_use();
            Some((block.usual(), block.record(slot)?))
        });
        if found.is_none() && self.away.has(local) {
            // Without this, whoever asked would take the inode for one that was removed.
            assert!(
                cfg!(test) || self.is_attempt.get(),
                "inode {local} was asked for, is not in memory, and is not held"
            );
            self.missed.set(Some(local));
        }
        found
    }

    /// The record of an inode, if it is in memory.
    fn peek(&self, local: u64) -> Option<(&Usual, &[u8])> {
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

/// Two that have the same inodes are equal, however their blocks have come about, and whichever are in memory.
impl PartialEq for Inodes {
    fn eq(&self, other: &Inodes) -> bool {
        let is_same = |(local, usual, record)| match other.peek(local) {
            Some((its_usual, its)) => self.decode(local, usual, record) == other.decode(local, its_usual, its),
            None => true,
        };
        self.len == other.len && self.numbers(0).eq(other.numbers(0)) && self.records(0).all(is_same)
    }
}

impl Eq for Inodes {}

impl fmt::Debug for Inodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter(0)).finish()
    }
}
