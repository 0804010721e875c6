//! `Opens`: which sessions have which inodes of a target open.
//!
//! Owns: counts per inode and session, in memory. Clients present them again after a restart. Does not own: the
//! consequences of the last close (`ops::open`).
//!
//! An open that an earlier run promised, and whose answer may still be requested again, is kept under its slot
//! (`slots`) and counted here like any other.

use amphi_types::{Ino, SessionId};
use amphi_wire::Access;
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Default)]
struct Count {
    all: u64,
    writing: u64,
}

/// Number of closes for which a target remembers that there was an open. A read that was sent before the close may
/// arrive, or be repeated, after it.
const CLOSED_MAX: usize = 16_384;

/// Open inodes of one target.
#[derive(Default)]
pub struct Opens {
    inodes: BTreeMap<Ino, BTreeMap<SessionId, Count>>,
    /// The files that sessions have closed lately, with the access of the open, and in which order.
    closed: BTreeMap<(Ino, SessionId), Access>,
    closed_order: VecDeque<(Ino, SessionId)>,
}

impl Opens {
    /// The session opens the inode once more.
    pub fn open(&mut self, session: SessionId, ino: Ino, access: Access) {
        let count = self.inodes.entry(ino).or_default().entry(session).or_default();
        count.all += 1;
        count.writing += u64::from(access.write);
    }

    /// All open inodes.
    pub fn inodes(&self) -> impl Iterator<Item = Ino> {
        self.inodes.keys().copied()
    }

    /// Called when one open of the session ends. Returns false if the session had no such open: its server was
    /// restarted, and the client did not present the open again.
    pub fn close(&mut self, session: SessionId, ino: Ino, access: Access) -> bool {
        let Some(sessions) = self.inodes.get_mut(&ino) else { return false };
        let Some(count) = sessions.get_mut(&session) else { return false };
        assert!(
            count.all > 0 && count.writing <= count.all,
            "{ino}: a session has {} opens, {} of them for writing",
            count.all,
            count.writing
        );
        count.all = count.all.saturating_sub(1);
        count.writing = count.writing.saturating_sub(u64::from(access.write)).min(count.all);
        if count.all == 0 {
            sessions.remove(&session);
        }
        if sessions.is_empty() {
            self.inodes.remove(&ino);
        }
        self.note_closed(session, ino, access);
        true
    }

    fn note_closed(&mut self, session: SessionId, ino: Ino, access: Access) {
        let known = self.closed.get_mut(&(ino, session));
        if let Some(known) = known {
            known.read |= access.read;
            known.write |= access.write;
            return;
        }
        if self.closed_order.len() >= CLOSED_MAX
            && let Some(oldest) = self.closed_order.pop_front()
        {
            self.closed.remove(&oldest);
        }
        self.closed.insert((ino, session), access);
        self.closed_order.push_back((ino, session));
        assert_eq!(self.closed.len(), self.closed_order.len(), "each closed file is in the order once");
        assert!(self.closed.len() <= CLOSED_MAX, "{} closed files are noted, at most {CLOSED_MAX}", self.closed.len());
    }

    /// The access for which a session has an inode open, or had it open lately. Only closed files record whether they
    /// were open for reading, because any open permits reading here.
    pub fn access(&self, session: SessionId, ino: Ino) -> Option<Access> {
        let open = self.inodes.get(&ino).and_then(|s| s.get(&session)).map(|c| c.writing > 0);
        let closed = self.closed.get(&(ino, session)).map(|a| a.write);
        let write = open.into_iter().chain(closed).reduce(|a, b| a || b)?;
        Some(Access { read: true, write })
    }

    /// Ends the last opens of an inode: `opens` of this session. Returns false, and does nothing, if there are other
    /// opens.
    pub fn close_last(&mut self, session: SessionId, ino: Ino, opens: u64) -> bool {
        let last = match self.inodes.get(&ino) {
            Some(sessions) => sessions.len() == 1 && sessions.get(&session).is_some_and(|c| c.all == opens),
            None => opens == 0,
        };
        if last {
            self.inodes.remove(&ino);
        }
        last
    }

    /// Returns whether any session has the inode open.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.inodes.contains_key(&ino)
    }

    /// Returns whether any session has the inode open for writing.
    pub fn has_writer(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|s| s.values().any(|c| c.writing > 0))
    }

    /// Returns whether the session has the inode open for writing.
    pub fn is_writer(&self, session: SessionId, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|s| s.get(&session).is_some_and(|c| c.writing > 0))
    }

    /// Returns whether a session other than this has the inode open for writing.
    pub fn has_other_writer(&self, session: SessionId, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|s| s.iter().any(|(other, c)| *other != session && c.writing > 0))
    }

    /// Returns whether a session other than this has the inode open.
    pub fn is_open_elsewhere(&self, session: SessionId, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|s| s.keys().any(|other| *other != session))
    }

    /// Called when the session has ended: its opens end. Returns the inodes concerned.
    pub fn drop_session(&mut self, session: SessionId) -> Vec<Ino> {
        self.closed.retain(|(_, of), _| *of != session);
        self.closed_order.retain(|(_, of)| *of != session);
        let mut touched = Vec::new();
        self.inodes.retain(|ino, sessions| {
            if sessions.remove(&session).is_some() {
                touched.push(*ino);
            }
            !sessions.is_empty()
        });
        touched
    }

    /// Number of inodes that the session has open.
    pub fn count(&self, session: SessionId) -> u64 {
        self.inodes.values().filter(|s| s.contains_key(&session)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: opens are counted by session and mode, and after the last close no state is left.
    #[test]
    fn opens_are_counted() {
        let (a, b, ino) = (SessionId(1), SessionId(2), Ino(5));
        let (r, w) = (Access { read: true, write: false }, Access { read: true, write: true });
        let mut opens = Opens::default();
        opens.open(a, ino, r);
        opens.open(a, ino, w);
        opens.open(b, ino, r);
        assert!(opens.has_writer(ino));
        assert!(opens.close(a, ino, w));
        assert!(!opens.has_writer(ino));
        assert!(!opens.close_last(a, ino, 1), "somebody else has it open");
        assert_eq!(opens.drop_session(b), vec![ino]);
        assert!(!opens.close_last(a, ino, 2), "one open is left");
        assert!(opens.is_open(ino));
        assert!(opens.close(a, ino, r));
        assert!(!opens.is_open(ino) && !opens.close(a, ino, r));
        opens.open(a, ino, w);
        assert!(opens.close_last(a, ino, 1) && !opens.is_open(ino));
    }
}
