//! The users as whom a client's users are treated: root, all users, mappings. This file also tests what the server
//! accepts from such a client after a restart.

use super::*;
use amphi_types::Caps;

/// Goal: a squashed root is nobody in every check (owners, modes, sticky directories, set-group-id, times, attributes),
/// whatever groups and capabilities he claims. Other users are themselves, without capabilities and without group 0.
/// Method: requests of a hostile mount, compared with those of a trusted one.
#[test]
fn root_is_squashed_everywhere() {
    with_server(93, 2, 2, async |place, root| {
        root.chmod(Ino::ROOT, 0o1777).await;
        let secret = root.make(Ino::ROOT, "secret", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        root.chmod(secret, 0o640).await;
        let closed = root.mkdir(Ino::ROOT, "closed").await.unwrap();
        root.chmod(closed, 0o700).await;
        let squash = Squash { root: Some(SquashTo { uid: 600, gid: 601 }), ..Squash::default() };
        root.add(KeyEntry { squash, ..entry("node", 1, KeyRole::Client) }).await;
        let c = place.keyed(2, Role::Mount, 1).await.expect("it mounts");
        let all = |uid, gid, groups: &[u32]| Cred { caps: Caps::ALL, ..Cred::new(uid, gid, groups.to_vec()) };
        for (said, counts) in [
            (Cred::root(), (600, 601)),
            (all(0, 0, &[0, 4]), (600, 601)),
            (all(0, 1000, &[]), (600, 601)),
            (all(1000, 1000, &[]), (1000, 1000)),
            (all(1000, 0, &[]), (1000, 601)),
        ] {
            *c.cred.borrow_mut() = said.clone();
            let text = format!("f-{}-{}-{}", said.uid, said.gid, said.groups.len());
            let made = c.make(Ino::ROOT, &text, Make::File { open: None, exclusive: true }).await.unwrap();
            let attr = root.stat(made).await.unwrap();
            assert_eq!((attr.uid, attr.gid), counts, "{said:?}");
            for (op, refused) in [
                (Request::Open { ino: secret, access: RW, exec: false }, Errno::Access),
                (
                    Request::Open { ino: secret, access: Access { read: true, write: false }, exec: false },
                    Errno::Access,
                ),
                (Request::Lookup { dir: closed, name: name("x") }, Errno::Access),
                (Request::ReadDir { dir: closed, cookie: 0, max: 9, plus: true }, Errno::Access),
                (Request::Unlink { dir: Ino::ROOT, name: name("secret") }, Errno::Perm),
                (
                    Request::SetXattr {
                        ino: secret,
                        name: b"trusted.x".to_vec(),
                        value: Vec::new(),
                        mode: XattrMode::Set,
                    },
                    Errno::Perm,
                ),
                (
                    Request::SetXattr {
                        ino: made,
                        name: b"security.capability".to_vec(),
                        value: vec![0; 20],
                        mode: XattrMode::Set,
                    },
                    Errno::Perm,
                ),
            ] {
                assert_eq!(c.call(op.clone()).await.map(drop), Err(refused), "{said:?}: {op:?}");
            }
            for set in [
                SetAttr { uid: Some(0), ..SetAttr::default() },
                SetAttr { gid: Some(0), ..SetAttr::default() },
                SetAttr { perm: Some(0o4755), uid: Some(0), ..SetAttr::default() },
            ] {
                assert_eq!(c.call(Request::SetAttr { ino: made, set }).await.map(drop), Err(Errno::Perm), "{set:?}");
            }
            let mtime = Some(amphi_types::TimeSet::At(Timespec::default()));
            for set in [
                SetAttr { perm: Some(0o777), ..SetAttr::default() },
                SetAttr { mtime, ..SetAttr::default() },
                SetAttr { size: Some(0), ..SetAttr::default() },
                SetAttr { size: Some(0), open_for_write: true, ..SetAttr::default() },
            ] {
                let asked = c.call(Request::SetAttr { ino: secret, set }).await.map(drop);
                assert!(matches!(asked, Err(Errno::Perm | Errno::Access)), "{said:?}: {set:?} {asked:?}");
            }
            let node = Make::Node { kind: Kind::CharDev, rdev: 1 };
            assert_eq!(c.make(Ino::ROOT, &format!("dev-{text}"), node).await, Err(Errno::Perm), "devices are root's");
        }
        // Set-group-id of a group that he only claims to be in.
        *c.cred.borrow_mut() = all(1000, 0, &[0]);
        let f = c.make(Ino::ROOT, "sgid", Make::File { open: None, exclusive: true }).await.unwrap();
        c.chmod(f, 0o2755).await;
        let attr = root.stat(f).await.unwrap();
        assert_ne!(attr.gid, 0, "group 0 is squashed as root is");
        let kept = entry("kept", 2, KeyRole::Client);
        root.add(kept).await;
        let trusted = place.keyed(3, Role::Mount, 2).await.expect("it mounts");
        assert!(trusted.call(Request::Open { ino: secret, access: RW, exec: false }).await.is_ok(), "root=keep");
    });
}

/// Goal: after a restart of the server, a mount whose root is squashed continues with the files that its users have
/// open, whichever users these are. By presenting opens it gets nothing else: neither files of root nor those of users
/// for whom it does not act. A presented open does not say whose it is. Method: a restart. The mount claims to have
/// files of several owners and modes open.
#[test]
fn opens_are_believed_for_users_of_the_client() {
    let place = Place::new(99, 2, 1);
    let run = async {
        let server = place.start().await.expect("it starts");
        let root = place.client(1).await.unwrap();
        root.chmod(Ino::ROOT, 0o777).await;
        let squash = Squash {
            root: Some(SquashTo { uid: 600, gid: 600 }),
            uids: vec![IdRange { client: 1000, server: 1000, count: 10 }],
            gids: vec![IdRange { client: 1000, server: 1000, count: 10 }],
            ..Squash::default()
        };
        root.add(KeyEntry { squash, ..entry("node", 1, KeyRole::Client) }).await;
        let object = |ino| ObjectId { ino, stripe: 0 };
        let read = |ino| Request::Read {
            object: object(ino),
            range: ByteRange::new(0, 10),
            server_lock: true,
            advice: Default::default(),
        };
        let mut files = Vec::new();
        for (n, (uid, gid, perm, allowed)) in [
            (1000, 1000, 0o600, true),
            (1009, 5, 0o400, true),
            (0, 1001, 0o640, true),
            (0, 0, 0o644, true),
            (600, 600, 0o600, true),
            (0, 0, 0o600, false),
            (0, 0, 0o660, false),
            (1010, 1010, 0o600, false),
            (1010, 1010, 0o660, false),
            (2000, 600, 0o606, true),
            // Only the owner's bits count for the owner, also where other users have more rights.
            (1003, 1003, 0o066, true),
            (0, 5, 0o640, false),
        ]
        .into_iter()
        .enumerate()
        {
            let f = root.make(Ino::ROOT, &format!("f{n}"), Make::File { open: None, exclusive: true }).await.unwrap();
            let set = SetAttr { uid: Some(uid), gid: Some(gid), perm: Some(perm), ..SetAttr::default() };
            root.inode(Request::SetAttr { ino: f, set }).await.unwrap();
            files.push((f, allowed));
        }
        let c = place.keyed(2, Role::Mount, 1).await.expect("it mounts");
        let hostile = Request::RepresentFor { opens: Vec::new(), locks: Vec::new(), users: Box::default() };
        assert_eq!(c.call(hostile.clone()).await.map(drop), Err(Errno::Perm));
        assert_eq!(root.call(hostile).await.map(drop), Err(Errno::Perm));
        let access = Access { read: true, write: false };
        *c.held.opens.borrow_mut() = files.iter().map(|(f, _)| (*f, access)).collect();
        server.stop().await.expect("it stops");
        let server = place.start().await.expect("again");
        for (f, allowed) in files {
            let asked = c.call(read(f)).await;
            assert_eq!(asked.is_ok(), allowed, "{f:?} {asked:?}");
            assert!(allowed || asked == Err(Errno::BadFd), "{asked:?}");
        }
        assert!(c.held.restarts.get() > 0, "it presented them");
        drop(server);
    };
    place.sim.block_on(run).expect("no deadlock");
}

/// Goal: with `all` all users are treated as one user. With mappings, users have other numbers on the servers and are
/// shown with their own, and users outside are refused or shown as nobody. The numbers of `chown` and of access control
/// lists are translated as well. Method: a mount with mappings, compared with a trusted one.
#[test]
fn users_are_mapped_both_ways() {
    with_server(94, 2, 2, async |place, root| {
        root.chmod(Ino::ROOT, 0o1777).await;
        let theirs = root.make(Ino::ROOT, "roots", Make::File { open: None, exclusive: true }).await.unwrap();
        root.chmod(theirs, 0o644).await;
        let all = Squash { all: Some(SquashTo { uid: 99, gid: 98 }), ..Squash::default() };
        root.add(KeyEntry { squash: all, ..entry("all", 1, KeyRole::Client) }).await;
        let ids = |client, server| vec![IdRange { client, server, count: 100 }];
        let squash = Squash { uids: ids(1000, 50_000), gids: ids(1000, 60_000), ..Squash::default() };
        root.add(KeyEntry { squash, ..entry("mapped", 2, KeyRole::Client) }).await;
        let c = place.keyed(2, Role::Mount, 1).await.expect("it mounts");
        for (n, cred) in [Cred::root(), Cred::new(5, 6, vec![0])].into_iter().enumerate() {
            *c.cred.borrow_mut() = Cred { caps: Caps::ALL, ..cred };
            let f = c.make(Ino::ROOT, &format!("all-{n}"), Make::File { open: None, exclusive: true }).await.unwrap();
            let attr = root.stat(f).await.unwrap();
            assert_eq!((attr.uid, attr.gid), (99, 98));
        }
        let c = place.keyed(3, Role::Mount, 2).await.expect("it mounts");
        assert!(c.stat(theirs).await.is_ok_and(|a| (a.uid, a.gid) == (NOBODY, NOBODY)), "what it does for itself");
        *c.cred.borrow_mut() = Cred { caps: Caps::ALL, ..Cred::new(1005, 1006, vec![1007, 4, 1099]) };
        let f = c.make(Ino::ROOT, "mapped", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let (here, there) = (c.stat(f).await.unwrap(), root.stat(f).await.unwrap());
        assert_eq!(((here.uid, here.gid), (there.uid, there.gid)), ((1005, 1006), (50_005, 60_006)));
        let set = |uid, gid| Request::SetAttr { ino: f, set: SetAttr { uid, gid, ..SetAttr::default() } };
        let view = c.inode(set(None, Some(1099))).await.expect("a group that he is in");
        assert_eq!((view.attr.gid, root.stat(f).await.unwrap().gid), (1099, 60_099));
        for (uid, gid) in [(Some(0), None), (None, Some(0)), (Some(50_006), None), (None, Some(4)), (Some(1006), None)]
        {
            assert_eq!(c.call(set(uid, gid)).await.map(drop), Err(Errno::Perm), "{uid:?} {gid:?}");
        }
        for uid in [999, 1100, 50_005] {
            *c.cred.borrow_mut() = Cred { caps: Caps::ALL, ..Cred::new(uid, 1000, vec![]) };
            assert_eq!(c.lookup(Ino::ROOT, "mapped").await.map(drop), Err(Errno::Perm), "{uid} is none of them");
        }
        // Names and the inodes to which they lead, as listings and look-ups show them.
        *c.cred.borrow_mut() = Cred::new(1005, 1006, vec![]);
        assert_eq!(c.lookup(Ino::ROOT, "mapped").await.unwrap().attr.uid, 1005);
        let listed = c.call(Request::ReadDir { dir: Ino::ROOT, cookie: 0, max: 100, plus: true }).await.unwrap();
        let Reply::Entries { entries, .. } = listed else { panic!("no entries") };
        let views: Vec<_> = entries.iter().filter_map(|e| e.inode).collect();
        assert!(!views.is_empty() && views.iter().all(|v| [1005, NOBODY].contains(&v.attr.uid)), "{views:?}");
        // user::rw-, user:1007:r--, group::r--, group:1008:rw-, mask::rw-, other::---
        let acl = |user: u32, group: u32| {
            let entries: [(u16, u16, u32); 6] =
                [(1, 6, u32::MAX), (2, 4, user), (4, 4, u32::MAX), (8, 6, group), (16, 6, u32::MAX), (32, 0, u32::MAX)];
            let mut bytes = 2u32.to_le_bytes().to_vec();
            for (tag, perm, id) in entries {
                bytes.extend([&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
            }
            bytes
        };
        let name = || b"system.posix_acl_access".to_vec();
        let put = |value| Request::SetXattr { ino: f, name: name(), value, mode: XattrMode::Set };
        assert_eq!(c.call(put(acl(5, 1008))).await.map(drop), Err(Errno::Perm), "a user outside");
        let view = c.inode(put(acl(1007, 1008))).await.expect("a list");
        assert_eq!(view.attr.uid, 1005);
        let get = || Request::GetXattr { ino: f, name: name() };
        assert_eq!(c.call(get()).await, Ok(Reply::Bytes(acl(1007, 1008))));
        assert_eq!(root.call(get()).await, Ok(Reply::Bytes(acl(50_007, 60_008))), "as the servers have it");
        root.inode(put(acl(7, 60_009))).await.expect("root changes it");
        assert_eq!(c.call(get()).await, Ok(Reply::Bytes(acl(NOBODY, 1009))));
    });
}
