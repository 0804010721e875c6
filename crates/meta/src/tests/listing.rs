//! Listings under change, cookies, collisions.

use super::harness::Cluster;
use crate::plan::NodeSpec;
use amphi_types::{Cred, Errno, Ino, Name};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
enum Step {
    Create(u8),
    Remove(u8),
    Rename(u8, u8),
    /// The listing continues by this many entries.
    List(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => any::<u8>().prop_map(Step::Create),
        3 => any::<u8>().prop_map(Step::Remove),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Step::Rename(a, b)),
        2 => (1usize..9).prop_map(Step::List),
    ];
    prop::collection::vec(step, 1..120)
}

fn name(n: u8) -> Name {
    Name::new(format!("entry-{}", n % 64)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: entries that exist throughout a listing appear in it exactly once, whatever is created, removed
    /// and renamed meanwhile, also when names collide. Method: changes and pages of a listing interleaved at
    /// random, in a wide or a narrow hash space, in directories that are walked or listed through windows; only names
    /// that always existed meanwhile count.
    #[test]
    fn listings_are_stable_under_change(
        first in prop::collection::vec(any::<u8>(), 0..40),
        steps in steps(),
        narrow: bool,
        windows in prop::option::of((0usize..6, 1usize..12)),
    ) {
        let root = Cred::root();
        let mut cluster = Cluster::new(1, 99, if narrow { 1 << 20 } else { u64::MAX }, None);
        if let Some((walk_max, window_entries)) = windows {
            cluster.list_through_windows(walk_max, window_entries);
        }
        for n in first {
            let _ = cluster.make(&root, Ino::ROOT, &name(n), &NodeSpec::file(0o600));
        }
        let present = |c: &Cluster| c.stores[0].dentries().map(|(_, _, d)| d.name.clone()).collect::<BTreeSet<_>>();
        let mut throughout = present(&cluster);
        let mut cookie = 0;
        let mut ended = false;
        let mut seen: BTreeMap<Box<[u8]>, u32> = BTreeMap::new();
        let mut list = |c: &Cluster, max: usize| {
            let (entries, end) = c.stores[0].readdir(Ino::ROOT, cookie, max).unwrap();
            for entry in entries {
                assert!(entry.cookie > cookie.max(2), "cookies ascend and leave 0 to 2 free");
                assert!(entry.cookie < i64::MAX as u64, "cookies are positive file offsets");
                cookie = entry.cookie;
                *seen.entry(entry.name.as_bytes().into()).or_default() += 1;
            }
            end
        };
        for step in steps {
            match step {
                Step::Create(n) => drop(cluster.make(&root, Ino::ROOT, &name(n), &NodeSpec::file(0o600))),
                Step::Remove(n) => drop(cluster.unlink(&root, Ino::ROOT, &name(n), false)),
                Step::Rename(a, b) if name(a) != name(b) => {
                    let (a, b) = (name(a), name(b));
                    let mode = crate::RenameMode::Replace;
                    let done = cluster.rename(&root, (Ino::ROOT, &a), (Ino::ROOT, &b), mode, false);
                    // The old name does not exist afterwards; the new one exists before and after if it existed before.
                    if done.is_ok() {
                        throughout.remove(a.as_bytes());
                    }
                }
                Step::Rename(..) => {}
                Step::List(max) if !ended => ended = list(&cluster, max),
                Step::List(_) => {}
            }
            if !ended {
                let now = present(&cluster);
                throughout.retain(|n| now.contains(n));
            }
        }
        while !ended {
            ended = list(&cluster, 5);
        }
        for name in throughout {
            prop_assert_eq!(seen.get(&name).copied(), Some(1));
        }
    }
}

/// Goal: a bucket that is full refuses a further name and works again after a removal. Method: all names fall
/// into the bucket of hash 0, whose first cookies are reserved.
#[test]
fn a_full_bucket_refuses() {
    let root = Cred::root();
    let mut cluster = Cluster::new(1, 5, 0, None);
    let mut made = 0;
    let last = loop {
        let name = Name::new(format!("n{made}")).unwrap();
        match cluster.make(&root, Ino::ROOT, &name, &NodeSpec::file(0o600)) {
            Ok(_) => made += 1,
            Err(e) => {
                assert_eq!(e, Errno::NoSpace);
                break name;
            }
        }
    };
    assert_eq!(made, 252, "ordinals 3 to 254");
    cluster.unlink(&root, Ino::ROOT, &Name::new("n77").unwrap(), false).unwrap();
    cluster.make(&root, Ino::ROOT, &last, &NodeSpec::file(0o600)).unwrap();
    let (entries, end) = cluster.stores[0].readdir(Ino::ROOT, 0, 300).unwrap();
    assert!(end && entries.len() == 252);
    assert_eq!(entries[0].cookie, 3);
}

/// Goal: pages end exactly. Method: page sizes around the number of entries.
#[test]
fn the_end_of_a_listing_is_known() {
    let root = Cred::root();
    let mut cluster = Cluster::new(1, 5, u64::MAX, None);
    for n in 0..5 {
        cluster.make(&root, Ino::ROOT, &name(n), &NodeSpec::file(0o600)).unwrap();
    }
    let page = |cookie, max| cluster.stores[0].readdir(Ino::ROOT, cookie, max).map(|(e, end)| (e.len(), end));
    assert_eq!(page(0, 4), Ok((4, false)));
    assert_eq!(page(0, 5), Ok((5, true)));
    assert_eq!(page(0, 0), Ok((0, false)));
    assert_eq!(page(u64::MAX, 9), Ok((0, true)));
    assert_eq!(page(i64::MAX as u64, 9), Ok((0, true)));
}
