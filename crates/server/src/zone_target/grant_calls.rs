//! `GrantCalls`: which sessions were asked to return granted blocks that they do not need.
//!
//! Owns: when each session was asked, and which have answered. Does not own: the grants (`amphi_data`), the code that
//! asks (`ops::grant`).
//!
//! Bounds: a session is asked at most every `AGAIN_NS`, and its answer awaited for `PATIENCE_NS`. A session that has
//! not answered by then is silent, and is not asked again for `SILENCE_NS`. It keeps its grant until its session ends,
//! and others get ENOSPC meanwhile.

use amphi_types::SessionId;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// For how long a session that has answered is not asked again.
const AGAIN_NS: u64 = 20_000_000;
/// For how long an answer is awaited.
const PATIENCE_NS: u64 = 2_000_000_000;
/// For how long a session that has not answered is not asked again.
const SILENCE_NS: u64 = 10_000_000_000;

struct Asked {
    at_ns: u64,
    answered: bool,
}

/// The sessions that were asked by one target.
#[derive(Default)]
pub struct GrantCalls(RefCell<BTreeMap<SessionId, Asked>>);

impl GrantCalls {
    /// The sessions among `holders` that have to be asked now. They count as asked from now on.
    pub fn due(&self, now_ns: u64, mut holders: Vec<SessionId>) -> Vec<SessionId> {
        let mut asked = self.0.borrow_mut();
        let is_due = |a: &Asked| now_ns.saturating_sub(a.at_ns) >= if a.answered { AGAIN_NS } else { SILENCE_NS };
        holders.retain(|session| asked.get(session).is_none_or(is_due));
        for session in &holders {
            asked.insert(*session, Asked { at_ns: now_ns, answered: false });
        }
        holders
    }

    /// Returns whether one of `holders` may still return blocks.
    pub fn may_help(&self, now_ns: u64, holders: &[SessionId]) -> bool {
        let asked = self.0.borrow();
        let is_silent = |a: &Asked| !a.answered && now_ns.saturating_sub(a.at_ns) >= PATIENCE_NS;
        holders.iter().any(|session| !asked.get(session).is_some_and(is_silent))
    }

    /// Returns whether an answer may still come.
    pub fn are_awaited(&self, now_ns: u64) -> bool {
        self.0.borrow().values().any(|a| !a.answered && now_ns.saturating_sub(a.at_ns) < PATIENCE_NS)
    }

    /// The session has answered.
    pub fn answered(&self, session: SessionId) {
        if let Some(asked) = self.0.borrow_mut().get_mut(&session) {
            asked.answered = true;
        }
    }

    /// The session has ended.
    pub fn end_session(&self, session: SessionId) {
        self.0.borrow_mut().remove(&session);
    }
}
