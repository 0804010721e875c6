//! Messages between servers: requests and answers.
//!
//! Owns: both, in the form in which they are sent between servers of one version. Does not own: when a request is sent,
//! and how it is answered (`cluster::peers`).

use crate::membership::ended::Begun;
use crate::membership::eviction::Eviction;
use crate::message::{TargetReply, TargetRequest};
use crate::records::SessionRecord;
use amphi_types::{SessionId, TargetId};
use amphi_wire::keys::KeyRegistry;
use amphi_wire::{ClusterMap, TargetStatus};
use serde::{Deserialize, Serialize};

/// A request to another server: the body of `Request::Ask`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum PeerRequest {
    /// `Target`: to a target.
    Target(TargetId, TargetRequest),
    /// `Beat`: to the master. The server is alive.
    Beat {
        /// Epoch of the map that the server knows.
        epoch: u64,
        /// The targets of the server, if the request asked for them.
        targets: Vec<TargetStatus>,
    },
    /// `Sessions`: the sessions that the master knows.
    Sessions,
    /// `Done`: to other servers. A newer map.
    Install(ClusterMap),
    /// `Done`: the session begins.
    SessionStart(SessionId, SessionRecord),
    /// `Done`: no further request of the session is accepted.
    SessionStop(Begun),
    /// `Done`: all locks and opens of the stopped session are released, and no change of it is under way. The second
    /// field: whether its client is known to use nothing any more.
    SessionForget(Begun, bool),
    /// `Done`: to the master. The session broke the rules.
    Evict {
        /// The session.
        session: Begun,
        /// The reason as text.
        why: String,
        /// The reason for which the session is ended.
        how: Eviction,
    },
    /// `Done`: other mounts have been admitted, by the master's switch with this number, so tokens are granted from now
    /// on.
    Company(u64),
    /// `Done`: tunables were set.
    Tune {
        /// Name or pattern.
        pattern: String,
        /// The value.
        value: String,
    },
    /// `Keys`: the receiver's present registry of keys.
    Keys,
    /// `Done`: a later registry of keys. The master sends it to the other servers. Another server sends this request to
    /// a master that has an older registry.
    InstallKeys(Box<KeyRegistry>),
    /// `SessionKey`: to the master. The number of the key with which a session began.
    SessionKey(SessionId),
}

/// Answers to `PeerRequest`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum PeerReply {
    /// Done.
    Done,
    /// The answer of a target.
    Target(TargetReply),
    /// The answer of the master to `Beat`.
    Beat {
        /// Epoch of the master's map.
        epoch: u64,
        /// Changes with every session that begins or ends.
        sessions: u64,
        /// The asking server also needs to know about the targets.
        targets: bool,
        /// The only mount knows that it is the only one, by the switch of this number.
        alone: Option<u64>,
        /// Version and stamp of the master's registry of keys.
        keys: (u64, u64),
    },
    /// Sessions that have not ended.
    Sessions {
        /// The version of the set of sessions, as in `Beat`.
        version: u64,
        /// The sessions.
        sessions: Vec<(SessionId, SessionRecord)>,
    },
    /// The registry of keys.
    Keys(Box<KeyRegistry>),
    /// Number of a key. It is `None` if the session has no key, or if the master does not know its key yet.
    SessionKey(Option<u64>),
}
