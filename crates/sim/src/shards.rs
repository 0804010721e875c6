//! Directories in shards: in a share of the seeds the root and some of the directories that programs make get
//! shards, themselves or as sub-directories of others.
//!
//! Owns: which directories get them. The reference knows nothing of shards: a directory with shards has to look like
//! any other one.

use amphi_client::{Client, Ctx};
use amphi_types::Ino;
use amphi_wire::XattrMode;
use std::cell::Cell;

/// Extended attribute that gives a directory shards.
const SHARDS: &[u8] = b"user.amphi.shards";

/// Extended attribute of a directory whose new sub-directories get shards.
const SUBDIRECTORIES: &[u8] = b"user.amphi.subdirectories";

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
}

/// Sets whether directories get shards in the run of this thread.
pub(crate) fn switch(on: bool) {
    ON.set(on);
}

/// Returns whether directories get shards.
pub(crate) fn are_on() -> bool {
    ON.get()
}

fn count_of(dir: Ino) -> u64 {
    2 + dir.local() % 3
}

/// Returns whether this many inodes may be left when all that programs made is removed: the root, and its shards if it
/// has some.
pub(crate) fn is_root_alone(inodes: u64) -> bool {
    inodes == 1 || are_on() && inodes == 1 + count_of(Ino::ROOT)
}

/// Gives a directory shards, if it is one that gets them, and still empty. In some directories, new sub-directories get
/// shards when they are made.
pub(crate) async fn give(client: &Client, dir: Ino) {
    if are_on() && dir.local() % 5 == 1 {
        // The directory may be gone, or belong to another user.
        let _ = client.setxattr(&Ctx::root(), dir, SUBDIRECTORIES, b"sharded", XattrMode::Set).await;
    }
    if are_on() && (dir == Ino::ROOT || !dir.local().is_multiple_of(3)) {
        let count = count_of(dir).to_string();
        // The directory may have shards already, or names, or be gone.
        let _ = client.setxattr(&Ctx::root(), dir, SHARDS, count.as_bytes(), XattrMode::Set).await;
    }
}
