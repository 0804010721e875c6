//! `Segments`: the bytes that a read returns, in the buffers in which they arrived.
//!
//! Owns: a list of buffers that contain the bytes in order; each buffer is separate memory or memory of the cache. Does
//! not own: sending them. A front end sends them with one vectored write, so the bytes of a read over several targets
//! are not copied together first.

use amphi_env::Buf;
use amphi_types::{ByteRange, limits};
use smallvec::SmallVec;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A buffer for bytes of a file that are all written before they are read. Its first byte has the same alignment as its
/// file offset.
pub fn scratch_for(range: ByteRange) -> Buf {
    Buf::scratch_padded((range.start % limits::BLOCK) as usize, range.len() as usize)
}

/// Memory of the cache, unchangeable as long as this exists: a later write into the cache is made to a copy.
#[derive(Clone, Debug)]
pub struct Loan {
    pub(crate) whole: Arc<Buf>,
    pub(crate) range: Range<usize>,
}

impl Loan {
    /// Shortens it to the first `len` bytes, if there are more.
    pub fn truncate(&mut self, len: usize) {
        self.range.end = self.range.end.min(self.range.start + len);
    }
}

impl Deref for Loan {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.whole[self.range.clone()]
    }
}

/// The parts of a read that are in the cache, in order.
pub type Loans = SmallVec<[Loan; 4]>;

/// One of the buffers of `Segments`.
#[derive(Debug)]
pub enum Segment {
    /// Memory of its own.
    Own(Buf),
    /// Memory of the cache.
    Lent(Loan),
}

impl Deref for Segment {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Segment::Own(buf) => buf,
            Segment::Lent(loan) => loan,
        }
    }
}

/// Bytes in one or more buffers.
#[derive(Debug, Default)]
pub struct Segments {
    parts: SmallVec<[Segment; 1]>,
}

impl Segments {
    /// A result without bytes.
    pub fn new() -> Segments {
        Segments::default()
    }

    /// Adds the window of `buf` at the end.
    pub fn push(&mut self, buf: Buf) {
        if !buf.is_empty() {
            self.parts.push(Segment::Own(buf));
        }
    }

    /// Adds `other` at the end.
    pub fn append(&mut self, other: Segments) {
        self.parts.extend(other.parts);
    }

    /// Removes the first `len` bytes and returns them without a copy, or all bytes if there are fewer.
    pub fn split_to(&mut self, len: usize) -> Segments {
        let (mut first, mut rest) = (Segments::new(), Segments::new());
        for mut part in std::mem::take(&mut self.parts) {
            let room = len - first.len();
            if room > 0 && room < part.len() {
                let head = match &mut part {
                    Segment::Own(buf) => Segment::Own(buf.split_to(room)),
                    Segment::Lent(loan) => {
                        let head = Loan { range: loan.range.start..loan.range.start + room, ..loan.clone() };
                        loan.range.start += room;
                        Segment::Lent(head)
                    }
                };
                first.parts.push(head);
                rest.parts.push(part);
            } else if room > 0 {
                first.parts.push(part);
            } else {
                rest.parts.push(part);
            }
        }
        *self = rest;
        first
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|p| p.len()).sum()
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The buffers in order, none empty.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|p| &p[..])
    }

    /// The buffers in order, none empty.
    pub fn into_parts(self) -> impl Iterator<Item = Segment> {
        self.parts.into_iter()
    }

    /// Copies as many bytes as fit into `into`. Returns their number.
    pub fn copy_to(&self, into: &mut [u8]) -> usize {
        let mut at = 0;
        for part in self.parts() {
            let n = part.len().min(into.len() - at);
            into[at..at + n].copy_from_slice(&part[..n]);
            at += n;
        }
        at
    }

    /// All bytes in one buffer. Copies only if there are several buffers.
    pub fn into_buf(mut self) -> Buf {
        if let [Segment::Own(buf)] = &mut self.parts[..] {
            return std::mem::take(buf);
        }
        let mut buf = Buf::scratch(self.len());
        self.copy_to(&mut buf);
        buf
    }

    /// The bytes, copied.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut v = Vec::with_capacity(self.len());
        self.parts().for_each(|p| v.extend_from_slice(p));
        v
    }
}

impl From<Loans> for Segments {
    fn from(loans: Loans) -> Segments {
        Segments { parts: loans.into_iter().filter(|l| !l.is_empty()).map(Segment::Lent).collect() }
    }
}

impl From<Buf> for Segments {
    fn from(buf: Buf) -> Segments {
        let mut s = Segments::new();
        s.push(buf);
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a cut at any place leaves the bytes in order, on both sides, and no empty buffer. Method: own and lent
    /// buffers, every length.
    #[test]
    fn cuts_keep_the_bytes() {
        let whole = Arc::new(Buf::copy_of(b"lent"));
        let made = || {
            let mut all = Segments::from(Buf::copy_of(b"abc"));
            all.append(Segments::from(Loans::from_iter([Loan { whole: whole.clone(), range: 1..4 }])));
            all.push(Buf::copy_of(b"xy"));
            all
        };
        let bytes = made().to_vec();
        for len in 0..=bytes.len() + 1 {
            let mut rest = made();
            let first = rest.split_to(len);
            let at = len.min(bytes.len());
            assert_eq!((first.to_vec(), rest.to_vec()), (bytes[..at].to_vec(), bytes[at..].to_vec()), "at {len}");
            assert!(first.parts().chain(rest.parts()).all(|p| !p.is_empty()));
        }
    }
}
