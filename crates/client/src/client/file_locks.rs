//! Locks of applications in the public interface: `flock`, `fcntl`.

use super::Client;
use crate::coherence::file_locks::{self, TakenLock};
use crate::coherence::front_pages;
use crate::conn::pending::{Interrupt, Pending};
use crate::mount::Mount;
use crate::ops::write_behind;
use amphi_types::{ByteRange, Ino, Result};
use amphi_wire::{FileLockOwner, FileLockSpec};
use std::sync::Arc;

/// Waits until the writes to a file of commit consistency that have returned are on their targets. So the next holder
/// of a file lock finds their bytes.
async fn land(mount: &Mount, ino: Ino) {
    if let Some(file) = mount.files.get(ino).filter(|file| file.size.unfinished_end() > 0) {
        write_behind::drained(&file).await;
    }
}

/// A lock is granted. When the mount returns locks, the kernel may keep pages that show bytes from before other mounts'
/// writes. So these pages are dropped before a program gets a file lock.
async fn granted(mount: &Arc<Mount>, ino: Ino, taken: Result<TakenLock>) -> Result<TakenLock> {
    if taken.is_ok()
        && let Some(file) = mount.files.get(ino)
    {
        front_pages::drop_left(mount, &file).await;
    }
    taken
}

/// Locks of applications: `flock`, `fcntl`. Owners are numbered by the front end.
impl Client {
    /// Takes a lock, or changes the lock that the owner has on the range, in one step. The caller gets the answer, then
    /// the lock is [kept](TakenLock::keep).
    ///
    /// Errors: `Again` if another owner holds a conflicting lock, `NoLck`, `Inval` for an empty range; `Io` once if
    /// locks of the owner on the file were lost.
    pub fn try_lock(&self, lock: FileLockSpec) -> Pending<TakenLock> {
        let mount = self.mount.clone();
        Pending::start(&self.mount, async move {
            land(&mount, lock.ino).await;
            let taken = file_locks::take(mount.clone(), lock, false, None).await;
            granted(&mount, lock.ino, taken).await
        })
    }

    /// Works as `try_lock`, but waits. `interrupt` ends the wait with `Intr`, unless the lock was granted before: then
    /// it is taken. Dropping the operation does not end the wait.
    ///
    /// Errors: `Deadlk` if POSIX owners would wait for each other, otherwise as for `try_lock`.
    pub fn wait_lock(&self, lock: FileLockSpec, interrupt: Arc<Interrupt>) -> Pending<TakenLock> {
        let mount = self.mount.clone();
        Pending::start(&self.mount, async move {
            land(&mount, lock.ino).await;
            let taken = file_locks::take_interruptible(mount.clone(), lock, interrupt).await;
            granted(&mount, lock.ino, taken).await
        })
    }

    /// Releases the owner's locks in the range, after other mounts can see what this mount has written to the file.
    ///
    /// Errors: `NoLck` if that would cut a lock in two and the server has no room for one more.
    pub fn unlock(&self, ino: Ino, owner: FileLockOwner, range: ByteRange) -> Pending<()> {
        let mount = self.mount.clone();
        Pending::start(&self.mount, async move {
            land(&mount, ino).await;
            file_locks::unlock(mount, ino, owner, range).await
        })
    }

    /// Releases everything that the owner holds on the file, at a close. If it holds nothing, no message is sent.
    pub fn release_locks(&self, ino: Ino, owner: FileLockOwner) -> Pending<()> {
        if !self.mount.coherence.file_locks.is_known(&(ino, owner)) {
            return Pending::ready(Ok(()));
        }
        let mount = self.mount.clone();
        Pending::start(&self.mount, async move {
            land(&mount, ino).await;
            file_locks::release(mount, ino, owner).await
        })
    }

    /// The lock with the lowest offset that conflicts with `lock`. The process in the result is 0 if the lock belongs
    /// to another mount.
    pub fn test_lock(&self, lock: FileLockSpec) -> Pending<Option<FileLockSpec>> {
        Pending::start(&self.mount, file_locks::test(self.mount.clone(), lock))
    }

    /// Number of file locks that applications of this mount hold, and of requests for such that are not done.
    pub fn file_locks(&self) -> (usize, usize) {
        self.mount.coherence.file_locks.count()
    }
}
