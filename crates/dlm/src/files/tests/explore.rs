//! Each grant ends a wait, so the loop ends.

use super::model::{Op, Pair, owners};
use super::{PlantedBug, lock};
use crate::files::*;
use std::collections::BTreeSet;

struct Found {
    states: usize,
    deadlocks: usize,
}

/// Depth-first over all calls of all states, each state once. An owner that waits makes no call but is interrupted.
fn explore(
    family: LockFamily,
    count: u64,
    bytes: u64,
    max_waiting: usize,
    planted: Option<PlantedBug>,
) -> Result<Found, String> {
    let limits = FileLockLimits { yield_ns: 10, max_waits: max_waiting, ..FileLockLimits::default() };
    let start = Pair::new(limits, bytes as usize, planted);
    let mut ranges = Vec::new();
    for first in 0..bytes {
        ranges.extend((first + 1..=bytes).map(|end| (first, end)));
    }
    if family == LockFamily::Flock {
        ranges.truncate(1);
    }
    let mut ops = Vec::new();
    for owner in owners(family, count) {
        for &(start, end) in &ranges {
            for kind in [LockKind::Shared, LockKind::Exclusive] {
                ops.push((Some(owner), Op::Set(lock(owner, kind, start, end), Asking::Try)));
                ops.push((Some(owner), Op::Set(lock(owner, kind, start, end), Asking::Wait)));
                ops.push((None, Op::Get(lock(owner, kind, start, end))));
            }
            ops.push((Some(owner), Op::Unlock(lock(owner, LockKind::Shared, start, end))));
        }
        ops.push((None, Op::DropSession(owner.session)));
    }
    ops.extend((0..max_waiting).map(|nth| (None, Op::Cancel(nth))));
    ops.push((None, Op::Tick(10)));
    ops.push((None, Op::Restart));

    let mut seen = BTreeSet::from([start.fingerprint()]);
    let mut found = Found { states: 1, deadlocks: 0 };
    let mut stack = vec![start];
    while let Some(state) = stack.pop() {
        for &(owner, op) in &ops {
            if owner.is_some_and(|owner| state.waits(owner)) {
                continue;
            }
            let mut next = state.clone();
            let refused = next.take(op).map_err(|reason| format!("{:?}: {reason}", state.fingerprint()))?;
            found.deadlocks += usize::from(refused == Some(FileLockRefusal::Deadlock));
            if seen.insert(next.fingerprint()) {
                found.states += 1;
                assert!(found.states <= 30_000, "the world is larger than the test was made for");
                stack.push(next);
            }
        }
    }
    Ok(found)
}

/// Goal: every outcome, every grant and its order, the held locks and the waiting requests follow the rules, and owners
/// never wait in a cycle. Method: all states of worlds of two owners on three bytes and three on two, against the
/// model.
#[test]
fn all_states_of_record_locks_follow_the_rules() {
    for (owners, bytes, waiting) in [(2, 3, 2), (3, 2, 2)] {
        let found = explore(LockFamily::Posix, owners, bytes, waiting, None);
        let found = found.unwrap_or_else(|reason| panic!("{owners} owners: {reason}"));
        assert!(found.states > 500 && found.deadlocks > 50, "{} states, {} deadlocks", found.states, found.deadlocks);
    }
}

/// Goal: as above for flock, with conversions that lose the old lock. Method: all states of three and four owners.
#[test]
fn all_states_of_flocks_follow_the_rules() {
    for owners in [3, 4] {
        let found = explore(LockFamily::Flock, owners, 1, owners as usize, None);
        let found = found.unwrap_or_else(|reason| panic!("{owners} owners: {reason}"));
        assert!(found.states > 50 && found.deadlocks == 0, "{} states", found.states);
    }
}

/// Goal: the exploration can fail. Method: each planted mistake is found.
#[test]
fn exploration_finds_planted_mistakes() {
    for bug in [PlantedBug::MissConflict, PlantedBug::LoseWake, PlantedBug::JumpQueue, PlantedBug::NoCycles] {
        assert!(explore(LockFamily::Posix, 3, 2, 2, Some(bug)).is_err(), "{bug:?} was not found");
    }
}
