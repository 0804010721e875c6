//! Requests and surroundings that are wrong.

use crate::model::{self, assert_same, names};
use crate::whole::done;
use amphi_stage::{ErrorKind, Existing, Leftovers, Options, Progress, clean, stage};
use std::fs;
use std::path::Path;
use std::process::Command;

fn refused(source: &Path, target: &Path, existing: Existing) -> String {
    let options = Options { existing, ..Options::new(source, target) };
    let error = stage(&options, &Progress::default()).expect_err("refused");
    assert_eq!(error.kind, ErrorKind::Refused, "{error}");
    error.text
}

/// Goal: what cannot be staged is refused before anything is changed, with a sentence that names it. Method: a table.
#[test]
fn refusals() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("tree/sub")).expect("mkdir");
    fs::write(at("file"), b"x").expect("write");
    std::os::unix::fs::symlink("tree", at("link")).expect("symlink");
    let before = names(dir.path());
    for (source, target, existing, words) in [
        ("missing", "t", Existing::Refuse, "cannot use the source"),
        ("file", "missing/t", Existing::Refuse, "make it first"),
        ("file", "file/t", Existing::Refuse, "Not a directory"),
        ("tree", "tree/t", Existing::Refuse, "is inside the source"),
        ("tree", "tree/sub/t", Existing::Refuse, "is inside the source"),
        ("tree", "link/t", Existing::Refuse, "is inside the source"),
        ("link", "tree/t", Existing::Refuse, "is inside the source"),
        ("tree/sub", "tree", Existing::Replace, "is inside the target"),
        ("tree", "tree", Existing::Replace, "is inside the source"),
        ("file", "file", Existing::Replace, "are the same file"),
        ("file", "tree", Existing::Update, "there is nothing to update"),
        ("tree", "file", Existing::Update, "there is nothing to update"),
        ("tree", "file", Existing::Refuse, "exists"),
        ("file", "..", Existing::Refuse, "needs a name"),
    ] {
        let said = refused(&at(source), &at(target), existing);
        assert!(said.contains(words), "{source} to {target}: {said}");
        assert_eq!(names(dir.path()), before, "{source} to {target}");
        assert!(names(&at("tree")) == ["sub"] && names(&at("tree/sub")).is_empty());
    }
}

/// Goal: remains of other stages are named, removed only on request, and files that belong to no stage stay. Method: a
/// stage that fails since it cannot keep a promise, a tree with such a name, and a journal that is none.
#[test]
fn leftovers_are_named_and_cleaned() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("bad")).expect("mkdir");
    let loops = at("bad/file");
    fs::write(&loops, b"x").expect("write");
    // A stage that ended in the middle: its journal and its tree are there.
    let good = at("good");
    fs::create_dir(&good).expect("mkdir");
    fs::write(good.join("f"), b"f").expect("write");
    crate::kill::interrupted(&at("bad"), &at("target"));
    let left = names(dir.path()).into_iter().filter(|n| n.starts_with(".target.stage-")).count();
    assert_eq!(left, 2, "a tree and its journal");
    fs::create_dir(at(".target.stage-00000000")).expect("mkdir");
    fs::write(at(".target.stage-00000001.journal"), b"no journal").expect("write");

    let progress = done(&Options::new(&good, at("target")));
    let remarks: Vec<String> = progress.remarks.first().into_iter().map(|n| n.reason).collect();
    assert_eq!(remarks.len(), 3, "{remarks:?}");
    assert_eq!(remarks.iter().filter(|r| r.contains("/bad; --clean removes it")).count(), 1, "{remarks:?}");
    assert_eq!(remarks.iter().filter(|r| r.contains("no journal of one")).count(), 2, "{remarks:?}");

    let progress = Progress::default();
    clean(&at("target"), &progress).expect("clean");
    assert_eq!(progress.remarks.count(), 3);
    let left: Vec<String> = names(dir.path()).into_iter().filter(|n| n.starts_with(".target.stage-")).collect();
    assert_eq!(left, [".target.stage-00000000", ".target.stage-00000001.journal"]);

    crate::kill::interrupted(&at("bad"), &at("other"));
    let options = Options { leftovers: Leftovers::Remove, ..Options::new(at("bad"), at("other")) };
    assert_eq!(done(&options).copied_files.get(), 1, "from the beginning");
    assert_same(&at("bad"), &at("other"));
}

/// Goal: files that cannot be read are all counted and the first are named, nothing appears, and the stage continues
/// when they can. Method: another user's stage of files of root, as far as the bound on names and beyond.
#[test]
fn unreadable_files_are_named() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("folder");
    std::os::unix::fs::chown(dir.path(), Some(1001), Some(1001)).expect("chown");
    let source = dir.path().join("source");
    fs::create_dir(&source).expect("mkdir");
    for n in 0..30 {
        let path = source.join(n.to_string());
        fs::write(&path, b"secret").expect("write");
        fs::set_permissions(&path, PermissionsExt::from_mode(if n < 25 { 0o600 } else { 0o644 })).expect("chmod");
    }
    fs::set_permissions(&source, PermissionsExt::from_mode(0o755)).expect("chmod");
    let program = dir.path().join("program");
    fs::copy(std::env::current_exe().expect("a program"), &program).expect("copy");
    let run = || {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(&program);
        command.args(["refused::child", "--exact", "--nocapture"]).env("STAGE_READ", dir.path());
        let out = command.uid(1001).gid(1001).current_dir("/").output().expect("runs");
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
    };
    let said = run();
    assert!(said.contains("complete false failed 25 named 20 cannot be read: Permission denied"), "{said}");
    assert!(!dir.path().join("target").exists());
    for n in 0..25 {
        fs::set_permissions(source.join(n.to_string()), PermissionsExt::from_mode(0o644)).expect("chmod");
    }
    let said = run();
    assert!(said.contains("complete true failed 0") && said.contains("copied 25"), "{said}");
}

/// The process of `unreadable_files_are_named`.
#[test]
fn child() {
    let Some(dir) = std::env::var_os("STAGE_READ") else { return };
    let (dir, progress) = (Path::new(&dir), Progress::default());
    let keep = amphi_stage::Keep::Possible;
    let options = Options { keep, ..Options::new(dir.join("source"), dir.join("target")) };
    let complete = stage(&options, &progress).expect("no refusal").complete;
    let first = progress.failed.first();
    let why = first.first().map(|n| n.reason.clone()).unwrap_or_default();
    println!("complete {complete} failed {} named {} {why}", progress.failed.count(), first.len());
    println!("copied {}", progress.copied_files.get());
}

/// Goal: a full target is reported in words, and the same stage continues when there is space. Method: a small file
/// system in memory that is made larger.
#[test]
fn a_full_target_is_said_to_be() {
    let dir = tempfile::tempdir().expect("folder");
    let (source, small) = (dir.path().join("source"), dir.path().join("small"));
    fs::create_dir_all(&source).expect("mkdir");
    fs::create_dir_all(&small).expect("mkdir");
    for n in 0..6 {
        fs::write(source.join(n.to_string()), model::bytes(1 << 20, n)).expect("write");
    }
    let mount = |options: &str| {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&small);
        command.output().is_ok_and(|out| out.status.success())
    };
    if !mount("size=4M") {
        return; // Only root may mount.
    }
    let options = Options { sync_bytes: 1 << 20, threads: 1, ..Options::new(&source, small.join("target")) };
    let error = stage(&options, &Progress::default()).expect_err("full");
    assert!(error.text.contains("the target is full") && error.kind == ErrorKind::Failed, "{error}");
    assert!(!small.join("target").exists());
    assert!(mount("remount,size=32M"));
    let progress = Progress::default();
    let complete = stage(&options, &progress).map(|m| m.complete);
    let same = std::panic::catch_unwind(|| assert_same(&source, &small.join("target")));
    Command::new("umount").arg(&small).status().expect("umount");
    assert_eq!((complete.map_err(|e| e.text), same.is_ok()), (Ok(true), true));
    assert!(progress.copied_files.get() <= 4, "{} files were copied again", progress.copied_files.get());
}
