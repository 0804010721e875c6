//! Figures of data: 12, 13, 15, 18, 19, 22.

use crate::figures::claim::{AS_GOOD, Check, ahead, at_least, everywhere, grows, keeps_up};
use crate::figures::graph::{Axis, Kind, Panel, Seen};
use crate::figures::lab::{Lab, Made, add, panels, rate};
use crate::mounted_cluster::{Mounts, Setup};
use crate::scenario::strided::compare;
use crate::scenario::variant::{AUTO, Variant};
use crate::turns::{Arm, as_given};
use crate::workload::Phase;
use crate::workload::ior::{Reorder, Shape};
use crate::workload::tasks::Tasks;
use crate::workload::transfers::Calls;
use amphi_host::failure::{During, Outcome};
use std::cell::RefCell;

const WAYS: [&str; 2] = ["write", "read"];
/// Curves: a file for each process, and one for all.
const OWN: &str = "N-N, 256 KiB";
const ONE: &str = "N-1, 47,008 B";
const OWN_BYTES: u64 = 256 << 10;
const ONE_BYTES: u64 = 47_008;
const TASKS: usize = 4;
const MOUNTS: usize = 2;
const SERVERS: [u16; 2] = [1, 2];
/// What a server with its clients needs to itself.
const CORES_OF_A_SERVER: usize = 4;
/// Bytes of a request of a checkpoint.
const LARGE_BYTES: u64 = 16 << 20;
/// The parts of figure 22, on top of direct requests.
const PARTS: [Variant; 3] = [
    Variant {
        name: "neither",
        set: &["hybrid.mode=direct", "writeback.pipeline_bytes=0", "server.read_cache_bytes=0"],
    },
    Variant { name: "pipeline", set: &["hybrid.mode=direct", "server.read_cache_bytes=0"] },
    Variant { name: "pipeline and read cache", set: &["hybrid.mode=direct", "server.read_cache_bytes=64M"] },
];

fn shape(tasks: usize, bytes: u64, segments: u64, file_per_process: bool) -> Shape {
    Shape { tasks, block: bytes, transfer: bytes, segments, file_per_process, random: None, reorder: Reorder::Next }
}

fn by_servers(lab: &mut Lab) -> Outcome<Made> {
    let mut all = panels(&WAYS, Kind::Lines, &Axis::new("servers", ""), &rate());
    for servers in SERVERS {
        let setup = Setup { mounts: MOUNTS, servers, own_reads: true, ..Setup::default() };
        let cluster = Mounts::start(&lab.folder(&format!("data-{servers}")), &setup)?;
        let kinds = [(OWN, OWN_BYTES, lab.sized(128, 16), true), (ONE, ONE_BYTES, lab.sized(700, 80), false)];
        for (curve, bytes, segments, own) in kinds {
            let found = compare(&lab.run, &cluster, curve, &shape(TASKS, bytes, segments, own), &[AUTO])?;
            add(&mut all, servers.into(), &servers.to_string(), &[AUTO], &found, |_| curve.into());
        }
        cluster.stop()?;
    }
    let how = "4 processes on 2 mounts write files of their own in requests of 256 KiB, or one file in records of 47,008 \
               bytes in turn; each reads what another one wrote.";
    Ok(Made::new(all, how))
}

/// Figure 12.
pub fn own_files(lab: &mut Lab) -> Outcome<Made> {
    let mut made = lab.once("data by servers", by_servers)?;
    made.panels.iter_mut().for_each(|panel| *panel = panel.only(&[OWN]));
    Ok(made)
}

/// Statements of figure 12.
pub fn own_files_shape(seen: &Seen<'_>) -> Vec<Check> {
    let is_enough = seen.cores >= CORES_OF_A_SERVER * usize::from(SERVERS[SERVERS.len() - 1]);
    let few = format!("{} cores and one disk do not carry two servers with their clients", seen.cores);
    let of = |way: &str| {
        let claim = format!("{way} grows almost linearly with the servers.");
        grows(&claim, seen.panel(way), OWN, 0.8).only_if(is_enough, &few)
    };
    WAYS.map(of).into()
}

/// Figure 13.
pub fn one_file(lab: &mut Lab) -> Outcome<Made> {
    lab.once("data by servers", by_servers)
}

/// Statements of figure 13.
pub fn one_file_shape(seen: &Seen<'_>) -> Vec<Check> {
    let of = |way: &str| {
        let claim = format!("One shared file is as fast as files of their own: {way}.");
        everywhere(&claim, seen.panel(way), ONE, &[OWN], AS_GOOD)
    };
    WAYS.map(of).into()
}

/// Figure 15.
pub fn by_processes(lab: &mut Lab) -> Outcome<Made> {
    let mut all = panels(&WAYS, Kind::Lines, &Axis::new("processes", ""), &rate());
    let setup = Setup { mounts: MOUNTS, own_reads: true, ..Setup::default() };
    let cluster = Mounts::start(&lab.folder("data-processes"), &setup)?;
    for tasks in [2, 4, 8] {
        let segments = lab.sized(64, 12);
        let found =
            compare(&lab.run, &cluster, &format!("{tasks}"), &shape(tasks, OWN_BYTES, segments, true), &[AUTO])?;
        add(&mut all, tasks as f64, &tasks.to_string(), &[AUTO], &found, |_| OWN.into());
    }
    cluster.stop()?;
    let how = "Processes on 2 mounts of one server write files of their own in requests of 256 KiB; each reads what \
               another one wrote.";
    Ok(Made::new(all, how))
}

/// Statements of figure 15.
pub fn by_processes_shape(seen: &Seen<'_>) -> Vec<Check> {
    let of = |way: &str| keeps_up(&format!("{way} gains from more processes, or stays."), seen.panel(way), OWN, 0.9);
    WAYS.map(of).into()
}

fn beside_the_disk(lab: &mut Lab) -> Outcome<Made> {
    let folder = lab.folder("disk");
    std::fs::create_dir_all(&folder).during(|| format!("make {}", folder.display()))?;
    let setup = Setup { mounts: MOUNTS, own_reads: true, ..Setup::default() };
    let cluster = Mounts::start(&lab.folder("limit"), &setup)?;
    let segments = lab.sized(8, 2);
    let (own, one) = (shape(MOUNTS, LARGE_BYTES, segments, true), shape(MOUNTS, LARGE_BYTES, segments, false));
    let folders = std::slice::from_ref(&folder);
    let places =
        [("AmphiFS, N-N", &own, cluster.dirs()), ("AmphiFS, N-1", &one, cluster.dirs()), ("disk", &own, folders)];
    let names = places.map(|place| place.0);
    let all = places
        .iter()
        .map(|(name, shape, dirs)| {
            let calls = Calls { fsync: true, o_direct: *name == "disk", ..Calls::default() };
            Tasks::start(&shape.jobs(dirs, "limit", calls)).map(RefCell::new)
        })
        .collect::<Outcome<Vec<_>>>()?;
    let mut arms = Vec::new();
    // The sides take turns; a read follows the write of its side.
    for (name, tasks) in names.iter().zip(&all) {
        arms.push(Arm::new(*name, || {
            let mut tasks = tasks.borrow_mut();
            tasks.phase(Phase::Remove)?;
            Ok(tasks.phase(Phase::Write)?.mib_s())
        }));
        arms.push(Arm::new(*name, || Ok(tasks.borrow_mut().phase(Phase::Read)?.mib_s())));
    }
    let series = as_given(&lab.run, "limit", arms)?;
    let mut panel = Panel::new("throughput", Kind::Bars, Axis::new("direction", ""), rate());
    for (at, series) in series.iter().enumerate() {
        panel.push(names[at / 2], (at % 2) as f64, WAYS[at % 2], &series.0);
    }
    for tasks in all {
        let mut tasks = tasks.into_inner();
        tasks.phase(Phase::Remove)?;
        tasks.stop()?;
    }
    cluster.stop()?;
    let how = "2 processes on 2 mounts, requests of 16 MiB; the disk is the local file system below the storage folder with \
               O_DIRECT. Each reads what the other one wrote.";
    Ok(Made::new(vec![panel], how))
}

fn near_the_disk(seen: &Seen<'_>, curve: &str) -> Vec<Check> {
    let of = |way: &str| {
        let claim = format!("{way} comes near the limit of the storage.");
        at_least(&claim, seen.panel("throughput"), (curve, "disk"), way, AS_GOOD)
    };
    WAYS.map(of).into()
}

fn of_limit(lab: &mut Lab, curve: &str) -> Outcome<Made> {
    let mut made = lab.once("limit", beside_the_disk)?;
    made.panels.iter_mut().for_each(|panel| *panel = panel.only(&[curve, "disk"]));
    Ok(made)
}

/// Figure 18.
pub fn checkpoints(lab: &mut Lab) -> Outcome<Made> {
    of_limit(lab, "AmphiFS, N-N")
}

/// Statements of figure 18.
pub fn checkpoints_shape(seen: &Seen<'_>) -> Vec<Check> {
    near_the_disk(seen, "AmphiFS, N-N")
}

/// Figure 19.
pub fn matrices(lab: &mut Lab) -> Outcome<Made> {
    of_limit(lab, "AmphiFS, N-1")
}

/// Statements of figure 19.
pub fn matrices_shape(seen: &Seen<'_>) -> Vec<Check> {
    near_the_disk(seen, "AmphiFS, N-1")
}

/// Figure 22.
pub fn pipeline(lab: &mut Lab) -> Outcome<Made> {
    let mut all = panels(&WAYS, Kind::Lines, &Axis::new("processes", ""), &rate());
    let setup = Setup { mounts: TASKS, own_reads: true, ..Setup::default() };
    let cluster = Mounts::start(&lab.folder("pipeline"), &setup)?;
    for tasks in [1, TASKS, 2 * TASKS] {
        let segments = lab.sized(1000, 120) / tasks as u64;
        let found =
            compare(&lab.run, &cluster, &format!("{tasks}"), &shape(tasks, ONE_BYTES, segments, false), &PARTS)?;
        add(&mut all, tasks as f64, &tasks.to_string(), &PARTS, &found, |variant| variant.name.into());
    }
    cluster.stop()?;
    let how = "Processes on 4 mounts write records of 47,008 bytes in turn into one file by direct requests, and read each \
               other's.";
    Ok(Made::new(all, how))
}

/// Statements of figure 22.
pub fn pipeline_shape(seen: &Seen<'_>) -> Vec<Check> {
    let (write, read) = (seen.panel("write"), seen.panel("read"));
    let names = PARTS.map(|part| part.name);
    let four = TASKS.to_string();
    let fewer = |panel: &Panel| -> Option<Check> {
        let labels = panel.labels();
        let gain = |label: &str| panel.ratio(names[1], names[0], label);
        let (few, many) = (gain(labels.first()?)?, gain(labels.last()?)?);
        let claim = "The pipeline gains less with many processes.";
        Some(crate::figures::claim::between(claim, Some(many / few), (0.0, 0.95), "of the gain with one process"))
    };
    let fewer = write.and_then(fewer);
    vec![
        ahead("The write pipeline pays with few processes.", write, (names[1], names[0]), "1"),
        ahead("The read cache pays.", read, (names[2], names[1]), &four),
        fewer.unwrap_or_else(|| {
            Check::untried("The pipeline gains less with many processes.", "not measured in this run")
        }),
    ]
}

/// Panels in which the statements hold, and in which they do not.
#[cfg(test)]
pub mod made_up {
    use super::*;
    use crate::figures::graph::made::curves;

    /// Figures 12, 13, 15.
    pub fn scaling(holds: bool) -> Vec<Panel> {
        let rows = match holds {
            true => [(OWN, [1.0, 1.9]), (ONE, [0.95, 1.8])],
            false => [(OWN, [1.0, 0.8]), (ONE, [0.5, 0.4])],
        };
        WAYS.map(|way| curves(way, &["1", "2"], &[1.0, 2.0], &rows)).into()
    }

    /// Figures 18 and 19.
    pub fn limit(holds: bool) -> Vec<Panel> {
        let ours = if holds { [0.95, 0.95] } else { [0.5, 0.5] };
        let rows = [("AmphiFS, N-N", ours), ("AmphiFS, N-1", ours), ("disk", [1.0, 1.0])];
        vec![curves("throughput", &WAYS, &[0.0, 1.0], &rows)]
    }

    /// Figure 22.
    pub fn parts(holds: bool) -> Vec<Panel> {
        let rows = match holds {
            true => [(PARTS[0].name, [1.0, 2.0]), (PARTS[1].name, [2.0, 2.1]), (PARTS[2].name, [4.0, 4.2])],
            false => [(PARTS[0].name, [1.0, 1.0]), (PARTS[1].name, [1.0, 1.3]), (PARTS[2].name, [1.0, 1.0])],
        };
        WAYS.map(|way| curves(way, &["1", "4"], &[1.0, 4.0], &rows)).into()
    }
}
