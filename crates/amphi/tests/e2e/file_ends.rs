//! The ends of files, their data and holes: appends by each flag, sizes that only grow, lseek.

use crate::harness::Place;
use crate::two_mounts::Pair;
use rustix::fs::{Mode, OFlags, SeekFrom, fcntl_getfl, fcntl_setfl, fstat, ftruncate, open, seek};
use rustix::io::{Errno, ReadWriteFlags, pwrite, pwritev2, write};
use std::fs;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// Linux has this flag from 6.9 on; older kernels refuse it.
const NOAPPEND: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x20);

fn opened(path: &Path, flags: OFlags) -> OwnedFd {
    open(path, flags | OFlags::RDWR | OFlags::CREATE, Mode::from_raw_mode(0o644)).expect("open")
}

fn append_elsewhere(path: &Path, bytes: &[u8]) {
    assert_eq!(write(opened(path, OFlags::APPEND), bytes), Ok(bytes.len()));
}

fn write_with(fd: impl AsFd, bytes: &[u8], offset: u64, flags: ReadWriteFlags) -> Result<usize, Errno> {
    pwritev2(fd, &[IoSlice::new(bytes)], offset, flags)
}

/// Appends through `here` by every flag, behind bytes that `there` has appended meanwhile. `there` is the same file on
/// another mount, or on this one.
fn appends_by_flags(here: &Path, there: &Path) {
    let is = |expected: &[u8], what: &str| {
        for path in [here, there] {
            let found = fs::read(path).expect("read");
            assert!(found == expected, "{what}: {:?}", String::from_utf8_lossy(&found));
        }
    };
    for opened_with in [OFlags::empty(), OFlags::DIRECT] {
        fs::write(here, b"12345678").expect("a new file");
        let fd = opened(here, opened_with);
        let flags = fcntl_getfl(&fd).expect("flags");
        fcntl_setfl(&fd, flags | OFlags::APPEND).expect("set");
        assert_eq!(write(&fd, b"ab"), Ok(2));
        append_elsewhere(there, b"cd");
        assert_eq!(write(&fd, b"ef"), Ok(2));
        is(b"12345678abcdef", "O_APPEND by F_SETFL");
        append_elsewhere(there, b"gh");
        assert_eq!(pwrite(&fd, b"ij", 0), Ok(2), "goes to the end on Linux");
        is(b"12345678abcdefghij", "pwrite with O_APPEND");
        fcntl_setfl(&fd, flags).expect("set");
        assert_eq!(pwrite(&fd, b"Z", 0), Ok(1));
        is(b"Z2345678abcdefghij", "pwrite without it");
        assert_eq!(write_with(&fd, b"kl", 3, ReadWriteFlags::APPEND), Ok(2));
        append_elsewhere(there, b"mn");
        assert_eq!(write_with(&fd, b"op", 3, ReadWriteFlags::APPEND), Ok(2));
        is(b"Z2345678abcdefghijklmnop", "RWF_APPEND");
        // A write at an offset which this mount's kernel takes for the end is not treated as a write to the end.
        append_elsewhere(there, b"qr");
        assert_eq!(pwrite(&fd, b"OP", 22), Ok(2));
        assert_eq!(pwrite(&fd, b"QR", 24), Ok(2));
        is(b"Z2345678abcdefghijklmnOPQR", "pwrite at an end that was");
        drop(fd);
        let fd = opened(here, opened_with | OFlags::APPEND);
        append_elsewhere(there, b"st");
        match write_with(&fd, b"xy", 1, NOAPPEND) {
            Ok(written) => {
                assert_eq!(written, 2);
                is(b"Zxy45678abcdefghijklmnOPQRst", "RWF_NOAPPEND");
            }
            Err(e) => assert!(e == Errno::OPNOTSUPP || e == Errno::INVAL, "{e}"),
        }
        assert_eq!(pwrite(&fd, b"uv", 1), Ok(2));
        assert!(fs::read(there).expect("read").ends_with(b"OPQRstuv"), "and the next one appends");
        // The last record is written anew: its offset was the end before.
        if write_with(&fd, b"UV", 28, NOAPPEND) == Ok(2) {
            is(b"Zxy45678abcdefghijklmnOPQRstUV", "RWF_NOAPPEND at a former end");
        }
    }
}

/// Two threads for each path append lines to one file with `RWF_APPEND`, and a third one with `O_APPEND`. All lines
/// must stay.
fn lines_appended_at_once(paths: [&Path; 2]) {
    const LINES: usize = 150;
    fs::write(paths[0], b"").expect("a new file");
    std::thread::scope(|scope| {
        for who in 0..6 {
            let path = paths[who % 2];
            scope.spawn(move || {
                let by_flag = who >= 4;
                let fd = opened(path, if by_flag { OFlags::APPEND } else { OFlags::empty() });
                for i in 0..LINES {
                    let line = format!("{who} {i:04}{}\n", ".".repeat(i % 90));
                    let written = match by_flag {
                        true => write(&fd, line.as_bytes()),
                        false => write_with(&fd, line.as_bytes(), 0, ReadWriteFlags::APPEND),
                    };
                    assert_eq!(written, Ok(line.len()));
                }
            });
        }
    });
    for path in paths {
        let text = fs::read_to_string(path).expect("read");
        for who in 0..6 {
            let head = format!("{who} ");
            let mine: Vec<&str> = text.lines().filter(|line| line.starts_with(&head)).collect();
            let all: Vec<String> = (0..LINES).map(|i| format!("{who} {i:04}{}", ".".repeat(i % 90))).collect();
            assert_eq!(mine, all, "the lines of {who} in their order");
        }
        assert_eq!(text.lines().count(), 6 * LINES);
    }
}

/// Goal: Promise S4: the flags of the call decide where a write goes, not those of the open: `F_SETFL`, `RWF_APPEND`,
/// `RWF_NOAPPEND`. Method: one mount, which appends through other descriptors meanwhile.
#[test]
fn appends_by_the_flags_of_the_call() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("f");
    appends_by_flags(&path, &path);
    lines_appended_at_once([&path, &path]);
    up.stop();
    place.fsck();
}

/// See `appends_by_the_flags_of_the_call`.
fn appends_by_the_flags_of_the_call_on_two_mounts(servers: usize) {
    let pair = Pair::new(servers, &["--targets", "2"], &[]);
    let (here, there) = (pair.a.join("f"), pair.b.join("f"));
    appends_by_flags(&here, &there);
    appends_by_flags(&there, &here);
    lines_appended_at_once([&here, &there]);
    pair.stop();
}

/// As on one mount, with appends by another mount in between.
#[test]
fn appends_by_flags_on_two_mounts_of_one_server() {
    appends_by_the_flags_of_the_call_on_two_mounts(1);
}

/// The same with three servers.
#[test]
fn appends_by_flags_on_two_mounts_of_three_servers() {
    appends_by_the_flags_of_the_call_on_two_mounts(3);
}

/// Looks that showed less than one before, of four readers by path and by descriptor, while `writers` extend the file.
fn sizes_that_went_back(paths: [&Path; 2], writers: usize, writes: usize) -> usize {
    fs::write(paths[0], b"").expect("a new file");
    let (is_over, back) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for k in 0..4 {
            let (path, is_over, back) = (paths[k % 2], &is_over, &back);
            scope.spawn(move || {
                let (fd, mut last) = (opened(path, OFlags::empty()), 0);
                while !is_over.load(SeqCst) {
                    let size = if k < 2 {
                        fs::metadata(path).expect("stat").len()
                    } else {
                        fstat(&fd).expect("fstat").st_size as u64
                    };
                    back.fetch_add(usize::from(size < last), SeqCst);
                    last = size.max(last);
                }
            });
        }
        let all: Vec<_> = (0..writers)
            .map(|k| {
                let path = paths[k % 2];
                scope.spawn(move || {
                    let fd = opened(path, if writers > 1 { OFlags::APPEND } else { OFlags::empty() });
                    for i in 1..=writes {
                        assert_eq!(write(&fd, &[7; 50]), Ok(50));
                        let size = fstat(&fd).expect("fstat").st_size as usize;
                        assert!(size >= 50 * i, "{size} behind own writes up to {}", 50 * i);
                    }
                })
            })
            .collect();
        all.into_iter().for_each(|writer| writer.join().expect("a writer"));
        is_over.store(true, SeqCst);
    });
    back.into_inner()
}

/// Goal: Promise S1: a file that only grows never appears shorter than before, to any observer. Method: one writer,
/// then four, with four observers.
#[test]
fn a_size_never_goes_back() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("f");
    assert_eq!(sizes_that_went_back([&path, &path], 1, 4000), 0, "one writer");
    assert_eq!(sizes_that_went_back([&path, &path], 4, 800), 0, "four writers");
    up.stop();
    place.fsck();
}

/// The same on two mounts.
#[test]
fn a_size_never_goes_back_on_two_mounts() {
    let pair = Pair::new(1, &["--targets", "2"], &[]);
    let (a, b) = (pair.a.join("f"), pair.b.join("f"));
    assert_eq!(sizes_that_went_back([&a, &b], 1, 500), 0, "one writer");
    assert_eq!(sizes_that_went_back([&a, &b], 4, 100), 0, "four writers");
    pair.stop();
}

/// Goal: data and holes are whole blocks, as on other file systems, also where a write ends in the middle of the last
/// one. Method: short writes before and after a truncate. All data and holes of a file of 2,000 runs over several
/// objects are listed in one pass, twice.
#[test]
fn data_and_holes() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("f");
    let f = opened(&path, OFlags::empty());
    ftruncate(&f, 122_880).expect("truncate");
    assert_eq!(pwrite(&f, &[7; 100], 122_664), Ok(100));
    assert_eq!(seek(&f, SeekFrom::Hole(122_664)), Ok(122_880), "the last block is data up to its end");
    assert_eq!(seek(&f, SeekFrom::Data(122_800)), Ok(122_800));
    assert_eq!(seek(&f, SeekFrom::Hole(0)), Ok(0));
    ftruncate(&f, 130_000).expect("truncate");
    assert_eq!(seek(&f, SeekFrom::Hole(122_664)), Ok(122_880));
    assert_eq!(seek(&f, SeekFrom::Data(122_880)), Err(Errno::NXIO));
    ftruncate(&f, 0).expect("truncate");
    let runs: Vec<u64> = (0..2000).map(|i| i * 24_576 + 4096).collect();
    for at in &runs {
        assert_eq!(pwrite(&f, &[7; 10], *at), Ok(10));
    }
    let end = runs[1999] + 10;
    for _ in 0..2 {
        let (mut at, mut found) = (0, Vec::new());
        while let Ok(data) = seek(&f, SeekFrom::Data(at)) {
            at = seek(&f, SeekFrom::Hole(data)).expect("a hole");
            assert_eq!(at, (data + 4096).min(end));
            found.push(data);
        }
        assert_eq!(found, runs);
    }
    drop(f);
    up.stop();
    place.fsck();
}
