//! The server's end of connections: accept, handshake, requests in, replies and pushes out.
//!
//! Owns: connections and their queues. Does not own: sessions, execution of requests, exactly-once (`Handler`, with
//! `wire::slots::ReplyTable`). For each connection one task reads and never stops draining, one writes, and one detects
//! silence.
//!
//! Invariants: of the requests of a connection, at most its credits are open or have queued replies, and at most
//! `PUSHES_MAX` pushes are queued. A peer that breaks a rule loses its connection, with one log line, and nothing else
//! happens. A session has one connection of each number, the newest. A connection belongs to one thread: the thread
//! that accepted it, or the thread to which the handler passes it once it is welcomed (`Handler::place`, `Parcel`). At
//! most `GREETINGS_MAX` clients are in the handshake, and the memory of payloads on their way has a budget over all
//! connections (`budget`).

mod accept;
mod budget;
mod connection;

pub use accept::{Parcel, adopt, check_listen, serve, serve_local};
pub use connection::{Alive, ConnId, Connections, ReplyRoute};

use crate::auth::Proved;

use amphi_env::Buf;
use amphi_types::{Cred, SessionId};
use amphi_wire::handshake::Secure;
use amphi_wire::slots::LINK_SLOTS;
use amphi_wire::{Call, Hello, Lane, RequestId, Role, Welcome};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Most connections that are served at the same time, including those in the handshake; further connections are closed
/// at once.
pub const CONNECTIONS_MAX: usize = 4096;
/// Most connections in the handshake at the same time, 100 KiB each. A further connection replaces the one that has
/// been in the handshake for the longest time. A client that follows the handshake needs one round trip, so silent
/// connections do not exclude other clients.
pub const GREETINGS_MAX: usize = 256;
/// Most pushes that wait for a client to read them; with more, its connection is cut.
pub const PUSHES_MAX: usize = 4096;
/// Time limit of the handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// After this much silence a `Ping` is sent to a peer. After `SILENCES_MAX` times as much, its connection is cut.
pub const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Intervals of silence after which a connection is cut.
pub const SILENCES_MAX: u32 = 4;

/// The client at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address, or `local` for an in-process connection; for log lines.
    pub addr: String,
    /// Whether the client is in this process.
    pub in_process: bool,
    /// Whether the client came over a Unix socket.
    pub unix: bool,
    /// The user as whom the client may act. `None`: it may act as any user, because it is in this process, runs as root
    /// or as the server's user, or has proved the cluster key over a network. Any other client has connected over a
    /// Unix socket, and is the user that the kernel reports.
    pub bound: Option<Arc<Cred>>,
    /// The identity that the client has proved.
    pub proved: Proved,
    /// Whether the client has proved the cluster key, together with a key of its own or alone.
    pub knows_cluster_key: bool,
    /// How the connection is protected.
    pub secure: Secure,
    /// The client has passed memory to the server, in which large payloads lie.
    pub memory: bool,
}

/// The owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// The session.
    pub session: SessionId,
    /// The role of the session.
    pub role: Role,
    /// Which of the session's connections it is (`Hello::link`).
    pub link: u16,
    /// The connection.
    pub conn: ConnId,
}

/// A request that has arrived.
#[derive(Debug)]
pub struct Incoming {
    /// The session of the request.
    pub session: SessionId,
    /// The role of the session.
    pub role: Role,
    /// The user as whom the client of the session may act, see `Peer::bound`.
    pub bound: Option<Arc<Cred>>,
    /// The connection of the session on which it arrived (`Hello::link`).
    pub link: u16,
    /// Where the reply is sent: `Connections::reply`.
    pub route: ReplyRoute,
    /// The lane of the request.
    pub lane: Lane,
    /// How long the client waits from now on; `None` if without a bound. If the request has not begun by then, it must
    /// not begin.
    pub deadline: Option<Duration>,
    /// The call.
    pub call: Call,
    /// The payload, placed as in the client's buffer: `pad` bytes after an aligned address.
    pub payload: Option<Buf>,
}

impl Incoming {
    /// Id within the session, for `wire::slots::ReplyTable`: slots of different connections are different ones.
    pub fn id(&self) -> RequestId {
        RequestId { slot: self.link * LINK_SLOTS + self.route.id.slot, ..self.route.id }
    }
}

/// The server's handling of its clients. All of it runs on the connection's thread.
pub trait Handler: 'static {
    /// An authenticated client asks to be admitted. The `Welcome`'s credits must be usable by `wire::slots`, and the
    /// same for every connection of a session. `connected` follows unless the connection ends first. An error is sent
    /// to the client as the reason for its refusal.
    fn hello(&self, hello: &Hello, peer: &Peer) -> impl Future<Output = Result<Welcome, String>>;
    /// Which thread serves a client that has been welcomed: a number for `hand_over`, or `None` for this one.
    fn place(&self, _hello: &Hello, _welcome: &Welcome, _peer: &Peer) -> Option<usize> {
        None
    }
    /// Another thread, `to` of `place`, serves the client from now on: it gets the parcel and passes it to `adopt`. A
    /// parcel that is dropped closes the connection. `connected` follows there, and when the connection ends
    /// `disconnected`; the thread that is called so reports it to `Connections::came_back`.
    fn hand_over(&self, _to: usize, _guest: Guest, _peer: &Peer, _parcel: Parcel) {}
    /// The client was welcomed, `peer` as it was in `hello`. Pushes may be sent to `guest.conn` from now on.
    fn connected(&self, guest: Guest, peer: &Peer);
    /// A request has arrived. Must not block: it spawns or forwards, and answers with `Connections::reply` exactly
    /// once. A resend of a request that is still being executed arrives with a new route, and the reply is then sent
    /// over that.
    fn call(self: Rc<Self>, request: Incoming);
    /// A client at `addr` was refused before its identity was known: its bytes are no handshake, or prove nothing.
    fn stranger(&self, _addr: &str, _why: &str) {}
    /// The connection has ended; `clean` if the client said `Bye`. Called once for each `connected`. If a newer
    /// connection of the session of the same number takes over, it is called before that one's `connected`.
    fn disconnected(&self, session: SessionId, conn: ConnId, clean: bool);
}
