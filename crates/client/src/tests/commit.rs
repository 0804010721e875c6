//! Commit consistency: writes that return without a lock, and when others see them.

use super::sharing::{in_cluster, open, read, root};
use crate::api::{Hints, OpenFlags};
use crate::telemetry::stats::Count;
use crate::{Client, OpenFile};
use amphi_env::Buf;
use amphi_types::{ByteRange, Ino, IoMode, SetAttr};
use amphi_wire::{FileLockFamily, FileLockOwner, FileLockSpec, LockMode, XattrMode};
use std::sync::Arc;

/// A record of contended files; it shares blocks with its neighbours.
const LEN: u64 = 47_008;

fn filled(len: u64, byte: u8) -> Buf {
    let mut buf = Buf::zeroed(len as usize);
    buf.fill(byte);
    buf
}

/// A new file `f` over several objects that has commit consistency and whose I/O is direct.
async fn commit(client: &Client) -> Arc<OpenFile> {
    let made = client.create(&root(), Ino::ROOT, b"f", 0o644, OpenFlags::READ_WRITE).await.unwrap();
    for (name, value) in [("layout", "striped,size=64K,count=3"), ("consistency", "commit")] {
        let name = format!("user.amphi.{name}").into_bytes();
        client.setxattr(&root(), made.attr.ino, &name, value.as_bytes(), XattrMode::Set).await.unwrap();
    }
    made.file.set_io_mode(IoMode::Direct);
    made.file
}

async fn write(client: &Client, file: &Arc<OpenFile>, at: u64, len: u64, byte: u8) {
    assert_eq!(client.write(&root(), file, at, filled(len, byte), Hints::default()).await, Ok(len as usize));
}

fn put(model: &mut Vec<u8>, at: u64, len: u64, byte: u8) {
    let end = (at + len) as usize;
    model.resize(model.len().max(end), 0);
    model[at as usize..end].fill(byte);
}

/// Goal: Promise S1 under commit consistency: the writing mount sees the bytes and the size of its own writes at once,
/// even before its server knows them. Other mounts see them once `close` or `fsync` has returned. After a truncate no
/// earlier bytes reappear. Method: one of two mounts makes writes of all lengths, which overlap or leave holes between
/// them. Both are checked after each write.
#[test]
fn the_writer_sees_its_writes() {
    for seed in 0..24 {
        in_cluster(seed, async |c| {
            let [a, b] = c.two().await;
            let file = commit(&a).await;
            let other = open(&b, "f", OpenFlags::READ_WRITE).await;
            let mut model = Vec::new();
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut draw = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            for i in 0..60u8 {
                let (at, len, byte) = (draw(600_000), 1 + draw(200_000), b'0' + i);
                write(&a, &file, at, len, byte).await;
                put(&mut model, at, len, byte);
                match draw(5) {
                    0 => {
                        let size = a.getattr(&root(), file.ino()).await.unwrap().size;
                        assert_eq!(size, model.len() as u64, "seed {seed}, write {i}");
                    }
                    1 => {
                        let from = draw(model.len() as u64) as usize;
                        let to = model.len().min(from + 100_000);
                        let got = a.read(&root(), &file, from as u64, 100_000, Hints::default()).await.unwrap();
                        assert!(got.to_vec() == model[from..to], "seed {seed}, write {i}");
                    }
                    2 => {
                        let size = draw(900_000);
                        let set = SetAttr { size: Some(size), ..SetAttr::default() };
                        a.setattr(&root(), file.ino(), set, None).await.unwrap();
                        model.resize(size as usize, 0);
                    }
                    3 => {
                        let landed =
                            if draw(2) == 0 { a.flush(&root(), &file) } else { a.fsync(&root(), &file, false) };
                        assert_eq!(landed.await, Ok(()));
                        let size = b.getattr(&root(), file.ino()).await.unwrap().size;
                        assert_eq!(size, model.len() as u64, "seed {seed}, write {i}, of the other mount");
                        assert!(read(&b, &other, 0, model.len() + 9).await == model, "seed {seed}, write {i}");
                    }
                    _ => {}
                }
            }
            assert!(a.mount.stats.of(Count::Unfinished).0 > 10, "seed {seed}: they returned early");
        });
    }
}

/// Goal: writers on several mounts do not wait for each other, and no bytes are lost where their records share blocks.
/// Method: two mounts write every second record of a file in turn, with `O_DIRECT` and without. No lock is requested.
/// Both close the file and see all records.
#[test]
fn writers_take_no_locks() {
    for (seed, direct) in [(0, false), (1, true), (2, true)] {
        in_cluster(seed, async |c| {
            let [a, b] = c.two().await;
            drop(commit(&a).await);
            let flags = OpenFlags { direct, ..OpenFlags::READ_WRITE };
            let sides = [(&a, open(&a, "f", flags).await), (&b, open(&b, "f", flags).await)];
            sides.iter().for_each(|(_, file)| file.set_io_mode(IoMode::Direct));
            // The targets must have reported their room before.
            for (client, file) in &sides {
                write(client, file, 0, LEN, b'x').await;
                client.fsync(&root(), file, false).await.unwrap();
            }
            let asked = |client: &Client| client.mount.stats.of(Count::LockEnqueue).0;
            let before = asked(&a) + asked(&b);
            let mut model = Vec::new();
            for i in 0..80u64 {
                let (client, file) = &sides[(i % 2) as usize];
                write(client, file, i * LEN, LEN, b'0' + (i % 64) as u8).await;
                put(&mut model, i * LEN, LEN, b'0' + (i % 64) as u8);
            }
            assert_eq!(asked(&a) + asked(&b), before, "seed {seed}");
            for (client, file) in &sides {
                assert_eq!(client.flush(&root(), file).await, Ok(()));
                assert!(client.mount.stats.of(Count::Unfinished).0 > 20, "seed {seed}");
            }
            for (client, file) in &sides {
                assert!(read(client, file, 0, model.len() + 9).await == model, "seed {seed}");
            }
        });
    }
}

/// Goal: programs that use file locks to write in turn see each other's writes without `fsync`. Method: two mounts
/// write the same bytes, each under a lock of the file, and read them first.
#[test]
fn a_lock_that_goes_shows_what_was_written() {
    for seed in 0..6 {
        in_cluster(seed, async |c| {
            let [a, b] = c.two().await;
            let file = commit(&a).await;
            let other = open(&b, "f", OpenFlags::READ_WRITE).await;
            other.set_io_mode(IoMode::Direct);
            write(&a, &file, 0, 300_000, b'0').await;
            assert_eq!(a.flush(&root(), &file).await, Ok(()));
            for i in 0..20u8 {
                let (client, file, owner) = if i % 2 == 0 { (&a, &file, 1) } else { (&b, &other, 2) };
                let owner = FileLockOwner { id: owner, family: FileLockFamily::Posix };
                let ino = file.ino();
                let lock = FileLockSpec { ino, owner, range: ByteRange::ALL, mode: LockMode::Write, pid: 7 };
                client.try_lock(lock).await.unwrap().keep();
                assert!(read(client, file, 0, 300_000).await == [b'0' + i; 300_000], "seed {seed}, turn {i}");
                write(client, file, 0, 300_000, b'1' + i).await;
                client.unlock(ino, owner, ByteRange::ALL).await.unwrap();
            }
        });
    }
}
