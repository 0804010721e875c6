//! `Buf`: an owned, page-aligned block of memory with a window.
//!
//! Owns the memory that travels from a front end through caches and transports to O_DIRECT disks. The window
//! `start..end` is what readers see; the memory around it (head and tail room) lets a server complete the edge
//! blocks of an unaligned request in place, without a copy.
//!
//! Invariant: `start <= end <= capacity`; the allocation is aligned to 4096 and its size is a multiple of 4096.
//!
//! Large buffers come straight from the system, which zeroes a page when it is first touched: a 16 MiB buffer that is never
//! filled costs microseconds and no memory, where the allocator would clear it for 6 ms. `scratch` takes such memory from a small
//! store of used ones, so that payloads given away need not be paid for by page faults (0.3 us for each 4 KiB).

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// Buffers from this size on are mapped, bytes.
const MAPPED_MIN_BYTES: usize = 1 << 20;
/// Used mapped buffers kept for `scratch`, bytes together.
const STORE_MAX_BYTES: usize = 64 << 20;

/// Mapped memory that nobody owns: address and size.
static STORE: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Alignment of every buffer, bytes.
pub const ALIGN: usize = 4096;

/// Owned aligned memory with a window; `Deref`s to the window.
pub struct Buf {
    ptr: NonNull<u8>,
    cap: usize,
    start: usize,
    end: usize,
}

// SAFETY: a Buf is the only owner of its memory, like Box<[u8]>.
unsafe impl Send for Buf {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buf {}

impl Buf {
    fn layout(cap: usize) -> Layout {
        Layout::from_size_align(cap, ALIGN).expect("buffer size fits isize")
    }

    fn with_capacity(len: usize) -> Buf {
        let cap = len.div_ceil(ALIGN) * ALIGN;
        if cap == 0 {
            return Buf { ptr: NonNull::dangling(), cap: 0, start: 0, end: 0 };
        }
        if cap >= MAPPED_MIN_BYTES {
            return Buf { ptr: Self::map(cap), cap, start: 0, end: len };
        }
        let layout = Self::layout(cap);
        // SAFETY: the layout has a non-zero size. Zeroed, because uninitialised memory must never be readable.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Buf { ptr, cap, start: 0, end: len }
    }

    fn map(cap: usize) -> NonNull<u8> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the system's choice touches no memory in use.
        let raw = unsafe { mmap_anonymous(std::ptr::null_mut(), cap, protection, flags) };
        let ptr = raw.ok().and_then(|p| NonNull::new(p.cast()));
        ptr.unwrap_or_else(|| handle_alloc_error(Self::layout(cap)))
    }

    /// `len` bytes of arbitrary content (never uninitialised), cheap when large ones come and go: for memory that is
    /// filled before it is read. Content differs from run to run, so nothing that is simulated may look at it.
    pub fn scratch(len: usize) -> Buf {
        let cap = len.div_ceil(ALIGN) * ALIGN;
        if cap >= MAPPED_MIN_BYTES {
            let mut store = STORE.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = store.iter().rposition(|&(_, size)| size == cap)
                && let Some(ptr) = NonNull::new(std::ptr::with_exposed_provenance_mut(store.swap_remove(at).0))
            {
                return Buf { ptr, cap, start: 0, end: len };
            }
        }
        Self::with_capacity(len)
    }

    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Buf {
        Self::with_capacity(len)
    }

    /// `len` zero bytes whose first byte lies `pad` bytes after an aligned address, with room to the next
    /// aligned address behind them. `pad < 4096`. For a payload of file offset `o`, `pad = o % 4096` makes the
    /// block-aligned middle of the payload aligned memory.
    pub fn padded(pad: usize, len: usize) -> Buf {
        assert!(pad < ALIGN);
        let mut b = Self::with_capacity(pad + len);
        b.start = pad;
        b
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        let mut b = Self::zeroed(bytes.len());
        b.copy_from_slice(bytes);
        b
    }

    /// Bytes of memory owned, window or not.
    pub fn capacity(&self) -> usize {
        self.cap
    }

    /// Where the window lies in the memory.
    pub fn window(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Moves the window. Panics if it does not fit the memory.
    pub fn set_window(&mut self, window: Range<usize>) {
        assert!(window.start <= window.end && window.end <= self.cap, "window {window:?} in {} bytes", self.cap);
        self.start = window.start;
        self.end = window.end;
    }

    /// Narrows the window to `range` of the present window.
    pub fn narrow(&mut self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len());
        let start = self.start + range.start;
        self.set_window(start..start + range.end - range.start);
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the window lies within the `cap` initialised bytes that this Buf owns.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().add(self.start), self.end - self.start) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().add(self.start), self.end - self.start) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if self.cap >= MAPPED_MIN_BYTES {
            let mut store = STORE.lock().unwrap_or_else(PoisonError::into_inner);
            if store.iter().map(|&(_, size)| size).sum::<usize>() + self.cap <= STORE_MAX_BYTES {
                store.push((self.ptr.as_ptr().expose_provenance(), self.cap));
                return;
            }
            drop(store);
            // SAFETY: mapped in `map` with this size, and no reference to it outlives its only owner.
            let unmapped = unsafe { munmap(self.ptr.as_ptr().cast(), self.cap) };
            debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
        } else if self.cap > 0 {
            // SAFETY: allocated in `with_capacity` with the same layout.
            unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.cap)) };
        }
    }
}

impl Default for Buf {
    fn default() -> Buf {
        Buf::zeroed(0)
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({}..{} of {})", self.start, self.end, self.cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: zeroed memory is zero even when used memory is at hand, and scratch memory is reused. Method: fill, drop and
    /// allocate again, with a size that no other test uses.
    #[test]
    fn scratch_is_reused_and_zeroed_is_zero() {
        let len = MAPPED_MIN_BYTES + 3 * ALIGN;
        let mut b = Buf::zeroed(len);
        b.fill(7);
        let memory = b.as_ptr();
        drop(b);
        let zeroed = Buf::zeroed(len);
        assert!(zeroed.iter().all(|&byte| byte == 0));
        let scratch = Buf::scratch(len);
        assert_eq!((scratch.as_ptr(), scratch[0], scratch.len()), (memory, 7, len));
    }

    /// Goal: buffers around the border between the two kinds are writable to their ends. Method: write the last byte of each.
    #[test]
    fn both_kinds_are_usable_to_the_end() {
        for len in [1, ALIGN, MAPPED_MIN_BYTES - 1, MAPPED_MIN_BYTES, MAPPED_MIN_BYTES + 1] {
            let mut b = Buf::zeroed(len);
            b[len - 1] = 1;
            assert_eq!((b.as_ptr() as usize % ALIGN, b[len - 1]), (0, 1));
        }
    }
}
