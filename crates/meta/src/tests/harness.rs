//! The harness of the random tests: generator, cluster of stores driven as the server does, shadow of the log.

use super::Bug;
use crate::perm::{self, Want};
use crate::plan::{self, NodeSpec, Place};
use crate::{Facts, MetaStore, Outcome, Part, Refusal, RenameMode, XattrMode};
use amphi_types::item::{ItemStore, Key, Txn, tag};
use amphi_types::layout::directory_target;
use amphi_types::{Cred, Errno, Ino, Kind, Name, Result, SetAttr, TargetId, Timespec};
use std::cell::Cell;
use std::collections::BTreeMap;

/// SplitMix64.
pub(super) struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

pub(super) type Items = BTreeMap<Key, Vec<u8>>;

/// Applies a log record to items.
pub(super) fn replay(items: &mut Items, txn: &Txn) {
    for change in txn.changes() {
        match change.value() {
            Some(value) => items.insert(change.key().to_vec(), value.to_vec()),
            None => items.remove(change.key()),
        };
    }
}

/// A store with all values in memory: those that it lacks are taken from `items`.
pub(super) fn whole(store: &MetaStore, items: &Items) -> MetaStore {
    let mut store = store.clone();
    store.set_values_max(usize::MAX);
    store.set_inodes_max(usize::MAX);
    for (key, value) in items.range(vec![tag::INODE]..vec![tag::INODE + 1]) {
        store.load_absent(key, Some(value)).expect("it loads");
    }
    for (key, value) in items.range(vec![tag::XATTR]..vec![tag::XATTR + 1]) {
        store.load_absent(key, Some(value)).expect("it loads");
    }
    store
}

/// All items of a store, walked in pages of `page` keys as a checkpoint does.
pub(super) fn dump(store: &MetaStore, page: usize) -> Items {
    let mut items = Items::new();
    let mut after = Key::new();
    loop {
        let keys = store.keys_after(&after, page);
        assert!(keys.is_sorted() && keys.first().is_none_or(|first| *first > after), "keys ascend");
        assert!(keys.len() <= page);
        let Some(last) = keys.last() else { return items };
        after = last.clone();
        for key in keys {
            let value = store.value_of(&key).expect("a listed key has a value");
            items.insert(key, value);
        }
    }
}

/// A store recovered from items.
pub(super) fn recover(target: TargetId, items: &Items, hash_mask: u64) -> std::result::Result<MetaStore, String> {
    let mut store = MetaStore::empty(target);
    store.index.hash_mask = hash_mask;
    for (key, value) in items {
        store.load(key, value)?;
    }
    store.loaded()?;
    Ok(store)
}

/// Returns whether two stores are the same but for numbers skipped by recovery and planted bugs.
pub(super) fn same(a: &MetaStore, b: &MetaStore) -> bool {
    let normal = |store: &MetaStore| MetaStore { next_local: 0, planted: None, ..store.clone() };
    normal(a) == normal(b)
}

/// Stores of a cluster, with their logs.
pub(super) struct Cluster {
    pub stores: Vec<MetaStore>,
    /// Inodes leave memory before each step.
    pub forgets: bool,
    /// Every record of each store.
    pub logs: Vec<Vec<Txn>>,
    pub now: Timespec,
    /// Values of attributes that were not in memory when they were read.
    pub misses: u64,
    /// Inodes that were not in memory when they were needed.
    pub inode_misses: Cell<u64>,
}

/// Makes directories with more than `walk_max` entries large ones, which are listed through windows.
pub(super) fn list_through_windows(store: &mut MetaStore, walk_max: usize, window_entries: usize) {
    store.index.walk_max = walk_max;
    store.index.window_entries = window_entries;
}

type Planner<'a> = dyn Fn(&Cluster) -> Result<Vec<Part>> + 'a;

impl Cluster {
    pub fn list_through_windows(&mut self, walk_max: usize, window_entries: usize) {
        self.stores.iter_mut().for_each(|store| list_through_windows(store, walk_max, window_entries));
    }

    pub fn new(targets: u16, seed: u64, hash_mask: u64, bug: Option<Bug>) -> Cluster {
        let now = Timespec { sec: 1000, nsec: 0 };
        let mut cluster =
            Cluster { stores: vec![], forgets: false, logs: vec![], now, misses: 0, inode_misses: Cell::new(0) };
        for t in 0..targets {
            let (mut store, txn) = MetaStore::format(TargetId(t), seed, now, (t == 0).then_some((0, 0)), targets);
            store.index.hash_mask = hash_mask;
            store.planted = bug;
            cluster.stores.push(store);
            cluster.logs.push(vec![txn]);
        }
        cluster
    }

    pub fn store(&self, ino: Ino) -> &MetaStore {
        &self.stores[usize::from(ino.target().0)]
    }

    /// Lets all inodes leave memory that may.
    pub fn forget(&mut self) {
        if self.forgets {
            for store in &mut self.stores {
                store.let_inodes_go(|_| false);
            }
        }
    }

    /// Takes an absent item from the log.
    fn load(&mut self, t: usize, key: &[u8]) {
        let changes = self.logs[t].iter().rev().find_map(|txn| txn.changes().filter(|c| c.key() == key).last());
        let value = changes.and_then(|change| change.value()).expect("an absent item is in the log");
        self.stores[t].load_absent(key, Some(value)).expect("it loads");
    }

    /// Loads inodes that were asked for and are not in memory. Whether there were some.
    fn load_missed(&mut self) -> bool {
        let missed: Vec<Ino> = self.stores.iter().filter_map(MetaStore::take_missed).collect();
        for ino in &missed {
            self.inode_misses.update(|count| count + 1);
            let key = self.store(*ino).inode_key(*ino);
            self.load(usize::from(ino.target().0), &key);
        }
        !missed.is_empty()
    }

    /// Reads, again and again until everything that is needed is in memory.
    pub fn read<T>(&mut self, read: impl Fn(&Cluster) -> T) -> T {
        loop {
            let done = read(self);
            if !self.load_missed() {
                return done;
            }
        }
    }

    /// A change of one store, logged; a failed one must log nothing and change nothing.
    pub fn on<T>(&mut self, ino: Ino, change: impl Fn(&mut MetaStore, &mut Txn) -> Result<T>) -> Result<T> {
        let t = usize::from(ino.target().0);
        self.forget();
        loop {
            let mut txn = Txn::default();
            let before = self.stores[t].clone();
            let result = match self.stores[t].attempt_change(&mut txn, &change) {
                Outcome::Done(result) => result,
                Outcome::Absent(key) => {
                    assert!(txn.is_empty() && before == self.stores[t], "an absent step changed something");
                    self.inode_misses.update(|count| count + 1);
                    self.load(t, &key);
                    continue;
                }
            };
            if result.is_err() {
                assert!(txn.is_empty() && before == self.stores[t], "a failed change changed something");
            }
            self.logs[t].push(txn);
            return result;
        }
    }

    fn facts(&self, ino: Ino) -> Result<Facts> {
        self.store(ino).facts(ino)
    }

    /// Plans and applies over several targets.
    fn coordinate(&mut self, planner: &Planner<'_>) -> Result<()> {
        self.forget();
        let parts = self.read(planner)?;
        let mut by_target: BTreeMap<TargetId, Vec<Part>> = BTreeMap::new();
        for part in parts {
            by_target.entry(part.target()).or_default().push(part);
        }
        self.forget();
        for (t, parts) in &by_target {
            match self.read(|c| c.stores[usize::from(t.0)].check_parts(parts)) {
                Ok(()) => {}
                Err(Refusal::Errno(e)) => return Err(e),
                Err(Refusal::Conflict) => panic!("a conflict without concurrency: {parts:?}"),
            }
        }
        for (t, parts) in &by_target {
            let mut txn = Txn::default();
            self.stores[usize::from(t.0)].apply_parts(parts, self.now, &mut txn);
            assert!(!self.load_missed(), "what was checked is in memory");
            self.logs[usize::from(t.0)].push(txn);
        }
        Ok(())
    }

    fn single(&self) -> bool {
        self.stores.len() == 1
    }

    pub fn make(&mut self, cred: &Cred, dir: Ino, name: &Name, spec: &NodeSpec) -> Result<Ino> {
        let now = self.now;
        if self.single() {
            return self.on(dir, |s, txn| s.make(cred, dir, name, spec, now, txn));
        }
        let pool = self.stores.len() as u16;
        let owner = if spec.kind == Kind::Dir { directory_target(dir, name.as_bytes(), pool) } else { dir.target() };
        let ino = self.on(Ino::new(owner, 1), |s, txn| s.alloc_ino(txn))?;
        self.coordinate(&|c| {
            let exists = c.store(dir).find(dir, name)?.is_some();
            plan::make(cred, &c.facts(dir)?, name, exists, spec, ino)
        })?;
        Ok(ino)
    }

    pub fn link(&mut self, cred: &Cred, ino: Ino, dir: Ino, name: &Name) -> Result<()> {
        let now = self.now;
        if self.single() {
            return self.on(dir, |s, txn| s.link(cred, ino, dir, name, now, txn));
        }
        self.coordinate(&|c| {
            let exists = c.store(dir).find(dir, name)?.is_some();
            plan::link(cred, &c.facts(dir)?, name, exists, &c.facts(ino)?)
        })
    }

    pub fn unlink(&mut self, cred: &Cred, dir: Ino, name: &Name, rmdir: bool) -> Result<()> {
        let now = self.now;
        if self.single() {
            return self.on(dir, |s, txn| match rmdir {
                true => s.rmdir(cred, dir, name, now, txn).map(|_| ()),
                false => s.unlink(cred, dir, name, now, txn).map(|_| ()),
            });
        }
        self.coordinate(&|c| {
            let child = c.facts(c.store(dir).lookup(cred, dir, name)?.child)?;
            let plan = if rmdir { plan::rmdir } else { plan::unlink };
            plan(cred, &c.facts(dir)?, name, &child)
        })
    }

    /// Returns whether `above` is `at` or above it, over all targets.
    fn within(&self, mut at: Ino, above: Ino) -> Result<bool> {
        loop {
            let mut found = false;
            let next = self.store(at).ancestors(at, |dir| {
                found |= dir == above;
                Ok(())
            })?;
            match next {
                _ if found => return Ok(true),
                Some(next) => at = next,
                None => return Ok(false),
            }
        }
    }

    pub fn rename(
        &mut self,
        cred: &Cred,
        (from, from_name): (Ino, &Name),
        (to, to_name): (Ino, &Name),
        mode: RenameMode,
        leaves_whiteout: bool,
    ) -> Result<Option<Ino>> {
        let now = self.now;
        if self.single() && !leaves_whiteout {
            let done = self.on(from, |s, txn| s.rename(cred, from, from_name, to, to_name, mode, now, txn));
            return done.map(|_| None);
        }
        let whiteout = match leaves_whiteout {
            true => Some(self.on(from, |s, txn| s.alloc_ino(txn))?),
            false => None,
        };
        self.coordinate(&|c| {
            let (from_dir, to_dir) = (c.facts(from)?, c.facts(to)?);
            perm::search(cred, &from_dir)?;
            perm::search(cred, &to_dir)?;
            let source = c.facts(c.store(from).lookup(cred, from, from_name)?.child)?;
            if to_dir.nlink == 0 {
                return Err(Errno::NoEnt);
            }
            let target = match c.store(to).find(to, to_name)? {
                Some(entry) => Some(c.facts(entry.child)?),
                None => None,
            };
            match (mode, &target) {
                (RenameMode::NoReplace, Some(_)) => return Err(Errno::Exist),
                (RenameMode::Exchange, None) => return Err(Errno::NoEnt),
                _ => {}
            }
            if c.within(to, source.ino)? {
                return Err(Errno::Inval);
            }
            if let Some(target) = &target
                && c.within(from, target.ino)?
            {
                return Err(if mode == RenameMode::Exchange { Errno::Inval } else { Errno::NotEmpty });
            }
            let from = Place { dir: &from_dir, name: from_name };
            plan::rename(cred, mode, from, &source, Place { dir: &to_dir, name: to_name }, target.as_ref(), whiteout)
        })?;
        // Two names of one inode: nothing happens.
        let left = self.store(from).find(from, from_name)?.map(|entry| entry.child);
        Ok(whiteout.filter(|ino| left == Some(*ino)))
    }

    pub fn tmpfile(&mut self, cred: &Cred, dir: Ino, perm: u16) -> Result<Ino> {
        let now = self.now;
        self.on(dir, |s, txn| s.tmpfile(cred, dir, &NodeSpec::file(perm), now, txn))
    }

    pub fn setattr(&mut self, cred: &Cred, ino: Ino, set: &SetAttr) -> Result<()> {
        let now = self.now;
        self.on(ino, |s, txn| s.setattr(cred, ino, set, now, txn).map(|_| ()))
    }

    pub fn setxattr(&mut self, cred: &Cred, ino: Ino, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let now = self.now;
        self.on(ino, |s, txn| match value {
            Some(value) => s.setxattr(cred, ino, name, value, XattrMode::Set, now, txn),
            None => s.removexattr(cred, ino, name, now, txn),
        })
    }

    /// As the server reads an attribute: a value that is not in memory is taken from the log.
    pub fn getxattr(&mut self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let t = usize::from(ino.target().0);
        loop {
            let value = |c: &Cluster| -> Result<Outcome<Vec<u8>>> {
                match c.stores[t].getxattr(cred, ino, name)? {
                    Outcome::Done(value) => Ok(Outcome::Done(value.to_vec())),
                    Outcome::Absent(key) => Ok(Outcome::Absent(key)),
                }
            };
            let key = match self.read(value)? {
                Outcome::Done(value) => return Ok(value),
                Outcome::Absent(key) => key,
            };
            self.misses += 1;
            self.load(t, &key);
        }
    }

    pub fn may_read(&mut self, cred: &Cred, ino: Ino) -> Result<()> {
        self.forget();
        self.read(|c| c.store(ino).check_open(cred, ino, Want::READ))
    }
}
