//! `amphi`: the one binary. Owns the command line, the embedded cluster, server and mount processes, the demo and
//! the benchmarks. Does not own any file system logic: front ends and processes put the rooms below together.

mod bench;
mod cmd;
mod control;
mod demo;
mod failure;
mod process;
mod size;

use clap::{CommandFactory, Parser, Subcommand};
use failure::Outcome;
use std::process::ExitCode;

/// A parallel file system in user space that chooses buffered or direct I/O for every request.
#[derive(Parser, Debug)]
#[command(
    name = "amphi",
    version,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 done, 1 failed while working, 2 the request or its surroundings are wrong and nothing was changed.\nLog lines go to standard error; AMPHI_LOG=debug shows more."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Up(cmd::up::Up),
    Server(cmd::server::Server),
    Mount(cmd::mount::Mount),
    Status(cmd::status::Status),
    Stats(cmd::stats::Stats),
    Get(cmd::tune::Get),
    Set(cmd::tune::Set),
    Layout(cmd::layout::Layout),
    Fsck(cmd::fsck::Fsck),
    Demo(demo::Demo),
    Bench(bench::Bench),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Up(c) => c.run(),
        Command::Server(c) => c.run(),
        Command::Mount(c) => c.run(),
        Command::Status(c) => c.run(),
        Command::Stats(c) => c.run(),
        Command::Get(c) => c.run(),
        Command::Set(c) => c.run(),
        Command::Layout(c) => c.run(),
        Command::Fsck(c) => c.run(),
        Command::Demo(c) => c.run(),
        Command::Bench(c) => c.run(),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "amphi", &mut std::io::stdout());
            Ok(())
        }
        Command::Man => manual(),
    }
}

/// One page with every subcommand behind the other.
fn manual() -> Outcome {
    use failure::During;
    let mut out = Vec::new();
    let command = Cli::command();
    clap_mangen::Man::new(command.clone()).render(&mut out).during(|| "write the manual".into())?;
    for sub in command.get_subcommands() {
        let title = format!("amphi-{}", sub.get_name());
        clap_mangen::Man::new(sub.clone()).title(title).render(&mut out).during(|| "write the manual".into())?;
    }
    std::io::Write::write_all(&mut std::io::stdout(), &out).during(|| "write the manual".into())
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("AMPHI_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .init();
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(f) => {
            eprintln!("amphi: {f}");
            ExitCode::from(f.code)
        }
    }
}
