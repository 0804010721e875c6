//! `Buf`: an owned, page-aligned block of memory with a window.
//!
//! Owns the memory that travels from a front end through caches and transports to O_DIRECT disks. The window
//! `start..end` is what readers see; the memory around it (head and tail room) lets a server complete the edge
//! blocks of an unaligned request in place, without a copy.
//!
//! Invariant: `start <= end <= capacity`; the allocation is aligned to 4096 and its size is a multiple of 4096.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

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
        let layout = Self::layout(cap);
        // SAFETY: the layout has a non-zero size. Zeroed, because uninitialised memory must never be readable.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Buf { ptr, cap, start: 0, end: len }
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
        if self.cap > 0 {
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
