//! `Notifier`: makes the kernel drop cached data.
//!
//! Owns: the notifications for inodes and names. Does not own: when they are sent.
//!
//! Invariant: dropping the pages of an inode makes the kernel **write dirty mapped pages back first, while the call
//! blocks**. So never call it on a reader thread, nor while holding a lock that a write needs.

use crate::kernel::flags::bits;
use crate::kernel::structs::{NotifyInvalEntry, NotifyInvalInode};
use crate::node::Top;
use crate::reply::write_message;
use amphi_types::{Errno, Ino, Result};
use rustix::io::Errno as Raw;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Weak;
use zerocopy::IntoBytes;

/// Sends invalidations. Usable from any thread, also after the mount is gone (`NotConnected`).
#[derive(Clone)]
pub struct Notifier {
    // Weak, so that a notifier that is still held cannot keep the device of a dead mount open.
    device: Weak<OwnedFd>,
    top: Top,
}

impl Notifier {
    /// For the mount with this root.
    pub(crate) fn new(device: Weak<OwnedFd>, top: Top) -> Notifier {
        Notifier { device, top }
    }

    /// A notifier without a mount: every call fails with `NotConnected`.
    pub fn detached() -> Notifier {
        Notifier { device: Weak::new(), top: Top::default() }
    }

    /// Drops the attributes of `ino`, and its cached pages of `len` bytes (0: to the end) from `offset` on. Blocks
    /// while dirty mapped pages are written. No error if the kernel does not know the inode.
    pub fn inval_inode(&self, ino: Ino, offset: u64, len: u64) -> Result<()> {
        let n = NotifyInvalInode { ino: self.top.node(ino).0, off: clip(offset), len: clip(len) };
        self.send(bits::NOTIFY_INVAL_INODE, &[n.as_bytes()])
    }

    /// Drops the attributes of `ino` and keeps its pages. Waits for nothing. Returns whether the kernel knows the
    /// inode.
    pub fn inval_attr(&self, ino: Ino) -> Result<bool> {
        let n = NotifyInvalInode { ino: self.top.node(ino).0, off: -1, len: 0 };
        self.tell(bits::NOTIFY_INVAL_INODE, &[n.as_bytes()])
    }

    /// Drops `name` in directory `parent`. No error if the kernel does not know the name.
    pub fn inval_entry(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let n = NotifyInvalEntry { parent: self.top.node(parent).0, namelen: name.len() as u32, flags: 0 };
        self.send(bits::NOTIFY_INVAL_ENTRY, &[n.as_bytes(), name, b"\0"])
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> Result<()> {
        self.tell(code, parts).map(drop)
    }

    /// Sends a notification. Returns false if the kernel does not know the inode or name.
    fn tell(&self, code: i32, parts: &[&[u8]]) -> Result<bool> {
        let device = self.device.upgrade().ok_or(Errno::NotConnected)?;
        match write_message(device.as_fd(), 0, code, parts) {
            Ok(()) => Ok(true),
            Err(Raw::NOENT) => Ok(false),
            Err(Raw::NODEV | Raw::CONNABORTED | Raw::NOTCONN) => Err(Errno::NotConnected),
            Err(e) => Err(Errno::from_raw(e.raw_os_error())),
        }
    }
}

fn clip(v: u64) -> i64 {
    v.min(i64::MAX as u64) as i64
}
