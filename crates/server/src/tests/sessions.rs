//! Stories of sessions, restarts and resends.

use super::*;
use crate::ServerErrorKind;
use crate::session::reach::Terms;
use amphi_env::sim::CrashKind;

/// Goal: mounts are shown with their opens and locks. Administrators may request this and do nothing else. A mount that
/// has vanished keeps its session for the grace time. Method: two mounts, one of which ends without a message.
#[test]
fn mounts_come_and_go() {
    let place = Place::new(31, 2, 2);
    let run = async {
        let _server = place.start().await.unwrap();
        let first = place.client(1).await.unwrap();
        let status = place.client_named(9, "admin:1", Role::Admin).await.unwrap();
        let sessions = async || {
            let Ok(Reply::Status { sessions, .. }) = status.call(Request::Status).await else { panic!("status") };
            sessions.into_iter().map(|s| (s.name, s.connected, s.opens, s.locks)).collect::<Vec<_>>()
        };
        assert_eq!(sessions().await, [("client:1".to_string(), true, 0, 0)]);
        assert_eq!(status.call(Request::GetAttr { ino: Ino::ROOT }).await, Err(Errno::Perm));
        let second = place.client(2).await.unwrap();
        let f = second.make(Ino::ROOT, "f", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        first.call(Request::Open { ino: f, access: RW, exec: false }).await.unwrap();
        let of = |name: &str, opens, locks| (name.to_string(), true, opens, locks);
        assert_eq!(sessions().await, [of("client:1", 1, 0), of("client:2", 1, 1)], "each its own");
        first.call(Request::Goodbye).await.unwrap();
        first.link.close().await;
        assert_eq!(sessions().await, [of("client:2", 1, 1)]);
        second.link.close().await;
        place.sim.node("client").sleep(Duration::from_secs(29)).await;
        assert_eq!(sessions().await, [("client:2".to_string(), false, 1, 1)], "it may come back");
        place.sim.node("client").sleep(Duration::from_secs(2)).await;
        assert_eq!(sessions().await, []);
        let third = place.client(3).await.unwrap();
        assert_eq!(third.list(Ino::ROOT).await.unwrap(), ["f"]);
        let Ok(Reply::Counters(counters)) = status.call(Request::Counters { reset: false }).await else { panic!() };
        assert_eq!(counters.iter().find(|(n, _)| n == "evictions").unwrap().1, 1);
        let op = Request::Tunables { pattern: "server.session*".into(), value: Some("5000".into()) };
        let Ok(Reply::Tunables(t)) = status.call(op).await else { panic!() };
        assert_eq!(t[0].1, "5000");
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: opens survive a restart if their client presents them. Unlinked files of clients that do not come back are
/// removed.
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
        // The request of the last open may still be repeated; a later request of its slot ends that.
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
/// links while connections break and the server is killed. Any repetition would give `Exist` or count a link twice.
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

/// Goal: a stopped server starts again on its folder with everything. Two servers at once, wrong counts and missing
/// zones are refused with one clear line and without harm.
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

/// Goal: a session whose process is known to have ended does not delay the next mount; a session that only does not
/// answer does.
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
        first.held.deaf.set(true);
        let refused = place.client(2).await.err().expect("the first has not answered").to_string();
        assert!(refused.contains("try again"), "{refused}");
        // A client's connection may live a little longer than its process.
        gone.store(true, std::sync::atomic::Ordering::Relaxed);
        let second = place.client(2).await.expect("at once");
        assert_eq!(second.stat(f).await, Err(Errno::Stale), "its opens are closed");
        assert_eq!(second.list(Ino::ROOT).await.unwrap(), Vec::<String>::new());
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: damage is found and nothing is changed. A server refuses the folder and names the place. Method: bytes of one
/// zone are overwritten, then a zone is missing.
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

/// Goal: if the client of a request has stopped waiting before the request began, it is refused permanently. A request
/// that was executed keeps its answer. Method: requests with passed deadlines at both workers of a server, each sent
/// again, and their effects checked.
#[test]
fn expired_requests_are_refused() {
    let place = Place::new(36, 2, 2);
    let run = async {
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let (session, worker) = (SessionId(1), &server.worker);
        let call = |target, op| Call { target: TargetId(target), cred: Cred::root(), op };
        let create = |text| {
            let make = Make::File { open: None, exclusive: true };
            call(0, Request::Make { dir: Ino::ROOT, name: name(text), make, perm: 0o644, umask: 0 })
        };
        // A slot that the link does not use.
        let id = |seq| amphi_wire::RequestId { slot: 900, seq };
        let until = |until_ns| Terms { until_ns: Some(until_ns), ..Terms::default() };
        let (passed, ahead) = (until(worker.now_ns()), until(worker.now_ns() + 3_600_000_000_000));
        for until in [passed, Terms::default()] {
            let (answer, _) = crate::dispatch::call(worker, session, id(1), create("late"), None, until).await;
            assert_eq!(answer.result, Err(Errno::TimedOut), "sent again it is as late");
        }
        assert_eq!(c.lookup(Ino::ROOT, "late").await, Err(Errno::NoEnt));
        let (made, _) = crate::dispatch::call(worker, session, id(2), create("in time"), None, ahead).await;
        assert!(made.result.is_ok(), "{made:?}");
        let (again, _) = crate::dispatch::call(worker, session, id(2), create("in time"), None, passed).await;
        assert_eq!(again.result, made.result, "it was executed in time");
        for target in [0, 1] {
            let (late, _) =
                crate::dispatch::call(worker, session, id(3), call(target, Request::Sync { file: None }), None, passed)
                    .await;
            assert_eq!(late.result, Err(Errno::TimedOut));
            let (done, _) =
                crate::dispatch::call(worker, session, id(3), call(target, Request::Sync { file: None }), None, ahead)
                    .await;
            assert_eq!(done.result, Ok(Reply::Done));
        }
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: tunables of the server count from the moment they are set. Method: records are synced automatically within the
/// set interval, and not within a longer one. A value beyond the bounds changes nothing.
#[test]
fn tunables_are_live() {
    with_server(37, 2, 2, async |place, c| {
        let set = async |name: &str, value: &str| {
            c.call(Request::Tunables { pattern: name.into(), value: Some(value.into()) }).await
        };
        let syncs = async || {
            let Ok(Reply::Counters(all)) = c.call(Request::Counters { reset: false }).await else { panic!("counters") };
            all.iter().find(|(n, _)| n == "disk_syncs").expect("counted").1
        };
        let syncs_after_a_change = async |text: &str| {
            place.sim.node("client").sleep(Duration::from_secs(20)).await;
            let before = syncs().await;
            c.create(Ino::ROOT, text).await.unwrap();
            place.sim.node("client").sleep(Duration::from_secs(5)).await;
            syncs().await - before
        };
        assert!(syncs_after_a_change("a").await > 0, "by default within seconds");
        set("server.sync_interval_ms", "600000").await.unwrap();
        // The wait that has begun ends at its original deadline.
        c.create(Ino::ROOT, "b").await.unwrap();
        assert_eq!(syncs_after_a_change("c").await, 0);
        set("server.sync_interval_ms", "50").await.unwrap();
        c.call(Request::Sync { file: None }).await.unwrap();
        assert!(syncs_after_a_change("d").await > 0);
        assert_eq!(set("server.sync_interval_ms", "0").await, Err(Errno::Inval));
        assert_eq!(set("server.no_such", "0").await, Err(Errno::NoEnt));
        let Ok(Reply::Tunables(rows)) = set("server.sync_interval_m?", "70").await else { panic!("rows") };
        assert_eq!((rows.len(), rows[0].1.as_str()), (1, "70"));
    });
}

/// Goal: a mount whose clock is far off is refused with a line that gives the difference, changes nothing, and is
/// admitted when the clock has been set. A connected mount stays when its clock jumps. Method: clocks of simulated
/// machines.
#[test]
fn clocks_far_off_are_refused() {
    let place = Place::new(31, 1, 1);
    let run = async {
        let _server = place.start().await.unwrap();
        place.sim.node("far");
        for (ahead, line) in
            [(86_400 * 3 + 5, "3 days ahead of"), (-7_300, "2 hours behind"), (301, "5 minutes ahead of")]
        {
            place.sim.set_clock_ahead("far", ahead);
            let refused = place.client_on("far", 7, "far:7", Role::Mount).await.err().expect("refused").to_string();
            assert!(refused.contains(line) && refused.contains("far:7"), "{refused}");
        }
        place.client_on("far", 8, "admin:8", Role::Admin).await.expect("a look is allowed");
        place.sim.set_clock_ahead("far", 290);
        let mount = place.client_on("far", 7, "far:7", Role::Mount).await.expect("near enough");
        place.sim.set_clock_ahead("far", 86_400);
        place.sim.break_connections("server", "far");
        mount.stat(Ino::ROOT).await.expect("it comes back");
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: a target whose disk has failed does not preserve an ended session's state on the other targets. Method: three
/// targets, of which the middle one fails. A mount with a lock on the last one ends in order, and another one is cut
/// off. The lock is free at once, and a new mount is admitted.
#[test]
fn a_failed_target_holds_up_no_other() {
    for polite in [true, false] {
        let place = Place::new(34, 3, 1);
        let run = async {
            let _server = place.start().await.unwrap();
            let (first, second) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
            let on = async |target: u16| {
                for i in 0.. {
                    let dir = first.mkdir(Ino::ROOT, &format!("d{target}-{i}")).await.unwrap();
                    if dir.target() == TargetId(target) {
                        return first.create(dir, "f").await.unwrap();
                    }
                }
                unreachable!()
            };
            let (failing, healthy) = (on(1).await, on(2).await);
            let lock = |ino| {
                super::locks::ask(
                    ObjectId { ino, stripe: 0 },
                    amphi_wire::LockMode::Write,
                    0,
                    1 << 20,
                    amphi_wire::LockExtent::Grown,
                )
            };
            first.call(lock(healthy)).await.unwrap();
            place.sim.on_disk_op("server", |op| op.path.ends_with("0001.zone").then_some(std::io::ErrorKind::Other));
            let set = amphi_types::SetAttr { perm: Some(0o600), ..amphi_types::SetAttr::default() };
            // Some may be answered before the write to the disk has failed.
            let attempts = async { while first.call(Request::SetAttr { ino: failing, set }).await.is_ok() {} };
            let env = place.sim.node("client");
            amphi_env::timeout(&env, Duration::from_secs(1), attempts).await.expect("it fails");
            if polite {
                let _ = first.call(Request::Goodbye).await;
            }
            first.link.close().await;
            let wait = async { second.call(lock(healthy)).await };
            let granted = amphi_env::timeout(&env, Duration::from_secs(40), wait).await;
            assert!(matches!(granted, Some(Ok(_))), "{granted:?}");
        };
        place.sim.block_on(run).unwrap();
    }
}
