//! The files of a mount that have the most to do, as rates.
//!
//! Owns: the order of the files, and the numbers that are reported of each. Does not own: which files the mount names
//! (`user.amphi.hot`).

use crate::change::Change;
use crate::snapshot::HotFile;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Files that are shown.
const FILES_MAX: usize = 20;

/// A file between two looks.
#[derive(Clone, Debug, PartialEq)]
pub struct Busy {
    /// The inode number of the file.
    pub ino: u64,
    /// The path of the file, if a process of this machine has it open; otherwise its inode number.
    pub name: String,
    /// How often the file is open on this mount.
    pub open: u64,
    /// Bytes read a second.
    pub read: f64,
    /// Bytes written a second.
    pub written: f64,
    /// Requests a second.
    pub requests: f64,
    /// Seconds that calls waited for its locks, a second: more than 1 if several wait.
    pub lock_wait: f64,
    /// How often in a second other mounts requested a part of the file that this mount has locked or cached.
    pub wanted: f64,
    /// Bytes that are not with the servers.
    pub dirty: u64,
}

impl Busy {
    /// Returns the table in the form in which `amphi top --json` shows it.
    pub fn json(&self) -> Value {
        json!({
            "file": self.name,
            "ino": self.ino,
            "open": self.open,
            "read_bytes_per_s": self.read,
            "write_bytes_per_s": self.written,
            "requests_per_s": self.requests,
            "lock_wait_s_per_s": self.lock_wait,
            "wanted_by_others_per_s": self.wanted,
            "dirty_bytes": self.dirty,
        })
    }
}

/// Files that did something between the looks, those with the most first. A file that was not in the first sample is
/// left out: everything that was ever done with it would be counted as done since.
pub fn files(change: &Change<'_>) -> Vec<Busy> {
    let before: BTreeMap<u64, &HotFile> = change.before.files.iter().map(|file| (file.ino, file)).collect();
    let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / change.seconds();
    let one = |after: &HotFile| {
        let before = before.get(&after.ino)?;
        let name = change.after.file_names.get(&after.ino).cloned();
        Some(Busy {
            ino: after.ino,
            name: name.unwrap_or_else(|| format!("inode {}", after.ino)),
            open: after.open,
            read: rate(before.read_bytes, after.read_bytes),
            written: rate(before.write_bytes, after.write_bytes),
            requests: rate(before.read_requests + before.write_requests, after.read_requests + after.write_requests),
            lock_wait: rate(before.lock_wait_ns, after.lock_wait_ns) / 1e9,
            wanted: rate(before.lock_callbacks + before.contended_told, after.lock_callbacks + after.contended_told),
            dirty: after.dirty_bytes,
        })
    };
    let mut files: Vec<Busy> = change.after.files.iter().filter_map(one).collect();
    files.retain(|file| file.requests > 0.0 || file.lock_wait > 0.0 || file.wanted > 0.0);
    // A second of waiting counts as much as 100 MB.
    let weight = |file: &Busy| file.read + file.written + 1e8 * file.lock_wait + 4096.0 * file.requests;
    files.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    files.truncate(FILES_MAX);
    files
}
