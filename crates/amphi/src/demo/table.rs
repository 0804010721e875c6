//! The demo's table: every transfer size, aligned and not, in each mode, beside the raw storage folder.

use super::bar;
use crate::bench::stream::{Stream, drop_kernel_cache};
use crate::control;
use crate::failure::{During, Failure, Outcome};
use std::fmt::Write as _;
use std::path::Path;

/// Transfer sizes in bytes.
const SIZES: [usize; 8] = [4 << 10, 32 << 10, 256 << 10, 1 << 20, 2 << 20, 8 << 20, 16 << 20, 64 << 20];
/// A cell of small transfers moves no more than this many calls, so that the whole stays under minutes.
const MOST_CALLS: u64 = 12_000;

/// MiB/s of one size, alignment and direction.
pub struct Row {
    /// Bytes per call.
    pub transfer: usize,
    /// Whether calls start 8 bytes past alignment.
    pub unaligned: bool,
    /// Write, otherwise read.
    pub write: bool,
    /// What `auto` chose and why, from the file's counters.
    pub chosen: String,
    /// Buffered, direct, auto.
    pub modes: [f64; 3],
    /// Raw folder, buffered and O_DIRECT (`None` where O_DIRECT cannot).
    pub raw: (f64, Option<f64>),
}

impl Row {
    /// Auto over the better fixed mode.
    pub fn ratio(&self) -> f64 {
        self.modes[2] / self.modes[0].max(self.modes[1])
    }
}

/// Measures all rows of transfers up to `largest`. `bytes` is the size of the streamed file.
pub fn measure(mount: &Path, raw: &Path, bytes: u64, largest: u64) -> Outcome<Vec<Row>> {
    std::fs::create_dir_all(raw).during(|| format!("make {}", raw.display()))?;
    let mut rows = Vec::new();
    let sizes = || SIZES.into_iter().filter(|size| *size as u64 <= largest);
    let progress = bar("streaming", (sizes().count() * 2 * 5) as u64);
    for unaligned in [false, true] {
        for transfer in sizes() {
            let bytes = bytes.min(transfer as u64 * MOST_CALLS).max(transfer as u64);
            let stream = |path: std::path::PathBuf, o_direct| Stream {
                path,
                bytes,
                transfer,
                shift: if unaligned { 8 } else { 0 },
                o_direct,
            };
            let mut pair = [(0.0, 0.0); 3];
            let mut chosen = (String::new(), String::new());
            for (i, mode) in ["buffered", "direct", "auto"].into_iter().enumerate() {
                let path = mount.join(format!("stream-{mode}"));
                let _ = std::fs::remove_file(&path);
                std::fs::write(&path, b"").during(|| format!("make {}", path.display()))?;
                control::write(&path, "user.amphi.mode", mode, || format!("mode {mode} was refused"))?;
                let s = stream(path.clone(), false);
                forget(mount)?;
                let w = s.write()?;
                let why_w = reason(mount, "write")?;
                let r = s.read()?;
                let why_r = reason(mount, "read")?;
                pair[i] = (w, r);
                chosen = (why_w, why_r);
                std::fs::remove_file(&path).during(|| format!("remove {}", path.display()))?;
                progress.inc(1);
            }
            let mut base = [(0.0, 0.0); 2];
            for (i, o_direct) in [(0, false), (1, true)] {
                if o_direct && unaligned {
                    progress.inc(1);
                    continue;
                }
                let path = raw.join("stream");
                let s = stream(path.clone(), o_direct);
                let w = s.write()?;
                drop_kernel_cache(&path)?;
                base[i] = (w, s.read()?);
                std::fs::remove_file(&path).during(|| format!("remove {}", path.display()))?;
                progress.inc(1);
            }
            let raw_direct = |v: f64| (!unaligned).then_some(v);
            rows.push(Row {
                transfer,
                unaligned,
                write: true,
                chosen: chosen.0,
                modes: [pair[0].0, pair[1].0, pair[2].0],
                raw: (base[0].0, raw_direct(base[1].0)),
            });
            rows.push(Row {
                transfer,
                unaligned,
                write: false,
                chosen: chosen.1,
                modes: [pair[0].1, pair[1].1, pair[2].1],
                raw: (base[0].1, raw_direct(base[1].1)),
            });
        }
    }
    progress.finish_and_clear();
    rows.sort_by_key(|r| (!r.write, r.unaligned, r.transfer));
    Ok(rows)
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
    control::write(mount, "user.amphi.stats", "reset", || "reset was refused".into())
}

/// The table as text.
pub fn render(rows: &[Row]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "  {:<6} {:<10} {:>8}  {:<18} {:>9} {:>9} {:>9} {:>10}   {:>9} {:>9}",
        "", "", "transfer", "auto chose", "buffered", "direct", "auto", "auto/best", "raw buf", "raw direct"
    );
    for r in rows {
        let _ = writeln!(
            out,
            "  {:<6} {:<10} {:>8}  {:<18} {:>9.0} {:>9.0} {:>9.0} {:>10.2}   {:>9.0} {:>9}",
            if r.write { "write" } else { "read" },
            if r.unaligned { "unaligned" } else { "aligned" },
            crate::size::show(r.transfer as u64),
            r.chosen,
            r.modes[0],
            r.modes[1],
            r.modes[2],
            r.ratio(),
            r.raw.0,
            r.raw.1.map_or_else(|| "-".into(), |v| format!("{v:.0}")),
        );
    }
    let _ = writeln!(out, "  MiB/s; writes include fsync; reads are cold.");
    out
}
