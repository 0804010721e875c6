//! Locks of applications: a mount's table of them equals the server's table, whatever the order of answers and signals.

use super::World;
use crate::{FileLockFamily, FileLockOwner, FileLockSpec, Interrupt, LockMode, Pending, TakenLock};
use amphi_dlm::{
    Asking, FileLock, FileLockLimits, FileLockRefusal, FileLocks, LockFamily, LockKind, LockOwner, Outcome, WaitId,
};
use amphi_types::{ByteRange, Errno, Ino, Result, SessionId};
use amphi_wire::Reply;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The session of the client under test.
pub(crate) const US: SessionId = SessionId(1);
/// Another owner of locks.
const THEM: SessionId = SessionId(2);

/// The locks of the reference server: the real rules.
pub(crate) struct Desk {
    locks: FileLocks,
    waits: BTreeMap<u64, WaitId>,
    news: Vec<u64>,
}

impl Default for Desk {
    fn default() -> Desk {
        Desk { locks: FileLocks::new(FileLockLimits::default()), waits: BTreeMap::new(), news: Vec::new() }
    }
}

fn owner(session: SessionId, owner: FileLockOwner) -> LockOwner {
    let family = if owner.family == FileLockFamily::Flock { LockFamily::Flock } else { LockFamily::Posix };
    LockOwner { session, family, id: owner.id }
}

fn lock(session: SessionId, spec: &FileLockSpec) -> FileLock {
    let kind = if spec.mode == LockMode::Write { LockKind::Exclusive } else { LockKind::Shared };
    FileLock { owner: owner(session, spec.owner), pid: spec.pid, ino: spec.ino, kind, range: spec.range }
}

fn errno(e: FileLockRefusal) -> Errno {
    Errno::from_raw(e.raw_errno())
}

impl Desk {
    pub(crate) fn set(&mut self, session: SessionId, spec: &FileLockSpec, number: u64, wait: bool) -> Result<Reply> {
        if self.waits.contains_key(&number) {
            return Ok(Reply::FileLock(false));
        }
        let asking = if wait { Asking::Wait } else { Asking::Try };
        let outcome = self.locks.set(0, lock(session, spec), asking).map_err(errno)?;
        if let Outcome::Waiting(id) = outcome {
            self.waits.insert(number, id);
        }
        self.pump();
        Ok(Reply::FileLock(outcome == Outcome::Held))
    }

    pub(crate) fn cancel(&mut self, spec: &FileLockSpec, number: u64) -> Reply {
        let waited = self.waits.remove(&number).is_some_and(|id| self.locks.cancel(id));
        let held = !waited && self.locks.set(0, lock(US, spec), Asking::Try) == Ok(Outcome::Held);
        self.pump();
        Reply::FileLock(held)
    }

    pub(crate) fn unlock(
        &mut self,
        session: SessionId,
        ino: Ino,
        who: FileLockOwner,
        range: ByteRange,
    ) -> Result<Reply> {
        let unlocked = self.locks.unlock(owner(session, who), ino, range).map_err(errno);
        self.pump();
        unlocked.map(|()| Reply::Done)
    }

    pub(crate) fn test(&self, spec: &FileLockSpec) -> Result<Reply> {
        let found = self.locks.get(&lock(US, spec)).map_err(errno)?;
        Ok(Reply::FileLockFound(found.map(|f| FileLockSpec { range: f.range, pid: f.pid, ..*spec })))
    }

    pub(crate) fn take_news(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.news)
    }

    fn pump(&mut self) {
        while let Some(granted) = self.locks.poll_granted() {
            if let Some(number) = self.waits.iter().find(|(_, id)| **id == granted.id).map(|(n, _)| *n) {
                self.waits.remove(&number);
                self.news.push(number);
            }
        }
    }

    fn held(&self) -> Vec<(Ino, u64, ByteRange, bool)> {
        let row = |l: FileLock| (l.ino, l.owner.id, l.range, l.kind == LockKind::Exclusive);
        let mut all: Vec<_> = self.locks.held_by(US).map(row).collect();
        all.sort_by_key(|r| (r.0, r.1, r.2.start));
        all
    }
}

const F: Ino = Ino(77);

fn spec(family: FileLockFamily, id: u64, mode: LockMode, start: u64, end: u64) -> FileLockSpec {
    let range = if family == FileLockFamily::Flock { ByteRange::ALL } else { ByteRange::new(start, end) };
    FileLockSpec { ino: F, owner: FileLockOwner { family, id }, pid: 9, mode, range }
}

fn posix(id: u64, mode: LockMode, start: u64, end: u64) -> FileLockSpec {
    spec(FileLockFamily::Posix, id, mode, start, end)
}

fn poll(op: &mut Pending<TakenLock>) -> Option<Result<TakenLock>> {
    match Pin::new(op).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

impl World {
    fn their(&mut self, lock: FileLockSpec) {
        assert_eq!(self.server.file_locks.set(THEM, &lock, 1 << 40, false), Ok(Reply::FileLock(true)));
    }

    fn they_unlock(&mut self) {
        for id in 0..10 {
            for family in [FileLockFamily::Posix, FileLockFamily::Flock] {
                let them = FileLockOwner { family, id };
                self.server.file_locks.unlock(THEM, F, them, ByteRange::ALL).unwrap();
            }
        }
    }

    /// The locks that the client believes to hold.
    fn held(&self) -> Vec<(Ino, u64, ByteRange, bool)> {
        let row = |l: FileLockSpec| (l.ino, l.owner.id, l.range, l.mode == LockMode::Write);
        let mut all: Vec<_> = self.client.mount.coherence.file_locks.specs().into_iter().map(row).collect();
        all.sort_by_key(|r| (r.0, r.1, r.2.start));
        all
    }
}

const R: LockMode = LockMode::Read;
const W: LockMode = LockMode::Write;

/// Goal: a lock that is not kept is released, and the former locks are restored. A kept lock stays until the close,
/// which sends no message if no lock is held. Method: fresh, upgraded and mixed locks that are dropped.
#[test]
fn what_is_not_kept_is_given_back() {
    let mut w = World::new(1, &[]);
    let op = w.client.try_lock(posix(1, R, 0, 10));
    w.run(op).expect("free").keep();
    let before = w.held();
    let op = w.client.try_lock(posix(1, W, 5, 20));
    let taken = w.run(op).expect("free");
    assert_eq!(w.server.file_locks.held().len(), 2);
    drop(taken);
    w.settle();
    assert_eq!(w.held(), before);
    assert_eq!(w.server.file_locks.held(), before);
    // Abandoned before the answer.
    drop(w.client.try_lock(posix(1, W, 0, 20)));
    w.settle();
    assert_eq!((w.held(), w.server.file_locks.held()), (before.clone(), before));
    let op = w.client.release_locks(F, posix(1, R, 0, 1).owner);
    w.run(op).expect("done");
    assert!(w.server.file_locks.held().is_empty() && w.client.file_locks() == (0, 0));
    w.server.log.clear();
    let op = w.client.release_locks(F, posix(1, R, 0, 1).owner);
    w.run(op).expect("nothing to do");
    let op = w.client.unlock(F, posix(1, R, 0, 1).owner, ByteRange::new(0, 5));
    w.run(op).expect("nothing to do");
    assert!(w.server.log.is_empty(), "{:?}", w.server.log);
}

/// Goal: a wait ends with the lock, or with a signal: then nothing is left, or the lock was granted before and is
/// reported. Method: another mount holds a lock. Method: the signal arrives before, during and after the end of the
/// wait, in many orders.
#[test]
fn waits_and_signals() {
    let (mut granted, mut interrupted) = (0, 0);
    for seed in 0..60 {
        let mut w = World::new(seed, &[]);
        let family = if seed % 3 == 0 { FileLockFamily::Flock } else { FileLockFamily::Posix };
        w.their(spec(family, 1, W, 0, 10));
        let interrupt = Arc::new(Interrupt::new());
        let mut op = w.client.wait_lock(spec(family, 1, W, 0, 10), interrupt.clone());
        assert!(poll(&mut op).is_none());
        let steps = w.rand(6);
        w.steps(steps);
        match seed % 4 {
            0 => interrupt.fire(),
            1 => {
                w.they_unlock();
                let steps = w.rand(6);
                w.steps(steps);
                interrupt.fire();
            }
            2 => w.they_unlock(),
            _ => {
                interrupt.fire();
                let steps = w.rand(4);
                w.steps(steps);
                w.they_unlock();
            }
        }
        match w.run(op) {
            Ok(taken) => {
                taken.keep();
                granted += 1;
                assert_eq!(w.held().len(), 1);
            }
            Err(e) => {
                assert_eq!(e, Errno::Intr);
                interrupted += 1;
                assert!(w.held().is_empty());
            }
        }
        w.settle();
        assert_eq!(w.server.file_locks.held(), w.held(), "seed {seed}");
        assert!(w.server.file_locks.waits.is_empty());
        assert_eq!(w.client.file_locks().1, 0);
    }
    assert!(granted > 10 && interrupted > 10, "{granted} {interrupted}");
}

/// Goal: without a server a signal ends a wait at once, and a lock that is granted later is released. Method: interrupt
/// with the connection down, then let the server grant.
#[test]
fn signals_without_a_server() {
    for seed in 0..20 {
        let mut w = World::new(seed, &[]);
        w.their(posix(1, W, 0, 10));
        let interrupt = Arc::new(Interrupt::new());
        let mut op = w.client.wait_lock(posix(1, W, 0, 10), interrupt.clone());
        w.steps(seed);
        let _ = poll(&mut op);
        w.client.mount.coherence.file_locks.state_changed(false, true);
        interrupt.fire();
        assert_eq!(poll(&mut op).map(|r| r.map(drop)), Some(Err(Errno::Intr)), "no step of the server");
        w.they_unlock();
        w.client.mount.coherence.file_locks.state_changed(true, false);
        w.settle();
        assert!(w.held().is_empty() && w.server.file_locks.held().is_empty());
        assert_eq!((w.server.file_locks.waits.len(), w.client.file_locks()), (0, (0, 0)));
    }
}

/// Goal: the remains of a wait, or of a lock that was not kept, do not release the next lock of the same owner on the
/// same bytes. Method: the wait is interrupted without a connection, at several stages, or dropped, and the next
/// request follows at once.
#[test]
fn what_comes_next_is_not_given_back() {
    for seed in 0..40 {
        let mut w = World::new(seed, &[]);
        let their = seed % 2 == 0;
        if their {
            w.their(posix(1, W, 0, 10));
        }
        let interrupt = Arc::new(Interrupt::new());
        let mut op = w.client.wait_lock(posix(1, R, 0, 10), interrupt.clone());
        w.steps(seed / 4);
        if let Some(taken) = poll(&mut op) {
            drop(taken);
        } else {
            w.client.mount.coherence.file_locks.state_changed(false, true);
            interrupt.fire();
            assert_eq!(poll(&mut op).map(|r| r.map(drop)), Some(Err(Errno::Intr)), "no step of the server");
        }
        let next = w.client.try_lock(posix(1, W, 0, 10));
        w.they_unlock();
        w.client.mount.coherence.file_locks.state_changed(true, false);
        w.run(next).expect("free").keep();
        w.settle();
        assert_eq!(w.held().len(), 1, "seed {seed}");
        assert_eq!(w.held(), w.server.file_locks.held(), "seed {seed}");
        assert_eq!((w.server.file_locks.waits.len(), w.client.file_locks().1), (0, 0));
    }
}

/// Goal: whenever nothing is under way, the locks that the client would present are those of the server. At any other
/// moment they are a part of the server's. Method: random calls of several owners at once, with answers in any order,
/// another mount in between, signals, and abandoned calls. The two tables are compared after every step.
#[test]
fn the_table_is_the_servers() {
    for seed in 0..40 {
        let mut w = World::new(seed, &[]);
        let mut ops: Vec<(Pending<TakenLock>, Option<Arc<Interrupt>>)> = Vec::new();
        let mut others: Vec<Pending<()>> = Vec::new();
        for _ in 0..300 {
            let (id, start) = (w.rand(3), w.rand(20));
            let end = start + 1 + w.rand(20 - start);
            let mode = if w.rand(2) == 0 { R } else { W };
            let family = if w.rand(4) == 0 { FileLockFamily::Flock } else { FileLockFamily::Posix };
            let lock = spec(family, id, mode, start, end);
            match w.rand(9) {
                0 | 1 => ops.push((w.client.try_lock(lock), None)),
                2 => {
                    // The exception is a wait that makes a part of a held lock shared: its grant may not be known yet.
                    let interrupt = Arc::new(Interrupt::new());
                    let op = w.client.wait_lock(FileLockSpec { mode: W, ..lock }, interrupt.clone());
                    ops.push((op, Some(interrupt)));
                }
                3 => others.push(w.client.unlock(F, lock.owner, lock.range)),
                4 => others.push(w.client.release_locks(F, lock.owner)),
                5 => drop(w.server.file_locks.set(THEM, &lock, 1 << 40, false)),
                6 => w.they_unlock(),
                7 => ops.iter().filter_map(|(_, i)| i.as_ref()).take(2).for_each(|i| i.fire()),
                // A try is abandoned.
                _ => drop(ops.iter().position(|(_, i)| i.is_none()).map(|at| ops.swap_remove(at))),
            }
            let steps = w.rand(5);
            w.steps(steps);
            ops.retain_mut(|(op, _)| poll(op).map(|taken| taken.map(TakenLock::keep)).is_none());
            others.retain_mut(|op| Pin::new(op).poll(&mut Context::from_waker(Waker::noop())).is_pending());
            let server = w.server.file_locks.held();
            for (ino, id, range, exclusive) in w.held() {
                let covered = |b: u64| {
                    let there = |r: &&(Ino, u64, ByteRange, bool)| r.2.start <= b && b < r.2.end;
                    server.iter().filter(|r| (r.0, r.1) == (ino, id) && (r.3 || !exclusive)).any(|r| there(&r))
                };
                assert!((range.start..range.end.min(40)).all(covered), "seed {seed}: {range:?} of {id}: {server:?}");
            }
        }
        ops.iter().filter_map(|(_, i)| i.as_ref()).for_each(|i| i.fire());
        // Each request may have to wait for the turn of another one.
        for left in (0..20_000).rev() {
            ops.retain_mut(|(op, _)| poll(op).map(|taken| taken.map(TakenLock::keep)).is_none());
            others.retain_mut(|op| Pin::new(op).poll(&mut Context::from_waker(Waker::noop())).is_pending());
            if ops.is_empty() && others.is_empty() {
                break;
            }
            assert!(left > 0, "operations hang: {} {}", ops.len(), others.len());
            w.step();
        }
        w.settle();
        assert_eq!(w.held(), w.server.file_locks.held(), "seed {seed}");
        assert!(w.server.file_locks.waits.is_empty());
    }
}
