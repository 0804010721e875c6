//! `Reclaim`: sessions of an earlier run of a target, and the parts of their state that they have presented.
//!
//! Owns: which sessions have not presented their opens yet, whose locks are still accepted, which sessions have
//! presented their state before, and the tasks that wait for all of this to end. Does not own: the presented state
//! (`ops::open`), when a session that does not reconnect is given up (`cluster::master_lease`).
//!
//! A session is *pending* until it has presented its opens, or has ended. A session is *eligible* as long as no other
//! session can have got its locks. It is *done* once it has presented its state. If it presents it again because the
//! answer was lost, nothing was granted to others meanwhile. It is *expected* until it has presented its opens for the
//! first time, also if others did not wait for it: until then its locks are accepted although this run knows no open of
//! it.
//!
//! Bound: the sessions of the earlier run.

use amphi_types::SessionId;
use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// The sessions of an earlier run.
pub struct Reclaim {
    /// Sessions that have not presented their opens yet.
    pending: RefCell<BTreeSet<SessionId>>,
    /// Tasks that wait until no session is pending.
    waiting: RefCell<Vec<oneshot::Sender<()>>>,
    /// Sessions whose locks are accepted when they present them, because no other session had conflicting ones
    /// meanwhile.
    eligible: RefCell<BTreeSet<SessionId>>,
    /// Sessions that have presented their state in time, or late and with all consequences completed.
    done: RefCell<BTreeSet<SessionId>>,
    /// Sessions of the earlier run that have not presented their opens in this one, and have not ended.
    expected: RefCell<BTreeSet<SessionId>>,
    /// How often sessions have presented their state.
    said: Cell<u64>,
}

impl Reclaim {
    /// The state in which all these sessions may reclaim their locks and opens.
    pub fn of(sessions: impl Iterator<Item = SessionId>) -> Reclaim {
        let sessions: BTreeSet<SessionId> = sessions.collect();
        Reclaim {
            pending: RefCell::new(sessions.clone()),
            waiting: RefCell::default(),
            eligible: RefCell::new(sessions.clone()),
            expected: RefCell::new(sessions),
            done: RefCell::default(),
            said: Cell::default(),
        }
    }

    /// Returns whether every session has presented its opens, or has ended.
    pub fn is_over(&self) -> bool {
        self.pending.borrow().is_empty()
    }

    /// Returns whether a session has not presented its opens yet.
    pub fn is_pending(&self, session: SessionId) -> bool {
        self.pending.borrow().contains(&session)
    }

    /// All such sessions.
    pub fn pending(&self) -> Vec<SessionId> {
        self.pending.borrow().iter().copied().collect()
    }

    /// Returns whether a session of the earlier run has yet to present its opens for the first time.
    pub fn is_expected(&self, session: SessionId) -> bool {
        self.expected.borrow().contains(&session)
    }

    /// Called when a session has presented its opens, or has ended.
    pub fn expect_no_more(&self, session: SessionId) {
        self.expected.borrow_mut().remove(&session);
    }

    /// Waits until every session has presented its opens, or has ended.
    pub async fn over(&self) {
        while !self.is_over() {
            let (sender, receiver) = oneshot::channel();
            self.waiting.borrow_mut().push(sender);
            let _ = receiver.await;
        }
    }

    /// Called when a session has presented its opens, or has ended. Returns whether it was pending. If so, `wake` has
    /// to follow.
    pub fn settle(&self, session: SessionId) -> bool {
        self.pending.borrow_mut().remove(&session)
    }

    /// Wakes the waiting tasks, if no session is pending any more.
    pub fn wake(&self) {
        if self.is_over() {
            for waiting in self.waiting.take() {
                let _ = waiting.send(());
            }
        }
    }

    /// A session presents its locks and opens. Returns whether others did not wait for it, so that they may have had
    /// its locks.
    pub fn begin_saying(&self, session: SessionId) -> bool {
        self.said.set(self.said.get() + 1);
        let is_late = !self.is_pending(session) && !self.done.borrow().contains(&session);
        if !is_late {
            self.end_saying(session);
        }
        is_late
    }

    /// Called when the end of a session has been reported and everything that follows from it was done.
    pub fn end_saying(&self, session: SessionId) {
        self.done.borrow_mut().insert(session);
    }

    /// Returns how often sessions have presented their state.
    pub fn said(&self) -> u64 {
        self.said.get()
    }

    /// Returns whether the locks that a session presents are accepted.
    pub fn is_eligible(&self, session: SessionId) -> bool {
        self.eligible.borrow().contains(&session)
    }

    /// Called when a session begins again, and no other session has had what it held.
    pub fn make_eligible(&self, session: SessionId) {
        self.eligible.borrow_mut().insert(session);
    }

    /// From now on other sessions may get the locks of the session.
    pub fn forget(&self, session: SessionId) {
        self.eligible.borrow_mut().remove(&session);
        self.done.borrow_mut().remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// Goal: the waiting task continues when the last session has presented its opens. A late session counts as late
    /// until all consequences are completed. Method: two sessions, one of which is given up and then reconnects.
    #[test]
    fn the_last_session_wakes() {
        let (a, b) = (SessionId(1), SessionId(2));
        let reclaim = Reclaim::of([a, b].into_iter());
        let mut wait = Box::pin(reclaim.over());
        assert!(wait.as_mut().now_or_never().is_none());
        assert!(!reclaim.begin_saying(a) && reclaim.is_eligible(a));
        assert!(reclaim.settle(a) && !reclaim.settle(a));
        reclaim.wake();
        assert!(wait.as_mut().now_or_never().is_none());
        reclaim.forget(b);
        assert!(reclaim.settle(b) && reclaim.is_expected(b), "it may still come back");
        reclaim.expect_no_more(b);
        assert!(!reclaim.is_expected(b) && reclaim.is_expected(a) && !reclaim.is_expected(SessionId(3)));
        reclaim.wake();
        assert!(wait.now_or_never().is_some() && reclaim.is_over());
        assert!(reclaim.begin_saying(b) && reclaim.begin_saying(b) && !reclaim.is_eligible(b));
        reclaim.end_saying(b);
        assert!(!reclaim.begin_saying(b));
        assert_eq!(reclaim.said(), 4);
    }
}
