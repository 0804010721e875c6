//! The data folders that `amphi up` has used: a file with their paths.
//!
//! Owns: where that file lies, its form, its bound. Does not own: what follows for a folder that is empty now
//! (`cmd::up`).
//!
//! If a folder was in use before and is now empty or missing, the most frequent reason is a disk that is not mounted.
//! So the file is not in the folder itself. It is in `$AMPHI_STATE`, for root in `/var/lib/amphi-state`, and for others
//! in `$XDG_STATE_HOME/amphi` or `~/.local/state/amphi`. The file is a help and not a lock: a process that cannot write
//! it continues without it.
//!
//! Bound: the last `FOLDERS_MAX` folders.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Folders that are remembered.
const FOLDERS_MAX: usize = 4096;
/// Name of the file.
const FILE: &str = "folders";

/// The folder for notes of this user, or for root that of the machine.
pub fn state_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let system = || rustix::process::geteuid().is_root().then(|| PathBuf::from("/var/lib/amphi-state"));
    let user = || set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
    set("AMPHI_STATE").or_else(system).or_else(|| user().map(|dir| dir.join("amphi")))
}

/// The folders of this user, or of the machine for root.
pub struct KnownFolders {
    dir: Option<PathBuf>,
}

impl KnownFolders {
    /// The folders that this process uses.
    pub fn here() -> KnownFolders {
        KnownFolders { dir: state_folder() }
    }

    /// The folders recorded in `dir`.
    #[cfg(test)]
    fn at(dir: &Path) -> KnownFolders {
        KnownFolders { dir: Some(dir.to_path_buf()) }
    }

    /// The file in which the folders are recorded.
    pub fn file(&self) -> Option<PathBuf> {
        self.dir.as_ref().map(|dir| dir.join(FILE))
    }

    fn all(&self) -> Vec<PathBuf> {
        let bytes = self.file().and_then(|file| std::fs::read(file).ok()).unwrap_or_default();
        let lines = bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| PathBuf::from(OsStr::from_bytes(line))).collect()
    }

    /// Returns whether `folder`, an absolute path, was in use.
    pub fn has(&self, folder: &Path) -> bool {
        self.all().iter().any(|known| known == folder)
    }

    /// Notes that `folder`, an absolute path, is in use.
    ///
    /// Errors: why it cannot be noted.
    pub fn note(&self, folder: &Path) -> std::io::Result<()> {
        let (Some(dir), Some(file)) = (&self.dir, self.file()) else {
            return Err(std::io::Error::other("neither HOME nor AMPHI_STATE is set"));
        };
        let line = folder.as_os_str().as_bytes();
        if line.contains(&b'\n') {
            return Err(std::io::Error::other("its name has a line end"));
        }
        let mut all = self.all();
        if all.iter().any(|known| known == folder) {
            return Ok(());
        }
        std::fs::create_dir_all(dir)?;
        if all.len() < FOLDERS_MAX {
            // The line is appended with one write, so two processes at the same time do no harm.
            let mut out = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
            return out.write_all(&[line, b"\n"].concat());
        }
        all.drain(..all.len() + 1 - FOLDERS_MAX);
        all.push(folder.to_path_buf());
        let text: Vec<u8> = all.iter().flat_map(|known| [known.as_os_str().as_bytes(), b"\n"].concat()).collect();
        let fresh = dir.join(format!("{FILE}.{}", std::process::id()));
        std::fs::write(&fresh, text)?;
        std::fs::rename(fresh, file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each folder is remembered once, only the latest folders are kept, and an error while writing has no
    /// further effect. Method: more folders than the list holds.
    #[test]
    fn folders_are_remembered() {
        let place = tempfile::tempdir().expect("temporary folder");
        let known = KnownFolders::at(&place.path().join("state"));
        assert!(!known.has(Path::new("/a")));
        for _ in 0..2 {
            known.note(Path::new("/a")).expect("noted");
            known.note(Path::new("/a b")).expect("noted");
        }
        assert!(known.has(Path::new("/a")) && known.has(Path::new("/a b")) && !known.has(Path::new("/a/b")));
        assert_eq!(known.all().len(), 2);
        let text: String = (0..FOLDERS_MAX).map(|i| format!("/f{i}\n")).collect();
        std::fs::write(known.file().expect("a file"), text).expect("write");
        known.note(Path::new("/last")).expect("noted");
        assert_eq!(known.all().len(), FOLDERS_MAX);
        assert!(!known.has(Path::new("/f0")) && known.has(Path::new("/f1")) && known.has(Path::new("/last")));
        assert!(known.note(Path::new("/with\nline")).is_err());
        assert!(KnownFolders { dir: None }.note(Path::new("/a")).is_err());
    }
}
