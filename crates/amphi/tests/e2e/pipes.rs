//! Pipes and sockets with names on the mount, and pipes to and from its files (`sendfile`, `splice`).

use crate::harness::{Place, pattern, rerrno};
use crate::two_mounts::Pair;
use rustix::fs::{CWD, FileType, Mode, OFlags, fchmod, fstat, mknodat, open, sendfile};
use rustix::io::{Errno, read, write};
use rustix::pipe::{SpliceFlags, pipe, splice};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

fn opened(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    open(path, flags, Mode::empty())
}

/// Goal: a fifo on the mount is a pipe between the programs that open it. Opens wait for the other side, or with
/// `O_NONBLOCK` do not (ENXIO for a writer without a reader). Bytes arrive in order, the reader sees the end, and a
/// write without a reader gives EPIPE. The attributes of a fifo are those of any file. A socket with a name there
/// works. Method: two threads, a table of flags, a name that is moved and removed while it is open.
#[test]
fn fifos_and_sockets() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("fifo");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o640), 0).expect("mknod");
    assert_eq!(rerrno(opened(&path, OFlags::WRONLY | OFlags::NONBLOCK)), libc::ENXIO, "nobody reads");
    let whole = pattern(1, 300_000);
    std::thread::scope(|s| {
        // Each open waits for the other end.
        let writer = s.spawn(|| {
            let mut fifo = File::options().write(true).open(&path).expect("open to write");
            fifo.write_all(&whole).expect("write");
        });
        let mut got = Vec::new();
        File::open(&path).expect("open to read").read_to_end(&mut got).expect("read to the end");
        writer.join().expect("the writer");
        assert!(got == whole, "{} bytes", got.len());
    });
    let reader = opened(&path, OFlags::RDONLY | OFlags::NONBLOCK).expect("without a writer");
    let mut buf = [0; 100];
    assert_eq!(read(&reader, &mut buf).expect("nobody writes"), 0);
    let writer = opened(&path, OFlags::WRONLY | OFlags::NONBLOCK).expect("somebody reads");
    assert_eq!(rerrno(read(&reader, &mut buf)), libc::EAGAIN);
    let moved = place.mount().join("moved");
    fs::rename(&path, &moved).expect("rename");
    let second = opened(&moved, OFlags::WRONLY | OFlags::NONBLOCK).expect("the same pipe");
    assert_eq!((write(&writer, b"one ").expect("write"), write(&second, b"two").expect("write")), (4, 3));
    fs::remove_file(&moved).expect("unlink");
    assert_eq!((read(&reader, &mut buf).expect("read"), &buf[..7]), (7, &b"one two"[..]));
    drop((reader, second));
    // The test harness ignores SIGPIPE, as all Rust programs do.
    assert_eq!(rerrno(write(&writer, b"x")), libc::EPIPE);
    drop(writer);
    let socket = place.mount().join("socket");
    let listener = UnixListener::bind(&socket).expect("a socket with a name");
    let mut near = UnixStream::connect(&socket).expect("connects");
    let (mut far, _) = listener.accept().expect("accepts");
    near.write_all(b"hello").expect("write");
    let mut hello = [0; 5];
    far.read_exact(&mut hello).expect("read");
    assert_eq!(&hello, b"hello");
    assert_eq!(rerrno(opened(&socket, OFlags::RDWR)), libc::ENXIO, "a socket is not opened");
    drop((listener, near, far));
    up.stop();
    place.fsck();
}

/// Makes a pipe at `path`, opens it, removes it by the name `by`, and checks its attributes.
fn removed_pipe(path: &Path, by: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o640), 0).expect("mknod");
    let end = opened(path, OFlags::RDWR | OFlags::NONBLOCK).expect("open");
    let before = fstat(&end).expect("fstat");
    fs::remove_file(by).expect("unlink");
    let after = fstat(&end).expect("fstat after the removal");
    assert_eq!((after.st_ino, after.st_mode, after.st_nlink), (before.st_ino, before.st_mode, 0));
    fchmod(&end, Mode::from_raw_mode(0o600)).expect("fchmod");
    assert_eq!(fstat(&end).expect("fstat").st_mode & 0o7777, 0o600);
    assert_eq!((write(&end, b"still").expect("write"), read(&end, &mut [0; 10]).expect("read")), (5, 5));
}

/// Goal: a pipe that was removed while it is open continues, with its attributes and without names (Promise S6).
/// Method: `fstat` and `fchmod` of an open end, by a mount in sole mode, and by one of two mounts, of which either
/// removes it.
#[test]
fn removed_pipes_go_on() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("fifo");
    removed_pipe(&path, &path);
    up.stop();
    let pair = Pair::new(1, &[], &[]);
    for by in [&pair.a, &pair.b] {
        removed_pipe(&pair.a.join("fifo"), &by.join("fifo"));
    }
    pair.stop();
}

/// Reads everything from a descriptor, on a thread of its own.
fn drain(from: OwnedFd) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut got = Vec::new();
        File::from(from).read_to_end(&mut got).expect("read to the end");
        got
    })
}

/// Sends `len` bytes from `offset` on into a pipe, by `sendfile` or by `splice`. Returns what arrives.
fn out_of(file: &File, offset: u64, len: usize, splices: bool) -> Vec<u8> {
    let (end, into) = pipe().expect("pipe");
    let got = drain(end);
    let (mut at, mut left) = (offset, len);
    while left > 0 {
        let n = match splices {
            true => splice(file, Some(&mut at), &into, None, left, SpliceFlags::empty()).expect("splice"),
            false => sendfile(&into, file, Some(&mut at), left).expect("sendfile"),
        };
        if n == 0 {
            break;
        }
        left -= n;
    }
    drop(into);
    got.join().expect("the reader")
}

fn file(path: &Path, flags: OFlags) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).custom_flags(flags.bits() as i32).open(path).expect("open")
}

/// Goal: `sendfile` and `splice` have the same effect on a file of the mount as reads and writes, at odd offsets, up to
/// the end, by open files of either kind, even right after the bytes were changed in any way. A file opened to append
/// gives EINVAL. Method: pipes, local files and files of the mount at both ends, compared.
#[test]
fn files_through_pipes() {
    let place = Place::new();
    let up = place.up(&["--targets", "2", "--cache", "16M"]);
    let path = place.mount().join("f");
    let mut whole = pattern(1, 5 << 20);
    fs::write(&path, &whole).expect("write");
    let len = whole.len();
    for (round, flags) in [OFlags::empty(), OFlags::DIRECT].into_iter().enumerate() {
        let f = file(&path, flags);
        for splices in [false, true] {
            for (at, n) in [(0, 10), (7, 100_000), (4095, 4098), (len - 100, 1000), (1 << 20, 3 << 20), (len, 10)] {
                let expected = &whole[at..len.min(at + n)];
                assert!(out_of(&f, at as u64, n, splices) == expected, "{flags:?}, {n} from {at}, splice: {splices}");
            }
            // Small, in the window, large; by this open file and by one of the other kind.
            for (i, n) in [3, 70_000, 3 << 20].into_iter().enumerate() {
                let bytes = pattern((round * 10 + i) as u64 + 2, n);
                let other = file(&path, OFlags::DIRECT - flags);
                (if i % 2 == 0 { &f } else { &other }).write_all_at(&bytes, 1001).expect("write");
                whole[1001..1001 + n].copy_from_slice(&bytes);
                assert!(out_of(&f, 0, len, splices) == whole, "{flags:?}, after a write of {n}, splice: {splices}");
            }
        }
        // Into files: of the mount from local storage and back, and from a pipe.
        let (local, to) = (place.path("local"), place.mount().join("to"));
        fs::write(&local, &whole).expect("write");
        let _ = fs::remove_file(&to);
        let t = file(&to, flags);
        let source = File::open(&local).expect("open");
        let mut sent = 0;
        while sent < len {
            sent += sendfile(&t, &source, None, len - sent).expect("sendfile");
        }
        assert!(fs::read(&to).expect("read") == whole, "{flags:?}, sendfile into the mount");
        let back = file(&place.path("back"), OFlags::empty());
        sent = 0;
        while sent < len {
            sent += sendfile(&back, &t, Some(&mut (sent as u64)), len - sent).expect("sendfile");
        }
        assert!(fs::read(place.path("back")).expect("read") == whole, "{flags:?}, sendfile out of the mount");
        for at in [0u64, 333] {
            let bytes = pattern(at + 50, 200_001);
            splice_in(&t, at, &bytes);
            let mut got = vec![0; bytes.len()];
            file(&to, OFlags::DIRECT - flags).read_exact_at(&mut got, at).expect("read");
            assert!(got == bytes, "{flags:?}, splice at {at}");
        }
    }
    let append = File::options().append(true).open(&path).expect("open");
    let (end, mut into) = pipe().map(|(end, into)| (end, File::from(into))).expect("pipe");
    into.write_all(b"x").expect("write");
    assert_eq!(splice(&end, None, &append, None, 1, SpliceFlags::empty()), Err(Errno::INVAL));
    let only_read = File::open(&path).expect("open");
    assert_eq!(splice(&end, None, &only_read, None, 1, SpliceFlags::empty()), Err(Errno::BADF));
    up.stop();
    place.fsck();
}

fn splice_in(to: &File, at: u64, bytes: &[u8]) {
    let (end, into) = pipe().expect("pipe");
    std::thread::scope(|s| {
        s.spawn(move || File::from(into).write_all(bytes).expect("write"));
        let (mut at, mut done) = (at, 0);
        while done < bytes.len() {
            let n = splice(end.as_fd(), None, to, Some(&mut at), bytes.len() - done, SpliceFlags::empty());
            done += n.expect("splice");
        }
    });
}

/// Goal: bytes that one mount has sent through a pipe are read again after another mount has changed them (Promise S1),
/// so the kernel's pages are not used any more. Method: one mount sends a file again and again while the other one
/// writes it in between, small and large, buffered and direct.
#[test]
fn pipes_show_what_other_mounts_wrote() {
    let pair = Pair::new(1, &["--targets", "2"], &["--cache", "16M"]);
    let mut whole = pattern(1, 1 << 20);
    fs::write(pair.a.join("f"), &whole).expect("write");
    let reader = file(&pair.b.join("f"), OFlags::empty());
    for round in 0..24usize {
        let splices = round % 2 == 1;
        assert!(out_of(&reader, 0, whole.len(), splices) == whole, "round {round}");
        let bytes = pattern(round as u64 + 7, [5, 4096, 60_000, 900_000][round % 4]);
        let flags = if round % 3 == 0 { OFlags::DIRECT } else { OFlags::empty() };
        let at = round * 517;
        file(&pair.a.join("f"), flags).write_all_at(&bytes, at as u64).expect("write");
        whole[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    assert!(out_of(&reader, 0, whole.len(), false) == whole, "at the end");
    drop(reader);
    pair.stop();
}
