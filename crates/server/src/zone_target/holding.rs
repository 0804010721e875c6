//! Holding inodes of a target in memory: reading those that are away, and letting others go.
//!
//! Owns: reading inodes back from the zone. Does not own: which inodes are held (`residency`), and which are away
//! (`amphi_meta`).
//!
//! Invariant: what a scan has read of an inode that is away is used only if no inode has left memory since the scan
//! began. What `Zone::get` has read is used in the step in which it returns.

use crate::planted::{self, Mistake};
use crate::zone_target::Target;
use crate::zone_target::residency::HeldInodes;
use amphi_env::Env;
use amphi_types::{Errno, Ino, Result};

impl<E: Env> Target<E> {
    /// Holds inodes in memory, as far as they are this target's, and reads those that are away. Those that do not exist
    /// are held as well, as somebody may be about to make them.
    ///
    /// Errors: `Io` if an inode cannot be read.
    pub async fn hold(&self, inos: impl IntoIterator<Item = Ino>) -> Result<HeldInodes> {
        if self.meta.borrow().holds_all_inodes() {
            return Ok(self.queues.inodes.hold_all());
        }
        let held = self.queues.inodes.hold(inos.into_iter().filter(|ino| ino.target() == self.id));
        for ino in held.inos() {
            if self.meta.borrow().is_away(ino) {
                self.bring_block_back(ino).await;
            }
            self.bring_back(ino).await?;
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
        let departures = self.queues.inodes.departures();
        let keys = self.meta.borrow().absent_beside(ino);
        let Ok(items) = self.zone.scan_keys(&keys).await else { return };
        if self.queues.inodes.departures() != departures && !planted::is(Mistake::OldInodeLoaded) {
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
        self.queues.inodes.let_go(&mut meta);
    }
}
