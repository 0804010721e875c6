//! Traces: the calls that one job made at a mount, as a file that can be cut anywhere and still be read.
//!
//! Owns: the record of a call (`call`), the bytes of blocks and records (`block`, `record`, docs/TRACE.md), reading a
//! file of them (`reader`), the summary of a trace (`summary`), and pairs of calls that conflict (`verify`). Does not
//! own: where calls come from (the client and its front ends), replaying them (the crate `replay`).
//!
//! Invariants: no bytes of a file cause a panic; every fault is reported with its place and its kind. A block is whole
//! or unread: its sum covers its head and its bytes. Everything here is pure but for the bytes that a reader is given.
#![forbid(unsafe_code)]

pub mod block;
pub mod call;
pub mod reader;
pub mod record;
pub mod spans;
pub mod summary;
pub mod verify;

#[cfg(test)]
mod tests;

pub use block::Fault;
pub use call::{Call, Caller, Course, Op, flags};
pub use reader::{End, Header, Reader, Trace};
pub use record::Record;
