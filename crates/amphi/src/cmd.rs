//! One file per subcommand; each has its arguments and `run`.

pub mod evict;
pub mod explain;
pub mod fsck;
pub mod key;
pub mod layout;
mod look;
pub mod manual;
pub mod metrics;
pub mod mount;
pub mod mount_helper;
pub mod mpiio;
pub mod publish;
pub mod quota;
mod reach;
pub mod run;
pub mod server;
pub mod stage;
pub mod stats;
pub mod status;
pub mod sync;
pub mod top;
pub mod tune;
pub mod umount;
pub mod up;
