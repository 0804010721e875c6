//! `Seat`: a server of the map with the connection to it, opened when it is first needed.
//!
//! Invariant: at most one task opens the connection of a server. It continues until the connection exists, the server
//! has left the map, or the mount ends. After `Timeouts::give_up`, calls fail while the task continues.

use super::Links;
use super::find::leads_here;
use crate::inode::Signal;
use crate::io::{Events, represent_opens};
use crate::tables::coherence::leases::Lease;
use amphi_env::Env;
use amphi_transport::{Link, LinkConfig, Numbered};
use amphi_types::{Errno, TargetId};
use amphi_wire::ServerInfo;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The state of the connection to a server.
pub(super) enum Stage<E: Env> {
    /// Nobody has needed the connection yet.
    Closed,
    /// Being opened: calls wait.
    Opening,
    /// The connection has been opening for so long that calls fail.
    Failing,
    /// The connection exists, and repairs itself.
    Open(Rc<Link<E>>),
}

/// A server and the connection to it.
pub(crate) struct Seat<E: Env> {
    info: RefCell<ServerInfo>,
    stage: RefCell<Stage<E>>,
    /// Further connections to the server, each of which has targets of its own.
    pub(super) parts: RefCell<Vec<Rc<Seat<E>>>>,
    /// For a further connection: the targets that use it.
    own: Option<Vec<TargetId>>,
    /// The server is no longer in the map, or the mount ends.
    gone: Cell<bool>,
    /// The connection existed, and has broken.
    broken: Cell<bool>,
    changed: Signal,
    lease: Arc<Lease>,
    /// Number of messages that came while the mount was in sole mode.
    pub(crate) messages: Cell<u64>,
}

impl<E: Env> Seat<E> {
    pub(super) fn new(info: &ServerInfo) -> Seat<E> {
        Seat {
            info: RefCell::new(info.clone()),
            stage: RefCell::new(Stage::Closed),
            parts: RefCell::default(),
            own: None,
            gone: Cell::new(false),
            broken: Cell::new(false),
            changed: Signal::default(),
            lease: Arc::default(),
            messages: Cell::new(0),
        }
    }

    /// A further connection to the same server, for these targets.
    pub(super) fn part(&self, own: Vec<TargetId>) -> Seat<E> {
        Seat { own: Some(own), ..Seat::new(&self.info.borrow()) }
    }

    /// Returns whether this is a further connection to a server.
    pub(super) fn is_part(&self) -> bool {
        self.own.is_some()
    }

    /// Further connections to the server.
    pub(super) fn parts(&self) -> Vec<Rc<Seat<E>>> {
        self.parts.borrow().clone()
    }

    /// The further connection that has a target.
    pub(super) fn part_with(&self, target: TargetId) -> Option<Rc<Seat<E>>> {
        let parts = self.parts.borrow();
        parts.iter().find(|part| part.own.as_ref().is_some_and(|own| own.contains(&target))).cloned()
    }

    /// When the last message from the server arrived on this connection.
    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    pub(super) fn id(&self) -> u64 {
        self.info.borrow().id
    }

    /// Name of the server, for people.
    pub(crate) fn name(&self) -> String {
        self.info.borrow().name.clone()
    }

    /// Targets of the server that are reached by this connection.
    pub(crate) fn targets(&self) -> Vec<TargetId> {
        if let Some(own) = &self.own {
            return own.clone();
        }
        let mut targets = self.info.borrow().targets.clone();
        targets.retain(|target| self.part_with(*target).is_none());
        targets
    }

    pub(super) fn has(&self, target: TargetId) -> bool {
        self.info.borrow().targets.contains(&target)
    }

    /// Called when the connection has broken, or has been made again.
    pub(crate) fn set_broken(&self, broken: bool) {
        self.broken.set(broken);
    }

    /// Returns whether the server is wanted and cannot be reached at the moment.
    pub(super) fn is_unreachable(&self) -> bool {
        match &*self.stage.borrow() {
            Stage::Closed => false,
            Stage::Opening | Stage::Failing => true,
            Stage::Open(_) => self.broken.get(),
        }
    }

    /// Applies what a newer map says about the server.
    pub(super) fn renew(&self, info: &ServerInfo) {
        *self.info.borrow_mut() = info.clone();
    }

    pub(super) fn set(&self, stage: Stage<E>) {
        *self.stage.borrow_mut() = stage;
        self.changed.notify();
    }

    pub(super) fn set_gone(&self) {
        self.gone.set(true);
        self.changed.notify();
    }

    pub(super) fn link(&self) -> Option<Rc<Link<E>>> {
        match &*self.stage.borrow() {
            Stage::Open(link) => Some(link.clone()),
            _ => None,
        }
    }

    /// Called when the server is no longer in the map, so requests that wait for it fail.
    pub(super) fn leave(&self, env: &E) {
        self.parts.borrow().iter().for_each(|part| part.leave(env));
        self.set_gone();
        if let Some(link) = self.link() {
            env.spawn(async move { link.close().await });
        }
    }
}

impl<E: Env> Links<E> {
    /// The connection to a server, opened if need be.
    pub(super) async fn link_of(self: &Rc<Self>, seat: &Rc<Seat<E>>) -> Result<Rc<Link<E>>, Errno> {
        self.reach(seat);
        let waiting = || seat.gone.get() || !matches!(*seat.stage.borrow(), Stage::Closed | Stage::Opening);
        seat.changed.until(waiting).await;
        seat.link().filter(|_| !seat.gone.get()).ok_or(Errno::Io)
    }

    /// Works as `link_of`, but waits as long as necessary.
    pub(super) async fn link_at_last(self: &Rc<Self>, seat: &Rc<Seat<E>>) -> Result<Rc<Link<E>>, Errno> {
        self.reach(seat);
        seat.changed.until(|| seat.gone.get() || matches!(*seat.stage.borrow(), Stage::Open(_))).await;
        seat.link().filter(|_| !seat.gone.get()).ok_or(Errno::Io)
    }

    /// Opens the connection to a server unless that has begun.
    pub(super) fn reach(self: &Rc<Self>, seat: &Rc<Seat<E>>) {
        if matches!(*seat.stage.borrow(), Stage::Closed) && !seat.gone.get() {
            self.start_opening(seat);
        }
    }

    fn start_opening(self: &Rc<Self>, seat: &Rc<Seat<E>>) {
        assert!(matches!(*seat.stage.borrow(), Stage::Closed), "server {} is being opened already", seat.name());
        seat.set(Stage::Opening);
        let (links, seat) = (self.clone(), seat.clone());
        self.env.spawn(async move {
            let begun = links.env.now();
            let mut pause = links.timeouts.get().backoff_min;
            let mut told = false;
            loop {
                match links.dial(&seat).await {
                    Ok(link) => return links.opened(&seat, link).await,
                    Err(e) if !told => tracing::warn!("server {} cannot be reached yet: {e}", seat.name()),
                    Err(e) => tracing::debug!("server {} cannot be reached yet: {e}", seat.name()),
                }
                if !std::mem::replace(&mut told, true) {
                    links.mind_reach();
                }
                let timeouts = links.timeouts.get();
                let patience = links.env.now().since(begun) < timeouts.give_up;
                if !patience && matches!(*seat.stage.borrow(), Stage::Opening) {
                    tracing::warn!("no server {} for {:?}: calls to it fail", seat.name(), timeouts.give_up);
                    seat.set(Stage::Failing);
                }
                links.env.sleep(pause).await;
                if seat.gone.get() || links.mount.life.stopped.load(Ordering::Acquire) {
                    return;
                }
                pause = (pause * 2).min(timeouts.backoff_max);
            }
        });
    }

    /// Tries every address of a server once.
    async fn dial(self: &Rc<Self>, seat: &Rc<Seat<E>>) -> io::Result<Rc<Link<E>>> {
        let mut addrs = seat.info.borrow().addrs.clone();
        addrs.retain(|a| leads_here(a));
        if addrs.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "it has no address that leads there"));
        }
        self.dial_at(seat, addrs, self.numbered()).await
    }

    /// Tries these addresses of a server once.
    pub(super) async fn dial_at(
        self: &Rc<Self>,
        seat: &Rc<Seat<E>>,
        addrs: Vec<String>,
        numbered: Numbered,
    ) -> io::Result<Rc<Link<E>>> {
        let mut timeouts = self.timeouts.get();
        timeouts.first_connect = Duration::ZERO;
        let config = LinkConfig { addrs, timeouts, ..self.config.clone() };
        let events = Rc::new(Events::new(self.env.clone(), self, seat));
        let link = Link::connect_numbered(self.env.clone(), config, numbered, events).await?;
        let (theirs, ours) = (link.welcome().cluster, self.mount.cluster.id.load(Ordering::Relaxed));
        if theirs != ours {
            link.close().await;
            let line = format!("it belongs to cluster {theirs:016x}, not {ours:016x}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, line));
        }
        Ok(link)
    }

    async fn opened(self: &Rc<Self>, seat: &Rc<Seat<E>>, link: Rc<Link<E>>) {
        let welcome = link.welcome();
        if !self.is_master(seat) && self.is_behind(welcome.begun) {
            // The session may have ended and begun anew: the master says whether this mount continues with it.
            if let Err(e) = self.hear_master().await {
                tracing::debug!("server {} is left: {e}", seat.name());
                seat.set_gone();
            }
        }
        if seat.gone.get() {
            return link.close().await;
        }
        self.learn_storage(seat, &welcome);
        self.mount.coherence.sharing.leases.surely_heard(&seat.lease, self.mount.clock.boot_ns());
        // Other servers may have opened files there for the session, which the restarted server has forgotten.
        if welcome.resumed || welcome.begun != self.first_begun.get() {
            for target in self.targets_of(seat, welcome.pool) {
                if let Err(e) = represent_opens(&self.mount, &link, target).await {
                    tracing::warn!("server {} was not told what is open on {target}: {e}", seat.name());
                }
            }
        }
        self.split(seat, &link).await;
        if seat.gone.get() {
            seat.leave(&self.env);
            return link.close().await;
        }
        let epoch = welcome.map_epoch;
        seat.set(Stage::Open(link));
        self.reroute();
        self.announced(epoch);
    }
}
