//! `KeptListings`: listings that the kernel keeps.
//!
//! The kernel keeps what it reads through an open directory that is marked so (`FOPEN_CACHE_DIR`), and goes on using it
//! at the next open if that says so too (`FOPEN_KEEP_CACHE`). A listing that it has costs neither a request nor a
//! message to the server, which the mount's own answer to a listing does.
//!
//! Owns: of which directories the kernel may have a listing, and of which state of the directory. Does not own: whether
//! attributes are those of now (the client says it, by tokens, or while the mount is alone by what it has changed
//! itself), pages of files (`pages`).
//!
//! Invariants: every change of a name in a directory changes its time of change, to a value that it never had. So what
//! was read through open directories that were all opened at one time of change shows the directory as it was at that
//! time or later, and as it is now if that is still the time of change. Only such are marked at the same time: one that
//! is opened after a change is not, until the last of them is closed, and then the kernel drops what it has. To a
//! program that starts again in a directory that it keeps open (`rewinddir`) the kernel shows what is there now, since
//! it compares the time of modification. Whoever sets that time back could deceive it, so the pages of an open
//! directory are dropped behind a change as well, and when other mounts come. Nobody waits for that: a thread that
//! holds a page of a listing may wait for another page, of a file.
//!
//! A listing without attributes is not used again: the look-ups that follow would cost a message each. The same for one
//! that is older than the tokens that came with it. Bound: `DIRECTORIES_MAX` directories, some 250 bytes each.

use amphi_types::{Attr, Ino};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// Most directories that are known.
const DIRECTORIES_MAX: usize = 16_384;

struct Directory {
    /// As it was last shown to the kernel.
    shown: Attr,
    /// Of which state the kernel's listing is.
    kept: Option<Kept>,
    /// Marked open directories.
    open: usize,
    /// Those that may become such.
    opening: usize,
}

impl Directory {
    fn is_open(&self) -> bool {
        self.open + self.opening > 0
    }
}

struct Kept {
    attr: Attr,
    until_ns: u64,
    /// Some of it came without attributes.
    plain: bool,
}

/// How a directory is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The kernel keeps nothing of what it reads.
    No,
    /// It drops what it has, and keeps what it reads.
    Anew,
    /// It uses what it has.
    Keep,
}

#[derive(Default)]
pub(super) struct KeptListings {
    directories: Mutex<BTreeMap<Ino, Directory>>,
}

impl KeptListings {
    /// The kernel is shown the attributes of a directory.
    pub(super) fn shown(&self, attr: &Attr) {
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
        directories.insert(attr.ino, Directory { shown: *attr, kept: None, open: 0, opening: 0 });
    }

    /// A directory is opened. `life`: for how long these attributes are surely those of now, or nothing.
    pub(super) fn opens(&self, ino: Ino, now_ns: u64, life: impl FnOnce(&Attr) -> Duration) -> Mark {
        let shown = {
            let mut directories = self.directories.lock();
            let Some(directory) = directories.get_mut(&ino) else { return Mark::No };
            // From here on whoever takes the attributes back finds it open.
            directory.opening += 1;
            directory.shown
        };
        let life = life(&shown);
        let mut directories = self.directories.lock();
        let Some(directory) = directories.get_mut(&ino) else { return Mark::No };
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

    /// Entries without attributes are read through a marked open directory.
    pub(super) fn reads_plain(&self, ino: Ino) {
        if let Some(kept) = self.directories.lock().get_mut(&ino).and_then(|directory| directory.kept.as_mut()) {
            kept.plain = true;
        }
    }

    /// A marked open directory is closed.
    pub(super) fn closes(&self, ino: Ino) {
        if let Some(directory) = self.directories.lock().get_mut(&ino) {
            directory.open -= 1;
        }
    }

    /// Directories of which there are marked open ones.
    pub(super) fn open(&self) -> Vec<Ino> {
        self.directories.lock().iter().filter(|(_, directory)| directory.is_open()).map(|(ino, _)| *ino).collect()
    }

    /// Whether there are marked open directories of this one.
    pub(super) fn is_open(&self, ino: Ino) -> bool {
        self.directories.lock().get(&ino).is_some_and(Directory::is_open)
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

    /// Goal: a listing is kept only of the state that it was read in, for as long as its tokens live, and directories
    /// that are open at the same time are of one state. Method: opens and closes by hand, with changes in between.
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
        assert!(kept.is_open(ino));
        kept.closes(ino);
        assert_eq!(kept.opens(ino, 3, sure), Mark::No);
        kept.closes(ino);
        assert!(!kept.is_open(ino));
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

    /// Goal: what is known is bounded, and what is open stays known. Method: more directories than there is room for.
    #[test]
    fn directories_known_are_bounded() {
        let kept = KeptListings::default();
        kept.shown(&directory(1));
        assert_eq!(kept.opens(Ino(5), 0, |_| LIFE), Mark::Anew);
        for n in 0..2 * DIRECTORIES_MAX as u64 {
            kept.shown(&Attr { ino: Ino(100 + n), ..directory(1) });
        }
        assert!(kept.directories.lock().len() <= DIRECTORIES_MAX && kept.is_open(Ino(5)));
    }
}
