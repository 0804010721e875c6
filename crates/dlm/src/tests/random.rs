//! Long random programs of several clients, with ageing, tight caches and server restarts.

use super::world::{BYTES, Extent, Op, Step, World};
use super::{PlantedBug, Random};
use crate::client::CacheLimits;
use crate::mode::Mode;
use amphi_types::ByteRange;

/// The faults that happen sometimes.
#[derive(Clone, Copy)]
enum Faults {
    None,
    Restarts,
    /// Sessions end.
    Ends,
}

/// A program of client `n`: I/O of its own, and with `groups` sometimes I/O in one of two groups on a byte that only
/// this client uses.
fn program(random: &mut Random, n: u64, direct_percent: u64, groups: bool, next_value: &mut u32) -> Vec<Op> {
    let mut group: Option<(u64, u32)> = None;
    (0..30)
        .map(|step| {
            *next_value += 1;
            if let Some((number, of)) =
                group.or_else(|| (groups && random.below(6) == 0).then(|| (random.below(2), random.below(2) as u32)))
            {
                let last = step == 29 || random.below(3) == 0;
                group = (!last).then_some((number, of));
                return Op {
                    object: of,
                    mode: if random.below(2) == 0 { Mode::Read } else { Mode::Write },
                    range: ByteRange::at(n, 1),
                    direct: random.below(100) < direct_percent,
                    extent: Extent::Grown,
                    group: Some((number, last)),
                    value: *next_value,
                };
            }
            Op {
                object: random.below(2) as u32,
                mode: if random.below(2) == 0 { Mode::Read } else { Mode::Write },
                range: random.range(BYTES),
                direct: random.below(100) < direct_percent,
                extent: [Extent::Grown, Extent::Exact, Extent::Grown, Extent::Exact, Extent::Ahead]
                    [random.below(5) as usize],
                group: None,
                value: *next_value,
            }
        })
        .collect()
}

fn run(seed: u64, faults: Faults, groups: bool, bug: Option<PlantedBug>) -> Result<usize, String> {
    let mut random = Random::new(seed);
    let mut value = 0;
    let programs: Vec<Vec<Op>> = [(0, 0), (1, 10), (2, 30), (3, 100)]
        .map(|(n, direct)| program(&mut random, n, direct, groups, &mut value))
        .to_vec();
    let limits = CacheLimits {
        max_locks: if seed.is_multiple_of(2) { 3 } else { 64 },
        max_age_ns: 40,
        cancel_linger_ns: seed % 4 * 5,
        ..CacheLimits::default()
    };
    let mut world = World::new(&programs, limits, bug);
    let mut steps = 0;
    loop {
        world.now_ns += random.below(3);
        match faults {
            Faults::Restarts if random.below(150) == 0 => world.restart()?,
            Faults::Ends if random.below(60) == 0 => world.take(Step::Evict(random.below(4) as usize))?,
            Faults::None | Faults::Restarts | Faults::Ends => {}
        }
        let enabled = world.steps();
        if enabled.is_empty() {
            break;
        }
        // Old messages are delivered late: mostly the newest possibility goes first.
        let last = enabled.len() as u64 - 1;
        let choice = if random.below(3) == 0 { last } else { random.below(last + 1) };
        world.take(enabled[choice as usize])?;
        steps += 1;
    }
    world.check_end()?;
    for (locks, [nodes, _, ages, asked]) in world.footprints() {
        if (nodes, ages, asked) != (locks, locks, 0) {
            return Err(format!("{locks} locks, but {nodes} nodes, {ages} ages, {asked} requests"));
        }
    }
    Ok(steps)
}

/// Goal: coherence and progress hold over long runs with overlapping locks, ageing, tight bounds and direct requests.
/// Method: random schedules of random programs.
#[test]
fn random_schedules_are_coherent() {
    for seed in 0..150 {
        match run(seed, Faults::None, seed % 2 == 1, None) {
            Ok(steps) => assert!(steps > 200),
            Err(reason) => panic!("seed {seed}: {reason}"),
        }
    }
}

/// Goal: after a restart of the server, locks presented by clients hold again and nothing written is lost. Method: as
/// above, with restarts at random steps.
#[test]
fn random_restarts_are_coherent() {
    for seed in 0..150 {
        if let Err(reason) = run(seed, Faults::Restarts, seed % 2 == 1, None) {
            panic!("seed {seed}: {reason}");
        }
    }
}

/// Goal: sessions that end at any time leave no lock behind for which others wait, and take no lock from others.
/// Method: as above, with ends of sessions at random steps.
#[test]
fn random_ends_of_sessions_are_coherent() {
    for seed in 0..150 {
        if let Err(reason) = run(seed, Faults::Ends, seed % 2 == 1, None) {
            panic!("seed {seed}: {reason}");
        }
    }
}

/// Goal: the random checker can fail. Method: planted mistakes are found within a few seeds.
#[test]
fn random_schedules_find_planted_mistakes() {
    for bug in [PlantedBug::MissConflict, PlantedBug::LoseCallback] {
        assert!((0..20).any(|seed| run(seed, Faults::None, false, Some(bug)).is_err()), "{bug:?} was not found");
    }
    let leaves = |seed| run(seed, Faults::Ends, false, Some(PlantedBug::LeaveLocks)).is_err();
    assert!((0..20).any(leaves), "locks that are left were not found");
}
