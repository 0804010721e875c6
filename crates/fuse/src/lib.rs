//! Mount: `/dev/fuse` session loop, mounting, translation of kernel requests to calls of a file system.
//!
//! Owns: the kernel's protocol (`kernel`), parsing of requests (`request`) and building of replies (`reply`), the
//! threads that read the device (`session`), mounting and unmounting (`mount`), interrupts (`interrupt`), invalidation
//! (`notify`), the trait that a file system implements (`file_system`, with the values of its calls in `calls`) and the
//! client behind it (`client_fs`). Does not own: any file system logic; `null_fs` is the do-nothing one that benchmarks
//! measure the mount itself with.
//!
//! Invariants: bytes from the kernel never panic; every request but FORGET gets exactly one reply, also when its
//! handler panics; an INTERRUPT can always be read, however many handlers are blocked; no thread outlives its session.
//!
//! The number that drove the design: a process that waits in a call without interrupts cannot even be killed. FUSE
//! crates answer INTERRUPT with ENOSYS, which is why the loop is our own.
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
mod reply;
pub mod request;
pub mod session;

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
pub use mount::{MountError, find_helper, is_dead};
pub use notify::Notifier;
pub use null_fs::NullFs;
pub use request::Caller;
pub use session::{Session, Unmounter};

/// The aligned buffer that payloads travel in, and the length of those whose memory can be kept.
pub use amphi_client::{Buf, UNIT_BYTES};
