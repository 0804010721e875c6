//! The rules of fcntl(2) and flock(2) and, where they allow several behaviours, the one that was chosen here.

use super::{lock, owner};
use crate::files::*;

use Asking::{Try, Wait};
use LockKind::{Exclusive, Shared};

fn posix(id: u64) -> LockOwner {
    owner(id, LockFamily::Posix, id)
}

fn flock(id: u64) -> LockOwner {
    owner(id, LockFamily::Flock, id)
}

fn table() -> FileLocks {
    FileLocks::new(FileLockLimits::default())
}

fn held(locks: &FileLocks, owner: LockOwner) -> Vec<(u64, u64, LockKind)> {
    let of_owner = locks.held_by(owner.session).filter(|lock| lock.owner == owner);
    of_owner.map(|lock| (lock.range.start, lock.range.end, lock.kind)).collect()
}

fn waits(outcome: Result<Outcome, FileLockRefusal>) -> WaitId {
    match outcome {
        Ok(Outcome::Waiting(id)) => id,
        other => panic!("expected to wait: {other:?}"),
    }
}

fn granted(locks: &mut FileLocks) -> Vec<WaitId> {
    std::iter::from_fn(|| locks.poll_granted()).map(|granted| granted.id).collect()
}

fn set(locks: &mut FileLocks, owner: LockOwner, kind: LockKind, start: u64, end: u64) {
    assert_eq!(locks.set(0, lock(owner, kind, start, end), Try), Ok(Outcome::Held));
}

/// Goal: one owner's locks join, split and change their kind as fcntl(2) says. Method: a story of one owner.
#[test]
fn own_ranges_join_split_and_convert() {
    let (mut locks, a) = (table(), posix(1));
    set(&mut locks, a, Shared, 0, 10);
    set(&mut locks, a, Shared, 10, 20);
    assert_eq!(held(&locks, a), [(0, 20, Shared)], "neighbours are one lock");
    set(&mut locks, a, Exclusive, 5, 8);
    assert_eq!(held(&locks, a), [(0, 5, Shared), (5, 8, Exclusive), (8, 20, Shared)]);
    set(&mut locks, a, Exclusive, 8, 12);
    assert_eq!(held(&locks, a), [(0, 5, Shared), (5, 12, Exclusive), (12, 20, Shared)]);
    locks.unlock(a, Ino(7), ByteRange::new(6, 7)).unwrap();
    assert_eq!(held(&locks, a), [(0, 5, Shared), (5, 6, Exclusive), (7, 12, Exclusive), (12, 20, Shared)]);
    set(&mut locks, a, Shared, 2, 30);
    assert_eq!(held(&locks, a), [(0, 30, Shared)]);
    locks.release(a, Ino(7));
    assert!(locks.is_empty());
}

/// Goal: ranges from FUSE reach to the end of every file and are returned unchanged. An invalid range is refused.
/// Method: the ends of the range of offsets.
#[test]
fn ranges_end_at_the_largest_offset() {
    let max = i64::MAX as u64;
    assert_eq!(record_range(0, max), Ok(ByteRange::ALL));
    assert_eq!(record_range(0, u64::MAX), Ok(ByteRange::ALL));
    assert_eq!(record_range(3, 3), Ok(ByteRange::new(3, 4)));
    assert_eq!(record_range(max, max).map(inclusive), Ok((max, max)));
    assert_eq!(inclusive(ByteRange::ALL), (0, max));
    assert_eq!(record_range(4, 3), Err(FileLockRefusal::Invalid));
    assert_eq!(record_range(max + 1, u64::MAX), Err(FileLockRefusal::Invalid));
    let (mut locks, a) = (table(), posix(1));
    assert_eq!(locks.set(0, lock(a, Shared, 5, 5), Try), Err(FileLockRefusal::Invalid));
    set(&mut locks, a, Shared, 5, max + 7);
    assert_eq!(held(&locks, a), [(5, u64::MAX, Shared)]);
    locks.unlock(a, Ino(7), ByteRange::new(9, max)).unwrap();
    assert_eq!(held(&locks, a), [(5, 9, Shared), (max, u64::MAX, Shared)], "the last byte is still locked");
}

/// Goal: F_GETLK returns the first conflicting lock with its process, and neither the caller's own locks nor waiting
/// requests. Method: a story of three owners.
#[test]
fn get_names_the_first_lock_in_the_way() {
    let (mut locks, a, b, c) = (table(), posix(1), posix(2), posix(3));
    set(&mut locks, a, Exclusive, 20, 30);
    set(&mut locks, b, Shared, 5, 10);
    let found = locks.get(&lock(c, Exclusive, 0, 40)).unwrap().expect("two locks are in the way");
    assert_eq!((found.owner, found.pid, found.kind, found.range), (b, 2, Shared, ByteRange::new(5, 10)));
    let found = locks.get(&lock(c, Shared, 0, 40)).unwrap().expect("a write lock is in the way of a read lock");
    assert_eq!((found.owner, found.range), (a, ByteRange::new(20, 30)));
    assert_eq!(locks.get(&lock(a, Exclusive, 10, 40)), Ok(None), "one's own locks are never in the way");
    waits(locks.set(0, lock(c, Exclusive, 8, 12), Wait));
    assert_eq!(locks.get(&lock(a, Exclusive, 11, 12)), Ok(None), "who waits holds nothing");
}

/// Goal: a waiting request has changed nothing, and its grant is one step. Method: an upgrade of a part that waits.
#[test]
fn a_waiting_request_keeps_what_was_held() {
    let (mut locks, a, b) = (table(), posix(1), posix(2));
    set(&mut locks, a, Shared, 0, 10);
    set(&mut locks, b, Shared, 5, 6);
    let id = waits(locks.set(0, lock(a, Exclusive, 4, 8), Wait));
    assert_eq!(held(&locks, a), [(0, 10, Shared)]);
    locks.release(b, Ino(7));
    assert_eq!(granted(&mut locks), [id]);
    assert_eq!(held(&locks, a), [(0, 4, Shared), (4, 8, Exclusive), (8, 10, Shared)]);
    assert!(!locks.cancel(id), "an interrupt that comes after the grant finds the lock held");
}

/// Goal: flock and fcntl locks never meet, POSIX and OFD locks do, files do not. Method: one of each.
#[test]
fn families_that_meet_and_that_do_not() {
    let mut locks = table();
    set(&mut locks, flock(1), Exclusive, 0, 1);
    set(&mut locks, posix(2), Exclusive, 0, 100);
    let ofd = owner(2, LockFamily::OpenFile, 2);
    assert_eq!(locks.set(0, lock(ofd, Shared, 3, 4), Try), Err(FileLockRefusal::WouldBlock), "of one session even");
    assert_eq!(locks.set(0, FileLock { ino: Ino(8), ..lock(ofd, Shared, 3, 4) }, Try), Ok(Outcome::Held));
    assert_eq!(locks.set(0, lock(flock(3), Shared, 50, 60), Try), Err(FileLockRefusal::WouldBlock), "whole file");
}

/// Goal: converting a `flock` loses the old lock if the conversion waits or is refused, as flock(2) says. Two
/// concurrent conversions do not deadlock. A conversion to the kind that is held changes nothing. Method: two owners.
#[test]
fn a_flock_conversion_may_lose_the_lock() {
    let (mut locks, a, b) = (table(), flock(1), flock(2));
    set(&mut locks, a, Shared, 0, 1);
    set(&mut locks, b, Shared, 0, 1);
    assert_eq!(locks.set(0, lock(a, Shared, 0, 1), Wait), Ok(Outcome::Held));
    let id = waits(locks.set(0, lock(a, Exclusive, 0, 1), Wait));
    assert_eq!(held(&locks, a), []);
    set(&mut locks, b, Exclusive, 0, 1);
    assert_eq!(locks.set(0, lock(b, Shared, 0, 1), Wait), Ok(Outcome::Held), "a downgrade waits for nobody");
    set(&mut locks, posix(3), Exclusive, 0, 1);
    let c = flock(4);
    set(&mut locks, c, Shared, 0, 1);
    assert_eq!(locks.set(0, lock(c, Exclusive, 0, 1), Try), Err(FileLockRefusal::WouldBlock));
    assert_eq!(held(&locks, c), [], "lost, though it was not to wait");
    locks.release(b, Ino(7));
    assert_eq!(granted(&mut locks), [id]);
}

/// Goal: cycles of two and of three owners are refused with EDEADLK and nothing is lost. The unlock of the refused
/// owner lets the others continue. Method: each owner holds one byte, in some runs of different files, and requests the
/// byte of the next owner.
#[test]
fn circles_of_owners_are_refused() {
    for (count, files) in [(2, 1), (3, 1), (3, 3), (8, 2)] {
        let mut locks = table();
        let byte = |of: u64, by: u64| FileLock { ino: Ino(of % files), ..lock(posix(by), Exclusive, of, of + 1) };
        for n in 0..count {
            assert_eq!(locks.set(0, byte(n, n), Wait), Ok(Outcome::Held));
        }
        let asked: Vec<WaitId> = (0..count - 1).map(|n| waits(locks.set(0, byte(n + 1, n), Wait))).collect();
        let last = byte(0, count - 1);
        assert_eq!(locks.set(0, last, Wait), Err(FileLockRefusal::Deadlock), "{count} owners, {files} files");
        assert_eq!(locks.set(0, last, Try), Err(FileLockRefusal::WouldBlock), "who does not wait closes no circle");
        assert_eq!(locks.len(), (count as usize, asked.len()));
        for n in (0..count - 1).rev() {
            locks.release(posix(n + 1), Ino((n + 1) % files));
            assert_eq!(granted(&mut locks), [asked[n as usize]]);
            locks.release(posix(n), Ino((n + 1) % files));
        }
    }
}

/// Goal: the upgrade deadlock: of two readers that both ask to write, the second is refused. Method: two owners.
#[test]
fn two_upgrades_are_a_circle() {
    let (mut locks, a, b) = (table(), posix(1), posix(2));
    set(&mut locks, a, Shared, 0, 1);
    set(&mut locks, b, Shared, 0, 1);
    let id = waits(locks.set(0, lock(a, Exclusive, 0, 1), Wait));
    assert_eq!(locks.set(0, lock(b, Exclusive, 0, 1), Wait), Err(FileLockRefusal::Deadlock));
    locks.release(b, Ino(7));
    assert_eq!(granted(&mut locks), [id]);
}

/// Goal: if a request waits for several holders, a cycle over any of them is detected. `flock` and OFD owners are not
/// searched. Beyond the bound the request waits and can be cancelled. Method: one cycle of each sort.
#[test]
fn what_the_search_for_circles_sees() {
    let (mut locks, a, b, c) = (table(), posix(1), posix(2), posix(3));
    set(&mut locks, a, Exclusive, 0, 1);
    set(&mut locks, b, Shared, 5, 6);
    set(&mut locks, c, Shared, 5, 6);
    waits(locks.set(0, lock(c, Shared, 0, 1), Wait));
    assert_eq!(locks.set(0, lock(a, Exclusive, 5, 6), Wait), Err(FileLockRefusal::Deadlock));

    for family in [LockFamily::OpenFile, LockFamily::Flock] {
        let (mut locks, a, b) = (table(), owner(1, family, 1), owner(2, family, 1));
        let file = |owner: LockOwner, ino: u64| FileLock { ino: Ino(ino), ..lock(owner, Exclusive, 0, 1) };
        assert_eq!(locks.set(0, file(a, 1), Try), Ok(Outcome::Held));
        assert_eq!(locks.set(0, file(b, 2), Try), Ok(Outcome::Held));
        waits(locks.set(0, file(a, 2), Wait));
        let id = waits(locks.set(0, file(b, 1), Wait));
        assert!(locks.cancel(id));
    }

    let mut locks = FileLocks::new(FileLockLimits { max_cycle_steps: 3, ..FileLockLimits::default() });
    for n in 0..8 {
        set(&mut locks, posix(n), Exclusive, n, n + 1);
    }
    for n in 0..7 {
        waits(locks.set(0, lock(posix(n), Exclusive, n + 1, n + 2), Wait));
    }
    let id = waits(locks.set(0, lock(posix(7), Exclusive, 0, 1), Wait));
    assert!(locks.cancel(id) && !locks.cancel(id));
}

/// Goal: later readers do not pass a waiting writer. An owner that holds a lock on the file does, and so does a request
/// that does not wait. After the interval every request passes that conflicts only with waiting requests. Method: a
/// writer between readers.
#[test]
fn later_readers_yield_to_a_waiting_writer_for_a_while() {
    let yield_ns = FileLockLimits::default().yield_ns;
    let (mut locks, a, b, c, d) = (table(), posix(1), posix(2), posix(3), posix(4));
    set(&mut locks, a, Shared, 0, 10);
    let writer = waits(locks.set(0, lock(b, Exclusive, 0, 10), Wait));
    let reader = waits(locks.set(5, lock(c, Shared, 0, 10), Wait));
    assert_eq!(locks.set(6, lock(a, Shared, 0, 12), Wait), Ok(Outcome::Held), "a holder does not yield");
    set(&mut locks, d, Shared, 3, 4);
    assert_eq!(locks.next_deadline(), Some(yield_ns));
    locks.handle_timeout(yield_ns + 4);
    assert_eq!(granted(&mut locks), [], "the writer conflicts, the reader's time is not up");
    locks.handle_timeout(yield_ns + 5);
    assert_eq!(granted(&mut locks), [reader]);
    for owner in [a, c, d] {
        locks.release(owner, Ino(7));
    }
    assert_eq!(granted(&mut locks), [writer]);
}

/// Goal: without that, the writer is granted first, and if it is cancelled the readers behind it are granted. Method:
/// as above.
#[test]
fn the_queue_moves_in_the_order_of_asking() {
    let (mut locks, a, b, c, d) = (table(), posix(1), posix(2), posix(3), posix(4));
    set(&mut locks, a, Shared, 0, 10);
    let writer = waits(locks.set(0, lock(b, Exclusive, 0, 10), Wait));
    let readers = [c, d].map(|owner| waits(locks.set(0, lock(owner, Shared, 0, 10), Wait)));
    let mut other = locks.clone();
    locks.release(a, Ino(7));
    assert_eq!(granted(&mut locks), [writer]);
    locks.release(b, Ino(7));
    assert_eq!(granted(&mut locks), readers);
    assert!(other.cancel(writer));
    assert_eq!(granted(&mut other), readers);
}

/// Goal: when a session ends, its locks of all families on all files are released, its requests end, and requests of
/// others that waited for them are granted. Method: two sessions.
#[test]
fn the_end_of_a_session_grants_waiters() {
    let mut locks = table();
    let one = |family, id| owner(1, family, id);
    set(&mut locks, one(LockFamily::Posix, 1), Exclusive, 0, 10);
    set(&mut locks, one(LockFamily::Flock, 2), Exclusive, 0, 10);
    let own = waits(locks.set(0, lock(one(LockFamily::Posix, 3), Exclusive, 0, 10), Wait));
    let others = [
        waits(locks.set(0, lock(posix(2), Exclusive, 0, 10), Wait)),
        waits(locks.set(0, lock(flock(2), Shared, 0, 10), Wait)),
    ];
    assert_eq!(locks.drop_session(SessionId(1)), DroppedFileLocks { locks: 2, waits: vec![own] });
    assert_eq!(granted(&mut locks).len(), others.len());
    assert_eq!(locks.drop_session(SessionId(1)), DroppedFileLocks::default());
    let id = waits(locks.set(0, lock(posix(3), Shared, 0, 10), Wait));
    locks.release(posix(2), Ino(7));
    assert_eq!(locks.drop_session(SessionId(3)).locks, 1, "granted, though not yet told");
    assert_eq!(granted(&mut locks), [], "{id:?} is nobody's any more");
}

/// Goal: after a restart locks are restored in any order. A lock that conflicts is reported, and the others stay.
/// Method: the table of one server is presented to a new one, then a conflicting lock.
#[test]
fn locks_are_presented_after_a_restart() {
    let (mut locks, a, b) = (table(), posix(1), posix(2));
    set(&mut locks, a, Shared, 0, 10);
    set(&mut locks, a, Exclusive, 3, 5);
    set(&mut locks, b, Shared, 8, 20);
    let before: Vec<FileLock> = [a, b].into_iter().flat_map(|owner| locks.held_by(owner.session)).collect();
    let mut fresh = table();
    for &lock in before.iter().rev() {
        assert_eq!(fresh.restore(lock), Ok(()));
        assert_eq!(fresh.restore(lock), Ok(()), "presented twice");
    }
    assert_eq!(fresh.restore(lock(b, Shared, 4, 9)), Err(FileLockRefusal::Lost));
    let after: Vec<FileLock> = [a, b].into_iter().flat_map(|owner| fresh.held_by(owner.session)).collect();
    assert_eq!(after, before);
}

/// Goal: beyond each bound the answer is ENOLCK and nothing changes. A later grant has space, and at the bound all
/// locks can be released. Method: small bounds.
#[test]
fn bounds_are_refused_with_enolck() {
    let limits = FileLockLimits {
        max_locks: 8,
        max_locks_per_file: 5,
        max_waits: 2,
        max_waits_per_file: 1,
        ..Default::default()
    };
    let (mut locks, a, b, c) = (FileLocks::new(limits), posix(1), posix(2), posix(3));
    for n in 0..3 {
        set(&mut locks, a, Shared, 4 * n, 4 * n + 2);
    }
    let id = waits(locks.set(0, lock(b, Exclusive, 0, 1), Wait));
    assert_eq!(locks.set(0, lock(c, Exclusive, 0, 1), Wait), Err(FileLockRefusal::NoLocks), "waits for a file");
    assert_eq!(locks.set(0, lock(a, Shared, 20, 21), Try), Err(FileLockRefusal::NoLocks), "room is kept for the wait");
    assert_eq!(locks.unlock(a, Ino(7), ByteRange::new(4, 5)), Ok(()));
    assert_eq!(locks.set(0, lock(a, Shared, 0, 2), Try), Ok(Outcome::Held), "nothing new");
    assert_eq!(locks.unlock(a, Ino(7), ByteRange::new(8, 9)), Ok(()));
    set(&mut locks, a, Shared, 5, 10);
    assert_eq!(held(&locks, a), [(0, 2, Shared), (5, 10, Shared)]);
    set(&mut locks, a, Shared, 12, 13);
    assert_eq!(locks.unlock(a, Ino(7), ByteRange::new(6, 7)), Err(FileLockRefusal::NoLocks), "cut in two");
    locks.release(a, Ino(7));
    assert_eq!((granted(&mut locks), locks.len()), (vec![id], (1, 0)));
    assert_eq!(FileLockRefusal::NoLocks.raw_errno(), 37);
    assert_eq!(FileLockRefusal::Deadlock.raw_errno(), 35);
}

/// Goal: a session gets no more than its share of the table, with all its owners and waiting requests together, and
/// the rest is left to others. Method: small bounds.
#[test]
fn a_session_has_a_share_of_the_table() {
    let limits = FileLockLimits { max_locks: 20, max_locks_per_session: 4, ..Default::default() };
    let mut locks = FileLocks::new(limits);
    let owner = |session, id| LockOwner { session: SessionId(session), family: LockFamily::Posix, id };
    set(&mut locks, owner(1, 1), Shared, 0, 1);
    set(&mut locks, owner(1, 2), Shared, 2, 3);
    set(&mut locks, owner(2, 1), Exclusive, 4, 5);
    let id = waits(locks.set(0, lock(owner(1, 2), Exclusive, 4, 5), Wait));
    for one in [owner(1, 1), owner(1, 3)] {
        assert_eq!(locks.set(0, lock(one, Shared, 8, 9), Try), Err(FileLockRefusal::NoLocks));
        assert_eq!(locks.set(0, lock(one, Shared, 4, 5), Wait), Err(FileLockRefusal::NoLocks));
        assert_eq!(locks.restore(lock(one, Shared, 8, 9)), Err(FileLockRefusal::NoLocks));
    }
    set(&mut locks, owner(2, 1), Shared, 8, 9);
    locks.release(owner(2, 1), Ino(7));
    assert_eq!(granted(&mut locks), [id]);
    set(&mut locks, owner(1, 3), Shared, 8, 9);
    assert_eq!(locks.set(0, lock(owner(1, 3), Shared, 10, 11), Try), Err(FileLockRefusal::NoLocks));
    locks.drop_session(SessionId(1));
    for n in 0..4 {
        set(&mut locks, owner(1, 1), Shared, 2 * n, 2 * n + 1);
    }
    assert_eq!(locks.set(0, lock(owner(1, 1), Shared, 10, 11), Try), Err(FileLockRefusal::NoLocks));
}
