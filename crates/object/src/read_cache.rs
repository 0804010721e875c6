//! `ReadCache`: blocks of the data region that are cached in memory, exactly as the disk has them.
//!
//! Owns: which blocks are cached, which are evicted for others, and which are on their way between memory and disk.
//! Does not own: the disk (`ObjectDisk`, through which every change passes), whether a read is served from this cache
//! (the server's rule).
//!
//! The cache is keyed by physical block and has no information about files. A read finds its blocks by the extents,
//! just as it finds them on the disk. So truncates, punches, removals and new extents need not be reported. A block
//! changes in one way only, by a write to the disk.
//!
//! Invariants:
//!
//! * A cached block is what a read of the disk would return. The cached copy is dropped when a write of the block
//!   begins.
//! * Blocks that were read or written are cached only if no other write of one of them was under way at the start and
//!   none has begun since (`end`).
//! * After a write whose end is unknown, its blocks may change at any time, so they are never cached again. After
//!   `LOST_MAX` such writes nothing is cached any more.
//! * There are at most `limit` chunks of 64 KiB. Chunks that are used only once leave through a separate queue, which
//!   has a tenth of the space. So a large read evicts nothing that is used repeatedly (S3-FIFO: Yang et al., "FIFO
//!   queues are all you need for cache eviction", SOSP 2023).

use crate::planted::{self, Mistake};
use amphi_env::Buf;
use amphi_types::limits::BLOCK;
use futures_channel::oneshot;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

/// Blocks of a chunk, the unit of memory.
pub const CHUNK_BLOCKS: u64 = 16;
/// Bytes of a chunk.
pub const CHUNK_BYTES: u64 = CHUNK_BLOCKS * BLOCK;
/// Most writes without a seen end that are remembered.
const LOST_MAX: usize = 64;
/// One chunk in this many is for chunks that were used once.
const FRESH_SHARE: usize = 10;
/// Uses of a chunk are counted up to this number.
const USES_MAX: u8 = 3;

/// Runs of blocks, relative to the first block that was requested.
pub type Missing = SmallVec<[Range<u64>; 2]>;

/// 64 KiB of the data region.
struct Chunk {
    bytes: Buf,
    /// A bit for each block that is cached.
    valid: u16,
    uses: u8,
    /// Number of its entry in a queue.
    number: u64,
}

/// An entry of a queue: the chunk, and the number that the chunk must have if the entry is current.
type Place = (u64, u64);

/// Blocks on their way between memory and disk.
struct Access {
    number: u64,
    blocks: Range<u64>,
    writes: bool,
    /// The blocks must not be cached when they arrive.
    stale: bool,
    waiting: Vec<oneshot::Sender<()>>,
}

/// The cached blocks of one target.
#[derive(Default)]
pub struct ReadCache {
    chunks: BTreeMap<u64, Chunk>,
    fresh: VecDeque<Place>,
    kept: VecDeque<Place>,
    /// Chunks that were evicted lately. A chunk that comes back counts as used repeatedly.
    ghosts: VecDeque<u64>,
    is_ghost: BTreeSet<u64>,
    /// Most chunks, as it was set.
    tuned: usize,
    /// Most chunks at present, which is fewer while memory is short.
    limit: usize,
    accesses: Vec<Access>,
    lost: usize,
    next: u64,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// `blocks` by chunk: each chunk, and which of its blocks.
fn by_chunk(blocks: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    (blocks.start / CHUNK_BLOCKS..blocks.end.div_ceil(CHUNK_BLOCKS)).map(move |chunk| {
        let base = chunk * CHUNK_BLOCKS;
        (chunk, blocks.start.max(base) - base..blocks.end.min(base + CHUNK_BLOCKS) - base)
    })
}

fn mask(blocks: &Range<u64>) -> u16 {
    blocks.clone().fold(0, |mask, block| mask | 1 << block)
}

fn bytes_of(blocks: &Range<u64>) -> Range<usize> {
    (blocks.start * BLOCK) as usize..(blocks.end * BLOCK) as usize
}

impl ReadCache {
    /// Sets how many bytes may be cached, and evicts the excess.
    pub fn tune(&mut self, bytes: u64) {
        self.tuned = if self.lost >= LOST_MAX { 0 } else { (bytes / CHUNK_BYTES) as usize };
        self.limit = self.tuned;
        self.shrink(self.limit);
    }

    /// Called when memory is short, or no longer is. Each call while memory is short evicts half of the cache.
    pub fn press(&mut self, is_short: bool) {
        self.limit = if is_short { self.tuned.min(self.chunks.len() / 2) } else { self.tuned };
        self.shrink(self.limit);
    }

    /// Returns whether anything may be cached.
    pub fn is_open(&self) -> bool {
        self.limit > 0
    }

    /// Bytes of memory in use.
    pub fn held_bytes(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK_BYTES
    }

    /// Returns whether all of these blocks are cached.
    pub fn has(&self, blocks: Range<u64>) -> bool {
        by_chunk(blocks).all(|(chunk, part)| {
            let mask = mask(&part);
            self.chunks.get(&chunk).is_some_and(|c| c.valid & mask == mask)
        })
    }

    /// Copies the cached blocks from `first` on into `into`, which is whole blocks. Returns the runs that are not
    /// cached, counted from `first`.
    pub fn copy(&mut self, first: u64, into: &mut [u8]) -> Missing {
        let mut missing = Missing::new();
        for (chunk, part) in by_chunk(first..first + into.len() as u64 / BLOCK) {
            let base = chunk * CHUNK_BLOCKS;
            let mut found = self.chunks.get_mut(&chunk);
            for block in part {
                let at = base + block - first;
                match &found {
                    Some(c) if c.valid & 1 << block != 0 => {
                        into[bytes_of(&(at..at + 1))].copy_from_slice(&c.bytes[bytes_of(&(block..block + 1))]);
                    }
                    _ => match missing.last_mut() {
                        Some(last) if last.end == at => last.end += 1,
                        _ => missing.push(at..at + 1),
                    },
                }
            }
            if let Some(c) = &mut found {
                c.uses = USES_MAX.min(c.uses + 1);
            }
        }
        missing
    }

    /// Caches blocks from `first` on. Only blocks that `end` permits may be passed.
    pub fn put(&mut self, first: u64, bytes: &[u8]) {
        for (chunk, part) in by_chunk(first..first + bytes.len() as u64 / BLOCK) {
            if self.limit == 0 {
                return;
            }
            let from = chunk * CHUNK_BLOCKS + part.start - first;
            let from = bytes_of(&(from..from + part.end - part.start));
            if !self.chunks.contains_key(&chunk) {
                self.shrink(self.limit - 1);
                self.insert(chunk);
            }
            if let Some(c) = self.chunks.get_mut(&chunk) {
                c.bytes[bytes_of(&part)].copy_from_slice(&bytes[from]);
                c.valid |= mask(&part);
            }
        }
    }

    fn insert(&mut self, chunk: u64) {
        let number = self.number();
        let bytes = Buf::scratch(CHUNK_BYTES as usize);
        self.chunks.insert(chunk, Chunk { bytes, valid: 0, uses: 0, number });
        let queue = if self.is_ghost.remove(&chunk) { &mut self.kept } else { &mut self.fresh };
        queue.push_back((chunk, number));
        // Entries of chunks that were dropped stay in their queue until they are met.
        let most = 2 * self.limit + 64;
        for queue in [&mut self.fresh, &mut self.kept] {
            if queue.len() > most {
                queue.retain(|(chunk, number)| self.chunks.get(chunk).is_some_and(|c| c.number == *number));
            }
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn shrink(&mut self, chunks: usize) {
        while self.chunks.len() > chunks {
            let from_fresh = self.kept.is_empty() || self.fresh.len() > self.limit / FRESH_SHARE;
            let queue = if from_fresh { &mut self.fresh } else { &mut self.kept };
            let Some((chunk, number)) = queue.pop_front() else {
                debug_assert!(false, "a chunk is in no queue");
                self.chunks.clear();
                return;
            };
            let Some(c) = self.chunks.get_mut(&chunk).filter(|c| c.number == number) else { continue };
            if c.uses > 0 {
                c.uses = if from_fresh { 0 } else { c.uses - 1 };
                self.kept.push_back((chunk, number));
                continue;
            }
            self.chunks.remove(&chunk);
            if from_fresh && self.is_ghost.insert(chunk) {
                self.ghosts.push_back(chunk);
            }
        }
        while self.ghosts.len() > self.limit
            && let Some(oldest) = self.ghosts.pop_front()
        {
            self.is_ghost.remove(&oldest);
        }
    }

    /// A read or write of blocks begins.
    fn begin(&mut self, blocks: Range<u64>, writes: bool) -> u64 {
        let mut stale = false;
        for other in self.accesses.iter_mut().filter(|a| overlap(&a.blocks, &blocks)) {
            stale |= other.writes;
            other.stale |= writes;
        }
        if writes && !planted::is(Mistake::KeptOverWrite) {
            self.drop_blocks(blocks.clone());
        }
        let number = self.number();
        self.accesses.push(Access { number, blocks, writes, stale, waiting: Vec::new() });
        number
    }

    fn drop_blocks(&mut self, blocks: Range<u64>) {
        let chunks = blocks.start / CHUNK_BLOCKS..blocks.end.div_ceil(CHUNK_BLOCKS);
        let found: SmallVec<[u64; 4]> = self.chunks.range(chunks).map(|(chunk, _)| *chunk).collect();
        for chunk in found {
            let base = chunk * CHUNK_BLOCKS;
            let part = blocks.start.max(base) - base..blocks.end.min(base + CHUNK_BLOCKS) - base;
            if let Some(c) = self.chunks.get_mut(&chunk) {
                c.valid &= !mask(&part);
                if c.valid == 0 {
                    self.chunks.remove(&chunk);
                }
            }
        }
    }

    /// Called when the transfer of the blocks has ended if `is_known`; otherwise it is unknown whether it has. Returns
    /// whether they may be cached.
    fn end(&mut self, number: u64, is_known: bool) -> bool {
        let Some(at) = self.accesses.iter().position(|a| a.number == number) else { return false };
        if self.accesses[at].writes && !is_known {
            self.lost += 1;
            if self.lost >= LOST_MAX {
                self.tune(0);
            }
            return false;
        }
        !self.accesses.swap_remove(at).stale || planted::is(Mistake::LateKeep)
    }

    /// If another task is reading this block from the disk to cache it: resolves when that has ended.
    pub fn awaited(&mut self, block: u64) -> Option<oneshot::Receiver<()>> {
        let access = self.accesses.iter_mut().find(|a| !a.writes && !a.stale && a.blocks.contains(&block))?;
        let (bell, rung) = oneshot::channel();
        access.waiting.push(bell);
        Some(rung)
    }
}

/// Blocks that are being read or written. If this is dropped without `end`, it is unknown whether they arrived.
pub struct OnTheWay {
    cache: Rc<RefCell<ReadCache>>,
    number: u64,
    has_ended: bool,
}

impl OnTheWay {
    /// A read of blocks from the disk begins. With `writes` it is a write to the disk, and cached copies are dropped.
    pub fn begin(cache: &Rc<RefCell<ReadCache>>, blocks: Range<u64>, writes: bool) -> OnTheWay {
        let number = cache.borrow_mut().begin(blocks, writes);
        OnTheWay { cache: cache.clone(), number, has_ended: false }
    }

    /// Called when the blocks have arrived. Returns whether they may be cached.
    pub fn end(mut self) -> bool {
        self.has_ended = true;
        self.cache.borrow_mut().end(self.number, true)
    }
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        if !self.has_ended {
            self.cache.borrow_mut().end(self.number, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::plant;
    use amphi_env::sim::SimConfig;
    use amphi_env::{Env, Sim};
    use std::panic::catch_unwind;

    const DISK: u64 = 400;

    fn block(version: u64) -> Vec<u8> {
        version.to_le_bytes().repeat(BLOCK as usize / 8)
    }

    /// Random operations; returns how many blocks were found kept.
    fn against_a_disk(seed: u64) -> u64 {
        struct Under {
            way: OnTheWay,
            blocks: Range<u64>,
            writes: bool,
            /// The bytes that it reads or writes, once it has reached the disk.
            seen: Option<Vec<u64>>,
        }
        let mut kept_something = 0;
        let env = Sim::new(seed, SimConfig::default()).node("n");
        let below = |n: u64| env.rand() % n;
        let cache = Rc::new(RefCell::new(ReadCache::default()));
        cache.borrow_mut().tune(8 * CHUNK_BYTES);
        let mut disk: Vec<u64> = vec![0; DISK as usize];
        let (mut under, mut version): (Vec<Under>, u64) = (Vec::new(), 0);
        for _ in 0..2_000 {
            match below(10) {
                0..3 => {
                    let at = below(DISK - 1);
                    let blocks = at..DISK.min(at + 1 + below(40));
                    let writes = below(3) == 0;
                    // Two writes of one block are never under way together: spans keep them apart.
                    if writes && under.iter().any(|u| u.writes && overlap(&u.blocks, &blocks)) {
                        continue;
                    }
                    let way = OnTheWay::begin(&cache, blocks.clone(), writes);
                    under.push(Under { way, blocks, writes, seen: None });
                }
                3..6 if !under.is_empty() => {
                    let at = below(under.len() as u64) as usize;
                    let u = &mut under[at];
                    let range = u.blocks.start as usize..u.blocks.end as usize;
                    if u.writes && u.seen.is_none() {
                        version += 1;
                        disk[range.clone()].fill(version);
                    }
                    u.seen.get_or_insert_with(|| disk[range].to_vec());
                }
                6..8 => {
                    let Some(at) = under.iter().position(|u| u.seen.is_some()) else { continue };
                    let Under { way, blocks, seen, .. } = under.swap_remove(at);
                    if below(50) == 0 {
                        drop(way);
                        continue;
                    }
                    if way.end() {
                        let bytes: Vec<u8> = seen.unwrap_or_default().into_iter().flat_map(block).collect();
                        cache.borrow_mut().put(blocks.start, &bytes);
                    }
                }
                8 => {
                    let at = below(DISK - 40);
                    let mut into = vec![0; 40 * BLOCK as usize];
                    let missing = cache.borrow_mut().copy(at, &mut into);
                    for b in (0..40).filter(|b| !missing.iter().any(|m| m.contains(b))) {
                        // A write under way may have reached the disk, or not: those blocks are not read then.
                        let is_written = under.iter().any(|u| u.writes && u.blocks.contains(&(at + b)));
                        assert!(!is_written, "kept during a write");
                        let want = block(disk[(at + b) as usize]);
                        assert!(into[bytes_of(&(b..b + 1))] == want, "seed {seed}, block {}", at + b);
                        kept_something += 1;
                    }
                }
                _ if below(30) == 0 => cache.borrow_mut().tune(below(12) * CHUNK_BYTES),
                _ => {
                    let held = cache.borrow().held_bytes();
                    assert!(held <= cache.borrow().limit as u64 * CHUNK_BYTES);
                }
            }
        }
        kept_something
    }

    /// Goal: with reads, writes, caching and drops in any order and in parallel, cached blocks equal those on the disk;
    /// a write that drops nothing and a read that is cached in spite of a concurrent write are detected. Method: random
    /// operations over a disk of versions; writes reach it at a moment between their begin and their end, reads see it
    /// at such a moment; a cache of 8 chunks, sometimes less. Both mistakes are planted.
    #[test]
    fn what_is_kept_is_what_the_disk_has() {
        let kept: u64 = (0..8).map(against_a_disk).sum();
        assert!(kept > 1_000, "{kept}");
        for mistake in [Mistake::KeptOverWrite, Mistake::LateKeep] {
            plant(Some(mistake));
            let found = (0..8).any(|seed| catch_unwind(|| against_a_disk(seed)).is_err());
            plant(None);
            assert!(found, "{mistake:?}");
        }
    }

    /// Goal: blocks read once do not evict those that are used again; blocks that are soon used again stay. Method:
    /// four chunks in use, a stream of a hundred others through a cache of 20.
    #[test]
    fn a_stream_leaves_what_is_in_use() {
        let mut cache = ReadCache::default();
        cache.tune(20 * CHUNK_BYTES);
        let chunk = vec![7; CHUNK_BYTES as usize];
        let mut into = vec![0; CHUNK_BYTES as usize];
        for used in 0..4 {
            cache.put(used * CHUNK_BLOCKS, &chunk);
            assert!(cache.copy(used * CHUNK_BLOCKS, &mut into).is_empty());
        }
        (100..200).for_each(|other| cache.put(other * CHUNK_BLOCKS, &chunk));
        assert!((0..4).all(|used| cache.has(used * CHUNK_BLOCKS..(used + 1) * CHUNK_BLOCKS)));
        assert_eq!(cache.held_bytes(), 20 * CHUNK_BYTES);
        assert_eq!(cache.ghosts.len(), 20);
        cache.press(true);
        assert_eq!(cache.held_bytes(), 10 * CHUNK_BYTES);
        cache.put(300 * CHUNK_BLOCKS, &chunk);
        assert_eq!(cache.held_bytes(), 10 * CHUNK_BYTES);
        (0..5).for_each(|_| cache.press(true));
        assert_eq!(cache.held_bytes(), 0);
        cache.press(false);
        cache.put(300 * CHUNK_BLOCKS, &chunk);
        assert_eq!(cache.held_bytes(), CHUNK_BYTES);
        cache.tune(0);
        assert_eq!((cache.held_bytes(), cache.is_open()), (0, false));
        cache.put(0, &chunk);
        assert_eq!(cache.held_bytes(), 0);
    }

    /// Goal: after writes whose end was not reported their blocks are not cached any more, and after many no block is.
    /// Method: they are dropped.
    #[test]
    fn lost_writes_are_never_kept() {
        let cache = Rc::new(RefCell::new(ReadCache::default()));
        cache.borrow_mut().tune(8 * CHUNK_BYTES);
        drop(OnTheWay::begin(&cache, 3..5, true));
        assert!(!OnTheWay::begin(&cache, 4..9, false).end());
        assert!(OnTheWay::begin(&cache, 5..9, false).end());
        drop(OnTheWay::begin(&cache, 5..9, false));
        assert!(OnTheWay::begin(&cache, 5..9, false).end(), "a read that is given up harms nobody");
        (0..LOST_MAX as u64).for_each(|_| drop(OnTheWay::begin(&cache, 3..5, true)));
        assert!(!cache.borrow().is_open());
        cache.borrow_mut().tune(8 * CHUNK_BYTES);
        assert!(!cache.borrow().is_open());
    }
}
