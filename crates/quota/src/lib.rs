//! Quotas: how much storage users, groups and trees of directories use, and how much they may use.
//!
//! Owns: counting by account (`Usage`), how much of a limit each target may use up without asking (`Shares` at the
//! target, `Ledger` at target 0). Does not own: what is counted (`meta` and `data`), the messages between targets and
//! the items on the disk (the server).
//!
//! A limit holds for the whole cluster, but each target alone decides whether a write fits. So the ledger at target 0
//! deals the limit out in *shares*: a target may use up its share without a message. When it needs more, it asks the
//! ledger. When the ledger has nothing left, it collects the unused parts of the shares of other targets, before it
//! refuses.
//!
//! Invariants, which the model in `tests` checks under any order of messages:
//!
//! * The shares of all targets together are never more than the limit, unless the limit was lowered, or files were
//!   given to the account by a user without a limit.
//! * A target admits nothing beyond its share. So no account gets beyond its limit by what targets admit.
//! * A refused request did not fit when the ledger collected, or some target could not be reached.
//!
//! Lustre deals out limits in the same way (quota master and slaves), with slices of fixed sizes. Here a share is a
//! part of what is free, so that for an account far from its limit there are few requests.
#![forbid(unsafe_code)]

mod ledger;
mod shares;
#[cfg(test)]
mod tests;
mod usage;

pub use ledger::{Answer, Ledger, Need, Standing, Turn};
pub use shares::{Admission, Share, Shares};
pub use usage::{OwnerIndex, Usage};
