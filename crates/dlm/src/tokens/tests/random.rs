//! Long random programs with drifting clocks, tight bounds, sessions that end and restarts.

use super::world::{Faults, Op, Step, World};
use super::{attributes, listing, name};
use crate::tests::Random;
use crate::tokens::PlantedBug;
use crate::tokens::TokenKey;
use crate::tokens::server::{HistoryLimits, TokenLimits};

fn key(random: &mut Random) -> TokenKey {
    match random.below(6) {
        5 => listing(),
        n if n < 3 => attributes(n + 1),
        n => name(n),
    }
}

fn op(random: &mut Random) -> Op {
    match random.below(10) {
        0 => Op::Change(vec![(key(random), false, false)]),
        1 => Op::Change(vec![(key(random), true, false)]),
        2 => {
            let hash = 3 + random.below(2);
            Op::Change(vec![(name(hash), true, false), (listing(), true, true), (attributes(1), true, true)])
        }
        3 => {
            let victim = (attributes(1 + random.below(3)), false, false);
            Op::Change(vec![(name(3), true, false), (name(4), true, false), (listing(), true, true), victim])
        }
        _ => Op::Read(key(random)),
    }
}

fn run(seed: u64, bug: Option<PlantedBug>) -> Result<u32, String> {
    let mut random = Random::new(seed);
    let programs: Vec<Vec<Op>> = (0..4).map(|_| (0..40).map(|_| op(&mut random)).collect()).collect();
    let tight = seed.is_multiple_of(2);
    let limits = TokenLimits {
        life_ns: 160,
        // Clocks differ by up to 1 in 16 to either side.
        margin_ns: 24,
        max_tokens: if tight { 9 } else { 64 },
        max_session_tokens: if tight { 4 } else { 64 },
        trim_batch: 1 + (seed % 3) as usize,
        history: HistoryLimits { max_dirs: 1, window_ns: 20, hold_ns: 20 },
        ..TokenLimits::default()
    };
    let restarts = if seed.is_multiple_of(3) { 2 } else { 0 };
    let faults = Faults { ticks: 0, cut_offs: (seed % 2) as u32, stops: (seed % 4 / 2) as u32, restarts };
    let mut world = World::new(&programs, limits, &[16, 15, 17, 16], faults, bug);
    loop {
        world.pass(random.below(6));
        let mut enabled = world.steps();
        let rare = |step: &Step| matches!(step, Step::CutOff(_) | Step::Stop(_) | Step::Restart);
        if random.below(40) > 0 {
            enabled.retain(|step| !rare(step));
        }
        if enabled.is_empty() {
            let hits = world.hits;
            return world.finish().map(|()| hits);
        }
        let choice = random.below(enabled.len() as u64);
        world.take(enabled[choice as usize])?;
    }
}

/// Goal: coherence, bounds and progress hold over long runs with drifting clocks, tight tables, sessions that end and
/// restarts. Method: random schedules of random programs.
#[test]
fn random_schedules_are_coherent() {
    let mut hits = 0;
    for seed in 0..400 {
        match run(seed, None) {
            Ok(of_run) => hits += of_run,
            Err(reason) => panic!("seed {seed}: {reason}"),
        }
    }
    assert!(hits > 1000, "only {hits} values were used");
}

/// Goal: the random checks would notice. Method: planted mistakes are found within some seeds.
#[test]
fn random_schedules_find_planted_mistakes() {
    let bugs = [
        PlantedBug::GrantDuringChange,
        PlantedBug::OverlookRevoked,
        PlantedBug::NoBarrier,
        PlantedBug::NoOwnBarrier,
        PlantedBug::KeepOwn,
        PlantedBug::RevokeNumberTooLow,
    ];
    for bug in bugs {
        assert!((0..400).any(|seed| run(seed, Some(bug)).is_err()), "{bug:?} was not found");
    }
}
