//! Failures of write-back of one file, and to which callers they were reported.
//!
//! Owns: how many failures there were, the latest one, up to which one they were reported, and the ranges that writers
//! watch. Does not own: the lost bytes, which the cache has dropped before the failure is noted here; failures of files
//! that are no longer in the table (`untold`).
//!
//! The rule is that of Linux (`errseq`): a failure is reported once to each open file that was open at that time, and
//! once to the next open file if it was reported to none before. Invariant: the number of reported failures never
//! exceeds the number of failures.
//!
//! Bound: one watch for each write under way.

use super::settling::Settling;
use amphi_types::{ByteRange, Errno, Result};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A range whose write-back a writer watches.
struct Watched {
    id: u64,
    range: ByteRange,
    /// The writer waits, so it will get the failure, whatever it does next.
    waits: bool,
    failed: Option<Errno>,
    /// The first byte of the range that was lost.
    lost_from: u64,
}

/// Failures of a file that some callers have not got yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreported {
    pub(crate) errno: Errno,
    /// No open file has reported it, so the next one does.
    pub(crate) is_owed: bool,
    /// Bytes were lost, and neither an open file nor a caller that syncs all files has reported it.
    pub(crate) is_secret: bool,
}

struct State {
    /// The latest failure that has to be reported to open files.
    last: Errno,
    /// The failure count of the latest failure that has to be reported to open files.
    owed: u64,
    /// The count at the latest failure that lost bytes and is reported to open files, or 0 if no failure did.
    lost: u64,
    /// The latest loss that only the front end reports to open files, and the failure count then, or 0.
    front_end: (Errno, u64),
    /// The count when failures were last reported to a caller that syncs all files.
    told_to_all: u64,
    next_watch: u64,
    watched: SmallVec<[Watched; 4]>,
}

/// Failures of one file.
pub(crate) struct Failures {
    state: Mutex<State>,
    count: AtomicU64,
    told: AtomicU64,
    /// The consequences of lost bytes.
    pub(crate) settling: Settling,
}

impl Default for Failures {
    fn default() -> Failures {
        let state = State {
            last: Errno::Io,
            owed: 0,
            lost: 0,
            front_end: (Errno::Io, 0),
            told_to_all: 0,
            next_watch: 0,
            watched: SmallVec::new(),
        };
        Failures {
            state: Mutex::new(state),
            count: AtomicU64::new(0),
            told: AtomicU64::new(0),
            settling: Settling::default(),
        }
    }
}

impl Failures {
    /// Notes a failure and the lost bytes, if any. If a waiting write lost bytes for want of space, only this write
    /// gets the failure, as if the bytes had never been written.
    pub(crate) fn note(&self, errno: Errno, lost: ByteRange) {
        let mut state = self.state.lock();
        let count = self.count.load(SeqCst) + 1;
        let is_of_waiter = |w: &Watched| w.waits && w.range.contains(&lost);
        if !errno.is_no_room() || lost.is_empty() || !state.watched.iter().any(is_of_waiter) {
            (state.last, state.owed) = (errno, count);
            if !lost.is_empty() {
                state.lost = count;
            }
        }
        for watched in state.watched.iter_mut().filter(|w| w.range.overlaps(&lost)) {
            watched.failed = watched.failed.or(Some(errno));
            watched.lost_from = watched.lost_from.min(lost.start.max(watched.range.start));
        }
        self.count.store(count, SeqCst);
    }

    /// The front end has lost bytes of its pages, and reports that to the programs that have the file open, not to
    /// callers that sync all files.
    pub(crate) fn note_of_front_end(&self, errno: Errno) {
        let mut state = self.state.lock();
        let count = self.count.load(SeqCst) + 1;
        state.front_end = (errno, count);
        self.count.store(count, SeqCst);
    }

    /// Notes what was left unreported when the file was in the table before.
    pub(crate) fn restore(&self, left: Unreported) {
        if left.is_owed {
            self.note(left.errno, ByteRange::ALL);
        } else {
            self.note_of_front_end(left.errno);
        }
        if !left.is_secret {
            self.told_to_all();
        }
    }

    /// Number of failures so far.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.count.load(SeqCst)
    }

    /// Returns how many failures have been reported: an open file that begins now gets only later ones.
    pub(crate) fn told(&self) -> u64 {
        self.told.load(SeqCst)
    }

    /// Reports the failures since `reported` to an open file.
    ///
    /// Errors: the latest of these failures.
    pub(crate) fn tell(&self, reported: &AtomicU64) -> Result<()> {
        let state = self.state.lock();
        let count = self.count.load(SeqCst);
        assert!(state.lost <= state.owed && state.owed <= count, "{count} failures: {} {}", state.owed, state.lost);
        let before = reported.swap(count, SeqCst);
        assert!(before <= count, "{before} failures were reported of {count}");
        if before >= state.owed {
            return Ok(());
        }
        self.told.store(count, SeqCst);
        Err(state.last)
    }

    /// The failures that have not been reported, if there are any.
    pub(crate) fn unreported(&self) -> Option<Unreported> {
        let state = self.state.lock();
        let told = self.told.load(SeqCst);
        let is_owed = state.owed > told;
        let is_secret = state.lost.max(state.front_end.1) > told.max(state.told_to_all);
        let errno = if is_owed { state.last } else { state.front_end.0 };
        (is_owed || is_secret).then_some(Unreported { errno, is_owed, is_secret })
    }

    /// Called when all failures so far are being reported to a caller that syncs all files. This does not count as a
    /// report to those that have the file open.
    pub(crate) fn told_to_all(&self) {
        let mut state = self.state.lock();
        state.told_to_all = self.count.load(SeqCst);
    }

    /// Watches `range` until the result is dropped.
    pub(crate) fn watch(&self, range: ByteRange) -> Watch<'_> {
        let mut state = self.state.lock();
        state.next_watch += 1;
        let id = state.next_watch;
        state.watched.push(Watched { id, range, waits: false, failed: None, lost_from: u64::MAX });
        Watch(self, id)
    }
}

/// A watch of a range by a writer.
pub(crate) struct Watch<'a>(&'a Failures, u64);

impl Watch<'_> {
    /// From now on the watching writer waits for `result`, and only this writer gets a failure for want of space.
    pub(crate) fn wait(&self) {
        let mut state = self.0.state.lock();
        state.watched.iter_mut().filter(|w| w.id == self.1).for_each(|w| w.waits = true);
    }

    /// Errors: the first failure that lost bytes of the range since it is watched. Open files get this failure as well,
    /// unless it was for want of space and the watching writer waited.
    pub(crate) fn result(&self) -> Result<()> {
        let state = self.0.state.lock();
        let watched = state.watched.iter().find(|w| w.id == self.1);
        assert!(watched.is_some(), "watch {} is gone before its writer", self.1);
        let failed = watched.and_then(|w| w.failed);
        failed.map_or(Ok(()), Err)
    }
}

impl Watch<'_> {
    /// The first byte of the range that was lost since the watch began.
    pub(crate) fn lost_from(&self) -> Option<u64> {
        let state = self.0.state.lock();
        let watched = state.watched.iter().find(|w| w.id == self.1)?;
        watched.failed.map(|_| watched.lost_from)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.state.lock().watched.retain(|w| w.id != self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the rule of errseq: a failure is reported once to each open file, and to a later one only if it was
    /// reported to none. Method: single failures, with open files that begin before, between and after them.
    #[test]
    fn each_is_told_once() {
        let failures = Failures::default();
        let opened = || AtomicU64::new(failures.told());
        let lost = ByteRange::new(0, 10);
        let before = opened();
        assert_eq!((failures.tell(&before), failures.unreported()), (Ok(()), None));
        let left = |errno, is_owed, is_secret| Some(Unreported { errno, is_owed, is_secret });
        failures.note(Errno::NoSpace, lost);
        assert_eq!(failures.unreported(), left(Errno::NoSpace, true, true));
        failures.told_to_all();
        assert_eq!(failures.unreported(), left(Errno::NoSpace, true, false));
        let between = opened();
        assert_eq!([failures.tell(&between), failures.tell(&between)], [Err(Errno::NoSpace), Ok(())]);
        assert_eq!(failures.unreported(), None);
        let after = opened();
        assert_eq!(failures.tell(&after), Ok(()), "somebody was told before it began");
        assert_eq!([failures.tell(&before), failures.tell(&before)], [Err(Errno::NoSpace), Ok(())]);
        failures.note(Errno::Io, ByteRange::new(0, 0));
        assert_eq!(failures.unreported(), left(Errno::Io, true, false), "nothing was lost by this one");
        assert_eq!((failures.tell(&after), failures.unreported()), (Err(Errno::Io), None));
    }

    /// Goal: a loss that the front end reports to open files is reported to none of them again, and stays unreported
    /// to callers that sync all files, also after the file has left the table. Method: such a loss alone, and together
    /// with another one.
    #[test]
    fn losses_of_a_front_end() {
        let failures = Failures::default();
        let opened = AtomicU64::new(failures.told());
        failures.note_of_front_end(Errno::NoSpace);
        let left = |errno, is_owed, is_secret| Some(Unreported { errno, is_owed, is_secret });
        assert_eq!((failures.tell(&opened), failures.unreported()), (Ok(()), left(Errno::NoSpace, false, true)));
        let again = Failures::default();
        failures.unreported().into_iter().for_each(|left| again.restore(left));
        assert_eq!(again.unreported(), left(Errno::NoSpace, false, true));
        again.note(Errno::Io, ByteRange::new(0, 0));
        assert_eq!(again.unreported(), left(Errno::Io, true, true));
        again.told_to_all();
        assert_eq!(again.unreported(), left(Errno::Io, true, false));
        failures.told_to_all();
        assert_eq!(failures.unreported(), None);
    }

    /// Goal: a writer that watches a range gets the failures of that range since the watch began, and no others.
    /// Method: failures inside the range, outside it, and before the watch.
    #[test]
    fn watched_ranges() {
        let failures = Failures::default();
        failures.note(Errno::Io, ByteRange::ALL);
        let (one, other) = (failures.watch(ByteRange::new(0, 10)), failures.watch(ByteRange::new(20, 30)));
        assert_eq!((one.result(), other.result()), (Ok(()), Ok(())));
        failures.note(Errno::NoSpace, ByteRange::new(9, 20));
        assert_eq!((one.result(), other.result()), (Err(Errno::NoSpace), Ok(())));
        failures.note(Errno::Io, ByteRange::new(0, 21));
        assert_eq!((one.result(), other.result()), (Err(Errno::NoSpace), Err(Errno::Io)));
        drop((one, other));
        assert!(failures.state.lock().watched.is_empty());
    }

    /// Goal: if a write that waits lost bytes for want of space, the failure is reported to that write only; all other
    /// failures are reported to open files. Method: failures inside and across the range of a write, before and after
    /// it waits.
    #[test]
    fn what_a_write_was_told_is_its_own_affair() {
        let failures = Failures::default();
        let reported = AtomicU64::new(0);
        let watch = failures.watch(ByteRange::new(0, 10));
        failures.note(Errno::NoSpace, ByteRange::new(0, 5));
        assert_eq!(failures.tell(&reported), Err(Errno::NoSpace), "it may not look");
        watch.wait();
        failures.note(Errno::NoSpace, ByteRange::new(0, 10));
        assert_eq!((failures.tell(&reported), failures.unreported(), failures.count()), (Ok(()), None, 2));
        failures.note(Errno::NoSpace, ByteRange::new(9, 11));
        assert_eq!(failures.tell(&reported), Err(Errno::NoSpace), "another byte was lost");
        failures.note(Errno::Io, ByteRange::new(0, 1));
        assert_eq!((failures.tell(&reported), watch.result()), (Err(Errno::Io), Err(Errno::NoSpace)));
        assert_eq!((watch.lost_from(), failures.watch(ByteRange::ALL).lost_from()), (Some(0), None));
    }
}
