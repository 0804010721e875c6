//! The counters of the caches of running jobs on this machine, read from outside.
//!
//! Owns finding the shared memory of a file (a memfd without a name, `segment`) among the descriptors of processes, and
//! reading its counters. Does not own: what is counted (`stats`). Only processes of the same user can be examined, as
//! the kernel requires for `/proc/PID/fd`. The super-user may examine all processes.
//!
//! Nothing of the memory is mapped or changed. Another process owns the memory, so impossible numbers in it are
//! skipped.

use crate::segment::{HEADER_BYTES, Snapshot};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Most processes, and most descriptors of each, that are examined.
const LOOKS_MAX: usize = 1 << 20;

/// Finds the parts of the file that the jobs on this machine cache; there is one entry for each job and node of a job.
pub fn find(path: &Path) -> std::io::Result<Vec<Snapshot>> {
    let file = fs::metadata(path)?;
    let wanted = (file.dev(), file.ino());
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    for process in fs::read_dir("/proc")?.flatten().take(LOOKS_MAX) {
        let is_process = process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        for descriptor in descriptors.flatten().take(if is_process { LOOKS_MAX } else { 0 }) {
            let link = descriptor.path();
            let is_cache = fs::read_link(&link).is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(NAME));
            // Each rank has descriptors of the same memory.
            if is_cache
                && let Ok(memory) = fs::metadata(&link)
                && seen.insert((memory.dev(), memory.ino()))
                && let Some(snapshot) = look(&link, memory.len())
                && snapshot.file == wanted
            {
                found.push(snapshot);
            }
        }
    }
    found.sort_by_key(|snapshot| snapshot.pid);
    Ok(found)
}

/// How such a memory shows among the descriptors of a process.
const NAME: &[u8] = b"/memfd:amphi-mpiio";

#[expect(clippy::disallowed_types, reason = "memory of other processes, no file")]
fn look(link: &Path, length: u64) -> Option<Snapshot> {
    let memory = fs::File::open(link).ok()?;
    let mut header = [0; HEADER_BYTES as usize];
    memory.read_exact_at(&mut header, 0).ok()?;
    Snapshot::read(&header, length, |bytes, offset| memory.read_exact_at(bytes, offset).is_ok())
}
