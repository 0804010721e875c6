//! Requests about a whole server: its state, its tunables and counters, and the goodbye of a session.
//!
//! Owns: their answers. Does not own: which client may send them (`trust`), how sessions end (`ending`).

use super::SessionManager;
use super::audit::Kind;
use super::entry::Entry;
use super::trust::{Owner, Viewer};
use crate::message::{TargetReply, TargetRequest};
use amphi_env::Env;
use amphi_transport::{ConnId, Incoming};
use amphi_types::{Errno, Result, SessionId};
use amphi_wire::keys::KeyRole;
use amphi_wire::{Answer, Reply, Request, Role, SessionStatus};
use std::collections::BTreeMap;
use std::rc::Rc;

impl<E: Env> SessionManager<E> {
    /// The answer to a request about the whole server, and whether it ends the session.
    pub(super) async fn serve(self: &Rc<Self>, incoming: Incoming) -> (Answer, bool) {
        let session = incoming.session;
        let result = match incoming.call.op {
            Request::Map => self.map(),
            Request::Goodbye => {
                let result = self.end_politely(session).await;
                let over = result.is_ok();
                return (Answer::of(result), over);
            }
            Request::CompanyKnown { change } => {
                self.company_known(session, change);
                Ok(Reply::Done)
            }
            Request::CompanyKept { change } => {
                self.company_kept(session, change);
                Ok(Reply::Done)
            }
            Request::Status => self.status(self.viewer(&incoming)).await,
            Request::Tunables { pattern, value } => {
                let by = self.asker(&incoming.route.conn, session);
                self.tunables(&pattern, value.as_deref(), &by).await
            }
            Request::Keys { change } => {
                let by = self.asker(&incoming.route.conn, session);
                self.keys(change, incoming.route.conn, &by).await
            }
            Request::Evict { who } => self.evict_by_name(&who, &self.asker(&incoming.route.conn, session)),
            Request::Counters { reset } => self.counters(reset).await,
            _ => Err(Errno::Perm),
        };
        (Answer::of(result), false)
    }

    /// The viewer for which a client requests the server's state.
    fn viewer(&self, incoming: &Incoming) -> Viewer {
        match (self.gate(incoming.route.conn), &incoming.bound) {
            (Some(gate), _) if gate.entry.role == KeyRole::Client => Viewer::Only(Owner::Key(gate.entry.id)),
            (None, Some(cred)) => Viewer::Only(Owner::User(cred.uid)),
            _ => Viewer::Anybody,
        }
    }

    /// The client that sent the request, for the audit log.
    fn asker(&self, conn: &ConnId, session: SessionId) -> String {
        let by = self.gate(*conn).map(|gate| format!("key {}", gate.entry.name));
        let name = || self.sessions.borrow().get(&session).map(|e| e.name.clone());
        by.or_else(name).unwrap_or_default()
    }

    /// The status of this server, and its counters, for its own process.
    pub(crate) async fn report(self: &Rc<Self>) -> Result<(Reply, Vec<(String, u64)>)> {
        let status = self.status(Viewer::Anybody).await?;
        let Reply::Counters(rows) = self.counters(false).await? else { return Err(Errno::Proto) };
        Ok((status, rows))
    }

    /// Shows tunables, or sets them; when it returns, every target uses the new values.
    async fn tunables(&self, pattern: &str, value: Option<&str>, by: &str) -> Result<Reply> {
        let applied = self.worker.tunables.apply(pattern, value);
        if let Some(value) = value {
            let result = applied.as_ref().map_or_else(|e| e.to_string(), |_| "done".into());
            self.audit(Kind::Tunables, &[("by", by), ("pattern", pattern), ("value", value), ("result", &result)]);
        }
        let rows = applied?;
        if value.is_some() {
            if let Some(cluster) = self.cluster() {
                cluster.as_master.tuned.note(&rows);
            }
            for target in self.worker.routes.local() {
                self.worker.tell(*target, TargetRequest::Tune).await?;
            }
            if let Some(cluster) = self.cluster() {
                cluster.tune_elsewhere().await;
            }
        }
        Ok(Reply::Tunables(rows))
    }

    async fn status(self: &Rc<Self>, viewer: Viewer) -> Result<Reply> {
        let mut targets = Vec::new();
        let mut held: BTreeMap<SessionId, (u64, u64)> = BTreeMap::new();
        for target in self.worker.routes.local() {
            let TargetReply::Status(mut status, opens) = self.worker.ask(*target, TargetRequest::Status).await? else {
                return Err(Errno::Proto);
            };
            if viewer != Viewer::Anybody {
                // Findings contain names of files.
                status.findings.clear();
            }
            targets.push(*status);
            for (session, (opens, locks)) in opens {
                let sum = held.entry(session).or_default();
                *sum = (sum.0 + opens, sum.1 + locks);
            }
        }
        let mounts = |(id, e): (&SessionId, &Entry)| {
            let (opens, locks) = held.get(id).copied().unwrap_or_default();
            let connected = e.conn.is_some();
            (e.role == Role::Mount && viewer.may_see(e)).then(|| SessionStatus {
                session: *id,
                name: e.name.clone(),
                connected,
                opens,
                locks,
                key: e.key.as_ref().map(|key| key.name.clone()).unwrap_or_default(),
                subtree: self.subtree_of(e),
                secure: e.secure.filter(|_| connected),
                memory: e.memory && connected,
            })
        };
        let sessions = self.sessions.borrow().iter().filter_map(mounts).collect();
        let map_epoch = self.worker.routes.epoch();
        let mut servers = self.cluster().map(|c| c.servers(&targets)).unwrap_or_default();
        if viewer != Viewer::Anybody {
            // Reports of other servers contain names of files as well.
            servers.iter_mut().flat_map(|server| &mut server.targets).for_each(|target| target.findings.clear());
        }
        let uptime_s = self.worker.now_ns().saturating_sub(self.facts.started_ns) / 1_000_000_000;
        Ok(Reply::Status { uptime_s, cluster: self.facts.cluster, targets, sessions, map_epoch, servers })
    }

    async fn counters(self: &Rc<Self>, reset: bool) -> Result<Reply> {
        let mut all: Vec<(String, u64)> = Vec::new();
        for target in self.worker.routes.local() {
            let question = TargetRequest::Counters { reset };
            let TargetReply::Counters(part) = self.worker.ask(*target, question).await? else {
                return Err(Errno::Proto);
            };
            for (name, n) in part {
                match all.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, sum)) => *sum += n,
                    None => all.push((name, n)),
                }
            }
        }
        Ok(Reply::Counters(all))
    }
}
