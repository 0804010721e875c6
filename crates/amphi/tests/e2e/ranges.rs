//! `fallocate` and `copy_file_range` through the mount: ranges, modes and open files that are wrong, with the errno
//! that Linux documents.

use crate::harness::{Place, pattern, rerrno};
use rustix::fs::{FallocateFlags, Mode, OFlags, copy_file_range, fallocate, open, stat};
use rustix::pipe::pipe;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

const LAST: u64 = i64::MAX as u64;

fn opened(path: &Path, flags: OFlags) -> OwnedFd {
    open(path, flags, Mode::from_raw_mode(0o644)).expect("open")
}

/// The errno of a raw call; lengths and flags that no safe call would pass.
fn raw(result: i64) -> i32 {
    assert_eq!(result, -1, "the call must fail");
    std::io::Error::last_os_error().raw_os_error().expect("an OS error")
}

/// Goal: `fallocate` refuses modes that do not exist or do not go together, ranges that are empty or too large, and
/// open files that cannot be written, and changes nothing. Supported modes succeed, and leave the file with the size
/// that Linux requires. Method: a table of calls on a file whose bytes and size are compared after each.
#[test]
fn fallocate_and_its_errors() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("f");
    let bytes = pattern(1, 20_000);
    fs::write(&path, &bytes).expect("write");
    let (f, read_only) = (opened(&path, OFlags::RDWR), opened(&path, OFlags::RDONLY));
    let (_, pipe_end) = pipe().expect("pipe");
    let keep = FallocateFlags::KEEP_SIZE;
    let punch = FallocateFlags::PUNCH_HOLE;
    let zero = FallocateFlags::ZERO_RANGE;
    let none = FallocateFlags::empty();
    let table = [
        (&f, FallocateFlags::from_bits_retain(0x80), 0, 4096, libc::EOPNOTSUPP),
        (&f, punch, 0, 4096, libc::EOPNOTSUPP),
        (&f, punch | zero | keep, 0, 4096, libc::EOPNOTSUPP),
        (&f, FallocateFlags::COLLAPSE_RANGE, 0, 4096, libc::EOPNOTSUPP),
        (&f, FallocateFlags::INSERT_RANGE, 0, 4096, libc::EOPNOTSUPP),
        (&f, FallocateFlags::UNSHARE_RANGE, 0, 4096, libc::EOPNOTSUPP),
        (&f, none, 0, 0, libc::EINVAL),
        (&f, punch | keep, 4096, 0, libc::EINVAL),
        (&f, none, LAST, 1, libc::EFBIG),
        (&f, none, LAST - 4096, 8192, libc::EFBIG),
        (&f, punch | keep, LAST - 4096, 8192, libc::EFBIG),
        (&f, zero, LAST - 4096, 8192, libc::EFBIG),
        (&read_only, none, 0, 4096, libc::EBADF),
        (&read_only, punch | keep, 0, 4096, libc::EBADF),
        (&pipe_end, none, 0, 4096, libc::ESPIPE),
    ];
    for (at, (file, mode, offset, len, errno)) in table.into_iter().enumerate() {
        assert_eq!(rerrno(fallocate(file, mode, offset, len)), errno, "row {at}");
        assert!(fs::read(&path).expect("read") == bytes, "row {at} changed the file");
    }
    for (offset, len) in [(-1, 4096), (0, -1), (-4096, 8192)] {
        // SAFETY: numbers alone.
        let result = unsafe { libc::fallocate(f.as_raw_fd(), 0, offset, len) };
        assert_eq!(raw(result.into()), libc::EINVAL, "{offset} {len}");
    }
    let size = |expected: u64| assert_eq!(stat(&path).expect("stat").st_size as u64, expected);
    fallocate(&f, keep, 0, 1 << 20).expect("room behind the end");
    size(20_000);
    fallocate(&f, zero | keep, 19_000, 9_000).expect("zeros");
    size(20_000);
    fallocate(&f, punch | keep, 1 << 20, 4096).expect("a hole behind the end");
    size(20_000);
    fallocate(&f, none, 100, 30_000).expect("a longer file");
    size(30_100);
    fallocate(&f, zero, 30_000, 1_000).expect("a longer one, of zeros");
    size(31_000);
    let mut expected = bytes;
    expected.resize(31_000, 0);
    expected[19_000..].fill(0);
    assert!(fs::read(&path).expect("read") == expected);
    up.stop();
    place.fsck();
}

/// Goal: `copy_file_range` refuses flags, open files of the wrong kind, ranges that overlap in one file or do not fit a
/// file, and another file system, and changes nothing. At the end of the file it copies the bytes that exist. Method: a
/// table of calls, then copies that are right.
#[test]
fn copy_file_range_and_its_errors() {
    let place = Place::new();
    let up = place.up(&[]);
    let (from_path, to_path) = (place.mount().join("from"), place.mount().join("to"));
    let (bytes, old) = (pattern(1, 500_000), pattern(2, 100_000));
    fs::write(&from_path, &bytes).expect("write");
    fs::write(&to_path, &old).expect("write");
    fs::write(place.path("elsewhere"), &bytes).expect("write");
    let (from, to) = (opened(&from_path, OFlags::RDONLY), opened(&to_path, OFlags::RDWR));
    let same = opened(&from_path, OFlags::RDWR);
    let write_only = opened(&from_path, OFlags::WRONLY);
    let append = opened(&to_path, OFlags::WRONLY | OFlags::APPEND);
    let dir = opened(&place.mount(), OFlags::RDONLY | OFlags::DIRECTORY);
    let elsewhere = opened(&place.path("elsewhere"), OFlags::RDWR);
    let (pipe_out, pipe_in) = pipe().expect("pipe");
    let copy = |from: &OwnedFd, at: u64, to: &OwnedFd, into: u64, len: usize| {
        let (mut at, mut into) = (at, into);
        copy_file_range(from, Some(&mut at), to, Some(&mut into), len)
    };
    let table = [
        (&write_only, 0, &to, 0, 100, libc::EBADF),
        (&from, 0, &from, 300_000, 100, libc::EBADF),
        (&from, 0, &append, 0, 100, libc::EBADF),
        (&dir, 0, &to, 0, 100, libc::EISDIR),
        (&pipe_out, 0, &to, 0, 100, libc::EINVAL),
        (&from, 0, &pipe_in, 0, 100, libc::EINVAL),
        (&same, 0, &same, 50, 100, libc::EINVAL),
        (&same, 1000, &same, 901, 100, libc::EINVAL),
        (&from, 1000, &same, 1000, 1, libc::EINVAL),
        (&from, 0, &to, LAST, 100, libc::EFBIG),
        (&elsewhere, 0, &to, 0, 100, libc::EXDEV),
        (&from, 0, &elsewhere, 0, 100, libc::EXDEV),
    ];
    for (row, (from, at, to, into, len, errno)) in table.into_iter().enumerate() {
        assert_eq!(rerrno(copy(from, at, to, into, len)), errno, "row {row}");
        assert!(fs::read(&to_path).expect("read") == old, "row {row} changed the target");
        assert!(fs::read(&from_path).expect("read") == bytes, "row {row} changed the source");
    }
    let (mut at, mut into) = (0i64, 0i64);
    // SAFETY: the offsets live as long as the call.
    let result = unsafe { libc::copy_file_range(from.as_raw_fd(), &mut at, to.as_raw_fd(), &mut into, 100, 1) };
    assert_eq!(raw(result as i64), libc::EINVAL, "flags");
    assert!(fs::read(&to_path).expect("read") == old);
    assert_eq!(copy(&from, 500_000, &to, 0, 100).expect("at the end"), 0);
    assert_eq!(copy(&from, LAST - 10, &to, 0, 100).expect("far behind the end"), 0);
    assert_eq!(copy(&from, 0, &to, 0, 0).expect("nothing"), 0);
    assert_eq!(copy(&from, 499_990, &to, 99_999, 100).expect("up to the end"), 10);
    assert_eq!(copy(&same, 0, &same, 100, 100).expect("side by side"), 100);
    // Writes that are longer than requested ahead, off by some bytes, or behind the end, which leaves a hole.
    assert_eq!(copy(&from, 7, &to, 200_001, 300_000).expect("a large one"), 300_000);
    let mut source = bytes;
    source.copy_within(0..100, 100);
    let mut expected = old;
    expected.truncate(99_999);
    expected.extend(&source[499_990..]);
    expected.resize(200_001, 0);
    expected.extend(&source[7..300_007]);
    assert!(fs::read(&to_path).expect("read") == expected);
    assert!(fs::read(&from_path).expect("read") == source);
    up.stop();
    place.fsck();
}
