//! Bytes that could not be written back: the contents that this mount shows afterwards, and the callers that get the
//! failure.
//!
//! Owns: the rule that the file shows the contents that the servers have as soon as bytes of it were lost. Does not
//! own: the losses, for callers that sync all files (`tables::writeback::errors`), and which open files got one file's
//! failures (`inode::failures`).
//!
//! The cache drops lost bytes at once, so that this mount and others show the same. A task of the file updates the
//! size, and the front end's pages of these bytes. A caller that gets the failure waits for that task.

use crate::cache::dirty_end;
use crate::coherence::attributes;
use crate::coherence::front_pages;
use crate::coherence::tokens;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::telemetry::stats::Count;
use amphi_types::{ByteRange, Cred, Errno, Ino, TargetId};
use amphi_wire::{Lane, Request};
use std::sync::Arc;

/// Bytes of `range` were lost and are no longer in the cache. The file ends where the server says, and a front end
/// drops its copy.
pub(crate) fn settle(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange) {
    file.size.own_is_at_least(|| dirty_end(&mount.cache, file));
    tokens::outdated(mount, file.ino);
    if !file.failures.settling.enter(range) {
        return;
    }
    let (mount2, file) = (mount.clone(), file.clone());
    mount.spawn(async move {
        while let Some(range) = file.failures.settling.next() {
            front_pages::drop_overwritten(&mount2, file.ino, range).await;
            if let Err(e) = attributes::reload(&mount2, &file).await {
                tracing::debug!(ino = %file.ino, "attributes after a failed write-back: {e}");
            }
        }
        file.signal.notify();
    });
}

/// The front end wrote back pages of `range`, got `why`, and has dropped their bytes. It reports that itself to the
/// programs that have the file open.
pub(crate) fn lost_pages(mount: &Mount, file: &Inode, range: ByteRange, why: Errno) {
    // No program can reach the file any more, so the loss of its bytes is no failure.
    if matches!(why, Errno::NoEnt | Errno::Stale) && file.open_count() == 0 {
        return;
    }
    mount.stats.bytes(Count::WriteBackFailed, range.len());
    if let Some(silent) = mount.writeback.errors.note(why, mount.clock.now_ns()) {
        tracing::warn!(ino = %file.ino, ?range, silent, "write-back of mapped pages failed: {why}");
    }
    file.failures.note_of_front_end(why);
}

/// `Push::WriteFailed`: a server cannot write bytes to its disk that it has accepted into memory, of a file that this
/// mount wrote. The server still has the bytes and returns them in reads. Nevertheless programs that have the file open
/// get the failure. If no program has the file open, the next program that opens it gets the error. The message is
/// acknowledged when it is noted, also if it is a repetition.
pub(crate) fn refused(mount: &Arc<Mount>, target: TargetId, id: u64, ino: Ino) {
    if mount.writeback.errors.is_news(target, id) {
        note_refused(mount, ino);
    }
    // If the client gives up before the answer arrives, the message is sent again.
    drop(mount.send(Lane::Answer, target, &Cred::root(), Request::WriteFailedKnown { id }, None, 0));
}

fn note_refused(mount: &Arc<Mount>, ino: Ino) {
    if let Some(silent) = mount.writeback.errors.note(Errno::Io, mount.clock.now_ns()) {
        tracing::error!(%ino, silent, "a server cannot write to its disk what it has accepted; it keeps it in memory");
    }
    match mount.files.get(ino) {
        Some(file) => file.failures.note(Errno::Io, ByteRange::new(0, 0)),
        None => mount.files.note_refused(ino, Errno::Io),
    }
    // Whoever sees the count finds the error.
    mount.stats.count(Count::WriteRefused);
}
