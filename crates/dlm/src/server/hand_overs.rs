//! Hand-overs of the locks of one object, and which of them are ping-pongs.
//!
//! Owns: of the last [`PARTIES`] sessions whose locks of the object were called back: when, when the lock was released,
//! and whether the session requested the object again too soon. Does not own: the consequences of ping-pongs
//! (`contention`).
//!
//! A hand-over lasts from the callback to the release. The conflicting request waits at least for that time, which
//! would be saved without caching. A hand-over is a *ping-pong* (it *bounces*) if the session that loses the lock
//! requests bytes of the object again too soon: during the hand-over, or before others had the lock for a quarter of
//! its time. In ping-pong, the object goes back and forth and is being handed over most of the time. A file that one
//! process has written and others read is handed over too. This may take seconds, but the writer does not request the
//! file again. Processes that take strict turns request it again only when the other one is done.
//!
//! Invariants: a hand-over is a ping-pong at most once. Its time counts once, however many requests wait for it.
//! Numbers: 32 bytes for each session.

use amphi_types::SessionId;

/// Sessions that are remembered. Ping-pong of more sessions is soon noticed by the number of conflicts.
const PARTIES: usize = 8;
/// In a ping-pong others have the lock for less than this part of the hand-over's time, given as its inverse.
const USE_PART: u64 = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The lock was called back, and its session has not requested the object again yet.
    Called { since_ns: u64 },
    /// A ping-pong whose lock is not released yet. `counted_ns` of its time is counted already.
    Bounced { counted_ns: u64 },
    /// Released after `lasted_ns`.
    Free { at_ns: u64, lasted_ns: u64 },
    /// Nothing more can be learnt from this hand-over.
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
    /// The place for the next new session.
    next: usize,
}

impl HandOvers {
    /// Called when a lock of the session is called back. If several locks are called back, they count as one hand-over.
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

    /// Called when a lock of the session that was called back is released. Returns the time that has to be added to the
    /// time of ping-pongs.
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

    /// The session requests bytes of the object. If that makes a hand-over a ping-pong, returns for how many ns that
    /// hand-over has lasted so far. The rest is returned by [`HandOvers::free`].
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

    /// Goal: a hand-over counts once as a ping-pong if its loser requests the object during the hand-over or soon
    /// after. All of its time is reported. Method: examples.
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
        // First others have the lock for a quarter of the hand-over's time less one ns; then for a full quarter.
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
