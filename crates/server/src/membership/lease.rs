//! `MasterLease`: until when a server that is not the master may rely on the master's last answer.
//!
//! Owns: when the master was last heard, until when tokens need not be granted, whether mounts have to wait. Does not
//! own: the consequences (`cluster::master_lease`), whether there is one mount (`cluster::sessions::company`, at the
//! master).

use crate::coherence::tokens::{TOKEN_LIFE, TOKEN_MARGIN};
use crate::membership::beats::{BEAT, DOWN_AFTER};
use std::cell::Cell;
use std::time::Duration;

/// The time for which a server may grant no tokens after it asked whether there is one mount: three beats.
pub(crate) const ALONE_LEASE: Duration = Duration::from_secs(3);
const _: () = assert!(ALONE_LEASE.as_nanos() > 2 * BEAT.as_nanos() && ALONE_LEASE.as_nanos() < DOWN_AFTER.as_nanos());

/// The state of one server.
#[derive(Default)]
pub(crate) struct MasterLease {
    /// The time, in monotonic ns, at which the last of those beats was sent after which no request is accepted from
    /// sessions that had ended before the beat.
    heard_ns: Cell<u64>,
    /// The last switch to shared mode of which this server was informed.
    company: Cell<u64>,
    /// Number of switches of this server's targets.
    switches: Cell<u64>,
    /// The time until which targets grant no tokens, monotonic ns. `None` means that they grant tokens.
    alone_until_ns: Cell<Option<u64>>,
    /// Until this time tokens of sessions that were cut off may be in use, monotonic ns.
    orphans_until_ns: Cell<u64>,
    /// Mounts have to wait until the master is heard.
    holding: Cell<bool>,
}

/// A time in nanoseconds.
pub(crate) fn ns(d: Duration) -> u64 {
    d.as_nanos() as u64
}

impl MasterLease {
    /// Called when a beat that was sent at `sent_ns` has been answered.
    pub(crate) fn hear(&self, sent_ns: u64) {
        self.heard_ns.set(self.heard_ns.get().max(sent_ns));
    }

    /// Returns how much time has passed since the last message from the master.
    pub(crate) fn silent_for(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(now_ns.saturating_sub(self.heard_ns.get()))
    }

    /// Called when a session was cut off, and may continue using tokens until they end.
    pub(crate) fn note_cut_off(&self, now_ns: u64) {
        self.orphans_until_ns.set(now_ns + ns(TOKEN_LIFE + TOKEN_MARGIN));
    }

    /// Called when the master has switched to company.
    pub(crate) fn note_company(&self, change: u64) {
        self.company.set(self.company.get().max(change));
    }

    /// The number of the next switch of the targets here.
    pub(crate) fn next_switch(&self) -> u64 {
        self.switches.set(self.switches.get() + 1);
        self.switches.get()
    }

    /// Returns whether targets need grant no tokens. This requires that the only mount has confirmed the switch to sole
    /// mode with the number in `alone`, that no switch to shared mode was reported since, and that no session that was
    /// cut off uses tokens.
    pub(crate) fn may_go_without(&self, alone: Option<u64>, now_ns: u64) -> bool {
        alone.is_some_and(|change| change > self.company.get()) && now_ns >= self.orphans_until_ns.get()
    }

    /// The time until which targets grant no tokens. `None` means that they grant tokens.
    pub(crate) fn alone_until_ns(&self) -> Option<u64> {
        self.alone_until_ns.get()
    }

    /// From now on the targets grant no tokens. Returns whether they granted tokens until now.
    pub(crate) fn begin_alone(&self, until_ns: u64) -> bool {
        self.alone_until_ns.replace(Some(until_ns)).is_none()
    }

    /// From now on targets grant tokens again.
    pub(crate) fn end_alone(&self) {
        self.alone_until_ns.set(None);
    }

    /// Mounts have to wait, or not any more. Returns whether they had to wait before.
    pub(crate) fn hold(&self, held: bool) -> bool {
        self.holding.replace(held)
    }

    /// Returns whether mounts have to wait.
    pub(crate) fn is_holding(&self) -> bool {
        self.holding.get()
    }
}
