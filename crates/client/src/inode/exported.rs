//! `Exported`: shared memory from which programs on this machine read the file without a system call.
//!
//! Owns: which export the file has, and the reports of changes of the file to it. Does not own: the memory
//! (`amphi_shm`), the copies into it (`ops::read::exports`), which programs get it (the front end).
//!
//! Invariant: every event that would make a cache hit fail (`ops::read::Hit`) is reported here before any program can
//! see the change. If the change is not made under the lock of a unit, it is reported once more when it is done. So a
//! fill that began in between and saw the old state publishes nothing that is valid. If a file has no export, an event
//! costs one load.

use amphi_shm::export::Export;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The export of a file, if it has one. Clones refer to the same export.
#[derive(Clone, Default)]
pub(crate) struct Exported(Arc<Link>);

#[derive(Default)]
struct Link {
    any: AtomicBool,
    export: RwLock<Option<Arc<Export>>>,
}

impl Exported {
    pub(crate) fn get(&self) -> Option<Arc<Export>> {
        if self.0.any.load(SeqCst) { self.0.export.read().clone() } else { None }
    }

    /// Replaces the export; the previous one shows nothing afterwards.
    pub(super) fn set(&self, export: Option<Arc<Export>>) {
        let mut place = self.0.export.write();
        self.0.any.store(export.is_some(), SeqCst);
        if let Some(before) = std::mem::replace(&mut *place, export) {
            before.give_up();
        }
    }

    #[inline]
    fn tell(&self, what: impl FnOnce(&Export)) {
        if self.0.any.load(SeqCst)
            && let Some(export) = &*self.0.export.read()
        {
            what(export);
        }
    }

    /// Bytes are about to change, under the lock of their unit.
    #[inline]
    pub(crate) fn bytes_change(&self, start: u64, end: u64) {
        self.tell(|export| export.bytes_change(start, end));
    }

    /// `change` may change the size of the file, or whether the size is certain.
    #[inline]
    pub(crate) fn while_size_changes<T>(&self, change: impl FnOnce() -> T) -> T {
        self.tell(Export::size_changes);
        let changed = change();
        self.tell(Export::size_changes);
        changed
    }

    /// `change` may change everything.
    #[inline]
    pub(crate) fn while_all_changes<T>(&self, change: impl FnOnce() -> T) -> T {
        self.tell(Export::all_change);
        let changed = change();
        self.tell(Export::all_change);
        changed
    }

    /// Nothing that the export shows is valid any more.
    pub(crate) fn all_change(&self) {
        self.tell(Export::all_change);
    }

    /// Called when the next read may renew the access time.
    #[inline]
    pub(crate) fn access_is_due(&self) {
        self.tell(|export| export.set_due(true));
    }

    /// A call locks bytes of the file exclusively.
    pub(super) fn block(&self) {
        self.tell(Export::block);
    }

    /// Called when the call has released these bytes.
    pub(super) fn unblock(&self) {
        self.tell(Export::unblock);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(export) = self.export.get_mut() {
            export.give_up();
        }
    }
}
