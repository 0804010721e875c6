//! `amphi bench ior`: processes write and read one file or one each, in blocks and segments, as IOR does.
//!
//! Owns: which process moves which bytes when (`Shape`), the command. Does not own: the calls and the bytes
//! (`transfers`). Offsets as in IOR: segment s, process r, transfer k of a shared file lie at `s * tasks * block + r *
//! block + k * transfer`.

use super::place::{Place, PlaceOptions};
use super::tasks::Tasks;
use super::transfers::{Calls, Job, Part};
use super::{Phase, Together};
use crate::report::{Table, digits};
use amphi_host::failure::{Failure, Outcome};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Which process moves which bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Processes.
    pub tasks: usize,
    /// Contiguous bytes of a process.
    pub block: u64,
    /// Bytes of a call.
    pub transfer: u64,
    /// Blocks of a process.
    pub segments: u64,
    /// A file for each process, or one for all.
    pub file_per_process: bool,
    /// Transfers of a process in random order; the seed.
    pub random: Option<u64>,
    /// Who reads what.
    pub reorder: Reorder,
}

/// The bytes that a process reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reorder {
    /// Its own.
    None,
    /// The bytes of the next process.
    Next,
    /// The bytes of another one, by a random order of all; the seed.
    Random(u64),
}

/// A generator of numbers that look random, the same for a seed everywhere (SplitMix64, Steele et al. 2014).
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// An order of `0..n` (Fisher and Yates).
fn shuffled<T>(mut all: Vec<T>, seed: u64) -> Vec<T> {
    let mut state = seed;
    for i in (1..all.len()).rev() {
        all.swap(i, (next_random(&mut state) % (i as u64 + 1)) as usize);
    }
    all
}

impl Shape {
    /// Bytes that each process moves.
    pub fn bytes(&self) -> u64 {
        self.block * self.segments
    }

    /// Errors: a sentence about sizes that do not fit together.
    pub fn check(&self) -> Outcome {
        let bad = |text: String| Err(Failure::refused(text));
        if self.tasks == 0 || self.block == 0 || self.transfer == 0 || self.segments == 0 {
            return bad("processes, block, transfer and segments must be at least 1".into());
        }
        if !self.block.is_multiple_of(self.transfer) {
            return bad(format!(
                "block size {} must be a multiple of transfer size {}; change -b or -t",
                self.block, self.transfer
            ));
        }
        if self.transfer > 1 << 30 {
            return bad(format!("transfer size {} is more than 1 GiB; choose a smaller -t", self.transfer));
        }
        let size = (self.tasks as u64).checked_mul(self.block).and_then(|b| b.checked_mul(self.segments));
        if size.is_none_or(|s| s > 1 << 62) {
            return bad("processes x block x segments is larger than a file can be".into());
        }
        Ok(())
    }

    /// The rank whose bytes `rank` reads.
    pub fn partner(&self, rank: usize) -> usize {
        match self.reorder {
            Reorder::None => rank,
            Reorder::Next => (rank + 1) % self.tasks,
            Reorder::Random(seed) => shuffled((0..self.tasks).collect(), seed)[rank],
        }
    }

    /// Offsets of the transfers of `rank`, in their order.
    pub fn offsets(&self, rank: usize) -> Vec<u64> {
        let (stride, first) = match self.file_per_process {
            true => (self.block, 0),
            false => (self.block * self.tasks as u64, self.block * rank as u64),
        };
        let all: Vec<u64> = (0..self.segments)
            .flat_map(|s| (0..self.block / self.transfer).map(move |k| (s, k)))
            .map(|(s, k)| s * stride + first + k * self.transfer)
            .collect();
        match self.random {
            None => all,
            Some(seed) => shuffled(all, seed.wrapping_add(rank as u64)),
        }
    }
}

impl Shape {
    fn part(&self, of: usize, mount: &Path, file: &str) -> Part {
        let name = if self.file_per_process { format!("{file}.{of:08}") } else { file.to_string() };
        let pieces = self.offsets(of).into_iter().map(|at| (at, self.transfer)).collect();
        let key = if self.file_per_process { of as u64 + 1 } else { 0 };
        Part { file: mount.join(name), pieces, key }
    }

    /// The jobs of all processes; process r works on mount r modulo the number of mounts.
    pub fn jobs(&self, mounts: &[PathBuf], file: &str, calls: Calls) -> Vec<super::Job> {
        (0..self.tasks)
            .map(|rank| {
                let mount = &mounts[rank % mounts.len()];
                super::Job::Transfers(Job {
                    write: self.part(rank, mount, file),
                    read: self.part(self.partner(rank), mount, file),
                    removes: self.file_per_process || rank == 0,
                    calls,
                })
            })
            .collect()
    }
}

/// Write and read with several processes, as IOR does; option names are IOR's.
#[derive(Args, Clone, Debug)]
pub struct Ior {
    #[command(flatten)]
    place: PlaceOptions,
    /// Processes
    #[arg(short = 'N', long = "numTasks", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    tasks: u16,
    /// Contiguous bytes that a process writes, e.g. 16m
    #[arg(short = 'b', long = "blockSize", default_value = "1m", value_parser = amphi_host::size::parse)]
    block: u64,
    /// Bytes of a call
    #[arg(short = 't', long = "transferSize", default_value = "256k", value_parser = amphi_host::size::parse)]
    transfer: u64,
    /// Blocks of each process; with block = transfer a shared file is strided
    #[arg(short = 's', long = "segmentCount", default_value_t = 1)]
    segments: u64,
    /// A file for each process
    #[arg(short = 'F', long = "filePerProc")]
    file_per_process: bool,
    /// Each process reads what the next one wrote
    #[arg(short = 'C', long = "reorderTasks")]
    reorder: bool,
    /// Each process reads what a random other one wrote
    #[arg(short = 'Z', long = "reorderTasksRandom", conflicts_with = "reorder")]
    reorder_random: bool,
    /// Seed of random orders
    #[arg(short = 'X', long = "reorderTasksRandomSeed", default_value_t = 0)]
    seed: u64,
    /// Transfers of a process in random order
    #[arg(short = 'z', long = "randomOffset")]
    random: bool,
    /// fsync before the close of a write
    #[arg(short = 'e', long = "fsync")]
    fsync: bool,
    /// fsync after each write
    #[arg(short = 'Y', long = "fsyncPerWrite")]
    fsync_each: bool,
    /// Write [default: write and read]
    #[arg(short = 'w', long = "writeFile")]
    write: bool,
    /// Read
    #[arg(short = 'r', long = "readFile")]
    read: bool,
    /// Read back what was written and compare each byte
    #[arg(short = 'W', long = "checkWrite")]
    check_write: bool,
    /// Read and compare each byte
    #[arg(short = 'R', long = "checkRead")]
    check_read: bool,
    /// Open with O_DIRECT
    #[arg(short = 'B', long = "useO_DIRECT")]
    o_direct: bool,
    /// Keep the files
    #[arg(short = 'k', long = "keepFile")]
    keep: bool,
    /// Use files that are there, without removing them first
    #[arg(short = 'E', long = "useExistingTestFile")]
    existing: bool,
    /// How often everything is done
    #[arg(short = 'i', long = "repetitions", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repetitions: u16,
    /// Name of the file, below the mounts
    #[arg(short = 'o', long = "testFile", default_value = "testFile")]
    file: String,
}

impl Ior {
    fn shape(&self) -> Shape {
        Shape {
            tasks: usize::from(self.tasks),
            block: self.block,
            transfer: self.transfer,
            segments: self.segments,
            file_per_process: self.file_per_process,
            random: self.random.then_some(self.seed),
            reorder: match (self.reorder, self.reorder_random) {
                (true, _) => Reorder::Next,
                (_, true) => Reorder::Random(self.seed),
                _ => Reorder::None,
            },
        }
    }

    fn phases(&self) -> Vec<Phase> {
        let none = !(self.write || self.read || self.check_write || self.check_read);
        let chosen = [
            (self.write || none, Phase::Write),
            (self.check_write, Phase::CheckWrite),
            (self.read || none, Phase::Read),
            (self.check_read, Phase::CheckRead),
        ];
        chosen.into_iter().filter(|(yes, _)| *yes).map(|(_, phase)| phase).collect()
    }

    /// Runs it and prints a line for each phase.
    pub fn run(self) -> Outcome {
        let shape = self.shape();
        shape.check()?;
        if PathBuf::from(&self.file).is_absolute() {
            return Err(Failure::refused(format!(
                "{}: name the file below the mounts, not by its whole path",
                self.file
            )));
        }
        let mut place = Place::make(&self.place)?;
        let calls = Calls { o_direct: self.o_direct, fsync: self.fsync, fsync_each: self.fsync_each };
        let jobs = shape.jobs(place.mounts(), &self.file, calls);
        let mut table = Table::new(
            format!(
                "ior: {} processes on {} mounts, {}, transfers of {}, blocks of {}, {} segments, {} in all",
                shape.tasks,
                place.mounts().len(),
                if shape.file_per_process { "a file for each" } else { "one file" },
                amphi_host::size::show(shape.transfer),
                amphi_host::size::show(shape.block),
                shape.segments,
                amphi_host::size::show(shape.bytes() * shape.tasks as u64),
            ),
            &["access", "MiB/s", "IOPS", "median us", "99 % us", "open s", "transfers s", "close s", "total s", "iter"],
        );
        let mut tasks = Tasks::start(&jobs)?;
        if !self.existing && self.phases().contains(&Phase::Write) {
            tasks.phase(Phase::Remove)?;
        }
        for iteration in 0..self.repetitions {
            for phase in self.phases() {
                let all = place.phase(&mut tasks, phase, iteration)?;
                table.row(row(phase, &all, iteration));
            }
        }
        if !self.keep {
            tasks.phase(Phase::Remove)?;
        }
        tasks.stop()?;
        println!("{}", table.render());
        place.finish("ior")
    }
}

fn row(phase: Phase, all: &Together, iteration: u16) -> Vec<String> {
    let (latency, parts) = (all.latency(), all.parts());
    let mut cells = vec![
        phase.name().to_string(),
        digits(all.mib_s()),
        digits(all.per_second()),
        digits(latency.quantile_us(0.5)),
        digits(latency.quantile_us(0.99)),
    ];
    cells.extend(parts.iter().map(|s| format!("{s:.4}")));
    cells.extend([format!("{:.4}", all.seconds()), iteration.to_string()]);
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn shape() -> Shape {
        Shape {
            tasks: 3,
            block: 400,
            transfer: 100,
            segments: 5,
            file_per_process: false,
            random: None,
            reorder: Reorder::None,
        }
    }

    /// Goal: all processes together cover a shared file once, in IOR's places. Method: all orders and both kinds of
    /// files.
    #[test]
    fn offsets_cover_the_file() {
        let strided = shape();
        assert_eq!(strided.offsets(1)[..5], [400, 500, 600, 700, 1600]);
        for random in [None, Some(7)] {
            let shape = Shape { random, ..shape() };
            let all: Vec<u64> = (0..3).flat_map(|r| shape.offsets(r)).collect();
            assert_eq!(all.len(), 60);
            assert_eq!(all.iter().copied().collect::<BTreeSet<_>>(), (0..60).map(|i| i * 100).collect());
        }
        assert_ne!(Shape { random: Some(7), ..shape() }.offsets(0), shape().offsets(0));
        let own = Shape { file_per_process: true, ..shape() };
        assert_eq!(own.offsets(2), (0..20).map(|i| i * 100).collect::<Vec<_>>());
    }

    /// Goal: reordered processes read all of each other's bytes. Method: partners of all.
    #[test]
    fn partners() {
        assert_eq!(
            (0..3).map(|r| Shape { reorder: Reorder::Next, ..shape() }.partner(r)).collect::<Vec<_>>(),
            [1, 2, 0]
        );
        let random = Shape { tasks: 9, reorder: Reorder::Random(3), ..shape() };
        let partners: BTreeSet<usize> = (0..9).map(|r| random.partner(r)).collect();
        assert_eq!(partners.len(), 9);
    }

    /// Goal: sizes that do not fit are refused with a sentence. Method: a few.
    #[test]
    fn refused() {
        assert!(shape().check().is_ok());
        assert!(Shape { transfer: 300, ..shape() }.check().is_err_and(|e| e.text.contains("multiple")));
        assert!(Shape { block: u64::MAX, transfer: 1, ..shape() }.check().is_err());
    }
}
