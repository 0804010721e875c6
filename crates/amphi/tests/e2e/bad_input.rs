//! Bad input: one clear line, exit code 2, nothing changed.

use crate::harness::{Daemon, Place, amphi, eventually, is_mounted, run};
use std::fs;
use std::process::{Output, Stdio};

/// Runs `amphi args`. The command has to exit with code 2. `text` has to occur in exactly one line of errors, and this
/// line names nothing twice.
pub fn refused(args: &[&str], text: &str) {
    said(args, &run(args), text);
}

fn said(args: &[&str], out: &Output, text: &str) {
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    let lines: Vec<&str> = err.lines().filter(|l| l.starts_with("amphi: ") || l.starts_with("error: ")).collect();
    assert_eq!(lines.len(), 1, "amphi {args:?}: {err}");
    for arg in args.iter().filter(|a| a.contains('/')) {
        assert!(lines[0].matches(arg).count() < 2, "amphi {args:?} names {arg} twice: {err}");
    }
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
    place.key("file", "");
    refused(&["up", "--data", &data, "--mount", &place.text("file")], "not a directory");
    refused(&["up", "--data", &place.text("file"), "--mount", &mount], "file");
    refused(&["up", "--data", &data, "--mount", &mount, "--targets", "0"], "targets");
    refused(&["up", "--data", &data, "--mount", &mount, "--zone-size", "12Q"], "12Q");
    refused(&["up", "--data", &data, "--mount", &mount, "--zone-size", "1K"], "zone");
    refused(&["up", "--data", &data, "--mount", &mount, "--zone-size", "900T"], "are free");
    refused(&["up", "--data", &data, "--mount", &mount, "--log-size", "900T"], "too few");
    refused(&["up", "--data", &data, "--mount", &mount, "--workers", "60000"], "workers");
    refused(&["up", "--data", &data, "--mount", &mount, "--worker-spin-us", "9000000"], "9000000");
    refused(&["up", "--data", &data, "--mount", &mount, "--cache", "1"], "4 MiB");
    refused(&["up", "--data", &data, "--mount", &mount, "--cache", "900T"], "memory of this machine");
    refused(&["up", "--data", &data, "--mount", &mount, "--set", "no.such=1"], "no.such");
    refused(&["up", "--data", &data, "--mount", &mount, "--set", "hybrid.smal_bytes=1"], "mean hybrid.small_bytes?");
    refused(&["up", "--data", &data, "--mount", &mount, "--zone-size", "20M"], "for a log of 64 MiB");
    refused(&["up", "--data", &data, "--mount", &mount, "--set", "hybrid.small_bytes=9T"], "not within");
    refused(&["up", "--data", &data, "--mount", &mount, "--listen", "smoke"], "unknown form");
    refused(&["mount", "--cluster", "smoke:signals", &mount], "smoke");
    refused(&["mount", "--cluster", &format!("unix:{}", place.text("sock")), &mount], "is `amphi server` running");
    refused(&["status", "--cluster", "tcp:127.0.0.1:1"], "is `amphi server` running");
    let joining = ["server", "--data", &data, "--listen", "tcp:127.0.0.1:0", "--join", "tcp:127.0.0.1:1"];
    refused(&joining, "the key of its cluster");
    place.key("guessed", "1234567890123456");
    refused(
        &["server", "--data", &data, "--listen", "tcp:0.0.0.0:0", "--key", &place.text("guessed")],
        "can be guessed",
    );
    refused(&["server", "--data", &data, "--listen", "unix:x", "--socket-mode", "0999"], "permission bits");
    refused(&["server", "--data", &data, "--listen", "tcp:127.0.0.1:99999"], "port");
    refused(&["server", "--data", &data, "--listen", "tcp:0.0.0.0:0", "--key", &place.text("none")], "cluster key");
    refused(&["server", "--data", &data, "--listen", "tcp:0.0.0.0:0", "--key", &place.text("file")], "at least 16");
    refused(&["up", "--data", &data, "--mount", &place.text("file/under")], "cannot be looked at");
    assert!(!place.path("data").exists(), "nothing was made for a request that was refused");
    fs::create_dir(place.path("foreign")).expect("mkdir");
    fs::write(place.path("foreign").join("thesis.tex"), b"").expect("write");
    refused(&["up", "--data", &place.text("foreign"), "--mount", &mount], "thesis.tex");
    refused(&["up", "--data", &place.text("foreign"), "--mount", &place.text("foreign")], "lies in the data folder");
    refused(&["fsck", &place.text("none")], "none");
    refused(&["fsck", &place.text("file")], "file");
    refused(&["stats", &place.text("file")], "not on an AmphiFS mount");
    refused(&["status", &place.text("none")], "no such file");
    refused(&["get", "--mount", &mount], "not on an AmphiFS mount");
    refused(&["set", "a=1", "--mount", &mount], "not on an AmphiFS mount");
    refused(&["layout", "set", "--layout", "whole", &place.text("file")], "not on an AmphiFS mount");
    refused(&["layout", "get", &place.text("none")], "no such file");
    refused(&["no-such-command"], "no-such-command");
}

/// Goal: a machine without FUSE is named before anything is made. Method: a mount name space with an empty `/dev`.
#[test]
fn without_fuse() {
    let place = Place::new();
    let args = ["up", "--data", &place.text("data"), "--mount", &place.text("mount")];
    let hidden = "mount -t tmpfs none /dev && exec \"$0\" \"$@\"";
    let binary = amphi().get_program().to_owned();
    let out = std::process::Command::new("unshare").args(["-m", "sh", "-c", hidden]).arg(binary).args(args).output();
    said(&args, &out.expect("unshare runs"), "/dev/fuse");
    assert!(!place.path("data").exists());
}

/// Goal: a process that may open too few files says so, instead of failing somewhere later. Method: the shell's limit.
#[test]
fn too_few_open_files() {
    let place = Place::new();
    let args = ["up", "--data", &place.text("data"), "--mount", &place.text("mount")];
    let binary = amphi().get_program().to_owned();
    let limited = "ulimit -n 8 && exec \"$0\" \"$@\"";
    let out = std::process::Command::new("sh").args(["-c", limited]).arg(binary).args(args).output();
    said(&args, &out.expect("sh runs"), "ulimit -n 128");
    assert!(!place.path("data").exists());
}

/// Goal: where several file systems are mounted, the error says how to name one of them. Method: two mounts.
#[test]
fn several_mounts_are_named() {
    let (one, two) = (Place::new(), Place::new());
    let (up, other) = (one.up(&[]), two.up(&[]));
    refused(&["set", "hybrid.small_bytes=4K"], "name one of them with -m: ");
    refused(&["sync"], "name one of them: ");
    up.stop();
    other.stop();
}

/// Goal: keys and addresses in use are refused with a message that names the address once; the mount continues. Method:
/// a server with a key, a mount, and a table of calls beside them.
#[test]
fn strangers_of_a_server() {
    let place = Place::new();
    for (name, key) in [("key", "a key that nobody guesses"), ("other", "another key that is long")] {
        place.key(name, key);
    }
    fs::create_dir(place.path("mount2")).expect("mkdir");
    let (data, addr, key) = (place.text("data"), format!("unix:{}", place.text("sock")), place.text("key"));
    let server = Daemon::start(&["server", "--data", &data, "--listen", &addr, "--key", &key, "--zone-size", "128M"]);
    let mount = Daemon::start(&["mount", "--cluster", &addr, "--key", &key, &place.text("mount")]);
    let second = place.text("mount2");
    refused(&["mount", "--cluster", &addr, &second], "needs a key");
    refused(&["status", "--cluster", &addr, "--key", &place.text("other")], "wrong cluster key");
    refused(&["mount", "--cluster", &addr, "--key", &key, &place.text("mount")], "is busy");
    refused(&["server", "--data", &place.text("data2"), "--listen", &addr, "--zone-size", "128M"], "another process");
    assert!(!place.path("data2").exists(), "nothing was made for a request that was refused");
    refused(&["server", "--data", &data, "--listen", &format!("{addr}2")], "another server uses this folder");
    refused(&["fsck", &data], "another server uses this folder");
    assert!(!is_mounted(&place.path("mount2")));
    fs::write(place.mount().join("f"), b"1").expect("write");
    mount.stop();
    server.stop();
}

/// Goal: two servers on one folder and two mounts on one point are refused, and the first continues.
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
    refused(&["get", "server.nothing", "--mount", &place.text("mount")], "no tunable matches 'server.nothing'");
    refused(&["set", "server.tokens_ms=1", "--mount", &place.text("mount")], "did you mean server.token_ms?");
    assert!(run(&["set", "*small_bytes=64K", "--mount", &place.text("mount")]).status.success());
    refused(&["set", "*spin_us=500000", "--mount", &place.text("mount")], "'500000' is no value for *spin_us");
    let spin = run(&["get", "server.worker_spin_us", "--mount", &place.text("mount")]);
    assert_eq!(String::from_utf8_lossy(&spin.stdout), "server.worker_spin_us=200\n", "not half of it");
    let (pipe, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(rustix::fs::CWD, place.mount().join("fifo"), pipe, mode, 0).expect("mkfifo");
    refused(&["get", "--mount", &place.text("mount/fifo")], "is neither a file nor a directory");
    refused(&["sync", &place.text("mount/fifo")], "is neither a file nor a directory");
    refused(&["set", "nonsense", "--mount", &place.text("mount")], "PATTERN=VALUE");
    refused(&["layout", "set", "--layout", "striped,size=3", &place.text("mount/f")], "layout");
    refused(
        &["layout", "set", "--layout", "striped,count=70000", &place.text("mount/f")],
        "at most 4096, which is 1024",
    );
    fs::write(place.mount().join("fresh"), b"1").expect("write");
    refused(&["layout", "set", "--layout", "striped,count=2", &place.text("mount/fresh")], "keeps its layout");
    assert_eq!(fs::read(place.mount().join("f")).expect("read"), b"1");
    up.stop();
    place.fsck();
}

/// Goal: Promise S14: a damaged or missing superblock and a truncated zone are reported with their place, refused, and
/// left unchanged. No message advises to remove what could be the only remaining copy. Method: each with a zone of two.
#[test]
fn damaged_zones_are_refused() {
    use std::os::unix::fs::FileExt;
    let place = Place::new();
    let up = place.up(&["--targets", "2"]);
    fs::write(place.mount().join("f"), vec![7; 100_000]).expect("write");
    up.stop();
    let (data, mount, addr) = (place.text("data"), place.text("mount"), place.addr());
    let zone = place.path("data").join("target-0000.zone");
    let f = fs::OpenOptions::new().read(true).write(true).open(&zone).expect("open");
    let mut old = vec![0; 8192];
    f.read_exact_at(&mut old, 0).expect("read");
    let refuse = |reason: &str| {
        let before = fs::read(&zone).map(|b| crc(&b)).expect("read");
        for args in [["up", "--data", &data, "--mount", &mount], ["server", "--data", &data, "--listen", &addr]] {
            refused(&args, reason);
            refused(&args, "restore it from a copy");
            let said = String::from_utf8_lossy(&run(&args).stderr).into_owned();
            assert!(!said.contains("remove"), "{said}");
        }
        assert!(!run(&["fsck", &data]).status.success(), "fsck finds it");
        assert_eq!(fs::read(&zone).map(|b| crc(&b)).expect("read"), before, "nothing was changed");
    };
    for (bytes, reason) in [(0xaa, "its magic bytes are wrong"), (0, "both copies are empty, but the zone was in use")]
    {
        f.write_all_at(&vec![bytes; 8192], 0).expect("damage");
        refuse(reason);
        f.write_all_at(&old, 0).expect("mend");
    }
    place.fsck();
    fs::rename(&zone, place.path("away")).expect("rename");
    fs::write(&zone, &old[..4096]).expect("cut short");
    refuse("the storage is too small for a zone");
    fs::remove_file(&zone).expect("remove");
    refused(&["up", "--data", &data, "--mount", &mount], "target-0000");
    fs::rename(place.path("away"), &zone).expect("rename");
    let up = place.up(&[]);
    assert_eq!(fs::read(place.mount().join("f")).expect("read"), vec![7; 100_000]);
    up.stop();
}

/// The number of this many bytes at a place given by docs/DISK_FORMAT.md.
fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// crc32c, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    };
    !bytes.iter().fold(!0, step)
}

/// A superblock of another version, whole otherwise.
fn of_version(superblock: &[u8], version: u32) -> Vec<u8> {
    let mut other = superblock.to_vec();
    other[8..12].copy_from_slice(&version.to_le_bytes());
    other[12..16].fill(0);
    let crc = crc32c(&other);
    other[12..16].copy_from_slice(&crc.to_le_bytes());
    other
}

/// Goal: Promise S14: a zone of another version, and damage to its log or metadata that cannot be rebuilt, are refused
/// by every way to start a server, with one line that has the place and the reason. Neither this zone nor another one
/// is changed, and all files are there once the damage is repaired. Method: a server is killed after a checkpoint and
/// synced changes. Bytes are overwritten where docs/DISK_FORMAT.md places the structures.
#[test]
fn other_versions_and_damaged_metadata_are_refused() {
    use std::os::unix::fs::FileExt;
    let place = Place::new();
    let (data, dir, addr) = (place.text("data"), place.text("mount"), place.addr());
    let small = ["--targets", "2", "--zone-size", "32M", "--log-size", "4M"];
    let server = Daemon::start(&[&["server", "--data", &data, "--listen", &addr], &small[..]].concat());
    let mount = place.mount_at("m", &[]);
    let root = place.path("m");
    let zone = place.path("data").join("target-0000.zone");
    let f = fs::OpenOptions::new().read(true).write(true).open(&zone).expect("open");
    let superblock = || {
        let mut bytes = vec![0; 4096];
        f.read_exact_at(&mut bytes, 0).expect("read");
        bytes
    };
    assert!(run(&["set", "server.checkpoint_bytes=64K", "--mount", &place.text("m")]).status.success());
    let mut made = 0;
    let mut make = |count: usize| {
        for _ in 0..count {
            fs::write(root.join(format!("a-name-of-some-length-{made}")), made.to_string()).expect("write");
            made += 1;
        }
        assert!(run(&["sync", &place.text("m")]).status.success());
    };
    eventually("a checkpoint", || {
        make(50);
        number(&superblock(), 140, 4) > 0
    });
    assert!(run(&["set", "server.checkpoint_bytes=16M", "--mount", &place.text("m")]).status.success());
    (0..3).for_each(|_| make(5));
    mount.kill();
    server.kill();
    let s = superblock();
    let log = 65_536 + number(&s, 104, 8) % number(&s, 64, 8) * 4096;
    let segment = number(&s, 72, 8) + number(&s, 160 + 24, 4) * 65_536;
    let newer = of_version(&s, number(&s, 8, 4) as u32 + 1);
    assert!(of_version(&s, number(&s, 8, 4) as u32) == s, "a sealed superblock");
    // The damage is in two neighbouring blocks, because one alone would be rebuilt.
    let flipped = |at: u64| {
        let mut bytes = vec![0; 4097];
        f.read_exact_at(&mut bytes, at).expect("read");
        bytes[0] ^= 4;
        bytes[4096] ^= 4;
        bytes
    };
    let zones = || {
        let all = ["target-0000.zone", "target-0001.zone"].map(|n| place.path("data").join(n));
        all.map(|zone| fs::read(zone).map(|bytes| crc(&bytes)).expect("read"))
    };
    let version = format!("its format version is {}, this program knows {}", number(&newer, 8, 4), number(&s, 8, 4));
    for (at, bytes, reason) in [
        (0, [newer.clone(), newer].concat(), version.as_str()),
        (log + 100, flipped(log + 100), "log group"),
        (segment + 200, flipped(segment + 200), "segment"),
    ] {
        let mut old = vec![0; bytes.len()];
        f.read_exact_at(&mut old, at).expect("read");
        f.write_all_at(&bytes, at).expect("damage");
        let before = zones();
        for args in [["up", "--data", &data, "--mount", &dir], ["server", "--data", &data, "--listen", &addr]] {
            refused(&args, reason);
            refused(&args, "target-0000.zone");
        }
        if reason == version {
            // The zone is intact as far as this program can detect.
            refused(&["fsck", &data], reason);
        } else {
            let out = run(&["fsck", &data]);
            let said = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(out.status.code() == Some(1) && said.contains(reason), "{reason}: {said}");
        }
        assert!(!is_mounted(&place.mount()));
        assert!(zones() == before, "{reason}: something was written");
        f.write_all_at(&old, at).expect("mend");
    }
    let up = place.up(&[]);
    let dir = place.mount();
    for n in 0..made {
        assert_eq!(fs::read_to_string(dir.join(format!("a-name-of-some-length-{n}"))).expect("read"), n.to_string());
    }
    up.stop();
    place.fsck();
}

/// A checksum good enough to see a change.
fn crc(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// Goal: a folder without zones, such as the mount point of a disk that is not mounted, starts a new server only on
/// explicit request. Method: `amphi server` is run on a folder that is missing, empty, in use, or moved away. A refused
/// command leaves no files behind.
#[test]
fn a_server_begins_only_where_it_is_asked_to() {
    let place = Place::new();
    let (data, addr) = (place.text("data"), place.addr());
    let first =
        ["server", "--data", &data, "--listen", &addr, "--targets", "1", "--zone-size", "64M", "--log-size", "4M"];
    let plain = |text: &str| {
        let out = amphi().args(first).stdin(Stdio::null()).output().expect("amphi starts");
        said(&first, &out, text);
    };
    let with_format = [&first[..], &["--format"]].concat();
    plain("is its disk mounted?");
    assert!(!place.path("data").exists() && !place.path("sock").exists(), "nothing is made");
    fs::create_dir(&data).expect("mkdir");
    plain("is its disk mounted?");
    assert_eq!(fs::read_dir(&data).expect("list").count(), 0, "nothing is made");
    Daemon::start(&with_format).stop();
    refused(&with_format, "holds zones already");
    Daemon::start(&first).stop();
    fs::rename(&data, place.path("away")).expect("rename");
    plain("is its disk mounted?");
    fs::create_dir(&data).expect("mkdir");
    plain("is its disk mounted?");
    assert_eq!(fs::read_dir(&data).expect("list").count(), 0, "nothing is made");
    fs::remove_dir(&data).expect("it is still empty");
    fs::rename(place.path("away"), &data).expect("rename");
    Daemon::start(&first).stop();
    place.fsck();
}

/// Goal: `amphi up` creates a cluster in a new folder and says so, and in a folder that was in use only on explicit
/// request. Method: a folder that is missing, in use, moved away, empty, or put back, with one server and with three.
#[test]
fn up_does_not_begin_anew_by_itself() {
    for servers in ["1", "3"] {
        let place = Place::new();
        let (data, mount) = (place.text("data"), place.text("mount"));
        let small = ["--targets", "1", "--zone-size", "64M", "--log-size", "4M", "--servers", servers];
        let up = [&["up", "--data", &data, "--mount", &mount], &small[..]].concat();
        let write = |text: &str| fs::write(place.mount().join("f"), text).expect("write");
        let running = Daemon::start(&up);
        write("kept");
        running.stop();
        fs::rename(&data, place.path("away")).expect("rename");
        refused(&up, "is its disk mounted?");
        assert!(!place.path("data").exists(), "nothing is made");
        fs::create_dir(&data).expect("mkdir");
        refused(&up, "is its disk mounted?");
        assert_eq!(fs::read_dir(&data).expect("list").count(), 0, "nothing is made");
        assert!(!is_mounted(&place.mount()));
        fs::remove_dir(&data).expect("it is still empty");
        fs::rename(place.path("away"), &data).expect("rename");
        refused(&[&up[..], &["--format"]].concat(), "holds a cluster already");
        let running = Daemon::start(&up);
        assert_eq!(fs::read(place.mount().join("f")).expect("read"), b"kept");
        running.stop();
        fs::rename(&data, place.path("away")).expect("rename");
        let running = Daemon::start(&[&up[..], &["--format"]].concat());
        assert!(!place.mount().join("f").exists(), "a new one");
        running.stop();
    }
}
