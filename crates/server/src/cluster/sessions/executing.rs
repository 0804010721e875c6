//! `Executing`: requests of clients that are being executed.
//!
//! Owns: how many there are, and of whom. Does not own: the requests (`dispatch`).

use amphi_types::SessionId;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, btree_map};

/// Requests under way at one server.
#[derive(Default)]
pub(super) struct Executing {
    all: Cell<u64>,
    /// Requests of mounts to targets, by session.
    by_session: RefCell<BTreeMap<SessionId, u64>>,
}

impl Executing {
    /// Called when a request begins: of a session, or about the whole server.
    pub(super) fn begin(&self, session: Option<SessionId>) {
        self.all.set(self.all.get() + 1);
        if let Some(session) = session {
            *self.by_session.borrow_mut().entry(session).or_default() += 1;
        }
    }

    /// Called when a request has been answered.
    pub(super) fn end(&self, session: Option<SessionId>) {
        assert!(self.all.get() > 0, "a request ends that never began");
        self.all.set(self.all.get() - 1);
        let mut by_session = self.by_session.borrow_mut();
        if let Some(btree_map::Entry::Occupied(mut count)) = session.map(|session| by_session.entry(session)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Number of requests that are executed.
    pub(super) fn count(&self) -> u64 {
        self.all.get()
    }

    /// Returns whether a request of the session is executed.
    pub(super) fn has(&self, session: SessionId) -> bool {
        self.by_session.borrow().contains_key(&session)
    }
}
