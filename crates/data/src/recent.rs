//! `Recent`: edge blocks of recent writes, so that the write of the neighbouring bytes need not read them.
//!
//! Owns: the bytes of these blocks. Does not own: which blocks are edges (`write`).
//!
//! Invariants: an image equals the content of its physical block on the disk, for as long as the object maps its file
//! block there. A write of the file block removes the image, and an image whose file block was mapped elsewhere is not
//! found. Bound: `BLOCKS_MAX` blocks of 4 KiB.

use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, ObjectId};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Most blocks that are kept for a target: 2 MiB.
const BLOCKS_MAX: usize = 512;

/// A file block of an object.
type Place = (ObjectId, u64);

/// Blocks by object and place in the file, with the physical block.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    blocks: BTreeMap<Place, (u64, Rc<[u8]>)>,
    order: VecDeque<Place>,
}

impl Recent {
    /// Called when the block was written at `physical` and committed.
    pub fn put(&mut self, object: ObjectId, file_block: u64, physical: u64, image: Rc<[u8]>) {
        self.blocks.insert((object, file_block), (physical, image));
        self.order.push_back((object, file_block));
        while self.order.len() > BLOCKS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.blocks.remove(&oldest);
            }
        }
    }

    /// The bytes of a file block that lies at `physical`.
    pub fn get(&self, object: ObjectId, file_block: u64, physical: u64) -> Option<&Rc<[u8]>> {
        self.blocks.get(&(object, file_block)).filter(|(at, _)| *at == physical).map(|(_, image)| image)
    }

    /// Called when these blocks are about to be written, so their images are removed.
    pub fn forget(&mut self, object: ObjectId, range: ByteRange) {
        let keys = (object, range.start / BLOCK)..(object, range.end.div_ceil(BLOCK));
        while let Some((&key, _)) = self.blocks.range(keys.clone()).next() {
            self.blocks.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_types::Ino;

    /// Goal: only images that are still valid are found, and the memory is bounded. Method: put, move, forget,
    /// overflow.
    #[test]
    fn only_what_is_there() {
        let (object, image) = (ObjectId { ino: Ino(3), stripe: 0 }, Rc::<[u8]>::from(vec![1; BLOCK as usize]));
        let mut recent = Recent::default();
        recent.put(object, 5, 50, image.clone());
        assert!(recent.get(object, 5, 50).is_some() && recent.get(object, 5, 51).is_none());
        recent.forget(object, ByteRange::new(6 * BLOCK, 9 * BLOCK));
        assert!(recent.get(object, 5, 50).is_some());
        recent.forget(object, ByteRange::new(5 * BLOCK + 1, 5 * BLOCK + 2));
        assert!(recent.get(object, 5, 50).is_none());
        for i in 0..2 * BLOCKS_MAX as u64 {
            recent.put(object, i, i, image.clone());
        }
        assert_eq!((recent.blocks.len(), recent.order.len()), (BLOCKS_MAX, BLOCKS_MAX));
    }
}
