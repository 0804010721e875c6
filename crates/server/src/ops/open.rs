//! Open, close, and what a session says it has open after a restart.

use super::names::plain_view;
use super::objects::{orphaned, reap_orphans, settle_later};
use crate::cx::Cx;
use crate::message::{Question, Told};
use crate::target::{NameKey, Target};
use crate::worker::Worker;
use amphi_dlm::{Growth, Mode};
use amphi_env::Env;
use amphi_meta::perm::Want;
use amphi_types::item::Txn;
use amphi_types::{Cred, Errno, Ino, Result, SessionId, Timespec};
use amphi_wire::{Access, HeldLock, InodeView, LockMode, Reply};
use amphi_zone::Order;
use futures_util::FutureExt;
use std::rc::Rc;

/// Registers an open of an inode of this target, after a check of permissions. A file is opened for `exec` with
/// permission to execute alone: the program runs without being readable.
pub fn open_here<E: Env>(
    target: &Target<E>,
    session: SessionId,
    cred: &Cred,
    ino: Ino,
    access: Access,
    exec: bool,
) -> Result<InodeView> {
    let meta = target.meta.borrow();
    let inode = meta.inode(ino)?;
    if inode.nlink == 0 && (inode.pending.destroy || !target.opens.borrow().is_open(ino)) {
        return Err(Errno::Stale);
    }
    meta.check_open(cred, ino, Want { read: access.read && !exec, write: access.write, exec })?;
    target.opens.borrow_mut().open(session, ino, access);
    Ok(plain_view(&meta, ino, inode))
}

/// An open of the inode has ended: destroys it if it has no name and nobody has it open, settles its size if nobody
/// writes it any more.
pub fn after_close<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, ino: Ino) {
    let Ok((nlink, spread)) = target.meta.borrow().inode(ino).map(|i| (i.nlink, i.spread)) else { return };
    if nlink == 0 {
        // Until every session has said what it has open, an orphan may be one of theirs.
        if target.absent.borrow().is_empty() {
            let mut txn = Txn::default();
            orphaned(target, &[ino], &mut txn).append(worker, target, txn);
        }
    } else if spread && !target.opens.borrow().has_writer(ino) {
        settle_later(worker, target, ino);
    }
}

/// The session has said what it has open, or has ended.
pub fn present<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, session: SessionId) {
    if target.absent.borrow_mut().remove(&session) {
        reap_orphans(worker, target);
    }
}

impl<E: Env> Cx<E> {
    /// Opens an inode of any target.
    pub async fn open_anywhere(&self, ino: Ino, access: Access) -> Result<InodeView> {
        if ino.target() == self.target.id {
            return self.open_mine(ino, access, false).await;
        }
        let question = Question::Open { session: self.session, cred: self.cred.clone(), ino, access };
        match self.worker.ask(ino.target(), question).await? {
            Told::View(view) => Ok(*view),
            _ => Err(Errno::Proto),
        }
    }

    async fn open_mine(&self, ino: Ino, access: Access, exec: bool) -> Result<InodeView> {
        self.target.settle(vec![NameKey::Inode(ino)]).await;
        let view = open_here(&self.target, self.session, &self.cred, ino, access, exec)?;
        if view.spread { super::view(&self.worker, &self.target, ino).await } else { Ok(view) }
    }

    /// `Request::Open`.
    pub async fn open(&self, ino: Ino, access: Access, exec: bool) -> Result<Reply> {
        if ino.target() != self.target.id {
            return Err(Errno::Stale);
        }
        self.open_mine(ino, access, exec).await.map(Reply::Inode)
    }

    /// `Request::Close`. An open that this run does not know is closed already.
    pub fn close(&self, ino: Ino, access: Access, atime: Option<Timespec>) -> Result<Reply> {
        if let Some(atime) = atime {
            self.accessed(ino, atime);
        }
        if self.target.opens.borrow_mut().close(self.session, ino, access) {
            after_close(&self.worker, &self.target, ino);
        }
        Ok(Reply::Done)
    }

    /// Brings the access time forward. Nobody waits for the record, and while an operation holds the inode, or in the last
    /// of the log, it is left out: what is lost is a time.
    fn accessed(&self, ino: Ino, atime: Timespec) {
        let free = self.target.settle(vec![NameKey::Inode(ino)]).now_or_never().is_some();
        if !free || self.target.zone.reserve(0).now_or_never() != Some(Ok(())) {
            return;
        }
        let mut txn = Txn::default();
        if let Ok(true) = self.target.meta.borrow_mut().accessed(ino, atime, &mut txn) {
            self.target.append(txn, Order::Plain);
        }
    }

    /// `Request::Discard`.
    pub fn discard(&self, ino: Ino, opens: u32) -> Result<Reply> {
        let Ok(nlink) = self.target.meta.borrow().inode(ino).map(|i| i.nlink) else { return Ok(Reply::Done) };
        // A session that has not come back yet may have it open as well.
        if nlink > 0 || !self.target.absent.borrow().is_empty() {
            return Err(Errno::Busy);
        }
        if !self.target.opens.borrow_mut().close_last(self.session, ino, u64::from(opens)) {
            return Err(Errno::Busy);
        }
        after_close(&self.worker, &self.target, ino);
        Ok(Reply::Done)
    }

    /// `Request::Represent`.
    pub async fn represent(&self, opens: Vec<(Ino, Access)>, locks: Vec<HeldLock>) -> Result<Reply> {
        {
            let mut table = self.target.opens.borrow_mut();
            table.drop_session(self.session);
            let kept: Vec<_> = self.target.slots.borrow().kept_opens().collect();
            let kept = kept.into_iter().filter(|(s, _, _)| *s == self.session).map(|(_, ino, access)| (ino, access));
            for (ino, access) in opens.into_iter().chain(kept) {
                if self.target.meta.borrow().inode(ino).is_ok() {
                    table.open(self.session, ino, access);
                }
            }
        }
        let mut ids = Vec::with_capacity(locks.len());
        for lock in locks {
            let mode = match lock.mode {
                LockMode::Read => Mode::Read,
                LockMode::Write => Mode::Write,
            };
            let sent = || self.worker.send_callbacks(&self.target);
            let now_ns = self.worker.now_ns();
            let grant = self
                .target
                .locks
                .enqueue(now_ns, self.session, lock.object, mode, lock.range, Growth::Exact, sent)
                .await?;
            ids.push(grant.id.0);
        }
        present(&self.worker, &self.target, self.session);
        Ok(Reply::Locks(ids))
    }
}
