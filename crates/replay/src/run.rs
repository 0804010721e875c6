//! Creation of the objects that have to exist, and then the calls, each recorded thread on a thread of its own.
//!
//! Owns: the calls, the waits between threads, times and checks of bytes. Does not own: what is to be done (`plan`).

use crate::plan::{Act, NodeKind, Plan, Skipped, Step, joined};
use crate::stamp;
use amphi_trace::{Op, flags};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, Timestamps};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

/// Most threads of a replay.
const THREADS_MAX: usize = 4096;
/// Stack of a thread, bytes.
const STACK_BYTES: usize = 256 << 10;
/// Most bytes of one call while files are made.
const PIECE_BYTES: usize = 1 << 20;
/// Memory of direct requests begins at multiples of this.
const ALIGN: usize = 4096;
/// Notes of failures that are kept.
const NOTES_MAX: usize = 10;

/// How a replay goes.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Share of the time between the calls of a thread that the replay waits: 0 none, 1 all of it.
    pub think: f64,
}

/// Calls of one kind, with their times in the recording and in this replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Calls that were made.
    pub calls: u64,
    /// Time that they took when they were recorded, nanoseconds.
    pub recorded_ns: u64,
    /// Time that they took in this replay.
    pub ns: u64,
}

/// How a replay went.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The time of the calls of each kind.
    pub times: BTreeMap<Op, Times>,
    /// Time from the first call to the last answer in this replay, nanoseconds.
    pub took_ns: u64,
    /// The same when it was recorded.
    pub recorded_ns: u64,
    /// The largest delay of a call compared with the recording, measured from the first call; 0 without think time.
    pub latest_ns: u64,
    /// Time that calls waited for those of other threads that they follow.
    pub order_ns: u64,
    /// Bytes read and written.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Calls that failed here and had not.
    pub failed: u64,
    /// Reads that returned other bytes than were written there.
    pub wrong: u64,
    /// Reads that returned fewer or more bytes than when they were recorded.
    pub short: u64,
    /// Files that were opened without `O_DIRECT`, which this file system does not have.
    pub not_direct: u64,
    /// The first of the errors.
    pub notes: Vec<String>,
    /// Calls that are not repeated.
    pub skipped: Skipped,
}

impl Report {
    fn note(&mut self, text: impl FnOnce() -> String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(text());
        }
    }

    fn add(&mut self, other: Report) {
        for (op, times) in other.times {
            let own = self.times.entry(op).or_default();
            own.calls += times.calls;
            own.recorded_ns += times.recorded_ns;
            own.ns += times.ns;
        }
        self.latest_ns = self.latest_ns.max(other.latest_ns);
        self.order_ns += other.order_ns;
        self.read += other.read;
        self.written += other.written;
        self.failed += other.failed;
        self.wrong += other.wrong;
        self.short += other.short;
        self.not_direct += other.not_direct;
        other.notes.into_iter().for_each(|note| self.note(|| note));
    }
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn sleep_ns(ns: u64) {
    let time = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ };
    let _ = rustix::thread::nanosleep(&time);
}

fn shown(path: &[u8]) -> String {
    amphi_trace::summary::shown(path)
}

fn open_dir(dir: &Path) -> Result<OwnedFd, String> {
    rustix::fs::openat(CWD, dir, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| format!("{}: {e}", dir.display()))
}

/// Makes in the empty directory `dir` the files that the plan needs before its first call: files of their sizes, with
/// bytes where they are read. Everything that was made is on stable storage on return.
///
/// Errors: what cannot be made, and why; too little space.
pub fn make(plan: &Plan, dir: &Path) -> Result<(), String> {
    let root = open_dir(dir)?;
    let space = rustix::fs::fstatvfs(&root).map_err(|e| format!("{}: {e}", dir.display()))?;
    let (free, need) = (space.f_bavail.saturating_mul(space.f_frsize), plan.bytes_before());
    if free < need {
        let size = amphi_trace::summary::size;
        return Err(format!(
            "{}: the files that the trace reads need {}, and {} are free",
            dir.display(),
            size(need),
            size(free)
        ));
    }
    let mut before: Vec<_> =
        plan.nodes.iter().enumerate().filter_map(|(n, node)| Some((node.before.as_ref()?, n, node))).collect();
    // Directories come before their contents.
    before.sort_by_key(|(path, ..)| path.iter().filter(|b| **b == b'/').count());
    for kind in [NodeKind::Dir, NodeKind::File] {
        for (path, n, node) in before.iter().filter(|(path, _, node)| node.kind == kind && !path.is_empty()) {
            let fails = |e: Errno| format!("{}: cannot be made: {e}", shown(path));
            if kind == NodeKind::Dir {
                rustix::fs::mkdirat(&root, &path[..], Mode::RWXU).map_err(fails)?;
                continue;
            }
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&root, &path[..], flags, Mode::RUSR | Mode::WUSR).map_err(fails)?;
            rustix::fs::ftruncate(&file, node.size).map_err(fails)?;
            for (from, to) in joined(&node.reads, node.size) {
                write_all(&file, *n as u64, from, to).map_err(fails)?;
            }
            rustix::fs::fsync(&file).map_err(fails)?;
        }
    }
    Ok(())
}

fn write_all(file: &OwnedFd, of: u64, from: u64, to: u64) -> Result<(), Errno> {
    let mut at = from;
    let mut bytes = vec![0; PIECE_BYTES.min((to - from) as usize)];
    while at < to {
        let piece = &mut bytes[..PIECE_BYTES.min((to - at) as usize)];
        stamp::fill(of, at, piece);
        let n = rustix::io::pwrite(file, piece, at)?;
        if n == 0 {
            return Err(Errno::IO);
        }
        at += n as u64;
    }
    Ok(())
}

/// Removes everything inside of `dir`, which a replay has filled.
///
/// Errors: what cannot be removed.
pub fn clear(dir: &Path) -> Result<(), String> {
    let entries = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    for entry in entries.flatten() {
        let path = entry.path();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_dir { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

/// How far a thread has come.
#[derive(Default)]
struct Progress {
    done: Mutex<usize>,
    more: Condvar,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn goes_on(&self) {
        *self.lock() += 1;
        self.more.notify_all();
    }

    /// Waits until step `n` is done.
    fn wait(&self, n: usize) {
        let mut done = self.lock();
        while *done <= n {
            done = self.more.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// State that the threads of a replay share.
struct Shared {
    plan: Arc<Plan>,
    root: OwnedFd,
    progress: Vec<Progress>,
    slots: Vec<RwLock<Option<Arc<OwnedFd>>>>,
    options: Options,
    /// When the first call begins.
    zero_ns: u64,
}

/// Makes the calls of a plan in `dir`, where [`make`] has made the files that they need. Files stay open until the end
/// if they were not closed in the trace.
///
/// Errors: the directory cannot be opened, or there are too many threads. Calls that fail are in the report.
pub fn replay(plan: Arc<Plan>, dir: &Path, options: Options) -> Result<Report, String> {
    if plan.threads.len() > THREADS_MAX {
        return Err(format!("the trace has {} threads; a replay has at most {THREADS_MAX}", plan.threads.len()));
    }
    let root = open_dir(dir)?;
    let (threads, slots) = (plan.threads.len(), plan.slots);
    let (recorded_ns, skipped) = (plan.span_ns, plan.skipped.clone());
    let shared = Arc::new(Shared {
        plan,
        root,
        progress: (0..threads).map(|_| Progress::default()).collect(),
        slots: (0..slots).map(|_| RwLock::default()).collect(),
        options,
        // By then the threads exist.
        zero_ns: now_ns() + 1_000_000 + threads as u64 * 50_000,
    });
    let mut report = Report { recorded_ns, skipped, ..Report::default() };
    let spawn = |thread: usize| {
        let shared = shared.clone();
        let run = move || Thread::new(&shared, thread).run();
        std::thread::Builder::new().name(format!("replay-{thread}")).stack_size(STACK_BYTES).spawn(run)
    };
    let mut running = Vec::new();
    for thread in 0..threads {
        match spawn(thread) {
            Ok(handle) => running.push(handle),
            Err(e) => {
                // Otherwise the running threads would wait for the steps of this one.
                (0..shared.plan.threads[thread].len()).for_each(|_| shared.progress[thread].goes_on());
                report.failed += 1;
                report.note(|| format!("thread {thread} cannot be started: {e}"));
            }
        }
    }
    for handle in running {
        match handle.join() {
            Ok(one) => report.add(one),
            Err(_) => return Err("a thread of the replay panicked".into()),
        }
    }
    report.took_ns = now_ns().saturating_sub(shared.zero_ns);
    Ok(report)
}

/// Memory that begins at a multiple of [`ALIGN`].
#[derive(Default)]
struct Memory(Vec<u8>);

impl Memory {
    fn of(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len + ALIGN {
            self.0 = vec![0; len + ALIGN];
        }
        let skip = self.0.as_ptr().align_offset(ALIGN).min(ALIGN);
        &mut self.0[skip..skip + len]
    }
}

/// One thread of the replay.
struct Thread<'a> {
    shared: &'a Shared,
    number: usize,
    memory: Memory,
    report: Report,
}

impl<'a> Thread<'a> {
    fn new(shared: &'a Shared, number: usize) -> Thread<'a> {
        Thread { shared, number, memory: Memory::default(), report: Report::default() }
    }

    fn run(mut self) -> Report {
        let shared = self.shared;
        let begin_ns = now_ns();
        sleep_ns(shared.zero_ns.saturating_sub(begin_ns));
        let (mut ended_ns, mut recorded_ns) = (shared.zero_ns, shared.plan.start_ns);
        for step in &shared.plan.threads[self.number] {
            let waits_ns = now_ns();
            step.after.iter().for_each(|(thread, n)| shared.progress[*thread].wait(*n));
            self.report.order_ns += now_ns() - waits_ns;
            let think_ns = step.start_ns.saturating_sub(recorded_ns) as f64 * shared.options.think;
            self.prepare(step);
            let due_ns = ended_ns + think_ns as u64;
            let now = now_ns();
            if due_ns > now {
                sleep_ns(due_ns - now);
            }
            let start_ns = now_ns();
            let done = self.act(step);
            ended_ns = now_ns();
            recorded_ns = step.start_ns + step.took_ns;
            if step.act != Act::Nothing {
                self.book(step, (start_ns, ended_ns));
            }
            self.judge(step, done);
            shared.progress[self.number].goes_on();
        }
        self.report
    }

    fn book(&mut self, step: &Step, (start_ns, end_ns): (u64, u64)) {
        let times = self.report.times.entry(step.op).or_default();
        times.calls += 1;
        times.recorded_ns += step.took_ns;
        times.ns += end_ns - start_ns;
        if self.shared.options.think > 0.0 {
            let due_ns = (step.start_ns - self.shared.plan.start_ns) as f64 * self.shared.options.think;
            let late_ns = (start_ns - self.shared.zero_ns).saturating_sub(due_ns as u64);
            self.report.latest_ns = self.report.latest_ns.max(late_ns);
        }
    }

    /// Makes the bytes of a write ready.
    fn prepare(&mut self, step: &Step) {
        match step.act {
            Act::Write { node, offset, len, .. } => stamp::fill(node as u64, offset, self.memory.of(len as usize)),
            Act::Read { len, .. } => drop(self.memory.of(len as usize)),
            _ => {}
        }
    }

    /// Compares results with the recorded ones, and the bytes of reads with what was written.
    fn judge(&mut self, step: &Step, done: Result<usize, Errno>) {
        match (&step.act, done) {
            (_, Err(e)) if step.worked => {
                self.report.failed += 1;
                self.report.note(|| format!("{} failed: {e} ({})", step.op.name(), said(&step.act)));
            }
            (Act::Read { node, offset, got, .. }, Ok(n)) => {
                self.report.read += n as u64;
                self.report.short += u64::from(n as u64 != *got);
                let (holes, copied) = (self.shared.plan.nodes[*node].holes, self.shared.plan.nodes[*node].copied);
                let bytes = &self.memory.of(n)[..n];
                if !copied && let Some(place) = stamp::first_wrong(*node as u64, *offset, bytes, holes) {
                    self.report.wrong += 1;
                    self.report.note(|| format!("wrong bytes at {place} ({})", said(&step.act)));
                }
            }
            (Act::Write { .. } | Act::Copy { .. }, Ok(n)) => self.report.written += n as u64,
            _ => {}
        }
    }

    fn file(&self, slot: usize) -> Result<Arc<OwnedFd>, Errno> {
        let slot = self.shared.slots[slot].read().unwrap_or_else(PoisonError::into_inner);
        slot.clone().ok_or(Errno::BADF)
    }

    fn open(&mut self, path: &[u8], slot: usize, how: u32, makes: bool) -> Result<usize, Errno> {
        let has = |bit: u32| how & bit != 0;
        let access = match (has(flags::READS), has(flags::WRITES)) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        };
        let mut open = access | OFlags::CLOEXEC;
        for (is, flag) in [
            (makes, OFlags::CREATE),
            (has(flags::SETS_SIZE), OFlags::TRUNC),
            (has(flags::DIRECT), OFlags::DIRECT),
            (has(flags::SYNC), OFlags::DSYNC),
        ] {
            open.set(flag, is);
        }
        let mode = Mode::RUSR | Mode::WUSR;
        let file = match rustix::fs::openat(&self.shared.root, path, open, mode) {
            Err(Errno::INVAL) if has(flags::DIRECT) => {
                self.report.not_direct += 1;
                rustix::fs::openat(&self.shared.root, path, open - OFlags::DIRECT, mode)
            }
            file => file,
        }?;
        *self.shared.slots[slot].write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(file));
        Ok(0)
    }

    /// Copies as the program did, or by reading and writing where the file system cannot.
    fn copy(&mut self, from: (&OwnedFd, u64), to: (&OwnedFd, u64), len: usize) -> Result<usize, Errno> {
        let (mut source, mut target) = (from.1, to.1);
        match again(|| rustix::fs::copy_file_range(from.0, Some(&mut source), to.0, Some(&mut target), len)) {
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            done => return done,
        }
        let n = again(|| rustix::io::pread(from.0, &mut *self.memory.of(len), from.1))?;
        again(|| rustix::io::pwrite(to.0, &self.memory.of(len)[..n], to.1))
    }

    fn act(&mut self, step: &Step) -> Result<usize, Errno> {
        let root: BorrowedFd<'_> = self.shared.root.as_fd();
        match &step.act {
            Act::Nothing => {}
            Act::Look { path } => {
                let path: &[u8] = if path.is_empty() { b"." } else { path };
                let _found = rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Act::Stat { slot } => {
                let _found = rustix::fs::fstat(&*self.file(*slot)?)?;
            }
            Act::Open { path, slot, flags } => return self.open(path, *slot, *flags, false),
            Act::Create { path, slot, flags } => return self.open(path, *slot, *flags, true),
            Act::Close { slot } => {
                // The descriptor is closed here if no other thread uses it at the moment.
                drop(self.shared.slots[*slot].write().unwrap_or_else(PoisonError::into_inner).take());
            }
            Act::Read { slot, offset, len, .. } => {
                let file = self.file(*slot)?;
                return again(|| rustix::io::pread(&*file, &mut *self.memory.of(*len as usize), *offset));
            }
            Act::Write { slot, offset, len, .. } => {
                let file = self.file(*slot)?;
                return again(|| rustix::io::pwrite(&*file, self.memory.of(*len as usize), *offset));
            }
            Act::Sync { slot, data_only: true } => rustix::fs::fdatasync(&*self.file(*slot)?)?,
            Act::Sync { slot, data_only: false } => rustix::fs::fsync(&*self.file(*slot)?)?,
            Act::SetSize { path, slot, size } => match slot {
                Some(slot) => rustix::fs::ftruncate(&*self.file(*slot)?, *size)?,
                None => {
                    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                    rustix::fs::ftruncate(rustix::fs::openat(root, &path[..], flags, Mode::empty())?, *size)?;
                }
            },
            Act::Touch { path } => {
                let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
                let path: &[u8] = if path.is_empty() { b"." } else { path };
                let times = Timestamps { last_access: now, last_modification: now };
                rustix::fs::utimensat(root, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Act::Mkdir { path } => rustix::fs::mkdirat(root, &path[..], Mode::RWXU)?,
            Act::Mknod { path } => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                drop(rustix::fs::openat(root, &path[..], flags, Mode::RUSR | Mode::WUSR)?);
            }
            Act::Symlink { path } => rustix::fs::symlinkat("target", root, &path[..])?,
            Act::Readlink { path } => drop(rustix::fs::readlinkat(root, &path[..], Vec::new())?),
            Act::Unlink { path } => rustix::fs::unlinkat(root, &path[..], AtFlags::empty())?,
            Act::Rmdir { path } => rustix::fs::unlinkat(root, &path[..], AtFlags::REMOVEDIR)?,
            Act::Rename { from, to, exchange } => {
                let flags = if *exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
                rustix::fs::renameat_with(root, &from[..], root, &to[..], flags)?;
            }
            Act::Link { from, to } => rustix::fs::linkat(root, &from[..], root, &to[..], AtFlags::empty())?,
            Act::List { path } => {
                let path: &[u8] = if path.is_empty() { b"." } else { path };
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let dir = rustix::fs::openat(root, path, flags, Mode::empty())?;
                rustix::fs::Dir::read_from(dir)?.try_for_each(|entry| entry.map(drop))?;
            }
            Act::Copy { from, from_offset, slot, offset, len } => {
                let (from, to) = (self.file(*from)?, self.file(*slot)?);
                return self.copy((&from, *from_offset), (&to, *offset), *len as usize);
            }
            Act::Reserve { slot, offset, len } => {
                let mode = rustix::fs::FallocateFlags::empty();
                match rustix::fs::fallocate(&*self.file(*slot)?, mode, *offset, *len) {
                    Ok(()) | Err(Errno::OPNOTSUPP) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(0)
    }
}

/// Calls again if a signal came.
fn again(mut call: impl FnMut() -> Result<usize, Errno>) -> Result<usize, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// The action of a step, as text.
fn said(act: &Act) -> String {
    match act {
        Act::Read { node, offset, len, .. } => format!("read of {len} bytes at {offset} of file {node}"),
        Act::Write { node, offset, len, .. } => format!("write of {len} bytes at {offset} of file {node}"),
        Act::Open { path, .. } | Act::Create { path, .. } | Act::Look { path } | Act::SetSize { path, .. } => {
            shown(path)
        }
        Act::Mkdir { path } | Act::Mknod { path } | Act::Symlink { path } | Act::Readlink { path } => shown(path),
        Act::Unlink { path } | Act::Rmdir { path } | Act::List { path } | Act::Touch { path } => shown(path),
        Act::Rename { from, to, .. } | Act::Link { from, to } => format!("{} to {}", shown(from), shown(to)),
        Act::Copy { .. }
        | Act::Stat { .. }
        | Act::Close { .. }
        | Act::Sync { .. }
        | Act::Reserve { .. }
        | Act::Nothing => "an open file".into(),
    }
}
