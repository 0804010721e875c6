//! A direct transfer between a slot and a file, by a thread that has descriptors of its own.
//!
//! Owns: the thread, the second open of the file, which bytes go direct and which through the page cache. Does not own:
//! the slot's content before and after (`request`), whether a transfer is made at all (`request`, `file`).
//!
//! **Why a thread.** `O_DIRECT` belongs to an open file, which a program's descriptors may share with other processes.
//! So the file is opened a second time, as `/proc/self/task/TID/fd/N`. A second descriptor in the table of the program
//! would be seen: another thread could get another number than it counts on, a child of `fork` would inherit it, it
//! counts for `RLIMIT_NOFILE`, and its close would drop the program's record locks (`fcntl`) on the file. So the
//! transfer is made by a thread that is cloned for it alone, and whose first step is a table of descriptors of its own,
//! which is empty. The thread is gone before the request returns. It costs about 40 us.
//!
//! Invariants: all bytes of a transfer go to the file that was inspected, or none: the thread compares device and inode
//! number after the open. The thread touches only its slot, makes system calls by itself, and cannot be interrupted by
//! signals. Direct reads and writes cover whole units of at least a page, so that they share no page with what goes
//! through the cache. Whatever the file system refuses goes through the cache.

use super::file::File;
use super::memory::{Slot, TOLD_BYTES};
use super::text::{put, put_number};
use crate::sys::{self, Identity, O_DIRECT};
use amphi_policy::decision::Way;
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering::Acquire};

unsafe extern "C" {
    fn clone(
        run: extern "C" fn(*mut c_void) -> c_int,
        stack: *mut c_void,
        flags: c_int,
        argument: *mut c_void,
        ...
    ) -> c_int;
}

/// Memory, file system state, signal handlers and I/O context are those of the process, and the thread belongs to it.
/// It begins with the table of descriptors of the thread that clones it. The kernel clears the word at its end.
const CLONED: c_int = 0x100 | 0x200 | 0x400 | 0x800 | 0x1_0000 | 0x4_0000 | 0x20_0000 | 0x8000_0000_u32 as c_int;

const PATH_BYTES: usize = 64;

/// How often the end of a thread is looked for, which takes a few microseconds.
const GOES_IN: usize = 1000;

/// What the thread is told, and what it answers.
#[repr(C)]
struct Told {
    /// 1 while the thread exists.
    is_there: AtomicU32,
    path: [u8; PATH_BYTES],
    flags: usize,
    identity: Identity,
    unit: u64,
    way: Way,
    offset: u64,
    len: usize,
    /// The place of the byte at `offset`.
    data: *mut u8,
    done: Done,
}

const _: () = assert!(size_of::<Told>() <= TOLD_BYTES);

/// The outcome of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    /// The bytes that were transferred, from the first one on. If it is less than requested, the kernel gave no more
    /// through the page cache as well, or the file could not be opened for it.
    pub(crate) bytes: usize,
    /// How many of them went direct.
    pub(crate) direct: usize,
}

const REFUSED: Done = Done { bytes: 0, direct: 0 };

/// The place of the byte at `offset` in a slot.
pub(crate) fn place(slot: &Slot, unit: u64, offset: u64) -> *mut u8 {
    slot.data().wrapping_add((offset % unit) as usize)
}

/// Transfers a part of a file from or to a slot. All signals but faults are blocked by the caller, for the thread
/// inherits that.
pub(crate) fn transfer(slot: &Slot, fd: i32, file: &File, way: Way, offset: u64, len: usize) -> Done {
    let told = slot.told().cast::<Told>();
    let new = Told {
        is_there: AtomicU32::new(1),
        path: path(fd),
        flags: file.flags,
        identity: file.identity,
        unit: file.unit,
        way,
        offset,
        len,
        data: place(slot, file.unit, offset),
        done: REFUSED,
    };
    // SAFETY: this memory of the slot is large and aligned enough, and nobody else uses it.
    unsafe { told.write(new) };
    // SAFETY: the thread gets a stack of its own. What it is told lives until it has ended. With `CLONE_CHILD_CLEARTID`
    // the last argument is the word that the kernel clears.
    let cloned = unsafe {
        let no_word: *mut c_void = core::ptr::null_mut();
        clone(
            run,
            slot.stack().cast(),
            CLONED,
            told.cast(),
            no_word,
            no_word,
            (&raw mut (*told).is_there).cast::<c_void>(),
        )
    };
    if cloned < 0 {
        return REFUSED;
    }
    // SAFETY: the thread changes only the other fields, and only until this word is 0.
    let is_there = unsafe { &(*told).is_there };
    while is_there.load(Acquire) != 0 {
        sys::wait_while(is_there, 1);
    }
    // It uses no memory any more. A process with another thread may not do everything (`unshare`), so wait until the
    // kernel has removed it.
    let thread = cloned.unsigned_abs();
    for _ in 0..GOES_IN {
        if !sys::is_thread(thread) {
            break;
        }
        sys::give_way();
    }
    // SAFETY: the thread has ended.
    unsafe { (*told).done }
}

/// The path by which the thread finds the descriptor of this thread.
fn path(fd: i32) -> [u8; PATH_BYTES] {
    let mut path = [0; PATH_BYTES];
    let mut at = put(&mut path, 0, b"/proc/self/task/");
    at = put_number(&mut path, at, sys::own_tid().into());
    at = put(&mut path, at, b"/fd/");
    put_number(&mut path, at, fd.unsigned_abs().into());
    path
}

/// The thread.
extern "C" fn run(told: *mut c_void) -> c_int {
    // SAFETY: `transfer` waits until the thread has ended, and uses only the word meanwhile, which is not touched here.
    let told = unsafe { &mut *told.cast::<Told>() };
    told.done = made(told).unwrap_or(REFUSED);
    0
}

/// `None`: it was refused before any byte was transferred.
fn made(told: &Told) -> Option<Done> {
    let path = CStr::from_bytes_until_nul(&told.path).ok()?;
    // The path leads to the table of the other threads.
    sys::leave_descriptors().ok()?;
    let file = Open { file: sys::open(path, told.flags | O_DIRECT).ok()?, flags: told.flags };
    if sys::details(file.file.0).ok()?.identity != told.identity {
        return None;
    }
    Some(match told.way {
        Way::Read => file.read(told),
        Way::Write => file.write(told),
    })
}

/// The second open of a file.
struct Open {
    file: sys::Owned,
    flags: usize,
}

impl Open {
    /// Reads the units that contain the range. What is missing, at the end of the file or after an error, is read
    /// through the page cache, whose answer counts.
    fn read(&self, told: &Told) -> Done {
        let skew = (told.offset % told.unit) as usize;
        let units = (skew + told.len).next_multiple_of(told.unit as usize);
        // SAFETY: the slot has space for a part and the rest of its first and its last unit.
        let read =
            unsafe { sys::pread(self.file.0, told.data.wrapping_sub(skew).cast(), units, told.offset - skew as u64) };
        let direct = read.unwrap_or(0).saturating_sub(skew).min(told.len);
        let mut bytes = direct;
        if bytes < told.len && sys::set_flags(&self.file, self.flags).is_ok() {
            bytes += self.read_cached(told, bytes);
        }
        Done { bytes, direct }
    }

    fn read_cached(&self, told: &Told, from: usize) -> usize {
        let mut read = 0;
        while from + read < told.len {
            let (at, left) = (from + read, told.len - from - read);
            // SAFETY: the slot has space for the part.
            match unsafe { sys::pread(self.file.0, told.data.wrapping_add(at).cast(), left, told.offset + at as u64) } {
                Ok(n) if n > 0 => read += n.min(left),
                _ => break,
            }
        }
        read
    }

    /// Writes whole units direct, and what is before and behind them through the page cache. What is not written direct
    /// is tried through the page cache, whose answer counts.
    fn write(&self, told: &Told) -> Done {
        let end = told.offset + told.len as u64;
        let first = told.offset.next_multiple_of(told.unit).min(end);
        let last = (end - end % told.unit).max(first);
        let (head, middle) = ((first - told.offset) as usize, (last - first) as usize);
        let mut bytes = 0;
        let mut is_direct = true;
        if head > 0 {
            is_direct = false;
            if sys::set_flags(&self.file, self.flags).is_ok() {
                bytes = self.put(told, 0, head);
            }
            if bytes < head {
                return Done { bytes, direct: 0 };
            }
        }
        let mut direct = 0;
        if middle > 0 && (is_direct || sys::set_flags(&self.file, self.flags | O_DIRECT).is_ok()) {
            is_direct = true;
            direct = self.put(told, head, middle);
            bytes += direct;
        }
        if bytes < told.len && (!is_direct || sys::set_flags(&self.file, self.flags).is_ok()) {
            bytes += self.put(told, bytes, told.len - bytes);
        }
        Done { bytes, direct }
    }

    /// Writes a part until it is done or fails. Returns how many bytes were written.
    fn put(&self, told: &Told, from: usize, len: usize) -> usize {
        let mut written = 0;
        while written < len {
            let (at, left) = (from + written, len - written);
            // SAFETY: the part is in the slot.
            match unsafe { sys::pwrite(self.file.0, told.data.wrapping_add(at).cast(), left, told.offset + at as u64) }
            {
                Ok(n) if n > 0 => written += n.min(left),
                _ => break,
            }
        }
        written
    }
}
