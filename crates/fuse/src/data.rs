//! `Payload` and `ReadSink`: file data on its way from and to the kernel without copies.
//!
//! Owns: the contract about the memory of WRITE and READ. A reader thread has one receive buffer. If the thread
//! expected a WRITE there, its payload begins at the same offset within a page as within its block of the file. The
//! same memory serves READ replies. A file system either borrows this memory or takes it. If it takes it, the thread
//! gets a fresh buffer. The payload of a WRITE of one unit may be in memory of exactly that size. The page cache can
//! keep this memory in exchange for other memory of the same size.
//!
//! Invariant: the bytes of a `Payload` either follow the header of their request in the receive buffer, or they fill
//! the memory of a unit.
//!
//! The number behind `TAKE_COPY_MAX_BYTES`: copying 32 KiB costs about 3 us. Giving a buffer away costs about as much
//! as a copy, because new memory has to be mapped.

use crate::kernel::WRITE_HEAD_BYTES;
use amphi_client::Loan;
use amphi_client::{Buf, UNIT_BYTES};
use smallvec::SmallVec;
use std::ops::Deref;

/// The offset at which payloads begin in a receive buffer: after one page, so that the header is directly before the
/// payload.
pub(crate) const PAYLOAD_AT: usize = 4096;
/// `Payload::into_buf` copies payloads up to this length. For longer ones it gives the receive buffer away.
pub const TAKE_COPY_MAX_BYTES: usize = 32 << 10;

/// The data of a WRITE, which can be borrowed as a slice or taken as a `Buf`.
pub struct Payload<'a> {
    buf: &'a mut Buf,
    len: usize,
    is_unit: bool,
}

impl<'a> Payload<'a> {
    /// The `len` bytes after the header of the request in `buf`, but at most what the buffer contains.
    pub(crate) fn new(buf: &'a mut Buf, len: usize) -> Payload<'a> {
        let head = WRITE_HEAD_BYTES.min(buf.len());
        let len = len.min(buf.len() - head);
        buf.narrow(head..head + len);
        Payload { buf, len, is_unit: false }
    }

    /// All of `unit`, memory of `UNIT_BYTES`.
    pub(crate) fn of_unit(unit: &'a mut Buf) -> Payload<'a> {
        let len = unit.len();
        assert_eq!(len, UNIT_BYTES, "a payload in memory of its own is one unit");
        Payload { buf: unit, len, is_unit: true }
    }

    /// The data as memory of `UNIT_BYTES`, if it is in memory of its own. A caller that keeps this memory leaves other
    /// memory of that size in its place, with any content, or none.
    pub fn unit(&mut self) -> Option<&mut Buf> {
        if self.is_unit { Some(self.buf) } else { None }
    }

    /// The data as an owned buffer. Its first byte is at a page boundary, or, if that was expected, at the offset that
    /// it has in its block of the file. Large data is not copied. The buffer then owns the whole receive memory, which
    /// is larger than its length, so do not keep it for long.
    pub fn into_buf(self) -> Buf {
        if self.len <= TAKE_COPY_MAX_BYTES {
            return Buf::copy_of(self.buf);
        }
        std::mem::take(self.buf)
    }
}

impl Deref for Payload<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.buf
    }
}

/// Takes the data of a READ: first bytes that were written into its own memory, then owned buffers.
pub struct ReadSink<'a> {
    buf: &'a mut Buf,
    size: usize,
    filled: usize,
    given: SmallVec<[Given; 2]>,
}

/// Memory that the kernel copies from where it lies.
enum Given {
    Own(Buf),
    Lent(Loan),
}

impl Given {
    fn bytes(&self) -> &[u8] {
        match self {
            Given::Own(buf) => buf,
            Given::Lent(loan) => loan,
        }
    }
}

impl<'a> ReadSink<'a> {
    /// A sink for at most `size` bytes, whose own memory is `buf`.
    pub(crate) fn new(buf: &'a mut Buf, size: usize) -> ReadSink<'a> {
        let size = size.min(buf.capacity().saturating_sub(PAYLOAD_AT));
        buf.set_window(PAYLOAD_AT..PAYLOAD_AT + size);
        ReadSink { buf, size, filled: 0, given: SmallVec::new() }
    }

    /// Most bytes that the kernel takes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Page-aligned memory of `size` bytes to read into. Its content is arbitrary; `set_filled` says how many bytes are
    /// data.
    pub fn space(&mut self) -> &mut [u8] {
        self.buf
    }

    /// Declares the first `len` bytes of `space` to be data.
    pub fn set_filled(&mut self, len: usize) {
        self.filled = len.min(self.size);
    }

    /// Appends `bytes` by copying.
    pub fn push(&mut self, bytes: &[u8]) {
        let end = (self.filled + bytes.len()).min(self.size);
        let room = end - self.filled;
        self.buf[self.filled..end].copy_from_slice(&bytes[..room]);
        self.filled = end;
    }

    /// Appends an owned buffer without copying. Bytes beyond `size` are cut off.
    pub fn give(&mut self, mut buf: Buf) {
        assert!(self.len() <= self.size, "{} bytes for a read of {}", self.len(), self.size);
        let room = self.size - self.len();
        if buf.len() > room {
            buf.narrow(0..room);
        }
        self.given.push(Given::Own(buf));
    }

    /// Appends borrowed bytes without copying. Bytes beyond `size` are cut off.
    pub fn lend(&mut self, mut loan: Loan) {
        assert!(self.len() <= self.size, "{} bytes for a read of {}", self.len(), self.size);
        loan.truncate(self.size - self.len());
        self.given.push(Given::Lent(loan));
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.filled + self.given.iter().map(|g| g.bytes().len()).sum::<usize>()
    }

    /// Returns whether there is no data yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces in order.
    pub(crate) fn pieces(&self) -> SmallVec<[&[u8]; 4]> {
        std::iter::once(&self.buf[..self.filled]).chain(self.given.iter().map(Given::bytes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive_buffer(bytes: usize) -> Buf {
        let mut b = Buf::zeroed(PAYLOAD_AT + bytes);
        b.set_window(PAYLOAD_AT..PAYLOAD_AT + bytes);
        for (i, byte) in b.iter_mut().enumerate() {
            *byte = i as u8;
        }
        b.set_window(PAYLOAD_AT - WRITE_HEAD_BYTES..PAYLOAD_AT + bytes);
        b
    }

    /// Goal: taking a payload yields its bytes at a page boundary, copied when small and moved when large. Method: both
    /// sizes. Afterwards the address and the thread's buffer show whether the bytes were copied or given away.
    #[test]
    fn payload_is_copied_or_given_away() {
        for (len, moved) in [(4096, false), (TAKE_COPY_MAX_BYTES + 1, true)] {
            let mut buf = receive_buffer(1 << 20);
            let memory = buf[WRITE_HEAD_BYTES..].as_ptr();
            let want: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let taken = Payload::new(&mut buf, len).into_buf();
            assert_eq!(&taken[..], &want[..]);
            assert_eq!(taken.as_ptr() as usize % 4096, 0);
            assert_eq!(taken.as_ptr() == memory, moved);
            assert_eq!(buf.capacity() == 0, moved);
        }
    }

    /// Goal: a unit's payload is its memory, which can be kept for other memory or taken. Method: both cases.
    #[test]
    fn the_memory_of_a_unit_can_be_kept() {
        let mut unit = Buf::scratch(amphi_client::UNIT_BYTES);
        unit.fill(7);
        let memory = unit.as_ptr();
        let mut payload = Payload::of_unit(&mut unit);
        assert!(payload.len() == amphi_client::UNIT_BYTES && payload.iter().all(|&b| b == 7));
        let kept = std::mem::replace(payload.unit().expect("a unit"), Buf::scratch(amphi_client::UNIT_BYTES));
        assert_eq!(kept.as_ptr(), memory);
        assert_ne!(unit.as_ptr(), memory);
        let taken = Payload::of_unit(&mut unit).into_buf();
        assert_eq!((taken.len(), unit.capacity()), (amphi_client::UNIT_BYTES, 0));
        let mut buf = receive_buffer(1 << 20);
        assert!(Payload::new(&mut buf, amphi_client::UNIT_BYTES).unit().is_none(), "in the receive buffer");
    }

    /// Goal: a sink never holds more than the requested size and keeps order. Method: more data than fits, added in
    /// each of the possible ways.
    #[test]
    fn sink_cuts_off_beyond_size() {
        let mut buf = receive_buffer(8192);
        let mut sink = ReadSink::new(&mut buf, 10);
        sink.push(b"abcd");
        sink.give(Buf::copy_of(b"efgh"));
        sink.give(Buf::copy_of(b"ijkl"));
        let all: Vec<u8> = sink.pieces().concat();
        assert_eq!(all, b"abcdefghij");
        assert_eq!(sink.len(), 10);
    }
}
