//! Every interleaving of a reader with the mount, on loom's atomics.

use super::*;
use loom::sync::atomic::AtomicU64;
use loom::sync::{Arc, Mutex};

/// A file of two units with one word each, as the page cache has it and as it is shared.
struct File {
    head: State,
    slots: [Slot; 2],
    shared: [AtomicU64; 2],
    cache: [Mutex<u64>; 2],
}

impl File {
    /// Both units are shared, and hold 0.
    fn new() -> Arc<File> {
        let file = File {
            head: State::default(),
            slots: Default::default(),
            shared: Default::default(),
            cache: [Mutex::new(0), Mutex::new(0)],
        };
        begin(&file.head, &file.slots, 0);
        file.fill(0);
        file.fill(1);
        Arc::new(file)
    }

    fn fill(&self, unit: usize) {
        let ticket = ticket(&self.head);
        let bytes = self.cache[unit].lock().unwrap();
        fill(&self.head, &self.slots, ticket, (unit as u64, 0, SLOT_BYTES), |slot| {
            self.shared[slot].store(*bytes, Relaxed);
        });
    }

    fn write(&self, unit: usize, value: u64) {
        let mut bytes = self.cache[unit].lock().unwrap();
        unit_changes(&self.head, &self.slots, unit as u64);
        *bytes = value;
    }

    /// Both units as a program reads them.
    fn read(&self) -> Option<[u64; 2]> {
        let mut found = [9; 2];
        let copy = |slot: usize, _, _| found[slot] = self.shared[slot].load(Relaxed);
        read(&self.head, &self.slots, (0, 2 * UNIT), || 0, copy).ok().map(|_| found)
    }

    fn read_first(&self) -> Option<u64> {
        let mut found = 9;
        let copy = |slot: usize, _, _| found = self.shared[slot].load(Relaxed);
        read(&self.head, &self.slots, (0, UNIT), || 0, copy).ok().map(|_| found)
    }
}

/// Goal: a read that begins after a write has returned does not see the former bytes, also while the unit is filled
/// anew. Method: every interleaving of a fill with a write and a read behind it.
#[test]
fn a_write_that_returned_is_seen() {
    loom::model(|| {
        let file = File::new();
        let filler = file.clone();
        let thread = loom::thread::spawn(move || filler.fill(0));
        file.write(0, 1);
        let found = file.read_first();
        thread.join().unwrap();
        assert!(found.is_none_or(|found| found == 1), "an old byte was read");
    });
}

/// Goal: a read of two units sees all or nothing of a write that takes the file, with fills in its middle. Method:
/// every interleaving.
#[test]
fn a_write_of_two_units_is_seen_whole() {
    loom::model(|| {
        let file = File::new();
        let writer = file.clone();
        let thread = loom::thread::spawn(move || {
            block(&writer.head);
            writer.write(0, 1);
            writer.fill(0);
            writer.write(1, 1);
            unblock(&writer.head);
        });
        let found = file.read();
        thread.join().unwrap();
        assert!(found.is_none_or(|f| f == [0, 0] || f == [1, 1]), "half of a write: {found:?}");
    });
}

/// Goal: of two writes, one after the other, the second is not seen without the first. Method: every interleaving with
/// fills behind each.
#[test]
fn writes_are_seen_in_order() {
    loom::model(|| {
        let file = File::new();
        let writer = file.clone();
        let thread = loom::thread::spawn(move || {
            writer.write(0, 1);
            writer.write(1, 1);
            writer.fill(1);
        });
        let found = file.read();
        thread.join().unwrap();
        assert!(found.is_none_or(|f| f != [0, 1]), "the second without the first: {found:?}");
    });
}

/// Goal: nothing that a fill publishes after everything became void is shown. Method: every interleaving of a fill of
/// what was right before with the event.
#[test]
fn a_late_fill_shows_nothing() {
    loom::model(|| {
        let file = File::new();
        let filler = file.clone();
        let thread = loom::thread::spawn(move || filler.fill(0));
        all_change(&file.head);
        let ticket = super::ticket(&file.head);
        assert_eq!(ticket.epoch, 2);
        thread.join().unwrap();
        // The filler either took its ticket before the event, or looked at the cache after it.
        let shown = file.read_first().is_some();
        let epoch = file.slots[0].epoch.load(SeqCst);
        assert_eq!(shown, epoch == 2);
    });
}

/// Goal: a size is shown only if it has not changed since it was read. Method: every interleaving of a change with a
/// thread that shows the size, which reads it after it took its ticket.
#[test]
fn an_old_size_is_not_shown() {
    loom::model(|| {
        let file = File::new();
        let size = Arc::new(AtomicU64::new(10));
        let (shower, looked) = (file.clone(), size.clone());
        let thread = loom::thread::spawn(move || {
            let ticket = ticket(&shower.head);
            show_size(&shower.head, ticket, looked.load(SeqCst), 1);
        });
        size_changes(&file.head);
        size.store(20, SeqCst);
        size_changes(&file.head);
        let found = read(&file.head, &file.slots, (15, 100), || 0, |_, _, _| {});
        thread.join().unwrap();
        assert!(found != Ok(0), "a read ended at the old end");
    });
}

/// Goal: the tests above can fail. Method: a writer that changes the bytes before the slot is void.
#[test]
#[should_panic(expected = "an old byte was read")]
fn a_write_that_tells_late_is_found() {
    loom::model(|| {
        let file = File::new();
        let filler = file.clone();
        let thread = loom::thread::spawn(move || filler.fill(0));
        *file.cache[0].lock().unwrap() = 1;
        let found = file.read_first();
        thread.join().unwrap();
        assert!(found.is_none_or(|found| found == 1), "an old byte was read");
    });
}
