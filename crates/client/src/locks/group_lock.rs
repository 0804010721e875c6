//! Group locks: a file belongs to a group of open files, on this mount and other mounts, until all of them leave the
//! group.
//!
//! Owns: which group has a file on this mount, which open files are its members, and acquiring and returning the
//! group's locks on all objects of the file. Does not own: the lock itself (`locks`, `dlm`), the I/O of members
//! (`ops`).
//!
//! Invariants:
//! * While a group has the file, I/O of other open files of this mount waits before it takes the range lock. So a
//!   holder of the range lock never waits for the end of a group of its own mount.
//! * Before the first server gets the request for the group lock, all I/O of this mount on the file has ended, unless
//!   it waits for other mounts. So none of the mount's own requests can be in the queue behind the group's. A call that
//!   waits for extent locks releases the range lock and starts again after the group (`unless_asked`). A request for
//!   which the target takes the lock cannot be withdrawn, and it may wait for this very group, which another mount has.
//!   So after `QUIET_NS` the request is sent nevertheless. Where the group is in force, a server grants the group lock
//!   ahead of all waiting requests, and such a request of this mount then runs under that lock.
//! * The group ends on this mount when four things are true: its last member has left, everything written under it is
//!   on the targets, nothing is cached any more, and the servers have confirmed it. Then other requests continue.
//! * Members coordinate their I/O themselves, because one of them may have cached bytes that another one has changed
//!   since.

use crate::coherence::lease;
use crate::coherence::sharing::{self, Begun};
use crate::conn::pending::Interrupt;
use crate::conn::replies::unexpected;
use crate::inode::Use;
use crate::inode::file_group::{Stage, State, Stranger};
use crate::inode::range_lock::{Guard, Hold};
use crate::inode::{Inode, OpenFile};
use crate::locks::{self, Pin};
use crate::mount::Mount;
use crate::telemetry::stats::Count;
use amphi_dlm::LockId;
use amphi_types::{ByteRange, Cred, Errno, ObjectId, Result, TargetId};
use amphi_wire::{Lane, Reply, Request};
use futures_util::future::{Either, select};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, Waker};

/// How long the mount waits for the end of its own I/O before it sends the request, in nanoseconds.
const QUIET_NS: u64 = 50_000_000;
/// A caller that must not wait for other mounts still waits for this many notifications (at least one a second) until
/// this mount's own I/O on the file has ended.
const PATIENCE_RINGS: u64 = 2;

/// Takes the range lock when a member of this group, or of none (0), may use the file.
///
/// Errors: `Io` if the group lock was lost, with the session or in a restart of a server.
pub(crate) async fn enter(file: &Arc<Inode>, member: u64, range: ByteRange, hold: Hold) -> Result<Guard> {
    loop {
        if !file.group.admits(member) {
            if member != 0 {
                return Err(Errno::Io);
            }
            let _waiting = Stranger::new(&file.group);
            file.signal.until(|| file.group.admits(0)).await;
        }
        let guard = file.range.acquire(range, hold).await;
        if file.group.admits(member) {
            return Ok(guard);
        }
    }
}

/// Waits for extent locks, with the range lock held, for an open file of this group (0: none). Returns `None` if a
/// group of this mount requests the file meanwhile. The caller then releases the range lock and starts again, because
/// it may be waiting for the end of that very group on another mount. The locks are still awaited in the background,
/// and returned.
pub(crate) async fn unless_asked<T: Send + 'static>(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    member: u64,
    locks: impl Future<Output = Result<T>> + Send + 'static,
) -> Option<Result<T>> {
    let mut locks = Box::pin(locks);
    if let Poll::Ready(at_once) = locks.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return Some(at_once);
    }
    let asked = pin!(file.group.asked.until(|| !file.group.admits(member)));
    match select(locks, asked).await {
        Either::Left((result, _)) => Some(result),
        Either::Right(((), locks)) => {
            mount.spawn(async move { drop(locks.await) });
            None
        }
    }
}

/// Takes the range lock as `enter`, and in shared mode the locks for which `pins` waits.
pub(crate) async fn enter_pinned<F>(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    member: u64,
    (range, hold): (ByteRange, Hold),
    pins: impl Fn(Arc<Mount>, Arc<Inode>) -> F,
) -> Result<(Guard, Option<Begun>, Vec<Pin>)>
where
    F: Future<Output = Result<Vec<Pin>>> + Send + 'static,
{
    loop {
        let guard = enter(file, member, range, hold).await?;
        let begun = sharing::begin(mount);
        if begun.is_some() {
            return Ok((guard, begun, Vec::new()));
        }
        if let Some(pins) = unless_asked(mount, file, member, pins(mount.clone(), file.clone())).await {
            return Ok((guard, None, pins?));
        }
    }
}

/// The result of `wait`, unless the caller is interrupted before.
async fn unless<T>(interrupt: &Interrupt, wait: impl Future<Output = T>) -> Result<T> {
    let fired = poll_fn(|cx| {
        interrupt.watch(cx.waker());
        if interrupt.has_fired() { Poll::Ready(()) } else { Poll::Pending }
    });
    match select(pin!(wait), pin!(fired)).await {
        Either::Left((value, _)) => Ok(value),
        Either::Right(_) => Err(Errno::Intr),
    }
}

/// The next step for a group that is requested.
enum Next {
    Take,
    Joined,
    Wait,
}

/// Makes the open file a member of the group. `wait`: whether to wait for other groups.
///
/// Errors: `BadFd` if the file is not open for writing, because a program that may only read a file must not be able to
/// lock all others out; `Inval` for group 0, or if it is a member already; `Again` if another group has the file and
/// `wait` is not set; `Intr`.
pub(crate) async fn lock(
    mount: Arc<Mount>,
    open: Arc<OpenFile>,
    group: u64,
    wait: bool,
    interrupt: Arc<Interrupt>,
) -> Result<()> {
    if group == 0 || open.member() != 0 {
        return Err(Errno::Inval);
    }
    if !open.flags.write {
        return Err(Errno::BadFd);
    }
    mount.stats.count(Count::GroupLock);
    let file = &open.file;
    loop {
        let next = {
            let mut state = file.group.state.lock();
            match state.stage {
                Stage::None => {
                    file.life.uses.fetch_add(1, SeqCst);
                    *state = State { stage: Stage::Taking, _in_use: Some(Use(file.clone())), ..State::default() };
                    file.exported().while_all_changes(|| file.group.id.store(group, SeqCst));
                    Next::Take
                }
                Stage::Held if file.group.id() == group => {
                    assert!(state.members > 0, "{}: group {group} holds the file without members", file.ino);
                    state.members += 1;
                    open.group.store(group, SeqCst);
                    Next::Joined
                }
                _ => Next::Wait,
            }
        };
        match next {
            Next::Joined => return Ok(()),
            Next::Take => break,
            Next::Wait if !wait && file.group.id() != group => return Err(Errno::Again),
            Next::Wait => {
                mount.stats.count(Count::GroupWait);
                let settled = || matches!(file.group.state.lock().stage, Stage::None | Stage::Held);
                let free = || settled() && (file.group.id() == 0 || file.group.id() == group);
                unless(&interrupt, file.signal.until(free)).await?;
            }
        }
    }
    file.group.asked.notify();
    let mut locks = Vec::new();
    let taken = take(&mount, file, group, wait, &interrupt, &mut locks).await;
    let lost = {
        let mut state = file.group.state.lock();
        let lost = file.group.id() != group;
        if taken.is_ok() && !lost {
            assert_eq!(state.stage, Stage::Taking, "{}: group {group} was taken by this call", file.ino);
            state.stage = Stage::Held;
            state.members = 1;
            state.locks = locks;
            open.group.store(group, SeqCst);
            drop(state);
            file.signal.notify();
            return Ok(());
        }
        state.stage = Stage::Leaving;
        lost
    };
    end(&mount, file, &locks).await;
    taken?;
    if lost { Err(Errno::Io) } else { Ok(()) }
}

/// Requests the locks of all objects, in ascending order. The granted locks are in `locks`, also after a failure.
async fn take(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    group: u64,
    wait: bool,
    interrupt: &Interrupt,
    locks: &mut Vec<(TargetId, LockId)>,
) -> Result<()> {
    let quiet = async {
        drop(file.range.acquire(ByteRange::ALL, Hold::Exclusive).await);
        // After this, every write that passed its check before has ended, and so have fills.
        mount.cache.barrier();
        file.signal.until(|| file.fills.under_way.load(SeqCst) == 0).await;
    };
    let mut quiet = pin!(quiet);
    if wait {
        let first = async {
            let late = pin!(mount.life.pauses.pause(QUIET_NS));
            matches!(select(quiet.as_mut(), late).await, Either::Left(_))
        };
        if unless(interrupt, first).await? {
            return ask(mount, file, group, wait, interrupt, locks).await;
        }
        ask(mount, file, group, wait, interrupt, locks).await?;
        // I/O that waited for the group on another mount continues now.
        unless(interrupt, quiet).await
    } else {
        // Some of this I/O may itself wait for another group.
        let rung = mount.coherence.group_news.count.load(SeqCst) + PATIENCE_RINGS;
        let late = mount.coherence.group_news.signal.until(|| mount.coherence.group_news.count.load(SeqCst) >= rung);
        if let Either::Right(_) = select(quiet, pin!(late)).await {
            return Err(Errno::Again);
        }
        ask(mount, file, group, wait, interrupt, locks).await
    }
}

/// Sends the request for the group lock to the servers.
async fn ask(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    group: u64,
    wait: bool,
    interrupt: &Interrupt,
    locks: &mut Vec<(TargetId, LockId)>,
) -> Result<()> {
    lease::touch(mount, file, ByteRange::ALL).await?;
    let layout = file.layout();
    for stripe in 0..layout.stripes() {
        let (object, target) = (ObjectId { ino: file.ino, stripe }, layout.target(file.ino, stripe));
        let mut asked = None;
        loop {
            let news = mount.coherence.group_news.count.load(SeqCst);
            let op = Request::GroupLock { object, group, wait, asked };
            let answer = match mount.send(Lane::Normal, target, &Cred::root(), op, None, 0).await {
                Ok((answer, _)) => answer,
                Err(e) => {
                    // The lock may be granted meanwhile, and would never be called back.
                    asked.into_iter().for_each(|lock| withdraw(mount, target, lock));
                    return Err(e);
                }
            };
            mount.note_contention(file, answer.contended);
            match answer.result? {
                Reply::Locked { lock, .. } => {
                    locks::hold_group(mount, target, object, LockId(lock), group);
                    locks.push((target, LockId(lock)));
                    break;
                }
                Reply::LockWaits { lock } => {
                    if asked.is_none() {
                        mount.stats.count(Count::GroupWait);
                    }
                    asked = Some(lock);
                    let rung = || mount.coherence.group_news.count.load(SeqCst) != news;
                    if let Err(e) = unless(interrupt, mount.coherence.group_news.signal.until(rung)).await {
                        withdraw(mount, target, lock);
                        return Err(e);
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
    }
    Ok(())
}

/// No call waits any more for a lock that is in the queue of its server.
fn withdraw(mount: &Mount, target: TargetId, lock: u64) {
    drop(mount.insist(Lane::Answer, target, Request::LockCancel { locks: vec![lock] }));
}

/// Returns the locks and lets other requests continue.
async fn end(mount: &Arc<Mount>, file: &Arc<Inode>, locks: &[(TargetId, LockId)]) {
    locks::leave_group(mount, locks).await;
    free(mount, file);
}

fn free(mount: &Arc<Mount>, file: &Arc<Inode>) {
    let before = {
        let mut state = file.group.state.lock();
        assert_eq!(state.stage, Stage::Leaving, "{}: a group ends whose locks are not returned", file.ino);
        file.exported().while_all_changes(|| file.group.id.store(0, SeqCst));
        std::mem::take(&mut *state)
    };
    file.signal.notify();
    drop(before);
    mount.files.reap(file);
}

/// A member leaves. If it was the last one, returns the locks to be returned.
fn leave(file: &Inode, group: u64) -> Option<Vec<(TargetId, LockId)>> {
    let mut state = file.group.state.lock();
    if state.stage != Stage::Held || file.group.id() != group {
        return None;
    }
    state.members = state.members.saturating_sub(1);
    if state.members > 0 {
        return None;
    }
    state.stage = Stage::Leaving;
    Some(std::mem::take(&mut state.locks))
}

/// The open file leaves the group. If it was the last member on this mount, returns when everything is written back and
/// other requests may continue.
///
/// Errors: `Inval` if it is not a member; `Io` if the group lock was lost; the first failure of write-back.
pub(crate) async fn unlock(mount: Arc<Mount>, open: Arc<OpenFile>) -> Result<()> {
    let group = open.group.swap(0, SeqCst);
    if group == 0 {
        return Err(Errno::Inval);
    }
    let file = &open.file;
    if !file.group.admits(group) {
        return Err(Errno::Io);
    }
    if let Some(locks) = leave(file, group) {
        end(&mount, file, &locks).await;
    }
    open.tell_failures().await
}

/// Returns whether any request waits for the end of the group of which the open file is a member, on this mount or
/// another one.
///
/// Errors: `Inval` if it is not a member; `Io` if the group lock was lost, or a server does not answer.
pub(crate) async fn wanted(mount: Arc<Mount>, open: Arc<OpenFile>) -> Result<bool> {
    let (group, file) = (open.member(), &open.file);
    if group == 0 {
        return Err(Errno::Inval);
    }
    if !file.group.admits(group) {
        return Err(Errno::Io);
    }
    if file.group.strangers.load(SeqCst) > 0 {
        return Ok(true);
    }
    let layout = file.layout();
    for stripe in 0..layout.stripes() {
        let (object, target) = (ObjectId { ino: file.ino, stripe }, layout.target(file.ino, stripe));
        match mount.call(target, &Cred::root(), Request::GroupWanted { object }).await? {
            Reply::GroupWanted(false) => {}
            Reply::GroupWanted(true) => return Ok(true),
            other => return Err(unexpected(&other)),
        }
    }
    Ok(false)
}

/// Called when a member was closed.
pub(crate) fn closed(mount: &Arc<Mount>, file: &Arc<Inode>, group: u64) {
    if let Some(locks) = leave(file, group) {
        let (mount2, file) = (mount.clone(), file.clone());
        mount.spawn(async move { end(&mount2, &file, &locks).await });
    }
}

/// A server no longer knows locks of the group: calls of its members fail from now on, others continue.
pub(crate) fn lost(mount: &Arc<Mount>, file: &Arc<Inode>) {
    if file.group.id() == 0 {
        return;
    }
    let locks = {
        let mut state = file.group.state.lock();
        if state.stage != Stage::Held {
            // The call that requests the group or leaves it handles this.
            file.exported().while_all_changes(|| file.group.id.store(0, SeqCst));
            return;
        }
        state.stage = Stage::Leaving;
        std::mem::take(&mut state.locks)
    };
    // The locks that other servers still know are returned.
    let (mount2, file2) = (mount.clone(), file.clone());
    file.exported().while_all_changes(|| file.group.id.store(0, SeqCst));
    mount.spawn(async move { end(&mount2, &file2, &locks).await });
}
