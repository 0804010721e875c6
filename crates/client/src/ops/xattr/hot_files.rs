//! The files of a mount that have the most to do at the moment (`user.amphi.hot`).
//!
//! Owns: which they are, and their JSON. Does not own: counting (`telemetry::stats`), and their names, which a client
//! does not keep.
//!
//! Bounds: a look visits at most `LOOKED_MAX` files that are open or have bytes to write back, and shows `SHOWN_MAX`.
//! If more files are open, each look begins at another part of the table.

use crate::inode::Inode;
use crate::mount::Mount;
use crate::telemetry::stats::FileSums;
use std::cmp::Reverse;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Most files that one search for busy files visits.
const LOOKED_MAX: usize = 4096;
/// Files that are shown.
const SHOWN_MAX: usize = 32;

/// Sums since the file was known here, of the hottest files, the hottest first.
pub(super) fn json(mount: &Mount) -> String {
    let mut files: Vec<(u64, FileSums, Arc<Inode>)> = mount.files.busy(LOOKED_MAX).into_iter().map(weigh).collect();
    files.retain(|(heat, ..)| *heat > 0);
    files.sort_by_key(|(heat, _, file)| (Reverse(*heat), file.ino));
    files.truncate(SHOWN_MAX);
    let mut out = String::from("{\"files\":[");
    for (at, (_, sums, file)) in files.iter().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        let FileSums { reads, writes, lock_wait_ns, callbacks, contended } = sums;
        let _ = write!(
            out,
            "{comma}{{\"ino\":{},\"open\":{},\"read_requests\":{},\"read_bytes\":{},\"write_requests\":{},\
             \"write_bytes\":{},\"lock_wait_ns\":{lock_wait_ns},\"lock_callbacks\":{callbacks},\
             \"contended_told\":{contended},\"dirty_bytes\":{}}}",
            file.ino.0,
            file.open_count(),
            reads.0,
            reads.1,
            writes.0,
            writes.1,
            file.cached.dirty_bytes.load(Relaxed)
        );
    }
    out.push_str("]}");
    out
}

fn weigh(file: Arc<Inode>) -> (u64, FileSums, Arc<Inode>) {
    let sums = file.stats.sums();
    (file.stats.heat(&sums), sums, file)
}
