//! `amphi stage`: copies a file or a tree so that the copy appears as a whole or not at all.
//!
//! Owns the words and the progress on a terminal; the copying is `amphi_stage`. The last object of `--json` has the
//! schema `amphi.stage/1`, docs/OPERATIONS.md §Stage.

use amphi_env::real::monotonic;
use amphi_host::failure::{Failure, Outcome};
use amphi_host::{say, size};
use amphi_stage::{Error, ErrorKind, Existing, Keep, Leftovers, Manifest, Notes, Options, Phase, Progress, Verify};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Copy a file or a tree, in parallel, between any two file systems: into a temporary name beside the target, read back
/// and compared, then renamed. The same command again after a crash goes on where it ended. Exit code 0: the target is
/// complete; 1: it is not, and what was copied is kept for the next try; 2: refused, nothing was changed.
#[derive(Args, Debug)]
pub struct Stage {
    /// File or directory to copy, then the name of the copy, whose folder has to exist (with --clean only that name)
    #[arg(required = true, num_args = 1..=2, value_names = ["SOURCE", "TARGET"])]
    paths: Vec<PathBuf>,
    /// Threads that copy; default: two for each core, 4 to 16
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=512))]
    threads: Option<u16>,
    /// Put the copy in the place of an existing target, which is removed
    #[arg(long, conflicts_with = "update")]
    replace: bool,
    /// Bring an existing target up to date: copy what differs in size, time of modification or kind
    #[arg(long)]
    update: bool,
    /// Remove from an updated target what the source does not have; nothing if anything of the source failed
    #[arg(long, requires = "update")]
    delete: bool,
    /// What to do if owners, modes, attributes or special files cannot be preserved
    #[arg(long, value_enum, default_value_t = Kept::All)]
    keep: Kept,
    /// Do not read the target back
    #[arg(long)]
    no_verify: bool,
    /// First remove what unfinished stages left beside the target, those of this stage included
    #[arg(long)]
    clean: bool,
    /// Print JSON at the end
    #[arg(long)]
    json: bool,
}

/// The attributes that have to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kept {
    /// Preserve all of them, or fail
    All,
    /// Preserve those that the destination can store, and list the others
    Possible,
}

/// Time between two checks of the counters.
const LOOK: Duration = Duration::from_millis(100);
/// Most notes of a kind that are printed.
const SAID_MAX: usize = 10;

impl Stage {
    /// Stages, and reports the result.
    pub fn run(self) -> Outcome {
        let progress = Progress::default();
        let [source, target] = match self.paths.as_slice() {
            [source, target] => [source.clone(), target.clone()],
            [target] if self.clean => {
                amphi_stage::clean(target, &progress).map_err(failure)?;
                say_notes("note", &progress.remarks);
                return Ok(());
            }
            _ => return Err(Failure::refused("amphi stage needs a source and a target: amphi stage SOURCE TARGET")),
        };
        let options = self.options(source, target);
        let start = monotonic();
        let staged = watched(&options, &progress);
        let seconds = monotonic().since(start).as_secs_f64();
        say_notes("note", &progress.remarks);
        say_notes("failed", &progress.failed);
        say_notes("not kept", &progress.not_kept);
        let manifest = match staged {
            Ok(manifest) => manifest,
            Err(e) => {
                if self.json {
                    let empty = Manifest { verified: options.verify == Verify::Yes, ..Manifest::default() };
                    println!("{}", object(&options, &empty, &progress, seconds, Some(&e)));
                }
                return Err(failure(e));
            }
        };
        if self.json {
            println!("{}", object(&options, &manifest, &progress, seconds, None));
        } else if manifest.complete {
            println!("{}", summary(&options, &manifest, &progress, seconds));
        }
        if manifest.complete { Ok(()) } else { Err(self.incomplete(&options, &progress)) }
    }

    fn options(&self, source: PathBuf, target: PathBuf) -> Options {
        let plain = Options::new(source, target);
        Options {
            threads: self.threads.map_or(plain.threads, usize::from),
            existing: match (self.replace, self.update, self.delete) {
                (true, ..) => Existing::Replace,
                (_, true, true) => Existing::UpdateAndDelete,
                (_, true, false) => Existing::Update,
                _ => Existing::Refuse,
            },
            keep: if self.keep == Kept::All { Keep::All } else { Keep::Possible },
            verify: if self.no_verify { Verify::No } else { Verify::Yes },
            leftovers: if self.clean { Leftovers::Remove } else { Leftovers::Stay },
            ..plain
        }
    }

    /// Says why there is no complete target, and what to do.
    fn incomplete(&self, options: &Options, progress: &Progress) -> Failure {
        let target = amphi_stage::show(&options.target);
        let state = if self.update { "is not up to date in all" } else { "was not made" };
        let (failed, lost) = (progress.failed.count(), progress.not_kept.count());
        if failed > 0 {
            return Failure::broken(format!(
                "{target}: {state}: {failed} entries failed; what was copied is kept: mend them and give the same command again"
            ));
        }
        Failure::broken(format!(
            "{target}: {state}: {lost} owners, modes, attributes or special files cannot be kept; what was copied is kept: \
             give the same command as a user who may, or with --keep possible"
        ))
    }
}

fn failure(e: Error) -> Failure {
    match e.kind {
        ErrorKind::Refused => Failure::refused(e.text),
        ErrorKind::Failed => Failure::broken(e.text),
    }
}

/// Stages while another thread shows how far it is, if there is a terminal.
fn watched(options: &Options, progress: &Progress) -> Result<Manifest, Error> {
    let bar = ProgressBar::no_length();
    if bar.is_hidden() {
        return amphi_stage::stage(options, progress);
    }
    let (done, over) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let over = over;
            let mut phase = None;
            while over.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                draw(&bar, progress, &mut phase);
            }
            bar.finish_and_clear();
        });
        let staged = amphi_stage::stage(options, progress);
        drop(done);
        staged
    })
}

/// Shows the progress; each phase has its own bar, so that rate and time left refer to the phase.
fn draw(bar: &ProgressBar, progress: &Progress, last: &mut Option<Phase>) {
    let phase = progress.phase();
    if last.replace(phase) != Some(phase) {
        let template = match phase {
            Phase::Listing | Phase::Finishing => "  {spinner} {msg} {elapsed}",
            _ => "  [{bar:24}] {bytes}/{total_bytes} {bytes_per_sec} {eta} left, {msg}",
        };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        bar.reset();
    }
    let (files, bytes) = (progress.files.get(), progress.bytes.get());
    let reach = |position: u64| {
        bar.set_length(bytes);
        bar.set_position(position.min(bytes));
    };
    match phase {
        Phase::Listing => bar.set_message(format!("{} entries listed", progress.entries.get())),
        Phase::Copying => {
            reach(progress.copied_bytes.get() + progress.skipped_bytes.get());
            let begun = progress.copied_files.get() + progress.skipped_files.get();
            bar.set_message(format!("{}/{files} files copied", begun.min(files)));
        }
        Phase::Verifying => {
            reach(progress.verified_bytes.get() + progress.trusted_bytes.get());
            bar.set_message("read back".to_string());
        }
        Phase::Finishing => bar.set_message("attributes, names, sync".to_string()),
    }
    bar.tick();
}

fn say_notes(what: &str, notes: &Notes) {
    let first = notes.first();
    first.iter().take(SAID_MAX).for_each(|note| say::say(&format!("{what}: {}: {}", note.path, note.reason)));
    let more = notes.count().saturating_sub(SAID_MAX as u64);
    if more > 0 {
        say::say(&format!("{what}: {more} more"));
    }
}

fn summary(options: &Options, manifest: &Manifest, progress: &Progress, seconds: f64) -> String {
    let target = amphi_stage::show(&options.target);
    if manifest.already {
        return format!("{target}: was whole already; what an earlier run had left to remove is removed");
    }
    let (copied, skipped) = (progress.copied_bytes.get(), progress.skipped_files.get());
    let rate = size::show((copied as f64 / seconds.max(1e-3)) as u64);
    let checked = if manifest.verified { "read back and compared" } else { "not read back" };
    let mut text = format!(
        "{target}: {} files, {} copied in {seconds:.1} s ({rate}/s), {checked}",
        progress.files.get(),
        size::show(copied)
    );
    if skipped > 0 {
        text.push_str(&format!("; {skipped} files needed no copy"));
    }
    if progress.deleted.get() > 0 {
        text.push_str(&format!("; {} removed", progress.deleted.get()));
    }
    text
}

/// The manifest as JSON.
fn object(options: &Options, manifest: &Manifest, progress: &Progress, seconds: f64, error: Option<&Error>) -> Value {
    let notes = |notes: &Notes| {
        let first: Vec<Value> =
            notes.first().into_iter().map(|note| json!({ "path": note.path, "reason": note.reason })).collect();
        json!({ "count": notes.count(), "first": first })
    };
    let verified = match manifest.verified {
        true => json!({ "bytes": progress.verified_bytes.get() }),
        false => Value::Null,
    };
    json!({
        "schema": "amphi.stage/1",
        "source": amphi_stage::show(&options.source),
        "target": amphi_stage::show(&options.target),
        "complete": manifest.complete,
        "already": manifest.already,
        "error": error.map(|e| e.text.clone()),
        "files": progress.files.get(),
        "bytes": progress.bytes.get(),
        "directories": manifest.directories,
        "symlinks": manifest.symlinks,
        "hard_links": manifest.hard_links,
        "specials": manifest.specials,
        "copied": { "files": progress.copied_files.get(), "bytes": progress.copied_bytes.get() },
        "skipped": { "files": progress.skipped_files.get(), "bytes": progress.skipped_bytes.get() },
        "verified": verified,
        "deleted": progress.deleted.get(),
        "seconds": seconds,
        "failed": notes(&progress.failed),
        "not_kept": notes(&progress.not_kept),
        "notes": notes(&progress.remarks),
    })
}
