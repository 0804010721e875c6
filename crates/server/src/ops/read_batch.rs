//! Small files of a directory, opened and read ahead of their reader, many in one message.
//!
//! Owns: what can be had without waiting, and the order in which a file is checked, locked, opened and read. Does not
//! own: how the client uses it.
//!
//! Invariants: a part waits for disks. It also waits for a lock of a mount that does not have the file open for
//! writing, but at most 20 ms in all, and only if the client requests that, because a mount that makes files keeps
//! their locks for long. It never waits for a change of names or attributes, for a writer or for a restart. A part that
//! would have to wait longer is answered with `Again` and has no effect: no open, no lock, no token. Everything in a
//! part is read, checked for permission and granted in one step, under the lock on its bytes. So it is valid from that
//! moment on as long as the lock is held. Spans are taken only if they are free, so their order does not matter. There
//! is no deadlock, since the only wait for others is bounded.

use crate::counters::add;
use crate::planted::{self, Mistake};
use crate::tunables::Tunable;
use crate::worker::request::RequestCx;
use crate::zone_target::NameKey;
use crate::zone_target::gate::Hold;
use crate::zone_target::span_gate::SpanGuard;
use amphi_data::ReadPlan;
use amphi_dlm::{Growth, Mode};
use amphi_env::{Buf, Env};
use amphi_meta::perm::Want;
use amphi_object::Piece;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, Errno, Ino, Kind, ObjectId, Result};
use amphi_wire::{Access, BATCH_BYTES_MAX, BATCH_PARTS_MAX, FileAhead, InodeView, ReadPart, Reply, Tokens};
use futures_util::FutureExt;
use futures_util::future::{join_all, select};
use std::cell::RefCell;
use std::time::Duration;

/// How the files of a batch are opened.
const READ: Access = Access { read: true, write: false };

/// How long the server waits for locks that were called back: some round trips to a mount that has nothing to write
/// back.
const ASK_BACK_WAIT: Duration = Duration::from_millis(20);

/// The reason why a part is refused.
enum Refused {
    /// The only obstacle is a lock of another mount.
    Locked,
    For(Errno),
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Refused {
        Refused::For(errno)
    }
}

/// A part whose bytes are to be read.
struct Wanted {
    index: usize,
    object: ObjectId,
    plan: ReadPlan,
    _span: SpanGuard,
}

/// A lock that was granted on an object of the batch.
type Granted = (u64, ByteRange);

/// How a part gets its lock.
enum Lock {
    /// A new lock, if no other lock conflicts.
    Free,
    /// The lock is held already.
    Held(Granted),
}

/// The contents of the request.
struct Asked {
    dir: Ino,
    bytes_max: u64,
    tokens: bool,
}

/// The parts of the answer that have been collected.
#[derive(Default)]
struct Found {
    files: Vec<Result<FileAhead>>,
    wanted: Vec<Wanted>,
    bytes: u64,
    /// Parts that could be read but for a lock of another mount.
    blocked: Vec<usize>,
}

impl<E: Env> RequestCx<E> {
    /// `Request::ReadBatch`.
    pub async fn read_batch(
        &self,
        dir: Ino,
        parts: &[ReadPart],
        bytes_max: u32,
        ask_back: bool,
        tokens: bool,
    ) -> Result<(Reply, Option<Buf>)> {
        if parts.is_empty() || parts.len() > BATCH_PARTS_MAX {
            return Err(Errno::Inval);
        }
        self.check_read(dir)?;
        let counters = &self.worker.counters;
        let asked = Asked { dir, bytes_max: u64::from(bytes_max).min(BATCH_BYTES_MAX as u64), tokens };
        let mut found = Found { files: vec![Err(Errno::Again); parts.len()], ..Found::default() };
        for (index, part) in parts.iter().enumerate() {
            self.add_part(&asked, index, part, Lock::Free, &mut found);
        }
        if ask_back && !found.blocked.is_empty() {
            let blocked = std::mem::take(&mut found.blocked);
            let grants = self.ask_back(parts, &blocked).await;
            for (index, grant) in blocked.into_iter().zip(grants) {
                let Some(grant) = grant else { continue };
                self.add_part(&asked, index, &parts[index], Lock::Held(grant), &mut found);
                if found.files[index].is_err() {
                    self.target.coherence.locks.cancel(self.worker.now_ns(), self.session, &[grant.0]);
                }
            }
            found.wanted.sort_by_key(|w| w.index);
        }
        self.worker.send_callbacks(&self.target);
        self.worker.send_revocations(&self.target);
        add(&counters.ahead_parts, parts.len() as u64);
        add(&counters.ahead_refused, found.files.iter().filter(|f| f.is_err()).count() as u64);
        let payload = self.read_ahead(&found.wanted).await;
        for w in found.wanted.iter().filter(|_| payload.is_some()) {
            if let Ok(file) = &mut found.files[w.index] {
                file.bytes = Some(w.plan.range.len() as u32);
            }
        }
        Ok((Reply::FilesAhead(found.files), payload.filter(|p| !p.is_empty())))
    }

    fn add_part(&self, asked: &Asked, index: usize, part: &ReadPart, lock: Lock, found: &mut Found) {
        assert!(found.bytes <= BATCH_BYTES_MAX as u64, "{} bytes in an answer to a batch", found.bytes);
        let room = BATCH_BYTES_MAX as u64 - found.bytes;
        let opened = match self.check_read(part.ino) {
            Ok(()) => self.open_ahead(asked, part, room, lock),
            Err(unread) => Err(unread.into()),
        };
        found.files[index] = match opened {
            Ok((file, read)) => {
                if let Some((plan, span)) = read {
                    found.bytes += plan.range.len();
                    let object = ObjectId { ino: part.ino, stripe: 0 };
                    found.wanted.push(Wanted { index, object, plan, _span: span });
                }
                Ok(file)
            }
            Err(Refused::Locked) => {
                found.blocked.push(index);
                Err(Errno::Again)
            }
            Err(Refused::For(errno)) => Err(errno),
        };
    }

    /// Calls back the locks that conflict with these parts, and waits a short time for them. After that time it does
    /// not wait for the remaining locks.
    async fn ask_back(&self, parts: &[ReadPart], blocked: &[usize]) -> Vec<Option<Granted>> {
        let grants = RefCell::new(vec![None; blocked.len()]);
        let waits = join_all(blocked.iter().enumerate().map(|(at, &index)| {
            let (object, grants) = (ObjectId { ino: parts[index].ino, stripe: 0 }, &grants);
            let size = self.target.meta.borrow().inode(object.ino).map_or(0, |i| i.size);
            let (range, now_ns) = (self.range_ahead(size), self.worker.now_ns());
            async move {
                let asked = self.target.coherence.locks.enqueue(
                    now_ns,
                    self.session,
                    object,
                    Mode::Read,
                    range,
                    Growth::Exact,
                    || self.worker.send_callbacks(&self.target),
                );
                if let Ok(grant) = asked.await {
                    grants.borrow_mut()[at] = Some((grant.id.0, grant.range));
                }
            }
        }));
        drop(select(Box::pin(waits), Box::pin(self.worker.env.sleep(ASK_BACK_WAIT))).await);
        grants.into_inner()
    }

    /// The range of a file to lock: the whole object, or, if locks do not grow, the length of the file.
    fn range_ahead(&self, size: u64) -> ByteRange {
        if self.worker.tunables.on(Tunable::LockGrowth) { ByteRange::ALL } else { ByteRange::new(0, size.max(1)) }
    }

    /// Opens one file, and plans to read it if its bytes are wanted. Both are done in one step.
    ///
    /// Errors: `Again` if the file cannot be opened without waiting; `FileTooBig` above the bound; `Stale` if the name
    /// leads to another inode, or if the file is not of the kind that can be fetched in this way; errors of looking up
    /// and opening.
    fn open_ahead(
        &self,
        asked: &Asked,
        part: &ReadPart,
        room: u64,
        lock: Lock,
    ) -> std::result::Result<(FileAhead, Option<(ReadPlan, SpanGuard)>), Refused> {
        let (target, ino) = (&self.target, part.ino);
        let keys = vec![NameKey::Entry(asked.dir, part.name.clone()), NameKey::Inode(ino)];
        if !target.reclaim.is_over() || target.settle(keys).now_or_never().is_none() {
            return Err(Refused::For(Errno::Again));
        }
        self.alive()?;
        let view = self.view_ahead(asked.dir, part)?;
        if target.written_elsewhere(self.session, ino) {
            return Err(Refused::For(Errno::Again));
        }
        let (object, size) = (ObjectId { ino, stripe: 0 }, view.attr.size);
        let (mut read, mut locked) = (None, None);
        let now_ns = self.worker.now_ns();
        if part.data {
            if size > asked.bytes_max {
                return Err(Refused::For(Errno::FileTooBig));
            }
            if size > room {
                return Err(Refused::For(Errno::Again));
            }
            let all = ByteRange::new(0, size);
            let span = self.span(object, all, Hold::Shared).now_or_never().ok_or(Refused::For(Errno::Again))?;
            let range = self.range_ahead(size);
            locked = match lock {
                // The file has grown meanwhile, and the lock does not cover the new bytes.
                Lock::Held((_, held)) if !held.contains(&all) => return Err(Refused::For(Errno::Again)),
                Lock::Held(grant) => Some(grant),
                Lock::Free => {
                    match target.coherence.locks.enqueue_ahead(now_ns, self.session, object, Mode::Read, range) {
                        Ok(grant) => Some((grant.id.0, grant.range)),
                        Err(Errno::Again) => return Err(Refused::Locked),
                        Err(e) => return Err(Refused::For(e)),
                    }
                }
            };
            read = Some((all, span));
        }
        let mut tokens = Tokens::default();
        if target.coherence.tokens.on() && asked.tokens {
            tokens.attributes = target.grant_attributes(now_ns, self.session, &view);
            if tokens.attributes.is_none() {
                // Without the token the client could not know how long the permission is valid.
                locked.iter().for_each(|(id, _)| target.coherence.locks.cancel(now_ns, self.session, &[*id]));
                return Err(Refused::For(Errno::Again));
            }
            tokens.name = target.grant_name(now_ns, self.session, asked.dir, &part.name);
        }
        target.files.open.borrow_mut().open(self.session, ino, READ);
        let read = read.map(|(all, span)| (target.data.borrow().plan_read(object, all), span));
        Ok((FileAhead { inode: view, tokens, lock: locked, bytes: None }, read))
    }

    /// The view for a part, after the checks of a look-up and an open.
    fn view_ahead(&self, dir: Ino, part: &ReadPart) -> Result<InodeView> {
        let meta = self.target.meta.borrow();
        if meta.lookup(&self.cred, dir, &part.name)?.child != part.ino || part.ino.target() != self.target.id {
            return Err(Errno::Stale);
        }
        let inode = meta.inode(part.ino)?;
        if inode.kind != Kind::File || inode.objects.spread || inode.nlink == 0 {
            return Err(Errno::Stale);
        }
        if !planted::is(Mistake::UncheckedAhead) {
            meta.check_open(&self.cred, part.ino, Want { read: true, write: false, exec: false })?;
        }
        Ok(self.target.view_of(&meta, part.ino, &inode))
    }

    /// The bytes of all plans, one after another, or `None` if the disk failed.
    async fn read_ahead(&self, wanted: &[Wanted]) -> Option<Buf> {
        let blocks = |w: &Wanted| w.plan.aligned().len() as usize;
        let buf = Buf::scratch(wanted.iter().map(blocks).sum());
        let (mut pieces, mut at) = (Vec::new(), 0);
        let mut expected = Vec::with_capacity(wanted.len());
        let (mut kept, mut fetches) = (Vec::new(), Vec::new());
        for w in wanted {
            let from_block = w.plan.aligned().start / BLOCK;
            match self.kept_or_fetched(&w.plan, at) {
                Ok(bytes) => {
                    kept.push((at, bytes));
                    expected.push(Vec::new());
                    at += blocks(w);
                    continue;
                }
                Err(keeping) => fetches.extend(keeping),
            }
            expected.push(self.target.expect(&w.plan.segments, from_block, 0));
            for s in &w.plan.segments {
                let Some(physical) = s.physical else { continue };
                let at = at + ((s.file_block - from_block) * BLOCK) as usize;
                let len = (s.blocks * BLOCK) as usize;
                amphi_object::push(&mut pieces, Piece { at, len, disk: self.target.block_address(physical) });
            }
            at += blocks(w);
        }
        add(&self.worker.counters.data_reads, pieces.len() as u64);
        let sizes = &self.worker.counters.histograms.read;
        sizes.note(buf.len() as u64, pieces.iter().map(|p| p.len));
        let since_ns = self.worker.now_ns();
        let (result, mut buf) = self.target.storage.disk.read_pieces(buf, &pieces).await;
        sizes.disk_us.note(self.worker.now_ns().saturating_sub(since_ns) / 1000);
        if let Err(e) = result {
            self.target.disk_error("read", &e);
            return None;
        }
        assert_eq!(buf.len(), at, "the disk has filled another buffer than that of the batch");
        for (at, bytes) in kept {
            buf[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let mut at = 0;
        for (w, expected) in wanted.iter().zip(&expected) {
            self.target.verify(w.object, expected, &mut buf[at..at + blocks(w)]).await.ok()?;
            at += blocks(w);
        }
        fetches.into_iter().for_each(|fetch| self.keep(fetch, &buf));
        at = 0;
        for w in wanted {
            self.target.overlay(&w.plan, &mut buf[at..at + blocks(w)]).ok()?;
            at += blocks(w);
        }
        // The bytes of the files, one behind the other, without the bytes that fill their last blocks.
        let (mut from, mut to) = (0, 0);
        for w in wanted {
            let len = w.plan.range.len() as usize;
            buf.copy_within(from..from + len, to);
            from += blocks(w);
            to += len;
        }
        assert!(to <= from && from == buf.len(), "{to} bytes of {from} in a buffer of {}", buf.len());
        buf.narrow(0..to);
        add(&self.worker.counters.read_bytes, to as u64);
        Some(buf)
    }
}
