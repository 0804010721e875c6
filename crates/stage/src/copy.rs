//! Copying of files, piece by piece.
//!
//! Owns the path of bytes from source to target and the rule by which a file counts as copied: the file had the same
//! identity from its first byte to the check after its last. Does not own when pieces are durable (`checkpoint`) nor
//! the comparison with the written bytes (`compare`).

use crate::buffer::Buffer;
use crate::checkpoint::Checkpoints;
use crate::content::Content;
use crate::dest::Dest;
use crate::entries::{Entry, Identity, Source, kind, size};
use crate::error::{Error, reason};
use crate::files::{FileState, Progressing, Verdict, range};
use crate::holes;
use crate::journal::Piece;
use crate::journal::record::Record;
use crate::remove;
use crate::report::Progress;
use crate::stable::Stable;
use crate::work::{self, Queue, Stop};
use rustix::fs::{self, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A piece larger than this is synced by the thread that wrote it; for smaller ones one call for all at the next
/// checkpoint is cheaper.
const SYNC_ALONE_BYTES: u64 = 1 << 20;

/// Work of the copying threads.
#[derive(Clone, Copy)]
enum Task {
    /// A file: its pieces are determined; a file of one piece is copied at once.
    File(u32),
    /// One of several pieces of a file.
    Piece(u32, u64),
}

/// The reason why a piece was not copied.
enum Trouble {
    /// The source cannot be read.
    Source(Errno),
    /// The source has changed.
    Changed(&'static str),
    /// The target cannot be written.
    Target(Errno),
    /// The stage ends.
    Stopped,
}

/// See the head of the module.
pub(crate) struct Copier<'a> {
    pub(crate) source: &'a Source,
    pub(crate) dest: &'a Dest,
    pub(crate) files: &'a [FileState],
    pub(crate) checkpoints: &'a Checkpoints<'a>,
    pub(crate) stable: &'a Stable,
    pub(crate) progress: &'a Progress,
    pub(crate) stop: &'a Stop,
    pub(crate) piece_bytes: u64,
    /// Numbers of the journal that were given.
    pub(crate) numbers: AtomicU32,
}

impl Copier<'_> {
    /// Copies the missing parts of all files; returns when they are durable.
    pub(crate) fn run(&self, threads: usize) {
        let is_todo = |n: &u32| self.files[*n as usize].state().verdict == Verdict::Todo;
        let mut todo: Vec<u32> = (0..self.files.len() as u32).filter(is_todo).collect();
        // Large ones first, so that the last of them is not alone at the end; the others as they lie.
        todo.sort_by_key(|n| {
            let size = size(&self.entry(*n).stat);
            std::cmp::Reverse(if size > self.piece_bytes { size } else { 0 })
        });
        work::run(
            threads,
            todo.into_iter().map(Task::File),
            self.stop,
            Buffer::new,
            |queue, task, buffer| match task {
                Task::File(n) => self.file(queue, n, buffer),
                Task::Piece(n, index) => self.piece(n, index, buffer),
            },
        );
        if !self.stop.is_set() {
            self.checkpoints.checkpoint();
        }
    }

    fn entry(&self, n: u32) -> &Entry {
        &self.source.entries[self.files[n as usize].entry as usize]
    }

    fn path(&self, n: u32) -> PathBuf {
        self.source.path(self.entry(n))
    }

    /// Opens the source without following links and without waiting for the other end of a pipe.
    fn open_source(&self, n: u32) -> Result<(OwnedFd, Stat), Trouble> {
        let place = self.source.place(self.entry(n)).map_err(Trouble::Source)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let open = |flags| fs::openat(&place.dir, &*place.name, flags, Mode::empty());
        // Only the owner of a file may open it so that reads do not change the access time.
        let fd = match open(flags | OFlags::NOATIME) {
            Err(Errno::PERM) => open(flags),
            other => other,
        };
        let fd = fd.map_err(|e| match e {
            Errno::LOOP => Trouble::Changed("was replaced while it was copied"),
            e => Trouble::Source(e),
        })?;
        let stat = fs::fstat(&fd).map_err(Trouble::Source)?;
        if kind(&stat) != FileType::RegularFile {
            return Err(Trouble::Changed("was replaced while it was copied"));
        }
        Ok((fd, stat))
    }

    /// A fresh file of the target. It gets its size at once if there are holes, or threads that write one behind the
    /// other.
    fn create(&self, n: u32, stat: &Stat) -> Result<OwnedFd, Trouble> {
        let place = self.dest.working(self.source, self.entry(n)).map_err(Trouble::Target)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = || fs::openat(&place.dir, &*place.name, flags, Mode::RUSR | Mode::WUSR);
        let fd = match create() {
            Err(Errno::EXIST) => remove::whatever(&place.dir, &place.name).and_then(|()| create()),
            other => other,
        };
        let fd = fd.map_err(Trouble::Target)?;
        let size = size(stat);
        if size > self.piece_bytes || (size > 0 && holes::may_have(stat)) {
            fs::ftruncate(&fd, size).map_err(Trouble::Target)?;
        }
        Ok(fd)
    }

    /// The file of the target as it is, if it has the right size.
    fn open_target(&self, n: u32, size: u64) -> Result<OwnedFd, Errno> {
        let place = self.dest.working(self.source, self.entry(n))?;
        let fd = place.open_own(OFlags::RDWR)?;
        let stat = fs::fstat(&fd)?;
        let is_it = kind(&stat) == FileType::RegularFile && stat.st_size.cast_unsigned() == size;
        is_it.then_some(fd).ok_or(Errno::STALE)
    }

    fn file(&self, queue: &Queue<Task>, n: u32, buffer: &mut Buffer) {
        match self.begin(n) {
            Ok(Begun { missing, from, to, stat }) => match missing.as_slice() {
                [] => self.end(n),
                [index] if size(&stat) <= self.piece_bytes => {
                    self.files[n as usize].state().left = 1;
                    self.copied(n, *index, self.copy(&from, &to, &stat, *index, buffer));
                }
                _ => {
                    self.files[n as usize].state().left = missing.len() as u64;
                    missing.iter().rev().for_each(|index| queue.push_first(Task::Piece(n, *index)));
                }
            },
            Err(trouble) => self.trouble(n, trouble),
        }
    }

    /// Opens both sides, makes the target anew unless it holds pieces of exactly this file, and finds the missing
    /// pieces.
    fn begin(&self, n: u32) -> Result<Begun, Trouble> {
        let (from, stat) = self.open_source(n)?;
        let (identity, size) = (Identity::of(&stat), size(&stat));
        let mut state = self.files[n as usize].state();
        let known = state.number.is_some() && state.identity == identity;
        let kept = if known { self.open_target(n, size).ok() } else { None };
        let to = match kept {
            Some(to) => to,
            None => {
                let to = self.create(n, &stat)?;
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                state.forget();
                (state.identity, state.number) = (identity, Some(number));
                let path = self.source.below_root(self.entry(n)).as_os_str().as_bytes().to_vec();
                self.checkpoints.finish(Record::File { number, identity, path }, 0, true);
                to
            }
        };
        let missing = self.missing(&from, &stat, &state).map_err(Trouble::Source)?;
        let missing_bytes: u64 = missing.iter().map(|i| len(range(*i, self.piece_bytes, size))).sum();
        self.progress.skipped_bytes.add(size - missing_bytes);
        let counter =
            if missing.is_empty() && known { &self.progress.skipped_files } else { &self.progress.copied_files };
        counter.add(1);
        Ok(Begun { missing, from, to, stat })
    }

    /// Pieces that have data and are not written yet.
    fn missing(&self, from: &OwnedFd, stat: &Stat, state: &Progressing) -> Result<Vec<u64>, Errno> {
        let (size, asks) = (size(stat), holes::may_have(stat));
        let (mut missing, mut at) = (Vec::new(), 0);
        while let Some(data) = holes::next_data(from, at..size, asks)? {
            let index = data.start / self.piece_bytes;
            if !state.pieces.contains_key(&index) {
                missing.push(index);
            }
            at = (index + 1).saturating_mul(self.piece_bytes);
        }
        Ok(missing)
    }

    fn piece(&self, n: u32, index: u64, buffer: &mut Buffer) {
        let identity = {
            let state = self.files[n as usize].state();
            match state.verdict {
                Verdict::Todo => state.identity,
                _ => return,
            }
        };
        let copied = self.open_source(n).and_then(|(from, stat)| {
            if Identity::of(&stat) != identity {
                return Err(Trouble::Changed("changed while it was copied"));
            }
            let to = self.open_target(n, identity.size).map_err(Trouble::Target)?;
            self.copy(&from, &to, &stat, index, buffer)
        });
        self.copied(n, index, copied);
    }

    /// Copies a piece and makes it stable, or leaves that to the next checkpoint; returns its checksum.
    fn copy(
        &self,
        from: &OwnedFd,
        to: &OwnedFd,
        stat: &Stat,
        index: u64,
        buffer: &mut Buffer,
    ) -> Result<Copied, Trouble> {
        let range = range(index, self.piece_bytes, size(stat));
        let bytes = len(range.clone());
        if !self.checkpoints.reserve(bytes) {
            return Err(Trouble::Stopped);
        }
        let copied = self.copy_range(from, to, range, holes::may_have(stat), buffer).and_then(|crc| {
            let synced = bytes > SYNC_ALONE_BYTES || self.stable.is_each();
            if synced {
                fs::fdatasync(to).map_err(Trouble::Target)?;
            }
            Ok(Copied { crc, bytes, synced })
        });
        if copied.is_err() {
            self.checkpoints.cancel(bytes);
        }
        copied
    }

    fn copy_range(
        &self,
        from: &OwnedFd,
        to: &OwnedFd,
        range: Range<u64>,
        asks: bool,
        buffer: &mut Buffer,
    ) -> Result<u32, Trouble> {
        let (mut content, mut at, mut written) = (Content::default(), range.start, 0);
        while let Some(data) = holes::next_data(from, at..range.end, asks).map_err(Trouble::Source)? {
            content.hole(data.start - at);
            at = data.start;
            while at < data.end {
                if self.stop.is_set() {
                    return Err(Trouble::Stopped);
                }
                let memory = buffer.bytes();
                let want = usize::try_from(data.end - at).unwrap_or(usize::MAX).min(memory.len());
                let part = &mut memory[..want];
                read_whole(from, part, at)?;
                content.data(part);
                write_whole(to, part, at).map_err(Trouble::Target)?;
                at += want as u64;
                written += want as u64;
                self.progress.copied_bytes.add(want as u64);
            }
        }
        content.hole(range.end - at);
        self.progress.skipped_bytes.add(len(range) - written);
        Ok(content.crc())
    }

    /// A piece is copied, or not: the last one ends the file.
    fn copied(&self, n: u32, index: u64, copied: Result<Copied, Trouble>) {
        let mut state = self.files[n as usize].state();
        state.left -= 1;
        let is_last = state.left == 0;
        match copied {
            Ok(Copied { crc, bytes, synced }) => {
                state.pieces.insert(index, Piece { crc, compared: false });
                let number = state.number.expect("a file that is copied has a number");
                drop(state);
                self.checkpoints.finish(Record::Piece { number, index, crc }, bytes, synced);
            }
            Err(trouble) => {
                drop(state);
                self.trouble(n, trouble);
            }
        }
        if is_last {
            self.end(n);
        }
    }

    /// Everything of a file is written: is it still the same?
    fn end(&self, n: u32) {
        let now = self.source.place(self.entry(n)).and_then(|place| place.stat());
        let mut state = self.files[n as usize].state();
        if state.verdict != Verdict::Todo || self.stop.is_set() {
            return;
        }
        match now {
            Ok(now) if kind(&now) == FileType::RegularFile && Identity::of(&now) == state.identity => {
                state.verdict = Verdict::Whole;
            }
            Ok(_) => state.verdict = Verdict::Again("changed while it was copied".into()),
            Err(e) => {
                drop(state);
                self.trouble(n, Trouble::Source(e));
            }
        }
    }

    fn trouble(&self, n: u32, trouble: Trouble) {
        let mut state = self.files[n as usize].state();
        match trouble {
            Trouble::Stopped => {}
            Trouble::Target(e) => self.stop.with(Error::target("write the copy", &self.path(n), e)),
            Trouble::Changed(how) if state.verdict == Verdict::Todo => state.verdict = Verdict::Again(how.into()),
            Trouble::Source(e) if state.verdict == Verdict::Todo => {
                state.verdict = Verdict::Failed;
                self.progress.failed.add(&self.path(n), format!("cannot be read: {}", reason(e)));
            }
            Trouble::Changed(_) | Trouble::Source(_) => {}
        }
    }
}

/// Both sides of a file and its pieces to copy.
struct Begun {
    missing: Vec<u64>,
    from: OwnedFd,
    to: OwnedFd,
    stat: Stat,
}

/// A piece that was copied.
struct Copied {
    crc: u32,
    /// Length of the piece.
    bytes: u64,
    synced: bool,
}

fn len(range: Range<u64>) -> u64 {
    range.end - range.start
}

/// Reads all of `part`; a file that is shorter now has changed.
fn read_whole(from: impl AsFd, part: &mut [u8], at: u64) -> Result<(), Trouble> {
    let mut done = 0;
    while done < part.len() {
        match rustix::io::pread(&from, &mut part[done..], at + done as u64) {
            Ok(0) => return Err(Trouble::Changed("became shorter while it was copied")),
            Ok(n) => done += n,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(e) => return Err(Trouble::Source(e)),
        }
    }
    Ok(())
}

fn write_whole(to: impl AsFd, part: &[u8], at: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < part.len() {
        match rustix::io::pwrite(&to, &part[done..], at + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
