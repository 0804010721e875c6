//! The file that a message to a server is about.
//!
//! Owns: that, and counting it with the file. Locks are returned by number, and names belong to directories, so such
//! messages are counted with no file. Messages that are sent before the mount knows the file, such as its first open,
//! are not counted with it either.

use crate::inode::InodeTable;
use crate::telemetry::stats::FileEvent;
use amphi_types::Ino;
use amphi_wire::Request;

/// Counts a message with the files that it is about and that are known.
pub(crate) fn note(files: &InodeTable, op: &Request) {
    let count = |ino, event| files.note(ino, |file| file.stats.count(event));
    match op {
        // The parts of one file are adjacent in the batch.
        Request::WriteBatch { parts } => {
            let mut last = None;
            for ino in parts.iter().map(|part| part.object.ino) {
                if last.replace(ino) != Some(ino) {
                    count(ino, FileEvent::Batch);
                }
            }
        }
        Request::ReadBatch { parts, .. } => parts.iter().for_each(|part| count(part.ino, FileEvent::Batch)),
        Request::CloseBatch { closes } => closes.iter().for_each(|(ino, ..)| count(*ino, FileEvent::Batch)),
        op => {
            let Some(ino) = ino_of(op) else { return };
            count(ino, FileEvent::Call);
            if let Request::LockEnqueue { .. } | Request::GroupLock { .. } = op {
                count(ino, FileEvent::LockEnqueue);
            }
        }
    }
}

/// The inode that a message concerns, if it concerns a single one. Requests for the places of a file's bytes, or for
/// its unstable bytes, are made on behalf of users who read these counters, so they are left out.
fn ino_of(op: &Request) -> Option<Ino> {
    match op {
        Request::Read { object, .. }
        | Request::Write { object, .. }
        | Request::PagesRead { object, .. }
        | Request::PagesWrite { object, .. }
        | Request::Punch { object, .. }
        | Request::Allocate { object, .. }
        | Request::DataMap { object, .. }
        | Request::LockEnqueue { object, .. }
        | Request::GroupLock { object, .. }
        | Request::GroupWanted { object } => Some(object.ino),
        Request::GetAttr { ino }
        | Request::GetAttrNow { ino }
        | Request::SetAttr { ino, .. }
        | Request::Link { ino, .. }
        | Request::ReadLink { ino }
        | Request::Open { ino, .. }
        | Request::Close { ino, .. }
        | Request::Discard { ino, .. }
        | Request::GetXattr { ino, .. }
        | Request::ListXattr { ino }
        | Request::SetXattr { ino, .. }
        | Request::RemoveXattr { ino, .. }
        | Request::SetLayout { ino, .. }
        | Request::Spread { ino }
        | Request::PagesLeft { ino }
        | Request::PagesTaken { ino, .. }
        | Request::FileLockUnlock { ino, .. } => Some(*ino),
        Request::FileLockSet { lock, .. }
        | Request::FileLockCancel { lock, .. }
        | Request::FileLockTest { lock, .. } => Some(lock.ino),
        _ => None,
    }
}
