//! The folder of a demo.
//!
//! Owns: its permitted contents, and that it belongs to a demo: a file of its own marks it from the first moment on,
//! and is locked for as long as the demo runs. So whatever ends a demo, the next one recognizes its remains, ends its
//! processes, and removes them; other files in the folder belong to a user. Does not own: the files of the steps.
//!
//! Invariant: nothing is removed below a mount point that is still mounted.

use super::RESULTS;
use amphi_host::control;
use amphi_host::failure::{During, Failure, Outcome};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The mark of a folder that belongs to a demo.
const MARK: &str = ".amphi-demo";
/// The folders that a demo makes and removes.
const OWN: [&str; 3] = ["data", "mount", "raw"];

/// The folder of the demo that runs.
pub struct Folder {
    dir: PathBuf,
    /// Locked until it goes.
    mark: OwnedFd,
}

impl Folder {
    /// Makes the folder or takes that of a demo before; both are empty then.
    ///
    /// Errors: a user's files are in it, or a demo runs there.
    pub fn take(dir: &Path) -> Outcome<Folder> {
        let shown = dir.display();
        let names = match std::fs::read_dir(dir) {
            Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(Failure::refused(format!("{shown}: {e}; name another folder with --dir"))),
            Ok(entries) => entries.filter_map(|e| Some(e.ok()?.file_name())).collect(),
        };
        let was_marked = names.iter().any(|name| name == MARK);
        let may_be = |name: &str| RESULTS.contains(&name) || (was_marked && (OWN.contains(&name) || name == MARK));
        if let Some(other) = names.iter().find(|name| !name.to_str().is_some_and(may_be)) {
            return Err(Failure::refused(format!(
                "{shown}: exists already and has more in it than table and picture of a demo ({}); remove it or name \
                 another folder with --dir",
                other.display()
            )));
        }
        std::fs::create_dir_all(dir).during(|| format!("make {shown}"))?;
        let mark = dir.join(MARK);
        let opened = open(&mark, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::from_raw_mode(0o644));
        let mark = opened.during(|| format!("make {}", mark.display()))?;
        if flock(&mark, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(Failure::refused(format!("{shown}: a demo is running there; name another folder with --dir")));
        }
        let folder = Folder { dir: dir.to_path_buf(), mark };
        folder.remove_own()?;
        for name in RESULTS {
            let _ = std::fs::remove_file(dir.join(name));
        }
        Ok(folder)
    }

    /// A folder in it, which is made.
    pub fn make(&self, name: &str) -> Outcome<PathBuf> {
        debug_assert!(OWN.contains(&name), "nobody would take it away");
        let dir = self.dir.join(name);
        std::fs::create_dir_all(&dir).during(|| format!("make {}", dir.display()))?;
        Ok(dir)
    }

    /// The demo is over: its files are removed, except its results, and the folder with it if nothing else is there.
    /// `keep`: all of it stays, and is the user's from now on.
    pub fn end(self, keep: bool) -> Outcome {
        let outcome = if keep { Ok(()) } else { self.remove_own() };
        if outcome.is_ok() {
            let _ = std::fs::remove_file(self.dir.join(MARK));
            // The folder is removed only if nothing is left in it.
            let _ = std::fs::remove_dir(&self.dir);
        }
        drop(self.mark);
        outcome
    }

    fn remove_own(&self) -> Outcome {
        unmount(&self.dir.join("mount"))?;
        for name in OWN {
            let dir = self.dir.join(name);
            match std::fs::remove_dir_all(&dir) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(e).during(|| format!("remove {}", dir.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Ends a mount that was left there, with the cluster behind it.
fn unmount(mount: &Path) -> Outcome {
    // Links on the way are followed also to a mount point that does not answer.
    let Ok(real) = mount.parent().unwrap_or(mount).canonicalize().map(|dir| dir.join("mount")) else { return Ok(()) };
    let is_mounted = || control::mounts().contains(&real);
    let program = std::env::current_exe().during(|| "find this program".into())?;
    for more in [None, Some("--force")] {
        if is_mounted() {
            let mut command = Command::new(&program);
            command.arg("umount").args(more).arg(&real);
            let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
    match is_mounted() {
        true => Err(Failure::broken(format!("{}: cannot be unmounted: amphi umount --force", real.display()))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the remains of a demo are taken over, whatever ended it; a user's files and a demo that runs are not.
    /// Method: folders as they may be found.
    #[test]
    fn folders_that_are_taken() {
        let place = tempfile::tempdir().expect("a folder");
        let dir = place.path().join("out");
        let first = Folder::take(&dir).expect("it is new");
        std::fs::write(first.make("data").expect("made").join("zone"), b"1").expect("write");
        let second = Folder::take(&dir).err().expect("a demo runs there");
        assert!(second.code == 2 && second.text.contains("running"), "{second}");
        // The demo ends as if it had been killed.
        drop(first);
        std::fs::write(dir.join(RESULTS[0]), b"").expect("write");
        let next = Folder::take(&dir).expect("it is a demo's");
        let names = || std::fs::read_dir(&dir).expect("list").count();
        assert_eq!(names(), 1, "the mark alone");
        next.make("raw").expect("made");
        next.end(false).expect("ended");
        assert!(!dir.exists());
        let kept = Folder::take(&dir).expect("it is new");
        kept.make("data").expect("made");
        kept.end(true).expect("ended");
        let refused = Folder::take(&dir).err().expect("it is the user's");
        assert!(refused.code == 2 && refused.text.contains("(data)"), "{refused}");
        std::fs::write(dir.join(MARK), b"").expect("write");
        std::fs::write(dir.join("thesis.tex"), b"").expect("write");
        assert!(Folder::take(&dir).err().expect("other files").text.contains("thesis.tex"));
        assert!(dir.join("data").exists());
    }
}
