//! Tests of what only production provides: threads, panics, the end of `run`, sockets on the file system.

use crate::{Buf, Conn, Disk, DiskMode, Ends, Env, Listener, PeerMemory, RealEnv, Rx, Tx};
use compio::driver::SharedFd;
use futures_channel::{mpsc, oneshot};
use futures_util::StreamExt;
use std::cell::Cell;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

/// Goal: no wake-up from another thread is lost, parked or spinning. Method: two environments on two threads
/// answer each other over channels, many rounds, for three budgets.
#[test]
fn wakes_across_threads() {
    for spin in [Duration::ZERO, Duration::from_micros(20), Duration::MAX] {
        let (to, mut from_main) = mpsc::unbounded::<u32>();
        let (back, mut from_thread) = mpsc::unbounded::<u32>();
        let thread = std::thread::Builder::new().spawn(move || {
            RealEnv::run(spin, |_env| async move {
                while let Some(n) = from_main.next().await {
                    if back.unbounded_send(n + 1).is_err() {
                        return;
                    }
                }
            })
        });
        RealEnv::run(spin, |env| async move {
            for n in 0..2000 {
                to.unbounded_send(n).expect("the thread runs");
                assert_eq!(crate::timeout(&env, Duration::from_secs(20), from_thread.next()).await, Some(Some(n + 1)));
            }
        });
        thread.expect("thread").join().expect("no panic");
    }
}

/// Goal: a connection works on the thread that takes it over, with the bytes that were received ahead. Method: one
/// thread accepts and reads a part. Another one reads the rest and answers, and its ring continues after the first
/// thread has closed its own.
#[test]
fn connections_change_threads() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let addr = format!("unix:{}", dir.path().join("sock").display());
    let (give, mut take) = mpsc::unbounded::<<crate::real::RealConn as Conn>::Moved>();
    let (ended, mut first_ended) = mpsc::unbounded::<()>();
    let listens = addr.clone();
    let (ready, mut listening) = mpsc::unbounded::<()>();
    let first = std::thread::Builder::new().spawn(move || {
        RealEnv::run(Duration::ZERO, |env| async move {
            let listener = env.listen(&listens).await.expect("listen");
            ready.unbounded_send(()).expect("awaited");
            let (tx, mut rx) = listener.accept().await.expect("accept").split();
            let (done, got) = rx.recv_exact(Buf::zeroed(3)).await;
            done.expect("received");
            assert_eq!(got[..], *b"abc");
            give.unbounded_send(crate::real::RealConn::detach(tx, rx).expect("idle")).expect("awaited");
        });
        drop(ended);
    });
    let second = std::thread::Builder::new().spawn(move || {
        RealEnv::run(Duration::ZERO, |env| async move {
            let moved = take.next().await.expect("a connection");
            assert_eq!(first_ended.next().await, None);
            let (mut tx, mut rx) = env.adopt(moved).split();
            let (done, got) = rx.recv_exact(Buf::zeroed(100_003)).await;
            done.expect("received");
            assert_eq!((&got[..3], got[3..].iter().all(|b| *b == 7)), (&b"def"[..], true));
            tx.send(got, None).await.0.expect("sent");
        });
    });
    RealEnv::run(Duration::ZERO, |env| async move {
        listening.next().await.expect("listening");
        let (mut tx, mut rx) = env.dial(&addr).await.expect("dial").split();
        let mut head = Buf::zeroed(6);
        head.copy_from_slice(b"abcdef");
        tx.send(head, None).await.0.expect("sent");
        let mut rest = Buf::zeroed(100_000);
        rest.fill(7);
        tx.send(rest, None).await.0.expect("sent");
        let echo = crate::timeout(&env, Duration::from_secs(20), rx.recv_exact(Buf::zeroed(100_003))).await;
        let (done, got) = echo.expect("in time");
        done.expect("received");
        assert_eq!(got[..3], *b"def");
    });
    first.expect("thread").join().expect("no panic");
    second.expect("thread").join().expect("no panic");
}

/// Goal: a send whose peer reads nothing returns with its payload when its connection is broken from this side. Method:
/// more than a Unix socket holds, to a peer that reads nothing.
#[test]
fn a_stuck_send_gives_its_payload_back() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let addr = format!("unix:{}", dir.path().join("sock").display());
    RealEnv::run(Duration::ZERO, |env| async move {
        let listener = env.listen(&addr).await.expect("listen");
        let near = env.dial(&addr).await.expect("dial");
        let _far = listener.accept().await.expect("accept");
        let (mut tx, _rx) = near.split();
        let breaks = tx.breaker();
        let later = env.clone();
        env.spawn(async move {
            later.sleep(Duration::from_millis(20)).await;
            breaks();
        });
        let sending = tx.send(Buf::zeroed(64), Some(Buf::zeroed(32 << 20)));
        let sent = crate::timeout(&env, Duration::from_secs(20), sending).await;
        let (result, _, payload) = sent.expect("it ends");
        assert!(result.is_err());
        assert_eq!(payload.map(|p| p.len()), Some(32 << 20));
    });
}

/// Goal: a task that panics ends `run` with that panic, and the other tasks are dropped. Method: catch it.
#[test]
fn panics_leave_run() {
    struct Dropped(Rc<Cell<u32>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let drops = Rc::new(Cell::new(0));
    let watched = || Dropped(drops.clone());
    let result = catch_unwind(AssertUnwindSafe(|| {
        RealEnv::run(Duration::ZERO, |env| {
            let waiting = watched();
            env.spawn(async move {
                let _waiting = waiting;
                std::future::pending::<()>().await;
            });
            let (inner, root) = (env.clone(), watched());
            env.spawn(async move {
                inner.sleep(Duration::from_millis(1)).await;
                panic!("planted");
            });
            async move {
                let _root = root;
                std::future::pending::<()>().await;
            }
        })
    }));
    assert_eq!(*result.expect_err("panics").downcast_ref::<&str>().expect("text"), "planted");
    assert_eq!(drops.get(), 2);
}

/// Goal: the end of `run` drops tasks that wait for the network, a timer, a disk or each other, and those that their
/// destructors spawn. Locks are free afterwards. Method: many tasks are left running, then the disk is opened again.
#[test]
fn the_end_drops_tasks() {
    struct SpawnAtEnd(RealEnv, Rc<Cell<u32>>);
    impl Drop for SpawnAtEnd {
        fn drop(&mut self) {
            self.1.set(self.1.get() + 1);
            self.0.spawn(async { panic!("a task ran after the end") });
        }
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = format!("{}/disk", dir.path().display());
    let ends = Rc::new(Cell::new(0));
    for round in 0..20 {
        let (path, seen) = (path.clone(), ends.clone());
        let mode = if round == 0 { DiskMode::Create(1 << 20) } else { DiskMode::Open };
        RealEnv::run(Duration::ZERO, |env| async move {
            let disk = env.disk(&path, mode).await.expect("open");
            let listener = env.listen("tcp:127.0.0.1:0").await.expect("listen");
            let (_tx, mut rx) = env.dial(&listener.local_addr()).await.expect("dial").split();
            let (never, wait) = oneshot::channel::<()>();
            let guard = SpawnAtEnd(env.clone(), seen);
            env.spawn(async move {
                let _guard = guard;
                let _ = futures_util::join!(rx.recv_exact(Buf::zeroed(100_000)), wait);
            });
            let inner = env.clone();
            env.spawn(async move {
                let _never = never;
                inner.sleep(Duration::from_secs(1000)).await;
            });
            for i in 0..16 {
                let disk = disk.clone();
                env.spawn(async move {
                    disk.write(i * 65536, Buf::zeroed(65536)).await.0.expect("write");
                    let _ = disk.sync().await;
                    std::future::pending::<()>().await;
                });
            }
            env.sleep(Duration::from_micros(50 * round)).await;
        });
        assert_eq!(ends.get(), round as u32 + 1);
    }
}

/// Goal: at the end of `run` all buffers are returned by the kernel, also for more operations than the ring's queue has
/// entries. Method: many operations on one socket that end only by cancellation. `run` gives up on those that do not
/// return within `DRAIN`.
#[test]
fn the_end_cancels_more_than_the_ring_holds() {
    const OPERATIONS: usize = 5000;
    let dir = tempfile::tempdir().expect("temporary folder");
    let listener = UnixListener::bind(dir.path().join("sock")).expect("bind");
    let begun = super::monotonic();
    RealEnv::run(Duration::ZERO, |env| async move {
        let fd = SharedFd::new(OwnedFd::from(listener));
        let leases = env.shared.leases.clone();
        for _ in 0..OPERATIONS {
            let (fd, leases) = (fd.clone(), leases.clone());
            env.spawn(async move { drop(super::net::accept_one(fd, false, leases).await) });
        }
        while leases.out() < OPERATIONS {
            env.sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(super::monotonic().since(begun) < super::executor::DRAIN, "not all were cancelled");
}

/// Goal: a socket that nobody serves is replaced, anything else is not touched, and ours is removed at the end. Method:
/// a socket of each kind is left behind.
#[test]
fn stale_sockets() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("s");
    let addr = format!("unix:{}", path.display());
    drop(UnixListener::bind(&path).expect("bind"));
    assert!(path.exists());
    RealEnv::run(Duration::ZERO, |env| async move {
        let refused = env.dial(&addr).await.map(|_| ()).expect_err("stale");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let ours = env.listen(&addr).await.expect("replaces the stale socket");
        drop(ours);
        assert!(!path.exists());
        std::fs::write(&path, "precious").expect("write");
        assert_eq!(env.listen(&addr).await.map(|_| ()).expect_err("a file").kind(), ErrorKind::AddrInUse);
        assert_eq!(std::fs::read(&path).expect("read"), b"precious");
    });
}

/// Goal: tasks that wake each other endlessly do not starve timers. Method: such a pair beside a sleep.
#[test]
fn busy_tasks_leave_room() {
    RealEnv::run(Duration::ZERO, |env| async move {
        for _ in 0..2 {
            env.spawn(async {
                loop {
                    let mut yielded = false;
                    std::future::poll_fn(|cx| {
                        if std::mem::replace(&mut yielded, true) {
                            return std::task::Poll::Ready(());
                        }
                        cx.waker().wake_by_ref();
                        std::task::Poll::Pending
                    })
                    .await;
                }
            });
        }
        env.sleep(Duration::from_millis(2)).await;
    });
}

/// Goal: the kernel's boot id is understood, processes of one boot agree on it, and nonsense is refused. Method: the
/// file of this machine if it has one, and made-up texts.
#[test]
fn boot_numbers() {
    assert_eq!(super::boot_number("00000000-0000-0001-0000-000000000003\n"), Some(2));
    assert_eq!(super::boot_number("00000000-0000-0000-0000-000000000000"), Some(1));
    for bad in ["", "123", "zz000000-0000-0001-0000-000000000003"] {
        assert_eq!(super::boot_number(bad), None);
    }
    let of = || RealEnv::run(Duration::ZERO, |env| async move { env.boot_id() });
    assert_eq!(of(), of());
    if let Ok(text) = std::fs::read_to_string(super::BOOT_ID_PATH) {
        assert_eq!(super::boot_number(&text), Some(of()));
    }
}

/// Goal: memory that is passed over a Unix socket is read and written by both ends, also on another thread. Without
/// memory the bytes arrive nevertheless. Each end notices at once that the other one has given up or closed. Method:
/// two ends in this process, over a Unix socket and over TCP.
#[test]
fn memory_is_passed_over_unix_sockets() {
    if !crate::buf::pass_memory() {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary folder");
    let unix = format!("unix:{}", dir.path().join("sock").display());
    for (addr, passes) in [(unix.as_str(), true), ("tcp:127.0.0.1:0", false)] {
        RealEnv::run(Duration::ZERO, |env| async move {
            let listener = env.listen(addr).await.expect("listen");
            let (mut tx, near) = env.dial(&listener.local_addr()).await.expect("dial").split();
            let (far_tx, mut far) = listener.accept().await.expect("accept").split();
            let (sent, _) = tx.send_with_memory(Buf::copy_of(b"hello")).await;
            assert_eq!(sent.expect("sent"), passes);
            let (got, bytes) = far.recv_exact(Buf::zeroed(5)).await;
            got.expect("received");
            assert_eq!(bytes[..], *b"hello");
            assert_eq!(far.memory().is_some(), passes);
            tx.send(Buf::copy_of(&[9; 100_000]), None).await.0.expect("sent");
            let (got, _) = far.recv_exact(Buf::zeroed(100_000)).await;
            got.expect("received");
            if passes {
                // The connection moves to another thread and back.
                let moved = crate::real::RealConn::detach(far_tx, far).expect("idle");
                let (far_tx, mut far) = env.adopt(moved).split();
                let memory = far.memory().expect("it goes with the connection");
                let mut mine = Buf::scratch_padded(7, 100_000);
                mine.fill(3);
                let at = mine.place().expect("it lies where it was passed from");
                let mut read = [0; 100_000];
                memory.read(at, &mut read);
                assert!(read.iter().all(|byte| *byte == 3));
                memory.write(at + 5, b"server");
                assert_eq!(mine[4..12], *b"\x03server\x03");
                let (here, there) = (tx.ends(), far_tx.ends());
                assert!(!there.is_abandoned() && !here.is_closed() && !here.is_abandoned());
                here.abandon();
                assert!(there.is_abandoned() && !here.is_closed() && !there.is_closed());
                assert!(far.recv_exact(Buf::zeroed(1)).await.0.is_err(), "it ends there");
                drop((there, far_tx, far));
                assert!(here.is_closed());
            } else {
                drop((far_tx, far));
            }
            drop((tx, near));
        });
    }
}
