//! Objects of a file over all targets: joining their states, truncating them, removing them.
//!
//! Owns: everything about a file's data that concerns more than one request on one object. Does not own: the inode's
//! own rules (`amphi_meta::file_state`), where blocks lie (`amphi_data`).
//!
//! An inode without a name and without an open is destroyed. If its data is small and on this target, this is done in
//! the record that removed its last name. Otherwise the inode is marked, its objects are removed everywhere, and the
//! inode is removed last. Every step can be repeated.

pub(crate) mod glimpse;

use crate::message::{Cut, TargetReply, TargetRequest};
use crate::objects::glimpse::gathered_with_writers;
use crate::planted::{self, Mistake};
use crate::worker::Worker;
use crate::zone_target::gate::Hold;
use crate::zone_target::{EXTENT_BYTES, NameKey, Target};
use amphi_data::{Freed, Resize};
use amphi_env::Env;
use amphi_meta::Gathered;
use amphi_types::item::Txn;
use amphi_types::limits::{BLOCK, XATTR_TOTAL_MAX};
use amphi_types::{ByteRange, Errno, Ino, Kind, Layout, ObjectId, Result, SessionId, TargetId};
use amphi_zone::{Lsn, Order};
use futures_util::future::{join, join_all};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::task::{Context, Waker};

/// Most extents and objects that one record removes.
const ITEMS_A_RECORD: usize = 4096;
/// Files with at most this many extents are destroyed in the record that removes their last name.
const SMALL_EXTENTS: usize = 512;
/// In the smallest log, a record that removes an inode has space for this many deletions, for all its attributes, and
/// for more than 4 KiB of other items.
const _: () =
    assert!(XATTR_TOTAL_MAX + SMALL_EXTENTS * EXTENT_BYTES as usize + 8192 < amphi_zone::LOG_MIN as usize / 16 * 3);
/// How often a file is settled again because its objects have changed meanwhile, and how often they are secured again.
const TRIES: usize = 8;
/// Most objects that one record makes. Each takes 47 bytes, and all of them a fifth of the largest record of the
/// smallest log.
const OBJECTS_A_RECORD: usize = 1024;

/// Targets other than `own` that may hold objects of the file.
pub(crate) fn others(layout: &Layout, ino: Ino, own: TargetId) -> Vec<TargetId> {
    let stripes = layout.stripes().min(u32::from(layout.pool));
    let all: BTreeSet<TargetId> = (0..stripes).map(|s| layout.target(ino, s)).collect();
    all.into_iter().filter(|t| *t != own).collect()
}

/// The joined state of all objects of a file. If there is an `asker`, the result includes bytes that other mounts have
/// not written back yet.
pub async fn gather<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    ino: Ino,
    layout: &Layout,
    asker: Option<SessionId>,
) -> Result<Gathered> {
    let here = async {
        match asker {
            Some(asker) => gathered_with_writers(worker, target, ino, asker).await,
            None => Gathered::default(),
        }
    };
    let question = TargetRequest::Objects(ino, asker);
    let (there, here) = join(elsewhere(worker, target, ino, layout, &question), here).await;
    let mut sum = if asker.is_some() { here } else { target.gathered(ino) };
    sum.join(&there?);
    Ok(sum)
}

/// The joined state of the objects of a file on the other targets, as they answer `question`.
async fn elsewhere<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    ino: Ino,
    layout: &Layout,
    question: &TargetRequest,
) -> Result<Gathered> {
    let asked = others(layout, ino, target.id).into_iter().map(|t| worker.ask(t, question.clone()));
    let mut sum = Gathered::default();
    for one in join_all(asked).await {
        match one? {
            TargetReply::Objects(part) => sum.join(&part),
            _ => return Err(Errno::Proto),
        }
    }
    Ok(sum)
}

/// `TargetRequest::Secured`: the joined state of the objects of a file on this target, when it survives a loss of
/// power.
///
/// Errors: `Again` if bytes of the file keep arriving, and those of a failing disk.
pub async fn secured<E: Env>(target: &Target<E>, ino: Ino) -> Result<Gathered> {
    if planted::is(Mistake::UnsecuredSize) {
        return Ok(target.gathered(ino));
    }
    for _ in 0..TRIES {
        target.secure_delayed(Some(ino)).await?;
        let (gathered, last) = {
            let has_unlogged = target.data.borrow().delayed.unlogged(Some(ino), 0).is_none();
            if has_unlogged {
                continue;
            }
            (target.gathered(ino), target.zone.appended_lsn())
        };
        target.zone.stable(last).await?;
        return Ok(gathered);
    }
    Err(Errno::Again)
}

/// Stores the size and the times that the objects report, after the last writer has closed the file.
///
/// The inode must not say more than what a loss of power leaves on any target. So first, without holding anything, the
/// other targets are asked what they have stably. Then they are asked again with the inode held alone. If they have
/// something else by then, both steps are repeated. A file that stays spread is right as well: whoever wants its size
/// collects it, and its next writer settles it.
pub fn settle_later<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, ino: Ino) {
    let (worker, target) = (worker.clone(), target.clone());
    worker.env.clone().spawn(async move {
        // Until every session has presented its opens, one of them may be a writer that relies on the mark.
        target.recovered().await;
        for _ in 0..TRIES {
            // The inode of a spread file is always in memory.
            if target.meta.borrow().is_away(ino) {
                return;
            }
            let Ok((spread, layout)) = target.meta.borrow().inode(ino).map(|i| (i.objects.spread, i.layout)) else {
                return;
            };
            // A new writer settles the file when it closes it.
            if !spread || target.files.open.borrow().has_writer(ino) {
                return;
            }
            let secured = TargetRequest::Secured(ino);
            let Ok(secured) = elsewhere(&worker, &target, ino, &layout, &secured).await else { return };
            if settle_to(&worker, &target, ino, &layout, &secured).await {
                return;
            }
        }
    });
}

/// Settles a file whose objects on other targets have this state stably. `false` if they have another one by now, so
/// that it has to be tried again.
async fn settle_to<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    ino: Ino,
    layout: &Layout,
    secured: &Gathered,
) -> bool {
    // A truncate has set its size before the objects elsewhere are cut: what they say in between is too much.
    let _guard = target.queues.names.take(vec![(NameKey::Inode(ino), Hold::Exclusive)]).await;
    // The inode of a spread file is always in memory.
    let inode = if target.meta.borrow().is_away(ino) { Err(Errno::Stale) } else { target.meta.borrow().inode(ino) };
    let Ok((now, generation)) = inode.map(|i| (i.layout, i.objects.generation)) else { return true };
    // What this target has is in its log before the inode says so.
    if target.flush_file(ino).await.is_err() {
        return true;
    }
    let question = TargetRequest::Objects(ino, None);
    let there = loop {
        let represented = target.reclaim.said();
        let Ok(there) = elsewhere(worker, target, ino, &now, &question).await else { return true };
        if target.reclaim.said() == represented {
            break there;
        }
        // A session that reconnected may have written meanwhile, relying on the existing mark, and closed the file.
    };
    if (there, now) != (*secured, *layout) {
        return false;
    }
    let mut gathered = target.landed(ino);
    gathered.join(&there);
    let mut txn = Txn::default();
    let mut meta = target.meta.borrow_mut();
    let is_here = !meta.is_away(ino);
    let same =
        is_here && meta.inode(ino).is_ok_and(|i| i.objects.spread && i.objects.generation == generation && i.nlink > 0);
    if same && !target.files.open.borrow().has_writer(ino) && meta.settle(ino, &gathered, &mut txn).is_ok() {
        drop(meta);
        target.append(txn, Order::Plain);
    }
    true
}

/// Cuts the objects of a file on this target. Returns the last record of the cut, which need not be written yet.
pub async fn trim_objects<E: Env>(target: &Target<E>, cut: &Cut) -> Result<Lsn> {
    let Cut { ino, ref layout, size, generation, mtime, .. } = *cut;
    target.coherence.left_pages.borrow_mut().changed(ino, cut.by.0, ByteRange::new(size, u64::MAX));
    let mut objects: BTreeSet<ObjectId> =
        layout.stripes_on(ino, target.id).map(|stripe| ObjectId { ino, stripe }).collect();
    objects.extend(target.data.borrow().objects_of(ino).map(|(id, _)| id));
    make_cut(target, &objects, cut).await?;
    // The record of an object that is cut already may still be under way, because the same request may be executed
    // twice at once.
    let mut last = target.zone.appended_lsn();
    for object in objects {
        if target.data.borrow().generation(object) >= generation {
            // The cut was requested again: bytes written since the first cut stay.
            continue;
        }
        target.zone.reserve(0).await?;
        let span = ByteRange::new(size / BLOCK * BLOCK, u64::MAX);
        let _span = target.queues.spans.take(object, span, Hold::Exclusive).await;
        target.punch_behind(object, size, generation, mtime).await?;
        let plan = target.plan(|data| data.plan_truncate(object, size, generation, Resize::Cut)).await?;
        if plan.is_noop() {
            continue;
        }
        let plan = target.rewrite_edges(plan).await?;
        let (lsn, _) = target.commit_trim(plan, mtime, Txn::default());
        target.zone.kept(lsn).await?;
        last = lsn;
    }
    Ok(last)
}

/// Creates those of `objects` that do not exist, as empty objects with the generation of the truncation, in few
/// records. So a write from before the cut that arrives later is refused, and a repeated cut keeps what was written
/// since. Objects that a request is working on may be about to be created, and are left out.
async fn make_cut<E: Env>(target: &Target<E>, objects: &BTreeSet<ObjectId>, cut: &Cut) -> Result<()> {
    let Cut { ino, size, generation, mtime, .. } = *cut;
    let there: BTreeSet<ObjectId> = target.data.borrow().objects_of(ino).map(|(id, _)| id).collect();
    let missing: Vec<ObjectId> = objects.difference(&there).copied().collect();
    for some in missing.chunks(OBJECTS_A_RECORD) {
        target.zone.reserve(0).await?;
        let mut txn = Txn::default();
        let mut data = target.data.borrow_mut();
        let mut taken: BTreeSet<ObjectId> = data.objects_of(ino).map(|(id, _)| id).collect();
        taken.extend(target.queues.spans.busy_objects(ino));
        for object in some.iter().filter(|object| !taken.contains(object)) {
            let Ok(plan) = data.plan_truncate(*object, size, generation, Resize::Cut) else { continue };
            // Nothing is freed, because there was no object.
            let _ = data.commit_trim(plan, mtime, &mut txn);
        }
        drop(data);
        target.append(txn, Order::Plain);
    }
    Ok(())
}

/// Cuts the objects of a file everywhere, and notes in its inode that all are cut. On other targets the cuts are stable
/// when this returns, for two reasons. A mount that writes and syncs next syncs only the targets that have its bytes,
/// and the inode remembers only one cut. On this target, the log has the cuts before any later record. After an error
/// `give_cut_up` has to follow.
///
/// Costs a sync of each other target, all at the same time.
pub async fn trim_everywhere<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, cut: &Cut) -> Result<()> {
    let Cut { ino, ref layout, generation, .. } = *cut;
    let trim = TargetRequest::Trim(*cut);
    let elsewhere = join_all(others(layout, ino, target.id).into_iter().map(|t| do_at(worker, t, &trim)));
    let (told, here) = join(elsewhere, trim_objects(target, cut)).await;
    here?;
    told.into_iter().collect::<Result<Vec<u64>>>()?;
    let mut txn = Txn::default();
    // An inode that has been removed meanwhile needs no such note.
    if target.meta.borrow_mut().trim_done(ino, generation, &mut txn).is_ok() {
        target.append(txn, Order::Plain);
    }
    Ok(())
}

/// Cancels, with `txn`, a cut that an object has refused. The cancellation is stable when this returns, because a later
/// start must not cut bytes that are written from now on. Bytes of that object behind the cut stay. If the server is
/// stopping, nothing is cancelled: its next start continues the cut.
pub async fn give_cut_up<E: Env>(
    worker: &Worker<E>,
    target: &Target<E>,
    ino: Ino,
    generation: u64,
    mut txn: Txn,
) -> Result<()> {
    if worker.is_stopped() {
        return Ok(());
    }
    // An inode that has gone meanwhile has no cut.
    let _ = target.meta.borrow_mut().trim_done(ino, generation, &mut txn);
    let lsn = target.append(txn, Order::Plain);
    target.zone.stable(lsn).await
}

/// Executes `what` on a target. Returns the target's start number.
async fn do_at<E: Env>(worker: &Rc<Worker<E>>, target: TargetId, what: &TargetRequest) -> Result<u64> {
    match worker.insist_ask(target, what.clone()).await? {
        TargetReply::DoneAt(starts) => Ok(starts),
        TargetReply::Refused(e) => Err(e),
        _ => Err(Errno::Proto),
    }
}

/// Waits until `what`, done under the start number `starts`, cannot be lost any more. A target that was started again
/// may have lost the removal, so it is repeated.
async fn stay_done<E: Env>(
    worker: &Rc<Worker<E>>,
    target: TargetId,
    what: &TargetRequest,
    mut starts: u64,
) -> Result<()> {
    loop {
        match worker.insist_ask(target, TargetRequest::StableSince(starts)).await {
            Err(Errno::Stale) if !worker.routes.is_local(target) => starts = do_at(worker, target, what).await?,
            other => return other.map(drop),
        }
    }
}

/// Removes the objects of an inode on this target, in as many records as it takes.
pub async fn destroy_objects<E: Env>(target: &Target<E>, ino: Ino) -> Result<()> {
    let mut objects: BTreeSet<ObjectId> = target.data.borrow().objects_of(ino).map(|(id, _)| id).collect();
    // A write that is under way may be about to make such an object.
    objects.extend(target.queues.spans.busy_objects(ino));
    let mut spans = Vec::new();
    for object in objects {
        spans.push(target.queues.spans.take(object, ByteRange::ALL, Hold::Exclusive).await);
    }
    loop {
        target.zone.reserve(0).await?;
        let (lsn, done) = {
            let mut txn = Txn::default();
            let step = target.data.borrow_mut().destroy_some(ino, ITEMS_A_RECORD, &mut txn);
            let lsn = target.append(txn, Order::Plain);
            target.release_later(lsn, step.freed);
            (lsn, step.done)
        };
        target.zone.kept(lsn).await?;
        if done {
            return Ok(());
        }
    }
}

/// The work that follows when inodes lose their last name, in addition to the items in the transaction.
#[derive(Default)]
pub struct Orphans {
    freed: Freed,
    later: Vec<Ino>,
}

/// Adds to `txn` the changes for inodes that lost their last name. Open inodes stay. As long as any session has not
/// presented its opens yet, all of them stay, and `reap_orphans` checks them again.
pub fn orphaned<E: Env>(target: &Target<E>, inos: &[Ino], txn: &mut Txn) -> Orphans {
    let mut orphans = Orphans::default();
    for &ino in inos {
        if target.files.open.borrow().is_open(ino) || !target.reclaim.is_over() {
            continue;
        }
        let mut meta = target.meta.borrow_mut();
        if meta.is_away(ino) {
            // It has got a name meanwhile.
            continue;
        }
        let Ok(inode) = meta.inode(ino) else { continue };
        let mut data = target.data.borrow_mut();
        let here = inode.kind != Kind::File || (!inode.objects.wide && !inode.pending.destroy);
        let idle = !target.queues.spans.is_busy(ino);
        // An inode with a name is never among these; `remove_inode` and `begin_destroy` refuse it.
        let object = ObjectId { ino, stripe: 0 };
        if here && idle && data.extents(object).nth(SMALL_EXTENTS).is_none() {
            if meta.remove_inode(ino, txn).is_ok() {
                orphans.freed.absorb(data.destroy_all(ino, txn));
            }
        } else if meta.begin_destroy(ino, txn).is_ok() {
            orphans.later.push(ino);
        }
    }
    orphans
}

impl Orphans {
    /// Appends `txn` and does the rest when its time has come.
    pub fn append<E: Env>(self, worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, txn: Txn) -> Lsn {
        let lsn = target.append(txn, Order::Plain);
        target.release_later(lsn, self.freed);
        for ino in self.later {
            destroy_later(worker, target, ino, lsn);
        }
        lsn
    }
}

fn destroy_later<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, ino: Ino, lsn: Lsn) {
    if !target.queues.destroying.borrow_mut().insert(ino) {
        return;
    }
    let (worker, target) = (worker.clone(), target.clone());
    worker.env.clone().spawn(async move {
        if let Err(e) = destroy(&worker, &target, ino, lsn).await {
            tracing::error!("{}: removing inode {ino} failed: {e}; the next start tries again", target.id);
        }
        target.queues.destroying.borrow_mut().remove(&ino);
    });
}

async fn destroy<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, ino: Ino, lsn: Lsn) -> Result<()> {
    let Ok((layout, wide)) = target.meta.borrow().inode(ino).map(|i| (i.layout, i.objects.wide)) else { return Ok(()) };
    let others = if wide { others(&layout, ino, target.id) } else { Vec::new() };
    let (gone, mut starts) = (TargetRequest::Destroy(ino), Vec::new());
    if wide {
        // A cut that is under way would make objects again. No later one begins.
        drop(target.queues.names.take(vec![(NameKey::Inode(ino), Hold::Exclusive)]).await);
        // Data on other targets is removed as soon as it is certain that the inode is removed: on a full disk a request
        // may wait for the space.
        target.zone.stable(lsn).await?;
        for t in &others {
            starts.push(do_at(worker, *t, &gone).await?);
        }
    }
    destroy_objects(target, ino).await?;
    // And the inode is removed only when its data on other targets is certain to be removed.
    for (t, starts) in others.into_iter().zip(starts) {
        stay_done(worker, t, &gone, starts).await?;
    }
    target.zone.reserve(0).await?;
    let mut txn = Txn::default();
    target.meta.borrow_mut().remove_inode(ino, &mut txn)?;
    target.log(txn, Order::Plain).await
}

/// Frees the inodes that have no name and that no session can have open any more.
pub fn reap_orphans<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) {
    if !target.reclaim.is_over() {
        return;
    }
    let all: Vec<Ino> = target.meta.borrow().orphans();
    for ino in all {
        if !target.queues.destroying.borrow().contains(&ino) {
            destroy_orphan(worker, target, ino);
        }
    }
}

/// Frees an inode that has no name, unless a session has it open or has not presented its opens yet. An operation that
/// has locked the inode exclusively may be about to give it a name, and may have promised that. In this case the inode
/// is checked again after that operation.
pub fn destroy_orphan<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, ino: Ino) {
    if target.files.open.borrow().is_open(ino) || !target.reclaim.is_over() {
        return;
    }
    let key = NameKey::Inode(ino);
    let destroy = move |worker: &Rc<Worker<E>>, target: &Rc<Target<E>>| {
        let mut txn = Txn::default();
        orphaned(target, &[ino], &mut txn).append(worker, target, txn);
    };
    if !target.queues.names.is_held_alone(&key) {
        return destroy(worker, target);
    }
    let (worker, target) = (worker.clone(), target.clone());
    worker.env.clone().spawn(async move {
        let _guard = target.queues.names.take(vec![(key, Hold::Exclusive)]).await;
        destroy(&worker, &target);
    });
}

/// Continues truncates and removals that a crash interrupted. A truncate is continued only if its session has not
/// ended.
pub async fn resume_pending<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) -> Result<()> {
    let pending = target.meta.borrow().pending();
    for (ino, work) in pending {
        if work.destroy {
            destroy_later(worker, target, ino, target.zone.appended_lsn());
        } else if work.trim {
            let inode = target.meta.borrow().inode(ino)?;
            let (generation, by) =
                (inode.objects.generation, target.sessions.slots.borrow().truncated_by(ino, inode.objects.generation));
            let by = by.and_then(|session| Some((session, target.sessions.begin_of(session)?)));
            let Some(by) = by else {
                // No program has seen the truncated file, and other mounts may have written behind the new end since
                // the session ended.
                give_cut_up(worker, target, ino, generation, Txn::default()).await?;
                settle_later(worker, target, ino);
                continue;
            };
            let cut =
                Cut { by, ino, layout: inode.layout, size: inode.size, generation, mtime: inode.times.mtime_set_ctime };
            // Other servers may be down, and a promise to one of them may hold the inode locked: requests for this
            // inode wait for that, but the start does not.
            let (worker, target) = (worker.clone(), target.clone());
            let env = worker.env.clone();
            let mut cut = Box::pin(async move {
                let _guard = target.queues.names.take(vec![(NameKey::Inode(ino), Hold::Exclusive)]).await;
                match trim_everywhere(&worker, &target, &cut).await {
                    Ok(()) => settle_later(&worker, &target, ino),
                    Err(e) => {
                        tracing::error!("{}: cutting inode {ino} failed: {e}", target.id);
                        let _ = give_cut_up(&worker, &target, ino, generation, Txn::default()).await;
                        settle_later(&worker, &target, ino);
                    }
                }
            });
            if cut.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                env.spawn(cut);
            }
        }
    }
    Ok(())
}
