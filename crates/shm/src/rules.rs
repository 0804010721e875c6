//! The rules by which a program reads an export while the mount changes it.
//!
//! Owns: the order of loads, stores and fences on both sides. Does not own: the bytes themselves, which the caller
//! copies when it is told to; when an event happens (the client).
//!
//! A *slot* is under a sequence lock: it is odd while it shows nothing. A reader loads the sequence, copies, and loads
//! the sequence again behind an acquire fence. A *file* has a state that counts events: a unit changes, the size
//! changes, a call takes the file against readers, everything becomes void. A reader that finds the same state at its
//! end has read units that were right at the same time, and a size that was certain at that time. So its result is the
//! contents of the file at one moment between the two loads.
//!
//! An event is counted before any other program can see its change. A fill records the epoch before it reads anything;
//! a slot filled under an epoch that has passed shows nothing. `loom` tries the interleavings
//! (`cargo test -p amphi-shm --features loom --lib rules`).

use crate::layout::{SLOT_BYTES, Slot, State};
#[cfg(not(feature = "loom"))]
use core::sync::atomic::{
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};
#[cfg(feature = "loom")]
use loom::sync::atomic::{
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

/// Bit of the state: the size is certain.
pub const CERTAIN: u64 = 1;
/// Bit of the state: the export will never show anything again.
pub const DEAD: u64 = 2;
const EVENT: u64 = 4;
/// This many events are counted before the numbers of exports meet: a million each second for three days.
const ID_SHIFT: u32 = 40;
const UNIT: u64 = SLOT_BYTES as u64;

/// Why a read cannot be served from shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The export is given up.
    Dead,
    /// A call holds the file, or it changed while it was read.
    Busy,
    /// The mount has to serve this read itself.
    Due,
    /// The bytes are not shared at the moment.
    Absent,
    /// The read may reach behind the end of the file, which is not certain.
    End,
}

/// The start of a fill.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    state: u64,
    epoch: u64,
}

/// Copies what a read of `len` bytes at `offset` returns, by calls of `copy` with a slot, the first byte in it and a
/// number of bytes, in the order of the file. Returns the number of bytes: fewer than `len` only at the certain end of
/// the file. After an error, what was copied is worth nothing.
#[inline]
pub fn read(
    head: &State,
    slots: &[Slot],
    (offset, len): (u64, u64),
    now_ns: impl FnOnce() -> u64,
    mut copy: impl FnMut(usize, usize, usize),
) -> Result<u64, Miss> {
    let state = head.state.load(Acquire);
    if state & DEAD != 0 {
        return Err(Miss::Dead);
    }
    if head.blocks.load(Acquire) != 0 {
        return Err(Miss::Busy);
    }
    if head.due.load(Relaxed) != 0 {
        return Err(Miss::Due);
    }
    let epoch = head.epoch.load(Acquire);
    let wanted = offset.checked_add(len).ok_or(Miss::End)?;
    let size = head.size.load(Acquire);
    let is_cut = state & CERTAIN != 0 && wanted > size;
    if is_cut && now_ns() >= head.size_until.load(Acquire) {
        return Err(Miss::End);
    }
    let end = if is_cut { size.max(offset) } else { wanted };
    let mut at = offset;
    while at < end {
        let (unit, from) = (at / UNIT, at % UNIT);
        let to = (end - unit * UNIT).min(UNIT);
        let number = (unit % slots.len().max(1) as u64) as usize;
        let slot = slots.get(number).ok_or(Miss::Absent)?;
        let sequence = slot.sequence.load(Acquire);
        let span = slot.span.load(Relaxed);
        let shown = sequence & 1 == 0
            && slot.unit.load(Relaxed) == unit
            && slot.epoch.load(Relaxed) == epoch
            && span >> 32 <= from
            && to <= span & 0xffff_ffff;
        if !shown {
            // Bytes that are shared are inside the file; bytes beyond them may be behind its end.
            return Err(Miss::Absent);
        }
        copy(number, from as usize, (to - from) as usize);
        fence(Acquire);
        if slot.sequence.load(Relaxed) != sequence {
            return Err(Miss::Busy);
        }
        at = unit * UNIT + to;
    }
    fence(Acquire);
    if head.state.load(Relaxed) != state {
        return Err(Miss::Busy);
    }
    Ok(end - offset)
}

/// A state and slots that show nothing yet: to be called before the first read. No state of one export is ever one of
/// another: a program may put one in the place of another while it reads.
pub fn begin(head: &State, slots: &[Slot], id: u64) {
    head.state.store(id << ID_SHIFT, SeqCst);
    head.epoch.store(1, SeqCst);
    slots.iter().for_each(|slot| slot.sequence.store(1, SeqCst));
}

/// The start of a fill; to be taken before it reads the bytes that it will publish.
pub fn ticket(head: &State) -> Ticket {
    let state = head.state.load(SeqCst);
    Ticket { state, epoch: head.epoch.load(SeqCst) }
}

/// Something of the file changes, or is about to: reads that are under way are not valid.
pub fn event(head: &State) {
    head.state.fetch_add(EVENT, SeqCst);
}

/// The size changes, or is about to, or is no longer certain.
pub fn size_changes(head: &State) {
    let _ = head.state.fetch_update(SeqCst, SeqCst, |state| Some((state & !CERTAIN).wrapping_add(EVENT)));
}

/// Everything shown becomes invalid.
pub fn all_change(head: &State) {
    head.epoch.fetch_add(1, SeqCst);
    size_changes(head);
}

/// Nothing will be shown any more.
pub fn give_up(head: &State) {
    head.epoch.fetch_add(1, SeqCst);
    head.state.fetch_or(DEAD, SeqCst);
}

/// From now on until `unblock` nothing is shown.
pub fn block(head: &State) {
    head.blocks.fetch_add(1, SeqCst);
    event(head);
}

/// Ends a `block`.
pub fn unblock(head: &State) {
    head.blocks.fetch_sub(1, SeqCst);
}

/// The bytes of a unit change, or are about to. To be called under the lock that its fills are made under.
pub fn unit_changes(head: &State, slots: &[Slot], unit: u64) {
    let slot = &slots[(unit % slots.len() as u64) as usize];
    let sequence = slot.sequence.load(SeqCst);
    if sequence & 1 == 0 && slot.unit.load(SeqCst) == unit {
        // If a fill of another unit has come, the slot does not show this one any more.
        let _ = slot.sequence.compare_exchange(sequence, sequence + 1, SeqCst, SeqCst);
    }
    event(head);
}

/// Puts a unit into its slot: `put` stores the bytes. One fill of an export is under way at a time, and nothing changes
/// the unit meanwhile.
pub fn fill(
    head: &State,
    slots: &[Slot],
    ticket: Ticket,
    (unit, from, to): (u64, usize, usize),
    put: impl FnOnce(usize),
) -> bool {
    let number = (unit % slots.len() as u64) as usize;
    let slot = &slots[number];
    if head.epoch.load(SeqCst) != ticket.epoch || from >= to || to > SLOT_BYTES {
        return false;
    }
    let mut sequence = slot.sequence.load(SeqCst);
    while sequence & 1 == 0 {
        match slot.sequence.compare_exchange(sequence, sequence + 1, SeqCst, SeqCst) {
            Ok(_) => sequence += 1,
            Err(now) => sequence = now,
        }
    }
    // A reader that sees a byte of the new ones finds the sequence odd.
    fence(Release);
    slot.unit.store(unit, Relaxed);
    slot.epoch.store(ticket.epoch, Relaxed);
    slot.span.store((from as u64) << 32 | to as u64, Relaxed);
    put(number);
    slot.sequence.store(sequence + 1, Release);
    true
}

/// Shows the size, if nothing has happened since the ticket was taken but fills.
pub fn show_size(head: &State, ticket: Ticket, size: u64, until_ns: u64) {
    if ticket.state & (CERTAIN | DEAD) != 0 || head.state.load(SeqCst) != ticket.state {
        return;
    }
    // They are not read while the state does not mark them as certain; a reader that read them before finds another
    // state.
    fence(Release);
    head.size.store(size, SeqCst);
    head.size_until.store(until_ns, SeqCst);
    let _ = head.state.compare_exchange(ticket.state, ticket.state.wrapping_add(EVENT) | CERTAIN, SeqCst, SeqCst);
}

/// Whether nothing will be shown any more.
pub fn is_given_up(head: &State) -> bool {
    head.state.load(SeqCst) & DEAD != 0
}

/// Whether the size is shown.
pub fn shows_size(head: &State) -> bool {
    head.state.load(SeqCst) & CERTAIN != 0
}

#[cfg(all(test, feature = "loom"))]
mod tests;
