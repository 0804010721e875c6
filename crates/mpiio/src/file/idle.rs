//! Writing out pages that are no longer written, while the job computes.
//!
//! Owns the choice of the pages and the thread that searches for them, on one rank of each node. Pages that were
//! written early need not be written at close, are seen by readers outside the job, and survive the end of the job.
//! Only free locks are taken, so a rank waits at most as long as one run is written, and the thread never waits for a
//! rank.
//!
//! The unit is the run, so that writes are long. A run is due in two cases: no page of it was written since the last
//! check and its dirty pages are dirty as a whole; or no page of it was written for `OLD_LOOKS` checks. So a page that
//! fills up slowly is not written repeatedly. Bound: each check writes each page at most once.

use super::CachedFile;
use super::group::WATCH;
use crate::error::{Error, Outcome};
use crate::locks::Mode;
use crate::segment::NO_PAGE;
use crate::stats::Stats;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// After this many checks without a write, a page that is dirty in parts is written, too. With a check every second,
/// this is as long as Linux keeps dirty pages.
const OLD_LOOKS: u32 = 30;

/// After a failure this many checks are omitted, so that a failing write is not repeated every second. The close
/// reports the failure.
const FAILURE_LOOKS: u32 = 30;

/// The state of a frame at the last check: its page, its count of writes, and for how many checks neither has changed.
#[derive(Debug, Default)]
pub struct Seen(BTreeMap<u32, (u64, u32, u32)>);

impl CachedFile {
    /// One check: writes the runs that are due, as far as their locks are free.
    pub fn flush_idle(&mut self, seen: &mut Seen) -> Outcome {
        self.usable()?;
        let segment = self.segment();
        let run_pages = self.settings.run_bytes / self.page_bytes();
        let mut now = BTreeMap::new();
        let mut runs: BTreeMap<u64, Vec<(u64, u32)>> = BTreeMap::new();
        let mut age_of_run: BTreeMap<u64, u32> = BTreeMap::new();
        for frame in segment.used_frames().filter(|frame| segment.looks_dirty(*frame)) {
            let (page, changes) = (segment.page_of(frame), segment.changes(frame).load(Relaxed));
            if page == NO_PAGE {
                continue;
            }
            let age = match seen.0.get(&frame) {
                Some((old, count, age)) if (*old, *count) == (page, changes) => age + 1,
                _ => 0,
            };
            now.insert(frame, (page, changes, age));
            runs.entry(page / run_pages).or_default().push((page, frame));
            let least = age_of_run.entry(page / run_pages).or_insert(age);
            *least = age.min(*least);
        }
        seen.0 = now;
        for (run, mut pages) in runs {
            let age = age_of_run.get(&run).copied().unwrap_or(0);
            if age > 0 {
                pages.sort_unstable();
                self.flush_idle_run(&pages, age >= OLD_LOOKS)?;
            }
        }
        Ok(())
    }

    fn flush_idle_run(&mut self, pages: &[(u64, u32)], in_parts: bool) -> Outcome {
        let whole = self.page_bytes() as u32;
        let (mut locked, mut due) = (Vec::new(), true);
        for (page, frame) in pages {
            if !self.locks.try_lock(*page)? {
                due = false;
                break;
            }
            locked.push(*page);
            let here = self.frame_of(*page)? == Some(*frame);
            let spans = if here { self.segment().dirty(*frame).as_slice().to_vec() } else { Vec::new() };
            due &= here && !spans.is_empty() && (in_parts || spans.iter().all(|s| (s.start, s.end) == (0, whole)));
            self.locks.pace.point();
        }
        let result = if due { self.write_dirty(pages) } else { Ok(()) };
        self.stats.idle_pages += if due && result.is_ok() { pages.len() as u64 } else { 0 };
        for page in locked {
            self.locks.unlock(page, Mode::Exclusive)?;
        }
        result
    }
}

/// The thread of a node that looks.
pub struct Looker {
    stats: Arc<Mutex<Stats>>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Looker {
    /// Looks every `pause` from now on, through a file that acts as a rank of the node.
    pub fn start(file: CachedFile, pause: Duration) -> Outcome<Looker> {
        let stats = Arc::new(Mutex::new(Stats::default()));
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (shown, stopping) = (stats.clone(), stop.clone());
        let thread = Builder::new()
            .name("amphi-mpiio".into())
            .spawn(move || look(file, &shown, &stopping, pause))
            .map_err(|e| Error::Os { doing: "start a thread", errno: e.raw_os_error().unwrap_or(libc::EAGAIN) })?;
        Ok(Looker { stats, stop, thread: Some(thread) })
    }

    /// The counters of the checks that have ended.
    pub fn stats(&self) -> Stats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the thread after the check that is under way.
    pub fn stop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        self.stop();
    }
}

fn look(mut file: CachedFile, shown: &Mutex<Stats>, (stop, wake): &(Mutex<bool>, Condvar), pause: Duration) {
    let mut seen = Seen::default();
    let (mut looks, mut since, mut waited_for) = (1, Duration::ZERO, 0);
    let watches = file.watches();
    loop {
        let step = if watches { WATCH.min(pause * looks) } else { pause * looks };
        let asleep = stop.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = wake.wait_timeout_while(asleep, step, |stop| !*stop);
        if *waited.unwrap_or_else(PoisonError::into_inner).0 {
            return;
        }
        if watches {
            // A failure is left to the next flush.
            let _ = file.yield_group(&mut waited_for);
            *shown.lock().unwrap_or_else(PoisonError::into_inner) = file.stats();
        }
        since += step;
        if since < pause * looks {
            continue;
        }
        since = Duration::ZERO;
        looks = if file.flush_idle(&mut seen).is_ok() { 1 } else { FAILURE_LOOKS };
        *shown.lock().unwrap_or_else(PoisonError::into_inner) = file.stats();
    }
}
