//! The figures of PeakFS.
//!
//! Owns: which of them is measured how, in the order of the paper. Each family is a file of `peakfs/`, with what the
//! paper's text states. Figures that compare with other file systems alone cannot be tried here.

mod data;
pub mod indexes;
mod metadata;
mod sharing;

use super::catalog::{Figure, Source};

const DRAWING: &str = "a drawing of the design, without numbers";
const NO_OTHERS: &str = "it compares file systems with each other, and no other one is run";

const fn measured(
    id: &'static str,
    title: &'static str,
    seconds: [u32; 2],
    measure: fn(&mut super::lab::Lab) -> amphi_host::failure::Outcome<super::lab::Made>,
    check: fn(&super::graph::Seen<'_>) -> Vec<super::claim::Check>,
) -> Figure {
    Figure { id, title, source: Source::Measured { seconds, measure, check } }
}

const fn untried(id: &'static str, title: &'static str, why: &'static str) -> Figure {
    Figure { id, title, source: Source::Untried(why) }
}

/// The paper.
pub const FIGURES: [Figure; 22] = [
    untried("peakfs-1", "latency of GekkoFS", "GekkoFS is not run; its way of sharing an index is measured in 20"),
    untried("peakfs-2", "creates of BeeGFS and GekkoFS", NO_OTHERS),
    untried("peakfs-3", "overview", DRAWING),
    untried("peakfs-4", "scheduling of a server", DRAWING),
    untried("peakfs-5", "links and dispatch", DRAWING),
    untried("peakfs-6", "distribution of metadata", DRAWING),
    untried("peakfs-7", "compact radix tree", DRAWING),
    untried("peakfs-8", "inode layout and cache", DRAWING),
    untried("peakfs-9", "write pipeline", "a drawing of the design; its effect is measured in 22"),
    measured(
        "peakfs-10",
        "empty files by servers: create, stat, delete",
        [60, 12],
        metadata::empty_files,
        metadata::empty_files_shape,
    ),
    measured(
        "peakfs-11",
        "files of 3,901 bytes in one directory by servers",
        [60, 12],
        metadata::small_files,
        metadata::small_files_shape,
    ),
    measured("peakfs-12", "files of their own, 256 KiB, by servers", [90, 14], data::own_files, data::own_files_shape),
    measured(
        "peakfs-13",
        "one file, records of 47,008 bytes, by servers",
        [2, 1],
        data::one_file,
        data::one_file_shape,
    ),
    measured("peakfs-14", "empty files by processes", [60, 10], metadata::by_processes, metadata::by_processes_shape),
    measured("peakfs-15", "files of their own by processes", [60, 10], data::by_processes, data::by_processes_shape),
    untried("peakfs-16", "latency in parts", "servers count the parts of writes, and not those of metadata requests"),
    untried("peakfs-17", "md-workbench", NO_OTHERS),
    measured(
        "peakfs-18",
        "checkpoints into files of their own (HACC-IO), beside the disk",
        [60, 10],
        data::checkpoints,
        data::checkpoints_shape,
    ),
    measured(
        "peakfs-19",
        "matrices in one file (MADbench2), beside the disk",
        [2, 1],
        data::matrices,
        data::matrices_shape,
    ),
    measured(
        "peakfs-20",
        "one index for all threads beside an index for each",
        [30, 6],
        sharing::schedules,
        sharing::schedules_shape,
    ),
    measured("peakfs-21", "speed and memory of indexes of names", [40, 10], indexes::compare, indexes::compare_shape),
    measured(
        "peakfs-22",
        "write pipeline and read cache on and off, by processes",
        [60, 12],
        data::pipeline,
        data::pipeline_shape,
    ),
];

/// Made-up panels of all figures, for tests.
#[cfg(test)]
pub mod made_up {
    pub use super::data::made_up as data;
    pub use super::indexes::made_up as indexes;
    pub use super::metadata::made_up as metadata;
    pub use super::sharing::made_up as sharing;
}
