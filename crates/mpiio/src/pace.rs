//! The wait of a rank for a word of shared memory to change: the seam between the cache and the scheduler.
//!
//! Owns the trait and its production form, the futex. The tests' form (`tests/model`) lets one rank run at a time and
//! chooses the next one by a seed at each `point`. So a run is repeatable and a deadlock is detected at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// After this time without a wake-up, a waiting rank checks whether another rank has ended.
const LOOK_AROUND: Duration = Duration::from_millis(500);

/// How often a rank looks before it sleeps. A page is held for the time of a copy, which is shorter than a sleep.
/// Polling takes one or two microseconds at most.
const LOOKS: u32 = 100;

/// Waiting and waking between ranks.
pub trait Pace: Send + Sync {
    /// Sleeps while the word has this value. The function may return early; it returns false when it gave up after a
    /// while.
    fn wait(&self, word: &AtomicU32, expected: u32) -> bool;
    /// Wakes up to `count` ranks that wait for the word.
    fn wake(&self, word: &AtomicU32, count: u32);
    /// A place at which another rank might run in between.
    fn point(&self);
    /// Seconds of a clock that all ranks of a node have in common and that never goes back.
    fn seconds(&self) -> u32;
    /// The present call holds all of its locks and has done its work: its place in the order of all calls.
    fn committed(&self) {}
}

/// Sleeps while the word has this value; may return early, and returns false when the time is over.
pub fn sleep_on(word: &AtomicU32, expected: u32, time: Duration) -> bool {
    let timeout = libc::timespec { tv_sec: time.as_secs() as libc::time_t, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: the word lives through the call; the operation is not private, since ranks are processes.
    let result = unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &timeout as *const libc::timespec)
    };
    result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}

/// Polls for a moment, then waits in the kernel: a waiting rank costs nothing, however few cores there are.
#[derive(Debug, Default)]
pub struct Futex;

impl Pace for Futex {
    fn wait(&self, word: &AtomicU32, expected: u32) -> bool {
        for _ in 0..LOOKS {
            if word.load(Ordering::SeqCst) != expected {
                return true;
            }
            std::hint::spin_loop();
        }
        sleep_on(word, expected, LOOK_AROUND)
    }

    fn wake(&self, word: &AtomicU32, count: u32) {
        // SAFETY: the kernel only looks at the address.
        unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count);
        }
    }

    fn point(&self) {}

    fn seconds(&self) -> u32 {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structure lives through the call.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
        now.tv_sec as u32
    }
}
