//! Locks that are returned without a callback, because another mount takes the locks around them one after the other.
//!
//! Owns: which locks are returned together with one that was called back. Does not own: recognising such a mount
//! (`tables::coherence::lock_walks`), how a lock is returned (`returning`, `dlm`).
//!
//! A mount that reads a tree which this mount has written requests the locks of one small file after the other. Without
//! this module, each of them would cost a callback, a flush and a message that returns one lock, while the reader
//! waits. Inode numbers show which files are likely to be next, because the files of a tree were made one after the
//! other. So from the third callback in a neighbourhood on the nearest idle locks are returned as well, more with each
//! further callback, many in a message. Locks are returned by age in the same way, so the lock protocol is not affected
//! by this rule. The rule does not depend on which mount calls the locks back, nor on the order. If a mount uses files
//! of a directory at random, it finds more and more of their locks free.
//!
//! Only locks of small, closed and unused files are returned, in the mode of the lock that was called back. So a wrong
//! guess costs this mount one request for each such file that it uses again.

use crate::mount::Mount;
use crate::tables::coherence::lock_walks::{REACH, Walks};
use crate::telemetry::stats::Count;
use amphi_dlm::{LockCache, Mode};
use amphi_types::ObjectId;
use std::sync::atomic::Ordering::SeqCst;

/// Most cached bytes of a file whose lock is returned in this way.
const SMALL_BYTES: u64 = 256 << 10;

/// A usable lock of `mode` was called back: returns the locks that will probably be called back next.
pub(super) fn follow(mount: &Mount, walks: &mut Walks, cache: &mut LockCache, object: ObjectId, mode: Mode) {
    if object.stripe != 0 {
        return;
    }
    let count = walks.asked(mount.clock.now_ns(), object.ino);
    if count == 0 {
        return;
    }
    let idle = cache.idle_near(object, mode, REACH, 2 * count);
    let going: Vec<_> = idle.filter(|(_, near)| may_go(mount, *near)).map(|(id, _)| id).take(count).collect();
    mount.stats.bytes(Count::LockNeighbours, going.len() as u64);
    going.into_iter().for_each(|id| cache.give_back(id));
}

/// Returns whether this mount can return the lock of a file without loss.
fn may_go(mount: &Mount, object: ObjectId) -> bool {
    let Some(file) = mount.files.get(object.ino) else { return true };
    // If the kernel has pages, they would have to be dropped first, which may take long.
    object.stripe == 0 && file.cached.bytes.load(SeqCst) <= SMALL_BYTES && !file.pages.any() && file.used_opens() == 0
}
