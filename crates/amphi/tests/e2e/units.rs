//! Writes of whole units of the cache, whose memory the cache keeps, among writes that are copied; all bytes compared.

use crate::harness::{Place, Random, counter, eventually, pattern, run};
use rustix::fs::OFlags;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const UNIT: usize = 64 << 10;
/// Bytes of a file that belong to one thread.
const REGION: usize = 4 << 20;
const THREADS: usize = 4;

/// Bytes that the cache took over with their memory, in writes.
fn adopted(mount: &Path) -> u64 {
    let out = run(&["stats", "--json", &mount.display().to_string()]);
    let stats: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    stats["counters"]["write_adopted"]["samples"].as_u64().expect("a counter")
}

fn open(path: &Path, flags: OFlags) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).custom_flags(flags.bits() as i32);
    options.open(path).expect("open")
}

/// Goal: while a single program reads in sequence, the mount prepares what it reads next, and every byte is right; for
/// random reads this causes no additional work. Method: a cached file read in both ways, the counter, and the switch.
#[test]
fn a_lone_stream_finds_its_next_bytes_warm() {
    let place = Place::new();
    let daemon = place.up(&[]);
    let mount = place.mount();
    let model = pattern(5, 64 * UNIT);
    fs::write(mount.join("f"), &model).expect("write");
    let file = open(&mount.join("f"), OFlags::empty());
    let pass = |step: usize| {
        let before = counter(&mount, "cache_warmed");
        let mut back = vec![0; UNIT];
        for unit in (0..64).map(|i| i * step % 64) {
            file.read_exact_at(&mut back, (unit * UNIT) as u64).expect("read");
            assert!(back == model[unit * UNIT..][..UNIT], "unit {unit}");
        }
        counter(&mount, "cache_warmed") - before
    };
    // Beside other programs the mount may have more than one reader for a while.
    eventually("a lone stream", || pass(1) > 32);
    assert_eq!(pass(5), 0);
    drop(file);
    daemon.stop();
    place.fsck();
}

/// Random writes and reads of one thread's region, with other requests in between; two in three of them are whole
/// units.
fn work(path: &Path, thread: usize, steps: usize) -> Vec<u8> {
    let (file, start) = (open(path, OFlags::empty()), (thread * REGION) as u64);
    let mut random = Random::new(thread as u64 + 77);
    let mut model = vec![0; REGION];
    file.write_all_at(&model, start).expect("write");
    for step in 0..steps {
        let unit = random.below((REGION / UNIT - 4) as u64) as usize * UNIT;
        let odd = random.below(UNIT as u64) as usize;
        let (at, len) = match random.below(18) {
            0..10 => (unit, UNIT),
            10 => (unit, 4096),
            11 => (unit + odd, 4096),
            12 => (unit, 68 << 10),
            13 => (unit + odd, UNIT),
            14 => (unit + odd, 1 + random.below(100_000) as usize),
            15 => {
                fs::metadata(path.with_file_name("n".repeat(200))).expect_err("no such name");
                continue;
            }
            16 => {
                file.sync_data().expect("fsync");
                continue;
            }
            _ => {
                // The cache returns its memory without a copy while others write.
                let mut back = vec![0; 2 * UNIT];
                file.read_exact_at(&mut back, start + unit as u64).expect("read");
                assert!(back == model[unit..unit + 2 * UNIT], "thread {thread}, step {step}, at {unit}");
                continue;
            }
        };
        let bytes = pattern(random.below(u64::MAX), len);
        file.write_all_at(&bytes, start + at as u64).expect("write");
        model[at..at + len].copy_from_slice(&bytes);
    }
    model
}

/// Goal: units that have adopted a write's memory hold its bytes, and are read, written back and evicted like other
/// units; adopting can be switched off. Method: threads mix such writes with others, in a cache that holds a fraction
/// of the bytes; the bytes are compared with vectors, through the cache and past it.
#[test]
fn kept_memory_holds_what_was_written() {
    let place = Place::new();
    let sets = ["hybrid.mode=buffered", "cache.max_bytes=12M", "writeback.age_ms=50"];
    let mut args = vec!["--targets", "2", "--zone-size", "256M", "--log-size", "16M"];
    sets.iter().for_each(|set| args.extend(["--set", set]));
    let up = place.up(&args);
    let (mount, path) = (place.mount(), place.mount().join("f"));
    let mut expected = work(&path, 0, 300);
    assert!(adopted(&mount) > 50, "{} units kept", adopted(&mount));
    let models: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let running: Vec<_> = (1..THREADS)
            .map(|t| {
                scope.spawn({
                    let path = &path;
                    move || work(path, t, 250)
                })
            })
            .collect();
        running.into_iter().map(|r| r.join().expect("a thread's work")).collect()
    });
    models.iter().for_each(|m| expected.extend(m));
    assert!(fs::read(&path).expect("read") == expected, "as programs see it");
    open(&path, OFlags::empty()).sync_all().expect("fsync");
    let mut past = vec![0; expected.len()];
    open(&path, OFlags::DIRECT).read_exact_at(&mut past, 0).expect("read");
    assert!(past == expected, "past the caches");
    up.stop();
    place.fsck();
}
