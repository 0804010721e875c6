//! Single blocks of which a write, a flush, a truncate or a punch keeps a part.
//!
//! Owns: where the old content of a block is read from: the read cache, or the disk, verified. Does not own: blocks
//! that were written lately and need not be read at all (`amphi_data::Recent`), how the content is used.
//!
//! Invariant: the caller holds the block, so it does not change meanwhile. A block that is known to be damaged is read
//! from the disk, which reports the damage.

use crate::counters::add;
use crate::zone_target::Target;
use amphi_data::Checksum;
use amphi_env::{Buf, Env};
use amphi_types::limits::BLOCK;
use amphi_types::{Errno, ObjectId, Result};

impl<E: Env> Target<E> {
    /// The content of a block of an object on the disk, and whether it is as it was written.
    pub async fn old_block(&self, object: ObjectId, file_block: u64, physical: u64) -> Result<(Buf, bool)> {
        if let Some(block) = self.kept_block(physical) {
            add(&self.counts.worker.edge_reads_kept, 1);
            return Ok((block, true));
        }
        add(&self.counts.worker.edge_reads, 1);
        let expected = self.expect_block(file_block, physical);
        let (result, mut block) = self.storage.disk.read_block(physical).await;
        result.map_err(|e| self.disk_error("read", &e))?;
        assert_eq!(block.len() as u64, BLOCK, "block {physical} was read into a buffer of another length");
        let is_sound = self.verify(object, &expected, &mut block).await.is_ok();
        Ok((block, is_sound))
    }

    /// The content of a block of an object on the disk.
    ///
    /// Errors: `Io` if the content is not as it was written.
    pub async fn sound_block(&self, object: ObjectId, file_block: u64, physical: u64) -> Result<Buf> {
        let (block, is_sound) = self.old_block(object, file_block, physical).await?;
        if is_sound { Ok(block) } else { Err(Errno::Io) }
    }

    fn kept_block(&self, physical: u64) -> Option<Buf> {
        let mut cache = self.storage.disk.cache.borrow_mut();
        let is_damaged = || self.data.borrow().checksums.get(physical) == Checksum::DAMAGED;
        if !cache.is_open() || !cache.has(physical..physical + 1) || is_damaged() {
            return None;
        }
        let mut block = Buf::zeroed(BLOCK as usize);
        cache.copy(physical, &mut block).is_empty().then_some(block)
    }
}
