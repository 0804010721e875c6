//! Large reads and writes of files on other file systems, past the page cache of the kernel.
//!
//! Owns: for files in the folders that `AMPHI_HYBRID` names, the decision for each large request (`request`), what is
//! asked about its file (`file`, `folders`, `mapped`), the transfer (`transfer`) and its memory (`memory`), the counts
//! (`tally`). Does not own: the rules of the decision (`amphi_policy`), files of a mount, which decides by itself.
//!
//! Invariants: those of this crate, apart from one exception: a thread exists while a direct transfer is under way. A
//! request that goes direct has the result that it would have through the page cache. In any doubt it is the kernel's.
//! docs/design/hybrid_elsewhere.md states the rules and the facts behind them.

mod file;
mod folders;
mod mapped;
mod memory;
mod pieces;
mod request;
mod tally;
#[cfg(test)]
mod tests;
mod text;
mod transfer;

pub use mapped::note_mapping;
pub use request::{direct_at, direct_next, is_direct_on, may_go_direct, turn_direct_on};
pub use tally::direct_counts;
pub use text::{put, put_number};
