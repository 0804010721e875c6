//! `Tunables`: numbers that can be read and set while the server runs.
//!
//! Owns: names, units, bounds, defaults, present values, and handing them to the parts of a worker that keep a copy.
//! Does not own: how values and patterns are written (`types::setting`), what they steer; everything else loads a value
//! when it uses it, so a change counts from the next use.

use crate::config::ServerConfig;
use crate::error::{ServerError, ServerErrorKind};
use crate::target::Target;
use crate::target::write_back::Settings;
use crate::worker::Worker;
use amphi_dlm::{ContentionLimits, LockLimits};
use amphi_env::Env;
use amphi_types::{Errno, Result, setting};
use amphi_zone::OpenOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How a value is meant and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Milliseconds,
    Microseconds,
    Bytes,
    /// Bytes, a power of two.
    PowerOfTwo,
    Count,
    /// `on` or `off`.
    Switch,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Milliseconds => "ms",
            Unit::Microseconds => "us",
            Unit::Bytes => "bytes",
            Unit::PowerOfTwo => "bytes, a power of two",
            Unit::Switch => "on or off",
            Unit::Count => "count",
        }
    }
}

/// One tunable.
pub struct Tunable {
    name: &'static str,
    help: &'static str,
    unit: Unit,
    default: u64,
    least: u64,
    most: u64,
    value: AtomicU64,
}

impl Tunable {
    fn new(name: &'static str, unit: Unit, default: u64, (least, most): (u64, u64), help: &'static str) -> Tunable {
        Tunable { name, help, unit, default, least, most, value: AtomicU64::new(default) }
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// The present value of a time in ms.
    fn duration(&self) -> Duration {
        match self.unit {
            Unit::Microseconds => Duration::from_micros(self.get()),
            _ => Duration::from_millis(self.get()),
        }
    }

    fn parse(&self, text: &str) -> Option<u64> {
        let text = text.trim();
        match self.unit {
            Unit::Bytes => setting::bytes(text),
            Unit::PowerOfTwo => setting::bytes(text).filter(|n| n.is_power_of_two()),
            Unit::Switch => setting::switch(text).map(u64::from),
            _ => text.parse().ok(),
        }
    }

    fn show(&self, value: u64) -> String {
        match self.unit {
            Unit::Switch => setting::on_off(value != 0).into(),
            Unit::Bytes | Unit::PowerOfTwo => setting::size(value),
            _ => value.to_string(),
        }
    }

    /// Whether the switch is on.
    pub fn is_on(&self) -> bool {
        self.get() != 0
    }

    /// Meaning, unit, default and range in one line.
    fn explain(&self) -> String {
        let [default, least, most] = [self.default, self.least, self.most].map(|n| self.show(n));
        format!("{} [{}, default {default}, {least}..{most}]", self.help, self.unit.name())
    }
}

/// All tunables of a server, shared by its workers.
pub struct Tunables {
    /// How long a session that has gone is kept, ms.
    pub session_grace_ms: Tunable,
    /// How long the kernel of a mount that is alone may use attributes without asking, ms.
    pub token_ms: Tunable,
    /// How often an operation over several targets is planned again after a conflict.
    pub plan_tries: Tunable,
    callback_deadline_ms: Tunable,
    callback_again: Tunable,
    deaf_ms: Tunable,
    contended_conflicts: Tunable,
    contended_fights: Tunable,
    contended_waited_ms: Tunable,
    contended_foreseen: Tunable,
    contended_window_ms: Tunable,
    contended_hold_ms: Tunable,
    lock_granularity_bytes: Tunable,
    /// Whether locks are granted wider than asked.
    pub lock_growth: Tunable,
    lock_crowd_locks: Tunable,
    lock_crowd_growth_bytes: Tunable,
    contention: Tunable,
    /// Whether answers to changes of names bring the attributes of the directory.
    pub directory_attributes: Tunable,
    /// Whether decisions among targets of this server have the changes of all.
    pub carried_decisions: Tunable,
    /// Whether the removal of a directory is answered before its decision is stable.
    pub early_removals: Tunable,
    /// Whether directories that are expected to be removed are made ready for it.
    pub foreseen_removals: Tunable,
    /// Whether listings bring the attributes of directories on other targets of this server.
    pub whole_listings: Tunable,
    /// Whether records that are in memory which outlives the server count as safe from its end.
    pub log_memory: Tunable,
    sync_interval_ms: Tunable,
    checkpoint_bytes: Tunable,
    /// Free bytes for each mount from which on a target says that it has room.
    pub roomy_bytes: Tunable,
    reuse_bytes: Tunable,
    disk_read_bytes: Tunable,
    disk_write_delay_us: Tunable,
    worker_spin_us: Tunable,
    checksums: Tunable,
    scrub_bytes_per_s: Tunable,
    write_back: Tunable,
    write_back_bytes: Tunable,
    write_through_bytes: Tunable,
    write_back_age_ms: Tunable,
}

/// The tunables as workers share them.
pub type SharedTunables = Arc<Tunables>;

/// An hour: longer times make no sense.
const HOUR_MS: u64 = 3_600_000;

/// What the tunables begin with, where the configuration says it.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// `server.session_grace_ms`.
    pub session_grace: Duration,
    /// `server.callback_deadline_ms`.
    pub callback_deadline: Duration,
    /// `server.roomy_bytes`.
    pub roomy_bytes: u64,
    /// `server.worker_spin_us`.
    pub worker_spin: Duration,
}

impl Tunables {
    /// The defaults.
    pub fn new(defaults: Defaults) -> Tunables {
        use Unit::{Bytes, Count, Microseconds, Milliseconds, PowerOfTwo, Switch};
        let (zone, locks) = (OpenOptions::default(), LockLimits::default());
        let contention = locks.contention;
        let ms = |d: Duration| d.as_millis() as u64;
        let ns_to_ms = |ns: u64| ns / 1_000_000;
        Tunables {
            session_grace_ms: Tunable::new(
                "server.session_grace_ms",
                Milliseconds,
                ms(defaults.session_grace),
                (0, HOUR_MS),
                "how long the session of a mount that goes from now on is kept",
            ),
            token_ms: Tunable::new(
                "server.token_ms",
                Milliseconds,
                // A second mount waits for it once; the calls that it saves the kernel are few beyond.
                1_000,
                (0, 60_000),
                "how long the kernel of a new session may use names and attributes without asking while it is the only mount",
            ),
            plan_tries: Tunable::new(
                "server.plan_tries",
                Count,
                64,
                (1, 10_000),
                "how often an operation over several targets is planned again after a conflict",
            ),
            callback_deadline_ms: Tunable::new(
                "server.callback_deadline_ms",
                Milliseconds,
                ms(defaults.callback_deadline),
                (100, HOUR_MS),
                "how long a client may take to give back a lock without progress, before it is evicted",
            ),
            callback_again: Tunable::new(
                "server.callback_again",
                Switch,
                1,
                (0, 1),
                "callbacks that are not answered are sent again, every sixth of server.callback_deadline_ms",
            ),
            deaf_ms: Tunable::new(
                "server.deaf_ms",
                Milliseconds,
                5000,
                (0, HOUR_MS),
                "how long a client that is alive may be silent about what it was asked, before it is evicted; 0: as others",
            ),
            contended_conflicts: Tunable::new(
                "server.contended_conflicts",
                Count,
                contention.threshold as u64,
                (1, 1_000_000),
                "conflicts within the window that make an object contended",
            ),
            contended_fights: Tunable::new(
                "server.contended_fights",
                Count,
                contention.fights as u64,
                (0, 1_000_000),
                "hand-overs of locks within the window, to sessions and back too soon, that make an object contended if they took long; 0: none do",
            ),
            contended_waited_ms: Tunable::new(
                "server.contended_waited_ms",
                Milliseconds,
                ns_to_ms(contention.waited_ns),
                (0, HOUR_MS),
                "how long those hand-overs took together, at least",
            ),
            contended_foreseen: Tunable::new(
                "server.contended_foreseen",
                Count,
                contention.foreseen as u64,
                (0, 1_000_000),
                "objects that their first such hand-over makes contended, within a minute after another object became it; 0: none",
            ),
            contended_window_ms: Tunable::new(
                "server.contended_window_ms",
                Milliseconds,
                ns_to_ms(contention.window_ns),
                (1, HOUR_MS),
                "window over which conflicts are counted",
            ),
            contended_hold_ms: Tunable::new(
                "server.contended_hold_ms",
                Milliseconds,
                ns_to_ms(contention.hold_ns),
                (0, HOUR_MS),
                "how long an object stays contended after its last conflict",
            ),
            lock_granularity_bytes: Tunable::new(
                "server.lock_granularity_bytes",
                PowerOfTwo,
                // Byte-exact locks have no false sharing; 4096 is what file systems with page locks do.
                1,
                (1, 1 << 20),
                "locks, cached and of direct requests, cover whole units of this size",
            ),
            lock_growth: Tunable::new(
                "server.lock_growth",
                Switch,
                1,
                (0, 1),
                "cached locks are granted as wide as nothing conflicts, otherwise as asked",
            ),
            lock_crowd_locks: Tunable::new(
                "server.lock_crowd_locks",
                Count,
                locks.crowd_locks as u64,
                // So many are counted for each grant at most.
                (0, 10_000),
                "incompatible locks on an object, and requests for them, with more of which growth is cut; 0: never",
            ),
            lock_crowd_growth_bytes: Tunable::new(
                "server.lock_crowd_growth_bytes",
                Bytes,
                locks.crowd_growth_bytes,
                (0, 1 << 60),
                "bytes behind its start at which a lock ends then, unless more was asked for; 0: nowhere",
            ),
            contention: Tunable::new(
                "server.contention",
                Switch,
                1,
                (0, 1),
                "conflicts are counted and clients are told of contended objects",
            ),
            directory_attributes: Tunable::new(
                "server.directory_attributes",
                Switch,
                1,
                (0, 1),
                "answers to changes of names bring the attributes of the directory",
            ),
            carried_decisions: Tunable::new(
                "server.carried_decisions",
                Switch,
                1,
                (0, 1),
                "an operation over several targets of one server is one record with the changes of all",
            ),
            early_removals: Tunable::new(
                "server.early_removals",
                Switch,
                1,
                (0, 1),
                "the removal of a directory over several targets of one server is answered when its record is written",
            ),
            foreseen_removals: Tunable::new(
                "server.foreseen_removals",
                Switch,
                1,
                (0, 1),
                "a directory on another target than its name is made stable when it becomes empty, if the last ones were removed then",
            ),
            whole_listings: Tunable::new(
                "server.whole_listings",
                Switch,
                1,
                (0, 1),
                "while one mount is alone, listings bring the attributes of directories on other targets of this server",
            ),
            log_memory: Tunable::new(
                "server.log_memory",
                Switch,
                1,
                (0, 1),
                "changes are answered when their record is in memory that outlives the server, on its way to the disk; off: when it is there",
            ),
            sync_interval_ms: Tunable::new(
                "server.sync_interval_ms",
                Milliseconds,
                ms(zone.sync_interval),
                (1, HOUR_MS),
                "what is logged is synced at the latest after this time, and survives power loss after twice that",
            ),
            checkpoint_bytes: Tunable::new(
                "server.checkpoint_bytes",
                Bytes,
                zone.dirty_bytes,
                (64 << 10, 16 << 30),
                "changed metadata of a target that starts a checkpoint; at most an eighth of its metadata region counts",
            ),
            roomy_bytes: Tunable::new(
                "server.roomy_bytes",
                Bytes,
                defaults.roomy_bytes,
                (64 << 10, 1 << 40),
                "free bytes of a target for each mount, and once more, from which on large writes may return before they have landed",
            ),
            reuse_bytes: Tunable::new(
                "server.reuse_bytes",
                Bytes,
                16 << 20,
                (64 << 10, 1 << 40),
                "bytes that were freed on a target at which that is synced, so that they are written again before blocks that never were",
            ),
            disk_read_bytes: Tunable::new(
                "server.disk_read_bytes",
                Bytes,
                4 << 20,
                (64 << 10, 1 << 40),
                "bytes of file data that a worker reads from one disk at a time; more waits for its turn",
            ),
            disk_write_delay_us: Tunable::new(
                "server.disk_write_delay_us",
                Microseconds,
                0,
                (0, 1_000_000),
                "how long each disk write is held back before it is begun: a slow disk, for tests and benchmarks",
            ),
            worker_spin_us: Tunable::new(
                "server.worker_spin_us",
                Microseconds,
                defaults.worker_spin.as_micros() as u64,
                (0, 1_000_000),
                "how long a worker polls after its last work before it sleeps, if nobody else needs the core",
            ),
            checksums: Tunable::new(
                "server.checksums",
                Switch,
                0,
                (0, 1),
                "each block of file data that is written gets a checksum; what has one is verified when it is read, also when this is off",
            ),
            scrub_bytes_per_s: Tunable::new(
                "server.scrub_bytes_per_s",
                Bytes,
                0,
                (0, 1 << 40),
                "file data of each target that is read and verified in a second, without end; 0: none",
            ),
            write_back: Tunable::new(
                "server.write_back",
                Switch,
                1,
                (0, 1),
                "small writes are answered when they are in memory that outlives the server; off: when they are on the disk",
            ),
            write_back_bytes: Tunable::new(
                "server.write_back_bytes",
                Bytes,
                // 1,400 records of 47,008 bytes: more than a disk takes in 100 ms.
                64 << 20,
                (1 << 20, 4 << 30),
                "memory of each target for them; a change counts from when it is switched on the next time",
            ),
            write_through_bytes: Tunable::new(
                "server.write_through_bytes",
                Bytes,
                64 << 10,
                (4 << 10, 1 << 20),
                "writes of so many bytes go to the disk first; four times as many where it is slow, less in a memory that fills",
            ),
            write_back_age_ms: Tunable::new(
                "server.write_back_age_ms",
                Milliseconds,
                5_000,
                (1, HOUR_MS),
                "what has been in that memory for so long is written to the disk",
            ),
        }
    }

    /// The tunables of a server as it is configured.
    ///
    /// Errors: a name or value that makes no sense.
    pub fn of(config: &ServerConfig) -> std::result::Result<Tunables, ServerError> {
        let tunables = Tunables::new(Defaults {
            session_grace: config.session_grace,
            callback_deadline: config.callback_deadline,
            roomy_bytes: config.roomy_bytes,
            worker_spin: config.worker_spin,
        });
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

    /// How long a client may leave a callback or a question unanswered, ns.
    pub fn callback_deadline_ns(&self) -> u64 {
        self.callback_deadline_ms.get() * 1_000_000
    }

    /// After so long without an answer or progress a callback is sent again, ns; without end if never.
    pub fn callback_again_ns(&self) -> u64 {
        if self.callback_again.is_on() { self.callback_deadline_ns() / 6 } else { u64::MAX }
    }

    /// How long a client that is alive may be silent; `None`: as long as others.
    pub fn deaf(&self) -> Option<Duration> {
        Some(self.deaf_ms.get()).filter(|ms| *ms > 0).map(Duration::from_millis)
    }

    fn all(&self) -> [&Tunable; 36] {
        [
            &self.session_grace_ms,
            &self.token_ms,
            &self.plan_tries,
            &self.callback_deadline_ms,
            &self.callback_again,
            &self.deaf_ms,
            &self.contended_conflicts,
            &self.contended_fights,
            &self.contended_waited_ms,
            &self.contended_foreseen,
            &self.contended_window_ms,
            &self.contended_hold_ms,
            &self.lock_granularity_bytes,
            &self.lock_growth,
            &self.lock_crowd_locks,
            &self.lock_crowd_growth_bytes,
            &self.contention,
            &self.directory_attributes,
            &self.carried_decisions,
            &self.early_removals,
            &self.foreseen_removals,
            &self.whole_listings,
            &self.log_memory,
            &self.sync_interval_ms,
            &self.checkpoint_bytes,
            &self.roomy_bytes,
            &self.reuse_bytes,
            &self.disk_read_bytes,
            &self.disk_write_delay_us,
            &self.worker_spin_us,
            &self.checksums,
            &self.scrub_bytes_per_s,
            &self.write_back,
            &self.write_back_bytes,
            &self.write_through_bytes,
            &self.write_back_age_ms,
        ]
    }

    /// The part of `apply_to` that a target does not come with by itself.
    pub fn apply_to_storage<E: Env>(&self, target: &Target<E>) {
        target.reads.tune(self.disk_read_bytes.get());
        target.reuse_bytes.set(self.reuse_bytes.get());
        target.verifier.tune(self.checksums.is_on(), self.scrub_bytes_per_s.get());
    }

    /// The part of `apply_to` that concerns accepted writes.
    pub fn apply_to_write_back<E: Env>(&self, worker: &Worker<E>, target: &Target<E>) {
        let write_back = Settings {
            on: self.write_back.is_on(),
            bytes: self.write_back_bytes.get(),
            through_bytes: self.write_through_bytes.get(),
            age_ns: self.write_back_age_ms.get() * 1_000_000,
        };
        target.tune_write_back(&worker.env, write_back);
    }

    /// Hands the present values to the parts of one target, and of the worker that owns it, that keep a copy.
    pub fn apply_to<E: Env>(&self, worker: &Worker<E>, target: &Target<E>) {
        let contention = ContentionLimits {
            threshold: self.contended_conflicts.get() as usize,
            fights: self.contended_fights.get() as usize,
            waited_ns: self.contended_waited_ms.get() * 1_000_000,
            foreseen: self.contended_foreseen.get() as usize,
            window_ns: self.contended_window_ms.get() * 1_000_000,
            hold_ns: self.contended_hold_ms.get() * 1_000_000,
            enabled: self.contention.is_on(),
            ..ContentionLimits::default()
        };
        target.locks.tune(LockLimits {
            callback_deadline_ns: self.callback_deadline_ns(),
            granularity_bytes: self.lock_granularity_bytes.get(),
            grows: self.lock_growth.is_on(),
            crowd_locks: self.lock_crowd_locks.get() as usize,
            crowd_growth_bytes: self.lock_crowd_growth_bytes.get(),
            contention,
            ..LockLimits::default()
        });
        target.tokens.tune(self.callback_deadline_ns());
        self.apply_to_storage(target);
        let (interval, keeps) = (self.sync_interval_ms.duration(), self.log_memory.is_on());
        self.apply_to_write_back(worker, target);
        target.zone.tune(interval, self.checkpoint_bytes.get(), keeps);
        worker.env.set_spin(self.worker_spin_us.duration());
        worker.env.set_write_delay(self.disk_write_delay_us.duration());
    }

    /// Reads what matches the pattern (`setting::glob`) as (name, value, help), after setting all of it if there is a
    /// value.
    ///
    /// Errors: `NoEnt` when nothing matches, `Inval` when the value is no number or beyond the bounds of one of
    /// them; then none is changed.
    pub fn apply(&self, pattern: &str, value: Option<&str>) -> Result<Vec<(String, String, String)>> {
        let matching: Vec<&Tunable> = self.all().into_iter().filter(|t| setting::glob(pattern, t.name)).collect();
        if matching.is_empty() {
            return Err(Errno::NoEnt);
        }
        if let Some(text) = value {
            let mut numbers = Vec::with_capacity(matching.len());
            for t in &matching {
                let number = t.parse(text).filter(|n| (t.least..=t.most).contains(n));
                numbers.push(number.ok_or(Errno::Inval)?);
            }
            for (t, number) in matching.iter().zip(numbers) {
                t.value.store(number, Ordering::Relaxed);
            }
        }
        Ok(matching.into_iter().map(|t| (t.name.to_string(), t.show(t.get()), t.explain())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: patterns select, values are checked before any is set.
    #[test]
    fn patterns_and_bounds() {
        let defaults = Defaults {
            session_grace: Duration::from_secs(30),
            callback_deadline: Duration::from_secs(30),
            roomy_bytes: 128 << 20,
            worker_spin: Duration::ZERO,
        };
        let t = Tunables::new(defaults);
        assert_eq!(t.apply("*", None).unwrap().len(), t.all().len());
        for (name, value, help) in t.apply("server.*", None).unwrap() {
            assert!(help.contains(&format!("default {value}, ")), "{name}: {help}");
            assert!(t.all().iter().any(|x| x.name == name && (x.least..=x.most).contains(&x.default)), "{name}");
        }
        assert_eq!(t.apply("*plan_trie?", Some("7")).unwrap()[0].1, "7");
        assert_eq!(t.plan_tries.get(), 7);
        assert_eq!(t.apply("server.checkpoint_bytes", Some("4MiB")).unwrap()[0].1, "4M");
        assert_eq!(t.apply("server.disk_read_bytes", Some("1T")).unwrap()[0].1, "1T");
        assert_eq!(t.apply("server.checkpoint_bytes", Some("M")), Err(Errno::Inval));
        assert_eq!(t.apply("server.lock_granularity_bytes", Some("4K")).unwrap()[0].1, "4K");
        assert_eq!(t.apply("server.lock_granularity_bytes", Some("3000")), Err(Errno::Inval));
        assert_eq!(t.apply("server.lock_growth", Some("false")).unwrap()[0].1, "off");
        assert_eq!(t.apply("server.contention", Some("maybe")), Err(Errno::Inval));
        assert_eq!(t.apply("nothing*", None), Err(Errno::NoEnt));
        assert_eq!(t.apply("server.*", Some("0")), Err(Errno::Inval));
        assert_eq!(t.apply("server.plan_tries", Some("much")), Err(Errno::Inval));
        assert_eq!(t.session_grace_ms.get(), 30_000, "a refused value changes nothing");
    }
}
