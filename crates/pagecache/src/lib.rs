//! The page cache: units of 64 KiB with byte-exact valid and dirty ranges, keyed by the number of a file.
//!
//! Owns: cached bytes of all files, how much memory they take, eviction, and which bytes are dirty or being written
//! back. Does not own: files (`CachedFile` is the contract with their owner), which bytes may be cached (callers check
//! that under the lock of each unit), when and how dirty bytes are sent.
//!
//! Invariants: in each unit, dirty bytes and bytes in flight are valid. Only units without such bytes are evicted.
//! Bytes that are not valid are never read. A unit has an entry in `CachedBytes::dirty` exactly while it has dirty
//! bytes; the entry changes under the unit's shard lock. Lock order: the shard, then the locks of the file.
//!
//! The numbers that drove the design: shards hold 1 MiB of a file, so a hit takes one shared lock, a tree lookup among
//! about 1,000 units and one copy, and allocates nothing. Units grow from 4 KiB in powers of two, so a small file costs
//! its size.

#![forbid(unsafe_code)]

mod file;
mod fill;
mod forget;
mod ghosts;
mod locality;
mod room;
mod segments;
mod slab;
mod unit;

#[cfg(test)]
mod model;

use amphi_env::Buf;
use amphi_types::ByteRange;
use ghosts::Ghosts;
use parking_lot::RwLock;
use room::{Endless, NoRoom};
use slab::{Slab, Slabs};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use unit::{Spare, Unit};

pub use file::{CachedBytes, CachedFile, DirtyIndex};
pub use fill::Landing;
pub use forget::Dirty;
pub use locality::{Came, Locality, LocalityRule};
pub use room::Room;
pub use segments::{Loan, Loans, Segment, Segments, scratch_for};

/// Bytes of a unit. A write of exactly one unit, in memory of exactly that size, need not be copied.
pub const UNIT_BYTES: usize = 64 << 10;
/// `UNIT_BYTES` as a length in a file.
pub const UNIT: u64 = UNIT_BYTES as u64;
/// Units of a chunk. A chunk lies in one shard.
const CHUNK_UNITS: u64 = 16;
const CHUNK: u64 = UNIT * CHUNK_UNITS;
const SHARDS: usize = 64;
/// Bytes of a page, the unit in which locality is measured.
pub const PAGE: u64 = 4096;
/// Units that one eviction step examines in a shard.
const EVICT_SCAN: usize = CHUNK_UNITS as usize;
/// Most steps of one eviction.
const EVICT_STEPS: usize = 8192;

type Key = (u64, u64);

struct Shard<F> {
    units: BTreeMap<Key, Unit<F>>,
    /// This shard's part of the eviction clock: all units in the order of their turns, and obsolete entries of units
    /// that were removed or have another turn.
    clock: VecDeque<(Key, u64)>,
    slab: Slab,
}

impl<F> Default for Shard<F> {
    fn default() -> Shard<F> {
        Shard { units: BTreeMap::new(), clock: VecDeque::new(), slab: Slab::default() }
    }
}

impl<F: CachedFile> Shard<F> {
    /// The unit, which is made if it does not exist. If a unit needs memory and has a place in a slab, it gets that
    /// memory (`Slab::piece`).
    fn unit(&mut self, key: Key, file: &Arc<F>, (turns, slabs): (&AtomicU64, &Slabs), place: Place) -> &mut Unit<F> {
        if self.clock.len() > 2 * self.units.len() + EVICT_SCAN {
            let units = &self.units;
            self.clock.retain(|(key, turn)| units.get(key).is_some_and(|unit| unit.turn == *turn));
        }
        self.units.entry(key).or_insert_with(|| {
            let turn = turns.fetch_add(1, Relaxed);
            self.clock.push_back((key, turn));
            let place =
                if place == Place::Any { None } else { self.slab.piece(slabs, key, place == Place::Begins, turn) };
            Unit::new(file.clone(), key.1, turn, place)
        })
    }
}

/// The place that the memory of a new unit should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Any,
    /// The unit is placed in the slab that it continues.
    GoesOn,
    /// The unit is placed in the slab that it continues, or is the first one of a new slab.
    Begins,
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// All bytes are in the cache.
    Done {
        /// A chunk that has become dirty as a whole.
        full_chunk: Option<ByteRange>,
        /// Some of these bytes were written back before while they were cached, so they may soon be written again.
        rewritten: bool,
        /// This many bytes stay in the memory in which they arrived.
        adopted: u64,
        /// Free blocks at the servers were set aside for all of these bytes.
        covered: bool,
    },
    /// The check failed, or the servers had no room for all bytes. Bytes before this offset are in the cache.
    Refused(u64),
}

/// Bytes to be cached.
pub enum Source<'a> {
    /// The bytes are copied.
    Copied(&'a [u8]),
    /// The bytes of one whole unit. The cache may keep the memory that contains them. The cache then leaves other
    /// memory of a unit in its place, with arbitrary content.
    Unit(&'a mut Buf),
    /// The bytes of several whole units. The cache may keep the memory that contains them. The cache then leaves no
    /// other memory in exchange.
    Units(&'a mut Buf),
}

impl<'a> Source<'a> {
    /// `bytes` for `offset`. The cache may keep their memory if they are whole units, at most as long as a chunk, in
    /// memory of exactly that size.
    pub fn whole_units(offset: u64, bytes: &'a mut Buf) -> Source<'a> {
        let alone = bytes.is_whole() && bytes.room() == bytes.window() && !bytes.is_empty();
        let whole = alone && offset.is_multiple_of(UNIT) && (bytes.len() as u64).is_multiple_of(UNIT);
        match bytes.len() as u64 {
            UNIT if whole => Source::Unit(bytes),
            len if whole && len <= CHUNK => Source::Units(bytes),
            _ => Source::Copied(bytes),
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> u64 {
        match self {
            Source::Copied(bytes) => bytes.len() as u64,
            Source::Unit(bytes) | Source::Units(bytes) => bytes.len() as u64,
        }
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The cache of files of type `F`.
pub struct PageCache<F> {
    shards: Vec<RwLock<Shard<F>>>,
    used: AtomicU64,
    dirty: AtomicU64,
    /// Bytes of all writes so far: a clock that shows how long ago memory was in the processor's caches.
    written: AtomicU64,
    /// The clock by which units are evicted: units that are new, or that the hand leaves in place, get the next turn.
    /// So memory is freed in the order in which it was taken, and whole runs of it become free together
    /// (`amphi_env::buf`).
    turns: AtomicU64,
    spare: Spare,
    slabs: Slabs,
    ghosts: Ghosts,
    room: Arc<dyn Room<F>>,
    /// Memory of units that were evicted, in bytes.
    pub evicted_bytes: AtomicU64,
    /// Bytes that were read ahead and evicted before a program read them.
    pub wasted_ahead_bytes: AtomicU64,
    /// Bytes that were read ahead and then read by a program.
    pub used_ahead_bytes: AtomicU64,
}

fn units(range: ByteRange) -> impl Iterator<Item = (u64, ByteRange)> {
    let (first, last) = (range.start / UNIT, range.end.div_ceil(UNIT));
    (first..if range.is_empty() { first } else { last })
        .map(move |u| (u, ByteRange::at(u * UNIT, UNIT).intersect(&range)))
}

impl<F: CachedFile> Default for PageCache<F> {
    fn default() -> PageCache<F> {
        PageCache::new()
    }
}

impl<F: CachedFile> PageCache<F> {
    /// An empty cache for servers that always have room.
    pub fn new() -> PageCache<F> {
        PageCache::above(Arc::new(Endless))
    }

    /// An empty cache; `room` knows how much space the servers have granted.
    pub fn above(room: Arc<dyn Room<F>>) -> PageCache<F> {
        PageCache {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            used: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            written: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            spare: Spare::default(),
            slabs: Slabs::default(),
            ghosts: Ghosts::default(),
            room,
            evicted_bytes: AtomicU64::new(0),
            wasted_ahead_bytes: AtomicU64::new(0),
            used_ahead_bytes: AtomicU64::new(0),
        }
    }

    /// Memory of all units, and memory that is reserved for the rest of streams.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Relaxed) + self.slabs.bytes()
    }

    /// Bytes of units that were evicted and later read from the server again, as far as that is remembered.
    pub fn returned_bytes(&self) -> u64 {
        self.ghosts.returned_bytes()
    }

    /// Sets how many bytes the cache may take.
    #[inline]
    pub fn set_limit(&self, limit_bytes: u64) {
        if self.slabs.set_limit(limit_bytes) {
            self.spare.set_limit(limit_bytes);
        }
    }

    /// Dirty bytes, including those under way.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.load(Relaxed)
    }

    fn shard(&self, file: u64, unit: u64) -> &RwLock<Shard<F>> {
        let h = (file ^ (unit / CHUNK_UNITS).rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(h >> 58) as usize]
    }

    /// Copies `range` into `into` if all of it is valid. Otherwise the content of `into` is undefined.
    pub fn read(&self, file: &F, range: ByteRange, into: &mut [u8]) -> bool {
        debug_assert_eq!(range.len(), into.len() as u64);
        for (u, part) in units(range) {
            let shard = self.shard(file.id(), u).read();
            let Some(unit) = shard.units.get(&(file.id(), u)) else { return false };
            let at = (part.start - range.start) as usize;
            if !unit.read(part, &mut into[at..at + part.len() as usize]) {
                return false;
            }
            if part == range {
                self.unit_used(unit, part);
            }
        }
        self.several_used(file, range);
        true
    }

    /// Returns the memory of `range`, without a copy, if all of it is valid.
    pub fn lend(&self, file: &F, range: ByteRange) -> Option<Loans> {
        let mut loans = Loans::new();
        for (u, part) in units(range) {
            let shard = self.shard(file.id(), u).read();
            let unit = shard.units.get(&(file.id(), u))?;
            loans.push(unit.lend(part)?);
            if part == range {
                self.unit_used(unit, part);
            }
        }
        self.several_used(file, range);
        Some(loans)
    }

    /// Works as `lend`, but does not count as a use.
    pub fn peek(&self, file: &F, range: ByteRange) -> Option<Loans> {
        units(range).map(|(u, part)| self.shard(file.id(), u).read().units.get(&(file.id(), u))?.lend(part)).collect()
    }

    /// Passes to `show` the longest run of valid bytes of unit `u` that contains a byte of `near`, under a lock that
    /// keeps the unit unchanged. Does not count as a use. Returns whether there is such a run.
    pub fn show(&self, file: &F, u: u64, near: ByteRange, show: impl FnOnce(ByteRange, &[u8])) -> bool {
        let shard = self.shard(file.id(), u).read();
        let Some(unit) = shard.units.get(&(file.id(), u)) else { return false };
        let runs = unit.valid.within(unit.range()).filter(|run| run.overlaps(&near));
        let Some(run) = runs.max_by_key(ByteRange::len) else { return false };
        show(run, unit.bytes(run));
        true
    }

    fn unit_used(&self, unit: &Unit<F>, part: ByteRange) {
        unit.note_use(part);
        if unit.take_ahead() {
            self.used_ahead_bytes.fetch_add(unit.len(), Relaxed);
        }
    }

    /// Ends a read of several units. A read that found only the first of them has not used any.
    #[inline]
    fn several_used(&self, file: &F, range: ByteRange) {
        if range.start / UNIT < range.end.saturating_sub(1) / UNIT {
            self.used(file, range);
        }
    }

    /// Called when a request was answered with the valid bytes of `range`, found by `read_valid`. This has to be called
    /// once for each request, because locality depends on which bytes are used again.
    pub fn used(&self, file: &F, range: ByteRange) {
        for (u, part) in units(range) {
            let shard = self.shard(file.id(), u).read();
            if let Some(unit) = shard.units.get(&(file.id(), u)) {
                unit.valid.within(part).for_each(|valid| self.unit_used(unit, valid));
            }
        }
    }

    /// Copies the valid bytes of `range` into `into`, and returns the parts that are not valid. Does not count as a use
    /// (`used`).
    pub fn read_valid(&self, file: &F, range: ByteRange, into: &mut [u8]) -> Vec<ByteRange> {
        let mut gaps = Vec::new();
        for (u, part) in units(range) {
            let shard = self.shard(file.id(), u).read();
            match shard.units.get(&(file.id(), u)) {
                None => push_joined(&mut gaps, part),
                Some(unit) => {
                    unit.valid.gaps(part).into_iter().for_each(|g| push_joined(&mut gaps, g));
                    let parts: smallvec::SmallVec<[ByteRange; 4]> = unit.valid.within(part).collect();
                    for p in parts {
                        let at = (p.start - range.start) as usize;
                        unit.read(p, &mut into[at..at + p.len() as usize]);
                    }
                }
            }
        }
        gaps
    }

    /// The parts of `range` that are not valid, ascending and joined.
    pub fn gaps(&self, file: &F, range: ByteRange) -> Vec<ByteRange> {
        let mut gaps = Vec::new();
        if file.cached().bytes.load(SeqCst) == 0 {
            push_joined(&mut gaps, range);
            return gaps;
        }
        for (u, part) in units(range) {
            let shard = self.shard(file.id(), u).read();
            match shard.units.get(&(file.id(), u)) {
                None => push_joined(&mut gaps, part),
                Some(unit) => unit.valid.gaps(part).into_iter().for_each(|g| push_joined(&mut gaps, g)),
            }
        }
        gaps
    }

    /// Puts `source` at `offset`, dirty. `check` is called under each unit's lock; if it returns `false`, the write
    /// ends there. Units whose last write is more than `cold_after` written bytes ago are written past the processor's
    /// caches. `taken` is called under the lock of each unit as soon as its written bytes count as dirty. So a caller
    /// that has found no dirty bytes before has not seen any part of this write. Bytes for which the servers have no
    /// room are put in all the same (`Put::Done`).
    pub fn write(
        &self,
        file: &Arc<F>,
        offset: u64,
        source: Source<'_>,
        cold_after: u64,
        now_ns: impl Fn() -> u64,
        hooks: (impl Fn() -> bool, impl Fn()),
    ) -> Put {
        self.put(file, offset, source, (cold_after, NoRoom::Put), now_ns, hooks)
    }

    /// Works as `write`, but is refused if the servers have no room for all units: before the first unit, or after the
    /// last one, so that no reader finds only some of the units.
    pub fn write_covered(
        &self,
        file: &Arc<F>,
        offset: u64,
        source: Source<'_>,
        cold_after: u64,
        now_ns: impl Fn() -> u64,
        hooks: (impl Fn() -> bool, impl Fn()),
    ) -> Put {
        self.put(file, offset, source, (cold_after, NoRoom::Refuse), now_ns, hooks)
    }

    fn put(
        &self,
        file: &Arc<F>,
        offset: u64,
        mut source: Source<'_>,
        (cold_after, no_room): (u64, NoRoom),
        now_ns: impl Fn() -> u64,
        (check, taken): (impl Fn() -> bool, impl Fn()),
    ) -> Put {
        let range = ByteRange::at(offset, source.len());
        let (mut full_chunk, mut all_covered) = (None, true);
        let (mut rewritten, mut adopted) = (false, 0);
        let written = self.written.fetch_add(range.len(), Relaxed);
        file.cached().locality.write(range.len());
        let mut parts = SmallVec::<[Arc<Buf>; CHUNK_UNITS as usize]>::new();
        if let Source::Units(bytes) = &mut source {
            let mut rest = std::mem::take(*bytes);
            parts.extend((0..range.len() / UNIT).map(|_| Arc::new(rest.split_to(UNIT as usize))));
        }
        for (u, part) in units(range) {
            let mut shard = self.shard(file.id(), u).write();
            let known = shard.units.get(&(file.id(), u));
            let missing = known.map_or(room::blocks(u * UNIT, part), |unit| unit.uncovered(part));
            let may = check();
            let covered = may && self.cover(file, u * UNIT, missing);
            let is_first = u == range.start / UNIT;
            if !may || (!covered && is_first && no_room == NoRoom::Refuse) {
                if let Source::Units(bytes) = source {
                    *bytes = Buf::shared(parts).unwrap_or_default();
                }
                return Put::Refused(part.start);
            }
            file.changes(part);
            let unit = shard.unit((file.id(), u), file, self.makers(), place(&**file, &source, range, u));
            if covered {
                unit.covered |= missing;
            }
            all_covered &= covered;
            let was_clean = unit.dirty.is_empty();
            let added = part.len() - unit.dirty.within(part).map(|r| r.len()).sum::<u64>();
            let cold = unit.is_cold(part, written, cold_after);
            match &mut source {
                Source::Copied(bytes) => {
                    self.grow(unit, file, part.end);
                    let at = (part.start - range.start) as usize;
                    unit.write(part, &bytes[at..at + part.len() as usize], cold);
                }
                // If a reader thread got cold memory, the kernel would copy into it page by page, which is the most
                // expensive way.
                Source::Unit(bytes) if cold && unit.is_free() => unit.write(part, bytes, true),
                Source::Unit(bytes) => {
                    let grown = unit.exchange(bytes, &self.spare);
                    self.account_grown(file, grown, part.end);
                    adopted += UNIT;
                }
                Source::Units(_) => {
                    let at = ((part.start - range.start) / UNIT) as usize;
                    let grown = unit.replace(parts[at].clone(), &self.spare);
                    self.account_grown(file, grown, part.end);
                    adopted += UNIT;
                }
            }
            if added > 0 {
                file.cached().dirty_bytes.fetch_add(added, SeqCst);
                self.dirty.fetch_add(added, Relaxed);
                if was_clean {
                    file.cached().dirty.lock().units.insert(u, now_ns());
                }
            }
            taken();
            if added == 0 {
                continue;
            }
            file.cached().locality.bring(added.div_ceil(PAGE));
            rewritten |= unit.was_sent();
            if unit.is_dirty_throughout() && self.chunk_is_dirty(&shard, file, u / CHUNK_UNITS) {
                let chunk = ByteRange::at(u / CHUNK_UNITS * CHUNK, CHUNK);
                full_chunk = Some(full_chunk.map_or(chunk, |f: ByteRange| ByteRange::new(f.start, chunk.end)));
            }
        }
        if !all_covered && no_room == NoRoom::Refuse {
            if let Source::Units(bytes) = source {
                *bytes = Buf::shared(parts).unwrap_or_default();
            }
            return Put::Refused(range.end);
        }
        Put::Done { full_chunk, rewritten, adopted, covered: all_covered }
    }

    /// The units with bytes of `range`, ascending. Adjacent ones are joined.
    pub fn units_of(&self, file: &F, range: ByteRange) -> Vec<ByteRange> {
        let keys = (file.id(), range.start / UNIT)..(file.id(), range.end.div_ceil(UNIT));
        let mut units: Vec<u64> = Vec::new();
        self.shards.iter().for_each(|s| units.extend(s.read().units.range(keys.clone()).map(|((_, u), _)| *u)));
        units.sort_unstable();
        let mut found = Vec::new();
        units.into_iter().for_each(|u| push_joined(&mut found, ByteRange::at(u * UNIT, UNIT).intersect(&range)));
        found
    }

    /// Nobody has written for a while, so memory that is reserved for the rest of streams is freed.
    pub fn rest(&self) {
        self.shards.iter().filter_map(|s| s.try_write()).for_each(|mut shard| shard.slab.let_go(&self.slabs));
    }

    /// Returns when every write into the cache that was under way has ended.
    pub fn barrier(&self) {
        self.shards.iter().for_each(|s| drop(s.write()));
    }

    /// The values that are needed to make a unit.
    fn makers(&self) -> (&AtomicU64, &Slabs) {
        (&self.turns, &self.slabs)
    }

    fn chunk_is_dirty(&self, shard: &Shard<F>, file: &F, chunk: u64) -> bool {
        let first = chunk * CHUNK_UNITS;
        let all = (file.id(), first)..(file.id(), first + CHUNK_UNITS);
        shard.units.range(all).filter(|(_, unit)| unit.is_dirty_throughout()).count() as u64 == CHUNK_UNITS
    }

    /// The unit, which is made if it does not exist, with memory for bytes up to `end`.
    fn unit<'a>(&self, shard: &'a mut Shard<F>, file: &Arc<F>, u: u64, end: u64) -> &'a mut Unit<F> {
        let unit = shard.unit((file.id(), u), file, self.makers(), Place::Any);
        self.grow(unit, file, end);
        unit
    }

    /// Gives a unit memory for bytes up to `end`.
    fn grow(&self, unit: &mut Unit<F>, file: &F, end: u64) {
        let grown = unit.grow(end, &self.spare);
        self.account_grown(file, grown, unit.range().start + unit.capacity());
    }

    /// Counts further memory of a unit that ends at `end`.
    fn account_grown(&self, file: &F, grown: u64, end: u64) {
        if grown == 0 {
            return;
        }
        self.used.fetch_add(grown, Relaxed);
        file.cached().end.fetch_max(end, SeqCst);
        file.cached().bytes.fetch_add(grown, SeqCst);
    }

    /// Evicts clean units that were not used since the clock hand passed them last, until memory is below
    /// `limit_bytes`. Returns the files that have no cached bytes any more.
    pub fn evict(&self, limit_bytes: u64) -> Vec<Arc<F>> {
        let (mut emptied, mut busy) = (Vec::new(), 0);
        for _ in 0..EVICT_STEPS {
            if self.used_bytes() <= limit_bytes {
                break;
            }
            let Some(i) = self.oldest(busy) else { break };
            match self.shards[i].try_write() {
                Some(mut shard) => self.evict_some(&mut shard, limit_bytes, &mut emptied),
                None => busy |= 1 << i,
            }
        }
        emptied
    }

    /// The shard with the oldest unit by the clock, without the shards in the mask `busy` and those in use.
    fn oldest(&self, busy: u64) -> Option<usize> {
        let turn = |i: usize| Some((self.shards[i].try_read()?.clock.front()?.1, i));
        (0..SHARDS).filter(|i| busy & (1 << i) == 0).filter_map(turn).min().map(|(_, i)| i)
    }

    /// Among the units whose turn has come, drops those that are clean and were not used since their last turn.
    fn evict_some(&self, shard: &mut Shard<F>, limit_bytes: u64, emptied: &mut Vec<Arc<F>>) {
        for _ in 0..EVICT_SCAN {
            if self.used_bytes() <= limit_bytes {
                return;
            }
            let Some((key, turn)) = shard.clock.pop_front() else { return };
            let Some(unit) = shard.units.get_mut(&key).filter(|unit| unit.turn == turn) else { continue };
            let pinned = unit.is_pinned();
            if pinned || unit.take_touched() {
                // A pinned unit stays because its bytes are dirty or under way to the disk. The stay is no evidence
                // that anybody uses the unit.
                if !pinned {
                    unit.survive();
                }
                unit.turn = self.turns.fetch_add(1, Relaxed);
                shard.clock.push_back((key, unit.turn));
                continue;
            }
            let Some(unit) = shard.units.remove(&key) else { continue };
            self.evicted_bytes.fetch_add(unit.cost(), Relaxed);
            self.ghosts.left(key);
            let file = unit.file.clone();
            self.account_gone(unit);
            if file.cached().bytes.load(SeqCst) == 0 {
                emptied.push(file);
            }
        }
    }

    /// Updates the counts for a unit that was removed from its shard.
    fn account_gone(&self, mut unit: Unit<F>) {
        self.uncover(&unit.file.clone(), &mut unit);
        let file = &unit.file;
        file.spoil(unit.range());
        let ahead = unit.take_ahead();
        if ahead {
            self.wasted_ahead_bytes.fetch_add(unit.len(), Relaxed);
        }
        file.cached().locality.leave(unit.len().div_ceil(PAGE), unit.was_reused());
        self.used.fetch_sub(unit.cost(), Relaxed);
        file.cached().bytes.fetch_sub(unit.cost(), SeqCst);
        unit.recycle(&self.spare);
    }
}

/// Returns the place for a unit that a write of `range` makes. The unit gets memory together with its chunk if the
/// write covers the chunk or continues a stream.
fn place<F: CachedFile>(file: &F, source: &Source<'_>, range: ByteRange, u: u64) -> Place {
    let Source::Copied(_) = source else { return Place::Any };
    if !u.is_multiple_of(CHUNK_UNITS) {
        return Place::GoesOn;
    }
    let start = u * UNIT;
    let goes_on = start >= slab::STREAM_BYTES && file.cached().end.load(SeqCst) == start;
    if goes_on || range.contains(&ByteRange::at(start, CHUNK)) { Place::Begins } else { Place::GoesOn }
}

/// Appends a range, and joins it to the last one if they touch.
pub fn push_joined(ranges: &mut Vec<ByteRange>, range: ByteRange) {
    match ranges.last_mut() {
        _ if range.is_empty() => {}
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

impl<F: CachedFile> PageCache<F> {
    /// Checks that the counts agree with the units. It is for tests, when nothing is under way.
    pub fn check(&self) {
        let (mut used, mut dirty) = (0, 0);
        for shard in &self.shards {
            for ((_, u), unit) in &shard.read().units {
                used += unit.cost();
                dirty += unit.dirty.total() + unit.flight.total();
                assert_eq!(!unit.dirty.is_empty(), unit.file.cached().dirty.lock().units.contains_key(u));
                let busy: Vec<ByteRange> = unit.dirty.iter().chain(unit.flight.iter()).collect();
                let busy = busy.iter().fold(0, |busy, r| busy | room::blocks(u * UNIT, *r));
                assert_eq!(unit.covered & !busy, 0, "only what is dirty or under way is covered");
                for set in [&unit.dirty, &unit.flight] {
                    assert!(set.iter().all(|r| unit.valid.contains(r)));
                }
            }
        }
        let rest: u64 = self.shards.iter().map(|shard| shard.read().slab.rest_bytes()).sum();
        assert_eq!((used + rest, dirty), (self.used_bytes(), self.dirty_bytes()));
    }
}
