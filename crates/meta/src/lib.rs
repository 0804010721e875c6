//! The metadata store of one target: inodes, directory entries, extended attributes.
//!
//! Owns: their state in memory, the POSIX rules on them, and their items (`types::item`). Does not own: the log and
//! checkpoints (`zone`), file data (`data`), open files, and operations over several targets (`server`). Those
//! operations are built from the `Part`s and plans of this crate.
//!
//! Invariants: no I/O, no clock (`now` is an argument), no randomness. A call that fails has changed nothing and logged
//! nothing. A call that succeeds has appended to its `Txn` the new value of every item that it changed, once each. So
//! the memory always equals the replayed log.
//!
//! How it is used:
//!
//! * Operations on one target: `MetaStore::{lookup, make, link, unlink, rmdir, rename, setattr, ...}`.
//! * Operations on several targets: collect `Facts` (`MetaStore::facts`) and dentries (`lookup`), make a plan with the
//!   pure functions of `plan`, and log it as an intent. Then call `check_parts` on each target (`Refusal::Conflict`
//!   means: collect and plan again), and `apply_parts` on each. The operations on one target do the same with one
//!   target.
//!
//! The numbers that drove the design: an inode with its dentry takes 19 to 35 bytes of memory if the file is empty, 11
//! to 26 of them for the name; names that have little in common take up to 38. So a hundred million files need 2 to 5
//! GB on the targets that own them. A create logs three items, about 190 bytes.
#![forbid(unsafe_code)]

mod attributes;
mod codec;
mod early_names;
mod file_state;
mod index;
mod inode;
mod inodes;
mod items;
mod op;
mod part;
pub mod perm;
pub mod plan;
mod repair;
mod setattr;
mod shards;
mod shared_attrs;
mod store;
mod verify;
mod xattr;

#[cfg(test)]
mod tests;

pub use index::{Dentry, Named};
pub use inode::{Facts, Gathered, Inode, Pending};
pub use part::{Applied, NewInode, Part, Refusal};
pub use plan::{NodeSpec, RenameMode};
pub use repair::{Repair, repair_cluster};
pub use shared_attrs::SharedAttrs;
pub use store::{MetaStore, ReadDirEntry};
pub use verify::verify_cluster;
pub use xattr::{Outcome, XattrMode, is_list};
