//! readdir; the client itself adds `.` and `..`.
//!
//! Cookies 1 and 2 are the places after `.` and `..`. The server's own cookies are greater.

use crate::api::{Ctx, Dirent, Listing};
use crate::coherence::{shards, tokens};
use crate::conn::replies::unexpected;
use crate::mount::Mount;
use crate::prefetch::small_files;
use crate::telemetry::stats::Count;
use amphi_types::{Errno, Ino, Kind, Result, SHARD_COOKIE_SHIFT};
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
    let mut from = if cookie <= DOTS { 0 } else { cookie };
    let mut shards = mount.coherence.shards.of(dir);
    if with_parent && shards.is_some() {
        let parent = super::name::parent(&mount, &ctx, dir).await?;
        listing.entries.push(dot(b"..", DOTS, parent));
    }
    let full = listing.entries.len() + max as usize;
    // The shards of a directory are ranges of cookies.
    let mut place = (from >> SHARD_COOKIE_SHIFT) as usize;
    loop {
        let at = match &shards {
            None => dir,
            Some(shards) => match shards.get(place) {
                Some(shard) => *shard,
                None => break,
            },
        };
        let op = Request::ReadDir { dir: at, cookie: from, max: (full - listing.entries.len()) as u32, plus };
        let mut told = tokens::call(&mount, at.target(), &ctx.cred, op, &[]).await?;
        let answer = match told.take() {
            Err(Errno::Remote) if at == dir => {
                drop(told);
                shards::learn(&mount, &ctx.cred, &[dir]).await?;
                shards = mount.coherence.shards.of(dir);
                if with_parent {
                    let parent = super::name::parent(&mount, &ctx, dir).await?;
                    listing.entries.push(dot(b"..", DOTS, parent));
                }
                continue;
            }
            // The directory was removed, so it is empty for programs that still have it open.
            Err(Errno::Stale) if mount.coherence.unlinked.kind(dir).is_ok() => {
                return Ok(Listing { entries: Vec::new(), end: true });
            }
            answer => answer?,
        };
        let Reply::Entries { parent, entries, end } = answer else { return Err(unexpected(&answer)) };
        if with_parent && shards.is_none() {
            // A caller that lists from the start gets `..` too.
            listing.entries.push(dot(b"..", DOTS, parent.ok_or(Errno::Proto)?));
        }
        small_files::listed(&mount, at, from, &entries, end);
        listing.entries.extend(entries.into_iter().map(|e| {
            Dirent {
                attr: told
                    .keep_entry(at, &e.name, e.ino, e.inode, &e.tokens)
                    // Attributes of a directory with shards have to be gathered from its shards, so the ones of the
                    // listing are left out.
                    .filter(|_| e.inode.is_some_and(|inode| !inode.sharded)),
                name: e.name.as_bytes().to_vec(),
                cookie: e.cookie,
                ino: e.ino,
                kind: e.kind,
            }
        }));
        if !end {
            return Ok(listing);
        }
        match &shards {
            Some(shards) if place + 1 < shards.len() => {
                place += 1;
                // The last cookie of the previous shard, which no entry has.
                from = ((place as u64) << SHARD_COOKIE_SHIFT) - 1;
                if listing.entries.len() >= full {
                    return Ok(listing);
                }
            }
            _ => break,
        }
    }
    listing.end = true;
    Ok(listing)
}
