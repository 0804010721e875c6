//! Counting the use of accounts on a target, and whether it has to be counted.
//!
//! Owns: the begin of counting, owners of stripes of other targets' files, pages of accounts. Does not own: the counts
//! (`meta`, `data`).

use crate::message::{TargetReply, TargetRequest};
use crate::ops::quota::LEDGER;
use crate::ops::quota::ledger::tell_all;
use crate::worker::Worker;
use crate::zone_target::Target;
use amphi_env::Env;
use amphi_types::{Account, Amount, Errno, Ino, ObjectId, Result, TargetId};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// Pause before target 0 is asked again whether anything is limited, if it could not be reached.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long a question for all accounts waits for owners that a target is requesting.
const WHOLE_WITHIN: Duration = Duration::from_secs(10);
/// Pause before it is looked again whether all owners are known.
const LOOK: Duration = Duration::from_millis(1);
/// Most inodes in one request for owners, and most accounts in one answer.
pub(super) const PAGE: usize = 1000;

/// Learns from target 0 whether anything is limited, however long that takes.
pub fn learn_limits<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) {
    let (worker, target) = (worker.clone(), Rc::downgrade(target));
    worker.env.clone().spawn(async move {
        while !worker.is_stopped() {
            let Some(here) = target.upgrade() else { return };
            if here.is_closed() {
                return;
            }
            match worker.ask(LEDGER, TargetRequest::QuotaIsOn).await {
                Ok(TargetReply::Outcome(true)) => {
                    set_on(&worker, &here, true);
                    if here.id == LEDGER {
                        // The counting may have ended before all targets were informed of the last change.
                        let told = tell_all(&worker, &here, None);
                        drop(here);
                        told.await;
                    }
                    return;
                }
                Ok(_) => return,
                Err(_) => {
                    drop(here);
                    worker.env.sleep(ASK_AGAIN).await;
                }
            }
        }
    });
}

pub(super) fn set_on<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, on: bool) {
    if on {
        begin_counting(worker, target);
        target.counts.quota.was_on.set(true);
    }
    target.counts.quota.shares.borrow_mut().set_on(on);
}

/// Begins to count, and requests the owners of stripes of files of other targets and of files whose inode is not in
/// memory.
fn begin_counting<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) {
    let mut foreign: BTreeMap<TargetId, BTreeSet<Ino>> = BTreeMap::new();
    for object in target.begin_counting() {
        foreign.entry(object.ino.target()).or_default().insert(object.ino);
    }
    if foreign.is_empty() {
        return;
    }
    let (worker, target) = (worker.clone(), target.clone());
    worker.env.clone().spawn(async move {
        for (home, inos) in foreign {
            let inos: Vec<Ino> = inos.into_iter().collect();
            for some in inos.chunks(PAGE) {
                let Ok(TargetReply::Owners(owners)) =
                    worker.insist_ask(home, TargetRequest::Owners(some.to_vec())).await
                else {
                    continue;
                };
                for (ino, owner) in some.iter().zip(owners) {
                    let is_known = target.data.borrow().owner_of(first_of(&target, *ino)).is_some();
                    // A change of the owner that came meanwhile is newer.
                    if let Some(owner) = owner.filter(|_| !is_known) {
                        target.set_owner(*ino, owner);
                    }
                }
            }
        }
        target.counts.quota.is_whole.set(true);
    });
}

/// The first object of a file on this target.
fn first_of<E: Env>(target: &Target<E>, ino: Ino) -> ObjectId {
    let first = target.data.borrow().objects_of(ino).next().map(|(object, _)| object);
    first.unwrap_or(ObjectId { ino, stripe: 0 })
}

/// `TargetRequest::Owners`.
pub async fn owners<E: Env>(target: &Target<E>, inos: &[Ino]) -> Result<TargetReply> {
    let _held = target.hold(inos.iter().copied()).await?;
    let meta = target.meta.borrow();
    Ok(TargetReply::Owners(inos.iter().map(|ino| meta.charged(*ino).ok()).collect()))
}

/// Counts, and waits until all owners are known.
pub(super) async fn whole<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) -> Result<()> {
    begin_counting(worker, target);
    let until_ns = worker.now_ns() + WHOLE_WITHIN.as_nanos() as u64;
    while !target.counts.quota.is_whole.get() {
        if worker.now_ns() >= until_ns || worker.is_stopped() {
            return Err(Errno::Again);
        }
        worker.env.sleep(LOOK).await;
    }
    Ok(())
}

pub(super) fn accounts_behind<E: Env>(target: &Target<E>, after: Option<Account>) -> TargetReply {
    let (meta, data) = (target.meta.borrow(), target.data.borrow());
    let mut all: BTreeMap<Account, Amount> = BTreeMap::new();
    let behind = |account: &Account| after.is_none_or(|after| *account > after);
    for (account, blocks) in data.accounts().filter(|(account, _)| behind(account)).take(PAGE) {
        all.entry(account).or_default().blocks = blocks;
    }
    for (account, inodes) in meta.accounts().filter(|(account, _)| behind(account)).take(PAGE) {
        all.entry(account).or_default().inodes = inodes;
    }
    // Both have answered up to the last account of the shorter page, so the result is complete.
    TargetReply::Accounts(all.into_iter().take(PAGE).map(|(account, _)| (account, target.used(account))).collect())
}
