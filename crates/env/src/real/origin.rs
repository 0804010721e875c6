//! The file to which some memory belongs. It is recorded so that the deletion of the file can be distinguished from
//! everything else that hides a file.
//!
//! Owns: the note (file system, file handle, path) and the decision. Does not own: where notes are stored (`kept`).
//!
//! Invariant: a file counts as deleted only if the kernel reports that for its handle, on the file system on which it
//! was. A file that was moved, or whose file system is not mounted at the moment, is never taken for a deleted file.

use rustix::fs::{Mode, OFlags};
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Most bytes of a file handle (`MAX_HANDLE_SZ` of linux/fcntl.h).
const HANDLE_MAX: usize = 128;

/// The layout of a file handle in the system calls (open_by_handle_at(2)).
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_MAX],
}

/// The note of the file at `path`: device (8 bytes), type of the handle (4), its length (2), the handle, the absolute
/// path. `None` where the file system has no handles.
pub(super) fn note(path: &str) -> Option<Vec<u8>> {
    let whole = std::fs::canonicalize(path).ok()?;
    let name = CString::new(whole.to_str()?).ok()?;
    let device = rustix::fs::stat(&*name).ok()?.st_dev;
    let mut found = Handle { bytes: HANDLE_MAX as u32, kind: 0, handle: [0; HANDLE_MAX] };
    let mut mount_id = 0i32;
    // SAFETY: the name ends with a zero byte, `found` has room for the bytes that it names, and all of them outlive the
    // call.
    let failed = unsafe {
        libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, name.as_ptr(), &raw mut found, &raw mut mount_id, 0)
    };
    if failed != 0 {
        return None;
    }
    let handle = found.handle.get(..found.bytes as usize)?;
    let mut note = Vec::with_capacity(16 + handle.len() + name.as_bytes().len());
    note.extend_from_slice(&device.to_le_bytes());
    note.extend_from_slice(&found.kind.to_le_bytes());
    note.extend_from_slice(&(handle.len() as u16).to_le_bytes());
    note.extend_from_slice(handle);
    note.extend_from_slice(name.as_bytes());
    Some(note)
}

/// Returns whether the file of a note has been deleted. If that cannot be determined, for want of rights or because its
/// file system is not mounted, or if the note is invalid, the file does not count as deleted.
pub(super) fn is_deleted(note: &[u8]) -> bool {
    parse(note).is_some_and(|(device, kind, handle, path)| judge(device, kind, handle, path).unwrap_or(false))
}

fn parse(note: &[u8]) -> Option<(u64, i32, &[u8], &str)> {
    let (device, rest) = note.split_first_chunk::<8>()?;
    let (kind, rest) = rest.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let (handle, path) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    let path = std::str::from_utf8(path).ok().filter(|p| p.starts_with('/'))?;
    Some((u64::from_le_bytes(*device), i32::from_le_bytes(*kind), handle, path))
}

fn judge(device: u64, kind: i32, handle: &[u8], path: &str) -> Option<bool> {
    if Path::new(path).symlink_metadata().is_ok() {
        return Some(false);
    }
    // The nearest existing folder shows whether the file system is still mounted at the same place.
    let near = Path::new(path).ancestors().skip(1).find(|p| p.is_dir())?;
    let folder = rustix::fs::open(near, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    if rustix::fs::fstat(&folder).ok()?.st_dev != device {
        return Some(false);
    }
    let mut wanted = Handle { bytes: handle.len() as u32, kind, handle: [0; HANDLE_MAX] };
    wanted.handle.get_mut(..handle.len())?.copy_from_slice(handle);
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the descriptor is open, and `wanted` has as many bytes as it names and outlives the call.
    let opened = unsafe { libc::syscall(libc::SYS_open_by_handle_at, folder.as_raw_fd(), &raw const wanted, flags) };
    if opened < 0 {
        return Some(std::io::Error::last_os_error().raw_os_error() == Some(libc::ESTALE));
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(opened as i32) });
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only a deleted file counts as deleted: not one that exists, was moved, or whose file system is not
    /// mounted. Method: a file that is moved and then removed, and notes that the test changes.
    #[test]
    fn only_a_deletion_is_one() {
        let dir = tempfile::tempdir().expect("directory");
        let (folder, elsewhere) = (dir.path().join("data"), dir.path().join("moved"));
        std::fs::create_dir(&folder).expect("folder");
        let zone = folder.join("zone");
        std::fs::write(&zone, b"zone").expect("file");
        let Some(note) = note(zone.to_str().expect("text")) else { return };
        assert!(!is_deleted(&note), "it is there");
        std::fs::rename(&folder, &elsewhere).expect("move");
        assert!(!is_deleted(&note), "it was moved");
        std::fs::remove_dir_all(&elsewhere).expect("remove");
        // A process that may not open files by their handles cannot determine this.
        assert_eq!(is_deleted(&note), rustix::process::geteuid().is_root(), "it was removed");
        let mut other = note.clone();
        other[0] ^= 1;
        assert!(!is_deleted(&other), "another file system is mounted there");
        for cut in 0..note.len().min(20) {
            assert!(!is_deleted(&note[..cut]), "{cut} bytes of a note");
        }
    }
}
