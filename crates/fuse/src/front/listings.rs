//! Open directories: who opened each, and where its listing has come to its end.
//!
//! A directory is listed by whoever has it open, as a file is read: also by a program that has given its rights up
//! since, or that was handed the open directory, and whatever becomes of its permissions. The kernel checks them when
//! it opens it; the mount vouches for that.
//!
//! The kernel asks behind the last entry whether there are more, for each listing of a small directory one question.
//! The answer to the question before has said so.
//!
//! Owns: the numbers of open directories, their openers, whether the kernel keeps what it reads through them, where the
//! listing of each has ended. Invariant: an end counts once: who goes on asking there asks the server. What is made
//! after the directory was opened need not be listed (POSIX, `readdir`).

use crate::calls::Handle;
use amphi_types::{Cred, Errno, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Default)]
pub(crate) struct Listings {
    next: AtomicU64,
    /// By handle.
    openers: Mutex<BTreeMap<u64, Opened>>,
    /// Cookie behind the last entry, by handle.
    ends: Mutex<BTreeMap<u64, u64>>,
}

struct Opened {
    opener: Cred,
    /// The kernel keeps what it reads.
    marked: bool,
}

impl Listings {
    pub(crate) fn open(&self, opener: Cred, marked: bool) -> Handle {
        let handle = self.next.fetch_add(1, Relaxed);
        self.openers.lock().insert(handle, Opened { opener, marked });
        Handle(handle)
    }

    /// Whether the kernel keeps what it reads through it.
    pub(crate) fn is_marked(&self, handle: Handle) -> bool {
        self.openers.lock().get(&handle.0).is_some_and(|opened| opened.marked)
    }

    /// Who opened it; `BadFd` if it is not open.
    pub(crate) fn opener(&self, handle: Handle) -> Result<Cred> {
        self.openers.lock().get(&handle.0).map(|opened| opened.opener.clone()).ok_or(Errno::BadFd)
    }

    /// `handle` is listed from the start (again): what was told before is out of date.
    pub(crate) fn begins(&self, handle: Handle) {
        self.ends.lock().remove(&handle.0);
    }

    /// The listing of `handle` was told that nothing comes behind `cookie`.
    pub(crate) fn ended(&self, handle: Handle, cookie: u64) {
        self.ends.lock().insert(handle.0, cookie);
    }

    /// Whether `handle`, going on behind `cookie`, need not ask; true once.
    pub(crate) fn take_end(&self, handle: Handle, cookie: u64) -> bool {
        let mut ends = self.ends.lock();
        let is_end = ends.get(&handle.0) == Some(&cookie);
        if is_end {
            ends.remove(&handle.0);
        }
        is_end
    }

    /// Whether the kernel kept what it read through it.
    pub(crate) fn close(&self, handle: Handle) -> bool {
        self.ends.lock().remove(&handle.0);
        self.openers.lock().remove(&handle.0).is_some_and(|opened| opened.marked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an end counts once, at its cookie, for its handle. Method: two handles.
    #[test]
    fn an_end_counts_once() {
        let listings = Listings::default();
        let (a, b) = (listings.open(Cred::root(), false), listings.open(Cred::root(), true));
        listings.ended(a, 7);
        assert!(!listings.take_end(b, 7) && !listings.take_end(a, 6));
        assert!(listings.take_end(a, 7) && !listings.take_end(a, 7));
        listings.ended(b, 7);
        listings.begins(b);
        assert!(!listings.take_end(b, 7), "of the listing before");
        listings.ended(b, 7);
        assert_eq!(listings.opener(b), Ok(Cred::root()));
        assert!(listings.is_marked(b) && listings.close(b) && !listings.close(b));
        assert!(
            !listings.is_marked(b)
                && !listings.take_end(b, 7)
                && listings.opener(b).is_err()
                && listings.opener(a).is_ok()
        );
    }
}
