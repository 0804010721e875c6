//! Open files of a cluster.
//!
//! Owns: how calls on bytes become operations of the client: bytes that the cache serves at once, pieces of long calls,
//! copies. Does not own: starting a client, names (`cluster`).

use super::{Cluster, shown};
use crate::abi::AmphiSetattr;
use crate::abi::AmphiStat;
use crate::failure::{Done, fail};
use crate::memory;
use crate::node::{Bytes, Piece};
use amphi_client::{Buf, Fallocate, Hints, OpenFile, Whence};
use amphi_types::{Errno, SetAttr, limits};
use std::sync::Arc;

/// A call moves no more bytes, as with the kernel (`MAX_RW_COUNT`).
const CALL_MAX: usize = 0x7fff_f000;
/// Calls are cut into requests of this size, bytes; each is atomic.
const PIECE: usize = 16 << 20;

/// An open file of a cluster.
pub(crate) struct ClusterFile {
    pub(crate) fs: Arc<Cluster>,
    pub(crate) open: Arc<OpenFile>,
    pub(crate) path: String,
}

/// Checks an offset as the kernel does, and cuts a length to what one call moves.
///
/// Errors: `EINVAL` for offsets before the start of a file or beyond the largest one.
#[inline]
pub(crate) fn place(offset: i64, len: usize) -> Done<(u64, usize)> {
    match (u64::try_from(offset), i64::try_from(len)) {
        (Ok(at), Ok(bytes)) if offset.checked_add(bytes).is_some() => Ok((at, len.min(CALL_MAX))),
        _ => fail(libc::EINVAL),
    }
}

impl ClusterFile {
    pub(crate) fn close(&self) -> Done<()> {
        Ok(self.fs.client.flush(&self.fs.stream(), &self.open).wait(None)?)
    }

    /// Reads what the cache has, without waiting.
    #[inline]
    pub(crate) fn try_read(&self, into: &mut [u8], offset: u64) -> Option<usize> {
        self.fs.check_running().ok()?;
        self.fs.client.try_read(&self.fs.stream(), &self.open, offset, into, Hints::default())
    }

    #[inline]
    pub(crate) fn read(&self, into: &mut [u8], offset: i64) -> Done<usize> {
        let (offset, len) = place(offset, into.len())?;
        if len <= PIECE
            && let Some(read) = self.try_read(&mut into[..len], offset)
        {
            return Ok(read);
        }
        self.read_slowly(&mut into[..len], offset)
    }

    fn read_slowly(&self, into: &mut [u8], offset: u64) -> Done<usize> {
        self.fs.check_running()?;
        let (mut done, ctx) = (0, self.fs.stream());
        loop {
            let len = (into.len() - done).min(PIECE);
            let hints = Hints { may_continue: done + len < into.len(), ..Hints::default() };
            let read = self.fs.client.read(&ctx, &self.open, offset + done as u64, len, hints).wait(None);
            let copied = match read {
                Ok(data) => data.copy_to(&mut into[done..]),
                Err(_) if done > 0 => return Ok(done),
                Err(e) => return Err(e.into()),
            };
            done += copied;
            if copied < len || done == into.len() {
                return Ok(done);
            }
        }
    }

    /// Writes into the cache, without waiting.
    #[inline]
    pub(crate) fn try_write(&self, from: &[u8], offset: u64) -> Option<usize> {
        self.fs.check_running().ok()?;
        self.fs.client.try_write(&self.fs.stream(), &self.open, offset, from, self.fs.write_hints())
    }

    #[inline]
    pub(crate) fn write(&self, from: &[u8], offset: i64) -> Done<usize> {
        let (at, len) = place(offset, from.len())?;
        if len > 0
            && len <= PIECE
            && let Some(written) = self.try_write(&from[..len], at)
        {
            return Ok(written);
        }
        self.write_slowly(&from[..len], at)
    }

    fn write_slowly(&self, from: &[u8], offset: u64) -> Done<usize> {
        self.fs.check_running()?;
        let (mut done, ctx) = (0, self.fs.stream());
        loop {
            let part = &from[done..(done + PIECE).min(from.len())];
            let hints = Hints { may_continue: done + part.len() < from.len(), ..self.fs.write_hints() };
            let at = offset + done as u64;
            let (data, lent) = self.bytes_of(part, at);
            let written = self.fs.client.write(&ctx, &self.open, at, data, hints).wait(None);
            if let Some(lent) = lent {
                lent.wait();
            }
            match written {
                Ok(written) if written < part.len() => return Ok(done + written),
                Ok(_) => done += part.len(),
                Err(_) if done > 0 => return Ok(done),
                Err(e) => return Err(e.into()),
            }
            if done >= from.len() {
                return Ok(done);
            }
        }
    }

    /// The bytes of a write in the form that the client takes. If the client keeps nothing of them (the file has
    /// `O_DIRECT`), this is the memory of `amphi_alloc` itself; otherwise it is a copy with the alignment of the bytes
    /// in their block.
    pub(crate) fn bytes_of(&self, part: &[u8], offset: u64) -> (Buf, Option<memory::Lent>) {
        if self.open.flags().direct
            && let Some((data, lent)) = memory::lend(part)
        {
            return (data, Some(lent));
        }
        (copied(part, offset), None)
    }

    pub(crate) fn readv(&self, pieces: &[Piece], offset: i64) -> Done<usize> {
        let total = crate::node::length(pieces)?;
        let (offset, len) = place(offset, total)?;
        let mut left = pieces.iter().map(|piece| piece.slice_mut());
        let (mut done, ctx) = (0, self.fs.stream());
        let mut into: &mut [u8] = &mut [];
        while done < len {
            let want = (len - done).min(PIECE);
            let hints = Hints { may_continue: done + want < len, ..Hints::default() };
            let data = match self.fs.client.read(&ctx, &self.open, offset + done as u64, want, hints).wait(None) {
                Ok(data) => data,
                Err(_) if done > 0 => return Ok(done),
                Err(e) => return Err(e.into()),
            };
            for mut part in data.parts() {
                while !part.is_empty() {
                    if into.is_empty() {
                        match left.next() {
                            Some(next) => into = next,
                            None => return Ok(done),
                        }
                        continue;
                    }
                    let n = part.len().min(into.len());
                    let (head, tail) = std::mem::take(&mut into).split_at_mut(n);
                    head.copy_from_slice(&part[..n]);
                    (into, part, done) = (tail, &part[n..], done + n);
                }
            }
            if data.len() < want {
                return Ok(done);
            }
        }
        if len == 0 && !self.open.flags().read {
            return fail(libc::EBADF);
        }
        Ok(done)
    }

    pub(crate) fn writev(&self, pieces: &[Piece], offset: i64) -> Done<usize> {
        let total = crate::node::length(pieces)?;
        let (at, len) = place(offset, total)?;
        if len == 0 {
            return if self.open.flags().write { Ok(0) } else { fail(libc::EBADF) };
        }
        let ctx = self.fs.stream();
        let (mut done, mut pieces, mut from) = (0, pieces.iter(), &[][..]);
        while done < len {
            let want = (len - done).min(PIECE);
            let place = at + done as u64;
            let mut data = Buf::scratch_padded((place % limits::BLOCK) as usize, want);
            let mut filled = 0;
            while filled < want {
                if from.is_empty() {
                    match pieces.next() {
                        Some(next) => from = next.slice(),
                        None => return fail(libc::EINVAL),
                    }
                    continue;
                }
                let n = from.len().min(want - filled);
                data[filled..filled + n].copy_from_slice(&from[..n]);
                (from, filled) = (&from[n..], filled + n);
            }
            let hints = Hints { may_continue: done + want < len, ..self.fs.write_hints() };
            match self.fs.client.write(&ctx, &self.open, place, data, hints).wait(None) {
                Ok(written) if written < want => return Ok(done + written),
                Ok(_) => done += want,
                Err(_) if done > 0 => return Ok(done),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(done)
    }

    pub(crate) fn sync(&self, data_only: bool) -> Done<()> {
        Ok(self.fs.client.fsync(&self.fs.stream(), &self.open, data_only).wait(None)?)
    }

    pub(crate) fn truncate(&self, size: i64) -> Done<()> {
        let size = u64::try_from(size).map_err(|_| Errno::Inval)?;
        if !self.open.flags().write {
            return fail(libc::EINVAL);
        }
        let set =
            SetAttr { size: Some(size), open_for_write: true, kill_suidgid: self.fs.kills(), ..SetAttr::default() };
        self.fs.client.setattr(&self.fs.ctx(), self.open.ino(), set, Some(&self.open)).wait(None)?;
        Ok(())
    }

    pub(crate) fn allocate(&self, mode: i32, offset: i64, len: i64) -> Done<()> {
        let (Ok(offset), Ok(len @ 1..)) = (u64::try_from(offset), u64::try_from(len)) else {
            return fail(libc::EINVAL);
        };
        let mode = Fallocate::from_linux(mode as u32).ok_or(Errno::NotSupported)?;
        if !self.open.flags().write {
            return fail(libc::EBADF);
        }
        if offset + len > limits::FILE_MAX {
            return fail(libc::EFBIG);
        }
        let ctx = self.fs.ctx();
        if self.fs.kills() {
            let attr = self.fs.client.getattr(&ctx, self.open.ino()).wait(None)?;
            self.fs.after_cut(&ctx, &attr)?;
        }
        Ok(self.fs.client.fallocate(&ctx, &self.open, mode, offset, len).wait(None)?)
    }

    pub(crate) fn stat(&self) -> Done<AmphiStat> {
        Ok(shown(&self.fs.client.getattr(&self.fs.stream(), self.open.ino()).wait(None)?))
    }

    pub(crate) fn setattr(&self, set: &AmphiSetattr) -> Done<()> {
        let ctx = self.fs.ctx();
        if set.valid & crate::abi::AMPHI_SET_SIZE != 0 && !self.open.flags().write {
            return fail(libc::EINVAL);
        }
        let attr = self.fs.client.getattr(&ctx, self.open.ino()).wait(None)?;
        self.fs.set(&ctx, &attr, set, Some(&self.open))
    }

    pub(crate) fn seek(&self, offset: i64, hole: bool) -> Done<u64> {
        // The kernel returns this for every offset outside the file.
        let offset = u64::try_from(offset).map_err(|_| Errno::NxIo)?;
        let whence = if hole { Whence::Hole } else { Whence::Data };
        Ok(self.fs.client.lseek(&self.fs.stream(), &self.open, offset, whence).wait(None)?)
    }
}

impl ClusterFile {
    /// Copies within the client. Errors: `EINVAL` for offsets that do not exist.
    pub(crate) fn copy(&self, from: i64, to: &ClusterFile, at: i64, len: usize) -> Done<usize> {
        let (from, len) = place(from, len)?;
        let (at, len) = place(at, len)?;
        if !self.open.flags().read || !to.open.flags().write || to.open.flags().append {
            return fail(libc::EBADF);
        }
        let ctx = self.fs.ctx();
        if self.fs.kills() {
            let attr = self.fs.client.getattr(&ctx, to.open.ino()).wait(None)?;
            self.fs.after_cut(&ctx, &attr)?;
        }
        let len = (len as u64).min(PIECE as u64);
        Ok(self.fs.client.copy_file_range(&ctx, (&self.open, from), (&to.open, at), len).wait(None)?)
    }
}

/// A copy of bytes that lies as they will in their block.
pub(crate) fn copied(bytes: &[u8], offset: u64) -> Buf {
    let mut data = Buf::scratch_padded((offset % limits::BLOCK) as usize, bytes.len());
    data.copy_from_slice(bytes);
    data
}
