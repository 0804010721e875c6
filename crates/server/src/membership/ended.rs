//! `EndedSessions`: sessions that have ended, so that a message that was on its way cannot begin one of them again.
//!
//! Owns: which sessions are over, identified by their begin. Does not own: the events that end them (`sessions`,
//! `follower`).
//!
//! Bound: the last `ENDED_MAX`.

use amphi_types::SessionId;
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};

/// Ended sessions that a server remembers.
const ENDED_MAX: usize = 4096;

/// A session and the number of its begin. A session that has ended may begin again under its old id.
pub type Begun = (SessionId, u64);

#[derive(Default)]
struct Ended {
    set: BTreeSet<Begun>,
    order: VecDeque<Begun>,
}

/// Sessions that have ended.
#[derive(Default)]
pub struct EndedSessions(RefCell<Ended>);

impl EndedSessions {
    /// Remembers that a session has ended. Returns the session that is forgotten for it.
    pub fn note(&self, session: Begun) -> Option<Begun> {
        let Ended { set, order } = &mut *self.0.borrow_mut();
        if set.insert(session) {
            order.push_back(session);
        }
        let oldest = if order.len() > ENDED_MAX { order.pop_front() } else { None };
        if let Some(oldest) = &oldest {
            set.remove(oldest);
        }
        oldest
    }

    /// Returns whether a session is known to have ended.
    pub fn has(&self, session: Begun) -> bool {
        self.0.borrow().set.contains(&session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each ended session is remembered once, and the oldest one is dropped when there are too many. Method: one
    /// begin more than the bound.
    #[test]
    fn the_oldest_is_forgotten() {
        let ended = EndedSessions::default();
        let begun = |n: usize| (SessionId(1), n as u64);
        assert_eq!((ended.note(begun(0)), ended.note(begun(0))), (None, None));
        for n in 1..ENDED_MAX {
            assert_eq!(ended.note(begun(n)), None);
        }
        assert_eq!(ended.note(begun(ENDED_MAX)), Some(begun(0)));
        assert!(!ended.has(begun(0)) && ended.has(begun(1)) && ended.has(begun(ENDED_MAX)));
        assert_eq!(ended.0.borrow().set.len(), ENDED_MAX);
    }
}
