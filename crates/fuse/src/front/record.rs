//! `Records`: what recordings get of the calls that the kernel sends.
//!
//! Owns: which calls belong to a recording, and what a request contains of a call. Does not own: what its answer
//! contains (`recorded`), where calls are kept (`client::record`), and the client's notes about them (`client::calls`).
//!
//! A call belongs to the recording that the environment of the calling process names (`AMPHI_RECORD`). If the mount may
//! not look at that environment, the call belongs to the recording of the process that opened the file, or to the one
//! to which its thread belonged last.
//!
//! Invariants:
//!
//! * Without recordings, a call costs one comparison of a number. With a recording, a call of another process costs one
//!   look-up of the record of its thread.
//! * `/proc` of a caller is read only for requests whose caller holds no lock for which `/proc` would wait (`may_ask`).
//!   A page fault, `munmap` and `execve` hold such locks while they read and write pages, set times, and close
//!   descriptors.
//!
//! Bounds: `CALLERS_MAX` threads and `HANDLES_MAX` open files are remembered; then all are forgotten.

use crate::clock::monotonic_ns;
use crate::environment::Environments;
use crate::recorded::{Recorded, thread_number};
use crate::request::{Caller, Operation as Op, Request};
use amphi_client::CallNotes;
use amphi_client::record::{Recorder, Recording};
use amphi_trace::{Call, Op as Kind, Record, flags};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// How long a serving thread relies on its knowledge of a caller: of one that is recorded, and of another one, which
/// may be about to become a recorded program.
const KNOWN_NS: u64 = 10_000_000;
const UNKNOWN_NS: u64 = 1_000_000;
/// How long the name of a program is used at most. A process that was started more recently may be about to execute
/// another program.
const NAME_NS: u64 = 1_000_000_000;
const CALLERS_MAX: usize = 1 << 16;
const HANDLES_MAX: usize = 1 << 20;

/// The record of a thread.
struct Told {
    id: u64,
    first_ns: u64,
    read_ns: u64,
    pid: u32,
    program: String,
}

/// A serving thread's knowledge of the caller that it served last.
struct Known {
    tid: u32,
    until_ns: u64,
    recording: Option<Arc<Recording>>,
}

thread_local! {
    static KNOWN: RefCell<Known> = const { RefCell::new(Known { tid: 0, until_ns: 0, recording: None }) };
    static NOTES: RefCell<Arc<CallNotes>> = RefCell::default();
}

/// State of a mount's recordings.
pub(crate) struct Records {
    /// The settings in the environments of callers.
    pub(crate) environments: Environments,
    /// Variables that name a job, which are read at the same time.
    jobs: Vec<String>,
    recorder: Arc<Recorder>,
    told: Mutex<BTreeMap<u32, Told>>,
    handles: Mutex<BTreeMap<u64, Weak<Recording>>>,
}

/// The number of a handle in a trace, in which 0 means none.
fn number(handle: crate::calls::Handle) -> u64 {
    handle.0.wrapping_add(1)
}

impl Records {
    pub(crate) fn new(recorder: Arc<Recorder>, jobs: &[String]) -> Records {
        let (environments, jobs) = (Environments::default(), jobs.to_vec());
        Records { environments, jobs, recorder, told: Mutex::default(), handles: Mutex::default() }
    }

    /// Decides what is recorded of a request that begins.
    #[inline]
    pub(crate) fn begin(&self, caller: &Caller<'_>, request: &Request<'_>) -> Option<Box<Recorded>> {
        if self.recorder.is_on() { self.begin_recorded(caller, request) } else { None }
    }

    fn begin_recorded(&self, caller: &Caller<'_>, request: &Request<'_>) -> Option<Box<Recorded>> {
        let mut call = described(request)?;
        let of_pages = call.has(flags::OF_PAGES);
        let opens = matches!(call.op, Kind::Open | Kind::Create);
        let by_handle = || {
            let handles = self.handles.lock();
            handles.get(&call.handle).filter(|_| call.handle != 0 && !opens).and_then(Weak::upgrade)
        };
        let recording = match may_ask(&call) && caller.tid != 0 {
            true => self.of_thread(caller.tid).or_else(by_handle),
            false => by_handle().or_else(|| if of_pages { None } else { self.told_of(caller.tid) }),
        };
        if call.op == Kind::Release {
            self.handles.lock().remove(&call.handle);
        }
        let uid = if caller.tid == 0 || of_pages { None } else { Some(caller.uid) };
        let recording = recording.filter(|recording| uid.is_none_or(|uid| recording.takes(uid)))?;
        call.tid = caller.tid;
        let notes = NOTES.with_borrow_mut(|spare| {
            if Arc::strong_count(spare) > 1 || !spare.is_empty() {
                *spare = Arc::default();
            }
            spare.clone()
        });
        Some(Box::new(Recorded { recording, call, notes }))
    }

    /// The recording of a thread, as its environment says.
    fn of_thread(&self, tid: u32) -> Option<Arc<Recording>> {
        KNOWN.with_borrow_mut(|known| {
            let now_ns = monotonic_ns();
            if known.tid != tid || now_ns >= known.until_ns {
                let recording = self.environments.said(tid, &self.jobs).record.and_then(|id| self.recorder.find(id));
                if let Some(recording) = &recording {
                    self.tell(recording, tid, now_ns);
                }
                let life = if recording.is_some() { KNOWN_NS } else { UNKNOWN_NS };
                *known = Known { tid, until_ns: now_ns + life, recording };
            }
            known.recording.clone()
        })
    }

    /// The recording to which a thread belonged at the last check.
    fn told_of(&self, tid: u32) -> Option<Arc<Recording>> {
        let id = self.told.lock().get(&tid).map(|told| told.id)?;
        self.recorder.find(id)
    }

    /// Informs a recording to which process a thread belongs.
    fn tell(&self, recording: &Recording, tid: u32, now_ns: u64) {
        let mut all = self.told.lock();
        let first_ns = match all.get(&tid).filter(|told| told.id == recording.id()) {
            Some(told) if now_ns - told.read_ns < (told.read_ns - told.first_ns).min(NAME_NS) => return,
            Some(told) => told.first_ns,
            None => now_ns,
        };
        let Some((pid, program)) = process_of(tid) else { return };
        let known = all.get(&tid).is_some_and(|t| t.id == recording.id() && t.pid == pid && t.program == program);
        if !known {
            let caller = amphi_trace::Caller { tid, pid, program: program.clone() };
            recording.push(thread_number(), Record::Caller(caller));
        }
        if all.len() >= CALLERS_MAX {
            all.clear();
        }
        assert!(all.len() < CALLERS_MAX, "{} callers are noted, at most {CALLERS_MAX}", all.len());
        all.insert(tid, Told { id: recording.id(), first_ns, read_ns: now_ns, pid, program });
    }

    /// Called when a call was answered on its own thread. `size`: that of the file that an open has opened.
    pub(crate) fn ends(&self, mut recorded: Recorded, size: Option<u64>) {
        let call = &mut recorded.call;
        if matches!(call.op, Kind::Open | Kind::Create) && call.result >= 0 {
            let mut handles = self.handles.lock();
            if handles.len() >= HANDLES_MAX {
                handles.clear();
            }
            assert!(handles.len() < HANDLES_MAX, "{} handles are noted, at most {HANDLES_MAX}", handles.len());
            handles.insert(call.handle, Arc::downgrade(&recorded.recording));
        }
        if call.size.is_none() {
            call.size = size;
        }
        recorded.ends();
    }
}

/// Returns whether the caller's environment may be read while the call waits for its answer. `munmap` writes pages back
/// and sets times while it holds the lock on the caller's memory. `execve` closes descriptors, and releases their
/// locks, while no other process may look at the process.
fn may_ask(call: &Call) -> bool {
    let may_hold = matches!(
        call.op,
        Kind::SetAttr
            | Kind::Close
            | Kind::Release
            | Kind::ReleaseDir
            | Kind::Lock
            | Kind::Fsync
            | Kind::FsyncDir
            | Kind::Other
    );
    !may_hold && !call.has(flags::OF_PAGES)
}

/// Bits of `O_*` flags.
fn of_open(open: u32) -> u32 {
    let has = |mask: i32| open & mask as u32 == mask as u32;
    let access = open & libc::O_ACCMODE as u32;
    [
        (access != libc::O_WRONLY as u32, flags::READS),
        (access != libc::O_RDONLY as u32, flags::WRITES),
        (has(libc::O_TRUNC), flags::SETS_SIZE),
        (has(libc::O_DIRECT), flags::DIRECT),
        (has(libc::O_APPEND), flags::APPENDS),
        (has(libc::O_DSYNC), flags::SYNC),
        (has(libc::O_EXCL), flags::EXCLUSIVE),
    ]
    .into_iter()
    .fold(0, |bits, (is, bit)| if is { bits | bit } else { bits })
}

/// A call as its request describes it, or `None` if the request is not a call.
fn described(request: &Request<'_>) -> Option<Call> {
    let mut call = Call::new(kind_of(&request.op)?);
    call.ino = request.ino.0;
    match request.op {
        Op::Lookup { name } | Op::Unlink { name } | Op::Rmdir { name } => call.name = name.into(),
        Op::Mknod { name, .. } | Op::Mkdir { name, .. } | Op::Symlink { name, .. } => call.name = name.into(),
        Op::Getattr { handle } | Op::Statx { handle } => call.handle = handle.map_or(0, number),
        Op::Setattr { ref set, handle } => {
            call.handle = handle.map_or(0, number);
            if let Some(size) = set.size {
                (call.len, call.flags) = (size, flags::SETS_SIZE);
            }
        }
        Op::Rename { name, new_parent, new_name, flags: how } => {
            (call.name, call.new_name) = (name.into(), new_name.into());
            call.other = crate::node::inode_of(new_parent.0).0;
            call.flags = if how & libc::RENAME_EXCHANGE != 0 { flags::EXCHANGE } else { 0 };
        }
        Op::Link { from, new_name } => (call.other, call.new_name) = (from.0, new_name.into()),
        Op::Open { how } => call.flags = of_open(how.flags),
        Op::Create { name, how, .. } => (call.name, call.flags) = (name.into(), of_open(how.flags)),
        Op::Read { how } => {
            (call.handle, call.offset, call.len) = (number(how.handle), how.offset, how.size as u64);
            call.flags = if how.into_page_cache { flags::OF_PAGES } else { 0 };
        }
        Op::Write { how, len } => {
            (call.handle, call.offset, call.len) = (number(how.handle), how.offset, len as u64);
            call.flags = if how.from_page_cache { flags::OF_PAGES } else { 0 };
        }
        Op::Release { handle } | Op::Flush { handle, .. } => call.handle = number(handle),
        Op::Releasedir { handle } => call.handle = number(handle),
        Op::Readdir { handle, offset, room, .. } => {
            (call.handle, call.offset, call.len) = (number(handle), offset, room as u64);
        }
        Op::Fsync { handle, data_only } | Op::Fsyncdir { handle, data_only } => {
            call.handle = number(handle);
            call.flags = if data_only { flags::DATA_ONLY } else { 0 };
        }
        Op::Fallocate { handle, offset, len, .. } => {
            (call.handle, call.offset, call.len) = (number(handle), offset, len);
        }
        Op::Lseek { handle, offset, .. } => (call.handle, call.offset) = (number(handle), offset),
        Op::CopyFileRange { ref how, .. } => {
            (call.ino, call.handle) = (how.to.0, number(how.to_handle));
            (call.offset, call.len, call.other) = (how.to_offset, how.len, how.from.0);
            call.size = Some(how.from_offset);
        }
        _ => {}
    }
    Some(call)
}

fn kind_of(op: &Op<'_>) -> Option<Kind> {
    Some(match op {
        Op::Lookup { .. } => Kind::Lookup,
        Op::Getattr { .. } | Op::Statx { .. } => Kind::Stat,
        Op::Setattr { .. } => Kind::SetAttr,
        Op::Readlink => Kind::Readlink,
        Op::Symlink { .. } => Kind::Symlink,
        Op::Mknod { .. } => Kind::Mknod,
        Op::Mkdir { .. } => Kind::Mkdir,
        Op::Unlink { .. } => Kind::Unlink,
        Op::Rmdir { .. } => Kind::Rmdir,
        Op::Rename { .. } => Kind::Rename,
        Op::Link { .. } => Kind::Link,
        Op::Open { .. } => Kind::Open,
        Op::Create { .. } | Op::Tmpfile { .. } => Kind::Create,
        Op::Read { .. } => Kind::Read,
        Op::Write { .. } => Kind::Write,
        Op::Statfs => Kind::StatFs,
        Op::Release { .. } => Kind::Release,
        Op::Releasedir { .. } => Kind::ReleaseDir,
        Op::Fsync { .. } => Kind::Fsync,
        Op::Fsyncdir { .. } => Kind::FsyncDir,
        Op::Setxattr { .. } | Op::Removexattr { .. } => Kind::SetXattr,
        Op::Getxattr { .. } | Op::Listxattr { .. } => Kind::GetXattr,
        Op::Flush { .. } => Kind::Close,
        Op::Opendir { .. } => Kind::OpenDir,
        Op::Readdir { .. } => Kind::ReadDir,
        Op::Fallocate { .. } => Kind::Fallocate,
        Op::Lseek { .. } => Kind::Seek,
        Op::CopyFileRange { .. } => Kind::Copy,
        Op::Getlk { .. } | Op::Setlk { .. } => Kind::Lock,
        Op::Ioctl { .. } => Kind::Control,
        Op::Access { .. } | Op::Poll { .. } | Op::Syncfs => Kind::Other,
        Op::Forget { .. } | Op::BatchForget { .. } | Op::Interrupt { .. } => return None,
        Op::Init { .. } | Op::Destroy | Op::Unsupported { .. } => return None,
    })
}

/// Process and name of a thread, from `/proc`.
fn process_of(tid: u32) -> Option<(u32, String)> {
    let text = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some((field("Tgid:")?.parse().ok()?, field("Name:")?.to_string()))
}
