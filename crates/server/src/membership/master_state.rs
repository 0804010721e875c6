//! `MasterState`: the state that the master has and other servers do not.
//!
//! Owns: when the last message from each server arrived, for which servers numbers of new targets are reserved, the
//! begins of sessions and the number that changes with them, and the tunables that were set. Does not own: the
//! consequences (`master`), the sessions themselves (`sessions`).
//!
//! Bound: one entry for each server of the map, one for each session that has not ended.

use crate::membership::tuned::Tuned;
use crate::turns::Turns;
use amphi_types::SessionId;
use amphi_wire::TargetStatus;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

/// The contents of the last messages of another server.
#[derive(Clone, Debug)]
struct Heard {
    at_ns: u64,
    epoch: u64,
    targets: Vec<TargetStatus>,
}

/// The state of the master.
pub struct MasterState {
    heard: RefCell<BTreeMap<u64, Heard>>,
    /// Changes with every session.
    sessions_version: Cell<u64>,
    /// Servers join one at a time.
    pub joining: Turns,
    /// The server that has numbers of new targets and has not come with them yet, and until when, ns.
    promised: Cell<Option<(u64, u64)>>,
    /// The tunables that were set.
    pub tuned: Tuned,
    /// The begin of each session.
    begins: RefCell<BTreeMap<SessionId, u64>>,
}

impl MasterState {
    /// The state of a run with the random number `boot`: a follower compares sessions with each run.
    pub fn new(boot: u64) -> MasterState {
        MasterState {
            heard: RefCell::default(),
            sessions_version: Cell::new(boot),
            joining: Turns::new(1),
            promised: Cell::default(),
            tuned: Tuned::default(),
            begins: RefCell::default(),
        }
    }

    /// Called when a message shows that a server lives, and that it has the map of `epoch`. Without `targets`, the
    /// recorded ones are unchanged.
    pub fn hear(&self, server: u64, at_ns: u64, epoch: u64, targets: Vec<TargetStatus>) {
        let mut heard = self.heard.borrow_mut();
        let before = heard.get(&server).map(|h| h.targets.clone());
        let targets = if targets.is_empty() { before.unwrap_or_default() } else { targets };
        heard.insert(server, Heard { at_ns, epoch, targets });
    }

    /// Returns whether any message from a server has arrived in this run.
    pub fn has_heard(&self, server: u64) -> bool {
        self.heard.borrow().contains_key(&server)
    }

    /// Returns how much time has passed since the last message from a server.
    pub fn silent(&self, server: u64, now_ns: u64) -> Duration {
        let at = self.heard.borrow().get(&server).map_or(0, |h| h.at_ns);
        Duration::from_nanos(now_ns.saturating_sub(at))
    }

    /// The map that a server knows, and its targets.
    pub fn said(&self, server: u64) -> (u64, Vec<TargetStatus>) {
        self.heard.borrow().get(&server).map(|h| (h.epoch, h.targets.clone())).unwrap_or_default()
    }

    /// Changes with every session that begins or ends.
    pub fn sessions_version(&self) -> u64 {
        self.sessions_version.get()
    }

    /// Called when the sessions have changed.
    pub fn sessions_changed(&self) {
        self.sessions_version.set(self.sessions_version.get().wrapping_add(1));
    }

    /// Returns whether numbers of new targets are reserved for another server, which may still join with them.
    pub fn is_promised_to_another(&self, server: u64, now_ns: u64) -> bool {
        self.promised.get().is_some_and(|(other, until_ns)| other != server && now_ns < until_ns)
    }

    /// Called when a server gets numbers of new targets, which nobody else gets until then.
    pub fn promise(&self, server: u64, until_ns: u64) {
        self.promised.set(Some((server, until_ns)));
    }

    /// Called when a server has joined. If the numbers were reserved for it, they belong to it from now on.
    pub fn keep_promise(&self, server: u64) {
        if self.promised.get().is_some_and(|(promised, _)| promised == server) {
            self.promised.set(None);
        }
    }

    /// The begin of a session that has not ended.
    pub fn begin_of(&self, session: SessionId) -> Option<u64> {
        self.begins.borrow().get(&session).copied()
    }

    /// Sessions begin, or have begun in an earlier run.
    pub fn note_begins(&self, begins: impl IntoIterator<Item = (SessionId, u64)>) {
        self.begins.borrow_mut().extend(begins);
    }

    /// Called when a session has ended. Returns its begin.
    pub fn forget_begin(&self, session: SessionId) -> Option<u64> {
        self.begins.borrow_mut().remove(&session)
    }
}
