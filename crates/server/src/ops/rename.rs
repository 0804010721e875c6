//! Rename in all its modes, within a directory, across directories, across targets.
//!
//! A directory that changes its parent could become its own ancestor if another one moved at the same time. So such
//! moves happen one at a time in the whole cluster, under a lock of target 0. While it is held, the walk from the new
//! parent up to the root cannot change.

use super::PLAN_TRIES;
use super::moved::Changed;
use crate::message::{Place, TargetReply, TargetRequest};
use crate::tx::run::Ran;
use crate::worker::request::RequestCx;
use amphi_env::Env;
use amphi_meta::{Facts, perm, plan};
use amphi_types::{Errno, Ino, Kind, Name, Result, TargetId};
use amphi_wire::{RenameMode, Reply};
use std::cell::Cell;

/// The target that has the lock on moving directories.
const MOVE_TARGET: TargetId = TargetId(0);
/// Most steps between targets of a walk to the root.
const HOPS_MAX: usize = 1 << 20;

struct Gathered {
    from: Facts,
    source: Facts,
    to: Facts,
    target: Option<Facts>,
}

impl Gathered {
    /// Directories that other mounts have to look up after the rename: those that were moved, and the place of a
    /// directory that was replaced.
    fn changed(&self, from: &(Ino, Name), to: &(Ino, Name), mode: plan::RenameMode) -> Vec<Changed> {
        let (from, to) = (&(self.from.directory(), from.1.clone()), &(self.to.directory(), to.1.clone()));
        let other = if mode == plan::RenameMode::Exchange { from } else { to };
        let counts = |target: &&Facts| mode == plan::RenameMode::Exchange || target.ino != self.source.ino;
        let replaced = self.target.as_ref().filter(counts);
        let both = [(Some(&self.source), to), (replaced, other)].into_iter();
        let dirs = both.filter_map(|(facts, place)| Some((facts.filter(|f| f.kind == Kind::Dir)?, place)));
        dirs.map(|(facts, (dir, name))| (facts.ino, *dir, name.clone())).collect()
    }
}

/// The handling of an existing destination, and whether the old name becomes a whiteout.
fn plan_mode(mode: RenameMode) -> (plan::RenameMode, bool) {
    match mode {
        RenameMode::Replace => (plan::RenameMode::Replace, false),
        RenameMode::NoReplace => (plan::RenameMode::NoReplace, false),
        RenameMode::Exchange => (plan::RenameMode::Exchange, false),
        RenameMode::Whiteout => (plan::RenameMode::Replace, true),
        RenameMode::NewWhiteout => (plan::RenameMode::NoReplace, true),
    }
}

impl<E: Env> RequestCx<E> {
    /// `Request::Rename`.
    pub async fn rename(&self, from: (Ino, Name), to: (Ino, Name), mode: RenameMode) -> Result<Reply> {
        let mut lock = None;
        let mut changed = Vec::new();
        let result = self.rename_locked(&from, &to, mode, &mut lock, &mut changed).await;
        if let Some(number) = lock {
            if self.worker.routes.is_local(MOVE_TARGET) {
                self.worker.tell(MOVE_TARGET, TargetRequest::MoveUnlock(number)).await?;
            } else {
                self.worker.unlock_moves(number);
            }
        }
        if result.is_ok() {
            Box::pin(self.show_changed(changed)).await;
        }
        result
    }

    async fn rename_locked(
        &self,
        from: &(Ino, Name),
        to: &(Ino, Name),
        mode: RenameMode,
        lock: &mut Option<u64>,
        changed: &mut Vec<Changed>,
    ) -> Result<Reply> {
        let (mode, leaves_whiteout) = plan_mode(mode);
        // If a number was taken for a plan that failed, the next plan may use it.
        let mut whiteout = None;
        for _ in 0..PLAN_TRIES {
            let found = match self.gather_rename(from, to).await {
                Err(Errno::Stale) if self.facts_anywhere(from.0).await.is_ok() => match self.place(to.0, &to.1).await {
                    // One of the named inodes is gone, so the rename starts again.
                    Ok(_) => continue,
                    Err(e) => return Err(e),
                },
                other => other?,
            };
            for facts in [Some(&found.source), found.target.as_ref()].into_iter().flatten() {
                self.has_project(facts.project)?;
            }
            match (mode, &found.target) {
                (plan::RenameMode::NoReplace, Some(_)) => return Err(Errno::Exist),
                (plan::RenameMode::Exchange, None) => return Err(Errno::NoEnt),
                _ => {}
            }
            let moves_dir = found.source.kind == Kind::Dir
                || (mode == plan::RenameMode::Exchange && found.target.as_ref().is_some_and(|t| t.kind == Kind::Dir));
            if from.0 != to.0 {
                if moves_dir && lock.is_none() {
                    match self.worker.ask(MOVE_TARGET, TargetRequest::MoveLock).await? {
                        TargetReply::Moving(number) => *lock = Some(number),
                        _ => return Err(Errno::Proto),
                    }
                    // The facts collected before the lock may be outdated.
                    continue;
                }
                match self.exclude_loops(&found, mode).await {
                    Err(Errno::Stale) => continue,
                    other => other?,
                }
            }
            let planned = |whiteout: Option<Ino>| {
                let from = plan::Place { dir: &found.from, name: &from.1 };
                let to = plan::Place { dir: &found.to, name: &to.1 };
                plan::rename(&self.cred, mode, from, &found.source, to, found.target.as_ref(), whiteout)
            };
            let mut parts = planned(None)?;
            if leaves_whiteout && !parts.is_empty() {
                let ino = match whiteout {
                    Some(ino) => ino,
                    None => *whiteout.insert(self.new_ino()?),
                };
                parts = planned(Some(ino))?;
            }
            if parts.is_empty() {
                return Ok(Reply::Removed { last_name_of: None });
            }
            let _admitted = self.admit_inodes(&parts).await?;
            let ends = |t: &&Facts| mode != plan::RenameMode::Exchange && (t.kind == Kind::Dir || t.nlink == 1);
            let replaced = found.target.as_ref().filter(ends);
            let reply = Reply::Removed { last_name_of: replaced.map(|t| t.ino) };
            let lost = Cell::new(false);
            let held = *lock;
            let check = async |cx: &RequestCx<E>| {
                lost.set(!cx.has_move_lock(held).await?);
                if lost.get() { Err(Errno::Again) } else { Ok(reply.clone()) }
            };
            let named = [(from.0, &from.1), (to.0, &to.1)];
            if let Ran::Done(reply) = self.run_parts(parts, &named, None, check).await? {
                *changed = found.changed(from, to, mode);
                return Ok(reply);
            }
            if lost.get() {
                *lock = None;
            }
        }
        Err(Errno::Again)
    }

    /// Returns whether the lock on moving directories is still this operation's. Once all participants have promised, a
    /// later operation on it finds the promises and waits for their outcome.
    async fn has_move_lock(&self, lock: Option<u64>) -> Result<bool> {
        match lock {
            Some(number) if !self.worker.routes.is_local(MOVE_TARGET) => {
                match self.worker.ask(MOVE_TARGET, TargetRequest::MoveCheck(number)).await? {
                    TargetReply::Outcome(held) => Ok(held),
                    _ => Err(Errno::Proto),
                }
            }
            _ => Ok(true),
        }
    }

    async fn place(&self, dir: Ino, name: &Name) -> Result<Place> {
        if dir.target() == self.target.id {
            return super::names::place(&self.target, dir, name).await;
        }
        match self.worker.ask(dir.target(), TargetRequest::Place(dir, name.clone())).await? {
            TargetReply::Place(place) => Ok(*place),
            _ => Err(Errno::Proto),
        }
    }

    async fn child_facts(&self, place: &Place) -> Result<Option<Facts>> {
        match (&place.facts, place.child) {
            (Some(facts), _) => Ok(Some(facts.clone())),
            (None, Some((ino, _))) => self.facts_anywhere(ino).await.map(Some),
            (None, None) => Ok(None),
        }
    }

    async fn gather_rename(&self, from: &(Ino, Name), to: &(Ino, Name)) -> Result<Gathered> {
        let from_place = self.place(from.0, &from.1).await?;
        perm::search(&self.cred, &from_place.dir)?;
        let to_place = self.place(to.0, &to.1).await?;
        perm::search(&self.cred, &to_place.dir)?;
        let source = self.child_facts(&from_place).await?.ok_or(Errno::NoEnt)?;
        let target = self.child_facts(&to_place).await?;
        Ok(Gathered { from: from_place.dir, source, to: to_place.dir, target })
    }

    async fn exclude_loops(&self, found: &Gathered, mode: plan::RenameMode) -> Result<()> {
        if found.source.kind == Kind::Dir && self.is_above(found.source.ino, found.to.ino).await? {
            return Err(Errno::Inval);
        }
        if let Some(target) = &found.target
            && target.kind == Kind::Dir
            && self.is_above(target.ino, found.from.ino).await?
        {
            return Err(if mode == plan::RenameMode::Exchange { Errno::Inval } else { Errno::NotEmpty });
        }
        Ok(())
    }

    /// Returns whether directory `sought` is `from` or above it.
    async fn is_above(&self, sought: Ino, from: Ino) -> Result<bool> {
        let mut at = from;
        for _ in 0..HOPS_MAX {
            match self.worker.ask(at.target(), TargetRequest::Ancestors { from: at, sought }).await? {
                TargetReply::Ancestors { found: true, .. } => return Ok(true),
                TargetReply::Ancestors { next: Some(next), .. } => at = next,
                TargetReply::Ancestors { next: None, .. } => return Ok(false),
                _ => return Err(Errno::Proto),
            }
        }
        Err(Errno::Loop)
    }
}
