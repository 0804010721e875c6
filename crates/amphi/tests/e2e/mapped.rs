//! Memory mappings: shared and private, beside reads and writes.

use crate::harness::{Place, pattern, run};
use crate::two_mounts::Pair;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fsync, ftruncate, open, sendfile};
use rustix::io::{pread, pwrite};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Goal: Promise S1 for mappings: bytes stored through a shared mapping are read after msync, bytes written by pwrite
/// are seen in a mapping, private mappings write nothing. Method: one file, both ways, then a restart.
#[test]
fn shared_and_private_mappings() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("f");
    let f = open(&path, OFlags::RDWR | OFlags::CREATE, Mode::from_raw_mode(0o644)).expect("open");
    let size = 3 * 4096 + 100;
    ftruncate(&f, size as u64).expect("truncate");
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: fresh mappings within the file, unmapped at the end and not used after.
    unsafe {
        let shared = mmap(std::ptr::null_mut(), size, rw, MapFlags::SHARED, &f, 0).expect("shared");
        let private = mmap(std::ptr::null_mut(), size, rw, MapFlags::PRIVATE, &f, 0).expect("private");
        let s = std::slice::from_raw_parts_mut(shared.cast::<u8>(), size);
        let p = std::slice::from_raw_parts_mut(private.cast::<u8>(), size);
        let bytes = pattern(4, size);
        s.copy_from_slice(&bytes);
        msync(shared, size, MsyncFlags::SYNC).expect("msync");
        let mut back = vec![0; size];
        assert_eq!(pread(&f, &mut back, 0).expect("read"), size);
        assert!(back == bytes, "msync made it readable");
        pwrite(&f, b"written", 4096).expect("write");
        assert_eq!(&s[4096..4103], b"written", "a write shows in the mapping");
        p[0..4].copy_from_slice(b"priv");
        assert_eq!(pread(&f, &mut back[..4], 0).expect("read"), 4);
        assert!(back[..4] == bytes[..4], "a private mapping writes nothing");
        s[8192..8197].copy_from_slice(b"later");
        munmap(shared, size).expect("munmap");
        munmap(private, size).expect("munmap");
    }
    drop(f);
    up.stop();
    place.fsck();
    let up = place.up(&[]);
    let bytes = std::fs::read(&path).expect("read");
    assert_eq!(bytes.len(), size);
    assert_eq!(&bytes[4096..4103], b"written");
    assert_eq!(&bytes[8192..8197], b"later", "munmap wrote the rest back");
    up.stop();
}

/// Goal: bytes stored through a mapping survive `amphi sync` and a kill of all processes, and the end of a mount that
/// is in use, without a call of the program. Method: stores into many pages, and into one of them again, while the
/// mapping stays.
#[test]
fn stores_are_written_by_sync_and_by_the_end() {
    const PAGES: usize = 2000;
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("f");
    let f = open(&path, OFlags::RDWR | OFlags::CREATE, Mode::from_raw_mode(0o644)).expect("open");
    let size = PAGES * 4096;
    ftruncate(&f, size as u64).expect("truncate");
    let (bytes, rw) = (pattern(5, size), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: fresh mappings within the file, unmapped at the end of each part and not used after; a store into pages
    // of a mount that has gone is not made.
    unsafe {
        let shared = mmap(std::ptr::null_mut(), size, rw, MapFlags::SHARED, &f, 0).expect("shared");
        std::slice::from_raw_parts_mut(shared.cast::<u8>(), size).copy_from_slice(&bytes);
        assert!(run(&["sync", &place.text("mount")]).status.success());
        up.kill();
        let up = place.up(&[]);
        assert!(std::fs::read(&path).expect("read") == bytes, "after sync");
        let f = open(&path, OFlags::RDWR, Mode::empty()).expect("open");
        let again = mmap(std::ptr::null_mut(), size, rw, MapFlags::SHARED, &f, 0).expect("shared");
        std::slice::from_raw_parts_mut(again.cast::<u8>(), size).fill(7);
        up.stop();
        munmap(shared, size).expect("munmap");
        munmap(again, size).expect("munmap");
    }
    drop(f);
    let up = place.up(&[]);
    assert!(std::fs::read(&path).expect("read") == vec![7; size], "after the end");
    up.stop();
    place.fsck();
}

/// The first bytes of a file, read in each way.
fn looks(path: &Path, kept: &OwnedFd) -> Vec<(&'static str, Vec<u8>)> {
    let read_of = |fd: &OwnedFd| {
        let mut page = amphi_env::Buf::zeroed(4096);
        pread(fd, &mut page[..], 0).expect("read");
        page[..8].to_vec()
    };
    let direct = open(path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).expect("open");
    let fresh = open(path, OFlags::RDONLY, Mode::empty()).expect("open");
    let (out, into) = rustix::pipe::pipe().expect("pipe");
    rustix::fs::fstat(kept).expect("stat");
    assert_eq!(sendfile(&into, kept, Some(&mut 0), 8), Ok(8));
    let mut sent = vec![0; 8];
    assert_eq!(rustix::io::read(&out, &mut sent), Ok(8));
    // SAFETY: a fresh mapping of a page of the file, unmapped here.
    let mapped = unsafe {
        let map = mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, &fresh, 0).expect("map");
        let bytes = std::slice::from_raw_parts(map.cast::<u8>(), 8).to_vec();
        munmap(map, 4096).expect("munmap");
        bytes
    };
    vec![
        ("pread", read_of(kept)),
        ("read of a fresh open", read_of(&fresh)),
        ("O_DIRECT", read_of(&direct)),
        ("sendfile", sent),
        ("mapping", mapped),
    ]
}

/// Goal: a store through a mapping that was made stable (msync, fsync, munmap) is seen by the other mount, in every way
/// of reading. This holds even if the other mount has read the page before, keeps a lock for that, and has changed
/// another part of the file between the store and the sync, so that the page is written back while its lock is
/// returned. Method: each way to read before, to change, to sync and to read, with both mounts in turn.
#[test]
fn synced_stores_are_seen_by_the_other_mount() {
    const PAGES: usize = 10;
    type Change = (&'static str, fn(&OwnedFd));
    let changes: [Change; 6] = [
        ("nothing", |_| {}),
        ("a write elsewhere", |f| assert_eq!(pwrite(f, b"1", 20_000), Ok(1))),
        ("a write beside", |f| assert_eq!(pwrite(f, b"1", 2_000), Ok(1))),
        ("an append", |f| assert_eq!(pwrite(f, b"1", PAGES as u64 * 4096), Ok(1))),
        ("a hole", |f| {
            fallocate(f, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 16_384, 4096).expect("punch")
        }),
        ("a cut", |f| ftruncate(f, 30_000).expect("cut")),
    ];
    let pair = Pair::new(1, &[], &[]);
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    let mut wrong = Vec::new();
    for round in 0..2 * 2 * 3 * changes.len() {
        let (here, there) = if round % 2 == 0 { (&pair.a, &pair.b) } else { (&pair.b, &pair.a) };
        let (was_read, sync, change) = (round / 2 % 2 == 0, round / 4 % 3, changes[round / 12]);
        let name = format!("f{round}");
        std::fs::write(here.join(&name), vec![b'o'; PAGES * 4096]).expect("write");
        let flags = OFlags::RDWR;
        let mine = open(here.join(&name), flags, Mode::empty()).expect("open");
        let theirs = open(there.join(&name), flags, Mode::empty()).expect("open");
        let map_of = |f: &OwnedFd, prot| {
            // SAFETY: a fresh mapping within the file, unmapped at the end of the round and not used after.
            unsafe { mmap(std::ptr::null_mut(), 4 * 4096, prot, MapFlags::SHARED, f, 0) }.expect("map")
        };
        let map = map_of(&theirs, rw);
        // SAFETY: as above.
        let stored = unsafe { std::slice::from_raw_parts_mut(map.cast::<u8>(), 4 * 4096) };
        assert_eq!(stored[0], b'o');
        let kept = map_of(&mine, ProtFlags::READ);
        // SAFETY: as above. Others change the page, so each read of it is a volatile one.
        let kept_byte = || unsafe { kept.cast::<u8>().read_volatile() };
        if was_read {
            std::fs::read(here.join(&name)).expect("read");
        } else {
            assert_eq!(kept_byte(), b'o');
        }
        stored[..8].copy_from_slice(b"NEW BYTE");
        change.1(&mine);
        // SAFETY: the mapping from above.
        unsafe {
            match sync {
                0 => msync(map, 4096, MsyncFlags::SYNC).expect("msync"),
                1 => fsync(&theirs).expect("fsync"),
                _ => {}
            }
            munmap(map, 4 * 4096).expect("munmap");
        }
        let mut looks = looks(&here.join(&name), &mine);
        looks.retain(|(_, bytes)| bytes != b"NEW BYTE");
        let kept_is_old = kept_byte() != b'N';
        if !looks.is_empty() || kept_is_old {
            let looks: Vec<_> = looks.into_iter().map(|(how, _)| how).collect();
            wrong.push(format!("read before: {was_read}, {}, sync {sync}: {looks:?}, kept: {kept_is_old}", change.0));
        }
        // SAFETY: the mapping from above.
        unsafe { munmap(kept, 4 * 4096).expect("munmap") };
    }
    assert!(wrong.is_empty(), "old bytes: {wrong:#?}");
    pair.stop();
}

/// Goal: neither a `pwrite` nor a store through a mapping to other bytes of the same page is lost, in either order
/// (docs/SEMANTICS.md, Mappings). Method: one thread writes 8 bytes at the start of every page of a file. Meanwhile
/// another program repeatedly stores 8 bytes in the middle of the page, through new mappings. The test reads both in
/// the mapping, and by `pread` after the mapping was removed.
#[test]
fn stores_and_writes_to_one_page() {
    const PAGES: usize = 64;
    const ROUNDS: usize = 200;
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("f");
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    let mut lost = Vec::new();
    for round in 0..ROUNDS {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
        let f = open(&path, flags, Mode::from_raw_mode(0o644)).expect("open");
        ftruncate(&f, (PAGES * 4096) as u64).expect("truncate");
        // SAFETY: a fresh mapping within the file, unmapped at the end of the round and not used after.
        let map = unsafe { mmap(std::ptr::null_mut(), PAGES * 4096, rw, MapFlags::SHARED, &f, 0) }.expect("map");
        let at = map as usize;
        let word = |offset: usize| (at + offset) as *mut u64;
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|s| {
            s.spawn(|| {
                barrier.wait();
                for page in 0..PAGES {
                    let bytes = (page as u64 + 1).to_ne_bytes();
                    assert_eq!(pwrite(&f, &bytes, page as u64 * 4096), Ok(8));
                }
            });
            barrier.wait();
            for page in 0..PAGES {
                // SAFETY: within the mapping, aligned; the other thread writes other bytes.
                unsafe { word(page * 4096 + 2048).write_volatile(page as u64 + 1) };
            }
        });
        let both = |page: usize| [page * 4096, page * 4096 + 2048];
        for place in (0..PAGES).flat_map(both) {
            // SAFETY: within the mapping, aligned.
            if unsafe { word(place).read_volatile() } != place as u64 / 4096 + 1 {
                lost.push((round, place, "in the mapping"));
            }
        }
        // SAFETY: the mapping of this round.
        unsafe { munmap(map, PAGES * 4096) }.expect("unmap");
        for place in (0..PAGES).flat_map(both) {
            let mut bytes = [0; 8];
            assert_eq!(pread(&f, &mut bytes, place as u64), Ok(8));
            if u64::from_ne_bytes(bytes) != place as u64 / 4096 + 1 {
                lost.push((round, place, "read"));
            }
        }
    }
    assert_eq!(lost, [], "round, offset");
    up.stop();
}

/// Goal: pages of a mapping are written back where they lie, also through an open for appending. Method: a store, then
/// `msync`.
#[test]
fn a_mapping_of_an_open_for_appending() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("f");
    std::fs::write(&path, vec![b'o'; 8192]).expect("write");
    let f = open(&path, OFlags::RDWR | OFlags::APPEND, Mode::empty()).expect("open");
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping within the file, unmapped at the end and not used after.
    unsafe {
        let map = mmap(std::ptr::null_mut(), 8192, rw, MapFlags::SHARED, &f, 0).expect("map");
        map.cast::<u8>().add(4100).write_volatile(b's');
        msync(map, 8192, MsyncFlags::SYNC).expect("msync");
        munmap(map, 8192).expect("munmap");
    }
    rustix::io::write(&f, b"end").expect("append");
    let bytes = std::fs::read(&path).expect("read");
    assert_eq!(bytes.len(), 8195);
    assert_eq!((bytes[4100], &bytes[8192..]), (b's', &b"end"[..]));
    up.stop();
}

/// How often each program of these tests repeats its step, and how long all of them may take: a hundred times as long
/// as on an idle machine. A program that is blocked for as long as the others run never reaches that count.
const STEPS: u64 = 40;
const PATIENCE: Duration = Duration::from_secs(100);

/// Programs that continue until each of them has made its steps.
struct Course {
    begin: Instant,
    behind: AtomicUsize,
}

impl Course {
    fn of(programs: usize) -> Course {
        Course { begin: Instant::now(), behind: AtomicUsize::new(programs) }
    }

    /// Calls `step` until all programs have made `STEPS`.
    fn run(&self, what: &str, mut step: impl FnMut(u64)) {
        let mut n = 0;
        while self.behind.load(SeqCst) > 0 {
            assert!(self.begin.elapsed() < PATIENCE, "{what}: {n} steps, {:?} programs are behind", self.behind);
            step(n);
            n += 1;
            if n == STEPS {
                self.behind.fetch_sub(1, SeqCst);
            }
        }
    }
}

/// Stores into the first pages of a file through a mapping, one after the other, with a pause after each pass.
fn stores(course: &Course, path: &Path, pages: usize, pause: Duration) {
    let f = open(path, OFlags::RDWR, Mode::empty()).expect("open");
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping within the file, which never gets shorter than that, unmapped at the end and not used
    // after.
    unsafe {
        let map = mmap(std::ptr::null_mut(), pages * 4096, rw, MapFlags::SHARED, &f, 0).expect("map");
        course.run("stores", |n| {
            for page in 0..pages {
                map.cast::<u8>().add(page * 4096 + 10).write_volatile(n as u8);
            }
            std::thread::sleep(pause);
        });
        munmap(map, pages * 4096).expect("munmap");
    }
}

/// Goal: a program that stores into a mapping, one that truncates the file, and one that writes it on another mount all
/// make progress, even if such programs run on both mounts. No mount is evicted (docs/locking/kernel_pages.md). Method:
/// all of them at once, with one server and with three. Afterwards all bytes that calls have written are there.
#[test]
fn stores_truncates_and_writes_of_two_mounts_get_on() {
    const WHOLE: u64 = 1 << 20;
    for (servers, both) in [(1, false), (1, true), (3, true)] {
        let pair = Pair::new(servers, &["--targets", "4"], &[]);
        std::fs::write(pair.a.join("f"), vec![b'o'; WHOLE as usize]).expect("write");
        let course = Course::of(if both { 5 } else { 3 });
        let cut = |path: &Path| {
            let f = open(path, OFlags::RDWR, Mode::empty()).expect("open");
            course.run("truncates", |n| ftruncate(&f, WHOLE + 4096 * (n % 3)).expect("truncate"));
        };
        let write = |path: &Path| {
            let f = open(path, OFlags::RDWR, Mode::empty()).expect("open");
            course.run("writes", |n| assert_eq!(pwrite(&f, &[n as u8; 2048], 2048), Ok(2048)));
        };
        let (a, b) = (pair.a.join("f"), pair.b.join("f"));
        let pause = Duration::from_micros(500);
        std::thread::scope(|s| {
            s.spawn(|| stores(&course, &a, 2, pause));
            s.spawn(|| cut(&a));
            s.spawn(|| write(&b));
            if both {
                s.spawn(|| stores(&course, &b, 64, pause));
                s.spawn(|| cut(&b));
            }
        });
        let f = open(&b, OFlags::RDWR, Mode::empty()).expect("open");
        assert_eq!(pwrite(&f, &[b'w'; 2048], 2048), Ok(2048));
        for path in [&a, &b] {
            let bytes = std::fs::read(path).expect("both mounts go on");
            assert!(bytes.len() >= WHOLE as usize && bytes[2048..4096].iter().all(|b| *b == b'w'));
            assert!(bytes[8192..12000].iter().enumerate().all(|(n, b)| n == 10 || *b == b'o'), "nobody wrote there");
        }
        pair.stop();
    }
}

/// Goal: a program that stores into a mapping without a pause lets a read or a write of another mount through, and
/// continues itself. Method: the sizes and pauses with which a read of another mount waited for as long as the program
/// ran.
#[test]
fn a_busy_mapping_lets_others_on() {
    let pair = Pair::new(1, &["--targets", "4"], &[]);
    for (pages, pause_us, writes) in [(256, 1000, true), (256, 2000, false), (16, 0, false), (16, 0, true)] {
        let name = format!("f{pages}-{pause_us}-{writes}");
        let (a, b) = (pair.a.join(&name), pair.b.join(&name));
        std::fs::write(&a, vec![b'o'; 4 << 20]).expect("write");
        let course = Course::of(2);
        std::thread::scope(|s| {
            s.spawn(|| stores(&course, &a, pages, Duration::from_micros(pause_us)));
            let f = open(&b, OFlags::RDWR, Mode::empty()).expect("open");
            let mut bytes = vec![0; 4096];
            course.run(&name, |_| {
                let done = if writes { pwrite(&f, b"written", 100) } else { pread(&f, &mut bytes, 0) };
                assert!(done.is_ok_and(|n| n > 0));
                std::thread::sleep(Duration::from_millis(20));
            });
        });
        if writes {
            assert_eq!(&std::fs::read(&a).expect("read")[100..107], b"written", "{name}: no store took it back");
        }
    }
    pair.stop();
}
