//! `Thresholds`: from which size on requests go direct, as measured.
//!
//! Owns: a threshold for reads and one for writes, each for sole and for shared mode, and the trials that move them.
//! Does not own: set and default values (`tunables`), the order of the rules (`decision`). Contention, memory and
//! locality decide as before, and while they do, nothing is tried.
//!
//! Sizes are put into classes, each twice as large as the one before. In each class one way is used by default: direct
//! from the threshold on, buffered below it. From time to time, for at most one byte in eight, requests are sent the
//! other way to measure it. The threshold moves when the other way was faster in eight samples, by five percent and by
//! more than the samples differ among themselves. From then on, requests of this class and of all larger classes go
//! that way.
//!
//! Invariants:
//!
//! * The threshold stays between an eighth of the default and eight times the default. A threshold that was set does
//!   not move.
//! * The cost of a trial is the time that it takes longer than the usual way would have taken. Nothing is tried while
//!   all trials together have cost more than 50 ms plus 2 % of the time with I/O. A trial that has cost this much is
//!   ended.
//! * The threshold for reads never goes below the default. On the first pass it is not known whether a file is read
//!   again, and reading a page again from the cache costs nothing. The threshold for writes may, unless written bytes
//!   are read back (`Locality::is_not_read_back`).
//!
//! A sample covers all bytes that arrived in a stretch of time (`throughput`). Samples older than 30 s of I/O do not
//! count, because disks become slower and others use them.

use crate::policy::decision::{Mode, Way};
use crate::policy::throughput::{Meter, SAMPLE_BYTES};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Begin of the smallest class.
const CLASS_MIN_BYTES: u64 = 4 << 10;
/// Classes from 4 KiB to 16 MiB and more.
const CLASSES: usize = 13;
/// The number of classes by which a threshold may move: to an eighth of the default, or to eight times the default.
const REACH: usize = 3;
/// Number of samples of each way that are compared for a decision.
const SAMPLES: usize = 8;
/// The other way has to be faster by this many percent.
const LEAD_PERCENT: u64 = 5;
/// The share of the time with I/O that trials may cost, as its inverse. `FREE_NS` is permitted in addition.
const COST_PART: u64 = 50;
const FREE_NS: u64 = 50_000_000;
/// One byte in this many may be used for trials.
const TRIAL_PART: u64 = 8;
/// Samples older than this do not count, measured in time with I/O.
const OLD_NS: u64 = 30_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

fn class(bytes: u64) -> usize {
    let doublings = (bytes / CLASS_MIN_BYTES).checked_ilog2().unwrap_or(0);
    (doublings as usize).min(CLASSES - 1)
}

fn bytes_of(class: usize) -> u64 {
    CLASS_MIN_BYTES << class
}

/// The last samples of one way of a class: bytes per second, and the moment when each was complete, in time during
/// which I/O ran.
#[derive(Clone, Copy, Debug, Default)]
struct Samples {
    last: [(u64, u64); SAMPLES],
    next: usize,
}

/// The median of samples, and the distance between their quartiles.
#[derive(Clone, Copy, Debug)]
struct Middle {
    per_s: u64,
    spread: u64,
}

impl Samples {
    fn add(&mut self, per_s: u64, io_ns: u64) {
        self.last[self.next] = (per_s.max(1), io_ns);
        self.next = (self.next + 1) % SAMPLES;
    }

    /// The median, or `None` if fewer than `least` samples are valid.
    fn middle(&self, least: usize, io_ns: u64) -> Option<Middle> {
        let counts = |&&(per_s, at_ns): &&(u64, u64)| per_s > 0 && io_ns.saturating_sub(at_ns) <= OLD_NS;
        let mut rates = [0; SAMPLES];
        let mut n = 0;
        for (per_s, _) in self.last.iter().filter(counts) {
            rates[n] = *per_s;
            n += 1;
        }
        if n < least.max(1) {
            return None;
        }
        let rates = &mut rates[..n];
        rates.sort_unstable();
        Some(Middle { per_s: rates[n / 2], spread: rates[(3 * n / 4).min(n - 1)] - rates[n / 4] })
    }
}

/// A trial: for a while, requests of a class are sent the other way.
#[derive(Clone, Copy, Debug)]
struct Trial {
    class: usize,
    mode: Mode,
    /// Throughput of the way that the class usually uses (`usual`).
    usual_per_s: u64,
    begun_ns: u64,
    left_bytes: u64,
    landed_bytes: u64,
}

impl Trial {
    /// The cost of the trial so far.
    fn cost_ns(&self, io_ns: u64) -> u64 {
        let usual = u128::from(self.landed_bytes) * u128::from(SECOND_NS) / u128::from(self.usual_per_s.max(1));
        io_ns.saturating_sub(self.begun_ns).saturating_sub(usual as u64)
    }
}

/// The state for reads or writes, in one of the two caching modes.
#[derive(Debug)]
struct Table {
    way: Way,
    /// Classes of the default and of the present threshold. Classes from the threshold on go direct.
    default: usize,
    at: usize,
    meter: Meter,
    /// Samples by class, each through the cache and direct.
    samples: [[Samples; 2]; CLASSES],
    trial: Option<Trial>,
    cost_ns: u64,
    /// The bytes that used the class's default way since the last trial.
    usual_bytes: u64,
    /// Class of the last request that went through the cache.
    cached_class: usize,
}

/// The index of a class and way, for the meter.
fn arm(class: usize, mode: Mode) -> usize {
    2 * class + usize::from(mode == Mode::Direct)
}

impl Table {
    fn new(way: Way) -> Table {
        Table {
            way,
            default: 0,
            at: 0,
            meter: Meter::default(),
            samples: [[Samples::default(); 2]; CLASSES],
            trial: None,
            cost_ns: 0,
            usual_bytes: 0,
            cached_class: 0,
        }
    }

    fn least(&self) -> usize {
        match self.way {
            Way::Read => self.default,
            Way::Write => self.default.saturating_sub(REACH),
        }
    }

    fn begin(&mut self, default: usize) {
        *self = Table { default, at: default, ..Table::new(self.way) };
    }

    fn sample_bytes(&self) -> u64 {
        SAMPLE_BYTES[self.way as usize]
    }

    fn may_cost_ns(&self) -> u64 {
        FREE_NS + self.meter.io_ns() / COST_PART
    }

    /// The way of a request if no other rule decides.
    fn mode(&mut self, class: usize, bytes: u64, usual: Mode, may_try: bool) -> Mode {
        if let Some(trial) = self.trial.as_mut().filter(|trial| trial.class == class) {
            if may_try && trial.mode != usual && trial.left_bytes > 0 {
                trial.left_bytes = trial.left_bytes.saturating_sub(bytes);
                return trial.mode;
            }
            self.end_trial(false);
        }
        if may_try && self.trial.is_none() && self.begin_trial(class, usual) {
            return self.mode(class, bytes, usual, may_try);
        }
        self.usual_bytes = self.usual_bytes.saturating_add(bytes);
        usual
    }

    fn begin_trial(&mut self, class: usize, usual: Mode) -> bool {
        // Twice the bytes of a sample, because the first of them arrive at the same time as requests that used the
        // default way.
        let left_bytes = 2 * self.sample_bytes();
        if self.usual_bytes < TRIAL_PART * left_bytes || self.cost_ns > self.may_cost_ns() {
            return false;
        }
        let begun_ns = self.meter.io_ns();
        let Some(known) = self.samples[class][usize::from(usual == Mode::Direct)].middle(SAMPLES / 2, begun_ns) else {
            return false;
        };
        let mode = if usual == Mode::Direct { Mode::Buffered } else { Mode::Direct };
        self.usual_bytes = 0;
        self.trial = Some(Trial { class, mode, usual_per_s: known.per_s, begun_ns, left_bytes, landed_bytes: 0 });
        true
    }

    /// Ends the trial. `sampled`: it has given its sample. Otherwise the bytes that have arrived count as one sample,
    /// if there are many or if the trial was expensive.
    fn end_trial(&mut self, sampled: bool) {
        let Some(trial) = self.trial.take() else { return };
        let io_ns = self.meter.io_ns();
        let (cost_ns, took_ns) = (trial.cost_ns(io_ns), io_ns.saturating_sub(trial.begun_ns));
        self.cost_ns = self.cost_ns.saturating_add(cost_ns);
        let is_much = trial.landed_bytes >= self.sample_bytes() / 2;
        if !sampled && took_ns > 0 && trial.landed_bytes > 0 && (is_much || cost_ns >= FREE_NS) {
            let per_s = u128::from(trial.landed_bytes) * u128::from(SECOND_NS) / u128::from(took_ns);
            self.sampled(trial.class, trial.mode, u64::try_from(per_s).unwrap_or(u64::MAX));
        }
    }

    /// Notes bytes that were sent one way.
    fn note(&mut self, direct: Option<u64>, bytes: u64, times_ns: (u64, u64), shows: bool) {
        let (class, mode) = match direct {
            Some(request) => (class(request), Mode::Direct),
            None => (self.cached_class, Mode::Buffered),
        };
        let is_tried = self.trial.is_some_and(|trial| (trial.class, trial.mode) == (class, mode));
        let shows = shows || (is_tried && mode == Mode::Buffered);
        let sample = self.meter.note(self.sample_bytes(), arm(class, mode), bytes, times_ns, shows);
        if let Some(trial) = self.trial.as_mut().filter(|_| is_tried) {
            trial.landed_bytes = trial.landed_bytes.saturating_add(bytes);
        }
        if let Some(per_s) = sample {
            if is_tried {
                self.end_trial(true);
            }
            self.sampled(class, mode, per_s);
        }
        let io_ns = self.meter.io_ns();
        if self.trial.is_some_and(|trial| self.cost_ns.saturating_add(trial.cost_ns(io_ns)) > self.may_cost_ns()) {
            self.end_trial(false);
        }
    }

    fn sampled(&mut self, class: usize, mode: Mode, per_s: u64) {
        let io_ns = self.meter.io_ns();
        let of_class = &mut self.samples[class];
        of_class[usize::from(mode == Mode::Direct)].add(per_s, io_ns);
        let [Some(cached), Some(direct)] = of_class.map(|samples| samples.middle(SAMPLES, io_ns)) else { return };
        // The median of eight samples is within a third of their quartile distance of the true one.
        let leads = |one: Middle, other: Middle| {
            one.per_s > other.per_s.saturating_add(other.per_s / 100 * LEAD_PERCENT + (one.spread + other.spread) / 3)
        };
        let at = match class < self.at {
            true if leads(direct, cached) => class,
            false if leads(cached, direct) => class + 1,
            _ => return,
        };
        self.at = at.clamp(self.least(), self.default + REACH);
    }
}

/// All that a mount has measured about thresholds.
#[derive(Debug)]
pub(crate) struct Thresholds {
    /// The tables of reads and writes, for sole mode and for shared mode.
    tables: [[Mutex<Table>; 2]; 2],
    in_company: AtomicBool,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        let tables = |way| [Mutex::new(Table::new(way)), Mutex::new(Table::new(way))];
        // The tables are in the order of `Way`.
        let tables = [tables(Way::Read), tables(Way::Write)];
        Thresholds { tables, in_company: AtomicBool::new(false) }
    }
}

/// The known facts about a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) way: Way,
    pub(crate) bytes: u64,
    /// The threshold if none was set.
    pub(crate) default_bytes: u64,
    pub(crate) in_company: bool,
    /// Cached bytes are used again, so no request goes direct that would be buffered by default.
    pub(crate) is_reused: bool,
    /// No other rule decides about the request.
    pub(crate) may_try: bool,
}

impl Thresholds {
    /// Returns whether a request counts as large.
    pub(crate) fn is_large(&self, asked: Asked) -> bool {
        let Asked { way, bytes, default_bytes, in_company, is_reused, may_try } = asked;
        let (class, default) = (class(bytes), class(default_bytes));
        if bytes_of(default) != default_bytes || class + REACH < default || class >= default + REACH {
            return bytes >= default_bytes;
        }
        self.in_company.store(in_company, Relaxed);
        let mut table = self.tables[way as usize][usize::from(in_company)].lock();
        if table.default != default {
            table.begin(default);
        }
        let at = if is_reused { table.at.max(default) } else { table.at };
        let usual = if class >= at { Mode::Direct } else { Mode::Buffered };
        let may_try = may_try && class >= table.least() && !(is_reused && class < default);
        let mode = table.mode(class, bytes, usual, may_try);
        if mode == Mode::Buffered {
            table.cached_class = class;
        }
        mode == Mode::Direct
    }

    /// Called when `bytes` have landed: direct in requests of `direct` bytes, or through the cache. `shows`: no other
    /// I/O ran at the same time that would falsify the sample.
    pub(crate) fn note(&self, way: Way, direct: Option<u64>, bytes: u64, times_ns: (u64, u64), shows: bool) {
        let in_company = self.in_company.load(Relaxed);
        let mut table = self.tables[way as usize][usize::from(in_company)].lock();
        // No request has come yet.
        if table.default > 0 {
            table.note(direct, bytes, times_ns, shows);
        }
    }

    /// The thresholds in sole and in shared mode, in bytes, if trials have changed them.
    pub(crate) fn moved(&self, way: Way) -> [Option<u64>; 2] {
        [0, 1].map(|company| {
            let table = self.tables[way as usize][company].lock();
            (table.at != table.default).then(|| bytes_of(table.at))
        })
    }
}

#[cfg(test)]
#[path = "thresholds/tests.rs"]
mod tests;
