//! File data on the disk of a target: all access to it, and the part of it that is cached in memory.
//!
//! Owns: moving one buffer to and from several places of the disk; how much is read at a time; which blocks are cached,
//! and that every write of file data updates that cache; the pattern of small reads. Does not own: which blocks belong
//! to which object (`amphi_data`), checksums, the order of a write and its record. The log and the metadata of the zone
//! have their own way to the disk and never touch the data region.
//!
//! Invariant: an `ObjectDisk` is the only way from a target to its data region. Its reads go to the disk; a caller that
//! wants cached blocks asks the cache first.
#![forbid(unsafe_code)]

mod disk_queue;
mod pieces;
#[cfg(any(test, feature = "planted"))]
pub mod planted;
#[cfg(not(any(test, feature = "planted")))]
mod planted;
mod read_cache;
mod read_pattern;

pub use disk_queue::{DiskQueue, Turn};
pub use pieces::{Piece, cut, push, widen};
pub use read_cache::{CHUNK_BLOCKS, CHUNK_BYTES, Missing, OnTheWay, ReadCache};
pub use read_pattern::{Beside, ReadPattern};

use amphi_env::{Buf, Disk, IoBuf};
use amphi_types::limits::BLOCK;
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::rc::Rc;

/// The data region of one disk.
pub struct ObjectDisk<D> {
    disk: Rc<D>,
    /// The queue of reads, shared with all that read the same device on this thread.
    queue: Rc<DiskQueue>,
    /// Byte address of data block 0.
    offset: u64,
    /// Blocks that are cached.
    pub cache: Rc<RefCell<ReadCache>>,
    /// The pattern of recent reads.
    pub pattern: Rc<RefCell<ReadPattern>>,
    /// Whether writes through this handle are cached.
    keeps: bool,
}

impl<D: Disk> ObjectDisk<D> {
    /// The data region of `disk`, which begins at byte `offset`. Large reads wait in `queue`.
    pub fn new(disk: Rc<D>, offset: u64, queue: Rc<DiskQueue>) -> ObjectDisk<D> {
        ObjectDisk { disk, queue, offset, cache: Rc::default(), pattern: Rc::default(), keeps: false }
    }

    /// The same disk. If `keeps`, writes through the new handle are cached.
    pub fn keeping(&self, keeps: bool) -> ObjectDisk<D> {
        let (disk, queue) = (self.disk.clone(), self.queue.clone());
        let (cache, pattern) = (self.cache.clone(), self.pattern.clone());
        ObjectDisk { disk, queue, offset: self.offset, cache, pattern, keeps }
    }

    /// Sets how many bytes may be read at a time, and how many may be cached.
    pub fn tune(&self, read_bytes: u64, cache_bytes: u64) {
        self.queue.tune(read_bytes);
        self.cache.borrow_mut().tune(cache_bytes);
    }

    /// Byte address of a data block.
    pub fn address(&self, physical: u64) -> u64 {
        self.offset + physical * BLOCK
    }

    /// Reads one block.
    pub async fn read_block(&self, physical: u64) -> (io::Result<()>, Buf) {
        self.disk.read(self.address(physical), Buf::zeroed(BLOCK as usize)).await
    }

    /// Writes one block.
    pub async fn write_block(&self, physical: u64, block: Buf) -> io::Result<()> {
        debug_assert_eq!(block.len() as u64, BLOCK);
        self.write(self.address(physical), block).await.0
    }

    /// Reads the pieces into `buf`, as many at a time as the queue allows. Bytes that no piece covers become zeros. On
    /// an error, every read has ended before the function returns.
    pub async fn read_pieces(&self, buf: Buf, pieces: &[Piece]) -> (io::Result<()>, Buf) {
        pieces::read_pieces(&self.queue, self, buf, pieces).await
    }

    /// Works as `read_pieces`. `look` is called for each piece as soon as it was read, with its place in the buffer,
    /// while others are still being read.
    pub async fn read_pieces_with(
        &self,
        buf: Buf,
        pieces: &[Piece],
        look: impl AsyncFn(usize, &mut Buf),
    ) -> (io::Result<()>, Buf) {
        pieces::read_pieces_with(&self.queue, self, buf, pieces, look).await
    }

    /// Writes the pieces of `buf`, all at once, and calls `look` with its bytes. For a large buffer that happens after
    /// the kernel has got the writes, so that the disk does not wait for it. On an error, every write has ended before
    /// the function returns.
    pub async fn write_pieces_aside<T>(
        &self,
        buf: Buf,
        pieces: &[Piece],
        look: impl FnOnce(&[u8]) -> T,
    ) -> io::Result<T> {
        pieces::write_pieces_aside(self, buf, pieces, look).await
    }

    /// Writes the pieces of `buf`, all at once, and returns the result of each.
    pub async fn write_each(&self, buf: Buf, pieces: &[Piece]) -> Vec<io::Result<()>> {
        pieces::write_each(self, buf, pieces).await
    }

    fn blocks(&self, at: u64, len: u64) -> Range<u64> {
        let first = at.saturating_sub(self.offset) / BLOCK;
        first..first + len / BLOCK
    }
}

impl<D: Disk> Disk for ObjectDisk<D> {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn device(&self) -> u64 {
        self.disk.device()
    }

    fn read(&self, at: u64, buf: Buf) -> impl Future<Output = IoBuf<()>> {
        self.disk.read(at, buf)
    }

    fn write(&self, at: u64, buf: Buf) -> impl Future<Output = IoBuf<()>> {
        let blocks = self.blocks(at, buf.len() as u64);
        let first = blocks.start;
        let way = OnTheWay::begin(&self.cache, blocks, true);
        let written = self.disk.write(at, buf);
        async move {
            let (result, buf) = written.await;
            if way.end() && self.keeps && result.is_ok() {
                self.cache.borrow_mut().put(first, &buf);
            }
            (result, buf)
        }
    }

    fn sync(&self) -> impl Future<Output = io::Result<()>> {
        self.disk.sync()
    }

    fn reserve(&self, at: u64, len: u64) -> impl Future<Output = io::Result<()>> {
        self.disk.reserve(at, len)
    }

    fn backed(&self) -> io::Result<Vec<(u64, u64)>> {
        self.disk.backed()
    }

    fn discard(&self, at: u64, len: u64) -> impl Future<Output = io::Result<()>> {
        let way = OnTheWay::begin(&self.cache, self.blocks(at, len), true);
        let discarded = self.disk.discard(at, len);
        async move {
            let result = discarded.await;
            way.end();
            result
        }
    }
}
