//! The locks of one owner on one file: a new lock replaces, cuts, joins and converts its ranges in one step.
//!
//! Owns: the arithmetic of an owner's own ranges, and applying it to the tables. Does not own: conflicts with other
//! owners.
//!
//! Invariant: the pieces of one owner on one file are disjoint, and two adjacent pieces differ in kind. A change looks
//! only at the pieces in its range and at its two ends.

use super::{File, FileLock, FileLocks, LockKind, Party, Piece, Table, WaitId};
use crate::mode::LockId;
use crate::tree::Entry;
use amphi_types::{ByteRange, Ino, SessionId};
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// A piece that the owner shall hold.
#[derive(Clone, Copy)]
struct Wanted {
    range: ByteRange,
    kind: LockKind,
    pid: u32,
}

/// A change of the pieces of an owner on a file.
pub(super) struct Plan {
    /// Starts of pieces to remove.
    gone: SmallVec<[u64; 4]>,
    /// Pieces to add.
    come: SmallVec<[Wanted; 3]>,
    acquires: bool,
}

impl Plan {
    /// The number by which the pieces grow.
    pub(super) fn growth(&self) -> isize {
        self.come.len() as isize - self.gone.len() as isize
    }
}

impl FileLocks {
    /// Returns whether the owner already holds all of `range` as one piece of this kind.
    pub(super) fn covered(&self, party: Party, ino: Ino, range: ByteRange, kind: LockKind) -> bool {
        let below = self.pieces.range((party, ino, 0)..=(party, ino, range.start)).next_back();
        below.is_some_and(|(_, piece)| piece.kind == kind && piece.end >= range.end)
    }

    /// Returns whether the owner holds anything on the file.
    pub(super) fn holds_any(&self, party: Party, ino: Ino) -> bool {
        self.pieces.range((party, ino, 0)..=(party, ino, u64::MAX)).next().is_some()
    }

    pub(super) fn pieces_of(&self, party: Party) -> impl Iterator<Item = (Ino, u64, &Piece)> {
        let all = (party, Ino(0), 0)..=(party, Ino(u64::MAX), u64::MAX);
        self.pieces.range(all).map(|(&(_, ino, start), piece)| (ino, start, piece))
    }

    /// The piece as a lock.
    pub(super) fn lock(&self, party: Party, ino: Ino, start: u64, piece: &Piece) -> FileLock {
        let owner = self.parties[&party].owner;
        FileLock { owner, pid: piece.pid, ino, kind: piece.kind, range: ByteRange::new(start, piece.end) }
    }

    /// The change after which the owner holds `range` in mode `to`, or holds nothing of it.
    pub(super) fn plan(&self, party: Option<Party>, ino: Ino, range: ByteRange, to: Option<(LockKind, u32)>) -> Plan {
        let mut plan = Plan { gone: SmallVec::new(), come: SmallVec::new(), acquires: to.is_some() };
        let mut joined = range;
        if let Some(party) = party {
            let below = self.pieces.range((party, ino, 0)..(party, ino, range.start)).next_back();
            let rest = self.pieces.range((party, ino, range.start)..=(party, ino, range.end));
            for (&(_, _, start), piece) in below.into_iter().chain(rest) {
                let held = ByteRange::new(start, piece.end);
                let touches = held.start <= range.end && range.start <= held.end;
                if touches && to.is_some_and(|(kind, _)| kind == piece.kind) {
                    joined = ByteRange::new(joined.start.min(held.start), joined.end.max(held.end));
                    plan.gone.push(start);
                } else if held.overlaps(&range) {
                    plan.gone.push(start);
                    for left in [ByteRange::new(held.start, range.start), ByteRange::new(range.end, held.end)] {
                        if !left.is_empty() {
                            plan.come.push(Wanted { range: left, kind: piece.kind, pid: piece.pid });
                        }
                    }
                }
            }
        }
        if let Some((kind, pid)) = to {
            plan.come.push(Wanted { range: joined, kind, pid });
        }
        plan
    }

    /// Applies a plan. Requests that it may let be granted are added to `woken`.
    pub(super) fn carry_out(&mut self, party: Party, ino: Ino, table: Table, plan: Plan, woken: &mut BTreeSet<WaitId>) {
        if plan.gone.is_empty() && plan.come.is_empty() {
            return;
        }
        for &start in &plan.gone {
            let Some(piece) = self.pieces.remove(&(party, ino, start)) else { continue };
            if let Some(file) = self.files.get_mut(&(ino, table)) {
                let found = self.forest.remove(&mut file.held[piece.kind as usize], start, piece.id);
                debug_assert!(found, "every piece is in its tree");
            }
            self.wake_watchers(piece.id, woken);
        }
        for wanted in &plan.come {
            let id = LockId(self.next_id());
            let piece = Piece { end: wanted.range.end, id, kind: wanted.kind, pid: wanted.pid };
            self.pieces.insert((party, ino, wanted.range.start), piece);
            let file = self.files.entry((ino, table)).or_insert(File::NEW);
            let entry = Entry { range: wanted.range, id, session: SessionId(party.0) };
            self.forest.insert(&mut file.held[wanted.kind as usize], entry, false);
        }
        if let Some(file) = self.files.get_mut(&(ino, table)) {
            file.locks = file.locks + plan.come.len() - plan.gone.len();
        }
        let Some(state) = self.parties.get_mut(&party) else { return };
        state.locks = state.locks + plan.come.len() - plan.gone.len();
        let (session, waits) = (state.owner.session, state.waits);
        self.count(session, plan.come.len(), plan.gone.len());
        if plan.acquires && waits > 0 {
            // The owner is a holder now, so its requests do not wait behind earlier ones any more.
            let own = self.waits_of.range((party, WaitId(0))..=(party, WaitId(u64::MAX)));
            woken.extend(own.map(|&(_, id)| id).filter(|id| self.waits.get(id).is_some_and(|wait| wait.ino == ino)));
        }
    }
}
