//! Memory of the start of a target: its peak, and what remains in use.
//!
//! `start_memory make ZONE FILES` makes a zone with this many files of 3,901 bytes in directories of 1,000.
//! `start_memory stream|map ZONE` loads it. With `stream` the items are given to the stores one by one, as in a server.
//! With `map` they are also kept in a map, as in an earlier version. Both commands print the memory for each file, in
//! bytes, in addition to what the process had before, and the processor time.

use amphi_data::{DataStore, Fresh};
use amphi_env::RealEnv;
use amphi_meta::{MetaStore, NodeSpec};
use amphi_types::item::{ItemStore, Key, Txn, tag};
use amphi_types::{ByteRange, Cred, Ino, Name, ObjectId, TargetId, Timespec};
use amphi_zone::{OpenOptions, Order, Zone, ZoneParams};
use std::collections::BTreeMap;
use std::time::Duration;

const FILES_A_DIRECTORY: u64 = 1000;
const FILE_BYTES: u64 = 3901;

/// A line of `/proc/self/status`, KiB.
fn status_kib(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// CPU of this thread, ms.
fn cpu_ms() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0) / 1_000_000
}

fn name(n: u64) -> Name {
    Name::new(format!("file.mdtest.0.{n}").into_bytes()).expect("a name")
}

async fn make(env: RealEnv, path: &str, files: u64) {
    let params = ZoneParams { size_bytes: 16 << 30, log_bytes: 0, cluster: 1, target: TargetId(0) };
    Zone::format(&env, path, &params).await.expect("formats");
    let (zone, _) = Zone::open(&env, path, &OpenOptions::default()).await.expect("opens");
    let now = Timespec { sec: 1_800_000_000, nsec: 1 };
    let (mut meta, first) = MetaStore::format(TargetId(0), 7, now, Some((0, 0)), 1);
    let mut data = DataStore::new(zone.data_blocks());
    zone.append(first, Order::Plain);
    let (cred, mut dir) = (Cred::root(), Ino::ROOT);
    for n in 0..files {
        let mut txn = Txn::default();
        if n % FILES_A_DIRECTORY == 0 {
            dir = meta.make(&cred, Ino::ROOT, &name(n), &NodeSpec::dir(0o755), now, &mut txn).expect("a directory");
        }
        let ino = meta.make(&cred, dir, &name(n), &NodeSpec::file(0o644), now, &mut txn).expect("a file");
        let object = ObjectId { ino, stripe: 0 };
        let range = ByteRange::new(0, FILE_BYTES);
        let plan = data.plan_write(object, range, 0, Fresh::Needed, None).expect("room");
        let freed = data.commit_write(plan, now, &mut txn);
        assert!(freed.is_empty());
        zone.reserve(1000).await.expect("room");
        zone.append(txn, Order::Plain);
    }
    zone.close().await.expect("closed");
}

fn load(meta: &mut MetaStore, data: &mut DataStore, key: &[u8], value: &[u8]) {
    let store: &mut dyn ItemStore = match key[0] {
        tag::OBJECT | tag::EXTENT => data,
        _ => meta,
    };
    store.load(key, value).expect("it fits");
}

async fn start(env: RealEnv, path: &str, streams: bool) {
    let (before, cpu) = (status_kib("VmRSS"), cpu_ms());
    let options = OpenOptions::default();
    let mut found = Zone::find(&env, path, &options).await.expect("is found");
    let mut meta = MetaStore::empty(found.target());
    let mut data = DataStore::new(found.data_blocks());
    let mut items: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    if streams {
        found.items(|key, value| load(&mut meta, &mut data, key, value)).await.expect("items");
    } else {
        found.items(|key, value| drop(items.insert(key.to_vec(), value.to_vec()))).await.expect("items");
        items.iter().for_each(|(key, value)| load(&mut meta, &mut data, key, value));
    }
    let (_zone, _) = found.open().await.expect("opens");
    meta.loaded().expect("whole");
    data.finish_load().expect("whole");
    drop(items);
    let files = meta.inode_count().max(1);
    let each = |name: &str| (status_kib(name) - before) * 1024 / files;
    let (peak, steady) = (each("VmHWM"), each("VmRSS"));
    println!("files {files} peak_bytes {peak} steady_bytes {steady} cpu_ms {}", cpu_ms() - cpu);
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    RealEnv::run(Duration::ZERO, |env| async move {
        match words[..] {
            ["make", path, files] => make(env, path, files.parse().expect("a number")).await,
            ["stream", path] => start(env, path, true).await,
            ["map", path] => start(env, path, false).await,
            _ => eprintln!("start_memory make ZONE FILES | stream ZONE | map ZONE"),
        }
    });
}
