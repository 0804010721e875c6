//! Changes of names and attributes: which change waits for which, and when it is ready.
//!
//! Owns: the order of changes of one key, and the moment at which one may continue. Does not own: the change itself.
//!
//! A change enters the queues of all its keys in one step, so the order of arrival is the order in every queue. It
//! waits for earlier changes of its keys (unless both have the key jointly), and for the tokens on its keys. The
//! revocations for a change are sent at its arrival, not at its turn. Of the earlier changes, it watches only one, as
//! lock requests do. Tokens need no watch: a key in a queue gets no new ones, and the last one that ends wakes the
//! queue once.

#[cfg(test)]
use super::PlantedBug;
use super::{SessionId, State, TokenAction, TokenKey, TokenNumber, TokenSpace};
use std::collections::{BTreeMap, BTreeSet};

/// Id of a change within a target's lifetime, in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangeId(u64);

/// One key that a change concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The key.
    pub key: TokenKey,
    /// The session named this key with its request and has dropped its own copy (`TokenCache::changing`), or keeps a
    /// record of its own changes (a listing). A key that it could not know, such as the attributes of what a rename
    /// replaces, is revoked from it as from all others.
    pub known: bool,
    /// The change need not be the only one on this key. Changes of different names in one directory may run side by
    /// side, although each of them modifies the listing and the directory's times.
    pub joint: bool,
}

impl Changed {
    /// A key that the session named, and on which the change is exclusive.
    pub fn alone(key: TokenKey) -> Changed {
        Changed { key, known: true, joint: false }
    }

    /// A key that the session named, and that joint changes may have at the same time.
    pub fn joint(key: TokenKey) -> Changed {
        Changed { key, known: true, joint: true }
    }

    /// A key that the session did not name.
    pub fn unknown(self) -> Changed {
        Changed { known: false, ..self }
    }
}

/// How a change concerns one of its keys.
#[derive(Clone, Copy)]
#[cfg_attr(test, derive(Hash))]
struct Hold {
    joint: bool,
    /// A token of the change's own session stays, and the change does not wait for it.
    spares_own: bool,
}

#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Change {
    keys: BTreeMap<TokenKey, Hold>,
    by: SessionId,
    ready: bool,
    watching: Option<ChangeId>,
    watchers: BTreeSet<ChangeId>,
}

/// The changes of one key.
#[derive(Default)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Queue {
    alone: BTreeSet<ChangeId>,
    joint: BTreeSet<ChangeId>,
}

impl Queue {
    fn of(&mut self, joint: bool) -> &mut BTreeSet<ChangeId> {
        if joint { &mut self.joint } else { &mut self.alone }
    }

    /// The latest of the earlier changes that have to end first.
    fn blocker(&self, id: ChangeId, joint: bool) -> Option<ChangeId> {
        let before = |ids: &BTreeSet<ChangeId>| ids.range(..id).next_back().copied();
        if joint { before(&self.alone) } else { before(&self.alone).max(before(&self.joint)) }
    }
}

/// Whether a session keeps its token of this key through its own changes: it knows by itself which names it has made.
fn spares_own(key: TokenKey) -> bool {
    matches!(key, TokenKey::Listing(_))
}

impl TokenSpace {
    /// Begins a change of these keys by that session, and revokes the tokens of others for them. The change may be
    /// applied when [`TokenAction::Ready`] names it, or at once if [`TokenSpace::is_ready`]. A key that is listed twice
    /// is known if either entry says so, and joint if both do. A request that is sent again must not begin a second
    /// change.
    pub fn begin_change(&mut self, now_ns: u64, by: SessionId, keys: &[Changed]) -> ChangeId {
        self.next_change += 1;
        let id = ChangeId(self.next_change);
        let mut merged: BTreeMap<TokenKey, Changed> = BTreeMap::new();
        for changed in keys {
            let entry = merged.entry(changed.key).or_insert(*changed);
            entry.known |= changed.known;
            entry.joint &= changed.joint;
        }
        let mut revoked = BTreeSet::new();
        for Changed { key, known, joint } in merged.values().copied() {
            let spares_own = known && spares_own(key);
            self.queues.entry(key).or_default().of(joint).insert(id);
            if let TokenKey::Listing(dir) = key {
                self.history.changed(now_ns, dir, by);
            }
            let mut gone = Vec::new();
            for (&(_, session), token) in self.tokens.range((key, SessionId(0))..=(key, SessionId(u64::MAX))) {
                if session == by && spares_own && token.expires_ns > now_ns {
                    continue;
                }
                let over = token.expires_ns <= now_ns || (known && session == by);
                #[cfg(test)]
                let over = over || self.bug == Some(PlantedBug::OverlookRevoked) && token.state != State::Held;
                if over {
                    gone.push(session);
                } else if token.state == State::Held {
                    revoked.insert((session, key));
                }
            }
            for &session in &gone {
                self.remove(key, session);
                self.forget_if_empty(session);
            }
            if !gone.is_empty() {
                self.wake(key);
            }
        }
        let hold =
            |changed: Changed| Hold { joint: changed.joint, spares_own: changed.known && spares_own(changed.key) };
        let keys = merged.into_iter().map(|(key, changed)| (key, hold(changed))).collect();
        self.changes.insert(id, Change { keys, by, ready: false, watching: None, watchers: BTreeSet::new() });
        self.revoke(now_ns, &revoked, Some(by));
        self.settle(id);
        id
    }

    /// Returns whether the change may be applied.
    pub fn is_ready(&self, id: ChangeId) -> bool {
        self.changes.get(&id).is_some_and(|change| change.ready)
    }

    /// Called when the change was applied, or was given up before or after it was ready. From now on its keys may be
    /// granted, first with its own reply. The returned number goes to the session with that reply, for
    /// `TokenCache::changed`.
    pub fn end_change(&mut self, id: ChangeId) -> TokenNumber {
        if let Some(change) = self.changes.remove(&id) {
            for (key, hold) in change.keys {
                let Some(queue) = self.queues.get_mut(&key) else { continue };
                queue.of(hold.joint).remove(&id);
                if queue.alone.is_empty() && queue.joint.is_empty() {
                    self.queues.remove(&key);
                }
            }
            if let Some(watched) = change.watching.and_then(|watched| self.changes.get_mut(&watched)) {
                watched.watchers.remove(&id);
            }
            for waiting in change.watchers {
                self.settle(waiting);
            }
        }
        self.number()
    }

    /// Whether a change of the key is under way that keeps it from being granted to this session.
    pub(super) fn is_changing(&self, key: TokenKey, session: SessionId) -> bool {
        let Some(queue) = self.queues.get(&key) else { return false };
        let spares =
            |change: &Change| change.by == session && change.keys.get(&key).is_some_and(|hold| hold.spares_own);
        let changes = queue.alone.union(&queue.joint).filter_map(|id| self.changes.get(id));
        !spares_own(key) || !changes.into_iter().all(spares)
    }

    /// Number of changes that wait or are ready.
    pub fn changes(&self) -> usize {
        self.changes.len()
    }

    /// Called when a token of the key is gone. If the token was the last one, the changes that wait for it are checked
    /// again.
    pub(super) fn wake(&mut self, key: TokenKey) {
        let Some(queue) = self.queues.get(&key) else { return };
        if self.is_held(key, None) && !spares_own(key) {
            return;
        }
        let waiting: BTreeSet<ChangeId> = queue.alone.union(&queue.joint).copied().collect();
        for id in waiting {
            self.settle(id);
        }
    }

    /// Makes the change ready if nothing blocks it. Otherwise records one thing that blocks it.
    pub(super) fn settle(&mut self, id: ChangeId) {
        let Some(change) = self.changes.get(&id) else { return };
        if change.ready || self.recovery.is_some() {
            return;
        }
        let earlier =
            |(key, hold): (&TokenKey, &Hold)| self.queues.get(key).and_then(|queue| queue.blocker(id, hold.joint));
        let blocker = change.keys.iter().filter_map(earlier).max();
        let waits = |(key, hold): (&TokenKey, &Hold)| self.is_held(*key, hold.spares_own.then_some(change.by));
        let free = blocker.is_none() && !change.keys.iter().any(waits);
        if blocker != change.watching {
            if let Some(old) = change.watching.and_then(|old| self.changes.get_mut(&old)) {
                old.watchers.remove(&id);
            }
            if let Some(new) = blocker.and_then(|new| self.changes.get_mut(&new)) {
                new.watchers.insert(id);
            }
        }
        let Some(change) = self.changes.get_mut(&id) else { return };
        change.watching = blocker;
        if free {
            change.ready = true;
            self.actions.push_back(TokenAction::Ready(id));
        }
    }
}
