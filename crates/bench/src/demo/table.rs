//! The demo's table: every transfer size, aligned and not, in each mode, beside the raw storage folder.
//!
//! Invariants: every cell streams a file of the whole size, unless its time is over; before each read the file is
//! written anew by large direct writes, and files of the raw folder leave the kernel's cache, so reads are cold. All
//! cells together take no longer than `BUDGET` and what the last calls and `fsync` of each take. All cells are measured
//! once, then all again as long as that fits the budget: what is shown is the median of the rounds, with their range in
//! the picture.

use super::bar;
use super::stop::Stop;
use crate::clock::now;
use crate::cluster::set_mode;
use crate::stream::{Moved, Stream, drop_kernel_cache, prepare_shifted};
use amphi_host::control;
use amphi_host::failure::{During, Failure, Outcome};
use indicatif::ProgressBar;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Transfer sizes in bytes.
const SIZES: [usize; 8] = [4 << 10, 32 << 10, 256 << 10, 1 << 20, 2 << 20, 8 << 20, 16 << 20, 64 << 20];
/// Streams of each row: three modes, the raw folder buffered and with O_DIRECT.
const STREAMS: usize = 5;
/// For all streams together, so that the whole stays under 5 minutes; they take about a minute where 4 KiB take 100 us.
const BUDGET: Duration = Duration::from_secs(150);
/// Most rounds: an odd number, whose median is one that was measured.
const ROUNDS: usize = 3;
/// For one stream in one direction.
const CELL: Duration = Duration::from_secs(10);

/// The time that is left, and for how many cells.
struct Budget {
    start: Instant,
    stop: Stop,
    cells: u32,
    /// Cells whose time was over.
    cut: usize,
}

impl Budget {
    /// The time limit of the next cell: up to eight times its share of the remaining time.
    fn next(&mut self) -> Duration {
        let left = BUDGET.saturating_sub(self.start.elapsed());
        let most = left * 8 / self.cells.max(8);
        self.cells = self.cells.saturating_sub(1);
        most.min(CELL)
    }

    /// One direction of a cell. MiB/s.
    fn stream(&mut self, stream: &Stream, run: impl FnOnce(&Stream) -> Outcome<Moved>) -> Outcome<f64> {
        let stream = Stream { most: Some(self.next()), ..stream.clone() };
        let moved = run(&stream)?;
        self.stop.check()?;
        self.cut += usize::from(moved.bytes < stream.bytes / stream.transfer as u64 * stream.transfer as u64);
        Ok(moved.rate())
    }

    fn write(&mut self, stream: &Stream) -> Outcome<f64> {
        let stop = self.stop.clone();
        self.stream(stream, |s| s.write_until(&|| (), &|| stop.is_wanted()))
    }

    fn read(&mut self, stream: &Stream) -> Outcome<f64> {
        let stop = self.stop.clone();
        self.stream(stream, |s| s.read_until(&|| (), &|| stop.is_wanted()))
    }
}

/// All rows, and how many cells could not stream the whole file in their time.
pub struct Rows {
    /// Sorted by direction, alignment, size.
    pub rows: Vec<Row>,
    /// Cells that were cut short.
    pub cut: usize,
    /// How often each cell was measured.
    pub rounds: usize,
}

/// MiB/s of one cell in each round.
#[derive(Clone, Debug, Default)]
pub struct Sample(Vec<f64>);

impl Sample {
    /// The middle one, or the mean of the two in the middle; 0 of none.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        if n == 0 { 0.0 } else { (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0 }
    }

    /// The slowest round.
    pub fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::MAX, f64::min)
    }

    /// The fastest round.
    pub fn most(&self) -> f64 {
        self.0.iter().copied().fold(0.0, f64::max)
    }

    fn add(&mut self, other: &Sample) {
        self.0.extend(&other.0);
    }
}

/// MiB/s of one size, alignment and direction.
pub struct Row {
    /// Bytes per call.
    pub transfer: usize,
    /// Whether calls start 8 bytes past alignment.
    pub unaligned: bool,
    /// Write, otherwise read.
    pub write: bool,
    /// The choice of `auto` and its reason, from the file's counters.
    pub chosen: String,
    /// Buffered, direct, auto.
    pub modes: [Sample; 3],
    /// Raw folder, buffered and O_DIRECT (`None` where O_DIRECT cannot).
    pub raw: (Sample, Option<Sample>),
}

impl Row {
    /// Auto over the better fixed mode, by their medians.
    pub fn ratio(&self) -> f64 {
        let [buffered, direct, auto] = self.modes.each_ref().map(Sample::median);
        auto / buffered.max(direct)
    }

    fn add(&mut self, other: &Row) {
        self.modes.iter_mut().zip(&other.modes).for_each(|(own, more)| own.add(more));
        self.raw.0.add(&other.raw.0);
        if let (Some(own), Some(more)) = (&mut self.raw.1, &other.raw.1) {
            own.add(more);
        }
        self.chosen.clone_from(&other.chosen);
    }
}

/// Measures all rows of transfers up to `largest`. `bytes` is the size of the streamed file.
pub fn measure(mount: &Path, raw: &Path, bytes: u64, largest: u64, stop: &Stop) -> Outcome<Rows> {
    let streams = SIZES.iter().filter(|size| **size as u64 <= largest).count() * 2 * STREAMS;
    let start = now();
    let mut found = Rows { rows: Vec::new(), cut: 0, rounds: 0 };
    while found.rounds < ROUNDS {
        // The first round may use the whole budget; a further one may use only the rest of it.
        let spent = start.elapsed();
        let per_round = spent.checked_div(found.rounds as u32).unwrap_or_default();
        if spent + per_round > BUDGET {
            break;
        }
        let progress = bar(&format!("streaming, round {}", found.rounds + 1), streams as u64);
        let mut budget = Budget { start, stop: stop.clone(), cells: 2 * streams as u32, cut: 0 };
        let round = measure_round(mount, raw, bytes, largest, &mut budget, &progress)?;
        progress.finish_and_clear();
        found.cut += budget.cut;
        found.rounds += 1;
        if found.rows.is_empty() {
            found.rows = round;
        } else {
            found.rows.iter_mut().zip(&round).for_each(|(own, more)| own.add(more));
        }
    }
    Ok(found)
}

/// All cells once.
fn measure_round(
    mount: &Path,
    raw: &Path,
    bytes: u64,
    largest: u64,
    budget: &mut Budget,
    progress: &ProgressBar,
) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    let sizes = || SIZES.into_iter().filter(|size| *size as u64 <= largest);
    for unaligned in [false, true] {
        for transfer in sizes() {
            let bytes = bytes.max(transfer as u64);
            let shift = if unaligned { 8 } else { 0 };
            let stream = |path: &Path, o_direct| Stream {
                path: path.to_path_buf(),
                bytes,
                transfer,
                shift,
                o_direct,
                most: None,
            };
            let mut pair = [(0.0, 0.0); 3];
            let mut chosen = (String::new(), String::new());
            for (i, mode) in ["buffered", "direct", "auto"].into_iter().enumerate() {
                let path = mount.join(format!("stream-{mode}"));
                let s = stream(&path, false);
                anew(&path, mode)?;
                forget(mount)?;
                let w = budget.write(&s)?;
                let why_w = reason(mount, "write")?;
                // Written past the cache, so that nothing of it is there.
                anew(&path, "direct")?;
                prepare_shifted(&path, bytes, shift)?;
                set_mode(&path, mode)?;
                let r = budget.read(&s)?;
                let why_r = reason(mount, "read")?;
                pair[i] = (w, r);
                chosen = (why_w, why_r);
                std::fs::remove_file(&path).during(|| format!("remove {}", path.display()))?;
                progress.inc(1);
            }
            let mut base = [(0.0, 0.0); 2];
            for (i, o_direct) in [(0, false), (1, true)] {
                if o_direct && unaligned {
                    budget.cells -= 2;
                    progress.inc(1);
                    continue;
                }
                let path = raw.join("stream");
                let s = stream(&path, o_direct);
                let w = budget.write(&s)?;
                prepare_shifted(&path, bytes, shift)?;
                drop_kernel_cache(&path)?;
                base[i] = (w, budget.read(&s)?);
                std::fs::remove_file(&path).during(|| format!("remove {}", path.display()))?;
                progress.inc(1);
            }
            let one = |rate: f64| Sample(vec![rate]);
            let raw_direct = |v: f64| (!unaligned).then(|| one(v));
            rows.push(Row {
                transfer,
                unaligned,
                write: true,
                chosen: chosen.0,
                modes: pair.map(|rates| one(rates.0)),
                raw: (one(base[0].0), raw_direct(base[1].0)),
            });
            rows.push(Row {
                transfer,
                unaligned,
                write: false,
                chosen: chosen.1,
                modes: pair.map(|rates| one(rates.1)),
                raw: (one(base[0].1), raw_direct(base[1].1)),
            });
        }
    }
    rows.sort_by_key(|r| (!r.write, r.unaligned, r.transfer));
    Ok(rows)
}

/// A new, empty file of this mode.
fn anew(path: &Path, mode: &str) -> Outcome {
    let _ = std::fs::remove_file(path);
    std::fs::write(path, b"").during(|| format!("make {}", path.display()))?;
    set_mode(path, mode)
}

/// The reason most bytes of `direction` went by since `forget`, from the counters of the mount.
fn reason(mount: &Path, direction: &str) -> Outcome<String> {
    let text = control::read(mount, "user.amphi.stats.json")?;
    let json: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| Failure::broken(format!("counters of {}: {e}", mount.display())))?;
    let none = serde_json::Map::new();
    let counters = json.get("counters").and_then(|c| c.as_object()).unwrap_or(&none);
    let reasons = counters.iter().filter_map(|(name, v)| {
        let reason = name.strip_prefix(direction)?.strip_prefix('_')?;
        let ways = ["direct_", "buffered_", "cache_"];
        ways.iter().any(|w| reason.starts_with(w)).then_some((reason, v.get("sum")?.as_u64()?))
    });
    let best = reasons.max_by_key(|(_, bytes)| *bytes).filter(|(_, bytes)| *bytes > 0);
    Ok(best.map_or_else(|| "-".to_string(), |(name, _)| name.to_string()))
}

/// Starts the counters again.
fn forget(mount: &Path) -> Outcome {
    control::write(mount, "user.amphi.stats", "reset", |_| "reset was refused".into())
}

/// The table as text.
pub fn render(found: &Rows) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "  {:<6} {:<10} {:>8}  {:<18} {:>9} {:>9} {:>9} {:>10}   {:>9} {:>9}",
        "", "", "transfer", "auto chose", "buffered", "direct", "auto", "auto/best", "raw buf", "raw direct"
    );
    for r in &found.rows {
        let _ = writeln!(
            out,
            "  {:<6} {:<10} {:>8}  {:<18} {:>9.0} {:>9.0} {:>9.0} {:>10.2}   {:>9.0} {:>9}",
            if r.write { "write" } else { "read" },
            if r.unaligned { "unaligned" } else { "aligned" },
            amphi_host::size::show(r.transfer as u64),
            r.chosen,
            r.modes[0].median(),
            r.modes[1].median(),
            r.modes[2].median(),
            r.ratio(),
            r.raw.0.median(),
            r.raw.1.as_ref().map_or_else(|| "-".into(), |v| format!("{:.0}", v.median())),
        );
    }
    let _ = writeln!(
        out,
        "  MiB/s, medians of {}; writes include fsync; reads are cold, of a file that was written past the cache: hits are of what was read ahead.",
        if found.rounds == 1 { "1 round".into() } else { format!("{} rounds", found.rounds) }
    );
    if found.cut > 0 {
        let _ = writeln!(out, "  {} of the streams took too long; measured over a part of the file.", found.cut);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the result of several rounds is their median, and a ratio is one of medians. Method: samples made by hand.
    #[test]
    fn medians_of_rounds() {
        let sample = |values: &[f64]| Sample(values.to_vec());
        assert_eq!(sample(&[3.0, 1.0, 10.0]).median(), 3.0);
        assert_eq!(sample(&[3.0, 1.0]).median(), 2.0);
        assert_eq!((sample(&[3.0, 1.0]).least(), sample(&[3.0, 1.0]).most()), (1.0, 3.0));
        let row = Row {
            transfer: 4096,
            unaligned: true,
            write: true,
            chosen: String::new(),
            modes: [sample(&[100.0, 300.0, 200.0]), sample(&[50.0]), sample(&[90.0, 180.0, 400.0])],
            raw: (sample(&[1.0]), None),
        };
        assert_eq!(row.ratio(), 0.9);
    }

    /// Goal: all cells together have no more than the budget, however long each takes, and each has its share. Method:
    /// cells that all take what they may, on a clock that is moved.
    #[test]
    fn cells_keep_to_the_budget() {
        let cells = (SIZES.len() * 2 * STREAMS * 2) as u32;
        let share = BUDGET / cells;
        let mut budget = Budget { start: now(), stop: Stop::default(), cells, cut: 0 };
        let mut all = Duration::ZERO;
        for left in (1..=cells).rev() {
            let most = budget.next();
            assert!(most >= (BUDGET - all).saturating_sub(Duration::from_secs(1)) / left, "{most:?} for one of {left}");
            if left == cells {
                assert!(most > share * 7, "{most:?}");
            }
            budget.start -= most;
            all += most;
        }
        assert!(all <= BUDGET, "{all:?}");
    }
}
