//! Options for the zones and workers of a server, common to all commands that start a server.

use crate::storage_kind::Rotational;
use amphi_host::failure::{Failure, Outcome};
use amphi_host::size;
use amphi_sched::{Cores, WorkerConfig};
use amphi_server::ServerConfig;
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Longest polling time that makes sense, microseconds.
pub const SPIN_US_MAX: u64 = 1_000_000;

/// Polling times that make sense, microseconds.
pub fn spin_us() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(0..=SPIN_US_MAX)
}

/// Options of the zones and workers of a server.
#[derive(Args, Clone, Debug)]
pub struct Storage {
    /// Folder with the zones; made and formatted at the first start
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Number of targets; fixed at the first start [default there: 4]
    #[arg(long)]
    pub targets: Option<u16>,
    /// Size of each zone at the first start [default: 90 % of the free space over the targets]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub zone_size: Option<u64>,
    /// Size of each zone's log at the first start
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "64M")]
    pub log_size: u64,
    /// Worker threads; targets are spread over them [default: 1, which serves the mount of the same process best; other
    /// mounts gain from more]
    #[arg(long)]
    pub workers: Option<u16>,
    /// How long a worker polls after its last work before it sleeps, if nobody else needs the core; microseconds
    #[arg(long, default_value_t = 200, value_parser = spin_us())]
    pub worker_spin_us: u64,
    /// Whether the zones lie on rotating disks; auto looks at their devices
    #[arg(long, value_name = "WHETHER", default_value = "auto")]
    pub rotational: Rotational,
    /// Begin a new cluster in a folder that was in use and holds no zones any more; without it that is refused: its
    /// disk may not be mounted
    #[arg(long)]
    pub format: bool,
    /// Permission bits of Unix sockets to listen on: who may connect. Users other than root and the user of the server
    /// act there only as themselves
    #[arg(long, value_name = "MODE", value_parser = socket_mode, default_value = "0600")]
    pub socket_mode: u32,
}

/// Permission bits of a socket, octal.
pub fn socket_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text.trim_start_matches("0o"), 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "give permission bits as chmod has them, for instance 0660".to_string())
}

/// Default number of workers of one of several servers that share a machine: half of the cores, since the programs that
/// use the files need the others.
pub fn workers_of_one_of(servers: u16) -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = cores / 2 / usize::from(servers.max(1));
    share.clamp(1, usize::from(amphi_server::WORKERS_MAX)) as u16
}

impl Storage {
    /// The server's configuration.
    pub fn config(&self) -> Outcome<ServerConfig> {
        let Some(dir) = self.data.to_str() else {
            return Err(Failure::refused(format!("{}: the path must be UTF-8", self.data.display())));
        };
        if self.data.exists() && !self.data.is_dir() {
            return Err(Failure::refused(format!("{dir}: is a file, not a folder; give --data a folder")));
        }
        let mut config = ServerConfig::new(dir);
        config.targets = self.targets;
        config.zone_bytes = self.zone_size;
        config.log_bytes = self.log_size;
        config.workers = self.workers.unwrap_or_else(|| workers_of_one_of(1));
        config.workers_wanted = self.workers.is_some();
        config.machine.is_rotating = self.rotational.judge();
        config.machine.read_file = Some(Arc::new(|path| std::fs::read_to_string(path).ok()));
        Ok(config)
    }

    /// The workers' configuration.
    pub fn workers(&self) -> WorkerConfig {
        WorkerConfig { spin: Duration::from_micros(self.worker_spin_us), cores: Cores::Free }
    }
}
