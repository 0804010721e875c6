//! `IoHalf`: the half that owns the environment and the connection.
//!
//! Owns: the links to the servers (`links`), sending the messages that the other half queues, background tasks,
//! periodic work (age of dirty data, memory group), presenting opens and locks to a restarted server, and the end. Does
//! not own: any state of files. This code only connects the other parts.

pub(crate) mod late_replies;
pub(crate) mod links;

use crate::coherence::file_locks;
use crate::coherence::tokens;
use crate::coherence::{closes, moved, opened_ahead, sharing};
use crate::conn::queue::Item;
use crate::io::links::{Links, Seat};
use crate::locks;
use crate::mount::Mount;
use crate::prefetch::large_reads;
use crate::prefetch::small_files;
use crate::telemetry::stats::Count;
use crate::telemetry::tunables::Tunable;
use crate::writeback::flush;
use crate::writeback::grants;
use crate::writeback::writeback_errors;
use amphi_env::Env;
use amphi_env::memory_groups;
use amphi_transport::local::LocalDialer;
use amphi_transport::{Carried, Link, LinkConfig, LinkEvents, Recovery};
use amphi_types::{Cred, Errno, TargetId};
use amphi_wire::{Answer, Call, Lane, Push, Reply, Request, Welcome};
use futures_util::future::{Either, select};
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

/// Items taken from the queue before other tasks of the thread get their turn.
const BATCH: usize = 64;
/// Longest pause between checks of the age of dirty data.
const TICK_MAX_MS: u64 = 1000;
/// As `TICK_MAX_MS`, but while memory is short.
const TICK_SHORT_MS: u64 = 100;
/// Part of the cache's size that may wait as used memory for the next stream.
const KEPT_PART: usize = 4;
/// How long the end waits for the server's goodbye.
const GOODBYE: Duration = Duration::from_secs(5);
/// How long the end waits for a server that cannot be reached when everything is written back.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// How the I/O half reaches the server.
pub enum Way {
    /// By the addresses of the link's configuration.
    Addresses,
    /// The server runs in this thread.
    Local(LocalDialer),
}

/// The half with the environment; consumed by `run`.
pub struct IoHalf {
    end: End,
}

/// The events of the connection to one server.
pub(crate) struct Events<E: Env> {
    env: E,
    /// A connection existed and is lost now.
    down: Cell<bool>,
    mount: Arc<Mount>,
    links: Weak<Links<E>>,
    seat: Rc<Seat<E>>,
}

impl<E: Env> Events<E> {
    /// The events of the connection of `seat`.
    pub(crate) fn new(env: E, links: &Rc<Links<E>>, seat: &Rc<Seat<E>>) -> Events<E> {
        Events {
            env,
            down: Cell::new(false),
            mount: links.mount.clone(),
            links: Rc::downgrade(links),
            seat: seat.clone(),
        }
    }

    /// Returns whether this is the master's connection: only the master tells the mount whether its session continues
    /// and whether there are other mounts.
    fn is_master(&self) -> bool {
        self.links.upgrade().is_some_and(|links| links.is_master(&self.seat))
    }
}

impl<E: Env> Drop for Events<E> {
    fn drop(&mut self) {
        if self.down.get() {
            self.mount.coherence.file_locks.state_changed(true, false);
        }
    }
}

impl<E: Env> LinkEvents<E> for Events<E> {
    fn push(&self, push: Push) {
        match push {
            Push::Callback { target, object, lock } => locks::callback(&self.mount, target, object, lock),
            Push::Glimpse { id, object } => locks::glimpse(&self.mount, id, object),
            Push::Revoke { target, id, upto, keys } => tokens::revoke(&self.mount, target, id, upto, keys),
            Push::Company { change, alone } => {
                if let Some(links) = self.links.upgrade().filter(|links| !alone && links.is_master(&self.seat)) {
                    links.reach_all();
                }
                if self.is_master() && sharing::told(&self.mount, change, alone) {
                    self.env.spawn(sharing::settle(self.mount.clone(), change, self.env.clone()));
                }
            }
            Push::GroupLockNews { .. } => self.mount.coherence.group_news.ring(),
            Push::FileLockNews { number } => self.mount.coherence.file_locks.news(number),
            Push::FileLockClosing { id, ino } => file_locks::closing(&self.mount, ino, id),
            Push::GrantWanted { target } => grants::wanted(&self.mount, target),
            Push::WriteFailed { target, id, ino } => writeback_errors::refused(&self.mount, target, id, ino),
            Push::DirectoryChanged { target, id, ino, place } => moved::moved(&self.mount, target, id, ino, place),
            Push::Map { epoch } => {
                if let Some(links) = self.links.upgrade() {
                    links.announced(epoch);
                }
            }
        }
    }

    fn late(&self, call: Call, answer: Answer) {
        late_replies::answered(&self.mount, call, answer);
    }

    fn heard(&self) {
        if self.mount.coherence.sharing.is_alone() {
            self.seat.messages.set(self.seat.messages.get() + 1);
        } else {
            self.mount.coherence.sharing.leases.hear(self.seat.lease(), self.mount.clock.boot_ns());
        }
    }

    fn carried(&self, carried: Carried) {
        let stats = &self.mount.stats;
        for (count, bytes) in
            [(Count::PayloadPassed, carried.beside_bytes), (Count::PayloadInline, carried.inline_bytes)]
        {
            if bytes > 0 {
                stats.bytes(count, bytes);
            }
        }
    }

    fn welcomed(&self, welcome: &Welcome) {
        // A server that does not know the session any more may have granted rights to other mounts: its welcome does
        // not renew the rights that it granted before.
        if welcome.resumed {
            self.mount.coherence.sharing.leases.surely_heard(self.seat.lease(), self.mount.clock.boot_ns());
        }
        if let Some(links) = self.links.upgrade() {
            links.learn_storage(&self.seat, welcome);
        }
        if self.is_master() {
            sharing::welcomed(&self.mount, welcome);
        }
    }

    async fn restarted(&self, recovery: Recovery<E>) -> Result<(), Errno> {
        let links = self.links.upgrade().ok_or(Errno::Canceled)?;
        if links.is_master(&self.seat) {
            // A lost session stays lost, also if the connection broke before the server was informed, and the server
            // welcomes it as one that it knows.
            let over = !recovery.welcome().resumed && !sharing::may_go_on(&self.mount);
            if over || self.mount.coherence.sharing.is_lost() {
                locks::session_end::lose(
                    &self.mount,
                    "it was away for too long, did not answer, or a server lost power",
                );
                let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Goodbye };
                let _ = recovery.call(call).await;
                links.leave_others();
                return Err(Errno::Io);
            }
            self.mount.cluster.learn(recovery.welcome());
        } else if !recovery.welcome().resumed {
            // The session has ended and was begun anew: only a mount that may continue in sole mode may send the
            // changes that it had before.
            links.hear_master().await?;
        }
        links.catch_up(&recovery).await;
        // The other servers still have the record of the rights that they granted. Until this session has presented its
        // locks and opens, no mount changes a name.
        let targets = links.targets_of(&self.seat, recovery.welcome().pool);
        tokens::lose(&self.mount, &targets).await;
        targets.iter().for_each(|target| locks::restoring(&self.mount, *target));
        if !recovery.welcome().resumed {
            targets.iter().for_each(|target| self.mount.writeback.grants.begin_anew(*target));
        }
        for target in targets {
            // This is done before the message is sent that tells the target that the session has presented everything.
            file_locks::represent(&self.mount, &recovery, target).await?;
            represent(&self.mount, &recovery, target).await?;
        }
        Ok(())
    }

    fn state_changed(&self, up: bool) {
        tracing::info!(up, server = self.seat.name(), "the connection to a server changed");
        let was_down = self.down.replace(!up);
        self.seat.set_broken(!up);
        self.mount.coherence.file_locks.state_changed(was_down, !up);
        if let Some(links) = self.links.upgrade() {
            if up { links.came_up(&self.seat) } else { links.went_down(&self.seat) }
        }
    }
}

/// Presents the files that are open on one target to a server to which this mount connects for the first time. The
/// server was restarted since the session began, and other servers may have opened files on the target for the session.
pub(crate) async fn represent_opens<E: Env>(mount: &Mount, link: &Link<E>, target: TargetId) -> Result<(), Errno> {
    let op = Request::Represent { opens: locks::opens(mount, target), locks: Vec::new() };
    let call = Call { target, cred: Cred::root(), op };
    link.call(Lane::Urgent, call, None, 0).await.map_err(|e| e.errno())?.0.result.map(drop)
}

/// Presents opens and locks of one target, in one message: the bounds of locks and of open files keep it below the
/// bound of a message's body.
async fn represent<E: Env>(mount: &Arc<Mount>, recovery: &Recovery<E>, target: TargetId) -> Result<(), Errno> {
    let (ids, locks) = locks::represent(mount, target);
    let op = Request::Represent { opens: locks::opens(mount, target), locks };
    let answer = recovery.call(Call { target, cred: Cred::root(), op }).await.map_err(|e| e.errno())?;
    let Reply::Locks(taken) = answer.result? else { return Err(Errno::Proto) };
    locks::restored(mount, target, &ids, &taken);
    Ok(())
}

/// Kind of the error with which a client ends whose bytes were not all written back.
pub const NOT_STABLE: io::ErrorKind = io::ErrorKind::WriteZero;

impl IoHalf {
    pub(crate) fn new(mount: Arc<Mount>) -> IoHalf {
        IoHalf { end: End(mount) }
    }

    /// Connects, serves the other half until [`crate::Client::shutdown`], writes everything back, says goodbye and
    /// closes. Dropping the future abandons what is dirty.
    ///
    /// Errors: those of connecting, and the kind [`NOT_STABLE`] if not everything could be written back at the end. The
    /// client is stopped then.
    pub async fn run<E: Env>(self, env: E, config: LinkConfig, way: Way) -> io::Result<()> {
        let mount = self.end.0.clone();
        let links = Links::open(env.clone(), mount.clone(), config, way).await?;
        env.spawn(tick(env.clone(), mount.clone(), links.clone()));
        let (time, passing) = (mount.clone(), env.clone());
        env.spawn(async move { time.life.pauses.run(passing).await });
        let shortcut = mount.queue.shortcut({
            let links = links.clone();
            move |out| links.send(out)
        });
        serve(&env, &mount, &links).await;
        drop(shortcut);
        links.close(GOODBYE).await;
        let lost = mount.life.lost_at_end.lock().take();
        lost.map_or(Ok(()), |e| Err(not_stable(e)))
    }
}

fn not_stable(why: Errno) -> io::Error {
    io::Error::new(NOT_STABLE, format!("not all that was written could be written back: {why}"))
}

/// Stops the client whenever this half ends, even if it never ran, so that callers do not wait for ever.
struct End(Arc<Mount>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.queue.close();
        self.0.life.stopped.store(true, Ordering::Release);
        self.0.life.pauses.end();
    }
}

/// Sends calls and spawns tasks from the queue, until the client shuts down and everything is written.
async fn serve<E: Env>(env: &E, mount: &Arc<Mount>, links: &Rc<Links<E>>) {
    let mut draining = false;
    loop {
        let mut taken = 0;
        while taken < BATCH
            && let Some(item) = mount.queue.pop()
        {
            taken += 1;
            match item {
                Item::Task(task) => env.spawn(task),
                Item::Call(out) => links.send(out),
            }
        }
        if mount.life.stopping.load(Ordering::Acquire) && !draining {
            draining = true;
            let (env2, mount2, links2) = (env.clone(), mount.clone(), links.clone());
            env.spawn(async move {
                *mount2.life.lost_at_end.lock() = drain(&env2, &mount2, &links2).await.err();
                mount2.life.drained.store(true, Ordering::Release);
                mount2.queue.waker.wake();
            });
        }
        let mut yielded = taken < BATCH;
        let ended = poll_fn(|cx| {
            mount.queue.waker.register(cx.waker());
            if !mount.queue.is_empty() {
                // First the other tasks of this thread get their turn.
                if std::mem::replace(&mut yielded, true) {
                    return Poll::Ready(false);
                }
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if mount.life.drained.load(Ordering::Acquire) {
                return Poll::Ready(true);
            }
            let start_drain = mount.life.stopping.load(Ordering::Acquire) && !draining;
            if start_drain { Poll::Ready(false) } else { Poll::Pending }
        });
        if ended.await {
            return;
        }
    }
}

/// Writes everything back at the end.
///
/// Errors: the error of bytes that are lost now, or were lost before, if no `fsync`, `close` or sync of all files has
/// reported it, because no later call could report it.
async fn drain<E: Env>(env: &E, mount: &Arc<Mount>, links: &Rc<Links<E>>) -> amphi_types::Result<()> {
    mount.coherence.walks.clear();
    opened_ahead::lose(mount, None);
    closes::hurry_all(mount);
    let away = links.unreachable();
    if mount.cache.dirty_bytes() > 0 && !away.is_empty() {
        tracing::warn!(
            "{} bytes are not written back yet and cannot be, since {} cannot be reached: they are kept for up to {} s; \
             a second signal gives them up",
            mount.cache.dirty_bytes(),
            away.join(", "),
            mount.tunables.get(Tunable::GiveUpS)
        );
    }
    flush::flush_all(mount).await;
    // Data on the servers survives the end of their processes; this sync decides whether it survives that of their
    // machines.
    let synced = crate::ops::sync::sync_targets(mount, (0..mount.cluster.pool()).map(TargetId).collect(), None);
    match select(pin!(synced), pin!(links.until_unreachable(env, END_PATIENCE))).await {
        Either::Left((Ok(()), _)) => {}
        Either::Left((Err(e), _)) => {
            tracing::warn!("at the end not every server could be asked to make everything stable: {e}");
        }
        Either::Right((away, _)) => tracing::warn!(
            "{} cannot be reached, and was not asked at the end to make everything stable",
            away.join(", ")
        ),
    }
    mount.files.secret_loss().map_or(Ok(()), Err)
}

/// Lets time pass for write-back, locks and the memory group.
async fn tick<E: Env>(env: E, mount: Arc<Mount>, links: Rc<Links<E>>) {
    while !mount.life.stopped.load(Ordering::Acquire) {
        let age_ms = mount.tunables.get(Tunable::AgeMs);
        let cache = mount.tunables.get(Tunable::CacheBytes) as usize;
        amphi_env::buf::keep_bytes(cache / KEPT_PART, cache + cache / KEPT_PART);
        // Short memory sends requests the slower way, so its end should be seen soon.
        let short = mount.policy.group_short.load(Ordering::Relaxed);
        let most_ms = if short { TICK_SHORT_MS } else { TICK_MAX_MS };
        env.sleep(Duration::from_millis((age_ms / 4).clamp(1, most_ms))).await;
        flush::tick(&mount);
        locks::tick(&mount);
        mount.coherence.group_news.ring();
        tokens::tick(&mount);
        mount.coherence.walks.tick(mount.clock.now_ns());
        small_files::tick(&mount);
        large_reads::tick(&mount);
        mount.panel.recorder.tick(mount.clock.now_ns());
        links.tune();
        links.mind_silence();
        look_at_memory(&mount);
    }
}

/// Measures the memory groups of this process and of callers.
pub(crate) fn look_at_memory(mount: &Mount) {
    mount.policy.look_at_memory();
    let Some(read) = &mount.host.read_text else { return };
    let trees = mount.policy.memory_trees.get_or_init(|| memory_groups::Trees::find(&**read));
    let is_short = || {
        memory_groups::own_groups(&**read)
            .is_some_and(|text| trees.is_short(&**read, &text, memory_groups::SHORT_PERCENT))
    };
    let short = is_short();
    amphi_env::buf::decay(short);
    // Memory that is kept only for reuse is freed before requests become direct because of it.
    mount.policy.group_short.store(short && is_short(), Ordering::Relaxed);
    if mount.tunables.on(Tunable::Memory) && mount.tunables.on(Tunable::CallerMemory) {
        let looks = mount.policy.caller_memory.look(&**read, trees, memory_groups::SHORT_PERCENT, mount.clock.now_ns());
        if looks > 0 {
            mount.stats.bytes(Count::CallerLook, looks as u64);
        }
    } else {
        mount.policy.caller_memory.clear();
    }
}
