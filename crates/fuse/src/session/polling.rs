//! `Polling`: whether a reader thread polls for the next request for a while before it sleeps.
//!
//! Waking a sleeping core takes 30 to 40 us, longer than a whole call that the cache serves. A program that reads 4 KiB
//! at a time waits three times as long if the reader thread sleeps between two calls as if it polls. Longer calls gain
//! little, and the work for them in the background (connections, servers) needs the core. With polling after every
//! request, writes of 16 MiB through a socket lost a fifth on two cores. So a reader thread polls only after a request
//! that it has answered quickly, and less often the more often it has polled without a result.
//!
//! Owns: this rule. Does not own: which other work needs the core (`Spin`), the device.

use amphi_client::Spin;
use std::time::Duration;

/// Polling does not follow a request that took longer than this, which is about the time to wake a core.
const QUICK_NS: u64 = 30_000;
/// However often polling has had no result, at least one in this many quick requests is followed by polling.
const ONE_IN_MAX: u32 = 64;

/// The polling of one reader thread.
#[derive(Debug)]
pub(super) struct Polling {
    spin: Spin,
    /// The last request was answered quickly.
    quick: bool,
    /// Polling follows one in this many quick requests.
    one_in: u32,
    /// Number of further quick requests that are not followed by polling.
    skip: u32,
}

impl Polling {
    pub(super) fn new() -> Polling {
        Polling { spin: Spin::new(), quick: false, one_in: 1, skip: 0 }
    }

    /// Notes that a request was handled in `took_ns` nanoseconds.
    pub(super) fn served(&mut self, took_ns: u64) {
        self.quick = took_ns <= QUICK_NS;
    }

    /// Returns whether to poll before the thread sleeps.
    pub(super) fn begins(&mut self) -> bool {
        if !std::mem::take(&mut self.quick) {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.spin.progress();
        true
    }

    /// Returns whether to poll once more. Before it returns true, it has yielded the core once.
    pub(super) fn goes_on(&mut self, budget: Duration) -> bool {
        self.spin.turn(budget)
    }

    /// Notes the end of polling. `found`: a request came.
    pub(super) fn ends(&mut self, found: bool) {
        self.spin.progress();
        self.one_in = if found { 1 } else { (self.one_in * 2).min(ONE_IN_MAX) };
        self.skip = self.one_in - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the thread polls only after quick requests, once for each. If polling finds nothing it becomes rarer, and
    /// when it finds a request it becomes more frequent again. Method: requests at times that the test chooses.
    #[test]
    fn polls_where_it_pays() {
        let mut p = Polling::new();
        assert!(!p.begins(), "nothing was served");
        p.served(QUICK_NS + 1);
        assert!(!p.begins(), "slow");
        p.served(QUICK_NS);
        assert!(p.begins());
        assert!(!p.begins(), "once");
        let mut until_next = |found: bool| {
            p.ends(found);
            (1..1000).find(|_| {
                p.served(1000);
                p.begins()
            })
        };
        let rarer: Vec<_> = (0..8).map(|_| until_next(false)).collect();
        assert_eq!(rarer, [2, 4, 8, 16, 32, 64, 64, 64].map(Some));
        assert_eq!(until_next(true), Some(1));
    }
}
