//! The cost of the log: CPU of appending, of checkpoints, of reads of ranges and of a start, and the bytes that a start
//! reads.
//!
//! The records are those of creates: an inode, an entry, the directory and the answer of a slot. The disk is the
//! simulated one, in memory, so CPU is that of the program and of copies. Usage: `log_cost [RECORDS] [LOG_MIB]`; builds
//! are compared by running them in turns.

use amphi_env::sim::{CrashKind, Sim, SimConfig};
use amphi_types::TargetId;
use amphi_types::item::Txn;
use amphi_zone::{OpenOptions, Order, Zone, ZoneParams};

/// The number of records that are appended before the program waits for the first of them.
const DEPTH: u64 = 64;
/// Ranges that are read to see what one costs.
const SCANS: u64 = 200;

/// CPU of this thread, ns.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The record of the creation of file `n`: 1,000 files for each directory, hashed names.
fn create(n: u64, round: u8) -> Txn {
    let mut txn = Txn::default();
    let dir = 1 + n / 1000;
    let mut hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^= hash >> 29;
    txn.put([&b"I"[..], &(2_000_000 + n).to_be_bytes()].concat(), vec![round; 88]);
    txn.put([&b"D"[..], &dir.to_be_bytes(), &(hash << 8 >> 1).to_be_bytes()].concat(), vec![round; 30]);
    txn.put([&b"I"[..], &dir.to_be_bytes()].concat(), vec![round; 86 + (n % 3) as usize]);
    txn.put([&b"R"[..], &[7; 8], &((n % DEPTH) as u16).to_be_bytes()].concat(), vec![round; 150]);
    txn
}

fn main() {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<u64>().expect("a number"));
    let records = words.next().unwrap_or(100_000);
    let log_mib = words.next().unwrap_or(256);
    let sim = Sim::new(1, SimConfig::default());
    let env = sim.node("n");
    let params = ZoneParams { size_bytes: 8 << 30, log_bytes: log_mib << 20, cluster: 1, target: TargetId(0) };
    sim.block_on(Zone::format(&env, "zone", &params)).expect("no deadlock").expect("formats");
    let manual = OpenOptions { auto_checkpoint: false, ..OpenOptions::default() };
    let (zone, _) = sim.block_on(Zone::open(&env, "zone", &manual)).expect("no deadlock").expect("opens");
    let per = |ns: u64, count: u64| ns / count.max(1);
    for round in 0..3u8 {
        let before = cpu_ns();
        let root = async {
            for n in 0..records {
                zone.reserve(400).await.expect("room");
                let lsn = zone.append(create(n * 3 + u64::from(round), round), Order::Plain);
                if n % DEPTH == DEPTH - 1 {
                    zone.written(lsn).await.expect("written");
                }
            }
            zone.sync().await.expect("synced");
        };
        sim.block_on(root).expect("no deadlock");
        let appended = cpu_ns();
        if round < 2 {
            sim.block_on(zone.checkpoint()).expect("no deadlock").expect("a checkpoint");
        }
        let done = cpu_ns();
        println!(
            "round {round}: append_ns {} checkpoint_ns {}",
            per(appended - before, records),
            per(done - appended, records)
        );
    }
    for scans in [1, SCANS] {
        let before = cpu_ns();
        for n in 0..scans {
            // The inodes of a block of 64, a part of whose changes are in the log.
            let inode = |n: u64| [&b"I"[..], &n.to_be_bytes()].concat();
            let from = 2_000_000 + n * 6151 % records * 3 / 64 * 64;
            let found = sim.block_on(zone.scan(&inode(from), &inode(from + 64), 64)).expect("no deadlock");
            assert!(!found.expect("a range").is_empty());
        }
        println!("scans: {scans} us_scan {}", per(cpu_ns() - before, scans) / 1000);
    }
    drop(zone);
    sim.crash("n", CrashKind::Process);
    let env = sim.node("n");
    let read = sim.disk_ops("n").read_bytes;
    let before = cpu_ns();
    let (_zone, found) = sim.block_on(Zone::open(&env, "zone", &manual)).expect("no deadlock").expect("opens");
    let spent = cpu_ns() - before;
    let items = found.items.len() as u64;
    println!(
        "start: items {items} cpu_ns_item {} read_mib {}",
        per(spent, items),
        (sim.disk_ops("n").read_bytes - read) >> 20
    );
}
