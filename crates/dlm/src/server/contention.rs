//! Which objects are contended: conflicts in a sliding window, remembered after the last lock is gone.
//!
//! Owns: one small window for each object with a recent conflict. Does not own: what counts as a conflict (`queue`).
//!
//! The window has two halves of half its length each; their sum covers between one half and one whole window. So
//! `threshold` conflicts within half a window always make an object contended, and an object becomes contended only by
//! `threshold` conflicts within one window. Contended lasts `hold_ns` beyond the last conflict, whatever locks are left,
//! so the state does not flap when clients go direct and leave no cached lock behind.
//!
//! Numbers: 16 conflicts in 4 s, so a steady rate is noticed from about 4 conflicts/s. Held 5 s.
//! Bound: `max_objects` windows of about 100 bytes; beyond, the one with the oldest conflict is forgotten.

use amphi_types::ObjectId;
use std::collections::{BTreeMap, BTreeSet};

/// Tunables of the detector.
#[derive(Clone, Copy, Debug)]
pub struct ContentionLimits {
    /// Length of the sliding window.
    pub window_ns: u64,
    /// Conflicts in one window that make an object contended.
    pub threshold: usize,
    /// How long an object stays contended after its last conflict.
    pub hold_ns: u64,
    /// Objects remembered.
    pub max_objects: usize,
    /// Whether conflicts are counted and objects called contended at all.
    pub enabled: bool,
}

impl Default for ContentionLimits {
    fn default() -> Self {
        ContentionLimits {
            window_ns: 4_000_000_000,
            threshold: 16,
            hold_ns: 5_000_000_000,
            max_objects: 65_536,
            enabled: true,
        }
    }
}

#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
struct Window {
    half: u64,
    previous: usize,
    current: usize,
    last_ns: u64,
    contended_until_ns: u64,
}

#[cfg_attr(test, derive(Clone))]
pub(crate) struct Contention {
    limits: ContentionLimits,
    windows: BTreeMap<ObjectId, Window>,
    by_age: BTreeSet<(u64, ObjectId)>,
}

impl Contention {
    pub fn new(limits: ContentionLimits) -> Contention {
        Contention { limits, windows: BTreeMap::new(), by_age: BTreeSet::new() }
    }

    /// Other limits from now on. Conflicts noted under another window count as if it had been this one.
    pub fn tune(&mut self, limits: ContentionLimits) {
        self.limits = limits;
    }

    /// Most conflicts of one request that are worth counting.
    pub fn cap(&self) -> usize {
        if self.limits.enabled { self.limits.threshold } else { 0 }
    }

    /// Notes a request that met `count` conflicting locks. Whether the object became contended by it.
    pub fn conflicts(&mut self, now_ns: u64, object: ObjectId, count: usize) -> bool {
        if count == 0 {
            return false;
        }
        let half_ns = (self.limits.window_ns / 2).max(1);
        let window = self.windows.entry(object).or_default();
        self.by_age.remove(&(window.last_ns, object));
        // Clocks of one target do not run backwards; if one did, the window simply does not move.
        let half = (now_ns / half_ns).max(window.half);
        if half > window.half {
            window.previous = if half == window.half + 1 { window.current } else { 0 };
            window.current = 0;
            window.half = half;
        }
        window.current = window.current.saturating_add(count);
        window.last_ns = window.last_ns.max(now_ns);
        let contended = now_ns < window.contended_until_ns;
        let many = window.previous.saturating_add(window.current) >= self.limits.threshold;
        if contended || many {
            window.contended_until_ns = now_ns.saturating_add(self.limits.hold_ns);
        }
        self.by_age.insert((window.last_ns, object));
        self.expire(now_ns);
        many && !contended
    }

    pub fn contended(&self, now_ns: u64, object: ObjectId) -> bool {
        self.limits.enabled && self.windows.get(&object).is_some_and(|window| now_ns < window.contended_until_ns)
    }

    /// Forgets windows that can no longer matter, and the oldest beyond the bound.
    fn expire(&mut self, now_ns: u64) {
        let useful_ns = self.limits.window_ns.max(self.limits.hold_ns);
        while let Some(&(last_ns, object)) = self.by_age.first() {
            if self.windows.len() <= self.limits.max_objects && now_ns.saturating_sub(last_ns) < useful_ns {
                break;
            }
            self.by_age.pop_first();
            self.windows.remove(&object);
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        debug_assert_eq!(self.windows.len(), self.by_age.len());
        self.windows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Random, object};

    /// Goal: an object becomes contended by enough conflicts in half a window, never without enough of them in a whole
    /// one, stays so for the hold time after its last conflict, and not longer. Method: random conflicts against the list
    /// of all of them.
    #[test]
    fn detector_stays_between_its_bounds() {
        let limits = ContentionLimits { window_ns: 40, threshold: 6, hold_ns: 50, max_objects: 8, enabled: true };
        let (mut became, mut ended) = (0, 0);
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut contention = Contention::new(limits);
            let mut conflicts: Vec<(u64, usize)> = Vec::new();
            let (mut now, mut was) = (1000, false);
            let spread = 1 + seed % 30;
            for _ in 0..300 {
                now += random.below(spread) + if random.below(60) == 0 { 60 } else { 0 };
                let before = contention.contended(now, object(1));
                let last = conflicts.last().map_or(0, |&(at, _)| at);
                assert!(!before || now - last < limits.hold_ns, "outlived its hold time");
                assert!(!was || before || now - last >= limits.hold_ns, "ended before its hold time");
                ended += usize::from(was && !before);
                let count = random.below(3) as usize;
                contention.conflicts(now, object(1), count);
                if count > 0 {
                    conflicts.push((now, count));
                }
                let within = |span: u64| -> usize {
                    conflicts.iter().filter(|(at, _)| now - at < span).map(|&(_, count)| count).sum()
                };
                let contended = contention.contended(now, object(1));
                assert!(contended || within(limits.window_ns / 2) < limits.threshold, "missed");
                assert!(before || !contended || within(limits.window_ns) >= limits.threshold, "false alarm");
                became += usize::from(contended && !before);
                was = contended;
            }
        }
        assert!(became > 100 && ended > 100, "both edges were met: {became}, {ended}");
    }

    /// Goal: memory is bounded and quiet objects are forgotten. Method: conflicts on many objects, then silence.
    #[test]
    fn windows_are_bounded() {
        let limits = ContentionLimits { max_objects: 100, ..ContentionLimits::default() };
        let mut contention = Contention::new(limits);
        for n in 0..1000 {
            contention.conflicts(n, object(n as u32), 20);
            assert!(contention.len() <= 100);
        }
        assert!(contention.contended(1000, object(999)) && !contention.contended(1000, object(0)));
        contention.conflicts(100_000_000_000, object(5000), 1);
        assert_eq!(contention.len(), 1);
    }
}
