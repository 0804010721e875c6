//! Directories whose names lie in shards over the targets of several servers, through real mounts.

use crate::harness::{errno, eventually, rerrno, run};
use crate::two_mounts::Pair;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, fstat, linkat, open, renameat_with};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const ENOTEMPTY: i32 = 39;
const ENOENT: i32 = 2;

/// A new directory with a shard on each target.
fn sharded(above: &Path, name: &str) -> PathBuf {
    let path = above.join(name);
    fs::create_dir(&path).expect("mkdir");
    let set = run(&["layout", "set", "--shards", "all", path.to_str().expect("a path")]);
    assert!(set.status.success(), "{set:?}");
    path
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("open").map(|e| e.expect("an entry").file_name());
    entries.map(|name| name.into_string().expect("text")).collect()
}

/// Goal: a mount sees whatever another mount does in a directory with shards, and each call does what it does in any
/// other directory. Method: two mounts and three servers; makes, lists, renames within and between directories, links,
/// permissions, times, removals. (Promises S1, S5, S7, S8)
#[test]
fn looks_like_any_directory() {
    let pair = Pair::new(3, &[], &[]);
    let (a, b) = (sharded(&pair.a, "d"), pair.b.join("d"));
    let shown = run(&["layout", "get", b.to_str().expect("a path")]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("shards on targets"), "{shown:?}");
    let expected: BTreeSet<String> = (0..300).map(|i| format!("file {i}")).collect();
    let targets: BTreeSet<u64> = expected
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let path = if i % 2 == 0 { &a } else { &b }.join(name);
            assert_eq!(errno(fs::metadata(&path)), ENOENT);
            fs::write(&path, name).expect("made");
            fs::metadata(&path).expect("stat").ino() >> 48
        })
        .collect();
    assert!(targets.len() >= 3, "inodes lie beside their names: {targets:?}");
    for (dir, other) in [(&a, &b), (&b, &a)] {
        let found = names(dir);
        assert_eq!(found.len(), 300, "each once");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected);
        let before = fs::metadata(dir).expect("stat");
        fs::create_dir(other.join("sub")).expect("mkdir");
        let after = fs::metadata(dir).expect("stat");
        assert_eq!(after.nlink(), before.nlink() + 1);
        assert!((after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()), "the other mount sees it");
        fs::rename(other.join("sub"), other.join("bus")).expect("from one shard to another");
        assert_eq!(errno(fs::metadata(dir.join("sub"))), ENOENT);
        assert_eq!(fs::canonicalize(dir.join("bus/..")).expect("its parent"), fs::canonicalize(dir).expect("it"));
        fs::write(dir.join("bus/x"), "x").expect("made");
        assert_eq!(errno(fs::remove_dir(other.join("bus"))), ENOTEMPTY);
        fs::remove_dir_all(other.join("bus")).expect("removed");
        assert_eq!(fs::metadata(dir).expect("stat").nlink(), before.nlink());
        let swap = |from: &str, to: &str, flags| renameat_with(CWD, other.join(from), CWD, other.join(to), flags);
        swap("file 1", "file 2", RenameFlags::EXCHANGE).expect("exchange");
        assert_eq!(fs::read_to_string(dir.join("file 1")).expect("read"), "file 2");
        swap("file 1", "file 2", RenameFlags::EXCHANGE).expect("exchange");
        linkat(CWD, other.join("file 3"), CWD, other.join("link"), AtFlags::empty()).expect("link");
        assert_eq!(fs::metadata(dir.join("link")).expect("stat").nlink(), 2);
        fs::rename(dir.join("link"), dir.parent().expect("above").join("out")).expect("out");
        fs::rename(dir.parent().expect("above").join("out"), dir.join("in")).expect("in");
        fs::remove_file(other.join("in")).expect("unlink");
        fs::set_permissions(dir, fs::Permissions::from_mode(0o2751)).expect("chmod");
        assert_eq!(fs::metadata(other).expect("stat").mode() & 0o7777, 0o2751);
        let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
        fs::File::open(dir).and_then(|f| f.set_modified(old)).expect("utimens");
        assert_eq!(fs::metadata(other).expect("stat").mtime(), 1000, "what is set explicitly counts");
        fs::write(other.join("new"), "").expect("made");
        assert!(fs::metadata(dir).expect("stat").mtime() > 1000, "until a name changes");
        fs::remove_file(dir.join("new")).expect("unlink");
    }
    let held = open(&b, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("open");
    assert_eq!(errno(fs::remove_dir(&a)), ENOTEMPTY);
    for name in &expected {
        fs::remove_file(a.join(name)).expect("unlink");
        assert_eq!(errno(fs::metadata(b.join(name))), ENOENT);
    }
    assert_eq!(names(&b).len(), 0);
    fs::remove_dir(&a).expect("rmdir");
    assert_eq!(errno(fs::metadata(&b)), ENOENT);
    let create = |name| rustix::fs::openat(&held, name, OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o600));
    assert_eq!(rerrno(create("late")), ENOENT, "a removed directory gets no names");
    assert_eq!(fstat(&held).expect("fstat").st_nlink, 0);
    drop(held);
    pair.stop();
}

/// Goal: acknowledged changes in a directory with shards outlive `kill -9` of all servers, and mounts continue. Method:
/// two mounts make files while servers are killed and started again between two rounds. (Promises S9, S12)
#[test]
fn outlives_killed_servers() {
    let mut pair = Pair::new(2, &[], &[]);
    let (a, b) = (sharded(&pair.a, "d"), pair.b.join("d"));
    for round in 0..3 {
        for i in 0..40 {
            fs::write(a.join(format!("a{round}.{i}")), "a").expect("made");
            fs::write(b.join(format!("b{round}.{i}")), "b").expect("made");
        }
        fs::rename(a.join(format!("a{round}.0")), a.join(format!("moved{round}"))).expect("renamed");
        pair.restart_servers();
        assert_eq!(names(&a).len(), 80 * (round + 1));
        assert_eq!(names(&b).len(), 80 * (round + 1));
        assert!(fs::exists(b.join(format!("moved{round}"))).expect("stat"));
    }
    fs::remove_dir_all(&b).expect("removed");
    assert_eq!(errno(fs::metadata(&a)), ENOENT);
    pair.stop();
}

/// Goal: refusals say what to do. Method: shards for a directory that has names, for one that has shards, for a file,
/// and with an invalid number.
#[test]
fn shards_are_refused_with_reasons() {
    let pair = Pair::new(1, &[], &[]);
    let d = sharded(&pair.a, "d");
    fs::create_dir(pair.a.join("full")).and_then(|()| fs::write(pair.a.join("full/f"), "")).expect("made");
    let said = |path: &Path, shards: &str| {
        let out = run(&["layout", "set", "--shards", shards, path.to_str().expect("a path")]);
        assert!(!out.status.success(), "{out:?}");
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    assert!(said(&d, "2").contains("keeps them"));
    assert!(said(&pair.a.join("full"), "2").contains("not empty"));
    assert!(said(&pair.a.join("full/f"), "2").contains("no directory"));
    fs::create_dir(pair.a.join("e")).expect("mkdir");
    assert!(said(&pair.a.join("e"), "many").contains("neither a number"));
    pair.stop();
}

/// Goal: Promise S7: a listing over shards while entries come and go has every lasting entry exactly once, and its
/// positions lead back to where they were. Method: names made and removed by another mount during a listing; a listing
/// that goes back to many of its positions.
#[test]
fn listings_keep_their_positions() {
    let pair = Pair::new(2, &[], &[]);
    let (a, b) = (sharded(&pair.a, "d"), pair.b.join("d"));
    let lasting: BTreeSet<String> = (0..1500).map(|i| format!("lasting{i}")).collect();
    for name in &lasting {
        fs::write(a.join(name), b"").expect("made");
    }
    let mut seen = Vec::new();
    for (changes, entry) in fs::read_dir(&a).expect("open").enumerate() {
        let name = entry.expect("an entry").file_name().into_string().expect("text");
        if changes < 400 {
            fs::write(b.join(format!("new{changes}")), b"").expect("made");
            if changes >= 2 {
                fs::remove_file(b.join(format!("new{}", changes - 2))).expect("removed");
            }
        }
        if lasting.contains(&name) {
            seen.push(name);
        }
    }
    assert_eq!(seen.len(), lasting.len(), "none twice, none missing");
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), lasting);
    let mut dir =
        Dir::read_from(open(&b, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("open")).expect("it");
    let mut all = Vec::new();
    while let Some(entry) = dir.read() {
        let entry = entry.expect("an entry");
        all.push((entry.offset(), entry.file_name().to_owned()));
    }
    assert!(all.len() >= 1502);
    for at in (0..all.len() - 1).step_by(97).rev() {
        dir.seek(all[at].0).expect("seekdir");
        let next = dir.read().expect("not the end").expect("an entry");
        assert_eq!(next.file_name(), all[at + 1].1.as_c_str(), "behind entry {at}");
    }
    dir.rewind();
    assert_eq!(dir.count(), all.len());
    pair.stop();
}

/// Goal: a file without a name gets one in a shard, and a limit on inodes counts shards and their files. Method: names
/// in all shards; a user whose limit is used up there.
#[test]
fn nameless_files_and_limits() {
    let pair = Pair::new(3, &[], &[]);
    let a = sharded(&pair.a, "d");
    for i in 0..12 {
        let file = open(&a, OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600)).expect("O_TMPFILE");
        assert_eq!(rustix::io::pwrite(&file, b"tmp", 0).expect("write"), 3);
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        linkat(CWD, &path, CWD, a.join(format!("named{i}")), AtFlags::SYMLINK_FOLLOW).expect("linkat names it");
        assert_eq!(fs::read(pair.b.join("d").join(format!("named{i}"))).expect("read"), b"tmp");
    }
    assert_eq!(names(&a).len(), 12);
    let (user, mount) = (1700, pair.a.to_str().expect("a path"));
    let set = run(&["quota", "set", "--user", "1700", "--inodes", "20", "-m", mount]);
    assert!(set.status.success(), "{set:?}");
    std::os::unix::fs::chown(&a, Some(user), Some(user)).expect("chown by root");
    let used = || {
        let out = run(&["quota", "list", "--json", "-m", mount]);
        let all: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
        let is_it = |account: &&serde_json::Value| account["kind"] == "user" && account["id"] == user;
        let found = all["accounts"].as_array().expect("a list").iter().find(is_it);
        found.map_or(0, |account| account["used_inodes"].as_u64().expect("a number"))
    };
    let shards = String::from_utf8(run(&["layout", "get", a.to_str().expect("a path")]).stdout).expect("text");
    let shards = shards.lines().last().expect("a line").split(',').count() as u64;
    eventually("the directory and its shards are his", || used() == 1 + shards);
    let made = (0..40).take_while(|i| {
        let script = format!("touch '{}'/u{i}", a.display());
        let by = ["--reuid", "1700", "--regid", "1700", "--clear-groups", "bash", "-c", &script];
        Command::new("setpriv").args(by).stderr(Stdio::null()).status().expect("setpriv (util-linux) runs").success()
    });
    assert_eq!(made.count() as u64, 20 - 1 - shards, "the rest of the limit");
    fs::remove_dir_all(&a).expect("removed");
    eventually("nothing is charged", || used() == 0);
    pair.stop();
}

/// Goal: if a server with shards is killed at any moment of creates, renames and removals in them, all acknowledged
/// changes are there, and no others. Method: two mounts work while the servers are killed and started again, one after
/// the other. (Promises S9, S12)
#[test]
fn creates_go_on_over_kills() {
    let mut pair = Pair::new(3, &[], &[]);
    let (a, b) = (sharded(&pair.a, "d"), pair.b.join("d"));
    let stop = AtomicBool::new(false);
    let kept: Vec<BTreeSet<String>> = std::thread::scope(|scope| {
        let workers: Vec<_> = [(&a, "a"), (&b, "b")]
            .into_iter()
            .map(|(dir, of)| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut kept = BTreeSet::new();
                    for i in 0.. {
                        if stop.load(Relaxed) {
                            break;
                        }
                        let (made, moved) = (format!("{of}{i}"), format!("{of}{i}.moved"));
                        fs::write(dir.join(&made), &made).expect("made");
                        match i % 3 {
                            0 => drop(kept.insert(made)),
                            1 => {
                                fs::rename(dir.join(&made), dir.join(&moved)).expect("renamed");
                                kept.insert(moved);
                            }
                            _ => fs::remove_file(dir.join(&made)).expect("removed"),
                        }
                    }
                    kept
                })
            })
            .collect();
        for round in 0..6 {
            std::thread::sleep(Duration::from_millis(300));
            pair.restart_server(round % 3);
        }
        stop.store(true, Relaxed);
        workers.into_iter().map(|worker| worker.join().expect("it goes on")).collect()
    });
    let kept: BTreeSet<String> = kept.into_iter().flatten().collect();
    assert!(kept.len() > 20, "{} names", kept.len());
    for dir in [&a, &b] {
        let found = names(dir);
        assert_eq!((found.len(), found.into_iter().collect::<BTreeSet<_>>()), (kept.len(), kept.clone()));
    }
    for name in &kept {
        assert_eq!(fs::read_to_string(b.join(name)).expect("read"), name.trim_end_matches(".moved"));
    }
    pair.stop();
}
