//! The client core: what every front end (FUSE, preload, C API, simulator) uses to reach the file system.
//!
//! Owns: operations on names and files, open files, the page cache, write-back, read-ahead, the hybrid decision,
//! striping, the use of the lock cache, tunables and counters of a mount. Does not own: messages (`wire`), connections
//! and reconnecting (`transport`), lock rules (`dlm`), the kernel's protocol (`fuse`).
//!
//! The client has two halves. [`Client`] is `Clone + Send + Sync`. It is plain data under short locks, without an
//! environment. A cache hit is served on the calling thread. [`IoHalf`] owns the environment and the connections on a
//! thread of its own. It sends the messages that the other half queues, and does the background work (write-back,
//! read-ahead, lock callbacks). Operations are futures that the waiting threads poll. So copies into and out of the
//! cache run on the threads of the callers. An abandoned operation (interrupt, drop) is passed to the I/O half and
//! finishes there.
//!
//! Invariants: locks are taken in the order range lock, page, lock reference. Only the range lock is held across an
//! await. Valid cached bytes are covered by a lock of the lock cache. Whether a request is buffered or direct never
//! changes what is read later. The number that drove the design: passing work to a sleeping thread costs 30-60 us, and
//! a cached read of 4 KiB costs 0.3 us.
#![forbid(unsafe_code)]

pub mod api;
mod cache;
mod client;
mod coherence;
mod conn;
mod inode;
mod io;
mod locks;
mod mount;
mod objects;
mod ops;
mod policy;
mod prefetch;
mod tables;
mod telemetry;
mod writeback;

#[cfg(test)]
mod tests;

pub use amphi_env::Buf;
pub use amphi_env::real::{Apart, Spin, Wide};
pub use amphi_pagecache::{Loan, Loans, Segment, Segments, UNIT_BYTES};
pub use amphi_wire::{FileLockFamily, FileLockOwner, FileLockSpec, LockMode, RenameMode, XattrMode};
pub use api::*;
pub use client::Client;
pub use coherence::file_locks::TakenLock;
pub use coherence::sharing::{Lending, Rule};
pub use conn::pending::{Interrupt, Pending, has_waited};
pub use inode::open_file::{Created, OpenFile};
pub use io::{IoHalf, NOT_STABLE, Way};
pub use locks::ahead::Ahead;
pub use ops::front::FrontCache;
pub use ops::posts::{PostRights, Posting};
pub use policy::decision;
pub use policy::readahead;
pub use policy::readers::Pieces;
pub use telemetry::call_times::{CallKind, CallTimes, Served};
pub use telemetry::calls::{CallNotes, noting};
pub use telemetry::jobs::{JOB_VARIABLES, JobName};
pub use telemetry::record;
pub use telemetry::status;
