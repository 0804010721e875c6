//! `Rollbacks`: truncates that the kernel asks for behind a failed write.
//!
//! A write that goes past the page cache, ends behind the end of the file and fails is followed, in the same system
//! call, by a truncate to the size that this kernel knows (Linux, fs/fuse/file.c, `fuse_direct_IO`). With other mounts
//! that size may be an old one, and what lies behind it theirs (Promise S17). By its bits the request is a program's
//! own `ftruncate`; but its thread is still in the call that writes, which `/proc` shows.
//!
//! Owns: which handles had a write that failed, and telling the two apart. Does not own: what a failed write leaves
//! (`amphi_client`).
//!
//! Invariants: without a failed write nothing is looked at; each failed call excuses one truncate.

use super::syscall::Syscall;
use crate::calls::Handle;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Most failed writes remembered; who fails so often without a truncate needs none.
const FAILED_MAX: usize = 256;
/// `truncate`, `ftruncate` and their forms with 64 bits of 32-bit x86, by number; none of them is a call that writes on
/// another one.
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
    /// A write of thread `tid` that would have ended at `end` failed.
    pub fn failed(&self, handle: Handle, tid: u32, end: u64) {
        let mut failed = self.failed.lock();
        match failed.iter_mut().find(|f| (f.handle, f.tid) == (handle, tid)) {
            // Pieces of a call.
            Some(piece) => piece.end = piece.end.max(end),
            None => {
                if failed.len() == FAILED_MAX {
                    failed.remove(0);
                }
                failed.push(Failed { handle, tid, end });
            }
        }
        self.any.store(true, SeqCst);
    }

    /// Whether a truncate to `size` is the kernel's, behind a write of this thread that failed.
    pub fn is_rollback(&self, handle: Handle, tid: u32, size: u64) -> bool {
        if !self.any.load(SeqCst) {
            return false;
        }
        let Some(failed) = self.take(|f| (f.handle, f.tid) == (handle, tid)) else { return false };
        failed.end > size && !is_truncating(tid)
    }

    /// The handle is closed.
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

/// Whether the thread is in a call of its program that truncates. Where that cannot be seen it is not: what others have
/// written counts more.
fn is_truncating(tid: u32) -> bool {
    Syscall::of(tid).is_some_and(|call| TRUNCATES.contains(&call.number))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a failed call excuses one truncate, of its own thread and handle, to a size before its end. Method: this
    /// thread, which truncates nothing.
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
