//! `Spreading`: files that are about to have data on further targets.
//!
//! Owns: which files' owners are being told, and the bound of these questions. Does not own: the question
//! (`objects::write`).

use crate::inode::Signal;
use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeSet;

/// Files that are being spread. Their requests have the urgent lane, as write-back waits for them, and may wait for
/// this client's own answers to revocations, which have it too: so each file asks once, and few at a time.
#[derive(Default)]
pub(crate) struct Spreading {
    under_way: Mutex<BTreeSet<Ino>>,
    pub(crate) signal: Signal,
}

/// Most files that are being spread at a time; far below the credits of the urgent lane.
const SPREADING_MAX: usize = 4;

pub(crate) struct SpreadTurn<'a>(&'a Spreading, Ino);

impl Spreading {
    pub(crate) fn begin(&self, ino: Ino) -> Option<SpreadTurn<'_>> {
        let mut under_way = self.under_way.lock();
        let free = under_way.len() < SPREADING_MAX && under_way.insert(ino);
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
