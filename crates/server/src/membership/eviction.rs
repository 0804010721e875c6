//! The reasons for which a server ends a session.
//!
//! Owns: the kinds of evictions, and the reason after a loss of power. Does not own: which server evicts which session
//! (`cluster::sessions`, `cluster::follower`).

use std::time::Duration;

/// How often the server checks whether all servers have been informed of a loss of power.
pub const TOLD_LOOK: Duration = Duration::from_millis(20);

/// The reason why a server that has lost power (or whose sync has failed) ends the sessions that it finds. Its answers
/// to these mounts may no longer be true, an `fsync` would promise bytes that are lost, and inode numbers that the
/// mounts know may be assigned to other files.
pub const AFTER_POWER_LOSS: &str =
    "the server lost power, and perhaps what it had told this mount before that was made stable";

/// The reason why a server other than the master ends a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Eviction {
    /// The client did not answer, or did not reconnect. The entries that it caches may be in use until its tokens
    /// expire.
    Silent,
    /// The client was alive and did not answer, so its tokens end at once.
    Deaf,
    /// Answered changes of the session may be lost, so not even a sole mount may continue.
    AfterPowerLoss,
}
