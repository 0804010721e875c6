//! Time of the processor that operations of a `MetaStore` take, for docs/design/inode_records.md. To compare two
//! commits, build this at both and run the two in turn:
//!
//! `cargo run --release -p amphi-meta --example store [FILES]`

use amphi_meta::{MetaStore, NodeSpec};
use amphi_types::item::{ItemStore, Txn};
use amphi_types::{Cred, Ino, Name, SetAttr, TargetId, TimeSet, Timespec};
use std::hint::black_box;

const FILES: usize = 200_000;
const ROUNDS: usize = 5;
const COLUMNS: [&str; 8] = ["make", "find", "facts", "getattr", "setattr", "settle", "load", "unlink"];

/// Time of the processor that this thread has used, in ns.
fn cpu_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// The clock of the operations: 40 us later with each call.
struct Clock(u64);

impl Clock {
    fn now(&mut self) -> Timespec {
        self.0 += 40_000;
        Timespec::from_ns(self.0)
    }
}

/// The numbers below `count` in an order that has nothing to do with that of the files.
fn shuffled(count: usize) -> impl Iterator<Item = usize> {
    let step = (7_368_787 % count) | 1;
    (0..count).scan(0, move |at, _| {
        *at = (*at + step) % count;
        Some(*at)
    })
}

/// Nanoseconds of each operation, in the order of `COLUMNS`.
fn round(files: usize, dirs: usize) -> [f64; COLUMNS.len()] {
    let (root, mut clock) = (Cred::root(), Clock(1_700_000_000_000_000_000));
    let (mut store, mut log) = MetaStore::format(TargetId(0), 1, clock.now(), Some((0, 0)), 4);
    let mut make = |store: &mut MetaStore, dir: Ino, name: &Name, spec: &NodeSpec| {
        let mut txn = Txn::default();
        let ino = store.make(&root, dir, name, spec, clock.now(), &mut txn).expect("it is made");
        (ino, txn)
    };
    let name = |text: String| Name::new(text).expect("a name");
    let spec = NodeSpec::dir(0o755);
    let mut places = Vec::new();
    for n in 0..dirs {
        let (dir, txn) = make(&mut store, Ino::ROOT, &name(format!("dir.mdtest.0.{n}")), &spec);
        log.append(&txn);
        places.push(dir);
    }
    let names: Vec<(Ino, Name)> = (0..files).map(|n| (places[n % dirs], name(format!("file.mdtest.0.{n}")))).collect();
    let (spec, mut inos) = (NodeSpec::file(0o644), Vec::with_capacity(files));
    let mut marks = vec![cpu_ns()];
    for (dir, name) in &names {
        let (ino, txn) = make(&mut store, *dir, name, &spec);
        black_box(&txn);
        inos.push(ino);
    }
    marks.push(cpu_ns());
    for n in shuffled(files) {
        let (dir, name) = &names[n];
        black_box(store.find(*dir, name).expect("it is found"));
    }
    marks.push(cpu_ns());
    for n in shuffled(files) {
        black_box(store.facts(inos[n]).expect("it exists"));
    }
    marks.push(cpu_ns());
    for n in shuffled(files) {
        black_box(store.getattr(inos[n]).expect("it exists"));
    }
    marks.push(cpu_ns());
    for n in shuffled(files) {
        let now = clock.now();
        let set = SetAttr { mtime: Some(TimeSet::At(now)), ..SetAttr::default() };
        let mut txn = Txn::default();
        black_box(store.setattr(&root, inos[n], &set, now, &mut txn).expect("it is changed"));
    }
    marks.push(cpu_ns());
    for n in shuffled(files) {
        let gathered = amphi_meta::Gathered { size: 3901, mtime: clock.now(), blocks: 8 };
        store.settle(inos[n], &gathered, &mut Txn::default()).expect("it is a file");
    }
    marks.push(cpu_ns());
    let mut items = Vec::new();
    loop {
        let after = items.last().map_or(Vec::new(), |(key, _): &(Vec<u8>, Vec<u8>)| key.clone());
        let keys = store.keys_after(&after, 4096);
        if keys.is_empty() {
            break;
        }
        items.extend(keys.into_iter().map(|key| (key.clone(), store.value_of(&key).expect("it is an item"))));
    }
    let begin = cpu_ns();
    let mut loaded = MetaStore::empty(TargetId(0));
    for (key, value) in &items {
        loaded.load(key, value).expect("it is an item");
    }
    let load = cpu_ns() - begin;
    assert_eq!(loaded.inode_count(), store.inode_count());
    drop(loaded);
    let begin = cpu_ns();
    for (dir, name) in &names {
        let mut txn = Txn::default();
        let applied = store.unlink(&root, *dir, name, clock.now(), &mut txn).expect("it is unlinked");
        for ino in applied.orphaned {
            store.remove_inode(ino, &mut txn).expect("it has no name");
        }
    }
    let unlink = cpu_ns() - begin;
    let mut times: Vec<f64> = marks.windows(2).map(|pair| pair[1] - pair[0]).collect();
    times.extend([load, unlink]);
    let mut all = [0.0; COLUMNS.len()];
    all.iter_mut().zip(times).for_each(|(to, time)| *to = time / files as f64);
    all
}

fn main() {
    let files = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(FILES);
    println!("ns an operation, the least of {ROUNDS} rounds, {files} files");
    println!("{:>12} {}", "directories", COLUMNS.map(|c| format!("{c:>8}")).join(""));
    for dirs in [1, 1000] {
        let mut best = [f64::MAX; COLUMNS.len()];
        for _ in 0..ROUNDS {
            best.iter_mut().zip(round(files, dirs)).for_each(|(best, time)| *best = best.min(time));
        }
        println!("{dirs:>12} {}", best.map(|ns| format!("{ns:>8.0}")).join(""));
    }
}
