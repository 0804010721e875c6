//! `TargetQuota`: a target's knowledge of limits, and how much of them accounts use.
//!
//! Owns: the shares of this target, on target 0 the ledger, and the owners of the objects on this target. Does not own:
//! the rules of dealing limits out (`amphi_quota`), the requests between targets (`ops::quota`).
//!
//! A target counts while some account of the cluster has a limit, or from the first request for the use of accounts on.
//! When counting begins, all inodes and objects in memory are looked at once. Owners of objects whose inodes are not in
//! memory are read, and owners of stripes of files of other targets are requested from their targets (`is_whole`).
//! Until then the use of blocks is not known, and nothing is decided by it (`is_counted`).

use crate::records;
use crate::zone_target::Target;
use crate::zone_target::gate::Gate;
use amphi_env::Env;
use amphi_meta::Part;
use amphi_quota::{Admission, Ledger, Shares, Standing};
use amphi_types::item::Txn;
use amphi_types::{Account, Amount, Ino, ObjectId, Owner, TargetId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// For how long room is held for inodes that another target is about to make, ns. Its request for the promise follows
/// at once, unless names that it needs are held for long.
const RESERVED_NS: u64 = 2_000_000_000;
/// For how long after that it is known that the operation was admitted, ns.
const KNOWN_NS: u64 = 60_000_000_000;

/// Quotas of one target.
#[derive(Default)]
pub struct TargetQuota {
    /// How much of which limit this target may use up.
    pub shares: RefCell<Shares>,
    /// On target 0: the limits of all accounts.
    pub ledger: RefCell<Ledger>,
    /// Whether anything had a limit since the start. Mounts may assume that files are near a limit.
    pub was_on: Cell<bool>,
    /// Whether the owners of all objects are known, as far as their inodes can be read.
    pub is_whole: Cell<bool>,
    /// Whether the use of blocks may be relied on: the owners of all objects are known, or other targets did not say
    /// them in time.
    pub is_counted: Cell<bool>,
    /// On target 0: whether it checks from time to time which accounts use more than their soft limit.
    pub watches: Cell<bool>,
    /// On target 0: the last project number that was assigned.
    pub last_project: Cell<u32>,
    /// On target 0: accounts whose limit is being divided among the targets at present.
    pub dealing: Gate<Account>,
    /// Accounts for which a larger share is being requested ahead of need.
    pub asking: RefCell<BTreeSet<Account>>,
    /// What is held for inodes that other targets are about to make here, by the first inode of each operation.
    reserved: RefCell<BTreeMap<Ino, Reserved>>,
}

/// What an operation has been admitted for, until it gets its promise.
struct Reserved {
    owner: Owner,
    amount: Amount,
    /// Whether it is held, which ends when its time is over.
    is_held: bool,
    until_ns: u64,
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

    /// Holds what was admitted for inodes that another target is about to make here. `ino` is the first of them. If
    /// the operation does not come, as its target has failed or has found another reason to refuse it, this ends after
    /// a while.
    pub fn reserve<E: Env>(&self, ino: Ino, admitted: Admitted<E>, now_ns: u64) {
        let (owner, amount) = admitted.into_held();
        let reserved = Reserved { owner, amount, is_held: true, until_ns: now_ns + RESERVED_NS };
        let before = self.reserved.borrow_mut().insert(ino, reserved);
        self.release(before.as_ref());
    }

    /// Ends reservations whose operations have not come in time.
    pub fn end_reservations(&self, now_ns: u64) {
        self.reserved.borrow_mut().retain(|_, reserved| {
            if reserved.until_ns <= now_ns {
                self.release(Some(&*reserved));
                reserved.is_held = false;
            }
            now_ns < reserved.until_ns + KNOWN_NS
        });
    }

    /// Ends the reservation of an operation that has ended. A second attempt of the operation, which may have reserved
    /// again before this message has come, finds room or tries once more.
    pub fn end_reservation(&self, ino: Ino) {
        if let Some(reserved) = self.reserved.borrow_mut().get_mut(&ino) {
            self.release(Some(&*reserved));
            reserved.is_held = false;
        }
    }

    fn release(&self, reserved: Option<&Reserved>) {
        if let Some(reserved) = reserved.filter(|reserved| reserved.is_held) {
            self.shares.borrow_mut().release(reserved.owner, reserved.amount);
        }
    }
}

/// The inodes that an operation makes on one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInodes {
    /// The first of them.
    pub first: Ino,
    /// To whom they are charged.
    pub owner: Owner,
    /// What they use.
    pub amount: Amount,
}

/// The inodes that these parts of one target make, if they make any. An operation makes inodes of one owner.
pub fn new_inodes<'a>(parts: impl Iterator<Item = &'a Part>) -> Option<NewInodes> {
    let mut made: Option<NewInodes> = None;
    for part in parts {
        match (part, &mut made) {
            (Part::MakeInode(_), Some(made)) => made.amount.inodes += 1,
            (Part::MakeInode(new), None) => {
                let owner = Owner { uid: new.uid, gid: new.gid, project: 0 };
                made = Some(NewInodes { first: new.ino, owner, amount: Amount { blocks: 0, inodes: 1 } });
            }
            (Part::SetProject { project, .. }, Some(made)) => made.owner.project = *project,
            _ => {}
        }
    }
    made
}

/// Part of a limit that a request holds until it has ended.
pub struct Admitted<E: Env> {
    target: Rc<Target<E>>,
    owner: Owner,
    amount: Amount,
}

impl<E: Env> Admitted<E> {
    /// It is held on. The caller releases it.
    fn into_held(mut self) -> (Owner, Amount) {
        (self.owner, std::mem::take(&mut self.amount))
    }
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

    /// See `TargetQuota::is_counted`.
    pub fn is_counted(&self) -> bool {
        self.counts.quota.is_counted.get()
    }

    /// The usage of an account on this target, as far as requests may be admitted by it. While owners of objects are
    /// being read, any number of blocks may be the account's.
    pub fn used_at_most(&self, account: Account) -> Amount {
        let used = self.used(account);
        if self.is_counted() { used } else { Amount { blocks: u64::MAX, ..used } }
    }

    /// A request may add this much, until the returned value is dropped.
    pub fn hold_share(self: &Rc<Self>, owner: Owner, amount: Amount) -> Admitted<E> {
        self.counts.quota.shares.borrow_mut().hold(owner, amount);
        Admitted { target: self.clone(), owner, amount }
    }

    /// Holds what the new inodes of a promise use, until they are counted. `None`: its reservation has ended, and there
    /// is no room now. Inodes for which nothing was requested, since their coordinator did not know yet of a limit, are
    /// not refused.
    pub fn hold_promised(&self, parts: &[Part], now_ns: u64) -> Option<Option<(Owner, Amount)>> {
        let Some(NewInodes { first, owner, amount }) = new_inodes(parts.iter()) else { return Some(None) };
        let quota = &self.counts.quota;
        let reserved = quota.reserved.borrow_mut().remove(&first);
        quota.release(reserved.as_ref());
        let mut shares = quota.shares.borrow_mut();
        if !shares.is_on() {
            return Some(None);
        }
        let is_free = reserved.is_none_or(|reserved| {
            (reserved.is_held && (reserved.owner, reserved.amount) == (owner, amount))
                || shares.admit(owner, amount, now_ns, |account| self.used_at_most(account)) == Admission::Yes
        });
        is_free.then(|| {
            shares.hold(owner, amount);
            Some((owner, amount))
        })
    }

    /// Begins to count. Returns the objects on this target that belong to files of other targets, or whose inode is not
    /// in memory: their owners have to be requested.
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
            if meta.is_away(object.ino) {
                match meta.owner_away(object.ino) {
                    Some(owner) => data.set_owner(object, owner),
                    None => foreign.push(object),
                }
                continue;
            }
            match meta.charged(object.ino) {
                Ok(owner) => data.set_owner(object, owner),
                Err(_) if object.ino.target() != self.id => foreign.push(object),
                // The inode is gone, and the object will be removed as well.
                Err(_) => {}
            }
        }
        let quota = &self.counts.quota;
        quota.is_whole.set(foreign.is_empty());
        quota.is_counted.set(foreign.is_empty());
        foreign
    }

    /// The objects of a file on this target that have no owner yet belong to this owner. A known owner of one of its
    /// objects is newer, as it came with a change.
    pub(crate) fn set_first_owner(&self, ino: Ino, owner: Owner) {
        let mut data = self.data.borrow_mut();
        let objects: Vec<(ObjectId, Option<Owner>)> =
            data.objects_of(ino).map(|(object, _)| (object, data.owner_of(object))).collect();
        let owner = objects.iter().find_map(|(_, known)| *known).unwrap_or(owner);
        for (object, _) in objects.into_iter().filter(|(_, known)| known.is_none()) {
            data.set_owner(object, owner);
        }
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
