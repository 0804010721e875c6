//! Sessions: clients that were let in, what they have open, and the answers that a resend must find again.
//!
//! Owns: admission and its end, deaf clients, the rule for a client that is alone, open inodes, reply slots, changes
//! that are on their way to the disk. Does not own: locks and tokens of a session (`coherence`).

pub(crate) mod in_flight;
pub(crate) mod manager;
pub(crate) mod opens;
pub(crate) mod slots;
