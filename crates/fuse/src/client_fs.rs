//! `ClientFs`: the file system that translates the kernel's calls to operations of the client core.
//!
//! Owns: the translation. Does not own: the state kept between calls (`front`), and any decision about caching or
//! direct I/O, which is the client's.
//!
//! Invariants:
//!
//! * A cache hit neither allocates memory nor wakes another thread.
//! * A handle that the kernel was given stays valid until its release.
//! * Ordinary opens bypass the kernel's page cache, except for files whose reads the client leaves to the kernel. Opens
//!   with `O_DIRECT` use it unless they append, because the kernel then sends the pieces of one call in parallel.
//! * Pages stay in the kernel between opens as long as they are up to date according to the client.
//! * In sole mode the kernel caches names and attributes for a fixed time (`front/lent`).
//! * In shared mode the kernel caches attributes only while their token lasts, and only those names that the mount's
//!   lookup thread has looked up (`front/names`). Its pages are dropped before the lock under which they were read is
//!   returned (`front/pages`).

mod deferred;
mod directories;
mod file_flags;
mod file_locks;
pub mod ioctl;
mod names;
mod positions;
mod posts;
mod reads;
mod sizes;
mod walks;
mod writes;

use crate::calls::{
    Arrival, AttrReply, CopyHow, Entry, Handle, IoctlCall, IoctlReply, LockHow, OpenFlags, OpenHow, OpenReply, ReadHow,
    Statfs, WriteHow,
};
use crate::clock::monotonic_ns;
use crate::config::Limits;
use crate::data::{Payload, ReadSink};
use crate::directory::DirSink;
use crate::environment::Said;
use crate::file_system::FileSystem;
use crate::front::deferred::Deferred;
use crate::front::file_locks::FileLocks;
use crate::front::handles::Handles;
use crate::front::kept_listings::KeptListings;
use crate::front::kernel_view::{Changing, KernelView, Since};
use crate::front::lent;
use crate::front::listings::Listings;
use crate::front::moved::Moved;
use crate::front::names::Names;
use crate::front::pages::Pages;
use crate::front::patience::Patience;
use crate::front::record::Records;
use crate::front::rollback::Rollbacks;
use crate::groups::GroupCache;
use crate::kernel::structs::{LseekOut, WriteOut};
use crate::later::Later;
use crate::node::{Top, inode_of};
use crate::notify::Notifier;
use crate::recorded::Recorded;
use crate::request::{Caller, Request};
use amphi_client::{Client, Ctx, Fallocate, FrontCache, Hints, OpenFile, Pending, RenameMode, Whence, XattrMode};
use amphi_types::{Attr, Cred, Errno, Ino, Kind, Result, SetAttr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Most bytes of one `copy_file_range`. The caller repeats the call for the rest. So an interrupted copy has copied at
/// most as much after the signal as an interrupted large write.
const COPY_MAX_BYTES: u64 = 16 << 20;
/// A rename that leaves a whiteout and replaces nothing.
const NEW_WHITEOUT: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;

/// The file system of a mount, in front of a client.
pub struct ClientFs {
    client: Client,
    groups: Arc<GroupCache>,
    handles: Handles,
    listings: Listings,
    kept_listings: Arc<KeptListings>,
    moved: Arc<Moved>,
    names: Names,
    file_locks: Arc<FileLocks>,
    patience: Patience,
    pages: Pages,
    rollbacks: Arc<Rollbacks>,
    kernel_view: Arc<KernelView>,
    deferred: Deferred,
    records: Records,
    /// Bytes of the largest request. A request of this size may be a piece of a longer call.
    request_max_bytes: AtomicUsize,
}

impl ClientFs {
    /// A file system for `client`, whose I/O half runs on another thread and has had its first answer.
    pub fn new(client: Client) -> ClientFs {
        let top = Top(client.root());
        ClientFs {
            records: Records::new(client.recorder().clone(), client.job_variables()),
            client,
            groups: Arc::default(),
            handles: Handles::default(),
            listings: Listings::default(),
            kept_listings: Arc::default(),
            moved: Arc::new(Moved::below(top)),
            names: Names::below(top),
            file_locks: Arc::default(),
            patience: Patience::default(),
            pages: Pages::default(),
            rollbacks: Arc::default(),
            kernel_view: Arc::default(),
            deferred: Deferred::default(),
            request_max_bytes: AtomicUsize::new(usize::MAX),
        }
    }

    /// Number of open files.
    pub fn open_files(&self) -> usize {
        self.handles.len()
    }

    /// The caller with all its credentials, for requests that the server checks.
    fn ctx(&self, caller: &Caller<'_>) -> Ctx {
        Ctx { cred: caller.cred(&self.groups), ..Self::thread(caller) }
    }

    /// Works as `ctx`, with the settings in the environment of the process (`environment`). For opens.
    fn opener(&self, caller: &Caller<'_>) -> Ctx {
        let Said { mode, job, program, .. } = self.records.environments.said(caller.tid, self.client.job_variables());
        Ctx { io_mode: mode, job, program, ..self.ctx(caller) }
    }

    fn thread(caller: &Caller<'_>) -> Ctx {
        Ctx { pid: caller.tid, tid: caller.tid, umask: caller.umask, ..Ctx::default() }
    }

    /// The caller without its supplementary groups, for operations that the open has already allowed.
    fn stream(caller: &Caller<'_>) -> Ctx {
        let cred = Cred::new(caller.uid, caller.gid, Vec::new());
        Ctx { cred, ..Self::thread(caller) }
    }

    fn wait<T: Send + 'static>(&self, caller: &Caller<'_>, pending: Pending<T>) -> Result<T> {
        let result = self.wait_once(caller, pending);
        if matches!(result, Err(Errno::Stale)) {
            // After ESTALE the kernel walks the path again, and the client prepares for that.
            self.client.walk_failed(caller.tid);
        }
        result
    }

    /// Sends a request with the caller's credentials and waits for the answer. If the server refuses the request, the
    /// caller may have gained rights since its credentials were cached. The rights are read again, and the request is
    /// sent once more.
    fn asked<T: Send + 'static>(&self, caller: &Caller<'_>, ask: impl Fn(&Ctx) -> Pending<T>) -> Result<T> {
        self.asked_as(caller, self.ctx(caller), ask)
    }

    fn asked_as<T: Send + 'static>(
        &self,
        caller: &Caller<'_>,
        ctx: Ctx,
        ask: impl Fn(&Ctx) -> Pending<T>,
    ) -> Result<T> {
        let result = self.wait(caller, ask(&ctx));
        if !matches!(result, Err(Errno::Access | Errno::Perm)) {
            return result;
        }
        let cred = caller.fresh_cred(&self.groups);
        if cred == ctx.cred { result } else { self.wait(caller, ask(&Ctx { cred, ..ctx })) }
    }

    fn wait_once<T: Send + 'static>(&self, caller: &Caller<'_>, mut pending: Pending<T>) -> Result<T> {
        match pending.try_take() {
            Some(result) => result,
            None => {
                // No other caller is active at the moment. So this thread polls for the answer, and no other thread has
                // to be woken to read the device.
                if caller.is_alone()
                    && let Some(result) = pending.linger()
                {
                    return result;
                }
                caller.will_block();
                self.patience.wait(caller, pending)
            }
        }
    }

    /// Begins a change of `ino` by a program of this mount.
    fn change(&self, caller: &Caller<'_>, ino: Ino) -> Changing<&KernelView> {
        self.size_arrives(caller, ino);
        self.kernel_view.change(ino)
    }

    /// The timeout that the answer to the present request may carry.
    fn ttl(&self) -> Duration {
        lent::ttl(&self.client)
    }

    /// Works as `ttl`, for attributes that were requested at `since`. The timeout is zero in two cases. A set-user-id
    /// or set-group-id bit must not be cached, because a write clears it and the kernel trusts its cache. And
    /// attributes of a directory must not be cached while names in it are made or removed, because the kernel would
    /// take these older attributes for newer ones.
    fn attr_ttl(&self, attr: &Attr, since: Since) -> Duration {
        let is_kept = match attr.kind {
            Kind::File => !attr.has_set_id(),
            Kind::Dir => !self.client.is_alone() || lent::knows_directories(&self.client),
            _ => true,
        };
        if is_kept { self.lend(attr, since) } else { Duration::ZERO }
    }

    /// Works as `attr_ttl`, but only a change of the inode itself prevents the timeout.
    fn lend(&self, attr: &Attr, since: Since) -> Duration {
        match attr.kind {
            Kind::File => self.tell_end(attr.ino, attr.size),
            Kind::Dir => self.kept_listings.shown(attr),
            _ => {}
        }
        let life = self.ttl();
        let life = if life.is_zero() { self.client.lend_attributes(attr) } else { life };
        if !life.is_zero() && self.kernel_view.lend(attr.ino, since, life) { life } else { Duration::ZERO }
    }

    fn entry(&self, attr: Attr) -> Entry {
        let attr_ttl = self.attr_ttl(&attr, lent::since());
        Entry { attr, node: attr.ino, generation: 0, entry_ttl: self.ttl(), attr_ttl }
    }

    fn attributes(&self, attr: Attr, since: Since) -> AttrReply {
        AttrReply { attr, ttl: self.attr_ttl(&attr, since) }
    }

    fn opened(&self, caller: &Caller<'_>, file: Arc<OpenFile>) -> OpenReply {
        let FrontCache { serves, keeps } = self.client.front_cache(&Self::thread(caller), &file);
        let flags = match serves || writes::keeps_pages(&file) {
            true => OpenFlags::CACHED,
            false => OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_WRITES,
        };
        // Pages from before this open may be older than what another mount has written, even if that mount has left
        // since.
        let flags = if keeps { flags | OpenFlags::KEEP_CACHE } else { flags };
        self.kernel_view.appended.opened(&file);
        OpenReply { handle: self.handles.insert(file), flags }
    }

    fn hints(&self, size: usize, flags: u32) -> Hints {
        Hints {
            may_continue: size >= self.request_max_bytes.load(Relaxed),
            direct: flags & libc::O_DIRECT as u32 != 0,
            // `RWF_DSYNC` of a single `pwritev2` arrives in the same flag.
            stable: flags & libc::O_DSYNC as u32 != 0,
            ..Hints::default()
        }
    }
}

impl FileSystem for ClientFs {
    fn root(&self) -> Ino {
        self.moved.top().0
    }

    fn mounted(&self, notifier: Notifier, limits: &Limits) {
        self.kernel_view.mounted(notifier.clone());
        let (listings, moved, names) = (self.kept_listings.clone(), self.moved.clone(), self.names.lender.clone());
        self.client.set_pages(self.pages.start(notifier, listings, moved, names));
        self.client.set_closes(Some(self.file_locks.clone()));
        let by_pages = (limits.pages_max.saturating_sub(1) * 4096).max(4096);
        self.request_max_bytes.store(limits.write_max_bytes.min(by_pages), Relaxed);
    }

    fn serves(&self, at: &Path, device: u64) {
        self.names.start(&self.client, at, device);
    }

    fn arrives(&self, caller: &Caller<'_>, request: &Request<'_>) -> Result<Arrival<'_>> {
        self.take_posts(caller, request)
    }

    fn records(&self, caller: &Caller<'_>, request: &Request<'_>) -> Option<Box<Recorded>> {
        self.records.begin(caller, request)
    }

    fn recorded(&self, recorded: Recorded) {
        let opened = recorded.opened().and_then(|handle| self.handles.get(handle).ok());
        self.records.ends(recorded, opened.map(|file| file.size()));
    }

    fn call_times(&self) -> Option<&Arc<amphi_client::CallTimes>> {
        Some(self.client.call_times())
    }

    fn is_own_thread(&self, tid: u32) -> bool {
        self.names.is_own(tid) && !self.names.is_starting()
    }

    fn end_posts(&self) {
        self.handles.posts.end();
    }

    fn unmounted(&self) {
        self.handles.exports.stop();
        self.handles.posts.end();
        self.names.stop();
        self.client.set_pages(None);
        self.client.set_closes(None);
        self.pages.stop();
        self.handles.clear();
    }

    fn begins(&self) {
        lent::begins(&self.client, self.kernel_view.now());
    }

    fn answered(&self) {
        lent::answered();
        self.names.answered();
    }

    fn negative_ttl(&self) -> Duration {
        self.names.negative_ttl().unwrap_or_else(|| self.ttl())
    }

    fn lookup(&self, caller: &Caller<'_>, parent: Ino, name: &[u8]) -> Result<Entry> {
        if self.names.is_own(caller.tid) {
            return self.own_lookup(caller, parent, name);
        }
        self.lookup_walked(caller, parent, name)
    }

    fn getattr(&self, caller: &Caller<'_>, ino: Ino, _: Option<Handle>) -> Result<AttrReply> {
        if self.names.is_own(caller.tid) {
            return self.own_getattr(caller, ino);
        }
        self.moved.used(caller.tid, caller.node);
        let asked_ns = monotonic_ns();
        let attr = self.wait(caller, self.client.getattr(&Self::stream(caller), ino))?;
        self.tells_size(caller, &attr, asked_ns);
        if caller.by_other_id() {
            return Ok(AttrReply { attr, ttl: Duration::ZERO });
        }
        Ok(self.attributes(attr, lent::since()))
    }

    fn setattr(&self, caller: &Caller<'_>, ino: Ino, set: &SetAttr, handle: Option<Handle>) -> Result<AttrReply> {
        let file = handle.map(|h| self.handles.get(h)).transpose()?;
        if let (Some(handle), Some(size)) = (handle, set.size)
            && self.rollbacks.is_rollback(handle, caller.tid, size)
        {
            let asked_ns = monotonic_ns();
            let attr = self.wait(caller, self.client.getattr(&Self::stream(caller), ino))?;
            return Ok(self.attributes(self.fixes_size(caller, attr, asked_ns)?, lent::since()));
        }
        let changing = self.change(caller, ino);
        let (attr, since) = if set.size.is_some() {
            let changing = changing.shared(&self.kernel_view);
            // The change continues if its answer comes later.
            (self.truncate(caller, ino, set, file.as_ref(), &changing)?, changing.ends())
        } else {
            let asked_ns = monotonic_ns();
            let attr = self.asked(caller, |ctx| self.client.setattr(ctx, ino, *set, file.as_ref()))?;
            (self.fixes_size(caller, attr, asked_ns)?, changing.ends())
        };
        self.client.walk_ended(caller.tid);
        // During a SETATTR the kernel prevents all callers from making or removing names in the directory.
        let ttl = match attr.kind {
            Kind::Dir if caller.by_other_id() => Duration::ZERO,
            Kind::Dir => self.lend(&attr, since),
            _ => self.attr_ttl(&attr, since),
        };
        Ok(AttrReply { attr, ttl })
    }

    fn readlink(&self, caller: &Caller<'_>, ino: Ino) -> Result<Vec<u8>> {
        self.asked(caller, |ctx| self.client.readlink(ctx, ino))
    }

    fn symlink(&self, caller: &Caller<'_>, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.changed_entry(caller, (parent, name), |ctx| self.client.symlink(ctx, parent, name, target))
    }

    fn mknod(&self, caller: &Caller<'_>, parent: Ino, name: &[u8], mode: u32, rdev: u32) -> Result<Entry> {
        self.changed_entry(caller, (parent, name), |ctx| self.client.mknod(ctx, parent, name, mode, rdev))
    }

    fn mkdir(&self, caller: &Caller<'_>, parent: Ino, name: &[u8], mode: u32) -> Result<Entry> {
        let made =
            self.changed_entry(caller, (parent, name), |ctx| self.client.mkdir(ctx, parent, name, perm(mode)))?;
        self.moved.made(made.attr.ino, caller.node, name);
        // The directory is new, so nothing older than this answer can be in the kernel.
        Ok(Entry { attr_ttl: self.lend(&made.attr, lent::since()), ..made })
    }

    fn unlink(&self, caller: &Caller<'_>, parent: Ino, name: &[u8]) -> Result<()> {
        self.changes_name(caller, parent, name);
        self.listings.uses(parent);
        self.changed(caller, &[parent], |ctx| self.client.unlink(ctx, parent, name))
    }

    fn rmdir(&self, caller: &Caller<'_>, parent: Ino, name: &[u8]) -> Result<()> {
        self.changes_name(caller, parent, name);
        self.listings.uses(parent);
        self.changed(caller, &[parent], |ctx| self.client.rmdir(ctx, parent, name))
    }

    fn rename(
        &self,
        caller: &Caller<'_>,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            libc::RENAME_WHITEOUT => RenameMode::Whiteout,
            NEW_WHITEOUT => RenameMode::NewWhiteout,
            _ => return Err(Errno::Inval),
        };
        let (from_node, to_node) = (caller.node, new_parent);
        let (from, to) = ((parent, name), (inode_of(to_node.0), new_name));
        [from, to].into_iter().for_each(|(dir, name)| self.changes_name(caller, dir, name));
        self.changed(caller, &[from.0, to.0], |ctx| self.client.rename(ctx, from, to, mode))?;
        self.moved.renamed((from_node, name), (to_node, new_name), mode == RenameMode::Exchange);
        self.client.walk_ended(caller.tid);
        Ok(())
    }

    fn link(&self, caller: &Caller<'_>, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Entry> {
        self.changes_name(caller, new_parent, new_name);
        self.link_walked(caller, ino, new_parent, new_name)
    }

    fn open(&self, caller: &Caller<'_>, ino: Ino, how: OpenHow) -> Result<OpenReply> {
        let flags = amphi_client::OpenFlags::from_linux(how.flags);
        let truncates = how.has(libc::O_TRUNC);
        let _changing = truncates.then(|| self.change(caller, ino));
        let file = self.asked_as(caller, self.opener(caller), |ctx| self.client.open(ctx, ino, flags));
        if truncates {
            if file.is_err() {
                self.kernel_view.misses_end(ino);
            }
            self.tell_end(ino, 0);
        }
        let file = file?;
        if how.kill_suidgid && truncates {
            self.kill_suidgid(caller, ino)?;
        }
        self.client.walk_ended(caller.tid);
        if truncates {
            self.sizes().empties(caller.tid, ino);
        }
        Ok(self.opened(caller, file))
    }

    fn create(
        &self,
        caller: &Caller<'_>,
        parent: Ino,
        name: &[u8],
        mode: u32,
        how: OpenHow,
    ) -> Result<(Entry, OpenReply)> {
        let asked_ns = monotonic_ns();
        let made = self.create_walked(caller, parent, name, perm(mode), how)?;
        if !made.created && how.kill_suidgid && how.has(libc::O_TRUNC) {
            self.kill_suidgid(caller, made.attr.ino)?;
        }
        if made.created {
            self.changes_name(caller, parent, name);
        }
        let attr = self.fixes_size(caller, made.attr, asked_ns)?;
        Ok((self.entry(attr), self.opened(caller, made.file)))
    }

    fn tmpfile(&self, caller: &Caller<'_>, parent: Ino, mode: u32, how: OpenHow) -> Result<(Entry, OpenReply)> {
        let flags = amphi_client::OpenFlags::from_linux(how.flags);
        let opener = self.opener(caller);
        let again = self.client.repeats_walk(caller.tid);
        let made = self.asked_as(caller, opener, |ctx| self.client.tmpfile(ctx, parent, perm(mode), flags));
        let made = self.in_directories(&[parent], again, made)?;
        self.makes_size(caller, &made.attr);
        Ok((self.entry(made.attr), self.opened(caller, made.file)))
    }

    fn read(&self, caller: &Caller<'_>, _: Ino, how: &ReadHow, sink: &mut ReadSink<'_>) -> Result<()> {
        self.read_file(caller, how, sink)
    }

    fn read_answered(&self, how: &ReadHow) {
        if how.into_page_cache {
            if let Ok(file) = self.handles.get(how.handle) {
                self.client.kept_by_front(&file, how.offset, how.size);
            }
        } else if how.size >= reads::LEND_MIN_BYTES
            && let Ok(file) = self.handles.get(how.handle)
        {
            self.client.warm_next(&file, how.offset, how.size);
        }
    }

    fn read_followed(&self, how: &ReadHow) {
        if !how.into_page_cache
            && self.handles.exports.is_on()
            && let Ok(file) = self.handles.get(how.handle)
        {
            self.client.show(&file, how.offset, how.size);
        }
    }

    fn write(&self, caller: &Caller<'_>, ino: Ino, how: &WriteHow, data: Payload<'_>) -> Result<usize> {
        self.write_file(caller, ino, how, data)
    }

    fn statfs(&self, caller: &Caller<'_>, ino: Ino) -> Result<Statfs> {
        let s = self.wait(caller, self.client.statfs_at(&Self::stream(caller), ino))?;
        Ok(Statfs {
            blocks: s.blocks,
            free: s.blocks_free,
            available: s.blocks_free,
            files: s.inodes,
            files_free: s.inodes_free,
            block_bytes: s.block_size,
            name_max: s.name_max,
        })
    }

    fn flush(&self, caller: &Caller<'_>, ino: Ino, handle: Handle, lock_owner: u64) -> Result<()> {
        self.handles.exports.raise(handle.0);
        self.sizes().has_taken(caller.tid, ino);
        let posted = self.close_posts(caller, ino);
        let unlocked = self.locks_flushed(caller, ino, handle, lock_owner);
        let file = self.handles.get(handle)?;
        posted?;
        self.wait(caller, self.client.flush(&Self::stream(caller), &file)).and(unlocked)
    }

    fn release(&self, _: Ino, handle: Handle) {
        self.release_file(handle);
    }

    fn fsync(&self, caller: &Caller<'_>, _: Ino, handle: Handle, data_only: bool) -> Result<()> {
        let file = self.handles.get(handle)?;
        self.wait(caller, self.client.fsync(&Self::stream(caller), &file, data_only))
    }

    fn opendir(&self, caller: &Caller<'_>, ino: Ino, _: OpenHow) -> Result<OpenReply> {
        Ok(if self.names.is_own(caller.tid) { self.own_opendir() } else { self.open_directory(caller, ino) })
    }

    fn releasedir(&self, ino: Ino, handle: Handle) {
        self.close_directory(ino, handle);
    }

    fn readdir(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        handle: Handle,
        offset: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        self.list_directory(caller, ino, handle, offset, sink)
    }

    fn fsyncdir(&self, caller: &Caller<'_>, ino: Ino, _: Handle, _data_only: bool) -> Result<()> {
        self.wait(caller, self.client.fsync_dir(&Self::stream(caller), ino))
    }

    fn syncfs(&self, caller: &Caller<'_>) -> Result<()> {
        self.wait(caller, self.client.sync_all(&Self::stream(caller)))
    }

    fn setxattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        let mode = match flags as i32 {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::Inval),
        };
        let _changing = self.change(caller, ino);
        self.asked(caller, |ctx| self.client.setxattr(ctx, ino, name, value, mode))
    }

    fn getxattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.asked(caller, |ctx| self.client.getxattr(ctx, ino, name))
    }

    fn listxattr(&self, caller: &Caller<'_>, ino: Ino) -> Result<Vec<u8>> {
        self.asked(caller, |ctx| self.client.listxattr(ctx, ino))
    }

    fn removexattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> Result<()> {
        let ctx = self.ctx(caller);
        // The kernel has checked the caller already, and it sends this request for any writer of the file, who need not
        // own it.
        let ctx = if name == b"security.capability" { Ctx { cred: Cred::root(), ..ctx } } else { ctx };
        let _changing = self.change(caller, ino);
        self.wait(caller, self.client.removexattr(&ctx, ino, name))
    }

    fn fallocate(&self, caller: &Caller<'_>, _: Ino, handle: Handle, offset: u64, len: u64, mode: u32) -> Result<()> {
        let file = self.handles.get(handle)?;
        let mode = Fallocate::from_linux(mode).ok_or(Errno::NotSupported)?;
        let changing = self.change(caller, file.ino()).shared(&self.kernel_view);
        self.kill_suidgid_unless_capable(caller, file.ino())?;
        let pending = self.client.fallocate(&Self::stream(caller), &file, mode, offset, len);
        let (changes, ino, tid) = (self.changes(), file.ino(), caller.tid);
        let extends = matches!(mode, Fallocate::Allocate | Fallocate::ZeroRange { keep_size: false });
        let note = move |done: &Result<()>| {
            changes.note(ino, offset, len, done.map_or(0, |()| len));
            if extends && done.is_ok() {
                changes.extended(ino, tid, offset.saturating_add(len));
            }
        };
        self.wait_change(caller, pending, 0, &changing, note, |later, done| later.answer(done))
    }

    fn lseek(&self, caller: &Caller<'_>, _: Ino, handle: Handle, offset: u64, whence: u32) -> Result<u64> {
        let file = self.handles.get(handle)?;
        let whence = match whence as i32 {
            libc::SEEK_DATA => Whence::Data,
            libc::SEEK_HOLE => Whence::Hole,
            _ => return Err(Errno::Inval),
        };
        let pending = self.client.lseek(&Self::stream(caller), &file, offset, whence);
        self.wait_long(caller, pending, |later, found| later.answer_struct(found.map(|offset| LseekOut { offset })))
    }

    fn keeps_units(&self) -> bool {
        true
    }

    fn keeps_locks(&self) -> bool {
        true
    }

    fn getlk(&self, caller: &Caller<'_>, ino: Ino, how: &LockHow) -> Result<Option<LockHow>> {
        self.get_lock(caller, ino, how)
    }

    fn setlk(&self, caller: &Caller<'_>, ino: Ino, how: &LockHow) -> Result<()> {
        self.set_lock(caller, ino, how)
    }

    fn setlkw(&self, caller: &Caller<'_>, ino: Ino, how: &LockHow, later: Later) {
        self.wait_lock(caller, ino, how, later);
    }

    fn ioctl(&self, caller: &Caller<'_>, ino: Ino, call: &IoctlCall<'_>) -> Result<IoctlReply> {
        match file_flags::Command::of(call)? {
            Some(command) => self.file_flags(caller, ino, command),
            None => self.control(caller, call),
        }
    }

    fn ioctl_waits(&self, call: &IoctlCall<'_>) -> bool {
        Self::control_waits(call)
    }

    fn ioctl_later(&self, caller: &Caller<'_>, _: Ino, call: &IoctlCall<'_>, later: Later) {
        self.control_later(caller, call, later);
    }

    fn copy_file_range(&self, caller: &Caller<'_>, how: &CopyHow) -> Result<u64> {
        let (from, to) = (self.handles.get(how.from_handle)?, self.handles.get(how.to_handle)?);
        self.kill_suidgid_unless_capable(caller, to.ino())?;
        let (from, to) = ((&from, how.from_offset), (&to, how.to_offset));
        let len = how.len.min(COPY_MAX_BYTES);
        let (ino, offset) = (to.0.ino(), to.1);
        let changing = self.change(caller, ino).shared(&self.kernel_view);
        let pending = self.client.copy_file_range(&Self::stream(caller), from, to, len);
        let (changes, tid) = (self.changes(), caller.tid);
        let note = move |copied: &Result<usize>| {
            // A short copy means that the source ended there, so nothing had to be copied behind that.
            let reached = copied.as_ref().map_or(0, |copied| *copied as u64);
            changes.note(ino, offset, if copied.is_ok() { reached } else { len }, reached);
            changes.extended(ino, tid, offset + reached);
        };
        let copied = self.wait_change(caller, pending, 0, &changing, note, |later, copied| {
            later.answer_struct(copied.map(|copied| WriteOut { size: copied as u32, padding: 0 }));
        });
        copied.map(|copied| copied as u64)
    }
}

fn perm(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}
