//! `KeptOpens`: opens for reading that nobody uses, kept for the next program that opens the file.
//!
//! Owns: who has opened files for reading, the questions under way that do, and the opens that are kept. Does not own:
//! who may take them over (`prefetch::small_files::kept`, which says what holds for all of it), what changes and
//! revocations take away (`coherence::opened_ahead`).

use super::small_files::Opened;
use amphi_types::{Cred, Ino};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Opens that are kept, and files of which it is known who opened them.
pub(crate) const KEPT_MAX: usize = 16_384;

/// For whom the server opened a file, under which rule of caching.
#[derive(Clone)]
pub(crate) struct Opener {
    pub(crate) cred: Arc<Cred>,
    pub(crate) rule: u64,
}

/// An open that nobody uses.
pub(crate) struct Kept {
    pub(crate) opened: Opened,
    pub(crate) opener: Opener,
    pub(crate) until_ns: u64,
}

/// Questions under way that open one file.
#[derive(Default)]
struct Asking {
    questions: usize,
    /// The inode has been changed since the first of them.
    spoiled: bool,
}

#[derive(Default)]
pub(crate) struct KeptOpens {
    asking: BTreeMap<Ino, Asking>,
    /// Of files that are open.
    openers: BTreeMap<Ino, Opener>,
    kept: BTreeMap<Ino, Kept>,
}

impl KeptOpens {
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    /// A question that opens a file is about to be sent.
    pub(crate) fn begin(&mut self, ino: Ino) {
        self.asking.entry(ino).or_default().questions += 1;
    }

    /// It has been answered; whether the inode stayed as it was meanwhile.
    pub(crate) fn end(&mut self, ino: Ino) -> bool {
        let Some(asking) = self.asking.get_mut(&ino) else { return false };
        let spoiled = asking.spoiled;
        asking.questions -= 1;
        if asking.questions == 0 {
            self.asking.remove(&ino);
        }
        !spoiled
    }

    /// The file has been opened for somebody, and nothing has changed since.
    pub(crate) fn note(&mut self, ino: Ino, opener: Opener) {
        if self.openers.len() < KEPT_MAX || self.openers.contains_key(&ino) {
            self.openers.insert(ino, opener);
        }
    }

    /// The file is closed: for whom it was opened, if nothing has changed since.
    pub(crate) fn closes(&mut self, ino: Ino) -> Option<Opener> {
        self.openers.remove(&ino)
    }

    /// Whether there is room for an open of this file: one is kept of each.
    pub(crate) fn has_room(&self, ino: Ino) -> bool {
        self.kept.len() < KEPT_MAX && !self.kept.contains_key(&ino)
    }

    /// Keeps an open, for which there is room.
    pub(crate) fn keep(&mut self, ino: Ino, kept: Kept) {
        let before = self.kept.insert(ino, kept);
        debug_assert!(before.is_none(), "one open of a file is kept");
    }

    /// The open that is kept of a file.
    pub(crate) fn get(&self, ino: Ino) -> Option<&Kept> {
        self.kept.get(&ino)
    }

    /// Somebody takes it over.
    pub(crate) fn take(&mut self, ino: Ino) -> Option<Kept> {
        self.kept.remove(&ino)
    }

    /// The inode is changed: nothing that was opened before counts. What is to be closed, outside the lock.
    pub(crate) fn spoil(&mut self, ino: Ino) -> Option<Kept> {
        if let Some(asking) = self.asking.get_mut(&ino) {
            asking.spoiled = true;
        }
        self.openers.remove(&ino);
        self.kept.remove(&ino)
    }

    /// Nothing counts any more of the inodes that `of` names. What is to be closed.
    pub(crate) fn lose(&mut self, of: impl Fn(Ino) -> bool) -> Vec<Kept> {
        self.asking.iter_mut().filter(|(ino, _)| of(**ino)).for_each(|(_, asking)| asking.spoiled = true);
        self.openers.retain(|ino, _| !of(*ino));
        self.take_out(|ino, _| of(ino))
    }

    /// Takes out what `wanted` says, to be closed.
    pub(crate) fn take_out(&mut self, wanted: impl Fn(Ino, &Kept) -> bool) -> Vec<Kept> {
        let inodes: Vec<Ino> =
            self.kept.iter().filter(|(ino, kept)| wanted(**ino, kept)).map(|(ino, _)| *ino).collect();
        inodes.iter().filter_map(|ino| self.kept.remove(ino)).collect()
    }
}
