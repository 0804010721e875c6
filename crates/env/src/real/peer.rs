//! The identity of the other end of a Unix socket.
//!
//! Owns: asking the kernel for user, group and supplementary groups of the process that connected, as they were then.
//! Its entry in `/proc` would describe the process after it has executed another program. For example, it may have
//! started a set-user-id program.

use amphi_types::Cred;
use amphi_types::limits::GROUPS_MAX;
use rustix::net::sockopt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Process, user and groups of the peer that connected. If there are more groups than a request may name, the rest is
/// left out.
pub(super) fn of(socket: &OwnedFd) -> io::Result<(i32, Cred)> {
    let who = sockopt::socket_peercred(socket)?;
    let mut groups = groups(socket)?;
    groups.truncate(GROUPS_MAX);
    Ok((who.pid.as_raw_nonzero().get(), Cred::new(who.uid.as_raw(), who.gid.as_raw(), groups)))
}

fn groups(socket: &OwnedFd) -> io::Result<Vec<u32>> {
    // The bound is the number of groups that a process may have.
    const MOST: usize = 65_536;
    let mut found: Vec<libc::gid_t> = vec![0; GROUPS_MAX];
    loop {
        let mut bytes = (found.len() * size_of::<libc::gid_t>()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes, which `found` has, and says in `bytes` how many it wrote, or
        // would have.
        let failed = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                found.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<libc::gid_t>();
        if failed == 0 {
            found.truncate(count);
            return Ok(found);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= found.len() || count > MOST {
            return Err(error);
        }
        found.resize(count, 0);
    }
}
