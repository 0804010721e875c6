//! `KnownSessions`: the sessions that a target knows.
//!
//! Owns: which sessions are alive, stopped or cut off, and the answers of their slots. Does not own: their locks and
//! opens (`coherence`, `session`), which clients are admitted (`cluster::sessions`).
//!
//! A session is alive from its start to its stop, and stopped until it is forgotten. A stopped session begins nothing
//! new, but may finish what it has begun on other targets, and no other session gets its locks. A session that was *cut
//! off* may use its tokens until they expire.

use crate::records::{self, SessionRecord};
use crate::session::slots::Slots;
use amphi_types::SessionId;
use amphi_types::item::Txn;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// Sessions of one target.
pub struct KnownSessions {
    /// The answers in the slots of the sessions.
    pub slots: RefCell<Slots>,
    alive: RefCell<BTreeMap<SessionId, SessionRecord>>,
    /// Sessions that were stopped and are not forgotten yet, with their begins.
    stopped: RefCell<BTreeMap<SessionId, u64>>,
    /// The session that ended last, if it was the only one. It may reclaim its former state.
    left_last: Cell<Option<SessionId>>,
    cut_off: RefCell<BTreeSet<SessionId>>,
}

impl KnownSessions {
    /// The sessions that the log contains.
    pub fn recovered(
        slots: Slots,
        alive: BTreeMap<SessionId, SessionRecord>,
        cut_off: BTreeSet<SessionId>,
    ) -> KnownSessions {
        KnownSessions {
            slots: RefCell::new(slots),
            alive: RefCell::new(alive),
            stopped: RefCell::default(),
            left_last: Cell::default(),
            cut_off: RefCell::new(cut_off),
        }
    }

    /// Returns whether the session is alive.
    pub fn has(&self, session: SessionId) -> bool {
        self.alive.borrow().contains_key(&session)
    }

    /// Sessions that are alive.
    pub fn count(&self) -> usize {
        self.alive.borrow().len()
    }

    /// Each session that is alive, with its record.
    pub fn alive(&self) -> Vec<(SessionId, SessionRecord)> {
        self.alive.borrow().iter().map(|(id, record)| (*id, record.clone())).collect()
    }

    /// The begin of a session that is alive.
    pub fn begin_of(&self, session: SessionId) -> Option<u64> {
        self.alive.borrow().get(&session).map(|record| record.start)
    }

    /// Works as `begin_of`, also for a session that is only stopped.
    pub fn begin_of_any(&self, session: SessionId) -> Option<u64> {
        self.begin_of(session).or_else(|| self.stopped.borrow().get(&session).copied())
    }

    /// A session begins. Returns whether it may reclaim what it held, because no other session existed since.
    pub fn begin(&self, session: SessionId, record: SessionRecord) -> bool {
        self.stopped.borrow_mut().remove(&session);
        self.alive.borrow_mut().insert(session, record);
        self.left_last.take() == Some(session)
    }

    /// From now on no request of the session is executed.
    pub fn stop(&self, session: SessionId) {
        if let Some(record) = self.alive.borrow_mut().remove(&session) {
            self.stopped.borrow_mut().insert(session, record.start);
        }
    }

    /// Called when everything that a stopped session has was released.
    pub fn forget(&self, session: SessionId) {
        self.stopped.borrow_mut().remove(&session);
        self.left_last.set(self.alive.borrow().is_empty().then_some(session));
    }

    /// Sessions that were cut off and may still use their tokens.
    pub fn cut_off(&self) -> Vec<SessionId> {
        self.cut_off.borrow().iter().copied().collect()
    }

    /// Notes in `txn` that a session is cut off, as long as its tokens may be used. A restart has to wait for them too.
    pub fn note_cut_off(&self, session: SessionId, txn: &mut Txn) {
        txn.put(records::cut_off_key(session), Vec::new());
        self.cut_off.borrow_mut().insert(session);
    }

    /// The tokens of a session that was cut off have ended.
    pub fn forget_cut_off(&self, session: SessionId, txn: &mut Txn) {
        self.cut_off.borrow_mut().remove(&session);
        txn.delete(records::cut_off_key(session));
    }
}
