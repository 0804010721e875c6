//! Stores through shared mappings, and the write-back of the pages that they change.
//!
//! Owns: which pages are changed, by which open file they are written back, when they may not be. Does not own:
//! dropping pages (`Kernel::drop_pages`, which writes back changed ones), stores to pages, and the checks (`games`).
//!
//! The rules, as of Linux 6.18. A store waits while its page is being written back. A page is written back by `msync`,
//! before it is dropped, and before a read or write that does not use the cached pages; only up to the end of the file.
//! While a truncate is unanswered nothing is written back (`FUSE_NOWRITE`), and the truncate begins when the bytes that
//! were sent have been answered. A truncate drops the pages behind the new end without writing them back.

use super::{Kernel, LOOK, Mistake, Opened, PAGE, Page, Shown, lock};
use amphi_client::{Ctx, Hints, OpenFile};
use amphi_env::{Buf, Env};
use amphi_types::{ByteRange, Ino, Result};
use std::sync::Arc;

/// The state of a page after a store.
pub(super) enum Stored {
    /// The page is as it was read, or as it was written back.
    Clean,
    /// The page is to be written back, through this open file.
    Dirty(Arc<OpenFile>),
    /// The page is being written back.
    Writing,
}

/// The write-back of one inode.
#[derive(Default)]
pub(super) struct WriteBack {
    /// Requests that are not answered.
    sent: u32,
    /// Truncates under way.
    held: u32,
}

impl Kernel {
    /// Stores `word` all over the page `at` through a mapping of `open`. Returns false if the mapping ends before
    /// (SIGBUS).
    ///
    /// Errors: those of a read.
    pub async fn store(&self, ctx: &Ctx, open: &Opened, at: u64, word: &[u8]) -> Result<bool> {
        loop {
            {
                let kept = &mut *lock(&self.kept);
                let Some(inode) = kept.inodes.get_mut(&open.file.ino()) else { return Ok(false) };
                if at * PAGE >= inode.size {
                    return Ok(false);
                }
                if let Some(Page::There { bytes, short_ns, stored }) = inode.pages.get_mut(&at)
                    && !matches!(stored, Stored::Writing)
                {
                    *bytes = word.repeat(PAGE as usize / word.len());
                    (*short_ns, *stored) = (None, Stored::Dirty(open.file.clone()));
                    return Ok(true);
                }
            }
            match self.read_page(ctx, open, at, true).await? {
                Shown::Nothing => return Ok(false),
                Shown::Unsynced => self.env.sleep(LOOK).await,
                Shown::Bytes(_) | Shown::Cut => {}
            }
        }
    }

    /// Returns when stores into the page `at` of an open file that came before are written back.
    ///
    /// Errors: those of `write`.
    pub async fn msync(&self, open: &Opened, at: u64) -> Result<()> {
        self.write_back_range(open.file.ino(), ByteRange::at(at * PAGE, PAGE)).await
    }

    /// Writes back the changed pages of these bytes, and waits for those under write-back. The pages stay.
    pub(super) async fn write_back_range(&self, ino: Ino, range: ByteRange) -> Result<()> {
        for number in range.start / PAGE..range.end.div_ceil(PAGE) {
            self.write_back(ino, number).await?;
            while self.is_being_written(ino, number) {
                self.env.sleep(LOOK).await;
            }
        }
        Ok(())
    }

    fn is_being_written(&self, ino: Ino, number: u64) -> bool {
        let kept = lock(&self.kept);
        let page = kept.inodes.get(&ino).and_then(|inode| inode.pages.get(&number));
        matches!(page, Some(Page::There { stored: Stored::Writing, .. }))
    }

    /// Writes a page back, if it is changed.
    ///
    /// Errors: those of `write`.
    pub(super) async fn write_back(&self, ino: Ino, number: u64) -> Result<()> {
        let offset = number * PAGE;
        let (bytes, file) = {
            let kept = &mut *lock(&self.kept);
            let page = kept.inodes.get_mut(&ino).and_then(|inode| inode.pages.get_mut(&number));
            let Some(Page::There { bytes, stored: stored @ Stored::Dirty(_), .. }) = page else { return Ok(()) };
            let Stored::Dirty(file) = std::mem::replace(stored, Stored::Writing) else { return Ok(()) };
            (bytes.clone(), file)
        };
        let len = loop {
            {
                let kept = &mut *lock(&self.kept);
                let Some(inode) = kept.inodes.get_mut(&ino) else { return Ok(()) };
                if inode.write_back.held == 0 {
                    inode.write_back.sent += 1;
                    break inode.size.saturating_sub(offset).min(PAGE);
                }
            }
            self.env.sleep(LOOK).await;
        };
        let mut written = Ok(());
        if len > 0 {
            self.late(self.late_us.1).await;
            let mut buf = Buf::zeroed(len as usize);
            buf.copy_from_slice(&bytes[..len as usize]);
            let hints = Hints { write_back: true, ..Hints::default() };
            written = self.client.write(&Ctx::root(), &file, offset, buf, hints).await.map(drop);
            self.late(self.late_us.1).await;
            self.count(|t| t.written_back += 1);
        }
        let kept = &mut *lock(&self.kept);
        if let Some(inode) = kept.inodes.get_mut(&ino) {
            inode.write_back.sent -= 1;
            if let Some(Page::There { stored: stored @ Stored::Writing, .. }) = inode.pages.get_mut(&number) {
                *stored = Stored::Clean;
            }
        }
        written
    }

    /// A truncate is about to be requested: waits for sent pages, and holds back the rest.
    pub(super) async fn hold_write_back(&self, ino: Ino) {
        lock(&self.kept).inodes.entry(ino).or_default().write_back.held += 1;
        while lock(&self.kept).inodes.get(&ino).is_some_and(|inode| inode.write_back.sent > 0) {
            self.env.sleep(LOOK).await;
        }
    }

    /// The truncate was answered.
    pub(super) fn release_write_back(&self, ino: Ino) {
        if let Some(inode) = lock(&self.kept).inodes.get_mut(&ino) {
            inode.write_back.held -= 1;
        }
    }

    /// From now on the file ends at `size`: pages behind it are dropped without write-back.
    pub(super) fn cut(&self, ino: Ino, size: u64) {
        let kept = &mut *lock(&self.kept);
        let Some(inode) = kept.inodes.get_mut(&ino) else { return };
        inode.size = size;
        let gone = |number: &u64, page: &Page| {
            number * PAGE >= size && matches!(page, Page::There { stored: Stored::Clean | Stored::Dirty(_), .. })
        };
        inode.pages.retain(|number, page| !gone(number, page));
    }

    pub(super) fn loses_stores(&self, number: u64) -> bool {
        self.mistake == Some(Mistake::LostStores) && number.is_multiple_of(3)
    }
}
