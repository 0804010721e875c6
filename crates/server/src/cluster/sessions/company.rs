//! Sole and shared mode: informing mounts and targets when a second mount arrives or only one is left.
//!
//! Owns: the order of a switch. Does not own: the mode in force (`rule`), tokens (`crate::coherence::tokens`), and what
//! a client does when the mode switches.
//!
//! A mount in sole mode lets its kernel cache names and attributes for a fixed time, and targets grant no tokens.
//! Before a second mount is welcomed, targets grant tokens and every mount has confirmed that nothing cached in sole
//! mode is used any more. For the switch back, the last mount is informed first. Targets grant tokens until it has
//! confirmed, so that the entries that it cached under tokens can be revoked as long as they may be used. There is one
//! switch at a time.
//!
//! Only the master decides and informs mounts, and switches its own targets. Other servers grant tokens unless the
//! master has said recently that there is one mount (`step`). Before a second mount is welcomed, each of them has
//! confirmed that it grants tokens, or the master's last such answer to it has expired.

use super::SessionManager;
use super::entry::{Entry, State};
use super::rule::KERNEL_MARGIN_NS;
use crate::coherence::tokens::{TOKEN_LIFE, TOKEN_MARGIN};
use crate::membership::lease::ALONE_LEASE;
use crate::membership::peer_message::PeerRequest;
use crate::message::TargetRequest;
use crate::zone_target::gate::Hold;
use amphi_env::Env;
use amphi_types::{Result, SessionId};
use amphi_wire::{Push, Role};
use futures_channel::oneshot;
use futures_util::future::{Either, join_all, select};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// This is added to the time for which another server may be without tokens, because its clock may be late by this
/// much.
const LEASE_MARGIN: Duration = Duration::from_millis(500);

/// A sole mount of several servers that has received nothing from the master for 10 s acts as in shared mode
/// (`crates/client`, `company`). A disconnected mount may act in sole mode on other servers for this long. It includes
/// a second for the mount's check and one for its clock.
const CAUTION: Duration = Duration::from_secs(12);

/// Whether a mount delays a switch.
enum Stands {
    No,
    /// The mount acts in sole mode until this time, at which the server has to act.
    Until(u64),
}

impl<E: Env> SessionManager<E> {
    /// Waits until the table of sessions changes, or until `at_ns`.
    async fn changed_or(&self, at_ns: u64) {
        let (sender, changed) = oneshot::channel::<()>();
        {
            let mut watchers = self.watchers.borrow_mut();
            watchers.retain(|w| !w.is_canceled());
            watchers.push(sender);
        }
        let left = Duration::from_nanos(at_ns.saturating_sub(self.worker.now_ns()) + 1);
        match select(changed, pin!(self.worker.env.sleep(left))).await {
            Either::Left(_) | Either::Right(_) => {}
        }
    }

    /// Called when the table of sessions has changed.
    pub(super) fn ring(&self) {
        for watcher in self.watchers.take() {
            // The receiver may no longer wait.
            let _ = watcher.send(());
        }
    }

    fn mount_count(&self) -> usize {
        self.sessions.borrow().values().filter(|e| e.role == Role::Mount).count()
    }

    /// Another server asks whether the only mount has confirmed that it is the only one. If it does, the time of the
    /// answer is noted.
    pub(crate) fn tell_alone(&self, server: u64) -> Option<u64> {
        let change = self.rule.change();
        let knows = |e: &Entry| e.role != Role::Mount || (e.state == State::Alive && e.known >= change);
        let alone = self.rule.is_alone() && !self.rule.tokens.get() && self.mount_count() < 2;
        if !alone || !self.sessions.borrow().values().all(knows) {
            return None;
        }
        self.rule.told_alone_ns.borrow_mut().insert(server, self.worker.now_ns());
        Some(change)
    }

    /// Waits until all other servers grant tokens: each has confirmed it, or the last answer that let it stop granting
    /// has expired. The wait ends early when `given_up` returns true.
    async fn all_grant(&self, given_up: &impl Fn() -> bool) {
        let change = self.rule.change();
        let Some(cluster) = self.cluster().filter(|_| self.rule.all_grant.get() < change) else { return };
        let told = cluster.others().into_iter().map(|server| {
            let told_ns = self.rule.told_alone_ns.borrow().get(&server.id).copied();
            let over_ns = told_ns.unwrap_or(self.rule.started_ns) + (ALONE_LEASE + LEASE_MARGIN).as_nanos() as u64;
            let cluster = &cluster;
            async move {
                let asked = pin!(cluster.ask_server(server.id, PeerRequest::Company(change)));
                let left_ns = over_ns.saturating_sub(self.worker.now_ns());
                match select(asked, pin!(self.worker.env.sleep(Duration::from_nanos(left_ns)))).await {
                    Either::Left((Ok(_), _)) | Either::Right(_) => {}
                    // The server may live although it did not get the message.
                    Either::Left((Err(_), lease)) => lease.await,
                }
            }
        });
        let all = pin!(join_all(told));
        let gone = async {
            while !given_up() {
                self.worker.env.sleep(super::LOOK).await;
            }
        };
        if let Either::Left(_) = select(all, pin!(gone)).await {
            self.rule.all_grant.set(change);
        }
    }

    /// After a start: mounts that may reconnect are in shared mode if there are several of them. They are in shared
    /// mode too if sessions that were cut off (`cut_off`) may still use tokens, for which changes have to wait.
    pub async fn begin(self: &Rc<Self>, cut_off: bool) -> Result<()> {
        if cut_off {
            let life = (TOKEN_LIFE + TOKEN_MARGIN).as_nanos() as u64;
            self.rule.orphans_until_ns.set(self.worker.now_ns() + life);
        }
        if self.mount_count() > 1 || cut_off {
            self.announce(true).await?;
            self.look_alone();
        }
        Ok(())
    }

    /// Informs targets and mounts of the mode that is in force from now on. For a switch to sole mode, targets are
    /// informed later (`part_company`).
    async fn announce(self: &Rc<Self>, company: bool) -> Result<()> {
        if self.rule.company.replace(company) == company {
            return Ok(());
        }
        let change = self.rule.change.get() + 1;
        self.rule.change.set(change);
        if company {
            self.rule.tokens.set(true);
            for target in self.worker.routes.local() {
                self.worker.tell(*target, TargetRequest::Company(true, change)).await?;
            }
        }
        let present: Vec<SessionId> = self.sessions.borrow().keys().copied().collect();
        for session in present {
            self.tell_company(session);
        }
        Ok(())
    }

    /// Sends a mount the mode in force, if it does not know it and can be reached.
    pub(super) fn tell_company(self: &Rc<Self>, session: SessionId) {
        let (change, now_ns) = (self.rule.change(), self.worker.now_ns());
        let behind = match self.sessions.borrow_mut().get_mut(&session) {
            Some(e) if e.role == Role::Mount && e.conn.is_some() && e.known < change => {
                e.asked_ns = now_ns;
                true
            }
            _ => false,
        };
        if behind {
            self.push(session, Push::Company { change, alone: self.rule.is_alone() });
        }
    }

    /// Handles `Request::CompanyKnown`.
    pub(super) fn company_known(self: &Rc<Self>, session: SessionId, change: u64) {
        if let Some(entry) = self.sessions.borrow_mut().get_mut(&session) {
            entry.known = entry.known.max(change.min(self.rule.change()));
        }
        self.ring();
        self.look_alone();
    }

    /// Handles `Request::CompanyKept`.
    pub(super) fn company_kept(&self, session: SessionId, change: u64) {
        let now_ns = self.worker.now_ns();
        if let Some(entry) = self.sessions.borrow_mut().get_mut(&session).filter(|_| change == self.rule.change()) {
            entry.kept_ns = now_ns;
        }
    }

    fn stands(&self, entry: &Entry, now_ns: u64) -> Stands {
        let deadline_ns = self.worker.tunables.callback_deadline_ns();
        match (entry.state, entry.conn) {
            // A session that is not welcomed yet will be informed by its welcome.
            (State::Starting, _) => Stands::No,
            // If something of the session is left on a server, that server admits no mount before it is released.
            (State::EndingElsewhere, _) => Stands::No,
            (State::Ending, _) => Stands::Until(now_ns + deadline_ns),
            (State::Alive, _) if entry.known >= self.rule.change() => Stands::No,
            (State::Alive, Some(_)) => Stands::Until(entry.asked_ns + deadline_ns),
            (State::Alive, None) => {
                let caution_ns = if self.worker.routes.is_shared() { CAUTION.as_nanos() as u64 } else { 0 };
                let over = entry.heard_ns + caution_ns + self.rule.kernel_ns.get() + KERNEL_MARGIN_NS;
                if over <= now_ns { Stands::No } else { Stands::Until(over) }
            }
        }
    }

    /// Switches to shared mode before `session` is welcomed. Returns when nothing that was cached in sole mode is in
    /// use any more, or when `given_up`.
    pub(super) async fn join_company(
        self: &Rc<Self>,
        session: SessionId,
        given_up: impl Fn() -> bool,
    ) -> std::result::Result<(), String> {
        let _turn = self.rule.turn.take(vec![((), Hold::Exclusive)]).await;
        self.announce(true).await.map_err(|e| format!("a target cannot be reached: {e}"))?;
        self.all_grant(&given_up).await;
        while !given_up() {
            let now_ns = self.worker.now_ns();
            let mut at = Some(self.rule.kernel_until_ns.get()).filter(|at| *at > now_ns);
            let mut late = Vec::new();
            for (id, entry) in self.sessions.borrow().iter().filter(|(id, e)| **id != session && e.role == Role::Mount)
            {
                let Stands::Until(until) = self.stands(entry, now_ns) else { continue };
                let gone = entry.state == State::Alive && (self.worker.config.holder_gone)(&entry.name);
                if gone || until <= now_ns {
                    late.push((*id, gone));
                }
                at = Some(at.map_or(until, |at| at.min(until)));
            }
            for (id, gone) in &late {
                match gone {
                    true => self.end_dead(*id),
                    false => self.evict(*id, "it did not answer that another mount came"),
                }
            }
            match at {
                None => return Ok(()),
                // The session that was just evicted is ending now.
                Some(_) if !late.is_empty() => {}
                Some(at) => self.changed_or(at).await,
            }
        }
        Ok(())
    }

    /// Checks whether only one mount is left, and if so begins the switch to sole mode.
    pub(super) fn look_alone(self: &Rc<Self>) {
        if self.rule.tokens.get() && self.mount_count() < 2 {
            let manager = self.clone();
            self.worker.env.spawn(async move {
                // On an error targets continue to grant tokens, which only costs speed.
                let _ = manager.part_company().await;
            });
        }
    }

    async fn part_company(self: &Rc<Self>) -> Result<()> {
        let _turn = self.rule.turn.take(vec![((), Hold::Exclusive)]).await;
        if !self.rule.tokens.get() || self.mount_count() > 1 || self.admission.is_closed() {
            return Ok(());
        }
        let until_ns = self.rule.orphans_until_ns.get().max(self.rule.wanted_until_ns.get());
        let left_ns = until_ns.saturating_sub(self.worker.now_ns());
        if left_ns > 0 {
            let (weak, sleep) = (Rc::downgrade(self), self.worker.env.sleep(Duration::from_nanos(left_ns + 1)));
            self.worker.env.spawn(async move {
                sleep.await;
                if let Some(manager) = weak.upgrade() {
                    manager.look_alone();
                }
            });
            return Ok(());
        }
        self.announce(false).await?;
        let change = self.rule.change();
        let all_know = |e: &Entry| e.role != Role::Mount || (e.state == State::Alive && e.known >= change);
        if self.sessions.borrow().values().all(all_know) {
            for target in self.worker.routes.local() {
                self.worker.tell(*target, TargetRequest::Company(false, change)).await?;
            }
            self.rule.tokens.set(false);
        }
        Ok(())
    }
}
