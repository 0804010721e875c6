//! `Polling`: whether a reader looks for the next request for a while before it sleeps.
//!
//! To wake a sleeping core takes 30 to 40 us, more than the whole of a call that the cache answers: a program that
//! reads 4 KiB at a time waits three times as long for a reader that sleeps between two calls as for one that polls.
//! Calls that take longer themselves gain little, and what works for them in the background (connections, servers)
//! needs the core: with polling behind every request, writes of 16 MiB through a socket lost a fifth on two cores. So a
//! reader polls only behind a request that it has answered quickly, and the less often the more often that was in vain.
//!
//! Owns: that rule. Does not own: who needs the core (`Spin`), the device.

use amphi_client::Spin;
use std::time::Duration;

/// A request that took longer than a core takes to wake is not followed by polling, nanoseconds.
const QUICK_NS: u64 = 30_000;
/// Behind many polls in vain only one in this many quick requests is followed by polling.
const ONE_IN_MAX: u32 = 64;

/// One reader's polling.
#[derive(Debug)]
pub(super) struct Polling {
    spin: Spin,
    /// The last request was answered quickly.
    quick: bool,
    /// One in so many quick requests is followed by polling.
    one_in: u32,
    /// So many more are not.
    skip: u32,
}

impl Polling {
    pub(super) fn new() -> Polling {
        Polling { spin: Spin::new(), quick: false, one_in: 1, skip: 0 }
    }

    /// A request was handled in so many nanoseconds.
    pub(super) fn served(&mut self, took_ns: u64) {
        self.quick = took_ns <= QUICK_NS;
    }

    /// Whether to poll before the thread sleeps.
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

    /// Whether to look once more; a true answer has given the core away once.
    pub(super) fn goes_on(&mut self, budget: Duration) -> bool {
        self.spin.turn(budget)
    }

    /// Polling has ended; `found`: with a request.
    pub(super) fn ends(&mut self, found: bool) {
        self.spin.progress();
        self.one_in = if found { 1 } else { (self.one_in * 2).min(ONE_IN_MAX) };
        self.skip = self.one_in - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only quick requests are followed by polling, each by one; polls in vain become rare, one that finds
    /// something brings them back. Method: requests by hand.
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
