//! Counters of files that this mount has closed and forgotten, so that people can look at them when a program has
//! ended.
//!
//! Owns: the counters of the last this many files. Does not own: counting (`file`), nor when a file is forgotten
//! (`files::table`).
//!
//! Invariants: bounded; the files that were forgotten longest ago go first. A file that is known again continues with
//! its counters from before, so each file has one set of counters at a time.

use super::FileStats;
use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Files of each of two generations, about half a KiB each.
const GENERATION_MAX: usize = 512;

#[derive(Default)]
struct Generations {
    young: BTreeMap<Ino, Arc<FileStats>>,
    old: BTreeMap<Ino, Arc<FileStats>>,
}

/// Counters of files that are not known any more.
#[derive(Default)]
pub(crate) struct ClosedFiles(Mutex<Generations>);

impl ClosedFiles {
    /// Called when the file is forgotten. Its counters, if there are any, stay for a while.
    pub(crate) fn keep(&self, ino: Ino, stats: &Arc<FileStats>) {
        if stats.is_empty() {
            return;
        }
        let mut kept = self.0.lock();
        if kept.young.len() >= GENERATION_MAX {
            kept.old = std::mem::take(&mut kept.young);
        }
        kept.young.insert(ino, stats.clone());
        assert!(kept.young.len() <= GENERATION_MAX, "the counters of {} closed files", kept.young.len());
    }

    /// The file is in the table again: returns its earlier counters, and removes them here.
    pub(crate) fn take(&self, ino: Ino) -> Option<Arc<FileStats>> {
        let mut kept = self.0.lock();
        // Most files that enter the table were never closed on this mount.
        if kept.young.is_empty() && kept.old.is_empty() {
            return None;
        }
        let old = kept.old.remove(&ino);
        kept.young.remove(&ino).or(old)
    }

    /// Returns the counters of a file that is not in the table.
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<FileStats>> {
        let kept = self.0.lock();
        kept.young.get(&ino).or_else(|| kept.old.get(&ino)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::stats::FileEvent;

    fn counted() -> Arc<FileStats> {
        let stats = Arc::new(FileStats::new());
        stats.count(FileEvent::Call);
        stats
    }

    /// Goal: counters outlive their file, continue when it enters the table again, and are bounded. Method: more files
    /// than there is space for.
    #[test]
    fn counters_of_closed_files() {
        let closed = ClosedFiles::default();
        closed.keep(Ino(1), &Arc::new(FileStats::new()));
        assert!(closed.get(Ino(1)).is_none(), "nothing was counted");
        let stats = counted();
        closed.keep(Ino(1), &stats);
        assert!(closed.get(Ino(1)).is_some_and(|s| Arc::ptr_eq(&s, &stats)));
        assert!(closed.take(Ino(1)).is_some_and(|s| Arc::ptr_eq(&s, &stats)));
        assert!(closed.get(Ino(1)).is_none());
        let all = 3 * GENERATION_MAX as u64;
        (0..all).for_each(|i| closed.keep(Ino(100 + i), &counted()));
        let kept = (0..all).filter(|i| closed.get(Ino(100 + i)).is_some()).count();
        assert!((GENERATION_MAX..=2 * GENERATION_MAX).contains(&kept), "{kept}");
        assert!(closed.get(Ino(100 + all - 1)).is_some() && closed.get(Ino(100)).is_none());
    }
}
