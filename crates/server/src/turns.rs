//! `Turns`: a bounded number of things at a time, in the order of arrival.
//!
//! Owns: the order in which callers continue. Does not own: what the turns are for. A wait or a turn that is dropped
//! has no further effect.

use futures_channel::oneshot;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

struct Inner {
    free: usize,
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

/// A bounded number of turns.
#[derive(Clone)]
pub struct Turns(Rc<RefCell<Inner>>);

/// The turn of one caller. Dropping it passes it to the next task.
#[must_use = "dropping a turn ends it"]
pub struct Turn(Rc<RefCell<Inner>>);

impl Turns {
    /// A queue with `most` turns at a time, at least one.
    pub fn new(most: usize) -> Turns {
        Turns(Rc::new(RefCell::new(Inner { free: most.max(1), waiting: VecDeque::new() })))
    }

    /// Waits for a turn.
    pub async fn take(&self) -> Turn {
        loop {
            let receiver = {
                let mut inner = self.0.borrow_mut();
                if inner.free > 0 && inner.waiting.is_empty() {
                    inner.free -= 1;
                    return Turn(self.0.clone());
                }
                let (sender, receiver) = oneshot::channel();
                inner.waiting.push_back(sender);
                receiver
            };
            if let Ok(turn) = receiver.await {
                return turn;
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut inner = self.0.borrow_mut();
            let next = inner.waiting.pop_front();
            if next.is_none() {
                inner.free += 1;
            }
            next
        };
        if let Some(waiter) = next {
            // If a waiter has ended, its turn is returned as an error; dropping that gives the turn to the next one.
            drop(waiter.send(Turn(self.0.clone())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// Goal: never more than the bound, first come first served, nothing lost with a dropped wait. Method: polled by
    /// hand.
    #[test]
    fn turns_are_bounded_and_in_order() {
        let turns = Turns::new(2);
        let a = turns.take().now_or_never().expect("free");
        let _b = turns.take().now_or_never().expect("free");
        let (mut c, mut d) = (Box::pin(turns.take()), Box::pin(turns.take()));
        assert!((&mut c).now_or_never().is_none() && (&mut d).now_or_never().is_none());
        drop(a);
        assert!((&mut d).now_or_never().is_none(), "not before the first");
        drop(c);
        let d = (&mut d).now_or_never().expect("its turn");
        drop(d);
        assert!(turns.take().now_or_never().is_some());
    }
}
