//! The figures and tables of autoIO (FAST '24) and of its slides.
//!
//! Owns: which of them is measured how, in the order of the paper. Each family of workloads is a file of `autoio/`,
//! with what the paper's text states about its figures. Does not own: the workloads, which are those of the scenarios.

mod copies;
mod costs;
mod shared;
mod small_files;
mod streams;

use super::catalog::{Figure, Source};

const NO_OTHERS: &str =
    "no other file system is run; its ways are the variants `fixed 512 KiB` and `vanilla` of others";

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
pub const FIGURES: [Figure; 21] = [
    measured(
        "autoio-1",
        "buffered and direct I/O on the local file system, by request size",
        [150, 14],
        streams::local,
        streams::local_shape,
    ),
    untried(
        "autoio-t1",
        "buffered beside direct I/O in words",
        "a table of words; its rows are tried in 1, 2, 4, 8, 11",
    ),
    measured("autoio-2", "where the time of a write goes", [40, 8], costs::breakdown, costs::breakdown_shape),
    untried("autoio-3", "lock callback under write-back", "a drawing of the protocol; figure 11 counts its callbacks"),
    measured(
        "autoio-4",
        "buffered and direct I/O through a mount, by request size",
        [420, 30],
        streams::thresholds,
        streams::thresholds_shape,
    ),
    measured(
        "autoio-5",
        "one stream by request size: buffered, direct, unaligned direct, auto",
        [5, 1],
        streams::one_stream,
        streams::one_stream_shape,
    ),
    untried("autoio-6", "one stream of BeeGFS", NO_OTHERS),
    untried("autoio-7", "one stream of OrangeFS", NO_OTHERS),
    measured(
        "autoio-8",
        "16 processes of one client by request size",
        [120, 14],
        streams::many_streams,
        streams::many_streams_shape,
    ),
    measured(
        "autoio-t2",
        "why requests of 16 processes went which way",
        [90, 14],
        streams::overused,
        streams::overused_shape,
    ),
    measured(
        "autoio-9",
        "many small files in one directory: server write-back and batching, one and four mounts",
        [90, 16],
        small_files::batching,
        small_files::batching_shape,
    ),
    measured("autoio-10", "a file for each process, 16 MiB (ior-easy)", [60, 10], shared::easy, shared::easy_shape),
    measured(
        "autoio-11",
        "records of 47,008 bytes in turn in one file (ior-hard), and lock callbacks",
        [60, 10],
        shared::hard,
        shared::hard_shape,
    ),
    untried(
        "autoio-12",
        "file sizes of a data set",
        "the data set is not public; figure 14 copies a small one of its shape",
    ),
    measured("autoio-13", "copying one file in parallel, over time", [60, 8], copies::one_file, copies::one_file_shape),
    measured("autoio-14", "copying a data set in parallel", [60, 8], copies::data_set, copies::data_set_shape),
    measured("autoio-15", "VPIC-like dumps into a shared file", [120, 20], shared::vpic, shared::vpic_shape),
    measured(
        "autoio-t3",
        "why requests of VPIC went which way",
        [2, 1],
        shared::vpic_reasons,
        shared::vpic_reasons_shape,
    ),
    untried("autoio-16", "request sizes of Nek5000", "the sizes are not measured but made from table 4"),
    measured("autoio-17", "Nek5000-like steps into a shared file", [90, 14], shared::nek, shared::nek_shape),
    measured(
        "autoio-t4",
        "why requests of Nek5000 went which way",
        [2, 1],
        shared::nek_reasons,
        shared::nek_reasons_shape,
    ),
];

/// The slides, which have no numbers: in the order in which they come.
pub const SLIDES: [Figure; 3] = [
    measured(
        "slides-contention",
        "buffered and direct I/O under lock contention, by request size",
        [120, 16],
        shared::contention,
        shared::contention_shape,
    ),
    measured(
        "slides-overuse",
        "buffered and direct I/O where the cache is not reused, by request size",
        [150, 20],
        streams::overuse,
        streams::overuse_shape,
    ),
    measured(
        "slides-processes",
        "writes of 4 MiB to one file from one client, by processes",
        [60, 8],
        shared::writers,
        shared::writers_shape,
    ),
];

/// Made-up panels of all figures, for tests.
#[cfg(test)]
pub mod made_up {
    pub use super::copies::made_up as copies;
    pub use super::costs::made_up as costs;
    pub use super::shared::made_up as shared;
    pub use super::small_files::made_up as small_files;
    pub use super::streams::made_up as streams;
}
