//! Extended attributes.

use crate::worker::request::RequestCx;
use crate::zone_target::NameKey;
use crate::zone_target::gate::Hold;
use amphi_env::Env;
use amphi_meta::{self as meta, MetaStore, Outcome};
use amphi_types::item::Txn;
use amphi_types::{Ino, Result};
use amphi_wire::{Reply, XattrMode};

impl<E: Env> RequestCx<E> {
    /// `Request::GetXattr`.
    pub async fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Reply> {
        let step = |meta: &MetaStore| {
            let outcome = meta.getxattr(&self.cred, ino, name)?;
            Ok(match outcome {
                Outcome::Done(value) => Outcome::Done(value.to_vec()),
                Outcome::Absent(key) => Outcome::Absent(key),
            })
        };
        self.target.step(step).await.map(Reply::Bytes)
    }

    /// `Request::ListXattr`.
    pub fn listxattr(&self, ino: Ino) -> Result<Reply> {
        Ok(Reply::Bytes(self.target.meta.borrow().listxattr(&self.cred, ino)?))
    }

    /// `Request::SetXattr`.
    pub async fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<Reply> {
        let mode = match mode {
            XattrMode::Set => meta::XattrMode::Set,
            XattrMode::Create => meta::XattrMode::Create,
            XattrMode::Replace => meta::XattrMode::Replace,
        };
        self.reserve(256 + (name.len() + value.len()) as u64).await?;
        let guard = self.target.queues.names.take(vec![(NameKey::Inode(ino), Hold::Exclusive)]).await;
        if meta::is_list(name) && self.target.meta.borrow().is_sharded(ino) {
            drop(guard);
            let (cred, now) = (&self.cred, self.now);
            return self.change_shared(ino, |meta, txn| meta.setxattr(cred, ino, name, value, mode, now, txn)).await;
        }
        let mut changing = self.change_attributes(ino).await;
        self.alive()?;
        let gathered = if meta::is_list(name) { self.gathered_if_spread(ino).await? } else { None };
        let mut txn = Txn::default();
        self.target.meta.borrow_mut().setxattr(&self.cred, ino, name, value, mode, self.now, &mut txn)?;
        let reply = self.xattr_reply(ino, name, gathered)?;
        self.commit_change(txn, reply, &mut changing).await
    }

    /// `Request::RemoveXattr`.
    pub async fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<Reply> {
        self.reserve(0).await?;
        let guard = self.target.queues.names.take(vec![(NameKey::Inode(ino), Hold::Exclusive)]).await;
        if meta::is_list(name) && self.target.meta.borrow().is_sharded(ino) {
            drop(guard);
            let (cred, now) = (&self.cred, self.now);
            return self.change_shared(ino, |meta, txn| meta.removexattr(cred, ino, name, now, txn)).await;
        }
        let mut changing = self.change_attributes(ino).await;
        self.alive()?;
        let gathered = if meta::is_list(name) { self.gathered_if_spread(ino).await? } else { None };
        let mut txn = Txn::default();
        self.target.meta.borrow_mut().removexattr(&self.cred, ino, name, self.now, &mut txn)?;
        let reply = self.xattr_reply(ino, name, gathered)?;
        self.commit_change(txn, reply, &mut changing).await
    }

    /// With an access control list the permissions have changed too, so the answer contains the attributes of the
    /// inode.
    fn xattr_reply(&self, ino: Ino, name: &[u8], gathered: Option<meta::Gathered>) -> Result<Reply> {
        if !meta::is_list(name) {
            return Ok(Reply::Done);
        }
        let meta = self.target.meta.borrow();
        let inode = meta.inode(ino)?;
        let mut view = self.target.view_of(&meta, ino, &inode);
        if let Some(gathered) = gathered {
            view.attr = inode.attr_with(ino, &gathered);
        }
        Ok(Reply::Inode(view))
    }
}
