//! Publishing: a tree that many processes write appears under its name at once and durably, or not at all.
//!
//! Owns: where unpublished trees and earlier generations lie, the records of the ranks, the steps of a commit. Does not
//! own: the command line, and how ranks tell each other that they are done. Knows nothing of the other crates: it works
//! by POSIX calls on any file system with `RENAME_EXCHANGE` and user attributes. docs/design/publishing.md has the
//! reasons.
//!
//! Invariants: the name leads to the old tree or to the new one, whenever a process or a machine stops, and either tree
//! is complete; it leads to the new tree only when all of it is stable. A commit that was interrupted continues when
//! the command is repeated.

#![forbid(unsafe_code)]
#![expect(clippy::disallowed_types, reason = "plain files of any file system, for a command that ends soon")]
#![expect(clippy::disallowed_methods, reason = "ids and idle times go by the machine's clock, waits by its timer")]

mod commit;
mod error;
mod generations;
mod place;
mod record;
mod tree;

#[cfg(test)]
mod tests;

pub use commit::{Committed, Options, abort, begin, commit, ready};
pub use error::{Error, ErrorKind};
pub use generations::{Generation, Listed, Open, clean, list, rollback};
