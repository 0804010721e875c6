//! `amphi bench mdtest`: processes make, look at, read and remove many files or directories, as mdtest does.
//!
//! Owns: which items a process has and where they lie (`Shape`), the command. Names and places as in mdtest: a tree of
//! folders of a given depth and branching, the items of a process in equal parts in all of them or in the last level
//! only.

use super::latency::Latency;
use super::place::{Place, PlaceOptions};
use super::tasks::{Tasks, now_ns};
use super::{Done, Phase, Together};
use crate::report::{Table, digits};
use amphi_env::Buf;
use amphi_host::failure::{During, Failure, Outcome};
use clap::Args;
use rustix::fs::{Mode, OFlags, fsync, mkdir, open, rmdir, stat, unlink};
use rustix::io::{pread, pwrite};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Items and where they lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Processes.
    pub tasks: usize,
    /// Items of each process.
    pub items: u64,
    /// Levels of folders below the first.
    pub depth: u32,
    /// Folders in a folder.
    pub branch: u32,
    /// A tree for each process.
    pub own_tree: bool,
    /// Items lie in the last level only.
    pub leaf_only: bool,
    /// Items are directories.
    pub dirs: bool,
    /// Bytes written to each file.
    pub write_bytes: u64,
    /// Bytes read of each file.
    pub read_bytes: u64,
    /// fsync after the write.
    pub fsync: bool,
    /// Items are looked at and read this many ranks further on.
    pub stride: usize,
}

impl Shape {
    /// Folders of a tree in the order of their numbers: path below the root, level.
    fn folders(&self) -> Vec<(PathBuf, u32)> {
        let mut all = vec![(PathBuf::from("tree.0"), 0)];
        let mut at = 0;
        while at < all.len() {
            let (path, level) = all[at].clone();
            if level < self.depth {
                for _ in 0..self.branch {
                    let name = format!("tree.{}", all.len());
                    all.push((path.join(name), level + 1));
                }
            }
            at += 1;
        }
        all
    }

    /// Folders that hold items.
    fn holders(&self) -> Vec<PathBuf> {
        let of = |level: u32| !self.leaf_only || level == self.depth;
        self.folders().into_iter().filter(|(_, level)| of(*level)).map(|(path, _)| path).collect()
    }

    /// Items of `rank`, below the root of all trees.
    fn paths(&self, rank: usize) -> Vec<PathBuf> {
        let holders = self.holders();
        let each = self.items.div_ceil(holders.len() as u64).max(1);
        let root = self.tree(rank);
        let kind = if self.dirs { "dir" } else { "file" };
        (0..self.items)
            .map(|i| root.join(&holders[(i / each) as usize]).join(format!("{kind}.mdtest.{rank}.{i}")))
            .collect()
    }

    fn tree(&self, rank: usize) -> PathBuf {
        if self.own_tree { PathBuf::from(format!("mdtest.{rank}")) } else { PathBuf::from("mdtest.shared") }
    }

    /// Errors: a sentence about numbers that make no tree.
    fn check(&self) -> Outcome {
        let folders = (0..=self.depth).try_fold(0u64, |n, l| n.checked_add(u64::from(self.branch).checked_pow(l)?));
        if folders.is_none_or(|n| n > 1_000_000) {
            return Err(Failure::refused(
                "a tree of this depth and branching has more than a million folders; change -z or -b",
            ));
        }
        if self.items == 0 || self.branch == 0 {
            return Err(Failure::refused("items and branching must be at least 1"));
        }
        if self.write_bytes.max(self.read_bytes) > 1 << 30 {
            return Err(Failure::refused("files of mdtest are at most 1 GiB; change -w or -e"));
        }
        Ok(())
    }
}

/// What one process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// All processes.
    pub shape: Shape,
    /// This one.
    pub rank: usize,
    /// Folder that holds the trees, seen from this process.
    pub root: PathBuf,
}

fn byte_of(rank: usize, item: usize) -> u8 {
    (rank * 31 + item * 7 + 1) as u8
}

impl Job {
    /// The jobs of all; process r works on mount r modulo the number of mounts.
    pub fn all(shape: &Shape, mounts: &[PathBuf], dir: &str) -> Vec<super::Job> {
        let job = |rank: usize| Job { shape: shape.clone(), rank, root: mounts[rank % mounts.len()].join(dir) };
        (0..shape.tasks).map(|rank| super::Job::Mdtest(job(rank))).collect()
    }

    fn other(&self) -> usize {
        (self.rank + self.shape.stride) % self.shape.tasks
    }

    /// One phase.
    pub fn run(&mut self, phase: Phase) -> Outcome<Done> {
        let of = match phase {
            Phase::Write | Phase::Remove => self.rank,
            _ => self.other(),
        };
        let paths: Vec<PathBuf> = self.shape.paths(of).iter().map(|p| self.root.join(p)).collect();
        let bytes = match phase {
            Phase::Write => self.shape.write_bytes,
            _ => self.shape.read_bytes,
        };
        let mut buf = Buf::zeroed(bytes.max(1) as usize);
        let (mut latency, mut done) = (Latency::new(), Done { start_ns: now_ns(), ..Done::default() });
        done.opened_ns = done.start_ns;
        for (i, path) in paths.iter().enumerate() {
            let start = now_ns();
            match phase {
                Phase::Write if self.shape.dirs => {
                    mkdir(path, Mode::from_raw_mode(0o755)).during(|| format!("make {}", path.display()))?;
                }
                Phase::Write => {
                    buf.fill(byte_of(of, i));
                    self.write(path, &buf)?;
                    done.bytes += bytes;
                }
                Phase::Stat => drop(stat(path).during(|| format!("stat {}", path.display()))?),
                Phase::Read | Phase::CheckRead | Phase::CheckWrite => {
                    done.bytes += self.read(path, &mut buf, byte_of(of, i))?;
                }
                Phase::Remove if self.shape.dirs => rmdir(path).during(|| format!("remove {}", path.display()))?,
                Phase::Remove => unlink(path).during(|| format!("remove {}", path.display()))?,
            }
            latency.add(now_ns() - start);
            done.calls += 1;
        }
        done.moved_ns = now_ns();
        Ok(Done { end_ns: done.moved_ns, latency: latency.rows(), ..done })
    }

    fn write(&self, path: &Path, buf: &Buf) -> Outcome {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::from_raw_mode(0o644)).during(|| format!("make {}", path.display()))?;
        let mut at = 0;
        while (at as u64) < self.shape.write_bytes {
            at += pwrite(&fd, &buf[at..], at as u64).during(|| format!("write {}", path.display()))?;
        }
        if self.shape.fsync {
            fsync(&fd).during(|| format!("fsync {}", path.display()))?;
        }
        Ok(())
    }

    fn read(&self, path: &Path, buf: &mut Buf, byte: u8) -> Outcome<u64> {
        let fd = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .during(|| format!("open {}", path.display()))?;
        let bytes = self.shape.read_bytes.min(self.shape.write_bytes);
        let mut at = 0;
        while (at as u64) < bytes {
            let n =
                pread(&fd, &mut buf[at..bytes as usize], at as u64).during(|| format!("read {}", path.display()))?;
            if n == 0 {
                return Err(Failure::broken(format!("{}: ends at {at} of {bytes} bytes", path.display())));
            }
            at += n;
        }
        if let Some(at) = buf[..bytes as usize].iter().position(|b| *b != byte) {
            return Err(Failure::broken(format!("{}: wrong bytes at {at}", path.display())));
        }
        Ok(bytes)
    }
}

/// Makes the folders of all trees, from the first mount. Seconds.
pub fn make_trees(shape: &Shape, root: &Path) -> Outcome<f64> {
    let start = now_ns();
    std::fs::create_dir_all(root).during(|| format!("make {}", root.display()))?;
    let trees = if shape.own_tree { shape.tasks } else { 1 };
    for rank in 0..trees {
        for (folder, _) in shape.folders() {
            let path = root.join(shape.tree(rank)).join(folder);
            std::fs::create_dir_all(&path).during(|| format!("make {}", path.display()))?;
        }
    }
    Ok((now_ns() - start) as f64 / 1e9)
}

/// Many files or directories with several processes, as mdtest does; option names are mdtest's.
#[derive(Args, Clone, Debug)]
pub struct Mdtest {
    #[command(flatten)]
    place: PlaceOptions,
    /// Processes
    #[arg(short = 'N', long = "numTasks", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    tasks: u16,
    /// Items of each process
    #[arg(short = 'n', long = "items", default_value_t = 1000)]
    items: u64,
    /// Levels of folders below the first
    #[arg(short = 'z', long = "depth", default_value_t = 0)]
    depth: u32,
    /// Folders in each folder
    #[arg(short = 'b', long = "branch", default_value_t = 1)]
    branch: u32,
    /// A tree for each process
    #[arg(short = 'u', long = "unique")]
    unique: bool,
    /// Items in the last level of folders only
    #[arg(short = 'L', long = "leafOnly")]
    leaf_only: bool,
    /// Directories instead of files
    #[arg(short = 'D', long = "dirsOnly")]
    dirs: bool,
    /// Files only, the default
    #[arg(short = 'F', long = "filesOnly", conflicts_with = "dirs")]
    files: bool,
    /// Bytes written to each file
    #[arg(short = 'w', long = "writeBytes", default_value = "0", value_parser = amphi_host::size::parse)]
    write_bytes: u64,
    /// Bytes read of each file
    #[arg(short = 'e', long = "readBytes", default_value = "0", value_parser = amphi_host::size::parse)]
    read_bytes: u64,
    /// fsync after each write
    #[arg(short = 'y', long = "syncFile")]
    fsync: bool,
    /// Look at and read the items of the process that is this far on
    #[arg(short = 's', long = "stride", default_value_t = 0)]
    stride: usize,
    /// Make the items [default: all phases]
    #[arg(short = 'C', long = "createOnly")]
    create: bool,
    /// Look at their attributes
    #[arg(short = 'T', long = "statOnly")]
    stat: bool,
    /// Read them
    #[arg(short = 'E', long = "readOnly")]
    read: bool,
    /// Remove them
    #[arg(short = 'r', long = "removeOnly")]
    remove: bool,
    /// How often everything is done
    #[arg(short = 'i', long = "iterations", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    iterations: u16,
    /// Folder of the trees, below the mounts
    #[arg(short = 'd', long = "dir-name", default_value = "mdtest-out")]
    name: String,
}

impl Mdtest {
    fn shape(&self) -> Shape {
        Shape {
            tasks: usize::from(self.tasks),
            items: self.items,
            depth: self.depth,
            branch: self.branch,
            own_tree: self.unique,
            leaf_only: self.leaf_only,
            dirs: self.dirs,
            write_bytes: self.write_bytes,
            read_bytes: self.read_bytes,
            fsync: self.fsync,
            stride: self.stride,
        }
    }

    fn phases(&self) -> Vec<Phase> {
        let none = !(self.create || self.stat || self.read || self.remove);
        let chosen = [
            (self.create || none, Phase::Write),
            (self.stat || none, Phase::Stat),
            ((self.read || none) && !self.dirs, Phase::Read),
            (self.remove || none, Phase::Remove),
        ];
        chosen.into_iter().filter(|(yes, _)| *yes).map(|(_, phase)| phase).collect()
    }

    /// Runs it and prints a line for each phase.
    pub fn run(self) -> Outcome {
        let shape = self.shape();
        shape.check()?;
        let mut place = Place::make(&self.place)?;
        let root = place.mounts()[0].join(&self.name);
        let mut table = Table::new(
            format!(
                "mdtest: {} processes on {} mounts, {} {} each, {} bytes written, {} read",
                shape.tasks,
                place.mounts().len(),
                shape.items,
                if shape.dirs { "directories" } else { "files" },
                shape.write_bytes,
                shape.read_bytes
            ),
            &["operation", "per second", "median us", "99 % us", "total s", "iter"],
        );
        let mut tasks = Tasks::start(&Job::all(&shape, place.mounts(), &self.name))?;
        for iteration in 0..self.iterations {
            if self.phases().contains(&Phase::Write) {
                make_trees(&shape, &root)?;
            }
            for phase in self.phases() {
                let all = place.phase(&mut tasks, phase, iteration)?;
                table.row(row(&shape, phase, &all, iteration));
            }
        }
        tasks.stop()?;
        if self.phases().contains(&Phase::Remove) {
            std::fs::remove_dir_all(&root).during(|| format!("remove {}", root.display()))?;
        }
        println!("{}", table.render());
        place.finish("mdtest")
    }
}

fn row(shape: &Shape, phase: Phase, all: &Together, iteration: u16) -> Vec<String> {
    let what = if shape.dirs { "directory" } else { "file" };
    let phase = if phase == Phase::Write { "creation" } else { phase.name() };
    let latency = all.latency();
    vec![
        format!("{what} {phase}"),
        digits(all.per_second()),
        digits(latency.quantile_us(0.5)),
        digits(latency.quantile_us(0.99)),
        format!("{:.4}", all.seconds()),
        iteration.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn shape() -> Shape {
        Shape {
            tasks: 2,
            items: 10,
            depth: 2,
            branch: 2,
            own_tree: false,
            leaf_only: false,
            dirs: false,
            write_bytes: 0,
            read_bytes: 0,
            fsync: false,
            stride: 1,
        }
    }

    /// Goal: every process has its number of items, all with names of their own, in folders that are made. Method: both
    /// kinds of trees.
    #[test]
    fn items_have_places() {
        for shape in [shape(), Shape { leaf_only: true, ..shape() }, Shape { own_tree: true, depth: 0, ..shape() }] {
            let all: BTreeSet<PathBuf> = (0..2).flat_map(|r| shape.paths(r)).collect();
            assert_eq!(all.len(), 20, "{shape:?}");
            for rank in 0..2 {
                let folders: BTreeSet<PathBuf> =
                    shape.folders().into_iter().map(|(f, _)| shape.tree(rank).join(f)).collect();
                assert!(shape.paths(rank).iter().all(|p| p.parent().is_some_and(|d| folders.contains(d))));
            }
        }
        assert_eq!(shape().folders().len(), 7);
        assert_eq!(Shape { leaf_only: true, ..shape() }.holders().len(), 4);
    }

    /// Goal: trees that are too large are refused. Method: one that overflows.
    #[test]
    fn refused() {
        assert!(shape().check().is_ok());
        assert!(Shape { depth: 60, branch: 9, ..shape() }.check().is_err_and(|e| e.text.contains("million")));
    }
}
