//! Handles of files (`name_to_handle_at`, `open_by_handle_at`), as servers that export a mount use them.

use crate::harness::{Place, eventually, pattern};
use rustix::fs::{Mode, OFlags, open};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;

/// `struct file_handle`.
#[repr(C)]
#[derive(Clone)]
pub(crate) struct Handle {
    bytes: u32,
    kind: i32,
    data: [u8; 128],
}

impl Handle {
    pub(crate) fn of(path: &Path) -> Handle {
        let mut handle = Handle { bytes: 128, kind: 0, data: [0; 128] };
        let name = std::ffi::CString::new(path.to_str().expect("text")).expect("no NUL");
        let mut mount = 0;
        let at = std::ptr::from_mut(&mut handle).cast();
        // SAFETY: a name that ends with NUL, a handle with as much room as it says, and a number to fill in.
        let result = unsafe { libc::name_to_handle_at(libc::AT_FDCWD, name.as_ptr(), at, &mut mount, 0) };
        assert_eq!(result, 0, "{}: {}", path.display(), std::io::Error::last_os_error());
        handle
    }

    pub(crate) fn open(&self, mount: &File, flags: i32) -> std::io::Result<File> {
        let mut handle = self.clone();
        let at = std::ptr::from_mut(&mut handle).cast();
        // SAFETY: a handle as `name_to_handle_at` has filled it.
        let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), at, flags | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor has just been opened, and nobody else knows it.
        Ok(unsafe { File::from_raw_fd(fd) })
    }
}

fn errno(result: std::io::Result<File>) -> i32 {
    result.expect_err("it must fail").raw_os_error().expect("an errno")
}

/// Goal: handles of files, directories and links stay valid when the kernel has forgotten them, even over another mount
/// of the cluster. The handles open these inodes, at their present place in the tree. Handles of removed files and
/// forged ones give ESTALE and do no harm. Method: handles are made by one mount and used by the next one.
#[test]
fn handles_outlive_the_mount() {
    let place = Place::new();
    let up = place.up(&[]);
    let mount = place.mount();
    let (deep, moved, gone) = (mount.join("a/b/c/deep"), mount.join("a/moved"), mount.join("a/gone"));
    fs::create_dir_all(mount.join("a/b/c")).expect("mkdir");
    for (i, path) in [&deep, &moved, &gone].into_iter().enumerate() {
        fs::write(path, pattern(i as u64, 70_000)).expect("write");
    }
    std::os::unix::fs::symlink("deep", mount.join("a/b/c/link")).expect("symlink");
    let [deep, moved, gone, dir, link, root] =
        [deep, moved, gone, mount.join("a/b/c"), mount.join("a/b/c/link"), mount.clone()].map(|p| Handle::of(&p));
    fs::rename(mount.join("a/moved"), mount.join("a/b/elsewhere")).expect("rename");
    up.stop();
    let up = place.up(&[]);
    fs::remove_file(mount.join("a/gone")).expect("unlink");
    let at = File::open(&mount).expect("the mount");
    let place_of = |file: &File| fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("its path");
    for (handle, seed, name) in [(&deep, 0, "a/b/c/deep"), (&moved, 1, "a/b/elsewhere")] {
        let mut bytes = Vec::new();
        let mut file = handle.open(&at, libc::O_RDWR).expect("open");
        file.read_to_end(&mut bytes).expect("read");
        assert!(bytes == pattern(seed, 70_000), "{name}");
        file.set_len(1000 * (seed + 1)).expect("truncate");
        assert_eq!(fs::metadata(mount.join(name)).expect("stat").len(), 1000 * (seed + 1), "{name}");
    }
    let dir = dir.open(&at, libc::O_RDONLY | libc::O_DIRECTORY).expect("a directory");
    assert_eq!(place_of(&dir), mount.join("a/b/c"), "connected to the root");
    let above = rustix::fs::openat(&dir, "..", OFlags::RDONLY, Mode::empty()).expect("its parent");
    assert_eq!(place_of(&File::from(above)), mount.join("a/b"));
    assert_eq!(place_of(&root.open(&at, libc::O_RDONLY).expect("the root")), mount);
    let link = link.open(&at, libc::O_PATH).expect("a link");
    let target = rustix::fs::readlinkat(&link, "", Vec::new()).expect("readlink");
    assert_eq!(target.as_bytes(), b"deep");
    assert_eq!(errno(gone.open(&at, libc::O_RDONLY)), libc::ESTALE);
    // The inode's number is at the beginning.
    for number in [0u64, 2 << 48, 3 << 48 | 5, 9999 << 48 | 1, (1 << 48) - 1, u64::MAX] {
        let mut made_up = deep.clone();
        for (part, bytes) in [(number >> 32) as u32, number as u32].into_iter().zip([0, 4]) {
            made_up.data[bytes..bytes + 4].copy_from_slice(&part.to_ne_bytes());
        }
        assert_eq!(errno(made_up.open(&at, libc::O_RDONLY)), libc::ESTALE, "{number:x}");
    }
    drop((at, dir, link));
    let held = open(mount.join("a/b/elsewhere"), OFlags::RDONLY, Mode::empty()).expect("open");
    fs::remove_file(mount.join("a/b/elsewhere")).expect("unlink");
    drop(held);
    fs::write(mount.join("a/new"), b"x").expect("write");
    // The kernel keeps the inode until the mount has answered the close, which no program waits for.
    let at = File::open(&mount).expect("the mount");
    let is_gone = || moved.open(&at, libc::O_RDONLY).is_err_and(|e| e.raw_os_error() == Some(libc::ESTALE));
    eventually("the removed file is gone once it is closed", is_gone);
    drop(at);
    up.stop();
    place.fsck();
}
