//! `amphi bench mpiio`: access patterns of parallel programs through MPI-IO, as the MPI library does them, with the
//! cooperative cache, and with the cache and direct I/O below it; on the local file system, on a mount, and strided
//! records on two mounts of one server (figures 4 to 6 and table 1 of the paper on cooperative caching, in the size of
//! one machine).
//!
//! Owns: the program (`mpiio/patterns.c`, compiled when the benchmark runs), its sides and goals. Does not own: the
//! cache, where its shims are found (`cmd::run`). All sides of a pattern take turns in one run; a run that reads a
//! wrong byte ends the benchmark. Requests are those that the cache counts, exact and the same in each run.

use super::Run;
use super::cluster::Cluster;
use super::program::Program;
use super::report::{Finding, Goal, Table, digits, spread};
use super::round_trip::Way;
use super::series::Series;
use super::turns::{Arm, as_given};
use amphi_host::control;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_process::launch::{Mpi, find_shim, launcher_options};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program.
const SOURCE: &str = include_str!("mpiio/patterns.c");
/// Its ranks.
const RANKS: &str = "4";

/// A pattern and its scale, quick and whole.
struct Pattern {
    name: &'static str,
    what: &'static str,
    scale: [u32; 2],
}

const PATTERNS: [Pattern; 4] = [
    Pattern { name: "btio", what: "480-byte rows (BTIO, simple)", scale: [1, 10] },
    Pattern { name: "flash", what: "checkpoint by variables (FLASH)", scale: [1, 8] },
    Pattern { name: "hard", what: "47,008-byte records in turn (ior-hard)", scale: [1, 10] },
    Pattern { name: "large", what: "8 MiB parts, written once", scale: [1, 4] },
];

/// The ways to do it: name, and hints of the cache if it is there.
type Side = (&'static str, Option<&'static str>);
const SIDES: [Side; 4] = [
    ("native", None),
    ("cached", Some("cache_direct_io=disable")),
    ("cached, direct", Some("cache_direct_io=enable")),
    ("cached, two nodes", Some("cache_direct_io=disable;cache_ranks_per_node=2")),
];

/// On two mounts the ranks of each are a node.
const SIDES_ON_TWO: [Side; 3] = [
    ("native", None),
    ("cached", Some("cache_direct_io=disable;cache_ranks_per_node=2")),
    ("cached, direct", Some("cache_direct_io=enable;cache_ranks_per_node=2")),
];

/// Where the files are.
struct Place<'a> {
    name: &'static str,
    dir: &'a Path,
    /// The path by which the second half of the ranks reaches them.
    other: Option<&'a Path>,
    sides: &'static [Side],
}

impl Place<'_> {
    /// The patterns that are measured there: on two mounts the one whose locks would go to and fro.
    fn takes(&self, pattern: &Pattern) -> bool {
        self.other.is_none() || pattern.name == "hard"
    }

    /// The number of locks that were called back from its mounts.
    fn callbacks(&self) -> Outcome<u64> {
        let Some(other) = self.other else { return Ok(0) };
        let of = |mount: &Path| -> Outcome<u64> {
            let text = control::read(mount, "user.amphi.stats.json")?;
            let json: serde_json::Value =
                serde_json::from_str(&text).map_err(|e| Failure::broken(format!("the counters of a mount: {e}")))?;
            Ok(json["counters"]["lock_callback"]["samples"].as_u64().unwrap_or(0))
        };
        Ok(of(self.dir)? + of(other)?)
    }
}

/// A server and two mounts of it, each a process of its own.
struct TwoMounts {
    server: Program,
    mounts: Vec<Program>,
    dirs: [PathBuf; 2],
}

impl TwoMounts {
    fn up(dir: &Path) -> Outcome<TwoMounts> {
        let data = dir.join("data");
        std::fs::create_dir_all(dir).during(|| format!("make {}", dir.display()))?;
        let (server, addr) = Program::server(&data, Way::Unix)?;
        let dirs = ["a", "b"].map(|name| dir.join(name));
        let mut mounts = Vec::new();
        for mount in &dirs {
            std::fs::create_dir_all(mount).during(|| format!("make {}", mount.display()))?;
            let args = ["mount".as_ref(), "--cluster".as_ref(), addr.as_ref(), mount.as_os_str()];
            mounts.push(Program::start(&args, Some(mount))?);
        }
        Ok(TwoMounts { server, mounts, dirs })
    }

    fn stop(self) -> Outcome {
        self.mounts.into_iter().try_for_each(Program::stop)?;
        self.server.stop()
    }
}

/// An MPI library with what is needed to use it.
pub struct Library {
    name: &'static str,
    mpi: Mpi,
    shim: PathBuf,
    program: PathBuf,
}

/// Measures each library that is installed.
pub fn run(run: &mut Run) -> Outcome {
    let mut libraries = Vec::new();
    for (name, mpi) in [("openmpi", Mpi::Openmpi), ("mpich", Mpi::Mpich)] {
        libraries.extend(library(run, name, mpi)?);
    }
    if libraries.is_empty() {
        println!(
            "mpiio: no MPI library with a compiler is installed (mpicc.openmpi, mpicc.mpich): nothing is measured"
        );
        return Ok(());
    }
    let cluster = Cluster::up(&run.dir.join("mpiio"), &[])?;
    let local = run.dir.join("mpiio-local");
    std::fs::create_dir_all(&local).during(|| format!("make {}", local.display()))?;
    let two = TwoMounts::up(&run.dir.join("mpiio-two"))?;
    let places = [
        Place { name: "local", dir: &local, other: None, sides: &SIDES },
        Place { name: "AmphiFS", dir: &cluster.mount, other: None, sides: &SIDES },
        Place { name: "two mounts", dir: &two.dirs[0], other: Some(&two.dirs[1]), sides: &SIDES_ON_TWO },
    ];
    for library in &libraries {
        for place in &places {
            compare(run, library, place)?;
        }
    }
    two.stop()?;
    cluster.stop()
}

/// The first library that is installed.
///
/// Errors: none is installed with a compiler, or the cache is not built for it.
pub fn installed(run: &Run) -> Outcome<Library> {
    for (name, mpi) in [("openmpi", Mpi::Openmpi), ("mpich", Mpi::Mpich)] {
        if let Some(found) = library(run, name, mpi)? {
            return Ok(found);
        }
    }
    Err(Failure::refused("no MPI library with a compiler is installed (mpicc.openmpi, mpicc.mpich)"))
}

/// The patterns of these names on one mount. The name of the library is returned.
pub fn on_a_mount(run: &mut Run, library: &Library, names: &[&str]) -> Outcome<&'static str> {
    let cluster = Cluster::up(&run.dir.join("mpiio-mount"), &[])?;
    let place = Place { name: "AmphiFS", dir: &cluster.mount, other: None, sides: &SIDES };
    let before = run.only.take();
    let compared = names.iter().try_for_each(|name| {
        run.only = Some((*name).into());
        compare(run, library, &place)
    });
    run.only = before;
    compared?;
    cluster.stop()?;
    Ok(library.name)
}

/// Compiles the program for a library; none if the library is not there.
fn library(run: &Run, name: &'static str, mpi: Mpi) -> Outcome<Option<Library>> {
    let source = run.dir.join("patterns.c");
    std::fs::write(&source, SOURCE).during(|| format!("write {}", source.display()))?;
    let program = run.dir.join(format!("patterns.{name}"));
    let mut compile = Command::new(format!("mpicc.{name}"));
    let Ok(output) = compile.arg("-O2").arg("-o").arg(&program).arg(&source).output() else { return Ok(None) };
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Failure::broken(format!("mpicc.{name} does not compile the benchmark: {text}")));
    }
    let shim = find_shim(None, mpi.shim())?;
    Ok(Some(Library { name, mpi, shim, program }))
}

/// The result of one run of a side.
type Counters = BTreeMap<String, u64>;

/// One run: seconds to write and to read. `other`: the file as the second half of the ranks has it.
fn once(
    library: &Library,
    pattern: &Pattern,
    scale: u32,
    (file, other): (&Path, Option<&Path>),
    hints: Option<&str>,
) -> Outcome<(f64, f64)> {
    let stats = file.with_extension("stats");
    for path in [file, &stats] {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::broken(format!("remove {}: {e}", path.display())));
            }
            _ => {}
        }
    }
    let mut command = Command::new(format!("mpirun.{}", library.name));
    command.args(["-np", RANKS]).env("AMPHI_MPIIO_STATS", &stats);
    if library.mpi == Mpi::Openmpi {
        command.args(["--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]);
    }
    if let Some(hints) = hints {
        command.env("AMPHI_MPIIO_HINTS", hints).args(launcher_options(library.mpi, library.shim.as_os_str(), None));
        if library.mpi == Mpi::Openmpi {
            command.args(["-x", "AMPHI_MPIIO_HINTS", "-x", "AMPHI_MPIIO_STATS"]);
        }
    }
    command.arg(&library.program).arg(pattern.name).arg(file).arg(scale.to_string()).args(other);
    let output = command.output().during(|| format!("start mpirun.{}", library.name))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["write", write, "read", read, "wrong", "0"] if output.status.success() => {
            let number = |text: &str| text.parse::<f64>().map_err(|e| Failure::broken(format!("'{text}': {e}")));
            Ok((number(write)?, number(read)?))
        }
        _ => Err(Failure::broken(format!(
            "{} with {} came to: {text}{}",
            pattern.name,
            library.name,
            String::from_utf8_lossy(&output.stderr)
        ))),
    }
}

/// The counters of the two handles of a run, added up.
fn counters(file: &Path) -> Counters {
    let text = std::fs::read_to_string(file.with_extension("stats")).unwrap_or_default();
    let mut sums = Counters::new();
    for (name, value) in text.split_whitespace().filter_map(|word| word.split_once('=')) {
        *sums.entry(name.to_owned()).or_default() += value.parse::<u64>().unwrap_or(0);
    }
    sums
}

/// All patterns of a library in one place.
fn compare(run: &mut Run, library: &Library, place: &Place<'_>) -> Outcome {
    let sides = place.sides;
    let mut table = Table::new(
        format!(
            "MPI-IO with {} on {} (seconds for writing and reading back, median and range)",
            library.name, place.name
        ),
        &["pattern", "way", "write", "read", "native / this", "goal", "requests", "aligned"],
    );
    let wanted: Vec<&Pattern> = PATTERNS.iter().filter(|p| run.wants(p.name) && place.takes(p)).collect();
    for pattern in wanted {
        let scale = pattern.scale[usize::from(!run.quick)];
        let reads = RefCell::new(vec![Series::default(); sides.len()]);
        let seen = RefCell::new(vec![Counters::new(); sides.len()]);
        let side = |at: usize| {
            let name = format!("{}.{at}", pattern.name);
            let (file, other) = (place.dir.join(&name), place.other.map(|dir| dir.join(&name)));
            let before = place.callbacks()?;
            let (write, read) = once(library, pattern, scale, (&file, other.as_deref()), sides[at].1)?;
            reads.borrow_mut()[at].0.push(read);
            let mut counted = counters(&file);
            counted.insert("lock_callbacks".into(), place.callbacks()?.saturating_sub(before));
            seen.borrow_mut()[at] = counted;
            Ok(write)
        };
        let arms = sides.iter().enumerate().map(|(at, (name, _))| Arm::new(*name, move || side(at))).collect();
        let writes = as_given(run, &format!("mpiio {} {}", pattern.name, place.name), arms)?;
        let (mut reads, seen) = (reads.into_inner(), seen.into_inner());
        for read in &mut reads {
            // The round before the first one counts for nothing.
            read.0.drain(..read.0.len().saturating_sub(writes[0].0.len()));
        }
        let both: Vec<Series> = writes.iter().zip(&reads).map(|(w, r)| Series::sum(&[w, r])).collect();
        for (at, (way, _)) in sides.iter().enumerate() {
            let ratio = both[0].over(&both[at]);
            let count = |name: &str| seen[at].get(name).copied().unwrap_or(0);
            let goal = goal(pattern.name, place.name, at);
            table.row(vec![
                if at == 0 { pattern.what.into() } else { String::new() },
                (*way).into(),
                spread(&writes[at]),
                spread(&reads[at]),
                spread(&ratio),
                goal.map_or("-".into(), |goal| goal.show(ratio.median())),
                match (at, place.other) {
                    (0, None) => "-".into(),
                    (0, Some(_)) => format!("{} cb", count("lock_callbacks")),
                    (_, None) => format!("{} w, {} r", count("fs_writes"), count("fs_reads")),
                    (_, Some(_)) => {
                        let callbacks = count("lock_callbacks");
                        format!("{} w, {} r, {callbacks} cb", count("fs_writes"), count("fs_reads"))
                    }
                },
                match count("fs_writes") {
                    0 => "-".into(),
                    all => format!("{} %", digits(count("fs_writes_aligned") as f64 * 100.0 / all as f64)),
                },
            ]);
            let found = Finding::new("mpiio", format!("{} {} {} {way}", pattern.name, place.name, library.name))
                .with("scale", scale)
                .with("counters", serde_json::json!(seen[at]))
                .series("write_s", &writes[at])
                .series("read_s", &reads[at])
                .series("native_over_this", &ratio);
            run.report.findings.push(match goal {
                Some(goal) => found.goal(ratio.median(), goal),
                None => found.value(ratio.median()),
            });
        }
    }
    table.note(
        "Each rank reads what another one wrote, through a new handle. Start and end of the job are not counted.",
    );
    table.note(
        "Requests: writes and reads of the file system by the cache, in one run. Two nodes: of this one machine.",
    );
    if place.other.is_some() {
        table.note("Two ranks on each mount; cb: locks that the mounts were asked to give back.");
    }
    run.show(&table);
    Ok(())
}

/// The goal for the ratio of times.
fn goal(pattern: &str, place: &str, side: usize) -> Option<Goal> {
    match (pattern, place, side) {
        ("btio", "AmphiFS", 1 | 2) => Some(Goal::AtLeast(5.0)),
        ("hard", "two mounts", 1 | 2) => Some(Goal::AtLeast(2.0)),
        // With one kernel all ranks are ordered already, so no gain is possible; the cache should cost nothing.
        ("hard", "AmphiFS", 1 | 2) => Some(Goal::AtLeast(0.9)),
        ("large", _, 1) => Some(Goal::AtLeast(0.9)),
        (_, "local", 1) => Some(Goal::AtLeast(0.75)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: counters of all handles of a run are added up, and words that are no counters are skipped. Method: a file.
    #[test]
    fn counters_are_added_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("btio.1");
        assert!(counters(&file).is_empty());
        let text = "amphi-mpiio: a=b: ranks=4 fs_writes=6 x\namphi-mpiio: a: ranks=4 fs_writes=1 fs_reads=22\n";
        std::fs::write(file.with_extension("stats"), text).expect("written");
        let seen = counters(&file);
        assert_eq!((seen["fs_writes"], seen["fs_reads"], seen["ranks"]), (7, 22, 8));
    }
}
