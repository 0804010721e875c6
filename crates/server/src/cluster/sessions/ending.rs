//! The end of sessions.
//!
//! Owns: the grace time of a session without a connection, eviction, goodbyes, and their order over all targets. Does
//! not own: the locks and opens that a target releases (`crate::dispatch::target_requests`), the work of other servers
//! (`crate::cluster::master`, `crate::cluster::follower`).
//!
//! Invariant: a session's state is `Ending` before the first target is informed, and its entry is removed when the last
//! target has been informed and no request of the session is being executed.

use super::audit::Kind;
use super::entry::State;
use super::{HOLDER_LOOK, LOOK, SessionManager};
use crate::cluster::peers::Cluster;
use crate::counters::add;
use crate::membership::eviction::{AFTER_POWER_LOSS, Eviction, TOLD_LOOK};
use crate::message::TargetRequest;
use crate::worker::Worker;
use amphi_dlm::SessionEnd;
use amphi_env::Env;
use amphi_types::{Result, SessionId};
use amphi_wire::Reply;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

impl<E: Env> SessionManager<E> {
    /// Keeps a session without a connection for its grace time, unless its process is known to have ended.
    pub(super) fn keep_for_grace(self: &Rc<Self>, session: SessionId, epoch: u64) {
        let (weak, env) = (Rc::downgrade(self), self.worker.env.clone());
        let end_ns = self.worker.now_ns() + self.grace().as_nanos() as u64;
        self.worker.env.spawn(async move {
            // A process that is killed loses its connection a little before it has ended.
            let mut pause = LOOK;
            loop {
                let now_ns = {
                    let Some(manager) = weak.upgrade() else { return };
                    let name = match manager.sessions.borrow().get(&session) {
                        Some(e) if e.conn.is_none() && e.epoch == epoch => e.name.clone(),
                        _ => return,
                    };
                    let now_ns = manager.worker.now_ns();
                    if (manager.worker.config.holder_gone)(&name) {
                        return manager.end_dead(session);
                    }
                    if now_ns >= end_ns {
                        return manager.evict(session, "it did not come back in time");
                    }
                    now_ns
                };
                env.sleep(pause.min(Duration::from_nanos(end_ns - now_ns))).await;
                pause = (pause * 4).min(HOLDER_LOOK);
            }
        });
    }

    /// Ends a session that violated the protocol or did not reconnect. Its client may not know this, and may use its
    /// cached entries until its tokens expire.
    pub fn evict(self: &Rc<Self>, session: SessionId, why: &str) {
        if let Some(follower) = self.cluster().filter(|c| !c.is_master()) {
            tracing::warn!("a session is evicted: {why}");
            return follower.evict_here(session, why, Eviction::Silent);
        }
        let Some(name) = self.name_to_end(session) else { return };
        tracing::warn!("session of {name} is evicted: {why}");
        self.note_evicted(session, &name, why);
        self.end_now(session, SessionEnd::CutOff);
    }

    /// Ends a session that is alive and does not answer. Whatever the client still uses is ignored from now on.
    pub(crate) fn end_deaf(self: &Rc<Self>, session: SessionId, why: &str) {
        let Some(name) = self.name_to_end(session) else { return };
        tracing::warn!("session of {name} is evicted: {why}");
        self.note_evicted(session, &name, why);
        self.end_now(session, SessionEnd::Stopped);
    }

    fn note_evicted(&self, session: SessionId, name: &str, why: &str) {
        let (id, key) = (format!("{:016x}", session.0), self.key_name(session));
        self.audit(Kind::Evicted, &[("session", &id), ("name", name), ("key", &key), ("why", why)]);
    }

    /// Called after a loss of power: all sessions end.
    pub fn end_robbed(self: &Rc<Self>) {
        let after_power_loss: Vec<SessionId> = self.mounts().into_iter().map(|(session, _)| session).collect();
        after_power_loss.iter().for_each(|session| self.evict(*session, AFTER_POWER_LOSS));
        self.until_told(move |manager| after_power_loss.iter().all(|session| !manager.is_ending(*session)));
    }

    /// Returns whether this server is ending a session.
    pub fn is_ending(&self, session: SessionId) -> bool {
        self.sessions.borrow().get(&session).is_some_and(|e| e.state == State::Ending)
    }

    /// A session that ends has nothing on the targets here any more.
    fn gone_here(&self, session: SessionId) {
        if let Some(entry) = self.sessions.borrow_mut().get_mut(&session).filter(|e| e.state == State::Ending) {
            entry.state = State::EndingElsewhere;
        }
        self.ring();
    }

    /// Mounts wait until all earlier mounts have been informed of a loss of power (`told`), and until the targets have
    /// recorded this. If the server is killed before that, it informs them again, and the session of a mount that had
    /// connected meanwhile would end as well.
    pub fn until_told(self: &Rc<Self>, told: impl Fn(&Rc<Self>) -> bool + 'static) {
        self.admission.hold_after_power_loss(true);
        let (weak, env) = (Rc::downgrade(self), self.worker.env.clone());
        self.worker.env.spawn(async move {
            while weak.upgrade().is_some_and(|manager| !told(&manager)) {
                env.sleep(TOLD_LOOK).await;
            }
            let Some(manager) = weak.upgrade() else { return };
            for target in manager.worker.routes.local() {
                if let Err(e) = manager.worker.tell(*target, TargetRequest::LossesTold).await {
                    tracing::warn!("{target}: {e}; the next start ends sessions once more");
                }
            }
            manager.admission.hold_after_power_loss(false);
        });
    }

    /// A mount whose session ends now cannot continue as if it had not ended, even if it is the only one, because its
    /// count of mounts no longer matches (`Welcome::mounts`).
    pub fn disturb(&self) {
        self.admission.count_mount();
    }

    /// Ends the session of a process that is known to have ended.
    pub(super) fn end_dead(self: &Rc<Self>, session: SessionId) {
        let Some(name) = self.name_to_end(session) else { return };
        tracing::info!("session of {name} is ended: its process has gone");
        self.end_now(session, SessionEnd::Stopped);
    }

    fn name_to_end(&self, session: SessionId) -> Option<String> {
        self.sessions.borrow().get(&session).filter(|e| !e.state.is_ending()).map(|e| e.name.clone())
    }

    fn end_now(self: &Rc<Self>, session: SessionId, how: SessionEnd) {
        add(&self.worker.counters.evictions, 1);
        let manager = self.clone();
        let mut end = Box::pin(async move {
            if let Err(e) = manager.end(session, how).await {
                tracing::error!("a session could not be removed: {e}");
            }
        });
        // The state is set before any other task can see it.
        if end.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.worker.env.spawn(end);
        }
    }

    /// Ends a session on all targets.
    async fn end(self: &Rc<Self>, session: SessionId, how: SessionEnd) -> Result<()> {
        let (first, more) = match self.sessions.borrow_mut().get_mut(&session) {
            Some(entry) if !entry.state.is_ending() => {
                entry.state = State::Ending;
                entry.epoch += 1;
                if how == SessionEnd::CutOff {
                    self.rule.cut_off(self.worker.now_ns(), entry.known);
                }
                (entry.conn.take(), std::mem::take(&mut entry.more))
            }
            _ => return Ok(()),
        };
        more.values().for_each(|line| self.cut(*line, "the session has ended"));
        let ended =
            end_everywhere(&self.worker, self.cluster().as_ref(), session, how, || self.gone_here(session)).await;
        // Changes of the session that are under way may still be executed; its id must not be used again before they
        // have ended.
        self.idle(session).await;
        if let Some(line) = first {
            self.cut(line, "the session has ended");
            // Another worker may still be reading from the connection, so it is queried after the connection is cut.
            self.idle(session).await;
        }
        self.remove(session);
        ended
    }

    /// Called when the session is over.
    pub(super) fn remove(self: &Rc<Self>, session: SessionId) {
        let entry = self.sessions.borrow_mut().remove(&session);
        entry.iter().flat_map(|e| e.more.values()).for_each(|line| self.cut(*line, "the session has ended"));
        self.ring();
        self.look_alone();
    }

    pub(super) async fn end_politely(self: &Rc<Self>, session: SessionId) -> Result<Reply> {
        if self.cluster().is_some_and(|c| !c.is_master()) {
            // The mount has informed the master, or will do so.
            return Ok(Reply::Done);
        }
        match self.sessions.borrow_mut().get_mut(&session) {
            Some(entry) if entry.state == State::Alive => {
                entry.state = State::Ending;
                entry.epoch += 1;
            }
            _ => return Ok(Reply::Done),
        }
        let ended = end_everywhere(&self.worker, self.cluster().as_ref(), session, SessionEnd::Stopped, || {
            self.gone_here(session)
        })
        .await;
        if ended.is_err() {
            self.remove(session);
        }
        ended.map(|()| Reply::Done)
    }
}

/// Ends a session on every target. First all targets stop executing its requests, and then they release its locks and
/// opens. A target that fails does not prevent this on the others.
///
/// Errors: the first of a target.
///
/// `gone_here` is called when the targets of this server hold nothing of the session any more. Other servers may have
/// to wait for one that is down.
pub async fn end_everywhere<E: Env>(
    worker: &Rc<Worker<E>>,
    cluster: Option<&Rc<Cluster<E>>>,
    session: SessionId,
    how: SessionEnd,
    gone_here: impl FnOnce(),
) -> Result<()> {
    let stopped = how == SessionEnd::Stopped;
    let mut ended = Ok(());
    for target in worker.routes.local() {
        ended = ended.and(worker.tell(*target, TargetRequest::SessionStop(session)).await);
    }
    if let Some(cluster) = cluster {
        cluster.stop_elsewhere(session).await;
    }
    // Work of one target on another one for the session has to end before that other target forgets the session.
    for target in worker.routes.local() {
        ended = ended.and(worker.tell(*target, TargetRequest::SessionLanded(session)).await);
    }
    for target in worker.routes.local() {
        ended = ended.and(worker.tell(*target, TargetRequest::SessionForget(session, stopped)).await);
    }
    gone_here();
    if let Some(cluster) = cluster {
        cluster.forget_elsewhere(session, stopped).await;
    }
    ended
}
