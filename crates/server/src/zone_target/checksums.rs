//! Reading data blocks and verifying them by their checksums.
//!
//! Owns: comparing what was read, the second read, the log line for the operator. Does not own: the checksums
//! (`amphi_data::Checksums`), which blocks are known to be damaged (`verifier`), or which blocks are read at which
//! time.
//!
//! Invariant: every read of file data calls `expect` in the step that plans it, and `verify` when the disk has
//! answered. A read from the read cache did so when the block entered the cache. No byte of a block that does not
//! verify leaves the target or gets a new checksum.
//!
//! If a block was replaced since the plan, it is not compared, because its bytes are not used.

use crate::counters::add;
use crate::planted::{self, Mistake};
use crate::zone_target::Target;
use crate::zone_target::verifier::Expected;
use amphi_data::{Checksum, ReadSegment};
use amphi_env::Env;
use amphi_meta::{MetaStore, Named};
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, DataChecksums, Errno, Ino, ObjectId, Result};

/// Most names that are examined to find the one of a damaged file.
const NAMES_MAX: usize = 100_000;
/// Most directories of the path of a file.
const DEPTH_MAX: usize = 64;

impl<E: Env> Target<E> {
    /// Checksums of whole blocks that are written, if they should have some. `asked`: the setting of their file.
    pub fn checksums_of(&self, aligned: &[u8], asked: DataChecksums) -> Option<Vec<Checksum>> {
        assert!(aligned.len().is_multiple_of(BLOCK as usize), "{} bytes are no whole blocks", aligned.len());
        asked.are_made(self.storage.verifier.is_on()).then(|| Checksum::of_each(aligned))
    }

    /// The checksum of a block that is copied because a part of its bytes is removed. If the old block had a checksum,
    /// the new one gets one. Otherwise it gets one unless its file is set to have none, as far as this target knows the
    /// setting.
    pub fn checksum_of_edge(&self, object: ObjectId, physical: u64, block: &[u8]) -> Checksum {
        let has_one = self.data.borrow().checksums.get(physical).is_known();
        let is_asked = || self.asked_of(object).unwrap_or_default().are_made(self.storage.verifier.is_on());
        if has_one || is_asked() { Checksum::of(block) } else { Checksum::NONE }
    }

    /// The setting of a file, if its inode is on this target.
    pub fn asked_of(&self, object: ObjectId) -> Option<DataChecksums> {
        self.meta.borrow().inode(object.ino).ok().map(|inode| inode.advice.checksums())
    }

    /// The expected checksums of the blocks of a plan. The block `from_block` of the file is `base` bytes into the
    /// buffer. This has to be called in the step that plans the read.
    pub fn expect(&self, segments: &[ReadSegment], from_block: u64, base: usize) -> Vec<Expected> {
        let data = self.data.borrow();
        if data.checksums.is_empty() {
            return Vec::new();
        }
        let expected = segments.iter().filter_map(|s| {
            let physical = s.physical?;
            let at = base + ((s.file_block - from_block) * BLOCK) as usize;
            let checksums = data.checksums.of_run(physical, s.blocks);
            Some(Expected { at, file_block: s.file_block, physical, checksums })
        });
        expected.collect()
    }

    /// Works as `expect`, for one block in a separate buffer.
    pub fn expect_block(&self, file_block: u64, physical: u64) -> Vec<Expected> {
        self.expect(&[ReadSegment { file_block, blocks: 1, physical: Some(physical) }], file_block, 0)
    }

    /// Compares what was read. A block that reads wrong is read a second time, since a bus may fail once.
    ///
    /// Errors: `Io` if a block does not match its checksum. A line says which.
    pub async fn verify(&self, object: ObjectId, expected: &[Expected], bytes: &mut [u8]) -> Result<()> {
        self.verify_part(object, expected, bytes, 0).await
    }

    /// Works as `verify`, for the blocks in a part of the plan, which begins `from` bytes into it.
    pub async fn verify_part(
        &self,
        object: ObjectId,
        expected: &[Expected],
        part: &mut [u8],
        from: usize,
    ) -> Result<()> {
        if planted::is(Mistake::Unverified) {
            return Ok(());
        }
        let mut result = Ok(());
        for e in expected {
            for (i, &checksum) in e.checksums.iter().enumerate().filter(|(_, sum)| sum.is_known()) {
                let at = (e.at + i * BLOCK as usize).checked_sub(from);
                let Some(block) = at.and_then(|at| part.get_mut(at..at + BLOCK as usize)) else { continue };
                if Checksum::of(block) == checksum {
                    continue;
                }
                let (file_block, physical) = (e.file_block + i as u64, e.physical + i as u64);
                if !self.look_again(object, file_block, physical, checksum, block).await {
                    result = Err(Errno::Io);
                }
            }
        }
        result
    }

    /// Returns whether a block is right when it is read a second time. Then `block` contains its bytes.
    async fn look_again(
        &self,
        object: ObjectId,
        file_block: u64,
        physical: u64,
        checksum: Checksum,
        block: &mut [u8],
    ) -> bool {
        if checksum != Checksum::DAMAGED {
            let (result, again) = self.storage.disk.read_block(physical).await;
            if result.is_ok() && Checksum::of(&again) == checksum {
                add(&self.counts.worker.checksum_retries, 1);
                tracing::warn!(
                    "{}: the block at byte {} of the disk read wrong once, and right when it was read again",
                    self.id,
                    self.block_address(physical)
                );
                block.copy_from_slice(&again);
                return true;
            }
        }
        if self.data.borrow().checksums.get(physical) != checksum {
            return true;
        }
        add(&self.counts.worker.checksum_errors, 1);
        self.note_damaged(object, file_block, physical, checksum);
        false
    }

    /// Says once which block is damaged.
    fn note_damaged(&self, object: ObjectId, file_block: u64, physical: u64, checksum: Checksum) {
        if !self.storage.verifier.is_new(physical, checksum) {
            return;
        }
        let (path, offset, address) = (self.path_of(object.ino), file_block * BLOCK, self.block_address(physical));
        self.storage.verifier.note(physical, checksum, (object, file_block), &path, address);
        tracing::error!(
            "{}: {path}: the 4096 bytes from byte {offset} on are damaged (byte {address} of the disk): they are not what \
             was written, and reading them fails until all of them are overwritten or the file is removed",
            self.id
        );
    }

    /// Blocks that were found damaged and have been neither overwritten nor freed since.
    pub fn damaged_blocks(&self) -> u64 {
        let data = self.data.borrow();
        self.storage.verifier.still_damaged(|physical, checksum, object, file_block| {
            let place = ByteRange::at(file_block * BLOCK, BLOCK);
            let segments = data.plan_disk_read(object, place).segments;
            data.checksums.get(physical) == checksum && segments.first().and_then(|s| s.physical) == Some(physical)
        })
    }

    /// The path of a file as far as this target knows it, and its inode's number.
    fn path_of(&self, ino: Ino) -> String {
        match path_of(&self.meta.borrow(), ino) {
            Some(path) => format!("{path} (inode {ino})"),
            None => format!("inode {ino}"),
        }
    }
}

/// The path of an inode below the root of the file system, if all of it lies in this store.
fn path_of(meta: &MetaStore, ino: Ino) -> Option<String> {
    let (mut at, mut path, mut looked) = (ino, String::new(), 0);
    for _ in 0..DEPTH_MAX {
        if at == Ino::ROOT {
            return Some(path);
        }
        if meta.is_away(at) {
            return None;
        }
        let parent = meta.inode(at).ok()?.dir.parent;
        if at.is_shard() {
            at = parent;
            continue;
        }
        let mut found = None;
        let visit = |name: &[u8], named: Named| {
            looked += 1;
            if named.child == at {
                found = Some(String::from_utf8_lossy(name).into_owned());
            }
            found.is_none() && looked <= NAMES_MAX
        };
        meta.visit_entries(parent, visit).ok()?;
        path.insert_str(0, &format!("/{}", found?.escape_debug()));
        at = parent;
    }
    None
}
