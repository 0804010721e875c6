//! `Target`: one slice of storage as its worker sees it: stores, zone, locks, sessions, slots.
//!
//! Owns: the state of one target and the small steps every operation is made of: append, wait, free, look up who may
//! do what. Does not own: the operations (`ops`), intents over several targets (`txs`), routing (`worker`).
//!
//! Invariants: the stores are changed and the record appended in one step without an await in between, so the log
//! has the order of the changes; freed blocks are released when the record that freed them is stable; no borrow of a
//! store lives across an await.

pub(crate) mod accepted;
pub(crate) mod checksums;
pub(crate) mod data_disk;
pub(crate) mod disk_queue;
pub(crate) mod free_space_below;
pub(crate) mod gate;
pub(crate) mod memory_watch;
pub(crate) mod old_blocks;
pub(crate) mod predicted;
pub(crate) mod read_cache;
pub(crate) mod read_pattern;
pub(crate) mod shared_blocks;
pub(crate) mod span_gate;
mod tuning;
pub(crate) mod tx_table;
pub(crate) mod unstable;
pub(crate) mod verifier;
pub(crate) mod write_back;
pub(crate) mod writers;

use crate::coherence::file_locks::FileLockTable;
use crate::coherence::glimpse::Glimpses;
use crate::coherence::left_pages::LeftPages;
use crate::coherence::locks::Locks;
use crate::coherence::tokens::{TOKEN_LIFE, TOKEN_MARGIN, Tokens};
use crate::counters::{Counters, add};
use crate::records::{self, ClusterRecord, HomeRecord, Item, SessionRecord};
use crate::session::in_flight::{InFlight, InFlights};
use crate::session::opens::Opens;
use crate::session::rights::Rights;
use crate::session::slots::Slots;
use crate::target::data_disk::DataDisk;
use crate::target::disk_queue::DiskQueue;
use crate::target::free_space_below::RoomBelow;
use crate::target::gate::{Gate, Hold};
use crate::target::shared_blocks::SharedBlocks;
use crate::target::span_gate::SpanGate;
use crate::target::tx_table::TxTable;
use crate::target::unstable::Unstable;
use crate::target::verifier::Verifier;
use crate::target::write_back::WriteBack;
use amphi_data::{CHECKSUM_ITEM_BYTES, DataStore, Freed, TrimPlan};
use amphi_dlm::{LockCounts, LockLimits};
use amphi_env::{Disk, Env};
use amphi_meta::{Gathered, MetaStore};
use amphi_types::item::{ItemStore, Txn, tag};
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, Errno, Ino, Kind, Name, ObjectId, Result, SessionId, TargetId, Timespec, TokenKey};
use amphi_wire::{Access, ClusterMap, InodeView, TargetSpace, TokenGrant};
use amphi_zone::{Lsn, Order, Recovered, Zone, ZoneStats};
use futures_channel::{mpsc, oneshot};
use futures_util::future::{Either, select};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::pin;
use std::rc::Rc;

/// What operations queue on: an inode, or a name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameKey {
    /// An inode of this target.
    Inode(Ino),
    /// An entry of a directory of this target.
    Entry(Ino, Name),
}

/// By session, target that asked, and slot: the last open that was asked for, by its request's number.
pub type OpenedFor = BTreeMap<(SessionId, TargetId, u16), (u64, Ino)>;

/// Most extents that one record of a truncate or punch removes.
pub const EXTENTS_A_RECORD: usize = 4096;

/// Bytes of a record for the deletion of an extent and a new one.
pub const EXTENT_BYTES: u64 = 88;
/// Bytes of a record for one block, were it an extent of its own with checksums of its own.
pub const BLOCK_BYTES: u64 = EXTENT_BYTES + CHECKSUM_ITEM_BYTES;
/// Bytes of a record for what is beside extents: inode, object, answer, two blocks of logged bytes that are cut in two.
const RECORD_SPARE_BYTES: u64 = 4096 + 2 * (BLOCK + 64);
/// Part of a record that is left to the deletion of delayed extents: one in so many.
pub const DELAYED_SHARE: u64 = 4;

/// One target.
pub struct Target<E: Env> {
    /// Which.
    pub id: TargetId,
    /// Its storage.
    pub zone: Zone<E>,
    /// Whether that rotates.
    pub rotating: Cell<bool>,
    /// What the file system below its zone can still give.
    pub below: RoomBelow,
    /// Its disk, for file data, and what is kept of it.
    pub disk: DataDisk<E::Disk>,
    /// The queue of reads of that disk, which it shares with other targets of its worker.
    pub reads: Rc<DiskQueue>,
    /// How its blocks are verified.
    pub verifier: Verifier,
    /// Its name space.
    pub meta: RefCell<MetaStore>,
    /// Its objects.
    pub data: RefCell<DataStore>,
    /// Its locks.
    pub locks: Locks,
    /// What clients may cache of its names and attributes.
    pub tokens: Tokens,
    /// Questions to those who write its objects.
    pub glimpses: Glimpses,
    /// Changes of data between the last look at their session and their end.
    pub in_flight: InFlights,
    /// Locks of applications on its files.
    pub file_locks: FileLockTable,
    /// What has changed under pages that mounts could not take back in time.
    pub left_pages: RefCell<LeftPages>,
    /// Queues on names and inodes.
    pub names: Gate<NameKey>,
    /// Queues on bytes of objects.
    pub spans: SpanGate,
    /// Writes that share blocks at their edges.
    pub shared_blocks: SharedBlocks,
    /// What it has in memory instead of on its disk.
    pub write_back: WriteBack<E>,
    /// Answers of the sessions' slots.
    pub slots: RefCell<Slots>,
    /// Sessions that are alive.
    pub sessions: RefCell<BTreeMap<SessionId, SessionRecord>>,
    /// Sessions that were stopped and have not been forgotten yet, and their begins: nobody else has what they hold.
    pub stopped: RefCell<BTreeMap<SessionId, u64>>,
    /// What was answered before it was opened and not made stable may be gone.
    pub lost: bool,
    /// The zone says so by itself.
    pub(crate) noted_lost: bool,
    /// Sessions of an earlier run that have not said yet what they have open.
    pub reclaim_pending: RefCell<BTreeSet<SessionId>>,
    /// Who waits until none of these is left.
    pub waiting_for_reclaim: RefCell<Vec<oneshot::Sender<()>>>,
    /// Sessions whose locks are taken in when they present them: nobody had others meanwhile.
    pub reclaim_eligible: RefCell<BTreeSet<SessionId>>,
    /// Sessions that have said what they hold, in time or all of what that takes if not: when they say it again,
    /// because the answer was lost, nothing has been settled behind their backs.
    pub reclaim_done: RefCell<BTreeSet<SessionId>>,
    /// The session that ended last, if it was the last one: it may come back to what it left.
    pub left_last: Cell<Option<SessionId>>,
    /// Sessions that were cut off and may still use what they were granted.
    pub cut_off: RefCell<BTreeSet<SessionId>>,
    /// Open inodes.
    pub opens: RefCell<Opens>,
    /// What sessions may do with stripes here of files of other targets.
    pub rights: RefCell<Rights>,
    /// The last open for each slot of a session at a target that asked for one: number of the request, inode.
    pub opened_for: RefCell<OpenedFor>,
    /// Opens for sessions of an earlier run that had not said yet what they have open.
    pub opened_early: RefCell<Vec<(SessionId, Ino, Access)>>,
    /// How often sessions have said what they hold.
    pub represented: Cell<u64>,
    /// Operations over several targets that are under way here.
    pub txs: RefCell<TxTable>,
    /// Inodes that a task is removing.
    pub destroying: RefCell<BTreeSet<Ino>>,
    /// Blocks that become free when their record is stable.
    freed: RefCell<VecDeque<(Lsn, Freed)>>,
    /// Wakes the releaser.
    freed_bell: mpsc::UnboundedSender<()>,
    /// Bytes that were answered and are not stable.
    pub unstable: Unstable,
    /// Bytes of such blocks at which their records are made stable.
    pub reuse_bytes: Cell<u64>,
    /// Number of targets of the cluster, as the target remembers it.
    pub pool: u16,
    /// How often it was opened, this time included.
    pub starts: u64,
    /// The server that it belongs to, if it was begun before.
    pub home: RefCell<Option<HomeRecord>>,
    /// The cluster map as it was kept last.
    pub map: RefCell<Option<ClusterMap>>,
    /// Counters of the zone when they were last reset.
    pub zone_stats: RefCell<ZoneStats>,
    /// As above, of the lock server.
    pub lock_counts: Cell<LockCounts>,
    /// Counts of its worker.
    pub counters: Rc<Counters>,
    /// What is logged first.
    first: RefCell<Txn>,
    pub(crate) closed: Cell<bool>,
}

impl<E: Env> Target<E> {
    /// Builds the target from what its zone held, and the bell that its flush agent listens to. Nothing is written
    /// before `begin`.
    ///
    /// Errors: a sentence that names the item that does not fit.
    #[expect(clippy::too_many_arguments, reason = "made in one place from parts of different origin")]
    pub fn recover(
        env: &E,
        zone: Zone<E>,
        recovered: Recovered,
        pool: u16,
        callback_deadline_ns: u64,
        root_owner: (u32, u32),
        counters: Rc<Counters>,
        reads: Rc<DiskQueue>,
    ) -> std::result::Result<(Rc<Target<E>>, mpsc::Receiver<()>), String> {
        let id = zone.target();
        let mut meta = MetaStore::empty(id);
        let mut data = DataStore::new(zone.data_blocks());
        let (mut slots, mut sessions) = (Slots::default(), BTreeMap::new());
        let (mut txs, mut cut_off) = (Vec::new(), BTreeSet::new());
        let (mut cluster, mut home, mut map) = (None, None, None);
        for (key, value) in &recovered.items {
            match key.first().copied() {
                Some(tag::INODE | tag::DENTRY | tag::XATTR | tag::META) => meta.load(key, value)?,
                Some(tag::OBJECT | tag::EXTENT | tag::DELAYED | tag::LOGGED | tag::CHECKSUM) => {
                    data.load(key, value)?
                }
                _ => match records::decode_item(key, value)? {
                    Item::Session(session, record) => drop(sessions.insert(session, record)),
                    Item::CutOff(session) => drop(cut_off.insert(session)),
                    Item::Slot(session, slot, record) => slots.load(session, slot, record),
                    Item::Intent(intent) => txs.push(intent),
                    Item::Cluster(record) => cluster = Some(record),
                    Item::Home(record) => home = Some(record),
                    Item::Map(record) => map = Some(record),
                },
            }
        }
        let mut txn = Txn::default();
        if recovered.items.is_empty() {
            let root = (id == Ino::ROOT.target()).then_some(root_owner);
            (meta, txn) = MetaStore::format(id, env.rand(), env.wall(), root, pool);
        }
        meta.loaded()?;
        data.finish_load()?;
        let pool = cluster.as_ref().map_or(pool, |c: &ClusterRecord| c.pool);
        let starts = cluster.map_or(0, |c| c.starts) + 1;
        // What clients name by number after a restart must not be what they named before.
        let start = (starts & 0xffff) as u16;
        let limits = LockLimits { callback_deadline_ns, ..LockLimits::default() };
        let (freed_bell, rung) = mpsc::unbounded();
        let (flush_bell, flush_rung) = mpsc::channel(1);
        let write_back = WriteBack::find(env, &zone, &data, flush_bell);
        write_back.writers.numbered_by(starts);
        let lost = recovered.lost || write_back.has_lost();
        let mut opens = Opens::default();
        for (session, ino, access) in slots.kept_opens() {
            opens.open(session, ino, access);
        }
        let own = env.clone();
        let clock = move || own.now().0;
        let target = Rc::new(Target {
            id,
            disk: DataDisk::new(zone.disk(), zone.data_offset()),
            reads,
            verifier: Verifier::default(),
            zone,
            rotating: Cell::new(false),
            below: RoomBelow::default(),
            meta: RefCell::new(meta),
            data: RefCell::new(data),
            locks: Locks::new(limits, start, clock),
            tokens: Tokens::new(id, callback_deadline_ns, start, env.now().0, sessions.keys().chain(&cut_off).copied()),
            glimpses: Glimpses::new(id, start),
            in_flight: InFlights::default(),
            file_locks: FileLockTable::new(),
            left_pages: RefCell::new(LeftPages::new(u64::from(start))),
            names: Gate::default(),
            spans: SpanGate::default(),
            shared_blocks: SharedBlocks::default(),
            write_back,
            slots: RefCell::new(slots),
            reclaim_pending: RefCell::new(sessions.keys().copied().collect()),
            waiting_for_reclaim: RefCell::default(),
            reclaim_eligible: RefCell::new(sessions.keys().copied().collect()),
            reclaim_done: RefCell::default(),
            left_last: Cell::new(None),
            cut_off: RefCell::new(cut_off),
            sessions: RefCell::new(sessions),
            stopped: RefCell::default(),
            lost,
            noted_lost: recovered.lost,
            opens: RefCell::new(opens),
            rights: RefCell::default(),
            opened_for: RefCell::default(),
            opened_early: RefCell::default(),
            represented: Cell::default(),
            txs: RefCell::new(TxTable::new(id, starts, txs)),
            destroying: RefCell::default(),
            freed: RefCell::default(),
            freed_bell,
            unstable: Unstable::default(),
            reuse_bytes: Cell::new(u64::MAX),
            pool,
            starts,
            home: RefCell::new(home),
            map: RefCell::new(map),
            zone_stats: RefCell::default(),
            lock_counts: Cell::default(),
            counters,
            first: RefCell::default(),
            closed: Cell::new(false),
        });
        txn.put(records::cluster_key(), records::encode(&ClusterRecord { pool, starts }));
        target.first.replace(txn);
        env.spawn(release_freed(Rc::downgrade(&target), rung));
        Ok((target, flush_rung))
    }

    /// Logs the new count of starts, the server that it belongs to, and the first items of a new target. Stable when it
    /// returns, because numbers of operations and locks build on it.
    pub async fn begin(&self, env: &E, home: HomeRecord) -> Result<()> {
        let mut txn = self.first.take();
        if self.home.borrow().as_ref() != Some(&home) {
            txn.put(records::home_key(), records::encode(&home));
            self.home.replace(Some(home));
        }
        let lsn = self.append(txn, Order::Plain);
        self.zone.stable(lsn).await?;
        self.land_left(env).await
    }

    /// Keeps a newer cluster map.
    pub async fn put_map(&self, map: ClusterMap) -> Result<()> {
        if self.map.borrow().as_ref() == Some(&map) {
            return Ok(());
        }
        self.zone.reserve(0).await?;
        let mut txn = Txn::default();
        txn.put(records::map_key(), records::encode(&map));
        self.map.replace(Some(map));
        let lsn = self.append(txn, Order::Plain);
        self.zone.stable(lsn).await
    }

    /// Appends `txn`; if it is empty, returns the last record. After `close` nothing is appended: what background
    /// work still changes in memory is done again after the next start.
    pub fn append(&self, mut txn: Txn, order: Order) -> Lsn {
        if txn.is_empty() || self.closed.get() {
            return self.zone.appended_lsn();
        }
        add(&self.counters.commits, 1);
        // Whoever changes the store at this moment appends as well.
        if let Ok(mut data) = self.data.try_borrow_mut() {
            data.delete_free_checksums(&mut txn);
        }
        let lsn = self.zone.append(txn, order);
        if let Ok(mut data) = self.data.try_borrow_mut() {
            self.write_back.bury(lsn, data.delayed.take_dead());
        }
        self.unstable.appended(lsn, self.zone.stable_lsn());
        lsn
    }

    /// Blocks that one record can name, were each an extent of its own, with what it replaces.
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

    /// Whether the session is alive here.
    pub fn has_session(&self, session: SessionId) -> bool {
        self.sessions.borrow().contains_key(&session)
    }

    /// A change that another target carries out here for a session sets out, as by `RequestCx::land`. `None` if what
    /// this begin of the session held has gone. One that is only stopped may still finish what it has begun elsewhere.
    pub fn land_for(&self, (session, begin): (SessionId, u64)) -> Option<InFlight> {
        let here = self.sessions.borrow().get(&session).map(|record| record.start);
        let here = here.or_else(|| self.stopped.borrow().get(&session).copied());
        (here == Some(begin)).then(|| self.in_flight.start(session))
    }

    /// Whether nothing is appended any more.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Notes in `txn` that a session is cut off, as long as its tokens may be used: a restart has to wait for them too.
    pub fn note_cut_off(&self, session: SessionId, txn: &mut Txn) {
        txn.put(records::cut_off_key(session), Vec::new());
        self.cut_off.borrow_mut().insert(session);
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
                target.cut_off.borrow_mut().remove(&session);
                txn.delete(records::cut_off_key(session));
            }
            target.append(txn, Order::Plain);
        });
    }

    /// Waits until every session of an earlier run has said what it holds, or has ended.
    pub async fn recovered(&self) {
        while !self.reclaim_pending.borrow().is_empty() {
            let (sender, receiver) = oneshot::channel();
            self.waiting_for_reclaim.borrow_mut().push(sender);
            let _ = receiver.await;
        }
    }

    /// Whether a session other than this has the file open for writing, or may have: not all have come back yet.
    pub fn written_elsewhere(&self, session: SessionId, ino: Ino) -> bool {
        !self.reclaim_pending.borrow().is_empty() || self.opens.borrow().has_other_writer(session, ino)
    }

    /// A token for attributes that a reply shows, in the step that reads them. A spread file's are gathered over
    /// targets and have none.
    pub fn grant_attributes(&self, now_ns: u64, session: SessionId, view: &InodeView) -> Option<TokenGrant> {
        if !self.tokens.on() || view.spread || !self.has_session(session) {
            return None;
        }
        let ino = view.attr.ino;
        self.tokens.grant(now_ns, session, TokenKey::Attributes(ino), self.written_elsewhere(session, ino))
    }

    /// A token for a name that a reply shows, present or absent, in the step that reads it.
    pub fn grant_name(&self, now_ns: u64, session: SessionId, dir: Ino, name: &Name) -> Option<TokenGrant> {
        if !self.tokens.on() || !self.has_session(session) {
            return None;
        }
        self.tokens.grant(now_ns, session, TokenKey::Name(dir, name.token_hash()), false)
    }

    /// Byte address on the disk of a data block.
    pub fn block_address(&self, physical: u64) -> u64 {
        self.zone.data_offset() + physical * BLOCK
    }

    /// Says once what the disk did, and gives the error for the caller.
    pub fn disk_error(&self, what: &str, e: &std::io::Error) -> Errno {
        if matches!(e.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded) {
            self.below.is_full(self);
            return Errno::NoSpace;
        }
        if self.verifier.is_first_failure() {
            tracing::error!("{}: {what} of file data failed: {e}; further failures are not logged", self.id);
        }
        Errno::Io
    }

    /// Whether the inode is a regular file of this target.
    ///
    /// Errors: `Stale` if there is none, `Inval` if it is something else.
    pub fn check_file(&self, ino: Ino) -> Result<()> {
        match self.meta.borrow().inode(ino)?.kind {
            Kind::File => Ok(()),
            _ => Err(Errno::Inval),
        }
    }

    /// Blocks that `lsn` freed: they are given back when it is stable.
    pub fn release_later(&self, lsn: Lsn, freed: Freed) {
        if !freed.is_empty() {
            self.freed.borrow_mut().push_back((lsn, freed));
            // Nobody listens any more only when the target is being dropped.
            drop(self.freed_bell.unbounded_send(()));
        }
    }

    /// Makes the log stable now and gives back what was freed.
    pub async fn release_now(&self) -> Result<()> {
        self.zone.sync().await?;
        self.release_stable();
        Ok(())
    }

    /// Plans with `plan`; if the zone is full but freed blocks wait, makes these usable and tries once more.
    pub async fn plan<T>(&self, mut plan: impl FnMut(&mut DataStore) -> Result<T>) -> Result<T> {
        let first = plan(&mut self.data.borrow_mut());
        if !matches!(first, Err(Errno::NoSpace)) || self.data.borrow().pending_blocks() == 0 {
            return first;
        }
        self.release_now().await?;
        plan(&mut self.data.borrow_mut())
    }

    fn release_stable(&self) {
        let stable = self.zone.stable_lsn();
        let mut freed = self.freed.borrow_mut();
        while let Some((lsn, _)) = freed.front()
            && *lsn <= stable
        {
            if let Some((_, blocks)) = freed.pop_front() {
                add(&self.counters.freed_blocks, blocks.blocks());
                self.data.borrow_mut().release(blocks);
            }
        }
    }

    /// End of the `count`-th extent of an object from byte `at` on, if there are more behind it.
    pub fn extents_end(&self, object: ObjectId, at: u64, count: usize) -> Option<u64> {
        let data = self.data.borrow();
        let mut behind = data.extents(object).filter(|(b, e)| (b + u64::from(e.blocks)) * BLOCK > at);
        let (b, e) = behind.by_ref().nth(count - 1)?;
        behind.next()?;
        Some((b + u64::from(e.blocks)) * BLOCK)
    }

    /// Makes everything of an object behind `size` a hole, as far as it does not fit one record with the truncate that
    /// follows. The caller holds the span.
    pub async fn punch_behind(&self, object: ObjectId, size: u64, generation: u64, mtime: Timespec) -> Result<()> {
        let from = size.next_multiple_of(BLOCK);
        while let Some(end) = self.extents_end(object, from, EXTENTS_A_RECORD) {
            let last = ByteRange::new(end, amphi_types::limits::FILE_MAX);
            let step = match self.extents_end(object, end, EXTENTS_A_RECORD) {
                Some(next) => ByteRange::new(end, next),
                None => last,
            };
            let (lsn, _) = self.punch_part(object, step, generation, mtime).await?;
            self.zone.kept(lsn).await?;
        }
        Ok(())
    }

    /// Punches a part of an object in a record of its own. The caller holds the span.
    pub async fn punch_part(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        mtime: Timespec,
    ) -> Result<(Lsn, u64)> {
        self.zone.reserve(0).await?;
        let plan = self.plan(|data| data.plan_punch(object, range, generation)).await?;
        let plan = self.rewrite_edges(plan).await?;
        Ok(self.commit_trim(plan, mtime, Txn::default()))
    }

    /// Commits a truncate or punch whose edges are rewritten, together with `txn`. Returns the record and how many
    /// blocks it freed.
    pub fn commit_trim(&self, plan: TrimPlan, mtime: Timespec, mut txn: Txn) -> (Lsn, u64) {
        let order = if plan.points_at_new_data() { Order::AfterData } else { Order::Plain };
        let freed = self.data.borrow_mut().commit_trim(plan, mtime, &mut txn);
        let blocks = freed.blocks();
        let lsn = self.append(txn, order);
        self.release_later(lsn, freed);
        (lsn, blocks)
    }

    /// Does the disk work of a truncate or punch; on an error the plan is given up.
    pub async fn rewrite_edges(&self, mut plan: TrimPlan) -> Result<TrimPlan> {
        for (i, edge) in plan.edges.clone().into_iter().enumerate() {
            let old = self.sound_block(plan.object, edge.file_block, edge.old).await;
            let result = match old {
                Ok(mut block) => {
                    block[edge.zero.clone()].fill(0);
                    plan.edges[i].checksum = self.checksum_of_edge(plan.object, edge.old, &block);
                    let written = self.disk.write(self.block_address(edge.fresh), block).await.0;
                    written.map_err(|e| self.disk_error("rewrite", &e))
                }
                Err(e) => Err(e),
            };
            if let Err(e) = result {
                self.data.borrow_mut().abort_trim(plan);
                return Err(e);
            }
        }
        Ok(plan)
    }

    /// Blocks that can still be written. `now`: with what the file system below has at this moment.
    pub fn free_blocks(&self, now: bool) -> u64 {
        let free = self.data.borrow().space().1;
        self.below.of(self, free, now)
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
        if !self.names.is_empty() {
            drop(self.names.take(keys.into_iter().map(|k| (k, Hold::Shared)).collect()).await);
        }
    }

    /// What the objects of a file on this target say.
    pub fn gathered(&self, ino: Ino) -> Gathered {
        let mut sum = Gathered::default();
        for (_, o) in self.data.borrow().objects_of(ino) {
            sum.join(&Gathered { size: o.end, mtime: o.mtime, blocks: o.blocks * (BLOCK / 512) });
        }
        sum
    }
}

/// Gives freed blocks back when their records have become stable, and sees to that when there are many: what is written
/// next should use them again, before blocks that were never written (`amphi_data::alloc`). Ends with the target.
async fn release_freed<E: Env>(target: std::rc::Weak<Target<E>>, mut rung: mpsc::UnboundedReceiver<()>) {
    use futures_util::StreamExt;
    while rung.next().await.is_some() {
        while let Some((zone, lsn, many)) = target.upgrade().and_then(|t| {
            t.release_stable();
            let lsn = t.freed.borrow().back().map(|(lsn, _)| *lsn)?;
            let bytes = t.data.borrow().pending_blocks() * BLOCK;
            Some((t.zone.clone(), lsn, bytes >= t.reuse_bytes.get()))
        }) {
            let ended = if many {
                zone.stable(lsn).await
            } else {
                match select(pin!(zone.became_stable(lsn)), rung.next()).await {
                    Either::Left((ended, _)) => ended,
                    Either::Right((Some(()), _)) => Ok(()),
                    Either::Right((None, _)) => return,
                }
            };
            if ended.is_err() {
                return;
            }
        }
    }
}
