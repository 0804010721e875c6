//! Locks that go back unasked, because another mount takes those around them one after the other.
//!
//! Owns: which locks go with one that is asked back. Does not own: recognising such a mount
//! (`tables::coherence::lock_walks`), the way of a lock back (`returning`, `dlm`).
//!
//! A mount that reads a tree which this one has written wants one small file after the other. Each would cost a
//! callback, a flush and a message that returns one lock, while the reader waits. Inode numbers tell what comes next:
//! the files of a tree were made one after the other, so from the third callback in a neighbourhood on the nearest
//! idle locks go as well, more with each further callback, many in a message. To give a lock back unasked is what age
//! does all the time, so no rule of locking knows of it. It needs no knowledge of who asks or in which order: whoever
//! takes files at random from a directory finds more and more of them free.
//!
//! What goes is small, closed and unused, and of the mode of what was asked back; so a mistake costs this mount a
//! question for each such file that it uses again.

use crate::mount::Mount;
use crate::tables::coherence::lock_walks::{REACH, Walks};
use crate::telemetry::stats::Count;
use amphi_dlm::{LockCache, Mode};
use amphi_types::ObjectId;
use std::sync::atomic::Ordering::SeqCst;

/// Bytes cached of a file that goes unasked.
const SMALL_BYTES: u64 = 256 << 10;

/// A usable lock of `mode` was asked back: gives back what probably comes next.
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

/// Whether nobody here misses the lock of a file.
fn may_go(mount: &Mount, object: ObjectId) -> bool {
    let Some(file) = mount.files.get(object.ino) else { return true };
    // Pages in front would have to be taken back first, which may take long.
    object.stripe == 0 && file.cached.bytes.load(SeqCst) <= SMALL_BYTES && !file.pages.any() && file.used_opens() == 0
}
