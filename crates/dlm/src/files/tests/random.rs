//! Long random programs of many owners, families and files, with tight bounds.

use super::model::{Op, Pair};
use super::{PlantedBug, owner};
use crate::files::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const DOMAIN: u64 = 10;

fn any_owner() -> impl Strategy<Value = LockOwner> {
    let families =
        prop_oneof![3 => Just(LockFamily::Posix), 1 => Just(LockFamily::OpenFile), 2 => Just(LockFamily::Flock)];
    (0..3u64, families, 0..2u64).prop_map(|(session, family, id)| owner(session, family, id))
}

fn any_lock() -> impl Strategy<Value = FileLock> {
    let kinds = prop_oneof![Just(LockKind::Shared), Just(LockKind::Exclusive)];
    (any_owner(), 0..2u64, kinds, 0..DOMAIN, 0..DOMAIN).prop_map(|(owner, ino, kind, a, b)| {
        let range = ByteRange::new(a.min(b), a.max(b) + 1);
        FileLock { owner, pid: 9, ino: Ino(ino), kind, range }
    })
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => any_lock().prop_map(|lock| Op::Set(lock, Asking::Try)),
        12 => any_lock().prop_map(|lock| Op::Set(lock, Asking::Wait)),
        8 => any_lock().prop_map(Op::Unlock),
        2 => (any_owner(), 0..2u64).prop_map(|(owner, ino)| Op::Release(owner, Ino(ino))),
        2 => any_lock().prop_map(Op::Get),
        2 => (0..6usize).prop_map(Op::Cancel),
        1 => (0..3u64).prop_map(|session| Op::DropSession(SessionId(session))),
        3 => (0..15u64).prop_map(Op::Tick),
        1 => Just(Op::Restart),
    ]
}

fn any_limits() -> impl Strategy<Value = FileLockLimits> {
    let roomy = FileLockLimits { yield_ns: 10, ..FileLockLimits::default() };
    let tight = FileLockLimits { max_locks: 16, max_locks_per_file: 9, max_waits: 4, max_waits_per_file: 3, ..roomy };
    prop_oneof![3 => Just(roomy), 2 => Just(tight)]
}

fn check(cases: u32, planted: Option<PlantedBug>) -> Result<usize, String> {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let most = std::cell::Cell::new(0);
    let run = runner.run(&(any_limits(), prop::collection::vec(any_op(), 1..160)), |(limits, ops)| {
        let mut pair = Pair::new(limits, DOMAIN as usize, planted);
        for op in ops {
            pair.take(op).map_err(TestCaseError::fail)?;
            most.set(most.get().max(pair.waiting()));
        }
        Ok(())
    });
    run.map(|()| most.get()).map_err(|error| error.to_string())
}

/// Goal: the rules are kept with several threads of one owner, several files, all families, tight bounds, sessions that
/// end, and restarts. Method: random programs against the model, shrunk when they fail.
#[test]
fn random_programs_follow_the_rules() {
    match check(400, None) {
        Ok(most) => assert!(most > 6, "only {most} waited at the same time"),
        Err(reason) => panic!("{reason}"),
    }
}

/// Goal: the random programs can fail. Method: each planted mistake is found.
#[test]
fn random_programs_find_planted_mistakes() {
    for bug in [PlantedBug::MissConflict, PlantedBug::LoseWake, PlantedBug::JumpQueue, PlantedBug::NoCycles] {
        assert!(check(100, Some(bug)).is_err(), "{bug:?} was not found");
    }
}
