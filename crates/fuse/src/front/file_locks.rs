//! `FileLocks`: which file locks the kernel's calls have taken, so that closes can release them.
//!
//! Owns: which owner took locks through which handle, and the translation between kernel and client in both directions.
//! Does not own: the locks (client and server).
//!
//! The kernel names an owner by a scrambled address. For POSIX locks it is that of the process's table of descriptors,
//! and for OFD locks and `flock` that of the open file. The number does not say whether a lock is a POSIX or an OFD
//! lock, so both are requested as POSIX locks. So a cycle of OFD owners is refused with EDEADLK, where Linux would let
//! them wait for ever. And `F_GETLK` names the process that took an OFD lock, where Linux returns -1. The kernel keeps
//! no record of these locks and sends no unlock when a descriptor is closed. The kernel only sends FLUSH with the
//! process's owner at every close, and RELEASE at the last one. Therefore:
//!
//! * The owner of a `flock` lock is its handle here, that is, the open file. The handle's number is not used again
//!   while it has locks, because a new open file may have the address of one whose RELEASE has not been read yet.
//! * FLUSH releases the POSIX locks of its owner on the file, through whichever handle they were taken.
//! * RELEASE releases the locks that were taken through its handle and are still held: those of the open file, and a
//!   lock that one thread took while another one closed its descriptor.
//! * The kernel does not wait for RELEASE. So a program whose `close` has returned may request a lock before the
//!   RELEASE is read. If FLUSH was seen for a handle whose lock conflicts, such a request waits for the RELEASE,
//!   `CLOSE_WAIT` at most. The request waits once for each FLUSH, because other descriptors of the handle may still be
//!   open. Without this, 1 of 300 requests after a close failed on a busy mount.
//! * An owner that is known from another handle with a FLUSH waits for the same time, because it may be a new open file
//!   at the old address, whose locks the RELEASE would release.
//! * Requests of other mounts wait in the same way, because a server queries the mount about closes (`Closes`). The
//!   mount answers them when it has read the messages after the FLUSH, and the server knows that the locks are
//!   released.
//!
//! Bound: one entry for each owner and handle with locks. The kernel's limit on open files bounds them, and the client
//! bounds how many questions of servers wait.

use crate::calls::{Handle, LockHow, LockKind};
use crate::request::Caller;
use amphi_client::{Closes, FileLockFamily, FileLockOwner, FileLockSpec, LockMode, TakenLock};
use amphi_types::{ByteRange, Errno, Ino, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The largest offset. A lock up to here also covers everything behind the end of the file.
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;
/// How long a request waits for the RELEASE that may follow a FLUSH.
const CLOSE_WAIT: Duration = Duration::from_millis(50);
/// How often one request may wait because a further close turned out to be under way.
pub(crate) const CLOSES_MAX: usize = 16;

#[derive(Default)]
struct Taken {
    by_handle: BTreeSet<(Handle, Ino, FileLockOwner)>,
    by_owner: BTreeMap<(Ino, FileLockOwner), BTreeSet<Handle>>,
    /// Handles with locks for which a FLUSH was seen and no RELEASE yet, with the number of that FLUSH.
    closing: BTreeMap<Handle, u64>,
    flushes: u64,
    /// Number of closes of handles with locks.
    closes: u64,
    /// Number of these closes that are complete on this mount.
    released: u64,
    /// For each close, the files whose locks its RELEASE releases, until the server has answered.
    going: BTreeMap<u64, BTreeSet<Ino>>,
    /// Servers that wait for closes.
    questions: BTreeMap<u64, Question>,
    last_question: u64,
}

/// A server's query about closes, and the closes for which its answer waits.
struct Question {
    /// Handles that may be about to be closed, with the number of their FLUSH.
    handles: BTreeMap<Handle, u64>,
    /// Closes whose locks are being released.
    going: BTreeSet<u64>,
    done: Box<dyn FnOnce() + Send>,
}

impl Taken {
    fn owners(&self, handle: Handle) -> impl Iterator<Item = (Ino, FileLockOwner)> + '_ {
        let from = self.by_handle.range((handle, Ino(0), FIRST_OWNER)..).take_while(move |(h, _, _)| *h == handle);
        from.map(|(_, ino, owner)| (*ino, *owner))
    }

    fn remove_from(&mut self, handle: Handle, ino: Ino, owner: FileLockOwner) {
        let is_of_handle = self.by_handle.remove(&(handle, ino, owner));
        let is_of_owner = self.by_owner.get(&(ino, owner)).is_some_and(|handles| handles.contains(&handle));
        assert_eq!(is_of_handle, is_of_owner, "{ino}: handle {} and its owner do not agree on locks", handle.0);
        if self.owners(handle).next().is_none() {
            self.closing.remove(&handle);
        }
        if let Some(handles) = self.by_owner.get_mut(&(ino, owner)) {
            handles.remove(&handle);
            if handles.is_empty() {
                self.by_owner.remove(&(ino, owner));
            }
        }
    }

    fn remove(&mut self, ino: Ino, owner: FileLockOwner) {
        let handles = self.by_owner.get(&(ino, owner)).cloned().unwrap_or_default();
        handles.into_iter().for_each(|handle| self.remove_from(handle, ino, owner));
    }

    /// Handles through which locks on the file were taken, and which may be about to be closed.
    fn closing_of(&self, ino: Ino) -> Vec<Handle> {
        if self.closing.is_empty() {
            return Vec::new();
        }
        let of_file = self.by_owner.range((ino, FIRST_OWNER)..).take_while(|((i, _), _)| *i == ino);
        of_file.flat_map(|(_, handles)| handles).filter(|h| self.closing.contains_key(h)).copied().collect()
    }

    /// Forgets these FLUSHes, because no RELEASE has followed in time.
    fn forget(&mut self, flushed: &BTreeMap<Handle, u64>) {
        self.closing.retain(|handle, flush| flushed.get(handle) != Some(flush));
    }

    fn flushes_of(&self, handles: &[Handle]) -> BTreeMap<Handle, u64> {
        handles.iter().filter_map(|handle| Some((*handle, *self.closing.get(handle)?))).collect()
    }

    /// Removes the questions that wait for nothing any more.
    fn take_answered(&mut self) -> Vec<Question> {
        let answered = self.questions.extract_if(.., |_, q| q.handles.is_empty() && q.going.is_empty());
        answered.map(|(_, question)| question).collect()
    }
}

const FIRST_OWNER: FileLockOwner = FileLockOwner { family: FileLockFamily::Posix, id: 0 };

/// The owners that took locks through each handle.
#[derive(Default)]
pub(crate) struct FileLocks {
    taken: Mutex<Taken>,
    closed: Condvar,
    /// Number of entries; if it is 0, callers need not take the mutex.
    len: AtomicUsize,
}

impl FileLocks {
    fn note(&self, handle: Handle, ino: Ino, owner: FileLockOwner) {
        let taken = &mut *self.taken.lock();
        taken.by_handle.insert((handle, ino, owner));
        taken.by_owner.entry((ino, owner)).or_default().insert(handle);
        self.len.store(taken.by_handle.len(), SeqCst);
    }

    /// FLUSH: the owner closes a descriptor of the handle and releases everything that it has on the file.
    pub(crate) fn flushed(&self, handle: Handle, ino: Ino, owner: FileLockOwner) {
        if self.len.load(SeqCst) == 0 {
            return;
        }
        let taken = &mut *self.taken.lock();
        taken.remove(ino, owner);
        if taken.owners(handle).next().is_some() {
            taken.flushes += 1;
            taken.closing.insert(handle, taken.flushes);
        }
        self.len.store(taken.by_handle.len(), SeqCst);
    }

    /// RELEASE: the handle is closed. Calls `release` for each owner that took locks through it, before they are
    /// forgotten. If there are any, returns the number of the close, for `given_up`.
    pub(crate) fn released(&self, handle: Handle, mut release: impl FnMut(Ino, FileLockOwner)) -> Option<u64> {
        if self.len.load(SeqCst) == 0 {
            return None;
        }
        let (owners, number) = {
            let taken = &mut *self.taken.lock();
            let owners: Vec<_> = taken.owners(handle).collect();
            if owners.is_empty() {
                return None;
            }
            taken.closes += 1;
            let number = taken.closes;
            taken.going.insert(number, owners.iter().map(|(ino, _)| *ino).collect());
            for question in taken.questions.values_mut().filter(|q| q.handles.contains_key(&handle)) {
                question.going.insert(number);
            }
            (owners, number)
        };
        owners.iter().for_each(|(ino, owner)| release(*ino, *owner));
        let taken = &mut *self.taken.lock();
        taken.released += 1;
        assert!(taken.released <= taken.closes, "{} of {} closes are complete", taken.released, taken.closes);
        owners.into_iter().for_each(|(ino, owner)| taken.remove_from(handle, ino, owner));
        for question in taken.questions.values_mut() {
            question.handles.remove(&handle);
        }
        self.len.store(taken.by_handle.len(), SeqCst);
        self.closed.notify_all();
        Some(number)
    }

    /// Called when the server has confirmed the release of the locks of a close, or cannot be reached.
    pub(crate) fn given_up(&self, number: u64) {
        let answered = {
            let taken = &mut *self.taken.lock();
            taken.going.remove(&number);
            for question in taken.questions.values_mut() {
                question.going.remove(&number);
            }
            taken.take_answered()
        };
        answered.into_iter().for_each(|question| (question.done)());
    }

    /// Returns how many handles with locks were closed so far.
    pub(crate) fn released_so_far(&self) -> u64 {
        self.taken.lock().released
    }

    /// If the owner may be a new open file at the address of an open file that is being closed, waits for the end of
    /// that close.
    pub(crate) fn await_namesake(&self, caller: &Caller<'_>, ino: Ino, how: &LockHow) {
        if how.flock || self.len.load(SeqCst) == 0 {
            return;
        }
        let (handle, owner) = (how.handle, owner_of(how));
        let closing = |taken: &Taken| -> Vec<Handle> {
            let handles = taken.by_owner.get(&(ino, owner)).into_iter().flatten();
            handles.filter(|h| **h != handle && taken.closing.contains_key(h)).copied().collect()
        };
        let mut taken = self.taken.lock();
        let flushed = taken.flushes_of(&closing(&taken));
        if flushed.is_empty() {
            return;
        }
        parking_lot::MutexGuard::unlocked(&mut taken, || caller.will_block());
        let there = |taken: &mut Taken| !closing(taken).is_empty();
        if self.closed.wait_while_for(&mut taken, there, CLOSE_WAIT).timed_out() {
            // This is a process that uses the file through several handles.
            taken.forget(&flushed);
        }
    }

    /// If locks on the file may be about to be released because their handle is closed, waits for that. Returns whether
    /// any were released since the count of closes was `closes`.
    pub(crate) fn await_closing(&self, caller: &Caller<'_>, ino: Ino, closes: u64) -> bool {
        let mut taken = self.taken.lock();
        if taken.released != closes {
            return true;
        }
        let flushed = taken.flushes_of(&taken.closing_of(ino));
        if flushed.is_empty() {
            return false;
        }
        parking_lot::MutexGuard::unlocked(&mut taken, || caller.will_block());
        let all_there = |taken: &mut Taken| flushed.keys().all(|h| taken.closing.contains_key(h));
        let vain = self.closed.wait_while_for(&mut taken, all_there, CLOSE_WAIT).timed_out();
        if vain {
            taken.forget(&flushed);
        }
        !vain
    }
}

impl Closes for FileLocks {
    fn closing(&self, ino: Ino, done: Box<dyn FnOnce() + Send>) -> Option<u64> {
        let taken = &mut *self.taken.lock();
        let handles = taken.flushes_of(&taken.closing_of(ino));
        let going = taken.going.iter().filter(|(_, inos)| inos.contains(&ino)).map(|(number, _)| *number).collect();
        let question = Question { handles, going, done };
        if question.handles.is_empty() && question.going.is_empty() {
            return None;
        }
        taken.last_question += 1;
        let before = taken.questions.insert(taken.last_question, question);
        assert!(before.is_none(), "two questions of servers have the number {}", taken.last_question);
        Some(taken.last_question)
    }

    fn in_vain(&self, wait: u64) {
        let taken = &mut *self.taken.lock();
        if let Some(question) = taken.questions.remove(&wait) {
            taken.forget(&question.handles);
        }
    }
}

pub(crate) fn owner_of(how: &LockHow) -> FileLockOwner {
    match how.flock {
        true => FileLockOwner { family: FileLockFamily::Flock, id: how.handle.0 },
        false => FileLockOwner { family: FileLockFamily::Posix, id: how.owner },
    }
}

/// The range of a lock.
///
/// Errors: `Inval` for a range without a byte.
pub(crate) fn range_of(how: &LockHow) -> Result<ByteRange> {
    if how.flock {
        return Ok(ByteRange::ALL);
    }
    if how.first > how.last || how.first > OFFSET_MAX {
        return Err(Errno::Inval);
    }
    Ok(ByteRange::new(how.first, if how.last >= OFFSET_MAX { u64::MAX } else { how.last + 1 }))
}

/// The lock that is requested; `None` for an unlock.
pub(crate) fn spec_of(ino: Ino, how: &LockHow) -> Result<Option<FileLockSpec>> {
    let mode = match how.kind {
        LockKind::Shared => LockMode::Read,
        LockKind::Exclusive => LockMode::Write,
        LockKind::Unlock => return Ok(None),
    };
    Ok(Some(FileLockSpec { ino, owner: owner_of(how), pid: how.pid, mode, range: range_of(how)? }))
}

/// It has to be called before the caller is answered that it holds the lock.
pub(crate) fn keep(locks: &FileLocks, ino: Ino, how: &LockHow, taken: TakenLock) {
    locks.note(how.handle, ino, owner_of(how));
    taken.keep();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Goal: a FLUSH takes an owner out of all handles of the file, a RELEASE finds those that are left. Method: one
    /// owner with two handles, one open file, and another file.
    #[test]
    fn closes_find_their_locks() {
        let posix = FileLockOwner { family: FileLockFamily::Posix, id: 7 };
        let flock = FileLockOwner { family: FileLockFamily::Flock, id: 8 };
        let locks = FileLocks::default();
        let take = |handle| {
            let mut found = Vec::new();
            if let Some(number) = locks.released(handle, |ino, owner| found.push((ino, owner))) {
                locks.given_up(number);
            }
            found
        };
        assert!(take(Handle(1)).is_empty());
        locks.note(Handle(1), Ino(5), posix);
        locks.note(Handle(2), Ino(5), posix);
        locks.note(Handle(1), Ino(5), flock);
        locks.note(Handle(3), Ino(6), posix);
        locks.flushed(Handle(1), Ino(5), posix);
        assert_eq!(locks.taken.lock().closing_of(Ino(5)), [Handle(1)], "its last close may follow");
        assert!(take(Handle(2)).is_empty(), "given up by a close");
        assert_eq!(take(Handle(1)), [(Ino(5), flock)]);
        assert_eq!(take(Handle(3)), [(Ino(6), posix)]);
        let taken = locks.taken.lock();
        assert_eq!((locks.len.load(SeqCst), taken.by_owner.len(), taken.closing.len()), (0, 0, 0));
        assert!(taken.going.is_empty());
    }

    /// Goal: a server's query is answered when the locks of closed handles have been released, and not before. A wait
    /// that was not needed ends with its FLUSH, not with a later one. Method: one file with two handles, in single
    /// calls.
    #[test]
    fn servers_wait_for_closes() {
        let flock = |handle: u64| FileLockOwner { family: FileLockFamily::Flock, id: handle };
        let posix = FileLockOwner { family: FileLockFamily::Posix, id: 7 };
        let locks = FileLocks::default();
        let answers = Arc::new(AtomicUsize::new(0));
        let ask = || {
            let answers = answers.clone();
            locks.closing(Ino(5), Box::new(move || _ = answers.fetch_add(1, SeqCst)))
        };
        let answered = || answers.load(SeqCst);
        locks.note(Handle(1), Ino(5), flock(1));
        locks.note(Handle(2), Ino(5), flock(2));
        assert_eq!(ask(), None, "nothing is being closed");
        locks.flushed(Handle(1), Ino(5), posix);
        let first = ask();
        assert!(first.is_some());
        let number = locks.released(Handle(1), |_, _| assert!(ask().is_some(), "it is being given up"));
        assert_eq!(answered(), 0, "the server does not know yet");
        assert!(ask().is_some());
        locks.given_up(number.expect("it had locks"));
        assert_eq!((answered(), ask()), (3, None));
        locks.flushed(Handle(2), Ino(5), posix);
        let vain = ask().expect("it may be the last");
        locks.flushed(Handle(2), Ino(5), posix);
        locks.in_vain(vain);
        let again = ask().expect("another descriptor was closed since");
        locks.in_vain(again);
        assert_eq!((answered(), ask()), (3, None));
        assert!(locks.taken.lock().questions.is_empty());
    }

    /// Goal: ranges come through at their ends. Method: the first and the largest offsets, there and back.
    #[test]
    fn ranges_of_the_kernel() {
        let how = |first, last| LockHow {
            handle: Handle(0),
            owner: 1,
            first,
            last,
            kind: LockKind::Shared,
            pid: 1,
            flock: false,
        };
        assert_eq!(range_of(&how(0, 0)), Ok(ByteRange::new(0, 1)));
        assert_eq!(range_of(&how(3, OFFSET_MAX)), Ok(ByteRange::new(3, u64::MAX)));
        assert_eq!(range_of(&how(OFFSET_MAX, OFFSET_MAX)), Ok(ByteRange::new(OFFSET_MAX, u64::MAX)));
        assert_eq!(range_of(&how(4, 3)), Err(Errno::Inval));
        assert_eq!(range_of(&LockHow { flock: true, ..how(4, 3) }), Ok(ByteRange::ALL));
    }
}
