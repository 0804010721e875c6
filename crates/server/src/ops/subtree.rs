//! Sessions that are bound to a tree: before a request is executed, the inodes that it names are compared with the
//! tree.
//!
//! Owns: the comparison, here and at other targets. Does not own: which inodes a request names (`session::reach`),
//! projects (`amphi_meta`), which form the border of a tree.
//!
//! Invariant: a request for an inode outside gets the same answer as for one that does not exist, so inode numbers
//! reveal nothing. Only an administrator can have made a name in the tree that leads to an inode outside it. Listings
//! show such a name, and following it gives `Access`.

use crate::message::{TargetReply, TargetRequest};
use crate::session::reach::{Reach, Tree, reach_of};
use crate::worker::request::RequestCx;
use crate::zone_target::{NameKey, Target};
use amphi_env::{Env, timeout};
use amphi_types::{Errno, Ino, Result, TargetId, Timespec};
use amphi_wire::{HeldLock, Request};
use std::time::Duration;

/// How long this target waits, after a restart, for an inode's target to say whether a lock that a session presents is
/// in the session's tree.
const PRESENTED_WITHIN: Duration = Duration::from_secs(1);

/// The target that keeps the registry of keys.
const REGISTRY: TargetId = TargetId(0);

/// The project of an inode of this target, when no operation over several targets is about to make it.
///
/// Errors: `Stale`.
pub async fn project_here<E: Env>(target: &Target<E>, ino: Ino) -> Result<u32> {
    let _held = target.hold([ino]).await?;
    let known = target.meta.borrow().charged(ino);
    if known.is_err() {
        target.settle(vec![NameKey::Inode(ino)]).await;
        return target.meta.borrow().charged(ino).map(|owner| owner.project);
    }
    known.map(|owner| owner.project)
}

impl<E: Env> RequestCx<E> {
    /// The project of an inode of any target. Errors: `Stale`.
    async fn project_of(&self, ino: Ino) -> Result<u32> {
        if ino.target() == self.target.id {
            return project_here(&self.target, ino).await;
        }
        if let Some(right) = self.target.files.rights.borrow().get(ino, self.session) {
            return Ok(right.owner.project);
        }
        match self.worker.ask(ino.target(), TargetRequest::Project(ino)).await? {
            TargetReply::Project(project) => Ok(project),
            _ => Err(Errno::Proto),
        }
    }

    /// Returns whether the inodes that a request names belong to the tree of its session. Removes from the answer what
    /// the session may not learn of inodes outside its tree.
    ///
    /// Errors: `Stale`, whether there is such an inode or not; `Perm` for requests that concern more than a tree.
    pub(super) async fn stay_within(&self, op: &mut Request) -> Result<()> {
        match self.tree {
            None => Ok(()),
            Some(tree) => Box::pin(self.stay_within_tree(op, tree)).await,
        }
    }

    async fn stay_within_tree(&self, op: &mut Request, tree: Tree) -> Result<()> {
        match reach_of(op, &tree) {
            Reach::Beyond => return Err(Errno::Perm),
            Reach::Inodes(inos) => {
                // A part of a request whose inode cannot be read fails in any case.
                for ino in inos.into_iter().filter(|ino| self.check_read(*ino).is_ok()) {
                    match self.project_of(ino).await {
                        Ok(project) if tree.has(project) => {}
                        // If the inode's target cannot be reached, the answer contains nothing of the inode.
                        Err(Errno::Io) => return Err(Errno::Io),
                        _ => return Err(Errno::Stale),
                    }
                }
            }
            Reach::Own => self.leave_times_out(op),
            Reach::Presented => self.leave_foreign_out(op).await,
        }
        Ok(())
    }

    /// Returns whether an inode of this target is in the tree. One that cannot be read is not.
    fn is_within_here(&self, ino: Ino) -> bool {
        let meta = self.target.meta.borrow();
        let is_in = |tree: Tree| !meta.is_away(ino) && meta.charged(ino).is_ok_and(|owner| tree.has(owner.project));
        self.tree.is_none_or(is_in)
    }

    /// A close of a file that was opened before the key was bound to the tree brings no access time forward.
    fn leave_times_out(&self, op: &mut Request) {
        let check = |ino: Ino, atime: &mut Option<Timespec>| {
            if atime.is_some() && !self.is_within_here(ino) {
                *atime = None;
            }
        };
        match op {
            Request::Close { ino, atime, .. } => check(*ino, atime),
            Request::CloseBatch { closes } => closes.iter_mut().for_each(|(ino, _, atime)| check(*ino, atime)),
            _ => {}
        }
    }

    /// When a session presents its state after a restart, the server accepts only what is in the session's tree. Locks
    /// are answered in their order, so from the first one on that may be outside, all are lost.
    async fn leave_foreign_out(&self, op: &mut Request) {
        match op {
            Request::Represent { opens, locks } | Request::RepresentFor { opens, locks, .. } => {
                opens.retain(|(ino, _)| self.is_within_here(*ino));
                let kept = self.within_of(locks).await;
                locks.truncate(kept);
            }
            Request::RepresentFileLocks { converted, .. } => converted.retain(|lock| self.is_within_here(lock.ino)),
            _ => {}
        }
    }

    /// Returns how many of these locks, from the first on, are certainly in the tree.
    async fn within_of(&self, locks: &[HeldLock]) -> usize {
        let Some(tree) = self.tree else { return locks.len() };
        let mut last: Option<Ino> = None;
        for (at, lock) in locks.iter().enumerate() {
            let ino = lock.object.ino;
            if last == Some(ino) {
                continue;
            }
            let project = timeout(&self.worker.env, PRESENTED_WITHIN, self.project_of(ino)).await;
            if !matches!(project, Some(Ok(project)) if tree.has(project)) {
                return at;
            }
            last = Some(ino);
        }
        locks.len()
    }

    /// Returns whether a lock of an application that is presented after a restart is in the tree of the session.
    pub(super) fn may_present(&self, ino: Ino) -> bool {
        self.is_within_here(ino)
    }

    /// Returns whether a name that was followed leads to an inode of the session's tree.
    ///
    /// Errors: `Access` if it is not; `Stale` if the inode does not exist any more.
    pub(super) async fn leads_within(&self, child: Ino) -> Result<()> {
        match self.tree {
            None => Ok(()),
            Some(_) => self.has_project(self.project_of(child).await?),
        }
    }

    /// Works as `leads_within`, for an inode whose project is known.
    pub(super) fn has_project(&self, project: u32) -> Result<()> {
        if self.tree.is_none_or(|tree| tree.has(project)) { Ok(()) } else { Err(Errno::Access) }
    }

    /// Returns whether an inode may get another project. No inode may leave a tree to which a key is bound, so that no
    /// client can get files into or out of such a tree in this way.
    ///
    /// Errors: `Busy` if not.
    pub(super) async fn keep_border(&self, ino: Ino, project: u32) -> Result<()> {
        // The inode is held by the operation that asks.
        let before = self.target.meta.borrow().charged(ino)?.project;
        if before == 0 || before == project {
            return Ok(());
        }
        match self.worker.ask(REGISTRY, TargetRequest::IsBound(before)).await? {
            TargetReply::Outcome(false) => Ok(()),
            TargetReply::Outcome(true) => Err(Errno::Busy),
            _ => Err(Errno::Proto),
        }
    }

    /// The parent of a directory, as the session is shown it. The top of the session's tree has no parent.
    pub(super) fn shown_parent(&self, dir: Ino, parent: Ino) -> Ino {
        if self.tree.is_some_and(|tree| tree.root == dir) { dir } else { parent }
    }
}
