//! Direct reads requested ahead: that they happen, that they return no outdated data, and that they are not kept.

use super::world::World;
use crate::OpenFile;
use crate::api::{Ctx, Fallocate, Hints, OpenFlags};
use crate::prefetch::large_reads::Asking::{Always, IfIdle, Never};
use crate::telemetry::stats::Count;
use amphi_env::Buf;
use amphi_types::{ByteRange, Ino, Pattern, SetAttr};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const STEP: usize = 128 << 10;
const FILE: usize = 16 * STEP;

fn world(seed: u64) -> (World, Ino, Arc<OpenFile>, Vec<u8>) {
    let tunables =
        [("hybrid.large_read_bytes", "128K"), ("hybrid.large_write_bytes", "128K"), ("writeback.pipeline_bytes", "0")];
    let mut w = World::new(seed, &tunables);
    let bytes: Vec<u8> = (0..FILE as u32).map(|i| (i / 997) as u8 | 1).collect();
    let ino = w.server.plant("f", &bytes, Pattern::Growing);
    let op = w.client.open(&Ctx::root(), ino, OpenFlags::READ_WRITE);
    let file = w.run(op).expect("open");
    (w, ino, file, bytes)
}

fn read(w: &mut World, file: &Arc<OpenFile>, at: usize) -> Vec<u8> {
    let op = w.client.read(&Ctx::root(), file, at as u64, STEP, Hints::default());
    w.run(op).expect("read").to_vec()
}

fn used(w: &World) -> u64 {
    w.client.mount.stats.of(Count::DirectAheadUsed).0
}

fn kept(w: &World) -> u64 {
    w.client.mount.prefetch.fill_bytes.load(SeqCst)
}

/// Goal: all but the first two reads of a stream are requested ahead, and each byte is fetched once, up to the end of
/// the file and not beyond. For reads at random places nothing is requested ahead. Method: the reads and the requests
/// to the server are counted.
#[test]
fn streams_are_asked_for_ahead() {
    let (mut w, _, file, bytes) = world(1);
    for at in (0..FILE).step_by(STEP) {
        assert_eq!(read(&mut w, &file, at), bytes[at..at + STEP]);
        w.settle();
        assert!(kept(&w) <= 4 << 20, "{}", kept(&w));
    }
    assert_eq!((used(&w), kept(&w)), (14, 0));
    let requests = w.server.log.iter().filter(|l| *l == "Read").count();
    assert_eq!(requests, FILE / STEP);
    for at in [5, 3, 9, 1, 12].map(|i| i * STEP) {
        assert_eq!(read(&mut w, &file, at), bytes[at..at + STEP]);
        w.settle();
    }
    assert_eq!((used(&w), kept(&w)), (14, 0));
    w.client.mount.tunables.set("readahead.direct_bytes", "0").expect("a tunable");
    (0..4).for_each(|i| drop(read(&mut w, &file, i * STEP)));
    assert_eq!((used(&w), kept(&w)), (14, 0));
}

/// Goal: a stream of calls that arrive in large pieces and a small one is requested ahead like one of large pieces. No
/// byte is fetched twice, except the small pieces that end behind the requested range. Method: calls of two large
/// pieces and one of 8 bytes, one after the other. The test compares bytes, requests to the server, and the stream's
/// share of the bytes requested ahead.
#[test]
fn pieces_of_unequal_length_are_one_stream() {
    let (mut w, _, file, bytes) = world(1);
    let mut at = 0;
    let mut pieces = 0;
    for len in [STEP, STEP, 8].into_iter().cycle() {
        let hints = Hints { may_continue: len == STEP, ..Hints::default() };
        let op = w.client.read(&Ctx::root(), &file, at as u64, len, hints);
        let got = w.run(op).expect("read").to_vec();
        assert!(got == bytes[at..(at + len).min(FILE)], "{len} bytes at {at}");
        w.settle();
        assert!(kept(&w) <= 4 << 20, "{}", kept(&w));
        (at, pieces) = (at + got.len(), pieces + 1);
        if at == FILE {
            break;
        }
    }
    assert!(used(&w) >= pieces - 4, "{} of {pieces}", used(&w));
    assert_eq!(kept(&w), 0, "nothing is left over");
    let requests = w.server.log.iter().filter(|l| *l == "Read").count();
    assert!(requests <= FILE / STEP + 4, "{requests}");
}

/// Goal: data requested ahead is not used any more once the file has changed there, however it was changed and however
/// far the request had progressed. Method: a stream is followed, in many orders of its background work, by a change of
/// the next bytes. The result is compared with a vector of bytes.
#[test]
fn changes_end_them() {
    const PART: u64 = 4096;
    let next = 3 * STEP as u64;
    for seed in 0..100 {
        for change in 0..12 {
            let (mut w, ino, file, mut model) = world(seed);
            (0..3).for_each(|i| drop(read(&mut w, &file, i * STEP)));
            let (change, of_a_rest) = (change % 6, change >= 6);
            let next = if of_a_rest {
                // The next read is still left.
                let hints = Hints { may_continue: true, ..Hints::default() };
                let op = w.client.read(&Ctx::root(), &file, next, 8192, hints);
                assert_eq!(w.run(op).expect("read").len(), 8192);
                next + 8192
            } else {
                next
            };
            assert!(kept(&w) > 0, "the next read is asked for");
            let steps = w.rand(20);
            w.steps(steps);
            let (root, at) = (Ctx::root(), next as usize);
            match change {
                // The bytes are written through the cache, written back and dropped from it.
                0 => {
                    let op = w.client.write(&root, &file, next, Buf::zeroed(PART as usize), Hints::default());
                    w.run(op).expect("write");
                    let op = w.client.fsync(&root, &file, true);
                    w.run(op).expect("sync");
                    let keep = amphi_pagecache::Dirty::Keep;
                    assert!(!w.client.mount.cache.forget(&file.file, ByteRange::ALL, keep));
                    model[at..at + PART as usize].fill(0);
                }
                // Past the cache.
                1 => {
                    let op = w.client.write(&root, &file, next, Buf::zeroed(STEP), Hints::default());
                    w.run(op).expect("write");
                    model[at..at + STEP].fill(0);
                }
                2 => {
                    let op = w.client.fallocate(&root, &file, Fallocate::PunchHole, next, PART);
                    w.run(op).expect("punch");
                    model[at..at + PART as usize].fill(0);
                }
                // Shorter, then as long as before.
                3 => {
                    for size in [next + 10, FILE as u64] {
                        let set = SetAttr { size: Some(size), ..SetAttr::default() };
                        let op = w.client.setattr(&root, ino, set, Some(&file));
                        w.run(op).expect("truncate");
                    }
                    model[at + 10..].fill(0);
                }
                // The bytes are in the cache and not written back.
                4 => {
                    let op = w.client.write(&root, &file, next, Buf::zeroed(PART as usize), Hints::default());
                    w.run(op).expect("write");
                    model[at..at + PART as usize].fill(0);
                }
                // Another mount makes the change.
                _ => {
                    crate::coherence::sharing::told(&w.client.mount, 1, false);
                    let object = file.file.layout().pieces(ino, ByteRange::at(next, 1)).next().expect("a stripe").0;
                    w.server.objects.get_mut(&object).expect("it has bytes").bytes[at] = 0;
                    model[at] = 0;
                    crate::coherence::sharing::told(&w.client.mount, 2, true);
                }
            }
            let got = read(&mut w, &file, at);
            assert!(got == model[at..at + STEP], "change {change}, seed {seed}");
            w.settle();
        }
    }
}

/// Goal: unused data is dropped after a while, and with the close. Method: the number of bytes under way is checked.
#[test]
fn nothing_stays() {
    let (mut w, _, file, _) = world(1);
    (0..3).for_each(|i| drop(read(&mut w, &file, i * STEP)));
    w.settle();
    assert!(kept(&w) > 0);
    crate::prefetch::large_reads::tick(&w.client.mount);
    assert!(kept(&w) > 0, "it is young");
    w.clock.0.fetch_add(3_000_000_000, SeqCst);
    crate::prefetch::large_reads::tick(&w.client.mount);
    assert_eq!(kept(&w), 0);
    (3..5).for_each(|i| drop(read(&mut w, &file, i * STEP)));
    assert!(kept(&w) > 0, "the stream goes on");
    drop(file);
    assert_eq!(kept(&w), 0);
}

/// Goal: if the cache serves one read of a stream in between, the stream continues and loses only that read. Method:
/// one read is left out, which has the same effect as a cache hit, and the requests are counted.
#[test]
fn a_stream_goes_on_behind_what_the_cache_served() {
    let (mut w, _, file, bytes) = world(1);
    for at in (0..FILE / STEP).filter(|at| *at != 6).map(|i| i * STEP) {
        assert_eq!(read(&mut w, &file, at), bytes[at..at + STEP]);
        w.settle();
    }
    assert_eq!((used(&w), kept(&w)), (13, 0));
    assert_eq!(w.server.log.iter().filter(|l| *l == "Read").count(), FILE / STEP);
}

/// Goal: reads that jump forward, out of the range requested ahead, are no stream: less is requested each time. Method:
/// pairs of reads with a gap after each pair in a long file. The bytes requested ahead are added up.
#[test]
fn jumps_ask_for_less_each_time() {
    let (mut w, _, file, _) = world(1);
    for round in 0..40 {
        let at = (round * 5) % 12 * STEP;
        (0..3).for_each(|i| drop(read(&mut w, &file, at + i * STEP)));
        w.settle();
    }
    let reads = w.server.log.iter().filter(|l| *l == "Read").count();
    assert!(reads < 40 * 3 + 30, "{reads}");
}

/// Goal: reads below the large threshold are requested ahead only while little is under way. Method: the decision
/// function is called directly, together with reads that wait.
#[test]
fn many_streams_keep_each_other_busy() {
    let (w, ..) = world(1);
    let mount = &w.client.mount;
    let wanted = |asking| crate::prefetch::large_reads::is_wanted(mount, ByteRange::at(0, STEP as u64), asking);
    let waiting: Vec<_> = (0..7).map(|_| crate::prefetch::large_reads::Waiting::begin(mount, 1 << 20)).collect();
    assert!(wanted(IfIdle) && wanted(Always) && !wanted(Never));
    let last = crate::prefetch::large_reads::Waiting::begin(mount, 1 << 20);
    assert!(!wanted(IfIdle) && wanted(Always));
    drop((waiting, last));
    assert!(wanted(IfIdle));
}

/// Goal: a stream of large reads that measurements show to be faster without is not requested ahead, until learning is
/// switched off. Method: given rates, and the bytes that were used.
#[test]
fn a_stream_that_it_slows_is_left_alone() {
    let (mut w, _, file, bytes) = world(1);
    let throughput = &w.client.mount.policy.throughput;
    let now_ns = w.client.mount.clock.now_ns();
    for (ahead, step_ns) in [(true, 2_000_000), (false, 1_000_000)] {
        for step in 0..600 {
            throughput.note_large_read(ahead, STEP as u64, (0, now_ns + step * step_ns), true);
        }
    }
    for (learns, expected) in [("off", 14), ("on", 14)] {
        w.client.mount.tunables.set("hybrid.learn", learns).expect("a tunable");
        for at in (0..FILE).step_by(STEP) {
            assert_eq!(read(&mut w, &file, at), bytes[at..at + STEP]);
            w.settle();
        }
        assert_eq!((used(&w), kept(&w)), (expected, 0), "learns: {learns}");
    }
}
