//! State of a front end between calls: what its kernel has got, and which answers are still due.
//!
//! Owns: the kernel's state and caches as the mount tracks them (`kernel_view`, `sizes`, `lent`, `names`, `moved`,
//! `kept_listings`, `pages`), open files and directories (`handles`, `listings`, `appended`), reads and writes of
//! programs without calls (`exports`, `posts`), file locks (`file_locks`), waits (`patience`, `deferred`), and the
//! details of a call under way (`syscall`, `rollback`). Does not own: the translation of calls (`client_fs`), which is
//! the floor above.
//!
//! Invariant: no module here gets the whole `ClientFs`. Each gets only the parts that it uses.

pub(crate) mod appended;
pub(crate) mod deferred;
pub(crate) mod exports;
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
pub(crate) mod posts;
pub(crate) mod record;
pub(crate) mod rollback;
pub(crate) mod sizes;
pub(crate) mod syscall;
