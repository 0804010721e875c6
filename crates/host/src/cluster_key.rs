//! Files with cluster keys.
//!
//! Owns: reading a key file, or any other file with a secret, and refusing one that others can read. Does not own: the
//! key that a first server makes for itself (`amphi_process::own_key`), the test for weak keys, and the proof of a key
//! (`amphi_transport::auth`).

use crate::failure::{Failure, Outcome};
use amphi_transport::ClusterKey;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Bytes of a key file, at most: a larger one is a mistake.
const FILE_MAX: usize = 64 << 10;

/// Reads a cluster key and checks it.
///
/// Errors: the file cannot be read, others than its user can, or the key is weak.
pub fn read(path: Option<&Path>) -> Outcome<Option<(Vec<u8>, ClusterKey)>> {
    path.map(read_file).transpose()
}

/// Works as `read`, for a given path; also returns the bytes of the file.
pub fn read_file(path: &Path) -> Outcome<(Vec<u8>, ClusterKey)> {
    let bytes = read_secret(path, "cluster key")?;
    let key = ClusterKey::new(&bytes).map_err(|e| Failure::refused(format!("cluster key {}: {e}", path.display())))?;
    Ok((bytes, key))
}

/// Reads a file that is to be its user's secret.
///
/// Errors: the file cannot be read, or users other than its own can read or write it. `what` it is begins the line.
pub(crate) fn read_secret(path: &Path, what: &str) -> Outcome<Vec<u8>> {
    let refused = |e: String| Failure::refused(format!("{what} {}: {e}", path.display()));
    let io = |e: Errno| refused(std::io::Error::from(e).to_string());
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(io)?;
    let found = rustix::fs::fstat(&file).map_err(io)?;
    // A pipe of a shell is no file, and only this process reads it.
    if FileType::from_raw_mode(found.st_mode).is_file() {
        if found.st_mode & 0o077 != 0 {
            return Err(refused(format!("others can read it or write to it; chmod 600 {}", path.display())));
        }
        let (me, owner) = (rustix::process::geteuid().as_raw(), found.st_uid);
        if ![me, 0].contains(&owner) {
            return Err(refused(format!("it belongs to user {owner}, who can read it; chown it")));
        }
    }
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    while bytes.len() < FILE_MAX {
        match rustix::io::read(&file, &mut part).map_err(io)? {
            0 => break,
            n => bytes.extend_from_slice(&part[..n]),
        }
    }
    Ok(bytes)
}
