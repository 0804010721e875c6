//! Stages that are killed: the same command continues.

use crate::model::{self, assert_same, names};
use amphi_stage::{Existing, Options, Progress, stage};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SYNC_BYTES: u64 = 4 << 20;

fn options(source: &Path, target: &Path) -> Options {
    Options { threads: 3, sync_bytes: SYNC_BYTES, piece_bytes: 1 << 20, ..Options::new(source, target) }
}

/// Starts a stage in a process of its own.
fn spawn(source: &Path, target: &Path) -> Child {
    command(source, target).spawn().expect("runs")
}

pub fn command(source: &Path, target: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a program"));
    command.args(["kill::child", "--exact", "--nocapture"]).stdout(Stdio::null());
    command.env("STAGE_SOURCE", source).env("STAGE_TARGET", target);
    command
}

/// The process of `spawn`; nothing in a run of all tests.
#[test]
fn child() {
    let (Some(source), Some(target)) = (std::env::var_os("STAGE_SOURCE"), std::env::var_os("STAGE_TARGET")) else {
        return;
    };
    let existing = if std::env::var_os("STAGE_UPDATE").is_some() { Existing::Update } else { Existing::Refuse };
    let options = Options { existing, ..options(Path::new(&source), Path::new(&target)) };
    let manifest = stage(&options, &Progress::default()).expect("no refusal");
    assert!(manifest.complete);
}

/// Bytes that a process has written.
fn written(child: &Child) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap_or_default();
    let line = io.lines().find_map(|l| l.strip_prefix("wchar: "));
    line.and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Stages until the process has begun to work, then kills it: a journal and a tree stay, unless it was faster.
pub fn interrupted(source: &Path, target: &Path) {
    loop {
        let mut child = spawn(source, target);
        let name = target.file_name().expect("a name").to_string_lossy().into_owned();
        let dir = target.parent().expect("a folder");
        let begun = || {
            let left = names(dir).into_iter().filter(|n| n.starts_with(&format!(".{name}.stage-"))).count();
            left >= 2
        };
        while !begun() && child.try_wait().expect("wait").is_none() {
            std::thread::yield_now();
        }
        child.kill().expect("kill");
        child.wait().expect("wait");
        if begun() {
            return;
        }
        let _ = fs::remove_dir_all(target);
    }
}

/// Goal: a stage that is killed again and again completes; the target is either absent or complete at any time, and
/// each kill costs no more than the bound. Method: kill -9 every 100 ms, less often on slow machines; bytes written by
/// all processes together, as the kernel counts them.
#[test]
fn killed_every_100_ms() {
    let dir = tempfile::tempdir().expect("folder");
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    model::build(&source);
    let mut bytes = 0;
    for n in 0..6u64 {
        let data = model::bytes(20 << 20, n);
        bytes += data.len() as u64;
        fs::write(source.join(format!("bulk{n}")), data).expect("write");
    }
    bytes += (9 << 20) + 2 * (1 << 20) + 700_000; // The model tree's own.
    let (mut pause, mut kills, mut all) = (Duration::from_millis(100), 0u64, 0);
    loop {
        let mut child = spawn(&source, &target);
        let end = Instant::now() + pause;
        while Instant::now() < end && child.try_wait().expect("wait").is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        if let Some(status) = child.try_wait().expect("wait") {
            assert!(status.success(), "ended with {status} after {kills} kills");
            break;
        }
        let stopped =
            rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::STOP);
        stopped.expect("stop");
        std::thread::sleep(Duration::from_millis(1));
        all += written(&child);
        child.kill().expect("kill");
        child.wait().expect("wait");
        kills += 1;
        assert!(kills < 500, "it gets nowhere");
        if target.exists() {
            assert_same(&source, &target);
            if !names(dir.path()).iter().any(|n| n.starts_with('.')) {
                break; // Killed behind its last step.
            }
        }
        pause = pause.mul_f64(1.02);
    }
    assert_same(&source, &target);
    let left: Vec<String> = names(dir.path()).into_iter().filter(|n| n.starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
    // The last process is not counted, and journals have some bytes of their own.
    let bound = bytes + kills * (SYNC_BYTES + (1 << 20));
    assert!(all <= bound, "{all} bytes were written with {kills} kills, at most {bound} were to be");
}

/// Goal: after a kill at any point the next run copies at most the bound again, and its report of copied bytes is true.
/// Method: kills at many moments of the copying; the writes of the next process are compared with the remaining work of
/// the first.
#[test]
fn a_kill_costs_no_more_than_the_bound() {
    let dir = tempfile::tempdir().expect("folder");
    let source = dir.path().join("source");
    fs::create_dir(&source).expect("mkdir");
    let total = 48u64 << 20;
    fs::write(source.join("large"), model::bytes(total as usize - (1 << 20), 1)).expect("write");
    for n in 0..128 {
        fs::write(source.join(n.to_string()), model::bytes(8192, n)).expect("write");
    }
    let mut seen = 0;
    for step in 1..10u64 {
        let target = dir.path().join(format!("target{step}"));
        let mut child = spawn(&source, &target);
        while written(&child) < step * (5 << 20) && child.try_wait().expect("wait").is_none() {
            std::thread::yield_now();
        }
        let pid = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::STOP);
        let before = written(&child);
        child.kill().expect("kill");
        child.wait().expect("wait");
        if target.exists() {
            continue;
        }
        let progress = crate::whole::done(&options(&source, &target));
        let again = (before + progress.copied_bytes.get()).saturating_sub(total);
        assert!(again <= SYNC_BYTES + (1 << 20), "{again} bytes were copied again after {before}");
        assert_same(&source, &target);
        seen += 1;
        fs::remove_dir_all(&target).expect("remove");
    }
    assert!(seen >= 3, "only {seen} were killed in time");
}

/// Goal: an update that is killed again and again gets to its end, each file is old or new at any time, and no
/// temporary name stays. Method: kill -9 at increasing times; a file whose old and new bytes are known is read after
/// each.
#[test]
fn killed_updates() {
    let dir = tempfile::tempdir().expect("folder");
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    model::build(&source);
    crate::whole::done(&options(&source, &target));
    let file = |root: &Path| root.join("a/large");
    let (old, new) = (fs::read(file(&source)).expect("read"), model::bytes(30 << 20, 77));
    fs::write(file(&source), &new).expect("write");
    for n in 0..100 {
        fs::write(source.join(format!("many/{n}")), model::bytes(5000 + n, 3)).expect("write");
    }
    let (mut pause, mut kills) = (Duration::from_millis(10), 0);
    loop {
        let mut child = command(&source, &target).env("STAGE_UPDATE", "1").spawn().expect("runs");
        std::thread::sleep(pause);
        let ended = child.try_wait().expect("wait");
        child.kill().expect("kill");
        child.wait().expect("wait");
        let now = fs::read(file(&target)).expect("read");
        assert!(now == old || now == new, "a file is old or new");
        if let Some(status) = ended {
            assert!(status.success(), "ended with {status} after {kills} kills");
            break;
        }
        kills += 1;
        assert!(kills < 200, "it gets nowhere");
        pause = pause.mul_f64(1.1);
    }
    assert!(kills >= 3, "only {kills} kills");
    assert_same(&source, &target);
    let left: Vec<String> = names(dir.path()).into_iter().filter(|n| n.starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Goal: two processes do not work on one stage. Method: a second one while the first is stopped.
#[test]
fn one_process_at_a_time() {
    let dir = tempfile::tempdir().expect("folder");
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    fs::create_dir(&source).expect("mkdir");
    fs::write(source.join("file"), model::bytes(64 << 20, 1)).expect("write");
    let mut child = spawn(&source, &target);
    while written(&child) < 1 << 20 {
        std::thread::yield_now();
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::STOP)
        .expect("stop");
    if !target.exists() {
        let error = stage(&options(&source, &target), &Progress::default()).expect_err("in use");
        assert!(error.text.contains("another process stages"), "{error}");
        let options = Options { leftovers: amphi_stage::Leftovers::Remove, ..options(&source, &target) };
        assert!(stage(&options, &Progress::default()).expect_err("in use").text.contains("another process"), "cleaned");
    }
    child.kill().expect("kill");
    child.wait().expect("wait");
    crate::whole::done(&options(&source, &target));
    assert_same(&source, &target);
}
