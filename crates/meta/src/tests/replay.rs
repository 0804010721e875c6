//! Recovery from fuzzy checkpoints and by loading records in order.

use super::harness::{Cluster, Items, Rng, dump, recover, replay, same, whole};
use super::model::Run;
use crate::MetaStore;
use crate::plan::NodeSpec;
use crate::store::RESERVE_STEP;
use amphi_types::item::{ItemStore, Key, Txn, tag};
use amphi_types::{Cred, Errno, Ino, Name, TargetId};

/// Goal: a checkpoint may copy items at any moment while operations continue; if the log is then replayed over it from
/// the beginning, the result is the final state. Method: during random runs a checkpointer copies a few keys after some
/// of the operations; every finished or unfinished image is recovered at the end.
#[test]
fn fuzzy_checkpoints_recover() {
    for seed in 100..130 {
        let mut run = Run::new(seed, 1, u64::MAX, None);
        let mut choice = Rng(seed);
        // (log position at the start, image, last key, finished)
        let mut images: Vec<(usize, Items, Key, bool)> = Vec::new();
        for _ in 0..300 {
            run.step().unwrap();
            if images.last().is_none_or(|image| image.3) {
                images.push((run.cluster.logs[0].len(), Items::new(), Key::new(), false));
            }
            let (_, image, after, finished) = images.last_mut().unwrap();
            let store = &run.cluster.stores[0];
            let mut log = Items::new();
            run.cluster.logs[0].iter().for_each(|txn| replay(&mut log, txn));
            let keys = store.keys_after(after, choice.below(4));
            if let Some(last) = keys.last() {
                *after = last.clone();
            } else {
                *finished = store.keys_after(after, 1).is_empty();
            }
            for key in keys {
                // A key may be gone by the time its value is copied; here it cannot.
                image.insert(key.clone(), whole(store, &log).value_of(&key).unwrap());
            }
        }
        images.pop_if(|image| !image.3);
        assert!(images.len() > 1, "several checkpoints ended");
        for (from, mut image, _, _) in images {
            run.cluster.logs[0][from..].iter().for_each(|txn| replay(&mut image, txn));
            let recovered = recover(TargetId(0), &image, u64::MAX).unwrap();
            assert!(same(&recovered, &run.cluster.stores[0]), "seed {seed}, log from {from}");
        }
    }
}

/// Goal: recovery may also load records one by one over an older state. Method: a mirror takes every change of a
/// random run with `load` and `unload`, and equals the store after each.
#[test]
fn a_mirror_follows_the_log() {
    let mut run = Run::new(7, 1, u64::MAX, None);
    let mut mirror = MetaStore::empty(TargetId(0));
    let mut seen = 0;
    for _ in 0..300 {
        run.step().unwrap();
        for change in run.cluster.logs[0][seen..].iter().flat_map(Txn::changes) {
            match change.value() {
                Some(value) => mirror.load(change.key(), value).unwrap(),
                None => mirror.unload(change.key()).unwrap(),
            }
        }
        seen = run.cluster.logs[0].len();
        assert!(same(&mirror, &run.cluster.stores[0]));
    }
}

/// Goal: inode numbers are never used twice, also over recoveries, and are logged rarely. Method: several
/// thousand makes with removals and a recovery in between; numbers ascend, few records have the store's item.
#[test]
fn numbers_are_never_reused() {
    let root = Cred::root();
    let mut cluster = Cluster::new(1, 1, u64::MAX, None);
    let name = Name::new("f").unwrap();
    let mut last = Ino::ROOT;
    for round in 0..3 {
        for _ in 0..RESERVE_STEP / 2 + 10 {
            let ino = cluster.make(&root, Ino::ROOT, &name, &NodeSpec::file(0o600)).unwrap();
            assert!(ino > last, "{ino} came after {last}");
            last = ino;
            cluster.unlink(&root, Ino::ROOT, &name, false).unwrap();
            cluster.on(ino, |s, txn| s.remove_inode(ino, txn)).unwrap();
        }
        let store = &cluster.stores[0];
        let recovered = recover(TargetId(0), &dump(store, 64), u64::MAX).unwrap();
        assert!(same(&recovered, store), "round {round}");
        cluster.stores[0] = recovered;
    }
    let logged = cluster.logs[0].iter().flat_map(Txn::changes).filter(|c| c.key() == [tag::META]).count();
    assert!(logged <= 5, "the store's item was logged {logged} times");
}

/// Goal: a number taken for another target's operation stays taken over a crash, and the end of numbers is an
/// error. Method: allocate, recover from the log, allocate again; then a store at its last number.
#[test]
fn allocated_numbers_survive() {
    let (mut store, mut txn) = MetaStore::format(TargetId(3), 1, Default::default(), None, 4);
    let mut last = 0;
    for _ in 0..RESERVE_STEP + 5 {
        last = store.alloc_ino(&mut txn).unwrap().local();
    }
    let mut items = Items::new();
    replay(&mut items, &txn);
    let mut recovered = recover(TargetId(3), &items, u64::MAX).unwrap();
    let next = recovered.alloc_ino(&mut Txn::default()).unwrap();
    assert!(next.local() > last && next.target() == TargetId(3));
    recovered.next_local = Ino::MAX_LOCAL;
    assert_eq!(recovered.alloc_ino(&mut txn).map(Ino::local), Ok(Ino::MAX_LOCAL));
    assert_eq!(recovered.alloc_ino(&mut txn), Err(Errno::NoSpace));
    replay(&mut items, &txn);
    let full = recover(TargetId(3), &items, u64::MAX).unwrap();
    assert_eq!(full.next_ino(), Err(Errno::NoSpace), "a full store stays full");
}
