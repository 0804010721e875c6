//! `Survival`: what may be found after a crash.
//!
//! Owns, from the changes that the reference reports: for each name, attribute and byte the set of values that a
//! crash may leave. Does not own: how the state is read (`observe`).
//!
//! There are two levels. *Written*: the processes are killed, the machine continues; every acknowledged change is
//! there, but data written into the mount's cache may be there in part. *Stable*: power is lost; data covered by an
//! fsync is there, and any later change may be there. At both levels the calls under way may have happened.
//!
//! The sets are for each item, so the check does not require an order that the file system keeps but did not promise;
//! that a rename is one event is required through the number of names that an inode must have.

use crate::observe::{Found, Tree};
use crate::op::Name;
use crate::reference::{Body, Effect, Reach, Reference, UNKNOWN};
use amphi_types::{Ino, Kind};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The kinds of crash, by what they spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Changes that a server acknowledged survive.
    Written,
    /// Synced changes survive.
    Stable,
}

/// Possible bytes of a file.
#[derive(Clone, Debug, Default)]
struct Content {
    base: Vec<u8>,
    shortest: u64,
    longest: u64,
    /// Writes and zeroed ranges that may or may not be there.
    later: Vec<(u64, Rc<[u8]>)>,
    zeroed: Vec<(u64, u64)>,
}

impl Content {
    fn settled(bytes: Vec<u8>) -> Content {
        let len = bytes.len() as u64;
        Content { base: bytes, shortest: len, longest: len, later: Vec::new(), zeroed: Vec::new() }
    }

    /// Removes `start..end` from the possible contents.
    fn clear(&mut self, start: u64, end: u64) {
        let mut kept = Vec::new();
        for (at, bytes) in std::mem::take(&mut self.later) {
            let stop = at + bytes.len() as u64;
            if at < start {
                let n = (start.min(stop) - at) as usize;
                kept.push((at, bytes[..n].into()));
            }
            if stop > end {
                let from = end.max(at);
                kept.push((from, bytes[(from - at) as usize..].into()));
            }
        }
        self.later = kept;
        let zeroed = std::mem::take(&mut self.zeroed);
        for (a, b) in zeroed {
            self.zeroed.extend([(a, b.min(start)), (a.max(end), b)].into_iter().filter(|(a, b)| a < b));
        }
    }

    fn certain_write(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        self.clear(at, end);
        if self.base.len() < end as usize {
            self.base.resize(end as usize, 0);
        }
        self.base[at as usize..end as usize].copy_from_slice(bytes);
        self.shortest = self.shortest.max(end);
        self.longest = self.longest.max(end);
    }

    fn certain_cut(&mut self, size: u64) {
        self.clear(size, u64::MAX);
        self.base.resize(size as usize, 0);
        (self.shortest, self.longest) = (size, size);
    }

    fn certain_zero(&mut self, start: u64, end: u64) {
        self.clear(start, end);
        let stop = (end as usize).min(self.base.len());
        if (start as usize) < stop {
            self.base[start as usize..stop].fill(0);
        }
    }

    fn possible_write(&mut self, at: u64, bytes: &[u8]) {
        self.later.push((at, bytes.into()));
        self.longest = self.longest.max(at + bytes.len() as u64);
    }

    fn possible_cut(&mut self, size: u64) {
        self.zeroed.push((size, u64::MAX));
        self.shortest = self.shortest.min(size);
        self.longest = self.longest.max(size);
    }

    /// The error of `found`, if there is one.
    fn judge(&self, found: &[u8]) -> Option<String> {
        let len = found.len() as u64;
        if len < self.shortest || len > self.longest {
            return Some(format!("has {len} bytes, allowed are {} to {}", self.shortest, self.longest));
        }
        let mut good: Vec<bool> =
            found.iter().enumerate().map(|(i, b)| *b == self.base.get(i).copied().unwrap_or(0)).collect();
        for (at, bytes) in &self.later {
            for (i, b) in bytes.iter().enumerate() {
                let i = *at as usize + i;
                if i < found.len() && found[i] == *b {
                    good[i] = true;
                }
            }
        }
        for &(a, b) in &self.zeroed {
            for i in (a.min(len) as usize)..(b.min(len) as usize) {
                good[i] |= found[i] == 0;
            }
        }
        let first = good.iter().position(|g| !g)?;
        let bad = good.iter().filter(|g| !**g).count();
        let zeros = if found[first] == 0 { ", a zero" } else { "" };
        Some(format!("{bad} of {len} bytes are none that may be there, the first at {first}{zeros}"))
    }
}

/// Values of one item: those that may be found, the present one last.
type Values<T> = Vec<T>;

/// The possible states after one level of crash.
#[derive(Clone, Debug)]
pub struct Survival {
    level: Level,
    names: BTreeMap<(Ino, Name), Values<Option<Ino>>>,
    /// Fewest and most names of an inode.
    links: BTreeMap<Ino, (u32, u32)>,
    attrs: BTreeMap<Ino, Values<(u16, u32, u32)>>,
    xattrs: BTreeMap<(Ino, Name), Values<Option<Vec<u8>>>>,
    content: BTreeMap<Ino, Content>,
}

fn attrs_of(now: &Reference, ino: Ino) -> Option<(u16, u32, u32)> {
    now.nodes.get(&ino).map(|n| (n.perm, n.uid, n.gid))
}

impl Survival {
    /// The survival of exactly the state `now`.
    pub fn settled(level: Level, now: &Reference) -> Survival {
        let mut s = Survival {
            level,
            names: BTreeMap::new(),
            links: BTreeMap::new(),
            attrs: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            content: BTreeMap::new(),
        };
        for (ino, node) in &now.nodes {
            s.attrs.extend(attrs_of(now, *ino).map(|a| (*ino, vec![a])));
            s.xattrs.extend(node.xattrs.iter().map(|(n, v)| ((*ino, n.clone()), vec![Some(v.clone())])));
            let links = if node.kind == Kind::Dir { 1 } else { node.nlink };
            s.links.insert(*ino, (links, links));
            match &node.body {
                Body::Dir(entries, _) => {
                    s.names.extend(entries.iter().map(|(n, i)| ((*ino, n.clone()), vec![Some(*i)])));
                }
                Body::File(bytes) => drop(s.content.insert(*ino, Content::settled(bytes.clone()))),
                _ => {}
            }
        }
        s.links.remove(&now.root);
        s
    }

    /// Takes the effects of a call that led to `now`. `acknowledged`: it returned; otherwise it may have happened.
    pub fn apply(&mut self, effects: &[Effect], now: &Reference, acknowledged: bool) {
        let certain = acknowledged && self.level == Level::Written;
        let mut bound: BTreeMap<(Ino, Name), Option<Ino>> = BTreeMap::new();
        for effect in effects {
            match effect {
                // If one call binds a name several times, only the last binding is ever visible.
                Effect::Bind(dir, name, to) => drop(bound.insert((*dir, name.clone()), *to)),
                Effect::Links(ino, n) => {
                    let (least, most) = self.links.get(ino).copied().unwrap_or((0, 0));
                    let new = if certain { (*n, *n) } else { (least.min(*n), most.max(*n)) };
                    self.links.insert(*ino, new);
                }
                Effect::Attr(ino) => {
                    if let Some(a) = attrs_of(now, *ino) {
                        put(self.attrs.entry(*ino).or_default(), a, certain);
                    }
                }
                Effect::Xattr(ino, name) => {
                    let value = now.nodes.get(ino).and_then(|n| n.xattrs.get(name)).cloned();
                    put(self.xattrs.entry((*ino, name.clone())).or_insert_with(|| vec![None]), value, certain);
                }
                Effect::Empty(ino) => drop(self.content.insert(*ino, Content::default())),
                Effect::Write(ino, at, bytes, reach) => {
                    let content = self.content.entry(*ino).or_default();
                    let needed = if self.level == Level::Written { Reach::Server } else { Reach::Disk };
                    if acknowledged && *reach >= needed {
                        content.certain_write(*at, bytes);
                    } else {
                        content.possible_write(*at, bytes);
                    }
                }
                Effect::Cut(ino, size) => {
                    let content = self.content.entry(*ino).or_default();
                    if certain { content.certain_cut(*size) } else { content.possible_cut(*size) }
                }
                Effect::Zero(ino, start, end) => {
                    let content = self.content.entry(*ino).or_default();
                    if certain { content.certain_zero(*start, *end) } else { content.zeroed.push((*start, *end)) }
                }
                Effect::Synced(ino) if acknowledged => {
                    if let Ok(bytes) = now.bytes(*ino) {
                        self.content.insert(*ino, Content::settled(bytes.clone()));
                    }
                    self.file_synced(*ino, now);
                }
                Effect::Findable(ino) if acknowledged => self.file_synced(*ino, now),
                Effect::SyncedDir(dir) if acknowledged => self.dir_synced(*dir, now),
                Effect::SyncedAll if acknowledged => *self = Survival::settled(self.level, now),
                Effect::Synced(_) | Effect::Findable(_) | Effect::SyncedDir(_) | Effect::SyncedAll => {}
            }
        }
        for (key, to) in bound {
            put(self.names.entry(key).or_insert_with(|| vec![None]), to, certain);
        }
    }

    fn file_synced(&mut self, ino: Ino, now: &Reference) {
        self.inode_synced(ino, now);
        let names = now.names_of(ino);
        if let [(dir, name)] = &names[..] {
            self.name_synced(*dir, name, ino);
            self.way_synced(*dir, now);
            self.links.insert(ino, (1, 1));
        } else if let Some((least, _)) = self.links.get_mut(&ino) {
            *least = (*least).max(names.len().min(1) as u32);
        }
    }

    fn inode_synced(&mut self, ino: Ino, now: &Reference) {
        self.attrs.extend(attrs_of(now, ino).map(|a| (ino, vec![a])));
        for ((i, _), values) in self.xattrs.iter_mut().filter(|((i, _), _)| *i == ino) {
            debug_assert_eq!(*i, ino);
            values.drain(..values.len() - 1);
        }
    }

    fn name_synced(&mut self, dir: Ino, name: &Name, to: Ino) {
        self.names.insert((dir, name.clone()), vec![Some(to)]);
    }

    /// The directory itself can be found.
    fn way_synced(&mut self, dir: Ino, now: &Reference) {
        let way = now.path_of(dir);
        for (parent, name) in way {
            let child = now.dir(parent).ok().and_then(|(e, _)| e.get(&name).copied());
            if let Some(child) = child {
                self.name_synced(parent, &name, child);
                self.links.insert(child, (1, 1));
            }
        }
    }

    fn dir_synced(&mut self, dir: Ino, now: &Reference) {
        for (_, values) in self.names.range_mut((dir, Vec::new())..).take_while(|((d, _), _)| *d == dir) {
            values.drain(..values.len() - 1);
        }
        self.inode_synced(dir, now);
        self.way_synced(dir, now);
        let children: Vec<Ino> = now.dir(dir).map(|(e, _)| e.values().copied().collect()).unwrap_or_default();
        for child in children {
            let n = now.names_of(child);
            if n.iter().all(|(d, _)| *d == dir) {
                // A name that it lost in another directory may come back.
                let may_be =
                    |(place, values): &(&(Ino, Name), &Values<_>)| place.0 != dir && values.contains(&Some(child));
                let elsewhere = self.names.iter().filter(may_be).count();
                self.links.insert(child, (n.len() as u32, (n.len() + elsewhere) as u32));
            }
        }
    }

    /// The differences of `tree`: everything that must not be there, and everything that is missing.
    pub fn judge(&self, tree: &Tree) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut count: BTreeMap<Ino, u32> = BTreeMap::new();
        for (dir, found) in &tree.nodes {
            if let Found::Dir(entries) = &found.body {
                self.judge_names(tree, *dir, entries, &mut wrong);
                entries.values().for_each(|i| *count.entry(*i).or_default() += 1);
            }
        }
        for (ino, (least, most)) in self.links.iter().filter(|(i, _)| **i != UNKNOWN) {
            let n = count.get(ino).copied().unwrap_or(0);
            if n < *least || n > *most {
                wrong.push(format!("inode {ino} has {n} names, allowed are {least} to {most}"));
            }
        }
        for (ino, found) in &tree.nodes {
            let path = tree.path(*ino);
            let n = count.get(ino).copied().unwrap_or(0);
            if found.seen.kind != Kind::Dir && found.seen.nlink != n {
                wrong.push(format!("{path}: link count {} with {n} names", found.seen.nlink));
            }
            let seen = (found.seen.perm, found.seen.uid, found.seen.gid);
            if let Some(allowed) = self.attrs.get(ino)
                && !allowed.contains(&seen)
            {
                wrong.push(format!("{path}: permissions and owner {seen:?}, allowed are {allowed:?}"));
            }
            self.judge_xattrs(*ino, &path, found, &mut wrong);
            // A file that was being made has an unknown number.
            let content = self.content.get(ino).or_else(|| self.content.get(&UNKNOWN));
            if let (Found::File(bytes), Some(content)) = (&found.body, content)
                && let Some(what) = content.judge(bytes)
            {
                wrong.push(format!("{path} (inode {ino}): {what}"));
            }
        }
        wrong
    }

    fn judge_names(&self, tree: &Tree, dir: Ino, entries: &BTreeMap<Name, Ino>, wrong: &mut Vec<String>) {
        let known = self.names.range((dir, Vec::new())..).take_while(|((d, _), _)| *d == dir).map(|((_, n), _)| n);
        let names: BTreeSet<&Name> = known.chain(entries.keys()).collect();
        for name in names {
            let found = entries.get(name).copied();
            let allowed = self.names.get(&(dir, name.clone()));
            let good = match (allowed, found) {
                (None, found) => found.is_none(),
                (Some(allowed), Some(ino)) => {
                    let new = allowed.contains(&Some(UNKNOWN)) && !self.attrs.contains_key(&ino);
                    new || allowed.contains(&Some(ino))
                }
                (Some(allowed), None) => allowed.contains(&None),
            };
            if !good {
                let (path, name) = (tree.path(dir), String::from_utf8_lossy(name));
                let allowed = allowed.map(Vec::as_slice).unwrap_or(&[None]);
                wrong.push(format!("{path}/{name} (in {dir}) leads to {found:?}, allowed are {allowed:?}"));
            }
        }
    }

    fn judge_xattrs(&self, ino: Ino, path: &str, found: &crate::observe::Node, wrong: &mut Vec<String>) {
        let known = self.xattrs.range((ino, Vec::new())..).take_while(|((i, _), _)| *i == ino).map(|((_, n), _)| n);
        let names: BTreeSet<&Name> = known.chain(found.xattrs.keys()).collect();
        for name in names {
            let value = found.xattrs.get(name).cloned();
            let good = match self.xattrs.get(&(ino, name.clone())) {
                Some(allowed) => allowed.contains(&value),
                None => value.is_none(),
            };
            if !good {
                let (name, len) = (String::from_utf8_lossy(name), value.map(|v| v.len()));
                wrong.push(format!("{path}: attribute {name} of {len:?} bytes is none that may be there"));
            }
        }
    }
}

fn put<T>(values: &mut Values<T>, new: T, certain: bool) {
    if certain {
        values.clear();
    }
    values.push(new);
}

#[cfg(test)]
mod tests;
