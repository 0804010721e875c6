//! The index of entries against an ordered map, which keeps every cookie.

use crate::Dentry;
use crate::index::{DentryIndex, Named};
use amphi_types::{Ino, Kind, TargetId};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Step {
    Make(u64, u8, u64),
    Remove(u64, u8),
    /// The effect of loading an item: an entry with any cookie, as of a damaged zone.
    Load(u64, u64, u8, u64),
    /// A page that begins behind the entry at this place.
    Page(u64, usize, usize),
    Seed(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let dir = || 1u64..4;
    // Numbers of inodes that fit into the values of the tree, and some that do not.
    let child = || prop_oneof![4 => 1u64..1000, 1 => Just((5 << 48) | 77), 1 => Just((1 << 46) | 3)];
    prop_oneof![
        8 => (dir(), any::<u8>(), child()).prop_map(|(dir, name, child)| Step::Make(dir, name, child)),
        4 => (dir(), any::<u8>()).prop_map(|(dir, name)| Step::Remove(dir, name)),
        1 => (dir(), 3u64.., any::<u8>(), child()).prop_map(|(dir, c, n, child)| Step::Load(dir, c, n, child)),
        6 => (dir(), 0usize..40, 0usize..12).prop_map(|(dir, at, max)| Step::Page(dir, at, max)),
        1 => (0u64..3).prop_map(Step::Seed),
    ]
}

type Model = BTreeMap<(u64, u64), Dentry>;

fn name(n: u8) -> Vec<u8> {
    format!("name-{}", n % 100).into_bytes()
}

fn named(child: u64) -> Named {
    Named { child: Ino(child), kind: if child.is_multiple_of(2) { Kind::Dir } else { Kind::BlockDev } }
}

fn set(model: &mut Model, dir: u64, cookie: u64, name: &[u8], Named { child, kind }: Named) {
    model.retain(|(at, _), entry| *at != dir || *entry.name != *name);
    model.insert((dir, cookie), Dentry { child, kind, name: name.into() });
}

fn cookie_of(model: &Model, dir: u64, name: &[u8]) -> Option<u64> {
    model.range((dir, 0)..=(dir, u64::MAX)).find(|(_, entry)| *entry.name == *name).map(|((_, cookie), _)| *cookie)
}

fn page(index: &DentryIndex, dir: u64, cookie: u64, max: usize) -> (Vec<(u64, Dentry)>, bool) {
    let mut entries = Vec::new();
    let end = index.page(dir, cookie, max, |cookie, name, Named { child, kind }| {
        entries.push((cookie, Dentry { child, kind, name: name.into() }));
    });
    (entries, end)
}

fn apply(index: &mut DentryIndex, model: &mut Model, step: Step) {
    match step {
        Step::Make(dir, n, child) => {
            let name = name(n);
            let cookie = match cookie_of(model, dir, &name) {
                Some(cookie) => cookie,
                None => {
                    let Some(cookie) = index.free_cookie(dir, &name) else { return };
                    // The lowest one that is free: the cookies between it and its bucket's beginning have entries.
                    assert!(!model.contains_key(&(dir, cookie)));
                    let first = (cookie >> 8 << 8).max(3);
                    assert!((first..cookie).all(|used| model.contains_key(&(dir, used))));
                    cookie
                }
            };
            index.insert(dir, cookie, &name, named(child));
            set(model, dir, cookie, &name, named(child));
        }
        Step::Remove(dir, n) => {
            let cookie = cookie_of(model, dir, &name(n));
            assert_eq!(index.remove(dir, &name(n)), cookie);
            cookie.map(|cookie| model.remove(&(dir, cookie)));
        }
        Step::Load(dir, cookie, n, child) => {
            index.insert(dir, cookie, &name(n), named(child));
            set(model, dir, cookie, &name(n), named(child));
        }
        Step::Page(dir, at, max) => {
            let of_dir =
                || model.range((dir, 0)..=(dir, u64::MAX)).map(|((_, cookie), entry)| (*cookie, entry.clone()));
            let cookie = of_dir().nth(at).map_or(at as u64, |(cookie, _)| cookie);
            let (entries, end) = page(index, dir, cookie, max);
            let wanted: Vec<_> = of_dir().filter(|(at, _)| *at > cookie).collect();
            assert_eq!(entries, wanted[..max.min(wanted.len())]);
            // A window may end behind entries that were removed since, and only the next page reports this.
            assert!(if wanted.len() > max { !end } else { end || entries.len() == max });
        }
        Step::Seed(seed) => index.set_seed(seed),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: the index answers as an ordered map of all cookies: names, cookies, pages, also with collisions, entries
    /// at places that are not theirs, and a key of the hash that is set late. Method: random steps, in a wide or narrow
    /// space of hashes, in directories that are walked or listed through windows.
    #[test]
    fn agrees_with_an_ordered_map(
        steps in prop::collection::vec(step(), 1..300),
        mask in prop_oneof![Just(u64::MAX), Just(7u64 << 20), Just(0u64)],
        walk_max in prop_oneof![Just(1024usize), 0usize..10],
        window_entries in 1usize..20,
    ) {
        let mut index = DentryIndex::new(TargetId(0));
        (index.hash_mask, index.walk_max, index.window_entries) = (mask, walk_max, window_entries);
        let mut model = Model::new();
        for step in steps {
            apply(&mut index, &mut model, step);
        }
        let all: Vec<_> = model.iter().map(|((dir, cookie), entry)| (*dir, *cookie, entry.clone())).collect();
        prop_assert!(index.from(0, 0).eq(all.iter().cloned()));
        for (dir, cookie, entry) in all {
            prop_assert_eq!(index.find(dir, &entry.name), Some(entry.named()));
            prop_assert_eq!(index.cookie(dir, &entry.name), cookie);
            prop_assert_eq!(index.get(dir, cookie), Some(entry));
        }
        let copy = index.clone();
        prop_assert!(copy == index);
    }
}

/// Goal: removing a large directory while it is listed costs a walk for each window, not one for each page. Method: a
/// directory of several windows is removed in pages from the last cookie, and in pages from the beginning; the cost of
/// a walk is the number of entries that it visits.
#[test]
fn removal_of_a_large_directory_is_not_quadratic() {
    for from_the_start in [false, true] {
        let mut index = DentryIndex::new(TargetId(0));
        (index.walk_max, index.window_entries) = (64, 4000);
        let entries = 20_000u64;
        for n in 0..entries {
            let name = format!("file.mdtest.0.{n}").into_bytes();
            let cookie = index.free_cookie(1, &name).unwrap();
            index.insert(1, cookie, &name, named(n + 1));
        }
        let (mut cookie, mut removed) = (0, 0);
        loop {
            let (page, end) = page(&index, 1, if from_the_start { 0 } else { cookie }, 100);
            for (at, entry) in page {
                cookie = at;
                assert_eq!(index.remove(1, &entry.name), Some(at));
                removed += 1;
            }
            if end {
                break;
            }
        }
        assert_eq!(removed, entries);
        // Five windows of a directory that shrinks from 20,000 entries, two walks each, and small walks at the end.
        let walked = index.walked.get();
        assert!(walked < 8 * entries, "{walked} entries were visited");
    }
}
