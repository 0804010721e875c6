//! `Usage`: how much each account uses, counted as it changes.
//!
//! Owns: the counts. Does not own: what is counted (blocks in `data`, inodes in `meta`).
//!
//! Owners are numbered, so that an object remembers its owner in four bytes and a change costs three additions without
//! a search. Bound: the owners that have been seen since the start.

use amphi_types::{Account, Owner};
use std::collections::BTreeMap;

/// The number of an owner. `OwnerIndex::NOBODY` is charged nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OwnerIndex(pub u32);

impl OwnerIndex {
    /// An owner that is not known.
    pub const NOBODY: OwnerIndex = OwnerIndex(0);
    /// The number after the largest one.
    pub const END: u32 = 1 << 31;
}

/// No account.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Known {
    owner: Owner,
    /// Places of its accounts among the counts.
    accounts: [u32; 3],
}

/// Counts by account.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    owners: Vec<Known>,
    numbers: BTreeMap<Owner, OwnerIndex>,
    places: BTreeMap<Account, u32>,
    used: Vec<u64>,
}

impl Usage {
    /// The number of an owner. If there are too many it is `NOBODY`.
    pub fn number(&mut self, owner: Owner) -> OwnerIndex {
        if let Some(&number) = self.numbers.get(&owner) {
            return number;
        }
        let number = OwnerIndex(self.owners.len() as u32 + 1);
        if number.0 >= OwnerIndex::END {
            return OwnerIndex::NOBODY;
        }
        let mut accounts = [NONE; 3];
        for (place, account) in accounts.iter_mut().zip(owner.accounts()) {
            let next = self.used.len() as u32;
            *place = *self.places.entry(account).or_insert(next);
            if *place == next {
                self.used.push(0);
            }
        }
        self.owners.push(Known { owner, accounts });
        self.numbers.insert(owner, number);
        number
    }

    /// The owner of this number.
    pub fn owner(&self, number: OwnerIndex) -> Option<Owner> {
        self.known(number).map(|known| known.owner)
    }

    fn known(&self, number: OwnerIndex) -> Option<&Known> {
        self.owners.get((number.0 as usize).checked_sub(1)?)
    }

    /// The owner uses `after` where it used `before`.
    pub fn charge(&mut self, number: OwnerIndex, before: u64, after: u64) {
        let Some(&Known { accounts, .. }) = self.known(number) else { return };
        for place in accounts.into_iter().filter(|place| *place != NONE) {
            let used = &mut self.used[place as usize];
            debug_assert!(*used + after >= before, "an account uses less than nothing");
            *used = (*used + after).saturating_sub(before);
        }
    }

    /// The amount that an account uses.
    pub fn used(&self, account: Account) -> u64 {
        self.places.get(&account).map_or(0, |place| self.used[*place as usize])
    }

    /// All accounts that use something, ascending.
    pub fn all(&self) -> impl Iterator<Item = (Account, u64)> + '_ {
        self.places.iter().map(|(account, place)| (*account, self.used[*place as usize])).filter(|(_, used)| *used > 0)
    }
}

/// Two values that count the same usage are equal, even if they have numbered the owners differently.
impl PartialEq for Usage {
    fn eq(&self, other: &Usage) -> bool {
        self.all().eq(other.all())
    }
}

impl Eq for Usage {}
