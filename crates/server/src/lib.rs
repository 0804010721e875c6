//! The server: workers with their targets, sessions, operations, recovery.
//!
//! Owns: how a request is executed (`ops`), operations over several targets (`tx`), which servers and clients are
//! admitted (`cluster`), routing between workers (`worker`, `dispatch`), start and stop (`server`). Does not own: the
//! rules of names and inodes (`amphi_meta`), of blocks (`amphi_data`), of locks (`amphi_dlm`); the log (`amphi_zone`);
//! connections (`amphi_transport`); threads (`amphi_sched`). This crate is the only place where these are combined.
//!
//! Invariants:
//! * Only its own worker uses a target's state. Workers exchange messages and share nothing else.
//! * A change, its answer and the blocks that it frees are one log record. The answer is sent when the record is kept,
//!   and a request that is sent again gets the same answer.
//! * No client sees an operation over several targets half done, neither before nor after a crash.
//! * A state change and its record are made without an await in between.
//!
//! The number that drove the design: a round trip that finds everything in memory may cost 1.5 times as much as an
//! exchange of empty messages. So a request is one task on one thread, without a lock, and uses the log only if it
//! changes something.
#![forbid(unsafe_code)]

mod cluster;
mod coherence;
pub mod config;
mod counters;
mod dispatch;
pub mod error;
mod folder;
pub mod fsck;
mod membership;
mod message;
mod objects;
mod ops;
mod planted;
mod records;
pub mod server;
mod session;
pub mod threads;
mod tunables;
mod turns;
mod tx;
mod worker;
mod zone_target;

#[cfg(test)]
mod tests;

pub use config::{AuditFull, AuditSink, ServerConfig, WORKERS_MAX};
pub use error::{ServerError, ServerErrorKind};
pub use folder::OWN_KEY;
pub use fsck::{CheckData, Finding, RepairPlan, Report, fsck, fsck_folders, plan_repair};
pub use server::{Observed, Seeds, Server, WorkerSeed, run_worker};
pub use threads::run_threads;
pub use tunables::TABLE as TUNABLES;
