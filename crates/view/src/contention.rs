//! The extent to which mounts delay each other.
//!
//! Owns: the numbers that show this. Does not own: which files these are (`files`), and the advice that helps
//! (`findings`).

use crate::change::Change;
use serde_json::{Value, json};

/// The waits and the objects for which calls wait, all in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Contention {
    /// Calls of this mount that waited for a lock.
    pub lock_waits: f64,
    /// Seconds that these calls waited: more than 1 if several wait.
    pub lock_wait: f64,
    /// Locks that servers asked this mount to give back.
    pub callbacks: f64,
    /// Requests for locks at the servers that met a lock of another mount.
    pub conflicts: f64,
    /// Locks that went to and fro between mounts.
    pub ping_pongs: f64,
    /// Seconds that ping-pongs took.
    pub ping_pong: f64,
    /// Writers of this mount that were held until there was room in the cache.
    pub throttled: f64,
}

/// The contention between two looks.
pub fn contention(change: &Change<'_>) -> Contention {
    Contention {
        lock_waits: change.often("lock_wait"),
        lock_wait: change.much("lock_wait") / 1e9,
        callbacks: change.often("lock_callback"),
        conflicts: change.at_servers("lock_conflicts"),
        ping_pongs: change.at_servers("lock_ping_pongs"),
        ping_pong: change.at_servers("time_lock_ping_pongs_ns") / 1e9,
        throttled: change.often("write_throttled"),
    }
}

impl Contention {
    /// Returns the table in the form in which `amphi top --json` shows it.
    pub fn json(&self) -> Value {
        json!({
            "lock_waits_per_s": self.lock_waits,
            "lock_wait_s_per_s": self.lock_wait,
            "lock_callbacks_per_s": self.callbacks,
            "lock_conflicts_per_s": self.conflicts,
            "lock_ping_pongs_per_s": self.ping_pongs,
            "lock_ping_pong_s_per_s": self.ping_pong,
            "writers_held_per_s": self.throttled,
        })
    }
}
