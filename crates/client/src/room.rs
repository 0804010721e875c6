//! `Room`: which targets have room for more, as far as their answers to writes tell.
//!
//! A write that finds its target full should be told so itself, not the `fsync` behind it. So a write past the cache returns early only where
//! the target has said with its last answer that it has room, and a write into the cache is written back at once, and waited for, where the
//! last write was refused. Owns: what was said. Does not own: who asks (`pipeline`, `ops::write`). Bounded by the targets of the cluster.

use crate::files::File;
use amphi_types::{ByteRange, Errno, TargetId};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What a target has said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// There is much room.
    Roomy,
    /// The write went through; there is little room.
    Tight,
    /// The write was refused, for want of room.
    Full,
}

/// What targets have said.
#[derive(Default)]
pub(crate) struct Room {
    said: RwLock<BTreeMap<TargetId, Said>>,
    any_full: AtomicBool,
}

impl Room {
    /// A write went through; whether the target has much room.
    pub(crate) fn taken(&self, target: TargetId, roomy: bool) {
        self.note(target, if roomy { Said::Roomy } else { Said::Tight });
    }

    /// What became of writes of one message, of which nobody said how much room is left.
    pub(crate) fn ended<'a>(&self, target: TargetId, mut results: impl Iterator<Item = &'a Result<(), Errno>> + Clone) {
        if results.clone().any(|r| *r == Err(Errno::NoSpace)) {
            self.note(target, Said::Full);
        } else if self.any_full() && results.any(Result::is_ok) {
            self.note(target, Said::Tight);
        }
    }

    fn note(&self, target: TargetId, said: Said) {
        if self.said.read().get(&target) != Some(&said) {
            let mut all = self.said.write();
            all.insert(target, said);
            self.any_full.store(all.values().any(|s| *s == Said::Full), Relaxed);
        }
    }

    /// Whether any target has refused the last write to it.
    #[inline]
    pub(crate) fn any_full(&self) -> bool {
        self.any_full.load(Relaxed)
    }

    /// Whether all targets of `range` have room.
    pub(crate) fn is_ample(&self, file: &File, range: ByteRange) -> bool {
        let said = self.said.read();
        self.targets(file, range).all(|target| said.get(&target) == Some(&Said::Roomy))
    }

    /// Whether a target of `range` has refused the last write to it.
    pub(crate) fn is_short(&self, file: &File, range: ByteRange) -> bool {
        let said = self.said.read();
        self.any_full() && self.targets(file, range).any(|target| said.get(&target) == Some(&Said::Full))
    }

    fn targets(&self, file: &File, range: ByteRange) -> impl Iterator<Item = TargetId> {
        let (layout, ino) = (file.layout(), file.ino);
        layout.pieces(ino, range).map(move |(object, _)| layout.target(ino, object.stripe))
    }
}
