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
//! What was taken back rests: Linux drops the answers to questions from before that, and a `read` which has asked goes
//! by the size of before. So nothing is lent, and need not be taken back, until an answer without a life has been given
//! and has had the time to arrive: from then on all answers that may be dropped say what the front end goes by anyway.
//! It also spares files that several mounts change by turns a notification for each change.
//!
//! Bound: `LENT_MAX` inodes, some 40 bytes each; beyond, nothing is lent until what has ended is forgotten. As many
//! rest; beyond, the lowest inode does no longer.

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

/// Attributes that were taken back.
#[derive(Clone, Copy)]
enum Rest {
    /// No answer has been given since.
    Unasked,
    /// One was given without a life at this moment.
    Answered(u64),
}

#[derive(Default)]
struct Notes {
    loans: BTreeMap<Ino, Loan>,
    rests: BTreeMap<Ino, Rest>,
}

/// The notes.
#[derive(Default)]
pub(crate) struct Lent {
    attributes: Mutex<Notes>,
    /// When what has ended was forgotten last.
    swept_ns: AtomicU64,
}

impl Lent {
    /// Notes that attributes are lent for what is `left` of their token's life. How long, or nothing. To be called
    /// while the token cannot go.
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
        Duration::from_nanos(life)
    }

    /// Forgets what has ended, now and then.
    pub(crate) fn tick(&self, now_ns: u64) {
        if now_ns < self.swept_ns.load(Relaxed) + SWEEP_NS {
            return;
        }
        self.swept_ns.store(now_ns, Relaxed);
        self.attributes.lock().loans.retain(|_, loan| loan.until_ns > now_ns);
    }

    /// Inodes that are noted, for people.
    pub(crate) fn len(&self) -> u64 {
        self.attributes.lock().loans.len() as u64
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
        let _ = lent.lend(0, Ino(7), 30 * second);
        lent.tick(30 * second);
        assert_eq!(lent.len(), 0);
    }

    /// Goal: what was taken back is lent again only behind an answer without a life that has had the time to arrive;
    /// what has ended by itself does not rest. Method: by hand.
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
