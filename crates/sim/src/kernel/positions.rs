//! Positions of descriptors that append, as Linux has them and as a mount keeps them right.
//!
//! Owns: where the kernel takes an append to begin, the position behind it, and the moments at which the mount makes
//! the kernel take the end of the file (`amphi-fuse`, `client_fs/positions`). Does not own: who appends, and which
//! positions are right (`appends`).
//!
//! The rules, as of Linux 6.18. An append holds the inode's lock alone. For the kernel it begins at the size that the
//! kernel goes by, and no request comes before it. The position behind it is that place plus the bytes that were
//! written, whatever the mount answers, and from the answer on the kernel's size is at least that. The mount writes the
//! bytes at the end of the file. If that lies behind the kernel's end, the kernel takes it before the append is
//! answered; if it lies before, right after the answer. The kernel takes the end also before a program is told that it
//! holds a lock on the file.

use super::{Kernel, Mistake, Opened, PAGE, lock};
use amphi_client::{Ctx, FileLockSpec, Hints, Interrupt, WriteTo};
use amphi_env::{Buf, Env};
use amphi_types::{ByteRange, Result};
use std::rc::Rc;
use std::sync::Arc;

/// An append that has returned.
pub struct Appended {
    /// The position of the descriptor behind it.
    pub position: u64,
    /// Whether the kernel goes by the end that the file had right after it.
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
        written.map(|n| Appended { position: offset + n as u64, told: at >= offset })
    }

    /// Takes a lock of a program on a file that is open to append.
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

    /// Gives a lock up.
    ///
    /// Errors: those of the call.
    pub async fn unlock_file(&self, spec: FileLockSpec) -> Result<()> {
        self.client.unlock(spec.ino, spec.owner, spec.range).await
    }
}
