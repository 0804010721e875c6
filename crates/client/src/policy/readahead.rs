//! `ReadAhead`: read-ahead of one open file, a pure state machine from reads to the ranges to fetch.
//!
//! Owns: recognising sequential and strided streams, the size of the window, and noticing that read-ahead is useless.
//! Does not own: fetching, and which bytes are cached already.
//!
//! Several streams of one open file (threads that read different parts) are distinguished by where they continue. For a
//! sequential stream a window is fetched ahead that doubles with each refill, up to a bound [64 MiB], and is at least
//! [10] requests of its present size. For a strided stream (same length and same distance, three times) this many
//! requests are fetched ahead. If much more was fetched than used, more matches are required before anything is fetched
//! again, twice as many each time. If fetched bytes are used, fewer matches are required again. So random access costs
//! nothing, and access that only looks sequential costs little.

use amphi_types::ByteRange;
use smallvec::SmallVec;

/// Most streams that are distinguished in one open file.
const STREAMS: usize = 8;
/// Number of matching reads before anything is fetched ahead. More are required after read-ahead was useless.
const SURE_SEQUENTIAL: u32 = 1;
const SURE_STRIDED: u32 = 3;
/// Most additional matches that are required.
const CAUTION_MAX: u32 = 63;
/// After this many used bytes the required matches are reconsidered.
const TRUST_BYTES: u64 = 4 << 20;
/// First window of a sequential stream, bytes.
const WINDOW_MIN: u64 = 256 << 10;
/// Before read-ahead of an open file pauses, it may fetch this multiple of the used bytes without use.
const WASTE_FACTOR: u64 = 4;
/// Up to this number, fetched bytes without use are ignored.
const WASTE_MIN: u64 = 16 << 20;

/// Bounds that the tunables set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest window, bytes.
    pub window_max: u64,
    /// Number of requests to be ahead of a stream.
    pub requests: u64,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    last: ByteRange,
    /// Distance from the start of one request to the next, or 0 if it is not known.
    stride: u64,
    matches: u32,
    window: u64,
    /// The end of what was fetched.
    ahead_to: u64,
    age: u64,
}

impl Stream {
    fn continues_stride(&self, range: ByteRange) -> bool {
        self.stride > 0 && self.last.start + self.stride == range.start && self.last.len() == range.len()
    }
}

/// Ranges to fetch, in ascending order.
pub type Plan = SmallVec<[ByteRange; 4]>;

/// Read-ahead of one open file.
#[derive(Debug, Default)]
pub struct ReadAhead {
    streams: SmallVec<[Stream; 2]>,
    clock: u64,
    planned_bytes: u64,
    used_bytes: u64,
    caution: u32,
}

impl ReadAhead {
    /// Notes a read, and returns what to fetch ahead of it. `size` is the length of the file.
    pub fn on_read(&mut self, range: ByteRange, size: u64, limits: Limits) -> Plan {
        self.clock += 1;
        let mut plan = Plan::new();
        if range.is_empty() {
            return plan;
        }
        let (clock, caution) = (self.clock, self.caution);
        if let Some(s) = self.streams.iter_mut().find(|s| s.last.end == range.start) {
            s.matches = if s.stride == 0 { s.matches + 1 } else { 1 };
            (s.stride, s.age) = (0, clock);
            self.used_bytes += ByteRange::new(range.start, range.end.min(s.ahead_to)).len();
            s.last = range;
            if s.matches >= SURE_SEQUENTIAL + caution {
                sequential(s, range, size, limits, &mut plan);
            }
        } else if let Some(s) = self.streams.iter_mut().find(|s| s.continues_stride(range)) {
            s.matches += 1;
            s.age = clock;
            if range.start < s.ahead_to {
                self.used_bytes += range.len();
            }
            s.last = range;
            if s.matches >= SURE_STRIDED + caution {
                strided(s, range, size, limits, &mut plan);
            }
            if s.matches < SURE_STRIDED {
                // The read may also be another stream's first one.
                self.start(range, 0);
            }
        } else {
            let near = self.streams.iter().filter(|s| s.last.start < range.start && s.last.len() == range.len());
            let stride = near.map(|s| range.start - s.last.start).min().unwrap_or(0);
            self.start(range, stride);
        }
        self.judge(&mut plan);
        plan
    }

    /// Compares the bytes that were fetched with those that were used.
    fn judge(&mut self, plan: &mut Plan) {
        let planned: u64 = plan.iter().map(ByteRange::len).sum();
        if planned > 0 && self.is_useless() {
            self.caution = (self.caution * 2 + 1).min(CAUTION_MAX);
            self.streams.clear();
            (self.planned_bytes, self.used_bytes) = (0, 0);
            plan.clear();
            return;
        }
        self.planned_bytes += planned;
        if self.caution > 0 && self.used_bytes > TRUST_BYTES && self.used_bytes * 2 > self.planned_bytes {
            self.caution /= 2;
            (self.planned_bytes, self.used_bytes) = (0, 0);
        }
    }

    /// Begins a stream with a read that continues no stream. `stride` is the distance to the nearest read before it.
    fn start(&mut self, range: ByteRange, stride: u64) {
        if self.streams.len() == STREAMS
            && let Some(oldest) = (0..STREAMS).min_by_key(|&i| self.streams[i].age)
        {
            self.streams.swap_remove(oldest);
        }
        assert!(self.streams.len() < STREAMS, "{} streams of one open file", self.streams.len());
        self.streams.push(Stream { last: range, stride, matches: 0, window: 0, ahead_to: range.end, age: self.clock });
    }

    /// The distance to the next read, if the stream that has just read `range` is certainly strided.
    pub fn stride_of(&self, range: ByteRange) -> Option<u64> {
        let sure = SURE_STRIDED + self.caution;
        let is_it = |s: &&Stream| s.last == range && s.stride > range.len() && s.matches >= sure;
        self.streams.iter().find(is_it).map(|s| s.stride)
    }

    /// Returns whether any stream has fetched bytes ahead of it. If not, reads that the cache serves need not be passed
    /// to `on_read`.
    pub fn is_active(&self) -> bool {
        self.streams.iter().any(|s| s.ahead_to > s.last.end)
    }

    fn is_useless(&self) -> bool {
        self.planned_bytes > WASTE_MIN + WASTE_FACTOR * self.used_bytes + self.outstanding()
    }

    /// Bytes that were fetched ahead and that their streams have not reached yet.
    fn outstanding(&self) -> u64 {
        self.streams.iter().map(|s| s.ahead_to.saturating_sub(s.last.end)).sum()
    }
}

fn sequential(s: &mut Stream, range: ByteRange, size: u64, limits: Limits, plan: &mut Plan) {
    let least = (range.len().saturating_mul(limits.requests)).max(WINDOW_MIN);
    if s.ahead_to < range.end {
        s.ahead_to = range.end;
    }
    // Refill when half of the window is used, so that fetching continues while the program reads.
    if s.ahead_to - range.end > s.window / 2 {
        return;
    }
    s.window = (s.window * 2).max(least).min(limits.window_max);
    let to = (range.end + s.window).min(size);
    if to > s.ahead_to {
        plan.push(ByteRange::new(s.ahead_to, to));
        s.ahead_to = to;
    }
}

fn strided(s: &mut Stream, range: ByteRange, size: u64, limits: Limits, plan: &mut Plan) {
    assert!(s.stride > 0 && !range.is_empty(), "a strided read of {range:?}, and the next {} bytes on", s.stride);
    let count = limits.requests.min((limits.window_max / range.len()).max(1));
    // For a strided stream, `ahead_to` is the start of the next request that was not fetched.
    let mut next = s.ahead_to;
    if s.ahead_to <= range.end {
        next = range.start + s.stride;
    }
    let last = range.start.saturating_add(s.stride.saturating_mul(count));
    while next <= last && next < size {
        plan.push(ByteRange::new(next, (next + range.len()).min(size)));
        next += s.stride;
    }
    s.ahead_to = s.ahead_to.max(next);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { window_max: 64 << 20, requests: 10 };
    const SIZE: u64 = 1 << 40;

    fn read(ra: &mut ReadAhead, at: u64, len: u64) -> Vec<ByteRange> {
        ra.on_read(ByteRange::at(at, len), SIZE, LIMITS).into_vec()
    }

    /// Goal: a sequential reader is always ahead by ten requests, the window grows to its bound, nothing is fetched
    /// twice and nothing left out. Method: read 1 GiB in steps and join the plans.
    #[test]
    fn sequential_windows_grow() {
        for step in [4096u64, 100_000, 1 << 20, 6 << 20] {
            let mut ra = ReadAhead::default();
            let (mut fetched, mut largest) = (0, 0);
            for at in (0..1 << 30).step_by(step as usize) {
                for r in read(&mut ra, at, step) {
                    assert!(r.start == fetched || fetched == 0, "gap or overlap at {r:?}");
                    fetched = r.end;
                    largest = largest.max(r.end - at - step);
                }
                if at > step {
                    let ahead = fetched - (at + step);
                    assert!(ahead >= (5 * step).min(32 << 20), "{ahead} ahead with steps of {step}");
                }
            }
            assert!(largest > 32 << 20 && largest <= 64 << 20, "{largest}");
        }
    }

    /// Goal: the first read fetches nothing, and the end of the file bounds the plan.
    #[test]
    fn bounded_by_the_file() {
        let mut ra = ReadAhead::default();
        assert!(ra.on_read(ByteRange::at(0, 4096), 10_000, LIMITS).is_empty());
        assert_eq!(ra.on_read(ByteRange::at(4096, 4096), 10_000, LIMITS).into_vec(), [ByteRange::new(8192, 10_000)]);
        assert!(ra.on_read(ByteRange::at(8192, 1808), 10_000, LIMITS).is_empty());
    }

    /// Goal: strided reads are recognised and fetched exactly. Method: records with gaps. After the stride is certain,
    /// each later record is covered by an earlier plan.
    #[test]
    fn strides_are_recognised() {
        let mut ra = ReadAhead::default();
        let mut planned = Vec::new();
        for i in 0..100u64 {
            let (at, len) = (i * 300_000, 47_008);
            if i > 4 {
                assert!(planned.contains(&ByteRange::at(at, len)), "record {i} was not fetched ahead");
            }
            planned.extend(read(&mut ra, at, len));
        }
        let mut seen = planned.clone();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), planned.len(), "nothing is fetched twice");
        assert!(planned.len() <= 112, "{}", planned.len());
    }

    /// Goal: random reads fetch next to nothing. Method: pseudo-random offsets in a large file.
    #[test]
    fn random_reads_fetch_little() {
        let (mut ra, mut seed, mut bytes) = (ReadAhead::default(), 7u64, 0);
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            bytes += read(&mut ra, (seed >> 30) & !4095, 4096).iter().map(ByteRange::len).sum::<u64>();
        }
        assert!(bytes < 10_000 * 4096 / 100, "{bytes}");
    }

    /// Goal: useless read-ahead switches itself off. Method: pairs of adjacent reads at random places, which look
    /// sequential and never are. The fetched bytes stay bounded.
    #[test]
    fn useless_read_ahead_pauses() {
        let (mut ra, mut seed, mut planned, mut used) = (ReadAhead::default(), 7u64, 0, 0);
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (seed >> 28) & !4095;
            for k in 0..2 {
                planned += read(&mut ra, at + k * 4096, 4096).iter().map(ByteRange::len).sum::<u64>();
                used += 4096;
            }
        }
        assert!(planned < 20 * used, "{planned} for {used}");
    }

    /// Goal: threads that each read a part of the file sequentially are all followed. Method: interleave four.
    #[test]
    fn several_streams() {
        let mut ra = ReadAhead::default();
        let mut fetched = [0u64; 4];
        for i in 0..50u64 {
            for t in 0..4u64 {
                let base = t << 34;
                for r in read(&mut ra, base + i * 65536, 65536) {
                    assert_eq!(r.start >> 34, t);
                    fetched[t as usize] = r.end - base;
                }
                if i > 3 {
                    assert!(fetched[t as usize] >= (i + 5) * 65536, "stream {t} at {i}");
                }
            }
        }
    }
}
