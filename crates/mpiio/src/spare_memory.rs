//! The amount of memory that the node can spare for a cache when a file is opened.
//!
//! Owns: only this rule. The ranks of a file together take at most a quarter of the memory that is available to the
//! node and to the control group of this process, so that several files may be open and the program has the rest.

use std::path::Path;

/// The part of the available memory that one file may take.
const PART: u64 = 4;

/// The bound of each of `ranks` ranks when `limit` was requested.
pub fn limit(limit: u64, ranks: u32) -> u64 {
    let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let available = [available(&read("/proc/meminfo")), spare_of_group(&group)];
    bounded(limit, ranks, available.into_iter().flatten().min())
}

fn bounded(limit: u64, ranks: u32, available: Option<u64>) -> u64 {
    available.map_or(limit, |bytes| limit.min(bytes / PART / u64::from(ranks.max(1))))
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// `MemAvailable` in bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// The memory that the process's control group (version 2) and the groups above it leave; `None` if they set no limit.
fn spare_of_group(groups: &str) -> Option<u64> {
    let group = groups.lines().find_map(|l| l.strip_prefix("0::"))?;
    let root = Path::new("/sys/fs/cgroup");
    let path = root.join(group.trim_start_matches('/'));
    let bound = |folder: &Path| {
        let most: u64 = read(folder.join("memory.max")).trim().parse().ok()?;
        let used: u64 = read(folder.join("memory.current")).trim().parse().ok()?;
        Some(most.saturating_sub(used))
    };
    path.ancestors().take_while(|folder| folder.starts_with(root)).filter_map(bound).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a small node gets a smaller cache, and a large one the requested size. Method: numbers.
    #[test]
    fn the_bound_follows_the_memory() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:    2048 kB\nBuffers: 1 kB\n"), Some(2 << 20));
        assert_eq!(available("nothing"), None);
        assert_eq!(bounded(64 << 20, 4, Some(64 << 30)), 64 << 20);
        assert_eq!(bounded(64 << 20, 4, Some(512 << 20)), 32 << 20);
        assert_eq!(bounded(64 << 20, 4, None), 64 << 20);
        assert!(limit(1 << 20, 1) <= 1 << 20);
    }
}
