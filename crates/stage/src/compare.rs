//! Reading back: every copied piece is compared with the bytes that were read from the source.
//!
//! Owns the reads past the page cache, and the comparison by checksum and by the length of the file. Data where the
//! source has a hole is compared too: it has to be zeros. Pieces that an earlier run compared are not read again.

use crate::buffer::{ALIGN, Buffer};
use crate::checkpoint::Checkpoints;
use crate::content::{Content, zeros};
use crate::dest::Dest;
use crate::dirs::Place;
use crate::entries::{Entry, Source};
use crate::error::{Error, reason};
use crate::files::{FileState, Verdict, range};
use crate::holes;
use crate::journal::Piece;
use crate::journal::record::Record;
use crate::report::Progress;
use crate::work::{self, Queue, Stop};
use rustix::fs::{self, Advice, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Work of the comparing threads.
#[derive(Clone, Copy)]
enum Task {
    File(u32),
    Piece(u32, u64),
}

/// See the head of the module.
pub(crate) struct Comparer<'a> {
    pub(crate) source: &'a Source,
    pub(crate) dest: &'a Dest,
    pub(crate) files: &'a [FileState],
    pub(crate) checkpoints: &'a Checkpoints<'a>,
    pub(crate) progress: &'a Progress,
    pub(crate) stop: &'a Stop,
    pub(crate) piece_bytes: u64,
}

/// A file of the target that is read back.
struct Opened {
    fd: OwnedFd,
    /// Reads go to the storage.
    direct: bool,
    asks: bool,
}

impl Comparer<'_> {
    /// Compares all files that were copied.
    pub(crate) fn run(&self, threads: usize) {
        let copied = |n: &u32| {
            let state = self.files[*n as usize].state();
            state.verdict == Verdict::Whole && state.verified_bytes < state.identity.size.max(1)
        };
        let files: Vec<u32> = (0..self.files.len() as u32).filter(copied).collect();
        let tasks = files.into_iter().map(Task::File);
        work::run(threads, tasks, self.stop, Buffer::new, |queue, task, buffer| match task {
            Task::File(n) => self.file(queue, n, buffer),
            Task::Piece(n, index) => self.piece(n, index, buffer),
        });
        if !self.stop.is_set() {
            self.checkpoints.checkpoint();
        }
    }

    fn entry(&self, n: u32) -> &Entry {
        &self.source.entries[self.files[n as usize].entry as usize]
    }

    fn file(&self, queue: &Queue<Task>, n: u32, buffer: &mut Buffer) {
        let size = self.files[n as usize].state().identity.size;
        let opened = match self.open(n, size) {
            Ok(Some(opened)) => opened,
            Ok(None) => return self.differs(n, "the copy has another length"),
            Err(e) => return self.broken(n, e),
        };
        let pieces = match self.pieces(n, &opened, size) {
            Ok(pieces) => pieces,
            Err(e) => return self.broken(n, e),
        };
        self.files[n as usize].state().left = pieces.len() as u64;
        match pieces.as_slice() {
            [] => self.end(n),
            [index] => self.compared(n, *index, self.compare(n, opened, *index, size, buffer)),
            _ => pieces.iter().rev().for_each(|index| queue.push_first(Task::Piece(n, *index))),
        }
    }

    /// Pieces to read: those that were written and not compared, and those that have data without having been written.
    fn pieces(&self, n: u32, opened: &Opened, size: u64) -> Result<Vec<u64>, Errno> {
        let state = self.files[n as usize].state();
        let mut pieces: Vec<u64> = state.pieces.iter().filter(|(_, p)| !p.compared).map(|(index, _)| *index).collect();
        let mut at = 0;
        while let Some(data) = holes::next_data(&opened.fd, at..size, opened.asks)? {
            let index = data.start / self.piece_bytes;
            if !state.pieces.contains_key(&index) {
                pieces.push(index);
            }
            at = (index + 1).saturating_mul(self.piece_bytes);
        }
        pieces.sort_unstable();
        Ok(pieces)
    }

    fn piece(&self, n: u32, index: u64, buffer: &mut Buffer) {
        let size = self.files[n as usize].state().identity.size;
        let equal = match self.open(n, size) {
            Ok(Some(opened)) => self.compare(n, opened, index, size, buffer),
            Ok(None) => Ok(false),
            Err(e) => Err(e),
        };
        self.compared(n, index, equal);
    }

    /// Opens the copy for direct reads, or drops its pages from the page cache. `None`: the copy does not have this
    /// size.
    fn open(&self, n: u32, size: u64) -> Result<Option<Opened>, Errno> {
        let place = self.dest.working(self.source, self.entry(n))?;
        let (fd, direct) = match place.open_own(OFlags::RDONLY | OFlags::DIRECT) {
            Ok(fd) => (fd, true),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => (open_cached(&place)?, false),
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(e),
        };
        let stat = fs::fstat(&fd)?;
        Ok((stat.st_size as u64 == size).then(|| Opened { fd, direct, asks: holes::may_have(&stat) }))
    }

    /// Returns whether a piece of the target contains the bytes that were written.
    fn compare(&self, n: u32, mut opened: Opened, index: u64, size: u64, buffer: &mut Buffer) -> Result<bool, Errno> {
        let range = range(index, self.piece_bytes, size);
        let written = self.files[n as usize].state().pieces.get(&index).copied();
        let expected = written.map_or_else(|| zeros(range.end - range.start), |piece: Piece| piece.crc);
        let (mut content, mut at) = (Content::default(), range.start);
        while let Some(data) = holes::next_data(&opened.fd, at..range.end, opened.asks)? {
            content.hole(data.start - at);
            at = data.start;
            while at < data.end {
                if self.stop.is_set() {
                    return Ok(false);
                }
                let read = self.read(n, &mut opened, at, data.end, buffer)?;
                if read == 0 {
                    return Ok(false);
                }
                content.data(&buffer.bytes()[..read]);
                at += read as u64;
            }
        }
        content.hole(range.end - at);
        Ok(content.crc() == expected)
    }

    /// Reads bytes from `at` on, at most to `end`, into the buffer; returns how many were read, 0 if there are fewer
    /// than expected.
    fn read(&self, n: u32, opened: &mut Opened, at: u64, end: u64, buffer: &mut Buffer) -> Result<usize, Errno> {
        let memory = buffer.bytes();
        let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(memory.len());
        let mut got = 0;
        while got < want {
            // Lengths of direct reads are multiples of the alignment; the file may end before.
            let ask = match opened.direct {
                true => (want - got).next_multiple_of(ALIGN as usize).min(memory.len() - got),
                false => want - got,
            };
            match rustix::io::pread(&opened.fd, &mut memory[got..got + ask], at + got as u64) {
                Ok(0) => return Ok(0),
                Ok(n) => got += n,
                Err(Errno::INTR | Errno::AGAIN) => {}
                // Accepted at the open and not here, or behind a read that ended in the middle of a block.
                Err(Errno::INVAL | Errno::OPNOTSUPP) if opened.direct => {
                    let place = self.dest.working(self.source, self.entry(n))?;
                    (opened.fd, opened.direct) = (open_cached(&place)?, false);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(want)
    }

    fn compared(&self, n: u32, index: u64, equal: Result<bool, Errno>) {
        if self.stop.is_set() {
            return;
        }
        match equal {
            Ok(true) => {}
            Ok(false) => self.differs(n, "the copy differs from what was written when it is read back"),
            Err(e) => self.broken(n, e),
        }
        let mut state = self.files[n as usize].state();
        state.left -= 1;
        let is_last = state.left == 0;
        if matches!(equal, Ok(true)) {
            let range = range(index, self.piece_bytes, state.identity.size);
            state.verified_bytes += range.end - range.start;
            self.progress.verified_bytes.add(range.end - range.start);
            if let (Some(number), Some(piece)) = (state.number, state.pieces.get_mut(&index)) {
                piece.compared = true;
                drop(state);
                self.checkpoints.compared(Record::Compared { number, index });
            } else {
                drop(state);
            }
        } else {
            drop(state);
        }
        if is_last {
            self.end(n);
        }
    }

    /// All pieces of a file were compared; pieces that were holes on both sides, or were compared by an earlier run,
    /// are counted now.
    fn end(&self, n: u32) {
        let mut state = self.files[n as usize].state();
        if state.verdict == Verdict::Whole {
            self.progress.verified_bytes.add(state.identity.size - state.verified_bytes);
            state.verified_bytes = state.identity.size;
        }
    }

    fn differs(&self, n: u32, how: &str) {
        let mut state = self.files[n as usize].state();
        if state.verdict == Verdict::Whole {
            state.verdict = Verdict::Again(how.into());
        }
    }

    fn broken(&self, n: u32, e: Errno) {
        let path = self.source.path(self.entry(n));
        match e {
            // The medium says that it has lost the copy: another try writes elsewhere.
            Errno::IO => self.differs(n, &format!("the copy cannot be read back: {}", reason(e))),
            _ => self.stop.with(Error::target("read the copy back", &path, e)),
        }
    }
}

fn open_cached(place: &Place<'_>) -> Result<OwnedFd, Errno> {
    let fd = place.open_own(OFlags::RDONLY)?;
    // Everything of it is stable, so the next read comes from the storage.
    let _ = fs::fadvise(&fd, 0, None, Advice::DontNeed);
    Ok(fd)
}
