//! Clients with keys: identifying them, the consequences for them when the registry changes, and requests about keys.
//!
//! Owns: looking up a client's key, the gates of connections, ending the sessions of a removed key, `Request::Keys` and
//! `Request::Evict`, and the audit records of these events (`audit`). Does not own: the registry (`cluster::keys`),
//! what a gate permits (`gate`).
//!
//! Bound: one gate for each connection.

use super::SessionManager;
use super::audit::Kind;
use super::entry::{Entry, KeyOf, Line};
use super::gate::Gate;
use super::trust::Owner;
use crate::membership::keys::counts_from;
use amphi_env::Env;
use amphi_transport::{ConnId, Guest, Peer, Proved};
use amphi_types::{Errno, Result, SessionId};
use amphi_wire::keys::{
    Fingerprint, IdRange, KeyChange, KeyEntry, KeyRegistry, KeyRole, KeySettings, Squash, SquashTo, Subtree,
};
use amphi_wire::{Hello, Reply, Role};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The reason why the session of a removed key ends.
const REMOVED: &str = "its key has been removed";

/// The reason why a connection has to be made again.
const CHANGED: &str = "its key may count from other addresses now";

/// How long a connection of a removed key may take to receive the last answer.
const FAREWELL: Duration = Duration::from_millis(200);

/// A client's key, and its entry in the registry.
pub(super) type Keyed = (Fingerprint, KeyEntry);

/// The entry of another server's key before the registry is known. It has a number that no key has, so the connection
/// ends with the first registry, and the next connection is checked against that registry.
fn provisional(key: Fingerprint) -> KeyEntry {
    KeyEntry {
        name: "server".into(),
        fingerprint: key,
        next: None,
        role: KeyRole::Server,
        read_only: false,
        squash: Squash::default(),
        addresses: Vec::new(),
        sessions_max: 0,
        id: 0,
        subtree: None,
    }
}

/// Returns whether a client in a role may connect as something.
fn may_be(key: KeyRole, connects: Role) -> std::result::Result<(), String> {
    match (key, connects) {
        (KeyRole::Client, Role::Mount | Role::Admin)
        | (KeyRole::Server, Role::Server)
        | (KeyRole::Admin, Role::Admin) => Ok(()),
        (KeyRole::Admin, Role::Mount) => {
            Err("this is the key of an administrator, which does not mount; mount with the key of a client".into())
        }
        (KeyRole::Server, Role::Mount) => {
            Err("this is the key of a server, which does not mount; mount with the key of a client".into())
        }
        (KeyRole::Server, Role::Admin) => {
            Err("this is the key of a server; ask with the key of an administrator".into())
        }
        (role, Role::Server) => Err(format!("this is the key of a {role}; a server needs one with the role server")),
    }
}

impl<E: Env> SessionManager<E> {
    /// Writes a line of the audit log. Returns whether the recorded event is permitted.
    pub(super) fn audit(&self, kind: Kind, fields: &[(&str, &str)]) -> bool {
        self.audit.note(kind, self.worker.env.wall(), self.worker.now_ns(), fields)
    }

    /// The key of a client that is, or will be, admitted as `role`, or `None` if it has no key of its own.
    ///
    /// Errors: the reason why the client may not connect.
    pub(super) fn key_of(&self, peer: &Peer, role: Role) -> std::result::Result<Option<Keyed>, String> {
        let cluster = self.cluster();
        let Some(book) = cluster.as_ref().map(|c| &c.keys) else {
            return match peer.proved {
                Proved::Identity(_) => Err("this server knows no keys yet; try again".into()),
                Proved::Nothing | Proved::ClusterKey => Ok(None),
            };
        };
        let key = match peer.proved {
            Proved::Nothing => return Ok(None),
            Proved::ClusterKey if book.registry().require_identity && !peer.unix => {
                return Err(
                    "over a network this cluster asks for more than the cluster key: give --identity FILE with \
                            a key that an administrator has added"
                        .into(),
                );
            }
            Proved::ClusterKey => return Ok(None),
            Proved::Identity(key) => key,
        };
        if role == Role::Server && (!book.is_compared() || book.find(key).is_none()) {
            // Servers that know the cluster key are admitted by it as long as it is valid, also before their own keys
            // are added. And a server that connects for the first time has no registry, but perhaps its master's key.
            if peer.knows_cluster_key && !book.registry().require_identity {
                return Ok(None);
            }
            let trusted = self.worker.config.identity.as_ref().is_some_and(|own| own.servers().contains(&key));
            if !book.is_compared() && (trusted || book.find(key).is_some_and(|e| e.role == KeyRole::Server)) {
                return Ok(Some((key, provisional(key))));
            }
        }
        if !book.is_compared() {
            return Err("this server has not heard from the master since it started, so it does not know which keys \
                        were removed; try again"
                .into());
        }
        let Some(entry) = book.find(key) else {
            return Err(format!(
                "the key {key} is not one of this cluster's: an administrator adds it with amphi key add"
            ));
        };
        let named = |e: String| format!("key {}: {e}", entry.name);
        may_be(entry.role, role).map_err(named)?;
        if !counts_from(&entry, &peer.addr, peer.unix) {
            return Err(named(format!("it does not count from {}", peer.addr)));
        }
        Ok(Some((key, entry)))
    }

    /// Returns whether a key may have one more mount.
    ///
    /// Errors: it has as many as it may.
    pub(super) fn check_sessions(&self, entry: &KeyEntry) -> std::result::Result<(), String> {
        let owner = Owner::Key(entry.id);
        let count = self.sessions.borrow().values().filter(|e| e.role == Role::Mount && e.owner == owner).count();
        if entry.sessions_max > 0 && count >= entry.sessions_max as usize {
            return Err(format!("key {} has {count} mounts, which is the most that it may have", entry.name));
        }
        Ok(())
    }

    /// Called when a connection was made: from now on its requests pass its gate.
    ///
    /// Errors: the connection must end, since the registry has changed meanwhile.
    pub(super) fn set_gate(&self, guest: Guest, peer: &Peer) -> std::result::Result<(), String> {
        let Guest { session, role, conn, .. } = guest;
        let Some((fingerprint, entry)) = self.key_of(peer, role)? else {
            if peer.proved != Proved::Nothing && !peer.unix {
                self.by_cluster_key.borrow_mut().insert(conn, session);
            }
            return Ok(());
        };
        if let Some(session) = self.sessions.borrow_mut().get_mut(&session) {
            session.key = Some(KeyOf { fingerprint, id: entry.id, name: entry.name.clone() });
        }
        self.gates.borrow_mut().insert(conn, Arc::new(Gate::new(fingerprint, entry, role)));
        Ok(())
    }

    /// The gate of a connection, if its client has a key.
    pub(super) fn gate(&self, conn: ConnId) -> Option<Arc<Gate>> {
        let gates = self.gates.borrow();
        if gates.is_empty() { None } else { gates.get(&conn).cloned() }
    }

    /// Called when a connection has ended.
    pub(super) fn forget_gate(&self, conn: ConnId) {
        self.by_cluster_key.borrow_mut().remove(&conn);
        let gate = self.gates.borrow_mut().remove(&conn);
        if let Some(gate) = gate.filter(|gate| gate.squashed() > 0) {
            self.note_squashed(&gate);
        }
    }

    pub(super) fn note_squashed(&self, gate: &Gate) {
        let (key, count) = (gate.key.to_string(), gate.squashed().to_string());
        self.audit(Kind::Squashed, &[("key", &gate.entry.name), ("fingerprint", &key), ("requests", &count)]);
    }

    /// The registry has changed: sessions and connections that it no longer permits end at once.
    pub(crate) fn keys_changed(self: &Rc<Self>) {
        let Some(cluster) = self.cluster() else { return };
        let counts = |key: Fingerprint, id: u64| cluster.keys.find(key).is_some_and(|e| e.id == id);
        let gates: Vec<(ConnId, Arc<Gate>)> = self.gates.borrow().iter().map(|(c, gate)| (*c, gate.clone())).collect();
        let mut cut: Vec<(ConnId, &str)> = Vec::new();
        for (conn, gate) in gates.into_iter().filter(|(_, gate)| !counts(gate.key, gate.entry.id)) {
            gate.close();
            cut.push((conn, REMOVED));
        }
        cut.extend(self.change_gates(&cluster.keys.registry()).into_iter().map(|conn| (conn, CHANGED)));
        let gone = |e: &Entry| e.key.as_ref().is_some_and(|key| !counts(key.fingerprint, key.id));
        let mut ended: Vec<SessionId> =
            self.sessions.borrow().iter().filter(|(_, e)| gone(e)).map(|(s, _)| *s).collect();
        if cluster.keys.registry().require_identity {
            for (conn, session) in self.by_cluster_key.borrow().iter() {
                cut.push((*conn, REMOVED));
                ended.push(*session);
            }
        }
        // The connections as they are before their sessions begin to end.
        let cut: Vec<(Line, &str)> = cut.into_iter().map(|(conn, why)| (self.line(conn), why)).collect();
        let is_mount = |s: &SessionId| self.sessions.borrow().get(s).is_some_and(|e| e.role == Role::Mount);
        if cluster.is_master() {
            for session in ended.into_iter().filter(is_mount) {
                self.evict(session, REMOVED);
            }
        }
        // No further request is executed. A client that removed its own key still gets the answer.
        let manager = self.clone();
        self.worker.env.spawn(async move {
            manager.worker.env.sleep(FAREWELL).await;
            for (line, why) in cut {
                manager.cut(line, why);
            }
        });
    }

    /// A connection and where it is served.
    fn line(&self, conn: ConnId) -> Line {
        let sessions = self.sessions.borrow();
        let found = sessions.values().flat_map(Entry::lines).find(|line| line.conn == conn);
        // Connections of servers are on this worker.
        found.copied().unwrap_or(Line::new(0, conn))
    }

    /// From this step on, connections whose entry has changed use a gate for the new entry. Returns connections whose
    /// address may not be permitted any more: they have to connect again, and their requests are sent again then.
    fn change_gates(&self, registry: &KeyRegistry) -> Vec<ConnId> {
        let mut moved = Vec::new();
        for (conn, gate) in self.gates.borrow_mut().iter_mut() {
            let now = registry.keys.iter().find(|e| e.id == gate.entry.id);
            let Some(now) = now.filter(|now| **now != gate.entry && !gate.is_closed()) else { continue };
            if now.addresses != gate.entry.addresses {
                moved.push(*conn);
            }
            if gate.squashed() > 0 {
                self.note_squashed(gate);
            }
            *gate = gate.replaced(now.clone());
        }
        moved
    }

    /// Handles `Request::Keys`.
    pub(super) async fn keys(self: &Rc<Self>, change: Option<KeyChange>, conn: ConnId, by: &str) -> Result<Reply> {
        let cluster = self.cluster().ok_or(Errno::Proto)?;
        if !cluster.is_master() {
            // A client that asks finds the master with this map.
            return Ok(Reply::Map(cluster.map()));
        }
        let Some(change) = change else {
            return Ok(Reply::Keys(Box::new((*cluster.keys.registry()).clone())));
        };
        if change == KeyChange::RequireIdentity(true) && self.by_cluster_key.borrow().contains_key(&conn) {
            return Ok(Reply::Refused(
                "you came with the cluster key, which would let you in no more; ask with the identity of an \
                 administrator, or as root over a Unix socket"
                    .into(),
            ));
        }
        let what = described(&change);
        if !self.audit(Kind::Keys, &[("by", by), ("change", &what), ("result", "asked")]) {
            return Ok(Reply::Refused("the audit log cannot be written, so no key is changed".into()));
        }
        let changed = cluster.change_keys(change).await;
        let result = changed.as_ref().map_or_else(|why| why.clone(), |_| "done".into());
        self.audit(Kind::Keys, &[("by", by), ("change", &what), ("result", &result)]);
        Ok(match changed {
            Ok(registry) => Reply::Keys(Box::new((*registry).clone())),
            Err(why) => Reply::Refused(why),
        })
    }

    /// Handles `Request::Evict`.
    pub(super) fn evict_by_name(self: &Rc<Self>, who: &str, by: &str) -> Result<Reply> {
        if let Some(cluster) = self.cluster().filter(|c| !c.is_master()) {
            return Ok(Reply::Map(cluster.map()));
        }
        let session = Some(who).filter(|w| w.len() == 16).and_then(|w| u64::from_str_radix(w, 16).ok());
        let key = Fingerprint::parse(who);
        let is_meant = |id: &SessionId, e: &Entry| {
            session == Some(id.0) || e.key.as_ref().is_some_and(|k| k.name == who || key == Some(k.fingerprint))
        };
        let ended: Vec<SessionId> = {
            let sessions = self.sessions.borrow();
            let mounts = sessions.iter().filter(|(_, e)| e.role == Role::Mount && !e.state.is_ending());
            mounts.filter(|(id, e)| is_meant(id, e)).map(|(id, _)| *id).collect()
        };
        if ended.is_empty() {
            let shown: String = who.escape_debug().take(100).collect();
            return Ok(Reply::Refused(format!("there is no mount with the session or the key {shown}")));
        }
        for session in &ended {
            self.evict(*session, &format!("an administrator has ended it ({by})"));
        }
        Ok(Reply::Evicted(ended.len() as u32))
    }

    /// Number of the key with which the client of a session came.
    pub(crate) fn key_id(&self, session: SessionId) -> Option<u64> {
        match self.sessions.borrow().get(&session)?.owner {
            Owner::Key(id) => Some(id),
            Owner::Unknown | Owner::Anybody | Owner::User(_) => None,
        }
    }

    /// Name of the key with which the client of a session connected. It is empty if the client has no key of its own.
    pub(super) fn key_name(&self, session: SessionId) -> String {
        self.sessions.borrow().get(&session).and_then(|e| Some(e.key.as_ref()?.name.clone())).unwrap_or_default()
    }

    /// The tree to which the key of a session is bound, with the name that its administrator gave. It is empty if the
    /// key is not bound.
    pub(super) fn subtree_of(&self, entry: &Entry) -> String {
        let (Some(cluster), Some(key)) = (self.cluster(), &entry.key) else { return String::new() };
        let found = cluster.keys.find(key.fingerprint).filter(|found| found.id == key.id);
        found.and_then(|found| found.subtree).map(|tree| tree.path).unwrap_or_default()
    }

    /// Called when a client was let in, or is about to be. Returns whether it may.
    pub(super) fn note_admitted(&self, hello: &Hello, peer: &Peer, keyed: Option<&Keyed>) -> bool {
        let (session, role) = (format!("{:016x}", hello.session.0), format!("{:?}", hello.role));
        let secure = peer.secure.to_string();
        let (fingerprint, name) = keyed.map_or_else(Default::default, |(key, e)| (key.to_string(), e.name.clone()));
        let fields = [
            ("address", peer.addr.as_str()),
            ("as", &role),
            ("name", &hello.name),
            ("session", &session),
            ("proved", proved(peer)),
            ("secure", &secure),
            ("key", &name),
            ("fingerprint", &fingerprint),
        ];
        self.audit(Kind::Admitted, &fields)
    }

    /// Called when a client was not admitted.
    pub(super) fn note_refused(&self, hello: &Hello, peer: &Peer, why: &str) {
        let (session, role) = (format!("{:016x}", hello.session.0), format!("{:?}", hello.role));
        let fingerprint = match peer.proved {
            Proved::Identity(key) => key.to_string(),
            Proved::Nothing | Proved::ClusterKey => String::new(),
        };
        let fields = [
            ("address", peer.addr.as_str()),
            ("as", &role),
            ("name", &hello.name),
            ("session", &session),
            ("fingerprint", &fingerprint),
            ("why", why),
        ];
        self.audit(Kind::Refused, &fields);
    }
}

fn proved(peer: &Peer) -> &'static str {
    match peer.proved {
        _ if peer.in_process => "in this process",
        Proved::Nothing => "the kernel's word",
        Proved::ClusterKey => "cluster key",
        Proved::Identity(_) => "identity",
    }
}

/// The settings of a change in the form of the audit log.
fn settings_described(settings: &KeySettings) -> String {
    let KeySettings { read_only, root, all, uids, gids, addresses, sessions_max, subtree } = settings;
    let mut text = String::new();
    let to = |to: &Option<SquashTo>| to.map_or("keep".into(), |to| format!("{}:{}", to.uid, to.gid));
    let ranges = |ranges: &Vec<IdRange>| {
        let shown: Vec<String> = ranges.iter().map(|r| format!("{}:{}:{}", r.client, r.server, r.count)).collect();
        shown.join(",")
    };
    let shown = [
        ("read-only", read_only.map(|on| on.to_string())),
        ("root", root.as_ref().map(to)),
        ("all", all.as_ref().map(to)),
        ("uids", uids.as_ref().map(ranges)),
        ("gids", gids.as_ref().map(ranges)),
        ("from", addresses.as_ref().map(|a| format!("{} ranges", a.len()))),
        ("mounts", sessions_max.map(|n| n.to_string())),
        ("subtree", subtree.as_ref().map(|tree| tree.as_ref().map_or("none".into(), subtree_described))),
    ];
    for (name, value) in shown.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        text.push_str(&format!(" {name}={value}"));
    }
    text
}

fn subtree_described(tree: &Subtree) -> String {
    format!("{} (inode {}, project {})", tree.path, tree.root, tree.project)
}

/// A change in the form of the audit log.
fn described(change: &KeyChange) -> String {
    match change {
        KeyChange::Add(e) => {
            let mut text = format!("add {} {} role {}", e.name, e.fingerprint, e.role);
            if e.read_only {
                text.push_str(" read-only");
            }
            if e.squash.root.is_some() || e.squash.all.is_some() {
                text.push_str(" squashed");
            }
            if let Some(tree) = &e.subtree {
                text.push_str(&format!(" subtree {}", subtree_described(tree)));
            }
            text
        }
        KeyChange::Remove(who) => format!("remove {who}"),
        KeyChange::Set { name, settings } => format!("set {name}{}", settings_described(settings)),
        KeyChange::Rotate { name, next } => format!("rotate {name} to {next}"),
        KeyChange::FinishRotation(name) => format!("finish the rotation of {name}"),
        KeyChange::RequireIdentity(on) => format!("require identities: {on}"),
    }
}
