//! Operations on names within one target: collect facts, plan, check and apply in one call.
//!
//! Owns: this sequence. Does not own: the rules (`plan`, `perm`), the changes (`part`).
//!
//! The server uses these calls when every inode concerned is on this target. That is so for all operations except those
//! on spread directories, and renames and links across directories of different targets. If an inode is on another
//! target, the call fails with `Stale`.

use crate::part::Applied;
use crate::plan::{self, NodeSpec, Place, RenameMode};
use crate::{Facts, MetaStore, Part, perm};
use amphi_types::item::Txn;
use amphi_types::{Cred, Errno, Ino, Name, Result, Timespec};

impl MetaStore {
    fn commit(&mut self, parts: &[Part], now: Timespec, txn: &mut Txn) -> Result<Applied> {
        self.check_parts(parts).map_err(|refusal| refusal.errno())?;
        Ok(self.apply_parts(parts, now, txn))
    }

    /// The facts of the inode that has this name, which must be on this target.
    fn named(&self, cred: &Cred, dir: Ino, name: &Name) -> Result<Facts> {
        let child = self.lookup(cred, dir, name)?.child;
        self.facts(child)
    }

    /// Makes an inode on this target with a name. Errors: as `plan::make`, `Stale`, `NoSpace`.
    pub fn make(
        &mut self,
        cred: &Cred,
        dir: Ino,
        name: &Name,
        spec: &NodeSpec,
        now: Timespec,
        txn: &mut Txn,
    ) -> Result<Ino> {
        let exists = self.find(dir, name)?.is_some();
        let ino = self.next_ino()?;
        let parts = plan::make(cred, &self.facts(dir)?, name, exists, spec, ino)?;
        self.commit(&parts, now, txn)?;
        Ok(ino)
    }

    /// Makes a file without a name. Errors: as `plan::tmpfile`, `Stale`, `NoSpace`.
    pub fn tmpfile(&mut self, cred: &Cred, dir: Ino, spec: &NodeSpec, now: Timespec, txn: &mut Txn) -> Result<Ino> {
        let ino = self.next_ino()?;
        let parts = plan::tmpfile(cred, &self.facts(dir)?, spec, ino)?;
        self.commit(&parts, now, txn)?;
        Ok(ino)
    }

    /// Adds a further name for a file. Errors: as `plan::link`, `Stale`.
    pub fn link(&mut self, cred: &Cred, ino: Ino, dir: Ino, name: &Name, now: Timespec, txn: &mut Txn) -> Result<()> {
        let exists = self.find(dir, name)?.is_some();
        let parts = plan::link(cred, &self.facts(dir)?, name, exists, &self.facts(ino)?)?;
        self.commit(&parts, now, txn).map(|_| ())
    }

    /// Removes a name that is not a directory's. Errors: as `lookup` and `plan::unlink`.
    pub fn unlink(&mut self, cred: &Cred, dir: Ino, name: &Name, now: Timespec, txn: &mut Txn) -> Result<Applied> {
        let child = self.named(cred, dir, name)?;
        let parts = plan::unlink(cred, &self.facts(dir)?, name, &child)?;
        self.commit(&parts, now, txn)
    }

    /// Removes an empty directory. Errors: as `lookup` and `plan::rmdir`.
    pub fn rmdir(&mut self, cred: &Cred, dir: Ino, name: &Name, now: Timespec, txn: &mut Txn) -> Result<Applied> {
        let child = self.named(cred, dir, name)?;
        let parts = plan::rmdir(cred, &self.facts(dir)?, name, &child)?;
        self.commit(&parts, now, txn)
    }

    /// Renames within this target. Loops are excluded as far as the parents of both directories are on this target.
    /// From there on the server continues the check (`ancestors`).
    ///
    /// Errors: `Stale`, `NotDir`, `Access`, `NoEnt`, `Inval` for a loop, and those of `plan::rename`.
    #[expect(clippy::too_many_arguments, reason = "a rename has two places, a mode, a caller, a time and a log")]
    pub fn rename(
        &mut self,
        cred: &Cred,
        from: Ino,
        from_name: &Name,
        to: Ino,
        to_name: &Name,
        mode: RenameMode,
        now: Timespec,
        txn: &mut Txn,
    ) -> Result<Applied> {
        let (from_dir, to_dir) = (self.facts(from)?, self.facts(to)?);
        perm::search(cred, &from_dir)?;
        perm::search(cred, &to_dir)?;
        let source = self.named(cred, from, from_name)?;
        if to_dir.nlink == 0 {
            return Err(Errno::NoEnt);
        }
        let target = match self.find(to, to_name)?.map(|entry| entry.child) {
            Some(child) => Some(self.facts(child)?),
            None => None,
        };
        match (mode, &target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::Exist),
            (RenameMode::Exchange, None) => return Err(Errno::NoEnt),
            _ => {}
        }
        if from != to {
            self.ancestors(to, |at| if at == source.ino { Err(Errno::Inval) } else { Ok(()) })?;
            if let Some(target) = &target {
                let error = if mode == RenameMode::Exchange { Errno::Inval } else { Errno::NotEmpty };
                self.ancestors(from, |at| if at == target.ino { Err(error) } else { Ok(()) })?;
            }
        }
        let from = Place { dir: &from_dir, name: from_name };
        let to = Place { dir: &to_dir, name: to_name };
        let parts = plan::rename(cred, mode, from, &source, to, target.as_ref(), None)?;
        self.commit(&parts, now, txn)
    }
}
