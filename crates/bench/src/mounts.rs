//! `amphi bench mounts`: the cost of a second mount, and when it sees changes, by two client libraries of one server on
//! a Unix socket.
//!
//! Owns: the comparisons. Sides: one mount does all of it, or a bare ping-pong on a socket of the same type with the
//! same polling. Messages are counted by the clients' own counters, so that "round trips" is a number and not a guess
//! from times.

use super::Run;
use super::idle::cpu_ns;
use super::library::LibraryFile;
use super::program::Program;
use super::raw::RawFile;
use super::report::{Finding, Goal, Table, digits, spread};
use super::round_trip::{RoundTrip, Way};
use super::series::Series;
use super::turns::{Arm, alternate};
use amphi_client::{Client, Ctx};
use amphi_host::client::Running;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_types::Ino;
use std::cell::{Cell, RefCell};
use std::sync::mpsc;

/// Bytes of the file that both write.
const SHARED_BYTES: u64 = 64 << 20;
/// Bytes of a block that one of them writes.
const BLOCK_BYTES: usize = 1 << 20;
/// Bytes that a mount reads again and again from its cache.
const REREAD_BYTES: u64 = 32 << 20;

/// A server and two clients of it.
struct Two {
    server: Program,
    mounts: Vec<Running>,
    dir: std::path::PathBuf,
}

impl Two {
    fn start(run: &Run) -> Outcome<Two> {
        let dir = run.dir.join("mounts");
        std::fs::create_dir_all(&dir).during(|| format!("make {}", dir.display()))?;
        let (server, addr) = Program::server(&dir.join("data"), Way::Unix)?;
        let mut mounts = Vec::new();
        for _ in 0..2 {
            let (ended, _) = mpsc::channel();
            let config = amphi_host::client::client_config(None, &[])?;
            mounts.push(amphi_host::client::start_client(
                vec![addr.clone()],
                None,
                super::DEFAULT_SPINS.1,
                config,
                ended,
            )?);
        }
        Ok(Two { server, mounts, dir })
    }

    fn client(&self, which: usize) -> &Client {
        &self.mounts[which].client
    }

    fn stop(self) -> Outcome {
        for mount in self.mounts {
            mount.stop()?;
        }
        self.server.stop()?;
        std::fs::remove_dir_all(&self.dir).during(|| format!("remove {}", self.dir.display()))
    }
}

/// Requests that a client has sent to its servers.
fn requests(client: &Client) -> Outcome<u64> {
    let text = client.getxattr(&Ctx::root(), Ino::ROOT, b"user.amphi.stats.json").wait(None);
    let text = text.during(|| "read the counters of a client".into())?;
    let json: serde_json::Value =
        serde_json::from_slice(&text).map_err(|e| Failure::broken(format!("the counters of a client: {e}")))?;
    Ok(json["counters"]["server_calls"]["samples"].as_u64().unwrap_or(0))
}

/// Measures everything.
pub fn run(run: &mut Run) -> Outcome {
    let two = Two::start(run)?;
    ping_pong(run, &two)?;
    stats(run, &two)?;
    blocks(run, &two)?;
    rereads(run, &two)?;
    two.stop()
}

/// Two mounts write one byte in turn: the lock alternates between them, with the data written under it.
fn ping_pong(run: &mut Run, two: &Two) -> Outcome {
    let a = LibraryFile::create(two.client(0), "byte")?;
    let b = LibraryFile::open(two.client(1), "byte")?;
    let rounds = if run.quick { 100 } else { 500 };
    let (client_spin, server_spin) = super::DEFAULT_SPINS;
    let counted = Cell::new(0.0);
    let log = RefCell::new(RawFile::filled(&run.dir.join("raw-mounts"), "log", 16 << 20)?);
    let long = run.sample_time();
    let arms = vec![
        Arm::new("bare", || RoundTrip::of(Way::Unix, client_spin, server_spin).sample_us(run, 4 * rounds)),
        Arm::new("4 KiB O_DIRECT write", || log.borrow_mut().log_write_us(long)),
        Arm::new("byte in turn", || {
            let before = requests(two.client(0))? + requests(two.client(1))?;
            let start = super::clock::now();
            for i in 0..rounds {
                a.cached_write(0, &[i as u8])?;
                b.cached_write(0, &[i as u8])?;
            }
            let us = start.elapsed().as_secs_f64() * 1e6 / (2 * rounds) as f64;
            let after = requests(two.client(0))? + requests(two.client(1))?;
            counted.set(after.saturating_sub(before) as f64 / (2 * rounds) as f64);
            Ok(us)
        }),
    ];
    let series = alternate(run, "lock ping-pong", arms)?;
    // The byte that was written under the lock goes to the disk: a data write and the record of it.
    let disk = series[1].map(|us| 2.0 * us);
    let beyond = Series(series[2].0.iter().zip(&disk.0).map(|(all, disk)| (all - disk).max(0.0)).collect());
    let trips = beyond.over(&series[0]);
    let goal = Goal::AtMost(3.0);
    let mut table = Table::new(
        "Two mounts write the same byte in turn (us for each write, median and range)",
        &[
            "bare round trip",
            "4 KiB O_DIRECT write",
            "write",
            "less two disk writes, in bare round trips",
            "round trips sent",
            "goal",
        ],
    );
    table.row(vec![
        spread(&series[0]),
        spread(&series[1]),
        spread(&series[2]),
        spread(&trips),
        digits(counted.get()),
        goal.show(counted.get()),
    ]);
    table.note(
        "Round trips sent for each write, counted at both clients: asking for the lock, writing back, giving back. The callback is a push. Their time is that of six messages that each wake a thread.",
    );
    run.show(&table);
    run.report.findings.push(
        Finding::new("mounts", "lock ping-pong")
            .with("round_trips_sent_for_each_write", counted.get())
            .series("bare_us", &series[0])
            .series("disk_write_us", &series[1])
            .series("write_us", &series[2])
            .series("time_in_bare_round_trips", &trips)
            .goal(counted.get(), goal),
    );
    b.close();
    a.remove()
}

/// stat of a file that the other mount writes, of one without a writer, and of one that is known.
fn stats(run: &mut Run, two: &Two) -> Outcome {
    let mut table = Table::new(
        "stat by one mount (us, median and range)",
        &["file", "stat", "bare round trip", "in bare round trips", "round trips sent", "goal"],
    );
    let (client_spin, server_spin) = super::DEFAULT_SPINS;
    let rounds = if run.quick { 200 } else { 1000 };
    for (what, most) in
        [("written by the other mount", 3.0), ("changed by the other mount before", 1.0), ("known", 0.0)]
    {
        let a = LibraryFile::create(two.client(0), "stat")?;
        a.set_mode("buffered")?;
        let b = LibraryFile::open(two.client(1), "stat")?;
        let other = match what {
            "written by the other mount" => Some(a),
            _ => {
                a.close();
                None
            }
        };
        let changer = LibraryFile::open_read(two.client(0), "stat")?;
        let counted = Cell::new(0.0);
        // The answer of a writer that is asked for the size is a request of its own.
        let both = || Ok::<u64, Failure>(requests(two.client(0))? + requests(two.client(1))?);
        let arms = vec![
            Arm::new("bare", || RoundTrip::of(Way::Unix, client_spin, server_spin).sample_us(run, 2 * rounds)),
            Arm::new("stat", || {
                let mut times = Vec::with_capacity(rounds);
                let mut sent = 0;
                b.stat()?;
                for i in 0..rounds {
                    match &other {
                        Some(a) => drop(a.cached_write(i as u64 % 4096, &[1])?),
                        None if what == "known" => {}
                        None => changer.chmod(0o600 + (i % 2) as u16)?,
                    }
                    // The look at the counters is not a request to a server.
                    let before = if i % 50 == 0 { Some(both()?) } else { None };
                    let start = super::clock::now();
                    b.stat()?;
                    times.push(start.elapsed().as_nanos() as u64);
                    if let Some(before) = before {
                        sent += both()?.saturating_sub(before);
                    }
                }
                counted.set(sent as f64 / rounds.div_ceil(50) as f64);
                times.sort_unstable();
                Ok(times[times.len() / 2] as f64 / 1000.0)
            }),
        ];
        let series = alternate(run, what, arms)?;
        let trips = series[1].over(&series[0]);
        let goal = Goal::AtMost(most);
        table.row(vec![
            what.into(),
            spread(&series[1]),
            spread(&series[0]),
            spread(&trips),
            digits(counted.get()),
            goal.show(counted.get()),
        ]);
        run.report.findings.push(
            Finding::new("mounts", format!("stat, {what}"))
                .with("round_trips_sent", counted.get())
                .series("bare_us", &series[0])
                .series("stat_us", &series[1])
                .series("time_in_bare_round_trips", &trips)
                .goal(counted.get(), goal),
        );
        changer.close();
        b.close();
        LibraryFile::open(two.client(0), "stat")?.remove()?;
    }
    table.note("Round trips sent, counted at both clients: a file that is written is asked for at its writer, which is one more. The caller is a thread of its own: one more hand-over each way than the bare round trip.");
    run.show(&table);
    Ok(())
}

/// Both write alternate blocks of one file, beside one that writes all of it.
fn blocks(run: &mut Run, two: &Two) -> Outcome {
    let a = LibraryFile::create(two.client(0), "blocks")?;
    let b = LibraryFile::open(two.client(1), "blocks")?;
    let bytes = if run.quick { SHARED_BYTES / 4 } else { SHARED_BYTES };
    let arms = vec![
        Arm::new("one mount", || a.stream_write(bytes, BLOCK_BYTES)),
        Arm::new("two mounts", || {
            a.empty()?;
            super::stream::together(2, |which, ready| {
                let file = if which == 0 { &a } else { &b };
                file.write_blocks(bytes, BLOCK_BYTES, which, 2, ready)
            })
        }),
    ];
    let series = alternate(run, "alternate blocks", arms)?;
    let ratio = series[1].over(&series[0]);
    let goal = Goal::AtLeast(0.9);
    let mut table = Table::new(
        format!(
            "{} written in blocks of 1 MiB to the end of fsync (MiB/s, median and range)",
            amphi_host::size::show(bytes)
        ),
        &["one mount writes all", "two write every other block", "ratio", "goal"],
    );
    table.row(vec![spread(&series[0]), spread(&series[1]), spread(&ratio), goal.show(ratio.median())]);
    run.show(&table);
    run.report.findings.push(
        Finding::new("mounts", "alternate blocks")
            .with("bytes", bytes)
            .with("block_bytes", BLOCK_BYTES)
            .series("one_mib_s", &series[0])
            .series("two_mib_s", &series[1])
            .goal(ratio.median(), goal),
    );
    b.close();
    a.remove()
}

/// Both read the same file; the cost for the server when the second mount reads cached data again.
fn rereads(run: &mut Run, two: &Two) -> Outcome {
    let a = LibraryFile::create(two.client(0), "reread")?;
    a.prepare(REREAD_BYTES)?;
    a.set_mode("buffered")?;
    a.stream_read(REREAD_BYTES, 256 << 10)?;
    let b = LibraryFile::open_read(two.client(1), "reread")?;
    b.stream_read(REREAD_BYTES, 256 << 10)?;
    let pid = two.server.pid();
    let percent = |work: &mut dyn FnMut() -> Outcome| -> Outcome<f64> {
        let before = cpu_ns(pid)?;
        let start = super::clock::now();
        work()?;
        Ok(cpu_ns(pid)?.saturating_sub(before) as f64 / start.elapsed().as_nanos() as f64 * 100.0)
    };
    let long = run.sample_time() * 5;
    let before = requests(two.client(1))?;
    let arms = vec![
        Arm::new("idle", || {
            percent(&mut || {
                super::clock::pause(long);
                Ok(())
            })
        }),
        Arm::new("rereading", || {
            percent(&mut || {
                let start = super::clock::now();
                while start.elapsed() < long {
                    b.stream_read(REREAD_BYTES, 256 << 10)?;
                }
                Ok(())
            })
        }),
    ];
    let series = alternate(run, "reread", arms)?;
    let sent = requests(two.client(1))?.saturating_sub(before);
    let goal = Goal::AtMost(0.2);
    let mut table = Table::new(
        "Processor time of the server while the second mount reads 32 MiB that it has cached (% of a core, median and range)",
        &["nobody does anything", "it reads", "goal", "requests sent"],
    );
    table.row(vec![spread(&series[0]), spread(&series[1]), goal.show(series[1].median()), sent.to_string()]);
    run.show(&table);
    run.report.findings.push(
        Finding::new("mounts", "reread of what is cached")
            .with("requests", sent)
            .series("idle_percent", &series[0])
            .series("reading_percent", &series[1])
            .goal(series[1].median(), goal),
    );
    b.close();
    a.remove()
}
