//! Several server processes and one mount: trees, operations across servers, crashes, growth, refusals.

use crate::bad_input::refused;
use crate::harness::{Daemon, Place, Starting, eventually, is_mounted, pattern, run};
use rustix::fs::{Mode, OFlags, fsync, open};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Address of server `k` of a place.
fn addr(place: &Place, k: usize) -> String {
    format!("unix:{}", place.text(&format!("sock{k}")))
}

/// Starts server `k` without waiting for it; server 0 is the master, and the others join it.
fn begin(place: &Place, k: usize) -> Starting {
    let (data, name, listen, master) = (place.text(&format!("s{k}")), format!("s{k}"), addr(place, k), addr(place, 0));
    let mut args = vec!["server", "--name", &name, "--data", &data, "--listen", &listen];
    args.extend_from_slice(&["--targets", "2", "--zone-size", "256M", "--log-size", "16M"]);
    if k > 0 {
        args.extend_from_slice(&["--join", &master]);
    }
    Daemon::spawn(&args)
}

fn server(place: &Place, k: usize) -> Daemon {
    begin(place, k).ready()
}

/// Starts servers `0..n` in an order of their own.
fn servers(place: &Place, order: &[usize]) -> BTreeMap<usize, Daemon> {
    let begun: Vec<_> = order.iter().map(|k| (*k, begin(place, *k))).collect();
    begun.into_iter().map(|(k, s)| (k, s.ready())).collect()
}

fn mount(place: &Place, at: &[usize]) -> Daemon {
    let (addrs, dir) = (at.iter().map(|k| addr(place, *k)).collect::<Vec<_>>(), place.text("mount"));
    let mut args = vec!["mount"];
    addrs.iter().for_each(|a| args.extend_from_slice(&["--cluster", a]));
    args.push(&dir);
    Daemon::start(&args)
}

fn status(args: &[&str]) -> serde_json::Value {
    let out = run(&[&["status", "--json"], args].concat());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let seen: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    let all_up = seen["servers"].as_array().is_some_and(|all| all.iter().all(|s| s["up"] == true));
    assert_eq!(out.status.code(), Some(i32::from(!all_up)), "{said}");
    seen
}

/// Bytes of file `i` of the tree.
fn content(i: u64) -> Vec<u8> {
    pattern(i, if i == 7 { 11 << 20 } else { (i as usize * 977) % 40_000 })
}

/// Files in directories that lie all over the targets.
const FILES: u64 = 120;

fn path(m: &Path, i: u64) -> std::path::PathBuf {
    m.join(format!("d{}/e{}/f{i}", i % 10, i % 4))
}

fn make_tree(m: &Path) {
    for i in 0..FILES {
        fs::create_dir_all(path(m, i).parent().expect("parent")).expect("mkdir");
        fs::write(path(m, i), content(i)).expect("write");
    }
}

fn check_tree(m: &Path) {
    for i in 0..FILES {
        assert!(fs::read(path(m, i)).expect("read") == content(i), "file {i}");
    }
    let dirs = fs::read_dir(m).expect("list").flatten().filter(|e| e.file_name().to_string_lossy().starts_with('d'));
    assert_eq!(dirs.count(), 10);
}

/// Every way of changing names, with both ends on any of the servers.
fn change_names(m: &Path) {
    use std::os::unix::fs::MetadataExt;
    for i in 0..40u64 {
        let (a, b) = (m.join(format!("a{i}")), m.join(format!("b{}", i % 7)));
        fs::create_dir(&a).expect("mkdir");
        fs::create_dir_all(b.join("sub")).expect("mkdir");
        fs::write(a.join("f"), pattern(i, 3000)).expect("write");
        fs::hard_link(a.join("f"), b.join(format!("l{i}"))).expect("link");
        assert_eq!(fs::metadata(a.join("f")).expect("stat").nlink(), 2);
        fs::rename(a.join("f"), b.join("sub").join(format!("r{i}"))).expect("rename a file");
        assert_eq!(fs::remove_dir(&b).expect_err("not empty").kind(), std::io::ErrorKind::DirectoryNotEmpty);
        fs::create_dir(a.join("moves")).expect("mkdir");
        fs::write(a.join("moves/g"), b"g").expect("write");
        fs::rename(a.join("moves"), b.join(format!("moved{i}"))).expect("rename a directory");
        assert_eq!(
            fs::metadata(b.join(format!("moved{i}/.."))).expect("stat").ino(),
            fs::metadata(&b).expect("stat").ino()
        );
        let into = b.join(format!("moved{i}/below"));
        assert!(fs::rename(&b, into).is_err(), "a directory does not move below itself");
        fs::remove_dir(&a).expect("rmdir");
    }
}

fn check_names(m: &Path) {
    for i in 0..40u64 {
        let b = m.join(format!("b{}", i % 7));
        assert!(!m.join(format!("a{i}")).exists());
        assert!(fs::read(b.join(format!("l{i}"))).expect("read") == pattern(i, 3000));
        assert!(fs::read(b.join("sub").join(format!("r{i}"))).expect("read") == pattern(i, 3000));
        assert_eq!(fs::read(b.join(format!("moved{i}/g"))).expect("read"), b"g");
    }
}

/// Goal: a cluster of three servers, started in any order and reached at any of them, is one file system. Everything is
/// there after a restart in another order. Method: a tree and names across servers, compared before and after.
#[test]
fn three_servers_are_one_file_system() {
    let place = Place::new();
    let running = servers(&place, &[2, 1, 0]);
    let mnt = mount(&place, &[2]);
    let m = place.mount();
    make_tree(&m);
    change_names(&m);
    check_tree(&m);
    let seen = status(&[&place.text("mount")]);
    assert_eq!(seen["servers"].as_array().map(Vec::len), Some(3), "{seen}");
    assert!(seen["servers"].as_array().expect("list").iter().all(|s| s["up"] == true), "{seen}");
    let used: Vec<bool> =
        seen["targets"].as_array().expect("list").iter().map(|t| t["inodes"].as_u64() > Some(1)).collect();
    assert_eq!(used, [true; 6], "every target has inodes: {seen}");
    let asked = status(&["--cluster", &addr(&place, 1)]);
    assert_eq!(asked["cluster"], seen["cluster"]);
    let df = rustix::fs::statvfs(&m).expect("statvfs");
    assert!(df.f_blocks * df.f_frsize > 5 * (200 << 20), "the space of all: {}", df.f_blocks * df.f_frsize);
    mnt.stop();
    assert!(!is_mounted(&m));
    running.into_values().for_each(Daemon::stop);
    place.fsck_of(&["s0", "s1", "s2"]);
    let mut running = servers(&place, &[1, 0, 2]);
    let mnt = mount(&place, &[1, 0]);
    let table = fs::read_to_string("/proc/self/mounts").expect("the mount table");
    let shown = format!("{},{} {} fuse.amphi", addr(&place, 1), addr(&place, 0), place.text("mount"));
    assert!(table.contains(&shown), "{shown}: {table}");
    check_tree(&m);
    check_names(&m);
    running.remove(&1).expect("running").stop();
    let seen = status(&["--cluster", &addr(&place, 0)]);
    let down: Vec<&str> = seen["servers"]
        .as_array()
        .expect("list")
        .iter()
        .filter(|s| s["up"] == false)
        .filter_map(|s| s["name"].as_str())
        .collect();
    assert_eq!(down, ["s1"], "{seen}");
    running.insert(1, server(&place, 1));
    check_tree(&m);
    mnt.stop();
    running.into_values().for_each(Daemon::stop);
}

/// Goal: Promise S9, S12 with several servers: each of them is killed under load. Calls wait, no acknowledged change is
/// lost, and no request is executed twice. Method: as with one server. The record of the completed changes is on the
/// cluster as well.
#[test]
fn killed_servers_lose_nothing() {
    let place = Place::new();
    let mut running = servers(&place, &[0, 1, 2]);
    let mnt = mount(&place, &[0]);
    let m = place.mount();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let dir = m.clone();
    let worker = std::thread::spawn(move || {
        let log = open(dir.join("log"), OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND, Mode::from_raw_mode(0o644))
            .expect("open");
        let mut n = 0u64;
        while stopped.try_recv().is_err() {
            let (from, to) = (dir.join(format!("from{}", n % 5)), dir.join(format!("to{}", n % 17)));
            for d in [&from, &to] {
                match fs::create_dir(d) {
                    Ok(()) => {}
                    Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::AlreadyExists, "mkdir: {e}"),
                }
            }
            fs::write(from.join("new"), pattern(n, 5000)).expect("write");
            fs::hard_link(from.join("new"), dir.join(format!("hard{n}"))).expect("link");
            fs::rename(from.join("new"), to.join(format!("f{n}"))).expect("rename");
            if n >= 10 {
                fs::remove_file(dir.join(format!("hard{}", n - 10))).expect("each name is removed once");
            }
            assert_eq!(rustix::io::write(&log, &n.to_le_bytes()).expect("append"), 8);
            fsync(&log).expect("fsync");
            n += 1;
        }
        n
    });
    for k in [1, 2, 0, 1, 0, 2] {
        let before = fs::metadata(m.join("log")).map(|f| f.len()).unwrap_or(0);
        eventually("the worker goes on", || fs::metadata(m.join("log")).map(|f| f.len()).unwrap_or(0) >= before + 80);
        running.remove(&k).expect("running").kill();
        running.insert(k, server(&place, k));
    }
    stop.send(()).expect("worker runs");
    let n = worker.join().expect("no call failed");
    let check = |m: &Path| {
        let log = fs::read(m.join("log")).expect("read");
        let want: Vec<u8> = (0..n).flat_map(|i| i.to_le_bytes()).collect();
        assert!(log == want, "the log has {} of {} bytes or other ones", log.len(), want.len());
        for i in 0..n {
            assert!(fs::read(m.join(format!("to{}/f{i}", i % 17))).expect("file is there") == pattern(i, 5000), "{i}");
            assert_eq!(m.join(format!("hard{i}")).exists(), i + 10 >= n, "hard{i}");
        }
    };
    check(&m);
    mnt.stop();
    running.into_values().for_each(Daemon::stop);
    place.fsck_of(&["s0", "s1", "s2"]);
    let running = servers(&place, &[2, 0, 1]);
    let mnt = mount(&place, &[0]);
    check(&m);
    mnt.stop();
    running.into_values().for_each(Daemon::stop);
}

/// Goal: a server with empty targets joins a running cluster; an existing mount uses it at once. Method: directories
/// that are made after it joined are on its targets, too, and existing files keep their place.
#[test]
fn a_server_joins_a_running_cluster() {
    let place = Place::new();
    let first = server(&place, 0);
    let mnt = mount(&place, &[0]);
    let m = place.mount();
    make_tree(&m);
    let second = server(&place, 1);
    eventually("the mount knows both", || {
        status(&[&place.text("mount")])["servers"].as_array().map(Vec::len) == Some(2)
    });
    for i in 0..60 {
        let dir = m.join(format!("later{i}"));
        fs::create_dir(&dir).expect("mkdir");
        fs::write(dir.join("f"), pattern(i, 9000)).expect("write");
    }
    let seen = status(&[&place.text("mount")]);
    let inodes = |t: u64| {
        let targets = seen["targets"].as_array().expect("list");
        targets.iter().find(|x| x["target"] == t).and_then(|x| x["inodes"].as_u64()).unwrap_or(0)
    };
    assert!((0..4).all(|t| inodes(t) > 10), "new files land on the new targets: {seen}");
    check_tree(&m);
    mnt.stop();
    first.stop();
    second.stop();
    place.fsck_of(&["s0", "s1"]);
    let running = servers(&place, &[1, 0]);
    let mnt = mount(&place, &[1]);
    check_tree(&m);
    for i in 0..60 {
        assert!(fs::read(m.join(format!("later{i}/f"))).expect("read") == pattern(i, 9000));
    }
    mnt.stop();
    running.into_values().for_each(Daemon::stop);
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).expect("mkdir");
    for entry in fs::read_dir(from).expect("list").flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_file())) {
        let status = std::process::Command::new("cp")
            .args(["--sparse=always"])
            .arg(entry.path())
            .arg(to.join(entry.file_name()))
            .status();
        assert!(status.expect("cp runs").success());
    }
}

/// Goal: servers that do not belong to a cluster are refused with one line and exit code 2, and change nothing. The
/// cluster continues. Method: another key, the folder of another cluster, a folder that another server serves as a
/// copy, nonsense.
#[test]
fn servers_that_do_not_belong() {
    let place = Place::new();
    for (name, key) in [("key", "a key that nobody guesses"), ("other", "another key that is long")] {
        place.key(name, key);
    }
    let (key, other, master) = (place.text("key"), place.text("other"), addr(&place, 0));
    let small = ["--targets", "1", "--zone-size", "64M", "--log-size", "8M"];
    let args = |data: &str, listen: &str, key: &str, join: Option<&str>| {
        let mut args: Vec<String> =
            ["server", "--data", data, "--listen", listen, "--key", key].iter().map(|s| s.to_string()).collect();
        args.extend(small.iter().map(|s| s.to_string()));
        join.iter().for_each(|j| args.extend(["--join".to_string(), j.to_string()]));
        args
    };
    let start = |a: Vec<String>| Daemon::start(&a.iter().map(String::as_str).collect::<Vec<_>>());
    let no = |a: Vec<String>, text: &str| refused(&a.iter().map(String::as_str).collect::<Vec<_>>(), text);
    let first = start(args(&place.text("s0"), &master, &key, None));
    let second = start(args(&place.text("s1"), &addr(&place, 1), &key, Some(&master)));
    no(args(&place.text("s2"), &addr(&place, 2), &other, Some(&master)), "key");
    assert!(!place.path("s2").exists(), "nothing was made for a server that was refused");
    let foreign = start(args(&place.text("s3"), &addr(&place, 3), &key, None));
    let theirs = start(args(&place.text("s5"), &addr(&place, 5), &key, Some(&addr(&place, 3))));
    theirs.stop();
    foreign.stop();
    no(args(&place.text("s3"), &addr(&place, 3), &key, Some(&master)), "has the master's zones");
    no(args(&place.text("s5"), &addr(&place, 5), &key, Some(&master)), "belong to cluster");
    let third = start(args(&place.text("s4"), &addr(&place, 4), &key, Some(&master)));
    third.stop();
    copy_folder(&place.path("s4"), &place.path("copy"));
    let third = start(args(&place.text("s4"), &addr(&place, 4), &key, Some(&master)));
    no(args(&place.text("copy"), &addr(&place, 5), &key, Some(&master)), "serve");
    let seen = status(&["--cluster", &addr(&place, 4), "--key", &key]);
    assert_eq!(seen["servers"].as_array().map(Vec::len), Some(3), "{seen}");
    third.stop();
    second.stop();
    first.stop();
}

/// Goal: configuration files and options that make no sense are refused with one line that names the place. Method: a
/// table.
#[test]
fn configurations_that_make_no_sense() {
    let place = Place::new();
    let file = place.text("server.toml");
    for (text, words) in [
        ("data = 'd'\nlisten = ['unix:s']\nspeed = 9\n", "server.toml:3: unknown field `speed`"),
        ("data = 'd'\nlisten = ['unix:s']\ntargets = 'x'\n", "server.toml:3: invalid type"),
        ("listen = ['unix:s']\n", "where are the zones"),
        ("data = 'd'\n", "nobody could reach it"),
        ("data = 'd'\nlisten = ['tcp:0.0.0.0:0']\njoin = ['tcp:127.0.0.1:1']\n", "--advertise"),
        ("data = 'd'\nlisten = ['unix:s']\njoin = ['nonsense']\n", "unknown form"),
        ("data = 'd'\nlisten = ['unix:s']\nworker_spin_us = 9000000\n", "server.toml:3: 9000000 us are too long"),
        ("data = 'd'\nlisten = ['unix:s']\ntunables = { speed = 9 }\n", "server.speed: there is no such tunable"),
    ] {
        fs::write(&file, text).expect("write");
        refused(&["server", "--config", &file], words);
    }
    refused(&["server", "--config", &place.text("none")], "none");
    refused(&["server"], "--data");
    assert!(!place.path("d").exists(), "nothing was made for a request that was refused");
    let nowhere = format!("unix:{}", place.text("nobody"));
    let two = ["mount", "--cluster", &nowhere, "--cluster", "tcp:127.0.0.1:1", &place.text("mount")];
    refused(&two, "nobody");
    refused(&two, "tcp:127.0.0.1:1");
}

/// Goal: a server applies its configuration file. Method: the example with places of this machine.
#[test]
fn a_server_from_a_file() {
    let place = Place::new();
    let example = run(&["server", "--example-config"]);
    let text = String::from_utf8(example.stdout).expect("text");
    let text = text
        .replace("/var/lib/amphi", "zones")
        .replace("tcp:10.0.0.1:7100", &addr(&place, 0))
        .replace("# zone_size = \"1T\"", "zone_size = \"128M\"");
    fs::write(place.path("server.toml"), text).expect("write");
    place.key("cluster.key", "a key that nobody guesses");
    let from_file = ["server", "--config", &place.text("server.toml"), "--name", "beta"];
    refused(&from_file, "--format");
    assert!(!place.path("zones").exists(), "nothing is made that nobody asked for");
    let server = Daemon::start(&[&from_file[..], &["--format"]].concat());
    assert!(place.path("zones").join("target-0003.zone").exists(), "paths count from the file's folder");
    let seen = status(&["--cluster", &addr(&place, 0), "--key", &place.text("cluster.key")]);
    assert_eq!(seen["servers"][0]["name"], "beta", "the option wins: {seen}");
    server.stop();
}
