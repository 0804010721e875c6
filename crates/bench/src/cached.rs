//! `amphi bench library`: the cost of a cached operation in the client library, and of a stat of the server.
//!
//! Cached 4 KiB reads and writes beside `memcpy` of the same bytes at the same places: hot (64 KiB, the processor's
//! cache) and large (64 MiB, main memory). A stat beside a bare ping-pong over the same way with the same polling.

use super::Run;
use super::embedded::{Embedded, Remote};
use super::library::LibraryFile;
use super::report::{Finding, Goal, Table, digits, spread};
use super::round_trip::{RoundTrip, Way};
use super::turns::{Arm, alternate, ns_per_op};
use amphi_client::Client;
use amphi_env::Buf;
use amphi_host::failure::Outcome;
use std::cell::{Cell, RefCell};
use std::hint::black_box;

const CALL_BYTES: usize = 4096;
const SPANS_BYTES: [u64; 2] = [64 << 10, 64 << 20];

/// Measures both.
pub fn run(run: &mut Run) -> Outcome {
    let embedded = Embedded::start(&run.dir.join("library"))?;
    let mut table = Table::new(
        "Cached 4 KiB calls of the client library (ns per call, median and range)",
        &["call", "memcpy", "library", "library - 3 x memcpy", "goal"],
    );
    for span in SPANS_BYTES {
        cached(run, &mut table, embedded.client(), span)?;
    }
    run.show(&table);
    let mut table = Table::new(
        "A stat answered by the server (us, median and range)",
        &["way", "bare round trip", "stat, two threads", "ratio", "goal", "stat, three threads", "ratio"],
    );
    stat(run, &mut table, Way::Thread, embedded.client())?;
    embedded.stop()?;
    for way in [Way::Unix, Way::Tcp] {
        let remote = Remote::start(&run.dir.join(format!("library-{}", way.name())), way)?;
        stat(run, &mut table, way, remote.client())?;
        remote.stop()?;
    }
    table.note("All are medians of single calls. Two threads: the caller is a task on the thread that has the connection, as in the bare round trip; in-process");
    table.note("that is the server's own thread. Three threads: the caller is a thread of its own, one more hand-over each way (not in-process).");
    run.show(&table);
    Ok(())
}

fn cached(run: &mut Run, table: &mut Table, client: &Client, span: u64) -> Outcome {
    let what = format!("4 KiB of {}", amphi_host::size::show(span));
    if !run.wants(&format!("cached {what}")) {
        return Ok(());
    }
    let file = LibraryFile::create(client, "cached")?;
    file.set_mode("buffered")?;
    file.stream_write(span, (1 << 20).min(span as usize))?;
    let memory = RefCell::new(super::raw::pattern(span as usize));
    let (mut into, from) = (Buf::zeroed(CALL_BYTES), super::raw::pattern(CALL_BYTES));
    let into = RefCell::new(&mut into);
    let at = Cell::new(0u64);
    let next = || {
        let here = at.get();
        at.set(if here + 2 * CALL_BYTES as u64 > span { 0 } else { here + CALL_BYTES as u64 });
        here
    };
    let elsewhere = Cell::new(0u64);
    let long = run.sample_time();
    let arms = vec![
        Arm::new("memcpy", || {
            let (memory, mut into) = (memory.borrow(), into.borrow_mut());
            ns_per_op(long, 64, || {
                let here = next() as usize;
                into.copy_from_slice(&memory[here..here + CALL_BYTES]);
                black_box(&mut into[..]);
                Ok(())
            })
        }),
        Arm::new("read", || {
            let mut into = into.borrow_mut();
            ns_per_op(long, 64, || file.cached_read(next(), &mut into))
        }),
        Arm::new("memcpy in", || {
            let mut memory = memory.borrow_mut();
            ns_per_op(long, 64, || {
                let here = next() as usize;
                memory[here..here + CALL_BYTES].copy_from_slice(black_box(&from));
                Ok(())
            })
        }),
        Arm::new("write", || {
            ns_per_op(long, 64, || {
                let here = file.cached_write(next(), &from)?;
                elsewhere.set(elsewhere.get() + u64::from(!here));
                Ok(())
            })
        }),
    ];
    let series = alternate(run, &what, arms)?;
    for (op, copy, call) in [("read", &series[0], &series[1]), ("write", &series[2], &series[3])] {
        let beyond = call.median() - 3.0 * copy.median();
        let goal = Goal::AtMost(300.0);
        table.row(vec![format!("{op} {what}"), spread(copy), spread(call), digits(beyond), goal.show(beyond)]);
        run.report.findings.push(
            Finding::new("library", format!("cached {op} {what}"))
                .with("span_bytes", span)
                .with("call_bytes", CALL_BYTES)
                .with("writes_that_waited", elsewhere.get())
                .series("memcpy_ns", copy)
                .series("library_ns", call)
                .goal(beyond, goal),
        );
    }
    if elsewhere.get() > 0 {
        table.note(format!("{} writes of {what} were not served on the calling thread.", elsewhere.get()));
    }
    file.remove()
}

fn stat(run: &mut Run, table: &mut Table, way: Way, client: &Client) -> Outcome {
    let what = format!("stat {}", way.name());
    if !run.wants(&what) {
        return Ok(());
    }
    let file = LibraryFile::create(client, "stat")?;
    let (client_spin, server_spin) = super::DEFAULT_SPINS;
    let rounds = if run.quick { 500 } else { 2000 };
    let arms = vec![
        Arm::new("bare", || {
            let caller = if way == Way::Thread { client_spin } else { server_spin };
            RoundTrip::of(way, caller, server_spin).sample_us(run, rounds)
        }),
        Arm::new("stat", || file.stats_us(rounds)),
        Arm::new("stat beside", || file.stats_beside_us(rounds)),
    ];
    let series = alternate(run, &what, arms)?;
    let (ratio, beside) = (series[1].over(&series[0]), series[2].over(&series[0]));
    let goal = Goal::AtMost(1.5);
    let shown = vec![
        way.name().into(),
        spread(&series[0]),
        spread(&series[2]),
        spread(&beside),
        goal.show(beside.median()),
        spread(&series[1]),
        spread(&ratio),
    ];
    table.row(shown);
    run.report.findings.push(
        Finding::new("library", what)
            .with("way", way.name())
            .series("bare_us", &series[0])
            .series("stat_us", &series[2])
            .series("ratio", &beside)
            .series("stat_third_thread_us", &series[1])
            .series("ratio_third_thread", &ratio)
            .goal(beside.median(), goal),
    );
    file.remove()
}
