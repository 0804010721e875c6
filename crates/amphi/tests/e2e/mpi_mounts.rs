//! MPI jobs whose ranks reach one file over two mounts, with the MPI-IO cache, on each MPI library that is installed.
//!
//! Four ranks, two on each mount, of which the hints make two nodes. The cache's statistics and the mounts' counters
//! are exact, so they are compared as they are.

use crate::harness::{Daemon, Place, counter};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MPIS: [&str; 2] = ["openmpi", "mpich"];
const RECORD: usize = 47_008;
const RECORDS: usize = 160;

/// Two mounts of one server.
struct Mounts {
    place: Place,
    _server: Daemon,
    _mounts: [Daemon; 2],
}

impl Mounts {
    fn new() -> Mounts {
        let place = Place::new();
        let server = place.server(&[]);
        let mounts = [place.mount_at("a", &[]), place.mount_at("b", &[])];
        Mounts { place, _server: server, _mounts: mounts }
    }

    /// A file as each mount has it.
    fn paths(&self, name: &str) -> [PathBuf; 2] {
        ["a", "b"].map(|mount| self.place.path(mount).join(name))
    }

    /// Returns how many locks were called back, from either mount.
    fn callbacks(&self) -> u64 {
        ["a", "b"].iter().map(|m| counter(&self.place.path(m), "lock_callback")).sum()
    }
}

/// The shims and the program of these tests, built for each MPI library.
struct Tools(tempfile::TempDir);

impl Tools {
    fn new() -> Tools {
        let tools = Tools(tempfile::tempdir().unwrap());
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let run = |command: &mut Command| {
            let output = command.current_dir(&root).output().unwrap();
            assert!(output.status.success(), "{command:?}: {}", text(&output));
        };
        run(Command::new(env!("CARGO")).args(["build", "--locked", "--quiet", "-p", "amphi-mpiio"]));
        // The test lies in TARGET/PROFILE/deps, the library in TARGET/debug.
        let test = std::env::current_exe().unwrap();
        let library = test.ancestors().nth(3).unwrap().join("debug/libamphi_mpiio.a");
        run(Command::new(root.join("scripts/mpiio")).arg(library).arg(tools.0.path()));
        let source = root.join("crates/mpiio/tests/programs/mounts.c");
        for mpi in MPIS {
            run(Command::new(format!("mpicc.{mpi}"))
                .args(["-O1", "-Wall", "-Werror", "-pthread", "-o"])
                .arg(tools.at("mounts", mpi))
                .arg(&source));
        }
        tools
    }

    fn at(&self, name: &str, mpi: &str) -> PathBuf {
        self.0.path().join(format!("{name}.{mpi}"))
    }

    /// Four ranks of the program do this to a file; it ends after a minute at the latest, with code 124.
    fn job(&self, mpi: &str, hints: &str, what: &str, paths: &[PathBuf; 2], victim: &str) -> Output {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "60"]).arg(format!("mpirun.{mpi}")).args(["-np", "4"]);
        let shim = self.0.path().join(format!("libamphi_mpiio_{mpi}.so"));
        if mpi == "openmpi" {
            command.args(["--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]);
            command.arg("-x").arg(format!("LD_PRELOAD={}", shim.display()));
        } else {
            command.args(["-genv", "LD_PRELOAD"]).arg(&shim);
        }
        let _ = std::fs::remove_file(self.at("stats", mpi));
        command.arg(self.at("mounts", mpi)).arg(what).args(paths).arg(victim);
        command.env("AMPHI_MPIIO_STATS", self.at("stats", mpi));
        command.env("AMPHI_MPIIO_HINTS", format!("cache_ranks_per_node=2;{hints}"));
        command.output().unwrap()
    }

    /// The same, and every rank has to find everything right. Returns its output and its statistics.
    fn good_job(&self, mpi: &str, hints: &str, what: &str, paths: &[PathBuf; 2]) -> (String, String) {
        let printed = text(&self.job(mpi, hints, what, paths, ""));
        assert!(printed.lines().any(|line| line == "ok"), "{mpi} with '{hints}': {what}: {printed}");
        let stats = std::fs::read_to_string(self.at("stats", mpi)).unwrap();
        assert_eq!(value(&stats, "nodes"), 2, "{mpi} with '{hints}': {stats}");
        (printed, stats)
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A counter of the statistics.
fn value(stats: &str, name: &str) -> u64 {
    let mut words = stats.split_whitespace().filter_map(|word| word.split_once('='));
    let found = words.find(|(key, _)| *key == name).and_then(|(_, value)| value.parse().ok());
    found.unwrap_or_else(|| panic!("no {name}: {stats}"))
}

/// The bytes of the records, as the program writes them in a round.
fn records(round: usize) -> Vec<u8> {
    (0..RECORDS).flat_map(|record| (0..RECORD).map(move |at| (round * 101 + record * 7 + at / 11) as u8)).collect()
}

/// Goal: a job whose ranks reach the file over two mounts writes strided records of 47,008 bytes. Only the job's last
/// request is unaligned. No mount calls back the other one's locks, except for the lock of the mount that made the
/// file. The bytes are right on both mounts. Method: the cache's statistics, the mounts' counters, a plain read on each
/// mount.
#[test]
fn a_job_on_two_mounts_asks_no_locks_back() {
    let (tools, mounts) = (Tools::new(), Mounts::new());
    let expected = records(0);
    for mpi in MPIS {
        let paths = mounts.paths(mpi);
        let before = mounts.callbacks();
        let (_, stats) = tools.good_job(mpi, "", "records", &paths);
        let asked_back = mounts.callbacks() - before;
        assert_eq!(value(&stats, "bytes_written"), expected.len() as u64, "{mpi}: {stats}");
        assert_eq!(value(&stats, "fs_writes"), value(&stats, "fs_writes_aligned"), "{mpi}: {stats}");
        assert!((1..=16).contains(&value(&stats, "fs_writes")) && value(&stats, "fs_reads") == 0, "{mpi}: {stats}");
        assert!(asked_back <= 1, "{mpi}: {asked_back} locks were asked back");
        for path in &paths {
            assert!(std::fs::read(path).unwrap() == expected, "{mpi}: other bytes in {}", path.display());
        }
    }
}

/// Goal: pages of which a job on two mounts has written thousands of small parts are written back without a lock for
/// each part. If the job declares that no other program writes, they are written as a few long runs. The bytes are
/// right on both mounts. Method: the cache's statistics, the mounts' counters of requested locks, and a plain read on
/// each mount.
#[test]
fn small_parts_of_pages_leave_under_one_lock() {
    const SPECKS: usize = 4096;
    let (tools, mounts) = (Tools::new(), Mounts::new());
    let mut expected = vec![0u8; SPECKS * 64];
    for (speck, bytes) in expected.chunks_mut(64).enumerate() {
        bytes[..4].copy_from_slice(&[speck as u8, (speck >> 8) as u8, b'x', b'y']);
    }
    expected.truncate((SPECKS - 1) * 64 + 4);
    let asked = || ["a", "b"].iter().map(|m| counter(&mounts.place.path(m), "lock_enqueue")).sum::<u64>();
    for mpi in MPIS {
        let paths = mounts.paths(mpi);
        let before = asked();
        let (_, stats) = tools.good_job(mpi, "cache_page_size=64K;cache_flush_size=64K", "specks", &paths);
        assert!(value(&stats, "fs_writes") >= SPECKS as u64, "{mpi}: {stats}");
        let locks = asked() - before;
        assert!(locks < 100, "{mpi}: {locks} locks for {SPECKS} parts");
        let hints = "cache_page_size=64K;cache_flush_size=64K;cache_merge_parts=enable";
        let merged = mounts.paths(&format!("{mpi}-merged"));
        let (_, stats) = tools.good_job(mpi, hints, "specks", &merged);
        assert!(value(&stats, "fs_writes") < 64, "{mpi}: {stats}");
        for path in paths.iter().chain(&merged) {
            assert!(std::fs::read(path).unwrap() == expected, "{mpi}: other bytes in {}", path.display());
        }
    }
}

/// Goal: pages move to the node that continues to write or read them, with their dirty bytes, from one mount to the
/// other and back. All of them are written back as whole pages, and the bytes are right on both mounts. Method: ranks
/// of either node take turns with all pages. The program computes how many pages have to move, and the statistics have
/// to agree. For these pages the owner must send no more requests.
#[test]
fn pages_move_between_mounts() {
    const PAGES: u64 = 32;
    const PAGE: u64 = 64 << 10;
    // Pages written back because they were idle for a while would be counted as well.
    const HINTS: &str = "cache_page_size=64K;cache_flush_size=64K;cache_migration=enable;cache_idle_time=0";
    let (tools, mounts) = (Tools::new(), Mounts::new());
    let expected: Vec<u8> =
        (0..PAGES).flat_map(|page| (0..PAGE).map(move |at| (2 * 31 + page * 7 + at / 13) as u8)).collect();
    for mpi in MPIS {
        for (transport, name) in [("sockets", "s"), ("mpi", "m")] {
            let paths = mounts.paths(&format!("{mpi}-{name}"));
            let hints = format!("{HINTS};cache_transport={transport}");
            let before = mounts.callbacks();
            let (printed, stats) = tools.good_job(mpi, &hints, "moves", &paths);
            let asked_back = mounts.callbacks() - before;
            let line = printed.lines().find(|line| line.starts_with("moved")).unwrap();
            let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            let [moved, runs] = numbers[..] else { panic!("{printed}") };
            assert_eq!(value(&stats, "migrations"), moved, "{mpi}: {stats}");
            // Until the second reference moves a page, each reference is a message; the other messages are for four
            // syncs by four ranks. If another node writes a run, the lock on the run moves there.
            assert_eq!(value(&stats, "asked"), 2 * moved + 4 * 4, "{mpi}: {stats}");
            // The file lies in two objects, each of which has locks of its own: its first MiB, and the rest.
            assert!(asked_back <= 3 * (runs + 1), "{mpi}: {asked_back} locks were asked back for {runs} runs");
            // Each turn writes out all pages once.
            assert_eq!(value(&stats, "fs_writes"), 3 * runs, "{mpi}: {stats}");
            assert_eq!(value(&stats, "fs_writes_aligned"), 3 * runs, "{mpi}: {stats}");
            for path in &paths {
                assert!(std::fs::read(path).unwrap() == expected, "{mpi}: other bytes in {}", path.display());
            }
        }
    }
}

/// Goal: a plain reader of the file, over either mount, sees all synced bytes of the job, and later ones. With a group
/// lock it sees all of them at once. Without a group lock, it sees the bytes that the cache has written; the cache
/// writes whole pages that are idle for a while. Method: ranks read with plain calls over the mount of the other node
/// and check each byte. For each reader that finds them in the group, its members leave it once.
#[test]
fn plain_readers_see_what_a_job_on_two_mounts_wrote() {
    let (tools, mounts) = (Tools::new(), Mounts::new());
    let expected = records(2);
    for mpi in MPIS {
        for (name, hints) in [("plain", "cache_idle_time=100"), ("group", "cache_group_lock=enable;cache_idle_time=0")]
        {
            let paths = mounts.paths(&format!("{mpi}-{name}"));
            let (_, stats) = tools.good_job(mpi, &format!("cache_page_size=64K;{hints}"), "reader", &paths);
            let yields = if name == "group" { 6 } else { 0 };
            assert_eq!(value(&stats, "yields"), yields, "{mpi}, {name}: {stats}");
            for path in &paths {
                assert!(std::fs::read(path).unwrap() == expected, "{mpi}: other bytes in {}", path.display());
            }
        }
    }
}

/// Goal: if a rank is killed in the middle of a call, whether it is a leader or not, the job ends. Synced bytes stay,
/// on both mounts, and every program can read and write them as before. Method: all ranks write the same pages, which
/// move, and a thread kills one of them. Then the file is read, written over one mount, and read over the other one.
#[test]
fn a_killed_rank_leaves_both_mounts_in_order() {
    let (tools, mounts) = (Tools::new(), Mounts::new());
    let synced = records(0);
    for mpi in MPIS {
        for (victim, hints) in [
            ("1", "cache_migration=enable"),
            ("2", "cache_migration=enable;cache_transport=mpi"),
            ("2", "cache_group_lock=enable"),
        ] {
            let paths = mounts.paths(&format!("{mpi}-{victim}-{}", hints.len()));
            let hints = format!("cache_page_size=64K;cache_flush_size=64K;{hints}");
            let output = tools.job(mpi, &hints, "killed", &paths, victim);
            let printed = text(&output);
            assert!(!output.status.success(), "{mpi}, {victim}: {printed}");
            assert_ne!(output.status.code(), Some(124), "{mpi}, {victim}: the job hangs: {printed}");
            for path in &paths {
                let seen = std::fs::read(path).unwrap();
                assert!(seen.starts_with(&synced), "{mpi}, {victim}: lost bytes in {}: {printed}", path.display());
            }
            std::fs::write(&paths[0], &synced[7..]).unwrap();
            assert!(std::fs::read(&paths[1]).unwrap() == synced[7..], "{mpi}, {victim}: other bytes");
            std::fs::remove_file(&paths[1]).unwrap();
        }
    }
}
