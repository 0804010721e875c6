//! Slots: credits, the identity of requests, and the rule by which a request that is sent again is executed once.
//!
//! Owns: `SlotTable` (client: which request may be sent, under which id, what to send again in which order), `Window`
//! (server: whether this request is permitted now) and `ReplyTable` (target: execute a request, or repeat its stored
//! answer). Does not own: queues of waiting calls and connections (`transport`), what is stored durably (`zone`).
//!
//! Invariants: a slot is used by one request at a time; its sequence numbers only increase; a slot is free again when
//! the reply has arrived, not when the caller stops waiting. So a table of one reply per slot is enough to answer every
//! possible resend. The client reserves the last urgent slot for `Represent`, which therefore never waits for requests
//! that themselves wait for it.

use crate::{Lane, RequestId};
use std::fmt;

/// Most slots of a lane.
pub const CREDITS_MAX: u16 = 1024;
/// Fewest slots of the urgent lane: one to use and the reserve.
pub const URGENT_CREDITS_MIN: u16 = 2;
/// Slots that a server grants to the normal lane by default: 64 requests of 1 MiB cover the bandwidth-delay product of
/// a 100 Gbit/s link at 5 ms.
pub const NORMAL_CREDITS: u16 = 64;
/// Slots that a server grants to the urgent lane by default.
pub const URGENT_CREDITS: u16 = 32;
/// Most connections of a session to one server.
pub const LINKS_MAX: u16 = 32;
/// The number of slots of each connection among those of the session: a target records a request under the connection's
/// number times this, plus the slot.
pub const LINK_SLOTS: u16 = 2 * CREDITS_MAX;
const _: () = assert!(LINKS_MAX as u32 * LINK_SLOTS as u32 <= 1 << 16, "every slot of a session has a number");
/// Of the urgent slots, a client reserves one in this many for answers to pushes.
const ANSWER_SHARE: u16 = 4;
/// Of the normal slots, a client reserves one in this many for requests that wait for no lock.
const LOCKLESS_SHARE: u16 = 4;

/// Credits for which no table can be made, or that differ from the credits of the session before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadCredits {
    /// Normal lane.
    pub normal: u16,
    /// Urgent lane.
    pub urgent: u16,
}

impl fmt::Display for BadCredits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} normal and {} urgent credits are not usable", self.normal, self.urgent)
    }
}

impl std::error::Error for BadCredits {}

/// Returns the lane that slot `slot` belongs to.
fn lane_of(slot: u16, normal: u16) -> Lane {
    if slot < normal { Lane::Normal } else { Lane::Urgent }
}

fn check_credits(normal: u16, urgent: u16) -> Result<(), BadCredits> {
    let fits = (1..=CREDITS_MAX).contains(&normal) && (URGENT_CREDITS_MIN..=CREDITS_MAX).contains(&urgent);
    if fits { Ok(()) } else { Err(BadCredits { normal, urgent }) }
}

#[derive(Clone, Copy)]
struct ClientSlot {
    seq: u64,
    /// Position in the order of issue while a request is outstanding, 0 when free.
    issued: u64,
    /// The request may wait for locks.
    locking: bool,
}

/// The client's slots.
pub struct SlotTable {
    normal: u16,
    /// Free urgent slots that only answers to pushes may take.
    for_answers: usize,
    /// Requests that may wait for locks, and how many of them may be outstanding.
    locking: u16,
    locking_max: u16,
    slots: Vec<ClientSlot>,
    /// Free slots of each lane; the last one released is used again first, so only few slots are in use.
    free: [Vec<u16>; 2],
    issued: u64,
}

impl SlotTable {
    /// A table for the credits of a `Welcome`.
    pub fn new(normal: u16, urgent: u16) -> Result<SlotTable, BadCredits> {
        check_credits(normal, urgent)?;
        let slots = vec![ClientSlot { seq: 0, issued: 0, locking: false }; usize::from(normal) + usize::from(urgent)];
        let reserve = normal + urgent - 1;
        Ok(SlotTable {
            normal,
            for_answers: usize::from(urgent / ANSWER_SHARE),
            locking: 0,
            locking_max: normal - normal / LOCKLESS_SHARE,
            slots,
            free: [(0..normal).rev().collect(), (normal..reserve).rev().collect()],
            issued: 0,
        })
    }

    /// Number of slots of both lanes, the reserve included.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether a `Welcome` grants the credits for which this table was made: credits are fixed for the life of
    /// a session.
    pub fn check(&self, normal: u16, urgent: u16) -> Result<(), BadCredits> {
        let same = normal == self.normal && usize::from(normal) + usize::from(urgent) == self.slots.len();
        if same { Ok(()) } else { Err(BadCredits { normal, urgent }) }
    }

    /// Returns whether `acquire` would succeed.
    pub fn has_free(&self, lane: Lane) -> bool {
        match lane {
            Lane::Normal => !self.free[0].is_empty(),
            Lane::Locking => !self.free[0].is_empty() && self.locking < self.locking_max,
            Lane::Urgent => self.free[1].len() > self.for_answers,
            Lane::Answer => !self.free[1].is_empty(),
        }
    }

    /// Takes a free slot of the lane and numbers a new request.
    pub fn acquire(&mut self, lane: Lane) -> Option<RequestId> {
        if !self.has_free(lane) {
            return None;
        }
        let slot = self.free[usize::from(!matches!(lane, Lane::Normal | Lane::Locking))].pop()?;
        self.slots[usize::from(slot)].locking = lane == Lane::Locking;
        self.locking += u16::from(lane == Lane::Locking);
        Some(self.issue(slot))
    }

    /// Takes the reserve, if no request is outstanding in the reserve.
    pub fn acquire_reserve(&mut self) -> Option<RequestId> {
        let slot = self.reserve();
        (self.slots[usize::from(slot)].issued == 0).then(|| self.issue(slot))
    }

    fn issue(&mut self, slot: u16) -> RequestId {
        self.issued += 1;
        let s = &mut self.slots[usize::from(slot)];
        s.seq += 1;
        s.issued = self.issued;
        RequestId { slot, seq: s.seq }
    }

    /// The slot kept for `Represent`.
    pub fn reserve(&self) -> u16 {
        self.slots.len() as u16 - 1
    }

    /// Returns whether `id` is outstanding.
    pub fn is_outstanding(&self, id: RequestId) -> bool {
        self.slots.get(usize::from(id.slot)).is_some_and(|s| s.issued != 0 && s.seq == id.seq)
    }

    /// The request `id` is answered, or its connection is closed and the request will not be sent again. Returns
    /// whether it was outstanding.
    pub fn release(&mut self, id: RequestId) -> bool {
        if !self.is_outstanding(id) {
            return false;
        }
        let slot = &mut self.slots[usize::from(id.slot)];
        slot.issued = 0;
        self.locking -= u16::from(std::mem::take(&mut slot.locking));
        if id.slot != self.reserve() {
            self.free[usize::from(id.slot >= self.normal)].push(id.slot);
        }
        true
    }

    /// Returns the outstanding requests in the order of their issue, which are sent again over a new connection.
    pub fn outstanding(&self) -> Vec<RequestId> {
        let mut busy: Vec<(u64, RequestId)> = (0u16..)
            .zip(&self.slots)
            .filter(|(_, s)| s.issued != 0)
            .map(|(slot, s)| (s.issued, RequestId { slot, seq: s.seq }))
            .collect();
        busy.sort_unstable_by_key(|&(issued, _)| issued);
        busy.into_iter().map(|(_, id)| id).collect()
    }
}

/// The reason why a server cuts a client that does not keep to its credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The slot is not of the lane, or beyond the credits.
    Slot {
        /// The request that names the slot.
        id: RequestId,
        /// The lane that was named.
        lane: Lane,
    },
    /// The slot's request is not answered yet, or its reply has not left.
    Busy {
        /// The new request.
        id: RequestId,
    },
    /// The sequence number did not rise.
    Sequence {
        /// The new request.
        id: RequestId,
        /// The last number of the slot.
        last: u64,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Slot { id, lane } => write!(f, "slot {} is not among the {lane:?} credits", id.slot),
            Violation::Busy { id } => {
                write!(f, "credits exceeded: slot {} has a request in flight, or a reply that was not read", id.slot)
            }
            Violation::Sequence { id, last } => {
                write!(f, "slot {} went from sequence number {last} to {}", id.slot, id.seq)
            }
        }
    }
}

/// The stage of the last request of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The request is being executed.
    Open,
    /// The reply waits to be sent.
    Answered,
    /// The reply was sent, or no request was in the slot.
    Free,
}

/// The server's record of the client's slots on one connection; it enforces the credits. A slot is occupied until its
/// reply is sent, so that a client that does not read has no more replies in memory than credits.
pub struct Window {
    normal: u16,
    /// Last sequence number of each slot, and the stage of that request.
    slots: Vec<(u64, Stage)>,
}

impl Window {
    /// A window for the credits of a `Welcome`.
    pub fn new(normal: u16, urgent: u16) -> Result<Window, BadCredits> {
        check_credits(normal, urgent)?;
        Ok(Window { normal, slots: vec![(0, Stage::Free); usize::from(normal) + usize::from(urgent)] })
    }

    /// A request arrived.
    pub fn handle_request(&mut self, lane: Lane, id: RequestId) -> Result<(), Violation> {
        let normal = self.normal;
        match self.slots.get_mut(usize::from(id.slot)) {
            Some(_) if lane_of(id.slot, normal) != lane => Err(Violation::Slot { id, lane }),
            None => Err(Violation::Slot { id, lane }),
            Some((_, Stage::Open | Stage::Answered)) => Err(Violation::Busy { id }),
            Some(&mut (last, _)) if id.seq <= last => Err(Violation::Sequence { id, last }),
            Some(slot) => {
                *slot = (id.seq, Stage::Open);
                Ok(())
            }
        }
    }

    /// The reply to the request waits to be sent from now on. Returns false if the request is not (or no longer) open
    /// here.
    pub fn handle_reply(&mut self, id: RequestId) -> bool {
        self.advance(id, Stage::Open, Stage::Answered)
    }

    /// The reply to the request is about to be sent, so the slot is free. Returns false if no reply for the request
    /// waits here.
    pub fn handle_sent(&mut self, id: RequestId) -> bool {
        self.advance(id, Stage::Answered, Stage::Free)
    }

    fn advance(&mut self, id: RequestId, from: Stage, to: Stage) -> bool {
        match self.slots.get_mut(usize::from(id.slot)) {
            Some((seq, stage)) if *seq == id.seq && *stage == from => {
                *stage = to;
                true
            }
            _ => false,
        }
    }

    /// Requests without a reply.
    pub fn open(&self) -> usize {
        self.slots.iter().filter(|(_, stage)| *stage == Stage::Open).count()
    }
}

/// The next step of a target for a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Begin<'a, T> {
    /// Execute the request.
    Execute,
    /// The request was executed: this was the reply.
    Replay(&'a T),
    /// The request is being executed: the reply is sent over the connection that sent it last.
    InProgress,
    /// A later request of the slot was seen: the client has this reply already. Do nothing.
    Old,
}

enum Kept<T> {
    Running,
    Done(T),
    /// The request was answered, and the client has sent later requests in the same slot since.
    Past,
}

/// The last request of each slot of one session, with its reply; each target keeps such a table.
pub struct ReplyTable<T> {
    slots: Vec<Option<(u64, Kept<T>)>>,
}

impl<T> Default for ReplyTable<T> {
    fn default() -> Self {
        ReplyTable { slots: Vec::new() }
    }
}

impl<T> ReplyTable<T> {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    fn slot(&mut self, slot: u16) -> &mut Option<(u64, Kept<T>)> {
        let at = usize::from(slot);
        if at >= self.slots.len() {
            self.slots.resize_with(at + 1, || None);
        }
        &mut self.slots[at]
    }

    /// A request arrived. After `Execute` the caller has to call `finish` or `forget`. Slots are bounded by the
    /// connection's `Window`, at most `2 * CREDITS_MAX`.
    pub fn begin(&mut self, id: RequestId) -> Begin<'_, T> {
        let slot = self.slot(id.slot);
        if slot.as_ref().is_none_or(|(seq, _)| *seq < id.seq) {
            *slot = Some((id.seq, Kept::Running));
            return Begin::Execute;
        }
        match slot {
            Some((seq, _)) if *seq > id.seq => Begin::Old,
            Some((_, Kept::Done(reply))) => Begin::Replay(reply),
            Some((_, Kept::Past)) => Begin::Old,
            _ => Begin::InProgress,
        }
    }

    /// The request was executed. A reply that a later request of the slot overtook is not kept.
    pub fn finish(&mut self, id: RequestId, reply: T) {
        if let Some((seq, kept)) = self.slot(id.slot)
            && *seq == id.seq
        {
            *kept = Kept::Done(reply);
        }
    }

    /// Returns whether no later request of the slot was seen.
    pub fn is_last(&self, id: RequestId) -> bool {
        matches!(self.slots.get(usize::from(id.slot)), Some(Some((seq, _))) if *seq == id.seq)
    }

    /// The request left no trace and may be executed again: reads keep no reply.
    pub fn forget(&mut self, id: RequestId) {
        let slot = self.slot(id.slot);
        if matches!(slot, Some((seq, Kept::Running)) if *seq == id.seq) {
            *slot = Some((id.seq.saturating_sub(1), Kept::Past));
        }
    }

    /// Puts back what a log recorded.
    pub fn restore(&mut self, id: RequestId, reply: T) {
        let slot = self.slot(id.slot);
        if slot.as_ref().is_none_or(|(seq, _)| *seq <= id.seq) {
            *slot = Some((id.seq, Kept::Done(reply)));
        }
    }

    /// Replies kept, for a checkpoint.
    pub fn kept(&self) -> impl Iterator<Item = (RequestId, &T)> {
        (0u16..).zip(&self.slots).filter_map(|(slot, kept)| match kept {
            Some((seq, Kept::Done(reply))) => Some((RequestId { slot, seq: *seq }, reply)),
            _ => None,
        })
    }
}
