//! System calls that a mount makes on its own names.
//!
//! Owns: the private clone of a mount, the table of descriptors of the threads that use it, opening directories by
//! handle, and how to see what a thread waits for. Does not own: when any of it is done.
#![expect(unsafe_code, reason = "handles, ranges of descriptors and attributes of mounts have no safe wrappers")]

use amphi_types::{Ino, Timespec};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat, openat2, statx};
use rustix::io::Errno as Raw;
use rustix::mount::{OpenTreeFlags, open_tree};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// 32-bit words of a FUSE file handle: the node id (high, low) and the generation.
const HANDLE_WORDS: usize = 3;
/// Type of such a handle.
const HANDLE_TYPE: libc::c_int = 0x81;

#[repr(C)]
struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    words: [u32; HANDLE_WORDS],
}

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

fn check(rc: i64) -> Result<i64, Raw> {
    if rc >= 0 { Ok(rc) } else { Err(Raw::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Raw::IO)) }
}

/// Blocks all signals of the process for this thread and those that it starts. A handler that ran here would write to a
/// descriptor that this thread does not have, and the signal would be lost. Faults of the thread itself still end the
/// process.
pub(crate) fn leave_signals() -> Result<(), Raw> {
    let own = [libc::SIGBUS, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT];
    let mut left = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call initialises the set, the others change and read it.
    let failed = unsafe {
        libc::sigfillset(left.as_mut_ptr());
        own.iter().for_each(|signal| {
            libc::sigdelset(left.as_mut_ptr(), *signal);
        });
        libc::pthread_sigmask(libc::SIG_SETMASK, left.as_ptr(), std::ptr::null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(Raw::from_raw_os_error(failed)) }
}

/// Gives the calling thread, and threads that it starts, a separate table of descriptors in which only the standard
/// descriptors and `kept` are open. Returns its copy of `kept`. Descriptors of the rest of the process are invalid in
/// this thread.
///
/// When the last descriptor of `/dev/fuse` is closed, the kernel ends all requests. If threads that wait for the
/// mount's own answers held the device open, a killed mount process could not end.
pub(crate) fn leave_descriptors(kept: &OwnedFd) -> Result<OwnedFd, Raw> {
    let kept = kept.as_raw_fd();
    let close = |first: i32, last: u32, flags: u32| {
        // SAFETY: no memory is involved. With the first call the table belongs to this thread alone; afterwards the
        // thread uses only descriptors that are opened here, and `kept`.
        check(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) })
    };
    close(kept + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    if kept > 3 {
        close(3, kept as u32 - 1, 0)?;
    }
    // SAFETY: the number is open in this thread's own table, and nothing else in that table owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(kept) })
}

/// The root of a private clone of the mount at `at`. Nothing is mounted in the clone, and later mounts do not propagate
/// to it.
pub(crate) fn root_of_clone(at: &Path) -> Result<OwnedFd, Raw> {
    let tree = open_tree(CWD, at, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    let attr = MountAttr { set: 0, clear: 0, propagation: libc::MS_PRIVATE, user_namespace: 0 };
    // SAFETY: the path is a NUL-terminated string, the structure outlives the call, and its length is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    })?;
    openat(&tree, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Opens an inode by its node id, with which the kernel ends the timeout of its name. Waits for no lock of a directory,
/// and sends no request if the kernel knows the inode.
///
/// Errors: `STALE` if the kernel does not know the directory.
pub(crate) fn by_handle(root: &OwnedFd, node: Ino) -> Result<OwnedFd, Raw> {
    let words = [(node.0 >> 32) as u32, node.0 as u32, 0];
    let mut handle = Handle { bytes: 4 * HANDLE_WORDS as u32, kind: HANDLE_TYPE, words };
    let at = (&raw mut handle).cast::<libc::file_handle>();
    // SAFETY: the handle has as many bytes behind its head as it says, and outlives the call.
    let fd = check(unsafe { libc::open_by_handle_at(root.as_raw_fd(), at, libc::O_PATH | libc::O_CLOEXEC) }.into())?;
    // SAFETY: the call has just returned this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Opens a directory by its name in another one.
pub(crate) fn step(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Raw> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(dir, name, flags, Mode::empty(), ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS)
}

/// Looks up a name in a directory.
pub(crate) fn look(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Raw> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(dir, name, flags, Mode::empty(), ResolveFlags::NO_XDEV)
}

/// Makes the kernel request the attributes of an inode, whatever it has cached.
pub(crate) fn ask_attributes(fd: &OwnedFd) -> Result<(), Raw> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    statx(fd.as_fd(), c"", flags, StatxFlags::BASIC_STATS).map(drop)
}

/// The size of a file as the mount answers it now, whatever the kernel has cached.
pub(crate) fn asked_size(fd: &OwnedFd) -> Result<u64, Raw> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    statx(fd.as_fd(), c"", flags, StatxFlags::BASIC_STATS).map(|stat| stat.stx_size)
}

/// The size that the kernel uses, and the time of change that it knows, without a request to the mount.
pub(crate) fn kept_size(fd: &OwnedFd) -> Result<(u64, Timespec), Raw> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(fd.as_fd(), c"", flags, StatxFlags::BASIC_STATS)?;
    Ok((stat.stx_size, Timespec { sec: stat.stx_ctime.tv_sec, nsec: stat.stx_ctime.tv_nsec }))
}

/// The inode number, without a request to the mount.
pub(crate) fn inode(fd: &OwnedFd) -> Option<Ino> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(fd.as_fd(), c"", flags, StatxFlags::INO).ok().map(|stat| Ino(stat.stx_ino))
}

/// The number of waits that a thread has begun, if it is looking a name up and waits for the lock of the directory or
/// for another thread's lookup of the same name. Returns `None` if it does not, or if the kernel does not tell.
pub(crate) fn waits_for_directory(tid: u32) -> Option<u64> {
    /// Functions of the kernel in which a lookup waits for nothing but these.
    const IN: &[&str] = &["walk_component", "lookup_slow", "__lookup_slow", "d_alloc_parallel", "d_wait_lookup"];
    let read = |what: &str| std::fs::read_to_string(format!("/proc/self/task/{tid}/{what}")).ok();
    if !IN.contains(&read("wchan")?.as_str()) {
        return None;
    }
    let status = read("status")?;
    let word = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let is_waiting = word("State:")?.starts_with('D');
    let switches = word("voluntary_ctxt_switches:")?.parse().ok()?;
    is_waiting.then_some(switches)
}
