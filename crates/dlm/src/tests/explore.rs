//! Every order of events of small programs.

use super::PlantedBug;
use super::world::{Extent, Op, World};
use crate::client::CacheLimits;
use crate::mode::Mode;
use amphi_types::ByteRange;
use std::collections::BTreeSet;

struct Found {
    states: usize,
    ends: usize,
    early_callbacks: bool,
}

/// Depth-first over all steps of all states, each state once.
fn explore(world: World, limit: usize) -> Result<Found, String> {
    let mut visited = BTreeSet::from([world.fingerprint()]);
    let mut found = Found { states: 1, ends: 0, early_callbacks: false };
    let mut stack = vec![world];
    while let Some(world) = stack.pop() {
        let steps = world.steps();
        if steps.is_empty() {
            world.check_end()?;
            found.ends += 1;
        }
        for step in steps.into_iter().chain(world.faults()) {
            let mut next = world.clone();
            next.take(step)?;
            found.early_callbacks |= next.met_early_callback > 0;
            if visited.insert(next.fingerprint()) {
                found.states += 1;
                assert!(found.states <= limit, "the state space is larger than the test was made for");
                stack.push(next);
            }
        }
    }
    Ok(found)
}

fn op(mode: Mode, start: u64, end: u64, value: u32) -> Op {
    Op { object: 0, mode, range: ByteRange::new(start, end), direct: false, extent: Extent::Grown, group: None, value }
}

fn exact(op: Op) -> Op {
    Op { extent: Extent::Exact, ..op }
}

/// Just the lock, and whether or not it is had.
fn ahead(mode: Mode, start: u64, end: u64) -> Op {
    Op { extent: Extent::Ahead, ..op(mode, start, end, 0) }
}

fn direct(op: Op) -> Op {
    Op { direct: true, ..op }
}

/// I/O under the lock of a group. `last`: the group lock is returned after it.
fn in_group(group: u64, last: bool, op: Op) -> Op {
    Op { group: Some((group, last)), ..op }
}

/// Programs with groups: members of one group, strangers, another group, and direct requests of both sides.
fn group_programs() -> Vec<Vec<Vec<Op>>> {
    use Mode::{Read, Write};
    vec![
        // Two members and a stranger who caches.
        vec![
            vec![op(Write, 0, 2, 1), in_group(7, true, op(Write, 0, 1, 2)), op(Read, 0, 2, 0)],
            vec![in_group(7, true, op(Write, 1, 2, 3))],
            vec![op(Read, 0, 2, 0), op(Write, 0, 2, 4)],
        ],
        // Two groups, and direct requests in and out of them.
        vec![
            vec![in_group(7, false, op(Write, 0, 1, 1)), in_group(7, true, direct(op(Write, 0, 1, 2)))],
            vec![in_group(8, true, direct(op(Write, 0, 2, 3))), op(Read, 0, 2, 0)],
            vec![direct(op(Read, 0, 2, 0)), direct(op(Write, 1, 2, 4))],
        ],
        // Members in turn, one of them twice, while another client waits for the end.
        vec![
            vec![in_group(7, true, op(Write, 0, 1, 1)), in_group(7, true, op(Read, 0, 1, 0))],
            vec![in_group(7, false, direct(op(Write, 1, 2, 2))), in_group(7, true, op(Read, 1, 2, 0))],
            vec![direct(op(Write, 0, 2, 3))],
        ],
        vec![
            vec![op(Read, 0, 2, 0), in_group(7, true, op(Write, 0, 1, 1)), op(Write, 0, 2, 5), op(Read, 0, 2, 0)],
            vec![op(Write, 1, 2, 2), in_group(8, true, op(Write, 1, 2, 3)), op(Read, 0, 2, 0)],
        ],
    ]
}

/// Programs with lock-ahead of bytes that other clients have locked, request, or request ahead as well. Such locks are
/// used, called back or never used.
fn ahead_programs() -> Vec<Vec<Vec<Op>>> {
    use Mode::{Read, Write};
    vec![
        vec![
            vec![ahead(Write, 0, 2), op(Write, 0, 2, 1), op(Read, 0, 2, 0)],
            vec![op(Write, 1, 2, 2), op(Read, 0, 2, 0)],
        ],
        vec![
            vec![ahead(Write, 0, 1), ahead(Write, 1, 2), op(Write, 0, 1, 1), op(Write, 1, 2, 2)],
            vec![ahead(Write, 1, 2), op(Write, 1, 2, 3), op(Read, 0, 2, 0)],
        ],
        vec![
            vec![ahead(Read, 0, 2), op(Read, 0, 2, 0), ahead(Write, 0, 1), op(Write, 0, 1, 1)],
            vec![ahead(Read, 1, 3), direct(op(Write, 0, 2, 2)), op(Read, 0, 2, 0)],
        ],
        vec![
            vec![ahead(Write, 0, 1), op(Write, 0, 1, 1), op(Read, 0, 2, 0)],
            vec![ahead(Write, 0, 1), exact(op(Write, 0, 2, 2))],
            vec![direct(op(Read, 0, 2, 0)), ahead(Read, 0, 2)],
        ],
    ]
}

/// Programs in which any session may end at any time, each with those whose do.
fn ending_programs() -> Vec<(Vec<usize>, Vec<Vec<Op>>)> {
    use Mode::{Read, Write};
    vec![
        (vec![0], vec![vec![op(Write, 0, 2, 1), op(Read, 0, 2, 0)], vec![op(Write, 1, 3, 2), op(Read, 0, 3, 0)]]),
        (vec![0, 1], vec![vec![op(Write, 0, 2, 1)], vec![op(Read, 0, 2, 0), op(Write, 0, 1, 2)]]),
        (vec![0, 1], vec![vec![op(Write, 0, 2, 1), direct(op(Write, 1, 3, 2))], vec![direct(op(Read, 0, 2, 0))]]),
        (vec![0], vec![vec![op(Write, 0, 2, 1)], vec![op(Write, 0, 1, 2)], vec![direct(op(Write, 0, 2, 3))]]),
        (
            vec![0, 2],
            vec![
                vec![op(Write, 0, 2, 1), op(Read, 0, 2, 0)],
                vec![exact(op(Write, 1, 2, 2)), op(Read, 0, 2, 0)],
                vec![direct(op(Write, 0, 2, 3)), op(Read, 0, 1, 0)],
            ],
        ),
        (vec![0], vec![vec![ahead(Write, 0, 1), op(Write, 0, 2, 1)], vec![ahead(Read, 0, 2), op(Read, 0, 2, 0)]]),
        (
            vec![0],
            vec![
                vec![in_group(7, false, op(Write, 0, 1, 1)), in_group(7, true, direct(op(Write, 0, 1, 2)))],
                vec![op(Read, 0, 2, 0), direct(op(Write, 0, 2, 3))],
            ],
        ),
        (
            vec![0],
            vec![
                vec![in_group(7, true, op(Write, 0, 1, 1))],
                vec![in_group(7, true, direct(op(Write, 1, 2, 2)))],
                vec![op(Read, 0, 2, 0)],
            ],
        ),
    ]
}

/// Programs during which the server restarts once.
fn restart_programs() -> Vec<Vec<Vec<Op>>> {
    use Mode::{Read, Write};
    vec![
        vec![vec![op(Write, 0, 2, 1), op(Read, 0, 2, 0)], vec![op(Write, 1, 2, 2), op(Read, 0, 2, 0)]],
        vec![vec![ahead(Write, 0, 1), op(Write, 0, 2, 1)], vec![ahead(Write, 0, 2), op(Read, 0, 2, 0)]],
        vec![vec![op(Write, 0, 2, 1), direct(op(Write, 1, 3, 2))], vec![direct(op(Read, 0, 2, 0)), op(Read, 0, 3, 0)]],
        vec![vec![in_group(7, true, op(Write, 0, 1, 1))], vec![op(Read, 0, 2, 0), direct(op(Write, 0, 2, 3))]],
        vec![
            vec![op(Write, 0, 1, 1), op(Read, 0, 2, 0)],
            vec![op(Write, 0, 2, 2), ahead(Read, 0, 1)],
            vec![direct(op(Read, 0, 2, 0)), op(Write, 1, 2, 3)],
        ],
    ]
}

fn world(programs: &[Vec<Op>], bug: Option<PlantedBug>) -> World {
    World::new(programs, CacheLimits::default(), bug)
}

fn with_ends(ends: &[usize], programs: &[Vec<Op>], bug: Option<PlantedBug>) -> World {
    let mut world = world(programs, bug);
    world.evictable = ends.iter().copied().collect();
    world
}

/// Pairs and triples of programs that meet every kind of conflict.
fn programs() -> Vec<Vec<Vec<Op>>> {
    use Mode::{Read, Write};
    vec![
        vec![vec![op(Write, 0, 1, 1), op(Read, 0, 2, 0)], vec![op(Write, 1, 2, 2), op(Read, 0, 2, 0)]],
        // Both clients read and then write: the classic upgrade.
        vec![vec![op(Read, 0, 2, 0), op(Write, 0, 2, 1)], vec![op(Read, 0, 2, 0), op(Write, 0, 2, 2)]],
        // Overlapping exact locks of one client, taken back by halves.
        vec![
            vec![exact(op(Write, 0, 3, 1)), exact(op(Write, 2, 5, 2)), op(Read, 1, 4, 0)],
            vec![exact(op(Write, 0, 1, 3)), exact(op(Read, 2, 3, 0))],
        ],
        vec![
            vec![op(Write, 0, 2, 1), op(Read, 1, 2, 0)],
            vec![exact(op(Write, 1, 2, 2))],
            vec![direct(op(Write, 0, 2, 3))],
        ],
        vec![
            vec![op(Write, 0, 1, 1), op(Read, 0, 1, 0)],
            vec![op(Write, 0, 1, 2), op(Write, 1, 2, 4)],
            vec![direct(op(Read, 0, 2, 0)), direct(op(Write, 0, 1, 3))],
        ],
        vec![
            vec![op(Read, 0, 4, 0), exact(op(Write, 1, 2, 1)), op(Read, 0, 3, 0), op(Write, 2, 4, 2)],
            vec![exact(op(Write, 2, 3, 3)), op(Read, 0, 2, 0), exact(op(Write, 0, 4, 4)), op(Read, 0, 4, 0)],
        ],
        vec![
            vec![op(Write, 0, 2, 1), op(Read, 0, 3, 0)],
            vec![op(Read, 0, 3, 0), op(Write, 1, 3, 2)],
            vec![exact(op(Write, 2, 3, 3)), op(Read, 0, 1, 0)],
        ],
        // Clients that cache and make direct requests in turn.
        vec![
            vec![op(Write, 0, 2, 1), direct(op(Write, 1, 3, 2)), op(Read, 0, 3, 0)],
            vec![op(Write, 1, 3, 3), direct(op(Read, 0, 2, 0)), op(Read, 0, 3, 0)],
        ],
    ]
}

/// Goal: in every order of messages and I/O, no two holders conflict, every read sees the last write, and in every end
/// state all requests are satisfied. So there is no deadlock and no lost callback. Method: exhaustive exploration.
#[test]
fn every_order_is_coherent_and_ends() {
    let (mut states, mut early) = (0, false);
    for (n, programs) in programs().iter().enumerate() {
        match explore(World::new(programs, CacheLimits::default(), None), 400_000) {
            Ok(found) => {
                assert!(found.ends > 0 && found.states > 100, "programs {n} explored {} states", found.states);
                states += found.states;
                early |= found.early_callbacks;
            }
            Err(reason) => panic!("programs {n}: {reason}"),
        }
    }
    assert!(early, "a callback overtook its grant somewhere in {states} states");
}

/// Goal: the same with groups. No client outside a group does I/O while the group is in force, all clients see
/// afterwards what members wrote, data that was cached before is not used after, and every request is satisfied in the
/// end. Method: exhaustive.
#[test]
fn every_order_with_groups() {
    for (n, programs) in group_programs().iter().enumerate() {
        match explore(World::new(programs, CacheLimits::default(), None), 1_000_000) {
            Ok(found) => assert!(found.ends > 0 && found.states > 100, "programs {n}: {} states", found.states),
            Err(reason) => panic!("programs {n}: {reason}"),
        }
    }
}

/// Goal: locks returned for their number race with callbacks without harm. Method: exhaustive, with a bound of one
/// lock.
#[test]
fn every_order_with_a_tight_cache() {
    let limits = CacheLimits { max_locks: 1, cancel_linger_ns: 0, ..CacheLimits::default() };
    for programs in programs().iter().filter(|programs| programs.len() == 2) {
        if let Err(reason) = explore(World::new(programs, limits, None), 400_000) {
            panic!("{reason}");
        }
    }
}

/// Explores all of these; with as many states at most.
fn explore_all(worlds: impl IntoIterator<Item = World>, limit: usize) {
    for (n, world) in worlds.into_iter().enumerate() {
        match explore(world, limit) {
            Ok(found) => {
                assert!(found.ends > 0 && found.states > 100, "programs {n}: {} states", found.states);
                println!("programs {n}: {} states, {} ends", found.states, found.ends);
            }
            Err(reason) => panic!("programs {n}: {reason}"),
        }
    }
}

/// Goal: a lock-ahead is granted only if nothing conflicts, such locks behave like others, and every request is
/// answered. A client that waits for its own lock-ahead continues if it is refused. Method: exhaustive.
#[test]
fn every_order_with_locks_asked_for_ahead() {
    explore_all(ahead_programs().iter().map(|programs| world(programs, None)), 400_000);
}

/// Goal: a session that ends at any moment leaves no lock, request or group for which others wait. Only its disk
/// operations under way are finished. Other clients see what was on the disk. Method: exhaustive.
#[test]
fn every_order_with_ends_of_sessions() {
    explore_all(ending_programs().iter().map(|(ends, programs)| with_ends(ends, programs, None)), 1_000_000);
    let pairs = programs().into_iter().filter(|programs| programs.len() == 2);
    explore_all(pairs.map(|programs| with_ends(&[0], &programs, None)), 1_000_000);
}

/// Goal: a restart at any moment loses no lock and no request. Method: exhaustive.
#[test]
fn every_order_with_a_restart() {
    let restarting = |programs: &Vec<Vec<Op>>| {
        let mut world = world(programs, None);
        world.restarts = 1;
        world
    };
    explore_all(restart_programs().iter().map(restarting), 1_000_000);
    explore_all(programs().iter().filter(|programs| programs.len() == 2).map(restarting), 1_000_000);
}

/// Goal: the exploration can fail. Method: each harmful planted mistake of the server, and one of the client, must be
/// found.
#[test]
fn exploration_finds_planted_mistakes() {
    for bug in [PlantedBug::MissConflict, PlantedBug::LoseCallback] {
        let found = programs()
            .iter()
            .any(|programs| explore(World::new(programs, CacheLimits::default(), Some(bug)), 400_000).is_err());
        assert!(found, "{bug:?} was not found");
    }
    let is_found = |worlds: Vec<World>| worlds.into_iter().any(|world| explore(world, 1_000_000).is_err());
    let bug = Some(PlantedBug::GrantAhead);
    assert!(is_found(ahead_programs().iter().map(|programs| world(programs, bug)).collect()), "granted blindly");
    let bug = Some(PlantedBug::LeaveLocks);
    assert!(is_found(ending_programs().iter().map(|(e, p)| with_ends(e, p, bug)).collect()), "locks that are left");
    let found = programs().iter().any(|programs| {
        let mut world = World::new(programs, CacheLimits::default(), None);
        world.ignore_drop = true;
        explore(world, 400_000).is_err()
    });
    assert!(found, "data kept without a lock was not found");
}
