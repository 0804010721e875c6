//! The device `/dev/fuse`: opening it, sharing one connection by several descriptors, and the system's limit on
//! requests.
#![expect(unsafe_code, reason = "the ioctl that clones a descriptor has no safe wrapper")]

use crate::kernel::DEV_IOC_CLONE;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno as Raw;
use std::os::fd::{AsRawFd, OwnedFd};

const DEVICE: &str = "/dev/fuse";
const PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
/// The limit in kernels without the setting.
const PAGES_LIMIT_FIXED: usize = 256;

pub(super) fn open_device(flags: OFlags) -> Result<OwnedFd, Raw> {
    rustix::fs::open(DEVICE, flags | OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Another descriptor for the connection of `device`, opened with `flags`, with its own queue of requests under way.
pub(crate) fn clone_device(device: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Raw> {
    let clone = open_device(flags)?;
    let source = device.as_raw_fd() as u32;
    // SAFETY: both descriptors are open; the ioctl reads one u32 from the address, which outlives the call.
    let rc = unsafe { libc::ioctl(clone.as_raw_fd(), DEV_IOC_CLONE as _, &raw const source) };
    if rc == 0 { Ok(clone) } else { Err(Raw::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Raw::IO)) }
}

/// Pages that the system allows for one request.
pub(crate) fn pages_limit() -> usize {
    let text = std::fs::read_to_string(PAGES_LIMIT).ok();
    text.and_then(|t| t.trim().parse().ok()).unwrap_or(PAGES_LIMIT_FIXED)
}

/// Raises the system's limit to `pages` if it is lower. Best effort: without it, requests arrive in more pieces.
pub(super) fn raise_pages_limit(pages: usize) {
    if pages_limit() < pages
        && let Err(e) = std::fs::write(PAGES_LIMIT, pages.min(usize::from(u16::MAX)).to_string())
    {
        tracing::info!(error = %e, "cannot raise {PAGES_LIMIT}; large requests arrive in pieces");
    }
}
