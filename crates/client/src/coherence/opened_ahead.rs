//! Ends opens that were made ahead or are kept, when this mount changes something or a token is revoked.
//!
//! Owns: noting changes before they are sent, so that no open whose checks came before a change is handed out. Does not
//! own: the table (`tables::prefetch::small_files`), fetching (`prefetch::small_files`).

use crate::coherence::closes;
use crate::mount::Mount;
use crate::tables::prefetch::small_files::{Key, Spoilt};
use amphi_types::{Ino, Name, TargetId};
use amphi_wire::Request;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// How long nothing is fetched after the answer to a change was lost, because the server may still carry the change
/// out.
const OPEN_END_NS: u64 = 180_000_000_000;

/// A change by this mount. Whatever was prefetched, or is being prefetched, of the inodes and names that the change
/// concerns is not used any more.
pub(crate) struct Changing {
    mount: Arc<Mount>,
    keys: Vec<Key>,
    answered: bool,
}

/// It has to be called before the request is sent.
pub(crate) fn changing(mount: &Arc<Mount>, op: &Request) -> Option<Changing> {
    let name = |dir: &Ino, name: &Name| Key::Name(*dir, name.clone());
    let keys = match op {
        Request::Make { dir, name: n, .. } | Request::Unlink { dir, name: n } | Request::RmDir { dir, name: n } => {
            vec![name(dir, n)]
        }
        Request::Link { ino, dir, name: n } => vec![Key::Inode(*ino), name(dir, n)],
        Request::Rename { from, from_name, to, to_name, .. } => vec![name(from, from_name), name(to, to_name)],
        Request::Open { ino, access, .. } if access.write => vec![Key::Inode(*ino)],
        Request::SetAttr { ino, .. }
        | Request::SetXattr { ino, .. }
        | Request::RemoveXattr { ino, .. }
        | Request::SetLayout { ino, .. } => vec![Key::Inode(*ino)],
        _ => return None,
    };
    let (mut gone, mut spoilt) = (Vec::new(), Vec::new());
    {
        let mut state = mount.prefetch.small_files.state.lock();
        for key in &keys {
            spoilt.push(state.spoil(key));
            if let Key::Inode(ino) = key {
                // A program that may no longer search a directory must not get prefetched files of it.
                gone.extend(state.take_all(|_, r| r.dir == *ino));
            }
        }
        state.changing.extend(keys.iter().cloned());
        mount.prefetch.small_files.note_busy(&state);
    }
    drop((gone, spoilt));
    for key in &keys {
        // A file that loses its last name should be removed at once, so its close is not delayed.
        if let Key::Name(dir, _) = key {
            closes::hurry(mount, dir.target());
        }
    }
    Some(Changing { mount: mount.clone(), keys, answered: false })
}

impl Changing {
    /// Called when the answer has arrived.
    pub(crate) fn ends(&mut self) {
        self.answered = true;
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let mut state = self.mount.prefetch.small_files.state.lock();
        for key in &self.keys {
            if let Some(at) = state.changing.iter().position(|k| k == key) {
                state.changing.swap_remove(at);
            }
        }
        let (mut gone, mut kept) = (Vec::new(), Vec::new());
        if !self.answered {
            state.off_until_ns = self.mount.clock.boot_ns().saturating_add(OPEN_END_NS);
            state.under_way.values_mut().for_each(|u| u.void = true);
            gone = state.take_all(|_, _| true);
            kept = state.kept.lose(|_| true);
            self.mount.prefetch.small_files.note_busy(&state);
        }
        drop(state);
        drop((gone, kept));
    }
}

/// Attributes tokens of these inodes were revoked, because another mount changes the inodes.
pub(crate) fn revoked(mount: &Arc<Mount>, target: TargetId, inodes: impl Iterator<Item = Ino>) {
    if mount.prefetch.small_files.busy.load(Relaxed) == 0 {
        closes::hurry(mount, target);
        return;
    }
    let gone: Vec<Spoilt> = {
        let mut state = mount.prefetch.small_files.state.lock();
        let gone = inodes.map(|ino| state.spoil(&Key::Inode(ino))).collect();
        mount.prefetch.small_files.note_busy(&state);
        gone
    };
    drop(gone);
    closes::hurry(mount, target);
}

/// Called when the last name of a file is gone. A kept open would keep the file, so it is closed.
pub(crate) fn nameless(mount: &Arc<Mount>, ino: Ino) {
    if mount.prefetch.small_files.busy.load(Relaxed) == 0 {
        return;
    }
    let closing = {
        let mut state = mount.prefetch.small_files.state.lock();
        let closing = state.kept.spoil(ino);
        mount.prefetch.small_files.note_busy(&state);
        closing
    };
    if closing.is_some() {
        drop(closing);
        closes::hurry(mount, ino.target());
    }
}

/// Drops everything that was fetched ahead from these targets. `None` means all targets.
pub(crate) fn lose(mount: &Mount, targets: Option<&[TargetId]>) {
    let of = |target: TargetId| targets.is_none_or(|t| t.contains(&target));
    let gone = {
        let mut state = mount.prefetch.small_files.state.lock();
        state.under_way.values_mut().filter(|u| of(u.dir.target())).for_each(|u| u.void = true);
        let gone = (state.take_all(|ino, _| of(ino.target())), state.kept.lose(|ino| of(ino.target())));
        mount.prefetch.small_files.note_busy(&state);
        gone
    };
    drop(gone);
}
