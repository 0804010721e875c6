//! Open directories: which program opened each of them, and where its listing has ended.
//!
//! A directory is listed with the rights of the open, as a file is read. This holds even if the program has given up
//! its rights since, if it got the open directory from another program, or if the directory's permissions have changed.
//! The kernel checks permissions at the open, and the mount vouches for that to the server.
//!
//! After the last entry the kernel requests further ones, which costs one request for each listing of a small
//! directory. The previous answer has said that the listing is complete, so the mount answers this request itself.
//!
//! A program that lists a directory mostly looks at the entries that it finds: `ls -l`, `find`, `du`, `cp -r`, `rm -r`.
//! An entry that is listed with attributes costs it no further message. The mount may choose whether an entry has
//! attributes. In sole mode all entries have them, but an open directory gets at most `SHOWN_MAX` of which the program
//! has used none, because the kernel keeps an inode for each. In shared mode attributes cost tokens. So entries have
//! them in the first answer, and in a further answer only if the program has used names of the directory since the
//! previous one.
//!
//! Owns: numbers of open directories, their openers, whether the kernel caches what it reads through them, which
//! answers have attributes, and where each listing has ended. Does not own: what a listing contains
//! (`client_fs/directories`).
//!
//! Invariant: an end is used once. If a program lists again from there, the server is asked. A name that was made after
//! the directory was opened need not be listed (POSIX, `readdir`).

use crate::calls::Handle;
use amphi_types::{Cred, Errno, Ino, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Most entries with attributes of an open directory of which the program uses none. `rm -r` reads 100,000 entries
/// before it removes the first one.
const SHOWN_MAX: usize = 131_072;
/// Counters of uses, each for all directories whose numbers leave the same rest.
const USES: usize = 256;

/// How often names of directories were looked up or removed.
struct Uses([AtomicU32; USES]);

impl Default for Uses {
    fn default() -> Self {
        Uses(std::array::from_fn(|_| AtomicU32::new(0)))
    }
}

impl Uses {
    fn of(&self, dir: Ino) -> &AtomicU32 {
        &self.0[(dir.0 ^ dir.0 >> 48) as usize % USES]
    }
}

#[derive(Default)]
pub(crate) struct Listings {
    next: AtomicU64,
    uses: Uses,
    /// Open directories by handle.
    openers: Mutex<BTreeMap<u64, Opened>>,
    /// Cookie behind the last entry, by handle.
    ends: Mutex<BTreeMap<u64, u64>>,
}

struct Opened {
    opener: Cred,
    /// The kernel caches the entries that it reads through this open directory.
    marked: bool,
    /// Entries with attributes since the program last used a name.
    shown: usize,
    /// Uses when the last answer was made.
    uses: u32,
}

impl Listings {
    pub(crate) fn open(&self, opener: Cred, marked: bool) -> Handle {
        let handle = self.next.fetch_add(1, Relaxed);
        let opened = Opened { opener, marked, shown: 0, uses: 0 };
        let before = self.openers.lock().insert(handle, opened);
        assert!(before.is_none(), "two open directories have the number {handle}");
        Handle(handle)
    }

    /// Returns whether the kernel caches the entries that it reads through `handle`.
    pub(crate) fn is_marked(&self, handle: Handle) -> bool {
        self.openers.lock().get(&handle.0).is_some_and(|opened| opened.marked)
    }

    /// Credentials of the opener; `BadFd` if the handle is not open.
    pub(crate) fn opener(&self, handle: Handle) -> Result<Cred> {
        self.openers.lock().get(&handle.0).map(|opened| opened.opener.clone()).ok_or(Errno::BadFd)
    }

    /// A name of a directory is looked up or removed.
    pub(crate) fn uses(&self, dir: Ino) {
        self.uses.of(dir).fetch_add(1, Relaxed);
    }

    /// Returns whether the entries of the next answer get attributes.
    pub(crate) fn wants_attributes(&self, handle: Handle, dir: Ino, offset: u64, is_alone: bool) -> bool {
        let uses = self.uses.of(dir).load(Relaxed);
        let mut openers = self.openers.lock();
        let Some(opened) = openers.get_mut(&handle.0) else { return false };
        let begins_or_used = offset == 0 || opened.uses != uses;
        opened.uses = uses;
        if begins_or_used {
            opened.shown = 0;
        }
        begins_or_used || is_alone && opened.shown < SHOWN_MAX
    }

    /// An answer has this many entries with attributes.
    pub(crate) fn shows(&self, handle: Handle, entries: usize) {
        if let Some(opened) = self.openers.lock().get_mut(&handle.0) {
            opened.shown += entries;
        }
    }

    /// `handle` is listed from the start (again), so an earlier end is forgotten.
    pub(crate) fn begins(&self, handle: Handle) {
        self.ends.lock().remove(&handle.0);
    }

    /// Notes that the listing of `handle` has no entries behind `cookie`.
    pub(crate) fn ended(&self, handle: Handle, cookie: u64) {
        self.ends.lock().insert(handle.0, cookie);
    }

    /// Returns whether the listing of `handle` is known to end at `cookie`. The result is true only once.
    pub(crate) fn take_end(&self, handle: Handle, cookie: u64) -> bool {
        let mut ends = self.ends.lock();
        let is_end = ends.get(&handle.0) == Some(&cookie);
        if is_end {
            ends.remove(&handle.0);
        }
        is_end
    }

    /// Closes a directory. Returns whether the kernel cached the listing that it read through this descriptor.
    pub(crate) fn close(&self, handle: Handle) -> bool {
        self.ends.lock().remove(&handle.0);
        self.openers.lock().remove(&handle.0).is_some_and(|opened| opened.marked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: entries have attributes as long as a program may use them: in sole mode up to a bound; beyond the bound,
    /// and in shared mode, in the first answer and in each answer before which names were used. Method: a sequence of
    /// listings and uses of names that the test chooses.
    #[test]
    fn entries_that_are_used_have_attributes() {
        let listings = Listings::default();
        let (dir, other) = (Ino(7), Ino(8));
        let a = listings.open(Cred::root(), false);
        for is_alone in [true, false] {
            let wants = |offset| listings.wants_attributes(a, dir, offset, is_alone);
            assert!(wants(0), "the first answer");
            listings.shows(a, SHOWN_MAX - 1);
            assert_eq!(wants(9), is_alone);
            listings.shows(a, 1);
            listings.uses(other);
            assert!(!wants(9), "too many, and nobody has used one");
            listings.uses(dir);
            assert!(wants(9));
            assert_eq!(wants(9), is_alone, "counted from the use on");
        }
        listings.close(a);
        assert!(!listings.wants_attributes(a, dir, 0, true));
    }

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
