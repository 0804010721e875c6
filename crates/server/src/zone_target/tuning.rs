//! Handing the values of tunables to the parts of a target that keep a copy.
//!
//! Owns: which value goes where. Does not own: the table (`crate::tunables`), and the meaning of a value for the part
//! that uses it.

use crate::tunables::{Tunable, Tunables};
use crate::zone_target::Target;
use crate::zone_target::write_back::Settings;
use amphi_dlm::{ContentionLimits, LockLimits};
use amphi_env::Env;
use std::time::Duration;

impl<E: Env> Target<E> {
    /// The part of `tune` that concerns storage, and that new targets do not apply by themselves.
    pub fn tune_storage(&self, tunables: &Tunables) {
        self.storage.disk.tune(tunables.get(Tunable::DiskReadBytes), tunables.get(Tunable::ReadCacheBytes));
        self.meta.borrow_mut().set_inodes_max(self.queues.inodes.bytes_max(tunables));
        self.freeing.tune(tunables.get(Tunable::ReuseBytes));
        self.storage.verifier.tune(tunables.on(Tunable::Checksums), tunables.get(Tunable::ScrubBytesPerS));
    }

    /// The part of `tune` that concerns accepted writes.
    pub fn tune_accepted(&self, env: &E, tunables: &Tunables) {
        let write_back = Settings {
            on: tunables.on(Tunable::WriteBack),
            bytes: tunables.get(Tunable::WriteBackBytes),
            through_bytes: tunables.get(Tunable::WriteThroughBytes),
            age_ns: tunables.get(Tunable::WriteBackAgeMs) * 1_000_000,
        };
        self.tune_write_back(env, write_back);
    }

    /// Hands the present values to the parts of the target, and of the environment of its worker, that keep a copy.
    pub fn tune(&self, env: &E, tunables: &Tunables) {
        let contention = ContentionLimits {
            threshold: tunables.get(Tunable::ContendedConflicts) as usize,
            ping_pongs: tunables.get(Tunable::ContendedPingPongs) as usize,
            window_ns: tunables.get(Tunable::ContendedWindowMs) * 1_000_000,
            hold_ns: tunables.get(Tunable::ContendedHoldMs) * 1_000_000,
            enabled: tunables.on(Tunable::Contention),
            ..ContentionLimits::default()
        };
        self.coherence.locks.tune(LockLimits {
            callback_deadline_ns: tunables.callback_deadline_ns(),
            granularity_bytes: tunables.get(Tunable::LockGranularityBytes),
            grows: tunables.on(Tunable::LockGrowth),
            contention,
            ..LockLimits::default()
        });
        self.coherence.tokens.tune(tunables.callback_deadline_ns());
        self.tune_storage(tunables);
        let interval = Duration::from_millis(tunables.get(Tunable::SyncIntervalMs));
        self.tune_accepted(env, tunables);
        self.zone.tune(interval, tunables.get(Tunable::CheckpointBytes), tunables.on(Tunable::LogMemory));
        env.set_spin(Duration::from_micros(tunables.get(Tunable::WorkerSpinUs)));
        env.set_write_delay(Duration::from_micros(tunables.get(Tunable::DiskWriteDelayUs)));
    }
}
