//! `Link`: the client's end of one connection of a session, which reconnects by itself.
//!
//! Owns: calls and their slots, reconnecting, resending, giving up. Does not own: what a session has to present to a
//! restarted server (`LinkEvents::restarted`), exactly-once execution on the server's side (`wire::slots::ReplyTable`).
//! Its parts: `state` has calls and slots, `supervise` the life of connections, and `traffic` reads and writes one
//! connection.
//!
//! Invariants:
//!
//! * A slot carries one request until its reply has arrived, even if its caller is gone.
//! * After a break, all outstanding requests are sent again under their ids and in their order, after `restarted` has
//!   finished.
//! * The link owns the payload of a request until the answer has come, and never copies it.
//! * Calls that wait for slots are served in their order, separately for each lane.
//! * A call that is given up leaves no state at the server. If its answer contains something that the session then
//!   holds (`Request::may_bring`), the link passes that answer to its owner when there is a connection again.

mod state;
mod supervise;
mod traffic;

use crate::auth::ClusterKey;
use crate::bell::{Bell, Cut, Ending};
use crate::error::LinkError;
use crate::identity::Identity;
use crate::local::LocalDialer;
use amphi_env::{Buf, Env};
use amphi_types::{Errno, SessionId, limits};
use amphi_wire::handshake::Secure;
use amphi_wire::{Answer, Call, Lane, Push, Role, Welcome};
use state::{CellGuard, Issue, Phase, State};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// Most calls of one lane that wait for a slot.
pub const WAITING_MAX: usize = 65_536;
/// How long `close` waits for the last bytes to be sent.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Time limits of a link. All can be changed while the link runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Limit of one attempt to dial and shake hands.
    pub connect: Duration,
    /// How long `Link::connect` keeps trying. Zero: every address is tried once.
    pub first_connect: Duration,
    /// After this time without a connection calls fail, until there is one again.
    pub give_up: Duration,
    /// Pause after the first failed attempt to reconnect, which doubles up to `backoff_max`.
    pub backoff_min: Duration,
    /// Longest pause between attempts.
    pub backoff_max: Duration,
    /// After this much silence the server is sent a ping. After four times as much, the connection counts as broken.
    pub ping: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(5),
            first_connect: Duration::ZERO,
            give_up: Duration::from_secs(60),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_secs(1),
            ping: Duration::from_secs(5),
        }
    }
}

/// The addresses of a link and the identity of its session.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Addresses of the server, tried in turn. Unused for in-process links.
    pub addrs: Vec<String>,
    /// The session, chosen at random by the caller.
    pub session: SessionId,
    /// The role of the session.
    pub role: Role,
    /// `host:pid`, for people.
    pub name: String,
    /// Shared secret. If there is one, the server must know it too.
    pub key: Option<ClusterKey>,
    /// The client's own key pair. Then the server must prove a key that it trusts, or the cluster key.
    pub identity: Option<Identity>,
    /// The least protection that it accepts over a network; the server chooses the level. Connections over Unix sockets
    /// and inside a process have no protection, and need none.
    pub secure: Secure,
    /// Times.
    pub timeouts: Timeouts,
}

/// Which of a session's connections to a server a link has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// The number of the connection, from 0, below `amphi_wire::slots::LINKS_MAX`. Connection 0 begins the session at
    /// the server.
    pub link: u16,
    /// Connections that the client has to the server, or would open, see `Hello::links`.
    pub links: u16,
}

impl Numbered {
    /// The number of a session's only connection.
    pub const ONLY: Numbered = Numbered { link: 0, links: 1 };
}

/// The reports of a link to its owner.
pub trait LinkEvents<E: Env>: 'static {
    /// The server has sent a push. Must not block.
    fn push(&self, push: Push);
    /// The server has restarted, or does not know the session any more (`Welcome::resumed`). Present the session's
    /// locks and opens again, by `recovery.call`. Other requests are held back until this returns. If the connection
    /// breaks meanwhile, the future is dropped, and this is called again on the next connection. An error fails every
    /// outstanding call with `LinkError::Lost` and closes the link.
    fn restarted(&self, recovery: Recovery<E>) -> impl Future<Output = Result<(), Errno>>;
    /// Called when a call that was given up because no server could be reached was answered after all. No caller waits
    /// for it. State that the answer created (`Request::may_bring`) must be returned. Must not block.
    fn late(&self, _call: Call, _answer: Answer) {}
    /// A message of the server has arrived. Must not block.
    fn heard(&self) {}
    /// The bytes of payloads that were carried since the last call; reported with the messages that arrive. Must not
    /// block.
    fn carried(&self, _carried: Carried) {}
    /// The server has answered the hello on a new connection. Must not block.
    fn welcomed(&self, _welcome: &Welcome) {}
    /// A connection was made or lost. Must not block.
    fn state_changed(&self, _up: bool) {}
}

/// Sends calls while all others are held back. Calls go one at a time, through a slot that is reserved for them.
pub struct Recovery<E: Env> {
    link: Rc<Link<E>>,
    welcome: Welcome,
}

impl<E: Env> Recovery<E> {
    /// The server's welcome on this connection.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Sends a call on the urgent lane. `Closed` if the connection breaks.
    pub async fn call(&self, call: Call) -> Result<Answer, LinkError> {
        let guard = self.link.issue(Issue::Reserve, 0, 0, call, None).await?;
        Ok(guard.answer().await?.0)
    }
}

/// Options of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOptions {
    /// The lane whose credits the call uses.
    pub lane: Lane,
    /// The place for the payload of the reply: this many bytes after an aligned address (file offset % 4096).
    pub pad: usize,
    /// Fail with `Deadline` after this time, including the wait for a slot.
    pub deadline: Option<Duration>,
    /// The call does not fail when no server is reachable for long. It waits until a server can be reached, or until
    /// the session or the link has ended.
    pub insist: bool,
}

/// Bytes of payloads that a link has carried, sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes that were passed in memory of this process, to which the server has access.
    pub beside_bytes: u64,
    /// Bytes that were sent in the stream.
    pub inline_bytes: u64,
}

impl Carried {
    /// Adds the counts of another link, or of another period of the same link.
    pub fn add(&mut self, other: Carried) {
        self.beside_bytes += other.beside_bytes;
        self.inline_bytes += other.inline_bytes;
    }
}

/// The outcome of a call: the answer and its payload.
pub type Outcome = Result<(Answer, Option<Buf>), LinkError>;

/// A call whose outcome is passed to a function, so that no task waits for it.
pub struct ToldCall {
    /// The lane whose credits the call uses.
    pub lane: Lane,
    /// The request.
    pub call: Call,
    /// The payload of the request.
    pub payload: Option<Buf>,
    /// As described in `CallOptions`.
    pub pad: usize,
    /// As in `CallOptions`.
    pub insist: bool,
    /// Takes the outcome.
    pub done: Box<dyn FnOnce(Outcome)>,
}

/// The connection of a session to its server.
pub struct Link<E: Env> {
    env: E,
    config: LinkConfig,
    /// Addresses of the server, which may move.
    addrs: RefCell<Vec<String>>,
    local: Option<LocalDialer>,
    /// The number of the connection, as its hello names it, and how many connections the session has.
    numbered: Cell<Numbered>,
    timeouts: Cell<Timeouts>,
    state: RefCell<State>,
    /// Wakes the writer.
    outgoing: Bell,
    /// Rings when a connection is made or lost.
    changed: Bell,
    /// Ends the link.
    closing: Cut,
    ended: Cell<bool>,
}

impl<E: Env> Link<E> {
    /// Connects to the first address that answers, and keeps a connection until `close`.
    ///
    /// Errors: those of the last address tried. `PermissionDenied` if the server refused, with its reason.
    /// `InvalidData` if it is not a server of this protocol and version, or does not know the key.
    pub async fn connect<H: LinkEvents<E>>(env: E, config: LinkConfig, events: Rc<H>) -> io::Result<Rc<Link<E>>> {
        Self::start(env, config, None, Numbered::ONLY, events).await
    }

    /// Works as `connect`, for one of several connections of the session to the server.
    pub async fn connect_numbered<H: LinkEvents<E>>(
        env: E,
        config: LinkConfig,
        numbered: Numbered,
        events: Rc<H>,
    ) -> io::Result<Rc<Link<E>>> {
        Self::start(env, config, None, numbered, events).await
    }

    /// Connects to the `serve_local` of this thread. When that has ended, calls fail with `Closed`.
    pub async fn local<H: LinkEvents<E>>(
        env: E,
        dialer: LocalDialer,
        config: LinkConfig,
        events: Rc<H>,
    ) -> io::Result<Rc<Link<E>>> {
        Self::start(env, config, Some(dialer), Numbered::ONLY, events).await
    }

    /// Sends a call without a deadline; see `call_with`.
    pub async fn call(
        &self,
        lane: Lane,
        call: Call,
        payload: Option<Buf>,
        pad: usize,
    ) -> Result<(Answer, Option<Buf>), LinkError> {
        self.call_with(CallOptions { lane, pad, deadline: None, insist: false }, call, payload).await
    }

    /// Works as `call`, but no task waits: `done` gets the outcome as soon as it is available. The link calls it, so
    /// `done` must not call the link. A call that would have to wait for a slot is returned.
    pub fn call_and_tell(&self, told: ToldCall) -> Result<(), Box<ToldCall>> {
        assert!(told.pad < amphi_env::buf::ALIGN, "a pad is below the alignment");
        let fits = told.payload.as_ref().is_none_or(|p| p.len() <= limits::PAYLOAD_MAX);
        let mut state = self.state.borrow_mut();
        let Some(id) = fits.then(|| state.try_acquire(told.lane, told.insist)).flatten() else {
            return Err(Box::new(told));
        };
        let ToldCall { call, payload, pad, insist, done, .. } = told;
        let (_, send_now) = state.install(id, pad as u16, 0, call, payload, insist, Some(done));
        drop(state);
        if send_now {
            self.outgoing.ring();
        }
        Ok(())
    }

    /// Sends a request and waits for its answer and the answer's payload. Any number of calls can be under way. A call
    /// survives broken connections and restarts of the server. If the future is dropped before the request was sent,
    /// the request is withdrawn. Afterwards the request is executed, and its slot stays in use until the reply arrives.
    /// A request that is sent again past its deadline is not begun any more.
    pub async fn call_with(
        &self,
        options: CallOptions,
        call: Call,
        payload: Option<Buf>,
    ) -> Result<(Answer, Option<Buf>), LinkError> {
        assert!(options.pad < amphi_env::buf::ALIGN, "a pad is below the alignment");
        let whole = async {
            let ms = options.deadline.map_or(0, state::deadline_ms);
            self.issue(Issue::Lane(options.lane, options.insist), options.pad, ms, call, payload).await?.answer().await
        };
        match options.deadline {
            None => whole.await,
            Some(d) => amphi_env::timeout(&self.env, d, whole).await.unwrap_or(Err(LinkError::Deadline)),
        }
    }

    async fn issue(
        &self,
        issue: Issue,
        pad: usize,
        deadline_ms: u32,
        call: Call,
        payload: Option<Buf>,
    ) -> Result<CellGuard<'_>, LinkError> {
        if payload.as_ref().is_some_and(|p| p.len() > limits::PAYLOAD_MAX) {
            return Err(LinkError::TooLarge);
        }
        let (id, insist) = match issue {
            Issue::Lane(lane, insist) => (state::acquire(&self.state, lane, insist).await?, insist),
            Issue::Reserve => (poll_fn(|cx| self.state.borrow_mut().poll_reserve(cx)).await?, false),
        };
        let (cell, send_now) =
            self.state.borrow_mut().install(id, pad as u16, deadline_ms, call, payload, insist, None);
        if deadline_ms > 0
            && let Some(pending) = self.state.borrow_mut().pending(id)
        {
            pending.until = Some(self.env.now() + Duration::from_millis(deadline_ms.into()));
        }
        if send_now {
            self.outgoing.ring();
        }
        Ok(CellGuard::new(&self.state, cell))
    }

    /// Ends the session's connection in order: sends `Bye` after what is queued. Outstanding calls fail with `Closed`.
    pub async fn close(&self) {
        let up = {
            let mut state = self.state.borrow_mut();
            state.closing = true;
            matches!(state.phase, Phase::Up | Phase::Recovering)
        };
        if !up {
            self.closing.cut(Ending::Bye);
        }
        self.outgoing.ring();
        let ended = self.changed.until(|| self.ended.get().then_some(()));
        // A connection that accepts no more bytes ends without a `Bye`.
        let _ = amphi_env::timeout(&self.env, CLOSE_TIMEOUT, ended).await;
        self.closing.cut(Ending::Bye);
        self.state.borrow_mut().fail(LinkError::Closed);
    }

    /// Returns whether there is a connection on which requests are sent.
    pub fn is_up(&self) -> bool {
        self.state.borrow().is_up()
    }

    /// Returns whether no server was reachable for so long that calls fail, except for calls that insist.
    pub fn has_given_up(&self) -> bool {
        matches!(self.state.borrow().phase, Phase::Failed(_))
    }

    /// Returns whether the server has access to the memory of this process's buffers through the present connection.
    pub fn passes_memory(&self) -> bool {
        self.state.borrow().payloads.other_end.is_some()
    }

    /// The bytes that the link has transferred so far.
    pub fn carried(&self) -> Carried {
        self.state.borrow().payloads.carried
    }

    /// The server's welcome on the present connection.
    pub fn welcome(&self) -> Welcome {
        self.state.borrow().welcome.clone()
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        self.config.session
    }

    /// The times in force.
    pub fn timeouts(&self) -> Timeouts {
        self.timeouts.get()
    }

    /// Addresses of the server.
    pub fn addrs(&self) -> Vec<String> {
        self.addrs.borrow().clone()
    }

    /// The server has other addresses from now on. A present connection stays.
    pub fn set_addrs(&self, addrs: Vec<String>) {
        *self.addrs.borrow_mut() = addrs;
    }

    /// The client has this number of connections to the server from now on: the next connection reports it.
    pub fn set_links(&self, links: u16) {
        self.numbered.set(Numbered { links, ..self.numbered.get() });
    }

    /// Changes the times. Waits that have begun end after the earlier times.
    pub fn set_timeouts(&self, timeouts: Timeouts) {
        self.timeouts.set(timeouts);
    }
}
