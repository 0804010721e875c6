//! Lost connections, sessions over several servers, moves of directories under a master that crashes.

use super::*;
use crate::message::{TargetReply, TargetRequest};
use crate::records::TxId;
use amphi_meta::Part;

/// Goal: requests between servers that are repeated over broken connections and restarts of either end are executed
/// once. Method: as for requests of a mount: exclusive creates and links, whose repetition would give `Exist` or count
/// a link twice. Meanwhile the connection between the servers breaks, and one of them is killed.
#[test]
fn questions_happen_once() {
    for seed in 0..10 {
        let world = World::new(200 + seed, &[1, 2], 2);
        let run = async {
            let mut servers = world.start_all().await;
            let m = world.mount(1).await.unwrap();
            let (at0, at1) = (dir_on(Ino::ROOT, 0, 3), dir_on(Ino::ROOT, 2, 3));
            let (a, b) = (m.mkdir(Ino::ROOT, &at0).await.unwrap(), m.mkdir(Ino::ROOT, &at1).await.unwrap());
            let f = m.create(a, "f").await.unwrap();
            let g = m.create(b, "g").await.unwrap();
            for i in 0..30u32 {
                let texts = [format!("d{i}"), format!("l{i}"), format!("k{i}")];
                let dir = m.mkdir(a, &texts[0]);
                let link = m.link(f, b, &texts[1]);
                let back = m.link(g, a, &texts[2]);
                let trouble = async {
                    let env = world.sim.node("client");
                    env.sleep(Duration::from_micros(env.rand() % 1200)).await;
                    if i % 3 == 0 {
                        world.sim.break_connections("s0", "s1");
                    } else if i % 7 == 1 {
                        let at = (seed % 2) as usize;
                        servers[at] = None;
                        crash(&world, at, CrashKind::Process);
                        servers[at] = Some(world.start(at).await.unwrap());
                    } else if i % 5 == 2 {
                        world.sim.cut("s0", "s1");
                        env.sleep(Duration::from_millis(env.rand() % 3000)).await;
                        world.sim.heal("s0", "s1");
                    }
                };
                let (dir, link, back, ()) = futures_util::join!(dir, link, back, trouble);
                dir.unwrap_or_else(|e| panic!("seed {seed}, mkdir {i}: {e}"));
                assert_eq!(link.unwrap_or_else(|e| panic!("seed {seed}, link {i}: {e}")).attr.nlink, i + 2);
                assert_eq!(back.unwrap_or_else(|e| panic!("seed {seed}, link back {i}: {e}")).attr.nlink, i + 2);
            }
            assert_eq!(m.list(a).await.unwrap().len(), 61);
            assert_eq!(m.list(b).await.unwrap().len(), 31);
            m.goodbye().await;
            world.stop_all(servers).await;
            let report = world.fsck().await;
            assert!(report.is_clean(), "seed {seed}: {report:#?}");
        };
        world.sim.block_on(run).unwrap();
    }
}

/// Goal: directories that move at the same time never become their own ancestors, whichever server crashes. Method: two
/// directories on two servers are moved into each other again and again, while the master, which has the lock on such
/// moves, or the other server is killed.
#[test]
fn crossing_moves_make_no_loop() {
    for seed in 0..16 {
        let world = World::new(300 + seed, &[1, 1, 1], 1);
        let run = async {
            let mut servers = world.start_all().await;
            let m = world.mount(1).await.unwrap();
            let (an, bn) = (dir_on(Ino::ROOT, 1, 3), dir_on(Ino::ROOT, 2, 3));
            let (a, b) = (m.mkdir(Ino::ROOT, &an).await.unwrap(), m.mkdir(Ino::ROOT, &bn).await.unwrap());
            for round in 0..12u64 {
                let into_b = m.rename((Ino::ROOT, &an), (b, "a"), RenameMode::NoReplace);
                let into_a = m.rename((Ino::ROOT, &bn), (a, "b"), RenameMode::NoReplace);
                let trouble = async {
                    let env = world.sim.node("client");
                    env.sleep(Duration::from_micros(env.rand() % 3000)).await;
                    let at = (round % 4) as usize;
                    if at < 3 {
                        servers[at] = None;
                        crash(&world, at, CrashKind::Process);
                        servers[at] = Some(world.start(at).await.unwrap());
                    }
                };
                let (into_b, into_a, ()) = futures_util::join!(into_b, into_a, trouble);
                let what = format!("seed {seed}, round {round}: {into_b:?} {into_a:?}");
                assert!(into_b.is_ok() != into_a.is_ok(), "{what}");
                assert_eq!(m.tree(Ino::ROOT).await.unwrap().len(), 2, "{what}");
                match into_b.is_ok() {
                    true => m.rename((b, "a"), (Ino::ROOT, &an), RenameMode::NoReplace).await.expect(&what),
                    false => m.rename((a, "b"), (Ino::ROOT, &bn), RenameMode::NoReplace).await.expect(&what),
                }
            }
            m.goodbye().await;
            world.stop_all(servers).await;
            let report = world.fsck().await;
            assert!(report.is_clean(), "seed {seed}: {report:#?}");
        };
        world.sim.block_on(run).unwrap();
    }
}

/// Goal: a session that ends at the master ends on all servers, even on one that was cut off or down meanwhile, and its
/// open files are released. A live session becomes known to a server that was down when it began. No other session is
/// admitted.
#[test]
fn sessions_are_the_same_everywhere() {
    let world = World::new(65, &[1, 1], 1);
    let run = async {
        let mut servers = world.start_all().await;
        let text = dir_on(Ino::ROOT, 1, 2);
        let opens = async |m: &Mount<'_>, dir: Ino| {
            let ino = m.open_new(dir, "open").await.unwrap().attr.ino;
            m.unlink(dir, "open").await.unwrap();
            ino
        };
        // Cut off while it ends.
        let m = world.mount(1).await.unwrap();
        let dir = m.mkdir(Ino::ROOT, &text).await.unwrap();
        let ino = opens(&m, dir).await;
        world.sim.cut("s0", "s1");
        world.sim.crash("client", CrashKind::Process);
        sleep(&world, Duration::from_secs(80)).await;
        let m = world.mount(2).await.expect("the first one is evicted");
        world.sim.heal("s0", "s1");
        sleep(&world, Duration::from_secs(40)).await;
        assert_eq!(m.stat(ino).await, Err(Errno::Stale), "it heard of it");
        // Down while it ends.
        let ino = opens(&m, dir).await;
        crash(&world, 1, CrashKind::Process);
        servers[1] = None;
        sleep(&world, Duration::from_secs(10)).await;
        world.sim.crash("client", CrashKind::Process);
        sleep(&world, Duration::from_secs(60)).await;
        let m = world.mount(3).await.expect("the second one is evicted");
        servers[1] = Some(world.start(1).await.unwrap());
        assert_eq!(m.stat(ino).await, Err(Errno::Stale), "it began here as well");
        assert_eq!(m.list(dir).await.unwrap(), Vec::<String>::new());
        let refused = world.connect(77, 1, Role::Mount).await.err().expect("refused").to_string();
        assert!(refused.contains("does not know this session"), "{refused}");
        // A client that violates the protocol there.
        servers[1].as_ref().unwrap().worker.overdue(SessionId(3));
        sleep(&world, Duration::from_secs(3)).await;
        assert_eq!(servers[0].as_ref().unwrap().worker.counters.evictions.get(), 3, "the master hears of it");
        // Its client comes back under the same id, as to a single server: as a session that has just begun.
        assert_eq!(m.stat(dir).await.unwrap().nlink, 2);
        assert_eq!(m.links.borrow()[&1].1.restarts.get(), 1, "what it had here is gone");
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: if a coordinator is down, it is asked repeatedly, and the items of the promise stay locked until it answers.
/// If a participant is down, it gets the decision when it is back. Method: one server is cut off in the middle of an
/// operation.
#[test]
fn promises_wait_for_their_coordinator() {
    let world = World::new(66, &[1, 1], 1);
    let run = async {
        let servers = world.start_all().await;
        let m = world.mount(1).await.unwrap();
        let text = dir_on(Ino::ROOT, 1, 2);
        let dir = m.mkdir(Ino::ROOT, &text).await.unwrap();
        let f = m.create(Ino::ROOT, "f").await.unwrap();
        let (s0, s1) = (servers[0].clone().unwrap(), servers[1].clone().unwrap());
        for at_ns in (0..40).map(|i| i * 15_000) {
            let cut = async {
                world.sim.node("client").sleep(Duration::from_nanos(at_ns)).await;
                world.sim.cut("s0", "s1");
                world.sim.node("client").sleep(Duration::from_secs(15)).await;
                world.sim.heal("s0", "s1");
            };
            // Coordinated by one server, then by the other.
            let there = m.rename((Ino::ROOT, "f"), (dir, "f"), RenameMode::Replace);
            let (there, ()) = futures_util::join!(there, cut);
            there.unwrap();
            m.rename((dir, "f"), (Ino::ROOT, "f"), RenameMode::Replace).await.unwrap();
            assert_eq!(m.lookup(Ino::ROOT, "f").await.unwrap().attr.ino, f);
        }
        drop((s0, s1));
        m.goodbye().await;
        world.stop_all(servers).await;
        let report = world.fsck().await;
        assert!(report.is_clean() && report.pending.is_empty(), "{report:#?}");
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: the lock on moving directories that is granted to a server which has given up the move is returned. Method:
/// the lock is held at the master while another server, whose client moves a directory, waits for it and is cut off for
/// longer than it waits. Then the lock becomes free, and directories move again.
#[test]
fn a_move_given_up_keeps_no_lock() {
    let world = World::new(67, &[1, 1, 1], 1);
    let run = async {
        let servers = world.start_all().await;
        let m = world.mount(1).await.unwrap();
        let (a, b) = (m.dir_at(1).await, m.dir_at(2).await);
        m.mkdir(a, "moves").await.unwrap();
        let master = servers[0].clone().unwrap();
        let held = master.worker.ask(TargetId(0), TargetRequest::MoveLock).await;
        let Ok(TargetReply::Moving(number)) = held else { panic!("{held:?}") };
        let trouble = async {
            sleep(&world, Duration::from_secs(1)).await;
            world.sim.cut("s0", "s1");
            sleep(&world, Duration::from_secs(120)).await;
            world.sim.heal("s0", "s1");
        };
        let gives_up = m.rename((a, "moves"), (b, "moves"), RenameMode::NoReplace);
        let (given_up, ()) = futures_util::join!(gives_up, trouble);
        assert_eq!(given_up, Err(Errno::Io));
        sleep(&world, Duration::from_secs(10)).await;
        master.worker.tell(TargetId(0), TargetRequest::MoveUnlock(number)).await.unwrap();
        let env = world.sim.node("client");
        for (from, to) in [(a, b), (b, a)] {
            let moved = m.rename((from, "moves"), (to, "moves"), RenameMode::NoReplace);
            let moved = amphi_env::timeout(&env, Duration::from_secs(30), moved).await;
            assert_eq!(moved, Some(Ok(())), "somebody keeps the lock");
        }
        drop(master);
        m.goodbye().await;
        world.stop_all(servers).await;
        let report = world.fsck().await;
        assert!(report.is_clean(), "{report:#?}");
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: promises to a coordinator that cannot be reached hold up nothing but their own names. Method: a participant
/// has promises to a server that is down, and to another one that is alive and has no record of the operation, so that
/// it did not happen. The name of that operation can be used soon.
#[test]
fn promises_to_others_do_not_wait() {
    let world = World::new(68, &[1, 1, 1, 1], 1);
    let run = async {
        let mut servers = world.start_all().await;
        let m = world.mount(1).await.unwrap();
        let dir = m.dir_at(3).await;
        let participant = servers[3].clone().unwrap();
        let (names, now, session) = (["a", "b", "c", "d"], Timespec::default(), SessionId(1));
        for (number, text) in (1..).zip(names) {
            let coordinator = TargetId(if text == "d" { 2 } else { 1 });
            let parts = vec![Part::InsertDentry { dir, name: name(text), child: Ino::ROOT, kind: Kind::File }];
            let tx = TxId { coordinator, number };
            participant.worker.tell(TargetId(3), TargetRequest::Prepare { tx, session, now, parts }).await.unwrap();
        }
        crash(&world, 1, CrashKind::Process);
        servers[1] = None;
        let env = world.sim.node("client");
        let made = amphi_env::timeout(&env, Duration::from_secs(20), m.create(dir, "d")).await;
        assert!(matches!(made, Some(Ok(_))), "{made:?}");
        servers[1] = Some(world.start(1).await.unwrap());
        for text in &names[..3] {
            let made = amphi_env::timeout(&env, Duration::from_secs(20), m.create(dir, text)).await;
            assert!(matches!(made, Some(Ok(_))), "{text}: {made:?}");
        }
        drop(participant);
        m.goodbye().await;
        world.stop_all(servers).await;
        let report = world.fsck().await;
        assert!(report.is_clean(), "{report:#?}");
    };
    world.sim.block_on(run).unwrap();
}
