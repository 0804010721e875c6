//! The state of one session at a server.

use super::trust::Owner;
use amphi_transport::{ConnId, Secure};
use amphi_wire::Role;
use amphi_wire::keys::Fingerprint;
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Being logged on the targets.
    Starting,
    /// The session exists, and its client may disconnect and reconnect.
    Alive,
    /// Being removed from the targets.
    Ending,
    /// The session is removed from the targets of this server; other servers may still have some of its state.
    EndingElsewhere,
}

impl State {
    pub(super) fn is_ending(self) -> bool {
        matches!(self, State::Ending | State::EndingElsewhere)
    }
}

/// The key of a session's client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyOf {
    pub(super) fingerprint: Fingerprint,
    /// `KeyEntry::id`.
    pub(super) id: u64,
    pub(super) name: String,
}

/// A connection of a session, wherever it is served.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Line {
    /// The worker that serves the connection.
    pub(super) worker: u16,
    pub(super) conn: ConnId,
    /// A task observes whether the client answers the messages on this connection; more messages were sent meanwhile.
    pub(super) watched: bool,
    pub(super) asked_again: bool,
}

impl Line {
    pub(super) fn new(worker: u16, conn: ConnId) -> Line {
        Line { worker, conn, watched: false, asked_again: false }
    }
}

/// The state of one session.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) owner: Owner,
    /// The key with which the client connected.
    pub(super) key: Option<KeyOf>,
    pub(super) state: State,
    /// Connection 0 of the session. Without connection 0 the session counts as disconnected.
    pub(super) conn: Option<Line>,
    /// Further connections of the session, by number.
    pub(super) more: BTreeMap<u16, Line>,
    /// How connection 0 is protected. `None` means that the connection does not leave the machine.
    pub(super) secure: Option<Secure>,
    /// Whether the client has passed memory to the server.
    pub(super) memory: bool,
    /// Counts connections and disconnections, so that a timer knows whether it still concerns the same disconnection.
    pub(super) epoch: u64,
    /// The last switch between sole and shared mode that the mount has confirmed.
    pub(super) known: u64,
    /// When the last switch of mode was sent to it, monotonic ns.
    pub(super) asked_ns: u64,
    /// When it last reported that it works on the switch, monotonic ns.
    pub(super) kept_ns: u64,
    /// When the session last connected or disconnected, monotonic ns.
    pub(super) heard_ns: u64,
}

impl Entry {
    /// The connections of the session.
    pub(super) fn lines(&self) -> impl Iterator<Item = &Line> {
        self.conn.iter().chain(self.more.values())
    }

    /// The connection `conn` of the session.
    pub(super) fn line_mut(&mut self, conn: ConnId) -> Option<&mut Line> {
        self.conn.iter_mut().chain(self.more.values_mut()).find(|line| line.conn == conn)
    }

    /// The connection on which a worker pushes: one that this worker serves, or connection 0.
    pub(super) fn line_of(&self, worker: u16) -> Option<Line> {
        self.lines().find(|line| line.worker == worker && worker != 0).or(self.conn.as_ref()).copied()
    }

    pub(super) fn new(name: &str, role: Role, state: State, now_ns: u64) -> Entry {
        let (owner, conn, epoch, known, asked_ns) = (Owner::Unknown, None, 0, 0, 0);
        let (kept_ns, heard_ns, key, secure, more, name) = (0, now_ns, None, None, BTreeMap::new(), name.into());
        Entry {
            name,
            role,
            owner,
            key,
            state,
            conn,
            more,
            secure,
            memory: false,
            epoch,
            known,
            asked_ns,
            kept_ns,
            heard_ns,
        }
    }
}
