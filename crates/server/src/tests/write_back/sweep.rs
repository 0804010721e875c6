//! Crashes at every operation of the disk, over stories of writes that a server answers from memory.

use super::*;
use crate::planted::{Mistake, plant};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Writes, and the actions between them.
struct Story {
    /// The writes by number: from this one to that one.
    writes: &'static [(u8, u64, u64)],
    /// Steps behind which it syncs.
    synced: &'static [u8],
    /// Steps behind which it waits.
    waits: &'static [u8],
    age_ms: &'static str,
    checksums: &'static str,
}

const STORY: Story = Story {
    writes: &[
        (1, 0, 50_000),
        (2, 47_000, 90_000),
        (3, 10, 20),
        (4, 4_000, 104_000),
        (5, 100_000, 140_000),
        (6, 50, 60),
        (7, 139_000, 170_000),
        (8, 60_000, 61_000),
        (9, 165_000, 200_000),
    ],
    synced: &[5],
    waits: &[2, 7],
    age_ms: "2",
    checksums: "on",
};

/// Small writes, which a sync logs. Before they are flushed, they are overwritten by writes that are not synced, and
/// the records of these reach the disk before power is lost.
const SMALL: Story = Story {
    writes: &[
        (1, 0, 3_000),
        (2, 3_000, 9_000),
        (3, 100, 200),
        (4, 4_000, 4_300),
        (5, 9_000, 9_500),
        (6, 150, 5_000),
        (7, 9_100, 9_200),
        (8, 8_000, 13_000),
        (9, 2_000, 2_010),
    ],
    synced: &[2, 5, 8],
    waits: &[3, 4, 6, 7, 9],
    age_ms: "45",
    checksums: "on",
};

/// Small writes to new blocks, each of which ages and is flushed before the next. Nothing is synced, so only the order
/// of records prevents that foreign bytes are visible.
const AGED: Story = Story {
    writes: &[
        (1, 0, 5_000),
        (2, 5_000, 13_000),
        (3, 13_000, 20_480),
        (4, 20_480, 30_000),
        (5, 30_000, 36_864),
        (6, 36_864, 46_000),
    ],
    waits: &[1, 2, 3, 4, 5, 6],
    synced: &[],
    age_ms: "4",
    checksums: "on",
};

/// Whole blocks without checksums, which stay where they are. A sync logs what replaces them, and a flush then writes
/// it over the old bytes.
const IN_PLACE: Story = Story {
    writes: &[
        (1, 0, 16_384),
        (2, 4_096, 8_192),
        (3, 8_192, 12_288),
        (4, 0, 8_192),
        (5, 12_288, 16_384),
        (6, 4_096, 12_288),
        (7, 0, 4_096),
        (8, 4_096, 8_192),
    ],
    synced: &[1, 2, 3, 4, 5, 6, 7, 8],
    waits: &[1, 2, 3, 4, 5, 6, 7, 8],
    age_ms: "4",
    checksums: "off",
};

/// How a server ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Kill,
    /// The memory of accepted bytes is lost with the process, and that of records stays.
    KillAndMemory,
    Power,
}

/// One run of the scenario, which is stopped at the `nth` write or sync of the disk. Returns whether it ended before.
fn crash_at(story: &Story, seed: u64, nth: u64, end: End, log_memory: &str) -> bool {
    let kind = if end == End::Power { CrashKind::Power } else { CrashKind::Process };
    let steps = story.writes;
    let end_of_all = steps.iter().map(|(.., end)| *end).max().unwrap_or(0);
    let more = [
        ("server.write_back_age_ms", story.age_ms),
        ("server.write_back_bytes", "1M"),
        ("server.log_memory", log_memory),
        ("server.checksums", story.checksums),
    ];
    let (place, what) = (place(seed, 1, &more), format!("{end:?} at {nth}, seed {seed}, log_memory {log_memory}"));
    let mut finished = false;
    let run = async {
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        // The blocks that will be used hold foreign bytes.
        let old = file(&c, "old").await;
        let object = ObjectId { ino: old, stripe: 0 };
        let foreign = Buf::copy_of(&vec![0xEE; 1 << 20]);
        let op = Request::Write {
            object,
            offset: 0,
            generation: 0,
            mtime: MTIME,
            server_lock: true,
            kill_suidgid: false,
            checksums: Default::default(),
            cover: Default::default(),
        };
        c.ask(op, Some(foreign)).await.0.unwrap();
        c.unlink(Ino::ROOT, "old").await.unwrap();
        c.call(Request::Close { ino: old, access: RW, atime: None }).await.unwrap();
        let f = file(&c, "f").await;
        c.call(Request::Sync { file: None }).await.unwrap();
        place.sim.node("client").sleep(Duration::from_secs(3)).await;
        place.sim.crash_at("server", nth, kind);
        // For each byte its possible values: the last of these is its value if nothing is lost.
        let mut may: Vec<Vec<u8>> = vec![Vec::new(); end_of_all as usize];
        let (mut answered, mut synced) = (0, 0);
        let story = async {
            for &(seed, at, end) in steps {
                let new = bytes(seed, at, (end - at) as usize);
                may[at as usize..end as usize].iter_mut().zip(&*new).for_each(|(may, b)| may.push(*b));
                put(&c, f, seed, at, end).await?;
                answered = seed;
                if story.waits.contains(&seed) {
                    place.sim.node("client").sleep(Duration::from_millis(20)).await;
                }
                if story.synced.contains(&seed) {
                    c.call(Request::Sync { file: (nth % 2 == 1).then_some(f) }).await?;
                    synced = synced.max(end as usize);
                    may.iter_mut().for_each(|may| drop(may.drain(..may.len().saturating_sub(1))));
                }
            }
            Ok::<(), Errno>(())
        };
        let dead = async {
            while place.sim.alive("server") {
                place.sim.node("client").sleep(Duration::from_micros(200)).await;
            }
        };
        futures_util::future::select(Box::pin(story), Box::pin(dead)).await;
        finished = place.sim.alive("server");
        place.sim.crash("server", kind);
        if end == End::KillAndMemory {
            let names = place.sim.kept_names("server").into_iter().filter(|name| name.ends_with("-data"));
            names.for_each(|name| place.sim.node("server").forget(&name).unwrap());
        }
        drop((server, c));
        // The start may be cut off as well.
        if nth.is_multiple_of(3) {
            place.sim.crash_at("server", 1 + nth % 7, CrashKind::Process);
            let dead = async {
                while place.sim.alive("server") {
                    place.sim.node("client").sleep(Duration::from_micros(200)).await;
                }
            };
            let started = futures_util::future::select(Box::pin(place.start()), Box::pin(dead)).await;
            place.sim.crash("server", CrashKind::Process);
            drop(started);
        }
        place.sim.clear_crash_at("server");
        let server = place.start().await.unwrap();
        let c = place.client(2).await.unwrap();
        let found = get(&c, f, end_of_all).await;
        assert_eq!(c.stat(f).await.unwrap().size, found.len() as u64, "{what}");
        let whole =
            steps.iter().filter(|(seed, ..)| *seed <= answered).map(|(.., end)| *end as usize).max().unwrap_or(0);
        let least = if end == End::Kill { whole } else { synced };
        assert!(found.len() >= least, "{what}: {} of {least} bytes", found.len());
        // The bytes of the call that was cut off may be there or not.
        let cut_off = steps.iter().find(|(seed, ..)| *seed == answered + 1).map_or(0..0, |(_, at, end)| *at..*end);
        for (i, b) in found.iter().enumerate() {
            let right = match end {
                End::Kill if !cut_off.contains(&(i as u64)) => may[i].last() == Some(b),
                End::Kill => may[i].iter().rev().take(2).any(|m| m == b) || (may[i].len() < 2 && *b == 0),
                // A range that was not synced may also be a hole.
                End::KillAndMemory | End::Power => may[i].contains(b) || (i >= synced && *b == 0),
            };
            assert!(right, "{what}: byte {i} is {b}, of {:?}", may[i]);
        }
        server.stop().await.unwrap();
        let report = crate::fsck(&place.sim.node("server"), "data").await.unwrap();
        assert!(report.is_clean(), "{what}: {report:?}");
    };
    place.sim.block_on(run).unwrap();
    finished
}

/// Runs the whole sweep; returns how many disk operations the story has.
fn sweep(story: &Story, seed: u64, end: End, log_memory: &str) -> u64 {
    (1..).find(|&nth| crash_at(story, seed, nth, end, log_memory)).unwrap_or(0)
}

/// Goal: Promises S9 and S10: a kill at any write or sync of the disk loses no answered data. A loss of power loses no
/// synced data, and neither does the loss of the memory alone. No byte has a value that was not written there. Method:
/// a sweep over a scenario with accepted writes, overwrites, flushes, a sync, writes through, and starts that are
/// stopped as well, over blocks with foreign bytes. A second scenario has small writes whose syncs log them, and a last
/// one replaces blocks where they are. Records are kept in memory or on the disk.
#[test]
fn a_crash_anywhere_loses_nothing() {
    plant(None);
    for story in [&STORY, &SMALL, &AGED, &IN_PLACE] {
        for end in [End::Kill, End::KillAndMemory, End::Power] {
            for log_memory in ["on", "off"] {
                let writes = sweep(story, 160, end, log_memory);
                assert!(writes > 10, "the story has many writes: {writes}");
            }
        }
    }
}

/// Goal: the sweep finds a flush whose record does not follow its bytes. Method: planted mistakes. Power is lost after
/// each operation of the disk, with both ways of keeping records, over new blocks and over blocks that stay.
#[test]
fn a_flush_without_its_mark_is_found() {
    plant(Some(Mistake::UnmarkedFlush));
    let found = [&AGED, &IN_PLACE].map(|story| {
        ["off", "on"].iter().any(|log| catch_unwind(AssertUnwindSafe(|| sweep(story, 160, End::Power, log))).is_err())
    });
    plant(None);
    assert_eq!(found, [true; 2], "a flush whose record does not follow its bytes was not found");
}

/// Goal: the sweep finds mistakes. Method: two planted ones.
#[test]
fn a_sync_without_a_flush_is_found() {
    for (mistake, story) in [(Mistake::UnflushedSync, &STORY), (Mistake::ForgottenLog, &SMALL)] {
        plant(Some(mistake));
        let found = catch_unwind(AssertUnwindSafe(|| sweep(story, 160, End::Power, "on"))).is_err();
        plant(None);
        assert!(found, "{mistake:?}: a sync that leaves accepted bytes in memory was not found");
    }
}
