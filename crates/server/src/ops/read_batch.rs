//! Small files of a directory, opened and read ahead of their reader, many in one message.
//!
//! Owns: what may be had without waiting, and the order in which a file is checked, locked, opened and read. Does not own: what the
//! client makes of it.
//!
//! Invariants: a part waits for disks alone: never for a lock, a change of names or attributes, another mount or a restart. What would
//! have to is answered `Again` and leaves nothing behind: no open, no lock, no token. All that a part shows is read, checked for
//! permission and granted in one step, after the lock on its bytes, so they are those of that moment for as long as the lock is held. Locks
//! in the way are asked back, if the client wants that, from mounts that have not opened the file for writing, and not waited for.
//! Spans are taken only where they are free, so their order does not matter.

use super::names::plain_view;
use super::payload::{self, Piece};
use crate::counters::add;
use crate::cx::Cx;
use crate::gate::Hold;
use crate::planted::{self, Mistake};
use crate::span_gate::SpanGuard;
use crate::target::NameKey;
use amphi_data::ReadPlan;
use amphi_dlm::Mode;
use amphi_env::{Buf, Env};
use amphi_meta::perm::Want;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, Errno, Ino, Kind, ObjectId, Result};
use amphi_wire::{Access, BATCH_BYTES_MAX, BATCH_PARTS_MAX, FileAhead, InodeView, ReadPart, Reply, Tokens};
use futures_util::FutureExt;

/// How the files of a batch are opened.
const READ: Access = Access { read: true, write: false };

/// A part whose bytes are to be read.
struct Wanted {
    index: usize,
    plan: ReadPlan,
    _span: SpanGuard,
}

impl<E: Env> Cx<E> {
    /// `Request::ReadBatch`.
    pub async fn read_batch(
        &self,
        dir: Ino,
        parts: &[ReadPart],
        bytes_max: u32,
        ask_back: bool,
    ) -> Result<(Reply, Option<Buf>)> {
        if parts.is_empty() || parts.len() > BATCH_PARTS_MAX {
            return Err(Errno::Inval);
        }
        let counters = &self.worker.counters;
        let bytes_max = u64::from(bytes_max).min(BATCH_BYTES_MAX as u64);
        let (mut files, mut wanted, mut bytes) = (Vec::with_capacity(parts.len()), Vec::new(), 0);
        for (index, part) in parts.iter().enumerate() {
            let room = bytes_max.min(BATCH_BYTES_MAX as u64 - bytes);
            files.push(self.open_ahead(dir, part, room, bytes_max, ask_back).map(|(file, read)| {
                if let Some((plan, span)) = read {
                    bytes += plan.range.len();
                    wanted.push(Wanted { index, plan, _span: span });
                }
                file
            }));
        }
        self.worker.send_callbacks(&self.target);
        self.worker.send_revocations(&self.target);
        add(&counters.ahead_parts, parts.len() as u64);
        add(&counters.ahead_refused, files.iter().filter(|f| f.is_err()).count() as u64);
        let payload = self.read_ahead(&wanted).await;
        for w in &wanted {
            if let (Ok(file), Some(_)) = (&mut files[w.index], &payload) {
                file.bytes = Some(w.plan.range.len() as u32);
            }
        }
        Ok((Reply::FilesAhead(files), payload.filter(|p| !p.is_empty())))
    }

    /// Opens one file, and plans to read it if its bytes are wanted. In one step.
    ///
    /// Errors: `Again` for what cannot be had without waiting, `FileTooBig` above `bytes_max`, `Stale` if the name is another file's or the
    /// file is not of the kind that travels so; those of looking up and opening.
    fn open_ahead(
        &self,
        dir: Ino,
        part: &ReadPart,
        room: u64,
        bytes_max: u64,
        ask_back: bool,
    ) -> Result<(FileAhead, Option<(ReadPlan, SpanGuard)>)> {
        let (target, ino) = (&self.target, part.ino);
        let keys = vec![NameKey::Entry(dir, part.name.clone()), NameKey::Inode(ino)];
        if !target.absent.borrow().is_empty() || target.settle(keys).now_or_never().is_none() {
            return Err(Errno::Again);
        }
        self.alive()?;
        let view = self.view_ahead(dir, part)?;
        if target.written_elsewhere(self.session, ino) {
            return Err(Errno::Again);
        }
        let object = ObjectId { ino, stripe: 0 };
        let mut read = None;
        if part.data {
            if view.attr.size > bytes_max {
                return Err(Errno::FileTooBig);
            }
            if view.attr.size > room {
                return Err(Errno::Again);
            }
            let all = ByteRange::new(0, view.attr.size);
            let span = self.span(object, all, Hold::Shared).now_or_never().ok_or(Errno::Again)?;
            read = Some((all, span));
        }
        let lock = if part.data { Some(self.lock_ahead(object, view.attr.size, ask_back)?) } else { None };
        let mut tokens = Tokens::default();
        if target.tokens.on() {
            let now_ns = self.worker.now_ns();
            tokens.attributes = target.grant_attributes(now_ns, self.session, &view);
            if tokens.attributes.is_none() {
                // Without, the client could not know how long the permission holds.
                lock.iter().for_each(|(id, _)| target.locks.cancel(now_ns, self.session, &[*id]));
                return Err(Errno::Again);
            }
            tokens.name = target.grant_name(now_ns, self.session, dir, &part.name);
        }
        target.opens.borrow_mut().open(self.session, ino, READ);
        let read = read.map(|(all, span)| (target.data.borrow().plan_read(object, all), span));
        Ok((FileAhead { inode: view, tokens, lock, bytes: None }, read))
    }

    /// What a part shows, after the checks of a look-up and an open.
    fn view_ahead(&self, dir: Ino, part: &ReadPart) -> Result<InodeView> {
        let meta = self.target.meta.borrow();
        if meta.lookup(&self.cred, dir, &part.name)?.child != part.ino || part.ino.target() != self.target.id {
            return Err(Errno::Stale);
        }
        let inode = meta.inode(part.ino)?;
        if inode.kind != Kind::File || inode.spread || inode.nlink == 0 {
            return Err(Errno::Stale);
        }
        if !planted::is(Mistake::UncheckedAhead) {
            meta.check_open(&self.cred, part.ino, Want { read: true, write: false, exec: false })?;
        }
        Ok(plain_view(&meta, part.ino, inode))
    }

    /// A read lock on all of the object, or as much as the file has if locks do not grow.
    fn lock_ahead(&self, object: ObjectId, size: u64, ask_back: bool) -> Result<(u64, ByteRange)> {
        let grows = self.worker.tunables.lock_growth.is_on();
        let range = if grows { ByteRange::ALL } else { ByteRange::new(0, size.max(1)) };
        let (locks, now_ns) = (&self.target.locks, self.worker.now_ns());
        let grant = if ask_back {
            locks.enqueue_or_ask_back(now_ns, self.session, object, Mode::Read, range)?
        } else {
            locks.enqueue_ahead(now_ns, self.session, object, Mode::Read, range)?
        };
        Ok((grant.id.0, grant.range))
    }

    /// The bytes of all plans, one after another; `None` if the disk failed.
    async fn read_ahead(&self, wanted: &[Wanted]) -> Option<Buf> {
        let blocks = |w: &Wanted| w.plan.aligned().len() as usize;
        let buf = Buf::scratch(wanted.iter().map(blocks).sum());
        let (mut pieces, mut at) = (Vec::new(), 0);
        for w in wanted {
            let from_block = w.plan.aligned().start / BLOCK;
            for s in &w.plan.segments {
                let Some(physical) = s.physical else { continue };
                let at = at + ((s.file_block - from_block) * BLOCK) as usize;
                let len = (s.blocks * BLOCK) as usize;
                payload::push(&mut pieces, Piece { at, len, disk: self.target.block_address(physical) });
            }
            at += blocks(w);
        }
        add(&self.worker.counters.data_reads, pieces.len() as u64);
        let (result, mut buf) = payload::read_pieces(&*self.target.disk, buf, &pieces).await;
        if let Err(e) = result {
            self.target.disk_error("read", &e);
            return None;
        }
        // The files one behind the other, without what fills their last blocks.
        let (mut from, mut to) = (0, 0);
        for w in wanted {
            let len = w.plan.range.len() as usize;
            buf.copy_within(from..from + len, to);
            from += blocks(w);
            to += len;
        }
        buf.narrow(0..to);
        add(&self.worker.counters.read_bytes, to as u64);
        Some(buf)
    }
}
