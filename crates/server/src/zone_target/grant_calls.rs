//! `GrantCalls`: which sessions were asked for what they were granted and do not need.
//!
//! Owns: who was asked when, and who has answered. Does not own: the grants (`amphi_data`), what asks (`ops::grant`).
//!
//! Bounds: a session is asked every `AGAIN_NS` at most, and waited for `PATIENCE_NS`. One that has not answered by then
//! is silent, and not asked again for `SILENCE_NS`: it keeps what it was granted until its session ends, and others are
//! told meanwhile that there is no room.

use amphi_types::SessionId;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// How long a session that has answered is not asked again.
const AGAIN_NS: u64 = 20_000_000;
/// How long an answer is waited for.
const PATIENCE_NS: u64 = 2_000_000_000;
/// How long a session that has not answered is not asked again.
const SILENCE_NS: u64 = 10_000_000_000;

struct Asked {
    at_ns: u64,
    answered: bool,
}

/// Who was asked on one target.
#[derive(Default)]
pub struct GrantCalls(RefCell<BTreeMap<SessionId, Asked>>);

impl GrantCalls {
    /// Those of `holders` that are to be asked now; they count as asked.
    pub fn due(&self, now_ns: u64, mut holders: Vec<SessionId>) -> Vec<SessionId> {
        let mut asked = self.0.borrow_mut();
        let is_due = |a: &Asked| now_ns.saturating_sub(a.at_ns) >= if a.answered { AGAIN_NS } else { SILENCE_NS };
        holders.retain(|session| asked.get(session).is_none_or(is_due));
        for session in &holders {
            asked.insert(*session, Asked { at_ns: now_ns, answered: false });
        }
        holders
    }

    /// Whether one of `holders` may still give something back.
    pub fn may_help(&self, now_ns: u64, holders: &[SessionId]) -> bool {
        let asked = self.0.borrow();
        let is_silent = |a: &Asked| !a.answered && now_ns.saturating_sub(a.at_ns) >= PATIENCE_NS;
        holders.iter().any(|session| !asked.get(session).is_some_and(is_silent))
    }

    /// Whether an answer may still come.
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
