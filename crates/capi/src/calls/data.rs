//! Calls on open files.
//!
//! Owns: those that read, write and change what a file holds. Does not own: names (`names`), requests (`queues`).

use super::{fill, given, only};
use crate::abi::*;
use crate::failure::{Done, Fail, Subject, border, fail};
use crate::lookup::{dir, file, path_of};
use crate::node::{Bytes, Piece, length};
use crate::object::{Dir, File, Kind, Object};
use crate::registry::with;
use amphi_client::{Ahead, FileAdvice, Interrupt};
use amphi_types::{ByteRange, limits};
use libc::iovec;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Most buffers of a call, as with the kernel (`IOV_MAX`).
const PIECES_MAX: c_int = 1024;

/// The result of a call while it held on to the file itself.
enum Quick {
    Done(usize),
    Slow(File),
}

#[inline]
fn pieces<'a>(vector: *const iovec, count: c_int) -> Done<&'a [Piece]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(_) if vector.is_null() || count > PIECES_MAX => fail(libc::EINVAL),
        // SAFETY: the program vouches for an array of so many; a `Piece` is laid out as an `iovec`.
        Ok(count) => Ok(unsafe { std::slice::from_raw_parts(vector.cast::<Piece>(), count) }),
        Err(_) => fail(libc::EINVAL),
    }
}

/// Reads up to `len` bytes at `offset` into `buffer`. Returns how many: fewer at the end of the file.
///
/// Errors: those of pread(2), but `EINVAL` for a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_pread(file: AmphiHandle, buffer: *mut c_void, len: usize, offset: i64) -> i64 {
    border("amphi_pread", Subject::Path(&|| path_of(file)), || {
        let piece = Piece { base: buffer, len };
        length(&[piece])?;
        let quick = with(file, &[Kind::File], |object| match object {
            Object::File(File::Cluster(open)) => {
                let (at, len) = crate::cluster::place(offset, len)?;
                let read = open.try_read(&mut piece.slice_mut()[..len], at);
                Ok(read.map_or_else(|| Quick::Slow(File::Cluster(open.clone())), Quick::Done))
            }
            Object::File(File::Node(open)) => {
                let read = open.try_read(&[piece], offset);
                Ok(read.map_or_else(|| Quick::Slow(File::Node(open.clone())), Quick::Done))
            }
            _ => fail(libc::EBADF),
        })?;
        Ok(match quick {
            Quick::Done(read) => read,
            Quick::Slow(File::Cluster(open)) => open.read(piece.slice_mut(), offset)?,
            Quick::Slow(File::Node(open)) => open.read(&[piece], offset)?,
        } as i64)
    })
}

/// Writes `len` bytes of `buffer` at `offset`, or at the end of a file that was opened with `O_APPEND`. Returns how
/// many: fewer only if storage or a limit ends there.
///
/// Errors: those of pwrite(2), but `EINVAL` for a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_pwrite(file: AmphiHandle, buffer: *const c_void, len: usize, offset: i64) -> i64 {
    border("amphi_pwrite", Subject::Path(&|| path_of(file)), || {
        let piece = Piece { base: buffer.cast_mut(), len };
        length(&[piece])?;
        let quick = with(file, &[Kind::File], |object| match object {
            Object::File(File::Cluster(open)) => {
                let (at, room) = crate::cluster::place(offset, len)?;
                let written = if room == len { open.try_write(piece.slice(), at) } else { None };
                Ok(written.map_or_else(|| Quick::Slow(File::Cluster(open.clone())), Quick::Done))
            }
            Object::File(open) => Ok(Quick::Slow(open.clone())),
            _ => fail(libc::EBADF),
        })?;
        Ok(match quick {
            Quick::Done(written) => written,
            Quick::Slow(File::Cluster(open)) => open.write(piece.slice(), offset)?,
            Quick::Slow(File::Node(open)) => open.write(&[piece], offset)?,
        } as i64)
    })
}

/// As `amphi_pread`, into up to 1,024 buffers one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_preadv(
    file_handle: AmphiHandle,
    vector: *const iovec,
    count: c_int,
    offset: i64,
) -> i64 {
    border("amphi_preadv", Subject::Path(&|| path_of(file_handle)), || {
        let pieces = pieces(vector, count)?;
        Ok(match file(file_handle)? {
            File::Cluster(open) => open.readv(pieces, offset)?,
            File::Node(open) => open.read(pieces, offset)?,
        } as i64)
    })
}

/// As `amphi_pwrite`, from up to 1,024 buffers one after the other, as one write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_pwritev(
    file_handle: AmphiHandle,
    vector: *const iovec,
    count: c_int,
    offset: i64,
) -> i64 {
    border("amphi_pwritev", Subject::Path(&|| path_of(file_handle)), || {
        let pieces = pieces(vector, count)?;
        Ok(match file(file_handle)? {
            File::Cluster(open) => open.writev(pieces, offset)?,
            File::Node(open) => open.write(pieces, offset)?,
        } as i64)
    })
}

fn sync(call: &'static str, handle: AmphiHandle, data_only: bool) -> c_int {
    border(call, Subject::Path(&|| path_of(handle)), || {
        let is_dir = with(handle, &[Kind::File, Kind::Dir], |object| Ok(matches!(object, Object::Dir(_))))?;
        if is_dir {
            match dir(handle)? {
                Dir::Cluster(dir) => dir.sync()?,
                Dir::Node(dir) => dir.sync()?,
            }
        } else {
            match file(handle)? {
                File::Cluster(file) => file.sync(data_only)?,
                File::Node(file) => file.sync(data_only)?,
            }
        }
        Ok(0)
    }) as c_int
}

/// Returns when all that was written to the file, and its attributes, are on stable storage; of a directory: its
/// entries.
///
/// Errors: failures of write-back that this open file was not told of, once.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_fsync(handle: AmphiHandle) -> c_int {
    sync("amphi_fsync", handle, false)
}

/// As `amphi_fsync`, but only what is needed to find the data again.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_fdatasync(handle: AmphiHandle) -> c_int {
    sync("amphi_fdatasync", handle, true)
}

fn on_file(call: &'static str, handle: AmphiHandle, run: impl FnOnce(File) -> Done<i64>) -> i64 {
    border(call, Subject::Path(&|| path_of(handle)), || run(file(handle)?))
}

/// Sets the length: what is beyond it goes, what is added reads as zeros.
///
/// Errors: those of ftruncate(2).
#[unsafe(no_mangle)]
pub extern "C" fn amphi_ftruncate(file: AmphiHandle, size: i64) -> c_int {
    on_file("amphi_ftruncate", file, |file| {
        match file {
            File::Cluster(file) => file.truncate(size)?,
            File::Node(file) => file.truncate(size)?,
        }
        Ok(0)
    }) as c_int
}

/// Reserves or frees storage; `mode` is that of fallocate(2): 0, `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE |
/// FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_ZERO_RANGE`.
///
/// Errors: those of fallocate(2).
#[unsafe(no_mangle)]
pub extern "C" fn amphi_fallocate(file: AmphiHandle, mode: c_int, offset: i64, len: i64) -> c_int {
    on_file("amphi_fallocate", file, |file| {
        match file {
            File::Cluster(file) => file.allocate(mode, offset, len)?,
            File::Node(file) => file.allocate(mode, offset, len)?,
        }
        Ok(0)
    }) as c_int
}

/// The attributes of an open file. The caller sets `struct_size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_fstat(file: AmphiHandle, stat: *mut AmphiStat) -> c_int {
    on_file("amphi_fstat", file, |file| {
        let found = match file {
            File::Cluster(file) => file.stat()?,
            File::Node(file) => file.stat()?,
        };
        // SAFETY: the program vouches for its struct.
        unsafe { fill(stat, found) }
    }) as c_int
}

/// Sets attributes of an open file, those that `valid` names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_fsetattr(file: AmphiHandle, set: *const AmphiSetattr) -> c_int {
    on_file("amphi_fsetattr", file, |file| {
        // SAFETY: the program vouches for its struct.
        let set = unsafe { given(set) }?;
        only(set.valid, 0xff)?;
        match file {
            File::Cluster(file) => file.setattr(&set)?,
            File::Node(file) => file.setattr(&set)?,
        }
        Ok(0)
    }) as c_int
}

/// Where data (`SEEK_DATA`) or a hole (`SEEK_HOLE`) begins, at `offset` or behind it. Files have no position: others
/// are refused.
///
/// Errors: `ENXIO` beyond the end, or if no more data follows.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_seek(file: AmphiHandle, offset: i64, whence: c_int) -> i64 {
    on_file("amphi_seek", file, |file| {
        let hole = match whence {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return Err(Fail::new(libc::EINVAL, "an open file has no position here")),
        };
        Ok(match file {
            File::Cluster(file) => file.seek(offset, hole)?,
            File::Node(file) => file.seek(offset, hole)?,
        } as i64)
    })
}

/// Copies up to `len` bytes between files of one file system, without passing them through the program. Returns how
/// many.
///
/// Errors: those of copy_file_range(2); `EXDEV` for files of two file systems.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_copy_range(
    from: AmphiHandle,
    from_offset: i64,
    to: AmphiHandle,
    to_offset: i64,
    len: usize,
) -> i64 {
    on_file("amphi_copy_range", from, |from| match (from, file(to)?) {
        (File::Cluster(from), File::Cluster(to)) if Arc::ptr_eq(&from.fs, &to.fs) => {
            from.copy(from_offset, &to, to_offset, len).map(|copied| copied as i64)
        }
        (File::Node(from), File::Node(to)) => from.copy(from_offset, &to, to_offset, len).map(|copied| copied as i64),
        _ => fail(libc::EXDEV),
    })
}

/// Bytes of an advice or a lock; length 0: to the end.
fn range(offset: i64, len: i64) -> Done<ByteRange> {
    match (u64::try_from(offset), u64::try_from(len)) {
        (Ok(offset), Ok(0)) => Ok(ByteRange::new(offset, limits::FILE_MAX)),
        (Ok(offset), Ok(len)) => Ok(ByteRange::new(offset, offset.saturating_add(len).min(limits::FILE_MAX))),
        _ => fail(libc::EINVAL),
    }
}

/// Says how `len` bytes at `offset` will be used (0: to the end), as posix_fadvise(2): `AMPHI_ADVISE_*`.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_advise(file: AmphiHandle, offset: i64, len: i64, advice: u32) -> c_int {
    on_file("amphi_advise", file, |file| {
        let range = range(offset, len)?;
        let advised = match advice {
            AMPHI_ADVISE_NORMAL => FileAdvice::Normal,
            AMPHI_ADVISE_RANDOM => FileAdvice::Random,
            AMPHI_ADVISE_SEQUENTIAL => FileAdvice::Sequential,
            AMPHI_ADVISE_WILLNEED => FileAdvice::WillNeed,
            AMPHI_ADVISE_DONTNEED => FileAdvice::DontNeed,
            AMPHI_ADVISE_ONCE => FileAdvice::Once,
            _ => return fail(libc::EINVAL),
        };
        match file {
            File::Cluster(file) => file.fs.client.advise(&file.open, range, advised)?,
            File::Node(file) => file.advise(range.start, len as u64, advice)?,
        }
        Ok(0)
    }) as c_int
}

/// Asks for a lock of the cluster on bytes that will be read, or written with `AMPHI_LOCK_WRITE`, before they are; see
/// docs/IOCTL.md. Returns `AMPHI_LOCK_SENT`, `AMPHI_LOCK_HELD` or `AMPHI_LOCK_COVERED`.
///
/// Errors: `EBADF` if it is not open for that, `EINVAL` for no bytes, `EBUSY` if too many are under way.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_lock_ahead(file: AmphiHandle, offset: i64, len: i64, flags: u32) -> c_int {
    on_file("amphi_lock_ahead", file, |file| {
        only(flags, AMPHI_LOCK_WRITE | AMPHI_LOCK_WAIT)?;
        if len == 0 {
            return fail(libc::EINVAL);
        }
        let range = range(offset, len)?;
        let (write, wait) = (flags & AMPHI_LOCK_WRITE != 0, flags & AMPHI_LOCK_WAIT != 0);
        match file {
            File::Cluster(file) => {
                let client = &file.fs.client;
                let ahead = match wait {
                    true => client.lock_ahead_answered(&file.open, range, write).wait(None)?,
                    false => client.lock_ahead(&file.open, range, write)?,
                };
                Ok(match ahead {
                    Ahead::Asked => AMPHI_LOCK_SENT,
                    Ahead::Same => AMPHI_LOCK_HELD,
                    Ahead::Different => AMPHI_LOCK_COVERED,
                }
                .into())
            }
            File::Node(file) => file.lock_ahead(range.start, range.len(), write, wait),
        }
    }) as c_int
}

/// Makes the open file a member of a group (not 0): until all members have left, they alone do I/O on the file, and
/// order it themselves; see docs/IOCTL.md.
///
/// Errors: `EINVAL` if it is a member; `EAGAIN` with `AMPHI_GROUP_NOWAIT` if another group has the file.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_group_lock(file: AmphiHandle, group: u64, flags: u32) -> c_int {
    on_file("amphi_group_lock", file, |file| {
        only(flags, AMPHI_GROUP_NOWAIT)?;
        let wait = flags & AMPHI_GROUP_NOWAIT == 0;
        match file {
            File::Cluster(file) => {
                let never = Arc::new(Interrupt::new());
                file.fs.client.group_lock(&file.open, group, wait, never).wait(None)?;
            }
            File::Node(file) => file.group_lock(group, wait)?,
        }
        Ok(0)
    }) as c_int
}

/// Leaves the group. The last member of this client writes everything back.
///
/// Errors: `EINVAL` if it is no member of it; failures of write-back.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_group_unlock(file: AmphiHandle, group: u64) -> c_int {
    on_file("amphi_group_unlock", file, |file| {
        match file {
            File::Cluster(file) if file.open.group() != group => return fail(libc::EINVAL),
            File::Cluster(file) => file.fs.client.group_unlock(&file.open).wait(None)?,
            File::Node(file) => file.group_unlock(group)?,
        }
        Ok(0)
    }) as c_int
}

/// Whether anybody waits for the end of the group that the open file is a member of: 0 or 1.
///
/// Errors: `EINVAL` if it is no member.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_group_wanted(file: AmphiHandle) -> c_int {
    on_file("amphi_group_wanted", file, |file| {
        Ok(match file {
            File::Cluster(file) => file.fs.client.group_wanted(&file.open).wait(None)?,
            File::Node(file) => file.group_wanted()?,
        }
        .into())
    }) as c_int
}
