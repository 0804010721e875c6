//! Tokens: the right of a client to cache names and attributes, and its exact revocation.
//!
//! Owns: the vocabulary of tokens (keys, numbers, revocations), the table of a target ([`server`]) and the cache of a
//! client ([`client`]). Does not own: messages, the kernel's copies of what a client caches, or byte-range locks. These
//! state machines only make the decisions. `server` and `client` carry them out while there is more than one mount.
//! `docs/locking/tokens.md` has the protocol and the reason why it cannot deadlock.
//!
//! Invariants, checked by the model tests:
//!
//! * From the moment a change is applied, and until its key is granted anew, no client uses a cached value of that key.
//! * A client answers a revocation by itself: it sends no request to the server and waits for no call of its own.
//!
//! The numbers that drove the design: a warm `stat` or path walk must cost no round trip. A token must not take more
//! memory than the inode that it covers. A token takes about 200 bytes at the server, and one number in each reply.
//!
//! The race that token numbers decide: a reply with a grant and the push that revokes it travel on different lanes.
//! Every grant has a number, and later ones are larger. A revocation names the number up to which the grants of its
//! keys are void. A client that receives the revocation first remembers that number for as long as the reply to an
//! earlier request may be on its way.

pub mod client;
mod history;
pub mod server;

#[cfg(test)]
mod tests;

use amphi_types::SessionId;
pub use amphi_types::TokenKey;

/// Number of a grant. The number grows within a target across all its restarts: the upper 16 bits count starts of the
/// target, the lower 48 bits grants since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenNumber(pub u64);

impl TokenNumber {
    /// Joins the count of starts and the count of grants.
    pub fn new(generation: u16, sequence: u64) -> TokenNumber {
        debug_assert!(sequence < 1 << 48);
        TokenNumber((u64::from(generation) << 48) | sequence)
    }

    /// The count of starts.
    pub fn generation(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// The part of a reply that grants the right to cache the values in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    /// The number of the grant.
    pub number: TokenNumber,
    /// Lifetime of the token, counted from when the client sent its request.
    pub life_ns: u64,
}

/// Id of a revocation; it is unique within a target over all its restarts, like [`TokenNumber`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RevokeId(pub u64);

/// A revocation: all tokens that one change, or one reduction of the table, takes from one session.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revoke {
    /// The session that holds the tokens.
    pub session: SessionId,
    /// Id, to be named in the answer.
    pub id: RevokeId,
    /// Grants of these keys with a number up to this one are void. Later ones stay valid.
    pub upto: TokenNumber,
    /// The keys, at most [`REVOKE_KEYS`].
    pub keys: Vec<TokenKey>,
}

/// Most keys in one revocation. If a change has more keys, several revocations are sent.
pub const REVOKE_KEYS: usize = 512;

/// A mistake that tests plant in the state machines. The checks have to find each of them.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PlantedBug {
    /// A reply grants although a change of the key is under way.
    GrantDuringChange,
    /// A change does not wait for the answer to an earlier revocation of the key.
    OverlookRevoked,
    /// A change continues at once when a holder has been cut off.
    IgnoreCutOff,
    /// After a restart, a change continues without waiting for the sessions known before.
    SkipRecovery,
    /// A revocation that overtakes a grant is not remembered by the client.
    NoBarrier,
    /// A grant that is overtaken by the answer to the client's own change is not made void.
    NoOwnBarrier,
    /// The client keeps its cached values while one of its own changes is under way.
    KeepOwn,
    /// The client counts the life of a token from the reply.
    LifeFromReply,
    /// A revocation names one number less than was granted.
    RevokeNumberTooLow,
}
