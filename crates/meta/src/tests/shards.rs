//! Directories whose names lie in shards: cookies, attributes in common, and the errors that the checker finds.

use super::harness::{dump, recover};
use crate::inode::InodeFlags;
use crate::plan::{self, NodeSpec};
use crate::shared_attrs::LIST;
use crate::store::Dirty;
use crate::{MetaStore, Part, Refusal, repair_cluster, verify_cluster};
use amphi_types::acl::{Entry, Who};
use amphi_types::item::Txn;
use amphi_types::{
    Acl, Acls, Cred, Errno, FileFlags, Ino, Kind, Name, SHARD_COOKIE_SHIFT, SetAttr, TargetId, TimeSet, Timespec,
};
use std::collections::BTreeSet;

const NOW: Timespec = Timespec { sec: 1000, nsec: 0 };

fn name(i: usize) -> Name {
    Name::new(format!("file {i}").into_bytes()).expect("a name")
}

/// A name that lies in this one of `count` shards.
fn name_in(shard: usize, count: usize) -> Name {
    (0..).map(name).find(|name| name.shard(count) == shard).expect("a name for each shard")
}

/// The parts that give a directory these shards.
fn planned(store: &MetaStore, dir: Ino, shards: &[Ino]) -> Vec<Part> {
    let was = store.shared_attrs(dir).expect("there");
    plan::shards(&Cred::root(), &store.facts(dir).expect("there"), &was, shards).expect("empty")
}

/// A store with a directory `d` below the root that has `count` shards.
fn sharded(count: u8) -> (MetaStore, Ino, Vec<Ino>) {
    let (mut store, _) = MetaStore::format(TargetId(0), 7, NOW, Some((0, 0)), 1);
    let mut txn = Txn::default();
    let d = Name::new(b"d".to_vec()).expect("a name");
    let dir = store.make(&Cred::root(), Ino::ROOT, &d, &NodeSpec::dir(0o755), NOW, &mut txn).expect("made");
    let given = (0..count).map(|_| store.alloc_ino(&mut txn).expect("a number"));
    let shards: Vec<Ino> = given.zip(0..).map(|(ino, place)| Ino::shard(ino, place).expect("it fits")).collect();
    let parts = planned(&store, dir, &shards);
    store.check_parts(&parts).expect("nothing has changed");
    store.apply_parts(&parts, NOW, &mut txn);
    (store, dir, shards)
}

/// Goal: a listing over the shards has each name once, in the order of cookies, and the numbers of shards and cookies
/// fit each other, also after a restart. Method: 2,000 names in 5 shards; the store loaded from its items.
#[test]
fn shards_are_ranges_of_cookies() {
    let (mut store, dir, shards) = sharded(5);
    let mut txn = Txn::default();
    for i in 0..2000 {
        let at = shards[name(i).shard(5)];
        store.make(&Cred::root(), at, &name(i), &NodeSpec::file(0o644), NOW, &mut txn).expect("made");
    }
    assert_eq!(verify_cluster(&[&store]), Vec::<String>::new());
    let store = recover(TargetId(0), &dump(&store, 100), u64::MAX).expect("it loads");
    assert_eq!(store.shards(dir), shards);
    let (mut found, mut last) = (Vec::new(), 0);
    for (place, shard) in shards.iter().enumerate() {
        let mut cookie = ((place as u64) << SHARD_COOKIE_SHIFT).saturating_sub(1);
        loop {
            let (entries, end) = store.readdir(*shard, cookie, 7).expect("a directory");
            for entry in &entries {
                assert!(entry.cookie > last && entry.cookie >> SHARD_COOKIE_SHIFT == place as u64);
                last = entry.cookie;
                found.push(entry.name.clone());
            }
            if end {
                break;
            }
            cookie = last;
        }
        let part = found.len() / (place + 1);
        assert!((300..500).contains(&part), "names are spread evenly: {part}");
    }
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 2000);
}

/// Goal: one change of the directory changes the common attributes of all shards, and fails if the directory has
/// changed since it was planned; the checker finds a shard that was left out. Method: chmod and a time, with one part
/// left out.
#[test]
fn shards_agree_with_their_directory() {
    let (mut store, dir, shards) = sharded(3);
    let mut txn = Txn::default();
    let later = Timespec { sec: 2000, nsec: 0 };
    store.make(&Cred::root(), shards[1], &name_in(1, 3), &NodeSpec::file(0o644), later, &mut txn).expect("made");
    assert_eq!(store.inode(shards[1]).expect("there").times.mtime, later);
    assert_eq!(store.inode(shards[0]).expect("there").times.mtime, Timespec::default());
    let set = |set: SetAttr, store: &MetaStore| {
        let change =
            |copy: &mut MetaStore| copy.setattr(&Cred::root(), dir, &set, later, &mut Txn::default()).map(drop);
        store.plan_shared(dir, change).expect("root may").0
    };
    let chmod = set(SetAttr { perm: Some(0o2700), uid: Some(5), ..SetAttr::default() }, &store);
    let times = set(SetAttr { mtime: Some(TimeSet::At(NOW)), ..SetAttr::default() }, &store);
    assert_eq!(chmod.len(), 4);
    let mut stale = store.clone();
    stale.apply_parts(&chmod[..3], later, &mut txn);
    let findings = verify_cluster(&[&stale]);
    assert!(findings.iter().any(|finding| finding.contains("other permissions")), "{findings:?}");
    store.apply_parts(&chmod, later, &mut txn);
    assert_eq!(verify_cluster(&[&store]), Vec::<String>::new());
    assert!(shards.iter().all(|shard| store.inode(*shard).expect("there").perm == 0o2700));
    assert_eq!(store.inode(shards[1]).expect("there").times.mtime, later, "chmod is no change of names");
    assert!(store.check_parts(&times).is_err(), "the directory has changed since that was planned");
    let times = set(SetAttr { mtime: Some(TimeSet::At(NOW)), ..SetAttr::default() }, &store);
    store.apply_parts(&times, later, &mut txn);
    assert_eq!(store.inode(shards[1]).expect("there").times.mtime, Timespec::default());
    assert_eq!(store.inode(dir).expect("there").times.mtime, NOW);
}

/// Goal: a directory goes with its shards, and only when all are empty; names get into none of them afterwards. Method:
/// a removal that asks every shard, and one that leaves out a shard.
#[test]
fn removal_asks_every_shard() {
    let (mut store, dir, shards) = sharded(4);
    let mut txn = Txn::default();
    let root = store.facts(Ino::ROOT).expect("there");
    let d = Name::new(b"d".to_vec()).expect("a name");
    store.make(&Cred::root(), shards[3], &name_in(3, 4), &NodeSpec::file(0o644), NOW, &mut txn).expect("made");
    let parts = plan::rmdir(&Cred::root(), &root, &d, &store.facts(dir).expect("there")).expect("planned");
    assert_eq!(store.check_parts(&parts), Err(Errno::NotEmpty.into()));
    let one_less: Vec<Part> =
        parts.iter().filter(|part| **part != Part::Unlink { ino: shards[3], kind: Kind::Dir }).cloned().collect();
    let mut wrong = store.clone();
    wrong.apply_parts(&one_less, NOW, &mut txn);
    let findings = verify_cluster(&[&wrong]);
    assert!(findings.iter().any(|finding| finding.contains("is none of directory")), "{findings:?}");
    store.unlink(&Cred::root(), shards[3], &name_in(3, 4), NOW, &mut txn).expect("there");
    store.check_parts(&parts).expect("all are empty");
    store.apply_parts(&parts, NOW, &mut txn);
    assert_eq!(verify_cluster(&[&store]), Vec::<String>::new());
    for shard in shards {
        let made = store.make(&Cred::root(), shard, &name(1), &NodeSpec::file(0o644), NOW, &mut txn);
        assert_eq!(made, Err(Errno::NoEnt));
    }
}

/// Goal: a removal that was planned before the directory got shards leaves none of them behind. Method: plans of both
/// from the same facts, in either order.
#[test]
fn removal_meets_new_shards() {
    let (mut store, _) = MetaStore::format(TargetId(0), 7, NOW, Some((0, 0)), 1);
    let mut txn = Txn::default();
    let d = Name::new(b"d".to_vec()).expect("a name");
    let dir = store.make(&Cred::root(), Ino::ROOT, &d, &NodeSpec::dir(0o755), NOW, &mut txn).expect("made");
    let shard = Ino::shard(store.alloc_ino(&mut txn).expect("a number"), 0).expect("it fits");
    let (root, empty) = (store.facts(Ino::ROOT).expect("there"), store.facts(dir).expect("there"));
    let removal = plan::rmdir(&Cred::root(), &root, &d, &empty).expect("planned");
    let shards = planned(&store, dir, &[shard]);
    let mut removed = store.clone();
    removed.apply_parts(&removal, NOW, &mut txn);
    assert!(removed.check_parts(&shards).is_err(), "there is no such directory");
    store.apply_parts(&shards, NOW, &mut txn);
    assert_eq!(store.check_parts(&removal), Err(Refusal::Conflict), "it has to be planned again");
    let removal = plan::rmdir(&Cred::root(), &root, &d, &store.facts(dir).expect("there")).expect("planned");
    store.check_parts(&removal).expect("with its shards");
    store.apply_parts(&removal, NOW, &mut txn);
    assert_eq!(verify_cluster(&[&store]), Vec::<String>::new());
}

/// Goal: shards are made with what their directory has, also if that changes after they were planned. Method: each
/// attribute that they have in common changes between plan and check; a change of times and names alone voids no plan.
#[test]
fn attributes_meet_new_shards() {
    let (mut store, _) = MetaStore::format(TargetId(0), 7, NOW, Some((0, 0)), 1);
    let (mut txn, root) = (Txn::default(), Cred::root());
    let d = Name::new(b"d".to_vec()).expect("a name");
    let dir = store.make(&root, Ino::ROOT, &d, &NodeSpec::dir(0o755), NOW, &mut txn).expect("made");
    let shard = Ino::shard(store.alloc_ino(&mut txn).expect("a number"), 0).expect("it fits");
    let changes = [
        SetAttr { perm: Some(0o700), ..SetAttr::default() },
        SetAttr { uid: Some(5), ..SetAttr::default() },
        SetAttr { gid: Some(6), ..SetAttr::default() },
        SetAttr { project: Some(7), ..SetAttr::default() },
        SetAttr { flags: Some(FileFlags::APPEND), ..SetAttr::default() },
    ];
    for set in changes {
        let mut store = store.clone();
        let parts = planned(&store, dir, &[shard]);
        store.setattr(&root, dir, &set, NOW, &mut txn).expect("root may");
        assert_eq!(store.check_parts(&parts), Err(Refusal::Conflict), "{set:?}");
    }
    let lists = planned(&store, dir, &[shard]);
    let mut listed = store.clone();
    let entries = [(Who::Owner, 7), (Who::OwningGroup, 5), (Who::Others, 0)].map(|(who, bits)| Entry { who, bits });
    let acls = Acls { default: Acl::new(entries.into()), ..Acls::default() };
    listed.put_acls(dir, &acls, &mut Dirty::default());
    assert_eq!(listed.check_parts(&lists), Err(Refusal::Conflict));
    let parts = planned(&store, dir, &[shard]);
    let later = Timespec { sec: 2000, nsec: 0 };
    store.make(&root, dir, &name(1), &NodeSpec::file(0o644), later, &mut txn).expect("made");
    store.unlink(&root, dir, &name(1), later, &mut txn).expect("there");
    store.check_parts(&parts).expect("the directory is empty, and has what it had");
    store.apply_parts(&parts, later, &mut txn);
    assert_eq!(verify_cluster(&[&store]), Vec::<String>::new());
}

/// Goal: damage to a directory with shards is found, and is repaired so that no file is lost. Method: one damage after
/// the other to a directory with a file in each shard; repair, and where the files are afterwards.
#[test]
fn damaged_shards_are_mended() {
    type Damage = fn(&mut MetaStore, Ino, &[Ino]);
    let damages: [(&str, Damage); 6] = [
        ("other permissions", |store, _, shards| edit(store, shards[1], |inode| inode.perm = 0)),
        ("which does not exist", |store, _, shards| store.inodes.remove(shards[2].local())),
        ("belongs to", |store, _, shards| edit(store, shards[0], |inode| inode.dir.parent = Ino::ROOT)),
        ("do not agree", |store, dir, _| edit(store, dir, |inode| inode.flags.set(InodeFlags::SHARDED, false))),
        ("do not agree", |store, dir, _| assert!(store.xattrs.remove(dir.local(), LIST))),
        ("is none of directory", |store, dir, _| {
            let list: Box<[u8]> = store.xattrs.list(dir.local(), LIST).expect("a list")[..24].into();
            store.xattrs.insert(dir.local(), LIST, list);
        }),
    ];
    for (finding, damage) in damages {
        let (mut store, dir, shards) = sharded(4);
        let mut txn = Txn::default();
        let mut files = BTreeSet::new();
        for i in 0..40 {
            let at = shards[name(i).shard(4)];
            let file = store.make(&Cred::root(), at, &name(i), &NodeSpec::file(0o644), NOW, &mut txn).expect("made");
            files.insert(file);
        }
        damage(&mut store, dir, &shards);
        let findings = verify_cluster(&[&store]);
        assert!(findings.iter().any(|found| found.contains(finding)), "{finding}: {findings:?}");
        let repair = repair_cluster(&mut [&mut store], NOW).expect("it can be mended");
        assert!(!repair.steps.is_empty() && !repair.changes.is_empty());
        assert_eq!(verify_cluster(&[&store]), Vec::<String>::new(), "{finding}: {:?}", repair.steps);
        let named: BTreeSet<Ino> = store.dentries().map(|(_, _, entry)| entry.child).collect();
        assert!(files.is_subset(&named), "{finding}: each file has a name");
        assert_eq!(repair_cluster(&mut [&mut store], NOW).expect("sound").steps, Vec::<String>::new());
    }
}

fn edit(store: &mut MetaStore, ino: Ino, change: impl FnOnce(&mut crate::Inode)) {
    store.edit(ino, &mut Dirty::default(), change);
}
