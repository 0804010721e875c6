//! Every order of events of small programs.

use super::world::{Faults, Op, World};
use super::{attributes, listing, name};
use crate::tokens::PlantedBug;
use crate::tokens::TokenKey;
use crate::tokens::server::{HistoryLimits, TokenLimits};
use std::collections::BTreeSet;

struct Found {
    states: usize,
    late_grants: bool,
    hits: bool,
}

/// Visits all steps of all states depth-first, each state once. The search ends early when it has visited `limit`
/// states.
fn explore(world: World, limit: usize) -> Result<Found, String> {
    let mut visited = BTreeSet::from([world.fingerprint()]);
    let mut found = Found { states: 1, late_grants: false, hits: false };
    let mut stack = vec![world];
    while let Some(world) = stack.pop() {
        let steps = world.steps();
        if steps.is_empty() {
            found.late_grants |= world.late_grants > 0;
            found.hits |= world.hits > 0;
            world.finish()?;
            continue;
        }
        for step in steps {
            let mut next = world.clone();
            next.take(step).map_err(|reason| format!("{reason}, after {step:?}"))?;
            if visited.insert(next.fingerprint()) {
                found.states += 1;
                if found.states > limit {
                    return Ok(found);
                }
                stack.push(next);
            }
        }
    }
    Ok(found)
}

fn limits() -> TokenLimits {
    TokenLimits {
        life_ns: 2,
        margin_ns: 1,
        max_tokens: 64,
        max_session_tokens: 64,
        trim_batch: 1,
        history: HistoryLimits { max_dirs: 1, window_ns: 1, hold_ns: 1 },
        ..TokenLimits::default()
    }
}

fn read(key: TokenKey) -> Op {
    Op::Read(key)
}

fn change(key: TokenKey) -> Op {
    Op::Change(vec![(key, true, false)])
}

/// A change of a key that the client could not name.
fn unnamed(key: TokenKey) -> Op {
    Op::Change(vec![(key, false, false)])
}

fn create(hash: u64) -> Op {
    Op::Change(vec![(name(hash), true, false), (listing(), true, true)])
}

struct Case {
    programs: Vec<Vec<Op>>,
    limits: TokenLimits,
    faults: Faults,
}

fn case(programs: Vec<Vec<Op>>) -> Case {
    Case { programs, limits: limits(), faults: Faults::default() }
}

fn cases() -> Vec<Case> {
    let (a, b) = (attributes(1), attributes(2));
    let ticks = |n| Faults { ticks: n, ..Faults::default() };
    vec![
        case(vec![vec![read(a), read(a), read(a)], vec![change(a)]]),
        case(vec![vec![read(a), change(a), read(a)], vec![read(a), change(a)]]),
        case(vec![vec![read(a), unnamed(a), read(a)], vec![change(a)]]),
        // Changes of two keys in opposite orders, and of both at once.
        case(vec![vec![read(b), Op::Change(vec![(a, true, false), (b, true, false)])], vec![change(b), change(a)]]),
        case(vec![vec![read(a), read(a)], vec![change(a), read(b)], vec![change(b)]]),
        case(vec![vec![read(name(1)), read(listing())], vec![create(1)], vec![create(2)]]),
        // Bounds so tight that grants revoke earlier ones.
        Case {
            limits: TokenLimits { max_tokens: 3, max_session_tokens: 2, ..limits() },
            ..case(vec![vec![read(a), read(b)], vec![change(a)]])
        },
        Case { faults: ticks(3), ..case(vec![vec![read(a), read(a)], vec![change(a)]]) },
        Case { faults: Faults { cut_offs: 1, ..ticks(3) }, ..case(vec![vec![read(a)], vec![change(a)]]) },
        Case { faults: Faults { restarts: 1, ..Faults::default() }, ..case(vec![vec![read(a)], vec![change(a)]]) },
        Case { faults: Faults { restarts: 1, cut_offs: 1, ..ticks(2) }, ..case(vec![vec![read(a)], vec![change(a)]]) },
        Case { faults: Faults { stops: 1, ..ticks(1) }, ..case(vec![vec![read(a)], vec![change(a)]]) },
    ]
}

/// More states than any case has.
const ALL_STATES: usize = 150_000;

fn run(case: &Case, bug: Option<PlantedBug>, limit: usize) -> Result<Found, String> {
    explore(World::new(&case.programs, case.limits, &[16], case.faults, bug), limit)
}

/// Goal: in no order of requests, replies, revocations, answers, expiry and faults may a client use a value that the
/// target no longer has. Every call ends. Method: all reachable states of small programs.
#[test]
fn every_order_is_coherent_and_ends() {
    let (mut late_grants, mut hits) = (false, false);
    for (n, case) in cases().iter().enumerate() {
        match run(case, None, ALL_STATES) {
            Ok(found) => {
                println!("case {n}: {} states", found.states);
                assert!((50..=ALL_STATES).contains(&found.states), "the exploration has to be complete");
                late_grants |= found.late_grants;
                hits |= found.hits;
            }
            Err(reason) => panic!("case {n}: {reason}"),
        }
    }
    assert!(late_grants && hits, "grants were overtaken, and values were used");
}

/// Goal: the exploration would notice. Method: each planted mistake is found by at least one of the cases.
#[test]
fn exploration_finds_planted_mistakes() {
    let bugs = [
        PlantedBug::GrantDuringChange,
        PlantedBug::OverlookRevoked,
        PlantedBug::IgnoreCutOff,
        PlantedBug::SkipRecovery,
        PlantedBug::NoBarrier,
        PlantedBug::NoOwnBarrier,
        PlantedBug::KeepOwn,
        PlantedBug::LifeFromReply,
        PlantedBug::RevokeNumberTooLow,
    ];
    for bug in bugs {
        assert!(cases().iter().any(|case| run(case, Some(bug), 20_000).is_err()), "{bug:?} was not found");
    }
}
