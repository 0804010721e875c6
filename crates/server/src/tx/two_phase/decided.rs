//! Decisions that have the changes of their participants, all of this server.
//!
//! Owns: the record of a decision, the time when it is deleted, and its treatment by a restart. Does not own: how an
//! operation is decided (`txs`).
//!
//! A participant's record of the changes contains a mark, so that the changes are made only once. Invariants: a
//! participant logs the changes when the decision is stable. The decision is removed when they are stable at every
//! participant. A mark is removed when that removal is stable. So whichever part of which log is lost, the changes of
//! an existing decision are made unless their mark exists, and nothing else needs them. A mark without a decision has
//! no effect.
//!
//! Decisions are deleted in groups, so that two targets write one record for many of them, and no operation waits for
//! it.

use super::finish;
use crate::message::{Decision, TargetReply, TargetRequest};
use crate::records::{Intent, TxId};
use crate::worker::Worker;
use crate::zone_target::Target;
use crate::zone_target::gate::Guard;
use crate::zone_target::tx_table::{Prepared, Promise};
use amphi_env::Env;
use amphi_meta::Part;
use amphi_types::item::{Key, Txn};
use amphi_types::{Errno, Result, TargetId, Timespec};
use amphi_zone::{Lsn, Order};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How long decisions are gathered before they are forgotten.
const FORGET_EVERY: Duration = Duration::from_millis(100);
/// Items that one record removes.
const REMOVED_AT_ONCE: usize = 128;

/// Sends a decision to the participants when it is stable, while its operation is answered. The participants keep their
/// names and inodes locked until then. The coordinator's own changes can be seen at once, as with any record.
///
/// An operation that builds on the participants' changes waits there for the names that they hold, if it calls
/// `Target::settle`. So this is done only for operations whose participants change nothing that can be found by a name.
/// An operation that builds on the coordinator's changes and has other participants makes those changes stable first
/// (`prepare`), together with this decision.
pub(in crate::tx) fn carry_out<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    tx: TxId,
    lsn: Lsn,
    participants: Vec<TargetId>,
) {
    assert!(
        participants.iter().all(|t| worker.routes.is_local(*t)),
        "operation {}: a promise in memory of {participants:?}, not all of this server",
        tx.number
    );
    let (worker, target) = (worker.clone(), target.clone());
    worker.env.clone().spawn(async move {
        if target.zone.stable(lsn).await.is_err() {
            // The zone has failed. The promised changes stay locked until the next start, which reads the decision from
            // the disk.
            return;
        }
        target.txs.borrow_mut().undecided.remove(&tx);
        let told = join_all(participants.iter().map(|t| worker.insist(*t, TargetRequest::Commit(tx)))).await;
        match told.into_iter().collect::<Result<()>>() {
            Ok(()) => forget_soon(&worker, &target, tx),
            // The decision stays, and is carried out by the next start.
            Err(e) => tracing::error!("{}: operation {} cannot be local_commits out: {e}", target.id, tx.number),
        }
    });
}

/// Forgets a decision whose changes were made, within some time.
pub(in crate::tx) fn forget_soon<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, tx: TxId) {
    {
        let local_commits = &mut target.txs.borrow_mut().local_commits;
        local_commits.over.push(tx);
        if std::mem::replace(&mut local_commits.forgetting, true) {
            return;
        }
    }
    let (worker, weak) = (worker.clone(), Rc::downgrade(target));
    worker.env.clone().spawn(async move {
        loop {
            worker.env.sleep(FORGET_EVERY).await;
            let Some(target) = weak.upgrade() else { return };
            let over = std::mem::take(&mut target.txs.borrow_mut().local_commits.over);
            // On an error the decisions and their marks stay. Both are checked after the next start.
            if over.is_empty() || forget(&worker, &target, &over).await.is_err() {
                target.txs.borrow_mut().local_commits.forgetting = false;
                return;
            }
        }
    });
}

async fn forget<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, over: &[TxId]) -> Result<()> {
    let mut by_participant: BTreeMap<TargetId, Vec<TxId>> = BTreeMap::new();
    {
        let known = &target.txs.borrow().local_commits.known;
        for tx in over {
            for participant in known.get(tx).into_iter().flatten() {
                by_participant.entry(*participant).or_default().push(*tx);
            }
        }
    }
    let settled = by_participant.iter().map(|(t, all)| worker.tell(*t, TargetRequest::Settle(all[0])));
    join_all(settled).await.into_iter().collect::<Result<()>>()?;
    let keys = over.iter().map(|tx| Intent::Decided { tx: *tx, now: Timespec::default(), parts: Vec::new() }.key());
    let removed = remove(target, keys);
    over.iter().for_each(|tx| drop(target.txs.borrow_mut().local_commits.known.remove(tx)));
    target.zone.became_stable(removed).await?;
    let unmarked = by_participant.into_iter().map(|(t, all)| worker.tell(t, TargetRequest::Unmark(all)));
    join_all(unmarked).await.into_iter().collect()
}

fn remove<E: Env>(target: &Target<E>, keys: impl Iterator<Item = Key>) -> Lsn {
    let keys: Vec<Key> = keys.collect();
    let mut last = target.zone.appended_lsn();
    for some in keys.chunks(REMOVED_AT_ONCE) {
        let mut txn = Txn::default();
        some.iter().for_each(|key| txn.delete(key));
        last = target.append(txn, Order::Plain);
    }
    last
}

/// Removes marks. No operation waits for this.
pub fn unmark<E: Env>(target: &Target<E>, txs: &[TxId]) {
    remove(target, txs.iter().map(|tx| Intent::Applied { tx: *tx }.key()));
}

/// Makes the changes of a decision of an earlier run, unless they were made.
///
/// Errors: as `finish`.
pub async fn redo<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    tx: TxId,
    now: Timespec,
    parts: Vec<Part>,
) -> Result<TargetReply> {
    if target.txs.borrow().local_commits.marks.contains(&tx) {
        return Ok(TargetReply::Done);
    }
    // No request is served yet, so nothing has to be locked.
    let (promise, guard) = (Promise::Held, Guard::none());
    let prepared = Prepared { now, parts, promise, guard, changing: None, held: None, inodes: None };
    target.txs.borrow_mut().prepared.insert(tx, prepared);
    finish(worker, target, tx, true).await
}

/// Does again what decisions of an earlier run have, and removes marks that are of no use any more.
pub(in crate::tx) async fn recover<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) -> Result<()> {
    let found = std::mem::take(&mut target.txs.borrow_mut().local_commits.found);
    for (tx, (now, all)) in found {
        for (participant, parts) in all {
            worker.tell(participant, TargetRequest::Redo { tx, now, parts }).await?;
        }
        forget_soon(worker, target, tx);
    }
    let marks = target.txs.borrow().local_commits.marks.clone();
    let mut useless = Vec::new();
    for tx in marks {
        let TargetReply::Decision(outcome) = worker.ask(tx.coordinator, TargetRequest::Outcome(tx)).await? else {
            return Err(Errno::Proto);
        };
        if outcome == Decision::Aborted {
            useless.push(tx);
        }
    }
    unmark(target, &useless);
    Ok(())
}
