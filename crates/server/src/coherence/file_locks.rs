//! `FileLockTable`: locks of applications on the files of a target, as requests use them.
//!
//! Owns: which request of which session waits under which number, the messages about that to sessions, and requests
//! that arrived before all sessions had presented their locks. Does not own: the rules (`amphi_dlm::FileLocks`).
//!
//! A request that has to wait is answered at once, so it occupies no slot of its session, however long it waits. When
//! the lock is granted, it is entered in the table, and the client is informed that it should send the request again. A
//! request for a lock that its owner already holds succeeds. So it does not matter whether the message arrives, or how
//! often. A session that lost its connection sends its waiting requests again on the new one.
//!
//! Invariant: code that changes the table also collects the resulting grants in the same call, so none is forgotten.

mod closing;

use crate::coherence::questions::Questions;
use amphi_dlm::{
    Asking, FileLock, FileLockLimits, FileLockRefusal, FileLocks, LockFamily, LockKind, LockOwner, Outcome, WaitId,
};
use amphi_types::{ByteRange, Errno, Ino, Result, SessionId};
use amphi_wire::{FileLockFamily, FileLockOwner, FileLockSpec, LockMode};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Requests that wait for sessions of an earlier run; beyond, `NoLck`.
const POSTPONED_MAX: usize = 65_536;

/// Identifies a waiting request: its session, and the number that the client gave the request.
type Asked = (SessionId, u64);

/// Conversions that wait for sessions of an earlier run. Beyond, such a lock stays as it was presented, shared.
const CONVERTED_MAX: usize = 65_536;

struct Inner {
    locks: FileLocks,
    waits: BTreeMap<Asked, WaitId>,
    asked: BTreeMap<WaitId, Asked>,
    /// Requests that have to be sent again when all sessions have presented their locks.
    postponed: BTreeSet<Asked>,
    /// Exclusive locks that sessions have presented as shared, because a request may have converted them.
    converted: BTreeSet<FileLock>,
    /// Requests whose clients have to be informed that they should send them again.
    news: Vec<Asked>,
    /// Whether a task checks waiting requests that yielded to others.
    watched: bool,
}

/// File locks of one target.
pub struct FileLockTable {
    inner: RefCell<Inner>,
    /// Mounts that were asked whether a close is under way.
    closing: Questions,
}

fn errno(refusal: FileLockRefusal) -> Errno {
    Errno::from_raw(refusal.raw_errno())
}

fn owner_of(session: SessionId, owner: FileLockOwner) -> LockOwner {
    let family = match owner.family {
        FileLockFamily::Posix => LockFamily::Posix,
        FileLockFamily::OpenFile => LockFamily::OpenFile,
        FileLockFamily::Flock => LockFamily::Flock,
    };
    LockOwner { session, family, id: owner.id }
}

fn lock_of(session: SessionId, spec: &FileLockSpec) -> FileLock {
    let kind = match spec.mode {
        LockMode::Read => LockKind::Shared,
        LockMode::Write => LockKind::Exclusive,
    };
    FileLock { owner: owner_of(session, spec.owner), pid: spec.pid, ino: spec.ino, kind, range: spec.range }
}

fn spec_of(lock: &FileLock) -> FileLockSpec {
    let family = match lock.owner.family {
        LockFamily::Posix => FileLockFamily::Posix,
        LockFamily::OpenFile => FileLockFamily::OpenFile,
        LockFamily::Flock => FileLockFamily::Flock,
    };
    let mode = match lock.kind {
        LockKind::Shared => LockMode::Read,
        LockKind::Exclusive => LockMode::Write,
    };
    let owner = FileLockOwner { family, id: lock.owner.id };
    FileLockSpec { ino: lock.ino, owner, pid: lock.pid, mode, range: lock.range }
}

impl Inner {
    fn pump(&mut self) {
        while let Some(granted) = self.locks.poll_granted() {
            if let Some(asked) = self.asked.remove(&granted.id) {
                let waited = self.waits.remove(&asked);
                assert_eq!(waited, Some(granted.id), "request {} of a session waits under another number", asked.1);
                self.news.push(asked);
            }
        }
    }

    fn postpone(&mut self, asked: Asked) -> Result<()> {
        if self.postponed.len() >= POSTPONED_MAX {
            return Err(Errno::NoLck);
        }
        self.postponed.insert(asked);
        Ok(())
    }
}

impl FileLockTable {
    /// A table without locks.
    pub fn new() -> FileLockTable {
        let locks = FileLocks::new(FileLockLimits::default());
        let (waits, asked, postponed, converted, news) = Default::default();
        let inner = RefCell::new(Inner { locks, waits, asked, postponed, converted, news, watched: false });
        FileLockTable { inner, closing: Questions::default() }
    }

    /// Takes a lock: returns whether the owner holds it now. If not, the session is informed later when to send the
    /// request again.
    ///
    /// Errors: `Again` if it is not to wait, `Deadlk`, `NoLck`, `Inval`.
    pub fn set(&self, now_ns: u64, session: SessionId, spec: &FileLockSpec, number: u64, wait: bool) -> Result<bool> {
        let inner = &mut *self.inner.borrow_mut();
        let asked = (session, number);
        if inner.waits.contains_key(&asked) {
            // The request was repeated after a lost connection: it keeps its place in the queue.
            return Ok(false);
        }
        let asking = if wait { Asking::Wait } else { Asking::Try };
        let outcome = inner.locks.set(now_ns, lock_of(session, spec), asking);
        inner.pump();
        match outcome.map_err(errno)? {
            Outcome::Held => Ok(true),
            Outcome::Waiting(id) => {
                inner.waits.insert(asked, id);
                let before = inner.asked.insert(id, asked);
                assert!(before.is_none(), "two waiting requests have the number {id:?}");
                Ok(false)
            }
        }
    }

    /// Postpones a request until all sessions have presented their locks.
    pub fn postpone(&self, session: SessionId, number: u64) -> Result<()> {
        self.inner.borrow_mut().postpone((session, number))
    }

    /// The caller of a request no longer waits. Returns whether the owner holds the lock nevertheless.
    pub fn cancel(&self, now_ns: u64, session: SessionId, spec: &FileLockSpec, number: u64) -> bool {
        let inner = &mut *self.inner.borrow_mut();
        let asked = (session, number);
        if inner.postponed.remove(&asked) {
            return false;
        }
        if let Some(id) = inner.waits.remove(&asked) {
            inner.asked.remove(&id);
            let waited = inner.locks.cancel(id);
            inner.pump();
            if waited {
                return false;
            }
        }
        // The lock was granted. Another thread of the owner may have released it since, or an earlier run of the server
        // may have granted it.
        let again = inner.locks.set(now_ns, lock_of(session, spec), Asking::Try);
        inner.pump();
        again == Ok(Outcome::Held)
    }

    /// Releases a range.
    pub fn unlock(&self, session: SessionId, owner: FileLockOwner, ino: Ino, range: ByteRange) -> Result<()> {
        let inner = &mut *self.inner.borrow_mut();
        let result = inner.locks.unlock(owner_of(session, owner), ino, range);
        inner.pump();
        result.map_err(errno)
    }

    /// The lock that conflicts with a given lock, if there is one. For other sessions the process number is 0.
    pub fn test(&self, session: SessionId, spec: &FileLockSpec) -> Result<Option<FileLockSpec>> {
        let found = self.inner.borrow().locks.get(&lock_of(session, spec)).map_err(errno)?;
        Ok(found.map(|lock| {
            let pid = if lock.owner.session == session { lock.pid } else { 0 };
            FileLockSpec { pid, ..spec_of(&lock) }
        }))
    }

    /// Restores the locks that a session held before the restart. Returns the indices of those that are lost.
    /// `converted`: locks among them that are presented as shared, and become exclusive if no other session presents a
    /// conflicting lock.
    pub fn restore(&self, session: SessionId, locks: &[FileLockSpec], converted: &[FileLockSpec]) -> Vec<u32> {
        let inner = &mut *self.inner.borrow_mut();
        let mut lost = Vec::new();
        for (place, spec) in locks.iter().enumerate() {
            if let Err(e) = inner.locks.restore(lock_of(session, spec)) {
                tracing::warn!(ino = %spec.ino, "a file lock of before the restart is lost: {e}");
                lost.push(place as u32);
            }
        }
        for lock in converted.iter().map(|spec| lock_of(session, spec)) {
            if inner.converted.len() < CONVERTED_MAX {
                inner.converted.insert(lock);
            }
        }
        inner.pump();
        lost
    }

    /// Ends the locks of a session on other files than those for which `is_kept` returns true.
    pub fn keep_only(&self, session: SessionId, is_kept: impl Fn(Ino) -> bool) {
        let inner = &mut *self.inner.borrow_mut();
        let gone: BTreeSet<_> = inner.locks.held_by(session).map(|lock| (lock.owner, lock.ino)).collect();
        for (owner, ino) in gone.into_iter().filter(|(_, ino)| !is_kept(*ino)) {
            inner.locks.release(owner, ino);
        }
        inner.converted.retain(|lock| lock.owner.session != session || is_kept(lock.ino));
        inner.pump();
    }

    /// Called when the session has ended: its locks and requests go.
    pub fn drop_session(&self, session: SessionId) {
        let inner = &mut *self.inner.borrow_mut();
        inner.locks.drop_session(session);
        let all = (session, 0)..=(session, u64::MAX);
        for (_, id) in inner.waits.extract_if(all, |_, _| true) {
            inner.asked.remove(&id);
        }
        inner.postponed.retain(|(s, _)| *s != session);
        inner.converted.retain(|lock| lock.owner.session != session);
        self.closing.end_session(session);
        inner.pump();
    }

    /// Called when all sessions have presented their locks, so postponed requests may be sent again.
    pub fn recovered(&self) {
        let inner = &mut *self.inner.borrow_mut();
        for lock in std::mem::take(&mut inner.converted) {
            // Another session has presented a lock that could be granted only after the conversion, so the conversion
            // was carried out.
            let _ = inner.locks.restore(lock);
        }
        inner.news.extend(std::mem::take(&mut inner.postponed));
    }

    /// Requests whose sessions have to be informed that they should send them again.
    pub fn take_news(&self) -> Vec<(SessionId, u64)> {
        std::mem::take(&mut self.inner.borrow_mut().news)
    }

    /// When the next check of waiting requests is due, monotonic ns. Returns `None` if a task already waits for it;
    /// otherwise the caller has to wait for it.
    pub fn start_watch(&self) -> Option<u64> {
        let inner = &mut *self.inner.borrow_mut();
        let next = inner.locks.next_deadline()?;
        (!std::mem::replace(&mut inner.watched, true)).then_some(next)
    }

    /// Called when the checks that were due have been made. Returns when the next one is due. `None`: no request needs
    /// a check.
    pub fn watch(&self, now_ns: u64) -> Option<u64> {
        let inner = &mut *self.inner.borrow_mut();
        inner.locks.handle_timeout(now_ns);
        inner.pump();
        let next = inner.locks.next_deadline();
        inner.watched = next.is_some();
        next
    }

    /// Number of conversions that wait until all sessions have presented their locks.
    #[cfg(test)]
    pub fn converting(&self) -> usize {
        self.inner.borrow().converted.len()
    }

    /// Number of locks held and of requests that wait.
    pub fn count(&self) -> (usize, usize) {
        self.inner.borrow().locks.len()
    }
}
