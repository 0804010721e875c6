//! `Tokens`: what clients may cache of a target's names and attributes, in the form in which tasks use it.
//!
//! Owns: which task waits for which change, which messages have to be sent to clients, and whether tokens are granted
//! at all. Does not own: the rules (`amphi_dlm::TokenSpace`), connections, eviction.
//!
//! Invariants: every function that changes the token space carries out its actions in the same call. Two things are
//! done in one step without an await: reading a value and granting its token, and applying a change and ending it. In
//! sole mode, a change and a reply cost one check of a flag. A change that began in sole mode was announced to no
//! mount, so no token is granted until the last of these changes has ended.

use crate::coherence::locks::AGAIN_MAX;
use amphi_dlm::{ChangeId, Changed, Revoke, RevokeId, SessionEnd, TokenAction, TokenKey, TokenLimits, TokenSpace};
use amphi_types::{Ino, SessionId, TargetId};
use amphi_wire::{Push, TokenGrant};
use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How long a client may use a token. It is the same in all versions of the server, because after a restart the server
/// waits for the longest life that was ever granted.
pub const TOKEN_LIFE: Duration = Duration::from_secs(30);
/// How much longer a token is valid at the server.
pub const TOKEN_MARGIN: Duration = Duration::from_secs(1);

fn push_of(target: TargetId, r: &Revoke) -> Push {
    Push::Revoke { target, id: r.id.0, upto: r.upto.0, keys: r.keys.clone() }
}

struct Inner {
    target: TargetId,
    space: TokenSpace,
    waiting: BTreeMap<ChangeId, oneshot::Sender<()>>,
    outbox: Vec<(SessionId, Push)>,
    /// When the task that watches deadlines wakes up, and how it is woken earlier.
    watch: Option<(u64, oneshot::Sender<()>)>,
    /// Number of the last switch.
    switch: u64,
    /// Revocations sent again since they were counted last.
    again: u64,
}

impl Inner {
    /// The latest time at which something has to be done.
    fn next_look(&self, now_ns: u64, quiet_ns: u64) -> Option<u64> {
        let next = self.space.next_deadline()?;
        Some(if self.space.awaits_answers() { next.min(now_ns.saturating_add(quiet_ns)) } else { next })
    }

    fn pump(&mut self) {
        while let Some(action) = self.space.poll_action() {
            match action {
                TokenAction::Revoke(r) => {
                    self.outbox.push((r.session, push_of(self.target, &r)));
                }
                TokenAction::Ready(id) => {
                    if let Some(waiter) = self.waiting.remove(&id) {
                        // If the waiter has gone away, the change ends by itself.
                        let _ = waiter.send(());
                    }
                }
            }
        }
    }
}

/// Tokens of one target.
#[derive(Clone)]
pub struct Tokens {
    on: Rc<Cell<bool>>,
    /// Changes that were begun while no tokens were granted.
    unguarded: Rc<Cell<u64>>,
    inner: Rc<RefCell<Inner>>,
}

/// A change; dropping it ends it. From `Tokens::change` until this value is dropped, no mount caches its keys.
#[must_use = "dropping it ends the change"]
pub struct Changing {
    tokens: Tokens,
    id: Option<ChangeId>,
    number: Option<u64>,
    ended: bool,
}

impl Changing {
    /// It has to be called in the step in which the change is applied. Returns the number for the answer to the session
    /// of the change.
    pub fn end(&mut self) -> Option<u64> {
        if !std::mem::replace(&mut self.ended, true) {
            match self.id {
                None => {
                    debug_assert!(self.tokens.unguarded.get() > 0, "a change ends once");
                    self.tokens.unguarded.set(self.tokens.unguarded.get() - 1);
                }
                Some(id) => {
                    let mut inner = self.tokens.inner.borrow_mut();
                    inner.waiting.remove(&id);
                    self.number = Some(inner.space.end_change(id).0);
                    inner.pump();
                }
            }
        }
        self.number
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.end();
    }
}

impl Tokens {
    /// No tokens. `generation` is higher at each start of the target. `sessions` may hold tokens of an earlier run.
    pub fn new(
        target: TargetId,
        callback_deadline_ns: u64,
        generation: u16,
        now_ns: u64,
        sessions: impl IntoIterator<Item = SessionId>,
    ) -> Tokens {
        let limits = TokenLimits {
            life_ns: TOKEN_LIFE.as_nanos() as u64,
            margin_ns: TOKEN_MARGIN.as_nanos() as u64,
            callback_deadline_ns,
            ..TokenLimits::default()
        };
        let mut space = TokenSpace::new(limits, generation);
        space.recover(now_ns, sessions, limits.life_ns);
        let (waiting, outbox) = (BTreeMap::new(), Vec::new());
        let inner = Inner { target, space, waiting, outbox, watch: None, switch: 0, again: 0 };
        Tokens { on: Rc::default(), unguarded: Rc::default(), inner: Rc::new(RefCell::new(inner)) }
    }

    /// Changes the deadline of revocations from now on.
    pub fn tune(&self, callback_deadline_ns: u64) {
        self.inner.borrow_mut().space.tune(callback_deadline_ns);
    }

    /// Returns whether tokens are granted.
    pub fn on(&self) -> bool {
        self.on.get()
    }

    /// Grants tokens from now on, or no more. An older switch than the last one changes nothing.
    pub fn switch(&self, on: bool, number: u64) {
        let mut inner = self.inner.borrow_mut();
        if number >= inner.switch {
            inner.switch = number;
            self.on.set(on);
        }
    }

    /// Grants a token for the content of a reply. `written`: another session writes the file.
    pub fn grant(&self, now_ns: u64, session: SessionId, key: TokenKey, written: bool) -> Option<TokenGrant> {
        if !self.on.get() || self.unguarded.get() > 0 {
            return None;
        }
        let mut inner = self.inner.borrow_mut();
        let grant = inner.space.grant(now_ns, session, key, written).ok()?;
        assert!(
            grant.life_ns <= TOKEN_LIFE.as_nanos() as u64,
            "a token of {} ns outlives what is waited for when a session is cut off",
            grant.life_ns
        );
        inner.pump();
        Some(TokenGrant { number: grant.number.0, life_ms: (grant.life_ns / 1_000_000) as u32 })
    }

    /// Grants a token anew that the session has held without a break.
    pub fn renew(&self, now_ns: u64, session: SessionId, key: TokenKey) -> Option<TokenGrant> {
        if !self.on.get() || self.unguarded.get() > 0 {
            return None;
        }
        let mut inner = self.inner.borrow_mut();
        let grant = inner.space.renew(now_ns, session, key).ok()?;
        inner.pump();
        Some(TokenGrant { number: grant.number.0, life_ms: (grant.life_ns / 1_000_000) as u32 })
    }

    /// Whether several sessions changed names of the directory lately.
    pub fn is_shared(&self, now_ns: u64, dir: Ino) -> bool {
        self.inner.borrow().space.is_shared(now_ns, dir)
    }

    /// No token is granted until the returned change ends. This is for a change that an earlier run promised, when no
    /// mount cached anything.
    pub fn hold(&self) -> Changing {
        self.unguarded.set(self.unguarded.get() + 1);
        Changing { tokens: self.clone(), id: None, number: None, ended: false }
    }

    /// Names of a directory for which tokens are granted.
    pub fn names_of(&self, dir: Ino) -> Vec<TokenKey> {
        self.inner.borrow().space.names_of(dir)
    }

    /// Waits until no mount caches the keys of a change, and none is granted until its end. `sent` is called when
    /// revocations are to be sent.
    pub async fn change(
        &self,
        now_ns: impl FnOnce() -> u64,
        by: SessionId,
        keys: impl FnOnce() -> Vec<Changed>,
        sent: impl FnOnce(),
    ) -> Changing {
        if !self.on.get() {
            return self.hold();
        }
        let tokens = self.clone();
        let (changing, ready) = {
            let mut inner = self.inner.borrow_mut();
            let id = inner.space.begin_change(now_ns(), by, &keys());
            let ready = if inner.space.is_ready(id) {
                None
            } else {
                let (sender, receiver) = oneshot::channel();
                inner.waiting.insert(id, sender);
                Some(receiver)
            };
            inner.pump();
            (Changing { tokens, id: Some(id), number: None, ended: false }, ready)
        };
        sent();
        if let Some(ready) = ready {
            // The sender belongs to the change, which is held here.
            let _ = ready.await;
        }
        changing
    }

    /// The session answered revocations.
    pub fn revoked(&self, session: SessionId, ids: &[u64]) {
        let mut inner = self.inner.borrow_mut();
        for &id in ids {
            inner.space.revoked(session, RevokeId(id));
        }
        inner.pump();
    }

    /// Called when the session has ended.
    pub fn drop_session(&self, session: SessionId, end: SessionEnd) {
        let mut inner = self.inner.borrow_mut();
        inner.space.drop_session(session, end);
        inner.pump();
    }

    /// Called when the session knows of the restart.
    pub fn present(&self, session: SessionId) {
        let mut inner = self.inner.borrow_mut();
        inner.space.present(session);
        inner.pump();
    }

    /// Sends messages again that the session has not answered.
    pub fn push_again(&self, session: SessionId) {
        let mut inner = self.inner.borrow_mut();
        let target = inner.target;
        let pushes: Vec<_> = inner.space.unanswered(session).map(|r| (session, push_of(target, r))).collect();
        inner.outbox.extend(pushes);
    }

    /// Returns whether the session has not answered a revocation for `quiet_ns`.
    pub fn is_unanswered(&self, session: SessionId, now_ns: u64, quiet_ns: u64) -> bool {
        self.inner.borrow().space.leaves_unanswered(session, now_ns, quiet_ns)
    }

    /// Revocations to send.
    pub fn take_outbox(&self) -> Vec<(SessionId, Push)> {
        let mut inner = self.inner.borrow_mut();
        if inner.outbox.is_empty() { Vec::new() } else { std::mem::take(&mut inner.outbox) }
    }

    /// Returns whether the caller has to watch deadlines from now on. Wakes the task that does so if it sleeps too
    /// long: an unanswered revocation is sent again after `quiet_ns`.
    pub fn start_watch(&self, now_ns: u64, quiet_ns: u64) -> bool {
        let mut inner = self.inner.borrow_mut();
        match (&inner.watch, inner.next_look(now_ns, quiet_ns)) {
            (None, Some(_)) => {
                inner.watch = Some((0, oneshot::channel().0));
                true
            }
            (Some((until, _)), Some(next)) if next < *until => {
                // The new wake-up time is set when that task wakes.
                inner.watch = Some((next, oneshot::channel().0));
                false
            }
            _ => false,
        }
    }

    /// Ends tokens that have expired, and repeats revocations that are unanswered for `quiet_ns`, at most `AGAIN_MAX`.
    /// Returns the sessions that did not answer in time, when to check again, and what wakes the task earlier. `None`:
    /// there is nothing to watch.
    pub fn watch(&self, now_ns: u64, quiet_ns: u64) -> (Vec<SessionId>, Option<(u64, oneshot::Receiver<()>)>) {
        let mut inner = self.inner.borrow_mut();
        let mut late = Vec::new();
        loop {
            inner.space.tick(now_ns);
            late.extend(std::iter::from_fn(|| inner.space.poll_overdue(now_ns)).map(|o| o.session));
            if inner.space.next_deadline().is_none_or(|at| at > now_ns) {
                break;
            }
        }
        inner.pump();
        let again = inner.space.unanswered_for(now_ns, quiet_ns).take(AGAIN_MAX);
        let again: Vec<_> = again.map(|r| (r.session, push_of(inner.target, r))).collect();
        inner.again += again.len() as u64;
        inner.outbox.extend(again);
        let Some(next) = inner.next_look(now_ns, quiet_ns) else {
            inner.watch = None;
            return (late, None);
        };
        let (sender, receiver) = oneshot::channel();
        inner.watch = Some((next, sender));
        (late, Some((next, receiver)))
    }

    /// Revocations that `watch` has sent again since the last call.
    pub fn take_again(&self) -> u64 {
        std::mem::take(&mut self.inner.borrow_mut().again)
    }

    /// Number of tokens.
    pub fn count(&self) -> usize {
        self.inner.borrow().space.len()
    }
}
