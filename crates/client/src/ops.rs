//! Operations: each family has one file, and each operation is an `async fn` over the shared state.
//!
//! Owns: the steps of each operation. Does not own: the machinery below (`cache`, `locks`, `writeback`, `readahead`).

pub(crate) mod attr;
pub(crate) mod copy;
pub(crate) mod fallocate;
pub(crate) mod front;
pub(crate) mod input;
pub(crate) mod known;
pub(crate) mod name;
pub(crate) mod open;
pub(crate) mod pages;
pub(crate) mod posts;
pub(crate) mod read;
pub(crate) mod readdir;
pub(crate) mod seek;
pub(crate) mod statfs;
pub(crate) mod sync;
pub(crate) mod walks;
pub(crate) mod write;
pub(crate) mod write_behind;
pub(crate) mod xattr;
