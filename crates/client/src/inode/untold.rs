//! `Untold`: failures of files that are no longer in the table, which were not reported to all who have to get them.
//!
//! Owns: the error of each such file, by inode, until a program opens the file again and gets the report, or the file
//! is removed. Does not own: the errors of files in the table (`failures`).
//!
//! Bound: `UNTOLD_MAX` files. If there are more files, the first one is dropped. A program that opens it gets no
//! report, but the exit code of the mount still says that bytes were lost.

use super::failures::Unreported;
use amphi_types::{Errno, Ino};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Most files whose loss is remembered.
const UNTOLD_MAX: usize = 4096;

/// A file.
#[derive(Clone, Copy)]
struct Entry {
    left: Unreported,
    /// Grows with each file that is entered.
    order: u64,
}

#[derive(Default)]
struct State {
    errors: BTreeMap<Ino, Entry>,
    entered: u64,
    /// The error of a file that was dropped for want of room, and that was not reported to a caller that syncs all
    /// files.
    beyond: Option<Errno>,
}

/// Failures that were not reported.
#[derive(Default)]
pub(crate) struct Untold {
    state: Mutex<State>,
    any: AtomicBool,
}

impl Untold {
    /// Called when failures of `ino`, which leaves the table now or has left it, were not reported.
    pub(crate) fn note(&self, ino: Ino, left: Unreported) {
        let mut state = self.state.lock();
        if state.errors.len() >= UNTOLD_MAX
            && !state.errors.contains_key(&ino)
            && let Some(oldest) = state.errors.iter().min_by_key(|(_, entry)| entry.order).map(|(ino, _)| *ino)
        {
            let forgotten = state.errors.remove(&oldest).filter(|entry| entry.left.is_secret);
            state.beyond = forgotten.map(|entry| entry.left.errno).or(state.beyond);
        }
        state.entered += 1;
        let order = state.entered;
        let left = match state.errors.get(&ino).map(|entry| entry.left) {
            Some(before) => Unreported {
                errno: if before.is_owed && !left.is_owed { before.errno } else { left.errno },
                is_owed: before.is_owed || left.is_owed,
                is_secret: before.is_secret || left.is_secret,
            },
            None => left,
        };
        state.errors.insert(ino, Entry { left, order });
        assert!(state.errors.len() <= UNTOLD_MAX, "the losses of {} files are noted", state.errors.len());
        self.any.store(true, SeqCst);
    }

    /// The failures of `ino`, for a file that enters the table now or has lost its last name.
    pub(crate) fn take(&self, ino: Ino) -> Option<Unreported> {
        if !self.any.load(SeqCst) {
            return None;
        }
        let mut state = self.state.lock();
        let error = state.errors.remove(&ino);
        self.any.store(!state.errors.is_empty(), SeqCst);
        error.map(|entry| entry.left)
    }

    /// Called when all losses are being reported to a caller that syncs all files.
    pub(crate) fn told_to_all(&self) {
        let mut state = self.state.lock();
        state.errors.values_mut().for_each(|entry| entry.left.is_secret = false);
        state.beyond = None;
    }

    /// An error that was not reported to a caller that syncs all files either, if there is any.
    pub(crate) fn secret(&self) -> Option<Errno> {
        let state = self.state.lock();
        state.errors.values().find(|entry| entry.left.is_secret).map(|entry| entry.left.errno).or(state.beyond)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each error is returned once, and an error that is dropped because the table is full still counts. Method:
    /// one file more than the table can remember.
    #[test]
    fn each_is_remembered_once() {
        let untold = Untold::default();
        let left = |errno, is_secret| Unreported { errno, is_owed: true, is_secret };
        assert_eq!((untold.take(Ino(1)), untold.secret()), (None, None));
        untold.note(Ino(1), left(Errno::NoSpace, true));
        untold.note(Ino(2), left(Errno::Io, false));
        assert_eq!((untold.take(Ino(1)), untold.take(Ino(1))), (Some(left(Errno::NoSpace, true)), None));
        assert_eq!((untold.secret(), untold.take(Ino(2))), (None, Some(left(Errno::Io, false))));
        (0..=UNTOLD_MAX as u64).for_each(|i| untold.note(Ino(10 + i), left(Errno::NoSpace, true)));
        assert_eq!((untold.take(Ino(10)), untold.take(Ino(11))), (None, Some(left(Errno::NoSpace, true))));
        for i in 2..=UNTOLD_MAX as u64 {
            assert_eq!(untold.take(Ino(10 + i)), Some(left(Errno::NoSpace, true)));
        }
        assert_eq!(untold.secret(), Some(Errno::NoSpace));
        untold.told_to_all();
        assert_eq!(untold.secret(), None);
    }

    /// Goal: a later failure of a file takes nothing back of an earlier one. Method: a server's report that it cannot
    /// write what it has accepted comes after a loss, and a loss that only the front end reports comes after that.
    #[test]
    fn failures_of_one_file_add_up() {
        let untold = Untold::default();
        untold.note(Ino(1), Unreported { errno: Errno::NoSpace, is_owed: true, is_secret: true });
        untold.note(Ino(1), Unreported { errno: Errno::Io, is_owed: true, is_secret: false });
        assert_eq!(untold.secret(), Some(Errno::Io), "bytes were lost");
        untold.told_to_all();
        untold.note(Ino(1), Unreported { errno: Errno::NoSpace, is_owed: false, is_secret: true });
        let all = Unreported { errno: Errno::Io, is_owed: true, is_secret: true };
        assert_eq!((untold.take(Ino(1)), untold.take(Ino(1))), (Some(all), None));
    }
}
