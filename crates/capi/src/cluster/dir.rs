//! Open directories of a cluster.
//!
//! Owns: the position of a listing, and attributes that were not sent with it. Does not own: the order of entries (the
//! servers).

use super::{Cluster, shown};
use crate::failure::Done;
use crate::node::Listed;
use amphi_types::{Errno, Ino};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Entries that are requested at a time.
const ENTRIES: u32 = 1024;

/// An open directory of a cluster.
pub(crate) struct ClusterDir {
    pub(crate) fs: Arc<Cluster>,
    pub(crate) ino: Ino,
    pub(crate) path: String,
    attributes: bool,
    listing: Mutex<Position>,
}

/// The position of a listing.
#[derive(Default)]
struct Position {
    cookie: u64,
    ahead: VecDeque<amphi_client::Dirent>,
    end: bool,
}

impl ClusterDir {
    pub(super) fn new(fs: Arc<Cluster>, ino: Ino, path: String, attributes: bool) -> ClusterDir {
        ClusterDir { fs, ino, path, attributes, listing: Mutex::default() }
    }

    /// Up to `max` further entries; an empty result means the end.
    pub(crate) fn read(&self, max: usize) -> Done<Vec<Listed>> {
        let mut at = self.listing.lock();
        let ctx = self.fs.ctx();
        let mut listed = Vec::new();
        while listed.len() < max {
            if at.ahead.is_empty() {
                if at.end {
                    break;
                }
                let more = self.fs.client.readdir(&ctx, self.ino, at.cookie, ENTRIES, self.attributes).wait(None)?;
                at.end = more.end || more.entries.is_empty();
                at.ahead = more.entries.into();
            }
            let Some(entry) = at.ahead.pop_front() else { break };
            at.cookie = entry.cookie;
            let stat = match (self.attributes, entry.attr) {
                (false, _) => None,
                (true, Some(attr)) => Some(shown(&attr)),
                (true, None) => match self.fs.client.getattr(&ctx, entry.ino).wait(None) {
                    Ok(attr) => Some(shown(&attr)),
                    // The entry was removed meanwhile.
                    Err(Errno::NoEnt | Errno::Stale) => continue,
                    Err(e) => return Err(e.into()),
                },
            };
            listed.push(Listed {
                cookie: entry.cookie,
                ino: entry.ino.0,
                kind: u32::from(entry.kind.dtype()),
                stat,
                name: entry.name,
            });
        }
        Ok(listed)
    }

    pub(crate) fn seek(&self, cookie: u64) {
        *self.listing.lock() = Position { cookie, ..Position::default() };
    }

    pub(crate) fn sync(&self) -> Done<()> {
        Ok(self.fs.client.fsync_dir(&self.fs.stream(), self.ino).wait(None)?)
    }
}
