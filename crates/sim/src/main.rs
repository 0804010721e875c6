//! `amphi-sim`: runs seeds of the cluster simulator, or replays one.

use amphi_sim::callbacks::Counts;
use amphi_sim::hostile::{Guise, Tally};
use amphi_sim::kernel::{self, appends, directories, games};
use amphi_sim::run::{Faults, Plan, Summary, run_plan};
use amphi_transport::Secure;
use clap::{Parser, ValueEnum};
use std::ops::Range;
use std::process::ExitCode;

#[derive(Clone, Copy, ValueEnum)]
enum FaultsArg {
    None,
    Callbacks,
    Crashes,
    All,
}

/// The parts of the cluster.
#[derive(clap::Args)]
struct ClusterArgs {
    /// Number of servers, 1 to 4; without it the seed decides.
    #[arg(long)]
    servers: Option<usize>,
    /// Number of mounts, 1 to 6; without it the seed decides.
    #[arg(long)]
    mounts: Option<usize>,
    /// Whether servers keep no inode in memory longer than a request, true or false; without it the seed decides.
    #[arg(long)]
    forgetful: Option<bool>,
    /// How connections are protected: off, mac or tls; with mac and tls callbacks meet no faults of their own.
    #[arg(long, default_value = "off", value_parser = secure)]
    secure: Secure,
}

/// Runs the real server and the real client in one deterministic process and compares them with a reference.
#[derive(Parser)]
struct Args {
    /// Runs this seed alone and prints the history if it fails.
    #[arg(long)]
    seed: Option<u64>,
    /// Runs many seeds, `FROM..TO`.
    #[arg(long, value_parser = range)]
    seeds: Option<Range<u64>>,
    /// Faults to cause.
    #[arg(long, value_enum, default_value = "all")]
    faults: FaultsArg,
    /// Calls of each program in each episode, at most.
    #[arg(long)]
    calls: Option<u64>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Whether tasks on shared files take locks, true or false; without it the seed decides.
    #[arg(long)]
    locks: Option<bool>,
    /// Whether tasks use the file of cells, true or false; without it the seed decides.
    #[arg(long)]
    cells: Option<bool>,
    /// Mounts do nothing but fight for few files, with locks asked for ahead, groups, and tunables that change.
    #[arg(long)]
    contention: bool,
    /// Mounts with kernels in front that keep pages, attributes and names, and give them back late.
    #[arg(long)]
    kernel: bool,
    /// As --kernel, with directories that are kept open, and whose listings the kernels keep.
    #[arg(long)]
    directories: bool,
    /// As --kernel, with a file to which descriptors append that rely on their positions.
    #[arg(long)]
    appends: bool,
    /// Instead of seeds: this many hostile inputs from each of an unauthenticated client, a mount of a user, a mount of
    /// root, a mount that is bound to a tree, a server, an administrator.
    #[arg(long)]
    hostile: Option<u64>,
    /// Prints every call as it happens.
    #[arg(long)]
    talk: bool,
    /// Prints the log of the product, from this level on: error, warn, info, debug, trace.
    #[arg(long)]
    log: Option<tracing_subscriber::filter::LevelFilter>,
    /// Continues after a failing seed.
    #[arg(long)]
    keep_going: bool,
}

/// Sums over the runs of contention.
#[derive(Debug, Default)]
struct Fights {
    callbacks: u64,
    contended: u64,
    ahead: u64,
    piped: u64,
    grouped: u64,
    stopped: u64,
    killed: u64,
}

impl Fights {
    fn add(&mut self, s: &Summary) {
        self.callbacks += s.callbacks;
        self.contended += s.contended;
        self.ahead += s.ahead;
        self.piped += s.piped;
        self.grouped += s.grouped;
        self.stopped += s.stopped;
        self.killed += s.killed;
    }
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("of the form FROM..TO")?;
    let number = |t: &str| t.parse::<u64>().map_err(|e| e.to_string());
    Ok(number(from)?..number(to)?)
}

fn secure(text: &str) -> Result<Secure, String> {
    Secure::parse(text).ok_or_else(|| "off, mac or tls".into())
}

/// Hostile inputs in each of these roles; a cluster of its own for each `HOSTILE_STEP` of them.
fn hostile(seed: u64, inputs: u64) -> ExitCode {
    const HOSTILE_STEP: u64 = 5_000;
    let mut failed = false;
    for guise in Guise::ALL {
        let mut sum = Tally::default();
        for step in 0..inputs.div_ceil(HOSTILE_STEP) {
            let (seed, inputs) = (seed + step, HOSTILE_STEP.min(inputs - step * HOSTILE_STEP));
            match amphi_sim::hostile::run(seed, guise, inputs) {
                Ok(tally) => sum.add(&tally),
                Err(why) => {
                    println!("{guise:?}, seed {seed}: {why}");
                    println!("replay: cargo xtask hostile {inputs} {seed}");
                    failed = true;
                    break;
                }
            }
        }
        println!("{guise:?}: {sum:?}");
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// A game with kernels: its seed, a mistake, whether every line is printed.
type Play = fn(u64, Option<kernel::Mistake>, bool) -> Result<kernel::Tally, kernel::Failure>;

/// Games with kernels that cache data under timeouts.
fn kernels(seeds: Range<u64>, talk: bool, keep_going: bool, (play, game): (Play, &str)) -> ExitCode {
    let (mut sum, mut failed, single) = (kernel::Tally::default(), Vec::new(), seeds.end - seeds.start == 1);
    for seed in seeds {
        match play(seed, None, talk) {
            Ok(tally) => sum.add(&tally),
            Err(failure) => {
                if single && !talk {
                    failure.story.iter().for_each(|line| println!("{line}"));
                }
                println!("seed {seed} fails: {}", failure.line);
                println!("replay: cargo xtask sim {game} --seed {seed}");
                failed.push(seed);
                if !keep_going {
                    break;
                }
            }
        }
    }
    println!("{sum:?}, failed: {failed:?}");
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(level) = args.log {
        tracing_subscriber::fmt().with_max_level(level).without_time().with_ansi(false).init();
    }
    if let Some(inputs) = args.hostile {
        return hostile(args.seed.unwrap_or(1), inputs);
    }
    let seeds = match (args.seed, args.seeds.clone()) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(seeds)) => seeds,
        (None, None) => 0..100,
    };
    let game: Option<(Play, &str)> = match (args.kernel, args.directories, args.appends) {
        (_, true, _) => Some((directories::play, "--directories")),
        (_, _, true) => Some((appends::play, "--appends")),
        (true, ..) => Some((games::play, "--kernel")),
        _ => None,
    };
    if let Some(game) = game {
        return kernels(seeds, args.talk, args.keep_going, game);
    }
    let single = args.seed.is_some();
    let faults = match args.faults {
        FaultsArg::None => Faults::None,
        FaultsArg::Callbacks => Faults::Callbacks,
        FaultsArg::Crashes => Faults::Crashes,
        FaultsArg::All => Faults::All,
    };
    let (mut failed, mut calls, mut crashes, mut done) = (Vec::new(), 0, 0, 0);
    let (mut batched, mut lent, mut ahead, mut circles) = (0, 0, 0, 0);
    let mut fights = Fights::default();
    let mut late = Counts::default();
    for seed in seeds {
        let mut plan = Plan::of_seed(seed);
        (plan.faults, plan.talk) = (faults, args.talk);
        (plan.servers, plan.mounts, plan.locks, plan.cells) =
            (args.cluster.servers, args.cluster.mounts, args.locks, args.cells);
        plan.contention = args.contention;
        (plan.secure, plan.forgetful) = (args.cluster.secure, args.cluster.forgetful);
        plan.calls = args.calls.unwrap_or(plan.calls);
        done += 1;
        match run_plan(&plan) {
            Ok(s) => {
                (calls, crashes) = (calls + s.calls, crashes + s.server_crashes + s.mount_crashes);
                (batched, lent, ahead) = (batched + s.batched, lent + s.lent, ahead + s.opened_ahead);
                circles += s.circles;
                fights.add(&s);
                late.add(&s.faults_of_callbacks);
                if single {
                    println!("seed {seed} agrees: {s:?}");
                } else if done % 50 == 0 {
                    println!("{done} seeds, {calls} calls, {crashes} crashes, {} failed", failed.len());
                }
            }
            Err(failure) => {
                if single && !args.talk {
                    failure.history.iter().for_each(|l| println!("{l}"));
                }
                println!("seed {seed} fails:");
                failure.lines.iter().take(30).for_each(|l| println!("  {l}"));
                let of = |option: &str, n: Option<usize>| n.map_or(String::new(), |n| format!(" --{option} {n}"));
                let (servers, mounts) = (of("servers", args.cluster.servers), of("mounts", args.cluster.mounts));
                let locks = args.locks.map_or(String::new(), |on| format!(" --locks {on}"));
                let cells = args.cells.map_or(String::new(), |on| format!(" --cells {on}"));
                let forgetful = args.cluster.forgetful.map_or(String::new(), |on| format!(" --forgetful {on}"));
                let contention = if args.contention { " --contention" } else { "" };
                let secure = match args.cluster.secure {
                    Secure::Off => String::new(),
                    level => format!(" --secure {level}"),
                };
                let faults = match faults {
                    Faults::All => String::new(),
                    other => format!(" --faults {}", format!("{other:?}").to_lowercase()),
                };
                println!(
                    "replay: cargo xtask sim --seed {seed}{servers}{mounts}{locks}{cells}{forgetful}{contention}{secure}{faults}"
                );
                failed.push(seed);
                if !args.keep_going {
                    break;
                }
            }
        }
    }
    if args.contention {
        println!("{fights:?}");
    }
    if late != Counts::default() {
        println!("Callbacks {late:?}");
    }
    println!(
        "{done} seeds, {calls} calls, {crashes} crashes, {batched} writes in batches, {lent} without a copy, {ahead} files opened ahead, {circles} circles of waits, failed: {failed:?}"
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
