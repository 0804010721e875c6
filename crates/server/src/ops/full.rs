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
//! Invariants: one write of a target at a time uses what is kept back, and waits for nothing else that waits for it:
//! it holds no span when it takes its turn. Each step is a record of its own, as the steps of a write that is too large
//! for one record are.
//!
//! The number: with 64 blocks kept back, a mebibyte that is overwritten in a full target costs six syncs.

use super::data::{Room, Step, WriteKind};
use crate::counters::add;
use crate::target::Target;
use crate::target::gate::Hold;
use crate::worker::request::RequestCx;
use amphi_data::{Fresh, WritePlan};
use amphi_env::{Buf, Env};
use amphi_types::item::Txn;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, Errno, ObjectId, Result};
use amphi_wire::Reply;
use amphi_zone::Order;

impl<E: Env> Target<E> {
    /// Gives back what was promised to accepted bytes, and what was freed and is not stable yet. The caller holds
    /// nothing.
    async fn find_room(&self) -> Result<()> {
        if self.data.borrow().delayed.promised() > 0 {
            add(&self.counters.flushes_for_room, 1);
            // What cannot be written stays promised.
            let _ = self.flush_all().await;
        }
        if self.data.borrow().pending_blocks() > 0 { self.release_now().await } else { Ok(()) }
    }
}

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
        let _turn = target.below.turns.take(vec![((), Hold::Exclusive)]).await;
        target.find_room().await?;
        if !target.data.borrow().has_room_to_grow(object, range) {
            return Err(Errno::NoSpace);
        }
        add(&self.worker.counters.writes_full, 1);
        let mut at = range.start;
        loop {
            let blocks = target.data.borrow().overwrite_room().max(1);
            let end = range.end.min((at / BLOCK).saturating_add(blocks).saturating_mul(BLOCK));
            let part = payload.split_to((end - at) as usize);
            let (one, is_end) = (ByteRange::new(at, end), end == range.end);
            let step = self.write_step(object, one, generation, kind, part, last && is_end, Room::Kept).await?;
            let Step::Done(reply) = step else { return Err(Errno::NoSpace) };
            // What the step has replaced is free before the next one begins, of this write or another.
            target.find_room().await?;
            if is_end {
                return Ok(reply);
            }
            at = end;
        }
    }

    /// Plans a step of a write that may use what is kept back. Where even that is gone, blocks that have checksums lose
    /// them for good and are overwritten in place, if nobody else looks.
    pub(super) async fn plan_overwrite(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
    ) -> Result<WritePlan> {
        let fresh = self.fresh();
        let plan = self.plan(|data| data.plan_overwrite(object, range, generation, fresh)).await;
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
        self.plan(|data| data.plan_overwrite(object, range, generation, fresh)).await
    }
}
