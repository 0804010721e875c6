//! `Interrupt`: reports to a handler that the caller of its request got a signal, so that no call waits for ever.
//!
//! Owns: the table of requests that are being handled, one slot for each reader thread, and the delivery of INTERRUPT
//! to them. Does not own: the reaction of a handler (it ends with `Errno::Intr`, or continues if it is nearly done).
//!
//! Invariants: request ids are never used twice, so a late interrupt cannot hit another request. Two threads may read a
//! request and its INTERRUPT in the opposite order. So an INTERRUPT whose request is not in the table yet is
//! remembered, and found when the request is entered.
//!
//! The number behind the slots: entering and leaving costs two stores. An interrupt scans as many slots as there are
//! threads.

use crate::later::LateTable;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::task::Waker;

/// Most interrupts that are remembered before their request arrives. If there are more, the oldest is forgotten.
const EARLY_MAX: usize = 256;
/// No request: the kernel never uses this id.
const NONE: u64 = 0;

/// The request that one thread is handling.
#[derive(Default)]
pub(crate) struct Slot {
    current: AtomicU64,
    interrupted: AtomicU64,
    waiting: Mutex<Option<(u64, Waker)>>,
}

impl Slot {
    /// Marks request `unique` as interrupted. If the thread has moved on to another request, the mark of that one is
    /// not replaced.
    fn fire(&self, unique: u64) {
        let _ = self.interrupted.fetch_update(SeqCst, SeqCst, |marked| {
            let is_in_hand = marked != NONE && marked == self.current.load(SeqCst);
            (!is_in_hand).then_some(unique)
        });
        let waiting = self.waiting.lock().take_if(|(u, _)| *u == unique);
        if let Some((_, waker)) = waiting {
            waker.wake();
        }
    }
}

/// The interrupt of one request. An `Interrupt` is cheap to clone, and may outlive its request.
#[derive(Clone)]
pub struct Interrupt {
    slot: Arc<Slot>,
    unique: u64,
}

impl Interrupt {
    /// An interrupt for callers that are not kernel requests; only a call of `fire` triggers it.
    pub fn detached() -> Interrupt {
        Interrupt { slot: Arc::default(), unique: 1 }
    }

    /// Returns whether the caller got a signal since its request was read.
    pub fn is_interrupted(&self) -> bool {
        self.slot.interrupted.load(SeqCst) == self.unique
    }

    /// Wakes `waker` once when the caller gets a signal, or at once if it already did. Only the waker that was
    /// registered last is woken.
    pub fn wake_on_interrupt(&self, waker: &Waker) {
        *self.slot.waiting.lock() = Some((self.unique, waker.clone()));
        if self.is_interrupted() {
            self.slot.fire(self.unique);
        }
    }

    /// Fires this interrupt.
    pub fn fire(&self) {
        self.slot.fire(self.unique);
    }
}

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Interrupt({}, {})", self.unique, self.is_interrupted())
    }
}

/// All requests that are being handled.
#[derive(Default)]
pub(crate) struct InHand {
    slots: Mutex<Vec<Arc<Slot>>>,
    early: Mutex<VecDeque<u64>>,
    early_len: AtomicUsize,
    /// Requests that no thread handles any more, but that are not answered yet.
    pub(crate) late: Arc<LateTable>,
}

impl InHand {
    /// Adds a slot for a new thread.
    pub(crate) fn add_slot(&self) -> Arc<Slot> {
        let slot = Arc::<Slot>::default();
        self.slots.lock().push(slot.clone());
        slot
    }

    /// Removes the slot of a thread that ends.
    pub(crate) fn remove_slot(&self, slot: &Arc<Slot>) {
        self.slots.lock().retain(|s| !Arc::ptr_eq(s, slot));
    }

    /// Enters request `unique` in the slot of the thread that handles it.
    pub(crate) fn enter(&self, slot: &Arc<Slot>, unique: u64) -> Interrupt {
        slot.current.store(unique, SeqCst);
        if self.take_early(unique) {
            slot.fire(unique);
        }
        Interrupt { slot: slot.clone(), unique }
    }

    /// Returns whether the interrupt of `unique` came before its request was entered. It is reported only once.
    pub(crate) fn take_early(&self, unique: u64) -> bool {
        if self.early_len.load(SeqCst) == 0 {
            return false;
        }
        let mut early = self.early.lock();
        let Some(at) = early.iter().position(|&u| u == unique) else { return false };
        early.remove(at);
        self.early_len.store(early.len(), SeqCst);
        true
    }

    /// Called when the request of `slot` was answered.
    pub(crate) fn leave(&self, slot: &Slot) {
        slot.current.store(NONE, SeqCst);
        let mut waiting = slot.waiting.lock();
        if waiting.is_some() {
            *waiting = None;
        }
    }

    /// The caller of `unique` got a signal.
    pub(crate) fn interrupt(&self, unique: u64) {
        if self.fire_if_in_hand(unique) {
            return;
        }
        let mut early = self.early.lock();
        if early.len() == EARLY_MAX {
            early.pop_front();
        }
        early.push_back(unique);
        assert!(early.len() <= EARLY_MAX, "{} interrupts are remembered, at most {EARLY_MAX}", early.len());
        self.early_len.store(early.len(), SeqCst);
        drop(early);
        // The request may have been entered between the search and the note, without seeing the note.
        self.fire_if_in_hand(unique);
    }

    /// Fires the interrupts of all requests that are being handled.
    pub(crate) fn fire_all(&self) {
        for slot in self.slots.lock().iter() {
            let unique = slot.current.load(SeqCst);
            if unique != NONE {
                slot.fire(unique);
            }
        }
        self.late.interrupt_all();
    }

    fn fire_if_in_hand(&self, unique: u64) -> bool {
        let slots = self.slots.lock();
        let found = slots.iter().find(|s| s.current.load(SeqCst) == unique);
        let in_hand = found.inspect(|s| s.fire(unique)).is_some();
        drop(slots);
        // The request may be on its way from its thread to the table of later answers, so both are tried.
        self.late.interrupt(unique) || in_hand
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::task::Wake;

    #[derive(Default)]
    struct Flag(AtomicBool);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, SeqCst);
        }
    }

    /// Goal: an interrupt finds its own request and no other, in whatever order the steps happen. Method: each order of
    /// interrupt, entry and registration, and then a new request in the same slot.
    #[test]
    fn every_order_of_interrupt_and_request() {
        let table = InHand::default();
        let slot = table.add_slot();
        for (unique, order) in [(2, "early"), (4, "before registration"), (6, "after registration")] {
            let flag = Arc::new(Flag::default());
            let waker = Waker::from(flag.clone());
            if order == "early" {
                table.interrupt(unique);
            }
            let interrupt = table.enter(&slot, unique);
            if order == "before registration" {
                table.interrupt(unique);
            }
            interrupt.wake_on_interrupt(&waker);
            if order == "after registration" {
                assert!(!interrupt.is_interrupted());
                table.interrupt(unique);
            }
            assert!(interrupt.is_interrupted() && flag.0.load(SeqCst), "{order}");
            table.leave(&slot);
            let next = table.enter(&slot, unique + 100);
            assert!(!next.is_interrupted(), "{order}: hit the next request");
            table.leave(&slot);
        }
    }

    /// Goal: an interrupt of the request before, delivered late, does not hide that of the present one. Goal: a late
    /// interrupt of the previous request does not hide that of the present one.
    #[test]
    fn a_late_interrupt_hides_none() {
        let table = InHand::default();
        let slot = table.add_slot();
        table.leave(&slot);
        let interrupt = table.enter(&slot, 4);
        table.interrupt(4);
        slot.fire(2);
        assert!(interrupt.is_interrupted());
        table.leave(&slot);
        let next = table.enter(&slot, 6);
        slot.fire(2);
        table.interrupt(6);
        assert!(next.is_interrupted(), "a mark of nobody is replaced");
    }

    /// Goal: a thread that puts a request aside instead of handling it learns of an earlier interrupt, once. Method: by
    /// hand.
    #[test]
    fn an_interrupt_before_a_request_is_put_aside() {
        let table = InHand::default();
        assert!(!table.take_early(4));
        table.interrupt(4);
        table.interrupt(6);
        assert!(table.take_early(4) && !table.take_early(4));
        let slot = table.add_slot();
        assert!(!table.enter(&slot, 4).is_interrupted() && table.enter(&slot, 6).is_interrupted());
    }

    /// Goal: interrupts of requests that are long answered take bounded memory. Method: many such interrupts.
    #[test]
    fn late_interrupts_are_bounded() {
        let table = InHand::default();
        (2..2000).for_each(|u| table.interrupt(u));
        assert_eq!(table.early.lock().len(), EARLY_MAX);
    }
}
