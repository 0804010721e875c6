//! Figures of streams: one and many processes of one client, by request size (1, 4, 5, 8, table 2, slides).

use crate::figures::claim::{AS_GOOD, Check, ahead, at_least, between, everywhere, from_some_point_on};
use crate::figures::graph::{Kind, Panel, Seen};
use crate::figures::lab::{Lab, Made, add, panels, rate, reasons, shown, sizes};
use crate::mounted_cluster::{Mounts, Setup};
use crate::scenario::variant::{AUTO, DIRECT, VANILLA, Variant};
use crate::scenario::{overcache, streams};
use crate::series::Series;
use crate::turns::{Arm, alternate};
use crate::workload::Phase;
use crate::workload::ior::{Reorder, Shape};
use crate::workload::tasks::Tasks;
use crate::workload::transfers::Calls;
use amphi_host::failure::{During, Outcome};
use rustix::fs::{Mode, OFlags, open};
use std::cell::RefCell;

/// Bytes that an unaligned request is longer than an aligned one, as in the paper.
const OFF: u64 = 8;
const MODES: [Variant; 3] = [VANILLA, DIRECT, AUTO];
const SIZES: [u64; 9] = [4 << 10, 32 << 10, 128 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20, 64 << 20];
const QUICK_SIZES: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 8 << 20];

/// Calls of one process for a point.
fn calls(lab: &Lab, size: u64) -> u64 {
    let (bytes, most) = lab.sized((128 << 20, 2048), (16 << 20, 256));
    (bytes / size).clamp(2, most)
}

fn of_sizes<'a>(lab: &Lab, full: &'a [u64], quick: &'a [u64]) -> &'a [u64] {
    lab.sized(full, quick)
}

/// Figure 1.
pub fn local(lab: &mut Lab) -> Outcome<Made> {
    let folder = lab.folder("local");
    std::fs::create_dir_all(&folder).during(|| format!("make {}", folder.display()))?;
    let probe = open(folder.join("probe"), OFlags::CREATE | OFlags::RDWR | OFlags::DIRECT, Mode::from_raw_mode(0o600));
    if probe.is_err() {
        return Ok(Made::missing(format!("{}: its file system has no direct I/O", folder.display())));
    }
    let processes = lab.sized(16, 4);
    let mut all = panels(&["write", "read"], Kind::Lines, &sizes("request size"), &rate());
    for &size in of_sizes(lab, &SIZES, &QUICK_SIZES) {
        let segments = (calls(lab, size) / processes as u64).max(2);
        let shape = Shape {
            tasks: processes,
            block: size,
            transfer: size,
            segments,
            file_per_process: true,
            random: None,
            reorder: Reorder::None,
        };
        let start = |name: &str, o_direct: bool| {
            let calls = Calls { o_direct, fsync: true, ..Calls::default() };
            Tasks::start(&shape.jobs(std::slice::from_ref(&folder), name, calls)).map(RefCell::new)
        };
        // What is read was written past the cache, so that it comes from the disk.
        let (buffered, direct) = (start("buffered", false)?, start("direct", true)?);
        let (cold, cold_direct) = (start("cold", false)?, start("cold", true)?);
        let write = |tasks: &RefCell<Tasks>| {
            let mut tasks = tasks.borrow_mut();
            tasks.phase(Phase::Remove)?;
            Ok(tasks.phase(Phase::Write)?.mib_s())
        };
        let read = |tasks: &RefCell<Tasks>| {
            cold_direct.borrow_mut().phase(Phase::Write)?;
            Ok(tasks.borrow_mut().phase(Phase::Read)?.mib_s())
        };
        let arms = vec![
            Arm::new("buffered write", || write(&buffered)),
            Arm::new("direct write", || write(&direct)),
            Arm::new("buffered read", || read(&cold)),
            Arm::new("direct read", || read(&cold_direct)),
        ];
        let series = alternate(&lab.run, &format!("local {}", shown(size)), arms)?;
        for (at, Series(samples)) in series.iter().enumerate() {
            all[at / 2].push(["buffered", "direct"][at % 2], size as f64, &shown(size), samples);
        }
        for tasks in [buffered, direct, cold, cold_direct] {
            let mut tasks = tasks.into_inner();
            tasks.phase(Phase::Remove)?;
            tasks.stop()?;
        }
    }
    let how = format!(
        "{processes} processes with a file each on the local file system below the storage folder; writes to the end of \
         fsync, reads of what was written past the cache."
    );
    Ok(Made::new(all, how))
}

/// The largest label that was measured.
fn largest(panel: Option<&Panel>) -> String {
    panel.and_then(|panel| panel.labels().last().map(|label| label.to_string())).unwrap_or_default()
}

/// Statements of figure 1.
pub fn local_shape(seen: &Seen<'_>) -> Vec<Check> {
    let (write, read) = (seen.panel("write"), seen.panel("read"));
    vec![
        ahead("Small buffered writes are much faster than direct ones.", write, ("buffered", "direct"), "4 KiB"),
        ahead("Small buffered reads are much faster than direct ones.", read, ("buffered", "direct"), "4 KiB"),
        ahead("Large direct writes pass buffered ones.", write, ("direct", "buffered"), &largest(write)),
        ahead("Large direct reads pass buffered ones.", read, ("direct", "buffered"), &largest(read)),
    ]
}

/// One stream, aligned and not, by size: figures 4 and 5 show parts of it.
fn by_size(lab: &mut Lab) -> Outcome<Made> {
    let setup = Setup { mounts: 1, own_reads: true, ..Setup::default() };
    let cluster = Mounts::start(&lab.folder("one-stream"), &setup)?;
    let mut all = panels(&["write", "cold read"], Kind::Lines, &sizes("request size"), &rate());
    for &size in of_sizes(lab, &SIZES, &QUICK_SIZES) {
        for off in [0, OFF] {
            let found = streams::measure(&lab.run, &cluster, 1, size + off, calls(lab, size), &MODES)?;
            let name = |variant: &Variant| match off {
                0 => variant.name.to_string(),
                _ => format!("{}, unaligned", variant.name),
            };
            add(&mut all, size as f64, &shown(size), &MODES, &found, name);
        }
    }
    cluster.stop()?;
    let how = "One process through one mount; writes to the end of fsync, reads of what no cache has. Unaligned requests \
               are 8 bytes longer. Vanilla is AmphiFS with all requests buffered.";
    Ok(Made::new(all, how))
}

/// Figure 4.
pub fn thresholds(lab: &mut Lab) -> Outcome<Made> {
    let mut made = lab.once("one stream", by_size)?;
    made.panels.iter_mut().for_each(|panel| *panel = panel.only(&["vanilla", "direct"]));
    Ok(made)
}

/// Statements of figure 4: from it the thresholds of 32 KiB and 2 MiB were taken.
pub fn thresholds_shape(seen: &Seen<'_>) -> Vec<Check> {
    let (write, read) = (seen.panel("write"), seen.panel("cold read"));
    let most = f64::from(8 << 20);
    vec![
        ahead("Small writes are faster buffered.", write, ("vanilla", "direct"), "4 KiB"),
        ahead("Small reads are faster buffered.", read, ("vanilla", "direct"), "4 KiB"),
        from_some_point_on("Large writes are faster direct, from a few MiB on.", write, ("direct", "vanilla"), most),
        from_some_point_on("Large reads are faster direct, from a few MiB on.", read, ("direct", "vanilla"), most),
    ]
}

/// Figure 5.
pub fn one_stream(lab: &mut Lab) -> Outcome<Made> {
    let mut made = lab.once("one stream", by_size)?;
    let kept = ["vanilla", "direct", "auto", "direct, unaligned"];
    made.panels.iter_mut().for_each(|panel| *panel = panel.only(&kept));
    Ok(made)
}

/// Statements of figure 5.
pub fn one_stream_shape(seen: &Seen<'_>) -> Vec<Check> {
    let (write, read) = (seen.panel("write"), seen.panel("cold read"));
    let large = [largest(write), largest(read)];
    let beyond = "Unaligned direct requests pass buffered ones where they are large (more than 4 MiB)";
    vec![
        everywhere(
            "Auto writes as fast as the better mode at every size.",
            write,
            "auto",
            &["vanilla", "direct"],
            AS_GOOD,
        ),
        everywhere(
            "Auto reads as fast as the better mode at every size.",
            read,
            "auto",
            &["vanilla", "direct"],
            AS_GOOD,
        ),
        ahead(&format!("{beyond}: writes."), write, ("direct, unaligned", "vanilla"), &large[0]),
        ahead(&format!("{beyond}: reads."), read, ("direct, unaligned", "vanilla"), &large[1]),
        at_least(
            "Aligned direct writes are not slower than unaligned ones.",
            write,
            ("direct", "direct, unaligned"),
            &large[0],
            0.95,
        ),
    ]
}

/// Figure 8.
pub fn many_streams(lab: &mut Lab) -> Outcome<Made> {
    let setup = Setup { mounts: 1, own_reads: true, ..Setup::default() };
    let cluster = Mounts::start(&lab.folder("many-streams"), &setup)?;
    let mut all = panels(&["write", "cold read"], Kind::Lines, &sizes("request size"), &rate());
    let quick = [512 << 10, 2 << 20];
    for &size in of_sizes(lab, &[256 << 10, 512 << 10, 1 << 20, 2 << 20], &quick) {
        let calls = lab.sized(((16 << 20) / size).max(4), 3);
        let found = streams::measure(&lab.run, &cluster, 16, size, calls, &MODES)?;
        add(&mut all, size as f64, &shown(size), &MODES, &found, |variant| variant.name.to_string());
    }
    cluster.stop()?;
    Ok(Made::new(all, "16 processes with a file each through one mount; reads are cold."))
}

/// Statements of figure 8.
pub fn many_streams_shape(seen: &Seen<'_>) -> Vec<Check> {
    let both = ["vanilla", "direct"];
    vec![
        everywhere("Auto almost reaches the better mode: writes.", seen.panel("write"), "auto", &both, AS_GOOD),
        everywhere("Auto almost reaches the better mode: reads.", seen.panel("cold read"), "auto", &both, AS_GOOD),
    ]
}

const REASONS: [(&str, &str); 5] = [
    ("direct_memory", "direct: memory pressure"),
    ("direct_overcache", "direct: cache overused"),
    ("direct_locality", "direct: no locality"),
    ("buffered_faster", "buffered: measured faster"),
    ("buffered_default", "buffered: default"),
];

/// Table 2.
pub fn overused(lab: &mut Lab) -> Outcome<Made> {
    if let Err(e) = overcache::can_limit_memory() {
        return Ok(Made::missing(e.text));
    }
    let processes = lab.sized(16, 4);
    let sizes = [512 << 10];
    let found = overcache::by_size(&lab.run, processes, &sizes, &[AUTO])?;
    let rows: Vec<_> = found.iter().map(|(size, found)| (shown(*size), &found[0].counted)).collect();
    let panels = ["write", "read"].map(|way| reasons(way, way, &REASONS, &rows)).into();
    let how = format!(
        "Auto, {processes} processes that stream more than the cache holds, with their mount in a memory group; shares of \
         the requests that the cache did not answer."
    );
    Ok(Made::new(panels, how))
}

/// The sum of the medians of these curves at the panel's only label.
fn sum(panel: Option<&Panel>, curves: &[&str]) -> Option<f64> {
    let panel = panel?;
    let label = panel.labels().first()?.to_string();
    curves.iter().map(|curve| panel.median(curve, &label)).sum()
}

/// Statements of table 2.
pub fn overused_shape(seen: &Seen<'_>) -> Vec<Check> {
    let direct = [REASONS[0].1, REASONS[1].1, REASONS[2].1];
    let (write, read) = (seen.panel("write"), seen.panel("read"));
    let most = (50.0, 100.0);
    vec![
        between("Most writes bypass the overused cache.", sum(write, &direct), most, "% direct"),
        between("Most reads bypass the overused cache.", sum(read, &direct), most, "% direct"),
        between("Few writes stay with the default.", sum(write, &[REASONS[4].1]), (0.0, 15.0), "% default"),
        between("Few reads stay with the default.", sum(read, &[REASONS[4].1]), (0.0, 15.0), "% default"),
    ]
}

/// The slide on an overused cache.
pub fn overuse(lab: &mut Lab) -> Outcome<Made> {
    if let Err(e) = overcache::can_limit_memory() {
        return Ok(Made::missing(e.text));
    }
    let processes = lab.sized(8, 4);
    let mut all = panels(&["write", "read"], Kind::Lines, &sizes("request size"), &rate());
    let variants = [VANILLA, DIRECT];
    let quick = [32 << 10, 1 << 20];
    let wanted = of_sizes(lab, &[32 << 10, 128 << 10, 512 << 10, 2 << 20], &quick).to_vec();
    for (size, found) in overcache::by_size(&lab.run, processes, &wanted, &variants)? {
        add(&mut all, size as f64, &shown(size), &variants, &found, |variant| variant.name.to_string());
    }
    let how =
        format!("{processes} processes that stream more than the cache holds, with their mount in a memory group.");
    Ok(Made::new(all, how))
}

/// Statements of the slide.
pub fn overuse_shape(seen: &Seen<'_>) -> Vec<Check> {
    let early = f64::from(1 << 20);
    let claim = "Where the cache is not reused, direct I/O pays from less than 2 MiB on";
    let of =
        |way: &str| from_some_point_on(&format!("{claim}: {way}s."), seen.panel(way), ("direct", "vanilla"), early);
    vec![of("write"), of("read")]
}

/// Panels in which the statements hold, and in which they do not.
#[cfg(test)]
pub mod made_up {
    use super::*;
    use crate::figures::graph::made::{curves, place};

    /// Streams of which large ones are better direct and auto reaches the better mode; or the opposite.
    pub fn stream(holds: bool, names: [&str; 2]) -> Vec<Panel> {
        let labels = ["4 KiB", "1 MiB", "8 MiB"];
        let (direct, auto, unaligned) = match holds {
            true => ([10.0, 120.0, 200.0], [99.0, 118.0, 195.0], [9.0, 80.0, 150.0]),
            false => ([200.0, 90.0, 10.0], [10.0, 10.0, 10.0], [150.0, 80.0, 12.0]),
        };
        let buffered = [100.0; 3];
        let rows = [
            ("vanilla", buffered),
            ("buffered", buffered),
            ("direct", direct),
            ("auto", auto),
            ("direct, unaligned", unaligned),
        ];
        names.map(|name| curves(name, &labels, &[4096.0, 1048576.0, 8388608.0], &rows)).into()
    }

    /// Table 2.
    pub fn overused(holds: bool) -> Vec<Panel> {
        let (direct, default) = if holds { (90.0, 10.0) } else { (10.0, 90.0) };
        let rows = [(REASONS[0].1, 0.0), (REASONS[1].1, direct), (REASONS[2].1, 0.0), (REASONS[4].1, default)];
        ["write", "read"].map(|name| place(name, "512 KiB", &rows)).into()
    }
}
