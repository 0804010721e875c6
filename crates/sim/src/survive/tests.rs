//! Tests of what may survive: small stories with the tree found after a crash.

use super::*;
use crate::dice::bytes_of;
use crate::observe::Node;
use crate::op::{Op, Seen, Stamp};
use amphi_client::OpenFlags;
use amphi_types::{Cred, Timespec};
use amphi_wire::RenameMode;

const TOP: Ino = Ino(1);

struct Story {
    now: Reference,
    written: Survival,
    stable: Survival,
    next: u64,
}

impl Story {
    fn new() -> Story {
        let now = Reference::new(TOP, 0o755, 0, 0);
        let level = |l| Survival::settled(l, &now);
        Story { written: level(Level::Written), stable: level(Level::Stable), next: 10, now }
    }

    fn run(&mut self, op: Op) -> Ino {
        self.next += 1;
        let ino = Ino(self.next);
        let t = Timespec::default();
        self.now.apply(&Cred::root(), &op, (t, t), Some(ino)).unwrap_or_else(|e| panic!("{op}: {e}"));
        self.written.apply(self.now.effects(), &self.now, true);
        self.stable.apply(self.now.effects(), &self.now, true);
        ino
    }

    fn create(&mut self, name: &str, handle: u32) -> Ino {
        let flags = OpenFlags::READ_WRITE;
        self.run(Op::Create { dir: TOP, name: name.into(), perm: 0o644, flags, handle })
    }

    fn write(&mut self, handle: u32, offset: u64, tag: u64, direct: bool) {
        self.run(Op::Write { handle, offset, stamp: Stamp { tag, len: 4 }, direct });
    }

    /// Number of complaints at both levels.
    fn judge(&self, tree: &Tree) -> (usize, usize) {
        (self.written.judge(tree).len(), self.stable.judge(tree).len())
    }
}

/// A tree with these files in its top.
fn tree(files: &[(&str, Ino, &[u8])]) -> Tree {
    let seen = |ino, kind, nlink, size| {
        let (perm, t) = (if kind == Kind::Dir { 0o755 } else { 0o644 }, Timespec::default());
        Seen { ino, kind, perm, nlink, uid: 0, gid: 0, size, mtime: t, ctime: t }
    };
    let entries = files.iter().map(|(n, i, _)| (Name::from(*n), *i)).collect();
    let mut tree = Tree::empty(TOP);
    let top = Node { seen: seen(TOP, Kind::Dir, 2, 0), body: Found::Dir(entries), xattrs: BTreeMap::new() };
    tree.nodes.insert(TOP, top);
    for (_, ino, bytes) in files {
        let links = files.iter().filter(|(_, i, _)| i == ino).count() as u32;
        let seen = seen(*ino, Kind::File, links, bytes.len() as u64);
        tree.nodes.insert(*ino, Node { seen, body: Found::File(bytes.to_vec()), xattrs: BTreeMap::new() });
    }
    tree
}

/// Goal: a name is required at each level exactly when it was promised (Promise S9, Promise S10). Method: create, read
/// an empty directory, fsync, read again.
#[test]
fn names_are_demanded_when_promised() {
    let mut s = Story::new();
    let f = s.create("f", 1);
    let wrong = s.judge(&tree(&[]));
    assert!(wrong.0 > 0 && wrong.1 == 0, "killed processes lose no name, lost power may: {wrong:?}");
    s.run(Op::Fsync { handle: 1, datasync: false });
    let wrong = s.judge(&tree(&[]));
    assert!(wrong.0 > 0 && wrong.1 > 0);
    assert_eq!(s.judge(&tree(&[("f", f, b"")])), (0, 0));
    assert!(s.judge(&tree(&[("f", f, b""), ("g", Ino(99), b"")])).1 > 0, "nobody made g");
}

/// Goal: a rename leaves one name (Promise S5). Method: after a rename and a loss of power, the judge is given trees
/// with only the old name, only the new one, both and neither.
#[test]
fn renames_are_atomic() {
    let mut s = Story::new();
    let f = s.create("a", 1);
    s.run(Op::SyncAll);
    s.run(Op::Rename { from: TOP, from_name: b"a".into(), to: TOP, to_name: b"b".into(), mode: RenameMode::Replace });
    assert_eq!(s.judge(&tree(&[("b", f, b"")])), (0, 0));
    assert_eq!(s.stable.judge(&tree(&[("a", f, b"")])), Vec::<String>::new());
    assert!(s.written.judge(&tree(&[("a", f, b"")])).len() > 1);
    assert!(s.stable.judge(&tree(&[])).len() == 1);
    assert!(s.stable.judge(&tree(&[("a", f, b""), ("b", f, b"")])).len() == 1);
}

/// Goal: bytes are demanded exactly when promised, and no others are let in. Method: buffered, direct and synced
/// writes; then old, new, mixed and foreign bytes are found.
#[test]
fn bytes_are_demanded_when_promised() {
    let mut s = Story::new();
    let f = s.create("f", 1);
    s.run(Op::SyncAll);
    s.write(1, 0, 7, false);
    let (one, two) = (bytes_of(7, 4), bytes_of(8, 4));
    for good in [&b""[..], &one, &[0, 0, one[2], one[3]], &one[..2]] {
        assert_eq!(s.judge(&tree(&[("f", f, good)])), (0, 0), "{good:?}");
    }
    assert_eq!(s.judge(&tree(&[("f", f, &two)])), (1, 1), "bytes of nobody");
    s.write(1, 0, 8, true);
    assert_eq!(s.judge(&tree(&[("f", f, &two)])), (0, 0));
    assert_eq!(s.judge(&tree(&[("f", f, &one)])), (1, 0), "a direct write survives the processes");
    s.run(Op::Truncate { ino: f, size: 2, handle: None });
    assert_eq!(s.judge(&tree(&[("f", f, &two)])), (1, 0));
    s.run(Op::Fsync { handle: 1, datasync: true });
    assert_eq!(s.judge(&tree(&[("f", f, &two[..2])])), (0, 0));
    assert_eq!(s.judge(&tree(&[("f", f, &two)])), (1, 1));
}

/// Goal: a call that a crash cut off may have happened or not, and nothing else. Method: a create and an unlink.
#[test]
fn calls_under_way() {
    let mut s = Story::new();
    let f = s.create("f", 1);
    s.run(Op::SyncAll);
    for op in [
        Op::Create { dir: TOP, name: b"n".to_vec(), perm: 0o600, flags: OpenFlags::WRITE, handle: 9 },
        Op::Unlink { dir: TOP, name: b"f".to_vec() },
    ] {
        let mut then = s.now.clone();
        let t = Timespec::default();
        then.apply(&Cred::root(), &op, (t, t), None).unwrap();
        s.written.apply(then.effects(), &then, false);
        s.stable.apply(then.effects(), &then, false);
    }
    assert_eq!(s.judge(&tree(&[("f", f, b"")])), (0, 0));
    assert_eq!(s.judge(&tree(&[("n", Ino(77), b"")])), (0, 0));
    assert!(s.judge(&tree(&[("m", Ino(77), b"")])).0 > 0);
    assert!(s.judge(&tree(&[("n", f, b"")])).0 > 0, "the new name leads to a new inode");
}

/// Goal: a stable directory guarantees nothing about another directory's name of the same file: lost power may restore
/// it, a killed process not. Method: one file in two directories; the name in the first is removed, the second is
/// synced.
#[test]
fn a_name_elsewhere_may_come_back() {
    let mut s = Story::new();
    let f = s.create("f", 1);
    let dir = s.run(Op::Mkdir { dir: TOP, name: b"d".to_vec(), perm: 0o755 });
    s.run(Op::Link { ino: f, dir, name: b"g".to_vec() });
    s.run(Op::SyncAll);
    s.run(Op::Unlink { dir: TOP, name: b"f".to_vec() });
    s.run(Op::FsyncDir { dir });
    let both = |there: &[(&str, Ino, &[u8])], links: u32| {
        let mut found = tree(there);
        let below = tree(&[("g", f, b"")]).nodes;
        let mut node = below[&TOP].clone();
        node.seen.ino = dir;
        found.nodes.insert(dir, node);
        found.nodes.insert(f, below[&f].clone());
        found.nodes.get_mut(&f).unwrap().seen.nlink = links;
        let top = found.nodes.get_mut(&TOP).unwrap();
        top.seen.nlink = 3;
        let Found::Dir(entries) = &mut top.body else { panic!("the top is a directory") };
        entries.insert(b"d".to_vec(), dir);
        found
    };
    assert_eq!(s.judge(&both(&[], 1)), (0, 0));
    let wrong = s.judge(&both(&[("f", f, b"")], 2));
    assert!(wrong.0 > 0 && wrong.1 == 0, "{wrong:?}");
    s.run(Op::FsyncDir { dir: TOP });
    assert!(s.judge(&both(&[("f", f, b"")], 2)).1 > 0);
}

/// Goal: a new file contains only bytes that were written to it, and a file of O_TMPFILE has its permissions once it
/// has a name. Method: both are found with bytes that were never written and with other permissions; a file whose
/// creation was interrupted is found with bytes.
#[test]
fn new_files_are_empty() {
    let mut s = Story::new();
    let a = s.create("a", 1);
    s.run(Op::FsyncDir { dir: TOP });
    assert_eq!(s.judge(&tree(&[("a", a, b"")])), (0, 0));
    assert_eq!(s.judge(&tree(&[("a", a, b"x")])), (1, 1));
    let flags = OpenFlags::READ_WRITE;
    for (perm, wrong) in [(0o644, 0), (0o600, 1)] {
        let name = format!("t{perm}");
        let t = s.run(Op::Tmpfile { dir: TOP, perm, flags, handle: u32::from(perm) });
        s.run(Op::Link { ino: t, dir: TOP, name: name.clone().into() });
        s.run(Op::FsyncDir { dir: TOP });
        assert_eq!(s.judge(&tree(&[("a", a, b""), (&name, t, b"")])), (wrong, wrong), "{perm:o}");
        s.run(Op::Unlink { dir: TOP, name: name.into() });
        s.run(Op::FsyncDir { dir: TOP });
    }
    let t = Timespec::default();
    let cut_off = Op::Create { dir: TOP, name: b"b".into(), perm: 0o644, flags, handle: 9 };
    let mut then = s.now.clone();
    then.apply(&Cred::root(), &cut_off, (t, t), None).expect("it could have been made");
    s.written.apply(then.effects(), &then, false);
    s.stable.apply(then.effects(), &then, false);
    assert_eq!(s.judge(&tree(&[("a", a, b""), ("b", Ino(99), b"")])), (0, 0));
    assert_eq!(s.judge(&tree(&[("a", a, b""), ("b", Ino(99), b"x")])), (1, 1));
}
