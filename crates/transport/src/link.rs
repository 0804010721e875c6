//! The client's end: a session's one connection, which repairs itself.
//!
//! Owns: calls and their slots, reconnecting, resending, giving up. Does not own: what a session has to tell a
//! restarted server (`LinkEvents::restarted`), exactly-once on the server's side (`wire::slots::ReplyTable`).
//! `state` holds calls and slots, `supervise` the life of connections, `traffic` reads and writes one.
//!
//! Invariants: a slot carries one request until its reply came, also when its caller is gone; after a break all
//! outstanding requests are sent again under their ids and in their order, after `restarted` has finished; the payload
//! of a request is owned by the link until the answer is in, and is never copied. Calls that wait for slots are served
//! in their order, lane by lane. A call that is given up leaves nothing behind at the server: what its answer brings
//! (`Request::may_bring`) its owner hears of when there is a connection again.

mod state;
mod supervise;
mod traffic;

use crate::auth::ClusterKey;
use crate::bell::{Bell, Cut, Ending};
use crate::error::LinkError;
use crate::local::LocalDialer;
use amphi_env::{Buf, Env};
use amphi_types::{Errno, SessionId, limits};
use amphi_wire::{Answer, Call, Lane, Push, Role, Welcome};
use state::{CellGuard, Issue, Phase, State};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// Calls of one lane that may wait for a slot.
pub const WAITING_MAX: usize = 65_536;
/// How long `close` waits for the last bytes to go out.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Times of a link; all can be changed while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// One attempt to dial and shake hands.
    pub connect: Duration,
    /// How long `Link::connect` goes on trying; zero tries every address once.
    pub first_connect: Duration,
    /// After this long without a connection calls fail, until there is one again.
    pub give_up: Duration,
    /// Pause after the first failed attempt to reconnect; doubles up to `backoff_max`.
    pub backoff_min: Duration,
    /// Longest pause between attempts.
    pub backoff_max: Duration,
    /// Silence after which the server is asked for a sign of life; four times as much is a broken connection.
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

/// Where a link leads and who it is.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Addresses of the server, tried in turn; unused for in-process links.
    pub addrs: Vec<String>,
    /// The session, chosen at random by the caller.
    pub session: SessionId,
    /// As what it comes.
    pub role: Role,
    /// `host:pid`, for people.
    pub name: String,
    /// Shared secret; with one, the server must know it too.
    pub key: Option<ClusterKey>,
    /// Times.
    pub timeouts: Timeouts,
}

/// What the owner of a link hears from it.
pub trait LinkEvents<E: Env>: 'static {
    /// The server asks unasked. Must not block.
    fn push(&self, push: Push);
    /// The server has restarted, or does not know the session any more (`Welcome::resumed`): say again what the
    /// session holds, by `recovery.call`. Other requests are held back until this returns. If the connection
    /// breaks meanwhile, the future is dropped and this is called again on the next one. An error fails every
    /// outstanding call with `LinkError::Lost` and closes the link.
    fn restarted(&self, recovery: Recovery<E>) -> impl Future<Output = Result<(), Errno>>;
    /// A call that was given up for want of a server has been answered all the same, and nobody waits for it: what it
    /// brought (`Request::may_bring`) is to be given back. Must not block.
    fn late(&self, _call: Call, _answer: Answer) {}
    /// A message of the server has come. Must not block.
    fn heard(&self) {}
    /// The server has said hello again, on a new connection. Must not block.
    fn welcomed(&self, _welcome: &Welcome) {}
    /// The connection went up or down. Must not block.
    fn state_changed(&self, _up: bool) {}
}

/// A raw way to call while everything else is held back. Calls go one at a time through a slot kept for them.
pub struct Recovery<E: Env> {
    link: Rc<Link<E>>,
    welcome: Welcome,
}

impl<E: Env> Recovery<E> {
    /// What the server said.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Calls on the urgent lane. `Closed` if the connection breaks.
    pub async fn call(&self, call: Call) -> Result<Answer, LinkError> {
        let guard = self.link.issue(Issue::Reserve, 0, 0, call, None).await?;
        Ok(guard.answer().await?.0)
    }
}

/// How to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOptions {
    /// Whose credits to use.
    pub lane: Lane,
    /// Where the payload of the reply shall lie: this many bytes after an aligned address (file offset % 4096).
    pub pad: usize,
    /// Fail with `Deadline` after this long, the wait for a slot included.
    pub deadline: Option<Duration>,
    /// It does not fail where there is no server for long, but waits until there is one, or the session or the link has
    /// ended.
    pub insist: bool,
}

/// What a call came to: the answer and its payload.
pub type Outcome = Result<(Answer, Option<Buf>), LinkError>;

/// A call whose outcome goes to a function instead of somebody who waits.
pub struct ToldCall {
    /// Whose credits to use.
    pub lane: Lane,
    /// What is asked.
    pub call: Call,
    /// Bytes that go with it.
    pub payload: Option<Buf>,
    /// As in `CallOptions`.
    pub pad: usize,
    /// As in `CallOptions`.
    pub insist: bool,
    /// Takes the outcome.
    pub done: Box<dyn FnOnce(Outcome)>,
}

/// A session's way to its server.
pub struct Link<E: Env> {
    env: E,
    config: LinkConfig,
    /// Where the server is; it may move.
    addrs: RefCell<Vec<String>>,
    local: Option<LocalDialer>,
    timeouts: Cell<Timeouts>,
    state: RefCell<State>,
    /// Rings for the writer.
    outgoing: Bell,
    /// Rings when the life of the connection changes.
    changed: Bell,
    /// Ends the link.
    closing: Cut,
    ended: Cell<bool>,
}

impl<E: Env> Link<E> {
    /// Connects to the first address that answers, and keeps the connection up until `close`.
    ///
    /// Errors: those of the last address tried; `PermissionDenied` if the server refused, with its reason;
    /// `InvalidData` if it is no server of this protocol and version or does not know the key.
    pub async fn connect<H: LinkEvents<E>>(env: E, config: LinkConfig, events: Rc<H>) -> io::Result<Rc<Link<E>>> {
        Self::start(env, config, None, events).await
    }

    /// Connects to the `serve_local` of this thread. When that ends, calls fail with `Closed`.
    pub async fn local<H: LinkEvents<E>>(
        env: E,
        dialer: LocalDialer,
        config: LinkConfig,
        events: Rc<H>,
    ) -> io::Result<Rc<Link<E>>> {
        Self::start(env, config, Some(dialer), events).await
    }

    /// Calls without a deadline: `call_with` says more.
    pub async fn call(
        &self,
        lane: Lane,
        call: Call,
        payload: Option<Buf>,
        pad: usize,
    ) -> Result<(Answer, Option<Buf>), LinkError> {
        self.call_with(CallOptions { lane, pad, deadline: None, insist: false }, call, payload).await
    }

    /// As `call`, without anybody who waits: `done` is told the outcome, at once and from within the link, which it
    /// must not call. A call that would have to wait for a slot comes back.
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

    /// Sends a request and waits for its answer and the answer's payload; any number in parallel. Survives
    /// broken connections and restarts of the server. Dropping the future before the request is sent withdraws
    /// it; later, the request is executed and its slot stays taken until the reply comes. Sent again past its
    /// deadline it begins no more.
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

    /// Ends the session's connection in order: `Bye` after what is queued. Outstanding calls fail with `Closed`.
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
        // A connection that takes no more bytes ends without a Bye.
        let _ = amphi_env::timeout(&self.env, CLOSE_TIMEOUT, ended).await;
        self.closing.cut(Ending::Bye);
        self.state.borrow_mut().fail(LinkError::Closed);
    }

    /// Whether a connection is up and requests flow.
    pub fn is_up(&self) -> bool {
        self.state.borrow().is_up()
    }

    /// Whether there has been no server for so long that calls fail, but for those that insist.
    pub fn has_given_up(&self) -> bool {
        matches!(self.state.borrow().phase, Phase::Failed(_))
    }

    /// What the server said when the connection was made.
    pub fn welcome(&self) -> Welcome {
        self.state.borrow().welcome.clone()
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        self.config.session
    }

    /// Times in force.
    pub fn timeouts(&self) -> Timeouts {
        self.timeouts.get()
    }

    /// The server is reached elsewhere from now on; a connection that is up stays.
    pub fn set_addrs(&self, addrs: Vec<String>) {
        *self.addrs.borrow_mut() = addrs;
    }

    /// Changes them; waits that have begun end as they were.
    pub fn set_timeouts(&self, timeouts: Timeouts) {
        self.timeouts.set(timeouts);
    }
}
