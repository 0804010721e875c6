//! Access over a mount of this machine: the kernel's descriptors, and cached reads from memory that the mount shares.
//!
//! Owns: translation of calls to system calls, descriptors that belong to the library. Does not own: the memory and the
//! rules of reading it (`attach`).
//!
//! A write has returned when the mount has its bytes: they outlive this process, not the mount's.

use crate::abi::*;
use crate::failure::{Done, Fail, fail};
pub(crate) use amphi_attach::Piece;
use amphi_attach::{forget, read_at};
use parking_lot::Mutex;
use rustix::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::Arc;

/// Bytes of a part of a listing.
const LISTING: usize = 32 << 10;

/// The buffers of a call.
pub(crate) trait Bytes {
    fn slice(&self) -> &[u8];
    #[expect(clippy::mut_from_ref, reason = "the program vouches for the memory, and that nobody else uses it")]
    fn slice_mut(&self) -> &mut [u8];
}

impl Bytes for Piece {
    fn slice(&self) -> &[u8] {
        match self.len {
            0 => &[],
            // SAFETY: `length` has refused null pointers; the program vouches for the rest.
            len => unsafe { std::slice::from_raw_parts(self.base.cast(), len) },
        }
    }

    fn slice_mut(&self) -> &mut [u8] {
        match self.len {
            0 => &mut [],
            // SAFETY: as above.
            len => unsafe { std::slice::from_raw_parts_mut(self.base.cast(), len) },
        }
    }
}

/// Bytes of all pieces together.
///
/// Errors: `EINVAL` for null pointers and for more bytes than an address space has.
pub(crate) fn length(pieces: &[Piece]) -> Done<usize> {
    let sum = pieces.iter().try_fold(0usize, |sum, piece| {
        let is_there = piece.len == 0 || !piece.base.is_null();
        sum.checked_add(piece.len).filter(|sum| is_there && *sum <= isize::MAX as usize)
    });
    sum.map_or_else(|| fail(libc::EINVAL), Ok)
}

/// The result of a system call.
fn told(result: i64) -> Done<i64> {
    if result < 0 { fail(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) } else { Ok(result) }
}

/// A path as the kernel shall see it: from the root of the file system, not of the machine.
fn inside(path: &CStr) -> Done<CString> {
    let bytes = path.to_bytes();
    let inner = bytes.iter().position(|byte| *byte != b'/').map_or(&b""[..], |at| &bytes[at..]);
    let inner = if inner.is_empty() && !bytes.is_empty() { b"." } else { inner };
    CString::new(inner).map_err(|_| Fail { errno: libc::EINVAL, why: None })
}

/// The directory from which a path is resolved.
#[derive(Clone, Copy)]
pub(crate) struct Base(pub(crate) c_int);

/// A mount.
pub(crate) struct Node {
    pub(crate) name: String,
    root: OwnedFd,
    device: u64,
}

impl Node {
    pub(crate) fn attach(path: &CStr) -> Done<Node> {
        let name = path.to_string_lossy().into_owned();
        // SAFETY: a C string.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) };
        let fd = told(fd.into())? as c_int;
        // SAFETY: a new descriptor.
        let root = unsafe { OwnedFd::from_raw_fd(fd) };
        let whole = std::fs::canonicalize(&name).map_err(|e| Fail::new(e.raw_os_error().unwrap_or(libc::EIO), ""))?;
        if amphi_host::control::source_of(&whole).is_none() {
            let mounts: Vec<String> =
                amphi_host::control::mounts().iter().map(|mount| mount.display().to_string()).collect();
            let there = if mounts.is_empty() { "there is none here".into() } else { mounts.join(" ") };
            return Err(Fail::new(libc::ENODEV, format!("it is on no mount of AmphiFS ({there})")));
        }
        let device = stat_of(fd)?.st_dev;
        Ok(Node { name, root, device })
    }

    /// Any directory, for tests that do not check it.
    #[cfg(test)]
    pub(crate) fn unchecked(path: &CStr) -> Done<Node> {
        let root = rustix::fs::open(path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty())?;
        Ok(Node { name: path.to_string_lossy().into_owned(), root, device: 0 })
    }

    pub(crate) fn base(&self) -> Base {
        Base(self.root.as_raw_fd())
    }

    pub(crate) fn sync(&self) -> Done<()> {
        // The root is a place, not an open directory.
        let dir = self.base().open_dir(c"/", false)?;
        // SAFETY: no memory is involved.
        told(unsafe { libc::syncfs(dir.fd.as_raw_fd()) }.into()).map(drop)
    }

    /// An open file on a descriptor that was opened elsewhere, with one of its own.
    pub(crate) fn adopt(&self, fd: c_int) -> Done<NodeFile> {
        let found = stat_of(fd)?;
        if found.st_dev != self.device {
            return Err(Fail::new(libc::EXDEV, "the descriptor is of another file system"));
        }
        // SAFETY: no memory is involved.
        let own = told(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) }.into())? as c_int;
        // SAFETY: a new descriptor.
        let file = NodeFile { fd: Some(unsafe { OwnedFd::from_raw_fd(own) }), path: format!("descriptor {fd}") };
        file.check()?;
        Ok(file)
    }
}

fn stat_of(fd: c_int) -> Done<libc::stat64> {
    // SAFETY: zeros are a value of it.
    let mut found = unsafe { std::mem::zeroed::<libc::stat64>() };
    // SAFETY: it is there to be written.
    told(unsafe { libc::fstat64(fd, &raw mut found) }.into())?;
    Ok(found)
}

fn shown(found: &libc::statx) -> AmphiStat {
    let time = |time: libc::statx_timestamp| AmphiTime { sec: time.tv_sec, nsec: time.tv_nsec, reserved: 0 };
    let (major, minor) = (found.stx_rdev_major, found.stx_rdev_minor);
    AmphiStat {
        struct_size: 0,
        mode: found.stx_mode.into(),
        ino: found.stx_ino,
        size: found.stx_size,
        blocks: found.stx_blocks,
        nlink: found.stx_nlink,
        uid: found.stx_uid,
        gid: found.stx_gid,
        rdev: minor & 0xff | major << 8 | (minor & !0xff) << 12,
        atime: time(found.stx_atime),
        mtime: time(found.stx_mtime),
        ctime: time(found.stx_ctime),
        btime: time(found.stx_btime),
    }
}

fn statx(fd: c_int, path: &CStr, flags: c_int) -> Done<AmphiStat> {
    // SAFETY: zeros are a value of it.
    let mut found = unsafe { std::mem::zeroed::<libc::statx>() };
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    // SAFETY: a C string, and a struct to be written.
    told(unsafe { libc::statx(fd, path.as_ptr(), flags, mask, &raw mut found) }.into())?;
    Ok(shown(&found))
}

fn nofollow(follow: bool) -> c_int {
    if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW }
}

impl Base {
    pub(crate) fn open_file(self, path: &CStr, flags: i32, mode: u32) -> Done<NodeFile> {
        let inner = inside(path)?;
        // The open does not wait for the other end of a pipe.
        let how = flags | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        // SAFETY: a C string.
        let fd = told(unsafe { libc::openat(self.0, inner.as_ptr(), how, mode) }.into())? as c_int;
        // SAFETY: a new descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let file = NodeFile { fd: Some(fd), path: path.to_string_lossy().into_owned() };
        file.check()?;
        // SAFETY: no memory is involved.
        unsafe { libc::fcntl(file.raw(), libc::F_SETFL, flags & !libc::O_NONBLOCK) };
        Ok(file)
    }

    pub(crate) fn open_dir(self, path: &CStr, attributes: bool) -> Done<NodeDir> {
        let inner = inside(path)?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // SAFETY: a C string.
        let fd = told(unsafe { libc::openat(self.0, inner.as_ptr(), flags) }.into())? as c_int;
        // SAFETY: a new descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let path = path.to_string_lossy().into_owned();
        Ok(NodeDir { fd, path, attributes, ahead: Mutex::default() })
    }

    pub(crate) fn stat(self, path: &CStr, follow: bool) -> Done<AmphiStat> {
        statx(self.0, &inside(path)?, nofollow(follow))
    }

    pub(crate) fn setattr(self, path: &CStr, follow: bool, set: &AmphiSetattr) -> Done<()> {
        let (inner, how, has) = (inside(path)?, nofollow(follow), |bit: u32| set.valid & bit != 0);
        if has(AMPHI_SET_SIZE) {
            let flags = libc::O_WRONLY | if follow { 0 } else { libc::O_NOFOLLOW };
            self.open_file(path, flags, 0)?.truncate(set.size as i64)?;
        }
        if has(AMPHI_SET_UID) || has(AMPHI_SET_GID) {
            let (uid, gid) = owners(set);
            // SAFETY: a C string.
            told(unsafe { libc::fchownat(self.0, inner.as_ptr(), uid, gid, how) }.into())?;
        }
        if has(AMPHI_SET_MODE) {
            // SAFETY: a C string.
            told(unsafe { libc::fchmodat(self.0, inner.as_ptr(), set.mode & 0o7777, how) }.into())?;
        }
        if let Some(times) = times(set)? {
            // SAFETY: a C string and two times.
            told(unsafe { libc::utimensat(self.0, inner.as_ptr(), times.as_ptr(), how) }.into())?;
        }
        Ok(())
    }

    pub(crate) fn statfs(self) -> Done<AmphiStatfs> {
        // SAFETY: zeros are a value of it.
        let mut found = unsafe { std::mem::zeroed::<libc::statvfs64>() };
        // SAFETY: it is there to be written.
        told(unsafe { libc::fstatvfs64(self.0, &raw mut found) }.into())?;
        Ok(AmphiStatfs {
            struct_size: 0,
            block_bytes: found.f_frsize as u32,
            blocks: found.f_blocks,
            blocks_free: found.f_bavail,
            inodes: found.f_files,
            inodes_free: found.f_ffree,
            name_max: found.f_namemax as u32,
            reserved: 0,
        })
    }

    pub(crate) fn mkdir(self, path: &CStr, mode: u32) -> Done<()> {
        // SAFETY: a C string.
        told(unsafe { libc::mkdirat(self.0, inside(path)?.as_ptr(), mode) }.into()).map(drop)
    }

    pub(crate) fn unlink(self, path: &CStr, directory: bool) -> Done<()> {
        let flags = if directory { libc::AT_REMOVEDIR } else { 0 };
        // SAFETY: a C string.
        told(unsafe { libc::unlinkat(self.0, inside(path)?.as_ptr(), flags) }.into()).map(drop)
    }

    pub(crate) fn rename(self, from: &CStr, to: (Base, &CStr), flags: u32) -> Done<()> {
        let (from, new) = (inside(from)?, inside(to.1)?);
        // SAFETY: C strings.
        told(unsafe { libc::renameat2(self.0, from.as_ptr(), to.0.0, new.as_ptr(), flags) }.into()).map(drop)
    }

    pub(crate) fn link(self, from: &CStr, to: (Base, &CStr), follow: bool) -> Done<()> {
        let (from, new) = (inside(from)?, inside(to.1)?);
        let flags = if follow { libc::AT_SYMLINK_FOLLOW } else { 0 };
        // SAFETY: C strings.
        told(unsafe { libc::linkat(self.0, from.as_ptr(), to.0.0, new.as_ptr(), flags) }.into()).map(drop)
    }

    pub(crate) fn symlink(self, target: &CStr, path: &CStr) -> Done<()> {
        // SAFETY: C strings.
        told(unsafe { libc::symlinkat(target.as_ptr(), self.0, inside(path)?.as_ptr()) }.into()).map(drop)
    }

    pub(crate) fn readlink(self, path: &CStr) -> Done<Vec<u8>> {
        let mut target = vec![0u8; libc::PATH_MAX as usize];
        let inner = inside(path)?;
        // SAFETY: a C string and memory of that length.
        let len = unsafe { libc::readlinkat(self.0, inner.as_ptr(), target.as_mut_ptr().cast(), target.len()) };
        target.truncate(told(len as i64)? as usize);
        Ok(target)
    }

    /// A path for calls that take no directory.
    fn in_proc(self, path: &CStr) -> Done<CString> {
        let inner = inside(path)?;
        if inner.is_empty() {
            return fail(libc::ENOENT);
        }
        let mut whole = format!("/proc/self/fd/{}/", self.0).into_bytes();
        whole.extend_from_slice(inner.to_bytes());
        CString::new(whole).map_err(|_| Fail { errno: libc::EINVAL, why: None })
    }

    pub(crate) fn getxattr(self, path: &CStr, follow: bool, name: &CStr, into: &mut [u8]) -> Done<i64> {
        let (path, call) = (self.in_proc(path)?, if follow { libc::getxattr } else { libc::lgetxattr });
        // SAFETY: C strings and memory of that length.
        told(unsafe { call(path.as_ptr(), name.as_ptr(), into.as_mut_ptr().cast(), into.len()) } as i64)
    }

    pub(crate) fn setxattr(self, path: &CStr, follow: bool, name: &CStr, value: &[u8], flags: u32) -> Done<()> {
        let (path, call) = (self.in_proc(path)?, if follow { libc::setxattr } else { libc::lsetxattr });
        let value = (value.as_ptr().cast::<c_void>(), value.len());
        // SAFETY: C strings and memory of that length.
        told(unsafe { call(path.as_ptr(), name.as_ptr(), value.0, value.1, flags as c_int) }.into()).map(drop)
    }

    pub(crate) fn listxattr(self, path: &CStr, follow: bool, into: &mut [u8]) -> Done<i64> {
        let (path, call) = (self.in_proc(path)?, if follow { libc::listxattr } else { libc::llistxattr });
        // SAFETY: a C string and memory of that length.
        told(unsafe { call(path.as_ptr(), into.as_mut_ptr().cast(), into.len()) } as i64)
    }

    pub(crate) fn removexattr(self, path: &CStr, follow: bool, name: &CStr) -> Done<()> {
        let (path, call) = (self.in_proc(path)?, if follow { libc::removexattr } else { libc::lremovexattr });
        // SAFETY: C strings.
        told(unsafe { call(path.as_ptr(), name.as_ptr()) }.into()).map(drop)
    }
}

fn owners(set: &AmphiSetattr) -> (u32, u32) {
    let of = |bit: u32, id: u32| if set.valid & bit != 0 { id } else { u32::MAX };
    (of(AMPHI_SET_UID, set.uid), of(AMPHI_SET_GID, set.gid))
}

fn times(set: &AmphiSetattr) -> Done<Option<[libc::timespec; 2]>> {
    let has = |bit: u32| set.valid & bit != 0;
    let one = |given: u32, now: u32, time: AmphiTime| -> Done<libc::timespec> {
        let special = |nsec: i64| libc::timespec { tv_sec: 0, tv_nsec: nsec };
        match (has(given), has(now)) {
            (true, true) => fail(libc::EINVAL),
            (_, true) => Ok(special(libc::UTIME_NOW)),
            (true, _) if time.nsec >= 1_000_000_000 => fail(libc::EINVAL),
            (true, _) => Ok(libc::timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() }),
            _ => Ok(special(libc::UTIME_OMIT)),
        }
    };
    if !has(AMPHI_SET_ATIME | AMPHI_SET_ATIME_NOW | AMPHI_SET_MTIME | AMPHI_SET_MTIME_NOW) {
        return Ok(None);
    }
    let atime = one(AMPHI_SET_ATIME, AMPHI_SET_ATIME_NOW, set.atime)?;
    Ok(Some([atime, one(AMPHI_SET_MTIME, AMPHI_SET_MTIME_NOW, set.mtime)?]))
}

/// An open file of a mount.
pub(crate) struct NodeFile {
    /// `Some`, except while the value is being dropped.
    fd: Option<OwnedFd>,
    pub(crate) path: String,
}

impl Drop for NodeFile {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            forget(fd.as_raw_fd());
        }
    }
}

const fn command(direction: u32, number: u32, size: u32) -> libc::c_ulong {
    (direction << 30 | size << 16 | (b'A' as u32) << 8 | number) as libc::c_ulong
}

/// The numbers of docs/IOCTL.md.
const LOCK_AHEAD: libc::c_ulong = command(1, 4, 24);
const GROUP_LOCK: libc::c_ulong = command(1, 5, 16);
const GROUP_UNLOCK: libc::c_ulong = command(1, 6, 8);
const GROUP_WANTED: libc::c_ulong = command(2, 8, 4);
const ADVISE: libc::c_ulong = command(1, 9, 24);

impl NodeFile {
    #[inline]
    pub(crate) fn raw(&self) -> c_int {
        self.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    fn check(&self) -> Done<()> {
        match stat_of(self.raw())?.st_mode & libc::S_IFMT {
            libc::S_IFREG => Ok(()),
            libc::S_IFDIR => Err(Fail::new(libc::EISDIR, "amphi_opendir opens directories")),
            _ => Err(Fail::new(libc::EOPNOTSUPP, "devices, pipes and sockets are opened by open(2)")),
        }
    }

    /// Closes it, if it is the last reference. The effects of close(2) happen in any case.
    pub(crate) fn close(self: Arc<Self>) -> Done<()> {
        let fd = match Arc::try_unwrap(self) {
            Ok(mut file) => file.fd.take().map(IntoRawFd::into_raw_fd),
            // A close of any descriptor requests pending errors from the mount. SAFETY: no memory is involved.
            Err(shared) => Some(told(unsafe { libc::fcntl(shared.raw(), libc::F_DUPFD_CLOEXEC, 0) }.into())? as c_int),
        };
        let Some(fd) = fd else { return Ok(()) };
        forget(fd);
        // SAFETY: nobody else knows the descriptor.
        told(unsafe { libc::close(fd) }.into()).map(drop)
    }

    /// Reads bytes that the mount shares with programs.
    #[inline]
    pub(crate) fn try_read(&self, pieces: &[Piece], offset: i64) -> Option<usize> {
        // SAFETY: the program vouches for its buffers.
        unsafe { read_at(self.raw(), pieces, offset) }
    }

    #[inline]
    pub(crate) fn read(&self, pieces: &[Piece], offset: i64) -> Done<usize> {
        length(pieces)?;
        if let Some(read) = self.try_read(pieces, offset) {
            return Ok(read);
        }
        let iov = (pieces.as_ptr().cast::<libc::iovec>(), pieces.len() as c_int);
        // SAFETY: a `Piece` is laid out as an `iovec`; the program vouches for its buffers.
        told(unsafe { libc::preadv64(self.raw(), iov.0, iov.1, offset) } as i64).map(|read| read as usize)
    }

    #[inline]
    pub(crate) fn write(&self, pieces: &[Piece], offset: i64) -> Done<usize> {
        length(pieces)?;
        let iov = (pieces.as_ptr().cast::<libc::iovec>(), pieces.len() as c_int);
        // SAFETY: as in `read`.
        told(unsafe { libc::pwritev64(self.raw(), iov.0, iov.1, offset) } as i64).map(|written| written as usize)
    }

    pub(crate) fn sync(&self, data_only: bool) -> Done<()> {
        // SAFETY: no memory is involved.
        let done = unsafe { if data_only { libc::fdatasync(self.raw()) } else { libc::fsync(self.raw()) } };
        told(done.into()).map(drop)
    }

    pub(crate) fn truncate(&self, size: i64) -> Done<()> {
        // SAFETY: no memory is involved.
        told(unsafe { libc::ftruncate64(self.raw(), size) }.into()).map(drop)
    }

    pub(crate) fn allocate(&self, mode: i32, offset: i64, len: i64) -> Done<()> {
        // SAFETY: no memory is involved.
        told(unsafe { libc::fallocate64(self.raw(), mode, offset, len) }.into()).map(drop)
    }

    pub(crate) fn stat(&self) -> Done<AmphiStat> {
        statx(self.raw(), c"", libc::AT_EMPTY_PATH)
    }

    pub(crate) fn setattr(&self, set: &AmphiSetattr) -> Done<()> {
        let (fd, has) = (self.raw(), |bit: u32| set.valid & bit != 0);
        if has(AMPHI_SET_SIZE) {
            self.truncate(set.size as i64)?;
        }
        // SAFETY: no memory is involved but two times.
        unsafe {
            if has(AMPHI_SET_UID) || has(AMPHI_SET_GID) {
                let (uid, gid) = owners(set);
                told(libc::fchown(fd, uid, gid).into())?;
            }
            if has(AMPHI_SET_MODE) {
                told(libc::fchmod(fd, set.mode & 0o7777).into())?;
            }
            if let Some(times) = times(set)? {
                told(libc::futimens(fd, times.as_ptr()).into())?;
            }
        }
        Ok(())
    }

    pub(crate) fn seek(&self, offset: i64, hole: bool) -> Done<u64> {
        let whence = if hole { libc::SEEK_HOLE } else { libc::SEEK_DATA };
        // SAFETY: no memory is involved.
        told(unsafe { libc::lseek64(self.raw(), offset, whence) }).map(|at| at as u64)
    }

    pub(crate) fn copy(&self, from: i64, to: &NodeFile, at: i64, len: usize) -> Done<usize> {
        let (mut from, mut at) = (from, at);
        // SAFETY: two places to be changed.
        let copied = unsafe { libc::copy_file_range(self.raw(), &raw mut from, to.raw(), &raw mut at, len, 0) };
        told(copied as i64).map(|copied| copied as usize)
    }

    pub(crate) fn getxattr(&self, name: &CStr, into: &mut [u8]) -> Done<i64> {
        // SAFETY: a C string and memory of that length.
        told(unsafe { libc::fgetxattr(self.raw(), name.as_ptr(), into.as_mut_ptr().cast(), into.len()) } as i64)
    }

    pub(crate) fn setxattr(&self, name: &CStr, value: &[u8], flags: u32) -> Done<()> {
        let value = (value.as_ptr().cast::<c_void>(), value.len());
        // SAFETY: a C string and memory of that length.
        told(unsafe { libc::fsetxattr(self.raw(), name.as_ptr(), value.0, value.1, flags as c_int) }.into()).map(drop)
    }

    pub(crate) fn listxattr(&self, into: &mut [u8]) -> Done<i64> {
        // SAFETY: memory of that length.
        told(unsafe { libc::flistxattr(self.raw(), into.as_mut_ptr().cast(), into.len()) } as i64)
    }

    pub(crate) fn removexattr(&self, name: &CStr) -> Done<()> {
        // SAFETY: a C string.
        told(unsafe { libc::fremovexattr(self.raw(), name.as_ptr()) }.into()).map(drop)
    }

    fn command<T>(&self, command: libc::c_ulong, argument: &mut T) -> Done<i64> {
        // SAFETY: the number has the size of the argument.
        told(unsafe { libc::ioctl(self.raw(), command, std::ptr::from_mut(argument)) }.into())
    }

    pub(crate) fn advise(&self, offset: u64, len: u64, advice: u32) -> Done<()> {
        self.command(ADVISE, &mut [offset, len, u64::from(advice)]).map(drop)
    }

    pub(crate) fn lock_ahead(&self, offset: u64, len: u64, write: bool, wait: bool) -> Done<i64> {
        let how = u64::from(write) | u64::from(wait) << 32;
        self.command(LOCK_AHEAD, &mut [offset, len, how])
    }

    pub(crate) fn group_lock(&self, group: u64, wait: bool) -> Done<()> {
        self.command(GROUP_LOCK, &mut [group, u64::from(!wait)]).map(drop)
    }

    pub(crate) fn group_unlock(&self, group: u64) -> Done<()> {
        self.command(GROUP_UNLOCK, &mut [group]).map(drop)
    }

    pub(crate) fn group_wanted(&self) -> Done<bool> {
        let mut wanted = 0u32;
        self.command(GROUP_WANTED, &mut wanted)?;
        Ok(wanted != 0)
    }
}

/// An entry on its way to C.
pub(crate) struct Listed {
    pub(crate) cookie: u64,
    pub(crate) ino: u64,
    pub(crate) kind: u32,
    pub(crate) stat: Option<AmphiStat>,
    pub(crate) name: Vec<u8>,
}

/// An open directory of a mount.
pub(crate) struct NodeDir {
    fd: OwnedFd,
    pub(crate) path: String,
    attributes: bool,
    ahead: Mutex<VecDeque<Listed>>,
}

impl NodeDir {
    pub(crate) fn base(&self) -> Base {
        Base(self.fd.as_raw_fd())
    }

    pub(crate) fn read(&self, max: usize) -> Done<Vec<Listed>> {
        let mut ahead = self.ahead.lock();
        let mut listed = Vec::new();
        while listed.len() < max {
            if ahead.is_empty() && !self.more(&mut ahead)? {
                break;
            }
            let Some(mut entry) = ahead.pop_front() else { break };
            if self.attributes {
                let name = CString::new(entry.name.clone()).map_err(|_| Fail { errno: libc::EIO, why: None })?;
                match statx(self.fd.as_raw_fd(), &name, libc::AT_SYMLINK_NOFOLLOW) {
                    Ok(found) => entry.stat = Some(found),
                    Err(Fail { errno: libc::ENOENT | libc::ESTALE, .. }) => continue,
                    Err(failed) => return Err(failed),
                }
            }
            listed.push(entry);
        }
        Ok(listed)
    }

    fn more(&self, ahead: &mut VecDeque<Listed>) -> Done<bool> {
        /// Bytes before the name: inode, cookie, length, kind.
        const HEAD: usize = 19;
        let mut part = vec![0u8; LISTING];
        let fd = self.fd.as_raw_fd();
        // SAFETY: memory of that length.
        let len = told(unsafe { libc::syscall(libc::SYS_getdents64, fd, part.as_mut_ptr(), part.len()) })? as usize;
        let mut rest = part.get(..len).unwrap_or_default();
        while rest.len() > HEAD {
            let long = |at: usize| u64::from_ne_bytes(rest[at..at + 8].try_into().unwrap_or_default());
            let bytes = usize::from(u16::from_ne_bytes([rest[16], rest[17]])).clamp(HEAD, rest.len());
            let name = rest[HEAD..bytes].split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
            ahead.push_back(Listed { cookie: long(8), ino: long(0), kind: rest[18].into(), stat: None, name });
            rest = &rest[bytes..];
        }
        Ok(len > 0)
    }

    pub(crate) fn seek(&self, cookie: u64) -> Done<()> {
        let mut ahead = self.ahead.lock();
        // SAFETY: no memory is involved.
        told(unsafe { libc::lseek64(self.fd.as_raw_fd(), cookie as i64, libc::SEEK_SET) })?;
        ahead.clear();
        Ok(())
    }

    pub(crate) fn sync(&self) -> Done<()> {
        // SAFETY: no memory is involved.
        told(unsafe { libc::fsync(self.fd.as_raw_fd()) }.into()).map(drop)
    }
}
