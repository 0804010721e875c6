//! Answers of a target to other targets and to the worker with the connections.

use crate::intents;
use crate::message::{Hail, Place, Question, Told};
use crate::ops;
use crate::records::{self, SessionRecord};
use crate::target::{NameKey, Target};
use crate::worker::Worker;
use amphi_env::Env;
use amphi_types::item::Txn;
use amphi_types::{Errno, Ino, Name, Result, SessionId};
use amphi_wire::TargetStatus;
use amphi_zone::Order;
use std::rc::Rc;

/// Answers a question to `target`, which is this worker's.
pub async fn answer<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, question: Question) -> Result<Told> {
    match question {
        Question::View { ino, wait } => {
            if wait {
                target.settle(vec![NameKey::Inode(ino)]).await;
            }
            ops::view(worker, target, ino).await.map(|v| Told::View(Box::new(v)))
        }
        Question::Facts(ino) => Ok(Told::Facts(Box::new(target.meta.borrow().facts(ino)?))),
        Question::Place(dir, name) => place(target, dir, &name).await.map(|p| Told::Place(Box::new(p))),
        Question::Ancestors { from, sought } => {
            let walk = target.meta.borrow().ancestors(from, |at| if at == sought { Err(Errno::Exist) } else { Ok(()) });
            match walk {
                Ok(next) => Ok(Told::Ancestors { found: false, next }),
                Err(Errno::Exist) => Ok(Told::Ancestors { found: true, next: None }),
                Err(e) => Err(e),
            }
        }
        Question::NewIno => {
            let mut txn = Txn::default();
            let ino = target.meta.borrow_mut().alloc_ino(&mut txn)?;
            target.log(txn, Order::Plain).await?;
            Ok(Told::Ino(ino))
        }
        Question::Open { session, cred, ino, access } => {
            target.settle(vec![NameKey::Inode(ino)]).await;
            ops::open_here(target, session, &cred, ino, access, false)?;
            ops::view(worker, target, ino).await.map(|v| Told::View(Box::new(v)))
        }
        Question::Prepare { tx, now, parts } => intents::prepare(target, tx, now, parts).await,
        Question::Commit(tx) => intents::finish(worker, target, tx, true).await,
        Question::Abort(tx) => intents::finish(worker, target, tx, false).await,
        Question::Outcome(tx) => Ok(Told::Outcome(intents::outcome(target, tx))),
        Question::BecomeStable => {
            target.zone.became_stable(target.zone.appended_lsn()).await?;
            Ok(Told::Done)
        }
        Question::Trim { ino, layout, size, generation, mtime } => {
            ops::trim_objects(target, ino, &layout, size, generation, mtime).await?;
            Ok(Told::Done)
        }
        Question::Destroy(ino) => {
            ops::destroy_objects(target, ino).await?;
            Ok(Told::Done)
        }
        Question::Objects(ino) => Ok(Told::Objects(target.gathered(ino))),
        Question::SessionStart(session, record) => start_session(target, session, record).await,
        Question::SessionStop(session) => {
            target.sessions.borrow_mut().remove(&session);
            Ok(Told::Done)
        }
        Question::SessionForget(session) => forget_session(worker, target, session).await,
        Question::MoveLock => Ok(Told::Moving(intents::move_lock(target).await)),
        Question::MoveUnlock(number) => {
            intents::move_unlock(target, number);
            Ok(Told::Done)
        }
        Question::Hail => {
            let sessions = target.sessions.borrow().iter().map(|(id, r)| (*id, r.clone())).collect();
            Ok(Told::Hail(Box::new(Ok(Hail { cluster: target.zone.cluster(), pool: target.pool, sessions }))))
        }
        Question::Begin => {
            target.begin().await?;
            Ok(Told::Done)
        }
        Question::Recover => {
            intents::recover(worker, target).await?;
            ops::resume_pending(worker, target).await?;
            ops::reap_orphans(worker, target);
            Ok(Told::Done)
        }
        Question::Status => Ok(status(worker, target)),
        Question::Counters { reset } => Ok(Told::Counters(counters(worker, target, reset))),
        Question::Idle => {
            target.zone.sync().await?;
            let idle = target.intents.borrow().is_empty() && target.destroying.borrow().is_empty();
            Ok(Told::Outcome(idle))
        }
        Question::Tune => {
            worker.tunables.apply_to(worker, target);
            Ok(Told::Done)
        }
        Question::Release => {
            worker.drop_target(target.id);
            target.zone.close().await.map_err(Errno::from)?;
            Ok(Told::Done)
        }
        Question::Close => {
            let closed = target.close().await;
            worker.drop_target(target.id);
            closed.map_err(Errno::from)?;
            Ok(Told::Done)
        }
    }
}

/// A directory of this target and where a name in it leads.
pub async fn place<E: Env>(target: &Target<E>, dir: Ino, name: &Name) -> Result<Place> {
    target.settle(vec![NameKey::Inode(dir), NameKey::Entry(dir, name.clone())]).await;
    let meta = target.meta.borrow();
    let facts = meta.facts(dir)?;
    let child = meta.find(dir, name)?.map(|d| (d.child, d.kind));
    let child_facts = match child {
        Some((ino, _)) if ino.target() == target.id => Some(meta.facts(ino)?),
        _ => None,
    };
    Ok(Place { dir: facts, child, facts: child_facts })
}

async fn start_session<E: Env>(target: &Target<E>, session: SessionId, record: SessionRecord) -> Result<Told> {
    target.zone.reserve(256).await?;
    let mut txn = Txn::default();
    txn.put(records::session_key(session), records::encode(&record));
    target.sessions.borrow_mut().insert(session, record);
    target.log(txn, Order::Plain).await?;
    Ok(Told::Done)
}

async fn forget_session<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, session: SessionId) -> Result<Told> {
    target.zone.reserve(0).await?;
    target.locks.drop_session(worker.now_ns(), session);
    worker.send_callbacks(target);
    let mut txn = Txn::default();
    txn.delete(records::session_key(session));
    for slot in target.slots.borrow_mut().end_session(session) {
        txn.delete(records::slot_key(session, slot));
    }
    let touched = target.opens.borrow_mut().drop_session(session);
    target.log(txn, Order::Plain).await?;
    for ino in touched {
        ops::after_close(worker, target, ino);
    }
    ops::present(worker, target, session);
    Ok(Told::Done)
}

fn status<E: Env>(worker: &Worker<E>, target: &Target<E>) -> Told {
    let stats = target.zone.stats();
    let block = amphi_types::limits::BLOCK;
    let status = TargetStatus {
        target: target.id,
        worker: worker.index,
        space: target.space(),
        log: (stats.log_used_blocks * block, stats.log_blocks * block),
        checkpoints: stats.checkpoints,
    };
    let opens = target.opens.borrow();
    // One mount at a time, so all locks are its.
    let locks = target.locks.count() as u64;
    let sessions = target.sessions.borrow().keys().map(|s| (*s, (opens.count(*s), locks))).collect();
    Told::Status(Box::new(status), sessions)
}

fn counters<E: Env>(worker: &Worker<E>, target: &Target<E>, reset: bool) -> Vec<(String, u64)> {
    let stats = target.zone.stats();
    let before = if reset { target.zone_stats.replace(stats) } else { *target.zone_stats.borrow() };
    let mut all: Vec<(String, u64)> = [
        ("log_records", stats.appends - before.appends),
        ("log_groups", stats.groups - before.groups),
        ("log_bytes", stats.log_bytes - before.log_bytes),
        ("disk_syncs", stats.syncs - before.syncs),
        ("checkpoints", stats.checkpoints - before.checkpoints),
        ("checkpoint_bytes", stats.segment_bytes - before.segment_bytes),
    ]
    .map(|(name, n)| (name.to_string(), n))
    .into();
    // The worker's own counts are told once, by its first target.
    if worker.first_target() == Some(target.id) {
        all.extend(worker.counters.read(reset));
    }
    all
}
