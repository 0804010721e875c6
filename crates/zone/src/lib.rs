//! A zone: the storage of one target. Superblock, write-ahead log, checkpoints, crash recovery.
//!
//! Owns: the byte layout of docs/DISK_FORMAT.md, the log's group commit, checkpoints and recovery after a crash. Does
//! not own: the meaning of items (`meta`, `data`, the server's tables), data blocks (only the place of their region),
//! the order of replies and locks (`server`).
//!
//! A target's durable state, file data apart, is a set of items. A `Txn` is appended to the log and becomes *kept*
//! (survives the process: in memory that does, or written), *written* (on the disk) and later *stable* (survives power
//! loss). The zone keeps the changes of written groups in memory until a checkpoint has put them into a sorted segment,
//! so a checkpoint needs neither the stores nor log space, and its image is exact.
//!
//! Invariants: a group is written only when its predecessor was; the root names only synced segments; log and
//! segment space is reused only after both superblock copies that stopped naming it are synced; the first
//! failed write or sync makes the zone refuse everything after it, but for pages of segments that find no room below.
//!
//! The number that drove the design: one 4 KiB O_DIRECT write costs 60-70 us on the reference machine and a metadata
//! change must not cost more than that, so a group is one write, is sent without delay, and a record in memory that
//! outlives the process (`keep`) need not wait for it.
#![forbid(unsafe_code)]

mod backing;
mod change;
mod checkpoint;
mod commit;
mod error;
mod event;
mod fsck;
mod group;
mod image;
mod keep;
mod layout;
mod log_point;
mod log_reader;
mod merge;
mod options;
mod parity;
mod planted;
mod read;
mod recover;
mod room;
mod segment;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod zone;

pub use error::{ZoneError, ZoneErrorKind};
pub use fsck::{Report, fsck};
pub use layout::LOG_MIN;
pub use options::{OnFailure, OpenOptions, ZoneParams};
pub use stats::ZoneStats;
pub use zone::{Found, Lsn, Order, Recovered, Zone};
