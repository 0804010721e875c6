//! One example for each rule: a sequence of calls per operation, as tables of call and outcome.

use super::harness::Cluster;
use crate::plan::NodeSpec;
use crate::{Gathered, MetaStore, Outcome, Part, Pending, Refusal, RenameMode, XattrMode};
use amphi_types::item::Txn;
use amphi_types::{
    Advice, AskedAdvice, Consistency, Cred, DataChecksums, Errno, FileFlags, Ino, IoMode, KernelCache, Kind, Layout,
    Name, Result, SetAttr, TimeSet, Timespec, limits,
};

const USER: u32 = 10;
const OTHER: u32 = 20;
const STAFF: u32 = 50;

fn user() -> Cred {
    Cred::new(USER, USER, vec![STAFF])
}

fn other() -> Cred {
    Cred::new(OTHER, OTHER, vec![])
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn at(sec: i64) -> Timespec {
    Timespec { sec, nsec: 0 }
}

/// A cluster of one target with an open directory `/pub` and a user's directory `/home`.
struct Story {
    c: Cluster,
    open: Ino,
    home: Ino,
}

impl Story {
    fn new() -> Story {
        let mut c = Cluster::new(1, 1, u64::MAX, None);
        let open = c.make(&Cred::root(), Ino::ROOT, &name("pub"), &NodeSpec::dir(0o777)).unwrap();
        let home = c.make(&Cred::root(), Ino::ROOT, &name("home"), &NodeSpec::dir(0o755)).unwrap();
        let set = SetAttr { uid: Some(USER), gid: Some(USER), ..SetAttr::default() };
        c.setattr(&Cred::root(), home, &set).unwrap();
        c.setattr(&Cred::root(), open, &SetAttr { perm: Some(0o777), ..SetAttr::default() }).unwrap();
        Story { c, open, home }
    }

    fn make(&mut self, cred: &Cred, dir: Ino, n: &str, spec: NodeSpec) -> Result<Ino> {
        self.c.now.sec += 1;
        self.c.make(cred, dir, &name(n), &spec)
    }

    fn rename(&mut self, cred: &Cred, from: (Ino, &str), to: (Ino, &str), mode: RenameMode) -> Result<()> {
        self.c.now.sec += 1;
        self.c.rename(cred, (from.0, &name(from.1)), (to.0, &name(to.1)), mode, false).map(drop)
    }

    fn leave_whiteout(&mut self, cred: &Cred, from: (Ino, &str), to: (Ino, &str), mode: RenameMode) -> Result<Ino> {
        self.c.now.sec += 1;
        let left = self.c.rename(cred, (from.0, &name(from.1)), (to.0, &name(to.1)), mode, true)?;
        Ok(left.expect("a whiteout"))
    }

    fn leave_whiteout_refused(&mut self, cred: &Cred, from: (Ino, &str), to: (Ino, &str)) -> Errno {
        let (from, to) = ((from.0, &name(from.1)), (to.0, &name(to.1)));
        self.c.rename(cred, from, to, RenameMode::NoReplace, true).expect_err("refused")
    }

    fn find(&self, dir: Ino, n: &str) -> Option<Ino> {
        self.c.stores[0].find(dir, &name(n)).unwrap().map(|entry| entry.child)
    }

    fn set(&mut self, cred: &Cred, ino: Ino, set: SetAttr) -> Result<()> {
        self.c.now.sec += 1;
        self.c.setattr(cred, ino, &set)
    }

    fn attr(&self, ino: Ino) -> amphi_types::Attr {
        self.c.stores[0].getattr(ino).unwrap()
    }
}

/// Goal: rules of making inodes. Method: one call per rule.
#[test]
fn make_rules() {
    let mut s = Story::new();
    let (root, user, other) = (Cred::root(), user(), other());
    let (open, home) = (s.open, s.home);
    let file = s.make(&user, home, "f", NodeSpec::file(0o640)).unwrap();
    let table: Vec<(&str, Result<Ino>, Errno)> = vec![
        ("no write permission", s.make(&other, home, "x", NodeSpec::file(0o600)), Errno::Access),
        ("exists, told before the permission", s.make(&other, home, "f", NodeSpec::file(0o600)), Errno::Exist),
        ("in a file", s.make(&root, file, "x", NodeSpec::file(0o600)), Errno::NotDir),
        ("device by a user", s.make(&user, open, "x", NodeSpec::node(Kind::CharDev, 0o600, 1)), Errno::Perm),
        ("empty link", s.make(&user, open, "x", NodeSpec::symlink("")), Errno::NoEnt),
        ("long link", s.make(&user, open, "x", NodeSpec::symlink(vec![b'a'; 4096])), Errno::NameTooLong),
        ("unknown directory", s.make(&root, Ino(999), "x", NodeSpec::file(0o600)), Errno::Stale),
    ];
    for (rule, result, errno) in table {
        assert_eq!(result, Err(errno), "{rule}");
    }
    let attr = s.attr(file);
    assert_eq!((attr.perm, attr.uid, attr.gid, attr.nlink, attr.size), (0o640, USER, USER, 1, 0));
    let link = s.make(&user, open, "l", NodeSpec::symlink(vec![b'a'; limits::SYMLINK_MAX])).unwrap();
    assert_eq!((s.attr(link).perm, s.attr(link).size), (0o777, limits::SYMLINK_MAX as u64));
    assert_eq!(s.c.stores[0].readlink(link).map(|l| l.len()), Ok(limits::SYMLINK_MAX));
    assert_eq!(s.c.stores[0].readlink(file), Err(Errno::Inval));
    let device = s.make(&root, open, "d", NodeSpec::node(Kind::BlockDev, 0o600, 77)).unwrap();
    assert_eq!(s.attr(device).rdev, 77);
    let nothing = |kind| NodeSpec::node(kind, 0o600, 0);
    assert_eq!(s.make(&user, open, "x", nothing(Kind::BlockDev)), Err(Errno::Perm));
    let whiteout = s.make(&user, open, "w", nothing(Kind::CharDev)).expect("anybody may");
    assert_eq!((s.attr(whiteout).rdev, s.attr(whiteout).uid), (0, USER));
}

/// Goal: a change applied late to a directory that others have changed since does not set its times back; otherwise
/// they are those of the operation. Method: two touches of a directory and of an inode that was renamed, applied in the
/// other order, with a change in between.
#[test]
fn late_changes_do_not_set_times_back() {
    let mut s = Story::new();
    let (root, open) = (Cred::root(), s.open);
    let f = s.make(&root, open, "f", NodeSpec::file(0o666)).unwrap();
    let begun = s.c.now;
    let at = |sec| Timespec { sec: begun.sec + sec, nsec: 0 };
    let parts = [Part::TouchDir { dir: open, links: 0 }, Part::TouchCtime { ino: f }];
    let mut touch = |now, late| {
        s.c.stores[0].apply_promised(&parts, now, late, &mut Txn::default());
        let (dir, file) = (s.attr(open), s.attr(f));
        assert_eq!((dir.mtime, dir.ctime), (file.ctime, file.ctime));
        dir.ctime
    };
    assert_eq!(touch(at(20), at(30)), at(20));
    assert_eq!(touch(at(10), at(40)), at(40));
    assert_eq!(touch(at(50), at(50)), at(50));
    // The clock was set back.
    assert_eq!(touch(at(5), at(6)), at(6));
}

/// Goal: what new inodes inherit from a directory. Method: a setgid directory with its own layout, I/O mode and kernel
/// cache.
#[test]
fn inheritance() {
    let mut s = Story::new();
    let (root, user, other) = (Cred::root(), user(), other());
    let shared = s.make(&root, Ino::ROOT, "shared", NodeSpec::dir(0o777)).unwrap();
    s.set(&root, shared, SetAttr { gid: Some(STAFF), perm: Some(0o2777), ..SetAttr::default() }).unwrap();
    let layout = Layout { stripe_count: 3, ..Layout::growing(4) };
    let now = s.c.now;
    let direct = Some(AskedAdvice::Mode(IoMode::Direct));
    s.c.on(shared, |st, txn| st.set_layout(&root, shared, Some(layout), direct, false, now, txn)).unwrap();
    let on = Some(AskedAdvice::KernelCache(KernelCache::On));
    s.c.on(shared, |st, txn| st.set_layout(&root, shared, None, on, false, now, txn)).unwrap();
    let dir = s.make(&user, shared, "d", NodeSpec::dir(0o4755)).unwrap();
    let mine = s.make(&user, shared, "mine", NodeSpec::file(0o2755)).unwrap();
    let his = s.make(&other, shared, "his", NodeSpec::file(0o2755)).unwrap();
    assert_eq!((s.attr(dir).gid, s.attr(dir).perm), (STAFF, 0o2755), "directories keep the bit");
    assert_eq!((s.attr(mine).gid, s.attr(mine).perm), (STAFF, 0o2755), "a member may make such a program");
    assert_eq!((s.attr(his).gid, s.attr(his).perm), (STAFF, 0o0755), "others may not");
    let inode = s.c.stores[0].inode(his).unwrap();
    assert_eq!(
        (inode.layout, inode.advice),
        (layout, Advice::new(IoMode::Direct, KernelCache::On, DataChecksums::Auto, Consistency::Posix))
    );
}

/// Goal: rules of link, unlink and rmdir. Method: one call per rule, then link counts and times.
#[test]
fn link_rules() {
    let mut s = Story::new();
    let (root, user, other) = (Cred::root(), user(), other());
    let (open, home) = (s.open, s.home);
    let file = s.make(&user, open, "f", NodeSpec::file(0o600)).unwrap();
    let dir = s.make(&user, open, "d", NodeSpec::dir(0o700)).unwrap();
    s.make(&user, dir, "in", NodeSpec::file(0o600)).unwrap();
    assert_eq!(s.attr(open).nlink, 3, "one sub-directory");
    s.c.now.sec += 1;
    let table = vec![
        ("directory", s.c.link(&root, dir, open, &name("x")), Errno::Perm),
        ("name taken", s.c.link(&root, file, open, &name("d")), Errno::Exist),
        ("no permission", s.c.link(&other, file, home, &name("x")), Errno::Access),
        ("unlink a directory", s.c.unlink(&user, open, &name("d"), false), Errno::IsDir),
        ("unlink nothing", s.c.unlink(&user, open, &name("x"), false), Errno::NoEnt),
        ("rmdir a file", s.c.unlink(&user, open, &name("f"), true), Errno::NotDir),
        ("rmdir a full one", s.c.unlink(&user, open, &name("d"), true), Errno::NotEmpty),
        ("search", s.c.unlink(&other, dir, &name("in"), false), Errno::Access),
    ];
    for (rule, result, errno) in table {
        assert_eq!(result, Err(errno), "{rule}");
    }
    s.c.link(&user, file, home, &name("g")).unwrap();
    assert_eq!((s.attr(file).nlink, s.attr(file).ctime, s.attr(home).mtime), (2, s.c.now, s.c.now));
    let now = s.c.now;
    let gone = s.c.on(open, |st, txn| st.unlink(&user, open, &name("f"), now, txn)).unwrap();
    assert!(gone.orphaned.is_empty());
    let gone = s.c.on(home, |st, txn| st.unlink(&user, home, &name("g"), now, txn)).unwrap();
    assert_eq!((gone.orphaned, s.c.stores[0].orphans()), (vec![file], vec![file]));
    assert_eq!(s.c.link(&root, file, home, &name("g")), Err(Errno::NoEnt), "an unlinked file stays unlinked");

    s.c.unlink(&user, dir, &name("in"), false).unwrap();
    s.c.unlink(&user, open, &name("d"), true).unwrap();
    assert_eq!((s.attr(dir).nlink, s.attr(open).nlink), (0, 2));
    assert_eq!(s.make(&user, dir, "x", NodeSpec::file(0o600)), Err(Errno::NoEnt), "a removed directory");
    assert_eq!(s.c.tmpfile(&user, dir, 0o600), Err(Errno::NoEnt));
    assert_eq!(s.rename(&user, (open, "l"), (dir, "x"), RenameMode::Replace), Err(Errno::NoEnt));
}

/// Goal: link counts are bounded. Method: a file one below the bound.
#[test]
fn too_many_links() {
    let mut s = Story::new();
    let (root, open) = (Cred::root(), s.open);
    let file = s.make(&root, open, "f", NodeSpec::file(0o600)).unwrap();
    assert!(s.c.stores[0].inodes.edit(file.local(), |inode| inode.nlink = limits::LINK_MAX - 1));
    s.c.link(&root, file, open, &name("a")).unwrap();
    assert_eq!(s.c.link(&root, file, open, &name("b")), Err(Errno::TooManyLinks));
    let checked = s.c.stores[0].check_parts(&[Part::Link { ino: file }]);
    assert_eq!(checked, Err(Refusal::Errno(Errno::TooManyLinks)));
}

/// Goal: files without a name. Method: made, linked once, or freed.
#[test]
fn nameless_files() {
    let mut s = Story::new();
    let (user, open) = (user(), s.open);
    let file = s.c.tmpfile(&user, open, 0o640).unwrap();
    assert_eq!((s.attr(file).nlink, s.attr(file).perm), (0, 0o640));
    assert_eq!(s.c.stores[0].orphans(), [file]);
    s.c.link(&user, file, open, &name("now")).unwrap();
    assert_eq!((s.attr(file).nlink, s.c.stores[0].orphans().len()), (1, 0));
    assert_eq!(s.c.on(file, |st, txn| st.remove_inode(file, txn)), Err(Errno::Busy));
    assert_eq!(s.c.on(file, |st, txn| st.begin_destroy(file, txn)), Err(Errno::Busy));
    let doomed = s.c.tmpfile(&user, open, 0o640).unwrap();
    s.c.setxattr(&user, doomed, b"user.x", Some(b"1")).unwrap();
    s.c.on(doomed, |st, txn| st.begin_destroy(doomed, txn)).unwrap();
    assert_eq!(s.c.stores[0].pending(), [(doomed, Pending { trim: false, destroy: true })]);
    assert_eq!(s.c.link(&user, doomed, open, &name("late")), Err(Errno::NoEnt));
    s.c.on(doomed, |st, txn| st.remove_inode(doomed, txn)).unwrap();
    assert_eq!(s.c.stores[0].getattr(doomed), Err(Errno::Stale));
    assert_eq!(s.c.stores[0].verify(), Vec::<String>::new(), "its attributes went with it");
}

/// Goal: rules of rename in all modes. Method: one call per rule, then the effects on counts and parents.
#[test]
fn rename_rules() {
    use RenameMode::*;
    let mut s = Story::new();
    let (root, user, other) = (Cred::root(), user(), other());
    let (open, home) = (s.open, s.home);
    let a = s.make(&user, open, "a", NodeSpec::dir(0o755)).unwrap();
    let b = s.make(&user, a, "b", NodeSpec::dir(0o755)).unwrap();
    let f = s.make(&user, open, "f", NodeSpec::file(0o600)).unwrap();
    let e = s.make(&user, open, "e", NodeSpec::dir(0o755)).unwrap();
    let locked = s.make(&user, open, "locked", NodeSpec::dir(0o555)).unwrap();
    s.make(&root, open, "sticky", NodeSpec::dir(0o1777)).unwrap();
    s.c.link(&user, f, open, &name("f2")).unwrap();
    let table = vec![
        ("no source", s.rename(&user, (open, "x"), (open, "y"), Replace), Errno::NoEnt),
        ("no replacement", s.rename(&user, (open, "f"), (open, "a"), NoReplace), Errno::Exist),
        ("nothing to swap with", s.rename(&user, (open, "f"), (open, "y"), Exchange), Errno::NoEnt),
        ("into itself", s.rename(&user, (open, "a"), (b, "y"), Replace), Errno::Inval),
        ("onto its ancestor", s.rename(&user, (a, "b"), (Ino::ROOT, "pub"), Replace), Errno::NotEmpty),
        ("swapped with its ancestor", s.rename(&root, (a, "b"), (Ino::ROOT, "pub"), Exchange), Errno::Inval),
        ("file onto directory", s.rename(&user, (open, "f"), (open, "e"), Replace), Errno::IsDir),
        ("directory onto file", s.rename(&user, (open, "e"), (open, "f"), Replace), Errno::NotDir),
        ("onto a full directory", s.rename(&user, (open, "e"), (open, "a"), Replace), Errno::NotEmpty),
        ("out of a read-only place", s.rename(&other, (Ino::ROOT, "home"), (open, "y"), Replace), Errno::Access),
        ("into a read-only place", s.rename(&other, (open, "f"), (home, "y"), Replace), Errno::Access),
        ("a directory that may not change its parent", s.rename(&other, (open, "a"), (e, "y"), Replace), Errno::Access),
        ("in a file", s.rename(&root, (f, "a"), (open, "y"), Replace), Errno::NotDir),
    ];
    for (rule, result, errno) in table {
        assert_eq!(result, Err(errno), "{rule}");
    }
    let before = s.attr(f);
    s.rename(&user, (open, "f"), (open, "f2"), Replace).unwrap();
    assert_eq!(s.attr(f), before, "two names of one file: nothing happens");

    let links = |s: &Story, all: &[Ino]| all.iter().map(|&i| s.attr(i).nlink).collect::<Vec<_>>();
    assert_eq!(links(&s, &[open, a, e]), [6, 3, 2]);
    s.rename(&user, (a, "b"), (e, "b"), NoReplace).unwrap();
    assert_eq!(links(&s, &[open, a, e]), [6, 2, 3], "a directory moves");
    assert_eq!((s.c.stores[0].parent(b), s.attr(b).ctime), (Ok(e), s.c.now));
    s.rename(&user, (open, "e"), (open, "a"), Replace).unwrap();
    assert_eq!(links(&s, &[open, a, e]), [5, 0, 3], "an empty directory is replaced");
    s.rename(&root, (open, "f"), (e, "b"), Exchange).unwrap();
    assert_eq!(links(&s, &[open, e, f]), [6, 2, 2], "a file and a directory are swapped");
    assert_eq!(s.c.stores[0].parent(b), Ok(open));
    assert_eq!(s.c.stores[0].parent(f), Err(Errno::NotDir));
    let swap = s.rename(&other, (open, "f2"), (home, "x"), Exchange);
    assert_eq!(swap, Err(Errno::NoEnt));
    s.rename(&user, (open, "locked"), (open, "unlocked"), Replace).unwrap();
    let moved = s.rename(&user, (open, "unlocked"), (e, "x"), Replace);
    assert_eq!(moved, Err(Errno::Access), "only within its directory, since {locked} is not writable");

    let left = s.leave_whiteout(&user, (open, "unlocked"), (open, "there"), NoReplace).unwrap();
    assert_eq!(s.find(open, "there"), Some(locked));
    assert_eq!(s.find(open, "unlocked"), Some(left), "a whiteout is left");
    let attr = s.attr(left);
    assert_eq!((attr.kind, attr.rdev, attr.perm, attr.nlink, attr.uid), (Kind::CharDev, 0, 0, 1, user.uid));
    assert_eq!(links(&s, &[open]), [6], "a device is no directory");
    let taken = s.leave_whiteout_refused(&user, (open, "there"), (open, "unlocked"));
    assert_eq!(taken, Errno::Exist);
}

/// Goal: rules of changing attributes. Method: one call per rule with the result or the errno.
#[test]
fn setattr_rules() {
    let mut s = Story::new();
    let (root, user, other) = (Cred::root(), user(), other());
    let open = s.open;
    let f = s.make(&user, open, "f", NodeSpec::file(0o644)).unwrap();
    let l = s.make(&user, open, "l", NodeSpec::symlink("x")).unwrap();
    let p = s.make(&user, open, "p", NodeSpec::node(Kind::Fifo, 0o666, 0)).unwrap();
    let none = SetAttr::default;
    let now = Some(TimeSet::Now);
    let then = Some(TimeSet::At(at(5)));
    let table = vec![
        ("chmod by another", s.set(&other, f, SetAttr { perm: Some(0), ..none() }), Errno::Perm),
        ("chmod of a link", s.set(&user, l, SetAttr { perm: Some(0), ..none() }), Errno::NotSupported),
        ("giving away", s.set(&user, f, SetAttr { uid: Some(OTHER), ..none() }), Errno::Perm),
        ("taking", s.set(&other, f, SetAttr { uid: Some(OTHER), ..none() }), Errno::Perm),
        ("a foreign group", s.set(&user, f, SetAttr { gid: Some(OTHER), ..none() }), Errno::Perm),
        ("truncate by another", s.set(&other, f, SetAttr { size: Some(0), ..none() }), Errno::Access),
        ("truncate a directory", s.set(&root, open, SetAttr { size: Some(0), ..none() }), Errno::IsDir),
        ("truncate a fifo", s.set(&root, p, SetAttr { size: Some(0), ..none() }), Errno::Inval),
        ("too large", s.set(&root, f, SetAttr { size: Some(1 << 63), ..none() }), Errno::FileTooBig),
        ("a given time by another", s.set(&other, f, SetAttr { mtime: then, ..none() }), Errno::Perm),
        ("touch without write permission", s.set(&other, f, SetAttr { mtime: now, ..none() }), Errno::Access),
        (
            "no time",
            s.set(&root, f, SetAttr { atime: Some(TimeSet::At(Timespec { sec: 0, nsec: 1 << 30 })), ..none() }),
            Errno::Inval,
        ),
        ("unknown inode", s.set(&root, Ino(999), none()), Errno::Stale),
    ];
    for (rule, result, errno) in table {
        assert_eq!(result, Err(errno), "{rule}");
    }
    s.set(&other, p, SetAttr { atime: now, mtime: now, ..none() }).unwrap();
    assert_eq!((s.attr(p).atime, s.attr(p).mtime), (s.c.now, s.c.now), "touch needs only write permission");
    s.set(&user, f, SetAttr { atime: then, ..none() }).unwrap();
    assert_eq!((s.attr(f).atime, s.attr(f).ctime), (at(5), s.c.now), "utimes sets ctime");
    s.set(&other, f, SetAttr { size: Some(9), open_for_write: true, ..none() }).unwrap();
    assert_eq!((s.attr(f).size, s.attr(f).mtime), (9, s.c.now), "an open for writing is permission enough");
    s.set(&root, f, SetAttr { size: Some(limits::FILE_MAX), ..none() }).unwrap();

    s.set(&user, f, SetAttr { perm: Some(0o6755), ..none() }).unwrap();
    s.set(&user, f, SetAttr { gid: Some(STAFF), ..none() }).unwrap();
    assert_eq!((s.attr(f).gid, s.attr(f).perm), (STAFF, 0o755), "chgrp to a group of mine clears both bits");
    s.set(&root, f, SetAttr { gid: Some(OTHER), ..none() }).unwrap();
    s.set(&user, f, SetAttr { perm: Some(0o2755), ..none() }).unwrap();
    assert_eq!(s.attr(f).perm, 0o755, "no setgid for a group I am not in");
    s.set(&root, f, SetAttr { perm: Some(0o6755), ..none() }).unwrap();
    let before = s.attr(f).ctime;
    let kill = SetAttr { kill_suidgid: true, ..none() };
    s.set(&other, f, SetAttr { open_for_write: true, ..kill }).unwrap();
    assert_eq!((s.attr(f).perm, s.attr(f).ctime), (0o755, s.c.now), "as a write does");
    s.set(&other, f, SetAttr { open_for_write: true, ..kill }).unwrap();
    assert!(s.attr(f).ctime > before && s.attr(f).ctime < s.c.now, "nothing to clear, nothing changed");
    s.set(&root, open, SetAttr { perm: Some(0o2777), ..none() }).unwrap();
    s.set(&root, open, SetAttr { uid: Some(USER), ..none() }).unwrap();
    assert_eq!(s.attr(open).perm, 0o2777, "directories keep the bit");
    s.c.on(f, |st, txn| st.setxattr(&root, f, b"security.capability", b"c", XattrMode::Set, at(0), txn)).unwrap();
    s.set(&root, f, SetAttr { uid: Some(OTHER), ..none() }).unwrap();
    assert_eq!(s.c.stores[0].getxattr(&root, f, b"security.capability"), Err(Errno::NoData), "chown drops it");
    s.c.on(f, |st, txn| st.setxattr(&root, f, b"security.capability", b"c", XattrMode::Set, at(0), txn)).unwrap();
    s.set(&root, f, SetAttr { perm: Some(0o755), ..none() }).unwrap();
    assert!(s.c.stores[0].gives_capabilities(f), "chmod does not");
    s.set(&root, f, SetAttr { size: Some(0), ..none() }).unwrap();
    assert!(!s.c.stores[0].gives_capabilities(f), "truncate does");
}

/// Goal: a user who may not write a file can neither strip it of set-user-id bits and capabilities nor set its change
/// time, and no owner gets around `chattr` with a change time. What belongs to a write needs what a write needs.
/// Method: one call per rule.
#[test]
fn a_write_alone_strips_and_dates() {
    let mut s = Story::new();
    let (root, user, other) = (Cred::root(), user(), other());
    let none = SetAttr::default();
    let (kill, ctime) = (SetAttr { kill_suidgid: true, ..none }, SetAttr { ctime: Some(at(5)), ..none });
    let own = SetAttr { mtime: Some(TimeSet::At(at(4))), ctime: Some(at(5)), ..none };
    let f = s.make(&user, s.open, "f", NodeSpec::file(0o755)).unwrap();
    let d = s.make(&user, s.open, "d", NodeSpec::dir(0o755)).unwrap();
    let arm = |s: &mut Story, perm: u16| {
        s.set(&root, f, SetAttr { perm: Some(perm), ..none }).unwrap();
        for ino in [f, d] {
            let set = |st: &mut MetaStore, txn: &mut Txn| {
                st.setxattr(&root, ino, b"security.capability", b"c", XattrMode::Set, at(0), txn)
            };
            s.c.on(ino, set).unwrap();
        }
    };
    let armed = |s: &Story, ino: Ino| s.c.stores[0].gives_capabilities(ino);
    arm(&mut s, 0o4755);
    let before = s.attr(f);
    for (set, errno) in [(kill, Errno::Access), (ctime, Errno::Perm), (own, Errno::Perm)] {
        assert_eq!(s.set(&other, f, set), Err(errno), "{set:?}");
    }
    assert_eq!(s.set(&other, d, kill), Err(Errno::Access));
    let project = SetAttr { project: Some(0), ..kill };
    assert_eq!(s.set(&other, f, project), Err(Errno::Access), "the project that it has anyway");
    assert!(s.attr(f) == before && armed(&s, f) && armed(&s, d));
    s.set(&other, f, SetAttr { open_for_write: true, ..kill }).unwrap();
    assert!(s.attr(f).perm == 0o755 && !armed(&s, f), "an open for writing");
    s.set(&other, f, SetAttr { open_for_write: true, ..ctime }).unwrap();
    assert_eq!(s.attr(f).ctime, at(5), "an open for writing");
    arm(&mut s, 0o4757);
    s.set(&other, f, kill).unwrap();
    assert!(s.attr(f).perm == 0o757 && !armed(&s, f), "write permission");
    arm(&mut s, 0o4755);
    s.set(&user, f, own).unwrap();
    s.set(&user, f, kill).unwrap();
    assert!(s.attr(f).perm == 0o755 && !armed(&s, f), "the owner");
    assert_eq!((s.attr(f).mtime, s.attr(d).perm), (at(4), 0o755));
    for flags in [FileFlags::IMMUTABLE, FileFlags::APPEND] {
        s.set(&root, f, SetAttr { flags: Some(FileFlags::NONE), ..none }).unwrap();
        arm(&mut s, 0o4755);
        s.set(&root, f, SetAttr { flags: Some(flags), ..none }).unwrap();
        for set in [own, ctime, kill] {
            for cred in [&user, &root] {
                assert_eq!(s.set(cred, f, set), Err(Errno::Perm), "{flags:?} {set:?}");
            }
        }
        s.set(&user, f, SetAttr { open_for_write: true, ..own }).unwrap();
        s.set(&user, f, SetAttr { open_for_write: true, ..kill }).unwrap();
        assert_eq!((s.attr(f).mtime, s.attr(f).perm), (at(4), 0o755), "a write from before {flags:?}");
    }
}

/// Goal: rules of extended attributes. Method: one call per rule.
#[test]
fn xattr_rules() {
    use XattrMode::*;
    let mut s = Story::new();
    let (root, user, other) = (Cred::root(), user(), other());
    let (open, home) = (s.open, s.home);
    let f = s.make(&user, open, "f", NodeSpec::file(0o644)).unwrap();
    let l = s.make(&user, open, "l", NodeSpec::symlink("x")).unwrap();
    let sticky = s.make(&root, open, "t", NodeSpec::dir(0o1777)).unwrap();
    s.set(&root, sticky, SetAttr { perm: Some(0o1777), ..SetAttr::default() }).unwrap();
    let big = vec![0; limits::XATTR_VALUE_MAX + 1];
    let long = [b"user.".as_slice(), &[b'x'; 251]].concat();
    let set = |s: &mut Story, cred: &Cred, ino: Ino, n: &[u8], v: &[u8], mode| {
        s.c.now.sec += 1;
        let now = s.c.now;
        s.c.on(ino, |st, txn| st.setxattr(cred, ino, n, v, mode, now, txn))
    };
    set(&mut s, &user, f, b"user.a", b"1", Create).unwrap();
    assert_eq!(s.attr(f).ctime, s.c.now);
    let table = vec![
        ("create twice", set(&mut s, &user, f, b"user.a", b"2", Create), Errno::Exist),
        ("replace nothing", set(&mut s, &user, f, b"user.b", b"2", Replace), Errno::NoData),
        ("no permission", set(&mut s, &other, f, b"user.a", b"2", Set), Errno::Access),
        ("on a symbolic link", set(&mut s, &user, l, b"user.a", b"2", Set), Errno::Perm),
        ("on another's sticky directory", set(&mut s, &other, sticky, b"user.a", b"2", Set), Errno::Perm),
        ("trusted by a user", set(&mut s, &user, f, b"trusted.a", b"2", Set), Errno::Perm),
        ("security by a user", set(&mut s, &user, f, b"security.a", b"2", Set), Errno::Perm),
        ("no list", set(&mut s, &root, f, b"system.posix_acl_access", b"2", Set), Errno::Inval),
        ("another of the system", set(&mut s, &root, f, b"system.other", b"2", Set), Errno::NotSupported),
        ("no namespace", set(&mut s, &root, f, b"a", b"2", Set), Errno::NotSupported),
        ("no name in it", set(&mut s, &root, f, b"user.", b"2", Set), Errno::Inval),
        ("long name", set(&mut s, &root, f, &long, b"2", Set), Errno::Range),
        ("no name", set(&mut s, &root, f, b"", b"2", Set), Errno::Range),
        ("large value", set(&mut s, &user, f, b"user.a", &big, Set), Errno::TooBig),
        ("remove nothing", s.c.setxattr(&user, f, b"user.b", None), Errno::NoData),
    ];
    for (rule, result, errno) in table {
        assert_eq!(result, Err(errno), "{rule}");
    }
    set(&mut s, &root, f, b"trusted.a", b"t", Set).unwrap();
    set(&mut s, &root, l, b"security.a", b"s", Set).unwrap();
    set(&mut s, &user, home, b"user.h", b"", Set).unwrap();
    let store = &s.c.stores[0];
    assert_eq!(store.getxattr(&other, f, b"user.a"), Ok(Outcome::Done(b"1".as_slice())));
    assert_eq!(store.getxattr(&user, f, b"trusted.a"), Err(Errno::NoData), "trusted is invisible");
    assert_eq!(store.getxattr(&user, l, b"user.a"), Err(Errno::NoData));
    assert_eq!(store.getxattr(&user, l, b"security.a"), Ok(Outcome::Done(b"s".as_slice())));
    assert_eq!(store.getxattr(&user, home, b"user.h"), Ok(Outcome::Done(b"".as_slice())), "an empty value is one");
    assert_eq!(store.listxattr(&user, f), Ok(b"user.a\0".to_vec()));
    assert_eq!(store.listxattr(&root, f), Ok(b"trusted.a\0user.a\0".to_vec()));

    let full = limits::XATTR_VALUE_MAX;
    set(&mut s, &user, f, b"user.big", &vec![1; full], Set).unwrap();
    let left = limits::XATTR_TOTAL_MAX - full - b"user.big".len() - 2 * b"user.a1".len() - 3;
    assert_eq!(set(&mut s, &user, f, b"user.c", &vec![1; left], Set), Err(Errno::NoSpace));
    set(&mut s, &user, f, b"user.big", &vec![2; full], Replace).unwrap();
}

/// Goal: all attributes of an inode fit into one record, which the smallest log has to accept. Method: the largest
/// number of the smallest ones.
#[test]
fn attributes_are_few_enough_for_a_record() {
    let mut s = Story::new();
    let (user, open) = (user(), s.open);
    let f = s.make(&user, open, "f", NodeSpec::file(0o600)).unwrap();
    let mut count = 0;
    while let Ok(()) = s.c.on(f, |st, txn| {
        let name = format!("user.{count:x}");
        st.setxattr(&user, f, name.as_bytes(), b"", XattrMode::Set, at(9), txn)
    }) {
        count += 1;
    }
    assert!((1500..2100).contains(&count), "{count}");
    // The key has the form that a record has: 6 bytes and the key for each.
    let key =
        |i: usize| crate::codec::ItemKey::Xattr { local: f.local(), name: format!("user.{i:x}").as_bytes().into() };
    let bytes: usize = (0..count).map(|i| 6 + key(i).encode().len()).sum();
    assert!(bytes < limits::XATTR_TOTAL_MAX, "{bytes}");
}

/// Goal: layouts are fixed by data. Method: one call per rule.
#[test]
fn layout_rules() {
    let mut s = Story::new();
    let (root, user, other) = (Cred::root(), user(), other());
    let open = s.open;
    let f = s.make(&user, open, "f", NodeSpec::file(0o666)).unwrap();
    let l = s.make(&user, open, "l", NodeSpec::symlink("x")).unwrap();
    let new = Layout { stripe_count: 9, ..Layout::growing(4) };
    let bad = Layout { stripe_size: 5, ..new };
    let mut set = |cred: &Cred, ino: Ino, layout, has_data| {
        s.c.on(ino, |st, txn| st.set_layout(cred, ino, Some(layout), None, has_data, at(9), txn))
    };
    assert_eq!(set(&other, f, new, false), Err(Errno::Perm));
    assert_eq!(set(&user, f, bad, false), Err(Errno::Inval));
    assert_eq!(set(&user, l, new, false), Err(Errno::Inval));
    assert_eq!(set(&user, f, new, true), Err(Errno::Busy));
    assert_eq!(set(&user, f, new, false), Ok(()));
    assert_eq!(set(&user, f, new, true), Ok(()), "what it has already");
    s.set(&user, f, SetAttr { size: Some(5), ..SetAttr::default() }).unwrap();
    let other_layout = Layout { stripe_count: 2, ..new };
    let set = s.c.on(f, |st, txn| st.set_layout(&root, f, Some(other_layout), None, false, at(9), txn));
    assert_eq!(set, Err(Errno::Busy), "a length counts as data");
    let buffered = Some(AskedAdvice::Mode(IoMode::Buffered));
    s.c.on(f, |st, txn| st.set_layout(&root, f, None, buffered, true, at(9), txn)).unwrap();
    assert_eq!(s.c.stores[0].inode(f).unwrap().advice, Advice::from(IoMode::Buffered));
}

/// Goal: size and mtime of a file that grows on several targets. Method: its life as the server drives it:
/// spread, gathered, truncated, trimmed, settled, with explicit times in between.
#[test]
fn life_of_a_spread_file() {
    let mut s = Story::new();
    let user = user();
    let f = s.make(&user, s.open, "f", NodeSpec::file(0o666)).unwrap();
    let d = s.open;
    assert_eq!(s.c.on(d, |st, txn| st.mark_spread(d, txn)), Err(Errno::Inval));
    s.c.on(f, |st, txn| st.mark_spread(f, txn)).unwrap();
    let mut txn = Txn::default();
    s.c.stores[0].mark_spread(f, &mut txn).unwrap();
    assert!(txn.is_empty(), "known already: nothing to log");

    let made = s.attr(f).mtime.sec;
    let mut objects = Gathered { size: 100, mtime: at(made + 10), blocks: 8 };
    objects.join(&Gathered { size: 900, mtime: at(made + 5), blocks: 16 });
    assert_eq!(objects, Gathered { size: 900, mtime: at(made + 10), blocks: 24 });
    let view = |s: &Story, o: &Gathered| {
        let a = s.c.stores[0].inode(f).unwrap().attr_with(f, o);
        (a.size, a.mtime.sec - made, a.blocks)
    };
    assert_eq!(view(&s, &objects), (900, 10, 24));
    assert_eq!(view(&s, &Gathered::default()), (0, 0, 0), "no object written yet");

    s.c.now = at(made + 20);
    s.c.setattr(&user, f, &SetAttr { mtime: Some(TimeSet::At(at(made + 77))), ..SetAttr::default() }).unwrap();
    assert_eq!(view(&s, &objects), (900, 77, 24), "the explicit time wins over older writes");
    objects.mtime = at(made + 21);
    assert_eq!(view(&s, &objects), (900, 21, 24), "and loses to a newer write, though that is smaller");

    s.c.now = at(made + 30);
    s.c.setattr(&user, f, &SetAttr { size: Some(50), ..SetAttr::default() }).unwrap();
    let inode = s.c.stores[0].inode(f).unwrap();
    assert_eq!((inode.objects.generation, inode.pending), (1, Pending { trim: true, destroy: false }));
    s.c.on(f, |st, txn| st.trim_done(f, 0, txn)).unwrap();
    assert_eq!(s.c.stores[0].pending().len(), 1, "that was an older truncation");
    s.c.on(f, |st, txn| st.trim_done(f, 1, txn)).unwrap();
    assert_eq!(s.c.stores[0].pending(), []);
    objects = Gathered { size: 50, mtime: at(made + 21), blocks: 8 };
    assert_eq!(view(&s, &objects), (50, 30, 8), "truncation is a change of content");
    objects = Gathered { size: 60, mtime: at(made + 31), blocks: 8 };
    s.c.on(f, |st, txn| st.settle(f, &objects, txn)).unwrap();
    let inode = s.c.stores[0].inode(f).unwrap();
    assert!(!inode.objects.spread && inode.objects.wide, "other targets keep their objects");
    assert_eq!((inode.size, inode.times.mtime, inode.times.ctime, inode.blocks), (60, at(made + 31), at(made + 31), 8));
}

/// Goal: plans that were overtaken by another change are refused with the reason. Method: parts whose assumptions do
/// not hold.
#[test]
fn conflicts_are_told_apart() {
    let mut s = Story::new();
    let (root, open) = (Cred::root(), s.open);
    let f = s.make(&root, open, "f", NodeSpec::file(0o666)).unwrap();
    let d = s.make(&root, open, "d", NodeSpec::dir(0o777)).unwrap();
    s.make(&root, d, "in", NodeSpec::file(0o666)).unwrap();
    let dead = s.make(&root, open, "dead", NodeSpec::dir(0o777)).unwrap();
    s.c.unlink(&root, open, &name("dead"), true).unwrap();
    let gone = Ino(4000);
    let conflict = Err(Refusal::Conflict);
    let errno = |e| Err(Refusal::Errno(e));
    let insert = |dir, n| Part::InsertDentry { dir, name: name(n), child: f, kind: Kind::File };
    for (part, wanted) in [
        (insert(open, "new"), Ok(())),
        (insert(open, "f"), conflict),
        (insert(gone, "f"), conflict),
        (insert(dead, "f"), errno(Errno::NoEnt)),
        (insert(f, "f"), errno(Errno::NotDir)),
        (Part::RemoveDentry { dir: open, name: name("f"), expect: f }, Ok(())),
        (Part::RemoveDentry { dir: open, name: name("f"), expect: d }, conflict),
        (Part::RemoveDentry { dir: open, name: name("x"), expect: f }, conflict),
        (Part::ReplaceDentry { dir: open, name: name("x"), expect: f, child: d, kind: Kind::Dir }, conflict),
        (Part::Link { ino: gone }, conflict),
        (Part::Link { ino: d }, errno(Errno::Perm)),
        (Part::Unlink { ino: f, kind: Kind::Dir }, conflict),
        (Part::Unlink { ino: d, kind: Kind::Dir }, errno(Errno::NotEmpty)),
        (Part::Unlink { ino: dead, kind: Kind::Dir }, conflict),
        (Part::TouchDir { dir: open, links: -1 }, Ok(())),
        (Part::TouchDir { dir: open, links: -2 }, conflict),
        (Part::SetParent { ino: f, parent: d }, conflict),
        (Part::TouchCtime { ino: gone }, conflict),
    ] {
        assert_eq!(s.c.stores[0].check_parts(std::slice::from_ref(&part)), wanted, "{part:?}");
    }
    let root_inode = s.c.stores[0].facts(Ino::ROOT).unwrap();
    let parts = crate::plan::make(&root, &root_inode, &name("x"), false, &NodeSpec::file(0), f).unwrap();
    assert_eq!(s.c.stores[0].check_parts(&parts), conflict, "the number is taken");
}
