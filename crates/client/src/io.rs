//! `IoHalf`: the half that owns the environment and the connection.
//!
//! Owns: sending what the other half queues, background tasks, time (age of dirty data, memory group), presenting
//! opens and locks to a restarted server, the end. Does not own: any state of files; everything here is plumbing.

use crate::cache::limit;
use crate::core::Core;
use crate::locks;
use crate::queue::{Item, Outgoing};
use crate::tunables::Knob;
use crate::writeback;
use amphi_env::Env;
use amphi_transport::local::LocalDialer;
use amphi_transport::{Link, LinkConfig, LinkEvents, Outcome, Recovery, ToldCall};
use amphi_types::{Cred, Errno, TargetId};
use amphi_wire::{Call, Lane, Push, Reply, Request};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

/// Items taken from the queue before other tasks of the thread get their turn.
const BATCH: usize = 64;
/// Longest pause between looks at the age of dirty data.
const TICK_MAX_MS: u64 = 1000;
/// Part of the cache's size that may wait as used memory for the next stream.
const KEPT_PART: u64 = 4;
/// How long the end waits for the server's goodbye.
const GOODBYE: Duration = Duration::from_secs(5);

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

struct Events {
    core: Arc<Core>,
}

impl<E: Env> LinkEvents<E> for Events {
    fn push(&self, push: Push) {
        match push {
            Push::Callback { object, lock } => locks::callback(&self.core, object, lock),
            Push::Glimpse { id, object } => {
                let target = self.core.target_of(object);
                let (size, mtime) = match self.core.files.get(object.ino) {
                    Some(file) => (file.size(), file.mtime()),
                    None => Default::default(),
                };
                let op = Request::GlimpseReply { id, size, mtime };
                drop(self.core.send(Lane::Urgent, target, &Cred::root(), op, None, 0));
            }
        }
    }

    async fn restarted(&self, recovery: Recovery<E>) -> Result<(), Errno> {
        self.core.learn(recovery.welcome());
        for target in (0..recovery.welcome().pool).map(TargetId) {
            represent(&self.core, &recovery, target).await?;
        }
        Ok(())
    }

    fn state_changed(&self, up: bool) {
        tracing::info!(up, "the connection to the server changed");
    }
}

/// Presents opens and locks of one target, in one message: the bounds of locks and of open files keep it below the
/// bound of a message's body.
async fn represent<E: Env>(core: &Arc<Core>, recovery: &Recovery<E>, target: TargetId) -> Result<(), Errno> {
    let (ids, locks) = locks::represent(core, target);
    let op = Request::Represent { opens: locks::opens(core, target), locks };
    let answer = recovery.call(Call { target, cred: Cred::root(), op }).await.map_err(|e| e.errno())?;
    let Reply::Locks(taken) = answer.result? else { return Err(Errno::Proto) };
    locks::restored(core, target, &ids, &taken);
    Ok(())
}

impl IoHalf {
    pub(crate) fn new(core: Arc<Core>) -> IoHalf {
        IoHalf { end: End(core) }
    }

    /// Connects, serves the other half until [`crate::Client::shutdown`], writes everything back, says goodbye and
    /// closes. Dropping the future abandons what is dirty.
    ///
    /// Errors: those of connecting; the client is stopped then.
    pub async fn run<E: Env>(self, env: E, config: LinkConfig, way: Way) -> io::Result<()> {
        let core = self.end.0.clone();
        let events = Rc::new(Events { core: core.clone() });
        let link = match way {
            Way::Addresses => Link::connect(env.clone(), config, events).await?,
            Way::Local(dialer) => Link::local(env.clone(), dialer, config, events).await?,
        };
        core.learn(&link.welcome());
        env.spawn(tick(env.clone(), core.clone()));
        serve(&env, &core, &link).await;
        let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Goodbye };
        let goodbye = amphi_env::timeout(&env, GOODBYE, link.call(Lane::Urgent, call, None, 0)).await;
        if !matches!(goodbye, Some(Ok(_))) {
            tracing::warn!("the server did not hear the goodbye");
        }
        link.close().await;
        Ok(())
    }
}

/// Whatever ends the half, also if it never ran: callers must not wait for ever.
struct End(Arc<Core>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.queue.close();
        self.0.stopped.store(true, Ordering::Release);
    }
}

/// Sends and spawns what comes out of the queue, until the client shuts down and everything is written.
async fn serve<E: Env>(env: &E, core: &Arc<Core>, link: &Rc<Link<E>>) {
    let mut draining = false;
    loop {
        let mut taken = 0;
        while taken < BATCH
            && let Some(item) = core.queue.pop()
        {
            taken += 1;
            match item {
                Item::Task(task) => env.spawn(task),
                Item::Call(out) => send(env, link, out),
            }
        }
        if core.stopping.load(Ordering::Acquire) && !draining {
            draining = true;
            let core2 = core.clone();
            env.spawn(async move {
                drain(&core2).await;
                core2.drained.store(true, Ordering::Release);
                core2.queue.waker.wake();
            });
        }
        let mut yielded = taken < BATCH;
        let ended = poll_fn(|cx| {
            core.queue.waker.register(cx.waker());
            if !core.queue.is_empty() {
                // Others of this thread get their turn first.
                if std::mem::replace(&mut yielded, true) {
                    return Poll::Ready(false);
                }
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if core.drained.load(Ordering::Acquire) {
                return Poll::Ready(true);
            }
            let start_drain = core.stopping.load(Ordering::Acquire) && !draining;
            if start_drain { Poll::Ready(false) } else { Poll::Pending }
        });
        if ended.await {
            return;
        }
    }
}

/// Sends a request; only one that has to wait for credits becomes a task.
fn send<E: Env>(env: &E, link: &Rc<Link<E>>, out: Outgoing) {
    let Outgoing { lane, call, payload, pad, answer } = out;
    let done = Box::new(move |outcome: Outcome| {
        let _ = answer.send(outcome.map_err(Errno::from));
    });
    if let Err(late) = link.call_and_tell(ToldCall { lane, call, payload, pad, done }) {
        let link = link.clone();
        env.spawn(async move {
            let ToldCall { lane, call, payload, pad, done } = *late;
            done(link.call(lane, call, payload, pad).await);
        });
    }
}

/// Writes everything back at the end. Errors were logged; nobody is left to hear of them.
async fn drain(core: &Arc<Core>) {
    writeback::flush_all(core).await;
    let root = crate::api::Ctx::root();
    if let Err(e) = crate::ops::sync::sync_all(core.clone(), root).await {
        tracing::warn!("at the end: {e}");
    }
}

/// Lets time pass for write-back, locks and the memory group.
async fn tick<E: Env>(env: E, core: Arc<Core>) {
    while !core.stopped.load(Ordering::Acquire) {
        let age_ms = core.tunables.get(Knob::AgeMs);
        amphi_env::buf::keep_bytes((core.tunables.get(Knob::CacheBytes) / KEPT_PART) as usize);
        env.sleep(Duration::from_millis((age_ms / 4).clamp(1, TICK_MAX_MS))).await;
        writeback::tick(&core);
        locks::tick(&core);
        if let Some(read) = &core.read_text {
            let percent = core.tunables.get(Knob::MemoryPercent);
            let short = limit::group(&**read).is_some_and(|g| g.used >= g.limit / 100 * percent);
            core.group_short.store(short, Ordering::Relaxed);
            amphi_env::buf::decay(short);
        }
    }
}
