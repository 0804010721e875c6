//! Project tasks: `cargo xtask tidy` checks what a machine can check of the house rules; `cargo xtask sim`
//! runs or replays seeds of the cluster simulator.

mod tidy;

use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask tidy
       cargo xtask sim [--seed N | --seeds FROM..TO] [further options of the simulator]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("tidy") => tidy::run(),
        Some("sim") => {
            let status = Command::new(env!("CARGO"))
                .args(["run", "--quiet", "--release", "--package", "amphi-sim", "--"])
                .args(&args[1..])
                .status();
            match status {
                Ok(s) if s.success() => ExitCode::SUCCESS,
                Ok(_) => ExitCode::FAILURE,
                Err(e) => {
                    eprintln!("xtask: cannot run cargo: {e}");
                    ExitCode::FAILURE
                }
            }
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
