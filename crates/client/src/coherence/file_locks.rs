//! File locks of applications (`flock`, `fcntl`), which the server of the file's inode keeps.
//!
//! Owns: requesting and releasing locks, presenting them to a restarted server; requests that wait, and their
//! interruption. Does not own: the table of held locks (`tables::coherence::file_locks`), the rules (`dlm::FileLocks`,
//! on the server), what an owner is (front ends).
//!
//! Invariants:
//!
//! * One request at a time is under way for an owner and a file (`Turn`), so the table changes in the order of the
//!   server. A waiting request does not count as under way: the server has answered that it has to wait, and the client
//!   sends it again after the server has pushed `FileLockNews` for it.
//! * The client's table of locks never contains a lock that the server's table does not. A lock leaves the table before
//!   its release is sent, and enters it with the answer. So a lock that the server may have granted to another owner is
//!   not presented after a restart. There is one exception: a waiting request may convert a part of a held lock to
//!   shared. Until the client learns of the grant, that part counts as exclusive. If a request without an answer may
//!   have converted a lock, the lock is presented as shared, and as converted: the server makes it exclusive again if
//!   no other mount presents a conflicting lock, since the request may have been refused.
//! * If the caller of a lock has gone without confirming it, the lock is released ([`TakenLock`]) before anything else
//!   is requested for its owner, because a later request may concern the same bytes. So a taken lock keeps its turn
//!   until it is kept or released. If a caller is interrupted while there is no connection, its turn, or its place in
//!   the queue for a turn, remains.
//!
//! The number that drove the design: 65,536 requests may wait, each for hours, and a session has a few dozen slots.

use crate::conn::pending::Interrupt;
use crate::conn::replies::unexpected;
use crate::mount::Mount;
use crate::tables::coherence::file_locks::{Key, Number, Pieces, Turn};
use amphi_env::Env;
use amphi_transport::Recovery;
use amphi_types::{ByteRange, Cred, Errno, Ino, Result, TargetId};
use amphi_wire::{Call, FileLockFamily, FileLockOwner, FileLockSpec, Lane, LockMode, Reply, Request};
use futures_channel::oneshot;
use futures_util::future::{Either, select};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Poll;

/// Most locks in one message to a restarted server, of at most 50 bytes each and as many converted ones, so that the
/// message stays below the bound of a body.
const REPRESENTED_AT_ONCE: usize = 4096;
/// How long the answer to `FileLockClosing` is delayed for a close under way.
const CLOSE_WAIT_NS: u64 = 50_000_000;
/// Most `FileLockClosing` messages whose answers are delayed at a time; further ones are answered at once.
const QUESTIONS_MAX: usize = 1024;

async fn call(mount: &Arc<Mount>, turn: &Turn, op: Request) -> Result<Reply> {
    mount.call(turn.key.0.target(), &Cred::root(), op).await
}

/// Requests a lock. Returns whether the lock is held now.
async fn set(mount: &Arc<Mount>, turn: &Turn, lock: FileLockSpec, number: u64, wait: bool) -> Result<bool> {
    turn.check_lost()?;
    let before = turn.with(|owner| {
        let before = owner.held.give_up_for(&lock);
        owner.converted = before.converted_in(&owner.held);
        before
    });
    let answer = call(mount, turn, Request::FileLockSet { lock, number, wait }).await;
    let flock = lock.owner.family == FileLockFamily::Flock;
    turn.with(|owner| owner.converted = Pieces::default());
    turn.with(|owner| match &answer {
        Ok(Reply::FileLock(true)) => owner.held.set(lock.range, Some((lock.mode, lock.pid))),
        // A `flock` lock that cannot be converted at once is lost.
        Ok(Reply::FileLock(false)) | Err(Errno::Again) if flock => {}
        Ok(_) | Err(Errno::Again | Errno::Deadlk | Errno::NoLck | Errno::Inval | Errno::BadFd) => owner.held = before,
        Err(_) => owner.unsure = true,
    });
    match answer? {
        Reply::FileLock(held) => Ok(held),
        other => Err(unexpected(&other)),
    }
}

async fn unlock_at(mount: &Arc<Mount>, turn: &Turn, range: ByteRange) -> Result<()> {
    let (ino, owner) = turn.key;
    let all = range == ByteRange::ALL;
    let (before, unsure) = turn.with(|owner| {
        let before = owner.held.clone();
        owner.held.set(range, None);
        // When an owner has released everything, its state begins anew.
        (before, if all { std::mem::take(&mut owner.unsure) } else { owner.unsure })
    });
    if !unsure && !before.overlap(range) {
        return Ok(());
    }
    let answer = call(mount, turn, Request::FileLockUnlock { ino, owner, range }).await;
    turn.with(|owner| match &answer {
        Ok(_) => {}
        Err(Errno::NoLck | Errno::Inval) => owner.held = before,
        Err(_) => owner.unsure = true,
    });
    match answer? {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// A lock that was taken. If it is dropped without `keep`, because its caller was interrupted, it is released.
#[must_use = "a lock that is not kept is given back"]
pub struct TakenLock {
    lock: FileLockSpec,
    before: Pieces,
    /// The guard by which no other request for this owner is sent until the lock is kept or released.
    turn: Option<(Arc<Mount>, Turn)>,
}

impl TakenLock {
    /// Called when the caller has received the answer that it holds the lock.
    pub fn keep(mut self) {
        self.turn = None;
    }
}

impl std::fmt::Debug for TakenLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TakenLock({:?})", self.lock)
    }
}

impl Drop for TakenLock {
    fn drop(&mut self) {
        if let Some((mount, turn)) = self.turn.take() {
            let (lock, before) = (self.lock, std::mem::take(&mut self.before));
            let mount2 = mount.clone();
            mount.spawn(async move { undo(&mount2, turn, lock, &before).await });
        }
    }
}

/// Releases what was not held before the request, and makes the parts shared again that were shared before.
async fn undo(mount: &Arc<Mount>, turn: Turn, lock: FileLockSpec, before: &Pieces) {
    for range in before.gaps(lock.range) {
        let _ = unlock_at(mount, &turn, range).await;
    }
    if lock.mode == LockMode::Write {
        let number = Number::new(&mount.coherence.file_locks);
        for (range, pid) in before.shared(lock.range) {
            let shared = FileLockSpec { mode: LockMode::Read, range, pid, ..lock };
            let _ = set(mount, &turn, shared, number.number, false).await;
        }
    }
}

pub(crate) async fn take(
    mount: Arc<Mount>,
    lock: FileLockSpec,
    wait: bool,
    interrupt: Option<Arc<Interrupt>>,
) -> Result<TakenLock> {
    let key = (lock.ino, lock.owner);
    let number = Number::new(&mount.coherence.file_locks);
    let mut asked = false;
    loop {
        let turn = Turn::new(&mount.coherence.file_locks, key).await?;
        if interrupt.as_ref().is_some_and(|i| i.has_fired()) {
            if asked {
                match withdraw(&mount, turn, lock, number.number).await {
                    Ok(Some(taken)) => return Ok(taken),
                    Ok(None) => {}
                    Err(_) => mount.spawn(withdraw_later(mount.clone(), lock, number)),
                }
            }
            return Err(Errno::Intr);
        }
        asked = true;
        let before = turn.with(|owner| owner.held.clone());
        match set(&mount, &turn, lock, number.number, wait).await {
            Ok(true) => return Ok(TakenLock { lock, before, turn: Some((mount.clone(), turn)) }),
            Ok(false) => drop(turn),
            Err(e) => {
                if wait && turn.with(|owner| owner.unsure) {
                    mount.spawn(withdraw_later(mount.clone(), lock, number));
                }
                return Err(e);
            }
        }
        // `news` checks the interrupt first. The withdrawal below finds out whether the grant came before the
        // interrupt.
        number.asking.news(interrupt.as_deref()).await;
    }
}

/// Called when the caller was interrupted. A lock that was granted before stays granted.
async fn withdraw(mount: &Arc<Mount>, turn: Turn, lock: FileLockSpec, number: u64) -> Result<Option<TakenLock>> {
    let before = turn.with(|owner| owner.held.clone());
    match call(mount, &turn, Request::FileLockCancel { lock, number }).await {
        Ok(Reply::FileLock(true)) => {
            turn.with(|owner| owner.held.set(lock.range, Some((lock.mode, lock.pid))));
            Ok(Some(TakenLock { lock, before, turn: Some((mount.clone(), turn)) }))
        }
        Ok(Reply::FileLock(false)) => Ok(None),
        Ok(other) => Err(unexpected(&other)),
        Err(e) => {
            turn.with(|owner| owner.unsure = true);
            Err(e)
        }
    }
}

/// Waits until the server of the file can be reached. `false`: the session, or the mount, has ended.
async fn reached(mount: &Mount, ino: Ino) -> bool {
    let nothing = Request::LockKept { locks: Vec::new() };
    let heard = mount.insist(Lane::Answer, ino.target(), nothing).await;
    heard.is_ok_and(|(answer, _)| answer.result.is_ok())
}

/// Withdraws a waiting request that was not answered. The request may be in the server's queue, where it would be
/// granted to no caller.
async fn withdraw_later(mount: Arc<Mount>, lock: FileLockSpec, number: Number) {
    while reached(&mount, lock.ino).await {
        let Ok(turn) = Turn::new(&mount.coherence.file_locks, (lock.ino, lock.owner)).await else { return };
        match withdraw(&mount, turn, lock, number.number).await {
            Err(Errno::Io) => {}
            // If the lock was granted before, it is released.
            withdrawn => return drop(withdrawn),
        }
    }
}

/// The release at an owner's last close was not answered, so it is repeated when the server can be reached.
async fn release_later(mount: Arc<Mount>, key: Key) {
    while reached(&mount, key.0).await {
        let Ok(turn) = Turn::new(&mount.coherence.file_locks, key).await else { return };
        // The owner may have begun anew, or another task may have released its locks.
        let due = turn.with(|owner| owner.unsure && owner.held.is_empty());
        if !due || unlock_at(&mount, &turn, ByteRange::ALL).await != Err(Errno::Io) {
            return;
        }
    }
}

/// Works as `take`, but an interrupt ends it at once if there is no connection. The release or withdrawal of the lock
/// is done in the background.
pub(crate) async fn take_interruptible(
    mount: Arc<Mount>,
    lock: FileLockSpec,
    interrupt: Arc<Interrupt>,
) -> Result<TakenLock> {
    let mut taking = Box::pin(take(mount.clone(), lock, true, Some(interrupt.clone())));
    let down = || interrupt.has_fired() && mount.coherence.file_locks.down.load(SeqCst) > 0;
    let mut went_down = Box::pin(mount.coherence.file_locks.went_down.until(down));
    let taken = poll_fn(|cx| {
        if let Poll::Ready(taken) = taking.as_mut().poll(cx) {
            return Poll::Ready(Some(taken));
        }
        if !interrupt.has_fired() {
            interrupt.watch(cx.waker());
        }
        if !interrupt.has_fired() || went_down.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        // Now `taking` has seen the interrupt, and has a turn or waits for one. So the caller's next request is made
        // after this one.
        Poll::Ready(match taking.as_mut().poll(cx) {
            Poll::Ready(taken) => Some(taken),
            Poll::Pending => None,
        })
    })
    .await;
    drop(went_down);
    taken.unwrap_or_else(|| {
        // The lock is released when it is granted, because no caller keeps it.
        mount.spawn(async move { drop(taking.await) });
        Err(Errno::Intr)
    })
}

pub(crate) async fn unlock(mount: Arc<Mount>, ino: Ino, owner: FileLockOwner, range: ByteRange) -> Result<()> {
    let turn = Turn::new(&mount.coherence.file_locks, (ino, owner)).await?;
    turn.check_lost()?;
    unlock_at(&mount, &turn, range).await
}

pub(crate) async fn release(mount: Arc<Mount>, ino: Ino, owner: FileLockOwner) -> Result<()> {
    let turn = Turn::new(&mount.coherence.file_locks, (ino, owner)).await?;
    turn.with(|owner| owner.lost = false);
    let released = unlock_at(&mount, &turn, ByteRange::ALL).await;
    if released.is_err() && turn.with(|owner| owner.unsure) {
        mount.spawn(release_later(mount.clone(), (ino, owner)));
    }
    released
}

pub(crate) async fn test(mount: Arc<Mount>, lock: FileLockSpec) -> Result<Option<FileLockSpec>> {
    let number = Number::new(&mount.coherence.file_locks);
    loop {
        let op = Request::FileLockTest { lock, number: number.number };
        match mount.call(lock.ino.target(), &Cred::root(), op).await? {
            Reply::FileLockFound(found) => return Ok(found),
            Reply::FileLock(false) => drop(number.asking.news(None).await),
            other => return Err(unexpected(&other)),
        }
    }
}

/// `Push::FileLockClosing`: answers when the locks of descriptors that are being closed were released.
pub(crate) fn closing(mount: &Arc<Mount>, ino: Ino, id: u64) {
    let answer = move |mount: &Arc<Mount>| {
        let op = Request::FileLockClosed { ino, id };
        drop(mount.send(Lane::Answer, ino.target(), &Cred::root(), op, None, 0));
    };
    let table = &mount.coherence.file_locks;
    let closes = table.closes.lock().clone();
    let room = |n: usize| (n < QUESTIONS_MAX).then_some(n + 1);
    let Some(closes) = closes.filter(|_| table.questions.fetch_update(SeqCst, SeqCst, room).is_ok()) else {
        return answer(mount);
    };
    let (done, gone) = oneshot::channel();
    let wait = closes.closing(ino, Box::new(move || done.send(()).unwrap_or_default()));
    let Some(wait) = wait else {
        table.questions.fetch_sub(1, SeqCst);
        return answer(mount);
    };
    let own = mount.clone();
    mount.spawn(async move {
        if let Either::Right(_) = select(gone, pin!(own.life.pauses.pause(CLOSE_WAIT_NS))).await {
            closes.in_vain(wait);
        }
        own.coherence.file_locks.questions.fetch_sub(1, SeqCst);
        answer(&own);
    });
}

/// Presents the file locks on `target` to a restarted server. If the session has ended meanwhile, they are lost,
/// because others may have held them since.
pub(crate) async fn represent<E: Env>(mount: &Mount, recovery: &Recovery<E>, target: TargetId) -> Result<()> {
    let table = &mount.coherence.file_locks;
    let (mut held, mut converted) = (Vec::<FileLockSpec>::new(), Vec::<FileLockSpec>::new());
    {
        let mut state = table.state.lock();
        let here = state.owners.iter_mut().filter(|((ino, _), _)| ino.target() == target);
        if recovery.welcome().resumed {
            for ((ino, owner), state) in here {
                held.extend(state.held.specs(*ino, *owner));
                converted.extend(state.converted.specs(*ino, *owner));
            }
        } else {
            for ((ino, _), owner) in here.filter(|(_, owner)| !owner.held.is_empty()) {
                tracing::warn!(%ino, "file locks are lost with the session");
                (owner.held, owner.lost) = (Pieces::default(), true);
            }
        }
    }
    let mut converted = converted.chunks(REPRESENTED_AT_ONCE);
    for locks in held.chunks(REPRESENTED_AT_ONCE) {
        // A converted lock is among the locks too, so there is a message for each part of it.
        let converted = converted.next().unwrap_or_default().to_vec();
        let op = Request::RepresentFileLocks { locks: locks.to_vec(), converted };
        let answer = recovery.call(Call { target, cred: Cred::root(), op }).await.map_err(|e| e.errno())?;
        let Reply::FileLocksLost(lost) = answer.result? else { return Err(Errno::Proto) };
        for lock in lost.iter().filter_map(|place| locks.get(*place as usize)) {
            tracing::warn!(ino = %lock.ino, "a file lock was lost with the restart of the server");
            table.with((lock.ino, lock.owner), |owner| {
                owner.held.set(lock.range, None);
                owner.lost = true;
            });
        }
    }
    Ok(())
}
