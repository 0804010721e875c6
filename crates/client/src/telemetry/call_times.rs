//! How long calls of programs took, by kind of call and by how they were served.
//!
//! Owns: the kinds, the buckets, and counting in shards. Does not own: the clock, which the thread that serves a call
//! reads anyway; which calls are counted, which the front end decides.
//!
//! A call costs two relaxed additions on lines that the thread's shard owns. Buckets end at powers of two of
//! microseconds, from 1 us to 16.8 s; what took longer is in the count and in no bucket.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

macro_rules! kinds {
    ($($name:ident = $text:literal;)*) => {
        /// A kind of call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CallKind { $(
            #[doc = $text]
            $name,
        )* }
        const KINDS: &[&str] = &[$($text,)*];
    };
}

kinds! {
    Open = "open";
    Create = "create";
    Read = "read";
    Write = "write";
    Stat = "stat";
    Lookup = "lookup";
    SetAttr = "setattr";
    List = "list";
    Fsync = "fsync";
    Close = "close";
    Remove = "remove";
    Rename = "rename";
}

/// How a call was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The thread that read the call answered it without a wait.
    AtOnce,
    /// The call waited for something: a server, a lock, or bytes under way.
    Waited,
}

const WAYS: [&str; 2] = ["at_once", "waited"];
/// Buckets with a bound; one more has the rest.
const BOUNDS: usize = 25;
const SHARDS: usize = 8;

#[derive(Default)]
struct Row {
    buckets: [AtomicU64; BOUNDS + 1],
    sum_ns: AtomicU64,
}

#[repr(align(128))]
#[derive(Default)]
struct Shard([[Row; WAYS.len()]; KINDS.len()]);

thread_local! {
    static SHARD: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Relaxed) % SHARDS
    };
}

/// Times of calls.
pub struct CallTimes {
    shards: [Shard; SHARDS],
}

impl std::fmt::Debug for CallTimes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CallTimes")
    }
}

/// The bucket of a time: the first whose bound, 2^i microseconds, it does not exceed.
fn bucket(ns: u64) -> usize {
    let above = ns.saturating_sub(1) / 1000;
    ((u64::BITS - above.leading_zeros()) as usize).min(BOUNDS)
}

impl CallTimes {
    pub(crate) fn new() -> Box<CallTimes> {
        Box::new(CallTimes { shards: Default::default() })
    }

    /// Counts a call.
    pub fn add(&self, kind: CallKind, served: Served, ns: u64) {
        let row = &self.shards[SHARD.with(|shard| *shard)].0[kind as usize][served as usize];
        row.buckets[bucket(ns)].fetch_add(1, Relaxed);
        row.sum_ns.fetch_add(ns, Relaxed);
    }

    /// Starts again from zero.
    pub(crate) fn reset(&self) {
        for row in self.shards.iter().flat_map(|shard| shard.0.iter().flatten()) {
            row.buckets.iter().for_each(|n| n.store(0, Relaxed));
            row.sum_ns.store(0, Relaxed);
        }
    }

    /// As JSON: for each kind and way of calls that occurred, `KIND.WAY` with its non-empty buckets, by their bounds in
    /// microseconds.
    pub(crate) fn json(&self) -> String {
        let mut out = String::from("{");
        for (k, kind) in KINDS.iter().enumerate() {
            for (w, way) in WAYS.iter().enumerate() {
                let rows = || self.shards.iter().map(|shard| &shard.0[k][w]);
                let of = |i: usize| rows().map(|row| row.buckets[i].load(Relaxed)).sum::<u64>();
                let buckets: Vec<u64> = (0..=BOUNDS).map(of).collect();
                let count: u64 = buckets.iter().sum();
                if count == 0 {
                    continue;
                }
                let sum_ns = rows().fold(0u64, |sum, row| sum.wrapping_add(row.sum_ns.load(Relaxed)));
                let comma = if out.len() > 1 { "," } else { "" };
                let _ = write!(out, "{comma}\"{kind}.{way}\":{{\"count\":{count},\"sum_ns\":{sum_ns},\"up_to_us\":{{");
                let met = buckets.iter().take(BOUNDS).enumerate().filter(|(_, n)| **n > 0);
                for (at, (i, n)) in met.enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    let _ = write!(out, "{comma}\"{}\":{n}", 1u64 << i);
                }
                out.push_str("}}");
            }
        }
        out.push('}');
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a time is in the bucket whose bound it does not exceed; a time that is too long is in no bucket. Method:
    /// times at the bounds.
    #[test]
    fn buckets_end_at_powers_of_two() {
        for (ns, at) in [(0, 0), (1, 0), (1000, 0), (1001, 1), (2000, 1), (2001, 2), (4000, 2), (1_000_000, 10)] {
            assert_eq!(bucket(ns), at, "{ns}");
        }
        let last = (1u64 << (BOUNDS - 1)) * 1000;
        assert_eq!((bucket(last), bucket(last + 1), bucket(u64::MAX)), (BOUNDS - 1, BOUNDS, BOUNDS));
    }

    /// Goal: the output shows exactly the calls that were counted, from all threads, and a reset removes them. Method:
    /// calls of two threads.
    #[test]
    fn shown_is_what_was_counted() {
        let times = CallTimes::new();
        assert_eq!(times.json(), "{}");
        std::thread::scope(|scope| {
            scope.spawn(|| times.add(CallKind::Read, Served::Waited, 3000));
            scope.spawn(|| times.add(CallKind::Read, Served::Waited, 4000));
        });
        times.add(CallKind::Read, Served::AtOnce, 900);
        times.add(CallKind::Fsync, Served::Waited, u64::MAX >> 1);
        let all = "{\"read.at_once\":{\"count\":1,\"sum_ns\":900,\"up_to_us\":{\"1\":1}},\
                   \"read.waited\":{\"count\":2,\"sum_ns\":7000,\"up_to_us\":{\"4\":2}},\
                   \"fsync.waited\":{\"count\":1,\"sum_ns\":9223372036854775807,\"up_to_us\":{}}}";
        assert_eq!(times.json(), all);
        times.reset();
        assert_eq!(times.json(), "{}");
    }
}
