//! `Untold`: lost bytes of files that are not known any more, of which nobody was told.
//!
//! Owns: the error of each such file, by inode, until somebody opens the file again, who is told then, or the file is
//! removed. Does not own: the errors of files that are known (`failures`).
//!
//! Bound: `UNTOLD_MAX` files. Beyond, the one that was entered first is forgotten: who opens it is told nothing, but
//! the end of the mount still says that bytes were lost.

use amphi_types::{Errno, Ino};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Files of which this is remembered.
const UNTOLD_MAX: usize = 4096;

/// A file.
#[derive(Clone, Copy)]
struct Entry {
    errno: Errno,
    /// Counts up with each that is entered.
    order: u64,
    /// Who syncs all files was not told either.
    is_secret: bool,
}

#[derive(Default)]
struct State {
    errors: BTreeMap<Ino, Entry>,
    entered: u64,
    /// Of one that was forgotten for want of room, and that who syncs all files was not told of.
    beyond: Option<Errno>,
}

/// What nobody was told of.
#[derive(Default)]
pub(crate) struct Untold {
    state: Mutex<State>,
    any: AtomicBool,
}

impl Untold {
    /// Nobody was told that bytes of `ino`, which is forgotten now, were lost.
    pub(crate) fn note(&self, ino: Ino, errno: Errno, is_secret: bool) {
        let mut state = self.state.lock();
        if state.errors.len() >= UNTOLD_MAX
            && !state.errors.contains_key(&ino)
            && let Some(oldest) = state.errors.iter().min_by_key(|(_, entry)| entry.order).map(|(ino, _)| *ino)
        {
            let forgotten = state.errors.remove(&oldest).filter(|entry| entry.is_secret);
            state.beyond = forgotten.map(|entry| entry.errno).or(state.beyond);
        }
        state.entered += 1;
        let order = state.entered;
        state.errors.insert(ino, Entry { errno, order, is_secret });
        self.any.store(true, SeqCst);
    }

    /// The error of `ino`, for whoever knows the file from now on, and whether who syncs all files was not told either;
    /// or its last name has gone.
    pub(crate) fn take(&self, ino: Ino) -> Option<(Errno, bool)> {
        if !self.any.load(SeqCst) {
            return None;
        }
        let mut state = self.state.lock();
        let error = state.errors.remove(&ino);
        self.any.store(!state.errors.is_empty(), SeqCst);
        error.map(|entry| (entry.errno, entry.is_secret))
    }

    /// Who syncs all files is told.
    pub(crate) fn told_to_all(&self) {
        let mut state = self.state.lock();
        state.errors.values_mut().for_each(|entry| entry.is_secret = false);
        state.beyond = None;
    }

    /// The error of one of which who syncs all files was not told either, if there is any.
    pub(crate) fn secret(&self) -> Option<Errno> {
        let state = self.state.lock();
        state.errors.values().find(|entry| entry.is_secret).map(|entry| entry.errno).or(state.beyond)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each error is given out once, and what is forgotten for want of room still counts. Method: one file more
    /// than there is room for.
    #[test]
    fn each_is_remembered_once() {
        let untold = Untold::default();
        assert_eq!((untold.take(Ino(1)), untold.secret()), (None, None));
        untold.note(Ino(1), Errno::NoSpace, true);
        untold.note(Ino(2), Errno::Io, false);
        assert_eq!((untold.take(Ino(1)), untold.take(Ino(1))), (Some((Errno::NoSpace, true)), None));
        assert_eq!((untold.secret(), untold.take(Ino(2))), (None, Some((Errno::Io, false))));
        (0..=UNTOLD_MAX as u64).for_each(|i| untold.note(Ino(10 + i), Errno::NoSpace, true));
        assert_eq!((untold.take(Ino(10)), untold.take(Ino(11))), (None, Some((Errno::NoSpace, true))));
        for i in 2..=UNTOLD_MAX as u64 {
            assert_eq!(untold.take(Ino(10 + i)), Some((Errno::NoSpace, true)));
        }
        assert_eq!(untold.secret(), Some(Errno::NoSpace));
        untold.told_to_all();
        assert_eq!(untold.secret(), None);
    }
}
