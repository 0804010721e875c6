//! `Slab`: one piece of memory for all units of a chunk, so that write-back sends them in one request without a copy.
//!
//! Owns: which units get such memory. Does not own: whether they are sent in this way (`fill`).
//!
//! If a chunk is written as a whole by one call, or in the course of a long stream, its units get parts of one buffer.
//! The buffer is freed when its last unit has left it. So a slab costs more than its units if some of them are never
//! made, or stay. Three rules limit that: a stream must have written `STREAM_BYTES` before it gets slabs, a stream that
//! ends wastes at most one slab, and a unit that stays in the cache for long gets memory of its own.
//!
//! Invariants: a slab is given out in the order of its units, and each shard gives out at most one slab at a time.

use super::{CHUNK, CHUNK_UNITS, Key, UNIT};
use amphi_env::Buf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// If a file has this many cached bytes, a write that continues them counts as a stream.
pub(super) const STREAM_BYTES: u64 = 4 << 20;
/// After this many further units of the cache, a slab that is not continued makes room for another one.
const STALE_TURNS: u64 = 4096;

/// The unused parts of all slabs together are at most one part in this many of the cache's size.
const REST_PART: u64 = 4;

/// The unused parts of all slabs: memory that no unit uses yet.
#[derive(Default)]
pub(super) struct Slabs {
    rest_bytes: AtomicU64,
    /// How much memory the cache may take; 0 if it is not known.
    limit_bytes: AtomicU64,
}

impl Slabs {
    pub(super) fn bytes(&self) -> u64 {
        self.rest_bytes.load(Relaxed)
    }

    /// Sets the most memory that the cache may use. Returns whether that changed.
    #[inline]
    pub(super) fn set_limit(&self, limit_bytes: u64) -> bool {
        self.limit_bytes.load(Relaxed) != limit_bytes && self.limit_bytes.swap(limit_bytes, Relaxed) != limit_bytes
    }

    fn has_room(&self) -> bool {
        let limit = self.limit_bytes.load(Relaxed);
        limit == 0 || self.bytes() + CHUNK <= limit / REST_PART
    }
}

/// The unused part of a slab.
struct Rest {
    next: Key,
    memory: Buf,
    since: u64,
}

/// The slab that a shard is giving out.
#[derive(Default)]
pub(super) struct Slab(Option<Rest>);

impl Slab {
    /// Memory for a unit that was made at turn `now`, if it is the next unit of the slab, or if it `begins` one.
    pub(super) fn piece(&mut self, slabs: &Slabs, key: Key, begins: bool, now: u64) -> Option<Buf> {
        let goes_on = self.0.as_ref().is_some_and(|rest| rest.next == key);
        if !goes_on {
            let busy = self.0.as_ref().is_some_and(|rest| now.saturating_sub(rest.since) < STALE_TURNS);
            if busy || !begins || !slabs.has_room() {
                return None;
            }
            self.let_go(slabs);
            slabs.rest_bytes.fetch_add(CHUNK, Relaxed);
            self.0 = Some(Rest { next: key, memory: Buf::scratch(CHUNK as usize), since: now });
        }
        let rest = self.0.as_mut()?;
        let piece = rest.memory.split_to(UNIT as usize);
        slabs.rest_bytes.fetch_sub(UNIT, Relaxed);
        rest.next.1 += 1;
        if rest.next.1.is_multiple_of(CHUNK_UNITS) {
            self.0 = None;
        }
        Some(piece)
    }

    /// Frees the unused part, because the stream has ended.
    pub(super) fn let_go(&mut self, slabs: &Slabs) {
        if let Some(rest) = self.0.take() {
            slabs.rest_bytes.fetch_sub(rest.memory.len() as u64, Relaxed);
        }
    }

    /// Bytes that no unit uses yet.
    pub(super) fn rest_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |rest| rest.memory.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a chunk's units get one piece of memory in their order; another chunk does not interrupt it, and gets its
    /// own memory when the first chunk is complete or was not written for long. Method: units in an order that the test
    /// chooses.
    #[test]
    fn slabs_are_cut_in_order() {
        let (mut slab, slabs) = (Slab::default(), Slabs::default());
        assert!(slab.piece(&slabs, (1, 16), false, 0).is_none());
        let first = slab.piece(&slabs, (1, 16), true, 1).expect("it begins");
        assert!(slab.piece(&slabs, (2, 16), true, 2).is_none() && slab.piece(&slabs, (1, 18), false, 3).is_none());
        let mut end = first.as_ptr_range().end;
        for u in 17..32 {
            let next = slab.piece(&slabs, (1, u), false, 4).expect("it goes on");
            assert_eq!((next.as_ptr(), next.len() as u64), (end, UNIT));
            end = next.as_ptr_range().end;
        }
        assert!(slab.piece(&slabs, (1, 32), false, 5).is_none(), "it was complete");
        assert!(slab.piece(&slabs, (2, 0), true, 6).is_some());
        assert!(slab.piece(&slabs, (3, 0), true, 5 + STALE_TURNS).is_none());
        assert!(slab.piece(&slabs, (3, 0), true, 6 + STALE_TURNS).is_some(), "the other was left alone");
        slab.let_go(&slabs);
        assert!(slab.piece(&slabs, (3, 1), false, 6 + STALE_TURNS).is_none());
        assert_eq!(slabs.bytes(), 0, "all memory has gone to units or back");
        assert!(slabs.set_limit(5 * CHUNK) && !slabs.set_limit(5 * CHUNK));
        let mut other = Slab::default();
        assert!(slab.piece(&slabs, (4, 0), true, 2 * STALE_TURNS).is_some());
        assert_eq!(slabs.bytes(), CHUNK - UNIT);
        assert!(other.piece(&slabs, (5, 0), true, 2 * STALE_TURNS).is_none(), "no room for another one");
    }
}
