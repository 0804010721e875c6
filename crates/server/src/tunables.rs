//! Tunables of a server: the table, and handing the present values to the parts of a worker that keep a copy.
//!
//! Owns: names, units, bounds, defaults, help, and which parts are informed of a change. Does not own: the meaning of
//! rows and patterns (`types::tunable`), and what a tunable controls. Code that keeps no copy loads a value when it
//! uses it, so a change takes effect at the next use.

use crate::config::ServerConfig;
use crate::error::{ServerError, ServerErrorKind};
use amphi_types::tunable::Values;
use amphi_types::{Errno, Result};
use std::sync::Arc;
use std::time::Duration;

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const G: u64 = 1 << 30;
/// An hour: longer times make no sense.
const HOUR_MS: u64 = 3_600_000;

amphi_types::tunables! {
    SessionGraceMs = "server.session_grace_ms", Milliseconds, 30_000, 0 => HOUR_MS, "how long the server keeps the session of a mount whose connection is lost";
    TokenMs = "server.token_ms", Milliseconds, 1000, 0 => 60_000, "how long the kernel of a new mount may cache names and attributes without a token while it is the only mount";
    CallbackDeadlineMs = "server.callback_deadline_ms", Milliseconds, 30_000, 100 => HOUR_MS, "how long a client may take to return a lock without any progress before it is evicted";
    DeafMs = "server.deaf_ms", Milliseconds, 5000, 0 => HOUR_MS, "how long a client that sends other messages may leave a callback unanswered before it is evicted. 0: as long as server.callback_deadline_ms";
    ContendedConflicts = "server.contended_conflicts", Count, 16, 1 => 1_000_000, "lock conflicts within 4 s that make an object contended";
    ContendedPingPongs = "server.contended_ping_pongs", Count, 2, 0 => 1_000_000, "slow hand-overs of a lock within the window, each soon after the one before and back to a former holder, that make an object contended. 0: they do not count", for_tests;
    ContendedWindowMs = "server.contended_window_ms", Milliseconds, 4000, 1 => HOUR_MS, "window over which conflicts are counted", for_tests;
    ContendedHoldMs = "server.contended_hold_ms", Milliseconds, 5000, 0 => HOUR_MS, "how long an object stays contended after its last conflict", for_tests;
    LockGranularityBytes = "server.lock_granularity_bytes", PowerOfTwo, 1, 1 => M, "extent locks cover whole units of this size";
    LockGrowth = "server.lock_growth", Switch, 1, 0 => 1, "grant cached extent locks as wide as no other lock conflicts. If off, grant what was requested", for_tests;
    Contention = "server.contention", Switch, 1, 0 => 1, "count conflicts, and report contended objects to clients", for_tests;
    LogMemory = "server.log_memory", Switch, 1, 0 => 1, "acknowledge a change when its log record is in memory that outlives the server process. If off, when the record is on the disk";
    SyncIntervalMs = "server.sync_interval_ms", Milliseconds, 1000, 1 => HOUR_MS, "longest time between flushes of the disk. Acknowledged changes survive a power loss after at most twice this time";
    CheckpointBytes = "server.checkpoint_bytes", Bytes, 16 * M, 64 * K => 16 * G, "changed metadata of a target that starts a checkpoint, but at most an eighth of the target's metadata region";
    RoomyBytes = "server.roomy_bytes", Bytes, 128 * M, 64 * K => 1 << 40, "free space of a target, for each mount and once more, above which large direct writes may return before the server has stored them, because they cannot fail for lack of space then";
    ReuseBytes = "server.reuse_bytes", Bytes, 16 * M, 64 * K => 1 << 40, "freed bytes of a target that trigger a flush, so that freed blocks can be reused before unused ones", for_tests;
    DiskReadBytes = "server.disk_read_bytes", Bytes, 4 * M, 64 * K => 1 << 40, "bytes of file data that a worker reads from one disk at a time; further reads wait", for_tests;
    DiskWriteDelayUs = "server.disk_write_delay_us", Microseconds, 0, 0 => 1_000_000, "delay before each disk write, to imitate a slow disk", for_tests;
    WorkerSpinUs = "server.worker_spin_us", Microseconds, 0, 0 => 1_000_000, "how long a worker polls after its last work before it sleeps, while no other thread needs the core", default "what the program is started with";
    Checksums = "server.checksums", Switch, 1, 0 => 1, "store a checksum with each block of file data that is written. A block with a checksum is verified when it is read, also if this is off";
    ScrubBytesPerS = "server.scrub_bytes_per_s", Bytes, 0, 0 => 1 << 40, "file data of each target that is read and verified per second in the background. 0: none";
    WriteBack = "server.write_back", Switch, 1, 0 => 1, "acknowledge small writes when they are in memory that outlives the server process. If off, when they are on the disk";
    WriteBackBytes = "server.write_back_bytes", Bytes, 64 * M, M => 4 * G, "write-back memory of each target. A change takes effect when write-back is switched on the next time";
    WriteThroughBytes = "server.write_through_bytes", Bytes, 64 * K, 4 * K => M, "writes of at least this size go to the disk before they are acknowledged. The threshold is four times as large on slow disks, and smaller while write-back memory is nearly full";
    WriteBackAgeMs = "server.write_back_age_ms", Milliseconds, 5000, 1 => HOUR_MS, "data in write-back memory is written to the disk when it is this old";
    ReadCacheBytes = "server.read_cache_bytes", Bytes, 16 * M, 0 => 1 << 40, "memory of each target that caches data which several mounts have flushed or read in small pieces. 0: none. Inodes of files may take as much again, and 16M at least", default "1/256 of the memory that the server may use, at most 1G";
}

/// All tunables of a server, shared by its workers.
pub struct Tunables(Values);

/// The tunables, shared by the workers.
pub type SharedTunables = Arc<Tunables>;

impl Tunables {
    /// The tunables of a server as it is configured.
    ///
    /// Errors: a name or value that makes no sense.
    pub fn of(config: &ServerConfig) -> std::result::Result<Tunables, ServerError> {
        let tunables = Tunables(Values::new(TABLE));
        let ms = |d: Duration| d.as_millis() as u64;
        for (knob, value) in [
            (Tunable::SessionGraceMs, ms(config.session_grace)),
            (Tunable::CallbackDeadlineMs, ms(config.callback_deadline)),
            (Tunable::RoomyBytes, config.roomy_bytes),
            (Tunable::WorkerSpinUs, config.worker_spin.as_micros() as u64),
            (Tunable::ReadCacheBytes, config.machine.read_cache_bytes()),
        ] {
            tunables.0.put(knob as usize, value);
        }
        for (pattern, value) in &config.tunables {
            tunables.apply(pattern, Some(value)).map_err(|e| {
                let why = match tunables.apply(pattern, None) {
                    Ok(rows) => format!("{value:?} is no value for it: {}", rows[0].2),
                    Err(_) => format!("there is no such tunable ({e})"),
                };
                ServerError::new(ServerErrorKind::Config, format!("tunable {pattern}: {why}"))
            })?;
        }
        Ok(tunables)
    }

    /// The present value.
    pub fn get(&self, knob: Tunable) -> u64 {
        self.0.get(knob as usize)
    }

    /// Returns whether a switch is on.
    pub fn on(&self, knob: Tunable) -> bool {
        self.get(knob) != 0
    }

    /// Returns how long a client may leave a callback or a question unanswered, ns.
    pub fn callback_deadline_ns(&self) -> u64 {
        self.get(Tunable::CallbackDeadlineMs) * 1_000_000
    }

    /// A callback without an answer or progress is sent again after this time, ns.
    pub fn callback_again_ns(&self) -> u64 {
        self.callback_deadline_ns() / 6
    }

    /// Returns how long a client that is alive may leave a message unanswered. `None` means as long as others.
    pub fn deaf(&self) -> Option<Duration> {
        Some(self.get(Tunable::DeafMs)).filter(|ms| *ms > 0).map(Duration::from_millis)
    }

    /// Reads the tunables that match the pattern, as (name, value, help). If there is a value, all of them are set
    /// first.
    ///
    /// Errors: `NoEnt` if nothing matches; `Inval` if the value does not parse or is beyond the bounds of one of them.
    /// Then none is changed.
    pub fn apply(&self, pattern: &str, value: Option<&str>) -> Result<Vec<(String, String, String)>> {
        if self.0.list(pattern).is_empty() {
            return Err(Errno::NoEnt);
        }
        if let Some(text) = value {
            self.0.set(pattern, text).map_err(|_| Errno::Inval)?;
        }
        Ok(self.0.list(pattern))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_dlm::LockLimits;
    use amphi_zone::OpenOptions;

    /// Goal: the defaults of the table are those of the parts that it steers, and of the configuration.
    #[test]
    fn defaults_of_the_parts() {
        let t = Tunables(Values::new(TABLE));
        let (zone, locks, config) = (OpenOptions::default(), LockLimits::default(), ServerConfig::new(""));
        let contention = locks.contention;
        assert_eq!(t.get(Tunable::ContendedConflicts), contention.threshold as u64);
        assert_eq!(t.get(Tunable::ContendedPingPongs), contention.ping_pongs as u64);
        assert_eq!(t.get(Tunable::ContendedWindowMs) * 1_000_000, contention.window_ns);
        assert_eq!(t.get(Tunable::ContendedHoldMs) * 1_000_000, contention.hold_ns);
        assert_eq!(
            (t.get(Tunable::LockGranularityBytes), t.on(Tunable::LockGrowth)),
            (locks.granularity_bytes, locks.grows)
        );
        assert_eq!(t.callback_deadline_ns(), locks.callback_deadline_ns);
        assert_eq!(Duration::from_millis(t.get(Tunable::SyncIntervalMs)), zone.sync_interval);
        assert_eq!(t.get(Tunable::CheckpointBytes), zone.dirty_bytes);
        assert_eq!(Duration::from_millis(t.get(Tunable::SessionGraceMs)), config.session_grace);
        assert_eq!(Duration::from_millis(t.get(Tunable::CallbackDeadlineMs)), config.callback_deadline);
        assert_eq!(t.get(Tunable::RoomyBytes), config.roomy_bytes);
    }

    /// Goal: patterns select tunables, values are checked before any is set, and a server says which of its own is
    /// wrong.
    #[test]
    fn patterns_and_bounds() {
        let t = Tunables(Values::new(TABLE));
        for row in TABLE {
            assert!(row.name.starts_with("server.") && (row.least..=row.most).contains(&row.default), "{}", row.name);
        }
        assert_eq!(t.apply("*token_m?", Some("7")).unwrap()[0].1, "7");
        assert_eq!(t.get(Tunable::TokenMs), 7);
        assert_eq!(t.apply("server.checkpoint_bytes", Some("4MiB")).unwrap()[0].1, "4M");
        assert_eq!(t.apply("server.disk_read_bytes", Some("1T")).unwrap()[0].1, "1T");
        assert_eq!(t.apply("server.disk_rea*", Some("1T")), Err(Errno::NoEnt), "for tests");
        assert_eq!(t.apply("server.lock_growth", Some("false")).unwrap()[0].1, "off");
        for (name, value) in [
            ("server.checkpoint_bytes", "M"),
            ("server.lock_granularity_bytes", "3000"),
            ("server.contention", "maybe"),
            ("server.*", "0"),
            ("server.token_ms", "much"),
        ] {
            assert_eq!(t.apply(name, Some(value)), Err(Errno::Inval), "{name}");
        }
        assert_eq!(t.apply("nothing*", None), Err(Errno::NoEnt));
        assert_eq!(t.get(Tunable::SessionGraceMs), 30_000, "a refused value changes nothing");
    }
}
