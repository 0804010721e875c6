//! A full file system.

use crate::harness::{Place, Random, close_error, counter_of_servers, eventually, pattern, rerrno};
use rustix::fs::{Mode, OFlags, fsync, open, statvfs};
use rustix::io::pwrite;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const ENOSPC: i32 = 28;

/// Goal: Promise S15: a full target returns ENOSPC, existing data is intact, deletes work and the space can be used
/// again. Method: fill small zones with O_DIRECT files and with buffered files, compare, delete, refill.
#[test]
fn a_full_file_system_loses_nothing() {
    let place = Place::new();
    let up = place.up(&["--targets", "4", "--zone-size", "32M", "--log-size", "2M"]);
    let m = place.mount();
    let keep = pattern(1, 3 << 20);
    fs::write(m.join("keep"), &keep).expect("write");
    fsync(open(m.join("keep"), OFlags::RDONLY, Mode::empty()).expect("open")).expect("fsync");
    let free = statvfs(&m).expect("statvfs").f_bfree;
    for round in 0..2 {
        let mut buf = amphi_env::Buf::zeroed(1 << 20);
        buf.copy_from_slice(&pattern(round, 1 << 20));
        let f = open(m.join("fill"), OFlags::CREATE | OFlags::WRONLY | OFlags::DIRECT, Mode::from_raw_mode(0o644))
            .expect("open");
        let mut written = 0u64;
        let e = loop {
            match pwrite(&f, &buf, written) {
                Ok(n) => written += n as u64,
                Err(e) => break e.raw_os_error(),
            }
            assert!(written < 256 << 20, "more than the zones hold");
        };
        assert_eq!(e, ENOSPC);
        assert!(written > 20 << 20, "only {written} bytes fitted");
        let back = fs::read(m.join("fill")).expect("read");
        assert!(back.len() as u64 >= written, "size covers what was written");
        for chunk in back[..written as usize].chunks(1 << 20) {
            assert!(chunk == &buf[..chunk.len()], "bytes written before are intact");
        }
        assert!(fs::read(m.join("keep")).expect("read") == keep);
        drop(f);
        fs::remove_file(m.join("fill")).expect("deleting works on a full file system");
        // The kernel closes files behind the program's back; then the space is free.
        eventually("space of deleted files is free again", || statvfs(&m).expect("statvfs").f_bfree >= free);
    }
    // Buffered: the write returns the error if its data does not fit.
    let f = open(m.join("buffered"), OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o644)).expect("open");
    let piece = pattern(5, 16 << 10);
    let mut failed = None;
    for i in 0..16_384u64 {
        if let Err(e) = pwrite(&f, &piece, i * piece.len() as u64) {
            failed = Some(e.raw_os_error());
            break;
        }
        if i % 256 == 255
            && let Err(e) = fsync(&f)
        {
            failed = Some(e.raw_os_error());
            break;
        }
    }
    assert_eq!(failed, Some(ENOSPC));
    drop(f);
    fs::remove_file(m.join("buffered")).expect("delete");
    assert!(fs::read(m.join("keep")).expect("read") == keep);
    let again = pattern(8, 4 << 20);
    let path = m.join("again");
    eventually("space of deleted files can be used again", || {
        match fs::write(&path, &again).and_then(|()| fs::File::open(&path)?.sync_all()) {
            Ok(()) => true,
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(ENOSPC));
                false
            }
        }
    });
    assert!(fs::read(&path).expect("read") == again);
    up.stop();
    place.fsck();
}

/// Goal: Promise S15: a program that makes buffered writes and never syncs gets the error of a full target from a
/// write, long before the cache is full. Earlier data is intact, and the program continues when there is space again.
/// Method: fill small zones in pieces of 64 KiB, in one file and in the next, and then delete.
#[test]
fn buffered_writes_notice_a_full_target() {
    const PIECE: usize = 64 << 10;
    const MANY: u64 = (1 << 30) / PIECE as u64;
    let place = Place::new();
    let up = place.up(&["--targets", "2", "--zone-size", "48M", "--log-size", "2M", "--set", "hybrid.mode=buffered"]);
    let m = place.mount();
    let keep = pattern(1, 3 << 20);
    fs::write(m.join("keep"), &keep).expect("write");
    fsync(open(m.join("keep"), OFlags::RDONLY, Mode::empty()).expect("open")).expect("fsync");
    let make = |name: &str| {
        // The descriptor is closed on exec: otherwise programs of other tests would inherit it and keep the file open.
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        open(m.join(name), flags, Mode::from_raw_mode(0o644)).expect("open")
    };
    let piece = pattern(3, PIECE);
    let refused = |f: &std::os::fd::OwnedFd, from: u64| {
        (from..MANY).find_map(|i| pwrite(f, &piece, i * PIECE as u64).err().map(|e| (i, e.raw_os_error())))
    };
    let (fill, more) = (make("fill"), make("more"));
    let (pieces, error) = refused(&fill, 0).expect("told before 1 GiB were taken");
    assert_eq!(error, ENOSPC);
    assert!(pieces > 256, "only {pieces} pieces fitted");
    let (pieces, error) = refused(&more, 0).expect("told");
    assert_eq!(error, ENOSPC);
    assert!(pieces < 256, "{pieces} pieces of the next file were taken");
    assert!(fs::read(m.join("keep")).expect("read") == keep);
    drop(fill);
    fs::remove_file(m.join("fill")).expect("delete");
    eventually("it goes on when there is room", || {
        let wrote = (0..64u64).all(|i| pwrite(&more, &piece, i * PIECE as u64).is_ok());
        wrote && fsync(&more).is_ok()
    });
    let back = fs::read(m.join("more")).expect("read");
    assert!(back[..64 * PIECE].chunks(PIECE).all(|chunk| chunk == piece));
    drop(more);
    up.stop();
    place.fsck();
}

/// Goal: overwriting what has its storage takes no more, also before it is written back. Method: the free blocks
/// before, while and after a file is written again.
#[test]
fn overwritten_bytes_count_once() {
    let place = Place::new();
    let up = place.up(&[]);
    let f = open(place.mount().join("f"), OFlags::CREATE | OFlags::RDWR, Mode::from_raw_mode(0o644)).expect("open");
    let blocks = || rustix::fs::fstat(&f).expect("fstat").st_blocks;
    let write = |bytes: &[u8], at| assert_eq!(pwrite(&f, bytes, at).expect("write"), bytes.len());
    write(&pattern(1, 1 << 20), 0);
    assert_eq!(blocks(), 2048, "dirty bytes count");
    fsync(&f).expect("fsync");
    assert_eq!(blocks(), 2048);
    write(&pattern(2, 1 << 20), 0);
    assert_eq!(blocks(), 2048, "they have their storage");
    write(&pattern(3, 4096), 1 << 20);
    assert_eq!(blocks(), 2056);
    fsync(&f).expect("fsync");
    assert_eq!(blocks(), 2056);
    up.stop();
    place.fsck();
}

/// Goal: `stat` counts the blocks that a file keeps after a truncate, also of one over many stripes, at once and after
/// a restart. Method: truncates to lengths within the first stripe, at the end of another one, within a block, to
/// nothing and longer again, checked before and after the close.
#[test]
fn truncated_files_count_what_they_keep() {
    let place = Place::new();
    let mut up = place.up(&[]);
    let path = place.mount().join("f");
    let blocks = || rustix::fs::stat(&path).expect("stat").st_blocks;
    let kept = |len: u64| (len.div_ceil(4096) * 8) as i64;
    for held in [true, false] {
        fs::write(&path, pattern(1, 40 << 20)).expect("write");
        assert_eq!(blocks(), kept(40 << 20));
        let mut least = 40u64 << 20;
        for len in [30 << 20, (21 << 20) + 100, 60 << 20, 9 << 20, 700_000, 5 << 20, 0, 1 << 20] {
            let file = fs::OpenOptions::new().write(true).open(&path).expect("open");
            file.set_len(len).expect("truncate");
            let file = held.then_some(file);
            least = least.min(len);
            assert_eq!(blocks(), kept(least), "held open: {held}, cut to {len}");
            drop(file);
            assert_eq!(blocks(), kept(least), "held open before: {held}, cut to {len}");
        }
        fs::write(&path, pattern(2, 40 << 20)).expect("write");
        fs::OpenOptions::new().write(true).open(&path).expect("open").set_len(17 << 20).expect("truncate");
        up.stop();
        up = place.up(&[]);
        assert_eq!(blocks(), kept(17 << 20), "after a restart");
        assert!(fs::read(&path).expect("read") == pattern(2, 40 << 20)[..17 << 20]);
    }
    up.stop();
    place.fsck();
}

/// Goal: a write beyond the largest file size gives EFBIG, a negative or absurd size EINVAL, and neither does damage.
#[test]
fn silly_offsets() {
    let place = Place::new();
    let up = place.up(&[]);
    let f = open(place.mount().join("f"), OFlags::CREATE | OFlags::RDWR, Mode::from_raw_mode(0o644)).expect("open");
    assert!([22, 27].contains(&rerrno(pwrite(&f, b"x", i64::MAX as u64))));
    assert!([22, 27].contains(&rerrno(rustix::fs::ftruncate(&f, u64::MAX))));
    pwrite(&f, b"fine", 0).expect("write");
    up.stop();
    place.fsck();
}

/// A file that two mounts write, and its expected content.
struct Filled {
    handles: [fs::File; 2],
    bytes: Vec<u8>,
}

impl Filled {
    fn new(dirs: &[PathBuf; 2], name: &str) -> Filled {
        let mut options = fs::File::options();
        options.read(true).write(true).create(true);
        let handles = dirs.each_ref().map(|dir| options.open(dir.join(name)).expect("open"));
        Filled { handles, bytes: Vec::new() }
    }

    fn write(&mut self, by: usize, at: usize, new: &[u8]) {
        self.handles[by].write_all_at(new, at as u64).expect("it fits");
        self.bytes.resize(self.bytes.len().max(at + new.len()), 0);
        self.bytes[at..at + new.len()].copy_from_slice(new);
    }

    fn cut(&mut self, by: usize, len: usize) {
        self.handles[by].set_len(len as u64).expect("a cut");
        self.bytes.truncate(len);
    }

    fn blocks(&self) -> u64 {
        self.bytes.len().div_ceil(4096) as u64
    }
}

/// Goal: programs that stay within the space are never refused. Two mounts fill a target to its last blocks through
/// their caches and the server's memory, and no write, `fsync` or `close` returns ENOSPC. The bytes that are
/// acknowledged and not stable are shown meanwhile, and none are left when all is synced. Method: appended records,
/// overwrites and truncates of a shared file and of one file of each mount. Their blocks are counted and compared with
/// the result of `statfs` at the start. All bytes are compared, also after a kill of the server.
#[test]
fn what_fits_is_never_refused() {
    let place = Place::new();
    let more = ["--targets", "1", "--zone-size", "40M", "--log-size", "4M"];
    let server = place.server_of_size(&more);
    let mounts = ["m0", "m1"].map(|name| place.mount_at(name, &[]));
    let dirs = ["m0", "m1"].map(|name| place.path(name));
    let unstable = || counter_of_servers(&dirs[0], "unstable_bytes");
    let free = statvfs(&dirs[0]).expect("statvfs").f_bavail;
    let mut files = ["shared", "first", "second"].map(|name| Filled::new(&dirs, name));
    let budget = free;
    let (mut random, mut seen_unstable, mut refused) = (Random::new(7), 0, 0);
    while refused < 50 {
        let by = random.below(2) as usize;
        let file = if random.below(2) == 0 { 0 } else { 1 + by };
        let used: u64 = files.iter().map(Filled::blocks).sum();
        let f = &mut files[file];
        let len = [47_008, 4096, 1000, 120_000][random.below(4) as usize];
        let new = pattern(random.below(1 << 30), len);
        match random.below(100) {
            0..=69 if used + (len as u64).div_ceil(4096) + 1 > budget => refused += 1,
            0..=69 => f.write(by, f.bytes.len(), &new),
            70..=93 if f.bytes.len() > len => f.write(by, random.below((f.bytes.len() - len) as u64) as usize, &new),
            94..=95 if f.bytes.len() > 200_000 => f.cut(by, f.bytes.len() - random.below(150_000) as usize),
            96..=97 => f.handles[by].sync_all().expect("no fsync is refused"),
            98 => seen_unstable = seen_unstable.max(unstable()),
            _ => {}
        }
    }
    assert!(seen_unstable > 0, "the meter shows what is not stable");
    for file in &files {
        file.handles.iter().for_each(|f| f.sync_all().expect("no fsync is refused"));
    }
    assert_eq!(unstable(), 0, "all is stable");
    let used: u64 = files.iter().map(Filled::blocks).sum();
    assert!(used + 64 >= budget, "it is full: {used} of {budget} blocks");
    assert!(counter_of_servers(&dirs[0], "writes_full") > 0, "there was no room for what overwrites take beside");
    let same = |files: &[Filled], by: usize| {
        for (name, file) in ["shared", "first", "second"].iter().zip(files) {
            assert!(fs::read(dirs[by].join(name)).expect("read") == file.bytes, "{name}");
        }
    };
    same(&files, 0);
    server.kill();
    let server = place.server_of_size(&more);
    same(&files, 1);
    for file in files {
        file.handles.into_iter().for_each(|f| assert_eq!(close_error(f), 0, "no close is refused"));
    }
    mounts.into_iter().for_each(|mount| mount.stop());
    server.stop();
    place.fsck();
}

/// Returns whether a small file was written, as far as its `open`, `write` and `close` said.
fn write_small(path: &std::path::Path, bytes: &[u8]) -> bool {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = match open(path, flags, Mode::from_raw_mode(0o644)) {
        Ok(file) => fs::File::from(file),
        Err(e) => {
            assert_eq!(e.raw_os_error(), ENOSPC);
            return false;
        }
    };
    match file.write_at(bytes, 0) {
        Ok(n) => n == bytes.len() && close_error(file) == 0,
        Err(e) => {
            assert_eq!(e.raw_os_error(), Some(ENOSPC));
            false
        }
    }
}

/// Goal: Promise S15: a file whose `write` and `close` succeeded is there with its bytes, even in a target that is
/// full, whichever mount fills it. A call whose data does not fit returns the error. Method: small files of one mount,
/// then of two in turn, until most are refused, never synced. All accepted files are compared through the other mount,
/// and again after all mounts have ended and the server was started again. Some of the files are removed, and there is
/// space again.
#[test]
fn accepted_files_have_room() {
    for names in [&["m0"][..], &["m0", "m1"]] {
        let place = Place::new();
        let more = ["--targets", "1", "--zone-size", "16M", "--log-size", "2M"];
        let server = place.server_of_size(&more);
        let mounts: Vec<_> = names.iter().map(|name| place.mount_at(name, &[])).collect();
        let (mut accepted, mut refused, mut random) = (Vec::new(), 0, Random::new(48));
        while refused < 100 {
            let n = accepted.len() + refused;
            assert!(n < 20_000, "more than the zone holds");
            let bytes = pattern(n as u64, 1 + random.below(60_000) as usize);
            let name = format!("f{n}");
            match write_small(&place.path(names[n % names.len()]).join(&name), &bytes) {
                true => accepted.push((name, bytes)),
                false => refused += 1,
            }
        }
        assert!(accepted.len() > 150, "only {} files fitted", accepted.len());
        let same = |mount: &str| {
            for (name, bytes) in &accepted {
                assert!(fs::read(place.path(mount).join(name)).expect("read") == *bytes, "{name} on {mount}");
            }
        };
        names.iter().for_each(|name| same(name));
        for (name, _) in &accepted {
            fs::File::open(place.path(names[0]).join(name)).expect("open").sync_all().expect("nothing was lost");
        }
        mounts.into_iter().for_each(|mount| mount.stop());
        server.kill();
        let server = place.server_of_size(&more);
        let mount = place.mount_at("m2", &[]);
        same("m2");
        for (name, _) in &accepted[..20] {
            fs::remove_file(place.path("m2").join(name)).expect("deleting works");
        }
        eventually("there is room again", || write_small(&place.path("m2").join("again"), &pattern(1, 50_000)));
        mount.stop();
        server.stop();
        place.fsck();
    }
}
