//! `FileSystem`: the trait that a mount serves, with one synchronous method for each operation of the kernel.
//!
//! Methods run on reader threads of the session and may block. A blocked method should end with `Errno::Intr` when
//! `Caller::interrupt` fires. Default methods answer `NoSys`, which the kernel remembers for most operations. It then
//! sends no further requests of that kind (fsync, flush, access, xattrs) or does without (rename flags, copy ranges).
//!
//! Owns: the contract of these methods. Does not own: their arguments and results (`calls`).
//!
//! Invariant: names that are passed in have no NUL and no `/`, but may be longer than the file system allows.

use crate::calls::{
    Arrival, AttrReply, CopyHow, Entry, Handle, IoctlCall, IoctlReply, LockHow, OpenHow, OpenReply, ReadHow, Statfs,
    WriteHow,
};
use crate::config::Limits;
use crate::data::{Payload, ReadSink};
use crate::directory::DirSink;
use crate::later::Later;
use crate::notify::Notifier;
use crate::recorded::Recorded;
use crate::request::{Caller, Request};
use amphi_client::CallTimes;
use amphi_types::{Errno, Ino, Result, SetAttr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A file system behind a mount. See the module's head for threads, blocking and errors.
#[expect(unused_variables, reason = "default methods answer without looking at their arguments")]
pub trait FileSystem: Send + Sync + 'static {
    /// The directory that is the root of the mount.
    fn root(&self) -> Ino {
        Ino::ROOT
    }

    /// Called once, before any other method, with the negotiated limits and the way to send invalidations.
    fn mounted(&self, notifier: Notifier, limits: &Limits) {}

    /// Called once, when requests are served but the mount is not announced yet. The arguments are its path and its
    /// number in the mount table (0: unknown).
    fn serves(&self, at: &Path, device: u64) {}

    /// Called before a request that wants a reply is served. The result is dropped when the request has been answered.
    ///
    /// Errors: the request is answered with the error.
    fn arrives(&self, caller: &Caller<'_>, request: &Request<'_>) -> Result<Arrival<'_>> {
        Ok(Arrival::default())
    }

    /// Decides which properties of a request are recorded, before it is handled.
    fn records(&self, caller: &Caller<'_>, request: &Request<'_>) -> Option<Box<Recorded>> {
        None
    }

    /// Called when a request that is recorded was answered on the thread that handled it.
    fn recorded(&self, recorded: Recorded) {}

    /// Returns whether a thread belongs to the file system itself. Requests of such a thread are answered without
    /// waiting, by the thread that reads them.
    fn is_own_thread(&self, tid: u32) -> bool {
        false
    }

    /// The counters for the times of calls.
    fn call_times(&self) -> Option<&Arc<CallTimes>> {
        None
    }

    /// Called when a mount that is in use is about to end: what programs have written without a call is carried out.
    fn end_posts(&self) {}

    /// Called once, when the mount has ended and no method runs any more.
    fn unmounted(&self) {}

    /// Called on this thread before it handles a request whose answer may carry a timeout. `answered` follows on the
    /// same thread when the answer was written.
    fn begins(&self) {}

    /// Called when the answer to the request that began on this thread was written.
    fn answered(&self) {}

    /// Returns how long the kernel may cache that a name does not exist.
    fn negative_ttl(&self) -> Duration {
        Duration::ZERO
    }

    /// Finds `name` in directory `parent`.
    fn lookup(&self, caller: &Caller<'_>, parent: Ino, name: &[u8]) -> Result<Entry>;

    /// Drops `count` references to `ino`.
    fn forget(&self, ino: Ino, count: u64) {}

    /// Attributes of `ino`, for stat and statx.
    fn getattr(&self, caller: &Caller<'_>, ino: Ino, handle: Option<Handle>) -> Result<AttrReply>;

    /// Changes attributes.
    fn setattr(&self, caller: &Caller<'_>, ino: Ino, set: &SetAttr, handle: Option<Handle>) -> Result<AttrReply> {
        Err(Errno::NoSys)
    }

    /// Target of a symbolic link.
    fn readlink(&self, caller: &Caller<'_>, ino: Ino) -> Result<Vec<u8>> {
        Err(Errno::NoSys)
    }

    /// Makes a symbolic link.
    fn symlink(&self, caller: &Caller<'_>, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        Err(Errno::NoSys)
    }

    /// Makes a node. `mode` has kind and permissions, without `Caller::umask` applied.
    fn mknod(&self, caller: &Caller<'_>, parent: Ino, name: &[u8], mode: u32, rdev: u32) -> Result<Entry> {
        Err(Errno::NoSys)
    }

    /// Makes a directory. `mode` has the same meaning as in `mknod`.
    fn mkdir(&self, caller: &Caller<'_>, parent: Ino, name: &[u8], mode: u32) -> Result<Entry> {
        Err(Errno::NoSys)
    }

    /// Removes a name that is not a directory.
    fn unlink(&self, caller: &Caller<'_>, parent: Ino, name: &[u8]) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Removes an empty directory.
    fn rmdir(&self, caller: &Caller<'_>, parent: Ino, name: &[u8]) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Renames. `flags` are `RENAME_*` bits, and `new_parent` is the node id by which the kernel knows that directory.
    fn rename(
        &self,
        caller: &Caller<'_>,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Gives `ino` another name.
    fn link(&self, caller: &Caller<'_>, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        Err(Errno::NoSys)
    }

    /// Opens a file.
    fn open(&self, caller: &Caller<'_>, ino: Ino, how: OpenHow) -> Result<OpenReply>;

    /// Makes a regular file and opens it. If the file exists and `how` lacks `O_EXCL`, only opens it.
    fn create(
        &self,
        caller: &Caller<'_>,
        parent: Ino,
        name: &[u8],
        mode: u32,
        how: OpenHow,
    ) -> Result<(Entry, OpenReply)> {
        Err(Errno::NoSys)
    }

    /// Makes a regular file without a name, in the file system of `parent`, and opens it.
    fn tmpfile(&self, caller: &Caller<'_>, parent: Ino, mode: u32, how: OpenHow) -> Result<(Entry, OpenReply)> {
        Err(Errno::NotSupported)
    }

    /// Reads into `sink`.
    fn read(&self, caller: &Caller<'_>, ino: Ino, how: &ReadHow, sink: &mut ReadSink<'_>) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Called after the answer to a read that fills pages of the kernel, or whose caller is the only one at the moment.
    /// The thread then has nothing else to do.
    fn read_answered(&self, how: &ReadHow) {}

    /// Called after any read was answered on the thread that handled it.
    fn read_followed(&self, how: &ReadHow) {}

    /// Writes, and returns the number of bytes written.
    fn write(&self, caller: &Caller<'_>, ino: Ino, how: &WriteHow, data: Payload<'_>) -> Result<usize> {
        Err(Errno::NoSys)
    }

    /// Totals of the file system: blocks and inodes.
    fn statfs(&self, caller: &Caller<'_>, ino: Ino) -> Result<Statfs> {
        Err(Errno::NoSys)
    }

    /// Called when a descriptor of `handle` was closed. An error becomes the result of `close`.
    fn flush(&self, caller: &Caller<'_>, ino: Ino, handle: Handle, lock_owner: u64) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Called when the last descriptor of `handle` was closed. The method must not wait.
    fn release(&self, ino: Ino, handle: Handle) {}

    /// Makes the file stable. With `data_only`, attributes that are not needed to read the data may be left out.
    fn fsync(&self, caller: &Caller<'_>, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Opens a directory.
    fn opendir(&self, caller: &Caller<'_>, ino: Ino, how: OpenHow) -> Result<OpenReply> {
        Ok(OpenReply::default())
    }

    /// Lists from cookie `offset` on (0 is the start) into `sink` until that is full.
    fn readdir(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        handle: Handle,
        offset: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Called when the last descriptor of a directory handle was closed. The method must not wait.
    fn releasedir(&self, ino: Ino, handle: Handle) {}

    /// Makes a directory stable.
    fn fsyncdir(&self, caller: &Caller<'_>, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Makes all of the file system stable.
    fn syncfs(&self, caller: &Caller<'_>) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Sets an extended attribute; `flags` are `XATTR_*` bits.
    fn setxattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Value of an extended attribute. The caller handles sizes and `ERANGE`.
    fn getxattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::NoSys)
    }

    /// Names of extended attributes, each followed by a zero byte.
    fn listxattr(&self, caller: &Caller<'_>, ino: Ino) -> Result<Vec<u8>> {
        Err(Errno::NoSys)
    }

    /// Removes an extended attribute.
    fn removexattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Checks `R_OK`, `W_OK`, `X_OK` bits. It is not called when the kernel checks permissions itself.
    fn access(&self, caller: &Caller<'_>, ino: Ino, mask: u32) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Allocates, punches or zeroes; `mode` are `FALLOC_FL_*` bits.
    fn fallocate(&self, caller: &Caller<'_>, ino: Ino, handle: Handle, offset: u64, len: u64, mode: u32) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Next data or hole (`SEEK_DATA`, `SEEK_HOLE`) from `offset` on.
    fn lseek(&self, caller: &Caller<'_>, ino: Ino, handle: Handle, offset: u64, whence: u32) -> Result<u64> {
        Err(Errno::NoSys)
    }

    /// Copies between two files, and returns the number of bytes copied.
    fn copy_file_range(&self, caller: &Caller<'_>, how: &CopyHow) -> Result<u64> {
        Err(Errno::NoSys)
    }

    /// Returns whether the file system keeps the memory of writes of one unit (`Payload::unit`). Called before each
    /// request is read.
    fn keeps_units(&self) -> bool {
        false
    }

    /// Returns whether the file system serves file locks. If not, the kernel keeps file locks for this mount only.
    fn keeps_locks(&self) -> bool {
        false
    }

    /// The lock with the lowest offset that conflicts with this one, if any. Owner and handle of the result are not
    /// used.
    fn getlk(&self, caller: &Caller<'_>, ino: Ino, how: &LockHow) -> Result<Option<LockHow>> {
        Err(Errno::NoSys)
    }

    /// Takes, changes or releases a lock. Fails with `Again` if another owner's lock conflicts.
    fn setlk(&self, caller: &Caller<'_>, ino: Ino, how: &LockHow) -> Result<()> {
        Err(Errno::NoSys)
    }

    /// Works as `setlk`, but waits for other owners. It must not wait on this thread, which others may need, for
    /// instance to release the lock.
    fn setlkw(&self, caller: &Caller<'_>, ino: Ino, how: &LockHow, later: Later) {
        later.answer(Err(Errno::NoSys));
    }

    /// Device control.
    fn ioctl(&self, caller: &Caller<'_>, ino: Ino, call: &IoctlCall<'_>) -> Result<IoctlReply> {
        Err(Errno::NoTty)
    }

    /// Returns whether this device control may wait for very long. If so, `ioctl_later` serves the call.
    fn ioctl_waits(&self, call: &IoctlCall<'_>) -> bool {
        false
    }

    /// Works as `ioctl`, answered through `later` without a waiting thread.
    fn ioctl_later(&self, caller: &Caller<'_>, ino: Ino, call: &IoctlCall<'_>, later: Later) {
        later.answer_control(Err(Errno::NoTty));
    }

    /// The events of `wanted` that are ready. With the default, the kernel reports all events as ready.
    fn poll(&self, caller: &Caller<'_>, ino: Ino, handle: Handle, wanted: u32) -> Result<u32> {
        Err(Errno::NoSys)
    }
}
