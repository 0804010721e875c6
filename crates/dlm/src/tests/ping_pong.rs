//! A few slow hand-overs show contention, tested through the whole lock server.

use super::object;
use crate::mode::{Growth, LockId, Mode, Owner};
use crate::server::{Action, ContentionLimits, LockCounts, LockLimits, LockRequest, LockSpace};
use amphi_types::{ByteRange, SessionId};

const MS: u64 = 1_000_000;
const PIECE: u64 = 1 << 20;

/// A lock server, and how long clients take to give a lock back.
struct Story {
    space: LockSpace,
    now_ns: u64,
    slow_ns: u64,
}

impl Story {
    fn new(slow_ns: u64) -> Story {
        Story { space: LockSpace::new(LockLimits::default(), 1), now_ns: 0, slow_ns }
    }

    /// Returns whether the session holds a sufficient lock that was not called back.
    fn has(&self, session: SessionId, mode: Mode, range: ByteRange) -> bool {
        let called: Vec<LockId> = self.space.called_back(session).map(|(id, _)| id).collect();
        self.space
            .held(session)
            .any(|(id, _, _, held, of)| held.covers(mode) && of.contains(&range) && !called.contains(&id))
    }

    /// Requests a lock if necessary. Sessions that are called back continue with `meanwhile` before they return their
    /// locks.
    fn ask(&mut self, session: u64, mode: Mode, range: ByteRange, mut meanwhile: impl FnMut(&mut Story, SessionId)) {
        if self.has(SessionId(session), mode, range) {
            return;
        }
        let owner = Owner::Cached(SessionId(session));
        let request = LockRequest { owner, object: object(0), mode, range, growth: Growth::Largest };
        self.space.enqueue(self.now_ns, request).expect("room");
        let called = self.called();
        for &(_, loser) in &called {
            meanwhile(self, loser);
        }
        if !called.is_empty() {
            self.now_ns += self.slow_ns;
        }
        for (id, loser) in called {
            self.space.cancel(self.now_ns, loser, &[id]);
        }
    }

    fn called(&mut self) -> Vec<(LockId, SessionId)> {
        let called = |action| match action {
            Action::Callback { id, session, .. } => Some((id, session)),
            Action::Granted { .. } => None,
        };
        std::iter::from_fn(|| self.space.poll_action()).filter_map(called).collect()
    }

    fn contended(&self) -> bool {
        self.space.contended(self.now_ns, object(0))
    }
}

fn nothing(_: &mut Story, _: SessionId) {}

/// Two writers of adjacent pieces, of which the second is a little ahead of the first. The second writer loses its lock
/// to the first each time, and requests its next piece at once. Returns the counters when the object became contended.
fn ping_pong(story: &mut Story) -> LockCounts {
    for n in 0..40 {
        let at = n * PIECE;
        story.ask(2, Mode::Write, ByteRange::at(at + 2104, PIECE - 2104), nothing);
        let goes_on = |story: &mut Story, loser: SessionId| {
            assert_eq!(loser, SessionId(2));
            story.now_ns += MS;
            story.ask(2, Mode::Write, ByteRange::at(at + PIECE + 2104, PIECE - 2104), nothing);
        };
        story.ask(1, Mode::Write, ByteRange::at(at, 2104), goes_on);
        story.now_ns += MS;
        if story.contended() {
            break;
        }
    }
    story.space.counts()
}

/// Goal: with slow answers, ping-pong is detected after the number of hand-overs that the tunables give. With fast
/// answers, or with that rule turned off, it is detected by the number of conflicts. The counters show which of the
/// rules it was. Method: the same ping-pong at two speeds.
#[test]
fn slow_ping_pong_shows_soon() {
    let slow = ping_pong(&mut Story::new(15 * MS));
    assert_eq!((slow.contended, slow.contended_waiting, slow.ping_pongs, slow.conflicts), (1, 1, 2, 2));
    assert_eq!(slow.ping_pongs_ns, 2 * 16 * MS);
    let mut story = Story::new(MS);
    let contention = ContentionLimits { waited_ns: 50 * MS, ..ContentionLimits::default() };
    story.space.tune(LockLimits { contention, ..LockLimits::default() });
    let fast = ping_pong(&mut story);
    assert_eq!((fast.contended, fast.contended_waiting, fast.conflicts), (1, 0, 16));
    let mut story = Story::new(15 * MS);
    let contention = ContentionLimits { ping_pongs: 0, ..ContentionLimits::default() };
    story.space.tune(LockLimits { contention, ..LockLimits::default() });
    let off = ping_pong(&mut story);
    assert_eq!((off.contended, off.contended_waiting, off.conflicts, off.ping_pongs), (1, 0, 16, 0));
}

/// Goal: slow patterns without ping-pong make no object contended. The patterns are: ten clients read a file with a
/// second's worth of dirty data; a few clients use separate parts; two clients take strict turns. Method: a sequence of
/// calls for each pattern.
#[test]
fn slow_hand_overs_are_no_ping_pong() {
    let mut readers = Story::new(1000 * MS);
    readers.ask(1, Mode::Write, ByteRange::at(0, 64 * PIECE), nothing);
    for reader in 2..12 {
        readers.ask(reader, Mode::Read, ByteRange::at(0, PIECE), nothing);
        assert!(!readers.contended(), "reader {reader}");
    }
    assert_eq!(readers.space.counts().ping_pongs, 0);

    let mut crowd = Story::new(200 * MS);
    let part = |n: u64| ByteRange::at((12 - n) * 64 * PIECE, PIECE);
    for n in 1..5 {
        let goes_on = |story: &mut Story, loser: SessionId| {
            let beyond = ByteRange::at(part(loser.0).end, PIECE);
            story.ask(loser.0, Mode::Write, beyond, nothing);
        };
        crowd.ask(n, Mode::Write, part(n), goes_on);
        assert!(!crowd.contended(), "part {n}");
    }

    let mut turns = Story::new(100 * MS);
    for round in 0..12 {
        turns.ask(1 + round % 2, Mode::Write, ByteRange::at(0, 4 * PIECE), nothing);
        turns.now_ns += 40 * MS;
        assert!(!turns.contended(), "turn {round}");
    }
    assert_eq!(turns.space.counts().ping_pongs, 0);
}
