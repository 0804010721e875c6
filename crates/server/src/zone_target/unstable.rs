//! `Unstable`: how many bytes of file data were acknowledged and would not survive a loss of power yet.
//!
//! Owns: for the last records of a target, how many bytes had been written up to each, and how many of these each
//! object has. Does not own: when records become stable (`zone`). Bounds: `SAMPLES_MAX` samples; if there are more, two
//! are joined. At most `OBJECTS_MAX` objects are recorded. Bytes of other objects count for each object that is not
//! recorded. The bytes of an object are recorded in two parts. So bytes that are written while the first part becomes
//! stable count until all of them are stable. So the counts are too high rather than too low.

use amphi_types::ObjectId;
use amphi_zone::Lsn;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

/// Records with data between two syncs, as a rule.
const SAMPLES_MAX: usize = 4096;

/// Most objects with bytes that are not stable. In the two seconds between two syncs a target receives writes of some
/// thousand objects.
const OBJECTS_MAX: usize = 4096;

/// The number of unstable bytes of an object up to one record, and from there up to a later record.
#[derive(Clone, Copy, Default)]
struct Parts {
    older: (Lsn, u64),
    newer: (Lsn, u64),
}

impl Parts {
    /// Forgets what is stable.
    fn settle(&mut self, stable: Lsn) {
        if self.older.0 <= stable {
            self.older = std::mem::take(&mut self.newer);
        }
        if self.older.0 <= stable {
            self.older = Default::default();
        }
    }

    fn add(&mut self, lsn: Lsn, bytes: u64, stable: Lsn) {
        self.settle(stable);
        let part = if self.older.1 == 0 || self.older.0 == lsn { &mut self.older } else { &mut self.newer };
        *part = (lsn, part.1 + bytes);
    }

    fn bytes(mut self, stable: Lsn) -> u64 {
        self.settle(stable);
        self.older.1 + self.newer.1
    }
}

/// See the head.
#[derive(Default)]
pub struct Unstable {
    written: Cell<u64>,
    /// Records and all bytes written up to them, ascending. Samples of stable records are removed, except the last of
    /// them.
    samples: RefCell<VecDeque<(Lsn, u64)>>,
    /// Bytes that the next record makes count.
    next: RefCell<Vec<(ObjectId, u64)>>,
    /// Bytes by object. The key `None` has the bytes of objects that are not recorded.
    objects: RefCell<BTreeMap<Option<ObjectId>, Parts>>,
    /// The record up to which everything was stable when objects were last dropped.
    forgotten: Cell<Lsn>,
}

impl Unstable {
    /// This many bytes of an object are on the disk, or will be in the log, and the next record makes them valid.
    pub fn written(&self, object: ObjectId, bytes: u64) {
        self.written.set(self.written.get() + bytes);
        self.next.borrow_mut().push((object, bytes));
    }

    /// A record was appended, when those up to `stable` were stable.
    pub fn appended(&self, lsn: Lsn, stable: Lsn) {
        let mut samples = self.samples.borrow_mut();
        if samples.back().map_or(0, |last| last.1) == self.written.get() {
            return;
        }
        assert!(stable <= lsn, "record {stable:?} is stable, and {lsn:?} is the last one");
        let last = samples.back().map(|last| last.0);
        assert!(last.is_none_or(|last| last <= lsn), "record {lsn:?} is appended behind {last:?}");
        Unstable::forget(&mut samples, stable);
        if samples.len() == SAMPLES_MAX {
            samples.pop_back();
        }
        samples.push_back((lsn, self.written.get()));
        for (object, bytes) in self.next.take() {
            self.note(object, lsn, bytes, stable);
        }
    }

    fn note(&self, object: ObjectId, lsn: Lsn, bytes: u64, stable: Lsn) {
        let mut objects = self.objects.borrow_mut();
        let is_full = |objects: &BTreeMap<_, _>| objects.len() >= OBJECTS_MAX && !objects.contains_key(&Some(object));
        if is_full(&objects) && self.forgotten.replace(stable) < stable {
            objects.retain(|_, parts| parts.bytes(stable) > 0);
        }
        let key = if is_full(&objects) { None } else { Some(object) };
        objects.entry(key).or_default().add(lsn, bytes, stable);
    }

    /// Returns how many bytes of an object are not stable, now that the records up to `stable` are.
    pub fn bytes_of(&self, object: ObjectId, stable: Lsn) -> u64 {
        let objects = self.objects.borrow();
        objects.get(&Some(object)).or_else(|| objects.get(&None)).map_or(0, |parts| parts.bytes(stable))
    }

    fn forget(samples: &mut VecDeque<(Lsn, u64)>, stable: Lsn) {
        while samples.get(1).is_some_and(|second| second.0 <= stable) {
            samples.pop_front();
        }
    }

    /// Returns how many bytes are not stable, now that the records up to `stable` are.
    pub fn bytes(&self, stable: Lsn) -> u64 {
        let mut samples = self.samples.borrow_mut();
        Unstable::forget(&mut samples, stable);
        let counts = samples.front().filter(|first| first.0 <= stable).map_or(0, |first| first.1);
        assert!(counts <= self.written.get(), "{counts} bytes are stable of {} written ones", self.written.get());
        self.written.get() - counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_types::Ino;

    const ONE: ObjectId = ObjectId { ino: Ino(1), stripe: 0 };

    fn object(n: u64) -> ObjectId {
        ObjectId { ino: Ino(n), stripe: 0 }
    }

    /// Goal: bytes of an object count until the record after them is stable, and those of other objects do not. With
    /// very many objects, no count is too low. Method: single calls in a fixed order.
    #[test]
    fn bytes_of_objects_become_stable() {
        let unstable = Unstable::default();
        let write = |n: u64, bytes, lsn, stable| {
            unstable.written(object(n), bytes);
            unstable.appended(Lsn(lsn), Lsn(stable));
        };
        let of = |n: u64, stable| unstable.bytes_of(object(n), Lsn(stable));
        write(1, 100, 1, 0);
        write(2, 10, 2, 0);
        write(1, 50, 3, 0);
        write(1, 7, 4, 1);
        assert_eq!([of(1, 1), of(2, 1), of(3, 1)], [57, 10, 0]);
        assert_eq!([of(1, 2), of(1, 3), of(2, 3), of(1, 4)], [57, 7, 0, 0]);
        write(1, 5, 5, 4);
        assert_eq!((of(1, 4), of(1, 5)), (5, 0));
        for n in 0..2 * OBJECTS_MAX as u64 {
            write(10 + n, 3, 10 + n, 5);
        }
        let last = 10 + 2 * OBJECTS_MAX as u64;
        assert!(of(10, 5) == 3 && of(last - 1, 5) >= 3, "counted with others");
        write(7, 9, last, last - 1);
        assert_eq!((of(7, last - 1), of(10, last), of(7, last)), (9, 0, 0));
        assert!(unstable.objects.borrow().len() <= OBJECTS_MAX + 1);
    }

    /// Goal: bytes count from their record on until it is stable. Records without data change nothing. With very many
    /// records the count is never too low. Method: single calls in a fixed order.
    #[test]
    fn bytes_become_stable() {
        let unstable = Unstable::default();
        assert_eq!(unstable.bytes(Lsn(0)), 0);
        for n in 1..=10 {
            unstable.written(ONE, 100);
            unstable.appended(Lsn(2 * n), Lsn(0));
            unstable.appended(Lsn(2 * n + 1), Lsn(0));
        }
        assert_eq!(unstable.bytes(Lsn(0)), 1000);
        assert_eq!(unstable.bytes(Lsn(1)), 1000);
        assert_eq!(unstable.bytes(Lsn(2)), 900);
        assert_eq!(unstable.bytes(Lsn(9)), 600);
        unstable.written(ONE, 7);
        unstable.appended(Lsn(30), Lsn(21));
        assert_eq!(unstable.bytes(Lsn(21)), 7);
        assert_eq!(unstable.bytes(Lsn(30)), 0);
        for n in 0..2 * SAMPLES_MAX as u64 {
            unstable.written(ONE, 1);
            unstable.appended(Lsn(100 + n), Lsn(30));
        }
        assert_eq!(unstable.bytes(Lsn(30)), 2 * SAMPLES_MAX as u64);
        assert!(unstable.bytes(Lsn(100 + SAMPLES_MAX as u64)) >= SAMPLES_MAX as u64 - 1);
        assert_eq!(unstable.bytes(Lsn(1 << 20)), 0);
    }
}
