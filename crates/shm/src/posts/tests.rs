//! Every interleaving of programs that post with the mount, on loom's atomics.

use super::*;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;

const SLOTS: usize = 2;

/// A ring whose slots hold one word each.
struct Memory {
    head: RingHead,
    slots: [PostSlot; SLOTS],
    bytes: [AtomicU64; SLOTS],
}

impl Memory {
    fn new() -> Arc<Memory> {
        let memory = Memory { head: RingHead::default(), slots: Default::default(), bytes: Default::default() };
        begin(&memory.slots);
        set_limit(&memory.head, 100);
        Arc::new(memory)
    }

    /// A program posts a word. `Some(true)`: the write has happened.
    fn write(&self, word: u64) -> Option<bool> {
        let claim = claim(&self.head, &self.slots, 10).ok()?;
        self.bytes[claim.slot].store(word, Relaxed);
        Some(post(&self.head, &self.slots, claim, Post { offset: 0, len: 8, handle: 0 }, || true))
    }

    /// The mount takes the posted writes.
    fn drain(&self, first: u64) -> Vec<u64> {
        let mut all = Vec::new();
        let (first, tail) = span(&self.head, &self.slots, first);
        for position in first..tail {
            if let Found::Post(_) = take(&self.slots, position) {
                all.push(self.bytes[position as usize % SLOTS].load(Relaxed));
                release(&self.slots, position);
            }
        }
        all
    }
}

/// Goal: when posts were stopped, each write was either taken or is known to its program not to have happened. Method:
/// every interleaving of a post with a stop.
#[test]
fn a_stop_loses_nothing() {
    loom::model(|| {
        let ring = Memory::new();
        let program = ring.clone();
        let thread = loom::thread::spawn(move || program.write(7));
        set_limit(&ring.head, 0);
        let mut taken = ring.drain(0);
        let written = thread.join().unwrap();
        if taken.is_empty() {
            assert_ne!(written, Some(true), "a write that was not taken has happened");
            taken = ring.drain(0);
            assert!(taken.is_empty(), "a write that did not happen was taken");
        } else {
            assert_eq!((written, taken), (Some(true), vec![7]));
        }
    });
}

/// Goal: as before, if posts are allowed again while a program is posting. Method: every interleaving of a post with a
/// stop and a new limit.
#[test]
fn a_new_limit_loses_nothing() {
    loom::model(|| {
        let ring = Memory::new();
        let program = ring.clone();
        let thread = loom::thread::spawn(move || program.write(7));
        set_limit(&ring.head, 0);
        let mut taken = ring.drain(0);
        refuse_all(&ring.slots);
        set_limit(&ring.head, 100);
        let written = thread.join().unwrap();
        taken.extend(ring.drain(0));
        match written {
            Some(true) => assert_eq!(taken, [7], "a write that has happened was not taken"),
            _ => assert!(taken.is_empty(), "a write that did not happen was taken"),
        }
        assert!(!is_stuck(&ring.head, &ring.slots), "nothing more can be posted");
    });
}

/// Goal: a write that has returned is found by a drain that begins then, with its bytes, and writes of one program are
/// taken in order, also beside another program. Method: every interleaving of two programs with a drain.
#[test]
fn writes_are_taken_in_order() {
    loom::model(|| {
        let ring = Memory::new();
        let other = ring.clone();
        let thread = loom::thread::spawn(move || other.write(5));
        let first = ring.write(1);
        let taken = ring.drain(0);
        assert_eq!(first, Some(true));
        assert!(taken.contains(&1), "a write that has returned is missing");
        assert!(taken.iter().all(|word| [1, 5].contains(word)), "bytes that were never written");
        thread.join().unwrap();
        let rest = ring.drain(0);
        assert_eq!(taken.len() + rest.len(), 2);
    });
}

/// Goal: of two writes of which one began when the other had returned, in different programs, the first is taken
/// first. Method: every interleaving of the mount with a program whose second write follows the first.
#[test]
fn a_later_write_does_not_overtake() {
    loom::model(|| {
        let ring = Memory::new();
        let program = ring.clone();
        let thread = loom::thread::spawn(move || (program.write(1), program.write(2)));
        let mut taken = ring.drain(0);
        thread.join().unwrap();
        taken.extend(ring.drain(0));
        assert_eq!(taken, [1, 2]);
    });
}

/// Goal: the first test can fail. Method: a program that does not look at the limit again.
#[test]
#[should_panic(expected = "was not taken")]
fn a_program_that_does_not_look_again_is_found() {
    loom::model(|| {
        let ring = Memory::new();
        let program = ring.clone();
        let thread = loom::thread::spawn(move || {
            let claim = claim(&program.head, &program.slots, 10).ok()?;
            let slot = &program.slots[claim.slot];
            slot.state
                .compare_exchange(state(claim.position, FREE), state(claim.position, POSTED), SeqCst, Relaxed)
                .ok()
        });
        set_limit(&ring.head, 0);
        let taken = ring.drain(0);
        let written = thread.join().unwrap();
        assert!(!taken.is_empty() || written.is_none(), "a write that was not taken has happened");
    });
}
