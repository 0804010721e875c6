//! `Grants`: free blocks that are reserved for the caches of sessions (docs/design/grants.md).
//!
//! Owns: how many blocks each session was granted, the items of these grants, and how many of the blocks plans under
//! way have taken. Does not own: the size of each session's grant (the server), and the bytes that a session counts
//! against its grant (the client).
//!
//! A grant is a number, not a set of blocks. A write that its session declares as covered takes the blocks that it adds
//! to the zone from the grant: blocks that are neither mapped nor reserved for delayed bytes. For all other writes the
//! blocks of all grants count as taken.
//!
//! Invariants:
//!
//! * The item of a session is its grant without plans under way, because a plan that ends with the process has taken
//!   nothing.
//! * `total` is the sum of all grants, minus what plans have taken. This many blocks are free and reserved for their
//!   sessions, unless the file system below has become full.
//!
//! Bound: the sessions that the target knows.

use amphi_types::SessionId;
use amphi_types::item::{Key, Txn, tag};
use std::collections::BTreeMap;
use std::ops::Bound;

/// The grant of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    blocks: u64,
    /// The number of these blocks that plans under way have taken.
    lent: u64,
    /// Distinguishes this grant from all others since the start. A plan may end after the session for which it was
    /// made.
    serial: u64,
    /// The record that raised the grant last, and by how much. The session is informed when that record survives a
    /// kill.
    raised: (u64, u64),
}

/// Blocks that a plan has taken from a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loan {
    session: SessionId,
    serial: u64,
    pub(crate) blocks: u64,
}

/// The grants of a target.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    sessions: BTreeMap<SessionId, Held>,
    total: u64,
    /// The most that each session may have, from the free space as the server has seen it last. Spent blocks are
    /// granted anew up to this level.
    pub level: u64,
    serials: u64,
}

fn key(session: SessionId) -> Key {
    let mut key = vec![tag::GRANT];
    key.extend(session.0.to_be_bytes());
    key
}

/// The session in an item's key.
pub(crate) fn session_of(key: &[u8]) -> Option<SessionId> {
    let (&kind, rest) = key.split_first()?;
    (kind == tag::GRANT).then_some(())?;
    Some(SessionId(u64::from_be_bytes(rest.try_into().ok()?)))
}

impl Grants {
    /// Blocks that are granted and that no plan has taken.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Blocks that are granted to one session and that no plan has taken.
    pub fn left(&self, session: SessionId) -> u64 {
        self.sessions.get(&session).map_or(0, |held| held.blocks - held.lent)
    }

    /// The grant of a session, including plans under way. Returns `None` if the session has never requested a grant.
    pub fn held(&self, session: SessionId) -> Option<u64> {
        self.sessions.get(&session).map(|held| held.blocks)
    }

    /// The grant that may be reported to the session, when records up to `kept` survive a kill.
    pub fn told(&self, session: SessionId, kept: u64) -> Option<u64> {
        let held = self.sessions.get(&session)?;
        let (record, blocks) = held.raised;
        Some(if record > kept { held.blocks.saturating_sub(blocks) } else { held.blocks })
    }

    /// Sessions with a grant.
    pub fn holders(&self) -> Vec<SessionId> {
        self.sessions.iter().filter(|(_, held)| held.blocks > held.lent).map(|(session, _)| *session).collect()
    }

    /// Called when the session has a cache, and is granted blocks from now on when there is space.
    pub fn begin(&mut self, session: SessionId) {
        if !self.sessions.contains_key(&session) {
            self.serials += 1;
            self.sessions.insert(session, Held { serial: self.serials, ..Held::default() });
        }
    }

    /// Grants more blocks. The record of this has to be named with `raised_by` before the session is informed.
    pub fn raise(&mut self, session: SessionId, blocks: u64, txn: &mut Txn) {
        if let Some(held) = self.sessions.get_mut(&session) {
            held.blocks += blocks;
            held.raised = (u64::MAX, blocks);
            self.total += blocks;
            Grants::log(session, held.blocks, txn);
        }
    }

    /// Returns whether the record of the last raise survives a kill, so that another raise may follow.
    pub fn is_settled(&self, session: SessionId, kept: u64) -> bool {
        self.sessions.get(&session).is_some_and(|held| held.raised.0 <= kept)
    }

    /// Names the record of the last raise.
    pub fn raised_by(&mut self, session: SessionId, record: u64) {
        if let Some(held) = self.sessions.get_mut(&session) {
            held.raised.0 = record;
        }
    }

    /// The session returns this many blocks.
    pub fn give_back(&mut self, session: SessionId, blocks: u64, txn: &mut Txn) {
        if let Some(held) = self.sessions.get_mut(&session) {
            let back = blocks.min(held.blocks - held.lent);
            held.blocks -= back;
            self.total -= back;
            Grants::log(session, held.blocks, txn);
        }
    }

    /// Called when the session has ended.
    pub fn end(&mut self, session: SessionId, txn: &mut Txn) {
        if let Some(held) = self.sessions.remove(&session) {
            self.total -= held.blocks - held.lent;
            txn.delete(key(session));
        }
    }

    /// A plan takes blocks of the session's grant.
    pub(crate) fn lend(&mut self, session: SessionId, blocks: u64) -> Option<Loan> {
        let held = self.sessions.get_mut(&session)?;
        let blocks = blocks.min(held.blocks - held.lent);
        held.lent += blocks;
        self.total -= blocks;
        Some(Loan { session, serial: held.serial, blocks })
    }

    /// Called when the plan was given up, so its blocks return to the grant.
    pub(crate) fn return_loan(&mut self, loan: Loan) {
        if let Some(held) = self.sessions.get_mut(&loan.session).filter(|held| held.serial == loan.serial) {
            held.lent -= loan.blocks;
            self.total += loan.blocks;
        }
    }

    /// Called when this record executes the plan: `added` blocks belong to the file now. If there is `room` for as many
    /// blocks again, and the session has no more than its share, they are granted again, and nothing has to be logged.
    pub(crate) fn spend(&mut self, loan: Loan, added: u64, room: u64, txn: &mut Txn) {
        let Some(held) = self.sessions.get_mut(&loan.session).filter(|held| held.serial == loan.serial) else {
            return;
        };
        let spent = loan.blocks.min(added);
        held.lent -= loan.blocks;
        self.total += loan.blocks - spent;
        if held.blocks <= self.level && spent <= room {
            self.total += spent;
        } else if spent > 0 {
            held.blocks -= spent;
            Grants::log(loan.session, held.blocks, txn);
        }
    }

    fn log(session: SessionId, blocks: u64, txn: &mut Txn) {
        match blocks {
            0 => txn.delete(key(session)),
            _ => txn.put(key(session), blocks.to_le_bytes()),
        }
    }

    pub(crate) fn load(&mut self, session: SessionId, value: &[u8]) -> Result<(), String> {
        let blocks = value.try_into().map_err(|_| format!("the grant of session {} does not decode", session.0))?;
        let blocks = u64::from_le_bytes(blocks);
        self.begin(session);
        let held = self.sessions.entry(session).or_default();
        self.total = (self.total - held.blocks).checked_add(blocks).ok_or("the grants are more than there can be")?;
        held.blocks = blocks;
        Ok(())
    }

    pub(crate) fn value(&self, session: SessionId) -> Option<Vec<u8>> {
        self.sessions.get(&session).filter(|held| held.blocks > 0).map(|held| held.blocks.to_le_bytes().to_vec())
    }

    pub(crate) fn keys_after(&self, after: Option<SessionId>, max: usize) -> Vec<Key> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let held = self.sessions.range((from, Bound::Unbounded)).filter(|(_, held)| held.blocks > 0);
        held.take(max).map(|(session, _)| key(*session)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: SessionId = SessionId(7);

    /// Goal: a reported grant never exceeds the state after a kill, and a plan that ends behind its session changes
    /// nothing. Method: grants that are not kept; blocks that are used, granted again and returned; and a session that
    /// ends and begins again. The items are loaded into another store.
    #[test]
    fn grants_are_told_when_they_are_kept() {
        let (mut grants, mut txn) = (Grants::default(), Txn::default());
        assert_eq!((grants.told(S, 9), grants.lend(S, 3)), (None, None), "it has not asked");
        grants.begin(S);
        grants.raise(S, 10, &mut txn);
        assert_eq!((grants.told(S, 9), grants.total()), (Some(0), 10));
        grants.raised_by(S, 12);
        assert_eq!((grants.told(S, 11), grants.told(S, 12)), (Some(0), Some(10)));
        let [a, b, c] = [4, 3, 9].map(|blocks| grants.lend(S, blocks).expect("a loan"));
        assert_eq!((c.blocks, grants.total(), grants.left(S), grants.held(S)), (3, 0, 0, Some(10)));
        grants.level = 10;
        grants.spend(a, 9, 4, &mut txn);
        assert_eq!((grants.held(S), grants.total()), (Some(10), 4));
        grants.spend(b, 9, 2, &mut txn);
        assert_eq!((grants.held(S), grants.total()), (Some(7), 4));
        grants.return_loan(c);
        assert_eq!((grants.total(), grants.told(S, 12)), (7, Some(7)));
        let mut loaded = Grants::default();
        for change in txn.changes() {
            loaded.load(session_of(change.key()).expect("a key"), change.value().expect("a value")).unwrap();
        }
        assert_eq!((loaded.held(S), loaded.total(), loaded.told(S, 0)), (Some(7), 7, Some(7)));
        let late = grants.lend(S, 2).expect("a loan");
        grants.end(S, &mut txn);
        grants.begin(S);
        grants.raise(S, 5, &mut txn);
        grants.return_loan(late);
        assert_eq!((grants.total(), grants.left(S)), (5, 5));
        grants.give_back(S, 9, &mut txn);
        assert_eq!((grants.total(), grants.value(S), grants.keys_after(None, 9).len()), (0, None, 0));
    }
}
