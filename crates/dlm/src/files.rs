//! Locks that applications take on files: `flock`, and the byte-range ("record") locks of `fcntl`, POSIX and OFD.
//!
//! Owns: which owner of which session holds what of which file, the requests that wait, and who waits for whom. Does
//! not own: sessions (it is told when one ends), messages, the interruption of callers (it is told to cancel).
//!
//! Unlike the locks of [`crate::server`] these are never called back: only their owner, or the end of its session,
//! takes them away. The rules are those of Linux, fcntl(2) and flock(2); `docs/locking/file_locks.md` lists them.
//!
//! Invariants, checked by the model tests:
//! * no two held locks of different owners conflict; record locks and flocks of a file never meet;
//! * one owner's locks on a file are disjoint, and neighbours of one kind are one lock;
//! * a request that waits has changed nothing, except that a flock conversion has lost the old lock;
//! * a request waits only for held locks, or behind an earlier conflicting request; the latter never if its owner holds
//!   a lock on the file, and not beyond the look it gets each [`FileLockLimits::yield_ns`];
//! * while every POSIX owner has one request waiting at most, owners never wait for each other in a circle.
//!
//! Numbers: 1,048,576 locks may be held and 65,536 requests wait, so every step is O(log n), plus the caller's own
//! locks in the range, plus the requests it lets look again. A crowd that waits for one byte is a chain, in which each
//! departure wakes one; but those in it who hold another lock on the file all watch the same holder. A lock costs about
//! 150 bytes, its owner 120, a file 70, a request that waits 250.

mod cycle;
mod own;
mod queue;
#[cfg(test)]
mod tests;

use crate::mode::LockId;
use crate::tree::{Entry, Forest, Search, Tree};
use amphi_types::{ByteRange, Ino, SessionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// Highest offset a lock reaches, `OFFSET_MAX` of Linux: a lock up to here goes on to the end of every file.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Locks in the way of one that [`FileLocks::holders`] looks at, of each kind.
const HOLDERS_LOOKED_AT: usize = 256;

/// Tunables of the file locks of one server.
#[derive(Clone, Copy, Debug)]
pub struct FileLockLimits {
    /// Locks held, on all files. A request that waits counts as two, which is what its grant may add.
    pub max_locks: usize,
    /// Locks held on one file, of one of the two tables; requests that wait count as above.
    pub max_locks_per_file: usize,
    /// Requests that wait, or whose grant was not yet taken out.
    pub max_waits: usize,
    /// Requests that wait for one file, in one of the two tables.
    pub max_waits_per_file: usize,
    /// Locks looked at in search of a deadlock; beyond, the request waits, and its caller can interrupt it.
    pub max_cycle_steps: usize,
    /// A request that only an earlier waiting request stands in the way of passes it at the next of its looks, which
    /// it gets in these intervals; greater than zero.
    pub yield_ns: u64,
}

impl Default for FileLockLimits {
    fn default() -> Self {
        FileLockLimits {
            max_locks: 1 << 20,
            max_locks_per_file: 1 << 17,
            max_waits: 1 << 16,
            max_waits_per_file: 1 << 14,
            max_cycle_steps: 1 << 10,
            yield_ns: 1_000_000_000,
        }
    }
}

/// Which call made the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockFamily {
    /// `fcntl(F_SETLK)`: owned by a process. Also for front ends that cannot tell OFD locks apart.
    Posix,
    /// `fcntl(F_OFD_SETLK)`: owned by an open file. Conflicts with POSIX locks; deadlocks are not looked for.
    OpenFile,
    /// `flock`: owned by an open file, whole files only. Meets no lock of the other families.
    Flock,
}

/// Who holds a lock. The process id is no part of it: a close names the owner alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner {
    /// The mount's session.
    pub session: SessionId,
    /// The family of its locks.
    pub family: LockFamily,
    /// The owner's number within session and family, as the kernel names it.
    pub id: u64,
}

/// Whether others may hold the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LockKind {
    /// `F_RDLCK`, `LOCK_SH`.
    Shared = 0,
    /// `F_WRLCK`, `LOCK_EX`.
    Exclusive = 1,
}

/// A lock: asked for, held, or presented after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileLock {
    /// Whose.
    pub owner: LockOwner,
    /// The process that asked, for `F_GETLK`.
    pub pid: u32,
    /// The file.
    pub ino: Ino,
    /// Shared or exclusive.
    pub kind: LockKind,
    /// Which bytes, as [`record_range`] makes it; a flock covers the file whatever this says.
    pub range: ByteRange,
}

/// What to do about a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// Refuse: `F_SETLK`, `LOCK_NB`.
    Try,
    /// Wait: `F_SETLKW`, `flock`.
    Wait,
}

/// Name of a request that waits, unique within one `FileLocks`; in the order of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId(pub u64);

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The owner holds it.
    Held,
    /// It waits; [`FileLocks::poll_granted`] will tell, unless it is cancelled or its session dropped.
    Waiting(WaitId),
}

/// A request that waited and is held now: answer its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitGranted {
    /// The request.
    pub id: WaitId,
    /// Whose.
    pub owner: LockOwner,
}

/// Why a request was not carried out; nothing has changed, except as [`FileLockRefusal::WouldBlock`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLockRefusal {
    /// The range has no byte, or starts beyond the largest file offset: `EINVAL`.
    Invalid,
    /// Another owner holds a conflicting lock: `EAGAIN`. A flock that was to be converted is lost, as on Linux.
    WouldBlock,
    /// Owners would wait for each other in a circle: `EDEADLK`.
    Deadlock,
    /// A bound of [`FileLockLimits`] is reached: `ENOLCK`.
    NoLocks,
    /// A lock held before a restart conflicts with one presented earlier: it is lost, `EIO` to its owner.
    Lost,
}

impl FileLockRefusal {
    /// Linux' number, positive.
    pub fn raw_errno(self) -> i32 {
        match self {
            FileLockRefusal::Invalid => 22,
            FileLockRefusal::WouldBlock => 11,
            FileLockRefusal::Deadlock => 35,
            FileLockRefusal::NoLocks => 37,
            FileLockRefusal::Lost => 5,
        }
    }
}

impl fmt::Display for FileLockRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileLockRefusal::Invalid => "no such range of a file can be locked",
            FileLockRefusal::WouldBlock => "another owner holds a conflicting lock",
            FileLockRefusal::Deadlock => "the owners would wait for each other",
            FileLockRefusal::NoLocks => "the table of file locks is full",
            FileLockRefusal::Lost => "the lock held before the restart conflicts with another one",
        })
    }
}

impl std::error::Error for FileLockRefusal {}

/// What ended with a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DroppedFileLocks {
    /// Number of locks.
    pub locks: usize,
    /// Requests that waited and will never be granted.
    pub waits: Vec<WaitId>,
}

/// The bytes from `start` to `end` inclusive, as FUSE and the kernel name them; up to the largest offset or beyond
/// means to the end of every file.
pub fn record_range(start: u64, end: u64) -> Result<ByteRange, FileLockRefusal> {
    if start > end || start > OFFSET_MAX {
        return Err(FileLockRefusal::Invalid);
    }
    Ok(ByteRange::new(start, if end >= OFFSET_MAX { u64::MAX } else { end + 1 }))
}

/// First and last byte of a range that is not empty, as FUSE takes them.
pub fn inclusive(range: ByteRange) -> (u64, u64) {
    (range.start, range.end.saturating_sub(1).min(OFFSET_MAX))
}

/// An owner's number in these tables. The trees keep one number for each range, by which a search exempts a party: a
/// session in the lock server, an owner here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Party(u64);

#[derive(Clone, Copy)]
#[cfg_attr(test, derive(Debug))]
struct PartyState {
    owner: LockOwner,
    locks: usize,
    waits: usize,
}

/// Locks that may conflict: record locks of a file, or flocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Table {
    Record,
    Flock,
}

impl LockFamily {
    fn table(self) -> Table {
        if self == LockFamily::Flock { Table::Flock } else { Table::Record }
    }
}

/// One table of one file; trees by kind.
#[derive(Clone, Copy)]
struct File {
    held: [Tree; 2],
    waiting: [Tree; 2],
    locks: usize,
    waits: usize,
}

impl File {
    const NEW: File = File { held: [Tree::EMPTY; 2], waiting: [Tree::EMPTY; 2], locks: 0, waits: 0 };
}

/// The kinds that conflict with `kind`, as indices of trees.
fn conflicting(kind: LockKind) -> std::ops::Range<usize> {
    if kind == LockKind::Exclusive { 0..2 } else { 1..2 }
}

/// One held lock; its owner, file and start are its key.
#[derive(Clone, Copy)]
#[cfg_attr(test, derive(Debug))]
struct Piece {
    end: u64,
    id: LockId,
    kind: LockKind,
    pid: u32,
}

#[derive(Clone, Copy)]
struct Wait {
    party: Party,
    ino: Ino,
    table: Table,
    kind: LockKind,
    range: ByteRange,
    pid: u32,
    /// When it is looked at again in any case.
    due_ns: u64,
    /// The held lock or earlier request whose change lets it look again.
    watching: Option<LockId>,
}

/// File locks of one server: a state machine without I/O and without a clock.
#[cfg_attr(test, derive(Clone))]
pub struct FileLocks {
    limits: FileLockLimits,
    /// Last id given to a held lock or a waiting request.
    sequence: u64,
    last_party: u64,
    forest: Forest,
    files: BTreeMap<(Ino, Table), File>,
    owners: BTreeMap<LockOwner, Party>,
    parties: BTreeMap<Party, PartyState>,
    pieces: BTreeMap<(Party, Ino, u64), Piece>,
    waits: BTreeMap<WaitId, Wait>,
    waits_of: BTreeSet<(Party, WaitId)>,
    watchers: BTreeSet<(LockId, WaitId)>,
    due: BTreeSet<(u64, WaitId)>,
    granted: VecDeque<WaitGranted>,
    #[cfg(test)]
    planted: Option<tests::PlantedBug>,
}

impl FileLocks {
    /// No locks.
    pub fn new(limits: FileLockLimits) -> FileLocks {
        assert!(limits.yield_ns > 0, "a request that yields is looked at later");
        FileLocks {
            limits,
            sequence: 0,
            last_party: 0,
            forest: Forest::default(),
            files: BTreeMap::new(),
            owners: BTreeMap::new(),
            parties: BTreeMap::new(),
            pieces: BTreeMap::new(),
            waits: BTreeMap::new(),
            waits_of: BTreeSet::new(),
            watchers: BTreeSet::new(),
            due: BTreeSet::new(),
            granted: VecDeque::new(),
            #[cfg(test)]
            planted: None,
        }
    }

    /// Takes a lock, or changes what the owner holds of that range to it, in one step: `fcntl(F_SETLK, F_SETLKW)` with
    /// `F_RDLCK` or `F_WRLCK`, `flock` with `LOCK_SH` or `LOCK_EX`.
    pub fn set(&mut self, now_ns: u64, lock: FileLock, asking: Asking) -> Result<Outcome, FileLockRefusal> {
        let table = lock.owner.family.table();
        let range = range_of(&lock)?;
        let known = self.owners.get(&lock.owner).copied();
        if known.is_some_and(|party| self.covered(party, lock.ino, range, lock.kind)) {
            return Ok(Outcome::Held);
        }
        let file = self.files.get(&(lock.ino, table)).copied().unwrap_or(File::NEW);
        let held = self.held_conflict(&file, known, lock.kind, range);
        let yields = asking == Asking::Wait && self.yields(known, lock.ino);
        let earlier = if yields { self.waiting_conflict(&file, known, lock.kind, range, None) } else { None };
        let Some(blocker) = earlier.or(held) else {
            let plan = self.plan(known, lock.ino, range, Some((lock.kind, lock.pid)));
            if plan.growth() > 0 && !self.room(&file, plan.growth() as usize) {
                return Err(FileLockRefusal::NoLocks);
            }
            let party = self.party(lock.owner);
            let mut woken = BTreeSet::new();
            self.carry_out(party, lock.ino, table, plan, &mut woken);
            self.settle(woken);
            return Ok(Outcome::Held);
        };
        if asking == Asking::Wait {
            if held.is_some() && self.closes_cycle(known, &lock, &file, range) {
                return Err(FileLockRefusal::Deadlock);
            }
            if self.waits.len() + self.granted.len() >= self.limits.max_waits
                || file.waits >= self.limits.max_waits_per_file
                || !self.room(&file, 2)
            {
                return Err(FileLockRefusal::NoLocks);
            }
        }
        // Linux takes the old flock away before it looks for conflicts.
        let mut woken = BTreeSet::new();
        if let (Table::Flock, Some(party)) = (table, known) {
            let plan = self.plan(known, lock.ino, range, None);
            self.carry_out(party, lock.ino, table, plan, &mut woken);
        }
        let outcome = match asking {
            Asking::Try => Err(FileLockRefusal::WouldBlock),
            Asking::Wait => Ok(Outcome::Waiting(self.enqueue(now_ns, &lock, table, range, blocker))),
        };
        self.settle(woken);
        if let Some(party) = known {
            self.forget(party, lock.ino, table);
        }
        outcome
    }

    /// Gives up what the owner holds of `range`: `F_UNLCK`, `LOCK_UN`. Refused only if that would cut a lock in two and
    /// there is no room for one more.
    pub fn unlock(&mut self, owner: LockOwner, ino: Ino, range: ByteRange) -> Result<(), FileLockRefusal> {
        let table = owner.family.table();
        let range = range_of(&FileLock { owner, pid: 0, ino, kind: LockKind::Shared, range })?;
        let Some(&party) = self.owners.get(&owner) else { return Ok(()) };
        let plan = self.plan(Some(party), ino, range, None);
        if let Some(file) = self.files.get(&(ino, table))
            && plan.growth() > 0
            && !self.room(file, plan.growth() as usize)
        {
            return Err(FileLockRefusal::NoLocks);
        }
        let mut woken = BTreeSet::new();
        self.carry_out(party, ino, table, plan, &mut woken);
        self.settle(woken);
        self.forget(party, ino, table);
        Ok(())
    }

    /// Gives up all the owner holds on the file, for a close. Its requests that wait go on waiting, as on Linux.
    pub fn release(&mut self, owner: LockOwner, ino: Ino) {
        let whole = self.unlock(owner, ino, ByteRange::ALL);
        debug_assert!(whole.is_ok(), "to give up everything cuts no lock in two");
    }

    /// The held lock with the lowest start that stands in the way of `lock`: `F_GETLK`. Requests that wait do not.
    pub fn get(&self, lock: &FileLock) -> Result<Option<FileLock>, FileLockRefusal> {
        let range = range_of(lock)?;
        let Some(file) = self.files.get(&(lock.ino, lock.owner.family.table())) else { return Ok(None) };
        let search = Search::overlap(range, exempt(self.owners.get(&lock.owner).copied()));
        let mut first: Option<Entry> = None;
        for tree in conflicting(lock.kind) {
            let mut found = Vec::new();
            self.forest.first(file.held[tree], &search, 1, &mut found);
            first = first.into_iter().chain(found).min_by_key(|entry| (entry.range.start, entry.id));
        }
        Ok(first.and_then(|entry| {
            let party = Party(entry.session.0);
            let piece = self.pieces.get(&(party, lock.ino, entry.range.start))?;
            Some(self.lock(party, lock.ino, entry.range.start, piece))
        }))
    }

    /// Sessions other than the owner's that hold something in the way of `lock`: `max` of them at most, and of a crowd
    /// of locks only those that the first [`HOLDERS_LOOKED_AT`] of each kind belong to.
    pub fn holders(&self, lock: &FileLock, max: usize) -> Vec<SessionId> {
        let Ok(range) = range_of(lock) else { return Vec::new() };
        let Some(file) = self.files.get(&(lock.ino, lock.owner.family.table())) else { return Vec::new() };
        let search = Search::overlap(range, exempt(self.owners.get(&lock.owner).copied()));
        let mut sessions = BTreeSet::new();
        for tree in conflicting(lock.kind) {
            let mut found = Vec::new();
            self.forest.first(file.held[tree], &search, HOLDERS_LOOKED_AT, &mut found);
            let owners = found.iter().filter_map(|entry| self.parties.get(&Party(entry.session.0)));
            sessions.extend(owners.map(|state| state.owner.session).filter(|session| *session != lock.owner.session));
        }
        sessions.into_iter().take(max).collect()
    }

    /// Takes in a lock that its owner held before the server restarted, before new requests are taken.
    pub fn restore(&mut self, lock: FileLock) -> Result<(), FileLockRefusal> {
        let table = lock.owner.family.table();
        let range = range_of(&lock)?;
        let known = self.owners.get(&lock.owner).copied();
        let file = self.files.get(&(lock.ino, table)).copied().unwrap_or(File::NEW);
        if self.held_conflict(&file, known, lock.kind, range).is_some() {
            return Err(FileLockRefusal::Lost);
        }
        let plan = self.plan(known, lock.ino, range, Some((lock.kind, lock.pid)));
        if plan.growth() > 0 && !self.room(&file, plan.growth() as usize) {
            return Err(FileLockRefusal::NoLocks);
        }
        let party = self.party(lock.owner);
        let mut woken = BTreeSet::new();
        self.carry_out(party, lock.ino, table, plan, &mut woken);
        self.settle(woken);
        Ok(())
    }

    /// Ends all locks and requests of a session.
    pub fn drop_session(&mut self, session: SessionId) -> DroppedFileLocks {
        let first = LockOwner { session, family: LockFamily::Posix, id: 0 };
        let ended = self.owners.range(first..).take_while(|(owner, _)| owner.session == session);
        let ended: Vec<Party> = ended.map(|(_, &party)| party).collect();
        let (mut dropped, mut woken) = (DroppedFileLocks::default(), BTreeSet::new());
        self.granted.retain(|granted| granted.owner.session != session);
        // Requests go first, so that none of them is granted by the end of another lock of the session.
        for &party in &ended {
            let waits = self.waits_of.range((party, WaitId(0))..=(party, WaitId(u64::MAX)));
            let waits: Vec<WaitId> = waits.map(|&(_, id)| id).collect();
            for id in waits {
                if let Some(wait) = self.take_wait(id, &mut woken) {
                    dropped.waits.push(id);
                    self.forget(party, wait.ino, wait.table);
                }
            }
        }
        for &party in &ended {
            let mut files: Vec<Ino> = self.pieces_of(party).map(|(ino, _, _)| ino).collect();
            dropped.locks += files.len();
            files.dedup();
            let Some(table) = self.parties.get(&party).map(|state| state.owner.family.table()) else { continue };
            for ino in files {
                let plan = self.plan(Some(party), ino, ByteRange::ALL, None);
                self.carry_out(party, ino, table, plan, &mut woken);
                self.forget(party, ino, table);
            }
        }
        self.settle(woken);
        dropped.waits.sort();
        dropped
    }

    /// The next request that waited and is held now.
    pub fn poll_granted(&mut self) -> Option<WaitGranted> {
        self.granted.pop_front()
    }

    /// All locks a session holds, by owner, file and offset; what a client presents after a restart of the server, if
    /// it keeps such a table of its own locks.
    pub fn held_by(&self, session: SessionId) -> impl Iterator<Item = FileLock> + '_ {
        let first = LockOwner { session, family: LockFamily::Posix, id: 0 };
        let owners = self.owners.range(first..).take_while(move |(owner, _)| owner.session == session);
        owners.flat_map(move |(_, &party)| {
            self.pieces_of(party).map(move |(ino, start, piece)| self.lock(party, ino, start, piece))
        })
    }

    /// Number of locks held and of requests that wait.
    pub fn len(&self) -> (usize, usize) {
        (self.pieces.len(), self.waits.len())
    }

    /// Whether nothing is held and nobody waits.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.waits.is_empty()
    }

    /// Whether `more` locks are within the bounds, with room for what waits.
    fn room(&self, file: &File, more: usize) -> bool {
        self.pieces.len() + 2 * self.waits.len() + more <= self.limits.max_locks
            && file.locks + 2 * file.waits + more <= self.limits.max_locks_per_file
    }

    /// A held lock of another owner that excludes this one.
    fn held_conflict(&self, file: &File, party: Option<Party>, kind: LockKind, range: ByteRange) -> Option<LockId> {
        if self.planted_miss() {
            return None;
        }
        let search = Search::overlap(range, exempt(party));
        conflicting(kind).find_map(|tree| self.forest.find(file.held[tree], &search))
    }

    /// A request of another owner, asked before `before` if given, that excludes this one; the one asked last among
    /// those that start alike, so that a crowd forms a chain in which each departure wakes one.
    fn waiting_conflict(
        &self,
        file: &File,
        party: Option<Party>,
        kind: LockKind,
        range: ByteRange,
        before: Option<WaitId>,
    ) -> Option<LockId> {
        let before = LockId(before.map_or(u64::MAX, |id| id.0));
        let search = Search { range, exempt: exempt(party), before };
        conflicting(kind).find_map(|tree| self.forest.find(file.waiting[tree], &search))
    }

    fn party(&mut self, owner: LockOwner) -> Party {
        if let Some(&party) = self.owners.get(&owner) {
            return party;
        }
        self.last_party += 1;
        let party = Party(self.last_party);
        self.owners.insert(owner, party);
        self.parties.insert(party, PartyState { owner, locks: 0, waits: 0 });
        party
    }

    /// Forgets an owner and a file of which nothing is held or asked any more.
    fn forget(&mut self, party: Party, ino: Ino, table: Table) {
        if let Some(state) = self.parties.get(&party)
            && state.locks + state.waits == 0
        {
            self.owners.remove(&state.owner);
            self.parties.remove(&party);
        }
        if self.files.get(&(ino, table)).is_some_and(|file| file.locks + file.waits == 0) {
            self.files.remove(&(ino, table));
        }
    }

    fn next_id(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    #[cfg(test)]
    fn planted_miss(&self) -> bool {
        self.planted == Some(tests::PlantedBug::MissConflict) && self.sequence.is_multiple_of(3)
    }

    #[cfg(not(test))]
    fn planted_miss(&self) -> bool {
        false
    }
}

/// The range a lock is kept with.
fn range_of(lock: &FileLock) -> Result<ByteRange, FileLockRefusal> {
    if lock.owner.family == LockFamily::Flock {
        return Ok(ByteRange::ALL);
    }
    if lock.range.is_empty() {
        return Err(FileLockRefusal::Invalid);
    }
    record_range(lock.range.start, lock.range.end - 1)
}

fn exempt(party: Option<Party>) -> Option<SessionId> {
    party.map(|party| SessionId(party.0))
}
