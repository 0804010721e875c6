//! The metadata store of one target: inodes, directory entries, extended attributes.
//!
//! Owns: their state in memory, the rules of POSIX on them, and their items (`types::item`). Does not own:
//! the log and checkpoints (`zone`), file data (`data`), open files, and operations over several targets
//! (`server`), though these are built from the `Part`s and plans of this crate.
//!
//! Invariants: no I/O, no clock (`now` is an argument), no randomness. A call that fails has changed nothing
//! and logged nothing. A call that succeeds has appended to its `Txn` the new value of every item it changed,
//! once each, so memory is always what the log says.
//!
//! How it is used:
//! * Single-target operations: `MetaStore::{lookup, make, link, unlink, rmdir, rename, setattr, ...}`.
//! * Several targets: gather `Facts` (`MetaStore::facts`) and dentries (`lookup`), make a plan with the pure
//!   functions of `plan`, log it as an intent, `check_parts` on each target (`Refusal::Conflict` = gather and
//!   plan again), then `apply_parts` on each. The single-target operations are that with one target.
//!
//! The numbers behind the design: an inode with its dentry takes about 460 bytes of memory, so a million files
//! need 0.5 GB on the target that owns them; a create logs three items, about 190 bytes.
#![forbid(unsafe_code)]

mod codec;
mod file_state;
mod index;
mod inode;
mod items;
mod op;
mod part;
pub mod perm;
pub mod plan;
mod repair;
mod setattr;
mod store;
mod verify;
mod xattr;

#[cfg(test)]
mod tests;

pub use index::Dentry;
pub use inode::{Facts, Gathered, Inode, Pending};
pub use part::{Applied, NewInode, Part, Refusal};
pub use plan::{NodeSpec, RenameMode};
pub use repair::{Repair, repair_cluster};
pub use store::{MetaStore, ReadDirEntry};
pub use verify::verify_cluster;
pub use xattr::XattrMode;
