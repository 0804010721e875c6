//! Keys that are bound to a tree: for their clients, inodes outside the tree do not exist, whatever they send.

use super::requests::{called, every_request};
use super::*;
use crate::zone_target::NameKey;
use crate::zone_target::gate::Hold;
use amphi_types::{Account, AccountKind, Layout};
use amphi_wire::keys::Subtree;

/// A directory with a project of its own, and the inodes that a holder of a key bound to it may not access.
struct World {
    root: Ino,
    project: u32,
    /// This name lies in the tree.
    dir: Ino,
    file: Ino,
    /// Outside, for everybody to read and write.
    out: Ino,
    secret: Ino,
    /// Inodes of the same targets as these that there are no more.
    gone_dir: Ino,
    gone_file: Ino,
}

impl World {
    async fn new(root: &Client) -> World {
        root.chmod(Ino::ROOT, 0o777).await;
        let top = root.mkdir(Ino::ROOT, "tree").await.unwrap();
        let Ok(Reply::Project(project)) = root.call(Request::NewProject).await else { panic!("no project") };
        root.put(top, project).await.unwrap();
        let (out, dir) = (root.mkdir(Ino::ROOT, "out").await.unwrap(), root.mkdir(top, "d").await.unwrap());
        let (secret, file) = (root.create(out, "n").await.unwrap(), root.create(dir, "n").await.unwrap());
        for (ino, perm) in [(top, 0o777), (dir, 0o777), (out, 0o777), (secret, 0o666), (file, 0o666)] {
            root.chmod(ino, perm).await;
        }
        let gone_file = root.create(out, "gone").await.unwrap();
        root.unlink(out, "gone").await.unwrap();
        let mut gone_dir = None;
        for n in 0.. {
            let name = format!("gone{n}");
            let made = root.mkdir(Ino::ROOT, &name).await.unwrap();
            root.rmdir(Ino::ROOT, &name).await.unwrap();
            gone_dir = Some(made).filter(|made| made.target() == out.target());
            if gone_dir.is_some() {
                break;
            }
        }
        World { root: top, project, dir, file, out, secret, gone_dir: gone_dir.unwrap(), gone_file }
    }

    fn subtree(&self) -> Subtree {
        Subtree { root: self.root, project: self.project, path: "/mnt/tree".into() }
    }

    fn entry(&self) -> KeyEntry {
        KeyEntry { subtree: Some(self.subtree()), ..entry("bound", 1, KeyRole::Client) }
    }
}

impl Client {
    async fn put(&self, ino: Ino, project: u32) -> Result<()> {
        let set = SetAttr { project: Some(project), ..SetAttr::default() };
        self.inode(Request::SetAttr { ino, set }).await.map(drop)
    }

    async fn bind(&self, subtree: Option<Subtree>) -> std::result::Result<KeyRegistry, String> {
        let settings = KeySettings { subtree: Some(subtree), ..KeySettings::default() };
        self.keys(KeyChange::Set { name: "bound".into(), settings: Box::new(settings) }).await
    }
}

/// Requests about what belongs to the session itself, or to everybody, so the inodes that they also name do not matter.
const OWN: &[&str] = &[
    "Close",
    "CloseBatch",
    "FileLockCancel",
    "FileLockUnlock",
    "FileLockClosed",
    "PagesTaken",
    "LockCancel",
    "LockKept",
    "GlimpseReply",
    "Revoked",
    "CompanyKnown",
    "CompanyKept",
    "WriteFailedKnown",
    "DirectoryShown",
    "Grant",
    "Represent",
    "RepresentFileLocks",
    "StatFs",
    "Status",
    "Map",
    "Tunables",
];

/// Goal: every request that names an inode outside the tree gets the answer for an inode that does not exist, on one
/// server with several targets and workers, and changes nothing. Method: all requests about both kinds of inodes, from
/// a client that speaks the wire protocol. The state outside is compared before and afterwards.
#[test]
fn every_request_stays_within() {
    // The second session is served by another worker than the first.
    for session in [2, 5] {
        with_server(201, 3, 2, async |place, root| {
            let w = World::new(root).await;
            root.add(w.entry()).await;
            let c = place.keyed(session, Role::Mount, 1).await.expect("it mounts");
            assert_eq!(c.link.welcome().root, w.root);
            let outside = async || {
                let list = root.list(w.out).await.unwrap();
                (root.stat(w.out).await.unwrap(), root.stat(w.secret).await.unwrap(), list)
            };
            let before = outside().await;
            let asked = every_request(w.out, w.secret).into_iter().zip(every_request(w.gone_dir, w.gone_file));
            for (op, of_nothing) in asked.filter(|(op, _)| *op != Request::Goodbye) {
                let name = called(&op);
                let answers = (c.call(op.clone()).await, c.call(of_nothing).await);
                if OWN.contains(&name.as_str()) && answers.0 != Err(Errno::Perm) {
                    let tells = matches!(name.as_str(), "StatFs" | "Status" | "Map" | "Tunables" | "Grant");
                    assert!(tells || answers.0 == answers.1, "{name}: {answers:?}");
                    continue;
                }
                assert!(matches!(answers.0, Err(Errno::Stale | Errno::Perm)), "{name}: {answers:?}");
                assert_eq!(answers.0, answers.1, "{name} tells whether there is such an inode");
            }
            assert_eq!(outside().await, before);
            // The same requests within are refused so where a mount that is not bound is.
            for n in 0..every_request(w.dir, w.file).len() {
                let file = root.create(w.dir, &format!("bound{n}")).await.unwrap();
                let op = every_request(w.dir, file).swap_remove(n);
                if op == Request::Goodbye || c.call(op).await != Err(Errno::Stale) {
                    continue;
                }
                let file = root.create(w.dir, &format!("free{n}")).await.unwrap();
                let op = every_request(w.dir, file).swap_remove(n);
                assert_eq!(root.call(op.clone()).await, Err(Errno::Stale), "{op:?}");
            }
        });
    }
}

/// Goal: if one of two inodes is outside, they cannot be combined by hard links, renames of all kinds, or files without
/// a name. Goal: an inode in the tree with another project, which only an administrator can make, is listed by its name
/// and cannot be accessed. Nothing lies above the top. Method: a table of requests, and a tree within the tree.
#[test]
fn nothing_crosses_the_border() {
    with_server(202, 3, 1, async |place, root| {
        let w = World::new(root).await;
        let alien = root.mkdir(w.dir, "alien").await.unwrap();
        root.put(alien, w.project + 1000).await.unwrap();
        root.chmod(alien, 0o777).await;
        let stray = root.create(w.dir, "stray").await.unwrap();
        root.put(stray, 0).await.unwrap();
        root.chmod(stray, 0o666).await;
        root.add(w.entry()).await;
        let c = place.keyed(2, Role::Mount, 1).await.expect("it mounts");
        let modes = [
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
            RenameMode::Whiteout,
            RenameMode::NewWhiteout,
        ];
        for mode in modes {
            for (from, to) in [(w.dir, w.out), (w.out, w.dir), (w.out, w.out), (w.root, Ino::ROOT)] {
                assert_eq!(c.rename((from, "n"), (to, "m"), mode).await, Err(Errno::Stale), "{mode:?} {from} {to}");
            }
            for (from, to) in [("alien", "m"), ("stray", "m"), ("n", "stray"), ("n", "alien")] {
                let moved = c.rename((w.dir, from), (w.dir, to), mode).await;
                assert!(matches!(moved, Err(Errno::Access)), "{mode:?} {from} {to}: {moved:?}");
            }
        }
        for (ino, dir) in [(w.secret, w.dir), (w.file, w.out), (w.secret, w.out), (stray, w.dir)] {
            assert_eq!(c.link(ino, dir, "linked").await.map(drop), Err(Errno::Stale));
        }
        let tmp = |dir| Request::MakeTmp { dir, perm: 0o600, umask: 0, open: RW };
        assert_eq!(c.call(tmp(w.out)).await.map(drop), Err(Errno::Stale));
        let made = c.inode(tmp(w.dir)).await.expect("within").attr.ino;
        assert_eq!(c.link(made, w.out, "tmp").await.map(drop), Err(Errno::Stale));
        assert!(c.link(made, w.dir, "tmp").await.is_ok());
        for (text, is_dir) in [("alien", true), ("stray", false)] {
            assert_eq!(c.lookup(w.dir, text).await.map(drop), Err(Errno::Access), "{text}");
            let open = Make::File { open: Some(RW), exclusive: false };
            let refused = if is_dir { Errno::IsDir } else { Errno::Access };
            assert_eq!(c.make(w.dir, text, open).await.map(drop), Err(refused), "{text}");
            let removed = if is_dir { c.rmdir(w.dir, text).await } else { c.unlink(w.dir, text).await };
            assert_eq!(removed, Err(Errno::Access), "{text}");
        }
        let listed = c.call(Request::ReadDir { dir: w.dir, cookie: 0, max: 100, plus: true }).await.unwrap();
        let Reply::Entries { parent, entries, .. } = listed else { panic!("no entries") };
        assert_eq!(parent, Some(w.root));
        for entry in &entries {
            let is_alien = ["alien", "stray"].contains(&entry.name.to_string().as_str());
            assert!(!is_alien || entry.inode.is_none(), "{entry:?}");
        }
        let listed = c.call(Request::ReadDir { dir: w.root, cookie: 0, max: 100, plus: true }).await.unwrap();
        assert!(matches!(listed, Reply::Entries { parent: Some(parent), .. } if parent == w.root), "{listed:?}");
        assert_eq!(c.call(Request::Parent { dir: w.root }).await, Ok(Reply::Ino(w.root)));
        // Capabilities of root do not help, since he is root only of his own tree.
        for project in [0, w.project, w.project + 1000] {
            assert_eq!(c.put(w.file, project).await, Err(Errno::Perm));
        }
        for (id, allowed) in [(w.project, true), (w.project + 1000, false), (0, false)] {
            let account = Account { kind: AccountKind::Project, id };
            assert_eq!(c.call(Request::Account { account }).await.is_ok(), allowed, "{id}");
        }
        // Entries that are made within the tree belong to it at once, on all targets.
        for n in 0..20 {
            let made = c.mkdir(w.dir, &format!("made{n}")).await.unwrap();
            assert!(c.stat(made).await.is_ok() && c.create(made, "f").await.is_ok());
            let Ok(Reply::Owner(owner)) = root.call(Request::Charged { ino: made }).await else { continue };
            assert_eq!(owner.project, w.project);
        }
    });
}

/// Goal: a mount that is bound to a tree can access stripes on targets other than that of their inode if the file is
/// within the tree, and cannot access those of files outside by their numbers. If an administrator moves a file out of
/// the tree, access to its stripes ends too. Method: files of three stripes.
#[test]
fn stripes_are_within_as_their_files_are() {
    with_server(203, 3, 1, async |place, root| {
        let w = World::new(root).await;
        let wide = async |dir: Ino| {
            let ino = root.create(dir, "wide").await.unwrap();
            let layout = Layout::growing(3);
            root.inode(Request::SetLayout { ino, layout: Some(layout), advice: None }).await.unwrap();
            root.chmod(ino, 0o666).await;
            ino
        };
        let (inside, outside) = (wide(w.dir).await, wide(w.out).await);
        root.add(w.entry()).await;
        let c = place.keyed(2, Role::Mount, 1).await.expect("it mounts");
        c.call(Request::Open { ino: inside, access: RW, exec: false }).await.expect("within");
        c.call(Request::Spread { ino: inside }).await.expect("within");
        root.call(Request::Open { ino: outside, access: RW, exec: false }).await.unwrap();
        root.call(Request::Spread { ino: outside }).await.unwrap();
        let range = ByteRange::new(0, 4096);
        for stripe in 0..3 {
            let read = |ino| Request::Read {
                object: ObjectId { ino, stripe },
                range,
                server_lock: true,
                advice: Default::default(),
            };
            let lock = |ino| Request::LockEnqueue {
                object: ObjectId { ino, stripe },
                mode: LockMode::Write,
                range,
                extent: LockExtent::Exact,
            };
            assert!(c.call(read(inside)).await != Err(Errno::Stale) && c.call(lock(inside)).await.is_ok(), "{stripe}");
            for op in [read(outside), lock(outside)] {
                assert_eq!(c.call(op.clone()).await.map(drop), Err(Errno::Stale), "{op:?}");
            }
        }
        // Nobody can take the tree's inodes out of it while the key is bound, so the key is bound to another tree.
        let other = root.mkdir(Ino::ROOT, "other").await.unwrap();
        root.put(other, w.project + 7).await.unwrap();
        let subtree = Subtree { root: other, project: w.project + 7, path: "/mnt/other".into() };
        root.bind(Some(subtree)).await.unwrap();
        for stripe in 0..3 {
            let object = ObjectId { ino: inside, stripe };
            let read = Request::Read { object, range, server_lock: true, advice: Default::default() };
            assert_eq!(c.call(read).await.map(drop), Err(Errno::Stale), "known to have had it open, stripe {stripe}");
        }
    });
}

/// Goal: a change of the tree applies from the next request of existing mounts on. They can still close the files that
/// they have open. Goal: when a key is bound, the tree is checked. No operation removes the border of a bound tree, and
/// its number is given to no other tree. Method: a story.
#[test]
fn trees_of_keys_change() {
    for session in [2, 5] {
        with_server(204, 3, 2, async |place, root| {
            let w = World::new(root).await;
            root.add(entry("bound", 1, KeyRole::Client)).await;
            let c = place.keyed(session, Role::Mount, 1).await.expect("it mounts");
            assert_eq!(c.link.welcome().root, Ino::ROOT);
            assert!(c.stat(w.secret).await.is_ok(), "it is not bound yet");
            c.call(Request::Open { ino: w.secret, access: RW, exec: false }).await.expect("not bound");
            let project = w.project;
            for (subtree, words) in [
                (Subtree { root: w.file, ..w.subtree() }, "is not the top of tree"),
                (Subtree { root: w.out, ..w.subtree() }, "is not the top of tree"),
                (Subtree { project: project + 1, ..w.subtree() }, "is not the top of tree"),
                (Subtree { root: w.gone_dir, ..w.subtree() }, "is not a directory of this cluster"),
                (Subtree { root: Ino::new(TargetId(99), 5), ..w.subtree() }, ""),
                (Subtree { root: w.out, project: 0, ..w.subtree() }, "not 0"),
                (Subtree { path: "a\nb".into(), ..w.subtree() }, "control characters"),
            ] {
                let refused = root.bind(Some(subtree)).await.expect_err("refused");
                assert!(refused.contains(words) && !refused.contains('\n'), "{refused}");
            }
            root.put(w.root, project).await.expect("as it is");
            root.bind(Some(w.subtree())).await.unwrap();
            assert_eq!(c.stat(w.secret).await.map(drop), Err(Errno::Stale), "the next request");
            assert_eq!(c.stat(Ino::ROOT).await.map(drop), Err(Errno::Stale), "its root is none any more");
            assert!(c.stat(w.file).await.is_ok());
            let object = ObjectId { ino: w.secret, stripe: 0 };
            let (range, later) = (ByteRange::new(0, 10), Timespec { sec: 3_000_000_000, nsec: 0 });
            let read = Request::Read { object, range, server_lock: true, advice: Default::default() };
            assert_eq!(c.call(read).await.map(drop), Err(Errno::Stale), "it had it open");
            let before = root.stat(w.secret).await.unwrap();
            let close = Request::Close { ino: w.secret, access: RW, atime: Some(later) };
            assert_eq!(c.call(close).await, Ok(Reply::Done), "given back");
            assert_eq!(root.stat(w.secret).await.unwrap(), before, "and no time with it");
            let Ok(Reply::Status { sessions, .. }) = root.call(Request::Status).await else { panic!("no status") };
            let shown: Vec<&str> = sessions.iter().map(|s| s.subtree.as_str()).collect();
            assert!(shown.contains(&"/mnt/tree"), "{shown:?}");
            for ino in [w.root, w.dir, w.file] {
                for to in [0, project + 5] {
                    assert_eq!(root.put(ino, to).await, Err(Errno::Busy), "the border stays");
                }
            }
            root.put(w.secret, project).await.expect("an administrator takes a file in");
            assert!(c.stat(w.secret).await.is_ok());
            assert_eq!(root.put(w.secret, 0).await, Err(Errno::Busy));
            root.bind(None).await.unwrap();
            assert!(c.stat(Ino::ROOT).await.is_ok(), "all of it again");
            root.put(w.secret, 0).await.expect("nobody is bound any more");
            root.bind(Some(w.subtree())).await.unwrap();
            for (dir, text) in [(w.dir, "n"), (w.root, ""), (Ino::ROOT, "")] {
                match text {
                    "" if dir == w.root => root.rmdir(dir, "d").await.unwrap(),
                    "" => root.rmdir(dir, "tree").await.unwrap(),
                    text => root.unlink(dir, text).await.unwrap(),
                }
            }
            assert_eq!(c.stat(w.root).await.map(drop), Err(Errno::Stale), "the tree is gone");
            let Ok(Reply::Project(next)) = root.call(Request::NewProject).await else { panic!("no project") };
            assert!(next > project, "its number is nobody else's");
        });
    }
}

/// Goal: after a restart a mount gets back the files of its tree that it had open; presenting files outside the tree
/// gives it nothing. Method: a restart before which the key is bound. The client presents opens and locks on both
/// sides.
#[test]
fn what_is_presented_is_within() {
    let place = Place::new(205, 2, 1);
    let run = async {
        let server = place.start().await.expect("it starts");
        let root = place.client(1).await.unwrap();
        let w = World::new(&root).await;
        root.add(w.entry()).await;
        let c = place.keyed(2, Role::Mount, 1).await.expect("it mounts");
        c.call(Request::Open { ino: w.file, access: RW, exec: false }).await.expect("within");
        *c.held.opens.borrow_mut() = vec![(w.file, RW), (w.secret, RW)];
        let lock = |ino, at| HeldLock {
            object: ObjectId { ino, stripe: 0 },
            mode: LockMode::Write,
            range: ByteRange::new(at, at + 10),
            group: None,
        };
        *c.held.locks.borrow_mut() = vec![lock(w.file, 0), lock(w.secret, 0)];
        server.stop().await.expect("it stops");
        let server = place.start().await.expect("again");
        let read = |ino| Request::Read {
            object: ObjectId { ino, stripe: 0 },
            range: ByteRange::new(0, 10),
            server_lock: true,
            advice: Default::default(),
        };
        assert!(c.call(read(w.file)).await.is_ok());
        assert_eq!(c.call(read(w.secret)).await.map(drop), Err(Errno::Stale));
        assert!(c.held.restarts.get() > 0, "it presented them");
        let Ok(Reply::Status { sessions, .. }) = root.call(Request::Status).await else { panic!("no status") };
        let held: Vec<(u64, u64)> = sessions.iter().filter(|s| s.session.0 == 2).map(|s| (s.opens, s.locks)).collect();
        assert_eq!(held, [(1, 1)], "what lies within alone");
        drop(server);
    };
    place.sim.block_on(run).expect("no deadlock");
}

/// Goal: a session that ends while its state is compared with the tree leaves nothing behind. Method: another target
/// says nothing about a lock that the session presents, because an operation holds the inode. Meanwhile the key is
/// removed.
#[test]
fn a_session_that_ends_while_it_presents_leaves_nothing() {
    let place = Place::new(206, 2, 1);
    let run = async {
        let server = place.start().await.expect("it starts");
        let root = place.client(1).await.unwrap();
        let w = World::new(&root).await;
        root.add(w.entry()).await;
        let c = place.keyed(2, Role::Mount, 1).await.expect("it mounts");
        let here = server.worker.target(w.file.target()).expect("at the only worker");
        let elsewhere = TargetId(1 - w.file.target().0);
        let silent = Ino::new(elsewhere, 99_999);
        let names = &server.worker.target(elsewhere).expect("at the only worker").queues.names;
        let held = names.take(vec![(NameKey::Inode(silent), Hold::Exclusive)]).await;
        let lock = HeldLock {
            object: ObjectId { ino: silent, stripe: 1 },
            mode: LockMode::Write,
            range: ByteRange::new(0, 10),
            group: None,
        };
        let op = Request::Represent { opens: vec![(w.file, RW)], locks: vec![lock] };
        let presents = c.link.call(Lane::Urgent, Call { target: here.id, cred: Cred::root(), op }, None, 0);
        let env = place.sim.node("client");
        let ends = async {
            env.sleep(Duration::from_millis(100)).await;
            root.keys(KeyChange::Remove("bound".into())).await.expect("removed");
            while here.has_session(SessionId(2)) {
                env.sleep(Duration::from_millis(10)).await;
            }
        };
        let waits = amphi_env::timeout(&env, Duration::from_secs(5), presents);
        let (_, ()) = futures_util::future::join(waits, ends).await;
        env.sleep(Duration::from_secs(3)).await;
        drop(held);
        assert_eq!(here.files.open.borrow().count(SessionId(2)), 0, "nobody will close it");
        drop(server);
    };
    place.sim.block_on(run).expect("no deadlock");
}
