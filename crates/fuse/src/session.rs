//! `Session`: one mount and the threads that serve it.
//!
//! Owns: mounting with negotiation, the end of a mount, and the settings of both. The parts of this module are `init`
//! (negotiation), `pool` (how many threads read), `reader` (what each thread does) and `receive` (the memory for
//! requests). Does not own: the system calls of mounting (`mount`).
//!
//! Invariant: when `wait` or `drop` returns, no thread of the session is left and `FileSystem::unmounted` was called.
//!
//! The number that drove the threads: waking a thread costs 30 us, a do-nothing request 3.5 us. So short requests stay
//! on one thread (`pool`). But it cannot be predicted which request will block. If a thread does, another thread must
//! read the device, or an INTERRUPT would stay unread.

mod init;
mod polling;
mod pool;
mod reader;
mod receive;

use crate::config::{Limits, SessionConfig};
use crate::file_system::FileSystem;
use crate::interrupt::InHand;
use crate::mount::{self, MountError, MountPoint};
use crate::node::Top;
use crate::notify::Notifier;
use pool::Pool;
use receive::Ahead;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// State that readers, session and unmounters share.
struct Shared {
    fs: Arc<dyn FileSystem>,
    /// The device that was mounted. Notifications are written to this descriptor.
    device: Arc<OwnedFd>,
    in_hand: InHand,
    pool: Arc<Pool>,
    config: SessionConfig,
    limits: Limits,
    /// The offset at which the next WRITE is expected to begin.
    ahead: Arc<Ahead>,
    /// Set while a thread polls. Only one thread polls at a time.
    polling: AtomicBool,
    /// The session ended without an unmount, so the dead mount is still in the mount table.
    died: AtomicBool,
}

/// A mount that is served. Dropping it unmounts, by force if it is busy, and waits for its threads.
pub struct Session {
    shared: Arc<Shared>,
    mount_point: Arc<MountPoint>,
}

/// Ends a mount from another thread, for instance the one that handles signals.
#[derive(Clone)]
pub struct Unmounter {
    shared: Arc<Shared>,
    mount_point: Arc<MountPoint>,
}

impl Session {
    /// Mounts `fs` at the directory `at` and serves it on threads of its own.
    ///
    /// Errors say what is wrong with the mount point or the system. After an error nothing stays mounted.
    pub fn mount(fs: Arc<dyn FileSystem>, at: &Path, config: SessionConfig) -> Result<Session, MountError> {
        let (device, mount_point) = mount::mount(at, &config)?;
        // From here on, an early return must not leave a dead mount behind.
        let guard = MountGuard(Some(mount_point));
        let limits = init::negotiate(&device, &config, fs.keeps_locks())?;
        let mount_point = Arc::new(guard.disarm());
        mount_point.raise_read_ahead(init::READ_AHEAD_BYTES);
        let (device, top) = (Arc::new(device), Top(fs.root()));
        if config.acl {
            // Linux makes the root's inode before INIT is answered, as one whose access control list is never kept
            // (`ACL_DONT_CACHE`). So the kernel requests the list in each walk through the root by a caller who does
            // not own the root. On older kernels this invalidation makes the kernel keep the list; newer kernels
            // request it each time (docs/design/kernel_names.md).
            let forgotten = Notifier::new(Arc::downgrade(&device), top).inval_attr(top.0);
            tracing::debug!(?forgotten, "the list of the root may be kept");
        }
        fs.mounted(Notifier::new(Arc::downgrade(&device), top), &limits);
        let in_hand = InHand::default();
        if let Some(times) = fs.call_times() {
            // Nothing is mounted there before.
            let _ = in_hand.late.times.set(times.clone());
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(Shared {
            fs,
            device,
            in_hand,
            pool: Arc::new(Pool::new(config.threads_max.max(2), config.threads_idle_max, cores)),
            config,
            limits,
            ahead: Arc::default(),
            polling: AtomicBool::new(false),
            died: AtomicBool::new(false),
        });
        let session = Session { shared, mount_point };
        if let Err(e) = reader::start_first(&session.shared) {
            session.mount_point.unmount_by_force();
            return Err(MountError::Threads(e));
        }
        session.shared.fs.serves(&session.mount_point.path, session.mount_point.device_number);
        Ok(session)
    }

    /// Absolute path of the mount point.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point.path
    }

    /// The limits that were negotiated with the kernel.
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Invalidates what the kernel has cached.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::downgrade(&self.shared.device), Top(self.shared.fs.root()))
    }

    /// Reader threads at present.
    pub fn threads(&self) -> usize {
        self.shared.pool.threads()
    }

    /// A handle that ends the mount from elsewhere.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { shared: self.shared.clone(), mount_point: self.mount_point.clone() }
    }

    /// Waits until the mount has ended, by an `Unmounter` or by a user's `umount`.
    pub fn wait(&self) {
        self.shared.pool.wait_empty();
        self.shared.pool.once_at_end(|| self.shared.fs.unmounted());
    }

    /// Unmounts and waits for the threads.
    ///
    /// Errors: `MountError::Busy` when files are open or a process has its working directory there; the mount stays.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.unmounter().unmount()?;
        self.wait();
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let unmounter = self.unmounter();
        if unmounter.unmount().is_err() {
            unmounter.unmount_by_force();
        }
        self.wait();
    }
}

impl Unmounter {
    /// Unmounts if nobody uses the mount. No error if it has already ended.
    pub fn unmount(&self) -> Result<(), MountError> {
        if self.unmounted_already() {
            return Ok(());
        }
        self.mount_point.unmount()
    }

    /// Returns whether this mount has ended. If so, a mount at the path belongs to another process.
    fn unmounted_already(&self) -> bool {
        self.shared.pool.ended() && !self.shared.died.load(Ordering::Acquire)
    }

    /// To be called before a mount that is in use ends: what programs have written without a call is carried out, and
    /// from now on each of their writes is a call.
    pub fn end_posts(&self) {
        self.shared.fs.end_posts();
    }

    /// Ends the mount although it is in use. Calls in progress fail, and open files answer ENOTCONN.
    pub fn unmount_by_force(&self) {
        if !self.unmounted_already() {
            self.mount_point.unmount_by_force();
        }
        self.shared.in_hand.fire_all();
    }

    /// The directory at which the file system is mounted.
    pub fn mount_point(&self) -> PathBuf {
        self.mount_point.path.clone()
    }
}

/// Unmounts when this value is dropped, unless it was disarmed.
struct MountGuard(Option<MountPoint>);

impl MountGuard {
    fn disarm(mut self) -> MountPoint {
        self.0.take().expect("armed until now")
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        if let Some(mount_point) = self.0.take() {
            mount_point.unmount_by_force();
        }
    }
}
