//! Several mounts of one real server, in the simulated environment.

use super::sim_clock::{KEY, SimClock, with_clock};
use crate::api::{ClientConfig, Ctx, Hints, KernelPages, OpenFlags};
use crate::policy::decision::Reason;
use crate::telemetry::stats::{self, Count};
use crate::{Client, OpenFile, Way};
use amphi_env::{Buf, Env, Sim, SimEnv};
use amphi_server::{Server, ServerConfig};
use amphi_transport::{ClusterKey, LinkConfig, Timeouts};
use amphi_types::{Attr, ByteRange, Cred, Errno, Ino, Result, SessionId, SetAttr};
use amphi_wire::{RenameMode, Role, XattrMode};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const ADDR: &str = "tcp:server:7000";

/// A server and its mounts.
pub(super) struct Cluster {
    pub(super) sim: Sim,
    pub(super) env: SimEnv,
    mounts: Cell<u64>,
}

pub(super) fn in_cluster(seed: u64, story: impl AsyncFnOnce(&Cluster)) {
    in_cluster_of(seed, 64 << 20, story);
}

/// As `in_cluster`, with zones of this many bytes.
pub(super) fn in_cluster_of(seed: u64, zone_bytes: u64, story: impl AsyncFnOnce(&Cluster)) {
    let sim = Sim::new(seed, Default::default());
    let env = sim.node("controller");
    let cluster = Cluster { sim, env, mounts: Cell::new(0) };
    let all = async {
        cluster.serve(zone_bytes).await;
        story(&cluster).await;
    };
    with_clock(&cluster.env, || cluster.sim.block_on(all)).expect("the simulation ends");
}

impl Cluster {
    async fn serve(&self, zone_bytes: u64) {
        let env = self.sim.node("server");
        let mut config = ServerConfig::new("/data");
        config.targets = Some(3);
        config.workers = 2;
        config.zone_bytes = Some(zone_bytes);
        config.roomy_bytes = 64 << 10;
        config.log_bytes = 1 << 20;
        config.listen = vec![ADDR.into()];
        config.key = Some(KEY.to_vec());
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

    pub(super) async fn until(&self, what: &str, done: impl Fn() -> bool) {
        for _ in 0..400_000 {
            if done() {
                return;
            }
            self.env.sleep(Duration::from_micros(500)).await;
        }
        panic!("{what} takes too long");
    }

    /// Starts a mount. Its first call waits until the mount is admitted.
    pub(super) fn start_mount(&self) -> Client {
        self.mounts.set(self.mounts.get() + 1);
        let env = self.sim.node(&format!("mount{}", self.mounts.get()));
        let mut config = ClientConfig::new(Arc::new(SimClock));
        config.cache_bytes = Some(8 << 20);
        config.tunables =
            vec![("hybrid.large_write_bytes".into(), "96K".into()), ("hybrid.large_read_bytes".into(), "96K".into())];
        let (client, half) = Client::new(config);
        let link = LinkConfig {
            addrs: vec![ADDR.into()],
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
        client
    }

    pub(super) async fn mount(&self) -> Client {
        let client = self.start_mount();
        client.getattr(&Ctx::root(), Ino::ROOT).await.expect("the mount is let in");
        client
    }

    /// The file system below the server's zones has this many bytes left.
    pub(super) fn set_room(&self, bytes: Option<u64>) {
        self.sim.set_room("server", bytes);
    }

    async fn unmount(&self, client: Client) {
        client.shutdown();
        self.until("an unmount", || client.is_stopped()).await;
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

pub(super) async fn lookup(client: &Client, name: &str) -> Result<Attr> {
    client.lookup(&root(), Ino::ROOT, name.as_bytes()).await
}

pub(super) async fn create(client: &Client, name: &str) -> Arc<OpenFile> {
    client.create(&root(), Ino::ROOT, name.as_bytes(), 0o644, OpenFlags::READ_WRITE).await.expect("create").file
}

pub(super) async fn open(client: &Client, name: &str, flags: OpenFlags) -> Arc<OpenFile> {
    let ino = lookup(client, name).await.expect("the file is there").ino;
    client.open(&root(), ino, flags).await.expect("open")
}

pub(super) async fn write(client: &Client, file: &Arc<OpenFile>, at: u64, bytes: &[u8]) {
    if client.try_write(&root(), file, at, bytes, Hints::default()).is_none() {
        let written = client.write(&root(), file, at, Buf::copy_of(bytes), Hints::default()).await;
        assert_eq!(written, Ok(bytes.len()));
    }
}

pub(super) async fn read(client: &Client, file: &Arc<OpenFile>, at: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    match client.try_read(&root(), file, at, &mut buf, Hints::default()) {
        Some(n) => {
            buf.truncate(n);
            buf
        }
        None => client.read(&root(), file, at, len, Hints::default()).await.expect("read").to_vec(),
    }
}

pub(super) fn calls(client: &Client) -> u64 {
    client.mount.stats.of(Count::Calls).1
}

/// Goal: a mount that was in sole mode for long, and so has not noted any message of its server, uses the tokens that
/// it is granted in shared mode, even if it reads and writes no file. Method: a minute in sole mode, then another
/// mount. Names and attributes are requested twice, with the messages counted. Then a change by the other mount is
/// seen.
#[test]
fn tokens_count_behind_a_long_time_alone() {
    in_cluster(7, async |c| {
        let a = c.mount().await;
        drop(create(&a, "f").await);
        c.env.sleep(Duration::from_secs(60)).await;
        let b = c.mount().await;
        c.until("sharing", || !a.is_alone() && a.mount.coherence.sharing.uses_tokens()).await;
        let ino = lookup(&a, "f").await.unwrap().ino;
        let before = calls(&a);
        for _ in 0..3 {
            assert_eq!(lookup(&a, "f").await.map(|x| x.ino), Ok(ino));
            assert_eq!(a.getattr(&root(), ino).await.map(|x| x.perm), Ok(0o644));
        }
        assert_eq!(calls(&a), before, "the cache serves it");
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        b.setattr(&root(), ino, set, None).await.unwrap();
        assert_eq!(a.getattr(&root(), ino).await.map(|x| x.perm), Ok(0o600));
    });
}

/// Goal: a name and attributes that were looked up once are shown again without a message, and a change by another
/// mount is seen at once (Promise S1). Method: look-up and getattr twice, with the messages counted; then rename,
/// chmod, unlink and create on the other mount.
#[test]
fn names_and_attributes_are_cached_and_revoked() {
    in_cluster(1, async |c| {
        let [a, b] = c.two().await;
        drop(create(&a, "f").await);
        let ino = lookup(&a, "f").await.unwrap().ino;
        // The close arrives, and nobody writes the file any more.
        c.env.sleep(Duration::from_secs(1)).await;
        assert_eq!(lookup(&b, "f").await.map(|x| x.ino), Ok(ino));
        let before = calls(&b);
        for _ in 0..3 {
            assert_eq!(lookup(&b, "f").await.map(|x| x.ino), Ok(ino));
            assert_eq!(b.getattr(&root(), ino).await.map(|x| x.perm), Ok(0o644));
        }
        assert_eq!(calls(&b), before, "the cache serves it");
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        a.setattr(&root(), ino, set, None).await.unwrap();
        assert_eq!(b.getattr(&root(), ino).await.map(|x| x.perm), Ok(0o600));
        assert_eq!(lookup(&b, "f").await.map(|x| x.perm), Ok(0o600));
        a.rename(&root(), (Ino::ROOT, b"f"), (Ino::ROOT, b"g"), RenameMode::Replace).await.unwrap();
        assert_eq!(lookup(&b, "f").await, Err(Errno::NoEnt));
        assert_eq!(lookup(&b, "g").await.map(|x| x.ino), Ok(ino));
        // The absence is cached as well.
        let before = calls(&b);
        assert_eq!(lookup(&b, "f").await, Err(Errno::NoEnt));
        assert_eq!(calls(&b), before);
        drop(create(&a, "f").await);
        assert!(lookup(&b, "f").await.is_ok(), "made elsewhere");
        b.unlink(&root(), Ino::ROOT, b"f").await.unwrap();
        assert_eq!(lookup(&b, "f").await, Err(Errno::NoEnt), "its own change");
        assert_eq!(lookup(&a, "f").await, Err(Errno::NoEnt));
        a.setxattr(&root(), ino, b"user.k", b"v", XattrMode::Set).await.unwrap();
        assert_eq!(b.getxattr(&root(), ino, b"user.k").await, Ok(b"v".to_vec()));
    });
}

/// Goal: a cached name is not shown to a user who may not search the directory. Method: a directory of root with mode
/// 700, cached by root, requested by another user.
#[test]
fn a_cached_name_needs_permission() {
    in_cluster(2, async |c| {
        let [a, b] = c.two().await;
        let dir = a.mkdir(&root(), Ino::ROOT, b"d", 0o700).await.unwrap().ino;
        a.mkdir(&root(), dir, b"x", 0o755).await.unwrap();
        for _ in 0..2 {
            assert!(b.lookup(&root(), dir, b"x").await.is_ok());
            assert!(b.getattr(&root(), dir).await.is_ok());
        }
        let mut other = root();
        other.cred = Cred::new(1000, 1000, Vec::new());
        assert_eq!(b.lookup(&other, dir, b"x").await, Err(Errno::Access));
        let set = SetAttr { perm: Some(0o711), ..SetAttr::default() };
        a.setattr(&root(), dir, set, None).await.unwrap();
        assert!(b.lookup(&other, dir, b"x").await.is_ok());
        assert!(b.getattr(&root(), dir).await.is_ok());
        let before = calls(&b);
        assert!(b.lookup(&other, dir, b"x").await.is_ok());
        assert_eq!(calls(&b), before, "and then from the cache");
    });
}

/// Goal: bytes written on one mount are read on the other, buffered on both sides. Another mount's truncate is seen by
/// reads and sizes at once (Promises S1, S3). Method: write, read, truncate and write again in turn, small and large,
/// with warm caches.
#[test]
fn data_goes_back_and_forth() {
    in_cluster(3, async |c| {
        let [a, b] = c.two().await;
        let fa = create(&a, "f").await;
        let fb = open(&b, "f", OpenFlags::READ_WRITE).await;
        for round in 0..6u8 {
            for len in [10usize, 5000, 70_000, 300_000] {
                let bytes = vec![round * 10 + 1; len];
                write(&a, &fa, 0, &bytes).await;
                assert!(read(&b, &fb, 0, 400_000).await == bytes, "what was written elsewhere");
                assert!(read(&b, &fb, 0, 400_000).await == bytes, "again, from the cache");
                let end = len as u64;
                write(&b, &fb, end, b"tail").await;
                assert_eq!(a.getattr(&root(), fa.ino()).await.map(|x| x.size), Ok(end + 4));
                assert_eq!(read(&a, &fa, end - 1, 100).await, [&bytes[..1], b"tail"].concat());
                let set = SetAttr { size: Some(3), ..SetAttr::default() };
                a.setattr(&root(), fa.ino(), set, None).await.unwrap();
                assert_eq!(read(&b, &fb, 0, 100).await, &bytes[..3]);
                assert_eq!(read(&b, &fb, 3, 100).await, b"");
                assert_eq!(b.getattr(&root(), fb.ino()).await.map(|x| x.size), Ok(3));
                let set = SetAttr { size: Some(0), ..SetAttr::default() };
                b.setattr(&root(), fb.ino(), set, Some(&fb)).await.unwrap();
                assert_eq!(read(&a, &fa, 0, 100).await, b"");
            }
        }
    });
}

/// Goal: each append of two mounts is written as a whole, and none overwrites another one (Promise S4). Method: both
/// mounts append records of many sizes at the same time, and one of them writes direct. Afterwards every record is
/// there once, and those of a mount are in order.
#[test]
fn appends_of_two_mounts_land_whole() {
    for seed in 0..6 {
        in_cluster(seed, async |c| {
            let [a, b] = c.two().await;
            drop(create(&a, "f").await);
            let append = OpenFlags { append: true, ..OpenFlags::WRITE };
            let files =
                [open(&a, "f", append).await, open(&b, "f", OpenFlags { direct: seed % 2 == 1, ..append }).await];
            let sizes = [100usize, 9000, 130_000, 1, 66_000];
            let run = async |client: &Client, file: &Arc<OpenFile>, letter: u8| {
                for (i, size) in sizes.iter().cycle().take(15).enumerate() {
                    write(client, file, 0, &vec![letter + (i as u8 % 5); *size]).await;
                }
            };
            futures_util::join!(run(&a, &files[0], b'a'), run(&b, &files[1], b'p'));
            drop(files);
            let file = open(&b, "f", OpenFlags::READ).await;
            let total = 2 * 3 * sizes.iter().sum::<usize>();
            let bytes = read(&b, &file, 0, total + 10).await;
            assert_eq!(bytes.len(), total);
            let (mut at, mut next) = (0, [0usize, 0]);
            while at < bytes.len() {
                let who = usize::from(bytes[at] >= b'p');
                let first = [b'a', b'p'][who];
                let i = usize::from(bytes[at] - first);
                assert_eq!(i, next[who] % 5, "in order");
                assert!(bytes[at..at + sizes[i]].iter().all(|x| *x == bytes[at]), "whole");
                (at, next[who]) = (at + sizes[i], next[who] + 1);
            }
        });
    }
}

/// Goal: a write is one event for another mount's read, whether each of them is buffered or direct (Promise S2).
/// Method: one mount writes the same range with changing letters, over several objects, in one call for each letter.
/// The other mount reads all of it and must see only one letter.
#[test]
fn a_write_is_one_event_elsewhere() {
    for seed in 0..4 {
        in_cluster(seed, async |c| {
            let [a, b] = c.two().await;
            let fa = create(&a, "f").await;
            a.setxattr(&root(), fa.ino(), b"user.amphi.layout", b"striped,size=64K,count=3", XattrMode::Set)
                .await
                .unwrap();
            let len = if seed % 2 == 0 { 90_000 } else { 200_000 };
            write(&a, &fa, 30_000, &vec![b'A'; len]).await;
            let fb = open(&b, "f", OpenFlags::READ).await;
            let writer = async {
                for i in 0..20u8 {
                    write(&a, &fa, 30_000, &vec![b'A' + i; len]).await;
                }
            };
            let reader = async {
                for _ in 0..20 {
                    let bytes = read(&b, &fb, 30_000, len).await;
                    assert_eq!(bytes.len(), len);
                    assert!(bytes.windows(2).all(|w| w[0] == w[1]), "seed {seed}: a mixture");
                }
            };
            futures_util::join!(writer, reader);
        });
    }
}

/// Goal: a second mount is admitted only after no timeout from sole mode is in force any more. Back in sole mode, the
/// remaining mount may give timeouts, and sees the changes of the other one. Method: a timeout that the test keeps in
/// force delays the second mount. Then that mount writes and leaves.
#[test]
fn company_comes_and_goes() {
    in_cluster(7, async |c| {
        let a = c.mount().await;
        assert!(a.is_alone());
        let fa = create(&a, "f").await;
        write(&a, &fa, 0, b"first").await;
        let rule = a.rule();
        let loan = a.lend(rule).expect("a lone mount lends");
        assert!(!loan.life().is_zero());
        let b = c.start_mount();
        let asked = b.getattr(&root(), Ino::ROOT);
        let let_in = Rc::new(Cell::new(false));
        let told = let_in.clone();
        c.env.spawn(async move {
            asked.await.expect("the second mount is let in");
            told.set(true);
        });
        c.until("the news of another mount", || !a.is_alone()).await;
        assert!(a.lend(rule).is_none() && a.lend(a.rule()).is_none(), "nothing is lent any more");
        c.env.sleep(Duration::from_secs(2)).await;
        assert!(!let_in.get(), "the answer that carries the loan has not been given");
        let dropped = c.env.now();
        let life = loan.life();
        drop(loan);
        c.until("the second mount", || let_in.get()).await;
        assert!(c.env.now() >= dropped + life, "the loan has ended before");
        let fb = open(&b, "f", OpenFlags::READ_WRITE).await;
        assert_eq!(read(&b, &fb, 0, 10).await, b"first");
        write(&b, &fb, 5, b" second").await;
        drop(fb);
        let mixed = a.rule();
        c.unmount(b).await;
        c.until("being alone", || a.is_alone()).await;
        assert!(a.lend(mixed).is_none(), "what was asked for in company is not lent");
        assert!(a.lend(a.rule()).is_some());
        assert_eq!(read(&a, &fa, 0, 100).await, b"first second");
    });
}

/// Goal: a mount whose session the server has ended shows nothing that it cached, and reports this (docs/SEMANTICS.md).
/// Method: a mount is cut off while another one changes files that it caches. Afterwards its calls fail.
#[test]
fn an_evicted_mount_fails_its_calls() {
    in_cluster(8, async |c| {
        let [a, b] = c.two().await;
        let fb = create(&b, "f").await;
        write(&b, &fb, 0, b"held by b").await;
        assert!(lookup(&b, "f").await.is_ok());
        c.sim.cut("server", "mount2");
        let fa = open(&a, "f", OpenFlags::READ_WRITE).await;
        write(&a, &fa, 0, b"by a").await;
        let mut buf = [0; 20];
        assert_eq!(b.try_read(&root(), &fb, 0, &mut buf, Hints::default()), None, "nobody has answered it for long");
        c.sim.heal("server", "mount2");
        c.until("the end of the session", || b.mount.coherence.sharing.is_lost()).await;
        assert_eq!(b.getattr(&root(), Ino::ROOT).await, Err(Errno::Io));
        assert_eq!(lookup(&b, "f").await, Err(Errno::Io));
        assert_eq!(b.mount.cache.dirty_bytes(), 0);
    });
}

/// The page cache of a kernel with one page. Dropping the page waits for a read of it that is under way, and writes it
/// back if it is dirty.
struct OnePage {
    client: Client,
    file: Arc<OpenFile>,
    page: Arc<Mutex<(Vec<u8>, bool)>>,
    drops: Arc<AtomicU64>,
}

impl KernelPages for OnePage {
    fn drop_pages(&self, ino: Ino, _: ByteRange, done: Box<dyn FnOnce() + Send>) {
        assert_eq!(ino, self.file.ino());
        let (client, file, page, drops) =
            (self.client.clone(), self.file.clone(), self.page.clone(), self.drops.clone());
        self.client.spawn(async move {
            let (bytes, dirty) = std::mem::take(&mut *page.lock());
            if dirty {
                let hints = Hints { write_back: true, ..Hints::default() };
                assert_eq!(client.write(&root(), &file, 0, Buf::copy_of(&bytes), hints).await, Ok(bytes.len()));
            }
            if drops.fetch_add(1, SeqCst) < 2 {
                // A read touches it once more meanwhile, and the kernel waits for that read.
                let hints = Hints { for_pages: true, ..Hints::default() };
                client.read(&root(), &file, 0, 4096, hints).await.expect("a page is read while it is being dropped");
            }
            done();
        });
    }

    fn drop_overwritten(&self, _: Ino, _: ByteRange, _: Box<dyn FnOnce() + Send>) {
        unreachable!("this mount writes nothing but pages");
    }
}

/// Goal: pages of a kernel are dropped before a lock is returned, and neither their write-back nor a simultaneous read
/// of them waits for that lock (docs/locking/kernel_pages.md). Method: a page cache of one page, clean and dirty, while
/// another mount writes the file.
#[test]
fn pages_go_back_with_their_lock() {
    in_cluster(9, async |c| {
        let [a, b] = c.two().await;
        let fa = create(&a, "f").await;
        write(&a, &fa, 0, &[b'o'; 8192]).await;
        let fb = open(&b, "f", OpenFlags::READ_WRITE).await;
        let (page, drops) = (Arc::<Mutex<(Vec<u8>, bool)>>::default(), Arc::<AtomicU64>::default());
        b.set_pages(Some(Arc::new(OnePage {
            client: b.clone(),
            file: fb.clone(),
            page: page.clone(),
            drops: drops.clone(),
        })));
        let hints = Hints { for_pages: true, ..Hints::default() };
        for (round, dirty) in [(1u8, false), (2, true), (3, true)] {
            let bytes = b.read(&root(), &fb, 0, 4096, hints).await.unwrap().to_vec();
            assert_eq!(
                bytes[4000],
                if round == 1 { b'o' } else { round - 1 },
                "the page shows the other mount's bytes"
            );
            *page.lock() = (bytes, dirty);
            if dirty {
                page.lock().0[0] = b'd';
            }
            let before = c.env.now();
            write(&a, &fa, 4000, &[round; 10]).await;
            assert!(c.env.now() < before + Duration::from_secs(5), "nothing waited for a deadline");
            assert!(page.lock().0.is_empty(), "the page went before the lock");
            let first = read(&a, &fa, 0, 1).await;
            assert_eq!(first, if round == 1 { b"o" } else { b"d" }, "what was dirty was written back");
        }
        assert!(drops.load(SeqCst) >= 4, "what was read meanwhile was dropped once more");
        let counted = b.mount.stats.io_of(stats::Way::Write, Reason::BufferedDefault);
        assert_eq!(counted, (2, 8192), "pages that are written back are requests as well");
        b.set_pages(None);
    });
}

/// Goal: calls of two mounts that follow each other have the same results as calls of one mount (Promises S1, S3).
/// Method: random calls on few names, each from a random mount, compared with a map of byte vectors.
#[test]
fn two_mounts_are_like_one() {
    for seed in 0..40 {
        in_cluster(seed, async |c| {
            let mounts = c.two().await;
            let mut model: BTreeMap<String, (Vec<u8>, u16)> = BTreeMap::new();
            let mut opens: Vec<(usize, String, Arc<OpenFile>)> = Vec::new();
            let mut state = seed * 7919 + 1;
            let mut rand = |below: u64| {
                state = u64::wrapping_add(u64::wrapping_mul(state, 6364136223846793005), 1442695040888963407);
                (state >> 33) % below.max(1)
            };
            for step in 0..250u32 {
                let m = rand(2) as usize;
                let client = &mounts[m];
                let name = format!("n{}", rand(4));
                match rand(10) {
                    0 | 1 if !model.contains_key(&name) => {
                        let file = create(client, &name).await;
                        model.insert(name.clone(), (Vec::new(), 0o644));
                        opens.push((m, name, file));
                    }
                    0 if model.contains_key(&name) => {
                        opens.retain(|(_, n, _)| *n != name);
                        model.remove(&name);
                        client.unlink(&root(), Ino::ROOT, name.as_bytes()).await.unwrap();
                    }
                    1 if !model.contains_key("moved") => {
                        opens.retain(|(_, n, _)| *n != name);
                        let old = model.remove(&name).unwrap();
                        model.insert("moved".into(), old);
                        let (from, to) = ((Ino::ROOT, name.as_bytes()), (Ino::ROOT, &b"moved"[..]));
                        client.rename(&root(), from, to, RenameMode::NoReplace).await.unwrap();
                    }
                    2 if model.contains_key(&name) => {
                        let perm = 0o600 + rand(64) as u16;
                        model.get_mut(&name).unwrap().1 = perm;
                        let ino = lookup(client, &name).await.unwrap().ino;
                        let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
                        client.setattr(&root(), ino, set, None).await.unwrap();
                    }
                    3 if model.contains_key(&name) => {
                        let size = rand(150_000);
                        model.get_mut(&name).unwrap().0.resize(size as usize, 0);
                        let ino = lookup(client, &name).await.unwrap().ino;
                        let set = SetAttr { size: Some(size), ..SetAttr::default() };
                        client.setattr(&root(), ino, set, None).await.unwrap();
                    }
                    4..=6 if !opens.is_empty() => {
                        let (m, name, file) = opens[rand(opens.len() as u64) as usize].clone();
                        let most = [100, 5000, 130_000][rand(3) as usize];
                        let (at, len) = (rand(120_000) as usize, 1 + rand(most) as usize);
                        let bytes = &mut model.get_mut(&name).unwrap().0;
                        bytes.resize(bytes.len().max(at + len), 0);
                        bytes[at..at + len].fill(step as u8);
                        write(&mounts[m], &file, at as u64, &vec![step as u8; len]).await;
                    }
                    7 if !opens.is_empty() => {
                        let (m, name, file) = opens[rand(opens.len() as u64) as usize].clone();
                        let (at, len) = (rand(150_000) as usize, 1 + rand(100_000) as usize);
                        let bytes = &model[&name].0;
                        let want = &bytes[at.min(bytes.len())..(at + len).min(bytes.len())];
                        assert!(
                            read(&mounts[m], &file, at as u64, len).await == want,
                            "seed {seed} step {step}: read {name}"
                        );
                    }
                    8 if model.contains_key(&name) => {
                        let file = open(client, &name, OpenFlags::READ_WRITE).await;
                        assert!(
                            read(client, &file, 0, 400_000).await == model[&name].0,
                            "seed {seed} step {step}: {name}"
                        );
                        opens.push((m, name, file));
                    }
                    _ => match (lookup(client, &name).await, model.get(&name)) {
                        (Ok(attr), Some((bytes, perm))) => {
                            assert_eq!(
                                (attr.size, attr.perm),
                                (bytes.len() as u64, *perm),
                                "seed {seed} step {step}: {name}"
                            );
                        }
                        (Err(Errno::NoEnt), None) => {}
                        (found, want) => panic!("seed {seed} step {step}: {name}: {found:?}, {:?}", want.map(|w| w.1)),
                    },
                }
                if opens.len() > 8 {
                    opens.remove(rand(8) as usize);
                }
            }
        });
    }
}
