//! Reads that the server serves from its memory: their results, their cost, and which blocks they load.

use super::data::bytes;
use super::*;
use amphi_env::sim::CrashKind;
use amphi_object::planted::{Mistake, plant};
use amphi_types::{ByteRange, SetAttr};
use amphi_wire::ReadAdvice;
use std::panic::{AssertUnwindSafe, catch_unwind};

const MTIME: Timespec = Timespec { sec: 2_000_000_000, nsec: 0 };
/// Bytes of a record of ior-hard.
const RECORD: u64 = 47_008;

fn place(seed: u64, more: &[(&str, &str)]) -> Place {
    let mut place = Place::new(seed, 1, 1);
    place.config.tunables.extend(more.iter().map(|(name, value)| (name.to_string(), value.to_string())));
    place
}

fn object(ino: Ino) -> ObjectId {
    ObjectId { ino, stripe: 0 }
}

async fn put(c: &Client, ino: Ino, generation: u64, seed: u8, range: ByteRange) -> Result<()> {
    let (object, offset) = (object(ino), range.start);
    let op = Request::Write {
        object,
        offset,
        generation,
        mtime: MTIME,
        server_lock: true,
        kill_suidgid: false,
        checksums: Default::default(),
        cover: Default::default(),
    };
    c.ask(op, Some(bytes(seed, range.start, range.len() as usize))).await.0.map(drop)
}

/// The result of a read of a range. Bytes behind the end are left out.
async fn get(c: &Client, ino: Ino, range: ByteRange) -> Vec<u8> {
    let (reply, payload) =
        c.ask(Request::Read { object: object(ino), range, server_lock: true, advice: Default::default() }, None).await;
    assert_eq!(reply, Ok(Reply::Data));
    payload.map_or(Vec::new(), |p| p.to_vec())
}

async fn counter(c: &Client, name: &str) -> u64 {
    let Ok(Reply::Counters(counters)) = c.call(Request::Counters { reset: false }).await else { panic!() };
    counters.iter().find(|(n, _)| n == name).map_or(0, |(_, n)| *n)
}

/// A new file that all clients have open.
async fn file(clients: &[Client], text: &str) -> Ino {
    let ino = clients[0].make(Ino::ROOT, text, Make::File { open: Some(RW), exclusive: true }).await.unwrap();
    for (i, client) in clients.iter().enumerate() {
        if i > 0 {
            client.call(Request::Open { ino, access: RW, exec: false }).await.unwrap();
        }
        client.held.opens.borrow_mut().push((ino, RW));
    }
    ino
}

async fn clients(place: &Place, n: u64) -> Vec<Client> {
    let mut clients = Vec::new();
    for session in 1..=n {
        clients.push(place.client(session).await.unwrap());
    }
    clients
}

/// Goal: four mounts that wrote a file in turn and read it again need no disk, because flushed data is kept. With
/// little memory, or after a restart, they need one disk read for a mebibyte and not one for each record. A mount in
/// sole mode fills no memory, and with `server.read_cache_bytes=0` each record is read from the disk. Method: 200
/// records of 47,008 bytes, and the counters of disk reads.
#[test]
fn a_shared_file_is_read_once() {
    const RECORDS: u64 = 200;
    for (restart, bytes_kept, alone) in [(false, "64M", 4), (true, "64M", 4), (false, "0", 4), (true, "64M", 1)] {
        let place = place(170, &[("server.write_back_age_ms", "1"), ("server.read_cache_bytes", bytes_kept)]);
        let run = async {
            let mut server = place.start().await.unwrap();
            let clients = clients(&place, alone).await;
            let f = file(&clients, "f").await;
            let record = |n: u64| ByteRange::at(n * RECORD, RECORD);
            for n in 0..RECORDS {
                put(&clients[(n % alone) as usize], f, 0, n as u8, record(n)).await.unwrap();
            }
            clients[0].call(Request::Sync { file: None }).await.unwrap();
            place.sim.node("client").sleep(Duration::from_millis(500)).await;
            if restart {
                server.stop().await.unwrap();
                drop(server);
                server = place.start().await.unwrap();
                clients[0].call(Request::Sync { file: None }).await.unwrap();
            }
            let before = counter(&clients[0], "data_disk_reads").await;
            for n in 0..RECORDS {
                // The reader is another client than the writer.
                let found = get(&clients[((n + 1) % alone) as usize], f, record(n)).await;
                assert!(found == *bytes(n as u8, n * RECORD, RECORD as usize), "record {n}");
            }
            let reads = counter(&clients[0], "data_disk_reads").await - before;
            let mib = (RECORDS * RECORD).div_ceil(1 << 20);
            match (restart, bytes_kept, alone) {
                (_, "0", _) | (_, _, 1) => assert!(reads >= RECORDS, "{reads}"),
                (false, ..) => assert_eq!(reads, 0),
                (true, ..) => assert!(reads <= 2 * mib + 4, "{reads}"),
            }
            let held = counter(&clients[0], "read_cache_bytes").await;
            assert_eq!(held > 0, alone > 1 && bytes_kept != "0", "{held}");
            server.stop().await.unwrap();
        };
        place.sim.block_on(run).unwrap();
    }
}

/// Goal: reads at random over a large file load no surrounding bytes, and large reads fill no memory. Method: two
/// mounts read blocks far from each other, and then a mebibyte at a time.
#[test]
fn what_is_read_once_fills_no_memory() {
    let place = place(171, &[("server.read_cache_bytes", "64M"), ("server.write_back", "off")]);
    let run = async {
        let server = place.start().await.unwrap();
        let clients = clients(&place, 2).await;
        let f = file(&clients, "f").await;
        put(&clients[0], f, 0, 1, ByteRange::new(0, 2 << 20)).await.unwrap();
        let block = |n: u64| ByteRange::at((3 + n * 7 % 16 * 2) << 20, 4096);
        for n in 0..16u64 {
            put(&clients[0], f, 0, 1, block(n)).await.unwrap();
        }
        let before = counter(&clients[0], "read_bytes").await;
        for n in 0..16u64 {
            get(&clients[n as usize % 2], f, block(n)).await;
        }
        assert_eq!(counter(&clients[0], "read_through_first").await, 16);
        get(&clients[1], f, ByteRange::new(0, 1 << 20)).await;
        get(&clients[0], f, ByteRange::new(1 << 20, 2 << 20)).await;
        assert_eq!(counter(&clients[0], "read_through_large").await, 2);
        assert_eq!(counter(&clients[0], "read_bytes").await - before, 16 * 4096 + (2 << 20));
        assert_eq!(counter(&clients[0], "read_cache_bytes").await, 0);
        server.stop().await.unwrap();
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: several mounts write, flush, cut, remove and read small pieces at the same time. Each byte equals that of a
/// plain array. Goal: after any writes, flushes, truncates, removals and reads in small pieces by several mounts at the
/// same time, each byte equals that of a plain array.
fn against_bytes(seed: u64) {
    const LEN: u64 = 700_000;
    let seeded = |of: &[&'static str]| of[seed as usize % of.len()];
    let more = [
        ("server.read_cache_bytes", seeded(&["256K", "16M", "1M"])),
        ("server.write_back_age_ms", seeded(&["1", "50", "1", "2000"])),
        ("server.write_back", seeded(&["on", "on", "on", "on", "off"])),
        ("server.reuse_bytes", "64K"),
    ];
    let place = place(seed, &more);
    let run = async {
        let mut server = place.start().await.unwrap();
        let clients = clients(&place, 3).await;
        let env = place.sim.node("client");
        let below = |n: u64| env.rand() % n;
        let mut f = file(&clients, "f").await;
        let (mut model, mut generation, mut hits): (Vec<u8>, u64, u64) = (Vec::new(), 0, 0);
        for step in 0..120u64 {
            let by = &clients[below(3) as usize];
            let at = if below(2) == 0 { below(LEN) } else { below(LEN / 4096) * 4096 };
            let len = [1, 700, 4096, 8192, 47_008, 100_000][below(6) as usize];
            let range = ByteRange::new(at, (at + len).min(LEN));
            let old = model.clone();
            let changed = match below(20) {
                0..11 => {
                    model.resize(model.len().max(range.end as usize), 0);
                    let new = bytes(step as u8, range.start, range.len() as usize);
                    model[range.start as usize..range.end as usize].copy_from_slice(&new);
                    Some(range)
                }
                11 => {
                    generation += 1;
                    let set = SetAttr { size: Some(at), ..SetAttr::default() };
                    by.inode(Request::SetAttr { ino: f, set }).await.unwrap();
                    model.resize(at as usize, 0);
                    None
                }
                12 => {
                    let op = Request::Punch { object: object(f), range, generation, mtime: MTIME, server_lock: true };
                    by.call(op).await.unwrap();
                    let end = model.len();
                    model[end.min(range.start as usize)..end.min(range.end as usize)].fill(0);
                    None
                }
                13 => {
                    by.call(Request::Allocate {
                        object: object(f),
                        range,
                        generation,
                        mtime: MTIME,
                        server_lock: true,
                    })
                    .await
                    .unwrap();
                    None
                }
                14 => {
                    by.call(Request::Sync { file: None }).await.unwrap();
                    None
                }
                15 => {
                    env.sleep(Duration::from_millis(30)).await;
                    None
                }
                16 if step % 3 == 0 => {
                    hits += counter(&clients[0], "read_cache_hits").await;
                    place.sim.crash("server", CrashKind::Process);
                    drop(server);
                    server = place.start().await.unwrap();
                    None
                }
                17 if step % 3 == 0 => {
                    clients[0].unlink(Ino::ROOT, "f").await.unwrap();
                    for client in &clients {
                        client.call(Request::Close { ino: f, access: RW, atime: None }).await.unwrap();
                        client.held.opens.borrow_mut().clear();
                    }
                    f = file(&clients, "f").await;
                    (model, generation) = (Vec::new(), 0);
                    None
                }
                _ => None,
            };
            let old = if changed.is_some() { old } else { model.clone() };
            let wanted: Vec<ByteRange> = (0..1 + below(6))
                .map(|_| {
                    let near = range.start.saturating_sub(below(90_000)) + below(90_000);
                    let start = [near, below(LEN)][below(2) as usize].min(LEN - 1);
                    ByteRange::at(start, 1 + below(60_000))
                })
                .collect();
            let reads = wanted.iter().enumerate().map(|(i, r)| {
                let (env, client, r) = (env.clone(), &clients[i % 3], *r);
                let pause = Duration::from_micros(below(400));
                async move {
                    env.sleep(pause).await;
                    get(client, f, r).await
                }
            });
            let write = async {
                if let Some(range) = changed {
                    put(by, f, generation, step as u8, range).await.unwrap();
                }
            };
            let (found, ()) = futures_util::join!(futures_util::future::join_all(reads), write);
            for (r, found) in wanted.iter().zip(found) {
                for i in 0..r.len() as usize {
                    let byte = |of: &[u8]| of.get(r.start as usize + i).copied().unwrap_or(0);
                    let is = found.get(i).copied().unwrap_or(0);
                    assert!(is == byte(&model) || is == byte(&old), "step {step}: byte {}", r.start + i as u64);
                }
            }
            // Without a concurrent write there is one valid result.
            let start = below(LEN);
            let again = ByteRange::at(start, 1 + below(100_000));
            let mut found = get(&clients[below(3) as usize], f, again).await;
            let end = model.len().min(again.end as usize);
            let want = &model[end.min(start as usize)..end];
            found.resize(want.len().max(found.len()), 0);
            assert!(
                found[..want.len()] == *want && found[want.len()..].iter().all(|b| *b == 0),
                "step {step}: {again:?}"
            );
        }
        hits += counter(&clients[0], "read_cache_hits").await;
        assert!(hits > 20, "{hits}");
        server.stop().await.unwrap();
        let report = crate::fsck(&place.sim.node("server"), "data").await.unwrap();
        assert!(report.is_clean(), "{report:?}");
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: see `against_bytes`. Method: several seeds.
#[test]
fn what_is_kept_is_what_was_written() {
    (180..186).for_each(against_bytes);
}

/// Goal: advice of programs about their reads is followed: data read once is not kept, a sequential read loads its
/// mebibyte at the first read, a random read loads nothing around it. Method: two mounts and files of a mebibyte, after
/// a start, with the counters.
#[test]
fn programs_say_how_they_read() {
    let place = place(190, &[("server.read_cache_bytes", "64M")]);
    let run = async {
        let server = place.start().await.unwrap();
        let clients = clients(&place, 2).await;
        let mut files = Vec::new();
        for n in 0..3 {
            let ino = file(&clients, &format!("f{n}")).await;
            put(&clients[0], ino, 0, n, ByteRange::new(0, 1 << 20)).await.unwrap();
            files.push(ino);
        }
        server.stop().await.unwrap();
        drop(server);
        let server = place.start().await.unwrap();
        clients[0].call(Request::Sync { file: None }).await.unwrap();
        let names = ["data_disk_reads", "read_cache_hits", "read_cache_ahead_bytes", "read_through_once"];
        for (ino, advice, want) in [
            (files[0], ReadAdvice::Once, [32, 0, 0, 32]),
            (files[1], ReadAdvice::Sequential, [1, 31, (1 << 20) - 4096, 0]),
            (files[2], ReadAdvice::Random, [17, 15, 0, 0]),
        ] {
            let mut before = [0; 4];
            for (was, name) in before.iter_mut().zip(names) {
                *was = counter(&clients[0], name).await;
            }
            for n in 0..32u64 {
                // Each place is read twice, by different mounts.
                let range = ByteRange::at(n / 2 * 4096, 4096);
                let op = Request::Read { object: object(ino), range, server_lock: true, advice };
                let (reply, payload) = clients[n as usize % 2].ask(op, None).await;
                assert_eq!((reply, payload.map(|p| p.len())), (Ok(Reply::Data), Some(4096)));
            }
            for (k, name) in names.into_iter().enumerate() {
                assert_eq!(counter(&clients[0], name).await - before[k], want[k], "{name} of {advice:?}");
            }
        }
        server.stop().await.unwrap();
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: the test above finds blocks that stay when they are written. Method: the mistake is planted.
#[test]
fn blocks_that_stay_are_found() {
    plant(Some(Mistake::KeptOverWrite));
    let found = (180..190).any(|seed| catch_unwind(AssertUnwindSafe(|| against_bytes(seed))).is_err());
    plant(None);
    assert!(found);
}
