//! Checksums of file data: blocks that do not match are not served, and nothing else is refused.

use super::data::bytes;
use super::*;
use crate::planted::{Mistake, plant};
use amphi_env::sim::{CrashKind, DiskOpKind};
use amphi_types::{AskedAdvice, ByteRange, DataChecksums, SetAttr};
use amphi_wire::BatchPart;
use std::panic::{AssertUnwindSafe, catch_unwind};

const MTIME: Timespec = Timespec { sec: 2_000_000_000, nsec: 0 };
const BLOCK: u64 = 4096;
const PATH: &str = "data/target-0000.zone";

fn place(seed: u64, more: &[(&str, &str)]) -> Place {
    let mut place = Place::new(seed, 1, 1);
    for (name, value) in [("server.checksums", "on"), ("server.write_back", "off")].iter().chain(more) {
        place.config.tunables.push((name.to_string(), value.to_string()));
    }
    place
}

fn run(place: &Place, story: impl AsyncFnOnce(&Place, &Client)) {
    let run = async {
        let server = place.start().await.expect("the server starts");
        let client = place.client(1).await.expect("the client connects");
        story(place, &client).await;
        drop(server);
    };
    place.sim.block_on(run).expect("no deadlock");
}

fn object(ino: Ino) -> ObjectId {
    ObjectId { ino, stripe: 0 }
}

async fn put(c: &Client, ino: Ino, seed: u8, at: u64, end: u64) -> Result<()> {
    put_as(c, ino, DataChecksums::Auto, seed, at, end).await
}

/// Writes as a mount that knows of a setting of the file.
async fn put_as(c: &Client, ino: Ino, asked: DataChecksums, seed: u8, at: u64, end: u64) -> Result<()> {
    let op = Request::Write {
        object: object(ino),
        offset: at,
        generation: 0,
        mtime: MTIME,
        server_lock: true,
        kill_suidgid: false,
        checksums: asked,
        cover: Default::default(),
    };
    c.ask(op, Some(bytes(seed, at, (end - at) as usize))).await.0.map(drop)
}

async fn get(c: &Client, ino: Ino, range: ByteRange) -> Result<Vec<u8>> {
    let op = Request::Read { object: object(ino), range, server_lock: true, advice: Default::default() };
    let (reply, payload) = c.ask(op, None).await;
    reply.map(|_| payload.map_or(vec![0; range.len() as usize], |p| p.to_vec()))
}

async fn counter(c: &Client, name: &str) -> u64 {
    let Ok(Reply::Counters(counters)) = c.call(Request::Counters { reset: false }).await else { panic!() };
    counters.iter().find(|(n, _)| n == name).map_or(0, |(_, n)| *n)
}

async fn set(c: &Client, name: &str, value: &str) {
    c.call(Request::Tunables { pattern: name.into(), value: Some(value.into()) }).await.unwrap();
}

async fn file(c: &Client, text: &str) -> Ino {
    c.make(Ino::ROOT, text, Make::File { open: Some(RW), exclusive: true }).await.unwrap()
}

/// Addresses of the blocks of a file on the disk, by offset.
async fn blocks(c: &Client, ino: Ino) -> Vec<(u64, u64)> {
    let op = Request::Extents { object: object(ino), offset: 0, extents_max: 1000 };
    let Ok(Reply::Extents { extents, .. }) = c.call(op).await else { panic!() };
    let each = |e: &amphi_wire::ExtentView| {
        let (offset, address) = (e.offset, e.address);
        (0..e.len / BLOCK).map(move |i| (offset + i * BLOCK, address + i * BLOCK))
    };
    extents.iter().filter(|e| e.written).flat_map(each).collect()
}

fn flip(place: &Place, at: u64, bit: u32) {
    let byte = place.sim.peek("server", PATH, at, 1).unwrap()[0];
    place.sim.poke("server", PATH, at, &[byte ^ (1 << (bit % 8))]).unwrap();
}

async fn stat_damaged(c: &Client) -> u64 {
    counter(c, "checksum_damaged_blocks").await
}

/// Every fourth block of a file that was written in several ways is damaged. Each read returns the right bytes or an
/// error.
fn flipped_bits(seed: u64) {
    let place = place(seed, &[("server.write_back", ["off", "on"][seed as usize % 2])]);
    run(&place, async |place, c| {
        let f = file(c, "f").await;
        let mut model = vec![0; 150_000];
        let mut note = |seed, at: u64, end: u64| {
            model[at as usize..end as usize].copy_from_slice(&bytes(seed, at, (end - at) as usize));
        };
        for (i, (at, end)) in
            [(0, 70_000), (69_000, 90_001), (100_000, 150_000), (4096, 16_384), (5000, 5100)].into_iter().enumerate()
        {
            put(c, f, i as u8 + 1, at, end).await.unwrap();
            note(i as u8 + 1, at, end);
        }
        let part = BatchPart {
            object: object(f),
            offset: 30_000,
            len: 5000,
            generation: 0,
            mtime: MTIME,
            checksums: Default::default(),
            cover: Default::default(),
        };
        let op = Request::WriteBatch { parts: vec![part] };
        assert_eq!(c.ask(op, Some(bytes(9, 30_000, 5000))).await.0, Ok(Reply::WrittenBatch(vec![Ok(())])));
        note(9, 30_000, 35_000);
        c.call(Request::Sync { file: None }).await.unwrap();
        let all = blocks(c, f).await;
        assert!(all.len() > 30, "{all:?}");
        for (i, (_, at)) in all.iter().enumerate().filter(|(i, _)| i % 4 == 1) {
            flip(place, at + i as u64 * 57 % BLOCK, i as u32);
        }
        for round in 0..2 {
            for (i, (offset, _)) in all.iter().enumerate() {
                let end = (offset + BLOCK).min(150_000);
                let read = get(c, f, ByteRange::new(*offset, end)).await;
                let want = if i % 4 == 1 { Err(Errno::Io) } else { Ok(model[*offset as usize..end as usize].to_vec()) };
                assert_eq!(read, want, "block {i} at {offset}, round {round}");
            }
        }
        assert_eq!(get(c, f, ByteRange::new(0, 150_000)).await, Err(Errno::Io), "all of it");
        let damaged = all.iter().enumerate().filter(|(i, _)| i % 4 == 1).count() as u64;
        assert_eq!(stat_damaged(c).await, damaged);
        let Ok(Reply::Status { targets, .. }) = c.call(Request::Status).await else { panic!("a status") };
        assert_eq!((targets[0].damaged, targets[0].findings.len()), (damaged, amphi_wire::FINDINGS_MAX));
        let last = all.iter().skip(1).step_by(4).next_back().unwrap();
        let line = format!("/f (inode {f}): 4096 bytes from byte {} on (byte {} of the disk)", last.0, last.1);
        assert_eq!(targets[0].findings[0], line, "the newest comes first");
        assert!(counter(c, "checksum_errors").await >= 2 * damaged);
        assert_eq!(counter(c, "checksum_retries").await, 0);

        // A write next to damaged bytes of a block does not repair them; a write over them does.
        let (bad, end) = (all[5].0, all[5].0 + BLOCK);
        if seed.is_multiple_of(2) {
            assert_eq!(put(c, f, 20, bad + 10, bad + 20).await, Err(Errno::Io));
        } else {
            put(c, f, 20, bad + 10, bad + 20).await.unwrap();
            c.call(Request::Sync { file: None }).await.unwrap();
        }
        let cut = SetAttr { size: Some(bad + 100), ..SetAttr::default() };
        assert_eq!(c.inode(Request::SetAttr { ino: f, set: cut }).await.err(), Some(Errno::Io));
        let range = ByteRange::new(bad, bad + 2048);
        let punch = Request::Punch { object: object(f), range, generation: 0, mtime: MTIME, server_lock: true };
        assert_eq!(c.call(punch).await, Err(Errno::Io));
        assert_eq!(get(c, f, ByteRange::new(bad, end)).await, Err(Errno::Io));
        put(c, f, 21, bad, end).await.unwrap();
        assert_eq!(get(c, f, ByteRange::new(bad, end)).await, Ok(bytes(21, bad, 4096).to_vec()));
        // Bytes in memory are flushed and get their blocks.
        set(c, "server.write_back", "off").await;
        place.sim.node("client").sleep(Duration::from_secs(2)).await;
        assert_eq!(stat_damaged(c).await, damaged - 1);
        c.call(Request::Close { ino: f, access: RW, atime: None }).await.unwrap();
        c.unlink(Ino::ROOT, "f").await.unwrap();
        assert_eq!(stat_damaged(c).await, 0, "the file has gone");
    });
}

/// Goal: a truncate that fails because the block at the new end is damaged changes nothing, also if the file has more
/// extents than fit into one record. Method: one more extent behind that block than one record holds.
#[test]
fn a_truncate_that_fails_changes_nothing() {
    run(&place(421, &[]), async |place, c| {
        let f = file(c, "f").await;
        let extents = crate::zone_target::EXTENTS_A_RECORD as u64 + 100;
        for i in 0..extents {
            put(c, f, 7, 2 * i * BLOCK, (2 * i + 1) * BLOCK).await.unwrap();
        }
        let (_, first) = blocks(c, f).await[0];
        flip(place, first + 3, 1);
        let cut = SetAttr { size: Some(100), ..SetAttr::default() };
        assert_eq!(c.inode(Request::SetAttr { ino: f, set: cut }).await.map(drop), Err(Errno::Io));
        for i in [1, extents / 2, extents - 2, extents - 1] {
            let range = ByteRange::at(2 * i * BLOCK, BLOCK);
            assert_eq!(get(c, f, range).await, Ok(bytes(7, range.start, BLOCK as usize).to_vec()), "block {i}");
        }
        let cut = SetAttr { size: Some(BLOCK), ..SetAttr::default() };
        assert_eq!(c.inode(Request::SetAttr { ino: f, set: cut }).await.map(|v| v.attr.size), Ok(BLOCK));
    });
}

/// Goal: Promise S24: no byte of a block in which a bit has changed is served, and a change of other bytes of the block
/// does not give it a new checksum. All other blocks are served. Overwriting the block or removing the file ends the
/// damage. Method: the same for bytes written through and for bytes from memory, and then without comparing checksums.
#[test]
fn flipped_bits_are_not_served() {
    plant(None);
    flipped_bits(400);
    flipped_bits(401);
    plant(Some(Mistake::Unverified));
    let found = catch_unwind(AssertUnwindSafe(|| flipped_bits(400))).is_err();
    plant(None);
    assert!(found);
}

/// Goal: data written without checksums is served as it is, gets a checksum when it is written again, and keeps it when
/// checksums are turned off. A restart keeps all of this. Method: one file that is written under both settings, with
/// one flipped bit each.
#[test]
fn the_switch_counts_for_what_is_written() {
    let place = place(402, &[("server.checksums", "off")]);
    run(&place, async |place, c| {
        let f = file(c, "f").await;
        put(c, f, 1, 0, 40_960).await.unwrap();
        let before = blocks(c, f).await;
        flip(place, before[2].1, 0);
        assert!(get(c, f, ByteRange::new(8192, 12_288)).await.is_ok(), "nobody knows");
        set(c, "server.checksums", "on").await;
        put(c, f, 2, 0, 20_480).await.unwrap();
        assert_eq!(blocks(c, f).await, before, "the first time in place");
        put(c, f, 3, 0, 4096).await.unwrap();
        let after = blocks(c, f).await;
        assert!(after[0] != before[0] && after[1..] == before[1..], "not over a checksum");
        set(c, "server.checksums", "off").await;
        c.call(Request::Sync { file: None }).await.unwrap();
        flip(place, after[1].1 + 7, 3);
        assert_eq!(get(c, f, ByteRange::new(4096, 8192)).await, Err(Errno::Io), "still verified");
        put(c, f, 4, 8192, 12_288).await.unwrap();
        put(c, f, 5, 8192, 12_288).await.unwrap();
        let last = blocks(c, f).await;
        flip(place, last[2].1, 1);
        assert!(get(c, f, ByteRange::new(8192, 12_288)).await.is_ok(), "it has none any more");
        flip(place, last[2].1, 1);
        c.call(Request::Sync { file: None }).await.unwrap();
        place.sim.crash("server", CrashKind::Power);
        let _server = place.start().await.unwrap();
        let c = place.client(2).await.unwrap();
        assert_eq!(get(&c, f, ByteRange::new(4096, 8192)).await, Err(Errno::Io), "after a restart");
        assert_eq!(get(&c, f, ByteRange::new(0, 4096)).await, Ok(bytes(3, 0, 4096).to_vec()));
        assert_eq!(
            get(&c, f, ByteRange::new(8192, 20_480)).await.map(|b| b[..4096] == bytes(5, 8192, 4096)[..]),
            Ok(true)
        );
    });
}

/// Goal: the check of a folder names each damaged block by its file, and counts the blocks that have no checksum.
/// Method: blocks of two files, of which one was written without checksums. Bits of both are flipped while the server
/// is stopped.
#[test]
fn the_check_of_a_folder_finds_damage() {
    let place = place(405, &[]);
    let run = async {
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let dir = c.mkdir(Ino::ROOT, "dir").await.unwrap();
        let f = c.make(dir, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        put(&c, f, 1, 0, 40_000).await.unwrap();
        set(&c, "server.checksums", "off").await;
        let g = file(&c, "g").await;
        put(&c, g, 2, 0, 8192).await.unwrap();
        let (of_f, of_g) = (blocks(&c, f).await, blocks(&c, g).await);
        c.call(Request::Goodbye).await.unwrap();
        server.stop().await.unwrap();
        let env = place.sim.node("server");
        let report = crate::fsck(&env, "data").await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.verified_blocks, report.unverified_blocks, report.damaged_blocks), (10, 2, 0));
        for at in [of_f[3].1, of_f[9].1 + 100, of_g[0].1] {
            flip(&place, at, 4);
        }
        let report = crate::fsck(&env, "data").await.unwrap();
        assert_eq!((report.verified_blocks, report.unverified_blocks, report.damaged_blocks), (8, 2, 2));
        let lines: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        for (line, offset) in lines.iter().zip([3 * BLOCK, 9 * BLOCK]) {
            let place = format!("the 4096 bytes from byte {offset} on are not what was written");
            assert!(line.starts_with("/dir/f (inode ") && line.contains(&place), "{line}");
        }
        let only_names = [(env, "data".to_string())];
        assert!(crate::fsck_folders(&only_names, crate::CheckData::No).await.unwrap().is_clean());
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: a full target still takes overwrites, also of parts of blocks, and their checksums stay. Method: a file that
/// fills the target is overwritten, and again after a loss of power. A bit is flipped in the overwritten blocks.
#[test]
fn a_full_target_takes_overwrites() {
    let place = place(403, &[]);
    run(&place, async |place, c| {
        let f = file(c, "f").await;
        let mut end = 0;
        while put(c, f, 1, end, end + (256 << 10)).await.is_ok() {
            end += 256 << 10;
        }
        while put(c, f, 1, end, end + BLOCK).await.is_ok() {
            end += BLOCK;
        }
        assert!(end > 16 << 20);
        put(c, f, 2, 100, 200).await.unwrap();
        put(c, f, 2, 1 << 20, 2 << 20).await.unwrap();
        assert_eq!(get(c, f, ByteRange::at(1 << 20, 1 << 20)).await, Ok(bytes(2, 1 << 20, 1 << 20).to_vec()));
        put(c, f, 3, end - BLOCK, end).await.unwrap();
        place.sim.crash("server", CrashKind::Power);
        let _server = place.start().await.unwrap();
        let c = place.client(2).await.unwrap();
        let mut at = 0;
        while at < end {
            let len = (end - at).min(256 << 10);
            assert!(get(&c, f, ByteRange::at(at, len)).await.is_ok(), "{at}");
            at += len;
        }
        flip(place, blocks(&c, f).await[300].1 + 77, 2);
        assert_eq!(get(&c, f, ByteRange::at(300 * BLOCK, BLOCK)).await, Err(Errno::Io), "it has its checksum still");
    });
}

/// Goal: the scrubber gives a checksum to blocks without one, finds damage that was never read, respects its rate
/// limit, and stops on request. Method: a file of 8 MiB that was written without checksums is scrubbed at 1 MiB a
/// second, and then a bit is flipped.
#[test]
fn the_scrubber_reads_everything() {
    let place = place(406, &[("server.checksums", "off")]);
    run(&place, async |place, c| {
        const LEN: u64 = 8 << 20;
        let (f, env) = (file(c, "f").await, place.sim.node("client"));
        for at in (0..LEN).step_by(1 << 20) {
            put(c, f, 1, at, at + (1 << 20)).await.unwrap();
        }
        set(c, "server.checksums", "on").await;
        let begun = place.sim.now();
        set(c, "server.scrub_bytes_per_s", "1M").await;
        while counter(c, "scrub_passes").await == 0 {
            env.sleep(Duration::from_millis(100)).await;
        }
        let took = Duration::from_nanos(place.sim.now().0 - begun.0);
        assert!(took > Duration::from_secs(7) && took < Duration::from_secs(10), "{took:?}");
        assert_eq!(counter(c, "scrub_bytes").await, LEN);
        assert_eq!(counter(c, "scrub_adopted_blocks").await, LEN / BLOCK);
        assert_eq!(counter(c, "checksum_errors").await, 0);
        flip(place, blocks(c, f).await[1000].1 + 77, 2);
        while counter(c, "scrub_passes").await == 1 {
            env.sleep(Duration::from_secs(1)).await;
        }
        assert_eq!((counter(c, "checksum_errors").await, stat_damaged(c).await), (1, 1));
        assert_eq!(counter(c, "scrub_adopted_blocks").await, LEN / BLOCK, "each got one once");
        assert_eq!(get(c, f, ByteRange::at(1000 * BLOCK, BLOCK)).await, Err(Errno::Io));
        set(c, "server.scrub_bytes_per_s", "0").await;
        env.sleep(Duration::from_secs(1)).await;
        let read = counter(c, "scrub_bytes").await;
        env.sleep(Duration::from_secs(200)).await;
        assert_eq!(counter(c, "scrub_bytes").await, read);
    });
}

/// Overwrites of all kinds, the end of the machine or of the process at the `nth` write or sync. Returns whether all
/// was done before.
fn crashed_at(nth: u64, kind: CrashKind, seed: u64) -> bool {
    const LEN: u64 = 40_000;
    let back = ["off", "on"][seed as usize % 2];
    let scrub = ["0", "0", "1G"][seed as usize % 3];
    let more = [("server.checksums", "off"), ("server.write_back", back), ("server.scrub_bytes_per_s", scrub)];
    let place = place(seed, &more);
    let mut finished = false;
    let run = async {
        let first = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let f = file(&c, "f").await;
        put(&c, f, 1, 0, LEN).await.unwrap();
        set(&c, "server.checksums", "on").await;
        c.call(Request::Sync { file: None }).await.unwrap();
        place.sim.crash_at("server", nth, kind);
        let story = async {
            for (seed, at, end) in
                [(2, 0, 16_384), (3, 8192, 20_480), (4, 5000, 9000), (5, 0, 40_000), (6, 39_000, 40_000)]
            {
                if put(&c, f, seed, at, end).await.is_err() {
                    return;
                }
            }
            let _ = c.call(Request::Sync { file: None }).await;
            let _ = put(&c, f, 7, 4096, 8192).await;
            let _ = put(&c, f, 8, 4096, 8192).await;
            let _ = c.call(Request::Sync { file: None }).await;
        };
        let dead = async {
            while place.sim.alive("server") {
                place.sim.node("client").sleep(Duration::from_micros(200)).await;
            }
        };
        let _ = futures_util::future::select(std::pin::pin!(story), std::pin::pin!(dead)).await;
        finished = place.sim.alive("server");
        place.sim.clear_crash_at("server");
        place.sim.crash("client", CrashKind::Process);
        place.sim.crash("server", kind);
        drop(first);
        let _server = place.start().await.unwrap();
        place.sim.node("server").sleep(Duration::from_secs(31)).await;
        let late = place.client(3).await.unwrap();
        let found = get(&late, f, ByteRange::new(0, LEN)).await;
        assert!(found.is_ok(), "{kind:?} at {nth}, seed {seed}: nothing is damaged");
        assert_eq!(counter(&late, "checksum_errors").await, 0);
    };
    place.sim.block_on(run).unwrap();
    finished
}

/// Goal: no crash leaves a block that is refused although nothing is wrong with it. Method: overwrites of blocks with
/// and without checksums, written through and from memory, scrubbed or not, are stopped at each write and sync. The
/// test detects a record that does not follow its bytes.
#[test]
fn no_crash_looks_like_damage() {
    plant(None);
    let writes = sweep();
    assert!(writes > 10, "the scenario has many writes: {writes}");
    plant(Some(Mistake::UnorderedWrite));
    let found = catch_unwind(AssertUnwindSafe(sweep)).is_err();
    plant(None);
    assert!(found);
}

fn sweep() -> u64 {
    let mut nth = 0;
    loop {
        nth += 1;
        let mut finished = crashed_at(nth, CrashKind::Process, 410) & crashed_at(nth, CrashKind::Process, 411);
        for seed in 412..418 {
            finished &= crashed_at(nth, CrashKind::Power, seed);
        }
        if finished {
            return nth;
        }
    }
}

/// Goal: if a block reads wrong once, it is read again. Method: a bit stays changed until the disk was read once.
#[test]
fn a_second_look_helps() {
    let place = place(404, &[]);
    run(&place, async |place, c| {
        let f = file(c, "f").await;
        put(c, f, 1, 0, 8192).await.unwrap();
        let at = blocks(c, f).await[1].1;
        flip(place, at, 5);
        let reads = Rc::new(Cell::new(0));
        let count = reads.clone();
        place.sim.on_disk_op("server", move |op| {
            count.set(count.get() + u32::from(op.kind == DiskOpKind::Read));
            None
        });
        let read = get(c, f, ByteRange::new(0, 8192));
        let mend = async {
            while reads.get() < 2 {
                place.sim.node("client").sleep(Duration::from_micros(1)).await;
            }
            flip(place, at, 5);
        };
        let (read, ()) = futures_util::future::join(read, mend).await;
        assert_eq!(read, Ok(bytes(1, 0, 8192).to_vec()));
        assert_eq!((counter(c, "checksum_retries").await, counter(c, "checksum_errors").await), (1, 0));
    });
}

/// Which blocks of a file are refused after a bit of each has been flipped. The bits are flipped back.
async fn verified(place: &Place, c: &Client, ino: Ino) -> Vec<bool> {
    let mut found = Vec::new();
    for (i, (offset, at)) in blocks(c, ino).await.into_iter().enumerate() {
        flip(place, at + 7, i as u32);
        let read = get(c, ino, ByteRange::at(offset, BLOCK)).await;
        assert!(matches!(read, Ok(_) | Err(Errno::Io)), "{read:?}");
        found.push(read.is_err());
        flip(place, at + 7, i as u32);
    }
    found
}

/// Goal: a file that is set to have checksums has them on a server that makes none, and a file that is set to have none
/// has none on a server that makes them. Each part follows the setting of its write, also from memory, in a batch,
/// after a kill, and where a truncate or the scrubber copies or reads a block. Method: a server with checksums and one
/// without, with accepted writes and others. After a bit of each block was flipped, the refused blocks are compared.
#[test]
fn a_file_is_set_to_have_checksums_or_not() {
    for (server, back) in [("on", "off"), ("on", "on"), ("off", "off"), ("off", "on")] {
        let place = place(11, &[("server.checksums", server), ("server.write_back", back)]);
        let run = async {
            let first = place.start().await.expect("the server starts");
            let c = place.client(1).await.expect("the client connects");
            let mut files = Vec::new();
            for (name, asked) in [("f", DataChecksums::On), ("g", DataChecksums::Off), ("h", DataChecksums::Auto)] {
                let f = file(&c, name).await;
                let advice = Some(AskedAdvice::Checksums(asked));
                c.call(Request::SetLayout { ino: f, layout: None, advice }).await.expect("set");
                put_as(&c, f, asked, 1, 0, 5 * BLOCK).await.expect("write");
                let part = BatchPart {
                    object: object(f),
                    offset: 5 * BLOCK,
                    len: BLOCK as u32,
                    generation: 0,
                    mtime: MTIME,
                    checksums: asked,
                    cover: Default::default(),
                };
                let op = Request::WriteBatch { parts: vec![part] };
                c.ask(op, Some(bytes(2, 5 * BLOCK, BLOCK as usize))).await.0.expect("batch");
                files.push((f, asked));
            }
            // Bytes in memory are flushed and get their blocks.
            set(&c, "server.write_back", "off").await;
            place.sim.node("client").sleep(Duration::from_secs(2)).await;
            set(&c, "server.write_back", back).await;
            for (f, asked) in &files {
                let set = SetAttr { size: Some(3 * BLOCK + 100), ..SetAttr::default() };
                c.call(Request::SetAttr { ino: *f, set }).await.expect("truncate");
                assert_eq!(verified(&place, &c, *f).await, [asked.are_made(server == "on"); 4], "{asked:?} {server}");
                // Bytes that were accepted and are flushed by the next process, which does not know the request of
                // their write.
                put_as(&c, *f, *asked, 3, BLOCK + 9, BLOCK + 1000).await.expect("overwrite");
            }
            place.sim.crash("server", CrashKind::Process);
            drop(first);
            let _second = place.start().await.expect("the server starts again");
            c.call(Request::Sync { file: None }).await.expect("sync");
            set(&c, "server.scrub_bytes_per_s", "1G").await;
            place.sim.node("client").sleep(Duration::from_secs(1)).await;
            for (f, asked) in &files {
                assert_eq!(verified(&place, &c, *f).await, [asked.are_made(server == "on"); 4], "{asked:?} {server}");
            }
        };
        place.sim.block_on(run).expect("no deadlock");
    }
}
