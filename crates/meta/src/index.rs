//! `DentryIndex`: the index of directory entries, from (directory, cookie) to entry, in order.
//!
//! Owns: cookies, and the entries in their order. Does not own: the rules of names (`part`).
//!
//! A cookie is the place of an entry in its directory, from which readdir continues. It has 63 bits: 55 bits of a keyed
//! hash of the name, and an 8-bit ordinal that distinguishes names with the same hash. An entry keeps its cookie as
//! long as it lives. So a listing in the order of cookies shows every entry that exists throughout it exactly once,
//! whatever else is made and removed. The key is a secret of the target, so nobody can choose colliding names. With
//! 2^55 buckets, 250 chance collisions in one bucket are impossible in practice; `free_cookie` would return `None`.
//!
//! The map is an ordered tree of the standard library. The rest of the crate uses only the methods here, so that a
//! compact radix tree can replace it.

use amphi_types::{Ino, Kind};
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use std::collections::BTreeMap;
use std::hash::Hasher;

/// Bits of a cookie below the hash.
const ORDINAL_BITS: u32 = 8;
/// Largest ordinal: one less than fits, so that no cookie is `i64::MAX`.
const ORDINAL_MAX: u64 = 254;
/// Smallest cookie. Smaller ones mean the start, `.` and `..`.
const COOKIE_MIN: u64 = 3;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dentry {
    /// Inode, which may be on another target.
    pub child: Ino,
    /// Its kind.
    pub kind: Kind,
    /// Name: 1 to 255 bytes without `/` and NUL.
    #[serde(with = "serde_bytes")]
    pub name: Box<[u8]>,
}

/// The entries of all directories of a target, by (local number of the directory, cookie).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DentryIndex {
    map: BTreeMap<(u64, u64), Dentry>,
    seed: u64,
    /// The bits of the hash that are used. All are, except in tests of collisions.
    pub(crate) hash_mask: u64,
}

impl DentryIndex {
    pub(crate) fn new(seed: u64) -> DentryIndex {
        DentryIndex { map: BTreeMap::new(), seed, hash_mask: u64::MAX }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// The first and the last cookie that `name` can have.
    fn bucket(&self, name: &[u8]) -> (u64, u64) {
        let mut h = SipHasher13::new_with_keys(self.seed, 0x6d65_7461_6e61_6d65);
        h.write(name);
        let base = ((h.finish() & self.hash_mask) >> (ORDINAL_BITS + 1)) << ORDINAL_BITS;
        (base.max(COOKIE_MIN), base + ORDINAL_MAX)
    }

    /// The entry of a name, with its cookie.
    pub(crate) fn find(&self, dir: u64, name: &[u8]) -> Option<(u64, &Dentry)> {
        let (first, last) = self.bucket(name);
        self.map.range((dir, first)..=(dir, last)).find(|(_, d)| *d.name == *name).map(|(k, d)| (k.1, d))
    }

    /// The cookie that a new entry `name` gets: the lowest free one of its bucket. `None` if the bucket is full.
    pub(crate) fn free_cookie(&self, dir: u64, name: &[u8]) -> Option<u64> {
        let (first, last) = self.bucket(name);
        let mut free = first;
        for &(_, used) in self.map.range((dir, first)..=(dir, last)).map(|(k, _)| k) {
            if used != free {
                break;
            }
            free += 1;
        }
        (free <= last).then_some(free)
    }

    pub(crate) fn get(&self, dir: u64, cookie: u64) -> Option<&Dentry> {
        self.map.get(&(dir, cookie))
    }

    pub(crate) fn insert(&mut self, dir: u64, cookie: u64, entry: Dentry) {
        self.map.insert((dir, cookie), entry);
    }

    pub(crate) fn remove(&mut self, dir: u64, cookie: u64) -> Option<Dentry> {
        self.map.remove(&(dir, cookie))
    }

    /// Entries of a directory with cookies greater than `cookie`, in order.
    pub(crate) fn after(&self, dir: u64, cookie: u64) -> impl Iterator<Item = (u64, &Dentry)> {
        // Cookies are below 2^63, so every cookie that was handed out has a successor.
        let from = cookie.saturating_add(1);
        self.map.range((dir, from)..=(dir, u64::MAX)).map(|(k, d)| (k.1, d))
    }

    /// All entries from `(dir, cookie)` on, in order.
    pub(crate) fn from(&self, dir: u64, cookie: u64) -> impl Iterator<Item = (u64, u64, &Dentry)> {
        self.map.range((dir, cookie)..).map(|(k, d)| (k.0, k.1, d))
    }
}
