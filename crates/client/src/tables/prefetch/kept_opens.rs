//! `KeptOpens`: opens for reading that no program uses, kept for the next program that opens the file.
//!
//! Owns: who has opened files for reading, the requests under way that open files, and the opens that are kept. Does
//! not own: which callers may take an open over (`prefetch::small_files::kept`, whose head has the invariants of all of
//! it), what changes and revocations end (`coherence::opened_ahead`).

use super::small_files::Opened;
use amphi_types::{Cred, Ino};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most opens that are kept, and most files of which the opener is known.
pub(crate) const KEPT_MAX: usize = 16_384;

/// The credentials with which the server opened a file, and the caching mode.
#[derive(Clone)]
pub(crate) struct Opener {
    pub(crate) cred: Arc<Cred>,
    pub(crate) rule: u64,
}

/// An open that no program uses.
pub(crate) struct Kept {
    pub(crate) opened: Opened,
    pub(crate) opener: Opener,
    pub(crate) until_ns: u64,
}

/// Requests under way that open one file.
#[derive(Default)]
struct Asking {
    questions: usize,
    /// The inode has changed since the first of these requests was sent.
    spoiled: bool,
}

#[derive(Default)]
pub(crate) struct KeptOpens {
    asking: BTreeMap<Ino, Asking>,
    /// Openers of files that are open.
    openers: BTreeMap<Ino, Opener>,
    kept: BTreeMap<Ino, Kept>,
}

impl KeptOpens {
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Called when a request that opens a file is about to be sent.
    pub(crate) fn begin(&mut self, ino: Ino) {
        self.asking.entry(ino).or_default().questions += 1;
    }

    /// Called when a request that opens a file was answered. Returns whether the inode stayed unchanged meanwhile.
    pub(crate) fn end(&mut self, ino: Ino) -> bool {
        let Some(asking) = self.asking.get_mut(&ino) else { return false };
        assert!(asking.questions > 0, "{ino}: an open is answered that was not requested");
        let spoiled = asking.spoiled;
        asking.questions -= 1;
        if asking.questions == 0 {
            self.asking.remove(&ino);
        }
        !spoiled
    }

    /// Called when the file was opened for this opener, and nothing has changed since.
    pub(crate) fn note(&mut self, ino: Ino, opener: Opener) {
        if self.openers.len() < KEPT_MAX || self.openers.contains_key(&ino) {
            self.openers.insert(ino, opener);
        }
    }

    /// Called when the file is closed. Returns its opener if nothing has changed since the open.
    pub(crate) fn closes(&mut self, ino: Ino) -> Option<Opener> {
        self.openers.remove(&ino)
    }

    /// Returns whether an open of this file can be kept. At most one open is kept for each file.
    pub(crate) fn has_room(&self, ino: Ino) -> bool {
        self.kept.len() < KEPT_MAX && !self.kept.contains_key(&ino)
    }

    /// Keeps an open. There must be room for another one.
    pub(crate) fn keep(&mut self, ino: Ino, kept: Kept) {
        let before = self.kept.insert(ino, kept);
        assert!(before.is_none(), "{ino}: two opens are kept");
        assert!(self.kept.len() <= KEPT_MAX, "{} opens are kept, at most {KEPT_MAX}", self.kept.len());
    }

    /// The kept open of a file.
    pub(crate) fn get(&self, ino: Ino) -> Option<&Kept> {
        self.kept.get(&ino)
    }

    /// Removes the kept open, because a program takes it over.
    pub(crate) fn take(&mut self, ino: Ino) -> Option<Kept> {
        self.kept.remove(&ino)
    }

    /// Called when the inode is changed, so an earlier open of it is not used any more. Returns the kept open, to be
    /// closed outside the lock.
    pub(crate) fn spoil(&mut self, ino: Ino) -> Option<Kept> {
        if let Some(asking) = self.asking.get_mut(&ino) {
            asking.spoiled = true;
        }
        self.openers.remove(&ino);
        self.kept.remove(&ino)
    }

    /// Forgets all about the inodes that satisfy `of`. Returns the kept opens, to be closed.
    pub(crate) fn lose(&mut self, of: impl Fn(Ino) -> bool) -> Vec<Kept> {
        self.asking.iter_mut().filter(|(ino, _)| of(**ino)).for_each(|(_, asking)| asking.spoiled = true);
        self.openers.retain(|ino, _| !of(*ino));
        self.take_out(|ino, _| of(ino))
    }

    /// Removes the kept opens that satisfy `wanted`, to be closed.
    pub(crate) fn take_out(&mut self, wanted: impl Fn(Ino, &Kept) -> bool) -> Vec<Kept> {
        let inodes: Vec<Ino> =
            self.kept.iter().filter(|(ino, kept)| wanted(**ino, kept)).map(|(ino, _)| *ino).collect();
        inodes.iter().filter_map(|ino| self.kept.remove(ino)).collect()
    }
}
