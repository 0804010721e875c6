//! Several open files that are read as one sequence: they are fetched in large pieces, and each byte once.

use super::world::World;
use crate::OpenFile;
use crate::api::{Ctx, Hints, OpenFlags};
use crate::telemetry::stats::Count;
use amphi_types::Pattern;
use std::sync::Arc;

const RECORD: usize = 47_008;
const RECORDS: usize = 400;

/// Two opens of a file read records in turn, cold. Returns the requests for it, and the bytes fetched for both.
fn read_in_turn(ranks: usize, own: usize) -> (usize, u64) {
    let mut w = World::new(5, &[("cache.max_bytes", "256M")]);
    let bytes: Vec<u8> = (0..(RECORDS * RECORD) as u32).map(|i| (i / 997) as u8 | 1).collect();
    let ino = w.server.plant("f", &bytes, Pattern::Growing);
    let mut opens: Vec<Arc<OpenFile>> = Vec::new();
    for _ in 0..own {
        let op = w.client.open(&Ctx::root(), ino, OpenFlags::READ);
        opens.push(w.run(op).expect("open"));
    }
    let before = w.server.log.iter().filter(|l| *l == "Read").count();
    for turn in 0..RECORDS / ranks {
        for (rank, open) in opens.iter().enumerate() {
            let at = (turn * ranks + rank) * RECORD;
            let op = w.client.read(&Ctx::root(), open, at as u64, RECORD, Hints::default());
            assert!(w.run(op).expect("read").to_vec() == bytes[at..at + RECORD], "record at {at}");
        }
        w.settle();
    }
    let requests = w.server.log.iter().filter(|l| *l == "Read").count() - before;
    (requests, w.client.mount.stats.of(Count::Fill).1)
}

/// Goal: two processes of a mount that read the records of a file in turn are one stream. It is fetched in large pieces
/// instead of single records, and each byte is fetched once. A process that reads every second record alone is not
/// joined with another. Method: two opens read 400 records of 47,008 bytes, and so does one of two ranks. Requests to
/// the server and fetched bytes are counted.
#[test]
fn records_in_turn_are_fetched_in_large_pieces() {
    let (requests, bytes) = read_in_turn(2, 2);
    let all = (RECORDS * RECORD) as u64;
    assert!(requests <= 60, "{requests} requests for {RECORDS} records");
    assert!((all..all + (64 << 10)).contains(&bytes), "{bytes} of {all}");
    let (alone, bytes) = read_in_turn(2, 1);
    assert!(alone >= RECORDS / 2 - 4, "{alone}");
    assert!(bytes < all * 2 / 3, "{bytes} of {all}");
}
