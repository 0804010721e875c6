//! Writes of one unit whose memory the file system keeps, mixed with other requests, on a real mount.

use amphi_fuse::{
    AttrReply, Buf, Caller, Entry, FileSystem, Handle, OpenFlags, OpenHow, OpenReply, Payload, ReadHow, ReadSink,
    Session, SessionConfig, UNIT_BYTES, WriteHow,
};
use amphi_types::{Attr, Errno, Ino, Kind, Result, Timespec};
use parking_lot::Mutex;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Bytes of the file that belong to one thread.
const REGION: usize = 1 << 20;
const THREADS: usize = 6;

/// One file in memory. It keeps every offered unit and leaves memory with arbitrary content.
struct Keeper {
    bytes: Mutex<Vec<u8>>,
    left: Mutex<Vec<Buf>>,
    kept: AtomicU64,
    /// Writes say that they block: other threads have to read, and requests have to be put aside.
    blocks: bool,
}

impl Keeper {
    fn new(blocks: bool) -> Keeper {
        let bytes = Mutex::new(vec![0; REGION * THREADS]);
        Keeper { bytes, left: Mutex::default(), kept: AtomicU64::new(0), blocks }
    }

    fn attr(&self, ino: Ino) -> Attr {
        let zero = Timespec::default();
        let kind = if ino == Ino::ROOT { Kind::Dir } else { Kind::File };
        let size = (REGION * THREADS) as u64;
        let (perm, nlink) = (0o777, 1);
        Attr {
            ino,
            kind,
            perm,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            btime: zero,
        }
    }
}

impl FileSystem for Keeper {
    fn keeps_units(&self) -> bool {
        true
    }

    fn lookup(&self, _: &Caller<'_>, _: Ino, name: &[u8]) -> Result<Entry> {
        // Long names lie where the payload of a write begins.
        let found = name == b"f" || name.iter().all(|&b| b == b'n');
        let attr = self.attr(Ino(2));
        let ttl = Duration::ZERO;
        if found {
            Ok(Entry { attr, node: attr.ino, generation: 0, entry_ttl: ttl, attr_ttl: ttl })
        } else {
            Err(Errno::NoEnt)
        }
    }

    fn getattr(&self, _: &Caller<'_>, ino: Ino, _: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply { attr: self.attr(ino), ttl: Duration::ZERO })
    }

    fn open(&self, _: &Caller<'_>, _: Ino, _: OpenHow) -> Result<OpenReply> {
        Ok(OpenReply { handle: Handle(1), flags: OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_WRITES })
    }

    fn read(&self, _: &Caller<'_>, _: Ino, how: &ReadHow, sink: &mut ReadSink<'_>) -> Result<()> {
        let bytes = self.bytes.lock();
        let at = (how.offset as usize).min(bytes.len());
        sink.push(&bytes[at..(at + how.size).min(bytes.len())]);
        Ok(())
    }

    fn write(&self, caller: &Caller<'_>, _: Ino, how: &WriteHow, mut data: Payload<'_>) -> Result<usize> {
        if self.blocks {
            caller.will_block();
            std::thread::yield_now();
        }
        let (at, len) = (how.offset as usize, data.len());
        let Some(unit) = data.unit() else {
            self.bytes.lock()[at..at + len].copy_from_slice(&data.into_buf());
            return Ok(len);
        };
        assert_eq!(unit.as_ptr() as usize % 4096, 0);
        self.kept.fetch_add(1, SeqCst);
        let mut left = self.left.lock().pop().unwrap_or_else(|| Buf::scratch(UNIT_BYTES));
        left.fill(0xee);
        let kept = std::mem::replace(unit, left);
        self.bytes.lock()[at..at + len].copy_from_slice(&kept);
        self.left.lock().push(kept);
        Ok(len)
    }

    fn setxattr(&self, _: &Caller<'_>, _: Ino, _: &[u8], value: &[u8], _: u32) -> Result<()> {
        if value.iter().all(|&b| b == b'v') { Ok(()) } else { Err(Errno::Io) }
    }
}

/// The writes of one thread within its region, and the required contents then.
fn work(path: &std::path::Path, thread: usize, steps: u64) -> Vec<u8> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path.join("f")).expect("open");
    let start = (thread * REGION) as u64;
    let mut model = vec![0u8; REGION];
    let mut x = thread as u64 + 1;
    let mut random = |below: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 11) % below
    };
    for step in 0..steps {
        let fills = random(251) as u8;
        let bytes = |len: usize| -> Vec<u8> { (0..len).map(|i| fills.wrapping_add((i / 61) as u8)).collect() };
        let units = random(REGION as u64 / UNIT_BYTES as u64 - 4) as usize * UNIT_BYTES;
        let (at, len) = match random(12) {
            0..6 => (units, UNIT_BYTES),
            6 => (units + random(60_000) as usize, UNIT_BYTES),
            7 => (units, 4096),
            8 => (units, UNIT_BYTES + 4096),
            9 => (units + random(60_000) as usize, 1 + random(150_000) as usize),
            10 => {
                let (name, what) = ("n".repeat(1 + random(250) as usize), random(2));
                if what == 0 {
                    std::fs::metadata(path.join(name)).expect("stat");
                } else {
                    let value = vec![b'v'; 1 + random(65_536) as usize];
                    rustix::fs::setxattr(path.join("f"), "user.x", &value, rustix::fs::XattrFlags::empty())
                        .expect("setxattr");
                }
                continue;
            }
            _ => {
                let mut back = vec![0; UNIT_BYTES + 100];
                file.read_exact_at(&mut back, start + units as u64).expect("read");
                assert!(back == model[units..units + back.len()], "thread {thread}, step {step}: read at {units}");
                continue;
            }
        };
        let bytes = bytes(len);
        file.write_all_at(&bytes, start + at as u64).expect("write");
        model[at..at + len].copy_from_slice(&bytes);
    }
    model
}

/// Goal: every byte arrives, with writes in any order and whichever handler keeps its memory. Method: threads write
/// units, parts of units and more, with other requests in between, compared with vectors. This is done once with any
/// number of readers, and once with two readers and handlers that block, so that requests are put aside.
#[test]
fn every_byte_arrives() {
    for (blocks, threads_max) in [(false, 256), (true, 2)] {
        let fs = Arc::new(Keeper::new(blocks));
        let dir = tempfile::tempdir().expect("temporary directory");
        let config = SessionConfig { threads_max, ..SessionConfig::default() };
        let session = Session::mount(fs.clone(), dir.path(), config).expect("mount");
        let alone = work(dir.path(), 0, 300);
        assert!(fs.kept.load(SeqCst) > 20, "{} units were kept", fs.kept.load(SeqCst));
        assert!(fs.bytes.lock()[..REGION] == alone, "one thread");
        let models: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let path = dir.path();
            let spawn = |thread| scope.spawn(move || work(path, thread, 200));
            let running: Vec<_> = (1..THREADS).map(spawn).collect();
            running.into_iter().map(|r| r.join().expect("a thread's work")).collect()
        });
        for (i, model) in models.iter().enumerate() {
            let at = (i + 1) * REGION;
            assert!(fs.bytes.lock()[at..at + REGION] == model[..], "thread {}, blocks: {blocks}", i + 1);
        }
        session.unmount().expect("unmount");
    }
}
