//! Model tests of the lock server and the lock cache.
//!
//! `reference` compares the server with a plain list; `world` joins server, clients, network and data into one model
//! that `explore` walks exhaustively for small programs and `random` at random for larger ones; `scale` bounds the
//! work; `crowd` measures how fairly a thousand clients are served; `ping_pong` tests the detection of slow hand-overs.

mod crowd;
mod explore;
mod ping_pong;
mod random;
mod reference;
mod scale;
mod world;

use amphi_types::{ByteRange, Ino, ObjectId};

/// A mistake put into the server on purpose: the checkers have to find each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlantedBug {
    /// Every third request meets no conflict.
    MissConflict,
    /// A request does not wait for requests that arrived before it.
    JumpQueue,
    /// Callbacks are noted but not sent.
    LoseCallback,
    /// A lock-ahead is granted even if other locks conflict.
    GrantAhead,
    /// A session that ends leaves its write locks.
    LeaveLocks,
}

/// A fixed sequence of numbers for a seed.
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }

    pub fn range(&mut self, domain: u64) -> ByteRange {
        let (a, b) = (self.below(domain), self.below(domain));
        ByteRange::new(a.min(b), a.max(b) + 1)
    }
}

pub(crate) fn object(stripe: u32) -> ObjectId {
    ObjectId { ino: Ino(7), stripe }
}
