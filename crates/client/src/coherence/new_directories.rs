//! Directories whose names this mount has made: how requests update the record of the names in them.
//!
//! Owns: noting names before requests are sent, and using the record. Does not own: the record, and why it may be
//! believed (`tables::coherence::new_directories`); in shared mode, the token under which it is believed (`tokens`).

use crate::coherence::{bare, directories, sharing, tokens};
use crate::mount::Mount;
use crate::tables::coherence::tokens::OPEN_END_NS;
use crate::telemetry::stats::Count;
use amphi_dlm::TokenKey;
use amphi_types::{Caps, Cred, Ino, Kind, Name, Result};
use amphi_wire::{Make, Reply, Request};
use std::sync::Arc;

/// A request under way that makes a directory, or the shards of one.
pub(crate) struct Making {
    mount: Arc<Mount>,
    generation: u64,
    rule: u64,
    made: Vec<Ino>,
}

/// It has to be called before a request is sent that may make names or directories. `alone`: whether the mount is in
/// sole mode and stays in it until the answer was used.
pub(crate) fn sending(mount: &Arc<Mount>, op: &Request, alone: bool) -> Option<Making> {
    let new = &mount.coherence.new_directories;
    let making = match op {
        Request::Make { make: Make::Dir, .. } if alone => Making::begin(mount),
        _ => None,
    };
    match op {
        Request::Make { dir, name, .. } | Request::Link { dir, name, .. } => new.name(*dir, name.token_hash()),
        Request::Rename { to, to_name, .. } => new.name(*to, to_name.token_hash()),
        _ => {}
    }
    making
}

impl Making {
    /// It has to be called before a request is sent that makes directories. `None` in shared mode.
    pub(crate) fn begin(mount: &Arc<Mount>) -> Option<Making> {
        let (mount, generation) = (mount.clone(), mount.coherence.new_directories.making());
        let rule = mount.coherence.sharing.rule();
        let making = Making { mount, generation, rule, made: Vec::new() };
        (rule & 1 == 1).then_some(making)
    }

    /// Called when the mount has given a directory these shards, which were empty.
    pub(crate) fn made(&mut self, shards: &[Ino]) {
        self.made.extend_from_slice(shards);
    }

    /// Called when the answer has arrived.
    pub(crate) fn ends(&mut self, result: &Result<Reply>) {
        if let Ok(Reply::Made { inode, created: true, .. }) = result
            && inode.attr.kind == Kind::Dir
        {
            self.made.push(inode.attr.ino);
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.mount.coherence.new_directories.made(self.generation, self.rule, &self.made);
    }
}

/// A request of shared mode under way that may make a name.
pub(crate) struct Naming {
    mount: Arc<Mount>,
    dir: Ino,
    answered: bool,
}

/// To be called before a request is sent that may make a name. `None` in sole mode, where `Making` counts.
pub(crate) fn naming(mount: &Arc<Mount>, op: &Request, alone: bool) -> Option<Naming> {
    let (dir, name) = match op {
        _ if alone => return None,
        Request::Make { dir, name, .. } | Request::Link { dir, name, .. } => (*dir, name),
        Request::Rename { to, to_name, .. } => (*to, to_name),
        _ => return None,
    };
    mount.coherence.new_directories.begins(dir, name.token_hash());
    Some(Naming { mount: mount.clone(), dir, answered: false })
}

impl Naming {
    /// Called when the answer has arrived and was used.
    pub(crate) fn ends(&mut self) {
        self.answered = true;
    }
}

impl Drop for Naming {
    fn drop(&mut self) {
        // Without an answer, the server may still carry the request out.
        let due = self.mount.clock.boot_ns().saturating_add(OPEN_END_NS);
        self.mount.coherence.new_directories.ended(self.dir, (!self.answered).then_some(due));
    }
}

/// The server has revoked tokens: other mounts are about to change names in these directories.
pub(crate) fn revoked(mount: &Mount, keys: &[TokenKey]) {
    for key in keys {
        if let TokenKey::Listing(dir) = key {
            mount.coherence.new_directories.removed(*dir);
        }
    }
}

/// Notes the answer to a request that may have removed a directory.
pub(crate) fn answered(mount: &Mount, result: &Result<Reply>) {
    if let Ok(Reply::Removed { last_name_of: Some(ino) }) = result {
        mount.coherence.new_directories.removed(*ino);
    }
}

/// Whether `dir`, which the caller may search, certainly has no entry `name`.
pub(crate) fn lacks(mount: &Arc<Mount>, cred: &Cred, dir: Ino, name: &Name) -> bool {
    let begun = sharing::begin(mount);
    let rule = mount.coherence.sharing.rule();
    if !mount.coherence.new_directories.lacks(dir, name.token_hash(), rule) {
        return false;
    }
    // In shared mode the token is looked at after the record, which a revocation removes.
    let is_known = match begun {
        Some(_) => may_search(mount, cred, dir),
        None => rule & 1 == 0 && tokens::knows_names(mount, cred, dir),
    };
    if !is_known {
        return false;
    }
    if rule & 1 == 0 {
        // A name that is looked up again is asked for: under its own token the front end may cache that it is absent.
        mount.coherence.new_directories.name(dir, name.token_hash());
    }
    mount.stats.count(Count::LookupAbsent);
    true
}

/// Whether the caller certainly may search the directory, in sole mode.
fn may_search(mount: &Mount, cred: &Cred, dir: Ino) -> bool {
    if cred.may(Caps::DAC_OVERRIDE) || cred.may(Caps::DAC_READ_SEARCH) {
        return true;
    }
    // An inode without extended attributes has no access control list.
    bare::is_bare(mount, dir)
        && directories::attr(mount, dir)
            .is_some_and(|attr| cred.has_access(attr.kind, attr.perm, (attr.uid, attr.gid), 1))
}

/// Forgets everything.
pub(crate) fn lose(mount: &Mount) {
    mount.coherence.new_directories.forget_all();
}
