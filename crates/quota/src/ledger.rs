//! `Ledger`: the limits of all accounts, and which share of each limit every target has.
//!
//! Owns: the decision how much a target gets. Does not own: the messages, the items in which limits last (the server).
//!
//! The limits are durable, the shares are not: after a restart the ledger has no record of shares, so it collects from
//! all targets before it gives out any. Its messages are numbered. Numbers of a later start are larger, because they
//! begin with the count of starts.

use crate::shares::Share;
use amphi_types::{Account, Amount, Limits, TargetId};
use std::collections::BTreeMap;

/// The most that a target gets in addition to its need: it asks once for each GiB, or for each 65,536 inodes.
const EXTRA_MAX: Amount = Amount { blocks: 1 << 18, inodes: 1 << 16 };

/// The ledger's answer to a target that needs more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The new share of the target. `refused`: it does not get all that it needs.
    Is {
        /// Number of the answer.
        number: u64,
        /// The share.
        share: Share,
        /// Whether the account gets no more, because nothing is left.
        refused: bool,
    },
    /// Before that, the other targets have to return the parts that they do not use: the caller calls `collected` for
    /// each, and then `ask` again.
    Collect {
        /// Number of the call.
        number: u64,
    },
}

/// The stored state of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The amount that the account may use.
    pub limits: Limits,
    /// Since when its use exceeds its soft limit, seconds since the epoch; 0 if it does not.
    pub over_since_s: u64,
}

impl Standing {
    /// Returns whether the soft limit counts like a hard one at this time.
    fn is_due(&self, now_s: u64) -> bool {
        self.over_since_s != 0 && now_s.saturating_sub(self.over_since_s) >= self.limits.grace_s
    }

    /// Returns how much the account may use at this time.
    pub fn most(&self, now_s: u64) -> Amount {
        let limit = |amount: Amount| amount.each(amount, |n, _| if n == 0 { u64::MAX } else { n });
        let hard = limit(self.limits.hard);
        if self.is_due(now_s) { hard.min(limit(self.limits.soft)) } else { hard }
    }
}

/// A change of an account that only the passing of time causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The new stored state of the account.
    pub standing: Standing,
    /// The account may use more or less than before, so all targets have to drop the shares and limits that they have
    /// recorded for it.
    pub is_told: bool,
}

/// The share of a target, and the number of the answer or call that set it.
#[derive(Clone, Copy, Debug, Default)]
struct Given {
    share: Amount,
    number: u64,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    standing: Standing,
    shares: BTreeMap<TargetId, Given>,
    /// Whether all targets have reported their shares, since the start and since the limits were set.
    is_known: bool,
    is_due: bool,
}

/// The limits, and the shares in them.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    accounts: BTreeMap<Account, Entry>,
    number: u64,
}

/// The remainder of a limit.
fn left(most: Amount, taken: Amount) -> Amount {
    most.each(taken, |most, taken| if most == u64::MAX { most } else { most.saturating_sub(taken) })
}

impl Ledger {
    /// Begins to number at this start of the target.
    pub fn begin(&mut self, starts: u64) {
        self.number = self.number.max(starts << 40);
    }

    /// Returns whether any account is limited.
    pub fn is_on(&self) -> bool {
        !self.accounts.is_empty()
    }

    /// The stored state of an account, if it has limits.
    pub fn standing(&self, account: Account) -> Option<Standing> {
        self.accounts.get(&account).map(|entry| entry.standing)
    }

    /// All limited accounts, ascending.
    pub fn all(&self) -> impl Iterator<Item = (Account, Standing)> + '_ {
        self.accounts.iter().map(|(account, entry)| (*account, entry.standing))
    }

    /// The number of a message to all targets that limits have changed. It is larger than those of all answers of
    /// before.
    pub fn changed(&mut self) -> u64 {
        self.next_number()
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Sets or replaces the stored state of an account; without limits it is removed. All targets have to drop what
    /// they have recorded of it (`changed`).
    pub fn set(&mut self, account: Account, standing: Standing) {
        if standing.limits.is_none() {
            self.accounts.remove(&account);
            return;
        }
        let entry = self.accounts.entry(account).or_default();
        (entry.standing, entry.is_known) = (standing, false);
    }

    /// Notes what an account uses in all, if it has a soft limit. Returns what has changed by that, or by the time.
    pub fn note(&mut self, account: Account, used: Amount, now_s: u64) -> Option<Turn> {
        let entry = self.accounts.get_mut(&account)?;
        let before = entry.standing;
        let soft = entry.standing.limits.soft;
        let beyond = |used: u64, soft: u64| soft != 0 && used > soft;
        entry.standing.over_since_s = match beyond(used.blocks, soft.blocks) || beyond(used.inodes, soft.inodes) {
            false => 0,
            true if before.over_since_s == 0 => now_s.max(1),
            true => before.over_since_s,
        };
        let is_due = entry.standing.is_due(now_s);
        let is_told = is_due != entry.is_due;
        if is_told {
            (entry.is_due, entry.is_known) = (is_due, false);
        }
        (is_told || entry.standing != before).then_some(Turn { standing: entry.standing, is_told })
    }

    /// A target on which the account uses `used`, including what requests under way reserve, needs `wanted` more.
    /// `collected`: the other targets have just returned the unused parts of their shares. `targets`: the number of
    /// targets.
    pub fn ask(&mut self, account: Account, target: TargetId, need: Need, now_s: u64) -> Answer {
        let number = self.next_number();
        let Need { used, wanted, collected, ahead, targets } = need;
        let Some(entry) = self.accounts.get_mut(&account) else {
            return Answer::Is { number, share: Share::Unlimited, refused: false };
        };
        let most = entry.standing.most(now_s);
        let others = entry.shares.iter().filter(|(of, _)| **of != target).map(|(_, given)| given.share);
        let free = left(most, others.fold(Amount::default(), Amount::plus));
        let needs = used.plus(wanted);
        let fits = |needs: u64, wanted: u64, free: u64| wanted == 0 || needs <= free;
        let refused =
            !fits(needs.blocks, wanted.blocks, free.blocks) || !fits(needs.inodes, wanted.inodes, free.inodes);
        if !collected && ((refused && !ahead) || !entry.is_known) {
            return Answer::Collect { number };
        }
        entry.is_known |= collected;
        // By now the target may have used up its share. If it does not get all that it needs, it gets all that is left;
        // but a share for which no request waits is not taken from the amount that other targets may need.
        let has = entry.shares.get(&target).map_or(used, |given| given.share);
        let extra = left(free, needs).each(Amount::default(), |n, _| n / (2 * targets.max(1))).min(EXTRA_MAX);
        let share = if refused && ahead { has.min(free) } else { needs.plus(extra).max(has).min(free) };
        // Until the target has got this answer it may use its previous share, so a smaller share counts only when it is
        // collected.
        entry.shares.insert(target, Given { share: share.max(used).max(has), number });
        Answer::Is { number, share: Share::UpTo(share), refused }
    }

    /// The number of an answer that the account is not limited; `None` if it is.
    pub fn unlimited(&mut self, account: Account) -> Option<u64> {
        (!self.accounts.contains_key(&account)).then(|| self.next_number())
    }

    /// A target has answered the call of this number: it has returned the unused part of the account's share, and uses
    /// `used`. The answer is ignored if the target has been given more since.
    pub fn collected(&mut self, account: Account, target: TargetId, number: u64, used: Amount) {
        if let Some(entry) = self.accounts.get_mut(&account) {
            let given = entry.shares.entry(target).or_default();
            if number >= given.number {
                *given = Given { share: used, number };
            }
        }
    }
}

/// The amount that a target needs.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// The usage of the account there, including the reservations of requests under way.
    pub used: Amount,
    /// How much more the target needs.
    pub wanted: Amount,
    /// The other targets have just returned the unused parts of their shares.
    pub collected: bool,
    /// No request waits for it yet: it is refused without collecting.
    pub ahead: bool,
    /// Number of targets.
    pub targets: u64,
}
