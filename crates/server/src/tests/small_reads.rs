//! Small pieces that are read for other operations: files of a directory in one message, and the blocks at the edges of
//! writes. Whether the read cache serves them, and with which data.

use super::data::bytes;
use super::write_back::{counter, file, get, put};
use super::*;
use amphi_types::ByteRange;
use amphi_wire::ReadPart;

fn place(seed: u64, more: &[(&str, &str)]) -> Place {
    let mut place = Place::new(seed, 1, 1);
    place.config.tunables.extend(more.iter().map(|(name, value)| (name.to_string(), value.to_string())));
    place
}

/// Reads the files in one message. Returns their bytes, one after the other.
async fn read_batch(c: &Client, files: &[(String, Ino)]) -> Vec<u8> {
    let parts = files.iter().map(|(text, ino)| ReadPart { name: name(text), ino: *ino, data: true }).collect();
    let op = Request::ReadBatch { dir: Ino::ROOT, parts, bytes_max: 64 << 10, ask_back: false, tokens: true };
    let (reply, payload) = c.ask(op, None).await;
    let Ok(Reply::FilesAhead(ahead)) = reply else { panic!("{reply:?}") };
    for file in ahead {
        let file = file.expect("nothing is in the way");
        let access = Access { read: true, write: false };
        c.call(Request::Close { ino: file.inode.attr.ino, access, atime: None }).await.unwrap();
        c.call(Request::LockCancel { locks: vec![file.lock.expect("its lock").0] }).await.unwrap();
    }
    payload.map_or(Vec::new(), |p| p.to_vec())
}

/// Goal: small files that several mounts read are read from the disk once, whatever the number of mounts, whether the
/// files were just flushed or not. A file that is written meanwhile is sent with its new data. A mount in sole mode
/// fills no memory, and without a cache each read goes to the disk. Method: three mounts read 100 files in batches of
/// 20, after a start and before. The disk reads are counted.
#[test]
fn small_files_are_read_once() {
    for (mounts, bytes_kept) in [(3, "64M"), (1, "64M"), (3, "0")] {
        let place = place(185, &[("server.read_cache_bytes", bytes_kept), ("server.checksums", "on")]);
        let run = async {
            let server = place.start().await.unwrap();
            let c = place.client(1).await.unwrap();
            let (mut files, mut all) = (Vec::new(), Vec::new());
            for n in 0..100u64 {
                let text = format!("f{n}");
                let (ino, len) = (file(&c, &text).await, 500 + n * 37 % 9000);
                put(&c, ino, n as u8, 0, len).await.unwrap();
                c.call(Request::Close { ino, access: RW, atime: None }).await.unwrap();
                files.push((text, ino));
                all.push(bytes(n as u8, 0, len as usize).to_vec());
            }
            c.call(Request::Sync { file: None }).await.unwrap();
            place.sim.node("client").sleep(Duration::from_secs(10)).await;
            server.stop().await.unwrap();
            drop(server);
            let server = place.start().await.unwrap();
            let mut others = vec![c];
            for session in 2..=mounts {
                others.push(place.client(session).await.unwrap());
            }
            let mut reads = Vec::new();
            for round in 0..3usize {
                let by = &others[round % others.len()];
                let before = counter(by, "data_disk_reads").await;
                for from in (0..100).step_by(20) {
                    let found = read_batch(by, &files[from..from + 20]).await;
                    assert!(found == all[from..from + 20].concat(), "files from {from} on, round {round}");
                }
                reads.push(counter(by, "data_disk_reads").await - before);
            }
            assert!(reads[0] > 0);
            let kept = mounts > 1 && bytes_kept != "0";
            assert_eq!(reads[1..].iter().all(|n| *n == 0), kept, "{reads:?}");
            assert_eq!(counter(&others[0], "read_cache_bytes").await > 0, kept);
            // A file is overwritten, once without and once with a sync.
            for (n, sync) in [(7, false), (8, true)] {
                let writer = &others[others.len() - 1];
                let ino = files[n].1;
                writer.call(Request::Open { ino, access: RW, exec: false }).await.unwrap();
                put(writer, ino, 200, 100, 300).await.unwrap();
                writer.call(Request::Close { ino, access: RW, atime: None }).await.unwrap();
                all[n][100..300].copy_from_slice(&bytes(200, 100, 200));
                if sync {
                    writer.call(Request::Sync { file: Some(ino) }).await.unwrap();
                    place.sim.node("client").sleep(Duration::from_secs(10)).await;
                }
                assert!(read_batch(&others[0], &files[..20]).await == all[..20].concat(), "{n} was overwritten");
            }
            server.stop().await.unwrap();
        };
        place.sim.block_on(run).unwrap();
    }
}

/// Goal: a write, a flush, a truncate and a punch may keep a part of a block. If the read cache has the block, they
/// need no read of the disk and keep its old bytes. Without the cache each of them needs one read. Method: a file that
/// two mounts have read is changed at odd offsets. The counters and all bytes are compared.
#[test]
fn edges_come_from_memory() {
    for (bytes_kept, write_back) in [("64M", "off"), ("0", "off"), ("64M", "on")] {
        let more = [
            ("server.read_cache_bytes", bytes_kept),
            ("server.write_back", write_back),
            ("server.write_back_age_ms", "20"),
        ];
        let place = place(186, &more);
        let run = async {
            let server = place.start().await.unwrap();
            let (a, b) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
            let f = file(&a, "f").await;
            put(&a, f, 1, 0, 400_000).await.unwrap();
            a.call(Request::Sync { file: None }).await.unwrap();
            place.sim.node("client").sleep(Duration::from_secs(2)).await;
            let mut model = bytes(1, 0, 400_000).to_vec();
            for at in (0..400_000).step_by(20_000) {
                for c in [&a, &b] {
                    let range = ByteRange::at(at, 20_000);
                    let object = ObjectId { ino: f, stripe: 0 };
                    c.ask(Request::Read { object, range, server_lock: true, advice: Default::default() }, None)
                        .await
                        .0
                        .unwrap();
                }
            }
            let before = counter(&a, "edge_reads").await;
            put(&a, f, 2, 10_001, 22_222).await.unwrap();
            model[10_001..22_222].copy_from_slice(&bytes(2, 10_001, 12_221));
            place.sim.node("client").sleep(Duration::from_secs(2)).await;
            let (object, range) = (ObjectId { ino: f, stripe: 0 }, ByteRange::new(100_001, 150_001));
            let punch = Request::Punch { object, range, generation: 0, mtime: Timespec::default(), server_lock: true };
            b.call(punch).await.unwrap();
            model[100_001..150_001].fill(0);
            let set = amphi_types::SetAttr { size: Some(333_333), ..Default::default() };
            a.call(Request::SetAttr { ino: f, set }).await.unwrap();
            model.truncate(333_333);
            let (read, kept) = (counter(&a, "edge_reads").await - before, counter(&a, "edge_reads_kept").await);
            assert!(get(&b, f, 400_000).await == model);
            match bytes_kept {
                "0" => assert!(kept == 0 && read >= 5, "{read} read, {kept} kept"),
                _ => assert!(kept >= 5 && read == 0, "{read} read, {kept} kept"),
            }
            server.stop().await.unwrap();
        };
        place.sim.block_on(run).unwrap();
    }
}
