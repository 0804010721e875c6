//! `DentryIndex`: the index of directory entries, from (directory, name) to inode, and in the order of cookies.
//!
//! Owns: cookies, and listing entries in their order. Does not own: the trees of names (`cart`), the rules of names
//! (`part`).
//!
//! A cookie is the place of an entry in its directory, from which readdir continues. It has 63 bits: 55 bits of a keyed
//! hash of the name, its *bucket*, and an 8-bit ordinal that distinguishes names of one bucket. An entry keeps its
//! cookie as long as it lives. So a listing in the order of cookies shows every entry that exists throughout it exactly
//! once, with any other entries made and removed meanwhile. The key is a secret of the target, so nobody can choose
//! colliding names. With 2^55 buckets, 250 chance collisions in one bucket are impossible in practice; `free_cookie`
//! would return `None`.
//!
//! The trees are in the order of names and keep no cookies, because a cookie is computed from its name. `displaced`
//! has the names whose cookie is not the first one of their bucket: those that collided when they were made. Whether a
//! bucket has names at all is known by `buckets`, a filter. So a new name needs no walk over its directory, except in
//! the rare case that the filter knows its bucket.
//!
//! In a shard of a directory (`shards`) the upper 8 bits of the hash are the place of the shard.
//!
//! A page of a listing takes the next cookies from a walk over the directory. The pages of a directory with more than
//! `walk_max` entries come from a *window* of it that is kept (`windows`).
//!
//! The numbers that drove the design: an entry takes 11 to 12 bytes here if names are consecutive, and 34 to 39 if they
//! are those of a Linux distribution. In an ordered map with boxed names it took 108 to 124 bytes.

mod buckets;
mod pack;
mod windows;

use amphi_cart::Cart;
use amphi_types::{Ino, Kind, SHARD_COOKIE_SHIFT, TargetId, shard_place};
use buckets::Buckets;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use std::cell::RefCell;
use std::collections::{BTreeMap, BinaryHeap};
use std::hash::Hasher;
use windows::{Window, Windows};

/// Bits of a cookie below the hash.
const ORDINAL_BITS: u32 = 8;
/// Largest ordinal: one less than fits, so that no cookie is `i64::MAX`.
const ORDINAL_MAX: u64 = 254;
const _: () = assert!(ORDINAL_MAX < 1 << ORDINAL_BITS, "an ordinal fits below the hash");
/// Smallest cookie. Smaller ones mean the start, `.` and `..`.
const COOKIE_MIN: u64 = 3;
/// Most entries of a directory that is walked for each page of a listing: as many as the server requests at once, so
/// that one walk mostly lists the directory.
const WALK_MAX: usize = 1024;
/// Most entries of a window.
const WINDOW_ENTRIES: usize = 1 << 18;

/// An entry as a walk finds it.
#[derive(Clone, Debug)]
struct Entry {
    name: Box<[u8]>,
    /// The value in the tree.
    bits: u64,
}

/// Entries of a directory by cookie, in their order.
type Entries = Vec<(u64, Entry)>;

/// An entry of a directory, as items have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dentry {
    /// Inode, which may be on another target.
    pub child: Ino,
    /// Kind of the inode.
    pub kind: Kind,
    /// Name: 1 to 255 bytes without `/` and NUL.
    #[serde(with = "serde_bytes")]
    pub name: Box<[u8]>,
}

impl Dentry {
    /// The inode that the entry names.
    pub fn named(&self) -> Named {
        Named { child: self.child, kind: self.kind }
    }
}

/// The inode of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Inode, which may be on another target.
    pub child: Ino,
    /// Kind of the inode.
    pub kind: Kind,
}

/// Names whose cookie is not the first one of their bucket, by directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Displaced {
    names: BTreeMap<(u64, u64), Box<[u8]>>,
    cookies: BTreeMap<u64, BTreeMap<Box<[u8]>, u64>>,
}

impl Displaced {
    fn cookie(&self, dir: u64, name: &[u8]) -> Option<u64> {
        self.cookies.get(&dir)?.get(name).copied()
    }

    fn insert(&mut self, dir: u64, cookie: u64, name: &[u8]) {
        let other = self.names.insert((dir, cookie), name.into());
        assert!(other.is_none(), "two names of directory {dir} have the cookie {cookie}");
        let other = self.cookies.entry(dir).or_default().insert(name.into(), cookie);
        assert!(other.is_none(), "a name of directory {dir} has the cookies {other:?} and {cookie}");
    }

    fn remove(&mut self, dir: u64, name: &[u8]) -> Option<u64> {
        let of_dir = self.cookies.get_mut(&dir)?;
        let cookie = of_dir.remove(name)?;
        if of_dir.is_empty() {
            self.cookies.remove(&dir);
        }
        let removed = self.names.remove(&(dir, cookie));
        assert!(removed.is_some(), "cookie {cookie} of directory {dir} has no name");
        Some(cookie)
    }
}

/// The entries of all directories of a target, by the local number of the directory.
#[derive(Debug)]
pub(crate) struct DentryIndex {
    own: TargetId,
    cart: Cart,
    displaced: Displaced,
    buckets: Buckets,
    /// Inodes that do not fit into the values of the tree, by directory and name.
    beside: BTreeMap<(u64, Box<[u8]>), Named>,
    windows: RefCell<Windows>,
    seed: u64,
    /// The bits of the hash that are used. All are, except in tests of collisions.
    pub(crate) hash_mask: u64,
    /// Directories with more entries are listed through windows; smaller in tests.
    pub(crate) walk_max: usize,
    /// Most entries of a window; smaller in tests.
    pub(crate) window_entries: usize,
    /// Entries that walks have visited.
    #[cfg(test)]
    pub(crate) walked: std::cell::Cell<u64>,
}

impl DentryIndex {
    pub(crate) fn new(own: TargetId) -> DentryIndex {
        DentryIndex {
            own,
            cart: Cart::new(),
            displaced: Displaced::default(),
            buckets: Buckets::default(),
            beside: BTreeMap::new(),
            windows: RefCell::default(),
            seed: 0,
            hash_mask: u64::MAX,
            walk_max: WALK_MAX,
            window_entries: WINDOW_ENTRIES,
            #[cfg(test)]
            walked: std::cell::Cell::new(0),
        }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Sets the key of the hash. Entries that are there keep their cookies. That is expensive, so the key should be set
    /// before there are any entries.
    pub(crate) fn set_seed(&mut self, seed: u64) {
        if seed == self.seed {
            return;
        }
        let empty = DentryIndex { seed, ..self.emptied() };
        let old = std::mem::replace(self, empty);
        for (dir, cookie, entry) in old.from(0, 0) {
            self.insert(dir, cookie, &entry.name, entry.named());
        }
    }

    /// An index without entries and with the same settings.
    fn emptied(&self) -> DentryIndex {
        let DentryIndex { seed, hash_mask, walk_max, window_entries, .. } = *self;
        DentryIndex { seed, hash_mask, walk_max, window_entries, ..DentryIndex::new(self.own) }
    }

    /// Bytes of memory for entries, names and cookies, without windows and the rare entries in the separate map.
    pub(crate) fn bytes(&self) -> usize {
        self.cart.bytes() + self.buckets.bytes()
    }

    /// The first and the last cookie that `name` can have. In a shard the upper bits are the shard's place, so that
    /// each shard has its own range of the directory's cookies.
    fn bucket(&self, dir: u64, name: &[u8]) -> (u64, u64) {
        let mut h = SipHasher13::new_with_keys(self.seed, 0x6d65_7461_6e61_6d65);
        h.write(name);
        let hash = h.finish() & self.hash_mask;
        let hash = match shard_place(dir) {
            None => hash,
            Some(place) => u64::from(place) << (SHARD_COOKIE_SHIFT + 1) | hash >> 8,
        };
        let base = (hash >> (ORDINAL_BITS + 1)) << ORDINAL_BITS;
        (base.max(COOKIE_MIN), base + ORDINAL_MAX)
    }

    /// The inode that a name leads to.
    pub(crate) fn find(&self, dir: u64, name: &[u8]) -> Option<Named> {
        self.unpack(dir, name, self.cart.get(dir, name)?)
    }

    fn unpack(&self, dir: u64, name: &[u8], bits: u64) -> Option<Named> {
        pack::unpack(self.own, bits).or_else(|| self.beside.get(&(dir, name.into())).copied())
    }

    /// The cookie of an entry, which exists.
    pub(crate) fn cookie(&self, dir: u64, name: &[u8]) -> u64 {
        self.displaced.cookie(dir, name).unwrap_or_else(|| self.bucket(dir, name).0)
    }

    /// Directory and cookie of the entries whose cookie is none of their bucket's, in that order. Damage alone makes
    /// such entries.
    pub(crate) fn misplaced(&self) -> impl Iterator<Item = (u64, u64)> {
        let is_misplaced = |dir: u64, name: &[u8], cookie: u64| {
            let (first, last) = self.bucket(dir, name);
            !(first..=last).contains(&cookie)
        };
        let names = self.displaced.names.iter();
        names.filter(move |((dir, cookie), name)| is_misplaced(*dir, name, *cookie)).map(|(at, _)| *at)
    }

    /// The cookie that a new entry `name` gets: the lowest free one of its bucket. Returns `None` if the bucket is
    /// full, or if the index has no room.
    pub(crate) fn free_cookie(&self, dir: u64, name: &[u8]) -> Option<u64> {
        if !self.cart.has_room() {
            return None;
        }
        let (first, last) = self.bucket(dir, name);
        if !self.buckets.may_have(dir, first >> ORDINAL_BITS) {
            return Some(first);
        }
        let is_used = |cookie: &u64| {
            self.displaced.names.contains_key(&(dir, *cookie)) || *cookie == first && self.plain(dir, first).is_some()
        };
        (first..=last).find(|cookie| !is_used(cookie))
    }

    /// The name that has the first cookie of its bucket, by a walk over the directory.
    fn plain(&self, dir: u64, cookie: u64) -> Option<Box<[u8]>> {
        let mut walk = self.cart.walk(dir);
        while let Some((name, _)) = walk.next() {
            if self.bucket(dir, name).0 == cookie && self.displaced.cookie(dir, name).is_none() {
                return Some(name.into());
            }
        }
        None
    }

    /// The name that has a cookie, if it is not `but`.
    fn holder(&self, dir: u64, cookie: u64, but: &[u8]) -> Option<Box<[u8]>> {
        if let Some(name) = self.displaced.names.get(&(dir, cookie)) {
            return Some(name.clone());
        }
        let is_first = cookie & ((1 << ORDINAL_BITS) - 1) == 0 || cookie == COOKIE_MIN;
        let may_be_there = is_first && self.buckets.may_have(dir, cookie >> ORDINAL_BITS);
        may_be_there.then(|| self.plain(dir, cookie)).flatten().filter(|name| **name != *but)
    }

    /// The entry with a cookie. This takes a walk over the directory, or over a window of it.
    pub(crate) fn get(&self, dir: u64, cookie: u64) -> Option<Dentry> {
        let mut found = None;
        self.page(dir, cookie.checked_sub(1)?, 1, |at, name, named| {
            found = (at == cookie).then(|| Dentry { child: named.child, kind: named.kind, name: name.into() });
        });
        found
    }

    /// Sets the entry with a cookie. Another entry with this cookie or with this name is removed.
    pub(crate) fn insert(&mut self, dir: u64, cookie: u64, name: &[u8], named: Named) {
        let is_there = self.cart.get(dir, name).is_some();
        if !(is_there && self.cookie(dir, name) == cookie) {
            if let Some(other) = self.holder(dir, cookie, name) {
                self.remove(dir, &other);
            }
            if is_there {
                self.remove(dir, name);
            }
            if cookie != self.bucket(dir, name).0 {
                self.displaced.insert(dir, cookie, name);
            }
            self.buckets.add(dir, cookie >> ORDINAL_BITS);
        }
        let bits = pack::pack(self.own, named).unwrap_or_else(|| {
            self.beside.insert((dir, name.into()), named);
            pack::BESIDE
        });
        self.windows.get_mut().insert(dir, cookie, name, bits);
        let old = self.cart.insert(dir, name, bits);
        if old == Some(pack::BESIDE) && bits != pack::BESIDE {
            self.beside.remove(&(dir, name.into()));
        }
    }

    /// Removes an entry, and returns the cookie that it had.
    pub(crate) fn remove(&mut self, dir: u64, name: &[u8]) -> Option<u64> {
        let bits = self.cart.remove(dir, name)?;
        if bits == pack::BESIDE {
            self.beside.remove(&(dir, name.into()));
        }
        let cookie = self.displaced.remove(dir, name).unwrap_or_else(|| self.bucket(dir, name).0);
        self.buckets.remove(dir, cookie >> ORDINAL_BITS);
        self.windows.get_mut().remove(dir, cookie, self.cart.len(dir) == 0);
        Some(cookie)
    }

    /// Calls `visit` for the entries of a directory with cookies greater than `cookie`, in order, at most `max` times.
    /// Returns whether no entry follows.
    pub(crate) fn page(&self, dir: u64, cookie: u64, max: usize, mut visit: impl FnMut(u64, &[u8], Named)) -> bool {
        let mut call = |cookie: u64, entry: &Entry| {
            if let Some(named) = self.unpack(dir, &entry.name, entry.bits) {
                visit(cookie, &entry.name, named);
            }
        };
        let len = self.cart.len(dir);
        if len == 0 || cookie == u64::MAX {
            return true;
        }
        if len <= self.walk_max {
            let (entries, is_end) = self.select(dir, cookie, max);
            entries.iter().for_each(|(cookie, entry)| call(*cookie, entry));
            return is_end;
        }
        let (mut cookie, mut left) = (cookie, max);
        let mut windows = self.windows.borrow_mut();
        loop {
            let Some(window) = windows.behind(dir, cookie) else {
                let (entries, is_end) = self.select(dir, cookie, self.window_entries.max(1));
                windows.keep(Window::new(dir, cookie, entries, is_end));
                continue;
            };
            for (cookie, entry) in window.behind(cookie) {
                if left == 0 {
                    return false;
                }
                call(cookie, entry);
                left -= 1;
            }
            if window.last() == u64::MAX {
                windows.drop_last();
                return true;
            }
            assert!(window.last() > cookie, "a window of directory {dir} does not go beyond {cookie}");
            cookie = window.last();
        }
    }

    /// The `max` entries of a directory with the smallest cookies greater than `cookie`, in order, and whether no entry
    /// follows.
    fn select(&self, dir: u64, cookie: u64, max: usize) -> (Entries, bool) {
        let greatest = self.nth_cookie(dir, cookie, max);
        let mut entries = Vec::new();
        if greatest.is_none_or(|greatest| greatest > cookie) {
            self.walk(dir, |at, name, bits| {
                if at > cookie && greatest.is_none_or(|greatest| at <= greatest) {
                    entries.push((at, Entry { name: name.into(), bits }));
                }
            });
        }
        entries.sort_unstable_by_key(|(cookie, _)| *cookie);
        (entries, greatest.is_none())
    }

    /// The last of the `max` smallest cookies greater than `cookie`, or `cookie` itself if `max` is 0; `None` if no
    /// cookie is beyond these.
    fn nth_cookie(&self, dir: u64, cookie: u64, max: usize) -> Option<u64> {
        if max >= self.cart.len(dir) {
            return None;
        }
        let mut smallest = BinaryHeap::with_capacity(max + 1);
        self.walk(dir, |at, _, _| {
            if at > cookie && (smallest.len() <= max || smallest.peek().is_some_and(|greatest| at < *greatest)) {
                smallest.push(at);
                if smallest.len() > max + 1 {
                    smallest.pop();
                }
            }
        });
        if smallest.len() <= max {
            return None;
        }
        smallest.pop();
        Some(smallest.pop().unwrap_or(cookie))
    }

    /// Calls `visit` with cookie, name and value for each entry of a directory, in no order.
    fn walk(&self, dir: u64, mut visit: impl FnMut(u64, &[u8], u64)) {
        let displaced = self.displaced.cookies.get(&dir);
        self.cart.for_each(dir, |name, bits| {
            #[cfg(test)]
            self.walked.set(self.walked.get() + 1);
            let cookie = displaced.and_then(|of_dir| of_dir.get(name).copied());
            visit(cookie.unwrap_or_else(|| self.bucket(dir, name).0), name, bits);
        });
    }

    /// Calls `visit` for each entry of a directory, in the order of names, until it returns `false`.
    pub(crate) fn visit(&self, dir: u64, mut visit: impl FnMut(&[u8], Named) -> bool) {
        let mut walk = self.cart.walk(dir);
        while let Some((name, bits)) = walk.next() {
            if let Some(named) = self.unpack(dir, name, bits)
                && !visit(name, named)
            {
                return;
            }
        }
    }

    /// The directories that have entries, ascending, with the number of these.
    pub(crate) fn dirs(&self) -> impl Iterator<Item = (u64, usize)> {
        self.cart.dirs().into_iter().map(|dir| (dir, self.cart.len(dir)))
    }

    /// All entries from `(dir, cookie)` on, in order. Holds all of one directory in memory.
    pub(crate) fn from(&self, dir: u64, cookie: u64) -> impl Iterator<Item = (u64, u64, Dentry)> {
        let dirs = self.cart.dirs().into_iter().skip_while(move |at| *at < dir);
        dirs.flat_map(move |at| {
            let from = if at == dir { cookie } else { 0 };
            let mut entries = Vec::new();
            self.walk(at, |cookie, name, bits| {
                if let Some(Named { child, kind }) = self.unpack(at, name, bits)
                    && cookie >= from
                {
                    entries.push((at, cookie, Dentry { child, kind, name: name.into() }));
                }
            });
            entries.sort_unstable_by_key(|(_, cookie, _)| *cookie);
            entries
        })
    }
}

impl Clone for DentryIndex {
    fn clone(&self) -> DentryIndex {
        DentryIndex {
            cart: self.cart.clone(),
            displaced: self.displaced.clone(),
            buckets: self.buckets.clone(),
            beside: self.beside.clone(),
            ..self.emptied()
        }
    }
}

impl PartialEq for DentryIndex {
    fn eq(&self, other: &DentryIndex) -> bool {
        let settings = |index: &DentryIndex| (index.own, index.seed, index.hash_mask);
        settings(self) == settings(other) && self.from(0, 0).eq(other.from(0, 0))
    }
}

impl Eq for DentryIndex {}
