//! Large requests of programs: the decision, the parts, and the position of the descriptor.
//!
//! Owns: what `read_at` and its siblings do, from the question whether a request goes direct to its result. Does not
//! own: what is known of the file (`file`), the transfer of a part (`transfer`).
//!
//! **Positions.** As for files of a mount, the kernel keeps the position, which other processes may share. A read is
//! made where the position is, and then moves it by what was read; if it was elsewhere, the moved part belongs to this
//! call, which reads it there. A write moves the position first, which gives it its part of the file, and moves it back
//! by what was not written.
//!
//! **Errors.** The result of a request is never an error of a direct transfer. What a transfer does not do is done
//! through the page cache, and if nothing was done at all, the caller makes the real call, whose result counts.
//!
//! **Signals** are handled when the request is done, as during a call of the kernel on a regular file.

use super::file::{File, Left, inspect};
use super::memory::{PART_MAX, Slot};
use super::transfer::{Done, place, transfer};
use super::{pieces, tally};
use crate::read::Piece;
use crate::{sys, table};
use amphi_policy::decision::{Decision, Input, Mode, Reason, Way, decide};
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

/// The thresholds of a mount (docs/HYBRID.md).
const LARGE_READ_BYTES: u64 = 8 << 20;
const LARGE_WRITE_BYTES: u64 = 2 << 20;
/// A direct transfer takes about 40 us longer than a call through the page cache, so this threshold is higher than that
/// of a mount.
const SMALL_BYTES: u64 = 256 << 10;
/// The least that goes direct in a program that asks for it.
const ASKED_BYTES: usize = 4096;
/// The kernel transfers no more in one call.
const CALL_MAX: usize = 0x7fff_f000;

/// The length from which on a request is looked at.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
static ASKED: AtomicU8 = AtomicU8::new(0);

/// Large requests of files in named folders go direct from now on, by the rules or as `AMPHI_IO_MODE` says.
pub fn turn_direct_on(folders: &[u8], mode: Option<&[u8]>) {
    let asked = match mode {
        Some(b"buffered") => return,
        Some(b"direct") => true,
        _ => false,
    };
    if super::folders::set(folders) {
        ASKED.store(asked.into(), Relaxed);
        let least = if asked { ASKED_BYTES } else { LARGE_READ_BYTES.min(LARGE_WRITE_BYTES) as usize };
        LEAST.store(least, Relaxed);
    }
}

/// Whether a request of this length may go direct.
#[inline]
pub fn may_go_direct(len: usize) -> bool {
    len >= LEAST.load(Relaxed)
}

/// Whether any request may go direct.
#[inline]
pub fn is_direct_on() -> bool {
    may_go_direct(usize::MAX - 1)
}

/// A request that goes direct.
struct Request<'a> {
    fd: i32,
    file: File,
    slot: Slot,
    way: Way,
    reason: Reason,
    pieces: &'a [Piece],
    len: usize,
}

/// Whether a request goes direct. `None`: it is the kernel's. `offset`: where it begins, or nothing for the position.
#[inline(never)]
fn look<'a>(fd: i32, way: Way, pieces: &'a [Piece], offset: Option<i64>) -> Option<(Request<'a>, u64)> {
    let len = pieces::length(pieces)?;
    if !may_go_direct(len) || table::is_off() || table::is_outside(fd) {
        return None;
    }
    let Some(mut slot) = Slot::claim() else {
        tally::left(way, Left::Unusual, len as u64);
        return None;
    };
    let file = match inspect(fd, way, &mut slot)? {
        Ok(file) => file,
        Err(why) => {
            tally::left(way, why, len as u64);
            return None;
        }
    };
    let offset = match offset {
        Some(offset) => u64::try_from(offset).ok(),
        None => sys::seek_by(fd, 0).ok(),
    };
    let end = offset.and_then(|offset| offset.checked_add(len as u64));
    let (Some(offset), true, true) = (offset, end.is_some_and(|end| end <= i64::MAX as u64), len <= CALL_MAX) else {
        tally::left(way, Left::Unusual, len as u64);
        return None;
    };
    let Decision { mode, reason } = decision(fd, &file, way, offset, len as u64);
    if mode == Mode::Buffered {
        tally::decided(file.kind, way, reason, len as u64);
        return None;
    }
    Some((Request { fd, file, slot, way, reason, pieces, len }, offset))
}

fn decision(fd: i32, file: &File, way: Way, offset: u64, len: u64) -> Decision {
    // Bytes behind the end, and bytes that the page cache has, take no transfer.
    let (size, large_bytes) = match way {
        Way::Read => (len.min(file.size.saturating_sub(offset)), LARGE_READ_BYTES),
        Way::Write => (len, LARGE_WRITE_BYTES),
    };
    let is_asked = ASKED.load(Relaxed) != 0;
    let cached = match way {
        Way::Read if size > 0 && !is_asked => sys::cached_bytes(fd, offset, size).unwrap_or(0),
        _ => 0,
    };
    let left = size.saturating_sub(cached);
    if left == 0 {
        let reason = if size == 0 { Reason::BufferedSmall } else { Reason::CacheHit };
        return Decision { mode: Mode::Buffered, reason };
    }
    decide(&Input {
        size: left,
        o_direct: false,
        asked: is_asked.then_some(Mode::Direct),
        large_bytes,
        small_bytes: SMALL_BYTES,
        kernel_keeps: false,
        contended: false,
        memory_short: false,
        overcache: false,
        no_locality: false,
        cache_is_faster: false,
        misfit: false,
    })
}

impl Request<'_> {
    /// Carries the request out at an offset, while signals are blocked. Returns how many bytes were transferred, from
    /// the first one on; 0: the caller has to ask the kernel. It is less than requested where the kernel would transfer
    /// no more either, and if the number means another file from a part on.
    ///
    /// # Safety
    /// The pieces are buffers of the program, to be written to if this is a read.
    unsafe fn carry_out(&self, offset: u64) -> usize {
        let (mut bytes, mut direct) = (0, 0);
        while bytes < self.len {
            let at = offset + bytes as u64;
            // All parts but the last one end with a unit.
            let part = (PART_MAX - (at % self.file.unit) as usize).min(self.len - bytes);
            // SAFETY: the caller vouches for the pieces.
            let Some(done) = (unsafe { self.part(at, bytes, part) }) else { break };
            bytes += done.bytes;
            direct += done.direct;
            if done.bytes < part {
                break;
            }
        }
        match direct {
            0 => tally::left(self.way, Left::Refused, self.len as u64),
            _ => tally::decided(self.file.kind, self.way, self.reason, bytes as u64),
        }
        bytes
    }

    /// One part. `None`: a buffer of the program is bad, and its bytes were not transferred.
    unsafe fn part(&self, at: u64, from: usize, len: usize) -> Option<Done> {
        let data = place(&self.slot, self.file.unit, at);
        if self.way == Way::Write {
            // SAFETY: the slot has space for a part; the caller vouches for the pieces.
            unsafe { pieces::gather(self.pieces, from, data, len) }?;
        }
        let done = transfer(&self.slot, self.fd, &self.file, self.way, at, len);
        if self.way == Way::Read {
            // SAFETY: as above; no more bytes than a part were read.
            unsafe { pieces::scatter(data, self.pieces, from, done.bytes) }?;
        }
        Some(done)
    }
}

/// Reads or writes at an offset. `None`: the caller has to ask the kernel.
///
/// # Safety
/// The pieces are buffers that the program has given for it.
pub unsafe fn direct_at(fd: i32, way: Way, pieces: &[Piece], offset: i64) -> Option<usize> {
    let (request, offset) = look(fd, way, pieces, Some(offset))?;
    let signals = sys::block_signals().ok()?;
    // SAFETY: the caller vouches for the pieces.
    let bytes = unsafe { request.carry_out(offset) };
    sys::restore_signals(signals);
    (bytes > 0).then_some(bytes)
}

/// Reads or writes at the position of the descriptor, and moves it. `None`: the caller has to ask the kernel, whose
/// position is where it was.
///
/// # Safety
/// As `direct_at`.
pub unsafe fn direct_next(fd: i32, way: Way, pieces: &[Piece]) -> Option<usize> {
    let (request, at) = look(fd, way, pieces, None)?;
    let signals = sys::block_signals().ok()?;
    // SAFETY: the caller vouches for the pieces.
    let bytes = unsafe {
        match way {
            Way::Read => request.read_next(at),
            Way::Write => request.write_next(),
        }
    };
    sys::restore_signals(signals);
    bytes.filter(|bytes| *bytes > 0)
}

impl Request<'_> {
    unsafe fn read_next(&self, at: u64) -> Option<usize> {
        // SAFETY: the caller vouches for the pieces.
        let read = unsafe { self.carry_out(at) };
        if read == 0 {
            return None;
        }
        let mine = sys::seek_by(self.fd, read as i64).ok()?.wrapping_sub(read as u64);
        if mine == at {
            return Some(read);
        }
        // Another thread or process has moved the position meanwhile. The part that it has passed belongs to this call.
        // SAFETY: as above.
        let again = unsafe { pieces::by_kernel(self.fd, self.pieces, read, mine) };
        if again < read {
            let _ = sys::seek_by(self.fd, again as i64 - read as i64);
        }
        Some(again)
    }

    unsafe fn write_next(&self) -> Option<usize> {
        let at = sys::seek_by(self.fd, self.len as i64).ok()?.wrapping_sub(self.len as u64);
        // SAFETY: the caller vouches for the pieces.
        let written = unsafe { self.carry_out(at) };
        if written < self.len {
            let _ = sys::seek_by(self.fd, written as i64 - self.len as i64);
        }
        Some(written)
    }
}
