//! `LeftPages`: which bytes have changed below pages that a mount could not drop in time.
//!
//! A mount returns a lock when another mount requests it, although its kernel may still have changed pages of the file
//! and be unable to write them back. The kernel does not write back while a truncate is unanswered, and a program that
//! stores into a mapping without a pause makes more dirty pages all the time. Such a page is written back later as a
//! whole, with neighbouring bytes as they were when it was read. The target therefore notes which bytes other mounts
//! change after the lock was returned, and leaves these bytes out when such a page is written back.
//!
//! Owns: these notes, for each file and session. Does not own: a mount's record of its kernel's pages (client,
//! `ops/pages`). Invariants: a byte is noted before its change becomes visible, and the note lasts until just before a
//! page that contains the byte is read anew. A note that may be incomplete (too many ranges, a restart of the server)
//! is given up. A write-back that names it is refused, and the mount reports that to its programs. Bounds: `FILES_MAX`
//! notes for a session, `RANGES_MAX` ranges for each.

use amphi_types::{ByteRange, Errno, Ino, RangeSet, Result, SessionId};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Most files of a session with such notes. If there are more, the session has to wait for its kernel.
const FILES_MAX: usize = 4096;
/// Most separate ranges noted of a file, 16 bytes each.
const RANGES_MAX: usize = 1 << 14;

/// Pages of one session that lock no longer cover.
struct Left {
    token: u64,
    changed: RangeSet,
    /// More ranges have changed than the note can hold.
    overflown: bool,
}

/// The notes of a target.
pub struct LeftPages {
    last_token: u64,
    left: BTreeMap<(Ino, SessionId), Left>,
}

impl LeftPages {
    /// No notes. `starts`: how often the target was opened, so that no number of a note is used twice.
    pub fn new(starts: u64) -> LeftPages {
        LeftPages { last_token: starts << 40, left: BTreeMap::new() }
    }

    /// Begins to note which bytes other mounts change in a file. Returns the number of the note.
    ///
    /// Errors: `NoMem` for a session that has too many.
    pub fn begin(&mut self, ino: Ino, session: SessionId) -> Result<u64> {
        let known = self.left.contains_key(&(ino, session));
        if !known && self.left.keys().filter(|(_, of)| *of == session).count() >= FILES_MAX {
            return Err(Errno::NoMem);
        }
        self.last_token += 1;
        let token = self.last_token;
        let before = self.left.insert((ino, session), Left { token, changed: RangeSet::new(), overflown: false });
        assert!(before.is_none_or(|left| left.token < token), "{ino}: note {token} is not newer than the one before");
        Ok(token)
    }

    /// No page of the session is older than its locks any more.
    pub fn end(&mut self, ino: Ino, session: SessionId, token: u64) {
        if self.left.get(&(ino, session)).is_some_and(|left| left.token == token) {
            self.left.remove(&(ino, session));
        }
    }

    /// Called when the session has ended.
    pub fn drop_session(&mut self, session: SessionId) {
        self.left.retain(|(_, of), _| *of != session);
    }

    /// Bytes are being changed, or have been, by a session.
    pub fn changed(&mut self, ino: Ino, by: SessionId, range: ByteRange) {
        if self.left.is_empty() {
            return;
        }
        let of_file = (ino, SessionId(0))..=(ino, SessionId(u64::MAX));
        for (_, left) in self.left.range_mut(of_file).filter(|((_, session), _)| *session != by) {
            left.changed.insert(range);
            if left.changed.iter().count() > RANGES_MAX {
                left.changed.clear();
                left.overflown = true;
            }
        }
    }

    /// Called when the session is about to read pages anew.
    pub fn renewed(&mut self, ino: Ino, session: SessionId, token: u64, pages: ByteRange) {
        if let Some(left) = self.left.get_mut(&(ino, session)).filter(|left| left.token == token) {
            left.changed.remove(pages);
        }
    }

    /// The parts of a page under write-back that no other mount has changed since it was read.
    ///
    /// Errors: `Stale` if that is not known.
    pub fn unchanged(
        &self,
        ino: Ino,
        session: SessionId,
        token: u64,
        range: ByteRange,
    ) -> Result<SmallVec<[ByteRange; 2]>> {
        let left = self.left.get(&(ino, session)).filter(|left| left.token == token && !left.overflown);
        left.map(|left| left.changed.gaps(range)).ok_or(Errno::Stale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);
    const MINE: SessionId = SessionId(1);
    const OTHER: SessionId = SessionId(2);

    fn r(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    /// Goal: bytes that other mounts change are left out, and bytes that the session itself changes are not. A page
    /// that was read again is written as a whole. Method: both mounts change bytes of one page, then the page is read.
    #[test]
    fn what_others_changed_is_left_out() {
        let mut pages = LeftPages::new(3);
        pages.changed(INO, OTHER, r(0, 4096));
        let token = pages.begin(INO, MINE).expect("room");
        assert_eq!(pages.unchanged(INO, MINE, token, r(0, 4096)).unwrap().to_vec(), [r(0, 4096)], "it came before");
        pages.changed(INO, OTHER, r(8, 16));
        pages.changed(INO, MINE, r(100, 200));
        pages.changed(Ino(8), OTHER, r(0, 4096));
        assert_eq!(pages.unchanged(INO, MINE, token, r(0, 4096)).unwrap().to_vec(), [r(0, 8), r(16, 4096)]);
        pages.renewed(INO, MINE, token, r(0, 4096));
        assert_eq!(pages.unchanged(INO, MINE, token, r(0, 4096)).unwrap().to_vec(), [r(0, 4096)]);
    }

    /// Goal: nothing is written under a note that has ended, was begun anew, is incomplete, or belongs to a session
    /// that has ended. Method: each of these cases.
    #[test]
    fn a_note_that_is_not_complete_is_none() {
        let mut pages = LeftPages::new(3);
        let unknown = |pages: &LeftPages, token| pages.unchanged(INO, MINE, token, r(0, 8)).is_err();
        let first = pages.begin(INO, MINE).expect("room");
        let second = pages.begin(INO, MINE).expect("room");
        assert!(unknown(&pages, first) && !unknown(&pages, second));
        pages.end(INO, MINE, first);
        assert!(!unknown(&pages, second), "the end of an earlier one");
        pages.end(INO, MINE, second);
        assert!(unknown(&pages, second));
        let third = pages.begin(INO, MINE).expect("room");
        pages.drop_session(MINE);
        assert!(unknown(&pages, third));
        let fourth = pages.begin(INO, MINE).expect("room");
        for n in 0..=RANGES_MAX as u64 {
            pages.changed(INO, OTHER, r(n * 2, n * 2 + 1));
        }
        assert!(unknown(&pages, fourth));
        assert!(LeftPages::new(4).begin(INO, MINE).expect("room") > fourth, "a restart gives no name again");
    }
}
