//! Tables: the single tables of a mount, as plain data under short locks.
//!
//! Owns: state with its local functions, in the order of the layers that use it. Does not own: messages, tasks, and
//! changes of files on behalf of others. Nothing in this folder uses the mount (`coherence`, `writeback`, `prefetch`).

pub(crate) mod coherence;
pub(crate) mod prefetch;
pub(crate) mod writeback;
