//! `cores`: a worker that polls and the threads that wait for it use different cores.
//!
//! The scheduler wakes a thread where it slept or where its waker runs, and leaves it there as long as no core is overloaded. On
//! few cores a reader of the kernel's requests so comes to lie beside the worker that it asks, while the program that asked sleeps
//! on another core: each hand-over is then a switch, and each answer wakes a core. Once it is so it stays so for seconds.
//! Two cores, 1,936 files and directories unpacked through a mount: 1.24 s free, 1.08 s apart; deleted 0.39 and 0.30 s (docs/EXPERIMENTS.md).
//!
//! Owns: which cores workers of this process keep (`Keep`), and threads that stay away from them (`Apart`). Does not own: who is
//! told to do so.
//!
//! Invariants: one core at least stays free of workers that keep theirs. While somebody with much work of his own is on a core that
//! we poll on, nothing is kept and nothing avoided: the scheduler moves who it has to (a busy loop on one of two cores: 1.3 s free,
//! 2.1 s apart). Who changes the affinity of a thread from outside is obeyed from then on.

use super::monotonic;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the workers and readers of a process tell each other.
#[derive(Debug)]
struct Cores {
    /// Those below 64 that workers keep.
    kept: AtomicU64,
    /// Where a worker should go instead of the core that it keeps: that core and the new one, each plus 1, in 16 bits; 0 for none.
    wish: AtomicU32,
    /// Until when all is left to the scheduler, nanoseconds of `monotonic`; 0 for not.
    crowded_until: AtomicU64,
}

/// This process.
static CORES: Cores = Cores::new();

/// Rounds with progress after which a worker keeps the core it is on: some ten requests.
const SETTLED: u32 = 64;
/// How long all is left to the scheduler after others needed a core.
const CROWDED: Duration = Duration::from_secs(5);
/// A worker that slept longer lets the scheduler choose again.
const LONG_SLEEP: Duration = Duration::from_millis(5);

/// Requests with a short wait after which their threads stay away from kept cores.
const WAITS: u32 = 16;
/// More requests in a row that waited for nobody, and they use all again.
const OTHERS: u32 = 15;
/// So many short waits a long one makes up for.
const LONG_COSTS: u32 = 4;
/// A request that took less did not wait for another thread.
const SHORT_NS: u64 = 20_000;
/// A request that took longer waited for more than a disk, or moved many bytes.
const LONG_NS: u64 = 1_000_000;

/// Somebody with work of his own stays on a core that we poll on.
pub(super) fn crowded() {
    CORES.crowd();
}

impl Cores {
    const fn new() -> Cores {
        Cores { kept: AtomicU64::new(0), wish: AtomicU32::new(0), crowded_until: AtomicU64::new(0) }
    }

    fn crowd(&self) {
        self.crowded_until.store(monotonic().0 + CROWDED.as_nanos() as u64, Ordering::Relaxed);
    }

    /// A look at the clock only while it matters.
    fn is_crowded(&self) -> bool {
        let until = self.crowded_until.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        let still = monotonic().0 < until;
        if !still {
            let _ = self.crowded_until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        still
    }

    /// Whoever keeps core `from` should go to `to`.
    fn ask(&self, from: usize, to: usize) {
        self.wish.store(((from as u32 + 1) << 16) | (to as u32 + 1), Ordering::Relaxed);
    }

    /// Where whoever keeps core `from` should go; told once.
    fn asked(&self, from: usize) -> Option<usize> {
        let wish = self.wish.load(Ordering::Relaxed);
        if wish == 0 || wish >> 16 != from as u32 + 1 {
            return None;
        }
        self.wish.store(0, Ordering::Relaxed);
        (wish & 0xffff).checked_sub(1).map(|to| to as usize)
    }
}

/// The core that a thread of any process ran on last, as proc(5) says.
fn core_of(tid: u32) -> Option<usize> {
    let text = std::fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    // The name, in brackets, may hold anything. Behind it the state is the third field, the core the 39th.
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(39 - 3)?.parse().ok()
}

/// Requests between two looks at where the caller is: 5 us each.
const LOOK_AFTER: u32 = 32;
/// So many looks in a row find a caller on a worker's core until they change places.
const BESIDE_MAX: u32 = 3;

fn bit(core: usize) -> u64 {
    if core < 64 { 1 << core } else { 0 }
}

/// Of the first 64 cores, those of a set.
fn low(set: &CpuSet) -> u64 {
    (0..64).filter(|&core| set.is_set(core)).map(bit).sum()
}

fn narrowed(from: &CpuSet, keep: impl Fn(usize) -> bool) -> CpuSet {
    let mut set = CpuSet::new();
    (0..CpuSet::MAX_CPU).filter(|&core| from.is_set(core) && keep(core)).for_each(|core| set.set(core));
    set
}

/// An affinity that this thread has given itself, and the one from before.
#[derive(Debug)]
struct Narrow {
    before: CpuSet,
    now: CpuSet,
}

impl Narrow {
    /// `None`: nothing was changed.
    fn to(before: CpuSet, now: CpuSet) -> Option<Narrow> {
        sched_setaffinity(None, &now).ok().map(|()| Narrow { before, now })
    }

    /// Takes it back, unless somebody else has changed it meanwhile.
    fn undo(self) {
        if sched_getaffinity(None).is_ok_and(|set| set == self.now) {
            let _ = sched_setaffinity(None, &self.before);
        }
    }
}

/// A worker's core: kept once the worker has been at work there for a while.
#[derive(Debug)]
pub(super) struct Keep {
    cores: &'static Cores,
    /// Rounds with progress still to go.
    to_go: u32,
    kept: Option<(usize, Narrow)>,
}

impl Keep {
    /// One that keeps none yet.
    pub(super) fn new() -> Keep {
        Keep::of(&CORES)
    }

    fn of(cores: &'static Cores) -> Keep {
        Keep { cores, to_go: SETTLED, kept: None }
    }

    /// The worker has done something.
    pub(super) fn progress(&mut self) {
        if let Some((core, _)) = self.kept {
            if self.cores.is_crowded() {
                self.let_go();
            } else if let Some(to) = self.cores.asked(core) {
                self.go(to);
            }
            return;
        }
        self.to_go -= 1;
        if self.to_go == 0 {
            self.to_go = SETTLED;
            if !self.cores.is_crowded() {
                self.take(sched_getcpu());
            }
        }
    }

    /// Changes the core that it keeps.
    fn go(&mut self, to: usize) {
        self.let_go();
        self.take(to);
    }

    fn take(&mut self, core: usize) {
        let Ok(before) = sched_getaffinity(None) else { return };
        let mine = bit(core);
        // Two workers at once may both find the last core that is free: then neither takes it.
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

    /// Whether it keeps one.
    pub(super) fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// The worker slept from `since` to `now`.
    pub(super) fn slept(&mut self, since: Instant, now: Instant) {
        if now.saturating_duration_since(since) > LONG_SLEEP {
            self.let_go();
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

/// Whether requests of late mostly waited for another thread, for short times; shared by the threads that serve them.
#[derive(Debug, Default)]
pub struct Waits {
    score: AtomicU32,
    /// Requests in a row that waited for nobody.
    others: AtomicU32,
}

impl Waits {
    /// A request was served in so many nanoseconds. Counts may get lost between threads.
    fn served(&self, took_ns: u64) {
        let score = self.score.load(Ordering::Relaxed);
        let (next, others) = if took_ns < SHORT_NS {
            let others = self.others.load(Ordering::Relaxed) + 1;
            (if others > OTHERS { 0 } else { score }, others.min(OTHERS))
        } else if took_ns <= LONG_NS {
            ((score + 1).min(WAITS * 2), 0)
        } else {
            (score.saturating_sub(LONG_COSTS), 0)
        };
        if next != score {
            self.score.store(next, Ordering::Relaxed);
        }
        self.others.store(others, Ordering::Relaxed);
    }

    fn are_many(&self) -> bool {
        self.score.load(Ordering::Relaxed) >= WAITS
    }
}

/// A thread that serves requests, and stays away from the cores of workers while it mostly waits for them, for short times.
#[derive(Debug)]
pub struct Apart {
    cores: &'static Cores,
    waits: Arc<Waits>,
    /// Requests since the last look at where the caller is.
    unseen: u32,
    /// Looks in a row that found the caller on a kept core.
    beside: u32,
    /// The cores that were kept when this was last looked at; 0 while all are used.
    avoided: u64,
    narrow: Option<Narrow>,
}

impl Apart {
    /// One that uses all cores until `waits` are many.
    pub fn new(waits: Arc<Waits>) -> Apart {
        Apart::of(&CORES, waits)
    }

    fn of(cores: &'static Cores, waits: Arc<Waits>) -> Apart {
        Apart { cores, waits, unseen: 0, beside: 0, avoided: 0, narrow: None }
    }

    /// This thread has served a request of thread `tid` in so many nanoseconds.
    pub fn served(&mut self, tid: u32, took_ns: u64) {
        self.waits.served(took_ns);
        let many = self.waits.are_many() && !self.cores.is_crowded();
        let avoid = if many { self.cores.kept.load(Ordering::Relaxed) } else { 0 };
        if avoid != self.avoided {
            self.avoid(avoid);
        }
        self.unseen += 1;
        if self.narrow.is_some() && self.unseen >= LOOK_AFTER {
            self.unseen = 0;
            self.look(tid);
        }
    }

    /// A caller who sits beside a worker makes it change places with this thread: it is this one that wakes the caller.
    fn look(&mut self, tid: u32) {
        let Some(core) = core_of(tid) else { return };
        self.beside = if bit(core) & self.avoided == 0 { 0 } else { self.beside + 1 };
        if self.beside >= BESIDE_MAX {
            self.beside = 0;
            self.cores.ask(core, sched_getcpu());
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

    /// Goal: a worker that settles keeps its core, as long as another is left; a reader that waits for it leaves that core, and
    /// comes back when it waits no more; they change places when the caller sits beside the worker; who sleeps long, or finds others on
    /// the core, lets go. Method: both on threads of their own, with the real affinity; on a machine with one core nothing may change.
    #[test]
    fn workers_and_readers_part() {
        static HERE: Cores = Cores::new();
        let all = sched_getaffinity(None).expect("an affinity");
        let now = || sched_getaffinity(None).expect("an affinity");
        let mut keep = Keep::of(&HERE);
        let settle = |keep: &mut Keep| (0..SETTLED).for_each(|_| keep.progress());
        settle(&mut keep);
        assert_eq!(keep.is_kept(), low(&all).count_ones() > 1);
        if !keep.is_kept() {
            assert!(now() == all);
            return;
        }
        let kept = low(&now());
        assert_eq!((kept.count_ones(), kept), (1, HERE.kept.load(Ordering::Relaxed)));
        let caller = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let reader = std::thread::Builder::new().spawn(move || {
            let before = now();
            // The thread was started by one that is bound.
            sched_setaffinity(None, &all).expect("allowed");
            let waits = Arc::new(Waits::default());
            let mut apart = Apart::of(&HERE, waits.clone());
            (1..WAITS).for_each(|_| waits.served(SHORT_NS));
            apart.served(caller, SHORT_NS - 1);
            assert!(now() == all, "not yet");
            apart.served(caller, SHORT_NS);
            assert_eq!(low(&now()), low(&all) & !kept, "away from the worker");
            (0..OTHERS).for_each(|_| apart.served(caller, SHORT_NS - 1));
            assert!(now() != all, "others in between");
            (0..OTHERS + 1).for_each(|_| apart.served(caller, SHORT_NS - 1));
            assert!(now() == all, "quick requests wait for nobody");
            (0..WAITS).for_each(|_| apart.served(caller, LONG_NS));
            assert!(now() != all);
            apart.served(caller, LONG_NS + 1);
            assert!(now() == all, "a long one");
            // The caller is the bound thread that waits for this one.
            (0..WAITS + LOOK_AFTER * BESIDE_MAX).for_each(|_| apart.served(caller, SHORT_NS));
            assert!(HERE.wish.load(Ordering::Relaxed) != 0, "they should change places");
            // Somebody else's choice stays.
            sched_setaffinity(None, &before).expect("allowed");
            apart.served(caller, LONG_NS + 1);
            assert!(now() == before);
        });
        reader.expect("a thread").join().expect("parts");
        keep.progress();
        assert_eq!(low(&now()), HERE.kept.load(Ordering::Relaxed));
        assert!(low(&now()) & kept == 0 && keep.is_kept(), "it went where the reader was");
        let begin = super::super::spin::clock();
        keep.slept(begin, begin + LONG_SLEEP);
        assert!(keep.is_kept(), "a short sleep");
        keep.slept(begin, begin + LONG_SLEEP * 2);
        assert!(!keep.is_kept() && now() == all && HERE.kept.load(Ordering::Relaxed) == 0);
        settle(&mut keep);
        assert!(keep.is_kept(), "again");
        HERE.crowd();
        (0..2).for_each(|_| settle(&mut keep));
        assert!(!keep.is_kept() && now() == all, "others need it");
        HERE.crowded_until.store(1, Ordering::Relaxed);
        settle(&mut keep);
        assert!(keep.is_kept(), "they are gone");
        drop(keep);
        assert!(now() == all && HERE.kept.load(Ordering::Relaxed) == 0);
    }

    /// Goal: where a thread runs is read whatever its name. Method: this thread, bound, with brackets in its name.
    #[test]
    fn a_thread_is_found() {
        let find = || {
            let core = sched_getcpu();
            let all = sched_getaffinity(None).expect("an affinity");
            sched_setaffinity(None, &narrowed(&all, |c| c == core)).expect("allowed");
            assert_eq!(core_of(rustix::thread::gettid().as_raw_nonzero().get() as u32), Some(core));
        };
        let thread = std::thread::Builder::new().name("a) R (b".into()).spawn(find);
        thread.expect("a thread").join().expect("found");
        assert_eq!(core_of(0), None);
    }
}
