//! Soak: servers and mounts are killed while writers on two mounts put small records in turn into one file, as ior-hard
//! does.
//!
//! A few rounds here; `cargo xtask soak` runs 200, `AMPHI_SOAK_ROUNDS` has another number.

use crate::harness::{Daemon, Place, Random, eventually, pattern};
use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Bytes of a record of ior-hard.
const RECORD: usize = 47_008;
/// Records of a writer: 4 writers have 17 MiB in one file.
const RECORDS: u64 = 96;
/// Writers; every second one is on the second mount.
const WRITERS: u64 = 4;
/// Number of rounds by default: each kind of kill once.
const ROUNDS: u64 = KILLS.len() as u64;
/// The processes that are killed in a round.
const KILLS: [(&str, &[usize]); 4] =
    [("the server", &[2]), ("the first mount", &[0]), ("the server and a mount", &[2, 1]), ("everything", &[2, 0, 1])];
/// Errno values that a writer sees when its mount has been killed.
const GONE: [i32; 4] = [107, 103, 5, 2];

/// The records of a writer as it knows them.
struct Writer {
    who: u64,
    /// For each record: the number of its answered writes.
    answered: Vec<AtomicU64>,
    /// The record that was being written when the mount went.
    unsure: AtomicU64,
    written: AtomicU64,
}

impl Writer {
    /// Writes its records in turn until the test ends, or until its mount is gone if `may_fail` permits that.
    fn run(&self, mount: &Path, from: u64, stop: &AtomicBool, may_fail: &AtomicBool) {
        let opened = open(mount.join("shared"), OFlags::WRONLY | OFlags::DIRECT, Mode::empty());
        let file = match opened {
            Ok(file) => File::from(file),
            Err(e) if may_fail.load(SeqCst) && GONE.contains(&e.raw_os_error()) => return,
            Err(e) => panic!("writer {}: open: {e}", self.who),
        };
        for n in (from..).map(|n| n % RECORDS) {
            if stop.load(SeqCst) {
                return;
            }
            let times = self.answered[n as usize].load(SeqCst) + 1;
            self.unsure.store(n, SeqCst);
            match file.write_all_at(&self.record(n, times), self.place(n)) {
                Ok(()) => self.answered[n as usize].store(times, SeqCst),
                Err(e) if may_fail.load(SeqCst) && e.raw_os_error().is_some_and(|n| GONE.contains(&n)) => return,
                Err(e) => panic!("writer {}, record {n}: {e}", self.who),
            }
            self.unsure.store(u64::MAX, SeqCst);
            self.written.fetch_add(1, SeqCst);
        }
    }

    fn place(&self, n: u64) -> u64 {
        (n * WRITERS + self.who) * RECORD as u64
    }

    fn record(&self, n: u64, times: u64) -> Vec<u8> {
        pattern((times << 32) + (n << 8) + self.who, RECORD)
    }

    /// Compares each record that was answered. A record that was under way is skipped, and written again. Returns the
    /// number of those compared.
    fn check(&self, file: &File, round: u64) -> usize {
        let unsure = self.unsure.load(SeqCst);
        let mut found = vec![0; RECORD];
        let mut compared = 0;
        for n in (0..RECORDS).filter(|n| *n != unsure) {
            let times = self.answered[n as usize].load(SeqCst);
            if times == 0 {
                continue;
            }
            file.read_exact_at(&mut found, self.place(n)).unwrap_or_else(|e| panic!("record {n} of {}: {e}", self.who));
            let want = self.record(n, times);
            let wrong = found.iter().zip(&want).position(|(a, b)| a != b);
            assert!(wrong.is_none(), "round {round}: record {n} of writer {}, {times}: byte {wrong:?}", self.who);
            compared += 1;
        }
        compared
    }

    /// A write that was under way when its mount was killed is repeated, so that the next round knows the record.
    fn settle(&self, file: &File) {
        let n = self.unsure.swap(u64::MAX, SeqCst);
        if n < RECORDS {
            let times = self.answered[n as usize].fetch_add(1, SeqCst) + 1;
            file.write_all_at(&self.record(n, times), self.place(n)).expect("write");
        }
    }
}

/// Goal: Promises S9 and S11: writers write records of 47,008 bytes direct and in turn into one file. Answered writes
/// are there after a kill of the server, of a mount, of both together, and of all processes, even if they were only in
/// memory. Method: four writers on two mounts overwrite the same records again and again with other bytes. Each round
/// kills, starts again, and compares on both mounts every record that was answered. The zones with their data are
/// checked at the end.
#[test]
fn kills_under_records_in_turn_lose_nothing() {
    let rounds = std::env::var("AMPHI_SOAK_ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(ROUNDS);
    let seed = std::env::var("AMPHI_SOAK_SEED").ok().and_then(|r| r.parse().ok()).unwrap_or(1);
    let mut random = Random::new(seed);
    let place = Place::new();
    let more = ["--targets", "2"];
    let names = ["a", "b"];
    let mut server = place.server(&more);
    let mut mounts: Vec<Daemon> = names.iter().map(|name| place.mount_at(name, &[])).collect();
    let paths = names.map(|name| place.path(name));
    let out = crate::harness::run(&["set", "-m", &place.text("a"), "server.checksums=on"]);
    assert!(out.status.success(), "{out:?}");
    File::create(paths[0].join("shared")).expect("create");
    let new = |who| Writer {
        who,
        answered: (0..RECORDS).map(|_| AtomicU64::new(0)).collect(),
        unsure: AtomicU64::new(u64::MAX),
        written: AtomicU64::new(0),
    };
    let writers: Vec<Writer> = (0..WRITERS).map(new).collect();
    let mut compared = 0;
    for round in 0..rounds {
        let (what, victims) = KILLS[round as usize % KILLS.len()];
        let stop = AtomicBool::new(false);
        let may_fail = [0, 1].map(|mount| AtomicBool::new(victims.contains(&mount)));
        let (from, records) = (random.below(RECORDS), 8 + random.below(60));
        let sum = || writers.iter().map(|w| w.written.load(SeqCst)).sum::<u64>();
        let before = sum();
        std::thread::scope(|s| {
            for w in &writers {
                let mount = (w.who % 2) as usize;
                let (path, stop, may_fail) = (&paths[mount], &stop, &may_fail[mount]);
                s.spawn(move || w.run(path, from, stop, may_fail));
            }
            eventually("the writers get on", || sum() >= before + records);
            for &victim in victims {
                match victim {
                    2 => std::mem::replace(&mut server, Daemon::none()).kill(),
                    mount => {
                        std::mem::replace(&mut mounts[mount], Daemon::none()).kill();
                        let _ = rustix::mount::unmount(&paths[mount], rustix::mount::UnmountFlags::DETACH);
                    }
                }
            }
            if victims.contains(&2) {
                server = place.server(&more);
            }
            stop.store(true, SeqCst);
        });
        for &mount in victims.iter().filter(|v| **v < 2) {
            mounts[mount] = place.mount_at(names[mount], &[]);
        }
        for path in &paths {
            let file = File::open(path.join("shared")).expect("open");
            compared += writers.iter().map(|w| w.check(&file, round)).sum::<usize>();
        }
        let file = File::options().write(true).open(paths[0].join("shared")).expect("open");
        writers.iter().for_each(|w| w.settle(&file));
        file.sync_all().expect("sync");
        println!("round {}/{rounds}: killed {what}; {compared} records compared so far", round + 1);
    }
    mounts.into_iter().for_each(Daemon::stop);
    server.stop();
    let out = crate::harness::run(&["fsck", "--data", &place.text("data")]);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && said.contains(" 0 blocks damaged"), "{said}");
}
