//! Ids, limits, ranges, attributes, layouts and the one errno table.
//!
//! Owns: the vocabulary every other crate speaks, and the pure arithmetic of placement (`layout`) and
//! routing (`ids`). Does not own: messages (`wire`), disk layout of zones (`zone`), or any I/O.
//!
//! Invariants: no I/O, no clock, no randomness, no global state; all functions are pure except those of
//! `tunable::Values`, which stores the values that were set.
#![forbid(unsafe_code)]

pub mod acl;
pub mod attr;
pub mod errno;
pub mod ids;
pub mod item;
pub mod layout;
pub mod limits;
pub mod name;
pub mod owner;
pub mod range;
pub mod setting;
pub mod tunable;

pub use acl::{Acl, Acls};
pub use attr::{Attr, Caps, Cred, FileFlags, Kind, SetAttr, TimeSet, Timespec};
pub use errno::{Errno, Result};
pub use ids::{Ino, ObjectId, SHARD_COOKIE_SHIFT, SessionId, TargetId, TokenKey, shard_place};
pub use layout::{
    Advice, AskedAdvice, Consistency, DataChecksums, IoMode, KernelCache, Layout, Pattern, Subdirectories,
};
pub use name::Name;
pub use owner::{Account, AccountKind, AccountView, Amount, Limits, Nearness, Owner};
pub use range::{ByteRange, RangeSet};
