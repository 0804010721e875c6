//! The identity of this process, found out without a system call or a lock.
//!
//! Owns: a page that reads as zeros in a child of `fork` (`MADV_WIPEONFORK`), and the error in a child. Does not own:
//! the uses of the page (`registry`, `memory`).

use crate::failure::{Done, Fail};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, SeqCst},
};

const PAGE: usize = 4096;

/// The state of one process; all of it reads as 0 in a child.
#[repr(C)]
pub(crate) struct Own {
    is_own: AtomicUsize,
    has_cluster: AtomicUsize,
    /// Address of the table of handles.
    pub(crate) registry: AtomicUsize,
    /// The address of the record of memory for direct I/O.
    pub(crate) arenas: AtomicUsize,
}

static ROOT: AtomicUsize = AtomicUsize::new(0);
/// Whether this process or a parent of it has started a client.
static CLUSTERS: AtomicBool = AtomicBool::new(false);

fn root() -> Option<&'static Own> {
    match ROOT.load(Acquire) {
        0 => None,
        // SAFETY: a page that was mapped for good, of which zeros are a value.
        page => Some(unsafe { &*(page as *const Own) }),
    }
}

/// The error in a child of `fork`.
pub(crate) fn forked() -> Fail {
    Fail::new(
        libc::ENOTCONN,
        "this process is a child of fork, and handles of its parent are not its own: open what it needs in it, or use \
         posix_spawn",
    )
}

/// The state of this process.
///
/// Errors: `EBADF` if the process has no objects, `ENOTCONN` in a child of `fork` that has made none yet.
#[inline]
pub(crate) fn own() -> Done<&'static Own> {
    match root() {
        Some(own) if own.is_own.load(Acquire) != 0 => Ok(own),
        Some(_) => Err(forked()),
        None => Err(Fail { errno: libc::EBADF, why: None }),
    }
}

/// The same, made if need be.
///
/// Errors: `ENOSYS` if the kernel cannot wipe pages at a fork.
pub(crate) fn own_or_new() -> Done<&'static Own> {
    if root().is_none() {
        // SAFETY: a new mapping.
        let page = unsafe {
            mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        // SAFETY: as above.
        unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) }
            .map_err(|_| Fail::new(libc::ENOSYS, "libamphi needs Linux 4.14 or later"))?;
        // If two threads get to this point at once, the page of the second one is never freed.
        let _ = ROOT.compare_exchange(0, page as usize, SeqCst, SeqCst);
    }
    if let Some(own) = root() {
        own.is_own.store(1, SeqCst);
    }
    own()
}

/// Notes that a client of a cluster is about to start.
///
/// Errors: `ENOTCONN` in a child of a process that had one: its threads are missing here, and the locks that they held
/// are never released.
pub(crate) fn note_cluster() -> Done<()> {
    let own = own_or_new()?;
    if CLUSTERS.load(SeqCst) && own.has_cluster.load(SeqCst) == 0 {
        return Err(forked());
    }
    own.has_cluster.store(1, SeqCst);
    CLUSTERS.store(true, SeqCst);
    Ok(())
}
