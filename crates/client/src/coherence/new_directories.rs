//! Directories that this mount has made, in sole mode: how requests update the record of the names in them.
//!
//! Owns: noting names before requests are sent, and using the record. Does not own: the record, and why it may be
//! believed (`tables::coherence::new_directories`).

use crate::coherence::{bare, directories, sharing};
use crate::mount::Mount;
use crate::telemetry::stats::Count;
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

/// Notes the answer to a request that may have removed a directory.
pub(crate) fn answered(mount: &Mount, result: &Result<Reply>) {
    if let Ok(Reply::Removed { last_name_of: Some(ino) }) = result {
        mount.coherence.new_directories.removed(*ino);
    }
}

/// Returns whether `dir`, which the caller may search, certainly has no entry `name`. This is known only in sole mode.
pub(crate) fn lacks(mount: &Arc<Mount>, cred: &Cred, dir: Ino, name: &Name) -> bool {
    let Some(_begun) = sharing::begin(mount) else { return false };
    let rule = mount.coherence.sharing.rule();
    if !mount.coherence.new_directories.lacks(dir, name.token_hash(), rule) || !may_search(mount, cred, dir) {
        return false;
    }
    mount.stats.count(Count::LookupAbsent);
    true
}

/// Returns whether the caller certainly may search the directory.
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
