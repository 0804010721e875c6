//! `Rule`: whether mounts are in sole or shared mode, and which rights of an earlier mode may still be in use.
//!
//! Owns: the mode in force, the number of its last switch, and until when leases of an earlier mode may be used. Does
//! not own: the order of the steps of a switch, and informing mounts and targets (`company`).

use crate::coherence::tokens::{TOKEN_LIFE, TOKEN_MARGIN};
use crate::zone_target::gate::Gate;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Added to the time that a kernel may cache: how late its clock may be.
pub(super) const KERNEL_MARGIN_NS: u64 = 1_000_000_000;

/// For how long a mount that was refused is expected to try again.
const WANTED_NS: u64 = 60_000_000_000;

/// The rule that is in force.
pub(super) struct Rule {
    /// The gate that permits only one switch at a time.
    pub(super) turn: Gate<()>,
    /// Number of the last switch. It begins with the wall clock, so that it grows over restarts.
    pub(super) change: Cell<u64>,
    /// The mode that is reported to mounts: whether there are several.
    pub(super) company: Cell<bool>,
    /// Whether targets grant tokens.
    pub(super) tokens: Cell<bool>,
    /// Until this time tokens of sessions that were cut off may be in use, monotonic ns.
    pub(super) orphans_until_ns: Cell<u64>,
    /// Until this time a session that was cut off in sole mode may use what its kernel caches.
    pub(super) kernel_until_ns: Cell<u64>,
    /// Until this time a mount that was refused is expected to try again, monotonic ns.
    pub(super) wanted_until_ns: Cell<u64>,
    /// The longest time for which a kernel was allowed to cache, ns.
    pub(super) kernel_ns: Cell<u64>,
    /// When other servers last got the answer that there is one mount, monotonic ns. Servers that are not in the map
    /// got none since `started_ns`.
    pub(super) told_alone_ns: RefCell<BTreeMap<u64, u64>>,
    /// When this run began. Until then, mounts may have such answers from an earlier run.
    pub(super) started_ns: u64,
    /// The last switch to company of which all other servers know.
    pub(super) all_grant: Cell<u64>,
}

impl Rule {
    pub(super) fn new(seconds: u64, started_ns: u64) -> Rule {
        Rule {
            turn: Gate::default(),
            change: Cell::new(seconds << 20),
            company: Cell::new(false),
            tokens: Cell::new(false),
            orphans_until_ns: Cell::new(0),
            kernel_until_ns: Cell::new(0),
            wanted_until_ns: Cell::new(0),
            kernel_ns: Cell::new(0),
            told_alone_ns: RefCell::default(),
            started_ns,
            all_grant: Cell::new(0),
        }
    }

    pub(super) fn is_alone(&self) -> bool {
        !self.company.get()
    }

    pub(super) fn change(&self) -> u64 {
        self.change.get()
    }

    /// Called when a mount gets the permission for its kernel to cache for this long.
    pub(super) fn lend(&self, token_ms: u64) {
        self.kernel_ns.set(self.kernel_ns.get().max(token_ms * 1_000_000));
    }

    /// Called when a mount was refused because other mounts had not answered yet. Their answers count when the refused
    /// mount tries again.
    pub(super) fn wanted(&self, now_ns: u64) {
        self.wanted_until_ns.set(now_ns + WANTED_NS);
    }

    /// Called when a mount was cut off: it may not know for a while.
    pub(super) fn cut_off(&self, now_ns: u64, known: u64) {
        if self.tokens.get() {
            let life = (TOKEN_LIFE + TOKEN_MARGIN).as_nanos() as u64;
            self.orphans_until_ns.set(self.orphans_until_ns.get().max(now_ns + life));
        }
        if self.is_alone() || known < self.change() {
            let until = now_ns + self.kernel_ns.get() + KERNEL_MARGIN_NS;
            self.kernel_until_ns.set(self.kernel_until_ns.get().max(until));
        }
    }
}
