//! `amphi publish`: a tree that many processes write appears under its name at once and durably, or not at all.
//!
//! Owns the words and the progress; the steps are `amphi_publish`.

use amphi_host::failure::{Failure, Outcome};
use amphi_host::{say, size};
use amphi_publish::{Error, ErrorKind, Options, abort, begin, clean, commit, list, ready, rollback};
use clap::{Args, Subcommand};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

/// Give a tree that many processes write its name at once and durably, or not at all; or return to an earlier
/// generation.
///
/// TREE=$(amphi publish begin DIR --ranks 4); the ranks write into $TREE, and each calls `amphi publish ready $TREE
/// --rank R`; one of them calls `amphi publish commit $TREE --wait 600`.
#[derive(Args, Debug)]
pub struct Publish {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Make an empty tree beside DIR and print its path, for the ranks to write into
    Begin {
        /// The name that the tree will get; what has that name now stays until the commit
        dir: PathBuf,
        /// How many processes have to be ready before the commit
        #[arg(long, default_value_t = 1)]
        ranks: u32,
    },
    /// A rank is done: what it names is made stable, and may not change any more
    Ready {
        /// The path of the tree, as `begin` has printed it
        tree: PathBuf,
        /// The rank, counted from 0
        #[arg(long, default_value_t = 0)]
        rank: u32,
        /// Files and folders of this rank, within the tree
        paths: Vec<PathBuf>,
    },
    /// Make the whole tree stable, whoever wrote it, and give it its name in one step; if interrupted, repeat the
    /// command
    Commit {
        /// The path of the tree, as `begin` has printed it
        tree: PathBuf,
        /// Seconds to wait for ranks that are not ready
        #[arg(long, default_value_t = 0, value_name = "SECONDS")]
        wait: u64,
        /// Earlier generations that stay
        #[arg(long, default_value_t = 2, value_name = "N")]
        keep: usize,
    },
    /// Remove a tree that shall not be published
    Abort {
        /// The path of the tree, as `begin` has printed it
        tree: PathBuf,
    },
    /// Give the name back to the previous generation; the same command again undoes it
    Rollback {
        /// The name
        dir: PathBuf,
        /// Give the name to this generation, numbered as in `list`
        #[arg(long, value_name = "N")]
        to: Option<u64>,
    },
    /// Show what is being written for a name, and its earlier generations
    List {
        /// The name
        dir: PathBuf,
    },
    /// Remove trees that were begun and then abandoned
    Clean {
        /// The name
        dir: PathBuf,
        /// Only trees in which nothing, at any depth, has changed for this many minutes
        #[arg(long, default_value_t = 60, value_name = "MINUTES")]
        idle: u64,
    },
}

fn failure(e: Error) -> Failure {
    match e.kind {
        ErrorKind::Refused => Failure::refused(e.text),
        ErrorKind::Failed => Failure::broken(e.text),
    }
}

impl Publish {
    /// Executes the command.
    pub fn run(self) -> Outcome {
        self.act().map_err(failure)
    }

    fn act(self) -> Result<(), Error> {
        match self.action {
            Action::Begin { dir, ranks } => println!("{}", begin(&dir, ranks)?.display()),
            Action::Ready { tree, rank, paths } => ready(&tree, rank, &paths)?,
            Action::Commit { tree, wait, keep } => {
                let bar = Bar::new();
                let progress = |done: usize, all: usize| bar.show(done, all);
                let wait = Duration::from_secs(wait);
                let done = commit(&tree, &Options { keep, wait, progress: &progress, step: &|_| Ok(()) });
                bar.end();
                let done = done?;
                let dir = done.dir.display();
                match done.before {
                    true => println!("{dir}: had been published before"),
                    false => println!("{dir}: published, {} files, {}", done.files, size::show(done.bytes)),
                }
            }
            Action::Abort { tree } => abort(&tree)?,
            Action::Rollback { dir, to } => {
                let was = rollback(&dir, to)?;
                println!(
                    "{}: is generation {} again; the same with --to {} undoes it",
                    dir.display(),
                    was.number,
                    was.number
                );
            }
            Action::List { dir } => {
                let all = list(&dir)?;
                for open in &all.open {
                    let minutes = open.idle.as_secs() / 60;
                    println!(
                        "{}  {} of {} ranks ready, idle for {minutes} min",
                        open.tree.display(),
                        open.ready,
                        open.ranks
                    );
                }
                all.generations.iter().for_each(|g| println!("{}  generation {}", g.tree.display(), g.number));
                if all.open.is_empty() && all.generations.is_empty() {
                    say::say(&format!(
                        "{}: nothing is being written for it, and it has no earlier generation",
                        dir.display()
                    ));
                }
            }
            Action::Clean { dir, idle } => {
                let removed = clean(&dir, Duration::from_secs(idle.saturating_mul(60)))?;
                removed.iter().for_each(|tree| println!("removed {}", tree.display()));
            }
        }
        Ok(())
    }
}

/// How many files are stable, on a terminal.
struct Bar(Option<indicatif::ProgressBar>);

impl Bar {
    fn new() -> Bar {
        Bar(std::io::stderr().is_terminal().then(|| {
            let style = indicatif::ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} files, {eta} left");
            let bar = indicatif::ProgressBar::new(0).with_message("making stable");
            style.map(|style| bar.clone().with_style(style)).unwrap_or(bar)
        }))
    }

    fn show(&self, done: usize, all: usize) {
        if let Some(bar) = &self.0 {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
