//! Batches of small writes: their effect, their cost, and their state after crashes.

use super::data::bytes;
use super::*;
use crate::planted::{Mistake, plant};
use amphi_env::sim::{CrashKind, Sim, SimConfig};
use amphi_types::{ByteRange, SetAttr};
use amphi_wire::BatchPart;
use futures_util::future::{join_all, select};
use std::panic::{AssertUnwindSafe, catch_unwind};

const MTIME: Timespec = Timespec { sec: 2_000_000_000, nsec: 0 };

/// A part at `offset` with its bytes.
pub(super) type Part = (BatchPart, Buf);

pub(super) fn part(ino: Ino, seed: u8, offset: u64, len: usize) -> Part {
    let object = ObjectId { ino, stripe: 0 };
    (
        BatchPart {
            object,
            offset,
            len: len as u32,
            generation: 0,
            mtime: MTIME,
            checksums: Default::default(),
            cover: Default::default(),
        },
        bytes(seed, offset, len),
    )
}

fn joined(parts: &[Part]) -> (Vec<BatchPart>, Buf) {
    let all: Vec<u8> = parts.iter().flat_map(|(_, bytes)| bytes.to_vec()).collect();
    (parts.iter().map(|(part, _)| *part).collect(), Buf::copy_of(&all))
}

impl Client {
    pub(super) async fn batch(&self, parts: &[Part]) -> Result<Vec<Result<()>>> {
        let (parts, payload) = joined(parts);
        match self.ask(Request::WriteBatch { parts }, Some(payload)).await.0? {
            Reply::WrittenBatch(results) => Ok(results),
            other => panic!("{other:?}"),
        }
    }

    /// Files of the root, open, in the order of their inodes.
    async fn files(&self, count: usize) -> Result<Vec<Ino>> {
        let mut files = Vec::new();
        for i in 0..count {
            files.push(self.make(Ino::ROOT, &format!("f{i}"), Make::File { open: Some(RW), exclusive: true }).await?);
        }
        files.sort_unstable();
        Ok(files)
    }

    async fn bytes_of(&self, ino: Ino, len: u64) -> Result<Vec<u8>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let object = ObjectId { ino, stripe: 0 };
        let op = Request::Read { object, range: ByteRange::new(0, len), server_lock: true, advice: Default::default() };
        let (reply, payload) = self.ask(op, None).await;
        assert_eq!(reply?, Reply::Data);
        let mut data = payload.map_or(Vec::new(), |p| p.to_vec());
        data.resize(len as usize, 0);
        Ok(data)
    }
}

/// Goal: parts at any offsets land as single writes would, with sizes and times, also several of one object. Method: a
/// model of twelve files in memory; random batches and single writes at the same time.
#[test]
fn batches_match_a_model() {
    with_server(71, 1, 1, async |place, c| {
        const LEN: u64 = 60_000;
        let files = c.files(12).await.unwrap();
        let mut model = vec![vec![0u8; LEN as usize]; files.len()];
        let mut ends = vec![0; files.len()];
        let env = place.sim.node("client");
        for round in 0..60u64 {
            let mut parts: Vec<Part> = Vec::new();
            for (i, ino) in files.iter().enumerate().filter(|_| env.rand().is_multiple_of(2)) {
                let mut at = 0;
                for k in 0..1 + env.rand() % 2 {
                    let offset = at + env.rand() % 15_000;
                    let len = 1 + env.rand() % 9000;
                    let (what, data) = part(*ino, (round + k) as u8, offset, len as usize);
                    model[i][offset as usize..(offset + len) as usize].copy_from_slice(&data);
                    ends[i] = ends[i].max(offset + len);
                    parts.push((what, data));
                    at = (offset + len).next_multiple_of(4096);
                }
            }
            if parts.is_empty() {
                continue;
            }
            let results = c.batch(&parts).await.unwrap();
            assert_eq!(results, vec![Ok(()); parts.len()]);
        }
        for (i, ino) in files.iter().enumerate() {
            assert!(c.bytes_of(*ino, LEN).await.unwrap() == model[i], "file {i}");
            let attr = c.stat(*ino).await.unwrap();
            assert_eq!((attr.size, attr.mtime.sec), (ends[i], if ends[i] > 0 { MTIME.sec } else { attr.mtime.sec }));
        }
    });
}

/// Goal: many small new files cost a write or two of data and one of the log. Method: 200 files of 3,901 bytes; the
/// disk's writes are counted.
#[test]
fn a_batch_costs_few_writes() {
    with_server(72, 1, 1, async |place, c| {
        let files = c.files(200).await.unwrap();
        let parts: Vec<Part> = files.iter().map(|ino| part(*ino, 3, 0, 3901)).collect();
        c.call(Request::Sync { file: None }).await.unwrap();
        let before = place.sim.disk_ops("server");
        assert_eq!(c.batch(&parts).await.unwrap(), vec![Ok(()); 200]);
        let after = place.sim.disk_ops("server");
        assert!(after.writes - before.writes <= 4, "{} writes", after.writes - before.writes);
        assert_eq!(after.syncs, before.syncs);
        for ino in &files {
            assert!(c.bytes_of(*ino, 3901).await.unwrap() == bytes(3, 0, 3901)[..]);
        }
    });
}

/// Goal: an error of one part concerns only that part. An error of the message refuses it as a whole. Method: a removed
/// file, a directory, an old generation and an object of another target among valid parts, and then invalid messages.
#[test]
fn each_part_stands_for_itself() {
    with_server(73, 2, 1, async |_, c| {
        let files = c.files(6).await.unwrap();
        assert_eq!(c.batch(&[part(files[3], 1, 0, 5000)]).await.unwrap(), [Ok(())]);
        let cut = SetAttr { size: Some(10), ..SetAttr::default() };
        c.inode(Request::SetAttr { ino: files[3], set: cut }).await.unwrap();
        let gone = c.lookup(Ino::ROOT, "f1").await.unwrap().attr.ino;
        c.unlink(Ino::ROOT, "f1").await.unwrap();
        c.call(Request::Close { ino: gone, access: RW, atime: None }).await.unwrap();
        let mut parts: Vec<Part> = files.iter().map(|ino| part(*ino, 7, 100, 3000)).collect();
        let (mut elsewhere, data) = part(files[5], 7, 0, 10);
        elsewhere.object = ObjectId { ino: Ino::new(TargetId(1), 77), stripe: 0 };
        parts.push((elsewhere, data));
        parts.insert(0, part(Ino::ROOT, 7, 0, 10));
        parts.sort_by_key(|(p, _)| p.object);
        let results = c.batch(&parts).await.unwrap();
        for ((p, _), result) in parts.iter().zip(&results) {
            let expected = match p.object.ino {
                ino if ino == gone => Err(Errno::Stale),
                ino if ino == files[3] => Err(Errno::Stale),
                ino if ino == Ino::ROOT => Err(Errno::Inval),
                ino if ino.target() != TargetId(0) => Err(Errno::Inval),
                _ => Ok(()),
            };
            assert_eq!(*result, expected, "{p:?}");
        }
        for ino in files.iter().filter(|ino| **ino != gone && **ino != files[3]) {
            assert!(c.bytes_of(*ino, 3100).await.unwrap()[100..] == bytes(7, 100, 3000)[..]);
        }
        assert_eq!(c.stat(files[3]).await.unwrap().size, 10);
        let (a, b) = (part(files[0], 1, 0, 100), part(files[2], 1, 0, 100));
        let again = |p: &Part, offset| part(p.0.object.ino, 1, offset, 100);
        let shapes: [&[Part]; 5] = [
            &[],
            &[part(files[2], 1, 0, 100), part(files[0], 1, 0, 100)],
            &[again(&a, 0), again(&a, 200)],
            &[again(&b, 5000), again(&b, 100)],
            &[part(files[0], 1, i64::MAX as u64 - 10, 100)],
        ];
        for shape in shapes {
            assert_eq!(c.batch(shape).await, Err(Errno::Inval), "{shape:?}");
        }
        let (parts, payload) = joined(&[a, b]);
        let short = Buf::copy_of(&payload[..150]);
        assert_eq!(c.ask(Request::WriteBatch { parts }, Some(short)).await.0, Err(Errno::Inval));
    });
}

/// Goal: concurrent batches, single writes, cuts and removals of the same files do not wait for each other in a cycle.
/// If a disk refuses a write, only the parts of that write fail. Method: many at once in the simulator, which ends a
/// run in which nothing moves.
#[test]
fn batches_and_others_at_once() {
    with_server(74, 1, 1, async |place, c| {
        let files = c.files(20).await.unwrap();
        for round in 0..12u8 {
            let parts = |seed: u8, skip: usize| -> Vec<Part> {
                files.iter().skip(skip).step_by(2).map(|ino| part(*ino, seed, 500, 7000)).collect()
            };
            let lots = [parts(round, 0), parts(round, 0), parts(round, 1)];
            let batches = join_all(lots.iter().map(|lot| c.batch(lot)));
            let singles = join_all(files.iter().map(|ino| {
                let object = ObjectId { ino: *ino, stripe: 0 };
                let op = Request::Write {
                    object,
                    offset: 6000,
                    generation: 0,
                    mtime: MTIME,
                    server_lock: true,
                    kill_suidgid: false,
                    checksums: Default::default(),
                    cover: Default::default(),
                };
                c.ask(op, Some(bytes(round, 6000, 1500)))
            }));
            let (batches, singles) = futures_util::future::join(batches, singles).await;
            assert!(batches.iter().all(|b| b.as_ref().is_ok_and(|all| all.iter().all(Result::is_ok))));
            assert!(singles.iter().all(|(reply, _)| reply.is_ok()));
            for ino in &files {
                assert!(c.bytes_of(*ino, 7500).await.unwrap()[500..] == bytes(round, 500, 7000)[..]);
            }
        }
        // New blocks for every part: pieces of the disk that do not lie together.
        let sizes: Vec<Part> = files.iter().map(|ino| part(*ino, 99, 40_000, 3000)).collect();
        let count = std::rc::Rc::new(Cell::new(0));
        let refused = count.clone();
        place.sim.on_disk_op("server", move |op| {
            let data = op.kind == amphi_env::sim::DiskOpKind::Write && refused.get() == 0;
            data.then(|| refused.set(1)).map(|()| std::io::ErrorKind::Other)
        });
        let results = c.batch(&sizes).await.unwrap();
        place.sim.clear_disk_hook("server");
        assert!(count.get() == 1 && results.contains(&Err(Errno::Io)), "{results:?}");
        for (ino, result) in files.iter().zip(&results) {
            let data = c.bytes_of(*ino, 43_000).await.unwrap();
            let expected = bytes(99, 40_000, 3000);
            assert_eq!(data[40_000..] == expected[..], result.is_ok());
        }
    });
}

/// Goal: if a target gets full, the parts that do not fit fail, and those that fit are written. Method: fill it up to a
/// few blocks.
#[test]
fn a_full_target() {
    with_server(75, 1, 1, async |_, c| {
        let files = c.files(300).await.unwrap();
        let object = ObjectId { ino: files[0], stripe: 0 };
        let mut at = 1 << 20;
        for step in [1 << 20, 64 << 10, 4096u64] {
            loop {
                let op = Request::Write {
                    object,
                    offset: at,
                    generation: 0,
                    mtime: MTIME,
                    server_lock: true,
                    kill_suidgid: false,
                    checksums: Default::default(),
                    cover: Default::default(),
                };
                match c.ask(op, Some(bytes(2, at, step as usize))).await.0 {
                    Ok(_) => at += step,
                    Err(e) => {
                        assert_eq!(e, Errno::NoSpace);
                        break;
                    }
                }
            }
        }
        let set = SetAttr { size: Some(at - 10 * 4096), ..SetAttr::default() };
        c.inode(Request::SetAttr { ino: files[0], set }).await.unwrap();
        c.call(Request::Sync { file: None }).await.unwrap();
        let parts: Vec<Part> = files[1..].iter().map(|ino| part(*ino, 5, 0, 3000)).collect();
        let results = c.batch(&parts).await.unwrap();
        let landed = results.iter().filter(|r| r.is_ok()).count();
        assert!((1..40).contains(&landed), "{landed}");
        assert!(results.iter().all(|r| matches!(r, Ok(()) | Err(Errno::Again))), "alone it may find room");
        for (ino, result) in files[1..].iter().zip(&results) {
            let size = c.stat(*ino).await.unwrap().size;
            assert_eq!(size, if result.is_ok() { 3000 } else { 0 });
        }
    });
}

/// Files of the crash sweep.
const SWEPT: usize = 5;
/// The contents of blocks before the sweep.
const FOREIGN: u8 = 0xee;

/// Bytes that batch `round` writes to the `i`-th file. They begin and end in the middle of blocks, over older bytes and
/// behind them. For the last file they are all of its bytes, which are not accepted into memory in shared mode.
fn swept(ino: Ino, i: usize, round: u8) -> Part {
    let offset = if i + 1 == SWEPT { 0 } else { 300 + 1000 * u64::from(round) + 10 * i as u64 };
    part(ino, round * 16 + i as u8, offset, 2500 + 3000 * i)
}

/// The mounts that exist when batches are swept.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mounts {
    /// The server has one session, so it writes batches through to the disk.
    One,
    /// Two: most parts are accepted into memory.
    Two,
    /// Two mounts, and accepted bytes are flushed at once.
    TwoFlushed,
}

impl Mounts {
    fn place(self, seed: u64, sim: Sim) -> Place {
        let mut place = Place::new(seed, 1, 1);
        place.sim = sim;
        place.sim.node("client");
        let age_ms = if self == Mounts::TwoFlushed { "1" } else { "600000" };
        place.config.tunables.push(("server.write_back_age_ms".into(), age_ms.into()));
        place
    }

    /// The second mount.
    async fn other(self, place: &Place) -> Option<Client> {
        if self == Mounts::One { None } else { Some(place.client(5).await.unwrap()) }
    }
}

/// Makes the files of the sweep, and a removed one. Blocks that will be used again contain bytes that must not be
/// visible.
async fn set_up(c: &Client) -> Result<(Vec<Ino>, Ino)> {
    let files = c.files(SWEPT).await?;
    c.held.opens.borrow_mut().extend(files.iter().map(|ino| (*ino, RW)));
    let gone = c.make(Ino::ROOT, "gone", Make::File { open: Some(RW), exclusive: true }).await?;
    let junk = Request::Write {
        object: ObjectId { ino: gone, stripe: 0 },
        offset: 0,
        generation: 0,
        mtime: MTIME,
        server_lock: true,
        kill_suidgid: false,
        checksums: Default::default(),
        cover: Default::default(),
    };
    c.ask(junk, Some(Buf::copy_of(&[FOREIGN; 400_000]))).await.0?;
    c.call(Request::Sync { file: None }).await?;
    c.unlink(Ino::ROOT, "gone").await?;
    c.call(Request::Close { ino: gone, access: RW, atime: None }).await?;
    c.call(Request::Sync { file: None }).await?;
    Ok((files, gone))
}

/// The operations of the sweep: batches over the files, then a sync, then one more batch of which a part fails. With an
/// `env` it waits after each batch.
async fn batch_scenario(c: &Client, files: &[Ino], gone: Ino, done: &Cell<usize>, env: Option<SimEnv>) -> Result<()> {
    let step = || done.set(done.get() + 1);
    step();
    for round in 1..=3 {
        let mut parts: Vec<Part> = files.iter().enumerate().map(|(i, ino)| swept(*ino, i, round)).collect();
        if round == 3 {
            c.call(Request::Sync { file: None }).await?;
            step();
            parts.push(part(gone, 1, 0, 100));
            parts.sort_by_key(|(p, _)| p.object);
        }
        for ((p, _), result) in parts.iter().zip(c.batch(&parts).await?) {
            let is_right = match result {
                // In shared mode, a file that is not open has to be written by a separate request.
                Err(e) => p.object.ino == gone && matches!(e, Errno::Stale | Errno::Again),
                Ok(()) => p.object.ino != gone,
            };
            assert!(is_right, "{result:?}");
        }
        step();
        if let Some(env) = &env {
            env.sleep(Duration::from_millis(45)).await;
        }
    }
    c.call(Request::Sync { file: None }).await?;
    step();
    Ok(())
}

/// Rounds that the file contains after `done` steps of the scenario were answered. The last of them is certain only
/// after a kill.
fn rounds_after(done: usize) -> (u8, u8) {
    match done {
        0 | 1 => (0, 1),
        2 => (1, 2),
        3 | 4 => (2, 3),
        _ => (3, 3),
    }
}

async fn check_swept(c: &Client, files: &[Ino], done: usize, kind: CrashKind, what: &str) {
    let (sure, most) = rounds_after(done);
    let sure = match (kind, done) {
        (CrashKind::Process, _) => sure,
        (CrashKind::Power, 4 | 5) => 2,
        (CrashKind::Power, 6) => 3,
        (CrashKind::Power, _) => 0,
    };
    for (i, &ino) in files.iter().enumerate() {
        let size = c.stat(ino).await.unwrap().size;
        let data = c.bytes_of(ino, size).await.unwrap();
        let written: Vec<Part> = (1..=most).map(|r| swept(ino, i, r)).collect();
        let ends: Vec<u64> = std::iter::once(0).chain(written.iter().map(|(p, _)| p.range().end)).collect();
        assert!(ends[usize::from(sure)..].contains(&size), "{what}: file {i} has {size} bytes after {done} steps");
        // The first round wrote to new blocks: if its record exists, its data does too.
        let sure = if most > 0 && size >= ends[1] { sure.max(1) } else { sure };
        for (at, byte) in data.iter().enumerate() {
            let of = |r: u8| {
                let (p, data) = &written[usize::from(r) - 1];
                (at as u64).checked_sub(p.offset).and_then(|at| data.get(at as usize).copied())
            };
            // The last round that is certain, or any later one.
            let certain = (1..=sure).rev().find_map(of).unwrap_or(0);
            let later = (sure + 1..=most).filter_map(of).any(|b| b == *byte);
            assert!(*byte == certain || later, "{what}: byte {at} of file {i} is {byte} after {done} steps");
        }
    }
}

/// One run of the scenario, crashed at the `nth` write or sync. Returns whether it ended before.
fn sweep_at(mounts: Mounts, nth: u64, kind: CrashKind, seed: u64, keeps: bool) -> bool {
    let place = mounts.place(seed, Sim::new(seed, SimConfig { keeps, ..SimConfig::default() }));
    let what = format!("{mounts:?}, {kind:?} at {nth}, seed {seed}, memory {keeps}");
    let mut finished = false;
    let run = async {
        let first = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let (files, gone) = set_up(&c).await.unwrap();
        let _other = mounts.other(&place).await;
        let env = (mounts == Mounts::TwoFlushed).then(|| place.sim.node("client"));
        place.sim.crash_at("server", nth, kind);
        let done = Cell::new(0);
        {
            let dead = async {
                while place.sim.alive("server") {
                    place.sim.node("client").sleep(Duration::from_micros(200)).await;
                }
            };
            let scenario = batch_scenario(&c, &files, gone, &done, env);
            let _ = select(std::pin::pin!(scenario), std::pin::pin!(dead)).await;
        }
        finished = place.sim.alive("server");
        place.sim.clear_crash_at("server");
        place.sim.crash("client", CrashKind::Process);
        place.sim.crash("server", kind);
        drop(first);
        let server = place.start().await.unwrap();
        place.sim.node("server").sleep(Duration::from_secs(31)).await;
        let late = place.client(2).await.unwrap();
        check_swept(&late, &files, done.get(), kind, &what).await;
        late.call(Request::Goodbye).await.unwrap();
        server.stop().await.unwrap();
        let report = crate::fsck(&place.sim.node("server"), "data").await.unwrap();
        assert!(report.is_clean(), "{what}: {:#?}", report.findings);
        assert_eq!((report.orphans, report.pending.len()), (0, 0), "{what}: {report:#?}");
    };
    place.sim.block_on(run).unwrap();
    finished
}

fn sweep(mounts: Mounts) -> u64 {
    let mut nth = 0;
    loop {
        nth += 1;
        let mut finished = true;
        // The state after a power failure is random: several tries.
        let power = (81..86).map(|seed| (CrashKind::Power, seed, true));
        let kills = [true, false].map(|keeps| (CrashKind::Process, 80, keeps));
        for (kind, seed, keeps) in kills.into_iter().chain(power) {
            finished &= sweep_at(mounts, nth, kind, seed, keeps);
        }
        if finished {
            return nth;
        }
    }
}

/// Goal: Promise S9 and Promise S10 for batches: data answered before a kill is there after it, and data synced before
/// a loss of power as well. A part that was not answered is old or new, and no file shows bytes that were never written
/// to it. Method: client and server crash at every write and sync of a scenario.
#[test]
fn batches_survive_any_crash() {
    plant(None);
    for mounts in [Mounts::One, Mounts::Two, Mounts::TwoFlushed] {
        let writes = sweep(mounts);
        assert!(writes > 6, "{mounts:?}: the scenario has many writes: {writes}");
    }
}

/// Goal: the sweep finds mistakes. Method: planted ones.
#[test]
fn planted_mistakes_in_batches_are_found() {
    let sweeps: [(Mistake, fn() -> u64); 4] = [
        (Mistake::UnmarkedBatch, || sweep(Mounts::One)),
        (Mistake::EarlyAnswer, || sweep(Mounts::One)),
        (Mistake::ShiftedPart, || sweep(Mounts::One)),
        (Mistake::HalfAnswer, || answered_through_kills(Mounts::Two)),
    ];
    for (mistake, sweep) in sweeps {
        plant(Some(mistake));
        let found = catch_unwind(AssertUnwindSafe(sweep)).is_err();
        plant(None);
        assert!(found, "{mistake:?} was not found");
    }
}

/// Goal: a client that lives through a crash at any write gets every answer of its batches. Method: kill the server at
/// every write of the scenario and start it again. The scenario must end as without a crash.
#[test]
fn batches_are_answered_through_kills() {
    plant(None);
    for mounts in [Mounts::One, Mounts::Two, Mounts::TwoFlushed] {
        let crashes = answered_through_kills(mounts);
        assert!(crashes > 4, "{mounts:?}: {crashes} crashes");
    }
}

/// Runs the scenario with a kill at each of its writes in turn, until it ends without one; returns the number of kills.
fn answered_through_kills(mounts: Mounts) -> u64 {
    let mut crashes = 0;
    for nth in 1.. {
        let place = mounts.place(76, Sim::new(76, SimConfig::default()));
        let before = crashes;
        let run = async {
            let mut server = place.start().await.unwrap();
            let c = place.client(1).await.unwrap();
            let (files, gone) = set_up(&c).await.unwrap();
            let _other = mounts.other(&place).await;
            let env = (mounts == Mounts::TwoFlushed).then(|| place.sim.node("client"));
            place.sim.crash_at("server", nth, CrashKind::Process);
            let done = Cell::new(0);
            {
                let keeper = async {
                    loop {
                        place.sim.node("client").sleep(Duration::from_millis(5)).await;
                        if !place.sim.alive("server") {
                            crashes += 1;
                            server = place.start().await.unwrap();
                        }
                    }
                };
                let scenario = batch_scenario(&c, &files, gone, &done, env);
                match select(std::pin::pin!(scenario), std::pin::pin!(keeper)).await {
                    futures_util::future::Either::Left((result, _)) => result.expect("every step is answered"),
                    futures_util::future::Either::Right(_) => unreachable!("the keeper never ends"),
                }
            }
            place.sim.clear_crash_at("server");
            check_swept(&c, &files, 6, CrashKind::Process, &format!("killed at {nth}")).await;
            c.call(Request::Goodbye).await.unwrap();
            server.stop().await.unwrap();
            let report = crate::fsck(&place.sim.node("server"), "data").await.unwrap();
            assert!(report.is_clean(), "killed at {nth}: {:#?}", report.findings);
        };
        place.sim.block_on(run).unwrap();
        if crashes == before {
            break;
        }
    }
    crashes
}

/// Goal: several closes in one message end just those opens. Method: files opened twice, closed once together, then
/// unlinked.
#[test]
fn closes_travel_together() {
    with_server(77, 1, 1, async |_, c| {
        let files = c.files(10).await.unwrap();
        c.call(Request::Open { ino: files[0], access: RW, exec: false }).await.unwrap();
        let closes = files.iter().map(|ino| (*ino, RW, None)).collect();
        assert_eq!(c.call(Request::CloseBatch { closes }).await, Ok(Reply::Done));
        for i in 0..10 {
            c.unlink(Ino::ROOT, &format!("f{i}")).await.unwrap();
        }
        for ino in &files {
            assert_eq!(c.stat(*ino).await.is_ok(), *ino == files[0], "the one that was opened twice is still open");
        }
        let closes = vec![(files[0], RW, None); 2];
        assert_eq!(c.call(Request::CloseBatch { closes }).await, Ok(Reply::Done));
        assert!(c.stat(files[0]).await.is_err());
        let many = vec![(files[0], RW, None); amphi_wire::BATCH_PARTS_MAX + 1];
        assert_eq!(c.call(Request::CloseBatch { closes: many }).await, Err(Errno::Inval));
    });
}

/// Goal: a batch that one record of a small log cannot name is written in steps and answered as one batch, with a
/// result for each part. Method: 500 parts, of which one in each step belongs to a removed file.
#[test]
fn more_than_one_record() {
    with_server(78, 1, 1, async |_, c| {
        let files = c.files(500).await.unwrap();
        let mut gone = Vec::new();
        for name in ["f3", "f300", "f490"] {
            let ino = c.lookup(Ino::ROOT, name).await.unwrap().attr.ino;
            c.unlink(Ino::ROOT, name).await.unwrap();
            c.call(Request::Close { ino, access: RW, atime: None }).await.unwrap();
            gone.push(ino);
        }
        let parts: Vec<Part> = files.iter().enumerate().map(|(i, ino)| part(*ino, i as u8, 50, 100)).collect();
        let transactions = async || match c.call(Request::Counters { reset: false }).await {
            Ok(Reply::Counters(all)) => all.iter().find(|(name, _)| name == "transactions").map(|(_, n)| *n),
            other => panic!("{other:?}"),
        };
        let before = transactions().await.unwrap();
        let results = c.batch(&parts).await.unwrap();
        assert_eq!(transactions().await, Some(before + 3), "three records");
        for (i, (ino, result)) in files.iter().zip(&results).enumerate() {
            let expected = if gone.contains(ino) { Err(Errno::Stale) } else { Ok(()) };
            assert_eq!(*result, expected, "part {i}");
            if result.is_ok() {
                assert!(c.bytes_of(*ino, 150).await.unwrap()[50..] == bytes(i as u8, 50, 100)[..]);
            }
        }
    });
}

/// Goal: other mounts may cache the attributes of a part's file if the session has not opened it for writing. Such a
/// part does not delay the others: it is refused with `Again`, and a separate request first revokes the token. Method:
/// two mounts, of which one reads the attributes of a closed file and does not answer revocations.
#[test]
fn unopened_files_come_alone() {
    with_server(79, 1, 1, async |place, c| {
        let files = c.files(4).await.unwrap();
        let other = place.client(2).await.unwrap();
        c.call(Request::Close { ino: files[2], access: RW, atime: None }).await.unwrap();
        let (view, tokens) = other.told(Request::GetAttr { ino: files[2] }).await;
        assert!(view.is_ok() && tokens.attributes.is_some());
        other.held.deaf.set(true);
        let parts: Vec<Part> = files.iter().map(|ino| part(*ino, 9, 0, 3000)).collect();
        assert_eq!(c.batch(&parts).await.unwrap(), [Ok(()), Ok(()), Err(Errno::Again), Ok(())]);
        let op = Request::Write {
            object: ObjectId { ino: files[2], stripe: 0 },
            offset: 0,
            generation: 0,
            mtime: MTIME,
            server_lock: false,
            kill_suidgid: false,
            checksums: Default::default(),
            cover: Default::default(),
        };
        let alone = c.ask(op, Some(bytes(9, 0, 3000)));
        let answer = async {
            let revoke = other.held.pushed(|p| matches!(p, Push::Revoke { .. }).then(|| p.clone())).await;
            other.held.deaf.set(false);
            other.reply(&revoke).await;
        };
        let ((written, _), ()) = futures_util::future::join(alone, answer).await;
        assert!(matches!(written, Ok(Reply::Written { .. })), "{written:?}");
        assert!(c.bytes_of(files[2], 3000).await.unwrap() == bytes(9, 0, 3000)[..]);
    });
}
