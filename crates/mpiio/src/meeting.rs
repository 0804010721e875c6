//! The meeting of all ranks of a node in the shared memory of a file: a barrier that returns the largest value of all
//! ranks.
//!
//! Owns the rounds. Collective calls on a file of one node need no other communication. Ranks that wait here sleep,
//! while those that wait in an MPI library may spin and occupy the cores of the ranks for which they wait. Does not own
//! the other work that has to continue meanwhile. `wait` returns after `PAUSE`, so that the shim can let the library
//! make progress with other communication of the program.
//!
//! A rank that has ended never arrives. So the first rank that waits for it breaks off this round and all later ones: a
//! rank that has given up a round must not count in that round when it arrives for the next one.
//!
//! Invariants: a rank takes part in one round at a time, and in all of them in the same order. `arrived` counts those
//! of the present round. The value of a round is kept until all ranks are in the next round, which they enter when they
//! have read it. The last one to arrive clears the value that the round after that will use.

use crate::error::{Error, Outcome};
use crate::pace::{Futex, Pace, sleep_on};
use crate::segment::{MeetingCell, Segment};
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// After this time a waiting rank checks whether another rank has ended.
const PAUSE: Duration = Duration::from_millis(1);

/// A waiting rank checks after this many pauses whether another rank has ended.
const PAUSES_TO_LOOK: u32 = 500;

/// The meetings of one open file, as one rank takes part in them.
pub struct Meeting {
    segment: Segment,
}

/// The part of a rank in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Arrival {
    round: u32,
    pauses: u32,
}

impl Meeting {
    /// Opens the meeting in the shared memory of a file.
    pub fn new(segment: Segment) -> Meeting {
        Meeting { segment }
    }

    fn cell(&self) -> &MeetingCell {
        &self.segment.header().meeting
    }

    /// Arrives with a value that is not negative.
    pub fn arrive(&self, value: i32) -> Arrival {
        let cell = self.cell();
        let round = cell.round.load(SeqCst);
        if cell.broken.load(SeqCst) != 0 {
            return Arrival { round, pauses: 0 };
        }
        cell.largest[round as usize % 2].fetch_max(value, SeqCst);
        let here = cell.arrived.fetch_add(1, SeqCst) + 1;
        let ranks = self.segment.geometry().ranks;
        assert!(here <= ranks, "{here} of {ranks} ranks meet");
        if here == ranks {
            cell.arrived.store(0, SeqCst);
            let next = round.wrapping_add(1);
            cell.largest[next as usize % 2].store(0, SeqCst);
            cell.wanted[next as usize % 2].iter().for_each(|value| value.store(0, SeqCst));
            cell.round.store(next, SeqCst);
            Futex.wake(&cell.round, ranks);
        }
        Arrival { round, pauses: 0 }
    }

    /// Waits for a moment; the largest value once all have arrived.
    pub fn wait(&self, arrival: &mut Arrival) -> Outcome<Option<i32>> {
        let cell = self.cell();
        let round = arrival.round;
        let over = || (cell.round.load(SeqCst) != round).then(|| cell.largest[round as usize % 2].load(SeqCst));
        let broken = || cell.broken.load(SeqCst).checked_sub(1);
        if over().is_none() && broken().is_none() {
            sleep_on(&cell.round, round, PAUSE);
        }
        if let Some(largest) = over() {
            return Ok(Some(largest));
        }
        if let Some(rank) = broken() {
            return Err(Error::RankEnded(rank));
        }
        if arrival.pauses % PAUSES_TO_LOOK == PAUSES_TO_LOOK - 1
            && let Some(rank) = self.segment.find_gone()
        {
            // A rank that leaves in order after the round does so after the round.
            if let Some(largest) = over() {
                return Ok(Some(largest));
            }
            cell.broken.store(rank + 1, SeqCst);
            return Err(Error::RankEnded(rank));
        }
        arrival.pauses = arrival.pauses.wrapping_add(1);
        Ok(None)
    }

    /// Announces, before this rank arrives, which bytes of the file it wants.
    pub fn want(&self, bytes: Range<u64>) {
        let [start, end] = &self.cell().wanted[self.cell().round.load(SeqCst) as usize % 2];
        start.fetch_max(u64::MAX - bytes.start, SeqCst);
        end.fetch_max(bytes.end, SeqCst);
    }

    /// The range from the first to the last byte that any rank wanted in the round that has ended; empty if none wanted
    /// any.
    pub fn wanted(&self) -> Range<u64> {
        let [start, end] = &self.cell().wanted[self.cell().round.load(SeqCst).wrapping_sub(1) as usize % 2];
        let (start, end) = (u64::MAX - start.load(SeqCst), end.load(SeqCst));
        start.min(end)..end
    }

    /// Returns how many frames each of the ranks has.
    pub fn frames_per_rank(&self) -> u32 {
        self.segment.geometry().frames_per_rank
    }

    /// Brings a number for `before`, ahead of arriving.
    pub fn bring(&self, number: u64) {
        self.segment.rank_cell(self.segment.rank()).brought.store(number, SeqCst);
    }

    /// The sum of the values that the ranks below this one brought to the round that has ended.
    pub fn before(&self) -> u64 {
        let brought = |rank| self.segment.rank_cell(rank).brought.load(SeqCst);
        (0..self.segment.rank()).map(brought).fold(0, u64::wrapping_add)
    }

    /// Sets a number for all ranks, before they arrive. One rank calls it.
    pub fn say(&self, number: u64) {
        self.cell().said.store(number, SeqCst);
    }

    /// The number that was set before the round that has ended.
    pub fn said(&self) -> u64 {
        self.cell().said.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Geometry;

    fn meetings(ranks: u32) -> Vec<Meeting> {
        let geometry = Geometry { ranks, page_bytes: 16, frames_per_rank: 1, spans: 2, dir_slots: 4, chunk_entries: 4 };
        let first = Segment::create(geometry, 0).unwrap();
        let token = first.token();
        let rest: Vec<Segment> = (1..ranks).map(|rank| Segment::attach(token, geometry, rank).unwrap()).collect();
        std::iter::once(first).chain(rest).map(Meeting::new).collect()
    }

    fn meet(meeting: &Meeting, value: i32) -> Outcome<i32> {
        meet_on(meeting, meeting.arrive(value))
    }

    fn meet_on(meeting: &Meeting, mut arrival: Arrival) -> Outcome<i32> {
        loop {
            if let Some(largest) = meeting.wait(&mut arrival)? {
                return Ok(largest);
            }
        }
    }

    /// Goal: no rank leaves a round before all have arrived. Each round gives all ranks the largest value in it, and
    /// the sum of the values of the ranks below. Method: five threads, 2,000 rounds with values that go up and down.
    #[test]
    fn rounds_tell_the_largest_value() {
        let meetings = meetings(5);
        let value = |round: i32, rank: i32| (round * 7 + rank * 13) % 31;
        std::thread::scope(|scope| {
            for (rank, meeting) in meetings.iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..2000 {
                        meeting.bring(round as u64 + rank as u64);
                        // In some rounds no rank has a range, in others not all of them.
                        let wants = round % 3 * rank as i32 % 2 == 0 && round % 5 != 0;
                        if wants {
                            meeting.want(round as u64 + rank as u64..round as u64 + 10 * (rank as u64 + 1));
                        }
                        let largest = (0..5).map(|other| value(round, other)).max().unwrap();
                        assert_eq!(meet(meeting, value(round, rank as i32)), Ok(largest));
                        let wanted = if round % 5 == 0 { 0..0 } else { round as u64..round as u64 + 50 };
                        assert_eq!(meeting.wanted(), wanted);
                        let below: u64 = (0..rank as u64).map(|other| round as u64 + other).sum();
                        assert_eq!(meeting.before(), below);
                        if rank == 0 {
                            meeting.say(round as u64);
                        }
                        meet(meeting, 0).unwrap();
                        assert_eq!(meeting.said(), round as u64);
                    }
                });
            }
        });
    }

    /// Goal: a waiting rank wakes up again and again, and learns of a rank that will never come. Method: two ranks of
    /// which one is dropped, in order and otherwise.
    #[test]
    fn a_rank_that_never_comes_is_noticed() {
        for in_order in [false, true] {
            let mut all = meetings(2);
            let (gone, waits) = (all.pop().unwrap(), all.pop().unwrap());
            let mut arrival = waits.arrive(3);
            assert_eq!(waits.wait(&mut arrival), Ok(None));
            if in_order {
                gone.segment.leave();
            }
            drop(gone);
            assert_eq!(meet_on(&waits, arrival), Err(Error::RankEnded(1)));
        }
    }

    /// Goal: when a rank is gone, no later meeting of the others seems to be one of all ranks. Method: three ranks, of
    /// which one is dropped; the others arrive four times more, each as often as all of them would have.
    #[test]
    fn no_meeting_succeeds_without_a_rank() {
        let mut all = meetings(3);
        drop(all.pop());
        for _ in 0..4 {
            std::thread::scope(|scope| {
                for meeting in &all {
                    scope.spawn(|| assert_eq!(meet(meeting, 1), Err(Error::RankEnded(2))));
                }
            });
        }
    }
}
