//! Figures of parallel copies in chunks, as dcp makes them: one file over time (13), and many files (14).
//!
//! Owns: the copy. Invariants: chunks are handed out in order to whoever is free; the copy ends with an `fsync` of
//! everything by each copier; each chunk that was read is checked by the stamps of its source before it counts.

use crate::clock::now;
use crate::cluster::set_mode;
use crate::figures::claim::{Check, ahead, between};
use crate::figures::graph::{Axis, Kind, Panel, Seen};
use crate::figures::lab::{Lab, Made, rate};
use crate::mounted_cluster::{Mounts, Setup};
use crate::scenario::variant::{AUTO, VANILLA, Variant};
use crate::stream::{prepare, stamped};
use crate::turns::{Arm, alternate};
use amphi_env::Buf;
use amphi_host::failure::{During, Failure, Outcome};
use rustix::fs::{Mode, OFlags, fsync, open};
use rustix::io::{pread, pwrite};
use std::cell::RefCell;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes of a chunk, as in the paper.
const CHUNK: u64 = 4 << 20;
/// Copiers, each on a mount of its own.
const COPIERS: usize = 4;
/// Parts of a copy's time in the picture.
const BINS: usize = 10;
const MIB: f64 = 1_048_576.0;
/// The large threshold that the paper sets for the data set.
const AUTO_512K: Variant =
    Variant { name: "auto", set: &["hybrid.large_write_bytes=512K", "hybrid.large_read_bytes=512K"] };

/// A part of a file.
struct Chunk {
    file: usize,
    at: u64,
    len: u64,
}

/// When each chunk was done: seconds since the begin, and its bytes; and seconds of the whole.
struct Copied {
    chunks: Vec<(f64, u64)>,
    seconds: f64,
}

impl Copied {
    fn mib_s(&self) -> f64 {
        self.chunks.iter().map(|chunk| chunk.1).sum::<u64>() as f64 / MIB / self.seconds
    }

    /// Rates in equal parts of the time.
    fn bins(&self) -> Vec<f64> {
        let mut bytes = [0u64; BINS];
        for (at, len) in &self.chunks {
            bytes[((at / self.seconds * BINS as f64) as usize).min(BINS - 1)] += len;
        }
        bytes.iter().map(|n| *n as f64 / MIB / (self.seconds / BINS as f64)).collect()
    }

    /// Standard deviation of these rates over their mean, in percent.
    fn unsteady(&self) -> f64 {
        let bins = self.bins();
        let mean = bins.iter().sum::<f64>() / bins.len() as f64;
        let variance = bins.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / bins.len() as f64;
        variance.sqrt() / mean * 100.0
    }
}

fn name(dir: &Path, kind: &str, file: usize) -> std::path::PathBuf {
    dir.join(format!("{kind}.{file}"))
}

fn copy_chunk(dir: &Path, chunk: &Chunk, buf: &mut Buf) -> Outcome {
    let (from, to) = (name(dir, "from", chunk.file), name(dir, "to", chunk.file));
    let source =
        open(&from, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).during(|| format!("open {}", from.display()))?;
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let sink = open(&to, flags, Mode::from_raw_mode(0o644)).during(|| format!("open {}", to.display()))?;
    let part = &mut buf[..chunk.len as usize];
    let n = pread(&source, &mut *part, chunk.at).during(|| format!("read {}", from.display()))?;
    if n as u64 != chunk.len || part[..] != stamped(chunk.at, n)[..] {
        return Err(Failure::broken(format!("{} at {}: other bytes than were written", from.display(), chunk.at)));
    }
    let n = pwrite(&sink, part, chunk.at).during(|| format!("write {}", to.display()))?;
    match n as u64 == chunk.len {
        true => Ok(()),
        false => Err(Failure::broken(format!("{}: only {n} of {} bytes written", to.display(), chunk.len))),
    }
}

/// Copies all files of these sizes, with a thread for each mount.
fn copy(cluster: &Mounts, sizes: &[u64]) -> Outcome<Copied> {
    let chunks: Vec<Chunk> = sizes
        .iter()
        .enumerate()
        .flat_map(|(file, size)| {
            (0..size.div_ceil(CHUNK)).map(move |n| Chunk { file, at: n * CHUNK, len: CHUNK.min(size - n * CHUNK) })
        })
        .collect();
    let (next, done, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(None));
    let start = now();
    let copier = |dir: &Path| -> Outcome {
        let mut buf = Buf::zeroed(CHUNK as usize);
        let mut touched: Vec<usize> = Vec::new();
        while let Some(chunk) = chunks.get(next.fetch_add(1, Relaxed)) {
            copy_chunk(dir, chunk, &mut buf)?;
            touched.push(chunk.file);
            let at = (start.elapsed().as_secs_f64(), chunk.len);
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(at);
        }
        touched.dedup();
        for file in touched {
            let path = name(dir, "to", file);
            let sink = open(&path, OFlags::WRONLY, Mode::empty()).during(|| format!("open {}", path.display()))?;
            fsync(&sink).during(|| format!("fsync {}", path.display()))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for dir in cluster.dirs() {
            scope.spawn(|| {
                if let Err(e) = copier(dir) {
                    *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(e);
                }
            });
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    match failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(e) => Err(e),
        None => Ok(Copied { chunks: done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner), seconds }),
    }
}

fn remove(dir: &Path, kind: &str, files: usize) -> Outcome {
    for file in 0..files {
        let path = name(dir, kind, file);
        if path.exists() {
            std::fs::remove_file(&path).during(|| format!("remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// Rates of each variant, and its copies; the first copy of each warmed up and has no rate.
type Compared = (Vec<Vec<f64>>, Vec<Vec<Copied>>);

/// Copies with each variant in turn.
fn compare(lab: &Lab, what: &str, sizes: &[u64], variants: &[Variant]) -> Outcome<Compared> {
    let setup = Setup { mounts: COPIERS, own_reads: true, ..Setup::default() };
    let cluster = Mounts::start(&lab.folder(what), &setup)?;
    let copies: Vec<RefCell<Vec<Copied>>> = variants.iter().map(|_| RefCell::default()).collect();
    let sample = |at: usize| {
        cluster.put_back()?;
        let dir = &cluster.dirs()[0];
        remove(dir, "to", sizes.len())?;
        // Large direct writes: nothing of the sources is in any cache.
        for (file, size) in sizes.iter().enumerate() {
            let path = name(dir, "from", file);
            if path.exists() {
                set_mode(&path, "direct")?;
            }
            prepare(&path, *size)?;
            set_mode(&path, "auto")?;
        }
        variants[at].apply(&cluster)?;
        let copied = copy(&cluster, sizes)?;
        let rate = copied.mib_s();
        copies[at].borrow_mut().push(copied);
        Ok(rate)
    };
    let sample = &sample;
    let arms = variants.iter().enumerate().map(|(at, v)| Arm::new(v.name, move || sample(at))).collect();
    let series = alternate(&lab.run, what, arms)?;
    let copies = copies.iter().map(RefCell::take).collect();
    cluster.stop()?;
    Ok((series.into_iter().map(|series| series.0).collect(), copies))
}

fn rates(variants: &[Variant], samples: &[Vec<f64>]) -> Panel {
    let mut panel = Panel::new("throughput", Kind::Bars, Axis::new("copies", ""), rate());
    for (variant, samples) in variants.iter().zip(samples) {
        panel.push(variant.name, 0.0, "copy", samples);
    }
    panel
}

/// Figure 13.
pub fn one_file(lab: &mut Lab) -> Outcome<Made> {
    let variants = [VANILLA, AUTO];
    let bytes = lab.sized(256 << 20, 32 << 20);
    let (samples, copies) = compare(lab, "copy", &[bytes], &variants)?;
    let axes = (Axis::new("time", "s"), rate());
    let mut over_time = Panel::new("over time, last round", Kind::Lines, axes.0, axes.1);
    let y = Axis::new("deviation of the rate over time", "% of its mean");
    let mut steady = Panel::new("unsteadiness", Kind::Bars, Axis::new("copies", ""), y);
    for (variant, copies) in variants.iter().zip(&copies) {
        let of_rounds: Vec<f64> = copies.iter().skip(1).map(Copied::unsteady).collect();
        steady.push(variant.name, 0.0, "copy", &of_rounds);
        let Some(last) = copies.last() else { continue };
        for (at, rate) in last.bins().into_iter().enumerate() {
            let second = (at as f64 + 0.5) * last.seconds / BINS as f64;
            over_time.push(variant.name, second, &format!("{second:.2}"), &[rate]);
        }
    }
    let how = format!(
        "{COPIERS} copiers on {COPIERS} mounts copy a file of {} MiB in chunks of 4 MiB, to the end of fsync; the source is \
         in no cache.",
        bytes >> 20
    );
    Ok(Made::new(vec![over_time, rates(&variants, &samples), steady], how))
}

/// Statements of figure 13.
pub fn one_file_shape(seen: &Seen<'_>) -> Vec<Check> {
    let steadier = seen.panel("unsteadiness").and_then(|panel| panel.ratio("auto", "vanilla", "copy"));
    vec![
        ahead("Auto copies faster than vanilla (3).", seen.panel("throughput"), ("auto", "vanilla"), "copy"),
        between("Auto is steadier than vanilla.", steadier, (0.0, 0.9), "of vanilla's deviation"),
    ]
}

/// Figure 14.
pub fn data_set(lab: &mut Lab) -> Outcome<Made> {
    let variants = [VANILLA, AUTO_512K];
    let few = lab.sized(1, 4);
    // Most files are small, and most bytes lie in large ones.
    let kinds: [(usize, u64); 4] = [(128 / few, 16 << 10), (32 / few, 256 << 10), (8 / few, 4 << 20), (1, 32 << 20)];
    let sizes: Vec<u64> = kinds.iter().flat_map(|(count, size)| std::iter::repeat_n(*size, *count)).collect();
    let (samples, _) = compare(lab, "copies", &sizes, &variants)?;
    let how = format!(
        "{COPIERS} copiers on {COPIERS} mounts copy {} files of 16 KiB to 32 MiB in chunks of 4 MiB, to the end of fsync. \
         Auto goes direct from 512 KiB on, as the paper sets it.",
        sizes.len()
    );
    Ok(Made::new(vec![rates(&variants, &samples)], how))
}

/// Statements of figure 14.
pub fn data_set_shape(seen: &Seen<'_>) -> Vec<Check> {
    vec![ahead("Auto copies faster than vanilla (1.5).", seen.panel("throughput"), ("auto", "vanilla"), "copy")]
}

/// Panels in which the statements hold, and in which they do not.
#[cfg(test)]
pub fn made_up(holds: bool) -> Vec<Panel> {
    use crate::figures::graph::made::place;
    let (auto, deviation) = if holds { (3.0, 5.0) } else { (1.0, 50.0) };
    let unsteadiness = place("unsteadiness", "copy", &[("vanilla", 30.0), ("auto", deviation)]);
    vec![place("throughput", "copy", &[("vanilla", 1.0), ("auto", auto)]), unsteadiness]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the rates over time add up to the whole, and a copy that stands still half of the time is unsteady.
    /// Method: made-up times.
    #[test]
    fn rates_over_time() {
        let even = Copied { chunks: (0..40).map(|i| (f64::from(i) * 0.1, 1 << 20)).collect(), seconds: 4.0 };
        let still = Copied { chunks: (0..40).map(|i| (f64::from(i) * 0.05, 1 << 20)).collect(), seconds: 4.0 };
        assert_eq!((even.mib_s(), still.mib_s()), (10.0, 10.0));
        let sum = |copied: &Copied| copied.bins().iter().sum::<f64>() / BINS as f64;
        assert!((sum(&even) - 10.0).abs() < 1e-9 && (sum(&still) - 10.0).abs() < 1e-9);
        assert!(even.unsteady() < 10.0 && still.unsteady() > 90.0, "{} {}", even.unsteady(), still.unsteady());
    }
}
