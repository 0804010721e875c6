//! `amphi bench bare`: what this machine can do without AmphiFS: its disk, its sockets and threads, its FUSE.
//!
//! These are the floors that all other benchmarks are compared with; no goals here.

use super::Run;
use super::mounted::{MountedFile, Op, stat_us};
use super::program::Program;
use super::raw::RawFile;
use super::report::{Finding, Table, spread};
use super::round_trip::{RoundTrip, Way};
use super::turns::{Arm, alternate};
use amphi_host::failure::Outcome;
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::time::Duration;

const MIB: f64 = (1 << 20) as f64;

/// Measures all three.
pub fn run(run: &mut Run) -> Outcome {
    disk(run)?;
    round_trips(run)?;
    fuse(run)
}

fn disk(run: &mut Run) -> Outcome {
    let mut table = Table::new(
        "The storage folder with O_DIRECT, one call after the other (MiB/s to the end of one sync, median and range)",
        &["transfer", "write into a sparse file", "overwrite", "read"],
    );
    let folder = run.dir.join("raw");
    for transfer in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
        let bytes = (transfer as u64 * 4096).min(256 << 20);
        let filled = RawFile::filled(&folder, "filled", bytes)?;
        let shown = amphi_host::size::show(transfer as u64);
        let arms = vec![
            Arm::new("sparse", || RawFile::sparse(&folder, "sparse", bytes)?.write(transfer)),
            Arm::new("overwrite", || filled.write(transfer)),
            Arm::new("read", || filled.read(transfer)),
        ];
        let series = alternate(run, &format!("disk {shown}"), arms)?;
        let mut row = vec![shown.clone()];
        row.extend(series.iter().map(spread));
        table.row(row);
        run.report.findings.push(
            Finding::new("bare", format!("disk {shown}"))
                .with("transfer_bytes", transfer)
                .with("file_bytes", bytes)
                .series("sparse_write_mib_s", &series[0])
                .series("overwrite_mib_s", &series[1])
                .series("read_mib_s", &series[2]),
        );
    }
    let log = RefCell::new(RawFile::filled(&folder, "log", 64 << 20)?);
    let long = run.sample_time();
    let arms = vec![
        Arm::new("4 KiB log write", || log.borrow_mut().log_write_us(long)),
        Arm::new("4 KiB log write and sync", || log.borrow_mut().sync_us(long)),
    ];
    let series = alternate(run, "log", arms)?;
    table.note(format!(
        "4 KiB over existing blocks: {} us; with a sync after each: {} us.",
        spread(&series[0]),
        spread(&series[1])
    ));
    run.report
        .findings
        .push(Finding::new("bare", "log write").series("write_us", &series[0]).series("write_and_sync_us", &series[1]));
    run.show(&table);
    Ok(())
}

fn round_trips(run: &mut Run) -> Outcome {
    let mut table = Table::new(
        "Bare round trips between two threads (median us of a sample; median and range of the samples)",
        &[
            "polling of asker / answerer",
            "in-process",
            "unix",
            "tcp",
            "in-process, 1,000/s",
            "unix, 1,000/s",
            "tcp, 1,000/s",
        ],
    );
    let us = Duration::from_micros;
    let spins = [
        (us(0), us(0)),
        (us(0), us(50)),
        (us(50), us(50)),
        (us(100), us(0)),
        (us(100), us(2000)),
        (us(2000), us(2000)),
    ];
    for (asker, answerer) in spins {
        let what = format!("{} / {} us", asker.as_micros(), answerer.as_micros());
        let mut arms = Vec::new();
        for (gap, rounds) in [(us(0), 2000), (us(1000), 150)] {
            let rounds = if run.quick { rounds / 5 } else { rounds };
            for way in [Way::Thread, Way::Unix, Way::Tcp] {
                let trip = RoundTrip { gap, ..RoundTrip::of(way, asker, answerer) };
                let run = &*run;
                arms.push(Arm::new(way.name(), move || trip.sample_us(run, rounds)));
            }
        }
        let series = alternate(run, &what, arms)?;
        let mut row = vec![what.clone()];
        row.extend(series.iter().map(spread));
        table.row(row);
        let mut found = Finding::new("bare", format!("round trip {what}"))
            .with("asker_spin_us", asker.as_micros() as u64)
            .with("answerer_spin_us", answerer.as_micros() as u64);
        let names = ["thread_us", "unix_us", "tcp_us", "thread_paced_us", "unix_paced_us", "tcp_paced_us"];
        for (name, series) in names.into_iter().zip(&series) {
            found = found.series(name, series);
        }
        run.report.findings.push(found);
    }
    run.show(&table);
    let mut table = Table::new(
        "Payloads over sockets, one after the other, both sides polling 50 us (MiB/s, median and range)",
        &["payload", "unix out", "unix back", "tcp out", "tcp back"],
    );
    for payload in [64 << 10, 1 << 20, 4 << 20] {
        let shown = amphi_host::size::show(payload as u64);
        let mut arms = Vec::new();
        for way in [Way::Unix, Way::Tcp] {
            for (sent, received) in [(payload, 0), (0, payload)] {
                let trip = RoundTrip { sent, received, ..RoundTrip::of(way, us(50), us(50)) };
                let run = &*run;
                arms.push(Arm::new(way.name(), move || Ok(payload as f64 / MIB / (trip.sample_us(run, 100)? / 1e6))));
            }
        }
        let series = alternate(run, &format!("payload {shown}"), arms)?;
        let mut row = vec![shown.clone()];
        row.extend(series.iter().map(spread));
        table.row(row);
        run.report.findings.push(
            Finding::new("bare", format!("payload {shown}"))
                .with("payload_bytes", payload)
                .series("unix_out_mib_s", &series[0])
                .series("unix_back_mib_s", &series[1])
                .series("tcp_out_mib_s", &series[2])
                .series("tcp_back_mib_s", &series[3]),
        );
    }
    run.show(&table);
    Ok(())
}

fn fuse(run: &mut Run) -> Outcome {
    let null = Program::null_mount(&run.dir.join("null"))?;
    let path = run.dir.join("null/data");
    let mut table = Table::new(
        "The do-nothing FUSE target (us per call, median and range)",
        &["transfer", "read", "write", "read, O_DIRECT", "write, O_DIRECT"],
    );
    let long = run.sample_time();
    for transfer in [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20] {
        let open = |extra| MountedFile::open(&path, transfer, 256 << 20, extra).map(RefCell::new);
        let (plain, direct) = (open(OFlags::empty())?, open(OFlags::DIRECT)?);
        let shown = amphi_host::size::show(transfer as u64);
        let arms = vec![
            Arm::new("read", || plain.borrow_mut().us(Op::Read, long)),
            Arm::new("write", || plain.borrow_mut().us(Op::Write, long)),
            Arm::new("read, O_DIRECT", || direct.borrow_mut().us(Op::Read, long)),
            Arm::new("write, O_DIRECT", || direct.borrow_mut().us(Op::Write, long)),
        ];
        let series = alternate(run, &format!("FUSE {shown}"), arms)?;
        let mut row = vec![shown.clone()];
        row.extend(series.iter().map(spread));
        table.row(row);
        run.report.findings.push(
            Finding::new("bare", format!("FUSE {shown}"))
                .with("transfer_bytes", transfer)
                .series("read_us", &series[0])
                .series("write_us", &series[1])
                .series("read_o_direct_us", &series[2])
                .series("write_o_direct_us", &series[3]),
        );
    }
    let file = MountedFile::open(&path, 4096, 1 << 20, OFlags::empty())?;
    let arms = vec![Arm::new("fstat", || file.fstat_us(long)), Arm::new("stat", || stat_us(&path, long))];
    let series = alternate(run, "FUSE stat", arms)?;
    table.note(format!("fstat (one request): {} us; stat of a path: {} us.", spread(&series[0]), spread(&series[1])));
    run.report
        .findings
        .push(Finding::new("bare", "FUSE stat").series("fstat_us", &series[0]).series("stat_us", &series[1]));
    run.show(&table);
    drop(file);
    null.stop()
}
