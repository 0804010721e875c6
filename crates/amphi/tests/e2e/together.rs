//! `amphi up --servers N`: several server processes and the mount with one command.

use crate::bad_input::refused;
use crate::harness::{Daemon, Place, eventually, is_mounted, pattern, run};
use std::fs;

/// Command lines of the processes that use a place.
fn processes(place: &Place) -> Vec<(u32, String)> {
    let needle = place.text("data");
    let all = fs::read_dir("/proc").expect("list").flatten();
    let pids = all.filter_map(|e| e.file_name().to_string_lossy().parse::<u32>().ok());
    let line = |pid: u32| {
        let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&text).replace('\0', " ")
    };
    pids.map(|pid| (pid, line(pid))).filter(|(_, line)| line.contains(&needle) && line.contains("amphi")).collect()
}

fn up(place: &Place, servers: &[&str]) -> Daemon {
    let sizes = ["--targets", "2", "--zone-size", "256M", "--log-size", "16M"];
    place.up(&[&sizes[..], servers].concat())
}

fn fill(place: &Place, name: &str) {
    for i in 0..40 {
        let dir = place.mount().join(format!("{name}{i}"));
        fs::create_dir(&dir).expect("mkdir");
        fs::write(dir.join("f"), pattern(i, 20_000)).expect("write");
    }
}

fn check(place: &Place, name: &str) {
    for i in 0..40 {
        let path = place.mount().join(format!("{name}{i}/f"));
        assert!(fs::read(path).expect("read") == pattern(i, 20_000), "{name}{i}");
    }
}

fn servers(place: &Place) -> usize {
    let out = run(&["status", "--json", &place.text("mount")]);
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    json["servers"].as_array().map_or(0, Vec::len)
}

/// Goal: one command starts several servers and stops all of them; the same command finds everything again; the cluster
/// can grow but not shrink. Method: files before and after, the processes that are left.
#[test]
fn servers_come_and_go_together() {
    let place = Place::new();
    let all = up(&place, &["--servers", "2"]);
    assert_eq!((servers(&place), processes(&place).len()), (2, 2));
    fill(&place, "a");
    all.stop();
    assert!(processes(&place).is_empty() && !is_mounted(&place.mount()), "{:?}", processes(&place));
    place.fsck_of(&["data/server-0", "data/server-1"]);
    let (data, mount) = (place.text("data"), place.text("mount"));
    refused(&["up", "--data", &data, "--mount", &mount, "--servers", "1"], "has 2 servers");
    let all = up(&place, &[]);
    assert_eq!(servers(&place), 2, "as many as there are");
    check(&place, "a");
    all.stop();
    let all = up(&place, &["--servers", "3"]);
    assert_eq!(servers(&place), 3);
    fill(&place, "b");
    check(&place, "a");
    all.stop();
    let all = up(&place, &[]);
    check(&place, "a");
    check(&place, "b");
    all.stop();
    place.fsck();
    assert!(processes(&place).is_empty());
}

/// Goal: if a server's folder has lost its zones, for instance because its disk is not mounted, this is noticed: no
/// zones are made in their place, and when they are back all files are there. A first start that did not get to its end
/// continues. Method: the folder of each server of a stopped cluster is moved away, and in some cases an empty one is
/// put in its place.
#[test]
fn a_server_without_its_zones_is_missed() {
    let place = Place::new();
    let all = up(&place, &["--servers", "3"]);
    fill(&place, "a");
    all.stop();
    let (data, mount) = (place.text("data"), place.text("mount"));
    for k in [0, 1, 2] {
        let (folder, away) = (place.path(&format!("data/server-{k}")), place.path("away"));
        fs::rename(&folder, &away).expect("rename");
        for empty in [true, false] {
            if empty {
                fs::create_dir(&folder).expect("mkdir");
            } else if k == 2 {
                // `amphi up` cannot know that the folder of the last server existed.
                continue;
            }
            refused(&["up", "--data", &data, "--mount", &mount], "is its folder mounted?");
            assert!(!is_mounted(&place.mount()) && processes(&place).is_empty());
            match empty {
                true => fs::remove_dir(&folder).expect("it is still empty"),
                false => assert!(!folder.exists(), "nothing is made"),
            }
        }
        fs::rename(&away, &folder).expect("rename");
    }
    // A further server was started, but has made nothing.
    fs::create_dir(place.path("data/server-3")).expect("mkdir");
    let all = up(&place, &[]);
    assert_eq!(servers(&place), 4);
    check(&place, "a");
    all.stop();
    place.fsck();
}

/// Goal: a folder that is named twice to fsck is checked once; folders that cannot belong together are refused, not
/// called damaged. Method: the folders of a cluster of two servers, a copy of one, the folder of another cluster.
#[test]
fn fsck_of_folders_that_do_not_go_together() {
    let place = Place::new();
    let all = up(&place, &["--servers", "2"]);
    fill(&place, "a");
    all.stop();
    let (first, second) = (place.text("data/server-0"), place.text("data/server-1"));
    place.fsck_of(&["data", "data/server-1", "data/../data/server-0"]);
    place.fsck_of(&["data/server-0", "data/server-0"]);
    fs::create_dir(place.path("copy")).expect("mkdir");
    for zone in fs::read_dir(&second).expect("list").flatten() {
        let mut cp = std::process::Command::new("cp");
        cp.arg("--sparse=always").arg(zone.path()).arg(place.path("copy"));
        assert!(cp.status().expect("cp runs").success());
    }
    refused(&["fsck", &first, &second, &place.text("copy")], "are both of target 2");
    let other = Place::new();
    up(&other, &[]).stop();
    refused(&["fsck", &first, &second, &other.text("data")], "check each cluster by itself");
    other.fsck();
}

/// Goal: no server outlives the process that started it, and a server that is killed is started again. Method: kill -9
/// of both.
#[test]
fn nothing_is_left_running() {
    let place = Place::new();
    let mut all = up(&place, &["--servers", "2"]);
    fill(&place, "a");
    let parent = all.pid();
    let child = |place: &Place| processes(place).iter().map(|p| p.0).find(|pid| *pid != parent);
    let first = child(&place).expect("a second server");
    let pid = rustix::process::Pid::from_raw(first as i32).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
    check(&place, "a");
    fill(&place, "b");
    assert!(child(&place).is_some_and(|pid| pid != first), "it was started again");
    assert!(run(&["sync", &place.text("mount")]).status.success());
    all.kill();
    eventually("the second server ends", || processes(&place).is_empty());
    let _ = rustix::mount::unmount(place.mount(), rustix::mount::UnmountFlags::DETACH);
    let all = up(&place, &[]);
    check(&place, "a");
    check(&place, "b");
    all.stop();
    place.fsck();
}

/// Goal: a cluster of one server becomes one of two, and its zones stay where they are. Method: files before and after.
#[test]
fn one_server_becomes_two() {
    let place = Place::new();
    let all = up(&place, &[]);
    fill(&place, "a");
    all.stop();
    let all = up(&place, &["--servers", "2"]);
    check(&place, "a");
    fill(&place, "b");
    all.stop();
    assert!(place.path("data").join("target-0000.zone").exists());
    let all = up(&place, &[]);
    assert_eq!(servers(&place), 2);
    check(&place, "a");
    check(&place, "b");
    all.stop();
    place.fsck();
}

/// Goal: an error of a further server is reported in one line, and no process or file is left. Method: a folder that
/// cannot be made.
#[test]
fn a_member_that_cannot_start() {
    let place = Place::new();
    let all = up(&place, &["--servers", "2"]);
    all.stop();
    let zone = place.path("data").join("server-1").join("target-0002.zone");
    fs::rename(&zone, place.path("away")).expect("rename");
    let (data, mount) = (place.text("data"), place.text("mount"));
    refused(&["up", "--data", &data, "--mount", &mount], "server-1");
    assert!(processes(&place).is_empty() && !is_mounted(&place.mount()));
    fs::rename(place.path("away"), &zone).expect("rename");
    up(&place, &[]).stop();
}
