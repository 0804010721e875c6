//! Modes, owners and ids of locks, and the relation "these two conflict".
//!
//! Owns: the vocabulary of extent locks. Does not own: any table of locks.
//!
//! Invariant: conflict is symmetric. Two locks of one session conflict only if both are direct requests, or if one of
//! them is a group lock. A mount orders its own I/O itself, so its own locks need not exclude each other in other
//! cases. Two direct requests must, because each is atomic. In addition, data that a mount cached before it joined a
//! group has to be dropped.

use amphi_types::{ByteRange, SessionId};

/// The access to the bytes that a lock permits to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mode {
    /// The holder may read, and cache clean data; the mode is shared.
    Read = 0,
    /// Read, change and cache dirty data; exclusive. A `Write` lock permits everything that a `Read` lock permits.
    Write = 1,
}

impl Mode {
    /// The mode with this number in messages.
    pub fn from_raw(raw: u8) -> Option<Mode> {
        match raw {
            0 => Some(Mode::Read),
            1 => Some(Mode::Write),
            _ => None,
        }
    }

    /// The number in messages.
    pub fn raw(self) -> u8 {
        self as u8
    }

    /// Returns whether a lock of this mode permits what `other` permits.
    pub fn covers(self, other: Mode) -> bool {
        self >= other
    }
}

/// Number of a group of cooperating clients. The clients choose the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

/// The owner of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A client, which caches under the lock until it is called back, aged or evicted.
    Cached(SessionId),
    /// The target itself, while it carries out one direct request of that session. The lock covers exactly the request,
    /// lasts as long as it, never grows and is never called back.
    Direct(SessionId),
    /// As `Direct`, for bytes that the session has changed under cached locks of its own (even read locks) and now
    /// writes back. It passes all waiting requests. One of the waiting requests may wait for just such a lock, whose
    /// return waits for this request. The lock server treats a `Holder` as `Direct` if the session no longer holds a
    /// lock on the bytes.
    Holder(SessionId),
    /// As `Direct`, for a session that holds a lock of that group on the object. The lock server turns `Direct` into
    /// this kind itself.
    Member(SessionId, GroupId),
    /// A client that does its I/O under a group lock, which always covers all bytes. It excludes everything but locks
    /// of the same group and their members' direct requests. A group lock is never called back and never overdue.
    Group(SessionId, GroupId),
}

impl Owner {
    /// The session for which the lock exists.
    pub fn session(self) -> SessionId {
        match self {
            Owner::Cached(session)
            | Owner::Direct(session)
            | Owner::Holder(session)
            | Owner::Member(session, _)
            | Owner::Group(session, _) => session,
        }
    }

    /// Returns whether the target itself holds the lock.
    pub fn is_direct(self) -> bool {
        matches!(self, Owner::Direct(_) | Owner::Holder(_) | Owner::Member(..))
    }

    /// The group of a group lock.
    pub fn group(self) -> Option<GroupId> {
        if let Owner::Group(_, group) = self { Some(group) } else { None }
    }

    /// Returns whether locks of both owners never conflict.
    pub fn exempt(self, other: Owner) -> bool {
        use Owner::{Group, Member};
        match (self, other) {
            (Group(_, a), Group(_, b) | Member(_, b)) | (Member(_, a), Group(_, b)) => a == b,
            (Group(..), _) | (_, Group(..)) => false,
            _ => self.session() == other.session() && !(self.is_direct() && other.is_direct()),
        }
    }
}

/// Returns whether two locks on one object exclude each other.
pub fn conflict(a: (Owner, Mode, ByteRange), b: (Owner, Mode, ByteRange)) -> bool {
    (a.1 == Mode::Write || b.1 == Mode::Write) && a.2.overlaps(&b.2) && !a.0.exempt(b.0)
}

/// Whether a grant may be larger than its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// The largest range without a conflict.
    Largest,
    /// Exactly the requested range, for callers that know their pattern.
    Exact,
}

/// Id of a lock or of a request for one, unique within a target over all its restarts. The upper 16 bits count starts
/// of the lock server, the lower 48 bits requests since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId(pub u64);

impl LockId {
    /// Joins the count of server starts and the count of requests.
    pub fn new(generation: u16, sequence: u64) -> LockId {
        debug_assert!(sequence < 1 << 48);
        LockId((u64::from(generation) << 48) | sequence)
    }

    /// The count of server starts.
    pub fn generation(self) -> u16 {
        (self.0 >> 48) as u16
    }
}
