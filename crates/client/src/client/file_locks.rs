//! Locks of applications in the public interface: `flock`, `fcntl`.

use super::Client;
use crate::coherence::file_locks::{self, TakenLock};
use crate::conn::pending::{Interrupt, Pending};
use amphi_types::{ByteRange, Ino};
use amphi_wire::{FileLockOwner, FileLockSpec};
use std::sync::Arc;

/// Locks of applications: `flock`, `fcntl`. Owners are numbered by the front end.
impl Client {
    /// Takes a lock, or changes what the owner holds of the range, in one step. The caller gets the answer, then the
    /// lock is [kept](TakenLock::keep).
    ///
    /// Errors: `Again` if another owner holds a conflicting lock, `NoLck`, `Inval` for an empty range; `Io` once if
    /// locks of the owner on the file were lost.
    pub fn try_lock(&self, lock: FileLockSpec) -> Pending<TakenLock> {
        Pending::start(&self.mount, file_locks::take(self.mount.clone(), lock, false, None))
    }

    /// As `try_lock`, but waits. `interrupt` ends the wait with `Intr`, unless the lock was granted before: then it is
    /// taken. Dropping the operation does not end the wait.
    ///
    /// Errors: `Deadlk` if POSIX owners would wait for each other, otherwise as for `try_lock`.
    pub fn wait_lock(&self, lock: FileLockSpec, interrupt: Arc<Interrupt>) -> Pending<TakenLock> {
        Pending::start(&self.mount, file_locks::take_interruptible(self.mount.clone(), lock, interrupt))
    }

    /// Gives up what the owner holds of the range.
    ///
    /// Errors: `NoLck` if that would cut a lock in two and the server has no room for one more.
    pub fn unlock(&self, ino: Ino, owner: FileLockOwner, range: ByteRange) -> Pending<()> {
        Pending::start(&self.mount, file_locks::unlock(self.mount.clone(), ino, owner, range))
    }

    /// Releases everything that the owner holds on the file, at a close. If it holds nothing, no message is sent.
    pub fn release_locks(&self, ino: Ino, owner: FileLockOwner) -> Pending<()> {
        if !self.mount.coherence.file_locks.is_known(&(ino, owner)) {
            return Pending::ready(Ok(()));
        }
        Pending::start(&self.mount, file_locks::release(self.mount.clone(), ino, owner))
    }

    /// The lock with the lowest offset that conflicts with `lock`. Its process is 0 if it belongs to another mount.
    pub fn test_lock(&self, lock: FileLockSpec) -> Pending<Option<FileLockSpec>> {
        Pending::start(&self.mount, file_locks::test(self.mount.clone(), lock))
    }

    /// Number of file locks that applications of this mount hold, and of requests for such that are not done.
    pub fn file_locks(&self) -> (usize, usize) {
        self.mount.coherence.file_locks.count()
    }
}
