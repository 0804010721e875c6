//! `Links`: the connections to the servers of the cluster, one or several for each server.
//!
//! Owns: the cluster map as this mount knows it, to which server a request is sent, opening connections on first use,
//! and requesting a newer map. Does not own: the life of one connection (`transport::Link`), the requests (`ops`), the
//! state that is presented to a restarted server (`io`).
//!
//! Invariants: the master's connection is opened first and admits the session. The other connections use the same
//! session and key. In shared mode a connection to each server exists, or is being opened. A map is replaced only by
//! one with a later epoch of the same cluster. A server that is down delays only the calls to its own targets. The
//! number that drove the design: compared with a single connection, a request on an open connection costs one more
//! look-up, in a table by target.

mod find;
mod opening;
mod parts;

use crate::coherence::sharing;
use crate::conn::queue::Outgoing;
use crate::inode::Signal;
use crate::io::{Events, Way};
use crate::mount::Mount;
use crate::telemetry::tunables::{TABLE, Tunable};
use crate::writeback::backlog;
use amphi_env::Env;
use amphi_transport::{CallOptions, Link, LinkConfig, LinkError, Outcome, Recovery, Timeouts, ToldCall};
use amphi_types::{Cred, Errno, TargetId};
use amphi_wire::{Call, ClusterMap, Lane, Reply, Request, ServerInfo, Welcome};
use futures_util::future::join_all;
pub(crate) use opening::Seat;
use opening::Stage;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a map is requested again if it is older than the announced one.
const MAP_TRIES: u32 = 5;
/// Pause between these requests.
const MAP_PAUSE: Duration = Duration::from_millis(20);
/// How often a mount that ends checks whether the servers can be reached.
const LOOK: Duration = Duration::from_millis(100);

/// The connections of a mount.
pub(crate) struct Links<E: Env> {
    env: E,
    pub(crate) mount: Arc<Mount>,
    config: LinkConfig,
    /// The master is in this process, so a connection to it that is lost cannot be made again.
    local: bool,
    timeouts: Cell<Timeouts>,
    /// The value of the tunable when it was applied last.
    give_up_s: Cell<u64>,
    /// One seat for each server, in the order of the map, the master's first.
    seats: RefCell<Vec<Rc<Seat<E>>>>,
    /// The open connection of each target.
    routes: RefCell<Vec<Option<Rc<Link<E>>>>>,
    /// While alone: messages of the master that were seen last, and when.
    master_heard: Cell<(u64, u64)>,
    asking: Cell<bool>,
    /// Latest epoch that a server named.
    announced: Cell<u64>,
    /// The value of `Welcome::begun` when the mount began.
    first_begun: Cell<u64>,
    changed: Signal,
}

/// The map for a server that is the only one and reports no map.
fn map_of_one(cluster: u64, pool: u16, addrs: &[String]) -> ClusterMap {
    let targets = (0..pool.max(1)).map(TargetId).collect();
    ClusterMap {
        epoch: 0,
        cluster,
        servers: vec![ServerInfo { id: 0, name: "server".into(), addrs: addrs.to_vec(), targets }],
    }
}

/// The error of a call that was not answered.
fn failed(mount: &Mount, error: LinkError) -> Errno {
    // The connections of a session end with the session.
    mount.coherence.sharing.check().err().unwrap_or(Errno::from(error))
}

/// The fault of a map, if it has one: every target must have exactly one server, and target 0 must be on the first one.
fn fault(map: &ClusterMap) -> Option<&'static str> {
    let all: Vec<TargetId> = map.servers.iter().flat_map(|s| s.targets.iter().copied()).collect();
    let distinct: BTreeSet<TargetId> = all.iter().copied().collect();
    if map.server_of(TargetId(0)) != Some(0) {
        Some("its first server does not have target 0")
    } else if distinct.len() != all.len() {
        Some("a target has two servers")
    } else if distinct.last().is_some_and(|t| usize::from(t.0) >= all.len()) {
        Some("a target has no server")
    } else {
        None
    }
}

impl<E: Env> Links<E> {
    /// Finds the master, has it admit the session, and learns the map.
    ///
    /// Errors: those of connecting, of all addresses that were tried.
    pub(crate) async fn open(env: E, mount: Arc<Mount>, mut config: LinkConfig, way: Way) -> io::Result<Rc<Links<E>>> {
        let found = match &way {
            Way::Local(_) => None,
            Way::Addresses => Some(find::master(&env, &config).await?),
        };
        if let Some(found) = &found {
            config.addrs.clone_from(&found.addrs);
        }
        let map = found.as_ref().and_then(|f| f.map.clone());
        let first = map.as_ref().and_then(|m| m.servers.first().cloned());
        let first = first.unwrap_or_else(|| map_of_one(0, 1, &config.addrs).servers.remove(0));
        let seat = Rc::new(Seat::new(&first));
        let links = Rc::new(Links {
            local: matches!(way, Way::Local(_)),
            timeouts: Cell::new(config.timeouts),
            give_up_s: Cell::new(TABLE[Tunable::GiveUpS as usize].default),
            seats: RefCell::new(vec![seat.clone()]),
            routes: RefCell::default(),
            master_heard: Cell::new((0, mount.clock.boot_ns())),
            asking: Cell::new(false),
            announced: Cell::new(0),
            first_begun: Cell::new(0),
            changed: Signal::default(),
            env: env.clone(),
            mount: mount.clone(),
            config: config.clone(),
        });
        let events = Rc::new(Events::new(env.clone(), &links, &seat));
        let link = match way {
            Way::Addresses => Link::connect_numbered(env, config.clone(), links.numbered(), events).await?,
            Way::Local(dialer) => Link::local(env, dialer, config.clone(), events).await?,
        };
        let welcome = link.welcome();
        seat.set(Stage::Open(link.clone()));
        links.first_begun.set(welcome.begun);
        mount.coherence.sharing.leases.surely_heard(seat.lease(), mount.clock.boot_ns());
        sharing::welcomed(&mount, &welcome);
        mount.cluster.learn(&welcome);
        let map = match map {
            Some(map) if map.epoch >= welcome.map_epoch => map,
            _ => match links.ask(&link).await {
                Ok(map) => map,
                Err(_) => map_of_one(welcome.cluster, welcome.pool, &config.addrs),
            },
        };
        links.adopt(map);
        links.learn_storage(&seat, &welcome);
        links.split(&seat, &link).await;
        links.reroute();
        links.tune();
        Ok(links)
    }

    /// Sends a request. A task is made only for a request that has to wait for a connection or for credits.
    pub(crate) fn send(self: &Rc<Self>, out: Outgoing) {
        if out.deadline.is_some() {
            return self.send_late(out);
        }
        let routes = self.routes.borrow();
        let Some(link) = routes.get(usize::from(out.call.target.0)).and_then(Option::as_ref) else {
            drop(routes);
            return self.send_late(out);
        };
        let Outgoing { lane, call, payload, pad, answer, insist, .. } = out;
        let mount = self.mount.clone();
        let done = Box::new(move |outcome: Outcome| {
            let _ = answer.send(outcome.map_err(|e| failed(&mount, e)));
        });
        if let Err(late) = link.call_and_tell(ToldCall { lane, call, payload, pad, insist, done }) {
            let link = link.clone();
            self.env.spawn(async move {
                let ToldCall { lane, call, payload, pad, insist, done } = *late;
                let options = CallOptions { lane, pad, deadline: None, insist };
                done(link.call_with(options, call, payload).await);
            });
        }
    }

    /// Sends a request to a server. Opens the connection first if necessary, and waits for it for a limited time.
    fn send_late(self: &Rc<Self>, out: Outgoing) {
        let links = self.clone();
        self.env.spawn(async move {
            let Outgoing { lane, call, payload, pad, answer, deadline, insist } = out;
            let whole = async {
                let link = links.link_for(call.target, insist).await?;
                let outcome = link.call_with(CallOptions { lane, pad, deadline, insist }, call, payload).await;
                outcome.map_err(|e| failed(&links.mount, e))
            };
            let outcome = match deadline {
                None => whole.await,
                Some(d) => amphi_env::timeout(&links.env, d, whole).await.unwrap_or(Err(Errno::TimedOut)),
            };
            let _ = answer.send(outcome);
        });
    }

    /// The connection to the server of `target`, opened if need be. A target that the map does not have yet makes us
    /// request the map once.
    async fn link_for(self: &Rc<Self>, target: TargetId, insist: bool) -> Result<Rc<Link<E>>, Errno> {
        let mut seat = self.seat_of(target);
        if seat.is_none() {
            self.refresh().await;
            seat = self.seat_of(target);
        }
        let seat = seat.ok_or_else(|| {
            tracing::warn!("no server has {target}");
            Errno::Io
        })?;
        if insist { self.link_at_last(&seat).await } else { self.link_of(&seat).await }
    }

    fn seat_of(&self, target: TargetId) -> Option<Rc<Seat<E>>> {
        self.seats.borrow().iter().find(|s| s.has(target)).map(|s| s.part_with(target).unwrap_or_else(|| s.clone()))
    }

    /// All seats, each followed by its parts.
    fn all(&self) -> Vec<Rc<Seat<E>>> {
        self.seats.borrow().iter().flat_map(|s| std::iter::once(s.clone()).chain(s.parts())).collect()
    }

    fn master(&self) -> Rc<Seat<E>> {
        self.seats.borrow()[0].clone()
    }

    /// Returns whether `seat` is the master's.
    pub(crate) fn is_master(&self, seat: &Rc<Seat<E>>) -> bool {
        self.seats.borrow().first().is_some_and(|s| Rc::ptr_eq(s, seat))
    }

    /// Targets of the server at `seat`; all targets of `pool` if it is the only server.
    pub(crate) fn targets_of(&self, seat: &Seat<E>, pool: u16) -> Vec<TargetId> {
        if seat.is_part() || self.seats.borrow().len() > 1 {
            return seat.targets();
        }
        (0..pool).map(TargetId).filter(|target| seat.part_with(*target).is_none()).collect()
    }

    /// Applies what a server reports about the storage of its targets.
    pub(crate) fn learn_storage(&self, seat: &Seat<E>, welcome: &Welcome) {
        self.mount.policy.rotational.learn(&self.targets_of(seat, welcome.pool), &welcome.rotating);
    }

    async fn ask(&self, link: &Link<E>) -> Result<ClusterMap, Errno> {
        let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Map };
        match link.call(Lane::Urgent, call, None, 0).await?.0.result? {
            Reply::Map(map) => Ok(map),
            other => Err(crate::conn::replies::unexpected(&other)),
        }
    }

    /// Returns whether the master's connection belongs to another beginning of the session than `begun`.
    pub(crate) fn is_behind(&self, begun: u64) -> bool {
        self.master().link().is_none_or(|link| link.welcome().begun != begun)
    }

    /// Waits until the master's connection has said whether this mount continues its session, if the session was begun
    /// anew.
    ///
    /// Errors: `Io` if the master does not answer.
    pub(crate) async fn hear_master(self: &Rc<Self>) -> Result<(), Errno> {
        loop {
            let heard = match self.link_of(&self.master()).await {
                Ok(link) => self.ask(&link).await,
                Err(e) => Err(e),
            };
            if self.mount.coherence.sharing.is_lost() {
                return Err(Errno::Io);
            }
            match heard {
                Ok(_) => return Ok(()),
                Err(e) => tracing::debug!("the master does not say yet whether the session goes on: {e}"),
            }
            self.env.sleep(MAP_PAUSE).await;
        }
    }

    /// Called when a server has come back after a restart. The client adopts its map if that is newer. The master knows
    /// the newest.
    pub(crate) async fn catch_up(self: &Rc<Self>, recovery: &Recovery<E>) {
        if recovery.welcome().map_epoch <= self.mount.cluster.map.lock().epoch {
            return;
        }
        let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Map };
        match recovery.call(call).await.map_err(Errno::from).and_then(|answer| answer.result) {
            Ok(Reply::Map(map)) => self.adopt(map),
            other => tracing::debug!("no map from a restarted server: {other:?}"),
        }
    }

    /// Write-back learns which targets cannot be reached.
    pub(super) fn mind_reach(&self) {
        let seats = self.all();
        let away = seats.iter().filter(|seat| seat.is_unreachable()).flat_map(|seat| seat.targets()).collect();
        backlog::set_away(&self.mount, away);
    }

    /// Called when the connection of `seat` is up again: an announcement may have been lost meanwhile.
    pub(crate) fn came_up(self: &Rc<Self>, seat: &Rc<Seat<E>>) {
        self.mind_reach();
        if let Some(link) = seat.link() {
            self.announced(link.welcome().map_epoch);
        }
    }

    /// A server named this epoch of the map.
    pub(crate) fn announced(self: &Rc<Self>, epoch: u64) {
        if epoch > self.announced.get() {
            self.announced.set(epoch);
        }
        if epoch > self.mount.cluster.map.lock().epoch {
            self.start_refresh();
        }
    }

    /// Asks the master for the map, unless that is being done.
    fn start_refresh(self: &Rc<Self>) {
        if self.asking.replace(true) {
            return;
        }
        let links = self.clone();
        self.env.spawn(async move {
            for _ in 0..MAP_TRIES {
                match links.link_of(&links.master()).await {
                    Ok(link) => match links.ask(&link).await {
                        Ok(map) => links.adopt(map),
                        Err(e) => tracing::warn!("the cluster map was not told: {e}"),
                    },
                    Err(e) => tracing::warn!("the cluster map cannot be asked for: {e}"),
                }
                if links.mount.cluster.map.lock().epoch >= links.announced.get() {
                    break;
                }
                links.env.sleep(MAP_PAUSE).await;
            }
            links.asking.set(false);
            links.changed.notify();
        });
    }

    async fn refresh(self: &Rc<Self>) {
        self.start_refresh();
        self.changed.until(|| !self.asking.get()).await;
    }

    /// Adopts a map if it is newer than the present one.
    pub(crate) fn adopt(self: &Rc<Self>, map: ClusterMap) {
        let (first, known) = {
            let at_hand = self.mount.cluster.map.lock();
            let known = self.mount.cluster.id.load(Ordering::Relaxed);
            if !at_hand.servers.is_empty() && map.epoch <= at_hand.epoch {
                return;
            }
            (at_hand.servers.is_empty(), known)
        };
        if map.cluster != known {
            tracing::error!("a map of cluster {:016x} for a mount of cluster {known:016x}: ignored", map.cluster);
            return;
        }
        if let Some(fault) = fault(&map) {
            tracing::error!("a cluster map is ignored: {fault}");
            return;
        }
        let before = self.seats.borrow().clone();
        let mut seats = Vec::with_capacity(map.servers.len());
        for (i, info) in map.servers.iter().enumerate() {
            // The master's seat was taken before its number was known.
            let same = |s: &&Rc<Seat<E>>| s.id() == info.id || (first && i == 0);
            let seat = before.iter().find(same).cloned().unwrap_or_else(|| Rc::new(Seat::new(info)));
            seat.renew(info);
            seats.push(seat);
        }
        for gone in before.iter().filter(|s| !seats.iter().any(|n| Rc::ptr_eq(s, n))) {
            gone.leave(&self.env);
        }
        if map.servers.len() > 1 || !first {
            tracing::info!(epoch = map.epoch, servers = map.servers.len(), targets = map.pool(), "cluster map");
        }
        *self.seats.borrow_mut() = seats;
        self.mount.cluster.pool.store(map.pool(), Ordering::Relaxed);
        *self.mount.cluster.map.lock() = map;
        self.reroute();
        if !self.mount.coherence.sharing.is_alone() {
            self.reach_all();
        }
    }

    /// Enters the open connections into the table by target.
    fn reroute(&self) {
        let seats = self.all();
        let mut routes = vec![None; usize::from(self.mount.cluster.map.lock().pool())];
        for seat in seats.iter() {
            let link = seat.link();
            for target in seat.targets() {
                if let Some(route) = routes.get_mut(usize::from(target.0)) {
                    route.clone_from(&link);
                }
            }
        }
        *self.routes.borrow_mut() = routes;
        self.mind_reach();
        let mut leases = vec![Arc::default(); usize::from(self.mount.cluster.map.lock().pool())];
        for seat in seats.iter() {
            for target in seat.targets() {
                if let Some(lease) = leases.get_mut(usize::from(target.0)) {
                    *lease = seat.lease().clone();
                }
            }
        }
        self.mount.coherence.sharing.leases.set(leases);
    }

    /// In shared mode the mount has a connection to each server, because a restarted server waits for all mounts that
    /// may hold something.
    pub(crate) fn reach_all(self: &Rc<Self>) {
        let seats = self.seats.borrow().clone();
        seats.iter().for_each(|seat| self.reach(seat));
    }

    /// Checks whether the master of several servers has been silent for so long that this mount may not be the only one
    /// any more.
    pub(crate) fn mind_silence(&self) {
        let (now, messages) = (self.mount.clock.boot_ns(), self.master().messages.get());
        let (seen, at) = self.master_heard.get();
        if !self.mount.coherence.sharing.is_alone() || self.seats.borrow().len() < 2 || messages != seen {
            self.master_heard.set((messages, now));
        } else if now.saturating_sub(at) >= sharing::CAUTION_NS {
            sharing::be_cautious(&self.mount);
        }
    }

    /// Called when the connection of `seat` is down. The connection to a master in this process ends only with the
    /// session.
    pub(crate) fn went_down(&self, seat: &Rc<Seat<E>>) {
        self.mind_reach();
        let stopping = self.mount.life.stopping.load(Ordering::Acquire);
        if self.local && self.is_master(seat) && !stopping {
            crate::locks::session_end::lose(&self.mount, "it did not answer");
            self.leave_others();
        }
    }

    /// Called when the session has ended. Nothing more is sent to the other servers, nor to the master on other
    /// connections than the first.
    pub(crate) fn leave_others(&self) {
        let seats = self.seats.borrow().clone();
        seats.iter().take(1).flat_map(|master| master.parts()).for_each(|part| part.leave(&self.env));
        seats.iter().skip(1).for_each(|seat| seat.leave(&self.env));
    }

    /// Names of the servers that are wanted and cannot be reached at the moment.
    pub(crate) fn unreachable(&self) -> Vec<String> {
        let seats = self.seats.borrow();
        let away = seats.iter().filter(|s| s.is_unreachable() || s.parts().iter().any(|part| part.is_unreachable()));
        away.map(|s| format!("server {}", s.name())).collect()
    }

    /// Returns when some server could not be reached for all of `patience` from now on: their names.
    pub(crate) async fn until_unreachable(&self, env: &E, patience: Duration) -> Vec<String> {
        let mut since = env.now();
        loop {
            env.sleep(LOOK).await;
            let away = self.unreachable();
            if away.is_empty() {
                since = env.now();
            } else if env.now().since(since) >= patience {
                return away;
            }
        }
    }

    /// Brings the tunable to every connection.
    pub(crate) fn tune(&self) {
        let give_up_s = self.mount.tunables.get(Tunable::GiveUpS);
        if give_up_s == self.give_up_s.get() {
            return;
        }
        self.give_up_s.set(give_up_s);
        let timeouts = Timeouts { give_up: Duration::from_secs(give_up_s), ..self.timeouts.get() };
        self.timeouts.set(timeouts);
        self.all().iter().filter_map(|s| s.link()).for_each(|l| l.set_timeouts(timeouts));
    }

    /// Ends the session. The other connections are closed first, and then the master is informed within `patience`.
    pub(crate) async fn close(&self, patience: Duration) {
        let seats = self.all();
        seats.iter().for_each(|s| s.set_gone());
        let open: Vec<Rc<Link<E>>> = seats.iter().skip(1).filter_map(|s| s.link()).collect();
        join_all(open.iter().map(|link| link.close())).await;
        let Some(link) = self.master().link() else { return };
        if self.master().is_unreachable() {
            return link.close().await;
        }
        let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Goodbye };
        let goodbye = amphi_env::timeout(&self.env, patience, link.call(Lane::Urgent, call, None, 0)).await;
        if !matches!(goodbye, Some(Ok(_))) {
            tracing::warn!("the server did not hear the goodbye");
        }
        link.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(servers: &[&[u16]]) -> ClusterMap {
        let server = |(i, targets): (usize, &&[u16])| ServerInfo {
            id: i as u64 + 1,
            name: format!("s{i}"),
            addrs: Vec::new(),
            targets: targets.iter().map(|t| TargetId(*t)).collect(),
        };
        ClusterMap { epoch: 1, cluster: 1, servers: servers.iter().enumerate().map(server).collect() }
    }

    /// Goal: only maps that give each target one server are used. Method: a table.
    #[test]
    fn maps_are_checked() {
        for (servers, right) in [
            (&[&[0u16, 1][..], &[2]][..], true),
            (&[&[0, 2], &[1]], true),
            (&[&[0], &[]], true),
            (&[], false),
            (&[&[1], &[0]], false),
            (&[&[0, 1], &[1]], false),
            (&[&[0], &[2]], false),
        ] {
            assert_eq!(fault(&map(servers)).is_none(), right, "{servers:?}");
        }
        assert!(fault(&map_of_one(1, 4, &[])).is_none());
    }
}
