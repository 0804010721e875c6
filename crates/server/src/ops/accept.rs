//! Writes that are answered from memory.
//!
//! Owns: the one step in which writes are accepted into memory, single ones or those of a batch. Does not own: whether
//! to accept them (`way`), the memory (`write_back`), their flush (`flush`).
//!
//! Invariants: the caller holds the bytes (`SpanGate::take_bytes`) and has checked the generation. The task waits for
//! nothing between the last check of the session and the record, which contains the extent of the bytes and the answer
//! of the slot. The inode's own item does not include the bytes before they are flushed: a loss of power destroys the
//! memory, and with it every statement that there was more.

use super::way::{State, Way, way};
use crate::counters::add;
use crate::worker::request::RequestCx;
use crate::zone_target::write_back::count_accepted;
use amphi_data::UNIT;
use amphi_env::{Buf, Env};
use amphi_types::item::Txn;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, DataChecksums, ObjectId, Result, SetAttr, Timespec};
use amphi_wire::{Cover, Reply};
use amphi_zone::{Lsn, Order};
use std::rc::Rc;

/// Free bytes that the local file system below a zone must have in addition to the reserved ones. Other programs use it
/// too, and accepted writes must not find it full.
const ROOM_BELOW_BYTES: u64 = 16 << 20;

/// A write as it is to be accepted.
pub(super) struct Accepting {
    pub object: ObjectId,
    pub range: ByteRange,
    pub generation: u64,
    pub mtime: Timespec,
    pub kill_suidgid: bool,
    /// Whether the blocks of the write are to get checksums when the write is flushed.
    pub checksums: DataChecksums,
    /// Whether the session was granted the blocks.
    pub cover: Cover,
    /// The write is in one message with others, and even if it is written through, its bytes are contiguous on the
    /// disk.
    pub is_together: bool,
}

/// A write that was accepted but has no record yet.
#[derive(Default)]
pub(super) struct Accepted {
    /// The items of the record.
    pub txn: Txn,
    /// Bytes.
    pub bytes: u64,
    /// Whether the flusher has to check for work.
    rings: bool,
}

impl<E: Env> RequestCx<E> {
    /// The way in which a write is executed: accepted, or written through.
    fn way_of(&self, write: &Accepting) -> Way {
        let (target, back) = (&self.target, &self.target.storage.write_back);
        if !back.is_open() {
            return Way::ThroughOff;
        }
        let extents = {
            let data = target.data.borrow();
            data.delayed.extents() + data.delayed.logged().1
        };
        let load = self.worker.env.load();
        let way = way(&State {
            open: true,
            len: write.range.len(),
            through_bytes: back.settings().through_bytes,
            pages: back.usage(),
            extents: (extents, target.delayed_max()),
            is_roomy: self.has_room_below(),
            disk_ns: back.disk_ns.get(),
            busy_percent: load.busy_percent,
            cores: load.cores,
            rotating: target.storage.rotating.get(),
            is_together: write.is_together,
        });
        let counters = &self.worker.counters;
        match way {
            Way::ThroughLarge => add(&counters.through_large, 1),
            Way::ThroughFull => add(&counters.through_full, 1),
            Way::ThroughExtents => add(&counters.through_extents, 1),
            Way::ThroughRoom => add(&counters.through_room, 1),
            Way::ThroughTogether => add(&counters.through_together, 1),
            Way::ThroughBusy => add(&counters.through_busy, 1),
            Way::Back | Way::ThroughOff => {}
        }
        way
    }

    /// Returns whether the local file system below the zone has space for what is reserved. Blocks of the zone are
    /// reserved separately.
    fn has_room_below(&self) -> bool {
        let (free, promised) = {
            let data = self.target.data.borrow();
            (data.space().1, data.delayed.promised())
        };
        let left = self.target.free_blocks(false);
        left >= free || left >= promised + ROOM_BELOW_BYTES / BLOCK
    }

    /// Accepts a write into memory and appends its record, in one step. `last`: nothing else of the request follows, so
    /// the record contains the answer. `None` means that the write has to be written through, which also reports any
    /// error in it.
    pub(super) fn accept(&self, write: &Accepting, payload: &Buf, last: bool) -> Option<(Lsn, Reply)> {
        self.target.exhume();
        let mut accepted = Accepted::default();
        if !self.accept_into(write, payload, &mut accepted) {
            return None;
        }
        let reply = Reply::Written { roomy: self.is_roomy() };
        let lsn = self.append_accepted(accepted, last.then_some(&reply));
        self.top_up(write.cover);
        Some((lsn, reply))
    }

    /// Accepts a write into memory. Its record has to be appended in the same step, even if more writes are added to
    /// it. Returns whether the write was accepted; if not, it has to be written through.
    pub(super) fn accept_into(&self, write: &Accepting, payload: &[u8], accepted: &mut Accepted) -> bool {
        let (target, back) = (&self.target, &self.target.storage.write_back);
        assert_eq!(write.range.len(), payload.len() as u64, "a write of {:?} comes with its bytes", write.range);
        if self.way_of(write) != Way::Back || target.storage.below.is_anyone_alone() || self.alive().is_err() {
            return false;
        }
        let holder = self.holder(write.cover);
        if target.data.borrow().check_accept(write.object, write.range, write.generation, holder).is_err() {
            return false;
        }
        let Some(memory) = back.store(write.object, write.range.start, payload, write.checksums) else {
            add(&self.worker.counters.through_full, 1);
            back.ring();
            return false;
        };
        {
            let mut data = target.data.borrow_mut();
            let is_first = data.delayed.is_empty();
            let (txn, now_ns) = (&mut accepted.txn, back.now_ns());
            data.spend_grant(write.object, write.range, holder, txn);
            data.accept(write.object, write.range, write.mtime, Rc::new(memory), now_ns, txn);
            accepted.rings |= is_first || data.delayed.has_whole();
        }
        self.own(write.object);
        if write.object.stripe == 0 {
            self.note_accepted(write.object, write.kill_suidgid, &mut accepted.txn);
        }
        back.writers.note(write.object.ino, self.session);
        accepted.bytes += write.range.len();
        count_accepted(&self.worker.counters, write.range.len());
        self.worker.counters.histograms.write.request_bytes.note(write.range.len());
        assert!(write.range.len() <= UNIT * 4, "a write of {:?} is too large for memory", write.range);
        true
    }

    /// Appends the record of the accepted writes, with the answer if they are the whole request.
    pub(super) fn append_accepted(&self, accepted: Accepted, reply: Option<&Reply>) -> Lsn {
        let (target, back) = (&self.target, &self.target.storage.write_back);
        assert!(accepted.bytes > 0, "a record of accepted writes without bytes");
        let lsn = match reply {
            Some(reply) => self.append(accepted.txn, Order::Plain, reply, None),
            None => target.append(accepted.txn, Order::Plain),
        };
        let (used, all) = back.usage();
        if accepted.rings || used * 2 > all {
            back.ring();
        }
        lsn
    }

    /// The changes of the inode at once after bytes were accepted: neither the length of the file nor its modification
    /// time.
    fn note_accepted(&self, object: ObjectId, kill_suidgid: bool, txn: &mut Txn) {
        let ino = object.ino;
        let mut meta = self.target.meta.borrow_mut();
        assert!(!meta.is_away(ino), "inode {ino} is to be changed, and is not in memory");
        let Ok((wide, spread)) = meta.inode(ino).map(|i| (i.objects.wide, i.objects.spread)) else { return };
        if wide && !spread {
            let noted = meta.mark_spread(ino, txn);
            debug_assert!(noted.is_ok(), "the inode is a file");
        }
        if kill_suidgid {
            let set = SetAttr { kill_suidgid: true, open_for_write: true, ..SetAttr::default() };
            let _ = meta.setattr(&self.cred, ino, &set, self.now, txn);
        }
    }

    /// Waits until a record survives a kill of the process. A record that is in memory already is not written for that,
    /// because others will follow.
    pub(super) async fn kept(&self, lsn: Lsn) -> Result<()> {
        if self.target.zone.kept_lsn() >= lsn { Ok(()) } else { self.target.zone.kept(lsn).await }
    }
}
