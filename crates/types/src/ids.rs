//! Identity of targets, inodes, objects and sessions.
//!
//! An inode number carries its owner target in its upper 16 bits, so that the route of a request is a pure
//! function of the request.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A slice of storage with one owner. Small, stable and virtual: it may move between servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct TargetId(pub u16);

/// An inode number: owner target in the upper 16 bits, a number local to that target in the lower 48.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory: target 0, local number 1. This number equals FUSE's root node id.
    pub const ROOT: Ino = Ino(1);
    /// Largest local number.
    pub const MAX_LOCAL: u64 = (1 << 48) - 1;

    /// Joins owner and local number. Panics if `local` needs more than 48 bits.
    pub fn new(target: TargetId, local: u64) -> Ino {
        assert!(local <= Self::MAX_LOCAL, "local inode number {local} needs more than 48 bits");
        Ino((u64::from(target.0) << 48) | local)
    }

    /// The target that owns the inode.
    pub fn target(self) -> TargetId {
        TargetId((self.0 >> 48) as u16)
    }

    /// The number local to the owner.
    pub fn local(self) -> u64 {
        self.0 & Self::MAX_LOCAL
    }

    /// Most shards of a directory.
    pub const SHARDS_MAX: usize = 256;
    /// Bit of a local number that makes it the number of a shard. The 8 bits below are the shard's place among the
    /// shards of its directory; the other bits are the number that its target has given out for it.
    const SHARD: u64 = 1 << 47;
    const SHARD_PLACE_SHIFT: u32 = 39;

    /// The number of the shard at `place` of a directory, from a number that its target has given out. Returns `None`
    /// if that is too large.
    pub fn shard(given: Ino, place: u8) -> Option<Ino> {
        let local = Self::SHARD | u64::from(place) << Self::SHARD_PLACE_SHIFT | given.local();
        (given.local() >> Self::SHARD_PLACE_SHIFT == 0).then(|| Ino::new(given.target(), local))
    }

    /// If this is a shard of a directory, its place among the shards, which are in the order of cookies.
    pub fn shard_place(self) -> Option<u8> {
        shard_place(self.local())
    }

    /// Returns whether this is a shard of a directory, an inode that only servers and clients know.
    pub fn is_shard(self) -> bool {
        self.local() & Self::SHARD != 0
    }

    /// The local number that its target has given out.
    pub fn given(self) -> u64 {
        if self.is_shard() { self.local() & ((1 << Self::SHARD_PLACE_SHIFT) - 1) } else { self.local() }
    }
}

/// The number of bits of a cookie that are below the place of the shard in which its entry lies.
pub const SHARD_COOKIE_SHIFT: u32 = 55;

/// Returns the same as `Ino::shard_place`, from the local number.
pub fn shard_place(local: u64) -> Option<u8> {
    (local & Ino::SHARD != 0).then_some((local >> Ino::SHARD_PLACE_SHIFT) as u8)
}

impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.target().0, self.local())
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "target {}", self.0)
    }
}

/// The object that holds one stripe of a file. Bytes of an object are addressed by their offset in the *file*, so
/// objects are sparse and layout arithmetic is only "which target holds this byte" (see `layout`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectId {
    /// The file.
    pub ino: Ino,
    /// Stripe index; stripe 0 lives on the inode's own target.
    pub stripe: u32,
}

/// A client's session with a cluster, chosen at random by the client; survives reconnects and restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// The object of one token: a right of clients to cache (docs/locking/tokens.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TokenKey {
    /// The attributes of an inode.
    Attributes(Ino),
    /// A name of a directory, whether it exists or not, identified by the hash of the name (`Name::token_hash`). Names
    /// with one hash share a key, so a cached value contains its name.
    Name(Ino, u64),
    /// Which names a directory has, for a mount that has made all of them. It is kept through the mount's own changes,
    /// of which the mount keeps a record itself.
    Listing(Ino),
}

impl TokenKey {
    /// The target that grants it: the owner of the inode or directory.
    pub fn target(self) -> TargetId {
        match self {
            TokenKey::Attributes(ino) | TokenKey::Name(ino, _) | TokenKey::Listing(ino) => ino.target(),
        }
    }
}
