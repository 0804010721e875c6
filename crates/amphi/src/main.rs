//! `amphi`: the one binary. Owns the command line, the embedded cluster, server and mount processes, the demo and
//! the benchmarks. Does not own any file system logic: front ends and processes put the rooms below together.

mod cmd;
mod config_file;
mod known_folders;
mod log_limit;
mod members;
mod own_socket;
mod secure;
mod storage;
mod storage_kind;
mod web;

use amphi_bench::demo;
use amphi_host::failure::Outcome;
use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// A parallel file system in user space that chooses buffered or direct I/O for every request.
#[derive(Parser, Debug)]
#[command(
    name = "amphi",
    version,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 done, 1 failed while working, 2 the request or its surroundings are wrong and nothing was changed.\nLog lines go to standard error; AMPHI_LOG=debug shows more.\nAMPHI_IO_MODE=auto|buffered|direct in the environment of a program on a mount chooses how the files that it opens go, AMPHI_ADVISE=large|small says in which pieces it reads, AMPHI_JOB=NAME the job for which they are counted."
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
    Umount(cmd::umount::Umount),
    Status(cmd::status::Status),
    Stats(cmd::stats::Stats),
    Top(cmd::top::Top),
    Explain(cmd::explain::Explain),
    Advise(cmd::explain::Advise),
    Record(cmd::record::Record),
    Replay(cmd::replay::Replay),
    WhatIf(cmd::what_if::WhatIf),
    Verify(cmd::verify::Verify),
    Metrics(cmd::metrics::Metrics),
    Calibrate(cmd::calibrate::Calibrate),
    Sync(cmd::sync::Sync),
    Stage(cmd::stage::Stage),
    Publish(cmd::publish::Publish),
    Get(cmd::tune::Get),
    Set(cmd::tune::Set),
    Layout(cmd::layout::Layout),
    Quota(cmd::quota::Quota),
    Key(cmd::key::Key),
    Evict(cmd::evict::Evict),
    Fsck(cmd::fsck::Fsck),
    Run(cmd::run::Run),
    Job(cmd::job::Job),
    Mpiio(cmd::mpiio::Mpiio),
    Demo(demo::Demo),
    Bench(amphi_bench::Bench),
    /// Print a completion script for a shell
    #[command(visible_alias = "completion")]
    Completions {
        /// The shell for which completions are printed
        shell: clap_complete::Shell,
    },
    Man(cmd::manual::Manual),
}

impl Command {
    /// Returns whether the command has to take something away again when it ends, such as a mount; it outlives its
    /// readers.
    fn holds_a_mount(&self) -> bool {
        matches!(
            self,
            Command::Up(_)
                | Command::Server(_)
                | Command::Mount(_)
                | Command::Demo(_)
                | Command::Bench(_)
                | Command::Job(_)
        )
    }

    /// Whether the command is no part of the job whose program gives it: a file system or a job of its own.
    fn outlives_a_job(&self) -> bool {
        matches!(self, Command::Up(_) | Command::Server(_) | Command::Mount(_) | Command::Job(_))
    }
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Up(c) => c.run(),
        Command::Server(c) => c.run(),
        Command::Mount(c) => c.run(),
        Command::Umount(c) => c.run(),
        Command::Status(c) => c.run(),
        Command::Stats(c) => c.run(),
        Command::Top(c) => c.run(),
        Command::Explain(c) => c.run(),
        Command::Advise(c) => c.run(),
        Command::Record(c) => c.run(),
        Command::Replay(c) => c.run(),
        Command::WhatIf(c) => c.run(),
        Command::Verify(c) => c.run(),
        Command::Metrics(c) => c.run(),
        Command::Calibrate(c) => c.run(),
        Command::Sync(c) => c.run(),
        Command::Stage(c) => c.run(),
        Command::Publish(c) => c.run(),
        Command::Get(c) => c.run(),
        Command::Set(c) => c.run(),
        Command::Layout(c) => c.run(),
        Command::Quota(c) => c.run(),
        Command::Key(c) => c.run(),
        Command::Evict(c) => c.run(),
        Command::Fsck(c) => c.run(),
        Command::Run(c) => c.run(),
        Command::Job(c) => c.run(),
        Command::Mpiio(c) => c.run(),
        Command::Demo(c) => c.run(),
        Command::Bench(c) => c.run(cmd::calibrate::disk_of),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "amphi", &mut std::io::stdout());
            Ok(())
        }
        Command::Man(c) => c.run(Cli::command()),
    }
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("AMPHI_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        // If nobody reads the log any more, nothing is logged, and the work continues.
        .log_internal_errors(false);
    tracing_subscriber::registry().with(filter).with(log_limit::LogLimit::default()).with(lines).init();
    if let Some(outcome) = cmd::mount_helper::run_if_named() {
        return exit_code(outcome);
    }
    let command = Cli::parse().command;
    if !command.holds_a_mount() {
        amphi_host::signals::end_when_nobody_reads();
        return exit_code(run(command));
    }
    let apart = if command.outlives_a_job() { cmd::job::processes::step_apart() } else { Ok(()) };
    exit_code(apart.and_then(|()| amphi_host::signals::raise_file_limit()).and_then(|()| run(command)))
}

fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(f) => {
            amphi_host::say::say_error(&f.to_string());
            ExitCode::from(f.code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const README: &str = include_str!("../../../README.md");
    const OPERATIONS: &str = include_str!("../../../docs/OPERATIONS.md");

    /// Long options of a command and everything below it.
    fn options(command: &clap::Command) -> BTreeSet<String> {
        let shown = command.get_arguments().filter(|a| !a.is_hide_set());
        let own = shown.filter_map(|a| a.get_long()).map(|l| format!("--{l}"));
        own.chain(command.get_subcommands().filter(|s| !s.is_hide_set()).flat_map(options)).collect()
    }

    /// Goal: the commands that the README shows can be typed. Method: its blocks, line by line, through the parser.
    #[test]
    fn the_readme_is_typed_right() {
        let blocks = README.split("```").skip(1).step_by(2).flat_map(str::lines);
        let typed = blocks.flat_map(|l| l.split('#').next().unwrap_or("").split(';')).map(str::trim);
        let mut seen = 0;
        for line in typed.filter(|l| l.starts_with("amphi ")) {
            let words = line.split_whitespace().map(|w| w.trim_matches('\''));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
            seen += 1;
        }
        assert!(seen >= 4, "the README shows the commands");
    }

    /// Goal: help, manual, completions and the operator's page name the same options and commands. Method: all of them.
    #[test]
    fn manual_and_completions_are_whole() {
        let command = Cli::command();
        command.clone().debug_assert();
        let known = options(&command);
        let pages = cmd::manual::pages(command.clone()).expect("pages").into_iter().flat_map(|page| page.text);
        let page = String::from_utf8(pages.collect()).expect("UTF-8").replace('\\', "");
        let mut script = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut command.clone(), "amphi", &mut script);
        let script = String::from_utf8(script).expect("UTF-8");
        for option in &known {
            assert!(page.contains(option.as_str()), "{option} is in the manual");
            assert!(script.contains(option.as_str()), "{option} is completed");
        }
        for sub in command.get_subcommands() {
            assert!(script.contains(sub.get_name()) && page.contains(sub.get_name()), "{}", sub.get_name());
        }
        let is_name = |c: char| c.is_ascii_lowercase() || c == '-';
        for (at, _) in OPERATIONS.match_indices("--") {
            let word: String = OPERATIONS[at..].chars().take_while(|c| is_name(*c)).collect();
            let begins = OPERATIONS[..at].ends_with([' ', '`', '[', '(', '|']);
            if begins && word.len() > 2 && word != "--help" && !word.trim_matches('-').is_empty() {
                assert!(known.contains(&word), "docs/OPERATIONS.md names {word}");
            }
        }
    }
}
