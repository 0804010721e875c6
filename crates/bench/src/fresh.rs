//! Large files on mounts that have just been started; a part of `amphi bench mount`.
//!
//! Owns: the comparisons. First and second passes over a file, by who serves the reads: `hybrid.kernel_cache` auto, on
//! and off, beside the local file system. Writes of a GiB, and of the next one by the same mount, through the cache
//! beside `O_DIRECT`: where new memory is expensive a cache must not grow for them.

use super::Run;
use super::cluster::Cluster;
use super::report::{Finding, Goal, Table, digits, spread};
use super::stream::{self, Stream, drop_kernel_cache};
use super::turns::{Arm, alternate};
use amphi_host::failure::{During, Outcome};
use std::path::Path;

/// Bytes of the file of which a pass is made.
const PASS_BYTES: u64 = 256 << 20;
/// Bytes that are written.
const WRITE_BYTES: u64 = 1 << 30;
/// Who serves the reads of a pass.
const SERVERS: [&str; 3] = ["auto", "on", "off"];

/// Measures all of it.
pub(super) fn run(run: &mut Run) -> Outcome {
    passes(run)?;
    writes(run)
}

/// First and second passes over a large file, in MiB/s: each sample on a mount that has just been started over a file
/// that lies on the disk.
fn passes(run: &mut Run) -> Outcome {
    let sizes: &[(&str, usize)] = &[("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20), ("16 MiB", 16 << 20)];
    let rows: Vec<(String, usize, usize)> = sizes
        .iter()
        .flat_map(|(name, size)| [1, 2].map(|passes| (format!("pass {passes}, {name}"), *size, passes)))
        .filter(|(name, ..)| run.wants(name))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let bytes = if run.quick { PASS_BYTES / 8 } else { PASS_BYTES };
    let (dir, local) = (run.dir.join("passes"), run.dir.join("passes-local"));
    let cluster = Cluster::up(&dir, &[])?;
    let file = cluster.mount.join("file");
    stream::prepare(&file, bytes)?;
    stream::prepare(&local, bytes)?;
    cluster.leave()?;
    let mut table = Table::new(
        format!("Passes over a file of {} MiB on fresh mounts (MiB/s, median and range)", bytes >> 20),
        &["pass, size of calls", "local", "auto", "on", "off", "auto/better", "goal"],
    );
    let goal = Goal::AtLeast(0.9);
    for (name, transfer, passes) in rows {
        let pass = |path: &Path| {
            let stream = Stream { path: path.into(), bytes, transfer, shift: 0, o_direct: false, most: None };
            (1..passes).try_for_each(|_| stream.read().map(drop))?;
            stream.read()
        };
        let mut arms = vec![Arm::new("local", || {
            drop_kernel_cache(&local)?;
            pass(&local)
        })];
        arms.extend(SERVERS.map(|server| {
            let (dir, file, pass) = (&dir, &file, &pass);
            Arm::new(server, move || {
                let cluster = Cluster::up(dir, &["--set", &format!("hybrid.kernel_cache={server}")])?;
                let rate = pass(file)?;
                cluster.leave()?;
                Ok(rate)
            })
        }));
        let series = alternate(run, &name, arms)?;
        let ratio = series[1].over_better(&series[2], &series[3]);
        let mut row = vec![name.clone()];
        row.extend(series.iter().map(spread));
        row.extend([digits(ratio.median()), goal.show(ratio.median())]);
        table.row(row);
        let mut found = Finding::new("mount", name).series("auto_over_better", &ratio).series("local", &series[0]);
        for (server, samples) in SERVERS.iter().zip(&series[1..]) {
            found = found.series(*server, samples);
        }
        run.report.findings.push(found.goal(ratio.median(), goal));
    }
    run.show(&table);
    std::fs::remove_file(&local).during(|| format!("remove {}", local.display()))
}

/// Writes in calls of 1 MiB up to `fsync`, in MiB/s: the first and the second GiB of a mount, by one writer and by two,
/// a file for each.
fn writes(run: &mut Run) -> Outcome {
    let rows: Vec<(String, usize, usize)> = [(1, "one writer"), (2, "two writers")]
        .iter()
        .flat_map(|(writers, name)| {
            [(1, "first"), (2, "second")].map(|(passes, pass)| (format!("{pass} GiB, {name}"), *writers, passes))
        })
        .filter(|(name, ..)| run.wants(name))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let bytes = if run.quick { WRITE_BYTES / 8 } else { WRITE_BYTES };
    let dir = run.dir.join("writes");
    let mut table = Table::new(
        format!("Writes of {} MiB in calls of 1 MiB on fresh mounts (MiB/s, median and range)", bytes >> 20),
        &["part, writers", "cache", "O_DIRECT", "cache/O_DIRECT", "goal"],
    );
    let goal = Goal::AtLeast(0.95);
    for (name, writers, passes) in rows {
        let arm = |o_direct: bool| {
            let dir = &dir;
            move || {
                let cluster = Cluster::up(dir, &["--zone-size", "8G"])?;
                let mut rate = 0.0;
                for _ in 0..passes {
                    rate = write(&cluster.mount, bytes, writers, o_direct)?;
                }
                cluster.stop()?;
                Ok(rate)
            }
        };
        let arms = vec![Arm::new("cache", arm(false)), Arm::new("direct", arm(true))];
        let series = alternate(run, &name, arms)?;
        let ratio = series[0].over(&series[1]);
        let mut row = vec![name.clone()];
        row.extend(series.iter().map(spread));
        row.extend([digits(ratio.median()), goal.show(ratio.median())]);
        table.row(row);
        let found = Finding::new("mount", name).series("cache_over_direct", &ratio);
        let found = found.series("cache", &series[0]).series("direct", &series[1]);
        run.report.findings.push(found.goal(ratio.median(), goal));
    }
    run.show(&table);
    Ok(())
}

/// A file for each writer, which is removed again.
fn write(dir: &Path, bytes: u64, writers: usize, o_direct: bool) -> Outcome<f64> {
    let path = |i: usize| dir.join(format!("file{i}"));
    let each = |i: usize, ready: &dyn Fn()| {
        let bytes = bytes / writers as u64;
        Stream { path: path(i), bytes, transfer: 1 << 20, shift: 0, o_direct, most: None }.write_when(ready)
    };
    let rate = stream::together(writers, each)?;
    for i in 0..writers {
        std::fs::remove_file(path(i)).during(|| format!("remove {}", path(i).display()))?;
    }
    Ok(rate)
}
