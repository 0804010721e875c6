//! Figures of metadata: 10, 11, 14.

use crate::figures::claim::{Check, grows, keeps_up};
use crate::figures::graph::{Axis, Kind, Panel, Seen};
use crate::figures::lab::{Lab, Made};
use crate::mounted_cluster::{Mounts, Setup};
use crate::scenario::small_files::compare;
use crate::scenario::variant::AUTO;
use crate::workload::mdtest::Shape;
use amphi_host::failure::Outcome;

/// Processes, over two mounts.
const TASKS: usize = 4;
const MOUNTS: usize = 2;
/// Bytes of a small file of IO500.
const SMALL_BYTES: u64 = 3901;
const SERVERS: [u16; 2] = [1, 2];
/// The values of a sample, and what is shown of them.
const OPERATIONS: [(usize, &str); 3] = [(0, "create"), (1, "stat"), (3, "delete")];
/// What a server with its clients needs to itself.
const CORES_OF_A_SERVER: usize = 4;

fn shape(lab: &Lab, tasks: usize, bytes: u64, own_tree: bool) -> Shape {
    Shape {
        tasks,
        items: lab.sized(1000, 150),
        depth: 0,
        branch: 1,
        own_tree,
        leaf_only: false,
        dirs: false,
        write_bytes: bytes,
        read_bytes: bytes,
        fsync: false,
        stride: 1,
    }
}

fn panel(name: &str, x: &str) -> Panel {
    Panel::new(name, Kind::Lines, Axis::new(x, ""), Axis::new("operations", "1/s"))
}

fn add(panel: &mut Panel, x: usize, found: &[crate::scenario::Found]) {
    for (value, operation) in OPERATIONS {
        let samples = found.first().and_then(|found| found.series.get(value)).map(|series| series.0.clone());
        panel.push(operation, x as f64, &x.to_string(), &samples.unwrap_or_default());
    }
}

fn by_servers(lab: &mut Lab, bytes: u64, ways: &[(&str, bool)]) -> Outcome<Vec<Panel>> {
    let mut panels: Vec<Panel> = ways.iter().map(|(name, _)| panel(name, "servers")).collect();
    for servers in SERVERS {
        let setup = Setup { mounts: MOUNTS, servers, ..Setup::default() };
        let cluster = Mounts::start(&lab.folder(&format!("metadata-{bytes}-{servers}")), &setup)?;
        for ((_, own_tree), panel) in ways.iter().zip(&mut panels) {
            let found = compare(&lab.run, &cluster, &shape(lab, TASKS, bytes, *own_tree), &[AUTO])?;
            add(panel, servers.into(), &found);
        }
        cluster.stop()?;
    }
    Ok(panels)
}

fn near_linear(seen: &Seen<'_>, panel: &str) -> Vec<Check> {
    let is_enough = seen.cores >= CORES_OF_A_SERVER * usize::from(SERVERS[SERVERS.len() - 1]);
    let few = format!("{} cores do not carry two servers with their clients", seen.cores);
    let of = |(_, operation): (usize, &str)| {
        let claim = format!("{operation} in {panel} grows almost linearly with the servers.");
        grows(&claim, seen.panel(panel), operation, 0.8).only_if(is_enough, &few)
    };
    OPERATIONS.map(of).into()
}

/// Figure 10.
pub fn empty_files(lab: &mut Lab) -> Outcome<Made> {
    let panels = by_servers(lab, 0, &[("own directories", true), ("one directory", false)])?;
    let how = "4 processes on 2 mounts make, look at and remove empty files; making ends when all is on the disk.";
    Ok(Made::new(panels, how))
}

/// Statements of figure 10.
pub fn empty_files_shape(seen: &Seen<'_>) -> Vec<Check> {
    [near_linear(seen, "own directories"), near_linear(seen, "one directory")].concat()
}

/// Figure 11.
pub fn small_files(lab: &mut Lab) -> Outcome<Made> {
    let panels = by_servers(lab, SMALL_BYTES, &[("one directory", false)])?;
    let how = "4 processes on 2 mounts make, look at and remove files of 3,901 bytes in one directory.";
    Ok(Made::new(panels, how))
}

/// Statements of figure 11.
pub fn small_files_shape(seen: &Seen<'_>) -> Vec<Check> {
    near_linear(seen, "one directory")
}

/// Figure 14.
pub fn by_processes(lab: &mut Lab) -> Outcome<Made> {
    let setup = Setup { mounts: MOUNTS, ..Setup::default() };
    let cluster = Mounts::start(&lab.folder("metadata-processes"), &setup)?;
    let mut panel = panel("own directories", "processes");
    // A single process would look at its own files, which its mount knows.
    for tasks in [2, 4, 8] {
        let found = compare(&lab.run, &cluster, &shape(lab, tasks, 0, true), &[AUTO])?;
        add(&mut panel, tasks, &found);
    }
    cluster.stop()?;
    let how = "Processes on 2 mounts of one server make, look at and remove empty files in directories of their own.";
    Ok(Made::new(vec![panel], how))
}

/// Statements of figure 14.
pub fn by_processes_shape(seen: &Seen<'_>) -> Vec<Check> {
    let panel = seen.panel("own directories");
    let of = |operation: &str| {
        let claim = format!("{operation} gains from more processes, or stays where it is.");
        keeps_up(&claim, panel, operation, 0.9)
    };
    ["create", "stat"].map(of).into()
}

/// Panels in which the statements hold, and in which they do not.
#[cfg(test)]
pub fn made_up(holds: bool) -> Vec<Panel> {
    use crate::figures::graph::made::curves;
    let values = if holds { [1.0, 1.9] } else { [1.0, 0.8] };
    let rows = OPERATIONS.map(|(_, operation)| (operation, values));
    ["own directories", "one directory"].map(|name| curves(name, &["1", "2"], &[1.0, 2.0], &rows)).into()
}
