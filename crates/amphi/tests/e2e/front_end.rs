//! The commands an operator uses on a running mount.

use crate::harness::{Place, eventually, is_mounted, pattern, run};
use std::fs;

fn text(args: &[&str]) -> String {
    let out = run(args);
    assert!(out.status.success(), "amphi {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Goal: Promise S13, and stats, get, set, layout, status do what their help says. Method: one story on one mount.
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

/// Goal: what was written leaves the mount without being asked, after its age, and at once with `amphi sync`; sync(1) does not
/// get through the kernel. Method: the gauge of dirty bytes.
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
