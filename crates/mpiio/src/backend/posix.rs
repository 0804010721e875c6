//! Any POSIX file system, through `pread` and `pwritev` on a descriptor of our own.

use super::Backend;
use crate::error::{Error, Outcome};
use std::ffi::CStr;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Largest request handed to the kernel at once; the kernel itself stops at 2 GiB less a page.
const REQUEST_BYTES: usize = 1 << 30;

/// How many parts one request may have (`IOV_MAX` of Linux).
const REQUEST_PARTS: usize = 1024;

/// A file of a POSIX file system.
#[derive(Debug)]
pub struct PosixFile {
    fd: OwnedFd,
}

impl PosixFile {
    /// Opens an existing regular file. What is no regular file is refused: caching it would change what it means.
    pub fn open(path: &CStr, readable: bool, writable: bool) -> Outcome<PosixFile> {
        let mode = match (readable, writable) {
            (true, true) => libc::O_RDWR,
            (false, true) => libc::O_WRONLY,
            _ => libc::O_RDONLY,
        };
        // SAFETY: the path ends with a zero byte; the descriptor that comes back is ours alone.
        let fd = unsafe {
            let fd = libc::open(path.as_ptr(), mode | libc::O_CLOEXEC);
            if fd < 0 {
                return Err(Error::last_os("open"));
            }
            OwnedFd::from_raw_fd(fd)
        };
        let file = PosixFile { fd };
        let stat = file.stat()?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Error::Refused("not a regular file"));
        }
        Ok(file)
    }

    /// The unit in which the file system likes to be used.
    pub fn preferred_bytes(&self) -> Outcome<u64> {
        Ok(self.stat()?.st_blksize.max(512) as u64)
    }

    fn stat(&self) -> Outcome<libc::stat> {
        let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: the structure is as large as the call expects and all-zero bytes are a valid value of it.
        unsafe {
            if libc::fstat(self.fd.as_raw_fd(), stat.as_mut_ptr()) != 0 {
                return Err(Error::last_os("fstat"));
            }
            Ok(stat.assume_init())
        }
    }
}

/// An offset as the kernel takes it.
fn offset_of(offset: u64) -> Outcome<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| Error::Refused("an offset lies beyond the largest file"))
}

fn interrupted(error: Error) -> bool {
    matches!(error, Error::Os { errno: libc::EINTR, .. })
}

impl Backend for PosixFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Outcome<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            let want = rest.len().min(REQUEST_BYTES);
            // SAFETY: `want` bytes from the start of `rest` are ours to write.
            let n = unsafe {
                libc::pread(self.fd.as_raw_fd(), rest.as_mut_ptr().cast(), want, offset_of(offset + done as u64)?)
            };
            match n {
                0 => break,
                n if n > 0 => done += n as usize,
                _ => {
                    let error = Error::last_os("pread");
                    if !interrupted(error) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(done)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Outcome {
        // What is left of the request: the part with this index, from this byte of it on.
        let (mut index, mut skip, mut at) = (0, 0, offset);
        while index < parts.len() {
            if parts[index].len() == skip {
                (index, skip) = (index + 1, 0);
                continue;
            }
            let mut batch = Vec::new();
            let mut bytes = 0;
            for part in &parts[index..] {
                let from = if batch.is_empty() { skip } else { 0 };
                let take = (part.len() - from).min(REQUEST_BYTES - bytes);
                batch.push(IoSlice::new(&part[from..from + take]));
                bytes += take;
                if bytes == REQUEST_BYTES || batch.len() == REQUEST_PARTS {
                    break;
                }
            }
            // SAFETY: `IoSlice` has the layout of `iovec`, and the parts live through the call.
            let n = unsafe {
                libc::pwritev(self.fd.as_raw_fd(), batch.as_ptr().cast(), batch.len() as i32, offset_of(at)?)
            };
            if n < 0 {
                let error = Error::last_os("pwritev");
                if interrupted(error) {
                    continue;
                }
                return Err(error);
            }
            if n == 0 {
                return Err(Error::Os { doing: "pwritev", errno: libc::EIO });
            }
            at += n as u64;
            let mut left = n as usize;
            while left > 0 {
                let here = (parts[index].len() - skip).min(left);
                skip += here;
                left -= here;
                if skip == parts[index].len() {
                    (index, skip) = (index + 1, 0);
                }
            }
        }
        Ok(())
    }

    fn size(&self) -> Outcome<u64> {
        Ok(self.stat()?.st_size.max(0) as u64)
    }

    fn set_size(&self, size: u64) -> Outcome {
        // SAFETY: no memory is involved.
        match unsafe { libc::ftruncate(self.fd.as_raw_fd(), offset_of(size)?) } {
            0 => Ok(()),
            _ => Err(Error::last_os("ftruncate")),
        }
    }

    fn allocate(&self, size: u64) -> Outcome {
        if size == 0 {
            return Ok(());
        }
        // SAFETY: no memory is involved. The call returns the error instead of setting errno.
        match unsafe { libc::posix_fallocate(self.fd.as_raw_fd(), 0, offset_of(size)?) } {
            0 => Ok(()),
            errno => Err(Error::Os { doing: "fallocate", errno }),
        }
    }

    fn sync(&self) -> Outcome {
        // SAFETY: no memory is involved.
        match unsafe { libc::fdatasync(self.fd.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(Error::last_os("fdatasync")),
        }
    }
}
