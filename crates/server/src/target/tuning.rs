//! Handing the values of tunables to the parts of a target that keep a copy.
//!
//! Owns: which value goes where. Does not own: the table (`crate::tunables`), what a value means to its part.

use crate::target::Target;
use crate::target::write_back::Settings;
use crate::tunables::{Knob, Tunables};
use amphi_dlm::{ContentionLimits, LockLimits};
use amphi_env::Env;
use std::time::Duration;

impl<E: Env> Target<E> {
    /// The part of `tune` that a target does not come with by itself.
    pub fn tune_storage(&self, tunables: &Tunables) {
        self.reads.tune(tunables.get(Knob::DiskReadBytes));
        self.disk.cache.borrow_mut().tune(tunables.get(Knob::ReadCacheBytes));
        self.reuse_bytes.set(tunables.get(Knob::ReuseBytes));
        self.verifier.tune(tunables.on(Knob::Checksums), tunables.get(Knob::ScrubBytesPerS));
    }

    /// The part of `tune` that concerns accepted writes.
    pub fn tune_accepted(&self, env: &E, tunables: &Tunables) {
        let write_back = Settings {
            on: tunables.on(Knob::WriteBack),
            bytes: tunables.get(Knob::WriteBackBytes),
            through_bytes: tunables.get(Knob::WriteThroughBytes),
            age_ns: tunables.get(Knob::WriteBackAgeMs) * 1_000_000,
        };
        self.tune_write_back(env, write_back);
    }

    /// Hands the present values to the parts of the target, and of the environment of its worker, that keep a copy.
    pub fn tune(&self, env: &E, tunables: &Tunables) {
        let contention = ContentionLimits {
            threshold: tunables.get(Knob::ContendedConflicts) as usize,
            fights: tunables.get(Knob::ContendedFights) as usize,
            window_ns: tunables.get(Knob::ContendedWindowMs) * 1_000_000,
            hold_ns: tunables.get(Knob::ContendedHoldMs) * 1_000_000,
            enabled: tunables.on(Knob::Contention),
            ..ContentionLimits::default()
        };
        self.locks.tune(LockLimits {
            callback_deadline_ns: tunables.callback_deadline_ns(),
            granularity_bytes: tunables.get(Knob::LockGranularityBytes),
            grows: tunables.on(Knob::LockGrowth),
            contention,
            ..LockLimits::default()
        });
        self.tokens.tune(tunables.callback_deadline_ns());
        self.tune_storage(tunables);
        let interval = Duration::from_millis(tunables.get(Knob::SyncIntervalMs));
        self.tune_accepted(env, tunables);
        self.zone.tune(interval, tunables.get(Knob::CheckpointBytes), tunables.on(Knob::LogMemory));
        env.set_spin(Duration::from_micros(tunables.get(Knob::WorkerSpinUs)));
        env.set_write_delay(Duration::from_micros(tunables.get(Knob::DiskWriteDelayUs)));
    }
}
