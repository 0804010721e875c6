//! The memory through which direct requests pass.
//!
//! Owns: the slots, which a request claims for its time. Does not own: what is in them (`request`, `transfer`).
//!
//! Direct I/O never uses the buffers of the program: the kernel would take them as they are, but a program may change
//! its buffer while it is written (which file systems and disks with checksums report as damage), may `fork` meanwhile
//! (which older kernels answer with lost bytes), and rarely aligns it. The copy is the one that the page cache would
//! make.
//!
//! Invariants: a slot belongs to one request at a time. Children of `fork` find the whole memory empty, so all slots
//! are free there, and no page is shared with what the parent has under way. A slot is claimed by one exchange, without
//! waiting; when none is free, the request is the kernel's.

use crate::owner::is_own_memory;
use crate::sys;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Release, Ordering::SeqCst};

/// Most bytes that pass at once.
pub(crate) const PART_MAX: usize = 8 << 20;
/// The largest alignment that is served; a part may begin and end in the middle of such a unit.
pub(crate) const UNIT_MAX: usize = 64 << 10;
/// Requests of a process that go direct at the same time.
const SLOTS: usize = 16;
/// What the thread that makes the transfer is told, the path of a file, and the stack of that thread.
pub(crate) const TOLD_BYTES: usize = 4 << 10;
const PATH_BYTES: usize = 4 << 10;
const STACK_BYTES: usize = 64 << 10;
const DATA_BYTES: usize = PART_MAX + 2 * UNIT_MAX;
const DATA_AT: usize = TOLD_BYTES + PATH_BYTES + STACK_BYTES;
const SLOT_BYTES: usize = DATA_AT + DATA_BYTES;
const HEAD_BYTES: usize = 4096;

/// Where the memory is; 0: nowhere yet, 1: it cannot be had.
static AT: AtomicUsize = AtomicUsize::new(0);

/// A slot, which is free again when this is dropped.
pub(crate) struct Slot {
    state: &'static AtomicU32,
    at: usize,
}

impl Slot {
    /// Claims a slot. `None`: no slot is free, or this process cannot have the memory.
    pub(crate) fn claim() -> Option<Slot> {
        if !is_own_memory() {
            return None;
        }
        let at = memory()?;
        (0..SLOTS).find_map(|n| {
            // SAFETY: the head of the memory, which stays, begins with the states of the slots.
            let state = unsafe { &*((at + n * size_of::<AtomicU32>()) as *const AtomicU32) };
            let is_mine = state.compare_exchange(0, 1, Acquire, Acquire).is_ok();
            // Only the owner may have a value, which frees the slot when it is dropped.
            is_mine.then(|| Slot { state, at: at + HEAD_BYTES + n * SLOT_BYTES })
        })
    }

    /// Memory for what the thread is told.
    pub(crate) fn told(&self) -> *mut u8 {
        self.at as *mut u8
    }

    /// Memory for a path of a file.
    pub(crate) fn path(&mut self) -> &mut [u8] {
        // SAFETY: a part of this slot that nothing else uses.
        unsafe { core::slice::from_raw_parts_mut((self.at + TOLD_BYTES) as *mut u8, PATH_BYTES) }
    }

    /// Where the stack of the thread begins, from which it grows down.
    pub(crate) fn stack(&self) -> *mut u8 {
        (self.at + DATA_AT) as *mut u8
    }

    /// Memory for the bytes, aligned for any direct I/O.
    pub(crate) fn data(&self) -> *mut u8 {
        (self.at + DATA_AT) as *mut u8
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.state.store(0, Release);
    }
}

fn memory() -> Option<usize> {
    let mut at = AT.load(SeqCst);
    if at == 0 {
        let bytes = HEAD_BYTES + SLOTS * SLOT_BYTES;
        let made = match sys::address_space_is_unlimited() {
            true => sys::map_own(bytes).unwrap_or(1),
            // Memory mapped here would be missing to the program.
            false => 1,
        };
        at = match AT.compare_exchange(0, made, SeqCst, SeqCst) {
            Ok(_) => made,
            Err(other) => {
                if made > 1 {
                    // SAFETY: nobody has seen it.
                    unsafe { sys::unmap(made, bytes) };
                }
                other
            }
        };
    }
    (at > 1).then_some(at)
}
