//! Direct I/O at unaligned offsets, concurrent with other direct requests and with the cache, on one mount and on two
//! (Promises S1-S4).

use crate::harness::{Place, Random, pattern, run};
use crate::two_mounts::Pair;
use rustix::fs::{OFlags, XattrFlags, fcntl_getfl, fcntl_setfl, setxattr};
use rustix::io::{preadv, pwritev};
use std::fs::{self, File};
use std::io::{IoSlice, IoSliceMut, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const KIB: usize = 1 << 10;
const PAGE: usize = 4 * KIB;
/// Smallest stripe, so that small files have several.
const STRIPE: usize = 64 * KIB;

/// The file, open for both, with further flags.
fn open(path: &Path, flags: OFlags) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).custom_flags(flags.bits() as i32);
    options.open(path).expect("open")
}

fn direct(path: &Path) -> File {
    open(path, OFlags::DIRECT)
}

fn plain(path: &Path) -> File {
    open(path, OFlags::empty())
}

/// Compares the file with the expected bytes, buffered and direct.
fn same(path: &Path, expected: &[u8], what: &str) {
    assert!(fs::read(path).expect("read") == expected, "{what}, through the cache");
    let mut past = vec![0; expected.len()];
    direct(path).read_exact_at(&mut past, 0).expect("read");
    assert!(past == expected, "{what}, past the cache");
}

/// A mount whose new files have three stripes of the smallest size.
fn striped() -> (Place, crate::harness::Daemon) {
    let place = Place::new();
    let up = place.up(&["--targets", "3", "--zone-size", "128M", "--log-size", "16M"]);
    setxattr(place.mount(), "user.amphi.layout", b"striped,size=64K,count=3", XattrFlags::empty()).expect("layout");
    (place, up)
}

/// Goal: direct requests of any size at any offset have the same effect as buffered ones, with edges inside blocks and
/// over stripes (sanity 119e, 119s, 119a, 119b). Method: a file is copied in requests of each size from odd offsets, by
/// `O_DIRECT` and by a file set to direct. Some requests contain a hole or the end of the file.
#[test]
fn odd_sizes_copy_right() {
    let (place, up) = striped();
    let (p, s) = (PAGE, STRIPE);
    let sizes = [p / 4, p - KIB, p - 1, p, p + KIB, p + p / 2, 4 * p, s - 1, s, s + 1, s + s / 2, 4 * s, 4 * s + 1];
    let (from, to) = (place.mount().join("from"), place.mount().join("to"));
    for (i, size) in sizes.into_iter().enumerate() {
        // A hole in the middle and an end that fits no size.
        let len = size * 3 + s + 17;
        let mut bytes = pattern(i as u64, len);
        bytes[len / 3..len / 3 + size].fill(0);
        let source = plain(&from);
        source.set_len(0).expect("truncate");
        source.write_all_at(&bytes[..len / 3], 0).expect("write");
        source.write_all_at(&bytes[len / 3 + size..], (len / 3 + size) as u64).expect("write");
        for flags in [OFlags::DIRECT, OFlags::empty()] {
            let _ = fs::remove_file(&to);
            let (source, copy) = (open(&from, flags), open(&to, flags));
            if flags.is_empty() {
                setxattr(&from, "user.amphi.mode", b"direct", XattrFlags::empty()).expect("mode");
                setxattr(&to, "user.amphi.mode", b"direct", XattrFlags::empty()).expect("mode");
            }
            let mut buf = vec![1; size];
            let mut at = 0;
            loop {
                let n = source.read_at(&mut buf, at).expect("read");
                assert_eq!(n, size.min(len - at as usize), "size {size}: a read at {at}");
                if n == 0 {
                    break;
                }
                assert_eq!(copy.write_at(&buf[..n], at).expect("write"), n, "size {size}: a write at {at}");
                at += n as u64;
            }
            assert_eq!(copy.metadata().expect("stat").len(), len as u64, "the size is known at once (sanity 398o)");
            setxattr(&from, "user.amphi.mode", b"auto", XattrFlags::empty()).expect("mode");
            setxattr(&to, "user.amphi.mode", b"auto", XattrFlags::empty()).expect("mode");
            same(&to, &bytes, &format!("size {size}, {flags:?}"));
        }
    }
    up.stop();
    place.fsck();
}

/// Goal: memory at any address and calls with many odd parts, direct (sanity 119h, 119m to 119q). Method: buffers that
/// are unaligned by some bytes, and vectors with empty, tiny and large parts at an odd offset.
#[test]
fn odd_memory_and_vectors() {
    let (place, up) = striped();
    let path = place.mount().join("f");
    let f = direct(&path);
    let mut expected = vec![0; 600 * KIB];
    for (i, shift) in [1usize, 8, 511, 512, 2048, 4095].into_iter().enumerate() {
        let (at, len) = (i * 50_000 + 7, 40_000 + i);
        let bytes = pattern(i as u64, len);
        let mut memory = vec![0u8; shift + len];
        memory[shift..].copy_from_slice(&bytes);
        assert_eq!(f.write_at(&memory[shift..], at as u64).expect("write"), len);
        expected[at..at + len].copy_from_slice(&bytes);
        let mut back = vec![0u8; shift + len];
        f.read_exact_at(&mut back[shift..], at as u64).expect("read");
        assert!(back[shift..] == bytes, "memory off by {shift}");
    }
    let lens = [1, PAGE - 1, PAGE, 0, PAGE + 1, 100_000, 3, 2 * STRIPE, 13];
    let whole = pattern(99, lens.iter().sum());
    let mut rest = &whole[..];
    let parts: Vec<IoSlice<'_>> = lens
        .iter()
        .map(|len| {
            let (part, more) = rest.split_at(*len);
            rest = more;
            IoSlice::new(part)
        })
        .collect();
    let at = 300 * KIB + 5;
    assert_eq!(pwritev(&f, &parts, at as u64).expect("pwritev"), whole.len());
    expected[at..at + whole.len()].copy_from_slice(&whole);
    let mut buffers: Vec<Vec<u8>> = lens.iter().rev().map(|len| vec![0; *len]).collect();
    let mut parts: Vec<IoSliceMut<'_>> = buffers.iter_mut().map(|b| IoSliceMut::new(b)).collect();
    assert_eq!(preadv(&f, &mut parts, at as u64).expect("preadv"), whole.len());
    assert!(buffers.concat() == whole, "a vector read");
    let end = at + whole.len();
    same(&path, &expected[..end], "all of it");
    drop(f);
    up.stop();
    place.fsck();
}

/// Goal: concurrent requests in one file, all of them direct or some of them buffered, never fail and never change each
/// other's bytes although they share blocks (sanity 119f, 119g, 241, 398b). Method: each thread has records of its own,
/// and reads each of them back at once in the other mode.
#[test]
fn both_ways_side_by_side() {
    const RECORD: usize = 9_001;
    const THREADS: usize = 4;
    let (place, up) = striped();
    for kinds in [[true; THREADS], [true, false, true, false]] {
        let path = place.mount().join("f");
        let _ = fs::remove_file(&path);
        fs::write(&path, b"").expect("make");
        std::thread::scope(|s| {
            for (who, is_direct) in kinds.into_iter().enumerate() {
                let path = &path;
                s.spawn(move || {
                    let (one, other) = (direct(path), plain(path));
                    let (writer, reader) = if is_direct { (one, other) } else { (other, one) };
                    let mut random = Random::new(who as u64);
                    for round in 0..60u64 {
                        let slot = random.below(10) as usize * THREADS + who;
                        let (bytes, at) = (pattern(round * 100 + who as u64, RECORD), (slot * RECORD) as u64);
                        writer.write_all_at(&bytes, at).expect("write");
                        let mut got = vec![0; RECORD];
                        reader.read_exact_at(&mut got, at).expect("read");
                        assert!(got == bytes, "{kinds:?}: thread {who}, round {round}");
                    }
                    for slot in 0..10 {
                        let at = ((slot * THREADS + who) * RECORD) as u64;
                        writer.write_all_at(&pattern(at, RECORD), at).expect("write");
                    }
                });
            }
        });
        let expected: Vec<u8> = (0..10 * THREADS).flat_map(|i| pattern((i * RECORD) as u64, RECORD)).collect();
        same(&path, &expected, "what was written last");
    }
    up.stop();
    place.fsck();
}

/// Goal: if `O_DIRECT` is set and cleared on an open file, requests of either kind are right, and neither shows old
/// bytes (sanity 398e). Direct appends are written at the end (398n). Method: one descriptor changes its flag, and
/// another one writes in between.
#[test]
fn o_direct_comes_and_goes() {
    let (place, up) = striped();
    let path = place.mount().join("f");
    let (f, other) = (direct(&path), plain(&path));
    let mut expected = pattern(1, 30_000);
    f.write_all_at(&expected, 0).expect("write");
    for (round, flags) in [OFlags::empty(), OFlags::DIRECT, OFlags::empty(), OFlags::DIRECT].into_iter().enumerate() {
        let kept = fcntl_getfl(&f).expect("getfl") - OFlags::DIRECT;
        fcntl_setfl(&f, kept | flags).expect("setfl");
        let mut got = vec![0; expected.len()];
        f.read_exact_at(&mut got, 0).expect("read");
        assert!(got == expected, "round {round}");
        let (a, b) = (pattern(10 + round as u64, 5_001), pattern(20 + round as u64, 7_003));
        f.write_all_at(&a, 3_333).expect("write");
        expected[3_333..3_333 + a.len()].copy_from_slice(&a);
        other.write_all_at(&b, 7_000).expect("write");
        expected[7_000..7_000 + b.len()].copy_from_slice(&b);
        f.read_exact_at(&mut got, 0).expect("read");
        assert!(got == expected, "round {round}, after the other one's write");
        same(&path, &expected, &format!("round {round}"));
    }
    let (mut past, mut through) = (open(&path, OFlags::DIRECT | OFlags::APPEND), open(&path, OFlags::APPEND));
    for i in 0..20u64 {
        let bytes = pattern(i, 1 + i as usize * 999);
        if i % 2 == 0 {
            past.write_all(&bytes).expect("append")
        } else {
            through.write_all(&bytes).expect("append")
        }
        expected.extend(bytes);
    }
    same(&path, &expected, "after appends");
    drop((f, other, past, through));
    up.stop();
    place.fsck();
}

/// Goal: Promise S17: a write past the end with `O_DIRECT` that fails truncates nothing that another mount has written:
/// the kernel then sends a truncate to the size that it knows. A truncate that the program itself requests is executed.
/// Method: refused writes (`hybrid.unaligned` off) on a mount whose kernel has an old size, then truncates of the same
/// program.
#[test]
fn a_failed_write_cuts_nothing_of_others() {
    let pair = Pair::new(1, &["--targets", "2"], &["--set", "hybrid.unaligned=off"]);
    let (ours, theirs) = (pair.a.join("f"), pair.b.join("f"));
    fs::write(&ours, pattern(1, 1 << 20)).expect("write");
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::DIRECT;
    let f = File::from(rustix::fs::open(&ours, flags, rustix::fs::Mode::empty()).expect("open"));
    let fails = |at: u64, what: &str| {
        let refused = f.write_all_at(&[1; 100], at).expect_err(what);
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL), "{what}");
    };
    let long = pattern(2, 4 << 20);
    for at in [(1 << 20) + 1, (4 << 20) - 50, 9 << 20] {
        let other = File::create(&theirs).expect("open");
        other.set_len(1 << 20).expect("shorter");
        assert_eq!(f.metadata().expect("stat").len(), 1 << 20);
        other.write_all_at(&long, 0).expect("write");
        other.sync_all().expect("fsync");
        fails(at, "past the end as this kernel knows it");
        same(&theirs, &long, &format!("after a write at {at}"));
        same(&ours, &long, &format!("after a write at {at}, here"));
        // Again; by now the mount has learnt the newer size.
        fails(at, "again");
        same(&theirs, &long, "after the second");
    }
    fails(5, "inside");
    f.set_len(2 << 20).expect("truncate");
    same(&theirs, &long[..2 << 20], "the program's own truncate");
    fails(9 << 20, "past the end");
    f.set_len(1 << 20).expect("truncate");
    same(&theirs, &long[..1 << 20], "the program's own truncate behind the kernel's");
    drop(f);
    pair.stop();
}

/// Goal: Promise S1: a layout changes only while no other mount has the file open, because that mount would read by the
/// old layout. Method: an empty file is open for reading on the other mount, which then reads what is written. The
/// layout is checked once it is closed.
#[test]
fn a_layout_waits_for_readers_elsewhere() {
    let pair = Pair::new(1, &["--targets", "2"], &[]);
    let ours = pair.a.join("f");
    File::create(&ours).expect("create");
    let reader = File::open(pair.b.join("f")).expect("open");
    let set = |layout: &[u8]| setxattr(&ours, "user.amphi.layout", layout, XattrFlags::empty());
    assert_eq!(set(b"striped,size=64K,count=2"), Err(rustix::io::Errno::BUSY));
    let bytes = pattern(1, 128 * KIB);
    plain(&ours).write_all_at(&bytes, 0).expect("write");
    let mut got = vec![0; bytes.len()];
    reader.read_exact_at(&mut got, 0).expect("read");
    assert!(got == bytes);
    plain(&ours).set_len(0).expect("truncate");
    drop(reader);
    crate::harness::eventually("the close arrives", || set(b"striped,size=64K,count=2").is_ok());
    plain(&ours).write_all_at(&bytes, 0).expect("write");
    same(&pair.b.join("f"), &bytes, "by the new layout");
    pair.stop();
}

/// Goal: one mount writes direct and another one buffered, the same bytes of the same file at the same time. Every
/// read, in either mode on either mount, returns one of the writes as a whole (sanityn 16j; in that test the two sides
/// never met). No mount is evicted (398b). Method: records at odd places, in the window and below, each full of one
/// number.
fn a_race_of_both_ways(servers: usize) {
    const ROUNDS: u64 = 150;
    /// Offset and length: inside a block, over blocks, over stripes.
    const RECORDS: [(u64, usize); 4] =
        [(100, 2_000), (4_000, 47_008), (STRIPE as u64 - 9_000, 36_000), (300_000, 200_001)];
    let pair = Pair::new(servers, &["--targets", "2"], &["--cache", "16M"]);
    setxattr(&pair.a, "user.amphi.layout", b"striped,size=64K,count=2", XattrFlags::empty()).expect("layout");
    fs::write(pair.a.join("f"), vec![0; 600_000]).expect("write");
    let over = AtomicBool::new(false);
    let whole = |f: &File, (at, len): (u64, usize), what: &str| {
        let mut got = vec![0; len];
        f.read_exact_at(&mut got, at).expect("read");
        let word: [u8; 2] = [got[0], got[1]];
        // Records that overlap would mix; these do not.
        let bad = got.chunks(2).position(|c| *c != word[..c.len()]);
        assert!(bad.is_none(), "{what}: {len} bytes at {at} are of two writes from {bad:?}");
        u16::from_le_bytes(word)
    };
    std::thread::scope(|s| {
        let writers: Vec<_> = [(&pair.a, OFlags::DIRECT, 0u16), (&pair.b, OFlags::empty(), 1)]
            .map(|(m, flags, who)| {
                let path = m.join("f");
                s.spawn(move || {
                    let f = open(&path, flags);
                    for round in 0..ROUNDS {
                        let (at, len) = RECORDS[(round % RECORDS.len() as u64) as usize];
                        let word = (2 * round as u16 + who).to_le_bytes();
                        f.write_all_at(&word.repeat(len.div_ceil(2))[..len], at).expect("write");
                    }
                })
            })
            .into();
        for (m, flags) in [(&pair.a, OFlags::empty()), (&pair.b, OFlags::DIRECT)] {
            let (over, whole, path) = (&over, &whole, m.join("f"));
            s.spawn(move || {
                let f = open(&path, flags);
                while !over.load(SeqCst) {
                    for record in RECORDS {
                        let word = whole(&f, record, "in the race");
                        assert!(u64::from(word) < 2 * ROUNDS, "{word} was never written");
                    }
                }
            });
        }
        let ended: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
        over.store(true, SeqCst);
        ended.into_iter().for_each(|e| e.expect("a writer"));
    });
    for record in RECORDS {
        let (a, b) = (plain(&pair.a.join("f")), direct(&pair.b.join("f")));
        assert_eq!(whole(&a, record, "at the end"), whole(&b, record, "at the end"));
    }
    pair.stop();
}

#[test]
fn a_race_of_both_ways_on_one_server() {
    a_race_of_both_ways(1);
}

#[test]
fn a_race_of_both_ways_on_two_servers() {
    a_race_of_both_ways(2);
}

/// Goal: a reader never sees an older value than it has read before, while its cache is dropped all the time, whether
/// the writer is buffered or direct (sanityn 16d, 16f, 16g). Method: one mount increments a counter in a page, buffered
/// and direct in turn. Both mounts read it, one of them with a cache from which other reads evict it. The test also
/// reads a size that grows.
#[test]
fn what_was_seen_never_goes_back() {
    const LAST: u64 = 400;
    let pair = Pair::new(1, &["--targets", "2"], &["--cache", "4M"]);
    fs::write(pair.a.join("f"), vec![0; 2 * PAGE]).expect("write");
    fs::write(pair.a.join("large"), vec![7; 16 << 20]).expect("write");
    std::thread::scope(|s| {
        s.spawn(|| {
            let ways = [plain(&pair.a.join("f")), direct(&pair.a.join("f"))];
            for n in 1..=LAST {
                let f = &ways[(n / 3 % 2) as usize];
                f.write_all_at(&n.to_le_bytes().repeat(PAGE / 8), PAGE as u64 / 2).expect("write");
                f.write_all_at(b"x", 2 * PAGE as u64 + n).expect("write");
            }
        });
        for (m, flags) in [(&pair.a, OFlags::empty()), (&pair.b, OFlags::empty()), (&pair.b, OFlags::DIRECT)] {
            s.spawn(move || {
                let (f, large) = (open(&m.join("f"), flags), plain(&m.join("large")));
                let (mut seen, mut size, mut round) = (0, 0, 0u64);
                let (mut page, mut other) = (vec![0; PAGE], vec![0; 256 << 10]);
                while seen < LAST {
                    f.read_exact_at(&mut page, PAGE as u64 / 2).expect("read");
                    let n = u64::from_le_bytes(page[..8].try_into().expect("8 bytes"));
                    assert!(page.chunks(8).all(|c| c == n.to_le_bytes()), "a page of two writes");
                    assert!(n >= seen, "{n} after {seen}");
                    let now = f.metadata().expect("stat").size();
                    assert!(now >= size, "size {now} after {size}");
                    (seen, size, round) = (n, now, round + 1);
                    large.read_exact_at(&mut other, round % 64 * (256 << 10)).expect("read");
                    assert!(other.iter().all(|b| *b == 7));
                }
            });
        }
    });
    pair.stop();
}

/// Goal: direct requests to a full file system return the error if nothing was written, otherwise the length of the
/// contiguous part from the start. The size agrees with it, and the bytes are right (sanity 398k, 398l). Method: direct
/// writes of 4 MiB append to a file until one fails, so one of them is larger than the remaining space.
#[test]
fn a_direct_write_that_does_not_fit() {
    let place = Place::new();
    let up = place.up(&["--targets", "2", "--zone-size", "32M", "--log-size", "4M"]);
    setxattr(place.mount(), "user.amphi.layout", b"striped,size=1M,count=2", XattrFlags::empty()).expect("layout");
    let path = place.mount().join("f");
    let f = direct(&path);
    let bytes = pattern(5, 4 << 20);
    let mut written = Vec::new();
    let error = loop {
        match f.write_at(&bytes, written.len() as u64) {
            Ok(n) => written.extend(&bytes[..n]),
            Err(e) => break e,
        }
        assert!(written.len() < 64 << 20, "it never fills");
    };
    assert_eq!(error.raw_os_error(), Some(28), "ENOSPC");
    assert_eq!(f.metadata().expect("stat").len(), written.len() as u64);
    assert!(written.len() > 8 << 20, "{} bytes", written.len());
    same(&path, &written, "what fitted");
    drop(f);
    fs::remove_file(&path).expect("remove");
    assert!(run(&["sync", &place.text("mount")]).status.success());
    let f = direct(&place.mount().join("g"));
    f.write_all_at(&bytes, 0).expect("there is room again");
    drop(f);
    up.stop();
    place.fsck();
}

/// Goal: an unmapped address fails only its own request with EFAULT, in either mode (sanity 119r). A single unaligned
/// request of many megabytes is right (sanity 78). Method: addresses without memory, then good ones, by an open file of
/// each kind, and one write and one read of 40 MiB.
#[test]
fn bad_memory_and_huge_requests() {
    let (place, up) = striped();
    let path = place.mount().join("f");
    let text = pattern(1, 3 * STRIPE);
    fs::write(&path, &text).expect("write");
    // A page without access rights, and one behind it that is not mapped at all. SAFETY: a new mapping at an address
    // that the kernel chooses.
    let page = unsafe {
        libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert_ne!(page, libc::MAP_FAILED);
    for file in [direct(&path), plain(&path)] {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        for len in [PAGE, PAGE - 5] {
            // SAFETY: the kernel looks at the address, which nothing else uses, and refuses it.
            let results = unsafe { [libc::pwrite(fd, page, len, 7), libc::pread(fd, page, len, 7)] };
            assert_eq!(results, [-1, -1]);
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
        }
        let mut got = vec![0; text.len()];
        file.read_exact_at(&mut got, 0).expect("read");
        assert!(got == text, "nothing was written");
        file.write_all_at(&text[..100], 0).expect("the next write");
    }
    // SAFETY: mapped above, used by nobody.
    unsafe { libc::munmap(page, PAGE) };
    let huge = pattern(2, (40 << 20) + 5);
    let file = direct(&path);
    assert_eq!(file.write_at(&huge, 3).expect("write"), huge.len(), "in one call");
    let expected = [&text[..3], &huge].concat();
    same(&path, &expected, "a huge request");
    up.stop();
}
