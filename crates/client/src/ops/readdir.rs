//! readdir, with `.` and `..` made here.
//!
//! Cookies 1 and 2 are the places after `.` and `..`. The server's own cookies are greater.

use crate::api::{Ctx, Dirent, Listing};
use crate::coherence::tokens;
use crate::conn::replies::unexpected;
use crate::mount::Mount;
use crate::prefetch::small_files;
use crate::telemetry::stats::Count;
use amphi_types::{Errno, Ino, Kind, Result};
use amphi_wire::{Reply, Request};
use std::sync::Arc;

/// The cookie after `..`, where the server's listing starts.
const DOTS: u64 = 2;
/// Most entries requested at once, so that an answer's body stays far below its bound.
const ENTRIES_MAX: u32 = 2048;

pub(crate) async fn readdir(
    mount: Arc<Mount>,
    ctx: Ctx,
    dir: Ino,
    cookie: u64,
    max: u32,
    plus: bool,
) -> Result<Listing> {
    mount.stats.count(Count::ReadDir);
    let mut listing = Listing::default();
    let dot = |name: &[u8], cookie, ino| Dirent { name: name.to_vec(), cookie, ino, kind: Kind::Dir, attr: None };
    let room = |listing: &Listing| max.saturating_sub(listing.entries.len() as u32);
    if cookie == 0 && room(&listing) > 0 {
        listing.entries.push(dot(b".", 1, dir));
    }
    let with_parent = cookie <= 1 && room(&listing) > 0;
    let max = room(&listing).saturating_sub(u32::from(with_parent)).min(ENTRIES_MAX);
    if max == 0 {
        if with_parent {
            let parent = super::name::parent(&mount, &ctx, dir).await?;
            listing.entries.push(dot(b"..", DOTS, parent));
        }
        return Ok(listing);
    }
    let from = if cookie <= DOTS { 0 } else { cookie };
    let op = Request::ReadDir { dir, cookie: from, max, plus };
    let mut told = tokens::call(&mount, dir.target(), &ctx.cred, op, &[]).await?;
    let answer = match told.take() {
        // The directory was removed and is empty for programs that still have it open.
        Err(Errno::Stale) if mount.coherence.unlinked.kind(dir).is_ok() => {
            return Ok(Listing { entries: Vec::new(), end: true });
        }
        answer => answer?,
    };
    match answer {
        Reply::Entries { parent, entries, end } => {
            if with_parent {
                // A listing from the start contains this entry.
                listing.entries.push(dot(b"..", DOTS, parent.ok_or(Errno::Proto)?));
            }
            small_files::listed(&mount, dir, from, &entries, end);
            listing.entries.extend(entries.into_iter().map(|e| Dirent {
                attr: told.keep_entry(dir, &e.name, e.ino, e.inode, &e.tokens),
                name: e.name.as_bytes().to_vec(),
                cookie: e.cookie,
                ino: e.ino,
                kind: e.kind,
            }));
            listing.end = end;
            Ok(listing)
        }
        other => Err(unexpected(&other)),
    }
}
