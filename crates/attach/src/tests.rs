//! Reads from memory that a mount has made, without a mount.

use crate::owner::{VFORKS, is_own_memory};
use crate::post::{write_at, write_next};
use crate::read::{Piece, read_at};
use crate::table::{self, Known, Shared};
use crate::{maps, sys};
use amphi_shm::export::Export;
use amphi_shm::layout::SLOT_BYTES;
use amphi_shm::memory::Board;
use amphi_shm::posts::Post;
use amphi_shm::ring::{Reader, Ring, Sink};
use core::sync::atomic::Ordering::Relaxed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::Mutex;

/// The tables are of the process: tests that rely on exclusive use of them take turns.
static TURN: Mutex<()> = Mutex::new(());
const LEASE_NS: u64 = 60_000_000_000;

fn owned(fd: BorrowedFd<'_>) -> sys::Owned {
    sys::Owned(fd.try_clone_to_owned().unwrap().into_raw_fd())
}

fn pread(fd: i32, len: usize, offset: i64) -> Option<Vec<u8>> {
    let mut bytes = vec![0u8; len];
    let pieces = [Piece { base: bytes.as_mut_ptr().cast(), len }];
    // SAFETY: a buffer of this length.
    let read = unsafe { read_at(fd, &pieces, offset) }?;
    bytes.truncate(read);
    Some(bytes)
}

fn knows(fd: i32, shared: Shared) {
    let place = table::word(fd).unwrap();
    table::learn(place, place.load(Relaxed), shared, || true);
}

/// Goal: a descriptor is read from the memory of its export as long as its word, the generation of its handle and the
/// lease count, and no longer. Method: a story for each; the numbers are no descriptors, so nothing is requested.
#[test]
fn what_stops_reads() {
    let _turn = TURN.lock();
    sys::find_clock();
    let (board, export) = (Board::new().unwrap(), Export::new(1, 3 * SLOT_BYTES as u64).unwrap());
    let lease = || board.set_lease(sys::boot_ns() + LEASE_NS);
    lease();
    let at = maps::add_board(&owned(board.fd()), [1, 2]).unwrap();
    assert_eq!(maps::known_board([1, 2]), Some(at));
    let map = maps::add_export(&owned(export.fd()), at, 1, export.slots()).unwrap();
    assert_eq!((maps::known_export(at, 1), maps::known_export(at, 2)), (Some(map), None));
    let shared = |handle| Shared { map, board: at, handle, generation: board.generation(handle as u64).unwrap() };
    export.fill(export.ticket(), 1, 0, &[7; SLOT_BYTES]);
    let inside = SLOT_BYTES as i64 + 5;
    knows(2000, shared(9));
    assert_eq!(pread(2000, 100, inside), Some(vec![7; 100]));
    assert_eq!(pread(2000, 100, -1), None);
    assert_eq!(pread(2000, 9 << 20, inside), None, "longer than what is atomic");
    // The lease.
    board.set_lease(sys::boot_ns());
    assert_eq!(pread(2000, 100, inside), None);
    lease();
    assert!(pread(2000, 100, inside).is_some());
    // A close of another handle changes nothing, and a close of this handle makes the word invalid.
    board.raise(8);
    assert!(pread(2000, 100, inside).is_some());
    board.raise(9);
    assert_eq!(pread(2000, 100, inside), None);
    assert_eq!(table::known(table::word(2000).unwrap().load(Relaxed)), Known::Nothing);
    // The number means something else.
    knows(2001, shared(10));
    assert!(pread(2001, 100, inside).is_some());
    table::forget(2001);
    assert_eq!(pread(2001, 100, inside), None);
    // The export is given up: another one replaces it, and words for the first one do not lead to the second.
    knows(2002, shared(11));
    export.give_up();
    assert_eq!(pread(2002, 100, inside), None);
    let second = Export::new(2, 3 * SLOT_BYTES as u64).unwrap();
    second.fill(second.ticket(), 1, 0, &[8; SLOT_BYTES]);
    assert_eq!(maps::add_export(&owned(second.fd()), at, 2, second.slots()), Some(map), "the same place");
    assert_eq!(pread(2002, 100, inside), None);
    knows(2003, shared(11));
    assert_eq!(pread(2003, 100, inside), Some(vec![8; 100]));
    // Another thread replaces the export while a descriptor is identified: just before its word is stored, or just
    // after the check.
    let replaced = |id: u64, by: u64| {
        maps::leave(map);
        let next = Export::new(by, 3 * SLOT_BYTES as u64).unwrap();
        next.fill(next.ticket(), 1, 0, &[by as u8; SLOT_BYTES]);
        assert_eq!(maps::add_export(&owned(next.fd()), at, by, next.slots()), Some(map), "in place of {id}");
        next
    };
    let place = table::word(2004).unwrap();
    let third = replaced(2, 3);
    table::learn(place, place.load(Relaxed), shared(11), || maps::is_export(map, at, 2));
    assert_eq!(pread(2004, 100, inside), None);
    assert!(maps::is_export(map, at, 3));
    let mut fourth = None;
    table::learn(place, place.load(Relaxed), shared(11), || {
        assert_eq!(pread(2004, 100, inside), None, "it is not certain");
        let is_right = maps::is_export(map, at, 3);
        fourth = Some(replaced(3, 4));
        is_right
    });
    assert_eq!(pread(2004, 100, inside), None);
    knows(2004, shared(11));
    assert_eq!(pread(2004, 100, inside), Some(vec![4; 100]));
    drop((third, fourth));
}

/// Goal: memory that is no export, too short, or of another number is refused. Method: each of them.
#[test]
fn other_memory_is_refused() {
    let _turn = TURN.lock();
    let export = Export::new(5, 1).unwrap();
    assert_eq!(maps::add_export(&owned(export.fd()), 3, 6, 1), None, "another number");
    assert_eq!(maps::add_export(&owned(export.fd()), 3, 5, 2), None, "too short");
    assert_eq!(maps::add_export(&owned(export.fd()), 3, 5, 0), None, "no slots");
    assert_eq!(maps::add_export(&owned(export.fd()), 3, 5, usize::MAX / SLOT_BYTES), None, "too many");
    assert_eq!(maps::add_board(&owned(export.fd()), [7, 7]), None, "no board");
    let board = Board::new().unwrap();
    assert_eq!(maps::add_export(&owned(board.fd()), 3, 0, 1), None, "no export");
    let file = std::io::pipe().unwrap().0;
    assert_eq!(maps::add_export(&owned(file.as_fd()), 3, 5, 1), None, "no memory");
    assert!(file.as_raw_fd() >= 0);
}

/// Goal: a word contains all the values that were packed into it, and is replaced only if it is still the one that was
/// read. Method: extreme values, and changes in between.
#[test]
fn words_hold_what_they_are_made_of() {
    for shared in [
        Shared { map: 0, board: 0, handle: 0, generation: 0 },
        Shared { map: 1023, board: 3, handle: 65_535, generation: u32::MAX },
        Shared { map: 512, board: 1, handle: 1, generation: 3 },
    ] {
        assert_eq!(table::known(shared.word()), Known::Shared(shared));
    }
    let place = table::word(2100).unwrap();
    let reads = (0..20).take_while(|_| !table::note_read(place, place.load(Relaxed))).count();
    assert_eq!(reads, 7);
    let seen = place.load(Relaxed);
    table::forget(2100);
    table::learn_foreign(place, seen);
    assert_eq!(table::known(place.load(Relaxed)), Known::Nothing, "the number was forgotten in between");
    table::learn_foreign(place, place.load(Relaxed));
    assert!(table::is_known_foreign(2100) && table::is_known_foreign(100_000) && !table::is_known_foreign(2101));
    table::forget_from(2099, u32::MAX);
    assert!(!table::is_known_foreign(2100));
}

/// Goal: a process notices that it was made by `fork`, and leases are measured by the right clock. Method: the test's
/// own process; the library's clock is compared with the kernel's.
#[test]
fn the_process_and_the_clock() {
    let _turn = TURN.lock();
    assert!(is_own_memory() && is_own_memory());
    VFORKS.fetch_add(1, Relaxed);
    assert!(!is_own_memory(), "a child of vfork runs");
    VFORKS.fetch_sub(1, Relaxed);
    sys::find_clock();
    let text = std::fs::read_to_string("/proc/uptime").unwrap();
    let uptime: f64 = text.split(' ').next().unwrap().parse().unwrap();
    assert!((sys::boot_ns() as f64 / 1e9 - uptime).abs() < 1.0);
}

/// Goal: a bad buffer is found out by `strict` copies. Method: memory that is not there.
#[test]
fn copies_that_are_checked() {
    let (from, mut into) = ([3u8; 64], [0u8; 64]);
    assert!(sys::copy_checked(into.as_mut_ptr(), from.as_ptr(), 64) && into == from);
    assert!(!sys::copy_checked(std::ptr::without_provenance_mut(4096), from.as_ptr(), 64));
}

/// What a mount has taken of a ring.
#[derive(Default)]
struct Taken(Vec<(Post, Vec<u8>)>);

impl Sink for Taken {
    fn place(&mut self, post: &Post) -> Option<&mut [u8]> {
        self.0.push((*post, vec![0; post.len as usize]));
        self.0.last_mut().map(|(_, bytes)| &mut bytes[..])
    }
}

fn pieces(bytes: &[u8]) -> [Piece; 2] {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    [first, second].map(|part| Piece { base: part.as_ptr().cast_mut().cast(), len: part.len() })
}

/// Goal: writes are posted, at their offset or at the position of the descriptor, which moves, as long as the word, the
/// generation, the lease, the limit and the flags of the descriptor allow it, and no longer. Method: a story for each,
/// with descriptors of a local file.
#[test]
#[expect(clippy::disallowed_types, reason = "it needs descriptors of a local file, as programs have them")]
fn what_stops_posts() {
    use std::io::{Seek, SeekFrom};
    let _turn = TURN.lock();
    sys::find_clock();
    let path = std::env::temp_dir().join(format!("amphi-attach-{}", std::process::id()));
    let file =
        |append: bool| std::fs::OpenOptions::new().append(append).write(!append).create(true).open(&path).unwrap();
    let (mut plain, appends, reads) = (file(false), file(true), std::fs::File::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let (board, ring) = (Board::new().unwrap(), Ring::new(5).unwrap());
    let lease = || board.set_lease(sys::boot_ns() + LEASE_NS);
    lease();
    let at = maps::add_board(&owned(board.fd()), [3, 4]).unwrap();
    let map = maps::add_ring(&owned(ring.fd()), at, 5).unwrap();
    assert_eq!((maps::known_ring(at, 5), maps::known_ring(at, 6)), (Some(map), None));
    let knows = |fd: i32, handle| {
        let shared = Shared { map, board: at, handle, generation: board.generation(handle as u64).unwrap() };
        let place = table::writer(fd).unwrap();
        table::learn(place, place.load(Relaxed), shared, || maps::is_ring(map, at, 5));
    };
    let [fd, append_fd, read_fd] = [plain.as_raw_fd(), appends.as_raw_fd(), reads.as_raw_fd()];
    [fd, append_fd, read_fd].into_iter().for_each(|fd| knows(fd, 9));
    // SAFETY: buffers of these lengths.
    let pwrite = |fd: i32, bytes: &[u8], offset: i64| unsafe { write_at(fd, &pieces(bytes), offset) };
    // SAFETY: as above.
    let write = |bytes: &[u8]| unsafe { write_next(fd, &pieces(bytes)) };
    assert_eq!(pwrite(fd, b"stopped", 0), None);
    ring.set_limit(100_000);
    knows(fd, 9);
    assert_eq!(pwrite(fd, b"hello", 7), Some(5));
    plain.seek(SeekFrom::Start(30)).unwrap();
    assert_eq!((write(b"there"), plain.stream_position().unwrap()), (Some(5), 35));
    let (mut reader, mut taken) = (Reader::default(), Taken::default());
    ring.drain(&mut reader, &mut taken);
    let post = |offset| Post { offset, len: 5, handle: 9 };
    assert_eq!(taken.0, [(post(7), b"hello".to_vec()), (post(30), b"there".to_vec())]);
    assert_eq!([pwrite(append_fd, b"x", 0), pwrite(read_fd, b"x", 0), pwrite(fd, b"x", -1)], [None; 3]);
    assert_eq!([pwrite(fd, b"x", 100_000), pwrite(fd, b"", 0), pwrite(fd, &[0; 16_385], 0)], [None; 3]);
    plain.seek(SeekFrom::Start(99_998)).unwrap();
    // The write ends beyond the limit, so it goes to the file, and the position is behind it.
    assert_eq!((write(b"there"), plain.stream_position().unwrap()), (Some(5), 100_003));
    board.set_lease(sys::boot_ns());
    assert_eq!(pwrite(fd, b"x", 0), None);
    lease();
    assert_eq!(pwrite(fd, b"x", 0), Some(1));
    board.raise(9);
    assert_eq!(pwrite(fd, b"x", 0), None);
    assert_eq!(table::known(table::writer(fd).unwrap().load(Relaxed)), Known::Nothing);
    knows(fd, 9);
    assert_eq!(pwrite(fd, b"x", 0), Some(1));
    table::forget(fd);
    assert_eq!(pwrite(fd, b"x", 0), None);
    knows(fd, 9);
    (0..62).for_each(|_| assert_eq!(pwrite(fd, b"x", 0), Some(1)));
    assert_eq!(pwrite(fd, b"x", 0), None, "the ring is full");
    ring.drain(&mut reader, &mut taken);
    assert_eq!(taken.0.len(), 66);
    assert_eq!(pwrite(fd, b"x", 0), Some(1));
    ring.set_limit(0);
    // Its place is taken by the next ring.
    let next = Ring::new(6).unwrap();
    let others: Vec<_> = (7..70).map(Ring::new).map(Result::unwrap).collect();
    let all: Vec<_> = others.iter().map(|ring| maps::add_ring(&owned(ring.fd()), at, ring.id())).collect();
    assert!(all.iter().all(Option::is_some));
    assert_eq!(maps::add_ring(&owned(next.fd()), at, 6), Some(map));
}
