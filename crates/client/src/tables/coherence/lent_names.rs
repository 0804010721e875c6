//! `LentNames`: which names a front end caches under this mount's tokens, and which of them are being invalidated.
//!
//! Owns: which names were cached in shared mode, until when, which are being invalidated, and which are not cached for
//! a while because they were invalidated a short time ago. Does not own: the tokens (`tokens`), caching and
//! invalidating themselves (the front end).
//!
//! Invariants: a name is cached only while its token is held, and the record is made while the token cannot go. So a
//! revocation of the token finds the record. A record stays until the front end has reported that the name is
//! invalidated, or its time is over. A second invalidation waits for the first one, and meanwhile the name is not
//! cached again.
//!
//! Bounds: `LENT_MAX` names, about 200 bytes each. If there are that many, no name is cached until expired records are
//! removed. At most `RESTS_MAX` names rest after an invalidation. If there would be more, the further names do not
//! rest.

use crate::api::{LentName, NameShows};
use amphi_dlm::TokenKey;
use futures_channel::oneshot;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Most names that are cached.
const LENT_MAX: usize = 65_536;
/// The kernel counts the timeout from the moment when it receives the answer, which may be this much later. The front
/// end checks whether the answer was that late.
pub(crate) const LATE_NS: u64 = 500_000_000;
/// A timeout below this is not worth the walk of the lookup thread.
const LIFE_MIN_NS: u64 = 1_000_000_000;
const _: () = assert!(LIFE_MIN_NS > LATE_NS, "a timeout is longer than its answer may be late");
/// Most names that are remembered because they were invalidated.
const RESTS_MAX: usize = 16_384;
/// The rest of a name that is invalidated again and again grows to at most this many times its first rest.
const REST_FACTOR_MAX: u32 = 64;
/// How often expired records are removed.
const SWEEP_NS: u64 = 1_000_000_000;

/// The reason why a name is not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotLent {
    /// The token is not held, or shows something else.
    NoToken,
    /// Too little is left of the token's life.
    ShortLife,
    /// The name was invalidated a short time ago, or is being invalidated.
    Contended,
    /// The table is full.
    Full,
}

struct Loan {
    lent: LentName,
    until_ns: u64,
    /// Distinguishes this loan from a later one of the same name.
    number: u64,
    /// The name is being invalidated.
    going: bool,
    /// Tasks that wait for the end of the invalidation, and are woken when this is dropped.
    waiting: Vec<oneshot::Sender<()>>,
}

struct Rest {
    until_ns: u64,
    /// Length of the rest, in multiples of the first rest.
    factor: u32,
}

#[derive(Default)]
struct State {
    loans: BTreeMap<TokenKey, Loan>,
    rests: BTreeMap<TokenKey, Rest>,
    last_number: u64,
    swept_ns: u64,
}

/// A loan that has to be ended, by invalidating its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Going {
    key: TokenKey,
    number: u64,
    pub(crate) lent: LentName,
    /// The front end caches the name no longer than this.
    pub(crate) until_ns: u64,
}

/// Loans of names that have to be invalidated.
#[derive(Default)]
pub(crate) struct Takes {
    /// Names to be invalidated now.
    pub(crate) names: Vec<Going>,
    /// Names that are being invalidated already. A receiver is woken, without a value, when its name is invalidated.
    pub(crate) others: Vec<oneshot::Receiver<()>>,
}

impl Takes {
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.others.is_empty()
    }
}

/// The records of a mount.
#[derive(Default)]
pub(crate) struct LentNames {
    state: Mutex<State>,
    /// Number of recorded loans.
    noted: AtomicUsize,
}

impl LentNames {
    /// Records that a name gets a timeout, where `left_ns` of its token's life are left. Returns the timeout. It has to
    /// be called while the token cannot be lost.
    pub(crate) fn lend(&self, now_ns: u64, key: TokenKey, lent: &LentName, left_ns: u64) -> Result<Duration, NotLent> {
        let life = left_ns.saturating_sub(2 * LATE_NS);
        if life < LIFE_MIN_NS {
            return Err(NotLent::ShortLife);
        }
        let state = &mut *self.state.lock();
        if state.rests.get(&key).is_some_and(|rest| now_ns < rest.until_ns) {
            return Err(NotLent::Contended);
        }
        match state.loans.get(&key) {
            // The kernel may still cache something else under this key: another name with the same hash, or an earlier
            // result for this name. Or this name is just being invalidated.
            Some(loan) if now_ns < loan.until_ns && (loan.going || loan.lent != *lent) => {
                return Err(NotLent::Contended);
            }
            None if state.loans.len() >= LENT_MAX => return Err(NotLent::Full),
            _ => {}
        }
        state.last_number += 1;
        let until_ns = now_ns + life + LATE_NS;
        let before = state.loans.get(&key).map_or(0, |loan| loan.until_ns);
        let (until_ns, number) = (until_ns.max(before), state.last_number);
        let loan = Loan { lent: lent.clone(), until_ns, number, going: false, waiting: Vec::new() };
        state.loans.insert(key, loan);
        assert!(state.loans.len() <= LENT_MAX, "{} names are cached, at most {LENT_MAX}", state.loans.len());
        self.noted.store(state.loans.len(), SeqCst);
        Ok(Duration::from_nanos(life))
    }

    /// Or this name is just being invalidated.
    pub(crate) fn is_lent(&self, now_ns: u64, key: TokenKey, name: &[u8], shows: NameShows) -> bool {
        if !self.is_any_noted() {
            return false;
        }
        let state = self.state.lock();
        state.loans.get(&key).is_some_and(|loan| {
            *loan.lent.name == *name && loan.lent.shows == shows && now_ns < loan.until_ns && !loan.going
        })
    }

    /// The names of these keys that have to be invalidated now; their tokens are not held any more. Each of these names
    /// is not cached again for at least `rest_ns`.
    pub(crate) fn take(&self, now_ns: u64, keys: &[TokenKey], rest_ns: u64) -> Takes {
        let mut takes = Takes::default();
        if !self.is_any_noted() {
            return takes;
        }
        let state = &mut *self.state.lock();
        for key in keys {
            let Some(loan) = state.loans.get_mut(key) else { continue };
            if loan.until_ns <= now_ns {
                state.loans.remove(key);
                continue;
            }
            if std::mem::replace(&mut loan.going, true) {
                let (sender, told) = oneshot::channel();
                loan.waiting.push(sender);
                takes.others.push(told);
                continue;
            }
            let Loan { lent, until_ns, number, .. } = &*loan;
            takes.names.push(Going { key: *key, number: *number, lent: lent.clone(), until_ns: *until_ns });
            if rest_ns > 0 {
                rest(&mut state.rests, now_ns, *key, rest_ns);
            }
        }
        self.noted.store(state.loans.len(), SeqCst);
        takes
    }

    /// Returns whether any name is recorded.
    #[inline]
    pub(crate) fn is_any_noted(&self) -> bool {
        self.noted.load(SeqCst) > 0
    }

    /// Returns whether any name is being invalidated.
    pub(crate) fn is_any_going(&self) -> bool {
        self.is_any_noted() && self.state.lock().loans.values().any(|loan| loan.going)
    }

    /// The number of the loan under which a front end may cache that this name does not exist.
    pub(crate) fn absent(&self, now_ns: u64, key: TokenKey, name: &[u8]) -> Option<u64> {
        if !self.is_any_noted() {
            return None;
        }
        let state = self.state.lock();
        let loan = state.loans.get(&key).filter(|loan| now_ns < loan.until_ns && *loan.lent.name == *name)?;
        (loan.lent.shows == NameShows::Nothing).then_some(loan.number)
    }

    /// Called when the front end has shown that nothing is cached under this timeout any more.
    pub(crate) fn is_over(&self, key: TokenKey, number: u64) {
        let state = &mut *self.state.lock();
        assert!(number <= state.last_number, "loan {number} ends, and {} is the last one", state.last_number);
        if state.loans.get(&key).is_some_and(|loan| loan.number == number) {
            state.loans.remove(&key);
        }
        self.noted.store(state.loans.len(), SeqCst);
    }

    /// All names whose keys satisfy `of`, to be invalidated now.
    pub(crate) fn take_all(&self, now_ns: u64, of: impl Fn(TokenKey) -> bool) -> Takes {
        let keys: Vec<TokenKey> = self.state.lock().loans.keys().copied().filter(|key| of(*key)).collect();
        self.take(now_ns, &keys, 0)
    }

    /// Names that are cached.
    pub(crate) fn all(&self, now_ns: u64) -> Vec<LentName> {
        self.state.lock().loans.values().filter(|loan| now_ns < loan.until_ns).map(|loan| loan.lent.clone()).collect()
    }

    /// Called when these names have been invalidated.
    pub(crate) fn taken(&self, going: &[Going]) {
        going.iter().for_each(|one| self.is_over(one.key, one.number));
    }

    /// Removes expired records from time to time.
    pub(crate) fn tick(&self, now_ns: u64) {
        let mut state = self.state.lock();
        if now_ns >= state.swept_ns + SWEEP_NS {
            state.swept_ns = now_ns;
            state.loans.retain(|_, loan| loan.until_ns > now_ns || loan.going);
            self.noted.store(state.loans.len(), SeqCst);
            state.rests.retain(|_, rest| !rest.is_forgotten(now_ns));
        }
    }

    /// Number of recorded names, for statistics.
    pub(crate) fn len(&self) -> u64 {
        self.state.lock().loans.len() as u64
    }
}

impl Rest {
    /// The rest ended so long ago that the next one has the first length again.
    fn is_forgotten(&self, now_ns: u64) -> bool {
        const FORGOTTEN_NS: u64 = 120_000_000_000;
        now_ns >= self.until_ns.saturating_add(FORGOTTEN_NS)
    }
}

fn rest(rests: &mut BTreeMap<TokenKey, Rest>, now_ns: u64, key: TokenKey, rest_ns: u64) {
    let factor = match rests.get(&key).filter(|rest| !rest.is_forgotten(now_ns)) {
        Some(before) => (before.factor * 2).min(REST_FACTOR_MAX),
        None if rests.len() >= RESTS_MAX => return,
        None => 1,
    };
    assert!((1..=REST_FACTOR_MAX).contains(&factor), "a rest of {factor} times the first one");
    rests.insert(key, Rest { until_ns: now_ns.saturating_add(rest_ns.saturating_mul(u64::from(factor))), factor });
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_types::{Ino, Kind};

    const SECOND: u64 = 1_000_000_000;
    const KEY: TokenKey = TokenKey::Name(Ino(1), 7);

    fn name(shows: NameShows) -> LentName {
        LentName { dir: Ino(1), name: Box::from(&b"n"[..]), shows }
    }

    fn directory(ino: u64) -> LentName {
        name(NameShows::Directory(Ino(ino)))
    }

    /// Goal: a timeout ends before its token does, each invalidation finds its record until the name is invalidated,
    /// and none does after that. Method: single calls at chosen times.
    #[test]
    fn loans_are_found_until_they_are_taken_back() {
        let names = LentNames::default();
        assert_eq!(names.lend(0, KEY, &directory(5), 2 * LATE_NS), Err(NotLent::ShortLife));
        assert_eq!(names.lend(0, KEY, &directory(5), 30 * SECOND), Ok(Duration::from_secs(29)));
        assert!(
            names.is_lent(SECOND, KEY, b"n", directory(5).shows)
                && !names.is_lent(SECOND, KEY, b"n", directory(6).shows)
        );
        assert_eq!(names.lend(0, KEY, &directory(6), 30 * SECOND), Err(NotLent::Contended), "another directory");
        assert!(!names.is_any_going());
        let first = names.take(SECOND, &[KEY], 0).names;
        assert_eq!(first.iter().map(|one| one.lent.clone()).collect::<Vec<_>>(), [directory(5)]);
        let mut second = names.take(SECOND, &[KEY], 0);
        assert!(second.names.is_empty() && second.others.len() == 1, "it waits for the first one");
        assert!(matches!(second.others[0].try_recv(), Ok(None)) && names.is_any_going());
        assert_eq!(names.lend(SECOND, KEY, &directory(5), 30 * SECOND), Err(NotLent::Contended), "it is going");
        names.taken(&first);
        assert!(second.others[0].try_recv().is_err() && !names.is_any_noted());
        assert!(names.take(SECOND, &[KEY], 0).is_empty());
        let file = name(NameShows::Other(Ino(5), Kind::File));
        assert!(names.lend(SECOND, KEY, &file, 30 * SECOND).is_ok());
        for other in [directory(5), name(NameShows::Nothing), LentName { name: Box::from(&b"m"[..]), ..file.clone() }] {
            assert_eq!(names.lend(SECOND, KEY, &other, 30 * SECOND), Err(NotLent::Contended), "{other:?}");
        }
        assert!(names.is_lent(SECOND, KEY, b"n", file.shows) && !names.is_lent(SECOND, KEY, b"m", file.shows));
        names.taken(&names.take(SECOND, &[KEY], 0).names);
        let absent = name(NameShows::Nothing);
        assert!(names.lend(SECOND, KEY, &absent, 30 * SECOND).is_ok() && names.absent(SECOND, KEY, b"m").is_none());
        let loan = names.absent(SECOND, KEY, b"n").expect("a loan");
        names.is_over(KEY, loan - 1);
        assert_eq!(names.absent(SECOND, KEY, b"n"), Some(loan), "another one is over");
        names.is_over(KEY, loan);
        assert_eq!(names.absent(SECOND, KEY, b"n"), None);
        assert!(names.lend(SECOND, KEY, &directory(6), 30 * SECOND).is_ok());
        assert_eq!(names.absent(SECOND, KEY, b"n"), None, "it shows something");
        names.taken(&first);
        assert!(names.is_lent(SECOND, KEY, b"n", directory(6).shows), "a loan that came later");
        assert!(names.take(31 * SECOND, &[KEY], 0).is_empty(), "it has ended");
    }

    /// Goal: a name that was invalidated rests, longer each time, and after a long time without invalidations it rests
    /// for the first length again. Method: timeouts that are ended as soon as they are given.
    #[test]
    fn names_that_are_taken_back_rest() {
        let names = LentNames::default();
        let (mut now, mut rests) = (0, Vec::new());
        for _ in 0..9 {
            let begin = now;
            while names.lend(now, KEY, &directory(5), 30 * SECOND) == Err(NotLent::Contended) {
                now += SECOND / 2;
            }
            rests.push((now - begin) / SECOND);
            names.taken(&names.take(now, &[KEY], SECOND).names);
        }
        assert_eq!(rests, [0, 1, 2, 4, 8, 16, 32, 64, 64]);
        now += 300 * SECOND;
        names.tick(now);
        assert!(names.lend(now, KEY, &directory(5), 30 * SECOND).is_ok());
        names.taken(&names.take(now, &[KEY], SECOND).names);
        assert!(names.lend(now + SECOND, KEY, &directory(5), 30 * SECOND).is_ok(), "it begins anew");
    }

    /// Goal: the number of records is bounded, and expired records are replaced first. Method: one record more than the
    /// table can contain.
    #[test]
    fn notes_are_bounded() {
        let names = LentNames::default();
        let key = |n: usize| TokenKey::Name(Ino(1), n as u64);
        (0..LENT_MAX).for_each(|n| assert!(names.lend(0, key(n), &directory(5), 30 * SECOND).is_ok()));
        assert_eq!(names.lend(0, key(LENT_MAX), &directory(5), 30 * SECOND), Err(NotLent::Full));
        assert_eq!(names.take_all(0, |taken| taken == key(3)).names.len(), 1);
        names.tick(30 * SECOND);
        assert_eq!(names.len(), 1, "what is being taken back stays");
        assert!(names.lend(30 * SECOND, key(LENT_MAX), &directory(5), 30 * SECOND).is_ok());
    }
}
