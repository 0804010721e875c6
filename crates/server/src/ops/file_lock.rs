//! Locks of applications on files.
//!
//! While sessions of an earlier run have not said what they hold, nothing new is granted: requests are asked again then.

use crate::coherence::file_locks::tell;
use crate::counters::add;
use crate::worker::request::Cx;
use amphi_env::Env;
use amphi_types::{ByteRange, Errno, Ino, Result};
use amphi_wire::{FileLockOwner, FileLockSpec, Reply};

impl<E: Env> Cx<E> {
    fn file_lock_target(&self, ino: Ino) -> Result<()> {
        if ino.target() == self.target.id { Ok(()) } else { Err(Errno::Stale) }
    }

    fn is_recovering(&self) -> bool {
        !self.target.absent.borrow().is_empty()
    }

    /// `Request::FileLockSet`.
    pub fn file_lock_set(&self, lock: &FileLockSpec, number: u64, wait: bool) -> Result<Reply> {
        self.file_lock_target(lock.ino)?;
        let desk = &self.target.file_locks;
        if self.is_recovering() {
            desk.postpone(self.session, number)?;
            return Ok(Reply::FileLock(false));
        }
        let set = desk.set(self.worker.now_ns(), self.session, lock, number, wait);
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
            // Nothing is granted now, and what an earlier run granted untold is forgotten with it.
            return Ok(Reply::FileLock(false));
        }
        let held = self.target.file_locks.cancel(self.worker.now_ns(), self.session, lock, number);
        tell(&self.worker, &self.target);
        Ok(Reply::FileLock(held))
    }

    /// `Request::FileLockUnlock`.
    pub fn file_lock_unlock(&self, ino: Ino, owner: FileLockOwner, range: ByteRange) -> Result<Reply> {
        self.file_lock_target(ino)?;
        let unlocked = self.target.file_locks.unlock(self.session, owner, ino, range);
        tell(&self.worker, &self.target);
        unlocked.map(|()| Reply::Done)
    }

    /// `Request::FileLockTest`.
    pub fn file_lock_test(&self, lock: &FileLockSpec, number: u64) -> Result<Reply> {
        self.file_lock_target(lock.ino)?;
        if self.is_recovering() {
            self.target.file_locks.postpone(self.session, number)?;
            return Ok(Reply::FileLock(false));
        }
        self.target.file_locks.test(self.session, lock).map(Reply::FileLockFound)
    }

    /// `Request::RepresentFileLocks`.
    pub fn represent_file_locks(&self, locks: &[FileLockSpec]) -> Result<Reply> {
        locks.iter().try_for_each(|lock| self.file_lock_target(lock.ino))?;
        let lost = self.target.file_locks.restore(self.session, locks);
        add(&self.worker.counters.file_locks_lost, lost.len() as u64);
        tell(&self.worker, &self.target);
        Ok(Reply::FileLocksLost(lost))
    }
}
