//! Dropping a front end's pages before a lock is returned, or after that if the front end cannot drop them in time.
//!
//! Owns: one round of dropping (`taking`) at a time for each file, how long a lock waits for it, and asking the front
//! end to drop pages. Does not own: the way in which the front end does that (`KernelPages`), the record of a file's
//! pages (`inode::front_pages`), and the target's notes about pages left behind (`Request::PagesLeft`).
//!
//! A lock waits until all its pages are dropped but those whose write-back waits for locks of other mounts. In the
//! latter case it waits only for `PATIENCE_STEPS` steps, because two mounts may wait for each other in this way. It
//! waits no longer than that either while a truncate of the file is under way on this mount. The kernel then holds back
//! the file's write-back, so it may be unable to drop pages, and the truncate may wait for a request that waits for
//! this lock. In all other cases a lock waits for at most `STEPS_MAX` steps, because a program that stores into a
//! mapping without a pause makes new dirty pages all the time. Pages that are left are dropped later. Until then the
//! target notes what others change of the file, and does not overwrite that when the pages are written back. So no
//! return of a lock depends on the kernel, and whatever waits for locks makes progress, on every mount.
//!
//! Programs that take turns by file locks, or by `fsync` and `msync`, meet no page that was left: a file lock is
//! granted, and a sync is answered, when the pages that were left before are dropped (`drop_left`).
//!
//! Invariants: a request that runs without a lock is counted from a moment at which pages are being dropped. The
//! dropping ends after that request, with another round over its pages. A request that relies on a lock which is being
//! returned has ended before the lock is returned.
//!
//! The numbers behind the times: the kernel takes 10 to 30 ms to drop 256 dirty pages. Where 15 threads wanted each
//! processor, one wait of 40 ms was over before the kernel had dropped a clean page. A program that counted in a
//! mapping under file locks then read an outdated page.

use crate::conn::replies::unexpected;
use crate::inode::Inode;
use crate::inode::without_lock::WRITES_MAX;
use crate::mount::Mount;
use crate::telemetry::stats::Count;
use amphi_types::{ByteRange, Cred, Ino, Result, TargetId};
use amphi_wire::{Lane, Reply, Request};
use futures_channel::oneshot;
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// How long one step of the wait for pages takes, in nanoseconds. Dropping a page takes a few turns of threads. Each of
/// them waits for a processor on a machine that has none free, and so does the end of each step.
const STEP_NS: u64 = 5_000_000;
/// After this many steps a lock is returned before pages are dropped that cannot be dropped, because a truncate of this
/// mount is under way or because their write-back waits for locks of other mounts.
const PATIENCE_STEPS: u64 = 8;
/// After this many steps a lock is returned even if pages are not dropped yet. If no program here has the file open for
/// writing, no page is dirty and nothing else ends the wait. The kernel drops clean pages at once, except for pages
/// that are being read, and such reads wait for no lock. Only a server that does not answer the requests for pages
/// makes it take longer.
const STEPS_MAX: u64 = 400;
/// How long pages are kept after a read, in nanoseconds, so that a program can do some stores in its turn.
const TURN_NS: u64 = 5_000_000;

/// Drops all pages of a file before `locks` are returned to `target`. Returns when that is done. If the target accepts
/// a note of what others change, the function returns then, and the dropping continues.
pub(crate) async fn take_back(mount: &Arc<Mount>, file: &Arc<Inode>, target: TargetId, locks: &[u64]) {
    let mut turn_ns = begin(mount, file);
    loop {
        let is_left = || file.pages.taking.lock().left.contains(&target);
        // Pages that were read since others were left behind are dropped before a later lock is returned.
        let is_clear = || {
            let taking = file.pages.taking.lock();
            taking.is_clear && taking.left.contains(&target)
        };
        let over = pin!(file.signal.until(|| !file.pages.is_taking() || is_clear()));
        if let Either::Right(_) = select(over, pin!(be_patient(mount, file, turn_ns))).await
            && !is_left()
            && let Err(e) = let_go(mount, file, target).await
        {
            tracing::debug!(ino = %file.ino, "a lock waits for pages of the kernel: {e}");
            file.signal.until(|| !file.pages.is_taking()).await;
        }
        // Every request that relied on the lock has ended. A later request does not rely on this lock.
        file.signal.until(|| !is_left() || !file.pages.taking.lock().protected.contains_key(&target)).await;
        let mut taking = file.pages.taking.lock();
        let is_protected = taking.protected.contains_key(&target);
        if !file.pages.is_taking() || (taking.left.contains(&target) && !is_protected) {
            taking.going.retain(|lock| !locks.contains(&lock.number));
            return;
        }
        // A new round of dropping has begun.
        turn_ns = 0;
    }
}

/// Returns when a lock may be returned before all pages are dropped, `turn_ns` and some steps from now.
async fn be_patient(mount: &Mount, file: &Inode, turn_ns: u64) {
    mount.life.pauses.pause(turn_ns).await;
    for step in 1..=STEPS_MAX {
        mount.life.pauses.pause(STEP_NS).await;
        if step >= PATIENCE_STEPS && file.has_writers() && is_held_up(file) {
            return;
        }
    }
}

/// Returns whether the front end may be unable to drop pages before a lock is returned.
fn is_held_up(file: &Inode) -> bool {
    let taking = file.pages.taking.lock();
    taking.is_clear || taking.writes >= WRITES_MAX || file.pages.is_being_cut()
}

/// Drops the pages that were left behind when locks were returned, except those of requests that wait for locks. Waits
/// no longer than the return of a lock does.
pub(crate) async fn drop_left(mount: &Arc<Mount>, file: &Arc<Inode>) {
    if file.pages.is_taking() && !file.pages.taking.lock().left.is_empty() {
        let dropped = pin!(drop_around(mount, file, ByteRange::ALL));
        select(dropped, pin!(mount.life.pauses.pause(STEPS_MAX * STEP_NS))).await;
    }
}

/// Begins to drop pages unless that is under way. Returns how many nanoseconds of a turn are left before pages are
/// dropped.
fn begin(mount: &Arc<Mount>, file: &Arc<Inode>) -> u64 {
    let pages = &file.pages;
    let turn_ns = (pages.read_ns.load(SeqCst) + TURN_NS).saturating_sub(mount.clock.now_ns()).min(TURN_NS);
    {
        let mut taking = pages.taking.lock();
        if pages.is_taking() {
            return 0;
        }
        (taking.is_dropping, taking.is_clear) = (turn_ns == 0, false);
        pages.is_taking.store(true, SeqCst);
    }
    // Requests that wait for a lock check again whether they need it.
    file.signal.notify();
    let (mount2, file) = (mount.clone(), file.clone());
    mount.spawn(async move { rounds(&mount2, &file, turn_ns).await });
    turn_ns
}

/// Drops all pages, without regard to locks.
#[cfg(test)]
pub(crate) async fn take_all(mount: &Arc<Mount>, file: &Arc<Inode>) {
    file.pages.is_taking.store(true, SeqCst);
    rounds(mount, file, 0).await;
}

/// Drops all pages, and then those that were touched meanwhile.
async fn rounds(mount: &Arc<Mount>, file: &Arc<Inode>, turn_ns: u64) {
    let pages = &file.pages;
    mount.life.pauses.pause(turn_ns).await;
    pages.taking.lock().is_dropping = true;
    pages.forget();
    let mut ranges = vec![ByteRange::ALL];
    let left = loop {
        for range in &ranges {
            drop_around(mount, file, *range).await;
        }
        let over = {
            let mut taking = pages.taking.lock();
            taking.is_clear = taking.has_nothing_left();
            ranges = std::mem::take(&mut taking.again);
            let is_over = ranges.is_empty() && taking.free == 0 && taking.leaving.is_empty();
            is_over.then(|| {
                taking.is_dropping = false;
                pages.is_taking.store(false, SeqCst);
                taking.left.clear();
                std::mem::take(&mut taking.notes)
            })
        };
        match over {
            Some(left) => break left,
            None if ranges.is_empty() => {
                // Locks may wait for the last page but those of requests that wait.
                file.signal.notify();
                let news = || {
                    let taking = pages.taking.lock();
                    !taking.again.is_empty()
                        || (taking.free == 0 && taking.leaving.is_empty())
                        || (!taking.is_clear && taking.has_nothing_left())
                };
                file.signal.until(news).await;
            }
            None => {}
        }
    };
    file.signal.notify();
    mount.files.reap(file);
    for (target, left) in left {
        drop(mount.insist(Lane::Answer, target, Request::PagesTaken { ino: file.ino, left }));
    }
}

/// Drops pages, except those of requests that wait for locks of other mounts. The kernel has no bytes of the pages of
/// such a read, and cannot drop those of such a write. The kernel may wait at such a page, so the ranges around it are
/// dropped separately.
async fn drop_around(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange) {
    let waiting = |part: ByteRange| {
        let taking = file.pages.taking.lock();
        taking.waiting.values().copied().find(|pages| pages.overlaps(&part))
    };
    let mut parts = vec![range];
    while let Some(part) = parts.pop() {
        if let Some(pages) = waiting(part) {
            let around = [ByteRange::new(part.start, pages.start), ByteRange::new(pages.end, part.end)];
            parts.extend(around.into_iter().filter(|rest| rest.start < rest.end));
            continue;
        }
        let dropped = pin!(drop_pages(mount, file.ino, part));
        if let Either::Right(_) = select(dropped, pin!(file.signal.until(|| waiting(part).is_some()))).await {
            parts.push(part);
        }
    }
}

/// Lets locks of a target be returned before the pages beneath them are dropped.
async fn let_go(mount: &Arc<Mount>, file: &Arc<Inode>, target: TargetId) -> Result<()> {
    have_noted(mount, file, target).await?;
    {
        let mut taking = file.pages.taking.lock();
        if taking.notes.contains_key(&target) && taking.left.insert(target) {
            mount.stats.count(Count::PagesLeft);
        }
    }
    file.signal.notify();
    Ok(())
}

/// Has a target note what others change of the file until its pages are dropped. Returns the name of the note; `None`
/// if no pages are being dropped any more.
///
/// Errors: `NoMem` if the target has too many notes of this mount.
pub(crate) async fn have_noted(mount: &Arc<Mount>, file: &Arc<Inode>, target: TargetId) -> Result<Option<u64>> {
    let pages = &file.pages;
    loop {
        {
            let mut taking = pages.taking.lock();
            let note = taking.notes.get(&target).copied();
            if !pages.is_taking() || note.is_some() {
                return Ok(note);
            }
            if taking.leaving.insert(target) {
                break;
            }
        }
        file.signal.until(|| !pages.taking.lock().leaving.contains(&target)).await;
    }
    let asked = mount.send(Lane::Answer, target, &Cred::root(), Request::PagesLeft { ino: file.ino }, None, 0).await;
    let noted = asked.and_then(|(answer, _)| match answer.result? {
        Reply::PagesLeft(left) => Ok(left),
        other => Err(unexpected(&other)),
    });
    {
        let mut taking = pages.taking.lock();
        taking.leaving.remove(&target);
        if let Ok(note) = noted {
            taking.notes.insert(target, note);
        }
    }
    file.signal.notify();
    noted.map(Some)
}

/// Makes the front end drop the bytes of this range of a file that it caches.
pub(crate) async fn drop_pages(mount: &Mount, ino: Ino, range: ByteRange) {
    let Some(pages) = mount.coherence.sharing.pages() else { return };
    let (sender, done) = oneshot::channel();
    pages.drop_pages(
        ino,
        range,
        Box::new(move || {
            let _ = sender.send(());
        }),
    );
    let _ = done.await;
}

/// Works as `drop_pages`, for bytes that a write replaces, bytes that turn out to be absent, and bytes that were lost.
/// It runs concurrently with drops for which a lock waits, because dirty pages among these bytes may wait for a lock.
pub(crate) async fn drop_overwritten(mount: &Mount, ino: Ino, range: ByteRange) {
    let Some(pages) = mount.coherence.sharing.pages() else { return };
    let (sender, done) = oneshot::channel();
    pages.drop_overwritten(
        ino,
        range,
        Box::new(move || {
            let _ = sender.send(());
        }),
    );
    let _ = done.await;
}

/// Makes the front end drop the listings of open directories, and write back and drop the pages of open files. Mapped
/// files are open files.
pub(crate) async fn drop_open_pages(mount: &Mount) {
    let Some(pages) = mount.coherence.sharing.pages() else { return };
    pages.drop_listings();
    for file in mount.files.all().into_iter().filter(|f| f.open_count() > 0) {
        drop_pages(mount, file.ino, ByteRange::ALL).await;
    }
}
