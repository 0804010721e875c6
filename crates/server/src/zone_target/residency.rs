//! Inodes that leave memory, and those that are held in it.
//!
//! Owns: which inodes tasks hold in memory, how much memory inodes may take, and when they leave. Does not own: reading
//! inodes back from the zone (`holding`), which inodes may leave, and which go first (`amphi_meta`).
//!
//! A request holds the inodes that it names, from its begin to its end (`ops::execute`). A step that follows a name to
//! an inode holds that inode before it reads it, or reads it with `Target::step`. Work in the background holds what it
//! changes, and lets inodes go when it has ended.
//!
//! As long as inodes take less than half of their memory and none is away, a holder holds all of them, which costs
//! nothing. None leaves before such holders have ended. So whoever may wait for long holds its inodes one by one
//! (`Target::hold_apart`), or none.
//!
//! Invariants: an inode that is held does not leave. Inodes leave only between two tasks (`let_inodes_go`), so that
//! those which a step has read are there to its end. An inode does not change while it is away. So what a scan has read
//! of it is still right if none has left since the scan began.

use crate::planted::{self, Mistake};
use crate::tunables::{Tunable, Tunables};
use amphi_meta::MetaStore;
use amphi_types::Ino;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Fewest bytes of inodes that a target keeps in memory: those of a million files.
const INODES_BYTES_MIN: u64 = 16 << 20;

/// For how many blocks of inodes that were read the store is called once to let inodes go. One call looks at 16 blocks,
/// and a block that was used leaves when it is looked at for the second time.
const ARRIVALS_A_CALL: usize = 4;

/// Most bytes of inodes that a target keeps in memory, if its configuration says `configured`.
pub fn bytes_max(configured: Option<usize>, tunables: &Tunables) -> usize {
    let tuned = || tunables.get(Tunable::ReadCacheBytes).max(INODES_BYTES_MIN);
    configured.unwrap_or_else(|| usize::try_from(tuned()).unwrap_or(usize::MAX))
}

/// The inodes of a target that tasks hold in memory.
#[derive(Default)]
pub struct Residency {
    holders: Rc<Holders>,
    /// `ServerConfig::inodes_bytes`.
    configured: Cell<Option<usize>>,
    /// How often inodes have left memory.
    departures: Cell<u64>,
    /// Blocks of inodes that were read since the last call of `let_go`.
    arrivals: Cell<usize>,
}

impl Residency {
    /// Notes what the configuration of the server says about the memory of inodes.
    pub fn configure(&self, inodes_bytes: Option<usize>) {
        self.configured.set(inodes_bytes);
    }

    /// Most bytes of inodes that stay in memory.
    pub fn bytes_max(&self, tunables: &Tunables) -> usize {
        bytes_max(self.configured.get(), tunables)
    }

    /// Holds all inodes. They have to be in memory.
    pub(super) fn hold_all(&self) -> HeldInodes {
        self.holders.of_all.update(|count| count + 1);
        HeldInodes { holders: self.holders.clone(), inos: None, unread: Vec::new() }
    }

    /// Holds inodes, of which none leaves from now on.
    pub(super) fn hold(&self, inos: SmallVec<[Ino; 2]>) -> HeldInodes {
        {
            let mut held = self.holders.held.borrow_mut();
            inos.iter().for_each(|ino| *held.entry(*ino).or_default() += 1);
        }
        HeldInodes { holders: self.holders.clone(), inos: Some(inos), unread: Vec::new() }
    }

    /// How often inodes have left memory.
    pub(super) fn departures(&self) -> u64 {
        self.departures.get()
    }

    /// Called when the inodes of a block have been read.
    pub(super) fn note_arrival(&self) {
        self.arrivals.update(|count| count + 1);
    }

    /// Lets inodes that nobody holds leave memory, if there are too many: more of them if many have been read.
    pub(super) fn let_go(&self, meta: &mut MetaStore) {
        if self.holders.of_all.get() > 0 {
            return;
        }
        let held = self.holders.held.borrow();
        for _ in 0..=self.arrivals.take() / ARRIVALS_A_CALL {
            if meta.let_inodes_go(|ino| held.contains_key(&ino) && !planted::is(Mistake::HeldInodeLeaves)) {
                self.departures.update(|count| count + 1);
            }
        }
    }
}

#[derive(Default)]
struct Holders {
    /// Number of holders of each inode.
    held: RefCell<BTreeMap<Ino, u32>>,
    /// Number of holders that hold all inodes.
    of_all: Cell<u64>,
}

/// Inodes that stay in memory until this is dropped.
#[must_use]
pub struct HeldInodes {
    holders: Rc<Holders>,
    /// `None`: all inodes.
    inos: Option<SmallVec<[Ino; 2]>>,
    /// Those among them that could not be read.
    pub(super) unread: Vec<Ino>,
}

impl HeldInodes {
    /// Those that are held one by one.
    pub(super) fn inos(&self) -> impl Iterator<Item = Ino> {
        self.inos.iter().flatten().copied()
    }

    /// Takes the list of those that could not be read. They do not leave once somebody else has read them.
    pub fn take_unread(&mut self) -> Vec<Ino> {
        std::mem::take(&mut self.unread)
    }
}

impl Drop for HeldInodes {
    fn drop(&mut self) {
        let Some(inos) = &self.inos else {
            self.holders.of_all.update(|count| count - 1);
            return;
        };
        let mut held = self.holders.held.borrow_mut();
        for ino in inos {
            match held.get_mut(ino) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(held.remove(ino)),
            }
        }
    }
}
