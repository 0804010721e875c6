//! Inodes without extended attributes, while this mount is alone.
//!
//! Programs ask for attributes of every file that they show or copy (`ls -l` for `security.selinux`), and most have
//! none. In company an inode's token says so (`tokens`); alone nobody but this mount sets attributes, so what an answer
//! has shown stays true until it does.
//!
//! Owns: which inodes were shown to have none, and which calls that set one are under way. Does not own: requests, the
//! rule (`sharing`).
//!
//! Invariants: noted is only what was asked for and answered under one alone rule, if no call that sets an attribute
//! began or ended meanwhile. Such a call is forgotten for before it is sent; if its answer is lost, it may still
//! happen, and nothing is noted for as long (`OPEN_END_NS`). Bounds: `INODES_MAX` inodes of each of two generations,
//! about 30 bytes each.

use crate::coherence::tokens::OPEN_END_NS;
use crate::mount::Mount;
use amphi_types::Ino;
use amphi_wire::{InodeView, Request};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Inodes of a generation.
const INODES_MAX: usize = 32_768;

#[derive(Default)]
struct State {
    /// The rule under which an inode was shown.
    young: BTreeMap<Ino, u64>,
    old: BTreeMap<Ino, u64>,
    under_way: usize,
    /// Until when a call may still happen whose answer was lost, boot ns.
    unsure_until_ns: u64,
}

impl State {
    fn note(&mut self, ino: Ino, rule: u64) {
        if self.young.len() >= INODES_MAX && !self.young.contains_key(&ino) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(ino, rule);
    }

    fn forget(&mut self, ino: Ino) {
        self.young.remove(&ino);
        self.old.remove(&ino);
    }

    fn rule_of(&self, ino: Ino) -> Option<u64> {
        self.young.get(&ino).or_else(|| self.old.get(&ino)).copied()
    }
}

/// What is known.
#[derive(Default)]
pub(crate) struct Bare {
    state: Mutex<State>,
    /// Calls that set an attribute which began or ended.
    events: AtomicU64,
}

/// When a question was asked whose answer may show inodes.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    rule: u64,
    events: u64,
}

/// To be called before a question is sent.
pub(crate) fn asking(mount: &Mount) -> Asked {
    Asked { rule: mount.coherence.sharing.rule(), events: mount.coherence.bare.events.load(SeqCst) }
}

/// The answer to a question shows an inode.
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

/// Whether an inode has no extended attributes, as far as this mount, being alone, knows.
pub(crate) fn is_bare(mount: &Mount, ino: Ino) -> bool {
    let rule = mount.coherence.sharing.rule();
    rule & 1 == 1 && mount.coherence.bare.state.lock().rule_of(ino) == Some(rule)
}

/// A call under way that sets an attribute.
pub(crate) struct Setting {
    mount: Arc<Mount>,
    answered: bool,
}

/// To be called before a request is sent.
pub(crate) fn setting(mount: &Arc<Mount>, op: &Request) -> Option<Setting> {
    let Request::SetXattr { ino, .. } = op else { return None };
    let mut state = mount.coherence.bare.state.lock();
    state.under_way += 1;
    state.forget(*ino);
    mount.coherence.bare.events.fetch_add(1, SeqCst);
    Some(Setting { mount: mount.clone(), answered: false })
}

impl Setting {
    /// The answer has come.
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

/// Nothing that is known counts any more.
pub(crate) fn lose(mount: &Mount) {
    let mut state = mount.coherence.bare.state.lock();
    state.young.clear();
    state.old.clear();
    mount.coherence.bare.events.fetch_add(1, SeqCst);
}
