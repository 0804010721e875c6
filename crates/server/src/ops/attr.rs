//! Attributes: reading them, setting them, the length of a file, its layout.
//!
//! A file whose data has spread to other targets has the size that its objects say (`objects`). A set size is logged
//! with the cut of the objects here; those on other targets follow, and are cut again after a crash until all are.

use super::names::plain_view;
use super::objects::{gather, trim_everywhere};
use crate::cx::Cx;
use crate::gate::Hold;
use crate::target::{NameKey, Target};
use crate::worker::Worker;
use amphi_data::Resize;
use amphi_env::Env;
use amphi_types::item::Txn;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, Errno, Ino, IoMode, Kind, Layout, ObjectId, Result, SetAttr};
use amphi_wire::{InodeView, Reply};
use amphi_zone::Order;
use std::rc::Rc;

/// What a client sees of an inode of this target; gathers what its objects say if they know better.
pub async fn view<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, ino: Ino) -> Result<InodeView> {
    let layout = {
        let meta = target.meta.borrow();
        let inode = meta.inode(ino)?;
        if !inode.spread {
            return Ok(plain_view(&meta, ino, inode));
        }
        inode.layout
    };
    let gathered = gather(worker, target, ino, &layout).await?;
    let meta = target.meta.borrow();
    let inode = meta.inode(ino)?;
    let mut view = plain_view(&meta, ino, inode);
    if inode.spread {
        view.attr = inode.attr_with(ino, &gathered);
    }
    Ok(view)
}

impl<E: Env> Cx<E> {
    /// `Request::GetAttr`.
    pub async fn getattr(&self, ino: Ino) -> Result<Reply> {
        self.target.settle(vec![NameKey::Inode(ino)]).await;
        super::view(&self.worker, &self.target, ino).await.map(Reply::Inode)
    }

    /// `Request::SetAttr`.
    pub async fn setattr(&self, ino: Ino, set: SetAttr) -> Result<Reply> {
        self.reserve(256).await?;
        let guard = self.target.names.take(vec![(NameKey::Inode(ino), Hold::Exclusive)]).await;
        self.target.meta.borrow().check_setattr(&self.cred, ino, &set, self.now)?;
        let reply = match set.size {
            Some(size) => self.set_size(ino, &set, size).await?,
            None => self.set_plain(ino, &set).await?,
        };
        drop(guard);
        Ok(reply)
    }

    async fn set_plain(&self, ino: Ino, set: &SetAttr) -> Result<Reply> {
        let gathered = self.gathered_if_spread(ino).await?;
        let lsn = {
            let mut txn = Txn::default();
            let mut meta = self.target.meta.borrow_mut();
            meta.setattr(&self.cred, ino, set, self.now, &mut txn)?;
            let inode = meta.inode(ino)?;
            let mut view = plain_view(&meta, ino, inode);
            if let Some(gathered) = gathered {
                view.attr = inode.attr_with(ino, &gathered);
            }
            drop(meta);
            let reply = Reply::Inode(view);
            (self.append(txn, Order::Plain, &reply, None), reply)
        };
        self.target.zone.written(lsn.0).await?;
        Ok(lsn.1)
    }

    async fn gathered_if_spread(&self, ino: Ino) -> Result<Option<amphi_meta::Gathered>> {
        let layout = {
            let meta = self.target.meta.borrow();
            let inode = meta.inode(ino)?;
            inode.spread.then_some(inode.layout)
        };
        match layout {
            Some(layout) => gather(&self.worker, &self.target, ino, &layout).await.map(Some),
            None => Ok(None),
        }
    }

    async fn set_size(&self, ino: Ino, set: &SetAttr, size: u64) -> Result<Reply> {
        let object = ObjectId { ino, stripe: 0 };
        let (layout, wide, generation, spread) = {
            let meta = self.target.meta.borrow();
            let inode = meta.inode(ino)?;
            (inode.layout, inode.wide, inode.generation + 1, inode.spread)
        };
        let span =
            self.target.spans.take(object, ByteRange::new(size / BLOCK * BLOCK, u64::MAX), Hold::Exclusive).await;
        self.target.punch_behind(object, size, generation - 1, self.now).await?;
        let plan = self.target.data.borrow_mut().plan_truncate(object, size, generation, Resize::Cut)?;
        let plan = self.target.rewrite_edges(plan).await?;
        let order = if plan.points_at_new_data() { Order::AfterData } else { Order::Plain };
        let (lsn, reply) = {
            let mut txn = Txn::default();
            let mut meta = self.target.meta.borrow_mut();
            if let Err(e) = meta.setattr(&self.cred, ino, set, self.now, &mut txn) {
                self.target.data.borrow_mut().abort_trim(plan);
                return Err(e);
            }
            let freed = self.target.data.borrow_mut().commit_trim(plan, self.now, &mut txn);
            if !wide {
                let gathered = self.target.gathered(ino);
                meta.settle(ino, &gathered, &mut txn)?;
            }
            let mut view = plain_view(&meta, ino, meta.inode(ino)?);
            if spread {
                // Every object is cut to the size before the answer is sent.
                view.attr.size = size;
            }
            drop(meta);
            let reply = Reply::Inode(view);
            let lsn = self.append(txn, order, &reply, None);
            self.target.release_later(lsn, freed);
            (lsn, reply)
        };
        drop(span);
        if !wide {
            self.target.zone.written(lsn).await?;
            return Ok(reply);
        }
        // Objects elsewhere are cut when the new size cannot be lost any more.
        self.target.zone.stable(lsn).await?;
        trim_everywhere(&self.worker, &self.target, ino, &layout, size, generation, self.now).await?;
        Ok(reply)
    }

    /// `Request::SetLayout`.
    pub async fn set_layout(&self, ino: Ino, layout: Option<Layout>, mode: Option<IoMode>) -> Result<Reply> {
        self.reserve(256).await?;
        let _guard = self.target.names.take(vec![(NameKey::Inode(ino), Hold::Exclusive)]).await;
        let has_data = self.target.data.borrow().objects_of(ino).any(|(_, o)| o.end > 0 || o.blocks > 0);
        let layout = layout.map(|l| Layout { pool: self.worker.pool, ..l });
        let gathered = self.gathered_if_spread(ino).await?;
        let mut txn = Txn::default();
        let reply = {
            let mut meta = self.target.meta.borrow_mut();
            meta.set_layout(&self.cred, ino, layout, mode, has_data, self.now, &mut txn)?;
            let inode = meta.inode(ino)?;
            let mut view = plain_view(&meta, ino, inode);
            if let Some(gathered) = gathered {
                view.attr = inode.attr_with(ino, &gathered);
            }
            Reply::Inode(view)
        };
        self.commit(txn, Order::Plain, reply).await
    }

    /// `Request::Spread`. Answered when it cannot be lost any more: objects elsewhere will carry the inode's number, and
    /// after lost power whatever they hold must be looked for there.
    pub async fn spread(&self, ino: Ino) -> Result<Reply> {
        self.target.zone.reserve(64).await?;
        self.target.settle(vec![NameKey::Inode(ino)]).await;
        let (lsn, view) = {
            let mut txn = Txn::default();
            let mut meta = self.target.meta.borrow_mut();
            if meta.inode(ino)?.kind != Kind::File {
                return Err(Errno::Inval);
            }
            meta.mark_spread(ino, &mut txn)?;
            let view = plain_view(&meta, ino, meta.inode(ino)?);
            (self.target.append(txn, Order::Plain), view)
        };
        self.target.zone.stable(lsn).await?;
        Ok(Reply::Inode(view))
    }
}
