//! Positions of descriptors that append, as Linux computes them and as a mount keeps them right.
//!
//! Owns: the offset at which an append begins for the kernel, the position after it, and the moments at which the mount
//! makes the kernel take the end of the file (`amphi-fuse`, `client_fs/positions`). Does not own: which calls are made,
//! and which positions are right (`appends`).
//!
//! The rules (Linux 6.18). An append holds the inode's lock exclusively. It begins at the size that the kernel holds,
//! and Linux sends no request for the size before it. The position after it is this offset plus the number of written
//! bytes, whatever the mount answers. From the answer on, the kernel's size is at least this position. The mount writes
//! the bytes at the end of the file. If the file ends after the kernel's end, the mount makes the kernel take that end
//! before it answers the append; if the file ends before it, directly after the answer. The mount also makes the kernel
//! take the end before it grants a lock on the file.

use super::{Kernel, Mistake, Opened, PAGE, lock};
use amphi_client::{Ctx, FileLockSpec, Hints, Interrupt, WriteTo};
use amphi_env::{Buf, Env};
use amphi_types::{ByteRange, Result};
use std::rc::Rc;
use std::sync::Arc;

/// An append that has returned.
pub struct Appended {
    /// The position of the descriptor after it.
    pub position: u64,
    /// The offset at which the mount has written the bytes.
    pub at: u64,
    /// Whether the kernel holds the end that the file had directly after it.
    pub told: bool,
}

impl Kernel {
    /// Appends through a descriptor that is open to append.
    ///
    /// Errors: those of `write`.
    pub async fn append(self: &Rc<Self>, ctx: &Ctx, open: &Opened, bytes: &[u8]) -> Result<Appended> {
        let ino = open.file.ino();
        self.lock(ino, true).await;
        let offset = lock(&self.kept).inodes.get(&ino).map_or(0, |inode| inode.size);
        self.begins(ino, false);
        let mut buf = Buf::padded((offset % PAGE) as usize, bytes.len());
        buf.copy_from_slice(bytes);
        let to = if self.client.has_always_been_alone() { WriteTo::KnownEnd } else { WriteTo::End };
        let written = self.client.write(ctx, &open.file, offset, buf, Hints { to, ..Hints::default() }).await;
        let at = open.file.appended_at();
        if written.is_ok() && at > offset && self.mistake != Some(Mistake::UntoldAppends) {
            let _ = self.ask_size(ctx, ino).await;
        }
        self.ends(ino, false);
        self.late(self.late_us.1).await;
        if let Ok(n) = written {
            let end = offset + n as u64;
            {
                let kept = &mut *lock(&self.kept);
                kept.moment += 1;
                let inode = kept.inodes.entry(ino).or_default();
                (inode.version, inode.until_ns) = (kept.moment, 0);
                inode.size = inode.size.max(end);
            }
            self.drop_pages(ino, ByteRange::new(offset, end)).await;
            if at < offset {
                let (own, ctx) = (self.clone(), ctx.clone());
                self.env.spawn(async move {
                    let _ = own.ask_size(&ctx, ino).await;
                });
            }
        }
        self.unlock(ino);
        written.map(|n| Appended { position: offset + n as u64, at, told: at >= offset })
    }

    /// Takes a file lock for a program that has the file open to append.
    ///
    /// Errors: those of the lock.
    pub async fn lock_file(&self, ctx: &Ctx, spec: FileLockSpec) -> Result<()> {
        self.client.wait_lock(spec, Arc::new(Interrupt::new())).await?.keep();
        if self.mistake != Some(Mistake::UntoldLocks) {
            self.ask_size(ctx, spec.ino).await?;
        }
        self.late(self.late_us.1).await;
        Ok(())
    }

    /// Returns a file lock.
    ///
    /// Errors: those of `unlock`.
    pub async fn unlock_file(&self, spec: FileLockSpec) -> Result<()> {
        self.client.unlock(spec.ino, spec.owner, spec.range).await
    }
}
