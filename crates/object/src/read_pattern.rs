//! `ReadPattern`: the relation of small reads of an object to earlier ones, by any mounts.
//!
//! Owns: the last reads of the objects that were read last. Does not own: the consequences of the patterns that it
//! reports.
//!
//! A mount sees only its own reads. If mounts read the records of a shared file in turn, each mount has every n-th
//! record, and only the server sees that together they are a sequence.

use amphi_types::{ByteRange, ObjectId, SessionId};
use std::collections::VecDeque;

/// Most objects that are recorded.
const OBJECTS_MAX: usize = 64;
/// Most reads of each that are recorded.
const READS_MAX: usize = 16;
/// Reads that begin within this many bytes of each other are neighbours.
const NEAR_BYTES: u64 = 128 << 10;
/// Reads that begin within this many bytes may form a sequence.
const TOGETHER_BYTES: u64 = 1 << 20;
/// This many of the last reads, including the present one, form a sequence.
const TOGETHER_READS: usize = 4;

/// The relation of a read to earlier reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// No read near it was made lately.
    Nothing,
    /// It is true if there was a read of the same place or of a neighbouring place.
    Neighbour,
    /// Several mounts read here side by side.
    Together,
}

/// The last reads of a target.
#[derive(Default)]
pub struct ReadPattern {
    /// Objects, the one that was read last first.
    objects: VecDeque<(ObjectId, VecDeque<(SessionId, u64)>)>,
}

impl ReadPattern {
    /// Records a read, and returns its relation to earlier ones.
    pub fn note(&mut self, object: ObjectId, session: SessionId, range: ByteRange) -> Beside {
        let at = self.objects.iter().position(|(known, _)| *known == object);
        let (_, mut reads) = at.and_then(|at| self.objects.remove(at)).unwrap_or((object, VecDeque::new()));
        let within = |most: u64| reads.iter().filter(move |(_, start)| start.abs_diff(range.start) <= most);
        let count = within(TOGETHER_BYTES).count() + 1;
        let beside = if count >= TOGETHER_READS && within(TOGETHER_BYTES).any(|(by, _)| *by != session) {
            Beside::Together
        } else if within(NEAR_BYTES).next().is_some() {
            Beside::Neighbour
        } else {
            Beside::Nothing
        };
        reads.push_back((session, range.start));
        if reads.len() > READS_MAX {
            reads.pop_front();
        }
        self.objects.push_front((object, reads));
        self.objects.truncate(OBJECTS_MAX);
        beside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_types::Ino;

    /// Goal: records that several mounts read in turn are recognised as a sequence, and records of one mount as
    /// neighbours; reads far from each other are not; the table is bounded. Method: records of 47,008 bytes, read by
    /// one mount and by three; then many objects.
    #[test]
    fn records_in_turn_are_a_sequence() {
        let object = |ino| ObjectId { ino: Ino(ino), stripe: 0 };
        let record = |n: u64| ByteRange::at(n * 47_008, 47_008);
        let mut pattern = ReadPattern::default();
        let alone: Vec<Beside> = (0..8).map(|n| pattern.note(object(1), SessionId(1), record(n * 2))).collect();
        assert_eq!(alone[0], Beside::Nothing);
        assert!(alone[1..].iter().all(|beside| *beside == Beside::Neighbour), "{alone:?}");
        let three: Vec<Beside> = (0..9).map(|n| pattern.note(object(2), SessionId(n % 3), record(n))).collect();
        assert_eq!(three[..3], [Beside::Nothing, Beside::Neighbour, Beside::Neighbour]);
        assert!(three[3..].iter().all(|beside| *beside == Beside::Together), "{three:?}");
        let far: Vec<Beside> = (0..9).map(|n| pattern.note(object(3), SessionId(n % 3), record(n * 100))).collect();
        assert!(far.iter().all(|beside| *beside == Beside::Nothing), "{far:?}");
        for n in 0..500 {
            pattern.note(object(n), SessionId(1), record(n));
        }
        assert_eq!(pattern.objects.len(), OBJECTS_MAX);
        for n in 0..500 {
            pattern.note(object(499), SessionId(1), record(n));
        }
        assert_eq!(pattern.objects[0].1.len(), READS_MAX);
    }
}
