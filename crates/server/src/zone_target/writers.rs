//! `Writers`: which sessions wrote the delayed bytes of each file, and the messages for those whose bytes cannot be
//! written.
//!
//! Owns: the sessions that wrote each file, the failure messages that a session has not acknowledged, and when they are
//! sent. Does not own: which bytes are delayed, when a flush has failed (`ops::flush`), how a mount handles the
//! message.
//!
//! The rule is that of `fsync` on Linux: every writer gets each failure once. The failure loses no bytes on the server:
//! they stay in memory and are written again. A session gets its messages one at a time. The next one is sent when it
//! has acknowledged the previous one, and unacknowledged ones are sent again on a new connection. So a repeated message
//! has the number of the last one, and a mount needs to remember no other number. A restarted server has written all
//! accepted bytes before it serves any request, so it has no such messages.
//!
//! Bounds: files with delayed bytes, of which a target has no more than delayed extents (`Target::delayed_max`), and
//! its sessions. Sessions of files without delayed bytes are removed in the flusher's next round. `NEWS_MAX` messages
//! for each session. If that many messages wait for a writer, the writer stays recorded, and gets its message when the
//! flush is tried again.

use amphi_types::{Ino, SessionId};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

/// News that a session has not acknowledged. A mount remembers failures of 4,096 closed files.
const NEWS_MAX: usize = 1024;

/// Carries news, with their number, to a session.
type Teller = Box<dyn Fn(SessionId, u64, Ino)>;

/// See the head.
#[derive(Default)]
pub struct Writers {
    files: RefCell<BTreeMap<Ino, SmallVec<[SessionId; 2]>>>,
    /// The messages that each session has not acknowledged, in order. The first one was sent.
    news: RefCell<BTreeMap<SessionId, VecDeque<(u64, Ino)>>>,
    /// Number of the last news.
    last: Cell<u64>,
    teller: RefCell<Option<Teller>>,
}

impl Writers {
    /// Numbers of news that no earlier run has given: `starts` is how often the target was opened.
    pub fn numbered_by(&self, starts: u64) {
        self.last.set(starts << 32);
    }

    /// From now on messages are sent by `teller`.
    pub fn tell_by(&self, teller: impl Fn(SessionId, u64, Ino) + 'static) {
        self.teller.replace(Some(Box::new(teller)));
    }

    /// A write of this session to the file was accepted.
    pub fn note(&self, ino: Ino, session: SessionId) {
        let mut files = self.files.borrow_mut();
        let writers = files.entry(ino).or_default();
        if !writers.contains(&session) {
            writers.push(session);
        }
    }

    /// Delayed bytes of the file cannot be written. Its writers that are alive get a message, each once until it writes
    /// again. Returns how many.
    pub fn tell(&self, ino: Ino, is_alive: impl Fn(SessionId) -> bool) -> u64 {
        let mut writers = self.files.borrow_mut().remove(&ino).unwrap_or_default();
        let mut count = 0;
        writers.retain(|session| {
            if !is_alive(*session) {
                return false;
            }
            let is_noted = self.enqueue(*session, ino);
            count += u64::from(is_noted);
            !is_noted
        });
        if !writers.is_empty() {
            self.files.borrow_mut().insert(ino, writers);
        }
        count
    }

    /// Returns whether another message can be added for a session. The first message is sent.
    fn enqueue(&self, session: SessionId, ino: Ino) -> bool {
        let is_first = {
            let mut news = self.news.borrow_mut();
            let queue = news.entry(session).or_default();
            if queue.len() >= NEWS_MAX {
                return false;
            }
            self.last.set(self.last.get() + 1);
            let number = self.last.get();
            assert!(queue.back().is_none_or(|(last, _)| *last < number), "news {number} come behind later ones");
            queue.push_back((number, ino));
            queue.len() == 1
        };
        if is_first {
            self.send(session);
        }
        true
    }

    /// Sends the first news of a session that it has not acknowledged.
    pub fn send(&self, session: SessionId) {
        let first = self.news.borrow().get(&session).and_then(|queue| queue.front().copied());
        if let (Some((number, ino)), Some(teller)) = (first, &*self.teller.borrow()) {
            teller(session, number, ino);
        }
    }

    /// A session has acknowledged the message with this number, so the next ones are sent. An acknowledgement that
    /// arrived before has no effect.
    pub fn acknowledged(&self, session: SessionId, number: u64) {
        {
            let mut news = self.news.borrow_mut();
            let Some(queue) = news.get_mut(&session).filter(|q| q.front().is_some_and(|(n, _)| *n == number)) else {
                return;
            };
            queue.pop_front();
            if queue.is_empty() {
                news.remove(&session);
            }
        }
        self.send(session);
    }

    /// Forgets a session that has ended.
    pub fn drop_session(&self, session: SessionId) {
        self.news.borrow_mut().remove(&session);
        self.files.borrow_mut().retain(|_, writers| {
            writers.retain(|writer| *writer != session);
            !writers.is_empty()
        });
    }

    /// Forgets files of which nothing is delayed any more. News stay until they are acknowledged.
    pub fn keep_only(&self, is_delayed: impl Fn(Ino) -> bool) {
        self.files.borrow_mut().retain(|ino, _| is_delayed(*ino));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    type Heard = Rc<RefCell<Vec<(u64, u64, u64)>>>;

    fn writers() -> (Writers, Heard) {
        let (writers, heard) = (Writers::default(), Heard::default());
        let by = heard.clone();
        writers.tell_by(move |session, number, ino| by.borrow_mut().push((session.0, number, ino.0)));
        (writers, heard)
    }

    /// Goal: each writer that is alive gets one message until it writes again, and files without delayed bytes are
    /// forgotten. Method: single calls in a fixed order.
    #[test]
    fn writers_are_told_once() {
        let (writers, heard) = writers();
        for session in [1, 2, 1, 9] {
            writers.note(Ino(7), SessionId(session));
        }
        writers.note(Ino(8), SessionId(3));
        let is_alive = |session: SessionId| session.0 != 9;
        assert_eq!((writers.tell(Ino(7), is_alive), writers.tell(Ino(7), is_alive)), (2, 0));
        assert_eq!(heard.take(), [(1, 1, 7), (2, 2, 7)]);
        writers.acknowledged(SessionId(2), 2);
        writers.note(Ino(7), SessionId(2));
        writers.keep_only(|ino| ino == Ino(7));
        assert_eq!((writers.tell(Ino(8), is_alive), writers.tell(Ino(7), is_alive)), (0, 1));
        assert_eq!(heard.take(), [(2, 3, 7)]);
    }

    /// Goal: messages are sent in order, one at a time, repeatedly until they are acknowledged, and not to a session
    /// that has ended. Their number is bounded, and further ones are sent later. Method: single calls in a fixed order.
    #[test]
    fn news_wait_for_each_other() {
        let (writers, heard) = writers();
        let session = SessionId(1);
        for ino in 0..NEWS_MAX as u64 + 1 {
            writers.note(Ino(ino), session);
            assert_eq!(writers.tell(Ino(ino), |_| true), u64::from(ino < NEWS_MAX as u64));
        }
        writers.send(session);
        writers.acknowledged(session, 2);
        assert_eq!(heard.take(), [(1, 1, 0), (1, 1, 0)], "the second have not been sent");
        writers.acknowledged(session, 1);
        writers.acknowledged(session, 1);
        assert_eq!(heard.take(), [(1, 2, 1)]);
        assert_eq!(writers.tell(Ino(NEWS_MAX as u64), |_| true), 1, "there is room now");
        writers.drop_session(session);
        writers.send(session);
        writers.acknowledged(session, 2);
        assert_eq!(heard.take(), []);
    }
}
