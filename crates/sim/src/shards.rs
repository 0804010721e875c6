//! Directories in shards: in a share of the seeds the root and some of the directories that programs make get shards.
//!
//! Owns: which directories get them. Nothing in the reference knows of shards: a directory with shards has to look like
//! any other one.

use amphi_client::{Client, Ctx};
use amphi_types::Ino;
use amphi_wire::XattrMode;
use std::cell::Cell;

/// Extended attribute that gives a directory shards.
const SHARDS: &[u8] = b"user.amphi.shards";

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
}

/// Whether directories get shards in the run of this thread.
pub(crate) fn switch(on: bool) {
    ON.set(on);
}

/// Whether directories get shards.
pub(crate) fn are_on() -> bool {
    ON.get()
}

/// Gives a directory shards, if it is one that gets them, and still empty.
pub(crate) async fn give(client: &Client, dir: Ino) {
    if are_on() && (dir == Ino::ROOT || !dir.local().is_multiple_of(3)) {
        let count = (2 + dir.local() % 3).to_string();
        // It may have shards already, or names, or be gone.
        let _ = client.setxattr(&Ctx::root(), dir, SHARDS, count.as_bytes(), XattrMode::Set).await;
    }
}
