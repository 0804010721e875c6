//! Settings of mounts and servers that are measured: those of `amphi up`.

use std::time::Duration;

/// The settings of a mount, for the do-nothing one as for the real one: the defaults of `amphi up`.
pub fn session_config() -> amphi_fuse::SessionConfig {
    let spin = Duration::from_micros(amphi_process::mount::FUSE_SPIN_US);
    amphi_fuse::SessionConfig { spin, ..amphi_fuse::SessionConfig::default() }
}

/// How long a caller and a worker poll by default.
pub const DEFAULT_SPINS: (Duration, Duration) = (amphi_env::real::WORKER_SPIN, amphi_env::real::WORKER_SPIN);
