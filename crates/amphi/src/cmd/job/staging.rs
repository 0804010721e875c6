//! The files that a job copies into its file system and out of it, as its options say.
//!
//! Owns: the options and their meaning. Does not own: the copying (`cmd::stage`), which the first node's keeper starts.

use super::messages::{Copy, Place, Task};
use amphi_host::failure::{Failure, Outcome};
use clap::{Args, ValueEnum};
use std::path::{Component, Path};
use std::time::Duration;

/// The options for copies in and out.
#[derive(Args, Clone, Debug)]
pub struct Staging {
    /// Copy this file or directory into the file system before the program begins, under this name or its own; the last
    /// colon separates; may be repeated
    #[arg(long, value_name = "SRC[:DST]")]
    stage_in: Vec<String>,
    /// Copy this file or directory of the file system to this place when the program has ended, whatever its exit code;
    /// may be repeated
    #[arg(long, value_name = "SRC:DST")]
    stage_out: Vec<String>,
    /// What to do if the target of a --stage-out exists
    #[arg(long, value_enum, default_value_t = Existing::Refuse, value_name = "HOW")]
    existing: Existing,
    /// Bring files out also if SIGTERM ends the job (time limit, preemption), once the program has ended
    #[arg(long)]
    stage_out_on_term: bool,
    /// How long to keep the file system, and to try again every minute, if files could not be brought out; 0: not at
    /// all
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    retry: u32,
}

/// The treatment of an existing target of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Existing {
    /// The job does not begin
    Refuse,
    /// Replace the target by the copy
    Replace,
    /// Update the target
    Update,
}

impl Staging {
    /// The copies into the file system.
    ///
    /// Errors: names that lead out of the file system.
    pub fn ins(&self) -> Outcome<Vec<Copy>> {
        let one = |text: &String| {
            let (from, to) = text.rsplit_once(':').unwrap_or((text, ""));
            let source = outside(from)?;
            let own = || Path::new(from).file_name().map(|name| name.to_string_lossy().into_owned());
            let name = if to.is_empty() { own().unwrap_or_default() } else { to.to_string() };
            let target = inside(&name)?;
            if target.is_empty() {
                return Err(Failure::refused(format!("--stage-in {text}: the copy needs a name, as SRC:DST")));
            }
            // The user who runs the job owns the files in its file system.
            let options = vec!["--keep".to_string(), "possible".into()];
            Ok(Copy { source: Place::Outside(source), target: Place::Inside(target), options })
        };
        self.stage_in.iter().map(one).collect()
    }

    /// The copies out of the file system.
    ///
    /// Errors: names that lead out of the file system, a missing target.
    pub fn outs(&self) -> Outcome<Vec<Copy>> {
        let one = |text: &String| {
            let Some((from, to)) = text.rsplit_once(':').filter(|(_, to)| !to.is_empty()) else {
                return Err(Failure::refused(format!("--stage-out {text}: where to? SRC:DST")));
            };
            let options = match self.existing {
                Existing::Refuse => Vec::new(),
                Existing::Replace => vec!["--replace".to_string()],
                Existing::Update => vec!["--update".to_string()],
            };
            Ok(Copy { source: Place::Inside(inside(from)?), target: Place::Outside(outside(to)?), options })
        };
        self.stage_out.iter().map(one).collect()
    }

    /// The order to look whether files can be brought out.
    pub fn check(&self, outs: &[Copy]) -> Task {
        let places = outs.iter().filter_map(|copy| match &copy.target {
            Place::Outside(path) => Some(path.clone()),
            Place::Inside(_) => None,
        });
        Task::Check { targets: places.collect(), may_exist: self.existing != Existing::Refuse }
    }

    /// Whether files are brought out of a job that SIGTERM ended.
    pub fn on_term(&self) -> bool {
        self.stage_out_on_term
    }

    /// How long files that could not be brought out are tried again.
    pub fn retry(&self) -> Duration {
        Duration::from_secs(self.retry.into())
    }
}

/// An absolute path; keepers have another working directory.
fn outside(path: &str) -> Outcome<String> {
    let whole = std::path::absolute(path).map_err(|e| Failure::refused(format!("'{path}': {e}")))?;
    Ok(whole.display().to_string())
}

/// A path below the mount.
fn inside(path: &str) -> Outcome<String> {
    let mut parts = Vec::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Failure::refused(format!("{path}: leads out of the job's file system")));
            }
        }
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staging(ins: &[&str], outs: &[&str]) -> Staging {
        let all = |texts: &[&str]| texts.iter().map(|text| (*text).to_string()).collect();
        Staging {
            stage_in: all(ins),
            stage_out: all(outs),
            existing: Existing::Refuse,
            stage_out_on_term: false,
            retry: 0,
        }
    }

    /// Goal: both sides of a copy are where they are meant to be, and nothing leads out of the file system. Method: a
    /// table.
    #[test]
    fn sides_of_copies() {
        let ins = staging(&["/a/data", "/a/b:c", "/a/b:/c/d", "/a:b:c"], &[]).ins().expect("good");
        let texts: Vec<String> = ins.iter().map(Copy::text).collect();
        assert_eq!(texts, ["/a/data to data", "/a/b to c", "/a/b to c/d", "/a:b to c"]);
        for bad in ["/", "/a:..", "/a:b/../c", "/a:."] {
            assert_eq!(staging(&[bad], &[]).ins().expect_err(bad).code, 2, "{bad}");
        }
        let outs = staging(&[], &["out:/a/b", "/out:/a", ".:/a"]).outs().expect("good");
        let texts: Vec<String> = outs.iter().map(Copy::text).collect();
        assert_eq!(texts, ["out to /a/b", "out to /a", " to /a"]);
        for bad in ["out", "out:", "../out:/a"] {
            assert_eq!(staging(&[], &[bad]).outs().expect_err(bad).code, 2, "{bad}");
        }
    }
}
