//! `Unit`: the memory of 64 KiB of a file, and the state of its bytes.
//!
//! Owns: the byte ranges of a unit, in file offsets: valid; dirty (newer than the server); flight (being written back,
//! from a copy or from this memory). Does not own: where units are found (`lib`).
//!
//! Invariant: dirty and flight are subsets of valid.

use crate::{CachedFile, Came, Loan, UNIT};
use amphi_env::Buf;
use amphi_env::buf::copy_streaming;
use amphi_types::{ByteRange, RangeSet};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Smallest memory of a unit, in bytes.
const SMALLEST: usize = 4096;

/// Estimated additional cost of a file and its unit in bytes: entries in tables, the lock on the file, and the overhead
/// of the allocator for each.
const BESIDE_BYTES: usize = 1536;

/// Memory of whole units between two uses. Touching new memory costs as much as the copy into it.
pub(crate) struct Spare {
    kept: Mutex<Vec<Buf>>,
    /// Memory for units of small files, by size. The allocator does not reuse a freed block of the same size for an
    /// aligned one.
    small: [Mutex<Vec<Buf>>; SMALL_SIZES],
    most: AtomicUsize,
}

/// Number of sizes below a unit's: powers of two from `SMALLEST` on.
const SMALL_SIZES: usize = (UNIT as usize / SMALLEST).ilog2() as usize;

/// The index of a size among these.
fn small_size(bytes: usize) -> Option<usize> {
    let is_one = bytes.is_power_of_two() && (SMALLEST..UNIT as usize).contains(&bytes);
    is_one.then(|| (bytes / SMALLEST).ilog2() as usize)
}

/// Most buffers that are kept.
const SPARE_MAX: usize = 128;
/// The kept buffers are at most one part in this many of the cache's size.
const SPARE_PART: u64 = 32;

impl Default for Spare {
    fn default() -> Spare {
        Spare { kept: Mutex::default(), small: Default::default(), most: AtomicUsize::new(SPARE_MAX) }
    }
}

impl Spare {
    /// Sets the most memory that the cache may use.
    pub(crate) fn set_limit(&self, limit_bytes: u64) {
        let most = (limit_bytes / SPARE_PART / UNIT).clamp(1, SPARE_MAX as u64) as usize;
        self.most.store(most, Relaxed);
        self.small.iter().chain([&self.kept]).for_each(|kept| kept.lock().truncate(most));
    }

    /// Memory of a unit, of arbitrary content.
    fn take(&self) -> Buf {
        self.kept.lock().pop().unwrap_or_else(|| Buf::scratch(UNIT as usize))
    }

    /// Memory of `bytes` for a small file, of arbitrary content.
    fn take_small(&self, bytes: usize) -> Buf {
        let kept = small_size(bytes).and_then(|size| self.small[size].lock().pop());
        kept.unwrap_or_else(|| Buf::zeroed(bytes))
    }

    pub(crate) fn give(&self, buf: Buf) {
        let size = small_size(buf.capacity()).filter(|_| buf.is_whole() && buf.len() == buf.capacity());
        let mut kept = size.map_or(&self.kept, |size| &self.small[size]).lock();
        let fits = size.is_some() || (buf.len() == UNIT as usize && buf.is_whole());
        if fits && kept.len() < self.most.load(Relaxed) {
            kept.push(buf);
        }
    }
}

/// Memory of a unit.
enum Memory {
    /// Separate memory, perhaps a part of a slab. While readers or write-back use it, it is read only, and a change is
    /// made to a copy.
    Own(Arc<Buf>),
    /// Part of what the server sent for several units; read only. It counts as the unit's own memory. If the clock hand
    /// leaves such a unit in the cache, the unit gets separate memory, so that one unit does not keep all of the
    /// buffer.
    Part { whole: Arc<Buf>, start: usize },
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Own(buf) => buf,
            Memory::Part { whole, start } => &whole[*start..*start + UNIT as usize],
        }
    }

    /// Keeps the memory for the next unit, if nobody else uses it.
    fn recycle(self, spare: &Spare) {
        if let Memory::Own(buf) = self
            && let Ok(buf) = Arc::try_unwrap(buf)
        {
            spare.give(buf);
        }
    }

    /// Memory that can be changed.
    fn own(&mut self) -> &mut Buf {
        if let Memory::Part { .. } = self {
            *self = Memory::Own(Arc::new(Buf::copy_of(self.bytes())));
        }
        let Memory::Own(buf) = self else { unreachable!("it was replaced above") };
        if Arc::get_mut(buf).is_none() {
            *buf = Arc::new(Buf::copy_of(buf));
        }
        Arc::get_mut(buf).expect("a new one has one owner")
    }
}

/// The last write to a unit.
#[derive(Clone, Copy)]
struct LastWrite {
    /// How many bytes had been written into the cache then; `NEVER` before the first write.
    at: u64,
    /// The end of that write.
    to: u64,
    /// The bytes behind it are probably in no cache of the processor.
    cold: bool,
}

/// The history of a unit since it was made.
#[derive(Clone, Copy, Default)]
struct Past {
    /// Eviction has passed over the unit once.
    survived: bool,
    /// Bytes of the unit were written back.
    sent: bool,
}

pub(crate) struct Unit<F> {
    pub(crate) file: Arc<F>,
    /// The turn of its entry in the clock.
    pub(crate) turn: u64,
    start: u64,
    memory: Memory,
    /// The memory, of arbitrary content, that the unit gets as soon as it needs some.
    place: Option<Buf>,
    pub(crate) valid: RangeSet,
    pub(crate) dirty: RangeSet,
    pub(crate) flight: RangeSet,
    /// Blocks for which free blocks at the servers were set aside, one bit each.
    pub(crate) covered: u16,
    touched: AtomicBool,
    past: Past,
    /// The unit was read ahead, and no program has read it yet.
    ahead: AtomicBool,
    came: Came,
    /// Bytes written to it and read from it since it was made, saturating.
    moved: AtomicU32,
    last_write: LastWrite,
}

/// Marks a unit that was not written yet; filling it has just brought it into the processor's caches.
const NEVER: u64 = u64::MAX;

impl<F: CachedFile> Unit<F> {
    /// The cost of a file and its unit besides the unit's memory, in bytes: the structures themselves, and what belongs
    /// to them.
    const BOOKS_BYTES: u64 = (size_of::<F>() + size_of::<Unit<F>>() + BESIDE_BYTES) as u64;

    pub(crate) fn new(file: Arc<F>, index: u64, turn: u64, place: Option<Buf>) -> Unit<F> {
        Unit {
            place,
            came: file.cached().locality.comes(),
            file,
            turn,
            start: index * UNIT,
            memory: Memory::Own(Arc::default()),
            valid: RangeSet::new(),
            dirty: RangeSet::new(),
            flight: RangeSet::new(),
            covered: 0,
            touched: AtomicBool::new(true),
            past: Past::default(),
            ahead: AtomicBool::new(false),
            moved: AtomicU32::new(0),
            last_write: LastWrite { at: NEVER, to: 0, cold: false },
        }
    }

    pub(crate) fn range(&self) -> ByteRange {
        ByteRange::at(self.start, UNIT)
    }

    pub(crate) fn capacity(&self) -> u64 {
        match &self.memory {
            Memory::Own(buf) => buf.capacity() as u64,
            Memory::Part { .. } => UNIT,
        }
    }

    /// Memory that the unit costs, in bytes. For a small file that includes the bytes that the allocator adds, and the
    /// records that the mount keeps for the file and the unit, which take as much as the bytes. For other units these
    /// are less than one part in ten, and are left out.
    pub(crate) fn cost(&self) -> u64 {
        match &self.memory {
            Memory::Own(buf) if buf.capacity() > 0 && buf.capacity() < UNIT as usize => {
                buf.cost_bytes() as u64 + Self::BOOKS_BYTES
            }
            _ => self.capacity(),
        }
    }

    /// Number of valid bytes.
    pub(crate) fn len(&self) -> u64 {
        self.valid.total()
    }

    /// Makes room for bytes up to file offset `end`. Returns by how much the memory grew.
    ///
    /// The first unit of a file grows in powers of two, so that a small file costs its size. Other units get all of
    /// their memory at once.
    pub(crate) fn grow(&mut self, end: u64, spare: &Spare) -> u64 {
        let need = (end - self.start) as usize;
        let before = self.cost();
        if need > self.memory.bytes().len() {
            let size = if self.start > 0 { UNIT as usize } else { need.next_power_of_two().max(SMALLEST) };
            let place = self.place.take();
            let other = || if size == UNIT as usize { spare.take() } else { spare.take_small(size) };
            let mut bigger = place.unwrap_or_else(other);
            let old = self.memory.bytes();
            bigger[..old.len()].copy_from_slice(old);
            self.memory = Memory::Own(Arc::new(bigger));
        }
        self.cost() - before
    }

    /// Passes the memory of a removed unit on to the next unit.
    pub(crate) fn recycle(self, spare: &Spare) {
        self.memory.recycle(spare);
    }

    /// Uses a part of `whole` as the unit's bytes, without a copy, if the unit contains nothing yet. Returns whether it
    /// did so.
    pub(crate) fn adopt(&mut self, whole: &Arc<Buf>, start: usize, ahead: bool) -> bool {
        if !self.valid.is_empty() || self.capacity() > 0 {
            return false;
        }
        self.memory = Memory::Part { whole: whole.clone(), start };
        self.valid.insert(self.range());
        *self.ahead.get_mut() = ahead;
        true
    }

    /// The clock hand has left it in the cache. The second time, the unit leaves memory that it shares with other
    /// units. Units of streams are gone by then, so streams cost no such copy.
    pub(crate) fn survive(&mut self) {
        if !std::mem::replace(&mut self.past.survived, true) {
            return;
        }
        match &mut self.memory {
            Memory::Own(buf) if buf.is_whole() => {}
            memory => *memory = Memory::Own(Arc::new(Buf::copy_of(memory.bytes()))),
        }
    }

    fn span(&self, part: ByteRange) -> std::ops::Range<usize> {
        (part.start - self.start) as usize..(part.end - self.start) as usize
    }

    /// The bytes of `part`, which must be valid.
    pub(crate) fn bytes(&self, part: ByteRange) -> &[u8] {
        &self.memory.bytes()[self.span(part)]
    }

    /// Copies `part` into `into`, if it is valid.
    pub(crate) fn read(&self, part: ByteRange, into: &mut [u8]) -> bool {
        if !self.valid.contains(part) {
            return false;
        }
        into.copy_from_slice(&self.memory.bytes()[self.span(part)]);
        true
    }

    /// Returns the memory of `part`, if it is valid.
    pub(crate) fn lend(&self, part: ByteRange) -> Option<Loan> {
        if !self.valid.contains(part) {
            return None;
        }
        let span = self.span(part);
        Some(match &self.memory {
            Memory::Own(buf) => Loan { whole: buf.clone(), range: span },
            Memory::Part { whole, start } => Loan { whole: whole.clone(), range: start + span.start..start + span.end },
        })
    }

    /// Notes that a request was answered with `part`.
    #[inline]
    pub(crate) fn note_use(&self, part: ByteRange) {
        // Load first: a store to a cache line that other threads read would make that line move between processors with
        // each hit.
        if !self.touched.load(Relaxed) {
            self.touched.store(true, Relaxed);
        }
        let moved = self.moved.load(Relaxed);
        if u64::from(moved) <= 2 * UNIT {
            self.moved.store(moved + part.len() as u32, Relaxed);
            if self.past.sent || !self.dirty.is_empty() {
                self.file.cached().locality.read_back(part.len());
            }
            if self.file.cached().locality.is_recent(self.came) && u64::from(moved) <= self.len() && self.was_reused() {
                self.file.cached().locality.use_again(self.len().div_ceil(super::PAGE));
            }
        }
    }

    /// Notes a write of `part` at a moment when `written` bytes had been written into the cache. Returns whether the
    /// unit's memory is probably in no cache of the processor. The stream has ended if more than `cold_after` bytes
    /// were written into the cache since its last write; it continues as long as writes continue at its end.
    pub(crate) fn is_cold(&mut self, part: ByteRange, written: u64, cold_after: u64) -> bool {
        let last = self.last_write;
        let goes_on = last.cold && part.start >= last.to;
        let cold = goes_on || written.saturating_sub(last.at) > cold_after;
        self.last_write = LastWrite { at: written, to: part.end, cold };
        cold
    }

    /// Returns true if its memory is complete, its own, and used by no other unit.
    pub(crate) fn is_free(&mut self) -> bool {
        match &mut self.memory {
            Memory::Own(own) => own.len() == UNIT as usize && Arc::get_mut(own).is_some(),
            Memory::Part { .. } => false,
        }
    }

    /// Puts dirty bytes in, past the processor's caches if it is `cold`. The memory must be large enough already.
    pub(crate) fn write(&mut self, part: ByteRange, bytes: &[u8], cold: bool) {
        let span = self.span(part);
        let to = &mut self.memory.own()[span];
        if cold {
            copy_streaming(to, bytes);
        } else {
            to.copy_from_slice(bytes);
        }
        self.now_dirty(part);
    }

    /// Makes the memory of `bytes`, which must have the size of a unit, the unit's own, without a copy; all of its
    /// bytes are dirty then. `bytes` gets other memory of arbitrary content. Returns by how much the memory grew.
    pub(crate) fn exchange(&mut self, bytes: &mut Buf, spare: &Spare) -> u64 {
        let before = self.cost();
        let free = match &mut self.memory {
            Memory::Own(own) if own.len() == UNIT as usize && own.is_whole() => Arc::get_mut(own),
            _ => None,
        };
        match free {
            Some(own) => std::mem::swap(own, bytes),
            // The old memory is used by readers, shared with other units, part of a slab, or too small.
            None => self.memory = Memory::Own(Arc::new(std::mem::replace(bytes, spare.take()))),
        }
        self.now_dirty(self.range());
        self.cost() - before
    }

    /// Makes `memory`, with dirty bytes of the whole unit, the unit's own. Returns by how much the memory grew.
    pub(crate) fn replace(&mut self, memory: Arc<Buf>, spare: &Spare) -> u64 {
        let before = self.cost();
        let old = std::mem::replace(&mut self.memory, Memory::Own(memory));
        old.recycle(spare);
        self.place = None;
        self.now_dirty(self.range());
        self.cost() - before
    }

    fn now_dirty(&mut self, part: ByteRange) {
        self.valid.insert(part);
        self.dirty.insert(part);
        // Bytes that are written and then read or written again count as used twice.
        self.note_use(part);
    }

    /// Puts bytes in where none are valid, and returns how many. `ahead`: the bytes were read ahead.
    pub(crate) fn fill(&mut self, part: ByteRange, bytes: &[u8], ahead: bool) -> u64 {
        let mut copied = 0;
        for gap in self.valid.gaps(part) {
            let at = (gap.start - part.start) as usize;
            let span = self.span(gap);
            self.memory.own()[span].copy_from_slice(&bytes[at..at + gap.len() as usize]);
            self.valid.insert(gap);
            copied += gap.len();
        }
        if ahead {
            *self.ahead.get_mut() = true;
        }
        copied
    }

    /// Copies dirty bytes out for write-back. Bytes that are written from now on become dirty again.
    pub(crate) fn send(&mut self, part: ByteRange, into: &mut [u8]) {
        into.copy_from_slice(&self.memory.bytes()[self.span(part)]);
        self.departs(part);
    }

    /// The unit's memory for write-back, if all of it is dirty and none of it in flight. A later change goes to a copy.
    pub(crate) fn sendable(&self) -> Option<&Arc<Buf>> {
        match &self.memory {
            Memory::Own(buf) if self.is_dirty_throughout() && self.flight.is_empty() => Some(buf),
            _ => None,
        }
    }

    /// Notes that the dirty bytes of `part` are in flight.
    pub(crate) fn departs(&mut self, part: ByteRange) {
        self.dirty.remove(part);
        self.flight.insert(part);
        self.past.sent = true;
    }

    pub(crate) fn was_sent(&self) -> bool {
        self.past.sent
    }

    /// Drops `part`, dirty or not.
    pub(crate) fn forget(&mut self, part: ByteRange) {
        for set in [&mut self.valid, &mut self.dirty, &mut self.flight] {
            set.remove(part);
        }
    }

    pub(crate) fn is_dirty_throughout(&self) -> bool {
        self.dirty.contains(self.range())
    }

    /// Returns whether it must not be evicted.
    pub(crate) fn is_pinned(&self) -> bool {
        !self.dirty.is_empty() || !self.flight.is_empty()
    }

    pub(crate) fn take_touched(&self) -> bool {
        self.touched.swap(false, Relaxed)
    }

    pub(crate) fn take_ahead(&self) -> bool {
        self.ahead.load(Relaxed) && self.ahead.swap(false, Relaxed)
    }

    /// Returns whether its bytes were used more than once on average.
    pub(crate) fn was_reused(&self) -> bool {
        u64::from(self.moved.load(Relaxed)) > self.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TestFile;

    /// Goal: the cost of a small file includes the allocator's rounding and the structures for it, the cost of a whole
    /// unit only its bytes. Method: units of both kinds.
    #[test]
    fn small_files_cost_more_than_their_bytes() {
        let (file, spare) = (TestFile::new(1), Spare::default());
        let books = Unit::<TestFile>::BOOKS_BYTES;
        let mut unit = Unit::new(file.clone(), 0, 1, None);
        assert_eq!((unit.grow(5000, &spare), unit.capacity()), (8192 + 4096 + books, 8192));
        assert_eq!((unit.grow(UNIT, &spare) + 8192 + 4096 + books, unit.cost()), (UNIT, UNIT));
        assert_eq!(Unit::new(file, 1, 2, None).grow(UNIT + 1, &spare), UNIT);
    }
}
