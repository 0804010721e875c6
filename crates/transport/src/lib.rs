//! Connections over `env`: dial, handshake, call, reconnect, serve; and connections inside one thread.
//!
//! Owns: the client's `Link`, the server's `serve` with its `Connections`, in-process connections (`local`), the
//! cluster key (`auth`), key pairs (`identity`), how bytes are protected (`secure`). Does not own: message types and
//! checks of bytes (`wire`), what requests do (`server`), what happens to lost state (`client`, through `LinkEvents`).
//!
//! Invariants: payloads are never copied. Sockets are always drained. Every queue is bounded by credits or by a named
//! constant. A connection that breaks the rules is cut with one log line, and affects nothing else. An in-process
//! connection behaves like a socket, except that it does not reconnect.
//!
//! The number that drove the design: a round trip may cost 1.5 times a bare ping-pong of the same bytes, so this code
//! may take about 2 us. So a call allocates nothing but its body's own fields, and small frames share one write.
#![forbid(unsafe_code)]

pub mod auth;
pub mod error;
pub mod identity;
pub mod link;
pub mod local;
pub mod server;

mod bell;
mod beside;
mod handshake;
mod pipe;
mod secure;

pub use amphi_wire::handshake::Secure;
pub use auth::{ClusterKey, Proved, ServerAuth, WeakKey, is_unix};
pub use error::{LinkError, ServeError};
pub use identity::Identity;
pub use link::{CallOptions, Carried, Link, LinkConfig, LinkEvents, Numbered, Outcome, Recovery, Timeouts, ToldCall};
pub use server::{
    Alive, ConnId, Connections, Guest, Handler, Incoming, Parcel, Peer, ReplyRoute, adopt, check_listen, serve,
    serve_local,
};

#[cfg(test)]
mod tests;
