//! Settings of a mount, and the limits that were negotiated with the kernel.

use std::time::Duration;

/// Settings of a mount.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The source shown in the mount table and by `df`, without NUL.
    pub source: String,
    /// Other users than the one who mounts may use the mount.
    pub allow_other: bool,
    /// The kernel checks permissions by mode bits before it sends a request.
    pub default_permissions: bool,
    /// The mount is read-only.
    pub read_only: bool,
    /// Setuid and setgid are ignored when a file is executed.
    pub no_suid: bool,
    /// No file of the mount can be executed.
    pub no_exec: bool,
    /// Access control lists are in force. Without lists, permission bits alone decide in the kernel, which then sends
    /// no request for a list when a caller does not own a file. The servers still check the lists.
    pub acl: bool,
    /// Device files can be opened. Only root may mount in this way.
    pub devices: bool,
    /// Payload of the largest request in bytes, a multiple of 4096. If root mounts, the system's limit is raised to
    /// this value.
    pub request_max_bytes: usize,
    /// Most reader threads, at least 2. This many calls can block at once before further calls wait for a thread. Some
    /// more threads are reserved for the kernel's own pages.
    pub threads_max: usize,
    /// How many reader threads sleep in reserve, for the next calls that block.
    pub threads_idle_max: usize,
    /// How long one idle thread polls the device before it sleeps. Zero: it never polls.
    pub spin: Duration,
}

impl Default for SessionConfig {
    fn default() -> SessionConfig {
        SessionConfig {
            source: "amphi".to_string(),
            allow_other: true,
            default_permissions: true,
            read_only: false,
            no_suid: false,
            no_exec: false,
            acl: true,
            devices: false,
            request_max_bytes: 8 << 20,
            threads_max: 256,
            threads_idle_max: 32,
            spin: Duration::ZERO,
        }
    }
}

impl SessionConfig {
    /// The payload bound in whole pages, within what the protocol's fields can express.
    pub(crate) fn request_bytes(&self) -> usize {
        (self.request_max_bytes / 4096 * 4096).clamp(4096, 128 << 20)
    }
}

/// The result of the negotiation of kernel and session at INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Protocol minor of the kernel.
    pub minor: u32,
    /// Largest WRITE payload in bytes.
    pub write_max_bytes: usize,
    /// Pages of the largest request. Longer calls arrive in pieces of this size.
    pub pages_max: usize,
    /// Whether shared mappings of directly opened files work.
    pub shared_mmap: bool,
}
