//! Changes of a file's inode that the server makes because of its data: layout, spread, settled size, trimmed,
//! destroyed.
//!
//! Owns: these changes. Does not own: the objects themselves (`data`), when the changes are due (the server).
//!
//! The life of a file with several stripes: `mark_spread` comes before the first write beyond stripe 0, and from then
//! on size and mtime are gathered from the objects. When the last writer has closed the file, `settle` stores what was
//! gathered. Setting the size leaves `Pending::trim` on a file with objects on other targets, until `trim_done`. When
//! nlink is 0 and nobody has the file open, the server calls `begin_destroy`, removes the objects, and calls
//! `remove_inode`.

use crate::codec::ItemKey;
use crate::store::Dirty;
use crate::{Gathered, MetaStore, perm};
use amphi_types::item::Txn;
use amphi_types::{AskedAdvice, Cred, Errno, Ino, Kind, Layout, Result, Timespec};

impl MetaStore {
    /// Sets the layout of a file or directory, or a setting for mounts. `has_data`: objects of the file contain bytes,
    /// so its layout is fixed.
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
        let facts = inode.facts(ino);
        perm::owner(cred, &facts)?;
        perm::changeable(&facts)?;
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

    /// Advances the access time to `atime`, and changes nothing else. Returns false if it is not older.
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

    /// Called when the file is about to have data beyond stripe 0. Until this is settled, the file's size is gathered
    /// from the objects. Logs nothing if that is known already.
    ///
    /// Errors: `Stale`, `Inval` if it is not a file.
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

    /// Called after a `setattr` that has set a time. Changes of the objects up to `objects` count as earlier than that,
    /// even if the clock of a client is ahead.
    ///
    /// Errors: `Stale`.
    pub fn time_outranks(&mut self, ino: Ino, objects: Timespec, txn: &mut Txn) -> Result<()> {
        let mut dirty = Dirty::default();
        if objects > self.inode(ino)?.times.mtime_set_ctime {
            self.edit(ino, &mut dirty, |inode| inode.times.mtime_set_ctime = objects);
        }
        self.emit(dirty, txn);
        Ok(())
    }

    /// The last writer has closed the file, so the inode's copy of size, times and blocks is right again.
    ///
    /// Errors: `Stale`, `Inval` if it is not a file.
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
        if next != inode {
            self.put_inode(ino.local(), next, &mut dirty);
        }
        self.emit(dirty, txn);
        Ok(())
    }

    /// Called when all objects were trimmed to the size of truncation `generation`. It has no effect if the file was
    /// truncated again since.
    ///
    /// Errors: `Stale`.
    pub fn trim_done(&mut self, ino: Ino, generation: u64, txn: &mut Txn) -> Result<()> {
        let inode = self.inode(ino)?;
        let mut dirty = Dirty::default();
        if inode.pending.trim && inode.objects.generation == generation {
            self.edit(ino, &mut dirty, |inode| inode.pending.trim = false);
        }
        self.emit(dirty, txn);
        Ok(())
    }

    /// The objects of an unlinked file are about to be removed, so it cannot get a name any more.
    ///
    /// Errors: `Stale`, `Busy` if it has a name.
    pub fn begin_destroy(&mut self, ino: Ino, txn: &mut Txn) -> Result<()> {
        let inode = self.brief(ino)?;
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

    /// Frees an unlinked inode with its extended attributes. Its number is never used again.
    ///
    /// Errors: `Stale`, `Busy` if it has a name.
    pub fn remove_inode(&mut self, ino: Ino, txn: &mut Txn) -> Result<()> {
        if self.brief(ino)?.nlink > 0 {
            return Err(Errno::Busy);
        }
        let local = ino.local();
        let names: Vec<Box<[u8]>> = self.xattrs.of(local).map(|(name, _)| name.into()).collect();
        let mut dirty = Dirty::default();
        for name in names {
            self.xattrs.remove(local, &name);
            dirty.mark(ItemKey::Xattr { local, name });
        }
        self.inodes.remove(local);
        dirty.removed_inode(local);
        self.emit(dirty, txn);
        Ok(())
    }
}
