//! The place where a workload runs: named folders, or a cluster of its own with several mounts; and the counters of the
//! mounts during the run.

use super::tasks::Tasks;
use super::{Phase, Together};
use crate::clock;
use crate::machine::Machine;
use crate::mounted_cluster::{Mounts, Setup};
use crate::report::{Finding, Report, Table, digits};
use crate::series::Series;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::{control, size};
use clap::Args;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where a workload runs and where its results go.
#[derive(Args, Clone, Debug)]
pub struct PlaceOptions {
    /// Folders to work in, usually mounts of one file system; processes take turns on them
    #[arg(long, value_delimiter = ',', conflicts_with = "up")]
    mounts: Vec<PathBuf>,
    /// Start a cluster with this many mounts for the run [default: 1, unless --mounts is given]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    up: Option<u16>,
    /// Servers of that cluster
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    servers: u16,
    /// Put each mount of that cluster behind a link of its own of this many Mbit/s, in a network name space (as root)
    #[arg(long, value_name = "MBIT", conflicts_with = "mounts", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    link_mbit: Option<u32>,
    /// Tunables of that cluster, e.g. hybrid.mode=direct
    #[arg(long = "set", value_name = "NAME=VALUE", conflicts_with = "mounts")]
    set: Vec<String>,
    /// Folder for that cluster, on the storage to measure; it is removed again
    #[arg(long, default_value = "bench-out")]
    dir: PathBuf,
    /// Write every result to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draw the lengths of calls to this file (SVG)
    #[arg(long)]
    plot: Option<PathBuf>,
}

/// Counters of all mounts: samples, and bytes where they count bytes.
pub type Counted = BTreeMap<String, (u64, u64)>;

/// A place that is ready.
pub struct Place {
    mounts: Vec<PathBuf>,
    /// In this order: the mounts end before their folder goes, also after an error.
    cluster: Option<(Mounts, Folder)>,
    options: PlaceOptions,
    findings: Vec<Finding>,
    curves: Vec<super::plot::Curve>,
    counted: Table,
    bar: indicatif::ProgressBar,
    stopped: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

/// A folder that goes with the value.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = remove(&self.0);
    }
}

/// The counters of mounts since their start.
pub fn counters(mounts: &[PathBuf]) -> Outcome<Counted> {
    let mut all = Counted::new();
    for mount in mounts {
        let text = control::read(mount, "user.amphi.stats.json")?;
        let json: serde_json::Value =
            serde_json::from_str(&text).during(|| format!("understand the counters of {}", mount.display()))?;
        for (name, row) in json["counters"].as_object().into_iter().flatten() {
            let (n, sum) = all.entry(name.clone()).or_default();
            *n += row["samples"].as_u64().unwrap_or(0);
            *sum += row["sum"].as_u64().unwrap_or(0);
        }
    }
    Ok(all)
}

/// The differences of counters from `before` to `after`, without unchanged ones.
pub fn since(before: &Counted, after: &Counted) -> Counted {
    let less = |name: &String, (n, sum): &(u64, u64)| {
        let (n0, sum0) = before.get(name).copied().unwrap_or_default();
        (n.saturating_sub(n0), sum.saturating_sub(sum0))
    };
    after.iter().map(|(name, row)| (name.clone(), less(name, row))).filter(|(_, (n, _))| *n > 0).collect()
}

/// Mounts of AmphiFS below which `folders` lie, each once.
fn counting(folders: &[PathBuf]) -> Vec<PathBuf> {
    let all = control::mounts();
    let of = |path: &PathBuf| {
        let path = std::fs::canonicalize(path).ok()?;
        all.iter().filter(|m| path.starts_with(m)).max_by_key(|m| m.as_os_str().len()).cloned()
    };
    let mut found: Vec<PathBuf> = folders.iter().filter_map(of).collect();
    found.sort();
    found.dedup();
    found
}

impl Place {
    /// Looks at the folders or starts the cluster.
    pub fn make(options: &PlaceOptions) -> Outcome<Place> {
        // A signal ends the processes of the workload; this one goes on to clear up.
        let stopped = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        for signal in amphi_host::signals::ending_signals() {
            signal_hook::flag::register(signal, stopped.clone()).during(|| "catch signals".into())?;
        }
        let (mounts, cluster) = match options.mounts.is_empty() {
            false => {
                for m in &options.mounts {
                    if !m.is_dir() {
                        return Err(Failure::refused(format!(
                            "{}: is no folder; make it or name another",
                            m.display()
                        )));
                    }
                }
                (options.mounts.clone(), None)
            }
            true => {
                if options.dir.exists() {
                    let dir = options.dir.display();
                    return Err(Failure::refused(format!(
                        "{dir}: exists already; remove it or name another folder with --dir"
                    )));
                }
                std::fs::create_dir_all(&options.dir).during(|| format!("make {}", options.dir.display()))?;
                let dir = std::fs::canonicalize(&options.dir).during(|| "find the folder".into())?;
                let folder = Folder(dir);
                let mounts = usize::from(options.up.unwrap_or(1));
                let setup =
                    Setup { mounts, servers: options.servers, link_mbit: options.link_mbit, ..Setup::default() };
                // Declared after its folder, so that the cluster ends first if a tunable is refused.
                let cluster = Mounts::start(&folder.0, &setup)?;
                for set in &options.set {
                    cluster.set(set)?;
                }
                (cluster.dirs().to_vec(), Some((cluster, folder)))
            }
        };
        let counted = Table::new("What the mounts counted", &["phase", "counter", "samples", "bytes", "for each call"]);
        let (options, bar) = (options.clone(), indicatif::ProgressBar::new_spinner());
        bar.enable_steady_tick(std::time::Duration::from_millis(200));
        Ok(Place { mounts, cluster, options, findings: Vec::new(), curves: Vec::new(), counted, bar, stopped })
    }

    /// Folders to work in.
    pub fn mounts(&self) -> &[PathBuf] {
        &self.mounts
    }

    /// One phase, with the counters meanwhile.
    pub fn phase(&mut self, tasks: &mut Tasks, phase: Phase, iteration: u16) -> Outcome<Together> {
        if self.stopped.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Failure::broken("stopped by a signal"));
        }
        self.bar.set_message(format!("{} {}", phase.name(), iteration + 1));
        let counting = counting(&self.mounts);
        let before = counters(&counting)?;
        let all = tasks.phase(phase)?;
        let counted = since(&before, &counters(&counting)?);
        let calls = all.calls().max(1) as f64;
        let mut found = Finding::new("workload", format!("{} {iteration}", phase.name()))
            .with("bytes", all.bytes())
            .with("calls", all.calls())
            .series("mib_s", &Series(vec![all.mib_s()]))
            .series("per_second", &Series(vec![all.per_second()]))
            .series("seconds", &Series(vec![all.seconds()]))
            .series("open_transfer_close_s", &Series(all.parts().to_vec()));
        for (name, (n, sum)) in &counted {
            found = found.with(name, serde_json::json!({ "samples": n, "sum": sum }));
            let name = name.clone();
            let shown = if *sum == 0 || sum == n { "-".into() } else { size::show(*sum) };
            let phase = phase.name().to_string();
            self.counted.row(vec![phase, name, n.to_string(), shown, digits(*n as f64 / calls)]);
        }
        self.findings.push(found);
        self.curves.push(super::plot::Curve { name: phase.name().into(), latency: all.latency() });
        Ok(all)
    }

    /// Prints what was counted, writes the files, ends the cluster.
    pub fn finish(self, what: &'static str) -> Outcome {
        self.bar.finish_and_clear();
        if !counting(&self.mounts).is_empty() {
            println!("{}", self.counted.render());
        }
        if let Some(path) = &self.options.json {
            let machine = Machine::look(&self.mounts[0], 1, false);
            let report = Report { machine, findings: self.findings, tables: Default::default() };
            report.write_json(path)?;
        }
        if let Some(path) = &self.options.plot {
            super::plot::latencies(&format!("{what}: lengths of calls"), &self.curves, path)?;
        }
        let Some((cluster, folder)) = self.cluster else { return Ok(()) };
        cluster.stop()?;
        remove(&folder.0)
    }
}

/// Removes a folder, if it exists; one that was unmounted just now may still be busy for a moment.
fn remove(dir: &Path) -> Outcome {
    if !dir.exists() {
        return Ok(());
    }
    for _ in 0..20 {
        if std::fs::remove_dir_all(dir).is_ok() {
            return Ok(());
        }
        clock::pause(std::time::Duration::from_millis(50));
    }
    std::fs::remove_dir_all(dir).during(|| format!("remove {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only what changed is shown. Method: two small counts.
    #[test]
    fn differences_of_counters() {
        let of =
            |rows: &[(&str, u64, u64)]| rows.iter().map(|(n, a, b)| (n.to_string(), (*a, *b))).collect::<Counted>();
        let changed = since(&of(&[("a", 1, 10), ("b", 2, 2)]), &of(&[("a", 3, 50), ("b", 2, 2), ("c", 1, 1)]));
        assert_eq!(changed, of(&[("a", 2, 40), ("c", 1, 1)]));
    }
}
