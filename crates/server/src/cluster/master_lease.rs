//! The behaviour of a server that is not the master, by the time of the last message of the master.
//!
//! Owns: making its targets grant tokens or not, and making mounts wait while the master is silent. Does not own: how
//! long the master's last answer is valid (`membership::lease`), beats and sessions (`follower`), whether there is one
//! mount (`sessions::company`, at the master).
//!
//! Targets of this server grant tokens unless three conditions hold: the master has said within `ALONE_LEASE` that the
//! only mount knows that it is the only one; this server has no other session; and no session that was cut off may
//! still use tokens that were granted on this server. So a server grants tokens from its start on. If a server is not
//! informed of a second mount, it begins to grant tokens by itself before that mount is admitted. The master waits for
//! the server's answer or for the end of this lease. Granting tokens to a sole mount costs only messages.
//!
//! Several mounts are served for `WITHOUT_MASTER` after the last message from the master, because the master may have
//! ended one of their sessions. A mount that is the only one on this server is served without a limit, because it can
//! affect no other, and the server asks the master before it admits the next mount.

use crate::cluster::peers::Cluster;
use crate::membership::beats::BEAT;
use crate::membership::lease::{ALONE_LEASE, ns};
use crate::membership::peer_message::PeerReply;
use crate::message::{TargetReply, TargetRequest};
use amphi_env::Env;
use amphi_types::{Errno, Result, SessionId};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// How long a server without the master serves several mounts.
const WITHOUT_MASTER: Duration = Duration::from_secs(60);
/// A server whose last beat is younger than this is informed of sessions that end. The master informs servers whose
/// beats arrived within 5 s.
const IN_STEP: Duration = Duration::from_secs(4);

impl<E: Env> Cluster<E> {
    /// The targets begin to grant tokens before the first request is sent to them. `cut_off`: sessions were, a short
    /// time ago.
    pub(crate) async fn begin_granting(&self, cut_off: bool) -> Result<()> {
        self.lease.hear(self.worker.now_ns());
        if cut_off {
            self.note_cut_off();
        }
        self.switch(true).await
    }

    /// Called when a session was cut off here and may continue using tokens until they end.
    pub(crate) fn note_cut_off(&self) {
        self.lease.note_cut_off(self.worker.now_ns());
    }

    async fn switch(&self, on: bool) -> Result<()> {
        let number = self.lease.next_switch();
        for target in self.worker.routes.local() {
            self.worker.tell(*target, TargetRequest::Company(on, number)).await?;
        }
        Ok(())
    }

    /// Makes the targets grant tokens if they do not. The caller holds the turn of `changing`.
    pub(crate) async fn grant_tokens(&self) -> Result<()> {
        if self.lease.alone_until_ns().is_some() {
            self.switch(true).await?;
            self.lease.end_alone();
        }
        Ok(())
    }

    /// Handles `PeerRequest::Company`.
    pub(crate) async fn told_company(&self, change: u64) -> Result<PeerReply> {
        self.lease.note_company(change);
        let _turn = self.as_follower.changing.take().await;
        self.grant_tokens().await?;
        Ok(PeerReply::Done)
    }

    /// A beat that was sent at `sent_ns` has been answered, and nothing more is taken from sessions that have ended.
    pub(crate) fn heard_master(self: &Rc<Self>, sent_ns: u64) -> Result<()> {
        assert!(sent_ns <= self.worker.now_ns(), "a beat of {sent_ns} ns was answered before it was sent");
        self.lease.hear(sent_ns);
        if self.lease.hold(false) {
            self.manager()?.hold_mounts(false);
        }
        Ok(())
    }

    /// A beat that was sent at `sent_ns` has been answered, and sessions are as the master knows them. `alone`: the
    /// number of the switch by which the only mount learnt that it is the only one.
    pub(crate) async fn in_step(self: &Rc<Self>, sent_ns: u64, alone: Option<u64>) -> Result<()> {
        self.heard_master(sent_ns)?;
        let _turn = self.as_follower.changing.take().await;
        let (now_ns, until_ns) = (self.worker.now_ns(), sent_ns + ns(ALONE_LEASE));
        let may = self.lease.may_go_without(alone, now_ns) && self.as_follower.count() < 2 && now_ns < until_ns;
        if !may {
            return self.grant_tokens().await;
        }
        assert!(self.as_follower.count() < 2, "{} mounts would go without tokens", self.as_follower.count());
        if self.lease.begin_alone(until_ns) {
            self.switch(false).await?;
            self.watch_lease();
        }
        Ok(())
    }

    /// Makes the targets grant tokens again when the lease is over.
    fn watch_lease(self: &Rc<Self>) {
        let (weak, env) = (Rc::downgrade(self), self.worker.env.clone());
        self.worker.env.spawn(async move {
            loop {
                let left_ns = {
                    let Some(cluster) = weak.upgrade() else { return };
                    let Some(until_ns) = cluster.lease.alone_until_ns() else { return };
                    until_ns.saturating_sub(cluster.worker.now_ns())
                };
                env.sleep(Duration::from_nanos(left_ns + 1)).await;
                let Some(cluster) = weak.upgrade() else { return };
                let _turn = cluster.as_follower.changing.take().await;
                if cluster.lease.alone_until_ns().is_some_and(|until_ns| until_ns <= cluster.worker.now_ns())
                    && let Err(e) = cluster.grant_tokens().await
                {
                    tracing::error!("tokens cannot be granted: {e}");
                    return;
                }
            }
        });
    }

    fn silent_for(&self) -> Duration {
        self.lease.silent_for(self.worker.now_ns())
    }

    /// Returns when this server has been informed of every session that had ended before the call.
    ///
    /// Errors: `Again` if the master cannot be asked.
    pub(crate) async fn be_in_step(self: &Rc<Self>) -> Result<()> {
        if self.silent_for() < IN_STEP {
            return Ok(());
        }
        self.hear_sessions().await.map(drop).map_err(|_| Errno::Again)
    }

    /// Lets several mounts wait while the master has been silent for too long, as long as the server runs.
    pub(crate) fn watch_master(self: &Rc<Self>) {
        let (weak, env) = (Rc::downgrade(self), self.worker.env.clone());
        self.worker.env.spawn(async move {
            loop {
                env.sleep(BEAT).await;
                let Some(cluster) = weak.upgrade().filter(|c| !c.closed.get()) else { return };
                let over = cluster.silent_for() >= WITHOUT_MASTER && cluster.as_follower.count() > 1;
                if over && !cluster.lease.is_holding() {
                    let Ok(manager) = cluster.manager() else { return };
                    tracing::warn!("the master was not heard for {WITHOUT_MASTER:?}: mounts wait until it is");
                    cluster.lease.hold(true);
                    manager.hold_mounts(true);
                    manager.cut_all("the server has lost its master");
                }
            }
        });
    }

    /// Sessions of the earlier run that do not reconnect within the grace time hold nothing on this server. A mount
    /// that holds something has a connection, and presents it again over the next one.
    pub(crate) fn expect_back(self: &Rc<Self>) {
        let (weak, env) = (Rc::downgrade(self), self.worker.env.clone());
        let Ok(grace) = self.manager().map(|f| f.grace()) else { return };
        self.worker.env.spawn(async move {
            env.sleep(grace).await;
            loop {
                let Some(cluster) = weak.upgrade().filter(|c| !c.closed.get()) else { return };
                let Ok(manager) = cluster.manager() else { return };
                let reclaim_pending = cluster.reclaim_pending().await;
                if reclaim_pending.is_empty() {
                    return;
                }
                for session in reclaim_pending.into_iter().filter(|s| !manager.is_connected(*s)) {
                    for target in cluster.worker.routes.local() {
                        // A target that fails keeps the locks of the session.
                        let _ = cluster.worker.tell(*target, TargetRequest::SessionAbsent(session)).await;
                    }
                }
                drop((manager, cluster));
                env.sleep(BEAT).await;
            }
        });
    }

    /// Sessions of the earlier run that have not presented their state to every target.
    async fn reclaim_pending(self: &Rc<Self>) -> BTreeSet<SessionId> {
        let mut all = BTreeSet::new();
        for target in self.worker.routes.local() {
            if let Ok(TargetReply::Sessions(reclaim_pending)) = self.worker.ask(*target, TargetRequest::Absent).await {
                all.extend(reclaim_pending);
            }
        }
        all
    }
}
