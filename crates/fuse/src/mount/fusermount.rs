//! Mounting without root, by the setuid program `fusermount3`.
//!
//! The program opens the device, mounts it, and passes the descriptor back over a socket whose number is in
//! `_FUSE_COMMFD`.

use super::MountError;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

const HELPER: &str = "fusermount3";

/// Checks that the program is installed.
pub(super) fn find() -> Result<(), MountError> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    if std::env::split_paths(&path).any(|dir| dir.join(HELPER).is_file()) {
        return Ok(());
    }
    Err(MountError::NoHelper(format!("there is no {HELPER}; install the package fuse3")))
}

pub(super) fn mount(path: &Path, options: &str) -> Result<OwnedFd, MountError> {
    let failed = |why: String| MountError::NoHelper(why);
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| failed(format!("socketpair: {e}")))?;
    // Only the helper's end survives the exec.
    fcntl_setfd(&theirs, FdFlags::empty()).map_err(|e| failed(format!("fcntl: {e}")))?;
    let child = Command::new(HELPER)
        .args(["-o", options, "--"])
        .arg(path)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(format!("cannot run {HELPER}: {e}; install the package fuse3")))?;
    drop(theirs);
    let device = receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(|e| failed(format!("{HELPER}: {e}")))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    device.ok_or_else(|| failed(format!("{HELPER} passed no descriptor")))
}

fn receive_descriptor(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    control.drain().find_map(|m| match m {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

pub(super) fn unmount(path: &Path, lazy: bool) -> Result<(), MountError> {
    let output = Command::new(HELPER)
        .args(if lazy { &["-u", "-z", "--"][..] } else { &["-u", "--"] })
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| MountError::NoHelper(format!("cannot run {HELPER}: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(if text.contains("busy") { MountError::Busy(path.into()) } else { MountError::NoHelper(text) })
}
