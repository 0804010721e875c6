//! `Directories`: attributes of directories, in sole mode.
//!
//! The kernel forgets the attributes of a directory with each name that is made or removed there, and with each
//! listing, and asks again. The answer to the change, or to an earlier lookup or listing, has brought these attributes.
//! So the kernel's request for them needs no message. In shared mode the attributes come with a token and are cached
//! under it (`tokens`); this table is for sole mode.
//!
//! Owns: the attributes in the last answer or after the last change, and which changes are under way. Does not own:
//! requests (`coherence::directories`), the caching mode (`sharing`).
//!
//! Invariants: in sole mode only this mount changes a directory. So attributes that are right after its last change
//! stay right until its next one.
//!
//! * Attributes are kept only if request and answer fell into the same time of sole mode. Attributes from a lookup or
//!   listing are kept only if no change of any directory began or ended between the two.
//! * Nothing is shown while a change of that directory is under way, because a program may already have seen the effect
//!   of the change.
//! * Of overlapping changes the one with the highest place in the target's log was the last. If one of the overlapping
//!   changes brought no attributes, nothing is recorded.
//! * A rename touches inodes that it does not name. While a rename is under way nothing is shown, and all records are
//!   dropped. The same holds for the removal of a directory until the answer names it.
//! * A change of a directory with shards changes its shards as well, so it counts like a rename. Its own attributes are
//!   recorded apart from those of other directories, since programs see them joined with those of the shards.
//! * A change whose answer was lost may still be carried out, so nothing is recorded for a while.
//!
//! Bound: 4,096 directories, about 200 bytes each.

use amphi_types::{Attr, Ino};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Most directories that are recorded; when there are more, all are forgotten.
const DIRECTORIES_MAX: usize = 4096;

#[derive(Default)]
struct Entry {
    under_way: usize,
    /// The answer to one of the changes under way had no attributes, or another event happened in between.
    spoiled: bool,
    /// The attributes that the latest of them brought, with its place in the target's log.
    last: Option<(u64, Attr)>,
    /// The number of the caching mode in which all of these changes were sent.
    rule: u64,
    /// The names of the directory lie in shards, so its attributes are only a part of what programs see.
    sharded: bool,
}

#[derive(Default)]
pub(crate) struct State {
    entries: BTreeMap<Ino, Entry>,
    /// Changes under way that may touch any directory.
    wide: usize,
    /// Removals under way, of directories that no answer has named yet.
    removals: usize,
    /// Number of changes that began or ended, and of times that all was forgotten.
    pub(crate) events: u64,
    /// When changes whose result is unknown count as ended, in boot ns.
    pub(crate) unsure_until_ns: u64,
}

impl State {
    pub(crate) fn forget_all(&mut self) {
        self.events += 1;
        self.entries.retain(|_, entry| {
            (entry.spoiled, entry.last) = (true, None);
            entry.under_way > 0
        });
    }

    /// Forgets a directory because it was removed.
    pub(crate) fn forget(&mut self, ino: Ino) {
        self.events += 1;
        if let Some(entry) = self.entries.get_mut(&ino) {
            (entry.spoiled, entry.last) = (true, None);
            if entry.under_way == 0 {
                self.entries.remove(&ino);
            }
        }
    }

    pub(crate) fn make_room(&mut self) {
        if self.entries.len() >= DIRECTORIES_MAX {
            self.forget_all();
        }
    }

    pub(crate) fn begin(&mut self, ino: Ino) {
        self.events += 1;
        self.make_room();
        let entry = self.entries.entry(ino).or_default();
        if entry.under_way == 0 {
            *entry = Entry::default();
        }
        entry.under_way += 1;
    }

    pub(crate) fn begin_wide(&mut self) {
        self.wide += 1;
        self.forget_all();
    }

    pub(crate) fn ended_wide(&mut self) {
        self.wide -= 1;
        self.forget_all();
    }

    pub(crate) fn begin_removal(&mut self, dir: Ino) {
        self.removals += 1;
        self.begin(dir);
    }

    /// Called when a removal of a directory from `dir` has ended. `removed` is the removed directory, if the answer
    /// names it.
    pub(crate) fn ended_removal(&mut self, dir: Ino, rule: u64, after: Option<(u64, Attr)>, removed: Option<Ino>) {
        self.removals -= 1;
        match removed {
            Some(ino) => self.forget(ino),
            None => self.forget_all(),
        }
        self.ended(dir, rule, after);
    }

    /// An answer shows a directory. The request for it was sent when `State::events` was `events`. `sharded`: its names
    /// lie in shards.
    pub(crate) fn shown(&mut self, rule: u64, events: u64, attr: Attr, sharded: bool) {
        let ino = attr.ino;
        let busy = self.wide + self.removals > 0 || self.entries.get(&ino).is_some_and(|entry| entry.under_way > 0);
        if self.events == events && !busy {
            self.make_room();
            self.entries.insert(ino, Entry { last: Some((0, attr)), rule, sharded, ..Entry::default() });
        }
    }

    /// Called when the change of one inode has ended. `after`: the attributes that the answer brought, if they may be
    /// used.
    pub(crate) fn ended(&mut self, ino: Ino, rule: u64, after: Option<(u64, Attr)>) {
        self.events += 1;
        let Some(entry) = self.entries.get_mut(&ino) else { return };
        entry.under_way -= 1;
        entry.spoiled |= after.is_none() || self.wide > 0;
        entry.rule = rule;
        if entry.last.is_none_or(|(place, _)| after.is_some_and(|(newer, _)| newer > place)) {
            entry.last = after;
        }
        if entry.under_way == 0 && entry.spoiled {
            self.entries.remove(&ino);
        }
    }

    /// The attributes of a directory, with names in shards or without.
    pub(crate) fn known(&self, ino: Ino, rule: u64, sharded: bool) -> Option<Attr> {
        let fits = |entry: &&Entry| entry.under_way == 0 && entry.rule == rule && entry.sharded == sharded;
        let entry = self.entries.get(&ino).filter(fits)?;
        entry.last.filter(|_| self.wide + self.removals == 0).map(|(_, attr)| attr)
    }
}

/// The record of directories.
#[derive(Default)]
pub(crate) struct Directories {
    pub(crate) state: Mutex<State>,
    /// A copy of `State::events`, so that requests can read it without the lock.
    pub(crate) events: AtomicU64,
}

/// The state, while it is being changed.
pub(crate) struct Changed<'a> {
    state: MutexGuard<'a, State>,
    events: &'a AtomicU64,
}

impl Directories {
    pub(crate) fn change(&self) -> Changed<'_> {
        Changed { state: self.state.lock(), events: &self.events }
    }
}

impl Deref for Changed<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Changed<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        self.events.store(self.state.events, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_types::{Kind, Timespec};

    /// The kind of a change under way.
    #[derive(Clone, Copy, PartialEq)]
    enum What {
        Of(usize),
        Wide,
        /// The removal of the second directory from the first one.
        Removal,
        /// This is not a change, but a request for the attributes of this directory, with the number of events before
        /// it was sent.
        Question(usize, u64),
    }

    /// A change or request under way. Once it is applied, it also contains the content of its answer.
    type UnderWay = (What, Option<Option<(u64, Attr)>>);

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) % n
        }
    }

    fn attr(nlink: u32) -> Attr {
        let (kind, time) = (Kind::Dir, Timespec::default());
        let (ino, perm, uid, gid, rdev, size, blocks) = (Ino(1), 0, 0, 0, 0, 0, 0);
        Attr {
            ino,
            kind,
            perm,
            nlink,
            uid,
            gid,
            rdev,
            size,
            blocks,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        }
    }

    /// Goal: the record always shows the state after the last change, whatever the order of the answers, and shows
    /// nothing while the state may be different. If no changes overlap, the record always shows the state. Method:
    /// random changes of two directories and requests for their attributes, each applied at some moment between request
    /// and answer. Some concern all directories, some are removals, and some have answers without attributes. The
    /// record is compared with the directories themselves.
    #[test]
    fn the_last_change_wins() {
        let (mut shown, mut overtaken, mut kept) = (0, 0, 0);
        for seed in 0..300 {
            let mut random = Random(seed);
            let mut state = State::default();
            let mut truth = [0u32; 2];
            let mut place = 0;
            let mut all: Vec<UnderWay> = Vec::new();
            for _ in 0..400 {
                match random.below(4) {
                    0 if all.len() < 4 => {
                        let at = random.below(2) as usize;
                        let what = match random.below(24) {
                            0 | 1 => What::Wide,
                            2 | 3 => What::Removal,
                            4..10 => What::Question(at, state.events),
                            _ => What::Of(at),
                        };
                        match what {
                            What::Wide => state.begin_wide(),
                            What::Removal => state.begin_removal(Ino(0)),
                            What::Of(at) => state.begin(Ino(at as u64)),
                            What::Question(..) => {}
                        }
                        all.push((what, None));
                    }
                    1 if !all.is_empty() => {
                        let n = random.below(all.len() as u64) as usize;
                        if all[n].1.is_none() {
                            place += 1;
                            let brings = match all[n].0 {
                                What::Wide | What::Removal => {
                                    truth.iter_mut().for_each(|links| *links += 1);
                                    (all[n].0 == What::Removal).then_some(0)
                                }
                                What::Of(at) => {
                                    truth[at] += 1;
                                    Some(at)
                                }
                                What::Question(at, _) => Some(at),
                            };
                            let brings = brings.filter(|_| random.below(20) > 0);
                            all[n].1 = Some(brings.map(|at| (place, attr(truth[at]))));
                        }
                    }
                    2 if !all.is_empty() => {
                        let n = random.below(all.len() as u64) as usize;
                        if let (what, Some(brings)) = all[n] {
                            all.remove(n);
                            match what {
                                What::Wide => state.ended_wide(),
                                What::Removal => {
                                    let removed = (random.below(4) > 0).then_some(Ino(1));
                                    state.ended_removal(Ino(0), 1, brings, removed);
                                }
                                What::Of(at) => {
                                    let later = brings.is_some_and(|(_, a)| a.nlink < truth[at]);
                                    overtaken += usize::from(later);
                                    state.ended(Ino(at as u64), 1, brings);
                                }
                                What::Question(at, events) => {
                                    if let Some((_, attr)) = brings {
                                        state.shown(1, events, Attr { ino: Ino(at as u64), ..attr }, false);
                                        kept += usize::from(state.known(Ino(at as u64), 1, false).is_some());
                                    }
                                }
                            }
                        }
                    }
                    _ => {}
                }
                for at in 0..2 {
                    let known = state.known(Ino(at as u64), 1, false);
                    let touches = |what: &What| match what {
                        What::Of(of) => *of == at,
                        What::Wide | What::Removal => true,
                        What::Question(..) => false,
                    };
                    let busy = all.iter().any(|(what, _)| touches(what));
                    assert!(known.is_none() || !busy, "seed {seed}: a change is under way");
                    assert!(known.is_none_or(|a| a.nlink == truth[at]), "seed {seed}: {known:?}, {truth:?}");
                    assert_eq!(state.known(Ino(at as u64), 3, false), None, "another rule");
                    shown += usize::from(known.is_some());
                }
            }
        }
        assert!(shown > 10_000 && overtaken > 1000 && kept > 300, "{shown} shown, {overtaken} overtaken, {kept} kept");
    }
}
