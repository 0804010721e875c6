//! Messages, framing, request ids and credits: what travels between client and server; sans-IO.
//!
//! Owns: the message types (`message`, `request`, `reply`, `view`, `cluster`, `file_lock`, `keys`, `secure`), the frame
//! header and its checks (`frame`), slots and credits (`slots`). Does not own: connections and reconnecting
//! (`transport`), what a request does (`server`).
//!
//! Invariants: bytes from the network never panic; payloads are never copied into a message body; every bound
//! is a named constant of `amphi_types::limits` or of this crate. `docs/WIRE.md` states the format.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod file_lock;
pub mod frame;
pub mod handshake;
pub mod keys;
pub mod message;
pub mod reply;
pub mod request;
pub mod secure;
pub mod slots;
pub mod view;

pub use cluster::*;
pub use file_lock::{FileLockFamily, FileLockOwner, FileLockSpec};
pub use message::*;
pub use reply::*;
pub use request::*;
pub use view::*;
