//! Writes that programs post, and the end of a mount that is in use, in the public interface.

use super::Client;
use crate::conn::pending::Pending;
use crate::inode::OpenFile;
use crate::ops;
use crate::ops::posts::{self, Posting};
use amphi_types::{ByteRange, Errno, Result};
use std::future::Future;
use std::sync::Arc;

impl Posting {
    /// Allows programs that have this file open to post writes to it, and with `may_extend` to make it longer by that;
    /// `None` if each of its writes has to be a call.
    /// The front end has to take posted writes before it serves anything of the file, and when `bell` rings.
    pub fn begin(client: &Client, open: &Arc<OpenFile>, may_extend: bool) -> Pending<Option<Posting>> {
        Pending::start(&client.mount, posts::begin(client.mount.clone(), open.clone(), may_extend))
    }

    /// `bell` is called, on any thread, when a `Posting` may be over; it must not wait.
    pub fn set_bell(client: &Client, bell: Option<Arc<dyn Fn() + Send + Sync>>) {
        client.mount.coherence.sharing.set_bell(bell);
    }

    /// Called when a posted write of `range` through `open` has failed. Its program learns of it as of a failed
    /// write-back.
    pub fn failed(open: &OpenFile, range: ByteRange, errno: Errno) {
        open.lost(range, errno);
    }

    /// Executes `run` as an operation for which callers can wait.
    pub fn settling(client: &Client, run: impl Future<Output = Result<()>> + Send + 'static) -> Pending<()> {
        Pending::start(&client.mount, run)
    }
}

impl Client {
    /// As `sync_all` before the end of a mount, whose result reports lost bytes: only those that no call has reported.
    ///
    /// Errors: that of a target which could not be asked to make everything stable.
    pub fn store_all(&self) -> Pending<()> {
        self.start(ops::sync::store_all(self.mount.clone()))
    }
}
