//! `AdmissionState`: whether clients are admitted or have to wait.
//!
//! Owns: the reasons to wait, and the count of mounts that were admitted. Does not own: letting them in (`admission`).

use amphi_wire::Role;
use std::cell::Cell;

/// Whether clients are admitted.
#[derive(Default)]
pub(super) struct AdmissionState {
    closed: Cell<bool>,
    /// All mounts have to wait, because the server is not in its cluster yet or has lost its master.
    held: Cell<bool>,
    /// Mounts have to wait after a loss of power, until all earlier mounts have been informed of it.
    after_power_loss: Cell<bool>,
    /// Sessions of mounts that have been started.
    mounts_started: Cell<u64>,
}

impl AdmissionState {
    /// From now on no client is admitted.
    pub(super) fn close(&self) {
        self.closed.set(true);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Clients have to wait, or not any more.
    pub(super) fn hold(&self, held: bool) {
        self.held.set(held);
    }

    /// Mounts have to wait after a loss of power, or not any more.
    pub(super) fn hold_after_power_loss(&self, held: bool) {
        self.after_power_loss.set(held);
    }

    /// Returns whether a client has to wait.
    pub(super) fn must_wait(&self, role: Role) -> bool {
        self.held.get() || (self.after_power_loss.get() && role == Role::Mount)
    }

    /// The session of a mount has begun, or an event has happened after which no mount can continue as the only one.
    pub(super) fn count_mount(&self) {
        self.mounts_started.set(self.mounts_started.get() + 1);
    }

    /// Returns how often such an event has happened.
    pub(super) fn mounts_started(&self) -> u64 {
        self.mounts_started.get()
    }
}
