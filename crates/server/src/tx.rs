//! Transactions: operations over several targets, none of which is ever seen half done.
//!
//! Owns: the steps of a planned operation (`run`), two-phase commit with logged intents and presumed abort, and
//! decisions with which one record serves all targets of a server. Does not own: the changes in the parts of an
//! operation (`ops`), the log (`zone`).

pub(crate) mod run;
pub(crate) mod two_phase;
