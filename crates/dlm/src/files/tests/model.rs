//! The rules in their plainest form, and a pair of both that has to agree.

use super::{PlantedBug, owner};
use crate::files::*;
use std::collections::BTreeMap;

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Set(FileLock, Asking),
    Unlock(FileLock),
    Release(LockOwner, Ino),
    Get(FileLock),
    /// Cancels the n-th waiting request.
    Cancel(usize),
    DropSession(SessionId),
    /// Time passes.
    Tick(u64),
    /// The server restarts, and every lock is presented again, in another order.
    Restart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    id: WaitId,
    lock: FileLock,
    due_ns: u64,
}

/// Bytes of the domain that an owner holds of a file.
type Held = BTreeMap<(LockOwner, Ino), Vec<Option<LockKind>>>;

/// Which owner holds which locks, and since when requests wait. This determines the future completely.
pub(super) type Fingerprint = (Held, Vec<(FileLock, u64)>);

#[derive(Clone)]
struct Model {
    limits: FileLockLimits,
    domain: usize,
    held: Held,
    queue: Vec<Waiting>,
    granted: Vec<WaitId>,
}

fn excludes(a: LockKind, b: LockKind) -> bool {
    a == LockKind::Exclusive || b == LockKind::Exclusive
}

fn meet(a: &FileLock, b: &FileLock) -> bool {
    a.owner != b.owner && a.ino == b.ino && a.owner.family.table() == b.owner.family.table()
}

fn segments(bytes: &[Option<LockKind>]) -> Vec<(usize, usize, LockKind)> {
    let mut found: Vec<(usize, usize, LockKind)> = Vec::new();
    for (at, kind) in bytes.iter().enumerate() {
        let Some(kind) = *kind else { continue };
        match found.last_mut() {
            Some(last) if last.1 == at && last.2 == kind => last.1 = at + 1,
            _ => found.push((at, at + 1, kind)),
        }
    }
    found
}

impl Model {
    fn bytes(&self, lock: &FileLock) -> std::ops::Range<usize> {
        if lock.owner.family == LockFamily::Flock {
            return 0..self.domain;
        }
        lock.range.start as usize..(lock.range.end as usize).min(self.domain)
    }

    fn holds_any(&self, lock: &FileLock) -> bool {
        self.held.get(&(lock.owner, lock.ino)).is_some_and(|bytes| bytes.iter().any(Option::is_some))
    }

    /// Owners that hold something in the way of `lock`.
    fn holders(&self, lock: &FileLock) -> Vec<LockOwner> {
        let mut found = Vec::new();
        for (&(owner, ino), bytes) in &self.held {
            let other = FileLock { owner, ino, ..*lock };
            let hit = |at: usize| bytes[at].is_some_and(|kind| excludes(kind, lock.kind));
            if meet(lock, &other) && self.bytes(lock).any(hit) {
                found.push(owner);
            }
        }
        found
    }

    fn behind(&self, lock: &FileLock, earlier: &[Waiting]) -> bool {
        let overlap = |a: &FileLock, b: &FileLock| self.bytes(a).any(|at| self.bytes(b).contains(&at));
        !self.holds_any(lock)
            && earlier.iter().any(|other| {
                meet(lock, &other.lock) && excludes(lock.kind, other.lock.kind) && overlap(lock, &other.lock)
            })
    }

    fn write(&mut self, lock: &FileLock, kind: Option<LockKind>) {
        let span = self.bytes(lock);
        let domain = self.domain;
        let bytes = self.held.entry((lock.owner, lock.ino)).or_insert_with(|| vec![None; domain]);
        bytes[span].fill(kind);
        self.held.retain(|_, bytes| bytes.iter().any(Option::is_some));
    }

    /// The number of pieces, including those that waiting requests may add: on the file, and over all files.
    fn load(&self, lock: &FileLock) -> (usize, usize) {
        let (mut file, mut all) = (0, 0);
        for (&(owner, ino), bytes) in &self.held {
            let count = segments(bytes).len();
            all += count;
            file += if ino == lock.ino && owner.family.table() == lock.owner.family.table() { count } else { 0 };
        }
        for wait in &self.queue {
            all += 2;
            let same = wait.lock.ino == lock.ino && wait.lock.owner.family.table() == lock.owner.family.table();
            file += if same { 2 } else { 0 };
        }
        (file, all)
    }

    fn overfull(&self, before: &Model, lock: &FileLock, more: usize) -> bool {
        let (file, all) = self.load(lock);
        let grown = all + more > before.load(lock).1;
        grown && (file + more > self.limits.max_locks_per_file || all + more > self.limits.max_locks)
    }

    fn waits_for(&self, from: &FileLock, goal: LockOwner, seen: &mut Vec<LockOwner>) -> bool {
        self.holders(from).into_iter().any(|holder| {
            if holder == goal {
                return true;
            }
            if seen.contains(&holder) || holder.family != LockFamily::Posix {
                return false;
            }
            seen.push(holder);
            let waits: Vec<FileLock> = self.queue.iter().map(|w| w.lock).filter(|l| l.owner == holder).collect();
            waits.iter().any(|wait| self.waits_for(wait, goal, seen))
        })
    }

    fn set(&mut self, now_ns: u64, lock: FileLock, asking: Asking, next: WaitId) -> Result<Outcome, FileLockRefusal> {
        let own = self.held.get(&(lock.owner, lock.ino));
        if own.is_some_and(|bytes| self.bytes(&lock).all(|at| bytes[at] == Some(lock.kind))) {
            return Ok(Outcome::Held);
        }
        let held = !self.holders(&lock).is_empty();
        if !held && (asking == Asking::Try || !self.behind(&lock, &self.queue)) {
            let before = self.clone();
            self.write(&lock, Some(lock.kind));
            if self.overfull(&before, &lock, 0) {
                *self = before;
                return Err(FileLockRefusal::NoLocks);
            }
            self.settle();
            return Ok(Outcome::Held);
        }
        if asking == Asking::Wait {
            let posix = lock.owner.family == LockFamily::Posix;
            if posix && held && self.waits_for(&lock, lock.owner, &mut Vec::new()) {
                return Err(FileLockRefusal::Deadlock);
            }
            let of_file = |wait: &&Waiting| {
                wait.lock.ino == lock.ino && wait.lock.owner.family.table() == lock.owner.family.table()
            };
            if self.queue.len() >= self.limits.max_waits
                || self.queue.iter().filter(of_file).count() >= self.limits.max_waits_per_file
                || self.overfull(self, &lock, 2)
            {
                return Err(FileLockRefusal::NoLocks);
            }
            self.queue.push(Waiting { id: next, lock, due_ns: now_ns + self.limits.yield_ns });
        }
        if lock.owner.family == LockFamily::Flock {
            self.write(&lock, None);
        }
        self.settle();
        if asking == Asking::Try { Err(FileLockRefusal::WouldBlock) } else { Ok(Outcome::Waiting(next)) }
    }

    /// Grants the first request that may be granted, until there is none.
    fn settle(&mut self) {
        let free = |model: &Model, at: usize| {
            let lock = &model.queue[at].lock;
            model.holders(lock).is_empty() && !model.behind(lock, &model.queue[..at])
        };
        while let Some(at) = (0..self.queue.len()).find(|&at| free(self, at)) {
            self.grant(at);
        }
    }

    fn grant(&mut self, at: usize) {
        let wait = self.queue.remove(at);
        self.write(&wait.lock, Some(wait.lock.kind));
        self.granted.push(wait.id);
    }

    fn tick(&mut self, now_ns: u64) {
        loop {
            let due = self.queue.iter().filter(|wait| wait.due_ns <= now_ns).map(|wait| (wait.due_ns, wait.id)).min();
            let Some(at) = due.and_then(|(_, id)| self.queue.iter().position(|wait| wait.id == id)) else { break };
            self.queue[at].due_ns = now_ns + self.limits.yield_ns;
            if self.holders(&self.queue[at].lock).is_empty() {
                self.grant(at);
                self.settle();
            }
        }
    }

    /// An owner that waits for itself, directly or through others.
    fn circle(&self) -> Option<LockOwner> {
        let posix = self.queue.iter().filter(|wait| wait.lock.owner.family == LockFamily::Posix);
        let mut circular = posix.filter(|wait| self.waits_for(&wait.lock, wait.lock.owner, &mut Vec::new()));
        circular.next().map(|wait| wait.lock.owner)
    }
}

/// The model and the state machine, given the same calls.
#[derive(Clone)]
pub(super) struct Pair {
    model: Model,
    locks: FileLocks,
    now_ns: u64,
    /// Whether an owner sent a request while another one of its requests waited. Only then can owners wait in a cycle.
    threads: bool,
}

impl Pair {
    /// `domain` bytes of each file are used.
    pub(super) fn new(limits: FileLockLimits, domain: usize, planted: Option<PlantedBug>) -> Pair {
        let mut locks = FileLocks::new(limits);
        locks.planted = planted;
        let (held, queue, granted) = (BTreeMap::new(), Vec::new(), Vec::new());
        Pair { model: Model { limits, domain, held, queue, granted }, locks, now_ns: 0, threads: false }
    }

    pub(super) fn waiting(&self) -> usize {
        self.model.queue.len()
    }

    pub(super) fn waits(&self, owner: LockOwner) -> bool {
        self.model.queue.iter().any(|wait| wait.lock.owner == owner)
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        let queue = self.model.queue.iter().map(|wait| (wait.lock, wait.due_ns - self.now_ns)).collect();
        (self.model.held.clone(), queue)
    }

    /// Makes the call on both, and returns the differences. `Ok` has the refusal, if any.
    pub(super) fn take(&mut self, op: Op) -> Result<Option<FileLockRefusal>, String> {
        let (model, locks) = (&mut self.model, &mut self.locks);
        let mut refused = None;
        match op {
            Op::Set(lock, asking) => {
                self.threads |= model.queue.iter().any(|wait| wait.lock.owner == lock.owner);
                let got = locks.set(self.now_ns, lock, asking);
                // Ids of requests are the state machine's to choose; here only their order matters.
                let next = if let Ok(Outcome::Waiting(id)) = got { id } else { WaitId(u64::MAX) };
                let expected = model.set(self.now_ns, lock, asking, next);
                if got != expected {
                    return Err(format!("{op:?}: {got:?}, not {expected:?}"));
                }
                refused = got.err();
            }
            Op::Unlock(lock) => {
                let got = locks.unlock(lock.owner, lock.ino, lock.range);
                let before = model.clone();
                model.write(&lock, None);
                let expected = if model.overfull(&before, &lock, 0) {
                    *model = before;
                    Err(FileLockRefusal::NoLocks)
                } else {
                    model.settle();
                    Ok(())
                };
                if got != expected {
                    return Err(format!("{op:?}: {got:?}, not {expected:?}"));
                }
                refused = got.err();
            }
            Op::Release(owner, ino) => {
                locks.release(owner, ino);
                model.held.remove(&(owner, ino));
                model.settle();
            }
            Op::Get(lock) => {
                let got = locks.get(&lock).map_err(|refusal| refusal.to_string())?;
                let hits = model.holders(&lock);
                if hits.is_empty() != got.is_none() {
                    return Err(format!("{op:?}: {got:?}, not one of {hits:?}"));
                }
                if let Some(got) = got
                    && (!hits.contains(&got.owner) || !excludes(got.kind, lock.kind))
                {
                    return Err(format!("{op:?}: {got:?} is not in the way"));
                }
            }
            Op::Cancel(nth) => {
                if nth < model.queue.len() {
                    let wait = model.queue.remove(nth);
                    model.settle();
                    if !locks.cancel(wait.id) || locks.cancel(wait.id) {
                        return Err(format!("{op:?}: a request that waits can be cancelled once"));
                    }
                }
            }
            Op::DropSession(session) => {
                let got = locks.drop_session(session);
                let ended = model.held.iter().filter(|((owner, _), _)| owner.session == session);
                let expected_locks: usize = ended.map(|(_, bytes)| segments(bytes).len()).sum();
                model.held.retain(|(owner, _), _| owner.session != session);
                let ended = model.queue.iter().filter(|wait| wait.lock.owner.session == session);
                let waits: Vec<WaitId> = ended.map(|wait| wait.id).collect();
                model.queue.retain(|wait| wait.lock.owner.session != session);
                model.settle();
                let expected = DroppedFileLocks { locks: expected_locks, waits };
                if got != expected {
                    return Err(format!("{op:?}: {got:?}, not {expected:?}"));
                }
            }
            Op::Tick(ns) => {
                self.now_ns += ns;
                locks.handle_timeout(self.now_ns);
                model.tick(self.now_ns);
                if locks.next_deadline() != model.queue.iter().map(|wait| wait.due_ns).min() {
                    return Err(format!("{op:?}: next deadline {:?}", locks.next_deadline()));
                }
            }
            Op::Restart => {
                let mut fresh = FileLocks::new(model.limits);
                fresh.planted = locks.planted;
                let sessions = (0..4).rev().map(SessionId);
                for lock in sessions.flat_map(|session| locks.held_by(session).collect::<Vec<_>>()) {
                    fresh.restore(lock).map_err(|refusal| format!("{op:?}: {lock:?}: {refusal}"))?;
                }
                // Ids continue, so that the order of asking stays that of the ids in both.
                fresh.sequence += locks.sequence;
                *locks = fresh;
                model.queue.clear();
            }
        }
        self.compare(op)?;
        Ok(refused)
    }

    fn compare(&mut self, op: Op) -> Result<(), String> {
        let granted: Vec<WaitId> = std::iter::from_fn(|| self.locks.poll_granted()).map(|granted| granted.id).collect();
        let expected = std::mem::take(&mut self.model.granted);
        if granted != expected {
            return Err(format!("{op:?}: granted {granted:?}, not {expected:?}"));
        }
        let mut expected = Vec::new();
        for (&(owner, ino), bytes) in &self.model.held {
            for (start, end, kind) in segments(bytes) {
                let end = if owner.family == LockFamily::Flock { u64::MAX } else { end as u64 };
                expected.push((owner, ino, ByteRange::new(start as u64, end), kind));
            }
        }
        let all = (0..4).flat_map(|session| self.locks.held_by(SessionId(session)));
        let held: Vec<_> = all.map(|lock| (lock.owner, lock.ino, lock.range, lock.kind)).collect();
        if held != expected {
            return Err(format!("{op:?}: held {held:?}, not {expected:?}"));
        }
        let waits: Vec<WaitId> = self.locks.waits.keys().copied().collect();
        let expected: Vec<WaitId> = self.model.queue.iter().map(|wait| wait.id).collect();
        if waits != expected || self.locks.len() != (held.len(), waits.len()) {
            return Err(format!("{op:?}: waiting {waits:?}, not {expected:?}"));
        }
        if !self.threads
            && let Some(owner) = self.model.circle()
        {
            return Err(format!("{op:?}: {owner:?} waits for itself"));
        }
        self.check_tables().map_err(|reason| format!("{op:?}: {reason}"))
    }

    /// No index contains anything any more.
    fn check_tables(&self) -> Result<(), String> {
        let locks = &self.locks;
        let (held, waits) = locks.len();
        let owners: BTreeSet<LockOwner> = self
            .model
            .held
            .keys()
            .map(|key| key.0)
            .chain(self.model.queue.iter().map(|wait| wait.lock.owner))
            .collect();
        let sizes = [locks.forest.len(), locks.waits_of.len(), locks.watchers.len(), locks.due.len()];
        if sizes != [held + waits, waits, waits, waits] {
            return Err(format!("{held} locks and {waits} waits in tables of {sizes:?}"));
        }
        if !locks.owners.keys().eq(owners.iter()) || locks.parties.len() != owners.len() {
            return Err(format!("owners {:?}, not {owners:?}", locks.owners.keys()));
        }
        let (mut files_locks, mut files_waits) = (0, 0);
        for file in locks.files.values() {
            files_locks += file.locks;
            files_waits += file.waits;
            if file.locks + file.waits == 0 {
                return Err("an unused file is kept".into());
            }
        }
        if (files_locks, files_waits) != (held, waits) { Err("counts of files are off".into()) } else { Ok(()) }
    }
}

/// Owners of the small worlds, one in each session.
pub(super) fn owners(family: LockFamily, count: u64) -> Vec<LockOwner> {
    (0..count).map(|n| owner(n, family, 5)).collect()
}
