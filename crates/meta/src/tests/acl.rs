//! Access control lists and the flags of `chattr`: the operations that they allow, the inheritance by new inodes, their
//! survival.

use super::harness::{Cluster, Items, recover, replay, same};
use crate::plan::NodeSpec;
use crate::{MetaStore, Outcome, RenameMode, XattrMode, verify_cluster};
use amphi_types::acl::{ACCESS, DEFAULT, Entry, Who};
use amphi_types::item::Txn;
use amphi_types::{Acl, Caps, Cred, Errno, FileFlags, Ino, Kind, Name, Result, SetAttr, TargetId, TimeSet, Timespec};

const OWNER: u32 = 10;
const FRIEND: u32 = 20;
const TEAM: u32 = 50;

fn owner() -> Cred {
    Cred::new(OWNER, OWNER, vec![])
}

fn friend() -> Cred {
    Cred::new(FRIEND, FRIEND, vec![])
}

fn member() -> Cred {
    Cred::new(30, 30, vec![TEAM])
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn list(entries: &[(Who, u16)]) -> Acl {
    Acl::new(entries.iter().map(|&(who, bits)| Entry { who, bits }).collect()).expect("a valid list")
}

/// rwx for the owner, rw for the friend, r-x for the team, nothing for the others.
fn shared() -> Acl {
    let named = [(Who::Owner, 7), (Who::User(FRIEND), 6), (Who::OwningGroup, 0), (Who::Group(TEAM), 5)];
    list(&[&named[..], &[(Who::Mask, 7), (Who::Others, 0)]].concat())
}

fn apply(log: &[Txn]) -> Items {
    let mut items = Items::new();
    log.iter().for_each(|txn| replay(&mut items, txn));
    items
}

struct Story {
    c: Cluster,
    home: Ino,
}

impl Story {
    fn new() -> Story {
        let mut c = Cluster::new(2, 1, u64::MAX, None);
        let home = c.make(&Cred::root(), Ino::ROOT, &name("home"), &NodeSpec::dir(0o755)).unwrap();
        let set = SetAttr { uid: Some(OWNER), gid: Some(OWNER), ..SetAttr::default() };
        c.setattr(&Cred::root(), home, &set).unwrap();
        Story { c, home }
    }

    fn make(&mut self, cred: &Cred, dir: Ino, text: &str, spec: NodeSpec) -> Result<Ino> {
        self.c.make(cred, dir, &name(text), &spec)
    }

    fn put(&mut self, cred: &Cred, ino: Ino, attribute: &[u8], list: Option<&Acl>) -> Result<()> {
        self.c.setxattr(cred, ino, attribute, list.map(Acl::to_xattr).as_deref())
    }

    fn get(&self, ino: Ino, attribute: &[u8]) -> Option<Acl> {
        let value = self.c.store(ino).getxattr(&friend(), ino, attribute);
        value.ok().map(|value| match value {
            Outcome::Done(value) => Acl::from_xattr(value).expect("a valid list"),
            Outcome::Absent(key) => panic!("a list is not in memory: {key:?}"),
        })
    }

    fn perm(&self, ino: Ino) -> u16 {
        self.c.store(ino).inode(ino).unwrap().perm
    }

    fn flag(&mut self, cred: &Cred, ino: Ino, flags: FileFlags) -> Result<()> {
        self.c.setattr(cred, ino, &SetAttr { flags: Some(flags), ..SetAttr::default() })
    }

    /// All state equals the replayed log, and is consistent.
    fn check(&self) {
        for (at, store) in self.c.stores.iter().enumerate() {
            let items = apply(&self.c.logs[at]);
            let again = recover(TargetId(at as u16), &items, u64::MAX).expect("recovers");
            assert!(same(store, &again), "the memory of target {at} is not what its log says");
        }
        assert_eq!(verify_cluster(&self.c.stores.iter().collect::<Vec<&MetaStore>>()), Vec::<String>::new());
    }
}

/// Goal: an access control list decides about access, follows chmod, and is followed by the permission bits; only the
/// owner of the inode may change it. Method: a file that is shared with a friend and a team.
#[test]
fn lists_decide() {
    let mut s = Story::new();
    let f = s.make(&owner(), s.home, "f", NodeSpec::file(0o640)).unwrap();
    assert_eq!(s.c.may_read(&friend(), f), Err(Errno::Access));
    assert_eq!(s.put(&friend(), f, ACCESS, Some(&shared())), Err(Errno::Perm));
    assert_eq!(s.put(&owner(), f, DEFAULT, Some(&shared())), Err(Errno::Access), "a file has no heirs");
    s.put(&owner(), f, ACCESS, Some(&shared())).unwrap();
    assert_eq!(s.perm(f), 0o770, "the group bits are the mask");
    assert_eq!((s.c.may_read(&friend(), f), s.c.may_read(&member(), f)), (Ok(()), Ok(())));
    let write = |s: &Story, cred: &Cred| s.c.store(f).check_open(cred, f, crate::perm::Want::WRITE);
    assert_eq!((write(&s, &friend()), write(&s, &member())), (Ok(()), Err(Errno::Access)));
    s.check();
    // chmod changes the mask, which bounds the friend.
    s.c.setattr(&owner(), f, &SetAttr { perm: Some(0o740), ..SetAttr::default() }).unwrap();
    assert_eq!((s.c.may_read(&friend(), f), write(&s, &friend())), (Ok(()), Err(Errno::Access)));
    assert_eq!(s.get(f, ACCESS).map(|list| list.perm()), Some(0o740));
    // A list that is equivalent to the bits is not kept.
    let minimal = list(&[(Who::Owner, 6), (Who::OwningGroup, 4), (Who::Others, 4)]);
    s.put(&owner(), f, ACCESS, Some(&minimal)).unwrap();
    assert_eq!((s.perm(f), s.get(f, ACCESS)), (0o644, None));
    assert_eq!(s.put(&owner(), f, ACCESS, None), Ok(()), "nothing to remove");
    s.check();
    s.put(&owner(), f, ACCESS, Some(&shared())).unwrap();
    s.put(&owner(), f, ACCESS, None).unwrap();
    assert_eq!((s.perm(f), s.get(f, ACCESS), s.c.may_read(&friend(), f)), (0o770, None, Err(Errno::Access)));
    let link = s.make(&owner(), s.home, "l", NodeSpec::symlink("f")).unwrap();
    assert_eq!(s.put(&owner(), link, ACCESS, Some(&shared())), Err(Errno::NotSupported));
    s.check();
}

/// Goal: a new inode inherits the right lists and mode, on both targets; the umask counts only without a default list.
/// Method: a directory with and without one.
#[test]
fn lists_are_inherited() {
    let mut s = Story::new();
    let home = s.home;
    let plain = s.make(&owner(), home, "plain", NodeSpec::file(0o666).with_umask(0o027)).unwrap();
    assert_eq!(s.perm(plain), 0o640);
    s.put(&owner(), home, DEFAULT, Some(&shared())).unwrap();
    assert_eq!((s.perm(home), s.get(home, ACCESS)), (0o755, None), "a default list says nothing of the directory");
    for n in 0..8 {
        let file = s.make(&owner(), home, &format!("f{n}"), NodeSpec::file(0o666).with_umask(0o077)).unwrap();
        assert_eq!(s.perm(file), 0o660, "the umask does not count");
        assert_eq!(s.get(file, ACCESS).map(|list| list.perm()), Some(0o660));
        assert_eq!((s.get(file, DEFAULT), s.c.may_read(&friend(), file)), (None, Ok(())));
        let dir = s.make(&owner(), home, &format!("d{n}"), NodeSpec::dir(0o777).with_umask(0o022)).unwrap();
        assert_eq!((s.get(dir, DEFAULT), s.perm(dir)), (Some(shared()), 0o770));
    }
    let link = s.make(&owner(), home, "l", NodeSpec::symlink("f0")).unwrap();
    assert_eq!((s.perm(link), s.c.store(link).listxattr(&owner(), link)), (0o777, Ok(vec![])));
    let unnamed = s.c.tmpfile(&owner(), home, 0o600).unwrap();
    assert_eq!(s.get(unnamed, ACCESS).map(|list| list.perm()), Some(0o600));
    let whiteout = s.c.rename(&owner(), (home, &name("f0")), (home, &name("g")), RenameMode::Replace, true);
    assert!(whiteout.is_ok());
    s.check();
    s.put(&owner(), home, DEFAULT, None).unwrap();
    let later = s.make(&owner(), home, "later", NodeSpec::file(0o666).with_umask(0o077)).unwrap();
    assert_eq!((s.perm(later), s.get(later, ACCESS)), (0o600, None));
    s.check();
}

/// Goal: operations that `chattr` has forbidden are refused to everybody, also to the super-user, and only a caller
/// with the capability sets the flags. Method: every operation on a file and a directory of each flag.
#[test]
fn flags_forbid() {
    let root = Cred::root();
    let mut s = Story::new();
    let home = s.home;
    let f = s.make(&owner(), home, "f", NodeSpec::file(0o644)).unwrap();
    let d = s.make(&owner(), home, "d", NodeSpec::dir(0o755)).unwrap();
    let child = s.make(&owner(), d, "child", NodeSpec::file(0o644)).unwrap();
    assert_eq!(s.flag(&owner(), f, FileFlags::APPEND), Err(Errno::Perm), "without the capability");
    let weak = Cred { caps: Caps::LINUX_IMMUTABLE, ..friend() };
    assert_eq!(s.flag(&weak, f, FileFlags::APPEND), Err(Errno::Perm), "not the owner");
    let refused = Err(Errno::Perm);
    let times = |at| SetAttr { mtime: Some(at), ..SetAttr::default() };
    for flags in [FileFlags::APPEND, FileFlags::IMMUTABLE] {
        let fixed = flags == FileFlags::IMMUTABLE;
        s.flag(&root, f, flags).unwrap();
        s.flag(&root, d, flags).unwrap();
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        assert_eq!(s.c.setattr(&root, f, &cut), refused);
        assert_eq!(s.c.setattr(&root, f, &SetAttr { perm: Some(0), ..SetAttr::default() }), refused);
        assert_eq!(s.c.setattr(&root, f, &SetAttr { uid: Some(0), ..SetAttr::default() }), refused);
        assert_eq!(s.c.setattr(&root, f, &times(TimeSet::At(Timespec { sec: 1, nsec: 0 }))), refused);
        assert_eq!(s.c.setattr(&root, f, &times(TimeSet::Now)).is_err(), fixed);
        assert_eq!(s.c.store(f).check_open(&root, f, crate::perm::Want::WRITE).is_err(), fixed);
        assert_eq!(s.c.may_read(&owner(), f), Ok(()));
        assert_eq!(s.c.setxattr(&root, f, b"user.a", Some(b"1")), refused);
        assert_eq!(s.put(&root, f, ACCESS, Some(&shared())), refused);
        assert_eq!(s.c.link(&root, f, home, &name("other")), refused);
        assert_eq!(s.c.unlink(&root, home, &name("f"), false), refused);
        let mut move_it = |from: (Ino, &str), to: (Ino, &str)| {
            s.c.rename(&root, (from.0, &name(from.1)), (to.0, &name(to.1)), RenameMode::Replace, false).map(drop)
        };
        assert_eq!(move_it((home, "f"), (home, "g")), refused);
        assert_eq!(move_it((d, "child"), (home, "g")), refused, "out of a directory that keeps its entries");
        assert_eq!(s.c.unlink(&root, d, &name("child"), false), refused);
        assert_eq!(s.make(&root, d, &format!("new{fixed}"), NodeSpec::file(0)).is_err(), fixed);
        s.check();
        s.flag(&root, f, FileFlags::NONE).unwrap();
        s.flag(&root, d, FileFlags::NONE).unwrap();
    }
    s.c.unlink(&root, d, &name("child"), false).unwrap();
    assert_eq!(s.c.store(child).inode(child).map(|inode| inode.nlink), Ok(0));
    let link = s.make(&owner(), home, "l", NodeSpec::symlink("f")).unwrap();
    assert_eq!(s.flag(&root, link, FileFlags::APPEND), Err(Errno::NotSupported));
    s.check();
}

/// Goal: damage on the disk is refused, or found and repaired. Method: an item that is no list; an inode that forgot
/// its list.
#[test]
fn damage_is_found() {
    let mut s = Story::new();
    let f = s.make(&owner(), s.home, "f", NodeSpec::file(0o640)).unwrap();
    s.put(&owner(), f, ACCESS, Some(&shared())).unwrap();
    let at = usize::from(f.target().0);
    let mut items = apply(&s.c.logs[at]);
    let key = crate::codec::ItemKey::Xattr { local: f.local(), name: ACCESS.into() }.encode();
    let mut damaged = Vec::new();
    crate::codec::encode_xattr(b"no list", &mut damaged);
    let value = items.insert(key.clone(), damaged).expect("it was there");
    assert!(recover(f.target(), &items, u64::MAX).is_err_and(|e| e.contains("no valid access control list")));
    items.insert(key, value);
    let mut stores = s.c.stores.clone();
    stores[at].edit(f, &mut crate::store::Dirty::default(), |inode| inode.perm = 0o600);
    assert!(verify_cluster(&stores.iter().collect::<Vec<_>>())[0].contains("other permissions"));
    let repair = crate::repair_cluster(&mut stores.iter_mut().collect::<Vec<_>>(), Timespec::default()).unwrap();
    assert!(repair.steps.iter().any(|step| step.contains("access control list")), "{:?}", repair.steps);
    assert_eq!(verify_cluster(&stores.iter().collect::<Vec<_>>()), Vec::<String>::new());
}

/// Goal: the flags of setxattr do not prevent the replacement of a list; kinds of inodes without lists refuse one.
/// Method: one request for each case.
#[test]
fn modes_do_not_count() {
    let mut s = Story::new();
    let f = s.make(&owner(), s.home, "f", NodeSpec::file(0o640)).unwrap();
    let now = s.c.now;
    for mode in [XattrMode::Create, XattrMode::Create, XattrMode::Replace] {
        let value = shared().to_xattr();
        s.c.on(f, |st, txn| st.setxattr(&owner(), f, ACCESS, &value, mode, now, txn)).unwrap();
    }
    assert_eq!(s.c.store(f).inode(f).map(|inode| inode.kind), Ok(Kind::File));
    s.check();
}
