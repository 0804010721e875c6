//! `Listed`: which directories a session has been allowed to list lately, and for which user.
//!
//! Owns: the notes and their bound. Does not own: the check of the permission (`ops::names`).
//!
//! A program may list a directory to its end once it has opened it, even if its permissions change meanwhile (POSIX).
//! A listing takes several requests, and mounts open no directory at the servers. So a request that continues a listing
//! is allowed if an earlier request of the session for this user was. That is no more than a session could keep open.
//! A restart of the server forgets the notes: then a listing of a directory that has become unreadable ends with
//! `Access`.

use amphi_types::{Ino, SessionId};
use std::collections::{BTreeMap, VecDeque};

/// Directories that a target remembers for each session. If there are more, the oldest note is forgotten.
const LISTED_MAX: usize = 256;

/// Directories of one target, by session, each with the number of the user who may list it.
#[derive(Default)]
pub struct Listed(BTreeMap<SessionId, VecDeque<(Ino, u32)>>);

impl Listed {
    /// Called when the user has been allowed to list the directory.
    pub fn note(&mut self, session: SessionId, dir: Ino, uid: u32) {
        let listed = self.0.entry(session).or_default();
        if listed.contains(&(dir, uid)) {
            return;
        }
        if listed.len() >= LISTED_MAX {
            listed.pop_front();
        }
        listed.push_back((dir, uid));
        assert!(listed.len() <= LISTED_MAX, "{} directories are noted, at most {LISTED_MAX}", listed.len());
    }

    /// Returns whether the user was allowed to list the directory.
    pub fn has(&self, session: SessionId, dir: Ino, uid: u32) -> bool {
        self.0.get(&session).is_some_and(|listed| listed.contains(&(dir, uid)))
    }

    /// Called when the session has ended.
    pub fn end_session(&mut self, session: SessionId) {
        self.0.remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a session keeps notes of its own, a bounded number of them. Method: one directory more than fit.
    #[test]
    fn the_oldest_note_goes() {
        let (a, b) = (SessionId(1), SessionId(2));
        let mut listed = Listed::default();
        listed.note(b, Ino(1), 7);
        for n in 0..=LISTED_MAX as u64 {
            listed.note(a, Ino(n), 7);
            listed.note(a, Ino(n), 7);
        }
        assert!(!listed.has(a, Ino(0), 7) && listed.has(a, Ino(1), 7) && listed.has(a, Ino(LISTED_MAX as u64), 7));
        assert!(!listed.has(a, Ino(1), 8) && listed.has(b, Ino(1), 7), "for one user of one session");
        listed.end_session(a);
        assert!(!listed.has(a, Ino(1), 7) && listed.has(b, Ino(1), 7));
    }
}
