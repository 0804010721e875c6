//! `amphi bench preload`: reads of cached files and writes without a call of the kernel (`amphi run`).
//!
//! Owns: the comparisons. Sides: a copy of memory, the library on a mount, the same mount without the library, the page
//! cache of the local file system. Each side is a child process of this program (`probe`) that receives its commands,
//! so that the sides of one row differ only in the library and in the file. Also: the cost of the library for programs
//! that never touch a mount.

use super::Run;
use super::clock::now;
use super::cluster::{Cluster, OWN_READS};
use super::program::this_program;
use super::report::{Finding, Goal, Table, digits, spread};
use super::series::Series;
use super::turns::{Arm, alternate};
use amphi_host::failure::{During, Failure, Outcome};
use amphi_process::launch::find_preload;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Bytes of the file that is read: cached everywhere, and larger than the processor's caches of the second level.
const SPAN: usize = 4 << 20;
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Sides of a comparison of reads.
const SIDES: [&str; 4] = ["memcpy", "library", "mount", "local"];

/// A child that reads a file as it is told.
struct Probe {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Probe {
    fn start(file: &Path, library: Option<&Path>) -> Outcome<Probe> {
        let mut command = this_program(&[])?;
        command.args(["bench".as_ref(), "--probe".as_ref(), file.as_os_str()]);
        command.env("LD_PRELOAD", library.map_or(OsStr::new(""), Path::as_os_str));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().during(|| "start a child".into())?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => Ok(Probe { child, to, from: BufReader::new(from) }),
            _ => Err(Failure::broken("a child has no input or output")),
        }
    }

    /// Nanoseconds per call.
    fn ns(&mut self, what: &str, size: usize, long: Duration) -> Outcome<f64> {
        writeln!(self.to, "{what} {size} {}", long.as_millis()).during(|| "tell a child".into())?;
        let mut line = String::new();
        self.from.read_line(&mut line).during(|| "hear of a child".into())?;
        line.trim().parse().map_err(|_| Failure::broken(format!("a child said {line:?} to {what} {size}")))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child: executes the commands on standard input until that ends.
#[expect(clippy::disallowed_types, reason = "it reads by the functions of libc, as programs do")]
pub fn probe(path: &Path) -> Outcome {
    let mut file = std::fs::File::open(path).during(|| format!("open {}", path.display()))?;
    let memory = super::raw::pattern(SPAN);
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, size, long] = words[..] else { return Err(Failure::broken("no such order")) };
        let number = |word: &str| word.parse::<u64>().map_err(|_| Failure::broken(format!("{word} is no number")));
        let (size, long) = (number(size)? as usize, Duration::from_millis(number(long)?));
        println!("{}", sample(&mut file, path, &memory, what, size, long)?);
    }
    Ok(())
}

#[expect(clippy::disallowed_types, reason = "as above")]
fn sample(
    file: &mut std::fs::File,
    path: &Path,
    memory: &[u8],
    what: &str,
    size: usize,
    long: Duration,
) -> Outcome<f64> {
    let mut writer = match what.ends_with("write") {
        true => Some(std::fs::OpenOptions::new().write(true).open(path).during(|| format!("open {}", path.display()))?),
        false => None,
    };
    let mut into = vec![0u8; size];
    let short = |e: std::io::Error| Failure::broken(format!("{what}: {e}"));
    let (mut calls, mut busy) = (0u32, Duration::ZERO);
    let (mut ends, starts) = std::io::pipe().during(|| "make a pipe".into())?;
    while busy < long {
        if what == "read" {
            file.seek(SeekFrom::Start(0)).map_err(short)?;
        }
        if let Some(writer) = &mut writer {
            writer.seek(SeekFrom::Start(0)).map_err(short)?;
        }
        if what == "pipe" {
            (&starts).write_all(&into[..1].repeat(SPAN / size)).map_err(short)?;
        }
        let began = now();
        for at in (0..SPAN).step_by(size) {
            match (what, &mut writer) {
                ("pwrite", Some(writer)) => writer.write_all_at(&into, at as u64).map_err(short)?,
                ("write", Some(writer)) => writer.write_all(&into).map_err(short)?,
                ("memcpy", _) => into.copy_from_slice(&memory[at..at + size]),
                ("pread", _) => file.read_exact_at(&mut into, at as u64).map_err(short)?,
                ("read", _) => file.read_exact(&mut into).map_err(short)?,
                _ => ends.read_exact(&mut into[..1]).map_err(short)?,
            }
            black_box(&mut into[..]);
            calls += 1;
        }
        busy += began.elapsed();
    }
    Ok(busy.as_nanos() as f64 / f64::from(calls))
}

/// Measures everything.
pub fn run(run: &mut Run) -> Outcome {
    let library = find_preload()?;
    let cluster = Cluster::up(&run.dir.join("preload"), &["--set", OWN_READS])?;
    let (shown, local) = (cluster.mount.join("file"), run.dir.join("file"));
    for path in [&shown, &local] {
        std::fs::write(path, &super::raw::pattern(SPAN)[..]).during(|| format!("write {}", path.display()))?;
    }
    reads(run, [&shown, &local], &library)?;
    writes(run, &shown, &library)?;
    others(run, &local, &library)?;
    cluster.stop()
}

fn reads(run: &mut Run, [shown, local]: [&Path; 2], library: &Path) -> Outcome {
    let mut table = Table::new(
        "Reads of a cached file of 4 MiB with `amphi run` (ns per call, median and range)",
        &["call", "memcpy", "library", "mount", "local", "library - 2 x memcpy", "mount / library", "local / library"],
    );
    let probes = [(local, None), (shown, Some(library)), (shown, None), (local, None)];
    let probes = probes.map(|(file, library)| Probe::start(file, library).map(RefCell::new));
    let [memory, own, mount, page_cache] = probes;
    let probes = [memory?, own?, mount?, page_cache?];
    for call in ["pread", "read"] {
        for size in SIZES {
            let what = format!("{call} {}", amphi_host::size::show(size as u64));
            if !run.wants(&what) {
                continue;
            }
            let long = run.sample_time();
            let arms = SIDES.iter().zip(&probes).map(|(side, probe)| {
                let call = if *side == "memcpy" { "memcpy" } else { call };
                Arm::new(*side, move || probe.borrow_mut().ns(call, size, long))
            });
            let series = alternate(run, &what, arms.collect())?;
            record(run, &mut table, &what, (call, size), &series);
        }
    }
    table.note("mount: the same file through the mount, which serves the reads itself (hybrid.kernel_cache=off). local: the page cache of the local file system.");
    run.show(&table);
    Ok(())
}

fn record(run: &mut Run, table: &mut Table, what: &str, (call, size): (&str, usize), series: &[Series]) {
    let beyond = series[1].median() - 2.0 * series[0].median();
    let (mount, local) = (series[2].over(&series[1]), series[3].over(&series[1]));
    let is_small = size == SIZES[0];
    let beyond_goal = (is_small && call == "pread").then_some(Goal::AtMost(150.0));
    let mount_goal = is_small.then_some(Goal::AtLeast(if call == "pread" { 15.0 } else { 10.0 }));
    let local_goal = (call == "pread").then_some(Goal::AtLeast(1.0));
    let shown = |value: f64, goal: Option<Goal>| match goal {
        Some(goal) => format!("{} ({})", digits(value), goal.show(value)),
        None => digits(value),
    };
    let mut cells = vec![what.to_owned()];
    cells.extend(series.iter().map(spread));
    cells.push(shown(beyond, beyond_goal));
    cells.push(shown(mount.median(), mount_goal));
    cells.push(shown(local.median(), local_goal));
    table.row(cells);
    let all = [("beyond_ns", beyond, beyond_goal), ("over_mount", mount.median(), mount_goal)];
    for (name, value, goal) in all.into_iter().chain([("over_local", local.median(), local_goal)]) {
        let finding =
            Finding::new("preload", format!("{what} {name}")).with("transfer_bytes", size).with("span_bytes", SPAN);
        let finding =
            SIDES.iter().zip(series).fold(finding, |f, (side, series)| f.series(format!("{side}_ns"), series));
        run.report.findings.push(match goal {
            Some(goal) => finding.goal(value, goal),
            None => finding.value(value),
        });
    }
}

/// The cost for programs that never touch a mount.
fn writes(run: &mut Run, shown: &Path, library: &Path) -> Outcome {
    let mut table = Table::new(
        "Writes to a cached file of 4 MiB with `amphi run` (ns per call, median and range)",
        &["call", "library", "mount", "mount / library", "goal"],
    );
    // One after the other: while several programs have the file open, posts may not make it longer, which these do not.
    let probes = [Some(library), None].map(|library| Probe::start(shown, library).map(RefCell::new));
    let [own, mount] = probes;
    let (own, mount) = (own?, mount?);
    for call in ["pwrite", "write"] {
        for size in [4 << 10, 16 << 10] {
            let what = format!("{call} {}", amphi_host::size::show(size as u64));
            if !run.wants(&what) {
                continue;
            }
            let long = run.sample_time();
            let arms = [("library", &own), ("mount", &mount)]
                .map(|(side, probe)| Arm::new(side, move || probe.borrow_mut().ns(call, size, long)));
            let series = alternate(run, &what, arms.into())?;
            let ratio = series[1].median() / series[0].median();
            let goal = Goal::AtLeast(if size == 4 << 10 { 6.0 } else { 1.0 });
            table.row(vec![what.clone(), spread(&series[0]), spread(&series[1]), digits(ratio), goal.show(ratio)]);
            let finding = Finding::new("preload", &what).series("library", &series[0]).series("mount", &series[1]);
            run.report.findings.push(finding.goal(ratio, goal));
        }
    }
    run.show(&table);
    Ok(())
}

fn others(run: &mut Run, local: &Path, library: &Path) -> Outcome {
    let mut table = Table::new(
        "What the library costs programs that never touch a mount (median and range)",
        &["what", "without", "with", "more", "goal"],
    );
    let starts = if run.quick { 20 } else { 60 };
    let start = |library: Option<&Path>| -> Outcome<f64> {
        let mut command = Command::new("/bin/true");
        command.env("LD_PRELOAD", library.map_or(OsStr::new(""), Path::as_os_str));
        let began = now();
        for _ in 0..starts {
            command.status().during(|| "start a program".into())?;
        }
        Ok(began.elapsed().as_nanos() as f64 / 1000.0 / f64::from(starts))
    };
    let [plain, own] = [None, Some(library)].map(|library| Probe::start(local, library).map(RefCell::new));
    let (plain, own) = (plain?, own?);
    let long = run.sample_time();
    let pipe = |probe: &RefCell<Probe>| probe.borrow_mut().ns("pipe", SPAN / 32768, long);
    let foreign = |probe: &RefCell<Probe>| probe.borrow_mut().ns("pread", 4096, long);
    let rows: [(&str, f64, [Arm<'_>; 2]); 3] = [
        (
            "start of a program (us)",
            1000.0,
            [Arm::new("without", || start(None)), Arm::new("with", || start(Some(library)))],
        ),
        (
            "read of one byte of a pipe (ns)",
            10.0,
            [Arm::new("without", || pipe(&plain)), Arm::new("with", || pipe(&own))],
        ),
        (
            "pread 4 KiB of a local file (ns)",
            10.0,
            [Arm::new("without", || foreign(&plain)), Arm::new("with", || foreign(&own))],
        ),
    ];
    for (what, goal, arms) in rows {
        if !run.wants(what) {
            continue;
        }
        let series = alternate(run, what, arms.into())?;
        let (more, goal) = (series[1].median() - series[0].median(), Goal::AtMost(goal));
        table.row(vec![what.into(), spread(&series[0]), spread(&series[1]), digits(more), goal.show(more)]);
        let finding = Finding::new("preload", what).series("without", &series[0]).series("with", &series[1]);
        run.report.findings.push(finding.goal(more, goal));
    }
    run.show(&table);
    Ok(())
}
