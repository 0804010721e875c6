//! Files of which this process has a mapping that stores go through to the file.
//!
//! Owns: the list of these files. Does not own: seeing the mappings (`preload`).
//!
//! A direct write takes the pages of its range out of the page cache, before and after. A store into such a page by a
//! mapping in between makes it dirty; then the kernel keeps the page, and reports the file as damaged at the next
//! `fsync`. So files that this process has mapped for writing are left to the page cache, until the process ends: the
//! end of a mapping is not looked for. Mappings that only read do no harm, the kernel drops their pages.

use crate::sys::{self, Identity};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Files that are remembered. After more of them no file goes direct any more.
const FILES_MAX: usize = 64;

static FILES: [[AtomicU64; 2]; FILES_MAX] = [const { [const { AtomicU64::new(0) }; 2] }; FILES_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Whether all files count as mapped.
static ALL: AtomicBool = AtomicBool::new(false);

/// Called before a shared mapping of a descriptor is made.
#[cold]
pub fn note_mapping(fd: i32) {
    const ACCESS: usize = 3;
    const READ_WRITE: usize = 2;
    if sys::flags(fd).is_ok_and(|flags| flags & ACCESS != READ_WRITE) {
        return;
    }
    match sys::details(fd) {
        Ok(details) if !details.is_regular || contain(details.identity) => {}
        Ok(details) => note(details.identity),
        Err(_) => {}
    }
}

fn note(file: Identity) {
    let at = COUNT.fetch_add(1, SeqCst);
    match FILES.get(at) {
        Some([device, inode]) => {
            device.store(file.device, SeqCst);
            inode.store(file.inode, SeqCst);
        }
        None => ALL.store(true, SeqCst),
    }
}

/// Whether a file was mapped.
pub(crate) fn contain(file: Identity) -> bool {
    let count = COUNT.load(SeqCst);
    let is_it =
        |[device, inode]: &[AtomicU64; 2]| (device.load(SeqCst), inode.load(SeqCst)) == (file.device, file.inode);
    ALL.load(SeqCst) || FILES.iter().take(count).any(is_it)
}
