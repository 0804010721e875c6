//! Names that the kernel keeps.
//!
//! Owns: walks to a name and moves of names within a directory, with the exclusion by the directory's lock; the mount's
//! own walks, and the invalidation of their names; names that are made and removed, of which only the effect on the
//! directory is kept. Does not own: the timeouts of names.

use super::{Kernel, LOOK, Mistake, Name, lock};
use amphi_client::{Ctx, Lending, LentName, NameShows, OpenFlags, RenameMode};
use amphi_env::Env;
use amphi_types::{Errno, Ino, Result};
use std::rc::Rc;
use std::time::Duration;

impl Kernel {
    /// Finds a name, from the cache if that may still be shown.
    ///
    /// Errors: those of `lookup`.
    pub async fn lookup(self: &Rc<Self>, ctx: &Ctx, dir: Ino, name: &[u8]) -> Result<Ino> {
        let key = (dir, name.to_vec());
        let longer = if self.mistake == Some(Mistake::NamesStay) { 4_000_000_000 } else { 0 };
        loop {
            let now = self.now_ns();
            let found = lock(&self.kept).names.get(&key).filter(|n| n.until_ns + longer > now).map(|n| n.ino);
            if let Some(ino) = found {
                self.count(|t| t.names += 1);
                return Ok(ino);
            }
            if self.renames.get() == 0 {
                break;
            }
            self.env.sleep(LOOK).await;
        }
        self.asks.set(self.asks.get() + 1);
        let (asked, rule) = (self.moment(), self.client.rule());
        let found = self.client.lookup(ctx, dir, name).await;
        let found = match found {
            Ok(attr) => {
                let (life, lending) = self.lend(rule, asked, &attr);
                let name_life = lending.as_ref().map_or(Duration::ZERO, Lending::life);
                if !self.tell(asked, &attr, life).await {
                    // If the file has gone meanwhile, there is no size to cache.
                    let _ = self.size(ctx, attr.ino).await;
                }
                let until_ns = self.now_ns() + name_life.as_nanos() as u64;
                let is_lent = !name_life.is_zero();
                if is_lent {
                    lock(&self.kept).names.insert(key, Name { ino: attr.ino, until_ns });
                }
                if lending.is_none() {
                    let lent = LentName { dir, name: name.into(), shows: NameShows::of(Some(&attr)) };
                    self.env.spawn(self.clone().walk(lent));
                }
                drop(lending);
                Ok(attr.ino)
            }
            Err(e) => Err(e),
        };
        self.asks.set(self.asks.get() - 1);
        found
    }

    /// The mount walks to a name by itself: the timeout that it gives so is in force when the walk has ended.
    async fn walk(self: Rc<Self>, lent: LentName) {
        let key = (lent.dir, lent.name.to_vec());
        if !lock(&self.kept).walking.insert(key.clone()) {
            return;
        }
        self.late(1_000).await;
        let known = self.client.known_name(lent.dir, &lent.name);
        let is_it = known.is_some_and(|known| NameShows::of(known.as_ref().ok()) == lent.shows);
        let life = if is_it { self.client.lend_name(&lent) } else { Duration::ZERO };
        if let (NameShows::Other(ino, _), false) = (lent.shows, life.is_zero()) {
            self.count(|t| t.lent_names += 1);
            self.late(self.late_us.1).await;
            let until_ns = self.now_ns() + life.as_nanos() as u64;
            lock(&self.kept).names.insert(key.clone(), Name { ino, until_ns });
        }
        lock(&self.kept).walking.remove(&key);
    }

    /// Ends the life of names, once walks to them have ended.
    pub(super) async fn take_names(&self, names: &[LentName]) {
        self.late(1_000).await;
        for lent in names {
            let key = (lent.dir, lent.name.to_vec());
            while lock(&self.kept).walking.contains(&key) {
                self.env.sleep(LOOK).await;
            }
            let stays = self.mistake == Some(Mistake::TakenNamesStay) && self.dice.borrow_mut().one_in(3);
            if let (Some(name), false) = (lock(&self.kept).names.get_mut(&key), stays) {
                name.until_ns = 0;
            }
        }
    }

    /// Renames within a directory. The kernel requests no names there meanwhile.
    ///
    /// Errors: those of `rename`.
    pub async fn rename(&self, ctx: &Ctx, dir: Ino, from: &[u8], to: &[u8]) -> Result<()> {
        while self.asks.get() > 0 || self.renames.get() > 0 {
            self.env.sleep(LOOK).await;
        }
        self.renames.set(1);
        let done = self.client.rename(ctx, (dir, from), (dir, to), RenameMode::Replace).await;
        self.late(self.late_us.1).await;
        {
            let names = &mut lock(&self.kept).names;
            let moved = names.remove(&(dir, from.to_vec()));
            names.remove(&(dir, to.to_vec()));
            if let (Some(moved), Ok(())) = (moved, &done) {
                names.insert((dir, to.to_vec()), moved);
            }
        }
        self.renames.set(0);
        done
    }

    /// Takes the lock of a directory to change a name in it.
    ///
    /// Errors: `NoEnt` if this kernel has removed it; the lock is not held then.
    async fn begin_change(&self, dir: Ino) -> Result<()> {
        self.lock(dir, true).await;
        if lock(&self.kept).inodes.entry(dir).or_default().listings.is_removed() {
            self.unlock(dir);
            return Err(Errno::NoEnt);
        }
        Ok(())
    }

    /// A name was changed, or not (`fuse_dir_changed`: answers to questions from before count).
    fn end_change(&self, dir: Ino, changed: bool) {
        if changed && self.mistake != Some(Mistake::OwnChangesStay) {
            let kept = &mut *lock(&self.kept);
            let inode = kept.inodes.entry(dir).or_default();
            inode.until_ns = 0;
            inode.listings.change();
        }
        self.unlock(dir);
    }

    /// Makes a file, unless there is one.
    ///
    /// Errors: those of `create`.
    pub async fn make(&self, ctx: &Ctx, dir: Ino, name: &[u8]) -> Result<()> {
        self.begin_change(dir).await?;
        let made = self.client.create(ctx, dir, name, 0o644, OpenFlags::WRITE).await;
        self.late(self.late_us.1).await;
        self.end_change(dir, made.is_ok());
        made.map(drop)
    }

    /// Removes a file.
    ///
    /// Errors: those of `unlink`.
    pub async fn unlink(&self, ctx: &Ctx, dir: Ino, name: &[u8]) -> Result<()> {
        self.begin_change(dir).await?;
        let done = self.client.unlink(ctx, dir, name).await;
        self.late(self.late_us.1).await;
        self.end_change(dir, done.is_ok());
        done
    }

    /// Makes a directory.
    ///
    /// Errors: those of `mkdir`.
    pub async fn make_directory(&self, ctx: &Ctx, dir: Ino, name: &[u8]) -> Result<Ino> {
        self.begin_change(dir).await?;
        let made = self.client.mkdir(ctx, dir, name, 0o755).await;
        self.late(self.late_us.1).await;
        self.end_change(dir, made.is_ok());
        made.map(|attr| attr.ino)
    }

    /// Removes the directory `ino`, which has this name.
    ///
    /// Errors: those of `rmdir`.
    pub async fn remove_directory(&self, ctx: &Ctx, (dir, name): (Ino, &[u8]), ino: Ino) -> Result<()> {
        self.begin_change(dir).await?;
        self.lock(ino, true).await;
        let done = self.client.rmdir(ctx, dir, name).await;
        self.late(self.late_us.1).await;
        if done.is_ok() {
            lock(&self.kept).inodes.entry(ino).or_default().listings.remove();
        }
        self.unlock(ino);
        self.end_change(dir, done.is_ok());
        done
    }
}
