//! `Opens`: which sessions have which inodes of a target open.
//!
//! Owns: counts per inode and session, in memory, and what sessions have closed lately. Clients present them again
//! after a restart. Does not own: the consequences of the last close (`ops::open`).
//!
//! Invariant: what a session may do with a file (`access`) follows only from opens that this target has granted. A
//! close ends an open of exactly the access that it names. A close that names an access without such an open ends
//! nothing, and gives no right.
//!
//! An open that an earlier run promised, and whose answer may still be requested again, is kept under its slot
//! (`slots`) and counted here like any other.

use amphi_types::{Ino, SessionId};
use amphi_wire::Access;
use std::collections::{BTreeMap, VecDeque};

/// Opens of one inode by one session, by their access.
#[derive(Clone, Copy, Default)]
struct Count {
    /// Opens without access (`O_PATH`, and inodes that a mount only holds).
    bare: u32,
    reading: u32,
    writing: u32,
    both: u32,
}

impl Count {
    fn of(&mut self, access: Access) -> &mut u32 {
        match (access.read, access.write) {
            (false, false) => &mut self.bare,
            (true, false) => &mut self.reading,
            (false, true) => &mut self.writing,
            (true, true) => &mut self.both,
        }
    }

    fn all(&self) -> u64 {
        [self.bare, self.reading, self.writing, self.both].into_iter().map(u64::from).sum()
    }

    fn writes(&self) -> bool {
        self.writing > 0 || self.both > 0
    }

    fn access(&self) -> Access {
        Access { read: self.reading > 0 || self.both > 0, write: self.writes() }
    }
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
        let count = count.of(access);
        *count = count.saturating_add(1);
    }

    /// All open inodes.
    pub fn inodes(&self) -> impl Iterator<Item = Ino> {
        self.inodes.keys().copied()
    }

    /// Called when one open of the session ends. Returns false, and does nothing, if the session has no open of this
    /// access: its server was restarted, and the client did not present the open again, or the client names an access
    /// that it never had.
    pub fn close(&mut self, session: SessionId, ino: Ino, access: Access) -> bool {
        let Some(sessions) = self.inodes.get_mut(&ino) else { return false };
        let Some(count) = sessions.get_mut(&session) else { return false };
        let opens = count.of(access);
        let Some(fewer) = opens.checked_sub(1) else { return false };
        *opens = fewer;
        if count.all() == 0 {
            sessions.remove(&session);
        }
        if sessions.is_empty() {
            self.inodes.remove(&ino);
        }
        if access.read || access.write {
            self.note_closed(session, ino, access);
        }
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

    /// The access for which a session has an inode open, or had it open lately. An open without access gives no right
    /// to data, only that the inode exists.
    pub fn access(&self, session: SessionId, ino: Ino) -> Option<Access> {
        let open = self.inodes.get(&ino).and_then(|s| s.get(&session)).map(Count::access);
        let closed = self.closed.get(&(ino, session)).copied();
        let both = |a: Access, b: Access| Access { read: a.read || b.read, write: a.write || b.write };
        open.into_iter().chain(closed).reduce(both)
    }

    /// Ends the last opens of an inode: `opens` of this session. Returns false, and does nothing, if there are other
    /// opens.
    pub fn close_last(&mut self, session: SessionId, ino: Ino, opens: u64) -> bool {
        let last = match self.inodes.get(&ino) {
            Some(sessions) => sessions.len() == 1 && sessions.get(&session).is_some_and(|c| c.all() == opens),
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
        self.inodes.get(&ino).is_some_and(|s| s.values().any(Count::writes))
    }

    /// Returns whether the session has the inode open for writing.
    pub fn is_writer(&self, session: SessionId, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|s| s.get(&session).is_some_and(Count::writes))
    }

    /// Returns whether a session other than this has the inode open for writing.
    pub fn has_other_writer(&self, session: SessionId, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|s| s.iter().any(|(other, c)| *other != session && c.writes()))
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
    /// Goal: a session has the access of the opens that it has or lately had, whatever its closes claim. Method: closes
    /// that name another access than the open, in each combination.
    #[test]
    fn a_close_gives_no_access() {
        let (s, ino) = (SessionId(1), Ino(5));
        let all = [(false, false), (true, false), (false, true), (true, true)];
        let all = all.map(|(read, write)| Access { read, write });
        for had in all {
            for claimed in all {
                let mut opens = Opens::default();
                opens.open(s, ino, had);
                assert_eq!(opens.close(s, ino, claimed), had == claimed, "{had:?} {claimed:?}");
                let is_left = had != claimed || had != all[0];
                assert_eq!(opens.access(s, ino), is_left.then_some(had), "{had:?} {claimed:?}");
                assert_eq!(
                    (opens.is_open(ino), opens.is_writer(s, ino)),
                    match had == claimed {
                        true => (false, false),
                        false => (true, had.write),
                    }
                );
            }
        }
        let mut opens = Opens::default();
        opens.open(s, ino, all[1]);
        opens.open(s, ino, all[2]);
        assert_eq!(opens.access(s, ino), Some(all[3]), "opens add up");
        assert!(!opens.close(s, ino, all[3]), "an open for both is something else");
        assert_eq!(opens.count(s), 1);
    }
}
