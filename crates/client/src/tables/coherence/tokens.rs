//! `Tokens`: names and attributes that this mount caches under tokens of the servers (docs/locking/tokens.md).
//!
//! Owns: one cache for all targets, since the answer to a look-up may bring grants of two; changes whose answers were
//! lost; revocations that are being answered; what was lent on. Does not own: requests and answers
//! (`coherence::tokens`), the rules (`dlm`), when tokens are used at all (`sharing`).

use super::lent::Lent;
use super::lent_names::LentNames;
use amphi_dlm::{OwnChange, TokenCache, TokenCacheLimits};
use amphi_types::{Ino, Name, TargetId};
use amphi_wire::InodeView;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;

/// Values cached, about 350 bytes each.
const VALUES_MAX: usize = 131_072;
/// How long a change whose answer was lost with its connection may still happen.
pub(crate) const OPEN_END_NS: u64 = 180_000_000_000;

/// What a token shows.
pub(crate) enum Value {
    /// The name, since names may share a key, and its inode.
    Present(Name, Ino),
    Absent(Name),
    View(Box<InodeView>),
}

/// The cache of a mount.
pub(crate) struct Tokens {
    pub(crate) cache: RwLock<TokenCache<Value>>,
    /// Changes of which nobody knows whether they will happen, and when they count as ended.
    pub(crate) open_ended: Mutex<Vec<(u64, OwnChange)>>,
    /// Revocations whose answers are on their way. A server sends them again with each new connection: were each one
    /// answered, answers would pile up before whatever else it waits for.
    pub(crate) answering: Mutex<BTreeSet<(TargetId, u64)>>,
    /// What a front end keeps of attributes.
    pub(crate) lent: Lent,
    /// What a front end keeps of names.
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

    /// Values cached, for people.
    pub(crate) fn len(&self) -> u64 {
        self.cache.read().len() as u64
    }
}
