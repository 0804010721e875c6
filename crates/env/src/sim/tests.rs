//! Properties of the simulator alone: determinism, crashes, faults, reports of standstills.

use super::*;
use crate::{Buf, Conn, Disk, Listener, Rx, Tx, timeout};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::ErrorKind;

fn block(byte: u8) -> Buf {
    let mut buf = Buf::zeroed(4096);
    buf.fill(byte);
    buf
}

/// An echo server, two clients, disk writes and timers, for a fixed virtual time.
fn busy_world(seed: u64) -> (u64, Vec<u64>) {
    let sim = Sim::new(seed, SimConfig { break_one_in: 200, ..SimConfig::default() });
    let server = sim.node("server");
    let env = server.clone();
    server.spawn(async move {
        let listener = env.listen("tcp:server:1").await.expect("listen");
        let disk = env.disk("disk", DiskMode::Create(1 << 20)).await.expect("disk");
        while let Ok(conn) = listener.accept().await {
            let ((mut tx, mut rx), disk, inner) = (conn.split(), disk.clone(), env.clone());
            env.spawn(async move {
                loop {
                    let (r, buf) = rx.recv_exact(Buf::zeroed(4096)).await;
                    if r.is_err() {
                        return;
                    }
                    let at = inner.rand() % 256 * 4096;
                    let (r, buf) = disk.write(at, buf).await;
                    r.expect("write");
                    if tx.send(buf, None).await.0.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let log = Rc::new(RefCell::new(Vec::new()));
    for i in 0..2u8 {
        let (env, log) = (sim.node(&format!("client{i}")), log.clone());
        env.clone().spawn(async move {
            loop {
                let Ok(conn) = env.dial("tcp:server:1").await else {
                    env.sleep(Duration::from_millis(1)).await;
                    continue;
                };
                let (mut tx, mut rx) = conn.split();
                while tx.send(block(i), None).await.0.is_ok() && rx.recv_exact(block(0)).await.0.is_ok() {
                    log.borrow_mut().push(env.now().0);
                }
            }
        });
    }
    sim.run_for(Duration::from_millis(200)).expect("runs");
    let times = log.borrow().clone();
    (sim.trace_hash(), times)
}

/// Goal: equal seeds give equal traces, different ones differ, and work is done. Method: a busy world is run twice.
#[test]
fn determinism() {
    let mut hashes = BTreeSet::new();
    for seed in 0..10 {
        let (a, b) = (busy_world(seed), busy_world(seed));
        assert_eq!(a, b);
        assert!(a.1.len() > 50, "{} exchanges", a.1.len());
        hashes.insert(a.0);
    }
    assert_eq!(hashes.len(), 10);
}

/// Goal: writes that returned survive the crash of the process; writes in flight are lost, complete, or torn at 512
/// bytes. Method: crash at the second of two writes, many seeds, and compare the resulting contents.
#[test]
fn process_crash() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..200 {
        let sim = Sim::new(seed, SimConfig::default());
        let env = sim.node("n");
        let inner = env.clone();
        env.spawn(async move {
            let disk = inner.disk("d", DiskMode::Create(8192)).await.expect("create");
            disk.write(0, block(1)).await.0.expect("write");
            let _ = disk.write(4096, block(2)).await;
            panic!("ran past the crash");
        });
        sim.crash_at("n", 2, CrashKind::Process);
        sim.run_until(|| !sim.alive("n")).expect("crashes");
        assert_eq!(sim.disk_ops("n").writes, 2);
        let env = sim.node("n");
        let bytes = sim.block_on(async {
            let disk = env.disk("d", DiskMode::Open).await.expect("the lock is gone with its holder");
            disk.read(0, Buf::zeroed(8192)).await.1
        });
        let bytes = bytes.expect("no deadlock");
        assert!(bytes[..4096].iter().all(|b| *b == 1));
        for sector in bytes[4096..].chunks(512) {
            assert!(sector.iter().all(|b| *b == sector[0]) && (sector[0] == 0 || sector[0] == 2));
        }
        let new = bytes[4096..].iter().filter(|b| **b == 2).count();
        outcomes.insert(if new == 0 {
            "lost"
        } else if new == 4096 {
            "whole"
        } else {
            "torn"
        });
    }
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
}

/// Goal: power loss keeps synced data and any part of the rest. A process crash before it does not make writes stable.
/// A sync covers writes that returned before its call. Method: three blocks, each rewritten, many seeds.
#[test]
fn power_crash() {
    let mut second = BTreeSet::new();
    for seed in 0..200 {
        let sim = Sim::new(seed, SimConfig::default());
        let env = sim.node("n");
        sim.block_on(async {
            let disk = env.disk("d", DiskMode::Create(12288)).await.expect("create");
            disk.write(0, block(1)).await.0.expect("write");
            disk.sync().await.expect("sync");
            disk.write(4096, block(2)).await.0.expect("write");
            disk.write(4096, block(3)).await.0.expect("write");
        })
        .expect("no deadlock");
        if seed % 2 == 0 {
            sim.crash("n", CrashKind::Process);
            sim.node("n");
            assert!(sim.peek("n", "d", 4096, 4096).expect("peek").iter().all(|b| *b == 3));
        }
        sim.crash("n", CrashKind::Power);
        let bytes = sim.peek("n", "d", 0, 12288).expect("peek");
        assert!(bytes[..4096].iter().all(|b| *b == 1), "synced bytes were lost");
        assert!(bytes[8192..].iter().all(|b| *b == 0), "bytes appeared");
        second.insert(bytes[4096..8192].chunks(512).map(|s| s[0]).collect::<BTreeSet<u8>>());
    }
    for one in [0, 2, 3] {
        assert!(second.contains(&BTreeSet::from([one])), "the block was never wholly {one}");
    }
    assert!(second.iter().any(|s| s.len() > 1), "the block was never torn");
}

/// Goal: the boot id stays the same when a process is killed and changes when power is lost, for each node separately.
/// Method: both events, each twice.
#[test]
fn boots_are_told_apart() {
    let sim = Sim::new(5, SimConfig::default());
    let other = sim.node("other").boot_id();
    let mut seen = BTreeSet::from([other, sim.node("n").boot_id()]);
    for round in 0..2 {
        let before = sim.node("n").boot_id();
        sim.crash("n", CrashKind::Process);
        assert_eq!(sim.node("n").boot_id(), before);
        sim.crash("n", CrashKind::Power);
        seen.insert(sim.node("n").boot_id());
        assert_eq!(seen.len(), 3 + round);
    }
    assert_eq!(sim.node("other").boot_id(), other);
}

/// Goal: every write and sync of a run can be the crash point, and none beyond. Method: sweep.
#[test]
fn crash_sweep() {
    let run = |crash: u64| {
        let sim = Sim::new(crash, SimConfig::default());
        let env = sim.node("n");
        if crash > 0 {
            sim.crash_at("n", crash, CrashKind::Power);
        }
        let done = Rc::new(Cell::new(false));
        let (inner, end) = (env.clone(), done.clone());
        env.spawn(async move {
            let disk = inner.disk("d", DiskMode::Create(65536)).await.expect("create");
            for i in 0..5 {
                disk.write(i * 4096, block(1)).await.0.expect("write");
                disk.sync().await.expect("sync");
            }
            end.set(true);
        });
        sim.run_until(|| done.get() || !sim.alive("n")).expect("ends");
        (done.get(), sim.disk_ops("n").writes + sim.disk_ops("n").syncs)
    };
    assert_eq!(run(0), (true, 10));
    (1..=10).for_each(|n| assert_eq!(run(n), (false, n)));
    assert_eq!(run(11), (true, 10));
}

/// Goal: a crash point is reached exactly once although several writes start in one poll, in this run and, if it is set
/// again, in the next one. Method: eight writes at a time, crashed at each of them.
#[test]
fn writes_after_the_crash_point_do_not_count() {
    for point in 1..=8 {
        let sim = Sim::new(point, SimConfig::default());
        let write_all = |mode| {
            let (env, done) = (sim.node("n"), Rc::new(Cell::new(0)));
            let (inner, count) = (env.clone(), done.clone());
            env.spawn(async move {
                let disk = inner.disk("d", mode).await.expect("disk");
                let write = async |i: u64| {
                    disk.write(i * 4096, block(1)).await.0.expect("write");
                    count.set(count.get() + 1);
                };
                futures_util::future::join_all((0..8).map(write)).await;
            });
            done
        };
        for mode in [DiskMode::Create(65536), DiskMode::Open] {
            let boots = sim.node("n").boot_id();
            sim.crash_at("n", point, CrashKind::Process);
            let done = write_all(mode);
            sim.run_until(|| !sim.alive("n")).expect("crashes");
            assert_eq!(done.get(), 0, "the crash comes before any of them has ended");
            assert_eq!(sim.node("n").boot_id(), boots);
        }
        let done = write_all(DiskMode::Open);
        sim.run_until(|| done.get() == 8).expect("no crash point is left over");
        assert!(sim.alive("n"));
    }
}

/// Goal: injected errors reach the caller; a failed sync makes nothing stable. Method: a hook that fails syncs.
#[test]
fn faults() {
    let mut lost = 0;
    for seed in 0..20 {
        let sim = Sim::new(seed, SimConfig::default());
        let env = sim.node("n");
        let seen = Rc::new(RefCell::new(Vec::new()));
        let log = seen.clone();
        sim.on_disk_op("n", move |op| {
            log.borrow_mut().push((op.kind, op.at, op.len));
            (op.kind == DiskOpKind::Sync || op.at == 4096).then_some(ErrorKind::StorageFull)
        });
        sim.block_on(async {
            let disk = env.disk("d", DiskMode::Create(8192)).await.expect("create");
            disk.write(0, block(1)).await.0.expect("write");
            assert_eq!(disk.write(4096, block(1)).await.0.expect_err("fault").kind(), ErrorKind::StorageFull);
            assert_eq!(disk.sync().await.expect_err("fault").kind(), ErrorKind::StorageFull);
        })
        .expect("no deadlock");
        assert_eq!(seen.borrow()[..2], [(DiskOpKind::Write, 0, 4096), (DiskOpKind::Write, 4096, 4096)]);
        sim.crash("n", CrashKind::Power);
        lost += u32::from(sim.peek("n", "d", 0, 4096).expect("peek") != block(1)[..]);
        sim.poke("n", "d", 100, &[9; 5000]).expect("poke");
        assert_eq!(sim.peek("n", "d", 99, 3).expect("peek")[1..], [9, 9]);
    }
    assert!(lost > 3);
}

/// Goal: a standstill and a livelock are reported as errors that name the waiting tasks. Method: one of each.
#[test]
fn standstills() {
    let sim = Sim::new(1, SimConfig { max_steps: 1000, ..SimConfig::default() });
    let env = sim.node("sleeper");
    env.spawn(std::future::pending());
    let Err(SimError::Deadlock { waiting, .. }) = sim.block_on(std::future::pending::<()>()) else {
        panic!("no deadlock")
    };
    assert!(waiting.len() == 1 && waiting[0].starts_with("sleeper: task") && waiting[0].contains("tests.rs"));
    let inner = env.clone();
    env.spawn(async move {
        loop {
            inner.sleep(Duration::from_nanos(1)).await;
        }
    });
    assert!(matches!(sim.run_until(|| false), Err(SimError::Endless { .. })));
}

/// Goal: a crash drops every task of its node and no other, and frees its addresses; the peer notices. Method:
/// crash a server with a waiting client, restart it, dial again.
#[test]
fn crash_and_restart() {
    for (seed, kind) in (0..40).map(|s| (s, if s % 2 == 0 { CrashKind::Process } else { CrashKind::Power })) {
        let sim = Sim::new(seed, SimConfig::default());
        let alive = Rc::new(());
        let start = |env: SimEnv| {
            let (inner, alive) = (env.clone(), alive.clone());
            env.spawn(async move {
                let _alive = alive;
                let listener = inner.listen("unix:/s").await.expect("listen");
                let mut conns = Vec::new();
                loop {
                    conns.push(listener.accept().await.expect("accept"));
                }
            });
        };
        start(sim.node("server"));
        let client = sim.node("client");
        sim.run_for(Duration::from_millis(1)).expect("runs");
        let (_tx, mut rx) = sim.block_on(client.dial("unix:/s")).expect("runs").expect("dial").split();
        assert_eq!(Rc::strong_count(&alive), 2);
        sim.crash("server", kind);
        assert_eq!(Rc::strong_count(&alive), 1);
        let (r, _) = sim.block_on(rx.recv_exact(Buf::zeroed(1))).expect("the peer notices");
        assert!(matches!(r.expect_err("ended").kind(), ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof));
        assert!(sim.block_on(client.dial("unix:/s")).expect("runs").is_err());
        start(sim.node("server"));
        sim.run_for(Duration::from_millis(1)).expect("runs");
        sim.block_on(client.dial("unix:/s")).expect("runs").expect("dial again");
    }
}

/// Goal: a cut delays messages and loses nothing if it heals in time. Otherwise it breaks connections and fails dials.
/// An explicit break ends both sides. Method: bytes are sent over each link.
#[test]
fn cuts() {
    for seed in 0..20 {
        let sim = Sim::new(seed, SimConfig::default());
        let (a, b) = (sim.node("a"), sim.node("b"));
        let listener = sim.block_on(b.listen("tcp:b:0")).expect("runs").expect("listen");
        let addr = listener.local_addr();
        let pair = || {
            let both = futures_util::future::join(a.dial(&addr), listener.accept());
            let (near, far) = sim.block_on(both).expect("runs");
            (near.expect("dial").split(), far.expect("accept").split())
        };
        let ((mut tx, mut rx), (_far_tx, mut far_rx)) = pair();
        sim.cut("a", "b");
        sim.block_on(tx.send(block(1), Some(block(2)))).expect("runs").0.expect("fits the window");
        let early = sim.block_on(timeout(&b, Duration::from_secs(5), far_rx.recv_exact(Buf::zeroed(1))));
        assert!(early.expect("runs").is_none(), "bytes crossed a cut");
        assert_eq!(
            sim.block_on(a.dial(&addr)).expect("runs").map(|_| ()).expect_err("cut").kind(),
            ErrorKind::TimedOut
        );
        sim.heal("a", "b");
        let (r, got) = sim.block_on(far_rx.recv_exact(Buf::zeroed(8192))).expect("runs");
        r.expect("arrives after the cut");
        assert!(got[..4096].iter().all(|b| *b == 1) && got[4096..].iter().all(|b| *b == 2));
        sim.cut("a", "b");
        sim.block_on(tx.send(block(1), None)).expect("runs").0.expect("send");
        let (r, _) = sim.block_on(rx.recv_exact(Buf::zeroed(1))).expect("a long cut breaks");
        assert_eq!(r.expect_err("broken").kind(), ErrorKind::ConnectionReset);
        sim.heal("a", "b");
        let ((mut tx, _rx), (_far_tx, mut far_rx)) = pair();
        sim.break_connections("a", "b");
        assert!(sim.block_on(tx.send(block(1), None)).expect("runs").0.is_err());
        assert!(sim.block_on(far_rx.recv_exact(Buf::zeroed(1))).expect("runs").0.is_err());
    }
}

/// Goal: a stopped node does nothing and loses nothing, and a crash ends the stop. Method: a node that counts every ms
/// is stopped for 10 ms, and continues with its count. If it is stopped again, crashed and started, it runs at once.
#[test]
fn stopped_nodes_stand_still() {
    let sim = Sim::new(1, SimConfig::default());
    let count = Rc::new(Cell::new(0));
    let start = |env: SimEnv| {
        let count = count.clone();
        env.clone().spawn(async move {
            loop {
                env.sleep(Duration::from_millis(1)).await;
                count.set(count.get() + 1);
            }
        });
    };
    let run = |us: u64| {
        sim.run_for(Duration::from_micros(us)).expect("runs");
        count.get()
    };
    start(sim.node("a"));
    assert_eq!(run(5_500), 5);
    sim.stop("a");
    sim.stop("a");
    assert_eq!(run(10_000), 5);
    sim.go_on("a");
    assert_eq!(run(1_600), 7, "one tick was due");
    sim.stop("a");
    sim.crash("a", CrashKind::Process);
    start(sim.node("a"));
    assert_eq!(run(3_500), 10);
}

/// Keeps every second piece back for a millisecond, and ends a connection a while after it was given the byte 9.
struct Delays {
    kept: Vec<u8>,
    count: usize,
    passes: bool,
}

impl Courier for Delays {
    fn take(&mut self, leg: &Leg<'_>, bytes: &[u8]) -> Carried {
        assert!((leg.from == "client" && leg.dialled) || leg.from == "server");
        let break_at = (bytes[0] == 9).then_some(leg.now + Duration::from_millis(5));
        self.count += 1;
        if self.passes || self.count % 2 == 1 || break_at.is_some() {
            return Carried { bytes: bytes.to_vec(), due_at: None, break_at };
        }
        self.kept.extend(bytes);
        Carried { bytes: Vec::new(), due_at: Some(leg.now + Duration::from_millis(1)), break_at }
    }

    fn due(&mut self, _: &Leg<'_>) -> Carried {
        Carried { bytes: std::mem::take(&mut self.kept), ..Carried::default() }
    }
}

/// Goal: bytes that a courier delays arrive at its time, a connection that it breaks breaks then, and one that passes
/// everything changes no trace. Method: single bytes on a connection without a courier, with one that passes
/// everything, and with one that delays.
#[test]
fn couriers_carry_bytes() {
    let run = |courier: Option<bool>, bytes: &'static [u8]| {
        let sim = Sim::new(5, SimConfig::default());
        if let Some(passes) = courier {
            sim.set_courier(Delays { kept: Vec::new(), count: 0, passes });
        }
        let (server, client) = (sim.node("server"), sim.node("client"));
        let seen = Rc::new(RefCell::new(Vec::new()));
        let (told, env) = (seen.clone(), server.clone());
        server.spawn(async move {
            let listener = env.listen("tcp:server:1").await.expect("listen");
            let (_tx, mut rx) = listener.accept().await.expect("accept").split();
            while let (Ok(()), buf) = rx.recv_exact(Buf::zeroed(1)).await {
                told.borrow_mut().push((buf[0], env.now().0));
            }
            told.borrow_mut().push((0, env.now().0));
        });
        let begun = Rc::new(Cell::new(0));
        let (env, told) = (client.clone(), begun.clone());
        client.spawn(async move {
            env.sleep(Duration::from_millis(1)).await;
            let (mut tx, _rx) = env.dial("tcp:server:1").await.expect("dial").split();
            told.set(env.now().0);
            for byte in bytes {
                let mut buf = Buf::zeroed(1);
                buf.fill(*byte);
                tx.send(buf, None).await.0.expect("send");
            }
            env.sleep(Duration::from_millis(20)).await;
        });
        sim.run_for(Duration::from_millis(15)).expect("runs");
        let seen = seen.borrow().clone();
        (sim.trace_hash(), seen, begun.get())
    };
    let (plain, passed) = (run(None, &[1, 2, 3]), run(Some(true), &[1, 2, 3]));
    assert!(plain == passed && plain.1.len() == 3, "{plain:?} {passed:?}");
    let delayed = run(Some(false), &[1, 2, 3, 9]);
    let order: Vec<u8> = delayed.1.iter().map(|(byte, _)| *byte).collect();
    assert_eq!(order, [1, 3, 9, 2, 0], "kept back, then broken");
    let at = |byte| delayed.1.iter().find(|(b, _)| *b == byte).expect("came").1 - delayed.2;
    assert!((1_000_000..2_000_000).contains(&at(2)) && (5_000_000..6_000_000).contains(&at(0)));
}
