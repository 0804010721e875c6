//! Attributes: reading them, setting them, the size of a file, and its layout.
//!
//! A file whose data has spread to other targets has the size that its objects say (`objects`). A new size is logged
//! together with the cut of the objects on this target. The objects on other targets follow, and are cut again after a
//! crash until all of them are cut.

use crate::coherence::tokens::Changing;
use crate::message::Cut;
use crate::objects::{gather, give_cut_up, settle_later, trim_everywhere};
use crate::worker::Worker;
use crate::worker::request::RequestCx;
use crate::zone_target::gate::Hold;
use crate::zone_target::{NameKey, Target};
use amphi_data::Resize;
use amphi_dlm::Changed;
use amphi_env::Env;
use amphi_meta::MetaStore;
use amphi_types::item::Txn;
use amphi_types::limits::BLOCK;
use amphi_types::{AskedAdvice, ByteRange, Errno, Ino, Kind, Layout, ObjectId, Result, SessionId, SetAttr, TokenKey};
use amphi_wire::{Answer, InodeView, Reply, TokenGrant, Tokens};
use amphi_zone::Order;
use std::rc::Rc;

/// How often the attributes of a file are collected again because it was truncated meanwhile; each time a truncate by
/// another client has succeeded.
const VIEW_TRIES: usize = 1000;
/// How often the states of a file's objects are collected until two results are the same. After that many attempts, its
/// writers are faster.
const SAME_TRIES: usize = 16;

/// Requests the size for a session that does not exist. So the changes of all mounts are included, and no tokens are
/// granted.
pub const NOBODY: SessionId = SessionId(0);

/// The size that was found last of a spread file, with the inode's generation. Objects are queried one after the other,
/// and a write may reach some of them in between. Sizes only grow within a generation, so if a size is found twice, the
/// file had it in between.
type Before = Option<(u64, u64)>;

/// The view of an inode of this target for a client, with the token to cache it. If the objects may have newer sizes,
/// the function collects these, and for an `asker` also the sizes that other mounts have not written back yet.
pub async fn view<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    ino: Ino,
    asker: Option<SessionId>,
) -> Result<(InodeView, Option<TokenGrant>)> {
    let _held = target.hold([ino]).await?;
    let asker = asker.filter(|asker| *asker == NOBODY || target.coherence.tokens.on());
    if asker.is_some() && !target.reclaim.is_over() && target.check_file(ino).is_ok() {
        // A session that writes the file may not have reconnected yet.
        target.recovered().await;
        target.settle(vec![NameKey::Inode(ino)]).await;
    }
    let mut before = None;
    for tried in 0..VIEW_TRIES {
        if let Some(seen) = look(worker, target, ino, asker, &mut before, tried >= SAME_TRIES).await? {
            return Ok(seen);
        }
    }
    Err(Errno::Again)
}

/// Works as `view`, or `None` in three cases: the file was truncated between the queries to its objects and the reading
/// of its inode; its objects have not given the same answer twice yet; or it grew beyond all answers, so that a part of
/// a call may have arrived meanwhile.
async fn look<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    ino: Ino,
    asker: Option<SessionId>,
    before: &mut Before,
    enough: bool,
) -> Result<Option<(InodeView, Option<TokenGrant>)>> {
    let in_company = asker.is_some();
    let key = NameKey::Inode(ino);
    if asker.is_some() && target.queues.names.is_held_alone(&key) {
        // A cut has its generation from its start, and its objects are not all cut before its end.
        target.settle(vec![key]).await;
        return Ok(None);
    }
    if let Some(seen) = plain(worker, target, ino, asker)? {
        return Ok(Some(seen));
    }
    let (layout, generation, kind, size_before) = {
        let meta = target.meta.borrow();
        let inode = meta.inode(ino)?;
        (inode.layout, inode.objects.generation, inode.kind, inode.size)
    };
    let asker = asker.filter(|asker| kind == Kind::File && target.written_elsewhere(*asker, ino));
    let gathered = gather(worker, target, ino, &layout, asker).await?;
    let meta = target.meta.borrow();
    let inode = meta.inode(ino)?;
    if inode.objects.generation != generation {
        return Ok(None);
    }
    if in_company && !enough {
        let now = Some((inode.size.max(gathered.size), generation));
        let is_torn = match inode.objects.spread {
            true => std::mem::replace(before, now) != now,
            false => inode.size > size_before.max(gathered.size),
        };
        if is_torn {
            return Ok(None);
        }
    }
    let mut view = target.view_of(&meta, ino, &inode);
    if inode.objects.spread || (asker.is_some() && inode.layout == layout) {
        view.attr = inode.attr_with(ino, &gathered);
    }
    Ok(Some((view, None)))
}

/// The attributes in the inode itself, with the token to cache them. Returns `None` if its objects or other mounts may
/// have newer ones.
fn plain<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Target<E>,
    ino: Ino,
    asker: Option<SessionId>,
) -> Result<Option<(InodeView, Option<TokenGrant>)>> {
    let meta = target.meta.borrow();
    let inode = meta.inode(ino)?;
    let written = asker.is_some_and(|asker| inode.kind == Kind::File && target.written_elsewhere(asker, ino));
    if inode.objects.spread || written {
        return Ok(None);
    }
    let view = target.view_of(&meta, ino, &inode);
    drop(meta);
    let token = asker.and_then(|asker| target.grant_attributes(worker.now_ns(), asker, &view));
    worker.send_revocations(target);
    Ok(Some((view, token)))
}

/// The answer to `Request::GetAttr` if it need not wait, because no change is under way and the inode itself has the
/// right attributes. Errors are left to `RequestCx::getattr`.
pub fn at_once<E: Env>(worker: &Rc<Worker<E>>, target: &Target<E>, session: SessionId, ino: Ino) -> Option<Answer> {
    let is_away = target.meta.borrow().is_away(ino);
    if is_away || !target.has_session(session) || !target.queues.names.is_empty() {
        return None;
    }
    let asker = Some(session).filter(|_| target.coherence.tokens.on());
    let (view, attributes) = plain(worker, target, ino, asker).ok()??;
    let tokens = attributes.is_some().then(|| Box::new(Tokens { attributes, ..Tokens::default() }));
    Some(Answer { tokens, ..Answer::of(Ok(Reply::Inode(view))) })
}

impl<E: Env> RequestCx<E> {
    /// `Request::GetAttr`, and `Request::GetAttrNow` with `NOBODY` as the asker.
    pub async fn getattr(&self, ino: Ino, asker: SessionId) -> Result<Reply> {
        self.target.settle(vec![NameKey::Inode(ino)]).await;
        let (view, token) = super::view(&self.worker, &self.target, ino, Some(asker)).await?;
        self.granted_attributes(token);
        Ok(Reply::Inode(view))
    }

    /// `Request::SetAttr`.
    pub async fn setattr(&self, ino: Ino, set: SetAttr) -> Result<Reply> {
        // A client that has the file open for writing needs no further check, because the open has checked the
        // permission.
        let is_writer = self.target.files.access(self.session, ino).is_some_and(|a| a.write);
        let set = SetAttr { open_for_write: set.open_for_write && is_writer, ..set };
        if self.target.meta.borrow().is_sharded(ino) {
            self.target.meta.borrow().check_setattr(&self.cred, ino, &set, self.now)?;
            if let Some(project) = set.project {
                self.keep_border(ino, project).await?;
            }
            let _admitted = self.admit_gift(ino, set.uid, set.gid, set.project).await?;
            let (cred, now) = (&self.cred, self.now);
            let change = |meta: &mut MetaStore, txn: &mut Txn| meta.setattr(cred, ino, &set, now, txn).map(|_| ());
            let reply = self.change_shared(ino, change).await?;
            if set.uid.is_some() || set.gid.is_some() || set.project.is_some() {
                self.moved_to_owner(ino);
            }
            return Ok(reply);
        }
        self.reserve(if self.may_extend(ino, &set)? { 256 } else { 0 }).await?;
        let guard = self.target.queues.names.take(vec![(NameKey::Inode(ino), Hold::Exclusive)]).await;
        if self.target.meta.borrow().is_sharded(ino) {
            drop(guard);
            return Box::pin(self.setattr(ino, set)).await;
        }
        self.target.meta.borrow().check_setattr(&self.cred, ino, &set, self.now)?;
        if let Some(project) = set.project {
            self.keep_border(ino, project).await?;
        }
        let _admitted = self.admit_gift(ino, set.uid, set.gid, set.project).await?;
        let mut changing = self.change_attributes(ino).await;
        let reply = match set.size {
            Some(size) => self.set_size(ino, &set, size, &mut changing).await?,
            None => self.set_plain(ino, &set, &mut changing).await?,
        };
        if set.uid.is_some() || set.gid.is_some() || set.project.is_some() {
            self.moved_to_owner(ino);
        }
        drop(guard);
        Ok(reply)
    }

    /// Returns whether the change may make a file larger than its inode says. Other changes need no additional space.
    fn may_extend(&self, ino: Ino, set: &SetAttr) -> Result<bool> {
        let meta = self.target.meta.borrow();
        let inode = meta.inode(ino)?;
        Ok(!inode.objects.spread && set.size.is_some_and(|size| size > inode.size))
    }

    async fn set_plain(&self, ino: Ino, set: &SetAttr, changing: &mut Changing) -> Result<Reply> {
        let gathered = self.gathered_if_spread(ino).await?;
        self.alive()?;
        let lsn = {
            let mut txn = Txn::default();
            let mut meta = self.target.meta.borrow_mut();
            meta.setattr(&self.cred, ino, set, self.now, &mut txn)?;
            if set.mtime.is_some() {
                let objects = gathered.unwrap_or_else(|| self.target.gathered(ino));
                meta.time_outranks(ino, objects.mtime, &mut txn)?;
            }
            let inode = meta.inode(ino)?;
            let mut view = self.target.view_of(&meta, ino, &inode);
            if let Some(gathered) = gathered {
                view.attr = inode.attr_with(ino, &gathered);
            }
            drop(meta);
            let reply = Reply::Inode(view);
            let lsn = self.append(txn, Order::Plain, &reply, None);
            self.changed(changing);
            self.grant_attributes(&view);
            (lsn, reply)
        };
        self.target.zone.kept(lsn.0).await?;
        Ok(lsn.1)
    }

    /// Attributes collected from the objects of a file, if its inode does not have them.
    pub(super) async fn gathered_if_spread(&self, ino: Ino) -> Result<Option<amphi_meta::Gathered>> {
        let layout = {
            let meta = self.target.meta.borrow();
            let inode = meta.inode(ino)?;
            inode.objects.spread.then_some(inode.layout)
        };
        match layout {
            Some(layout) => gather(&self.worker, &self.target, ino, &layout, None).await.map(Some),
            None => Ok(None),
        }
    }

    async fn set_size(&self, ino: Ino, set: &SetAttr, size: u64, changing: &mut Changing) -> Result<Reply> {
        let object = ObjectId { ino, stripe: 0 };
        let (layout, wide, generation) = {
            let meta = self.target.meta.borrow();
            let inode = meta.inode(ino)?;
            (inode.layout, inode.objects.wide, inode.objects.generation + 1)
        };
        let span = self
            .target
            .queues
            .spans
            .take(object, ByteRange::new(size / BLOCK * BLOCK, u64::MAX), Hold::Exclusive)
            .await;
        let landing = self.land()?;
        let _changed = self.overwriting(ino, ByteRange::new(size, u64::MAX));
        let by = (self.session, self.target.sessions.begin_of(self.session).unwrap_or(0));
        self.target.punch_behind(object, size, generation - 1, self.now).await?;
        let plan = self.plan(|data| data.plan_truncate(object, size, generation, Resize::Cut)).await?;
        let plan = self.target.rewrite_edges(plan).await?;
        let order = if plan.points_at_new_data() { Order::AfterData } else { Order::Plain };
        let (lsn, mut view) = {
            let mut txn = Txn::default();
            let mut meta = self.target.meta.borrow_mut();
            if let Err(e) = meta.setattr(&self.cred, ino, set, self.now, &mut txn) {
                self.target.data.borrow_mut().abort_trim(plan);
                return Err(e);
            }
            let freed = self.target.data.borrow_mut().commit_trim(plan, self.now, &mut txn);
            if wide {
                // How much data the objects on other targets keep is known only when they are cut; until the size is
                // settled, it is collected from them.
                meta.mark_spread(ino, &mut txn)?;
            } else {
                meta.settle(ino, &self.target.landed(ino), &mut txn)?;
            }
            let mut view = self.target.view_of(&meta, ino, &meta.inode(ino)?);
            if wide {
                // Every object is cut to the size before the answer is sent.
                view.attr.size = size;
            }
            drop(meta);
            let reply = Reply::Inode(view);
            let lsn = self.append(txn, order, &reply, None);
            self.target.release_later(lsn, freed);
            if !wide {
                self.changed(changing);
                self.grant_attributes(&view);
            }
            (lsn, view)
        };
        drop(span);
        if !wide {
            drop(landing);
            self.target.zone.kept(lsn).await?;
            return Ok(Reply::Inode(view));
        }
        // Objects elsewhere are cut when the new size cannot be lost any more.
        self.target.zone.stable(lsn).await?;
        let cut = Cut { by, ino, layout, size, generation, mtime: self.now };
        if let Err(e) = trim_everywhere(&self.worker, &self.target, &cut).await {
            let mut txn = Txn::default();
            self.seal_error(&mut txn, e);
            give_cut_up(&self.worker, &self.target, ino, generation, txn).await?;
            return Err(e);
        }
        match gather(&self.worker, &self.target, ino, &layout, None).await {
            Ok(gathered) => view.attr.blocks = gathered.blocks,
            // The size is set nevertheless, and later requests collect the rest.
            Err(e) => tracing::debug!(%ino, "what a truncated file keeps is not known: {e}"),
        }
        self.changed(changing);
        if !self.target.files.open.borrow().has_writer(ino) {
            settle_later(&self.worker, &self.target, ino);
        }
        Ok(Reply::Inode(view))
    }

    /// `Request::SetLayout`.
    pub async fn set_layout(&self, ino: Ino, layout: Option<Layout>, advice: Option<AskedAdvice>) -> Result<Reply> {
        self.reserve(256).await?;
        if layout.is_some() {
            // A session that has not reconnected yet may have the file open.
            self.target.recovered().await;
        }
        let guard = self.target.queues.names.take(vec![(NameKey::Inode(ino), Hold::Exclusive)]).await;
        if self.target.meta.borrow().is_sharded(ino) {
            drop(guard);
            let layout = layout.map(|l| Layout { pool: self.worker.pool(), ..l });
            let (cred, now) = (&self.cred, self.now);
            return self
                .change_shared(ino, |meta, txn| meta.set_layout(cred, ino, layout, advice, false, now, txn))
                .await;
        }
        let layout = layout.map(|l| Layout { pool: self.worker.pool(), ..l });
        // Such a session may have dirty bytes under the old layout, and would lock and read by the old layout.
        let is_free = || layout.is_none() || !self.target.files.open.borrow().is_open_elsewhere(self.session, ino);
        if !is_free() {
            return Err(Errno::Busy);
        }
        let gathered = self.gathered_if_spread(ino).await?;
        let mut changing = self.change_attributes(ino).await;
        self.alive()?;
        // Bytes may have come, and sessions may have opened the file, while others gave its attributes back.
        if !is_free() {
            return Err(Errno::Busy);
        }
        let has_data = self.target.data.borrow().objects_of(ino).any(|(_, o)| o.end > 0 || o.blocks > 0);
        let mut txn = Txn::default();
        let reply = {
            let mut meta = self.target.meta.borrow_mut();
            meta.set_layout(&self.cred, ino, layout, advice, has_data, self.now, &mut txn)?;
            let inode = meta.inode(ino)?;
            let mut view = self.target.view_of(&meta, ino, &inode);
            if let Some(gathered) = gathered {
                view.attr = inode.attr_with(ino, &gathered);
            }
            Reply::Inode(view)
        };
        self.commit_change(txn, reply, &mut changing).await
    }

    /// `Request::Spread`. It is answered when it is stable, because objects on other targets will carry the inode's
    /// number, and after a loss of power it must be known that they exist.
    pub async fn spread(&self, ino: Ino) -> Result<Reply> {
        self.target.zone.reserve(64).await?;
        let _guard = self.target.queues.names.take(vec![(NameKey::Inode(ino), Hold::Exclusive)]).await;
        let mut changing = self.change(|| vec![Changed::alone(TokenKey::Attributes(ino)).unknown()]).await;
        let (lsn, view) = {
            let mut txn = Txn::default();
            let mut meta = self.target.meta.borrow_mut();
            if meta.inode(ino)?.kind != Kind::File {
                return Err(Errno::Inval);
            }
            if !self.target.files.access(self.session, ino).is_some_and(|a| a.write) {
                return Err(Errno::BadFd);
            }
            meta.mark_spread(ino, &mut txn)?;
            let view = self.target.view_of(&meta, ino, &meta.inode(ino)?);
            let lsn = self.target.append(txn, Order::Plain);
            changing.end();
            (lsn, view)
        };
        self.target.zone.stable(lsn).await?;
        Ok(Reply::Inode(view))
    }
}
