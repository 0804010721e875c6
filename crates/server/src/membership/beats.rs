//! The interval between beats of servers.
//!
//! Owns: the times. Does not own: the beats (`cluster::follower`), and the consequences of missing ones
//! (`cluster::master`, `cluster::master_lease`).

use std::time::Duration;

/// Pause between beats.
pub const BEAT: Duration = Duration::from_secs(1);
/// A server without a beat for this time counts as down: five beats.
pub const DOWN_AFTER: Duration = Duration::from_secs(5);
const _: () = assert!(DOWN_AFTER.as_nanos() > 2 * BEAT.as_nanos(), "one lost beat is not the end of a server");
