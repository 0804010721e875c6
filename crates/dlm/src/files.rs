//! File locks of applications: `flock`, and the byte-range ("record") locks of `fcntl`, POSIX and OFD.
//!
//! Owns: the locks of each owner of each session on bytes of each file, the waiting requests, and the graph of owners
//! that wait for each other. Does not own: sessions (the caller reports their end), messages, the interruption of
//! callers (the caller cancels their requests).
//!
//! Unlike the locks of [`crate::server`], file locks are never called back: only their owner, or the end of its
//! session, ends them. The rules are those of Linux, fcntl(2) and flock(2); `docs/locking/file_locks.md` lists them.
//!
//! Invariants, checked by the model tests:
//!
//! * No two held locks of different owners conflict. Record locks and flocks of a file never conflict with each other.
//! * The locks of one owner on a file are disjoint, and adjacent ones of the same kind are one lock.
//! * A waiting request has changed nothing, except that a conversion of a flock has lost the old lock.
//! * A request waits only for held locks, or behind an earlier conflicting request. A request waits behind an earlier
//!   request only if its owner holds no lock on the file. The request then waits only until its next check, one every
//!   [`FileLockLimits::yield_ns`].
//! * While every POSIX owner has at most one waiting request, no cycle of owners that wait for each other is possible.
//!
//! Numbers: 1,048,576 locks may be held, and 65,536 requests may wait. So every step is O(log n), plus the caller's own
//! locks in the range, plus the requests that are checked again. Requests that wait for the same byte form a chain:
//! each waits for the previous one, so a release wakes only one of them. The exceptions are owners that hold another
//! lock on the file: they all watch the same holder. A lock costs about 150 bytes, its owner 120, a file 70, a waiting
//! request 250.

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

/// Highest offset of a lock, `OFFSET_MAX` of Linux. A lock up to here also covers everything behind the end of the
/// file.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// How many conflicting locks of each kind [`FileLocks::holders`] examines.
const HOLDERS_LOOKED_AT: usize = 256;

/// Tunables of the file locks of one server.
#[derive(Clone, Copy, Debug)]
pub struct FileLockLimits {
    /// Most locks held, on all files. A waiting request counts as two locks, which is what its grant may add.
    pub max_locks: usize,
    /// Most locks of one session, so that no session keeps the others out of the table. Waiting requests count as
    /// above.
    pub max_locks_per_session: usize,
    /// Most locks held on one file, in one of the two tables. Waiting requests count as above.
    pub max_locks_per_file: usize,
    /// Most requests that wait, or whose grant was not yet polled.
    pub max_waits: usize,
    /// Most requests that wait for one file, in one of the two tables.
    pub max_waits_per_file: usize,
    /// Most locks that are examined in search of a deadlock. If the search would need more steps, the request waits,
    /// and its caller can interrupt it.
    pub max_cycle_steps: usize,
    /// A request that waits only behind earlier waiting requests passes them at its next check. The checks are made at
    /// these intervals, which are greater than zero.
    pub yield_ns: u64,
}

impl Default for FileLockLimits {
    fn default() -> Self {
        FileLockLimits {
            max_locks: 1 << 20,
            max_locks_per_session: 1 << 19,
            max_locks_per_file: 1 << 17,
            max_waits: 1 << 16,
            max_waits_per_file: 1 << 14,
            max_cycle_steps: 1 << 10,
            yield_ns: 1_000_000_000,
        }
    }
}

/// Which system call made the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockFamily {
    /// `fcntl(F_SETLK)`: owned by a process. Front ends that cannot distinguish OFD locks use this kind for them as
    /// well.
    Posix,
    /// `fcntl(F_OFD_SETLK)`: owned by an open file. Conflicts with POSIX locks. The server searches for no deadlocks of
    /// these owners.
    OpenFile,
    /// `flock`: owned by an open file, for whole files only. Conflicts with no lock of the other families.
    Flock,
}

/// The owner of a lock. The process id is not a part of it, because a close names the owner only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner {
    /// The mount's session.
    pub session: SessionId,
    /// The family of locks that this owner holds.
    pub family: LockFamily,
    /// The owner's number within session and family, as the kernel names it.
    pub id: u64,
}

/// Whether other owners may hold the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LockKind {
    /// `F_RDLCK`, `LOCK_SH`.
    Shared = 0,
    /// `F_WRLCK`, `LOCK_EX`.
    Exclusive = 1,
}

/// A lock that is requested, held, or presented after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileLock {
    /// The owner of the lock.
    pub owner: LockOwner,
    /// The process that requested the lock, for `F_GETLK`.
    pub pid: u32,
    /// The file.
    pub ino: Ino,
    /// Shared or exclusive.
    pub kind: LockKind,
    /// The locked bytes, in the form that [`record_range`] returns. A `flock` covers the whole file, whatever this
    /// range is.
    pub range: ByteRange,
}

/// How a request treats a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// Refuse: `F_SETLK`, `LOCK_NB`.
    Try,
    /// Wait: `F_SETLKW`, `flock`.
    Wait,
}

/// Id of a waiting request, unique within one `FileLocks`, in the order of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId(pub u64);

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The owner holds the lock.
    Held,
    /// The request waits. [`FileLocks::poll_granted`] reports its grant, unless it is cancelled or its session is
    /// dropped.
    Waiting(WaitId),
}

/// A waiting request that was granted: answer its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitGranted {
    /// The request.
    pub id: WaitId,
    /// The owner of the lock.
    pub owner: LockOwner,
}

/// The reason why a request was refused. Nothing has changed, except as [`FileLockRefusal::WouldBlock`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLockRefusal {
    /// The range is empty, or starts beyond the largest file offset: `EINVAL`.
    Invalid,
    /// Another owner holds a conflicting lock: `EAGAIN`. A flock that was to be converted is lost, as on Linux.
    WouldBlock,
    /// Owners would wait for each other in a cycle: `EDEADLK`.
    Deadlock,
    /// A bound of [`FileLockLimits`] is reached: `ENOLCK`.
    NoLocks,
    /// A lock held before a restart conflicts with one that was presented earlier. The lock is lost, and its owner gets
    /// `EIO`.
    Lost,
}

impl FileLockRefusal {
    /// The errno of Linux, positive.
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

/// The locks and requests that ended together with a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DroppedFileLocks {
    /// Number of locks.
    pub locks: usize,
    /// Requests that waited and will never be granted.
    pub waits: Vec<WaitId>,
}

/// The range from byte `start` to byte `end` inclusive, as the kernel and FUSE express it. An `end` at the largest
/// offset or beyond means to the end of every file.
pub fn record_range(start: u64, end: u64) -> Result<ByteRange, FileLockRefusal> {
    if start > end || start > OFFSET_MAX {
        return Err(FileLockRefusal::Invalid);
    }
    Ok(ByteRange::new(start, if end >= OFFSET_MAX { u64::MAX } else { end + 1 }))
}

/// First and last byte of a range that is not empty, as FUSE expresses it.
pub fn inclusive(range: ByteRange) -> (u64, u64) {
    (range.start, range.end.saturating_sub(1).min(OFFSET_MAX))
}

/// The number of an owner in these tables. The trees store one number with each range, by which a search can leave out
/// one owner. In the lock server this number is a session, here it is an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Party(u64);

#[derive(Clone, Copy)]
#[cfg_attr(test, derive(Debug))]
struct PartyState {
    owner: LockOwner,
    locks: usize,
    waits: usize,
}

/// Locks that may conflict with each other: record locks of a file, or flocks of a file.
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

/// One of the two tables of a file, with a tree for each kind of lock.
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

/// One lock that is held. Owner, file and start are its key.
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
    /// When the waiting request is checked again at the latest.
    due_ns: u64,
    /// The held lock or earlier request whose change leads to the next check.
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
    /// Number of locks of each session, and twice that of its waiting requests; without sessions that have none.
    of_sessions: BTreeMap<SessionId, usize>,
    #[cfg(test)]
    planted: Option<tests::PlantedBug>,
}

impl FileLocks {
    /// A table without locks.
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
            of_sessions: BTreeMap::new(),
            #[cfg(test)]
            planted: None,
        }
    }

    /// Takes a lock, or converts the locks that the owner has on that range, in one step. This is `fcntl(F_SETLK,
    /// F_SETLKW)` with `F_RDLCK` or `F_WRLCK`, and `flock` with `LOCK_SH` or `LOCK_EX`.
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
            if plan.growth() > 0 && !self.room(lock.owner.session, &file, plan.growth() as usize) {
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
                || !self.room(lock.owner.session, &file, 2)
            {
                return Err(FileLockRefusal::NoLocks);
            }
        }
        // Linux removes the old flock before it looks for conflicts.
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

    /// Releases the owner's locks in `range`: `F_UNLCK`, `LOCK_UN`. It is refused only if it would cut a lock in two
    /// and the table is full.
    pub fn unlock(&mut self, owner: LockOwner, ino: Ino, range: ByteRange) -> Result<(), FileLockRefusal> {
        let table = owner.family.table();
        let range = range_of(&FileLock { owner, pid: 0, ino, kind: LockKind::Shared, range })?;
        let Some(&party) = self.owners.get(&owner) else { return Ok(()) };
        let plan = self.plan(Some(party), ino, range, None);
        if let Some(file) = self.files.get(&(ino, table))
            && plan.growth() > 0
            && !self.room(owner.session, file, plan.growth() as usize)
        {
            return Err(FileLockRefusal::NoLocks);
        }
        let mut woken = BTreeSet::new();
        self.carry_out(party, ino, table, plan, &mut woken);
        self.settle(woken);
        self.forget(party, ino, table);
        Ok(())
    }

    /// Releases everything that the owner holds on the file, for a close. The owner's waiting requests continue
    /// waiting, as on Linux.
    pub fn release(&mut self, owner: LockOwner, ino: Ino) {
        let whole = self.unlock(owner, ino, ByteRange::ALL);
        debug_assert!(whole.is_ok(), "to give up everything cuts no lock in two");
    }

    /// The held lock with the lowest start that conflicts with `lock`: `F_GETLK`. Waiting requests do not count.
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

    /// Sessions other than the owner's that hold locks in conflict with `lock`, at most `max`. Only the first
    /// [`HOLDERS_LOOKED_AT`] conflicting locks of each kind are examined.
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

    /// Restores a lock that its owner held before the server restarted. It has to be called before new requests are
    /// accepted.
    pub fn restore(&mut self, lock: FileLock) -> Result<(), FileLockRefusal> {
        let table = lock.owner.family.table();
        let range = range_of(&lock)?;
        let known = self.owners.get(&lock.owner).copied();
        let file = self.files.get(&(lock.ino, table)).copied().unwrap_or(File::NEW);
        if self.held_conflict(&file, known, lock.kind, range).is_some() {
            return Err(FileLockRefusal::Lost);
        }
        let plan = self.plan(known, lock.ino, range, Some((lock.kind, lock.pid)));
        if plan.growth() > 0 && !self.room(lock.owner.session, &file, plan.growth() as usize) {
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
        // Requests are dropped first, so that none of them is granted by the end of another lock of the session.
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

    /// The next waiting request that was granted.
    pub fn poll_granted(&mut self) -> Option<WaitGranted> {
        self.granted.pop_front()
    }

    /// All locks that a session holds, by owner, file and offset. A client that keeps such a table of its own locks
    /// presents it after a restart of the server.
    pub fn held_by(&self, session: SessionId) -> impl Iterator<Item = FileLock> + '_ {
        let first = LockOwner { session, family: LockFamily::Posix, id: 0 };
        let owners = self.owners.range(first..).take_while(move |(owner, _)| owner.session == session);
        owners.flat_map(move |(_, &party)| {
            self.pieces_of(party).map(move |(ino, start, piece)| self.lock(party, ino, start, piece))
        })
    }

    /// Number of locks that are held, and of requests that wait.
    pub fn len(&self) -> (usize, usize) {
        (self.pieces.len(), self.waits.len())
    }

    /// Returns whether no lock is held and no request waits.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.waits.is_empty()
    }

    /// Returns whether `more` locks of the session are within the bounds, including those that waiting requests may
    /// add.
    fn room(&self, session: SessionId, file: &File, more: usize) -> bool {
        let own = self.of_sessions.get(&session).copied().unwrap_or(0);
        own + more <= self.limits.max_locks_per_session
            && self.pieces.len() + 2 * self.waits.len() + more <= self.limits.max_locks
            && file.locks + 2 * file.waits + more <= self.limits.max_locks_per_file
    }

    /// Counts what a session has come to have and has had before (`of_sessions`).
    fn count(&mut self, session: SessionId, come: usize, gone: usize) {
        let own = self.of_sessions.entry(session).or_default();
        assert!(*own + come >= gone, "{session:?} has {own} locks and {come} more, and gives {gone} back");
        *own = *own + come - gone;
        if *own == 0 {
            self.of_sessions.remove(&session);
        }
    }

    /// A held lock of another owner that conflicts with this one.
    fn held_conflict(&self, file: &File, party: Option<Party>, kind: LockKind, range: ByteRange) -> Option<LockId> {
        if self.planted_miss() {
            return None;
        }
        let search = Search::overlap(range, exempt(party));
        conflicting(kind).find_map(|tree| self.forest.find(file.held[tree], &search))
    }

    /// A waiting request of another owner, older than `before` if that is given, that conflicts with this one. If
    /// several have the same start, it is the latest, so that many requests form a chain in which each release wakes
    /// one of them.
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

    /// Forgets an owner and a file if nothing of them is held or requested any more.
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

/// The range with which a lock is stored.
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
