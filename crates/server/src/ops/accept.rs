//! Writes that are answered from memory.
//!
//! Owns: the one step in which a write is accepted. Does not own: whether it is to be (`way`), the memory
//! (`write_back`), what it becomes (`flush`).
//!
//! Invariants: the caller holds the bytes (`SpanGate::take_bytes`) and has looked at the generation; nothing is waited
//! for between the last look at the session and the record, which has the bytes' extent and the answer of the slot. The
//! inode's own item knows nothing of the bytes before they are flushed: power loss takes the memory, and with it all
//! that says there was more.

use super::way::{State, Way, way};
use crate::counters::add;
use crate::target::write_back::count_accepted;
use crate::worker::request::Cx;
use amphi_data::UNIT;
use amphi_env::{Buf, Env};
use amphi_types::item::Txn;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, ObjectId, Result, SetAttr, Timespec};
use amphi_wire::Reply;
use amphi_zone::{Lsn, Order};
use std::rc::Rc;

/// Free bytes that the file system below a zone has to have beyond what was promised: others fill it too, and what was
/// accepted must not find it full.
const ROOM_BELOW_BYTES: u64 = 16 << 20;

/// A write as it is to be accepted.
pub(super) struct Accepting {
    pub object: ObjectId,
    pub range: ByteRange,
    pub generation: u64,
    pub mtime: Timespec,
    pub kill_suidgid: bool,
    /// Nothing of the request follows: the record has the answer.
    pub last: bool,
}

impl<E: Env> Cx<E> {
    /// Where a write of so many bytes goes.
    fn way_of(&self, len: u64) -> Way {
        let (target, back) = (&self.target, &self.target.write_back);
        if !back.is_open() {
            return Way::ThroughOff;
        }
        let extents = {
            let data = target.data.borrow();
            data.delayed.extents() + data.delayed.logged().1
        };
        let way = way(&State {
            open: true,
            len,
            through_bytes: back.settings().through_bytes,
            pages: back.usage(),
            extents: (extents, target.delayed_max()),
            is_roomy: self.has_room_below(),
            disk_ns: back.disk_ns.get(),
            rotating: target.rotating.get(),
        });
        let counters = &self.worker.counters;
        match way {
            Way::ThroughLarge => add(&counters.through_large, 1),
            Way::ThroughFull => add(&counters.through_full, 1),
            Way::ThroughExtents => add(&counters.through_extents, 1),
            Way::ThroughRoom => add(&counters.through_room, 1),
            Way::Back | Way::ThroughOff => {}
        }
        way
    }

    /// Whether the file system below has room for what is promised. Blocks of the zone are promised one by one.
    fn has_room_below(&self) -> bool {
        let (free, promised) = {
            let data = self.target.data.borrow();
            (data.space().1, data.delayed.promised())
        };
        let left = self.target.free_blocks(false);
        left >= free || left >= promised + ROOM_BELOW_BYTES / BLOCK
    }

    /// Accepts a write into memory and appends its record, in one step. `None`: it has to go through, which also says
    /// what is wrong with it.
    pub(super) fn accept(&self, write: &Accepting, payload: &Buf) -> Option<(Lsn, Reply)> {
        let (target, back) = (&self.target, &self.target.write_back);
        target.exhume();
        if self.way_of(write.range.len()) != Way::Back {
            return None;
        }
        self.alive().ok()?;
        target.data.borrow().check_accept(write.object, write.range, write.generation).ok()?;
        let Some(memory) = back.store(write.object, write.range.start, payload) else {
            add(&self.worker.counters.through_full, 1);
            back.ring();
            return None;
        };
        let mut txn = Txn::default();
        let (unit, is_first) = {
            let mut data = target.data.borrow_mut();
            let is_first = data.delayed.is_empty();
            let now_ns = back.now_ns();
            data.accept(write.object, write.range, write.mtime, Rc::new(memory), now_ns, &mut txn);
            (data.delayed.has_whole(), is_first)
        };
        if write.object.stripe == 0 {
            self.note_accepted(write.object, write.kill_suidgid, &mut txn);
        }
        let reply = Reply::Written { roomy: self.is_roomy() };
        let lsn = match write.last {
            true => self.append(txn, Order::Plain, &reply, None),
            false => target.append(txn, Order::Plain),
        };
        count_accepted(&self.worker.counters, write.range.len());
        let (used, all) = back.usage();
        if unit || is_first || used * 2 > all {
            back.ring();
        }
        debug_assert!(write.range.len() <= UNIT * 4, "large writes go through");
        Some((lsn, reply))
    }

    /// What the inode has to know at once of bytes that were accepted: not how long the file is, nor when it was
    /// changed.
    fn note_accepted(&self, object: ObjectId, kill_suidgid: bool, txn: &mut Txn) {
        let ino = object.ino;
        let mut meta = self.target.meta.borrow_mut();
        let Ok((wide, spread)) = meta.inode(ino).map(|i| (i.wide, i.spread)) else { return };
        if wide && !spread {
            let noted = meta.mark_spread(ino, txn);
            debug_assert!(noted.is_ok(), "the inode is a file");
        }
        if kill_suidgid {
            let set = SetAttr { kill_suidgid: true, ..SetAttr::default() };
            // Dropping privileges needs none.
            let _ = meta.setattr(&self.cred, ino, &set, self.now, txn);
        }
    }

    /// Waits until a record survives a kill of the process. One that is in memory already is not written for that:
    /// others will come.
    pub(super) async fn kept(&self, lsn: Lsn) -> Result<()> {
        if self.target.zone.kept_lsn() >= lsn { Ok(()) } else { self.target.zone.kept(lsn).await }
    }
}
