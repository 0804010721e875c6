//! Making inodes: files, directories, links, nodes, files without a name.

use super::PLAN_TRIES;
use crate::message::{TargetReply, TargetRequest};
use crate::tunables::Tunable;
use crate::tx::run::Ran;
use crate::worker::request::RequestCx;
use amphi_dlm::{Growth, Mode};
use amphi_env::Env;
use amphi_meta::{NodeSpec, Part, perm, plan};
use amphi_types::item::Txn;
use amphi_types::{Attr, ByteRange, Errno, FileFlags, Ino, Kind, Name, ObjectId, Result, layout};
use amphi_wire::{Access, InodeView, Make, Reply};
use amphi_zone::Order;
use futures_util::FutureExt;

/// Size that stat shows for a directory, bytes.
const DIR_SIZE: u64 = 4096;

impl<E: Env> RequestCx<E> {
    /// `Request::Make`.
    pub async fn make(&self, dir: Ino, name: Name, make: Make, mode: u16, umask: u16) -> Result<Reply> {
        let (spec, open, exclusive) = match make {
            Make::File { open, exclusive } => (NodeSpec::file(mode), open, exclusive),
            Make::Dir => (NodeSpec::dir(mode), None, true),
            Make::Symlink(to) => (NodeSpec::symlink(to), None, true),
            Make::Node { kind: Kind::Dir | Kind::Symlink | Kind::File, .. } => return Err(Errno::Inval),
            Make::Node { kind, rdev } => (NodeSpec::node(kind, mode, rdev), None, true),
        };
        let spec = spec.with_umask(umask);
        let home = match spec.kind {
            Kind::Dir => layout::directory_target(dir, name.as_bytes(), self.worker.pool()),
            _ => self.target.id,
        };
        self.target.meta.borrow_mut().set_pool(self.worker.pool());
        // If a number was taken for a plan that failed, the next plan may use it.
        let mut foreign = None;
        for _ in 0..PLAN_TRIES {
            let place = super::names::place(&self.target, dir, &name).await?;
            if let (Some((child, kind)), false) = (place.child, exclusive) {
                perm::search(&self.cred, &place.dir)?;
                if kind == Kind::Dir {
                    return Err(Errno::IsDir);
                }
                match self.open_existing(child, open).await {
                    Err(Errno::Stale) => continue,
                    other => return other,
                }
            }
            let ino = if home == self.target.id {
                self.new_ino()?
            } else {
                // First find out whether it may be made at all, so that refusals cost no number.
                plan::make(&self.cred, &place.dir, &name, place.child.is_some(), &spec, Ino::new(home, 2))?;
                match foreign {
                    Some(ino) => ino,
                    None => match self.worker.ask(home, TargetRequest::NewIno).await? {
                        TargetReply::Ino(ino) => *foreign.insert(ino),
                        _ => return Err(Errno::Proto),
                    },
                }
            };
            let parts = plan::make(&self.cred, &place.dir, &name, place.child.is_some(), &spec, ino)?;
            let view = self.planned_view(&parts)?;
            let _admitted = self.admit_inodes(&parts).await?;
            let opens = open.map(|access| (ino, access));
            let reply = Reply::Made { inode: view, created: true, lock: None };
            match self.run_parts(parts, &[(dir, &name)], opens, async |_| Ok(reply)).await? {
                Ran::Done(Reply::Made { inode, created, .. }) => {
                    let lock = if open.is_some_and(|o| o.write) { self.lock_new(ino) } else { None };
                    return Ok(Reply::Made { inode, created, lock });
                }
                Ran::Done(reply) => return Ok(reply),
                Ran::Conflict => {}
            }
        }
        Err(Errno::Again)
    }

    /// A number for an inode of this target.
    pub(super) fn new_ino(&self) -> Result<Ino> {
        let mut txn = Txn::default();
        let ino = self.target.meta.borrow_mut().alloc_ino(&mut txn)?;
        self.target.append(txn, Order::Plain);
        Ok(ino)
    }

    /// Grants a write lock on the first object of a file that no other mount knows yet. The logged answer does not have
    /// it: a restarted server knows no locks but those that clients present.
    fn lock_new(&self, ino: Ino) -> Option<u64> {
        // If the session has ended meanwhile, it would keep the lock for ever.
        let grows = self.worker.tunables.on(Tunable::LockGrowth);
        if !grows || !self.target.reclaim.is_over() || !self.target.has_session(self.session) {
            return None;
        }
        let object = ObjectId { ino, stripe: 0 };
        let now_ns = self.worker.now_ns();
        let locks = &self.target.coherence.locks;
        let asked = locks.enqueue(now_ns, self.session, object, Mode::Write, ByteRange::ALL, Growth::Exact, || {});
        asked.now_or_never()?.ok().map(|grant| grant.id.0)
    }

    /// The attributes that stat will show of the inode that `parts` make.
    fn planned_view(&self, parts: &[Part]) -> Result<InodeView> {
        let new = parts.iter().find_map(|p| match p {
            Part::MakeInode(new) => Some(new),
            _ => None,
        });
        let new = new.ok_or(Errno::Io)?;
        let acls = parts.iter().find_map(|p| match p {
            Part::SetAcls { acls, .. } => Some(acls),
            _ => None,
        });
        let is_dir = new.kind == Kind::Dir;
        let attr = Attr {
            ino: new.ino,
            kind: new.kind,
            perm: new.perm,
            nlink: match (new.linked, is_dir) {
                (false, _) => 0,
                (true, true) => 2,
                (true, false) => 1,
            },
            uid: new.uid,
            gid: new.gid,
            rdev: new.rdev,
            size: if is_dir { DIR_SIZE } else { new.symlink.len() as u64 },
            blocks: if is_dir { DIR_SIZE / 512 } else { 0 },
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            btime: self.now,
        };
        Ok(InodeView {
            attr,
            layout: new.layout,
            advice: new.advice,
            generation: 0,
            spread: false,
            xattrs: acls.is_some(),
            capability: false,
            acl: acls.is_some_and(|acls| acls.access.is_some()),
            flags: FileFlags::NONE,
            sharded: false,
        })
    }

    async fn open_existing(&self, child: Ino, open: Option<Access>) -> Result<Reply> {
        self.leads_within(child).await?;
        let inode = match open {
            None => self.view_anywhere(child, true).await?,
            Some(access) => self.open_anywhere(child, access).await?,
        };
        Ok(Reply::Made { inode, created: false, lock: None })
    }

    /// `Request::MakeTmp`.
    pub async fn make_tmp(&self, dir: Ino, mode: u16, umask: u16, open: Access) -> Result<Reply> {
        self.reserve(512).await?;
        let spec = NodeSpec::file(mode).with_umask(umask);
        let _admitted = {
            let parts = {
                let meta = self.target.meta.borrow();
                plan::tmpfile(&self.cred, &meta.facts(dir)?, &spec, meta.next_ino()?)?
            };
            self.admit_inodes(&parts).await?
        };
        self.alive()?;
        let (lsn, reply) = {
            let mut txn = Txn::default();
            let mut meta = self.target.meta.borrow_mut();
            meta.set_pool(self.worker.pool());
            let ino = meta.tmpfile(&self.cred, dir, &spec, self.now, &mut txn)?;
            let inode = self.target.view_of(&meta, ino, &meta.inode(ino)?);
            drop(meta);
            let reply = Reply::Made { inode, created: true, lock: None };
            self.target.files.open.borrow_mut().open(self.session, ino, open);
            let lsn = self.append(txn, Order::Plain, &reply, Some((ino, open)));
            self.grant_attributes(&inode);
            (lsn, reply)
        };
        self.target.zone.kept(lsn).await?;
        Ok(reply)
    }
}
