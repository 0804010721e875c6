//! Locks of one object that were asked back, and whether who lost them wanted them for long.
//!
//! Owns: of the last [`PARTIES`] sessions that were asked for a lock of the object: when, when it came free, and
//! whether the session came back for more too soon. Does not own: what follows from that (`contention`).
//!
//! A hand-over lasts from the callback to the release: so long whoever met the lock waits at least, and so much is
//! saved if nobody caches. It *bounces* if the session that lost the lock asks for bytes of the object again while
//! the hand-over lasts, or before others had the lock for a quarter of that time. Then the object is handed to and fro
//! and mostly under way. A file that one process has written and others read is handed over too, and that may take
//! seconds; but its writer does not ask again. Who takes turns asks again, but only when the other is done.
//!
//! Invariants: a hand-over bounces at most once; its time counts once, however many wait for it. Numbers: 32 bytes
//! for each party.

use amphi_types::SessionId;

/// Sessions remembered. Ping-pong of more is soon seen by the number of their conflicts.
const PARTIES: usize = 8;
/// Others have a lock for less than this part of the time of its hand-over if it bounces.
const USE_PART: u64 = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Asked back, and not asked for again yet.
    Called { since_ns: u64 },
    /// Bounced, and not free yet; the time until then is counted.
    Bounced { counted_ns: u64 },
    /// Came free after `lasted_ns`.
    Free { at_ns: u64, lasted_ns: u64 },
    /// Nothing more to find.
    Over,
}

#[derive(Clone, Copy)]
struct HandOver {
    loser: SessionId,
    stage: Stage,
}

/// The hand-overs of one object.
#[derive(Clone, Default)]
pub(super) struct HandOvers {
    parties: [Option<HandOver>; PARTIES],
    /// Place of the next party that is new.
    next: usize,
}

impl HandOvers {
    /// The session is asked for a lock. One that is being asked for several has them handed over together.
    pub fn called_back(&mut self, now_ns: u64, loser: SessionId) {
        let called = Stage::Called { since_ns: now_ns };
        match self.of(loser) {
            Some(HandOver { stage: Stage::Called { .. } | Stage::Bounced { .. }, .. }) => {}
            Some(known) => known.stage = called,
            None => {
                self.parties[self.next] = Some(HandOver { loser, stage: called });
                self.next = (self.next + 1) % PARTIES;
            }
        }
    }

    /// A lock that the session was asked for is free. Returns what has to be added to the time of ping-pong.
    pub fn free(&mut self, now_ns: u64, loser: SessionId) -> u64 {
        let Some(known) = self.of(loser) else { return 0 };
        match known.stage {
            Stage::Called { since_ns } => {
                known.stage = Stage::Free { at_ns: now_ns, lasted_ns: now_ns.saturating_sub(since_ns) };
                0
            }
            Stage::Bounced { counted_ns } => {
                known.stage = Stage::Over;
                now_ns.saturating_sub(counted_ns)
            }
            Stage::Free { .. } | Stage::Over => 0,
        }
    }

    /// The session asks for bytes of the object. If it wants back what it lost: how long that hand-over has taken so
    /// far, ns; what follows is told by [`HandOvers::free`].
    pub fn asked(&mut self, now_ns: u64, session: SessionId) -> Option<u64> {
        let known = self.of(session)?;
        let (bounced_ns, stage) = match known.stage {
            Stage::Called { since_ns } => {
                (Some(now_ns.saturating_sub(since_ns)), Stage::Bounced { counted_ns: now_ns })
            }
            Stage::Free { at_ns, lasted_ns } => {
                let soon = now_ns.saturating_sub(at_ns) < lasted_ns / USE_PART;
                (soon.then_some(lasted_ns), Stage::Over)
            }
            Stage::Bounced { .. } | Stage::Over => (None, known.stage),
        };
        known.stage = stage;
        bounced_ns
    }

    fn of(&mut self, loser: SessionId) -> Option<&mut HandOver> {
        self.parties.iter_mut().flatten().find(|known| known.loser == loser)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    /// Goal: a hand-over bounces if its loser asks while it lasts or soon after, once, and all of its time is told.
    /// Method: examples.
    #[test]
    fn who_comes_back_soon_bounces() {
        let mut all = HandOvers::default();
        assert_eq!(all.asked(5, A), None, "it lost nothing");
        all.called_back(10, A);
        all.called_back(15, A);
        assert_eq!(all.asked(20, B), None);
        assert_eq!(all.asked(30, A), Some(20));
        assert_eq!(all.asked(31, A), None, "once");
        assert_eq!((all.free(50, A), all.free(60, A)), (20, 0));
        // Free for a quarter of its time, less one; then for a quarter.
        all.called_back(100, A);
        assert_eq!((all.free(200, A), all.free(210, A)), (0, 0));
        assert_eq!(all.asked(224, A), Some(100));
        all.called_back(300, A);
        all.free(400, A);
        assert_eq!((all.asked(425, A), all.asked(426, A)), (None, None), "its turn is over");
    }

    /// Goal: of a crowd the latest are remembered. Method: more parties than places.
    #[test]
    fn the_latest_are_remembered() {
        let mut all = HandOvers::default();
        for n in 0..=PARTIES as u64 {
            all.called_back(n, SessionId(n));
        }
        assert_eq!((all.asked(50, SessionId(0)), all.free(50, SessionId(0))), (None, 0), "forgotten");
        for n in 1..=PARTIES as u64 {
            assert_eq!(all.asked(50, SessionId(n)), Some(50 - n));
        }
    }
}
