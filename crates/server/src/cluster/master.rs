//! The master: the server with target 0 keeps the map, and decides which servers join and which sessions exist.
//!
//! Owns: joins, when the last message from each other server arrived, and sessions and tunables on all servers. Does
//! not own: the rules of the map (`membership::map`), the sessions themselves (`sessions`), the record of set tunables
//! (`membership::tuned`).
//!
//! The map is stable on target 0 before it is sent. If a server cannot be informed that a session began or ended, it
//! learns this by its next beat. The answer to each beat contains a number that changes with the sessions, and a server
//! that sees a new number compares its sessions (`follower`).

use crate::cluster::peers::{Cluster, PATIENCE};
use crate::error::ServerError;
use crate::membership::beats::DOWN_AFTER;
use crate::membership::eviction::{Eviction, TOLD_LOOK};
use crate::membership::peer_message::{PeerReply, PeerRequest};
use crate::message::TargetRequest;
use crate::records::SessionRecord;
use amphi_env::Env;
use amphi_types::{Errno, Result, SessionId, TargetId};
use amphi_wire::{Reply, ServerInfo, ServerStatus, TargetStatus};
use futures_util::future::join_all;
use std::rc::Rc;
use std::time::Duration;

/// A server that is down for this long loses the lock on moving directories.
const MOVES_AFTER: Duration = Duration::from_secs(10);
/// How long the beginning of a session waits for the answer of a server. A server that does not answer learns of the
/// session later.
const HEARING: Duration = Duration::from_secs(1);
/// Pause before the addresses of a new server are tried again.
const REACH_AGAIN: Duration = Duration::from_millis(500);
/// How long the end of a session waits for a server whose beats are missing. This is shorter than the time for which a
/// new mount waits.
const UNHEARD: Duration = Duration::from_secs(3);
/// How long the numbers of new targets are reserved for the server that requested them, while it makes its zones.
const PROMISE: Duration = Duration::from_secs(15);

impl<E: Env> Cluster<E> {
    /// Stores the map of a server that is the master, after its targets were recovered, with its present name and
    /// addresses.
    pub(crate) async fn keep_map(&self, kept: bool) -> std::result::Result<(), ServerError> {
        let failed = |e: Errno| ServerError::new(crate::ServerErrorKind::Disk, format!("the map cannot be kept: {e}"));
        let me = self.me.info.borrow().clone();
        let mut map = self.map();
        let known = map.servers.iter_mut().find(|s| s.id == me.id);
        if let Some(known) = known.filter(|s| **s != me) {
            *known = me;
            map.epoch += 1;
        } else if kept {
            return Ok(());
        }
        self.worker.tell(TargetId(0), TargetRequest::PutMap(Box::new(map.clone()))).await.map_err(failed)?;
        self.follow(map);
        Ok(())
    }

    /// `Request::Join`. A request without targets asks for the numbers of new targets, which are assigned only when the
    /// server joins with them.
    pub(crate) async fn join(
        self: &Rc<Self>,
        server: ServerInfo,
        cluster: u64,
        new_targets: u16,
        epoch: u64,
    ) -> Result<Reply> {
        self.until_ready().await;
        let _turn = self.as_master.joining.take().await;
        if cluster != 0 && cluster != self.me.cluster {
            let line = format!("its zones belong to cluster {cluster:016x}, this is {:016x}", self.me.cluster);
            return Ok(Reply::Refused(line));
        }
        let map = self.map();
        if epoch > map.epoch {
            return Ok(Reply::Refused(format!(
                "it knows epoch {epoch} of the cluster map, but the master's is {}: the master's zones are an old copy",
                map.epoch
            )));
        }
        let is_new = map.servers.iter().all(|s| s.id != server.id);
        if server.targets.is_empty() {
            // Checked before the server makes its zones.
            if let Err(line) = crate::membership::map::check_addresses(&map, &server) {
                return Ok(Reply::Refused(line));
            }
            let now_ns = self.worker.now_ns();
            if self.as_master.is_promised_to_another(server.id, now_ns) {
                // Both servers would get the same numbers, so the one that asked first gets them.
                return Err(Errno::Again);
            }
            return Ok(match crate::membership::map::new_targets(&map, new_targets) {
                Ok(new_targets) => {
                    self.as_master.promise(server.id, now_ns + PROMISE.as_nanos() as u64);
                    Reply::Joined { map, new_targets }
                }
                Err(line) => Reply::Refused(line),
            });
        }
        let next = match crate::membership::map::take_in(&map, &server) {
            Err(line) => return Ok(Reply::Refused(line)),
            Ok(next) => next,
        };
        if is_new && let Err(line) = self.check_reachable(&server).await {
            return Ok(Reply::Refused(line));
        }
        if let Some(next) = next {
            self.worker.tell(TargetId(0), TargetRequest::PutMap(Box::new(next.clone()))).await?;
            self.follow(next.clone());
            tracing::info!(
                "{} is in the cluster with {} targets",
                crate::membership::map::called(&server),
                server.targets.len()
            );
            self.as_master.keep_promise(server.id);
            for other in self.others().into_iter().filter(|s| s.id != server.id && self.is_up(s.id)) {
                let (cluster, next) = (self.clone(), next.clone());
                self.worker.env.spawn(async move {
                    // If this message is lost, the next beat informs the server.
                    let _ = cluster.ask_soon(other.id, PeerRequest::Install(next)).await;
                });
            }
        }
        self.as_master.tuned.begins(server.id);
        self.hear(server.id, self.map().epoch, Vec::new());
        Ok(Reply::Joined { map: self.map(), new_targets: Vec::new() })
    }

    /// Checks the addresses that a new server names, because others will use them. A connection that fails may be an
    /// accident.
    async fn check_reachable(&self, server: &ServerInfo) -> std::result::Result<(), String> {
        let env = &self.worker.env;
        let until = env.now() + PATIENCE;
        let mut why = "no answer".to_string();
        while env.now() < until {
            match amphi_env::timeout(env, until.since(env.now()), self.dial(server.addrs.clone())).await {
                Some(Ok(link)) => {
                    link.close().await;
                    return Ok(());
                }
                Some(Err(e)) => why = e.to_string(),
                None => break,
            }
            env.sleep(REACH_AGAIN).await;
        }
        Err(format!(
            "the master cannot reach it at {}: {why}; name addresses that mounts and servers reach it under",
            server.addrs.join(", ")
        ))
    }

    fn hear(&self, server: u64, epoch: u64, targets: Vec<TargetStatus>) {
        self.as_master.hear(server, self.worker.now_ns(), epoch, targets);
    }

    fn silent(&self, server: u64) -> Duration {
        self.as_master.silent(server, self.worker.now_ns())
    }

    /// Returns whether a beat of the server arrived recently.
    pub(crate) fn is_up(&self, server: u64) -> bool {
        self.as_master.has_heard(server) && self.silent(server) < DOWN_AFTER
    }

    pub(crate) async fn answer_as_master(self: &Rc<Self>, caller: u64, question: PeerRequest) -> Result<PeerReply> {
        if !self.is_master() {
            return Err(Errno::Stale);
        }
        match question {
            PeerRequest::Beat { epoch, targets } => {
                if self.map().servers.iter().all(|s| s.id != caller) {
                    return Err(Errno::Stale);
                }
                self.hear(caller, epoch, targets);
                self.tune_behind(caller);
                let alone = self.manager()?.tell_alone(caller);
                Ok(PeerReply::Beat {
                    epoch: self.map().epoch,
                    sessions: self.as_master.sessions_version(),
                    targets: true,
                    alone,
                    keys: self.keys_version(),
                })
            }
            PeerRequest::Sessions => {
                let sessions = self.manager()?.mounts();
                Ok(PeerReply::Sessions { version: self.as_master.sessions_version(), sessions })
            }
            PeerRequest::Evict { session: (session, start), why, how } => {
                let (manager, after_power_loss) = (self.manager()?, how == Eviction::AfterPowerLoss);
                if self.as_master.begin_of(session) == Some(start) && !manager.is_ending(session) {
                    if after_power_loss {
                        manager.disturb();
                    }
                    match how {
                        Eviction::Deaf => manager.end_deaf(session, &why),
                        Eviction::Silent | Eviction::AfterPowerLoss => manager.evict(session, &why),
                    }
                }
                // When this request is answered, the asking server forgets that changes of the session may be lost.
                while after_power_loss && manager.is_ending(session) {
                    self.worker.env.sleep(TOLD_LOOK).await;
                }
                Ok(PeerReply::Done)
            }
            _ => Err(Errno::Proto),
        }
    }

    /// Called when the sessions have changed: every server compares its sessions at its next beat.
    pub(crate) fn sessions_changed(&self) {
        self.as_master.sessions_changed();
    }

    /// Informs all servers. A server that does not get the message compares its sessions later.
    async fn tell_others(self: &Rc<Self>, question: &PeerRequest) {
        let told = self.others().into_iter().map(|s| async move {
            let result = match question {
                PeerRequest::SessionStop(_) | PeerRequest::SessionForget(..) => self.ask_while_up(s.id, question).await,
                _ if !self.is_up(s.id) => return,
                PeerRequest::SessionStart(..) => {
                    let asked = self.ask_server(s.id, question.clone());
                    amphi_env::timeout(&self.worker.env, HEARING, asked).await.unwrap_or(Err(Errno::TimedOut))
                }
                _ => self.ask_soon(s.id, question.clone()).await,
            };
            if let Err(e) = result {
                tracing::warn!(
                    "{} was not told of a session: {e}; it hears of it when it is back",
                    crate::membership::map::called(&s)
                );
            }
        });
        join_all(told).await;
    }

    /// Repeats a request to a server as long as its beats arrive. The reason is that changes of the session that are
    /// under way there must be finished before the session's end is complete. If its beats are missing, the server may
    /// be alive nevertheless, for instance if the master was cut off. So the request is tried for a short time.
    async fn ask_while_up(self: &Rc<Self>, server: u64, question: &PeerRequest) -> Result<PeerReply> {
        let mut asked = std::pin::pin!(self.ask_server(server, question.clone()));
        loop {
            match amphi_env::timeout(&self.worker.env, UNHEARD, asked.as_mut()).await {
                Some(told) => return told,
                None if !self.is_up(server) => return Err(Errno::TimedOut),
                None => {}
            }
        }
    }

    /// Called when a session begins on the other servers.
    pub(crate) async fn start_elsewhere(self: &Rc<Self>, session: SessionId, record: &SessionRecord) {
        if !self.is_master() {
            return;
        }
        self.as_master.note_begins([(session, record.start)]);
        if self.worker.routes.is_shared() {
            self.tell_others(&PeerRequest::SessionStart(session, record.clone())).await;
            self.sessions_changed();
        }
    }

    /// From now on other servers execute no request of the session.
    pub(crate) async fn stop_elsewhere(self: &Rc<Self>, session: SessionId) {
        let start = self.as_master.begin_of(session);
        if let Some(start) = start.filter(|_| self.is_master() && self.worker.routes.is_shared()) {
            self.sessions_changed();
            self.tell_others(&PeerRequest::SessionStop((session, start))).await;
        }
    }

    /// Releases the locks and opens of a stopped session on other servers.
    pub(crate) async fn forget_elsewhere(self: &Rc<Self>, session: SessionId, stopped: bool) {
        let start = self.as_master.forget_begin(session);
        if let Some(start) = start.filter(|_| self.is_master() && self.worker.routes.is_shared()) {
            self.tell_others(&PeerRequest::SessionForget((session, start), stopped)).await;
            self.sessions_changed();
        }
    }

    /// Tunables that were set at the master apply to all servers. A server that does not get the message is informed
    /// after its next beat.
    pub(crate) async fn tune_elsewhere(self: &Rc<Self>) {
        if !self.is_master() {
            return;
        }
        let up = self.others().into_iter().filter(|s| self.is_up(s.id));
        join_all(up.map(|s| async move {
            if let Err(e) = self.tune(s.id).await {
                tracing::warn!(
                    "{} was not told of tunables: {e}; it hears of them when it is back",
                    crate::membership::map::called(&s)
                );
            }
        }))
        .await;
    }

    /// Sends a server the tunables that were set and that it may lack.
    async fn tune(self: &Rc<Self>, server: u64) -> Result<()> {
        let _turn = self.as_master.tuned.turns(server).take().await;
        let Some(portion) = self.as_master.tuned.missing(server) else { return Ok(()) };
        for (pattern, value) in portion.values.iter().cloned() {
            match self.ask_soon(server, PeerRequest::Tune { pattern, value }).await {
                // The server has another version, in which a tunable of this name does not exist or has other bounds.
                Ok(_) | Err(Errno::NoEnt | Errno::Inval) => {}
                Err(e) => return Err(e),
            }
        }
        self.as_master.tuned.told(server, &portion);
        Ok(())
    }

    /// After a beat: if the server has restarted, or was away, it is sent the tunables that were set.
    fn tune_behind(self: &Rc<Self>, server: u64) {
        if self.as_master.tuned.begins_telling(server) {
            let cluster = self.clone();
            self.worker.env.spawn(async move {
                if let Err(e) = cluster.tune(server).await {
                    tracing::debug!("a server was not told of tunables: {e}");
                }
                cluster.as_master.tuned.ends_telling(server);
            });
        }
    }

    /// The master's data about all servers, itself first.
    pub(crate) fn servers(&self, own: &[TargetStatus]) -> Vec<ServerStatus> {
        if !self.is_master() {
            return Vec::new();
        }
        let (map, id) = (self.map(), self.id());
        let one = |info: ServerInfo| {
            if info.id == id {
                return ServerStatus { info, up: true, epoch: map.epoch, silent_ms: 0, targets: own.to_vec() };
            }
            let (up, silent_ms) = (self.is_up(info.id), self.silent(info.id).as_millis() as u64);
            let (epoch, targets) = self.as_master.said(info.id);
            ServerStatus { info, up, epoch, silent_ms, targets }
        };
        map.servers.iter().cloned().map(one).collect()
    }

    /// As long as the master runs, releases resources that are held for servers that have ended.
    pub(crate) fn watch_servers(self: &Rc<Self>) {
        let weak = Rc::downgrade(self);
        let env = self.worker.env.clone();
        self.worker.env.spawn(async move {
            loop {
                env.sleep(DOWN_AFTER).await;
                let Some(cluster) = weak.upgrade().filter(|c| !c.closed.get()) else { return };
                let numbers = cluster.callers.take_moves(|server| cluster.silent(server) < MOVES_AFTER);
                cluster.unlock_moves(numbers);
            }
        });
    }
}
