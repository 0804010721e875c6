//! Locks of applications on files.
//!
//! While sessions of an earlier run have not presented their locks, no new lock is granted, and clients are informed
//! that they should send such requests again later.

use crate::counters::add;
use crate::worker::Worker;
use crate::worker::request::RequestCx;
use crate::zone_target::Target;
use amphi_env::Env;
use amphi_types::{ByteRange, Errno, Ino, Result, SessionId};
use amphi_wire::{FileLockOwner, FileLockSpec, Push, Reply};
use std::rc::Rc;
use std::time::Duration;

impl<E: Env> RequestCx<E> {
    fn file_lock_target(&self, ino: Ino) -> Result<()> {
        if ino.target() == self.target.id { Ok(()) } else { Err(Errno::Stale) }
    }

    /// Returns whether the session has the file open, or had it open lately, for reading or writing. Nobody calls a
    /// lock of an application back, so a session that cannot access the file must not lock others out.
    fn has_open(&self, ino: Ino) -> bool {
        let access = self.target.files.access(self.session, ino);
        access.is_some_and(|access| access.read || access.write)
    }

    fn is_recovering(&self) -> bool {
        !self.target.reclaim.is_over()
    }

    /// Asks the holders of conflicting locks whether a close is about to release them, and waits for the answers.
    /// Returns whether a second check may find another result, and the session of the request still exists.
    async fn await_closes(&self, lock: &FileLockSpec) -> bool {
        let begun = || self.target.sessions.begin_of(self.session);
        let before = begun();
        let asked = self.target.coherence.file_locks.ask_holders(self.worker.now_ns(), self.session, lock);
        if asked.sessions.is_empty() {
            return false;
        }
        for &(session, id) in &asked.sessions {
            add(&self.worker.counters.file_lock_closings, 1);
            self.worker.push(session, Push::FileLockClosing { id, ino: lock.ino });
        }
        asked.wait(&self.worker.env).await;
        before.is_some() && begun() == before
    }

    /// `Request::FileLockSet`.
    ///
    /// Errors: `BadFd` if the session does not have the file open; `Again`, `Deadlk`, `NoLck`, `Inval`.
    pub async fn file_lock_set(&self, lock: &FileLockSpec, number: u64, wait: bool) -> Result<Reply> {
        self.file_lock_target(lock.ino)?;
        let desk = &self.target.coherence.file_locks;
        if self.is_recovering() {
            desk.postpone(self.session, number)?;
            return Ok(Reply::FileLock(false));
        }
        self.alive()?;
        if !self.has_open(lock.ino) {
            return Err(Errno::BadFd);
        }
        let mut set = desk.set(self.worker.now_ns(), self.session, lock, number, wait);
        if set == Err(Errno::Again) && Box::pin(self.await_closes(lock)).await {
            set = desk.set(self.worker.now_ns(), self.session, lock, number, wait);
        }
        if set == Ok(false) {
            add(&self.worker.counters.file_lock_waits, 1);
        }
        tell(&self.worker, &self.target);
        set.map(Reply::FileLock)
    }

    /// `Request::FileLockCancel`.
    pub fn file_lock_cancel(&self, lock: &FileLockSpec, number: u64) -> Result<Reply> {
        self.file_lock_target(lock.ino)?;
        if self.is_recovering() {
            // No lock is granted now, and a lock that an earlier run granted without an answer is lost with it.
            return Ok(Reply::FileLock(false));
        }
        let held = self.target.coherence.file_locks.cancel(self.worker.now_ns(), self.session, lock, number);
        tell(&self.worker, &self.target);
        Ok(Reply::FileLock(held))
    }

    /// `Request::FileLockUnlock`.
    pub fn file_lock_unlock(&self, ino: Ino, owner: FileLockOwner, range: ByteRange) -> Result<Reply> {
        self.file_lock_target(ino)?;
        let unlocked = self.target.coherence.file_locks.unlock(self.session, owner, ino, range);
        tell(&self.worker, &self.target);
        unlocked.map(|()| Reply::Done)
    }

    /// `Request::FileLockTest`.
    pub async fn file_lock_test(&self, lock: &FileLockSpec, number: u64) -> Result<Reply> {
        self.file_lock_target(lock.ino)?;
        if self.is_recovering() {
            self.target.coherence.file_locks.postpone(self.session, number)?;
            return Ok(Reply::FileLock(false));
        }
        let desk = &self.target.coherence.file_locks;
        let mut found = desk.test(self.session, lock)?;
        if found.is_some() && Box::pin(self.await_closes(lock)).await {
            found = desk.test(self.session, lock)?;
        }
        Ok(Reply::FileLockFound(found))
    }

    /// `Request::FileLockClosed`.
    pub fn file_lock_closed(&self, ino: Ino, id: u64) -> Result<Reply> {
        self.file_lock_target(ino)?;
        self.target.coherence.file_locks.closed(self.session, id);
        Ok(Reply::Done)
    }

    /// `Request::RepresentFileLocks`.
    pub fn represent_file_locks(&self, locks: &[FileLockSpec], converted: &[FileLockSpec]) -> Result<Reply> {
        locks.iter().chain(converted).try_for_each(|lock| self.file_lock_target(lock.ino))?;
        // Locks on files outside the session's tree, or that it does not have open, are reported as lost. Opens of an
        // earlier run are presented after the locks, so then the locks are compared with them (`represent`).
        let is_expected = self.target.reclaim.is_expected(self.session);
        let may_present = |ino: Ino| self.may_present(ino) && (is_expected || self.has_open(ino));
        let within = |at: &usize| may_present(locks[*at].ino);
        let (kept, mut lost): (Vec<usize>, Vec<usize>) = (0..locks.len()).partition(within);
        let presented: Vec<FileLockSpec> = kept.iter().map(|at| locks[*at]).collect();
        // A conversion is carried out when all sessions have presented their locks. After that it is too late.
        let converted = if self.is_recovering() { converted } else { &[] };
        let converted: Vec<FileLockSpec> = converted.iter().filter(|lock| may_present(lock.ino)).copied().collect();
        let conflicting = self.target.coherence.file_locks.restore(self.session, &presented, &converted);
        lost.extend(conflicting.into_iter().map(|at| kept[at as usize]));
        lost.sort_unstable();
        let lost: Vec<u32> = lost.into_iter().map(|at| at as u32).collect();
        add(&self.worker.counters.file_locks_lost, lost.len() as u64);
        tell(&self.worker, &self.target);
        Ok(Reply::FileLocksLost(lost))
    }
}

/// Called when the session has ended: its locks and requests go.
pub fn drop_session<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, session: SessionId) {
    target.coherence.file_locks.drop_session(session);
    tell(worker, target);
}

/// If all sessions have presented their locks, postponed requests may be sent again.
pub fn recovered<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) {
    if target.reclaim.is_over() {
        target.coherence.file_locks.recovered();
    }
    tell(worker, target);
}

/// Informs sessions about their requests, and checks waiting requests.
pub fn tell<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) {
    for (session, number) in target.coherence.file_locks.take_news() {
        add(&worker.counters.file_lock_news, 1);
        worker.push(session, Push::FileLockNews { number });
    }
    let next = target.coherence.file_locks.start_watch();
    if next.is_none() {
        return;
    }
    let (env, weak) = (worker.env.clone(), (Rc::downgrade(worker), Rc::downgrade(target)));
    worker.env.spawn(async move {
        let mut next = next;
        while let Some(due_ns) = next {
            env.sleep(Duration::from_nanos(due_ns.saturating_sub(env.now().0) + 1)).await;
            let (Some(worker), Some(target)) = (weak.0.upgrade(), weak.1.upgrade()) else { return };
            next = target.coherence.file_locks.watch(worker.now_ns());
            tell(&worker, &target);
        }
    });
}
