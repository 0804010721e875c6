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
use futures_util::stream::{self, StreamExt};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Most blocks of inodes that one task reads at the same time.
const READS_AT_ONCE: usize = 8;

impl<E: Env> Target<E> {
    /// Holds inodes in memory, as far as they are this target's, and reads those that are away. Those that do not exist
    /// are held as well, as somebody may be about to make them. For tasks that do not wait for long.
    ///
    /// Errors: `Io` if an inode cannot be read.
    pub async fn hold(&self, inos: impl IntoIterator<Item = Ino>) -> Result<HeldInodes> {
        whole(self.hold_readable(inos).await)
    }

    /// As `hold`, but nothing else, however few inodes there are: for tasks that may wait for long.
    ///
    /// Errors: `Io` if an inode cannot be read.
    pub async fn hold_apart(&self, inos: impl IntoIterator<Item = Ino>) -> Result<HeldInodes> {
        let inos = inos.into_iter().filter(|ino| ino.target() == self.id).collect();
        whole(self.bring_in(inos).await)
    }

    /// As `hold`, for tasks that go on without inodes that cannot be read (`HeldInodes::take_unread`). These stay away,
    /// unless somebody else reads them.
    pub async fn hold_readable(&self, inos: impl IntoIterator<Item = Ino>) -> HeldInodes {
        let mut inos = inos.into_iter().filter(|ino| ino.target() == self.id).peekable();
        if inos.peek().is_some() && self.meta.borrow().holds_all_inodes() {
            return self.queues.inodes.hold_all();
        }
        self.bring_in(inos.collect()).await
    }

    /// Holds inodes one by one, and reads those that are away.
    async fn bring_in(&self, inos: SmallVec<[Ino; 2]>) -> HeldInodes {
        let mut held = self.queues.inodes.hold(inos);
        let blocks = {
            let meta = self.meta.borrow();
            let mut blocks: BTreeMap<u64, Vec<Ino>> = BTreeMap::new();
            for ino in held.inos().filter(|ino| meta.is_away(*ino)) {
                blocks.entry(meta.inode_block(ino)).or_default().push(ino);
            }
            blocks
        };
        if !blocks.is_empty() {
            let reads = stream::iter(blocks.into_values()).map(|inos| self.bring_back(inos));
            held.unread = Box::pin(reads.buffer_unordered(READS_AT_ONCE).concat()).await;
        }
        held
    }

    /// Reads inodes of one block that are away. Returns those that cannot be read.
    async fn bring_back(&self, inos: Vec<Ino>) -> Vec<Ino> {
        let mut unread = Vec::new();
        self.bring_block_back(&inos).await;
        for ino in inos {
            while self.meta.borrow().is_away(ino) {
                let key = self.meta.borrow().inode_key(ino);
                if self.load(&key).await.is_err() && self.meta.borrow().is_away(ino) {
                    unread.push(ino);
                    break;
                }
            }
        }
        unread
    }

    /// Reads the inodes of a block that are away: these, and those with them that were made at about the same time,
    /// which are mostly of the same directory. An error is left to `bring_back`.
    async fn bring_block_back(&self, inos: &[Ino]) {
        let Some(ino) = inos.iter().find(|ino| self.meta.borrow().is_away(**ino)) else { return };
        self.queues.inodes.note_arrival();
        let departures = self.queues.inodes.departures();
        let keys = self.meta.borrow().absent_beside(*ino);
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

    /// A request or a task in the background has ended: inodes leave memory if there are too many.
    pub fn let_inodes_go(&self) {
        let Ok(mut meta) = self.meta.try_borrow_mut() else { return };
        let missed = meta.take_missed();
        debug_assert!(missed.is_none(), "inode {missed:?} was asked for, and is not in memory");
        self.queues.inodes.let_go(&mut meta);
    }
}

/// What is held, if all of it could be read.
fn whole(held: HeldInodes) -> Result<HeldInodes> {
    if held.unread.is_empty() { Ok(held) } else { Err(Errno::Io) }
}
