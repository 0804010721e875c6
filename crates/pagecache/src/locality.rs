//! `Locality`: whether the bytes of a file that enter the cache are used again.
//!
//! Owns: the counts and the rule, for each file. Does not own: when pages are cached and dropped, and the decision that
//! follows from the rule (buffered or direct, which the client makes).
//!
//! A file lacks locality if too few of the pages of the last window were used again before they left the cache. Too few
//! means fewer than one in 16, or more if direct requests were measured to be so much faster that this reuse does not
//! compensate for it. From then on nearly nothing is brought into the cache, so nearly nothing leaves. The return of
//! locality is detected by *probes*: requests that use the cache although the verdict is "direct", and whose pages are
//! counted as soon as they are used again. At least as many pages as a window of requests brings in decide, and a
//! quarter must be used again. Pages of probes stay in the cache only because direct requests evict nothing. So their
//! use counts only if it happens before as many bytes as the cache holds have been transferred, buffered or direct;
//! later use does not count. A direct request brings no pages into the cache. So requests that go direct for contention
//! or memory change no verdict, and cost no probe.
//!
//! The same is counted over all files of the mount, with a window four times as large. A file of which nothing is known
//! yet begins with that verdict. Otherwise, in a stream of files larger than the cache, each file would have to prove
//! again what all earlier files have proved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Fewest pages of probes that decide.
const SAMPLE_MIN_PAGES: u64 = 16;

/// If fewer than one page in this many is used again, there is no reuse.
const REUSE_FRACTION: u64 = 16;

/// Of the pages of probes, one in this many must be used again.
const COMES_BACK: u64 = 4;

/// The window of the mount, in windows of a file.
const MOUNT_WINDOWS: u64 = 4;

/// The parameters of the rule, from the tunables.
#[derive(Clone, Copy, Debug)]
pub struct LocalityRule {
    /// Window: pages over which reuse is measured.
    pub window_pages: u64,
    /// One request in this many is a probe.
    pub probe: u64,
    /// Pages that the cache holds.
    pub cache_pages: u64,
}

/// The counts of one file, or of all files of a mount.
#[derive(Debug, Default)]
pub struct Locality {
    /// The counts of all files, if this is for one file.
    of_mount: Option<Arc<Locality>>,
    /// Whether the rule was applied before.
    asked: AtomicBool,
    /// Pages that left the cache since the last verdict, and how many of them had been used again.
    left: AtomicU64,
    reused: AtomicU64,
    lacking: AtomicBool,
    /// Requests that went direct since the last probe.
    since_probe: AtomicU64,
    /// While the file lacks locality: pages that entered the cache, and pages that were used again.
    brought: AtomicU64,
    again: AtomicU64,
    /// For all files: pages that were added to the cache, or not added for lack of locality, and how many pages it
    /// holds.
    passed: AtomicU64,
    cache_pages: AtomicU64,
    /// For all files: bytes that were written into the cache recently, and how many of them were read.
    wrote_bytes: AtomicU64,
    read_back_bytes: AtomicU64,
}

/// After this many written bytes both counts are halved.
const WROTE_BYTES: u64 = 1 << 30;
/// With fewer written bytes no verdict is possible.
const WROTE_MIN_BYTES: u64 = 64 << 20;

/// When a page entered the cache, as the number of pages that had passed by then. `UNTOLD`: not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Came(u64);

const UNTOLD: Came = Came(u64::MAX);

impl Locality {
    /// The counts for a file of a mount.
    pub fn of_file(mount: &Arc<Locality>) -> Locality {
        Locality { of_mount: Some(mount.clone()), ..Locality::default() }
    }

    /// Notes that pages have left the cache.
    pub fn leave(&self, pages: u64, reused: bool) {
        if let Some(mount) = &self.of_mount {
            mount.leave(pages, reused);
        }
        self.left.fetch_add(pages, Relaxed);
        if reused {
            self.reused.fetch_add(pages, Relaxed);
        }
    }

    /// Returns whether the last verdict was that there is no locality.
    #[inline]
    pub fn is_lacking(&self) -> bool {
        self.lacking.load(Relaxed)
    }

    /// The present moment, for a page that enters the cache now.
    #[inline]
    pub fn comes(&self) -> Came {
        match &self.of_mount {
            Some(mount) if self.is_lacking() || mount.is_lacking() => Came(mount.passed.load(Relaxed)),
            _ => UNTOLD,
        }
    }

    /// Returns true if a page that is used again would still be cached if all requests since the page arrived had been
    /// cached. Returns false if that was not recorded.
    #[inline]
    pub fn is_recent(&self, came: Came) -> bool {
        let Some(mount) = self.of_mount.as_ref().filter(|_| came != UNTOLD) else { return false };
        mount.passed.load(Relaxed).saturating_sub(came.0) <= mount.cache_pages.load(Relaxed)
    }

    /// Notes that pages have come into the cache.
    #[inline]
    pub fn bring(&self, pages: u64) {
        if let Some(mount) = &self.of_mount {
            mount.passed.fetch_add(pages, Relaxed);
            mount.bring(pages);
        }
        if self.is_lacking() {
            self.brought.fetch_add(pages, Relaxed);
        }
    }

    /// Notes that pages were used a second time.
    pub fn use_again(&self, pages: u64) {
        if let Some(mount) = &self.of_mount {
            mount.use_again(pages);
        }
        if self.is_lacking() {
            self.again.fetch_add(pages, Relaxed);
        }
    }

    /// Notes that bytes were written into the cache.
    #[inline]
    pub fn write(&self, bytes: u64) {
        let Some(mount) = &self.of_mount else { return };
        if mount.wrote_bytes.fetch_add(bytes, Relaxed) + bytes >= WROTE_BYTES {
            // If two threads come here at once, both halve the counts; only the ratio matters.
            for count in [&mount.wrote_bytes, &mount.read_back_bytes] {
                count.store(count.load(Relaxed) / 2, Relaxed);
            }
        }
    }

    /// Notes that bytes were read that had been written into the cache.
    #[inline]
    pub fn read_back(&self, bytes: u64) {
        if let Some(mount) = &self.of_mount {
            mount.read_back_bytes.fetch_add(bytes, Relaxed);
        }
    }

    /// Returns true if data written through this mount is not read back from the cache: less than one byte in 16 of the
    /// recently written ones, if enough was written to tell.
    pub fn is_not_read_back(&self) -> bool {
        let Some(mount) = &self.of_mount else { return false };
        let (wrote, read) = (mount.wrote_bytes.load(Relaxed), mount.read_back_bytes.load(Relaxed));
        wrote >= WROTE_MIN_BYTES && read.saturating_mul(REUSE_FRACTION) < wrote
    }

    /// Returns whether the next request should go direct: there is no locality, and the request is no probe.
    pub fn speaks_for_direct(&self, rule: LocalityRule, least: impl Fn() -> u64) -> bool {
        self.lacks(rule, least) && self.since_probe.load(Relaxed) + 1 < rule.probe
    }

    /// Returns whether there is no locality. `least` returns the share of pages, in 1024ths, that must be used again so
    /// that the cache pays, in addition to the rule. The function is called when there is enough to decide.
    pub fn lacks(&self, rule: LocalityRule, least: impl Fn() -> u64) -> bool {
        if let Some(mount) = &self.of_mount {
            mount.cache_pages.store(rule.cache_pages, Relaxed);
            mount.judge(LocalityRule { window_pages: rule.window_pages.saturating_mul(MOUNT_WINDOWS), ..rule }, &least);
            let first = !self.asked.load(Relaxed) && !self.asked.swap(true, Relaxed);
            if first && mount.is_lacking() {
                self.decide(true);
            }
        }
        self.judge(rule, &least);
        self.is_lacking()
    }

    /// Notes that a request for this many pages was direct for lack of locality.
    pub fn went_direct(&self, pages: u64) {
        if let Some(mount) = &self.of_mount {
            mount.passed.fetch_add(pages, Relaxed);
        }
        self.since_probe.fetch_add(1, Relaxed);
    }

    /// Notes that a request within the window of sizes went through the cache.
    pub fn went_buffered(&self) {
        if self.is_lacking() {
            self.since_probe.store(0, Relaxed);
        }
    }

    fn judge(&self, rule: LocalityRule, least: &impl Fn() -> u64) {
        let pays = |fraction: u64, again: u64, pages: u64| {
            again.saturating_mul(fraction) >= pages
                && u128::from(again) * 1024 >= u128::from(pages) * u128::from(least())
        };
        let left = self.left.load(Relaxed);
        if left >= rule.window_pages {
            let reused = self.reused.swap(0, Relaxed);
            self.left.store(0, Relaxed);
            // While there is no locality, the pages that are evicted were cached before it was lost, or by probes.
            self.decide(self.is_lacking() || !pays(REUSE_FRACTION, reused, left));
        }
        let sample = (rule.window_pages / rule.probe.max(1)).max(SAMPLE_MIN_PAGES);
        let brought = self.brought.load(Relaxed);
        if self.is_lacking() && brought >= sample {
            let again = self.again.load(Relaxed);
            if pays(REUSE_FRACTION.min(COMES_BACK), again, brought) {
                self.decide(false);
            } else if brought >= rule.window_pages.max(2 * sample) {
                // The counts are reduced, not reset, because reuse takes time to show.
                let less = |count: &AtomicU64, by: u64| {
                    // Another thread may have reset the counts.
                    let _ = count.fetch_update(Relaxed, Relaxed, |now| Some(now.saturating_sub(by)));
                };
                less(&self.brought, brought / 2);
                less(&self.again, again / 2);
            }
        }
    }

    fn decide(&self, lacking: bool) {
        if self.lacking.swap(lacking, Relaxed) != lacking {
            for count in [&self.since_probe, &self.brought, &self.again, &self.left, &self.reused] {
                count.store(0, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: LocalityRule = LocalityRule { window_pages: 1024, probe: 8, cache_pages: 1000 };

    /// The value if both ways are equally fast.
    fn none() -> u64 {
        0
    }

    /// Goal: the rule reports whether written bytes are read back, not before there are enough of them, and anew when
    /// that changes. Method: two files of a mount.
    #[test]
    fn what_is_read_back() {
        const M: u64 = 1 << 20;
        let mount = Arc::new(Locality::default());
        let [a, b] = [(); 2].map(|()| Locality::of_file(&mount));
        a.write(63 * M);
        assert!(!a.is_not_read_back(), "too little");
        b.write(M);
        assert!(a.is_not_read_back());
        b.read_back(4 * M);
        assert!(!a.is_not_read_back(), "one byte in 16");
        (0..100).for_each(|_| a.write(20 * M));
        assert!(b.is_not_read_back(), "that was long ago");
    }

    /// Goal: where direct requests have the higher throughput, correspondingly more reuse is required for buffering, of
    /// windows and of probes. Method: a quarter of the pages is used again, and the required share is set below and
    /// above that.
    #[test]
    fn what_reuse_has_to_make_up_for() {
        for (least, lacks) in [(0, false), (256, false), (257, true), (512, true)] {
            let l = Locality::default();
            l.leave(768, false);
            l.leave(256, true);
            assert_eq!(l.speaks_for_direct(RULE, || least), lacks, "{least}");
            l.decide(true);
            l.bring(128);
            l.use_again(32);
            assert_eq!(l.speaks_for_direct(RULE, || least), lacks, "probes, {least}");
        }
    }

    /// Goal: a file begins with the verdict about all files, unless that is switched off; a file that shows reuse gets
    /// its own verdict, and so does a mount whose files show reuse. Method: one file after the other.
    #[test]
    fn files_begin_with_the_verdict_on_the_mount() {
        let mount = Arc::new(Locality::default());
        let first = Locality::of_file(&mount);
        assert!(!first.speaks_for_direct(RULE, none));
        for _ in 0..4 {
            first.leave(1024, false);
            assert!(first.speaks_for_direct(RULE, none), "a window of its own");
        }
        let third = Locality::of_file(&mount);
        assert!(third.speaks_for_direct(RULE, none), "nothing is known of it but what left before");
        third.bring(256);
        third.use_again(63);
        assert!(third.speaks_for_direct(RULE, none), "less than a quarter");
        third.use_again(1);
        assert!(!third.speaks_for_direct(RULE, none), "believed");
        let fourth = Locality::of_file(&mount);
        assert!(fourth.speaks_for_direct(RULE, none), "not yet enough for a window of the mount");
        for _ in 0..4 {
            fourth.bring(256);
            fourth.use_again(256);
        }
        assert!(!fourth.speaks_for_direct(RULE, none));
        assert!(!Locality::of_file(&mount).speaks_for_direct(RULE, none), "the mount has come back");
    }

    /// Goal: the verdict is made over a window and follows the share of reuse; one request in `probe` is a probe,
    /// whatever other requests are direct in between. Method: pages at both sides of the share, then requests.
    #[test]
    fn verdicts_and_probes() {
        let l = Locality::default();
        l.leave(1023, false);
        assert!(!l.speaks_for_direct(RULE, none), "not a window yet");
        let l = Locality::default();
        l.leave(960, false);
        l.leave(64, true);
        assert!(!l.speaks_for_direct(RULE, none), "one page in 16 was used again");
        l.leave(961, false);
        l.leave(63, true);
        assert!(l.speaks_for_direct(RULE, none));
        l.leave(1024, true);
        assert!(l.speaks_for_direct(RULE, none), "what came before");
        for round in 0..3 {
            for _ in 0..7 {
                assert!(
                    l.speaks_for_direct(RULE, none) && l.speaks_for_direct(RULE, none),
                    "asking costs no probe, {round}"
                );
                l.went_direct(16);
            }
            assert!(!l.speaks_for_direct(RULE, none), "the eighth");
            l.went_buffered();
        }
    }

    /// Goal: pages count as used again only if the cache would still contain them. Method: a page is cached with and
    /// without the time being recorded, then others are cached or bypass the cache.
    #[test]
    fn what_the_cache_would_not_hold_is_no_reuse() {
        let mount = Arc::new(Locality::default());
        let file = Locality::of_file(&mount);
        assert!(!file.is_recent(file.comes()), "nobody wants to know");
        file.leave(1024, false);
        assert!(file.speaks_for_direct(RULE, none));
        let came = file.comes();
        file.bring(400);
        Locality::of_file(&mount).went_direct(600);
        assert!(file.is_recent(came));
        file.went_direct(1);
        assert!(!file.is_recent(came) && file.is_recent(file.comes()));
    }

    /// Goal: reuse that returns is noticed although nothing leaves the cache; without reuse the verdict stays. Method:
    /// probes that bring pages in, used again or not.
    #[test]
    fn reuse_comes_back() {
        let l = Locality::default();
        l.bring(5);
        l.leave(1024, false);
        assert!(l.speaks_for_direct(RULE, none));
        for _ in 0..100 {
            l.bring(16);
            assert!(l.speaks_for_direct(RULE, none));
        }
        assert!(l.brought.load(Relaxed) <= 1024 + 16, "old probes are forgotten");
        l.use_again(128);
        assert!(l.speaks_for_direct(RULE, none), "a stream found what was left of another");
        l.use_again(128);
        assert!(!l.speaks_for_direct(RULE, none), "a quarter");
        assert!(!l.is_lacking());
        l.leave(1024, false);
        assert!(l.speaks_for_direct(RULE, none), "and the next window may say otherwise");
    }
}
