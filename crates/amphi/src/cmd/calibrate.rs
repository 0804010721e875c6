//! `amphi calibrate`: what this machine can do for a cluster, so that others can say how much of that is used.
//!
//! Owns: what is measured, in which order, where the result lies, whether it counts. Does not own: the measurements
//! (`disk`, `memory`, `links`), the shape of the result and what it limits (`amphi_view::limits`).
//!
//! The result is `calibration.json` in the folder of `amphi_host`'s notes of this user (`$AMPHI_STATE`, for root
//! `/var/lib/amphi-state`). A later calibration replaces it.

mod disk;
mod links;
mod memory;

use super::attributes::Attributes;
use crate::known_folders::state_folder;
use crate::secure::LeastSecure;
use amphi_bench::clock::unix_seconds;
use amphi_bench::{Calibrated, date};
use amphi_host::control;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::link::{Credentials, host_name};
use amphi_host::size;
use amphi_view::calibration::{Asker, Calibration, Disk, Limits, Machine, SCHEMA};
use clap::Args;
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the file.
const FILE: &str = "calibration.json";
/// The longest measurement that can be asked for, seconds.
const SECONDS_MAX: f64 = 60.0;

/// Measure in less than a minute what this machine can do at most, so that `amphi top` shows how much of that is used:
/// copies of memory, the disk below the zones, messages and payload to each server. Best while nothing else runs.
#[derive(Args, Debug)]
pub struct Calibrate {
    /// Mount point of the cluster, or any file or directory there; default: the only mount here, or none
    mount: Option<PathBuf>,
    /// Folder on a disk of zones; may be repeated, of a cluster with all its servers on this machine [default: the
    /// folder of `amphi up`]
    #[arg(long, value_name = "DIR")]
    data: Vec<PathBuf>,
    /// File with the cluster key, for servers over TCP
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// File with a key pair of one's own; its key has the role admin
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    #[command(flatten)]
    secure: LeastSecure,
    /// How long each of the measurements takes, seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Measure nothing, print the calibration that is stored
    #[arg(long, conflicts_with_all = ["data", "key", "identity"])]
    show: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Calibrate {
    /// Measures, stores and prints.
    pub fn run(self) -> Outcome {
        if self.show {
            let file = file()?;
            let calibration = read(&file)?.ok_or_else(|| {
                Failure::refused(format!("{} is not there: nothing was measured; amphi calibrate does", file.display()))
            })?;
            print(&calibration, self.json);
            return calibration.limits(&asker(&calibration.source).borrowed()).map(drop).map_err(Failure::broken);
        }
        let file = file()?;
        let long = Duration::from_secs_f64(self.seconds.clamp(0.05, SECONDS_MAX));
        let calibration = self.measure(long)?;
        store(&file, &calibration)?;
        print(&calibration, self.json);
        if !self.json {
            amphi_host::say::say(&format!("stored in {}", file.display()));
        }
        Ok(())
    }

    fn measure(&self, long: Duration) -> Outcome<Calibration> {
        // Without a mount only the machine is measured.
        let none = self.mount.is_none() && control::mounts().is_empty();
        let mount = if none { None } else { Some(control::find_mount(self.mount.clone(), "")?) };
        let source = mount.as_deref().map(control::source_of);
        if let (Some(mount), Some(None)) = (&mount, &source) {
            return Err(Failure::refused(format!("{}: is not on an AmphiFS mount", mount.display())));
        }
        let source = source.flatten().unwrap_or_default();
        let proves = Credentials::read(self.key.as_deref(), self.identity.as_deref())?;
        let proves = self.secure.of(proves);
        let status = mount.as_deref().map(|mount| mount.status()).transpose()?;
        let folder = Path::new(&source);
        let own = (self.data.is_empty() && folder.is_absolute()).then(|| folder.to_path_buf());
        let folders: Vec<PathBuf> = self.data.iter().cloned().chain(own).collect();

        let copy_bytes_per_s = memory::copy_bytes_per_s(long);
        let disks = folders.iter().map(|folder| disk::measure(folder, long)).collect::<Outcome<Vec<_>>>()?;
        let servers = status.as_deref().map_or(Ok(Vec::new()), |status| links::measure(status, &proves, long))?;
        let now = asker(&source);
        Ok(Calibration {
            schema: SCHEMA.into(),
            date: date(now.unix_s),
            unix_s: now.unix_s,
            version: env!("CARGO_PKG_VERSION").into(),
            machine: Machine { host: now.host, cores: now.cores, memory_bytes: memory::machine_bytes() },
            source,
            copy_bytes_per_s,
            disks,
            servers,
        })
    }
}

/// This machine at this moment, for a mount.
struct Here {
    host: String,
    cores: u64,
    unix_s: u64,
    source: String,
}

impl Here {
    fn borrowed(&self) -> Asker<'_> {
        Asker { host: &self.host, cores: self.cores, unix_s: self.unix_s, source: &self.source }
    }
}

fn asker(source: &str) -> Here {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let unix_s = unix_seconds();
    Here { host: host_name(), cores, unix_s, source: source.into() }
}

/// The limits that are valid for a mount of this source: none if nothing was measured, an error if the calibration is
/// no longer valid.
pub fn limits_of(source: &str) -> Option<Result<Limits, String>> {
    let calibration = read(&file().ok()?).transpose()?;
    Some(calibration.map_err(|e| e.text).and_then(|calibration| calibration.limits(&asker(source).borrowed())))
}

/// The measured limits of the disk on which a folder lies: none if nothing was measured, an error if the calibration is
/// not valid there.
pub fn disk_of(dir: &Path) -> Option<Result<Calibrated, String>> {
    let calibration = read(&file().ok()?).transpose()?;
    Some(calibration.map_err(|e| e.text).and_then(|calibration| {
        calibration.limits(&asker(&calibration.source).borrowed())?;
        disk_in(&calibration, dir)
    }))
}

/// The disk of a calibration that holds the file system of a folder.
fn disk_in(calibration: &Calibration, dir: &Path) -> Result<Calibrated, String> {
    let device = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
    let here = device(dir);
    let of = |disk: &&Disk| here.is_some() && device(Path::new(&disk.folder)) == here;
    let mib = f64::from(1 << 20);
    match calibration.disks.iter().find(of) {
        Some(disk) => {
            Ok(Calibrated { read_mib_s: disk.read_bytes_per_s / mib, write_mib_s: disk.write_bytes_per_s / mib })
        }
        None => Err(format!("no disk below {} was measured; `amphi calibrate --data FOLDER` does", dir.display())),
    }
}

fn file() -> Outcome<PathBuf> {
    let dir = state_folder()
        .ok_or_else(|| Failure::refused("there is no place for a calibration: neither HOME nor AMPHI_STATE is set"))?;
    Ok(dir.join(FILE))
}

/// The calibration in a file; none if there is no such file.
fn read(file: &Path) -> Outcome<Option<Calibration>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Failure::broken(format!("{}: {e}", file.display()))),
    };
    let read = serde_json::from_str(&text);
    read.map(Some).map_err(|e| {
        Failure::broken(format!("{}: is no calibration ({e}); `amphi calibrate` measures anew", file.display()))
    })
}

fn store(file: &Path, calibration: &Calibration) -> Outcome {
    let failed = || format!("store {}", file.display());
    let text = serde_json::to_string_pretty(calibration).during(failed)? + "\n";
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir).during(failed)?;
    }
    let fresh = file.with_extension(std::process::id().to_string());
    std::fs::write(&fresh, text).during(failed)?;
    std::fs::rename(&fresh, file).during(failed)
}

fn print(calibration: &Calibration, json: bool) {
    if json {
        println!("{}", serde_json::json!(calibration));
    } else {
        print!("{}", shown(calibration));
    }
}

fn shown(calibration: &Calibration) -> String {
    let rate = |bytes: f64| size::show(bytes as u64);
    let Machine { host, cores, memory_bytes } = &calibration.machine;
    let mut out = String::new();
    let _ = writeln!(out, "{host}, {cores} cores, {}, {}", size::show(*memory_bytes), calibration.date);
    let _ = writeln!(out, "memory: copies {}/s by one core", rate(calibration.copy_bytes_per_s));
    for disk in &calibration.disks {
        let _ = writeln!(
            out,
            "disk {}: reads {}/s, writes {}/s; of 4 KiB {:.0} reads/s, {:.0} writes/s; a write and its sync {:.0} us",
            disk.folder,
            rate(disk.read_bytes_per_s),
            rate(disk.write_bytes_per_s),
            disk.small_reads_per_s,
            disk.small_writes_per_s,
            disk.sync_us
        );
    }
    for server in &calibration.servers {
        let _ = writeln!(
            out,
            "server {} at {}: round trip {:.0} us, {:.0} messages/s, payload {}/s",
            server.server,
            server.address,
            server.round_trip_us,
            server.messages_per_s,
            rate(server.stream_bytes_per_s)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a calibration is read as it was stored, its file is whole or absent, and the error for a damaged file
    /// names the file. Method: store, read, damage.
    #[test]
    fn calibrations_are_stored() {
        let place = tempfile::tempdir().expect("temporary folder");
        let file = place.path().join("state").join(FILE);
        assert!(matches!(read(&file), Ok(None)));
        let calibration = Calibration { schema: SCHEMA.into(), copy_bytes_per_s: 1.5e9, ..Calibration::default() };
        for _ in 0..2 {
            store(&file, &calibration).map_err(|e| e.text).expect("stored");
            assert_eq!(read(&file).map_err(|e| e.text), Ok(Some(calibration.clone())));
        }
        assert_eq!(std::fs::read_dir(place.path().join("state")).expect("a folder").count(), 1);
        std::fs::write(&file, "{").expect("write");
        assert!(read(&file).is_err_and(|e| e.text.contains("is no calibration")));
    }

    /// Goal: a folder has the limits of the disk on which it lies, and no other limits. Method: a folder on the disk of
    /// one of two that were measured, and one elsewhere.
    #[test]
    fn disks_of_folders() {
        let place = tempfile::tempdir().expect("temporary folder");
        let disk = |folder: &str, rate: f64| Disk {
            folder: folder.into(),
            read_bytes_per_s: rate,
            write_bytes_per_s: 2.0 * rate,
            ..Disk::default()
        };
        let own = place.path().display().to_string();
        let disks = vec![disk("/proc", 1.0), disk(&own, f64::from(8 << 20))];
        let calibration = Calibration { disks, ..Calibration::default() };
        let inner = place.path().join("bench");
        std::fs::create_dir(&inner).expect("mkdir");
        assert_eq!(disk_in(&calibration, &inner), Ok(Calibrated { read_mib_s: 8.0, write_mib_s: 16.0 }));
        assert!(disk_in(&calibration, Path::new("/sys")).is_err_and(|e| e.contains("--data")));
    }

    /// Goal: this machine's memory and disk are measured, and nothing is left in the folder. Method: short measurements
    /// in a folder of their own.
    #[test]
    fn a_machine_is_measured() {
        let place = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR").to_owned() + "/../../target").expect("a folder");
        let long = Duration::from_millis(20);
        let disk = disk::measure(place.path(), long).map_err(|e| e.text).expect("a disk");
        for rate in [disk.read_bytes_per_s, disk.write_bytes_per_s, disk.small_reads_per_s, disk.small_writes_per_s] {
            assert!(rate > 0.0 && rate.is_finite(), "{disk:?}");
        }
        assert!(disk.sync_us > 0.0 && memory::copy_bytes_per_s(long) > 1e7 && memory::machine_bytes() > 1 << 20);
        assert_eq!(std::fs::read_dir(place.path()).expect("a folder").count(), 0);
    }
}
