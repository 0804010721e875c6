//! `TargetQuota`: a target's knowledge of limits, and how much of them accounts use.
//!
//! Owns: the shares of this target, on target 0 the ledger, and the owners of the objects on this target. Does not own:
//! the rules of dealing limits out (`amphi_quota`), the requests between targets (`ops::quota`).
//!
//! A target counts while some account of the cluster has a limit, or from the first request for the use of accounts on.
//! When counting begins, all inodes and objects are read once. Owners of stripes of files of other targets are
//! requested from their targets (`is_whole`).

use crate::records;
use crate::zone_target::Target;
use crate::zone_target::gate::Gate;
use amphi_env::Env;
use amphi_quota::{Ledger, Shares, Standing};
use amphi_types::item::Txn;
use amphi_types::{Account, Amount, Ino, ObjectId, Owner, TargetId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Quotas of one target.
#[derive(Default)]
pub struct TargetQuota {
    /// How much of which limit this target may use up.
    pub shares: RefCell<Shares>,
    /// On target 0: the limits of all accounts.
    pub ledger: RefCell<Ledger>,
    /// Whether anything had a limit since the start. Mounts may assume that files are near a limit.
    pub was_on: Cell<bool>,
    /// Whether the owners of all objects are known.
    pub is_whole: Cell<bool>,
    /// On target 0: whether it checks from time to time which accounts use more than their soft limit.
    pub watches: Cell<bool>,
    /// On target 0: the last project number that was assigned.
    pub last_project: Cell<u32>,
    /// On target 0: accounts whose limit is being divided among the targets at present.
    pub dealing: Gate<Account>,
    /// Accounts for which a larger share is being requested ahead of need.
    pub asking: RefCell<BTreeSet<Account>>,
}

impl TargetQuota {
    /// The state with the limits that a start has found.
    pub fn of(standings: Vec<(Account, Standing)>, starts: u64) -> TargetQuota {
        let quota = TargetQuota::default();
        {
            let mut ledger = quota.ledger.borrow_mut();
            ledger.begin(starts);
            standings.into_iter().for_each(|(account, standing)| ledger.set(account, standing));
        }
        quota
    }
}

/// Part of a limit that a request holds until it has ended.
pub struct Admitted<E: Env> {
    target: Rc<Target<E>>,
    owner: Owner,
    amount: Amount,
}

impl<E: Env> Drop for Admitted<E> {
    fn drop(&mut self) {
        self.target.counts.quota.shares.borrow_mut().release(self.owner, self.amount);
    }
}

impl<E: Env> Target<E> {
    /// The usage of an account on this target.
    pub fn used(&self, account: Account) -> Amount {
        Amount { blocks: self.data.borrow().used(account), inodes: self.meta.borrow().used(account) }
    }

    /// A request may add this much, until the returned value is dropped.
    pub fn hold_share(self: &Rc<Self>, owner: Owner, amount: Amount) -> Admitted<E> {
        self.counts.quota.shares.borrow_mut().hold(owner, amount);
        Admitted { target: self.clone(), owner, amount }
    }

    /// Begins to count. Returns the objects on this target that belong to files of other targets: their owners have to
    /// be requested.
    pub fn begin_counting(&self) -> Vec<ObjectId> {
        let mut data = self.data.borrow_mut();
        if data.is_counting() {
            return Vec::new();
        }
        let mut meta = self.meta.borrow_mut();
        meta.set_counting(true);
        data.set_counting(true);
        let mut foreign = Vec::new();
        for object in data.objects_of_nobody(None, usize::MAX) {
            match meta.charged(object.ino) {
                Ok(owner) => data.set_owner(object, owner),
                Err(_) if object.ino.target() != self.id => foreign.push(object),
                // The inode is gone, and the object will be removed as well.
                Err(_) => {}
            }
        }
        self.counts.quota.is_whole.set(foreign.is_empty());
        foreign
    }

    /// From now on, the objects of a file on this target belong to this owner.
    pub fn set_owner(&self, ino: Ino, owner: Owner) {
        let mut data = self.data.borrow_mut();
        if data.is_counting() {
            let objects: Vec<ObjectId> = data.objects_of(ino).map(|(object, _)| object).collect();
            objects.into_iter().for_each(|object| data.set_owner(object, owner));
        }
        self.files.rights.borrow_mut().set_owner(ino, owner);
    }

    /// Adds to `txn` the item of an account.
    pub fn keep_standing(&self, account: Account, standing: Option<Standing>, txn: &mut Txn) {
        assert!(self.id == TargetId(0), "target 0 has the limits, not {}", self.id);
        match standing.filter(|standing| !standing.limits.is_none()) {
            Some(standing) => txn.put(records::quota_key(account), records::quota_value(standing)),
            None => txn.delete(records::quota_key(account)),
        }
    }
}
