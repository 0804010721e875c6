//! Writes for which targets have no space, in whole or in part: what is left of them.
//!
//! Owns: how a cached write whose blocks no grant covers waits for its result, and cutting off what a failed write has
//! stored behind the bytes that it returns. Does not own: which blocks are covered (the page cache), sending
//! (`writeback`), the contents that the mount shows after a loss (`writeback::writeback_errors`).
//!
//! Invariant: the caller holds the range lock, and in shared mode its locks, from before the first byte until what the
//! write left behind is cut off, so no other write is there. Write-back needs neither (`writeback::flush`).

use crate::coherence::attributes;
use crate::coherence::tokens;
use crate::inode::Inode;
use crate::inode::failures::Watch;
use crate::inode::range_lock::Hold;
use crate::locks;
use crate::mount::Mount;
use crate::ops::attr;
use crate::writeback::flush;
use crate::writeback::grants;
use amphi_dlm::Mode as LockMode;
use amphi_types::{ByteRange, Cred, Errno, Result, SetAttr};
use std::sync::Arc;

/// A write into the cache that may turn out to be without space.
pub(super) struct Attempt<'a> {
    file: &'a Arc<Inode>,
    range: ByteRange,
    watch: Watch<'a>,
    /// The end of the file before the write. It is not requested for a write that the grants seem to cover.
    old_size: Option<u64>,
}

impl<'a> Attempt<'a> {
    /// Called before the first byte of `range` is written.
    pub(super) async fn begin(mount: &Arc<Mount>, file: &'a Arc<Inode>, range: ByteRange) -> Attempt<'a> {
        let is_known = tokens::is_sure(mount, file) || attributes::knows_end(mount, file);
        let old_size = match is_known || grants::cover(mount, file, range).is_none() {
            true => attributes::size_now(mount, file).await.ok(),
            false => None,
        };
        Attempt { file, range, watch: file.failures.watch(range), old_size }
    }

    /// Called when bytes of the write were cached without cover: the writer will wait for `stored`, and so it is the
    /// only one that gets their loss for want of space.
    pub(super) fn wait(&self) {
        self.watch.wait();
    }

    /// Waits until all bytes of the write are on their targets, or lost. Returns how many of them are stored from its
    /// start on. The caller holds the range lock on `held`; `in_company`: and locks on all that it wrote.
    ///
    /// Errors: that of the loss, if no byte is stored from the start of the write on, or if the bytes were lost for
    /// another reason than want of space.
    pub(super) async fn stored(&self, mount: &Arc<Mount>, held: ByteRange, in_company: bool) -> Result<usize> {
        let Attempt { file, range, watch, old_size } = self;
        flush::flush(mount, file, *range).await;
        flush::recycle_room(mount);
        let Err(e) = watch.result() else { return Ok(range.len() as usize) };
        if !e.is_no_room() {
            return Err(e);
        }
        let good_to = watch.lost_from().unwrap_or(range.start).max(range.start);
        let end = old_size.map(|old| old.max(good_to)).filter(|end| *end < range.end);
        // The lost bytes still count in the size that this mount shows. Only the server knows whether bytes behind them
        // were stored.
        if let Some(end) = end
            && let Ok((view, _)) = attributes::ask(mount, &Cred::root(), file.ino).await
            && view.attr.size > end
        {
            trim(mount, file, held, (end, range.end), in_company).await;
        }
        if good_to > range.start { Ok((good_to - range.start) as usize) } else { Err(e) }
    }
}

/// Returns the result of `Attempt::stored` for a write of `len` bytes when the mount shows it: the program may go on at
/// the end of the file without the lost bytes. The caller must hold no locks.
pub(super) async fn shown(file: &Inode, len: u64, stored: Result<usize>) -> Result<usize> {
    if stored != Ok(len as usize) {
        file.settled().await;
    }
    stored
}

/// Cuts off the extension of the file by pieces behind a failed one, from `end` to `written_to`. The caller holds the
/// range lock on `held`, and in shared mode locks on all that it wrote, so no other mount has written there.
///
/// If a write behind that has made the file longer, the file stays longer. Because the caller holds locks, this never
/// waits. If a lock is not available at once, its holder is a mount that is about to write, read or measure the file
/// there.
pub(super) async fn trim(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    held: ByteRange,
    (end, written_to): (u64, u64),
    in_company: bool,
) {
    let rest = ByteRange::new(held.end, u64::MAX);
    let guard = if rest.is_empty() { None } else { file.range.try_acquire(rest, Hold::Exclusive) };
    let mine = (rest.is_empty() || guard.is_some()) && file.group.id() == 0;
    let cut = async {
        if !mine {
            return Err(Errno::Again);
        }
        let pins = match in_company {
            true => locks::try_pin_objects(mount, file, LockMode::Write, ByteRange::new(end, u64::MAX)).await?,
            false => Vec::new(),
        };
        // A write into the cache without the range lock has stored its end by now.
        mount.cache.barrier();
        if attributes::size_now(mount, file).await? > written_to {
            return Err(Errno::Again);
        }
        let set = SetAttr { size: Some(end), open_for_write: true, ..SetAttr::default() };
        attr::resize(mount, &Cred::root(), file, end, set, pins).await
    };
    let cut = cut.await;
    drop(guard);
    match cut {
        Ok(_) => return,
        Err(Errno::Again) => {
            tracing::debug!(ino = %file.ino, end, "not trimmed after a failed write: others are there")
        }
        Err(e) => tracing::warn!(ino = %file.ino, end, "cannot trim after a failed write: {e}"),
    }
    let _ = attributes::reload(mount, file).await;
}
