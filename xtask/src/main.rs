//! Project tasks: `cargo xtask tidy` checks what a machine can check of the house rules; `cargo xtask sim`
//! runs or replays seeds of the cluster simulator; `cargo xtask soak` kills servers and mounts under load; `cargo xtask
//! hostile` sends a server what no peer of ours would.

mod header;
mod performance;
mod tidy;

use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask tidy
       cargo xtask floors [CRATE ...]       folders from the bottom up, and the largest circle of files
       cargo xtask chains [CRATE ...]       how often code reaches through other rooms, and where in these crates
       cargo xtask map [CRATE]              what each file is, by the first sentence of its head
       cargo xtask code-map                 writes docs/CODE_MAP.md: the same of crates and folders
       cargo xtask header [--check]         writes crates/capi/include/amphi.h, the header of the C library
       cargo xtask performance [--check]    writes docs/PERFORMANCE.md and its pages from docs/results
       cargo xtask sim [--seed N | --seeds FROM..TO] [further options of the simulator]
       cargo xtask soak [ROUNDS [SEED]]     200 rounds unless told
       cargo xtask hostile [INPUTS [SEED]]  of each guise; 100,000 unless told
       cargo xtask loom                     every interleaving of what shares memory without a lock";

/// Runs cargo to its end.
fn cargo(command: &mut Command) -> ExitCode {
    match command.status() {
        Ok(s) if s.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("xtask: cannot run cargo: {e}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("tidy") => tidy::run(),
        Some("floors") => tidy::floors(&args[1..]),
        Some("chains") => tidy::chains(&args[1..]),
        Some("map") => tidy::map(args.get(1).map(String::as_str)),
        Some("code-map") => tidy::code_map(),
        Some("header") => header::run(&args[1..]),
        Some("performance") => tidy::performance(&args[1..]),
        Some("sim") => {
            let run = ["run", "--quiet", "--release", "--package", "amphi-sim", "--"];
            cargo(Command::new(env!("CARGO")).args(run).args(&args[1..]))
        }
        Some("hostile") => {
            let inputs = args.get(1).map_or("100000", String::as_str);
            let seed = args.get(2).map_or("1", String::as_str);
            let run = ["run", "--quiet", "--release", "--package", "amphi-sim", "--"];
            cargo(Command::new(env!("CARGO")).args(run).args(["--hostile", inputs, "--seed", seed]))
        }
        Some("soak") => {
            let rounds = args.get(1).map_or("200", String::as_str);
            let seed = args.get(2).map_or("1", String::as_str);
            let test = ["test", "--release", "--package", "amphi", "--test", "e2e", "soak", "--", "--nocapture"];
            cargo(Command::new(env!("CARGO")).args(test).env("AMPHI_SOAK_ROUNDS", rounds).env("AMPHI_SOAK_SEED", seed))
        }
        Some("loom") => {
            // Each of them is compiled in a build of its own: nothing but these tests works with loom's atomics.
            for (package, tests) in [("amphi-sched", "bell"), ("amphi-shm", "rules"), ("amphi-client", "marks")] {
                let test = ["test", "--locked", "--package", package, "--features", "loom", "--lib", tests];
                let ended = cargo(Command::new(env!("CARGO")).args(test));
                if ended != ExitCode::SUCCESS {
                    return ended;
                }
            }
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
