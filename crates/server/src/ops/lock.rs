//! Locks that clients keep.

use crate::session::rights::Touch;
use crate::worker::request::RequestCx;
use amphi_dlm::{GroupId, Growth, LockId, Mode};
use amphi_env::Env;
use amphi_types::{ByteRange, ObjectId, Result};
use amphi_wire::{LockExtent, LockMode, Reply};

/// For how many deadlines a client may keep a called-back lock, if it reports that it lives and has to wait.
const KEPT_DEADLINES: u64 = 10;

impl<E: Env> RequestCx<E> {
    /// `Request::LockEnqueue`.
    pub async fn lock_enqueue(
        &self,
        object: ObjectId,
        mode: LockMode,
        range: ByteRange,
        extent: LockExtent,
    ) -> Result<Reply> {
        let mode = match mode {
            LockMode::Read => Mode::Read,
            LockMode::Write => Mode::Write,
        };
        self.target.recovered().await;
        self.alive()?;
        let sent = || self.worker.send_callbacks(&self.target);
        let (locks, now_ns) = (&self.target.coherence.locks, self.worker.now_ns());
        let grant = match extent {
            LockExtent::Ahead => locks.enqueue_ahead(now_ns, self.session, object, mode, range)?,
            LockExtent::Grown => {
                locks.enqueue(now_ns, self.session, object, mode, range, Growth::Largest, sent).await?
            }
            LockExtent::Exact => locks.enqueue(now_ns, self.session, object, mode, range, Growth::Exact, sent).await?,
        };
        Ok(Reply::Locked { lock: grant.id.0, range: grant.range })
    }

    /// `Request::GroupLock`. It is never called back, so only a session that may write the file gets it.
    pub async fn group_lock(&self, object: ObjectId, group: u64, wait: bool, asked: Option<u64>) -> Result<Reply> {
        self.check_object(object, Touch::Lock).await?;
        self.target.recovered().await;
        self.alive()?;
        let now_ns = self.worker.now_ns();
        let (group, asked) = (GroupId(group), asked.map(LockId));
        let (lock, granted) = self.target.coherence.locks.group(now_ns, self.session, object, group, wait, asked)?;
        self.worker.send_callbacks(&self.target);
        Ok(match granted {
            true => Reply::Locked { lock: lock.0, range: ByteRange::ALL },
            false => Reply::LockWaits { lock: lock.0 },
        })
    }

    /// `Request::GroupWanted`.
    pub fn group_wanted(&self, object: ObjectId) -> Result<Reply> {
        self.alive()?;
        Ok(Reply::GroupWanted(self.target.coherence.locks.group_wanted(object)))
    }

    /// `Request::LockCancel`.
    pub fn lock_cancel(&self, locks: &[u64]) -> Result<Reply> {
        self.target.coherence.locks.cancel(self.worker.now_ns(), self.session, locks);
        self.worker.send_callbacks(&self.target);
        self.target.coherence.glimpses.end_locks(self.session, locks);
        Ok(Reply::Done)
    }

    /// `Request::LockKept`.
    pub fn lock_kept(&self, locks: &[u64]) -> Result<Reply> {
        let most_ns = KEPT_DEADLINES * self.worker.tunables.callback_deadline_ns();
        self.target.coherence.locks.kept(self.worker.now_ns(), self.session, locks, most_ns);
        Ok(Reply::Done)
    }

    /// `Request::Revoked`.
    pub fn revoked(&self, ids: &[u64]) -> Result<Reply> {
        self.target.coherence.tokens.revoked(self.session, ids);
        Ok(Reply::Done)
    }
}
