//! File locks (`flock`, `fcntl`): the kernel's calls as operations of the client.
//!
//! Owns: the requests and their order, and when a refused request is repeated. Does not own: which owner took locks
//! through which handle (`front/file_locks`), the locks themselves (the client and the server).

use super::ClientFs;
use crate::calls::{Handle, LockHow, LockKind};
use crate::front::file_locks::{CLOSES_MAX, OFFSET_MAX, keep, owner_of, range_of, spec_of};
use crate::later::Later;
use crate::request::Caller;
use amphi_client::{FileLockFamily, FileLockOwner, Interrupt, LockMode, TakenLock};
use amphi_types::{Errno, Ino, Result};
use std::sync::Arc;
use std::task::{Wake, Waker};

/// A waker that interrupts a wait.
struct Fire(Arc<Interrupt>);

impl Wake for Fire {
    fn wake(self: Arc<Self>) {
        self.0.fire();
    }
}

impl ClientFs {
    pub(super) fn get_lock(&self, caller: &Caller<'_>, ino: Ino, how: &LockHow) -> Result<Option<LockHow>> {
        let Some(spec) = spec_of(ino, how)? else { return Err(Errno::Inval) };
        let test = || self.wait(caller, self.client.test_lock(spec));
        let found = self.retry(caller, ino, test, |found| matches!(found, Ok(Some(_))))?;
        Ok(found.map(|lock| LockHow {
            first: lock.range.start,
            last: lock.range.end.saturating_sub(1).min(OFFSET_MAX),
            kind: if lock.mode == LockMode::Write { LockKind::Exclusive } else { LockKind::Shared },
            pid: lock.pid,
            ..*how
        }))
    }

    pub(super) fn set_lock(&self, caller: &Caller<'_>, ino: Ino, how: &LockHow) -> Result<()> {
        match spec_of(ino, how)? {
            Some(spec) => {
                self.file_locks.await_namesake(caller, ino, how);
                let take = || self.wait(caller, self.client.try_lock(spec));
                let taken = self.retry(caller, ino, take, |taken| matches!(taken, Err(Errno::Again)))?;
                keep(&self.file_locks, ino, how, taken);
                self.tells_end(caller, ino);
                Ok(())
            }
            None => self.wait(caller, self.client.unlock(ino, owner_of(how), range_of(how)?)),
        }
    }

    /// Repeats `ask` as long as it is refused (`in_the_way`) because of a lock that a close is about to release.
    fn retry<T>(&self, caller: &Caller<'_>, ino: Ino, ask: impl Fn() -> T, in_the_way: impl Fn(&T) -> bool) -> T {
        let mut closes = self.file_locks.released_so_far();
        let mut result = ask();
        for _ in 0..CLOSES_MAX {
            if !in_the_way(&result) || !self.file_locks.await_closing(caller, ino, closes) {
                break;
            }
            closes = self.file_locks.released_so_far();
            result = ask();
        }
        result
    }

    pub(super) fn wait_lock(&self, caller: &Caller<'_>, ino: Ino, how: &LockHow, later: Later) {
        let spec = match spec_of(ino, how) {
            Ok(Some(spec)) => spec,
            Ok(None) => return later.answer(self.set_lock(caller, ino, how)),
            Err(e) => return later.answer(Err(e)),
        };
        self.file_locks.await_namesake(caller, ino, how);
        // A signal ends the wait at once, because programs use alarms to bound it.
        let interrupt = Arc::new(Interrupt::new());
        later.wake_on_interrupt(Waker::from(Arc::new(Fire(interrupt.clone()))));
        let mut pending = self.client.wait_lock(spec, interrupt);
        let quick = pending.try_take().or_else(|| if caller.is_alone() { pending.linger() } else { None });
        let (locks, how) = (self.file_locks.clone(), *how);
        let tell = self.end_with_lock(ino);
        let done = move |taken: Result<TakenLock>| match taken {
            Ok(taken) => {
                keep(&locks, ino, &how, taken);
                tell(Box::new(move || later.answer(Ok(()))));
            }
            Err(e) => later.answer(Err(e)),
        };
        match quick {
            Some(taken) => done(taken),
            None => self.client.spawn(async move { done(pending.await) }),
        }
    }

    /// FLUSH: the process with this owner has closed a descriptor of the file.
    pub(super) fn locks_flushed(&self, caller: &Caller<'_>, ino: Ino, handle: Handle, owner: u64) -> Result<()> {
        let owner = FileLockOwner { family: FileLockFamily::Posix, id: owner };
        self.file_locks.flushed(handle, ino, owner);
        self.wait(caller, self.client.release_locks(ino, owner))
    }

    /// RELEASE: the last descriptor of the handle was closed. No program waits for this.
    pub(super) fn locks_released(&self, handle: Handle) {
        let mut pending = Vec::new();
        let release = |ino, owner| pending.push(self.client.release_locks(ino, owner));
        let Some(number) = self.file_locks.released(handle, release) else { return };
        let locks = self.file_locks.clone();
        self.client.spawn(async move {
            for given_up in pending {
                // If the server cannot be reached, either its session ends or the client repeats the release later.
                let _ = given_up.await;
            }
            locks.given_up(number);
        });
    }
}
