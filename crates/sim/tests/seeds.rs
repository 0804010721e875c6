//! Seeds of the cluster simulation that every change has to pass, and the proof that they look. `contention.rs` has
//! those of contention.

use amphi_sim::plant::Plant;
use amphi_sim::run::{Faults, Plan, Summary, run_plan};
use amphi_transport::Secure;

/// Seeds of each of the two tests; together with the recorded seeds they take about three minutes on two cores.
const SEEDS: u64 = 50;
/// Seeds within which a planted bug must be found.
const FOUND_WITHIN: u64 = 60;
/// The same for a bug that shows only if a mount is killed at the right moment: 2 in 100 seeds find it.
const RARE_FOUND_WITHIN: u64 = 200;

fn must_agree(plan: &Plan) -> Summary {
    run_plan(plan).unwrap_or_else(|failure| {
        for line in failure.history.iter().rev().take(60).rev() {
            println!("{line}");
        }
        let faults = match plan.faults {
            Faults::None => "none",
            Faults::Callbacks => "callbacks",
            Faults::Crashes => "crashes",
            Faults::All => "all",
        };
        let servers = plan.servers.map_or(String::new(), |n| format!(" --servers {n}"));
        let locks = plan.locks.map_or(String::new(), |on| format!(" --locks {on}"));
        let cells = plan.cells.map_or(String::new(), |on| format!(" --cells {on}"));
        let secure = plan.secure;
        let seed = plan.seed;
        panic!(
            "seed {seed} fails; replay: cargo xtask sim --seed {seed}{servers}{locks}{cells} --secure {secure} --faults {faults}\n{}",
            failure.lines.join("\n")
        );
    })
}

fn run(seeds: impl Iterator<Item = u64>) {
    let (mut batched, mut lent, mut circles, mut resent) = (0, 0, 0, 0);
    for seed in seeds {
        // Most with all faults; without any, whatever goes wrong is simplest to understand.
        let faults = match seed % 5 {
            0 => Faults::None,
            1 => Faults::Crashes,
            _ => Faults::All,
        };
        let of_seed = must_agree(&Plan { faults, ..Plan::of_seed(seed) });
        (batched, lent, circles) = (batched + of_seed.batched, lent + of_seed.lent, circles + of_seed.circles);
        resent += of_seed.resent;
    }
    println!("{batched} batched, {lent} lent, {circles} circles, {resent} resent");
    // Otherwise nothing shows that repeated requests are not executed again.
    assert!(resent > SEEDS / 10, "only {resent} requests came again and were answered as before");
    assert!(batched > 3 * SEEDS, "only {batched} small writes left in batches");
    assert!(lent > SEEDS / 4, "only {lent} requests took the memory of the cache");
    assert!(circles > SEEDS / 10, "only {circles} waits were refused for a circle");
}

/// Goal: Promise S1, Promise S2, Promise S3, Promise S4, Promise S5, Promise S6, Promise S7, Promise S9, Promise S10,
/// Promise S11, Promise S12, Promise S13, Promise S18, Promise S19, Promise S20, Promise S21: programs on a mount see
/// what the reference says, through crashes and cuts, and after crashes of the mount and of power what was promised is
/// there. Method: even seeds of the simulation.
#[test]
fn even_seeds_agree() {
    run((0..SEEDS).map(|i| 1_000_000 + 2 * i));
}

/// The same as `even_seeds_agree`, on the other core.
#[test]
fn odd_seeds_agree() {
    run((0..SEEDS).map(|i| 1_000_001 + 2 * i));
}

/// Goal: Promise S23: the same on connections that are signed or encrypted, whose bytes the network damages now and
/// then. Method: seeds with servers and mounts on nodes of their own, at both levels.
#[test]
fn protected_clusters_agree() {
    for (at, secure) in [Secure::Mac, Secure::Tls].into_iter().cycle().take(16).enumerate() {
        let (servers, mounts) = (Some(1 + at % 3), Some(2));
        must_agree(&Plan { servers, mounts, secure, ..Plan::of_seed(4_000_000 + at as u64) });
    }
}

/// Goal: a seed that once failed does not fail again. Method: the seeds of seeds.txt with each kind of faults, on as
/// many servers as when they failed; they are older than locks and cells.
#[test]
fn kept_seeds_agree() {
    for line in include_str!("../seeds.txt").lines().filter(|l| !l.starts_with('#')) {
        let mut numbers = line.split(' ').map(|n| n.parse().ok());
        let (Some(Some(seed)), Some(Some(servers))) = (numbers.next(), numbers.next()) else {
            panic!("seeds.txt: {line:?} does not begin with two numbers")
        };
        for faults in [Faults::None, Faults::Crashes, Faults::All] {
            let (locks, cells) = (Some(false), Some(false));
            // Clusters of several servers had one mount.
            let (servers, mounts) = (Some(servers as usize), (servers > 1).then_some(1));
            must_agree(&Plan { faults, servers, mounts, locks, cells, ..Plan::of_seed(seed) });
        }
    }
}

/// Goal: a run is a function of its seed. Method: some seeds twice; hash of all events, calls and faults are equal.
#[test]
fn equal_seeds_give_equal_traces() {
    for seed in 2_000_000..2_000_006 {
        let run = || run_plan(&Plan::of_seed(seed)).map_err(|f| f.lines);
        assert_eq!(run(), run(), "seed {seed}");
    }
    let trace = |seed| run_plan(&Plan::of_seed(seed)).map(|s| s.trace).map_err(|f| f.lines);
    assert_ne!(trace(2_000_000), trace(2_000_001), "different seeds differ");
}

/// Goal: the checks find the bugs that they are made for. Method: every planted bug, seed after seed, until one fails;
/// the same seed agrees without it.
#[test]
fn planted_bugs_are_found() {
    for plant in Plant::ALL {
        let finds = |seed: u64| {
            run_plan(&Plan { plant: Some(plant), ..Plan::of_seed(seed) }).err().map(|failure| (seed, failure.lines))
        };
        let within = if plant == Plant::CachedRecords { RARE_FOUND_WITHIN } else { FOUND_WITHIN };
        let found = (3_000_000..3_000_000 + within).find_map(finds);
        let Some((seed, lines)) = found else { panic!("{plant:?} was not found within {within} seeds") };
        println!("{plant:?} was found by seed {seed}: {}", lines.join("; "));
        must_agree(&Plan::of_seed(seed));
    }
}
