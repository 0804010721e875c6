//! `Handles`: the open files of a mount, by the number that the kernel uses.
//!
//! Owns: the numbers and the files behind them; the memory in which programs read cached files (`exports`), and the
//! writes that programs post (`posts`). Does not own: open files (the client). Bound: the kernel's limit on open files.
//! A lookup costs a read lock and a reference count, about 30 ns.

use super::exports::Exports;
use super::posts::Posts;
use crate::calls::Handle;
use amphi_client::OpenFile;
use amphi_types::{Errno, Result};
use parking_lot::RwLock;
use std::sync::Arc;

#[derive(Default)]
struct Table {
    files: Vec<Option<Arc<OpenFile>>>,
    free: Vec<usize>,
}

/// The table of open files.
#[derive(Default)]
pub(crate) struct Handles {
    table: RwLock<Table>,
    /// Memory in which programs read the cached bytes of open files.
    pub(crate) exports: Exports,
    /// Writes that programs post.
    pub(crate) posts: Arc<Posts>,
}

impl Handles {
    pub(crate) fn insert(&self, file: Arc<OpenFile>) -> Handle {
        let mut t = self.table.write();
        match t.free.pop() {
            Some(at) => {
                assert!(t.files[at].is_none(), "handle {at} is free and names an open file");
                t.files[at] = Some(file);
                Handle(at as u64)
            }
            None => {
                t.files.push(Some(file));
                Handle(t.files.len() as u64 - 1)
            }
        }
    }

    /// Errors: `BadFd` for a number that is not open.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        let t = self.table.read();
        t.files.get(handle.0 as usize).and_then(Clone::clone).ok_or(Errno::BadFd)
    }

    pub(crate) fn remove(&self, handle: Handle) -> Option<Arc<OpenFile>> {
        self.exports.raise(handle.0);
        self.posts.released(handle.0);
        let mut t = self.table.write();
        let file = t.files.get_mut(handle.0 as usize)?.take()?;
        t.free.push(handle.0 as usize);
        Some(file)
    }

    pub(crate) fn len(&self) -> usize {
        let t = self.table.read();
        assert!(t.free.len() <= t.files.len(), "{} of {} handles are free", t.free.len(), t.files.len());
        t.files.len() - t.free.len()
    }

    /// Empties the table. The files are dropped outside the lock, because that runs code of the client.
    pub(crate) fn clear(&self) {
        let files = std::mem::take(&mut *self.table.write());
        drop(files);
    }
}
