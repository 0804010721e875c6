//! Payloads in memory that a mount shares with a server of its machine (docs/design/shared_memory.md).

use crate::harness::{Place, Starting, pattern, run};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::process::Command;

const MIB: usize = 1 << 20;

/// Writes a file through the cache of one mount, and reads it through that of another one.
fn write_and_read(mount: &Path, other: &Path) {
    let bytes = pattern(3, 9 * MIB + 5000);
    let mut file = fs::File::create(mount.join("cached")).expect("create");
    file.write_all(&bytes).expect("write");
    file.sync_all().expect("sync");
    assert!(fs::read(other.join("cached")).expect("read") == bytes);
}

/// Writes 8 MiB past the cache, and reads them.
fn write_and_read_direct(mount: &Path) {
    let bytes = pattern(3, 8 * MIB);
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::DIRECT;
    let file = rustix::fs::open(mount.join("direct"), flags, Mode::RUSR | Mode::WUSR).expect("open");
    let mut file = fs::File::from(file);
    file.write_all(&bytes).expect("write");
    file.rewind().expect("seek");
    let mut back = vec![0; 8 * MIB];
    file.read_exact(&mut back).expect("read");
    assert!(back == bytes);
}

/// Memory of memfds has huge pages here, so that caches pass what they read and write, too.
fn caches_pass() -> bool {
    let modes = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").expect("modes of the kernel");
    !modes.contains("[never]") && !modes.contains("[deny]")
}

/// Bytes that the mount at `dir` has counted.
fn bytes(dir: &Path, name: &str) -> u64 {
    let told = run(&["stats", "--json", &dir.display().to_string()]);
    let stats: serde_json::Value = serde_json::from_slice(&told.stdout).expect("json");
    stats["counters"][name]["sum"].as_u64().expect("a number")
}

fn sessions(mount: &Path) -> Vec<serde_json::Value> {
    let told = run(&["status", "--json", &mount.display().to_string()]);
    let status: serde_json::Value = serde_json::from_slice(&told.stdout).expect("json");
    status["sessions"].as_array().expect("a list").clone()
}

/// Goal: a mount and a server of one machine pass large payloads in shared memory, on all connections and after a
/// restart of the server. `amphi status` and `amphi stats` show this. A mount that cannot do so uses the socket,
/// without any message. Method: a server with two workers, a mount, and a mount with a limit on file sizes, so that it
/// can have no such memory.
#[test]
fn large_payloads_are_passed() {
    let place = Place::new();
    let server = place.server(&["--targets", "2", "--workers", "2"]);
    let first = place.mount_at("a", &[]);
    fs::create_dir(place.path("b")).expect("mkdir");
    let mut bounded = Command::new("prlimit");
    bounded.arg("--fsize=1099511627776").arg(env!("CARGO_BIN_EXE_amphi"));
    bounded.args(["mount", "--cluster", &place.addr()]).arg(place.path("b"));
    let second = Starting::spawn(bounded).ready();
    let (a, b) = (place.path("a"), place.path("b"));
    write_and_read_direct(&a);
    write_and_read_direct(&b);
    // Some reads are received into memory of the cache.
    let direct = if caches_pass() { 16 } else { 8 } * MIB as u64;
    assert!(bytes(&a, "payload_passed") >= direct, "{}", bytes(&a, "payload_passed"));
    if caches_pass() {
        assert!(bytes(&a, "payload_inline") < MIB as u64, "{}", bytes(&a, "payload_inline"));
    }
    write_and_read(&a, &b);
    write_and_read(&b, &a);
    if caches_pass() {
        assert!(bytes(&a, "payload_passed") >= 32 * MIB as u64, "{}", bytes(&a, "payload_passed"));
    }
    assert_eq!(bytes(&b, "payload_passed"), 0);
    assert!(bytes(&b, "payload_inline") > 20 * MIB as u64);
    let mut shared: Vec<bool> = sessions(&a).iter().map(|s| s["memory"].as_bool().expect("a bool")).collect();
    shared.sort_unstable();
    assert_eq!(shared, [false, true]);
    let text = String::from_utf8_lossy(&run(&["status", &a.display().to_string()]).stdout).into_owned();
    assert_eq!(text.lines().filter(|line| line.contains("shared memory")).count(), 1, "{text}");

    server.kill();
    let server = place.server(&["--targets", "2", "--workers", "2"]);
    let before = bytes(&a, "payload_passed");
    write_and_read(&a, &b);
    write_and_read_direct(&a);
    assert!(bytes(&a, "payload_passed") >= before + direct);
    first.stop();
    second.stop();
    server.stop();
    place.fsck();
}
