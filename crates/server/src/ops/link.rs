//! Link: a further name for an inode, perhaps of another target.

use super::PLAN_TRIES;
use crate::message::{TargetReply, TargetRequest};
use crate::tx::run::Ran;
use crate::worker::request::RequestCx;
use amphi_env::Env;
use amphi_meta::{Facts, Outcome, plan};
use amphi_types::{Errno, Ino, Name, Result};
use amphi_wire::Reply;

impl<E: Env> RequestCx<E> {
    /// Facts of an inode of any target.
    pub async fn facts_anywhere(&self, ino: Ino) -> Result<Facts> {
        if ino.target() == self.target.id {
            return self.target.step(|meta| meta.facts(ino).map(Outcome::Done)).await;
        }
        match self.worker.ask(ino.target(), TargetRequest::Facts(ino)).await? {
            TargetReply::Facts(facts) => Ok(*facts),
            _ => Err(Errno::Proto),
        }
    }

    /// `Request::Link`.
    pub async fn link(&self, ino: Ino, dir: Ino, name: Name) -> Result<Reply> {
        // Sizes that other mounts have not written back are collected before anything is locked.
        let known = if self.target.coherence.tokens.on() { self.view_anywhere(ino, true).await.ok() } else { None };
        self.granted_attributes(None);
        for _ in 0..PLAN_TRIES {
            let place = super::names::place(&self.target, dir, &name).await?;
            let file = match self.facts_anywhere(ino).await {
                Err(Errno::Stale) => return Err(Errno::NoEnt),
                other => other?,
            };
            let parts = plan::link(&self.cred, &place.dir, &name, place.child.is_some(), &file)?;
            let reply = async |cx: &RequestCx<E>| {
                // The inode is locked, so its state will change only by the new link.
                let mut view = cx.view_anywhere(ino, false).await?;
                if let Some(known) = known.filter(|known| known.generation == view.generation) {
                    (view.attr.size, view.attr.mtime) =
                        (view.attr.size.max(known.attr.size), view.attr.mtime.max(known.attr.mtime));
                }
                view.attr.nlink += 1;
                view.attr.ctime = cx.now;
                Ok(Reply::Inode(view))
            };
            if let Ran::Done(reply) = self.run_parts(parts, &[(dir, &name)], None, reply).await? {
                return Ok(reply);
            }
        }
        Err(Errno::Again)
    }
}
