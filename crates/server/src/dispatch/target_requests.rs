//! Answers of a target to other targets and to the worker with the connections.

use crate::message::{Cut, OpenReport, TargetReply, TargetRequest};
use crate::objects;
use crate::ops;
use crate::records::{self, SessionRecord};
use crate::tx::two_phase;
use crate::worker::Worker;
use crate::worker::above::Replying;
use crate::zone_target::tx_table::Promise;
use crate::zone_target::{NameKey, Target};
use amphi_dlm::SessionEnd;
use amphi_env::Env;
use amphi_meta::Outcome;
use amphi_types::item::Txn;
use amphi_types::{Errno, Result, SessionId};
use amphi_wire::TargetStatus;
use amphi_zone::Order;
use std::rc::Rc;

/// Answers a question to `target`, which is this worker's.
pub fn answer<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, question: TargetRequest) -> Replying {
    let (worker, target) = (worker.clone(), target.clone());
    Box::pin(async move {
        let reply = reply(&worker, &target, question).await;
        target.let_inodes_go();
        reply
    })
}

async fn reply<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, question: TargetRequest) -> Result<TargetReply> {
    match question {
        TargetRequest::View { ino, asker } => {
            if asker.is_some() {
                target.settle(vec![NameKey::Inode(ino)]).await;
            }
            ops::view(worker, target, ino, asker).await.map(|(view, token)| TargetReply::View(Box::new(view), token))
        }
        TargetRequest::Facts(ino) => {
            let facts = target.step(|meta| meta.facts(ino).map(Outcome::Done)).await?;
            Ok(TargetReply::Facts(Box::new(facts)))
        }
        TargetRequest::Project(ino) => ops::subtree::project_here(target, ino).await.map(TargetReply::Project),
        TargetRequest::IsBound(project) => Ok(TargetReply::Outcome(target.is_bound(project))),
        TargetRequest::Listed { session, dir, uid } => {
            Ok(TargetReply::Outcome(target.files.was_listed(session, dir, uid)))
        }
        TargetRequest::Place(dir, name) => {
            ops::names::place(target, dir, &name).await.map(|p| TargetReply::Place(Box::new(p)))
        }
        TargetRequest::Ancestors { from, sought } => {
            two_phase::settle_way(worker, target, from).await;
            let walk = target.meta.borrow().ancestors(from, |at| if at == sought { Err(Errno::Exist) } else { Ok(()) });
            match walk {
                Ok(next) => Ok(TargetReply::Ancestors { found: false, next }),
                Err(Errno::Exist) => Ok(TargetReply::Ancestors { found: true, next: None }),
                Err(e) => Err(e),
            }
        }
        TargetRequest::NewIno => {
            let mut txn = Txn::default();
            let ino = target.meta.borrow_mut().alloc_ino(&mut txn)?;
            target.log(txn, Order::Plain).await?;
            Ok(TargetReply::Ino(ino))
        }
        TargetRequest::Open { session, cred, ino, access, by } => {
            let how = ops::Opening { session, cred: &cred, access, exec: false, known: false, by: Some(by) };
            let (view, _, token) = ops::open_here(worker, target, ino, how).await?;
            Ok(TargetReply::View(Box::new(view), token))
        }
        TargetRequest::Prepare { tx, session, now, parts } => {
            two_phase::prepare(worker, target, session, tx, now, parts, Promise::Logged).await
        }
        TargetRequest::Hold { tx, session, now, parts } => {
            two_phase::prepare(worker, target, session, tx, now, parts, Promise::Held).await
        }
        TargetRequest::Redo { tx, now, parts } => two_phase::decided::redo(worker, target, tx, now, parts).await,
        TargetRequest::Unmark(txs) => {
            two_phase::decided::unmark(target, &txs);
            Ok(TargetReply::Done)
        }
        TargetRequest::Directories(inos) => {
            let meta = target.meta.borrow();
            Ok(TargetReply::Directories(inos.into_iter().map(|ino| ops::names::directory_view(&meta, ino)).collect()))
        }
        TargetRequest::Commit(tx) => two_phase::finish(worker, target, tx, true).await,
        TargetRequest::Abort(tx) => two_phase::finish(worker, target, tx, false).await,
        TargetRequest::Outcome(tx) => Ok(TargetReply::Decision(two_phase::outcome(target, tx))),
        TargetRequest::Settle(tx) => {
            two_phase::finish(worker, target, tx, true).await?;
            target.zone.became_stable(target.zone.appended_lsn()).await?;
            Ok(TargetReply::Done)
        }
        TargetRequest::StableSince(starts) => {
            if starts != target.place.starts {
                return Err(Errno::Stale);
            }
            target.zone.became_stable(target.zone.appended_lsn()).await?;
            Ok(TargetReply::Done)
        }
        TargetRequest::PutMap(map) => {
            target.put_map(*map).await?;
            Ok(TargetReply::Done)
        }
        TargetRequest::PutKeys(keys) => {
            target.put_keys(*keys).await?;
            Ok(TargetReply::Done)
        }
        TargetRequest::MoveCheck(number) => Ok(TargetReply::Outcome(two_phase::has_move_lock(target, number))),
        TargetRequest::Trim(cut) => trim(target, &cut).await,
        TargetRequest::Destroy(ino) => {
            target.files.rights.borrow_mut().forget_file(ino);
            objects::destroy_objects(target, ino).await?;
            Ok(TargetReply::DoneAt(target.place.starts))
        }
        TargetRequest::Objects(ino, None) => Ok(TargetReply::Objects(target.gathered(ino))),
        TargetRequest::Secured(ino) => objects::secured(target, ino).await.map(TargetReply::Objects),
        TargetRequest::Objects(ino, Some(asker)) => {
            target.recovered().await;
            Ok(TargetReply::Objects(objects::glimpse::gathered_with_writers(worker, target, ino, asker).await))
        }
        TargetRequest::Company(on, number) => {
            target.coherence.tokens.switch(on, number);
            Ok(TargetReply::Done)
        }
        TargetRequest::Absent => Ok(TargetReply::Sessions(target.reclaim.pending())),
        TargetRequest::PushAgain(session) => {
            target.coherence.locks.push_again(session);
            worker.send_callbacks(target);
            target.coherence.tokens.push_again(session);
            worker.send_revocations(target);
            for push in target.coherence.glimpses.unanswered(session) {
                worker.push(session, push);
            }
            target.storage.write_back.writers.send(session);
            Ok(TargetReply::Done)
        }
        TargetRequest::SessionStart(session, record) => start_session(target, session, record).await,
        TargetRequest::SessionStop(session) => {
            target.sessions.stop(session);
            Ok(TargetReply::Done)
        }
        TargetRequest::SessionLanded(session) => {
            target.queues.in_flight.landed(session).await;
            Ok(TargetReply::Done)
        }
        TargetRequest::SessionAbsent(session) => {
            if target.sessions.count() > 1 {
                // From now on other sessions may get the locks and tokens of the session.
                target.reclaim.forget(session);
            }
            ops::present(worker, target, session);
            Ok(TargetReply::Done)
        }
        TargetRequest::SessionUsesNothing(session) => {
            target.coherence.tokens.drop_session(session, SessionEnd::Stopped);
            worker.send_revocations(target);
            Ok(TargetReply::Done)
        }
        TargetRequest::SessionForget(session, stopped) => forget_session(worker, target, session, stopped).await,
        TargetRequest::MoveLock => Ok(TargetReply::Moving(two_phase::move_lock(target).await)),
        TargetRequest::MoveUnlock(number) => {
            two_phase::move_unlock(target, number);
            Ok(TargetReply::Done)
        }
        TargetRequest::OpenReport => Ok(TargetReply::OpenReport(Box::new(Ok(OpenReport {
            cluster: target.zone.cluster(),
            pool: target.place.pool,
            sessions: target.sessions.alive(),
            lost: target.place.lost,
            cut_off: !target.sessions.cut_off().is_empty(),
            home: target.place.home.borrow().clone(),
            map: target.place.map.borrow().clone(),
            keys: target.place.keys.borrow().clone(),
        })))),
        TargetRequest::LossesTold => {
            target.zone.losses_told().await.map_err(|_| Errno::Io)?;
            Ok(TargetReply::Done)
        }
        TargetRequest::Begin(home) => {
            target.begin(&worker.env, home).await?;
            target.tune_accepted(&worker.env, &worker.tunables);
            target.forget_cut_off(&worker.env, target.sessions.cut_off());
            ops::quota::counting::learn_limits(worker, target);
            ops::quota::ledger::watch_soft_limits(worker, target);
            Ok(TargetReply::Done)
        }
        TargetRequest::Recover => {
            two_phase::recover(worker, target).await?;
            objects::resume_pending(worker, target).await?;
            Ok(TargetReply::Done)
        }
        TargetRequest::Unanswered(session, since_ns) => {
            let now_ns = worker.now_ns();
            let quiet_ns = now_ns.saturating_sub(since_ns);
            Ok(TargetReply::Outcome(
                target.coherence.locks.is_unanswered(session, now_ns, quiet_ns)
                    || target.coherence.tokens.is_unanswered(session, now_ns, quiet_ns)
                    || target.coherence.glimpses.is_unanswered(session, now_ns, quiet_ns),
            ))
        }
        TargetRequest::Right(session, ino) => {
            let _held = target.hold([ino]).await?;
            ops::right_of(target, ino, session).map(TargetReply::Right)
        }
        TargetRequest::Quota(question) => ops::quota::ledger::answer(worker, target, question).await,
        TargetRequest::QuotaIsOn => Ok(TargetReply::Outcome(target.counts.quota.ledger.borrow().is_on())),
        TargetRequest::Owners(inos) => Ok(TargetReply::Owners(ops::quota::counting::owners(target, &inos).await)),
        TargetRequest::SetOwner(ino, owner) => {
            target.set_owner(ino, owner);
            Ok(TargetReply::Done)
        }
        TargetRequest::Reap => {
            objects::reap_orphans(worker, target);
            Ok(TargetReply::Done)
        }
        TargetRequest::Status => Ok(status(worker, target)),
        TargetRequest::Counters { reset } => Ok(TargetReply::Counters(counters(worker, target, reset))),
        TargetRequest::Idle => {
            target.zone.sync().await?;
            let idle = target.txs.borrow().is_idle(|t| worker.routes.is_local(t))
                && target.queues.destroying.borrow().is_empty();
            Ok(TargetReply::Outcome(idle))
        }
        TargetRequest::Tune => {
            target.tune(&worker.env, &worker.tunables);
            Ok(TargetReply::Done)
        }
        TargetRequest::Release => {
            worker.drop_target(target.id);
            target.zone.close().await.map_err(Errno::from)?;
            Ok(TargetReply::Done)
        }
        TargetRequest::Close => {
            let closed = target.close(&worker.env).await;
            worker.drop_target(target.id);
            closed.map_err(Errno::from)?;
            Ok(TargetReply::Done)
        }
    }
}

/// `TargetRequest::Trim`: this is a change of its session like any other, although another target sends it. Once the
/// session's locks are released here, other mounts may have written behind the cut.
async fn trim<E: Env>(target: &Target<E>, cut: &Cut) -> Result<TargetReply> {
    let Some(_landing) = target.land_for(cut.by) else { return Ok(TargetReply::Refused(Errno::Io)) };
    let done = match objects::trim_objects(target, cut).await {
        Ok(last) => target.zone.stable(last).await,
        Err(e) => Err(e),
    };
    match done {
        // Nothing is logged any more; the request will be sent again after the next start.
        _ if target.is_closed() => Err(Errno::Io),
        Ok(()) => Ok(TargetReply::DoneAt(target.place.starts)),
        Err(e) => Ok(TargetReply::Refused(e)),
    }
}

async fn start_session<E: Env>(target: &Target<E>, session: SessionId, record: SessionRecord) -> Result<TargetReply> {
    // Clients have to be admitted so that they can delete what fills the target.
    target.zone.reserve(0).await?;
    let mut txn = Txn::default();
    txn.put(records::session_key(session), records::encode(&record));
    if target.sessions.begin(session, record) {
        target.reclaim.make_eligible(session);
    }
    let lsn = target.append(txn, Order::Plain);
    // The end is stable before anything else is done: a target that loses power then still knows which sessions may
    // have lost something.
    target.zone.stable(lsn).await?;
    Ok(TargetReply::Done)
}

async fn forget_session<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    session: SessionId,
    stopped: bool,
) -> Result<TargetReply> {
    // This is done even if the disk has failed, because the locks that the target holds for a client that has ended
    // block other clients.
    let room = target.zone.reserve(0).await;
    // From here on no new change of the session begins.
    target.queues.in_flight.landed(session).await;
    target.sessions.forget(session);
    target.reclaim.forget(session);
    target.reclaim.expect_no_more(session);
    target.coherence.glimpses.end_session(session);
    target.coherence.tokens.drop_session(session, if stopped { SessionEnd::Stopped } else { SessionEnd::CutOff });
    worker.send_revocations(target);
    target.coherence.locks.drop_session(worker.now_ns(), session);
    worker.send_callbacks(target);
    ops::file_lock::drop_session(worker, target, session);
    target.coherence.changed_directories.end_session(session);
    target.coherence.left_pages.borrow_mut().drop_session(session);
    target.storage.write_back.writers.drop_session(session);
    let mut txn = Txn::default();
    txn.delete(records::session_key(session));
    target.data.borrow_mut().grants.end(session, &mut txn);
    target.queues.grant_calls.end_session(session);
    for slot in target.sessions.slots.borrow_mut().end_session(session) {
        txn.delete(records::slot_key(session, slot));
    }
    if !stopped && target.coherence.tokens.on() {
        target.sessions.note_cut_off(session, &mut txn);
        target.forget_cut_off(&worker.env, vec![session]);
    }
    let touched = target.files.end_session(session);
    let logged = match room {
        Ok(()) => target.log(txn, Order::Plain).await.map(drop),
        Err(e) => Err(e),
    };
    for ino in touched {
        ops::after_close(worker, target, ino);
    }
    ops::present(worker, target, session);
    logged.map(|()| TargetReply::Done)
}

fn status<E: Env>(worker: &Worker<E>, target: &Target<E>) -> TargetReply {
    let stats = target.zone.stats();
    let block = amphi_types::limits::BLOCK;
    let status = TargetStatus {
        target: target.id,
        worker: worker.index,
        space: target.space(),
        log: (stats.log_used_blocks * block, stats.log_blocks * block),
        checkpoints: stats.checkpoints,
        rotating: target.storage.rotating.get(),
        damaged: target.damaged_blocks(),
        findings: target.storage.verifier.findings(),
        rebuilt: stats.rebuilt_blocks,
    };
    let opens = target.files.open.borrow();
    let held = |s: SessionId| (s, (opens.count(s), target.coherence.locks.count(s)));
    let sessions = target.sessions.alive().into_iter().map(|(s, _)| held(s)).collect();
    TargetReply::Status(Box::new(status), sessions)
}

fn counters<E: Env>(worker: &Worker<E>, target: &Target<E>, reset: bool) -> Vec<(String, u64)> {
    let stats = target.zone.stats();
    let before = if reset { target.counts.zone.replace(stats) } else { *target.counts.zone.borrow() };
    let locks = target.coherence.locks.counts();
    let locks_before = if reset { target.counts.locks.replace(locks) } else { target.counts.locks.get() };
    let mut all: Vec<(String, u64)> = [
        ("log_records", stats.appends - before.appends),
        ("log_records_kept", stats.kept - before.kept),
        ("log_groups", stats.groups - before.groups),
        ("log_bytes", stats.log_bytes - before.log_bytes),
        ("disk_syncs", stats.syncs - before.syncs),
        ("checkpoints", stats.checkpoints - before.checkpoints),
        ("checkpoint_bytes", stats.segment_bytes - before.segment_bytes),
        ("lock_requests", locks.requests - locks_before.requests),
        ("lock_conflicts", locks.conflicts - locks_before.conflicts),
        ("lock_objects_contended", locks.contended - locks_before.contended),
        ("lock_objects_contended_waiting", locks.contended_waiting - locks_before.contended_waiting),
        ("lock_objects_contended_foreseen", locks.contended_foreseen - locks_before.contended_foreseen),
        ("lock_ping_pongs", locks.ping_pongs - locks_before.ping_pongs),
        ("time_lock_ping_pongs_ns", locks.ping_pongs_ns - locks_before.ping_pongs_ns),
        ("lock_grants_waited", locks.waited - locks_before.waited),
        ("lock_nodes_visited", locks.nodes.wrapping_sub(locks_before.nodes)),
        (
            "unstable_bytes",
            target.counts.unstable.bytes(target.zone.stable_lsn()) + target.data.borrow().delayed.unlogged_bytes(),
        ),
        ("checksum_damaged_blocks", target.damaged_blocks()),
        ("metadata_rebuilt_blocks", stats.rebuilt_blocks),
        ("scrub_pass_bytes", target.storage.verifier.pass_bytes()),
        ("checksum_items", target.data.borrow().checksums.items()),
        ("read_cache_bytes", target.storage.disk.cache.borrow().held_bytes()),
        ("tokens_held", target.coherence.tokens.count() as u64),
        ("inodes_away", target.meta.borrow().away_count()),
    ]
    .map(|(name, n)| (name.to_string(), n))
    .into();
    let (held, waiting) = target.coherence.file_locks.count();
    all.push(("file_locks_held".into(), held as u64));
    all.push(("file_locks_waiting".into(), waiting as u64));
    // The worker's own counts are reported once, by its first target.
    if worker.first_target() == Some(target.id) {
        all.extend(worker.counters.read(reset));
    }
    all
}
