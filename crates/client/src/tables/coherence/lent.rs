//! `Lent`: which attributes a front end caches under this mount's tokens, and how they are invalidated.
//!
//! Owns: which inodes' attributes got a timeout in shared mode, until when, and that they are invalidated before a
//! revocation is answered, before this mount's own change is sent, and when tokens are lost. Does not own: the tokens
//! (`tokens`), timeouts in sole mode (`sharing`), changes that the front end itself has under way (it gives their
//! inodes no timeout).
//!
//! Invariants: attributes get a timeout only if the value that this mount caches under their token shows exactly the
//! same attributes when the timeout is given. The record is made while the token cannot go, so a revocation of the
//! token finds the record. Invalidating attributes waits for nothing: the kernel drops them, and ignores an answer to a
//! request from before. There is one exception: the kernel may be just learning of the inode by an answer that the
//! mount has given a moment before. So the invalidation is repeated until that answer has arrived.
//!
//! After an invalidation an inode *rests*. Linux drops the answers to requests from before the invalidation, and a
//! `read` that has made such a request uses the earlier size. So no answer gets a timeout, and no second invalidation
//! is needed, until an answer without a timeout was given and has had time to arrive. From then on, all answers that
//! may be dropped show the attributes that the kernel uses anyway. Rests also spare a notification for each change of
//! files that several mounts change in turns.
//!
//! Bound: `LENT_MAX` inodes, some 40 bytes each. Beyond that nothing gets a timeout until expired records are removed.
//! At most this many inodes rest. If there would be more, the inode with the lowest number no longer rests.

use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Most inodes whose attributes have a timeout.
const LENT_MAX: usize = 131_072;
/// The kernel counts the timeout from the moment when it receives the answer, which may be this much later. The
/// server's own margin is longer.
const LATE_NS: u64 = 500_000_000;
/// After this time an answer has reached the kernel.
const ARRIVED_NS: u64 = 250_000_000;
/// How often an invalidation of an unknown inode is repeated until then.
pub(crate) const LOOK_NS: u64 = 1_000_000;

/// How often expired records are removed.
const SWEEP_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy)]
struct Loan {
    until_ns: u64,
    lent_ns: u64,
}

/// The events since an inode's attributes were invalidated.
#[derive(Clone, Copy)]
enum Rest {
    /// The attributes were not given in an answer.
    Unasked,
    /// The first answer, which has no timeout, was given at this moment.
    Answered(u64),
}

#[derive(Default)]
struct Notes {
    loans: BTreeMap<Ino, Loan>,
    rests: BTreeMap<Ino, Rest>,
}

/// The records of a mount.
#[derive(Default)]
pub(crate) struct Lent {
    attributes: Mutex<Notes>,
    /// When expired records were removed last.
    swept_ns: AtomicU64,
}

impl Lent {
    /// Records that attributes get a timeout, where `left_ns` of their token's life are left. Returns the timeout; zero
    /// means none. It has to be called while the token cannot be revoked.
    pub(crate) fn lend(&self, now_ns: u64, ino: Ino, left_ns: u64) -> Duration {
        let life = left_ns.saturating_sub(2 * LATE_NS);
        let Notes { loans, rests } = &mut *self.attributes.lock();
        match rests.get(&ino) {
            None => {}
            Some(Rest::Answered(at_ns)) if now_ns >= at_ns + ARRIVED_NS => drop(rests.remove(&ino)),
            Some(Rest::Answered(_)) => return Duration::ZERO,
            Some(Rest::Unasked) => {
                rests.insert(ino, Rest::Answered(now_ns));
                return Duration::ZERO;
            }
        }
        if life == 0 || (loans.len() >= LENT_MAX && !loans.contains_key(&ino)) {
            return Duration::ZERO;
        }
        let loan = loans.entry(ino).or_insert(Loan { until_ns: 0, lent_ns: 0 });
        loan.until_ns = loan.until_ns.max(now_ns + life + LATE_NS);
        loan.lent_ns = now_ns;
        assert!(loans.len() <= LENT_MAX, "attributes of {} inodes have a timeout, at most {LENT_MAX}", loans.len());
        Duration::from_nanos(life)
    }

    /// Removes expired records from time to time.
    pub(crate) fn tick(&self, now_ns: u64) {
        if now_ns < self.swept_ns.load(Relaxed) + SWEEP_NS {
            return;
        }
        self.swept_ns.store(now_ns, Relaxed);
        self.attributes.lock().loans.retain(|_, loan| loan.until_ns > now_ns);
    }

    /// Number of recorded inodes, for statistics.
    pub(crate) fn len(&self) -> u64 {
        self.attributes.lock().loans.len() as u64
    }

    /// Invalidates attributes whose tokens are not held any more. `forget` makes the front end drop them, and returns
    /// whether it knows the inode. Returns the inodes for which that has to be repeated every `LOOK_NS`.
    pub(crate) fn take_back(
        &self,
        now_ns: u64,
        inodes: impl IntoIterator<Item = Ino>,
        forget: impl Fn(Ino) -> bool,
    ) -> Vec<Unknown> {
        let lent = inodes.into_iter().filter_map(|ino| self.take(now_ns, ino).map(|loan| (ino, loan.lent_ns)));
        let lent: Vec<Unknown> = lent.map(|(ino, lent_ns)| Unknown { ino, lent_ns }).collect();
        lent.into_iter().filter(|one| one.is_awaited(now_ns, &forget)).collect()
    }

    /// Recorded inodes.
    pub(crate) fn inodes(&self) -> Vec<Ino> {
        self.attributes.lock().loans.keys().copied().collect()
    }

    fn take(&self, now_ns: u64, ino: Ino) -> Option<Loan> {
        let Notes { loans, rests } = &mut *self.attributes.lock();
        if loans.is_empty() {
            return None;
        }
        let loan = loans.remove(&ino).filter(|loan| loan.until_ns > now_ns)?;
        rests.insert(ino, Rest::Unasked);
        if rests.len() > LENT_MAX {
            rests.pop_first();
        }
        Some(loan)
    }
}

/// Attributes that were invalidated in a front end which did not know their inode.
pub(crate) struct Unknown {
    ino: Ino,
    lent_ns: u64,
}

impl Unknown {
    /// Returns whether an answer that makes the inode known may still be on its way. If the inode is known now, its
    /// attributes are dropped.
    pub(crate) fn is_awaited(&self, now_ns: u64, forget: impl Fn(Ino) -> bool) -> bool {
        !forget(self.ino) && now_ns < self.lent_ns + ARRIVED_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a timeout ends before its token does, its record is found once, and expired records make room for others.
    /// Method: single calls at chosen times.
    #[test]
    fn loans_end_and_are_found_once() {
        let lent = Lent::default();
        let second = 1_000_000_000;
        assert_eq!(lent.lend(0, Ino(5), 2 * LATE_NS), Duration::ZERO, "too short");
        assert!(lent.take(0, Ino(5)).is_none());
        assert_eq!(lent.lend(0, Ino(5), 30 * second), Duration::from_secs(29));
        assert_eq!(lent.lend(second, Ino(6), 10 * second), Duration::from_secs(9));
        assert!(lent.take(second, Ino(6)).is_some() && lent.take(second, Ino(6)).is_none());
        lent.tick(29 * second);
        assert_eq!(lent.len(), 1, "the front end may have had the answer late");
        assert!(lent.take(30 * second, Ino(5)).is_none(), "it has ended");
        let _ = lent.lend(0, Ino(7), 30 * second);
        lent.tick(30 * second);
        assert_eq!(lent.len(), 0);
    }

    /// Goal: attributes that were invalidated get a timeout again only after an answer without a timeout has had time
    /// to arrive. Attributes whose timeout expired do not rest. Method: single calls at chosen times.
    #[test]
    fn what_was_taken_back_rests() {
        let lent = Lent::default();
        let life = 30_000_000_000;
        assert!(!lent.lend(0, Ino(5), life).is_zero() && !lent.lend(0, Ino(6), life).is_zero());
        assert!(lent.take(1, Ino(5)).is_some());
        let late = 10 * ARRIVED_NS;
        assert!(lent.lend(late, Ino(5), life).is_zero(), "the first answer");
        assert!(lent.lend(late + ARRIVED_NS - 1, Ino(5), life).is_zero(), "it may be on its way");
        assert!(!lent.lend(late + ARRIVED_NS, Ino(5), life).is_zero());
        assert!(lent.take(late + ARRIVED_NS, Ino(5)).is_some());
        assert!(lent.lend(late + ARRIVED_NS, Ino(5), life).is_zero(), "it rests anew");
        assert!(lent.take(2 * life, Ino(6)).is_none());
        assert!(!lent.lend(2 * life, Ino(6), life).is_zero());
    }
}
