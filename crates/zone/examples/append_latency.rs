//! Measures what a log record costs: `append` + `written`, alone and from 16 tasks at once, beside a bare 4 KiB
//! O_DIRECT write to the same file, alternating, medians of 7 rounds.
//!
//! `cargo run --release -p amphi-zone --example append_latency -- DIR`

use amphi_env::real::RealEnv;
use amphi_env::{Buf, Disk, Env};
use amphi_types::TargetId;
use amphi_types::item::Txn;
use amphi_zone::{OpenOptions, Order, Zone, ZoneParams};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const ROUNDS: usize = 7;
const OPS: u64 = 3000;

/// A record like that of a file creation: inode and entry.
fn record(i: u64) -> Txn {
    let mut t = Txn::default();
    t.put([b"I".as_slice(), &i.to_be_bytes()].concat(), vec![1; 120]);
    t.put([b"D".as_slice(), &i.to_be_bytes()].concat(), vec![2; 40]);
    t
}

async fn appends(env: &RealEnv, zone: &Zone<RealEnv>, tasks: u64) -> f64 {
    let left = Rc::new(Cell::new(tasks));
    let (done, wait) = futures_util::future::abortable(std::future::pending::<()>());
    let start = env.now();
    for task in 0..tasks {
        let (zone, left, wait) = (zone.clone(), left.clone(), wait.clone());
        env.spawn(async move {
            for i in 0..OPS / tasks * if tasks > 1 { 8 } else { 1 } {
                if zone.reserve(300).await.is_err() {
                    break;
                }
                let lsn = zone.append(record(task << 32 | i), Order::Plain);
                if zone.written(lsn).await.is_err() {
                    break;
                }
            }
            left.set(left.get() - 1);
            if left.get() == 0 {
                wait.abort();
            }
        });
    }
    let _ = done.await;
    let count = OPS / tasks * tasks * if tasks > 1 { 8 } else { 1 };
    env.now().since(start).as_secs_f64() * 1e6 / count as f64
}

async fn bare(env: &RealEnv, zone: &Zone<RealEnv>) -> f64 {
    let disk = zone.disk();
    let mut buf = Buf::zeroed(4096);
    let start = env.now();
    for i in 0..OPS {
        let (result, back) = disk.write(zone.data_offset() + i % 1024 * 4096, buf).await;
        if result.is_err() {
            break;
        }
        buf = back;
    }
    env.now().since(start).as_secs_f64() * 1e6 / OPS as f64
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

fn main() {
    let dir = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let path = format!("{dir}/append_latency.zone");
    let spin = Duration::from_micros(200);
    let result = RealEnv::run(spin, async |env| {
        let params = ZoneParams { size_bytes: 1 << 30, log_bytes: 64 << 20, cluster: 1, target: TargetId(0) };
        Zone::format(&env, &path, &params).await?;
        let (zone, _) = Zone::open(&env, &path, &OpenOptions::default()).await?;
        bare(&env, &zone).await;
        let (mut one, mut many, mut raw) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            raw.push(bare(&env, &zone).await);
            one.push(appends(&env, &zone, 1).await);
            many.push(appends(&env, &zone, 16).await);
        }
        let (raw, one, many) = (median(raw), median(one), median(many));
        println!("bare 4 KiB write        {raw:8.1} us");
        println!("append, one at a time   {one:8.1} us   {:.2} x the bare write", one / raw);
        println!("append, 16 at a time    {many:8.1} us   {:.0} records/s", 1e6 / many);
        println!("{:?}", zone.stats());
        zone.close().await
    });
    if let Err(e) = std::fs::remove_file(&path) {
        eprintln!("{path}: {e}");
    }
    if let Err(e) = result {
        eprintln!("{e}");
        std::process::exit(2);
    }
}
