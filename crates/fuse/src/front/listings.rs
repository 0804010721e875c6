//! Open directories: which program opened each of them, and where its listing has ended.
//!
//! A directory is listed with the rights of the open, as a file is read. This is so even if the program has given up
//! its rights since, if it got the open directory from another program, or if the directory's permissions have changed.
//! The kernel checks permissions at the open, and the mount vouches for that to the server.
//!
//! After the last entry the kernel requests further ones, which costs one request for each listing of a small
//! directory. The previous answer has said that the listing is complete, so the mount answers this request itself.
//!
//! Owns: numbers of open directories, their openers, whether the kernel caches what it reads through them, and where
//! each listing has ended. Does not own: what a listing contains (`client_fs/directories`).
//!
//! Invariant: an end is used once. If a program lists again from there, the server is asked. A name that was made after
//! the directory was opened need not be listed (POSIX, `readdir`).

use crate::calls::Handle;
use amphi_types::{Cred, Errno, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Default)]
pub(crate) struct Listings {
    next: AtomicU64,
    /// Open directories by handle.
    openers: Mutex<BTreeMap<u64, Opened>>,
    /// Cookie behind the last entry, by handle.
    ends: Mutex<BTreeMap<u64, u64>>,
}

struct Opened {
    opener: Cred,
    /// The kernel caches what it reads through this open directory.
    marked: bool,
}

impl Listings {
    pub(crate) fn open(&self, opener: Cred, marked: bool) -> Handle {
        let handle = self.next.fetch_add(1, Relaxed);
        self.openers.lock().insert(handle, Opened { opener, marked });
        Handle(handle)
    }

    /// Whether the kernel caches the entries that it reads through `handle`.
    pub(crate) fn is_marked(&self, handle: Handle) -> bool {
        self.openers.lock().get(&handle.0).is_some_and(|opened| opened.marked)
    }

    /// Credentials of the opener; `BadFd` if the handle is not open.
    pub(crate) fn opener(&self, handle: Handle) -> Result<Cred> {
        self.openers.lock().get(&handle.0).map(|opened| opened.opener.clone()).ok_or(Errno::BadFd)
    }

    /// Called when `handle` is listed from the start (again), so an earlier end is forgotten.
    pub(crate) fn begins(&self, handle: Handle) {
        self.ends.lock().remove(&handle.0);
    }

    /// Notes that the listing of `handle` has no entries behind `cookie`.
    pub(crate) fn ended(&self, handle: Handle, cookie: u64) {
        self.ends.lock().insert(handle.0, cookie);
    }

    /// Whether the listing of `handle` is known to end at `cookie`. True only once.
    pub(crate) fn take_end(&self, handle: Handle, cookie: u64) -> bool {
        let mut ends = self.ends.lock();
        let is_end = ends.get(&handle.0) == Some(&cookie);
        if is_end {
            ends.remove(&handle.0);
        }
        is_end
    }

    /// Closes a directory. Returns whether the kernel cached what it read through it.
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
