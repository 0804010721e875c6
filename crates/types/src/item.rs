//! Items: the unit of logging and checkpointing of a target.
//!
//! All durable state of a target, file data apart, is a set of items (key, value). A log record is a `Txn`: absolute
//! puts and deletes of items, applied together or not at all. Because puts are absolute, replaying any suffix of the
//! log over any inexact image of the items gives the same state. The first byte of a key is its tag and determines the
//! owner of the item.

/// Tags: first byte of an item's key.
pub mod tag {
    /// `meta`: an inode.
    pub const INODE: u8 = b'I';
    /// `meta`: a directory entry.
    pub const DENTRY: u8 = b'D';
    /// `meta`: one extended attribute of an inode.
    pub const XATTR: u8 = b'X';
    /// `meta`: small state of the metadata store (next inode number, ...).
    pub const META: u8 = b'M';
    /// `data`: an object's size, times and truncation generation.
    pub const OBJECT: u8 = b'B';
    /// `data`: an extent of an object.
    pub const EXTENT: u8 = b'E';
    /// `data`: bytes of an object that lie in memory which outlives the process, and the name of that memory.
    pub const DELAYED: u8 = b'W';
    /// `data`: bytes of an object that were synced before they had blocks.
    pub const LOGGED: u8 = b'L';
    /// `data`: checksums of neighbouring data blocks.
    pub const CHECKSUM: u8 = b'K';
    /// `data`: blocks that a session has been granted.
    pub const GRANT: u8 = b'G';
    /// `server`: a session.
    pub const SESSION: u8 = b'S';
    /// `server`: the last reply of a session's slot.
    pub const REPLY: u8 = b'R';
    /// `server`: an intent of an operation that spans targets.
    pub const INTENT: u8 = b'T';
    /// `server`: configuration kept with the target.
    pub const CONFIG: u8 = b'C';
    /// `server`: limits of an account (target 0 alone).
    pub const QUOTA: u8 = b'Q';
}

/// Key of an item: tag, then the owner's own order-preserving (big-endian) encoding. It has at most 300 bytes.
pub type Key = Vec<u8>;

/// Bytes in front of key and value of an encoded change.
const CHANGE_HEADER: usize = 6;
/// Value length of a deletion.
const DELETED: u32 = u32::MAX;

/// One absolute change, encoded as in a record of the log and in a segment: an item is put, or deleted.
///
/// | bytes | field |
/// |--:|---|
/// | 2 | key length |
/// | 4 | value length; 0xFFFF_FFFF: the item is deleted |
/// | .. | key |
/// | .. | value |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a>(&'a [u8]);

impl<'a> Change<'a> {
    /// Takes one change off the front of `bytes`; `None` if it is cut short.
    pub fn take(bytes: &mut &'a [u8]) -> Option<Change<'a>> {
        let (key_len, rest) = bytes.split_first_chunk::<2>()?;
        let (value_len, _) = rest.split_first_chunk::<4>()?;
        let value_len = match u32::from_le_bytes(*value_len) {
            DELETED => 0,
            n => n as usize,
        };
        let len = (CHANGE_HEADER + usize::from(u16::from_le_bytes(*key_len))).checked_add(value_len)?;
        let (change, rest) = bytes.split_at_checked(len)?;
        *bytes = rest;
        Some(Change(change))
    }

    fn key_end(self) -> usize {
        CHANGE_HEADER + usize::from(u16::from_le_bytes([self.0[0], self.0[1]]))
    }

    /// Which item.
    pub fn key(self) -> &'a [u8] {
        &self.0[CHANGE_HEADER..self.key_end()]
    }

    /// The item's new value, or `None` if the item is deleted.
    pub fn value(self) -> Option<&'a [u8]> {
        (!self.is_deletion()).then(|| &self.0[self.key_end()..])
    }

    /// Returns whether the item is deleted.
    pub fn is_deletion(self) -> bool {
        self.0[2..CHANGE_HEADER] == DELETED.to_le_bytes()
    }

    /// The whole change, encoded.
    pub fn encoded(self) -> &'a [u8] {
        self.0
    }
}

/// The changes in encoded bytes, which must be complete: the iteration ends before an incomplete one.
#[derive(Clone, Debug)]
pub struct EncodedChanges<'a>(&'a [u8]);

impl<'a> EncodedChanges<'a> {
    /// The changes in `bytes`.
    pub fn of(bytes: &'a [u8]) -> EncodedChanges<'a> {
        EncodedChanges(bytes)
    }
}

impl<'a> Iterator for EncodedChanges<'a> {
    type Item = Change<'a>;

    fn next(&mut self) -> Option<Change<'a>> {
        Change::take(&mut self.0)
    }
}

/// Changes that become durable together. They are encoded as they are added, in one piece of memory, so that the log
/// can take them with one copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    bytes: Vec<u8>,
    len: usize,
}

/// First capacity of a `Txn`: the record of a create with its answer has about 400 bytes.
const TXN_BYTES_FIRST: usize = 448;

impl Txn {
    /// Adds a put. A later change of the same key wins. Panics if the key has 64 KiB or the value 4 GiB (programmer's
    /// error).
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.put_with(key, |bytes| bytes.extend_from_slice(value.as_ref()));
    }

    /// As `put`; `encode` appends the value to the bytes that it gets.
    pub fn put_with(&mut self, key: impl AsRef<[u8]>, encode: impl FnOnce(&mut Vec<u8>)) {
        self.put_or_delete(key, |bytes| {
            encode(bytes);
            true
        });
    }

    /// Works as `put_with` if `encode` says that the item exists; otherwise it appends nothing, and the item is
    /// deleted.
    pub fn put_or_delete(&mut self, key: impl AsRef<[u8]>, encode: impl FnOnce(&mut Vec<u8>) -> bool) {
        let at = self.begin(key.as_ref());
        let value_at = self.bytes.len();
        if !encode(&mut self.bytes) {
            return;
        }
        let value_len = u32::try_from(self.bytes.len() - value_at).ok().filter(|n| *n != DELETED);
        let value_len = value_len.expect("values are below 4 GiB");
        self.bytes[at + 2..at + CHANGE_HEADER].copy_from_slice(&value_len.to_le_bytes());
    }

    /// Adds a delete.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.begin(key.as_ref());
    }

    /// Adds a deletion of `key`; where it begins.
    fn begin(&mut self, key: &[u8]) -> usize {
        if self.bytes.capacity() == 0 {
            self.bytes.reserve(TXN_BYTES_FIRST);
        }
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&u16::try_from(key.len()).expect("keys are short").to_le_bytes());
        self.bytes.extend_from_slice(&DELETED.to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.len += 1;
        at
    }

    /// Adds a change that is encoded already.
    pub fn push(&mut self, change: Change<'_>) {
        self.bytes.extend_from_slice(change.encoded());
        self.len += 1;
    }

    /// Adds all changes of `other`, in their order.
    pub fn append(&mut self, other: &Txn) {
        self.bytes.extend_from_slice(&other.bytes);
        self.len += other.len;
    }

    /// The changes, in the order in which they were added.
    pub fn changes(&self) -> EncodedChanges<'_> {
        EncodedChanges(&self.bytes)
    }

    /// Number of changes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The changes, each encoded behind the one before it.
    pub fn encoded(&self) -> &[u8] {
        &self.bytes
    }
}

/// A store whose state is a set of items: `meta`, `data` and the server's own tables.
pub trait ItemStore {
    /// Takes an item found at recovery. Errors: a sentence that names what does not decode.
    fn load(&mut self, key: &[u8], value: &[u8]) -> std::result::Result<(), String>;
    /// The present value of an item, `None` if there is none. Used by checkpoints.
    fn value_of(&self, key: &[u8]) -> Option<Vec<u8>>;
    /// Up to `max` keys of this store greater than `after` (all when `after` is empty), ascending.
    fn keys_after(&self, after: &[u8], max: usize) -> Vec<Key>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is encoded is decoded in its order, and every prefix of a change is refused. Method: puts, one of
    /// them encoded in place, and deletes, truncated at every byte.
    #[test]
    fn changes_round_trip_and_cuts_are_refused() {
        let mut txn = Txn::default();
        txn.put(b"key", b"value");
        txn.delete(b"");
        txn.put_with([7; 300], |_| {});
        txn.put_with(b"k", |bytes| bytes.extend_from_slice(b"in place"));
        let mut copy = Txn::default();
        txn.changes().for_each(|change| copy.push(change));
        assert_eq!((copy == txn, txn.len()), (true, 4));
        let found: Vec<_> = txn.changes().map(|c| (c.key(), c.value())).collect();
        let wanted: [(&[u8], Option<&[u8]>); 4] =
            [(b"key", Some(b"value")), (b"", None), (&[7; 300], Some(b"")), (b"k", Some(b"in place"))];
        assert_eq!(found, wanted);
        assert_eq!(&txn.encoded()[..14], b"\x03\0\x05\0\0\0keyvalue");
        assert_eq!(&txn.encoded()[14..20], b"\0\0\xff\xff\xff\xff");
        for change in txn.changes() {
            for cut in 0..change.encoded().len() {
                assert_eq!(Change::take(&mut &change.encoded()[..cut]), None);
            }
        }
        copy.append(&txn);
        assert_eq!((copy.len(), copy.encoded().len()), (8, 2 * txn.encoded().len()));
    }
}
