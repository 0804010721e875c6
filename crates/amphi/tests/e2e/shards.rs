//! Directories whose names lie in shards over the targets of several servers, through real mounts.

use crate::harness::{errno, rerrno, run};
use crate::two_mounts::Pair;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, fstat, linkat, open, renameat_with};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

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

/// Goal: whatever one mount does in a directory with shards, the other one sees, and each call does what it does in any
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
        linkat(CWD, dir.join("file 3"), CWD, other.join("link"), AtFlags::empty()).expect("link");
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

/// Goal: what was acknowledged in a directory with shards outlives `kill -9` of all servers, and mounts go on. Method:
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

/// Goal: refusals say what to do. Method: shards for a directory that has names, or shards, or is a file, and a number
/// that is none.
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
