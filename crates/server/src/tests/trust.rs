//! Access rights: users of the machine who connect over a Unix socket, data of files that are not open, and objects of
//! inodes that do not exist.

mod listings;
mod locks;
mod opens;

use super::data::bytes;
use super::*;
use amphi_types::{ByteRange, Layout, Pattern, SetAttr};
use amphi_wire::{LockExtent, LockMode};

const USER: u32 = 1000;

fn user() -> Cred {
    Cred::new(USER, USER, vec![7])
}

fn data_write(object: ObjectId) -> Request {
    let mtime = Timespec { sec: 2_000_000_000, nsec: 0 };
    Request::Write {
        object,
        offset: 0,
        generation: 0,
        mtime,
        server_lock: true,
        kill_suidgid: false,
        checksums: Default::default(),
        cover: Default::default(),
    }
}

fn data_read(object: ObjectId) -> Request {
    Request::Read { object, range: ByteRange::new(0, 10), server_lock: true, advice: Default::default() }
}

impl Place {
    /// A client that the kernel says is the user's.
    async fn users_client(&self, session: u64, role: Role) -> std::io::Result<Client> {
        self.sim.node("user");
        self.sim.run_as("user", user());
        self.client_on("user", session, "user:1", role).await
    }
}

/// Goal: another user of the machine who may connect can act only under his own user id. He makes nothing as root,
/// names no other user and no group to which he does not belong, is no administrator and no server, and takes over no
/// session. Method: a table of requests of such a client, compared with those of root's client.
#[test]
fn a_user_is_himself() {
    with_server(80, 2, 1, async |place, root| {
        let set = |mode| SetAttr { perm: Some(mode), ..SetAttr::default() };
        let dir = root.mkdir(Ino::ROOT, "open").await.unwrap();
        root.inode(Request::SetAttr { ino: dir, set: set(0o777) }).await.unwrap();
        let secret = root.make(dir, "secret", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        root.inode(Request::SetAttr { ino: secret, set: set(0o600) }).await.unwrap();
        let c = place.users_client(5, Role::Mount).await.expect("let in");
        c.opens.set(false);
        // The request names root, but counts as one of the user.
        assert_eq!(c.make(Ino::ROOT, "no", Make::Dir).await, Err(Errno::Access));
        let f = c.make(dir, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let attr = c.stat(f).await.unwrap();
        assert_eq!((attr.uid, attr.gid), (USER, USER));
        let rooted = SetAttr { uid: Some(0), perm: Some(0o4755), ..SetAttr::default() };
        assert_eq!(c.inode(Request::SetAttr { ino: f, set: rooted }).await.map(drop), Err(Errno::Perm));
        let open = |access| Request::Open { ino: secret, access, exec: false };
        assert_eq!(c.call(open(RW)).await.map(drop), Err(Errno::Access));
        assert_eq!(
            c.call(Request::Represent { opens: vec![(secret, RW)], locks: vec![] }).await,
            Ok(Reply::Locks(vec![]))
        );
        let object = ObjectId { ino: secret, stripe: 0 };
        assert_eq!(c.call(data_read(object)).await.map(drop), Err(Errno::BadFd), "what it says it has open");
        let cut = SetAttr { size: Some(0), open_for_write: true, ..SetAttr::default() };
        assert_eq!(c.inode(Request::SetAttr { ino: secret, set: cut }).await.map(drop), Err(Errno::Access));
        for (uid, gid, groups, allowed) in [
            (USER, USER, vec![], true),
            (USER, 7, vec![], true),
            (USER, 0, vec![0, 7], true),
            (1001, 1001, vec![], false),
        ] {
            *c.cred.borrow_mut() = Cred::new(uid, gid, groups);
            let made = c.mkdir(dir, &format!("d-{uid}-{gid}")).await;
            assert_eq!(made.is_ok(), allowed, "{uid} {gid}: {made:?}");
            if let Ok(ino) = made {
                let attr = c.stat(ino).await.unwrap();
                assert_eq!((attr.uid, attr.gid), (USER, if gid == 0 { USER } else { gid }));
            }
        }
        *c.cred.borrow_mut() = Cred::root();
        let tune = Request::Tunables { pattern: "server.token_ms".into(), value: Some("7".into()) };
        for op in [tune.clone(), Request::Counters { reset: true }] {
            assert_eq!(c.call(op).await.map(drop), Err(Errno::Perm));
        }
        let looks = place.users_client(7, Role::Admin).await.expect("he may look around");
        assert_eq!(looks.call(tune.clone()).await.map(drop), Err(Errno::Perm));
        assert_eq!(looks.lookup(dir, "f").await.map(drop), Err(Errno::Perm), "this is no mount");
        let Ok(Reply::Status { sessions, .. }) = looks.call(Request::Status).await else { panic!("no status") };
        let seen: Vec<u64> = sessions.iter().map(|s| s.session.0).collect();
        assert_eq!(seen, [5], "numbers of others' sessions are told to nobody");
        *root.cred.borrow_mut() = user();
        assert_eq!(root.call(tune.clone()).await.map(drop), Err(Errno::Perm), "a mount says who asks");
        *root.cred.borrow_mut() = Cred::root();
        assert!(root.call(tune).await.is_ok());
        let refused = place.users_client(6, Role::Server).await.err().expect("not let in").to_string();
        assert!(refused.contains("a server has to be root's"), "{refused}");
        let refused = place.users_client(1, Role::Mount).await.err().expect("root's session").to_string();
        assert!(refused.contains("another user's"), "{refused}");
        assert!(root.stat(secret).await.is_ok(), "root's connection lives");
    });
}

/// Goal: a mount can access the data only of files that it has open, and only with the access of the open. Method:
/// every request on data from a session that has not opened the file, has opened it for reading or for writing, or has
/// closed it.
#[test]
fn data_needs_an_open() {
    with_server(81, 2, 2, async |place, one| {
        let f = one.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let object = ObjectId { ino: f, stripe: 0 };
        let payload = || Some(bytes(1, 0, 5000));
        one.ask(data_write(object), payload()).await.0.unwrap();
        let two = place.client(2).await.unwrap();
        two.opens.set(false);
        let range = ByteRange::new(0, 4096);
        let (generation, mtime, server_lock) = (0, Timespec::default(), true);
        let changes = [
            Request::Punch { object, range, generation, mtime, server_lock },
            Request::Allocate { object, range, generation, mtime, server_lock },
            Request::Spread { ino: f },
        ];
        let looks = [data_read(object), Request::DataMap { object, offset: 0, runs_max: 8 }];
        let r = Access { read: true, write: false };
        for (access, may_look, may_change) in [(None, false, false), (Some(r), true, false), (Some(RW), true, true)] {
            if let Some(access) = access {
                two.call(Request::Open { ino: f, access, exec: false }).await.unwrap();
            }
            let right = |may: bool| if may { Ok(()) } else { Err(Errno::BadFd) };
            for op in &looks {
                assert_eq!(two.call(op.clone()).await.map(drop), right(may_look), "{access:?} {op:?}");
            }
            assert_eq!(two.ask(data_write(object), payload()).await.0.map(drop), right(may_change), "{access:?}");
            for op in &changes {
                assert_eq!(two.call(op.clone()).await.map(drop), right(may_change), "{access:?} {op:?}");
            }
        }
    });
}

/// Goal: a write creates no object unless its inode exists and will be removed together with it. The number may belong
/// to no file. The layout may not have the stripe, or have it elsewhere. The file may not be spread yet, or be removed
/// already. This is also tested with over-striped files, on the inode's target and on other targets of one server.
/// Method: such writes by a client that has the file open. At the end the zones are sound and contain no objects.
#[test]
fn objects_belong_to_inodes() {
    let place = Place::new(82, 3, 2);
    let run = async {
        let server = place.start().await.expect("the server starts");
        let c = place.client(1).await.expect("the client connects");
        let f = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        // Stripe s lies on target s mod 3, as the inode does with s = 0.
        let layout = Layout { pattern: Pattern::Striped, stripe_size: 64 << 10, stripe_count: 5, pool: 3 };
        c.call(Request::SetLayout { ino: f, layout: Some(layout), advice: None }).await.unwrap();
        let write_at = async |ino: Ino, stripe: u32, target: u16| {
            let (object, cred) = (ObjectId { ino, stripe }, Cred::root());
            let call = Call { target: TargetId(target), cred, op: data_write(object) };
            c.link.call(Lane::Normal, call, Some(bytes(1, 0, 5000)), 0).await.unwrap().0.result.map(drop)
        };
        let none = Ino(f.0 + 5_000);
        for stripe in [0, 1, 3, 4] {
            let at = (stripe % 3) as u16;
            assert_eq!(write_at(none, stripe, at).await, Err(Errno::Stale), "stripe {stripe} of no file");
        }
        for stripe in [1, 2, 3, 4] {
            assert_eq!(write_at(f, stripe, (stripe % 3) as u16).await, Err(Errno::NoEnt), "not spread yet");
        }
        c.inode(Request::Spread { ino: f }).await.unwrap();
        for stripe in 0..5 {
            let right = (stripe % 3) as u16;
            assert_eq!(write_at(f, stripe, right).await, Ok(()), "stripe {stripe}");
            for wrong in (0..3).filter(|t| *t != right) {
                assert!(write_at(f, stripe, wrong).await.is_err(), "stripe {stripe} at target {wrong}");
            }
        }
        for beyond in [5, 6, 7, 1_000_000] {
            assert_eq!(write_at(f, beyond, (beyond % 3) as u16).await, Err(Errno::BadFd), "stripe {beyond}");
        }
        let fewer = Layout { stripe_count: 1, ..layout };
        assert!(c.call(Request::SetLayout { ino: f, layout: Some(fewer), advice: None }).await.is_err(), "it is fixed");
        let other = place.client(2).await.unwrap();
        other.opens.set(false);
        for stripe in 0..5 {
            let op = data_read(ObjectId { ino: f, stripe });
            assert_eq!(other.call(op).await.map(drop), Err(Errno::BadFd), "somebody who has not opened it");
        }
        c.unlink(Ino::ROOT, "f").await.unwrap();
        assert_eq!(write_at(f, 4, 1).await, Ok(()), "it is open");
        c.call(Request::Close { ino: f, access: RW, atime: None }).await.unwrap();
        place.sim.node("client").sleep(Duration::from_secs(5)).await;
        for stripe in 0..5 {
            assert_eq!(
                write_at(f, stripe, (stripe % 3) as u16).await,
                Err(Errno::Stale),
                "stripe {stripe} of a removed file"
            );
        }
        drop((c, other));
        server.stop().await.expect("stops");
        let report = crate::fsck(&place.sim.node("server"), "data").await.expect("readable");
        assert!(report.is_clean() && report.objects == 0, "{report:#?}");
    };
    place.sim.block_on(run).expect("no deadlock");
}

/// Goal: a target that has lost its record of a session's rights on a file's stripes, because its table was full, asks
/// the file's target again, also if a request has passed the first check: no write is refused as a write to a file that
/// does not exist. Method: a write, a hole and an allocation wait for the lock of another mount while the table is
/// emptied.
#[test]
fn forgotten_rights_are_asked_for_again() {
    let (range, mtime) = (ByteRange::new(64 << 10, 68 << 10), Timespec { sec: 2_000_000_000, nsec: 0 });
    let write = |object| Request::Write {
        object,
        offset: range.start,
        generation: 0,
        mtime,
        server_lock: true,
        kill_suidgid: false,
        checksums: Default::default(),
        cover: Default::default(),
    };
    let punch = |object| Request::Punch { object, range, generation: 0, mtime, server_lock: true };
    let allocate = |object| Request::Allocate { object, range, generation: 0, mtime, server_lock: true };
    let kinds: [(&dyn Fn(ObjectId) -> Request, bool); 3] = [(&write, true), (&punch, false), (&allocate, false)];
    for (seed, (of_object, has_payload)) in (860..).zip(kinds) {
        let place = Place::new(seed, 2, 1);
        let run = async {
            let server = place.start().await.expect("the server starts");
            let (a, b) = (place.client(1).await.expect("let in"), place.client(2).await.expect("let in"));
            let f = a.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.expect("made");
            let layout = Layout { pattern: Pattern::Striped, stripe_size: 64 << 10, stripe_count: 2, pool: 2 };
            a.call(Request::SetLayout { ino: f, layout: Some(layout), advice: None }).await.expect("set");
            a.call(Request::Spread { ino: f }).await.expect("spread");
            let object = ObjectId { ino: f, stripe: 1 };
            let lock = Request::LockEnqueue { object, mode: LockMode::Write, range, extent: LockExtent::Exact };
            b.call(lock).await.expect("granted");
            b.held.deaf.set(true);
            let op = of_object(object);
            let request = a.ask(op.clone(), has_payload.then(|| bytes(1, range.start, 4096)));
            let forgets = async {
                let callback = b.held.pushed(|p| matches!(p, Push::Callback { .. }).then(|| p.clone())).await;
                let target = server.worker.target(object_target(object, 2)).expect("at the only worker");
                target.files.rights.borrow_mut().forget_session(SessionId(1));
                b.held.deaf.set(false);
                b.reply(&callback).await;
            };
            let ((result, _), ()) = futures_util::future::join(request, forgets).await;
            assert!(result.is_ok(), "{op:?}: {result:?}");
        };
        place.sim.block_on(run).expect("no deadlock");
    }
}
