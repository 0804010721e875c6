//! The cost of an `fsync` through a mount for the server, and which data it leaves unsynced.

use crate::harness::*;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const FILES: usize = 100;

/// A number of `user.amphi.unstable` of an open file.
fn unstable(path: &Path, name: &str) -> u64 {
    let mut text = vec![0; 4096];
    let len = rustix::fs::getxattr(path, "user.amphi.unstable", &mut text).expect("the meter of an open file");
    let json: serde_json::Value = serde_json::from_slice(&text[..len]).expect("JSON");
    json[name].as_u64().expect("a number")
}

/// Sets a tunable of the servers.
fn set(dir: &Path, tunable: &str) {
    let out = run(&["set", tunable, "--mount", &dir.display().to_string()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

fn direct(path: &Path) -> File {
    let options = libc::O_DIRECT;
    OpenOptions::new().read(true).write(true).create(true).custom_flags(options).open(path).expect("open")
}

/// Memory at a block of the device.
fn aligned(seed: u64, len: usize) -> (Vec<u8>, usize) {
    let mut memory = vec![0; len + 4096];
    let at = memory.as_ptr().align_offset(4096);
    memory[at..at + len].copy_from_slice(&pattern(seed, len));
    (memory, at)
}

/// Goal: an `fsync` does no work for other files. A hundred other files have unsynced bytes in the cache of the mount,
/// and accepted by the server. A change of 4 KiB is made stable by one sync of the disk, with its bytes in the log,
/// without a flush or a write of file data, even if the change appends. Method: `fsync` through a mount; the server's
/// counters are read before and after.
#[test]
fn an_fsync_pays_for_its_own_file() {
    let place = Place::new();
    let _server = place.server(&["--targets", "1"]);
    let _mount = place.mount_at("m", &["--set", "writeback.age_ms=600000"]);
    let dir = place.path("m");
    set(&dir, "server.write_back_age_ms=600000");
    let file = direct(&dir.join("f"));
    let (bytes, at) = aligned(1, 16 << 10);
    file.write_all_at(&bytes[at..at + (16 << 10)], 0).expect("write");
    file.sync_all().expect("fsync");
    let mut others = Vec::new();
    for n in 0..FILES {
        let other = if n % 2 == 0 {
            direct(&dir.join(format!("other{n}")))
        } else {
            File::create(dir.join(format!("other{n}"))).expect("create")
        };
        other.write_all_at(&bytes[at..at + 8192], 0).expect("write");
        others.push(other);
    }
    let count = |name: &str| counter_of_servers(&dir, name);
    let names = ["data_disk_writes", "flushes", "disk_syncs", "write_back_logged", "log_groups"];
    for change in 0..4u64 {
        // The bytes are overwritten twice and appended twice; by then the background work of a quiet log is done.
        std::thread::sleep(std::time::Duration::from_secs(4));
        let (bytes, from) = aligned(9 + change, 4096);
        let before = names.map(count);
        file.write_all_at(&bytes[from..from + 4096], [0, 8192, 16384, 20480][change as usize]).expect("write");
        file.sync_all().expect("fsync");
        let spent: Vec<u64> = names.map(count).iter().zip(before).map(|(now, before)| now - before).collect();
        assert_eq!(spent[..4], [0, 0, 1, 1], "{names:?} of change {change}: {spent:?}");
        assert!(spent[4] <= 2, "its record is one write, and one more where others shared none: {spent:?}");
    }
    let left: u64 = (0..FILES).map(|n| unstable(&dir.join(format!("other{n}")), "accepted")).sum();
    let dirty: u64 = (0..FILES).map(|n| unstable(&dir.join(format!("other{n}")), "dirty")).sum();
    assert_eq!((left, dirty), (50 * 8192, 50 * 8192), "the other files are where they were");
}

/// Goal: for each file the acknowledged bytes that are not stable are shown, by where they are. After an `fsync` of the
/// file there are no such bytes. Such bytes of other files do not count. Method: a buffered write, and a small and a
/// large direct one, through one mount. Both mounts are queried.
#[test]
fn what_is_not_stable_is_shown() {
    let place = Place::new();
    let _server = place.server(&[]);
    let _mounts = ["m0", "m1"].map(|name| place.mount_at(name, &["--set", "writeback.age_ms=600000"]));
    for tunable in ["server.write_back_age_ms=600000", "server.sync_interval_ms=60000"] {
        set(&place.path("m0"), tunable);
    }
    // Wait until the syncs that were due by the previous interval have passed.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let paths = ["m0", "m1"].map(|name| place.path(name).join("f"));
    let shown = |by: usize| ["dirty", "accepted", "unsynced"].map(|name| unstable(&paths[by], name));
    let (large, at) = aligned(1, 4 << 20);
    let file = direct(&paths[0]);
    let theirs = File::open(&paths[1]).expect("open");
    assert_eq!((shown(0), shown(1)), ([0; 3], [0; 3]));
    file.write_all_at(&large[at..at + 4096], 8 << 20).expect("write");
    assert_eq!((shown(0), shown(1)), ([0, 4096, 0], [0, 4096, 0]));
    let line = || {
        let out = run(&["layout", "get", &paths[1].display().to_string()]);
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    assert!(
        line().contains("not stable: 0 B in this mount, 4 KiB in the servers' memory, 0 B not synced"),
        "{}",
        line()
    );
    file.write_all_at(&large[at..at + (4 << 20)], 0).expect("write");
    let [_, accepted, unsynced] = shown(1);
    assert_eq!((accepted, unsynced), (4096, 4 << 20), "large writes go to the disks");
    let stats = String::from_utf8_lossy(&run(&["stats", &paths[0].display().to_string()]).stdout).into_owned();
    assert!(stats.contains("accepted 4096 bytes") && stats.contains("unsynced 4194304 bytes"), "{stats}");
    let cached = File::create(place.path("m0").join("g")).expect("create");
    cached.write_all_at(&large[..5000], 0).expect("write");
    assert_eq!(unstable(&place.path("m0").join("g"), "dirty"), 5000);
    theirs.sync_all().expect("fsync");
    assert_eq!((shown(0), shown(1)), ([0; 3], [0; 3]), "the servers have synced all of it");
    assert!(!line().contains("not stable"), "{}", line());
    assert_eq!(unstable(&place.path("m0").join("g"), "dirty"), 5000, "another file");
}
