//! `Target`: one slice of storage as its worker sees it: stores, zone, locks, sessions, slots.
//!
//! Owns: the parts of one target's state, and the small steps of every operation: append, wait, look up rights. Each
//! part is a struct of its own, with the functions that use only this part. Does not own: the operations (`ops`),
//! intents over several targets (`txs`), routing (`worker`).
//!
//! Invariants: the stores are changed and the record is appended in one step without an await in between, so the log
//! has the order of the changes. Freed blocks are released when the record that freed them is stable. No borrow of a
//! store lives across an await.

pub(crate) mod accepted;
pub(crate) mod checksums;
pub(crate) mod free_space_below;
mod freeing;
pub(crate) mod gate;
mod grant_calls;
mod holding;
pub(crate) mod known_sessions;
pub(crate) mod memory_watch;
pub(crate) mod old_blocks;
pub(crate) mod place;
pub(crate) mod predicted;
pub(crate) mod queues;
pub(crate) mod quota;
pub(crate) mod recover;
mod release;
pub(crate) mod residency;
pub(crate) mod shared_blocks;
pub(crate) mod span_gate;
pub(crate) mod storage;
mod trim;
mod tuning;
pub(crate) mod tx_table;
pub(crate) mod unstable;
pub(crate) mod verifier;
pub(crate) mod write_back;
pub(crate) mod writers;

use crate::coherence::Coherence;
use crate::coherence::tokens::{TOKEN_LIFE, TOKEN_MARGIN};
use crate::counters::{Counters, add};
use crate::records::HomeRecord;
use crate::session::in_flight::InFlight;
use crate::session::open_files::OpenFiles;
use crate::session::reclaim::Reclaim;
use crate::zone_target::freeing::Freeing;
use crate::zone_target::known_sessions::KnownSessions;
use crate::zone_target::place::ClusterPlace;
pub use crate::zone_target::queues::NameKey;
use crate::zone_target::queues::TargetQueues;
use crate::zone_target::quota::TargetQuota;
use crate::zone_target::storage::DataStorage;
use crate::zone_target::tx_table::TxTable;
use crate::zone_target::unstable::Unstable;
use amphi_data::{CHECKSUM_ITEM_BYTES, DataStore};
use amphi_dlm::LockCounts;
use amphi_env::Env;
use amphi_meta::{Gathered, MetaStore, Outcome};
use amphi_types::item::Txn;
use amphi_types::limits::BLOCK;
use amphi_types::{Errno, Ino, Kind, Name, Result, SessionId, TargetId, TokenKey};
use amphi_wire::keys::KeyRegistry;
use amphi_wire::{ClusterMap, InodeView, TargetSpace, TokenGrant};
use amphi_zone::{Lsn, Order, Zone, ZoneStats};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Most extents that one record of a truncate or punch removes.
pub const EXTENTS_A_RECORD: usize = 4096;

/// Bytes of a record for the deletion of one extent and for a new one.
pub const EXTENT_BYTES: u64 = 88;
/// Bytes of a record for one block if the block is an extent of its own with checksums of its own.
pub const BLOCK_BYTES: u64 = EXTENT_BYTES + CHECKSUM_ITEM_BYTES;
/// Bytes of a record for everything except extents: inode, object, answer, and two blocks of logged bytes that are cut
/// in two.
const RECORD_SPARE_BYTES: u64 = 4096 + 2 * (BLOCK + 64);
/// The part of a record that is reserved for the deletion of delayed extents, as its inverse.
pub const DELAYED_SHARE: u64 = 4;

/// The counters of a target.
pub struct TargetCounts {
    /// Counters of the target's zone when they were last reset.
    pub zone: RefCell<ZoneStats>,
    /// Counters of the target's lock server when they were last reset.
    pub locks: Cell<LockCounts>,
    /// Counters of the target's worker.
    pub worker: Rc<Counters>,
    /// Bytes that were answered and are not stable.
    pub unstable: Unstable,
    /// The usage of accounts on the target, and their shares.
    pub quota: TargetQuota,
}

/// The state of one target.
pub struct Target<E: Env> {
    /// The number of the target.
    pub id: TargetId,
    /// The log, and the memory for kept records.
    pub zone: Zone<E>,
    /// The disk, for file data.
    pub storage: DataStorage<E>,
    /// The name space of the target.
    pub meta: RefCell<MetaStore>,
    /// The objects of the target.
    pub data: RefCell<DataStore>,
    /// The rights of clients to cache from the target.
    pub coherence: Coherence,
    /// Which tasks wait for each other, and which objects they work on.
    pub queues: TargetQueues,
    /// Sessions that the target knows.
    pub sessions: KnownSessions,
    /// Sessions of an earlier run that have not presented their locks and opens.
    pub reclaim: Reclaim,
    /// Which inodes are open, and for which sessions.
    pub files: OpenFiles,
    /// Operations over several targets that are under way on this target.
    pub txs: RefCell<TxTable>,
    freeing: Freeing,
    /// The place of the target in the cluster.
    pub place: ClusterPlace,
    /// The counters of the target.
    pub counts: TargetCounts,
    closed: Cell<bool>,
}

impl<E: Env> Target<E> {
    /// Logs the new count of starts, the server that it belongs to, and the first items of a new target. It is stable
    /// when this returns, because numbers of operations and locks build on it.
    pub async fn begin(&self, env: &E, home: HomeRecord) -> Result<()> {
        let lsn = self.append(self.place.begin(home), Order::Plain);
        self.zone.stable(lsn).await?;
        self.land_left(env).await
    }

    /// Keeps a newer cluster map.
    pub async fn put_map(&self, map: ClusterMap) -> Result<()> {
        if self.place.map.borrow().as_ref() == Some(&map) {
            return Ok(());
        }
        self.zone.reserve(0).await?;
        let mut txn = Txn::default();
        self.place.keep_map(map, &mut txn);
        let lsn = self.append(txn, Order::Plain);
        self.zone.stable(lsn).await
    }

    /// Returns whether the registry that is kept here binds a key to the tree of this project.
    pub fn is_bound(&self, project: u32) -> bool {
        self.place
            .keys
            .borrow()
            .iter()
            .flat_map(|r| &r.keys)
            .any(|e| e.subtree.as_ref().is_some_and(|s| s.project == project))
    }

    /// Keeps the registry of keys: it is stable when this returns.
    ///
    /// Errors: `NoSpace` if the registry is too large for a record of this log; otherwise as for a map.
    pub async fn put_keys(&self, keys: KeyRegistry) -> Result<()> {
        if self.place.keys.borrow().as_ref() == Some(&keys) {
            return Ok(());
        }
        let bytes = crate::records::encode(&keys).len() as u64 + RECORD_SPARE_BYTES;
        if bytes > self.zone.record_bytes_max() {
            return Err(Errno::NoSpace);
        }
        self.zone.reserve(0).await?;
        let mut txn = Txn::default();
        self.place.keep_keys(keys, &mut txn);
        let lsn = self.append(txn, Order::Plain);
        self.zone.stable(lsn).await
    }

    /// Appends `txn`; if it is empty, returns the last record. After `close` nothing is appended. Changes that
    /// background work still makes in memory are made again after the next start.
    pub fn append(&self, mut txn: Txn, order: Order) -> Lsn {
        if txn.is_empty() || self.closed.get() {
            return self.zone.appended_lsn();
        }
        add(&self.counts.worker.commits, 1);
        // Code that is changing the store at this moment appends as well.
        if let Ok(mut data) = self.data.try_borrow_mut() {
            data.delete_free_checksums(&mut txn);
        }
        let lsn = self.zone.append(txn, order);
        assert_eq!(lsn, self.zone.appended_lsn(), "{}: a record is not the last one of its step", self.id);
        if let Ok(mut data) = self.data.try_borrow_mut() {
            self.storage.write_back.bury(lsn, data.delayed.take_dead());
        }
        self.counts.unstable.appended(lsn, self.zone.stable_lsn());
        lsn
    }

    /// The most blocks that one record can name, if each were an extent of its own, including the blocks that it
    /// replaces.
    pub fn record_blocks_max(&self) -> u64 {
        (self.zone.record_bytes_max() / DELAYED_SHARE * (DELAYED_SHARE - 1))
            .saturating_sub(RECORD_SPARE_BYTES)
            .max(BLOCK_BYTES)
            / BLOCK_BYTES
    }

    /// Appends `txn` and waits until it is written.
    pub async fn log(&self, txn: Txn, order: Order) -> Result<()> {
        let lsn = self.append(txn, order);
        self.zone.kept(lsn).await
    }

    /// Returns whether the session is alive on this target.
    pub fn has_session(&self, session: SessionId) -> bool {
        self.sessions.has(session)
    }

    /// Registers a change that another target executes here for a session, as `RequestCx::land` does. Returns `None` if
    /// everything that this begin of the session held is released. A session that is only stopped may still finish
    /// operations that it has begun on other targets.
    pub fn land_for(&self, (session, begin): (SessionId, u64)) -> Option<InFlight> {
        (self.sessions.begin_of_any(session) == Some(begin)).then(|| self.queues.in_flight.start(session))
    }

    /// Returns whether nothing is appended any more.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Forgets, when their tokens have ended, that sessions were cut off.
    pub fn forget_cut_off<T: Env>(self: &Rc<Self>, env: &T, sessions: Vec<SessionId>) {
        if sessions.is_empty() {
            return;
        }
        let (weak, sleep) = (Rc::downgrade(self), env.sleep(TOKEN_LIFE + TOKEN_MARGIN));
        env.spawn(async move {
            sleep.await;
            let Some(target) = weak.upgrade() else { return };
            let mut txn = Txn::default();
            for session in sessions {
                target.sessions.forget_cut_off(session, &mut txn);
            }
            target.append(txn, Order::Plain);
        });
    }

    /// Waits until every session of an earlier run has presented its locks and opens, or has ended.
    pub async fn recovered(&self) {
        self.reclaim.over().await;
    }

    /// Returns whether a session other than this one has the file open for writing, or may have it open because not all
    /// have reconnected yet.
    pub fn written_elsewhere(&self, session: SessionId, ino: Ino) -> bool {
        !self.reclaim.is_over() || self.files.open.borrow().has_other_writer(session, ino)
    }

    /// A token for the attributes that a reply contains, in the step that reads them. The attributes of a spread file
    /// are gathered over targets, and get no token.
    pub fn grant_attributes(&self, now_ns: u64, session: SessionId, view: &InodeView) -> Option<TokenGrant> {
        if !self.coherence.tokens.on() || view.spread || !self.has_session(session) {
            return None;
        }
        let ino = view.attr.ino;
        self.coherence.tokens.grant(now_ns, session, TokenKey::Attributes(ino), self.written_elsewhere(session, ino))
    }

    /// A token for a name that a reply shows, present or absent, in the step that reads it.
    pub fn grant_name(&self, now_ns: u64, session: SessionId, dir: Ino, name: &Name) -> Option<TokenGrant> {
        if !self.coherence.tokens.on() || !self.has_session(session) {
            return None;
        }
        self.coherence.tokens.grant(now_ns, session, TokenKey::Name(dir, name.token_hash()), false)
    }

    /// A token for the names of a directory, in the step in which the session changes them. `is_first`: the session has
    /// just made the only name, so it knows all of them. Otherwise it has to hold the token already.
    pub fn grant_listing(&self, now_ns: u64, session: SessionId, dir: Ino, is_first: bool) -> Option<TokenGrant> {
        let (tokens, key) = (&self.coherence.tokens, TokenKey::Listing(dir));
        match is_first && self.has_session(session) {
            true => tokens.grant(now_ns, session, key, false),
            false => tokens.renew(now_ns, session, key),
        }
    }

    /// Byte address on the disk of a data block.
    pub fn block_address(&self, physical: u64) -> u64 {
        self.storage.disk.address(physical)
    }

    /// Logs an error of the disk once, and returns the error for the caller.
    pub fn disk_error(&self, what: &str, e: &std::io::Error) -> Errno {
        if matches!(e.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded) {
            self.storage.below.is_full(self);
            return Errno::NoSpace;
        }
        if self.storage.verifier.is_first_failure() {
            tracing::error!("{}: {what} of file data failed: {e}; further failures are not logged", self.id);
        }
        Errno::Io
    }

    /// Takes a step that only reads metadata. If the step needs an item that is not in memory, the item is read from
    /// the zone, and the step is taken again.
    ///
    /// Errors: those of the step, `Io` if an item cannot be read.
    pub async fn step<T>(&self, step: impl Fn(&MetaStore) -> Result<Outcome<T>>) -> Result<T> {
        loop {
            let outcome = self.meta.borrow().attempt(&step);
            let key = match outcome {
                Outcome::Done(done) => match done? {
                    Outcome::Done(done) => return Ok(done),
                    Outcome::Absent(key) => key,
                },
                Outcome::Absent(key) => key,
            };
            self.load(&key).await?;
        }
    }

    /// Returns whether the inode is a regular file of this target.
    ///
    /// Errors: `Stale` if there is none, `Inval` if it is something else.
    pub fn check_file(&self, ino: Ino) -> Result<()> {
        match self.meta.borrow().inode(ino)?.kind {
            Kind::File => Ok(()),
            _ => Err(Errno::Inval),
        }
    }

    /// Blocks that can still be written. `now`: with the present free space of the file system below.
    pub fn free_blocks(&self, now: bool) -> u64 {
        let free = self.data.borrow().space().1;
        self.storage.below.of(self, free, now)
    }

    /// Space of the target.
    pub fn space(&self) -> TargetSpace {
        let blocks = self.data.borrow().space().0;
        let free = self.free_blocks(true);
        let inodes = self.meta.borrow().inode_count();
        let stats = self.zone.stats();
        // An inode and its entry take about 300 bytes of items.
        let inodes_free = stats.item_bytes_max.saturating_sub(stats.item_bytes) / 300;
        TargetSpace { blocks, free, inodes, inodes_free }
    }

    /// Waits until no operation over several targets is changing any of `keys`.
    pub async fn settle(&self, keys: Vec<NameKey>) {
        self.queues.settle(keys).await;
    }

    /// The joined state of the objects of a file on this target.
    pub fn gathered(&self, ino: Ino) -> Gathered {
        let mut sum = Gathered::default();
        for (_, o) in self.data.borrow().objects_of(ino) {
            sum.join(&Gathered { size: o.end, mtime: o.mtime, blocks: o.blocks * (BLOCK / 512) });
        }
        sum
    }
}
