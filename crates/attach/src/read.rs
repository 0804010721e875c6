//! Reads of descriptors from shared memory.
//!
//! Owns: what is checked, in which order, and the position of descriptors. Does not own: the rules of the memory
//! (`amphi_shm::rules`).
//!
//! Order of a read: the word of the descriptor, the generation of its handle, the lease, the bytes by the rules of the
//! memory, the generation and the word once more. A close of the handle that has returned has raised the generation;
//! the bytes that the mount shows were right at a moment within the call.
//!
//! **Positions.** The kernel keeps the position of a descriptor, which other processes may share. `read_next` reads at
//! the place where the position probably is, and then moves the position by that much with one `lseek`, which is atomic
//! in the kernel and asks no mount. If the position was elsewhere, the moved part belongs to this call all the same: it
//! reads there. It serves only reads that get all their bytes, so that it never has to move the position back in the
//! common case.

use crate::report::{Way, count};
use crate::table::{self, Known, Shared};
use crate::{identify, maps, sys};
use amphi_shm::rules::{self, Miss};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst, fence};

/// A buffer of a program.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The first byte of the buffer.
    pub base: *mut c_void,
    /// The length of the buffer.
    pub len: usize,
}

/// Longest read that is served here: the size up to which a read of a mount is atomic.
const READ_MAX: u64 = 8 << 20;

/// Bytes are copied through the kernel, so that a bad buffer gives EFAULT instead of a signal.
pub(crate) static STRICT: AtomicBool = AtomicBool::new(false);

/// Copies through the kernel from now on.
pub fn set_strict() {
    STRICT.store(true, Relaxed);
}

/// The address of the next byte.
struct Cursor<'a> {
    pieces: &'a [Piece],
    at: usize,
    is_bad: bool,
}

impl Cursor<'_> {
    /// Copies bytes to where the pieces continue.
    #[inline]
    fn put(&mut self, mut from: *const u8, mut len: usize) {
        while len > 0 {
            let Some(piece) = self.pieces.first() else {
                self.is_bad = true;
                return;
            };
            let part = len.min(piece.len - self.at);
            let into = piece.base.cast::<u8>().wrapping_add(self.at);
            if STRICT.load(Relaxed) {
                self.is_bad |= !sys::copy_checked(into, from, part);
            } else {
                // SAFETY: the program vouches for its buffer, as it does to `memcpy`. What is read lies in a mapping
                // that stays. The mount may change it meanwhile; the caller finds that out and drops what was copied.
                unsafe { core::ptr::copy_nonoverlapping(from, into, part) };
            }
            from = from.wrapping_add(part);
            (self.at, len) = (self.at + part, len - part);
            if self.at == piece.len {
                (self.pieces, self.at) = (&self.pieces[1..], 0);
            }
        }
    }
}

/// Sum of the lengths of the buffers; `None` if only the kernel judges such a length.
#[inline]
fn length(pieces: &[Piece]) -> Option<u64> {
    let sum = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len as u64))?;
    (sum <= READ_MAX).then_some(sum)
}

/// The contents of the word of a descriptor, if it may be served here; determines them when it is time to.
#[inline]
fn look(fd: i32) -> Option<(&'static AtomicU64, u64, Shared)> {
    let place = table::word(fd)?;
    let word = place.load(Acquire);
    match table::known(word) {
        Known::Shared(shared) => Some((place, word, shared)),
        Known::Kernel => {
            count(Way::Kernel);
            None
        }
        Known::Nothing => {
            if !table::note_read(place, word) {
                count(Way::First);
                return None;
            }
            identify::identify(fd, place, word);
            let word = place.load(Acquire);
            match table::known(word) {
                Known::Shared(shared) => Some((place, word, shared)),
                _ => {
                    count(Way::Kernel);
                    None
                }
            }
        }
    }
}

/// Copies what a read of the pieces at `offset` returns.
#[inline]
fn copy((place, word, shared): (&AtomicU64, u64, Shared), pieces: &[Piece], offset: u64, len: u64) -> Option<u64> {
    let (board, generation) = maps::board(shared.board, shared.handle)?;
    if generation.load(Acquire) != shared.generation {
        table::doubt(place, word);
        count(Way::Closed);
        return None;
    }
    let now_ns = sys::boot_ns();
    if now_ns >= board.lease.0.load(Acquire) {
        count(Way::Lease);
        return None;
    }
    let export = maps::export(shared.map)?;
    let mut cursor = Cursor { pieces, at: 0, is_bad: false };
    let read = rules::read(
        &export.head().state,
        export.slots(),
        (offset, len),
        || now_ns,
        |slot, at, part| {
            cursor.put(export.bytes(slot, at), part);
        },
    );
    match read {
        Ok(copied) => {
            fence(Acquire);
            if generation.load(Relaxed) != shared.generation || place.load(Relaxed) != word {
                count(Way::Closed);
                return None;
            }
            if cursor.is_bad {
                count(Way::Unusual);
                return None;
            }
            Some(copied)
        }
        Err(miss) => {
            if miss == Miss::Dead {
                table::doubt(place, word);
                maps::leave(shared.map);
            }
            count(match miss {
                Miss::Dead | Miss::Busy => Way::Busy,
                Miss::Due => Way::Due,
                Miss::Absent => Way::Absent,
                Miss::End => Way::End,
            });
            None
        }
    }
}

/// Reads at an offset. `None`: the caller has to ask the kernel; the buffers are undefined then, as they are while a
/// read is under way.
///
/// # Safety
/// The pieces are buffers that the program has given for reading into.
#[inline]
pub unsafe fn read_at(fd: i32, pieces: &[Piece], offset: i64) -> Option<usize> {
    let found = look(fd)?;
    let (Ok(offset), Some(len)) = (u64::try_from(offset), length(pieces)) else {
        count(Way::Unusual);
        return None;
    };
    // Beyond the largest file the kernel has an error to tell.
    if offset + len > i64::MAX as u64 {
        count(Way::Unusual);
        return None;
    }
    let copied = copy(found, pieces, offset, len)?;
    count(Way::Shared);
    Some(copied as usize)
}

/// Reads all of the pieces at an offset, or nothing.
fn copy_all(found: (&AtomicU64, u64, Shared), pieces: &[Piece], offset: u64, len: u64) -> bool {
    match copy(found, pieces, offset, len) {
        Some(copied) if copied == len => true,
        Some(_) => {
            count(Way::End);
            false
        }
        None => false,
    }
}

/// Reads at the position of the descriptor, and moves it. `None`: the caller has to ask the kernel, whose position is
/// where it was.
///
/// # Safety
/// As `read_at`.
#[inline]
pub unsafe fn read_next(fd: i32, pieces: &[Piece]) -> Option<usize> {
    let found = look(fd)?;
    let (hint, len) = (table::position(fd)?, length(pieces)?);
    if len == 0 {
        return None;
    }
    let mut at = hint.load(Relaxed);
    let mut is_copied = at != u64::MAX && copy_all(found, pieces, at, len);
    if !is_copied {
        // Perhaps the program has moved the position. To ask the kernel costs a hundredth of what the mount would take.
        let now = sys::seek_by(fd, 0).ok()?;
        if now == at {
            // The probable position when the kernel has read.
            hint.store(at.wrapping_add(len), Relaxed);
            return None;
        }
        at = now;
        is_copied = copy_all(found, pieces, at, len);
        if !is_copied {
            hint.store(at.wrapping_add(len), Relaxed);
            return None;
        }
    }
    let after = sys::seek_by(fd, len as i64).ok()?;
    hint.store(after, SeqCst);
    let mine = after.wrapping_sub(len);
    if mine == at || copy_all(found, pieces, mine, len) {
        count(Way::Shared);
        return Some(len as usize);
    }
    // The position was elsewhere, and the bytes there are not shared. This part belongs to this call, by the position.
    // SAFETY: the caller vouches for the pieces.
    unsafe { from_kernel(fd, pieces, mine, len) }
}

/// Reads a part that the position has passed already through the kernel, and moves it back by the part behind the end.
#[cold]
unsafe fn from_kernel(fd: i32, pieces: &[Piece], offset: u64, len: u64) -> Option<usize> {
    let mut read = 0;
    for piece in pieces {
        // SAFETY: the caller vouches for the pieces.
        match unsafe { sys::pread(fd, piece.base, piece.len, offset + read) } {
            Ok(n) => {
                read += n as u64;
                if n < piece.len {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    if read < len {
        let _ = sys::seek_by(fd, read as i64 - len as i64);
    }
    // An error shows in the real call at the same position; the end of the file does as well.
    (read > 0).then_some(read as usize)
}
