//! Several connections to one server: one for each of its workers.
//!
//! Owns: opening the connections beside the first one, and which targets use which connection. Does not own: the choice
//! of the worker that serves a connection (`Welcome::links` says how many connections are useful).
//!
//! A further connection is a `Seat` of its own with its own targets, as if it led to another server. Everything that is
//! true of servers other than the master is true of it (`links`). The lease, the breaks and the recovery of a further
//! connection concern only its targets.
//!
//! Invariants: a target uses the same connection from its first request to the end of the mount, so its requests keep
//! their order. Targets are assigned to a further connection in one step, before any request was sent on it, while the
//! first connection is up and both lead to the same run of the server. So after a restart of the server, the locks and
//! opens of a target are presented on exactly one connection. If a further connection cannot be opened, its targets use
//! the first one.

use super::opening::{Seat, Stage};
use super::{Links, find};
use amphi_env::Env;
use amphi_transport::{Link, Numbered};
use amphi_types::TargetId;
use futures_util::future::join_all;
use std::rc::Rc;

impl<E: Env> Links<E> {
    /// The number of connections that this mount would open, which it reports to a server.
    pub(super) fn numbered(&self) -> Numbered {
        let links = if self.local { 1 } else { self.mount.host.links_max.max(1) };
        Numbered { link: 0, links }
    }

    /// Opens further connections to the server at `seat`, as many as the server offers, and assigns targets to each of
    /// them.
    pub(super) async fn split(self: &Rc<Self>, seat: &Rc<Seat<E>>, link: &Rc<Link<E>>) {
        let welcome = link.welcome();
        let links = welcome.links.min(self.numbered().links);
        let mut targets = self.targets_of(seat, welcome.pool);
        targets.sort_unstable();
        let links = links.min(targets.len() as u16);
        link.set_links(links.max(1));
        if links <= 1 || !seat.parts.borrow().is_empty() {
            return;
        }
        let of = |n: u16| {
            targets.iter().skip(usize::from(n)).step_by(usize::from(links)).copied().collect::<Vec<TargetId>>()
        };
        let addrs: Vec<String> = link.addrs().into_iter().filter(|a| find::leads_here(a)).collect();
        let opened = join_all((1..links).map(|n| {
            let (part, addrs) = (Rc::new(seat.part(of(n))), addrs.clone());
            async move {
                let numbered = Numbered { link: n, links };
                match self.dial_at(&part, addrs, numbered).await {
                    Ok(link) => Some((part, link)),
                    Err(e) => {
                        tracing::info!(
                            "server {}: connection {n} is not opened, the first one serves: {e}",
                            part.name()
                        );
                        None
                    }
                }
            }
        }))
        .await;
        let now = link.welcome();
        for (part, further) in opened.into_iter().flatten() {
            let theirs = further.welcome();
            if !link.is_up() || !further.is_up() || (theirs.boot, theirs.begun) != (now.boot, now.begun) {
                tracing::info!("server {} was restarted meanwhile: the first connection serves", part.name());
                part.set_gone();
                self.env.spawn(async move { further.close().await });
                continue;
            }
            self.mount.coherence.sharing.leases.surely_heard(part.lease(), self.mount.clock.boot_ns());
            part.set(Stage::Open(further));
            seat.parts.borrow_mut().push(part);
        }
    }
}
