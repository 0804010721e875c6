//! Questions to mounts whether a file that somebody could not lock is being closed.
//!
//! The kernel tells a mount of the last close of an open file (RELEASE) without waiting for it, so `close` may have
//! returned before the mount gives up the file's `flock` and OFD locks. A program that was told of that close must not
//! find them any more. Therefore a request that would be refused asks the mounts whose locks are in its way, and looks
//! once more when they have answered.
//!
//! Owns: questions without an answer, and who left one unanswered lately. Does not own: how a mount knows of closes.
//!
//! Bounds: `HOLDERS_MAX` mounts are asked for one request, which waits for `WAIT` at most; who does not answer in that
//! time is not asked again for `SILENCE`. A mount that is asked answers at once unless a close is under way, so a lock
//! that stays costs a refused request one message there and back.

use super::{FileLockTable, lock_of};
use amphi_types::SessionId;
use amphi_wire::FileLockSpec;
use futures_channel::oneshot;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a request waits for answers.
pub const WAIT: Duration = Duration::from_millis(100);
/// Most mounts that one request asks.
const HOLDERS_MAX: usize = 16;
/// How long a mount is not asked that has not answered.
const SILENCE: Duration = Duration::from_secs(1);

/// Questions of one target.
#[derive(Default)]
pub(super) struct Closing {
    last: u64,
    asked: BTreeMap<u64, (SessionId, oneshot::Sender<()>)>,
    /// Who has not answered, and until when it is not asked.
    silent: BTreeMap<SessionId, u64>,
}

impl Closing {
    fn ask(&mut self, now_ns: u64, session: SessionId) -> Option<(u64, oneshot::Receiver<()>)> {
        if self.silent.get(&session).is_some_and(|until_ns| now_ns < *until_ns) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        self.last += 1;
        self.asked.insert(self.last, (session, sender));
        Some((self.last, receiver))
    }

    /// The session has ended.
    pub(super) fn end_session(&mut self, session: SessionId) {
        self.silent.remove(&session);
        self.asked.retain(|_, (asked, _)| *asked != session);
    }
}

/// Questions of one request; dropping it withdraws them.
pub struct Questions<'a> {
    desk: &'a FileLockTable,
    /// Who is asked, under which number.
    pub asked: Vec<(SessionId, u64)>,
    answers: Vec<oneshot::Receiver<()>>,
}

impl Drop for Questions<'_> {
    fn drop(&mut self) {
        let closing = &mut self.desk.inner.borrow_mut().closing;
        self.asked.iter().for_each(|(_, id)| drop(closing.asked.remove(id)));
    }
}

impl Questions<'_> {
    /// Until all have answered or have gone.
    pub async fn answered(&mut self) {
        join_all(&mut self.answers).await;
    }

    /// Who has not answered is not asked for a while.
    pub fn give_up(&self, now_ns: u64) {
        let closing = &mut self.desk.inner.borrow_mut().closing;
        let late: Vec<SessionId> = self.asked.iter().filter_map(|(_, id)| Some(closing.asked.get(id)?.0)).collect();
        let until_ns = now_ns + SILENCE.as_nanos() as u64;
        closing.silent.extend(late.into_iter().map(|session| (session, until_ns)));
    }
}

impl FileLockTable {
    /// Questions to the mounts with a lock in the way of `lock`, to be sent.
    pub fn ask_holders(&self, now_ns: u64, session: SessionId, lock: &FileLockSpec) -> Questions<'_> {
        let inner = &mut *self.inner.borrow_mut();
        let holders = inner.locks.holders(&lock_of(session, lock), HOLDERS_MAX);
        let (mut asked, mut answers) = (Vec::new(), Vec::new());
        for session in holders {
            if let Some((id, answer)) = inner.closing.ask(now_ns, session) {
                asked.push((session, id));
                answers.push(answer);
            }
        }
        Questions { desk: self, asked, answers }
    }

    /// The session has given up what it closed.
    pub fn closed(&self, session: SessionId, id: u64) {
        let closing = &mut self.inner.borrow_mut().closing;
        closing.silent.remove(&session);
        if closing.asked.get(&id).is_some_and(|(asked, _)| *asked == session)
            && let Some((_, sender)) = closing.asked.remove(&id)
        {
            let _ = sender.send(());
        }
    }
}
