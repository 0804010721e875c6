//! Figures of several mounts that write one file or one each: 10, 11, 15, 17, tables 3 and 4, slides.

use crate::figures::claim::{AS_GOOD, Check, ahead, at_least, between, from_some_point_on, grows, rising};
use crate::figures::graph::{Axis, Kind, Panel, Seen};
use crate::figures::lab::{Lab, Made, add, panels, rate, reasons, shown, sizes};
use crate::mounted_cluster::{Mounts, Setup};
use crate::scenario::variant::{AUTO, BASELINES, DIRECT, VANILLA, Variant};
use crate::scenario::{Found, mixed, strided, times};
use crate::workload::ior::{Reorder, Shape};
use amphi_host::failure::Outcome;

/// Processes, each with a mount of its own.
const TASKS: usize = 4;
/// Bytes of a record of ior-hard.
const HARD_BYTES: u64 = 47_008;
/// Bytes of a transfer of ior-easy.
const EASY_BYTES: u64 = 16 << 20;
/// Vanilla without what the server gained since.
const PLAIN: Variant = Variant {
    name: "vanilla",
    set: &[
        "hybrid.mode=buffered",
        "server.lock_granularity_bytes=4K",
        "writeback.batch=off",
        "readahead.small_files=off",
        "server.write_back=off",
    ],
};
/// The parts of the paper, one by one.
const STEPS: [Variant; 4] = [
    PLAIN,
    Variant { name: "direct", set: &["hybrid.mode=direct", "server.write_back=off"] },
    Variant { name: "direct, write-back", set: &["hybrid.mode=direct"] },
    Variant { name: "auto, write-back", set: &[] },
];
const EASY: [Variant; 3] = [PLAIN, DIRECT, AUTO];
const NEK: [Variant; 3] = [PLAIN, Variant { name: "auto", set: &["server.write_back=off"] }, STEPS[3]];
const WAYS: [&str; 2] = ["write", "read"];

fn shape(tasks: usize, bytes: u64, segments: u64, file_per_process: bool) -> Shape {
    Shape { tasks, block: bytes, transfer: bytes, segments, file_per_process, random: None, reorder: Reorder::Next }
}

fn cluster(lab: &Lab, name: &str, mounts: usize) -> Outcome<Mounts> {
    Mounts::start(&lab.folder(name), &Setup { mounts, own_reads: true, ..Setup::default() })
}

fn plain_name(variant: &Variant) -> String {
    variant.name.into()
}

/// A panel with writes and reads beside each other.
fn both_ways(name: &str, variants: &[Variant], found: &[Found]) -> Panel {
    let mut panel = Panel::new(name, Kind::Bars, Axis::new("direction", ""), rate());
    for (variant, found) in variants.iter().zip(found) {
        for (at, (way, series)) in WAYS.iter().zip(&found.series).enumerate() {
            panel.push(variant.name, at as f64, way, &series.0);
        }
    }
    panel
}

/// Figure 10.
pub fn easy(lab: &mut Lab) -> Outcome<Made> {
    let cluster = cluster(lab, "easy", TASKS)?;
    let shape = shape(TASKS, EASY_BYTES, lab.sized(4, 1), true);
    let found = strided::compare(&lab.run, &cluster, "easy", &shape, &EASY)?;
    cluster.stop()?;
    let panels = vec![both_ways("throughput", &EASY, &found)];
    Ok(Made::new(panels, "4 processes on 4 mounts, a file for each, requests of 16 MiB; each reads the next one's."))
}

/// Statements of figure 10.
pub fn easy_shape(seen: &Seen<'_>) -> Vec<Check> {
    let panel = seen.panel("throughput");
    let of = |way: &str| {
        let claim = format!("Auto goes direct at this size, and is ahead of vanilla: {way}s.");
        ahead(&claim, panel, ("auto", "vanilla"), way)
    };
    WAYS.map(of).into()
}

/// Figure 11.
pub fn hard(lab: &mut Lab) -> Outcome<Made> {
    let cluster = cluster(lab, "hard", TASKS)?;
    let shape = shape(TASKS, HARD_BYTES, lab.sized(1000, 100), false);
    let found = strided::compare(&lab.run, &cluster, "hard", &shape, &STEPS)?;
    cluster.stop()?;
    let records = (shape.tasks as u64 * shape.segments * lab.run.pairs as u64) as f64;
    let (x, y) = (Axis::new("direction", ""), Axis::new("lock callbacks", "for a record"));
    let mut callbacks = Panel::new("lock callbacks", Kind::Bars, x, y);
    for (variant, found) in STEPS.iter().zip(&found) {
        for (at, (way, counter)) in WAYS.iter().zip(["lock_callback", "lock_callback while reading"]).enumerate() {
            callbacks.push(variant.name, at as f64, way, &[times(&found.counted, counter) as f64 / records]);
        }
    }
    let how = format!(
        "4 processes on 4 mounts write {} records of 47,008 bytes each in turn into one file; each reads those of the next \
         one. The parts of the paper are added one by one; stripes are the default's.",
        shape.segments
    );
    Ok(Made::new(vec![both_ways("throughput", &STEPS, &found), callbacks], how))
}

/// Statements of figure 11.
pub fn hard_shape(seen: &Seen<'_>) -> Vec<Check> {
    let (rates, callbacks) = (seen.panel("throughput"), seen.panel("lock callbacks"));
    let names = STEPS.map(|step| step.name);
    let many = callbacks.and_then(|panel| panel.median(names[0], "write"));
    let share = callbacks.and_then(|panel| panel.ratio(names[1], names[0], "write")).map(|ratio| ratio * 100.0);
    vec![
        ahead("Unaligned direct writes are faster than buffered ones (1.4).", rates, (names[1], names[0]), "write"),
        rising(
            "Each part adds to writes, auto with server write-back most (4).",
            rates,
            &[names[0], names[1], names[3]],
            "write",
        ),
        between(
            "Buffered writes call many locks back (0.2 to 0.6 for a record).",
            many,
            (0.05, f64::INFINITY),
            "for a record",
        ),
        between("Direct writes call none back.", share, (0.0, 5.0), "% of those of vanilla"),
        ahead("Server write-back makes direct reads faster (1.6).", rates, (names[2], names[1]), "read"),
        ahead("Buffered reads are faster than direct ones (1.7 and more).", rates, (names[0], names[2]), "read"),
        at_least("Auto reads as fast as the buffered mode.", rates, (names[3], names[0]), "read", AS_GOOD),
    ]
}

const VPIC_SIZES: [u64; 2] = [32 << 10, 1 << 20];
const REASONS: [(&str, &str); 4] = [
    ("direct_large", "direct: large"),
    ("direct_contention", "direct: contention"),
    ("buffered_small", "buffered: small"),
    ("buffered_default", "buffered: default"),
];

fn dumps(lab: &mut Lab) -> Outcome<Made> {
    let cluster = cluster(lab, "vpic", mixed::TASKS)?;
    let mut all = panels(&WAYS, Kind::Bars, &sizes("request size"), &rate());
    let mut counted = Vec::new();
    for (size, steps) in VPIC_SIZES.into_iter().zip([lab.sized(96, 12), lab.sized(4, 1)]) {
        let pieces = mixed::vpic(size, steps);
        let found = mixed::measure(&lab.run, &cluster, &format!("VPIC {}", shown(size)), &pieces, &BASELINES)?;
        add(&mut all, size as f64, &shown(size), &BASELINES, &found, plain_name);
        let auto = BASELINES.iter().zip(found).find(|(variant, _)| variant.name == AUTO.name);
        counted.extend(auto.map(|(_, found)| (shown(size), found.counted)));
    }
    cluster.stop()?;
    let rows: Vec<_> = counted.iter().map(|(label, counted)| (label.clone(), counted)).collect();
    all.push(reasons("reasons", "write", &REASONS, &rows));
    let how = "4 processes on 4 mounts write eight variables a step behind a header of 2,104 bytes into one file, and read \
               each other's; I/O alone, without computing.";
    Ok(Made::new(all, how))
}

/// Figure 15.
pub fn vpic(lab: &mut Lab) -> Outcome<Made> {
    Ok(lab.once("vpic", dumps)?.only(&WAYS))
}

/// Statements of figure 15.
pub fn vpic_shape(seen: &Seen<'_>) -> Vec<Check> {
    let large = shown(VPIC_SIZES[1]);
    vec![ahead("Writes of 1 MiB gain from auto (3).", seen.panel("write"), ("auto", "vanilla"), &large)]
}

/// Table 3.
pub fn vpic_reasons(lab: &mut Lab) -> Outcome<Made> {
    Ok(lab.once("vpic", dumps)?.only(&["reasons"]))
}

/// Statements of table 3: 0, 98.5, 0.1 and 1.4 %.
pub fn vpic_reasons_shape(seen: &Seen<'_>) -> Vec<Check> {
    let small = shown(VPIC_SIZES[0]);
    let of = |reason: usize| seen.panel("reasons").and_then(|panel| panel.median(REASONS[reason].1, &small));
    vec![
        between("Almost all requests of 32 KiB go direct because of contention.", of(1), (80.0, 100.0), "%"),
        between("None is large.", of(0), (0.0, 0.5), "%"),
        between("Few stay with the default.", of(3), (0.0, 15.0), "%"),
    ]
}

fn steps(lab: &mut Lab) -> Outcome<Made> {
    let cluster = cluster(lab, "nek", mixed::TASKS)?;
    let pieces = mixed::nek5000(lab.sized(2, 1));
    let found = mixed::measure(&lab.run, &cluster, "Nek5000", &pieces, &NEK)?;
    cluster.stop()?;
    let rows = [("all sizes".to_string(), &found[2].counted)];
    let panels = vec![both_ways("throughput", &NEK, &found), reasons("reasons", "write", &REASONS, &rows)];
    let how = "4 processes on 4 mounts write requests in the proportions of table 4 into one file; I/O alone, without \
               computing.";
    Ok(Made::new(panels, how))
}

/// Figure 17.
pub fn nek(lab: &mut Lab) -> Outcome<Made> {
    Ok(lab.once("nek", steps)?.only(&["throughput"]))
}

/// Statements of figure 17.
pub fn nek_shape(seen: &Seen<'_>) -> Vec<Check> {
    let panel = seen.panel("throughput");
    let names = NEK.map(|variant| variant.name);
    vec![
        ahead("Auto with server write-back is ahead of vanilla (1.4).", panel, (names[2], names[0]), "write"),
        ahead("Server write-back adds more than a tenth.", panel, (names[2], names[1]), "write"),
    ]
}

/// Table 4.
pub fn nek_reasons(lab: &mut Lab) -> Outcome<Made> {
    Ok(lab.once("nek", steps)?.only(&["reasons"]))
}

/// Statements of table 4: 20.2, 20.9, 58.9 and 0.01 %.
pub fn nek_reasons_shape(seen: &Seen<'_>) -> Vec<Check> {
    let of = |reason: usize| {
        let panel = seen.panel("reasons")?;
        panel.median(REASONS[reason].1, panel.labels().first()?)
    };
    vec![
        between("A fifth goes direct because it is large.", of(0), (15.0, 26.0), "%"),
        between("A fifth goes direct because of contention.", of(1), (15.0, 26.0), "%"),
        between("Three fifths stay buffered because they are small.", of(2), (53.0, 65.0), "%"),
        between("Hardly any stays with the default.", of(3), (0.0, 3.0), "%"),
    ]
}

/// The slide on lock contention.
pub fn contention(lab: &mut Lab) -> Outcome<Made> {
    let cluster = cluster(lab, "contention", TASKS)?;
    let variants = [VANILLA, DIRECT];
    let mut all = panels(&WAYS, Kind::Lines, &sizes("request size"), &rate());
    let full = [8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20];
    let wanted: &[u64] = lab.sized(&full, &full[1..]);
    for &size in wanted {
        let segments = (lab.sized(32 << 20, 2 << 20) / size).clamp(2, lab.sized(512, 48));
        let shape = shape(TASKS, size, segments, false);
        let found = strided::compare(&lab.run, &cluster, &format!("contended {}", shown(size)), &shape, &variants)?;
        add(&mut all, size as f64, &shown(size), &variants, &found, plain_name);
    }
    cluster.stop()?;
    Ok(Made::new(all, "4 processes on 4 mounts write records in turn into one file."))
}

/// Statements of the slide.
pub fn contention_shape(seen: &Seen<'_>) -> Vec<Check> {
    let claim = "Under contention direct writes pay from less than 2 MiB on.";
    vec![from_some_point_on(claim, seen.panel("write"), ("direct", "vanilla"), f64::from(1 << 20))]
}

/// The slide on processes.
pub fn writers(lab: &mut Lab) -> Outcome<Made> {
    let cluster = cluster(lab, "writers", 1)?;
    let variants = [VANILLA, DIRECT];
    let x = Axis::new("processes", "");
    let mut all = panels(&["write"], Kind::Lines, &x, &rate());
    for processes in [1, 2, 4, 8] {
        let segments = lab.sized(8, 2);
        let shape = shape(processes, 4 << 20, segments, false);
        let found = strided::compare(&lab.run, &cluster, &format!("{processes} writers"), &shape, &variants)?;
        add(&mut all, processes as f64, &processes.to_string(), &variants, &found, plain_name);
    }
    cluster.stop()?;
    Ok(Made::new(all, "Processes on one mount write requests of 4 MiB in turn into one file."))
}

/// Statements of the slide.
pub fn writers_shape(seen: &Seen<'_>) -> Vec<Check> {
    let panel = seen.panel("write");
    let few = format!("{} cores carry no more than one process and its server", seen.cores);
    let gain = panel.and_then(|panel| {
        let labels = panel.labels();
        Some(panel.median("vanilla", labels.last()?)? / panel.median("vanilla", labels.first()?)?)
    });
    vec![
        grows("Direct writes scale with the processes.", panel, "direct", 0.5).only_if(seen.cores >= 8, &few),
        between("Buffered writes do not.", gain, (0.0, 1.5), "times with all processes"),
    ]
}

/// Panels in which the statements hold, and in which they do not.
#[cfg(test)]
pub mod made_up {
    use super::*;
    use crate::figures::graph::made::{curves, place};

    fn ways(name: &str, rows: &[(&str, [f64; 2])]) -> Panel {
        curves(name, &WAYS, &[0.0, 1.0], rows)
    }

    /// Figure 10.
    pub fn easy(holds: bool) -> Vec<Panel> {
        let auto = if holds { [2.0, 2.0] } else { [1.0, 1.0] };
        vec![ways("throughput", &[("vanilla", [1.0, 1.0]), ("auto", auto)])]
    }

    /// Figure 11.
    pub fn hard(holds: bool) -> Vec<Panel> {
        let names = STEPS.map(|step| step.name);
        let (rates, callbacks) = match holds {
            true => ([[3.0, 30.0], [4.2, 11.0], [5.0, 18.0], [13.0, 29.0]], [[0.3, 0.0], [0.0, 0.0]]),
            false => ([[3.0, 10.0], [2.0, 12.0], [2.0, 12.0], [2.5, 8.0]], [[0.01, 0.0], [0.01, 0.0]]),
        };
        let rates: Vec<_> = names.into_iter().zip(rates).collect();
        let callbacks: Vec<_> = names.into_iter().zip(callbacks).collect();
        vec![ways("throughput", &rates), ways("lock callbacks", &callbacks)]
    }

    /// Figure 15.
    pub fn vpic(holds: bool) -> Vec<Panel> {
        vec![place("write", "1 MiB", &[("vanilla", 1.0), ("auto", if holds { 3.0 } else { 1.05 })])]
    }

    /// Tables 3 and 4: shares in the order of the reasons.
    pub fn shares(label: &str, shares: [f64; 4]) -> Vec<Panel> {
        let rows: Vec<(&str, f64)> = REASONS.iter().map(|reason| reason.1).zip(shares).collect();
        vec![place("reasons", label, &rows)]
    }

    /// Figure 17.
    pub fn nek(holds: bool) -> Vec<Panel> {
        let best = if holds { 1.4 } else { 1.0 };
        let rows = [(NEK[0].name, [1.0; 2]), (NEK[1].name, [1.2; 2]), (NEK[2].name, [best; 2])];
        vec![ways("throughput", &rows)]
    }

    /// The slide on contention.
    pub fn contention(holds: bool) -> Vec<Panel> {
        let direct = if holds { [0.5, 1.2, 3.0] } else { [0.5, 0.8, 1.2] };
        let xs = [32768.0, 524288.0, 2097152.0];
        vec![curves("write", &["32 KiB", "512 KiB", "2 MiB"], &xs, &[("vanilla", [1.0; 3]), ("direct", direct)])]
    }

    /// The slide on processes.
    pub fn writers(holds: bool) -> Vec<Panel> {
        let (direct, buffered) = if holds { (6.0, 1.1) } else { (1.5, 4.0) };
        vec![curves("write", &["1", "8"], &[1.0, 8.0], &[("vanilla", [1.0, buffered]), ("direct", [1.0, direct])])]
    }
}
