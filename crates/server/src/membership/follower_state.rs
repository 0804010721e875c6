//! `FollowerState`: the sessions that a server knows which is not the master.
//!
//! Owns: which begin of a session is known here; to which begin its last connection belonged; up to which number this
//! server has compared its sessions with the master's; and evictions of which the master has not been informed. Does
//! not own: the comparison itself (`follower`).
//!
//! Bound: the sessions of the master.

use crate::membership::ended::Begun;
use crate::records::SessionRecord;
use crate::turns::Turns;
use amphi_types::SessionId;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// The sessions that a follower knows.
pub struct FollowerState {
    known: RefCell<BTreeMap<SessionId, SessionRecord>>,
    /// For each session, the begin to which its last connection belonged.
    connected: RefCell<BTreeMap<SessionId, u64>>,
    /// Beginnings and ends of sessions, and switches of the granting of tokens, happen one after the other.
    pub changing: Turns,
    /// The number of the master's list of sessions with which this server was last compared.
    pub compared: Cell<Option<u64>>,
    /// Whether the result of a comparison is being applied concurrently with the beats.
    pub settling: Cell<bool>,
    /// Number of sessions that ended here and of which the master has not been informed.
    evicting: Cell<usize>,
}

impl Default for FollowerState {
    fn default() -> FollowerState {
        FollowerState {
            known: RefCell::default(),
            connected: RefCell::default(),
            changing: Turns::new(1),
            compared: Cell::default(),
            settling: Cell::default(),
            evicting: Cell::default(),
        }
    }
}

impl FollowerState {
    /// The zones remember a session, and its connection.
    pub fn remember(&self, session: SessionId, record: SessionRecord) {
        self.connected.borrow_mut().insert(session, record.start);
        self.begin(session, record);
    }

    /// Called when this server learns that a session has begun.
    pub fn begin(&self, session: SessionId, record: SessionRecord) {
        self.known.borrow_mut().insert(session, record);
    }

    /// Called when everything that a session had on this server is released.
    pub fn forget(&self, session: SessionId) {
        self.known.borrow_mut().remove(&session);
    }

    /// The sessions that this server knows.
    pub fn known(&self) -> Vec<(SessionId, SessionRecord)> {
        self.known.borrow().iter().map(|(id, record)| (*id, record.clone())).collect()
    }

    /// Returns how many sessions this server knows.
    pub fn count(&self) -> usize {
        self.known.borrow().len()
    }

    /// The begin of a session that this server knows.
    pub fn begin_of(&self, session: SessionId) -> Option<u64> {
        self.known.borrow().get(&session).map(|record| record.start)
    }

    /// Returns whether this server knows this session with this begin.
    pub fn knows(&self, session: Begun) -> bool {
        self.begin_of(session.0) == Some(session.1)
    }

    /// Returns whether this server knows any other session.
    pub fn knows_another(&self, session: SessionId) -> bool {
        self.known.borrow().keys().any(|other| *other != session)
    }

    /// A mount connects. Returns whether its last connection belonged to the same begin of its session.
    pub fn connect(&self, session: SessionId, begin: u64) -> bool {
        self.connected.borrow_mut().insert(session, begin) == Some(begin)
    }

    /// The begin to which the last connection of a session belonged.
    pub fn connected_begin_of(&self, session: SessionId) -> Option<u64> {
        self.connected.borrow().get(&session).copied()
    }

    /// Called when a session has ended so long ago that no requests about it arrive.
    pub fn forget_connection(&self, ended: Begun) {
        self.connected.borrow_mut().retain(|id, begin| (*id, *begin) != ended);
    }

    /// Called when a session was ended, and the master has to be informed.
    pub fn begin_evicting(&self) {
        self.evicting.set(self.evicting.get() + 1);
    }

    /// Called when the master has been informed of one such session.
    pub fn end_evicting(&self) {
        assert!(self.evicting.get() > 0, "the master was informed of an eviction that never began");
        self.evicting.set(self.evicting.get().saturating_sub(1));
    }

    /// Returns whether the master was not informed of some eviction yet.
    pub fn is_evicting(&self) -> bool {
        self.evicting.get() > 0
    }
}
