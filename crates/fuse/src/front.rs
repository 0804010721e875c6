//! What a front end keeps between calls: what it has given to its kernel, and whom it owes an answer.
//!
//! Owns: what the kernel goes by and may keep (`kernel_view`, `sizes`, `lent`, `names`, `moved`, `kept_listings`,
//! `pages`), what is open (`handles`, `listings`, `appended`), locks of applications (`file_locks`), waits (`patience`,
//! `deferred`), and what a call on its way says of itself (`syscall`, `rollback`). Does not own: the translation of
//! calls (`client_fs`), which is the floor above. Nothing here takes the whole `ClientFs`: each room takes what it
//! uses.

pub(crate) mod appended;
pub(crate) mod deferred;
pub(crate) mod file_locks;
pub(crate) mod handles;
pub(crate) mod kept_listings;
pub(crate) mod kernel_view;
pub(crate) mod lent;
pub(crate) mod listings;
pub(crate) mod moved;
pub(crate) mod names;
pub(crate) mod pages;
pub(crate) mod patience;
pub(crate) mod rollback;
pub(crate) mod sizes;
pub(crate) mod syscall;
