//! `Rollbacks`: truncates that the kernel sends after a failed write.
//!
//! If a write with O_DIRECT would end behind the end of the file, and fails, Linux truncates the file to the size that
//! it knows, within the same system call (fs/fuse/file.c, `fuse_direct_IO`). In shared mode that size may be
//! outdated, and the bytes behind it may be those of other mounts (promise S17). The request looks like a program's own
//! `ftruncate`. But its thread is still in the call that writes, which `/proc` shows.
//!
//! Owns: which handles had a failed write, and how to tell the two kinds of truncates apart. Does not own: the bytes of
//! a failed write that stay in the file (`amphi_client`).
//!
//! Invariants: without a failed write no thread is looked at, and each failed call explains one truncate only.

use super::syscall::Syscall;
use crate::calls::Handle;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Most failed writes that are remembered. A thread with this many failures and no truncate needs none.
const FAILED_MAX: usize = 256;
/// System call numbers of `truncate`, `ftruncate` and their 64-bit forms on 32-bit x86. Where a number has another
/// meaning in one of the two tables of calls, that call writes no file.
const TRUNCATES: [i64; 6] = [libc::SYS_truncate, libc::SYS_ftruncate, 92, 93, 193, 194];

/// A write that failed.
struct Failed {
    handle: Handle,
    tid: u32,
    end: u64,
}

/// Failed writes of a mount.
#[derive(Default)]
pub struct Rollbacks {
    failed: Mutex<Vec<Failed>>,
    any: AtomicBool,
}

impl Rollbacks {
    /// Notes that a write of thread `tid` with O_DIRECT, which would have ended at `end`, has failed.
    pub fn failed(&self, handle: Handle, tid: u32, end: u64) {
        let mut failed = self.failed.lock();
        match failed.iter_mut().find(|f| (f.handle, f.tid) == (handle, tid)) {
            // This is a further piece of the same call.
            Some(piece) => piece.end = piece.end.max(end),
            None => {
                if failed.len() == FAILED_MAX {
                    failed.remove(0);
                }
                failed.push(Failed { handle, tid, end });
                assert!(failed.len() <= FAILED_MAX, "{} failed writes are noted", failed.len());
            }
        }
        self.any.store(true, SeqCst);
    }

    /// Returns whether a truncate to `size` was sent by the kernel after a failed write of this thread.
    pub fn is_rollback(&self, handle: Handle, tid: u32, size: u64) -> bool {
        if !self.any.load(SeqCst) {
            return false;
        }
        let Some(failed) = self.take(|f| (f.handle, f.tid) == (handle, tid)) else { return false };
        failed.end > size && !is_truncating(tid)
    }

    /// Called when the handle is closed.
    pub fn closed(&self, handle: Handle) {
        if self.any.load(SeqCst) {
            let mut failed = self.failed.lock();
            failed.retain(|f| f.handle != handle);
            self.any.store(!failed.is_empty(), SeqCst);
        }
    }

    fn take(&self, which: impl Fn(&Failed) -> bool) -> Option<Failed> {
        let mut failed = self.failed.lock();
        let at = failed.iter().position(which);
        let taken = at.map(|at| failed.swap_remove(at));
        self.any.store(!failed.is_empty(), SeqCst);
        taken
    }
}

/// Returns whether the thread is in a truncating call of its program. If that cannot be seen, the answer is no, to
/// protect the bytes that other mounts have written. So only writes with O_DIRECT may be noted: after any other write
/// the truncate is the program's own.
fn is_truncating(tid: u32) -> bool {
    Syscall::of(tid).is_some_and(|call| TRUNCATES.contains(&call.number))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: after a failed call one truncate is ignored, by the same thread and handle, to a size before its end.
    /// Method: this thread, which truncates nothing.
    #[test]
    fn a_failed_write_excuses_one_truncate() {
        let (r, own) = (Rollbacks::default(), std::process::id());
        let (one, two) = (Handle(1), Handle(2));
        assert!(!r.is_rollback(one, own, 0));
        r.failed(one, own, 100);
        r.failed(one, own, 50);
        assert!(!r.is_rollback(two, own, 10) && !r.is_rollback(one, own + 1, 10));
        assert!(r.is_rollback(one, own, 99) && !r.is_rollback(one, own, 10));
        r.failed(one, own, 100);
        assert!(!r.is_rollback(one, own, 100), "the file is as long as it would have been");
        r.failed(one, own, 100);
        r.closed(one);
        assert!(!r.is_rollback(one, own, 10) && !r.any.load(SeqCst));
        (0..1000).for_each(|i| r.failed(Handle(i), own, 1));
        assert_eq!(r.failed.lock().len(), FAILED_MAX);
    }
}
