//! `cores`: a worker that polls and the threads that wait for it use different cores.
//!
//! The scheduler wakes a thread where it slept or where its waker runs, and leaves it there as long as no core is
//! overloaded. So on few cores a reader of the kernel's requests gets onto the core of the worker to which it sends
//! them, while the calling program sleeps on another core. Each hand-over is then a context switch, and each answer
//! wakes a core. The scheduler keeps such a placement for seconds. So while most requests wait only for workers, and
//! only briefly, a worker stays on its core, and readers use other cores.
//!
//! Numbers (two cores, 8,136 names unpacked through a mount and deleted, the three settings in turn, medians of 6):
//! 4.99 s and 1.60 s if the scheduler decides, 3.51 s and 1.08 s by this rule, 3.77 s and 1.17 s with threads that were
//! bound manually. An attempt that also moved threads when the calling program moved was slower than doing nothing, so
//! moves have to be rare.
//!
//! Owns: which cores workers of this process keep (`Keep`), and threads that stay away from them (`Apart`). Does not
//! own: which threads are workers or readers.
//!
//! Invariants: at least one core stays free of workers that keep theirs. Long waits mean that another thread needs a
//! core that a worker keeps. (A busy loop on the core of a bound worker made every request ten times as slow.) Then
//! everything is left to the scheduler for a while. If the affinity of a thread is changed from outside, that setting
//! is used from then on.

use super::monotonic;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The shared state of the workers and readers of a process.
#[derive(Debug)]
struct Cores {
    /// The cores below 64 that workers keep.
    kept: AtomicU64,
    /// How much requests of late waited for workers, for short times. Counts may get lost between threads.
    score: AtomicU32,
    /// Whether most requests wait for such workers.
    waiting: AtomicBool,
    /// The time until which everything is left to the scheduler, nanoseconds of `monotonic`.
    crowded_until: AtomicU64,
}

/// The cores of this process.
static CORES: Cores = Cores::new();

/// Rounds with progress after which a worker keeps the core it is on: some ten requests.
const SETTLED: u32 = 64;
/// How long all is left to the scheduler when waits have become long. Detecting this again takes some tens of requests,
/// which take a few milliseconds each then.
const CROWDED: Duration = Duration::from_secs(5);

/// Score of a request that waited for a worker, for a short time.
const SHORT_WAIT: u32 = 4;
/// The amount by which a request without a wait lowers the score. It is so small that one request without a wait for
/// each waiting request changes nothing.
const NO_WAIT: u32 = 1;
/// The amount by which a long wait lowers the score.
const LONG_WAIT: u32 = 16;
/// The score from which on workers keep their cores.
const MANY: u32 = 128;
/// Highest score. At zero the worker keeps no core any more.
const SCORE_MAX: u32 = 256;
/// A request that took longer waited for more than a log write, or for a core.
const LONG: Duration = Duration::from_millis(1);

impl Cores {
    const fn new() -> Cores {
        Cores {
            kept: AtomicU64::new(0),
            score: AtomicU32::new(0),
            waiting: AtomicBool::new(false),
            crowded_until: AtomicU64::new(0),
        }
    }

    /// Notes that a request was served in this time; `waited`: it waited for another thread.
    fn served(&self, waited: bool, took: Duration) {
        let score = self.score.load(Ordering::Relaxed);
        let long = took > LONG;
        let next = match (waited, long) {
            (_, true) => score.saturating_sub(LONG_WAIT),
            (true, false) => (score + SHORT_WAIT).min(SCORE_MAX),
            (false, false) => score.saturating_sub(NO_WAIT),
        };
        if next != score {
            self.score.store(next, Ordering::Relaxed);
        }
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting && next == 0 {
            self.waiting.store(false, Ordering::Relaxed);
            if long {
                self.crowded_until.store(monotonic().0 + CROWDED.as_nanos() as u64, Ordering::Relaxed);
            }
        } else if !waiting && next >= MANY {
            let begins = monotonic().0 >= self.crowded_until.load(Ordering::Relaxed);
            self.waiting.store(begins, Ordering::Relaxed);
            // The thread decides again after some more requests.
            self.score.store(if begins { next } else { 0 }, Ordering::Relaxed);
        }
    }

    /// Returns whether cores should be kept.
    fn waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }
}

fn bit(core: usize) -> u64 {
    if core < 64 { 1 << core } else { 0 }
}

/// The cores among the first 64 that are in a set.
fn low(set: &CpuSet) -> u64 {
    (0..64).filter(|&core| set.is_set(core)).map(bit).sum()
}

fn narrowed(from: &CpuSet, keep: impl Fn(usize) -> bool) -> CpuSet {
    let mut set = CpuSet::new();
    (0..CpuSet::MAX_CPU).filter(|&core| from.is_set(core) && keep(core)).for_each(|core| set.set(core));
    set
}

/// An affinity that this thread has given itself, and its previous affinity.
#[derive(Debug)]
struct Narrow {
    before: CpuSet,
    now: CpuSet,
}

impl Narrow {
    /// `None`: nothing was changed.
    fn to(before: CpuSet, now: CpuSet) -> Option<Narrow> {
        sched_setaffinity(None, &now).ok()?;
        WIDE.set(Some(before));
        Some(Narrow { before, now })
    }

    /// Restores the previous affinity, unless another thread has changed it meanwhile.
    fn undo(self) {
        WIDE.set(None);
        if sched_getaffinity(None).is_ok_and(|set| set == self.now) {
            let _ = sched_setaffinity(None, &self.before);
        }
    }
}

thread_local! {
    /// The cores that this thread may use when it is not restricted any more.
    static WIDE: Cell<Option<CpuSet>> = const { Cell::new(None) };
}

/// The cores of a thread that has narrowed its own, for a thread that it starts. Otherwise a thread that it starts
/// would begin with the narrow affinity.
#[derive(Clone, Copy, Debug)]
pub struct Wide(Option<CpuSet>);

impl Wide {
    /// The cores that this thread may use.
    pub fn here() -> Wide {
        Wide(WIDE.get())
    }

    /// Gives them to this thread, which was just started.
    pub fn begin(self) {
        if let Some(set) = self.0 {
            let _ = sched_setaffinity(None, &set);
        }
    }
}

/// The core of a worker, which is kept once the worker has worked there for a while.
#[derive(Debug)]
pub(super) struct Keep {
    cores: &'static Cores,
    /// Rounds with progress still to go.
    to_go: u32,
    kept: Option<(usize, Narrow)>,
}

impl Keep {
    /// A state in which no core is kept.
    pub(super) fn new() -> Keep {
        Keep::of(&CORES)
    }

    fn of(cores: &'static Cores) -> Keep {
        Keep { cores, to_go: SETTLED, kept: None }
    }

    /// Called when the worker has done something.
    pub(super) fn progress(&mut self) {
        if !self.cores.waits() {
            if self.kept.is_some() {
                self.let_go();
            }
            self.to_go = SETTLED;
            return;
        }
        if self.kept.is_none() {
            self.to_go -= 1;
            if self.to_go == 0 {
                self.to_go = SETTLED;
                self.take(sched_getcpu());
            }
        }
    }

    fn take(&mut self, core: usize) {
        let Ok(before) = sched_getaffinity(None) else { return };
        let mine = bit(core);
        // If two workers find the last free core at once, neither takes it.
        let others = self.cores.kept.fetch_or(mine, Ordering::AcqRel);
        let taken = others & mine != 0;
        if mine == 0 || taken || !before.is_set(core) || low(&before) & !(self.cores.kept.load(Ordering::Acquire)) == 0
        {
            if !taken {
                self.cores.kept.fetch_and(!mine, Ordering::AcqRel);
            }
            return;
        }
        let one = narrowed(&before, |c| c == core);
        match Narrow::to(before, one) {
            Some(narrow) => self.kept = Some((core, narrow)),
            None => drop(self.cores.kept.fetch_and(!mine, Ordering::AcqRel)),
        }
    }

    fn let_go(&mut self) {
        if let Some((core, narrow)) = self.kept.take() {
            self.cores.kept.fetch_and(!bit(core), Ordering::AcqRel);
            narrow.undo();
        }
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// A thread that serves requests, and stays away from the cores that workers keep.
#[derive(Debug)]
pub struct Apart {
    cores: &'static Cores,
    /// The kept cores when this was last checked; 0 while all are used.
    avoided: u64,
    narrow: Option<Narrow>,
}

impl Default for Apart {
    fn default() -> Apart {
        Apart::new()
    }
}

impl Apart {
    /// A state in which all cores are used.
    pub fn new() -> Apart {
        Apart::of(&CORES)
    }

    fn of(cores: &'static Cores) -> Apart {
        Apart { cores, avoided: 0, narrow: None }
    }

    /// This thread has served a request within this interval. `waited`: it waited for another thread.
    pub fn served(&mut self, waited: bool, took: Duration) {
        self.cores.served(waited, took);
        let avoid = if self.cores.waits() { self.cores.kept.load(Ordering::Relaxed) } else { 0 };
        if avoid != self.avoided {
            self.avoid(avoid);
        }
    }

    fn avoid(&mut self, cores: u64) {
        self.avoided = cores;
        if let Some(narrow) = self.narrow.take() {
            narrow.undo();
        }
        let Ok(before) = sched_getaffinity(None) else { return };
        let rest = narrowed(&before, |core| bit(core) & cores == 0);
        if rest != before && (0..CpuSet::MAX_CPU).any(|core| rest.is_set(core)) {
            self.narrow = Narrow::to(before, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> CpuSet {
        sched_getaffinity(None).expect("an affinity")
    }

    fn short(cores: &Cores, times: u32) {
        (0..times).for_each(|_| cores.served(true, LONG));
    }

    /// Goal: cores are kept once many requests had a short wait, even if as many had none. They are no longer kept when
    /// only requests without a wait come, and for a while after long waits. Method: requests with given waits.
    #[test]
    fn short_waits_keep_cores() {
        let cores = Cores::new();
        short(&cores, MANY / SHORT_WAIT - 1);
        assert!(!cores.waits(), "not many yet");
        short(&cores, 1);
        assert!(cores.waits());
        for _ in 0..SCORE_MAX {
            cores.served(false, Duration::ZERO);
            short(&cores, 1);
        }
        assert!(cores.waits(), "every other waits");
        (0..SCORE_MAX).for_each(|_| cores.served(false, Duration::ZERO));
        assert!(!cores.waits(), "nobody waits");
        short(&cores, MANY);
        assert!(cores.waits(), "again");
        let late = LONG + Duration::from_nanos(1);
        (0..SCORE_MAX / LONG_WAIT).for_each(|_| cores.served(true, late));
        assert!(!cores.waits(), "somebody needs the cores");
        short(&cores, MANY * 4);
        assert!(!cores.waits(), "left to the scheduler for a while");
        cores.crowded_until.store(0, Ordering::Relaxed);
        short(&cores, MANY * 4);
        assert!(cores.waits(), "the while has passed");
    }

    /// Goal: a worker keeps its core as long as requests wait and another core is left. A thread that serves them
    /// leaves it and may return later. Threads that it starts begin with all cores. Settings from outside stay. Method:
    /// both on threads of their own, with the real affinity; on a machine with one core nothing may change.
    #[test]
    fn workers_and_readers_part() {
        static HERE: Cores = Cores::new();
        let all = here();
        let mut keep = Keep::of(&HERE);
        let settle = |keep: &mut Keep| (0..SETTLED).for_each(|_| keep.progress());
        settle(&mut keep);
        assert!(here() == all, "nobody waits");
        short(&HERE, MANY);
        settle(&mut keep);
        if low(&all).count_ones() < 2 {
            assert!(here() == all);
            return;
        }
        let kept = low(&here());
        assert_eq!((kept.count_ones(), kept), (1, HERE.kept.load(Ordering::Relaxed)));
        let wide = Wide::here();
        let reader = move || {
            assert_eq!(low(&here()), kept, "as who started it");
            wide.begin();
            assert!(here() == all);
            let mut apart = Apart::of(&HERE);
            apart.served(true, LONG);
            assert_eq!(low(&here()), low(&all) & !kept, "away from the worker");
            let one = narrowed(&all, |core| bit(core) == kept);
            sched_setaffinity(None, &one).expect("allowed");
            (0..SCORE_MAX).for_each(|_| apart.served(false, Duration::ZERO));
            assert!(here() == one, "somebody else's choice");
            sched_setaffinity(None, &all).expect("allowed");
            (0..MANY).for_each(|_| apart.served(true, LONG));
            assert_eq!(low(&here()), low(&all) & !kept);
            (0..SCORE_MAX).for_each(|_| apart.served(false, Duration::ZERO));
            assert!(here() == all, "nobody waits any more");
        };
        std::thread::Builder::new().spawn(reader).expect("a thread").join().expect("parts");
        keep.progress();
        assert!(here() == all && HERE.kept.load(Ordering::Relaxed) == 0, "let go");
        short(&HERE, MANY);
        settle(&mut keep);
        assert!(low(&here()).count_ones() == 1);
        drop(keep);
        assert!(here() == all && HERE.kept.load(Ordering::Relaxed) == 0);
    }

    /// Goal: one core stays free of workers. Method: workers on all cores but one, then one more.
    #[test]
    fn one_core_stays_free() {
        static HERE: Cores = Cores::new();
        let all = low(&here());
        if all.count_ones() < 2 {
            return;
        }
        short(&HERE, MANY);
        let last = all & all.wrapping_neg();
        HERE.kept.store(all & !last, Ordering::Relaxed);
        let mut keep = Keep::of(&HERE);
        (0..64).filter(|&core| bit(core) & all != 0).for_each(|core| keep.take(core));
        assert!(keep.kept.is_none());
        assert_eq!(HERE.kept.load(Ordering::Relaxed), all & !last);
    }
}
