//! `amphi stats`: counters of a mount.

use crate::control;
use crate::failure::Outcome;
use clap::Args;
use std::path::PathBuf;

/// Show how a mount's requests went: how many, how large, buffered or direct and why.
#[derive(Args, Debug)]
pub struct Stats {
    /// Mount point, or a file or directory on it for its own counters; default: the only mount here
    path: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Start all counters of the mount again from zero after printing
    #[arg(long)]
    reset: bool,
}

impl Stats {
    /// Prints, then resets if asked.
    pub fn run(self) -> Outcome {
        let path = control::find_mount(self.path)?;
        let name = if self.json { "user.amphi.stats.json" } else { "user.amphi.stats" };
        let text = control::read(&path, name)?;
        print!("{text}");
        if !text.ends_with('\n') {
            println!();
        }
        if self.reset {
            control::write(&path, "user.amphi.stats", "reset", || "reset was refused".into())?;
        }
        Ok(())
    }
}
