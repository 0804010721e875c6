//! Reading items of an open zone: one, or those of a range of keys.
//!
//! Owns: the order in which the places of an item are searched. Does not own: the search in one segment (`segment`), or
//! in the changes of the log (`change`).
//!
//! The newest change of a key is in the records that are queued or being written, in the map of changes, in the one
//! that a checkpoint has taken, or in the newest segment that has the key. Queued records are not searched: if one has
//! the key, the read waits until it is written, and in the map.
//!
//! Invariant: `get` returns the value that the item has at that moment. While it reads the disk, records may be
//! appended and a checkpoint may replace segments; then it looks again. So may `scan` and `scan_keys`, whose results
//! have everything that was appended before the call.

use crate::change::{Changes, hash_of};
use crate::event::turn;
use crate::merge::Merge;
use crate::planted::{self, Mistake};
use crate::segment::{Segment, SegmentReader};
use crate::state::{Shared, State};
use crate::{ZoneError, ZoneErrorKind};
use amphi_env::{Disk, Env};
use amphi_types::item::{Change, Key};
use std::cmp::Ordering;
use std::rc::Rc;

/// The number of items of a scan that it reads before it lets other tasks run, and the most changes of the log that it
/// takes at once.
const SCAN_BATCH: usize = 1024;

/// Fewest changes of the log that a scan takes at once, if there are as many.
const LOG_PART_MIN: usize = 64;

/// The state of a scan that is under way.
struct Scan<'a> {
    /// The items that were found.
    items: Vec<(Key, Vec<u8>)>,
    /// The key at which the scan continues.
    from: Key,
    end: &'a [u8],
    max: usize,
}

impl Scan<'_> {
    fn goes_on(&self) -> bool {
        self.items.len() < self.max && self.from.as_slice() < self.end
    }
}

/// Segments, oldest first.
type Segments = Rc<Vec<Rc<Segment>>>;

/// A change that was found: the new value, or that the item is deleted.
type Found = Option<Vec<u8>>;

impl<E: Env> Shared<E> {
    /// See `Zone::get`.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ZoneError> {
        let hash = hash_of(key);
        loop {
            if is_queued(&self.state.borrow(), hash) {
                self.wait_all_written().await?;
                continue;
            }
            let (found, segments) = {
                let st = self.state.borrow();
                (in_memory(&st, key), st.medium.segments.clone())
            };
            if let Some(found) = found {
                return self.still_healthy().map(|()| found);
            }
            let found = self.search(&segments, key).await;
            let is_present = {
                let st = self.state.borrow();
                !is_queued(&st, hash) && in_memory(&st, key).is_none() && Rc::ptr_eq(&segments, &st.medium.segments)
            };
            if is_present || planted::is(Mistake::ReadsOld) {
                self.still_healthy()?;
                return found;
            }
        }
    }

    /// See `Zone::scan`.
    pub async fn scan(&self, from: &[u8], end: &[u8], max: usize) -> Result<Vec<(Key, Vec<u8>)>, ZoneError> {
        self.wait_all_written().await?;
        self.scan_written(from, end, max).await
    }

    /// See `Zone::scan_keys`.
    pub async fn scan_keys(&self, keys: &[Key]) -> Result<Vec<(Key, Vec<u8>)>, ZoneError> {
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return Ok(Vec::new()) };
        debug_assert!(keys.is_sorted(), "the keys are ascending");
        let mut hashes: Vec<u32> = keys.iter().map(|key| hash_of(key)).collect();
        hashes.sort_unstable();
        let is_wanted = |hash: u32| hashes.binary_search(&hash).is_ok();
        if is_any_queued(&self.state.borrow(), is_wanted) {
            self.wait_all_written().await?;
        }
        let end = [&last[..], &[0]].concat();
        let mut items = self.scan_written(first, &end, usize::MAX).await?;
        items.retain(|(key, _)| keys.binary_search(key).is_ok());
        Ok(items)
    }

    /// The items of a range, without records that are queued.
    async fn scan_written(&self, from: &[u8], end: &[u8], max: usize) -> Result<Vec<(Key, Vec<u8>)>, ZoneError> {
        let mut scan = Scan { items: Vec::new(), from: from.to_vec(), end, max };
        loop {
            let segments = self.state.borrow().medium.segments.clone();
            let found = self.read_range(&segments, &mut scan).await;
            // Pages of segments that were replaced meanwhile may have been overwritten. In that case the rest is read
            // from the new segments.
            let is_replaced = !Rc::ptr_eq(&segments, &self.state.borrow().medium.segments);
            match found {
                Ok(false) => {}
                Err(_) if is_replaced => {}
                Ok(true) => return self.still_healthy().map(|()| scan.items),
                Err(e) => return self.still_healthy().and(Err(e)),
            }
        }
    }

    /// Waits until everything that was appended before the call is written.
    async fn wait_all_written(&self) -> Result<(), ZoneError> {
        let appended = self.state.borrow().waiting.appended_lsn;
        match self.wait_written(appended).await {
            Ok(()) => Ok(()),
            Err(_) => self.still_healthy(),
        }
    }

    fn still_healthy(&self) -> Result<(), ZoneError> {
        match &self.state.borrow().life.failed {
            None => Ok(()),
            Some(text) => Err(ZoneError::new(ZoneErrorKind::Io, &self.path, text.clone())),
        }
    }

    /// The newest change of `key` in these segments: the value of the item then.
    async fn search(&self, segments: &Segments, key: &[u8]) -> Result<Option<Vec<u8>>, ZoneError> {
        for segment in segments.iter().rev() {
            let Some(place) = segment.index.find(key) else { continue };
            let mut reader = self.reader(segment, place).await?;
            let found = find(&mut reader, key).await;
            self.end_reading(reader);
            if let Some(found) = found? {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Continues with a scan in these segments. Returns false if they were replaced before it was at its end. The scan
    /// can be continued then, and also after an error.
    async fn read_range(&self, segments: &Segments, scan: &mut Scan<'_>) -> Result<bool, ZoneError> {
        let mut readers = Vec::with_capacity(segments.len());
        for segment in segments.iter().rev() {
            let Some(place) = segment.index.seek(&scan.from) else { continue };
            let mut reader = self.reader(segment, place).await?;
            skip_to(&mut reader, &scan.from).await?;
            readers.push(reader);
        }
        let mut is_current = true;
        while scan.goes_on() {
            let Some((changes, until)) = self.log_part(segments, scan).await else {
                is_current = false;
                break;
            };
            let (before, mut passed) = (scan.items.len(), 0);
            let mut merge = Merge::of(changes.sorted().await, readers);
            while scan.items.len() < scan.max
                && let Some(change) = merge.present().filter(|change| change.key() < &until[..])
            {
                if let Some(value) = change.value() {
                    scan.items.push((change.key().to_vec(), value.to_vec()));
                }
                if let Err(e) = merge.advance().await {
                    scan.items.truncate(before);
                    return Err(e);
                }
                passed += 1;
                if passed % SCAN_BATCH == 0 {
                    turn().await;
                }
            }
            readers = merge.into_segments();
            scan.from = until;
        }
        for reader in readers {
            self.end_reading(reader);
        }
        Ok(is_current)
    }

    /// The next changes of the log for a scan, and up to which key these are all. Returns `None` if the segments are
    /// not those any more over which the changes of the log belong.
    async fn log_part(&self, segments: &Segments, scan: &Scan<'_>) -> Option<(Changes, Key)> {
        let most = (scan.max - scan.items.len()).clamp(LOG_PART_MIN, SCAN_BATCH);
        loop {
            {
                let st = self.state.borrow();
                let taken = st.changes.frozen.as_deref().filter(|_| !planted::is(Mistake::FrozenUnread));
                let maps = [taken, Some(&st.changes.dirty)];
                let mut all_in_order = true;
                maps.iter().flatten().for_each(|map| all_in_order &= map.put_in_order());
                if all_in_order {
                    if !Rc::ptr_eq(segments, &st.medium.segments) && !planted::is(Mistake::ScansOld) {
                        return None;
                    }
                    let (mut part, mut until) = (Changes::default(), scan.end.to_vec());
                    // The older changes first.
                    for map in maps.iter().flatten() {
                        let mut count = 0;
                        map.visit_from(&scan.from, |change| {
                            if change.key() >= &until[..] {
                                return false;
                            }
                            part.insert(change);
                            count += 1;
                            if count == most {
                                until = [change.key(), &[0]].concat();
                            }
                            count < most
                        });
                    }
                    return Some((part, until));
                }
            }
            turn().await;
        }
    }

    /// Returns a reader of a segment that begins at a place.
    async fn reader(&self, segment: &Segment, place: (usize, usize)) -> Result<SegmentReader<'_, E::Disk>, ZoneError> {
        let memory = self.reads.spare_page.take();
        SegmentReader::from(&*self.disk, self.geometry, self.ids.zone, segment, place, memory).await
    }

    /// Keeps the memory of a reader for the next one, and reports damaged pages.
    fn end_reading(&self, mut reader: SegmentReader<'_, E::Disk>) {
        for (address, mended) in std::mem::take(reader.mended()) {
            // The next merge of the segment writes the page anew; until then each read of the page finds the damage.
            if !self.reads.damaged.borrow_mut().insert(address) {
                continue;
            }
            tracing::warn!("{}: {}: the block at byte {address} was damaged and was rebuilt", self.path, mended.place);
            self.state.borrow_mut().counters.rebuilt_blocks += 1;
        }
        self.reads.spare_page.set(Some(reader.into_memory()));
    }
}

/// Returns whether a record that is not written yet may change the key with this hash.
fn is_queued(st: &State, hash: u32) -> bool {
    is_any_queued(st, |of| of == hash)
}

/// Whether a record that is not written yet may change a key whose hash is wanted.
fn is_any_queued(st: &State, is_wanted: impl Fn(u32) -> bool) -> bool {
    if planted::is(Mistake::QueueUnread) {
        return false;
    }
    let queued = st.waiting.groups.iter().flat_map(|group| &group.hashes);
    st.waiting.writing_hashes.iter().chain(queued).any(|of| is_wanted(*of))
}

/// The newest change of a key that is not in a segment yet.
fn in_memory(st: &State, key: &[u8]) -> Option<Found> {
    let taken = || st.changes.frozen.as_ref().filter(|_| !planted::is(Mistake::FrozenUnread))?.get(key);
    let change: Change<'_> = st.changes.dirty.get(key).or_else(taken)?;
    Some(change.value().map(<[u8]>::to_vec))
}

/// Continues to `key`: its change, if the segment has one.
async fn find<D: Disk>(reader: &mut SegmentReader<'_, D>, key: &[u8]) -> Result<Option<Found>, ZoneError> {
    while let Some(change) = reader.next().await? {
        match change.key().cmp(key) {
            Ordering::Less => {}
            Ordering::Equal => return Ok(Some(change.value().map(<[u8]>::to_vec))),
            Ordering::Greater => break,
        }
    }
    Ok(None)
}

/// Continues to the first change with a key of `from` or greater, or to the end.
async fn skip_to<D: Disk>(reader: &mut SegmentReader<'_, D>, from: &[u8]) -> Result<(), ZoneError> {
    while reader.next().await?.is_some_and(|change| change.key() < from) {}
    Ok(())
}
