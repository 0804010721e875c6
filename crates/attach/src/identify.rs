//! Finding out what a descriptor is.
//!
//! Owns: the questions to the kernel and to the mount, in ascending order of cost. Does not own: which processes may
//! learn (`owner`), the stored results (`table`, `maps`).
//!
//! The library asks the mount two questions. Another thread may put another file in the place of the number while the
//! first question is on its way; the answer is then about the former file, and perhaps from after its close. If both
//! answers are the same, the number meant this open file when the second question began, and no descriptor of it was
//! closed between the answers. So whatever replaces it from then on raises the generation after the second answer.

use crate::owner::is_own_memory;
use crate::table::{self, Shared};
use crate::{maps, sys};
use amphi_shm::layout::{HANDLES, VERSION};
use amphi_shm::talk::{
    IDENTIFY, IDENTIFY_WRITER, Identity, REQUEST_MAGIC, Request, SOCKET_PREFIX, WANT_BOARD, WANT_EXPORT, WANT_RING,
};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Number of mounts whose memory could not be mapped. From `FAILED_MAX` on, no more mounts are tried.
static FAILED: AtomicU32 = AtomicU32::new(0);
/// As `FAILED`, for rings.
static FAILED_WRITERS: AtomicU32 = AtomicU32::new(0);
const FAILED_MAX: u32 = 3;
/// How often a mount has not answered in time. A descriptor then asks again after further reads or writes, whose number
/// doubles each time. From `LATE_MAX` on that counts as a failure, so a process waits for two seconds at most in all.
static LATE: AtomicU32 = AtomicU32::new(0);
const LATE_MAX: u32 = 10;

/// Why there is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    ForGood,
    /// The mount was busy, or a signal came.
    ThisTime,
}

impl Lack {
    fn of(failure: sys::Failure) -> Lack {
        if failure.is_late() && LATE.fetch_add(1, Relaxed) < LATE_MAX { Lack::ThisTime } else { Lack::ForGood }
    }
}

/// Finds out what a descriptor is whose word is `seen`, and stores that.
#[cold]
#[inline(never)]
pub(crate) fn identify(fd: i32, place: &AtomicU64, seen: u64) {
    if let Some((shared, export)) = found(fd, place, seen, IDENTIFY) {
        table::learn(place, seen, shared, || maps::is_export(shared.map, shared.board, export));
        if let Some(position) = table::position(fd) {
            // The position is not known yet.
            position.store(u64::MAX, Relaxed);
        }
    }
}

/// As `identify`, for the word of writes.
#[cold]
#[inline(never)]
pub(crate) fn identify_writer(fd: i32, place: &AtomicU64, seen: u64) {
    if !sys::file_size_is_unlimited() {
        return table::learn_foreign(place, seen);
    }
    if let Some((shared, ring)) = found(fd, place, seen, IDENTIFY_WRITER) {
        table::learn(place, seen, shared, || maps::is_ring(shared.map, shared.board, ring));
    }
}

/// What a descriptor is, and the number of its export or ring. Returns `None` if the result was stored already.
fn found(fd: i32, place: &AtomicU64, seen: u64, command: u32) -> Option<(Shared, u64)> {
    let is_writer = command == IDENTIFY_WRITER;
    let foreign = || {
        table::learn_foreign(place, seen);
        None
    };
    match sys::may_be_mounted(fd) {
        Ok(true) => {}
        Ok(false) => return foreign(),
        // The number is no descriptor, or the kernel does not have the call.
        Err(_) => return None,
    }
    let failed = if is_writer { &FAILED_WRITERS } else { &FAILED };
    if failed.load(Relaxed) >= FAILED_MAX {
        return foreign();
    }
    let Some(identity) = ask(fd, command) else { return foreign() };
    let note_answer = if is_writer { table::note_writer_answer } else { table::note_answer };
    note_answer(identity.is_shared != 0);
    if is_writer && identity.is_shared == 0 {
        // Perhaps later.
        table::doubt(place, seen);
        return None;
    }
    if identity.version != VERSION as u32 || identity.is_shared == 0 || identity.handle as usize >= HANDLES {
        return foreign();
    }
    if !is_own_memory() {
        return None;
    }
    let (board, map) = match memory_of(&identity, is_writer) {
        Ok(maps) => maps,
        Err(Lack::ThisTime) => {
            note_answer(false);
            table::doubt(place, seen);
            return None;
        }
        Err(Lack::ForGood) => {
            failed.fetch_add(1, Relaxed);
            return foreign();
        }
    };
    sys::find_clock();
    if ask(fd, command) != Some(identity) {
        table::doubt(place, seen);
        return None;
    }
    let shared = Shared { map, board, handle: identity.handle as usize, generation: identity.generation };
    Some((shared, identity.export))
}

fn ask(fd: i32, command: u32) -> Option<Identity> {
    let mut answer = [0u8; size_of::<Identity>()];
    sys::ask(fd, command, &mut answer).ok().map(|_| from_bytes(&answer))
}

/// The board, and the export or the ring, mapped.
fn memory_of(identity: &Identity, is_writer: bool) -> Result<(usize, usize), Lack> {
    let (first, second) = identity.socket.split_at(8);
    let half = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).map_err(|_| Lack::ForGood);
    let socket = [half(first)?, half(second)?];
    let board = maps::known_board(socket);
    let known = if is_writer { maps::known_ring } else { maps::known_export };
    if let Some(board) = board
        && let Some(map) = known(board, identity.export)
    {
        return Ok((board, map));
    }
    if board.is_none() && !sys::address_space_is_unlimited() {
        // Memory mapped here would be missing to the program.
        FAILED.store(FAILED_MAX, Relaxed);
        FAILED_WRITERS.store(FAILED_MAX, Relaxed);
        return Err(Lack::ForGood);
    }
    let wanted = if is_writer { WANT_RING } else { WANT_EXPORT } | if board.is_none() { WANT_BOARD } else { 0 };
    let request = Request { magic: REQUEST_MAGIC, wanted, secret: identity.secret };
    let connection = sys::connect([SOCKET_PREFIX, &identity.socket]).map_err(Lack::of)?;
    let answer = sys::exchange(&connection, &request.to_bytes()).map_err(Lack::of)?;
    mapped(answer, (board, socket), identity, is_writer).ok_or(Lack::ForGood)
}

/// Maps what a mount has sent.
fn mapped(
    [first, second]: [Option<sys::Owned>; 2],
    (board, socket): (Option<usize>, [u64; 2]),
    identity: &Identity,
    is_writer: bool,
) -> Option<(usize, usize)> {
    let (board, memory) = match board {
        Some(board) => (board, first?),
        None => (maps::add_board(&first?, socket)?, second?),
    };
    let map = match is_writer {
        true => maps::add_ring(&memory, board, identity.export)?,
        false => maps::add_export(&memory, board, identity.export, identity.slots as usize)?,
    };
    Some((board, map))
}

fn from_bytes(bytes: &[u8; size_of::<Identity>()]) -> Identity {
    let word = |at: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&bytes[at..at + 4]);
        u32::from_ne_bytes(word)
    };
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let name = |at: usize| {
        let mut name = [0; 16];
        name.copy_from_slice(&bytes[at..at + 16]);
        name
    };
    Identity {
        version: word(0),
        is_shared: word(4),
        handle: word(8),
        generation: word(12),
        export: long(16),
        secret: name(24),
        socket: name(40),
        slots: long(56),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a mount that did not answer in time, or a signal, does not leave a descriptor to the kernel for good, but
    /// a process waits only for a bounded time; a socket that cannot be reached does. Method: the errors of the calls.
    #[test]
    fn a_busy_mount_is_asked_again() {
        const ECONNREFUSED: i32 = 111;
        assert_eq!(Lack::of(sys::Failure(ECONNREFUSED)), Lack::ForGood);
        for late in [4, 11, 4, 11, 11] {
            assert_eq!(Lack::of(sys::Failure(late)), Lack::ThisTime);
        }
        LATE.store(LATE_MAX, Relaxed);
        assert_eq!(Lack::of(sys::Failure(11)), Lack::ForGood);
        LATE.store(0, Relaxed);
    }
}
