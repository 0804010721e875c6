//! System calls as instructions, and the clock of leases.
//!
//! Owns: the calls that this library makes by itself. They go past libc, so that they change no `errno`, are no points
//! of cancellation, and meet no other library that is preloaded. Does not own: the calls of programs.

use amphi_shm::talk::MAPPED;
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The errno of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub i32);

impl Failure {
    /// Whether a call has not been answered in time, or was interrupted by a signal.
    pub(crate) fn is_late(self) -> bool {
        const EINTR: i32 = 4;
        const EAGAIN: i32 = 11;
        [EINTR, EAGAIN].contains(&self.0)
    }
}

#[cfg(target_arch = "x86_64")]
mod numbers {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const LSEEK: usize = 8;
    pub const MMAP: usize = 9;
    pub const MUNMAP: usize = 11;
    pub const IOCTL: usize = 16;
    pub const MADVISE: usize = 28;
    pub const GETPID: usize = 39;
    pub const SOCKET: usize = 41;
    pub const CONNECT: usize = 42;
    pub const SENDTO: usize = 44;
    pub const RECVMSG: usize = 47;
    pub const SETSOCKOPT: usize = 54;
    pub const PREAD: usize = 17;
    pub const PWRITE: usize = 18;
    pub const FCNTL: usize = 72;
    pub const CLOCK_GETTIME: usize = 228;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const SCHED_YIELD: usize = 24;
    pub const TGKILL: usize = 234;
    pub const FSTATFS: usize = 138;
    pub const GETTID: usize = 186;
    pub const FUTEX: usize = 202;
    pub const OPENAT: usize = 257;
    pub const READLINKAT: usize = 267;
    pub const PRLIMIT: usize = 302;
    pub const PROCESS_VM_READV: usize = 310;
    pub const STATX: usize = 332;
    pub const CLOSE_RANGE: usize = 436;
    pub const CACHESTAT: usize = 451;
}

#[cfg(target_arch = "aarch64")]
mod numbers {
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const CLOSE: usize = 57;
    pub const LSEEK: usize = 62;
    pub const MMAP: usize = 222;
    pub const MUNMAP: usize = 215;
    pub const IOCTL: usize = 29;
    pub const MADVISE: usize = 233;
    pub const GETPID: usize = 172;
    pub const SOCKET: usize = 198;
    pub const CONNECT: usize = 203;
    pub const SENDTO: usize = 206;
    pub const RECVMSG: usize = 212;
    pub const SETSOCKOPT: usize = 208;
    pub const PREAD: usize = 67;
    pub const PWRITE: usize = 68;
    pub const FCNTL: usize = 25;
    pub const CLOCK_GETTIME: usize = 113;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const SCHED_YIELD: usize = 124;
    pub const TGKILL: usize = 131;
    pub const FSTATFS: usize = 44;
    pub const GETTID: usize = 178;
    pub const FUTEX: usize = 98;
    pub const OPENAT: usize = 56;
    pub const READLINKAT: usize = 78;
    pub const PRLIMIT: usize = 261;
    pub const PROCESS_VM_READV: usize = 270;
    pub const STATX: usize = 291;
    pub const CLOSE_RANGE: usize = 436;
    pub const CACHESTAT: usize = 451;
}

/// A system call with six arguments.
#[inline]
unsafe fn call(number: usize, args: [usize; 6]) -> Result<usize, Failure> {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for the arguments; the instruction changes what is listed.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") number as isize => result, in("rdi") args[0], in("rsi") args[1],
            in("rdx") args[2], in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("svc 0", in("x8") number, inlateout("x0") args[0] => result, in("x1") args[1],
            in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5], options(nostack));
    }
    if (-4095..0).contains(&result) { Err(Failure(-result as i32)) } else { Ok(result as usize) }
}

/// Moves the position of a descriptor by `by`; its new position.
#[inline]
pub(crate) fn seek_by(fd: i32, by: i64) -> Result<u64, Failure> {
    const SEEK_CUR: usize = 1;
    // SAFETY: no pointer is passed.
    unsafe { call(numbers::LSEEK, [fd as usize, by as usize, SEEK_CUR, 0, 0, 0]) }.map(|at| at as u64)
}

/// `read`, for programs that call before libc was found.
///
/// # Safety
/// As `read`.
pub unsafe fn read(fd: i32, into: *mut c_void, len: usize) -> Result<usize, Failure> {
    // SAFETY: the caller vouches for the buffer.
    unsafe { call(numbers::READ, [fd as usize, into as usize, len, 0, 0, 0]) }
}

/// `pread`.
///
/// # Safety
/// As `pread`.
pub(crate) unsafe fn pread(fd: i32, into: *mut c_void, len: usize, offset: u64) -> Result<usize, Failure> {
    // SAFETY: the caller vouches for the buffer.
    unsafe { call(numbers::PREAD, [fd as usize, into as usize, len, offset as usize, 0, 0]) }
}

/// `write`, for programs that call before libc was found.
///
/// # Safety
/// As `write`.
pub unsafe fn write(fd: i32, from: *const c_void, len: usize) -> Result<usize, Failure> {
    // SAFETY: the caller vouches for the buffer.
    unsafe { call(numbers::WRITE, [fd as usize, from as usize, len, 0, 0, 0]) }
}

/// `pwrite`.
///
/// # Safety
/// As `pwrite`.
pub(crate) unsafe fn pwrite(fd: i32, from: *const c_void, len: usize, offset: u64) -> Result<usize, Failure> {
    // SAFETY: the caller vouches for the buffer.
    unsafe { call(numbers::PWRITE, [fd as usize, from as usize, len, offset as usize, 0, 0]) }
}

/// `mmap`, for programs that call before libc was found.
///
/// # Safety
/// As `mmap`.
pub unsafe fn mmap(args: [usize; 6]) -> Result<usize, Failure> {
    // SAFETY: the caller vouches for the arguments.
    unsafe { call(numbers::MMAP, args) }
}

#[cfg(target_arch = "x86_64")]
pub(crate) const O_DIRECT: usize = 0o40_000;
#[cfg(target_arch = "aarch64")]
pub(crate) const O_DIRECT: usize = 0o200_000;
pub(crate) const O_APPEND: usize = 0o2_000;
/// `O_SYNC`, which contains `O_DSYNC`.
pub(crate) const O_SYNC: usize = 0o4_010_000;

/// The flags of a descriptor as they are now. Any process that has the open file may change them.
#[inline]
pub(crate) fn flags(fd: i32) -> Result<usize, Failure> {
    const GETFL: usize = 3;
    // SAFETY: no pointer is passed.
    unsafe { call(numbers::FCNTL, [fd as usize, GETFL, 0, 0, 0, 0]) }
}

/// Whether writes by this descriptor go to their offsets and may be kept in a cache, as its flags are now.
#[inline]
pub(crate) fn writes_plainly(fd: i32) -> bool {
    const ACCESS: usize = 3;
    let bypasses = O_DIRECT | O_APPEND | O_SYNC;
    flags(fd).is_ok_and(|flags| matches!(flags & ACCESS, 1 | 2) && flags & bypasses == 0)
}

/// Makes the kernel use the present size of the file.
pub fn ask_size(fd: i32) {
    const EMPTY_PATH_FORCE_SYNC: usize = 0x1000 | 0x2000;
    const STATX_SIZE: usize = 0x200;
    if !may_be_mounted(fd).unwrap_or(false) {
        return;
    }
    let mut found = [0u8; 256];
    let args = [fd as usize, c"".as_ptr() as usize, EMPTY_PATH_FORCE_SYNC, STATX_SIZE, found.as_mut_ptr() as usize, 0];
    // SAFETY: a statx is 256 bytes.
    let _ = unsafe { call(numbers::STATX, args) };
}

/// To be called before the file is mapped: makes the kernel use its present size, and if this process may write to the
/// file, its mount lets no posted write make it longer from now on.
pub fn begin_mapping(fd: i32) {
    const ACCESS: usize = 3;
    if !may_be_mounted(fd).unwrap_or(false) {
        return;
    }
    if flags(fd).is_ok_and(|flags| flags & ACCESS != 0) {
        // SAFETY: the command has no argument. Other file systems do not know it.
        let _ = unsafe { call(numbers::IOCTL, [fd as usize, MAPPED as usize, 0, 0, 0, 0]) };
    }
    ask_size(fd);
}

/// Writes all bytes, or as many as can be written.
pub fn write_all(fd: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the bytes are readable.
        match unsafe { call(numbers::WRITE, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) } {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(_) => return,
        }
    }
}

pub(crate) fn own_pid() -> u32 {
    // SAFETY: no pointer is passed.
    unsafe { call(numbers::GETPID, [0; 6]) }.map_or(0, |pid| pid as u32)
}

/// Copies from this process's own memory into a buffer that may be bad.
pub(crate) fn copy_checked(into: *mut u8, from: *const u8, len: usize) -> bool {
    let (local, remote) = ([into as usize, len], [from as usize, len]);
    let args = [own_pid() as usize, local.as_ptr() as usize, 1, remote.as_ptr() as usize, 1, 0];
    // SAFETY: the kernel checks both ends.
    let copied = unsafe { call(numbers::PROCESS_VM_READV, args) };
    copied == Ok(len)
}

/// Whether this process may map as much memory as it likes.
pub(crate) fn address_space_is_unlimited() -> bool {
    const RLIMIT_AS: usize = 9;
    is_unlimited(RLIMIT_AS)
}

/// Whether this process may make files as long as it likes.
pub(crate) fn file_size_is_unlimited() -> bool {
    const RLIMIT_FSIZE: usize = 1;
    is_unlimited(RLIMIT_FSIZE)
}

fn is_unlimited(what: usize) -> bool {
    let mut limits = [0u64; 2];
    // SAFETY: the kernel writes two words.
    let got = unsafe { call(numbers::PRLIMIT, [0, what, 0, limits.as_mut_ptr() as usize, 0, 0]) };
    got.is_ok() && limits[0] == u64::MAX
}

/// Whether the descriptor is a regular file without a device of its own, as files of FUSE mounts are. Asks no file
/// system.
pub(crate) fn may_be_mounted(fd: i32) -> Result<bool, Failure> {
    const EMPTY_PATH_DONT_SYNC: usize = 0x1000 | 0x4000;
    const STATX_TYPE: usize = 1;
    const S_IFREG: u16 = 0o100_000;
    let mut found = [0u8; 256];
    let args = [fd as usize, c"".as_ptr() as usize, EMPTY_PATH_DONT_SYNC, STATX_TYPE, found.as_mut_ptr() as usize, 0];
    // SAFETY: a statx is 256 bytes.
    unsafe { call(numbers::STATX, args)? };
    let mode = u16::from_ne_bytes([found[28], found[29]]);
    let major = u32::from_ne_bytes([found[136], found[137], found[138], found[139]]);
    Ok(mode & 0o170_000 == S_IFREG && major == 0)
}

/// An `ioctl` whose answer is written to `out`, which is as long as the command says.
pub(crate) fn ask(fd: i32, command: u32, out: &mut [u8; 64]) -> Result<usize, Failure> {
    // SAFETY: the kernel writes as many bytes as the command says, which are 64.
    unsafe { call(numbers::IOCTL, [fd as usize, command as usize, out.as_mut_ptr() as usize, 0, 0, 0]) }
}

/// Maps a descriptor for reading. If `at` is not 0, the mapping replaces what is mapped there.
///
/// # Safety
/// What is at `at` must be a mapping of this library.
pub(crate) unsafe fn map(fd: Option<i32>, at: usize, bytes: usize) -> Result<usize, Failure> {
    const PROT_READ: usize = 1;
    const SHARED: usize = 1;
    const PRIVATE_ANONYMOUS_NORESERVE: usize = 0x2 | 0x20 | 0x4000;
    const FIXED: usize = 0x10;
    let kind = if fd.is_some() { SHARED } else { PRIVATE_ANONYMOUS_NORESERVE };
    let flags = kind | if at != 0 { FIXED } else { 0 };
    let fd = fd.map_or(usize::MAX, |fd| fd as usize);
    // SAFETY: a new mapping, or one in the place of this library's own.
    unsafe { call(numbers::MMAP, [at, bytes, PROT_READ, flags, fd, 0]) }
}

/// Maps a descriptor for reading and writing. If `at` is not 0, the mapping replaces what is mapped there.
///
/// # Safety
/// As `map`.
pub(crate) unsafe fn map_writable(fd: i32, at: usize, bytes: usize) -> Result<usize, Failure> {
    const READ_WRITE: usize = 3;
    const SHARED: usize = 1;
    const FIXED: usize = 0x10;
    let flags = SHARED | if at != 0 { FIXED } else { 0 };
    // SAFETY: a new mapping, or one in the place of this library's own.
    unsafe { call(numbers::MMAP, [at, bytes, READ_WRITE, flags, fd as usize, 0]) }
}

/// A page that reads 0 in children of `fork`.
pub(crate) fn map_forked_page() -> Result<usize, Failure> {
    const WIPE_ON_FORK: usize = 18;
    const READ_WRITE: usize = 3;
    const PRIVATE_ANONYMOUS: usize = 0x22;
    // SAFETY: a new mapping, and advice about it.
    unsafe {
        let at = call(numbers::MMAP, [0, 4096, READ_WRITE, PRIVATE_ANONYMOUS, usize::MAX, 0])?;
        match call(numbers::MADVISE, [at, 4096, WIPE_ON_FORK, 0, 0, 0]) {
            Ok(_) => Ok(at),
            Err(e) => {
                let _ = call(numbers::MUNMAP, [at, 4096, 0, 0, 0, 0]);
                Err(e)
            }
        }
    }
}

/// Gives a mapping of this library back.
///
/// # Safety
/// The caller guarantees that no reference to it exists.
pub(crate) unsafe fn unmap(at: usize, bytes: usize) {
    // SAFETY: the caller vouches for it.
    let _ = unsafe { call(numbers::MUNMAP, [at, bytes, 0, 0, 0, 0]) };
}

/// A descriptor of this library, which is closed when it is dropped.
pub(crate) struct Owned(pub(crate) i32);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's.
        let _ = unsafe { call(numbers::CLOSE, [self.0 as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Connects to the socket of that abstract name, and waits for its answers for a fifth of a second at most.
pub(crate) fn connect(name: [&[u8]; 2]) -> Result<Owned, Failure> {
    const UNIX: u16 = 1;
    const SEQPACKET_CLOEXEC: usize = 5 | 0o2_000_000;
    const SOL_SOCKET: usize = 1;
    let mut address = [0u8; 110];
    address[..2].copy_from_slice(&UNIX.to_ne_bytes());
    let mut len = 3;
    for byte in name.into_iter().flatten() {
        if let Some(place) = address.get_mut(len) {
            *place = *byte;
            len += 1;
        }
    }
    // SAFETY: no pointer is passed.
    let socket = Owned(unsafe { call(numbers::SOCKET, [UNIX as usize, SEQPACKET_CLOEXEC, 0, 0, 0, 0])? } as i32);
    let fd = socket.0 as usize;
    let patience = [0u64, 200_000];
    for option in [20, 21] {
        // SAFETY: a timeval is two words. The options are the times for receiving and for sending.
        unsafe { call(numbers::SETSOCKOPT, [fd, SOL_SOCKET, option, patience.as_ptr() as usize, 16, 0])? };
    }
    // SAFETY: the address is `len` bytes long.
    unsafe { call(numbers::CONNECT, [fd, address.as_ptr() as usize, len, 0, 0, 0])? };
    Ok(socket)
}

/// Sends a message and receives the answer's descriptors.
pub(crate) fn exchange(socket: &Owned, request: &[u8]) -> Result<[Option<Owned>; 2], Failure> {
    const NOSIGNAL: usize = 0x4000;
    const CLOEXEC: usize = 0x4000_0000;
    const RIGHTS: [u32; 2] = [1, 1];
    let fd = socket.0 as usize;
    // SAFETY: the bytes are readable.
    unsafe { call(numbers::SENDTO, [fd, request.as_ptr() as usize, request.len(), NOSIGNAL, 0, 0])? };
    let mut answer = [0u8; 8];
    let vector = [answer.as_mut_ptr() as usize, answer.len()];
    // The head of a control message: its length in a word, level and type in half a word each.
    let mut control = [0u64; 3];
    let message: [usize; 7] =
        [0, 0, vector.as_ptr() as usize, 1, control.as_mut_ptr() as usize, size_of_val(&control), 0];
    // SAFETY: the message describes the arrays above, which live until the call has returned.
    unsafe { call(numbers::RECVMSG, [fd, message.as_ptr() as usize, CLOEXEC, 0, 0, 0])? };
    let mut found = [None, None];
    let kind = control[1].to_ne_bytes();
    let is_rights = kind[..4] == RIGHTS[0].to_ne_bytes() && kind[4..] == RIGHTS[1].to_ne_bytes();
    if message[5] >= 16 && is_rights {
        let count = (control[0] as usize).saturating_sub(16) / 4;
        let both = control[2].to_ne_bytes();
        for (place, fd) in found.iter_mut().zip(both.chunks_exact(4)).take(count) {
            *place = Some(Owned(i32::from_ne_bytes([fd[0], fd[1], fd[2], fd[3]])));
        }
    }
    Ok(found)
}

/// Length of a file.
pub(crate) fn length(fd: &Owned) -> Result<u64, Failure> {
    const EMPTY_PATH: usize = 0x1000;
    const STATX_SIZE: usize = 0x200;
    let mut found = [0u8; 256];
    let args = [fd.0 as usize, c"".as_ptr() as usize, EMPTY_PATH, STATX_SIZE, found.as_mut_ptr() as usize, 0];
    // SAFETY: a statx is 256 bytes.
    unsafe { call(numbers::STATX, args)? };
    let mut size = [0; 8];
    size.copy_from_slice(&found[40..48]);
    Ok(u64::from_ne_bytes(size))
}

/// What a descriptor is, as far as it matters for direct I/O.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Details {
    pub(crate) is_regular: bool,
    pub(crate) identity: Identity,
    pub(crate) size: u64,
    /// What offsets, lengths and addresses of direct I/O have to be multiples of; `None` if the kernel does not say it.
    /// 0 means that the file takes no direct I/O.
    pub(crate) alignment: Option<u32>,
}

/// Device and inode number, which tell two files apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// The details of a descriptor, with the size that `stat` would show.
pub(crate) fn details(fd: i32) -> Result<Details, Failure> {
    const EMPTY_PATH: usize = 0x1000;
    const BASIC_DIOALIGN: usize = 0x7ff | DIOALIGN as usize;
    const DIOALIGN: u32 = 0x2000;
    const S_IFREG: u16 = 0o100_000;
    let mut found = [0u8; 256];
    let args = [fd as usize, c"".as_ptr() as usize, EMPTY_PATH, BASIC_DIOALIGN, found.as_mut_ptr() as usize, 0];
    // SAFETY: a statx is 256 bytes.
    unsafe { call(numbers::STATX, args)? };
    let word = |at: usize| u32::from_ne_bytes([found[at], found[at + 1], found[at + 2], found[at + 3]]);
    let long = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&found[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    let (memory, offset) = (word(152), word(156));
    // No memory of this library is aligned to more than a page.
    let alignment = if memory == 0 || memory > 4096 || offset == 0 { 0 } else { memory.max(offset) };
    Ok(Details {
        is_regular: u16::from_ne_bytes([found[28], found[29]]) & 0o170_000 == S_IFREG,
        identity: Identity { device: u64::from(word(136)) << 32 | u64::from(word(140)), inode: long(32) },
        size: long(40),
        alignment: (word(0) & DIOALIGN != 0).then_some(alignment),
    })
}

/// The magic number of the file system of a descriptor.
pub(crate) fn file_system(fd: i32) -> Result<u64, Failure> {
    let mut found = [0u64; 32];
    // SAFETY: a statfs is shorter than 256 bytes.
    unsafe { call(numbers::FSTATFS, [fd as usize, found.as_mut_ptr() as usize, 0, 0, 0, 0])? };
    Ok(found[0])
}

/// Whether this open file has a lease on its file (`F_SETLEASE`), which another open would break.
pub(crate) fn has_lease(fd: i32) -> bool {
    const GETLEASE: usize = 1025;
    const UNLOCKED: usize = 2;
    // SAFETY: no pointer is passed.
    let lease = unsafe { call(numbers::FCNTL, [fd as usize, GETLEASE, 0, 0, 0, 0]) };
    lease.is_ok_and(|kind| kind != UNLOCKED)
}

/// How many bytes of a range are in the kernel's page cache; an error if the kernel does not say it.
pub(crate) fn cached_bytes(fd: i32, offset: u64, len: u64) -> Result<u64, Failure> {
    let (range, mut found) = ([offset, len], [0u64; 5]);
    let args = [fd as usize, range.as_ptr() as usize, found.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel reads two words and writes five.
    unsafe { call(numbers::CACHESTAT, args)? };
    Ok(found[0].saturating_mul(4096))
}

/// Where a symbolic link leads.
pub(crate) fn read_link<'a>(path: &core::ffi::CStr, into: &'a mut [u8]) -> Result<&'a [u8], Failure> {
    const AT_FDCWD: usize = -100isize as usize;
    let args = [AT_FDCWD, path.as_ptr() as usize, into.as_mut_ptr() as usize, into.len(), 0, 0];
    // SAFETY: the kernel writes no more than the buffer holds.
    let len = unsafe { call(numbers::READLINKAT, args)? };
    Ok(into.get(..len).unwrap_or_default())
}

/// Opens a file that exists.
pub(crate) fn open(path: &core::ffi::CStr, flags: usize) -> Result<Owned, Failure> {
    const AT_FDCWD: usize = -100isize as usize;
    // SAFETY: the path ends with 0.
    unsafe { call(numbers::OPENAT, [AT_FDCWD, path.as_ptr() as usize, flags, 0, 0, 0]) }.map(|fd| Owned(fd as i32))
}

/// Changes the flags of an open file of this library.
pub(crate) fn set_flags(file: &Owned, flags: usize) -> Result<(), Failure> {
    const SETFL: usize = 4;
    // SAFETY: no pointer is passed.
    unsafe { call(numbers::FCNTL, [file.0 as usize, SETFL, flags, 0, 0, 0]) }.map(drop)
}

/// Gives the calling thread an empty table of descriptors of its own.
pub(crate) fn leave_descriptors() -> Result<(), Failure> {
    const UNSHARE: usize = 2;
    // SAFETY: no pointer is passed.
    unsafe { call(numbers::CLOSE_RANGE, [0, u32::MAX as usize, UNSHARE, 0, 0, 0]) }.map(drop)
}

/// The id of the calling thread.
pub(crate) fn own_tid() -> u32 {
    // SAFETY: no pointer is passed.
    unsafe { call(numbers::GETTID, [0; 6]) }.map_or(0, |tid| tid as u32)
}

/// Blocks all signals but those of faults; the signals that were blocked before.
pub(crate) fn block_signals() -> Result<u64, Failure> {
    const SETMASK: usize = 2;
    // SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV and SIGSYS, whose bits are their numbers less one.
    const FAULTS: u64 = 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30;
    let (mask, mut before) = (!FAULTS, 0u64);
    let args = [SETMASK, &raw const mask as usize, &raw mut before as usize, size_of::<u64>(), 0, 0];
    // SAFETY: sets of signals are one word.
    unsafe { call(numbers::RT_SIGPROCMASK, args) }.map(|_| before)
}

/// Undoes `block_signals`.
pub(crate) fn restore_signals(before: u64) {
    const SETMASK: usize = 2;
    // SAFETY: as above.
    let _ = unsafe { call(numbers::RT_SIGPROCMASK, [SETMASK, &raw const before as usize, 0, size_of::<u64>(), 0, 0]) };
}

/// Waits until a word has another value than `value`; may return earlier.
pub(crate) fn wait_while(word: &core::sync::atomic::AtomicU32, value: u32) {
    const WAIT: usize = 0;
    // SAFETY: the word outlives the call.
    let _ = unsafe { call(numbers::FUTEX, [word.as_ptr() as usize, WAIT, value as usize, 0, 0, 0]) };
}

/// Whether a thread of this process exists.
pub(crate) fn is_thread(tid: u32) -> bool {
    // SAFETY: no pointer is passed, and no signal is sent.
    unsafe { call(numbers::TGKILL, [own_pid() as usize, tid as usize, 0, 0, 0, 0]) }.is_ok()
}

/// Lets other threads run.
pub(crate) fn give_way() {
    // SAFETY: no pointer is passed.
    let _ = unsafe { call(numbers::SCHED_YIELD, [0; 6]) };
}

/// Memory of this process that children of `fork` find empty.
pub(crate) fn map_own(bytes: usize) -> Result<usize, Failure> {
    const WIPE_ON_FORK: usize = 18;
    const HUGE: usize = 14;
    const READ_WRITE: usize = 3;
    const PRIVATE_ANONYMOUS_NORESERVE: usize = 0x2 | 0x20 | 0x4000;
    // SAFETY: a new mapping, and advice about it.
    unsafe {
        let at = call(numbers::MMAP, [0, bytes, READ_WRITE, PRIVATE_ANONYMOUS_NORESERVE, usize::MAX, 0])?;
        if let Err(e) = call(numbers::MADVISE, [at, bytes, WIPE_ON_FORK, 0, 0, 0]) {
            let _ = call(numbers::MUNMAP, [at, bytes, 0, 0, 0, 0]);
            return Err(e);
        }
        let _ = call(numbers::MADVISE, [at, bytes, HUGE, 0, 0, 0]);
        Ok(at)
    }
}

const BOOTTIME: usize = 7;
type Clock = unsafe extern "C" fn(i32, *mut [i64; 2]) -> i32;
/// The clock in the memory that the kernel gives every process; 0: not searched for yet, 1: there is none.
static CLOCK: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn getauxval(kind: usize) -> usize;
}

/// Finds the clock: to be called before `boot_ns`.
pub(crate) fn find_clock() {
    const SYSINFO_EHDR: usize = 33;
    if CLOCK.load(Relaxed) != 0 {
        return;
    }
    // SAFETY: it reads a table that was made before the program began.
    let image = unsafe { getauxval(SYSINFO_EHDR) };
    // SAFETY: the kernel has put a whole ELF image there, or nothing.
    let found = if image == 0 { None } else { unsafe { clock_in(image) } };
    CLOCK.store(found.unwrap_or(1), Relaxed);
}

/// The address of the function that reads clocks in the ELF image at `image`.
///
/// # Safety
/// There must be the image of a shared object that stays.
unsafe fn clock_in(image: usize) -> Option<usize> {
    const LOAD: u32 = 1;
    const DYNAMIC: u32 = 2;
    #[cfg(target_arch = "x86_64")]
    const NAME: &core::ffi::CStr = c"__vdso_clock_gettime";
    #[cfg(target_arch = "aarch64")]
    const NAME: &core::ffi::CStr = c"__kernel_clock_gettime";
    // SAFETY: the caller vouches for the image; all places are those that its own tables name.
    unsafe {
        let u16_at = |at: usize| (at as *const u16).read_unaligned();
        let u32_at = |at: usize| (at as *const u32).read_unaligned();
        let word = |at: usize| (at as *const usize).read_unaligned();
        let (headers, size, count) =
            (image + word(image + 32), u16_at(image + 54) as usize, u16_at(image + 56) as usize);
        let (mut moved, mut dynamic) = (None, None);
        for header in (0..count).map(|n| headers + n * size) {
            match u32_at(header) {
                LOAD if moved.is_none() => {
                    moved = Some(image.wrapping_add(word(header + 8)).wrapping_sub(word(header + 16)))
                }
                DYNAMIC => dynamic = Some(image + word(header + 8)),
                _ => {}
            }
        }
        let (moved, mut entry) = (moved?, dynamic?);
        let (mut strings, mut symbols, mut hash) = (0, 0, 0);
        while word(entry) != 0 {
            let value = moved.wrapping_add(word(entry + 8));
            match word(entry) {
                4 => hash = value,
                5 => strings = value,
                6 => symbols = value,
                _ => {}
            }
            entry += 16;
        }
        if strings == 0 || symbols == 0 || hash == 0 {
            return None;
        }
        let symbols = (0..u32_at(hash + 4) as usize).map(|n| symbols + n * 24);
        let named = |symbol: &usize| {
            let name = core::ffi::CStr::from_ptr((strings + u32_at(*symbol) as usize) as *const _);
            name == NAME && u16_at(*symbol + 6) != 0
        };
        symbols.into_iter().find(named).map(|symbol| moved.wrapping_add(word(symbol + 8)))
    }
}

/// The clock of leases, in nanoseconds.
#[inline]
pub(crate) fn boot_ns() -> u64 {
    let mut now = [0i64; 2];
    let clock = CLOCK.load(Relaxed);
    let failed = if clock > 1 {
        // SAFETY: `find_clock` has found a function of this type, which writes two words.
        unsafe { core::mem::transmute::<usize, Clock>(clock)(BOOTTIME as i32, &mut now) != 0 }
    } else {
        // SAFETY: the kernel writes two words.
        unsafe { call(numbers::CLOCK_GETTIME, [BOOTTIME, now.as_mut_ptr() as usize, 0, 0, 0, 0]) }.is_err()
    };
    if failed { u64::MAX } else { (now[0] as u64).wrapping_mul(1_000_000_000).wrapping_add(now[1] as u64) }
}
