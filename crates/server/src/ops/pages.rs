//! Requests about pages that a mount could not drop before it returned its locks.
//!
//! Owns: how they are read anew and written back. Does not own: the record of changes below pages (`left_pages`).

use super::data::{WriteKind, write_growth};
use crate::coherence::locks::DirectLock;
use crate::session::rights::Touch;
use crate::worker::request::RequestCx;
use crate::zone_target::Target;
use amphi_env::{Buf, Env};
use amphi_types::limits::FILE_MAX;
use amphi_types::{ByteRange, Errno, Ino, ObjectId, Result, SessionId};
use amphi_wire::{ReadAdvice, Reply};
use std::rc::Rc;

/// A change of bytes that is under way. It is noted when it begins and again when it ends, because pages may be read in
/// between.
pub(super) struct Changed<E: Env> {
    target: Rc<Target<E>>,
    ino: Ino,
    by: SessionId,
    range: ByteRange,
}

impl<E: Env> Changed<E> {
    fn note(&self) {
        self.target.coherence.left_pages.borrow_mut().changed(self.ino, self.by, self.range);
    }
}

impl<E: Env> Drop for Changed<E> {
    fn drop(&mut self) {
        self.note();
    }
}

impl<E: Env> RequestCx<E> {
    /// Bytes of a file are about to change, until what is returned is dropped.
    pub(super) fn overwriting(&self, ino: Ino, range: ByteRange) -> Changed<E> {
        let changed = Changed { target: self.target.clone(), ino, by: self.session, range };
        changed.note();
        changed
    }

    /// `Request::PagesLeft`.
    pub fn pages_left(&self, ino: Ino) -> Result<Reply> {
        self.alive()?;
        let left = self.target.coherence.left_pages.borrow_mut().begin(ino, self.session)?;
        Ok(Reply::PagesLeft(left))
    }

    /// `Request::PagesTaken`.
    pub fn pages_taken(&self, ino: Ino, left: u64) -> Result<Reply> {
        self.target.coherence.left_pages.borrow_mut().end(ino, self.session, left);
        Ok(Reply::Done)
    }

    /// `Request::PagesRead`.
    pub async fn pages_read(&self, object: ObjectId, range: ByteRange, left: u64) -> Result<(Reply, Option<Buf>)> {
        self.target.coherence.left_pages.borrow_mut().renewed(object.ino, self.session, left, range);
        self.read(object, range, false, ReadAdvice::Normal).await
    }

    /// Takes a lock for bytes that the session has changed under its own cached locks. It is granted ahead of requests
    /// that wait for one of these locks, and all other holders of these bytes are called back.
    async fn bring_back(&self, object: ObjectId, range: ByteRange) -> Result<DirectLock> {
        self.target.recovered().await;
        self.alive()?;
        let sent = || self.worker.send_callbacks(&self.target);
        self.target.coherence.locks.bring_back(self.worker.now_ns(), self.session, object, range, sent).await
    }

    /// `Request::PagesWrite`.
    pub(super) async fn pages_write(
        &self,
        object: ObjectId,
        offset: u64,
        generation: u64,
        left: u64,
        kind: WriteKind,
        payload: Option<Buf>,
    ) -> Result<Reply> {
        self.check_object(object, Touch::Change).await?;
        let mut payload = payload.filter(|p| !p.is_empty()).ok_or(Errno::Inval)?;
        let range = ByteRange::at(offset, payload.len() as u64);
        if range.end > FILE_MAX {
            return Err(Errno::FileTooBig);
        }
        let _lock = self.bring_back(object, range).await?;
        self.reserve(write_growth(range.len())).await?;
        let _changing = self.change_unopened(object).await;
        // While the lock is held no other session changes these pages.
        let parts = self.target.coherence.left_pages.borrow().unchanged(object.ino, self.session, left, range)?;
        let kind = WriteKind { server_lock: true, kill_suidgid: self.is_for_a_user(), ..kind };
        let mut at = range.start;
        let mut reply = Reply::Written { roomy: self.is_roomy() };
        for (n, part) in parts.iter().enumerate() {
            drop(payload.split_to((part.start - at) as usize));
            let bytes = payload.split_to(part.len() as usize);
            at = part.end;
            let _changed = self.overwriting(object.ino, *part);
            let last = n + 1 == parts.len();
            reply = self.write_steps(object, *part, generation, kind, bytes, last).await?;
        }
        Ok(reply)
    }
}
