//! `Throughput`: the measured throughput of buffered and direct requests, for requests that gain nothing from hits.
//!
//! Owns: the rates and their comparison. Does not own: when they are used (`decision`: only for files without locality,
//! from the small threshold on).
//!
//! A rate is the number of bytes that arrived in a *stretch* of elapsed time in which all requests used one way. So the
//! work of the processors is included as well as that of network and disks. For reads and for writes there is one
//! stretch at a time. A stretch consists of direct requests of one size, of reads that the cache answered, or of
//! write-back. Reads are measured where they are answered, because read-ahead arrives in bursts, each at the speed of
//! the disk. Pauses of the applications do not count. Time in which an application waited for its request does count,
//! however long. With many streams, read-ahead fetches a hundred megabytes at once: all streams wait for them, and then
//! read them in no time.
//!
//! Invariants:
//!
//! * A stretch ends without a sample when too many bytes use another way, or when its user says that it shows nothing.
//!   A stretch shows nothing in three cases: direct writes at the same time as write-back of earlier ones, direct reads
//!   at the same time as read-ahead from before them, and write-back for which few or no programs wait.
//! * Until both ways have a rate, the rule of the paper is used: direct. If only direct requests were measured,
//!   requests are tried through the cache. Writes are tried only for a bounded number of bytes, because write-back
//!   shows nothing while no program waits for it.
//! * If a way was not used, its rate is raised by five percent with each second of I/O, so that the way is tried again.
//!   The closer the two rates were, the sooner this happens. A trial costs a sample: 64 MiB of reads, 32 MiB of writes.
//!   Time without I/O does not count, or a program that works in bursts would pay for a trial in each burst.
//! * The way in use stays until the other one is better by five percent, because each change delays what is still under
//!   way.
//!
//! In the same way, large direct reads that follow each other are measured with the next one requested ahead
//! (`direct_ahead`) and without. If memory is slower than what reads into it, a second buffer outside the processor's
//! cache costs more than the wait that it saves.

use crate::policy::decision::Way;
use crate::policy::thresholds::Thresholds;
use parking_lot::Mutex;

/// Bytes of a sample, for reads and for writes. Sixteen streams read 80 MiB ahead, so shorter samples of reads would
/// consist of bytes that were fetched before they began.
pub(crate) const SAMPLE_BYTES: [u64; 2] = by_way(64 << 20, 32 << 20);
/// One byte in this many may go another way without ending a stretch.
const STRANGE_PART: u64 = 8;
/// If the rate of writes through the cache is not known, this many bytes are sent through it as a trial. The trial is
/// repeated after `TRIAL_REST` times as many bytes have gone direct. If the cache had a quarter of the speed, that
/// would cost a tenth of the time.
const TRIAL_BYTES: u64 = 4 * SAMPLE_BYTES[Way::Write as usize];
const TRIAL_REST: u64 = 32;
/// Samples of one way that are averaged. Each sample is a few dozen milliseconds long, and if others use the disks as
/// well, two samples differ by a half.
const MEAN_OF: u64 = 8;
/// Samples older than this, in time with I/O, count together as one sample when the next one is added.
const OLD_NS: u64 = 5_000_000_000;
/// A longer time without anything is a pause.
const PAUSE_NS: u64 = 50_000_000;
/// Begin of the smallest class of sizes; each further class begins at twice the size.
const CLASS_MIN_BYTES: u64 = 32 << 10;
/// Classes from 32 KiB to 4 MiB and more.
const CLASSES: usize = 8;
/// Smaller reads do not go direct for lack of locality, so it does not matter how fast the cache serves them.
const READ_MIN_BYTES: u64 = CLASS_MIN_BYTES;
/// Write-back or read-ahead of at most this many bytes beside direct requests does not spoil their measurement.
pub(crate) const CALM_FLIGHT_BYTES: u64 = 1 << 20;
/// If direct requests reach this many percent of the cache's rate, they count as equally good, because they leave the
/// cache to others.
const EQUAL_PERCENT: u64 = 95;
/// If this many 1024ths of a file's pages are used again, the file keeps the cache, however fast direct requests are.
const SHARE_MAX: u64 = 512;

/// The way that bytes took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// Through the cache of the mount.
    Cached,
    /// Direct, in application requests of this many bytes.
    Direct(u64),
}

#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    /// Bytes per second, the mean of the last samples; 0 without a sample.
    per_s: u64,
    /// Number of these samples.
    samples: u64,
    /// The time at which the last sample was complete, in time with I/O.
    at_ns: u64,
}

impl Rate {
    /// The rate, raised by five percent for each second with I/O since it was measured.
    fn hoped(&self, io_ns: u64) -> Option<u64> {
        let age_ms = io_ns.saturating_sub(self.at_ns) / 1_000_000;
        (self.per_s > 0).then(|| self.per_s.saturating_add((self.per_s / 20_000).saturating_mul(age_ms)))
    }
}

/// A stretch of time in which bytes used one way.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    /// The index of the rate that is measured.
    of: usize,
    last_ns: u64,
    /// Time without pauses.
    busy_ns: u64,
    bytes: u64,
    strange_bytes: u64,
}

/// Measures stretches of time in which all bytes go one way.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    stretch: Stretch,
    /// Time in which there was I/O of this kind, and when that ended last, by the clock.
    io_ns: u64,
    last_ns: u64,
}

impl Meter {
    /// Time in which there was I/O so far.
    pub(crate) fn io_ns(&self) -> u64 {
        self.io_ns
    }

    /// Called when `bytes`, requested at `since_ns`, have arrived by the way `of`. If a stretch of `sample_bytes` ends
    /// with them, returns its bytes per second.
    pub(crate) fn note(
        &mut self,
        sample_bytes: u64,
        of: usize,
        bytes: u64,
        (since_ns, now_ns): (u64, u64),
        shows: bool,
    ) -> Option<u64> {
        let busy = |last_ns: u64| {
            let passed = now_ns.saturating_sub(last_ns);
            let waited = passed.min(now_ns.saturating_sub(since_ns));
            if passed < PAUSE_NS { passed } else { waited }
        };
        self.io_ns += busy(self.last_ns);
        self.last_ns = self.last_ns.max(now_ns);
        let s = &mut self.stretch;
        if of != s.of {
            s.strange_bytes += bytes;
            if s.strange_bytes > s.bytes / STRANGE_PART {
                *s = Stretch { of, last_ns: now_ns, ..Stretch::default() };
            }
            return None;
        }
        if !shows {
            *s = Stretch { of, last_ns: now_ns, ..Stretch::default() };
            return None;
        }
        let busy = busy(s.last_ns);
        s.last_ns = now_ns;
        if busy > 0 {
            (s.busy_ns, s.bytes) = (s.busy_ns + busy, s.bytes + bytes);
        }
        if s.bytes < sample_bytes || s.busy_ns == 0 {
            return None;
        }
        let sample = u128::from(s.bytes) * 1_000_000_000 / u128::from(s.busy_ns);
        *s = Stretch { of, last_ns: now_ns, ..Stretch::default() };
        Some(u64::try_from(sample).unwrap_or(u64::MAX))
    }
}

/// The rates of reads or of writes: direct by class, then the cache. For large direct reads: the rates with reads
/// requested ahead, by class, and those without, by class.
#[derive(Debug, Default)]
struct Side {
    rates: [Rate; 2 * CLASSES],
    meter: Meter,
    /// For each class, whether the cache was better at the last comparison.
    cached_wins: [bool; CLASSES],
    /// The bytes that were sent through the cache as a trial while its rate was not known; the time when the last of
    /// them were sent; and the number of direct bytes since the trial was complete.
    tried_bytes: u64,
    tried_ns: u64,
    rested_bytes: u64,
}

const CACHED: usize = CLASSES;
const UNASKED: usize = CLASSES;

const fn by_way(read: u64, write: u64) -> [u64; 2] {
    let mut both = [0; 2];
    both[Way::Read as usize] = read;
    both[Way::Write as usize] = write;
    both
}

impl Side {
    /// Bytes have gone direct. After enough of them the cache may be tried again.
    fn rest(&mut self, bytes: u64) {
        if self.tried_bytes >= TRIAL_BYTES {
            self.rested_bytes += bytes;
            if self.rested_bytes >= TRIAL_REST * TRIAL_BYTES {
                (self.tried_bytes, self.rested_bytes) = (0, 0);
            }
        }
    }

    /// Returns whether writes are being tried through the cache.
    fn is_trying(&self, now_ns: u64) -> bool {
        self.rates[CACHED].per_s == 0 && self.tried_bytes > 0 && now_ns.saturating_sub(self.tried_ns) < PAUSE_NS
    }

    /// Called when `bytes` were sent one way. `times_ns` are the times when they were requested and when they arrived.
    fn note(&mut self, sample_bytes: u64, of: usize, bytes: u64, times_ns: (u64, u64), shows: bool) {
        let Some(sample) = self.meter.note(sample_bytes, of, bytes, times_ns, shows) else { return };
        let (rate, io_ns) = (&mut self.rates[of], self.meter.io_ns);
        assert!(rate.at_ns <= io_ns, "a rate of {} ns is measured again at {io_ns} ns", rate.at_ns);
        if io_ns - rate.at_ns > OLD_NS {
            rate.samples = rate.samples.min(1);
        }
        rate.samples = (rate.samples + 1).min(MEAN_OF);
        rate.per_s = (rate.per_s - rate.per_s / rate.samples + sample / rate.samples).max(1);
        rate.at_ns = io_ns;
    }
}

/// The measurements of a mount.
#[derive(Debug, Default)]
pub(crate) struct Throughput {
    sides: [Mutex<Side>; 2],
    ahead: Mutex<Side>,
    /// The sizes from which on requests go direct.
    pub(crate) thresholds: Thresholds,
}

fn class(bytes: u64) -> usize {
    let doublings = (bytes / CLASS_MIN_BYTES).checked_ilog2().unwrap_or(0);
    (doublings as usize).min(CLASSES - 1)
}

/// Begin of a class, in KiB.
fn kib(class: usize) -> u64 {
    (CLASS_MIN_BYTES >> 10) << class
}

fn index(course: Course) -> usize {
    match course {
        Course::Cached => CACHED,
        Course::Direct(request) => class(request),
    }
}

impl Throughput {
    /// Called when `bytes` have landed on a target. `shows`: no other I/O ran at the same time that would falsify the
    /// measurement.
    pub(crate) fn note(&self, way: Way, course: Course, bytes: u64, now_ns: u64, shows: bool) {
        self.note_since(way, course, bytes, (now_ns, now_ns), shows);
    }

    /// Called when `bytes` have come from a target, for a read that has waited since `since_ns`.
    pub(crate) fn note_read(&self, course: Course, bytes: u64, (since_ns, now_ns): (u64, u64), shows: bool) {
        self.note_since(Way::Read, course, bytes, (since_ns, now_ns), shows);
    }

    fn note_since(&self, way: Way, course: Course, bytes: u64, from_to_ns: (u64, u64), shows: bool) {
        let request = if let Course::Direct(request) = course { Some(request) } else { None };
        self.thresholds.note(way, request, bytes, from_to_ns, shows);
        let sample_bytes = SAMPLE_BYTES[way as usize];
        let mut side = self.sides[way as usize].lock();
        if request.is_some() {
            side.rest(bytes);
        }
        side.note(sample_bytes, index(course), bytes, from_to_ns, shows);
    }

    /// Called when write-back of `bytes` was answered. `waited`: a program waited for it, or soon would. Writes that
    /// are tried through the cache keep write-back as busy as direct requests would, so it counts for them too.
    pub(crate) fn note_write_back(&self, bytes: u64, now_ns: u64, waited: bool) {
        self.thresholds.note(Way::Write, None, bytes, (now_ns, now_ns), waited);
        let mut side = self.sides[Way::Write as usize].lock();
        let shows = waited || side.is_trying(now_ns);
        side.note(SAMPLE_BYTES[Way::Write as usize], CACHED, bytes, (now_ns, now_ns), shows);
    }

    /// Called when a request of `bytes` without locality has gone through the cache.
    pub(crate) fn tried(&self, way: Way, bytes: u64, now_ns: u64) {
        let mut side = self.sides[way as usize].lock();
        if side.rates[CACHED].per_s == 0 {
            side.tried_bytes += bytes;
            side.tried_ns = now_ns;
        }
    }

    /// The cache has answered a read of `bytes` in a stream that is or may be read ahead, either at once or after a
    /// wait since `since_ns`.
    pub(crate) fn note_cached_read(&self, bytes: u64, since_ns: Option<u64>, now_ns: impl Fn() -> u64) {
        if bytes >= READ_MIN_BYTES {
            let now_ns = now_ns();
            self.note_read(Course::Cached, bytes, (since_ns.unwrap_or(now_ns), now_ns), true);
        }
    }

    /// Called when a large direct read of `bytes`, which may have followed another one, has arrived. `ahead`: whether
    /// reads of its size were being requested ahead.
    pub(crate) fn note_large_read(&self, ahead: bool, bytes: u64, from_to_ns: (u64, u64), shows: bool) {
        let of = class(bytes) + if ahead { 0 } else { UNASKED };
        self.ahead.lock().note(SAMPLE_BYTES[Way::Read as usize], of, bytes, from_to_ns, shows);
    }

    /// Returns whether large direct reads of this size that follow each other are at least as fast when the next one is
    /// requested ahead.
    pub(crate) fn ahead_pays(&self, request: u64) -> bool {
        let side = self.ahead.lock();
        let class = class(request);
        match (side.rates[class].hoped(side.meter.io_ns), side.rates[UNASKED + class].hoped(side.meter.io_ns)) {
            (Some(ahead), Some(unasked)) => unasked / 100 <= ahead / EQUAL_PERCENT,
            (Some(_), None) => false,
            (None, _) => true,
        }
    }

    /// Returns whether requests of this size would be faster through the cache, although they gain nothing from hits.
    pub(crate) fn cache_is_faster(&self, way: Way, request: u64) -> bool {
        let mut side = self.sides[way as usize].lock();
        let (class, io_ns) = (class(request), side.meter.io_ns);
        match (side.rates[CACHED].hoped(io_ns), side.rates[class].hoped(io_ns)) {
            (Some(cached), Some(direct)) => {
                let (direct, cached) = match side.cached_wins[class] {
                    true => (direct / 100, cached / EQUAL_PERCENT),
                    false => (direct / EQUAL_PERCENT, cached / 100),
                };
                side.cached_wins[class] = direct < cached;
                side.cached_wins[class]
            }
            // Reads are always measured, but write-back only while it holds up a program. So a trial of writes might
            // have no end.
            (None, Some(_)) => way == Way::Read || side.tried_bytes < TRIAL_BYTES,
            _ => false,
        }
    }

    /// The share of its pages, in 1024ths, that a file must use again so that the cache pays for requests of this size.
    /// Hits cost nothing, so with the cache the file takes `1 - share` of the time. The result is 0 while one of the
    /// rates is not known.
    pub(crate) fn least_share(&self, way: Way, request: u64) -> u64 {
        let side = self.sides[way as usize].lock();
        let (cached, direct) = (side.rates[CACHED].per_s, side.rates[class(request)].per_s);
        if cached == 0 || direct <= cached {
            return 0;
        }
        let share = u128::from(direct - cached) * 1024 / u128::from(direct);
        (share as u64).min(SHARE_MAX)
    }

    /// Throughput of the fastest kind of direct requests, in bytes per second.
    pub(crate) fn fastest_direct(&self) -> Option<u64> {
        let of = |side: &Mutex<Side>| side.lock().rates[..CACHED].iter().map(|rate| rate.per_s).max();
        self.sides.iter().filter_map(of).max().filter(|per_s| *per_s > 0)
    }

    /// The known rates in MiB/s, each with a name.
    pub(crate) fn shown(&self) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        for (way, name) in [(Way::Read, "read"), (Way::Write, "write")] {
            let rates = self.sides[way as usize].lock().rates;
            all.push((format!("learned_cached_{name}_mib_s"), rates[CACHED].per_s >> 20));
            for (class, rate) in rates[..CACHED].iter().enumerate() {
                all.push((format!("learned_direct_{name}_{}k_mib_s", kib(class)), rate.per_s >> 20));
            }
            for (state, learnt) in ["alone", "in_company"].iter().zip(self.thresholds.moved(way)) {
                all.push((format!("learned_large_{name}_{state}_kib"), learnt.unwrap_or(0) >> 10));
            }
        }
        let rates = self.ahead.lock().rates;
        for (name, from) in [("ahead", 0), ("unasked", UNASKED)] {
            for (class, rate) in rates[from..][..CLASSES].iter().enumerate() {
                all.push((format!("learned_{name}_read_{}k_mib_s", kib(class)), rate.per_s >> 20));
            }
        }
        all.retain(|(_, rate)| *rate > 0);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    /// Steps of 1 ms from `from_ns` on, each with the same number of bytes. The first of them begins the stretch.
    fn stretch(l: &Throughput, course: Course, from_ns: u64, mib_s: u64) {
        for step in 0..200 {
            l.note(Way::Write, course, (mib_s << 20) / 1000, from_ns + step * MS, true);
        }
    }

    fn shown(l: &Throughput, name: &str) -> u64 {
        l.shown().iter().find(|(n, _)| n == name).map_or(0, |(_, rate)| *rate)
    }

    /// Goal: a rate counts the bytes that arrived in elapsed time, without pauses. Bytes that go another way end a
    /// stretch only if there are many. A stretch that shows nothing is not counted. Method: transfers with given times.
    #[test]
    fn rates_are_by_the_clock() {
        let l = Throughput::default();
        for i in 0..10 {
            stretch(&l, Course::Cached, i * SECOND, 1600);
            l.note(Way::Write, Course::Direct(1 << 20), 1 << 20, i * SECOND + 201 * MS, true);
        }
        let rate = shown(&l, "learned_cached_write_mib_s");
        assert!((1550..=1610).contains(&rate), "{rate}");
        assert_eq!(l.shown().len(), 1, "probes are no stretch");
        let spoiled = Throughput::default();
        for i in 0..1000 {
            spoiled.note(Way::Write, Course::Cached, 1 << 20, i * MS, i % 16 > 0);
        }
        assert_eq!(spoiled.shown(), []);
        let mixed = Throughput::default();
        for i in 0..1000 {
            mixed.note(Way::Write, Course::Cached, 1 << 20, 2 * i * MS, true);
            mixed.note(Way::Write, Course::Direct(1 << 20), 1 << 20, (2 * i + 1) * MS, true);
        }
        assert_eq!(mixed.shown(), []);
    }

    /// Goal: a stall counts if a caller waited, and a pause of the applications does not. Both pauses may have the same
    /// length. Method: bursts of 16 MiB within a millisecond, every 100 ms, waited for and not.
    #[test]
    fn waiting_is_no_pause() {
        for (waits, expected) in [(true, 150..=170), (false, 10_000..=20_000)] {
            let l = Throughput::default();
            for burst in 1..40 {
                let now = burst * 100 * MS;
                let since = if waits { now - 99 * MS } else { now };
                l.note_read(Course::Cached, 1 << 20, (since, now), true);
                for read in 1..16 {
                    l.note_cached_read(1 << 20, None, || now + read * MS / 16);
                }
            }
            let rate = shown(&l, "learned_cached_read_mib_s");
            assert!(expected.contains(&rate), "{rate}");
        }
    }

    /// Goal: requests are direct unless both rates are known and the cache is clearly faster. Sizes are distinguished.
    /// Method: given rates.
    #[test]
    fn the_faster_way_wins() {
        let l = Throughput::default();
        let faster = |request| l.cache_is_faster(Way::Write, request);
        assert!(!faster(256 << 10));
        stretch(&l, Course::Cached, 0, 1000);
        assert!(!faster(256 << 10), "direct is not known yet");
        stretch(&l, Course::Direct(300 << 10), SECOND, 800);
        assert!(faster(256 << 10));
        assert!(!faster(512 << 10), "nothing is known of other sizes");
        assert!(!l.cache_is_faster(Way::Read, 256 << 10), "nor of reads");
        stretch(&l, Course::Direct(1 << 20), 2 * SECOND, 1010);
        assert!(!faster(1 << 20), "about equal");
        let direct_alone = Throughput::default();
        for way in [Way::Read, Way::Write] {
            (0..200).for_each(|ms| direct_alone.note(way, Course::Direct(1 << 20), 1 << 20, ms * MS, true));
        }
        assert!(direct_alone.cache_is_faster(Way::Read, 1 << 20), "who knows");
        assert!(!direct_alone.cache_is_faster(Way::Read, 1 << 18), "direct first");
        assert!(direct_alone.cache_is_faster(Way::Write, 1 << 20), "writes too");
    }

    /// Goal: the slower way is tried again, and sooner if its rate was closer. Only time with I/O counts, however long
    /// the mount rested in between. Method: given rates, in stretches of a fifth of a second that follow each other
    /// directly or after an hour.
    #[test]
    fn the_loser_is_tried_again() {
        let stretches_until_tried = |direct: u64, apart_ns: u64| {
            let l = Throughput::default();
            stretch(&l, Course::Cached, 0, 1000);
            stretch(&l, Course::Direct(1 << 20), SECOND, direct);
            assert!(l.cache_is_faster(Way::Write, 1 << 20), "{direct}");
            let tried = (0..10_000).find(|s| {
                stretch(&l, Course::Cached, 2 * SECOND + s * apart_ns, 1000);
                !l.cache_is_faster(Way::Write, 1 << 20)
            });
            tried.expect("it is")
        };
        let seconds = |stretches: u64| stretches / 5;
        let (near, far) = (stretches_until_tried(800, 200 * MS), stretches_until_tried(400, 200 * MS));
        assert!((5..8).contains(&seconds(near)), "{near}");
        assert!((30..40).contains(&seconds(far)), "{far}");
        assert!(stretches_until_tried(800, 3600 * SECOND).abs_diff(near) <= 1);
    }

    /// Goal: if both ways are about equally fast, the mount does not alternate between them: each way stays in use
    /// until the other one is clearly faster. Method: rates that differ by three percent in either direction, then by
    /// ten.
    #[test]
    fn equal_ways_stay() {
        let l = Throughput::default();
        let request = 1 << 20;
        stretch(&l, Course::Direct(request), 0, 1000);
        for start in 0..40 {
            stretch(&l, Course::Cached, (2 * start + 1) * SECOND, 1000 + 30 * (start % 2));
            stretch(&l, Course::Direct(request), (2 * start + 2) * SECOND, 1030 - 30 * (start % 2));
            assert!(!l.cache_is_faster(Way::Write, request), "{start}");
        }
        for start in 40..60 {
            stretch(&l, Course::Cached, (2 * start + 1) * SECOND, 1150);
            stretch(&l, Course::Direct(request), (2 * start + 2) * SECOND, 1000);
        }
        assert!(l.cache_is_faster(Way::Write, request));
        for start in 60..80 {
            stretch(&l, Course::Cached, (2 * start + 1) * SECOND, 1010);
            stretch(&l, Course::Direct(request), (2 * start + 2) * SECOND, 1030);
            assert!(l.cache_is_faster(Way::Write, request), "{start}");
        }
    }

    /// Goal: writes are tried through the cache only as long as the result may change a decision, and again after many
    /// more bytes have gone direct. Bytes that arrive during a trial count even if no program waits for them, and later
    /// ones do not. Method: single requests and arrivals at given times.
    #[test]
    fn writes_are_tried_for_a_while() {
        let l = Throughput::default();
        let (request, step) = (2 << 20, 4 << 20);
        let direct = |l: &Throughput, from_ns: u64| stretch(l, Course::Direct(request), from_ns, 1000);
        direct(&l, 0);
        let try_all = |l: &Throughput, from_ns: u64| {
            let mut bytes = 0;
            while l.cache_is_faster(Way::Write, request) && bytes < 1 << 40 {
                l.tried(Way::Write, step, from_ns);
                bytes += step;
            }
            bytes
        };
        assert_eq!(try_all(&l, SECOND), TRIAL_BYTES);
        for ms in 0..100 {
            l.note_write_back(step, 2 * SECOND + ms * MS, false);
        }
        assert_eq!(shown(&l, "learned_cached_write_mib_s"), 0, "nobody tries it any more, nobody waits");
        let rounds = (1..10_000).find(|i| {
            direct(&l, (2 + i) * SECOND);
            l.cache_is_faster(Way::Write, request)
        });
        let rested = rounds.expect("it is tried again") * (200 << 20);
        assert!((TRIAL_REST * TRIAL_BYTES..=(TRIAL_REST + 2) * TRIAL_BYTES).contains(&rested), "{rested}");
        let start = 100_000 * SECOND;
        for ms in 0..40 {
            l.tried(Way::Write, step, start + ms * MS);
            l.note_write_back(step, start + ms * MS, false);
        }
        let rate = shown(&l, "learned_cached_write_mib_s");
        assert!((3900..=4200).contains(&rate), "{rate}");
        l.tried(Way::Write, step, start + SECOND);
        for ms in 0..40 {
            l.note_write_back(step / 8, start + SECOND + ms * MS, false);
        }
        assert_eq!(shown(&l, "learned_cached_write_mib_s"), rate, "what is known is not tried");
    }

    /// Goal: the share of reuse that the cache needs is what makes its time equal to that of direct requests, at most a
    /// half. Method: given rates.
    #[test]
    fn reuse_makes_up_for_a_slower_way() {
        for (cached, direct, least) in [(1000, 1000, 0), (1000, 900, 0), (750, 1000, 256), (1000, 8000, 512)] {
            let l = Throughput::default();
            stretch(&l, Course::Cached, 0, cached);
            assert_eq!(l.least_share(Way::Write, 300 << 10), 0, "direct is not known");
            stretch(&l, Course::Direct(300 << 10), SECOND, direct);
            let found = l.least_share(Way::Write, 300 << 10);
            assert!(found.abs_diff(least) <= 8, "{found} for {cached} and {direct}");
            assert_eq!((l.least_share(Way::Write, 1 << 20), l.least_share(Way::Read, 300 << 10)), (0, 0));
        }
    }

    /// Goal: reads are requested ahead until that rate is measured, and then not for the length of a sample. After that
    /// the better rate decides. Equal rates mean requesting ahead, the slower way is tried again, and sizes are
    /// distinguished. Method: reads with given times.
    #[test]
    fn asking_ahead_has_to_pay() {
        let large = 4 << 20;
        let stream = |l: &Throughput, ahead, from_ns: u64, mib_s: u64| {
            for step in 0..200 {
                // Between two streams no caller waits.
                let now_ns = from_ns + step * (4000 * MS / mib_s);
                l.note_large_read(ahead, large, (now_ns, now_ns), true);
            }
        };
        for (ahead, unasked, pays) in [(2000, 3000, false), (3000, 2000, true), (2000, 2080, true)] {
            let l = Throughput::default();
            assert!(l.ahead_pays(large));
            stream(&l, true, 0, ahead);
            assert!(!l.ahead_pays(large), "who knows");
            assert!(l.ahead_pays(large / 4), "of other sizes nothing is known");
            stream(&l, false, SECOND, unasked);
            assert_eq!(l.ahead_pays(large), pays, "{ahead} {unasked}");
            let turns = (1..100).find(|s| {
                stream(&l, pays, s * SECOND, if pays { ahead } else { unasked });
                l.ahead_pays(large) != pays
            });
            assert!(turns.is_some_and(|s| s < 60), "{turns:?}");
            let rate = shown(&l, "learned_unasked_read_4096k_mib_s");
            assert!(rate.abs_diff(unasked) <= 2, "{rate}");
        }
    }

    /// Goal: each size has its class. Method: edges.
    #[test]
    fn classes() {
        let of = |kib: u64| class(kib << 10);
        assert_eq!([of(1), of(32), of(63), of(64), of(1024), of(4096), of(1 << 20)], [0, 0, 0, 1, 5, 7, 7]);
    }
}
