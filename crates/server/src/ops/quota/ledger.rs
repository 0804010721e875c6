//! Dealing limits out from target 0, and the questions about quotas between targets.
//!
//! Owns: answers to requests of targets, dividing a limit (once at a time for each account), and the check of soft
//! limits. Does not own: how much a target gets (`amphi_quota`), getting space for a request (`ops::quota`).

use crate::message::{Freeing, QuotaRequest, TargetReply, TargetRequest};
use crate::ops::quota::counting::{accounts_behind, begin_counting, set_on, whole};
use crate::ops::quota::{LEDGER, admit, freeing, waits};
use crate::worker::Worker;
use crate::zone_target::Target;
use crate::zone_target::gate::Hold;
use amphi_env::{Env, timeout};
use amphi_quota::{Answer, Need, Share};
use amphi_types::item::Txn;
use amphi_types::{Account, Amount, Result, TargetId};
use amphi_zone::Order;
use futures_util::future::join_all;
use std::rc::Rc;
use std::time::Duration;

/// How often the target checks which accounts use more than their soft limit.
const SOFT_EVERY: Duration = Duration::from_secs(30);
/// How long the ledger waits for a target that does not answer, before it uses the last numbers of that target.
const COLLECT_WITHIN: Duration = Duration::from_secs(1);
/// Pause before the remaining space is checked again.
const FREED_LOOK: Duration = Duration::from_millis(5);

/// All targets.
pub(super) fn pool<E: Env>(worker: &Worker<E>) -> impl Iterator<Item = TargetId> + use<E> {
    (0..worker.pool()).map(TargetId)
}

/// Seconds since the epoch.
fn now_s<E: Env>(worker: &Worker<E>) -> u64 {
    u64::try_from(worker.env.wall().sec).unwrap_or(0)
}

/// Answers a question about quotas.
pub async fn answer<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    question: QuotaRequest,
) -> Result<TargetReply> {
    match question {
        QuotaRequest::Share { account, from, used, wanted, ahead } => {
            let need = Need { used, wanted, collected: false, ahead, targets: u64::from(worker.pool()) };
            deal(worker, target, account, from, need).await
        }
        QuotaRequest::IsLimited(account) => {
            let number = target.counts.quota.ledger.borrow_mut().unlimited(account);
            let unlimited = |number| TargetReply::Share { number, share: Share::Unlimited, refused: false };
            Ok(number.map_or(TargetReply::Outcome(true), unlimited))
        }
        QuotaRequest::Collect { account, number } => {
            begin_counting(worker, target);
            if !target.is_counted() {
                return Ok(TargetReply::Outcome(false));
            }
            target.counts.quota.end_reservations(worker.now_ns());
            let used = target.used(account);
            let used = target.counts.quota.shares.borrow_mut().give_back(account, number, used);
            Ok(TargetReply::Collected { used, freeing: freeing(target) })
        }
        QuotaRequest::Changed(account, number) => {
            target.counts.quota.shares.borrow_mut().forget(account, number);
            // Messages about several changes may arrive in another order.
            let is_on = !matches!(worker.ask(LEDGER, TargetRequest::QuotaIsOn).await, Ok(TargetReply::Outcome(false)));
            set_on(worker, target, is_on);
            Ok(TargetReply::Done)
        }
        QuotaRequest::Used(account) => {
            whole(worker, target).await?;
            Ok(TargetReply::Used(target.used(account)))
        }
        QuotaRequest::Accounts(after) => {
            whole(worker, target).await?;
            Ok(accounts_behind(target, after))
        }
        QuotaRequest::Admit(owner, amount, ino) => {
            if let Some(admitted) = admit(worker, target, owner, amount, &|| Ok(())).await? {
                target.counts.quota.reserve(ino, admitted, worker.now_ns());
            }
            Ok(TargetReply::Done)
        }
        QuotaRequest::Unreserve(ino) => {
            target.counts.quota.end_reservation(ino);
            Ok(TargetReply::Done)
        }
    }
}

/// Target 0 gives a target a larger share of a limit, and collects unused shares from the others if it has to.
async fn deal<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    account: Account,
    from: TargetId,
    mut need: Need,
) -> Result<TargetReply> {
    // One request at a time is served, so that shares which are collected for one request are not given to another.
    let _turn = target.counts.quota.dealing.take(vec![(account, Hold::Exclusive)]).await;
    let mut frees = Freeing::No;
    let since_ns = worker.now_ns();
    loop {
        let now_s = now_s(worker);
        let answer = target.counts.quota.ledger.borrow_mut().ask(account, from, need, now_s);
        match answer {
            // A user who has just removed a file expects its space to be available.
            Answer::Is { refused: true, .. } if !need.ahead && waits(worker, since_ns, frees) => {
                worker.env.sleep(FREED_LOOK).await;
                (need.collected, frees) = (false, Freeing::No);
            }
            Answer::Is { number, share, refused } => return Ok(TargetReply::Share { number, share, refused }),
            Answer::Collect { number } => {
                let others = pool(worker).filter(|other| *other != from);
                let asked = others.map(async |other| {
                    loop {
                        let question = TargetRequest::Quota(QuotaRequest::Collect { account, number });
                        match timeout(&worker.env, COLLECT_WITHIN, worker.ask(other, question)).await {
                            // It is counting. Without its answer, others would get what the account uses there.
                            Some(Ok(TargetReply::Outcome(false))) if !worker.is_stopped() => {
                                worker.env.sleep(FREED_LOOK).await
                            }
                            reply => return (other, reply),
                        }
                    }
                });
                for (other, reply) in join_all(asked).await {
                    // For a target that cannot be reached, the last known value counts.
                    if let Some(Ok(TargetReply::Collected { used, freeing })) = reply {
                        frees = frees.max(freeing);
                        target.counts.quota.ledger.borrow_mut().collected(account, other, number, used);
                    }
                }
                need.collected = true;
            }
        }
    }
}

/// All targets drop what they knew of an account, or of all, before this call on target 0. What is returned ends when
/// all have answered.
pub(super) fn tell_all<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Target<E>,
    account: Option<Account>,
) -> impl Future<Output = ()> + use<E> {
    let number = target.counts.quota.ledger.borrow_mut().changed();
    let (sender, mut receiver) = futures_channel::mpsc::unbounded::<()>();
    for other in pool(worker) {
        let (worker, sender) = (worker.clone(), sender.clone());
        worker.env.clone().spawn(async move {
            let _ = worker.insist(other, TargetRequest::Quota(QuotaRequest::Changed(account, number))).await;
            drop(sender);
        });
    }
    drop(sender);
    async move { while futures_util::StreamExt::next(&mut receiver).await.is_some() {} }
}

/// Checks from time to time which accounts use more than their soft limit, as long as there is one.
pub fn watch_soft_limits<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) {
    if target.id != LEDGER || target.counts.quota.watches.replace(true) {
        return;
    }
    let (worker, target) = (worker.clone(), Rc::downgrade(target));
    worker.env.clone().spawn(async move {
        loop {
            let Some(here) = target.upgrade() else { return };
            let soft: Vec<Account> = {
                let ledger = here.counts.quota.ledger.borrow();
                ledger.all().filter(|(_, s)| !s.limits.soft.is_none()).map(|(account, _)| account).collect()
            };
            if soft.is_empty() || here.is_closed() || worker.is_stopped() {
                here.counts.quota.watches.set(false);
                return;
            }
            let mut pause = SOFT_EVERY;
            for account in soft {
                look_at(&worker, &here, account).await;
                let standing = here.counts.quota.ledger.borrow().standing(account).unwrap_or_default();
                if standing.over_since_s != 0 {
                    // The time until the grace of the account is over.
                    let left_s = (standing.over_since_s + standing.limits.grace_s).saturating_sub(now_s(&worker));
                    pause = if left_s == 0 { pause } else { pause.min(Duration::from_secs(left_s)) };
                }
            }
            drop(here);
            worker.env.sleep(pause).await;
        }
    });
}

async fn look_at<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, account: Account) {
    let replies = pool(worker).map(|other| worker.ask(other, TargetRequest::Quota(QuotaRequest::Used(account))));
    let mut used = Amount::default();
    for reply in join_all(replies).await {
        // The usage on a target that cannot be reached is not known, so nothing is decided.
        let Ok(TargetReply::Used(part)) = reply else { return };
        used = used.plus(part);
    }
    let now_s = now_s(worker);
    let turn = target.counts.quota.ledger.borrow_mut().note(account, used, now_s);
    if let Some(turn) = turn {
        let mut txn = Txn::default();
        target.keep_standing(account, Some(turn.standing), &mut txn);
        target.append(txn, Order::Plain);
        if turn.is_told {
            tell_all(worker, target, Some(account)).await;
        }
    }
}
