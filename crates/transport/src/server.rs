//! The server's end: accept, handshake, requests in, replies and pushes out.
//!
//! Owns: connections and their queues. Does not own: sessions, execution of requests, exactly-once
//! (`Handler`, with `wire::slots::ReplyTable`). One task reads and never stops draining, one writes, one watches
//! for silence.
//!
//! Invariants: a connection has at most its credits of requests that are open or whose replies are queued, and at most
//! `PUSHES_MAX` pushes; a peer that breaks a rule loses its connection, with one log line, and nothing else
//! happens; a session has one connection, the newest. Strangers in the handshake are at most `GREETINGS_MAX`, and what
//! payloads on their way take in memory has a budget over all connections (`budget`).

mod accept;
mod budget;
mod connection;

pub use accept::{check_listen, serve, serve_local};
pub use connection::{Alive, ConnId, Connections, ReplyRoute};

use amphi_env::Buf;
use amphi_types::{Cred, SessionId};
use amphi_wire::{Call, Hello, Lane, RequestId, Role, Welcome};
use std::rc::Rc;
use std::time::Duration;

/// Connections served at the same time, strangers in the handshake included; further ones are closed at once.
pub const CONNECTIONS_MAX: usize = 4096;
/// Strangers in the handshake at the same time, 100 KiB each. One more takes the place of the one that has been there
/// longest: who keeps to the handshake is through in a round trip, so strangers that say nothing keep nobody out.
pub const GREETINGS_MAX: usize = 256;
/// Pushes that may wait for a client to read them; beyond, its connection is cut.
pub const PUSHES_MAX: usize = 4096;
/// A stranger has this long for the handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// After this much silence a peer is asked for a sign of life; after `SILENCES_MAX` times as much it is cut.
pub const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Intervals of silence that end a connection.
pub const SILENCES_MAX: u32 = 4;

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address, or `local` for an in-process connection; for log lines.
    pub addr: String,
    /// Whether it is in this process.
    pub in_process: bool,
    /// As whom it may act: `None` is as everybody, as it is in this process, runs as root or as the user who serves, or
    /// has come over a network and proved the cluster key. Everybody else came over a Unix socket, and is who the
    /// kernel says.
    pub bound: Option<Rc<Cred>>,
}

/// A request as it arrives.
#[derive(Debug)]
pub struct Incoming {
    /// Whose.
    pub session: SessionId,
    /// As what the session came.
    pub role: Role,
    /// As whom its client may act, see `Peer::bound`.
    pub bound: Option<Rc<Cred>>,
    /// Where the reply goes: `Connections::reply`.
    pub route: ReplyRoute,
    /// Its lane.
    pub lane: Lane,
    /// How long the client waits from now, `None` = without bound. What has not begun by then must not begin.
    pub deadline: Option<Duration>,
    /// What is asked.
    pub call: Call,
    /// Payload, placed as the client's buffer was: `pad` bytes after an aligned address.
    pub payload: Option<Buf>,
}

impl Incoming {
    /// Identity within the session, for `wire::slots::ReplyTable`.
    pub fn id(&self) -> RequestId {
        self.route.id
    }
}

/// What a server does with its clients. All of it runs on the connection's thread.
pub trait Handler: 'static {
    /// A client that proved itself wants in. The `Welcome`'s credits must be usable by `wire::slots`, and the same for
    /// every connection of a session. `connected` follows unless the connection ends first. An error is sent to the
    /// client as the reason of its refusal.
    fn hello(&self, hello: &Hello, peer: &Peer) -> impl Future<Output = Result<Welcome, String>>;
    /// The client has been welcomed; pushes may be sent to `conn` from now on.
    fn connected(&self, session: SessionId, role: Role, conn: ConnId);
    /// A request. Must not block: it spawns or forwards, and answers with `Connections::reply` exactly once. A
    /// resend of a request that is still being executed comes with a new route, to which the reply then goes.
    fn call(self: Rc<Self>, request: Incoming);
    /// The connection is gone; `clean` if the client said `Bye`. Called once for each `connected`, also when a
    /// newer connection of the session takes over (before its `connected`).
    fn disconnected(&self, session: SessionId, conn: ConnId, clean: bool);
}
