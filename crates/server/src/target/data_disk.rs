//! `DataDisk`: the disk of a target as its data sees it, with what is kept of it in memory.
//!
//! Owns: that no write of file data passes by the kept blocks. Does not own: what is kept (`read_cache`), the log and
//! the metadata of the zone, which have their own way to the disk and never touch the data region.
//!
//! Invariant: this is the only way from a target to its data region. Reads through it go to the disk; who wants what is
//! kept asks the cache.

use super::read_cache::{OnTheWay, ReadCache};
use super::read_pattern::ReadPattern;
use amphi_env::{Buf, Disk, IoBuf};
use amphi_types::limits::BLOCK;
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::rc::Rc;

/// The disk of a target's data.
pub struct DataDisk<D> {
    disk: Rc<D>,
    /// Byte address of data block 0.
    offset: u64,
    /// What is kept of it.
    pub cache: Rc<RefCell<ReadCache>>,
    /// Who has read what lately.
    pub pattern: Rc<RefCell<ReadPattern>>,
    /// What is written through this handle is kept.
    keeps: bool,
}

impl<D: Disk> DataDisk<D> {
    /// The data region of `disk`, which begins at byte `offset`.
    pub fn new(disk: Rc<D>, offset: u64) -> DataDisk<D> {
        DataDisk { disk, offset, cache: Rc::default(), pattern: Rc::default(), keeps: false }
    }

    /// The same disk; what is written through this handle is kept, if `keeps`.
    pub fn keeping(&self, keeps: bool) -> DataDisk<D> {
        let (disk, cache, pattern) = (self.disk.clone(), self.cache.clone(), self.pattern.clone());
        DataDisk { disk, offset: self.offset, cache, pattern, keeps }
    }

    fn blocks(&self, at: u64, len: u64) -> Range<u64> {
        let first = at.saturating_sub(self.offset) / BLOCK;
        first..first + len / BLOCK
    }
}

impl<D: Disk> Disk for DataDisk<D> {
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
