//! `Overwrite`: a write to bytes that a front end has in pages.
//!
//! Owns: the begin of such a write, and its end, after which these pages are dropped. Does not own: what is written
//! back of such pages meanwhile (`front_pages`).

use super::Inode;
use crate::api::KernelPages;
use amphi_types::ByteRange;
use futures_channel::oneshot;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// A write to bytes that are in pages of a front end. The write has to be begun under the range lock on these bytes,
/// before the first byte is written.
pub(crate) struct Overwrite {
    file: Arc<Inode>,
    range: ByteRange,
    id: u64,
}

impl Overwrite {
    /// Returns `None` if no page has these bytes: under the range lock, every later read of `range` returns what the
    /// write has written.
    pub(crate) fn begin(file: &Arc<Inode>, range: ByteRange) -> Option<Overwrite> {
        let pages = &file.pages;
        // Pages that are being dropped are read without the range lock.
        if !pages.touches(range) && !pages.is_taking.load(SeqCst) {
            return None;
        }
        let id = pages.begin_overwrite(range);
        Some(Overwrite { file: file.clone(), range, id })
    }

    /// The first `len` bytes of the write are where readers find them.
    pub(crate) fn in_place(&self, len: usize) {
        self.file.pages.overwrite_in_place(self.id, self.range.start + len as u64);
    }

    /// Makes the front end, if there is one, drop its pages of these bytes. The caller must hold no lock that a read or
    /// write of these pages may need. The work continues if the future is dropped.
    pub(crate) async fn settle(self, front: Option<Arc<dyn KernelPages>>) {
        let Some(pages) = front else { return };
        let (ino, range) = (self.file.ino, self.range);
        let (sender, done) = oneshot::channel();
        pages.drop_overwritten(
            ino,
            range,
            Box::new(move || {
                drop(self);
                let _ = sender.send(());
            }),
        );
        let _ = done.await;
    }
}

impl Drop for Overwrite {
    fn drop(&mut self) {
        self.file.pages.end_overwrite(self.id);
    }
}
