//! `Locks`: the lock server of a target, in the form in which tasks use it.
//!
//! Owns: which task waits for which lock, and which messages have to be sent to clients. Does not own: the rules
//! (`amphi_dlm::LockSpace`), connections, eviction.
//!
//! Invariants: every function that changes the lock space carries out its actions in the same call, so that none is
//! forgotten. When a wait or a lock is dropped, its end is recorded with the time of the drop. If an earlier time were
//! used, a holder that is called back because of the request would be overdue before it gets the callback.

use amphi_dlm::{
    Action, GroupId, Growth, LockCounts, LockId, LockLimits, LockRequest, LockSpace, Mode, Owner, Refusal,
};
use amphi_types::{ByteRange, Errno, Ino, ObjectId, Result, SessionId, TargetId};
use amphi_wire::Push;
use futures_channel::oneshot;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Callbacks and revocations of one target that are sent again at a time.
pub const AGAIN_MAX: usize = 256;

/// A lock as granted.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// The id of the lock.
    pub id: LockId,
    /// The granted range.
    pub range: ByteRange,
}

/// The time, monotonic ns.
type Clock = Box<dyn Fn() -> u64>;

struct Inner {
    target: TargetId,
    space: LockSpace,
    /// The clock for waits and locks that end by being dropped.
    clock: Clock,
    waiting: BTreeMap<LockId, oneshot::Sender<Grant>>,
    /// Requests for group locks that wait without a task.
    group_waiting: BTreeSet<LockId>,
    outbox: Vec<(SessionId, Push)>,
    /// Whether a task waits for the next deadline.
    watched: bool,
    /// Locks that sessions presented after a restart and still hold.
    restored: BTreeSet<(SessionId, LockId)>,
    /// Called-back locks for which sessions reported that they need longer (`LockKept`), with the time of the first
    /// report, monotonic ns.
    kept: BTreeMap<(SessionId, LockId), u64>,
}

impl Inner {
    fn pump(&mut self) {
        while let Some(action) = self.space.poll_action() {
            match action {
                Action::Granted { id, owner, object, .. } if self.group_waiting.remove(&id) => {
                    self.outbox.push((owner.session(), Push::GroupLockNews { object, lock: id.0 }));
                }
                Action::Granted { id, range, .. } => {
                    if let Some(waiter) = self.waiting.remove(&id) {
                        // If the waiter has gone away, the request returns its lock itself.
                        let _ = waiter.send(Grant { id, range });
                    }
                }
                Action::Callback { id, session, object, .. } => {
                    self.outbox.push((session, Push::Callback { target: self.target, object, lock: id.0 }));
                }
            }
        }
    }
}

/// Locks of one target.
#[derive(Clone)]
pub struct Locks {
    inner: Rc<RefCell<Inner>>,
}

/// A lock that the target holds for one direct request. Dropping it releases the lock or withdraws the request.
pub struct DirectLock {
    inner: Rc<RefCell<Inner>>,
    id: LockId,
}

impl Drop for DirectLock {
    fn drop(&mut self) {
        let mut inner = self.inner.borrow_mut();
        inner.waiting.remove(&self.id);
        let now_ns = (inner.clock)();
        inner.space.release(now_ns, self.id);
        inner.pump();
    }
}

fn errno(refusal: Refusal) -> Errno {
    match refusal {
        Refusal::EmptyRange => Errno::Inval,
        Refusal::Full => Errno::NoMem,
        Refusal::WouldBlock => Errno::Again,
        Refusal::Conflict => Errno::Stale,
    }
}

impl Locks {
    /// A table without locks. `generation` is higher at each start of the target, and `clock` shows the same time as
    /// the callers' clock.
    pub fn new(target: TargetId, limits: LockLimits, generation: u16, clock: impl Fn() -> u64 + 'static) -> Locks {
        let space = LockSpace::new(limits, generation);
        Locks {
            inner: Rc::new(RefCell::new(Inner {
                target,
                space,
                clock: Box::new(clock),
                waiting: BTreeMap::new(),
                group_waiting: BTreeSet::new(),
                outbox: Vec::new(),
                watched: false,
                restored: BTreeSet::new(),
                kept: BTreeMap::new(),
            })),
        }
    }

    /// Sets the limits that apply from now on.
    pub fn tune(&self, limits: LockLimits) {
        self.inner.borrow_mut().space.tune(limits);
    }

    /// Counts of all events so far.
    pub fn counts(&self) -> LockCounts {
        self.inner.borrow().space.counts()
    }

    /// Requests a lock that the client will cache, and waits until it is granted. A dropped wait withdraws the request.
    /// `sent` is called right after the request has been entered, to send callbacks.
    ///
    /// Errors: `Inval` for an empty range, `NoMem` when the table is full, `Stale` when the session has ended.
    #[expect(clippy::too_many_arguments, reason = "the fields of the request, a time and what to do next")]
    pub async fn enqueue(
        &self,
        now_ns: u64,
        session: SessionId,
        object: ObjectId,
        mode: Mode,
        range: ByteRange,
        growth: Growth,
        sent: impl FnOnce(),
    ) -> Result<Grant> {
        struct Withdraw<'a>(&'a Locks, SessionId, Option<LockId>);
        impl Drop for Withdraw<'_> {
            fn drop(&mut self) {
                if let Some(id) = self.2 {
                    let now_ns = (self.0.inner.borrow().clock)();
                    self.0.cancel(now_ns, self.1, &[id.0]);
                }
            }
        }
        let request = LockRequest { owner: Owner::Cached(session), object, mode, range, growth };
        let (id, receiver) = self.enter(now_ns, request)?;
        let mut withdraw = Withdraw(self, session, Some(id));
        sent();
        let grant = receiver.await.map_err(|_| Errno::Stale)?;
        withdraw.2 = None;
        Ok(grant)
    }

    /// Lock-ahead: the lock is granted exactly as requested, or refused at once.
    ///
    /// Errors: `Again` if another lock conflicts, otherwise as for `enqueue`.
    pub fn enqueue_ahead(
        &self,
        now_ns: u64,
        session: SessionId,
        object: ObjectId,
        mode: Mode,
        range: ByteRange,
    ) -> Result<Grant> {
        let request = LockRequest { owner: Owner::Cached(session), object, mode, range, growth: Growth::Exact };
        let mut inner = self.inner.borrow_mut();
        let id = inner.space.enqueue_ahead(now_ns, request).map_err(errno)?;
        inner.pump();
        let granted = inner.space.granted_range(id).ok_or(Errno::Stale)?;
        assert!(granted.contains(&range), "lock {id:?} was granted on {granted:?}, requested on {range:?}");
        Ok(Grant { id, range: granted })
    }

    /// Requests the lock of a group, or repeats the request `asked`. Returns the id and whether the lock is granted. If
    /// it is not, `Push::GroupLockNews` follows when it is.
    ///
    /// Errors: `Again` if the request may not wait for another group; `NoMem` if the table is full.
    pub fn group(
        &self,
        now_ns: u64,
        session: SessionId,
        object: ObjectId,
        group: GroupId,
        wait: bool,
        asked: Option<LockId>,
    ) -> Result<(LockId, bool)> {
        let mut inner = self.inner.borrow_mut();
        let known = asked.and_then(|id| inner.space.group_request(session, id, object, group).map(|held| (id, held)));
        if let Some(known) = known {
            return Ok(known);
        }
        if !wait && inner.space.has_other_group(object, group) {
            return Err(Errno::Again);
        }
        let (owner, mode) = (Owner::Group(session, group), Mode::Write);
        let request = LockRequest { owner, object, mode, range: ByteRange::ALL, growth: Growth::Exact };
        let id = inner.space.enqueue(now_ns, request).map_err(errno)?;
        let granted = inner.space.granted_range(id).is_some();
        if !granted {
            let is_new = inner.group_waiting.insert(id);
            assert!(is_new, "two requests for group locks have the number {id:?}");
        }
        inner.pump();
        Ok((id, granted))
    }

    /// Returns whether a request waits for the end of the group that has an object.
    pub fn group_wanted(&self, object: ObjectId) -> bool {
        self.inner.borrow().space.group_wanted(object)
    }

    /// Sessions that hold group locks of an object.
    pub fn members(&self, object: ObjectId) -> Vec<(LockId, SessionId)> {
        self.inner.borrow().space.members(object).collect()
    }

    /// Takes the lock for one direct request, and waits until it is granted.
    ///
    /// Errors: as for `enqueue`.
    pub async fn direct(
        &self,
        now_ns: u64,
        session: SessionId,
        object: ObjectId,
        mode: Mode,
        range: ByteRange,
        sent: impl FnOnce(),
    ) -> Result<DirectLock> {
        self.direct_as(now_ns, Owner::Direct(session), object, mode, range, sent).await
    }

    /// Works as `direct`, for pages that the session has changed under cached locks of its own and now writes back.
    ///
    /// Errors: as for `enqueue`.
    pub async fn bring_back(
        &self,
        now_ns: u64,
        session: SessionId,
        object: ObjectId,
        range: ByteRange,
        sent: impl FnOnce(),
    ) -> Result<DirectLock> {
        self.direct_as(now_ns, Owner::Holder(session), object, Mode::Write, range, sent).await
    }

    async fn direct_as(
        &self,
        now_ns: u64,
        owner: Owner,
        object: ObjectId,
        mode: Mode,
        range: ByteRange,
        sent: impl FnOnce(),
    ) -> Result<DirectLock> {
        let request = LockRequest { owner, object, mode, range, growth: Growth::Exact };
        let (id, receiver) = self.enter(now_ns, request)?;
        let lock = DirectLock { inner: self.inner.clone(), id };
        sent();
        receiver.await.map_err(|_| Errno::Stale)?;
        Ok(lock)
    }

    fn enter(&self, now_ns: u64, request: LockRequest) -> Result<(LockId, oneshot::Receiver<Grant>)> {
        let mut inner = self.inner.borrow_mut();
        let id = inner.space.enqueue(now_ns, request).map_err(errno)?;
        let (sender, receiver) = oneshot::channel();
        let before = inner.waiting.insert(id, sender);
        assert!(before.is_none(), "two requests for locks have the number {id:?}");
        inner.pump();
        Ok((id, receiver))
    }

    /// The client gives locks back.
    pub fn cancel(&self, now_ns: u64, session: SessionId, ids: &[u64]) {
        let ids: Vec<LockId> = ids.iter().map(|&id| LockId(id)).collect();
        let mut inner = self.inner.borrow_mut();
        inner.space.cancel(now_ns, session, &ids);
        let gone = |inner: &Inner, id: &LockId| !inner.space.contains(*id);
        for id in ids {
            if gone(&inner, &id) {
                inner.restored.remove(&(session, id));
                inner.waiting.remove(&id);
                inner.group_waiting.remove(&id);
            }
        }
        inner.pump();
    }

    /// Called when the session has ended: its locks are released, and its waiting requests fail.
    pub fn drop_session(&self, now_ns: u64, session: SessionId) {
        let mut inner = self.inner.borrow_mut();
        inner.kept.retain(|(of, _), _| *of != session);
        inner.restored.retain(|(of, _)| *of != session);
        for id in inner.space.drop_session(now_ns, session).requests {
            inner.waiting.remove(&id);
            inner.group_waiting.remove(&id);
        }
        inner.pump();
    }

    /// Restores the locks that a session held before the restart, in order, up to the first one that conflicts with a
    /// lock of another session, which was lost before, or that the session may not have (`may_lock`). A lock that was
    /// restored before is not restored again.
    ///
    /// A session presents all that it holds. If it presents again because the answer was lost, it may have returned
    /// some of the locks meanwhile, and cannot say so: it never learnt their ids. So what was restored before and is
    /// not presented now is released. A lock that was granted in this run stays, since its grant may be on its way.
    pub fn take_in(
        &self,
        session: SessionId,
        locks: &[(Owner, ObjectId, Mode, ByteRange)],
        may_lock: impl Fn(Owner, ObjectId) -> bool,
    ) -> Vec<u64> {
        let mut inner = self.inner.borrow_mut();
        let mut held: BTreeMap<(Owner, ObjectId, Mode, u64, u64), Vec<LockId>> = BTreeMap::new();
        for (id, owner, object, mode, range) in inner.space.held(session) {
            held.entry((owner, object, mode, range.start, range.end)).or_default().push(id);
        }
        let of_session = (session, LockId(0))..=(session, LockId(u64::MAX));
        let mut before: BTreeSet<LockId> = inner.restored.range(of_session).map(|(_, id)| *id).collect();
        let mut taken = Vec::with_capacity(locks.len());
        for &(owner, object, mode, range) in locks {
            let known = held.get_mut(&(owner, object, mode, range.start, range.end)).and_then(Vec::pop);
            let id = match known {
                Some(id) => id,
                None if !may_lock(owner, object) => break,
                None => match inner.space.take_in(owner, object, mode, range) {
                    Ok(id) => id,
                    Err(_) => break,
                },
            };
            before.remove(&id);
            inner.restored.insert((session, id));
            taken.push(id.0);
        }
        drop(inner);
        if !before.is_empty() {
            let now_ns = (self.inner.borrow().clock)();
            let returned: Vec<u64> = before.into_iter().map(|id| id.0).collect();
            self.cancel(now_ns, session, &returned);
        }
        taken
    }

    /// Objects of a file on which there are locks.
    pub fn objects(&self, ino: Ino) -> Vec<ObjectId> {
        self.inner.borrow().space.locked_objects(ino).collect()
    }

    /// The holder of the highest cached write lock of an object, or of the next one below a lock of that start and id.
    pub fn glimpse(&self, object: ObjectId, below: Option<(u64, LockId)>) -> Option<(LockId, SessionId, ByteRange)> {
        let space = &self.inner.borrow().space;
        match below {
            None => space.glimpse(object),
            Some((start, id)) => space.glimpse_under(object, start, id),
        }
    }

    /// Sends callbacks again that the session has not answered.
    pub fn push_again(&self, session: SessionId) {
        let mut inner = self.inner.borrow_mut();
        let target = inner.target;
        let again = |(id, object): (LockId, ObjectId)| (session, Push::Callback { target, object, lock: id.0 });
        let pushes: Vec<_> = inner.space.called_back(session).map(again).collect();
        inner.outbox.extend(pushes);
    }

    /// Callbacks that were sent at least `quiet_ns` ago, without progress since, are sent again, `AGAIN_MAX` at most.
    /// Returns how many.
    pub fn push_unanswered(&self, now_ns: u64, quiet_ns: u64) -> u64 {
        let inner = &mut *self.inner.borrow_mut();
        let again = inner.space.unanswered(now_ns, quiet_ns).take(AGAIN_MAX);
        let before = inner.outbox.len();
        let target = inner.target;
        inner
            .outbox
            .extend(again.map(|(session, id, object)| (session, Push::Callback { target, object, lock: id.0 })));
        (inner.outbox.len() - before) as u64
    }

    /// Returns whether the session has left a callback without answer and progress for `quiet_ns`.
    pub fn is_unanswered(&self, session: SessionId, now_ns: u64, quiet_ns: u64) -> bool {
        self.inner.borrow().space.unanswered(now_ns, quiet_ns).any(|(of, _, _)| of == session)
    }

    /// Callbacks to send.
    pub fn take_outbox(&self) -> Vec<(SessionId, Push)> {
        std::mem::take(&mut self.inner.borrow_mut().outbox)
    }

    /// Returns whether the object is contended.
    pub fn contended(&self, now_ns: u64, object: ObjectId) -> bool {
        self.inner.borrow().space.contended(now_ns, object)
    }

    /// When the next callback is overdue, monotonic ns. If there is none, the watching task may end.
    pub fn next_deadline(&self) -> Option<u64> {
        let mut inner = self.inner.borrow_mut();
        let next = inner.space.next_deadline();
        inner.watched &= next.is_some();
        next
    }

    /// Returns whether the caller has to watch deadlines from now on. This is true for one caller, until
    /// `next_deadline` reports that there is none.
    pub fn start_watch(&self) -> bool {
        !std::mem::replace(&mut self.inner.borrow_mut().watched, true)
    }

    /// The session writes an object back, so the deadlines of callbacks for locks on that object start anew.
    pub fn progress(&self, now_ns: u64, session: SessionId, object: ObjectId) {
        let mut inner = self.inner.borrow_mut();
        if inner.space.next_deadline().is_none() {
            return;
        }
        let called: Vec<LockId> =
            inner.space.called_back(session).filter(|(_, of)| *of == object).map(|(id, _)| id).collect();
        for id in called {
            inner.space.progress(now_ns, session, id);
        }
    }

    /// The session reports that it runs and cannot return these locks yet. Their deadlines start anew, but for at most
    /// `most_ns` since its first report.
    pub fn kept(&self, now_ns: u64, session: SessionId, ids: &[u64], most_ns: u64) {
        let mut inner = self.inner.borrow_mut();
        let called: Vec<LockId> = inner.space.called_back(session).map(|(id, _)| id).collect();
        let mut kept = std::mem::take(&mut inner.kept);
        kept.retain(|(of, id), _| *of != session || called.contains(id));
        for id in called.into_iter().filter(|id| ids.contains(&id.0)) {
            let since_ns = *kept.entry((session, id)).or_insert(now_ns);
            if now_ns < since_ns + most_ns {
                inner.space.progress(now_ns, session, id);
            }
        }
        inner.kept = kept;
    }

    /// Sessions that did not answer a callback in time. Each session is returned once.
    pub fn overdue(&self, now_ns: u64) -> Vec<SessionId> {
        let mut inner = self.inner.borrow_mut();
        std::iter::from_fn(|| inner.space.poll_overdue(now_ns)).map(|o| o.session).collect()
    }

    /// Number of cached and group locks of a session.
    pub fn count(&self, session: SessionId) -> u64 {
        self.inner.borrow().space.held(session).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::cell::Cell;

    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };

    /// A lock server whose callbacks have a deadline of 100 ns, with a clock that the test sets.
    fn locks() -> (Locks, Rc<Cell<u64>>) {
        let clock = Rc::new(Cell::new(0));
        let told = clock.clone();
        let limits = LockLimits { callback_deadline_ns: 100, ..LockLimits::default() };
        (Locks::new(TargetId(0), limits, 1, move || told.get()), clock)
    }

    /// Goal: a cached lock is called back once for a direct request of another session, which continues when the lock
    /// is returned. A client that does not return it is overdue. A wait that is dropped has no further effect. Method:
    /// single calls for two sessions.
    #[test]
    fn callbacks_and_waits() {
        let (locks, _) = locks();
        let (a, b) = (SessionId(1), SessionId(2));
        let range = ByteRange::new(0, 10);
        let held = locks.enqueue(0, a, OBJECT, Mode::Write, range, Growth::Largest, || {});
        let held = held.now_or_never().expect("free").expect("granted");
        assert_eq!(held.range, ByteRange::ALL);
        let mut waits = Box::pin(locks.direct(1, b, OBJECT, Mode::Read, range, || {}));
        assert!(waits.as_mut().now_or_never().is_none());
        assert_eq!(
            locks.take_outbox(),
            vec![(a, Push::Callback { target: TargetId(0), object: OBJECT, lock: held.id.0 })]
        );
        assert!(locks.start_watch() && !locks.start_watch());
        assert_eq!((locks.next_deadline(), locks.overdue(50)), (Some(101), vec![]));
        assert_eq!(locks.overdue(101), vec![a]);
        assert_eq!(locks.next_deadline(), None);
        assert!(locks.start_watch(), "whoever watched has ended");
        let second = Box::pin(locks.direct(2, b, OBJECT, Mode::Write, range, || {}));
        drop(second);
        locks.drop_session(3, a);
        drop(waits.now_or_never().expect("granted").expect("a lock"));
        assert_eq!(locks.count(a) + locks.count(b), 0);
    }

    /// Goal: if a session returned a lock while the answer to its first presentation was on its way, nobody waits for
    /// that lock; locks that were granted to the session since then stay. Method: two locks are presented; another
    /// session waits for one; a third lock is granted in this run; the session presents its locks again, without the
    /// lock for which the other session waits.
    #[test]
    fn what_is_not_presented_again_is_released() {
        let (locks, _) = locks();
        let (a, b) = (SessionId(1), SessionId(2));
        let range = |n: u64| ByteRange::new(10 * n, 10 * n + 10);
        let presented = |n| (Owner::Cached(a), OBJECT, Mode::Write, range(n));
        let first = locks.take_in(a, &[presented(0), presented(1)], |_, _| true);
        let own = locks.enqueue(0, a, OBJECT, Mode::Write, range(2), Growth::Exact, || {});
        own.now_or_never().expect("free").expect("granted");
        let ask = |n| Box::pin(locks.enqueue(0, b, OBJECT, Mode::Write, range(n), Growth::Exact, || {}));
        let (mut kept, mut returned, mut granted) = (ask(0), ask(1), ask(2));
        for waits in [&mut kept, &mut returned, &mut granted] {
            assert!(waits.as_mut().now_or_never().is_none());
        }
        assert_eq!(locks.take_in(a, &[presented(0)], |_, _| true), first[..1]);
        assert!(returned.now_or_never().is_some(), "it was returned");
        assert!(kept.now_or_never().is_none() && granted.now_or_never().is_none() && locks.count(a) == 2);
    }

    /// Goal: a session that gets a lock after a long wait, and at once gets a callback for it, has the whole deadline
    /// to answer, whatever it waited for. Method: there is a holder. Behind it wait a direct request and a cached one,
    /// or two cached ones of which the first is cancelled with its grant, and then a request that waits for the last of
    /// them. The holder ends long afterwards.
    #[test]
    fn time_to_answer_begins_with_the_grant() {
        let range = ByteRange::new(0, 10);
        let [a, b, c, d] = [1, 2, 3, 4].map(SessionId);
        for withdrawn in [false, true] {
            let (locks, clock) = locks();
            let cached =
                |session| Box::pin(locks.enqueue(0, session, OBJECT, Mode::Write, range, Growth::Exact, || {}));
            cached(a).now_or_never().expect("free").expect("granted");
            let (mut direct, mut first) = (None, None);
            if withdrawn {
                assert!(first.insert(cached(b)).as_mut().now_or_never().is_none());
            } else {
                let waits = Box::pin(locks.direct(0, b, OBJECT, Mode::Write, range, || {}));
                assert!(direct.insert(waits).as_mut().now_or_never().is_none());
            }
            let (mut second, mut third) = (cached(c), cached(d));
            assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
            clock.set(1000);
            locks.drop_session(1000, a);
            if withdrawn {
                drop(first.take());
            } else {
                drop(direct.take().expect("waits").now_or_never().expect("its turn").expect("a lock"));
            }
            second.now_or_never().expect("its turn").expect("granted");
            assert_eq!((locks.overdue(1000), locks.next_deadline()), (vec![], Some(1100)), "withdrawn: {withdrawn}");
        }
    }
}
