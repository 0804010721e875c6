//! Replies: converts the file system's values to the kernel's structures, and writes them to the device.
//!
//! Invariant: a reply is written in one system call, header first, and the header's length is the sum of the parts.

use crate::calls::{AttrReply, Entry, LockHow, LockKind, OpenReply, Statfs};
use crate::kernel::structs::{Attr as AttrWire, AttrOut, EntryOut, OpenOut, OutHeader, Statfs as StatfsWire};
use crate::kernel::structs::{LkOut, Statx, StatxOut, SxTime};
use crate::recorded::Recorded;
use amphi_client::CallKind;
use amphi_types::{Attr, Errno, Timespec, limits};
use rustix::io::Errno as Raw;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::io::IoSlice;
use std::mem::size_of;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Members of statx that are filled: the basic ones and the time of creation.
const STATX_FILLED: u32 = 0x0fff;
/// Least value of `st_blksize`, the unit by which programs such as `cp` read and write.
pub(crate) const PREFERRED_IO_BYTES: u32 = 128 << 10;

fn attr_wire(a: &Attr) -> AttrWire {
    AttrWire {
        ino: a.ino.0,
        size: a.size,
        blocks: a.blocks,
        atime: a.atime.sec as u64,
        mtime: a.mtime.sec as u64,
        ctime: a.ctime.sec as u64,
        atimensec: a.atime.nsec,
        mtimensec: a.mtime.nsec,
        ctimensec: a.ctime.nsec,
        mode: a.mode(),
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: PREFERRED_IO_BYTES,
        flags: 0,
    }
}

pub(crate) fn entry_out(e: &Entry) -> EntryOut {
    EntryOut {
        nodeid: e.node.0,
        generation: e.generation,
        entry_valid: e.entry_ttl.as_secs(),
        attr_valid: e.attr_ttl.as_secs(),
        entry_valid_nsec: e.entry_ttl.subsec_nanos(),
        attr_valid_nsec: e.attr_ttl.subsec_nanos(),
        attr: attr_wire(&e.attr),
    }
}

/// The answer to a lookup of a name that does not exist, with the timeout of the negative entry.
pub(crate) fn absent_out(ttl: Duration) -> EntryOut {
    EntryOut { entry_valid: ttl.as_secs(), entry_valid_nsec: ttl.subsec_nanos(), ..EntryOut::default() }
}

pub(crate) fn attr_out(r: &AttrReply) -> AttrOut {
    AttrOut { attr_valid: r.ttl.as_secs(), attr_valid_nsec: r.ttl.subsec_nanos(), dummy: 0, attr: attr_wire(&r.attr) }
}

pub(crate) fn statx_out(r: &AttrReply) -> StatxOut {
    let a = &r.attr;
    let time = |t: Timespec| SxTime { sec: t.sec, nsec: t.nsec, reserved: 0 };
    let stat = Statx {
        mask: STATX_FILLED,
        blksize: PREFERRED_IO_BYTES,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        mode: a.mode() as u16,
        ino: a.ino.0,
        size: a.size,
        blocks: a.blocks,
        atime: time(a.atime),
        btime: time(a.btime),
        ctime: time(a.ctime),
        mtime: time(a.mtime),
        rdev_major: libc::major(u64::from(a.rdev)),
        rdev_minor: libc::minor(u64::from(a.rdev)),
        ..Statx::default()
    };
    StatxOut { attr_valid: r.ttl.as_secs(), attr_valid_nsec: r.ttl.subsec_nanos(), stat, ..StatxOut::default() }
}

pub(crate) fn open_out(r: &OpenReply) -> OpenOut {
    OpenOut { fh: r.handle.0, open_flags: r.flags.0, backing_id: 0 }
}

pub(crate) fn statfs_out(s: &Statfs) -> StatfsWire {
    StatfsWire {
        blocks: s.blocks,
        bfree: s.free,
        bavail: s.available,
        files: s.files,
        ffree: s.files_free,
        bsize: s.block_bytes,
        namelen: if s.name_max == 0 { limits::NAME_MAX as u32 } else { s.name_max },
        frsize: s.block_bytes,
        ..StatfsWire::default()
    }
}

/// The lock that conflicts with `asked`, or the answer that there is none.
pub(crate) fn lk_out(asked: &LockHow, found: Option<LockHow>) -> LkOut {
    let kind = match found.map(|f| f.kind) {
        Some(LockKind::Shared) => libc::F_RDLCK,
        Some(LockKind::Exclusive) => libc::F_WRLCK,
        Some(LockKind::Unlock) | None => libc::F_UNLCK,
    };
    let lock = found.as_ref().unwrap_or(asked);
    LkOut { start: lock.first, end: lock.last, kind: kind as u32, pid: lock.pid }
}

/// The destination of the reply to one request.
pub(crate) struct ReplyTo<'a> {
    /// The device from which the request was read.
    pub device: BorrowedFd<'a>,
    /// Id of the request.
    pub unique: u64,
    given_away: Cell<bool>,
    /// When the mount began with it, or 0 if no recording needs it.
    began_ns: u64,
    recorded: RefCell<Option<Box<Recorded>>>,
    /// The kind of call, if its time is counted.
    kind: Option<CallKind>,
}

impl<'a> ReplyTo<'a> {
    /// The reply to a request that the mount began to handle at `began_ns`.
    pub(crate) fn new(device: BorrowedFd<'a>, unique: u64, began_ns: u64) -> ReplyTo<'a> {
        ReplyTo { device, unique, given_away: Cell::new(false), began_ns, recorded: RefCell::default(), kind: None }
    }

    /// The same, whose time is counted for this kind of call.
    pub(crate) fn of(self, kind: Option<CallKind>) -> ReplyTo<'a> {
        ReplyTo { kind, ..self }
    }

    /// The kind of call, and when the mount began with it, if its time is counted.
    pub(crate) fn timed(&self) -> Option<(CallKind, u64)> {
        self.kind.map(|kind| (kind, self.began_ns))
    }

    /// The answer is recorded, and so are the notes that the client makes on this thread until the returned value is
    /// dropped.
    pub(crate) fn record(&self, mut recorded: Box<Recorded>) -> impl Drop + use<> {
        recorded.began(self.began_ns);
        let noting = recorded.noting();
        *self.recorded.borrow_mut() = Some(recorded);
        noting
    }

    /// The record of the request and its answer.
    pub(crate) fn take_recorded(&self) -> Option<Box<Recorded>> {
        self.recorded.borrow_mut().take()
    }

    /// Replies success, with the bytes of `parts`.
    pub(crate) fn ok(&self, parts: &[&[u8]]) {
        self.send(0, parts);
    }

    /// From now on another task answers, and nothing more is sent from here.
    pub(crate) fn give_away(&self) {
        self.given_away.set(true);
    }

    /// Returns whether another task answers.
    pub(crate) fn is_given_away(&self) -> bool {
        self.given_away.get()
    }

    /// Replies an error.
    pub(crate) fn error(&self, e: Errno) {
        self.send(-e.raw(), &[]);
    }

    fn send(&self, error: i32, parts: &[&[u8]]) {
        if self.given_away.get() {
            return;
        }
        if let Some(recorded) = &mut *self.recorded.borrow_mut() {
            recorded.answered(error, parts);
        }
        match write_message(self.device, self.unique, error, parts) {
            // The caller was killed or the mount is gone, so no program waits for this reply.
            Ok(()) | Err(Raw::NOENT | Raw::NODEV | Raw::CONNABORTED | Raw::NOTCONN) => {}
            Err(e) => {
                tracing::warn!(unique = self.unique, error = %e, "the kernel refused a reply");
                if error == 0 {
                    // The request is still open. End it, or its caller would wait for ever.
                    let _ = write_message(self.device, self.unique, -Errno::Io.raw(), &[]);
                }
            }
        }
    }
}

/// Writes one message to the device: a reply (`unique` not 0) or a notification (`unique` 0, its code in `error`).
pub(crate) fn write_message(device: BorrowedFd<'_>, unique: u64, error: i32, parts: &[&[u8]]) -> Result<(), Raw> {
    let body: usize = parts.iter().map(|p| p.len()).sum();
    assert!(body <= u32::MAX as usize - size_of::<OutHeader>(), "a reply of {body} bytes");
    let header = OutHeader { len: (size_of::<OutHeader>() + body) as u32, error, unique };
    let mut slices: SmallVec<[IoSlice<'_>; 6]> = SmallVec::new();
    slices.push(IoSlice::new(header.as_bytes()));
    slices.extend(parts.iter().filter(|p| !p.is_empty()).map(|p| IoSlice::new(p)));
    loop {
        match rustix::io::writev(device, &slices) {
            Ok(_) => return Ok(()),
            Err(Raw::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}
