//! Inodes that leave memory, and those that are held in it.
//!
//! Owns: which inodes tasks hold in memory, reading inodes back from the zone, and when inodes leave. Does not own:
//! which inodes may leave, and which go first (`amphi_meta`).
//!
//! A request holds the inodes that it names, from its begin to its end (`ops::execute`). A step that follows a name to
//! an inode holds that inode before it reads it, or reads it with `Target::step`. Work in the background holds what it
//! changes.
//!
//! As long as inodes take less than half of their memory and none is away, a holder holds all of them, which costs
//! nothing. None leaves before such holders have ended.
//!
//! Invariants: an inode that is held does not leave. Inodes leave only between two requests (`let_inodes_go`), so that
//! those which a step has read are there to its end. An inode does not change while it is away. So what a scan has read
//! of it is still right if none has left since the scan began.

use crate::planted::{self, Mistake};
use crate::tunables::{Tunable, Tunables};
use crate::zone_target::Target;
use amphi_env::Env;
use amphi_types::{Errno, Ino, Result};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// Fewest bytes of inodes that a target keeps in memory: those of a million files.
const INODES_BYTES_MIN: u64 = 16 << 20;

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
}

#[derive(Default)]
struct Holders {
    /// Number of holders of each inode.
    held: RefCell<HashMap<Ino, u32>>,
    /// Number of holders that hold all inodes.
    of_all: Cell<u64>,
}

/// Inodes that stay in memory until this is dropped.
#[must_use]
pub struct HeldInodes {
    holders: Rc<Holders>,
    /// `None`: all inodes.
    inos: Option<SmallVec<[Ino; 2]>>,
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

impl<E: Env> Target<E> {
    /// Holds inodes in memory, as far as they are this target's, and reads those that are away. Those that do not exist
    /// are held as well, as somebody may be about to make them.
    ///
    /// Errors: `Io` if an inode cannot be read.
    pub async fn hold(&self, inos: impl IntoIterator<Item = Ino>) -> Result<HeldInodes> {
        let holders = self.queues.inodes.holders.clone();
        if self.meta.borrow().holds_all_inodes() {
            holders.of_all.update(|count| count + 1);
            return Ok(HeldInodes { holders, inos: None });
        }
        let inos: SmallVec<[Ino; 2]> = inos.into_iter().filter(|ino| ino.target() == self.id).collect();
        {
            let mut held = holders.held.borrow_mut();
            inos.iter().for_each(|ino| *held.entry(*ino).or_default() += 1);
        }
        let held = HeldInodes { holders, inos: Some(inos) };
        for ino in held.inos.iter().flatten() {
            if self.meta.borrow().is_away(*ino) {
                self.bring_block_back(*ino).await;
            }
            self.bring_back(*ino).await?;
        }
        Ok(held)
    }

    /// Reads an inode that is away.
    async fn bring_back(&self, ino: Ino) -> Result<()> {
        while self.meta.borrow().is_away(ino) {
            let key = self.meta.borrow().inode_key(ino);
            self.load(&key).await?;
        }
        Ok(())
    }

    /// Reads an inode that is away, and those with it that were made at about the same time, which are mostly of the
    /// same directory. An error is left to `bring_back`.
    async fn bring_block_back(&self, ino: Ino) {
        let departures = self.queues.inodes.departures.get();
        let keys = self.meta.borrow().absent_beside(ino);
        let Ok(items) = self.zone.scan_keys(&keys).await else { return };
        if self.queues.inodes.departures.get() != departures && !planted::is(Mistake::OldInodeLoaded) {
            return;
        }
        for (key, value) in items {
            let _ = self.meta.borrow_mut().load_absent(&key, Some(&value));
        }
    }

    /// Reads an item that a step has found to be absent.
    ///
    /// Errors: `Io`.
    pub(super) async fn load(&self, key: &[u8]) -> Result<()> {
        let read = self.zone.get(key).await;
        // What was read is what the item is at this moment, as the store and the log change in one step.
        let loaded = match &read {
            Ok(value) => self.meta.borrow_mut().load_absent(key, value.as_deref()),
            Err(e) => Err(e.to_string()),
        };
        loaded.map_err(|text| {
            tracing::error!("{}: metadata cannot be read: {text}", self.id);
            Errno::Io
        })
    }

    /// A request has ended: inodes leave memory if there are too many.
    pub fn let_inodes_go(&self) {
        let Ok(mut meta) = self.meta.try_borrow_mut() else { return };
        let missed = meta.take_missed();
        debug_assert!(missed.is_none(), "inode {missed:?} was asked for, and is not in memory");
        if self.queues.inodes.holders.of_all.get() > 0 {
            return;
        }
        let held = self.queues.inodes.holders.held.borrow();
        if meta.let_inodes_go(|ino| held.contains_key(&ino) && !planted::is(Mistake::HeldInodeLeaves)) {
            self.queues.inodes.departures.update(|count| count + 1);
        }
    }
}
