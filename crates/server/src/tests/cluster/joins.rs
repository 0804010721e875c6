//! Joining a cluster: first start, any order, new servers, refusals.

use super::*;
use futures_util::future::{Either, select};
use std::sync::atomic::Ordering::SeqCst;

/// Goal: two servers are one cluster: directories on either, operations between them, sound zones at the end.
#[test]
fn two_servers_are_one_cluster() {
    for workers in [1, 2] {
        let world = World::new(60, &[2, 2], workers);
        let run = async {
            let servers = world.start_all().await;
            let m = world.mount(1).await.unwrap();
            assert_eq!((m.pool(), m.map.borrow().servers.len(), m.map.borrow().epoch), (4, 2, 2));
            let root = Ino::ROOT;
            let mut dirs = Vec::new();
            for target in 0..4 {
                let text = dir_on(root, target, 4);
                let dir = m.mkdir(root, &text).await.unwrap();
                assert_eq!(dir.target(), TargetId(target));
                dirs.push((dir, text));
            }
            for (i, (dir, _)) in dirs.iter().enumerate() {
                let file = m.create(*dir, "f").await.unwrap();
                let next = dirs[(i + 1) % 4].0;
                assert_eq!(m.link(file, next, "g").await.unwrap().attr.nlink, 2);
                m.rename((next, "g"), (dirs[(i + 2) % 4].0, "h"), RenameMode::Replace).await.unwrap();
                assert_eq!(m.stat(file).await.unwrap().nlink, 2);
            }
            // A directory moves to the other server's and back; no loops.
            m.rename((root, &dirs[1].1), (dirs[2].0, "in"), RenameMode::NoReplace).await.unwrap();
            assert_eq!(m.rename((root, &dirs[2].1), (dirs[1].0, "in"), RenameMode::Replace).await, Err(Errno::Inval));
            m.rename((dirs[2].0, "in"), (root, "back"), RenameMode::Replace).await.unwrap();
            assert_eq!(m.list(dirs[2].0).await.unwrap(), ["f", "h"]);
            m.goodbye().await;
            world.stop_all(servers).await;
            let report = world.fsck().await;
            assert!(report.is_clean(), "{report:#?}");
            assert_eq!((report.inodes, report.zones, report.elsewhere, report.pending.len()), (9, 4, 0, 0));
        };
        world.sim.block_on(run).unwrap();
    }
}

/// Goal: a server joins a running cluster with a mount. The mount is informed, new directories and files use the
/// server, the mount is known there, and existing files keep their place.
#[test]
fn a_server_joins_a_running_cluster() {
    let world = World::new(61, &[1, 2, 1], 1);
    let run = async {
        let mut servers = vec![Some(world.start(0).await.unwrap())];
        let m = world.mount(1).await.unwrap();
        assert_eq!(m.pool(), 1);
        let old = m.create(Ino::ROOT, "old").await.unwrap();
        for (at, pool) in [(1, 3), (2, 4)] {
            servers.push(Some(world.start(at).await.unwrap()));
            sleep(&world, Duration::from_millis(100)).await;
            let pushed = m.links.borrow()[&0].1.pushes.borrow().clone();
            let epoch = servers[0].as_ref().unwrap().worker.routes.epoch();
            assert_eq!(pushed.last(), Some(&Push::Map { epoch }));
            m.refresh().await;
            assert_eq!(m.pool(), pool);
        }
        sleep(&world, Duration::from_secs(2)).await;
        for (at, server) in servers.iter().flatten().enumerate() {
            assert_eq!(server.worker.pool(), 4, "all know");
            let kept = world.sim.kept_names(&format!("s{at}"));
            let memories = kept.iter().filter(|name| name.ends_with("-data")).count();
            assert_eq!(
                memories,
                server.worker.routes.local().len(),
                "s{at} answers small writes from memory: {kept:?}"
            );
        }
        for target in 0..4 {
            let dir = m.mkdir(Ino::ROOT, &dir_on(Ino::ROOT, target, 4)).await.unwrap();
            assert_eq!(dir.target(), TargetId(target));
            let file = m.open_new(dir, "f").await.unwrap();
            assert_eq!((file.layout.pool, file.layout.stripe_count), (4, 4));
        }
        let view = m.inode(Request::GetAttr { ino: old }).await.unwrap();
        assert_eq!(view.layout.pool, 1, "its data stays where it is");
        m.goodbye().await;
        world.stop_all(servers).await;
        let report = world.fsck().await;
        assert!(report.is_clean(), "{report:#?}");
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: servers may be started in any order, and again in any order, with the master down meanwhile. Each of them
/// waits, or continues with its stored map, and all form one cluster in the end.
#[test]
fn any_order() {
    let world = World::new(62, &[2, 1, 1], 1);
    let run = async {
        let (first, second) = (world.start(1), world.start(2));
        let master = async {
            sleep(&world, Duration::from_secs(7)).await;
            world.start(0).await
        };
        let (a, b, m) = futures_util::join!(first, second, master);
        let mut servers = vec![Some(m.unwrap()), Some(a.unwrap()), Some(b.unwrap())];
        assert_eq!(servers[0].as_ref().unwrap().worker.pool(), 4);
        let mount = world.mount(1).await.unwrap();
        let mut dirs = Vec::new();
        for target in 0..4 {
            dirs.push(mount.mkdir(Ino::ROOT, &dir_on(Ino::ROOT, target, 4)).await.unwrap());
        }
        sleep(&world, Duration::from_secs(5)).await;
        for (at, server) in servers.iter_mut().enumerate() {
            crash(&world, at, CrashKind::Process);
            *server = None;
        }
        // The others connect again while the master is down: the mount continues with them.
        servers[2] = Some(world.start(2).await.unwrap());
        servers[1] = Some(world.start(1).await.unwrap());
        for at in [1, 2] {
            let text = dir_on(dirs[at + 1], at as u16 + 1, 4);
            mount.mkdir(dirs[at + 1], &text).await.unwrap();
        }
        servers[0] = Some(world.start(0).await.unwrap());
        sleep(&world, Duration::from_secs(10)).await;
        mount.rename((dirs[1], "none"), (dirs[2], "none"), RenameMode::Replace).await.unwrap_err();
        let late = world.connect(9, 0, Role::Admin).await.unwrap().0;
        let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Status };
        let Ok(Reply::Status { servers: all, sessions, targets, .. }) =
            late.call(Lane::Normal, call, None, 0).await.unwrap().0.result
        else {
            panic!("no status")
        };
        // The order of the servers that waited for the master is open.
        let mut seen: Vec<_> = all.iter().map(|s| (s.info.name.as_str(), s.up, s.targets.len())).collect();
        seen.sort_unstable();
        assert_eq!(seen, [("s0", true, 2), ("s1", true, 1), ("s2", true, 1)]);
        assert_eq!((sessions.len(), targets.len()), (1, 2));
        crash(&world, 2, CrashKind::Process);
        servers[2] = None;
        sleep(&world, Duration::from_secs(10)).await;
        let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Status };
        let Ok(Reply::Status { servers: all, .. }) = late.call(Lane::Normal, call, None, 0).await.unwrap().0.result
        else {
            panic!("no status")
        };
        assert!(all.iter().all(|s| s.up == (s.info.name != "s2")));
        servers[2] = Some(world.start(2).await.unwrap());
        mount.goodbye().await;
        world.stop_all(servers).await;
        assert!(world.fsck().await.is_clean());
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: a server that does not belong to the cluster is refused with one clear line, and nothing of the server or of
/// the cluster is changed.
#[test]
fn strangers_are_refused() {
    let world = World::new(63, &[1, 1], 1);
    let run = async {
        let mut servers = world.start_all().await;
        let refused = async |node: &str, config: ServerConfig| {
            let error =
                Server::start(world.sim.node(node), config).await.err().unwrap_or_else(|| panic!("{node} was let in"));
            assert!(!error.line.contains('\n'), "{error}");
            error
        };
        let base = |addr: &str| ServerConfig { listen: vec![format!("tcp:{addr}:7000")], ..world.config(1) };
        // The cluster key is another one.
        let mut wrong = base("x1");
        wrong.key = Some(b"another secret of some length".to_vec());
        let error = refused("x1", wrong).await;
        assert!(error.line.contains("wrong cluster key"), "{error}");
        assert!(crate::folder::zones(&world.sim.node("x1"), "data").unwrap().is_empty(), "nothing is made");
        // An address under which it cannot be reached.
        let mut lost = base("x2");
        lost.advertise = vec!["tcp:nowhere:1".into()];
        let error = refused("x2", lost).await;
        assert!(error.line.contains("cannot reach it at tcp:nowhere:1"), "{error}");
        // The address of a server that is in the cluster, on a folder without its zones.
        for taken in [0, 1] {
            let mut empty = base("x5");
            empty.advertise = vec![addr(taken)];
            let error = refused("x5", empty).await;
            let words = format!("{} is the address of s{taken}, which has target {taken}", addr(taken));
            assert!(error.line.contains(&words), "{error}");
            assert!(crate::folder::zones(&world.sim.node("x5"), "data").unwrap().is_empty(), "nothing is made");
        }
        // Zones of another cluster.
        let mut alone = base("x3");
        alone.join.clear();
        let foreign =
            Server::start(world.sim.node("x3"), ServerConfig { targets: Some(2), ..alone.clone() }).await.unwrap();
        foreign.stop().await.unwrap();
        let error = refused("x3", ServerConfig { join: vec![addr(0)], targets: None, ..alone }).await;
        assert!(error.line.contains("master's zones"), "{error}");
        // A copy of a server's folder, while that runs and after.
        let path = world.config(1).zone_path(1);
        let copy = async |node: &str| {
            let bytes = world.sim.peek("s1", &path, 0, 32 << 20).unwrap();
            let env = world.sim.node(node);
            env.make_dir("data").unwrap();
            drop(env.disk(&path, amphi_env::DiskMode::Create(32 << 20)).await.unwrap());
            world.sim.poke(node, &path, 0, &bytes).unwrap();
        };
        copy("x4").await;
        let copied = crate::fsck(&world.sim.node("x4"), "data").await.unwrap();
        let error = refused("x4", base("x4")).await;
        assert!(error.line.contains("two processes have its zones"), "{error}");
        let after = crate::fsck(&world.sim.node("x4"), "data").await.unwrap();
        assert_eq!((after.inodes, after.sessions, after.is_clean()), (copied.inodes, copied.sessions, true));
        // A server whose first start did not complete its join, and whose numbers were then assigned to another server.
        world.sim.crash("x2", CrashKind::Process);
        let zones = crate::folder::zones(&world.sim.node("x2"), "data").unwrap();
        assert_eq!(zones, [2], "it had its numbers");
        let third =
            Server::start(world.sim.node("s2"), ServerConfig { listen: vec![addr(2)], ..base("s2") }).await.unwrap();
        let error = refused("x2", base("x2")).await;
        assert!(error.line.contains("claimed by two servers"), "{error}");
        // The master's zones come from an old copy.
        let old = world.sim.peek("s0", &world.config(0).zone_path(0), 0, 32 << 20).unwrap();
        third.stop().await.unwrap();
        let moved = ServerConfig { listen: vec!["tcp:s2:7001".into()], targets: None, ..base("s2") };
        let third = Server::start(world.sim.node("s2"), moved.clone()).await.unwrap();
        third.stop().await.unwrap();
        crash(&world, 0, CrashKind::Process);
        servers[0] = None;
        world.sim.node("s0");
        world.sim.poke("s0", &world.config(0).zone_path(0), 0, &old).unwrap();
        servers[0] = Some(world.start(0).await.unwrap());
        let error = refused("s2", moved).await;
        assert!(error.line.contains("old copy"), "{error}");
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: a first start that is interrupted at any moment, even directly after the join, can be repeated, and the server
/// is the same one then. Method: the server is killed as soon as the master knows it, or has given it numbers, or after
/// some time. Then it is started again.
#[test]
fn a_first_start_that_was_cut_short_goes_on() {
    for moment in 0..12u64 {
        let world = World::new(66, &[1, 2], 1);
        let run = async {
            let master = world.start(0).await.unwrap();
            let env = world.sim.node("client");
            let cut = async {
                match moment {
                    0 => {
                        while master.cluster.map().servers.len() < 2 {
                            env.sleep(Duration::from_micros(5)).await;
                        }
                    }
                    n => env.sleep(Duration::from_micros(n * n * 100)).await,
                }
                crash(&world, 1, CrashKind::Power);
            };
            let starting = std::pin::pin!(world.start(1));
            let cut = std::pin::pin!(cut);
            if let Either::Left((_started, cut)) = select(starting, cut).await {
                cut.await;
            }
            let again = world.start(1).await;
            let map = || master.cluster.map();
            if let Err(e) = &again {
                assert_eq!((moment > 0, map().servers.len()), (true, 1), "{e}");
                return;
            }
            sleep(&world, Duration::from_secs(2)).await;
            assert_eq!((map().servers.len(), map().pool()), (2, 3), "{:?}", map());
            world.stop_all(vec![Some(master.clone()), again.ok()]).await;
            assert!(world.fsck().await.is_clean());
        };
        world.sim.block_on(run).unwrap();
    }
}

/// Goal: a member that crashed can reconnect at once although its old connections look alive, and a single cut is
/// repaired automatically.
#[test]
fn members_come_back() {
    let world = World::new(64, &[1, 1], 1);
    let run = async {
        let mut servers = world.start_all().await;
        let m = world.mount(1).await.unwrap();
        let dir = m.mkdir(Ino::ROOT, &dir_on(Ino::ROOT, 1, 2)).await.unwrap();
        world.sim.cut("s0", "s1");
        crash(&world, 1, CrashKind::Process);
        servers[1] = None;
        let (again, ()) = futures_util::join!(world.start(1), async {
            sleep(&world, Duration::from_secs(1)).await;
            world.sim.heal("s0", "s1");
        });
        servers[1] = Some(again.unwrap());
        m.create(dir, "f").await.unwrap();
        let inner = m.mkdir(dir, &dir_on(dir, 0, 2)).await.unwrap();
        assert_eq!(inner.target(), TargetId(0));
        drop(servers);
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: the session of a process that has ended is ended as soon as another mount comes, on all servers. Method: the
/// process is killed while it has a file open whose name another mount removes.
#[test]
fn a_dead_mount_makes_way() {
    let world = World::new(69, &[1, 1], 1);
    let run = async {
        let mut config = world.config(0);
        let gone = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_gone = gone.clone();
        config.holder_gone = std::sync::Arc::new(move |name| name == "dead:1" && is_gone.load(SeqCst));
        let master = Server::start(world.node(0), config).await.unwrap();
        let other = world.start(1).await.unwrap();
        world.sim.node("dead");
        let first = world.mount_on("dead", 1).await.unwrap();
        let dir = first.dir_at(1).await;
        let file = first.open_new(dir, "f").await.unwrap().attr.ino;
        world.sim.crash("dead", CrashKind::Process);
        gone.store(true, SeqCst);
        let begun = world.sim.node("client").now();
        let second = world.mount(2).await.unwrap();
        second.unlink(dir, "f").await.unwrap();
        sleep(&world, Duration::from_secs(2)).await;
        assert_eq!(second.stat(file).await, Err(Errno::Stale), "nobody has it open");
        assert!(world.sim.node("client").now().since(begun) < Duration::from_secs(5));
        second.goodbye().await;
        world.stop_all(vec![Some(master), Some(other)]).await;
        assert!(world.fsck().await.is_clean());
    };
    world.sim.block_on(run).unwrap();
}
