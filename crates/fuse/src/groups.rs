//! `GroupCache`: supplementary groups of callers, which FUSE requests do not carry.
//!
//! Owns: a bounded cache of `/proc/<tid>/status` lines. Invariant: an entry is at most `LIFE` old, so a process
//! that changes its groups is seen within that time. The number behind the cache: reading the file costs about 12 us, as
//! much as a whole request.

use amphi_types::limits;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long groups of a thread are believed.
pub const LIFE: Duration = Duration::from_secs(1);
/// Most threads remembered; the table is emptied when it is full.
const ENTRIES_MAX: usize = 4096;

/// Supplementary groups by thread id.
#[derive(Default)]
pub struct GroupCache {
    entries: Mutex<BTreeMap<u32, (u64, Vec<u32>)>>,
}

impl GroupCache {
    /// The groups of thread `tid`; none if they cannot be read (the caller is gone or in another namespace).
    pub fn groups(&self, tid: u32) -> Vec<u32> {
        if tid == 0 {
            return Vec::new();
        }
        let now_ns = crate::session::monotonic_ns();
        let mut entries = self.entries.lock();
        if let Some((read_ns, groups)) = entries.get(&tid)
            && now_ns.saturating_sub(*read_ns) < LIFE.as_nanos() as u64
        {
            return groups.clone();
        }
        drop(entries);
        let groups = std::fs::read(format!("/proc/{tid}/status")).map(|s| parse_status(&s)).unwrap_or_default();
        entries = self.entries.lock();
        if entries.len() >= ENTRIES_MAX {
            entries.clear();
        }
        entries.insert(tid, (now_ns, groups.clone()));
        groups
    }
}

fn parse_status(status: &[u8]) -> Vec<u32> {
    let text = String::from_utf8_lossy(status);
    let line = text.lines().find_map(|l| l.strip_prefix("Groups:")).unwrap_or("");
    line.split_ascii_whitespace().filter_map(|g| g.parse().ok()).take(limits::GROUPS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the line is found and odd content harms nothing. Method: examples.
    #[test]
    fn status_lines() {
        assert_eq!(parse_status(b"Name:\tx\nGroups:\t4 24 1000 \nNSpid: 1\n"), vec![4, 24, 1000]);
        assert_eq!(parse_status(b"Groups:\tx 1\n"), vec![1]);
        assert_eq!(parse_status(b"\xff\xfe"), Vec::<u32>::new());
    }
}
