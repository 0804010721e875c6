//! A mount that is stopped (SIGSTOP) in the middle of a file that others fight for.

use crate::harness::{Daemon, Place, eventually, pattern, run};
use crate::ioctl::{NO_EXPAND, SET_MODE, ioctl};
use rustix::fs::{XattrFlags, setxattr};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Bytes of a record: neighbours, which belong to other mounts, share its first and last block.
const RECORD: usize = 9_001;
/// Records of each mount.
const SLOTS: usize = 20;
const MOUNTS: usize = 3;
/// The one that is stopped.
const STOPPED: usize = 0;
/// The value that is written into its records while it is stopped.
const TAKEN: u64 = 1 << 40;
/// The offset of a record that the stopped mount has in its cache, and that no mount requests before. A direct request
/// leaves no lock behind by which it could delay others.
const CACHED_AT: u64 = ((SLOTS * MOUNTS * RECORD) as u64).next_multiple_of(1 << 20);

fn offset(who: usize, slot: usize) -> u64 {
    ((slot * MOUNTS + who) * RECORD) as u64
}

fn went_direct(mount: &Path) -> u64 {
    let out = run(&["stats", "--json", &mount.display().to_string()]);
    let stats: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    stats["counters"]["write_direct_contention"]["samples"].as_u64().expect("a counter")
}

/// Lets the workers end, also after a failure.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Writes the records of `who` in turn and reads them back until it is stopped. Returns the value of each, or nothing
/// after an error.
fn work(mount: &Path, who: usize, stop: &AtomicBool, done: &AtomicU64) -> Option<Vec<u64>> {
    let file = File::options().read(true).write(true).open(mount.join("f")).ok()?;
    let (mut at, mut got) = (vec![0; SLOTS], vec![0; RECORD]);
    for round in 1u64.. {
        if stop.load(SeqCst) {
            break;
        }
        let slot = (round * 7 % SLOTS as u64) as usize;
        let value = (who as u64) << 32 | round;
        file.write_all_at(&pattern(value, RECORD), offset(who, slot)).ok()?;
        at[slot] = value;
        let look = (round * 11 % SLOTS as u64) as usize;
        file.read_exact_at(&mut got, offset(who, look)).ok()?;
        if at[look] != 0 {
            let stopped = who == STOPPED && got == pattern(TAKEN + look as u64, RECORD);
            assert!(got == pattern(at[look], RECORD) || stopped, "mount {who}, round {round}, record {look}");
        }
        done.fetch_add(1, SeqCst);
    }
    Some(at)
}

/// Goal: a mount that is stopped while it uses a contended file delays the others no longer than until its deadline for
/// an answer. When it continues it neither writes nor shows old data. Method: three mounts write adjacent records until
/// they go direct because of contention. One is stopped meanwhile, another one overwrites its records, and then it
/// continues. Its programs get errors or current data, and every other mount reads the last written data, then and 3 s
/// later.
#[test]
fn a_mount_stopped_in_a_contended_file() {
    let place = Place::new();
    let server = place.server(&["--targets", "2"]);
    let mut mounts: Vec<Daemon> = (0..MOUNTS).map(|n| place.mount_at(&format!("m{n}"), &[])).collect();
    let paths: Vec<PathBuf> = (0..MOUNTS).map(|n| place.path(&format!("m{n}"))).collect();
    let set = |mount: &Path, what: &str| {
        setxattr(mount, "user.amphi.set", what.as_bytes(), XattrFlags::empty()).expect("set");
    };
    set(&paths[1], "server.contended_conflicts=4");
    paths.iter().for_each(|m| set(m, "hybrid.small_bytes=4K"));
    fs::write(paths[1].join("f"), vec![0; SLOTS * MOUNTS * RECORD]).expect("write");
    let (stop, done) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; MOUNTS]);
    let others = |count: u64| {
        let before: Vec<u64> = done.iter().map(|d| d.load(SeqCst)).collect();
        eventually("the others go on", || (1..MOUNTS).all(|n| done[n].load(SeqCst) >= before[n] + count));
    };
    let last: Vec<Option<Vec<u64>>> = std::thread::scope(|s| {
        let (stop, done, paths) = (&stop, &done, &paths);
        let workers: Vec<_> = (0..MOUNTS).map(|n| s.spawn(move || work(&paths[n], n, stop, &done[n]))).collect();
        let ending = Ending(stop);
        eventually("it is a fight", || paths.iter().all(|m| went_direct(m) > 20));
        let open = |m: &Path| File::options().read(true).write(true).open(m.join("f")).expect("open");
        let (cached, taken) = (open(&paths[STOPPED]), open(&paths[1]));
        assert_eq!((ioctl(&cached, SET_MODE, &mut 1u32), ioctl(&cached, NO_EXPAND, &mut 1u32)), (0, 0));
        cached.write_all_at(&pattern(7, RECORD), CACHED_AT).expect("write, in the cache alone");
        let stopped = mounts[STOPPED].pause();
        let begin = Instant::now();
        taken.write_all_at(&pattern(TAKEN, RECORD), CACHED_AT).expect("write");
        for slot in 0..SLOTS {
            taken.write_all_at(&pattern(TAKEN + slot as u64, RECORD), offset(STOPPED, slot)).expect("write");
        }
        // The mount has 30 s to answer; the rest is a margin for a busy machine.
        assert!(begin.elapsed() < Duration::from_secs(60), "held up for {:?}", begin.elapsed());
        others(50);
        drop(stopped);
        eventually("the stopped mount knows that it was ended", || {
            let mut got = vec![0; RECORD];
            let read = cached.read_exact_at(&mut got, CACHED_AT);
            assert!(read.is_err() || got == pattern(TAKEN, RECORD), "stale bytes");
            read.is_err()
        });
        others(50);
        drop(ending);
        workers.into_iter().map(|w| w.join().expect("a worker")).collect()
    });
    assert!(last[STOPPED].is_none(), "its program is told");
    let expected = |who: usize, slot: usize| match &last[who] {
        Some(at) if who != STOPPED && at[slot] == 0 => vec![0; RECORD],
        Some(at) if who != STOPPED => pattern(at[slot], RECORD),
        _ => pattern(TAKEN + slot as u64, RECORD),
    };
    for round in 0..2 {
        for m in &paths[1..] {
            let bytes = fs::read(m.join("f")).expect("read");
            assert!(bytes[CACHED_AT as usize..] == pattern(TAKEN, RECORD), "{}", m.display());
            for slot in 0..SLOTS {
                for who in 0..MOUNTS {
                    let at = offset(who, slot) as usize;
                    assert!(
                        bytes[at..at + RECORD] == expected(who, slot),
                        "{}: record {slot} of mount {who}",
                        m.display()
                    );
                }
            }
        }
        // Time for what the stopped mount might still send.
        std::thread::sleep(Duration::from_secs(if round == 0 { 3 } else { 0 }));
    }
    mounts.remove(STOPPED).kill();
    let _ = rustix::mount::unmount(&paths[STOPPED], rustix::mount::UnmountFlags::DETACH);
    mounts.into_iter().for_each(Daemon::stop);
    server.stop();
    place.fsck();
}
