//! Writes of descriptors that are posted into shared memory.
//!
//! Owns: what is checked, in which order, and the position of descriptors. Does not own: the rules of the memory
//! (`amphi_shm::posts`).
//!
//! Order of a write: the word of the descriptor, its flags as the kernel has them now, the generation of its handle,
//! the lease, then the rules of the memory; after the write was posted, the generation, the lease and the word once
//! more. A close that has returned has raised the generation, and the mount then takes what was posted before. So a
//! write that has returned was posted while its descriptor was open.
//!
//! **Positions** are the kernel's, as for reads. `write_next` stores the bytes in the ring first, then moves the
//! position by one `lseek`, which gives this call its part of the file, and posts the write there. If it cannot be
//! posted any more, it is written there by a call.

use crate::read::{Piece, STRICT};
use crate::report::{Way, count};
use crate::table::{self, Known, Shared};
use crate::{identify, maps, sys};
use amphi_shm::layout::POST_BYTES;
use amphi_shm::posts::{self, Claim, Post, Refusal};
use core::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst};

/// Longest write that is posted. A longer one costs less through the kernel, which passes whole units of memory to the
/// mount without a copy.
const POSTED_MAX: usize = 16 << 10;
const _: () = assert!(POSTED_MAX <= POST_BYTES);

/// A descriptor that may post now.
struct Writer {
    place: &'static AtomicU64,
    word: u64,
    shared: Shared,
    ring: maps::Ring,
}

impl Writer {
    /// Whether the handle of the writer is the same as before, and the mount alive.
    #[inline]
    fn may_post(&self) -> bool {
        maps::board(self.shared.board, self.shared.handle).is_some_and(|(board, generation)| {
            generation.load(SeqCst) == self.shared.generation && sys::boot_ns() < board.lease.0.load(SeqCst)
        }) && self.place.load(SeqCst) == self.word
    }

    /// Claims a place for a write that ends at `end`.
    #[inline]
    fn claim(&self, end: u64) -> Option<Claim> {
        match posts::claim(self.ring.head(), self.ring.slots(), end) {
            Ok(claim) => {
                self.ring.note_full(false);
                Some(claim)
            }
            Err(refusal) => {
                let is_stuck = refusal == Refusal::Full && self.ring.note_full(true);
                if refusal == Refusal::Stopped || is_stuck {
                    table::doubt(self.place, self.word);
                }
                count(if refusal == Refusal::Full { Way::Full } else { Way::NotPosted });
                None
            }
        }
    }

    /// Stores the bytes; gives the place up if they cannot be read.
    #[inline]
    fn store(&self, claim: Claim, pieces: &[Piece], len: usize) -> bool {
        let mut into = self.ring.bytes(claim.slot);
        let mut left = len;
        for piece in pieces {
            let part = piece.len.min(left);
            let from = piece.base.cast::<u8>().cast_const();
            if STRICT.load(Relaxed) {
                if part > 0 && !sys::copy_checked(into, from, part) {
                    posts::give_up(self.ring.slots(), claim);
                    return false;
                }
            } else {
                // SAFETY: the program vouches for its buffer, as it does to `memcpy`. The slot is claimed, and the sum
                // of all parts is not longer than it.
                unsafe { core::ptr::copy_nonoverlapping(from, into, part) };
            }
            into = into.wrapping_add(part);
            left -= part;
        }
        true
    }

    #[inline]
    fn post(&self, claim: Claim, offset: u64, len: usize) -> bool {
        let post = Post { offset, len: len as u32, handle: self.shared.handle as u32 };
        posts::post(self.ring.head(), self.ring.slots(), claim, post, || self.may_post())
    }
}

/// The length of a write that may be posted.
#[inline]
fn length(pieces: &[Piece]) -> Option<usize> {
    let sum = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len))?;
    (1..=POSTED_MAX).contains(&sum).then_some(sum)
}

/// The state of a descriptor, if it may post; determines it when it is time to.
#[inline]
fn look(fd: i32) -> Option<Writer> {
    let place = table::writer(fd)?;
    let mut word = place.load(Acquire);
    if table::known(word) == Known::Nothing {
        if !table::note_write(place, word) {
            return None;
        }
        identify::identify_writer(fd, place, word);
        word = place.load(Acquire);
    }
    let Known::Shared(shared) = table::known(word) else { return None };
    let Some(ring) = maps::ring(shared.map) else {
        table::doubt(place, word);
        return None;
    };
    let writer = Writer { place, word, shared, ring };
    if !writer.may_post() {
        let (_, generation) = maps::board(shared.board, shared.handle)?;
        if generation.load(Acquire) != shared.generation {
            table::doubt(place, word);
        }
        count(Way::NotPosted);
        return None;
    }
    if !sys::writes_plainly(fd) {
        count(Way::NotPosted);
        return None;
    }
    Some(writer)
}

/// Writes at an offset. `None`: the caller has to ask the kernel.
///
/// # Safety
/// The pieces are buffers that the program has given for writing from.
#[inline]
pub unsafe fn write_at(fd: i32, pieces: &[Piece], offset: i64) -> Option<usize> {
    let (offset, len) = (u64::try_from(offset).ok()?, length(pieces)?);
    let writer = look(fd)?;
    let claim = writer.claim(offset.checked_add(len as u64)?)?;
    if !writer.store(claim, pieces, len) {
        return None;
    }
    if !writer.post(claim, offset, len) {
        count(Way::NotPosted);
        return None;
    }
    count(Way::Posted);
    Some(len)
}

/// Writes at the position of the descriptor, and moves it. `None`: the caller has to ask the kernel, whose position is
/// where it was.
///
/// # Safety
/// As `write_at`.
#[inline]
pub unsafe fn write_next(fd: i32, pieces: &[Piece]) -> Option<usize> {
    let len = length(pieces)?;
    let writer = look(fd)?;
    let claim = writer.claim(len as u64)?;
    if !writer.store(claim, pieces, len) {
        return None;
    }
    let Ok(after) = sys::seek_by(fd, len as i64) else {
        posts::give_up(writer.ring.slots(), claim);
        return None;
    };
    let mine = after.wrapping_sub(len as u64);
    if writer.post(claim, mine, len) {
        count(Way::Posted);
        return Some(len);
    }
    drop(writer);
    count(Way::NotPosted);
    // SAFETY: the caller vouches for the pieces.
    unsafe { by_kernel(fd, pieces, mine, len) }
}

/// Writes a part that the position has passed already through the kernel, and moves it back by what was not written.
#[cold]
unsafe fn by_kernel(fd: i32, pieces: &[Piece], offset: u64, len: usize) -> Option<usize> {
    let mut written = 0;
    for piece in pieces {
        // SAFETY: the caller vouches for the pieces.
        match unsafe { sys::pwrite(fd, piece.base, piece.len, offset + written as u64) } {
            Ok(n) => {
                written += n;
                if n < piece.len {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    if written < len {
        let _ = sys::seek_by(fd, written as i64 - len as i64);
    }
    // An error shows in the real call at the same position.
    (written > 0).then_some(written)
}
