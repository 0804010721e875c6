//! `InFlight`: changes of sessions that are on their way to the disk.
//!
//! Owns: how many changes of file data each session has between the last look whether it is alive and the end of the
//! change. Does not own: the check of the session, which is made in the same step (`RequestCx::land`).
//!
//! A session that ends keeps its locks until its last change has ended. So a session that gets such a lock later finds
//! that the change was either completed or never made.

use amphi_types::SessionId;
use futures_channel::oneshot;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

#[derive(Default)]
struct Flying {
    count: u64,
    waiting: Vec<oneshot::Sender<()>>,
}

/// Changes under way on one target, by session.
#[derive(Clone, Default)]
pub struct InFlights {
    flying: Rc<RefCell<BTreeMap<SessionId, Flying>>>,
}

/// A change that is under way. It is dropped when the change has been applied or given up.
#[must_use = "dropping it says that the change has landed"]
pub struct InFlight {
    in_flight: InFlights,
    session: SessionId,
}

impl InFlights {
    /// A change sets out.
    pub fn start(&self, session: SessionId) -> InFlight {
        self.flying.borrow_mut().entry(session).or_default().count += 1;
        InFlight { in_flight: self.clone(), session }
    }

    /// Waits until the session has no change under way.
    pub async fn landed(&self, session: SessionId) {
        loop {
            let receiver = {
                let mut flying = self.flying.borrow_mut();
                let Some(one) = flying.get_mut(&session) else { return };
                let (sender, receiver) = oneshot::channel();
                one.waiting.push(sender);
                receiver
            };
            // The sender of this channel is dropped with the last change.
            let _ = receiver.await;
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut flying = self.in_flight.flying.borrow_mut();
        let last = flying.get_mut(&self.session).is_some_and(|one| {
            debug_assert!(one.count > 0, "what lands has set out");
            one.count -= 1;
            one.count == 0
        });
        let waiting = if last { flying.remove(&self.session) } else { None };
        drop(flying);
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// Goal: the waiting task continues with the end of the last change of that session, and nothing is left. Method:
    /// two changes of one session and one of another.
    #[test]
    fn the_last_change_wakes() {
        let in_flight = InFlights::default();
        let (a, b) = (SessionId(1), SessionId(2));
        let (first, second, other) = (in_flight.start(a), in_flight.start(a), in_flight.start(b));
        let mut wait = Box::pin(in_flight.landed(a));
        assert!(wait.as_mut().now_or_never().is_none());
        drop(second);
        assert!(wait.as_mut().now_or_never().is_none());
        drop(first);
        assert!(wait.now_or_never().is_some());
        drop(other);
        assert!(in_flight.flying.borrow().is_empty());
    }
}
