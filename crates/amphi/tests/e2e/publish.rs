//! `amphi publish` on real mounts: ranks on two mounts, commits that are killed, owners, and refusals.

use crate::bad_input::refused;
use crate::harness::{Place, amphi, run};
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

fn text(args: &[&str]) -> String {
    let out = run(args);
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{args:?}: {said}");
    String::from_utf8_lossy(&out.stdout).trim_end().to_string()
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

const FILES: usize = 30;

fn fill(tree: &Path, rank: usize, text: &str) {
    let dir = tree.join(format!("rank{rank}"));
    fs::create_dir_all(&dir).expect("mkdir");
    (0..FILES).for_each(|n| fs::write(dir.join(format!("f{n}")), text.repeat(1000)).expect("write"));
}

/// The content of all files of the tree that a name leads to, of two ranks. Panics if they differ or some are missing.
/// The folder is opened once, because a reader that opens each file by its whole path may see both trees.
fn content(dir: &Path) -> String {
    let open = fs::File::open(dir).expect("open");
    let dir = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
    let mut all = Vec::new();
    for rank in 0..2 {
        for n in 0..FILES {
            let path = dir.join(format!("rank{rank}/f{n}"));
            all.push(fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())));
        }
    }
    assert!(all.iter().all(|text| *text == all[0] && text.len() == 1000), "two trees mixed");
    all[0][..1].to_string()
}

/// Goal: ranks on two mounts publish together. The commit also makes stable the data that only the other mount has in
/// its cache. `rollback` restores the name. Method: two mounts of a server whose write-back waits, so that a commit
/// that involved only its own mount would publish an incomplete tree.
#[test]
fn ranks_on_two_mounts() {
    let place = Place::new();
    let server = place.server(&[]);
    let late = ["--set", "writeback.age_ms=600000"];
    let mounts = [place.mount_at("m0", &late), place.mount_at("m1", &late)];
    let (here, there) = (place.path("m0"), place.path("m1"));
    for (turn, text_of) in ["a", "b"].into_iter().enumerate() {
        let tree = PathBuf::from(text(&["publish", "begin", &shown(&here.join("it")), "--ranks", "2"]));
        let tree_there = there.join(tree.strip_prefix(&here).expect("on the mount"));
        fill(&tree, 0, text_of);
        fill(&tree_there, 1, text_of);
        text(&["publish", "ready", &shown(&tree), "--rank", "0", &shown(&tree.join("rank0"))]);
        refused(&["publish", "commit", &shown(&tree)], "of 2 ranks these are not ready: 1");
        text(&["publish", "ready", &shown(&tree_there), "--rank", "1"]);
        let said = text(&["publish", "commit", &shown(&tree_there)]);
        assert!(said.contains("published, 60 files, 58.6 KiB") || said.contains("published, 60 files"), "{said}");
        assert_eq!((content(&here.join("it")), content(&there.join("it"))), (text_of.into(), text_of.into()), "{turn}");
    }
    text(&["publish", "rollback", &shown(&here.join("it"))]);
    assert_eq!(content(&there.join("it")), "a");
    let listed = text(&["publish", "list", &shown(&there.join("it"))]);
    assert!(listed.contains("generation 1"), "{listed}");
    refused(&["publish", "ready", &shown(&here.join("it"))], "is not the path that `begin` printed");
    mounts.into_iter().for_each(|mount| mount.stop());
    server.stop();
    place.fsck();
}

/// Goal: a commit that is killed leaves the old tree or the new one, and continues when it is repeated. Method: kill -9
/// after times that grow until the commit ends before them. Meanwhile another thread reads the name all the time.
#[test]
fn commits_that_are_killed() {
    let place = Place::new();
    let up = place.up(&[]);
    let dir = place.mount().join("it");
    let publish = |text_of: &str| {
        let tree = PathBuf::from(text(&["publish", "begin", &shown(&dir)]));
        (0..2).for_each(|rank| fill(&tree, rank, text_of));
        text(&["publish", "ready", &shown(&tree)]);
        tree
    };
    let (mut before, mut killed) = ("x".to_string(), 0);
    text(&["publish", "commit", &shown(&publish("x"))]);
    for round in 0..40u64 {
        let text_of = ["a", "b", "c"][round as usize % 3];
        let tree = publish(text_of);
        let mut child =
            amphi().args(["publish", "commit", &shown(&tree)]).stdout(Stdio::null()).spawn().expect("amphi");
        let end = Instant::now() + Duration::from_millis(4 * round);
        while Instant::now() < end {
            let seen = content(&dir);
            assert!(seen == before || seen == text_of, "{seen}");
        }
        child.kill().expect("kill");
        let done = child.wait().expect("ends").success();
        killed += u64::from(!done);
        let seen = content(&dir);
        assert!(seen == before || seen == text_of, "{seen} in round {round}");
        text(&["publish", "commit", &shown(&tree)]);
        assert_eq!(content(&dir), text_of, "round {round}");
        before = text_of.to_string();
    }
    assert!(killed >= 5, "{killed} were killed");
    let listed = text(&["publish", "list", &shown(&dir)]);
    assert_eq!(listed.lines().count(), 2, "two generations and nothing else: {listed}");
    up.stop();
}
