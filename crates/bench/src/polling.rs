//! `amphi bench polling`: what it buys to poll briefly before sleeping: the worker after its last work, the caller
//! while it waits.
//!
//! Back to back, and with a pause of 1 ms before each call, in which all threads have gone to sleep.

use super::Run;
use super::cluster::{Cluster, set_mode};
use super::mounted::{MountedFile, Op, paced_us};
use super::report::{Finding, Table, spread};
use super::stream::prepare;
use super::turns::{Arm, alternate, ns_per_op};
use amphi_host::failure::{During, Outcome};
use rustix::fs::{OFlags, XattrFlags, getxattr, setxattr};
use std::cell::RefCell;
use std::time::Duration;

const WORKER_SPINS_US: [u64; 3] = [0, 200, 2000];
const CLIENT_SPINS_US: [u64; 2] = [0, 200];
/// The bytes that reads and writes use.
const SPAN_BYTES: u64 = 16 << 20;
const ATTRIBUTE: &str = "user.bench";
const GAP: Duration = Duration::from_millis(1);

/// Measures every combination.
pub fn run(run: &mut Run) -> Outcome {
    let mut table = Table::new(
        "What brief polling buys, through FUSE (us per call, median and range)",
        &[
            "worker polls us / caller us",
            "question",
            "question, 1,000/s",
            "read 4 KiB",
            "read, 1,000/s",
            "write 4 KiB",
            "write, 1,000/s",
        ],
    );
    let (long, calls) = (run.sample_time(), if run.quick { 20 } else { 200 });
    for worker in WORKER_SPINS_US {
        let dir = run.dir.join(format!("polling-{worker}"));
        let cluster = Cluster::up(&dir, &["--worker-spin-us", &worker.to_string()])?;
        let path = cluster.mount.join("file");
        std::fs::write(&path, b"").during(|| format!("make {}", path.display()))?;
        set_mode(&path, "direct")?;
        prepare(&path, SPAN_BYTES)?;
        let file = RefCell::new(MountedFile::open(&path, 4096, SPAN_BYTES, OFlags::empty())?);
        setxattr(&path, ATTRIBUTE, b"value", XattrFlags::empty()).during(|| "set an attribute".into())?;
        let ask = || getxattr(&path, ATTRIBUTE, &mut [0u8; 16]).during(|| "get an attribute".into()).map(drop);
        for caller in CLIENT_SPINS_US {
            cluster.set(&format!("client.spin_us={caller}"))?;
            let arms = vec![
                Arm::new("ask", || Ok(ns_per_op(long, 8, ask)? / 1000.0)),
                Arm::new("ask, paced", || paced_us(GAP, calls, ask)),
                Arm::new("read", || file.borrow_mut().us(Op::Read, long)),
                Arm::new("read, paced", || file.borrow_mut().paced_us(Op::Read, GAP, calls)),
                Arm::new("write", || file.borrow_mut().us(Op::Write, long)),
                Arm::new("write, paced", || file.borrow_mut().paced_us(Op::Write, GAP, calls)),
            ];
            let what = format!("{worker} / {caller}");
            let series = alternate(run, &what, arms)?;
            let mut row = vec![what.clone()];
            row.extend(series.iter().map(spread));
            table.row(row);
            let mut found = Finding::new("polling", what).with("worker_spin_us", worker).with("client_spin_us", caller);
            let names = ["question_us", "question_paced_us", "read_us", "read_paced_us", "write_us", "write_paced_us"];
            for (name, series) in names.into_iter().zip(&series) {
                found = found.series(name, series);
            }
            run.report.findings.push(found);
        }
        drop(file);
        cluster.stop()?;
    }
    table.note(
        "Question: getxattr, answered from the server's memory (a stat is answered by the kernel from what it keeps).",
    );
    table.note("Direct reads and writes of 4 KiB: every call goes to the server and its disk. Paced: a pause of 1 ms before each call.");
    run.show(&table);
    Ok(())
}
