//! `Delayed`: delayed extents, that is, bytes of objects that were accepted into memory and have no blocks yet.
//!
//! Owns: which bytes of which object are where in memory, the items of these extents, the blocks that are reserved for
//! them, and which should be flushed next. Does not own: the memory (`memory`, and the server), when something is
//! flushed.
//!
//! A delayed extent hides what the blocks of its object contain, byte by byte, and has an item of its own. The record
//! that accepts the bytes puts that item, and the record of whatever overwrites, cuts or flushes them deletes or
//! shortens it. So the log alone says which extents exist. The object's item does not mention the extent: a loss of
//! power takes the memory, and with it all evidence that there was more.
//!
//! Invariants:
//!
//! * Extents of an object do not overlap. A later write cuts earlier ones in its own record.
//! * `reserved` is the number of blocks that contain at least one delayed byte. This many blocks are kept free for
//!   flushes, which therefore always find room. The plan of a flush uses up a part of that number (`lent`) until it
//!   ends.
//! * If an extent is `logged`, the log has all of its bytes (`logged`). If the memory is lost, the bytes are read from
//!   the log, as extents without an item of their own.
//! * `end` and `mtime` of an object are at least those of each of its extents.

use crate::extent::dirty_key;
use crate::logged::{Logged, Piece};
use crate::memory::Memory;
use amphi_types::item::{Key, Txn};
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, Ino, ObjectId, Timespec};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Bytes that are flushed together: a full stripe of the storage.
pub const UNIT: u64 = 1 << 20;

/// Bytes in a record for the deletion of a delayed extent.
pub const DELAYED_ITEM_BYTES: u64 = 32;

/// A part of a read or of a flush that lies in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// The bytes of the file that the part covers.
    pub range: ByteRange,
    /// The memory in which the bytes lie, which is not used for anything else as long as this handle exists.
    pub memory: Rc<Memory>,
}

impl Overlay {
    /// Offset in the memory at which the range begins.
    pub fn at(&self) -> u64 {
        self.memory.at + (self.range.start - self.memory.start)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirtyExtent {
    pub end: u64,
    pub mtime: Timespec,
    pub memory: Rc<Memory>,
    /// The log contains the bytes as well.
    pub logged: bool,
}

impl DirtyExtent {
    /// Returns whether the extent has an item of its own.
    fn has_item(&self) -> bool {
        self.memory.bytes().is_none()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DirtyObject {
    /// Extents by their first byte.
    extents: BTreeMap<u64, DirtyExtent>,
    mtime: Timespec,
}

impl DirtyObject {
    fn end(&self) -> u64 {
        self.extents.last_key_value().map_or(0, |(_, e)| e.end)
    }

    /// Extents that share a byte with `range`, ascending.
    fn within(&self, range: ByteRange) -> impl Iterator<Item = (u64, &DirtyExtent)> {
        let first = self.extents.range(..=range.start).next_back().map_or(range.start, |(&at, _)| at);
        let last = range.end.max(first);
        self.extents.range(first..last).map(|(&at, e)| (at, e)).filter(move |(_, e)| e.end > range.start)
    }

    /// Number of blocks with a delayed byte among the whole blocks around `range`.
    fn touched(&self, range: ByteRange) -> u64 {
        let range = range.align_out(BLOCK);
        let (mut blocks, mut counted) = (0, range.start / BLOCK);
        for (at, e) in self.within(range) {
            let from = (at.max(range.start) / BLOCK).max(counted);
            let to = e.end.min(range.end).div_ceil(BLOCK);
            blocks += to.saturating_sub(from);
            counted = counted.max(to);
        }
        blocks
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DirtyUnit {
    bytes: u64,
    since_ns: u64,
}

/// The units in which these ranges lie; they are ascending by object and offset.
fn units_of(ranges: impl Iterator<Item = (ObjectId, ByteRange)>) -> Vec<(ObjectId, u64)> {
    let mut units: Vec<(ObjectId, u64)> = Vec::new();
    for (object, range) in ranges {
        let first = units.last().filter(|(last, _)| *last == object).map_or(0, |(_, unit)| unit + 1);
        units.extend((first.max(range.start / UNIT)..range.end.div_ceil(UNIT)).map(|unit| (object, unit)));
    }
    units
}

/// The delayed extents of a target.
#[derive(Clone, Debug, Default)]
pub struct Delayed {
    objects: BTreeMap<ObjectId, DirtyObject>,
    units: BTreeMap<(ObjectId, u64), DirtyUnit>,
    /// Units in the order in which they became dirty, with the time. Units that are no longer dirty since that time are
    /// skipped.
    order: VecDeque<(u64, ObjectId, u64)>,
    /// Units that became dirty as a whole.
    whole: VecDeque<(ObjectId, u64)>,
    extents: u64,
    bytes: u64,
    reserved: u64,
    /// The number of reserved blocks whose flush has taken blocks of its own.
    pub(crate) lent: u64,
    /// Memory of extents that were cut since the last `take_dead`.
    dead: Vec<Rc<Memory>>,
    /// Delayed bytes that the log also contains.
    logged: Logged,
    /// Extents whose bytes are not in the log, by first byte.
    unlogged: BTreeSet<(ObjectId, u64)>,
    unlogged_bytes: u64,
}

impl Delayed {
    /// Returns whether there is no delayed extent.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Number of extents.
    pub fn extents(&self) -> u64 {
        self.extents
    }

    /// Number of delayed bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of delayed bytes that are not in the log.
    pub fn unlogged_bytes(&self) -> u64 {
        self.unlogged_bytes
    }

    /// Returns whether the log contains bytes of the range that are not on the disk.
    pub(crate) fn is_logged(&self, object: ObjectId, range: ByteRange) -> bool {
        self.logged.within(object, range).next().is_some()
    }

    /// Works as `unlogged_bytes`, for one object.
    pub fn unlogged_bytes_of(&self, object: ObjectId) -> u64 {
        let extents = self.unlogged.range((object, 0)..=(object, u64::MAX));
        extents.filter_map(|(_, at)| self.extent(object, *at)).map(|(_, range)| range.len()).sum()
    }

    /// Number of bytes that are in the log, and of their items.
    pub fn logged(&self) -> (u64, u64) {
        (self.logged.bytes(), self.logged.pieces())
    }

    /// Units of one file, or of all files, with bytes that are not in the log.
    pub fn unlogged_units(&self, file: Option<Ino>) -> Vec<(ObjectId, u64)> {
        units_of(self.unlogged_of(file).filter_map(|(object, at)| self.extent(object, at)))
    }

    /// Units with bytes that are in the log.
    pub fn logged_units(&self) -> Vec<(ObjectId, u64)> {
        units_of(self.logged.all().map(|(object, range, _)| (object, range)))
    }

    /// The extents of one file, or of all files, whose bytes are not in the log, by first byte.
    fn unlogged_of(&self, file: Option<Ino>) -> impl Iterator<Item = (ObjectId, u64)> + '_ {
        let (from, to) = file.map_or((Ino(0), Ino(u64::MAX)), |ino| (ino, ino));
        let first = (ObjectId { ino: from, stripe: 0 }, 0);
        self.unlogged.range(first..=(ObjectId { ino: to, stripe: u32::MAX }, u64::MAX)).copied()
    }

    /// Returns whether there are delayed bytes in `range` that are not in the log.
    pub fn has_unlogged(&self, object: ObjectId, range: ByteRange) -> bool {
        self.objects.get(&object).is_some_and(|o| o.within(range).any(|(_, e)| !e.logged))
    }

    fn extent(&self, object: ObjectId, at: u64) -> Option<(ObjectId, ByteRange)> {
        let end = self.objects.get(&object)?.extents.get(&at)?.end;
        Some((object, ByteRange::new(at, end)))
    }

    /// The extents of one file, or of all files, whose bytes are not in the log. Returns `None` if there are more than
    /// `most`.
    pub fn unlogged(&self, file: Option<Ino>, most: usize) -> Option<Vec<(ObjectId, Overlay)>> {
        if self.unlogged_of(file).nth(most).is_some() {
            return None;
        }
        let extents = self.unlogged_of(file).filter_map(|(object, at)| {
            let e = self.objects.get(&object)?.extents.get(&at)?;
            Some((object, Overlay { range: ByteRange::new(at, e.end), memory: e.memory.clone() }))
        });
        Some(extents.collect())
    }

    /// Logs the bytes of these extents, which `unlogged` has just returned. Once the record is stable, these bytes
    /// survive a loss of power.
    pub fn log<'a>(&mut self, extents: impl IntoIterator<Item = (ObjectId, ByteRange, &'a [u8])>, txn: &mut Txn) {
        let mut touched = BTreeSet::new();
        for (object, range, bytes) in extents {
            let extent = self.objects.get_mut(&object).and_then(|o| o.extents.get_mut(&range.start));
            let Some(e) = extent.filter(|e| e.end == range.end && !e.logged) else {
                debug_assert!(false, "no such extent is to be logged");
                continue;
            };
            e.logged = true;
            let mtime = e.mtime;
            self.logged.put(object, range.start, mtime, bytes, &mut touched);
            self.unlogged.remove(&(object, range.start));
            self.unlogged_bytes -= range.len();
        }
        self.logged.log(&touched, txn);
    }

    /// Returns whether the log has all bytes of a write, and `is_right` confirms them.
    pub fn has_logged(&self, object: ObjectId, memory: &Memory, is_right: impl FnOnce(&[u8]) -> bool) -> bool {
        self.logged.has_all(object, ByteRange::at(memory.start, u64::from(memory.len)), is_right)
    }

    /// Number of units with delayed bytes.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// Blocks that are promised to flushes which have not begun.
    pub fn promised(&self) -> u64 {
        self.reserved - self.lent
    }

    /// Returns whether the object has delayed extents.
    pub fn has(&self, object: ObjectId) -> bool {
        self.objects.contains_key(&object)
    }

    /// Returns whether an object of the file has delayed extents.
    pub fn has_file(&self, ino: Ino) -> bool {
        let of_file = ObjectId { ino, stripe: 0 }..=ObjectId { ino, stripe: u32::MAX };
        !self.objects.is_empty() && self.objects.range(of_file).next().is_some()
    }

    /// The highest delayed byte of an object + 1, and its mtime.
    pub(crate) fn end_of(&self, object: ObjectId) -> Option<(u64, Timespec)> {
        if self.objects.is_empty() {
            return None;
        }
        self.objects.get(&object).map(|o| (o.end(), o.mtime))
    }

    /// Number of extents that share a byte with `range`.
    pub fn count_in(&self, object: ObjectId, range: ByteRange) -> usize {
        self.objects.get(&object).map_or(0, |o| o.within(range).count())
    }

    /// Number of blocks with a delayed byte in `range`, rounded out to blocks.
    pub fn touched(&self, object: ObjectId, range: ByteRange) -> u64 {
        self.objects.get(&object).map_or(0, |o| o.touched(range))
    }

    /// The delayed parts of `range`, ascending.
    pub fn within(&self, object: ObjectId, range: ByteRange) -> SmallVec<[Overlay; 2]> {
        if self.objects.is_empty() {
            return SmallVec::new();
        }
        let parts = self.objects.get(&object).into_iter().flat_map(|o| o.within(range));
        let part = |(at, e): (u64, &DirtyExtent)| Overlay {
            range: ByteRange::new(at, e.end).intersect(&range),
            memory: e.memory.clone(),
        };
        parts.map(part).collect()
    }

    /// The delayed bytes of `range` as runs that have no block in common.
    pub fn runs(&self, object: ObjectId, range: ByteRange) -> Vec<ByteRange> {
        let mut runs: Vec<ByteRange> = Vec::new();
        let Some(o) = self.objects.get(&object) else { return runs };
        for (at, e) in o.within(range) {
            let part = ByteRange::new(at, e.end).intersect(&range);
            match runs.last_mut() {
                // There is no gap, or only one inside a block.
                Some(last) if last.end == part.start || (last.end - 1) / BLOCK == part.start / BLOCK => {
                    last.end = part.end;
                }
                _ => runs.push(part),
            }
        }
        runs
    }

    /// The objects of all extents, with the range of file bytes from the first to the last.
    pub fn objects(&self) -> impl Iterator<Item = (ObjectId, ByteRange)> + '_ {
        let span = |o: &DirtyObject| ByteRange::new(o.extents.first_key_value().map_or(0, |(&at, _)| at), o.end());
        self.objects.iter().map(move |(id, o)| (*id, span(o)))
    }

    /// The memory of all extents, once for each extent.
    pub fn memories(&self) -> impl Iterator<Item = (ObjectId, ByteRange, &Rc<Memory>)> + '_ {
        self.objects
            .iter()
            .flat_map(|(id, o)| o.extents.iter().map(|(&at, e)| (*id, ByteRange::new(at, e.end), &e.memory)))
    }

    /// All units with delayed bytes, of one file or of all.
    pub fn all_units(&self, ino: Option<Ino>) -> Vec<(ObjectId, u64)> {
        let wanted = |(id, _): &(ObjectId, u64)| ino.is_none_or(|ino| ino == id.ino);
        self.units.keys().copied().filter(wanted).collect()
    }

    /// Returns whether a unit may be dirty as a whole.
    pub fn has_whole(&self) -> bool {
        !self.whole.is_empty()
    }

    /// The next unit that is dirty as a whole.
    pub fn next_whole(&mut self) -> Option<(ObjectId, u64)> {
        while let Some(key) = self.whole.pop_front() {
            if self.units.get(&key).is_some_and(|u| u.bytes == UNIT) {
                return Some(key);
            }
        }
        None
    }

    /// The unit that has been dirty longest, if it became dirty at `until_ns` or earlier.
    pub fn next_old(&mut self, until_ns: u64) -> Option<(ObjectId, u64)> {
        while let Some(&(since_ns, object, unit)) = self.order.front() {
            let is_current = self.units.get(&(object, unit)).is_some_and(|u| u.since_ns == since_ns);
            if is_current && since_ns > until_ns {
                return None;
            }
            self.order.pop_front();
            if is_current {
                return Some((object, unit));
            }
        }
        None
    }

    /// Notes that a flush of a unit was due and did not happen: it is tried again as if the unit had become dirty at
    /// `now_ns`.
    pub fn try_again(&mut self, object: ObjectId, unit: u64, now_ns: u64) {
        if let Some(u) = self.units.get_mut(&(object, unit)) {
            u.since_ns = now_ns;
            self.order.push_back((now_ns, object, unit));
        }
    }

    /// Adds `range` to the counts of its units, or subtracts it.
    fn count_units(&mut self, object: ObjectId, range: ByteRange, adds: Option<u64>) {
        let mut at = range.start;
        while at < range.end {
            let (unit, end) = (at / UNIT, range.end.min((at / UNIT + 1) * UNIT));
            let key = (object, unit);
            match adds {
                Some(now_ns) => {
                    let counted = self.units.entry(key).or_insert_with(|| {
                        self.order.push_back((now_ns, object, unit));
                        DirtyUnit { bytes: 0, since_ns: now_ns }
                    });
                    counted.bytes += end - at;
                    if counted.bytes == UNIT {
                        self.whole.push_back(key);
                    }
                }
                None => {
                    if let Some(counted) = self.units.get_mut(&key) {
                        counted.bytes -= end - at;
                        if counted.bytes == 0 {
                            self.units.remove(&key);
                        }
                    }
                }
            }
            at = end;
        }
    }

    /// Adds an extent where nothing is delayed.
    pub(crate) fn put(&mut self, object: ObjectId, range: ByteRange, mtime: Timespec, memory: Rc<Memory>, now_ns: u64) {
        let logged = memory.bytes().is_some();
        if !logged {
            self.unlogged.insert((object, range.start));
            self.unlogged_bytes += range.len();
        }
        let o = self.objects.entry(object).or_default();
        let before = o.touched(range);
        o.extents.insert(range.start, DirtyExtent { end: range.end, mtime, memory, logged });
        o.mtime = o.mtime.max(mtime);
        self.reserved += o.touched(range) - before;
        self.extents += 1;
        self.bytes += range.len();
        self.count_units(object, range, Some(now_ns));
    }

    /// Loads logged bytes that were found at a start, unless they overlap bytes that are already loaded.
    pub(crate) fn load_logged(&mut self, object: ObjectId, at: u64, piece: Piece) -> bool {
        let range = ByteRange::at(at, piece.bytes.len() as u64);
        let is_free = self.logged.within(object, range).next().is_none();
        if is_free {
            self.logged.load(object, at, piece);
        }
        is_free
    }

    /// Objects with bytes that are in the log.
    pub(crate) fn logged_objects(&self) -> BTreeSet<ObjectId> {
        self.logged.all().map(|(object, ..)| object).collect()
    }

    /// Shows logged bytes of `range` where no extent hides them.
    pub(crate) fn show_logged(&mut self, object: ObjectId, range: ByteRange) {
        let pieces: Vec<_> = self.logged.within(object, range).map(|(at, piece)| (at, piece.clone())).collect();
        for (at, piece) in pieces {
            let part = ByteRange::at(at, piece.bytes.len() as u64).intersect(&range);
            let mut shown: SmallVec<[ByteRange; 4]> = SmallVec::new();
            let extents = self.objects.get(&object).into_iter().flat_map(|o| o.within(part));
            shown.extend(extents.map(|(from, e)| ByteRange::new(from, e.end)));
            shown.push(ByteRange::new(part.end, part.end));
            let mut from = part.start;
            for next in shown {
                if from < next.start {
                    let memory = Rc::new(Memory::logged(at, piece.bytes.clone()));
                    self.put(object, ByteRange::new(from, next.start), piece.mtime, memory, 0);
                }
                from = next.end;
            }
        }
    }

    /// Removes the bytes of `range`, with the changes of items in `txn`. Another record contains the new content of the
    /// range.
    pub(crate) fn cut(&mut self, object: ObjectId, range: ByteRange, txn: &mut Txn) {
        self.logged.cut(object, range, txn);
        self.cut_extents(object, range, txn);
    }

    /// Removes the extents of `range` from the map, with the changes of items in `txn`. Logged bytes stay, because a
    /// loss of power may destroy the bytes that replace them.
    pub(crate) fn cut_extents(&mut self, object: ObjectId, range: ByteRange, txn: &mut Txn) {
        let Some(o) = self.objects.get_mut(&object) else { return };
        let hit: SmallVec<[u64; 4]> = o.within(range).map(|(at, _)| at).collect();
        if hit.is_empty() {
            return;
        }
        let before = o.touched(range);
        let mut gone: SmallVec<[ByteRange; 4]> = SmallVec::new();
        for at in hit {
            let Some(e) = o.extents.remove(&at) else { continue };
            self.extents -= 1;
            if e.has_item() {
                txn.delete(dirty_key(object, at));
            }
            if !e.logged {
                self.unlogged.remove(&(object, at));
                self.unlogged_bytes -= ByteRange::new(at, e.end).intersect(&range).len();
            }
            let mut keep = |from: u64, to: u64| {
                if from < to {
                    let part = DirtyExtent { end: to, memory: e.memory.clone(), ..e };
                    if e.has_item() {
                        txn.put(dirty_key(object, from), crate::extent::dirty_value(from, &part));
                    }
                    o.extents.insert(from, part);
                    self.extents += 1;
                    if !e.logged {
                        self.unlogged.insert((object, from));
                    }
                }
            };
            keep(at, range.start.min(e.end));
            keep(range.end.max(at), e.end);
            let cut = ByteRange::new(at, e.end).intersect(&range);
            self.bytes -= cut.len();
            gone.push(cut);
            self.dead.push(e.memory);
        }
        self.reserved -= before - o.touched(range);
        if o.extents.is_empty() {
            self.objects.remove(&object);
        }
        for cut in gone {
            self.count_units(object, cut, None);
        }
    }

    /// Removes the last extents of an object from the map, with at most `most` changes. Returns the number of changes.
    pub(crate) fn cut_last(&mut self, object: ObjectId, most: usize, txn: &mut Txn) -> usize {
        let mut count = self.logged.cut_last(object, most, txn);
        while count < most
            && let Some((at, end)) = self.objects.get(&object).and_then(|o| {
                let (&at, e) = o.extents.last_key_value()?;
                Some((at, e.end))
            })
        {
            self.cut(object, ByteRange::new(at, end), txn);
            count += 1;
        }
        count
    }

    /// Memory of extents that were cut since the last call. Its pages may be used again when the record of the cuts
    /// survives a kill of the process. Until then the caller has to keep the handles.
    pub fn take_dead(&mut self) -> Vec<Rc<Memory>> {
        std::mem::take(&mut self.dead)
    }

    pub(crate) fn value(&self, object: ObjectId, at: u64) -> Option<Vec<u8>> {
        let extent = self.objects.get(&object)?.extents.get(&at).filter(|e| e.has_item());
        extent.map(|e| crate::extent::dirty_value(at, e))
    }

    pub(crate) fn logged_value(&self, object: ObjectId, at: u64) -> Option<Vec<u8>> {
        self.logged.get(object, at).map(crate::extent::logged_value)
    }

    /// Keys of items of logged bytes behind those at `after`, at most `max`.
    pub(crate) fn logged_keys_after(&self, after: Option<(ObjectId, u64)>, max: usize) -> Vec<Key> {
        let behind = self.logged.all().filter(|(id, range, _)| after.is_none_or(|after| (*id, range.start) > after));
        behind.take(max).map(|(id, range, _)| crate::extent::logged_key(id, range.start).to_vec()).collect()
    }

    /// Keys of items behind that of the extent `after`, at most `max`.
    pub(crate) fn keys_after(&self, after: Option<(ObjectId, u64)>, max: usize) -> Vec<Key> {
        let behind = |id: ObjectId, at: u64| after.is_none_or(|after| (id, at) > after);
        let first = after.map_or(ObjectId { ino: Ino(0), stripe: 0 }, |(id, _)| id);
        let items = |o: &DirtyObject| o.extents.iter().filter(|(_, e)| e.has_item()).map(|(&at, _)| at).collect();
        let all = self.objects.range(first..).flat_map(|(&id, o)| {
            let items: Vec<u64> = items(o);
            items.into_iter().map(move |at| (id, at))
        });
        all.filter(|(id, at)| behind(*id, *at)).take(max).map(|(id, at)| dirty_key(id, at).to_vec()).collect()
    }

    /// Checks the counts against the extents; for tests.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (mut extents, mut bytes, mut reserved, mut unlogged) = (0, 0, 0, (0, 0));
        for (id, o) in &self.objects {
            let mut free_from = 0;
            for (&at, e) in &o.extents {
                if at < free_from || e.end <= at {
                    return Err(format!("delayed extent at {at} of {id:?} overlaps the one before it or is empty"));
                }
                free_from = e.end;
                extents += 1;
                bytes += e.end - at;
                let range = ByteRange::new(at, e.end);
                if e.logged == self.unlogged.contains(&(*id, at)) {
                    return Err(format!("it is not known whether the log has the delayed extent at {at} of {id:?}"));
                }
                if !e.logged {
                    unlogged.0 += 1;
                    unlogged.1 += range.len();
                } else if !self.logged.has_all(*id, range, |_| true) {
                    return Err(format!("the log lacks bytes of the delayed extent at {at} of {id:?}"));
                }
            }
            reserved += o.touched(ByteRange::ALL);
        }
        for (id, range, _) in self.logged.all() {
            let extents = self.objects.get(&id).into_iter().flat_map(|o| o.within(range));
            let shown: u64 = extents.map(|(at, e)| ByteRange::new(at, e.end).intersect(&range).len()).sum();
            if shown != range.len() {
                return Err(format!("no delayed extent has the logged bytes {range:?} of {id:?}"));
            }
        }
        let of_objects: u64 = self.objects.keys().map(|object| self.unlogged_bytes_of(*object)).sum();
        if of_objects != self.unlogged_bytes {
            return Err(format!("{of_objects} bytes of objects are not logged, of {}", self.unlogged_bytes));
        }
        if (self.unlogged.len(), self.unlogged_bytes) != unlogged {
            return Err(format!("{} bytes are counted as not logged, of {unlogged:?}", self.unlogged_bytes));
        }
        let units: u64 = self.units.values().map(|u| u.bytes).sum();
        let counted = (self.extents, self.bytes, self.reserved, units);
        if counted != (extents, bytes, reserved, bytes) {
            return Err(format!("{counted:?} delayed extents, bytes, blocks, bytes of units are counted"));
        }
        Ok(())
    }
}
