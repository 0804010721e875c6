//! Attributes of directories, while this mount is alone: what requests and their answers tell of them.
//!
//! Owns: entering changes before they are sent, and taking what answers show. Does not own: what is known, and when it
//! may be shown (`tables::coherence::directories`).

use crate::mount::Mount;
use crate::tables::coherence::tokens::OPEN_END_NS;
use amphi_dlm::TokenKey;
use amphi_types::{Attr, Ino};
use amphi_wire::{DirectoryAfter, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Changes of directories that began or ended so far.
#[inline]
pub(crate) fn events(mount: &Mount) -> u64 {
    mount.coherence.directories.events.load(SeqCst)
}

enum Reach {
    One(Ino),
    /// A directory that the answer names is removed from this one.
    Removal(Ino),
    /// Inodes that the request does not name, too.
    Wide,
}

/// A change under way. Dropped without an answer, it may still happen.
pub(crate) struct Change {
    mount: Arc<Mount>,
    rule: u64,
    reach: Reach,
    answered: bool,
}

/// To be called before a request is sent that changes what `keys` show.
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
        _ => {
            state.begin(ino);
            Reach::One(ino)
        }
    };
    drop(state);
    Some(Change { mount: mount.clone(), rule: mount.coherence.sharing.rule(), reach, answered: false })
}

impl Change {
    /// The answer has come, with the attributes of the directory if the server knew them, and what it says was removed.
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
            Reach::One(ino) => state.ended(ino, self.rule, after(ino)),
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

/// When a question was asked, for what its answer shows.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    rule: u64,
    events: u64,
}

/// To be called before a question is sent whose answer may show directories.
pub(crate) fn asking(mount: &Mount) -> Asked {
    let rule = mount.coherence.sharing.rule();
    Asked { rule, events: mount.coherence.directories.state.lock().events }
}

/// The answer to a question shows a directory.
pub(crate) fn shown(mount: &Mount, asked: Asked, attr: Attr) {
    let Asked { rule, events } = asked;
    if rule & 1 == 1 && mount.coherence.sharing.rule() == rule {
        mount.coherence.directories.change().shown(attr.ino, rule, events, attr);
    }
}

/// The attributes of a directory, if this mount is alone and knows them.
pub(crate) fn attr(mount: &Mount, ino: Ino) -> Option<Attr> {
    let rule = mount.coherence.sharing.rule();
    if rule & 1 == 0 {
        return None;
    }
    let state = mount.coherence.directories.state.lock();
    let attr = state.known(ino, rule)?;
    (state.unsure_until_ns == 0 || mount.clock.boot_ns() >= state.unsure_until_ns).then_some(attr)
}

/// Nothing that is known counts any more.
pub(crate) fn lose(mount: &Mount) {
    mount.coherence.directories.change().forget_all();
}
