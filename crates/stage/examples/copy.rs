//! Stages from the command line: `copy SOURCE TARGET [no-verify]`; prints its counts.
//!
//! Shows how a program uses the crate. The command for people is `amphi stage`.

use amphi_stage::{Options, Progress, Verify, stage};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let [source, target, more @ ..] = words.as_slice() else {
        eprintln!("copy SOURCE TARGET [no-verify]");
        return ExitCode::from(2);
    };
    let verify = if more.is_empty() { Verify::Yes } else { Verify::No };
    let progress = Progress::default();
    match stage(&Options { verify, ..Options::new(source, target) }, &progress) {
        Ok(manifest) if manifest.complete => {
            println!("{} files, {} bytes copied", progress.copied_files.get(), progress.copied_bytes.get());
            ExitCode::SUCCESS
        }
        Ok(_) => {
            for note in progress.failed.first().iter().chain(&progress.not_kept.first()) {
                eprintln!("{}: {}", note.path, note.reason);
            }
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
