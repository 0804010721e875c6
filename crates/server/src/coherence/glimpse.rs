//! Glimpses: requests to the writers of a file for the size and times of bytes that they have not written back yet.
//!
//! Owns: the unanswered glimpses of one target. Does not own: which mounts get a glimpse, and in which order
//! (`objects::glimpse`).
//!
//! Invariants: a question ends with its answer, with the lock it is about or with its session. At most one glimpse for
//! each view of each object is under way.

use amphi_dlm::LockId;
use amphi_types::{ObjectId, SessionId, TargetId, Timespec};
use amphi_wire::Push;
use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The position of the target in the id of a glimpse. The lowest bits are a counter. Above them are 16 bits of the
/// number of the target's start, so that an answer that is sent again after a restart matches no glimpse of the new
/// run.
const TARGET_SHIFT: u32 = 48;
/// The position of the number of the start.
const START_SHIFT: u32 = 32;

/// The target that sent the query with this number.
pub fn target_of(id: u64) -> TargetId {
    TargetId((id >> TARGET_SHIFT) as u16)
}

struct Asked {
    session: SessionId,
    object: ObjectId,
    lock: LockId,
    asked_ns: u64,
    answer: oneshot::Sender<(u64, Timespec)>,
}

/// Questions of one target that wait for an answer.
#[derive(Clone)]
pub struct Glimpses {
    asked: Rc<RefCell<BTreeMap<u64, Asked>>>,
    /// The bits that are common to the ids of all queries of this run.
    common: u64,
    last: Rc<Cell<u32>>,
}

/// A glimpse that waits for its answer; dropping it withdraws it.
pub struct Open<'a>(&'a Glimpses, u64);

impl<'a> Open<'a> {
    /// The question under this number.
    pub fn new(glimpses: &'a Glimpses, id: u64) -> Open<'a> {
        Open(glimpses, id)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let asked = self.0.asked.borrow_mut().remove(&self.1);
        drop(asked);
    }
}

impl Glimpses {
    /// Questions of `target`, which has been started this many times.
    pub fn new(target: TargetId, starts: u16) -> Glimpses {
        let common = (u64::from(target.0) << TARGET_SHIFT) | (u64::from(starts) << START_SHIFT);
        Glimpses { asked: Rc::default(), common, last: Rc::default() }
    }

    /// Enters a glimpse to the holder of a lock. Returns its number, and the place where the answer arrives.
    pub fn ask(
        &self,
        asked_ns: u64,
        session: SessionId,
        object: ObjectId,
        lock: LockId,
    ) -> (u64, oneshot::Receiver<(u64, Timespec)>) {
        self.last.set(self.last.get().wrapping_add(1));
        let id = self.common | u64::from(self.last.get());
        let (answer, receiver) = oneshot::channel();
        let before = self.asked.borrow_mut().insert(id, Asked { session, object, lock, asked_ns, answer });
        assert!(before.is_none(), "two open glimpses have the number {id:#x}");
        (id, receiver)
    }

    /// The session answers a glimpse.
    pub fn answer(&self, session: SessionId, id: u64, size: u64, mtime: Timespec) {
        let mut asked = self.asked.borrow_mut();
        if asked.get(&id).is_some_and(|a| a.session == session)
            && let Some(a) = asked.remove(&id)
        {
            // The request that waits for the answer may have ended.
            let _ = a.answer.send((size, mtime));
        }
    }

    fn end(&self, ended: impl Fn(&Asked) -> bool) {
        let mut gone = Vec::new();
        self.asked.borrow_mut().retain(|_, a| {
            if !ended(a) {
                return true;
            }
            gone.push(std::mem::replace(&mut a.answer, oneshot::channel().0));
            false
        });
        drop(gone);
    }

    /// Called when the session has ended.
    pub fn end_session(&self, session: SessionId) {
        self.end(|a| a.session == session);
    }

    /// Called when the session has returned locks. The objects contain everything that it knew.
    pub fn end_locks(&self, session: SessionId, locks: &[u64]) {
        if !self.asked.borrow().is_empty() {
            self.end(|a| a.session == session && locks.contains(&a.lock.0));
        }
    }

    /// Returns whether the session has not answered a question for `quiet_ns`.
    pub fn is_unanswered(&self, session: SessionId, now_ns: u64, quiet_ns: u64) -> bool {
        let asked = self.asked.borrow();
        asked.values().any(|a| a.session == session && now_ns.saturating_sub(a.asked_ns) >= quiet_ns)
    }

    /// Questions that the session has not answered.
    pub fn unanswered(&self, session: SessionId) -> Vec<Push> {
        let asked = self.asked.borrow();
        let of_session = asked.iter().filter(|(_, a)| a.session == session);
        of_session.map(|(id, a)| Push::Glimpse { id: *id, object: a.object }).collect()
    }
}
