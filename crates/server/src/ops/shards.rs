//! Directories whose names lie in shards: giving a directory shards, and changing the attributes that these have in
//! common.
//!
//! Owns: these two operations, and the rule when clients are informed of shards. Does not own: what a shard is
//! (`amphi_meta`), the steps over several targets (`tx`), and which shard a client uses.
//!
//! A shard is a directory, so all operations on names work on it as on any other directory. Requests that name a name
//! in the directory itself are refused with `Remote`.

use super::PLAN_TRIES;
use crate::message::{TargetReply, TargetRequest};
use crate::planted::{self, Mistake};
use crate::tx::run::Ran;
use crate::worker::request::RequestCx;
use crate::zone_target::NameKey;
use crate::zone_target::gate::Hold;
use amphi_dlm::Changed;
use amphi_env::Env;
use amphi_meta::{MetaStore, plan};
use amphi_types::item::Txn;
use amphi_types::{Errno, Ino, Result, TargetId};
use amphi_wire::{Reply, Request};

/// Refuses to change a shard apart from its directory: `Inval`. AmphiFS's own clients never send such a request.
pub(super) fn check(op: &Request) -> Result<()> {
    match op {
        Request::SetAttr { ino, .. }
        | Request::SetXattr { ino, .. }
        | Request::RemoveXattr { ino, .. }
        | Request::SetLayout { ino, .. }
        | Request::SetShards { ino, .. }
            if ino.is_shard() =>
        {
            Err(Errno::Inval)
        }
        _ => Ok(()),
    }
}

impl<E: Env> RequestCx<E> {
    /// `Request::Shards`. A client that knows the shards changes names which other clients may have cached as names of
    /// the directory itself. So the answer is sent only when those cached names are gone, also after a restart.
    pub async fn shards(&self, dir: Ino) -> Result<Reply> {
        if !self.target.reclaim.is_over() && !planted::is(Mistake::ShardsToldAtStart) {
            self.target.recovered().await;
        }
        // The two waits follow one another, because a task that holds the second key then takes the first one.
        if !planted::is(Mistake::ShardsToldEarly) {
            self.target.settle(vec![NameKey::Shards(dir)]).await;
        }
        self.target.settle(vec![NameKey::Inode(dir)]).await;
        let meta = self.target.meta.borrow();
        meta.inode(dir)?;
        Ok(Reply::Shards(meta.shards(dir)))
    }

    /// `Request::SetShards`. The shards lie on consecutive targets, the first one on the target of the directory.
    pub async fn set_shards(&self, dir: Ino, count: u16) -> Result<Reply> {
        let pool = self.worker.pool().max(1);
        let count = if count == 0 { usize::from(pool).min(Ino::SHARDS_MAX) } else { usize::from(count) };
        if count > Ino::SHARDS_MAX {
            return Err(Errno::Inval);
        }
        let _untold = self.target.queues.names.take(vec![(NameKey::Shards(dir), Hold::Exclusive)]).await;
        let mut shards = Vec::new();
        for _ in 0..PLAN_TRIES {
            self.target.settle(vec![NameKey::Inode(dir)]).await;
            let (facts, was) = {
                let meta = self.target.meta.borrow();
                (meta.facts(dir)?, meta.shared_attrs(dir).ok_or(Errno::Stale)?)
            };
            // First checks whether the operation is permitted at all, so that refusals cost no numbers.
            plan::shards(&self.cred, &facts, &was, &[])?;
            while shards.len() < count {
                let target = TargetId(((usize::from(dir.target().0) + shards.len()) % usize::from(pool)) as u16);
                let place = u8::try_from(shards.len()).map_err(|_| Errno::Inval)?;
                shards.push(Ino::shard(self.number_on(target).await?, place).ok_or(Errno::NoSpace)?);
            }
            let parts = plan::shards(&self.cred, &facts, &was, &shards)?;
            let _admitted = self.admit_inodes(&parts).await?;
            // Made when the directory is held alone and its attributes are those of the plan.
            let view = async |cx: &Self| {
                let meta = cx.target.meta.borrow();
                let mut view = cx.target.view_of(&meta, dir, &meta.inode(dir)?);
                view.attr.ctime = view.attr.ctime.max(cx.now);
                (view.sharded, view.xattrs) = (true, true);
                Ok(Reply::Inode(view))
            };
            let Ran::Done(reply) = self.run_parts(parts, &[], None, view).await? else {
                continue;
            };
            // No further token is granted now, so these are all tokens of names.
            let names = self.target.coherence.tokens.names_of(dir).into_iter();
            let names = names.map(|key| Changed::alone(key).unknown()).collect();
            self.change(|| names).await.end();
            return Ok(reply);
        }
        Err(Errno::Again)
    }

    /// A number for an inode of a target.
    async fn number_on(&self, target: TargetId) -> Result<Ino> {
        if target == self.target.id {
            return self.new_ino();
        }
        match self.worker.ask(target, TargetRequest::NewIno).await? {
            TargetReply::Ino(ino) => Ok(ino),
            _ => Err(Errno::Proto),
        }
    }

    /// Changes attributes of a directory that has shards, and of all of them. Answers `Inode`.
    ///
    /// Errors: those of `change`, which is tried on a copy of the directory.
    pub(super) async fn change_shared(
        &self,
        dir: Ino,
        change: impl Fn(&mut MetaStore, &mut Txn) -> Result<()>,
    ) -> Result<Reply> {
        for _ in 0..PLAN_TRIES {
            self.target.settle(vec![NameKey::Inode(dir)]).await;
            let (parts, view) = {
                let meta = self.target.meta.borrow();
                let (mut parts, copy) = meta.plan_shared(dir, |copy| change(copy, &mut Txn::default()))?;
                if planted::is(Mistake::ShardLeftOut) {
                    parts.pop();
                }
                (parts, self.target.view_of(&copy, dir, &copy.inode(dir)?))
            };
            if let Ran::Done(reply) = self.run_parts(parts, &[], None, async |_| Ok(Reply::Inode(view))).await? {
                return Ok(reply);
            }
        }
        Err(Errno::Again)
    }
}
