//! A target without space, for data and for metadata.

use super::data::bytes;
use super::write_back::{counter, file, get, place, put};
use super::*;
use amphi_env::sim::CrashKind;
use amphi_types::{ByteRange, SetAttr};
use amphi_wire::{BatchPart, XattrMode};
use futures_util::future::join_all;

const BLOCK: u64 = 4096;

/// The contents of a file, read by pieces.
async fn content(c: &Client, ino: Ino, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let range = ByteRange::new(all.len() as u64, (all.len() + (1 << 20)).min(len) as u64);
        let op =
            Request::Read { object: ObjectId { ino, stripe: 0 }, range, server_lock: true, advice: Default::default() };
        let (reply, payload) = c.ask(op, None).await;
        assert_eq!(reply, Ok(Reply::Data));
        all.extend_from_slice(&payload.expect("there is data"));
    }
    all
}

/// Writes small files in one message, and each refused part in a request of its own.
async fn rewrite(c: &Client, files: &[Ino], seed: u8) {
    let of = |ino: &Ino| BatchPart {
        object: ObjectId { ino: *ino, stripe: 0 },
        offset: 0,
        len: 3000,
        generation: 0,
        mtime: Timespec::default(),
        checksums: Default::default(),
        cover: Default::default(),
    };
    let payload: Vec<u8> = files.iter().flat_map(|_| bytes(seed, 0, 3000).to_vec()).collect();
    let parts = files.iter().map(of).collect();
    let (reply, _) = c.ask(Request::WriteBatch { parts }, Some(Buf::copy_of(&payload))).await;
    let Ok(Reply::WrittenBatch(results)) = reply else { panic!("{reply:?}") };
    for (ino, result) in files.iter().zip(results) {
        match result {
            Err(Errno::Again) => put(c, *ino, seed, 0, 3000).await.unwrap(),
            other => other.unwrap(),
        }
    }
}

/// Goal: a target that is full to its last block accepts overwrites by several mounts, of any size, single, concurrent
/// and in batches, and an `fsync` never finds it full. Growth is refused and has no effect. Method: random overwrites
/// of a file that fills the target are compared with bytes. They are accepted or written through, with checksums and
/// without. Then power is lost. The overwrites are made by several mounts, and by one in sole mode.
#[test]
fn overwrites_of_a_full_target_are_taken() {
    for (seed, write_back, mounts) in [(121, "on", 2), (122, "off", 2), (124, "on", 1)] {
        let place = place(seed, 1, &[("server.write_back_age_ms", "600000"), ("server.write_back", write_back)]);
        let run = async {
            let server = place.start().await.unwrap();
            let mut clients = Vec::new();
            for n in 0..mounts {
                clients.push(place.client(1 + n).await.unwrap());
            }
            let (a, b) = (&clients[0], clients.last().unwrap());
            let f = file(a, "f").await;
            let mut small = Vec::new();
            for n in 0..40 {
                small.push(file(a, &format!("small{n}")).await);
            }
            rewrite(a, &small, 1).await;
            let mut model: Vec<u8> = Vec::new();
            for step in [1 << 20, 64 << 10, BLOCK, 1] {
                while put(a, f, 1, model.len() as u64, model.len() as u64 + step).await.is_ok() {
                    let at = model.len() as u64;
                    model.extend_from_slice(&bytes(1, at, step as usize));
                }
            }
            assert!(model.len() > 16 << 20, "{} bytes", model.len());
            let (len, env) = (model.len() as u64, place.sim.node("client"));
            for n in 0..40u8 {
                let size = [77, BLOCK, 40_000, 300_000, 1 << 20][usize::from(n) % 5];
                let at = env.rand() % (len - 4 * size);
                let at = if n % 3 == 0 { at / BLOCK * BLOCK } else { at };
                let four = (0..4).map(|k| at + k * size);
                let writes = four.clone().zip([a, b, a, b]).map(|(at, c)| put(c, f, n + 2, at, at + size));
                for written in join_all(writes).await {
                    written.unwrap_or_else(|e| panic!("seed {seed}, write {n}: {size} bytes at {at}: {e}"));
                }
                for at in four {
                    model[at as usize..(at + size) as usize].copy_from_slice(&bytes(n + 2, at, size as usize));
                }
                if n % 8 == 0 {
                    assert_eq!(put(b, f, 9, len - 100, len + 2 * BLOCK).await, Err(Errno::NoSpace), "it grows");
                    b.call(Request::Sync { file: Some(f) }).await.expect("fsync");
                    rewrite(b, &small, n).await;
                    b.call(Request::Sync { file: None }).await.expect("sync");
                }
            }
            assert!(counter(a, "writes_full").await > 0);
            assert_eq!(a.stat(f).await.unwrap().size, len);
            assert!(content(a, f, model.len()).await == model, "seed {seed}");
            a.call(Request::Sync { file: None }).await.unwrap();
            place.sim.crash("server", CrashKind::Power);
            drop(server);
            let server = place.start().await.unwrap();
            let c = place.client(9).await.unwrap();
            assert!(content(&c, f, model.len()).await == model, "seed {seed}, after power was lost");
            for ino in small {
                assert_eq!(get(&c, ino, 5000).await, bytes(32, 0, 3000).to_vec());
            }
            server.stop().await.unwrap();
        };
        place.sim.block_on(run).unwrap();
    }
}

/// Goal: a write that fits is not refused because concurrent overwrites hold old and new blocks at the same time. A
/// file grows by all the free space, and `fallocate` takes it, while another mount overwrites. Method: a target with 30
/// free blocks in addition to its reserve. Overwrites of 60 blocks and the growth arrive together, in many rounds.
#[test]
fn growth_waits_for_overwrites_on_their_way() {
    for (seed, write_back) in [(125, "off"), (126, "on")] {
        let place = place(seed, 1, &[("server.write_back_age_ms", "600000"), ("server.write_back", write_back)]);
        let run = async {
            let server = place.start().await.unwrap();
            let (a, b) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
            let (f, g) = (file(&a, "f").await, file(&b, "g").await);
            let object = ObjectId { ino: g, stripe: 0 };
            let (mut len, left) = (0, 30 * BLOCK);
            for step in [1 << 20, BLOCK] {
                while put(&a, f, 1, len, len + step).await.is_ok() {
                    len += step;
                }
            }
            let cut = SetAttr { size: Some(len - left), ..SetAttr::default() };
            a.inode(Request::SetAttr { ino: f, set: cut }).await.unwrap();
            a.call(Request::Sync { file: None }).await.unwrap();
            len -= left;
            let env = place.sim.node("client");
            for n in 0..24u8 {
                let writes = (0..4u64).map(|k| {
                    let at = (k * 1000 + env.rand() % 900) * BLOCK;
                    put(&a, f, n + 2, at, at + 15 * BLOCK)
                });
                let grows = async {
                    env.sleep(Duration::from_micros(env.rand() % 1000)).await;
                    if n % 3 != 0 {
                        return put(&b, g, n, 0, left).await;
                    }
                    let range = ByteRange::new(0, left);
                    b.call(Request::Allocate {
                        object,
                        range,
                        generation: 0,
                        mtime: Timespec::default(),
                        server_lock: true,
                    })
                    .await
                    .map(drop)
                };
                let (written, grown) = futures_util::join!(join_all(writes), grows);
                grown.unwrap_or_else(|e| panic!("seed {seed}, round {n}: there is room for the growth: {e}"));
                for written in written {
                    written.unwrap_or_else(|e| panic!("seed {seed}, round {n}: overwrites fit: {e}"));
                }
                b.call(Request::Sync { file: None }).await.expect("sync");
                assert_eq!(put(&a, f, 9, len, len + 2 * BLOCK).await, Err(Errno::NoSpace), "it is full");
                b.inode(Request::SetAttr { ino: g, set: SetAttr { size: Some(0), ..SetAttr::default() } })
                    .await
                    .unwrap();
            }
            server.stop().await.unwrap();
        };
        place.sim.block_on(run).unwrap();
    }
}

fn name_of(i: u32) -> String {
    format!("f{i:05}")
}

/// Goal: Promise S15: with a full metadata region, mounts can connect, files can be closed, changed, truncated and
/// deleted, and the freed space can be used. Method: files and attributes until both are refused, then every operation
/// that adds nothing, more often than there is space for.
#[test]
fn what_adds_nothing_goes_through_on_a_full_region() {
    with_server(120, 1, 1, async |place, c| {
        let dir = c.mkdir(Ino::ROOT, "dir").await.unwrap();
        let attribute = |ino, i: u32, len: usize| {
            let (name, value) = (format!("user.{i}").into_bytes(), vec![7; len]);
            Request::SetXattr { ino, name, value, mode: XattrMode::Set }
        };
        let mut files = Vec::new();
        let full = loop {
            let name = name_of(files.len() as u32);
            match c.create(dir, &name).await {
                Ok(ino) => files.push(ino),
                Err(e) => break e,
            }
            // The region is full sooner with these.
            match c.call(attribute(files[files.len() - 1], 0, 10_000)).await {
                Ok(_) | Err(Errno::NoSpace) => {}
                Err(e) => break e,
            }
        };
        assert_eq!(full, Errno::NoSpace);
        let mut small = 0;
        while c.call(attribute(files[0], 1 + small, 0)).await.is_ok() {
            small += 1;
        }
        assert!(files.len() > 50 && c.mkdir(Ino::ROOT, "more").await == Err(Errno::NoSpace));

        let other = place.client(2).await.expect("a mount comes to a full target");
        let change = async |ino: Ino, set: SetAttr| other.inode(Request::SetAttr { ino, set }).await;
        for round in 0..2000u16 {
            let set = SetAttr { perm: Some(round % 0o1000), ..SetAttr::default() };
            change(files[usize::from(round) % files.len()], set).await.unwrap();
        }
        change(files[1], SetAttr { size: Some(0), ..SetAttr::default() }).await.unwrap();
        other.call(Request::Open { ino: files[2], access: RW, exec: false }).await.unwrap();
        let atime = Some(Timespec { sec: 3_000_000_000, nsec: 0 });
        other.call(Request::Close { ino: files[2], access: RW, atime }).await.unwrap();
        for i in 1..=small {
            let name = format!("user.{i}").into_bytes();
            other.call(Request::RemoveXattr { ino: files[0], name }).await.unwrap();
        }
        for i in 0..files.len() {
            other.unlink(dir, &name_of(i as u32)).await.unwrap();
        }
        other.rmdir(Ino::ROOT, "dir").await.unwrap();
        let again = other.create(Ino::ROOT, "again").await.unwrap();
        other.call(attribute(again, 0, 60_000)).await.unwrap();
    });
}
