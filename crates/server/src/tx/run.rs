//! Executing a planned operation. Every create, unlink, link and rename uses this code.
//!
//! Owns: the coordinator's steps, whether one target is concerned or several: space in the log, the promises, the step
//! in which the operation takes effect, and informing participants. Does not own: promises and decisions after a crash
//! (`two_phase`), how an operation plans its changes (`ops`).

use super::two_phase::{
    changed_keys, decided, forget_later, growth, keys, only_removes_directories, predicted, refused,
};
use crate::coherence::tokens::Changing;
use crate::counters::add;
use crate::message::{TargetReply, TargetRequest};
use crate::records::{self, Intent, TxId};
use crate::worker::request::RequestCx;
use crate::zone_target::NameKey;
use crate::zone_target::gate::Guard;
use crate::zone_target::residency::HeldInodes;
use amphi_env::Env;
use amphi_meta::Part;
use amphi_types::item::Txn;
use amphi_types::{Errno, Ino, Name, Result, TargetId};
use amphi_wire::{Access, Reply};
use amphi_zone::Lsn;
use futures_util::future::join_all;
use std::collections::BTreeMap;

/// Bytes of the decision, which an operation that adds something may add as well.
const DECISION_BYTES: u64 = 256;

/// The result of a planned operation.
pub enum Ran {
    /// The operation happened.
    Done(Reply),
    /// A fact on which the plan is based has changed: nothing happened, and the operation has to be planned again.
    Conflict,
}

/// The answers of the targets of an operation before its decision. The queues of names are released last.
struct Promises {
    /// The token change for the own target's part.
    changing: Option<Changing>,
    guard: Guard<NameKey>,
    /// The inodes of the own target's part.
    held: Option<HeldInodes>,
    /// Other targets that have promised.
    promised: Vec<TargetId>,
    /// The answer of the target that refused.
    refusal: Option<Result<TargetReply>>,
}

impl<E: Env> RequestCx<E> {
    /// Carries out planned changes, wherever their targets are, and answers `reply` (made when all participants have
    /// promised, right before the decision). `opens` is opened for the session in the same step. `named`: names of this
    /// target that the request named.
    pub async fn run_parts<F>(
        &self,
        parts: Vec<Part>,
        named: &[(Ino, &Name)],
        opens: Option<(Ino, Access)>,
        reply: F,
    ) -> Result<Ran>
    where
        F: AsyncFnOnce(&Self) -> Result<Reply>,
    {
        let own = self.target.id;
        let mut by_target: BTreeMap<TargetId, Vec<Part>> = BTreeMap::new();
        for part in parts {
            by_target.entry(part.target()).or_default().push(part);
        }
        let several = by_target.keys().any(|t| *t != own);
        let local_commits = several && by_target.keys().all(|t| self.worker.routes.is_local(*t));
        let early = local_commits && only_removes_directories(&by_target, own);
        // The decision may have the changes of all.
        let here = by_target.iter().filter(|(t, _)| local_commits || **t == own);
        let growth = here.map(|(_, p)| growth(p)).sum::<u64>();
        self.reserve(if growth == 0 { 0 } else { growth + DECISION_BYTES }).await?;
        let tx = self.target.txs.borrow_mut().new_tx();
        if several {
            add(&self.worker.counters.two_phase, 1);
        }
        let _turn = self.worker.turn_for(by_target.keys().copied()).await;
        if several {
            let is_new = self.target.txs.borrow_mut().undecided.insert(tx);
            assert!(is_new, "two operations have the number {}", tx.number);
        }
        let Promises { guard, held: _held, promised, refusal, mut changing } =
            self.ask_for_promises(tx, &by_target, named, local_commits).await;
        let reply = match refusal {
            None => reply(self).await,
            Some(Ok(TargetReply::Conflict)) => Err(Errno::Again),
            Some(Ok(_)) => Err(Errno::Proto),
            Some(Err(e)) => Err(e),
        };
        // The last check before the decision: if the session has ended meanwhile, its request is not executed.
        let reply = match reply.and_then(|reply| self.alive().map(|()| reply)) {
            Ok(reply) => reply,
            Err(e) => {
                self.abort(tx, promised).await?;
                if e == Errno::Again {
                    add(&self.worker.counters.conflicts, 1);
                    return Ok(Ran::Conflict);
                }
                return Err(e);
            }
        };
        let losing = by_target.get(&own).and_then(|parts| predicted::losing_directory(parts));
        let own_parts = by_target.remove(&own);
        let decision = match (several, local_commits) {
            (false, _) => None,
            (true, false) => Some(Intent::Committed { tx, participants: promised.clone() }),
            (true, true) => Some(Intent::Decided { tx, now: self.now, parts: by_target.into_iter().collect() }),
        };
        let lsn = self.decide(own_parts.as_deref(), decision, &promised, opens, &reply, changing.as_mut());
        self.show(&reply, named, lsn);
        if !several {
            drop(guard);
            self.target.zone.kept(lsn).await?;
            if let Some(dir) = losing {
                self.foresee_removal(dir, lsn);
            }
            return Ok(Ran::Done(reply));
        }
        if early {
            decided::carry_out(&self.worker, &self.target, tx, lsn, promised);
            drop(guard);
            self.target.zone.kept(lsn).await?;
            return Ok(Ran::Done(reply));
        }
        self.target.zone.stable(lsn).await?;
        // No participant was informed of the decision before it was certain.
        self.target.txs.borrow_mut().undecided.remove(&tx);
        let commits = promised.iter().map(|t| self.worker.insist(*t, TargetRequest::Commit(tx)));
        join_all(commits).await.into_iter().collect::<Result<()>>()?;
        drop(guard);
        match local_commits {
            true => decided::forget_soon(&self.worker, &self.target, tx),
            false => forget_later(&self.worker, &self.target, tx, promised),
        }
        Ok(Ran::Done(reply))
    }

    /// Requests the promises of the targets, including this one, in ascending order until one refuses.
    async fn ask_for_promises(
        &self,
        tx: TxId,
        by_target: &BTreeMap<TargetId, Vec<Part>>,
        named: &[(Ino, &Name)],
        local_commits: bool,
    ) -> Promises {
        let own = self.target.id;
        let mut all =
            Promises { changing: None, guard: Guard::none(), held: None, promised: Vec::new(), refusal: None };
        for (&target, parts) in by_target {
            let told = if target == own {
                all.guard = self.target.queues.names.take(keys(parts)).await;
                let checked = match self.target.hold(parts.iter().map(Part::ino)).await {
                    Ok(held) => {
                        all.held = Some(held);
                        let checked = self.target.meta.borrow().check_parts(parts);
                        checked.map_or_else(refused, |()| Ok(TargetReply::Done))
                    }
                    Err(e) => Err(e),
                };
                if checked.is_ok() {
                    let keys = || {
                        let named: Vec<_> = named.iter().map(|(dir, name)| (*dir, name.token_hash())).collect();
                        changed_keys(parts, &named)
                    };
                    all.changing = Some(self.change(keys).await);
                }
                checked
            } else {
                let (session, now, parts) = (self.session, self.now, parts.clone());
                let question = match local_commits {
                    true => TargetRequest::Hold { tx, session, now, parts },
                    false => TargetRequest::Prepare { tx, session, now, parts },
                };
                self.worker.ask(target, question).await
            };
            match told {
                Ok(TargetReply::Done) if target == own => {}
                Ok(TargetReply::Done) => all.promised.push(target),
                other => {
                    all.refusal = Some(other);
                    break;
                }
            }
        }
        let own = usize::from(by_target.contains_key(&own));
        assert!(
            all.refusal.is_some() || all.promised.len() + own == by_target.len(),
            "operation {}: {} of {} targets have promised",
            tx.number,
            all.promised.len() + own,
            by_target.len()
        );
        all
    }

    /// The operation is not executed, and targets that have promised are informed.
    async fn abort(&self, tx: TxId, promised: Vec<TargetId>) -> Result<()> {
        self.target.txs.borrow_mut().undecided.remove(&tx);
        for target in promised {
            if self.worker.routes.is_local(target) {
                self.worker.tell(target, TargetRequest::Abort(tx)).await?;
            } else {
                // If this message is lost, the participant asks.
                self.worker.tell_later(target, TargetRequest::Abort(tx));
            }
        }
        Ok(())
    }

    /// The step in which an operation takes effect: appends the coordinator's own changes, the decision for the
    /// participants and the client's answer in one record. Nothing is on the disk when it returns.
    fn decide(
        &self,
        own_parts: Option<&[Part]>,
        decision: Option<Intent>,
        promised: &[TargetId],
        opens: Option<(Ino, Access)>,
        reply: &Reply,
        changing: Option<&mut Changing>,
    ) -> Lsn {
        assert_eq!(decision.is_some(), !promised.is_empty(), "a decision is for the {} that promised", promised.len());
        let mut txn = Txn::default();
        let mut orphans = crate::objects::Orphans::default();
        if let Some(parts) = own_parts {
            let late = self.worker.env.wall();
            let applied = self.target.meta.borrow_mut().apply_promised(parts, self.now, late, &mut txn);
            orphans = crate::objects::orphaned(&self.target, &applied.orphaned, &mut txn);
        }
        if let Some(intent) = decision {
            txn.put(intent.key(), records::encode(&intent));
            let mut txs = self.target.txs.borrow_mut();
            match intent {
                Intent::Decided { tx, .. } => txs.local_commits.decide(tx, promised.to_vec()),
                Intent::Committed { tx, participants } => drop(txs.committed.insert(tx, participants)),
                Intent::Prepared { .. } | Intent::Applied { .. } => {}
            }
        }
        if let Some((ino, access)) = opens.filter(|_| self.target.has_session(self.session)) {
            self.target.files.open.borrow_mut().open(self.session, ino, access);
        }
        self.seal(&mut txn, reply, opens);
        let lsn = orphans.append(&self.worker, &self.target, txn);
        if let Some(changing) = changing {
            self.changed(changing);
        }
        lsn
    }

    /// Grants tokens for the values that the answer shows, in the step in which the change happened.
    fn show(&self, reply: &Reply, named: &[(Ino, &Name)], lsn: Lsn) {
        match (reply, named) {
            (Reply::Made { inode, .. }, [(dir, name)]) => {
                self.grant_name(*dir, name);
                self.grant_attributes(inode);
            }
            (Reply::Inode(_), [(dir, name)]) => self.grant_name(*dir, name),
            _ => {}
        }
        if let Some((dir, _)) = named.first() {
            let made = matches!(reply, Reply::Made { created: true, .. });
            self.show_directory(*dir, lsn, made);
        }
    }
}
