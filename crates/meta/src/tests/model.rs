//! Random operations on a cluster of stores and on the reference, compared after each.

use super::Bug;
use super::harness::{Cluster, Items, Rng, dump, recover, replay, same, whole};
use super::reference::{Id, Reference};
use crate::plan::NodeSpec;
use crate::{RenameMode, verify_cluster};
use amphi_types::{Cred, Errno, Ino, Kind, Name, Result, SetAttr, TargetId, TimeSet, Timespec};
use std::collections::BTreeSet;

type Outcomes = BTreeSet<(&'static str, Option<Errno>)>;

pub(super) struct Run {
    pub rng: Rng,
    pub cluster: Cluster,
    reference: Reference,
    /// Inode of each reference node.
    inos: Vec<Ino>,
    outcomes: Outcomes,
}

fn name(rng: &mut Rng) -> Name {
    Name::new(rng.pick(&["a", "b", "c", "d"])).expect("a good name")
}

fn cred(rng: &mut Rng) -> Cred {
    let user = |uid, gid, groups: &[u32]| Cred::new(uid, gid, groups.to_vec());
    rng.pick(&[Cred::root(), Cred::root(), user(10, 10, &[50]), user(20, 20, &[50]), user(30, 30, &[])])
}

fn bits(rng: &mut Rng) -> u16 {
    rng.pick(&[0o777, 0o777, 0o755, 0o700, 0o770, 0o1777, 0o2777, 0o6755, 0o2745, 0o070, 0o604, 0])
}

impl Run {
    pub(super) fn new(seed: u64, targets: u16, hash_mask: u64, bug: Option<Bug>) -> Run {
        let mut cluster = Cluster::new(targets, seed, hash_mask, bug);
        if seed.is_multiple_of(3) {
            cluster.list_through_windows(1, 2);
        }
        cluster.stores.iter_mut().for_each(|store| store.set_counting(true));
        if seed % 4 >= 2 {
            // Every value that may go does.
            cluster.stores.iter_mut().for_each(|store| store.set_values_max(0));
        }
        if seed % 8 >= 4 {
            // Every inode that may go does, before each step.
            cluster.forgets = true;
            cluster.stores.iter_mut().for_each(|store| store.set_inodes_max(0));
        }
        let reference = Reference::new(cluster.now);
        Run { rng: Rng(seed), cluster, reference, inos: vec![Ino::ROOT], outcomes: Outcomes::new() }
    }

    /// Any node that was not freed; `dirs` prefers directories.
    fn node(&mut self, dirs: bool) -> Id {
        for _ in 0..20 {
            let id = self.rng.below(self.inos.len());
            let node = &self.reference.nodes[id];
            if !node.gone && (!dirs || node.kind == Kind::Dir || self.rng.below(40) == 0) {
                return id;
            }
        }
        0
    }

    fn made(&mut self, what: &'static str, real: Result<Ino>, wanted: Result<Id>) -> std::result::Result<(), String> {
        if let (Ok(ino), Ok(_)) = (real, wanted) {
            self.inos.push(ino);
        }
        self.outcome(what, real.map(|_| ()), wanted.map(|_| ()))
    }

    fn outcome(&mut self, what: &'static str, real: Result<()>, wanted: Result<()>) -> std::result::Result<(), String> {
        self.outcomes.insert((what, wanted.err()));
        if real == wanted { Ok(()) } else { Err(format!("{what} gave {real:?} instead of {wanted:?}")) }
    }

    fn set(&mut self) -> SetAttr {
        let rng = &mut self.rng;
        let mut set = SetAttr { open_for_write: rng.below(4) == 0, kill_suidgid: rng.below(5) == 0, ..<_>::default() };
        let some_time = |rng: &mut Rng| match rng.below(2) {
            0 => TimeSet::Now,
            _ => TimeSet::At(Timespec { sec: rng.below(5000) as i64 - 1000, nsec: rng.below(1_000_000_000) as u32 }),
        };
        for _ in 0..=rng.below(2) {
            match rng.below(6) {
                0 => set.perm = Some(bits(rng)),
                1 => set.uid = Some(rng.pick(&[0, 10, 20])),
                2 => set.gid = Some(rng.pick(&[10, 20, 50])),
                3 => set.size = Some(rng.pick(&[0, 5, 1 << 40, 1 << 63])),
                4 => set.atime = Some(some_time(rng)),
                _ => set.mtime = Some(some_time(rng)),
            }
        }
        set
    }

    /// One random operation, its result compared.
    pub(super) fn step(&mut self) -> std::result::Result<(), String> {
        let now = Timespec { sec: self.cluster.now.sec + 1, nsec: 7 };
        self.cluster.now = now;
        let cred = cred(&mut self.rng);
        let (dir, n) = (self.node(true), name(&mut self.rng));
        let dir_ino = self.inos[dir];
        match self.rng.below(16) {
            0..=4 => {
                let perm = bits(&mut self.rng);
                let spec = match self.rng.below(8) {
                    0..=2 => NodeSpec::dir(perm),
                    3 | 4 => NodeSpec::file(perm),
                    5 => NodeSpec::symlink("over/there"),
                    6 => NodeSpec::node(Kind::Fifo, perm, 0),
                    _ => NodeSpec::node(Kind::CharDev, perm, 259),
                };
                let real = self.cluster.make(&cred, dir_ino, &n, &spec);
                let link = &spec.symlink;
                let wanted = self.reference.make(&cred, dir, n.as_bytes(), spec.kind, perm, link, now);
                self.made("make", real, wanted)
            }
            5 => {
                let real = self.cluster.tmpfile(&cred, dir_ino, 0o644);
                let wanted = self.reference.tmpfile(&cred, dir, 0o644, now);
                self.made("tmpfile", real, wanted)
            }
            6 => {
                let file = self.node(false);
                let real = self.cluster.link(&cred, self.inos[file], dir_ino, &n);
                let wanted = self.reference.link(&cred, file, dir, n.as_bytes(), now);
                self.outcome("link", real, wanted)
            }
            7 | 8 => {
                let rmdir = self.rng.below(2) == 0;
                let real = self.cluster.unlink(&cred, dir_ino, &n, rmdir);
                let wanted = self.reference.unlink(&cred, dir, n.as_bytes(), rmdir, now);
                self.outcome(if rmdir { "rmdir" } else { "unlink" }, real, wanted)
            }
            9..=11 => {
                let (to, to_n) = (self.node(true), name(&mut self.rng));
                let mode = self.rng.pick(&[RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]);
                let whiteout = mode != RenameMode::Exchange && self.rng.below(4) == 0;
                let real = self.cluster.rename(&cred, (dir_ino, &n), (self.inos[to], &to_n), mode, whiteout);
                let wanted = self.reference.rename(&cred, dir, n.as_bytes(), to, to_n.as_bytes(), mode, whiteout, now);
                if let (Ok(Some(ino)), Ok(Some(_))) = (&real, &wanted) {
                    self.inos.push(*ino);
                }
                let as_made = |left: Option<bool>| if left.is_some() { Ok(()) } else { Err(Errno::NoEnt) };
                if let (Ok(real), Ok(wanted)) = (&real, &wanted) {
                    self.outcome("whiteout", as_made(real.map(|_| true)), as_made(wanted.map(|_| true)))?;
                }
                self.outcome("rename", real.map(drop), wanted.map(drop))
            }
            12 => {
                let (node, set) = (self.node(false), self.set());
                let real = self.cluster.setattr(&cred, self.inos[node], &set);
                let wanted = self.reference.setattr(&cred, node, &set, now);
                self.outcome("setattr", real, wanted)
            }
            13 => {
                let node = self.node(false);
                let attr: &[u8] = self.rng.pick(&[b"user.x", b"user.y", b"trusted.z", b"system.other"]);
                let value = vec![self.rng.below(256) as u8; self.rng.pick(&[3, 200])];
                let value = (self.rng.below(3) > 0).then_some(value.as_slice());
                let real = self.cluster.setxattr(&cred, self.inos[node], attr, value);
                let wanted = self.reference.setxattr(&cred, node, attr, value, now);
                self.outcome("xattr", real, wanted)
            }
            14 => {
                self.cluster.forget();
                let real = self.cluster.read(|c| c.store(dir_ino).lookup(&cred, dir_ino, &n).map(|d| d.child));
                let wanted = self.reference.lookup(&cred, dir, n.as_bytes()).map(|id| self.inos[id]);
                if real.is_ok() && real != wanted {
                    return Err("lookup found another inode".into());
                }
                self.outcome("lookup", real.map(|_| ()), wanted.map(|_| ()))?;
                let node = self.node(false);
                let real = self.cluster.may_read(&cred, self.inos[node]);
                let wanted = self.reference.may_read(&cred, node);
                self.outcome("read", real, wanted)
            }
            _ => {
                let node = self.node(false);
                let wanted = if self.reference.nlink(node) == 0 { Ok(()) } else { Err(Errno::Busy) };
                let ino = self.inos[node];
                let real = self.cluster.on(ino, |s, txn| s.remove_inode(ino, txn));
                if wanted.is_ok() {
                    self.reference.nodes[node].gone = true;
                }
                self.outcome("free", real, wanted)
            }
        }
    }

    /// Every node of the reference against the stores.
    fn compare(&mut self) -> std::result::Result<(), String> {
        for (id, node) in self.reference.nodes.iter().enumerate() {
            let ino = self.inos[id];
            let found = self.cluster.read(|c| c.store(ino).inode(ino));
            if node.gone {
                if found != Err(Errno::Stale) {
                    return Err(format!("{ino} was freed and still exists"));
                }
                continue;
            }
            let inode = found.map_err(|e| format!("{ino}: {e}"))?;
            let store = self.cluster.store(ino);
            let real = (inode.kind, inode.perm, inode.owner.uid, inode.owner.gid, inode.size, inode.nlink);
            let wanted = (node.kind, node.perm, node.uid, node.gid, node.size, self.reference.nlink(id));
            if real != wanted || *inode.symlink != *node.symlink {
                return Err(format!("{ino} is {real:?} instead of {wanted:?}"));
            }
            let real = [inode.times.atime, inode.times.mtime, inode.times.ctime];
            let wanted = [node.atime, node.mtime, node.ctime];
            if real != wanted {
                return Err(format!("{ino} has times {real:?} instead of {wanted:?}"));
            }
            let real = store.xattrs.of(ino.local()).map(|(name, value)| (name, value.len()));
            if !real.eq(node.xattrs.iter().map(|(name, value)| (name.as_slice(), value.len()))) {
                return Err(format!("{ino} has other extended attributes"));
            }
            if node.kind == Kind::Dir {
                let mut real: Vec<_> = store.readdir(ino, 0, usize::MAX).map_err(|e| e.to_string())?.0;
                real.sort_by(|a, b| a.name.cmp(&b.name));
                let real = real.iter().map(|e| (e.name.as_bytes(), e.child, e.kind));
                let kind = |c: &Id| self.reference.nodes[*c].kind;
                if !real.eq(node.children.iter().map(|(n, c)| (n.as_slice(), self.inos[*c], kind(c)))) {
                    return Err(format!("{ino} has other entries"));
                }
                if inode.nlink > 0 && inode.dir.parent != self.inos[node.parent] {
                    return Err(format!("{ino} has another parent"));
                }
            }
        }
        for (id, node) in self.reference.nodes.iter().enumerate().filter(|(_, node)| !node.gone) {
            for (name, value) in &node.xattrs {
                if self.cluster.getxattr(&Cred::root(), self.inos[id], name).as_ref() != Ok(value) {
                    return Err(format!("{} has another value of an attribute", self.inos[id]));
                }
            }
        }
        let count: u64 = self.cluster.stores.iter().map(|s| s.inode_count()).sum();
        let wanted = self.reference.nodes.iter().filter(|n| !n.gone).count() as u64;
        if count == wanted { Ok(()) } else { Err(format!("{count} inodes instead of {wanted}")) }
    }
}

/// Runs `steps` random operations; after each, compares results, state, and a store recovered from the log.
fn run(
    seed: u64,
    steps: usize,
    targets: u16,
    bug: Option<Bug>,
    outcomes: &mut Outcomes,
) -> std::result::Result<(), String> {
    // In every other run, names fall into four buckets, so that they collide.
    let hash_mask = if seed.is_multiple_of(2) { u64::MAX } else { 3 << 20 };
    let mut run = Run::new(seed, targets, hash_mask, bug);
    let mut shadows: Vec<(Items, usize)> = vec![(Items::new(), 0); usize::from(targets)];
    for step in 0..steps {
        let at = |e: String| format!("seed {seed}, {targets} targets, step {step}: {e}");
        run.step().map_err(at)?;
        run.compare().map_err(at)?;
        for (t, (items, seen)) in shadows.iter_mut().enumerate() {
            let (store, log) = (&run.cluster.stores[t], &run.cluster.logs[t]);
            log[*seen..].iter().for_each(|txn| replay(items, txn));
            *seen = log.len();
            if dump(&whole(store, items), 1 + step % 7) != *items {
                return Err(at("memory and log differ".into()));
            }
            let mut recovered = recover(TargetId(t as u16), items, hash_mask).map_err(at)?;
            recovered.set_counting(true);
            if !recovered.accounts().eq(store.accounts()) {
                return Err(at("inodes are counted for other accounts than they belong to".into()));
            }
            if !same(&recovered, store) {
                return Err(at("a recovered store differs".into()));
            }
        }
        let stores: Vec<_> = run.cluster.stores.iter().zip(&shadows).map(|(s, (items, _))| whole(s, items)).collect();
        let findings = verify_cluster(&stores.iter().collect::<Vec<_>>());
        if !findings.is_empty() {
            return Err(at(findings.join("; ")));
        }
    }
    if run.cluster.misses > 0 {
        run.outcomes.insert(("absent", None));
    }
    if run.cluster.inode_misses.get() > 0 {
        run.outcomes.insert(("absent inode", None));
    }
    outcomes.append(&mut run.outcomes);
    Ok(())
}

/// Goal: the store equals the reference file system, errno for errno, on one target and over several with parts, and
/// its replayed log always equals its memory. Method: random operations by several users with few names; after each,
/// results, all attributes, entries and extended attributes, the items against the replayed log, a recovered store, and
/// the cluster's invariants are compared. In half of the runs no long value of an attribute stays in memory, and in
/// half no inode that may leave it. Every interesting outcome must have occurred, so that the run tests them.
#[test]
fn random_operations_match_the_reference() {
    let mut outcomes = Outcomes::new();
    for seed in 0..24 {
        for targets in [1, 3] {
            run(seed, 250, targets, None, &mut outcomes).unwrap();
        }
    }
    use Errno::*;
    let wanted: &[(&str, &[Errno])] = &[
        ("make", &[NotDir, Access, Exist, NoEnt, Perm]),
        ("tmpfile", &[NotDir, Access, NoEnt]),
        ("link", &[NotDir, Access, Exist, NoEnt, Perm]),
        ("unlink", &[NotDir, Access, NoEnt, Perm, IsDir]),
        ("rmdir", &[NotDir, Access, NoEnt, Perm, NotEmpty]),
        ("rename", &[NotDir, Access, NoEnt, Perm, IsDir, NotEmpty, Exist, Inval]),
        ("setattr", &[Access, Perm, IsDir, Inval, FileTooBig, NotSupported]),
        ("xattr", &[Access, Perm, NoData, NotSupported]),
        ("lookup", &[NotDir, Access, NoEnt]),
        ("read", &[Access, Loop]),
        ("free", &[Busy]),
        ("absent", &[]),
        ("absent inode", &[]),
    ];
    for (what, errors) in wanted {
        for outcome in errors.iter().copied().map(Some).chain([None]) {
            assert!(outcomes.contains(&(*what, outcome)), "{what} never ended with {outcome:?}");
        }
    }
}

/// Goal: the model check finds bugs. Method: planted ones, in memory and in the log, must make some run fail.
#[test]
fn planted_bugs_are_found() {
    for bug in [Bug::KeptLink, Bug::UnloggedDirectory] {
        let found = (0..8).any(|seed| run(seed, 250, 1, Some(bug), &mut Outcomes::new()).is_err());
        assert!(found, "{bug:?} was not found");
    }
}
