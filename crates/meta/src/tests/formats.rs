//! Bytes from the disk: which are refused, and which are stable.

use super::harness::{Cluster, dump, recover};
use crate::codec::{self, ItemKey};
use crate::inode::InodeFlags;
use crate::plan::NodeSpec;
use crate::{MetaStore, Part};
use amphi_types::item::{ItemStore, tag};
use amphi_types::{Cred, FileFlags, Ino, Kind, Name, TargetId, Timespec};
use proptest::prelude::*;

fn sample() -> Cluster {
    let root = Cred::root();
    let mut cluster = Cluster::new(1, 1, u64::MAX, None);
    let dir = cluster.make(&root, Ino::ROOT, &Name::new("dir").unwrap(), &NodeSpec::dir(0o755)).unwrap();
    cluster.make(&root, dir, &Name::new("link").unwrap(), &NodeSpec::symlink("there")).unwrap();
    cluster.setxattr(&root, dir, b"user.note", Some(b"text")).unwrap();
    cluster
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: no bytes panic. Method: arbitrary keys and values, and values damaged in one byte or cut, through
    /// load, unload, value_of and keys_after.
    #[test]
    fn arbitrary_bytes_are_refused_or_taken(
        key in prop::collection::vec(prop_oneof![Just(b'D'), Just(b'I'), Just(b'M'), Just(b'X'), any::<u8>()], 0..40),
        value in prop::collection::vec(any::<u8>(), 0..80),
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
        cut: bool,
    ) {
        let cluster = sample();
        let mut store = cluster.stores[0].clone();
        let _ = store.load(&key, &value);
        let _ = store.unload(&key);
        let _ = store.value_of(&key);
        let after = store.keys_after(&key, 100);
        prop_assert!(after.iter().all(|k| *k > key));
        prop_assert_eq!(after.len(), dump(&store, 9).keys().filter(|k| **k > key).count());

        let items = dump(&cluster.stores[0], 9);
        let (key, value) = items.iter().nth(at.index(items.len())).unwrap();
        let mut bad = value.clone();
        let place = at.index(bad.len());
        if cut { bad.truncate(place) } else { bad[place] ^= flip }
        let _ = MetaStore::empty(TargetId(0)).load(key, &bad);
    }
}

/// Goal: undecodable items are named with the reason. Method: a table of damaged items and words of the message.
#[test]
fn damage_is_explained() {
    let cluster = sample();
    let items = dump(&cluster.stores[0], 9);
    let of = |t: u8| items.iter().find(|(k, _)| k[0] == t).map(|(k, v)| (k.clone(), v.clone())).unwrap();
    let load = |key: &[u8], value: &[u8]| MetaStore::empty(TargetId(0)).load(key, value).unwrap_err();
    for (t, what) in [(tag::INODE, "inode item 49"), (tag::DENTRY, "directory entry item 44"), (tag::XATTR, "extended")]
    {
        let (key, value) = of(t);
        assert!(load(&key, &value[..value.len() - 1]).contains("does not decode"), "cut");
        assert!(load(&key, &value[..value.len() - 1]).contains(what), "place");
        assert!(load(&key, &[&value[..], &[0]].concat()).contains("1 bytes too many"), "long");
        assert!(load(&key, &[&[9], &value[1..]].concat()).contains("version 9, not 1"), "version");
        assert!(load(&key, &[]).contains("is empty"), "empty");
        assert!(load(&key[..key.len().min(8)], &value).contains("malformed key"), "key");
    }
    let (key, value) = of(tag::META);
    assert!(MetaStore::empty(TargetId(2)).load(&key, &value).unwrap_err().contains("metadata of target 0 found on"));
    assert!(load(b"Q", b"").contains("malformed key"));
    assert!(MetaStore::empty(TargetId(0)).unload(&key).is_err());

    let inode = cluster.stores[0].inode(Ino::ROOT).unwrap();
    let key = ItemKey::Inode(1).encode();
    let damaged = |change: &dyn Fn(&mut crate::Inode)| {
        let mut bad = inode.clone();
        change(&mut bad);
        load(&key, &encoded(|out| codec::encode_inode(&bad, out)))
    };
    assert!(damaged(&|i| i.perm = 0o10000).contains("permission bits"));
    assert!(damaged(&|i| i.layout.stripe_size = 7).contains("layout"));
    assert!(damaged(&|i| i.symlink = Box::from(b"x".as_slice())).contains("symbolic link"));
    assert!(damaged(&|i| i.size = u64::MAX).contains("size"));
    assert!(damaged(&|i| i.times.mtime = Timespec { sec: 0, nsec: 1_000_000_000 }).contains("does not decode"));
}

/// Goal: a store with a missing item is not opened. Method: each item of a sample left out in turn; every one
/// but the extended attribute is missed by something.
#[test]
fn missing_items_are_found() {
    let items = dump(&sample().stores[0], 9);
    for key in items.keys() {
        let mut less = items.clone();
        less.remove(key);
        let recovered = recover(TargetId(0), &less, u64::MAX);
        let found = match &recovered {
            Err(_) => true,
            Ok(store) => !crate::verify_cluster(&[store]).is_empty(),
        };
        assert_eq!(found, key[0] != tag::XATTR, "{key:?} {:?}", recovered.err());
    }
}

/// Goal: the bytes of the format do not change by accident. Method: known items, byte for byte.
#[test]
fn known_bytes() {
    let entry = crate::Dentry { child: Ino::new(TargetId(0), 300), kind: Kind::Dir, name: Box::from(b"ab".as_slice()) };
    assert_eq!(encoded(|out| codec::encode_dentry(&entry, out)), [1, 0xAC, 2, 1, 2, b'a', b'b']);
    assert_eq!(ItemKey::Dentry { dir: 1, cookie: 0x0203 }.encode(), *b"D\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\x02\x03");
    assert_eq!(
        ItemKey::Xattr { local: 2, name: Box::from(b"user.a".as_slice()) }.encode(),
        *b"X\0\0\0\0\0\0\0\x02user.a"
    );
    assert_eq!(encoded(|out| codec::encode_xattr(b"v", out)), [1, 1, b'v']);
    let (store, txn) = MetaStore::format(TargetId(0), 5, Timespec { sec: 1, nsec: 2 }, Some((0, 0)), 4);
    let first = txn.changes().next().unwrap();
    assert_eq!((first.key(), first.value()), (b"M".as_slice(), Some([1, 0, 5, 0x80, 0x20].as_slice())));
    let time = [2, 2];
    let mut inode = vec![1, 1, 0xED, 3, 2, 0, 0, 0, 0, 0];
    (0..5).for_each(|_| inode.extend(time));
    // Layout (growing, 1 MiB, 4, 4), mode, generation, spread, wide, flags, pending twice, parent, entries, link.
    inode.extend([5, 0x80, 0x80, 0x40, 4, 4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(store.value_of(&ItemKey::Inode(1).encode()), Some(inode));
}

/// Goal: each field of an inode has its place in the bytes, however the structure is divided. Method: bytes in which no
/// two numbers are the same are decoded, checked, and encoded again.
#[test]
fn fields_of_an_inode_keep_their_places() {
    let mut bytes = vec![1, 0, 0xA4, 3, 3, 5, 6, 7, 8, 9];
    // Access, content, change, creation, and when content was set.
    (1..=5u8).for_each(|n| bytes.extend([2 * n, 10 * n]));
    // Layout and mode; generation, spread, wide; flags, pending twice; parent, entries; link.
    bytes.extend([0, 0x80, 0x80, 0x40, 4, 4, 0, 11, 1, 0, 0b101, 0, 1, 12, 13, 0]);
    let inode = codec::decode_inode(&ItemKey::Inode(1).encode(), &bytes).unwrap();
    let at = |n: u8| Timespec { sec: i64::from(n), nsec: 10 * u32::from(n) };
    let attr = inode.attr(Ino(1));
    assert_eq!((attr.kind, attr.perm, attr.nlink, attr.uid, attr.gid), (Kind::File, 0o644, 3, 5, 6));
    assert_eq!((attr.rdev, attr.size, attr.blocks), (7, 8, 9));
    assert_eq!([attr.atime, attr.mtime, attr.ctime, attr.btime], [at(1), at(2), at(3), at(4)]);
    assert_eq!(inode.times.mtime_set_ctime, at(5));
    assert_eq!((inode.objects.generation, inode.objects.spread, inode.objects.wide), (11, true, false));
    assert!(inode.flags.has(InodeFlags::LINKABLE) && !inode.flags.has(InodeFlags::LISTS));
    assert_eq!(inode.flags.file_flags(), FileFlags::APPEND);
    assert_eq!((inode.pending.trim, inode.pending.destroy), (false, true));
    assert_eq!((inode.dir.parent, inode.dir.entries), (Ino(12), 13));
    assert_eq!(encoded(|out| codec::encode_inode(&inode, out)), bytes);
}

/// Goal: parts survive their way through an intent. Method: serialised and back.
#[test]
fn parts_round_trip() {
    let name = Name::new("n").unwrap();
    let parts = vec![
        Part::InsertDentry { dir: Ino(1), name: name.clone(), child: Ino(2), kind: Kind::File },
        Part::ReplaceDentry { dir: Ino(1), name, expect: Ino(3), child: Ino(2), kind: Kind::Dir },
        Part::TouchDir { dir: Ino(1), links: -1 },
    ];
    let bytes = postcard::to_stdvec(&parts).unwrap();
    assert_eq!(postcard::from_bytes::<Vec<Part>>(&bytes).unwrap(), parts);
}

/// Goal: the memory and log sizes that the crate's head names. Method: sizes of the structures, and the record of one
/// create.
#[test]
fn sizes_are_as_documented() {
    let per_file = size_of::<crate::Inode>() + 8 + size_of::<crate::Dentry>() + 16 + 16;
    assert!(per_file <= 330, "{per_file} bytes for inode, entry, keys and a short name");
    let mut cluster = Cluster::new(1, 1, u64::MAX, None);
    cluster.now = Timespec { sec: 1_800_000_000, nsec: 999_999_999 };
    cluster.make(&Cred::root(), Ino::ROOT, &Name::new("file-000001").unwrap(), &NodeSpec::file(0o644)).unwrap();
    let txn = cluster.logs[0].last().unwrap();
    let bytes: usize = txn.changes().map(|c| c.key().len() + c.value().map_or(0, <[u8]>::len)).sum();
    assert!(txn.len() == 3 && bytes <= 256, "{} items, {bytes} bytes", txn.len());
}
