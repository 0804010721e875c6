//! `Cx`: one request while it is executed: who asked what of which target.
//!
//! Owns: putting the answer's slot record into the transaction of the operation. Does not own: the operation.

use crate::records;
use crate::slots::SlotRecord;
use crate::target::Target;
use crate::worker::Worker;
use amphi_env::Env;
use amphi_types::item::Txn;
use amphi_types::{Cred, Ino, Result, SessionId, Timespec};
use amphi_wire::{Access, Answer, Reply, RequestId};
use amphi_zone::{Lsn, Order};
use std::rc::Rc;

/// Bytes that a slot record adds to a transaction, at most: the answer of a mutation is an inode at most.
pub const SLOT_BYTES: u64 = 512;

/// A request while it is executed.
pub struct Cx<E: Env> {
    /// The worker that executes it.
    pub worker: Rc<Worker<E>>,
    /// The target that executes it.
    pub target: Rc<Target<E>>,
    /// Who asked.
    pub session: SessionId,
    /// Identity of the request.
    pub id: RequestId,
    /// On whose behalf.
    pub cred: Cred,
    /// Wall-clock time of its start: the time stamp of what it changes.
    pub now: Timespec,
}

impl<E: Env> Cx<E> {
    /// Adds to `txn` the record that the request was answered with `reply`, having opened `open`. Nothing is added
    /// when the session has ended meanwhile: nobody will ask again.
    pub fn seal(&self, txn: &mut Txn, reply: &Reply, open: Option<(Ino, Access)>) {
        if !self.target.has_session(self.session) {
            return;
        }
        let answer = Answer { result: Ok(reply.clone()), contended: false };
        let record = SlotRecord { seq: self.id.seq, answer, open };
        txn.put(records::slot_key(self.session, self.id.slot), records::encode(&record));
        self.target.slots.borrow_mut().log(self.session, self.id);
    }

    /// Seals and appends `txn`. Called in the same step in which the stores were changed, so that the order of the
    /// log is the order of the changes.
    pub fn append(&self, mut txn: Txn, order: Order, reply: &Reply, open: Option<(Ino, Access)>) -> Lsn {
        self.seal(&mut txn, reply, open);
        self.target.append(txn, order)
    }

    /// Appends, then waits until the record is written.
    pub async fn commit(&self, txn: Txn, order: Order, reply: Reply) -> Result<Reply> {
        let lsn = self.append(txn, order, &reply, None);
        self.target.zone.written(lsn).await?;
        Ok(reply)
    }

    /// Waits for room in the log for an operation that adds about `growth` bytes of items.
    pub async fn reserve(&self, growth: u64) -> Result<()> {
        self.target.zone.reserve(growth + SLOT_BYTES).await
    }
}
