//! Operations over several targets: two-phase commit with logged intents and presumed abort.
//!
//! Owns: the promise of a participant, the decision of a coordinator, what either does after a crash. Does not own: the
//! contents of the changes (`amphi_meta::Part`), and how an operation plans them (`ops`).
//!
//! The coordinator is the target that got the request. The coordinator sends requests to the participants, including
//! itself, in ascending order. Each participant takes the queues of the names and inodes concerned, checks, and logs
//! its promise. Then the coordinator logs its own changes, the decision and the client's answer in one record. Then the
//! participants apply their parts. No operation sees a name or inode in an intermediate state, because the queues are
//! held until all is done.
//!
//! Logs of targets lose their last records independently when power fails. So a promise is stable before the decision
//! is logged, the decision before a participant applies, and the participants' changes before the coordinator forgets
//! the decision. Two syncs, one after the other, are the price of an operation over two servers.
//!
//! Targets of one server always end together. So a promise among them is kept only in memory, and the decision contains
//! the participants' changes (`decided`): one record and one sync. The removal of a directory is answered when its
//! record is kept, like any operation on one target. The participant's remaining work concerns a directory that cannot
//! be found any more.
//!
//! After a crash a participant with a promise asks the coordinator. An operation that the coordinator does not know did
//! not happen. The changes in a decision are made again, unless they were made.

pub mod decided;
pub(super) mod predicted;

use crate::message::{Decision, TargetReply, TargetRequest};
use crate::planted::{self, Mistake};
use crate::records::{self, Intent, TxId};
use crate::worker::Worker;
use crate::zone_target::gate::Hold;
use crate::zone_target::tx_table::{Prepared, Promise};
use crate::zone_target::{NameKey, Target};
use amphi_dlm::Changed;
use amphi_env::Env;
use amphi_meta::{Part, Refusal};
use amphi_types::item::Txn;
use amphi_types::{Errno, Ino, Kind, Result, SessionId, TargetId, Timespec, TokenKey};
use amphi_zone::Order;
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// How long a participant waits before it asks whether a promise was decided, and before it asks again.
const ASK_AFTER: Duration = Duration::from_secs(2);
/// How often a repeated answer that waits for participants to be informed checks whether they are.
const UNTOLD_LOOK: Duration = Duration::from_millis(2);

/// The queues that a change needs.
fn keys_of(part: &Part) -> Vec<(NameKey, Hold)> {
    let shared = |ino: &Ino| (NameKey::Inode(*ino), Hold::Shared);
    let alone = |ino: &Ino| (NameKey::Inode(*ino), Hold::Exclusive);
    match part {
        Part::InsertDentry { dir, name, .. }
        | Part::RemoveDentry { dir, name, .. }
        | Part::ReplaceDentry { dir, name, .. } => {
            vec![shared(dir), (NameKey::Entry(*dir, name.clone()), Hold::Exclusive)]
        }
        Part::TouchDir { dir, .. } => vec![shared(dir)],
        Part::MakeInode(new) => vec![alone(&new.ino)],
        Part::SetAcls { ino, .. } | Part::SetProject { ino, .. } => vec![alone(ino)],
        Part::SetShards { ino, .. } | Part::SetShared { ino, .. } => vec![alone(ino)],
        Part::Unlink { ino, .. } if ino.is_shard() && planted::is(Mistake::ShardUnguarded) => Vec::new(),
        Part::Link { ino } | Part::Unlink { ino, .. } | Part::SetParent { ino, .. } => vec![alone(ino)],
        Part::TouchCtime { ino } => vec![shared(ino)],
    }
}

/// Returns whether targets other than `own` only have to forget directories that lose their names.
pub(super) fn only_removes_directories(parts: &BTreeMap<TargetId, Vec<Part>>, own: TargetId) -> bool {
    let moves = parts.values().flatten().any(|part| matches!(part, Part::SetParent { .. }));
    let mut others = parts.iter().filter(|(target, _)| **target != own).flat_map(|(_, parts)| parts);
    !moves && others.all(|part| matches!(part, Part::Unlink { kind: Kind::Dir, .. }))
}

pub(super) fn keys(parts: &[Part]) -> Vec<(NameKey, Hold)> {
    parts.iter().flat_map(keys_of).collect()
}

/// The token keys that these changes concern. `named`: names of this target that the client named with its request, by
/// directory and hash. The client has dropped its own copies of them and of the directory's attributes, and has noted
/// the names that it makes in its record of the directory's names.
pub(super) fn changed_keys(parts: &[Part], named: &[(Ino, u64)]) -> Vec<Changed> {
    let alone = |key, known| Changed { key, known, joint: false };
    let joint = |key, known| Changed { key, known, joint: true };
    let dir_named = |dir: &Ino| named.iter().any(|(d, _)| d == dir);
    let mut keys = Vec::with_capacity(2 * parts.len());
    for part in parts {
        match part {
            Part::InsertDentry { dir, name, .. }
            | Part::RemoveDentry { dir, name, .. }
            | Part::ReplaceDentry { dir, name, .. } => {
                let hash = name.token_hash();
                keys.push(alone(TokenKey::Name(*dir, hash), named.contains(&(*dir, hash))));
                keys.push(joint(TokenKey::Listing(*dir), dir_named(dir)));
            }
            Part::TouchDir { dir, .. } => keys.push(joint(TokenKey::Attributes(*dir), dir_named(dir))),
            // No client knows an inode that is just being made, so nothing is revoked.
            Part::MakeInode(_) | Part::SetAcls { .. } | Part::SetProject { .. } => {}
            Part::Link { ino }
            | Part::Unlink { ino, .. }
            | Part::SetParent { ino, .. }
            | Part::TouchCtime { ino }
            | Part::SetShared { ino, .. } => {
                keys.push(alone(TokenKey::Attributes(*ino), false));
            }
            // From now on the names lie elsewhere, so nobody knows them any more.
            Part::SetShards { ino, .. } => {
                keys.push(alone(TokenKey::Attributes(*ino), false));
                keys.push(joint(TokenKey::Listing(*ino), false));
            }
        }
    }
    keys
}

/// Bytes of items that changes may add; 0 for changes that only remove or modify items.
pub(super) fn growth(parts: &[Part]) -> u64 {
    parts
        .iter()
        .map(|p| match p {
            Part::InsertDentry { name, .. } | Part::ReplaceDentry { name, .. } => 128 + name.as_bytes().len() as u64,
            Part::MakeInode(new) => 320 + new.symlink.len() as u64,
            Part::SetAcls { acls, .. } => acls.stored_bytes() + 128,
            Part::SetShards { shards, .. } => 64 + 8 * shards.len() as u64,
            Part::SetShared { now, .. } => now.growth(),
            _ => 0,
        })
        .sum()
}

pub(super) fn refused(refusal: Refusal) -> Result<TargetReply> {
    match refusal {
        Refusal::Conflict => Ok(TargetReply::Conflict),
        Refusal::Errno(e) => Err(e),
    }
}

/// Takes a part in another target's operation: checks and promises.
pub async fn prepare<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    session: SessionId,
    tx: TxId,
    now: Timespec,
    parts: Vec<Part>,
    promise: Promise,
) -> Result<TargetReply> {
    if target.txs.borrow().prepared.contains_key(&tx) {
        // Promised in an earlier run, and held since it was read.
        return Ok(TargetReply::Done);
    }
    debug_assert!(tx.coordinator != target.id, "who decides promises itself nothing");
    debug_assert!(parts.iter().all(|part| part.target() == target.id), "each participant gets its own part");
    let is_here = worker.routes.is_local(tx.coordinator);
    debug_assert!(promise == Promise::Logged || is_here, "a promise in memory ends with the server of who decides");
    target.zone.reserve(growth(&parts) * 2).await?;
    let guard = target.queues.names.take(keys(&parts)).await;
    // The decision may come late, if its coordinator cannot be reached.
    let inodes = Some(target.hold_apart(parts.iter().map(Part::ino)).await?);
    if let Err(refusal) = target.meta.borrow().check_parts(&parts) {
        return refused(refusal);
    }
    let sent = || worker.send_revocations(target);
    let changing =
        target.coherence.tokens.change(|| worker.now_ns(), session, || changed_keys(&parts, &[]), sent).await;
    if promise == Promise::Held {
        // The decision must not outlive what its changes build on. A new inode builds on nothing.
        if parts.iter().any(|part| !matches!(part, Part::MakeInode(_))) {
            if parts.iter().any(predicted::removes_directory) {
                target.txs.borrow_mut().predicted.removed();
            }
            target.zone.stable(target.zone.appended_lsn()).await?;
        }
        let Some(held) = target.hold_promised(&parts, worker.now_ns()) else { return Ok(TargetReply::Conflict) };
        let prepared = Prepared { now, parts, promise, guard, changing: Some(changing), held, inodes };
        target.txs.borrow_mut().prepared.insert(tx, prepared);
        return Ok(TargetReply::Done);
    }
    let Some(held) = target.hold_promised(&parts, worker.now_ns()) else { return Ok(TargetReply::Conflict) };
    let intent = Intent::Prepared { tx, now, parts };
    let mut txn = Txn::default();
    txn.put(intent.key(), records::encode(&intent));
    let Intent::Prepared { parts, .. } = intent else { return Err(Errno::Io) };
    let lsn = {
        let prepared = Prepared { now, parts, promise, guard, changing: Some(changing), held, inodes };
        target.txs.borrow_mut().prepared.insert(tx, prepared);
        target.append(txn, Order::Plain)
    };
    if !worker.routes.is_local(tx.coordinator) {
        watch(worker, target, ASK_AFTER);
    }
    target.zone.stable(lsn).await?;
    Ok(TargetReply::Done)
}

/// Asks other servers about promises until none is left. A coordinator that gave an operation up, or that was
/// restarted, does not send the outcome.
fn watch<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, first_after: Duration) {
    if std::mem::replace(&mut target.txs.borrow_mut().watched, true) {
        return;
    }
    let (worker, weak) = (worker.clone(), Rc::downgrade(target));
    worker.env.clone().spawn(async move {
        let mut seen: BTreeSet<TxId> = BTreeSet::new();
        if let Some(target) = weak.upgrade().filter(|_| first_after.is_zero()) {
            seen = foreign_promises(&worker, &target);
        }
        worker.env.sleep(first_after).await;
        loop {
            let Some(target) = weak.upgrade() else { return };
            let all = foreign_promises(&worker, &target);
            if all.is_empty() {
                target.txs.borrow_mut().watched = false;
                return;
            }
            // Only promises that existed a round ago are asked about, because most are resolved within milliseconds.
            let mut due: BTreeMap<TargetId, Vec<TxId>> = BTreeMap::new();
            for tx in all.intersection(&seen) {
                due.entry(tx.coordinator).or_default().push(*tx);
            }
            // Coordinators are asked independently: one that cannot be reached must not delay the answers of the
            // others.
            join_all(due.values().map(|promises| ask_about(&worker, &target, promises))).await;
            seen = all;
            drop(target);
            worker.env.sleep(ASK_AFTER).await;
        }
    });
}

/// Asks about promises to one coordinator, until it cannot be reached.
async fn ask_about<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, promises: &[TxId]) {
    for tx in promises {
        let outcome = match worker.ask(tx.coordinator, TargetRequest::Outcome(*tx)).await {
            Ok(TargetReply::Decision(outcome)) => outcome,
            _ => return,
        };
        if outcome != Decision::Undecided
            && let Err(e) = finish(worker, target, *tx, outcome == Decision::Committed).await
        {
            tracing::error!("{}: operation {} of {} cannot be finished: {e}", target.id, tx.number, tx.coordinator);
        }
    }
}

/// Promises of operations that another server coordinates.
fn foreign_promises<E: Env>(worker: &Worker<E>, target: &Target<E>) -> BTreeSet<TxId> {
    let txs = target.txs.borrow();
    txs.prepared.keys().filter(|tx| !worker.routes.is_local(tx.coordinator)).copied().collect()
}

/// Makes the changes of a promise, or forgets the promise. Unknown numbers are ignored, because they were finished
/// before. Does not wait until its record is written. If the record is lost, the promise or the decision still exists,
/// and the work is done again.
///
/// Errors: `Io` if the changes do not fit, which means damage: the names and inodes were locked from the check to the
/// decision; or if an inode of a promise of an earlier run cannot be read. In that case nothing is changed.
pub async fn finish<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    tx: TxId,
    commit: bool,
) -> Result<TargetReply> {
    let concerned: Vec<Ino> = match target.txs.borrow().prepared.get(&tx) {
        Some(prepared) if commit && prepared.inodes.is_none() => prepared.parts.iter().map(Part::ino).collect(),
        _ => Vec::new(),
    };
    let _read = target.hold(concerned).await?;
    let Some(prepared) = target.txs.borrow_mut().prepared.remove(&tx) else { return Ok(TargetReply::Done) };
    let Prepared { now, parts, promise, guard, changing, held, inodes: _inodes } = prepared;
    // In this very step the inodes are counted, or will never be.
    if let Some((owner, amount)) = held {
        target.counts.quota.shares.borrow_mut().release(owner, amount);
    }
    if commit && let Err(refusal) = target.meta.borrow().check_parts(&parts) {
        let id = target.id;
        tracing::error!("{id}: what operation {} of {} decided does not fit: {refusal:?}", tx.number, tx.coordinator);
        return Err(Errno::Io);
    }
    let mut txn = Txn::default();
    match promise {
        Promise::Logged => txn.delete(Intent::Prepared { tx, now, parts: Vec::new() }.key()),
        Promise::Held if commit => txn.put(Intent::Applied { tx }.key(), records::encode(&Intent::Applied { tx })),
        Promise::Held => {}
    }
    if commit {
        let applied = target.meta.borrow_mut().apply_promised(&parts, now, worker.env.wall(), &mut txn);
        crate::objects::orphaned(target, &applied.orphaned, &mut txn).append(worker, target, txn);
    } else {
        target.append(txn, Order::Plain);
    }
    drop(changing);
    drop(guard);
    Ok(TargetReply::Done)
}

/// The coordinator's record of an operation: an operation without a record did not happen.
pub fn outcome<E: Env>(target: &Target<E>, tx: TxId) -> Decision {
    let txs = target.txs.borrow();
    if txs.undecided.contains(&tx) {
        Decision::Undecided
    } else if txs.committed.contains_key(&tx) || txs.local_commits.knows(tx) {
        Decision::Committed
    } else {
        Decision::Aborted
    }
}

/// Returns whether the lock on moving directories is held under this number.
pub fn has_move_lock<E: Env>(target: &Target<E>, number: u64) -> bool {
    target.txs.borrow().moving.contains_key(&number)
}

/// Waits until no operation is moving a directory between `from` and the root. With one server, the lock on moving
/// directories alone guarantees that. A restart of target 0 loses the lock, but not the promises of its holder.
pub async fn settle_way<E: Env>(worker: &Worker<E>, target: &Target<E>, from: Ino) {
    if !worker.routes.is_shared() {
        return;
    }
    let mut waited = Vec::new();
    while !target.queues.names.is_empty() {
        let mut way = Vec::new();
        // An error that ends this walk ends the walk of the operation too.
        let _ = target.meta.borrow().ancestors(from, |at| {
            way.push(NameKey::Inode(at));
            Ok(())
        });
        if way == waited {
            return;
        }
        waited = way.clone();
        target.settle(way).await;
    }
}

/// Waits until the names of a directory are released that operations of other targets lock now. These operations may be
/// decided, and their removals may be visible on other targets. It does not wait for names that are locked later, so
/// that a busy directory can be listed. The operations that lock them were not decided when this began. An operation of
/// this target itself changes its names in the step that decides it.
pub async fn settle_names<E: Env>(target: &Target<E>, dir: Ino) {
    let names: Vec<NameKey> = {
        let txs = target.txs.borrow();
        let entry_of = |part: &Part| match part {
            Part::InsertDentry { dir: at, name, .. }
            | Part::RemoveDentry { dir: at, name, .. }
            | Part::ReplaceDentry { dir: at, name, .. }
                if *at == dir =>
            {
                Some(NameKey::Entry(dir, name.clone()))
            }
            _ => None,
        };
        txs.prepared.values().flat_map(|p| &p.parts).filter_map(entry_of).collect()
    };
    for name in names {
        // The names are awaited one after the other, so an operation that needs one of them does not wait for all.
        target.settle(vec![name]).await;
    }
}

/// Takes the lock on moving directories.
pub async fn move_lock<E: Env>(target: &Target<E>) -> u64 {
    let gate = target.txs.borrow().move_gate.clone();
    let guard = gate.take(vec![((), Hold::Exclusive)]).await;
    let mut txs = target.txs.borrow_mut();
    txs.next_move += 1;
    let number = txs.next_move;
    txs.moving.insert(number, guard);
    number
}

/// Gives the lock on moving directories back.
pub fn move_unlock<E: Env>(target: &Target<E>, number: u64) {
    let guard = target.txs.borrow_mut().moving.remove(&number);
    drop(guard);
}

/// Completes the operations that a crash interrupted: asks about promises, and sends decisions. Work that needs another
/// server is done in the background, while the names concerned stay locked.
pub async fn recover<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) -> Result<()> {
    let promised: Vec<TxId> = target.txs.borrow().prepared.keys().copied().collect();
    for tx in promised.iter().filter(|tx| !worker.routes.is_local(tx.coordinator)) {
        let wanted = target.txs.borrow().prepared.get(tx).map(|p| keys(&p.parts)).unwrap_or_default();
        // These names were locked together when they were promised, so this does not wait.
        let guard = target.queues.names.take(wanted).await;
        // No tokens are granted at all before it ends.
        let changing = target.coherence.tokens.hold();
        if let Some(prepared) = target.txs.borrow_mut().prepared.get_mut(tx) {
            prepared.guard = guard;
            prepared.changing = Some(changing);
        }
    }
    for tx in promised.into_iter().filter(|tx| worker.routes.is_local(tx.coordinator)) {
        let TargetReply::Decision(outcome) = worker.ask(tx.coordinator, TargetRequest::Outcome(tx)).await? else {
            return Err(Errno::Proto);
        };
        finish(worker, target, tx, outcome == Decision::Committed).await?;
    }
    if !foreign_promises(worker, target).is_empty() {
        watch(worker, target, Duration::ZERO);
    }
    decided::recover(worker, target).await?;
    let decided: Vec<(TxId, Vec<TargetId>)> =
        target.txs.borrow().committed.iter().map(|(tx, p)| (*tx, p.clone())).collect();
    for (tx, participants) in decided {
        if participants.iter().all(|p| worker.routes.is_local(*p)) {
            for p in &participants {
                worker.tell(*p, TargetRequest::Commit(tx)).await?;
            }
            forget_decision(worker, target, tx, participants).await?;
        } else {
            target.txs.borrow_mut().untold.insert(tx);
            tell_later(worker, target, tx, participants);
        }
    }
    Ok(())
}

/// Sends a decision of an earlier run to all participants, then deletes it.
fn tell_later<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, tx: TxId, participants: Vec<TargetId>) {
    let (worker, target) = (worker.clone(), target.clone());
    worker.env.clone().spawn(async move {
        let told = join_all(participants.iter().map(|t| worker.insist(*t, TargetRequest::Commit(tx)))).await;
        // On an error the decision stays, and is sent again after the next start.
        if told.into_iter().all(|t| t.is_ok()) {
            target.txs.borrow_mut().untold.remove(&tx);
            let _ = forget_decision(&worker, &target, tx, participants).await;
        }
    });
}

/// Waits until all participants have been informed of decisions of an earlier run, because a client that gets its
/// repeated answer may look there.
pub async fn until_told<E: Env>(worker: &Worker<E>, target: &Target<E>) {
    while !target.txs.borrow().untold.is_empty() {
        worker.env.sleep(UNTOLD_LOOK).await;
    }
}

/// Sends a decision to all participants in the background, and deletes it.
pub(super) fn forget_later<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    tx: TxId,
    participants: Vec<TargetId>,
) {
    let (worker, target) = (worker.clone(), target.clone());
    worker.env.clone().spawn(async move {
        // On an error the decision stays, and is sent again after the next start.
        let _ = forget_decision(&worker, &target, tx, participants).await;
    });
}

/// Forgets a decision when all who took part cannot forget it any more.
async fn forget_decision<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    tx: TxId,
    participants: Vec<TargetId>,
) -> Result<()> {
    for p in participants {
        worker.insist(p, TargetRequest::Settle(tx)).await?;
    }
    target.txs.borrow_mut().committed.remove(&tx);
    let mut txn = Txn::default();
    txn.delete(Intent::Committed { tx, participants: Vec::new() }.key());
    target.append(txn, Order::Plain);
    Ok(())
}
