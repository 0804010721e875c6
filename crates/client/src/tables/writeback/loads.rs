//! `TargetLoads`: how much is under way to each target, and which targets cannot be reached.
//!
//! Requests to a server that is down wait for it, for up to `transport.give_up_s`. What they keep must not stop the
//! requests to other servers, so it is told apart.
//!
//! Owns: these counts, and the set of targets that cannot be reached. Does not own: the bounds (`mount`), the
//! connections (`io::links`).
//!
//! Invariant: what has begun to a target ends once. Bound: the targets of the cluster. While all targets can be
//! reached, a look at the bounds costs the load of one flag; the begin and the end of a request take a lock that no
//! other work is done under.

use amphi_types::TargetId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// What is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Bytes of write-back.
    pub(crate) flight_bytes: u64,
    /// Runs of write-back.
    pub(crate) flight_parts: usize,
    /// Bytes of direct writes that have returned.
    pub(crate) piped_bytes: u64,
}

impl Load {
    /// A run of write-back.
    pub(crate) fn flight(bytes: u64) -> Load {
        Load { flight_bytes: bytes, flight_parts: 1, piped_bytes: 0 }
    }

    /// A part of a direct write that has returned.
    pub(crate) fn piped(bytes: u64) -> Load {
        Load { piped_bytes: bytes, ..Load::default() }
    }

    fn plus(&self, more: &Load) -> Load {
        Load {
            flight_bytes: self.flight_bytes + more.flight_bytes,
            flight_parts: self.flight_parts + more.flight_parts,
            piped_bytes: self.piped_bytes + more.piped_bytes,
        }
    }

    /// `None` if less than `ended` was under way.
    fn minus(&self, ended: &Load) -> Option<Load> {
        Some(Load {
            flight_bytes: self.flight_bytes.checked_sub(ended.flight_bytes)?,
            flight_parts: self.flight_parts.checked_sub(ended.flight_parts)?,
            piped_bytes: self.piped_bytes.checked_sub(ended.piped_bytes)?,
        })
    }
}

#[derive(Default)]
struct State {
    /// Targets to which nothing is under way have no entry.
    loads: BTreeMap<TargetId, Load>,
    away: BTreeSet<TargetId>,
}

/// The loads of all targets.
#[derive(Default)]
pub(crate) struct TargetLoads {
    state: Mutex<State>,
    any_away: AtomicBool,
}

impl TargetLoads {
    /// Called when this is sent to a target.
    pub(crate) fn begin(&self, target: TargetId, load: Load) {
        let mut state = self.state.lock();
        let of = state.loads.entry(target).or_default();
        *of = of.plus(&load);
    }

    /// Called when this has been answered, or has failed. Returns whether the target cannot be reached.
    pub(crate) fn end(&self, target: TargetId, load: Load) -> bool {
        let mut state = self.state.lock();
        let before = state.loads.remove(&target).unwrap_or_default();
        let left = before.minus(&load);
        // A load is also ended when its owner is dropped.
        assert!(left.is_some() || std::thread::panicking(), "{target}: {load:?} ends of {before:?}");
        if let Some(left) = left.filter(|left| *left != Load::default()) {
            state.loads.insert(target, left);
        }
        state.away.contains(&target)
    }

    /// Sets which targets cannot be reached. Returns whether these are others than before.
    pub(crate) fn set_away(&self, away: BTreeSet<TargetId>) -> bool {
        let mut state = self.state.lock();
        let changes = state.away != away;
        state.away = away;
        self.any_away.store(!state.away.is_empty(), SeqCst);
        changes
    }

    /// Returns whether any target cannot be reached.
    #[inline]
    pub(crate) fn any_away(&self) -> bool {
        self.any_away.load(SeqCst)
    }

    /// Returns whether the target cannot be reached.
    pub(crate) fn is_away(&self, target: TargetId) -> bool {
        self.any_away() && self.state.lock().away.contains(&target)
    }

    /// What is under way to targets that cannot be reached.
    pub(crate) fn away(&self) -> Load {
        if !self.any_away() {
            return Load::default();
        }
        let state = self.state.lock();
        let loads = state.away.iter().filter_map(|target| state.loads.get(target));
        loads.fold(Load::default(), |sum, load| sum.plus(load))
    }

    /// The targets that cannot be reached.
    pub(crate) fn away_targets(&self) -> BTreeSet<TargetId> {
        self.state.lock().away.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: exactly what is under way to unreachable targets is told apart, whether it began before or after they
    /// could not be reached. Method: a table of steps.
    #[test]
    fn what_waits_for_a_server_is_told_apart() {
        let loads = TargetLoads::default();
        let [x, y] = [TargetId(1), TargetId(2)];
        loads.begin(x, Load::flight(10));
        loads.begin(y, Load::flight(100));
        assert_eq!((loads.any_away(), loads.away()), (false, Load::default()));
        assert!(loads.set_away(BTreeSet::from([x])) && !loads.set_away(BTreeSet::from([x])));
        assert_eq!((loads.any_away(), loads.is_away(x), loads.is_away(y)), (true, true, false));
        assert_eq!(loads.away(), Load::flight(10));
        loads.begin(x, Load::piped(5));
        assert_eq!(loads.away(), Load { flight_bytes: 10, flight_parts: 1, piped_bytes: 5 });
        assert_eq!((loads.end(x, Load::flight(10)), loads.end(y, Load::flight(100))), (true, false));
        assert_eq!((loads.away(), loads.away_targets()), (Load::piped(5), BTreeSet::from([x])));
        assert!(loads.set_away(BTreeSet::new()) && !loads.any_away());
        assert_eq!((loads.away(), loads.end(x, Load::piped(5))), (Load::default(), false));
        assert!(loads.state.lock().loads.is_empty());
    }
}
