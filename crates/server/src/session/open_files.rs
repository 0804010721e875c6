//! `OpenFiles`: which inodes of a target are open, and for which sessions.
//!
//! Owns: open inodes and the records that belong to them: rights of sessions on stripes, directories that sessions
//! list, opens on behalf of other targets, and opens of sessions that have not reconnected yet. Does not own: the rules
//! of opening (`ops::open`).

use crate::session::listed::Listed;
use crate::session::opens::Opens;
use crate::session::rights::Rights;
use amphi_types::{Ino, SessionId, TargetId};
use amphi_wire::Access;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A slot of a session at a target that requested an open.
pub type OpenSlot = (SessionId, TargetId, u16);

/// Open files of one target.
#[derive(Default)]
pub struct OpenFiles {
    /// Open inodes.
    pub open: RefCell<Opens>,
    /// The rights of sessions on stripes on this target that belong to files of other targets.
    pub rights: RefCell<Rights>,
    /// Directories that sessions have been allowed to list.
    listed: RefCell<Listed>,
    /// The last open for each slot: number of the request, inode.
    opened_for: RefCell<BTreeMap<OpenSlot, (u64, Ino)>>,
    /// Opens for sessions of an earlier run that had not presented their open files yet.
    early: RefCell<Vec<(SessionId, Ino, Access)>>,
}

impl OpenFiles {
    /// Including what an earlier run has promised.
    pub fn of(opens: Opens) -> OpenFiles {
        OpenFiles { open: RefCell::new(opens), ..OpenFiles::default() }
    }

    /// The access for which a session has an inode open, or had it open lately.
    pub fn access(&self, session: SessionId, ino: Ino) -> Option<Access> {
        self.open.borrow().access(session, ino)
    }

    /// Called when a user of the session has been allowed to list a directory.
    pub fn note_listed(&self, session: SessionId, dir: Ino, uid: u32) {
        self.listed.borrow_mut().note(session, dir, uid);
    }

    /// Returns whether a user of the session was allowed to list a directory.
    pub fn was_listed(&self, session: SessionId, dir: Ino, uid: u32) -> bool {
        self.listed.borrow().has(session, dir, uid)
    }

    /// Returns whether the last open for a slot was that of request `seq`, and of this inode.
    pub fn was_opened_for(&self, slot: OpenSlot, seq: u64, ino: Ino) -> bool {
        self.opened_for.borrow().get(&slot) == Some(&(seq, ino))
    }

    /// An inode is open by request `seq` for a slot.
    pub fn note_opened_for(&self, slot: OpenSlot, seq: u64, ino: Ino) {
        self.opened_for.borrow_mut().insert(slot, (seq, ino));
    }

    /// Called when the open of this slot was cancelled.
    pub fn forget_opened_for(&self, slot: OpenSlot) {
        self.opened_for.borrow_mut().remove(&slot);
    }

    /// Records that an inode is open for a session that has not presented its open files yet.
    pub fn note_early(&self, session: SessionId, ino: Ino, access: Access) {
        self.early.borrow_mut().push((session, ino, access));
    }

    /// Files that are open for a session, although its client does not know it.
    pub fn early_of(&self, session: SessionId) -> Vec<(Ino, Access)> {
        let early = self.early.borrow();
        early.iter().filter(|(s, _, _)| *s == session).map(|(_, ino, access)| (*ino, *access)).collect()
    }

    /// A file that was opened for a session that had not reconnected is closed.
    pub fn forget_early(&self, session: SessionId, ino: Ino, access: Access) {
        let mut early = self.early.borrow_mut();
        if let Some(at) = early.iter().position(|o| *o == (session, ino, access)) {
            early.swap_remove(at);
        }
    }

    /// Called when a session has ended. Returns the inodes that it had open.
    pub fn end_session(&self, session: SessionId) -> Vec<Ino> {
        let touched = self.open.borrow_mut().drop_session(session);
        self.rights.borrow_mut().forget_session(session);
        self.listed.borrow_mut().end_session(session);
        self.opened_for.borrow_mut().retain(|(s, _, _), _| *s != session);
        self.early.borrow_mut().retain(|(s, _, _)| *s != session);
        touched
    }
}
