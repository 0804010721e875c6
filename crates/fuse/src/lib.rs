//! Mount: the `/dev/fuse` session loop, mounting, and the translation of kernel requests to calls of a file system.
//!
//! Owns: the kernel's protocol (`kernel`), parsing of requests (`request`) and building of replies (`reply`), the
//! threads that read the device (`session`), mounting and unmounting (`mount`), interrupts (`interrupt`), invalidation
//! (`notify`), the trait that a file system implements (`file_system`, with the values of its calls in `calls`), and
//! its implementation by the client (`client_fs`). Does not own: any file system logic. `null_fs` is a do-nothing file
//! system with which benchmarks measure the mount itself.
//!
//! Invariants: bytes from the kernel never panic. Every request except FORGET gets exactly one reply, even when its
//! handler panics. An INTERRUPT can always be read, however many handlers are blocked. No thread outlives its session.
//!
//! The number that drove the design: FUSE crates answer INTERRUPT with ENOSYS, and a process that waits in a call
//! without interrupts cannot even be killed. So this crate has its own loop.
#![deny(unsafe_code)]

mod calls;
pub mod client_fs;
mod clock;
mod config;
pub mod data;
pub mod directory;
mod dispatch;
mod environment;
pub mod file_system;
mod front;
pub mod groups;
pub mod interrupt;
pub mod kernel;
mod later;
pub mod mount;
mod node;
pub mod notify;
pub mod null_fs;
mod recorded;
mod reply;
pub mod request;
pub mod session;
mod signals;

pub use calls::{
    AttrReply, CopyHow, Entry, Handle, IoctlCall, IoctlReply, LockHow, LockKind, OpenFlags, OpenHow, OpenReply,
    ReadHow, Statfs, WriteHow,
};
pub use client_fs::ClientFs;
pub use config::{Limits, SessionConfig};
pub use data::{Payload, ReadSink};
pub use directory::DirSink;
pub use file_system::FileSystem;
pub use groups::GroupCache;
pub use interrupt::Interrupt;
pub use later::Later;
pub use mount::{MountError, find_helper, is_dead, look_at};
pub use notify::Notifier;
pub use null_fs::NullFs;
pub use recorded::Recorded;
pub use request::Caller;
pub use session::{Session, Unmounter};

/// The aligned buffer for payloads, and the length of those whose memory the page cache can keep.
pub use amphi_client::{Buf, UNIT_BYTES};
