//! `amphi bench mount`: repeated operations of programs on unchanged files: the kernel of a mount can serve them.
//!
//! Owns: the comparisons. Sides: the local file system, a mount in sole mode, a mount beside a second one that has read
//! all of it. All of them have done everything once before (the warm-up round), so the caches are warm. Measurements of
//! mounts that have just been started follow (`fresh`).

use super::Run;
use super::clock::now;
use super::fresh;
use super::mounted_cluster::{Mounts, Setup};
use super::report::{Finding, Goal, Table, digits, spread};
use super::series::Series;
use super::turns::{Arm, alternate, ns_per_op};
use crate::demo::stop::Stop;
use crate::demo::tree;
use amphi_env::Buf;
use amphi_host::failure::{During, Failure, Outcome};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::pread;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Least number of files of the tree.
const FILES: usize = 2_000;
/// Bytes of the file that is read; below the threshold from which reads pass all caches.
const FILE_BYTES: usize = 3 << 20;
/// Modules of Python's library that are imported from a copy of it.
const MODULES: &str =
    "asyncio, argparse, email.mime.text, http.client, json, logging, unittest, urllib.request, xml.dom.minidom";
/// Sides, in this order everywhere.
const SIDES: [&str; 3] = ["local", "alone", "two"];

/// A program over the tree: name, goal of its time over that on the local file system, arguments.
struct Walk {
    name: &'static str,
    goal: f64,
    command: fn(&Path) -> Command,
}

const WALKS: [Walk; 4] = [
    Walk { name: "du -s", goal: 1.5, command: |dir| with("du", &["-s"], &dir.join("tree")) },
    Walk {
        name: "grep -r",
        goal: 1.3,
        command: |dir| with("grep", &["-r", "no such text anywhere"], &dir.join("tree")),
    },
    Walk { name: "git status", goal: 1.3, command: |dir| git(dir, &["status", "--porcelain"]) },
    Walk { name: "python import", goal: 1.2, command: python },
];

fn with(program: &str, args: &[&str], last: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(args).arg(last);
    command
}

fn git(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(dir.join("tree"))
        .args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"])
        .args(args);
    command
}

fn python(dir: &Path) -> Command {
    let mut command = Command::new("python3");
    let script = format!("import sys; sys.path.insert(0, sys.argv[1]); import {MODULES}");
    // The program must not write compiled modules: the round before has written none either.
    command.args(["-S", "-B", "-c", &script]).arg(dir.join("python"));
    command
}

/// Measures everything.
pub fn run(run: &mut Run) -> Outcome {
    let alone = Mounts::start(&run.dir.join("alone"), &Setup { mounts: 1, ..Setup::default() })?;
    let two = Mounts::start(&run.dir.join("two"), &Setup { mounts: 2, ..Setup::default() })?;
    let local = run.dir.join("local");
    std::fs::create_dir_all(&local).during(|| format!("make {}", local.display()))?;
    let places = [local, alone.dirs()[0].clone(), two.dirs()[0].clone()];
    prepare(run, &places)?;
    reads(run, &places)?;
    walks(run, &places, &two.dirs()[1])?;
    alone.stop()?;
    two.stop()?;
    fresh::run(run)
}

/// The same files in every place.
fn prepare(run: &Run, places: &[PathBuf]) -> Outcome {
    let source = tree::choose(if run.quick { 200 } else { FILES })?;
    for place in places {
        std::fs::write(place.join("file"), &super::raw::pattern(FILE_BYTES)[..])
            .during(|| format!("write in {}", place.display()))?;
        tree::copy(&source, &place.join("tree"), &Stop::default())?;
        for args in [&["init", "-q"][..], &["add", "-A"], &["commit", "-q", "-m", "all"]] {
            // Without git, its row is left out.
            let _ = ended(git(place, args));
        }
        if let Some(library) = python_library() {
            copy_library(&library, &place.join("python"))?;
        }
    }
    Ok(())
}

/// The files that the modules need: neither installed packages nor tests.
fn copy_library(from: &Path, to: &Path) -> Outcome {
    const LEFT_OUT: [&str; 5] = ["site-packages", "test", "idlelib", "ensurepip", "lib2to3"];
    std::fs::create_dir_all(to).during(|| format!("make {}", to.display()))?;
    let mut copy = Command::new("cp");
    copy.arg("-r");
    for entry in std::fs::read_dir(from).during(|| format!("list {}", from.display()))? {
        let entry = entry.during(|| format!("list {}", from.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !LEFT_OUT.contains(&name.as_str()) && !name.starts_with("config-") {
            copy.arg(entry.path());
        }
    }
    copy.arg(to);
    ended(copy).map(drop)
}

fn python_library() -> Option<PathBuf> {
    let out = Command::new("python3").args(["-c", "import os; print(os.path.dirname(os.__file__))"]).output().ok()?;
    out.status.success().then(|| PathBuf::from(String::from_utf8_lossy(&out.stdout).trim()))
}

/// Runs a program to its end, whose output does not matter. Seconds.
fn ended(mut command: Command) -> Outcome<f64> {
    let start = now();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().during(|| format!("run {command:?}"))?;
    let seconds = start.elapsed().as_secs_f64();
    // grep that finds nothing ends with 1.
    match status.code() {
        Some(0 | 1) => Ok(seconds),
        _ => Err(Failure::broken(format!("{command:?} ended with {status}"))),
    }
}

/// Reads of one file by size, in MiB/s.
fn reads(run: &mut Run, places: &[PathBuf; 3]) -> Outcome {
    let long = run.sample_time();
    let mut table = Table::new(
        "Warm reads of a file of 3 MiB (MiB/s, median and range)",
        &["size", "local", "alone", "two mounts", "alone/local", "two/local", "goal"],
    );
    let goal = Goal::AtLeast(0.9);
    for (name, size) in [("read 4 KiB", 4 << 10), ("read 64 KiB", 64 << 10), ("read 1 MiB", 1 << 20)] {
        if !run.wants(name) {
            continue;
        }
        let sample = |place: &Path| {
            let path = place.join("file");
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let file = open(&path, flags, Mode::empty()).during(|| format!("open {}", path.display()))?;
            let (mut buf, mut at) = (Buf::zeroed(size), 0);
            let ns = ns_per_op(long, 8, || {
                let n = pread(&file, &mut buf[..], at).during(|| format!("read {}", path.display()))?;
                if n != size {
                    return Err(Failure::broken(format!("{}: {n} of {size} bytes", path.display())));
                }
                at = (at + size as u64) % FILE_BYTES as u64;
                Ok(())
            })?;
            Ok(size as f64 / (1 << 20) as f64 / (ns / 1e9))
        };
        let arms = SIDES.iter().zip(places).map(|(side, place)| Arm::new(*side, || sample(place))).collect();
        let series = alternate(run, name, arms)?;
        show(run, &mut table, name, &series, goal);
    }
    run.show(&table);
    Ok(())
}

/// Programs over the tree, in seconds.
fn walks(run: &mut Run, places: &[PathBuf; 3], second: &Path) -> Outcome {
    let mut table = Table::new(
        "Warm walks of a tree (seconds, median and range)",
        &["program", "local", "alone", "two mounts", "alone/local", "two/local", "goal"],
    );
    for walk in WALKS.iter().filter(|walk| run.wants(walk.name)).collect::<Vec<_>>() {
        if ended((walk.command)(&places[0])).is_err() {
            table.note(format!("{}: left out, it does not run here", walk.name));
            continue;
        }
        // The program runs once on the second mount before anything is measured, so that this mount has looked at every
        // file that the program uses.
        ended((walk.command)(second))?;
        let arms =
            SIDES.iter().zip(places).map(|(side, place)| Arm::new(*side, || ended((walk.command)(place)))).collect();
        let series = alternate(run, walk.name, arms)?;
        let goal = Goal::AtMost(walk.goal);
        show(run, &mut table, walk.name, &series, goal);
        let beside = series[2].over(&series[1]);
        let beside_goal = Goal::AtMost(1.1);
        table.note(format!(
            "{}: with a second mount {} times as long as alone, {}",
            walk.name,
            spread(&beside),
            beside_goal.show(beside.median())
        ));
        run.report.findings.push(
            Finding::new("mount", format!("{}, two mounts over alone", walk.name))
                .series("ratio", &beside)
                .goal(beside.median(), beside_goal),
        );
    }
    run.show(&table);
    Ok(())
}

/// A row and its finding; the goal is for the mount that is alone.
fn show(run: &mut Run, table: &mut Table, name: &str, series: &[Series], goal: Goal) {
    let (alone, two) = (series[1].over(&series[0]), series[2].over(&series[0]));
    let mut row: Vec<String> = vec![name.into()];
    row.extend(series.iter().map(spread));
    row.extend([digits(alone.median()), digits(two.median())]);
    let mut found = Finding::new("mount", name).series("alone_over_local", &alone).series("two_over_local", &two);
    for (side, samples) in SIDES.iter().zip(series) {
        found = found.series(*side, samples);
    }
    row.push(goal.show(alone.median()));
    table.row(row);
    run.report.findings.push(found.goal(alone.median(), goal));
}
