//! `CallerMemory`: whether the memory cgroups of the calling processes are short of memory.
//!
//! Owns: which callers were seen lately, and whether their cgroups are short. Does not own: reading cgroups
//! (`amphi_env::memory_groups`), and the consequences of the result (`decision`).
//!
//! A program's written bytes are buffered in the memory of the mount's process, not in the program's. Still the
//! program's own cgroup matters. The program's own cgroup matters nevertheless. So its bytes should be safe on the
//! servers soon, rather than wait for write-back.
//!
//! Invariants: a request reads no file. It looks up its caller, or notes it, and uses the last result. The I/O half
//! checks `LOOKS_MAX` callers at a time. Caller 0 is in another process name space and stays unknown. The knowledge
//! about a caller is at most `LIFE_NS` and one tick old (a tick is `writeback.age_ms` / 4, at most 1 s). If a process
//! id was reused, the new process is treated according to the cgroup of the old one for no longer than that.

use amphi_env::memory_groups::{self, Trees};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Most callers that are remembered at a time. Further callers are not checked until some have ended.
const CALLERS_MAX: usize = 1024;
/// Callers whose cgroups are read in one tick, at about 10 us each.
const LOOKS_MAX: usize = 64;
/// A caller without requests for this long is forgotten. The path of a caller's cgroup is read again after the same
/// time.
const LIFE_NS: u64 = 5_000_000_000;
/// Precision of `asked_ns`: writing it with each request would make its cache line move between processors.
const EXACT_NS: u64 = 100_000_000;

struct Seen {
    /// Time of the caller's last request.
    asked_ns: AtomicU64,
    short: AtomicBool,
    /// The caller's cgroups as `/proc` shows them, and when that was read. `None`: not read yet.
    groups: Option<(u64, String)>,
}

/// Callers by their process or thread ids.
#[derive(Default)]
pub(crate) struct CallerMemory {
    seen: RwLock<BTreeMap<u32, Seen>>,
    short: AtomicUsize,
}

impl CallerMemory {
    /// Returns whether the cgroups of `pid` were found short of memory. Notes the caller for the next look.
    pub(crate) fn is_short(&self, pid: u32, now_ns: u64) -> bool {
        if pid == 0 {
            return false;
        }
        if let Some(seen) = self.seen.read().get(&pid) {
            if now_ns.saturating_sub(seen.asked_ns.load(Relaxed)) > EXACT_NS {
                seen.asked_ns.store(now_ns, Relaxed);
            }
            return seen.short.load(Relaxed);
        }
        let mut seen = self.seen.write();
        if seen.len() < CALLERS_MAX {
            let new = || Seen { asked_ns: AtomicU64::new(now_ns), short: AtomicBool::new(false), groups: None };
            seen.entry(pid).or_insert_with(new);
        }
        false
    }

    /// Number of callers whose cgroups are short.
    pub(crate) fn short_callers(&self) -> usize {
        self.short.load(Relaxed)
    }

    /// Forgets all callers.
    pub(crate) fn clear(&self) {
        if !self.seen.read().is_empty() {
            self.seen.write().clear();
            self.short.store(0, Relaxed);
        }
    }

    /// Reads the cgroups of callers that have sent requests. Returns for how many callers this was done.
    pub(crate) fn look(
        &self,
        read: &dyn Fn(&str) -> Option<String>,
        trees: &Trees,
        percent: u64,
        now_ns: u64,
    ) -> usize {
        let lately = |at: u64| now_ns.saturating_sub(at) < LIFE_NS;
        let due: Vec<u32> = {
            let mut seen = self.seen.write();
            seen.retain(|_, s| lately(s.asked_ns.load(Relaxed)));
            let mut due: Vec<(u64, u32)> = seen
                .iter()
                .map(|(pid, s)| (s.groups.as_ref().map_or(0, |g| g.0), *pid))
                .filter(|(read_ns, _)| *read_ns == 0 || !lately(*read_ns))
                .collect();
            due.sort_unstable();
            due.into_iter().take(LOOKS_MAX).map(|(_, pid)| pid).collect()
        };
        // Files are read outside the lock.
        let found: Vec<_> = due.iter().map(|pid| (*pid, memory_groups::groups_of(read, *pid))).collect();
        {
            let mut seen = self.seen.write();
            for (pid, groups) in found {
                match groups {
                    Some(text) => {
                        if let Some(s) = seen.get_mut(&pid) {
                            s.groups = Some((now_ns.max(1), text));
                        }
                    }
                    None => drop(seen.remove(&pid)),
                }
            }
        }
        let mut groups: BTreeMap<String, bool> = BTreeMap::new();
        for s in self.seen.read().values() {
            if let Some((_, text)) = &s.groups
                && groups.len() < LOOKS_MAX
            {
                groups.entry(text.clone()).or_default();
            }
        }
        for (text, short) in &mut groups {
            *short = trees.is_short(read, text, percent);
        }
        let mut count = 0;
        for s in self.seen.read().values() {
            let short = s.groups.as_ref().and_then(|(_, text)| groups.get(text)).copied().unwrap_or(false);
            s.short.store(short, Relaxed);
            count += usize::from(short);
        }
        self.short.store(count, Relaxed);
        due.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Goal: callers are judged by their memory groups. Files are read only in `look`, once for each group. Callers
    /// that have ended are dropped, and so is the earlier owner of a reused process number. Method: imitated files that
    /// count how often they are read.
    #[test]
    fn callers_are_judged_by_their_groups() {
        let (used, reads, moved) = (RefCell::new("100\n"), RefCell::new(Vec::new()), RefCell::new(false));
        let read = |path: &str| {
            reads.borrow_mut().push(path.to_string());
            match path {
                "/proc/7/cgroup" if *moved.borrow() => Some("0::/free\n".into()),
                "/proc/7/cgroup" | "/proc/8/cgroup" => Some("0::/job\n".into()),
                "/proc/9/cgroup" => Some("0::/\n".into()),
                "/sys/fs/cgroup/job/memory.max" => Some("1000\n".into()),
                "/sys/fs/cgroup/job/memory.current" => Some(used.borrow().to_string()),
                _ => None,
            }
        };
        let (callers, trees) = (CallerMemory::default(), Trees::find(&|_| None));
        let all = |now_ns| [0, 7, 8, 9, 10].map(|pid| callers.is_short(pid, now_ns));
        assert_eq!(all(1), [false; 5]);
        assert!(reads.borrow().is_empty());
        assert_eq!(callers.look(&read, &trees, 95, 2), 4);
        let usage = |reads: &[String]| reads.iter().filter(|p| p.ends_with("memory.current")).count();
        assert_eq!(usage(&reads.borrow()), 1, "one group: {reads:?}");
        *used.borrow_mut() = "950\n";
        assert_eq!(callers.look(&read, &trees, 95, 3), 0, "groups are known");
        assert_eq!(all(4), [false, true, true, false, false]);
        assert_eq!(callers.short_callers(), 2);
        assert_eq!(callers.look(&read, &trees, 95, 5), 1, "10 has gone and is asked for again");
        *moved.borrow_mut() = true;
        assert!(all(LIFE_NS)[1], "believed for a while");
        callers.look(&read, &trees, 95, LIFE_NS + 3);
        assert_eq!(all(LIFE_NS + 4), [false, false, true, false, false], "7 is somebody else now");
        callers.look(&read, &trees, 95, 3 * LIFE_NS);
        assert!(callers.seen.read().is_empty() && callers.short_callers() == 0, "nobody asked lately");
    }

    /// Goal: the table is bounded, and so is the work of one check. Method: more callers than the table can remember.
    #[test]
    fn bounds_hold() {
        let (callers, trees) = (CallerMemory::default(), Trees::find(&|_| None));
        for pid in 1..3 * CALLERS_MAX as u32 {
            assert!(!callers.is_short(pid, 1));
        }
        assert_eq!(callers.seen.read().len(), CALLERS_MAX);
        let group = |path: &str| path.starts_with("/proc/").then(|| "0::/job\n".to_string());
        for _ in 0..CALLERS_MAX / LOOKS_MAX {
            assert_eq!(callers.look(&group, &trees, 95, 2), LOOKS_MAX, "the next ones each time");
        }
        assert_eq!(callers.look(&group, &trees, 95, 2), 0);
    }
}
