//! Sessions that are bound to a tree: what they name is compared with it before a request is executed.
//!
//! Owns: the comparison, here and at other targets. Does not own: what a request names (`session::reach`), projects
//! (`amphi_meta`), which the border rests on.
//!
//! Invariant: an inode outside is answered as one that does not exist, so numbers tell nothing. A name in a directory
//! of the tree that leads out of it, which only an administrator can have made, is shown in listings, and `Access` to
//! whoever follows it.

use crate::message::{TargetReply, TargetRequest};
use crate::session::reach::{Reach, Tree, reach_of};
use crate::worker::request::RequestCx;
use crate::zone_target::{NameKey, Target};
use amphi_env::{Env, timeout};
use amphi_types::{Errno, Ino, Result, TargetId, Timespec};
use amphi_wire::{HeldLock, Request};
use std::time::Duration;

/// How long an inode's target is asked, after a restart, whether a lock that a session presents lies in its tree.
const PRESENTED_WITHIN: Duration = Duration::from_secs(1);

/// Where the registry of keys is kept.
const REGISTRY: TargetId = TargetId(0);

/// The project of an inode of this target, when no operation over several targets is about to make it.
///
/// Errors: `Stale`.
pub async fn project_here<E: Env>(target: &Target<E>, ino: Ino) -> Result<u32> {
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

    /// Whether what a request names lies in the tree of its session. Takes out of it what the session may not say of
    /// inodes outside.
    ///
    /// Errors: `Stale`, whether there is such an inode or not; `Perm` for what is about more than a tree.
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
                for ino in inos {
                    match self.project_of(ino).await {
                        Ok(project) if tree.has(project) => {}
                        // A target that cannot be asked says nothing of the inode.
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

    fn is_within_here(&self, ino: Ino) -> bool {
        let owner = self.target.meta.borrow().charged(ino);
        self.tree.is_none_or(|tree| owner.is_ok_and(|owner| tree.has(owner.project)))
    }

    /// A close of what was opened before the key was bound to the tree brings no access time forward.
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

    /// What a session says after a restart that it holds is believed within the tree. Locks are answered in their
    /// order, so those from the first one on that may lie outside are lost.
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

    /// How many of these locks, from the first on, surely lie in the tree.
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

    /// Whether a lock of an application that is presented after a restart lies in the tree of the session.
    pub(super) fn may_present(&self, ino: Ino) -> bool {
        self.is_within_here(ino)
    }

    /// Whether a name that was followed leads to an inode of the session's tree.
    ///
    /// Errors: `Access` if not; `Stale` if the inode has gone.
    pub(super) async fn leads_within(&self, child: Ino) -> Result<()> {
        match self.tree {
            None => Ok(()),
            Some(_) => self.has_project(self.project_of(child).await?),
        }
    }

    /// As `leads_within`, of an inode whose project is known.
    pub(super) fn has_project(&self, project: u32) -> Result<()> {
        if self.tree.is_none_or(|tree| tree.has(project)) { Ok(()) } else { Err(Errno::Access) }
    }

    /// Whether an inode may get another project: nothing is taken out of a tree to which a key is bound, so that nobody
    /// takes the border of such a key away by the way.
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

    /// What lies above a directory, as the session is shown it: nothing lies above the top of its tree.
    pub(super) fn shown_parent(&self, dir: Ino, parent: Ino) -> Ino {
        if self.tree.is_some_and(|tree| tree.root == dir) { dir } else { parent }
    }
}
