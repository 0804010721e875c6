//! `Spreading`: files that are about to have data on further targets.
//!
//! Owns: which files' inode targets are being informed, and the bound on such requests. Does not own: the request
//! (`objects::write`).

use crate::inode::Signal;
use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeSet;

/// Files whose inode targets are being informed. These requests use the urgent lane, because write-back waits for them.
/// They may themselves wait for this client's answers to revocations, which use that lane too. So each file sends one
/// request only, and few files do at a time.
#[derive(Default)]
pub(crate) struct Spreading {
    under_way: Mutex<BTreeSet<Ino>>,
    pub(crate) signal: Signal,
}

/// Most such files at a time, far below the credits of the urgent lane.
const SPREADING_MAX: usize = 4;

pub(crate) struct SpreadTurn<'a>(&'a Spreading, Ino);

impl Spreading {
    pub(crate) fn begin(&self, ino: Ino) -> Option<SpreadTurn<'_>> {
        let mut under_way = self.under_way.lock();
        let free = under_way.len() < SPREADING_MAX && under_way.insert(ino);
        assert!(under_way.len() <= SPREADING_MAX, "{} files are being spread at a time", under_way.len());
        free.then(|| SpreadTurn(self, ino))
    }

    pub(crate) fn may_begin(&self, ino: Ino) -> bool {
        let under_way = self.under_way.lock();
        under_way.len() < SPREADING_MAX && !under_way.contains(&ino)
    }
}

impl Drop for SpreadTurn<'_> {
    fn drop(&mut self) {
        self.0.under_way.lock().remove(&self.1);
        self.0.signal.notify();
    }
}
