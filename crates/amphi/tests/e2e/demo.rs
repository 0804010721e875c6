//! `amphi demo` in small: every step of it, on a source tree of the test.

use crate::harness::{Place, amphi, eventually, pattern};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Programs that the demo runs on the mount.
const PROGRAMS: [&str; 6] =
    ["git --version", "sqlite3 --version", "gcc --version", "make --version", "find --version", "bash --version"];

fn is_there(program: &str) -> bool {
    let mut words = program.split(' ');
    let mut command = Command::new(words.next().expect("a name"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The source files of the test, in the folders of cargo where the demo looks for them.
fn sources(place: &Place) -> PathBuf {
    let home = place.path("home");
    for i in 0..40u64 {
        let dir = home.join(format!("registry/src/crate{}", i % 4));
        fs::create_dir_all(&dir).expect("mkdir");
        let text: Vec<u8> =
            pattern(i, 3000 * (1 + i as usize % 5)).iter().map(|b| b"abcdef \n"[usize::from(b % 8)]).collect();
        fs::write(dir.join(format!("file{i}.rs")), text).expect("write");
    }
    home
}

fn is_mounted(place: &Place) -> bool {
    fs::read_to_string("/proc/self/mounts").expect("mounts").contains(&place.text("out"))
}

/// Processes that were started for the folder of the demo.
fn processes(place: &Place) -> usize {
    let of = |pid: fs::DirEntry| fs::read(pid.path().join("cmdline")).unwrap_or_default();
    let out = place.text("out").into_bytes();
    let lines = fs::read_dir("/proc").expect("processes").flatten().map(of);
    lines.filter(|line| line.windows(out.len()).any(|part| part == out)).count()
}

/// Goal: a demo that is ended by a signal at any step leaves no process, no mount and no folder. The next demo removes
/// what a killed demo has left. Method: demos are ended when they report the beginning of a step. The last one is
/// killed, with its cluster left running.
#[test]
fn an_interrupted_demo_leaves_nothing() {
    let place = Place::new();
    let home = sources(&place);
    let demo = |cache: &str| {
        let mut command = amphi();
        command.args(["demo", "--dir", &place.text("out"), "--files", "40", "--cache", cache]);
        command.env("CARGO_HOME", &home).stdin(Stdio::null()).stderr(Stdio::null());
        command
    };
    for (step, signal) in [("1.", Signal::INT), ("2.", Signal::TERM), ("3.", Signal::INT), ("2.", Signal::KILL)] {
        let mut child = demo("4M").stdout(Stdio::piped()).spawn().expect("amphi starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let begun = lines.any(|line| line.expect("a line").starts_with(step));
        assert!(begun, "it comes to {step}");
        kill_process(Pid::from_child(&child), signal).expect("a signal");
        lines.for_each(drop);
        let code = child.wait().expect("it ends").code();
        if signal == Signal::KILL {
            assert!(is_mounted(&place), "as nobody could clear up");
            continue;
        }
        assert_eq!(code, Some(1), "{step}");
        assert!(!place.path("out").exists(), "{step}: {:?}", fs::read_dir(place.path("out")).map(Iterator::count));
        assert_eq!((is_mounted(&place), processes(&place)), (false, 0), "{step}");
    }
    // The second demo takes the folder over, and then finds that no machine has such a cache.
    assert_eq!(demo("900T").stdout(Stdio::null()).status().expect("amphi starts").code(), Some(1));
    assert_eq!((is_mounted(&place), place.path("out").exists()), (false, false));
    eventually("the cluster has ended", || processes(&place) == 0);
}

/// Goal: the demo completes all its steps and reports this. It leaves a table and a picture and nothing else: no
/// process, no mount, no cluster. The next demo reuses its folder, even if the previous one failed, but not a folder
/// with other contents. Method: a small tree, a small cache and small streams. The output and the contents of the
/// folder are checked.
#[test]
fn the_demo_leaves_a_table_and_a_picture() {
    if let Some(missing) = PROGRAMS.into_iter().find(|p| !is_there(p)) {
        eprintln!("skipped: {missing} does not run");
        return;
    }
    let place = Place::new();
    let home = sources(&place);
    let demo = |more: &[&str]| {
        let mut command = amphi();
        command.args(["demo", "--dir", &place.text("out")]).args(more);
        command.env("CARGO_HOME", &home).stdin(Stdio::null()).output().expect("amphi starts")
    };
    let out = demo(&["--cache", "4M", "--files", "40", "--largest", "1M"]);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    for step in [
        "1. A cluster",
        "40 files",
        "compared byte for byte again",
        "SQLite",
        "4. Streams of 8 MiB",
        "of 1 servers up",
        "direct: they are large (hybrid.large_write_bytes=",
        "deleted",
        "nothing is left running",
    ] {
        assert!(said.contains(step), "{step:?} is not in:\n{said}");
    }
    let table = fs::read_to_string(place.path("out").join("table.txt")).expect("a table");
    assert!(said.contains(&table), "the table is printed");
    // Four sizes, aligned and not, written and read.
    let rows = table.lines().filter(|l| l.trim_start().starts_with("write") || l.trim_start().starts_with("read"));
    assert_eq!(rows.count(), 16, "{table}");
    assert!(fs::read_to_string(place.path("out").join("stream.svg")).expect("a picture").contains("<svg"));
    let mut left: Vec<_> =
        fs::read_dir(place.path("out")).expect("list").map(|e| e.expect("entry").file_name()).collect();
    left.sort();
    assert_eq!(left, ["stream.svg", "table.txt"]);
    assert!(!is_mounted(&place));
    for _ in 0..2 {
        // The demo asks for a cache that no machine has; the folder that is left does not disturb the next demo.
        let failed = demo(&["--cache", "900T"]);
        let said = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert!(!failed.status.success() && said.contains("memory of this machine"), "{said}");
        assert!(!place.path("out").exists(), "nothing is left of a demo that showed nothing");
    }
    fs::create_dir(place.path("out")).expect("mkdir");
    fs::write(place.path("out").join("thesis.tex"), b"").expect("write");
    // The demo runs with all defaults, as a new user runs it.
    let again = demo(&[]);
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("thesis.tex"));
}
