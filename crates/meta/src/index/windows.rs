//! `Windows`: parts of large directories in the order of cookies, for clients that list them.
//!
//! Owns: which parts are kept. Does not own: the entries, which are in the trees in the order of names.
//!
//! A window has all entries of a directory with cookies in a range. A client that lists the directory reads one window
//! and then needs the next one. Every change of the directory changes its windows too, so a window is never stale. A
//! window is dropped when a client has read the last entry of the directory from it. A listing that is abandoned leaves
//! its window behind, until the directory is removed or new windows need the memory: then the window that was used
//! longest ago is dropped first.
//!
//! The numbers that drove the design: making a window of a part of a directory takes two walks over the directory, and
//! making one of all of it takes one walk, at about 50 ns for each entry. So a directory of a million entries is walked
//! for 4 windows of 262,144 entries, which is about 0.4 us for each entry that is listed. Such a window takes about 20
//! MB.

use super::{Entries, Entry};
use std::collections::BTreeMap;

/// Most windows of a target. Each change of a directory checks all of them.
const WINDOWS_MAX: usize = 64;
/// Most bytes of all windows of a target.
const BYTES_MAX: usize = 64 << 20;
/// Most bytes of a window.
const WINDOW_BYTES_MAX: usize = 24 << 20;
/// The memory of an entry beside its name, in bytes: its place in the map, and the overhead of the allocator.
const ENTRY_BYTES: usize = 64;

/// The entries of a directory with cookies in a range.
#[derive(Debug)]
pub(super) struct Window {
    dir: u64,
    /// Greatest cookie in front of the range.
    after: u64,
    /// Greatest cookie of the range; `u64::MAX` if nothing follows.
    last: u64,
    entries: BTreeMap<u64, Entry>,
    /// Bytes of memory, about.
    bytes: usize,
}

fn bytes_of(name: &[u8]) -> usize {
    name.len() + ENTRY_BYTES
}

impl Window {
    /// A window of sorted entries that begins behind `after`. `is_end`: no entry follows them. A window that would be
    /// too large gets only the first ones.
    pub(super) fn new(dir: u64, after: u64, mut entries: Entries, mut is_end: bool) -> Window {
        let (mut bytes, mut fitting) = (0, 0);
        for (_, entry) in &entries {
            if bytes + bytes_of(&entry.name) > WINDOW_BYTES_MAX {
                break;
            }
            bytes += bytes_of(&entry.name);
            fitting += 1;
        }
        is_end &= fitting == entries.len();
        entries.truncate(fitting);
        let last = if is_end { u64::MAX } else { entries.last().map_or(after, |(cookie, _)| *cookie) };
        Window { dir, after, last, entries: entries.into_iter().collect(), bytes }
    }

    /// Greatest cookie of the range; `u64::MAX` if nothing follows.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Entries behind a cookie, in order.
    pub(super) fn behind(&self, cookie: u64) -> impl Iterator<Item = (u64, &Entry)> {
        self.entries.range(cookie.saturating_add(1)..).map(|(cookie, entry)| (*cookie, entry))
    }

    fn covers(&self, dir: u64, cookie: u64) -> bool {
        self.dir == dir && self.after < cookie && cookie <= self.last
    }
}

/// The windows of a target, the one that was used last at the end.
#[derive(Debug, Default)]
pub(super) struct Windows(Vec<Window>);

impl Windows {
    /// The window with the entries that follow a cookie.
    pub(super) fn behind(&mut self, dir: u64, cookie: u64) -> Option<&Window> {
        let next = cookie.saturating_add(1);
        let at = self.0.iter().position(|window| window.covers(dir, next))?;
        let window = self.0.remove(at);
        self.0.push(window);
        self.0.last()
    }

    /// Keeps one more window.
    pub(super) fn keep(&mut self, window: Window) {
        let mut bytes: usize = self.0.iter().map(|window| window.bytes).sum();
        bytes += window.bytes;
        while self.0.len() >= WINDOWS_MAX || bytes > BYTES_MAX && !self.0.is_empty() {
            bytes -= self.0.remove(0).bytes;
        }
        self.0.push(window);
        assert!(self.0.len() <= WINDOWS_MAX, "{} windows are kept, at most {WINDOWS_MAX}", self.0.len());
    }

    /// Drops the window that was used last.
    pub(super) fn drop_last(&mut self) {
        self.0.pop();
    }

    /// Called when an entry is new or has another value.
    pub(super) fn insert(&mut self, dir: u64, cookie: u64, name: &[u8], bits: u64) {
        for window in self.0.iter_mut().filter(|window| window.covers(dir, cookie)) {
            window.bytes += bytes_of(name);
            if let Some(old) = window.entries.insert(cookie, Entry { name: name.into(), bits }) {
                window.bytes -= bytes_of(&old.name);
            }
        }
        // A window that has grown too large with its directory is dropped. The next page of a listing makes another
        // window.
        self.0.retain(|window| window.bytes <= WINDOW_BYTES_MAX);
    }

    /// Called when an entry is gone. If a directory has no entries left, its windows are dropped as well.
    pub(super) fn remove(&mut self, dir: u64, cookie: u64, is_empty: bool) {
        if is_empty {
            self.0.retain(|window| window.dir != dir);
        }
        for window in self.0.iter_mut().filter(|window| window.covers(dir, cookie)) {
            if let Some(old) = window.entries.remove(&cookie) {
                assert!(bytes_of(&old.name) <= window.bytes, "a window of directory {dir} has {} bytes", window.bytes);
                window.bytes -= bytes_of(&old.name);
            }
        }
    }
}
