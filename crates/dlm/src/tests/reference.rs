//! The server against a plain list that follows the rules literally.

use super::{PlantedBug, Random, object};
use crate::mode::{GroupId, Growth, LockId, Mode, Owner, conflict};
use crate::server::{Action, LockLimits, LockRequest, LockSpace, Refusal};
use amphi_types::{ByteRange, ObjectId, SessionId};
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: LockId,
    owner: Owner,
    object: ObjectId,
    mode: Mode,
    asked: ByteRange,
    growth: Growth,
    granted: Option<ByteRange>,
    called: bool,
}

impl Entry {
    fn range(&self) -> ByteRange {
        self.granted.unwrap_or(self.asked)
    }

    fn conflicts(&self, other: &Entry) -> bool {
        self.object == other.object
            && conflict((self.owner, self.mode, self.range()), (other.owner, other.mode, other.range()))
    }
}

/// The rules, in quadratic time.
struct Reference {
    limits: LockLimits,
    entries: Vec<Entry>,
    grants: Vec<(LockId, ByteRange)>,
    callbacks: BTreeSet<LockId>,
}

impl Reference {
    fn grow(&self, entry: &Entry) -> ByteRange {
        if entry.growth == Growth::Exact || entry.owner.is_direct() || entry.owner.group().is_some() {
            return entry.asked;
        }
        let everywhere = Entry { granted: Some(ByteRange::ALL), ..*entry };
        let incompatible: Vec<&Entry> =
            self.entries.iter().filter(|other| other.id != entry.id && other.conflicts(&everywhere)).collect();
        if incompatible.is_empty() {
            return ByteRange::ALL;
        }
        let beyond = incompatible.iter().filter(|other| other.range().end > entry.asked.end);
        let mut end = beyond.map(|other| other.range().start.max(entry.asked.end)).min().unwrap_or(u64::MAX);
        let LockLimits { crowd_locks, crowd_growth_bytes, .. } = self.limits;
        if incompatible.len() > crowd_locks && crowd_locks > 0 && crowd_growth_bytes > 0 {
            end = end.min(entry.asked.start + crowd_growth_bytes).max(entry.asked.end);
        }
        ByteRange::new(entry.asked.start, end)
    }

    /// The group lock in force on an object that the session holds, or any.
    fn in_force(&self, object: ObjectId, session: Option<SessionId>) -> Option<GroupId> {
        let on_object = self.entries.iter().filter(|e| e.object == object && e.granted.is_some());
        let of_session = |e: &&Entry| session.is_none_or(|session| e.owner.session() == session);
        on_object.filter(of_session).find_map(|e| e.owner.group())
    }

    /// Direct requests that wait are under the group of their session, if it has one.
    fn note_members(&mut self) {
        for i in 0..self.entries.len() {
            let Entry { owner, object, granted, .. } = self.entries[i];
            if owner.is_direct() && granted.is_none() {
                let session = owner.session();
                let group = self.in_force(object, Some(session));
                self.entries[i].owner = match (group, owner) {
                    (Some(group), _) => Owner::Member(session, group),
                    (None, Owner::Holder(_)) => owner,
                    (None, _) => Owner::Direct(session),
                };
            }
        }
    }

    /// Returns whether cached locks of the session cover the range.
    fn holds(&self, session: SessionId, object: ObjectId, range: ByteRange) -> bool {
        let own = |e: &&Entry| e.object == object && e.owner == Owner::Cached(session);
        let held: Vec<ByteRange> = self.entries.iter().filter(own).filter_map(|e| e.granted).collect();
        (range.start..range.end).all(|byte| held.iter().any(|lock| lock.contains(&ByteRange::at(byte, 1))))
    }

    fn blocked(&self, entry: &Entry) -> bool {
        let in_force = self.in_force(entry.object, None);
        self.entries.iter().filter(|other| other.id != entry.id).any(|other| {
            let there = other.granted.is_some() || other.id < entry.id;
            match (entry.owner, other.owner) {
                // Passes all who wait for the end of its group.
                (Owner::Group(_, group), _) if in_force == Some(group) => false,
                (Owner::Member(..), Owner::Member(..)) => there && other.conflicts(entry),
                (Owner::Member(..) | Owner::Holder(_), _) => other.granted.is_some() && other.conflicts(entry),
                // Requests of an evicted member that are under way end before the group is granted anew.
                (Owner::Group(..), Owner::Member(..)) => other.object == entry.object && there,
                _ => there && other.conflicts(entry),
            }
        })
    }

    /// Grants every request that neither a granted lock nor an earlier request excludes, then calls back the
    /// conflicting locks.
    fn settle(&mut self) {
        let mut i = 0;
        while i < self.entries.len() {
            self.note_members();
            let entry = self.entries[i];
            i += 1;
            if entry.granted.is_none() && !self.blocked(&entry) {
                let range = self.grow(&entry);
                self.entries[i - 1].granted = Some(range);
                self.grants.push((entry.id, range));
                if entry.owner.group().is_some() {
                    // The rest of the group comes in, then earlier requests of its members may continue.
                    for other in &mut self.entries {
                        let same = other.object == entry.object && other.owner.group() == entry.owner.group();
                        if same && other.granted.is_none() {
                            other.granted = Some(range);
                            self.grants.push((other.id, range));
                        }
                    }
                    i = 0;
                }
            }
        }
        for i in 0..self.entries.len() {
            let entry = self.entries[i];
            let waits = |other: &Entry| other.granted.is_none() && other.conflicts(&entry);
            let cached = matches!(entry.owner, Owner::Cached(_));
            if entry.granted.is_some() && cached && !entry.called && self.entries.iter().any(waits) {
                self.entries[i].called = true;
                self.callbacks.insert(entry.id);
            }
        }
    }
}

struct Pair {
    space: LockSpace,
    reference: Reference,
    random: Random,
    waited: usize,
    crowded: usize,
    joined: usize,
    refused: usize,
    passed: usize,
}

impl Pair {
    fn new(seed: u64, bug: Option<PlantedBug>) -> Pair {
        // In one of four growth is not cut.
        let (crowd_locks, crowd_growth_bytes) = [(0, 5), (4, 0), (4, 5)][(seed % 8).min(2) as usize];
        let limits = LockLimits { crowd_locks, crowd_growth_bytes, ..LockLimits::default() };
        let mut space = LockSpace::new(limits, 1);
        space.planted_bug = bug;
        let reference = Reference { limits, entries: Vec::new(), grants: Vec::new(), callbacks: BTreeSet::new() };
        Pair { space, reference, random: Random::new(seed), waited: 0, crowded: 0, joined: 0, refused: 0, passed: 0 }
    }

    fn enqueue(&mut self) -> Result<(), String> {
        let session = SessionId(self.random.below(3));
        let owner = match self.random.below(10) {
            0 => Owner::Holder(session),
            1..3 => Owner::Direct(session),
            3..5 => Owner::Group(session, GroupId(self.random.below(2))),
            _ => Owner::Cached(session),
        };
        let mode = if self.random.below(2) == 0 { Mode::Read } else { Mode::Write };
        let growth = if self.random.below(2) == 0 { Growth::Exact } else { Growth::Largest };
        let (object, range) = (object(self.random.below(2) as u32), self.random.range(24));
        let ahead = self.random.below(6) == 0;
        let request = LockRequest { owner, object, mode, range, growth };
        let asked = if ahead { self.space.enqueue_ahead(0, request) } else { self.space.enqueue(0, request) };
        let (mode, range) = if owner.group().is_some() { (Mode::Write, ByteRange::ALL) } else { (mode, range) };
        let is_holder = owner == Owner::Holder(session);
        let holds = is_holder && self.reference.holds(session, object, range);
        self.passed += usize::from(holds);
        let owner = if is_holder && !holds { Owner::Direct(session) } else { owner };
        let growth = if ahead { Growth::Exact } else { growth };
        let entry = |id| Entry { id, owner, object, mode, asked: range, growth, granted: None, called: false };
        if ahead {
            let latest = entry(LockId(u64::MAX));
            self.reference.entries.push(latest);
            self.reference.note_members();
            let latest = self.reference.entries.pop().ok_or("pushed")?;
            if self.reference.blocked(&latest) != (asked == Err(Refusal::WouldBlock)) {
                return Err(format!("{latest:?} ahead: {asked:?}"));
            }
            if asked == Err(Refusal::WouldBlock) {
                self.refused += 1;
                return self.agree();
            }
        }
        let id = asked.map_err(|refusal| refusal.to_string())?;
        self.joined += usize::from(owner.group().is_some() && self.reference.in_force(object, None).is_some());
        self.reference.entries.push(entry(id));
        self.agree()?;
        self.waited += usize::from(self.space.granted_range(id).is_none());
        Ok(())
    }

    fn remove(&mut self, entry: Entry) -> Result<(), String> {
        match entry.owner {
            Owner::Direct(_) | Owner::Holder(_) | Owner::Member(..) => self.space.release(0, entry.id),
            Owner::Cached(session) | Owner::Group(session, _) => {
                assert_eq!(self.space.cancel(0, session, &[entry.id, LockId(u64::MAX)]), 1)
            }
        }
        self.reference.entries.retain(|other| other.id != entry.id);
        self.agree()
    }

    fn drop_session(&mut self, session: SessionId) -> Result<(), String> {
        let ends =
            |entry: &Entry| entry.owner.session() == session && (entry.granted.is_none() || !entry.owner.is_direct());
        let dropped = self.space.drop_session(0, session);
        let gone: Vec<Entry> = self.reference.entries.iter().copied().filter(ends).collect();
        assert_eq!(dropped.locks, gone.iter().filter(|entry| entry.granted.is_some()).count());
        let requests: Vec<LockId> = gone.iter().filter(|e| e.granted.is_none()).map(|e| e.id).collect();
        assert_eq!(dropped.requests, requests);
        self.reference.entries.retain(|entry| !ends(entry));
        self.agree()
    }

    /// Compares grants, callbacks, tables and glimpse, and checks the invariants by themselves.
    fn agree(&mut self) -> Result<(), String> {
        self.reference.settle();
        let (mut grants, mut callbacks) = (Vec::new(), BTreeSet::new());
        while let Some(action) = self.space.poll_action() {
            match action {
                Action::Granted { id, range, .. } => grants.push((id, range)),
                Action::Callback { id, .. } => {
                    if !callbacks.insert(id) {
                        return Err(format!("{id:?} was called back twice"));
                    }
                }
            }
        }
        let mut expected = std::mem::take(&mut self.reference.grants);
        if grants.iter().any(|(id, _)| self.reference.entries.iter().any(|e| e.id == *id && e.owner.group().is_some()))
        {
            // Requests that the begin of a group lets continue are granted together.
            expected.sort_by_key(|(id, _)| *id);
            grants.sort_by_key(|(id, _)| *id);
        }
        if grants != expected {
            return Err(format!("granted {grants:?}, the rules say {expected:?}"));
        }
        let expected = std::mem::take(&mut self.reference.callbacks);
        if callbacks != expected {
            return Err(format!("called back {callbacks:?}, the rules say {expected:?}"));
        }
        let entries = &self.reference.entries;
        for (id, range) in grants {
            let Some(entry) = entries.iter().find(|entry| entry.id == id) else { continue };
            if !range.contains(&entry.asked) {
                return Err(format!("{id:?} was granted less than asked"));
            }
            self.crowded += usize::from(range.end == entry.asked.start + 5 && range.end > entry.asked.end);
        }
        for (i, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.granted.is_some()) {
            if entries[..i].iter().any(|other| other.granted.is_some() && other.conflicts(entry)) {
                return Err(format!("{entry:?} conflicts with another holder"));
            }
        }
        for object in [object(0), object(1)] {
            let cached = |e: &&Entry| matches!(e.owner, Owner::Cached(_)) && e.mode == Mode::Write;
            let granted = |e: &&Entry| e.object == object && e.granted.is_some();
            let members: Vec<_> = entries.iter().filter(granted).filter(|e| e.owner.group().is_some()).collect();
            let members: Vec<_> = members.into_iter().map(|e| (e.id, e.owner.session())).collect();
            assert_eq!(self.space.members(object).collect::<Vec<_>>(), members);
            let mut writers: Vec<&Entry> = entries.iter().filter(granted).filter(cached).collect();
            writers.sort_by_key(|entry| (entry.range().start, entry.id));
            let mut at = self.space.glimpse(object);
            while let Some(writer) = writers.pop() {
                assert_eq!(at, Some((writer.id, writer.owner.session(), writer.range())));
                at = self.space.glimpse_below(object, writer.id);
            }
            assert_eq!(at, None);
        }
        Ok(())
    }

    fn run(&mut self, steps: usize) -> Result<(), String> {
        for _ in 0..steps {
            let count = self.reference.entries.len() as u64;
            match self.random.below(20) {
                0 if count > 8 => {
                    let session = SessionId(self.random.below(3));
                    self.drop_session(session)?;
                }
                1..=8 if count > 0 => {
                    let entry = self.reference.entries[self.random.below(count) as usize];
                    self.remove(entry)?;
                }
                _ if count < 24 => self.enqueue()?,
                _ => {}
            }
        }
        // Holders answer: clients return called-back locks, direct requests end. No request may be left waiting.
        while self.reference.entries.iter().any(|entry| entry.granted.is_none()) {
            let able =
                |e: &&Entry| e.granted.is_some() && (e.called || e.owner.is_direct() || e.owner.group().is_some());
            let Some(&entry) = self.reference.entries.iter().find(able) else {
                return Err("requests wait, and nobody is asked to give way".into());
            };
            self.remove(entry)?;
        }
        while let Some(&entry) = self.reference.entries.last() {
            self.remove(entry)?;
        }
        assert_eq!(self.space.footprint(), [0; 5], "something was left behind");
        assert!(self.space.is_empty());
        Ok(())
    }
}

/// Goal: the following obey the rules: grants, their growth and order (first come, first served among conflicting
/// ones), callbacks, glimpses, and the end of sessions. No request starves, and nothing leaks. Method: model check
/// against the plain list.
#[test]
fn server_follows_the_rules() {
    let (mut waited, mut crowded, mut joined, mut refused, mut passed) = (0, 0, 0, 0, 0);
    for seed in 0..600 {
        let mut pair = Pair::new(seed, None);
        if let Err(reason) = pair.run(250) {
            panic!("seed {seed}: {reason}");
        }
        waited += pair.waited;
        crowded += pair.crowded;
        joined += pair.joined;
        refused += pair.refused;
        passed += pair.passed;
    }
    let met = (waited, crowded, joined, refused, passed);
    assert!(
        waited > 3000 && crowded > 40 && joined > 500 && refused > 500 && passed > 200,
        "the interesting cases were met: {met:?}"
    );
}

/// Goal: the check above can fail. Method: each planted mistake is found.
#[test]
fn planted_mistakes_break_the_rules() {
    for bug in [PlantedBug::MissConflict, PlantedBug::JumpQueue, PlantedBug::LoseCallback] {
        let found = (0..20).any(|seed| Pair::new(seed, Some(bug)).run(250).is_err());
        assert!(found, "{bug:?} was not found");
    }
}
