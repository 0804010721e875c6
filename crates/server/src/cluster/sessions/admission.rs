//! The admission of clients.
//!
//! Owns: the welcome, and the begin of a session on all targets. Does not own: whether clients wait
//! (`admission_state`), which clients are admitted in which role (`trust`), informing other mounts of a new one
//! (`company`).
//!
//! Bound: `MOUNTS_MAX` mounts.

use super::entry::{Entry, State};
use super::keyed::Keyed;
use super::trust::{self, Owner};
use super::{LOOK, SessionManager, clocks};
use crate::membership::peer_link::{PEER_CREDITS, STOPPING};
use crate::message::TargetRequest;
use crate::records::SessionRecord;
use crate::tunables::Tunable;
use amphi_env::Env;
use amphi_transport::Peer;
use amphi_types::{Ino, Result, SessionId};
use amphi_wire::slots::{NORMAL_CREDITS, URGENT_CREDITS};
use amphi_wire::{Hello, Role, VERSION, Welcome};
use futures_channel::oneshot;
use std::rc::Rc;
use std::time::Duration;

/// The most mounts of a server: each of them may have as many requests as it has credits, and 131,072 tokens of a
/// target.
const MOUNTS_MAX: usize = 1024;
/// After this time a new mount is refused, with the reason that other mounts did not answer. This is shorter than the
/// mount's timeout for one attempt [5 s].
const ADMISSION: Duration = Duration::from_secs(4);

impl<E: Env> SessionManager<E> {
    /// Admits a client, and sends it the settings and the map that it needs.
    ///
    /// Errors: the reason why the client is not admitted.
    pub(super) async fn welcome(self: &Rc<Self>, hello: &Hello, peer: &Peer) -> std::result::Result<Welcome, String> {
        let welcome = self.let_in(hello, peer).await;
        welcome.inspect_err(|why| self.note_refused(hello, peer, why))
    }

    async fn let_in(self: &Rc<Self>, hello: &Hello, peer: &Peer) -> std::result::Result<Welcome, String> {
        let keyed = self.key_of(peer, hello.role)?;
        let comes = Owner::of(peer, keyed.as_ref().map(|(_, entry)| entry));
        trust::may_come(hello, peer, comes, self.sessions.borrow().get(&hello.session))?;
        if self.was_deaf(hello.session) {
            return Err("this session has been ended because it did not answer; mount again".into());
        }
        if hello.role != Role::Server && self.cluster().is_some_and(|c| c.callers.is_caller(hello.session)) {
            return Err("this session is a server's".into());
        }
        // The master has already checked the clock of a mount.
        if hello.role == Role::Server || self.cluster().is_none_or(|c| c.is_master()) {
            clocks::agree(hello, self.worker.env.wall())?;
        }
        let follower = self.cluster().filter(|c| hello.role == Role::Mount && !c.is_master());
        if let (Some(follower), Some((_, entry))) = (&follower, &keyed) {
            follower.check_owner(hello.session, entry.id).await?;
        }
        let is_known = self.sessions.borrow().contains_key(&hello.session)
            || follower.is_some_and(|f| f.as_follower.begin_of(hello.session).is_some());
        // Servers are admitted anyway, since they could not continue without each other.
        let may_stay = is_known || hello.role == Role::Server;
        if !self.note_admitted(hello, peer, keyed.as_ref()) && !may_stay {
            return Err("the audit log of this server cannot be written, so nobody new is let in".into());
        }
        let (resumed, normal_credits, urgent_credits) = match hello.role {
            _ if hello.link > 0 => {
                self.admit_further(hello.session).await?;
                (true, NORMAL_CREDITS, URGENT_CREDITS)
            }
            // If another server has started again and does not know this run yet, it presents everything again.
            Role::Server => {
                let known = self.admit_server(hello)?;
                (known || ![0, self.facts.boot].contains(&hello.last_boot), PEER_CREDITS, PEER_CREDITS)
            }
            _ => (self.admit(hello, comes, keyed.as_ref()).await?, NORMAL_CREDITS, URGENT_CREDITS),
        };
        if let Some(entry) = self.sessions.borrow_mut().get_mut(&hello.session) {
            // The session may have begun while this client was waiting.
            trust::may_come(hello, peer, comes, Some(entry))?;
            if entry.owner == Owner::Unknown {
                entry.owner = comes;
            }
        }
        let token_ms = self.worker.tunables.get(Tunable::TokenMs);
        if hello.role == Role::Mount && hello.link == 0 {
            // The mode is read and the mount is registered in one step: later switches are sent to its connection.
            self.rule.lend(token_ms);
            if let Some(entry) = self.sessions.borrow_mut().get_mut(&hello.session).filter(|_| !resumed) {
                entry.known = self.rule.change();
            }
            self.look_alone();
        }
        Ok(Welcome {
            version: VERSION,
            boot: self.facts.boot,
            cluster: self.facts.cluster,
            resumed,
            begun: self.cluster().filter(|_| hello.role == Role::Mount).map_or(0, |c| c.begin_of(hello.session)),
            normal_credits,
            urgent_credits,
            pool: self.worker.pool(),
            token_ms: token_ms as u32,
            alone: self.rule.is_alone(),
            map_epoch: self.worker.routes.epoch(),
            mounts: self.admission.mounts_started(),
            links: self.links_for(hello),
            rotating: self.facts.rotating.clone(),
            root: keyed.and_then(|(_, entry)| entry.subtree).map_or(Ino::ROOT, |tree| tree.root),
        })
    }

    /// Admits a further connection of a mount. The client sees by `Welcome::begun` whether the session is still the
    /// same.
    ///
    /// Errors: the session's first connection does not exist yet.
    async fn admit_further(&self, session: SessionId) -> std::result::Result<(), String> {
        while self.admission.must_wait(Role::Mount) && !self.admission.is_closed() {
            self.worker.env.sleep(LOOK).await;
        }
        if self.admission.is_closed() {
            return Err(STOPPING.into());
        }
        match self.sessions.borrow().get(&session) {
            Some(entry) if entry.role == Role::Mount && entry.state == State::Alive => Ok(()),
            _ => Err("the first connection of this session has to come before its others".into()),
        }
    }

    fn admit_server(&self, hello: &Hello) -> std::result::Result<bool, String> {
        match self.cluster().filter(|c| !c.closed.get()) {
            Some(cluster) => {
                let (known, moves) = cluster.callers.admit(hello)?;
                cluster.unlock_moves(moves);
                Ok(known)
            }
            None => Err(STOPPING.into()),
        }
    }

    /// Admits a client. Says whether its session was known.
    async fn admit(
        self: &Rc<Self>,
        hello: &Hello,
        comes: Owner,
        keyed: Option<&Keyed>,
    ) -> std::result::Result<bool, String> {
        if self.admission.is_closed() {
            return Err(STOPPING.into());
        }
        while self.admission.must_wait(hello.role) {
            self.worker.env.sleep(LOOK).await;
        }
        if let Some(follower) = self.cluster().filter(|c| hello.role == Role::Mount && !c.is_master()) {
            let resumed = follower.admit_mount(hello.session).await?;
            let now_ns = self.worker.now_ns();
            let mut sessions = self.sessions.borrow_mut();
            sessions.entry(hello.session).or_insert_with(|| Entry::new(&hello.name, Role::Mount, State::Alive, now_ns));
            return Ok(resumed);
        }
        let now_ns = self.worker.now_ns();
        match hello.role {
            Role::Admin => {
                let entry = Entry::new(&hello.name, Role::Admin, State::Alive, now_ns);
                let mut sessions = self.sessions.borrow_mut();
                if sessions.get(&hello.session).is_some_and(|e| e.role == Role::Mount) {
                    return Err("this session is that of a mount".into());
                }
                sessions.insert(hello.session, entry);
                return Ok(false);
            }
            Role::Server => return Err("this server takes no servers".into()),
            Role::Mount => {}
        }
        if let Some(entry) = self.sessions.borrow_mut().get_mut(&hello.session) {
            return match entry.state {
                State::Alive if entry.role == Role::Mount => {
                    entry.name = hello.name.clone();
                    entry.heard_ns = now_ns;
                    Ok(true)
                }
                State::Alive => Err("this session is that of an administrator".into()),
                State::Starting => Err("this session is just being started".into()),
                State::Ending | State::EndingElsewhere => Err("this session has just been ended; mount again".into()),
            };
        }
        let mounts = self.sessions.borrow().values().filter(|e| e.role == Role::Mount).count();
        if mounts >= MOUNTS_MAX {
            return Err(format!("{mounts} mounts use this file system, which is the most; unmount one of them first"));
        }
        if let Some((_, key)) = keyed {
            self.check_sessions(key)?;
        }
        let entry = Entry { owner: comes, ..Entry::new(&hello.name, Role::Mount, State::Starting, now_ns) };
        self.sessions.borrow_mut().insert(hello.session, entry);
        // This is a separate task, because the handshake may end before it.
        let (sender, mut receiver) = oneshot::channel();
        let (manager, hello) = (self.clone(), hello.clone());
        self.worker.env.spawn(async move {
            let result = manager.begin_session(&hello, mounts > 0, || sender.is_canceled()).await;
            drop(sender.send(result));
        });
        match amphi_env::timeout(&self.worker.env, ADMISSION, &mut receiver).await {
            Some(result) => result.unwrap_or_else(|_| Err(STOPPING.into())).map(|()| false),
            // A server that has just gone is waited for longer than a mount waits for its welcome.
            None if mounts == 0 => Err("the session is just being started; try again".into()),
            None => {
                drop(receiver);
                self.rule.wanted(self.worker.now_ns());
                self.ring();
                Err("another mount has not answered yet that it knows of this one; try again".into())
            }
        }
    }

    async fn begin_session(
        self: &Rc<Self>,
        hello: &Hello,
        company: bool,
        given_up: impl Fn() -> bool,
    ) -> std::result::Result<(), String> {
        let started = async {
            if company {
                self.join_company(hello.session, &given_up).await?;
            }
            if given_up() {
                return Err("the client has gone".into());
            }
            self.start(hello).await.map_err(|e| format!("the session could not be recorded: {e}"))
        };
        if let Err(e) = started.await {
            self.remove(hello.session);
            self.cluster().inspect(|c| c.sessions_changed());
            return Err(e);
        }
        if let Some(entry) = self.sessions.borrow_mut().get_mut(&hello.session).filter(|e| e.state == State::Starting) {
            self.admission.count_mount();
            entry.state = State::Alive;
            entry.heard_ns = self.worker.now_ns();
        }
        self.ring();
        // Until its connection is up, the session counts as disconnected.
        self.keep_for_grace(hello.session, 0);
        Ok(())
    }

    async fn start(self: &Rc<Self>, hello: &Hello) -> Result<()> {
        let record = SessionRecord { name: hello.name.clone(), start: self.worker.env.rand() };
        if let Some(cluster) = self.cluster() {
            cluster.start_elsewhere(hello.session, &record).await;
        }
        for target in self.worker.routes.local().iter().rev() {
            let question = TargetRequest::SessionStart(hello.session, record.clone());
            self.worker.tell(*target, question).await?;
        }
        Ok(())
    }
}
