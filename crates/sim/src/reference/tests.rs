//! Tests of the reference: stories whose outcomes POSIX and Linux fix.

use super::*;
use crate::dice::bytes_of;
use crate::op::Stamp;
use amphi_client::Fallocate;
use amphi_wire::{RenameMode, XattrMode};

const TOP: Ino = Ino(1);

struct Story {
    r: Reference,
    cred: Cred,
    next: u64,
}

impl Story {
    fn new() -> Story {
        Story { r: Reference::new(TOP, 0o755, 0, 0), cred: Cred::root(), next: 100 }
    }

    fn run(&mut self, op: Op) -> Result<Outcome> {
        self.next += 1;
        let t = Timespec { sec: self.next as i64, nsec: 0 };
        self.r.apply(&self.cred.clone(), &op, (t, t), Some(Ino(self.next)))
    }

    /// Makes something and returns its number.
    fn made(&mut self, op: Op) -> Ino {
        match self.run(op.clone()) {
            Ok(Outcome::Attr(s) | Outcome::Opened(s, true)) => s.ino,
            other => panic!("{op}: {other:?}"),
        }
    }

    fn create(&mut self, dir: Ino, name: &str, handle: Handle) -> Ino {
        let name = name.into();
        self.made(Op::Create { dir, name, perm: 0o644, flags: OpenFlags::READ_WRITE, handle })
    }

    fn mkdir(&mut self, dir: Ino, name: &str) -> Ino {
        self.made(Op::Mkdir { dir, name: name.into(), perm: 0o755 })
    }

    fn rename(&mut self, from: (Ino, &str), to: (Ino, &str), mode: RenameMode) -> Result<Outcome> {
        let (from, from_name, to, to_name) = (from.0, from.1.into(), to.0, to.1.into());
        self.run(Op::Rename { from, from_name, to, to_name, mode })
    }

    fn bytes(&mut self, handle: Handle) -> Vec<u8> {
        match self.run(Op::Read { handle, offset: 0, len: 1 << 20, direct: false }) {
            Ok(Outcome::Bytes(b)) => b,
            other => panic!("{other:?}"),
        }
    }
}

/// Goal: renames obey Linux' rules. Method: one story with each refusal.
#[test]
fn renames() {
    let mut s = Story::new();
    let (a, f) = (s.mkdir(TOP, "a"), s.create(TOP, "f", 1));
    let b = s.mkdir(a, "b");
    let e = Err::<Outcome, _>;
    assert_eq!(s.rename((TOP, "a"), (b, "x"), RenameMode::Replace), e(Errno::Inval), "into itself");
    assert_eq!(s.rename((a, "b"), (TOP, "a"), RenameMode::Replace), e(Errno::NotEmpty), "over an ancestor");
    assert_eq!(s.rename((a, "b"), (TOP, "a"), RenameMode::Exchange), e(Errno::Inval));
    assert_eq!(s.rename((TOP, "f"), (TOP, "a"), RenameMode::Replace), e(Errno::IsDir));
    assert_eq!(s.rename((TOP, "a"), (TOP, "f"), RenameMode::Replace), e(Errno::NotDir));
    assert_eq!(s.rename((TOP, "a"), (TOP, "f"), RenameMode::NoReplace), e(Errno::Exist));
    assert_eq!(s.rename((TOP, "f"), (TOP, "g"), RenameMode::Exchange), e(Errno::NoEnt));
    assert_eq!(s.rename((TOP, "f"), (a, "b"), RenameMode::Exchange), Ok(Outcome::Done));
    assert_eq!(s.r.dir(a).unwrap().0.get(&b"b"[..]), Some(&f));
    assert_eq!(s.r.dir(b).unwrap().1, TOP, "a moved directory knows its parent");
    assert_eq!((s.r.node(TOP).unwrap().nlink, s.r.node(a).unwrap().nlink), (4, 2));
    s.run(Op::Link { ino: f, dir: TOP, name: b"g".to_vec() }).unwrap();
    assert_eq!(s.rename((TOP, "g"), (a, "b"), RenameMode::Replace), Ok(Outcome::Done), "both names stay");
    assert_eq!(s.r.node(f).unwrap().nlink, 2);
}

/// Goal: an unlinked open file lives until its last close. Method: unlink, write, read, close.
#[test]
fn unlinked_open_files() {
    let mut s = Story::new();
    let f = s.create(TOP, "f", 1);
    s.run(Op::Unlink { dir: TOP, name: b"f".to_vec() }).unwrap();
    s.run(Op::Write { handle: 1, offset: 3, stamp: Stamp { tag: 9, len: 5 }, direct: false }).unwrap();
    assert_eq!(s.bytes(1)[3..], bytes_of(9, 5));
    assert_eq!(s.r.node(f).unwrap().nlink, 0);
    assert_eq!(s.run(Op::Link { ino: f, dir: TOP, name: b"g".to_vec() }), Err(Errno::NoEnt));
    s.run(Op::Close { handle: 1 }).unwrap();
    assert!(s.r.node(f).is_err());
    let tmp = Op::Tmpfile { dir: TOP, perm: 0o600, flags: OpenFlags::READ_WRITE, handle: 2 };
    let t = s.made(tmp);
    s.run(Op::Link { ino: t, dir: TOP, name: b"t".to_vec() }).unwrap();
    s.run(Op::Close { handle: 2 }).unwrap();
    assert_eq!(s.r.node(t).unwrap().nlink, 1);
}

/// Goal: content follows writes, appends, holes, cuts and punches. Method: the same on a byte vector.
#[test]
fn content() {
    let mut s = Story::new();
    let f = s.create(TOP, "f", 1);
    let append = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
    s.run(Op::Open { ino: f, flags: append, handle: 2 }).unwrap();
    let mut want = vec![0; 10];
    want.extend(bytes_of(1, 20));
    s.run(Op::Write { handle: 1, offset: 10, stamp: Stamp { tag: 1, len: 20 }, direct: false }).unwrap();
    s.run(Op::Write { handle: 2, offset: 0, stamp: Stamp { tag: 2, len: 4 }, direct: false }).unwrap();
    want.extend(bytes_of(2, 4));
    assert_eq!(s.bytes(1), want);
    s.run(Op::Fallocate { handle: 1, mode: Fallocate::PunchHole, offset: 12, len: 1000 }).unwrap();
    want[12..].fill(0);
    assert_eq!(s.bytes(1), want);
    s.run(Op::Truncate { ino: f, size: 11, handle: Some(1) }).unwrap();
    s.run(Op::Fallocate { handle: 1, mode: Fallocate::Allocate, offset: 0, len: 14 }).unwrap();
    want.truncate(11);
    want.resize(14, 0);
    assert_eq!(s.bytes(1), want);
    assert_eq!(
        s.run(Op::Copy { from: 1, from_offset: 0, to: 1, to_offset: 5, len: 10 }),
        Err(Errno::Inval),
        "overlapping"
    );
    assert_eq!(
        s.run(Op::Copy { from: 1, from_offset: 8, to: 1, to_offset: 100, len: 50 }),
        Ok(Outcome::Count(6)),
        "up to the end"
    );
}

/// Goal: permissions, sticky directories and groups have the effects that POSIX specifies. Method: three users on one
/// directory.
#[test]
fn permissions() {
    let mut s = Story::new();
    let d = s.made(Op::Mkdir { dir: TOP, name: b"d".to_vec(), perm: 0o1777 });
    let user = |uid| Cred::new(uid, uid, vec![50]);
    s.cred = user(7);
    let f = s.create(d, "f", 1);
    assert_eq!(s.run(Op::Mkdir { dir: TOP, name: b"x".to_vec(), perm: 0o755 }), Err(Errno::Access));
    assert_eq!(s.run(Op::Mkdir { dir: TOP, name: b"d".to_vec(), perm: 0o755 }), Err(Errno::Exist));
    s.cred = user(8);
    assert_eq!(s.run(Op::Unlink { dir: d, name: b"f".to_vec() }), Err(Errno::Perm), "sticky");
    assert_eq!(s.run(Op::Open { ino: f, flags: OpenFlags::WRITE, handle: 2 }), Err(Errno::Access));
    assert_eq!(s.run(Op::Chmod { ino: f, perm: 0o666 }), Err(Errno::Perm));
    s.cred = user(7);
    assert!(s.run(Op::Chown { ino: f, uid: None, gid: Some(50) }).is_ok());
    assert_eq!(s.run(Op::Chown { ino: f, uid: None, gid: Some(51) }), Err(Errno::Perm));
    assert!(s.run(Op::Chmod { ino: f, perm: 0o060 }).is_ok());
    s.cred = user(8);
    assert!(s.run(Op::Open { ino: f, flags: OpenFlags::READ_WRITE, handle: 2 }).is_ok(), "by group");
    s.cred = user(7);
    assert_eq!(s.run(Op::Open { ino: f, flags: OpenFlags::READ, handle: 3 }), Err(Errno::Access), "owner's bits alone");
}

/// Goal: extended attributes are set, replaced and refused by their rules. Method: story.
#[test]
fn extended_attributes() {
    let mut s = Story::new();
    let f = s.create(TOP, "f", 1);
    let set = |mode| Op::SetXattr { ino: f, name: b"user.a".to_vec(), value: vec![1], mode };
    assert_eq!(s.run(set(XattrMode::Replace)), Err(Errno::NoData));
    assert!(s.run(set(XattrMode::Create)).is_ok());
    assert_eq!(s.run(set(XattrMode::Create)), Err(Errno::Exist));
    assert_eq!(s.run(Op::GetXattr { ino: f, name: b"user.a".to_vec() }), Ok(Outcome::Bytes(vec![1])));
    assert!(s.run(Op::RemoveXattr { ino: f, name: b"user.a".to_vec() }).is_ok());
    assert_eq!(s.run(Op::RemoveXattr { ino: f, name: b"user.a".to_vec() }), Err(Errno::NoData));
}
