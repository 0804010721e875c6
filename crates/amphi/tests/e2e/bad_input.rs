//! Bad input: one clear line, exit code 2, nothing changed.

use crate::harness::{Place, run};
use std::fs;

/// Runs `amphi args`, wants exit code 2 and `text` in one line of errors.
fn refused(args: &[&str], text: &str) {
    let out = run(args);
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "amphi {args:?}: {err}");
    assert!(err.contains(text), "amphi {args:?} says {err:?}, not {text:?}");
    assert!(!err.contains("panicked"), "{err}");
}

/// Goal: surroundings that are wrong are named. Method: a table of calls.
#[test]
fn wrong_surroundings() {
    let place = Place::new();
    let (data, mount) = (place.text("data"), place.text("mount"));
    refused(&["up", "--data", &data, "--mount", &place.text("none")], "none");
    fs::write(place.path("file"), b"").expect("write");
    refused(&["up", "--data", &data, "--mount", &place.text("file")], "not a directory");
    refused(&["up", "--data", &place.text("file"), "--mount", &mount], "file");
    refused(&["up", "--data", &data, "--mount", &mount, "--targets", "0"], "targets");
    refused(&["up", "--data", &data, "--mount", &mount, "--zone-size", "12Q"], "12Q");
    refused(&["up", "--data", &data, "--mount", &mount, "--zone-size", "1K"], "zone");
    refused(&["mount", "--cluster", "smoke:signals", &mount], "smoke");
    refused(&["server", "--data", &data, "--listen", "tcp:0.0.0.0:0"], "key");
    refused(&["fsck", &place.text("none")], "none");
    refused(&["stats", &place.text("file")], "not on an AmphiFS mount");
    refused(&["no-such-command"], "no-such-command");
}

/// Goal: two servers on one folder and two mounts on one point are refused, and the first goes on.
#[test]
fn second_server_and_second_mount() {
    let place = Place::new();
    let up = place.up(&[]);
    fs::write(place.mount().join("f"), b"1").expect("write");
    fs::create_dir(place.path("other")).expect("mkdir");
    refused(&["up", "--data", &place.text("data"), "--mount", &place.text("other")], "another server uses this folder");
    refused(&["up", "--data", &place.text("data2"), "--mount", &place.text("mount")], "mount");
    refused(&["set", "no.such.thing=1", "--mount", &place.text("mount")], "no.such.thing");
    refused(&["set", "hybrid.large_write_bytes=-5", "--mount", &place.text("mount")], "hybrid.large_write_bytes");
    refused(&["set", "nonsense", "--mount", &place.text("mount")], "PATTERN=VALUE");
    refused(&["layout", "set", "--layout", "striped,size=3", &place.text("mount/f")], "layout");
    assert_eq!(fs::read(place.mount().join("f")).expect("read"), b"1");
    up.stop();
    place.fsck();
}

/// Goal: Promise S14: damage to superblock or log is reported with its place, refused, and left as it is.
#[test]
fn damaged_zones_are_refused() {
    use std::os::unix::fs::FileExt;
    let place = Place::new();
    let up = place.up(&["--targets", "2"]);
    fs::write(place.mount().join("f"), vec![7; 100_000]).expect("write");
    up.stop();
    let zone = place.path("data").join("target-0000.zone");
    let f = fs::OpenOptions::new().read(true).write(true).open(&zone).expect("open");
    let mut old = vec![0; 8192];
    f.read_exact_at(&mut old, 0).expect("read");
    f.write_all_at(&vec![0xaa; 8192], 0).expect("damage");
    let before = fs::read(&zone).map(|b| crc(&b)).expect("read");
    refused(&["up", "--data", &place.text("data"), "--mount", &place.text("mount")], "superblock");
    let out = run(&["fsck", &place.text("data")]);
    assert!(!out.status.success(), "fsck finds it");
    assert_eq!(fs::read(&zone).map(|b| crc(&b)).expect("read"), before, "nothing was changed");
    f.write_all_at(&old, 0).expect("mend");
    place.fsck();
    fs::rename(&zone, place.path("away")).expect("rename");
    refused(&["up", "--data", &place.text("data"), "--mount", &place.text("mount")], "target-0000");
    fs::rename(place.path("away"), &zone).expect("rename");
    let up = place.up(&[]);
    assert_eq!(fs::read(place.mount().join("f")).expect("read"), vec![7; 100_000]);
    up.stop();
}

/// A checksum good enough to see a change.
fn crc(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}
