//! `amphi bench tree`: untar and delete of a tree of at least 10,000 files through the mount.
//!
//! Beside it the budget: requests of the kernel x round trip of the do-nothing mount + writes of the log x one 4 KiB
//! write with O_DIRECT; counts from the counters, both costs measured in the same rounds. Writes of the log are the
//! logged transactions, or the groups of them that were written together where those are fewer. And the same on the
//! local file system, and with answers that wait for the disk (`server.log_memory` off), in the same rounds.

use super::Run;
use super::clock::now;
use super::cluster::{Cluster, Counters};
use super::mounted::MountedFile;
use super::program::Program;
use super::raw::RawFile;
use super::report::{Finding, Goal, Table, digits, spread};
use super::series::Series;
use super::turns::{Arm, as_given};
use crate::demo::stop::Stop;
use crate::demo::tree;
use amphi_host::failure::{During, Failure, Outcome};
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::path::Path;
use std::process::{Command, Stdio};

/// Least number of files.
const FILES: usize = 10_000;

/// Measures mount, local file system and both costs in turn.
pub fn run(run: &mut Run) -> Outcome {
    let archive = run.dir.join("tree.tar");
    let (files, bytes) = pack(run, &archive)?;
    let null = Program::null_mount(&run.dir.join("null"))?;
    let cluster = Cluster::up(&run.dir.join("tree"), &[])?;
    let local = run.dir.join("local");
    let target = MountedFile::open(&run.dir.join("null/data"), 4096, 1 << 20, OFlags::empty())?;
    let log = RefCell::new(RawFile::filled(&run.dir.join("raw"), "log", 64 << 20)?);
    // Requests, transactions and groups of each untar and delete, as it is and with answers that wait for the disk; the
    // warm-up round first.
    let counts = RefCell::new(<[[Series; 3]; 4]>::default());
    let count = |step: usize, before: &Counters, after: &Counters| {
        let counted = &mut counts.borrow_mut()[step];
        // The look at the counters is made of two requests itself.
        let requests = after.kernel_requests().saturating_sub(before.kernel_requests()).saturating_sub(2);
        counted[0].0.push(requests as f64);
        for (series, name) in counted[1..].iter_mut().zip(["transactions", "log_groups"]) {
            series.0.push(after.server(name).saturating_sub(before.server(name)) as f64);
        }
    };
    let step = |step: usize| {
        // Untar, delete, and both once more, waiting.
        let waits = step >= 2;
        cluster.set(if waits { "server.log_memory=off" } else { "server.log_memory=on" })?;
        let before = cluster.counters()?;
        let place = cluster.mount.join("tree");
        let seconds = if step.is_multiple_of(2) { unpack(&archive, &place) } else { delete(&place) }?;
        count(step, &before, &cluster.counters()?);
        Ok(seconds)
    };
    let long = run.sample_time();
    let arms = vec![
        Arm::new("round trip of the do-nothing mount", || target.fstat_us(long)),
        Arm::new("4 KiB log write", || log.borrow_mut().log_write_us(long)),
        Arm::new("untar", || step(0)),
        Arm::new("delete", || step(1)),
        Arm::new("untar, waiting for the disk", || step(2)),
        Arm::new("delete, waiting for the disk", || step(3)),
        Arm::new("untar, local", || unpack(&archive, &local)),
        Arm::new("delete, local", || delete(&local)),
    ];
    let series = as_given(run, "tree", arms)?;
    drop(target);
    let mut counts = counts.into_inner();
    counts.iter_mut().flatten().for_each(|s| {
        s.0.remove(0);
    });
    show(run, (files, bytes), &series, &counts);
    cluster.stop()?;
    null.stop()
}

/// The table of a tree of this many files and bytes; `counts`: requests, transactions and log groups of each step.
fn show(run: &mut Run, (files, bytes): (usize, u64), series: &[Series], counts: &[[Series; 3]; 4]) {
    let mut table = Table::new(
        format!("Tree of {files} entries, {} (seconds, median and range)", amphi_host::size::show(bytes)),
        &["step", "AmphiFS", "requests", "transactions", "log groups", "budget", "ratio", "goal", "local"],
    );
    let (trip, write) = (&series[0], &series[1]);
    let rows = [
        ("untar", &series[2], &counts[0], Some(&series[6])),
        ("delete", &series[3], &counts[1], Some(&series[7])),
        ("untar, waiting", &series[4], &counts[2], None),
        ("delete, waiting", &series[5], &counts[3], None),
    ];
    for (name, mine, [requests, transactions, groups], local) in rows {
        let cost = |count: &Series, us: &Series| count.times(us).map(|us| us / 1e6);
        let budget = Series::sum(&[&cost(requests, trip), &cost(&transactions.lesser(groups), write)]);
        let ratio = mine.over(&budget);
        // The goal is for what a user gets, which is the first.
        let goal = local.map(|_| Goal::AtMost(1.5));
        table.row(vec![
            name.into(),
            spread(mine),
            digits(requests.median()),
            digits(transactions.median()),
            digits(groups.median()),
            digits(budget.median()),
            spread(&ratio),
            goal.map_or("-".into(), |goal| goal.show(ratio.median())),
            local.map_or("-".into(), spread),
        ]);
        let found = Finding::new("tree", name)
            .with("entries", files)
            .with("bytes", bytes)
            .series("kernel_requests", requests)
            .series("transactions", transactions)
            .series("log_groups", groups)
            .series("amphi_s", mine)
            .series("null_round_trip_us", trip)
            .series("log_write_us", write)
            .series("budget_s", &budget)
            .series("ratio", &ratio);
        let found = match local {
            Some(local) => found.series("local_s", local),
            None => found,
        };
        run.report.findings.push(match goal {
            Some(goal) => found.goal(ratio.median(), goal),
            None => found.value(ratio.median()),
        });
    }
    table.note("Waiting: with server.log_memory off, a change is answered when its record is on the disk.");
    table.note(format!(
        "Round trip of the do-nothing mount {} us; 4 KiB O_DIRECT write {} us.",
        spread(trip),
        spread(write)
    ));
    table.note("Requests are those that the client counts; forgets and flushes come on top. Without fsync on either side, as tar does it.");
    run.show(&table);
}

/// Makes the archive; number of entries and bytes.
fn pack(run: &Run, archive: &Path) -> Outcome<(usize, u64)> {
    let source = tree::choose(if run.quick { 1_000 } else { FILES })?;
    let folder = run.dir.join("source");
    tree::copy(&source, &folder, &Stop::default())?;
    let entries = tree::list(&folder)?;
    let mut tar = Command::new("tar");
    tar.arg("-cf").arg(archive).arg("-C").arg(&folder).arg(".");
    finish(tar, "tar")?;
    std::fs::remove_dir_all(&folder).during(|| format!("remove {}", folder.display()))?;
    Ok((entries, source.bytes))
}

fn unpack(archive: &Path, to: &Path) -> Outcome<f64> {
    std::fs::create_dir(to).during(|| format!("make {}", to.display()))?;
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(archive).arg("-C").arg(to);
    finish(tar, "tar")
}

fn delete(tree: &Path) -> Outcome<f64> {
    let mut rm = Command::new("rm");
    rm.arg("-rf").arg(tree);
    finish(rm, "rm")
}

/// Runs a program to its end. Seconds.
fn finish(mut command: Command, name: &str) -> Outcome<f64> {
    let start = now();
    let status = command.stdin(Stdio::null()).status().during(|| format!("run {name}"))?;
    let seconds = start.elapsed().as_secs_f64();
    if status.success() { Ok(seconds) } else { Err(Failure::broken(format!("{name} ended with {status}"))) }
}
