//! Staging: a tree or a file is copied in parallel, and the copy appears whole or not at all.
//!
//! Owns the copy between any two file systems by POSIX calls alone: listing, copying in pieces, the journal by which
//! the same command continues after a crash, reading back, attributes, and the rename at the end. Does not own the
//! command line, the output, nor the exclusion of other programs from the source meanwhile: a source that changes is
//! detected and is a failure. It is independent of the other crates. docs/design/staging.md has the reasons.
//!
//! Invariants: the target gets its name only after every file was copied in the state of one moment, read back and
//! compared (unless that was switched off), and everything was made stable. The stage reads and changes nothing outside
//! source and target, whatever symbolic links and renames there are.

#![forbid(unsafe_code)]

mod assemble;
mod attributes;
mod buffer;
mod checkpoint;
mod compare;
mod content;
mod copy;
mod dest;
mod dirs;
mod ends;
mod entries;
mod error;
mod files;
mod holes;
mod journal;
mod leftovers;
mod options;
mod publish;
mod remove;
mod report;
mod skeleton;
mod stable;
mod stage;
mod walk;
mod whereabouts;
mod work;

pub use error::{Error, ErrorKind, show};
pub use options::{Existing, Keep, Leftovers, Options, PIECE_BYTES, SYNC_BYTES, Verify, threads};
pub use report::{Counter, Manifest, NAMED_MAX, Note, Notes, Phase, Progress};
pub use stage::{clean, stage};
