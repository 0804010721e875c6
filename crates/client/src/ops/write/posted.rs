//! Writes that programs have posted in shared mode, under the locks of their posting.
//!
//! Owns: putting them into the cache. Does not own: the locks and when they are held (`ops::posts`), taking writes out
//! of the ring (the front end).
//!
//! A post has happened before it gets here, so it is not decided any more whether it goes into the cache. It looks for
//! no lock either: a lock that was called back would serve no new write, and the pins of the posting still hold it.

use super::{cached, count, put, room_for};
use crate::inode::OpenFile;
use crate::mount::Mount;
use crate::policy::decision::Reason;
use crate::telemetry::stats::Copied;
use crate::writeback::flush;
use amphi_env::Buf;
use amphi_pagecache::{Put, Source, UNIT};
use amphi_types::{ByteRange, Result};
use std::sync::Arc;

/// How often a posted write looks whether a write by a call, which waits for nothing, has left its bytes.
const LOOK_NS: u64 = 1_000_000;

/// Puts bytes that a program has posted into the cache, if nothing has to wait for that. The caller has pinned write
/// locks on all bytes of the file, and has the file in its range lock (`RangeLock::try_post`).
pub(crate) fn try_write(mount: &Arc<Mount>, open: &OpenFile, offset: u64, bytes: &[u8]) -> bool {
    let file = &open.file;
    let range = ByteRange::at(offset, bytes.len() as u64);
    let one_unit = offset / UNIT == (range.end - 1) / UNIT;
    if mount.dirty_is_full(file, range) || !mount.make_room(room_for(range)) {
        return false;
    }
    let guard = match one_unit && file.range.idle() {
        true => None,
        false => match file.range.try_within_posting(range) {
            None => return false,
            guard => guard,
        },
    };
    let now = mount.wall();
    let check = || guard.is_some() || file.range.idle();
    let taken = || {
        file.touch(now);
        if guard.is_none() {
            file.range.wrote_unguarded();
        }
        if one_unit {
            file.size.extend_own(range.end);
        }
    };
    let Put::Done { full_chunk, rewritten, .. } = put(mount, file, offset, Source::Copied(bytes), true, (check, taken))
    else {
        return false;
    };
    if !one_unit {
        file.size.extend_own(range.end);
    }
    drop(guard);
    open.note_write(false, offset);
    count(mount, open, Reason::BufferedDefault, range, Copied::Along);
    if let Some(chunk) = full_chunk {
        flush::chunk_is_full(mount, file, chunk, rewritten);
    }
    true
}

/// As `try_write`, and waits for space in the cache. This number of the bytes, from the first on, have their place.
pub(crate) async fn write(mount: &Arc<Mount>, open: &Arc<OpenFile>, offset: u64, mut data: Buf) -> Result<usize> {
    let file = &open.file;
    let range = ByteRange::at(offset, data.len() as u64);
    let guard = loop {
        match file.range.try_within_posting(range) {
            Some(guard) => break guard,
            // Its holder waits for nothing.
            None => mount.life.pauses.pause(LOOK_NS).await,
        }
    };
    open.note_write(false, offset);
    count(mount, open, Reason::BufferedDefault, range, Copied::Apart);
    let stored = cached(mount, open, (range, range), &mut data, false, true).await?;
    drop(guard);
    // This does not wait until the file shows a loss (`refused::shown`): a read that the front end serves for its pages
    // may wait for this write, and these pages are dropped before. The caller that gets the failure waits for that.
    stored
}
