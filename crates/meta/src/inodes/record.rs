//! The record of an inode: its differences from the usual values.
//!
//! Owns: these bytes, which exist in memory only and may change with every version. Does not own: items on the disk
//! (`codec`).
//!
//! A record begins with a number whose bits say which fields follow. If the bit of a field is not set, the field has
//! its usual value.
//!
//! | field, in this order | its usual value |
//! |---|---|
//! | kind, permissions | those of the block |
//! | links | 2 for a directory, 1 for others |
//! | entries | 0 |
//! | state of objects, pending work, flags | none of them |
//! | parent, as the difference from the block's | the block's |
//! | owner, group, project | those of the block |
//! | layout, settings for mounts | those of the block |
//! | time of creation, as the difference from the block's | none, it always follows |
//! | mtime, as the difference from the time of creation | the time of creation |
//! | ctime, in the same way | the mtime |
//! | atime, in the same way | one of the three times before, which two bits say |
//! | time at which an mtime was set, in the same way | one of the first three times, which two bits say |
//! | size, allocated storage, device number, truncation generation | 0 |
//! | target of a symbolic link | all bytes that are left, or in the separate map |
//!
//! Numbers are varints: seven bits in each byte, the lowest first, and the highest bit says that more follow. A time is
//! the number `seconds * 2^32 + nanoseconds`. Differences are signed and have the sign in the lowest bit.
//!
//! Invariants: every inode has a record, of at most `RECORD_MAX` bytes, and decoding it gives the same inode, whatever
//! the values of its fields are.

use super::Brief;
use crate::inode::{DirState, InodeFlags, InodeOwner, InodeTimes, ObjectsState};
use crate::{Inode, Pending};
use amphi_types::layout::Pattern;
use amphi_types::{Advice, Ino, Kind, Layout, Timespec};

/// Longest target of a symbolic link that is part of the record, bytes.
pub(super) const TARGET_MAX: usize = 60;
/// Most bytes of a record: 167 of numbers, and a target.
const RECORD_MAX: usize = 240;
/// Bytes for the number with the bits.
const HEAD_MAX: usize = 3;
const _: () = assert!(RECORD_MAX <= u8::MAX as usize, "a block keeps the length of a record in a byte");
const _: () = assert!(TARGET_BESIDE < 1 << (7 * HEAD_MAX), "the bits fit in front of the fields");

/// Kinds and patterns, indexed by the number that stands for them in a record.
const KINDS: [Kind; 7] =
    [Kind::File, Kind::Dir, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::CharDev, Kind::BlockDev];
const PATTERNS: [Pattern; 6] = [
    Pattern::GrowingNear,
    Pattern::StripedNear,
    Pattern::Whole,
    Pattern::GrowingLate,
    Pattern::Striped,
    Pattern::Growing,
];

// The first seven are those that most files need, so that their bits take one byte.
const PARENT: u32 = 1 << 0;
const SIZE: u32 = 1 << 1;
const BLOCKS: u32 = 1 << 2;
const MTIME: u32 = 1 << 3;
const KIND: u32 = 1 << 4;
const ENTRIES: u32 = 1 << 5;
const OWNER: u32 = 1 << 6;
const CTIME: u32 = 1 << 7;
const ATIME_SHIFT: u32 = 8;
const MTIME_SET_SHIFT: u32 = 10;
const LINKS: u32 = 1 << 12;
const STATE: u32 = 1 << 13;
const GENERATION: u32 = 1 << 14;
const LAYOUT: u32 = 1 << 15;
const DEVICE: u32 = 1 << 16;
const TARGET_BESIDE: u32 = 1 << 17;

/// Two bits for a time: it is the first, second or third of those before it, or it follows.
const OWN_TIME: u32 = 3;

/// The usual values of the inodes of a block, which are those of its first inode.
#[derive(Clone, Copy)]
pub(super) struct Usual {
    kind: Kind,
    perm: u16,
    parent: Ino,
    owner: InodeOwner,
    layout: Layout,
    advice: Advice,
    btime: Timespec,
}

impl Usual {
    /// The usual values that follow from this inode.
    pub(super) fn of(inode: &Inode) -> Usual {
        let Inode { kind, perm, owner, layout, advice, .. } = *inode;
        Usual { kind, perm, parent: inode.dir.parent, owner, layout, advice, btime: inode.times.btime }
    }
}

fn ticks(time: Timespec) -> i128 {
    i128::from(time.sec) << 32 | i128::from(time.nsec)
}

fn time(ticks: i128) -> Timespec {
    Timespec { sec: (ticks >> 32) as i64, nsec: ticks as u32 }
}

fn usual_links(kind: Kind) -> u32 {
    if kind == Kind::Dir { 2 } else { 1 }
}

/// The encoded record of an inode.
pub(super) struct Record {
    bytes: [u8; RECORD_MAX],
    /// The start of the record: its bits are written last, in front of the fields.
    start: usize,
    end: usize,
    bits: u32,
}

impl Record {
    /// The record of an inode among inodes that have this in common.
    pub(super) fn encode(inode: &Inode, usual: &Usual) -> Record {
        let mut record = Record { bytes: [0; RECORD_MAX], start: HEAD_MAX, end: HEAD_MAX, bits: 0 };
        record.brief(inode, usual);
        record.origin(inode, usual);
        record.times(&inode.times, usual);
        record.numbers([
            (SIZE, inode.size),
            (BLOCKS, inode.blocks),
            (DEVICE, u64::from(inode.rdev)),
            (GENERATION, inode.objects.generation),
        ]);
        if inode.symlink.len() > TARGET_MAX {
            record.bits |= TARGET_BESIDE;
        } else {
            record.append(&inode.symlink);
        }
        record.head();
        record
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Returns whether the target of the symbolic link is in the separate map.
    pub(super) fn target_beside(&self) -> bool {
        self.bits & TARGET_BESIDE != 0
    }

    /// The fields of `Brief`, with the permissions.
    fn brief(&mut self, inode: &Inode, usual: &Usual) {
        if (inode.kind, inode.perm) != (usual.kind, usual.perm) {
            self.bits |= KIND;
            self.append(&[inode.kind as u8]);
            self.number(u64::from(inode.perm));
        }
        if inode.nlink != usual_links(inode.kind) {
            self.bits |= LINKS;
            self.number(u64::from(inode.nlink));
        }
        self.numbers([(ENTRIES, inode.dir.entries)]);
        let truths = [inode.objects.spread, inode.objects.wide, inode.pending.trim, inode.pending.destroy];
        let work = truths.iter().enumerate().fold(0, |all, (at, is)| all | u8::from(*is) << at);
        let flags = inode.flags.bits();
        if (work, flags) != (0, 0) {
            self.bits |= STATE;
            self.append(&[work, flags]);
        }
    }

    fn origin(&mut self, inode: &Inode, usual: &Usual) {
        if inode.dir.parent != usual.parent {
            self.bits |= PARENT;
            self.signed(i128::from(inode.dir.parent.0) - i128::from(usual.parent.0));
        }
        if inode.owner != usual.owner {
            self.bits |= OWNER;
            self.number(u64::from(inode.owner.uid));
            self.number(u64::from(inode.owner.gid));
            self.number(u64::from(inode.owner.project));
        }
        if (inode.layout, inode.advice) != (usual.layout, usual.advice) {
            self.bits |= LAYOUT;
            self.append(&[inode.layout.pattern as u8, inode.advice.into()]);
            self.number(u64::from(inode.layout.stripe_size));
            self.number(u64::from(inode.layout.stripe_count));
            self.number(u64::from(inode.layout.pool));
        }
    }

    fn times(&mut self, times: &InodeTimes, usual: &Usual) {
        let btime = ticks(times.btime);
        self.signed(btime - ticks(usual.btime));
        if times.mtime != times.btime {
            self.bits |= MTIME;
            self.signed(ticks(times.mtime) - btime);
        }
        if times.ctime != times.mtime {
            self.bits |= CTIME;
            self.signed(ticks(times.ctime) - btime);
        }
        let before = [times.btime, times.mtime, times.ctime];
        for (time, shift) in [(times.atime, ATIME_SHIFT), (times.mtime_set_ctime, MTIME_SET_SHIFT)] {
            match before.iter().position(|earlier| *earlier == time) {
                Some(which) => self.bits |= (which as u32) << shift,
                None => {
                    self.bits |= OWN_TIME << shift;
                    self.signed(ticks(time) - btime);
                }
            }
        }
    }

    /// The numbers that are not 0.
    fn numbers<const N: usize>(&mut self, numbers: [(u32, u64); N]) {
        for (bit, number) in numbers.into_iter().filter(|(_, number)| *number != 0) {
            self.bits |= bit;
            self.number(number);
        }
    }

    /// Writes the bits in front of the fields.
    fn head(&mut self) {
        let fields = self.end;
        let len = 1 + usize::from(self.bits >= 1 << 7) + usize::from(self.bits >= 1 << 14);
        (self.start, self.end) = (HEAD_MAX - len, HEAD_MAX - len);
        self.number(u64::from(self.bits));
        self.end = fields;
    }

    fn append(&mut self, bytes: &[u8]) {
        self.bytes[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.append(&[number as u8 | 0x80]);
            number >>= 7;
        }
        self.append(&[number as u8]);
    }

    fn signed(&mut self, difference: i128) {
        let mut number = (difference << 1 ^ difference >> 127) as u128;
        while number > u128::from(u64::MAX) {
            self.append(&[number as u8 | 0x80]);
            number >>= 7;
        }
        self.number(number as u64);
    }
}

/// The fields of a record that are not read yet.
struct Fields<'a> {
    bits: u32,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn new(record: &'a [u8]) -> Fields<'a> {
        let mut fields = Fields { bits: 0, rest: record };
        fields.bits = fields.number() as u32;
        fields
    }

    fn has(&self, bit: u32) -> bool {
        self.bits & bit != 0
    }

    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        byte
    }

    fn number(&mut self) -> u64 {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 || shift >= u64::BITS {
                return number;
            }
        }
    }

    fn signed(&mut self) -> i128 {
        let mut number = 0u64;
        // Nine bytes fit into one word, and almost no difference needs more.
        for shift in (0..63).step_by(7) {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return i128::from((number >> 1) as i64 ^ -((number & 1) as i64));
            }
        }
        let mut number = u128::from(number);
        for shift in (63..u128::BITS).step_by(7) {
            let byte = self.byte();
            number |= u128::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        (number >> 1) as i128 ^ -((number & 1) as i128)
    }

    /// A number that is encoded only if `bit` is set, and is 0 otherwise.
    fn count(&mut self, bit: u32) -> u64 {
        if self.has(bit) { self.number() } else { 0 }
    }

    /// Decodes the first fields: `Brief`, the permissions, and the byte with the state of the objects (`spread`,
    /// `wide`) and the pending work (`trim`, `destroy`).
    fn brief(&mut self, usual: &Usual) -> (Brief, u16, u8) {
        let (kind, perm) = match self.has(KIND) {
            true => (KINDS[usize::from(self.byte())], self.number() as u16),
            false => (usual.kind, usual.perm),
        };
        let nlink = if self.has(LINKS) { self.number() as u32 } else { usual_links(kind) };
        let entries = self.count(ENTRIES);
        let (work, flags) = if self.has(STATE) { (self.byte(), self.byte()) } else { (0, 0) };
        let pending = Pending { trim: work & 4 != 0, destroy: work & 8 != 0 };
        (Brief { kind, nlink, entries, flags: InodeFlags::from_bits(flags), pending }, perm, work)
    }

    fn layout(&mut self, usual: &Usual) -> (Layout, Advice) {
        if !self.has(LAYOUT) {
            return (usual.layout, usual.advice);
        }
        let pattern = PATTERNS[usize::from(self.byte())];
        let advice = Advice::try_from(self.byte()).unwrap_or_default();
        let (stripe_size, stripe_count, pool) = (self.number() as u32, self.number() as u16, self.number() as u16);
        (Layout { pattern, stripe_size, stripe_count, pool }, advice)
    }

    fn times(&mut self, usual: &Usual) -> InodeTimes {
        let begin = ticks(usual.btime) + self.signed();
        let btime = time(begin);
        let mtime = if self.has(MTIME) { time(begin + self.signed()) } else { btime };
        let ctime = if self.has(CTIME) { time(begin + self.signed()) } else { mtime };
        let before = [btime, mtime, ctime];
        let mut later = |shift: u32| match before.get((self.bits >> shift & OWN_TIME) as usize) {
            Some(time) => *time,
            None => time(begin + self.signed()),
        };
        let (atime, mtime_set_ctime) = (later(ATIME_SHIFT), later(MTIME_SET_SHIFT));
        InodeTimes { atime, mtime, ctime, btime, mtime_set_ctime }
    }
}

/// The first fields of a record.
pub(super) fn brief(usual: &Usual, record: &[u8]) -> Brief {
    Fields::new(record).brief(usual).0
}

/// The inode of a record. `beside` is called for the target of the symbolic link if the record does not contain it.
pub(super) fn decode(usual: &Usual, record: &[u8], beside: impl FnOnce() -> Box<[u8]>) -> Inode {
    let mut fields = Fields::new(record);
    let (Brief { kind, nlink, entries, flags, pending }, perm, work) = fields.brief(usual);
    let parent = match fields.has(PARENT) {
        true => Ino((i128::from(usual.parent.0) + fields.signed()) as u64),
        false => usual.parent,
    };
    let owner = match fields.has(OWNER) {
        true => {
            InodeOwner { uid: fields.number() as u32, gid: fields.number() as u32, project: fields.number() as u32 }
        }
        false => usual.owner,
    };
    let (layout, advice) = fields.layout(usual);
    let times = fields.times(usual);
    let (size, blocks) = (fields.count(SIZE), fields.count(BLOCKS));
    let (rdev, generation) = (fields.count(DEVICE) as u32, fields.count(GENERATION));
    let objects = ObjectsState { generation, spread: work & 1 != 0, wide: work & 2 != 0 };
    let dir = DirState { parent, entries };
    let symlink = if fields.has(TARGET_BESIDE) { beside() } else { fields.rest.into() };
    Inode { kind, perm, nlink, owner, rdev, size, blocks, times, layout, advice, objects, flags, pending, dir, symlink }
}
