//! How often servers hear of each other.
//!
//! Owns: the times. Does not own: the beats (`cluster::follower`), and what follows from silence (`cluster::master`,
//! `cluster::master_lease`).

use std::time::Duration;

/// Pause between beats.
pub const BEAT: Duration = Duration::from_secs(1);
/// A server that has not been heard of for so long counts as down: five beats.
pub const DOWN_AFTER: Duration = Duration::from_secs(5);
