//! `Machine`: on what, when and how a run was made: the parameters of its record.

use super::clock;
use amphi_host::idle::Idle;
use serde::Serialize;
use std::path::Path;

/// Parameters of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Version of this program.
    pub version: &'static str,
    /// Profile of the build: `release`, `dist`, `debug`.
    pub build: &'static str,
    /// UTC, `YYYY-MM-DDThh:mm:ssZ`.
    pub date: String,
    /// Processor.
    pub cpu: String,
    /// Cores that may be used.
    pub cores: usize,
    /// Main memory in bytes.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// The state of its idle cores.
    pub idle: String,
    /// File system of the storage folder.
    pub storage: String,
    /// Rounds of each comparison.
    pub pairs: usize,
    /// Fewer sizes and shorter samples.
    pub quick: bool,
}

impl Machine {
    /// Looks around.
    pub fn look(dir: &Path, pairs: usize, quick: bool) -> Machine {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpu_info = text("/proc/cpuinfo");
        let cpu = cpu_info
            .lines()
            .find_map(|l| l.strip_prefix("model name"))
            .unwrap_or("")
            .trim_start_matches(['\t', ' ', ':']);
        let mem_info = text("/proc/meminfo");
        let memory = mem_info.lines().find_map(|l| l.strip_prefix("MemTotal:")).unwrap_or("");
        let memory_kib: u64 = memory.trim().trim_end_matches(" kB").parse().unwrap_or(0);
        Machine {
            version: env!("CARGO_PKG_VERSION"),
            build: env!("AMPHI_PROFILE"),
            date: date(clock::unix_seconds()),
            cpu: cpu.to_string(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_kib << 10,
            kernel: text("/proc/sys/kernel/osrelease").trim().to_string(),
            idle: Idle::look().describe(),
            storage: storage(dir, &text("/proc/self/mounts")),
            pairs,
            quick,
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let Machine { cpu, cores, kernel, idle, storage, pairs, build, .. } = self;
        let memory = amphi_host::size::show(self.memory_bytes);
        format!(
            "{cpu}, {cores} cores, {memory} memory, Linux {kernel}, {idle}, storage on {storage}; {build} build, {pairs} rounds"
        )
    }
}

/// The kind of file system that `dir` lies on: the mount point with the longest common path.
fn storage(dir: &Path, mounts: &str) -> String {
    let dir = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf());
    let rows = mounts.lines().filter_map(|l| {
        let mut fields = l.split(' ');
        let (device, at, kind) = (fields.next()?, fields.next()?, fields.next()?);
        dir.starts_with(at).then(|| (at.len(), format!("{kind} ({device})")))
    });
    rows.max_by_key(|(len, _)| *len).map_or_else(|| "unknown".into(), |(_, text)| text)
}

/// A date of the proleptic Gregorian calendar from seconds since 1970.
pub fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut day) = (1970, days);
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let months = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= months[month] {
        day -= months[month];
        month += 1;
    }
    let (h, m, s) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{:02}-{:02}T{h:02}:{m:02}:{s:02}Z", month + 1, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: dates are right, also across leap years. Method: known moments.
    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    /// Goal: the file system of a folder is that of the deepest mount above it. Method: a made-up table.
    #[test]
    fn deepest_mount_counts() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /no-such/deep tmpfs rw 0 0\n";
        assert_eq!(storage(Path::new("/no-such/deep/er"), mounts), "tmpfs (tmpfs)");
        assert_eq!(storage(Path::new("/no-such"), mounts), "ext4 (/dev/a)");
    }
}
