//! Figure 9: many small files in one directory.

use crate::figures::claim::{Check, ahead, between, rising};
use crate::figures::graph::{Axis, Kind, Panel, Seen};
use crate::figures::lab::{Lab, Made, add};
use crate::mounted_cluster::{Mounts, Setup};
use crate::scenario::small_files;
use crate::scenario::variant::Variant;
use crate::workload::mdtest::Shape;
use amphi_host::failure::Outcome;

/// Bytes of a file, as in the paper.
const BYTES: u64 = 3091;
/// Processes.
const TASKS: usize = 4;
/// The parts one by one.
const VARIANTS: [Variant; 3] = [
    Variant { name: "neither", set: &["server.write_back=off", "writeback.batch=off", "readahead.small_files=off"] },
    Variant { name: "write-back", set: &["writeback.batch=off", "readahead.small_files=off"] },
    Variant { name: "write-back and batches", set: &["readahead.small_files=off"] },
];

/// Measures on one mount and on four.
pub fn batching(lab: &mut Lab) -> Outcome<Made> {
    let axes = (Axis::new("mounts", ""), Axis::new("files", "1/s"));
    let of = |name: &str| Panel::new(name, Kind::Bars, axes.0.clone(), axes.1.clone());
    let mut all = ["write", "stat", "read", "remove"].map(of);
    let shape = Shape {
        tasks: TASKS,
        items: lab.sized(1000, 100),
        depth: 0,
        branch: 1,
        own_tree: false,
        leaf_only: false,
        dirs: false,
        write_bytes: BYTES,
        read_bytes: BYTES,
        fsync: false,
        stride: 1,
    };
    for mounts in [1, TASKS] {
        let cluster = Mounts::start(&lab.folder(&format!("small-{mounts}")), &Setup { mounts, ..Setup::default() })?;
        let found = small_files::compare(&lab.run, &cluster, &shape, &VARIANTS)?;
        add(&mut all, mounts as f64, &mounts.to_string(), &VARIANTS, &found, |variant| variant.name.into());
        cluster.stop()?;
    }
    let [write, _, read, _] = all;
    let how = format!(
        "{TASKS} processes make {} files of 3,091 bytes each in one directory, until they are on the disk; each reads those \
         of the next one. What opens small files ahead is off, since the paper has none.",
        shape.items
    );
    Ok(Made::new(vec![write, read], how))
}

/// Statements of figure 9.
pub fn batching_shape(seen: &Seen<'_>) -> Vec<Check> {
    let (write, read) = (seen.panel("write"), seen.panel("read"));
    let names = VARIANTS.map(|variant| variant.name);
    let of_one = write.and_then(|panel| panel.ratio(names[2], names[0], "1"));
    vec![
        rising("With four mounts server write-back pays, and batching pays on top (1.1, 1.2).", write, &names, "4"),
        ahead("Reads with four mounts gain from the server's cache (1.33).", read, (names[1], names[0]), "4"),
        between("With one mount making files gains nothing.", of_one, (0.9, 1.1), "times"),
    ]
}

/// Panels in which the statements hold, and in which they do not.
#[cfg(test)]
pub fn made_up(holds: bool) -> Vec<Panel> {
    use crate::figures::graph::made::curves;
    let names = VARIANTS.map(|variant| variant.name);
    let values =
        if holds { [[10.0, 10.0], [10.1, 13.0], [10.2, 14.0]] } else { [[10.0, 14.0], [12.0, 13.0], [14.0, 10.0]] };
    let rows: Vec<(&str, [f64; 2])> = names.into_iter().zip(values).collect();
    ["write", "read"].map(|name| curves(name, &["1", "4"], &[1.0, 4.0], &rows)).into()
}
