//! `amphi layout` shows and sets these settings: how the data of files is distributed over targets, whether I/O is
//! buffered or direct, whether the kernel serves reads, whether blocks get checksums, and when other mounts see what is
//! written.

use amphi_host::control;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::size;
use clap::{Args, Subcommand};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use serde::Deserialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The attribute that says whether the kernel serves reads.
const KERNEL_CACHE: &str = "user.amphi.kernel_cache";

/// The attribute that says whether blocks get checksums.
const CHECKSUMS: &str = "user.amphi.checksums";

/// The attribute that says when other mounts see what is written.
const CONSISTENCY: &str = "user.amphi.consistency";
const SUBDIRECTORIES: &str = "user.amphi.subdirectories";

/// The attribute that says where the names of a directory lie.
const SHARDS: &str = "user.amphi.shards";

/// Show or set data layout, I/O mode, use of the kernel's cache, checksums, consistency and shards of files and
/// directories.
#[derive(Args, Debug)]
pub struct Layout {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Print layout, I/O mode, kernel cache, checksums and consistency, of files where data lies and what is not stable
    /// yet, of directories the targets of their shards
    Get {
        /// Each extent of a file: offset in the file, length, target, address in the target's zone
        #[arg(long)]
        extents: bool,
        /// Files or directories
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Set layout, I/O mode, kernel cache, checksums or consistency; new files and directories in a directory inherit
    /// them. With --shards, it gives shards to an empty directory; these are not inherited
    Set {
        /// growing, whole, or striped[,size=SIZE][,count=N]; a file that has data keeps its layout
        #[arg(
            long,
            required_unless_present_any = [
                "mode",
                "kernel_cache",
                "checksums",
                "consistency",
                "shards",
                "subdirectories",
            ],
            value_name = "LAYOUT"
        )]
        layout: Option<String>,
        /// auto, buffered or direct
        #[arg(long, value_parser = ["auto", "buffered", "direct"])]
        mode: Option<String>,
        /// Whether the kernel serves reads from its page cache while nobody has the file open for writing
        #[arg(long, value_parser = ["auto", "on", "off"])]
        kernel_cache: Option<String>,
        /// Whether data that is written from now on gets checksums; auto: server.checksums decides
        #[arg(long, value_parser = ["auto", "on", "off"])]
        checksums: Option<String>,
        /// When other mounts see a write: posix, as soon as it has returned; commit, at the latest when the writer
        /// calls fsync or close or releases a file lock
        #[arg(long, value_parser = ["posix", "commit"])]
        consistency: Option<String>,
        /// Number of shards over which the names of a directory and the inodes made in it are spread: up to 256, or all
        /// for one on each target. The directory has to be empty, and keeps its shards
        #[arg(long, value_name = "N|all")]
        shards: Option<String>,
        /// Whether new directories in a directory, and in those below that are made later, get one shard on each target
        /// when they are made (sharded) or have their names on one target (plain)
        #[arg(long, value_parser = ["plain", "sharded"])]
        subdirectories: Option<String>,
        /// Files or directories
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
}

impl Layout {
    /// Shows or sets, path by path.
    pub fn run(self) -> Outcome {
        match self.action {
            Action::Get { extents, paths } => {
                for path in paths {
                    let layout = control::read(&path, "user.amphi.layout")?;
                    let mode = control::read(&path, "user.amphi.mode")?;
                    let kernel_cache = control::read(&path, KERNEL_CACHE)?;
                    let sums = control::read(&path, CHECKSUMS)?;
                    let consistency = control::read(&path, CONSISTENCY)?;
                    println!(
                        "{}: layout {layout} mode {mode} kernel-cache {kernel_cache} checksums {sums} \
                         consistency {consistency}",
                        path.display()
                    );
                    if path.is_dir() {
                        let shards = control::read(&path, SHARDS)?;
                        if shards != "none" {
                            println!("  shards on targets {shards}");
                        }
                        if control::read(&path, SUBDIRECTORIES)? == "sharded" {
                            println!("  new directories in it get shards");
                        }
                    }
                    if path.is_file() {
                        print!("{}", placement(&path, extents)?);
                    }
                }
            }
            Action::Set { layout, mode, kernel_cache, checksums, consistency, shards, subdirectories, paths } => {
                let asked = [
                    ("user.amphi.mode", mode, "auto, buffered, direct"),
                    (KERNEL_CACHE, kernel_cache, "auto, on, off"),
                    (CHECKSUMS, checksums, "auto, on, off"),
                    (CONSISTENCY, consistency, "posix, commit"),
                ];
                for (done, path) in paths.iter().enumerate() {
                    set(path, layout.as_deref(), &asked).map_err(|f| f.behind(done))?;
                    if let Some(shards) = &shards {
                        set_shards(path, shards).map_err(|f| f.behind(done))?;
                    }
                    if let Some(subdirectories) = &subdirectories {
                        set_subdirectories(path, subdirectories).map_err(|f| f.behind(done))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// One object of a file.
#[derive(Deserialize)]
struct Object {
    stripe: u32,
    target: u16,
    extents: u64,
    bytes: u64,
}

/// The objects of a file.
#[derive(Deserialize)]
struct Objects {
    objects: Vec<Object>,
    more: bool,
}

/// Bytes of a file that were acknowledged and are not stable.
#[derive(Deserialize)]
struct Unstable {
    dirty: u64,
    sending: u64,
    accepted: u64,
    unsynced: u64,
}

/// Some extents of an object: offset, length, address, whether written.
#[derive(Deserialize)]
struct Extents {
    extents: Vec<(u64, u64, u64, bool)>,
    more: bool,
}

fn parsed<T: serde::de::DeserializeOwned>(path: &Path, name: &str) -> Outcome<T> {
    let text = control::read(path, name)?;
    serde_json::from_str(&text).map_err(|e| Failure::broken(format!("{}: {name}: {e}", path.display())))
}

/// Shows the bytes of the file that would not survive a loss of power. Then this mount sends these bytes, and the place
/// of the data is shown: a line for each object that has any, and a line for each extent on request.
fn placement(path: &Path, each: bool) -> Outcome<String> {
    // The targets inform mounts that have the file open.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let _open = open(path, flags, Mode::empty()).during(|| format!("open {}", path.display()))?;
    let mut out = String::new();
    let Unstable { dirty, sending, accepted, unsynced } = parsed(path, "user.amphi.unstable")?;
    if dirty + sending + accepted + unsynced > 0 {
        let [mount, servers, disks] = [dirty + sending, accepted, unsynced].map(size::show);
        let _ =
            writeln!(out, "  not stable: {mount} in this mount, {servers} in the servers' memory, {disks} not synced");
    }
    let all: Objects = parsed(path, "user.amphi.extents")?;
    for o in all.objects.iter().filter(|o| o.extents > 0) {
        let s = if o.extents == 1 { "" } else { "s" };
        let _ = writeln!(out, "  target {:<4} {:>9} in {} extent{s}", o.target, size::show(o.bytes), o.extents);
        let mut at = Some(0).filter(|_| each);
        while let Some(from) = at {
            let part: Extents = parsed(path, &format!("user.amphi.extents.{}.{from}", o.stripe))?;
            for (offset, len, address, written) in &part.extents {
                let note = if *written { "" } else { " preallocated" };
                let _ = writeln!(out, "    {offset:>15} {len:>12} at {address}{note}");
            }
            at = part.extents.last().filter(|_| part.more).map(|(offset, len, ..)| offset + len);
        }
    }
    if all.more {
        let _ = writeln!(out, "  and more targets");
    }
    Ok(out)
}

/// Sets the layout of a path, if one is given, and each attribute that has a value. The slice has the name of each
/// attribute, its value, and the possible values.
fn set(path: &Path, layout: Option<&str>, asked: &[(&str, Option<String>, &str)]) -> Outcome {
    // This check comes first, because another file system would accept the attributes below and ignore them.
    control::read(path, "user.amphi.mode")?;
    if let Some(layout) = layout {
        set_layout(path, layout)?;
    }
    let given = asked.iter().filter_map(|(name, value, words)| value.as_ref().map(|value| (name, value, words)));
    for (before, (name, value, words)) in given.enumerate() {
        let wrong = |_| format!("{}: '{value}' is none of {words}", path.display());
        control::write(path, name, value, wrong).map_err(|f| f.behind(before + usize::from(layout.is_some())))?;
    }
    Ok(())
}

fn check_directory(path: &Path) -> Outcome {
    if path.is_dir() {
        return Ok(());
    }
    Err(Failure::refused(format!("{}: is no directory, so it has no names to spread", path.display())))
}

fn set_subdirectories(path: &Path, subdirectories: &str) -> Outcome {
    check_directory(path)?;
    let wrong = |_| format!("{}: '{subdirectories}' is none of plain, sharded", path.display());
    control::write(path, SUBDIRECTORIES, subdirectories, wrong)
}

fn set_shards(path: &Path, shards: &str) -> Outcome {
    check_directory(path)?;
    control::write(path, SHARDS, shards, |e| match e {
        Errno::EXIST => format!("{}: has shards already and keeps them", path.display()),
        Errno::NOTEMPTY => {
            format!("{}: is not empty; give shards to a new directory and move what is here into it", path.display())
        }
        _ => format!("{}: '{shards}' is neither a number of shards from 1 to 256 nor all", path.display()),
    })
}

fn set_layout(path: &Path, layout: &str) -> Outcome {
    control::write(path, "user.amphi.layout", layout, |e| match e {
        Errno::BUSY => format!("{}: has data and keeps its layout; copy it to a new file instead", path.display()),
        // The mount knows the reason, but not every caller may read it.
        _ => match control::read_if_any(path, "user.amphi.error") {
            Ok(Some(why)) if !why.is_empty() => format!("{}: '{layout}' is no layout: {why}", path.display()),
            _ => format!(
                "{}: '{layout}' is no layout; write growing, whole, or striped,size=1M,count=4 (size: a power of two, \
                 64K to 1G; count: at most {} for each target)",
                path.display(),
                amphi_types::Layout::STRIPES_A_TARGET
            ),
        },
    })
}
