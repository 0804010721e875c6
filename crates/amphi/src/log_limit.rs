//! The rate of log lines of one kind is limited. So nobody can fill the disk, or hide other lines, by causing log lines
//! of a server or a mount.
//!
//! Owns: counting lines by their place in the code. Does not own: the lines, and their receivers.
//!
//! Further lines under AMPHI_LOG=debug are not limited: they serve the search for an error. Bound: one entry for each
//! place that logs.

use amphi_env::Time;
use amphi_env::real::monotonic;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Most lines of one kind within `PERIOD`. Further lines are counted, and the count is logged with the next line.
const LINES_MAX: u32 = 20;
/// The time in which at most `LINES_MAX` lines of one kind are written.
const PERIOD: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Default)]
struct Kind {
    since: Time,
    said: u32,
    left_out: u64,
}

impl Kind {
    /// Returns whether a line is written, and how many were left out before it.
    fn next(&mut self, now: Time) -> (bool, u64) {
        if self.said == 0 || now.since(self.since) >= PERIOD {
            let left_out = std::mem::take(&mut self.left_out);
            (self.since, self.said) = (now, 1);
            return (true, left_out);
        }
        if self.said < LINES_MAX {
            self.said += 1;
            return (true, 0);
        }
        self.left_out += 1;
        (false, 0)
    }
}

/// Lets a limited number of lines of one kind through.
#[derive(Default)]
pub struct LogLimit {
    kinds: Mutex<BTreeMap<(&'static str, u32), Kind>>,
}

impl LogLimit {
    fn next(&self, of: &'static Metadata<'static>, now: Time) -> (bool, u64) {
        let place = (of.file().unwrap_or(of.target()), of.line().unwrap_or_default());
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner).entry(place).or_default().next(now)
    }
}

impl<S: Subscriber> Layer<S> for LogLimit {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let of = event.metadata();
        if *of.level() > Level::INFO {
            return true;
        }
        let (is_said, left_out) = self.next(of, monotonic());
        if left_out > 0 {
            amphi_host::say::say(&format!("{left_out} log lines like the next one were left out"));
        }
        is_said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a kind of line is logged at most a fixed number of times in a period, and the omitted lines are counted
    /// once. Method: a flood over three periods.
    #[test]
    fn a_kind_has_a_rate() {
        let mut kind = Kind::default();
        let at = |ms: u64| Time(ms * 1_000_000);
        let said: Vec<u64> = (0..1000).filter(|i| kind.next(at(*i)).0).collect();
        assert_eq!(said, (0..u64::from(LINES_MAX)).collect::<Vec<_>>());
        assert_eq!(kind.next(at(10_000)), (true, 1000 - u64::from(LINES_MAX)));
        assert_eq!(kind.next(at(10_001)), (true, 0));
        assert_eq!(kind.next(at(40_000)), (true, 0));
    }
}
