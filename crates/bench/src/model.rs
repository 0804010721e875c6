//! `amphi bench model`: large transfers beside the serial model 1/(1/disk + 1/transport + 1/FUSE), each term measured
//! in the same rounds.
//!
//! The model is the throughput of a file system whose parts work one after the other at their bare speed. Disk:
//! O_DIRECT on the storage folder, for writes the faster of new blocks and existing ones, to the end of one sync.
//! Transport: a hand-over to the thread that serves and back (in-process), or the payload over a bare socket. FUSE: the
//! do-nothing target. Beside one stream, four at once: how far the parts exceed the model when they overlap. Beside the
//! disk with one buffer, the disk with as much memory as the file has, as a program that writes, and a cache that is
//! filled, use it.

use super::Run;
use super::cluster::{Cluster, OWN_READS, set_mode};
use super::embedded::{Embedded, Remote};
use super::library::LibraryFile;
use super::mounted::{MountedFile, Op};
use super::program::Program;
use super::raw::RawFile;
use super::report::{Finding, Goal, Table, digits, spread};
use super::round_trip::{RoundTrip, Way};
use super::series::Series;
use super::stream::{Moved, Stream, prepare, together};
use super::turns::{Arm, alternate};
use amphi_client::Client;
use amphi_host::failure::{During, Failure, Outcome};
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

/// Bytes of a sample.
const SAMPLE_BYTES: u64 = 128 << 20;
/// Streams at once.
const STREAMS: usize = 4;
const MIB: f64 = (1 << 20) as f64;

/// Measures all ways, sizes and both directions.
pub fn run(run: &mut Run) -> Outcome {
    let null = Program::null_mount(&run.dir.join("null"))?;
    let cluster = Cluster::up(&run.dir.join("model"), &["--set", OWN_READS])?;
    let embedded = Embedded::start(&run.dir.join("model-library"))?;
    way(run, Way::Thread, &cluster.mount, embedded.client())?;
    embedded.stop()?;
    cluster.stop()?;
    let cluster = Cluster::apart(&run.dir.join("model-unix"), Way::Unix)?;
    cluster.set(OWN_READS)?;
    let remote = Remote::start(&run.dir.join("model-unix-library"), Way::Unix)?;
    way(run, Way::Unix, &cluster.mount, remote.client())?;
    remote.stop()?;
    cluster.stop()?;
    null.stop()
}

fn way(run: &mut Run, way: Way, mount: &Path, client: &Client) -> Outcome {
    let columns = ["call", "disk", "transport", "FUSE", "model", "AmphiFS", "ratio", "goal", "4 streams", "ratio"];
    let title =
        |path| format!("Large transfers {path} beside the serial model, {} (MiB/s, median and range)", way.name());
    let mut library = Table::new(title("through the client library"), &columns);
    let mut mounted = Table::new(title("through FUSE"), &columns);
    let mut memory = Table::new(
        format!("What the memory does, library, {} (MiB/s, median and range)", way.name()),
        &[
            "call",
            "disk, one buffer",
            "disk, as much memory as the file has",
            "AmphiFS",
            "model with the latter",
            "ratio",
        ],
    );
    let sizes: &[usize] = if run.quick { &[1 << 20] } else { &[1 << 20, 4 << 20, 16 << 20] };
    for op in [Op::Write, Op::Read] {
        for &transfer in sizes {
            let case = Case { way, op, transfer, mount, client };
            if !run.wants(&case.name()) {
                continue;
            }
            case.measure(run, [&mut library, &mut mounted, &mut memory])?;
        }
    }
    for table in [&mut library, &mut mounted] {
        table.note("Ratio: AmphiFS / model, round by round; above 1 the parts overlap. Writes to the end of fsync, reads cold.");
        run.show(table);
    }
    memory.note("A program that writes has its data in different memory, and a cache that is filled takes other memory: the disk is slower with those than with one buffer.");
    run.show(&memory);
    Ok(())
}

struct Case<'a> {
    way: Way,
    op: Op,
    transfer: usize,
    mount: &'a Path,
    client: &'a Client,
}

impl Case<'_> {
    fn name(&self) -> String {
        format!("{} {} {}", self.op.name(), amphi_host::size::show(self.transfer as u64), self.way.name())
    }

    fn measure(&self, run: &mut Run, [library, mounted, memory]: [&mut Table; 3]) -> Outcome {
        let (op, transfer) = (self.op, self.transfer);
        let raw = run.dir.join("raw");
        let files = (0..STREAMS).map(|i| LibraryFile::create(self.client, &format!("model-{i}")));
        let files: Vec<LibraryFile> = files.collect::<Outcome<_>>()?;
        let paths: Vec<PathBuf> = (0..STREAMS).map(|i| self.mount.join(format!("model-{i}"))).collect();
        let filled = RawFile::filled(&raw, "filled", SAMPLE_BYTES)?;
        let target = MountedFile::open(&run.dir.join("null/data"), transfer, SAMPLE_BYTES, OFlags::empty())?;
        let target = RefCell::new(target);
        let what = format!("{} {}", op.name(), amphi_host::size::show(transfer as u64));
        let long = run.sample_time();
        let part = (SAMPLE_BYTES / STREAMS as u64).max(transfer as u64);
        let mut arms = vec![
            Arm::new("disk", || if op == Op::Read { filled.read(transfer) } else { filled.write(transfer) }),
            Arm::new("transport", || self.transport(run)),
            Arm::new("FUSE", || Ok(transfer as f64 / MIB / (target.borrow_mut().us(op, long)? / 1e6))),
            Arm::new("library", || library_stream(&files[0], op, transfer, SAMPLE_BYTES, &|| ()).map(|m| m.rate())),
            Arm::new("through FUSE", || fuse_stream(&paths[0], op, transfer, SAMPLE_BYTES, &|| ()).map(|m| m.rate())),
            Arm::new("library, 4 streams", || {
                together(STREAMS, |i, ready| library_stream(&files[i], op, transfer, part, ready))
            }),
            Arm::new("through FUSE, 4 streams", || {
                together(STREAMS, |i, ready| fuse_stream(&paths[i], op, transfer, part, ready))
            }),
            Arm::new("disk, as much memory", || match op {
                Op::Read => filled.read_apart(transfer),
                Op::Write => filled.write_apart(transfer),
            }),
        ];
        if op == Op::Write {
            arms.push(Arm::new("disk, new blocks", || RawFile::sparse(&raw, "sparse", SAMPLE_BYTES)?.write(transfer)));
        }
        let mut series = alternate(run, &self.name(), arms)?;
        drop(target);
        files.into_iter().try_for_each(LibraryFile::remove)?;
        paths.iter().try_for_each(|p| std::fs::remove_file(p).during(|| format!("remove {}", p.display())))?;
        let fresh = (op == Op::Write).then(|| series.pop()).flatten();
        let [disk, transport, fuse, one_library, one_mounted, all_library, all_mounted, apart] = &series[..] else {
            return Err(Failure::broken("an arm is missing"));
        };
        let disk = &fresh.map_or_else(|| disk.clone(), |fresh| disk.greater(&fresh));
        self.record(run, library, "library", &[disk, transport], one_library, all_library);
        self.record(run, mounted, "FUSE", &[disk, transport, fuse], one_mounted, all_mounted);
        let model = Series::serial(&[apart, transport]);
        let ratio = one_library.over(&model);
        memory.row(vec![
            format!("{} {}", op.name(), amphi_host::size::show(transfer as u64)),
            spread(disk),
            spread(apart),
            spread(one_library),
            digits(model.median()),
            spread(&ratio),
        ]);
        let found = Finding::new("model", format!("{what} with as much memory, {}", self.way.name()))
            .series("disk_apart_mib_s", apart)
            .series("ratio", &ratio);
        run.report.findings.push(found);
        Ok(())
    }

    /// MiB/s of the bare transport.
    fn transport(&self, run: &Run) -> Outcome<f64> {
        let (client_spin, server_spin) = super::DEFAULT_SPINS;
        let trip = match self.way {
            Way::Thread => RoundTrip::of(Way::Thread, client_spin, server_spin),
            way => {
                let (sent, received) = if self.op == Op::Write { (self.transfer, 0) } else { (0, self.transfer) };
                RoundTrip { sent, received, ..RoundTrip::of(way, server_spin, server_spin) }
            }
        };
        let us = trip.sample_us(run, if self.way == Way::Thread { 200 } else { 40 })?;
        Ok(self.transfer as f64 / MIB / (us / 1e6))
    }

    fn record(&self, run: &mut Run, table: &mut Table, path: &str, terms: &[&Series], one: &Series, all: &Series) {
        let model = Series::serial(terms);
        let (ratio, overlapped) = (one.over(&model), all.over(&model));
        let goal = Goal::AtLeast(0.8);
        let what = format!("{} {}", self.op.name(), amphi_host::size::show(self.transfer as u64));
        table.row(vec![
            what.clone(),
            spread(terms[0]),
            digits(terms[1].median()),
            terms.get(2).map_or_else(|| "-".into(), |t| digits(t.median())),
            digits(model.median()),
            spread(one),
            spread(&ratio),
            goal.show(ratio.median()),
            spread(all),
            digits(overlapped.median()),
        ]);
        let mut found = Finding::new("model", format!("{what} through {path}, {}", self.way.name()))
            .with("path", path)
            .with("way", self.way.name())
            .with("direction", self.op.name())
            .with("transfer_bytes", self.transfer)
            .with("file_bytes", SAMPLE_BYTES)
            .with("streams", STREAMS)
            .series("model_mib_s", &model)
            .series("amphi_mib_s", one)
            .series("ratio", &ratio)
            .series("amphi_streams_mib_s", all)
            .series("ratio_streams", &overlapped)
            .goal(ratio.median(), goal);
        for (name, term) in ["disk_mib_s", "transport_mib_s", "fuse_mib_s"].into_iter().zip(terms) {
            found = found.series(name, term);
        }
        run.report.findings.push(found);
    }
}

fn library_stream(file: &LibraryFile, op: Op, transfer: usize, bytes: u64, ready: &dyn Fn()) -> Outcome<Moved> {
    if op == Op::Read {
        file.prepare(bytes)?;
    }
    file.set_mode("auto")?;
    if op == Op::Read { file.read_when(bytes, transfer, ready) } else { file.write_when(bytes, transfer, ready) }
}

fn fuse_stream(path: &Path, op: Op, transfer: usize, bytes: u64, ready: &dyn Fn()) -> Outcome<Moved> {
    let stream = Stream { path: path.to_path_buf(), bytes, transfer, shift: 0, o_direct: false, most: None };
    if op == Op::Write {
        return stream.write_when(ready);
    }
    if path.exists() {
        set_mode(path, "direct")?;
    }
    prepare(path, bytes)?;
    set_mode(path, "auto")?;
    stream.read_when(ready)
}
