//! `Writers`: which sessions wrote what is delayed of each file, so that they can be told when it cannot be written.
//!
//! Owns: the sessions of each file, and handing the news out. Does not own: what is delayed, when a flush has failed
//! (`ops::flush`), what a mount makes of the news.
//!
//! The rule is that of `fsync` on Linux: whoever wrote is told once of each failure. Here nothing is lost by it yet:
//! the bytes stay in memory and are tried again. So the news go once, and may be lost with a connection; an `fsync` of
//! the file says by itself what is not stable.
//!
//! Bound: files with delayed bytes, of which a target has no more than delayed extents (`Target::delayed_max`), and its
//! sessions. Those of files without delayed bytes go with the flusher's next round.

use amphi_types::{Ino, SessionId};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Carries the news to a session.
type Teller = Box<dyn Fn(SessionId, Ino)>;

/// See the head.
#[derive(Default)]
pub struct Writers {
    files: RefCell<BTreeMap<Ino, SmallVec<[SessionId; 2]>>>,
    teller: RefCell<Option<Teller>>,
}

impl Writers {
    /// From now on news are carried by `teller`.
    pub fn tell_by(&self, teller: impl Fn(SessionId, Ino) + 'static) {
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

    /// Delayed bytes of the file cannot be written: its writers are told, each once until it writes again. How many.
    pub fn tell(&self, ino: Ino) -> u64 {
        let writers = self.files.borrow_mut().remove(&ino).unwrap_or_default();
        let count = writers.len() as u64;
        if let Some(teller) = &*self.teller.borrow() {
            writers.into_iter().for_each(|session| teller(session, ino));
        }
        count
    }

    /// Forgets files of which nothing is delayed any more.
    pub fn keep_only(&self, is_delayed: impl Fn(Ino) -> bool) {
        self.files.borrow_mut().retain(|ino, _| is_delayed(*ino));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    /// Goal: each writer is told once until it writes again; files without delayed bytes are forgotten. Method: by
    /// hand.
    #[test]
    fn writers_are_told_once() {
        let (writers, told) = (Writers::default(), Rc::new(RefCell::new(Vec::new())));
        let heard = told.clone();
        writers.tell_by(move |session, ino| heard.borrow_mut().push((session.0, ino.0)));
        for session in [1, 2, 1] {
            writers.note(Ino(7), SessionId(session));
        }
        writers.note(Ino(8), SessionId(3));
        assert_eq!((writers.tell(Ino(7)), writers.tell(Ino(7))), (2, 0));
        assert_eq!(told.take(), [(1, 7), (2, 7)]);
        writers.note(Ino(7), SessionId(2));
        writers.keep_only(|ino| ino == Ino(7));
        assert_eq!((writers.tell(Ino(8)), writers.tell(Ino(7))), (0, 1));
        assert_eq!(told.take(), [(2, 7)]);
    }
}
