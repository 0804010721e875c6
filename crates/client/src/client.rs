//! `Client`: the public interface, one method for each operation.
//!
//! Owns: nothing but the shape of the interface; each method starts the operation of the same name in `ops`.

mod file_locks;
mod posts;

use crate::api::*;
use crate::coherence::directories;
use crate::coherence::lent_names;
use crate::coherence::shards;
use crate::coherence::sharing::{self, Lending, Rule};
use crate::coherence::tokens::{self, Found};
use crate::conn::pending::{Interrupt, Pending};
use crate::inode::OpenFile;
use crate::inode::open_file::Created;
use crate::io::IoHalf;
use crate::locks::ahead::{self, Ahead};
use crate::locks::group_lock;
use crate::mount::Mount;
use crate::ops;
use crate::ops::read::exports;
use crate::ops::walks;
use crate::ops::write_behind;
use crate::prefetch::small_files;
use crate::telemetry::call_times::CallTimes;
use crate::telemetry::record::Recorder;
use crate::telemetry::stats::Count;
use crate::telemetry::tunables::{TABLE, Tunable, Tunables};
use amphi_dlm::Mode;
use amphi_env::Buf;
use amphi_pagecache::Dirty;
use amphi_pagecache::Source;
use amphi_pagecache::{Loans, Segments};
use amphi_shm::export::Export;
use amphi_types::tunable::Row;
use amphi_types::{Attr, ByteRange, Cred, Errno, FileFlags, Ino, Kind, Name, Result, SetAttr};
use amphi_wire::{ReadAdvice, RenameMode, XattrMode};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A mount's client: cheap to clone, used by any thread.
///
/// Operations return a [`Pending`]: wait for it with a thread or await it. Names are bytes; permissions are checked by
/// the server with the caller's credentials.
#[derive(Clone)]
pub struct Client {
    pub(crate) mount: Arc<Mount>,
}

impl Client {
    /// A client and the half that does its I/O. Operations wait until [`IoHalf::run`] has connected.
    pub fn new(config: ClientConfig) -> (Client, IoHalf) {
        let mount = Arc::new(Mount::new(config));
        (Client { mount: mount.clone() }, IoHalf::new(mount))
    }

    /// Checks `name = value` without a client: for command lines.
    ///
    /// Errors: a sentence about the name or the value.
    pub fn check_tunable(pattern: &str, value: &str) -> std::result::Result<(), String> {
        Tunables::new().set(pattern, value).map(|_| ())
    }

    /// The tunables of mounts; those of servers are in that crate.
    pub fn tunables() -> &'static [Row] {
        TABLE
    }

    /// Returns how many bytes of memory should be touched before the cache uses them (`cache.populate_bytes`). Returns
    /// `None` when the client has ended. For `env::real::keep_populated`.
    pub fn memory_ahead(&self) -> impl Fn() -> Option<usize> + Send + 'static {
        let mount = Arc::downgrade(&self.mount);
        move || {
            let mount = mount.upgrade().filter(|mount| !mount.life.stopped.load(Ordering::Acquire))?;
            if mount.policy.group_short.load(Ordering::Relaxed) {
                return Some(0);
            }
            mount.policy.look_at_memory();
            let mut bytes = mount.first_cache_bytes();
            if mount.policy.growth.is_dear() {
                // The cache reuses its memory, so only memory that it may take in addition is touched ahead.
                bytes = bytes.min(mount.cache_bytes().saturating_sub(mount.cache.used_bytes()));
            }
            Some(usize::try_from(bytes).unwrap_or(usize::MAX))
        }
    }

    /// Writes everything back, says goodbye and ends [`IoHalf::run`]. Further operations fail with `NotConnected`.
    pub fn shutdown(&self) {
        self.mount.life.stopping.store(true, Ordering::Release);
        self.mount.queue.waker.wake();
    }

    /// The caching mode in force, which a front end notes before it sends a request whose answer it may cache.
    pub fn rule(&self) -> Rule {
        sharing::rule_for_front(&self.mount)
    }

    /// The timeout that a front end may give to answers to requests that it sent under `rule`. The result is `None`
    /// unless this mount has been in sole mode all the time since. The result has to be dropped when the answer has
    /// been given.
    pub fn lend(&self, rule: Rule) -> Option<Lending> {
        sharing::lend(&self.mount, rule)
    }

    /// In shared mode: the timeout for these attributes, which the front end is about to give as an answer. The front
    /// end is informed before they change (`KernelPages::drop_attributes`).
    pub fn lend_attributes(&self, attr: &Attr) -> Duration {
        tokens::lend_attributes(&self.mount, attr)
    }

    /// The export of an open file, in which programs on this machine read cached bytes of it; `make` makes one for a
    /// length in bytes. Returns `None` if reads of this open file have to be system calls. From now on `show` fills the
    /// export.
    pub fn export(&self, file: &OpenFile, make: impl FnOnce(u64) -> Option<Arc<Export>>) -> Option<Arc<Export>> {
        exports::export(&self.mount, file, make)
    }

    /// The export of a file was given up, so this mount drops its part of the export's memory.
    pub fn unexport(&self, ino: Ino) {
        exports::unexport(&self.mount, ino);
    }

    /// A read that came as a system call is about to be served: the program may have read the export up to there.
    pub fn passed(&self, file: &OpenFile, offset: u64) {
        exports::passed(&self.mount, file, offset);
    }

    /// A read of `len` bytes that came as a system call was answered: copies the following bytes into the export, if
    /// there is one.
    pub fn show(&self, file: &OpenFile, offset: u64, len: usize) {
        exports::show(&self.mount, file, offset, len as u64);
    }

    /// The time until which programs may use exports, by the clock that also runs during suspend. 0 means that they may
    /// not use them any more.
    pub fn exports_end_ns(&self) -> u64 {
        exports::lease_end_ns(&self.mount)
    }

    /// Returns how much memory exports may take.
    pub fn exports_max_bytes(&self) -> u64 {
        self.mount.tunables.get(Tunable::SharedBytes)
    }

    /// Returns whether a front end that is able to do so should cache names by walks of its own (`known_name`,
    /// `lend_name`).
    pub fn lends_names(&self) -> bool {
        self.mount.tunables.get(Tunable::LendNames) != 0 && !self.is_alone()
    }

    /// The answer to a front end's own lookup thread about a name: an inode with its attributes, or `NoEnt`. The answer
    /// uses only what is cached under tokens, so that the call never waits; it is `None` if that is not sufficient.
    pub fn known_name(&self, dir: Ino, name: &[u8]) -> Option<Result<Attr>> {
        let name = Name::new(name.to_vec()).ok()?;
        let known = lent_names::known(&self.mount, dir, &name)?;
        self.mount.stats.count(Count::NamesAnswered);
        Some(known)
    }

    /// In shared mode: the timeout for a name, which the front end is about to give as an answer to its own lookup
    /// thread. When the name changes, the front end is called (`KernelPages::take_names`), and the change waits for it.
    pub fn lend_name(&self, lent: &LentName) -> Duration {
        lent_names::lend(&self.mount, lent)
    }

    /// Returns whether a front end has this name.
    pub fn is_name_lent(&self, dir: Ino, name: &[u8], shows: NameShows) -> bool {
        self.mount.coherence.tokens.names.is_any_noted()
            && Name::new(name.to_vec()).is_ok_and(|name| lent_names::is_lent(&self.mount, dir, &name, shows))
    }

    /// The number of the timeout under which a front end may cache that a name does not exist. A thread that looks the
    /// name up has no running timeout for it at that moment.
    pub fn absent_loan(&self, dir: Ino, name: &[u8]) -> Option<u64> {
        if !self.mount.coherence.tokens.names.is_any_noted() {
            return None;
        }
        lent_names::absent(&self.mount, dir, &Name::new(name.to_vec()).ok()?)
    }

    /// The front end has shown that nothing is cached under that timeout any more, so it need not invalidate the name.
    pub fn absent_loan_is_over(&self, dir: Ino, name: &[u8], loan: u64) {
        if let Ok(name) = Name::new(name.to_vec()) {
            lent_names::is_over(&self.mount, dir, &name, loan);
        }
    }

    /// Names that a front end keeps.
    pub fn lent_names(&self) -> Vec<LentName> {
        lent_names::all(&self.mount)
    }

    /// Attributes of an inode that are known under tokens; sends nothing.
    pub fn known_attributes(&self, ino: Ino) -> Option<Attr> {
        tokens::attr(&self.mount, ino).or_else(|| shards::known(&self.mount, ino))
    }

    /// Returns whether the names of a directory are known to lie in shards.
    pub fn has_shards(&self, dir: Ino) -> bool {
        self.mount.coherence.shards.has(dir)
    }

    /// Counts a look-up that the kernel has requested.
    pub fn count_lookup(&self) {
        self.mount.stats.count(Count::LookupKernel);
    }

    /// For how long a front end may use a listing that it read when the directory had these attributes. The time is
    /// zero unless the directory still has the same attributes. In sole mode, the time is that of the attributes in the
    /// entries.
    pub fn lend_listing(&self, attr: &Attr) -> Duration {
        match directories::attr(&self.mount, attr.ino) {
            Some(now) if now == *attr => self.mount.cluster.token_life(),
            Some(_) => Duration::ZERO,
            None => tokens::lend_attributes(&self.mount, attr),
        }
    }

    /// Returns whether attributes of a directory in an answer to a request under `rule` may be cached. They may not be
    /// cached if any directory was changed meanwhile.
    pub fn lends_directories(&self, rule: Rule) -> bool {
        sharing::knows_directories(&self.mount, rule)
    }

    /// The place where a front end counts how long its calls took.
    pub fn call_times(&self) -> &Arc<CallTimes> {
        &self.mount.stats.calls
    }

    /// The recordings of this mount.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.mount.panel.recorder
    }

    /// Variables of an environment that name a job ([`JobName::find`](crate::JobName::find)).
    pub fn job_variables(&self) -> &[String] {
        &self.mount.jobs.variables
    }

    /// Returns whether this mount is the only one.
    pub fn is_alone(&self) -> bool {
        self.mount.coherence.sharing.is_alone()
    }

    /// Returns whether no other mount has existed since this one began, so that nobody else has changed anything.
    pub fn has_always_been_alone(&self) -> bool {
        self.mount.coherence.sharing.has_always_been_alone()
    }

    /// Sets the front end that caches file data, and drops it when another mount wants to write it; `None` removes it.
    pub fn set_pages(&self, pages: Option<Arc<dyn KernelPages>>) {
        self.mount.coherence.sharing.set_pages(pages);
    }

    /// Sets the front end that reports closes before their locks are released; `None` removes it.
    pub fn set_closes(&self, closes: Option<Arc<dyn Closes>>) {
        self.mount.coherence.file_locks.set_closes(closes);
    }

    /// Decides who serves the reads of a file that `ctx` has just opened, and which pages a front end may keep. This
    /// has to be called once for each open file, before its first read.
    pub fn front_cache(&self, ctx: &Ctx, open: &OpenFile) -> ops::front::FrontCache {
        ops::front::front_cache(&self.mount, ctx, open)
    }

    /// Called when a read that filled pages of a front end was answered. If the front end serves the reads of the file,
    /// the cache need not keep the bytes as well.
    pub fn kept_by_front(&self, open: &OpenFile, offset: u64, len: usize) {
        ops::front::kept_by_front(&self.mount, open, ByteRange::at(offset, len as u64));
    }

    /// Returns whether [`IoHalf::run`] has ended.
    pub fn is_stopped(&self) -> bool {
        self.mount.life.stopped.load(Ordering::Acquire)
    }

    /// Runs `task` on the thread of the I/O half: operations that it awaits cost no hand-over between threads. The task
    /// must not block. The task is dropped if the client has stopped.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.mount.spawn(task);
    }

    fn start<T: Send + 'static>(&self, run: impl Future<Output = Result<T>> + Send + 'static) -> Pending<T> {
        Pending::start(&self.mount, run)
    }
}

/// Path walks of a front end that repeats them once when an inode has gone, as the kernel does after ESTALE (see
/// `walks`).
impl Client {
    /// The operation of a thread ([`Ctx::tid`]) was answered with `Stale`, so the thread will walk its path again. From
    /// now on, every file that the thread looks up is kept open until the operation has ended.
    pub fn walk_failed(&self, thread: u32) {
        self.mount.coherence.walks.failed(thread, None, self.mount.clock.now_ns());
    }

    /// Works as `walk_failed`, for an operation on `at` that may be answered with `Stale` only once in one call of a
    /// program.
    pub fn walk_failed_at(&self, thread: u32, at: Ino) {
        self.mount.coherence.walks.failed(thread, Some(at), self.mount.clock.now_ns());
    }

    /// Returns whether a thread walks a path again since an operation on `at` failed (`walk_failed_at`).
    pub fn repeats_walk_at(&self, thread: u32, at: Ino) -> bool {
        self.mount.coherence.walks.repeats_at(thread, at)
    }

    /// Returns whether a thread walks a path again.
    #[inline]
    pub fn repeats_walk(&self, thread: u32) -> bool {
        self.mount.coherence.walks.repeats(thread)
    }

    /// Called when the operation for which a thread may have walked again has succeeded.
    #[inline]
    pub fn walk_ended(&self, thread: u32) {
        self.mount.coherence.walks.ended(thread);
    }

    /// Returns whether an inode was recently shown as a directory. If its server does not know it any more, it was
    /// removed.
    pub fn has_shown_directory(&self, ino: Ino) -> bool {
        self.mount.coherence.unlinked.kind(ino) == Ok(Kind::Dir)
    }

    /// The directory and the name under which a repeated walk of a thread was shown an inode.
    pub fn walked(&self, thread: u32, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        self.mount.coherence.walks.place(thread, ino)
    }
}

/// Names.
impl Client {
    /// Attributes of `name` in `dir`; `.` and `..` are understood.
    pub fn lookup(&self, ctx: &Ctx, dir: Ino, name: &[u8]) -> Pending<Attr> {
        if self.mount.coherence.walks.repeats(ctx.tid) {
            return self.start(walks::lookup(self.mount.clone(), ctx.clone(), dir, name.to_vec()));
        }
        let at = match self.has_shards(dir) {
            false => dir,
            true => Name::new(name.to_vec()).map_or(dir, |name| self.mount.coherence.shards.place(dir, &name)),
        };
        if let Some(Found::Answer(result)) = tokens::find(&self.mount, &ctx.cred, at, name) {
            return Pending::ready(result);
        }
        if let Some(attr) = small_files::find(&self.mount, &ctx.cred, at, name) {
            return Pending::ready(Ok(attr));
        }
        self.start(ops::name::lookup(self.mount.clone(), ctx.clone(), dir, name.to_vec()))
    }

    /// Attributes of an inode.
    pub fn getattr(&self, ctx: &Ctx, ino: Ino) -> Pending<Attr> {
        if let Some(attr) = self.known_attributes(ino) {
            return Pending::ready(Ok(attr));
        }
        self.start(ops::attr::getattr(self.mount.clone(), ctx.clone(), ino))
    }

    /// The root of the mount: that of the file system, or the top of the tree to which the client's key is bound. The
    /// root is known as soon as any server has answered.
    pub fn root(&self) -> Ino {
        self.mount.cluster.root()
    }

    /// Attributes of the root of the mount. Errors: `Stale` if the tree to which the client's key is bound is gone.
    pub fn root_attr(&self, ctx: &Ctx) -> Pending<Attr> {
        self.start(ops::attr::of_root(self.mount.clone(), ctx.clone()))
    }

    /// The project to which an inode is charged, 0: none. Errors: `Stale`.
    pub fn project(&self, ctx: &Ctx, ino: Ino) -> Pending<u32> {
        let (mount, ctx) = (self.mount.clone(), ctx.clone());
        self.start(async move { ops::xattr::quota::charged_project(&mount, &ctx, ino).await })
    }

    /// The flags that `chattr` has set. Errors: `Stale`.
    pub fn file_flags(&self, ctx: &Ctx, ino: Ino) -> Pending<FileFlags> {
        self.start(ops::attr::file_flags(self.mount.clone(), ctx.clone(), ino))
    }

    /// Changes attributes. A new size also cuts the cached bytes. `file` is the open file if the caller has one.
    pub fn setattr(&self, ctx: &Ctx, ino: Ino, set: SetAttr, file: Option<&Arc<OpenFile>>) -> Pending<Attr> {
        self.start(ops::attr::setattr(self.mount.clone(), ctx.clone(), ino, set, file.cloned()))
    }

    /// As `setattr`; if the request is refused, it is sent once more with the credentials that `again` returns.
    pub fn setattr_again(
        &self,
        ctx: &Ctx,
        ino: Ino,
        set: SetAttr,
        file: Option<&Arc<OpenFile>>,
        again: impl FnOnce() -> Option<Cred> + Send + 'static,
    ) -> Pending<Attr> {
        let (mount, ctx, file) = (self.mount.clone(), ctx.clone(), file.cloned());
        self.start(async move {
            let refused = match ops::attr::setattr(mount.clone(), ctx.clone(), ino, set, file.clone()).await {
                Err(e @ (Errno::Access | Errno::Perm)) => e,
                done => return done,
            };
            let cred = again().ok_or(refused)?;
            ops::attr::setattr(mount, Ctx { cred, ..ctx }, ino, set, file).await
        })
    }

    /// Makes a fifo, socket, device node or regular file: `mode` with the kind's bits, umask applied.
    pub fn mknod(&self, ctx: &Ctx, dir: Ino, name: &[u8], mode: u32, rdev: u32) -> Pending<Attr> {
        self.start(ops::name::mknod(self.mount.clone(), ctx.clone(), dir, name.to_vec(), mode, rdev))
    }

    /// Makes a directory.
    pub fn mkdir(&self, ctx: &Ctx, dir: Ino, name: &[u8], perm: u16) -> Pending<Attr> {
        self.start(ops::name::mkdir(self.mount.clone(), ctx.clone(), dir, name.to_vec(), perm))
    }

    /// Makes a symbolic link to `to`.
    pub fn symlink(&self, ctx: &Ctx, dir: Ino, name: &[u8], to: &[u8]) -> Pending<Attr> {
        self.start(ops::name::symlink(self.mount.clone(), ctx.clone(), dir, name.to_vec(), to.to_vec()))
    }

    /// Makes a further name for `ino`.
    pub fn link(&self, ctx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Pending<Attr> {
        self.start(ops::name::link(self.mount.clone(), ctx.clone(), ino, dir, name.to_vec()))
    }

    /// Removes a name that is no directory.
    pub fn unlink(&self, ctx: &Ctx, dir: Ino, name: &[u8]) -> Pending<()> {
        self.start(ops::name::unlink(self.mount.clone(), ctx.clone(), dir, name.to_vec()))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, ctx: &Ctx, dir: Ino, name: &[u8]) -> Pending<()> {
        self.start(ops::name::rmdir(self.mount.clone(), ctx.clone(), dir, name.to_vec()))
    }

    /// Renames.
    pub fn rename(&self, ctx: &Ctx, from: (Ino, &[u8]), to: (Ino, &[u8]), mode: RenameMode) -> Pending<()> {
        let (from, to) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        self.start(ops::name::rename(self.mount.clone(), ctx.clone(), from, to, mode))
    }

    /// Target of a symbolic link.
    pub fn readlink(&self, ctx: &Ctx, ino: Ino) -> Pending<Vec<u8>> {
        self.start(ops::name::readlink(self.mount.clone(), ctx.clone(), ino))
    }

    /// Up to `max` entries after `cookie` (0 starts), with `.` and `..`; with `plus`, entries whose attributes are
    /// cached have them.
    pub fn readdir(&self, ctx: &Ctx, dir: Ino, cookie: u64, max: u32, plus: bool) -> Pending<Listing> {
        self.start(ops::readdir::readdir(self.mount.clone(), ctx.clone(), dir, cookie, max, plus))
    }

    /// Space of all targets together.
    pub fn statfs(&self, ctx: &Ctx) -> Pending<StatFs> {
        self.start(ops::statfs::statfs(self.mount.clone(), ctx.clone()))
    }

    /// Space for new data below an inode: that of the inode's tree, if the tree has a limit.
    pub fn statfs_at(&self, ctx: &Ctx, ino: Ino) -> Pending<StatFs> {
        self.start(ops::statfs::statfs_at(self.mount.clone(), ctx.clone(), ino))
    }

    /// Value of an extended attribute; see [`crate::api`] for the virtual ones.
    pub fn getxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Pending<Vec<u8>> {
        self.start(ops::xattr::get(self.mount.clone(), ctx.clone(), ino, name.to_vec()))
    }

    /// Names of extended attributes, each followed by NUL.
    pub fn listxattr(&self, ctx: &Ctx, ino: Ino) -> Pending<Vec<u8>> {
        self.start(ops::xattr::list(self.mount.clone(), ctx.clone(), ino))
    }

    /// Sets an extended attribute.
    pub fn setxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Pending<()> {
        self.start(ops::xattr::set(self.mount.clone(), ctx.clone(), ino, name.to_vec(), value.to_vec(), mode))
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Pending<()> {
        self.start(ops::xattr::remove(self.mount.clone(), ctx.clone(), ino, name.to_vec()))
    }
}

/// Files.
impl Client {
    /// Creates and opens a file; one that exists is opened unless `flags.exclusive`. `perm` with umask applied.
    pub fn create(&self, ctx: &Ctx, dir: Ino, name: &[u8], perm: u16, flags: OpenFlags) -> Pending<Created> {
        if self.repeats_walk(ctx.tid) {
            return self.start(walks::create(self.mount.clone(), ctx.clone(), dir, name.to_vec(), perm, flags));
        }
        self.start(ops::open::create(self.mount.clone(), ctx.clone(), dir, name.to_vec(), perm, flags))
    }

    /// Creates a file without a name, with the attributes that a file in `dir` would get, and opens it.
    pub fn tmpfile(&self, ctx: &Ctx, dir: Ino, perm: u16, flags: OpenFlags) -> Pending<Created> {
        self.start(ops::open::tmpfile(self.mount.clone(), ctx.clone(), dir, perm, flags))
    }

    /// Opens a file. The file is closed when the last reference is dropped; dirty bytes are written later.
    pub fn open(&self, ctx: &Ctx, ino: Ino, flags: OpenFlags) -> Pending<Arc<OpenFile>> {
        if let Some(file) = small_files::take(&self.mount, ctx, ino, flags) {
            return Pending::ready(Ok(file));
        }
        self.start(ops::open::open(self.mount.clone(), ctx.clone(), ino, flags))
    }

    /// Reads from the cache without waiting or allocating: `None` if that is not possible. Clipped at the end of file.
    pub fn try_read(&self, ctx: &Ctx, file: &OpenFile, offset: u64, into: &mut [u8], hints: Hints) -> Option<usize> {
        ops::read::try_read(&self.mount, ctx, file, offset, into, hints)
    }

    /// As `try_read` of up to `len` bytes, but returns the cache's memory instead of a copy: its content does not
    /// change, and a write to these bytes meanwhile costs a copy of 64 KiB.
    pub fn try_lend(&self, ctx: &Ctx, file: &OpenFile, offset: u64, len: usize, hints: Hints) -> Option<Loans> {
        ops::read::try_lend(&self.mount, ctx, file, offset, len, hints)
    }

    /// After a read of `len` bytes at `offset`: if it continued where the previous one had ended, and the following
    /// bytes are in the page cache, loads as many into the processor's cache, for a read on this thread or a
    /// neighbouring one. This takes 0.1 us for each KiB, so only a thread that would otherwise be idle while the
    /// program runs should call it. It has an effect only for reads that are followed by this call.
    pub fn warm_next(&self, file: &OpenFile, offset: u64, len: usize) {
        ops::read::warm_next(&self.mount, file, offset, len as u64);
    }

    /// Reads `len` bytes, fewer at the end of the file.
    pub fn read(&self, ctx: &Ctx, file: &Arc<OpenFile>, offset: u64, len: usize, hints: Hints) -> Pending<Segments> {
        self.start(ops::read::read(self.mount.clone(), ctx.clone(), file.clone(), offset, len, hints))
    }

    /// Writes into the cache without waiting: `None` if that is not possible (then nothing was written).
    pub fn try_write(&self, ctx: &Ctx, file: &OpenFile, offset: u64, bytes: &[u8], hints: Hints) -> Option<usize> {
        ops::write::try_write(&self.mount, ctx, file, offset, Source::Copied(bytes), hints)
    }

    /// As `try_write` of all bytes of `data`. If they are exactly one unit of the cache (`UNIT_BYTES` at a multiple of
    /// that, in memory of that size), the cache keeps their memory and leaves other memory of that size there, of
    /// arbitrary content. The same holds for several units, 1 MiB at most, but then no memory is left in exchange.
    pub fn try_write_buf(
        &self,
        ctx: &Ctx,
        file: &OpenFile,
        offset: u64,
        data: &mut Buf,
        hints: Hints,
    ) -> Option<usize> {
        let source = ops::write::source(offset, data);
        ops::write::try_write(&self.mount, ctx, file, offset, source, hints)
    }

    /// A front end could not determine whether a write went to the end of the file (`WriteTo::OffsetAtEnd`): requests
    /// the end for the next writes, without waiting, once a second at most.
    pub fn learn_end(&self, file: &OpenFile) {
        ops::attr::learn_end(&self.mount, &file.file);
    }

    /// Writes all of `data`, whose memory the cache may keep. The offset is ignored for files opened to append. `data`
    /// is cheapest if its first byte lies `offset % 4096` bytes after an aligned address.
    ///
    /// Errors: a number of bytes shorter than `data` says that only these, from the start, were written.
    pub fn write(&self, ctx: &Ctx, file: &Arc<OpenFile>, offset: u64, data: Buf, hints: Hints) -> Pending<usize> {
        self.start(ops::write::write(self.mount.clone(), ctx.clone(), file.clone(), offset, data, hints))
    }

    /// The result of `close`. If the open file can write, the error is the latest write-back failure that was not
    /// reported to it. Waits for large writes that have returned and are under way, not for dirty bytes in the cache.
    /// Files that are open only for reading do not report failures, so that callers that write or sync get them.
    pub fn flush(&self, _ctx: &Ctx, file: &Arc<OpenFile>) -> Pending<()> {
        let file = file.clone();
        self.start(async move {
            if !file.flags.write {
                return Ok(());
            }
            write_behind::drained(&file.file).await;
            file.tell_failures().await
        })
    }

    /// Ends an open file without waiting. Dropping the last reference does the same.
    pub fn release(&self, file: Arc<OpenFile>) {
        drop(file);
    }

    /// Writes the file's dirty bytes and waits until they (and with `datasync == false` all attributes) are on stable
    /// storage.
    pub fn fsync(&self, ctx: &Ctx, file: &Arc<OpenFile>, datasync: bool) -> Pending<()> {
        self.start(ops::sync::fsync(self.mount.clone(), ctx.clone(), file.clone(), datasync))
    }

    /// Makes a directory's entries stable.
    pub fn fsync_dir(&self, ctx: &Ctx, dir: Ino) -> Pending<()> {
        self.start(ops::sync::fsync_dir(self.mount.clone(), ctx.clone(), dir))
    }

    /// Writes everything dirty and makes everything stable (syncfs).
    pub fn sync_all(&self, ctx: &Ctx) -> Pending<()> {
        self.start(ops::sync::sync_all(self.mount.clone(), ctx.clone()))
    }

    /// Reserves or frees storage.
    pub fn fallocate(&self, ctx: &Ctx, file: &Arc<OpenFile>, mode: Fallocate, offset: u64, len: u64) -> Pending<()> {
        self.start(ops::fallocate::fallocate(self.mount.clone(), ctx.clone(), file.clone(), mode, offset, len))
    }

    /// Next data or hole at or after `offset`; the end of the file counts as a hole.
    ///
    /// Errors: `NxIo` at or beyond the end, or if there is no more data.
    pub fn lseek(&self, ctx: &Ctx, file: &Arc<OpenFile>, offset: u64, whence: Whence) -> Pending<u64> {
        if let Some(found) = ops::seek::try_lseek(&self.mount, file, offset, whence) {
            return Pending::ready(found);
        }
        self.start(ops::seek::lseek(self.mount.clone(), ctx.clone(), file.clone(), offset, whence))
    }

    /// Lock-ahead: requests locks on `range`, for writing or reading, and does not wait. The locks are granted exactly
    /// as requested, or refused if another lock conflicts.
    ///
    /// Errors: `BadFd` if the file is not open for this mode; `Inval` if the range is empty; `Busy` if too many
    /// requests are under way.
    pub fn lock_ahead(&self, file: &OpenFile, range: ByteRange, write: bool) -> Result<Ahead> {
        if !(if write { file.flags.write } else { file.flags.read }) {
            return Err(Errno::BadFd);
        }
        ahead::ahead(&self.mount, file, if write { Mode::Write } else { Mode::Read }, range)
    }

    /// Works as `lock_ahead`, and waits for the servers' answers, which wait for no other mount. The result is `Asked`
    /// if one of the targets has refused its request. Errors are those of `lock_ahead`.
    pub fn lock_ahead_answered(&self, file: &Arc<OpenFile>, range: ByteRange, write: bool) -> Pending<Ahead> {
        if !(if write { file.flags.write } else { file.flags.read }) {
            return Pending::ready(Err(Errno::BadFd));
        }
        let mode = if write { Mode::Write } else { Mode::Read };
        self.start(ahead::answered(self.mount.clone(), file.clone(), mode, range))
    }

    /// A program says how it uses the file: `Sequential`, `Random` and `Once` apply to all reads of the file on this
    /// mount until the program closes the file, here and in the servers' read caches. `WillNeed` loads the range into
    /// the cache, up to the read-ahead of one stream; `DontNeed` drops clean cached bytes of it.
    ///
    /// Errors: `BadFd` if the file is not open for reading.
    pub fn advise(&self, file: &OpenFile, range: ByteRange, advice: FileAdvice) -> Result<()> {
        if !file.flags.read {
            return Err(Errno::BadFd);
        }
        match advice {
            FileAdvice::Normal => file.advise_reads(ReadAdvice::Normal),
            FileAdvice::Random => file.advise_reads(ReadAdvice::Random),
            FileAdvice::Sequential => file.advise_reads(ReadAdvice::Sequential),
            FileAdvice::Once => file.advise_reads(ReadAdvice::Once),
            FileAdvice::WillNeed => ops::read::will_need(&self.mount, file, range),
            FileAdvice::DontNeed => drop(self.mount.cache.forget(&file.file, range, Dirty::Keep)),
        }
        Ok(())
    }

    /// Makes the open file a member of a group: until all members have left, only they do I/O on the file, and they
    /// coordinate it themselves. `wait`: whether to wait for other groups that hold the file.
    ///
    /// Errors: `Inval` for group 0, or if the open file is a member already; `Again` if it may not wait; `Intr` once
    /// `interrupt` has fired.
    pub fn group_lock(&self, file: &Arc<OpenFile>, group: u64, wait: bool, interrupt: Arc<Interrupt>) -> Pending<()> {
        self.start(group_lock::lock(self.mount.clone(), file.clone(), group, wait, interrupt))
    }

    /// The open file leaves its group. If it is the last of this mount, everything is written back before others
    /// continue.
    ///
    /// Errors: `Inval` if the open file is not a member; `Io` if the group was lost; failures of write-back.
    pub fn group_unlock(&self, file: &Arc<OpenFile>) -> Pending<()> {
        self.start(group_lock::unlock(self.mount.clone(), file.clone()))
    }

    /// Returns whether another open file waits for the end of the group that the open file is a member of, on this
    /// mount or another one.
    ///
    /// Errors: `Inval` if the open file is not a member; `Io` if the group was lost.
    pub fn group_wanted(&self, file: &Arc<OpenFile>) -> Pending<bool> {
        self.start(group_lock::wanted(self.mount.clone(), file.clone()))
    }

    /// Copies `len` bytes between files of this mount, fewer at the end of the source.
    ///
    /// Errors: `Inval` if both ranges overlap in one file.
    pub fn copy_file_range(
        &self,
        ctx: &Ctx,
        from: (&Arc<OpenFile>, u64),
        to: (&Arc<OpenFile>, u64),
        len: u64,
    ) -> Pending<usize> {
        let (from, to) = ((from.0.clone(), from.1), (to.0.clone(), to.1));
        self.start(ops::copy::copy_range(self.mount.clone(), ctx.clone(), from, to, len))
    }
}
