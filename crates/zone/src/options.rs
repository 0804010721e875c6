//! Options of the owner of a zone: for making and for opening it.
//!
//! Owns: the sizes and names of a new zone, the options of an opening with their defaults, and what is called when a
//! zone fails. Does not own: what is made of them (`layout`, `state`, `zone`).

use amphi_types::TargetId;
use std::rc::Rc;
use std::time::Duration;

/// How to make a zone.
#[derive(Clone, Debug)]
pub struct ZoneParams {
    /// Bytes of the file, rounded down to 1 MiB.
    pub size_bytes: u64,
    /// Bytes of the log ring: a multiple of 4096, at least 1 MiB, at most a quarter of the zone. 0 takes the
    /// default, 64 MiB or an eighth of the zone if that is less.
    pub log_bytes: u64,
    /// The cluster.
    pub cluster: u64,
    /// The target.
    pub target: TargetId,
}

/// How to open a zone.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Refuse a zone of another cluster.
    pub cluster: Option<u64>,
    /// Refuse a zone of another target.
    pub target: Option<TargetId>,
    /// Written records are synced at the latest after this time, and are stable after twice this time.
    pub sync_interval: Duration,
    /// A checkpoint is taken when changes of this many bytes wait for it.
    pub dirty_bytes: u64,
    /// Checkpoints are taken by the zone's own agent; otherwise only by calls of `checkpoint`.
    pub auto_checkpoint: bool,
    /// Records count as kept when they are in memory that outlives the process, if there is any; otherwise when they
    /// are on the disk.
    pub keeps: bool,
    /// Notified of the failure of the zone before any task whose record waits.
    pub on_failure: OnFailure,
}

/// Called with a sentence.
type Told = Rc<dyn Fn(&str)>;

/// The function that is called when a zone fails; by default none.
#[derive(Clone, Default)]
pub struct OnFailure(pub Option<Told>);

impl std::fmt::Debug for OnFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OnFailure({})", if self.0.is_some() { "told" } else { "nobody" })
    }
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            cluster: None,
            target: None,
            sync_interval: Duration::from_secs(1),
            dirty_bytes: 16 << 20,
            auto_checkpoint: true,
            keeps: true,
            on_failure: OnFailure::default(),
        }
    }
}
