//! Stages that nothing disturbs.

use crate::model::{self, assert_same, names};
use amphi_stage::{Existing, Keep, Options, Progress, Verify, stage};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Stages into a complete target, and returns the counts.
pub fn done(options: &Options) -> Progress {
    let progress = Progress::default();
    let manifest = stage(options, &progress).unwrap_or_else(|e| panic!("{e}"));
    assert!(manifest.complete, "failed {:?}, not kept {:?}", progress.failed.first(), progress.not_kept.first());
    progress
}

fn small(options: Options) -> Options {
    Options { piece_bytes: 1 << 20, sync_bytes: 8 << 20, ..options }
}

/// Goal: a copy contains all of its source and nothing else, with holes where the source has them; no temporary file
/// remains. Method: the model tree, with one thread and several, compared in everything that `stat` and the rest say.
#[test]
fn a_tree_is_copied_in_every_respect() {
    let dir = tempfile::tempdir().expect("folder");
    let source = dir.path().join("source");
    model::build(&source);
    for threads in [1, 5] {
        let target = dir.path().join(format!("target{threads}"));
        let progress = done(&small(Options { threads, ..Options::new(&source, &target) }));
        assert_same(&source, &target);
        assert_eq!(progress.verified_bytes.get(), progress.bytes.get(), "every byte was compared");
        assert_eq!(progress.copied_files.get(), progress.files.get());
        assert_eq!(progress.copied_bytes.get() + progress.skipped_bytes.get(), progress.bytes.get());
        for name in ["middle", "hole", "end", "huge", "start"] {
            let blocks = |root: &Path| fs::metadata(root.join("sparse").join(name)).expect("stat").blocks();
            assert!(blocks(&target) <= blocks(&source) + 64, "{name}: {} blocks", blocks(&target));
        }
    }
    assert_eq!(names(dir.path()), ["source", "target1", "target5"]);
}

/// Goal: a single file is a source as well, and so are a pipe and what a link points to. Method: one of each.
#[test]
fn a_file_is_copied() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), model::bytes(3 << 20, 9)).expect("write");
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RUSR).expect("mkfifo");
    std::os::unix::fs::symlink("file", at("link")).expect("symlink");
    done(&small(Options::new(at("file"), at("copy"))));
    assert_same(&at("file"), &at("copy"));
    done(&Options { verify: Verify::No, ..Options::new(at("link"), at("copy2")) });
    assert_same(&at("file"), &at("copy2"));
    done(&Options::new(at("pipe"), at("pipe2")));
    assert_same(&at("pipe"), &at("pipe2"));
    assert_eq!(names(dir.path()), ["copy", "copy2", "file", "link", "pipe", "pipe2"]);
}

/// Goal: a folder with a default access control list does not leave its mark on the copy. Method: such a folder.
#[test]
fn nothing_is_inherited_from_the_folder() {
    let dir = tempfile::tempdir().expect("folder");
    let (source, folder) = (dir.path().join("source"), dir.path().join("folder"));
    fs::create_dir_all(source.join("d")).expect("mkdir");
    fs::write(source.join("d/f"), b"x").expect("write");
    fs::create_dir(&folder).expect("mkdir");
    let status =
        std::process::Command::new("setfacl").args(["-d", "-m", "u:1234:rwx,g::rwx,o::rwx"]).arg(&folder).status();
    if !status.is_ok_and(|s| s.success()) {
        return; // Not installed, or the file system has none: nothing to inherit.
    }
    done(&Options::new(&source, folder.join("target")));
    assert_same(&source, &folder.join("target"));
}

/// Goal: an existing target is replaced at the end and only if that is requested. Method: a file and a tree, both ways.
#[test]
fn an_existing_target_is_replaced() {
    let dir = tempfile::tempdir().expect("folder");
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    fs::create_dir(&source).expect("mkdir");
    fs::write(source.join("new"), b"new").expect("write");
    fs::create_dir_all(target.join("old/er")).expect("mkdir");
    fs::write(target.join("old/file"), b"old").expect("write");
    let error = stage(&Options::new(&source, &target), &Progress::default()).expect_err("refused");
    assert!(error.text.contains("exists; give --replace"), "{error}");
    assert_eq!(names(dir.path()), ["source", "target"]);
    done(&Options { existing: Existing::Replace, ..Options::new(&source, &target) });
    assert_same(&source, &target);
    fs::remove_dir_all(&target).expect("remove");
    fs::write(&target, b"a file").expect("write");
    done(&Options { existing: Existing::Replace, ..Options::new(&source, &target) });
    assert_same(&source, &target);
    assert_eq!(names(dir.path()), ["source", "target"]);
}

/// Goal: attributes that cannot be kept are a failure with their names, and another try with other options continues
/// from the existing copy. Method: a stage by another user of files that belong to root, in a process of that user.
#[test]
fn what_cannot_be_kept_is_named() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("folder");
    std::os::unix::fs::chown(dir.path(), Some(1001), Some(1001)).expect("chown");
    let source = dir.path().join("source");
    fs::create_dir(&source).expect("mkdir");
    fs::write(source.join("file"), b"of root").expect("write");
    for (name, mode) in [("file", 0o4755), ("", 0o755)] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(source.join(name), mode).expect("chmod");
    }
    let (failed, said) = as_user(dir.path(), Keep::All);
    assert!(!failed && said.contains("file: owner 0: not permitted"), "{said}");
    assert!(!dir.path().join("target").exists());
    let (complete, said) = as_user(dir.path(), Keep::Possible);
    assert!(complete && said.contains("copied 0"), "{said}");
    let meta = fs::metadata(dir.path().join("target/file")).expect("stat");
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (1001, 0o755), "the bit of another owner is dropped");
    assert_eq!(fs::read(dir.path().join("target/file")).expect("read"), b"of root");
}

/// The same in a process of the user 1001.
fn as_user(dir: &Path, keep: Keep) -> (bool, String) {
    use std::os::unix::process::CommandExt;
    let program = std::env::current_exe().expect("a program");
    // The user may not be able to reach the build's folder.
    let copy = dir.join("program");
    fs::copy(program, &copy).expect("copy");
    let out = std::process::Command::new(&copy)
        .args(["whole::child", "--exact", "--nocapture"])
        .env("STAGE_DIR", dir)
        .env("STAGE_KEEP", if keep == Keep::All { "all" } else { "possible" })
        .uid(1001)
        .gid(1001)
        .current_dir("/")
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (said.contains("complete true"), said)
}

/// The process of `as_user`; nothing in a run of all tests.
#[test]
fn child() {
    let Some(dir) = std::env::var_os("STAGE_DIR") else { return };
    let keep = if std::env::var("STAGE_KEEP").expect("set") == "all" { Keep::All } else { Keep::Possible };
    let (dir, progress) = (Path::new(&dir), Progress::default());
    let options = Options { keep, ..Options::new(dir.join("source"), dir.join("target")) };
    let manifest = stage(&options, &progress).expect("no refusal");
    println!("complete {} copied {}", manifest.complete, progress.copied_files.get());
    progress.not_kept.first().iter().for_each(|note| println!("{}: {}", note.path, note.reason));
}
