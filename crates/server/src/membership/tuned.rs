//! `Tuned`: at the master, the tunables that were set since it started, and which servers have received them.
//!
//! Owns: the values, and which servers still lack some of them. Does not own: setting them (`tunables`), telling the
//! others (`master`).
//!
//! A server begins each run with its own values, and a server that is down gets no messages. So both miss changes until
//! they get them with the next change or after their next beat.
//!
//! Bound: one value for each tunable, one entry for each server that joined.

use crate::turns::Turns;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Which values a server has received.
struct Known {
    /// The last change up to which the server has all changes.
    change: u64,
    /// Runs that began.
    runs: u64,
    /// Missing values are being sent after a beat.
    telling: bool,
    turns: Turns,
}

impl Default for Known {
    fn default() -> Known {
        Known { change: 0, runs: 0, telling: false, turns: Turns::new(1) }
    }
}

/// The values sent to one run of a server.
pub(crate) struct Portion {
    /// Names and values.
    pub(crate) values: Vec<(String, String)>,
    change: u64,
    run: u64,
}

/// The tunables that were set, and which servers have received which of them.
#[derive(Default)]
pub(crate) struct Tuned {
    /// The value of each name, with the number of the change.
    values: RefCell<BTreeMap<String, (String, u64)>>,
    changes: Cell<u64>,
    servers: RefCell<BTreeMap<u64, Known>>,
}

impl Tuned {
    /// Called when these (name, value, help) were set.
    pub(crate) fn note(&self, rows: &[(String, String, String)]) {
        let change = self.changes.get() + 1;
        self.changes.set(change);
        self.values.borrow_mut().extend(rows.iter().map(|(name, value, _)| (name.clone(), (value.clone(), change))));
    }

    /// Called when a run of a server begins, in which the server has none of the changes.
    pub(crate) fn begins(&self, server: u64) {
        let mut servers = self.servers.borrow_mut();
        let known = servers.entry(server).or_default();
        (known.change, known.runs) = (0, known.runs + 1);
    }

    /// Messages to one server are sent one after the other, so that no older value follows a newer one.
    pub(crate) fn turns(&self, server: u64) -> Turns {
        self.servers.borrow_mut().entry(server).or_default().turns.clone()
    }

    /// The values that a server may lack, or `None` if it has all of them.
    pub(crate) fn missing(&self, server: u64) -> Option<Portion> {
        let (change, run) = self.servers.borrow().get(&server).map_or((0, 0), |k| (k.change, k.runs));
        let values = self.values.borrow();
        let newer = values.iter().filter(|(_, (_, at))| *at > change);
        let values: Vec<_> = newer.map(|(name, (value, _))| (name.clone(), value.clone())).collect();
        (!values.is_empty()).then(|| Portion { values, change: self.changes.get(), run })
    }

    /// Called when a server has taken all of a portion, unless a run has begun since.
    pub(crate) fn told(&self, server: u64, portion: &Portion) {
        let mut servers = self.servers.borrow_mut();
        let known = servers.entry(server).or_default();
        if known.runs == portion.run {
            known.change = known.change.max(portion.change);
        }
    }

    /// Returns whether a server misses values and no task is sending them after an earlier beat. In that case the
    /// caller sends them, until it calls `ends_telling`.
    pub(crate) fn begins_telling(&self, server: u64) -> bool {
        if self.missing(server).is_none() {
            return false;
        }
        !std::mem::replace(&mut self.servers.borrow_mut().entry(server).or_default().telling, true)
    }

    /// The next beat checks again.
    pub(crate) fn ends_telling(&self, server: u64) {
        self.servers.borrow_mut().entry(server).or_default().telling = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(tuned: &Tuned, server: u64) -> Vec<String> {
        let portion = tuned.missing(server);
        portion.into_iter().flat_map(|p| p.values).map(|(name, value)| format!("{name}={value}")).collect()
    }

    /// Goal: a server gets the values that it misses, the last value of each name. It gets all of them again in its
    /// next run, even if that run begins while values are being sent.
    #[test]
    fn a_run_misses_what_it_was_not_told() {
        let tuned = Tuned::default();
        let set = |name: &str, value: &str| tuned.note(&[(name.into(), value.into(), String::new())]);
        assert!(!tuned.begins_telling(7), "nothing was set");
        set("a", "1");
        set("b", "2");
        set("a", "3");
        assert_eq!(missing(&tuned, 7), ["a=3", "b=2"]);
        tuned.told(7, &tuned.missing(7).unwrap());
        assert_eq!(missing(&tuned, 7), [""; 0]);
        set("b", "4");
        assert_eq!((missing(&tuned, 7), missing(&tuned, 8)), (vec!["b=4".into()], vec!["a=3".into(), "b=4".into()]));
        assert!(tuned.begins_telling(7) && !tuned.begins_telling(7), "one at a time");
        let portion = tuned.missing(7).unwrap();
        tuned.begins(7);
        tuned.told(7, &portion);
        tuned.ends_telling(7);
        assert_eq!(missing(&tuned, 7), ["a=3", "b=4"], "that was the run before");
        assert!(tuned.begins_telling(7));
    }
}
