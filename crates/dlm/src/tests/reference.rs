//! The server against a plain list that follows the rules literally.

use super::{PlantedBug, Random, object};
use crate::mode::{Growth, LockId, Mode, Owner, conflict};
use crate::server::{Action, LockLimits, LockRequest, LockSpace};
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
        if entry.growth == Growth::Exact || entry.owner.is_direct() {
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
        if incompatible.len() > self.limits.crowd_locks {
            end = end.min(entry.asked.start + self.limits.crowd_growth_bytes).max(entry.asked.end);
        }
        ByteRange::new(entry.asked.start, end)
    }

    /// Grants whatever neither a granted lock nor an earlier request excludes, then calls back what stands in the way.
    fn settle(&mut self) {
        for i in 0..self.entries.len() {
            let entry = self.entries[i];
            let blocked = |(j, other): (usize, &Entry)| {
                j != i && (other.granted.is_some() || other.id < entry.id) && other.conflicts(&entry)
            };
            if entry.granted.is_none() && !self.entries.iter().enumerate().any(blocked) {
                let range = self.grow(&entry);
                self.entries[i].granted = Some(range);
                self.grants.push((entry.id, range));
            }
        }
        for i in 0..self.entries.len() {
            let entry = self.entries[i];
            let waits = |other: &Entry| other.granted.is_none() && other.conflicts(&entry);
            if entry.granted.is_some() && !entry.owner.is_direct() && !entry.called && self.entries.iter().any(waits) {
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
}

impl Pair {
    fn new(seed: u64, bug: Option<PlantedBug>) -> Pair {
        let limits = LockLimits { crowd_locks: 4, crowd_growth_bytes: 5, ..LockLimits::default() };
        let mut space = LockSpace::new(limits, 1);
        space.planted_bug = bug;
        let reference = Reference { limits, entries: Vec::new(), grants: Vec::new(), callbacks: BTreeSet::new() };
        Pair { space, reference, random: Random::new(seed), waited: 0, crowded: 0 }
    }

    fn enqueue(&mut self) -> Result<(), String> {
        let session = SessionId(self.random.below(3));
        let owner = if self.random.below(4) == 0 { Owner::Direct(session) } else { Owner::Cached(session) };
        let mode = if self.random.below(2) == 0 { Mode::Read } else { Mode::Write };
        let growth = if self.random.below(2) == 0 { Growth::Exact } else { Growth::Largest };
        let (object, range) = (object(self.random.below(2) as u32), self.random.range(24));
        let id = self
            .space
            .enqueue(0, LockRequest { owner, object, mode, range, growth })
            .map_err(|refusal| refusal.to_string())?;
        let entry = Entry { id, owner, object, mode, asked: range, growth, granted: None, called: false };
        self.reference.entries.push(entry);
        self.agree()?;
        self.waited += usize::from(self.space.granted_range(id).is_none());
        Ok(())
    }

    fn remove(&mut self, entry: Entry) -> Result<(), String> {
        match entry.owner {
            Owner::Direct(_) => self.space.release(0, entry.id),
            Owner::Cached(session) => assert_eq!(self.space.cancel(0, session, &[entry.id, LockId(u64::MAX)]), 1),
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
        let expected = std::mem::take(&mut self.reference.grants);
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
            let mut writers: Vec<&Entry> = entries
                .iter()
                .filter(|e| e.object == object && e.granted.is_some() && e.mode == Mode::Write && !e.owner.is_direct())
                .collect();
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
        // Holders answer: clients give back what is called back, direct requests end. Nobody may be left waiting.
        while self.reference.entries.iter().any(|entry| entry.granted.is_none()) {
            let able = |e: &&Entry| e.granted.is_some() && (e.called || e.owner.is_direct());
            let Some(&entry) = self.reference.entries.iter().find(able) else {
                return Err("requests wait, and nobody is asked to give way".into());
            };
            self.remove(entry)?;
        }
        while let Some(&entry) = self.reference.entries.last() {
            self.remove(entry)?;
        }
        assert_eq!(self.space.footprint(), [0; 4], "something was left behind");
        assert!(self.space.is_empty());
        Ok(())
    }
}

/// Goal: grants, their growth, their order (first come, first served among those that conflict), callbacks, glimpse and
/// the end of sessions follow the rules; nobody starves; nothing leaks. Method: model check against the plain list.
#[test]
fn server_follows_the_rules() {
    let (mut waited, mut crowded) = (0, 0);
    for seed in 0..300 {
        let mut pair = Pair::new(seed, None);
        if let Err(reason) = pair.run(250) {
            panic!("seed {seed}: {reason}");
        }
        waited += pair.waited;
        crowded += pair.crowded;
    }
    assert!(waited > 3000 && crowded > 50, "the interesting cases were met: {waited}, {crowded}");
}

/// Goal: the check above can fail. Method: each planted mistake is found.
#[test]
fn planted_mistakes_break_the_rules() {
    for bug in [PlantedBug::MissConflict, PlantedBug::JumpQueue, PlantedBug::LoseCallback] {
        let found = (0..20).any(|seed| Pair::new(seed, Some(bug)).run(250).is_err());
        assert!(found, "{bug:?} was not found");
    }
}
