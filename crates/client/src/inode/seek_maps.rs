//! Maps of the data and holes of files, as the targets last reported them.
//!
//! Owns: the maps of the files that were searched last. Does not own: the requests (`ops::seek`). Invariants: a map is
//! used only while three things hold: this mount has changed nothing of the file since before the map was requested
//! (`MapStamp`), the caching mode is the same, and in shared mode the mount holds every lock under which the map was
//! requested (the loss of one counts as a change). So the size at the end of the map stays right, too. Bound:
//! `MAPS_MAX` maps.

use crate::api::Whence;
use crate::inode::Inode;
use amphi_types::{ByteRange, Ino};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Files whose maps are kept.
const MAPS_MAX: usize = 16;

/// A map of the data of a file, from one offset to another.
pub(crate) struct Map {
    pub(crate) ino: Ino,
    /// The range of the file that the map covers.
    pub(crate) known: ByteRange,
    /// Runs of data that begin within the map, ascending, none adjacent to the next.
    pub(crate) data: Vec<ByteRange>,
    pub(crate) size: u64,
    /// The number of the caching mode in which the map was requested.
    pub(crate) rule: u64,
    /// The stamp of the file when the map was requested.
    pub(crate) stamp: u64,
}

/// The last maps.
#[derive(Default)]
pub(crate) struct Maps(Mutex<VecDeque<Arc<Map>>>);

impl Maps {
    pub(crate) fn of(&self, file: &Inode, at: u64) -> Option<Arc<Map>> {
        let maps = self.0.lock();
        let found = maps.iter().find(|map| map.ino == file.ino && map.known.contains(&ByteRange::at(at, 1)));
        found.filter(|map| map.stamp == file.size.map.stamp()).cloned()
    }

    pub(crate) fn keep(&self, map: Arc<Map>) {
        let mut maps = self.0.lock();
        maps.retain(|old| old.ino != map.ino);
        maps.truncate(MAPS_MAX - 1);
        maps.push_front(map);
        assert!(maps.len() <= MAPS_MAX, "{} maps are kept, at most {MAPS_MAX}", maps.len());
    }
}

/// The content of a map for an offset.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    At(u64),
    /// There is no data from the offset to the end of the file.
    Nothing,
    /// There is no data up to this offset; the map ends there.
    Unknown(u64),
}

impl Map {
    /// The next data or hole at or after `offset`, which has to be inside the map and below the size.
    pub(crate) fn find(&self, offset: u64, whence: Whence) -> Found {
        assert!(offset < self.size, "{}: byte {offset} of a file of {} bytes", self.ino, self.size);
        assert!(self.known.contains(&ByteRange::at(offset, 1)), "{}: {offset} outside {:?}", self.ino, self.known);
        let next = self.data.get(self.data.partition_point(|run| run.end <= offset));
        let at = match (whence, next) {
            (Whence::Data, Some(run)) => run.start.max(offset),
            (Whence::Data, None) => self.known.end,
            (Whence::Hole, Some(run)) if run.start <= offset => run.end,
            (Whence::Hole, _) => return Found::At(offset),
        };
        match whence {
            Whence::Data if at >= self.size => Found::Nothing,
            Whence::Hole if at >= self.size => Found::At(self.size),
            _ if at >= self.known.end => Found::Unknown(at),
            _ => Found::At(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(known: (u64, u64), size: u64, data: &[(u64, u64)]) -> Map {
        let data = data.iter().map(|(start, end)| ByteRange::new(*start, *end)).collect();
        Map { ino: Ino(1), known: ByteRange::new(known.0, known.1), data, size, rule: 1, stamp: 1 }
    }

    /// Goal: data, holes, the end of the file and the end of the map are found. Method: all offsets of two small maps.
    #[test]
    fn what_a_map_says() {
        let whole = map((0, u64::MAX), 100, &[(10, 20), (40, 60), (90, 110)]);
        let cut = map((0, 50), 100, &[(10, 20), (40, 50)]);
        for offset in 0..100 {
            let inside = |run: &(u64, u64)| (run.0..run.1).contains(&offset);
            let runs = [(10, 20), (40, 60), (90, 100)];
            let data = runs.iter().find(|run| run.1 > offset).map(|run| run.0.max(offset));
            let hole = runs.iter().find(|run| inside(run)).map_or(offset, |run| run.1);
            assert_eq!(whole.find(offset, Whence::Data), data.map_or(Found::Nothing, Found::At));
            assert_eq!(whole.find(offset, Whence::Hole), Found::At(hole));
            if offset < 50 {
                let at = |at: u64| if at < 50 { Found::At(at) } else { Found::Unknown(50) };
                assert_eq!(cut.find(offset, Whence::Data), at(data.expect("data follows")));
                assert_eq!(cut.find(offset, Whence::Hole), at(hole));
            }
        }
        let empty = map((0, u64::MAX), 100, &[]);
        assert_eq!((empty.find(7, Whence::Data), empty.find(7, Whence::Hole)), (Found::Nothing, Found::At(7)));
    }
}
