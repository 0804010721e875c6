//! `DirSink`: a directory listing on its way to the kernel.
//!
//! Owns: the packing of READDIR and READDIRPLUS entries. Does not own: what is listed, and in which order.
//!
//! Invariant: the reply never exceeds the kernel's room, and an entry is in it completely or not at all.

use crate::calls::Entry;
use crate::calls::Handle;
use crate::kernel::structs::{Dirent, EntryOut};
use crate::reply;
use amphi_types::{Ino, Kind};
use std::mem::size_of;
use zerocopy::IntoBytes;

const _: () = assert!(size_of::<Dirent>().is_multiple_of(8) && size_of::<EntryOut>().is_multiple_of(8));

/// Takes directory entries until the kernel's room is full.
pub struct DirSink<'a> {
    out: &'a mut Vec<u8>,
    room: usize,
    plus: bool,
    /// The open directory that is listed.
    pub handle: Handle,
}

impl<'a> DirSink<'a> {
    /// A sink for `room` bytes. With `plus` the entries carry attributes.
    pub(crate) fn new(out: &'a mut Vec<u8>, room: usize, plus: bool, handle: Handle) -> DirSink<'a> {
        out.clear();
        DirSink { out, room, plus, handle }
    }

    /// Returns whether entries should carry attributes. In this case, each entry that is passed to `add_entry` counts
    /// as one reference to its inode.
    pub fn wants_entries(&self) -> bool {
        self.plus
    }

    /// Bytes of room left.
    pub fn room_bytes(&self) -> usize {
        assert!(self.out.len() <= self.room, "a listing of {} bytes for {}", self.out.len(), self.room);
        self.room - self.out.len()
    }

    /// Adds an entry without attributes. `.` and `..` are always added in this way. `next` is the cookie that continues
    /// behind the entry. Returns false, and adds nothing, when it does not fit.
    #[must_use]
    pub fn add(&mut self, ino: Ino, kind: Kind, name: &[u8], next: u64) -> bool {
        // In a listing with attributes, node id 0 means that the entry has no attributes.
        let none = EntryOut::default();
        let plus = self.plus.then_some(none);
        self.put(plus, ino, kind, name, next)
    }

    /// Adds an entry with attributes, which are left out if the kernel did not request them. If the entry does not fit,
    /// returns false and adds nothing, and the entry does not count as a reference.
    #[must_use]
    pub fn add_entry(&mut self, entry: &Entry, name: &[u8], next: u64) -> bool {
        let plus = self.plus.then(|| reply::entry_out(entry));
        self.put(plus, entry.attr.ino, entry.attr.kind, name, next)
    }

    fn put(&mut self, plus: Option<EntryOut>, ino: Ino, kind: Kind, name: &[u8], next: u64) -> bool {
        let head = if plus.is_some() { size_of::<EntryOut>() } else { 0 } + size_of::<Dirent>();
        let bytes = (head + name.len()).next_multiple_of(8);
        if bytes > self.room_bytes() {
            return false;
        }
        let end = self.out.len() + bytes;
        if let Some(entry) = plus {
            self.out.extend_from_slice(entry.as_bytes());
        }
        let dirent = Dirent { ino: ino.0, off: next, namelen: name.len() as u32, kind: u32::from(kind.dtype()) };
        self.out.extend_from_slice(dirent.as_bytes());
        self.out.extend_from_slice(name);
        self.out.resize(end, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: entries are padded to 8 bytes, and an entry that does not fit is left out completely. Method: fill a small
    /// sink.
    #[test]
    fn entries_are_padded_and_never_cut() {
        let mut out = vec![1, 2, 3];
        let mut sink = DirSink::new(&mut out, 64 + 8, false, Handle(0));
        assert!(sink.add(Ino(1), Kind::Dir, b".", 1));
        assert!(sink.add(Ino(2), Kind::File, b"12345678", 2));
        assert!(!sink.add(Ino(3), Kind::File, b"x", 3));
        assert_eq!(out.len(), 64);
        assert_eq!(&out[24..32], b".\0\0\0\0\0\0\0");
        assert_eq!(out[32..40], 2u64.to_ne_bytes());
    }
}
