//! `amphi umount`: ends a mount and waits for the process behind it.
//!
//! umount(2) of a FUSE mount returns before the process of the mount has written everything back, and umount(8) waits
//! for nothing else. A machine that is switched off directly afterwards, or a container that ends with the command,
//! would lose bytes.

use amphi_host::control;
use amphi_host::failure::{During, Failure, Outcome};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How long everything may take to be written back, seconds.
const WRITE_BACK_S: i64 = 600;

/// Unmount, and wait until the servers have everything that was written on the mount; the mount's own exit code says
/// whether they have all of it.
#[derive(Args, Debug)]
pub struct Umount {
    /// Mount point; default: the only mount here
    mount: Option<PathBuf>,
    /// Detach the mount even if it is in use or its process does not answer, and wait for nothing
    #[arg(long)]
    force: bool,
}

impl Umount {
    /// Returns when the mount's process has ended.
    pub fn run(self) -> Outcome {
        let mount = control::find_mount(self.mount, "")?;
        let shown = mount.display();
        // A mount that has died, or whose process does not answer, gets no request.
        let process = if self.force { None } else { Some(process_of(&mount)?) };
        detach(&mount, self.force).map_err(|why| match why {
            Errno::BUSY => Failure::broken(format!(
                "{shown}: is in use: files are open there or a process works in it; end those, or use --force"
            )),
            Errno::INVAL => Failure::refused(format!("{shown}: is no mount point")),
            e => Failure::broken(format!("{shown}: cannot be unmounted: {e}")),
        })?;
        let Some(process) = process else { return Ok(()) };
        let limit = Timespec { tv_sec: WRITE_BACK_S, tv_nsec: 0 };
        let ended = rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)));
        match ended.during(|| "wait for the mount's process".into())? {
            0 => Err(Failure::broken(format!(
                "{shown}: is unmounted, but its process has not written everything back within {WRITE_BACK_S} s and goes on"
            ))),
            _ => Ok(()),
        }
    }
}

/// The process behind a mount.
fn process_of(mount: &Path) -> Outcome<std::os::fd::OwnedFd> {
    let text = control::read(mount, "user.amphi.pid")?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::broken(format!("{}: {text:?} is no process", mount.display())))?;
    pidfd_open(pid, PidfdFlags::empty()).during(|| format!("watch process {text}; --force unmounts without"))
}

/// Unmounts: root by the system call, other users by the program that mounted it for them.
fn detach(mount: &Path, force: bool) -> Result<(), Errno> {
    if rustix::process::geteuid().is_root() {
        return rustix::mount::unmount(mount, if force { UnmountFlags::DETACH } else { UnmountFlags::empty() });
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(force.then_some("-z")).arg("--").arg(mount).stderr(std::process::Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Errno::BUSY),
        Err(e) => Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
    }
}
