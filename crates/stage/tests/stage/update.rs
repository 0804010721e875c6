//! Targets that are brought up to date.

use crate::model::{self, assert_same, names};
use crate::whole::done;
use amphi_stage::{ErrorKind, Existing, Options, Progress, stage};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

fn update(source: &Path, target: &Path) -> Options {
    Options { existing: Existing::Update, piece_bytes: 1 << 20, sync_bytes: 8 << 20, ..Options::new(source, target) }
}

/// Goal: an update copies the differences and nothing else, keeps entries that are missing in the source unless they
/// are to be removed, and also copies all attributes. Method: the model tree, then changes of all kinds on both sides.
#[test]
fn an_update_copies_what_differs() {
    let dir = tempfile::tempdir().expect("folder");
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    model::build(&source);
    done(&update(&source, &target));
    assert_same(&source, &target);
    let inode = |name: &str| fs::symlink_metadata(target.join(name)).expect("stat").ino();
    let (same, linked) = (inode("many/50"), inode("many/100"));

    let progress = done(&update(&source, &target));
    assert_eq!((progress.copied_files.get(), progress.skipped_files.get()), (0, progress.files.get()));
    assert_same(&source, &target);

    fs::write(source.join("many/51"), b"longer than it was, or shorter").expect("write");
    fs::write(source.join("new"), b"new").expect("write");
    fs::remove_file(source.join("many/52")).expect("remove");
    fs::create_dir(source.join("many/52")).expect("mkdir");
    fs::write(source.join("many/52/in"), b"x").expect("write");
    fs::remove_dir_all(source.join("a/b")).expect("remove");
    fs::write(source.join("a/b"), b"a file now").expect("write");
    fs::remove_file(source.join("links/dangling")).expect("remove");
    std::os::unix::fs::symlink("elsewhere", source.join("links/dangling")).expect("symlink");
    fs::hard_link(source.join("many/100"), source.join("links/hundred")).expect("link");
    fs::set_permissions(source.join("many/53"), std::os::unix::fs::PermissionsExt::from_mode(0o711)).expect("chmod");
    fs::create_dir(target.join("extra")).expect("mkdir");
    fs::write(target.join("extra/file"), b"x").expect("write");
    fs::write(target.join("many/more"), b"x").expect("write");
    let progress = done(&update(&source, &target));
    assert_eq!(progress.copied_files.get(), 4, "51, new, 52/in, a/b");
    assert_eq!((inode("many/50"), inode("many/100")), (same, linked));
    assert!(target.join("extra/file").exists() && target.join("many/more").exists());

    let progress = done(&Options { existing: Existing::UpdateAndDelete, ..update(&source, &target) });
    assert_eq!((progress.copied_files.get(), progress.deleted.get()), (0, 2));
    assert_same(&source, &target);
    assert_eq!(names(dir.path()), ["source", "target"]);
}

/// Goal: an update of a single file, and of a tree behind a link. Method: one of each.
#[test]
fn files_and_links_are_updated() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    fs::write(at("a"), b"one").expect("write");
    done(&update(&at("a"), &at("b")));
    fs::write(at("a"), b"three").expect("write");
    assert_eq!(done(&update(&at("a"), &at("b"))).copied_files.get(), 1);
    assert_same(&at("a"), &at("b"));
    fs::create_dir_all(at("tree/x")).expect("mkdir");
    fs::create_dir(at("copy")).expect("mkdir");
    std::os::unix::fs::symlink("copy", at("link")).expect("symlink");
    done(&update(&at("tree"), &at("link")));
    assert_same(&at("tree"), &at("copy"));
    assert!(at("link").is_symlink());
    assert_eq!(names(dir.path()), ["a", "b", "copy", "link", "tree"]);
}

/// Goal: what could not be listed in the source is not taken for gone: nothing is removed from the target, the report
/// says so, and the next run removes what is gone indeed. Method: another user's stage of a tree with a directory that
/// only root may list.
#[test]
fn what_cannot_be_listed_stays() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    for root in ["source", "target"] {
        fs::create_dir_all(at(root).join("closed/in")).expect("mkdir");
        fs::write(at(root).join("closed/in/file"), b"x").expect("write");
    }
    fs::write(at("target/gone"), b"x").expect("write");
    let owned = Command::new("chown").args(["-R", "1001:1001"]).arg(at("target")).status();
    assert!(owned.expect("chown").success());
    std::os::unix::fs::chown(dir.path(), Some(1001), Some(1001)).expect("chown");
    let run = |mode: u32| {
        fs::set_permissions(at("source/closed"), PermissionsExt::from_mode(mode)).expect("chmod");
        as_user(dir.path(), "update")
    };
    let said = run(0o700);
    assert!(said.contains("complete false deleted 0 nothing is removed from the target"), "{said}");
    assert!(at("target/closed/in/file").exists() && at("target/gone").exists());
    let said = run(0o755);
    assert!(said.contains("complete true deleted 1"), "{said}");
    assert!(at("target/closed/in/file").exists() && !at("target/gone").exists());
}

/// Goal: the journal of an unfinished update goes only when its temporary names can all have been found. Method:
/// another user cleans behind an update that was killed, in a tree with a directory that only root may list.
#[test]
fn a_tree_that_cannot_be_listed_is_not_clean() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("source")).expect("mkdir");
    fs::write(at("source/file"), vec![1; 32 << 20]).expect("write");
    // One that has its first record.
    let is_journal =
        |name: &String| name.ends_with(".journal") && fs::metadata(at(name)).is_ok_and(|meta| meta.len() > 0);
    let journals = || names(dir.path()).iter().filter(|name| is_journal(name)).count();
    while journals() == 0 {
        let _ = fs::remove_dir_all(at("target"));
        fs::create_dir_all(at("target/closed")).expect("mkdir");
        let mut child =
            crate::kill::command(&at("source"), &at("target")).env("STAGE_UPDATE", "1").spawn().expect("runs");
        while journals() == 0 && child.try_wait().expect("wait").is_none() {
            std::thread::yield_now();
        }
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
    let owned = Command::new("chown").args(["-R", "1001:1001"]).arg(dir.path()).status();
    assert!(owned.expect("chown").success());
    std::os::unix::fs::chown(at("target/closed"), Some(0), Some(0)).expect("chown");
    for (mode, words, left) in [(0o700, "closed: cannot be listed", 1), (0o755, "cleaned", 0)] {
        fs::set_permissions(at("target/closed"), PermissionsExt::from_mode(mode)).expect("chmod");
        let said = as_user(dir.path(), "clean");
        assert!(said.contains(words) && journals() == left, "{said}");
    }
}

/// What the user 1001 does in a folder, in a process of its own; what that says.
fn as_user(dir: &Path, what: &str) -> String {
    // The user may not be able to reach the build's folder.
    let program = dir.join("program");
    fs::copy(std::env::current_exe().expect("a program"), &program).expect("copy");
    let mut command = Command::new(&program);
    command.args(["update::child", "--exact", "--nocapture"]).env("STAGE_DIRECTORY", dir).env("STAGE_WHAT", what);
    let out = command.uid(1001).gid(1001).current_dir("/").output().expect("runs");
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

/// The process of `as_user`; nothing in a run of all tests.
#[test]
fn child() {
    let Some(dir) = std::env::var_os("STAGE_DIRECTORY") else { return };
    let (dir, progress) = (Path::new(&dir), Progress::default());
    if std::env::var("STAGE_WHAT").is_ok_and(|what| what == "clean") {
        let cleaned = amphi_stage::clean(&dir.join("target"), &progress);
        return println!("{}", cleaned.map_or_else(|e| e.text, |()| "cleaned".into()));
    }
    let options = Options { existing: Existing::UpdateAndDelete, ..update(&dir.join("source"), &dir.join("target")) };
    let options = Options { keep: amphi_stage::Keep::Possible, ..options };
    let complete = stage(&options, &progress).expect("no refusal").complete;
    let remark = progress.remarks.first().first().map(|note| note.reason.clone()).unwrap_or_default();
    println!("complete {complete} deleted {} {remark}", progress.deleted.get());
}

/// Goal: a source that has nothing at all, as if it were not mounted, does not empty the target. Method: such an update
/// with and without removal, and one of an empty target.
#[test]
fn an_empty_source_removes_nothing() {
    let dir = tempfile::tempdir().expect("folder");
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    fs::create_dir(&source).expect("mkdir");
    fs::create_dir(&target).expect("mkdir");
    let delete = Options { existing: Existing::UpdateAndDelete, ..update(&source, &target) };
    done(&delete);
    fs::write(target.join("file"), b"x").expect("write");
    let error = stage(&delete, &Progress::default()).expect_err("refused");
    assert!(error.kind == ErrorKind::Refused && error.text.contains("is empty"), "{error}");
    assert_eq!(names(dir.path()), ["source", "target"], "no journal stays");
    done(&update(&source, &target));
    assert!(target.join("file").exists());
}
