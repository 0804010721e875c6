//! Buffers and files for the time in which the kernel uses them.
//!
//! Owns: the wrappers through which a `Buf` and a file are given to the ring, and the count of those that are
//! out. Does not own: the operations.
//!
//! Invariants: memory that the kernel may still touch is never freed. A file is not closed, nor its lock released,
//! while an operation on it runs. A cancelled operation keeps its wrappers until its completion arrives. Buffers whose
//! operation has not completed when the ring is closed are leaked, because closing a ring does not wait for direct I/O
//! that is in flight.

use crate::Buf;
use compio::buf::{IoBuf, IoBufMut, IoVectoredBuf, SetLen};
use compio::driver::SharedFd;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Operations from this size on leave for the kernel soon after they began, bytes.
const LARGE_BYTES: usize = 64 << 10;

/// How many operations the kernel holds, and whether the ring is closed. Shared by atomics, because some
/// operations run on the driver's helper threads.
#[derive(Default)]
pub(super) struct Leases {
    out: AtomicUsize,
    closed: AtomicBool,
    /// A large operation was begun since the ring was last checked.
    large: AtomicBool,
}

impl Leases {
    /// Operations in the kernel's hands.
    pub(super) fn out(&self) -> usize {
        self.out.load(Ordering::Acquire)
    }

    /// From now on buffers that are returned are leaked.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Called when a buffer of `bytes` is handed over.
    fn note(&self, bytes: usize) {
        if bytes >= LARGE_BYTES {
            self.large.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether a large operation waits for a submission, which is about to come.
    pub(super) fn take_large(&self) -> bool {
        self.large.load(Ordering::Relaxed) && self.large.swap(false, Ordering::Relaxed)
    }

    /// Counts an operation until the lease is dropped.
    pub(super) fn take(self: &Arc<Self>) -> Lease {
        self.out.fetch_add(1, Ordering::Relaxed);
        Lease(self.clone())
    }
}

/// A counted operation.
pub(super) struct Lease(Arc<Leases>);

impl Lease {
    fn closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.out.fetch_sub(1, Ordering::Release);
    }
}

/// A file lent for one operation.
pub(super) struct Held {
    fd: SharedFd<OwnedFd>,
    _lease: Lease,
}

impl Held {
    /// Lends `fd`.
    pub(super) fn new(fd: &SharedFd<OwnedFd>, leases: &Arc<Leases>) -> Held {
        Held { fd: fd.clone(), _lease: leases.take() }
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A buffer that is lent for one operation, from byte `done` of its window on.
pub(super) struct Lent {
    buf: Buf,
    done: usize,
    lease: Lease,
}

impl Lent {
    /// Lends `buf` but for its first `done` bytes.
    pub(super) fn new(buf: Buf, done: usize, leases: &Arc<Leases>) -> Lent {
        leases.note(buf.len() - done);
        Lent { buf, done, lease: leases.take() }
    }

    /// The buffer, after the operation.
    pub(super) fn into_buf(mut self) -> Buf {
        std::mem::take(&mut self.buf)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.lease.closed() {
            std::mem::forget(std::mem::take(&mut self.buf));
        }
    }
}

impl IoBuf for Lent {
    fn as_init(&self) -> &[u8] {
        &self.buf[self.done..]
    }
}

impl SetLen for Lent {
    // SAFETY: nothing to uphold: every byte of a Buf is initialised and its window is set by its owner.
    unsafe fn set_len(&mut self, _len: usize) {}
}

impl IoBufMut for Lent {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        let bytes = &mut self.buf[self.done..];
        // SAFETY: same memory and lifetime, and the kernel writes only initialised bytes into it.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) }
    }
}

/// Head and payload of one frame, which are lent for one vectored send from byte `sent` on.
pub(super) struct Frame {
    head: Buf,
    payload: Buf,
    sent: usize,
    lease: Lease,
}

impl Frame {
    /// Lends both but for the first `sent` bytes of the two together.
    pub(super) fn new(head: Buf, payload: Buf, sent: usize, leases: &Arc<Leases>) -> Frame {
        leases.note(payload.len());
        Frame { head, payload, sent, lease: leases.take() }
    }

    /// The buffers, after the operation.
    pub(super) fn into_bufs(mut self) -> (Buf, Buf) {
        (std::mem::take(&mut self.head), std::mem::take(&mut self.payload))
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if self.lease.closed() {
            std::mem::forget(std::mem::take(&mut self.head));
            std::mem::forget(std::mem::take(&mut self.payload));
        }
    }
}

impl IoVectoredBuf for Frame {
    fn iter_slice(&self) -> impl Iterator<Item = &[u8]> {
        let in_head = self.sent.min(self.head.len());
        let in_payload = self.sent - in_head;
        let parts: [&[u8]; 2] = [&self.head[in_head..], &self.payload[in_payload..]];
        parts.into_iter().skip(usize::from(in_head == self.head.len()))
    }
}
