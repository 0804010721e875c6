//! The record of inodes without extended attributes, in sole mode: how requests and their answers update it.
//!
//! Owns: noting calls that set an attribute before they are sent, and using what answers show. Does not own: the record
//! of such inodes (`tables::coherence::bare`).

use crate::mount::Mount;
use crate::tables::coherence::tokens::OPEN_END_NS;
use amphi_types::Ino;
use amphi_wire::{InodeView, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The moment at which a request was sent whose answer may show inodes.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    rule: u64,
    events: u64,
}

/// It has to be called before a request is sent whose answer may show inodes.
pub(crate) fn asking(mount: &Mount) -> Asked {
    Asked { rule: mount.coherence.sharing.rule(), events: mount.coherence.bare.events.load(SeqCst) }
}

/// Notes which attributes of an inode the answer to a request shows.
pub(crate) fn shown(mount: &Mount, asked: Asked, view: &InodeView) {
    if view.xattrs || asked.rule & 1 == 0 || mount.coherence.sharing.rule() != asked.rule {
        return;
    }
    let mut state = mount.coherence.bare.state.lock();
    let is_sure = state.unsure_until_ns == 0 || mount.clock.boot_ns() >= state.unsure_until_ns;
    if is_sure && state.under_way == 0 && mount.coherence.bare.events.load(SeqCst) == asked.events {
        state.note(view.attr.ino, asked.rule);
    }
}

/// Returns whether an inode is known to have no extended attributes. This is known only in sole mode.
pub(crate) fn is_bare(mount: &Mount, ino: Ino) -> bool {
    let rule = mount.coherence.sharing.rule();
    rule & 1 == 1 && mount.coherence.bare.state.lock().rule_of(ino) == Some(rule)
}

/// A call under way that sets an attribute.
pub(crate) struct Setting {
    mount: Arc<Mount>,
    answered: bool,
}

/// It has to be called before the request is sent.
pub(crate) fn setting(mount: &Arc<Mount>, op: &Request) -> Option<Setting> {
    let Request::SetXattr { ino, .. } = op else { return None };
    let mut state = mount.coherence.bare.state.lock();
    state.under_way += 1;
    state.forget(*ino);
    mount.coherence.bare.events.fetch_add(1, SeqCst);
    Some(Setting { mount: mount.clone(), answered: false })
}

impl Setting {
    /// Called when the answer has arrived.
    pub(crate) fn ends(&mut self) {
        self.answered = true;
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let mut state = self.mount.coherence.bare.state.lock();
        state.under_way -= 1;
        self.mount.coherence.bare.events.fetch_add(1, SeqCst);
        if !self.answered {
            let due = self.mount.clock.boot_ns().saturating_add(OPEN_END_NS);
            state.unsure_until_ns = state.unsure_until_ns.max(due);
        }
    }
}

/// Forgets everything.
pub(crate) fn lose(mount: &Mount) {
    let mut state = mount.coherence.bare.state.lock();
    state.young.clear();
    state.old.clear();
    mount.coherence.bare.events.fetch_add(1, SeqCst);
}
