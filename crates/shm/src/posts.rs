//! The rules by which programs post writes into a ring, and the mount takes them.
//!
//! Owns: the order of loads, stores and fences on both sides. Does not own: the bytes (the caller copies them), when
//! nothing may be posted (the mount's front end), what happens to a write that was taken.
//!
//! A program *claims* the next position, stores its bytes in the slot of that position, and *posts* them by a
//! compare-and-exchange of the slot's state. From then on the write counts, whatever happens to the program. The mount
//! *takes* what is posted, in the order of the positions, as far as positions were claimed when it began. So a write
//! that began after another one had returned is taken after it. A position that is claimed and not posted yet is left
//! for the next time, because that write has not returned.
//!
//! The mount stops posts by setting the limit to 0, and then takes the posted writes. A program looks at the limit
//! again after it has posted, behind a fence, as the mount has one behind its store. So either the program sees the
//! limit, or the mount sees the post. A program that sees the limit calls its post off by another compare-and-exchange.
//! If that fails, the mount has taken the write, and it has happened; else the program makes the real call. The same
//! holds for all other reasons for which a program may not post any longer.
//!
//! A mount that allows posts again first refuses what was posted while it was stopped. Such a program may see the new
//! limit, so it looks at its slot as well, after the limit.
//!
//! | state of position `p` | the next one | by |
//! |---|---|---|
//! | `FREE` | `POSTED`; `FREE` of `p + slots` if it is given up | the claimer |
//! | `POSTED` | `TAKEN` | the mount |
//! | | `FREE` of `p + slots` (called off) | the claimer |
//! | `TAKEN` | `FREE` of `p + slots`; `REFUSED` | the mount |
//! | `REFUSED` | `FREE` of `p + slots` | the claimer |
//!
//! A program that dies with a position claimed leaves its slot unusable, and the ring is full from then on; the mount
//! then gives programs another ring. `loom` tries the interleavings.

use crate::layout::{PostSlot, RingHead};
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

const FREE: u64 = 0;
const POSTED: u64 = 1;
const TAKEN: u64 = 2;
const REFUSED: u64 = 3;
const KIND: u64 = 3;
const POSITION_SHIFT: u32 = 2;

fn state(position: u64, kind: u64) -> u64 {
    position << POSITION_SHIFT | kind
}

/// Why a write cannot be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing may be posted.
    Stopped,
    /// The write ends beyond the limit.
    Beyond,
    /// The ring is full: the mount has to take earlier writes out of it first.
    Full,
}

/// A position that a program has claimed.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    position: u64,
    /// The slot of the write.
    pub slot: usize,
}

/// A write, as a program describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// Where in the file the write begins.
    pub offset: u64,
    /// The length of the write.
    pub len: u32,
    /// The handle of the open file.
    pub handle: u32,
}

/// What the mount finds at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A write, which is now taken: `release` or `refuse` has to follow.
    Post(Post),
    /// The position is claimed, and the write is perhaps posted later.
    Open,
    /// The write was taken or called off.
    Over,
}

/// States before the first use.
pub fn begin(slots: &[PostSlot]) {
    for (slot, position) in slots.iter().zip(0..) {
        slot.state.store(state(position, FREE), SeqCst);
    }
}

/// Claims a position for a write that ends at `end`.
#[inline]
pub fn claim(head: &RingHead, slots: &[PostSlot], end: u64) -> Result<Claim, Refusal> {
    let limit = head.limit.0.load(Acquire);
    if end > limit {
        return Err(if limit == 0 { Refusal::Stopped } else { Refusal::Beyond });
    }
    let mut position = head.tail.0.load(Acquire);
    loop {
        let slot = (position % slots.len().max(1) as u64) as usize;
        let is_free = slots.get(slot).is_some_and(|slot| slot.state.load(Acquire) == state(position, FREE));
        if !is_free {
            let now = head.tail.0.load(Acquire);
            if now == position {
                return Err(Refusal::Full);
            }
            position = now;
            continue;
        }
        match head.tail.0.compare_exchange(position, position.wrapping_add(1), SeqCst, Acquire) {
            Ok(_) => return Ok(Claim { position, slot }),
            Err(now) => position = now,
        }
    }
}

/// Posts what the caller has stored in the slot. `may_still`: whether the caller may still post, looked at after it
/// has. Returns whether the write has happened; if not, the caller makes it by a call.
#[inline]
pub fn post(head: &RingHead, slots: &[PostSlot], claim: Claim, what: Post, may_still: impl FnOnce() -> bool) -> bool {
    let Some(slot) = slots.get(claim.slot) else { return false };
    let (before, behind) = (claim.position, claim.position.wrapping_add(slots.len() as u64));
    let end = what.offset.saturating_add(u64::from(what.len));
    if end > head.limit.0.load(Acquire) {
        give_up(slots, claim);
        return false;
    }
    slot.offset.store(what.offset, Relaxed);
    slot.what.store(u64::from(what.len) << 32 | u64::from(what.handle), Relaxed);
    if slot.state.compare_exchange(state(before, FREE), state(before, POSTED), SeqCst, Relaxed).is_err() {
        return false;
    }
    fence(SeqCst);
    let is_allowed = end <= head.limit.0.load(SeqCst) && may_still();
    // The limit may be a new one, from after a stop whose posts the mount has refused.
    if is_allowed && slot.state.load(SeqCst) != state(before, REFUSED) {
        return true;
    }
    match slot.state.compare_exchange(state(before, POSTED), state(behind, FREE), SeqCst, Acquire) {
        Ok(_) => false,
        Err(now) if now == state(before, REFUSED) => {
            slot.state.store(state(behind, FREE), Release);
            false
        }
        Err(_) => true,
    }
}

/// Gives a claimed position up.
pub fn give_up(slots: &[PostSlot], claim: Claim) {
    if let Some(slot) = slots.get(claim.slot) {
        slot.state.store(state(claim.position.wrapping_add(slots.len() as u64), FREE), Release);
    }
}

/// Sets the limit. What was posted under a former limit is seen by a `span` that follows.
pub fn set_limit(head: &RingHead, limit: u64) {
    head.limit.0.store(limit, SeqCst);
    fence(SeqCst);
}

/// The positions that the mount has to look at, if it knows that those before `first` are over. A slot serves a
/// position only when the one before it is over; so only the last ones, one for each slot, can be open or posted.
pub fn span(head: &RingHead, slots: &[PostSlot], first: u64) -> (u64, u64) {
    let tail = head.tail.0.load(SeqCst);
    let claimed = tail.wrapping_sub(first).min(slots.len() as u64);
    (tail.wrapping_sub(claimed), tail)
}

/// Examines a position, and takes the write at that position.
pub fn take(slots: &[PostSlot], position: u64) -> Found {
    let slot = &slots[(position % slots.len() as u64) as usize];
    let posted = state(position, POSTED);
    match slot.state.load(SeqCst) {
        now if now == posted => match slot.state.compare_exchange(posted, state(position, TAKEN), SeqCst, SeqCst) {
            Ok(_) => {
                let what = slot.what.load(Relaxed);
                let (len, handle) = ((what >> 32) as u32, what as u32);
                Found::Post(Post { offset: slot.offset.load(Relaxed), len, handle })
            }
            // The program called the write off.
            Err(_) => Found::Over,
        },
        now if now == state(position, FREE) => Found::Open,
        _ => Found::Over,
    }
}

/// The bytes of a write that was taken are no longer used: the slot is free for the next one.
pub fn release(slots: &[PostSlot], position: u64) {
    let slot = &slots[(position % slots.len() as u64) as usize];
    slot.state.store(state(position.wrapping_add(slots.len() as u64), FREE), Release);
}

/// A write that was taken does not count: its program has to call.
pub fn refuse(slots: &[PostSlot], position: u64) {
    slots[(position % slots.len() as u64) as usize].state.store(state(position, REFUSED), SeqCst);
}

/// Refuses what is posted, whatever its position.
pub fn refuse_all(slots: &[PostSlot]) {
    for slot in slots {
        let now = slot.state.load(SeqCst);
        if now & KIND == POSTED {
            let refused = now & !KIND | REFUSED;
            // The program may be calling the write off.
            let _ = slot.state.compare_exchange(now, refused, SeqCst, SeqCst);
        }
    }
}

/// Whether nothing can be posted although everything was taken that is there: a position is claimed by a program that
/// has died, or has not gone on yet.
pub fn is_stuck(head: &RingHead, slots: &[PostSlot]) -> bool {
    let tail = head.tail.0.load(SeqCst);
    let now = slots[(tail % slots.len() as u64) as usize].state.load(SeqCst);
    now & KIND != POSTED && now != state(tail, FREE)
}

#[cfg(all(test, feature = "loom"))]
mod tests;
