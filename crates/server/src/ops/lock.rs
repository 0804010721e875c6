//! Locks that clients keep.

use crate::cx::Cx;
use amphi_dlm::{Growth, Mode};
use amphi_env::Env;
use amphi_types::{ByteRange, ObjectId, Result};
use amphi_wire::{LockMode, Reply};

/// How many deadlines a client may keep a lock that it was asked for, if it says that it lives and has to wait.
const KEPT_DEADLINES: u64 = 10;

impl<E: Env> Cx<E> {
    /// `Request::LockEnqueue`.
    pub async fn lock_enqueue(
        &self,
        object: ObjectId,
        mode: LockMode,
        range: ByteRange,
        expand: bool,
    ) -> Result<Reply> {
        let mode = match mode {
            LockMode::Read => Mode::Read,
            LockMode::Write => Mode::Write,
        };
        let growth = if expand { Growth::Largest } else { Growth::Exact };
        self.target.recovered().await;
        self.alive()?;
        let sent = || self.worker.send_callbacks(&self.target);
        let now_ns = self.worker.now_ns();
        let grant = self.target.locks.enqueue(now_ns, self.session, object, mode, range, growth, sent).await?;
        Ok(Reply::Locked { lock: grant.id.0, range: grant.range })
    }

    /// `Request::LockCancel`.
    pub fn lock_cancel(&self, locks: &[u64]) -> Result<Reply> {
        self.target.locks.cancel(self.worker.now_ns(), self.session, locks);
        self.worker.send_callbacks(&self.target);
        self.target.glimpses.end_locks(self.session, locks);
        Ok(Reply::Done)
    }

    /// `Request::LockKept`.
    pub fn lock_kept(&self, locks: &[u64]) -> Result<Reply> {
        let most_ns = KEPT_DEADLINES * self.worker.tunables.callback_deadline_ns();
        self.target.locks.kept(self.worker.now_ns(), self.session, locks, most_ns);
        Ok(Reply::Done)
    }

    /// `Request::Revoked`.
    pub fn revoked(&self, ids: &[u64]) -> Result<Reply> {
        self.target.tokens.revoked(self.session, ids);
        Ok(Reply::Done)
    }
}
