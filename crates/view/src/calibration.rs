//! The highest rates that a machine can reach, as `amphi calibrate` has measured them.
//!
//! Owns: the shape of a calibration, when it counts. Does not own: measuring, which rates it limits (`limits`).
//!
//! A calibration counts on the machine where it was made, for `FRESH_DAYS`; its disks and servers count for the cluster
//! that was measured. No limit is shown for anything that was not measured.

use serde::{Deserialize, Serialize};

/// How long a calibration counts, days: disks age, and machines are changed.
pub const FRESH_DAYS: u64 = 30;
/// The schema of the file.
pub const SCHEMA: &str = "amphi.calibration/1";

/// The machine that was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Machine {
    /// The name of the machine.
    pub host: String,
    /// Cores that the process might use.
    pub cores: u64,
    /// The memory of the machine, bytes.
    pub memory_bytes: u64,
}

/// A folder of zones that was measured, with requests past the kernel's cache.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Disk {
    /// The folder.
    pub folder: String,
    /// Reads of 1 MiB, one behind the other in the file, bytes a second.
    pub read_bytes_per_s: f64,
    /// Writes of 1 MiB.
    pub write_bytes_per_s: f64,
    /// Reads of 4 KiB at random, a second.
    pub small_reads_per_s: f64,
    /// Writes of 4 KiB at random, a second.
    pub small_writes_per_s: f64,
    /// Time of a write of 4 KiB and the sync after it, us.
    pub sync_us: f64,
}

/// A server that was measured.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct ServerLink {
    /// The name of the server.
    pub server: String,
    /// The address of the server.
    pub address: String,
    /// Time of a small request and its answer, us.
    pub round_trip_us: f64,
    /// Questions and answers a second, many at a time.
    pub messages_per_s: f64,
    /// Payload sent to the server, bytes a second.
    pub stream_bytes_per_s: f64,
}

/// The results that `amphi calibrate` has measured.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Calibration {
    /// The schema of this record.
    pub schema: String,
    /// When the measurement was made, for people: date and time, UTC.
    pub date: String,
    /// When the measurement was made, seconds since 1970.
    pub unix_s: u64,
    /// The version of the program.
    pub version: String,
    /// The machine.
    pub machine: Machine,
    /// The location of the measured cluster: the folder of `amphi up`, or addresses of servers; empty if no cluster was
    /// measured.
    pub source: String,
    /// Copies of memory that is in no cache, by one core, bytes a second.
    pub copy_bytes_per_s: f64,
    /// Folders.
    pub disks: Vec<Disk>,
    /// Servers.
    pub servers: Vec<ServerLink>,
}

/// The program and the machine that request a calibration.
#[derive(Clone, Debug, Default)]
pub struct Asker<'a> {
    /// The machine.
    pub host: &'a str,
    /// Cores that the process may use.
    pub cores: u64,
    /// The time, seconds since 1970.
    pub unix_s: u64,
    /// The location of the mounted cluster.
    pub source: &'a str,
}

/// The limits that count for a mount; 0: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    pub(crate) copy_bytes: f64,
    pub(crate) disk_read_bytes: f64,
    pub(crate) disk_write_bytes: f64,
    pub(crate) disk_reads: f64,
    pub(crate) disk_writes: f64,
    pub(crate) messages: f64,
    pub(crate) stream_bytes: f64,
}

impl Calibration {
    /// The limits of the asker.
    ///
    /// Errors: why the calibration does not count there, as a sentence.
    pub fn limits(&self, asker: &Asker<'_>) -> Result<Limits, String> {
        let again = "`amphi calibrate` measures anew";
        if self.schema != SCHEMA {
            return Err(format!("the calibration is of another version of AmphiFS; {again}"));
        }
        if self.machine.host != asker.host || self.machine.cores != asker.cores {
            let Machine { host, cores, .. } = &self.machine;
            return Err(format!("the calibration is of {host} with {cores} cores, not of this machine; {again}"));
        }
        let days = asker.unix_s.saturating_sub(self.unix_s) / 86_400;
        if days >= FRESH_DAYS {
            return Err(format!("the calibration is {days} days old and does not count any more; {again}"));
        }
        let mut limits = Limits { copy_bytes: self.copy_bytes_per_s, ..Limits::default() };
        if !self.source.is_empty() && self.source == asker.source {
            let disks = |of: fn(&Disk) -> f64| self.disks.iter().map(of).sum();
            limits.disk_read_bytes = disks(|disk| disk.read_bytes_per_s);
            limits.disk_write_bytes = disks(|disk| disk.write_bytes_per_s);
            limits.disk_reads = disks(|disk| disk.small_reads_per_s);
            limits.disk_writes = disks(|disk| disk.small_writes_per_s);
            limits.messages = self.servers.iter().map(|server| server.messages_per_s).sum();
            limits.stream_bytes = self.servers.iter().map(|server| server.stream_bytes_per_s).sum();
        }
        Ok(limits)
    }
}
