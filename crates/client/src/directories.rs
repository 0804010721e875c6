//! Attributes of directories in which this mount has just changed a name, while it is alone.
//!
//! The kernel forgets what it knows of a directory with each name that is made or removed there, and asks again. The answer to the change
//! brings the attributes, so that question needs no message. In company they come with a token and are cached under it (`tokens`); here
//! is what is kept alone.
//!
//! Owns: what the last change brought, and which changes are under way. Does not own: requests, the rule (`company`).
//!
//! Invariants: alone, nothing but requests of this mount changes a directory, so what was right after the last change stays right
//! until the next one. Kept is only what was asked for and answered under one alone rule, and nothing is shown while a change of
//! that directory is under way: somebody may have seen it already. Of changes that overlap the one with the highest place in the
//! target's log was the last; if one of them brought nothing, nothing is kept. Changes that touch inodes that they do not name (rmdir, rename)
//! keep everything from being shown, and forget all. A change whose answer was lost may still happen: nothing is kept for a while.
//! Numbers: 4,096 directories, about 200 bytes each.

use crate::core::Core;
use amphi_dlm::TokenKey;
use amphi_types::{Attr, Ino};
use amphi_wire::{DirectoryAfter, Request};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Directories known; beyond, all are forgotten.
const DIRECTORIES_MAX: usize = 4096;

#[derive(Default)]
struct Entry {
    under_way: usize,
    /// One of the changes under way brought nothing, or came between.
    spoiled: bool,
    /// What the last one of them in the log brought, with its place there.
    last: Option<(u64, Attr)>,
    /// The rule under which all of them were asked for.
    rule: u64,
}

#[derive(Default)]
struct State {
    entries: BTreeMap<Ino, Entry>,
    /// Changes under way that may touch any directory.
    wide: usize,
    /// When changes of which nobody knows whether they will happen count as ended, boot ns.
    unsure_until_ns: u64,
}

impl State {
    fn forget_all(&mut self) {
        self.entries.retain(|_, entry| {
            (entry.spoiled, entry.last) = (true, None);
            entry.under_way > 0
        });
    }

    fn begin(&mut self, ino: Ino) {
        if self.entries.len() >= DIRECTORIES_MAX {
            self.forget_all();
        }
        let entry = self.entries.entry(ino).or_default();
        if entry.under_way == 0 {
            *entry = Entry::default();
        }
        entry.under_way += 1;
    }

    fn begin_wide(&mut self) {
        self.wide += 1;
        self.forget_all();
    }

    fn ended_wide(&mut self) {
        self.wide -= 1;
        self.forget_all();
    }

    /// The change of one inode has ended and has brought `after`, if that counts.
    fn ended(&mut self, ino: Ino, rule: u64, after: Option<(u64, Attr)>) {
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

    fn known(&self, ino: Ino, rule: u64) -> Option<Attr> {
        let entry = self.entries.get(&ino).filter(|entry| entry.under_way == 0 && entry.rule == rule)?;
        entry.last.filter(|_| self.wide == 0).map(|(_, attr)| attr)
    }
}

/// What is known of directories.
#[derive(Default)]
pub(crate) struct Directories {
    state: Mutex<State>,
}

enum Reach {
    One(Ino),
    /// Inodes that the request does not name, too.
    Wide,
}

/// A change under way. Dropped without an answer, it may still happen.
pub(crate) struct Change {
    core: Arc<Core>,
    rule: u64,
    reach: Reach,
    answered: bool,
}

/// To be called before a request is sent that changes what `keys` show.
pub(crate) fn changing(core: &Arc<Core>, op: &Request, keys: &[TokenKey]) -> Option<Change> {
    let attributes = |key: &TokenKey| if let TokenKey::Attributes(ino) = key { Some(*ino) } else { None };
    let ino = keys.iter().find_map(attributes)?;
    let mut state = core.directories.state.lock();
    let reach = if matches!(op, Request::RmDir { .. } | Request::Rename { .. }) {
        state.begin_wide();
        Reach::Wide
    } else {
        state.begin(ino);
        Reach::One(ino)
    };
    drop(state);
    Some(Change { core: core.clone(), rule: core.company.rule(), reach, answered: false })
}

impl Change {
    /// The answer has come, with the attributes of the directory if the server knew them.
    pub(crate) fn ends(&mut self, after: Option<&DirectoryAfter>) {
        self.answered = true;
        let mut state = self.core.directories.state.lock();
        match self.reach {
            Reach::Wide => state.ended_wide(),
            Reach::One(ino) => {
                let alone = self.rule & 1 == 1 && self.core.company.rule() == self.rule;
                let fits = |after: &&DirectoryAfter| alone && after.inode.attr.ino == ino;
                let after = after.filter(fits).map(|after| (after.place, after.inode.attr));
                state.ended(ino, self.rule, after);
            }
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        if !self.answered {
            self.ends(None);
            let due = self.core.clock.boot_ns().saturating_add(crate::tokens::OPEN_END_NS);
            let mut state = self.core.directories.state.lock();
            state.unsure_until_ns = state.unsure_until_ns.max(due);
            state.forget_all();
        }
    }
}

/// The attributes of a directory, if this mount is alone and knows them.
pub(crate) fn attr(core: &Core, ino: Ino) -> Option<Attr> {
    let rule = core.company.rule();
    if rule & 1 == 0 {
        return None;
    }
    let state = core.directories.state.lock();
    let attr = state.known(ino, rule)?;
    (state.unsure_until_ns == 0 || core.clock.boot_ns() >= state.unsure_until_ns).then_some(attr)
}

/// Nothing that is known counts any more.
pub(crate) fn lose(core: &Core) {
    core.directories.state.lock().forget_all();
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_types::{Kind, Timespec};

    /// A change under way: of which directory, or wide; once it is applied, what its answer will bring.
    type UnderWay = (Option<usize>, Option<Option<(u64, Attr)>>);

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

    /// Goal: what is shown is always what the last change left, whatever order answers come in, and nothing while somebody may know
    /// better; without overlaps it is shown always. Method: random changes of two directories, each applied between question and answer,
    /// some wide, some whose answers bring nothing, against the directories themselves.
    #[test]
    fn the_last_change_wins() {
        let (mut shown, mut overtaken) = (0, 0);
        for seed in 0..300 {
            let mut random = Random(seed);
            let mut state = State::default();
            let mut truth = [0u32; 2];
            let mut place = 0;
            let mut all: Vec<UnderWay> = Vec::new();
            for _ in 0..400 {
                match random.below(4) {
                    0 if all.len() < 4 => {
                        let wide = random.below(12) == 0;
                        let at = random.below(2) as usize;
                        if wide {
                            state.begin_wide()
                        } else {
                            state.begin(Ino(at as u64))
                        }
                        all.push(((!wide).then_some(at), None));
                    }
                    1 if !all.is_empty() => {
                        let n = random.below(all.len() as u64) as usize;
                        if all[n].1.is_none() {
                            place += 1;
                            match all[n].0 {
                                Some(at) => truth[at] += 1,
                                None => truth.iter_mut().for_each(|links| *links += 1),
                            }
                            let brings = all[n].0.filter(|_| random.below(20) > 0);
                            all[n].1 = Some(brings.map(|at| (place, attr(truth[at]))));
                        }
                    }
                    2 if !all.is_empty() => {
                        let n = random.below(all.len() as u64) as usize;
                        if let (at, Some(brings)) = all[n] {
                            all.remove(n);
                            match at {
                                Some(at) => {
                                    let later = brings.is_some_and(|(_, a)| a.nlink < truth[at]);
                                    overtaken += usize::from(later);
                                    state.ended(Ino(at as u64), 1, brings);
                                }
                                None => state.ended_wide(),
                            }
                        }
                    }
                    _ => {}
                }
                for at in 0..2 {
                    let known = state.known(Ino(at as u64), 1);
                    let busy = all.iter().any(|(of, _)| of.is_none_or(|of| of == at));
                    assert!(known.is_none() || !busy, "seed {seed}: a change is under way");
                    assert!(known.is_none_or(|a| a.nlink == truth[at]), "seed {seed}: {known:?}, {truth:?}");
                    assert_eq!(state.known(Ino(at as u64), 3), None, "another rule");
                    shown += usize::from(known.is_some());
                }
            }
        }
        assert!(shown > 10_000 && overtaken > 1000, "{shown} shown, {overtaken} overtaken");
    }
}
