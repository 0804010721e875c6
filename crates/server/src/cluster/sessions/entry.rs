//! What a server knows of one session.

use super::trust::Owner;
use amphi_transport::{ConnId, Secure};
use amphi_wire::Role;
use amphi_wire::keys::Fingerprint;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Being logged on the targets.
    Starting,
    /// Its client may come and go.
    Alive,
    /// Being removed from the targets.
    Ending,
    /// Removed from the targets here; other servers may still have something of it.
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

/// One session.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) owner: Owner,
    /// The key with which its client came.
    pub(super) key: Option<KeyOf>,
    pub(super) state: State,
    pub(super) conn: Option<ConnId>,
    /// How that is protected; `None`: it does not leave the machine.
    pub(super) secure: Option<Secure>,
    /// Counts connections and departures, so that a timer knows whether it is still about the same departure.
    pub(super) epoch: u64,
    /// The last switch between alone and company that the mount has said it knows.
    pub(super) known: u64,
    /// When it was last told of one, monotonic ns.
    pub(super) asked_ns: u64,
    /// When it said last that it is at it, monotonic ns.
    pub(super) kept_ns: u64,
    /// When it was last welcomed or left, monotonic ns.
    pub(super) heard_ns: u64,
    /// A task sees to it that it answers; it was asked more meanwhile.
    pub(super) watched: bool,
    pub(super) asked_again: bool,
}

impl Entry {
    pub(super) fn new(name: &str, role: Role, state: State, now_ns: u64) -> Entry {
        let (owner, conn, epoch, known, asked_ns) = (Owner::Unknown, None, 0, 0, 0);
        let (kept_ns, heard_ns, watched, asked_again, name) = (0, now_ns, false, false, name.into());
        Entry {
            name,
            role,
            owner,
            key: None,
            state,
            conn,
            secure: None,
            epoch,
            known,
            asked_ns,
            kept_ns,
            heard_ns,
            watched,
            asked_again,
        }
    }
}
