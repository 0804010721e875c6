//! The state that the handle and the agents of a zone share.
//!
//! Owns: queue, positions, dirty changes, waiting tasks, and what is stable. Invariants:
//! `stable <= synced <= written <= kept <= appended`; `dirty` contains exactly the changes of the groups written since
//! the root's log start, except those that a running checkpoint has taken.
//!
//! Stable means: will be replayed after power loss. Recovery then drops the log from the first fresh group on that no
//! mark covers (`recover`). Therefore a record is stable when it is synced and every fresh group up to it is covered by
//! a mark that is itself synced. Records in front of the first such group become stable by one sync. Records behind it
//! need a sync, then a mark, which the next group contains, and another sync.

mod parts;

use crate::event::Event;
use crate::group::Group;
use crate::image::Image;
use crate::keep::{self, AREAS, Keep};
use crate::layout::{Geometry, PAGE_PAYLOAD, SLOT_BYTES};
use crate::options::{OnFailure, OpenOptions};
use crate::planted::{self, Mistake};
use crate::stats::ZoneStats;
use crate::{ZoneError, ZoneErrorKind};
use amphi_env::Env;
use amphi_types::item::Txn;
use amphi_types::limits::BLOCK;
use amphi_types::{Errno, TargetId};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

pub use parts::*;

/// Most bytes of a group of several records: 1 MiB keeps one write below a millisecond.
const GROUP_BYTES_MAX: usize = 1 << 20;
/// Groups kept for reuse.
const SPARE_GROUPS: usize = 2;
/// Share of the metadata region, in percent, that items may take: a merge needs the same again, and deletions
/// must go through on a full region.
pub const ITEMS_PERCENT: u64 = 40;

/// The changing part.
pub struct State {
    /// Records that wait for the commit agent.
    pub waiting: Queue,
    /// How far records have got.
    pub reached: Reached,
    /// The marks that prove that groups are complete.
    pub marks: Marks,
    /// The beginning and the end of the log.
    pub log: LogBounds,
    /// The changes of the log over the segments.
    pub changes: Unmerged,
    /// The contents of the medium in addition to the log.
    pub medium: Medium,
    /// Syncs, counted.
    pub syncs: Syncs,
    /// Checkpoints, counted.
    pub checkpoints: Checkpoints,
    /// Whether the zone continues.
    pub life: Life,
    pub counters: ZoneStats,
}

impl State {
    /// All mounts have been notified of a loss, and the root does not record it yet.
    pub fn is_told(&self) -> bool {
        self.medium.root.lost != 0 && !self.medium.lost
    }

    /// A sync or a root has proven groups up to `proven_seq`: moves what is stable.
    pub fn settle(&mut self, proven_seq: u64) {
        self.reached.proven_seq = self.reached.proven_seq.max(proven_seq);
        while self.marks.fresh.front().is_some_and(|f| f.seq <= self.reached.proven_seq) {
            self.marks.fresh.pop_front();
        }
        let limit = match self.marks.fresh.front() {
            Some(f) if !planted::is(Mistake::StableUnproven) => f.before,
            _ => u64::MAX,
        };
        self.reached.stable_lsn = self.reached.stable_lsn.max(self.reached.synced_lsn.min(limit));
        let Reached { stable_lsn, synced_lsn, written_lsn, kept_lsn, .. } = self.reached;
        assert!(stable_lsn <= synced_lsn, "record {stable_lsn} is stable, and {synced_lsn} is the last synced one");
        assert!(synced_lsn <= written_lsn, "record {synced_lsn} is synced, and {written_lsn} is the last written one");
        assert!(written_lsn <= kept_lsn, "record {written_lsn} is written, and {kept_lsn} is the last kept one");
    }

    /// Returns whether the next group has to be written now: a task waits for a record, a mark, or the end; or more
    /// than one group is queued.
    pub fn write_due(&self) -> bool {
        let asked = self.waiting.wanted_lsn > self.reached.written_lsn || self.mark_due() || self.life.closing;
        asked || self.life.failed.is_some() || self.waiting.groups.len() > 1
    }

    /// Blocks of the log that are written and not synced.
    pub fn unsynced(&self) -> u64 {
        self.log.head.position - self.reached.synced_position
    }

    /// Returns whether all queued records survive the process.
    pub fn is_all_kept(&self) -> bool {
        self.reached.kept_lsn >= self.waiting.appended_lsn
    }

    /// Returns whether a mark has to be written.
    pub fn mark_due(&self) -> bool {
        self.marks.wanted > self.marks.written.max(self.reached.proven_seq)
    }

    /// Number of the last fresh group that keeps record `lsn` from being stable, if it is synced and only a mark is
    /// missing.
    fn lacks_mark(&self, lsn: u64) -> Option<u64> {
        let blocking = self.marks.fresh.partition_point(|f| f.before < lsn);
        let last = self.marks.fresh.get(blocking.checked_sub(1)?)?.seq;
        (last <= self.reached.synced_seq && last > self.marks.written).then_some(last)
    }
}

/// A zone as its handle and its agents see it.
pub struct Shared<E: Env> {
    pub env: E,
    pub path: String,
    pub disk: Rc<E::Disk>,
    pub geometry: Geometry,
    /// The identity of the zone.
    pub ids: Identity,
    /// Sizes and intervals that bound the zone's work.
    pub bounds: Bounds,
    pub on_failure: OnFailure,
    /// Slots are being given storage.
    pub backing: Cell<bool>,
    /// Memory that outlives the process.
    pub kept: KeptMemory<E>,
    /// Reads of items.
    pub reads: Reads,
    pub state: RefCell<State>,
    /// Events for which agents and callers wait.
    pub events: Events,
}

impl<E: Env> Shared<E> {
    /// State of a zone that was just read and made stable, its replayed records and notes.
    pub fn new(
        env: &E,
        path: &str,
        disk: Rc<E::Disk>,
        options: &OpenOptions,
        image: Image,
        opening: u64,
        keep: Option<Keep<E>>,
    ) -> (Shared<E>, u64, Vec<String>) {
        let g = image.geometry;
        let log_bytes = (g.log_blocks * BLOCK) as usize;
        let head = image.end;
        let region = g.meta_slots * SLOT_BYTES;
        let state = State {
            waiting: Queue {
                groups: VecDeque::new(),
                spare: Vec::new(),
                bytes: 0,
                appended_lsn: image.end.lsn,
                wanted_lsn: image.end.lsn,
                writing_area: None,
                writing_hashes: Vec::new(),
            },
            reached: Reached {
                written_lsn: image.end.lsn,
                kept_lsn: image.end.lsn,
                stable_lsn: image.end.lsn,
                synced_lsn: image.end.lsn,
                synced_seq: image.end.seq,
                synced_position: image.end.position,
                proven_seq: image.end.seq,
            },
            marks: Marks { fresh: VecDeque::new(), written: image.end.seq, wanted: 0 },
            log: LogBounds { head, start_position: image.root.start_position.get(), is_full: false },
            changes: Unmerged {
                deletions: image.dirty.iter().filter(|c| c.is_deletion()).count() as u64,
                dirty: image.dirty,
                frozen: None,
            },
            medium: Medium {
                lost: image.root.lost != 0,
                root: image.root.clone(),
                segments: Rc::new(image.segments.into_iter().map(Rc::new).collect()),
                slots: image.slots,
            },
            syncs: Syncs { started: 0, lsn: 0, done: 0, wanted: 0, hurried: false },
            checkpoints: Checkpoints { started: 0, done: 0, wanted: 0, merge_wanted: false, error: None },
            life: Life { closing: false, committing: true, checkpointing: true, agents: 4, failed: None },
            counters: ZoneStats::default(),
        };
        let shared = Shared {
            env: env.clone(),
            path: path.to_string(),
            disk,
            geometry: g,
            ids: Identity {
                zone: image.root.zone_id.get(),
                cluster: image.root.cluster.get(),
                target: TargetId(image.root.target.get()),
                opening,
            },
            bounds: Bounds {
                record_bytes_max: g.record_bytes_max(),
                unsynced_max: g.unsynced_max(),
                group_bytes_max: GROUP_BYTES_MAX.min(log_bytes / 8),
                dirty_max: Cell::new(options.dirty_bytes.min(region / 8)),
                sync_interval: Cell::new(options.sync_interval),
                auto_checkpoint: options.auto_checkpoint,
            },
            on_failure: options.on_failure.clone(),
            backing: Cell::new(false),
            kept: KeptMemory { areas: RefCell::new(keep), used: Cell::new(options.keeps) },
            reads: Reads::default(),
            state: RefCell::new(state),
            events: Events {
                queued: Event::default(),
                sync_asked: Event::default(),
                checkpoint_asked: Event::default(),
                written: Event::default(),
                synced: Event::default(),
                room: Event::default(),
                done: Event::default(),
            },
        };
        (shared, image.replayed, image.notes)
    }

    /// Wakes all tasks: after a failure or at closing.
    pub fn notify_all(&self) {
        for event in [
            &self.events.queued,
            &self.events.sync_asked,
            &self.events.checkpoint_asked,
            &self.events.written,
            &self.events.synced,
            &self.events.room,
            &self.events.done,
        ] {
            event.notify();
        }
    }

    /// The storage failed: everything from here on is refused.
    pub fn fail(&self, doing: &str, e: &std::io::Error) {
        let text = format!("{doing}: {e}");
        tracing::error!(zone = %self.path, "the zone has failed: {text}");
        let (is_first, closing) = {
            let mut st = self.state.borrow_mut();
            let is_first = st.life.failed.is_none();
            st.life.failed.get_or_insert_with(|| text.clone());
            (is_first, st.life.closing)
        };
        // This is done before any task is woken whose record waits. If the zone is being closed, the close itself
        // reports the failure.
        if let Some(told) = self.on_failure.0.as_ref().filter(|_| is_first && !closing) {
            told(&format!("{}: {text}", self.path));
        }
        self.notify_all();
    }

    /// Errors: `Io` when the zone has failed.
    pub fn healthy(&self) -> Result<(), Errno> {
        if self.state.borrow().life.failed.is_some() { Err(Errno::Io) } else { Ok(()) }
    }

    /// Counts an agent as ended.
    pub fn agent_ended(&self) {
        {
            let life = &mut self.state.borrow_mut().life;
            assert!(life.agents > 0, "{}: an agent ends, and none is left", self.path);
            life.agents -= 1;
        }
        self.notify_all();
    }

    /// Queues a record. Returns its number.
    pub fn append(&self, txn: Txn, after_data: bool) -> u64 {
        let bytes = Group::record_bytes(&txn);
        assert!(!txn.is_empty(), "an empty record");
        assert!(
            bytes <= self.bounds.record_bytes_max,
            "a record of {bytes} bytes, at most {}",
            self.bounds.record_bytes_max
        );
        let mut st = self.state.borrow_mut();
        assert!(!st.life.closing, "appended to a zone that is being closed");
        st.waiting.appended_lsn += 1;
        let lsn = st.waiting.appended_lsn;
        if st.life.failed.is_some() {
            return lsn;
        }
        let fits = st.waiting.groups.back().is_some_and(|g| g.bytes() + bytes <= self.bounds.group_bytes_max);
        if !fits {
            let mut group = st.waiting.spare.pop().unwrap_or_else(Group::new);
            group.reset();
            group.first_lsn = lsn;
            st.waiting.groups.push_back(group);
        }
        st.waiting.bytes += bytes as u64;
        st.counters.appends += 1;
        let group = st.waiting.groups.back_mut().expect("just made sure of it");
        group.fresh |= after_data;
        group.push(txn.encoded());
        let before = st.reached.kept_lsn;
        self.keep_queued(&mut st);
        // A task may wait for those in front of it.
        let others = st.reached.kept_lsn > before + 1;
        drop(st);
        self.events.queued.notify();
        if others {
            self.events.written.notify();
        }
        lsn
    }

    /// The state of kept memory that the root should record.
    pub fn kept_wanted(&self) -> u64 {
        let keeps = self.kept.used.get() && self.kept.areas.borrow().as_ref().is_some_and(|keep| !keep.has_failed());
        if keeps { self.ids.opening } else { 0 }
    }

    /// Removes the memory, which the root no longer names. It is made again when it is needed.
    pub fn forget_kept(&self) {
        if self.kept.areas.take().is_some() {
            keep::forget(&self.env, self.ids.zone, self.ids.opening);
        }
    }

    /// Returns whether the root has to say something else about kept memory, and may: records that are only kept must
    /// be found after a kill.
    pub fn kept_differs(&self, st: &State) -> bool {
        let wanted = self.kept_wanted();
        st.medium.root.kept.get() != wanted && (wanted != 0 || st.reached.written_lsn >= st.reached.kept_lsn)
    }

    /// Keeps the queued records in their order, as far as there is space. There must be space for them in the log as
    /// well, however they are divided into groups, since after a kill they are written there before anything can free
    /// space.
    pub fn keep_queued(&self, st: &mut State) {
        let keep = self.kept.areas.borrow();
        // Memory that the root does not name is not searched after a kill.
        let Some(keep) =
            keep.as_ref().filter(|_| self.kept.used.get() && st.medium.root.kept.get() == self.ids.opening)
        else {
            return;
        };
        // For each group, part of a block for the records, a block for the header and a block for the parity.
        let blocks = st.waiting.bytes / BLOCK + 3 * (st.waiting.groups.len() as u64 + 1);
        if st.log.head.position - st.log.start_position + blocks > self.geometry.log_blocks {
            return;
        }
        let mut taken = [false; AREAS];
        st.waiting
            .groups
            .iter()
            .filter_map(|g| g.area)
            .chain(st.waiting.writing_area)
            .for_each(|area| taken[area] = true);
        let State { waiting, reached: Reached { kept_lsn, .. }, counters, .. } = st;
        for group in waiting.groups.iter_mut() {
            if group.last_lsn() <= *kept_lsn {
                continue;
            }
            if group.first_lsn > *kept_lsn + 1 {
                return; // The group that is being written has some that are not kept.
            }
            let Some(area) = group.area.or_else(|| taken.iter().position(|taken| !taken)) else { return };
            taken[area] = true;
            group.area = Some(if planted::is(Mistake::AreaReused) { 0 } else { area });
            while let Some(record) = group.unkept() {
                let Some(end) = keep.put(area, group.area_bytes, *kept_lsn + 1, record) else { return };
                group.is_kept(end);
                *kept_lsn += 1;
                counters.kept += 1;
            }
        }
    }

    /// Takes the changes of a written group over.
    pub fn absorb(st: &mut State, group: &mut Group) {
        let hashes = std::mem::take(&mut st.waiting.writing_hashes);
        assert_eq!(hashes.is_empty(), group.records == 0, "{} records with {} hashes", group.records, hashes.len());
        for (change, hash) in group.changes().zip(&hashes) {
            st.changes.deletions += u64::from(change.is_deletion());
            st.changes.dirty.insert_hashed(*hash, change);
        }
        group.hashes = hashes;
    }

    /// Keeps a group's memory for the next group.
    pub fn recycle(st: &mut State, group: Group) {
        if st.waiting.spare.len() < SPARE_GROUPS {
            st.waiting.spare.push(group);
        }
    }

    /// Waits until record `lsn` survives a kill of the process. A record that does already is written soon, with later
    /// ones; any other is written now.
    pub async fn wait_kept(&self, lsn: u64) -> Result<(), Errno> {
        if self.state.borrow().reached.kept_lsn >= lsn {
            return Ok(());
        }
        self.wait(lsn, |st| st.reached.kept_lsn).await
    }

    /// Waits until record `lsn` is on the disk, and has it written now.
    pub async fn wait_written(&self, lsn: u64) -> Result<(), Errno> {
        self.wait(lsn, |st| st.reached.written_lsn).await
    }

    async fn wait(&self, lsn: u64, reached: impl Fn(&State) -> u64) -> Result<(), Errno> {
        let news = {
            let mut st = self.state.borrow_mut();
            let news = lsn > st.waiting.wanted_lsn;
            st.waiting.wanted_lsn = st.waiting.wanted_lsn.max(lsn);
            news
        };
        if news {
            self.events.queued.notify();
        }
        let mut ok = false;
        self.events
            .written
            .wait_until(|| {
                let st = self.state.borrow();
                ok = reached(&st) >= lsn;
                ok || st.life.failed.is_some()
            })
            .await;
        if ok { Ok(()) } else { Err(Errno::Io) }
    }

    pub async fn wait_stable(&self, lsn: u64) -> Result<(), Errno> {
        let mut ok = false;
        self.events
            .synced
            .wait_until(|| {
                let st = self.state.borrow();
                ok = st.reached.stable_lsn >= lsn;
                ok || st.life.failed.is_some()
            })
            .await;
        if ok { Ok(()) } else { Err(Errno::Io) }
    }

    /// Makes records up to `lsn`, which are written, stable; with `data` also everything else that was written before
    /// the call. A fresh group needs a sync, a mark and another sync; callers at the same time share them.
    pub async fn make_stable(&self, lsn: u64, mut data: bool) -> Result<(), Errno> {
        loop {
            let mark = {
                let mut st = self.state.borrow_mut();
                if st.life.failed.is_some() {
                    return Err(Errno::Io);
                }
                if st.reached.stable_lsn >= lsn && !data {
                    return Ok(());
                }
                let mark = st.lacks_mark(lsn);
                if mark.is_some() {
                    st.marks.wanted = st.marks.wanted.max(st.reached.synced_seq);
                }
                mark
            };
            match mark {
                None => {
                    self.wait_sync((!data).then_some(lsn)).await?;
                    data = false;
                }
                Some(seq) => {
                    self.events.queued.notify();
                    let marked = |st: &State| {
                        st.marks.written >= seq || st.reached.proven_seq >= seq || st.life.failed.is_some()
                    };
                    self.events.written.wait_until(|| marked(&self.state.borrow())).await;
                }
            }
        }
    }

    /// Waits for a sync that starts after this call.
    pub async fn request_sync(&self) -> Result<(), Errno> {
        self.wait_sync(None).await
    }

    /// Waits for a sync that starts after this call, or for one under way if that makes record `enough` stable.
    async fn wait_sync(&self, enough: Option<u64>) -> Result<(), Errno> {
        let round = {
            let mut st = self.state.borrow_mut();
            let under_way = st.syncs.done < st.syncs.started && enough.is_some_and(|lsn| st.syncs.lsn >= lsn);
            if !under_way {
                st.syncs.wanted = st.syncs.started + 1;
            }
            st.syncs.started + u64::from(!under_way)
        };
        self.events.sync_asked.notify();
        let mut ok = false;
        self.events
            .synced
            .wait_until(|| {
                let st = self.state.borrow();
                ok = st.syncs.done >= round;
                ok || st.life.failed.is_some()
            })
            .await;
        if ok { Ok(()) } else { Err(Errno::Io) }
    }

    /// Waits for a checkpoint that starts after this call.
    pub async fn request_checkpoint(&self, merge: bool) -> Result<(), ZoneError> {
        let round = {
            let mut st = self.state.borrow_mut();
            st.checkpoints.wanted = st.checkpoints.started + 1;
            st.checkpoints.merge_wanted |= merge;
            st.checkpoints.wanted
        };
        self.events.checkpoint_asked.notify();
        let mut ok = false;
        self.events
            .room
            .wait_until(|| {
                let st = self.state.borrow();
                ok = st.checkpoints.done >= round;
                ok || !st.life.checkpointing
            })
            .await;
        let st = self.state.borrow();
        match &st.life.failed {
            Some(text) => Err(ZoneError::new(ZoneErrorKind::Io, &self.path, text.clone())),
            None if ok => st.checkpoints.error.clone().map_or(Ok(()), Err),
            None => Err(ZoneError::new(ZoneErrorKind::Io, &self.path, "the zone is closed")),
        }
    }

    /// Upper bound of the bytes that the items take in segments.
    pub fn item_bytes(st: &State) -> u64 {
        let segments: u64 = st.medium.segments.iter().map(|s| s.slots.len() as u64 * SLOT_BYTES).sum();
        // A part of each slot is not payload.
        let unwritten = st.changes.dirty.cost() + st.changes.frozen_bytes() + st.waiting.bytes;
        segments + unwritten * SLOT_BYTES / PAGE_PAYLOAD as u64
    }

    /// Returns whether a checkpoint is due.
    pub fn checkpoint_due(&self, st: &State) -> bool {
        (st.log.head.position - st.log.start_position) * 2 > self.geometry.log_blocks
            || st.changes.dirty.cost() > self.bounds.dirty_max.get()
    }

    /// Returns whether `blocks` more may be written to the log: it must not get too far ahead of its last sync.
    pub fn is_near(&self, st: &State, blocks: u64) -> bool {
        st.unsynced() + blocks <= self.bounds.unsynced_max
    }

    /// Waits until `blocks` more blocks may be written to the log, or the zone has failed, with a sync.
    pub async fn wait_near(&self, blocks: u64) {
        self.events
            .synced
            .wait_until(|| {
                let mut st = self.state.borrow_mut();
                let ready = st.life.failed.is_some() || self.is_near(&st, blocks);
                st.syncs.hurried |= !ready;
                drop(st);
                if !ready {
                    self.events.sync_asked.notify();
                }
                ready
            })
            .await;
    }

    /// Returns whether a sync is due because of what is written: the log waits for it, or has half of the bytes that
    /// may be unsynced, so that it will not have to wait.
    pub fn sync_due(&self, st: &State) -> bool {
        st.syncs.hurried || st.unsynced() * 2 > self.bounds.unsynced_max
    }

    /// Waits until `enough` holds or the zone has failed, with a checkpoint if the log needs one.
    pub async fn wait_log_room(&self, enough: impl Fn(&State) -> bool) {
        self.events
            .room
            .wait_until(|| {
                let mut st = self.state.borrow_mut();
                let ready = st.life.failed.is_some() || enough(&st);
                // If no record is queued, only a checkpoint can help; a waiting group marks the log as full too.
                st.log.is_full |= !ready && st.waiting.groups.is_empty();
                let ask = st.log.is_full;
                drop(st);
                if !ready && ask {
                    self.events.checkpoint_asked.notify();
                }
                ready
            })
            .await;
    }

    pub fn stats(&self) -> ZoneStats {
        let st = self.state.borrow();
        ZoneStats {
            log_used_blocks: st.log.head.position - st.log.start_position,
            log_blocks: self.geometry.log_blocks,
            dirty_bytes: st.changes.dirty.cost(),
            item_bytes: Self::item_bytes(&st),
            item_bytes_max: self.geometry.meta_slots * SLOT_BYTES / 100 * ITEMS_PERCENT,
            ..st.counters
        }
    }
}
