//! Stories of file data.

use super::*;
use amphi_types::{ByteRange, Layout, ObjectId, Pattern, SetAttr, TimeSet, Timespec};

pub(super) fn bytes(seed: u8, offset: u64, len: usize) -> Buf {
    let mut buf = Buf::padded((offset % 4096) as usize, len);
    for (i, b) in buf.iter_mut().enumerate() {
        *b = seed.wrapping_mul(31).wrapping_add((offset as usize + i) as u8).wrapping_mul(3);
    }
    buf
}

impl Client {
    pub(super) async fn write(&self, object: ObjectId, offset: u64, generation: u64, payload: Buf) -> Result<()> {
        self.write_and_hear(object, offset, generation, payload).await.map(drop)
    }

    /// Returns whether the target reports that it has space.
    async fn write_and_hear(&self, object: ObjectId, offset: u64, generation: u64, payload: Buf) -> Result<bool> {
        let mtime = Timespec { sec: 2_000_000_000, nsec: 0 };
        let op = Request::Write {
            object,
            offset,
            generation,
            mtime,
            server_lock: true,
            kill_suidgid: true,
            checksums: Default::default(),
            cover: Default::default(),
        };
        match self.ask(op, Some(payload)).await.0? {
            Reply::Written { roomy } => Ok(roomy),
            other => panic!("{other:?}"),
        }
    }

    async fn sync(&self, target: u16) {
        let call = Call { target: TargetId(target), cred: Cred::root(), op: Request::Sync { file: None } };
        self.link.call(Lane::Normal, call, None, 0).await.unwrap().0.result.unwrap();
    }

    async fn read(&self, object: ObjectId, start: u64, end: u64) -> Result<Vec<u8>> {
        let op =
            Request::Read { object, range: ByteRange::new(start, end), server_lock: true, advice: Default::default() };
        let (reply, payload) = self.ask(op, None).await;
        assert_eq!(reply?, Reply::Data);
        let mut data = payload.map_or(Vec::new(), |p| p.to_vec());
        data.resize((end - start) as usize, 0);
        Ok(data)
    }
}

/// Goal: many freed blocks can be used again soon without a sync of a program. A few wait for the periodic sync.
/// Method: the periodic sync is late, and a file is truncated by less and by more than the bound.
#[test]
fn many_freed_blocks_come_back_soon() {
    with_server(39, 2, 1, async |place, c| {
        for (name, value) in [("server.sync_interval_ms", "600000"), ("server.reuse_bytes", "256K")] {
            c.call(Request::Tunables { pattern: name.into(), value: Some(value.into()) }).await.unwrap();
        }
        let f = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        c.write(ObjectId { ino: f, stripe: 0 }, 0, 0, bytes(1, 0, 600 << 10)).await.unwrap();
        c.call(Request::Sync { file: None }).await.unwrap();
        place.sim.node("client").sleep(Duration::from_secs(20)).await;
        let freed_after_cut = async |size: u64| {
            let freed = async || {
                let Ok(Reply::Counters(all)) = c.call(Request::Counters { reset: false }).await else {
                    panic!("counters")
                };
                all.iter().find(|(n, _)| n == "freed_blocks").expect("counted").1
            };
            let before = freed().await;
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            c.inode(Request::SetAttr { ino: f, set }).await.unwrap();
            place.sim.node("client").sleep(Duration::from_secs(1)).await;
            freed().await - before
        };
        assert_eq!(freed_after_cut(500 << 10).await, 0, "few can wait");
        assert_eq!(freed_after_cut(100 << 10).await, 125, "those and the others");
    });
}

/// Goal: a time that was set stays, even if earlier writes have a later time by a clock that is ahead, on any target.
/// Method: writes of 2033, a time of 1970, closes.
#[test]
fn a_time_that_is_set_outranks_earlier_writes() {
    with_server(23, 2, 1, async |place, c| {
        for stripes in 1..3 {
            let f = c.make(Ino::ROOT, &format!("f{stripes}"), Make::File { open: Some(RW), exclusive: true }).await;
            let f = f.unwrap();
            let layout = c.inode(Request::GetAttr { ino: f }).await.unwrap().layout;
            let mtime = async || c.inode(Request::GetAttr { ino: f }).await.unwrap().attr.mtime.sec;
            for stripe in 0..stripes {
                if stripe == 1 {
                    c.inode(Request::Spread { ino: f }).await.unwrap();
                }
                let target = layout.target(f, stripe).0;
                let write = Request::Write {
                    object: ObjectId { ino: f, stripe },
                    offset: 0,
                    generation: 0,
                    mtime: Timespec { sec: 2_000_000_000, nsec: 0 },
                    server_lock: true,
                    kill_suidgid: false,
                    checksums: Default::default(),
                    cover: Default::default(),
                };
                let call = Call { target: TargetId(target), cred: Cred::root(), op: write };
                c.link.call(Lane::Normal, call, Some(bytes(1, 0, 5000)), 0).await.unwrap().0.result.unwrap();
            }
            assert_eq!(mtime().await, 2_000_000_000);
            let at = Some(TimeSet::At(Timespec { sec: 1000, nsec: 1 }));
            let set = SetAttr { mtime: at, ..SetAttr::default() };
            assert_eq!(c.inode(Request::SetAttr { ino: f, set }).await.unwrap().attr.mtime.sec, 1000);
            c.call(Request::Close { ino: f, access: RW, atime: None }).await.unwrap();
            place.sim.node("client").sleep(Duration::from_secs(5)).await;
            assert_eq!(mtime().await, 1000, "{stripes} stripes");
        }
    });
}

/// Goal: bytes of any offset and length are read back as written, also while concurrent requests run. Method: a model
/// of the file in memory.
#[test]
fn writes_match_a_model() {
    with_server(21, 2, 2, async |place, c| {
        let f = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let object = ObjectId { ino: f, stripe: 0 };
        let mut model = vec![0u8; 200_000];
        let mut end = 0;
        let env = place.sim.node("client");
        for i in 0..120u64 {
            let offset = env.rand() % 150_000;
            let len = (1 + env.rand() % [100, 5000, 40_000][(i % 3) as usize]) as usize;
            let payload = bytes(i as u8, offset, len);
            model[offset as usize..offset as usize + len].copy_from_slice(&payload);
            end = end.max(offset + len as u64);
            c.write(object, offset, 0, payload).await.unwrap();
            let (a, b) = (env.rand() % 190_000, env.rand() % 10_000 + 1);
            assert_eq!(c.read(object, a, a + b).await.unwrap(), model[a as usize..(a + b) as usize]);
        }
        let attr = c.stat(f).await.unwrap();
        assert_eq!(attr.size, end);
        assert_eq!(attr.mtime.sec, 2_000_000_000);
        assert!(attr.blocks * 512 >= end / 2 && attr.blocks * 512 < 300_000);
        c.call(Request::Sync { file: None }).await.unwrap();
    });
}

/// Goal: writes of new data cost no sync, and the `fsync` after them costs the same few syncs for any number of writes.
/// Method: the syncs of the server's disks are counted.
#[test]
fn writes_cost_no_sync() {
    with_server(29, 1, 1, async |place, c| {
        let f = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let object = ObjectId { ino: f, stripe: 0 };
        let syncs = || place.sim.disk_ops("server").syncs;
        for count in [1, 30] {
            c.call(Request::Sync { file: None }).await.unwrap();
            let before = syncs();
            for i in 0..count {
                c.write(object, i * 8192, 0, bytes(i as u8, 0, 8192)).await.unwrap();
            }
            assert_eq!(syncs() - before, 0, "{count} writes");
            c.call(Request::Sync { file: None }).await.unwrap();
            assert!((1..=2).contains(&(syncs() - before)), "{count} writes and fsync: {}", syncs() - before);
        }
    });
}

/// Goal: a write that makes the first object of a file does not outlive the inode. Method: files without a name are
/// closed for the last time while their first write is under way, at different moments of the write. Then the stopped
/// zone is checked.
#[test]
fn the_first_write_ends_before_its_inode() {
    let place = Place::new(30, 1, 1);
    let run = async {
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let env = place.sim.node("client");
        for i in 0..40u64 {
            let f = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
            c.unlink(Ino::ROOT, "f").await.unwrap();
            let write = c.write(ObjectId { ino: f, stripe: 0 }, 0, 0, bytes(1, 0, 100_000));
            let close = async {
                env.sleep(std::time::Duration::from_micros(i * 10)).await;
                c.call(Request::Close { ino: f, access: RW, atime: None }).await
            };
            let (_, closed) = futures_util::future::join(write, close).await;
            closed.unwrap();
        }
        c.call(Request::Goodbye).await.unwrap();
        server.stop().await.unwrap();
        let report = crate::fsck(&place.sim.node("server"), "data").await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
        assert_eq!(report.objects, 0);
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: parallel unaligned writes that share blocks lose nothing.
#[test]
fn neighbours_share_blocks() {
    with_server(22, 1, 1, async |_, c| {
        let f = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let object = ObjectId { ino: f, stripe: 0 };
        for round in 0..4u8 {
            let writes = (0..40u64).map(|i| c.write(object, i * 1000, 0, bytes(round + i as u8, i * 1000, 1000)));
            for done in futures_util::future::join_all(writes).await {
                done.unwrap();
            }
            let data = c.read(object, 0, 40_000).await.unwrap();
            for i in 0..40u64 {
                let expected = bytes(round + i as u8, i * 1000, 1000);
                assert_eq!(data[i as usize * 1000..][..1000], expected[..], "piece {i}");
            }
        }
    });
}

/// Goal: size, truncate and removal are right for a file that is spread over targets, and its space becomes free.
#[test]
fn spread_files() {
    with_server(23, 3, 3, async |_, c| {
        let free = async || {
            let mut free = 0;
            for t in 0..3 {
                let call = Call { target: TargetId(t), cred: Cred::root(), op: Request::StatFs };
                let answer = c.link.call(Lane::Normal, call, None, 0).await.unwrap().0;
                let Ok(Reply::StatFs(space)) = answer.result else { panic!("{answer:?}") };
                free += space.free;
            }
            free
        };
        let before = free().await;
        let f = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let at = |stripe| ObjectId { ino: f, stripe };
        assert!(c.inode(Request::Spread { ino: f }).await.unwrap().spread);
        c.write(at(0), 0, 0, bytes(1, 0, 100_000)).await.unwrap();
        c.write(at(1), 5 << 20, 0, bytes(2, 5 << 20, 100_000)).await.unwrap();
        c.write(at(2), 6 << 20, 0, bytes(3, 6 << 20, 5000)).await.unwrap();
        assert_eq!(c.stat(f).await.unwrap().size, (6 << 20) + 5000);
        let set = SetAttr { size: Some((5 << 20) + 10), ..SetAttr::default() };
        let view = c.inode(Request::SetAttr { ino: f, set }).await.unwrap();
        assert_eq!((view.attr.size, view.generation), ((5 << 20) + 10, 1));
        assert_eq!(c.stat(f).await.unwrap().size, (5 << 20) + 10);
        let mtime = Timespec { sec: 2_000_000_000, nsec: 0 };
        let (object, offset) = (at(2), 6 << 20);
        let late = Request::Write {
            object,
            offset,
            generation: 0,
            mtime,
            server_lock: false,
            kill_suidgid: true,
            checksums: Default::default(),
            cover: Default::default(),
        };
        let refused = c.ask(late, Some(bytes(3, 6 << 20, 10))).await.0;
        assert_eq!(refused, Err(Errno::Stale), "written back before the truncate");
        let data = c.read(at(1), 5 << 20, (5 << 20) + 20).await.unwrap();
        assert_eq!(data[..10], bytes(2, 5 << 20, 10)[..]);
        assert_eq!(data[10..], [0; 10]);
        c.write(at(2), 6 << 20, 1, bytes(4, 6 << 20, 10)).await.unwrap();
        c.call(Request::Close { ino: f, access: RW, atime: None }).await.unwrap();
        assert_eq!(c.stat(f).await.unwrap().size, (6 << 20) + 10);
        c.unlink(Ino::ROOT, "f").await.unwrap();
        // Removal continues in the background.
        for _ in 0..200 {
            c.call(Request::Sync { file: None }).await.unwrap();
            if free().await == before {
                return;
            }
            c.stat(Ino::ROOT).await.unwrap();
            for t in 0..3 {
                let call = Call { target: TargetId(t), cred: Cred::root(), op: Request::Sync { file: None } };
                c.link.call(Lane::Normal, call, None, 0).await.unwrap();
            }
        }
        panic!("the space did not come back: {} of {before}", free().await);
    });
}

/// Goal: answers to writes report whether free space is sufficient for each mount and for one more, according to the
/// present value of the tunable (Promise S15). Method: the same write with the tunable on both sides of the free space.
#[test]
fn room_is_told() {
    with_server(29, 1, 1, async |_, c| {
        let f = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let object = ObjectId { ino: f, stripe: 0 };
        for (wanted, roomy) in [("64K", true), ("1G", false), ("64K", true)] {
            let value = Some(wanted.into());
            c.call(Request::Tunables { pattern: "server.roomy_bytes".into(), value }).await.unwrap();
            assert_eq!(c.write_and_hear(object, 0, 0, bytes(1, 0, 10_000)).await, Ok(roomy), "{wanted}");
        }
    });
}

/// Goal: holes, punches, preallocation and seeking work. A full target reports that it is full and keeps its data.
#[test]
fn space() {
    with_server(24, 1, 1, async |_, c| {
        let f = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let object = ObjectId { ino: f, stripe: 0 };
        c.write(object, 0, 0, bytes(1, 0, 100_000)).await.unwrap();
        let mtime = Timespec { sec: 2_000_000_001, nsec: 0 };
        let range = ByteRange::new(10_000, 50_000);
        c.call(Request::Punch { object, range, generation: 0, mtime, server_lock: true }).await.unwrap();
        let data = c.read(object, 0, 100_000).await.unwrap();
        assert_eq!(data[..10_000], bytes(1, 0, 10_000)[..]);
        assert!(data[10_000..50_000].iter().all(|&b| b == 0));
        assert_eq!(data[50_000..], bytes(1, 50_000, 50_000)[..]);
        let map = |offset, runs_max| Request::DataMap { object, offset, runs_max };
        let runs = [ByteRange::new(0, 12288), ByteRange::new(49152, 102_400)];
        let told = |runs: &[ByteRange], known_to| Ok(Reply::DataMap { runs: runs.to_vec(), known_to });
        assert_eq!(c.call(map(0, u32::MAX)).await, told(&runs, None), "whole blocks, the last one too");
        assert_eq!(c.call(map(0, 0)).await, told(&runs[..1], Some(49152)));
        assert_eq!(c.call(map(12288, 1)).await, told(&runs[1..], None));
        assert_eq!(c.call(map(u64::MAX, 1)).await, told(&[], None));
        c.call(Request::Allocate {
            object,
            range: ByteRange::new(0, 1 << 20),
            generation: 0,
            mtime,
            server_lock: true,
        })
        .await
        .unwrap();
        assert_eq!(c.stat(f).await.unwrap().size, 100_000);
        assert_eq!(c.stat(f).await.unwrap().blocks, 2048);
        let mut at = 1 << 20;
        let full = loop {
            match c.write(object, at, 0, bytes(2, at, 1 << 20)).await {
                Ok(()) => at += 1 << 20,
                Err(e) => break e,
            }
        };
        assert_eq!(full, Errno::NoSpace);
        assert_eq!(c.read(object, 50_000, 60_000).await.unwrap(), bytes(1, 50_000, 10_000)[..]);
        assert_eq!(c.read(object, at - 100, at).await.unwrap(), bytes(2, at - 100, 100)[..]);
        c.call(Request::Close { ino: f, access: RW, atime: None }).await.unwrap();
        c.unlink(Ino::ROOT, "f").await.unwrap();
        let g = c.make(Ino::ROOT, "g", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let object = ObjectId { ino: g, stripe: 0 };
        c.write(object, 0, 0, bytes(9, 0, 4 << 20)).await.expect("freed space is used again");
    });
}

/// Goal: a request larger than a record of a small log can name is written in steps, and reads back whole.
#[test]
fn large_requests_and_a_small_log() {
    with_server(25, 1, 1, async |_, c| {
        let f = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let object = ObjectId { ino: f, stripe: 0 };
        let len = 14 << 20;
        c.write(object, 777, 0, bytes(5, 777, len)).await.unwrap();
        assert_eq!(c.stat(f).await.unwrap().size, 777 + len as u64);
        assert!(c.read(object, 777, 777 + len as u64).await.unwrap() == bytes(5, 777, len)[..]);
        c.call(Request::Allocate {
            object,
            range: ByteRange::new(0, 20 << 20),
            generation: 0,
            mtime: Timespec::default(),
            server_lock: true,
        })
        .await
        .unwrap();
        assert_eq!(c.stat(f).await.unwrap().blocks, (20 << 20) / 512);
    });
}

/// Goal: a truncate that an object refuses ends with this error: no later start cuts bytes that were synced since.
/// Method: the block at the cut cannot be read once. A program continues to write behind the cut, and the server is
/// killed.
#[test]
fn a_cut_that_failed_is_not_resumed() {
    use amphi_env::sim::{CrashKind, DiskOpKind};
    with_server(31, 3, 1, async |place, c| {
        // The block has to be on the disk.
        c.call(Request::Tunables { pattern: "server.write_back".into(), value: Some("off".into()) }).await.unwrap();
        let f = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        c.held.opens.borrow_mut().push((f, RW));
        let (start, object) = (5 << 20, ObjectId { ino: f, stripe: 1 });
        c.call(Request::Spread { ino: f }).await.unwrap();
        c.write(object, start, 0, bytes(2, start, 20_000)).await.unwrap();
        let sync = async || {
            for target in 0..3 {
                let call = Call { target: TargetId(target), cred: Cred::root(), op: Request::Sync { file: None } };
                c.link.call(Lane::Normal, call, None, 0).await.unwrap().0.result.unwrap();
            }
        };
        sync().await;
        let set = SetAttr { size: Some(start + 10_001), ..SetAttr::default() };
        let cut = Request::SetAttr { ino: f, set };
        place.sim.on_disk_op("server", |op| (op.kind == DiskOpKind::Read).then_some(std::io::ErrorKind::Other));
        assert_eq!(c.inode(cut.clone()).await.map(drop), Err(Errno::Io));
        place.sim.clear_disk_hook("server");
        let view = c.inode(Request::GetAttr { ino: f }).await.unwrap();
        c.write(object, start + 20_000, view.generation, bytes(3, start + 20_000, 5000)).await.unwrap();
        sync().await;
        place.sim.crash("server", CrashKind::Process);
        let server = place.start().await.unwrap();
        place.sim.node("client").sleep(Duration::from_secs(31)).await;
        let data = c.read(object, start + 20_000, start + 25_000).await.unwrap();
        assert!(data == bytes(3, start + 20_000, 5000)[..], "what was synced after the error is gone");
        assert_eq!(c.inode(cut).await.unwrap().attr.size, start + 10_001);
        let data = c.read(object, start, start + 25_000).await.unwrap();
        assert!(data[..10_001] == bytes(2, start, 10_001)[..] && data[10_001..].iter().all(|&b| b == 0));
        place.sim.node("client").sleep(Duration::from_secs(10)).await;
        c.call(Request::Goodbye).await.unwrap();
        server.stop().await.unwrap();
        let report = crate::fsck(&place.sim.node("server"), "data").await.unwrap();
        assert!(report.is_clean() && report.pending.is_empty(), "{report:#?}");
    });
}

/// A file of two stripes of 64 KiB on two targets of a server that almost never syncs by itself. Both stripes contain
/// `bytes(1, ..)`, synced.
async fn striped_file(c: &Client) -> Ino {
    let value = Some("600000".into());
    c.call(Request::Tunables { pattern: "server.sync_interval_ms".into(), value }).await.unwrap();
    let f = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
    let layout = Layout { pattern: Pattern::Striped, stripe_size: 64 << 10, stripe_count: 2, pool: 2 };
    c.call(Request::SetLayout { ino: f, layout: Some(layout), advice: None }).await.unwrap();
    c.call(Request::Spread { ino: f }).await.unwrap();
    for stripe in 0..2 {
        let at = u64::from(stripe) << 16;
        c.write(ObjectId { ino: f, stripe }, at, 0, bytes(1, at, 64 << 10)).await.unwrap();
        c.sync(stripe as u16).await;
    }
    f
}

/// Goal: Promise S10: bytes that a truncate has removed do not reappear after a loss of power if the file was synced
/// after it on the targets that had bytes then. This holds however the file became longer again. Method: a file over
/// two targets is cut to nothing, and the first target is synced, as `fsync` of an empty file does. The file grows by
/// another truncate, or by writes that are settled. The first target is synced again, and power is lost.
#[test]
fn a_cut_outlives_lost_power() {
    use amphi_env::sim::CrashKind;
    for (seed, written) in (130..136).flat_map(|seed| [(seed, false), (seed, true)]) {
        with_server(seed, 2, 1, async |place, c| {
            let f = striped_file(c).await;
            let cut = |size| Request::SetAttr { ino: f, set: SetAttr { size: Some(size), ..SetAttr::default() } };
            c.inode(cut(0)).await.unwrap();
            c.sync(0).await;
            if written {
                for stripe in 0..2 {
                    let at = u64::from(stripe) << 16;
                    c.write(ObjectId { ino: f, stripe }, at, 1, bytes(2, at, 64 << 10)).await.unwrap();
                }
                c.call(Request::Close { ino: f, access: RW, atime: None }).await.unwrap();
                while c.inode(Request::GetAttr { ino: f }).await.unwrap().spread {
                    place.sim.node("client").sleep(Duration::from_millis(10)).await;
                }
            } else {
                c.inode(cut(128 << 10)).await.unwrap();
            }
            c.sync(0).await;
            place.sim.crash("server", CrashKind::Power);
            let _server = place.start().await.unwrap();
            let late = place.client(2).await.unwrap();
            assert_eq!(late.stat(f).await.unwrap().size, 128 << 10);
            let data = late.read(ObjectId { ino: f, stripe: 1 }, 64 << 10, 128 << 10).await.unwrap();
            let new = bytes(2, 64 << 10, 64 << 10);
            for (found, new) in data.chunks(4096).zip(new.chunks(4096)) {
                assert!(
                    found.iter().all(|b| *b == 0) || (written && found == new),
                    "seed {seed}, {written}: old bytes"
                );
            }
        });
    }
}

/// Goal: a truncate that is carried out again after a crash removes nothing that was synced after it, however many
/// stripes the file has (Promise S10). A layout with more stripes than a truncate can visit is refused, also by the
/// server. Method: a file of 2000 stripes over two targets, all empty, is cut. A client that does not know this writes
/// to one of the last stripes and syncs it. Power is lost before the inode's target has made stable that everything is
/// cut.
#[test]
fn a_cut_spares_what_comes_after_on_every_stripe() {
    use amphi_env::sim::CrashKind;
    for seed in 140..146 {
        with_server(seed, 2, 1, async |place, c| {
            let value = Some("600000".into());
            c.call(Request::Tunables { pattern: "server.sync_interval_ms".into(), value }).await.unwrap();
            let f = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
            let layout =
                |stripe_count| Layout { pattern: Pattern::Striped, stripe_size: 64 << 10, stripe_count, pool: 2 };
            let set = |count| Request::SetLayout { ino: f, layout: Some(layout(count)), advice: None };
            assert_eq!(c.call(set(2049)).await, Err(Errno::Inval));
            c.call(set(2000)).await.unwrap();
            c.call(Request::Spread { ino: f }).await.unwrap();
            let records = async || {
                let Ok(Reply::Counters(all)) = c.call(Request::Counters { reset: false }).await else {
                    panic!("counters")
                };
                all.iter().find(|(n, _)| n == "log_records").expect("counted").1
            };
            let before = records().await;
            c.inode(Request::SetAttr { ino: f, set: SetAttr { size: Some(0), ..SetAttr::default() } }).await.unwrap();
            let made = records().await - before;
            assert!(made < 20, "{made} records for 2000 stripes");
            let (object, at) = (ObjectId { ino: f, stripe: 1501 }, 1501 << 16);
            c.write(object, at, 0, bytes(1, at, 10_000)).await.unwrap();
            c.sync(1).await;
            place.sim.crash("server", CrashKind::Power);
            let _server = place.start().await.unwrap();
            let late = place.client(2).await.unwrap();
            assert!(
                late.read(object, at, at + 10_000).await.unwrap() == bytes(1, at, 10_000)[..],
                "seed {seed}: cut again"
            );
        });
    }
}

/// Goal: a truncate of a file over several targets waits for few syncs: one of the inode's target, and then one of all
/// others at the same time. Method: the syncs are counted, on targets with nothing else to sync.
#[test]
fn a_cut_over_targets_costs_few_syncs() {
    with_server(137, 2, 1, async |place, c| {
        let f = striped_file(c).await;
        for size in [100 << 10, 70 << 10, 0, 100 << 10] {
            c.sync(0).await;
            c.sync(1).await;
            let before = place.sim.disk_ops("server").syncs;
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            c.inode(Request::SetAttr { ino: f, set }).await.unwrap();
            let syncs = place.sim.disk_ops("server").syncs - before;
            assert!((2..=4).contains(&syncs), "{size}: {syncs}");
        }
    });
}

/// Goal: truncates continue where a target is full and freed blocks wait for a sync. Method: no program syncs, and
/// there are more truncates than there are reserved blocks.
#[test]
fn truncates_of_a_full_target_use_what_they_freed() {
    with_server(32, 1, 1, async |_, c| {
        for (name, value) in [("server.sync_interval_ms", "600000"), ("server.reuse_bytes", "1G")] {
            c.call(Request::Tunables { pattern: name.into(), value: Some(value.into()) }).await.unwrap();
        }
        let f = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        c.write(ObjectId { ino: f, stripe: 0 }, 0, 0, bytes(1, 0, 4000)).await.unwrap();
        let g = c.make(Ino::ROOT, "g", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let mut at = 0;
        while c.write(ObjectId { ino: g, stripe: 0 }, at, 0, bytes(2, at, 64 << 10)).await.is_ok() {
            at += 64 << 10;
        }
        for size in (3500..4000).rev() {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            assert_eq!(c.inode(Request::SetAttr { ino: f, set }).await.map(|v| v.attr.size), Ok(size));
        }
    });
}

/// The operations of the crash sweep over data: a file over three targets is made, truncated, grown again, and removed.
async fn spread_scenario(c: &Client, done: &std::cell::Cell<usize>) -> Result<()> {
    let at = |ino, stripe| ObjectId { ino, stripe };
    let step = || done.set(done.get() + 1);
    let f = c.create(Ino::ROOT, "f").await?;
    c.call(Request::Open { ino: f, access: RW, exec: false }).await?;
    c.call(Request::Sync { file: None }).await?;
    c.write(at(f, 0), 1000, 0, bytes(1, 1000, 9000)).await?;
    c.call(Request::Spread { ino: f }).await?;
    c.write(at(f, 1), 5 << 20, 0, bytes(2, 5 << 20, 20_000)).await?;
    c.write(at(f, 2), (6 << 20) + 3, 0, bytes(3, (6 << 20) + 3, 100)).await?;
    step();
    let size = (5 << 20) + 10_001;
    c.inode(Request::SetAttr { ino: f, set: SetAttr { size: Some(size), ..SetAttr::default() } }).await?;
    step();
    c.write(at(f, 0), 500, 1, bytes(4, 500, 9000)).await?;
    step();
    for target in 0..3 {
        let call = Call { target: TargetId(target), cred: Cred::root(), op: Request::Sync { file: None } };
        c.link.call(Lane::Normal, call, None, 0).await?.0.result?;
    }
    step();
    c.call(Request::Close { ino: f, access: RW, atime: None }).await?;
    c.unlink(Ino::ROOT, "f").await?;
    step();
    Ok(())
}

/// Goal: data answered before a kill is there after it, and data synced before a power failure too. A truncate over
/// targets is whole, a removal takes no data of a file that still exists, and zones are sound after any crash. Method:
/// client and server crash at every write and sync of the scenario.
#[test]
fn data_survives_any_crash() {
    use amphi_env::sim::CrashKind;
    let mut nth = 0;
    loop {
        nth += 1;
        let mut finished = true;
        // The state after a power failure is random: several tries.
        let power = (61..67).map(|seed| (CrashKind::Power, seed));
        for (kind, seed) in std::iter::once((CrashKind::Process, 60)).chain(power) {
            let place = Place::new(seed, 3, 1);
            let what = format!("{kind:?} at {nth}, seed {seed}");
            let run = async {
                let first = place.start().await.unwrap();
                let c = place.client(1).await.unwrap();
                place.sim.crash_at("server", nth, kind);
                let done = std::cell::Cell::new(0);
                {
                    let dead = async {
                        while place.sim.alive("server") {
                            place.sim.node("client").sleep(Duration::from_micros(200)).await;
                        }
                    };
                    let story = spread_scenario(&c, &done);
                    let _ = futures_util::future::select(std::pin::pin!(story), std::pin::pin!(dead)).await;
                }
                finished &= place.sim.alive("server");
                place.sim.clear_crash_at("server");
                place.sim.crash("client", CrashKind::Process);
                place.sim.crash("server", kind);
                drop(first);
                let server = place.start().await.unwrap();
                place.sim.node("server").sleep(Duration::from_secs(31)).await;
                let late = place.client(2).await.unwrap();
                match kind {
                    CrashKind::Process => check_spread(&late, done.get(), &what).await,
                    // Synced bytes are there, and no bytes are shown that were never written.
                    CrashKind::Power if done.get() == 4 => check_spread(&late, 4, &what).await,
                    CrashKind::Power => check_nothing_foreign(&late, &what).await,
                }
                late.call(Request::Goodbye).await.unwrap();
                server.stop().await.unwrap();
                let report = crate::fsck(&place.sim.node("server"), "data").await.unwrap();
                assert!(report.is_clean(), "{what}: {:#?}", report.findings);
                assert_eq!((report.orphans, report.pending.len()), (0, 0), "{what}: {report:#?}");
                if done.get() == 5 && kind == CrashKind::Process {
                    assert_eq!(report.objects, 0, "{what}");
                }
            };
            place.sim.block_on(run).unwrap();
        }
        if finished {
            break;
        }
    }
    assert!(nth > 15, "the scenario has many writes: {nth}");
}

async fn check_nothing_foreign(c: &Client, what: &str) {
    let Ok(view) = c.lookup(Ino::ROOT, "f").await else { return };
    if view.attr.size >= 10_000 && view.generation == 0 {
        let data = c.read(ObjectId { ino: view.attr.ino, stripe: 0 }, 9500, 10_000).await.unwrap();
        assert!(data == bytes(1, 9500, 500)[..], "{what}: a record without its data");
    }
}

async fn check_spread(c: &Client, done: usize, what: &str) {
    let view = c.lookup(Ino::ROOT, "f").await;
    if done == 5 {
        assert_eq!(view.map(|_| ()), Err(Errno::NoEnt), "{what}");
        return;
    }
    let Ok(view) = view else {
        assert!(done == 0 || done == 4, "{what}: {done} steps were answered and the file is gone");
        return;
    };
    let (f, cut) = (view.attr.ino, (5 << 20) + 10_001);
    let size = c.stat(f).await.unwrap().size;
    match done {
        0 => {}
        1 => assert!([(6 << 20) + 103, cut].contains(&size), "{what}: {size}"),
        _ => assert_eq!(size, cut, "{what}"),
    }
    if done >= 1 {
        let data = c.read(ObjectId { ino: f, stripe: 1 }, 5 << 20, (5 << 20) + 20_000).await.unwrap();
        let kept = if size == cut { 10_001 } else { 20_000 };
        assert!(data[..kept] == bytes(2, 5 << 20, kept)[..], "{what}");
        assert!(data[kept..].iter().all(|&b| b == 0), "{what}: bytes behind the cut");
    }
    if done >= 3 {
        let data = c.read(ObjectId { ino: f, stripe: 0 }, 0, 10_000).await.unwrap();
        assert!(data[500..9500] == bytes(4, 500, 9000)[..] && data[9500..] == bytes(1, 9500, 500)[..], "{what}");
    }
}
