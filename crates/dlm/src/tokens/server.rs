//! `TokenSpace`: the tokens of one target.
//!
//! Owns: which session may cache which key and until when, revocations and their deadlines, changes that wait for them
//! (`change`), and sessions that a restarted target waits for. Does not own: sessions (the caller reports their end),
//! values, or the execution of changes. Like the rest of the crate it is a state machine: time is an argument, and the
//! caller gets the resulting actions from [`TokenSpace::poll_action`].
//!
//! Invariants, checked by the model tests:
//!
//! * While a change is ready, no session may use a cached value of its keys. Each token on them was given back,
//!   belonged to a session that cannot use it any more, or has expired here and therefore earlier at the client.
//! * A key with a change that waits or is ready gets no grant. So tokens of a key only become fewer while a change
//!   waits. A listing is granted to the session whose changes these are, which do not wait for that session's token.
//! * A token is in `tokens` and in exactly one of `held` and `leaving`, and in the same set of its session.
//! * A token under revocation stays in the table until the answer, so bounds count it and later changes wait for it.
//!
//! Numbers: a token expires here `margin_ns` [1 s] after its life [30 s] is over. A token takes about 200 bytes. There
//! are at most 1,048,576 of them, and 131,072 for each session. From three quarters of a bound on, the oldest are
//! revoked, 64 at a time.

mod change;

pub use change::{ChangeId, Changed};

#[cfg(test)]
use super::PlantedBug;
use super::history::History;
pub use super::history::HistoryLimits;
use super::{Grant, REVOKE_KEYS, Revoke, RevokeId, TokenKey, TokenNumber};
use amphi_types::{Ino, SessionId};
use change::{Change, Queue};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most tokens that one [`TokenSpace::tick`] ends.
const EXPIRE_BATCH: usize = 1024;

/// Tunables of a target's tokens.
#[derive(Clone, Copy, Debug, Hash)]
pub struct TokenLimits {
    /// How long a client may use a token, counted from its request. 0: none is granted.
    pub life_ns: u64,
    /// How much longer a token is valid at the server, counted from the grant. It has to be more than the drift of two
    /// clocks within a token's life.
    pub margin_ns: u64,
    /// Most tokens of the target, including those under revocation.
    pub max_tokens: usize,
    /// Most tokens of one session, including those under revocation.
    pub max_session_tokens: usize,
    /// How many tokens are revoked together when the table is nearly full.
    pub trim_batch: usize,
    /// Most revocations that a session may leave unanswered before it is granted nothing.
    pub max_unanswered: usize,
    /// A session that has not answered a revocation after this time is overdue.
    pub callback_deadline_ns: u64,
    /// Which directories grant no listing token.
    pub history: HistoryLimits,
}

impl Default for TokenLimits {
    fn default() -> Self {
        TokenLimits {
            life_ns: 30_000_000_000,
            margin_ns: 1_000_000_000,
            max_tokens: 1 << 20,
            max_session_tokens: 1 << 17,
            trim_batch: 64,
            max_unanswered: 1024,
            callback_deadline_ns: 30_000_000_000,
            history: HistoryLimits::default(),
        }
    }
}

/// The reason why a reply may not be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoGrant {
    /// Tokens are switched off, as in sole mode.
    Off,
    /// Another session has the file open for writing.
    Written,
    /// A change of the key is under way.
    Changing,
    /// The directory is concurrently changed.
    Shared,
    /// The session's earlier token for this key is being revoked, or it leaves too many revocations unanswered.
    Unanswered,
    /// The session has not presented itself since the restart.
    Unpresented,
    /// The table, or the session's part of it, is full.
    Full,
    /// The session does not hold the token that is to be renewed.
    NotHeld,
}

/// The next action of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum TokenAction {
    /// Send this revocation to its session, and again after a new connection ([`TokenSpace::unanswered`]). The
    /// revocation may overtake replies.
    Revoke(Revoke),
    /// The change may be applied now, and [`TokenSpace::end_change`] is called afterwards.
    Ready(ChangeId),
}

/// A session that did not answer a revocation in time and has to be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenOverdue {
    /// The session.
    pub session: SessionId,
    /// The revocation.
    pub id: RevokeId,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The session ended itself, or its process is known to be dead, so it uses nothing any more.
    Stopped,
    /// The session is unreachable and does not know that it is over. The client may use what it caches until that
    /// expires.
    CutOff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
enum State {
    Held,
    Revoked(RevokeId),
    /// A token of a session that was cut off. The token ends only when it expires.
    Orphan,
}

#[derive(Clone, Copy)]
#[cfg_attr(test, derive(Hash))]
struct Token {
    number: TokenNumber,
    expires_ns: u64,
    state: State,
}

/// Order of tokens. The one that expires first is the oldest.
type Age = (u64, TokenNumber);

#[derive(Default)]
#[cfg_attr(test, derive(Clone, Hash))]
struct Session {
    held: BTreeSet<Age>,
    leaving: BTreeSet<Age>,
    revokes: BTreeSet<RevokeId>,
}

#[cfg_attr(test, derive(Clone, Hash))]
struct Pending {
    revoke: Revoke,
    deadline_ns: u64,
    /// The revocation was caused by a change of the session that holds the tokens.
    own: bool,
}

#[cfg_attr(test, derive(Clone, Hash))]
struct Recovery {
    missing: BTreeSet<SessionId>,
    until_ns: u64,
}

/// Statistics of grants and revocations.
#[cfg_attr(test, derive(Clone, Hash))]
struct Counts {
    grants: u64,
    revocations: u64,
}

/// Revocations that are under way.
#[cfg_attr(test, derive(Clone, Hash))]
struct Revoking {
    pending: BTreeMap<RevokeId, Pending>,
    /// Deadlines of unanswered revocations that were not reported as overdue.
    deadlines: BTreeSet<(u64, RevokeId)>,
}

/// All tokens of one target: a state machine without I/O.
#[cfg_attr(test, derive(Clone, Hash))]
pub struct TokenSpace {
    limits: TokenLimits,
    generation: u16,
    /// Statistics.
    counts: Counts,
    tokens: BTreeMap<(TokenKey, SessionId), Token>,
    held: BTreeMap<Age, (TokenKey, SessionId)>,
    /// Tokens under revocation, and orphans.
    leaving: BTreeMap<Age, (TokenKey, SessionId)>,
    sessions: BTreeMap<SessionId, Session>,
    /// Revocations that are under way.
    revoking: Revoking,
    changes: BTreeMap<ChangeId, Change>,
    next_change: u64,
    /// Keys with a change that waits or is ready.
    queues: BTreeMap<TokenKey, Queue>,
    history: History,
    recovery: Option<Recovery>,
    actions: VecDeque<TokenAction>,
    #[cfg(test)]
    pub(crate) bug: Option<PlantedBug>,
}

impl TokenSpace {
    /// An empty table. `generation` counts the starts of the target, and every start needs a larger one.
    pub fn new(limits: TokenLimits, generation: u16) -> TokenSpace {
        TokenSpace {
            limits,
            generation,
            counts: Counts { grants: 0, revocations: 0 },
            tokens: BTreeMap::new(),
            held: BTreeMap::new(),
            leaving: BTreeMap::new(),
            sessions: BTreeMap::new(),
            revoking: Revoking { pending: BTreeMap::new(), deadlines: BTreeSet::new() },
            changes: BTreeMap::new(),
            next_change: 0,
            queues: BTreeMap::new(),
            history: History::new(limits.history),
            recovery: None,
            actions: VecDeque::new(),
            #[cfg(test)]
            bug: None,
        }
    }

    /// Changes the deadline of revocations from now on.
    pub fn tune(&mut self, callback_deadline_ns: u64) {
        self.limits.callback_deadline_ns = callback_deadline_ns;
    }

    /// The next action; `None` when there is none.
    pub fn poll_action(&mut self) -> Option<TokenAction> {
        self.actions.pop_front()
    }

    /// Returns whether the directory is concurrently changed, so that a token for it would be revoked soon.
    pub fn is_shared(&self, now_ns: u64, dir: Ino) -> bool {
        self.history.is_shared(now_ns, dir)
    }

    /// Grants a token for the values that a reply shows. This has to be called in the same step that reads the value,
    /// with nothing in between. `written`: another session has the file open for writing, so its size and times change
    /// without a change here.
    pub fn grant(&mut self, now_ns: u64, session: SessionId, key: TokenKey, written: bool) -> Result<Grant, NoGrant> {
        let limits = self.limits;
        if limits.life_ns == 0 {
            return Err(NoGrant::Off);
        }
        if written {
            return Err(NoGrant::Written);
        }
        let changing = self.is_changing(key, session);
        #[cfg(test)]
        let changing = changing && self.bug != Some(PlantedBug::GrantDuringChange);
        if changing {
            return Err(NoGrant::Changing);
        }
        if matches!(key, TokenKey::Listing(dir) if self.history.is_shared(now_ns, dir)) {
            return Err(NoGrant::Shared);
        }
        if self.recovery.as_ref().is_some_and(|recovery| recovery.missing.contains(&session)) {
            return Err(NoGrant::Unpresented);
        }
        if let Some(token) = self.tokens.get(&(key, session)) {
            if token.state != State::Held && token.expires_ns > now_ns {
                return Err(NoGrant::Unanswered);
            }
            self.remove(key, session);
        }
        let (of_session, unanswered) =
            self.sessions.get(&session).map_or((0, 0), |s| (s.held.len() + s.leaving.len(), s.revokes.len()));
        if unanswered >= limits.max_unanswered {
            return Err(NoGrant::Unanswered);
        }
        if self.tokens.len() >= limits.max_tokens || of_session >= limits.max_session_tokens {
            return Err(NoGrant::Full);
        }
        self.counts.grants += 1;
        let number = self.number();
        let expires_ns = now_ns.saturating_add(limits.life_ns).saturating_add(limits.margin_ns);
        self.tokens.insert((key, session), Token { number, expires_ns, state: State::Held });
        self.held.insert((expires_ns, number), (key, session));
        self.sessions.entry(session).or_default().held.insert((expires_ns, number));
        self.trim(now_ns, session);
        Ok(Grant { number, life_ns: limits.life_ns })
    }

    /// As `grant`, if the session holds the token without a break until now.
    ///
    /// Errors: as `grant`; `NotHeld`.
    pub fn renew(&mut self, now_ns: u64, session: SessionId, key: TokenKey) -> Result<Grant, NoGrant> {
        let holds = |token: &Token| token.state == State::Held && token.expires_ns > now_ns;
        if !self.tokens.get(&(key, session)).is_some_and(holds) {
            return Err(NoGrant::NotHeld);
        }
        self.grant(now_ns, session, key, false)
    }

    /// The newest number that was granted. Every grant up to it was read before this moment.
    pub fn number(&self) -> TokenNumber {
        TokenNumber::new(self.generation, self.counts.grants)
    }

    /// The session answered: it has dropped the values that the revocation names, and does not use them any more.
    /// Answers to unknown revocations (answered before, or the session was dropped) are ignored. Returns whether the
    /// revocation was known.
    pub fn revoked(&mut self, session: SessionId, id: RevokeId) -> bool {
        if self.revoking.pending.get(&id).is_none_or(|pending| pending.revoke.session != session) {
            return false;
        }
        for key in self.forget_revoke(id) {
            if self.tokens.get(&(key, session)).is_some_and(|token| token.state == State::Revoked(id)) {
                self.remove(key, session);
                self.wake(key);
            }
        }
        self.forget_if_empty(session);
        true
    }

    /// Called when the session is over. Changes that it began stay until [`TokenSpace::end_change`]. Returns how many
    /// tokens the session had.
    pub fn drop_session(&mut self, session: SessionId, end: SessionEnd) -> usize {
        #[cfg(test)]
        let end = if self.bug == Some(PlantedBug::IgnoreCutOff) { SessionEnd::Stopped } else { end };
        if end == SessionEnd::Stopped {
            self.present(session);
        }
        let Some(known) = self.sessions.get_mut(&session) else { return 0 };
        let revokes = std::mem::take(&mut known.revokes);
        let held = std::mem::take(&mut known.held);
        known.leaving.extend(held.iter().copied());
        let ages = known.leaving.clone();
        for id in revokes {
            self.forget_revoke(id);
        }
        for age in held {
            if let Some(what) = self.held.remove(&age) {
                self.leaving.insert(age, what);
            }
        }
        for age in &ages {
            let Some(&(key, _)) = self.leaving.get(age) else { continue };
            if end == SessionEnd::Stopped {
                self.remove(key, session);
                self.wake(key);
            } else if let Some(token) = self.tokens.get_mut(&(key, session)) {
                token.state = State::Orphan;
            }
        }
        self.forget_if_empty(session);
        ages.len()
    }

    /// Revocations that the session has not answered, to be sent again over a new connection.
    pub fn unanswered(&self, session: SessionId) -> impl Iterator<Item = &Revoke> {
        let ids = self.sessions.get(&session).into_iter().flat_map(|known| &known.revokes);
        ids.filter_map(|id| self.revoking.pending.get(id)).map(|pending| &pending.revoke)
    }

    /// It has to be called first after a restart. These sessions may use tokens of which this target has no record any
    /// more. Changes wait until each of these sessions has presented itself or was dropped as stopped, or until the
    /// longest life that was ever granted is over.
    pub fn recover(&mut self, now_ns: u64, sessions: impl IntoIterator<Item = SessionId>, longest_life_ns: u64) {
        #[cfg(test)]
        if self.bug == Some(PlantedBug::SkipRecovery) {
            return;
        }
        let missing: BTreeSet<SessionId> = sessions.into_iter().collect();
        let until_ns = now_ns.saturating_add(longest_life_ns).saturating_add(self.limits.margin_ns);
        self.recovery = (!missing.is_empty()).then_some(Recovery { missing, until_ns });
    }

    /// Called when the session knows of the restart and has dropped everything that it had cached before.
    pub fn present(&mut self, session: SessionId) {
        if let Some(recovery) = &mut self.recovery
            && recovery.missing.remove(&session)
            && recovery.missing.is_empty()
        {
            self.end_recovery();
        }
    }

    /// Sessions that have not presented themselves since the restart.
    pub fn missing(&self) -> impl Iterator<Item = SessionId> {
        self.recovery.iter().flat_map(|recovery| recovery.missing.iter().copied())
    }

    /// Ends expired tokens, at most 1,024. [`TokenSpace::next_deadline`] says when it has to be called again.
    pub fn tick(&mut self, now_ns: u64) {
        if self.recovery.as_ref().is_some_and(|recovery| recovery.until_ns <= now_ns) {
            self.end_recovery();
        }
        for _ in 0..EXPIRE_BATCH {
            // Tokens in `leaving` come first, because a change may wait for them.
            let expired = |ages: &BTreeMap<Age, (TokenKey, SessionId)>| {
                ages.first_key_value().filter(|(age, _)| age.0 <= now_ns).map(|(_, &what)| what)
            };
            let Some((key, session)) = expired(&self.leaving).or_else(|| expired(&self.held)) else { break };
            self.remove(key, session);
            self.forget_if_empty(session);
            self.wake(key);
        }
    }

    /// When [`TokenSpace::tick`] or [`TokenSpace::poll_overdue`] has to be called next.
    pub fn next_deadline(&self) -> Option<u64> {
        let recovery = self.recovery.as_ref().map(|recovery| recovery.until_ns);
        let overdue = self.revoking.deadlines.first().map(|&(deadline_ns, _)| deadline_ns);
        let ages = [&self.held, &self.leaving].map(|ages| ages.first_key_value().map(|(age, _)| age.0));
        [recovery, overdue, ages[0], ages[1]].into_iter().flatten().min()
    }

    /// Revocations that were made at least `quiet_ns` ago and are not answered, the oldest first.
    pub fn unanswered_for(&self, now_ns: u64, quiet_ns: u64) -> impl Iterator<Item = &Revoke> {
        let until_ns = now_ns.saturating_add(self.limits.callback_deadline_ns).saturating_sub(quiet_ns);
        let quiet = self.revoking.deadlines.range(..=(until_ns, RevokeId(u64::MAX)));
        quiet.filter_map(|(_, id)| self.revoking.pending.get(id).map(|pending| &pending.revoke))
    }

    /// Returns whether a session has not answered a revocation that was made at least `quiet_ns` ago for another
    /// session's change.
    pub fn leaves_unanswered(&self, session: SessionId, now_ns: u64, quiet_ns: u64) -> bool {
        let until_ns = now_ns.saturating_add(self.limits.callback_deadline_ns).saturating_sub(quiet_ns);
        let quiet = self.revoking.deadlines.range(..=(until_ns, RevokeId(u64::MAX)));
        quiet.filter_map(|(_, id)| self.revoking.pending.get(id)).any(|p| p.revoke.session == session && !p.own)
    }

    /// Returns whether a revocation is unanswered.
    pub fn awaits_answers(&self) -> bool {
        !self.revoking.deadlines.is_empty()
    }

    /// A session that left a revocation unanswered beyond its deadline. Each revocation is reported once. A revocation
    /// for a change of that session itself is not reported. Evicting the session would not help, because changes wait
    /// for the expiry of the tokens anyway.
    pub fn poll_overdue(&mut self, now_ns: u64) -> Option<TokenOverdue> {
        while let Some(&(deadline_ns, id)) =
            self.revoking.deadlines.first().filter(|(deadline_ns, _)| *deadline_ns <= now_ns)
        {
            self.revoking.deadlines.remove(&(deadline_ns, id));
            if let Some(pending) = self.revoking.pending.get(&id).filter(|pending| !pending.own) {
                return Some(TokenOverdue { session: pending.revoke.session, id });
            }
        }
        None
    }

    /// The names of a directory for which there are tokens.
    pub fn names_of(&self, dir: Ino) -> Vec<TokenKey> {
        let ends = (TokenKey::Name(dir, 0), SessionId(0))..=(TokenKey::Name(dir, u64::MAX), SessionId(u64::MAX));
        let mut names: Vec<TokenKey> = self.tokens.range(ends).map(|((key, _), _)| *key).collect();
        names.dedup();
        names
    }

    /// Number of tokens, including those under revocation.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    fn end_recovery(&mut self) {
        self.recovery = None;
        let changes: Vec<ChangeId> = self.changes.keys().copied().collect();
        for id in changes {
            self.settle(id);
        }
    }

    /// Revokes the oldest tokens of the session, or of the target, when three quarters of a bound are in use.
    fn trim(&mut self, now_ns: u64, session: SessionId) {
        let limits = self.limits;
        let batch = limits.trim_batch.max(1);
        let mut oldest: BTreeSet<(SessionId, TokenKey)> = BTreeSet::new();
        if let Some(known) = self.sessions.get(&session)
            && known.held.len() > limits.max_session_tokens / 4 * 3
        {
            let keys = known.held.iter().take(batch).filter_map(|age| self.held.get(age));
            oldest.extend(keys.map(|&(key, session)| (session, key)));
        }
        if self.held.len() > limits.max_tokens / 4 * 3 {
            oldest.extend(self.held.values().take(batch).map(|&(key, session)| (session, key)));
        }
        self.revoke(now_ns, &oldest, None);
    }

    /// Revokes these tokens for a change of `by`, with as few messages for each session as possible. None of these
    /// tokens is being revoked yet.
    fn revoke(&mut self, now_ns: u64, tokens: &BTreeSet<(SessionId, TokenKey)>, by: Option<SessionId>) {
        let mut rest = tokens.iter().copied().peekable();
        while let Some(&(session, _)) = rest.peek() {
            let mut keys = Vec::new();
            while keys.len() < REVOKE_KEYS
                && let Some((_, key)) = rest.next_if(|&(of, _)| of == session)
            {
                keys.push(key);
            }
            self.counts.revocations += 1;
            let id = RevokeId(TokenNumber::new(self.generation, self.counts.revocations).0);
            for &key in &keys {
                let Some(token) = self.tokens.get_mut(&(key, session)) else { continue };
                token.state = State::Revoked(id);
                let age = (token.expires_ns, token.number);
                self.held.remove(&age);
                self.leaving.insert(age, (key, session));
                let known = self.sessions.entry(session).or_default();
                known.held.remove(&age);
                known.leaving.insert(age);
            }
            let upto = self.number();
            #[cfg(test)]
            let upto = if self.bug == Some(PlantedBug::RevokeNumberTooLow) { TokenNumber(upto.0 - 1) } else { upto };
            let revoke = Revoke { session, id, upto, keys };
            let deadline_ns = now_ns.saturating_add(self.limits.callback_deadline_ns);
            self.revoking.deadlines.insert((deadline_ns, id));
            self.sessions.entry(session).or_default().revokes.insert(id);
            self.actions.push_back(TokenAction::Revoke(revoke.clone()));
            self.revoking.pending.insert(id, Pending { revoke, deadline_ns, own: by == Some(session) });
        }
    }

    fn forget_revoke(&mut self, id: RevokeId) -> Vec<TokenKey> {
        let Some(Pending { revoke, deadline_ns, .. }) = self.revoking.pending.remove(&id) else { return Vec::new() };
        self.revoking.deadlines.remove(&(deadline_ns, id));
        if let Some(known) = self.sessions.get_mut(&revoke.session) {
            known.revokes.remove(&id);
        }
        revoke.keys
    }

    /// Removes a token from every table. Changes that wait for it have to be woken by the caller.
    fn remove(&mut self, key: TokenKey, session: SessionId) {
        let Some(token) = self.tokens.remove(&(key, session)) else { return };
        let age = (token.expires_ns, token.number);
        self.held.remove(&age);
        self.leaving.remove(&age);
        if let Some(known) = self.sessions.get_mut(&session) {
            known.held.remove(&age);
            known.leaving.remove(&age);
        }
    }

    fn forget_if_empty(&mut self, session: SessionId) {
        let empty = |s: &Session| s.held.is_empty() && s.leaving.is_empty() && s.revokes.is_empty();
        if self.sessions.get(&session).is_some_and(empty) {
            self.sessions.remove(&session);
        }
    }

    /// Whether a session other than `spared` has a token of the key, in whatever state.
    fn is_held(&self, key: TokenKey, spared: Option<SessionId>) -> bool {
        let all = self.tokens.range((key, SessionId(0))..=(key, SessionId(u64::MAX)));
        all.into_iter().any(|((_, session), _)| Some(*session) != spared)
    }
}

#[cfg(test)]
pub(crate) mod inspect {
    //! State that the tests check.
    use super::*;

    impl TokenSpace {
        /// Tokens by the three indexes, sessions, unanswered revocations, their deadlines, changes, queues.
        pub(crate) fn footprint(&self) -> [usize; 8] {
            [
                self.tokens.len(),
                self.held.len() + self.leaving.len(),
                self.sessions.values().map(|s| s.held.len() + s.leaving.len()).sum(),
                self.sessions.len(),
                self.revoking.pending.len(),
                self.revoking.deadlines.len(),
                self.changes.len(),
                self.queues.len(),
            ]
        }

        /// Payload bytes of one token in all tables, without the slack of their nodes.
        pub(crate) const TOKEN_BYTES: usize =
            size_of::<((TokenKey, SessionId), Token)>() + size_of::<(Age, (TokenKey, SessionId))>() + size_of::<Age>();
    }
}
