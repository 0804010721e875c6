//! lseek for data and holes: dirty bytes are written first, then the objects are asked where they have data.
//!
//! An object is sparse outside its stripes, so the data of a file is that of its objects together. An answer brings
//! thousands of runs, and they are kept: a program that looks for data and holes in turn asks once for all of them (0.3
//! to 2 ms each time before, now what a call of the mount costs).
//!
//! Owns: the maps of the files that were looked through last. Invariants: a map is used only as long as nothing of its
//! file was changed by this mount since before it was asked for (`File::map_stamp`), the rule of caching is the same,
//! and, with other mounts, every lock under which it was asked for is held: the loss of one is such a change. So the
//! size that it ends with stays true, too. Data and holes are whole blocks, as the disk has them: the end of a block
//! that is written in part is data.
//!
//! Bounds: `MAPS_MAX` maps of `RUNS_MAX` runs of 16 bytes each.

use crate::api::{Ctx, Whence};
use crate::cache::push_joined;
use crate::coherence::group_lock;
use crate::coherence::locks;
use crate::coherence::range_lock::Hold;
use crate::core::{Core, unexpected};
use crate::inode::{File, OpenFile};
use crate::ops::attr;
use crate::telemetry::stats::Count;
use crate::writeback::flush;
use amphi_dlm::Mode;
use amphi_types::{ByteRange, Cred, Errno, Ino, ObjectId, Result};
use amphi_wire::{Reply, Request};
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Runs of data that are asked for at a time, of all objects of a file together.
const RUNS_MAX: u32 = 16_384;
/// Of one object at least: a file with many objects has more runs.
const RUNS_OF_OBJECT_MIN: u32 = 16;
/// Files whose maps are kept.
const MAPS_MAX: usize = 16;

/// Where a file has data, from one offset to another.
struct Map {
    ino: Ino,
    /// What is known.
    known: ByteRange,
    /// Runs of data that begin in there, ascending, none touching the next.
    data: Vec<ByteRange>,
    size: u64,
    rule: u64,
    stamp: u64,
}

/// The last maps.
#[derive(Default)]
pub(crate) struct Maps(Mutex<VecDeque<Arc<Map>>>);

impl Maps {
    fn of(&self, file: &File, at: u64) -> Option<Arc<Map>> {
        let maps = self.0.lock();
        let found = maps.iter().find(|map| map.ino == file.ino && map.known.contains(&ByteRange::at(at, 1)));
        found.filter(|map| map.stamp == file.map.stamp()).cloned()
    }

    fn keep(&self, map: Arc<Map>) {
        let mut maps = self.0.lock();
        maps.retain(|old| old.ino != map.ino);
        maps.truncate(MAPS_MAX - 1);
        maps.push_front(map);
    }
}

/// Tells whether a file was changed since its map was asked for.
#[derive(Default)]
pub(crate) struct MapStamp {
    /// A map was asked for since the last change.
    is_watched: AtomicBool,
    stamp: AtomicU64,
}

impl MapStamp {
    /// A file that became known at `born`, a moment of no other file.
    pub(crate) fn new(born: u64) -> MapStamp {
        MapStamp { is_watched: AtomicBool::new(false), stamp: AtomicU64::new(born) }
    }

    fn stamp(&self) -> u64 {
        self.stamp.load(SeqCst)
    }

    /// A map is about to be asked for: changes from now on are noted. To be called before dirty bytes are looked for.
    fn watch(&self) -> u64 {
        self.is_watched.store(true, SeqCst);
        self.stamp()
    }

    /// Bytes of the file have changed, or others may change them from now on. To be called after bytes have become
    /// dirty.
    #[inline]
    pub(crate) fn change(&self, now: impl FnOnce() -> u64) {
        if self.is_watched.load(SeqCst) && self.is_watched.swap(false, SeqCst) {
            self.stamp.fetch_max(now(), SeqCst);
        }
    }
}

/// What a map says of an offset.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    At(u64),
    /// There is no data up to the end of the file.
    Nothing,
    /// Nothing up to this offset; behind it nothing is known.
    Unknown(u64),
}

impl Map {
    /// The next data or hole at or after `offset`, which has to lie in what is known and below the size.
    fn find(&self, offset: u64, whence: Whence) -> Found {
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

/// As `lseek`, from what is known, without waiting; `None` if it is not.
pub(crate) fn try_lseek(core: &Core, open: &OpenFile, offset: u64, whence: Whence) -> Option<Result<u64>> {
    let file = &open.file;
    let map = core.seek_maps.of(file, offset)?;
    let alone = core.company.is_alone();
    let counts = map.rule == core.company.rule()
        && file.group.id() == 0
        && (alone || core.company.leases.in_touch_for(core.clock.boot_ns(), file, ByteRange::ALL));
    if !counts || offset >= map.size {
        return None;
    }
    let found = match map.find(offset, whence) {
        Found::At(at) => Ok(at),
        Found::Nothing => Err(Errno::NxIo),
        Found::Unknown(_) => return None,
    };
    // Nothing has changed up to now.
    if file.map.stamp() != map.stamp {
        return None;
    }
    core.stats.count(Count::Seek);
    file.note_use(core.coarse_ns.load(std::sync::atomic::Ordering::Relaxed));
    Some(found)
}

pub(crate) async fn lseek(core: Arc<Core>, _ctx: Ctx, open: Arc<OpenFile>, offset: u64, whence: Whence) -> Result<u64> {
    core.stats.count(Count::Seek);
    let file = &open.file;
    let ahead = ByteRange::new(offset, u64::MAX);
    // In company nobody changes what lies ahead until the answer.
    let locks = move |core: Arc<Core>, file: Arc<File>| async move {
        locks::pin_objects(&core, &file, Mode::Read, ahead).await
    };
    let (_guard, _begun, _pins) =
        group_lock::enter_pinned(&core, file, open.member(), (ahead, Hold::Shared), locks).await?;
    let rule = core.company.rule();
    let stamp = file.map.watch();
    let size = attr::size_now(&core, file).await?;
    if offset >= size {
        return Err(Errno::NxIo);
    }
    flush::flush(&core, file, ByteRange::new(offset, size)).await;
    let mut at = offset;
    loop {
        let map = Arc::new(ask(&core, file, at, size, (rule, stamp)).await?);
        let found = map.find(at, whence);
        // Of a group others change the file as well, under the same lock.
        if file.group.id() == 0 && file.map.stamp() == stamp {
            core.seek_maps.keep(map);
        }
        match found {
            Found::At(at) => return Ok(at),
            Found::Nothing => return Err(Errno::NxIo),
            Found::Unknown(next) => at = next,
        }
    }
}

/// Asks the objects of a file of `size` bytes where they have data, from `from` on.
async fn ask(core: &Arc<Core>, file: &File, from: u64, size: u64, (rule, stamp): (u64, u64)) -> Result<Map> {
    let layout = file.layout();
    let stripes = layout.stripes_below(size);
    let runs_max = (RUNS_MAX / stripes).max(RUNS_OF_OBJECT_MIN);
    let asked = (0..stripes).map(|stripe| {
        let object = ObjectId { ino: file.ino, stripe };
        let op = Request::DataMap { object, offset: from, runs_max };
        let answer = core.call(layout.target(file.ino, stripe), &Cred::root(), op);
        async move {
            match answer.await? {
                Reply::DataMap { runs, known_to } => Ok((runs, known_to)),
                other => Err(unexpected(&other)),
            }
        }
    });
    let (mut runs, mut end) = (Vec::new(), u64::MAX);
    for answer in join_all(asked.collect::<Vec<_>>()).await {
        let (of_object, known_to) = answer?;
        // A server that knows nothing more of an object than was asked says so once only.
        end = end.min(known_to.filter(|to| *to > from).unwrap_or(u64::MAX));
        runs.extend(of_object);
    }
    let known = ByteRange::new(from, end);
    runs.sort_unstable_by_key(|run: &ByteRange| run.start);
    let mut data: Vec<ByteRange> = Vec::with_capacity(runs.len());
    for run in runs.into_iter().map(|run| run.intersect(&known)).filter(|run| !run.is_empty()) {
        let behind = data.last().map_or(0, |last| last.end);
        push_joined(&mut data, ByteRange::new(run.start.max(behind), run.end.max(behind)));
    }
    Ok(Map { ino: file.ino, known, data, size, rule, stamp })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(known: (u64, u64), size: u64, data: &[(u64, u64)]) -> Map {
        let data = data.iter().map(|(start, end)| ByteRange::new(*start, *end)).collect();
        Map { ino: Ino(1), known: ByteRange::new(known.0, known.1), data, size, rule: 1, stamp: 1 }
    }

    /// Goal: data, holes, the end of the file and of what is known are found. Method: all offsets of two small maps.
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

    /// Goal: a change of a file whose map was asked for is noted, and others cost nothing. Method: the stamp.
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
