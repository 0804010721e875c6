//! Counting the use of accounts on a target, and whether it has to be counted.
//!
//! Owns: the begin of counting, owners of stripes of other targets' files, pages of accounts. Does not own: the counts
//! (`meta`, `data`).

use crate::message::{TargetReply, TargetRequest};
use crate::ops::quota::LEDGER;
use crate::ops::quota::ledger::tell_all;
use crate::worker::Worker;
use crate::zone_target::Target;
use amphi_env::{Env, timeout};
use amphi_types::{Account, Amount, Errno, Ino, Owner, Result, TargetId};
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Pause before target 0 is asked again whether anything is limited, if it could not be reached.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long a question for all accounts waits for owners that a target is requesting.
const WHOLE_WITHIN: Duration = Duration::from_secs(10);
/// Pause before it is looked again whether all owners are known.
const LOOK: Duration = Duration::from_millis(1);
/// Most inodes whose owners are read before others leave memory.
const READ_AT_ONCE: usize = 16;
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

/// Begins to count, reads the owners of objects whose inode is not in memory, and requests those of stripes of files of
/// other targets. A target that cannot be reached does not delay the others, and does not keep users from writing.
pub(super) fn begin_counting<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) {
    let mut unknown: BTreeMap<TargetId, BTreeSet<Ino>> = BTreeMap::new();
    for object in target.begin_counting() {
        unknown.entry(object.ino.target()).or_default().insert(object.ino);
    }
    if unknown.is_empty() {
        return;
    }
    let (worker, target) = (worker.clone(), target.clone());
    worker.env.clone().spawn(async move {
        // Those of this target are read in any case, however slow the disk is.
        for some in pages(unknown.remove(&target.id).unwrap_or_default()) {
            let owners = owners(&target, &some).await;
            set_owners(&target, &some, owners);
        }
        let quota = &target.counts.quota;
        {
            let mut of_others =
                pin!(join_all(unknown.into_iter().map(|(home, inos)| ask_owners(&worker, &target, home, inos))));
            if timeout(&worker.env, WHOLE_WITHIN, &mut of_others).await.is_none() {
                quota.is_counted.set(true);
                of_others.await;
            }
        }
        quota.is_counted.set(true);
        quota.is_whole.set(true);
    });
}

fn pages(inos: BTreeSet<Ino>) -> impl Iterator<Item = Vec<Ino>> {
    let inos: Vec<Ino> = inos.into_iter().collect();
    (0..inos.len()).step_by(PAGE).map(move |from| inos[from..inos.len().min(from + PAGE)].to_vec())
}

/// Requests the owners of files of another target, until it has answered.
async fn ask_owners<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, home: TargetId, inos: BTreeSet<Ino>) {
    for some in pages(inos) {
        if let Ok(TargetReply::Owners(owners)) = worker.insist_ask(home, TargetRequest::Owners(some.clone())).await {
            set_owners(target, &some, owners);
        }
    }
}

fn set_owners<E: Env>(target: &Target<E>, inos: &[Ino], owners: Vec<Option<Owner>>) {
    for (ino, owner) in inos.iter().zip(owners) {
        if let Some(owner) = owner {
            target.set_first_owner(*ino, owner);
        }
    }
}

/// The owners of inodes of this target: `TargetRequest::Owners`. `None`: there is no such inode, or it cannot be read.
/// What only such an inode tells is charged to nobody, until it is written or its owner changes.
pub async fn owners<E: Env>(target: &Target<E>, inos: &[Ino]) -> Vec<Option<Owner>> {
    let mut owners = Vec::with_capacity(inos.len());
    for some in inos.chunks(READ_AT_ONCE) {
        // An inode does not change its owner while it is away.
        let known: Vec<(Ino, Option<Owner>)> = {
            let meta = target.meta.borrow();
            some.iter().map(|ino| (*ino, meta.owner_away(*ino))).collect()
        };
        let unknown = known.iter().filter(|(_, owner)| owner.is_none()).map(|(ino, _)| *ino);
        let held = target.hold_readable(unknown).await;
        {
            let meta = target.meta.borrow();
            let of =
                |(ino, known): (Ino, Option<Owner>)| if meta.is_away(ino) { known } else { meta.charged(ino).ok() };
            owners.extend(known.into_iter().map(of));
        }
        drop(held);
        target.let_inodes_go();
    }
    owners
}

/// Waits until the use of blocks may be relied on.
///
/// Errors: `Io` if the target is closed meanwhile.
pub(super) async fn counted<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) -> Result<()> {
    while !target.is_counted() {
        if worker.is_stopped() || target.is_closed() {
            return Err(Errno::Io);
        }
        worker.env.sleep(LOOK).await;
    }
    Ok(())
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
