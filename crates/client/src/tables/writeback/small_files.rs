//! `SmallFiles`: files with few dirty bytes that no program is writing, waiting for others to share a request with.
//!
//! Owns: the list of each target, and its bound of one batch. Does not own: which files enter and when a list is sent
//! (`writeback::batch`).

use crate::inode::Inode;
use amphi_types::{Ino, TargetId};
use amphi_wire::{BATCH_BYTES_MAX, BATCH_PARTS_MAX};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Files, with the dirty bytes that each had when it was entered.
pub(crate) type Files = BTreeMap<Ino, (Arc<Inode>, u64)>;

/// The waiting small files of one target.
#[derive(Default)]
struct List {
    files: Files,
    bytes: u64,
}

/// The lists of all targets.
#[derive(Default)]
pub(crate) struct SmallFiles(Mutex<BTreeMap<TargetId, List>>);

impl SmallFiles {
    /// Enters a file with its dirty bytes. If they do not fit into one batch with the others, those are returned as a
    /// full batch, and the file begins a new list.
    pub(crate) fn add(&self, file: &Arc<Inode>, bytes: u64) -> Option<Files> {
        let mut lists = self.0.lock();
        let list = lists.entry(file.ino.target()).or_default();
        let before = list.files.remove(&file.ino).map_or(0, |(_, bytes)| bytes);
        assert!(before <= list.bytes, "{}: {before} bytes of a list of {} bytes", file.ino, list.bytes);
        list.bytes -= before;
        let is_full = list.bytes + bytes > BATCH_BYTES_MAX as u64 || list.files.len() >= BATCH_PARTS_MAX;
        let full = is_full.then(|| std::mem::take(list).files);
        list.files.insert(file.ino, (file.clone(), bytes));
        list.bytes += bytes;
        assert!(list.files.len() <= BATCH_PARTS_MAX, "{} files wait for one batch", list.files.len());
        full
    }

    pub(crate) fn take(&self, target: TargetId) -> Files {
        self.0.lock().remove(&target).unwrap_or_default().files
    }
}
