//! Negotiation: the INIT request of the kernel and our answer.
//!
//! Invariant: a flag is answered only if the kernel offered it and the session acts on it. Three offers are left out on
//! purpose: the kernel's write-back cache (the file system has its own), the long form of SETXATTR, and FUSE over
//! io_uring (docs/LESSONS.md, "Polling and cores"). The last two change the form of messages.

use crate::config::{Limits, SessionConfig};
use crate::data::PAYLOAD_AT;
use crate::kernel::flags::init as flag;
use crate::kernel::structs::{InitIn, InitOut};
use crate::kernel::{MAJOR, MINOR, MINOR_MIN, WRITE_HEAD_BYTES};
use crate::mount::MountError;
use crate::reply::write_message;
use crate::request::{Operation, parse};
use amphi_client::Buf;
use amphi_types::Errno;
use rustix::io::Errno as Raw;
use std::os::fd::{AsFd, OwnedFd};
use zerocopy::IntoBytes;

/// Flags that the mount requests if the kernel offers them.
const WANTED: u64 = flag::ASYNC_READ
    | flag::ATOMIC_O_TRUNC
    | flag::EXPORT_SUPPORT
    | flag::BIG_WRITES
    | flag::AUTO_INVAL_DATA
    | flag::DO_READDIRPLUS
    | flag::ASYNC_DIO
    | flag::PARALLEL_DIROPS
    | flag::ABORT_ERROR
    | flag::MAX_PAGES
    | flag::CACHE_SYMLINKS
    | flag::HANDLE_KILLPRIV_V2
    | flag::INIT_EXT
    | flag::CREATE_SUPP_GROUP
    | flag::DIRECT_IO_ALLOW_MMAP;
/// Flags that we answer if the kernel offers them and the mount has access control lists.
const WANTED_FOR_ACL: u64 = flag::POSIX_ACL | flag::DONT_MASK;
/// Flags that the mount requests if the kernel offers them and the file system keeps file locks itself.
const WANTED_FOR_LOCKS: u64 = flag::POSIX_LOCKS | flag::FLOCK_LOCKS;
/// Most background requests in flight: read-ahead and pieces of `O_DIRECT` calls. The kernel's default of 12 cuts a 16
/// MiB call of 1 MiB pieces into two rounds.
const BACKGROUND_MAX: u16 = 128;
/// Read-ahead of the kernel, in bytes, for open files whose reads it serves: streams of small calls arrive in requests
/// of this size. The kernel also reads this much around each first fault of a mapping, so it is not the largest
/// request. The kernel starts with a smaller value, and INIT can only lower that. So a mount by root raises it
/// elsewhere as well (`MountPoint::raise_read_ahead`).
pub(super) const READ_AHEAD_BYTES: u32 = 1 << 20;
/// Bytes of a page in the protocol's page counts.
const PAGE: usize = 4096;
const _: () = assert!((READ_AHEAD_BYTES as usize).is_multiple_of(PAGE), "the kernel reads whole pages ahead");

/// Answers INIT on a new mount.
pub(super) fn negotiate(device: &OwnedFd, config: &SessionConfig, locks: bool) -> Result<Limits, MountError> {
    let mut buf = Buf::zeroed(PAYLOAD_AT + (64 << 10));
    loop {
        buf.set_window(PAYLOAD_AT - WRITE_HEAD_BYTES..buf.capacity());
        let len = match rustix::io::read(device, &mut buf[..]) {
            Ok(len) => len,
            Err(Raw::INTR | Raw::AGAIN | Raw::NOENT) => continue,
            Err(e) => return Err(MountError::Init(e)),
        };
        let Ok(request) = parse(&buf[..len]) else {
            return Err(MountError::Init(Raw::PROTO));
        };
        let Operation::Init { init } = request.op else {
            // Before INIT the kernel sends nothing else.
            return Err(MountError::Init(Raw::PROTO));
        };
        let reply = |out: &InitOut| {
            write_message(device.as_fd(), request.unique, 0, &[out.as_bytes()]).map_err(MountError::Init)
        };
        if init.major > MAJOR {
            // The kernel sends INIT again, in our version.
            reply(&InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() })?;
            continue;
        }
        if init.major < MAJOR || init.minor < MINOR_MIN {
            let _ = write_message(device.as_fd(), request.unique, -Errno::Proto.raw(), &[]);
            return Err(MountError::KernelTooOld { major: init.major, minor: init.minor });
        }
        let (out, limits) = answer(&init, config, locks);
        reply(&out)?;
        tracing::debug!(?limits, "mount negotiated");
        return Ok(limits);
    }
}

fn answer(init: &InitIn, config: &SessionConfig, locks: bool) -> (InitOut, Limits) {
    let offered = u64::from(init.flags) | (u64::from(init.flags2) << 32);
    let for_locks = if locks { WANTED_FOR_LOCKS } else { 0 };
    let for_acl = if config.acl { WANTED_FOR_ACL } else { 0 };
    let taken = offered & (WANTED | for_locks | for_acl);
    let write_max = config.request_bytes();
    // One more page, so that a call whose memory is not page-aligned is not cut.
    let pages = write_max / PAGE + 1;
    let out = InitOut {
        major: MAJOR,
        minor: MINOR.min(init.minor),
        max_readahead: init.max_readahead.min(READ_AHEAD_BYTES),
        flags: taken as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: BACKGROUND_MAX / 4 * 3,
        max_write: write_max as u32,
        time_gran: 1,
        max_pages: pages as u16,
        flags2: (taken >> 32) as u32,
        ..InitOut::default()
    };
    let limits = Limits {
        minor: init.minor,
        write_max_bytes: write_max,
        pages_max: pages.min(crate::mount::pages_limit()),
        shared_mmap: taken & flag::DIRECT_IO_ALLOW_MMAP != 0,
    };
    (out, limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only flags that the kernel offers are used, and none of those that are left out on purpose. Method: offer
    /// nothing, then everything.
    #[test]
    fn only_offered_and_wanted_flags_are_taken() {
        let config = SessionConfig::default();
        let (none, _) = answer(&InitIn { major: 7, minor: 40, ..InitIn::default() }, &config, true);
        assert_eq!((none.flags, none.flags2, none.minor), (0, 0, 40));
        let every = InitIn { major: 7, minor: 45, flags: u32::MAX, flags2: u32::MAX, ..InitIn::default() };
        let (out, limits) = answer(&every, &config, false);
        let taken = u64::from(out.flags) | (u64::from(out.flags2) << 32);
        assert_eq!(taken, WANTED | WANTED_FOR_ACL);
        let without = SessionConfig { acl: false, ..SessionConfig::default() };
        assert_eq!(u64::from(answer(&every, &without, false).0.flags) & WANTED_FOR_ACL, 0);
        let (with_locks, _) = answer(&every, &config, true);
        assert_eq!(with_locks.flags ^ out.flags, 1 << 1 | 1 << 10);
        for (bit, what) in [(16, "write-back cache"), (29, "long setxattr"), (41, "io_uring")] {
            assert_eq!(taken >> bit & 1, 0, "{what}");
        }
        assert_eq!((out.max_write, out.max_pages), (8 << 20, 2049));
        assert!(limits.shared_mmap);
    }

    /// Goal: silly sizes are brought into the protocol's range. Method: extremes.
    #[test]
    fn request_size_is_clamped() {
        for (asked, got) in [(0, 4096), (5000, 4096), (usize::MAX, 128 << 20)] {
            let config = SessionConfig { request_max_bytes: asked, ..SessionConfig::default() };
            assert_eq!(config.request_bytes(), got);
        }
    }
}
