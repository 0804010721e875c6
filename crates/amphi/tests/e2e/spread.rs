//! The targets of the files and names of a directory, and the number of messages that the removal of a tree takes.

use crate::harness::{Place, counter, pattern, run};
use crate::two_mounts::Pair;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// The targets that have data of a file, and how many KiB each, as `amphi layout get` says.
fn placement(path: &Path) -> BTreeMap<u16, f64> {
    let out = run(&["layout", "get", path.to_str().expect("text")]);
    let text = String::from_utf8(out.stdout).expect("text");
    let object = |line: &str| {
        let mut words = line.strip_prefix("  target ")?.split_whitespace();
        let (target, bytes, unit) = (words.next()?.parse().ok()?, words.next()?.parse::<f64>().ok()?, words.next()?);
        let kib = match unit {
            "KiB" => bytes,
            "MiB" => bytes * 1024.0,
            _ => panic!("a unit in {line}"),
        };
        Some((target, kib))
    };
    let mut found = BTreeMap::new();
    for (target, kib) in text.lines().filter_map(object) {
        *found.entry(target).or_insert(0.0) += kib;
    }
    found
}

/// Goal: the files of one directory lie on the targets of all servers, whatever target the directory is on, and are
/// read unchanged. Method: files of 700 KiB, 3 MiB and 24 MiB in one directory of three servers; where their data lies,
/// by the mount that wrote them; their bytes by another mount.
#[test]
fn files_of_one_directory_use_all_servers() {
    let pair = Pair::new(3, &["--targets", "2"], &[]);
    fs::create_dir(pair.a.join("d")).expect("mkdir");
    let home = (fs::metadata(pair.a.join("d")).expect("stat").ino() >> 48) as u16;
    for (len, files) in [(700 << 10, 4), (3 << 20, 24), (24 << 20, 6)] {
        let mut sum: BTreeMap<u16, f64> = BTreeMap::new();
        for n in 0..files {
            let path = pair.a.join(format!("d/{len}-{n}"));
            fs::write(&path, pattern(n, len)).expect("written");
            assert_eq!((fs::metadata(&path).expect("stat").ino() >> 48) as u16, home, "its inode is beside its name");
            placement(&path).into_iter().for_each(|(target, kib)| *sum.entry(target).or_insert(0.0) += kib);
        }
        let all = (files as usize * len) as f64 / 1024.0;
        let of_home = sum.get(&home).copied().unwrap_or_default() / all;
        match len >> 20 {
            0 => assert_eq!(sum.keys().copied().collect::<Vec<_>>(), [home], "small files lie beside their names"),
            3 => assert!((0.30..0.37).contains(&of_home), "{sum:?}"),
            _ => assert!((0.02..0.08).contains(&of_home), "{sum:?}"),
        }
        if len > 1 << 20 {
            assert_eq!(sum.len(), 6, "{len}: {sum:?}");
            assert!(sum.values().all(|kib| *kib < all / 2.0), "{len}: {sum:?}");
        }
        for n in 0..files {
            let read = fs::read(pair.b.join(format!("d/{len}-{n}"))).expect("read");
            assert!(read == pattern(n, len), "{len}-{n}");
        }
    }
    pair.stop();
}

/// Goal: with `--subdirectories sharded`, whatever makes a directory there makes one with shards. Method: `mkdir -p`
/// and `cp -r` through two mounts; what is shown; names in such a directory; removal of the tree.
#[test]
fn new_directories_get_shards() {
    let pair = Pair::new(3, &["--targets", "1"], &[]);
    let shell = |text: &str| {
        let out = Command::new("sh").args(["-ec", text]).current_dir(pair.place.path(".")).output().expect("sh");
        assert!(out.status.success(), "{text}: {out:?}");
    };
    shell("mkdir a/top a/top/old");
    let set = |path: &Path, what: &str| {
        run(&["layout", "set", "--subdirectories", what, path.to_str().expect("text")]).status.success()
    };
    assert!(set(&pair.a.join("top"), "sharded"));
    shell(
        "mkdir -p b/top/new/below; for i in $(seq 60); do echo $i >b/top/new/below/$i; done; \
         cp -r a/top/new a/top/copy",
    );
    assert!(!set(&pair.a.join("top/new/below/7"), "sharded"), "a file has no sub-directories");
    let shown = |path: &str| {
        let path = pair.a.join(path);
        String::from_utf8(run(&["layout", "get", path.to_str().expect("text")]).stdout).expect("text")
    };
    for (path, shards) in [("top", false), ("top/old", false), ("top/new/below", true), ("top/copy/below", true)] {
        let text = shown(path);
        assert_eq!(text.contains("shards on targets"), shards, "{text}");
        assert_eq!(text.contains("new directories in it get shards"), path != "top/old", "{text}");
    }
    let targets = (1..=60).map(|i| fs::metadata(pair.b.join(format!("top/copy/below/{i}"))).expect("stat").ino() >> 48);
    assert_eq!(targets.collect::<std::collections::BTreeSet<_>>().len(), 3);
    shell("diff -r a/top/new b/top/copy; rm -r b/top/new a/top/copy; ls b/top | grep -qx old");
    assert!(set(&pair.b.join("top"), "plain"));
    shell("mkdir a/top/plain");
    assert!(!shown("top/plain").contains("shards"));
    pair.stop();
}

/// Goal: `rm -r` of a large directory costs one message a file, and `ls -l` and `find` of one cost few. Method: by the
/// only mount, which has seen none of the names before; its messages are counted.
#[test]
fn removing_a_tree_costs_one_message_a_file() {
    const FILES: u64 = 4000;
    let place = Place::new();
    let server = place.server(&[]);
    let mount = place.mount_at("mount", &[]);
    // For the next mount: names that were listed stay in the kernel's cache however slow the machine is.
    let set = run(&["set", "-m", &place.text("mount"), "server.token_ms=60000"]);
    assert!(set.status.success(), "{set:?}");
    for dir in ["removed", "listed"] {
        fs::create_dir(place.mount().join(dir)).expect("mkdir");
        for n in 0..FILES {
            fs::File::create(place.mount().join(format!("{dir}/file {n}"))).expect("made");
        }
    }
    mount.stop();
    let mount = place.mount_at("mount", &[]);
    let cost = |program: &str, args: &[&str]| {
        let before = counter(&place.mount(), "server_calls");
        let out = Command::new(program).args(args).current_dir(place.mount()).output().expect(program);
        assert!(out.status.success(), "{program}: {out:?}");
        counter(&place.mount(), "server_calls") - before
    };
    let removed = cost("rm", &["-r", "removed"]);
    assert!((FILES..FILES + FILES / 20).contains(&removed), "{removed} messages");
    let listed = cost("ls", &["-l", "listed"]);
    assert!(listed <= 100, "{listed} messages");
    let found = cost("find", &["listed", "-size", "+0"]);
    assert!(found <= 100, "{found} messages");
    mount.stop();
    server.stop();
    place.fsck();
}
