//! A server that is not the master: how it joins the cluster, and how it keeps its state equal to the master's.
//!
//! Owns: requesting numbers for new targets, joining the cluster, beats, comparing sessions with the master's. Does not
//! own: the master's answers, the consequences of its silence (`master_lease`).
//!
//! While the master cannot be reached, a server that has an earlier cluster map serves with that map. A server without
//! one keeps trying to reach the master. A session that the master does not know has ended. If only the master knows a
//! session, it began while this server was down or cut off.

use crate::cluster::peers::Cluster;
use crate::config::ServerConfig;
use crate::error::{ServerError, ServerErrorKind};
use crate::membership::beats::{BEAT, DOWN_AFTER};
use crate::membership::ended::Begun;
use crate::membership::eviction::{AFTER_POWER_LOSS, Eviction};
use crate::membership::peer_link::{ALREADY_HERE, PeerName, Plain, STOPPING, peer_link_config};
use crate::membership::peer_message::{PeerReply, PeerRequest};
use crate::message::{OpenReport, TargetRequest};
use crate::records::SessionRecord;
use amphi_env::Env;
use amphi_transport::{Link, LinkConfig};
use amphi_types::{Cred, Errno, Result, SessionId, TargetId};
use amphi_wire::{Call, ClusterMap, Lane, Reply, Request, ServerInfo, TargetStatus};
use futures_channel::oneshot;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

/// Pause before the next attempt to reach the master.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// The most time that one attempt to join may take. During it the master tries the addresses of a new server.
const ATTEMPT: Duration = Duration::from_secs(20);
/// How long another process with the same zones may be connected before it counts as alive. This is as long as it takes
/// to notice that a connection is dead.
const LEFTOVER: Duration = Duration::from_secs(30);
/// How long a server with a map waits for the master before it starts without.
const MASTER_PATIENCE: Duration = Duration::from_secs(2);

/// The master's answers about sessions.
pub(crate) struct Heard {
    version: u64,
    sessions: Vec<(SessionId, SessionRecord)>,
    /// Sessions that were known on this server and have ended.
    ended: Vec<Begun>,
}

/// The reason why the master did not admit a server.
pub(crate) enum Trouble {
    /// The refusal is final.
    Refused(String),
    /// The master does not take the server in now; a later request may succeed.
    Later(String),
    /// Another process acts as this server.
    Taken(String),
}

/// Sends the request to the master once.
async fn ask_once<E: Env>(env: &E, config: LinkConfig, op: Request) -> std::result::Result<Reply, Trouble> {
    let asked = async {
        let link = Link::connect(env.clone(), config, Rc::new(Plain)).await.map_err(|e| {
            let text = e.to_string();
            match e.kind() {
                _ if text.contains(ALREADY_HERE) => Trouble::Taken(text),
                _ if text.contains(STOPPING) => Trouble::Later(text),
                ErrorKind::PermissionDenied | ErrorKind::InvalidData => Trouble::Refused(text),
                _ => Trouble::Later(text),
            }
        })?;
        let call = Call { target: TargetId(0), cred: Cred::root(), op };
        let answer = link.call(Lane::Urgent, call, None, 0).await;
        link.close().await;
        match answer {
            Ok((answer, _)) => answer.result.map_err(|e| Trouble::Later(e.to_string())),
            Err(e) => Err(Trouble::Later(e.to_string())),
        }
    };
    let late = || Trouble::Later(format!("no answer within {ATTEMPT:?}"));
    amphi_env::timeout(env, ATTEMPT, asked).await.unwrap_or_else(|| Err(late()))
}

fn refused(line: String) -> ServerError {
    ServerError::new(ServerErrorKind::Refused, format!("the cluster does not take this server in: {line}"))
}

/// Asks the master until it answers or refuses for good, or `until` has passed.
async fn ask_master<E: Env>(
    env: &E,
    config: impl Fn(&[String]) -> LinkConfig,
    op: &Request,
    patience: Option<Duration>,
) -> std::result::Result<Option<Reply>, ServerError> {
    let (begun, mut told, mut named) = (env.now(), false, Vec::new());
    loop {
        let config = config(&named);
        let addrs = config.addrs.join(", ");
        let mut there = false;
        let why = match ask_once(env, config, op.clone()).await {
            Ok(Reply::Refused(line)) | Err(Trouble::Refused(line)) => return Err(refused(line)),
            Ok(Reply::Map(map)) => {
                // The server that answered is not the master, but it knows the master.
                let before = std::mem::take(&mut named);
                named = map.servers.into_iter().next().map(|m| m.addrs).unwrap_or_default();
                if named != before {
                    continue;
                }
                "its servers say that the master is elsewhere".into()
            }
            Ok(reply) => return Ok(Some(reply)),
            Err(Trouble::Taken(line)) if env.now().since(begun) > LEFTOVER => return Err(refused(line)),
            Err(Trouble::Taken(why)) => {
                there = true;
                why
            }
            Err(Trouble::Later(why)) => why,
        };
        if !there && patience.is_some_and(|p| env.now().since(begun) > p) {
            return Ok(None);
        }
        if !told {
            tracing::warn!("waiting for the master at {addrs}: {why}");
            told = true;
        }
        env.sleep(TRY_AGAIN).await;
    }
}

/// The master's data for a server without zones.
#[derive(Clone)]
pub(crate) struct Enlisted {
    /// The number of the server.
    pub(crate) server: u64,
    /// The map.
    pub(crate) map: ClusterMap,
    /// The targets of the server.
    pub(crate) targets: Vec<TargetId>,
}

/// Requests numbers for the targets of a new server, which others reach at `addrs`, from the master. Waits for the
/// master as long as necessary.
pub(crate) async fn enlist<E: Env>(
    env: &E,
    config: &ServerConfig,
    addrs: &[String],
) -> std::result::Result<Enlisted, ServerError> {
    let count = config.targets.unwrap_or(ServerConfig::TARGETS);
    let (server, boot) = (env.rand() | 1, env.rand());
    let key = (config.cluster_key()?, config.identity.clone());
    let name = PeerName { server, boot, name: config.name.clone() };
    let link = |named: &[String]| {
        let addrs = named.iter().chain(&config.join).cloned().collect();
        peer_link_config(addrs, SessionId(env.rand()), &name, key.clone(), config.peers_secure)
    };
    let info = ServerInfo { id: server, name: config.name.clone(), addrs: addrs.to_vec(), targets: Vec::new() };
    let op = Request::Join { server: info, cluster: 0, new_targets: count, epoch: 0 };
    match ask_master(env, link, &op, None).await? {
        Some(Reply::Joined { map, new_targets }) if crate::membership::map::fault(&map).is_none() => {
            Ok(Enlisted { server, map, targets: new_targets })
        }
        _ => Err(refused("the master's answer makes no sense".into())),
    }
}

impl<E: Env> Cluster<E> {
    /// Registers with the master. If the master cannot be reached, continues with the earlier map, if there is one. The
    /// result is then false.
    pub(crate) async fn come_in(self: &Rc<Self>, has_map: bool) -> std::result::Result<bool, ServerError> {
        let env = &self.worker.env;
        let key = (self.worker.config.cluster_key()?, self.link_identity());
        let me = self.me.info.borrow().clone();
        let name = PeerName { server: me.id, boot: self.me.boot, name: me.name.clone() };
        let link = |named: &[String]| {
            let mut addrs: Vec<String> = named.iter().chain(&self.worker.config.join).cloned().collect();
            let map = self.map();
            addrs.extend(map.servers.first().into_iter().flat_map(|m| m.addrs.iter().cloned()));
            let mut seen = BTreeSet::new();
            addrs.retain(|a| seen.insert(a.clone()));
            peer_link_config(addrs, SessionId(env.rand()), &name, key.clone(), self.worker.config.peers_secure)
        };
        let epoch = if has_map { self.map().epoch } else { 0 };
        let op = Request::Join { server: me.clone(), cluster: self.me.cluster, new_targets: 0, epoch };
        let Some(reply) = ask_master(env, link, &op, has_map.then_some(MASTER_PATIENCE)).await? else {
            return Ok(false);
        };
        let Reply::Joined { map, .. } = reply else {
            return Err(refused("the master's answer makes no sense".into()));
        };
        if map.cluster != self.me.cluster || crate::membership::map::fault(&map).is_some() {
            return Err(refused("the master's map makes no sense".into()));
        }
        self.follow(map);
        Ok(true)
    }

    /// Stores the map on the targets, once they may be written to.
    pub(crate) async fn keep_copy(&self) -> Result<()> {
        let keeper = self.worker.routes.local().first().copied().unwrap_or_default();
        self.worker.tell(keeper, TargetRequest::PutMap(Box::new(self.map()))).await
    }

    /// Takes over the sessions that the zones remember, and compares them with the master's if the master has answered.
    /// Returns the number of the list with which they were compared.
    pub(crate) async fn remember(self: &Rc<Self>, reports: &[OpenReport], joined: bool) -> Result<Option<u64>> {
        for (id, record) in reports.iter().flat_map(|h| h.sessions.iter()) {
            self.as_follower.remember(*id, record.clone());
        }
        // A crash may have kept the record of a session from some of the zones.
        let known = self.as_follower.known();
        for (target, report) in self.worker.routes.local().iter().zip(reports) {
            for (id, record) in known.iter().filter(|(id, _)| report.sessions.iter().all(|(here, _)| here != id)) {
                self.worker.tell(*target, TargetRequest::SessionStart(*id, record.clone())).await?;
            }
        }
        self.expect_back();
        if joined && let Err(e) = self.compare_keys(None).await {
            tracing::warn!("the master was not asked for the registry of keys: {e}; keys count from the next beat on");
        }
        // The next beat tries again.
        Ok(if joined { self.compare_sessions().await.ok() } else { None })
    }

    /// After a loss of power, the sessions of this server end: on this server at once, and everywhere as soon as the
    /// master has been informed.
    pub(crate) async fn end_robbed(self: &Rc<Self>, reports: &[OpenReport]) -> Result<()> {
        if !reports.iter().any(|h| h.lost) {
            return Ok(());
        }
        let here: BTreeSet<Begun> =
            reports.iter().flat_map(|h| h.sessions.iter().map(|(id, record)| (*id, record.start))).collect();
        for session in here {
            self.evict_here(session.0, AFTER_POWER_LOSS, Eviction::AfterPowerLoss);
            self.stop_here(session).await?;
        }
        let weak = Rc::downgrade(self);
        self.manager()?.until_told(move |_| weak.upgrade().is_none_or(|cluster| !cluster.as_follower.is_evicting()));
        Ok(())
    }

    fn master(&self) -> Result<u64> {
        self.map().servers.first().map(|s| s.id).ok_or(Errno::Stale)
    }

    /// Keeps the state equal to the master's, as long as the server runs.
    pub(crate) fn keep_step(self: &Rc<Self>, mut joined: bool, version: Option<u64>) {
        let weak = Rc::downgrade(self);
        let env = self.worker.env.clone();
        self.as_follower.compared.set(version);
        self.watch_master();
        self.worker.env.spawn(async move {
            let mut beats = 0u64;
            loop {
                if beats > 0 || !joined {
                    env.sleep(BEAT).await;
                }
                let Some(cluster) = weak.upgrade().filter(|c| !c.closed.get()) else { return };
                if !joined {
                    joined = match cluster.come_in(true).await {
                        Ok(joined) => joined,
                        Err(e) => {
                            tracing::error!("{e}");
                            env.sleep(DOWN_AFTER).await;
                            false
                        }
                    };
                    if joined && let Err(e) = cluster.keep_copy().await {
                        tracing::error!("the map cannot be kept: {e}");
                    }
                    continue;
                }
                beats += 1;
                match cluster.beat(beats % 5 == 1).await {
                    Err(Errno::Stale) => joined = false,
                    Err(e) => tracing::debug!("the master was not reached: {e}"),
                    Ok(()) => {}
                }
            }
        });
    }

    async fn beat(self: &Rc<Self>, with_targets: bool) -> Result<()> {
        let targets = if with_targets { self.own_targets().await? } else { Vec::new() };
        let question = PeerRequest::Beat { epoch: self.map().epoch, targets };
        let sent_ns = self.worker.now_ns();
        let PeerReply::Beat { epoch, sessions, alone, keys, .. } = self.ask_soon(self.master()?, question).await?
        else {
            return Err(Errno::Proto);
        };
        if epoch > self.map().epoch {
            self.refresh_map().await?;
        }
        self.compare_keys(Some(keys)).await?;
        if self.as_follower.compared.get() != Some(sessions) {
            let heard = self.hear_sessions().await?;
            self.heard_master(sent_ns)?;
            if !self.settled_soon(heard).await {
                return Ok(());
            }
        }
        self.in_step(sent_ns, alone).await
    }

    /// Applies the master's answer about sessions. If this takes longer than one beat, further beats are sent
    /// meanwhile. The end of a session may wait for a server that is down, and the master and the mounts must not
    /// consider this server down, too. Returns whether it is done.
    async fn settled_soon(self: &Rc<Self>, heard: Heard) -> bool {
        if self.as_follower.settling.replace(true) {
            return false;
        }
        let (tell, told) = oneshot::channel();
        let cluster = self.clone();
        self.worker.env.spawn(async move {
            let settled = cluster.settle_sessions(heard).await;
            match &settled {
                Ok(version) => cluster.as_follower.compared.set(Some(*version)),
                Err(e) => tracing::debug!("sessions could not be settled: {e}"),
            }
            cluster.as_follower.settling.set(false);
            // The beat may not wait any more.
            let _ = tell.send(settled.is_ok());
        });
        matches!(amphi_env::timeout(&self.worker.env, BEAT, told).await, Some(Ok(true)))
    }

    async fn own_targets(&self) -> Result<Vec<TargetStatus>> {
        let mut all = Vec::new();
        for target in self.worker.routes.local() {
            if let crate::message::TargetReply::Status(mut status, _) =
                self.worker.ask(*target, TargetRequest::Status).await?
            {
                // Requests to this server itself return these findings.
                status.findings.clear();
                all.push(*status);
            }
        }
        Ok(all)
    }

    /// Ends sessions that have ended elsewhere, and starts those that have begun. Returns the number of the master's
    /// list with which it compared.
    pub(crate) async fn compare_sessions(self: &Rc<Self>) -> Result<u64> {
        let heard = self.hear_sessions().await?;
        self.settle_sessions(heard).await
    }

    /// Requests the list of sessions from the master. From then on this server executes no request of sessions that
    /// have ended.
    pub(crate) async fn hear_sessions(self: &Rc<Self>) -> Result<Heard> {
        // If a session begins on this server after this point, its absence from the list does not mean that it has
        // ended.
        let before: Vec<Begun> = self.as_follower.known().into_iter().map(|(id, r)| (id, r.start)).collect();
        let PeerReply::Sessions { version, sessions } = self.ask_soon(self.master()?, PeerRequest::Sessions).await?
        else {
            return Err(Errno::Proto);
        };
        let alive: BTreeSet<(SessionId, u64)> = sessions.iter().map(|(id, record)| (*id, record.start)).collect();
        let ended: Vec<Begun> = before.into_iter().filter(|s| !alive.contains(s)).collect();
        for session in &ended {
            self.stop_here(*session).await?;
        }
        Ok(Heard { version, sessions, ended })
    }

    /// First releases what ended sessions hold, then starts sessions that have begun.
    async fn settle_sessions(&self, heard: Heard) -> Result<u64> {
        for ended in heard.ended {
            // This server does not know how the session ended.
            self.forget_here(ended, false).await?;
        }
        for (session, record) in heard.sessions {
            self.start_here(session, record).await?;
        }
        Ok(heard.version)
    }

    /// Called when a session begins here, unless it has ended already.
    pub(crate) async fn start_here(&self, session: SessionId, record: SessionRecord) -> Result<PeerReply> {
        let before = self.as_follower.begin_of(session).filter(|start| *start != record.start);
        if let Some(start) = before {
            self.land((session, start)).await?;
        }
        if !self.as_follower.knows((session, record.start)) {
            // The id of the session is not used again while a change of an earlier session with this id is under way.
            self.manager()?.idle(session).await;
        }
        let _turn = self.as_follower.changing.take().await;
        if self.has_ended((session, record.start)) {
            return Ok(PeerReply::Done);
        }
        match self.as_follower.begin_of(session) {
            Some(start) if start == record.start => return Ok(PeerReply::Done),
            None => {}
            // The session ended and began again while this server was not informed.
            Some(start) => self.forget_targets((session, start), false).await?,
        }
        if self.as_follower.knows_another(session) {
            self.grant_tokens().await?;
        }
        for target in self.worker.routes.local() {
            match self.worker.tell(*target, TargetRequest::SessionStart(session, record.clone())).await {
                // The target's disk has failed, so the target serves no session.
                Err(Errno::Io) => tracing::error!("target {}: a session cannot begin there", target.0),
                told => told?,
            }
        }
        let start = record.start;
        self.as_follower.begin(session, record);
        if self.has_ended((session, start)) {
            // Meanwhile.
            self.forget_targets((session, start), false).await?;
        }
        Ok(PeerReply::Done)
    }

    /// From now on this server executes no request of the session.
    pub(crate) async fn stop_here(self: &Rc<Self>, ended: Begun) -> Result<PeerReply> {
        self.note_ended(ended);
        if self.is_known(ended) {
            for target in self.worker.routes.local() {
                self.worker.tell(*target, TargetRequest::SessionStop(ended.0)).await?;
            }
            self.manager()?.leave(ended.0);
        }
        Ok(PeerReply::Done)
    }

    fn is_known(&self, session: Begun) -> bool {
        self.as_follower.knows(session)
    }

    /// Releases the locks and opens of a stopped session on this server. `stopped`: its client is known to use nothing
    /// any more.
    pub(crate) async fn forget_here(&self, ended: Begun, stopped: bool) -> Result<PeerReply> {
        self.note_ended(ended);
        self.land(ended).await?;
        let _turn = self.as_follower.changing.take().await;
        let is_known = self.is_known(ended);
        self.forget_targets(ended, stopped).await?;
        if stopped && !is_known && self.as_follower.begin_of(ended.0).is_none() {
            // The list of existing sessions arrived first, and it does not say how a session has ended.
            for target in self.worker.routes.local() {
                self.worker.tell(*target, TargetRequest::SessionUsesNothing(ended.0)).await?;
            }
        }
        Ok(PeerReply::Done)
    }

    /// Returns when no request of an ended session is executed any more, and none is under way, as in `end_everywhere`.
    /// This may wait for other servers, so no operation for which other servers wait may wait for this.
    async fn land(&self, ended: Begun) -> Result<()> {
        if self.is_known(ended) {
            for target in self.worker.routes.local() {
                self.worker.tell(*target, TargetRequest::SessionStop(ended.0)).await?;
            }
            for target in self.worker.routes.local() {
                self.worker.tell(*target, TargetRequest::SessionLanded(ended.0)).await?;
            }
        }
        Ok(())
    }

    /// The caller has the turn, and all changes of the session have ended before.
    async fn forget_targets(&self, ended: Begun, stopped: bool) -> Result<()> {
        if !self.is_known(ended) {
            return Ok(());
        }
        self.land(ended).await?;
        for target in self.worker.routes.local() {
            // A target whose disk has failed must not prevent the others from continuing.
            if let Err(e) = self.worker.tell(*target, TargetRequest::SessionForget(ended.0, stopped)).await {
                tracing::error!("target {}: what an ended session has there cannot be forgotten: {e}", target.0);
            }
        }
        if !stopped {
            self.note_cut_off();
        }
        self.as_follower.forget(ended.0);
        Ok(())
    }

    /// Lets a mount in whose session is known here or to the master. Returns whether it is the session of its last
    /// connection to this server. The same session may have ended and begun again since.
    ///
    /// Errors: the reason why the mount is not admitted.
    pub(crate) async fn admit_mount(self: &Rc<Self>, session: SessionId) -> std::result::Result<bool, String> {
        match self.know_session(session).await? {
            Some(start) => Ok(self.as_follower.connect(session, start)),
            None => Err("this session has ended; mount again".into()),
        }
    }

    /// The `Welcome::begun` that an admitted mount gets.
    pub(crate) fn begin_of(&self, session: SessionId) -> u64 {
        let begin = match self.is_master() {
            true => self.as_master.begin_of(session),
            false => self.as_follower.connected_begin_of(session),
        };
        begin.unwrap_or_default()
    }

    /// The begin of a session that is known here or to the master and has not ended.
    ///
    /// Errors: why the master does not say.
    pub(crate) async fn know_session(self: &Rc<Self>, session: SessionId) -> std::result::Result<Option<u64>, String> {
        let start = |c: &Self| c.as_follower.begin_of(session).filter(|s| !c.has_ended((session, *s)));
        if start(self).is_none() {
            self.learn_session(session).await?;
        }
        Ok(start(self))
    }

    /// Returns when this server knows whether that session has ended, unless it may have begun again since the master
    /// was asked.
    ///
    /// Errors: `Again` if the master cannot be asked.
    pub(crate) async fn hear_of(self: &Rc<Self>, session: Begun) -> Result<()> {
        if self.is_known(session) || self.has_ended(session) {
            return Ok(());
        }
        self.compare_sessions().await.map(drop).map_err(|_| Errno::Again)
    }

    /// Learns of a session, and of every session that ended before it began.
    async fn learn_session(self: &Rc<Self>, session: SessionId) -> std::result::Result<(), String> {
        match self.compare_sessions().await {
            Ok(_) if self.as_follower.begin_of(session).is_some() => Ok(()),
            Ok(_) => Err("the master does not know this session; mount there first".into()),
            Err(e) => Err(format!("the master cannot be asked about this session: {e}")),
        }
    }

    /// `PeerRequest::SessionStart`: before another session is started, this server has released everything of sessions
    /// that have ended. A mount that was in sole mode until its session ended may have written without locks.
    pub(crate) async fn start_after_ends(
        self: &Rc<Self>,
        session: SessionId,
        record: SessionRecord,
    ) -> Result<PeerReply> {
        if self.as_follower.knows_another(session) {
            self.compare_sessions().await?;
        }
        self.start_here(session, record).await
    }

    /// A session violated the protocol on this server: it ends here at once, and everywhere as soon as the master has
    /// been informed. The same holds for a session whose answered changes may be lost (`after_power_loss`).
    pub(crate) fn evict_here(self: &Rc<Self>, session: SessionId, why: &str, how: Eviction) {
        let Some(start) = self.as_follower.begin_of(session) else { return };
        let ended = (session, start);
        if self.has_ended(ended) {
            return;
        }
        self.note_ended(ended);
        let (cluster, why) = (self.clone(), why.to_string());
        self.as_follower.begin_evicting();
        self.worker.env.spawn(async move {
            // If answered changes of the session may be lost, the zones record its end until the master knows of it, to
            // repeat it after a kill.
            let stopped = how == Eviction::Deaf;
            if how != Eviction::AfterPowerLoss {
                // This runs in the background, because it may wait for a server that is down, while the master has to
                // be informed.
                let beside = cluster.clone();
                cluster.worker.env.spawn(async move { beside.remove_here(ended, stopped).await });
            }
            while !cluster.closed.get() {
                let Ok(master) = cluster.master() else { return };
                let question = PeerRequest::Evict { session: ended, why: why.clone(), how };
                match cluster.ask_soon(master, question).await {
                    Ok(_) => {
                        cluster.remove_here(ended, stopped).await;
                        cluster.as_follower.end_evicting();
                        return;
                    }
                    Err(_) => cluster.worker.env.sleep(BEAT).await,
                }
            }
        });
    }

    async fn remove_here(self: &Rc<Self>, ended: Begun, stopped: bool) {
        let gone = async {
            self.stop_here(ended).await?;
            self.forget_here(ended, stopped).await
        };
        if let Err(e) = gone.await {
            tracing::error!("a session could not be removed: {e}");
        }
    }
}
