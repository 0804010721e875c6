//! The end of a session that the server has ended.
//!
//! Owns: dropping everything that is cached under tokens and locks. Does not own: detecting the end of the session
//! (`io`).

use super::lose_all;
use crate::coherence::{front_pages, tokens};
use crate::mount::Mount;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Called when the server has ended the session: nothing cached is valid any more, and every call fails.
pub(crate) fn lose(mount: &Arc<Mount>, why: &str) {
    if mount.coherence.sharing.lost.swap(true, SeqCst) {
        return;
    }
    let dirty = mount.cache.dirty_bytes();
    tracing::error!(
        dirty_bytes = dirty,
        "the server has ended the session of this mount ({why}): what was not written back is lost and every call fails; \
         unmount it and mount again"
    );
    mount.files.all().iter().for_each(|file| file.exported().all_change());
    tokens::lose_all(mount);
    lose_all(mount);
    mount.postings_may_end();
    let mount2 = mount.clone();
    mount.spawn(async move {
        front_pages::drop_open_pages(&mount2).await;
    });
}
