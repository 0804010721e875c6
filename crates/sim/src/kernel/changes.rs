//! Writes and cuts of a program on this mount, as the kernel sends them and takes their answers.
//!
//! Owns: the inode's lock, the cached state that a change drops or keeps. Does not own: stores through mappings
//! (`stores`).

use super::{EXCLUSIVE, Kernel, LOOK, Opened, PAGE, lock};
use amphi_client::{Ctx, Hints};
use amphi_env::{Buf, Env};
use amphi_types::{ByteRange, Ino, Result, SetAttr};
use std::time::Duration;

impl Kernel {
    /// Takes the lock of an inode.
    pub(super) async fn lock(&self, ino: Ino, exclusive: bool) {
        loop {
            {
                let kept = &mut *lock(&self.kept);
                let inode = kept.inodes.entry(ino).or_default();
                match (exclusive, inode.lock) {
                    (true, 0) => {
                        inode.lock = EXCLUSIVE;
                        return;
                    }
                    (false, n) if n != EXCLUSIVE => {
                        inode.lock += 1;
                        return;
                    }
                    _ => {}
                }
            }
            self.env.sleep(LOOK).await;
        }
    }

    pub(super) fn unlock(&self, ino: Ino) {
        if let Some(inode) = lock(&self.kept).inodes.get_mut(&ino) {
            inode.lock = if inode.lock == EXCLUSIVE { 0 } else { inode.lock - 1 };
        }
    }

    /// A change of an inode begins: its cached attributes are dropped if it counts.
    pub(super) fn begins(&self, ino: Ino, is_cut: bool) {
        let now = self.now_ns();
        let kept = &mut *lock(&self.kept);
        kept.moment += 1;
        let inode = kept.inodes.entry(ino).or_default();
        inode.changes += 1;
        inode.cuts += u32::from(is_cut);
        if inode.until_ns > now {
            (inode.version, inode.until_ns) = (kept.moment, 0);
        }
    }

    pub(super) fn ends(&self, ino: Ino, is_cut: bool) {
        let kept = &mut *lock(&self.kept);
        kept.moment += 1;
        let inode = kept.inodes.entry(ino).or_default();
        inode.changes -= 1;
        inode.cuts -= u32::from(is_cut);
        inode.changed = kept.moment;
        inode.resized = if is_cut { kept.moment } else { inode.resized };
    }

    /// Writes through an open file whose writes pass the kernel's pages: concurrent with others within the file,
    /// exclusive behind its end.
    ///
    /// Errors: those of `write`.
    pub async fn write(&self, ctx: &Ctx, open: &Opened, offset: u64, bytes: &[u8]) -> Result<usize> {
        let (ino, end) = (open.file.ino(), offset + bytes.len() as u64);
        let extends = lock(&self.kept).inodes.get(&ino).is_none_or(|inode| end > inode.size);
        self.lock(ino, extends).await;
        self.drop_pages(ino, ByteRange::new(offset, end)).await;
        self.begins(ino, false);
        let mut buf = Buf::padded((offset % PAGE) as usize, bytes.len());
        buf.copy_from_slice(bytes);
        let written = self.client.write(ctx, &open.file, offset, buf, Hints::default()).await;
        self.ends(ino, false);
        self.late(self.late_us.1).await;
        if let Ok(n) = written {
            let end = offset + n as u64;
            {
                let kept = &mut *lock(&self.kept);
                kept.moment += 1;
                let inode = kept.inodes.entry(ino).or_default();
                // The kernel nevertheless requests the attributes again (`fuse_write_update_attr`).
                (inode.version, inode.until_ns) = (kept.moment, 0);
                inode.size = inode.size.max(end);
            }
            self.drop_pages(ino, ByteRange::new(offset, end)).await;
        }
        self.unlock(ino);
        written
    }

    /// Sets the size of a file.
    ///
    /// Errors: those of `setattr`.
    pub async fn truncate(&self, ctx: &Ctx, ino: Ino, size: u64) -> Result<()> {
        self.hold(ctx, ino).await?;
        self.lock(ino, true).await;
        self.hold_write_back(ino).await;
        self.begins(ino, true);
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let done = self.client.setattr(ctx, ino, set, None).await;
        self.late(self.late_us.1).await;
        self.ends(ino, true);
        if let Ok(attr) = &done {
            self.cut(ino, attr.size);
        }
        self.release_write_back(ino);
        if let Ok(attr) = &done {
            // The kernel uses this answer, even if others arrived meanwhile.
            self.told(u64::MAX, attr, Duration::ZERO).await;
        }
        self.unlock(ino);
        self.release(ino);
        done.map(drop)
    }
}
