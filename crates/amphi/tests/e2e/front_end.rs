//! The commands an operator uses on a running mount.

use crate::harness::{Place, eventually, is_mounted, pattern, run};
use rustix::fs::{CWD, FileType, Mode};
use std::fs;
use std::path::Path;
use std::process::Command;

fn text(args: &[&str]) -> String {
    let out = run(args);
    assert!(out.status.success(), "amphi {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Goal: Promise S13, and stats, get, set, layout, status work as their help describes. Method: one sequence of
/// commands on one mount.
#[test]
fn an_operators_story() {
    let place = Place::new();
    let up = place.up(&["--targets", "4"]);
    let m = place.text("mount");
    assert!(is_mounted(&place.mount()));
    fs::write(place.mount().join("small"), vec![1; 1000]).expect("write");
    fs::write(place.mount().join("large"), pattern(1, 20 << 20)).expect("write");
    let stats = text(&["stats", &m]);
    assert!(stats.contains("buffered_small"), "{stats}");
    let json: serde_json::Value = serde_json::from_str(&text(&["stats", "--json", &m])).expect("JSON");
    assert!(json["counters"]["write_buffered_small"]["samples"].as_u64().is_some_and(|n| n > 0), "{json}");
    text(&["stats", "--reset", &m]);
    assert!(!text(&["stats", &m]).contains("buffered_small"), "counters that are zero are left out");

    let all = text(&["get", "--mount", &m]);
    assert!(all.lines().count() > 10, "{all}");
    assert!(text(&["get", "hybrid.large_write_bytes", "--mount", &m]).contains("=2M"));
    assert!(text(&["set", "hybrid.large_write_bytes=64K", "--mount", &m]).contains("=64K"));
    fs::write(place.mount().join("now-direct"), pattern(2, 1 << 20)).expect("write");
    let stats = text(&["stats", &m]);
    assert!(stats.contains("direct_large"), "the new threshold rules at once: {stats}");

    fs::create_dir(place.mount().join("d")).expect("mkdir");
    text(&["layout", "set", "--layout", "striped,size=128K,count=3", "--mode", "direct", &format!("{m}/d")]);
    fs::write(place.mount().join("d/f"), pattern(3, 1 << 20)).expect("write");
    let layout = text(&["layout", "get", &format!("{m}/d/f")]);
    assert!(
        layout.contains("striped") && layout.contains("count=3") && layout.contains("direct"),
        "inherited: {layout}"
    );
    assert!(fs::read(place.mount().join("d/f")).expect("read") == pattern(3, 1 << 20));
    let lies = text(&["layout", "get", "--extents", &format!("{m}/d/f")]);
    let rows = lies.lines().filter_map(|l| l.strip_prefix("    ")).filter(|l| l.contains(" at "));
    let mut bytes: Vec<(u64, u64)> = rows
        .map(|l| l.split_whitespace().map(|word| word.parse().unwrap_or_default()).collect::<Vec<u64>>())
        .map(|numbers| (numbers[0], numbers[1]))
        .collect();
    bytes.sort_unstable();
    let behind = bytes.iter().fold(0, |end, (at, len)| if *at == end { end + len } else { u64::MAX });
    assert_eq!(behind, 1 << 20, "the extents of the file one behind the other: {lies}");
    assert_eq!(lies.lines().filter(|l| l.starts_with("  target")).count(), 3, "{lies}");

    let dirty = place.mount().join("dirty");
    fs::write(&dirty, pattern(4, 12_345)).expect("write");
    let of_file = |file: &Path| {
        let text = text(&["stats", "--json", &file.to_string_lossy()]);
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["dirty_bytes"].as_u64()
    };
    assert_eq!(of_file(&dirty), Some(12_345));
    fs::File::open(&dirty).and_then(|f| f.sync_all()).expect("fsync");
    assert_eq!(of_file(&dirty), Some(0));
    let unstable = || {
        let text = text(&["stats", "--servers", "--json", &m]);
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["unstable_bytes"].as_u64().unwrap_or(0)
    };
    text(&["sync", &m]);
    assert_eq!(unstable(), 0, "all that was answered is stable behind a sync of everything");
    let servers = text(&["stats", "--servers", &m]);
    assert!(servers.contains("request_write ") && servers.contains("bytes of a disk request, up to"), "{servers}");
    let json: serde_json::Value = serde_json::from_str(&text(&["stats", "--servers", "--json", &m])).expect("JSON");
    let disk =
        json.as_object().expect("rows").iter().filter(|(name, _)| name.starts_with("histogram_disk_bytes_write"));
    assert_eq!(disk.filter_map(|(_, n)| n.as_u64()).sum::<u64>(), json["data_disk_writes"].as_u64().expect("count"));

    let status = text(&["status", &m]);
    assert!(status.lines().filter(|l| l.contains("target")).count() >= 4, "{status}");
    up.stop();
    assert!(!is_mounted(&place.mount()));
    place.fsck();
    let up = place.up(&[]);
    assert!(fs::read(place.mount().join("large")).expect("read") == pattern(1, 20 << 20), "found again");
    assert!(text(&["layout", "get", &format!("{m}/d")]).contains("count=3"));
    up.stop();
}

/// Goal: options of mount(8) have their documented effect, the last of two opposites counts, and an unknown word is
/// refused. Method: one file system is mounted in turn with each option, and then a write, a program, a device file and
/// an access time are tried.
#[test]
fn options_of_mount() {
    let place = Place::new();
    let m = place.mount();
    let up = place.up(&[]);
    fs::write(m.join("file"), b"1").expect("write");
    fs::copy("/bin/true", m.join("program")).expect("copy");
    let (mode, null) = (Mode::RUSR | Mode::WUSR, rustix::fs::makedev(1, 3));
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        rustix::fs::mknodat(CWD, m.join("null"), FileType::CharacterDevice, mode, null).expect("mknod");
    }
    up.stop();
    let runs = || Command::new(m.join("program")).status().map(|s| s.success()).map_err(|e| e.raw_os_error());
    let writes = || fs::write(m.join("file"), b"22").map_err(|e| e.raw_os_error());
    for (words, read_only, executes) in [("ro", true, true), ("noexec,ro,rw", false, false)] {
        let up = place.up(&["-o", words]);
        assert_eq!(writes(), if read_only { Err(Some(libc::EROFS)) } else { Ok(()) }, "{words}");
        assert_eq!(runs(), if executes { Ok(true) } else { Err(Some(libc::EACCES)) }, "{words}");
        assert!(!is_root || fs::read(m.join("null")).is_err(), "{words}");
        let atime = text(&["get", "client.atime", "--mount", &place.text("mount")]);
        assert!(atime.contains(if read_only { "=none" } else { "=relatime" }), "{words}: {atime}");
        assert!(run(&["sync", &place.text("mount")]).status.success());
        let set = run(&["set", "client.atime=relatime", "--mount", &place.text("mount")]);
        let said = String::from_utf8_lossy(&set.stderr);
        assert_eq!(set.status.code(), Some(if read_only { 2 } else { 0 }), "{said}");
        assert!(!read_only || said.contains("read-only"), "{said}");
        up.stop();
    }
    if is_root {
        let up = place.up(&["--options", "dev,nosuid", "-o", "noatime"]);
        assert_eq!(fs::read(m.join("null")).expect("device"), b"");
        let table = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let line = table.lines().find(|l| l.contains(&place.text("mount"))).expect("mounted");
        assert!(line.contains("nosuid") && !line.contains("nodev"), "{line}");
        assert!(text(&["get", "client.atime", "--mount", &place.text("mount")]).contains("=none"));
        up.stop();
    }
    let out = run(&["up", "--data", &place.text("data"), "--mount", &place.text("mount"), "-o", "ro,sloppy"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(2) && said.contains("sloppy"), "{said}");
}

/// Goal: dirty bytes are written back without a request, after their age, and at once with `amphi sync`; the kernel
/// does not forward sync(1). Method: the gauge of dirty bytes.
#[test]
fn old_bytes_leave_by_themselves() {
    let place = Place::new();
    let up = place.up(&[]);
    let m = place.text("mount");
    let dirty = || text(&["stats", &m]).lines().any(|l| l.starts_with("cache_dirty_bytes") && !l.ends_with(" 0"));
    text(&["set", "writeback.age_ms=3600000", "--mount", &m]);
    fs::write(place.mount().join("a"), b"young").expect("write");
    assert!(dirty());
    text(&["sync", &m]);
    assert!(!dirty());
    text(&["set", "writeback.age_ms=100", "--mount", &m]);
    fs::write(place.mount().join("b"), b"soon old").expect("write");
    eventually("the bytes leave", || !dirty());
    up.stop();
}

/// Goal: SIGTERM while a program has a file open and dirty still flushes, unmounts and ends with 0.
#[test]
fn stopping_flushes() {
    use std::io::Write;
    let place = Place::new();
    let up = place.up(&[]);
    let mut f = fs::File::create(place.mount().join("dirty")).expect("create");
    f.write_all(&pattern(1, 100_000)).expect("write");
    up.stop();
    drop(f);
    assert!(!is_mounted(&place.mount()));
    place.fsck();
    let up = place.up(&[]);
    assert!(fs::read(place.mount().join("dirty")).expect("read") == pattern(1, 100_000));
    up.stop();
}
