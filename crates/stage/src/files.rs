//! The progress of the copy for each regular file of the source.
//!
//! Owns the verdict on a file and the pieces of it that are done, for all steps: copying, reading back, attributes.
//! Invariant: a file is `Whole` only if all of its pieces were written while the source had one identity.

use crate::entries::Identity;
use crate::journal::{KnownFile, Piece};
use crate::report::lock;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// The known state of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The file, or its missing part, has to be copied.
    Todo,
    /// The file is copied as it is in the source.
    Whole,
    /// The target had it already.
    Unchanged,
    /// The file changed while it was copied, or its copy differed from the written bytes when it was read back.
    Again(String),
    /// Named among the failures.
    Failed,
}

/// The state of a file.
#[derive(Debug)]
pub(crate) struct Progressing {
    pub(crate) verdict: Verdict,
    /// The source as it is copied.
    pub(crate) identity: Identity,
    /// The file's number in the journal; `None` if the target has no part of it.
    pub(crate) number: Option<u32>,
    /// Pieces that are written.
    pub(crate) pieces: BTreeMap<u64, Piece>,
    /// Pieces on which threads still work.
    pub(crate) left: u64,
    /// Bytes that count as verified.
    pub(crate) verified_bytes: u64,
}

/// A regular file of the source; a file with several names is listed once.
#[derive(Debug)]
pub(crate) struct FileState {
    /// The index in `Source::entries`.
    pub(crate) entry: u32,
    state: Mutex<Progressing>,
}

impl FileState {
    /// A file with the journal's record of it.
    pub(crate) fn new(entry: u32, known: Option<KnownFile>) -> FileState {
        let (identity, number, pieces) = match known {
            Some(known) => (known.identity, Some(known.number), known.pieces),
            None => (Identity::default(), None, BTreeMap::new()),
        };
        let state = Progressing { verdict: Verdict::Todo, identity, number, pieces, left: 0, verified_bytes: 0 };
        FileState { entry, state: Mutex::new(state) }
    }

    /// The state of the file.
    pub(crate) fn state(&self) -> MutexGuard<'_, Progressing> {
        lock(&self.state)
    }
}

impl Progressing {
    /// Drops its whole state.
    pub(crate) fn forget(&mut self) {
        self.number = None;
        self.pieces.clear();
        self.left = 0;
    }
}

/// The range of a piece.
pub(crate) fn range(index: u64, piece_bytes: u64, size: u64) -> std::ops::Range<u64> {
    let start = index.saturating_mul(piece_bytes).min(size);
    start..start.saturating_add(piece_bytes).min(size)
}
