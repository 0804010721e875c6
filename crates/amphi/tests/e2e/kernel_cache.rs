//! The kernel's caches of a mount: pages, names and attributes. None of these caches ever returns outdated data.

use crate::harness::{Place, Random, amphi, counter, eventually, pattern};
use crate::two_mounts::Pair;
use rustix::fs::{Mode, OFlags, open, sendfile};
use rustix::io::pread;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::pipe::pipe;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const PAGES: usize = 8;
/// Looks of each thread in a story of two mounts, at least.
const LOOKS: u64 = 500;
/// How long such a story continues, at least.
const STORY: Duration = Duration::from_secs(4);

/// Reads that came to a mount.
fn reads(mount: &Path) -> u64 {
    ["read_cache_hit", "read_buffered_small", "read_buffered_default", "read_direct_large", "read_direct_kernel"]
        .iter()
        .map(|name| counter(mount, name))
        .sum()
}

/// Opens that left the reads to the kernel.
fn by_kernel(mount: &Path) -> u64 {
    counter(mount, "open_kernel_small_file") + counter(mount, "open_kernel_executable")
}

/// Goal: bytes that the kernel has read once need no request again, even through a new open, until they change. A
/// program that writes is seen at once (Promise S1). Method: reads of all sizes of a file are counted. Then there is a
/// write through another descriptor, and a truncate.
#[test]
fn warm_reads_cost_no_request() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("f");
    fs::write(&path, vec![1; PAGES * PAGE]).expect("write");
    assert_eq!(fs::read(&path).expect("read"), vec![1; PAGES * PAGE]);
    let file = File::open(&path).expect("open");
    let before = reads(&place.mount());
    let mut buf = vec![0; PAGES * PAGE];
    for len in [1, 100, PAGE, 3 * PAGE, PAGES * PAGE] {
        file.read_exact_at(&mut buf[..len], 0).expect("read");
        assert_eq!(fs::read(&path).expect("read"), vec![1; PAGES * PAGE]);
    }
    assert_eq!(reads(&place.mount()), before, "the kernel has it all");
    assert!(by_kernel(&place.mount()) >= 7);
    let writer = File::options().write(true).open(&path).expect("open");
    for n in 2..50u8 {
        writer.write_all_at(&[n; 3], 4095).expect("write");
        file.read_exact_at(&mut buf[..5], 4094).expect("read");
        assert_eq!(buf[..5], [1, n, n, n, 1]);
        writer.write_all_at(&[n; 3], PAGE as u64 * (PAGES as u64 + u64::from(n))).expect("extend");
        assert_eq!(file.read_at(&mut buf[..8], PAGE as u64 * (PAGES as u64 + u64::from(n))).expect("read"), 3);
        assert_eq!(buf[..3], [n; 3]);
    }
    writer.set_len(10).expect("cut");
    assert_eq!(file.read_at(&mut buf, 0).expect("read"), 10);
    writer.set_len(PAGE as u64).expect("extend");
    assert_eq!(file.read_at(&mut buf, 0).expect("read"), PAGE);
    assert_eq!(buf[..12], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
    up.stop();
    place.fsck();
}

/// Goal: access times are renewed as `relatime` says, although the kernel serves the reads. Method: one read after a
/// change, and one more after that.
#[test]
fn a_read_by_the_kernel_renews_the_access_time() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("f");
    fs::write(&path, b"one").expect("write");
    let accessed = || fs::metadata(&path).map(|m| (m.atime(), m.atime_nsec())).expect("stat");
    for _ in 0..3 {
        let before = accessed();
        assert_eq!(fs::read(&path).expect("read"), b"one");
        let after = accessed();
        assert!(after > before, "{before:?} {after:?}");
        assert_eq!(fs::read(&path).expect("read"), b"one");
        assert_eq!(accessed(), after, "it is later than the change");
        fs::write(&path, b"one").expect("write");
    }
    up.stop();
}

/// How a reader looks at a number at `offset` of the file.
fn look(how: usize, file: &File, offset: u64, map: *const u8) -> u64 {
    let mut word = [0; 8];
    match how {
        0 => assert_eq!(pread(file, &mut word, offset), Ok(8)),
        // SAFETY: within the mapping of the caller, aligned.
        1 => return unsafe { map.add(offset as usize).cast::<u64>().read_volatile() },
        _ => {
            let (from, to) = pipe().expect("pipe");
            assert_eq!(sendfile(&to, file, Some(&mut { offset }), 8), Ok(8));
            assert_eq!(rustix::io::read(&from, &mut word), Ok(8));
        }
    }
    u64::from_ne_bytes(word)
}

/// Goal: a completed write on one mount is read by every later call on the other, from whichever place the kernel
/// serves it (Promise S1 across mounts). Method: one mount fills three files with a number that grows, through open
/// files that are kept or new ones each time. On the other mount, one thread for each file reads that file, by `pread`,
/// through a mapping or by `sendfile`. No value may be smaller than the last one written before the read.
fn reads_follow_the_other_mount(servers: usize) {
    let pair = Pair::new(servers, &["--targets", "2"], &["--set", "hybrid.contention=off"]);
    // Each way has a file of its own, so that no way refreshes the pages of another.
    let name = |x: &Path, how: usize| x.join(format!("f{how}"));
    (0..3).for_each(|how| fs::write(name(&pair.a, how), vec![0; PAGES * PAGE]).expect("write"));
    let (written, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let looked: [AtomicU64; 3] = Default::default();
    let looks = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|how| {
                let (path, written, is_over) = (name(&pair.b, how), &written, &is_over);
                let looked = &looked[how];
                scope.spawn(move || {
                    let mut looks = 0u64;
                    while !is_over.load(SeqCst) {
                        let file = File::open(&path).expect("open");
                        let len = PAGES * PAGE;
                        // SAFETY: a fresh mapping within the file, unmapped below and not used after.
                        let map = unsafe {
                            mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, 0).expect("map")
                        };
                        for turn in 0..50 {
                            let offset = ((looks * 7 + turn) % PAGES as u64) * PAGE as u64 + 8 * (turn % 500);
                            let before = written.load(SeqCst);
                            let seen = look(how, &file, offset, map.cast());
                            assert!(seen >= before, "way {how}: {seen} after {before}");
                            looks += 1;
                            looked.store(looks, SeqCst);
                            // Mapped pages stay for a while: a read of them costs nothing.
                            std::thread::sleep(Duration::from_micros(if how == 0 { 0 } else { 300 }));
                        }
                        // SAFETY: the mapping from above.
                        unsafe { munmap(map, len) }.expect("unmap");
                    }
                    looks
                })
            })
            .collect();
        let begun = Instant::now();
        let open = |how| File::options().write(true).open(name(&pair.a, how)).expect("open");
        let mut kept: Vec<File> = Vec::new();
        let mut n = 0u64;
        while begun.elapsed() < STORY || looked.iter().any(|looks| looks.load(SeqCst) <= LOOKS) {
            n += 1;
            let bytes: Vec<u8> = n.to_ne_bytes().repeat(PAGES * PAGE / 8);
            if n % 40 < 20 {
                if kept.is_empty() {
                    kept = (0..3).map(open).collect();
                }
                kept.iter().for_each(|file| file.write_all_at(&bytes, 0).expect("write"));
            } else {
                kept.clear();
                (0..3).map(open).for_each(|file| file.write_all_at(&bytes, 0).expect("write"));
                // A pause, in which other mounts may be granted the file without a writer.
                std::thread::sleep(Duration::from_millis(n % 20));
            }
            written.store(n, SeqCst);
            if readers.iter().any(|r| r.is_finished()) {
                println!("left {}", counter(&pair.b, "pages_left"));
                break;
            }
        }
        is_over.store(true, SeqCst);
        println!("{n} writes");
        readers.into_iter().map(|r| r.join().expect("a reader")).collect::<Vec<_>>()
    });
    for reason in ["contended", "written", "off", "open", "user", "large", "look"] {
        println!("{reason} {}", counter(&pair.b, &format!("open_mount_{reason}")));
    }
    println!("looks {looks:?}, opens by the kernel {}, left {}", by_kernel(&pair.b), counter(&pair.b, "pages_left"));
    pair.stop();
}

#[test]
fn reads_follow_the_other_mount_of_one_server() {
    reads_follow_the_other_mount(1);
}

#[test]
fn reads_follow_the_other_mount_of_three_servers() {
    reads_follow_the_other_mount(3);
}

/// Goal: pages that the kernel keeps between opens show the present file, whatever another mount does to it: it writes,
/// cuts, extends, punches holes, or replaces the file (Promises S1, S5 across mounts). Method: each change on one mount
/// is followed by a read of everything on the other one, through an open file that stays and through a new one. The
/// other mount has read the file before each change.
#[test]
fn kept_pages_follow_every_change() {
    let pair = Pair::new(1, &["--targets", "2"], &[]);
    let (a, b) = (pair.a.join("f"), pair.b.join("f"));
    let mut is = vec![7; 3 * PAGE + 100];
    fs::write(&a, &is).expect("write");
    let mut kept = File::open(&b).expect("open");
    for round in 0..120u64 {
        let (at, byte) = ((round * 1237 % (2 * PAGE as u64)) as usize, round as u8);
        let writer = File::options().write(true).open(&a).expect("open");
        match round % 6 {
            0 => {
                writer.write_all_at(&[byte; 5000], at as u64).expect("write");
                is.resize(is.len().max(at + 5000), 0);
                is[at..at + 5000].fill(byte);
            }
            1 => {
                writer.set_len(at as u64 + 1).expect("cut");
                is.truncate(at + 1);
            }
            2 => {
                writer.set_len((is.len() + 5000) as u64).expect("extend");
                is.resize(is.len() + 5000, 0);
            }
            3 => {
                let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&writer, flags, 100, 4000).expect("punch");
                let end = is.len().min(4100);
                is[100.min(end)..end].fill(0);
            }
            4 => {
                // Bytes behind the end of the file, in its last page.
                let end = is.len();
                writer.write_all_at(&[byte; 10], end as u64 + 20).expect("write");
                is.resize(end + 30, 0);
                is[end + 20..].fill(byte);
            }
            _ => {
                is = vec![byte; 2 * PAGE + round as usize];
                let new = pair.a.join("new");
                fs::write(&new, &is).expect("write");
                fs::rename(&new, &a).expect("rename");
                let old = fs::metadata(&b).expect("stat").ino();
                kept = File::open(&b).expect("open");
                assert_eq!(kept.metadata().expect("stat").ino(), old);
            }
        }
        drop(writer);
        let mut seen = vec![0; is.len() + 10];
        let n = kept.read_at(&mut seen, 0).expect("read");
        assert!(seen[..n] == is, "round {round}: kept, {n} of {}", is.len());
        for _ in 0..2 {
            assert!(fs::read(&b).expect("read") == is, "round {round}");
        }
    }
    assert!(by_kernel(&pair.b) > 100);
    pair.stop();
}

/// Reads all of a file in one of the kernel's ways. The size that the kernel has may be old for some of them
/// (docs/SEMANTICS.md, Several mounts), so a call requests it first.
fn read_all(how: u64, file: &File, into: &Path) -> Vec<u8> {
    let len = file.metadata().expect("stat").len() as usize;
    let mut seen = vec![0; len + 10];
    match how {
        0 => {
            let n = file.read_at(&mut seen, 0).expect("read");
            seen.truncate(n);
        }
        1 if len > 0 => {
            // SAFETY: a fresh mapping of what is inside the file, which nobody cuts meanwhile, unmapped and not used
            // after.
            unsafe {
                let map = mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0).expect("map");
                std::ptr::copy_nonoverlapping(map.cast::<u8>(), seen.as_mut_ptr(), len);
                munmap(map, len).expect("unmap");
            }
            seen.truncate(len);
        }
        2 => {
            let to = File::create(into).expect("create");
            let mut at = 0;
            while sendfile(&to, file, Some(&mut at), 1 << 20).expect("sendfile") > 0 {}
            return fs::read(into).expect("read");
        }
        _ => {
            let to = File::create(into).expect("create");
            std::io::copy(&mut &*file, &mut &to).expect("copy");
            return fs::read(into).expect("read");
        }
    }
    seen
}

/// Goal: whatever two mounts do to a file in turn, each of them reads its current contents, in every way that the
/// kernel offers, through open files that stay and through new ones (Promises S1, S3 across mounts). Method: random
/// changes on either mount, through open files that write and are closed, so that the kernels keep pages in between.
/// After each change one of the mounts reads, and the result is compared with a vector.
#[test]
fn random_changes_and_kept_pages() {
    let pair = Pair::new(1, &["--targets", "2"], &["--set", "hybrid.contention=off"]);
    let mounts = [&pair.a, &pair.b];
    for seed in 0..3 {
        println!("seed {seed}");
        let (mut random, name) = (Random::new(seed), format!("r{seed}"));
        let mut is = pattern(seed, 2 * PAGE + 77);
        fs::write(pair.a.join(&name), &is).expect("write");
        let mut kept = mounts.map(|mount| File::open(mount.join(&name)).expect("open"));
        for step in 0..250 {
            let (who, at) = (mounts[random.below(2) as usize], random.below(5 * PAGE as u64) as usize);
            let bytes = pattern(seed * 1000 + step, 1 + random.below(3 * PAGE as u64) as usize);
            let open = || File::options().write(true).open(who.join(&name)).expect("open");
            match random.below(6) {
                0 | 1 => {
                    open().write_all_at(&bytes, at as u64).expect("write");
                    is.resize(is.len().max(at + bytes.len()), 0);
                    is[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                2 => {
                    open().set_len(at as u64).expect("cut or extend");
                    is.resize(at, 0);
                }
                3 => {
                    let mut file = File::options().append(true).open(who.join(&name)).expect("open");
                    std::io::Write::write_all(&mut file, &bytes).expect("append");
                    is.extend(&bytes);
                }
                4 => {
                    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                    rustix::fs::fallocate(open(), flags, at as u64, bytes.len() as u64).expect("punch");
                    let end = is.len().min(at + bytes.len());
                    is[at.min(end)..end].fill(0);
                }
                _ => {}
            }
            let (reader, how) = (random.below(2) as usize, random.below(4));
            let (path, into) = (mounts[reader].join(&name), pair.place.path("copy"));
            if random.below(8) == 0 {
                kept[reader] = File::open(&path).expect("open");
            }
            let new = File::open(&path).expect("open");
            for file in [&kept[reader], &new] {
                std::io::Seek::rewind(&mut &*file).expect("seek");
                let seen = read_all(how, file, &into);
                assert!(seen == is, "step {step}, way {how}: {} of {} bytes", seen.len(), is.len());
            }
        }
    }
    assert!(mounts.iter().all(|mount| by_kernel(mount) > 100));
    pair.stop();
}

/// Goal: in shared mode too, an unchanged file is read without a request. Method: reads on both mounts, counted.
#[test]
fn warm_reads_beside_another_mount() {
    let pair = Pair::new(1, &["--targets", "2"], &[]);
    fs::write(pair.a.join("f"), vec![1; PAGES * PAGE]).expect("write");
    for mount in [&pair.a, &pair.b] {
        let path = mount.join("f");
        eventually("nobody writes", || {
            drop(File::open(&path).expect("open"));
            fs::read(&path).expect("read");
            let before = reads(mount);
            fs::read(&path).expect("read");
            reads(mount) == before
        });
    }
    // The attributes have a timeout as well: the kernel sends no request for them.
    let kept = File::open(pair.b.join("f")).expect("open");
    let asked = || counter(&pair.b, "getattr") + counter(&pair.b, "getattr_cached") + reads(&pair.b);
    eventually("they are, a while after they were taken back for the write", || {
        let before = asked();
        kept.metadata().expect("stat");
        asked() == before
    });
    let before = asked();
    for _ in 0..100 {
        kept.metadata().expect("stat");
        kept.read_exact_at(&mut [0; 5000], 3000).expect("read");
    }
    assert_eq!(asked(), before);
    // A file that is open for writing ends the timeout.
    let writer = open(pair.a.join("f"), OFlags::RDWR, Mode::empty()).expect("open");
    let before = by_kernel(&pair.b);
    fs::read(pair.b.join("f")).expect("read");
    assert_eq!(by_kernel(&pair.b), before, "somebody may write");
    drop(writer);
    pair.stop();
}

/// Goal: attributes that the kernel of one mount caches are those of the file when another mount's change has returned
/// (Promise S1 across mounts). Method: one mount sets times, modes and sizes of two files that grow. On the other mount
/// one thread looks at the first file by its name, and one at the second through an open file, which no look-up renews.
#[test]
fn attributes_follow_the_other_mount() {
    let pair = Pair::new(1, &["--targets", "2"], &[]);
    let [files, lookers_files] = [&pair.a, &pair.b].map(|mount| [mount.join("f0"), mount.join("f1")]);
    files.iter().for_each(|file| fs::write(file, b"").expect("write"));
    let (changed, grown, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let looked: [AtomicU64; 2] = Default::default();
    let looks = std::thread::scope(|scope| {
        let lookers: Vec<_> = (0..2)
            .map(|how| {
                let (b, changed, grown, is_over) = (&lookers_files[how], &changed, &grown, &is_over);
                let looked = &looked[how];
                scope.spawn(move || {
                    let (mut looks, file) = (0u64, File::open(b).expect("open"));
                    while !is_over.load(SeqCst) {
                        let (before, size) = (changed.load(SeqCst), grown.load(SeqCst));
                        let is = if how == 0 { fs::metadata(b) } else { file.metadata() }.expect("stat");
                        assert!(is.mtime() as u64 >= before, "way {how}: time {} after {before}", is.mtime());
                        assert!(is.len() >= size, "way {how}: size {} after {size}", is.len());
                        let mode = u64::from(is.mode() & 0o777);
                        let now = changed.load(SeqCst) + 1;
                        assert!(
                            before == 0 || now - before > 500 || (before..=now).any(|n| n % 512 == mode),
                            "way {how}: {mode:o}"
                        );
                        looks += 1;
                        looked.store(looks, SeqCst);
                    }
                    looks
                })
            })
            .collect();
        let begun = Instant::now();
        let mut n = 0u64;
        while (begun.elapsed() < STORY || looked.iter().any(|looks| looks.load(SeqCst) <= LOOKS))
            && !lookers.iter().any(|l| l.is_finished())
        {
            n += 1;
            for a in &files {
                let mode = Mode::from_raw_mode((n % 512) as u32);
                // While the file is open for writing, and for some time after that, attributes get no timeout.
                match n % 100 {
                    0 => File::options().write(true).open(a).expect("open").set_len(n).expect("extend"),
                    50 => {
                        let file = File::options().append(true).open(a).expect("open");
                        file.write_all_at(&[1; 60], 0).expect("append");
                    }
                    _ => {}
                }
                rustix::fs::chmod(a, mode).expect("chmod");
                let time = rustix::fs::Timespec { tv_sec: n as i64, tv_nsec: 0 };
                let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
                rustix::fs::utimensat(rustix::fs::CWD, a, &times, rustix::fs::AtFlags::empty()).expect("times");
            }
            changed.store(n, SeqCst);
            grown.store(n / 50 * 50, SeqCst);
            std::thread::sleep(Duration::from_micros(n % 7 * 500));
        }
        is_over.store(true, SeqCst);
        println!("{n} changes");
        lookers.into_iter().map(|l| l.join().expect("a looker")).collect::<Vec<_>>()
    });
    println!("looks {looks:?}");
    pair.stop();
}

/// Goal: a mount that was stopped returns no old data, neither bytes nor attributes, from its kernel's caches
/// (docs/SEMANTICS.md, Several mounts). Method: a file is read on one mount, whose process is then stopped. Another
/// mount writes the file, and its write has to wait. Once the write has returned, no read or stat on the stopped mount
/// returns the old state.
#[test]
fn a_stopped_mount_shows_nothing_old() {
    let place = Place::new();
    let server = place.server(&["--targets", "2"]);
    let (mut stopped, other) = (place.mount_at("a", &[]), place.mount_at("b", &[]));
    let (a, b) = (place.path("a").join("f"), place.path("b").join("f"));
    fs::write(&b, vec![1; PAGES * PAGE]).expect("write");
    let mut file = File::open(&a).expect("open");
    eventually("the kernel has it", || {
        file = File::open(&a).expect("open");
        fs::read(&a).expect("read");
        let before = reads(&place.path("a"));
        file.read_exact_at(&mut [0; PAGE], 0).expect("read");
        file.metadata().expect("stat");
        counter(&place.path("a"), "open_kernel_small_file") > 0 && reads(&place.path("a")) == before
    });
    let pause = stopped.pause();
    let written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looker = scope.spawn(|| {
            let mut looks = 0u64;
            loop {
                let before = written.load(SeqCst);
                let (mut byte, is) = ([0], file.read_at(&mut [0; 1], 0).and_then(|_| file.metadata()));
                let read = file.read_at(&mut byte, 5000);
                // Once the session is over, every call fails.
                let (Ok(is), Ok(_)) = (is, read) else { return looks };
                assert!(!before || (byte == [2] && is.len() == 5001), "after the write: {byte:?}, {} bytes", is.len());
                looks += 1;
                if before {
                    return looks;
                }
            }
        });
        let begun = Instant::now();
        let writer = File::options().write(true).open(&b).expect("open");
        writer.set_len(5000).expect("cut");
        writer.write_all_at(&[2], 5000).expect("write");
        written.store(true, SeqCst);
        println!("the other mount waited {:?}", begun.elapsed());
        std::thread::sleep(Duration::from_secs(1));
        drop(pause);
        let looks = looker.join().expect("nothing old");
        println!("{looks} looks");
        assert!(looks > 100, "the kernel has served some meanwhile");
    });
    drop(file);
    stopped.kill();
    other.stop();
    server.stop();
}

/// Goal: a file, a directory and a mount each have a setting that says who serves reads, and each of these settings
/// takes precedence over the next one (Promise S3). Method: `amphi layout set` and a tunable. Opens are counted by
/// reason, for a large file and a small one.
#[test]
fn the_kernel_cache_can_be_set() {
    let place = Place::new();
    let up = place.up(&["--set", "hybrid.large_read_bytes=64K"]);
    let mount = place.mount();
    let dir = mount.join("d");
    fs::create_dir(&dir).expect("mkdir");
    let set = |path: &Path, asked: &str| {
        let done = amphi().args(["layout", "set", "--kernel-cache", asked]).arg(path).status().expect("amphi");
        assert!(done.success());
    };
    let opens = |path: &Path, name: &str| {
        let before = counter(&mount, name);
        assert_eq!(fs::read(path).expect("read"), pattern(1, 100 << 10));
        counter(&mount, name) - before
    };
    let bytes = pattern(1, 100 << 10);
    let large = mount.join("large");
    fs::write(&large, &bytes).expect("write");
    assert_eq!(opens(&large, "open_kernel_unknown"), 1);
    let tune = |tunable: &str| {
        assert!(amphi().args(["set", "-m"]).arg(&mount).arg(tunable).status().expect("amphi").success());
    };
    set(&dir, "on");
    let inherits = dir.join("f");
    fs::write(&inherits, &bytes).expect("write");
    assert_eq!(opens(&inherits, "open_kernel_user"), 1, "of its directory");
    set(&inherits, "off");
    assert_eq!(opens(&inherits, "open_mount_off"), 1, "its own");
    set(&inherits, "auto");
    assert_eq!(opens(&inherits, "open_mount_large"), 1, "the mount has seen that it was read in one piece");
    let shown = amphi().args(["layout", "get"]).args([&dir, &inherits]).output().expect("amphi").stdout;
    let shown = String::from_utf8(shown).expect("text");
    assert!(
        shown
            .lines()
            .next()
            .is_some_and(|line| line.ends_with("mode auto kernel-cache on checksums auto consistency posix")),
        "{shown}"
    );
    assert!(shown.contains("d/f: layout growing,size=1M,count=4 mode auto kernel-cache auto"), "{shown}");
    tune("hybrid.kernel_cache=on");
    assert_eq!(opens(&large, "open_kernel_user"), 1, "of the mount");
    let reads_before = reads(&mount);
    assert_eq!(opens(&large, "open_kernel_user"), 1);
    assert_eq!(reads(&mount), reads_before, "its pages stay");
    set(&large, "off");
    assert_eq!(opens(&large, "open_mount_off"), 1, "the file counts before the mount");
    tune("hybrid.kernel_cache=off");
    let small = mount.join("small");
    fs::write(&small, b"1").expect("write");
    let before = counter(&mount, "open_mount_off");
    assert_eq!(fs::read(&small).expect("read"), b"1");
    assert_eq!(counter(&mount, "open_mount_off") - before, 1);
    set(&small, "on");
    let before = counter(&mount, "open_kernel_user");
    assert_eq!(fs::read(&small).expect("read"), b"1");
    assert_eq!(counter(&mount, "open_kernel_user") - before, 1);
    up.stop();
}

/// Goal: the kernel serves a large file without a known pattern from its first open on. Small calls cause few requests,
/// which bypass the cache of the mount, so it keeps no copy. The second pass causes none (docs/HYBRID.md, "Who serves
/// reads"). Method: a file that was written past all caches, read in 4 KiB through one descriptor.
#[test]
fn a_descriptor_opened_first_is_served_by_the_kernel() {
    const BYTES: usize = 8 << 20;
    let place = Place::new();
    let up = place.up(&[]);
    let (mount, path, bytes) = (place.mount(), place.mount().join("f"), pattern(3, BYTES));
    let direct = File::options().write(true).create(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path);
    direct.expect("create").write_all_at(&bytes, 0).expect("write");
    let mut file = File::open(&path).expect("open");
    eventually("nobody writes any more", || {
        file = File::open(&path).expect("open");
        counter(&mount, "open_kernel_unknown") > 0
    });
    let pass = || {
        let mut page = vec![0; PAGE];
        for at in (0..BYTES).step_by(PAGE) {
            file.read_exact_at(&mut page, at as u64).expect("read");
            assert!(page == bytes[at..at + PAGE], "at {at}");
        }
    };
    pass();
    let asked = reads(&mount);
    assert!(asked < (BYTES / PAGE / 10) as u64, "{asked} requests for {} calls", BYTES / PAGE);
    assert!(counter(&mount, "read_direct_kernel") > 0);
    assert_eq!(counter(&mount, "read_buffered_default"), 0);
    pass();
    assert_eq!(reads(&mount), asked, "the kernel has it all");
    up.stop();
}

/// Goal: if a program is known to read in large pieces, the mount serves all files of that program, but not the files
/// of other programs. The mount does the same for files of a directory that are read in large pieces, and for programs
/// that announce it. A wrong guess is not repeated (docs/HYBRID.md, "Who serves reads"). Method: `dd` and `cat` on
/// files of separate directories. One directory has a setting by which the mount serves its reads and so learns how its
/// files are read.
#[test]
fn a_program_known_for_large_reads_is_served_by_the_mount() {
    const BYTES: usize = 2 << 20;
    let place = Place::new();
    let up = place.up(&["--set", "hybrid.large_read_bytes=256K"]);
    let mount = place.mount();
    for dir in ["seen", "b", "c", "d", "e"] {
        fs::create_dir(mount.join(dir)).expect("mkdir");
        ["f", "g"].iter().for_each(|name| fs::write(mount.join(dir).join(name), vec![1; BYTES]).expect("write"));
    }
    // A mount knows in which directory it has looked a file up.
    up.stop();
    let up = place.up(&["--set", "hybrid.large_read_bytes=256K"]);
    let set = |asked: &str| {
        let mut layout = amphi();
        layout.args(["layout", "set", "--kernel-cache", asked]).arg(mount.join("seen/f"));
        assert!(layout.status().expect("amphi").success());
    };
    let opens = |reason: &str, program: &[&str], file: &str, advise: Option<&str>| {
        let before = counter(&mount, reason);
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let path = mount.join(file);
        match program[0] {
            "dd" => command.arg(format!("if={}", path.display())),
            _ => command.arg(&path),
        };
        command.env_remove("AMPHI_ADVISE").envs(advise.map(|said| ("AMPHI_ADVISE", said)));
        assert!(command.status().expect("it runs").success());
        counter(&mount, reason) - before
    };
    let (large, small) = (&["dd", "bs=1M"][..], &["dd", "bs=64K"][..]);
    assert_eq!(opens("open_kernel_unknown", large, "b/f", None), 1, "nothing is known of it");
    assert_eq!(opens("open_mount_advised", large, "b/f", Some("large")), 1);
    set("off");
    assert_eq!(opens("open_mount_off", large, "seen/f", None), 1);
    set("auto");
    assert_eq!(opens("open_mount_large", large, "seen/f", None), 1);
    assert_eq!(opens("open_mount_large", large, "c/f", None), 1, "by the program");
    assert_eq!(opens("open_kernel_advised", large, "c/g", Some("small")), 1);
    assert_eq!(opens("open_kernel_unknown", &["cat"], "d/f", None), 1, "another program");
    assert_eq!(opens("open_mount_large", &["cat"], "seen/g", None), 1, "by the directory");
    assert_eq!(opens("open_kernel_small_reads", &["cat"], "c/g", None), 1, "which was wrong");
    assert_eq!(opens("open_mount_large", small, "e/f", None), 1, "by the program");
    assert_eq!(opens("open_kernel_small_reads", small, "e/g", None), 1, "which was wrong");
    up.stop();
}

/// Goal: a reader whose `read` the kernel serves sees a record once its append on another mount has returned, also
/// while that mount continues appending. Method: one mount appends records and counts them. The other mount reads the
/// last counted record, through a file that stays open, and must never find the end of the file before it.
#[test]
fn records_are_read_as_soon_as_they_are_appended() {
    const RECORD: usize = 100;
    let pair = Pair::new(1, &[], &[]);
    let (a, b) = (pair.a.join("log"), pair.b.join("log"));
    fs::write(&a, [1; RECORD]).expect("write");
    let mut file = File::open(&b).expect("open");
    eventually("the kernel serves it", || {
        file = File::open(&b).expect("open");
        fs::read(&b).expect("read");
        let before = reads(&pair.b);
        file.read_exact_at(&mut [0; RECORD], 0).expect("read");
        counter(&pair.b, "open_kernel_small_file") > 0 && reads(&pair.b) == before
    });
    let records = AtomicU64::new(1);
    let is_over = AtomicBool::new(false);
    let (looks, short) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut looks, mut short) = (0u64, 0u64);
            while !is_over.load(SeqCst) {
                let last = records.load(SeqCst) - 1;
                let mut got = [0; RECORD];
                let n = file.read_at(&mut got, last * RECORD as u64).expect("read");
                let end = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).expect("seek");
                assert!(end >= (last + 1) * RECORD as u64, "an end of before: {end}");
                looks += 1;
                short += u64::from(n < RECORD || got != [1; RECORD]);
            }
            (looks, short)
        });
        let log = File::options().append(true).open(&a).expect("open");
        let begun = Instant::now();
        let mut n = 1;
        while begun.elapsed() < Duration::from_secs(10) {
            rustix::io::write(&log, &[1; RECORD]).expect("append");
            n += 1;
            records.store(n, SeqCst);
            if n.is_multiple_of(3) {
                std::thread::sleep(Duration::from_micros(n % 11 * 100));
            }
        }
        is_over.store(true, SeqCst);
        reader.join().expect("a reader")
    });
    println!("{} records, {looks} looks, {short} short", records.load(SeqCst));
    assert_eq!(short, 0);
    drop(file);
    pair.stop();
}
