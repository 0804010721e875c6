//! What is asked about a descriptor before a request of it goes direct.
//!
//! Owns: the questions to the kernel, in ascending order of cost, and which file systems are known. Does not own: the
//! decision by size (`request`), the transfer (`transfer`).
//!
//! Every direct request asks everything anew, which costs about 3 us: flags, limits and the file behind a number may
//! change at any time, also by calls that this library does not see. Only the answer "no file of a named folder" is
//! kept, since it makes calls slower at worst.

use super::memory::{Slot, UNIT_MAX};
use super::{folders, mapped};
use crate::sys::{self, Identity, O_APPEND, O_DIRECT, O_SYNC};
use crate::table;
use amphi_policy::decision::Way;
use core::ffi::CStr;

/// Direct transfers cover pages as a whole, so that they share none with what goes through the page cache.
const PAGE: u64 = 4096;

/// File systems whose direct I/O is coherent with their page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Ext,
    Xfs,
    Btrfs,
    Nfs,
    Lustre,
}

pub(crate) const KINDS: [(Kind, &str, u64); 5] = [
    (Kind::Ext, "ext4", 0xef53),
    (Kind::Xfs, "xfs", 0x5846_5342),
    (Kind::Btrfs, "btrfs", 0x9123_683e),
    (Kind::Nfs, "nfs", 0x6969),
    (Kind::Lustre, "lustre", 0x0bd0_0bd0),
];

/// A file of a named folder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File {
    pub(crate) kind: Kind,
    pub(crate) identity: Identity,
    pub(crate) size: u64,
    /// What direct transfers are whole multiples of.
    pub(crate) unit: u64,
    /// The flags of the second open, without `O_DIRECT`.
    pub(crate) flags: usize,
}

/// Why a large request in a named folder is the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Left {
    /// The file system is none of those that are known, or the file takes no direct I/O.
    FileSystem,
    /// The program has opened the file with `O_DIRECT`.
    Direct,
    /// The position is the end of the file, which only the kernel knows.
    Append,
    /// The length of files is limited; the kernel judges.
    Limit,
    /// A second open would break the lease that the program has on the file.
    Lease,
    /// This process has a writable mapping of the file.
    Mapped,
    /// No memory is free for it, or the arguments are unusual.
    Unusual,
    /// No thread could be made, or the file could not be opened a second time.
    Refused,
}

/// The file of a descriptor. `None`: it is no open file of a named folder.
pub(crate) fn inspect(fd: i32, way: Way, slot: &mut Slot) -> Option<Result<File, Left>> {
    const ACCESS: usize = 3;
    const O_WRONLY: usize = 1;
    const O_NOATIME: usize = 0o1_000_000;
    // With O_NONBLOCK an open does not wait for a lease of another process.
    const NONBLOCK_CLOEXEC: usize = 0o4_000 | 0o2_000_000;
    let flags = sys::flags(fd).ok()?;
    let (is_able, access) = match way {
        Way::Read => (matches!(flags & ACCESS, 0 | 2), 0),
        Way::Write => (matches!(flags & ACCESS, 1 | 2), O_WRONLY),
    };
    if !is_able {
        return None;
    }
    let details = sys::details(fd).ok()?;
    let is_inside = details.is_regular && is_in_folders(fd, slot);
    table::note_outside(fd, !is_inside);
    if !is_inside {
        return None;
    }
    if flags & O_DIRECT != 0 {
        return Some(Err(Left::Direct));
    }
    if way == Way::Write && flags & O_APPEND != 0 {
        return Some(Err(Left::Append));
    }
    let magic = sys::file_system(fd).ok()?;
    let known = KINDS.iter().find(|(_, _, number)| *number == magic);
    let unit = u64::from(details.alignment.unwrap_or(PAGE as u32));
    let (Some((kind, ..)), true) = (known, unit.is_power_of_two() && unit <= UNIT_MAX as u64) else {
        return Some(Err(Left::FileSystem));
    };
    if way == Way::Write && !sys::file_size_is_unlimited() {
        return Some(Err(Left::Limit));
    }
    if sys::has_lease(fd) {
        return Some(Err(Left::Lease));
    }
    if mapped::contain(details.identity) {
        return Some(Err(Left::Mapped));
    }
    let flags = access | flags & (O_SYNC | O_NOATIME) | NONBLOCK_CLOEXEC;
    Some(Ok(File { kind: *kind, identity: details.identity, size: details.size, unit: unit.max(PAGE), flags }))
}

fn is_in_folders(fd: i32, slot: &mut Slot) -> bool {
    let mut name = [0u8; 32];
    let at = super::text::put(&mut name, 0, b"/proc/self/fd/");
    super::text::put_number(&mut name, at, fd.unsigned_abs().into());
    let Ok(name) = CStr::from_bytes_until_nul(&name) else { return false };
    sys::read_link(name, slot.path()).is_ok_and(folders::contain)
}
