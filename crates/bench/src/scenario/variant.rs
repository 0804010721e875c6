//! The variants of AmphiFS that represent other systems, and auto without each of its parts.
//!
//! Owns: which tunables a variant changes. Invariant: whatever a variant does not name has the value that the mounts
//! and servers began with, also after another variant.

use crate::mounted_cluster::Mounts;
use amphi_host::failure::Outcome;

/// A way of doing it: AmphiFS with some of its tunables.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// The name in tables.
    pub name: &'static str,
    /// The differences from the defaults.
    pub set: &'static [&'static str],
}

impl Variant {
    const fn new(name: &'static str, set: &'static [&'static str]) -> Variant {
        Variant { name, set }
    }

    /// The name as a part of names of results.
    pub fn key(&self) -> String {
        self.name.replace([' ', ','], "_")
    }

    /// Sets it up on all mounts and servers.
    pub fn apply(&self, cluster: &Mounts) -> Outcome {
        cluster.put_back()?;
        self.set.iter().try_for_each(|set| cluster.set(set))
    }
}

/// Lustre without the hybrid decision: everything through the cache, under locks on whole pages that grow, each small
/// file by itself.
pub const VANILLA: Variant = Variant::new(
    "vanilla",
    &["hybrid.mode=buffered", "server.lock_granularity_bytes=4K", "writeback.batch=off", "readahead.small_files=off"],
);
/// All requests are direct.
pub const DIRECT: Variant = Variant::new("direct", &["hybrid.mode=direct"]);
/// The decision of each request, whole.
pub const AUTO: Variant = Variant::new("auto", &[]);
/// A fixed switch at 512 KiB on any storage, as BeeGFS' native mode has it (`tuneFileCacheBufSize`), with byte locks.
pub const FIXED_512K: Variant = Variant::new(
    "fixed 512 KiB",
    &[
        "hybrid.small_bytes=512K",
        "hybrid.large_write_bytes=512K",
        "hybrid.large_read_bytes=512K",
        "hybrid.large_write_bytes_rotating=512K",
        "hybrid.large_read_bytes_rotating=512K",
    ],
);
/// The variants that every scenario compares, in the order of the columns of its first table.
pub const BASELINES: [Variant; 4] = [VANILLA, DIRECT, AUTO, FIXED_512K];
/// Places in `BASELINES`.
pub const VANILLA_AT: usize = 0;
/// The place of `DIRECT` in lists of variants.
pub const DIRECT_AT: usize = 1;
/// The decision.
pub const AUTO_AT: usize = 2;

/// Auto without asking whether others want the file.
pub const NO_CONTENTION: Variant = Variant::new("auto, no contention", &["hybrid.contention=off"]);
/// Auto that waits for the answer to each direct write.
pub const NO_PIPELINE: Variant = Variant::new("auto, no pipeline", &["writeback.pipeline_bytes=0"]);
/// Auto that requests the lock of a record when it writes the record.
pub const NO_LOCKS_AHEAD: Variant = Variant::new("auto, no locks ahead", &["locks.ahead=0"]);
/// Auto with locks on whole pages.
pub const PAGE_LOCKS: Variant = Variant::new("auto, page locks", &["server.lock_granularity_bytes=4K"]);
/// Auto without asking whether memory is short.
pub const NO_MEMORY: Variant = Variant::new("auto, no memory", &["hybrid.memory=off"]);
/// Auto that requests the mount's own memory only.
pub const NO_CALLER_MEMORY: Variant = Variant::new("auto, no caller memory", &["hybrid.caller_memory=off"]);
/// Auto without asking how much of the file is in the cache.
pub const NO_OVERCACHE: Variant = Variant::new("auto, no overcache", &["hybrid.overcache=off"]);
/// Auto without asking whether bytes are used again.
pub const NO_LOCALITY: Variant = Variant::new("auto, no locality", &["hybrid.locality=off"]);
/// Auto without comparing the throughput of buffered and direct requests.
pub const NO_LEARNING: Variant = Variant::new("auto, no learning", &["hybrid.learn=off"]);
/// Auto that requests each direct read when it is made.
pub const NO_READS_AHEAD: Variant = Variant::new("auto, no direct reads ahead", &["readahead.direct_bytes=0"]);
/// Auto by size alone: none of the questions that need to know more than the request.
pub const SIZE_ALONE: Variant = Variant::new(
    "auto, size alone",
    &["hybrid.contention=off", "hybrid.memory=off", "hybrid.overcache=off", "hybrid.locality=off"],
);
/// Auto that writes the small files back one by one.
pub const NO_BATCHES: Variant = Variant::new("auto, no batches", &["writeback.batch=off"]);
/// Auto that opens and reads small files when it is asked to.
pub const NO_FILES_AHEAD: Variant = Variant::new("auto, no files ahead", &["readahead.small_files=off"]);

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the places of the baselines are what their names say. Method: names.
    #[test]
    fn places_of_baselines() {
        let at = |place: usize| BASELINES[place].name;
        assert_eq!([at(VANILLA_AT), at(DIRECT_AT), at(AUTO_AT)], ["vanilla", "direct", "auto"]);
    }
}
