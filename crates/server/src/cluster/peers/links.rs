//! Connections to other servers: they are opened on first use, kept, and made again when they break.
//!
//! Owns: one link for each server, its addresses, and the tasks that wait for it to open. Does not own: the requests
//! that are sent.

use super::Cluster;
use crate::membership::peer_link::{PeerName, Plain, peer_link_config};
use amphi_env::Env;
use amphi_transport::Link;
use amphi_types::{Errno, Result, SessionId};
use amphi_wire::ClusterMap;
use futures_channel::oneshot;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How long a request waits for the first connection to a server; it waits as long for a later one.
const CONNECT_PATIENCE: Duration = Duration::from_secs(60);
/// Pause between attempts, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

enum Peer<E: Env> {
    Opening(Vec<oneshot::Sender<Rc<Link<E>>>>),
    Open(Rc<Link<E>>),
}

/// Links to other servers, by their number.
pub(super) struct Links<E: Env> {
    peers: RefCell<BTreeMap<u64, Peer<E>>>,
}

impl<E: Env> Default for Links<E> {
    fn default() -> Self {
        Links { peers: RefCell::default() }
    }
}

impl<E: Env> Links<E> {
    /// Called when a new map may contain other addresses of servers.
    pub(super) fn follow(&self, map: &ClusterMap) {
        for (id, peer) in self.peers.borrow().iter() {
            if let Peer::Open(link) = peer
                && let Some(server) = map.servers.iter().find(|s| s.id == *id)
            {
                link.set_addrs(server.addrs.clone());
            }
        }
    }

    /// Ends all links.
    pub(super) async fn close(&self) {
        let peers = std::mem::take(&mut *self.peers.borrow_mut());
        for peer in peers.into_values() {
            if let Peer::Open(link) = peer {
                link.close().await;
            }
        }
    }
}

impl<E: Env> Cluster<E> {
    /// The link to a server. `Io` if it cannot be opened for long.
    pub(super) async fn link_to(self: &Rc<Self>, server: u64) -> Result<Rc<Link<E>>> {
        if self.closed.get() {
            return Err(Errno::Io);
        }
        let (sender, receiver) = oneshot::channel();
        let first = match self.links.peers.borrow_mut().get_mut(&server) {
            Some(Peer::Open(link)) => return Ok(link.clone()),
            Some(Peer::Opening(waiting)) => {
                waiting.retain(|w| !w.is_canceled());
                waiting.push(sender);
                None
            }
            None => Some(sender),
        };
        if let Some(sender) = first {
            self.links.peers.borrow_mut().insert(server, Peer::Opening(vec![sender]));
            let cluster = self.clone();
            self.worker.env.spawn(async move { cluster.open_link(server).await });
        }
        match amphi_env::timeout(&self.worker.env, CONNECT_PATIENCE, receiver).await {
            Some(Ok(link)) => Ok(link),
            _ => Err(Errno::Io),
        }
    }

    /// Tries to connect until the link is open or no caller waits for it.
    async fn open_link(self: &Rc<Self>, server: u64) {
        let (mut pause, mut told) = (PAUSES.0, false);
        loop {
            let info = self.map.borrow().servers.iter().find(|s| s.id == server).cloned();
            let addrs = info.as_ref().map(|i| i.addrs.clone()).unwrap_or_default();
            match self.dial(addrs).await {
                Ok(link) => {
                    let before = self.links.peers.borrow_mut().insert(server, Peer::Open(link.clone()));
                    if let Some(Peer::Opening(waiting)) = before {
                        waiting.into_iter().for_each(|w| drop(w.send(link.clone())));
                    }
                    return;
                }
                Err(e) if !told => {
                    tracing::warn!("cannot reach {} yet: {e}", info.map_or(format!("{server:x}"), |i| i.name));
                    told = true;
                }
                Err(_) => {}
            }
            {
                let mut peers = self.links.peers.borrow_mut();
                let waited_for = match peers.get_mut(&server) {
                    Some(Peer::Opening(waiting)) => waiting.iter().any(|w| !w.is_canceled()),
                    _ => return,
                };
                if !waited_for || self.closed.get() {
                    peers.remove(&server);
                    return;
                }
            }
            self.worker.env.sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Connects to a server once.
    pub(crate) async fn dial(&self, addrs: Vec<String>) -> std::io::Result<Rc<Link<E>>> {
        let key = self.worker.config.cluster_key().map_err(|e| std::io::Error::other(e.line))?;
        let key = (key, self.link_identity());
        let name = PeerName { server: self.id(), boot: self.me.boot, name: self.me.info.borrow().name.clone() };
        let config =
            peer_link_config(addrs, SessionId(self.worker.env.rand()), &name, key, self.worker.config.peers_secure);
        let link = Link::connect(self.worker.env.clone(), config, Rc::new(Plain)).await?;
        if link.welcome().cluster != self.me.cluster {
            let line = format!("it serves cluster {:016x}, this one {:016x}", link.welcome().cluster, self.me.cluster);
            link.close().await;
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, line));
        }
        Ok(link)
    }
}
