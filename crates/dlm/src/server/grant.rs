//! Growth: how far a grant is widened beyond its request.
//!
//! Owns: the growth rules. Does not own: whether a request may be granted (`queue`).
//!
//! Rules: if the object has no incompatible lock or request, a grant covers all of it. So a single user sends only one
//! request. If there are incompatible locks or requests, a grant grows only upward, to the next of them. Files are
//! mostly written forward, and downward growth would take bytes that a neighbour is about to request. With more than
//! `crowd_locks` incompatible ones, growth ends `crowd_growth_bytes` after the start, unless either is 0. The bytes
//! that growth adds never overlap a conflicting granted lock or waiting request.

use super::{Action, LockSpace, Object, State, class, conflicting, party};
use crate::mode::{Growth, LockId, Mode, Owner};
use crate::tree::{Entry, Search};
use amphi_types::ByteRange;

impl LockSpace {
    /// Grants a request that nothing blocks and that is in no tree of waiting requests (any more).
    pub(super) fn grant(&mut self, now_ns: u64, id: LockId) {
        self.grant_one(now_ns, id);
        let lock = &self.locks[&id];
        if let Owner::Group(session, group) = lock.owner {
            self.joined(now_ns, lock.object, session, group);
        }
    }

    pub(super) fn grant_one(&mut self, now_ns: u64, id: LockId) {
        let lock = &self.locks[&id];
        let (owner, object, mode, asked, growth) = (lock.owner, lock.object, lock.mode, lock.range, lock.growth);
        let view = self.objects[&object];
        let grows = self.limits.grows && growth == Growth::Largest && !owner.is_direct();
        let range = if grows { self.grown(&view, owner, mode, asked) } else { asked };

        // A later request may already wait for these very bytes. In that case the lock is called back at once, and
        // serves one use.
        let wanted = if owner.is_direct() || owner.group().is_some() {
            None
        } else {
            self.waiting_conflict(&view, owner, mode, range, LockId(u64::MAX))
                .and_then(|waiter| self.locks.get(&waiter))
                .map(|waiter| (waiter.owner, waiter.mode, waiter.range))
        };

        self.unwatch(id);
        if let Some(lock) = self.locks.get_mut(&id) {
            (lock.range, lock.state) = (range, State::Granted);
        }
        if let Some(tables) = self.objects.get_mut(&object) {
            let entry = Entry { range, id, session: party(owner) };
            self.forest.insert(&mut tables.granted[class(owner, mode)], entry, wanted.is_some());
        }
        let contended = self.contended(now_ns, object);
        self.actions.push_back(Action::Granted { id, owner, object, mode, range, contended });
        if let Some((asker, wanted_mode, wanted_range)) = wanted {
            self.send_callback(now_ns, id, asker, wanted_mode, wanted_range);
        }
    }

    fn grown(&self, view: &Object, owner: Owner, mode: Mode, asked: ByteRange) -> ByteRange {
        let (crowd, most) = (self.limits.crowd_locks, self.limits.crowd_growth_bytes);
        let cuts = crowd > 0 && most > 0;
        // One incompatible lock shows that others use the object; more than `crowd` mean that growth is limited.
        let cap = if cuts { crowd.saturating_add(1) } else { 1 };
        let mut incompatible = 0;
        let mut end = u64::MAX;
        // A later request that waits for bytes of this one may reach beyond its end.
        let just_beyond = ByteRange::at(asked.end, 1);
        for (class, exempt) in conflicting(owner, mode) {
            for tree in [view.granted[class], view.waiting[class]] {
                if tree.is_empty() {
                    continue;
                }
                let everywhere = Search::overlap(ByteRange::ALL, exempt);
                incompatible += self.forest.count(tree, &everywhere, cap - incompatible);
                if self.forest.find(tree, &Search::overlap(just_beyond, exempt)).is_some() {
                    end = asked.end;
                } else if let Some(next) = self.forest.next_start(tree, asked.end, exempt) {
                    end = end.min(next);
                }
            }
        }
        if incompatible == 0 {
            return ByteRange::ALL;
        }
        if cuts && incompatible > crowd {
            end = end.min(asked.start.saturating_add(most));
        }
        ByteRange::new(asked.start, end.max(asked.end))
    }
}
