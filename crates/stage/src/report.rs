//! The results of a stage, for people and for the manifest.
//!
//! Owns the counters that are read while it runs, the bounded lists of failed entries and of attributes not kept, and
//! the manifest that is made of them at the end.

use crate::error::show;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Notes of one kind that are named; the others are counted.
pub const NAMED_MAX: usize = 20;

/// Locks, also after a panic of another thread: the state of this crate is changed in single steps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An entry of a tree that failed, or that was not preserved completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The path below the source, beginning with the source's own name.
    pub path: String,
    /// The subject and the reason.
    pub reason: String,
}

/// Notes of one kind: all are counted, the first are named.
#[derive(Debug, Default)]
pub struct Notes {
    count: AtomicU64,
    first: Mutex<Vec<Note>>,
}

impl Notes {
    /// Adds one note.
    pub(crate) fn add(&self, path: &Path, reason: impl Into<String>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut first = lock(&self.first);
        if first.len() < NAMED_MAX {
            first.push(Note { path: show(path), reason: reason.into() });
        }
    }

    /// Number of notes.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The first of them.
    pub fn first(&self) -> Vec<Note> {
        lock(&self.first).clone()
    }
}

/// The present work of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// The source is listed.
    Listing,
    /// Files are copied.
    Copying,
    /// The target is read back.
    Verifying,
    /// Owners, modes, attributes and times, then the rename.
    Finishing,
}

const PHASES: [Phase; 4] = [Phase::Listing, Phase::Copying, Phase::Verifying, Phase::Finishing];

/// A number that threads add to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Takes away what was added too early.
    pub(crate) fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters that another thread may read while a stage runs.
#[derive(Debug, Default)]
pub struct Progress {
    phase: AtomicU8,
    /// Entries found in the source.
    pub entries: Counter,
    /// Regular files of the source; a file with several hard links counts once.
    pub files: Counter,
    /// Sum of the sizes of these files.
    pub bytes: Counter,
    /// Files that this run copied.
    pub copied_files: Counter,
    /// Bytes that this run wrote.
    pub copied_bytes: Counter,
    /// Files that need no copy: whole since an earlier run, or unchanged (`Existing::Update`).
    pub skipped_files: Counter,
    /// Bytes of the source that need no copy: holes, durable since an earlier run, or unchanged.
    pub skipped_bytes: Counter,
    /// Bytes of the source whose copies were compared, those of earlier runs included.
    pub verified_bytes: Counter,
    /// Bytes of the source whose copies need no comparison: unchanged files.
    pub trusted_bytes: Counter,
    /// Entries of the target that were removed because the source does not have them.
    pub deleted: Counter,
    /// Entries that could not be read, or changed under the copy.
    pub failed: Notes,
    /// Attributes that could not be kept.
    pub not_kept: Notes,
    /// Remarks for people that need no action.
    pub remarks: Notes,
}

impl Progress {
    /// The present phase.
    pub fn phase(&self) -> Phase {
        PHASES[usize::from(self.phase.load(Ordering::Relaxed)).min(PHASES.len() - 1)]
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }
}

/// Whether the target is complete, and what kinds of entries it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The target has everything, and every byte that was copied was compared (unless that was not wanted).
    pub complete: bool,
    /// An earlier run had finished all but the removal of its own temporary names.
    pub already: bool,
    /// Directories of the source.
    pub directories: u64,
    /// Symbolic links of the source.
    pub symlinks: u64,
    /// Further names of files that have several.
    pub hard_links: u64,
    /// Pipes, devices and sockets of the source.
    pub specials: u64,
    /// The target's bytes were compared.
    pub verified: bool,
}
