//! Seeds in which callbacks and their answers arrive late, twice or not at all, one message at a time, and a proof that
//! the checks detect errors.

use amphi_sim::callbacks::Counts;
use amphi_sim::plant::Plant;
use amphi_sim::run::{Faults, Plan, Summary, run_plan};

/// Seeds of contention; half as many ordinary ones, which take longer.
const SEEDS: u64 = 60;
/// Seeds within which a planted bug must be found.
const FOUND_WITHIN: u64 = 24;

fn must_agree(plan: &Plan) -> Summary {
    run_plan(plan).unwrap_or_else(|failure| {
        failure.history.iter().rev().take(60).rev().for_each(|line| println!("{line}"));
        let contention = if plan.contention { " --contention" } else { "" };
        let servers = plan.servers.map_or(String::new(), |n| format!(" --servers {n}"));
        let faults = format!("{:?}", plan.faults).to_lowercase();
        let replay = format!("cargo xtask sim --seed {}{servers}{contention} --faults {faults}", plan.seed);
        panic!("seed {} fails; replay: {replay}\n{}", plan.seed, failure.lines.join("\n"))
    })
}

fn sum_of(plans: impl Iterator<Item = Plan>) -> Counts {
    let mut sum = Counts::default();
    plans.for_each(|plan| sum.add(&must_agree(&plan).faults_of_callbacks));
    println!("{sum:?}");
    sum
}

/// Goal: Promise S2, Promise S3: mounts that compete for few files agree, whatever faults their callbacks and answers
/// have: no mount is ended, no byte is lost, no old data is shown. Method: seeds of contention in which only callbacks
/// have faults; there must be enough of each kind, also callbacks of locks that were returned and callbacks to mounts
/// that had newer ones.
#[test]
fn fights_agree() {
    let plan = |seed| Plan { faults: Faults::Callbacks, contention: true, ..Plan::of_seed(seed) };
    let sum = sum_of((7_000_000..7_000_000 + SEEDS).map(plan));
    let enough = sum.late > 5 * SEEDS && sum.repeated > 5 * SEEDS && sum.lost > SEEDS / 2;
    let old = sum.after_return > SEEDS && sum.with_newer > SEEDS / 4 && sum.very_late > 0;
    let with_connections = sum.lost_with_connection > SEEDS && sum.answers_late > SEEDS && sum.answers_lost > SEEDS;
    assert!(enough && old && with_connections, "these are few faults: {sum:?}");
}

/// Goal: Promise S1, Promise S2: programs of several mounts see the results of the reference, whatever faults
/// revocations, glimpses, callbacks and their answers have. Method: ordinary seeds with faults of callbacks alone, on
/// one to three servers.
#[test]
fn programs_agree() {
    let plan = |seed| {
        let (servers, mounts) = (Some(1 + seed as usize % 3), Some(2 + seed as usize % 2));
        Plan { faults: Faults::Callbacks, servers, mounts, ..Plan::of_seed(seed) }
    };
    let sum = sum_of((7_100_000..7_100_000 + SEEDS / 2).map(plan));
    assert!(sum.late > SEEDS && sum.repeated > SEEDS && sum.lost > SEEDS / 4, "these are few faults: {sum:?}");
}

/// Goal: the checks soon find the bugs that they are made for. Method: every planted bug of callbacks, seed after seed,
/// until one fails; the same seed agrees without it.
#[test]
fn planted_bugs_are_found() {
    for plant in Plant::OF_CALLBACKS {
        let faults = Faults::Callbacks;
        let plan = |seed| Plan { faults, contention: true, plant: Some(plant), ..Plan::of_seed(seed) };
        let finds = |seed| run_plan(&plan(seed)).err().map(|failure| (seed, failure.lines));
        let found = (7_200_000..7_200_000 + FOUND_WITHIN).find_map(finds);
        let Some((seed, lines)) = found else { panic!("{plant:?} was not found within {FOUND_WITHIN} seeds") };
        println!("{plant:?} was found by seed {seed}: {}", lines.join("; "));
        must_agree(&Plan { plant: None, ..plan(seed) });
    }
}

/// Goal: a run is a function of its seed. Method: each of two seeds is run twice.
#[test]
fn equal_seeds_give_equal_traces() {
    for seed in 7_300_000..7_300_002 {
        let plan = Plan { faults: Faults::Callbacks, contention: true, ..Plan::of_seed(seed) };
        let run = || run_plan(&plan).map_err(|f| f.lines);
        assert_eq!(run(), run(), "seed {seed}");
    }
}
