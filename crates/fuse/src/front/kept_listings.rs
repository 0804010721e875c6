//! `KeptListings`: listings of directories that the kernel caches.
//!
//! The kernel caches the entries that it reads through an open directory that is marked with `FOPEN_CACHE_DIR`. The
//! kernel uses them at a later open that is also marked with `FOPEN_KEEP_CACHE`. A cached listing costs neither a
//! request to the mount nor a message to the server.
//!
//! Owns: for which directories the kernel may have a listing, and which state of the directory that listing shows. Does
//! not own: whether attributes are up to date (the client knows this, by tokens, or in sole mode by its own changes),
//! pages of files (`pages`).
//!
//! Invariants: every change of a name gives the directory a time of change that it never had before. So a listing that
//! was read through open directories with the same time of change shows the directory as it was at that time or later.
//! The listing is up to date as long as the directory still has that time of change. Therefore only open directories
//! with the same time of change are marked at the same time. A directory that is opened after a change is not marked
//! until the last of the others is closed. Then the kernel drops its listing.
//!
//! When a program starts again in a directory that it keeps open (`rewinddir`), the kernel requests the attributes and
//! compares the time of modification. In shared mode that is not sufficient, for three reasons. A program may have set
//! the time back. Linux drops an answer that another one has crossed, and continues with the older time. And names that
//! were read before a change may arrive after an answer that shows the time of the change. The kernel then caches them
//! under that time. So attributes that show a change are answered only when the kernel has taken the earlier answers
//! with names and has dropped the pages of the listing (`client_fs/directories`). These waits are bounded, because a
//! thread that holds a page of a listing may itself wait for a page of a file. These waits are bounded, because a
//! thread that holds a page of a listing may itself wait for a page of a file.
//!
//! A listing without attributes is not used again, because each lookup that follows it would cost a message. The same
//! is true of a listing that is older than the tokens that were granted with it.
//!
//! Bound: `DIRECTORIES_MAX` directories, some 250 bytes each.

use crate::clock::monotonic_ns;
use amphi_types::{Attr, Ino};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Most directories that are recorded.
const DIRECTORIES_MAX: usize = 16_384;
/// Most answers with names of one directory that are recorded. If there are more, the oldest are forgotten.
const ANSWERS_MAX: usize = 64;
/// After this time since an answer was given, the kernel has certainly taken it, in nanoseconds.
const TAKEN_NS: u64 = 10_000_000;
/// How long attributes wait for answers with names, at most.
const NAMES_WAIT: Duration = Duration::from_millis(100);
/// Pause between two checks of these answers.
const LOOK: Duration = Duration::from_micros(50);

struct Directory {
    /// Attributes that the kernel was shown last.
    shown: Attr,
    /// The state of the directory that the kernel's listing shows.
    kept: Option<Kept>,
    /// Number of open directories that are marked.
    open: usize,
    /// Number of opens under way that may become marked.
    opening: usize,
    /// Answers with names that the kernel caches, in the order of their questions.
    answers: VecDeque<Answer>,
}

/// An answer with names.
struct Answer {
    number: u64,
    tid: u32,
    /// When the answer was given. `None`: it is being composed.
    given_ns: Option<u64>,
}

impl Directory {
    fn is_open(&self) -> bool {
        self.open + self.opening > 0
    }
}

struct Kept {
    attr: Attr,
    until_ns: u64,
    /// A part of the listing was read without attributes.
    plain: bool,
}

/// Whether an open directory is marked for caching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The kernel caches nothing that it reads through this open directory.
    No,
    /// The kernel drops its cached listing, and caches the entries that it reads through this open directory.
    Anew,
    /// The kernel uses its cached listing.
    Keep,
}

#[derive(Default)]
pub(crate) struct KeptListings {
    directories: Mutex<BTreeMap<Ino, Directory>>,
    /// Number of the last question for names.
    asked: AtomicU64,
}

/// An answer with names that is being composed. When this is dropped, the answer is about to be given.
pub(crate) struct Asking<'a> {
    listings: &'a KeptListings,
    ino: Ino,
    number: u64,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut directories = self.listings.directories.lock();
        let answers = directories.get_mut(&self.ino).map(|directory| &mut directory.answers);
        if let Some(answer) = answers.and_then(|all| all.iter_mut().find(|answer| answer.number == self.number)) {
            answer.given_ns = Some(monotonic_ns());
        }
    }
}

impl KeptListings {
    /// Notes that the kernel is shown the attributes of a directory.
    pub(crate) fn shown(&self, attr: &Attr) {
        let mut directories = self.directories.lock();
        if let Some(directory) = directories.get_mut(&attr.ino) {
            directory.shown = *attr;
            return;
        }
        if directories.len() >= DIRECTORIES_MAX {
            directories.retain(|_, directory| directory.is_open());
            if directories.len() >= DIRECTORIES_MAX {
                return;
            }
        }
        let directory = Directory { shown: *attr, kept: None, open: 0, opening: 0, answers: VecDeque::new() };
        let before = directories.insert(attr.ino, directory);
        assert!(before.is_none(), "{}: a directory is recorded twice", attr.ino);
        assert!(directories.len() <= DIRECTORIES_MAX, "{} directories are recorded", directories.len());
    }

    /// Opens a directory, and returns how it is marked. `life` says for how long the given attributes are certainly up
    /// to date. It is zero if they are not valid.
    pub(crate) fn opens(&self, ino: Ino, now_ns: u64, life: impl FnOnce(&Attr) -> Duration) -> Mark {
        let shown = {
            let mut directories = self.directories.lock();
            let Some(directory) = directories.get_mut(&ino) else { return Mark::No };
            // From here on, an invalidation of the attributes finds the directory open.
            directory.opening += 1;
            directory.shown
        };
        let life = life(&shown);
        let mut directories = self.directories.lock();
        let Some(directory) = directories.get_mut(&ino) else { return Mark::No };
        assert!(directory.opening > 0, "{ino}: an open ends that was not under way");
        directory.opening -= 1;
        if life.is_zero() {
            return Mark::No;
        }
        let is_of_now = |kept: &Kept| kept.attr == shown && !kept.plain && now_ns < kept.until_ns;
        let mark = match &directory.kept {
            Some(kept) if is_of_now(kept) => Mark::Keep,
            _ if directory.open > 0 => return Mark::No,
            _ => Mark::Anew,
        };
        if mark == Mark::Anew {
            let until_ns = now_ns.saturating_add(life.as_nanos() as u64);
            directory.kept = Some(Kept { attr: shown, until_ns, plain: false });
        }
        directory.open += 1;
        mark
    }

    /// Begins an answer with names, for a marked open directory.
    pub(crate) fn asks(&self, ino: Ino, tid: u32) -> Asking<'_> {
        let number = self.asked.fetch_add(1, SeqCst);
        if let Some(directory) = self.directories.lock().get_mut(&ino) {
            // A thread that asks again has taken its earlier answers.
            directory.answers.retain(|answer| answer.given_ns.is_none() || answer.tid != tid);
            if directory.answers.len() >= ANSWERS_MAX {
                directory.answers.pop_front();
            }
            directory.answers.push_back(Answer { number, tid, given_ns: None });
            assert!(directory.answers.len() <= ANSWERS_MAX, "{ino}: {} answers with names", directory.answers.len());
        }
        Asking { listings: self, ino, number }
    }

    /// Returns whether the kernel may have names of a directory that are older than these attributes.
    pub(crate) fn shows_change(&self, attr: &Attr) -> bool {
        let directories = self.directories.lock();
        directories.get(&attr.ino).is_some_and(|directory| directory.is_open() && directory.shown.ctime != attr.ctime)
    }

    /// Waits until the kernel has taken all answers with names whose requests arrived before now. Answers to thread
    /// `tid` count as taken.
    pub(crate) fn names_arrive(&self, ino: Ino, tid: u32) {
        let (before, end_ns) = (self.asked.load(SeqCst), monotonic_ns() + NAMES_WAIT.as_nanos() as u64);
        while self.are_names_coming(ino, before, tid, monotonic_ns()) && monotonic_ns() < end_ns {
            std::thread::park_timeout(LOOK);
        }
    }

    fn are_names_coming(&self, ino: Ino, before: u64, tid: u32, now_ns: u64) -> bool {
        let is_coming = |answer: &Answer| {
            let is_taken = |given_ns: u64| answer.tid == tid || given_ns + TAKEN_NS <= now_ns;
            answer.number < before && !answer.given_ns.is_some_and(is_taken)
        };
        self.directories.lock().get(&ino).is_some_and(|directory| directory.answers.iter().any(is_coming))
    }

    /// Notes that entries without attributes are read through a marked open directory.
    pub(crate) fn reads_plain(&self, ino: Ino) {
        if let Some(kept) = self.directories.lock().get_mut(&ino).and_then(|directory| directory.kept.as_mut()) {
            kept.plain = true;
        }
    }

    /// Closes a marked open directory.
    pub(crate) fn closes(&self, ino: Ino) {
        if let Some(directory) = self.directories.lock().get_mut(&ino) {
            directory.open -= 1;
            if !directory.is_open() {
                // The memory is freed; the next open may never come.
                directory.answers = VecDeque::new();
            }
        }
    }

    /// Directories that have marked open descriptors.
    pub(crate) fn open(&self) -> Vec<Ino> {
        self.directories.lock().iter().filter(|(_, directory)| directory.is_open()).map(|(ino, _)| *ino).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_types::{Kind, Timespec};

    const LIFE: Duration = Duration::from_secs(10);

    fn directory(ctime: i64) -> Attr {
        let time = |sec| Timespec { sec, nsec: 0 };
        let (ino, kind, perm, nlink, uid, gid, rdev, size, blocks) = (Ino(5), Kind::Dir, 0o755, 2, 0, 0, 0, 0, 0);
        let (atime, mtime, btime, ctime) = (time(1), time(1), time(1), time(ctime));
        Attr { ino, kind, perm, nlink, uid, gid, rdev, size, blocks, atime, mtime, ctime, btime }
    }

    /// Goal: a listing is kept only for the state in which it was read, for as long as its tokens live. Directories
    /// that are open at the same time are of the same state. Method: single opens and closes, with changes in between.
    #[test]
    fn listings_are_of_one_state() {
        let (kept, ino) = (KeptListings::default(), Ino(5));
        let sure = |_: &Attr| LIFE;
        assert_eq!(kept.opens(ino, 0, sure), Mark::No, "not known");
        kept.shown(&directory(1));
        assert_eq!(kept.opens(ino, 0, |_| Duration::ZERO), Mark::No, "not sure");
        assert_eq!(kept.opens(ino, 0, sure), Mark::Anew);
        assert_eq!(kept.opens(ino, 1, sure), Mark::Keep, "beside the first");
        kept.shown(&directory(2));
        assert_eq!(kept.opens(ino, 2, sure), Mark::No, "changed, and the others may bring what was before");
        assert_eq!(kept.open(), vec![ino]);
        kept.closes(ino);
        assert_eq!(kept.opens(ino, 3, sure), Mark::No);
        kept.closes(ino);
        assert!(kept.open().is_empty());
        assert_eq!(kept.opens(ino, 4, sure), Mark::Anew);
        kept.closes(ino);
        assert_eq!(kept.opens(ino, 5, sure), Mark::Keep);
        kept.closes(ino);
        let late_ns = 4 + LIFE.as_nanos() as u64;
        assert_eq!(kept.opens(ino, late_ns, sure), Mark::Anew, "its tokens have ended");
        kept.reads_plain(ino);
        assert_eq!(kept.opens(ino, late_ns, sure), Mark::No);
        kept.closes(ino);
        assert_eq!(kept.opens(ino, late_ns, sure), Mark::Anew, "there were no attributes with it");
    }

    /// Goal: the table is bounded, and open directories stay in it. Method: more directories than the table has space
    /// for.
    #[test]
    fn directories_known_are_bounded() {
        let kept = KeptListings::default();
        kept.shown(&directory(1));
        assert_eq!(kept.opens(Ino(5), 0, |_| LIFE), Mark::Anew);
        for n in 0..2 * DIRECTORIES_MAX as u64 {
            kept.shown(&Attr { ino: Ino(100 + n), ..directory(1) });
        }
        assert!(kept.directories.lock().len() <= DIRECTORIES_MAX && kept.open() == vec![Ino(5)]);
    }

    /// Goal: attributes that show a change wait for entries that were requested before, and for no others. Method:
    /// single requests of two threads.
    #[test]
    fn attributes_wait_for_names_of_before() {
        let (kept, ino) = (KeptListings::default(), Ino(5));
        kept.shown(&directory(1));
        assert!(!kept.shows_change(&directory(2)), "nobody has it open");
        assert_eq!(kept.opens(ino, 0, |_| LIFE), Mark::Anew);
        assert!(kept.shows_change(&directory(2)) && !kept.shows_change(&directory(1)));
        let comes = |before, tid, now_ns| kept.are_names_coming(ino, before, tid, now_ns);
        let asking = kept.asks(ino, 7);
        let late_ns = monotonic_ns() + 60_000_000_000;
        assert!(comes(1, 8, late_ns) && comes(1, 7, late_ns), "under way");
        assert!(!comes(0, 8, late_ns), "asked for behind");
        drop(asking);
        let now_ns = monotonic_ns();
        assert!(comes(1, 8, now_ns) && !comes(1, 7, now_ns) && !comes(1, 8, late_ns));
        drop(kept.asks(ino, 7));
        assert!(!comes(1, 8, now_ns), "its thread has asked again");
        (0..2 * ANSWERS_MAX).for_each(|tid| drop(kept.asks(ino, tid as u32)));
        assert!(kept.directories.lock()[&ino].answers.len() <= ANSWERS_MAX);
        kept.closes(ino);
        assert!(kept.directories.lock()[&ino].answers.is_empty() && !comes(u64::MAX, 8, now_ns));
    }
}
