//! Writes that programs post, and the end of a mount that is in use, in the public interface.

use super::Client;
use crate::api::{Ctx, Hints, PostedWrites, WriteTo};
use crate::conn::pending::Pending;
use crate::inode::OpenFile;
use crate::ops;
use crate::ops::posts::{self, PostRights, Posting};
use crate::telemetry::stats::Count;
use amphi_env::Buf;
use amphi_types::{ByteRange, Errno, Result};
use std::future::Future;
use std::sync::Arc;

impl Posting {
    /// Allows programs that have this file open to post writes to it, and with `may_extend` to make it longer by that;
    /// `None` if each of its writes has to be a call.
    /// The front end has to take posted writes before it serves anything of the file, and when the client says so
    /// (`PostedWrites`). Between this and the first post it has to look at `is_over` once more.
    pub fn begin(client: &Client, open: &Arc<OpenFile>, may_extend: bool) -> Pending<Option<Posting>> {
        Pending::start(&client.mount, posts::begin(client.mount.clone(), open.clone(), may_extend))
    }

    /// The front end that takes posted writes.
    pub fn set_front(client: &Client, posts: Option<Arc<dyn PostedWrites>>) {
        client.mount.coherence.sharing.set_posts(posts);
    }

    /// Counts writes that were posted.
    pub fn count(&self, posts: u32) {
        let count = if self.is_shared() { Count::PostedShared } else { Count::PostedSole };
        self.mount().stats.moved(count, u64::from(posts));
    }

    /// Called when a posted write of `range` through `open` has failed. Its program learns of it as of a failed
    /// write-back.
    pub fn failed(open: &OpenFile, range: ByteRange, errno: Errno) {
        open.lost(range, errno);
    }

    /// Writes what was posted through `open` into the cache, if nothing has to wait for that. Returns whether it is
    /// there. The caller writes all that is posted to a file in the order of the posts.
    pub fn try_write(&self, client: &Client, ctx: &Ctx, open: &Arc<OpenFile>, offset: u64, bytes: &[u8]) -> bool {
        match self.rights() {
            PostRights::Sole => client.try_write(ctx, open, offset, bytes, hints()) == Some(bytes.len()),
            PostRights::Locks(locks) => locks.try_write(open, offset, bytes),
        }
    }

    /// Executes `run` as an operation for which callers can wait.
    pub fn settling(client: &Client, run: impl Future<Output = Result<()>> + Send + 'static) -> Pending<()> {
        Pending::start(&client.mount, run)
    }
}

impl PostRights {
    /// As `Posting::try_write`, and waits. The range that was written is as long as `bytes`, or shorter.
    pub async fn write(&self, client: &Client, ctx: &Ctx, open: &Arc<OpenFile>, at: u64, bytes: Buf) -> Result<usize> {
        match self {
            PostRights::Sole => client.write(ctx, open, at, bytes, hints()).await,
            PostRights::Locks(locks) => locks.write(open, at, bytes).await,
        }
    }
}

/// A post goes to its offset, whatever its descriptor was opened for.
fn hints() -> Hints {
    Hints { to: WriteTo::Offset, ..Hints::default() }
}

impl Client {
    /// As `sync_all` before the end of a mount, whose result reports lost bytes: only those that no call has reported.
    ///
    /// Errors: that of a target which could not be asked to make everything stable.
    pub fn store_all(&self) -> Pending<()> {
        self.start(ops::sync::store_all(self.mount.clone()))
    }
}
