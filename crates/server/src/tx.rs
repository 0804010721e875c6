//! Transactions: operations over several targets, none of which is ever seen half done.
//!
//! Owns: the steps of a planned operation (`run`), two-phase commit with logged intents and presumed abort, decisions
//! that one record carries for all targets of a server. Does not own: what the parts of an operation do (`ops`), the
//! log (`zone`).

pub(crate) mod run;
pub(crate) mod two_phase;
