//! `Spin`: whether a thread that has nothing to do continues looking or sleeps.
//!
//! Owns: the budget since the last progress, and the rule that no thread polls while others need the core. Does not
//! own: what is checked between two turns, and how to sleep.
//!
//! Invariant: in each turn the thread yields its core once, because the thread that has to answer may wait for this
//! very core. (On two cores a round trip then takes 8 us instead of 105.) If it gets the core back late, another thread
//! has used the core. Polling then costs that thread time, and costs this thread the priority that a sleeping thread
//! has when it wakes. So the thread does not poll for a while; this pause doubles while turns continue to be late, and
//! becomes short again after a calm period. The kernel's own threads delay turns as well, one of them for 0.75 ms twice
//! a second. When only a second of calm ended the pauses, polling was off for seconds. If a few turns come back a
//! little late and nothing has arrived for this thread, the other threads at work are not those that answer it. The
//! thread then sleeps until it is woken, which costs less on a busy core than the context switches of polling. At most
//! as many threads of the process poll at a time as there are cores.
//!
//! Numbers (two cores, a tree unpacked through a mount): polling 200 us instead of 50 or not at all takes 5.1 s instead
//! of 9.3 on an idle machine, and made a create beside a compiler on each core take 2,500 us instead of 210 without
//! this rule. With four mounts and their server at work on two cores, sleeping after a few turns that other threads
//! used makes writes 8 % faster.

use crate::Load;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The number of threads that poll at present.
static SPINNING: AtomicUsize = AtomicUsize::new(0);

fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// A turn that takes longer was lost to another process: more than a hand-over to a thread that answers us, less than
/// the scheduler's slice.
const LATE: Duration = Duration::from_micros(700);
/// A turn that takes longer was used by another thread, perhaps by the one that has to answer.
const TAKEN: Duration = Duration::from_micros(10);
/// After this many such turns without a message, other threads need the cores, and the answer will wake this thread.
const TAKEN_MAX: u32 = 3;
/// First pause after a late turn.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A pause is forgotten, and the next one is short again, if no turn was late for this many times its length.
const CALM_TIMES: u32 = 8;

/// The weight of one turn in `BusyTurns`: 1 in this many.
const TURN_SHARE: u32 = 64;
/// The value of the average when all turns found work.
const TURNS_ALL: u32 = 1 << 16;

/// How many of a thread's last turns found work waiting. A thread that answers one request after the other sleeps, or
/// polls without result, between two of them. A thread that always finds the next request is the one for which others
/// wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct BusyTurns(u32);

impl BusyTurns {
    /// The state of the load after one more turn.
    pub fn after(self, found_work: bool) -> BusyTurns {
        let gain = if found_work { TURNS_ALL / TURN_SHARE } else { 0 };
        BusyTurns(self.0 - self.0 / TURN_SHARE + gain)
    }

    /// The load of the thread's environment.
    pub fn load(self) -> Load {
        let percent = (self.0 * 100).div_ceil(TURNS_ALL).min(100);
        Load { busy_percent: percent as u8, cores: cores().min(usize::from(u16::MAX)) as u16 }
    }
}

/// The polling of one thread.
#[derive(Debug, Default)]
pub struct Spin {
    until: Option<Instant>,
    paused_until: Option<Instant>,
    pause: Duration,
    counted: bool,
    /// Turns since the last progress that others used.
    taken: u32,
}

impl Drop for Spin {
    fn drop(&mut self) {
        self.stop();
    }
}

#[expect(clippy::disallowed_methods, reason = "the production clock")]
pub(super) fn clock() -> Instant {
    Instant::now()
}

impl Spin {
    /// A state in which no budget is used and no other thread has been noticed.
    pub fn new() -> Spin {
        Spin::default()
    }

    /// Called after progress: the budget starts anew with the next turn.
    pub fn progress(&mut self) {
        if self.until.take().is_some() {
            self.stop();
        }
        self.taken = 0;
    }

    fn start(&mut self) -> bool {
        self.counted = SPINNING.fetch_add(1, Ordering::Relaxed) < cores();
        if !self.counted {
            SPINNING.fetch_sub(1, Ordering::Relaxed);
        }
        self.counted
    }

    fn stop(&mut self) {
        if std::mem::take(&mut self.counted) {
            SPINNING.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns whether to check again at once; if not, the thread should sleep. If it returns true, it has yielded the
    /// core once.
    pub fn turn(&mut self, budget: Duration) -> bool {
        if budget.is_zero() {
            return false;
        }
        let now = clock();
        if self.paused_until.is_some_and(|end| now < end) {
            self.stop();
            return false;
        }
        match self.until {
            Some(end) if now >= end || !self.counted || self.taken >= TAKEN_MAX => {
                self.stop();
                return false;
            }
            Some(_) => {}
            None => {
                // A budget beyond the clock's range never ends.
                self.until = Some(now.checked_add(budget).unwrap_or_else(|| now + Duration::from_secs(1 << 32)));
                if !self.start() {
                    return false;
                }
            }
        }
        std::thread::yield_now();
        self.judge(now, clock());
        true
    }

    /// Takes a turn's begin and end into account.
    fn judge(&mut self, begin: Instant, end: Instant) {
        let passed = end.saturating_duration_since(begin);
        self.taken += u32::from(passed >= TAKEN);
        if passed < LATE {
            return;
        }
        let calm = (self.pause * CALM_TIMES).min(PAUSE_MAX);
        if self.paused_until.is_some_and(|p| begin.saturating_duration_since(p) > calm) {
            self.pause = Duration::ZERO;
        }
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.paused_until = Some(end + self.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a thread that always finds work is busy, one that answers a request at a time is not, and both are found
    /// out within some hundred turns. Method: some hundred turns, of which all, every second one or none find work.
    #[test]
    fn turns_that_find_work_make_a_thread_busy() {
        let after = |turns: BusyTurns, found: &dyn Fn(u32) -> bool| (0..400).fold(turns, |t, n| t.after(found(n)));
        let busy = after(BusyTurns::default(), &|_| true);
        let in_turn = after(busy, &|n| n % 2 == 0);
        let idle = after(in_turn, &|_| false);
        assert_eq!(BusyTurns::default().load().busy_percent, 0);
        assert!(busy.load().busy_percent >= 99, "{busy:?}");
        assert!((45..56).contains(&in_turn.load().busy_percent), "{in_turn:?}");
        assert!(idle.load().busy_percent <= 1 && idle.load().cores > 0, "{idle:?}");
    }

    /// Goal: a budget is spent once, and is there again after progress; a budget of zero permits no polling. Method:
    /// turns against the clock.
    #[test]
    fn a_budget_is_spent_and_renewed() {
        let mut spin = Spin::new();
        assert!(!spin.turn(Duration::ZERO));
        let budget = Duration::from_millis(2);
        while spin.turn(budget) {}
        assert!(!spin.turn(budget));
        // Other tests may poll on every core.
        let mut again = false;
        for _ in 0..1000 {
            spin.progress();
            spin.paused_until = None;
            again |= spin.turn(budget);
        }
        assert!(again);
    }

    /// Goal: late turns stop the polling, for longer and longer pauses while they follow each other. A single late turn
    /// from time to time, caused for instance by a kernel thread that works twice a second, costs a short pause each
    /// time. Method: judged times.
    #[test]
    fn late_turns_pause() {
        let mut spin = Spin::new();
        let begin = clock();
        spin.judge(begin, begin + LATE / 2);
        assert_eq!(spin.paused_until, None);
        let mut at = begin;
        for expected in [PAUSE_MIN, PAUSE_MIN * 2, PAUSE_MIN * 4] {
            let end = at + LATE;
            spin.judge(at, end);
            assert_eq!((spin.pause, spin.paused_until), (expected, Some(end + expected)));
            at = end + expected * CALM_TIMES;
        }
        assert!(!spin.turn(Duration::from_secs(1)), "paused");
        for _ in 0..9 {
            at = spin.paused_until.expect("a pause") + spin.pause * (CALM_TIMES + 1);
            spin.judge(at, at + LATE / 2);
            spin.judge(at, at + LATE);
            assert_eq!((spin.pause, spin.paused_until), (PAUSE_MIN, Some(at + LATE + PAUSE_MIN)));
        }
        for _ in 0..9 {
            at = spin.paused_until.expect("a pause");
            spin.judge(at, at + LATE);
        }
        assert_eq!(spin.pause, PAUSE_MAX);
        at = spin.paused_until.expect("a pause") + PAUSE_MAX + LATE;
        spin.judge(at, at + LATE);
        assert_eq!(spin.pause, PAUSE_MIN, "never longer than the longest pause");
    }
}
