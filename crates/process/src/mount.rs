//! A client served through FUSE at a directory of this machine.
//!
//! Owns: the checks before a mount, its options, the order in which it ends. Does not own: the front end
//! (`amphi_fuse`).

use crate::mount_words::{MountWord, MountWords};
use amphi_client::Client;
use amphi_fuse::{ClientFs, MountError, Session, SessionConfig};
use amphi_host::client::Running;
use amphi_host::control;
use amphi_host::failure::{Failure, Outcome};
use amphi_host::idle::Idle;
use rustix::fs::{Access, FileType, Mode};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// How long a reader of the kernel's requests polls by default, in microseconds: as long as most programs take from one
/// call to the next.
pub const FUSE_SPIN_US: u64 = 100;

/// The mount of this process, which is removed when the process ends at once.
static MOUNTED: Mutex<Vec<amphi_fuse::Unmounter>> = Mutex::new(Vec::new());

/// How long the removal of a mount may take when the process ends at once.
const DETACH: Duration = Duration::from_secs(2);

/// Options of a FUSE mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The source of the mount: the folder of a cluster of this process, or the cluster's addresses.
    pub source: String,
    /// The mount point.
    pub dir: PathBuf,
    /// Polling of `/dev/fuse` before a reader sleeps.
    pub spin: Duration,
    /// Other users may use the mount.
    pub allow_other: bool,
    /// Other clients may change the files, so set-user-id programs take effect only on request.
    pub shared: bool,
    /// The words of further options.
    pub words: MountWords,
}

/// Removes the mounts of this process without waiting for their users, who get errors; waits a short time for that.
#[expect(clippy::disallowed_methods, reason = "the thread that takes mounts away")]
pub fn detach_all() {
    let mounted = std::mem::take(&mut *MOUNTED.lock().unwrap_or_else(PoisonError::into_inner));
    if !mounted.is_empty() {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            mounted.iter().for_each(amphi_fuse::Unmounter::unmount_by_force);
            let _ = tell.send(());
        });
        let _ = told.recv_timeout(DETACH);
    }
}

/// Mounts `client`. `ended` gets a message when the mount ends, also by `umount`.
#[expect(clippy::disallowed_methods, reason = "the thread that waits for the end of the mount")]
pub fn mount(client: Client, options: &MountOptions, ended: mpsc::Sender<()>) -> Outcome<Arc<Session>> {
    if let Err(e) = amphi_env::real::keep_populated(client.memory_ahead()) {
        tracing::warn!("no thread to get memory ahead of its use, so that first writes are slower: {e}");
    }
    let words = &options.words;
    let said = |yes, no| words.said(yes, no).unwrap_or(false);
    let config = SessionConfig {
        read_only: said(MountWord::Ro, MountWord::Rw),
        // Another client of the cluster could otherwise leave a program there that runs as root here.
        no_suid: words.said(MountWord::NoSuid, MountWord::Suid).unwrap_or(options.shared),
        no_exec: said(MountWord::NoExec, MountWord::Exec),
        acl: !said(MountWord::NoAcl, MountWord::Acl),
        devices: said(MountWord::Dev, MountWord::NoDev),
        source: options.source.clone(),
        allow_other: options.allow_other,
        default_permissions: true,
        spin: options.spin,
        ..SessionConfig::default()
    };
    let session = Session::mount(Arc::new(ClientFs::new(client)), &options.dir, config).map_err(mount_failure)?;
    if let Some(advice) = Idle::look().advice() {
        tracing::info!("{advice}");
    }
    MOUNTED.lock().unwrap_or_else(PoisonError::into_inner).push(session.unmounter());
    let session = Arc::new(session);
    let waited = session.clone();
    std::thread::spawn(move || {
        waited.wait();
        MOUNTED.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let _ = ended.send(());
    });
    Ok(session)
}

fn mount_failure(e: MountError) -> Failure {
    match e {
        MountError::Init(_) | MountError::Threads(_) => Failure::broken(e.to_string()),
        _ => Failure::refused(e.to_string()),
    }
}

/// Checks a mount point before anything is started for it.
pub fn check_mount_point(dir: &Path) -> Outcome {
    let refused = |why: String| Err(Failure::refused(format!("mount point {} {why}", dir.display())));
    let meta = match amphi_fuse::look_at(dir) {
        Ok(meta) => meta,
        // A dead mount of ours is cleared by mounting.
        Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => return Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return refused("does not exist; make the folder first".into());
        }
        Err(e) => return refused(format!("cannot be looked at: {e}")),
    };
    if !FileType::from_raw_mode(meta.st_mode).is_dir() {
        return refused("is not a directory".into());
    }
    let path = std::fs::canonicalize(dir).unwrap_or_default();
    // A dead mount for which the kernel still answers is cleared by mounting again.
    if control::mounts().contains(&path) && !amphi_fuse::is_dead(&path) {
        return refused("is busy: an AmphiFS is mounted there already".into());
    }
    if !Path::new("/dev/fuse").exists() {
        return Err(Failure::refused(
            "/dev/fuse is missing, so nothing can be mounted; load the kernel module: modprobe fuse",
        ));
    }
    if rustix::fs::access("/dev/fuse", Access::READ_OK | Access::WRITE_OK).is_err() {
        return Err(Failure::refused(
            "this user may not open /dev/fuse, so nothing can be mounted; as root: chmod 666 /dev/fuse",
        ));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // The rule is that of `fusermount3`.
    let sticky = meta.st_mode & Mode::SVTX.bits() != 0 && meta.st_uid != rustix::process::getuid().as_raw();
    if sticky || rustix::fs::access(dir, Access::WRITE_OK).is_err() {
        return refused("is not this user's to mount on; give a directory that he owns and may write to".into());
    }
    amphi_fuse::find_helper().map_err(|e| Failure::refused(e.to_string()))
}

/// The present or future place of `path`: without links as far as it exists.
fn settled(path: &Path) -> std::io::Result<PathBuf> {
    let whole = std::path::absolute(path)?;
    for existing in whole.ancestors() {
        if let Ok(real) = std::fs::canonicalize(existing) {
            return Ok(real.join(whole.strip_prefix(existing).unwrap_or(Path::new(""))));
        }
    }
    Ok(whole)
}

/// Refuses a mount point that would hide the data folder, or that lies in it.
pub fn check_apart(data: &Path, mount: &Path) -> Outcome {
    let (Ok(data), Ok(mount)) = (settled(data), settled(mount)) else { return Ok(()) };
    if mount.starts_with(&data) {
        return Err(Failure::refused(format!(
            "mount point {} lies in the data folder; give another one",
            mount.display()
        )));
    }
    if data.starts_with(&mount) {
        return Err(Failure::refused(format!(
            "the data folder {} lies under the mount point {}, which would hide it; give another one",
            data.display(),
            mount.display()
        )));
    }
    Ok(())
}

/// Ends a mount and its server. If a worker has panicked, perhaps no thread is left that answers: the mount is
/// detached, and nothing is waited for.
///
/// Errors: the panic, or as `unmount` and `Running::stop`; the mount is removed even then.
pub fn end(session: &Session, running: Running) -> Outcome {
    if running.has_panicked() {
        session.unmounter().unmount_by_force();
        return running.join();
    }
    let told = unmount(session, &running.client);
    running.stop().and(told)
}

/// Removes a mount: in order if it is not in use, otherwise detached after everything was written back.
///
/// Errors: if some data could not be written back; the mount is removed even then.
fn unmount(session: &Session, client: &Client) -> Outcome {
    let unmounter = session.unmounter();
    let mut told = Ok(());
    if unmounter.unmount().is_err() {
        unmounter.end_posts();
        let synced = client.store_all().wait(None);
        told = synced.map_err(|e| Failure::broken(format!("not all that was written could be made stable: {e}")));
        tracing::warn!(
            "{} is in use; programs that have files open there get errors from now on",
            session.mount_point().display()
        );
        unmounter.unmount_by_force();
    }
    told
}
