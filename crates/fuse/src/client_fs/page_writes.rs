//! `PageWrites`: which pages of mappings the kernel is writing back.
//!
//! syncfs(2) has the kernel send what programs have stored through mappings, and returns before the answers, and does not tell the file
//! system; whoever makes everything stable behind it has to wait for them.
//!
//! Owns: counting them. Does not own: what becomes of them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The kernel sends the next ones as soon as some are answered: after so long without any there are none.
const QUIET: Duration = Duration::from_millis(5);
const LOOK: Duration = Duration::from_millis(1);
/// Programs that go on storing are not waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes of pages under way.
#[derive(Default)]
pub struct PageWrites {
    under_way: AtomicUsize,
    begun: AtomicU64,
}

/// One of them, until it is dropped.
pub struct PageWrite<'a>(&'a PageWrites);

impl Drop for PageWrite<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, SeqCst);
    }
}

impl PageWrites {
    /// A write of pages begins.
    pub fn begin(&self) -> PageWrite<'_> {
        self.under_way.fetch_add(1, SeqCst);
        self.begun.fetch_add(1, SeqCst);
        PageWrite(self)
    }

    /// Waits until those that the kernel has been asked for have been taken in.
    #[expect(clippy::disallowed_methods, reason = "a thread of the mount that serves nothing else meanwhile")]
    pub fn settle(&self) {
        let (since, mut quiet) = (Instant::now(), Instant::now());
        let mut seen = self.begun.load(SeqCst);
        while quiet.elapsed() < QUIET && since.elapsed() < PATIENCE {
            std::thread::sleep(LOOK);
            let begun = self.begun.load(SeqCst);
            if begun != seen || self.under_way.load(SeqCst) > 0 {
                (seen, quiet) = (begun, Instant::now());
            }
        }
    }
}
