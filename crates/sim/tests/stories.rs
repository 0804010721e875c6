//! Small tests of a whole cluster: each is an error that the simulation once found, with as few calls as possible.

use amphi_client::{Client, Ctx, Hints, OpenFlags};
use amphi_env::sim::CrashKind;
use amphi_env::{Buf, Env};
use amphi_sim::cluster::{Cluster, GRACE, MOUNT, Mount, SERVER, Shape};
use amphi_types::{Errno, Ino, Result, SetAttr};
use amphi_wire::RenameMode;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Runs a story on a new cluster of three targets with a network.
fn tell<F: Future<Output = ()>>(seed: u64, change: impl Fn(&mut Shape), story: impl FnOnce(Rc<Cluster>, Mount) -> F) {
    let mut shape = Shape::with(seed, Some(1), Some(1));
    (shape.embedded, shape.targets) = (false, 3);
    change(&mut shape);
    let cluster = Rc::new(Cluster::new(seed, shape));
    let run = cluster.sim.block_on(async {
        cluster.start_server(0).await.expect("the server starts");
        let mount = cluster.mount().await.expect("the mount comes up");
        story(cluster.clone(), mount).await;
    });
    run.expect("the story ends");
}

async fn bounce(cluster: &Cluster) {
    if cluster.sim.alive(SERVER) {
        cluster.crash_server(0, CrashKind::Process);
    }
    cluster.sim.clear_crash_at(SERVER);
    cluster.start_server(0).await.expect("the server starts again");
}

async fn file(client: &Client, dir: Ino, name: &[u8], text: &[u8]) -> Result<std::sync::Arc<amphi_client::OpenFile>> {
    let made = client.create(&Ctx::root(), dir, name, 0o644, OpenFlags::READ_WRITE).await?;
    client.write(&Ctx::root(), &made.file, 0, Buf::copy_of(text), Hints::default()).await?;
    Ok(made.file)
}

/// Two directories whose inodes lie on different targets.
async fn two_directories(client: &Client) -> Result<(Ino, Ino)> {
    let first = client.mkdir(&Ctx::root(), Ino::ROOT, b"d0", 0o755).await?.ino;
    for i in 1..100 {
        let other = client.mkdir(&Ctx::root(), Ino::ROOT, format!("d{i}").as_bytes(), 0o755).await?.ino;
        if other.target() != first.target() {
            return Ok((first, other));
        }
    }
    Err(Errno::NoSpace)
}

/// Goal: Promise S6: an open file that a rename replaces stays readable, also when the server is killed in the middle
/// of the rename and completes the rename at its start, before the mount has presented its open files. Method: a rename
/// between targets, killed at each of many moments in turn.
#[test]
fn replaced_open_files_outlive_a_crash() {
    let steady = |shape: &mut Shape| {
        shape.sim.disk_ns = 40_000..60_000;
        shape.sim.sync_ns = 100_000..200_000;
        shape.sim.net_ns = 5_000..6_000;
    };
    for moment in 0..80 {
        tell(moment, steady, |cluster, mount| async move {
            let client = &mount.client;
            let (a, b) = two_directories(client).await.expect("directories");
            let victim = file(client, b, b"x", b"still here").await.expect("file");
            client.fsync(&Ctx::root(), &victim, false).await.expect("fsync");
            drop(file(client, a, b"y", b"new").await.expect("file"));
            let renamed = Rc::new(RefCell::new(None));
            let told = renamed.clone();
            let pending = client.rename(&Ctx::root(), (a, b"y"), (b, b"x"), RenameMode::Replace);
            mount.env.spawn(async move {
                let result = pending.await;
                *told.borrow_mut() = Some(result);
            });
            cluster.env.sleep(Duration::from_micros(12 * moment)).await;
            bounce(&cluster).await;
            cluster.wait("the rename", || renamed.borrow().is_some()).await.expect("it ends");
            assert_eq!(*renamed.borrow(), Some(Ok(())));
            let bytes = client.read(&Ctx::root(), &victim, 0, 100, Hints { direct: true, ..Hints::default() }).await;
            assert_eq!(bytes.map(|b| b.to_vec()), Ok(b"still here".to_vec()), "killed at moment {moment}");
        });
    }
}

/// Goal: Promise S6: if the server restarts during the close of one handle, another handle stays usable. Method: an
/// unlinked file with two handles; one is closed, and the server is killed at once.
#[test]
fn a_close_under_way_ends_one_open() {
    for seed in 0..8 {
        tell(
            seed,
            |_| {},
            |cluster, mount| async move {
                let (client, ctx) = (&mount.client, Ctx::root());
                let first = file(client, Ino::ROOT, b"x", b"still here").await.expect("file");
                client.fsync(&ctx, &first, false).await.expect("fsync");
                let second = client.open(&ctx, first.ino(), OpenFlags::READ_WRITE).await.expect("open");
                client.unlink(&ctx, Ino::ROOT, b"x").await.expect("unlink");
                client.release(second);
                cluster.env.sleep(Duration::from_micros(seed * 7)).await;
                bounce(&cluster).await;
                cluster.env.sleep(Duration::from_secs(2)).await;
                let bytes = client.read(&ctx, &first, 0, 100, Hints { direct: true, ..Hints::default() }).await;
                assert_eq!(bytes.map(|b| b.to_vec()), Ok(b"still here".to_vec()));
            },
        );
    }
}

/// Goal: Promise S12: no request is executed twice, also when a mount is silent for so long that its session ends: then
/// calls under way fail with EIO. Method: many mkdirs while the network is cut for longer than the grace time; none may
/// find that its own directory exists already, and the directories of successful calls are there.
#[test]
fn calls_of_an_ended_session_are_not_repeated() {
    let mut failed = 0;
    for seed in 0..6 {
        let count = Rc::new(RefCell::new(0));
        let counted = count.clone();
        tell(
            seed,
            |shape| shape.sim.stall_timeout_ns = 1_000_000_000,
            |cluster, mount| async move {
                let results = Rc::new(RefCell::new(Vec::new()));
                for i in 0..40 {
                    let (told, client, env) = (results.clone(), mount.client.clone(), mount.env.clone());
                    mount.env.spawn(async move {
                        env.sleep(Duration::from_micros(30 * i)).await;
                        let made = client.mkdir(&Ctx::root(), Ino::ROOT, format!("n{i}").as_bytes(), 0o755).await;
                        told.borrow_mut().push((i, made.map(drop)));
                    });
                }
                cluster.env.sleep(Duration::from_micros(600)).await;
                cluster.sim.cut(SERVER, MOUNT);
                cluster.env.sleep(GRACE + Duration::from_secs(5)).await;
                cluster.sim.heal(SERVER, MOUNT);
                cluster.wait("all calls", || results.borrow().len() == 40).await.expect("they end");
                let all = results.borrow().clone();
                for (i, result) in all {
                    match result {
                        Ok(()) => {
                            let found = mount.client.lookup(&Ctx::root(), Ino::ROOT, format!("n{i}").as_bytes()).await;
                            assert!(found.is_ok(), "n{i}: {found:?}");
                        }
                        Err(Errno::Io) => *counted.borrow_mut() += 1,
                        Err(e) => panic!("mkdir n{i}: {e}"),
                    }
                }
            },
        );
        failed += *count.borrow();
    }
    assert!(failed > 0, "no call was under way when the network was cut: the story proves nothing");
}

/// Goal: Promise S22: a mount whose server lost power does not get the answer that all data is stable. This also holds
/// if the connection by which the mount learned of the loss broke before it could say goodbye, so that the server knows
/// the session that was begun meanwhile. Method: a sync waits until the server is back; connections break at one of
/// many later moments.
#[test]
fn a_lost_session_stays_lost() {
    let slow = |shape: &mut Shape| shape.sim.net_ns = 1_000_000..1_100_000;
    for moment in 0..60 {
        tell(moment, slow, |cluster, mount| async move {
            drop(file(&mount.client, Ino::ROOT, b"x", b"perhaps lost").await.expect("file"));
            cluster.crash_server(0, CrashKind::Power);
            // The mount notices the break, so that the sync below has not been sent yet.
            cluster.sim.break_connections(SERVER, MOUNT);
            cluster.env.sleep(Duration::from_millis(10)).await;
            let synced = Rc::new(RefCell::new(None));
            let (told, pending) = (synced.clone(), mount.client.sync_all(&Ctx::root()));
            mount.env.spawn(async move {
                let result = pending.await;
                *told.borrow_mut() = Some(result);
            });
            cluster.start_server(0).await.expect("the server starts again");
            for _ in 0..3 {
                cluster.env.sleep(Duration::from_millis(1 + moment)).await;
                cluster.sim.break_connections(SERVER, MOUNT);
            }
            cluster.wait("the sync", || synced.borrow().is_some()).await.expect("it ends");
            let synced = *synced.borrow();
            assert_eq!(synced, Some(Err(Errno::Io)), "broken at moment {moment}");
        });
    }
}

/// Goal: Promise S1: a time that a direct write has set is not hidden by that of an earlier buffered one. Method: both,
/// one after the other, then stat.
#[test]
fn times_of_direct_writes_count() {
    tell(
        1,
        |_| {},
        |cluster, mount| async move {
            let (client, ctx) = (&mount.client, Ctx::root());
            let made = client.create(&ctx, Ino::ROOT, b"x", 0o644, OpenFlags::READ_WRITE).await.expect("create");
            let ino = made.attr.ino;
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            client.setattr(&ctx, ino, set, None).await.expect("chmod");
            let write = |at: u64, direct| {
                let hints = Hints { direct, ..Hints::default() };
                client.write(&ctx, &made.file, at, Buf::zeroed(4096), hints)
            };
            write(0, false).await.expect("buffered write");
            cluster.env.sleep(Duration::from_millis(2)).await;
            let before = cluster.env.wall();
            write(1 << 20, true).await.expect("direct write");
            let mtime = client.getattr(&ctx, ino).await.expect("stat").mtime;
            assert!(mtime >= before, "{mtime:?} is before {before:?}");
        },
    );
}

/// Goal: payloads in passed memory keep their bytes, whatever happens to the server while they are read and written:
/// the server is killed, or the mount is cut off for so long that it gives the connection up. Method: four callers
/// write and read back a file each, in direct pieces of 300 KiB, and reuse their memory at once; there are kills and
/// broken connections at many moments; the mount's counters show that payloads were passed in memory.
#[test]
fn passed_memory_outlives_servers_and_connections() {
    const LEN: usize = 300 << 10;
    let passing = |shape: &mut Shape| {
        shape.sim.passes_memory = true;
        shape.tunables.push(("hybrid.mode".into(), "direct".into()));
    };
    let bytes = |seed: u64| -> Vec<u8> { (0..LEN as u64).map(|i| (i * 31 + i / 251 + seed * 97) as u8).collect() };
    for moment in 0..24 {
        tell(moment, passing, |cluster, mount| async move {
            let (client, ctx) = (&mount.client, Ctx::root());
            let direct = Hints { direct: true, ..Hints::default() };
            let ended = Rc::new(RefCell::new(0));
            for caller in 0..4u64 {
                let made = file(client, Ino::ROOT, format!("f{caller}").as_bytes(), b"").await.expect("file").clone();
                let (client, told) = (client.clone(), ended.clone());
                mount.env.spawn(async move {
                    for round in 0..6u64 {
                        let seed = caller * 100 + round;
                        let at = round / 2 * LEN as u64 + caller * 512;
                        let data = Buf::copy_of(&bytes(seed));
                        client.write(&Ctx::root(), &made, at, data, direct).await.expect("write");
                        drop(Buf::copy_of(&bytes(seed + 1)));
                        let back = client.read(&Ctx::root(), &made, at, LEN, direct).await.expect("read").to_vec();
                        assert!(back == bytes(seed), "caller {caller} round {round}");
                    }
                    *told.borrow_mut() += 1;
                });
            }
            cluster.env.sleep(Duration::from_micros(150 * moment)).await;
            if moment % 3 == 0 {
                cluster.sim.cut(SERVER, MOUNT);
                cluster.env.sleep(Duration::from_secs(25)).await;
                cluster.sim.heal(SERVER, MOUNT);
            } else {
                bounce(&cluster).await;
            }
            cluster.wait("all callers", || *ended.borrow() == 4).await.expect("they end");
            let text = client.getxattr(&ctx, Ino::ROOT, b"user.amphi.stats").await.expect("stats");
            assert!(String::from_utf8_lossy(&text).contains("payload_passed"), "nothing was passed");
        });
    }
}
