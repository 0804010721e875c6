//! `KeyBook`: a server's copy of the registry of keys, and how all servers get the same copy.
//!
//! Owns: the registry in force, its changes at the master, and informing other servers. Does not own: the rules of a
//! change (`membership::keys`), the consequences for connections and sessions (`sessions::gate`).
//!
//! The master stores the registry on target 0 before it uses or sends it, and then sends it to every server at once. A
//! server that misses this finds out by its next beat, whose answer contains the version. Each server stores a copy,
//! since it may start while the master is away.
//!
//! Invariants: a server never returns to an earlier registry. If a master has an older registry, because its zones are
//! an old copy, it gets the newer one. A server that has not compared its copy with the master since it started admits
//! no client by a key, because the key may have been removed meanwhile.

use crate::cluster::peers::Cluster;
use crate::membership::keys;
use crate::membership::peer_message::{PeerReply, PeerRequest};
use crate::message::{OpenReport, TargetReply, TargetRequest};
use crate::turns::Turns;
use amphi_env::Env;
use amphi_transport::Identity;
use amphi_types::{Errno, Kind, Result, SessionId, TargetId};
use amphi_wire::keys::{Fingerprint, KeyChange, KeyEntry, KeyRegistry, KeyRole, Subtree};
use futures_util::future::join_all;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How long a change waits for a server that can be reached. If it takes longer, the server gets the change with a
/// beat.
const TOLD: Duration = Duration::from_millis(1500);

/// Sessions whose keys a server remembers, before it forgets those that have ended.
const OWNERS_MAX: usize = 4096;

/// The registry in force.
pub(crate) struct KeyBook {
    registry: RefCell<Rc<KeyRegistry>>,
    /// The place of each public key in the registry.
    index: RefCell<BTreeMap<Fingerprint, usize>>,
    /// The registry has been compared with the master's since this server started.
    compared: Cell<bool>,
    /// Changes are made one at a time.
    changing: Turns,
    /// On a server that is not the master: the number of the key of each session that connected with a key.
    owners: RefCell<BTreeMap<SessionId, u64>>,
}

impl Default for KeyBook {
    fn default() -> KeyBook {
        let (registry, index) = (RefCell::default(), RefCell::default());
        KeyBook { registry, index, compared: Cell::new(false), changing: Turns::new(1), owners: RefCell::default() }
    }
}

impl KeyBook {
    /// The registry in force.
    pub(crate) fn registry(&self) -> Rc<KeyRegistry> {
        self.registry.borrow().clone()
    }

    /// The entry of a public key.
    pub(crate) fn find(&self, key: Fingerprint) -> Option<KeyEntry> {
        let at = *self.index.borrow().get(&key)?;
        self.registry.borrow().keys.get(at).cloned()
    }

    /// Returns whether it is known that no key was removed while this server was away.
    pub(crate) fn is_compared(&self) -> bool {
        self.compared.get()
    }

    fn replace(&self, registry: KeyRegistry) {
        let keys = registry.keys.iter().enumerate();
        let index = keys.flat_map(|(at, e)| std::iter::once(e.fingerprint).chain(e.next).map(move |key| (key, at)));
        self.index.replace(index.collect());
        self.registry.replace(Rc::new(registry));
    }
}

/// The tree to which a change binds a key.
fn subtree_in(change: &KeyChange) -> Option<&Subtree> {
    match change {
        KeyChange::Add(entry) => entry.subtree.as_ref(),
        KeyChange::Set { settings, .. } => settings.subtree.as_ref()?.as_ref(),
        _ => None,
    }
}

impl<E: Env> Cluster<E> {
    /// Takes the registry that the zones keep.
    pub(crate) fn remember_keys(&self, reports: &[OpenReport]) {
        for kept in reports.iter().filter_map(|report| report.keys.as_ref()) {
            if keys::is_later(&self.keys.registry(), kept) {
                self.keys.replace(kept.clone());
            }
        }
        if self.is_master() {
            self.keys.compared.set(true);
        }
    }

    /// The identity of this server for its connections to other servers: it trusts the servers in the registry.
    pub(crate) fn link_identity(&self) -> Option<Identity> {
        let registry = self.keys.registry();
        let servers = registry.keys.iter().filter(|e| e.role == KeyRole::Server);
        let trusted = servers.flat_map(|e| std::iter::once(e.fingerprint).chain(e.next));
        self.worker.config.identity.as_ref().map(|identity| identity.trusting(trusted))
    }

    /// `Request::Keys`: makes a change. When this returns, all servers whose beats arrive have the change.
    ///
    /// Errors: why it is not made, for people.
    pub(crate) async fn change_keys(
        self: &Rc<Self>,
        change: KeyChange,
    ) -> std::result::Result<Rc<KeyRegistry>, String> {
        debug_assert!(self.is_master(), "which keeps the keys");
        self.until_ready().await;
        let _turn = self.keys.changing.take().await;
        if change == KeyChange::RequireIdentity(true) {
            self.check_servers_have_keys()?;
        }
        if let Some(tree) = subtree_in(&change) {
            self.check_tree(tree).await?;
        }
        let next = keys::apply(&self.keys.registry(), change, self.worker.env.rand())?;
        let kept = self.worker.tell(TargetId(0), TargetRequest::PutKeys(Box::new(next.clone()))).await;
        kept.map_err(|e| match e {
            Errno::NoSpace => "the registry does not fit the log of target 0; remove keys or ranges".to_string(),
            e => format!("the registry of keys cannot be kept: {e}"),
        })?;
        self.follow_keys(next);
        let up = self.others().into_iter().filter(|s| self.is_up(s.id));
        join_all(up.map(|server| async move {
            let question = PeerRequest::InstallKeys(Box::new((*self.keys.registry()).clone()));
            let asked = self.ask_server(server.id, question);
            let told = amphi_env::timeout(&self.worker.env, TOLD, asked).await.unwrap_or(Err(Errno::TimedOut));
            if let Err(e) = told {
                tracing::warn!(
                    "{} was not told of a change of keys: {e}; it hears of it by its next beat",
                    crate::membership::map::called(&server)
                );
            }
        }))
        .await;
        Ok(self.keys.registry())
    }

    /// Returns whether a tree is as an administrator has described it.
    async fn check_tree(self: &Rc<Self>, tree: &Subtree) -> std::result::Result<(), String> {
        let path = tree.path.escape_debug();
        match self.worker.ask(tree.root.target(), TargetRequest::Facts(tree.root)).await {
            Ok(TargetReply::Facts(top)) if top.kind == Kind::Dir && top.project == tree.project => Ok(()),
            Ok(TargetReply::Facts(_)) => Err(format!("{path} is not the top of tree {} (any more)", tree.project)),
            Ok(_) => Err("the target's answer makes no sense".into()),
            Err(Errno::Stale | Errno::Inval) => Err(format!("{path} is not a directory of this cluster (any more)")),
            Err(e) => Err(format!("{path} cannot be looked at: {e}; try again")),
        }
    }

    /// Checks that the other servers have keys of their own. Otherwise the change would exclude these servers.
    fn check_servers_have_keys(&self) -> std::result::Result<(), String> {
        let registry = self.keys.registry();
        let have = registry.keys.iter().filter(|e| e.role == KeyRole::Server).count();
        let need = self.map().servers.len();
        if need > 1 && have < need {
            return Err(format!(
                "the cluster has {need} servers, but there are {have} keys of servers: give each server an identity, \
                 start it with --identity, and add its key with --role server"
            ));
        }
        Ok(())
    }

    /// Uses a later registry that has been stored. Connections that it forbids end at once.
    fn follow_keys(&self, registry: KeyRegistry) {
        self.keys.replace(registry);
        if let Ok(manager) = self.manager() {
            manager.keys_changed();
        }
    }

    /// `PeerRequest::InstallKeys`: adopts a registry if it is newer than the present one.
    pub(crate) async fn install_keys(self: &Rc<Self>, registry: KeyRegistry) -> Result<()> {
        let _turn = self.keys.changing.take().await;
        if !keys::is_later(&self.keys.registry(), &registry) {
            return Ok(());
        }
        if self.is_master() {
            tracing::warn!(
                "another server has a later registry of keys (version {} after {}): the master's zones are an old \
                 copy; the later one counts",
                registry.version,
                self.keys.registry().version
            );
        }
        let keeper = self.worker.routes.local().first().copied().unwrap_or_default();
        if let Err(e) = self.worker.tell(keeper, TargetRequest::PutKeys(Box::new(registry.clone()))).await {
            // The registry applies nevertheless, while this server runs.
            tracing::error!("the registry of keys cannot be kept: {e}");
        }
        self.follow_keys(registry);
        Ok(())
    }

    /// Returns whether a session, for which a client connects to a server that is not the master, began with the key of
    /// this number. The master is asked once.
    ///
    /// Errors: the session belongs to another key, or the master cannot be reached.
    pub(crate) async fn check_owner(self: &Rc<Self>, session: SessionId, id: u64) -> std::result::Result<(), String> {
        if self.keys.owners.borrow().get(&session) == Some(&id) {
            return Ok(());
        }
        let master = self.map().servers.first().map_or(0, |s| s.id);
        let owner = match self.ask_soon(master, PeerRequest::SessionKey(session)).await {
            Ok(PeerReply::SessionKey(owner)) => owner,
            Ok(_) => return Err("the master's answer makes no sense".into()),
            Err(e) => return Err(format!("the master cannot be asked whose this session is: {e}; try again")),
        };
        match owner {
            Some(owner) if owner == id => {
                let mut owners = self.keys.owners.borrow_mut();
                if owners.len() >= OWNERS_MAX {
                    owners.retain(|session, _| self.as_follower.begin_of(*session).is_some());
                }
                owners.insert(session, id);
                Ok(())
            }
            Some(_) => Err("this session is another user's".into()),
            None => Err("the master does not know yet whose this session is; try again".into()),
        }
    }

    /// The version of the registry that a beat contains.
    pub(crate) fn keys_version(&self) -> (u64, u64) {
        let registry = self.keys.registry();
        (registry.version, registry.stamp)
    }

    /// Compares the registry with the master's, if `said`, the version in the master's answer, differs from this
    /// server's version.
    pub(crate) async fn compare_keys(self: &Rc<Self>, said: Option<(u64, u64)>) -> Result<()> {
        if said == Some(self.keys_version()) {
            self.keys.compared.set(true);
            return Ok(());
        }
        let master = self.map().servers.first().map(|s| s.id).ok_or(Errno::Stale)?;
        let PeerReply::Keys(theirs) = self.ask_soon(master, PeerRequest::Keys).await? else {
            return Err(Errno::Proto);
        };
        if keys::is_later(&theirs, &self.keys.registry()) {
            let mine = Box::new((*self.keys.registry()).clone());
            self.ask_soon(master, PeerRequest::InstallKeys(mine)).await?;
        }
        self.install_keys(*theirs).await?;
        self.keys.compared.set(true);
        Ok(())
    }
}
