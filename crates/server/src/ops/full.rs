//! Writes that find no room in their target.
//!
//! Owns: the steps before such a write is refused, and how overwrites continue in a full target. Does not own: how a
//! write is carried out (`data`), which blocks are kept back (`amphi_data`).
//!
//! An overwrite needs new blocks as well. Parts of blocks, blocks with checksums, and all blocks while there are
//! several mounts are written to new places, and the old blocks are freed when the record is stable. An overwrite must
//! not be refused because of that. A program that stays within the available space never gets ENOSPC, least of all from
//! `fsync`. So some blocks are reserved. One overwrite at a time uses three quarters of them, in steps of that many
//! blocks. Each step frees its old blocks before the next step begins. A write that extends the file is refused before
//! any of it is written.
//!
//! Overwrites under way have allocated new blocks and have not freed the old ones yet. Until they have ended, the free
//! space looks smaller than it is. A write waits for them before it is refused. Meanwhile no other write begins, and
//! later writes queue behind it.
//!
//! Invariants: only one write of a target at a time uses the reserved blocks, and it waits for nothing that waits for
//! it. It holds no span when it takes its turn, and a caller with a plan waits for no turn. Each step is a record of
//! its own, like the steps of a write that is too large for one record.
//!
//! The number: with 64 blocks kept back, a mebibyte that is overwritten in a full target costs six syncs.

use super::data::{Room, Step, WriteKind};
use super::grant::CALLS_MAX;
use crate::counters::add;
use crate::worker::request::RequestCx;
use crate::zone_target::Target;
use crate::zone_target::gate::Hold;
use amphi_data::{DataStore, Fresh, WritePlan};
use amphi_env::{Buf, Env};
use amphi_types::item::Txn;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, Errno, ObjectId, Result, SessionId};
use amphi_wire::{Cover, Reply};
use amphi_zone::Order;
use std::time::Duration;

impl<E: Env> Target<E> {
    /// Frees blocks: flushes accepted bytes that have blocks reserved, and makes records stable that have freed blocks.
    /// The caller holds no span and no plan.
    async fn find_room(&self) -> Result<()> {
        if self.data.borrow().delayed.promised() > 0 {
            add(&self.counts.worker.flushes_for_room, 1);
            // If bytes cannot be written, their blocks stay reserved.
            let _ = self.flush_all().await;
        }
        if self.data.borrow().pending_blocks() > 0 { self.release_now().await } else { Ok(()) }
    }
}

/// How long a write without space waits for overwrites under way, before it checks again.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How often a write outside its turn checks again: there may always be new writes under way.
const LOOKS_MAX: u32 = 1000;

impl<E: Env> RequestCx<E> {
    /// Executes a write for which there was no space, after everything that can free space. The write is at most as
    /// long as one record can name.
    ///
    /// Errors: `NoSpace` if there is no space for the blocks that it adds. In that case nothing was written, unless
    /// other writes took the space meanwhile.
    pub(super) async fn write_full(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        kind: WriteKind,
        mut payload: Buf,
        last: bool,
    ) -> Result<Reply> {
        assert_eq!(payload.len() as u64, range.len(), "{object:?}: a write of {range:?} comes with its bytes");
        let target = &self.target;
        let mut calls = 0;
        let _turn = loop {
            let turn = target.storage.below.turns.take(vec![((), Hold::Exclusive)]).await;
            let alone = target.storage.below.begin_alone();
            if self.has_room_at_last(object, range, kind.cover).await? {
                break (alone, turn);
            }
            // Mounts may have to write for their answer.
            drop((alone, turn));
            calls += 1;
            if calls > CALLS_MAX || !self.call_grants_back().await {
                return Err(Errno::NoSpace);
            }
        };
        add(&self.worker.counters.writes_full, 1);
        let mut at = range.start;
        loop {
            let blocks = target.data.borrow().overwrite_room().max(1);
            let end = range.end.min((at / BLOCK).saturating_add(blocks).saturating_mul(BLOCK));
            let part = payload.split_to((end - at) as usize);
            let is_end = end == range.end;
            let reply =
                self.write_kept(object, ByteRange::new(at, end), generation, kind, part, last && is_end).await?;
            // The blocks that this step has replaced are free before the next step begins, of this write or another.
            target.find_room().await?;
            if is_end {
                return Ok(reply);
            }
            at = end;
        }
    }

    /// Writes a step with reserved blocks. Writes that were under way when the turn began may have used the space. In
    /// that case it checks once more.
    async fn write_kept(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        kind: WriteKind,
        part: Buf,
        last: bool,
    ) -> Result<Reply> {
        let part = match self.write_step(object, range, generation, kind, part, last, Room::Kept).await? {
            Step::Done(reply) => return Ok(reply),
            Step::Full(part) => part,
        };
        if !self.has_room_at_last(object, range, kind.cover).await? {
            return Err(Errno::NoSpace);
        }
        match self.write_step(object, range, generation, kind, part, last, Room::Kept).await? {
            Step::Done(reply) => Ok(reply),
            Step::Full(_) => Err(Errno::NoSpace),
        }
    }

    /// Returns whether there is space for the blocks that a write of `range` adds, after all writes under way have
    /// ended. The caller holds no span and no plan.
    async fn has_room_at_last(&self, object: ObjectId, range: ByteRange, cover: Cover) -> Result<bool> {
        loop {
            self.target.find_room().await?;
            let has_room = self.target.data.borrow().has_room_to_grow(object, range, self.holder(cover));
            if has_room || self.is_settled() {
                return Ok(has_room);
            }
            self.worker.env.sleep(LOOK_AGAIN).await;
        }
    }

    /// Returns whether no block that is in use will become free without further requests.
    fn is_settled(&self) -> bool {
        let data = self.target.data.borrow();
        data.planned_blocks() == 0 && data.pending_blocks() == 0
    }

    /// Plans an operation that only adds blocks. It is refused only after writes under way have freed the blocks that
    /// they replace. The caller may hold spans, since writes with a plan already hold the spans that they need.
    pub(super) async fn plan_growth<T>(&self, mut plan: impl FnMut(&mut DataStore) -> Result<T>) -> Result<T> {
        let (mut looks, mut calls) = (0, 0);
        loop {
            let planned = self.plan(&mut plan).await;
            looks += 1;
            if !matches!(planned, Err(Errno::NoSpace)) || looks == LOOKS_MAX {
                return planned;
            }
            if self.is_settled() {
                calls += 1;
                if calls > CALLS_MAX || !self.call_grants_back().await {
                    return planned;
                }
                continue;
            }
            self.worker.env.sleep(LOOK_AGAIN).await;
        }
    }

    /// Plans a step of a write that may use reserved blocks. If even these blocks are used up, blocks with checksums
    /// lose their checksums and are overwritten in place, if no other mount reads the file.
    pub(super) async fn plan_overwrite(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        holder: Option<SessionId>,
    ) -> Result<WritePlan> {
        let fresh = self.fresh();
        let plan = self.plan(|data| data.plan_overwrite(object, range, generation, fresh, holder)).await;
        if plan != Err(Errno::NoSpace) || fresh != Fresh::Needed {
            return plan;
        }
        let mut txn = Txn::default();
        self.target.data.borrow_mut().forget_checksums(object, range, &mut txn);
        if txn.is_empty() {
            return plan;
        }
        let lsn = self.target.append(txn, Order::Plain);
        self.target.zone.stable(lsn).await?;
        self.plan(|data| data.plan_overwrite(object, range, generation, fresh, holder)).await
    }
}
