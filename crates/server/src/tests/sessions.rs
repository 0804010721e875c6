//! Stories of sessions, restarts and resends.

use super::*;
use crate::ServerErrorKind;
use amphi_env::sim::CrashKind;

/// Goal: a second mount is refused with the holder's name; it may come when the first has said goodbye or its
/// grace time is over.
#[test]
fn one_mount_at_a_time() {
    let place = Place::new(31, 2, 2);
    let run = async {
        let _server = place.start().await.unwrap();
        let first = place.client(1).await.unwrap();
        let refused = place.client(2).await.err().expect("refused").to_string();
        assert!(refused.contains("client:1"), "{refused}");
        let status = place.client_named(9, "admin:1", Role::Admin).await.unwrap();
        let Ok(Reply::Status { targets, sessions, .. }) = status.call(Request::Status).await else { panic!() };
        assert_eq!((targets.len(), sessions.len(), sessions[0].connected), (2, 1, true));
        assert_eq!(status.call(Request::GetAttr { ino: Ino::ROOT }).await, Err(Errno::Perm));
        first.call(Request::Goodbye).await.unwrap();
        first.link.close().await;
        let second = place.client(2).await.expect("the first has gone");
        second.create(Ino::ROOT, "f").await.unwrap();
        second.link.close().await;
        let refused = place.client(3).await.err().expect("it may come back").to_string();
        assert!(refused.contains("client:2"), "{refused}");
        place.sim.node("client").sleep(Duration::from_secs(31)).await;
        let third = place.client(3).await.expect("its time is over");
        assert_eq!(third.list(Ino::ROOT).await.unwrap(), ["f"]);
        let Ok(Reply::Counters(counters)) = status.call(Request::Counters { reset: false }).await else { panic!() };
        assert_eq!(counters.iter().find(|(n, _)| n == "evictions").unwrap().1, 1);
        let op = Request::Tunables { pattern: "server.session*".into(), value: Some("5000".into()) };
        let Ok(Reply::Tunables(t)) = status.call(op).await else { panic!() };
        assert_eq!(t[0].1, "5000");
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: opens live through a restart when their client says them again; orphans of clients that do not come back go.
#[test]
fn orphans_over_a_restart() {
    let place = Place::new(32, 2, 1);
    let run = async {
        let _server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let f = c.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let g = c.make(Ino::ROOT, "g", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        c.unlink(Ino::ROOT, "f").await.unwrap();
        c.unlink(Ino::ROOT, "g").await.unwrap();
        c.held.opens.borrow_mut().push((f, RW));
        place.sim.crash("server", CrashKind::Process);
        let _server = place.start().await.unwrap();
        assert_eq!(c.stat(f).await.unwrap().nlink, 0, "said again");
        assert_eq!(c.held.restarts.get(), 1);
        // What was opened last may still be asked for; a later request of its slot ends that.
        for i in 0..200 {
            if c.stat(g).await == Err(Errno::Stale) {
                break;
            }
            assert!(i < 199, "not said again, so gone");
            c.create(Ino::ROOT, &format!("x{i}")).await.unwrap();
        }
        place.sim.crash("client", CrashKind::Process);
        place.sim.node("server").sleep(Duration::from_secs(60)).await;
        let d = place.client(2).await.expect("evicted");
        assert_eq!(d.stat(f).await, Err(Errno::Stale));
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: requests that are sent again over broken connections and restarts happen once. Method: exclusive creates and
/// links while connections break and the server is killed; any repetition would say `Exist` or count a link twice.
#[test]
fn resends_happen_once() {
    for seed in 0..12 {
        let place = Place::new(100 + seed, 3, 2);
        let run = async {
            let mut server = Some(place.start().await.unwrap());
            let c = place.client(1).await.unwrap();
            let f = c.create(Ino::ROOT, "f").await.unwrap();
            for i in 0..30u32 {
                let names = [format!("d{i}"), format!("f{i}"), format!("l{i}")];
                let dir = c.mkdir(Ino::ROOT, &names[0]);
                let file = c.create(Ino::ROOT, &names[1]);
                let link = c.link(f, Ino::ROOT, &names[2]);
                let trouble = async {
                    let env = place.sim.node("client");
                    env.sleep(Duration::from_micros(env.rand() % 800)).await;
                    if i % 3 == 0 {
                        place.sim.break_connections("client", "server");
                    } else if i % 7 == 1 {
                        server = None;
                        place.sim.crash("server", CrashKind::Process);
                        server = Some(place.start().await.unwrap());
                    }
                };
                let (dir, file, link, ()) = futures_util::join!(dir, file, link, trouble);
                dir.unwrap();
                file.unwrap();
                assert_eq!(link.unwrap().attr.nlink, i + 2);
            }
            assert_eq!(c.stat(f).await.unwrap().nlink, 31);
            assert_eq!(c.stat(Ino::ROOT).await.unwrap().nlink, 32);
            assert_eq!(c.list(Ino::ROOT).await.unwrap().len(), 91);
            drop(server);
        };
        place.sim.block_on(run).unwrap();
    }
}

/// Goal: a stopped server starts again on its folder with everything; two at once, wrong counts and missing zones are
/// refused with one clear line and without harm.
#[test]
fn folders_are_checked() {
    let place = Place::new(33, 3, 2);
    let run = async {
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        c.mkdir(Ino::ROOT, "kept").await.unwrap();
        let twice = place.start().await.err().expect("refused");
        assert_eq!(twice.kind, ServerErrorKind::InUse, "{twice}");
        c.call(Request::Goodbye).await.unwrap();
        server.stop().await.unwrap();
        drop(server);
        place.sim.node("server").sleep(Duration::from_secs(2)).await;
        let env = place.sim.node("server");
        let mut wrong = place.config.clone();
        wrong.targets = Some(4);
        let error = Server::start(env.clone(), wrong.clone()).await.err().expect("refused");
        assert_eq!(error.kind, ServerErrorKind::Mismatch, "{error}");
        wrong.targets = None;
        let server = Server::start(env, wrong).await.expect("it takes what it finds");
        let d = place.client(2).await.unwrap();
        assert_eq!(d.list(Ino::ROOT).await.unwrap(), ["kept"]);
        drop(server);
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: a session whose process is known to have ended does not keep the next mount out.
#[test]
fn ended_processes_do_not_hold_the_mount() {
    let mut place = Place::new(34, 2, 1);
    let gone = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let known = gone.clone();
    place.config.holder_gone =
        std::sync::Arc::new(move |name| name == "client:1" && known.load(std::sync::atomic::Ordering::Relaxed));
    let run = async {
        let _server = place.start().await.unwrap();
        let first = place.client(1).await.unwrap();
        let f = first.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        first.unlink(Ino::ROOT, "f").await.unwrap();
        assert!(place.client(2).await.is_err(), "it is alive");
        // Its connection may live a little longer than its process.
        gone.store(true, std::sync::atomic::Ordering::Relaxed);
        let second = place.client(2).await.expect("at once");
        assert_eq!(second.stat(f).await, Err(Errno::Stale), "its opens are closed");
        assert_eq!(second.list(Ino::ROOT).await.unwrap(), Vec::<String>::new());
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: damage is found and nothing is changed; a server refuses the folder with the place. Method: bytes of one zone
/// are overwritten, then a zone is missing.
#[test]
fn damage_is_reported() {
    let place = Place::new(35, 2, 1);
    let run = async {
        let env = place.sim.node("server");
        let none = crate::fsck(&env, "data").await.expect_err("nothing there");
        assert_eq!(none.kind, ServerErrorKind::Mismatch);
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        c.mkdir(Ino::ROOT, "d").await.unwrap();
        let busy = crate::fsck(&env, "data").await.expect_err("a server runs");
        assert_eq!(busy.kind, ServerErrorKind::InUse);
        c.call(Request::Goodbye).await.unwrap();
        server.stop().await.unwrap();
        drop(server);
        assert!(crate::fsck(&env, "data").await.unwrap().is_clean());
        let path = place.config.zone_path(1);
        for at in [0u64, 4096, 8192, 65536] {
            place.sim.poke("server", &path, at, &[0x5a; 512]).unwrap();
        }
        let before = place.sim.peek("server", &path, 0, 1 << 20).unwrap();
        let report = crate::fsck(&env, "data").await.unwrap();
        assert!(!report.is_clean() && report.findings[0].place.contains("target-0001.zone"), "{report:?}");
        let refused = place.start().await.err().expect("refused");
        assert!(refused.line.contains("target-0001.zone"), "{refused}");
        assert!(place.sim.peek("server", &path, 0, 1 << 20).unwrap() == before, "nothing was changed");
    };
    place.sim.block_on(run).unwrap();
}
