//! `amphi explain`: in which way the requests of a file, a job or a mount were served, and why, in words; and which
//! things take time there, with the settings that change them.
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
