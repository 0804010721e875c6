//! The record of attributes of directories, in sole mode: how requests and their answers update it.
//!
//! Owns: noting changes before they are sent, and using what answers show. Does not own: the record, and when it may be
//! used (`tables::coherence::directories`).

use crate::mount::Mount;
use crate::tables::coherence::tokens::OPEN_END_NS;
use amphi_dlm::TokenKey;
use amphi_types::{Attr, Ino};
use amphi_wire::{DirectoryAfter, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Number of changes of directories that have begun, and of those that have ended, added up.
#[inline]
pub(crate) fn events(mount: &Mount) -> u64 {
    mount.coherence.directories.events.load(SeqCst)
}

/// Whether a change whose answer was lost, in either mode, may still be carried out.
pub(crate) fn is_unsure(mount: &Mount) -> bool {
    mount.clock.boot_ns() < mount.coherence.directories.state.lock().unsure_until_ns
}

enum Reach {
    One(Ino),
    /// The removal of a directory from the directory of this value. Only the answer to the request names the removed
    /// directory.
    Removal(Ino),
    /// A change of inodes that the request does not name.
    Wide,
}

/// A change that is under way. If this value is dropped without an answer, the server may still carry the change out.
pub(crate) struct Change {
    mount: Arc<Mount>,
    rule: u64,
    reach: Reach,
    answered: bool,
}

/// It has to be called before a request is sent that changes what `keys` show.
pub(crate) fn changing(mount: &Arc<Mount>, op: &Request, keys: &[TokenKey]) -> Option<Change> {
    let attributes = |key: &TokenKey| if let TokenKey::Attributes(ino) = key { Some(*ino) } else { None };
    let ino = keys.iter().find_map(attributes)?;
    let mut state = mount.coherence.directories.change();
    let reach = match op {
        Request::Rename { .. } => {
            state.begin_wide();
            Reach::Wide
        }
        Request::RmDir { .. } => {
            state.begin_removal(ino);
            Reach::Removal(ino)
        }
        _ if mount.coherence.shards.has(ino) => {
            state.begin_wide();
            Reach::Wide
        }
        _ => {
            state.begin(ino);
            Reach::One(ino)
        }
    };
    drop(state);
    Some(Change { mount: mount.clone(), rule: mount.coherence.sharing.rule(), reach, answered: false })
}

impl Change {
    /// The answer has arrived, with the attributes of the directory if the server knew them, and the inode that was
    /// removed, if any.
    pub(crate) fn ends(&mut self, after: Option<&DirectoryAfter>, removed: Option<Ino>) {
        self.answered = true;
        let alone = self.rule & 1 == 1 && self.mount.coherence.sharing.rule() == self.rule;
        let after = |ino: Ino| {
            let fits = |after: &&DirectoryAfter| alone && after.inode.attr.ino == ino;
            after.filter(fits).map(|after| (after.place, after.inode.attr))
        };
        let mut state = self.mount.coherence.directories.change();
        match self.reach {
            Reach::Wide => state.ended_wide(),
            Reach::One(ino) => {
                state.ended(ino, self.rule, after(ino));
                if self.mount.coherence.shards.has(ino) {
                    // This mount has learned meanwhile that the directory has shards, which have changed with it.
                    state.forget_all();
                }
            }
            Reach::Removal(dir) => state.ended_removal(dir, self.rule, after(dir), removed),
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        if !self.answered {
            self.ends(None, None);
            let due = self.mount.clock.boot_ns().saturating_add(OPEN_END_NS);
            let mut state = self.mount.coherence.directories.change();
            state.unsure_until_ns = state.unsure_until_ns.max(due);
            state.forget_all();
        }
    }
}

/// The moment at which a request was sent whose answer may show directories.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    rule: u64,
    events: u64,
}

/// It has to be called before a request is sent whose answer may show directories.
pub(crate) fn asking(mount: &Mount) -> Asked {
    let rule = mount.coherence.sharing.rule();
    Asked { rule, events: mount.coherence.directories.state.lock().events }
}

/// Notes which attributes of a directory the answer to such a request shows. `sharded`: its names lie in shards.
pub(crate) fn shown(mount: &Mount, asked: Asked, attr: Attr, sharded: bool) {
    let Asked { rule, events } = asked;
    if rule & 1 == 1 && mount.coherence.sharing.rule() == rule {
        mount.coherence.directories.change().shown(rule, events, attr, sharded);
    }
}

/// The attributes of a directory whose names lie in itself, if they are known in sole mode.
pub(crate) fn attr(mount: &Mount, ino: Ino) -> Option<Attr> {
    known(mount, ino, false)
}

/// The own attributes of a directory whose names lie in shards, if they are known in sole mode.
pub(crate) fn own(mount: &Mount, ino: Ino) -> Option<Attr> {
    known(mount, ino, true)
}

fn known(mount: &Mount, ino: Ino, sharded: bool) -> Option<Attr> {
    let rule = mount.coherence.sharing.rule();
    if rule & 1 == 0 {
        return None;
    }
    let state = mount.coherence.directories.state.lock();
    let attr = state.known(ino, rule, sharded)?;
    (state.unsure_until_ns == 0 || mount.clock.boot_ns() >= state.unsure_until_ns).then_some(attr)
}

/// Forgets everything.
pub(crate) fn lose(mount: &Mount) {
    mount.coherence.directories.change().forget_all();
}
