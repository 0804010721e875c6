//! `Generator`: which call a program makes next.
//!
//! Owns: the choice, weighted by a temper that is drawn once per program, so that runs differ in the calls that they
//! make most. Does not own: what the call should return. Most calls succeed, according to the state of the reference;
//! the rest are refused, for reasons of every kind.

use crate::dice::Dice;
use crate::op::{Handle, Name, Op, Stamp};
use crate::reference::{Body, Reference};
use amphi_client::{Fallocate, OpenFlags};
use amphi_types::{Cred, Ino, Kind, Timespec};
use amphi_wire::{RenameMode, XattrMode};

/// With more inodes than this a program mostly removes.
const NODES_MANY: usize = 28;
/// If more files than this are open, a program closes one.
const OPENS_MANY: usize = 6;
/// Longest file of a program, bytes.
const FILE_MOST: u64 = 3 << 20;
/// Unit of striping that programs request, bytes: the smallest, so that files lie on several targets.
const UNIT: u64 = 64 << 10;

/// How likely each family of calls is.
#[derive(Clone, Debug)]
struct Temper {
    names: u32,
    attrs: u32,
    xattrs: u32,
    opens: u32,
    reads: u32,
    writes: u32,
    sizes: u32,
    syncs: u32,
    looks: u32,
    /// One call in this many is made by another user than the owner.
    strangers: u64,
    /// One write or read in this many is forced direct.
    direct: u64,
    /// Whether opens are mostly O_DIRECT, mostly not, or mixed.
    o_direct: u64,
    /// One write in this many is large.
    large: u64,
    /// One open in this many is O_SYNC or O_DSYNC.
    sync: u64,
    /// One call in this many is interrupted.
    interrupts: u64,
    /// One call in this many begins a burst of small files.
    bursts: u64,
    /// One call in this many begins to read the files of a directory in the order of their names.
    walks: u64,
    /// One write in this many is of whole units.
    pieces: u64,
}

/// Most small files of a burst.
const BURST_MOST: u64 = 8;
/// Longest write to a file of a burst, bytes.
const BURST_LEN: u64 = 6000;

/// Small files that are made, written and closed one after the other, as an unpacked archive is.
#[derive(Clone, Copy, Debug, Default)]
struct Burst {
    left: u64,
    /// The file that is being made, and whether it was written.
    open: Option<(Handle, bool)>,
}

/// Least files of a directory that is read in order.
const WALK_LEAST: usize = 4;
/// While a directory is read, one call in this many does something else.
const WALK_OTHERS: u64 = 4;

/// The files of a directory that are listed, looked up, opened, read and closed one after the other, as `cat *` does.
#[derive(Clone, Debug, Default)]
struct Walk {
    dir: Ino,
    /// The remaining names, the next one last.
    names: Vec<Name>,
    /// The inode that was looked up.
    found: Option<Ino>,
    /// The file that is open, and whether it was read.
    open: Option<(Handle, bool)>,
}

/// A source of calls.
#[derive(Clone, Debug)]
pub struct Generator {
    dice: Dice,
    temper: Temper,
    owner: Cred,
    next_handle: Handle,
    next_tag: u64,
    burst: Burst,
    burst_dice: Dice,
    walk: Walk,
    walk_dice: Dice,
    piece_dice: Dice,
}

impl Generator {
    /// Calls of program `index` of a run.
    pub fn new(seed: u64, index: u64) -> Generator {
        let mut dice = Dice::new(seed, 1000 + index);
        let mut weight = |most: u64| dice.below(most + 1) as u32;
        let temper = Temper {
            names: 2 + weight(10),
            attrs: weight(4),
            xattrs: weight(4),
            opens: 2 + weight(6),
            reads: 2 + weight(12),
            writes: 2 + weight(12),
            sizes: weight(5),
            syncs: weight(3),
            looks: 1 + weight(6),
            strangers: [6, 20, 1 << 40][dice.below(3) as usize],
            direct: [2, 6, 1 << 40][dice.below(3) as usize],
            o_direct: [2, 4, 20][dice.below(3) as usize],
            large: [8, 30, 100][dice.below(3) as usize],
            sync: [3, 10, 40][dice.below(3) as usize],
            interrupts: [20, 100, 1 << 40][dice.below(3) as usize],
            bursts: 0,
            walks: 0,
            pieces: 0,
        };
        let mut burst_dice = Dice::new(seed, 2000 + index);
        let temper = Temper { bursts: [15, 60, 1 << 40][burst_dice.below(3) as usize], ..temper };
        let mut walk_dice = Dice::new(seed, 3000 + index);
        let temper = Temper { walks: [15, 60, 1 << 40][walk_dice.below(3) as usize], ..temper };
        let mut piece_dice = Dice::new(seed, 4000 + index);
        let temper = Temper { pieces: [2, 4, 12][piece_dice.below(3) as usize], ..temper };
        let owner = match dice.below(3) {
            0 => Cred::root(),
            n => Cred::new(1000 + n as u32, 1000 + n as u32, vec![3000, 3000 + n as u32]),
        };
        Generator {
            dice,
            temper,
            owner,
            next_handle: 1,
            next_tag: (index << 32) + 1,
            burst: Burst::default(),
            burst_dice,
            walk: Walk::default(),
            walk_dice,
            piece_dice,
        }
    }

    /// The owner of the program's files.
    pub fn owner(&self) -> &Cred {
        &self.owner
    }

    /// Virtual time to pass before the next call, microseconds: mostly none.
    pub fn pause_us(&mut self) -> u64 {
        match self.dice.below(30) {
            0 => self.dice.within(1000..200_000),
            1..6 => self.dice.within(1..500),
            _ => 0,
        }
    }

    /// Returns whether a signal ends the wait for the call, and after how many microseconds.
    pub fn interrupt_us(&mut self, r: &Reference, op: &Op) -> Option<u64> {
        // Whether an interrupted call has happened can be seen only if a name leads to the file.
        let ino = match op {
            Op::Close { .. } => return None,
            Op::Write { handle, .. } | Op::Fallocate { handle, .. } | Op::Copy { to: handle, .. } => {
                r.open_file(*handle).map(|o| o.ino).ok()
            }
            Op::Chmod { ino, .. }
            | Op::Chown { ino, .. }
            | Op::SetTimes { ino, .. }
            | Op::Truncate { ino, .. }
            | Op::SetXattr { ino, .. }
            | Op::RemoveXattr { ino, .. }
            | Op::Link { ino, .. } => Some(*ino),
            _ => None,
        };
        let hidden = ino.is_some_and(|i| r.node(i).is_ok_and(|n| n.nlink == 0));
        if !self.dice.one_in(self.temper.interrupts) || hidden {
            return None;
        }
        Some([1, 100, 1000, 20_000][self.dice.below(4) as usize])
    }

    /// A number that marks the bytes of one write, so that a read shows which write they come from.
    pub fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    fn cred(&mut self) -> Cred {
        if !self.dice.one_in(self.temper.strangers) {
            return self.owner.clone();
        }
        match self.dice.below(4) {
            0 => Cred::root(),
            1 => Cred::new(2000, 2000, vec![]),
            2 => Cred::new(2000, 2000, vec![self.owner.gid]),
            _ => Cred::new(2001, 3000, vec![]),
        }
    }

    fn name(&mut self) -> Name {
        match self.dice.below(60) {
            0 => vec![b'n'; 255],
            1 => vec![b'n'; 256],
            2 => vec![0xff, b'*', b' ', 0x01],
            3 => "ä€𝄞".as_bytes().to_vec(),
            _ => vec![b'a' + self.dice.below(10) as u8],
        }
    }

    fn pick_node(&mut self, r: &Reference, want: impl Fn(&Body) -> bool) -> Option<Ino> {
        let of: Vec<Ino> = r.nodes.iter().filter(|(_, n)| n.nlink > 0 && want(&n.body)).map(|(i, _)| *i).collect();
        self.dice.pick(&of).copied()
    }

    fn dir(&mut self, r: &Reference) -> Ino {
        self.pick_node(r, |b| matches!(b, Body::Dir(..))).unwrap_or(r.root)
    }

    fn file(&mut self, r: &Reference) -> Option<Ino> {
        self.pick_node(r, |b| matches!(b, Body::File(_)))
    }

    fn any(&mut self, r: &Reference) -> Ino {
        // An open file without a name now and then.
        if self.dice.one_in(10)
            && let Some(open) = self.dice.pick(&r.opens.values().collect::<Vec<_>>())
        {
            return open.ino;
        }
        self.pick_node(r, |_| true).unwrap_or(r.root)
    }

    /// A directory and a name in it that is there; any name if nothing is.
    fn entry(&mut self, r: &Reference) -> (Ino, Name) {
        if !self.dice.one_in(12) {
            let all: Vec<(Ino, &Name)> = r
                .nodes
                .iter()
                .filter_map(|(i, n)| match &n.body {
                    Body::Dir(entries, _) => Some(entries.keys().map(move |k| (*i, k))),
                    _ => None,
                })
                .flatten()
                .collect();
            if let Some((dir, name)) = self.dice.pick(&all) {
                return (*dir, (*name).clone());
            }
        }
        (self.dir(r), self.name())
    }

    fn handle(&mut self, r: &Reference, want: impl Fn(&OpenFlags) -> bool) -> Option<Handle> {
        let of: Vec<Handle> = r.opens.iter().filter(|(_, o)| want(&o.flags)).map(|(h, _)| *h).collect();
        self.dice.pick(&of).copied()
    }

    fn new_handle(&mut self) -> Handle {
        self.next_handle += 1;
        self.next_handle
    }

    fn flags(&mut self) -> OpenFlags {
        let access = self.dice.below(10);
        OpenFlags {
            read: access < 8,
            write: access > 0,
            append: access > 0 && self.dice.one_in(8),
            direct: self.dice.one_in(self.temper.o_direct),
            sync: self.dice.one_in(self.temper.sync),
            dsync: self.dice.one_in(self.temper.sync),
            truncate: access > 0 && self.dice.one_in(10),
            exclusive: false,
            exec: false,
            no_atime: false,
        }
    }

    fn perm(&mut self) -> u16 {
        *self.dice.pick(&[0o755, 0o644, 0o700, 0o600, 0o777, 0o770, 0o640, 0o500, 0o000, 0o711]).unwrap_or(&0o644)
    }

    fn dir_perm(&mut self) -> u16 {
        *self.dice.pick(&[0o755, 0o755, 0o777, 0o1777, 0o2775, 0o700, 0o555, 0o711]).unwrap_or(&0o755)
    }

    /// The start of a read or write: often near ends and borders, where errors are likely.
    fn offset(&mut self, size: u64) -> u64 {
        let near = |d: &mut Dice, at: u64| (at + d.below(40)).saturating_sub(20);
        let at = match self.dice.below(10) {
            0 => 0,
            1 | 2 => size,
            3 => near(&mut self.dice, size),
            4 => self.dice.below(size + 1) / 4096 * 4096,
            5 => {
                let unit = self.dice.below(size / UNIT + 2) * UNIT;
                near(&mut self.dice, unit)
            }
            6 => size + self.dice.below(200_000),
            _ => self.dice.below(size + 1),
        };
        at.min(FILE_MOST - 1)
    }

    fn len(&mut self) -> u64 {
        if self.dice.one_in(self.temper.large) {
            return self.dice.within(100_000..700_000);
        }
        match self.dice.below(8) {
            0 => self.dice.within(1..40),
            1 | 2 => self.dice.within(1..5000),
            3 => 4096 * self.dice.within(1..6),
            4 => 4096 * self.dice.within(1..20),
            5 => UNIT,
            _ => self.dice.within(1..40_000),
        }
    }

    fn span(&mut self, size: u64) -> (u64, u64) {
        let offset = self.offset(size);
        (offset, self.len().min(FILE_MOST - offset))
    }

    /// Whole units of the cache, which may be in one piece of memory: several units are passed without a copy, or a
    /// chunk of 1 MiB is copied (`perform::write`).
    fn piece(&mut self, size: u64) -> (u64, u64) {
        const CHUNK: u64 = 16 * UNIT;
        let dice = &mut self.piece_dice;
        if dice.one_in(3) {
            return (dice.below((size / CHUNK + 1).min(FILE_MOST / CHUNK - 1)) * CHUNK, CHUNK + 1);
        }
        let offset = (dice.below(size / UNIT + 2) * UNIT).min(FILE_MOST - UNIT);
        (offset, (UNIT * dice.within(2..17)).min(FILE_MOST - offset))
    }

    fn size_of(r: &Reference, handle: Handle) -> u64 {
        r.open_file(handle).ok().and_then(|o| r.bytes(o.ino).ok()).map_or(0, |b| b.len() as u64)
    }

    /// The next call, and who makes it.
    pub fn next(&mut self, r: &Reference, now: Timespec) -> (Cred, Op) {
        if self.burst.left == 0 && self.burst_dice.one_in(self.temper.bursts) {
            self.burst.left = self.burst_dice.within(2..BURST_MOST + 1);
        }
        if let Some(op) = self.small_file(r) {
            return (self.owner.clone(), op);
        }
        if let Some(op) = self.walk(r) {
            return (self.owner.clone(), op);
        }
        let cred = self.cred();
        for _ in 0..20 {
            let t = &self.temper;
            let weights =
                [t.names, t.attrs, t.xattrs, t.opens, t.reads, t.writes, t.sizes, t.syncs, t.looks, t.writes / 4];
            let op = match self.dice.weighted(&weights) {
                0 => Some(self.names(r)),
                1 => Some(self.attrs(r, now)),
                2 => Some(self.xattrs(r)),
                3 => self.opens(r),
                4 => self.reads(r),
                5 => self.writes(r),
                6 => self.sizes(r),
                7 => Some(self.syncs(r)),
                8 => Some(self.looks(r)),
                _ => self.copies(r),
            };
            if let Some(op) = op {
                let cred = if matches!(op, Op::SetLayout { .. }) { Cred::root() } else { cred };
                return (cred, op);
            }
        }
        (cred, Op::GetAttr { ino: r.root })
    }

    /// The next call of a burst.
    fn small_file(&mut self, r: &Reference) -> Option<Op> {
        if let Some((handle, written)) = self.burst.open.take()
            && r.open_file(handle).is_ok()
        {
            if written {
                return Some(Op::Close { handle });
            }
            self.burst.open = Some((handle, true));
            let (offset, len) = (self.burst_dice.below(3) * 1000, 1 + self.burst_dice.below(BURST_LEN));
            let stamp = Stamp { tag: self.tag(), len };
            return Some(Op::Write { handle, offset, stamp, direct: false });
        }
        self.burst.left = self.burst.left.checked_sub(1)?;
        let name = format!("small{}", self.burst_dice.below(2 * BURST_MOST)).into_bytes();
        let there = r.dir(r.root).ok().and_then(|(e, _)| e.get(&name)).copied();
        if there.is_some_and(|ino| r.bytes(ino).is_err()) {
            return None;
        }
        let handle = self.new_handle();
        self.burst.open = Some((handle, false));
        let flags = OpenFlags::READ_WRITE;
        Some(Op::Create { dir: r.root, name, perm: 0o644, flags, handle })
    }

    /// The next call of a program that reads a directory in order.
    fn walk(&mut self, r: &Reference) -> Option<Op> {
        let walking = self.walk.open.is_some() || self.walk.found.is_some() || !self.walk.names.is_empty();
        if walking && self.walk_dice.one_in(WALK_OTHERS) {
            return None;
        }
        if let Some((handle, read)) = self.walk.open.take()
            && r.open_file(handle).is_ok()
        {
            if read {
                return Some(Op::Close { handle });
            }
            self.walk.open = Some((handle, true));
            return Some(Op::Read { handle, offset: 0, len: FILE_MOST, direct: false });
        }
        if let Some(ino) = self.walk.found.take()
            && r.bytes(ino).is_ok()
        {
            let handle = self.new_handle();
            self.walk.open = Some((handle, false));
            return Some(Op::Open { ino, flags: OpenFlags::READ, handle });
        }
        while let Some(name) = self.walk.names.pop() {
            let dir = self.walk.dir;
            let there = r.dir(dir).ok().and_then(|(e, _)| e.get(&name)).copied();
            if let Some(ino) = there.filter(|ino| r.bytes(*ino).is_ok()) {
                self.walk.found = Some(ino);
                return Some(Op::Lookup { dir, name });
            }
        }
        if !self.walk_dice.one_in(self.temper.walks) {
            return None;
        }
        let mut dirs = Vec::new();
        for (dir, node) in r.nodes.iter().filter(|(_, n)| n.nlink > 0) {
            if let Body::Dir(entries, _) = &node.body {
                let files = entries.iter().filter(|(_, ino)| r.bytes(**ino).is_ok());
                let names: Vec<Name> = files.map(|(name, _)| name.clone()).rev().collect();
                if names.len() >= WALK_LEAST {
                    dirs.push((*dir, names));
                }
            }
        }
        let (dir, names) = self.walk_dice.pick(&dirs)?.clone();
        self.walk = Walk { dir, names, found: None, open: None };
        Some(Op::List { dir, max: 1 + self.walk_dice.below(20) as u32, plus: self.walk_dice.one_in(2) })
    }

    fn names(&mut self, r: &Reference) -> Op {
        let removes = if r.nodes.len() > NODES_MANY { 14 } else { 4 };
        match self.dice.weighted(&[4, 2, 1, 3, removes, removes / 2, 8]) {
            0 => Op::Mkdir { dir: self.dir(r), name: self.name(), perm: self.dir_perm() },
            1 => {
                let len = self.dice.within(1..200) as usize;
                Op::Symlink { dir: self.dir(r), name: self.name(), to: vec![b'/'; len] }
            }
            2 => {
                let kind = *self.dice.pick(&[Kind::Fifo, Kind::Socket]).unwrap_or(&Kind::Fifo);
                Op::Mknod { dir: self.dir(r), name: self.name(), kind, perm: self.perm() }
            }
            3 => {
                let unnamed: Vec<Ino> = r.linkable().collect();
                let ino = match self.dice.pick(&unnamed).copied() {
                    Some(unnamed) if self.dice.one_in(4) => unnamed,
                    _ if self.dice.one_in(8) => self.any(r),
                    _ => self.file(r).unwrap_or(r.root),
                };
                Op::Link { ino, dir: self.dir(r), name: self.name() }
            }
            4 => {
                let (dir, name) = self.entry(r);
                Op::Unlink { dir, name }
            }
            5 => {
                let (dir, name) = self.entry(r);
                Op::Rmdir { dir, name }
            }
            _ => {
                let (from, from_name) = self.entry(r);
                let (to, to_name) = if self.dice.one_in(3) { self.entry(r) } else { (self.dir(r), self.name()) };
                let mode = match self.dice.below(8) {
                    0 => RenameMode::NoReplace,
                    1 => RenameMode::Exchange,
                    _ => RenameMode::Replace,
                };
                Op::Rename { from, from_name, to, to_name, mode }
            }
        }
    }

    fn attrs(&mut self, r: &Reference, now: Timespec) -> Op {
        let ino = self.any(r);
        let is_dir = r.dir(ino).is_ok();
        match self.dice.below(6) {
            0..=2 if r.node(ino).is_ok_and(|n| n.kind != Kind::Symlink) => {
                Op::Chmod { ino, perm: if is_dir { self.dir_perm() } else { self.perm() } }
            }
            3 => {
                let gid = *self.dice.pick(&[1001, 1002, 3000, 0]).unwrap_or(&0);
                let uid = self.dice.one_in(3).then_some(1001);
                Op::Chown { ino, uid, gid: Some(gid) }
            }
            _ => {
                let given = Timespec { sec: now.sec - self.dice.below(1000) as i64, nsec: 5 };
                Op::SetTimes { ino, mtime: self.dice.one_in(2).then_some(given) }
            }
        }
    }

    fn xattrs(&mut self, r: &Reference) -> Op {
        let what = self.dice.below(8);
        let mode = match self.dice.below(4) {
            0 => XattrMode::Create,
            1 => XattrMode::Replace,
            _ => XattrMode::Set,
        };
        // Mostly an existing attribute, unless that would be refused.
        let one_there = (what > 3 || mode != XattrMode::Create) && !self.dice.one_in(4);
        let there: Vec<(Ino, Name)> = (r.nodes.iter().filter(|_| one_there))
            .flat_map(|(ino, node)| node.xattrs.keys().map(|name| (*ino, name.clone())))
            .collect();
        let any = self.any(r);
        let name = match self.dice.below(20) {
            0 => b"nonsense.x".to_vec(),
            n => format!("user.{}", n % 4).into_bytes(),
        };
        let (ino, name) = self.dice.pick(&there).cloned().unwrap_or((any, name));
        match what {
            0..=3 => {
                let len = if self.dice.one_in(10) { 5000 } else { self.dice.below(60) };
                let value = crate::dice::bytes_of(self.tag(), len as usize);
                Op::SetXattr { ino, name, value, mode }
            }
            4 => Op::RemoveXattr { ino, name },
            5 => Op::ListXattr { ino },
            _ => Op::GetXattr { ino, name },
        }
    }

    fn opens(&mut self, r: &Reference) -> Option<Op> {
        if r.opens.len() > OPENS_MANY || (!r.opens.is_empty() && self.dice.one_in(4)) {
            return self.handle(r, |_| true).map(|handle| Op::Close { handle });
        }
        let handle = self.new_handle();
        let flags = self.flags();
        Some(match self.dice.below(10) {
            0 => Op::Tmpfile {
                dir: self.dir(r),
                perm: self.perm(),
                flags: OpenFlags { read: true, write: true, truncate: false, ..flags },
                handle,
            },
            1..=4 => Op::Open { ino: self.file(r)?, flags, handle },
            n => {
                let (dir, name) = if self.dice.one_in(4) { self.entry(r) } else { (self.dir(r), self.name()) };
                // An existing name must be a file: the kernel resolves the others before it asks.
                let there = r.dir(dir).ok().and_then(|(e, _)| e.get(&name)).copied();
                if there.is_some_and(|ino| r.bytes(ino).is_err()) {
                    return None;
                }
                let flags = OpenFlags { exclusive: n == 9, truncate: flags.truncate && there.is_none(), ..flags };
                Op::Create { dir, name, perm: self.perm() | 0o600, flags, handle }
            }
        })
    }

    fn reads(&mut self, r: &Reference) -> Option<Op> {
        let handle = self.handle(r, |f| f.read)?;
        let (offset, len) = self.span(Self::size_of(r, handle));
        // Whole files sometimes: they show what went wrong elsewhere.
        let (offset, len) = if self.dice.one_in(10) { (0, FILE_MOST) } else { (offset, len) };
        Some(Op::Read { handle, offset, len, direct: self.dice.one_in(self.temper.direct) })
    }

    fn writes(&mut self, r: &Reference) -> Option<Op> {
        let handle = self.handle(r, |f| f.write)?;
        let size = Self::size_of(r, handle);
        let span = self.span(size);
        let (offset, len) = if self.piece_dice.one_in(self.temper.pieces) { self.piece(size) } else { span };
        if r.open_file(handle).is_ok_and(|o| o.flags.append) && size + len > FILE_MOST {
            return None;
        }
        let stamp = Stamp { tag: self.tag(), len };
        Some(Op::Write { handle, offset, stamp, direct: self.dice.one_in(self.temper.direct) })
    }

    fn sizes(&mut self, r: &Reference) -> Option<Op> {
        if self.dice.one_in(5) {
            let ino = self.file(r)?;
            let size = r.bytes(ino).map_or(0, |b| b.len() as u64);
            return Some(Op::Truncate { ino, size: self.offset(size), handle: None });
        }
        let handle = self.handle(r, |f| f.write)?;
        let size = Self::size_of(r, handle);
        if self.dice.one_in(3) {
            let ino = r.open_file(handle).ok()?.ino;
            return Some(Op::Truncate { ino, size: self.offset(size), handle: Some(handle) });
        }
        let (offset, len) = self.span(size);
        let mode = match self.dice.below(6) {
            0 => Fallocate::Allocate,
            1 => Fallocate::KeepSize,
            2 => Fallocate::ZeroRange { keep_size: true },
            3 => Fallocate::ZeroRange { keep_size: false },
            _ => Fallocate::PunchHole,
        };
        Some(Op::Fallocate { handle, mode, offset, len })
    }

    fn copies(&mut self, r: &Reference) -> Option<Op> {
        let from = self.handle(r, |f| f.read)?;
        let to = self.handle(r, |f| f.write && !f.append)?;
        let (from_offset, len) = self.span(Self::size_of(r, from));
        let to_offset = self.offset(Self::size_of(r, to)).min(FILE_MOST - len);
        Some(Op::Copy { from, from_offset, to, to_offset, len })
    }

    fn syncs(&mut self, r: &Reference) -> Op {
        match self.dice.below(10) {
            0 => Op::SyncAll,
            1..=3 => Op::FsyncDir { dir: self.dir(r) },
            _ => match self.handle(r, |_| true) {
                Some(handle) => Op::Fsync { handle, datasync: self.dice.one_in(3) },
                None => Op::FsyncDir { dir: self.dir(r) },
            },
        }
    }

    fn looks(&mut self, r: &Reference) -> Op {
        match self.dice.below(12) {
            0..=3 => {
                let (dir, name) = self.entry(r);
                Op::Lookup { dir, name }
            }
            4..=7 => Op::GetAttr { ino: self.any(r) },
            8 => match self.pick_node(r, |b| matches!(b, Body::Symlink(_))) {
                Some(ino) => Op::ReadLink { ino },
                None => Op::StatFs,
            },
            9 => Op::StatFs,
            10 => Op::SetLayout { ino: self.dir(r), text: "striped,size=64K,count=3" },
            _ => Op::List { dir: self.dir(r), max: 1 + self.dice.below(8) as u32, plus: self.dice.one_in(2) },
        }
    }
}
