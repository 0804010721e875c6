//! Work for each call, in tree nodes looked at: bounds that a mistake in the watches or the trees would break.

use super::{lock, owner};
use crate::files::*;

fn visits_of(locks: &mut FileLocks, mut step: impl FnMut(&mut FileLocks)) -> u64 {
    let before = locks.forest.visits.get();
    step(locks);
    locks.forest.visits.get() - before
}

/// Goal: with 16,000 processes that wait for one byte, a request and a grant cost O(log n) each. Method: the number of
/// visited nodes is counted.
#[test]
fn a_crowd_on_one_byte() {
    let mut locks = FileLocks::new(FileLockLimits::default());
    let who = |n: u64| owner(n % 100, LockFamily::Posix, n);
    let count = 16_000;
    let asking = visits_of(&mut locks, |locks| {
        for n in 0..=count {
            locks.set(0, lock(who(n), LockKind::Exclusive, 0, 1), Asking::Wait).expect("within the bounds");
        }
    });
    assert_eq!(locks.len(), (1, count as usize));
    let granting = visits_of(&mut locks, |locks| {
        for n in 0..=count {
            locks.release(who(n), Ino(7));
            assert_eq!(locks.poll_granted().map(|granted| granted.owner), (n < count).then(|| who(n + 1)));
        }
    });
    assert!(locks.is_empty());
    for visits in [asking / count, granting / count] {
        assert!((10..300).contains(&visits), "{visits} nodes each");
    }
}

/// Goal: 100,000 locks of strided owners cost O(log n) each, and an owner's close only its own. Method: the number of
/// visited nodes is counted.
#[test]
fn strided_owners_of_one_file() {
    let mut locks = FileLocks::new(FileLockLimits::default());
    let who = |n: u64| owner(n, LockFamily::OpenFile, 1);
    let (owners, strides) = (100, 1_000);
    let setting = visits_of(&mut locks, |locks| {
        for n in 0..owners * strides {
            let asked = lock(who(n % owners), LockKind::Exclusive, 10 * n, 10 * n + 10);
            assert_eq!(locks.set(0, asked, Asking::Try), Ok(Outcome::Held));
        }
    });
    assert_eq!(locks.len().0 as u64, owners * strides);
    let asking = visits_of(&mut locks, |locks| {
        for n in 0..1_000 {
            let asked = lock(who(100), LockKind::Shared, 1_000 * n, 1_000 * n + 1_000);
            assert!(locks.get(&asked).expect("a range").is_some());
        }
    });
    let closing = visits_of(&mut locks, |locks| locks.release(who(3), Ino(7)));
    for visits in [setting / (owners * strides), asking / 1_000, closing / strides] {
        assert!((2..600).contains(&visits), "{visits} nodes each");
    }
}
