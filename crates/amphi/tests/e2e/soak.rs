//! Soak: servers and mounts are killed again and again while programs on two mounts make checked files.
//!
//! A few rounds here; `cargo xtask soak` runs 200.

use crate::harness::{Daemon, Place, Random, eventually, pattern};
use rustix::fs::{Mode, OFlags, fsync, open};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Files of each worker at a time.
const FILES: u64 = 40;
/// Errno values that a program sees when its mount has been killed.
const GONE: [i32; 4] = [107, 103, 5, 2];

/// Content of a file: seed of its bytes, length.
type Content = (u64, usize);

/// The state that a worker knows to be on stable storage.
#[derive(Default)]
struct Known {
    files: BTreeMap<String, Content>,
    /// A name that was being changed when its mount was killed: its state before or after.
    unsure: Option<(String, [Option<Content>; 2])>,
}

struct Worker {
    who: u64,
    known: Mutex<Known>,
    done: AtomicU64,
    /// The mount of this program is killed in this round: from then on calls may fail.
    may_fail: AtomicBool,
}

/// Tells the workers to stop, also when the test fails in between: it would wait for them otherwise.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

impl Worker {
    /// Makes, renames, overwrites and removes files until the test ends it, or until its mount has ended if it is the
    /// one that is killed.
    fn run(&self, mount: &Path, random: &mut Random, stop: &AtomicBool) {
        let dir = mount.join(format!("w{}", self.who));
        while !stop.load(SeqCst) {
            let name = format!("f{}", random.below(FILES));
            let old = self.known.lock().expect("lock").files.get(&name).copied();
            let new = match (random.below(5), old) {
                (0, Some(_)) => None,
                _ => Some((random.below(1 << 40), [0, 100, 5000, 70_000, 3 << 20][random.below(5) as usize])),
            };
            self.known.lock().expect("lock").unsure = Some((name.clone(), [old, new]));
            let made = match new {
                None => fs::remove_file(dir.join(&name)),
                Some((seed, len)) => write(&dir, &name, &pattern(seed, len), random.below(2) == 0),
            };
            let mut known = self.known.lock().expect("lock");
            match made {
                Ok(()) => {
                    match new {
                        Some(state) => known.files.insert(name, state),
                        None => known.files.remove(&name),
                    };
                    known.unsure = None;
                    self.done.fetch_add(1, SeqCst);
                }
                Err(e) if self.may_fail.load(SeqCst) && e.raw_os_error().is_some_and(|n| GONE.contains(&n)) => return,
                Err(e) => panic!("worker {} on {name}: {e}", self.who),
            }
        }
    }

    /// Compares all known state through another mount, and determines the result of the unsure name.
    fn check(&self, mount: &Path) {
        let dir = mount.join(format!("w{}", self.who));
        let mut known = self.known.lock().expect("lock");
        if let Some((name, states)) = known.unsure.take() {
            let found = fs::read(dir.join(&name)).ok();
            let fits = |s: &&Option<Content>| match (s, &found) {
                (None, None) => true,
                (Some((seed, len)), Some(bytes)) => *bytes == pattern(*seed, *len),
                _ => false,
            };
            let state = states.iter().find(fits);
            let Some(state) = state else {
                panic!("w{}/{name} is neither as before nor as after: {:?} bytes", self.who, found.map(|b| b.len()))
            };
            match state {
                Some(s) => known.files.insert(name, *s),
                None => known.files.remove(&name),
            };
        }
        for (name, (seed, len)) in &known.files {
            let bytes = fs::read(dir.join(name)).unwrap_or_else(|e| panic!("w{}/{name}: {e}", self.who));
            assert!(bytes == pattern(*seed, *len), "w{}/{name}: {} of {len} bytes, or others", self.who, bytes.len());
        }
        let listed = fs::read_dir(&dir).expect("list").filter(|e| {
            let name = e.as_ref().expect("entry").file_name();
            !name.to_string_lossy().starts_with("new")
        });
        assert_eq!(listed.count(), known.files.len(), "no other names in w{}", self.who);
    }
}

/// Writes a new file and moves it to its place, or the same through O_DIRECT; stable on return.
fn write(dir: &Path, name: &str, bytes: &[u8], direct: bool) -> std::io::Result<()> {
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY;
    let flags = if direct { flags | OFlags::DIRECT } else { flags };
    let made = dir.join(format!("new-{name}"));
    let f = fs::File::from(open(&made, flags, Mode::from_raw_mode(0o644))?);
    let mut buf = amphi_env::Buf::zeroed(bytes.len());
    buf.copy_from_slice(bytes);
    f.write_all_at(&buf, 0)?;
    fsync(&f)?;
    fs::rename(made, dir.join(name))?;
    fsync(fs::File::open(dir)?)?;
    Ok(())
}

fn clean(mount: &Path, who: u64) {
    for entry in fs::read_dir(mount.join(format!("w{who}"))).expect("list").flatten() {
        if entry.file_name().to_string_lossy().starts_with("new") {
            fs::remove_file(entry.path()).expect("remove what was half made");
        }
    }
}

/// Goal: Promise S5, S9, S10, S12 for several mounts: after kills of any process, in any order, acknowledged stable
/// state is there as a whole, and every mount sees it. Only the killed mount's own programs see an error. Method: two
/// mounts with a worker on each. Every round kills a server or a mount (each once in random order, then random ones, at
/// random moments) and starts it again. In between everything is compared by the other mount, and the zones are checked
/// at the end.
#[test]
fn kills_of_servers_and_mounts_lose_nothing() {
    kills(1);
}

/// Goal and method: the same with three servers.
#[test]
fn kills_of_three_servers_and_mounts_lose_nothing() {
    kills(3);
}

fn kills(servers: usize) {
    // The mounts, then the servers.
    let victims = 2 + servers;
    let asked: Option<usize> = std::env::var("AMPHI_SOAK_ROUNDS").ok().and_then(|r| r.parse().ok());
    let rounds = asked.unwrap_or(0).max(victims);
    let seed = std::env::var("AMPHI_SOAK_SEED").ok().and_then(|r| r.parse().ok()).unwrap_or(1);
    let mut random = Random::new(seed);
    let mut first: Vec<usize> = (0..victims).collect();
    for at in (1..victims).rev() {
        first.swap(at, random.below(at as u64 + 1) as usize);
    }
    let mut killed = vec![0; victims];
    let place = Place::new();
    let targets = ["--targets", "3"];
    let mut running: Vec<Daemon> = (0..servers).map(|k| place.member(k, &targets)).collect();
    let names = ["a", "b"];
    let mount_one = |which: usize| place.mount_at(names[which], &["--cache", "32M"]);
    let mut mounts: Vec<Daemon> = (0..2).map(mount_one).collect();
    let paths: Vec<PathBuf> = names.iter().map(|n| place.path(n)).collect();
    let worker =
        |who| Worker { who, known: Mutex::default(), done: AtomicU64::new(0), may_fail: AtomicBool::new(false) };
    let workers: Vec<Worker> = (0..2).map(worker).collect();
    for w in &workers {
        fs::create_dir(paths[0].join(format!("w{}", w.who))).expect("mkdir");
    }
    for round in 0..rounds {
        let stop = AtomicBool::new(false);
        let victim = first.get(round).copied().unwrap_or_else(|| random.below(victims as u64) as usize);
        killed[victim] += 1;
        workers.iter().for_each(|w| w.may_fail.store(false, SeqCst));
        let (steps, moment) = (2 + random.below(12), random.below(30_000));
        std::thread::scope(|s| {
            let _stops = Stops(&stop);
            for (worker, path) in workers.iter().zip(&paths) {
                let (stop, mut own) = (&stop, Random::new(random.below(u64::MAX)));
                s.spawn(move || worker.run(path, &mut own, stop));
            }
            let before: u64 = workers.iter().map(|w| w.done.load(SeqCst)).sum();
            eventually("the workers get on", || {
                workers.iter().map(|w| w.done.load(SeqCst)).sum::<u64>() >= before + steps
            });
            for _ in 0..moment {
                std::hint::spin_loop();
            }
            if let Some(k) = victim.checked_sub(2) {
                std::mem::replace(&mut running[k], Daemon::none()).kill();
                running[k] = place.member(k, &targets);
            } else {
                workers[victim].may_fail.store(true, SeqCst);
                std::mem::replace(&mut mounts[victim], Daemon::none()).kill();
                let _ = rustix::mount::unmount(&paths[victim], rustix::mount::UnmountFlags::DETACH);
            }
            let before: u64 = workers.iter().map(|w| w.done.load(SeqCst)).sum();
            eventually("the others go on", || workers.iter().map(|w| w.done.load(SeqCst)).sum::<u64>() > before + 2);
        });
        if victim < 2 {
            mounts[victim] = mount_one(victim);
        }
        for worker in &workers {
            // Each file is read through the mount that did not make it, then through its own.
            worker.check(&paths[1 - worker.who as usize]);
            worker.check(&paths[worker.who as usize]);
            clean(&paths[0], worker.who);
        }
        if asked.is_some() {
            let what = ["the first mount", "the second mount", "server 0", "server 1", "server 2"][victim];
            let files: usize = workers.iter().map(|w| w.known.lock().expect("lock").files.len()).sum();
            println!("round {}/{rounds}: killed {what}; {files} files compared", round + 1);
        }
    }
    assert!(killed.iter().all(|times| *times > 0), "each is killed at least once: {killed:?}");
    mounts.into_iter().for_each(Daemon::stop);
    running.into_iter().rev().for_each(Daemon::stop);
    place.fsck_members(servers);
}
