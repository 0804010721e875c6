//! `MapStamp`: whether a file was changed since the map of its data and holes was requested.
//!
//! Owns: the stamp; a change costs nothing while nobody has requested a map. Does not own: the maps (`seek_maps`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Says whether a file was changed since its map was requested.
#[derive(Default)]
pub(crate) struct MapStamp {
    /// A map was requested since the last change.
    is_watched: AtomicBool,
    stamp: AtomicU64,
}

impl MapStamp {
    /// A file that entered the table at `born`, a moment that no other file has.
    pub(crate) fn new(born: u64) -> MapStamp {
        MapStamp { is_watched: AtomicBool::new(false), stamp: AtomicU64::new(born) }
    }

    pub(crate) fn stamp(&self) -> u64 {
        self.stamp.load(SeqCst)
    }

    /// A map is about to be requested: changes from now on are noted. It has to be called before dirty bytes are
    /// searched.
    pub(crate) fn watch(&self) -> u64 {
        self.is_watched.store(true, SeqCst);
        self.stamp()
    }

    /// Bytes of the file have changed, or other mounts may change them from now on. It has to be called after bytes
    /// have become dirty.
    #[inline]
    pub(crate) fn change(&self, now: impl FnOnce() -> u64) {
        if self.is_watched.load(SeqCst) && self.is_watched.swap(false, SeqCst) {
            self.stamp.fetch_max(now(), SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a change of a file whose map was requested is noted, and other changes cost nothing. Method: calls of the
    /// stamp.
    #[test]
    fn changes_are_noted_once() {
        let stamp = MapStamp::new(5);
        stamp.change(|| unreachable!("nobody has asked"));
        let seen = stamp.watch();
        assert_eq!(seen, 5);
        stamp.change(|| 9);
        assert_eq!(stamp.stamp(), 9);
        stamp.change(|| unreachable!("noted already"));
        assert_eq!(stamp.watch(), 9);
    }
}
