//! `Questions`: questions to mounts for whose answers a request waits, for a moment.
//!
//! Owns: unanswered queries of a target to mounts, and which sessions left one unanswered recently. Does not own: the
//! content and the receivers of the questions (the requests).
//!
//! Bounds: a request waits for `WAIT` at most. A session that does not answer in that time is *silent*: no request
//! waits for it during `SILENCE`. Until it has answered one, it gets at most `SILENT_MAX` queries, so that unread
//! queries do not break its connection.

use amphi_env::{Env, timeout};
use amphi_types::SessionId;
use futures_channel::oneshot;
use futures_util::future::join_all;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a request waits for answers.
const WAIT: Duration = Duration::from_millis(100);
/// How long a mount is not waited for that has not answered.
const SILENCE: Duration = Duration::from_secs(1);
/// Questions to a silent mount.
const SILENT_MAX: u32 = 256;

/// A mount that has not answered.
#[derive(Clone, Copy, Default)]
struct Silent {
    until_ns: u64,
    /// Number of queries since the mount became silent.
    asked: u32,
}

#[derive(Default)]
struct Inner {
    last: u64,
    open: BTreeMap<u64, (SessionId, oneshot::Sender<()>)>,
    silent: BTreeMap<SessionId, Silent>,
}

/// See the module's head.
#[derive(Default)]
pub struct Questions(RefCell<Inner>);

/// Queries of one request. Dropping this value withdraws the queries.
pub struct Asked<'a> {
    questions: &'a Questions,
    /// The sessions that were asked, and the numbers of their questions.
    pub sessions: Vec<(SessionId, u64)>,
    /// Silent sessions that are asked nevertheless, without waiting for their answers.
    pub not_awaited: Vec<(SessionId, u64)>,
    answers: Vec<oneshot::Receiver<()>>,
}

impl Questions {
    /// Questions to `sessions`, to be sent.
    pub fn ask(&self, now_ns: u64, sessions: impl IntoIterator<Item = SessionId>) -> Asked<'_> {
        let inner = &mut *self.0.borrow_mut();
        let mut asked = Asked { questions: self, sessions: Vec::new(), not_awaited: Vec::new(), answers: Vec::new() };
        for session in sessions {
            inner.last += 1;
            if let Some(silent) = inner.silent.get_mut(&session) {
                silent.asked += 1;
                if silent.asked > SILENT_MAX {
                    continue;
                }
                if now_ns < silent.until_ns {
                    asked.not_awaited.push((session, inner.last));
                    continue;
                }
            }
            let (sender, receiver) = oneshot::channel();
            let before = inner.open.insert(inner.last, (session, sender));
            assert!(before.is_none(), "two open questions have the number {}", inner.last);
            asked.sessions.push((session, inner.last));
            asked.answers.push(receiver);
        }
        assert_eq!(asked.sessions.len(), asked.answers.len(), "each question that is sent has its answer");
        asked
    }

    /// Called when the session has answered.
    pub fn answered(&self, session: SessionId, id: u64) {
        let inner = &mut *self.0.borrow_mut();
        inner.silent.remove(&session);
        if inner.open.get(&id).is_some_and(|(asked, _)| *asked == session)
            && let Some((_, sender)) = inner.open.remove(&id)
        {
            let _ = sender.send(());
        }
    }

    /// Called when the session has ended.
    pub fn end_session(&self, session: SessionId) {
        let inner = &mut *self.0.borrow_mut();
        inner.silent.remove(&session);
        inner.open.retain(|_, (asked, _)| *asked != session);
    }
}

impl Asked<'_> {
    /// Waits for a short time until all sessions have answered or have ended. A session that has not answered then is
    /// silent.
    pub async fn wait<E: Env>(mut self, env: &E) {
        if timeout(env, WAIT, join_all(&mut self.answers)).await.is_some() {
            return;
        }
        let inner = &mut *self.questions.0.borrow_mut();
        let until_ns = env.now().0 + SILENCE.as_nanos() as u64;
        let late = self.sessions.iter().filter_map(|(_, id)| Some(inner.open.get(id)?.0));
        late.for_each(|session| inner.silent.entry(session).or_default().until_ns = until_ns);
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let open = &mut self.questions.0.borrow_mut().open;
        self.sessions.iter().for_each(|(_, id)| drop(open.remove(id)));
    }
}
