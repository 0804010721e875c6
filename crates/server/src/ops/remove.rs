//! Unlink and rmdir.

use super::PLAN_TRIES;
use crate::tx::run::Ran;
use crate::worker::request::RequestCx;
use amphi_env::Env;
use amphi_meta::{Facts, Part, perm, plan};
use amphi_types::{Cred, Errno, Ino, Kind, Name, Result};
use amphi_wire::Reply;

type Planner = fn(&Cred, &Facts, &Name, &Facts) -> Result<Vec<Part>>;

impl<E: Env> RequestCx<E> {
    /// `Request::Unlink`.
    pub async fn unlink(&self, dir: Ino, name: Name) -> Result<Reply> {
        self.remove(dir, name, plan::unlink).await
    }

    /// `Request::RmDir`.
    pub async fn rmdir(&self, dir: Ino, name: Name) -> Result<Reply> {
        self.remove(dir, name, plan::rmdir).await
    }

    async fn remove(&self, dir: Ino, name: Name, planner: Planner) -> Result<Reply> {
        for _ in 0..PLAN_TRIES {
            let place = super::names::place(&self.target, dir, &name).await?;
            perm::search(&self.cred, &place.dir)?;
            let (child, _) = place.child.ok_or(Errno::NoEnt)?;
            let facts = match place.facts {
                Some(facts) => facts,
                None => match self.facts_anywhere(child).await {
                    // Removed since the check of the name.
                    Err(Errno::Stale) => continue,
                    other => other?,
                },
            };
            self.has_project(facts.project)?;
            let parts = planner(&self.cred, &place.dir, &name, &facts)?;
            let last_name_of = (facts.kind == Kind::Dir || facts.nlink == 1).then_some(child);
            let reply = Reply::Removed { last_name_of };
            if let Ran::Done(reply) = self.run_parts(parts, &[(dir, &name)], None, async |_| Ok(reply)).await? {
                if facts.kind == Kind::Dir {
                    Box::pin(self.show_changed(vec![(child, place.dir.directory(), name)])).await;
                }
                return Ok(reply);
            }
        }
        Err(Errno::Again)
    }
}
