//! `amphi bench servers`: one mount on a cluster of two server processes, beside one process with as many targets and
//! workers.
//!
//! Owns: the comparison. Both sides have two targets and two workers on the same cores and a client library each, and
//! run in turn. The cluster has additional costs for calls that need both of its processes, and for two connections.

use super::Run;
use super::library::LibraryFile;
use super::program::Program;
use super::report::{Finding, Goal, Table, spread};
use super::round_trip::Way;
use super::turns::{Arm, alternate};
use amphi_client::{Client, Ctx, OpenFlags};
use amphi_host::client::Running;
use amphi_host::failure::{During, Outcome};
use amphi_types::Ino;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// Bytes of the file that is written and read.
const FILE_BYTES: u64 = 128 << 20;
/// Bytes of one call on it.
const TRANSFER: usize = 4 << 20;

/// A cluster and a client of it.
struct Side {
    programs: Vec<Program>,
    mount: Running,
    dir: PathBuf,
}

impl Side {
    /// `servers` processes that have two targets and two workers together.
    fn start(dir: &Path, servers: usize) -> Outcome<Side> {
        let dir = dir.join(format!("servers{servers}"));
        std::fs::create_dir_all(&dir).during(|| format!("make {}", dir.display()))?;
        let share = (2 / servers).to_string();
        let (mut programs, mut addrs) = (Vec::new(), Vec::<String>::new());
        for at in 0..servers {
            let mut more: Vec<&OsStr> =
                vec!["--targets".as_ref(), share.as_ref(), "--workers".as_ref(), share.as_ref()];
            if let Some(master) = addrs.first() {
                more.extend([OsStr::new("--join"), master.as_ref()]);
            }
            let (program, addr) = Program::server_with(&dir.join(format!("data{at}")), Way::Unix, &more)?;
            programs.push(program);
            addrs.push(addr);
        }
        let (ended, _) = mpsc::channel();
        let config = amphi_host::client::client_config(None, &[])?;
        let mount = amphi_host::client::start_client(addrs, None, super::DEFAULT_SPINS.1, config, ended)?;
        Ok(Side { programs, mount, dir })
    }

    fn stop(self) -> Outcome {
        self.mount.stop()?;
        // The master last: the others say goodbye to it.
        for program in self.programs.into_iter().rev() {
            program.stop()?;
        }
        std::fs::remove_dir_all(&self.dir).during(|| format!("remove {}", self.dir.display()))
    }
}

/// Makes, looks up and removes files in directories of their own, which lie on both targets. us for each file.
fn files_us(client: &Client, files: usize) -> Outcome<f64> {
    let ctx = Ctx::root();
    let dirs: Vec<Ino> = (0..8)
        .map(|i| {
            let made = client.mkdir(&ctx, Ino::ROOT, format!("d{i}").as_bytes(), 0o755).wait(None);
            made.during(|| "make a directory".into()).map(|a| a.ino)
        })
        .collect::<Outcome<_>>()?;
    let start = super::clock::now();
    for i in 0..files {
        let (dir, name) = (dirs[i % dirs.len()], format!("f{i}"));
        let made = client.create(&ctx, dir, name.as_bytes(), 0o644, OpenFlags::WRITE).wait(None);
        drop(made.during(|| format!("make {name}"))?);
    }
    for i in 0..files {
        let (dir, name) = (dirs[i % dirs.len()], format!("f{i}"));
        client.lookup(&ctx, dir, name.as_bytes()).wait(None).during(|| format!("look up {name}"))?;
        client.unlink(&ctx, dir, name.as_bytes()).wait(None).during(|| format!("remove {name}"))?;
    }
    let us = start.elapsed().as_secs_f64() * 1e6 / files as f64;
    for i in 0..8 {
        let removed = client.rmdir(&ctx, Ino::ROOT, format!("d{i}").as_bytes()).wait(None);
        removed.during(|| "remove a directory".into())?;
    }
    Ok(us)
}

/// Measures everything.
pub fn run(run: &mut Run) -> Outcome {
    let sides = [Side::start(&run.dir, 1)?, Side::start(&run.dir, 2)?];
    let bytes = if run.quick { FILE_BYTES / 4 } else { FILE_BYTES };
    let files = if run.quick { 200 } else { 1000 };
    let [one, two] = [&sides[0].mount.client, &sides[1].mount.client];
    let mut table = Table::new(
        "One mount on one server process and on a cluster of two (median and range)",
        &["what", "one process", "two processes", "speed, two / one", "goal"],
    );
    let mut measure = |run: &mut Run, what: &str, unit: &str, less_is_better: bool, arms: Vec<Arm<'_>>| -> Outcome {
        let series = alternate(run, what, arms)?;
        // Of the speed, in either unit: of times that of one process over that of two.
        let ratio = if less_is_better { series[0].over(&series[1]) } else { series[1].over(&series[0]) };
        let goal = Goal::AtLeast(0.95);
        table.row(vec![
            format!("{what}, {unit}"),
            spread(&series[0]),
            spread(&series[1]),
            spread(&ratio),
            goal.show(ratio.median()),
        ]);
        run.report.findings.push(
            Finding::new("servers", what)
                .with("unit", unit)
                .series("one", &series[0])
                .series("two", &series[1])
                .series("ratio", &ratio)
                .goal(ratio.median(), goal),
        );
        Ok(())
    };
    let written = [LibraryFile::create(one, "written")?, LibraryFile::create(two, "written")?];
    let arms = |write: bool| {
        let name = |at: usize| ["one process", "two processes"][at];
        let of = |at: usize| {
            let file = &written[at];
            Arm::new(name(at), move || match write {
                true => file.stream_write(bytes, TRANSFER),
                false => file.stream_read(bytes, TRANSFER),
            })
        };
        vec![of(0), of(1)]
    };
    measure(run, "write of 4 MiB at a time, with fsync", "MiB/s", false, arms(true))?;
    for file in &written {
        file.prepare(bytes)?;
    }
    measure(run, "direct read of 4 MiB at a time", "MiB/s", false, arms(false))?;
    for file in written {
        file.remove()?;
    }
    let arms =
        vec![Arm::new("one process", || files_us(one, files)), Arm::new("two processes", || files_us(two, files))];
    measure(run, "create, look up and remove a file", "us", true, arms)?;
    run.show(&table);
    let [one, two] = sides;
    one.stop()?;
    two.stop()
}
