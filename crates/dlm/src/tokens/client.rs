//! `TokenCache`: what one client caches under tokens.
//!
//! Owns: cached values with the time at which each expires, the requests whose replies may bring tokens, the client's
//! own changes, and the numbers up to which late grants are void. Does not own: messages, or the kernel's copies.
//!
//! Invariants, checked by the model tests:
//!
//! * A value is used only before its end, counted from when the request was sent. So its use ends before the server
//!   takes the token for expired.
//! * From the moment a revocation is received until a later grant, none of its keys is used, whatever replies still
//!   arrive.
//! * From the moment a change of this client is sent until a grant made after the change, its keys are not used either.
//!   Another client may see the change before the reply has arrived here, and its program may inform a program of this
//!   client.
//! * Nothing here waits, so a revocation can be answered as soon as it was applied.
//!
//! Numbers: [`TokenCache::get`] is one lookup without allocation. 65,536 values are cached. If a further one is stored,
//! the one that expires first is dropped. 4,096 void numbers are kept by key, about 60 bytes each, only while an older
//! request is unanswered. When there are more, one void number counts for all keys.

#[cfg(test)]
use super::PlantedBug;
use super::{Grant, Revoke, TokenKey, TokenNumber};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Tunables of a client's cache.
#[derive(Clone, Copy, Debug, Hash)]
pub struct TokenCacheLimits {
    /// Most cached values.
    pub max_values: usize,
    /// Most keys whose void numbers are remembered separately.
    pub max_void: usize,
}

impl Default for TokenCacheLimits {
    fn default() -> Self {
        TokenCacheLimits { max_values: 65_536, max_void: 4096 }
    }
}

/// A request whose reply may bring tokens. An `Ask` is not a guard: pass it to [`TokenCache::answered`] once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[must_use = "an ask that is never answered keeps void numbers in memory"]
pub struct Ask {
    id: u64,
    sent_ns: u64,
}

/// A change of this client that is under way. An `OwnChange` is not a guard: pass it to [`TokenCache::changed`] once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[must_use = "keys of a change that never ends are never cached again"]
pub struct OwnChange(u64);

#[cfg_attr(test, derive(Clone, Hash))]
struct Cached<V> {
    number: TokenNumber,
    end_ns: u64,
    value: V,
}

/// A grant with a number up to `upto` is void if it comes with the reply to one of the requests up to `newest`.
#[derive(Clone, Copy)]
#[cfg_attr(test, derive(Hash))]
struct Void {
    upto: TokenNumber,
    newest: u64,
}

impl Void {
    fn covers(&self, ask: Ask, number: TokenNumber) -> bool {
        ask.id <= self.newest && number <= self.upto
    }
}

/// The values that one client caches: a state machine without I/O.
#[cfg_attr(test, derive(Clone, Hash))]
pub struct TokenCache<V> {
    limits: TokenCacheLimits,
    values: BTreeMap<TokenKey, Cached<V>>,
    by_end: BTreeSet<(u64, TokenKey)>,
    last_ask: u64,
    /// Requests that are unanswered.
    asks: BTreeSet<u64>,
    void: BTreeMap<TokenKey, Void>,
    /// Keys in `void` in the order of their newest request. A key whose entry was renewed occurs more than once.
    void_order: VecDeque<(u64, TokenKey)>,
    /// The void number for all keys.
    void_all: Option<Void>,
    /// Grants of earlier starts of the target are void.
    generation: u16,
    last_change: u64,
    changes: BTreeMap<OwnChange, Vec<TokenKey>>,
    /// For each key, the number of this client's changes under way that concern it.
    changing: BTreeMap<TokenKey, usize>,
    #[cfg(test)]
    pub(crate) bug: Option<PlantedBug>,
}

impl<V> TokenCache<V> {
    /// An empty cache.
    pub fn new(limits: TokenCacheLimits) -> TokenCache<V> {
        TokenCache {
            limits,
            values: BTreeMap::new(),
            by_end: BTreeSet::new(),
            last_ask: 0,
            asks: BTreeSet::new(),
            void: BTreeMap::new(),
            void_order: VecDeque::new(),
            void_all: None,
            generation: 0,
            last_change: 0,
            changes: BTreeMap::new(),
            changing: BTreeMap::new(),
            #[cfg(test)]
            bug: None,
        }
    }

    /// It has to be called before a request is sent whose reply may bring tokens. `now_ns` is read from a clock that
    /// continues during suspend. A request that is sent again keeps its first ask.
    pub fn ask(&mut self, now_ns: u64) -> Ask {
        self.last_ask += 1;
        self.asks.insert(self.last_ask);
        Ask { id: self.last_ask, sent_ns: now_ns }
    }

    /// Stores the values that a reply shows, if they may still be cached. Returns whether it was stored.
    pub fn store(&mut self, now_ns: u64, ask: Ask, key: TokenKey, grant: Grant, value: V) -> bool {
        let sent_ns = ask.sent_ns;
        #[cfg(test)]
        let sent_ns = if self.bug == Some(PlantedBug::LifeFromReply) { now_ns } else { sent_ns };
        let end_ns = sent_ns.saturating_add(grant.life_ns);
        let void = [self.void.get(&key), self.void_all.as_ref()];
        if end_ns <= now_ns
            || self.limits.max_values == 0
            || !self.asks.contains(&ask.id)
            || self.is_changing(key)
            || grant.number.generation() < self.generation
            || void.into_iter().flatten().any(|void| void.covers(ask, grant.number))
            || self.values.get(&key).is_some_and(|cached| cached.number > grant.number)
        {
            return false;
        }
        self.drop_key(key);
        if self.values.len() >= self.limits.max_values
            && let Some(&(_, first)) = self.by_end.first()
        {
            self.drop_key(first);
        }
        self.values.insert(key, Cached { number: grant.number, end_ns, value });
        self.by_end.insert((end_ns, key));
        true
    }

    /// The reply was processed, or will never come (the call was given up, or lost with its session).
    pub fn answered(&mut self, ask: Ask) {
        self.asks.remove(&ask.id);
        let oldest = self.asks.first().copied().unwrap_or(u64::MAX);
        while let Some(&(newest, key)) = self.void_order.front()
            && newest < oldest
        {
            self.void_order.pop_front();
            if self.void.get(&key).is_some_and(|void| void.newest == newest) {
                self.void.remove(&key);
            }
        }
        if self.void_all.is_some_and(|void| void.newest < oldest) {
            self.void_all = None;
        }
    }

    /// The cached value, if it may be used now.
    pub fn get(&self, now_ns: u64, key: TokenKey) -> Option<&V> {
        self.lend(now_ns, key).map(|(value, _)| value)
    }

    /// The cached value, and the timeout with which a kernel may cache it, provided that a revocation is passed on to
    /// the kernel too.
    pub fn lend(&self, now_ns: u64, key: TokenKey) -> Option<(&V, u64)> {
        let cached = self.values.get(&key).filter(|cached| now_ns < cached.end_ns)?;
        Some((&cached.value, cached.end_ns - now_ns))
    }

    /// Applies a revocation, which may arrive twice. A kernel that caches values of these keys has to drop them,
    /// whether or not they are still cached here. After that, the answer to the revocation is always sent. Returns how
    /// many values were dropped here.
    pub fn revoke(&mut self, revoke: &Revoke) -> usize {
        let mut dropped = 0;
        for &key in &revoke.keys {
            if self.values.get(&key).is_some_and(|cached| cached.number <= revoke.upto) {
                self.drop_key(key);
                dropped += 1;
            }
            #[cfg(test)]
            if self.bug == Some(PlantedBug::NoBarrier) {
                continue;
            }
            self.void(key, revoke.upto);
        }
        dropped
    }

    /// It has to be called before a request is sent that changes these keys and names them. The values of these keys
    /// are not used until the request is answered.
    pub fn changing(&mut self, keys: &[TokenKey]) -> OwnChange {
        self.last_change += 1;
        let id = OwnChange(self.last_change);
        for &key in keys {
            *self.changing.entry(key).or_default() += 1;
            #[cfg(test)]
            if self.bug == Some(PlantedBug::KeepOwn) {
                continue;
            }
            self.drop_key(key);
        }
        self.changes.insert(id, keys.to_vec());
        id
    }

    /// Called when the change was answered, with the number from `TokenSpace::end_change`. It has to be called before
    /// the grants of the same reply are stored. Returns `None` if the change was not carried out and never will be. A
    /// call whose outcome is unknown has not ended, even if its caller was interrupted.
    pub fn changed(&mut self, change: OwnChange, number: Option<TokenNumber>) {
        for key in self.changes.remove(&change).unwrap_or_default() {
            if let Some(count) = self.changing.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.changing.remove(&key);
                }
            }
            #[cfg(test)]
            if matches!(self.bug, Some(PlantedBug::NoOwnBarrier | PlantedBug::KeepOwn)) {
                continue;
            }
            self.void(key, number.unwrap_or(TokenNumber(u64::MAX)));
        }
    }

    /// Called when the target has restarted: earlier values are dropped, and earlier grants are void by their numbers.
    /// After this the client presents its state. Requests that are sent again keep their asks, and changes of this
    /// client continue.
    pub fn restarted(&mut self, generation: u16) {
        self.generation = self.generation.max(generation);
        self.values.clear();
        self.by_end.clear();
    }

    /// Works as `lose_all`, but keeps values of keys that are not `lost`. Grants on their way are void too.
    pub fn lose(&mut self, lost: impl Fn(TokenKey) -> bool) {
        self.values.retain(|key, _| !lost(*key));
        self.by_end.retain(|(_, key)| !lost(*key));
        self.void_every(TokenNumber(u64::MAX));
    }

    /// Drops every value and voids every grant on its way, because the session is over or its tokens cannot be trusted.
    pub fn lose_all(&mut self) {
        self.values.clear();
        self.by_end.clear();
        self.void_every(TokenNumber(u64::MAX));
    }

    /// Number of values, including expired ones.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns whether no value is cached.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn is_changing(&self, key: TokenKey) -> bool {
        #[cfg(test)]
        if self.bug == Some(PlantedBug::KeepOwn) {
            return false;
        }
        self.changing.contains_key(&key)
    }

    fn drop_key(&mut self, key: TokenKey) {
        if let Some(cached) = self.values.remove(&key) {
            self.by_end.remove(&(cached.end_ns, key));
        }
    }

    /// Makes grants of the key up to this number void. Only the reply to a request that is unanswered now can bring
    /// such a grant, because the server made it before it sent the message that is being applied here.
    fn void(&mut self, key: TokenKey, upto: TokenNumber) {
        if self.asks.is_empty() {
            return;
        }
        if self.void_order.len() >= self.limits.max_void {
            let highest = self.void.values().map(|void| void.upto).max().unwrap_or(upto);
            self.void_every(highest.max(upto));
            return;
        }
        let newest = self.last_ask;
        let upto = self.void.get(&key).map_or(upto, |void| void.upto.max(upto));
        self.void.insert(key, Void { upto, newest });
        if self.void_order.back() != Some(&(newest, key)) {
            self.void_order.push_back((newest, key));
        }
    }

    fn void_every(&mut self, upto: TokenNumber) {
        self.void.clear();
        self.void_order.clear();
        let upto = self.void_all.map_or(upto, |void| void.upto.max(upto));
        self.void_all = (!self.asks.is_empty()).then_some(Void { upto, newest: self.last_ask });
    }
}

#[cfg(test)]
pub(crate) mod inspect {
    //! State that the tests check.
    use super::*;

    impl<V> TokenCache<V> {
        /// The sizes of everything that grows except values: expiry times, requests, void numbers, their order, own
        /// changes, changing keys.
        pub(crate) fn footprint(&self) -> [usize; 6] {
            let void = self.void.len() + usize::from(self.void_all.is_some());
            let asks = self.asks.len();
            [self.by_end.len(), asks, void, self.void_order.len(), self.changes.len(), self.changing.len()]
        }
    }
}
