//! Bytes on their way between cache and server: fills, and dirty bytes taken out for write-back.
//!
//! Owns: these moves. Does not own: the requests (the owner of the cache).

use super::{CHUNK, CachedFile, PageCache, Place, Shard, UNIT, units};
use amphi_env::Buf;
use amphi_types::ByteRange;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// If fewer whole units than this are dirty, they are copied, so that they can be sent together with the bytes behind
/// them.
const LENT_MIN: u64 = 4;

/// How a flight ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// The bytes are on the server.
    Done,
    /// The bytes are not on the server and will not be, so they are dropped.
    Failed,
    /// The bytes are dirty again.
    Again,
}

impl<F: CachedFile> PageCache<F> {
    /// Puts `bytes` from the server at `range` where nothing is valid yet. Bytes of `range` behind them become zeros.
    /// `still_true` is asked under each unit's lock for the unit's part. Returns how many of `bytes` were copied; the
    /// others stay in the memory in which they arrived.
    pub fn fill(
        &self,
        file: &Arc<F>,
        range: ByteRange,
        bytes: &Arc<Buf>,
        ahead: bool,
        still_true: impl Fn(ByteRange) -> bool,
    ) -> u64 {
        let mut copied = 0;
        static ZEROS: [u8; UNIT as usize] = [0; UNIT as usize];
        for (u, part) in units(range) {
            let mut shard = self.shard(file.id(), u).write();
            if !still_true(part) {
                continue;
            }
            file.cached().locality.bring(part.len().div_ceil(super::PAGE));
            if !shard.units.contains_key(&(file.id(), u)) {
                self.ghosts.asked((file.id(), u));
            }
            if self.adopt(&mut shard, file, u, part, range, bytes, ahead) {
                continue;
            }
            let unit = self.unit(&mut shard, file, u, part.end);
            let known = ByteRange::at(range.start, bytes.len() as u64).intersect(&part);
            if !known.is_empty() {
                let at = (known.start - range.start) as usize;
                copied += unit.fill(known, &bytes[at..at + known.len() as usize], ahead);
            }
            let beyond = ByteRange::new(known.end.max(part.start), part.end);
            if !beyond.is_empty() {
                unit.fill(beyond, &ZEROS[..beyond.len() as usize], ahead);
            }
        }
        copied
    }

    /// Fills a whole unit that does not exist yet, without a copy. Returns whether that was possible.
    #[expect(clippy::too_many_arguments, reason = "a step of `fill`, which has them all")]
    fn adopt(
        &self,
        shard: &mut Shard<F>,
        file: &Arc<F>,
        u: u64,
        part: ByteRange,
        range: ByteRange,
        bytes: &Arc<Buf>,
        ahead: bool,
    ) -> bool {
        let at = part.start - range.start;
        if part.len() < UNIT || at + UNIT > bytes.len() as u64 {
            return false;
        }
        let unit = shard.unit((file.id(), u), file, self.makers(), Place::Any);
        let adopted = unit.adopt(bytes, at as usize, ahead);
        if adopted {
            self.account_grown(file, UNIT, part.end);
        }
        adopted
    }

    /// Dirty runs within `range` that are not in flight, ascending and joined across units.
    pub fn dirty_runs(&self, file: &F, range: ByteRange) -> Vec<ByteRange> {
        let mut runs = Vec::new();
        let (first, end) = (range.start / UNIT, range.end.div_ceil(UNIT));
        let indexed: Vec<u64> = file.cached().dirty.lock().units.range(first..end).map(|(u, _)| *u).collect();
        for u in indexed {
            let shard = self.shard(file.id(), u).read();
            if let Some(unit) = shard.units.get(&(file.id(), u)) {
                for dirty in unit.dirty.within(range) {
                    for part in unit.flight.gaps(dirty) {
                        super::push_joined(&mut runs, part);
                    }
                }
            }
        }
        runs
    }

    /// End of the dirty bytes of a file; 0 without any.
    pub fn dirty_end(&self, file: &F) -> u64 {
        let last = file.cached().dirty.lock().units.last_key_value().map(|(u, _)| *u);
        let dirty = last.and_then(|u| {
            let shard = self.shard(file.id(), u).read();
            let unit = shard.units.get(&(file.id(), u))?;
            unit.dirty.iter().map(|r| r.end).max()
        });
        dirty.unwrap_or(0)
    }

    /// Takes dirty bytes at the start of `range` out for write-back: without a gap, not in flight, and either all
    /// covered or all uncovered (`room`). Returns them in a buffer aligned as their file offset, and whether they are
    /// covered. The bytes stay readable.
    ///
    /// If whole units lie in one piece of memory (`slab`), that memory itself is sent, for as many units of a chunk as
    /// there are. Otherwise everything is copied.
    pub fn take_dirty(&self, file: &F, range: ByteRange) -> Option<(ByteRange, Buf, bool)> {
        if let Some(lent) = self.lend_dirty(file, range) {
            return Some(lent);
        }
        let mut buf = crate::scratch_for(range);
        let (mut end, mut covered) = (range.start, None);
        for (u, part) in units(range) {
            let mut shard = self.shard(file.id(), u).write();
            let Some(unit) = shard.units.get_mut(&(file.id(), u)) else { break };
            let run = unit.dirty.within(part).next().filter(|r| r.start == part.start);
            let Some(run) = run else { break };
            let run = match unit.flight.within(run).next() {
                Some(flight) => ByteRange::new(run.start, flight.start),
                None => run,
            };
            if run.is_empty() {
                break;
            }
            let (run, is_covered) = unit.alike(run);
            if *covered.get_or_insert(is_covered) != is_covered {
                break;
            }
            let at = (run.start - range.start) as usize;
            unit.send(run, &mut buf[at..at + run.len() as usize]);
            if unit.dirty.is_empty() {
                file.cached().dirty.lock().units.remove(&u);
            }
            end = run.end;
            if run.end < part.end {
                break;
            }
        }
        let taken = ByteRange::new(range.start, end);
        if taken.is_empty() {
            return None;
        }
        buf.narrow(0..taken.len() as usize);
        Some((taken, buf, covered.unwrap_or(false)))
    }

    /// Takes several whole dirty units at the start of `range` without a copy, if they lie in one piece of memory.
    fn lend_dirty(&self, file: &F, range: ByteRange) -> Option<(ByteRange, Buf, bool)> {
        let first = range.start / UNIT;
        let end = (range.start - range.start % CHUNK + CHUNK).min(range.end) / UNIT;
        if !range.start.is_multiple_of(UNIT) || end < first + LENT_MIN {
            return None;
        }
        let keys = (file.id(), first)..(file.id(), end);
        let mut shard = self.shard(file.id(), first).write();
        let (mut held, mut behind) = (SmallVec::<[Arc<Buf>; 16]>::new(), std::ptr::null());
        let covered = shard.units.get(&(file.id(), first))?.cover_of_all()?;
        for (unit, u) in shard.units.range(keys.clone()).zip(first..) {
            let ((_, at), unit) = unit;
            let Some(memory) = unit.sendable().filter(|m| *at == u && (held.is_empty() || m.as_ptr() == behind)) else {
                break;
            };
            if unit.cover_of_all() != Some(covered) {
                break;
            }
            behind = memory.as_ptr_range().end;
            held.push(memory.clone());
        }
        let count = held.len() as u64;
        if count < LENT_MIN {
            return None;
        }
        let buf = Buf::shared(held)?;
        for ((_, u), unit) in shard.units.range_mut(keys).take(count as usize) {
            unit.departs(unit.range());
            file.cached().dirty.lock().units.remove(u);
        }
        Some((ByteRange::at(range.start, count * UNIT), buf, covered))
    }

    /// Ends the flight of `range`. `before_less` is called when the bytes have their final state and still count as
    /// dirty. So a caller that finds no dirty bytes also finds a failure recorded.
    pub fn landed(&self, file: &F, range: ByteRange, landing: Landing, now_ns: u64, before_less: impl FnOnce()) {
        let mut less = range.len();
        for (u, part) in units(range) {
            let mut shard = self.shard(file.id(), u).write();
            let Some(unit) = shard.units.get_mut(&(file.id(), u)) else { continue };
            unit.flight.remove(part);
            let gaps = unit.dirty.gaps(part);
            match landing {
                Landing::Done => {}
                // Bytes that were written again meanwhile will be sent once more anyway.
                Landing::Failed => {
                    // Under the shard's lock, so that no fill begins between the drop and the note.
                    file.spoil(part);
                    file.changes(part);
                    gaps.into_iter().for_each(|gap| unit.forget(gap));
                    if unit.valid.is_empty() {
                        if let Some(unit) = shard.units.remove(&(file.id(), u)) {
                            self.account_gone(unit);
                        }
                        continue;
                    }
                }
                Landing::Again => {
                    for gap in gaps {
                        unit.dirty.insert(gap);
                        less -= gap.len();
                    }
                    file.cached().dirty.lock().units.entry(u).or_insert(now_ns);
                }
            }
            self.uncover(file, unit);
        }
        before_less();
        file.cached().dirty_bytes.fetch_sub(less, SeqCst);
        self.dirty.fetch_sub(less, Relaxed);
    }

    /// Units of `file` that became dirty before `before_ns`, as joined ranges.
    pub fn aged(&self, file: &F, before_ns: u64) -> Vec<ByteRange> {
        let mut ranges = Vec::new();
        let units: BTreeMap<u64, u64> = file.cached().dirty.lock().units.clone();
        for (u, _) in units.into_iter().filter(|(_, since)| *since <= before_ns) {
            super::push_joined(&mut ranges, ByteRange::at(u * UNIT, UNIT));
        }
        ranges
    }
}
