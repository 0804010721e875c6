//! Several mounts of several real servers, in the simulated environment.

use super::sim_clock::{KEY, SimClock, with_clock};
use crate::api::{ClientConfig, Ctx, Hints, OpenFlags};
use crate::telemetry::stats::Count;
use crate::{Client, OpenFile, Way};
use amphi_env::sim::{CrashKind, SimConfig};
use amphi_env::{Buf, Env, Sim, SimEnv};
use amphi_server::{Server, ServerConfig};
use amphi_transport::{ClusterKey, LinkConfig, Timeouts};
use amphi_types::{Errno, Ino, SessionId, SetAttr, layout};
use amphi_wire::Role;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Servers `s0`, `s1`, ... with one target each, and their mounts on nodes `m1`, `m2`, ...
pub(super) struct Cluster {
    pub(super) sim: Sim,
    pub(super) env: SimEnv,
    mounts: Cell<u64>,
}

pub(super) fn in_cluster(seed: u64, servers: usize, story: impl AsyncFnOnce(&Cluster)) {
    in_cluster_of(seed, SimConfig::default(), servers, story);
}

/// Works as `in_cluster`, with another network or disks.
pub(super) fn in_cluster_of(seed: u64, config: SimConfig, servers: usize, story: impl AsyncFnOnce(&Cluster)) {
    let sim = Sim::new(seed, config);
    let env = sim.node("controller");
    let cluster = Cluster { sim, env, mounts: Cell::new(0) };
    let all = async {
        for at in 0..servers {
            cluster.serve(at).await;
        }
        story(&cluster).await;
    };
    with_clock(&cluster.env, || cluster.sim.block_on(all)).expect("the simulation ends");
}

impl Cluster {
    async fn serve(&self, at: usize) {
        let env = self.sim.node(&format!("s{at}"));
        let mut config = ServerConfig::new("/data");
        config.targets = Some(1);
        config.zone_bytes = Some(64 << 20);
        config.log_bytes = 1 << 20;
        config.name = format!("s{at}");
        config.listen = vec![format!("tcp:s{at}:7000")];
        config.key = Some(KEY.to_vec());
        if at > 0 {
            config.join = vec!["tcp:s0:7000".into()];
        }
        let ready = Rc::new(Cell::new(false));
        let told = ready.clone();
        env.clone().spawn(async move {
            let server = Server::start(env.clone(), config).await.expect("the server starts");
            told.set(true);
            env.sleep(Duration::from_secs(1 << 30)).await;
            drop(server);
        });
        self.until("the server", || ready.get()).await;
    }

    async fn until(&self, what: &str, done: impl Fn() -> bool) {
        for _ in 0..400_000 {
            if done() {
                return;
            }
            self.env.sleep(Duration::from_micros(500)).await;
        }
        panic!("{what} takes too long");
    }

    pub(super) async fn sleep(&self, seconds: u64) {
        self.env.sleep(Duration::from_secs(seconds)).await;
    }

    pub(super) async fn mount(&self) -> Client {
        self.mounts.set(self.mounts.get() + 1);
        let env = self.sim.node(&format!("m{}", self.mounts.get()));
        let mut config = ClientConfig::new(Arc::new(SimClock));
        config.cache_bytes = Some(8 << 20);
        let (client, half) = Client::new(config);
        let link = LinkConfig {
            addrs: vec!["tcp:s0:7000".into()],
            session: SessionId(self.mounts.get() * 1000),
            role: Role::Mount,
            name: format!("host:{}", self.mounts.get()),
            key: ClusterKey::new(KEY).ok(),
            identity: None,
            secure: amphi_transport::Secure::Off,
            timeouts: Timeouts { first_connect: Duration::from_secs(60), ..Timeouts::default() },
        };
        env.clone().spawn(async move {
            let _ = half.run(env, link, Way::Addresses).await;
        });
        client.getattr(&Ctx::root(), Ino::ROOT).await.expect("the mount is let in");
        client
    }

    pub(super) async fn two(&self) -> [Client; 2] {
        let first = self.mount().await;
        let second = self.mount().await;
        assert!(!first.is_alone() && !second.is_alone(), "both know of each other");
        [first, second]
    }
}

pub(super) fn root() -> Ctx {
    Ctx::root()
}

/// A directory whose inode and files are on `target`.
pub(super) async fn dir_on(client: &Client, target: u16) -> Ino {
    let pool = client.mount.cluster.pool();
    let on = |n: &String| layout::directory_target(Ino::ROOT, n.as_bytes(), pool).0 == target;
    let name = (0..).map(|i| format!("d{i}")).find(on).expect("a name");
    match client.lookup(&root(), Ino::ROOT, name.as_bytes()).await {
        Ok(attr) => attr.ino,
        Err(_) => client.mkdir(&root(), Ino::ROOT, name.as_bytes(), 0o755).await.expect("mkdir").ino,
    }
}

pub(super) async fn create(client: &Client, dir: Ino, name: &str) -> Arc<OpenFile> {
    client.create(&root(), dir, name.as_bytes(), 0o644, OpenFlags::READ_WRITE).await.expect("create").file
}

pub(super) async fn open(client: &Client, dir: Ino, name: &str) -> Arc<OpenFile> {
    let ino = client.lookup(&root(), dir, name.as_bytes()).await.expect("the file is there").ino;
    client.open(&root(), ino, OpenFlags::READ_WRITE).await.expect("open")
}

pub(super) async fn write(client: &Client, file: &Arc<OpenFile>, at: u64, bytes: &[u8]) {
    if client.try_write(&root(), file, at, bytes, Hints::default()).is_none() {
        let written = client.write(&root(), file, at, Buf::copy_of(bytes), Hints::default()).await;
        assert_eq!(written, Ok(bytes.len()));
    }
}

/// Reads from the cache; `None` if a request to a server is needed.
fn cached(client: &Client, file: &Arc<OpenFile>, len: usize) -> Option<Vec<u8>> {
    let mut buf = vec![0; len];
    client.try_read(&root(), file, 0, &mut buf, Hints::default()).map(|n| buf[..n].to_vec())
}

pub(super) async fn read(client: &Client, file: &Arc<OpenFile>, len: usize) -> Vec<u8> {
    match cached(client, file, len) {
        Some(bytes) => bytes,
        None => client.read(&root(), file, 0, len, Hints::default()).await.expect("read").to_vec(),
    }
}

pub(super) fn calls(client: &Client) -> u64 {
    client.mount.stats.of(Count::Calls).1
}

/// Goal: Promise S1 with several mounts and several servers: a change on one mount is seen at once on the other,
/// whichever server executes it. Method: one mount writes files on each server and renames them across servers. The
/// other mount caches the files and reads them.
#[test]
fn two_mounts_of_three_servers_agree() {
    for seed in 0..4 {
        in_cluster(seed, 3, async |c| {
            let [a, b] = c.two().await;
            let mut files = Vec::new();
            for target in 0..3 {
                let dir = dir_on(&a, target).await;
                let fa = create(&a, dir, "f").await;
                write(&a, &fa, 0, b"first").await;
                let fb = open(&b, dir, "f").await;
                assert_eq!(read(&b, &fb, 10).await, b"first");
                files.push((dir, fa, fb));
            }
            for (i, (_, fa, fb)) in files.iter().enumerate() {
                let text = format!("second {i}");
                write(&a, fa, 0, text.as_bytes()).await;
                assert_eq!(read(&b, fb, 20).await, text.as_bytes());
                write(&b, fb, 100_000, b"end").await;
                assert_eq!(a.getattr(&root(), fa.ino()).await.expect("stat").size, 100_003);
            }
            for i in 0..3 {
                let (from, to) = (files[i].0, files[(i + 1) % 3].0);
                assert!(b.lookup(&root(), to, b"moved").await.is_err());
                let (old, new) = ((from, &b"f"[..]), (to, &b"moved"[..]));
                a.rename(&root(), old, new, amphi_wire::RenameMode::NoReplace).await.expect("rename");
                assert_eq!(b.lookup(&root(), from, b"f").await, Err(Errno::NoEnt));
                assert_eq!(b.lookup(&root(), to, b"moved").await.expect("moved").ino, files[i].1.ino());
            }
        });
    }
}

/// Goal: in shared mode each mount, a new one too, has a connection to each server. A server that is restarted while it
/// has two mounts continues as soon as both have presented their state, and does not wait for the grace time. Method:
/// one of the mounts has never used the server that is killed.
#[test]
fn a_restarted_server_waits_for_nobody_who_is_there() {
    in_cluster(11, 3, async |c| {
        let [a, _b] = c.two().await;
        let dir = dir_on(&a, 1).await;
        let f = create(&a, dir, "f").await;
        write(&a, &f, 0, b"under a lock").await;
        c.sleep(1).await;
        c.sim.crash("s1", CrashKind::Process);
        c.serve(1).await;
        let begun = c.env.now();
        let g = create(&a, dir, "g").await;
        write(&a, &g, 0, b"under a new one").await;
        a.fsync(&root(), &g, false).await.expect("fsync");
        a.fsync(&root(), &f, false).await.expect("fsync");
        assert!(c.env.now().since(begun) < Duration::from_secs(5), "{:?}", c.env.now().since(begun));
    });
}

/// Goal: if one server is silent, the mount stops using only what that server granted. Method: names and bytes of two
/// servers are cached, and one server is cut off for longer than its lease lasts.
#[test]
fn a_silent_server_stops_what_it_granted() {
    in_cluster(12, 3, async |c| {
        let [a, b] = c.two().await;
        let (d, e) = (dir_on(&a, 1).await, dir_on(&a, 2).await);
        let (fd, fe) = (create(&b, d, "f").await, create(&b, e, "f").await);
        for (dir, file) in [(d, &fd), (e, &fe)] {
            write(&b, file, 0, b"bytes").await;
            b.lookup(&root(), dir, b"f").await.expect("cached");
            assert_eq!(read(&b, file, 5).await, b"bytes");
        }
        c.sim.cut("m2", "s1");
        c.sleep(15).await;
        assert!(cached(&b, &fd, 5).is_some() && cached(&b, &fe, 5).is_some(), "not yet");
        c.sleep(7).await;
        assert_eq!(cached(&b, &fd, 5), None, "it was silent for too long");
        assert_eq!(cached(&b, &fe, 5).as_deref(), Some(&b"bytes"[..]), "another server is there");
        b.lookup(&root(), e, b"f").await.expect("names too");
        let before = calls(&b);
        b.lookup(&root(), e, b"f").await.expect("names too");
        assert_eq!(calls(&b), before);
        c.sim.heal("m2", "s1");
        assert_eq!(read(&b, &fd, 5).await, b"bytes");
        assert!(cached(&b, &fd, 5).is_some(), "in touch again");
        drop(a);
    });
}

/// Goal: a mount that one server evicts fails its calls and blocks no other mount on any server. Method: its link to
/// one server is cut while it has dirty bytes under locks of two servers, and the other mount wants both files.
#[test]
fn a_mount_evicted_by_one_server_is_over() {
    in_cluster(13, 3, async |c| {
        let [a, b] = c.two().await;
        let (d, e) = (dir_on(&a, 1).await, dir_on(&a, 2).await);
        let (fd, fe) = (create(&b, d, "f").await, create(&b, e, "f").await);
        write(&b, &fd, 0, b"held by b").await;
        write(&b, &fe, 0, b"held by b").await;
        c.sim.cut("m2", "s1");
        let begun = c.env.now();
        let ga = open(&a, d, "f").await;
        write(&a, &ga, 0, b"by a").await;
        let took = c.env.now().since(begun);
        assert!(took < Duration::from_secs(70), "{took:?}");
        c.until("the end of the session", || b.mount.coherence.sharing.is_lost()).await;
        assert_eq!(b.lookup(&root(), e, b"f").await, Err(Errno::Io));
        let begun = c.env.now();
        let he = open(&a, e, "f").await;
        write(&a, &he, 0, b"by a").await;
        assert!(c.env.now().since(begun) < Duration::from_secs(5), "its lock there went with it");
        assert_eq!(b.mount.cache.dirty_bytes(), 0);
    });
}

/// Goal: a lock is returned even if its file was made on a smaller cluster and is not in the mount's tables any more.
/// Method: the lock of an empty file is kept, the cluster grows, and the other mount writes the file.
#[test]
fn locks_of_a_smaller_cluster_go_back() {
    in_cluster(14, 2, async |c| {
        let [a, b] = c.two().await;
        let dir = dir_on(&a, 1).await;
        let f = create(&a, dir, "f").await;
        // The second stripe is on target 0; it would be on target 2 of a cluster of three.
        write(&a, &f, 4 << 20, b"far").await;
        a.fsync(&root(), &f, false).await.expect("fsync");
        let set = amphi_types::SetAttr { size: Some(0), ..Default::default() };
        a.setattr(&root(), f.ino(), set, None).await.expect("truncate");
        drop(f);
        c.serve(2).await;
        c.until("the news of the new server", || a.mount.cluster.pool() == 3 && b.mount.cluster.pool() == 3).await;
        let begun = c.env.now();
        let g = open(&b, dir, "f").await;
        write(&b, &g, 4 << 20, b"new").await;
        b.fsync(&root(), &g, false).await.expect("fsync");
        assert!(c.env.now().since(begun) < Duration::from_secs(5), "nobody was waited for");
        assert!(a.getattr(&root(), Ino::ROOT).await.is_ok(), "and nobody was evicted");
    });
}

/// Goal: a mount in sole mode that has lost the master and still reaches another server does not act as the only one
/// there, because others may have been admitted. When the master is back and no other mount was admitted, the mount is
/// in sole mode again. Method: its connection to the master is cut, once while another mount arrives and once without.
#[test]
fn a_lone_mount_without_the_master_is_cautious() {
    in_cluster(15, 2, async |c| {
        let a = c.mount().await;
        let dir = dir_on(&a, 1).await;
        let f = create(&a, dir, "f").await;
        write(&a, &f, 0, b"alone").await;
        let cut = || {
            c.sim.cut("m1", "s0");
            c.sim.break_connections("m1", "s0");
        };
        cut();
        c.sleep(8).await;
        assert!(a.is_alone());
        c.sleep(5).await;
        assert!(!a.is_alone(), "nobody knows");
        write(&a, &f, 0, b"goes on").await;
        c.sim.heal("m1", "s0");
        c.until("the master", || a.is_alone()).await;
        assert_eq!(read(&a, &f, 10).await, b"goes on");
        cut();
        let begun = c.env.now();
        let b = c.mount().await;
        assert!(c.env.now().since(begun) > Duration::from_secs(10) && !a.is_alone());
        let g = open(&b, dir, "f").await;
        for round in 0..5u8 {
            write(&a, &f, u64::from(round) * 3, &[round; 5]).await;
            let end = u64::from(round) * 3 + 5;
            assert_eq!(b.getattr(&root(), g.ino()).await.expect("stat").size, end.max(7));
            assert_eq!(read(&b, &g, 100).await[end as usize - 5..end as usize], [round; 5]);
            write(&b, &g, 0, &[100 + round]).await;
            assert_eq!(read(&a, &f, 1).await, [100 + round]);
        }
        c.sim.heal("m1", "s0");
        c.sleep(3).await;
        assert!(!a.is_alone() && !b.is_alone());
        assert_eq!(read(&a, &f, 1).await, [104]);
    });
}

/// Goal: a request for the size of a file during another mount's truncate returns the old end or the new one, and not
/// the end of an earlier write of that mount. Method: one mount has written up to the old end. Another caller writes
/// over the middle of the file and truncates before that. A third one, which holds no lock, reads the size all the
/// time.
#[test]
fn a_stat_during_a_truncate() {
    for seed in 0..4 {
        in_cluster(9100 + seed, 3, async |cluster| {
            let [a, b] = cluster.two().await;
            let c = cluster.mount().await;
            let put = async |client: &Client, file: &Arc<OpenFile>, at: u64, len: usize| {
                let written = client.write(&root(), file, at, Buf::zeroed(len), Hints::default()).await;
                assert_eq!(written, Ok(len));
                client.fsync(&root(), file, false).await.unwrap();
            };
            let file = create(&a, Ino::ROOT, "f").await;
            let other = b.open(&root(), file.ino(), OpenFlags::READ_WRITE).await.unwrap();
            for round in 0..20 {
                put(&b, &other, 18_000, 1000).await;
                put(&a, &file, 4000, 6000).await;
                let cut = SetAttr { size: Some(9000), ..SetAttr::default() };
                let mut cutting = std::pin::pin!(a.setattr(&root(), file.ino(), cut, None));
                let mut done = None;
                while done.is_none() {
                    let look = c.getattr(&root(), file.ino());
                    let (cut, seen) = match futures_util::future::select(cutting.as_mut(), look).await {
                        futures_util::future::Either::Left((cut, look)) => (Some(cut), look.await),
                        futures_util::future::Either::Right((seen, _)) => (None, seen),
                    };
                    let size = seen.unwrap().size;
                    assert!([19_000, 9000].contains(&size), "seed {seed}, round {round}: {size}");
                    done = cut;
                }
                assert_eq!(done.unwrap().map(|attr| attr.size), Ok(9000));
            }
        });
    }
}
