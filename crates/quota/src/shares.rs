//! `Shares`: how much of limits one target may use up without asking.
//!
//! Owns: the shares that the ledger has given to this target, and the parts of them that requests under way hold. Does
//! not own: what accounts use on this target (the caller passes it), the messages.
//!
//! While no account of the cluster is limited, nothing is looked up (`is_on`). Otherwise a target learns of an account
//! when it is first charged: whether it is limited at all, and its share.
//!
//! The messages of the ledger may overtake each other. Each has a number, and older ones than the last are ignored. The
//! message that limits have changed is one of them, so that an answer of before the change does not undo it.

use amphi_types::{Account, Amount, Nearness, Owner};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// For how long the answer that nothing is left is reused, ns: in that time the ledger collects from all targets once,
/// however often a program tries.
const REFUSED_NS: u64 = 5_000_000;

/// The answer of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Share {
    /// The account is not limited.
    Unlimited,
    /// The account may use this much on this target.
    UpTo(Amount),
}

/// Whether a request finds room within the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The request fits.
    Yes,
    /// The ledger has to be asked about this account.
    Ask(Account),
    /// The account had used up its limit a moment ago. A request that has not asked the ledger since it began waits and
    /// asks, because files may have been removed.
    No(Account),
}

/// The record of a target about one account.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// The number of the answer or call that set this.
    number: u64,
    share: Option<Share>,
    /// The amount that requests under way may add.
    held: Amount,
    refused_until_ns: u64,
}

/// The shares of a target.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    on: bool,
    accounts: BTreeMap<Account, Held>,
}

impl Shares {
    /// Returns whether any account of the cluster is limited.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Sets whether any accounts have limits from now on.
    pub fn set_on(&mut self, on: bool) {
        self.on = on;
    }

    /// The stored state of an account, or of all, is outdated, and so are answers with a smaller number than this one,
    /// which are still on their way. Newer ones stay.
    pub fn forget(&mut self, account: Option<Account>, number: u64) {
        let of_account = self.accounts.iter_mut().filter(|(of, _)| account.is_none_or(|account| account == **of));
        for (_, held) in of_account.filter(|(_, held)| held.number < number) {
            (held.number, held.share, held.refused_until_ns) = (number, None, 0);
        }
    }

    /// Returns whether the owner may use `wanted` more. `used` returns what an account uses on this target.
    pub fn admit(&self, owner: Owner, wanted: Amount, now_ns: u64, used: impl Fn(Account) -> Amount) -> Admission {
        if !self.on || wanted.is_none() {
            return Admission::Yes;
        }
        for account in owner.accounts() {
            let Some(held) = self.accounts.get(&account) else { return Admission::Ask(account) };
            match held.share {
                None => return Admission::Ask(account),
                Some(Share::Unlimited) => {}
                Some(Share::UpTo(share)) => {
                    let now = used(account).plus(held.held);
                    // A request that adds nothing fits even beyond the limit.
                    let fits = |now: u64, wanted: u64, share: u64| wanted == 0 || now.saturating_add(wanted) <= share;
                    let blocks = fits(now.blocks, wanted.blocks, share.blocks);
                    if !blocks || !fits(now.inodes, wanted.inodes, share.inodes) {
                        let is_refused = now_ns < held.refused_until_ns;
                        return if is_refused { Admission::No(account) } else { Admission::Ask(account) };
                    }
                }
            }
        }
        Admission::Yes
    }

    /// A request under way may add this much, until `release`.
    pub fn hold(&mut self, owner: Owner, amount: Amount) {
        for account in owner.accounts() {
            let held = self.accounts.entry(account).or_default();
            held.held = held.held.plus(amount);
        }
    }

    /// Called when the request has ended, or when the amount that it adds is counted from now on.
    pub fn release(&mut self, owner: Owner, amount: Amount) {
        for account in owner.accounts() {
            if let Some(held) = self.accounts.get_mut(&account) {
                held.held = held.held.minus(amount);
            }
        }
    }

    /// The amount that requests under way may add to an account.
    pub fn held(&self, account: Account) -> Amount {
        self.accounts.get(&account).map_or(Amount::default(), |held| held.held)
    }

    /// Called when the ledger is asked for an account that uses `used` on this target. Until it answers, the account
    /// has no more than what it uses, including what requests under way hold; this sum is returned: a ledger that was
    /// restarted knows no shares, and takes it for the target's share.
    pub fn ask(&mut self, account: Account, used: Amount) -> Amount {
        let number = self.accounts.get(&account).map_or(0, |held| held.number);
        self.give_back(account, number, used)
    }

    /// The ledger's answer of this number. `refused`: there is no more.
    pub fn told(&mut self, account: Account, number: u64, share: Share, refused: bool, now_ns: u64) {
        let held = self.accounts.entry(account).or_default();
        if number >= held.number {
            (held.number, held.share) = (number, Some(share));
            held.refused_until_ns = if refused { now_ns + REFUSED_NS } else { 0 };
        }
    }

    /// The ledger takes the unused part of the account's share on this target: the share becomes equal to the use of
    /// the account. Returns that, including what requests under way hold. A call that is older than the last answer or
    /// call takes nothing, and the present share is returned: it may be greater than the use, if files were removed
    /// since.
    pub fn give_back(&mut self, account: Account, number: u64, used: Amount) -> Amount {
        let held = self.accounts.entry(account).or_default();
        let kept = used.plus(held.held);
        if number >= held.number {
            (held.number, held.share) = (number, Some(Share::UpTo(kept)));
            return kept;
        }
        if let Some(Share::UpTo(share)) = held.share { share.max(kept) } else { kept }
    }

    /// How near an owner is to a limit of blocks, and the account that is nearest. An account is near its limit if
    /// fewer than `margin` blocks are left of its share, and while its share is not known.
    pub fn nearness(&self, owner: Owner, margin: u64, used: impl Fn(Account) -> Amount) -> (Nearness, Option<Account>) {
        let of = |account: Account| match self.accounts.get(&account).and_then(|held| held.share) {
            Some(Share::Unlimited | Share::UpTo(Amount { blocks: u64::MAX, .. })) => Nearness::Unlimited,
            Some(Share::UpTo(share)) if share.blocks.saturating_sub(used(account).blocks) >= margin => Nearness::Far,
            _ => Nearness::Near,
        };
        let all = owner.accounts().filter(|_| self.on).map(|account| (of(account), Some(account)));
        all.max_by_key(|(nearness, _)| *nearness).unwrap_or_default()
    }
}
