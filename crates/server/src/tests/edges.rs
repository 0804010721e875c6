//! Writes of neighbouring bytes that share blocks: together, in any order, with a crash at any write.

use super::data::bytes;
use super::*;
use crate::planted::{Mistake, plant};
use amphi_env::sim::CrashKind;
use amphi_types::ByteRange;
use futures_util::future::{join_all, select};
use std::panic::{AssertUnwindSafe, catch_unwind};

const MTIME: Timespec = Timespec { sec: 2_000_000_000, nsec: 0 };
const LEN: u64 = 40_000;
/// The place where data begins on the disk of a target here: after 2 MiB of superblock and log, and 4 MiB of metadata.
const DATA: u64 = 6 << 20;

/// A place whose server answers no write from memory: this test is about the disk.
fn written_through(seed: u64) -> Place {
    let mut place = Place::new(seed, 1, 1);
    place.config.tunables.push(("server.write_back".into(), "off".into()));
    place
}

/// A server with the settings of all tests, in such an environment.
fn with_server<F>(seed: u64, story: F)
where
    F: AsyncFnOnce(&Place, &Client),
{
    let place = written_through(seed);
    let run = async {
        let server = place.start().await.expect("the server starts");
        let client = place.client(1).await.expect("the client connects");
        story(&place, &client).await;
        drop(server);
    };
    place.sim.block_on(run).expect("no deadlock");
}

async fn put(c: &Client, ino: Ino, seed: u8, at: u64, end: u64) -> Result<Reply> {
    let object = ObjectId { ino, stripe: 0 };
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
    c.ask(op, Some(bytes(seed, at, (end - at) as usize))).await.0
}

async fn get(c: &Client, ino: Ino) -> Vec<u8> {
    let op = Request::Read {
        object: ObjectId { ino, stripe: 0 },
        range: ByteRange::new(0, LEN),
        server_lock: true,
        advice: Default::default(),
    };
    let (reply, payload) = c.ask(op, None).await;
    assert_eq!(reply, Ok(Reply::Data));
    let mut data = payload.map_or(Vec::new(), |p| p.to_vec());
    data.resize(LEN as usize, 0);
    data
}

/// Goal: writes of neighbouring bytes at the same time lose no byte of each other, over holes, reserved and written
/// blocks, from two sessions, with readers in between. This holds after a restart, too. Method: random cuts of a file,
/// all pieces in any order at once, against a model.
fn neighbours(seed: u64) {
    with_server(seed, async |place, c| {
        let other = place.client(2).await.unwrap();
        let env = place.sim.node("client");
        let ino = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let mut model = vec![0u8; LEN as usize];
        for round in 0..40u8 {
            let object = ObjectId { ino, stripe: 0 };
            if round % 8 == 0 {
                let range = ByteRange::new(8192, 8192 + 3 * 4096);
                let hole = Request::Punch { object, range, generation: 0, mtime: MTIME, server_lock: true };
                c.call(hole).await.unwrap();
                model[8192..8192 + 3 * 4096].fill(0);
                let reserve = Request::Allocate { object, range, generation: 0, mtime: MTIME, server_lock: true };
                c.call(reserve).await.unwrap();
            }
            let mut cuts: Vec<u64> = (0..8 + env.rand() % 20).map(|_| env.rand() % LEN).collect();
            cuts.sort_unstable();
            cuts.dedup();
            let mut pieces: Vec<(u64, u64)> = cuts.windows(2).map(|w| (w[0], w[1])).collect();
            for i in (1..pieces.len()).rev() {
                pieces.swap(i, (env.rand() % (i as u64 + 1)) as usize);
            }
            for &(at, end) in &pieces {
                model[at as usize..end as usize].copy_from_slice(&bytes(round, at, (end - at) as usize));
            }
            let writes = pieces.iter().enumerate().map(|(i, &(at, end))| {
                let c = if i % 2 == 0 { c } else { &other };
                put(c, ino, round, at, end)
            });
            let (written, _) = futures_util::join!(join_all(writes), get(&other, ino));
            assert!(written.iter().all(|r| matches!(r, Ok(Reply::Written { .. }))), "{written:?}");
            let found = get(c, ino).await;
            let first = (0..model.len()).find(|&i| found[i] != model[i]);
            // The end of the file lies behind the last piece.
            assert_eq!(first, None, "round {round}");
        }
        other.call(Request::Goodbye).await.unwrap();
    });
}

/// Goal: see `neighbours`. Method: several seeds.
#[test]
fn neighbours_lose_no_byte() {
    plant(None);
    (90..94).for_each(neighbours);
}

/// Goal: a write does not read the block that its neighbour has just written, and does not wait for its disk. Method:
/// the same records, once one after another and once all at the same time. Disk reads and the virtual time are counted.
#[test]
fn records_in_turn_run_together() {
    plant(None);
    with_server(95, async |place, c| {
        let env = place.sim.node("client");
        let ino = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let record = |i: u64| (i * 4700, (i + 1) * 4700);
        let reads = place.sim.disk_ops("server").reads;
        let start = env.now().0;
        for i in 0..8 {
            put(c, ino, 1, record(i).0, record(i).1).await.unwrap();
        }
        let serial = env.now().0 - start;
        let start = env.now().0;
        join_all((0..8).map(|i| put(c, ino, 2, record(i).0, record(i).1))).await;
        let together = env.now().0 - start;
        assert_eq!(place.sim.disk_ops("server").reads, reads, "blocks that were written lately are not read");
        assert!(together * 3 < serial, "{together} ns together, {serial} ns one by one");
    });
}

/// Goal: Promise S16: a write that fails leaves nothing behind, neither in a block that it shares with a write that
/// succeeds at the same time nor in the next block. Method: three writes share one block at the same time, and the disk
/// fails for the first, or for the first two. Then a write behind the end makes the file longer.
#[test]
fn failed_writes_leave_nothing_in_shared_blocks() {
    use amphi_env::sim::DiskOpKind;
    plant(None);
    for (failing, old) in [(1, false), (1, true), (2, false), (2, true)] {
        // A seed with which inodes stay in memory: reads of them could change the order of the writes.
        with_server(97, async |place, c| {
            let ino = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
            let mut model = vec![0u8; LEN as usize];
            if old {
                put(c, ino, 1, 0, 50).await.unwrap();
                model[..50].copy_from_slice(&bytes(1, 0, 50));
            }
            let left = Cell::new(failing);
            place.sim.on_disk_op("server", move |op| {
                let hit = op.kind == DiskOpKind::Write && op.len == 4096 && op.at >= DATA && left.get() > 0;
                left.set(left.get() - i32::from(hit));
                hit.then_some(std::io::ErrorKind::Other)
            });
            let pieces = [(200, 300), (100, 200), (50, 100)];
            let written = join_all(pieces.iter().map(|&(at, end)| put(c, ino, 2, at, end))).await;
            place.sim.clear_disk_hook("server");
            for (i, (&(at, end), written)) in pieces.iter().zip(written).enumerate() {
                assert_eq!(written.is_err(), i < failing as usize, "{i}: {written:?}");
                if written.is_ok() {
                    model[at as usize..end as usize].copy_from_slice(&bytes(2, at, (end - at) as usize));
                }
            }
            put(c, ino, 3, 4000, 4096).await.unwrap();
            model[4000..4096].copy_from_slice(&bytes(3, 4000, 96));
            assert_eq!(get(c, ino).await.iter().zip(&model).position(|(a, b)| a != b), None, "{failing} {old}");
        });
    }
}

/// One run, which crashes at the `nth` write or sync. Returns whether it ended before.
fn sweep_at(nth: u64, kind: CrashKind, seed: u64) -> bool {
    const PIECES: [(u64, u64); 7] =
        [(100, 5000), (5000, 9100), (9100, 9200), (9200, 12_288), (12_288, 20_000), (20_000, 20_100), (20_100, 33_333)];
    let place = written_through(seed);
    let what = format!("{kind:?} at {nth}, seed {seed}");
    let mut finished = false;
    let run = async {
        let first = place.start().await.unwrap();
        let (c, other) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
        let ino = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        put(&c, ino, 1, 0, LEN).await.unwrap();
        c.call(Request::Sync { file: None }).await.unwrap();
        place.sim.crash_at("server", nth, kind);
        let done = RefCell::new([false; PIECES.len()]);
        {
            let dead = async {
                while place.sim.alive("server") {
                    place.sim.node("client").sleep(Duration::from_micros(200)).await;
                }
            };
            let writes = join_all(PIECES.iter().enumerate().map(|(i, &(at, end))| {
                let (c, done) = (if i % 2 == 0 { &c } else { &other }, &done);
                async move {
                    let answered = put(c, ino, 2, at, end).await.is_ok();
                    done.borrow_mut()[i] = answered;
                }
            }));
            let _ = select(std::pin::pin!(writes), std::pin::pin!(dead)).await;
        }
        finished = place.sim.alive("server");
        place.sim.clear_crash_at("server");
        place.sim.crash("client", CrashKind::Process);
        place.sim.crash("server", kind);
        drop(first);
        let server = place.start().await.unwrap();
        place.sim.node("server").sleep(Duration::from_secs(31)).await;
        let late = place.client(3).await.unwrap();
        let found = get(&late, ino).await;
        let is =
            |seed: u8, at: u64, end: u64| found[at as usize..end as usize] == bytes(seed, at, (end - at) as usize)[..];
        for (i, (at, end)) in PIECES.into_iter().enumerate() {
            let new = is(2, at, end);
            assert!(new || is(1, at, end), "{what}: piece {i} is neither old nor new");
            assert!(new || !done.borrow()[i] || kind == CrashKind::Power, "{what}: piece {i} was answered and is lost");
        }
        assert!(is(1, 0, 100) && is(1, 33_333, LEN), "{what}: bytes that nobody wrote have changed");
        late.call(Request::Goodbye).await.unwrap();
        server.stop().await.unwrap();
        let report = crate::fsck(&place.sim.node("server"), "data").await.unwrap();
        assert!(report.is_clean(), "{what}: {:#?}", report.findings);
    };
    place.sim.block_on(run).unwrap();
    finished
}

fn sweep() -> u64 {
    let mut nth = 0;
    loop {
        nth += 1;
        let mut finished = true;
        let power = (101..105).map(|seed| (CrashKind::Power, seed));
        for (kind, seed) in std::iter::once((CrashKind::Process, 100)).chain(power) {
            finished &= sweep_at(nth, kind, seed);
        }
        if finished {
            return nth;
        }
    }
}

/// Goal: Promise S9 for writes that share blocks: data answered before a kill is there after it. Unanswered data is old
/// or new as a whole, and neighbouring bytes are not harmed. Method: a crash at every write and sync, while seven
/// writers write adjacent bytes at the same time.
#[test]
fn neighbours_survive_any_crash() {
    plant(None);
    let writes = sweep();
    assert!(writes > 6, "the scenario has many writes: {writes}");
}

/// Goal: these tests find mistakes. Method: planted ones.
#[test]
fn planted_mistakes_at_edges_are_found() {
    for mistake in [Mistake::ForgottenNeighbour, Mistake::CommitOutOfTurn] {
        plant(Some(mistake));
        let found = catch_unwind(AssertUnwindSafe(|| (90..94).for_each(neighbours))).is_err();
        plant(None);
        assert!(found, "{mistake:?} was not found");
    }
}
