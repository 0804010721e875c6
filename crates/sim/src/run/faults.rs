//! Faults that no program may notice: servers are killed and come back, connections break, links are cut for a while.
//!
//! Owns: the choice of faults, of the nodes that they affect, and of their durations. Does not own: what ends an
//! episode (`run`).
//!
//! Rules. A server is back within some seconds, beside what starting takes. A mount and a server are cut off from each
//! other for less than the deadline of callbacks, since a silent mount is ended after that. Two servers are cut off
//! from each other for less than the time after which a request between servers fails. Several faults in a row may add
//! up to this, sometimes with a pause in which they connect again. Of several servers two may have faults at the same
//! time.

use super::{Checked, Faults, Run, STUCK, line};
use crate::cluster::{CALLBACK_DEADLINE, SERVERS};
use crate::plant::{self, Plant};
use amphi_env::Env;
use amphi_env::sim::CrashKind;
use futures_util::future::join;
use std::time::Duration;

/// How long two servers are cut off from each other at most: a third of the time after which calls fail, and twice the
/// time in which a mount has to answer.
const SERVERS_APART: Duration = Duration::from_secs(20);
/// After faults have followed each other for this long, there is a pause.
const TROUBLE: Duration = Duration::from_secs(20);
/// Long enough for servers to find each other again: an attempt to connect over a cut, and the pause between attempts.
const QUIET: Duration = Duration::from_secs(5);

impl Run {
    /// Perhaps a fault that no program may notice.
    pub(super) async fn fault(&self) -> Checked {
        let shape = &self.cluster.shape;
        // A server in the process of the first mount is killed with it.
        let first = usize::from(shape.embedded);
        let servers = shape.servers - first;
        // Mounts of nodes of their own, where the only server shares its process with the first, can lose their network
        // alone.
        let others_alone = servers == 0;
        let none = others_alone && (shape.mounts == 1 || self.plan.faults != Faults::All);
        if matches!(self.plan.faults, Faults::None | Faults::Callbacks) || none || self.roll(6) > 0 {
            return Ok(());
        }
        if others_alone {
            match self.roll(3) {
                0 => self.break_link(self.link()),
                1 => self.cut_link(self.link()).await,
                _ => self.stop_for_short(first).await,
            }
            return Ok(());
        }
        if shape.servers > 1 && self.cluster.env.now().since(self.quiet.get()) > TROUBLE {
            self.cluster.env.sleep(QUIET).await;
            self.quiet.set(self.cluster.env.now());
        }
        let at = first + self.pick(servers);
        if self.plan.contention && self.plan.faults == Faults::All && self.roll(4) == 0 {
            self.stop_for_short(0).await;
            return Ok(());
        }
        if servers > 1 && self.roll(4) == 0 {
            let other = first + (at - first + 1 + self.pick(servers - 1)) % servers;
            let (one, two) = join(self.fault_of(at), self.fault_of(other)).await;
            return one.and(two);
        }
        self.fault_of(at).await
    }

    /// A fault that kills server `at`, or one of the network.
    async fn fault_of(&self, at: usize) -> Checked {
        let node = SERVERS[at];
        // With one server this choice is made first, so that older seeds keep their meaning.
        let link = self.link();
        let network = self.plan.faults == Faults::All;
        match self.roll(if network { 6 } else { 3 }) {
            0 => {
                self.note(format!("{node} is killed"));
                self.cluster.crash_server(at, killed(at));
                self.server_again(at).await
            }
            1 | 2 => {
                let nth = 1 + self.roll(12);
                self.cluster.sim.crash_at(node, nth, killed(at));
                self.pause(100..20_000).await;
                if self.cluster.server_lives(at) {
                    self.cluster.sim.clear_crash_at(node);
                    return Ok(());
                }
                self.note(format!("{node} was killed at its {nth}th write or sync"));
                self.server_again(at).await
            }
            3 => {
                self.break_link(link);
                Ok(())
            }
            _ => {
                self.cut_link(link).await;
                Ok(())
            }
        }
    }

    fn break_link(&self, link: (&'static str, &'static str)) {
        self.note(format!("connections between {} and {} break", link.0, link.1));
        self.summary.borrow_mut().network_faults += 1;
        self.cluster.sim.break_connections(link.0, link.1);
    }

    /// Cuts two nodes off from each other for a while.
    async fn cut_link(&self, link: (&'static str, &'static str)) {
        let long = self.roll(4) == 0;
        // Well below the grace time of a session too. A mount in sole mode gets callbacks too, as long as the session
        // of one that crashed is kept.
        let between_servers = SERVERS.contains(&link.0) && SERVERS.contains(&link.1);
        // The first mount is on the master's node if it is embedded.
        let near = self.cluster.shape.embedded && self.cluster.shape.mounts > 1;
        let most = if between_servers && !near { SERVERS_APART } else { CALLBACK_DEADLINE / 2 };
        let us = if long { 1_000_000..most.as_micros() as u64 } else { 100..500_000 };
        let us = self.dice.borrow_mut().within(us);
        let long = Duration::from_micros(us);
        let long = if between_servers && !near { Some(long) } else { self.keep_apart(&[link], long) };
        let Some(long) = long else { return };
        self.note(format!("the network between {} and {} is cut", link.0, link.1));
        self.summary.borrow_mut().network_faults += 1;
        self.cluster.sim.cut(link.0, link.1);
        self.cluster.env.sleep(long).await;
        self.cluster.sim.heal(link.0, link.1);
        self.note(format!("the network between {} and {} is whole", link.0, link.1));
        self.progress().await;
    }

    /// Returns how long these pairs of nodes are cut off from each other now, of the requested time: less if callbacks
    /// have been late, not at all if they may not be delayed any more.
    pub(super) fn keep_apart(&self, links: &[(&str, &str)], wanted: Duration) -> Option<Duration> {
        let Some(callbacks) = &self.callbacks else { return Some(wanted) };
        let (now, mut callbacks) = (self.cluster.env.now(), callbacks.0.borrow_mut());
        let room = links.iter().map(|(a, b)| callbacks.room(now, a, b)).min()?;
        let long = wanted.min(room);
        links.iter().for_each(|(a, b)| callbacks.keeps_apart(now, a, b, long));
        (!long.is_zero()).then_some(long)
    }

    /// Two nodes that talk to each other: a server and a mount, or two servers.
    fn link(&self) -> (&'static str, &'static str) {
        let shape = &self.cluster.shape;
        if shape.servers == 1 {
            // A mount in the server's process has no network.
            let first = usize::from(shape.embedded);
            return (SERVERS[0], self.cluster.mount_node(first + self.pick(shape.mounts - first)));
        }
        let at = self.pick(shape.servers);
        let mut others: Vec<&'static str> = (0..shape.mounts).map(|which| self.cluster.mount_node(which)).collect();
        others.extend(&SERVERS[..shape.servers]);
        others.retain(|other| *other != SERVERS[at]);
        (SERVERS[at], others[self.pick(others.len())])
    }

    /// Restarts a server after a while; it may be killed again on its way.
    async fn server_again(&self, at: usize) -> Checked {
        let node = SERVERS[at];
        self.summary.borrow_mut().server_crashes += 1;
        self.pause(0..3_000_000).await;
        if self.roll(3) == 0 {
            self.cluster.sim.crash_at(node, 1 + self.roll(10), CrashKind::Process);
        }
        let started = self.cluster.start_server(at).await;
        self.cluster.sim.clear_crash_at(node);
        started.map_err(line)?;
        self.note(format!("{node} is back"));
        self.progress().await;
        Ok(())
    }

    /// Waits until a call got through: faults in such a row that none does prove nothing.
    pub(super) async fn progress(&self) {
        let (calls, until) = (self.calls_made(), self.cluster.env.now() + STUCK);
        while self.calls_made() == calls && !self.resting() && self.cluster.env.now() < until {
            self.pause(100..2_000).await;
        }
    }
}

/// The losses of a kill of server `at`.
fn killed(at: usize) -> CrashKind {
    match plant::active() {
        Some(Plant::MembersLosePower) if at > 0 => CrashKind::Power,
        _ => CrashKind::Process,
    }
}
