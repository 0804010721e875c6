//! Detection of contended objects: conflicts and ping-pongs in a sliding window, which are remembered after the last
//! lock is released.
//!
//! Owns: a small window for each object with a recent conflict. Does not own: what counts as a conflict (`queue`), and
//! which hand-overs are ping-pongs (`hand_overs`).
//!
//! The window consists of two halves; their sum covers between one half and one whole window. An object becomes
//! contended
//!
//! * by number: `threshold` conflicts within half a window always make the object contended, and fewer within a whole
//!   window never do;
//! * by waiting: `ping_pongs` ping-pongs within the window, which took `waited_ns` together.
//!
//! Counting conflicts alone is slow where detection matters most. With 10 ms for each hand-over, it takes 160 ms to
//! detect what two hand-overs already show. Waiting time alone proves no contention. One hand-over of a large file
//! takes a second, and each of ten readers waits for that second. So only hand-overs back and forth count. Many mounts
//! that each write a separate part look like ping-pong at first, because each loses its grown lock once. So several
//! ping-pongs are required. The time of a hand-over that still lasts counts from the moment at which the losing session
//! requests the object again, and not before. So the second mount that requests a large file is not advised to go
//! direct.
//!
//! A program may write one shared file after the other. If the contention of each file had to be detected anew, a file
//! that is written for some seconds would be cached for a large part of that time. So within `FORESEEN_NS` after an
//! object became contended, the next `foreseen` objects become contended with their first ping-pong, if it took `1 /
//! EARLY_PART` of the time. After these, one object has to be detected in full again. An object that is handed over
//! only once never becomes contended by this rule.
//!
//! An object stays contended for `hold_ns` after the last conflict, and after the last ping-pong that made it
//! contended, whichever locks remain. So the state does not flap when clients switch to direct requests and leave no
//! cached lock behind.
//!
//! Numbers: 16 conflicts in 4 s, so a steady rate is noticed from about 4 conflicts/s; 2 ping-pongs of 5 ms together;
//! the object stays contended for 5 s. Bound: `max_objects` windows of about 400 bytes. When there are more, the window
//! with the oldest conflict is forgotten.

use super::hand_overs::HandOvers;
use amphi_types::{ObjectId, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// How long after one object became contended the rule for others holds.
const FORESEEN_NS: u64 = 60_000_000_000;
/// The part of `waited_ns` that is enough under that rule, as its inverse.
const EARLY_PART: u64 = 5;

/// Tunables of the detector.
#[derive(Clone, Copy, Debug)]
pub struct ContentionLimits {
    /// Length of the sliding window.
    pub window_ns: u64,
    /// Conflicts in one window that make an object contended.
    pub threshold: usize,
    /// Ping-pongs in one window that make an object contended if they took long enough. 0: ping-pongs never make an
    /// object contended.
    pub ping_pongs: usize,
    /// The least time that they have to take together.
    pub waited_ns: u64,
    /// Number of objects that become contended with their first ping-pong, after one was detected in full. 0: no object
    /// does.
    pub foreseen: usize,
    /// How long an object stays contended after its last conflict.
    pub hold_ns: u64,
    /// Most objects that are remembered.
    pub max_objects: usize,
    /// Whether conflicts are counted and objects are reported as contended at all.
    pub enabled: bool,
}

impl Default for ContentionLimits {
    fn default() -> Self {
        ContentionLimits {
            window_ns: 4_000_000_000,
            threshold: 16,
            ping_pongs: 2,
            waited_ns: 5_000_000,
            foreseen: 8,
            hold_ns: 5_000_000_000,
            max_objects: 65_536,
            enabled: true,
        }
    }
}

/// Statistics of the detector.
#[derive(Clone, Copy, Default)]
pub(super) struct Found {
    pub conflicts: u64,
    pub contended: u64,
    /// Contended objects that became so by waiting.
    pub by_waiting: u64,
    /// Number of these that became contended with their first ping-pong, because other objects had become contended
    /// before.
    pub foreseen: u64,
    pub ping_pongs: u64,
    pub ping_pongs_ns: u64,
}

/// A count for each half of a window.
#[derive(Clone, Copy, Default)]
struct Halves {
    previous: u64,
    current: u64,
}

impl Halves {
    fn add(&mut self, n: u64) {
        self.current = self.current.saturating_add(n);
    }

    fn sum(self) -> u64 {
        self.previous.saturating_add(self.current)
    }

    /// Moves the window by one half, or by more.
    fn shift(&mut self, one: bool) {
        *self = Halves { previous: if one { self.current } else { 0 }, current: 0 };
    }
}

#[derive(Clone, Default)]
struct Window {
    half: u64,
    conflicts: Halves,
    ping_pongs: Halves,
    ping_pongs_ns: Halves,
    hand_overs: HandOvers,
    last_ns: u64,
    contended_until_ns: u64,
}

impl Window {
    /// Moves the window to the present time. The clocks of a target do not run backwards. If one did, the window would
    /// not move.
    fn advance(&mut self, now_ns: u64, limits: &ContentionLimits) {
        let half = (now_ns / (limits.window_ns / 2).max(1)).max(self.half);
        if half > self.half {
            let one = half == self.half + 1;
            for counts in [&mut self.conflicts, &mut self.ping_pongs, &mut self.ping_pongs_ns] {
                counts.shift(one);
            }
            self.half = half;
        }
    }

    fn bounces(&self, limits: &ContentionLimits) -> bool {
        limits.ping_pongs > 0
            && self.ping_pongs.sum() >= limits.ping_pongs as u64
            && self.ping_pongs_ns.sum() >= limits.waited_ns
    }

    /// Returns whether there were enough ping-pongs under the rule for further objects.
    fn bounces_early(&self, limits: &ContentionLimits) -> bool {
        limits.ping_pongs > 0 && self.ping_pongs.sum() > 0 && self.ping_pongs_ns.sum() >= limits.waited_ns / EARLY_PART
    }

    /// If `so` is true, the object is contended for the hold time from now on. Returns whether it became contended by
    /// this call.
    fn judge(&mut self, now_ns: u64, limits: &ContentionLimits, so: bool) -> bool {
        let begins = so && now_ns >= self.contended_until_ns;
        if so {
            self.contended_until_ns = now_ns.saturating_add(limits.hold_ns);
        }
        begins
    }
}

#[cfg_attr(test, derive(Clone))]
pub(crate) struct Contention {
    limits: ContentionLimits,
    windows: BTreeMap<ObjectId, Window>,
    by_age: BTreeSet<(u64, ObjectId)>,
    found: Found,
    /// Number of objects to which the rule for further objects still applies, and until when.
    foreseen: usize,
    foreseen_until_ns: u64,
}

impl Contention {
    pub fn new(limits: ContentionLimits) -> Contention {
        let (windows, by_age) = (BTreeMap::new(), BTreeSet::new());
        Contention { limits, windows, by_age, found: Found::default(), foreseen: 0, foreseen_until_ns: 0 }
    }

    /// Called when an object was detected in full, so the rule for further objects holds.
    fn foresee(&mut self, now_ns: u64) {
        (self.foreseen, self.foreseen_until_ns) = (self.limits.foreseen, now_ns.saturating_add(FORESEEN_NS));
    }

    /// Sets the limits that apply from now on. If the window has another length, the existing counts are used as if
    /// they had been made with the new one.
    pub fn tune(&mut self, limits: ContentionLimits) {
        self.limits = limits;
    }

    /// Statistics so far.
    pub fn found(&self) -> Found {
        self.found
    }

    /// Most conflicts of one request that have to be counted.
    pub fn cap(&self) -> usize {
        if self.limits.enabled { self.limits.threshold } else { 0 }
    }

    /// Notes a request that conflicted with `count` locks or requests.
    pub fn conflicts(&mut self, now_ns: u64, object: ObjectId, count: usize) {
        let count = count.min(self.cap());
        if count == 0 {
            return;
        }
        let window = self.windows.entry(object).or_default();
        self.by_age.remove(&(window.last_ns, object));
        window.advance(now_ns, &self.limits);
        window.conflicts.add(count as u64);
        window.last_ns = window.last_ns.max(now_ns);
        let many = window.conflicts.sum() >= self.limits.threshold as u64;
        let lasts = now_ns < window.contended_until_ns;
        let begins = window.judge(now_ns, &self.limits, many || lasts);
        self.by_age.insert((window.last_ns, object));
        self.found.conflicts += count as u64;
        self.found.contended += u64::from(begins);
        if begins {
            self.foresee(now_ns);
        }
        self.expire(now_ns);
    }

    /// Notes that a lock was called back because a request conflicts with it. This is done only for objects with a
    /// noted conflict.
    pub fn called_back(&mut self, now_ns: u64, object: ObjectId, loser: SessionId) {
        if let Some(window) = self.windows.get_mut(&object) {
            window.hand_overs.called_back(now_ns, loser);
        }
    }

    /// Notes that a lock which was called back is released.
    pub fn free(&mut self, now_ns: u64, object: ObjectId, loser: SessionId) {
        let Some(window) = self.windows.get_mut(&object) else { return };
        let waited_ns = window.hand_overs.free(now_ns, loser);
        if waited_ns > 0 {
            self.ping_pong(now_ns, object, 0, waited_ns);
        }
    }

    /// Notes that a session requests bytes of an object, to cache them or for one direct request.
    pub fn asked(&mut self, now_ns: u64, object: ObjectId, session: SessionId) {
        if !self.limits.enabled || self.limits.ping_pongs == 0 {
            return;
        }
        let Some(window) = self.windows.get_mut(&object) else { return };
        let Some(waited_ns) = window.hand_overs.asked(now_ns, session) else { return };
        self.ping_pong(now_ns, object, 1, waited_ns);
    }

    /// Adds this many ping-pongs, and the time that they took.
    fn ping_pong(&mut self, now_ns: u64, object: ObjectId, ping_pongs: u64, waited_ns: u64) {
        let Some(window) = self.windows.get_mut(&object) else { return };
        window.advance(now_ns, &self.limits);
        window.ping_pongs.add(ping_pongs);
        window.ping_pongs_ns.add(waited_ns);
        let bounces = self.limits.enabled && window.bounces(&self.limits);
        let expected =
            self.limits.enabled && self.foreseen.min(self.limits.foreseen) > 0 && now_ns < self.foreseen_until_ns;
        let early = expected && now_ns >= window.contended_until_ns && window.bounces_early(&self.limits);
        let begins = window.judge(now_ns, &self.limits, bounces || early);
        self.found.ping_pongs += ping_pongs;
        self.found.ping_pongs_ns += waited_ns;
        self.found.contended += u64::from(begins);
        self.found.by_waiting += u64::from(begins);
        if begins && bounces {
            self.foresee(now_ns);
        } else if begins {
            self.found.foreseen += 1;
            self.foreseen -= 1;
        }
    }

    pub fn contended(&self, now_ns: u64, object: ObjectId) -> bool {
        self.limits.enabled && self.windows.get(&object).is_some_and(|window| now_ns < window.contended_until_ns)
    }

    /// Forgets windows that do not matter any more, and the oldest ones beyond the bound.
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

    const LIMITS: ContentionLimits = ContentionLimits {
        window_ns: 40,
        threshold: 6,
        ping_pongs: 3,
        waited_ns: 12,
        foreseen: 0,
        hold_ns: 50,
        max_objects: 8,
        enabled: true,
    };

    type HandOver = (u64, Option<u64>, Option<(u64, bool)>);

    /// The history of the locks of one session.
    #[derive(Default)]
    struct Party {
        /// Times of callback and release, when the session first requested the object again after the callback, and
        /// whether that was before the release.
        hand_overs: Vec<HandOver>,
    }

    impl Party {
        fn open(&self) -> bool {
            matches!(self.hand_overs.last(), Some((_, None, _)))
        }

        /// Hand-overs that bounced: when, and from when to when they are counted.
        fn ping_pongs(&self) -> Vec<(u64, u64, Option<u64>)> {
            let bounced = |&(called, free, asked): &HandOver| {
                let (asked, early) = asked?;
                let soon = early || free.is_some_and(|free| asked - free < (free - called) / 4);
                soon.then_some((asked, called, free))
            };
            self.hand_overs.iter().filter_map(bounced).collect()
        }
    }

    /// All that happened, in full, against which the windows are held.
    #[derive(Default)]
    struct History {
        conflicts: Vec<(u64, usize)>,
        parties: [Party; 3],
    }

    impl History {
        fn conflicts(&self, now: u64, span: u64) -> usize {
            self.conflicts.iter().filter(|(at, _)| now - at < span).map(|&(_, count)| count).sum()
        }

        /// Returns whether few conflicts that took long, of those within `span`, make the object contended.
        fn bounces(&self, now: u64, span: u64) -> bool {
            let (mut ping_pongs, mut time) = (0, 0);
            for party in &self.parties {
                for (asked, called, free) in party.ping_pongs() {
                    if now - asked < span {
                        ping_pongs += 1;
                        // The part that was already over, or still under way, when the object was requested.
                        time += free.map_or(asked, |free| free.min(asked)) - called;
                    }
                    if let Some(free) = free.filter(|&free| free > asked && now - free < span) {
                        time += free - asked;
                    }
                }
            }
            ping_pongs >= LIMITS.ping_pongs && time >= LIMITS.waited_ns
        }
    }

    /// Goal: enough conflicts or long enough ping-pongs in half a window make an object contended, and without enough
    /// of either in a whole window it never becomes so. The object stays contended for the hold time after its last
    /// conflict, and not longer. Method: random conflicts, callbacks, releases and requests of three sessions; the
    /// verdicts are compared with those from a list of all of them.
    #[test]
    fn detector_stays_between_its_bounds() {
        let (mut became, mut ended, mut bounced) = (0, 0, 0);
        for seed in 0..800 {
            let mut random = Random::new(seed);
            let mut contention = Contention::new(LIMITS);
            let mut all = History::default();
            let (mut now, mut was, mut least, mut most) = (1000, false, 0, 0);
            // Some runs have so few conflicts that only ping-pongs can make the object contended.
            let (spread, often) = (1 + seed % 30, if seed % 2 == 0 { 3 } else { 16 });
            for _ in 0..300 {
                now += random.below(spread) + if random.below(60) == 0 { 60 } else { 0 };
                let before = contention.contended(now, object(1));
                assert!(before || now >= least, "ended before its hold time");
                assert!(!before || now < most, "outlived its hold time");
                ended += usize::from(was && !before);
                let count = (random.below(often) == 0) as usize * (1 + random.below(2) as usize);
                contention.conflicts(now, object(1), count);
                if count > 0 {
                    all.conflicts.push((now, count));
                }
                let n = random.below(3);
                let (session, party) = (SessionId(n), &mut all.parties[n as usize]);
                match random.below(4) {
                    0 if all.conflicts.last().is_some_and(|&(at, _)| now - at < LIMITS.hold_ns) && !party.open() => {
                        contention.called_back(now, object(1), session);
                        party.hand_overs.push((now, None, None));
                    }
                    1 if party.open() => {
                        contention.free(now, object(1), session);
                        party.hand_overs.last_mut().expect("open").1 = Some(now);
                    }
                    2 => {
                        contention.asked(now, object(1), session);
                        if let Some((_, free, asked @ None)) = party.hand_overs.last_mut() {
                            *asked = Some((now, free.is_none()));
                        }
                    }
                    _ => {}
                }
                let contended = contention.contended(now, object(1));
                let many = |span| all.conflicts(now, span) >= LIMITS.threshold;
                let long = |span| all.bounces(now, span);
                let half = LIMITS.window_ns / 2;
                assert!(contended || !many(half) && !long(half), "missed");
                assert!(before || !contended || many(LIMITS.window_ns) || long(LIMITS.window_ns), "false alarm");
                if contended && (!before || count > 0) {
                    least = now + LIMITS.hold_ns;
                }
                if contended && (count > 0 || long(LIMITS.window_ns)) {
                    most = now + LIMITS.hold_ns;
                }
                became += usize::from(contended && !before);
                bounced += usize::from(contended && !before && !many(LIMITS.window_ns));
                was = contended;
            }
        }
        assert!(became > 200 && ended > 200 && bounced > 50, "all edges were met: {became}, {ended}, {bounced}");
    }

    /// One ping-pong for an object: the session that lost it requests it again during the hand-over. Returns whether
    /// the object is contended then.
    fn ping_pong(contention: &mut Contention, now: &mut u64, n: u32, took_ns: u64) -> bool {
        contention.conflicts(*now, object(n), 1);
        contention.called_back(*now, object(n), SessionId(1));
        *now += took_ns;
        contention.asked(*now, object(n), SessionId(1));
        contention.free(*now, object(n), SessionId(1));
        contention.contended(*now, object(n))
    }

    /// Goal: after the contention of an object was detected in full, as many further objects as the limit says become
    /// contended with one ping-pong. Then one object has to be detected in full again. No object becomes contended
    /// without a ping-pong, by a short one, after a minute, or with the limit 0. Method: one object after the other.
    #[test]
    fn contention_is_expected_where_it_was() {
        const MS: u64 = 1_000_000;
        let mut now = MS;
        let mut contention = Contention::new(ContentionLimits { foreseen: 3, ..ContentionLimits::default() });
        assert!(!ping_pong(&mut contention, &mut now, 0, 3 * MS), "nothing is known");
        assert!(ping_pong(&mut contention, &mut now, 0, 3 * MS), "in full");
        for n in 1..=3 {
            contention.conflicts(now, object(n), 1);
            assert!(!contention.contended(now, object(n)), "a conflict is no ping-pong");
            assert!(!ping_pong(&mut contention, &mut now, n, MS / 2), "short");
            assert!(ping_pong(&mut contention, &mut now, n, MS / 2), "long enough together");
        }
        assert!(!ping_pong(&mut contention, &mut now, 4, 2 * MS), "the three are over");
        assert!(ping_pong(&mut contention, &mut now, 4, 3 * MS), "in full");
        assert!(ping_pong(&mut contention, &mut now, 5, MS));
        now += FORESEEN_NS;
        assert!(!ping_pong(&mut contention, &mut now, 6, MS), "long ago");
        contention.conflicts(now, object(7), 16);
        contention.tune(ContentionLimits { foreseen: 0, ..ContentionLimits::default() });
        assert!(!ping_pong(&mut contention, &mut now, 8, 2 * MS), "off");
        assert_eq!((contention.found().contended, contention.found().foreseen), (7, 4));
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
