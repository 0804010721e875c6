//! `Logged`: delayed bytes that are in the log too, so that they survive a loss of power before they have blocks.
//!
//! Owns: which bytes of which object are in the log, and their items. Does not own: what is delayed (`delayed`), which
//! bytes are worth logging (the server, for `fsync`).
//!
//! Logged bytes are the bytes that the disk would contain if the `fsync` that logged them had written them there. A
//! later write into memory keeps them, because a loss of power may take that write and bring them back. A record that
//! flushes, cuts, overwrites or removes their range deletes them. Logged bytes are not read while the memory of the
//! accepted bytes exists. A start shows those without that memory.
//!
//! Invariants: pieces do not overlap, and each lies within one block, so a cut logs less than two blocks again. Each
//! logged byte also lies under a delayed extent of its object.

use crate::extent::{logged_key, logged_value};
use amphi_types::item::Txn;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, ObjectId, Timespec};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Bytes of one block of a file, or of a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// When the bytes were written.
    pub mtime: Timespec,
    /// The bytes.
    pub bytes: Rc<[u8]>,
}

/// An object and an offset in it.
type At = (ObjectId, u64);

/// The logged bytes of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Logged {
    pieces: BTreeMap<At, Piece>,
    bytes: u64,
}

impl Logged {
    /// Number of bytes in all pieces.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of pieces.
    pub fn pieces(&self) -> u64 {
        self.pieces.len() as u64
    }

    /// All pieces.
    pub fn all(&self) -> impl Iterator<Item = (ObjectId, ByteRange, &Piece)> + '_ {
        self.pieces.iter().map(|(&(id, at), p)| (id, ByteRange::at(at, p.bytes.len() as u64), p))
    }

    /// A piece.
    pub fn get(&self, object: ObjectId, at: u64) -> Option<&Piece> {
        self.pieces.get(&(object, at))
    }

    /// Pieces that share a byte with `range`, ascending.
    pub fn within(&self, object: ObjectId, range: ByteRange) -> impl Iterator<Item = (u64, &Piece)> + '_ {
        let first = range.start / BLOCK * BLOCK;
        let found = self.pieces.range((object, first)..(object, range.end.max(first)));
        found.map(|(&(_, at), p)| (at, p)).filter(move |(at, p)| at + p.bytes.len() as u64 > range.start)
    }

    /// Returns whether pieces cover `range` without a gap, and `is_right` confirms their bytes.
    pub fn has_all(&self, object: ObjectId, range: ByteRange, is_right: impl FnOnce(&[u8]) -> bool) -> bool {
        let mut bytes = Vec::new();
        for (at, piece) in self.within(object, range) {
            let reached = range.start + bytes.len() as u64;
            if at > reached {
                return false;
            }
            let from = (reached - at) as usize;
            let to = (piece.bytes.len() as u64).min(range.end - at) as usize;
            bytes.extend_from_slice(&piece.bytes[from..to]);
        }
        bytes.len() as u64 == range.len() && is_right(&bytes)
    }

    /// Loads bytes of a record that a start has found.
    pub fn load(&mut self, object: ObjectId, at: u64, piece: Piece) {
        self.bytes += piece.bytes.len() as u64;
        self.pieces.insert((object, at), piece);
    }

    /// Removes the bytes of `range`. The pieces that changed are added to `touched`.
    fn take(&mut self, object: ObjectId, range: ByteRange, touched: &mut BTreeSet<At>) {
        let hit: Vec<u64> = self.within(object, range).map(|(at, _)| at).collect();
        for at in hit {
            let Some(piece) = self.pieces.remove(&(object, at)) else { continue };
            touched.insert((object, at));
            self.bytes -= piece.bytes.len() as u64;
            let end = at + piece.bytes.len() as u64;
            for keep in [ByteRange::new(at, range.start.clamp(at, end)), ByteRange::new(range.end.clamp(at, end), end)]
            {
                if !keep.is_empty() {
                    let bytes = piece.bytes[(keep.start - at) as usize..(keep.end - at) as usize].into();
                    self.load(object, keep.start, Piece { mtime: piece.mtime, bytes });
                    touched.insert((object, keep.start));
                }
            }
        }
    }

    /// Replaces the bytes of the piece from `start` on. The pieces that changed are added to `touched`.
    pub fn put(&mut self, object: ObjectId, start: u64, mtime: Timespec, bytes: &[u8], touched: &mut BTreeSet<At>) {
        self.take(object, ByteRange::at(start, bytes.len() as u64), touched);
        let (mut at, mut rest) = (start, bytes);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min((BLOCK - at % BLOCK) as usize));
            self.load(object, at, Piece { mtime, bytes: piece.into() });
            touched.insert((object, at));
            (at, rest) = (at + piece.len() as u64, behind);
        }
    }

    /// Removes the bytes of `range`, with the changes of items in `txn`.
    pub fn cut(&mut self, object: ObjectId, range: ByteRange, txn: &mut Txn) {
        if self.pieces.is_empty() {
            return;
        }
        let mut touched = BTreeSet::new();
        self.take(object, range, &mut touched);
        self.log(&touched, txn);
    }

    /// Removes the last pieces of an object, at most `most`. Returns their number.
    pub fn cut_last(&mut self, object: ObjectId, most: usize, txn: &mut Txn) -> usize {
        let mut count = 0;
        while count < most
            && let Some((&key, _)) = self.pieces.range((object, 0)..=(object, u64::MAX)).next_back()
        {
            self.bytes -= self.pieces.remove(&key).map_or(0, |piece| piece.bytes.len() as u64);
            txn.delete(logged_key(object, key.1));
            count += 1;
        }
        count
    }

    /// Appends the items of the pieces in `touched`.
    pub fn log(&self, touched: &BTreeSet<At>, txn: &mut Txn) {
        for &(object, at) in touched {
            match self.pieces.get(&(object, at)) {
                Some(piece) => txn.put(logged_key(object, at), logged_value(piece)),
                None => txn.delete(logged_key(object, at)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_types::Ino;

    /// Goal: each byte is that of the last logged write, in whole blocks, and removed pieces are gone. Items and counts
    /// agree. Method: random puts and removals of one object, compared with a map of bytes and a map of items.
    #[test]
    fn pieces_are_what_was_put_last() {
        let id = ObjectId { ino: Ino(9), stripe: 1 };
        let (mut logged, mut bytes) = (Logged::default(), BTreeMap::<u64, u8>::new());
        let mut items = BTreeMap::new();
        let mut seed = 7u64;
        let mut rand = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for step in 0..400u64 {
            let most = [10, 5000][rand(2) as usize];
            let range = ByteRange::at(rand(5 * BLOCK), 1 + rand(most));
            let mut txn = Txn::default();
            if rand(3) > 0 {
                let new = vec![step as u8; range.len() as usize];
                let mut touched = BTreeSet::new();
                logged.put(id, range.start, Timespec::from_ns(step), &new, &mut touched);
                logged.log(&touched, &mut txn);
                bytes.extend((range.start..range.end).map(|at| (at, step as u8)));
            } else {
                logged.cut(id, range, &mut txn);
                bytes.retain(|at, _| !(range.start..range.end).contains(at));
            }
            for c in txn.changes() {
                match c.value() {
                    Some(value) => drop(items.insert(c.key().to_vec(), value.to_vec())),
                    None => drop(items.remove(c.key())),
                }
            }
            let mut found = BTreeMap::new();
            for (object, range, piece) in logged.all() {
                assert_eq!((object, range.start / BLOCK), (id, (range.end - 1) / BLOCK));
                found.extend((range.start..range.end).zip(piece.bytes.iter().copied()));
                assert_eq!(items.get(&logged_key(id, range.start)[..]), Some(&logged_value(piece)));
            }
            assert_eq!((found.len() as u64, items.len() as u64), (logged.bytes(), logged.pieces()));
            assert_eq!(found, bytes, "step {step}");
            let whole = ByteRange::at(rand(3 * BLOCK), 1 + rand(BLOCK));
            let want: Vec<u8> = (whole.start..whole.end).filter_map(|at| bytes.get(&at).copied()).collect();
            let has = want.len() as u64 == whole.len();
            assert_eq!(logged.has_all(id, whole, |found| found == want), has, "{whole:?}");
        }
        let mut txn = Txn::default();
        let count = logged.pieces() as usize;
        assert_eq!(logged.cut_last(id, usize::MAX, &mut txn), count);
        assert_eq!((logged.bytes(), txn.len()), (0, count));
    }
}
