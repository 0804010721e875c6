//! Taking pages of a front end back, before a lock goes or, where the front end cannot give them in time, behind it.
//!
//! Owns: one taking back at a time for each file, its rounds, who may go without a lock meanwhile, how long a lock
//! waits for it. Does not own: what the front end does (`KernelPages`), what the target notes of pages that are left
//! (`Request::PagesLeft`).
//!
//! A lock waits for its pages for `PATIENCE_NS` at most. The kernel may be unable to give them: it holds the write-back
//! of a file back while a truncate of it is unanswered, and that truncate may wait for whoever waits for the lock; and
//! a program that stores into a mapping without pause has always more. What is left then is taken back all the same.
//! Until it is, the target notes what others change of the file, and leaves that out of what is written back. So no
//! return of a lock depends on the kernel: whatever waits for locks, on whichever mount, gets on.
//!
//! Invariants: whoever goes without a lock has been counted since a moment at which pages were being taken back, and
//! the taking back ends after that, with another round over its pages. What goes to a target while a lock of it is on
//! its way back has ended before that lock goes. Number behind the times: to drop 256 dirty pages takes the kernel 10
//! to 30 ms.

use super::FilePages;
use crate::coherence::sharing;
use crate::inode::Inode;
use crate::mount::{Mount, unexpected};
use crate::telemetry::stats::Count;
use amphi_types::{ByteRange, Cred, Result, TargetId};
use amphi_wire::{Lane, Reply, Request};
use futures_util::future::{Either, select};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// How long a lock that somebody wants waits until its pages are taken back, nanoseconds.
const PATIENCE_NS: u64 = 40_000_000;
/// The same where no page can be dirty, since nobody here has the file open for writing: the front end gives clean
/// pages at once, but for those that are being read, and such reads wait for no lock. Only a server that does not
/// answer them makes it take longer. Reads that the front end serves show nothing old meanwhile.
const CLEAN_PATIENCE_NS: u64 = 2_000_000_000;
/// Whoever has read pages keeps them for so long, nanoseconds: a program that stores into them gets some stores done in
/// its turn.
const TURN_NS: u64 = 5_000_000;

/// Pages that are being taken back.
#[derive(Default)]
pub(super) struct Taking {
    /// The front end drops pages; before that, a turn ends.
    is_dropping: bool,
    /// Read or written meanwhile without a lock.
    again: Vec<ByteRange>,
    /// Requests under way without a lock.
    free: usize,
    /// Those of them that lie under a lock which is on its way back, by target.
    protected: BTreeMap<TargetId, usize>,
    /// Targets that note what others change, and the names of their notes.
    left: BTreeMap<TargetId, u64>,
    /// Targets that are being asked to.
    leaving: BTreeSet<TargetId>,
}

impl FilePages {
    /// Whether the front end is dropping pages.
    pub(super) fn is_being_dropped(&self) -> bool {
        self.is_taking() && self.taking.lock().is_dropping
    }
}

/// A request that goes without a lock while pages are taken back.
pub(super) struct Free(Arc<Inode>);

impl Free {
    /// None if no pages are being taken back. Pages of the request are taken after this: once more, if the taking has
    /// begun before.
    pub(super) fn begin(file: &Arc<Inode>, range: ByteRange) -> Option<Free> {
        if !file.pages.is_taking() {
            return None;
        }
        let mut taking = file.pages.taking.lock();
        if !file.pages.is_taking() {
            return None;
        }
        if taking.is_dropping {
            taking.again.push(range);
        }
        taking.free += 1;
        Some(Free(file.clone()))
    }

    /// How it goes to a target.
    pub(super) fn way(&self, target: TargetId) -> Way<'_> {
        let mut taking = self.0.pages.taking.lock();
        if let Some(left) = taking.left.get(&target) {
            return Way::Left(*left);
        }
        *taking.protected.entry(target).or_default() += 1;
        Way::Protected(Protected(self, target))
    }
}

impl Drop for Free {
    fn drop(&mut self) {
        self.0.pages.taking.lock().free -= 1;
        self.0.signal.notify();
    }
}

/// How a request without a lock goes to a target.
pub(super) enum Way<'a> {
    /// Before a lock that keeps others away has gone, until this is dropped.
    Protected(Protected<'a>),
    /// By the note of the target.
    Left(u64),
}

/// Keeps the locks of a target from going.
pub(super) struct Protected<'a>(&'a Free, TargetId);

impl Drop for Protected<'_> {
    fn drop(&mut self) {
        let file = &self.0.0;
        let mut taking = file.pages.taking.lock();
        if let Some(count) = taking.protected.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                taking.protected.remove(&self.1);
            }
        }
        drop(taking);
        file.signal.notify();
    }
}

/// Takes all pages of a file back before a lock goes back to `target`. Returns when that is done, or when the target
/// notes what others change beneath what is left; then it goes on.
pub(crate) async fn take_back(mount: &Arc<Mount>, file: &Arc<Inode>, target: TargetId) {
    let turn_ns = begin(mount, file);
    let is_left = || file.pages.taking.lock().left.contains_key(&target);
    let over = pin!(file.signal.until(|| !file.pages.is_taking() || is_left()));
    let patience_ns = if file.has_writers() { PATIENCE_NS } else { CLEAN_PATIENCE_NS };
    if let Either::Right(_) = select(over, pin!(mount.life.pauses.pause(turn_ns + patience_ns))).await
        && let Err(e) = leave(mount, file, target).await
    {
        tracing::debug!(ino = %file.ino, "a lock waits for pages of the kernel: {e}");
        file.signal.until(|| !file.pages.is_taking()).await;
    }
    // What relied on the lock is done. Whoever comes later goes by the note.
    file.signal.until(|| !is_left() || !file.pages.taking.lock().protected.contains_key(&target)).await;
}

/// Begins to take pages back unless that is under way. Returns how much of a turn is left before.
fn begin(mount: &Arc<Mount>, file: &Arc<Inode>) -> u64 {
    let pages = &file.pages;
    let turn_ns = (pages.read_ns.load(SeqCst) + TURN_NS).saturating_sub(mount.clock.now_ns()).min(TURN_NS);
    {
        let mut taking = pages.taking.lock();
        if pages.is_taking() {
            return 0;
        }
        taking.is_dropping = turn_ns == 0;
        pages.is_taking.store(true, SeqCst);
    }
    // Requests that wait for a lock look again.
    file.signal.notify();
    let (mount2, file) = (mount.clone(), file.clone());
    mount.spawn(async move { rounds(&mount2, &file, turn_ns).await });
    turn_ns
}

/// Takes all pages back, whoever waits for what.
#[cfg(test)]
pub(super) async fn take_all(mount: &Arc<Mount>, file: &Arc<Inode>) {
    file.pages.is_taking.store(true, SeqCst);
    rounds(mount, file, 0).await;
}

/// Drops all pages, and again what was touched meanwhile.
async fn rounds(mount: &Arc<Mount>, file: &Arc<Inode>, turn_ns: u64) {
    let pages = &file.pages;
    mount.life.pauses.pause(turn_ns).await;
    pages.taking.lock().is_dropping = true;
    pages.forget();
    let mut ranges = vec![ByteRange::ALL];
    let left = loop {
        for range in &ranges {
            sharing::drop_pages(mount, file.ino, *range).await;
        }
        let over = {
            let mut taking = pages.taking.lock();
            ranges = std::mem::take(&mut taking.again);
            let is_over = ranges.is_empty() && taking.free == 0 && taking.leaving.is_empty();
            is_over.then(|| {
                taking.is_dropping = false;
                pages.is_taking.store(false, SeqCst);
                std::mem::take(&mut taking.left)
            })
        };
        match over {
            Some(left) => break left,
            None if ranges.is_empty() => {
                let news = || {
                    let taking = pages.taking.lock();
                    !taking.again.is_empty() || (taking.free == 0 && taking.leaving.is_empty())
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

/// Has a target note what others change from now on, so that its locks can go.
async fn leave(mount: &Arc<Mount>, file: &Arc<Inode>, target: TargetId) -> Result<()> {
    let pages = &file.pages;
    loop {
        {
            let mut taking = pages.taking.lock();
            if !pages.is_taking() || taking.left.contains_key(&target) {
                return Ok(());
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
        if let Ok(left) = noted {
            taking.left.insert(target, left);
            mount.stats.count(Count::PagesLeft);
        }
    }
    file.signal.notify();
    noted.map(drop)
}
