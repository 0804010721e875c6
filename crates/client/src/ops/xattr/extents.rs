//! Where the bytes of a file are, and which would not survive a loss of power: `user.amphi.extents` (JSON, a summary
//! for each object) and `user.amphi.extents.STRIPE.OFFSET` (JSON, the extents of one object from a byte of the file on,
//! 1,000 at most); `user.amphi.unstable` (JSON, acknowledged bytes that are not stable, by where they are).
//!
//! Owns: the requests to the targets, and the text. Does not own: the output (`amphi layout get`, `amphi stats FILE`).
//! Before extents are shown, this mount writes back its dirty bytes. Concurrent changes by other mounts may be shown or
//! not. The file has to be open on this mount. Bytes that other mounts have not written back are not included.

use crate::conn::replies::unexpected;
use crate::mount::Mount;
use crate::ops::known;
use crate::writeback::flush;
use amphi_types::{ByteRange, Cred, Errno, Ino, ObjectId, Result};
use amphi_wire::{ExtentView, InodeView, Reply, Request};
use futures_util::future::join_all;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Most extents in one answer, so that their text is below the 64 KiB of an attribute.
const SHOWN_MAX: u32 = 1000;
/// Objects of a summary: their text is below the 64 KiB of an attribute.
const OBJECTS_MAX: u32 = 512;

struct Lies {
    total: u64,
    bytes: u64,
    extents: Vec<ExtentView>,
    more: bool,
    accepted: u64,
    unsynced: u64,
}

async fn ask(mount: &Mount, view: &InodeView, stripe: u32, offset: u64, extents_max: u32) -> Result<Lies> {
    let object = ObjectId { ino: view.attr.ino, stripe };
    let op = Request::Extents { object, offset, extents_max };
    match mount.call(view.layout.target(view.attr.ino, stripe), &Cred::root(), op).await? {
        Reply::Extents { total, bytes, extents, more, accepted, unsynced } => {
            Ok(Lies { total, bytes, extents, more, accepted, unsynced })
        }
        other => Err(unexpected(&other)),
    }
}

/// The value of `extents`, or of `extents.STRIPE.OFFSET` for what follows the first dot.
pub(super) async fn get(mount: &Arc<Mount>, view: &InodeView, of: Option<&str>) -> Result<Vec<u8>> {
    let ino: Ino = view.attr.ino;
    if let Some(known) = known::use_known(mount, ino) {
        flush::flush(mount, known.file(), ByteRange::ALL).await;
    }
    let stripes = view.layout.stripes_below(view.attr.size.max(1));
    let mut text = String::new();
    if let Some(of) = of {
        let (stripe, offset) = of.split_once('.').ok_or(Errno::NoData)?;
        let stripe = stripe.parse().ok().filter(|s| *s < stripes).ok_or(Errno::NoData)?;
        let lies = ask(mount, view, stripe, offset.parse().map_err(|_| Errno::NoData)?, SHOWN_MAX).await?;
        let rows = lies.extents.iter().map(|e| format!("[{},{},{},{}]", e.offset, e.len, e.address, e.written));
        let _ = write!(text, "{{\"extents\":[{}],\"more\":{}}}", rows.collect::<Vec<_>>().join(","), lies.more);
        return Ok(text.into_bytes());
    }
    let asked = (0..stripes.min(OBJECTS_MAX)).map(|stripe| ask(mount, view, stripe, 0, 0));
    let mut rows = Vec::new();
    for (stripe, lies) in (0u32..).zip(join_all(asked.collect::<Vec<_>>()).await) {
        let (lies, target) = (lies?, view.layout.target(ino, stripe).0);
        rows.push(format!(
            "{{\"stripe\":{stripe},\"target\":{target},\"extents\":{},\"bytes\":{}}}",
            lies.total, lies.bytes
        ));
    }
    let _ = write!(text, "{{\"objects\":[{}],\"more\":{}}}", rows.join(","), stripes > OBJECTS_MAX);
    Ok(text.into_bytes())
}

/// Acknowledged bytes of a file that would not survive a loss of power yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnstableBytes {
    /// Bytes in this mount's cache, or on the way from the cache to the servers.
    pub(super) dirty: u64,
    /// Bytes of direct writes of this mount that have returned and are still being sent.
    pub(super) sending: u64,
    /// Bytes in the memory of the servers, written by any mount.
    pub(super) accepted: u64,
    /// The number of bytes on the servers' disks that are not synced, whichever mount has written them.
    pub(super) unsynced: u64,
}

impl UnstableBytes {
    /// The counts of a file, as far as its targets report them. Targets report them to mounts that have the file open.
    /// If a file has more than `OBJECTS_MAX` objects, only that many are asked.
    pub(super) async fn of(mount: &Arc<Mount>, view: &InodeView) -> Result<UnstableBytes> {
        let known = mount.files.get(view.attr.ino);
        let here =
            known.map(|file| (file.cached.dirty_bytes.load(Relaxed), file.size.piped_bytes.load(Relaxed), file.size()));
        let (dirty, sending, size) = here.unwrap_or_default();
        let stripes = view.layout.stripes_below(view.attr.size.max(size).max(1)).min(OBJECTS_MAX);
        let asked: Vec<_> = (0..stripes).map(|stripe| ask(mount, view, stripe, 0, 0)).collect();
        let (mut accepted, mut unsynced) = (0, 0);
        for lies in join_all(asked).await {
            let lies = lies?;
            (accepted, unsynced) = (accepted + lies.accepted, unsynced + lies.unsynced);
        }
        Ok(UnstableBytes { dirty, sending, accepted, unsynced })
    }

    /// The value of `unstable`.
    pub(super) fn json(&self) -> String {
        let UnstableBytes { dirty, sending, accepted, unsynced } = self;
        format!("{{\"dirty\":{dirty},\"sending\":{sending},\"accepted\":{accepted},\"unsynced\":{unsynced}}}")
    }
}
