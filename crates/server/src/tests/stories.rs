//! Stories of the name space.

use super::*;
use amphi_types::{SetAttr, TimeSet, Timespec, layout};

/// A name below `parent` whose sub-directory lives on `target`.
fn dir_name(parent: Ino, target: u16, pool: u16) -> String {
    (0..)
        .map(|i| format!("d{i}"))
        .find(|n| layout::directory_target(parent, n.as_bytes(), pool).0 == target)
        .expect("a name")
}

/// Goal: making, looking up, listing and removing work with directories on every target, with one and with several
/// workers.
#[test]
fn names_come_and_go() {
    for workers in [1, 3] {
        with_server(7, 4, workers, async |_, c| {
            let mut dirs = Vec::new();
            for t in 0..4 {
                let text = dir_name(Ino::ROOT, t, 4);
                let dir = c.mkdir(Ino::ROOT, &text).await.unwrap();
                assert_eq!(dir.target(), TargetId(t));
                assert_eq!(c.mkdir(Ino::ROOT, &text).await, Err(Errno::Exist));
                let file = c.create(dir, "file").await.unwrap();
                assert_eq!(file.target(), dir.target(), "a file's inode lies with its directory");
                assert_eq!(c.lookup(dir, "file").await.unwrap().attr.ino, file);
                assert_eq!(c.lookup(dir, "none").await.map(|_| ()), Err(Errno::NoEnt));
                assert_eq!(c.list(dir).await.unwrap(), ["file"]);
                assert_eq!(c.call(Request::Parent { dir }).await, Ok(Reply::Ino(Ino::ROOT)));
                dirs.push((text, dir));
            }
            assert_eq!(c.stat(Ino::ROOT).await.unwrap().nlink, 6);
            for (text, dir) in &dirs {
                assert_eq!(c.rmdir(Ino::ROOT, text).await, Err(Errno::NotEmpty));
                assert_eq!(c.unlink(Ino::ROOT, text).await, Err(Errno::IsDir));
                assert_eq!(c.rmdir(*dir, "file").await, Err(Errno::NotDir));
                c.unlink(*dir, "file").await.unwrap();
                c.rmdir(Ino::ROOT, text).await.unwrap();
                assert_eq!(c.create(*dir, "late").await, Err(Errno::Stale));
            }
            assert_eq!(c.stat(Ino::ROOT).await.unwrap().nlink, 2);
            assert!(c.list(Ino::ROOT).await.unwrap().is_empty());
        });
    }
}

/// Goal: hard links and renames over targets work: replacing, exchanging and refusing. Loops are refused.
#[test]
fn links_and_renames_over_targets() {
    with_server(8, 3, 2, async |_, c| {
        let a = c.mkdir(Ino::ROOT, &dir_name(Ino::ROOT, 1, 3)).await.unwrap();
        let b_name = dir_name(Ino::ROOT, 2, 3);
        let b = c.mkdir(Ino::ROOT, &b_name).await.unwrap();
        let f = c.create(a, "f").await.unwrap();
        let view = c.link(f, b, "g").await.unwrap();
        assert_eq!(view.attr.nlink, 2);
        assert_eq!(c.lookup(b, "g").await.unwrap().attr.ino, f);
        c.unlink(a, "f").await.unwrap();
        assert_eq!(c.stat(f).await.unwrap().nlink, 1);
        c.rename((b, "g"), (a, "h"), RenameMode::Replace).await.unwrap();
        assert_eq!(c.lookup(a, "h").await.unwrap().attr.ino, f);
        let other = c.create(b, "other").await.unwrap();
        assert_eq!(c.rename((a, "h"), (b, "other"), RenameMode::NoReplace).await, Err(Errno::Exist));
        assert_eq!(c.replaced((a, "h"), (b, "other"), RenameMode::Exchange).await, Ok(None));
        assert_eq!(c.lookup(b, "other").await.unwrap().attr.ino, f);
        assert_eq!(c.lookup(a, "h").await.unwrap().attr.ino, other);
        c.link(f, a, "second").await.unwrap();
        assert_eq!(c.replaced((a, "second"), (b, "other"), RenameMode::Replace).await, Ok(None), "two names of one");
        c.create(a, "third").await.unwrap();
        assert_eq!(c.replaced((a, "third"), (a, "second"), RenameMode::Replace).await, Ok(None), "it has another name");
        assert_eq!(c.replaced((a, "h"), (b, "other"), RenameMode::Replace).await, Ok(Some(f)));
        c.unlink(a, "second").await.unwrap();
        assert_eq!(c.stat(f).await, Err(Errno::Stale), "replaced, closed, gone");
        assert_eq!(c.lookup(b, "other").await.unwrap().attr.ino, other);

        let inner = c.mkdir(a, "inner").await.unwrap();
        c.rename((a, "inner"), (b, "moved"), RenameMode::Replace).await.unwrap();
        assert_eq!(c.call(Request::Parent { dir: inner }).await, Ok(Reply::Ino(b)));
        assert_eq!((c.stat(a).await.unwrap().nlink, c.stat(b).await.unwrap().nlink), (2, 3));
        assert_eq!(c.rename((Ino::ROOT, &b_name), (inner, "loop"), RenameMode::Replace).await, Err(Errno::Inval));
        c.create(inner, "x").await.unwrap();
        assert_eq!(c.rename((b, "other"), (b, "moved"), RenameMode::Replace).await, Err(Errno::IsDir));
        c.mkdir(a, "empty").await.unwrap();
        assert_eq!(c.rename((a, "empty"), (b, "moved"), RenameMode::Replace).await, Err(Errno::NotEmpty));
        c.rename((b, "moved"), (a, "empty"), RenameMode::Replace).await.unwrap();
        assert_eq!(c.list(inner).await.unwrap(), ["x"]);
        assert_eq!(c.stat(a).await.unwrap().nlink, 3);
    });
}

/// Goal: an unlinked open file lives until closed, also one of another target.
#[test]
fn open_files_outlive_their_names() {
    with_server(9, 2, 2, async |_, c| {
        let d = c.mkdir(Ino::ROOT, &dir_name(Ino::ROOT, 1, 2)).await.unwrap();
        let f = c.make(d, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        c.rename((d, "f"), (Ino::ROOT, "f"), RenameMode::Replace).await.unwrap();
        c.unlink(Ino::ROOT, "f").await.unwrap();
        assert_eq!(c.stat(f).await.unwrap().nlink, 0);
        let linked = c.link(f, d, "again").await.map(|_| ());
        assert_eq!(linked, Err(Errno::NoEnt), "it had a name before");
        c.call(Request::Close { ino: f, access: RW, atime: None }).await.unwrap();
        assert_eq!(c.stat(f).await, Err(Errno::Stale));

        let op = Request::MakeTmp { dir: d, perm: 0o600, umask: 0, open: RW };
        let t = c.inode(op).await.unwrap().attr.ino;
        assert_eq!(c.link(t, Ino::ROOT, "named").await.unwrap().attr.nlink, 1);
        c.call(Request::Close { ino: t, access: RW, atime: None }).await.unwrap();
        assert_eq!(c.lookup(Ino::ROOT, "named").await.unwrap().attr.ino, t);
    });
}

/// Goal: the server checks permissions; attributes and xattrs keep the values that were set.
#[test]
fn permissions_and_attributes() {
    with_server(10, 2, 1, async |_, c| {
        let d = c.mkdir(Ino::ROOT, "d").await.unwrap();
        let f = c.create(d, "f").await.unwrap();
        *c.cred.borrow_mut() = Cred::new(5, 5, vec![]);
        assert_eq!(c.create(d, "g").await, Err(Errno::Access));
        assert_eq!(c.unlink(d, "f").await, Err(Errno::Access));
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        assert_eq!(c.inode(Request::SetAttr { ino: f, set }).await.map(|_| ()), Err(Errno::Perm));
        *c.cred.borrow_mut() = Cred::root();
        let at = Timespec { sec: 5, nsec: 7 };
        let set = SetAttr { perm: Some(0o640), uid: Some(5), mtime: Some(TimeSet::At(at)), ..SetAttr::default() };
        let attr = c.inode(Request::SetAttr { ino: f, set }).await.unwrap().attr;
        assert_eq!((attr.perm, attr.uid, attr.mtime), (0o640, 5, at));
        let set = |value: &[u8]| Request::SetXattr {
            ino: f,
            name: b"user.a".to_vec(),
            value: value.to_vec(),
            mode: amphi_wire::XattrMode::Set,
        };
        c.call(set(b"1")).await.unwrap();
        c.call(set(b"22")).await.unwrap();
        let got = c.call(Request::GetXattr { ino: f, name: b"user.a".to_vec() }).await;
        assert_eq!(got, Ok(Reply::Bytes(b"22".to_vec())));
        assert_eq!(c.call(Request::ListXattr { ino: f }).await, Ok(Reply::Bytes(b"user.a\0".to_vec())));
        c.call(Request::RemoveXattr { ino: f, name: b"user.a".to_vec() }).await.unwrap();
        assert_eq!(c.call(Request::GetXattr { ino: f, name: b"user.a".to_vec() }).await, Err(Errno::NoData));
        let link = c.make(d, "l", Make::Symlink(b"to/where".to_vec())).await.unwrap();
        assert_eq!(c.call(Request::ReadLink { ino: link }).await, Ok(Reply::Bytes(b"to/where".to_vec())));
        let fifo = c.make(d, "p", Make::Node { kind: Kind::Fifo, rdev: 0 }).await.unwrap();
        assert_eq!(c.stat(fifo).await.unwrap().kind, Kind::Fifo);
        let open = c.call(Request::Open { ino: f, access: RW, exec: false }).await;
        assert!(open.is_ok());
        let again = Make::File { open: Some(RW), exclusive: false };
        let made = c.call(Request::Make { dir: d, name: name("f"), make: again, perm: 0, umask: 0 }).await.unwrap();
        assert!(matches!(made, Reply::Made { created: false, inode, .. } if inode.attr.ino == f));
    });
}

/// Goal: an open to execute needs the permission to execute and no other, any other open that to read. Method: modes
/// that give only one of the two permissions, and opens by another user.
#[test]
fn execution_is_not_reading() {
    with_server(11, 1, 1, async |_, c| {
        let r = Access { read: true, write: false };
        for (perm, read, execute) in
            [(0o111, false, true), (0o444, true, false), (0o555, true, true), (0o700, false, false)]
        {
            *c.cred.borrow_mut() = Cred::root();
            let f = c.create(Ino::ROOT, &format!("{perm:o}")).await.unwrap();
            let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
            c.inode(Request::SetAttr { ino: f, set }).await.unwrap();
            *c.cred.borrow_mut() = Cred::new(5, 5, vec![]);
            for (exec, allowed) in [(false, read), (true, execute)] {
                let opened = c.call(Request::Open { ino: f, access: r, exec }).await.map(drop);
                assert_eq!(opened, if allowed { Ok(()) } else { Err(Errno::Access) }, "{perm:o} {exec}");
            }
        }
    });
}

/// Goal: concurrent moves of directories never make a loop, whatever their order. Method: both at once, many seeds.
#[test]
fn crossing_moves_make_no_loop() {
    for seed in 0..20 {
        with_server(seed, 3, 3, async |_, c| {
            let a = c.mkdir(Ino::ROOT, &dir_name(Ino::ROOT, 1, 3)).await.unwrap();
            let b = c.mkdir(Ino::ROOT, &dir_name(Ino::ROOT, 2, 3)).await.unwrap();
            let (an, bn) = (dir_name(Ino::ROOT, 1, 3), dir_name(Ino::ROOT, 2, 3));
            let first = c.rename((Ino::ROOT, &an), (b, "in"), RenameMode::Replace);
            let second = c.rename((Ino::ROOT, &bn), (a, "in"), RenameMode::Replace);
            let (x, y) = futures_util::future::join(first, second).await;
            assert!(x.is_ok() != y.is_ok(), "exactly one can happen: {x:?} {y:?}");
            assert_eq!(c.tree(Ino::ROOT).await.unwrap().len(), 2);
        });
    }
}

/// Goal: a create that meets a directory opens nothing. Method: the directory is removed. An open directory would stay
/// until it is closed.
#[test]
fn a_create_over_a_directory_opens_nothing() {
    with_server(33, 2, 1, async |_, c| {
        let d = c.mkdir(Ino::ROOT, "d").await.unwrap();
        let read = Access { read: true, write: false };
        for open in [None, Some(read)] {
            assert_eq!(c.make(Ino::ROOT, "d", Make::File { open, exclusive: false }).await, Err(Errno::IsDir));
        }
        c.rmdir(Ino::ROOT, "d").await.unwrap();
        assert_eq!(c.stat(d).await.map(drop), Err(Errno::Stale));
    });
}
