//! `amphi bench model`: large transfers beside the serial model 1/(1/disk + 1/transport + 1/FUSE), each term measured in
//! the same rounds.
//!
//! The model is what a file system reaches whose parts work one after the other at their bare speed. Disk: O_DIRECT on the storage
//! folder, writes into a sparse file as a zone is one, to the end of one sync. Transport: a hand-over to the thread that
//! serves and back (in-process), or a bare socket. FUSE: the do-nothing target.

use super::Run;
use super::cluster::Cluster;
use super::embedded::Embedded;
use super::library::LibraryFile;
use super::mounted::{MountedFile, Op};
use super::program::Program;
use super::raw::RawFile;
use super::report::{Finding, Goal, Table, digits, spread};
use super::round_trip::{RoundTrip, Way};
use super::series::{Arm, Series, alternate};
use super::stream::{Stream, prepare};
use crate::failure::{During, Failure, Outcome};
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::path::Path;

/// Bytes of a sample.
const SAMPLE_BYTES: u64 = 256 << 20;
const MIB: f64 = (1 << 20) as f64;

/// Measures all sizes and both directions.
pub fn run(run: &mut Run) -> Outcome {
    let null = Program::null_mount(&run.dir.join("null"))?;
    let cluster = Cluster::up(&run.dir.join("model"), &[])?;
    let embedded = Embedded::start(&run.dir.join("model-library"))?;
    let title = "Large transfers beside the serial model (MiB/s, median and range)";
    let columns = [
        "call",
        "disk",
        "transport",
        "FUSE",
        "library",
        "model",
        "ratio",
        "goal",
        "through FUSE",
        "model",
        "ratio",
        "goal",
    ];
    let mut table = Table::new(title, &columns);
    let sizes: &[usize] = if run.quick { &[1 << 20] } else { &[1 << 20, 4 << 20, 16 << 20] };
    for op in [Op::Write, Op::Read] {
        for &transfer in sizes {
            one(run, &mut table, op, transfer, &cluster.mount, &embedded)?;
        }
    }
    table.note("disk: O_DIRECT on the storage folder; transport: hand-over to the serving thread and back; FUSE: do-nothing target.");
    table.note("Ratios above 1: the parts overlap.");
    run.show(&table);
    embedded.stop()?;
    cluster.stop()?;
    null.stop()
}

fn one(run: &mut Run, table: &mut Table, op: Op, transfer: usize, mount: &Path, embedded: &Embedded) -> Outcome {
    let raw = run.dir.join("raw");
    let file = LibraryFile::create(embedded.client(), "model")?;
    let path = mount.join("model");
    let filled = RawFile::filled(&raw, "filled", SAMPLE_BYTES)?;
    let target = MountedFile::open(&run.dir.join("null/data"), transfer, SAMPLE_BYTES, OFlags::empty())?;
    let target = RefCell::new(target);
    let what = format!("{} {}", op.name(), crate::size::show(transfer as u64));
    let (client_spin, server_spin) = super::DEFAULT_SPINS;
    let long = run.sample_time();
    let arms = vec![
        Arm::new("disk", || match op {
            // A zone writes where it never wrote before.
            Op::Write => RawFile::sparse(&raw, "sparse", SAMPLE_BYTES)?.write(transfer),
            Op::Read => filled.read(transfer),
        }),
        Arm::new("transport", || {
            let us = RoundTrip::of(Way::Thread, client_spin, server_spin).sample_us(run, 200)?;
            Ok(transfer as f64 / MIB / (us / 1e6))
        }),
        Arm::new("FUSE", || Ok(transfer as f64 / MIB / (target.borrow_mut().us(op, long)? / 1e6))),
        Arm::new("library", || {
            if op == Op::Read {
                file.prepare(SAMPLE_BYTES)?;
            }
            file.set_mode("auto")?;
            if op == Op::Read {
                file.stream_read(SAMPLE_BYTES, transfer)
            } else {
                file.stream_write(SAMPLE_BYTES, transfer)
            }
        }),
        Arm::new("through FUSE", || through_fuse(&path, op, transfer)),
    ];
    let series = alternate(run, &what, arms)?;
    drop(target);
    file.remove()?;
    std::fs::remove_file(&path).during(|| format!("remove {}", path.display()))?;
    let [disk, transport, fuse, library, mounted] = &series[..] else {
        return Err(Failure::broken("an arm is missing"));
    };
    let (model_library, model_mounted) = (Series::serial(&[disk, transport]), Series::serial(&[disk, transport, fuse]));
    let (ratio_library, ratio_mounted) = (library.over(&model_library), mounted.over(&model_mounted));
    let goal = Goal::AtLeast(0.8);
    table.row(vec![
        what.clone(),
        spread(disk),
        digits(transport.median()),
        spread(fuse),
        spread(library),
        digits(model_library.median()),
        spread(&ratio_library),
        goal.show(ratio_library.median()),
        spread(mounted),
        digits(model_mounted.median()),
        spread(&ratio_mounted),
        goal.show(ratio_mounted.median()),
    ]);
    for (path, rate, model, ratio) in
        [("library", library, &model_library, &ratio_library), ("FUSE", mounted, &model_mounted, &ratio_mounted)]
    {
        run.report.findings.push(
            Finding::new("model", format!("{what} through {path}"))
                .with("path", path)
                .with("direction", op.name())
                .with("transfer_bytes", transfer)
                .with("file_bytes", SAMPLE_BYTES)
                .series("disk_mib_s", disk)
                .series("transport_mib_s", transport)
                .series("fuse_mib_s", fuse)
                .series("amphi_mib_s", rate)
                .series("model_mib_s", model)
                .series("ratio", ratio)
                .goal(ratio.median(), goal),
        );
    }
    Ok(())
}

fn through_fuse(path: &Path, op: Op, transfer: usize) -> Outcome<f64> {
    let stream = Stream { path: path.to_path_buf(), bytes: SAMPLE_BYTES, transfer, shift: 0, o_direct: false };
    if op == Op::Write {
        return stream.write();
    }
    if path.exists() {
        super::cluster::set_mode(path, "direct")?;
    }
    prepare(path, SAMPLE_BYTES)?;
    super::cluster::set_mode(path, "auto")?;
    stream.read()
}
