//! Open, close, and presenting open files after a restart.

use super::attr::view;
use crate::membership::keys;
use crate::message::{TargetReply, TargetRequest};
use crate::objects::{destroy_orphan, reap_orphans, settle_later};
use crate::worker::Worker;
use crate::worker::request::RequestCx;
use crate::zone_target::gate::Hold;
use crate::zone_target::{NameKey, Target};
use amphi_dlm::{Changed, GroupId, Mode, Owner};
use amphi_env::Env;
use amphi_meta::MetaStore;
use amphi_meta::perm::Want;
use amphi_types::item::Txn;
use amphi_types::{Cred, Errno, Ino, ObjectId, Result, SessionId, TargetId, Timespec, TokenKey};
use amphi_wire::keys::Squash;
use amphi_wire::{Access, HeldLock, InodeView, LockMode, Reply, RequestId, TokenGrant, Tokens};
use amphi_zone::{Lsn, Order};
use futures_util::FutureExt;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// Most access times in one record, so that the inodes are locked only for a short time.
const ACCESSED_MAX: usize = 64;
/// How long opens of an earlier run are kept for a session that has reconnected and may repeat its requests of that
/// run. The client repeats its requests as soon as it has reconnected, and again if the connection breaks. After a
/// minute it gives up (`transport.give_up_s`).
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(120);
/// Most files that are presented in one record, or whose locks are called back at once.
const OPENS_A_STEP: usize = 64;

/// The session that opens an inode, and the access.
pub struct Opening<'a> {
    /// The session that opens the inode.
    pub session: SessionId,
    /// The user on whose behalf the inode is opened.
    pub cred: &'a Cred,
    /// The access that is wanted.
    pub access: Access,
    /// Whether the inode is opened to be executed.
    pub exec: bool,
    /// The client named the inode, and has dropped its cached entries of it if it opens for writing.
    pub known: bool,
    /// The request of the session at another target. The open is counted once for each request, because the requesting
    /// target may have been restarted in between, and so may this target.
    pub by: Option<(TargetId, RequestId)>,
}

impl Opening<'_> {
    /// The session, target and slot under which an open for another target is remembered.
    fn slot(&self) -> Option<((SessionId, TargetId, u16), u64)> {
        self.by.map(|(target, id)| ((self.session, target, id.slot), id.seq))
    }

    /// Returns whether this very open is registered.
    fn is_registered<E: Env>(&self, target: &Target<E>, ino: Ino) -> bool {
        self.slot().is_some_and(|(slot, seq)| target.files.was_opened_for(slot, seq, ino))
    }
}

/// Opens an inode of this target. Returns its view, the number of the change if it is opened for writing, and the right
/// to cache. A session that may write changes attributes from now on without notice: no other session may cache them.
pub async fn open_here<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    ino: Ino,
    how: Opening<'_>,
) -> Result<(InodeView, Option<u64>, Option<TokenGrant>)> {
    let _held = target.hold([ino]).await?;
    let is_news =
        || how.access.write && target.coherence.tokens.on() && !target.files.open.borrow().is_writer(how.session, ino);
    let mut changed = None;
    loop {
        if is_news() {
            let _guard = target.queues.names.take(vec![(NameKey::Inode(ino), Hold::Exclusive)]).await;
            check_open(target, how.cred, ino, how.access, how.exec)?;
            let key = Changed { key: TokenKey::Attributes(ino), known: how.known, joint: false };
            let sent = || worker.send_revocations(target);
            let mut changing =
                target.coherence.tokens.change(|| worker.now_ns(), how.session, || vec![key], sent).await;
            register(target, ino, &how)?;
            changed = changing.end();
            break;
        }
        target.settle(vec![NameKey::Inode(ino)]).await;
        // Other opens of the session may have ended meanwhile, and other mounts may have got tokens.
        if !is_news() {
            register(target, ino, &how)?;
            break;
        }
    }
    let (view, token) = match view(worker, target, ino, Some(how.session)).await {
        Ok(seen) => seen,
        Err(e) => {
            // The client will not know that it has the inode open.
            withdraw(worker, target, ino, &how);
            return Err(e);
        }
    };
    Ok((view, changed, token))
}

/// Registers an open, after a check of permissions. A file is opened for `exec` with permission to execute alone: the
/// program runs without being readable. A session that has ended opens nothing.
fn register<E: Env>(target: &Target<E>, ino: Ino, how: &Opening<'_>) -> Result<()> {
    if how.is_registered(target, ino) {
        return Ok(());
    }
    check_open(target, how.cred, ino, how.access, how.exec)?;
    if !target.has_session(how.session) {
        return Err(Errno::Io);
    }
    target.files.open.borrow_mut().open(how.session, ino, how.access);
    if let Some((slot, seq)) = how.slot() {
        target.files.note_opened_for(slot, seq, ino);
        if target.reclaim.is_pending(how.session) {
            // The client of the session has not received the answer to this open yet, so it cannot present it.
            target.files.note_early(how.session, ino, how.access);
        }
    }
    Ok(())
}

/// Takes an open back that was registered.
fn withdraw<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, ino: Ino, how: &Opening<'_>) {
    if let Some((slot, _)) = how.slot() {
        if !how.is_registered(target, ino) {
            return;
        }
        target.files.forget_opened_for(slot);
    }
    target.files.forget_early(how.session, ino, how.access);
    if target.files.open.borrow_mut().close(how.session, ino, how.access) {
        after_close(worker, target, ino);
    }
}

fn check_open<E: Env>(target: &Target<E>, cred: &Cred, ino: Ino, access: Access, exec: bool) -> Result<()> {
    let meta = target.meta.borrow();
    let inode = meta.inode(ino)?;
    if inode.nlink == 0 && (inode.pending.destroy || !target.files.open.borrow().is_open(ino)) {
        return Err(Errno::Stale);
    }
    meta.check_open(cred, ino, Want { read: access.read && !exec, write: access.write, exec })
}

/// Called when an open of the inode has ended. Destroys the inode if it has no name and no open, and settles its size
/// if no session has it open for writing any more.
pub fn after_close<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, ino: Ino) {
    if target.meta.borrow().is_away(ino) {
        // It has a name, and the right size.
        return;
    }
    let Ok((nlink, spread)) = target.meta.borrow().inode(ino).map(|i| (i.nlink, i.objects.spread)) else { return };
    if nlink == 0 {
        destroy_orphan(worker, target, ino);
    } else if spread && !target.files.open.borrow().has_writer(ino) {
        settle_later(worker, target, ino);
    }
}

/// Opens an inode again for a request of an earlier run that is asked again after its open was given up.
///
/// Errors: `Stale` if the inode has been removed since.
pub async fn open_again<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    session: SessionId,
    ino: Ino,
    access: Access,
) -> Result<()> {
    let how = Opening { session, cred: &Cred::root(), access, exec: false, known: false, by: None };
    open_here(worker, target, ino, how).await.map(drop)
}

/// Ends the opens that are still kept when the session has had time to repeat requests of an earlier run. Most of these
/// files were closed in that run.
fn end_kept_later<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, session: SessionId) {
    if !target.sessions.slots.borrow().kept_opens().any(|(s, _, _)| s == session) {
        return;
    }
    let (worker, weak, sleep) = (worker.clone(), Rc::downgrade(target), worker.env.sleep(KEPT_FOR));
    worker.env.clone().spawn(async move {
        sleep.await;
        let Some(target) = weak.upgrade() else { return };
        let ended = target.sessions.slots.borrow_mut().end_kept(session);
        for (ino, access) in ended {
            if target.files.open.borrow_mut().close(session, ino, access) {
                after_close(&worker, &target, ino);
            }
        }
    });
}

/// Called when the session has presented its opens, or has ended.
pub fn present<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, session: SessionId) {
    target.coherence.tokens.present(session);
    worker.send_revocations(target);
    if target.reclaim.settle(session) {
        end_kept_later(worker, target, session);
        reap_orphans(worker, target);
        target.reclaim.wake();
        super::file_lock::recovered(worker, target);
    }
}

impl<E: Env> RequestCx<E> {
    /// Opens an inode of any target.
    pub async fn open_anywhere(&self, ino: Ino, access: Access) -> Result<InodeView> {
        if ino.target() == self.target.id {
            return self.open_mine(ino, access, false, false).await;
        }
        let by = (self.target.id, self.id);
        let question = TargetRequest::Open { session: self.session, cred: self.cred.clone(), ino, access, by };
        match self.worker.ask(ino.target(), question).await? {
            TargetReply::View(view, token) => {
                self.granted_attributes(token);
                Ok(*view)
            }
            _ => Err(Errno::Proto),
        }
    }

    async fn open_mine(&self, ino: Ino, access: Access, exec: bool, known: bool) -> Result<InodeView> {
        let how = Opening { session: self.session, cred: &self.cred, access, exec, known, by: None };
        let (view, changed, attributes) = open_here(&self.worker, &self.target, ino, how).await?;
        self.tokens.set(Tokens { changed, attributes, ..self.tokens.get() });
        Ok(view)
    }

    /// `Request::Open`.
    pub async fn open(&self, ino: Ino, access: Access, exec: bool) -> Result<Reply> {
        if ino.target() != self.target.id {
            return Err(Errno::Stale);
        }
        self.open_mine(ino, access, exec, true).await.map(Reply::Inode)
    }

    /// `Request::Close`. An open that this run does not know is closed already.
    pub fn close(&self, ino: Ino, access: Access, atime: Option<Timespec>) -> Result<Reply> {
        self.close_each(&[(ino, access, atime)])
    }

    /// Several closes.
    pub fn close_each(&self, closes: &[(Ino, Access, Option<Timespec>)]) -> Result<Reply> {
        let mut latest: BTreeMap<Ino, Timespec> = BTreeMap::new();
        for (ino, atime) in closes.iter().filter_map(|(ino, _, atime)| Some((*ino, (*atime)?))) {
            latest.entry(ino).and_modify(|t| *t = atime.max(*t)).or_insert(atime);
        }
        let times: Vec<(Ino, Timespec)> = latest.into_iter().collect();
        for times in times.chunks(ACCESSED_MAX) {
            self.accessed(times.to_vec());
        }
        for &(ino, access, _) in closes {
            self.target.files.forget_early(self.session, ino, access);
            if self.target.files.open.borrow_mut().close(self.session, ino, access) {
                after_close(&self.worker, &self.target, ino);
            }
        }
        Ok(Reply::Done)
    }

    /// Updates access times, with one record. No client waits for this. The update is omitted while an operation has
    /// the inode locked, or if the log is nearly full, because only a time is lost. If tokens are granted, the update
    /// is a change like any other, made after the answer, and a single one for all of these inodes. So each mount that
    /// caches their attributes gets one revocation.
    fn accessed(&self, times: Vec<(Ino, Timespec)>) {
        let apply = |target: &Target<E>, times: &[(Ino, Timespec)]| {
            let mut txn = Txn::default();
            let mut any = false;
            let mut meta = target.meta.borrow_mut();
            for (ino, atime) in times {
                // The time of an inode that cannot be read is lost.
                any |= !meta.is_away(*ino) && matches!(meta.accessed(*ino, *atime, &mut txn), Ok(true));
            }
            drop(meta);
            if any {
                target.append(txn, Order::Plain);
            }
        };
        if self.target.coherence.tokens.on() {
            let (worker, target, session) = (self.worker.clone(), self.target.clone(), self.session);
            self.worker.env.spawn(async move {
                let here = target.hold_readable(times.iter().map(|(ino, _)| *ino)).await;
                let held = times.iter().map(|(ino, _)| (NameKey::Inode(*ino), Hold::Exclusive)).collect();
                let _guard = target.queues.names.take(held).await;
                if target.zone.reserve(0).await.is_err() {
                    return;
                }
                let keys =
                    || times.iter().map(|(ino, _)| Changed::alone(TokenKey::Attributes(*ino)).unknown()).collect();
                let sent = || worker.send_revocations(&target);
                let _changing = target.coherence.tokens.change(|| worker.now_ns(), session, keys, sent).await;
                apply(&target, &times);
                drop(here);
                target.let_inodes_go();
            });
            return;
        }
        let free = |ino: Ino| self.target.settle(vec![NameKey::Inode(ino)]).now_or_never().is_some();
        let times: Vec<_> = times.into_iter().filter(|(ino, _)| free(*ino)).collect();
        if self.target.zone.reserve(0).now_or_never() == Some(Ok(())) {
            apply(&self.target, &times);
        }
    }

    /// `Request::Discard`.
    pub fn discard(&self, ino: Ino, opens: u32) -> Result<Reply> {
        let Ok(nlink) = self.target.meta.borrow().inode(ino).map(|i| i.nlink) else { return Ok(Reply::Done) };
        // A session that has not connected again yet may have it open as well, and an operation that holds it may be
        // about to give it a name.
        let held = self.target.queues.names.is_held_alone(&NameKey::Inode(ino));
        if nlink > 0 || held || !self.target.reclaim.is_over() {
            return Err(Errno::Busy);
        }
        if !self.target.files.open.borrow_mut().close_last(self.session, ino, u64::from(opens)) {
            return Err(Errno::Busy);
        }
        after_close(&self.worker, &self.target, ino);
        Ok(Reply::Done)
    }

    /// `Request::Represent`. If others did not wait for the session, files that it writes may have been settled
    /// meanwhile, and other mounts may cache their attributes. The session continues to write without a further
    /// message. So before the answer these files are marked as spread again, stably, and no mount caches their
    /// attributes.
    ///
    /// For a client whose users are mapped (`users`), only opens are accepted that one of these users could get now.
    /// Locks that nobody calls back, of groups and of applications, are accepted on files that the session has open.
    ///
    /// Errors: `Io` if the session has ended meanwhile.
    pub async fn represent(
        &self,
        opens: Vec<(Ino, Access)>,
        locks: Vec<HeldLock>,
        users: Option<&Squash>,
    ) -> Result<Reply> {
        // The check of the session's tree has waited, and the opens of a session that has ended would stay for ever.
        self.alive()?;
        let is_expected = self.target.reclaim.is_expected(self.session);
        // A repeated request must not wait for an operation that changes a file: that operation may wait for a lock
        // that was restored, and the mount gets no callback before it has this answer.
        let is_late = self.target.reclaim.begin_saying(self.session);
        let written: BTreeSet<Ino> = opens.iter().filter(|(_, access)| access.write).map(|(ino, _)| *ino).collect();
        let written: Vec<Ino> = written.into_iter().collect();
        {
            let mut table = self.target.files.open.borrow_mut();
            table.drop_session(self.session);
            let kept: Vec<_> = self.target.sessions.slots.borrow().kept_opens().collect();
            let kept = kept.into_iter().filter(|(s, _, _)| *s == self.session);
            let kept = kept.map(|(_, ino, access)| (ino, access)).chain(self.target.files.early_of(self.session));
            let meta = self.target.meta.borrow();
            // For a client that acts for one user only, only opens are accepted that this user could get now.
            let may = |ino: Ino, access: Access| {
                let want = Want { read: access.read, write: access.write, exec: false };
                match users {
                    Some(users) => meta.facts(ino).is_ok_and(|facts| {
                        keys::users_for(users, &facts).iter().any(|cred| meta.check_open(cred, ino, want).is_ok())
                    }),
                    None => self.cred.uid == 0 || meta.check_open(&self.cred, ino, want).is_ok(),
                }
            };
            // An open is refused if the inode cannot be read and has to be checked, or marked as spread again.
            let is_checked = users.is_some() || self.cred.uid != 0;
            let is_known = |ino: Ino, access: Access| !(meta.is_away(ino) && (is_checked || access.write));
            let opens = opens.into_iter().filter(|(ino, access)| is_known(*ino, *access) && may(*ino, *access));
            for (ino, access) in opens.chain(kept) {
                if meta.is_away(ino) || meta.inode(ino).is_ok() {
                    table.open(self.session, ino, access);
                }
            }
        }
        self.target.reclaim.expect_no_more(self.session);
        let access = |ino: Ino| self.target.files.access(self.session, ino);
        if is_expected {
            // They were presented before the opens.
            let is_open = |ino: Ino| access(ino).is_some_and(|access| access.read || access.write);
            self.target.coherence.file_locks.keep_only(self.session, is_open);
            super::file_lock::tell(&self.worker, &self.target);
        }
        // This is done in the step in which the session becomes a writer: nothing is settled from here on.
        let spread = self.spread_again(&written);
        // If the session was evicted meanwhile, other sessions may have used the locks that it held.
        let ids = match self.target.reclaim.is_eligible(self.session) {
            true => {
                let mode = |m: LockMode| if m == LockMode::Read { Mode::Read } else { Mode::Write };
                let owner = |group: Option<u64>| match group {
                    Some(group) => Owner::Group(self.session, GroupId(group)),
                    None => Owner::Cached(self.session),
                };
                let locks: Vec<_> =
                    locks.into_iter().map(|l| (owner(l.group), l.object, mode(l.mode), l.range)).collect();
                // The target of the inode has presented opens of the session itself. A target of another stripe cannot
                // ask it, because the session may be about to present its opens there.
                let may_lock = |owner: Owner, object: ObjectId| match owner {
                    Owner::Group(..) if object.ino.target() == self.target.id => {
                        access(object.ino).is_some_and(|a| a.write)
                    }
                    Owner::Group(..) => is_expected,
                    _ => true,
                };
                let ids = self.target.coherence.locks.take_in(self.session, &locks, may_lock);
                self.worker.send_callbacks(&self.target);
                ids
            }
            false => Vec::new(),
        };
        present(&self.worker, &self.target, self.session);
        if is_late && self.target.coherence.tokens.on() {
            for some in written.chunks(OPENS_A_STEP) {
                let keys = some.iter().map(|ino| Changed::alone(TokenKey::Attributes(*ino)).unknown()).collect();
                drop(self.change(|| keys).await);
            }
        }
        if let Some(lsn) = spread {
            // A target that has failed accepts no writes either.
            let _ = self.target.zone.stable(lsn).await;
        }
        if self.alive().is_ok() {
            self.target.reclaim.end_saying(self.session);
        }
        Ok(Reply::Locks(ids))
    }

    /// Marks files that have data on several targets as spread. Returns the last record of that, if any was not.
    fn spread_again(&self, inos: &[Ino]) -> Option<Lsn> {
        let mut meta = self.target.meta.borrow_mut();
        let settled = |meta: &MetaStore, ino| {
            !meta.is_away(ino) && meta.inode(ino).is_ok_and(|i| i.objects.wide && !i.objects.spread && i.nlink > 0)
        };
        let settled: Vec<Ino> = inos.iter().copied().filter(|ino| settled(&meta, *ino)).collect();
        let mut last = None;
        for some in settled.chunks(OPENS_A_STEP) {
            let mut txn = Txn::default();
            for ino in some {
                let marked = meta.mark_spread(*ino, &mut txn);
                debug_assert!(marked.is_ok(), "a wide inode is a file");
            }
            last = Some(self.target.append(txn, Order::Plain));
        }
        last
    }
}
