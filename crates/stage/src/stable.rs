//! The way to make written bytes stable on the file system of the target.
//!
//! Owns the choice between one call for everything and one for each file. `syncfs` is used only where the kernel is
//! known to write all data to the disk and to report errors. FUSE does not pass it on, so an AmphiFS mount is synced by
//! its own control attribute, which only its owner and root may use. On all other file systems each file is synced by
//! itself.

use crate::dirs::by_descriptor;
use rustix::fs::{self, XattrFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// File systems on which `syncfs` is used, by the magic number of `statfs`: ext2 to ext4, XFS, btrfs.
const WHOLE: [u64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];
const FUSE: u64 = 0x6573_5546;
/// The control attributes of an AmphiFS mount.
const AMPHI_MODE: &str = "user.amphi.mode";
const AMPHI_SYNC: &str = "user.amphi.sync";

/// How everything on a file system is made stable at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Syncfs,
    Amphi,
    /// Each file is synced by itself.
    Each,
}

/// The way to make files of a target stable.
pub(crate) struct Stable {
    method: Method,
    /// A directory of the target, opened before anything was written, so that no error is missed.
    dir: Arc<OwnedFd>,
}

impl Stable {
    /// Finds the way for the file system of `dir`.
    pub(crate) fn of(dir: &Arc<OwnedFd>) -> Stable {
        let kind = fs::fstatfs(&**dir).map(|s| s.f_type as u64 & 0xffff_ffff).unwrap_or(0);
        let method = match kind {
            kind if WHOLE.contains(&kind) => Method::Syncfs,
            FUSE if is_amphi(dir) => Method::Amphi,
            _ => Method::Each,
        };
        let stable = Stable { method, dir: dir.clone() };
        // The call is permitted only to root and to the owner of the mount.
        match stable.method == Method::Amphi && stable.sync_all().is_err() {
            true => Stable { method: Method::Each, ..stable },
            false => stable,
        }
    }

    /// Returns whether the thread that wrote a file has to sync it.
    pub(crate) fn is_each(&self) -> bool {
        self.method == Method::Each
    }

    /// Makes everything that was written stable, unless that is done file by file.
    pub(crate) fn sync_all(&self) -> Result<(), Errno> {
        match self.method {
            Method::Syncfs => fs::syncfs(&*self.dir),
            Method::Amphi => fs::setxattr(by_descriptor(&*self.dir), AMPHI_SYNC, b"all", XattrFlags::empty()),
            Method::Each => Ok(()),
        }
    }

    /// Makes the names in a directory stable.
    pub(crate) fn sync_dir(&self, dir: impl AsFd) -> Result<(), Errno> {
        match fs::fsync(dir) {
            // Some file systems know no fsync of directories.
            Ok(()) | Err(Errno::INVAL | Errno::NOSYS) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

/// Returns whether a directory is in an AmphiFS mount.
fn is_amphi(dir: &Arc<OwnedFd>) -> bool {
    fs::getxattr(by_descriptor(&**dir), AMPHI_MODE, &mut [0; 64][..]).is_ok()
}
