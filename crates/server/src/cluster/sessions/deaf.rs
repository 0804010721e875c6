//! Clients that live and do not answer.
//!
//! Owns: detecting that a session is *deaf* (unresponsive): its connection is alive, but a callback, revocation,
//! glimpse or switch of mode is left without an answer and without a report that the client is at work. Does not own:
//! clients that are not alive (a machine that hangs, a network that is cut). Such clients have time until the callback
//! deadline, since they may connect again.
//!
//! An unresponsive client is evicted within `server.deaf_ms` [5 s]. Its tokens end at once, because it has read the
//! message that requires it to return them. This rule relies on three facts. First, a client that works answers at
//! once, or reports at least every 3 s that it is at work (`LockKept`, `CompanyKept`). These reports come from the task
//! that also answers `Ping`. Second, a stream keeps its order. If a `Ping` that was sent after a callback is answered,
//! the client has read the callback, and the server has processed everything that the client sent before the answer.
//! Third, the client has to be seen to run all the time: each `Ping`, one every `PING`, is answered within `PING`. A
//! process that was stopped, a machine without a free core, a slow network, or a server that was stopped itself all
//! cause a late answer, and then the observation starts anew.
//!
//! All of this is observed for each connection separately: the messages that were sent on it, and whether the `Ping`s
//! on it are answered. The targets of a worker send their messages on the session's connection at that worker, or on
//! its first one (`Entry::line_of`). The worker of the connection queries its targets for unanswered messages, so that
//! this query passes through the same queue as the answers.

use super::SessionManager;
use super::entry::{Line, State};
use super::front::{Question, Told, is_question};
use crate::membership::eviction::Eviction;
use amphi_env::Env;
use amphi_transport::ConnId;
use amphi_types::SessionId;
use amphi_wire::{Push, Role};
use std::rc::Rc;
use std::time::Duration;

/// If a message is unanswered for this time, the server begins to check whether the client is alive. Most answers take
/// less than a millisecond.
const SUSPECT: Duration = Duration::from_millis(500);
/// How often a suspected client gets a `Ping`, and how long it may take to answer.
const PING: Duration = Duration::from_millis(400);
/// A message counts only if it is this much older than the first answered `Ping`. By then it has been sent.
const SENT: Duration = Duration::from_millis(300);
/// How long a client that has to switch modes may send nothing. It reports each second that it is at work. A new mount
/// waits for the switch, and is refused after 4 s.
const SWITCHING: Duration = Duration::from_millis(2400);
/// Sessions that ended so and do not come back.
const REMEMBERED_MAX: usize = 1024;

/// The reason that is reported for the end of the session.
const WHY: &str = "it is alive and does not answer what it is asked";

fn ns(d: Duration) -> u64 {
    d.as_nanos() as u64
}

impl<E: Env> SessionManager<E> {
    /// Called when a message is sent to a session on a connection. If it needs an answer, the session is observed until
    /// the answer arrives.
    pub(super) fn listen_for_answer(self: &Rc<Self>, session: SessionId, conn: ConnId, push: &Push) {
        if is_question(push) && self.worker.tunables.deaf().is_some() {
            self.watch(session, conn);
        }
    }

    /// Called when a message that needs an answer was sent to a session on a connection. Begins to observe whether it
    /// is answered.
    pub(super) fn watch(self: &Rc<Self>, session: SessionId, conn: ConnId) {
        match self.sessions.borrow_mut().get_mut(&session).filter(|entry| entry.role == Role::Mount) {
            Some(entry) => match entry.line_mut(conn) {
                Some(line) if line.watched => {
                    line.asked_again = true;
                    return;
                }
                Some(line) => line.watched = true,
                None => return,
            },
            None => return,
        }
        let (weak, env) = (Rc::downgrade(self), self.worker.env.clone());
        self.worker.env.spawn(async move {
            loop {
                env.sleep(SUSPECT).await;
                let Some(manager) = weak.upgrade() else { return };
                let before_ns = manager.worker.now_ns().saturating_sub(ns(SUSPECT));
                if manager.is_unanswered(session, conn, before_ns).await && manager.observe(session, conn).await {
                    return manager.evict_deaf(session);
                }
                if !manager.asked_again(session, conn).await {
                    return;
                }
            }
        });
    }

    /// Returns whether more such messages were sent to a session on a connection since the observation began. If not,
    /// the observation ends.
    async fn asked_again(&self, session: SessionId, conn: ConnId) -> bool {
        let Some(line) = self.ear(session, conn) else { return false };
        let elsewhere =
            line.worker != 0 && self.front.is(usize::from(line.worker), Question::AskedAgain(session, conn)).await;
        let mut sessions = self.sessions.borrow_mut();
        // If the connection was lost meanwhile, its unanswered messages are sent on the next one.
        let Some(line) = sessions.get_mut(&session).and_then(|entry| entry.line_mut(conn)) else { return false };
        line.watched = std::mem::take(&mut line.asked_again) || elsewhere;
        line.watched
    }

    /// A connection of a session that may not be answering, as long as both exist.
    fn ear(&self, session: SessionId, conn: ConnId) -> Option<Line> {
        let sessions = self.sessions.borrow();
        let entry = sessions.get(&session).filter(|e| e.state == State::Alive)?;
        entry.lines().find(|line| line.conn == conn).copied()
    }

    /// If the connection was lost meanwhile, the unanswered messages are sent on the next one.
    async fn is_unanswered(&self, session: SessionId, conn: ConnId, since_ns: u64) -> bool {
        let Some(line) = self.ear(session, conn) else { return false };
        let first = self.sessions.borrow().get(&session).and_then(|e| e.conn).is_some_and(|first| first.conn == conn);
        if first && self.leaves_switch_unanswered(session, since_ns) {
            return true;
        }
        let targets = self.targets_by(session, conn);
        self.front.is(usize::from(line.worker), Question::Unanswered(session, targets, since_ns)).await
    }

    /// Counts only the master's switches of mode. A mount answers only the master, even if another server has sent the
    /// same switch.
    fn leaves_switch_unanswered(&self, session: SessionId, since_ns: u64) -> bool {
        if self.cluster().is_some_and(|c| !c.is_master()) {
            return false;
        }
        self.sessions.borrow().get(&session).is_some_and(|e| {
            let (asked, behind) = (e.asked_ns.max(e.kept_ns), e.known < self.rule.change());
            e.state == State::Alive && e.conn.is_some() && behind && e.asked_ns > 0 && asked <= since_ns
        })
    }

    /// Observes whether a session that leaves a message unanswered is alive. Returns whether it is unresponsive. It is
    /// not if it has answered or has ended.
    async fn observe(self: &Rc<Self>, session: SessionId, conn: ConnId) -> bool {
        let Some(line) = self.ear(session, conn) else { return false };
        let worker = usize::from(line.worker);
        // If only the earlier message was lost, the client gets this copy.
        self.push_again_by(session, line);
        let mut alive_ns = None;
        loop {
            let Some(deaf) = self.worker.tunables.deaf() else { return false };
            let pinged_ns = self.worker.now_ns();
            let probed =
                amphi_env::timeout(&self.worker.env, PING, self.front.ask(worker, Question::Probe(conn))).await;
            let sign = match probed {
                Some(Some(Told::Alive(sign))) => sign,
                _ => None,
            };
            let now_ns = self.worker.now_ns();
            if self.ear(session, conn).is_none() {
                return false;
            }
            alive_ns = match sign {
                // By now the client has read everything that was sent before.
                Some(sign) if sign.has_read_all || alive_ns.is_some() => alive_ns.or(Some(now_ns)),
                _ => None,
            };
            let window_ns = ns(deaf.saturating_sub(SUSPECT + 2 * PING));
            if let Some(from_ns) = alive_ns {
                let (seen_ns, since_ns) = (now_ns - from_ns, from_ns.saturating_sub(ns(SENT)));
                let switch =
                    seen_ns >= window_ns.min(ns(SWITCHING)) && self.leaves_switch_unanswered(session, since_ns);
                if switch || (seen_ns >= window_ns && self.is_unanswered(session, conn, since_ns).await) {
                    return self.ear(session, conn).is_some();
                }
            }
            if !self.is_unanswered(session, conn, self.worker.now_ns().saturating_sub(ns(SUSPECT))).await {
                return false;
            }
            let left_ns = (pinged_ns + ns(PING)).saturating_sub(self.worker.now_ns());
            self.worker.env.sleep(Duration::from_nanos(left_ns)).await;
        }
    }

    /// Ends a session that is unresponsive. Such a session does not begin again.
    pub(crate) fn evict_deaf(self: &Rc<Self>, session: SessionId) {
        let lines: Vec<Line> =
            self.sessions.borrow().get(&session).map(|e| e.lines().copied().collect()).unwrap_or_default();
        self.refuse_from_now_on(session);
        match self.cluster().filter(|c| !c.is_master()) {
            Some(follower) => {
                tracing::warn!("a session is evicted: {WHY}");
                follower.evict_here(session, WHY, Eviction::Deaf);
            }
            None => self.end_deaf(session, WHY),
        }
        // The client is informed now, whatever the end of the session has to wait for.
        lines.into_iter().for_each(|line| self.cut(line, "the session has ended"));
    }

    fn refuse_from_now_on(&self, session: SessionId) {
        let mut deaf = self.deaf.borrow_mut();
        if deaf.len() >= REMEMBERED_MAX {
            deaf.pop_front();
        }
        deaf.push_back(session);
    }

    /// Returns whether a session has ended because it was deaf.
    pub(super) fn was_deaf(&self, session: SessionId) -> bool {
        self.deaf.borrow().contains(&session)
    }
}
