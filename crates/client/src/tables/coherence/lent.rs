//! What a front end keeps of attributes that this mount has under tokens, and how it is taken back.
//!
//! Owns: which inodes' attributes were lent in company of other mounts, until when, and that they are taken back before
//! a revocation is answered, before a change of this mount's own is sent, and when tokens are lost. Does not own: the
//! tokens (`tokens`), what is lent alone (`sharing`), changes that the front end has under way itself (it lends nothing
//! of these).
//!
//! Invariants: what is lent is what a token shows at that moment, and is noted while the token cannot go; so whoever
//! takes the token finds the note. To take attributes back waits for nothing: the front end forgets, and takes no
//! answer to a question from before. One exception: an inode that it does not know at all may be just becoming known by
//! an answer that was given a moment ago, so it is told once more until that can have arrived.
//!
//! Bound: `LENT_MAX` inodes, some 40 bytes each; beyond, nothing is lent until what has ended is forgotten.

use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Most inodes of which attributes are lent.
const LENT_MAX: usize = 131_072;
/// The front end counts the life from when it has the answer; that may be so much later. The server's own margin is
/// longer.
const LATE_NS: u64 = 500_000_000;
/// An answer has reached the front end after this time.
const ARRIVED_NS: u64 = 250_000_000;
/// How often an inode that is not known is looked for meanwhile.
pub(crate) const LOOK_NS: u64 = 1_000_000;

/// How often what has ended is forgotten.
const SWEEP_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy)]
struct Loan {
    until_ns: u64,
    lent_ns: u64,
}

/// The notes.
#[derive(Default)]
pub(crate) struct Lent {
    attributes: Mutex<BTreeMap<Ino, Loan>>,
    /// When what has ended was forgotten last.
    swept_ns: AtomicU64,
}

impl Lent {
    /// Notes that attributes are lent for what is `left` of their token's life. How long, or nothing. To be called
    /// while the token cannot go.
    pub(crate) fn lend(&self, now_ns: u64, ino: Ino, left_ns: u64) -> Duration {
        let life = left_ns.saturating_sub(2 * LATE_NS);
        let mut attributes = self.attributes.lock();
        if life == 0 || (attributes.len() >= LENT_MAX && !attributes.contains_key(&ino)) {
            return Duration::ZERO;
        }
        let loan = attributes.entry(ino).or_insert(Loan { until_ns: 0, lent_ns: 0 });
        loan.until_ns = loan.until_ns.max(now_ns + life + LATE_NS);
        loan.lent_ns = now_ns;
        Duration::from_nanos(life)
    }

    /// Forgets what has ended, now and then.
    pub(crate) fn tick(&self, now_ns: u64) {
        if now_ns < self.swept_ns.load(Relaxed) + SWEEP_NS {
            return;
        }
        self.swept_ns.store(now_ns, Relaxed);
        self.attributes.lock().retain(|_, loan| loan.until_ns > now_ns);
    }

    /// Inodes that are noted, for people.
    pub(crate) fn len(&self) -> u64 {
        self.attributes.lock().len() as u64
    }

    /// Takes attributes back: `forget` has the front end forget them, and says whether it knows the inode. Tokens for
    /// them are not held any more. What is left to look for, every `LOOK_NS`.
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

    /// Inodes that are noted.
    pub(crate) fn inodes(&self) -> Vec<Ino> {
        self.attributes.lock().keys().copied().collect()
    }

    fn take(&self, now_ns: u64, ino: Ino) -> Option<Loan> {
        let mut attributes = self.attributes.lock();
        if attributes.is_empty() {
            return None;
        }
        attributes.remove(&ino).filter(|loan| loan.until_ns > now_ns)
    }
}

/// Attributes that were taken back from a front end which did not know their inode.
pub(crate) struct Unknown {
    ino: Ino,
    lent_ns: u64,
}

impl Unknown {
    /// Whether an answer that makes it known may still be on its way; if it is known now, its attributes are dropped.
    pub(crate) fn is_awaited(&self, now_ns: u64, forget: impl Fn(Ino) -> bool) -> bool {
        !forget(self.ino) && now_ns < self.lent_ns + ARRIVED_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a loan ends before its token does, is found once, and what has ended makes room. Method: by hand.
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
        let _ = lent.lend(0, Ino(5), 30 * second);
        lent.tick(30 * second);
        assert_eq!(lent.len(), 0);
    }
}
