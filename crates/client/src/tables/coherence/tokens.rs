//! `Tokens`: names and attributes that this mount caches under tokens of the servers (docs/locking/tokens.md).
//!
//! Owns: one cache for all targets, since the answer to a lookup may contain grants of two targets; changes whose
//! answers were lost; revocations that are being answered; the values that a front end caches under tokens. Does not
//! own: requests and answers (`coherence::tokens`), the rules (`dlm`), when tokens are used at all (`sharing`).

use super::lent::Lent;
use super::lent_names::LentNames;
use amphi_dlm::{OwnChange, TokenCache, TokenCacheLimits};
use amphi_types::{Ino, Name, TargetId};
use amphi_wire::InodeView;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;

/// Most cached values, about 350 bytes each.
const VALUES_MAX: usize = 131_072;
/// How long a server may still carry out a change whose answer was lost with its connection.
pub(crate) const OPEN_END_NS: u64 = 180_000_000_000;

/// The value that is cached under a token.
pub(crate) enum Value {
    /// A name that exists, since several names may have the same key, and its inode.
    Present(Name, Ino),
    Absent(Name),
    View(Box<InodeView>),
    /// The record of the directory's names is complete (`new_directories`).
    Listing,
}

/// The cache of a mount.
pub(crate) struct Tokens {
    pub(crate) cache: RwLock<TokenCache<Value>>,
    /// Changes whose fate is unknown, and when they count as ended.
    pub(crate) open_ended: Mutex<Vec<(u64, OwnChange)>>,
    /// Revocations whose answers are on their way. A server sends a revocation again with each new connection. If each
    /// copy were answered, the answers would pile up in front of other messages that the server waits for.
    pub(crate) answering: Mutex<BTreeSet<(TargetId, u64)>>,
    /// Attributes that a front end caches.
    pub(crate) lent: Lent,
    /// Names that a front end caches.
    pub(crate) names: LentNames,
}

impl Tokens {
    pub(crate) fn new() -> Tokens {
        let limits = TokenCacheLimits { max_values: VALUES_MAX, ..TokenCacheLimits::default() };
        Tokens {
            cache: RwLock::new(TokenCache::new(limits)),
            open_ended: Mutex::default(),
            answering: Mutex::default(),
            lent: Lent::default(),
            names: LentNames::default(),
        }
    }

    /// Number of cached values, for statistics.
    pub(crate) fn len(&self) -> u64 {
        self.cache.read().len() as u64
    }
}
