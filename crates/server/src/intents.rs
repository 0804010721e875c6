//! Operations over several targets: two-phase commit with logged intents and presumed abort.
//!
//! Owns: the promise of a participant, the decision of a coordinator, what either does after a crash. Does not own:
//! what the changes are (`amphi_meta::Part`) and how an operation plans them (`ops`).
//!
//! The coordinator is the target that got the request. It asks the participants, itself included, in ascending order;
//! each takes the queues of the names and inodes concerned, checks, and logs its promise. Then the coordinator logs its own
//! changes, the decision and the client's answer in one record. Then the participants apply. Nobody sees a name
//! or inode while it is in between, because the queues are held until all is done.
//!
//! Logs of targets lose their last records independently when power fails. So a promise is stable before the decision
//! is logged, the decision before a participant applies, and the participants' changes before the coordinator forgets
//! the decision. Two syncs, one after the other, are the price of an operation over two targets.
//!
//! After a crash a participant with a promise asks: what the coordinator does not remember did not happen.

use crate::counters::add;
use crate::cx::Cx;
use crate::gate::{Gate, Guard, Hold};
use crate::message::{Question, Told};
use crate::records::{self, Intent, TxId};
use crate::target::{NameKey, Target};
use crate::worker::Worker;
use amphi_env::Env;
use amphi_meta::{Part, Refusal};
use amphi_types::item::Txn;
use amphi_types::{Errno, Ino, Result, TargetId, Timespec};
use amphi_wire::{Access, Reply};
use amphi_zone::Order;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A promise that is logged.
struct Prepared {
    now: Timespec,
    parts: Vec<Part>,
    /// Held until the outcome is known.
    guard: Guard<NameKey>,
}

/// Operations over several targets that are under way on one target.
pub struct Intents {
    id: TargetId,
    next: u64,
    prepared: BTreeMap<TxId, Prepared>,
    /// Decisions that participants may not know yet.
    committed: BTreeMap<TxId, Vec<TargetId>>,
    /// On target 0: who may move directories.
    move_gate: Gate<()>,
    moving: BTreeMap<u64, Guard<()>>,
    next_move: u64,
}

impl Intents {
    /// With the intents found at recovery; their names are held by `hold_recovered`.
    pub fn new(id: TargetId, starts: u64, recovered: Vec<Intent>) -> Intents {
        let mut intents = Intents {
            id,
            next: starts << 40,
            prepared: BTreeMap::new(),
            committed: BTreeMap::new(),
            move_gate: Gate::default(),
            moving: BTreeMap::new(),
            next_move: 0,
        };
        for intent in recovered {
            match intent {
                Intent::Prepared { tx, now, parts } => {
                    intents.prepared.insert(tx, Prepared { now, parts, guard: Guard::none() });
                }
                Intent::Committed { tx, participants } => drop(intents.committed.insert(tx, participants)),
            }
        }
        intents
    }

    fn new_tx(&mut self) -> TxId {
        self.next += 1;
        TxId { coordinator: self.id, number: self.next }
    }

    /// Whether every promise and every decision is finished.
    pub fn is_empty(&self) -> bool {
        self.prepared.is_empty() && self.committed.is_empty()
    }
}

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
        Part::Link { ino } | Part::Unlink { ino, .. } | Part::SetParent { ino, .. } => vec![alone(ino)],
        Part::TouchCtime { ino } => vec![shared(ino)],
    }
}

fn keys(parts: &[Part]) -> Vec<(NameKey, Hold)> {
    parts.iter().flat_map(keys_of).collect()
}

/// Bytes of items that changes may add.
fn growth(parts: &[Part]) -> u64 {
    parts
        .iter()
        .map(|p| match p {
            Part::InsertDentry { name, .. } | Part::ReplaceDentry { name, .. } => 128 + name.as_bytes().len() as u64,
            Part::MakeInode(new) => 320 + new.symlink.len() as u64,
            _ => 0,
        })
        .sum()
}

fn refused(refusal: Refusal) -> Result<Told> {
    match refusal {
        Refusal::Conflict => Ok(Told::Conflict),
        Refusal::Errno(e) => Err(e),
    }
}

/// Takes a part in another target's operation: checks and promises.
pub async fn prepare<E: Env>(target: &Rc<Target<E>>, tx: TxId, now: Timespec, parts: Vec<Part>) -> Result<Told> {
    target.zone.reserve(growth(&parts) * 2).await?;
    let guard = target.names.take(keys(&parts)).await;
    if let Err(refusal) = target.meta.borrow().check_parts(&parts) {
        return refused(refusal);
    }
    let intent = Intent::Prepared { tx, now, parts };
    let mut txn = Txn::default();
    txn.put(intent.key(), records::encode(&intent));
    let Intent::Prepared { parts, .. } = intent else { return Err(Errno::Io) };
    let lsn = {
        target.intents.borrow_mut().prepared.insert(tx, Prepared { now, parts, guard });
        target.append(txn, Order::Plain)
    };
    target.zone.stable(lsn).await?;
    Ok(Told::Done)
}

/// Makes a promise true, or forgets it. Unknown numbers are passed over: they were finished before.
pub async fn finish<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, tx: TxId, commit: bool) -> Result<Told> {
    let Some(prepared) = target.intents.borrow_mut().prepared.remove(&tx) else { return Ok(Told::Done) };
    let Prepared { now, parts, guard } = prepared;
    let mut txn = Txn::default();
    txn.delete(Intent::Prepared { tx, now, parts: Vec::new() }.key());
    let lsn = if commit {
        let applied = target.meta.borrow_mut().apply_parts(&parts, now, &mut txn);
        crate::ops::orphaned(target, &applied.orphaned, &mut txn)
    } else {
        crate::ops::Orphans::default()
    }
    .append(worker, target, txn);
    if commit {
        target.zone.written(lsn).await?;
    }
    drop(guard);
    Ok(Told::Done)
}

/// Whether the coordinator remembers having decided the operation.
pub fn outcome<E: Env>(target: &Target<E>, tx: TxId) -> bool {
    target.intents.borrow().committed.contains_key(&tx)
}

/// Takes the lock on moving directories.
pub async fn move_lock<E: Env>(target: &Target<E>) -> u64 {
    let gate = target.intents.borrow().move_gate.clone();
    let guard = gate.take(vec![((), Hold::Exclusive)]).await;
    let mut intents = target.intents.borrow_mut();
    intents.next_move += 1;
    let number = intents.next_move;
    intents.moving.insert(number, guard);
    number
}

/// Gives the lock on moving directories back.
pub fn move_unlock<E: Env>(target: &Target<E>, number: u64) {
    let guard = target.intents.borrow_mut().moving.remove(&number);
    drop(guard);
}

/// Finishes what a crash left: asks about promises, tells about decisions.
pub async fn recover<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) -> Result<()> {
    let promised: Vec<TxId> = target.intents.borrow().prepared.keys().copied().collect();
    for tx in promised {
        let Told::Outcome(commit) = worker.ask(tx.coordinator, Question::Outcome(tx)).await? else {
            return Err(Errno::Proto);
        };
        finish(worker, target, tx, commit).await?;
    }
    let decided: Vec<(TxId, Vec<TargetId>)> =
        target.intents.borrow().committed.iter().map(|(tx, p)| (*tx, p.clone())).collect();
    for (tx, participants) in decided {
        for p in &participants {
            worker.tell(*p, Question::Commit(tx)).await?;
        }
        forget_decision(worker, target, tx, participants).await?;
    }
    Ok(())
}

/// Forgets a decision when all who took part cannot forget it any more.
async fn forget_decision<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    tx: TxId,
    participants: Vec<TargetId>,
) -> Result<()> {
    for p in participants {
        worker.tell(p, Question::BecomeStable).await?;
    }
    target.intents.borrow_mut().committed.remove(&tx);
    let mut txn = Txn::default();
    txn.delete(Intent::Committed { tx, participants: Vec::new() }.key());
    target.append(txn, Order::Plain);
    Ok(())
}

/// What became of a planned operation.
pub enum Ran {
    /// It happened.
    Done(Reply),
    /// Something planned on had changed: nothing happened, plan again.
    Conflict,
}

impl<E: Env> Cx<E> {
    /// Carries out planned changes, wherever their targets are, and answers `reply` (made when everybody has promised,
    /// right before the decision). `opens` is opened for the session in the same step.
    pub async fn run_parts<F>(&self, parts: Vec<Part>, opens: Option<(Ino, Access)>, reply: F) -> Result<Ran>
    where
        F: AsyncFnOnce(&Self) -> Result<Reply>,
    {
        let own = self.target.id;
        let mut by_target: BTreeMap<TargetId, Vec<Part>> = BTreeMap::new();
        for part in parts {
            by_target.entry(part.target()).or_default().push(part);
        }
        self.reserve(by_target.get(&own).map_or(0, |p| growth(p)) + 256).await?;
        let tx = self.target.intents.borrow_mut().new_tx();
        let several = by_target.keys().any(|t| *t != own);
        if several {
            add(&self.worker.counters.two_phase, 1);
        }
        let mut guard = Guard::none();
        let mut promised = Vec::new();
        let mut refusal = None;
        for (&target, parts) in &by_target {
            let told = if target == own {
                guard = self.target.names.take(keys(parts)).await;
                self.target.meta.borrow().check_parts(parts).map_or_else(refused, |()| Ok(Told::Done))
            } else {
                let question = Question::Prepare { tx, now: self.now, parts: parts.clone() };
                self.worker.ask(target, question).await
            };
            match told {
                Ok(Told::Done) if target == own => {}
                Ok(Told::Done) => promised.push(target),
                other => {
                    refusal = Some(other);
                    break;
                }
            }
        }
        let reply = match refusal {
            None => reply(self).await,
            Some(Ok(Told::Conflict)) => Err(Errno::Again),
            Some(Ok(_)) => Err(Errno::Proto),
            Some(Err(e)) => Err(e),
        };
        let reply = match reply {
            Ok(reply) => reply,
            Err(e) => {
                for target in promised {
                    self.worker.tell(target, Question::Abort(tx)).await?;
                }
                if e == Errno::Again {
                    add(&self.worker.counters.conflicts, 1);
                    return Ok(Ran::Conflict);
                }
                return Err(e);
            }
        };
        let lsn = {
            let mut txn = Txn::default();
            let mut orphans = crate::ops::Orphans::default();
            if let Some(parts) = by_target.get(&own) {
                let applied = self.target.meta.borrow_mut().apply_parts(parts, self.now, &mut txn);
                orphans = crate::ops::orphaned(&self.target, &applied.orphaned, &mut txn);
            }
            if several {
                let intent = Intent::Committed { tx, participants: promised.clone() };
                txn.put(intent.key(), records::encode(&intent));
                self.target.intents.borrow_mut().committed.insert(tx, promised.clone());
            }
            if let Some((ino, access)) = opens {
                self.target.opens.borrow_mut().open(self.session, ino, access);
            }
            self.seal(&mut txn, &reply, opens);
            orphans.append(&self.worker, &self.target, txn)
        };
        if !several {
            drop(guard);
            self.target.zone.written(lsn).await?;
            return Ok(Ran::Done(reply));
        }
        self.target.zone.stable(lsn).await?;
        let commits = promised.iter().map(|t| self.worker.tell(*t, Question::Commit(tx)));
        join_all(commits).await.into_iter().collect::<Result<()>>()?;
        drop(guard);
        let (worker, target) = (self.worker.clone(), self.target.clone());
        self.worker.env.spawn(async move {
            // On an error the decision stays, and is told again after the next start.
            let _ = forget_decision(&worker, &target, tx, promised).await;
        });
        Ok(Ran::Done(reply))
    }
}
