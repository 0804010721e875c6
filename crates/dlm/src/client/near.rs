//! Unused locks of a file, and of files near one whose lock was called back.
//!
//! Owns: finding locks without users, on a file and on files whose inode numbers are close. Does not own: whether they
//! are returned (`LockCache::give_back`).

use super::{LockCache, Stage};
use crate::mode::{LockId, Mode};
use crate::tree::Tree;
use amphi_types::{ByteRange, Ino, ObjectId};
use std::ops::Bound::{Excluded, Unbounded};

impl LockCache {
    /// The mode of a lock, if it is held.
    pub fn mode(&self, id: LockId) -> Option<Mode> {
        self.locks.get(&id).map(|held| held.mode)
    }

    /// Usable locks without a user on the objects of a file, of both modes. Group locks are left out.
    pub fn idle_of(&self, ino: Ino) -> Vec<LockId> {
        let all = ObjectId { ino, stripe: 0 }..=ObjectId { ino, stripe: u32::MAX };
        self.objects.range(all).flat_map(|(_, locks)| locks.usable.map(|tree| self.idle_in(tree))).flatten().collect()
    }

    /// Usable locks without a user in a tree of usable locks, but for group locks.
    fn idle_in(&self, tree: Tree) -> Vec<LockId> {
        let mut ids = Vec::new();
        self.forest.visit(tree, ByteRange::ALL, &mut |entry| ids.push(entry.id));
        ids.retain(|id| {
            self.locks.get(id).is_some_and(|h| h.stage == Stage::Usable && h.users == 0 && h.group.is_none())
        });
        ids
    }

    /// Usable locks of `mode` without a user, on objects of other files at most `reach` inode numbers away from
    /// `object`. The nearest come first, and at most `looked_at` objects are examined. Group locks are left out.
    pub fn idle_near(
        &self,
        object: ObjectId,
        mode: Mode,
        reach: u64,
        looked_at: usize,
    ) -> impl Iterator<Item = (LockId, ObjectId)> {
        let within = move |other: &ObjectId| other.ino.0.abs_diff(object.ino.0) <= reach;
        let mut above =
            self.objects.range((Excluded(object), Unbounded)).take_while(move |(o, _)| within(o)).peekable();
        let mut below = self.objects.range(..object).rev().take_while(move |(o, _)| within(o)).peekable();
        let nearest = std::iter::from_fn(move || {
            let distance = |other: &ObjectId| other.ino.0.abs_diff(object.ino.0);
            match (above.peek(), below.peek()) {
                (Some((up, _)), Some((down, _))) if distance(down) < distance(up) => below.next(),
                (None, _) => below.next(),
                _ => above.next(),
            }
        });
        nearest.take(looked_at).filter(move |(other, _)| other.ino != object.ino).flat_map(move |(other, locks)| {
            self.idle_in(locks.usable[usize::from(mode.raw())]).into_iter().map(|id| (id, *other))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{CacheLimits, Granted, LockRef};
    use amphi_types::Ino;

    fn object(ino: u64, stripe: u32) -> ObjectId {
        ObjectId { ino: Ino(ino), stripe }
    }

    fn hold(cache: &mut LockCache, id: u64, object: ObjectId, mode: Mode) -> LockRef {
        let request = cache.ask(object, mode, ByteRange::ALL);
        match cache.granted(0, request, LockId(id), ByteRange::ALL) {
            Granted::Pinned(lock) => lock,
            Granted::Unwanted => panic!("it was asked for"),
        }
    }

    /// Goal: the function finds only idle locks of the given mode on other files, the nearest first, within the given
    /// distance and number. Method: single locks: some are in use, of the other mode, of a group, being returned, or
    /// far away.
    #[test]
    fn idle_locks_are_found_by_distance() {
        let mut cache = LockCache::new(CacheLimits::default());
        for ino in [90, 97, 99, 100, 102, 103, 110, 200] {
            let lock = hold(&mut cache, ino, object(ino, 0), Mode::Write);
            cache.unpin(lock);
        }
        let in_use = hold(&mut cache, 1, object(101, 0), Mode::Write);
        let read = hold(&mut cache, 2, object(98, 0), Mode::Read);
        cache.unpin(read);
        let own = hold(&mut cache, 3, object(100, 1), Mode::Write);
        cache.unpin(own);
        cache.hold_group(0, LockId(4), object(104, 0), crate::mode::GroupId(1));
        cache.give_back(LockId(103));
        let found = |cache: &LockCache, mode, reach, most| -> Vec<u64> {
            cache.idle_near(object(100, 0), mode, reach, most).map(|(id, _)| id.0).collect()
        };
        assert_eq!(found(&cache, Mode::Write, 10, 100), [99, 102, 97, 110, 90]);
        assert_eq!(found(&cache, Mode::Write, 9, 100), [99, 102, 97]);
        assert_eq!(found(&cache, Mode::Read, 10, 100), [2]);
        assert_eq!(found(&cache, Mode::Write, 1000, 3), [99], "the other stripe, 99 and 101 were looked at");
        cache.unpin(in_use);
        assert_eq!(found(&cache, Mode::Write, 10, 100), [1, 99, 102, 97, 110, 90]);
        let of = |cache: &LockCache, ino| cache.idle_of(Ino(ino)).iter().map(|id| id.0).collect::<Vec<_>>();
        assert_eq!([of(&cache, 100), of(&cache, 98), of(&cache, 5)], [vec![100, 3], vec![2], vec![]]);
        assert!(of(&cache, 103).is_empty() && of(&cache, 104).is_empty(), "on its way back, and of a group");
        assert_eq!((cache.mode(LockId(2)), cache.mode(LockId(77))), (Some(Mode::Read), None));
    }
}
