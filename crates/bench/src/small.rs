//! `amphi bench small`: buffered 4 KiB and 64 KiB through FUSE beside the do-nothing FUSE target.

use super::cluster::{Cluster, set_mode};
use super::mounted::{MountedFile, Op};
use super::program::Program;
use super::report::{Finding, Goal, Table, digits, spread};
use super::turns::{Arm, alternate};
use super::{Run, series::Series};
use amphi_host::failure::Outcome;
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::path::Path;

/// The part of the file that is worked on; it fits the client's cache. The small one also stays in the processor's
/// cache.
const SPANS_BYTES: [u64; 2] = [1 << 20, 32 << 20];

/// Measures the do-nothing target and AmphiFS in turn.
pub fn run(run: &mut Run) -> Outcome {
    let null = Program::null_mount(&run.dir.join("null"))?;
    let cluster = Cluster::up(&run.dir.join("small"), &[])?;
    let mut table = Table::new(
        "Small buffered transfers through FUSE, in the cache (us per call, median and range; ratio do-nothing / AmphiFS)",
        &["call", "do-nothing", "AmphiFS", "ratio", "goal"],
    );
    for (size, span) in [4 << 10, 64 << 10].into_iter().flat_map(|size| SPANS_BYTES.map(|span| (size, span))) {
        for op in [Op::Read, Op::Write] {
            let shown = amphi_host::size::show;
            let what = format!("{} {} of {}", op.name(), shown(size as u64), shown(span));
            if !run.wants(&what) {
                continue;
            }
            let file = prepared(&cluster.mount.join(format!("small-{size}-{span}")), size, span)?;
            let target = MountedFile::open(&run.dir.join("null/data"), size, span, OFlags::empty())?;
            let target = RefCell::new(target);
            let long = run.sample_time();
            let arms = vec![
                Arm::new("do-nothing", || target.borrow_mut().us(op, long)),
                Arm::new("amphi", || file.borrow_mut().us(op, long)),
            ];
            let series = alternate(run, &what, arms)?;
            record(run, &mut table, &what, (size, span), &series);
        }
    }
    if run.wants("fstat") {
        fstat(run, &mut table, &cluster.mount)?;
    }
    table.note("Without fsync: with it a transfer costs what the disk costs (see modes). Writes go on while earlier ones are written back.");
    run.show(&table);
    cluster.stop()?;
    null.stop()
}

fn fstat(run: &mut Run, table: &mut Table, mount: &Path) -> Outcome {
    let file = prepared(&mount.join("stat"), 4096, 1 << 20)?;
    let target = MountedFile::open(&run.dir.join("null/data"), 4096, 1 << 20, OFlags::empty())?;
    let long = run.sample_time();
    let arms =
        vec![Arm::new("do-nothing", || target.fstat_us(long)), Arm::new("amphi", || file.borrow().fstat_us(long))];
    let series = alternate(run, "fstat", arms)?;
    let ratio = series[0].over(&series[1]);
    table.row(vec!["fstat".into(), spread(&series[0]), spread(&series[1]), digits(ratio.median()), "-".into()]);
    run.report.findings.push(
        Finding::new("small", "fstat")
            .series("null_us", &series[0])
            .series("amphi_us", &series[1])
            .value(ratio.median()),
    );
    table.note("fstat: the kernel asks the do-nothing target each time and keeps what AmphiFS said.");
    Ok(())
}

fn prepared(path: &Path, size: usize, span: u64) -> Outcome<RefCell<MountedFile>> {
    let mut file = MountedFile::open(path, size, span, OFlags::empty())?;
    set_mode(path, "buffered")?;
    file.fill()?;
    Ok(RefCell::new(file))
}

fn record(run: &mut Run, table: &mut Table, what: &str, (size, span): (usize, u64), series: &[Series]) {
    let ratio = series[0].over(&series[1]);
    let goal = Goal::AtLeast(0.8);
    table.row(vec![what.into(), spread(&series[0]), spread(&series[1]), spread(&ratio), goal.show(ratio.median())]);
    run.report.findings.push(
        Finding::new("small", what)
            .with("transfer_bytes", size)
            .with("span_bytes", span)
            .series("null_us", &series[0])
            .series("amphi_us", &series[1])
            .series("ratio", &ratio)
            .goal(ratio.median(), goal),
    );
}
