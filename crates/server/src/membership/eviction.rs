//! Why a session ends that did not say goodbye.
//!
//! Owns: the kinds of evictions, and the reason after a loss of power. Does not own: who evicts whom
//! (`cluster::sessions`, `cluster::follower`).

use std::time::Duration;

/// How often it is looked whether all have been told of a loss.
pub const TOLD_LOOK: Duration = Duration::from_millis(20);

/// Why sessions end that a server finds after it has lost power (or a sync has failed): answers that it gave them may
/// no longer be true, an `fsync` would promise what is gone, and numbers of inodes that they know may be given to
/// others.
pub const AFTER_POWER_LOSS: &str =
    "the server lost power, and perhaps what it had told this mount before that was made stable";

/// What a session that another server than the master ends has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Eviction {
    /// It did not answer, or did not come back. What it caches may be in use until it is over.
    Silent,
    /// It was alive and did not answer: what it may still use counts no more.
    Deaf,
    /// What it was answered may be gone: not even a mount that is alone may go on.
    AfterPowerLoss,
}
