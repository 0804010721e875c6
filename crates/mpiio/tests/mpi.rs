//! The shims over the MPI libraries that `scripts/setup` installs: real programs under mpirun, with and without cache.
//!
//! Each library's programs and shim are built only once. One job runs at a time: MPI ranks that wait spin.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const MPIS: [&str; 2] = ["openmpi", "mpich"];

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}:\n{}", text(&output));
    output
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::parent).expect("the workspace").to_path_buf()
}

/// The folder of shims and programs once they are built.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("mpiio");
        std::fs::create_dir_all(&out).unwrap();
        run(Command::new(env!("CARGO"))
            .args(["build", "--locked", "--quiet", "-p", "amphi-mpiio"])
            .current_dir(root()));
        // The test lies in TARGET/PROFILE/deps, the library in TARGET/debug.
        let test = std::env::current_exe().unwrap();
        let target = test.ancestors().nth(3).unwrap().to_path_buf();
        run(Command::new(root().join("scripts/mpiio")).arg(target.join("debug/libamphi_mpiio.a")).arg(&out));
        for mpi in MPIS {
            let sources = format!("{}/tests/programs", env!("CARGO_MANIFEST_DIR"));
            for program in [
                "views",
                "pointers",
                "atomic",
                "btio",
                "collective",
                "threads",
                "faults",
                "opens",
                "borrowed",
                "moves",
                "copies",
                "balance",
                "rounds",
            ] {
                let mut compile = Command::new(format!("mpicc.{mpi}"));
                run(compile
                    .args(["-O1", "-Wall", "-Werror", "-o"])
                    .arg(out.join(format!("{program}.{mpi}")))
                    .arg(format!("{sources}/{program}.c")));
            }
            for program in ["modern", "classic"] {
                run(Command::new(format!("mpifort.{mpi}"))
                    .arg("-o")
                    .arg(out.join(format!("{program}.{mpi}")))
                    .arg(format!("{sources}/{program}.f90")));
            }
        }
        out
    })
}

/// Keeps other jobs away.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Job {
    mpi: &'static str,
    ranks: u32,
    cached: bool,
    hints: &'static str,
}

impl Job {
    fn new(mpi: &'static str) -> Job {
        Job { mpi, ranks: 4, cached: true, hints: "" }
    }

    /// The command that starts the program; it ends after two minutes at the latest.
    fn command(&self, program: &str, arguments: &[&str], stats: &Path) -> Command {
        self.command_of(&built().join(format!("{program}.{}", self.mpi)), arguments, stats)
    }

    /// Works as `command`, for a program of any place.
    fn command_of(&self, program: &Path, arguments: &[&str], stats: &Path) -> Command {
        let shim = built().join(format!("libamphi_mpiio_{}.so", self.mpi));
        let ranks = self.ranks.to_string();
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "120"]).arg(format!("mpirun.{}", self.mpi)).args(["-np", &ranks]);
        if self.mpi == "openmpi" {
            command.args(["--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]);
            if self.cached {
                command.arg("-x").arg(format!("LD_PRELOAD={}", shim.display()));
            }
        } else if self.cached {
            command.arg("-genv").arg("LD_PRELOAD").arg(&shim);
        }
        command.arg(program).args(arguments);
        command.env("AMPHI_MPIIO_HINTS", self.hints).env("AMPHI_MPIIO_STATS", stats);
        command
    }

    /// Runs a program on a new file and requires that the program succeeds; returns the printed text, the file and the
    /// statistics.
    fn run(&self, program: &str) -> (String, Vec<u8>, String) {
        let directory = fresh(&format!("{program}-{}", self.mpi));
        let (path, stats) = (directory.join("file"), directory.join("stats"));
        let output = run(&mut self.command(program, &[path.to_str().unwrap()], &stats));
        let printed = text(&output);
        assert!(printed.lines().any(|l| l == "ok"), "{program} on {}: {printed}", self.mpi);
        (printed, std::fs::read(&path).unwrap(), std::fs::read_to_string(&stats).unwrap_or_default())
    }
}

/// An empty directory of this name.
fn fresh(name: &str) -> PathBuf {
    let directory = built().join("run").join(name);
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// The value of a counter in a line of statistics.
fn counter(line: &str, name: &str) -> u64 {
    let prefix = format!("{name}=");
    let found = line.split_whitespace().find_map(|word| word.strip_prefix(prefix.as_str()));
    found.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in: {line}"))
}

/// Goal: no function of the library that moves data or reads state of the cache bypasses the shim. Method: the names of
/// all `MPI_File_*` functions that the library exports, except those that may be forwarded unchanged, are compared with
/// the names in the shim, in both spellings.
#[test]
fn every_file_function_is_covered() {
    const FORWARDED: [&str; 14] = [
        "c2f",
        "f2c",
        "call_errhandler",
        "create_errhandler",
        "delete",
        "get_amode",
        "get_errhandler",
        "get_group",
        "get_type_extent",
        "get_type_extent_c",
        "set_errhandler",
        "set_info",
        "fromint",
        "toint",
    ];
    let names = |path: &Path| -> BTreeSet<String> {
        let output = run(Command::new("nm").args(["-D", "--defined-only"]).arg(path));
        let listing = text(&output);
        let symbols = listing.lines().filter_map(|l| l.split_whitespace().last());
        symbols.filter(|s| s.starts_with("MPI_File_") || s.starts_with("PMPI_File_")).map(String::from).collect()
    };
    for (mpi, library) in [("openmpi", "libmpi.so.40"), ("mpich", "libmpich.so.12")] {
        let shim = built().join(format!("libamphi_mpiio_{mpi}.so"));
        let listing = text(&run(Command::new("ldd").arg(&shim)));
        let path = listing.lines().find(|l| l.contains(library)).and_then(|l| l.split_whitespace().nth(2));
        let library = names(Path::new(path.unwrap_or_else(|| panic!("{library} is no dependency: {listing}"))));
        assert!(library.len() > 100, "{mpi} has {} functions", library.len());
        let covered = names(&shim);
        let is_forwarded = |name: &str| {
            let short = name.trim_start_matches("PMPI_File_").trim_start_matches("MPI_File_");
            FORWARDED.contains(&short)
        };
        let missing: Vec<_> = library.difference(&covered).filter(|n| !is_forwarded(n)).collect();
        assert!(missing.is_empty(), "{mpi}: not covered: {missing:?}");
    }
}

/// Goal: the file is byte for byte the file that the library itself produces, and all reads return the right bytes, for
/// derived types and calls of all kinds, with small and odd page sizes and memory for three pages. Method: `views`
/// checks the bytes that it reads; its file is compared with that of a run without cache.
#[test]
fn files_are_identical_with_and_without_cache() {
    let _alone = alone();
    for mpi in MPIS {
        let native = Job { cached: false, ..Job::new(mpi) }.run("views").1;
        for hints in [
            "",
            "cache_page_size=4K;cache_limit=12K",
            "cache_page_size=333;cache_limit=100K;cache_bypass_size=2K",
            "cache_page_size=4K;cache_flush_size=8K;cache_ranks_per_node=2",
            "cache_page_size=100;cache_flush_size=300;cache_domains=even",
            "cache_page_size=64K;cache_direct_io=enable",
            "cache_page_size=192K;cache_limit=1;cache_ranks_per_node=2",
        ] {
            let (_, cached, stats) = Job { hints, ..Job::new(mpi) }.run("views");
            assert!(cached == native, "{mpi} with '{hints}': another file");
            assert!(counter(&stats, "calls_write") > 0, "{mpi} with '{hints}' was not cached: {stats}");
        }
    }
}

/// Goal: pointers, lengths, modes, errors and consistency between handles follow MPI, and messages of the program
/// arrive while their sender waits in a call on a file. Method: `pointers` checks its reads; it runs with 2 and 4
/// ranks, on one node and with each rank on a node of its own.
#[test]
fn pointers_lengths_and_modes() {
    let _alone = alone();
    for mpi in MPIS {
        for (ranks, hints) in [(2, "cache_page_size=4K"), (4, ""), (4, "cache_page_size=64;cache_ranks_per_node=1")] {
            Job { ranks, hints, ..Job::new(mpi) }.run("pointers");
        }
    }
}

/// Goal: a rank that has a second handle of its own on a file sees through it the changes made through the first one,
/// and the other way round; PnetCDF relies on this without a sync. Method: `borrowed` checks the bytes that it reads,
/// also after the first handle was closed; it runs on one, two and four nodes.
#[test]
fn a_handle_of_one_rank_shares_the_cache_of_all() {
    let _alone = alone();
    for mpi in MPIS {
        for hints in [
            "",
            "cache_page_size=64;cache_limit=1K",
            "cache_ranks_per_node=2;cache_page_size=4K;cache_flush_size=4K",
            "cache_ranks_per_node=1;cache_page_size=100;cache_flush_size=300",
        ] {
            let (_, file, stats) = Job { hints, ..Job::new(mpi) }.run("borrowed");
            assert_eq!((file.len(), &file[2600..]), (2603, b"end".as_slice()), "{mpi} with '{hints}'");
            assert!(counter(&stats, "calls_write") > 0, "{mpi} with '{hints}' was not cached: {stats}");
        }
    }
}

/// Goal: calls of many ranges are atomic in atomic mode. Method: 450 reads of bytes that all ranks overwrite at the
/// same time; no read may return two values.
#[test]
fn atomic_mode_mixes_nothing() {
    let _alone = alone();
    for mpi in MPIS {
        for hints in
            ["cache_page_size=4K", "cache_page_size=4K;cache_limit=12K;cache_ranks_per_node=2;cache_flush_size=8K"]
        {
            let (printed, _, stats) = Job { hints, ..Job::new(mpi) }.run("atomic");
            assert!(printed.contains("0 mixed"), "{mpi} with '{hints}': {printed}");
            assert!(counter(&stats, "lock_waits") > 0, "{mpi} with '{hints}': the ranks never met");
            assert_eq!(counter(&stats, "nodes"), if hints.contains("per_node") { 2 } else { 1 }, "{mpi}: {stats}");
        }
    }
}

/// Goal: 46,080 writes of 480 bytes are written back as at most 30 aligned ones, and as many reads as at most 30.
/// Method: the statistics of both handles of `btio`; the file is compared with the one that the library itself writes.
#[test]
fn many_small_writes_leave_as_few_aligned_ones() {
    let _alone = alone();
    for mpi in MPIS {
        let native = Job { cached: false, ..Job::new(mpi) }.run("btio").1;
        let (_, cached, stats) = Job::new(mpi).run("btio");
        assert!(cached == native && native.len() == 22_118_400, "{mpi}: another file");
        let lines: Vec<&str> = stats.lines().collect();
        assert_eq!(lines.len(), 2, "{mpi}: {stats}");
        assert_eq!(counter(lines[0], "calls_write"), 46_080);
        assert!(counter(lines[0], "fs_writes") <= 30, "{mpi}: {stats}");
        assert_eq!(counter(lines[0], "fs_writes"), counter(lines[0], "fs_writes_aligned"));
        assert_eq!(counter(lines[0], "fs_reads"), 0, "{mpi}: nothing is read to write");
        assert_eq!(counter(lines[1], "calls_read"), 46_080);
        assert!(counter(lines[1], "fs_reads") <= 30, "{mpi}: {stats}");
    }
}

/// The file that `collective` makes with four ranks.
fn file_of_collective() -> Vec<u8> {
    const RECORD: usize = 700;
    const RECORDS: usize = 200;
    const STEPS: usize = 3;
    const RANKS: usize = 4;
    let records = (0..STEPS).flat_map(|step| (0..RECORDS * RANKS).map(move |record| (step, record)));
    let bytes = records.flat_map(|(step, record)| (0..RECORD).map(move |i| (step * 31 + record * 7 + i) as u8));
    let mut file: Vec<u8> = bytes.collect();
    file[1000..21000].fill(b'z');
    file.extend([b'a'; 5000]);
    file
}

/// Goal: collective calls write the right file, with any division into domains; on several nodes the ranks exchange
/// their data instead of sending requests to the leaders of other nodes. Method: `collective` checks its reads and that
/// the wrong arguments of one rank delay no other one (the libraries themselves do not pass all of its checks);
/// messages to other nodes are counted with domains and without.
#[test]
fn collective_calls_exchange_their_data() {
    let _alone = alone();
    for mpi in MPIS {
        let small = "cache_page_size=4K;cache_flush_size=16K;cache_limit=1M;";
        let mut asked = Vec::new();
        for domains in [
            "cache_domains=cyclic",
            "cache_domains=even",
            "cache_domains=group-cyclic;cache_domain_group=3",
            "cache_ranks_per_node=2;cache_domains=even",
            "cache_ranks_per_node=3;cache_domains=group-cyclic",
            "cache_ranks_per_node=2;cache_domains=disable",
            "cache_ranks_per_node=2",
            "cache_ranks_per_node=1",
        ] {
            let hints = format!("{small}{domains}").leak();
            let (_, cached, stats) = Job { hints, ..Job::new(mpi) }.run("collective");
            assert!(cached == file_of_collective(), "{mpi} with '{hints}': another file");
            asked.push(counter(&stats, "asked"));
        }
        assert_eq!(asked[..3], [0; 3], "{mpi}: one node");
        assert!(asked[6] * 4 < asked[5], "{mpi}: {asked:?} messages");
    }
}

/// Goal: collective calls of 8-byte pieces over more pages than memory holds send about as many requests to the file
/// system as there are pages, as the library itself does: where that is ROMIO, also for pages with gaps. Bytes in the
/// gaps stay, and so does the file that `collective` makes, with wrong arguments of one rank. Method: `rounds` and
/// `collective` with memory for a few pages; the statistics are checked, and the file is compared with the one that the
/// library itself writes.
#[test]
fn small_pieces_of_collective_calls_leave_by_pages() {
    let _alone = alone();
    let hints = "cache_page_size=64K;cache_limit=512K;cache_flush_size=128K";
    for mpi in MPIS {
        let native = Job { cached: false, ..Job::new(mpi) }.run("rounds").1;
        let (_, cached, stats) = Job { hints, ..Job::new(mpi) }.run("rounds");
        assert!(cached == native, "{mpi}: another file");
        let pages = native.len() as u64 / (64 << 10) + 1;
        let bound = if mpi == "mpich" { 2 * pages } else { 480_000 / 4 };
        assert!(counter(&stats, "fs_writes") <= bound, "{mpi}, {pages} pages: {stats}");
        assert!(counter(&stats, "fs_reads") <= 3 * pages, "{mpi}, {pages} pages: {stats}");
        let pieces_too = "cache_page_size=64K;cache_limit=512K;cache_merge_parts=disable";
        let (_, cached, stats) = Job { hints: pieces_too, ..Job::new(mpi) }.run("rounds");
        assert!(cached == native, "{mpi}: another file without a merge");
        assert!(counter(&stats, "fs_writes") > 40_000, "{mpi}: parts stay parts where that is asked for: {stats}");
        let cached = Job { hints, ..Job::new(mpi) }.run("collective").1;
        assert!(cached == file_of_collective(), "{mpi}: another file of all kinds of calls");
    }
}

/// Goal: threads of a rank may use one handle at once, and a view that is not ours gives the file back whole.
/// Method: `threads` with small pages, so that threads and ranks meet in them.
#[test]
fn threads_and_other_representations() {
    let _alone = alone();
    for mpi in MPIS {
        Job { hints: "cache_page_size=4K;cache_limit=40K", ..Job::new(mpi) }.run("threads");
    }
}

/// Goal: a single rank and a hint keep the file with the library, and the statistics say why.
/// Method: one run each.
#[test]
fn it_steps_aside_and_says_why() {
    let _alone = alone();
    for mpi in MPIS {
        let (_, _, stats) = Job { ranks: 1, ..Job::new(mpi) }.run("views");
        assert!(stats.contains("not cached: a single rank"), "{mpi}: {stats}");
        let (_, _, stats) = Job { ranks: 2, hints: "romio_caching = disable ", ..Job::new(mpi) }.run("views");
        assert!(stats.contains("not cached: switched off"), "{mpi}: {stats}");
    }
}

/// Returns whether any process has the memory of a cache of this file, or a file below this directory, open.
fn is_in_use(directory: &Path) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let descriptors = processes.filter_map(|p| std::fs::read_dir(p.path().join("fd")).ok()).flatten().flatten();
    let mut links = descriptors.filter_map(|d| std::fs::read_link(d.path()).ok());
    let open = links.any(|link| link.starts_with(directory));
    open || !amphi_mpiio::live::find(&directory.join("file")).unwrap_or_default().is_empty()
}

/// Goal: nothing that was written is lost when a program forgets to close a file or the disk is full for a while. A
/// late error reaches every rank. If a rank is killed, the job ends and the file has what was synced. No file or
/// process remains. Method: `faults`; the file and the open descriptors of all processes are checked afterwards.
#[test]
fn faults_are_clear_and_lose_nothing() {
    let _alone = alone();
    for mpi in MPIS {
        let expected: Vec<u8> = (0..40u32).flat_map(|i| vec![b'a' + (i % 4) as u8; 1000]).collect();
        for (fault, hints) in [
            ("finalize", ""),
            ("finalize", MESSAGES),
            // Everything that the others wrote through a rank that is in MPI_Finalize is in the file, too.
            ("late", "cache_ranks_per_node=1;cache_page_size=4K;cache_flush_size=4K;cache_migration=disable"),
            ("late", MESSAGES),
            ("callback", ""),
            ("callback", "cache_ranks_per_node=2;cache_page_size=4K;cache_flush_size=4K"),
            ("exit", ""),
            ("exit", MESSAGES),
            ("abort", ""),
            ("abort", "cache_ranks_per_node=2;cache_page_size=4K;cache_flush_size=4K"),
            ("abort", MESSAGES),
            ("handler", ""),
            ("handler", "cache_ranks_per_node=2;cache_page_size=4K;cache_flush_size=4K"),
            ("full", ""),
            ("full", "cache_ranks_per_node=2;cache_page_size=4K;cache_flush_size=4K"),
            ("killed", ""),
            ("killed", "cache_ranks_per_node=1;cache_page_size=4K;cache_flush_size=4K"),
            ("killed", MESSAGES),
        ] {
            let directory = fresh(&format!("{fault}-{mpi}"));
            let (path, stats) = (directory.join("file"), directory.join("stats"));
            let mut command =
                Job { hints, ..Job::new(mpi) }.command("faults", &[path.to_str().unwrap(), fault], &stats);
            let output = command.output().unwrap();
            let printed = text(&output);
            assert_ne!(output.status.code(), Some(124), "{mpi}: {fault}: the job hangs: {printed}");
            match fault {
                "killed" => {
                    assert!(!output.status.success(), "{mpi}: {printed}");
                    assert!(std::fs::read(&path).unwrap().starts_with(&expected), "{mpi}: {printed}");
                }
                "abort" => {
                    assert!(!output.status.success(), "{mpi}: {printed}");
                    assert!(std::fs::read(&path).unwrap() == expected, "{mpi} with '{hints}': {printed}");
                }
                "handler" => assert!(std::fs::read(&path).unwrap().starts_with(&expected), "{mpi}: {printed}"),
                "late" | "callback" => {
                    assert!(output.status.success() && printed.contains("ok"), "{mpi} with '{hints}': {printed}");
                    assert_eq!(printed.contains("still open"), fault == "late", "{mpi}: {printed}");
                    let mut expected = expected.clone();
                    (0..4).for_each(|i| expected[i * 10000..][..4].copy_from_slice(b"late"));
                    assert!(std::fs::read(&path).unwrap() == expected, "{mpi} with '{hints}': {printed}");
                }
                // MPICH's launcher ends the other ranks as soon as one is gone, so another node's bytes may be lost.
                "exit" if !hints.is_empty() => {}
                "exit" => assert!(std::fs::read(&path).unwrap() == expected, "{mpi}: {printed}"),
                "finalize" => {
                    assert!(printed.contains("still open at MPI_Finalize"), "{mpi}: {printed}");
                    assert!(std::fs::read(&path).unwrap() == expected, "{mpi}: {printed}");
                }
                _ => assert!(output.status.success() && printed.contains("ok"), "{mpi}: {printed}"),
            }
            // A launcher may return before the last rank of a job that it ended is gone.
            let mut looks = 0..200;
            while is_in_use(&directory) {
                assert!(looks.next().is_some(), "{mpi}: {fault}: something is left behind");
                run(Command::new("sleep").arg("0.1"));
            }
        }
    }
}

/// Goal: a full disk is an error of the right class on every rank, and the written data is in the file when there is
/// space again. Method: `faults` on a file system of its own that a ballast fills, seen by this job alone.
#[test]
fn a_full_disk_loses_nothing() {
    let _alone = alone();
    for mpi in MPIS {
        for hints in ["", "cache_ranks_per_node=2;cache_page_size=4K;cache_flush_size=4K"] {
            let directory = fresh(&format!("nospace-{mpi}"));
            let (full, copy, stats) = (directory.join("full"), directory.join("copy"), directory.join("stats"));
            std::fs::create_dir(&full).unwrap();
            let (path, ballast) = (full.join("file"), full.join("ballast"));
            let arguments = [path.to_str().unwrap(), "nospace", ballast.to_str().unwrap()];
            let job = Job { hints, ..Job::new(mpi) }.command("faults", &arguments, &stats);
            let script = "mount -t tmpfs -o size=64k none $1 && head -c 65536 /dev/zero >$1/ballast; \
                          copy=$2; file=$1/file; shift 2; \"$@\" && cp $file $copy";
            let mut command = Command::new("unshare");
            command.args(["-rm", "sh", "-c", script, "sh"]).arg(&full).arg(&copy);
            command.arg(job.get_program()).args(job.get_args());
            job.get_envs().for_each(|(name, value)| {
                command.env(name, value.unwrap_or_default());
            });
            let output = run(&mut command);
            assert!(text(&output).lines().any(|l| l == "ok"), "{mpi} with '{hints}': {}", text(&output));
            let expected: Vec<u8> = (0..40u32).flat_map(|i| vec![b'a' + (i % 4) as u8; 1000]).collect();
            assert!(std::fs::read(&copy).unwrap() == expected, "{mpi} with '{hints}': another file");
        }
    }
}

/// Goal: the following cases are either served or left to the library with a message, and no rank waits for ever: hints
/// that differ between ranks, a file that two communicators have open, a rank without memory or descriptors, leaders
/// that cannot be reached, a path that is another file on some rank, names with a colon, a view that the library
/// refuses, a child process, and calls of more than 2 GiB. Method: `opens` checks the bytes that it reads; the
/// statistics say how the file was served.
#[test]
fn unusual_opens_are_served() {
    let _alone = alone();
    for mpi in MPIS {
        let nodes = "cache_ranks_per_node=1;cache_page_size=4K;cache_flush_size=4K";
        for (what, ranks, hints, address, served) in [
            ("hints", 4, "", "", "page=4096 "),
            ("groups", 4, "", "", "ranks=2 nodes=1 "),
            ("groups", 4, nodes, "", "ranks=2 nodes=2 "),
            // The address is one at which nobody listens.
            ("groups", 4, nodes, "127.0.0.2", "several nodes that cannot reach each other"),
            ("forked", 3, "", "", "ranks=3 "),
            ("nomemory", 3, "", "", "no shared memory between the ranks"),
            ("nofiles", 3, "", "", ""),
            ("nolength", 3, "", "", "no shared memory between the ranks"),
            ("names", 2, "", "", ""),
            ("folders", 4, "", "", "not the same file on every rank"),
            ("folders", 4, nodes, "", "not the same file on every rank"),
            ("representation", 4, "", "", ""),
            ("representation", 4, nodes, "", ""),
            ("large", 2, "", "", "stream_bytes="),
            ("idle", 4, "cache_flush_size=1M", "", "idle_pages=8"),
            ("idle", 4, "cache_flush_size=1M;cache_ranks_per_node=2", "", "idle_pages=8"),
        ] {
            // Open MPI itself hangs when one rank of an open has no descriptors left.
            if what == "nofiles" && mpi == "openmpi" {
                continue;
            }
            let directory = fresh(&format!("{what}-{mpi}"));
            let (path, stats) = (directory.join("file"), directory.join("stats"));
            let mut command =
                Job { ranks, hints, ..Job::new(mpi) }.command("opens", &[path.to_str().unwrap(), what], &stats);
            if !address.is_empty() {
                command.env("AMPHI_MPIIO_ADDRESS", address);
            }
            let printed = text(&run(&mut command));
            assert!(printed.lines().any(|l| l == "ok"), "{mpi}: {what}: {printed}");
            let found = std::fs::read_to_string(&stats).unwrap_or_default();
            assert!(found.contains(served), "{mpi}: {what}: {found}");
            assert_eq!(printed.contains("cannot reach 127.0.0.2"), !address.is_empty(), "{mpi}: {what}: {printed}");
            std::fs::remove_dir_all(&directory).unwrap();
        }
    }
}

/// Nodes that are connected by messages of the MPI library.
const MESSAGES: &str =
    "cache_transport=mpi;cache_ranks_per_node=1;cache_page_size=4K;cache_flush_size=4K;cache_migration=disable";

/// Goal: with messages of the MPI library between the nodes all results are as with sockets: files, reads, atomic
/// calls. Method: programs that check their reads; the file of `views` is compared with that of the library itself, and
/// the statistics have to count messages.
#[test]
fn messages_of_the_library_connect_nodes() {
    let _alone = alone();
    for mpi in MPIS {
        let native = Job { cached: false, ..Job::new(mpi) }.run("views").1;
        for (program, hints) in [
            ("views", "cache_transport=mpi;cache_ranks_per_node=2;cache_page_size=4K;cache_flush_size=8K"),
            ("views", "cache_transport=mpi;cache_ranks_per_node=1;cache_page_size=333;cache_limit=100K"),
            ("views", "cache_transport=mpi;cache_ranks_per_node=1;cache_page_size=64K;cache_domains=disable"),
            ("pointers", MESSAGES),
            ("borrowed", "cache_transport=mpi;cache_ranks_per_node=1;cache_page_size=100;cache_flush_size=300"),
            ("atomic", "cache_transport=mpi;cache_page_size=4K;cache_limit=12K;cache_ranks_per_node=2"),
            ("collective", MESSAGES),
            ("threads", MESSAGES),
        ] {
            let (printed, file, stats) = Job { hints, ..Job::new(mpi) }.run(program);
            match program {
                "views" => assert!(file == native, "{mpi} with '{hints}': another file"),
                "atomic" => assert!(printed.contains("0 mixed"), "{mpi}: {printed}"),
                "collective" => assert!(file == file_of_collective(), "{mpi}: another file"),
                // The program returns its file to the library, so there are no statistics.
                "threads" => continue,
                _ => {}
            }
            assert!(stats.contains(" transport=mpi "), "{mpi}: {program}: {stats}");
            assert!(counter(&stats, "mpi_messages") > 2 * counter(&stats, "asked"), "{mpi}: {program}: {stats}");
        }
    }
}

/// Goal: the hint chooses the transport; if that transport is not available, another one serves and the reason is
/// reported. Method: `opens`, which requests the hints in use; with and without thread support, with leaders that
/// cannot be reached by sockets, and a leader's thread that waits, which costs next to nothing.
#[test]
fn transports_are_chosen_and_told() {
    let _alone = alone();
    const NODES: &str = "cache_ranks_per_node=2;cache_page_size=32M;cache_flush_size=32M;cache_limit=256M";
    const ALWAYS: &str = "cache_transport=mpi;cache_ranks_per_node=2;cache_page_size=32M;cache_flush_size=32M";
    // The connection in use, the hint of the open and a reason; hints of the environment, threads, whether sockets
    // work.
    let cases: [([&str; 3], &str, bool, bool, &str); 7] = [
        (["memory", "mpi", ""], "", true, true, " transport=memory "),
        (["sockets", "none", ""], NODES, true, true, " transport=sockets "),
        (["mpi", "mpi", ""], NODES, true, true, " transport=mpi "),
        (["sockets", "mpi", "reason"], NODES, false, true, "(the MPI library was started without MPI_THREAD_MULTIPLE)"),
        (["mpi", "none", ""], ALWAYS, false, true, " transport=mpi "),
        (["mpi", "none", "reason"], NODES, true, false, "(sockets do not reach every node)"),
        (["none", "sockets", ""], NODES, true, false, "not cached: the ranks are on several nodes"),
    ];
    for mpi in MPIS {
        for ([used, asked, reason], hints, threads, reachable, served) in cases {
            let directory = fresh(&format!("transport-{mpi}"));
            let (path, stats) = (directory.join("file"), directory.join("stats"));
            let arguments = [path.to_str().unwrap(), "transport", used, asked, reason];
            let mut command = Job { hints, ..Job::new(mpi) }.command("opens", &arguments, &stats);
            if threads {
                command.env("CHECK_THREADS", "1");
            }
            if !reachable {
                command.env("AMPHI_MPIIO_ADDRESS", "127.0.0.2");
            }
            let printed = text(&command.output().unwrap());
            let found = std::fs::read_to_string(&stats).unwrap_or_default();
            // Without the cache there are no hints of it.
            assert_eq!(printed.lines().any(|l| l == "ok"), used != "none", "{mpi}: {arguments:?}: {printed}");
            assert!(found.contains(served), "{mpi}: {arguments:?}: {found}{printed}");
            std::fs::remove_dir_all(&directory).unwrap();
        }
        let directory = fresh(&format!("transport-idle-{mpi}"));
        let (path, stats) = (directory.join("file"), directory.join("stats"));
        let hints = "cache_flush_size=1M;cache_ranks_per_node=2;cache_transport=mpi";
        let mut command = Job { hints, ..Job::new(mpi) }.command("opens", &[path.to_str().unwrap(), "idle"], &stats);
        let printed = text(&run(&mut command));
        assert!(printed.lines().any(|l| l == "ok"), "{mpi}: {printed}");
    }
}

/// Goal: pages move between nodes to the rank that keeps using them, so that this rank sends no more requests; the
/// bytes are right, and a hint keeps pages at the nodes that their numbers determine. Method: `moves`, whose ranks take
/// turns and check their reads; the counters with the hint and without.
#[test]
fn pages_move_to_the_node_that_uses_them() {
    let _alone = alone();
    for mpi in MPIS {
        let mut counters = Vec::new();
        for hints in [
            "cache_page_size=4K;cache_flush_size=4K;cache_ranks_per_node=1;cache_migration=disable",
            "cache_page_size=4K;cache_flush_size=4K;cache_ranks_per_node=1",
            "cache_page_size=4K;cache_flush_size=4K;cache_migration=enable",
        ] {
            let (_, file, stats) = Job { ranks: 2, hints, ..Job::new(mpi) }.run("moves");
            assert_eq!(file.len(), 7 * 4096 + 1000, "{mpi} with '{hints}'");
            counters.push((counter(&stats, "migrations"), counter(&stats, "asked")));
        }
        let [(0, kept), (moved, asked), (0, 0)] = counters[..] else { panic!("{mpi}: {counters:?}") };
        assert!(moved >= 16 && asked * 2 < kept, "{mpi}: {counters:?}");
    }
}

/// Goal: with the hint a node that reads a page of another one again keeps a copy of it, so that it sends no more
/// requests, until a rank writes the page; without the hint there are no copies. The bytes are right. Method: `copies`,
/// whose ranks check their reads; two nodes, each with half of eight pages, which all read twice between two writes, so
/// that each node gets four copies twice, and the second write drops eight.
#[test]
fn nodes_keep_copies_of_what_they_read_again() {
    let _alone = alone();
    for mpi in MPIS {
        let mut asked = Vec::new();
        for (hints, copies) in [
            ("cache_page_size=4K;cache_flush_size=4K;cache_ranks_per_node=2;cache_migration=disable", (0, 0)),
            (
                "cache_page_size=4K;cache_flush_size=4K;cache_ranks_per_node=2;cache_migration=disable;\
                 cache_copies=enable",
                (16, 8),
            ),
            (
                "cache_page_size=4K;cache_flush_size=4K;cache_ranks_per_node=2;cache_transport=mpi;cache_copies=enable",
                (16, 8),
            ),
        ] {
            let (_, file, stats) = Job { hints, ..Job::new(mpi) }.run("copies");
            assert!((0..8).all(|page| file[page * 4096..][..4096].iter().all(|b| *b == 50 + page as u8)), "{mpi}");
            assert_eq!(
                (counter(&stats, "copies"), counter(&stats, "recalls")),
                copies,
                "{mpi} with '{hints}': {stats}"
            );
            asked.push(counter(&stats, "asked"));
        }
        assert!(asked[1] * 3 < asked[0] && asked[2] * 3 < asked[0], "{mpi}: {asked:?}");
    }
}

/// Goal: with the hint, a node whose pages all other nodes use gives some of them away, so that there are fewer
/// messages; without the hint, or with only one node, no page is given away. The bytes are right. Method: `balance`,
/// which checks its reads; the counters.
#[test]
fn busy_nodes_give_pages_to_idle_ones() {
    let _alone = alone();
    for mpi in MPIS {
        let mut counters = Vec::new();
        for hints in [
            "cache_page_size=4K;cache_flush_size=4K;cache_ranks_per_node=1;cache_migration=disable",
            "cache_page_size=4K;cache_flush_size=4K;cache_ranks_per_node=1;cache_migration=disable;cache_balance=enable",
            "cache_page_size=4K;cache_flush_size=4K;cache_balance=enable",
        ] {
            let (_, _, stats) = Job { hints, ..Job::new(mpi) }.run("balance");
            assert_eq!(counter(&stats, "relieved"), counter(&stats, "migrations"), "{mpi} with '{hints}': {stats}");
            counters.push((counter(&stats, "relieved"), counter(&stats, "asked")));
        }
        println!("{mpi}: {counters:?}");
        let [(0, kept), (moved, asked), (0, 0)] = counters[..] else { panic!("{mpi}: {counters:?}") };
        assert!(moved >= 4 && asked < kept, "{mpi}: {counters:?}");
    }
}

/// Goal: the bindings of Fortran, old and new, and mpi4py reach the cache. Method: one program of each kind checks the
/// bytes that it reads; the statistics show that the file was cached. The mpi4py of Debian uses Open MPI.
#[test]
fn other_languages_are_cached() {
    let _alone = alone();
    for mpi in MPIS {
        for program in ["classic", "modern"] {
            let (_, _, stats) = Job::new(mpi).run(program);
            assert!(counter(&stats, "calls_write") > 0 && counter(&stats, "calls_read") > 0, "{mpi}: {stats}");
        }
    }
    let directory = fresh("python");
    let (path, stats) = (directory.join("file"), directory.join("stats"));
    let script = format!("{}/tests/programs/python.py", env!("CARGO_MANIFEST_DIR"));
    let job = Job { ranks: 3, ..Job::new("openmpi") };
    let mut command = job.command_of(Path::new("/usr/bin/python3"), &[&script, path.to_str().unwrap()], &stats);
    let printed = text(&run(&mut command));
    assert!(printed.lines().any(|l| l == "ok"), "{printed}");
    assert!(counter(&std::fs::read_to_string(&stats).unwrap(), "calls_write") == 60);
}
