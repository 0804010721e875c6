//! `LockSpace`: the lock server of one target.
//!
//! Owns: every lock and every waiting request on the target's objects, callbacks and their deadlines, contention. Does
//! not own: sessions (the caller reports their end), and the I/O done under locks.
//!
//! Invariants, checked by the model tests:
//!
//! * No two granted locks conflict.
//! * A request waits only while it conflicts with a granted lock or with an earlier request, so no request starves.
//! * A request for a group lock whose group is in force, and direct requests of that group's members, pass all requests
//!   that wait for the end of the group.
//! * A request that writes back what its session changed under a lock passes all waiting requests, which may wait for
//!   that very lock.
//! * Every lock that a waiting request waits for, and that can be called back, has been called back exactly once.
//! * A grant contains its request, and what growth added conflicts with nothing granted and nothing waiting.
//!
//! Numbers: a callback has 30 s without progress. With more than 32 incompatible locks on the object, growth is limited
//! to 32 MiB, so that many clients do not take the whole object from each other in turn. A lock takes about 300 bytes,
//! and [`LockLimits::max_locks`] bounds their number.

mod contention;
mod grant;
mod group;
mod hand_overs;
mod queue;

pub use contention::ContentionLimits;

use crate::mode::{GroupId, Growth, LockId, Mode, Owner};
use crate::tree::{Entry, Forest, Search, Tree};
use amphi_types::{ByteRange, Ino, ObjectId, SessionId};
use contention::Contention;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// Tunables of a lock server.
#[derive(Clone, Copy, Debug)]
pub struct LockLimits {
    /// Most cached locks and requests for them; further requests are refused with [`Refusal::Full`].
    pub max_locks: usize,
    /// Most of them that one session may have, so that no session keeps the others out of the table.
    pub max_locks_per_session: usize,
    /// Most direct requests that hold or await a lock at the same time.
    pub max_direct: usize,
    /// A client that has neither returned a lock nor made progress this long after the callback is overdue.
    pub callback_deadline_ns: u64,
    /// If an object has more incompatible locks than this, growth is limited. 0: growth is never cut.
    pub crowd_locks: usize,
    /// On an object with many locks, a grant ends this many bytes after its start. 0: growth is not cut.
    pub crowd_growth_bytes: u64,
    /// Requests, cached and direct, are widened to whole units of this many bytes, a power of two. The value 1 leaves
    /// the requests unchanged.
    pub granularity_bytes: u64,
    /// Whether grants may be larger than their requests.
    pub grows: bool,
    /// The contention detector.
    pub contention: ContentionLimits,
}

impl Default for LockLimits {
    fn default() -> Self {
        LockLimits {
            max_locks: 1 << 20,
            max_locks_per_session: 1 << 19,
            max_direct: 1 << 16,
            callback_deadline_ns: 30_000_000_000,
            crowd_locks: 32,
            crowd_growth_bytes: 32 << 20,
            granularity_bytes: 1,
            grows: true,
            contention: ContentionLimits::default(),
        }
    }
}

/// A request for a lock.
#[derive(Clone, Copy, Debug)]
pub struct LockRequest {
    /// The owner of the lock.
    pub owner: Owner,
    /// The object.
    pub object: ObjectId,
    /// The mode of the lock.
    pub mode: Mode,
    /// The bytes; not empty. A group lock is granted on all bytes.
    pub range: ByteRange,
    /// Whether more may be granted. A direct request never grows.
    pub growth: Growth,
}

/// The reason why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The range is empty.
    EmptyRange,
    /// The table is full, or the session has its share of it. Cached locks have to be returned first, or the I/O goes
    /// direct.
    Full,
    /// The request must not wait, and another lock or request conflicts with it.
    WouldBlock,
    /// A lock that was held before a restart conflicts with one that another client holds, or its id does not belong to
    /// an earlier start.
    Conflict,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::EmptyRange => "a lock needs at least one byte",
            Refusal::Full => "the lock table is full",
            Refusal::WouldBlock => "a lock or a request is in the way",
            Refusal::Conflict => "the lock held before the restart is not compatible with the locks of now",
        })
    }
}

impl std::error::Error for Refusal {}

/// The next action of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The request was granted. Answer the client, or start the direct request.
    Granted {
        /// The lock.
        id: LockId,
        /// The owner of the lock.
        owner: Owner,
        /// The object of the lock.
        object: ObjectId,
        /// The mode of the lock.
        mode: Mode,
        /// The granted range, which contains the requested one.
        range: ByteRange,
        /// Whether the object is contended.
        contended: bool,
    },
    /// Send the session a callback for the lock. Each callback is reported once. The message may overtake the one with
    /// the grant.
    Callback {
        /// The lock.
        id: LockId,
        /// The session that holds the lock.
        session: SessionId,
        /// The object of the lock.
        object: ObjectId,
        /// Mode of the waiting request.
        wanted_mode: Mode,
        /// Range of the waiting request.
        wanted_range: ByteRange,
        /// Whether the object is contended.
        contended: bool,
    },
}

/// A client that did not return a lock in time and has to be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// The client's session.
    pub session: SessionId,
    /// The lock.
    pub id: LockId,
    /// The lock's object.
    pub object: ObjectId,
}

/// Statistics of a lock server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockCounts {
    /// Requests, cached and direct, that were accepted, or refused because of a conflict.
    pub requests: u64,
    /// Conflicts counted by the contention detector.
    pub conflicts: u64,
    /// How often an object became contended.
    pub contended: u64,
    /// Number of these that became contended because of the time of few hand-overs, not because of the number of
    /// conflicts.
    pub contended_waiting: u64,
    /// Number of these that became contended with their first ping-pong, because other objects had become contended
    /// before.
    pub contended_foreseen: u64,
    /// Hand-overs after which the session that lost the lock requested it again too soon.
    pub ping_pongs: u64,
    /// Time of these hand-overs, ns.
    pub ping_pongs_ns: u64,
    /// Grants that were not immediate.
    pub waited: u64,
    /// Tree nodes that were visited.
    pub nodes: u64,
}

/// The locks and requests that ended together with a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Number of cached locks.
    pub locks: usize,
    /// Requests that waited and will never be granted.
    pub requests: Vec<LockId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Granted,
}

#[cfg_attr(test, derive(Clone))]
struct Lock {
    owner: Owner,
    object: ObjectId,
    mode: Mode,
    /// The requested range while the request waits, the granted range afterwards.
    range: ByteRange,
    growth: Growth,
    state: State,
    /// When the client is overdue, for a lock that was called back.
    deadline_ns: Option<u64>,
    /// The lock or request that this request watches while it waits.
    watching: Option<LockId>,
    /// Waiting requests that are checked again when this lock or request is gone.
    watchers: BTreeSet<LockId>,
}

impl Lock {
    fn new(owner: Owner, object: ObjectId, mode: Mode, range: ByteRange, growth: Growth, state: State) -> Lock {
        let (deadline_ns, watching, watchers) = (None, None, BTreeSet::new());
        Lock { owner, object, mode, range, growth, state, deadline_ns, watching, watchers }
    }
}

/// Number of combinations of owner kind and mode that have a tree of their own.
const CLASSES: usize = 7;
/// The class of group locks.
const GROUP: usize = 4;

/// Trees by class: cached reads, cached writes, direct reads, direct writes, group locks, members' reads, members'
/// writes.
type Trees = [Tree; CLASSES];

fn class(owner: Owner, mode: Mode) -> usize {
    match owner {
        Owner::Cached(_) => usize::from(mode.raw()),
        Owner::Direct(_) | Owner::Holder(_) => 2 + usize::from(mode.raw()),
        Owner::Group(..) => GROUP,
        Owner::Member(..) => 5 + usize::from(mode.raw()),
    }
}

/// The number that represents a session in the entries of trees. All group locks of one group have the same number.
fn party(owner: Owner) -> SessionId {
    owner.group().map_or(owner.session(), |group| SessionId(group.0))
}

#[derive(Clone, Copy)]
struct Object {
    granted: Trees,
    waiting: Trees,
}

impl Object {
    const NEW: Object = Object { granted: [Tree::EMPTY; CLASSES], waiting: [Tree::EMPTY; CLASSES] };

    fn is_unused(&self) -> bool {
        self.granted.iter().chain(&self.waiting).all(|tree| tree.is_empty())
    }
}

/// The trees whose locks conflict with (`owner`, `mode`) where they overlap; each comes with the session that it
/// excepts.
fn conflicting(owner: Owner, mode: Mode) -> impl Iterator<Item = (usize, Option<SessionId>)> {
    let writes = |class: usize| matches!(class, 1 | 3 | GROUP | 6);
    (0..CLASSES).filter(move |&class| mode == Mode::Write || writes(class)).map(move |class| {
        let exempt = match (owner, class) {
            (Owner::Group(_, group) | Owner::Member(_, group), GROUP) => Some(SessionId(group.0)),
            (Owner::Group(..), _) | (_, GROUP) => None,
            (_, 2..) if owner.is_direct() => None,
            _ => Some(owner.session()),
        };
        (class, exempt)
    })
}

/// The lock server of one target: a state machine without I/O. Every call costs O(log n), plus what it returns or
/// sends.
#[cfg_attr(test, derive(Clone))]
pub struct LockSpace {
    limits: LockLimits,
    generation: u16,
    sequence: u64,
    forest: Forest,
    objects: BTreeMap<ObjectId, Object>,
    locks: BTreeMap<LockId, Lock>,
    direct_count: usize,
    /// Sessions that hold group locks of an object, each with the number of its locks.
    members: BTreeMap<(ObjectId, SessionId), (GroupId, usize)>,
    sessions: BTreeSet<(SessionId, LockId)>,
    /// Number of cached locks and of requests for them, by session; without sessions that have none.
    cached: BTreeMap<SessionId, usize>,
    deadlines: BTreeSet<(u64, LockId)>,
    contention: Contention,
    counts: LockCounts,
    /// Actions for the caller: at most one grant and one callback for each lock in `locks`.
    actions: VecDeque<Action>,
    #[cfg(test)]
    pub(crate) planted_bug: Option<crate::tests::PlantedBug>,
}

impl LockSpace {
    /// An empty lock server. `generation` counts the starts of this target's lock server. It must be higher than at
    /// every earlier start, so that ids of locks held before a restart differ from new ones.
    pub fn new(limits: LockLimits, generation: u16) -> LockSpace {
        assert!(limits.granularity_bytes.is_power_of_two(), "lock granularity is a power of two");
        LockSpace {
            limits,
            generation,
            sequence: 0,
            forest: Forest::default(),
            objects: BTreeMap::new(),
            locks: BTreeMap::new(),
            direct_count: 0,
            members: BTreeMap::new(),
            sessions: BTreeSet::new(),
            cached: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            contention: Contention::new(limits.contention),
            counts: LockCounts::default(),
            actions: VecDeque::new(),
            #[cfg(test)]
            planted_bug: None,
        }
    }

    /// Sets the limits that apply from now on. Granted locks stay as they are.
    pub fn tune(&mut self, limits: LockLimits) {
        assert!(limits.granularity_bytes.is_power_of_two(), "lock granularity is a power of two");
        self.limits = limits;
        self.contention.tune(limits.contention);
    }

    /// Statistics so far.
    pub fn counts(&self) -> LockCounts {
        let found = self.contention.found();
        LockCounts {
            conflicts: found.conflicts,
            contended: found.contended,
            contended_waiting: found.by_waiting,
            contended_foreseen: found.foreseen,
            ping_pongs: found.ping_pongs,
            ping_pongs_ns: found.ping_pongs_ns,
            nodes: self.forest.visits.get(),
            ..self.counts
        }
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        while let Some(action) = self.actions.pop_front() {
            let (Action::Granted { id, .. } | Action::Callback { id, .. }) = action;
            if self.locks.contains_key(&id) {
                return Some(action);
            }
        }
        None
    }

    /// Returns whether the object is contended. Each answer to a lock request, read or write reports this.
    pub fn contended(&self, now_ns: u64, object: ObjectId) -> bool {
        self.contention.contended(now_ns, object)
    }

    /// The client that is most likely to know the end of the file: the holder of the highest cached write lock. A grown
    /// lock may reach beyond what its holder wrote. So if that holder reports no byte at or above its lock's start,
    /// continue with [`LockSpace::glimpse_below`].
    pub fn glimpse(&self, object: ObjectId) -> Option<(LockId, SessionId, ByteRange)> {
        self.highest_write(object, None)
    }

    /// The holder of the next lower cached write lock.
    pub fn glimpse_below(&self, object: ObjectId, id: LockId) -> Option<(LockId, SessionId, ByteRange)> {
        let lock = self.locks.get(&id)?;
        self.highest_write(object, Some((lock.range.start, id)))
    }

    /// As [`LockSpace::glimpse_below`], for a lock that may be released already and whose first byte was `start`.
    pub fn glimpse_under(&self, object: ObjectId, start: u64, id: LockId) -> Option<(LockId, SessionId, ByteRange)> {
        self.highest_write(object, Some((start, id)))
    }

    /// Objects of a file on which there are locks or requests.
    pub fn locked_objects(&self, ino: Ino) -> impl Iterator<Item = ObjectId> {
        let all = ObjectId { ino, stripe: 0 }..=ObjectId { ino, stripe: u32::MAX };
        self.objects.range(all).map(|(object, _)| *object)
    }

    /// The cached and group locks that a session holds.
    pub fn held(&self, session: SessionId) -> impl Iterator<Item = (LockId, Owner, ObjectId, Mode, ByteRange)> {
        let kept = move |lock: &&Lock| !lock.owner.is_direct() && lock.state == State::Granted;
        let ids = self.sessions.range((session, LockId(0))..=(session, LockId(u64::MAX))).map(|(_, id)| *id);
        ids.filter_map(move |id| {
            self.locks.get(&id).filter(kept).map(|lock| (id, lock.owner, lock.object, lock.mode, lock.range))
        })
    }

    /// The cached locks of a session that were called back and not returned yet.
    pub fn called_back(&self, session: SessionId) -> impl Iterator<Item = (LockId, ObjectId)> {
        let called = move |id: &LockId| self.locks.get(id).is_some_and(|lock| lock.deadline_ns.is_some());
        self.held(session).filter(move |(id, ..)| called(id)).map(|(id, _, object, ..)| (id, object))
    }

    fn highest_write(&self, object: ObjectId, below: Option<(u64, LockId)>) -> Option<(LockId, SessionId, ByteRange)> {
        let tree = self.objects.get(&object)?.granted[usize::from(Mode::Write.raw())];
        self.forest.highest(tree, below).map(|entry| (entry.id, entry.session, entry.range))
    }

    /// Returns whether `session` holds a cached or group lock that permits `mode` on all of `range`. Has to be checked
    /// before the target submits I/O that a client sends under its lock.
    pub fn holds(&self, session: SessionId, id: LockId, object: ObjectId, mode: Mode, range: ByteRange) -> bool {
        self.locks.get(&id).is_some_and(|lock| {
            !lock.owner.is_direct()
                && lock.owner.session() == session
                && lock.state == State::Granted
                && lock.object == object
                && lock.mode.covers(mode)
                && lock.range.contains(&range)
        })
    }

    /// Returns whether there is a lock or request with this id.
    pub fn contains(&self, id: LockId) -> bool {
        self.locks.contains_key(&id)
    }

    /// When [`LockSpace::poll_overdue`] has to be called next.
    pub fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|&(deadline_ns, _)| deadline_ns)
    }

    /// Locks that were called back at least `quiet_ns` ago and have made no progress since, those that were called back
    /// first at the front.
    pub fn unanswered(&self, now_ns: u64, quiet_ns: u64) -> impl Iterator<Item = (SessionId, LockId, ObjectId)> {
        let until_ns = now_ns.saturating_add(self.limits.callback_deadline_ns).saturating_sub(quiet_ns);
        let quiet = self.deadlines.range(..=(until_ns, LockId(u64::MAX)));
        quiet.filter_map(|(_, id)| self.locks.get(id).map(|lock| (lock.owner.session(), *id, lock.object)))
    }

    /// A lock whose callback deadline has passed; each lock is reported once.
    pub fn poll_overdue(&mut self, now_ns: u64) -> Option<Overdue> {
        let &(deadline_ns, id) = self.deadlines.first()?;
        if deadline_ns > now_ns {
            return None;
        }
        self.deadlines.pop_first();
        let lock = self.locks.get_mut(&id)?;
        lock.deadline_ns = None;
        Some(Overdue { session: lock.owner.session(), id, object: lock.object })
    }

    /// The client has made progress on a callback (a flush under that lock arrived or continued), so its deadline
    /// starts anew.
    pub fn progress(&mut self, now_ns: u64, session: SessionId, id: LockId) {
        if let Some(lock) = self.locks.get_mut(&id)
            && lock.owner.session() == session
            && let Some(deadline_ns) = lock.deadline_ns
        {
            self.deadlines.remove(&(deadline_ns, id));
            let deadline_ns = now_ns.saturating_add(self.limits.callback_deadline_ns);
            lock.deadline_ns = Some(deadline_ns);
            self.deadlines.insert((deadline_ns, id));
        }
    }

    /// Number of cached locks and waiting requests, and of direct requests.
    pub fn len(&self) -> (usize, usize) {
        (self.locks.len() - self.direct_count, self.direct_count)
    }

    /// Returns whether there is no lock and no request.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// The range of the granted lock with this id.
    pub fn granted_range(&self, id: LockId) -> Option<ByteRange> {
        self.locks.get(&id).filter(|lock| lock.state == State::Granted).map(|lock| lock.range)
    }

    fn entry(&self, id: LockId) -> Entry {
        let lock = &self.locks[&id];
        Entry { range: lock.range, id, session: party(lock.owner) }
    }

    /// A granted lock that conflicts with (`owner`, `mode`, `range`).
    fn granted_conflict(&self, object: &Object, owner: Owner, mode: Mode, range: ByteRange) -> Option<LockId> {
        conflicting(owner, mode)
            .find_map(|(class, exempt)| self.forest.find(object.granted[class], &Search::overlap(range, exempt)))
    }

    /// A waiting request older than `before` that conflicts with (`owner`, `mode`, `range`).
    fn waiting_conflict(
        &self,
        object: &Object,
        owner: Owner,
        mode: Mode,
        range: ByteRange,
        before: LockId,
    ) -> Option<LockId> {
        conflicting(owner, mode)
            .find_map(|(class, exempt)| self.forest.find(object.waiting[class], &Search { range, exempt, before }))
    }
}

#[cfg(test)]
pub(crate) mod inspect {
    //! State that the model tests check.
    use super::*;

    /// The state of one lock or request, for comparison.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub(crate) struct Seen {
        pub id: LockId,
        pub owner: Owner,
        pub object: ObjectId,
        pub mode: Mode,
        pub range: ByteRange,
        pub granted: bool,
        pub called: bool,
    }

    impl LockSpace {
        pub(crate) fn seen(&self) -> Vec<Seen> {
            let seen = |(&id, lock): (&LockId, &Lock)| Seen {
                id,
                owner: lock.owner,
                object: lock.object,
                mode: lock.mode,
                range: lock.range,
                granted: lock.state == State::Granted,
                called: lock.deadline_ns.is_some(),
            };
            self.locks.iter().map(seen).collect()
        }

        /// The sizes of everything that grows: tree nodes, objects, session entries, deadlines, members.
        pub(crate) fn footprint(&self) -> [usize; 5] {
            let objects = self.objects.len();
            [self.forest.len(), objects, self.sessions.len(), self.deadlines.len(), self.members.len()]
        }

        /// Bytes that locks and requests take, if B-tree nodes are two thirds full.
        pub(crate) fn bytes(&self) -> usize {
            let entry = size_of::<(LockId, Lock)>() + size_of::<(SessionId, LockId)>();
            let watchers: usize = self.locks.values().map(|lock| lock.watchers.len() * size_of::<LockId>()).sum();
            self.forest.bytes() + (self.locks.len() * entry + watchers) * 3 / 2
        }
    }
}
