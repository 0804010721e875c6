//! `amphi explain`: which way the requests of a file, a job or a mount went and why, in words; and what costs time
//! there, with what changes it.
//!
//! Owns: the facts of a file (`facts`), the words (`said`), the rules (`rules`). Does not own: how the facts are read
//! (the `amphi` program).
//!
//! Invariants: no I/O. A rule reports only a cause with a cost; the ways of requests are always reported.

mod facts;
mod rules;
mod said;
#[cfg(test)]
mod tests;

pub use facts::{FileFacts, FileTexts, Object, Portrait, Row, Side, tunables};
pub use rules::{of_file, of_job, of_mount};
pub use said::{Explanation, WayShare};
