//! `amphi bench breakdown`: where the time of a buffered and of a direct write goes (Figure 2 of autoIO, FAST'24):
//! copies, cache management, locks, transport, disk.
//!
//! One stream of the client library to a server behind a Unix socket. Parts are the counters of client and server; the
//! copy into the cache is measured separately, as memcpy of the same bytes to and from memory of the same size, for as
//! many of them as the mount counted as copied: whole units are adopted with their memory. Work that runs at the same
//! time as other work counts in full, so the parts of a buffered write may exceed its elapsed time. Write-back goes one
//! request at a time here, so a buffered write takes longer than it does otherwise.

use super::Run;
use super::embedded::Remote;
use super::library::LibraryFile;
use super::report::{Finding, Table, digits, spread};
use super::round_trip::Way;
use super::series::Series;
use super::turns::{Arm, as_given};
use super::workload::plot::{Bars, Panel, bars};
use amphi_env::Buf;
use amphi_host::failure::Outcome;
use std::cell::RefCell;
use std::hint::black_box;

/// Bytes of a sample.
const BYTES: u64 = 128 << 20;
/// The parts of a write, in their order.
pub const PARTS: [&str; 9] = [
    "copy into the cache",
    "cache management",
    "copy out of the cache",
    "locks of the client",
    "client and transport",
    "order on the server",
    "edges and alignment",
    "disk",
    "log",
];

/// Measures both modes at some sizes.
pub fn run(run: &mut Run) -> Outcome {
    let sizes: &[(usize, u64)] = match run.quick {
        true => &[(1 << 20, 0)],
        false => &[(64 << 10, 0), (1 << 20, 0), (1 << 20, 8), (8 << 20, 0)],
    };
    by_size(run, sizes)
}

/// Both modes at these sizes, each with the bytes that its calls are longer.
pub fn by_size(run: &mut Run, sizes: &[(usize, u64)]) -> Outcome {
    let remote = Remote::start(&run.dir.join("breakdown"), Way::Unix)?;
    // One write-back runs at a time: otherwise requests that wait for each other would count as time of the transport.
    remote.set("writeback.flight_bytes=1M")?;
    let mut columns = vec!["write", "us for a MiB"];
    columns.extend(PARTS);
    let mut table = Table::new("Where the time of a write goes (us for a MiB, median; the first with range)", &columns);
    let mut groups = Vec::new();
    for &(transfer, more) in sizes {
        let transfer = transfer + more as usize;
        for mode in ["buffered", "direct"] {
            let off = if more > 0 { " + 8" } else { "" };
            let what = format!("{mode} {}{off}", amphi_host::size::show((transfer as u64) - more));
            let series = measure(run, &remote, mode, transfer, &what)?;
            let mut line = vec![what.clone(), spread(&series[0])];
            line.extend(series[1..].iter().map(|s| digits(s.median())));
            table.row(line);
            let mut finding =
                Finding::new("breakdown", what.clone()).with("transfer_bytes", transfer).with("mode", mode);
            finding = finding.series("us_per_mib", &series[0]);
            for (name, series) in PARTS.iter().zip(&series[1..]) {
                finding = finding.series(format!("{}_us_per_mib", name.replace(' ', "_")), series);
            }
            run.report.findings.push(finding);
            groups.push((what, series[1..].iter().map(Series::median).collect()));
        }
    }
    table.note(
        "Parts that run at the same time count in full. Write-back goes one request at a time here, so that none waits for another.",
    );
    run.show(&table);
    if let Some(path) = run.picture("breakdown") {
        let names: Vec<String> = PARTS.iter().map(|p| p.to_string()).collect();
        let title = "Where the time of a write goes";
        let panels = [Panel { title: String::new(), groups }];
        bars(&Bars { title, unit: "us for a MiB", names: &names, panels: &panels, columns: 1 }, &path)?;
    }
    remote.stop()
}

/// Microseconds for each MiB: on the clock, then each part.
fn measure(run: &Run, remote: &Remote, mode: &str, transfer: usize, what: &str) -> Outcome<Vec<Series>> {
    let file = LibraryFile::create(remote.client(), "parts")?;
    file.set_mode(mode)?;
    let bytes = BYTES / transfer as u64 * transfer as u64;
    let mib = bytes as f64 / (1 << 20) as f64;
    let us = |ns: f64| ns / 1000.0 / mib;
    let memory = RefCell::new((super::raw::pattern(bytes as usize), Buf::zeroed(bytes as usize)));
    let samples: RefCell<Vec<[f64; 9]>> = RefCell::new(Vec::new());
    let memcpy_us = RefCell::new(0.0);
    let arms = vec![
        Arm::new("memcpy", || {
            let (from, to) = &mut *memory.borrow_mut();
            let start = super::clock::now();
            for (from, to) in from.chunks(transfer).zip(to.chunks_mut(transfer)) {
                to.copy_from_slice(black_box(from));
            }
            memcpy_us.replace(us(start.elapsed().as_nanos() as f64));
            Ok(*memcpy_us.borrow())
        }),
        Arm::new(what, || {
            let before = file.counted()?;
            let (calls_ns, fsync_ns) = file.write_and_fsync_ns(bytes, transfer)?;
            let after = file.counted()?;
            let more = |name: &str| {
                let (b, a) = (before.get(name).copied().unwrap_or(0), after.get(name).copied().unwrap_or(0));
                a.saturating_sub(b) as f64
            };
            let of = |name: &str| us(more(name));
            let server = of("time_write_ns");
            let buffered = mode == "buffered";
            let copy_in = *memcpy_us.borrow() * (more("cache_copied_in") / bytes as f64);
            let management = if buffered { (us(calls_ns) - copy_in).max(0.0) } else { 0.0 };
            samples.borrow_mut().push([
                copy_in,
                management,
                of("writeback_copy"),
                of("lock_wait"),
                (of("write_call") - server).max(0.0),
                of("time_write_wait_ns"),
                of("time_write_edges_ns"),
                of("time_write_disk_ns"),
                of("time_write_log_ns"),
            ]);
            Ok(us(calls_ns + fsync_ns))
        }),
    ];
    let series = as_given(run, what, arms)?;
    let samples = samples.into_inner();
    let mut all = vec![series[1].clone()];
    // The first sample warmed up.
    all.extend((0..PARTS.len()).map(|i| Series(samples[1..].iter().map(|s| s[i]).collect())));
    file.remove()?;
    Ok(all)
}
