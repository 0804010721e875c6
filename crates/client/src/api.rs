//! Types of the public interface: configuration, callers, flags, hints, results.
//!
//! Owns: plain data that front ends pass in and get back. Does not own: behaviour (`ops`).

use amphi_types::{Attr, ByteRange, Cred, Ino, IoMode, Kind, Timespec};
use amphi_wire::slots::LINKS_MAX;
use std::sync::Arc;

use crate::policy::readers::Pieces;
use crate::telemetry::jobs::{JOB_VARIABLES, JobName};

/// Time for the half that has no environment. It is the clock that the environment of the I/O half also uses, so that
/// the simulator controls the time of both halves.
pub trait Clock: Send + Sync + 'static {
    /// Monotonic nanoseconds.
    fn now_ns(&self) -> u64;
    /// Nanoseconds of a clock that also runs while the machine sleeps. This clock is for rights that expire at the
    /// server after some time and must not be used longer here. The simulator's machines do not sleep.
    fn boot_ns(&self) -> u64 {
        self.now_ns()
    }
    /// Wall-clock time for time stamps.
    fn wall(&self) -> Timespec;
}

/// Reads a small text file such as `/proc/meminfo`; `None` if it cannot be read.
pub type ReadText = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// A program's advice about a range of a file, or all of it, as with `posix_fadvise`, which the kernel does not pass
/// on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAdvice {
    /// The program withdraws its earlier advice.
    Normal,
    /// The program reads at random.
    Random,
    /// The program reads in sequence.
    Sequential,
    /// The program will read the range soon.
    WillNeed,
    /// The program does not need the range any more.
    DontNeed,
    /// The program reads everything once.
    Once,
}

/// How a client is made.
#[derive(Clone)]
pub struct ClientConfig {
    /// Bytes of the page cache; `None` takes 1/4 of the memory, at most 3/8 of the memory group's limit.
    pub cache_bytes: Option<u64>,
    /// Tunables to set at start: name or pattern, value.
    pub tunables: Vec<(String, String)>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Reads `/proc/meminfo` and the memory group's files; without it there is no memory limit but `cache_bytes`.
    pub read_text: Option<ReadText>,
    /// The user who, besides root, may use the hidden control attributes: the owner of the mount process.
    pub owner_uid: u32,
    /// The job for opens whose [`Ctx`] names none. A library counts everything that it does for one job (`in_job_of`).
    pub job: Option<JobName>,
    /// Environment variables that may name a job: the first one that is set is used. If the list is empty, there are no
    /// jobs.
    pub job_variables: Vec<String>,
    /// Writes to all files are treated as writes to files of commit consistency.
    pub commit: bool,
    /// At most this many connections to a server, at least 1. For a server with several workers, one connection for
    /// each worker is best.
    pub links_max: u16,
}

impl ClientConfig {
    /// A configuration with defaults.
    pub fn new(clock: Arc<dyn Clock>) -> ClientConfig {
        ClientConfig {
            cache_bytes: None,
            tunables: Vec::new(),
            clock,
            read_text: None,
            owner_uid: 0,
            job: None,
            job_variables: JOB_VARIABLES.map(String::from).to_vec(),
            commit: false,
            links_max: LINKS_MAX,
        }
    }

    /// All requests are counted for the job that an environment names, for instance this process's own:
    /// `config.in_job_of(|name| std::env::var(name).ok())`.
    pub fn in_job_of(mut self, variable: impl Fn(&str) -> Option<String>) -> ClientConfig {
        self.job = JobName::find(&self.job_variables, variable);
        self
    }
}

/// The caller of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ctx {
    /// Credentials, checked by the server.
    pub cred: Cred,
    /// Process of the caller.
    pub pid: u32,
    /// Thread of the caller: the stream of its requests.
    pub tid: u32,
    /// The I/O mode in the environment of the caller's process, if the front end knows it; it is used when the process
    /// opens a file.
    pub io_mode: Option<IoMode>,
    /// The job of the caller's process, if the front end knows it; used when the process opens a file.
    pub job: Option<JobName>,
    /// The program that calls, as far as the front end knows it; used when it opens a file.
    pub program: Program,
    /// The caller's umask: permission bits that an inode which it makes does not get, unless the directory has a
    /// default access control list. It is 0 if the permission bits have been removed already.
    pub umask: u16,
}

/// The data of a front end about a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// A number for the executable of the program, the same for all its processes. 0 means unknown.
    pub executable: u64,
    /// The size of the pieces in which the program says that it reads.
    pub reads: Option<Pieces>,
}

impl Ctx {
    /// The super-user, as thread 0.
    pub fn root() -> Ctx {
        Ctx::default()
    }
}

/// The object of a name that a front end may cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameShows {
    /// A directory, which has no other name.
    Directory(Ino),
    /// Anything else, which may have several names.
    Other(Ino, Kind),
    /// The name does not exist.
    Nothing,
}

impl NameShows {
    /// The kind of result for these attributes; `None` stands for an absent name.
    pub fn of(attr: Option<&Attr>) -> NameShows {
        match attr {
            Some(attr) if attr.kind == Kind::Dir => NameShows::Directory(attr.ino),
            Some(attr) => NameShows::Other(attr.ino, attr.kind),
            None => NameShows::Nothing,
        }
    }
}

/// A name that a front end may keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentName {
    /// The directory that contains the name.
    pub dir: Ino,
    /// Only the entry of the name itself.
    pub name: Box<[u8]>,
    /// The inode to which the name leads.
    pub shows: NameShows,
}

/// The writes that programs post to a front end (docs/design/preload.md), as the client takes them before it shows or
/// gives up anything that they change. None of these functions may wait. A caller holds no lock.
pub trait PostedWrites: Send + Sync + 'static {
    /// A `Posting` may be over.
    fn ring(&self);

    /// Writes what is posted to a file into the cache, as far as nothing has to wait. Returns where those writes end
    /// that have to wait; 0: there is none.
    fn take(&self, ino: Ino) -> u64;
}

/// The caches of a front end (the kernel's cache), as the client invalidates them.
pub trait KernelPages: Send + Sync + 'static {
    /// Drops the cached pages of `range` of an inode. Dirty pages are first written back by ordinary writes. When all
    /// are dropped, `done` is called on any thread. Must not block, because the writes arrive while the pages are being
    /// dropped.
    fn drop_pages(&self, ino: Ino, range: ByteRange, done: Box<dyn FnOnce() + Send>);

    /// Works as `drop_pages`, for a write that replaces bytes in pages. Both functions may run concurrently. This
    /// function may wait for reads that wait for extent locks, and `drop_pages` never does.
    fn drop_overwritten(&self, ino: Ino, range: ByteRange, done: Box<dyn FnOnce() + Send>);

    /// Drops the attributes of an inode; the kernel ignores answers to earlier requests. Returns false if the front end
    /// does not know the inode. An answer that makes it known may then still be on its way. The function does not wait.
    /// A front end that caches no attributes need not implement it.
    fn drop_attributes(&self, _: Ino) -> bool {
        true
    }

    /// Returns whether the size that the front end uses is one that it has received since the last invalidation. If
    /// not, it may not serve reads of files that other mounts may extend.
    fn follows_sizes(&self) -> bool {
        true
    }

    /// Ends the timeouts of names that `Client::lend_name` has given. When none of these names is cached any more,
    /// `done` is called on any thread. Does not wait.
    fn take_names(&self, _: Vec<LentName>, done: Box<dyn FnOnce() + Send>) {
        done();
    }

    /// Another mount has moved a directory to `name` in `dir`, or removed it there. A front end that keeps directories
    /// at the places where they were shown then looks the name up. `done` is called on any thread when that is done, or
    /// when it cannot be done at once. The function does not wait.
    fn show_directory(&self, _: Ino, _dir: Ino, _name: &[u8], done: Box<dyn FnOnce() + Send>) {
        done();
    }

    /// Drops cached listings of open directories, because other mounts may change them from now on. The function does
    /// not wait.
    fn drop_listings(&self) {}
}

/// Closes of descriptors, as a front end learns of them. A front end may learn of a close earlier than of the moment
/// when it may release the locks of the open file.
pub trait Closes: Send + Sync + 'static {
    /// If descriptors are being closed through which locks on the file were taken, `done` is called on any thread when
    /// these locks have been released. Returns the number of the wait.
    fn closing(&self, ino: Ino, done: Box<dyn FnOnce() + Send>) -> Option<u64>;

    /// Called when a wait was in vain: the open file that seemed to be closed has other descriptors.
    fn in_vain(&self, wait: u64);
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags {
    /// The file may be read.
    pub read: bool,
    /// The file may be written.
    pub write: bool,
    /// Writes go to the end of the file.
    pub append: bool,
    /// `O_DIRECT`: nothing goes through the cache.
    pub direct: bool,
    /// `O_SYNC`: a write returns when data and attributes are on stable storage.
    pub sync: bool,
    /// `O_DSYNC`: a write returns when its data can be found on stable storage.
    pub dsync: bool,
    /// Length is cut to zero.
    pub truncate: bool,
    /// Fail if the name exists (only for create).
    pub exclusive: bool,
    /// The file is opened to be executed: the permission to execute is checked, not the permission to read (only for
    /// open).
    pub exec: bool,
    /// `O_NOATIME`: reads leave the access time alone.
    pub no_atime: bool,
}

/// `__FMODE_EXEC`: what the kernel adds to the flags of an open that `execve` makes.
const LINUX_EXEC: u32 = 0x20;

impl OpenFlags {
    /// Read only.
    pub const READ: OpenFlags = OpenFlags {
        read: true,
        write: false,
        append: false,
        direct: false,
        sync: false,
        dsync: false,
        truncate: false,
        exclusive: false,
        exec: false,
        no_atime: false,
    };
    /// Write only.
    pub const WRITE: OpenFlags = OpenFlags { read: false, write: true, ..OpenFlags::READ };
    /// Open for reading and writing.
    pub const READ_WRITE: OpenFlags = OpenFlags { write: true, ..OpenFlags::READ };

    /// The access modes and flags of an open, from the flags of Linux' open.
    pub fn from_linux(flags: u32) -> OpenFlags {
        // The one flag among these whose number depends on the architecture.
        let o_direct = if cfg!(any(target_arch = "aarch64", target_arch = "arm")) { 0o200000 } else { 0o40000 };
        let access = flags & 3;
        OpenFlags {
            read: access == 0 || access == 2,
            write: access == 1 || access == 2,
            append: flags & 0o2000 != 0,
            direct: flags & o_direct != 0,
            sync: flags & 0o4010000 == 0o4010000,
            dsync: flags & 0o10000 != 0,
            truncate: flags & 0o1000 != 0,
            exclusive: flags & 0o200 != 0,
            exec: flags & LINUX_EXEC != 0,
            no_atime: flags & 0o1000000 != 0,
        }
    }
}

/// Facts that a front end knows about a read or write in addition to its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// The application's call may continue with a further piece, because this one is as large as the front end can pass
    /// in one request.
    pub may_continue: bool,
    /// The page cache of the kernel writes mapped pages back.
    pub write_back: bool,
    /// Setuid and setgid have to be cleared, since the writer is unprivileged.
    pub kill_suidgid: bool,
    /// Do not go through the cache, whatever the mode of the open.
    pub direct: bool,
    /// The bytes are in a page cache of the front end, or are about to enter it, and stay there until `KernelPages`
    /// drops them.
    pub for_pages: bool,
    /// The place of a write in the file.
    pub to: WriteTo,
    /// The write returns when its data can be found on stable storage, however the file was opened.
    pub stable: bool,
}

/// The place of a write in the file. The front end's knowledge about the call takes precedence over how the file was
/// opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteTo {
    /// The write goes to the offset of the call, or to the end of the file if the file was opened to append.
    #[default]
    AsOpened,
    /// The write goes to the offset of the call.
    Offset,
    /// The write goes to the end of the file.
    End,
    /// The write is made at the end of the file; the front end knows the end as long as no other mount has ever
    /// existed. Until then the write is made at its offset, which is the end of the file, or was the end when the
    /// kernel chose it.
    KnownEnd,
    /// The write is made at the offset of the call, and only if that is the end of the file. If it is not, or if the
    /// end is not known, `try_write` writes nothing.
    OffsetAtEnd,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirent {
    /// Name, with `.` and `..`.
    pub name: Vec<u8>,
    /// Cookie with which a listing continues after this entry.
    pub cookie: u64,
    /// Inode.
    pub ino: Ino,
    /// Kind.
    pub kind: Kind,
    /// Attributes, if requested and at hand; never for `.` and `..`.
    pub attr: Option<Attr>,
}

/// Part of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The entries, in the order of their cookies.
    pub entries: Vec<Dirent>,
    /// Whether the directory has no more entries after these.
    pub end: bool,
}

/// Space of the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes per block.
    pub block_size: u32,
    /// Blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Inodes in use and free.
    pub inodes: u64,
    /// Number of inodes that can still be made.
    pub inodes_free: u64,
    /// Longest name.
    pub name_max: u32,
    /// Id of the cluster.
    pub cluster: u64,
}

/// The variants of fallocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Reserves storage and extends the file.
    Allocate,
    /// Reserves storage, keeps the length.
    KeepSize,
    /// Frees storage; the bytes read as zeros.
    PunchHole,
    /// The bytes read as zeros; extends the file unless `keep_size`.
    ZeroRange {
        /// Keeps the length.
        keep_size: bool,
    },
}

impl Fallocate {
    /// From the mode argument of Linux' fallocate; `None` for modes that are not supported.
    pub fn from_linux(mode: u32) -> Option<Fallocate> {
        match mode {
            0 => Some(Fallocate::Allocate),
            1 => Some(Fallocate::KeepSize),
            3 => Some(Fallocate::PunchHole),
            0x10 => Some(Fallocate::ZeroRange { keep_size: false }),
            0x11 => Some(Fallocate::ZeroRange { keep_size: true }),
            _ => None,
        }
    }
}

/// The target of an lseek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}
