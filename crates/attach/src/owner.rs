//! The check to which process this memory belongs.
//!
//! A child of `vfork` runs in the memory of its parent with descriptors of its own. Its results would count for the
//! parent, so it stores none. Two signs tell it: the counter that the wrapper of `vfork` raises, and a page that reads
//! 0 in a child of `fork` and holds the id of the process that this memory belongs to otherwise.

use crate::sys;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Children of `vfork` that run in this memory: they have descriptors of their own.
pub static VFORKS: AtomicU32 = AtomicU32::new(0);

/// The page that reads 0 after `fork`; 0: not made yet, 1: it cannot be made.
static PAGE: AtomicUsize = AtomicUsize::new(0);
/// Whether this memory belongs to the process that runs.
pub(crate) fn is_own_memory() -> bool {
    if VFORKS.load(SeqCst) != 0 {
        return false;
    }
    let mut page = PAGE.load(SeqCst);
    if page == 0 {
        let made = sys::map_forked_page().unwrap_or(1);
        page = match PAGE.compare_exchange(0, made, SeqCst, SeqCst) {
            Ok(_) => made,
            Err(other) => {
                if made > 1 {
                    // SAFETY: nobody has seen it.
                    unsafe { sys::unmap(made, 4096) };
                }
                other
            }
        };
    }
    if page == 1 {
        return false;
    }
    // SAFETY: a page of this process that stays.
    let owner = unsafe { &*(page as *const AtomicU64) };
    let own = u64::from(sys::own_pid());
    match owner.compare_exchange(0, own, SeqCst, SeqCst) {
        Ok(_) => true,
        Err(pid) => pid == own,
    }
}
