//! Page requests that run without a lock while pages of a front end are dropped, and those that wait for locks of other
//! mounts.
//!
//! Owns: the beginning and end of these requests, as the file counts them. Does not own: the counts (`front_pages`),
//! when pages are dropped (`coherence::front_pages`).

use super::Inode;
use super::front_pages::Taking;
use amphi_types::{ByteRange, TargetId};
use std::sync::Arc;

/// A read of pages that waits for locks. The front end has none of these pages before the answer, so the return of a
/// lock does not wait for this read. So only the other pages are dropped.
pub(crate) struct Waiting {
    file: Arc<Inode>,
    number: u64,
    range: ByteRange,
}

impl Waiting {
    pub(crate) fn begin(file: &Arc<Inode>, range: ByteRange) -> Waiting {
        let number = file.pages.taking.lock().waits(range);
        file.signal.notify();
        Waiting { file: file.clone(), number, range }
    }

    /// Called when the read has its locks. From here on, dropping pages waits for the read.
    pub(crate) fn granted(self) -> Option<Free> {
        let mut taking = self.file.pages.taking.lock();
        taking.waiting.remove(&self.number);
        Free::enter(&self.file, &mut taking, self.range)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.file.pages.taking.lock().waiting.remove(&self.number);
        self.file.signal.notify();
    }
}

/// Most writes of pages of a file that are noted as waiting. While pages around such requests are dropped, a thread of
/// the front end waits for each of them.
pub(crate) const WRITES_MAX: usize = 8;

/// A write-back of pages for which other mounts have to return locks. The pages of such a write cannot be dropped
/// before it is answered, so all other pages are dropped around them. Otherwise two mounts whose writes wait for each
/// other's locks would both keep clean pages, which show bytes from before the other's write.
pub(crate) struct WaitingWrite {
    file: Arc<Inode>,
    number: u64,
    range: ByteRange,
}

impl WaitingWrite {
    /// This value begins together with a write that runs without a lock (`Free`), and has to end before that write.
    /// `None`: enough writes are noted already.
    pub(crate) fn begin(file: &Arc<Inode>, range: ByteRange) -> Option<WaitingWrite> {
        let number = {
            let mut taking = file.pages.taking.lock();
            if taking.writes >= WRITES_MAX {
                return None;
            }
            taking.writes += 1;
            taking.waits(range)
        };
        file.signal.notify();
        Some(WaitingWrite { file: file.clone(), number, range })
    }
}

impl Drop for WaitingWrite {
    fn drop(&mut self) {
        {
            let mut taking = self.file.pages.taking.lock();
            taking.waiting.remove(&self.number);
            taking.writes -= 1;
            // From here on the page is clean, and the dropping has left it out.
            taking.touched(self.range);
        }
        self.file.signal.notify();
    }
}

/// A page request that runs without a lock while pages are dropped.
pub(crate) struct Free(Arc<Inode>);

impl Free {
    /// Returns `None` if no pages are being dropped. The pages of the request are dropped after it: a second time, if
    /// dropping began before.
    pub(crate) fn begin(file: &Arc<Inode>, range: ByteRange) -> Option<Free> {
        if !file.pages.is_taking() {
            return None;
        }
        Free::enter(file, &mut file.pages.taking.lock(), range)
    }

    fn enter(file: &Arc<Inode>, taking: &mut Taking, range: ByteRange) -> Option<Free> {
        if !file.pages.is_taking() {
            return None;
        }
        if taking.is_dropping {
            taking.touched(range);
        }
        taking.is_clear = false;
        taking.free += 1;
        Some(Free(file.clone()))
    }

    /// How the request is sent to a target.
    pub(crate) fn way(&self, target: TargetId) -> Way<'_> {
        let mut taking = self.0.pages.taking.lock();
        if let Some(note) = taking.left(target) {
            return Way::Left(note);
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

/// How a request without a lock is sent to a target.
pub(crate) enum Way<'a> {
    /// The request is sent before a lock that keeps other mounts away is returned. The return of the lock waits until
    /// this value is dropped.
    Protected(Protected<'a>),
    /// The request is sent with the number of the target's note.
    Left(u64),
}

/// Keeps the locks of a target from being returned.
pub(crate) struct Protected<'a>(&'a Free, TargetId);

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
