//! Any POSIX file system, through `pread` and `pwritev` on descriptors of our own.
//!
//! With direct I/O the file has two descriptors. Whole blocks of 4096 bytes with aligned memory use one with
//! `O_DIRECT`, and the rest, such as the tail of a file, uses the other one. Nothing is ever padded, so the length of
//! the file is always right. If a file system refuses the first direct request, direct I/O is not used from then on.

use super::Backend;
use crate::error::{Error, Outcome};
use std::ffi::CStr;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Largest request that is passed to the kernel at once. The kernel itself stops at 2 GiB less a page.
const REQUEST_BYTES: usize = 1 << 30;

/// How many parts one request may have (`IOV_MAX` of Linux).
const REQUEST_PARTS: usize = 1024;

/// The unit of direct requests, in the file and in memory.
const BLOCK: usize = 4096;

/// `AMPHI_NO_EXPAND` (docs/IOCTL.md).
const NO_EXPAND: libc::c_ulong = 0x4004_4103;
/// `AMPHI_LOCK_AHEAD`: a lock on exactly these bytes, without waiting for conflicting ones. 1 or 2: the mount has such
/// a lock.
const LOCK_AHEAD: libc::c_ulong = 0x4018_4104;
/// `AMPHI_GROUP_LOCK`, with the group, and 1 for not to wait; `AMPHI_GROUP_UNLOCK`; `AMPHI_GROUP_WANTED`.
const GROUP_LOCK: libc::c_ulong = 0x4010_4105;
const GROUP_UNLOCK: libc::c_ulong = 0x4008_4106;
const GROUP_WANTED: libc::c_ulong = 0x8004_4108;

/// Whether blocks go past the kernel's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// Direct I/O is never used.
    Off,
    /// Direct I/O is used if the file system permits it.
    On,
    /// Direct I/O is used on an AmphiFS mount, which has a cache of its own.
    Automatic,
}

/// A file of a POSIX file system.
#[derive(Debug)]
pub struct PosixFile {
    fd: OwnedFd,
    direct: Option<OwnedFd>,
    /// The file system has refused a direct request.
    refused: AtomicBool,
    direct_requests: AtomicU64,
    /// Whether each request asks for a lock on exactly its bytes.
    exact_locks: bool,
}

impl PosixFile {
    /// Opens an existing regular file. Anything but a regular file is refused, because caching would change its
    /// meaning.
    pub fn open(path: &CStr, readable: bool, writable: bool, direct: Direct) -> Outcome<PosixFile> {
        let mode = match (readable, writable) {
            (true, true) => libc::O_RDWR,
            (false, true) => libc::O_WRONLY,
            _ => libc::O_RDONLY,
        };
        let fd = open(path, mode)?;
        let wanted = match direct {
            Direct::Off => false,
            Direct::On => true,
            Direct::Automatic => is_amphi(&fd),
        };
        let direct = if wanted { open(path, mode | libc::O_DIRECT).ok() } else { None };
        let (refused, direct_requests) = (AtomicBool::new(false), AtomicU64::new(0));
        let file = PosixFile { fd, direct, refused, direct_requests, exact_locks: false };
        let stat = file.stat()?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Error::Refused("not a regular file"));
        }
        Ok(file)
    }

    /// On an AmphiFS mount, locks should cover exactly the requested bytes, since several nodes write the file. Each
    /// node writes runs of its own, so no node then calls back locks of another one. On other file systems this has no
    /// effect.
    pub fn want_exact_locks(&mut self) {
        self.exact_locks = is_amphi(&self.fd);
        if !self.exact_locks {
            return;
        }
        for fd in [Some(&self.fd), self.direct.as_ref()].into_iter().flatten() {
            let on = 1u32;
            // SAFETY: the command reads four bytes, which live through the call. An older file system refuses the
            // command, which only costs speed.
            unsafe { libc::ioctl(fd.as_raw_fd(), NO_EXPAND, &raw const on) };
        }
    }

    /// Uses the descriptors of another process, or of another part of this one, from now on: the very same open files.
    /// The system permits it to processes that may trace that process.
    pub fn share(&mut self, process: i32, descriptors: [RawFd; 2]) -> Outcome {
        // SAFETY: plain numbers go in; the descriptors that come back are ours alone.
        let shared = unsafe {
            let pidfd = libc::syscall(libc::SYS_pidfd_open, process, 0) as RawFd;
            if pidfd < 0 {
                return Err(Error::last_os("pidfd_open"));
            }
            let pidfd = OwnedFd::from_raw_fd(pidfd);
            let get = |fd: RawFd| match libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) as RawFd {
                got if got < 0 => Err(Error::last_os("pidfd_getfd")),
                got => Ok(OwnedFd::from_raw_fd(got)),
            };
            let [plain, direct] = descriptors;
            (get(plain)?, if direct < 0 { None } else { Some(get(direct)?) })
        };
        let mine = self.identity()?;
        (self.fd, self.direct) = shared;
        if self.identity()? == mine { Ok(()) } else { Err(Error::Refused("what rank 0 shows is another file")) }
    }

    /// Requests a lock to write these bytes; false means that another mount holds a conflicting one.
    fn lock_ahead(&self, offset: u64, bytes: u64) -> bool {
        /// The argument of the lock-ahead call, as docs/IOCTL.md describes it.
        #[repr(C)]
        struct Ahead {
            offset: u64,
            bytes: u64,
            mode: u32,
            /// 1: wait for the answer.
            flags: u32,
        }
        let to_write = Ahead { offset, bytes, mode: 1, flags: 1 };
        // SAFETY: the argument has the size that is part of the command and lives through the call.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), LOCK_AHEAD, &raw const to_write) > 0 }
    }

    /// A command for both descriptors.
    fn control<T>(&self, command: libc::c_ulong, argument: &mut T) -> Outcome {
        for fd in [Some(&self.fd), self.direct.as_ref()].into_iter().flatten() {
            // SAFETY: the argument has the size that is part of the command and lives through the call.
            if unsafe { libc::ioctl(fd.as_raw_fd(), command, std::ptr::from_mut(argument)) } != 0 {
                return Err(Error::last_os("group lock"));
            }
        }
        Ok(())
    }

    /// Returns whether whole blocks go past the kernel's page cache, as far as is known.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some() && !self.refused.load(Relaxed)
    }

    /// The unit in which the file system likes to be used.
    pub fn preferred_bytes(&self) -> Outcome<u64> {
        Ok(self.stat()?.st_blksize.max(512) as u64)
    }

    /// Returns how many consecutive bytes are on one target: on an AmphiFS mount as its layout says.
    pub fn stripe_bytes(&self) -> Option<u64> {
        let mut text = [0u8; 256];
        // SAFETY: the name ends with a zero byte; the buffer is ours and as long as is said.
        let n = unsafe {
            let name = c"user.amphi.layout".as_ptr();
            libc::fgetxattr(self.fd.as_raw_fd(), name, text.as_mut_ptr().cast(), text.len())
        };
        let text = text.get(..usize::try_from(n).ok()?)?;
        stripe_of(std::str::from_utf8(text).ok()?)
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

fn open(path: &CStr, flags: libc::c_int) -> Outcome<OwnedFd> {
    // SAFETY: the path ends with a zero byte; the descriptor that comes back is ours alone.
    unsafe {
        let fd = libc::open(path.as_ptr(), flags | libc::O_CLOEXEC);
        if fd < 0 { Err(Error::last_os("open")) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// The size of a stripe in a layout as AmphiFS writes it: `striped,size=1M,count=4`, `growing,...`.
fn stripe_of(layout: &str) -> Option<u64> {
    let size = layout.trim().split(',').find_map(|part| part.trim().strip_prefix("size="))?;
    let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let shift = match size[digits.len()..].trim() {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| (1..=1 << 32).contains(bytes))
}

/// Returns whether a file is on a mount of AmphiFS: only there this attribute can be read.
fn is_amphi(fd: &OwnedFd) -> bool {
    // SAFETY: the name ends with a zero byte; without room nothing is written.
    unsafe { libc::fgetxattr(fd.as_raw_fd(), c"user.amphi.mode".as_ptr(), std::ptr::null_mut(), 0) >= 0 }
}

/// Returns how many bytes at the start of a request at `offset` are before its first whole block, and how many whole
/// blocks follow that are aligned in memory, in bytes.
fn blocks(parts: &[IoSlice<'_>], offset: u64) -> (usize, usize) {
    let head = (BLOCK - (offset % BLOCK as u64) as usize) % BLOCK;
    let (mut skip, mut whole) = (head, 0);
    for part in parts {
        let from = skip.min(part.len());
        skip -= from;
        let rest = &part[from..];
        if rest.is_empty() {
            continue;
        }
        if !rest.as_ptr().addr().is_multiple_of(BLOCK) {
            break;
        }
        whole += rest.len() / BLOCK * BLOCK;
        if !rest.len().is_multiple_of(BLOCK) {
            break;
        }
    }
    (head, whole)
}

/// The parts without their first `skip` bytes, and of the rest `length` bytes at most.
fn cut<'a>(parts: &'a [IoSlice<'_>], mut skip: usize, mut length: usize) -> Vec<IoSlice<'a>> {
    let mut found = Vec::new();
    for part in parts {
        let from = skip.min(part.len());
        skip -= from;
        let take = (part.len() - from).min(length);
        length -= take;
        if take > 0 {
            found.push(IoSlice::new(&part[from..from + take]));
        }
    }
    found
}

fn refuses(error: Error) -> bool {
    matches!(error, Error::Os { errno: libc::EINVAL | libc::EOPNOTSUPP, .. })
}

/// An offset in the type that the kernel uses.
fn offset_of(offset: u64) -> Outcome<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| Error::Refused("an offset lies beyond the largest file"))
}

/// Makes at least one read request; returns 0 at the end of the file.
fn read_some(fd: RawFd, buffer: &mut [u8], offset: u64) -> Outcome<usize> {
    loop {
        let want = buffer.len().min(REQUEST_BYTES);
        // SAFETY: `want` bytes from the start of the buffer are ours to write.
        let n = unsafe { libc::pread(fd, buffer.as_mut_ptr().cast(), want, offset_of(offset)?) };
        if n >= 0 {
            return Ok(n as usize);
        }
        let error = Error::last_os("pread");
        if !interrupted(error) {
            return Err(error);
        }
    }
}

/// Writes the parts one after the other.
fn write_all(fd: RawFd, parts: &[IoSlice<'_>], offset: u64) -> Outcome {
    // The rest of the request: from the part with this index on, and in that part from this byte on.
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
        let n = unsafe { libc::pwritev(fd, batch.as_ptr().cast(), batch.len() as i32, offset_of(at)?) };
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

fn interrupted(error: Error) -> bool {
    matches!(error, Error::Os { errno: libc::EINTR, .. })
}

impl Backend for PosixFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Outcome<usize> {
        let aligned = buffer.as_ptr().addr().is_multiple_of(BLOCK) && offset.is_multiple_of(BLOCK as u64);
        let whole = buffer.len() / BLOCK * BLOCK;
        let usable = self.direct.as_ref().filter(|_| aligned && whole > 0 && !self.refused.load(Relaxed));
        let mut done = 0;
        if let Some(direct) = usable {
            self.direct_requests.fetch_add(1, Relaxed);
            match read_some(direct.as_raw_fd(), &mut buffer[..whole], offset) {
                Ok(n) => done = n,
                Err(error) if refuses(error) => self.refused.store(true, Relaxed),
                Err(error) => return Err(error),
            }
        }
        // The rest after a direct request is not aligned any more, and mostly the end of the file.
        while done < buffer.len() {
            match read_some(self.fd.as_raw_fd(), &mut buffer[done..], offset + done as u64)? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Outcome {
        let (head, whole) = blocks(parts, offset);
        let Some(direct) = self.direct.as_ref().filter(|_| whole > 0 && !self.refused.load(Relaxed)) else {
            return write_all(self.fd.as_raw_fd(), parts, offset);
        };
        write_all(self.fd.as_raw_fd(), &cut(parts, 0, head), offset)?;
        let middle = cut(parts, head, whole);
        self.direct_requests.fetch_add(1, Relaxed);
        match write_all(direct.as_raw_fd(), &middle, offset + head as u64) {
            Err(error) if refuses(error) => {
                self.refused.store(true, Relaxed);
                write_all(self.fd.as_raw_fd(), &middle, offset + head as u64)?;
            }
            other => other?,
        }
        let done = head + whole;
        write_all(self.fd.as_raw_fd(), &cut(parts, done, usize::MAX), offset + done as u64)
    }

    /// If each of thousands of parts had a lock, the file system would get as many requests. So the mount gets one lock
    /// for all of them, if possible. Then the parts also leave its cache together. Locks of single parts may conflict,
    /// which another mount got when it had the page. No part of this process calls these locks back, but a read of the
    /// whole range does.
    fn expect_parts(&self, offset: u64, bytes: u64) {
        if !self.exact_locks || self.lock_ahead(offset, bytes) {
            return;
        }
        let mut unused = vec![0; usize::try_from(bytes).unwrap_or(0)];
        if read_some(self.fd.as_raw_fd(), &mut unused, offset).is_ok() {
            self.lock_ahead(offset, bytes);
        }
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

    fn identity(&self) -> Outcome<(u64, u64)> {
        self.stat().map(|stat| (stat.st_dev, stat.st_ino))
    }

    fn descriptors(&self) -> [RawFd; 2] {
        [self.fd.as_raw_fd(), self.direct.as_ref().map_or(-1, AsRawFd::as_raw_fd)]
    }

    fn group_join(&self, group: u64) -> Outcome {
        /// The argument of the call to join a group, as docs/IOCTL.md describes it.
        #[repr(C)]
        struct Join {
            group: u64,
            flags: u32,
            zero: u32,
        }
        let joined = self.control(GROUP_LOCK, &mut Join { group, flags: 1, zero: 0 });
        if joined.is_err() {
            // Perhaps one of the two is a member.
            let _ = self.group_leave(group);
        }
        joined
    }

    fn group_leave(&self, group: u64) -> Outcome {
        let mut result = Ok(());
        // Data in the page cache is written first, so that its bytes are written under the group lock, too.
        for fd in [Some(&self.fd), self.direct.as_ref()].into_iter().flatten() {
            // SAFETY: the command reads eight bytes, which live through the call.
            if unsafe { libc::ioctl(fd.as_raw_fd(), GROUP_UNLOCK, &raw const group) } != 0 {
                result = Err(Error::last_os("group lock"));
            }
        }
        result
    }

    fn group_wanted(&self) -> Outcome<bool> {
        let mut wanted = 0u32;
        // SAFETY: the command writes four bytes, which live through the call.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), GROUP_WANTED, &raw mut wanted) } {
            0 => Ok(wanted != 0),
            _ => Err(Error::last_os("group lock")),
        }
    }

    fn direct_requests(&self) -> u64 {
        self.direct_requests.load(Relaxed)
    }

    fn sync(&self) -> Outcome {
        // SAFETY: no memory is involved.
        match unsafe { libc::fdatasync(self.fd.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(Error::last_os("fdatasync")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the stripe of a layout is parsed, and nothing else is taken for one. Method: what AmphiFS writes, and
    /// other text.
    #[test]
    fn stripes_of_layouts() {
        for (layout, stripe) in [
            ("striped,size=1M,count=4", Some(1 << 20)),
            ("striped,size=64K,count=1\n", Some(64 << 10)),
            ("striped, size=4 MiB, count=2", Some(4 << 20)),
            ("striped,size=4096", Some(4096)),
            ("growing", None),
            ("whole", None),
            ("size=", None),
            ("size=0", None),
            ("size=9999999999999G", None),
            ("size=1T", None),
        ] {
            assert_eq!(stripe_of(layout), stripe, "{layout}");
        }
    }
}
