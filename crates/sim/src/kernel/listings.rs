//! Listings that the kernel keeps of directories.
//!
//! Owns: the cached entries of a directory, and when they are shown (Linux 6.18, `fuse_readdir_cached`); how a
//! directory is opened (`amphi-fuse`, `front/kept_listings.rs`, in a minimal form). Does not own: attributes, of which
//! the time of modification counts here; changes of names (`names`).
//!
//! The rules. When a program begins a listing, the kernel requests the attributes if their timeout is over. The cached
//! entries are shown if they were begun at the same time of modification, this kernel has changed no name since, and
//! its pages are there. Entries read through a marked open directory are cached. They are cached under the time of the
//! last program that found an empty cache, and the first answer is taken, whichever program requested it. The cache is
//! complete when a program has come to its end. Pages are dropped when attributes are invalidated, late and without a
//! waiting caller, and at an open that does not continue with the cached entries. The directory's lock makes listings
//! and changes of names by this kernel exclude each other, and a directory that this kernel has removed shows nothing.
//! As for files, the kernel drops an answer to a request from before the last change of the attributes' version; for
//! directories the mount does not repeat the request.

use super::{ARRIVED_NS, Kernel, LOOK, Mistake, lock};
use amphi_client::{Ctx, Listing};
use amphi_env::Env;
use amphi_types::{Attr, Errno, Ino, Kind, Result, Timespec};
use std::collections::BTreeSet;

/// Names in a directory.
pub type Names = BTreeSet<Vec<u8>>;

/// Most entries of the directories that are listed.
const ENTRIES_MAX: u32 = 1024;

/// The kernel's cached state of a directory.
#[derive(Default)]
pub(super) struct Listings {
    names: Names,
    /// The cookie behind the last cached name; 0 as long as no entry has arrived.
    end: u64,
    /// Whether a program has read the listing to its end.
    whole: bool,
    /// Whether the pages of the listing were dropped.
    dropped: bool,
    /// The directory's modification time, and the number of changes by this kernel, when the reading of the names
    /// began.
    mtime: Timespec,
    of: u64,
    /// Changes of names by this kernel.
    changes: u64,
    /// Whether this kernel has removed the directory.
    removed: bool,
}

impl Listings {
    fn reset(&mut self) {
        self.names.clear();
        (self.end, self.whole, self.dropped) = (0, false, false);
    }

    fn drop_pages(&mut self) {
        self.dropped = self.end > 0;
    }

    /// A program begins a listing: returns the entries that it is shown, or nothing if the directory has to be read.
    /// The second one: whether something was dropped.
    fn begin(&mut self, mtime: Timespec) -> (Option<Names>, bool) {
        let was_whole = self.whole;
        if was_whole {
            if self.mtime == mtime && self.of == self.changes && !self.dropped {
                return (Some(self.names.clone()), false);
            }
            self.reset();
        }
        if self.end == 0 {
            (self.mtime, self.of) = (mtime, self.changes);
        }
        (None, was_whole)
    }

    /// Names have come, up to the cookie `end`.
    fn add(&mut self, names: &Names, end: u64) {
        if self.end == 0 && !self.whole {
            (self.names, self.end) = (names.clone(), end);
        }
    }

    /// A program has got the answer that the directory ends at the cookie `end`.
    fn ends(&mut self, end: u64) {
        self.whole |= self.end == end;
    }

    /// This kernel has changed a name.
    pub(super) fn change(&mut self) {
        self.changes += 1;
    }

    pub(super) fn remove(&mut self) {
        self.removed = true;
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed
    }
}

/// How a directory is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    No,
    Anew,
    Keep,
}

/// The state by which the mount decides which open descriptors of a directory it marks.
#[derive(Default)]
pub(super) struct Marks {
    shown: Option<Attr>,
    /// The state of the kernel's listing, and its timeout.
    kept: Option<(Attr, u64)>,
    /// Marked open directories.
    open: u32,
    /// Answers with names that have not arrived, by number.
    answers: BTreeSet<u64>,
    /// The number of the last question.
    asked: u64,
}

impl Marks {
    pub(super) fn are_open(&self) -> bool {
        self.open > 0
    }
}

/// An open directory.
pub struct OpenDirectory {
    ino: Ino,
    /// Whether the kernel caches the entries that are read through this open directory.
    keeps: bool,
}

impl OpenDirectory {
    /// The directory.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Returns whether the kernel caches the entries that are read through this open directory.
    pub fn keeps(&self) -> bool {
        self.keeps
    }
}

impl Kernel {
    /// The kernel is shown the attributes of a directory.
    pub(super) fn shown(&self, attr: &Attr) {
        lock(&self.kept).marks.entry(attr.ino).or_default().shown = Some(*attr);
    }

    /// An answer shows a directory: the effect of a planted mistake on it.
    pub(super) fn confuse(&self, attr: &mut Attr) {
        if self.mistake == Some(Mistake::RemovedTimesStay)
            && attr.kind == Kind::Dir
            && attr.nlink == 0
            && let Some(shown) = lock(&self.kept).marks.get(&attr.ino).and_then(|marks| marks.shown)
        {
            (attr.mtime, attr.ctime) = (shown.mtime, shown.ctime);
        }
    }

    /// An answer is about to show a directory. Entries cached before a change are dropped.
    pub(super) async fn tells_directory(&self, attr: &Attr) {
        let ino = attr.ino;
        let marks = |act: &dyn Fn(&Marks) -> bool| lock(&self.kept).marks.get(&ino).is_some_and(act);
        let is_changed = |marks: &Marks| marks.are_open() && marks.shown.is_none_or(|shown| shown.ctime != attr.ctime);
        if attr.kind != Kind::Dir || self.client.is_alone() || !marks(&is_changed) {
            return;
        }
        let before = lock(&self.kept).marks.get(&ino).map_or(0, |marks| marks.asked);
        let is_coming = |marks: &Marks| marks.answers.iter().any(|number| *number < before);
        let end_ns = self.now_ns() + ARRIVED_NS;
        while self.now_ns() < end_ns && marks(&is_coming) {
            self.env.sleep(LOOK).await;
        }
        self.late(self.late_us.0).await;
        if self.mistake != Some(Mistake::ListingsOfBefore) {
            self.drop_listing(ino);
        }
    }

    /// Asks for the names of a directory, which arrive late.
    async fn names(&self, ctx: &Ctx, ino: Ino) -> Result<Listing> {
        let number = {
            let kept = &mut *lock(&self.kept);
            let marks = kept.marks.entry(ino).or_default();
            marks.asked += 1;
            marks.answers.insert(marks.asked - 1);
            marks.asked - 1
        };
        let listing = self.client.readdir(ctx, ino, 0, ENTRIES_MAX, true).await;
        self.late(self.late_us.1).await;
        lock(&self.kept).marks.entry(ino).or_default().answers.remove(&number);
        listing
    }

    fn mark(&self, ino: Ino) -> Mark {
        let Some(shown) = lock(&self.kept).marks.get(&ino).and_then(|marks| marks.shown) else { return Mark::No };
        let life = self.client.lend_listing(&shown);
        if life.is_zero() {
            return Mark::No;
        }
        let now = self.now_ns();
        let kept = &mut *lock(&self.kept);
        let marks = kept.marks.entry(ino).or_default();
        let mark = match marks.kept {
            Some((attr, until_ns)) if attr == shown && now < until_ns => Mark::Keep,
            _ if marks.are_open() => return Mark::No,
            _ => Mark::Anew,
        };
        if mark == Mark::Anew {
            marks.kept = Some((shown, now + life.as_nanos() as u64));
        }
        marks.open += 1;
        mark
    }

    /// Opens a directory.
    ///
    /// Errors: those of `getattr`.
    pub async fn open_directory(&self, ctx: &Ctx, ino: Ino) -> Result<OpenDirectory> {
        self.hold(ctx, ino).await?;
        // The kernel checks the permissions.
        if let Err(e) = self.size(ctx, ino).await {
            self.release(ino);
            return Err(e);
        }
        self.late(self.late_us.1).await;
        let mark = self.mark(ino);
        self.late(self.late_us.1).await;
        match mark {
            Mark::Keep => self.count(|t| t.listings_opened += 1),
            Mark::No | Mark::Anew => lock(&self.kept).inodes.entry(ino).or_default().listings.drop_pages(),
        }
        Ok(OpenDirectory { ino, keeps: mark != Mark::No })
    }

    /// Closes an open directory.
    pub fn close_directory(&self, directory: &OpenDirectory) {
        if directory.keeps {
            lock(&self.kept).marks.entry(directory.ino).or_default().open -= 1;
        }
        self.release(directory.ino);
    }

    /// Drops the cached entries of an open directory, and its attributes.
    pub(super) fn drop_listing(&self, ino: Ino) {
        let kept = &mut *lock(&self.kept);
        kept.moment += 1;
        if let Some(inode) = kept.inodes.get_mut(&ino) {
            (inode.version, inode.taken_back, inode.until_ns) = (kept.moment, kept.moment, 0);
            inode.listings.drop_pages();
        }
    }

    /// Lists an open directory from the start.
    ///
    /// Errors: those of `getattr` and `readdir`; `NoEnt` if this kernel has removed it.
    pub async fn list(&self, ctx: &Ctx, directory: &OpenDirectory) -> Result<Names> {
        let ino = directory.ino;
        self.lock(ino, false).await;
        let listed = self.list_locked(ctx, directory).await;
        self.unlock(ino);
        let (names, end) = listed?;
        if let Some(end) = end {
            // The request behind the last entry, which the mount answers itself.
            self.late(self.late_us.1).await;
            self.lock(ino, false).await;
            lock(&self.kept).inodes.entry(ino).or_default().listings.ends(end);
            self.unlock(ino);
        }
        Ok(names)
    }

    /// Lists an open directory. Returns the cookie at the end of the listing if the entries may be cached.
    async fn list_locked(&self, ctx: &Ctx, directory: &OpenDirectory) -> Result<(Names, Option<u64>)> {
        let ino = directory.ino;
        if lock(&self.kept).inodes.entry(ino).or_default().listings.is_removed() {
            return Err(Errno::NoEnt);
        }
        if directory.keeps {
            self.size(ctx, ino).await?;
            let kept = &mut *lock(&self.kept);
            let inode = kept.inodes.entry(ino).or_default();
            let (names, dropped) = inode.listings.begin(inode.mtime);
            self.count(|t| t.listings_dropped += u64::from(dropped));
            if let Some(names) = names {
                self.count(|t| t.listings += 1);
                return Ok((names, None));
            }
            self.count(|t| t.listings_read += 1);
        }
        let listing = self.names(ctx, ino).await?;
        if !listing.end {
            return Err(Errno::Proto);
        }
        let end = listing.entries.last().map_or(0, |entry| entry.cookie);
        let dots = [&b"."[..], b".."];
        let names: Names = listing.entries.into_iter().map(|e| e.name).filter(|n| !dots.contains(&&n[..])).collect();
        if !directory.keeps {
            return Ok((names, None));
        }
        let kept = &mut *lock(&self.kept);
        let listings = &mut kept.inodes.entry(ino).or_default().listings;
        if end == 0 {
            listings.ends(end);
            return Ok((names, None));
        }
        listings.add(&names, end);
        Ok((names, Some(end)))
    }
}
