//! Finding out what a descriptor is.
//!
//! Owns: the questions to the kernel and to the mount, in ascending order of cost. Does not own: which processes may
//! learn (`owner`), the stored results (`table`, `maps`).
//!
//! The mount is asked twice. Another thread may put another file in the place of the number while the first question is
//! on its way; the answer is then about the former file, and perhaps from after its close. If both answers are the
//! same, the number meant this open file when the second question began, and no descriptor of it was closed between the
//! answers. So whatever replaces it from then on raises the generation after the second answer.

use crate::owner::is_own_memory;
use crate::table::{self, Shared};
use crate::{maps, sys};
use amphi_shm::layout::{HANDLES, VERSION};
use amphi_shm::talk::{IDENTIFY, Identity, REQUEST_MAGIC, Request, SOCKET_PREFIX, WANT_BOARD, WANT_EXPORT};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Mounts whose memory could not be had: after this many, nothing is tried any more.
static FAILED: AtomicU32 = AtomicU32::new(0);
const FAILED_MAX: u32 = 3;

/// Finds out what a descriptor is whose word is `seen`, and stores that.
#[cold]
#[inline(never)]
pub(crate) fn identify(fd: i32, place: &AtomicU64, seen: u64) {
    match sys::may_be_mounted(fd) {
        Ok(true) => {}
        Ok(false) => return table::learn(place, seen, None),
        // No descriptor, or a kernel without the call.
        Err(_) => return,
    }
    if FAILED.load(Relaxed) >= FAILED_MAX {
        return table::learn(place, seen, None);
    }
    let Some(identity) = ask(fd) else { return table::learn(place, seen, None) };
    table::note_answer(identity.is_shared != 0);
    if identity.version != VERSION as u32 || identity.is_shared == 0 || identity.handle as usize >= HANDLES {
        return table::learn(place, seen, None);
    }
    if !is_own_memory() {
        return;
    }
    let Some((board, map)) = memory_of(&identity) else {
        FAILED.fetch_add(1, Relaxed);
        return table::learn(place, seen, None);
    };
    sys::find_clock();
    if ask(fd) != Some(identity) {
        return table::doubt(place, seen);
    }
    let (handle, generation) = (identity.handle as usize, identity.generation);
    table::learn(place, seen, Some(Shared { map, board, handle, generation }));
    if let Some(position) = table::position(fd) {
        // Not known yet.
        position.store(u64::MAX, Relaxed);
    }
}

fn ask(fd: i32) -> Option<Identity> {
    let mut answer = [0u8; size_of::<Identity>()];
    sys::ask(fd, IDENTIFY, &mut answer).ok().map(|_| from_bytes(&answer))
}

/// The board and the export, mapped.
fn memory_of(identity: &Identity) -> Option<(usize, usize)> {
    let (first, second) = identity.socket.split_at(8);
    let socket = [u64::from_ne_bytes(first.try_into().ok()?), u64::from_ne_bytes(second.try_into().ok()?)];
    let board = maps::known_board(socket);
    if let Some(board) = board
        && let Some(map) = maps::known_export(board, identity.export)
    {
        return Some((board, map));
    }
    if board.is_none() && !sys::address_space_is_unlimited() {
        // Memory mapped here would be missing to the program.
        FAILED.store(FAILED_MAX, Relaxed);
        return None;
    }
    let wanted = WANT_EXPORT | if board.is_none() { WANT_BOARD } else { 0 };
    let request = Request { magic: REQUEST_MAGIC, wanted, secret: identity.secret };
    let connection = sys::connect([SOCKET_PREFIX, &identity.socket]).ok()?;
    let [first, second] = sys::exchange(&connection, &request.to_bytes()).ok()?;
    let (board, export) = match board {
        Some(board) => (board, first?),
        None => (maps::add_board(&first?, socket)?, second?),
    };
    let map = maps::add_export(&export, board, identity.export, identity.slots as usize)?;
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
