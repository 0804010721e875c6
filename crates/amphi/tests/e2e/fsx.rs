//! A random-operation tester in the manner of fsx: one file is changed and read in every possible way, and compared
//! with a byte vector.

use crate::harness::{Daemon, Place, Random, counter, pattern};
use rustix::fs::{FallocateFlags, Mode, OFlags, copy_file_range, fallocate, fsync, ftruncate, open, sendfile, stat};
use rustix::io::{pread, pwrite};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use rustix::pipe::{SpliceFlags, pipe, splice};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Largest file size the tester uses: crosses the 4 MiB end of the first layout part.
const MAX: u64 = 6 << 20;

/// Bytes at the start of the file that all mounts have mapped (`Tester::with_common_maps`).
const COMMON: u64 = 512 << 10;

/// Bytes that a pipe takes.
const PIPE: usize = 64 << 10;

/// How bytes get from the file into a pipe.
#[derive(Clone, Copy, Debug)]
enum Piped {
    Splice,
    SpliceDirect,
    SendFile,
}

/// The file as one mount has it open.
struct Access {
    path: std::path::PathBuf,
    plain: OwnedFd,
    direct: OwnedFd,
    append: OwnedFd,
    /// Opened only for reading, while no open file may write.
    reader: Option<OwnedFd>,
}

impl Access {
    fn open(path: std::path::PathBuf, reader: Option<OwnedFd>) -> Access {
        let flags = OFlags::RDWR | OFlags::CREATE;
        let mode = Mode::from_raw_mode(0o644);
        let plain = open(&path, flags, mode).expect("open");
        let direct = open(&path, flags | OFlags::DIRECT, mode).expect("open O_DIRECT");
        let append = open(&path, flags | OFlags::APPEND, mode).expect("open O_APPEND");
        Access { path, plain, direct, append, reader }
    }
}

/// A store through a shared mapping that is not synced yet: until it is synced, others may read the bytes that were
/// there before.
struct Unsynced {
    by: usize,
    /// The mapping: address and bytes.
    map: (usize, usize),
    /// The range of the store in the file.
    stored: std::ops::Range<u64>,
}

/// A shared mapping of the start of the file that stays, whatever is done to the file.
struct CommonMap(usize);

impl CommonMap {
    fn of(file: &OwnedFd) -> CommonMap {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping; what lies behind the end of the file is not touched.
        let p = unsafe { mmap(std::ptr::null_mut(), COMMON as usize, prot, MapFlags::SHARED, file, 0) };
        CommonMap(p.expect("mmap") as usize)
    }

    /// The bytes of `range`, which is inside the mapping and inside the file as the kernel knows it.
    fn load(&self, range: &std::ops::Range<u64>) -> Vec<u8> {
        let at = (self.0 + range.start as usize) as *const u8;
        // SAFETY: inside the mapping, and no other thread of this process stores there.
        unsafe { std::slice::from_raw_parts(at, (range.end - range.start) as usize) }.to_vec()
    }

    /// Stores bytes; `at` and what follows as for `load`.
    fn store(&self, at: u64, bytes: &[u8]) {
        let to = (self.0 + at as usize) as *mut u8;
        // SAFETY: as for `load`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    fn sync(&self, range: &std::ops::Range<u64>) {
        let start = range.start & !4095;
        let (at, len) = ((self.0 + start as usize) as *mut std::ffi::c_void, (range.end - start) as usize);
        // SAFETY: inside the mapping.
        unsafe { msync(at, len, MsyncFlags::SYNC) }.expect("msync");
    }
}

impl Drop for CommonMap {
    fn drop(&mut self) {
        // SAFETY: the mapping that `of` has made; nothing uses it after this.
        unsafe { munmap(self.0 as *mut std::ffi::c_void, COMMON as usize) }.expect("munmap");
    }
}

/// Each operation uses one of the mounts; all mounts have to show the same file.
pub struct Tester {
    mounts: Vec<Access>,
    /// The same pages, mapped on every mount; empty: they are not used.
    common: Vec<CommonMap>,
    /// The mount of the present operation.
    by: usize,
    /// Shared mappings are used.
    maps: bool,
    unsynced: Option<Unsynced>,
    /// Open files that only read are used, which the kernel may serve.
    readers: bool,
    model: Vec<u8>,
    random: Random,
    log: Vec<String>,
}

fn aligned(len: usize) -> amphi_env::Buf {
    amphi_env::Buf::zeroed(len)
}

impl Tester {
    fn new(dir: &Path, seed: u64) -> Tester {
        Tester::on(&[dir], seed)
    }

    /// A file that is open on several mounts.
    pub fn on(dirs: &[&Path], seed: u64) -> Tester {
        let mounts = dirs.iter().map(|dir| Access::open(dir.join(format!("fsx-{seed}")), None)).collect();
        Tester {
            mounts,
            common: Vec::new(),
            by: 0,
            maps: true,
            unsynced: None,
            readers: false,
            model: Vec::new(),
            random: Random::new(seed),
            log: Vec::new(),
        }
    }

    /// Leaves shared mappings out.
    pub fn without_maps(mut self) -> Tester {
        self.maps = false;
        self
    }

    /// Every mount has the beginning of the file mapped during the whole test, and writes to it by stores.
    pub fn with_common_maps(mut self) -> Tester {
        self.common = self.mounts.iter().map(|mount| CommonMap::of(&mount.plain)).collect();
        self
    }

    /// Additionally reads through open files that were opened for reading only.
    pub fn with_readers(mut self) -> Tester {
        self.readers = true;
        self
    }

    fn here(&self) -> &Access {
        &self.mounts[self.by]
    }

    /// Remembers an operation; FSX_TRACE=1 prints it, for faults that end the process.
    fn note(&mut self, operation: String) {
        if std::env::var_os("FSX_TRACE").is_some() {
            println!("{} {operation}", self.model.len());
        }
        self.log.push(if self.mounts.len() > 1 { format!("mount {}: {operation}", self.by) } else { operation });
    }

    fn offset_len(&mut self) -> (u64, usize) {
        let len = match self.random.below(10) {
            0..5 => 1 + self.random.below(9000),
            5..8 => 1 + self.random.below(150_000),
            8 => 4096 * (1 + self.random.below(64)),
            _ => 1 + self.random.below(3 << 20),
        };
        let mut offset = self.random.below(MAX - len);
        if self.random.below(3) == 0 {
            offset &= !4095;
        }
        (offset, len as usize)
    }

    fn grow(&mut self, end: usize) {
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
    }

    /// Makes a random operation.
    pub fn step(&mut self) {
        if self.mounts.len() > 1 {
            self.by = self.random.below(self.mounts.len() as u64) as usize;
        }
        let (offset, len) = self.offset_len();
        if self.readers && self.random.below(3) == 0 {
            self.sync_stores();
            match self.random.below(4) {
                0 => self.open_readers(),
                _ => self.read_alone(offset, len),
            }
            return;
        }
        if !self.common.is_empty() && self.random.below(3) == 0 {
            self.sync_stores();
            match self.random.below(2) {
                0 => self.store_common(),
                _ => self.load_common(),
            }
            return;
        }
        let at = offset as usize;
        let op = self.random.below(100);
        let may_go_beside = matches!(op, 0..66 | 72..83 | 94..);
        let meets = |u: &Unsynced| offset < u.stored.end && u.stored.start < offset + len as u64;
        if self.unsynced.as_ref().is_some_and(|u| !may_go_beside || meets(u)) || self.random.below(8) == 0 {
            self.sync_stores();
        }
        match op {
            0..22 => {
                self.note(format!("write {offset}+{len}"));
                let bytes = pattern(self.random.below(u64::MAX), len);
                write_all(&self.here().plain, &bytes, offset);
                self.grow(at + len);
                self.model[at..at + len].copy_from_slice(&bytes);
            }
            22..34 => {
                self.note(format!("write direct {offset}+{len}"));
                let mut buf = aligned(len);
                buf.copy_from_slice(&pattern(self.random.below(u64::MAX), len));
                write_all(&self.here().direct, &buf, offset);
                self.grow(at + len);
                self.model[at..at + len].copy_from_slice(&buf);
            }
            34..39 if self.model.len() + len < MAX as usize => {
                self.note(format!("append {len}"));
                let bytes = pattern(self.random.below(u64::MAX), len);
                let n = rustix::io::write(&self.here().append, &bytes).expect("append");
                assert_eq!(n, len, "append is whole");
                self.model.extend_from_slice(&bytes);
            }
            34..49 => self.read(offset, len, false),
            49..60 => self.read(offset, len, true),
            60..62 => self.read_by_pipe(offset, len, Piped::Splice),
            62..63 => self.read_by_pipe(offset, len, Piped::SpliceDirect),
            63..65 => self.read_by_pipe(offset, len, Piped::SendFile),
            65..66 => self.write_by_pipe(offset, len),
            66..72 => {
                let size = self.random.below(MAX);
                self.note(format!("truncate {size}"));
                ftruncate(&self.here().plain, size).expect("truncate");
                self.model.resize(size as usize, 0);
            }
            72..77 => {
                self.note(format!("punch {offset}+{len}"));
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.here().plain, flags, offset, len as u64).expect("punch");
                let end = (at + len).min(self.model.len());
                if at < end {
                    self.model[at..end].fill(0);
                }
            }
            77..80 => {
                self.note(format!("allocate {offset}+{len}"));
                fallocate(&self.here().plain, FallocateFlags::empty(), offset, len as u64).expect("allocate");
                self.grow(at + len);
            }
            80..83 => {
                self.note(format!("zero {offset}+{len}"));
                fallocate(&self.here().plain, FallocateFlags::ZERO_RANGE, offset, len as u64).expect("zero range");
                self.grow(at + len);
                self.model[at..at + len].fill(0);
            }
            83..88 => self.copy_range(offset, len),
            88..91 if self.maps => self.map(offset, len),
            91..94 if self.maps => self.store(offset, len),
            88..94 => self.read(offset, len, false),
            94..97 => {
                self.note("fsync".into());
                fsync(&self.here().plain).expect("fsync");
            }
            _ => {
                self.note("stat".into());
                let size = stat(&self.here().path).expect("stat").st_size as usize;
                assert_eq!(size, self.model.len(), "size");
            }
        }
    }

    fn read(&mut self, offset: u64, len: usize, direct: bool) {
        self.note(format!("read{} {offset}+{len}", if direct { " direct" } else { "" }));
        let mut buf = aligned(len);
        let mut got = 0;
        while got < len {
            let fd = if direct { &self.here().direct } else { &self.here().plain };
            let n = pread(fd, &mut buf[got..], offset + got as u64).expect("read");
            if n == 0 {
                break;
            }
            got += n;
        }
        self.same_at(&buf[..got], offset, len);
    }

    /// Closes the file on all mounts, opens it on each for reading only, and then as it was open before.
    fn open_readers(&mut self) {
        self.note("open to read alone".into());
        let paths: Vec<_> = self.mounts.drain(..).map(|mount| mount.path).collect();
        let readers: Vec<_> =
            paths.iter().map(|path| open(path, OFlags::RDONLY, Mode::empty()).expect("open")).collect();
        let pairs = paths.into_iter().zip(readers);
        self.mounts = pairs.map(|(path, reader)| Access::open(path, Some(reader))).collect();
    }

    /// Reads through the open file for reading only, if there is one.
    fn read_alone(&mut self, offset: u64, len: usize) {
        if self.here().reader.is_none() {
            return;
        }
        self.note(format!("read alone {offset}+{len}"));
        let (mut buf, mut got) = (vec![0; len], 0);
        while got < len {
            let reader = self.here().reader.as_ref().expect("looked at above");
            match pread(reader, &mut buf[got..], offset + got as u64).expect("read") {
                0 => break,
                n => got += n,
            }
        }
        self.same_at(&buf[..got], offset, len);
    }

    /// Moves bytes of the file into a pipe and compares them.
    fn read_by_pipe(&mut self, offset: u64, len: usize, how: Piped) {
        self.note(format!("{how:?} {offset}+{len}"));
        let (out, into) = pipe().expect("pipe");
        let (mut from, mut bytes) = (offset, Vec::with_capacity(len));
        while bytes.len() < len {
            self.ask_size();
            let (here, most) = (self.here(), (len - bytes.len()).min(PIPE));
            let moved = match how {
                Piped::Splice => splice(&here.plain, Some(&mut from), &into, None, most, SpliceFlags::empty()),
                Piped::SpliceDirect => splice(&here.direct, Some(&mut from), &into, None, most, SpliceFlags::empty()),
                Piped::SendFile => sendfile(&into, &here.plain, Some(&mut from), most),
            };
            let mut left = moved.expect("to the pipe");
            if left == 0 {
                break;
            }
            while left > 0 {
                let mut part = vec![0; left];
                let n = rustix::io::read(&out, &mut part).expect("from the pipe");
                bytes.extend_from_slice(&part[..n]);
                left -= n;
            }
        }
        self.same_at(&bytes, offset, len);
    }

    /// Writes bytes that come out of a pipe.
    fn write_by_pipe(&mut self, offset: u64, len: usize) {
        self.note(format!("write by splice {offset}+{len}"));
        let (out, into) = pipe().expect("pipe");
        let bytes = pattern(self.random.below(u64::MAX), len);
        let mut to = offset;
        for part in bytes.chunks(PIPE) {
            assert_eq!(rustix::io::write(&into, part), Ok(part.len()), "a pipe takes so much");
            let mut left = part.len();
            while left > 0 {
                let fd = &self.here().plain;
                left -= splice(&out, None, fd, Some(&mut to), left, SpliceFlags::empty()).expect("from the pipe");
            }
        }
        let at = offset as usize;
        self.grow(at + len);
        self.model[at..at + len].copy_from_slice(&bytes);
    }

    /// On several mounts the kernel cuts some calls at the end that it knew last (docs/SEMANTICS.md, Several mounts).
    fn ask_size(&self) {
        if self.mounts.len() > 1 {
            stat(&self.here().path).expect("stat");
        }
    }

    /// Compares what was read of `len` bytes at `offset`.
    fn same_at(&self, got: &[u8], offset: u64, len: usize) {
        let at = (offset as usize).min(self.model.len());
        let end = (offset as usize + len).min(self.model.len());
        self.same(got, at, end);
    }

    fn same(&self, got: &[u8], at: usize, end: usize) {
        let want = &self.model[at..end];
        assert_eq!(got.len(), want.len(), "length read; last: {:?}", self.log.last());
        if let Some(i) = got.iter().zip(want).position(|(a, b)| a != b) {
            let tail: Vec<_> = self.log.iter().rev().take(30).rev().collect();
            panic!("byte {} is {} instead of {}; operations: {tail:#?}", at + i, got[i], want[i]);
        }
    }

    fn copy_range(&mut self, offset: u64, len: usize) {
        let to = self.random.below(MAX - len as u64);
        let overlap = to < offset + len as u64 && offset < to + len as u64;
        if overlap || offset as usize >= self.model.len() {
            return;
        }
        self.note(format!("copy {offset}+{len} to {to}"));
        let (mut from, mut into, mut left) = (offset, to, len);
        while left > 0 {
            self.ask_size();
            let n = copy_file_range(&self.here().plain, Some(&mut from), &self.here().plain, Some(&mut into), left)
                .expect("copy");
            if n == 0 {
                break;
            }
            left -= n;
        }
        let end = (offset as usize + len).min(self.model.len());
        let bytes = self.model[offset as usize..end].to_vec();
        assert_eq!(left, len - bytes.len(), "copied up to the end of the file");
        self.grow(to as usize + bytes.len());
        self.model[to as usize..to as usize + bytes.len()].copy_from_slice(&bytes);
    }

    /// Changes or reads through a shared mapping of whole pages inside the file.
    fn map(&mut self, offset: u64, len: usize) {
        let start = offset & !4095;
        let end = (offset + len as u64).min(self.model.len() as u64);
        if start >= end {
            return;
        }
        self.note(format!("map {start}..{end}"));
        self.ask_size();
        let size = (end - start) as usize;
        let write = self.random.below(2) == 0;
        let prot = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a fresh mapping of `size` bytes inside the file, unmapped below and not used after.
        unsafe {
            let p = mmap(std::ptr::null_mut(), size, prot, MapFlags::SHARED, &self.here().plain, start).expect("mmap");
            let bytes = std::slice::from_raw_parts_mut(p.cast::<u8>(), size);
            if write {
                let (a, seed) = (self.random.below(size as u64) as usize, self.random.below(u64::MAX));
                let n = (1 + self.random.below(20_000) as usize).min(size - a);
                bytes[a..a + n].copy_from_slice(&pattern(seed, n));
                self.model[start as usize + a..start as usize + a + n].copy_from_slice(&pattern(seed, n));
                msync(p, size, MsyncFlags::SYNC).expect("msync");
            }
            let copy = bytes.to_vec();
            munmap(p, size).expect("munmap");
            self.same(&copy, start as usize, end as usize);
        }
    }

    /// A part of the common mappings that lies inside the file.
    fn common_range(&mut self) -> std::ops::Range<u64> {
        let end = (self.model.len() as u64).min(COMMON);
        let start = self.random.below(end.max(1)).min(end);
        start..(start + 1 + self.random.below(20_000)).min(end)
    }

    /// Stores through the common mapping of this mount and syncs, so that all mounts see it.
    fn store_common(&mut self) {
        let range = self.common_range();
        if range.is_empty() {
            return;
        }
        let by_msync = self.random.below(2) == 0;
        self.note(format!("store into common pages {range:?}, msync: {by_msync}"));
        self.ask_size();
        let bytes = pattern(self.random.below(u64::MAX), (range.end - range.start) as usize);
        self.common[self.by].store(range.start, &bytes);
        match by_msync {
            true => self.common[self.by].sync(&range),
            false => fsync(&self.here().plain).expect("fsync"),
        }
        self.model[range.start as usize..range.end as usize].copy_from_slice(&bytes);
        if self.random.below(2) == 0 {
            self.look_at_common(&range);
        }
    }

    /// Reads pages that all mounts have mapped, on each mount, whatever was done to the file and on whichever mount.
    fn load_common(&mut self) {
        let range = self.common_range();
        if !range.is_empty() {
            self.note(format!("load common pages {range:?}"));
            self.look_at_common(&range);
        }
    }

    fn look_at_common(&mut self, range: &std::ops::Range<u64>) {
        let (before, first) = (self.by, self.random.below(self.mounts.len() as u64) as usize);
        for n in 0..self.mounts.len() {
            self.by = (first + n) % self.mounts.len();
            self.ask_size();
            let shown = self.common[self.by].load(range);
            self.same(&shown, range.start as usize, range.end as usize);
        }
        self.by = before;
    }

    /// Stores through a shared mapping that stays dirty while other operations run. The other mounts may have the old
    /// bytes in their caches.
    fn store(&mut self, offset: u64, len: usize) {
        let stored = offset..(offset + len.min(20_000) as u64).min(self.model.len() as u64);
        if stored.is_empty() {
            return;
        }
        let by = self.by;
        for other in 0..self.mounts.len() {
            if self.random.below(2) == 0 {
                self.by = other;
                self.read(offset, len, false);
            }
        }
        self.by = by;
        self.note(format!("store {stored:?}"));
        self.ask_size();
        let start = stored.start & !4095;
        let size = (stored.end - start) as usize;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let bytes = pattern(self.random.below(u64::MAX), (stored.end - stored.start) as usize);
        self.model[stored.start as usize..stored.end as usize].copy_from_slice(&bytes);
        // SAFETY: a fresh mapping of `size` bytes inside the file, which is unmapped by `sync_stores` and not used
        // after.
        let map = unsafe {
            let p = mmap(std::ptr::null_mut(), size, prot, MapFlags::SHARED, &self.here().plain, start).expect("mmap");
            let all = std::slice::from_raw_parts_mut(p.cast::<u8>(), size);
            all[(stored.start - start) as usize..].copy_from_slice(&bytes);
            (p as usize, size)
        };
        self.unsynced = Some(Unsynced { by, map, stored });
    }

    /// All mounts see a store through a mapping once it is synced.
    fn sync_stores(&mut self) {
        let Some(Unsynced { by, map: (address, size), stored }) = self.unsynced.take() else { return };
        let before = std::mem::replace(&mut self.by, by);
        let how = self.random.below(3);
        self.note(format!("sync {stored:?}, way {how}"));
        let map = address as *mut std::ffi::c_void;
        // SAFETY: the mapping that `store` has made; nothing uses it after this.
        unsafe {
            match how {
                0 => msync(map, size, MsyncFlags::SYNC).expect("msync"),
                1 => fsync(&self.here().plain).expect("fsync"),
                _ => {}
            }
            munmap(map, size).expect("munmap");
        }
        for by in 0..self.mounts.len() {
            self.by = by;
            let direct = self.random.below(2) == 0;
            self.read(stored.start, (stored.end - stored.start) as usize, direct);
        }
        self.by = before;
    }

    /// Compares all of the file, by each mount.
    pub fn verify(&mut self) {
        self.sync_stores();
        let len = self.model.len();
        for by in 0..self.mounts.len() {
            self.by = by;
            assert_eq!(stat(&self.here().path).expect("stat").st_size as usize, len, "size by mount {by}");
            if len > 0 {
                self.read(0, len, false);
                self.read(0, len, true);
            }
        }
    }
}

fn write_all(fd: &OwnedFd, bytes: &[u8], offset: u64) {
    let mut done = 0;
    while done < bytes.len() {
        done += pwrite(fd, &bytes[done..], offset + done as u64).expect("write");
    }
}

fn rounds(place: &Place, seeds: std::ops::Range<u64>, steps: usize) {
    for seed in seeds {
        println!("fsx seed {seed}");
        let mut tester = Tester::new(&place.mount(), seed);
        for _ in 0..steps {
            tester.step();
        }
        tester.verify();
    }
}

/// Goal: Promise S1, S3, S4: whatever is done to a file in whichever mode, its content equals that of a byte vector.
/// Method: random operations with plain, O_DIRECT, appending and mapped access. The files are verified again after a
/// restart, and the zones pass fsck.
#[test]
fn random_operations_agree_with_a_byte_vector() {
    let place = Place::new();
    let up = place.up(&["--cache", "8M"]);
    rounds(&place, 0..3, 400);
    let mut last = Tester::new(&place.mount(), 77);
    for _ in 0..150 {
        last.step();
    }
    last.verify();
    let model = last.model.clone();
    drop(last);
    up.stop();
    place.fsck();
    let up = place.up(&[]);
    let after = std::fs::read(place.mount().join("fsx-77")).expect("read");
    assert!(after == model, "same after a restart");
    up.stop();
}

/// The options of a mount so that `setting` decides who serves the reads, also of files that are not small.
pub fn served_by(setting: &str) -> [String; 4] {
    ["--set", &format!("hybrid.kernel_cache={setting}"), "--set", "hybrid.large_read_bytes=256K"].map(String::from)
}

/// Goal: Promise S1, S3: whether the kernel or the mount serves reads, they return the current contents of the file.
/// Method: the tester runs with each setting of `hybrid.kernel_cache`, also through read-only open files that stay open
/// while the file is written. The requests of each way are counted.
#[test]
fn random_operations_whoever_serves_reads() {
    for setting in ["auto", "on", "off"] {
        let place = Place::new();
        let set = served_by(setting);
        let mut args = vec!["--cache", "8M"];
        args.extend(set.iter().map(String::as_str));
        let up = place.up(&args);
        for seed in 30..32 {
            println!("{setting}, seed {seed}");
            let mut tester = Tester::new(&place.mount(), seed).with_readers();
            (0..250).for_each(|_| tester.step());
            tester.verify();
        }
        let count = |name: &str| counter(&place.mount(), name);
        let opens = ["open_kernel_small_file", "open_kernel_unknown", "open_kernel_small_reads", "open_kernel_user"];
        let by_kernel: u64 = opens.iter().map(|name| count(name)).sum();
        assert_eq!((by_kernel > 0, count("read_direct_kernel") > 0), (setting != "off", setting != "off"), "{setting}");
        up.stop();
        place.fsck();
    }
}

/// Goal: Promise S3: a file that is forced to one mode, and a file whose mode changes in between, read the same.
/// Method: the same tester under `user.amphi.mode` buffered, direct and auto in turn.
#[test]
fn modes_changed_between_operations_change_no_byte() {
    let place = Place::new();
    let up: Daemon = place.up(&["--cache", "8M"]);
    let mut tester = Tester::new(&place.mount(), 5);
    for round in 0..9 {
        let mode = ["buffered", "direct", "auto"][round % 3];
        rustix::fs::setxattr(&tester.here().path, "user.amphi.mode", mode.as_bytes(), rustix::fs::XattrFlags::empty())
            .expect("set the mode");
        for _ in 0..50 {
            tester.step();
        }
        tester.verify();
    }
    up.stop();
    place.fsck();
}
