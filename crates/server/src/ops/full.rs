//! Writes that find no room in their target.
//!
//! Owns: what is done before such a write is refused, and how overwrites go on in a full target. Does not own: how a
//! write is carried out (`data`), which blocks are kept back (`amphi_data`).
//!
//! An overwrite needs blocks as well: parts of blocks, blocks with checksums, and all blocks while several mounts look
//! go to new places, and give back the old ones when their record is stable. It must not be refused for that: a program
//! that stays within the space is never told that there is none, least of all by `fsync`. So some blocks are kept back,
//! of which overwrites use three quarters, one write after the other: in steps of so many blocks, each of which gives
//! back what it took before the next one begins. What grows is refused before anything of it is written.
//!
//! Writes that are on their way have taken new blocks and have not given back the old ones: what is free looks smaller
//! than it is until they are done. A write waits for them before it is refused, and meanwhile no other one begins
//! beside it: it comes after it.
//!
//! Invariants: one write of a target at a time uses what is kept back, and waits for nothing else that waits for it:
//! it holds no span when it takes its turn, and whoever has a plan waits for no turn. Each step is a record of its own,
//! as the steps of a write that is too large for one record are.
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
    /// Gives back what was promised to accepted bytes, and what was freed and is not stable yet. The caller holds
    /// nothing.
    async fn find_room(&self) -> Result<()> {
        if self.data.borrow().delayed.promised() > 0 {
            add(&self.counts.worker.flushes_for_room, 1);
            // What cannot be written stays promised.
            let _ = self.flush_all().await;
        }
        if self.data.borrow().pending_blocks() > 0 { self.release_now().await } else { Ok(()) }
    }
}

/// How long a write that finds no room waits for those that are on their way, before it looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How often what is not in its turn looks again: new writes may always be on their way.
const LOOKS_MAX: u32 = 1000;

impl<E: Env> RequestCx<E> {
    /// Writes what has found no room, after all that can give some. It is at most as long as one record can name.
    ///
    /// Errors: `NoSpace` if there is none for the blocks that it adds; then nothing was written, unless others took it
    /// meanwhile.
    pub(super) async fn write_full(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        kind: WriteKind,
        mut payload: Buf,
        last: bool,
    ) -> Result<Reply> {
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
            // What the step has replaced is free before the next one begins, of this write or another.
            target.find_room().await?;
            if is_end {
                return Ok(reply);
            }
            at = end;
        }
    }

    /// Writes a step with blocks that are kept back. Who was on his way when the turn began may have come between: then
    /// it looks once more.
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

    /// Whether there is room for what a write of `range` adds, after all that is on its way. The caller holds nothing.
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

    /// Whether no block is taken that will be free by itself.
    fn is_settled(&self) -> bool {
        let data = self.target.data.borrow();
        data.planned_blocks() == 0 && data.pending_blocks() == 0
    }

    /// Plans something that only adds blocks; it is not refused before the writes that are on their way have given back
    /// what they replace. The caller may hold spans: whoever has a plan has those that it needs.
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

    /// Plans a step of a write that may use what is kept back. Where even that is gone, blocks that have checksums lose
    /// them for good and are overwritten in place, if nobody else looks.
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
