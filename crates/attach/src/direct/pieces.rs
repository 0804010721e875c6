//! The buffers of a program's call as one range of bytes.
//!
//! Owns: copies between them and a slot, and the calls of the kernel for them.

use crate::read::{Piece, STRICT};
use crate::sys;
use core::sync::atomic::Ordering::Relaxed;

/// Sum of the lengths; `None` if only the kernel judges such a length.
pub(crate) fn length(pieces: &[Piece]) -> Option<usize> {
    pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len))
}

/// Calls `each` with the parts of `pieces` that contain the bytes from `from` on, `len` in all, and with the place of
/// each part in these `len` bytes, until it answers that it failed.
fn parts(pieces: &[Piece], mut from: usize, len: usize, mut each: impl FnMut(*mut u8, usize, usize) -> bool) -> bool {
    let mut at = 0;
    for piece in pieces {
        if from >= piece.len {
            from -= piece.len;
            continue;
        }
        let part = (piece.len - from).min(len - at);
        if part > 0 && !each(piece.base.cast::<u8>().wrapping_add(from), at, part) {
            return false;
        }
        at += part;
        from = 0;
        if at == len {
            break;
        }
    }
    true
}

/// # Safety
/// `from` is readable and `into` writable for so many bytes, apart from a bad buffer of the program if the kernel
/// copies.
unsafe fn copy(into: *mut u8, from: *const u8, len: usize) -> bool {
    if STRICT.load(Relaxed) {
        return sys::copy_checked(into, from, len);
    }
    // SAFETY: the caller vouches for it.
    unsafe { core::ptr::copy_nonoverlapping(from, into, len) };
    true
}

/// Copies bytes of the program to `into`. `None`: a buffer is bad.
///
/// # Safety
/// The program vouches for its buffers, and `into` has space.
pub(crate) unsafe fn gather(pieces: &[Piece], from: usize, into: *mut u8, len: usize) -> Option<()> {
    // SAFETY: the caller vouches for both.
    parts(pieces, from, len, |piece, at, part| unsafe { copy(into.wrapping_add(at), piece, part) }).then_some(())
}

/// Copies bytes to the buffers of the program. `None`: a buffer is bad.
///
/// # Safety
/// As `gather`.
pub(crate) unsafe fn scatter(bytes: *const u8, pieces: &[Piece], from: usize, len: usize) -> Option<()> {
    // SAFETY: the caller vouches for both.
    parts(pieces, from, len, |piece, at, part| unsafe { copy(piece, bytes.wrapping_add(at), part) }).then_some(())
}

/// Reads at `offset` through the page cache, no more than `len` bytes. Returns how many bytes that were.
///
/// # Safety
/// The program vouches for its buffers.
pub(crate) unsafe fn by_kernel(fd: i32, pieces: &[Piece], len: usize, offset: u64) -> usize {
    let mut done = 0;
    parts(pieces, 0, len, |piece, at, part| {
        let mut of_part = 0;
        while of_part < part {
            let (base, place) = (piece.wrapping_add(of_part).cast(), offset + (at + of_part) as u64);
            // SAFETY: the caller vouches for the buffers.
            match unsafe { sys::pread(fd, base, part - of_part, place) } {
                Ok(n) if n > 0 => of_part += n,
                _ => break,
            }
        }
        done += of_part;
        of_part == part
    });
    done
}
