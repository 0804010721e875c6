//! The audit log as files of a folder.
//!
//! Owns: the files, their rotation, their modes. Does not own: what is written (`amphi_server`).
//!
//! `audit.log` is written; when it is full it becomes `audit.log.1`, `audit.log.1` becomes `audit.log.2` and so on, and
//! the last file is deleted. The server may have been stopped in the middle of a line, so in this case the next line is
//! preceded by an end of line. A line counts as written when the kernel has it; the kernel writes it to the disk later,
//! so a loss of power may lose the last seconds.

use amphi_server::{AuditFull, AuditSink};
use clap::ValueEnum;
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Name of the folder in a server's data folder.
pub const FOLDER: &str = "audit";
/// Name of the file that is written.
const NAME: &str = "audit.log";
/// Bytes of a file.
const FILE_BYTES: u64 = 64 << 20;
/// Files, the one that is written included.
const FILES: u32 = 4;

/// The behaviour while the log cannot be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// The server continues, and reports this in its log.
    #[default]
    GoOn,
    /// Nobody new is let in, and no key is changed.
    Stop,
}

impl From<WhenFull> for AuditFull {
    fn from(when: WhenFull) -> AuditFull {
        match when {
            WhenFull::GoOn => AuditFull::GoOn,
            WhenFull::Stop => AuditFull::Stop,
        }
    }
}

struct Files {
    folder: PathBuf,
    file_bytes: u64,
    /// The file that is written, and its bytes.
    current: Option<(OwnedFd, u64)>,
}

impl Files {
    fn path(&self, n: u32) -> PathBuf {
        self.folder.join(if n == 0 { NAME.into() } else { format!("{NAME}.{n}") })
    }

    fn open(&mut self) -> io::Result<()> {
        let made = std::fs::DirBuilder::new();
        let made = std::os::unix::fs::DirBuilderExt::mode(&mut { made }, 0o700).create(&self.folder);
        made.or_else(|e| if e.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(e) })?;
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(self.path(0), flags, Mode::RUSR | Mode::WUSR)?;
        let bytes = rustix::fs::fstat(&file)?.st_size as u64;
        self.current = Some((file, bytes));
        if bytes > 0 {
            // The last line may have no end.
            self.append(b"\n")?;
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some((file, len)) = &mut self.current else { return Err(io::ErrorKind::NotFound.into()) };
        *len += bytes.len() as u64;
        match rustix::io::write(file, bytes)? {
            n if n == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.current = None;
        for n in (0..FILES - 1).rev() {
            match std::fs::rename(self.path(n), self.path(n + 1)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        if self.current.as_ref().is_some_and(|(_, len)| len + line.len() as u64 >= self.file_bytes) {
            self.rotate()?;
        }
        if self.current.is_none() {
            self.open()?;
        }
        let result = self.append(format!("{line}\n").as_bytes());
        if result.is_err() {
            // The file is opened again for the next line, which follows the written part of this one.
            self.current = None;
        }
        result
    }
}

fn sink_of(folder: &Path, file_bytes: u64) -> AuditSink {
    let files = Mutex::new(Files { folder: folder.into(), file_bytes, current: None });
    Arc::new(move |line| {
        let mut files = files.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match files.write(line) {
            Ok(()) => true,
            Err(e) => {
                tracing::warn!("audit log {}: {e}", files.path(0).display());
                false
            }
        }
    })
}

/// Writes the audit log into a folder, which is made if need be.
pub fn sink(folder: &Path) -> AuditSink {
    sink_of(folder, FILE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn lines(path: &Path) -> Vec<String> {
        std::fs::read_to_string(path).unwrap_or_default().lines().filter(|l| !l.is_empty()).map(String::from).collect()
    }

    /// Goal: the log has a bound, loses its oldest lines first, continues behind an incomplete line, is accessible to
    /// its user alone, and reports that it cannot be written. Method: small files; a truncated file; a path that is not
    /// a folder.
    #[test]
    fn files_are_rotated() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let folder = dir.path().join("audit");
        let write = sink_of(&folder, 1000);
        for n in 0..100 {
            assert!(write(&format!("{{\"n\":{n:090}}}")));
        }
        let names: Vec<_> = std::fs::read_dir(&folder).expect("there").map(|e| e.expect("entry").file_name()).collect();
        assert_eq!(names.len(), FILES as usize, "{names:?}");
        let mode = |path: &Path| std::fs::metadata(path).expect("there").mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join(NAME))), (0o700, 0o600));
        let kept: Vec<String> = (0..FILES)
            .rev()
            .flat_map(|n| lines(&folder.join(if n == 0 { NAME.into() } else { format!("{NAME}.{n}") })))
            .collect();
        assert!(kept.len() >= 30 && kept.last().is_some_and(|l| l.ends_with("99}")), "{kept:?}");
        assert!(kept.windows(2).all(|w| w[0] < w[1]), "in order, none twice");
        drop(write);
        std::fs::write(folder.join(NAME), b"{\"cut\":").expect("write");
        let write = sink_of(&folder, 1000);
        assert!(write("{\"next\":1}") && write("{\"next\":2}"));
        assert_eq!(lines(&folder.join(NAME)), ["{\"cut\":", "{\"next\":1}", "{\"next\":2}"]);
        std::fs::write(dir.path().join("file"), b"").expect("write");
        let write = sink_of(&dir.path().join("file"), 1000);
        assert!(!write("{}"));
        std::fs::remove_file(dir.path().join("file")).expect("removed");
        assert!(write("{}"), "it comes back by itself");
    }
}
