//! What the server tells an inode about its file's data: layout, spread, settled size, trimmed, destroyed.
//!
//! Life of a file with several stripes: `mark_spread` before the first write beyond stripe 0; from then on size
//! and mtime are gathered from the objects. When the last writer has closed, `settle` stores what was gathered.
//! A set size leaves `Pending::trim` on a wide file until `trim_done`. When nlink is 0 and nobody has the file
//! open: `begin_destroy`, remove the objects, `remove_inode`.

use crate::codec::ItemKey;
use crate::store::Dirty;
use crate::{Gathered, MetaStore, perm};
use amphi_types::item::Txn;
use amphi_types::{AskedAdvice, Cred, Errno, Ino, Kind, Layout, Result, Timespec};

impl MetaStore {
    /// Sets layout or a setting for mounts of a file or directory. `has_data`: objects of the file hold bytes, which
    /// fixes its layout.
    ///
    /// Errors: `Stale`, `Inval` (layout, or neither file nor directory), `Perm` (not the owner), `Busy`.
    #[expect(clippy::too_many_arguments, reason = "two settings, a condition, a caller, a time and a log")]
    pub fn set_layout(
        &mut self,
        cred: &Cred,
        ino: Ino,
        layout: Option<Layout>,
        advice: Option<AskedAdvice>,
        has_data: bool,
        now: Timespec,
        txn: &mut Txn,
    ) -> Result<()> {
        let inode = self.inode(ino)?;
        if !matches!(inode.kind, Kind::File | Kind::Dir) {
            return Err(Errno::Inval);
        }
        perm::owner(cred, &inode.facts(ino))?;
        if let Some(layout) = layout {
            layout.check_asked()?;
            let fixed = inode.kind == Kind::File && (has_data || inode.size > 0 || inode.objects.wide);
            if fixed && layout != inode.layout {
                return Err(Errno::Busy);
            }
        }
        let mut dirty = Dirty::default();
        self.edit(ino, &mut dirty, |inode| {
            inode.layout = layout.unwrap_or(inode.layout);
            inode.advice = advice.map_or(inode.advice, |asked| inode.advice.with(asked));
            inode.times.ctime = now;
        });
        self.emit(dirty, txn);
        Ok(())
    }

    /// Brings the access time forward to `atime`, and changes nothing else. False if it is not older.
    ///
    /// Errors: `Stale`.
    pub fn accessed(&mut self, ino: Ino, atime: Timespec, txn: &mut Txn) -> Result<bool> {
        if self.inode(ino)?.times.atime >= atime || atime.nsec >= 1_000_000_000 {
            return Ok(false);
        }
        let mut dirty = Dirty::default();
        self.edit(ino, &mut dirty, |inode| inode.times.atime = atime);
        self.emit(dirty, txn);
        Ok(true)
    }

    /// The file is about to have data beyond stripe 0: until it is settled, its size is gathered. Nothing is
    /// logged if that is known already. Errors: `Stale`, `Inval` for what is no file.
    pub fn mark_spread(&mut self, ino: Ino, txn: &mut Txn) -> Result<()> {
        let inode = self.inode(ino)?;
        if inode.kind != Kind::File {
            return Err(Errno::Inval);
        }
        let mut dirty = Dirty::default();
        if !(inode.objects.spread && inode.objects.wide) {
            self.edit(ino, &mut dirty, |inode| {
                inode.objects.spread = true;
                inode.objects.wide = true;
            });
        }
        self.emit(dirty, txn);
        Ok(())
    }

    /// Behind a `setattr` that has set a time: what the objects have until `objects` was before that, also by the clock
    /// of a client that is ahead. Errors: `Stale`.
    pub fn time_outranks(&mut self, ino: Ino, objects: Timespec, txn: &mut Txn) -> Result<()> {
        let mut dirty = Dirty::default();
        if objects > self.inode(ino)?.times.mtime_set_ctime {
            self.edit(ino, &mut dirty, |inode| inode.times.mtime_set_ctime = objects);
        }
        self.emit(dirty, txn);
        Ok(())
    }

    /// The last writer has gone: the inode's copy of size, times and blocks is right again.
    ///
    /// Errors: `Stale`, `Inval` for what is no file.
    pub fn settle(&mut self, ino: Ino, objects: &Gathered, txn: &mut Txn) -> Result<()> {
        let inode = self.inode(ino)?;
        if inode.kind != Kind::File {
            return Err(Errno::Inval);
        }
        let attr = inode.attr_with(ino, objects);
        let mut next = inode.clone();
        (next.size, next.blocks, next.times.mtime, next.times.ctime) = (attr.size, attr.blocks, attr.mtime, attr.ctime);
        next.objects.spread = false;
        let mut dirty = Dirty::default();
        if next != *inode {
            self.edit(ino, &mut dirty, |inode| *inode = next);
        }
        self.emit(dirty, txn);
        Ok(())
    }

    /// All objects are trimmed to the size that came with truncation `generation`; without effect if the file
    /// was truncated again since. Errors: `Stale`.
    pub fn trim_done(&mut self, ino: Ino, generation: u64, txn: &mut Txn) -> Result<()> {
        let inode = self.inode(ino)?;
        let mut dirty = Dirty::default();
        if inode.pending.trim && inode.objects.generation == generation {
            self.edit(ino, &mut dirty, |inode| inode.pending.trim = false);
        }
        self.emit(dirty, txn);
        Ok(())
    }

    /// The orphan's objects are about to be removed: it cannot get a name any more.
    ///
    /// Errors: `Stale`, `Busy` if it has a name.
    pub fn begin_destroy(&mut self, ino: Ino, txn: &mut Txn) -> Result<()> {
        let inode = self.inode(ino)?;
        if inode.nlink > 0 {
            return Err(Errno::Busy);
        }
        let mut dirty = Dirty::default();
        if !inode.pending.destroy {
            self.edit(ino, &mut dirty, |inode| inode.pending.destroy = true);
        }
        self.emit(dirty, txn);
        Ok(())
    }

    /// Frees an orphan with its extended attributes. Its number is never used again.
    ///
    /// Errors: `Stale`, `Busy` if it has a name.
    pub fn remove_inode(&mut self, ino: Ino, txn: &mut Txn) -> Result<()> {
        if self.inode(ino)?.nlink > 0 {
            return Err(Errno::Busy);
        }
        let local = ino.local();
        let names: Vec<Box<[u8]>> = self.xattrs(ino).map(|(name, _)| name.into()).collect();
        let mut dirty = Dirty::default();
        for name in names {
            self.xattrs.remove(&(local, name.clone()));
            dirty.mark(ItemKey::Xattr { local, name });
        }
        self.inodes.remove(&local);
        dirty.inode(local);
        self.emit(dirty, txn);
        Ok(())
    }
}
