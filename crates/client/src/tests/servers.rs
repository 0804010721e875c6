//! Several servers: which connections are opened when, to which server a request is sent, and which calls a server that
//! is down delays.
//!
//! Each server answers only for its own targets. A single reference server executes the requests of all of them.

use super::server::Server;
use super::wired::Told;
use crate::api::{ClientConfig, Ctx, Hints, OpenFlags};
use crate::{Client, Pending, Way};
use amphi_env::sim::CrashKind;
use amphi_env::{Buf, Env, Sim, SimEnv};
use amphi_transport::{
    ClusterKey, ConnId, Connections, Guest, Handler, Incoming, LinkConfig, Peer, ServerAuth, Timeouts, serve,
};
use amphi_types::{Errno, Ino, Result, SessionId, TargetId};
use amphi_wire::*;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const KEY: &[u8] = b"the key of several servers";
const GIVE_UP: Duration = Duration::from_secs(3);

type Answered = BTreeMap<(usize, SessionId, u16), (u64, Answer, Option<Vec<u8>>)>;

/// The state that all servers share.
struct Shared {
    server: RefCell<Server>,
    map: RefCell<ClusterMap>,
    /// The servers that know the session of a mount, in the order in which they learnt of it.
    mounts: RefCell<Vec<usize>>,
    represented: RefCell<Vec<(usize, TargetId)>>,
    /// Servers that bytes were written to.
    written: RefCell<Vec<usize>>,
    /// Sessions of mounts that the master has begun; how many further mounts it reports; and how long its answer takes
    /// when it has begun a session.
    begun: Cell<u64>,
    others: Cell<u64>,
    pause: Cell<Duration>,
    answered: RefCell<Answered>,
    /// The number of connections that a server offers, and whether it admits a second one.
    links: Cell<u16>,
    refuses: Cell<bool>,
    /// Requests to targets: the server, the connection, the target.
    came: RefCell<Vec<(usize, u16, TargetId)>>,
}

struct Served {
    env: SimEnv,
    at: usize,
    boot: u64,
    shared: Rc<Shared>,
    connections: Rc<Connections>,
}

impl Served {
    fn targets(&self) -> Vec<TargetId> {
        self.shared.map.borrow().servers.get(self.at).map(|s| s.targets.clone()).unwrap_or_default()
    }

    /// Answers requests, each of them once.
    fn answer(&self, request: &Incoming, call: Call, payload: Option<Buf>) -> (Answer, Option<Buf>) {
        let again = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|b| Buf::copy_of(b));
        let (id, whole) = (request.id(), matches!(call.op, Request::Map | Request::Represent { .. }));
        let key = (self.at, request.session, id.slot);
        if let Some((seq, answer, bytes)) = self.shared.answered.borrow().get(&key)
            && *seq == id.seq
        {
            return (answer.clone(), again(bytes));
        }
        if !matches!(call.op, Request::Map | Request::Goodbye) {
            self.shared.came.borrow_mut().push((self.at, request.link, call.target));
        }
        match call.op {
            Request::Map => return (Answer::of(Ok(Reply::Map(self.shared.map.borrow().clone()))), None),
            Request::Represent { locks, .. } => {
                self.shared.represented.borrow_mut().push((self.at, call.target));
                let server = self.shared.server.borrow();
                let known = |l: &HeldLock| server.locks.iter().find(|(_, (o, _))| *o == l.object).map(|(id, _)| *id);
                return (Answer::of(Ok(Reply::Locks(locks.iter().filter_map(known).collect()))), None);
            }
            _ => {}
        }
        if matches!(call.op, Request::Write { .. }) {
            self.shared.written.borrow_mut().push(self.at);
        }
        assert!(self.targets().contains(&call.target), "server {} is asked for {}", self.at, call.target);
        let (answer, payload) = self.shared.server.borrow_mut().handle(call, payload);
        if !whole {
            let bytes = payload.as_ref().map(|p| p.to_vec());
            self.shared.answered.borrow_mut().insert(key, (id.seq, answer.clone(), bytes));
        }
        (answer, payload)
    }
}

impl Handler for Served {
    async fn hello(&self, hello: &Hello, _: &Peer) -> std::result::Result<Welcome, String> {
        let known = self.shared.mounts.borrow().contains(&self.at);
        if hello.link > 0 && (self.shared.refuses.get() || !known) {
            return Err("no further connection".into());
        }
        if hello.role == Role::Mount {
            let mut mounts = self.shared.mounts.borrow_mut();
            assert!(self.at == 0 || mounts.contains(&0), "the master admits first");
            if !mounts.contains(&self.at) {
                mounts.push(self.at);
            }
        }
        if self.at == 0 && !known {
            self.shared.begun.set(self.shared.begun.get() + 1);
            self.env.sleep(self.shared.pause.get()).await;
        }
        let map = self.shared.map.borrow();
        Ok(Welcome {
            version: VERSION,
            boot: self.boot,
            cluster: map.cluster,
            resumed: known,
            begun: self.shared.begun.get(),
            normal_credits: 16,
            urgent_credits: 4,
            pool: map.pool(),
            token_ms: 0,
            alone: true,
            map_epoch: map.epoch,
            mounts: self.shared.begun.get() + self.shared.others.get(),
            links: self.shared.links.get().min(hello.links),
            rotating: Vec::new(),
            root: Ino::ROOT,
        })
    }
    fn connected(&self, _: Guest, _: &Peer) {}
    fn call(self: Rc<Self>, mut request: Incoming) {
        let env = self.env.clone();
        env.clone().spawn(async move {
            env.sleep(Duration::from_nanos(1 + env.rand() % 300_000)).await;
            let (call, payload) = (request.call.clone(), request.payload.take());
            let (answer, payload) = self.answer(&request, call, payload);
            self.connections.reply(request.route, answer, payload);
        });
    }
    fn disconnected(&self, _: SessionId, _: ConnId, _: bool) {}
}

/// Servers `s0`, `s1` ... and one mount on nodes of a simulated world.
struct Site {
    sim: Rc<Sim>,
    env: SimEnv,
    shared: Rc<Shared>,
    clock: Arc<Told>,
    boots: RefCell<u64>,
}

fn info(at: usize, targets: &[u16]) -> ServerInfo {
    ServerInfo {
        id: at as u64 + 10,
        name: format!("s{at}"),
        addrs: vec![format!("tcp:s{at}:7000")],
        targets: targets.iter().map(|t| TargetId(*t)).collect(),
    }
}

impl Site {
    fn new(sim: Rc<Sim>, targets: &[&[u16]]) -> Site {
        let servers = targets.iter().enumerate().map(|(at, t)| info(at, t)).collect();
        let shared = Rc::new(Shared {
            server: RefCell::new(Server::new(4)),
            map: RefCell::new(ClusterMap { epoch: 1, cluster: 0xc0ffee, servers }),
            mounts: RefCell::default(),
            represented: RefCell::default(),
            written: RefCell::default(),
            begun: Cell::new(0),
            others: Cell::new(0),
            pause: Cell::default(),
            answered: RefCell::default(),
            links: Cell::new(1),
            refuses: Cell::new(false),
            came: RefCell::default(),
        });
        let env = sim.node("mount");
        Site { sim, env, shared, clock: Arc::default(), boots: RefCell::new(0) }
    }

    async fn start(&self, at: usize) {
        let env = self.sim.node(&format!("s{at}"));
        *self.boots.borrow_mut() += 1;
        let (boot, connections) = (*self.boots.borrow(), Connections::new());
        let shared = self.shared.clone();
        let served = Rc::new(Served { env: env.clone(), at, boot, shared, connections: connections.clone() });
        let listener = env.listen(&format!("tcp:s{at}:7000")).await.expect("listen");
        let auth = ServerAuth { key: ClusterKey::new(KEY).ok(), ..ServerAuth::default() };
        env.spawn({
            let env = env.clone();
            async move {
                let _ = serve(env, listener, served, connections, auth).await;
            }
        });
    }

    /// A client that gets these addresses, and the result with which its I/O half ended.
    fn mount(&self, addrs: &[&str]) -> (Client, Rc<RefCell<Option<std::io::Result<()>>>>) {
        let mut config = ClientConfig::new(self.clock.clone());
        config.cache_bytes = Some(8 << 20);
        config.tunables.push(("transport.give_up_s".into(), GIVE_UP.as_secs().to_string()));
        let (client, io) = Client::new(config);
        let link = LinkConfig {
            addrs: addrs.iter().map(|a| a.to_string()).collect(),
            session: SessionId(self.env.rand()),
            role: Role::Mount,
            name: "test".into(),
            key: ClusterKey::new(KEY).ok(),
            identity: None,
            secure: amphi_transport::Secure::Off,
            timeouts: Timeouts::default(),
        };
        let ended = Rc::new(RefCell::new(None));
        let (env, told) = (self.env.clone(), ended.clone());
        self.env.spawn(async move {
            let result = io.run(env, link, Way::Addresses).await;
            *told.borrow_mut() = Some(result);
        });
        (client, ended)
    }

    async fn stop(&self, client: Client, ended: Rc<RefCell<Option<std::io::Result<()>>>>) {
        client.shutdown();
        while ended.borrow().is_none() {
            self.env.sleep(Duration::from_millis(1)).await;
        }
        assert!(matches!(*ended.borrow(), Some(Ok(()))), "{:?}", ended.borrow());
    }

    fn soon<T: Send + 'static>(&self, op: Pending<T>) -> Rc<RefCell<Option<Result<T>>>> {
        let done = Rc::new(RefCell::new(None));
        let told = done.clone();
        self.env.spawn(async move {
            let result = op.await;
            *told.borrow_mut() = Some(result);
        });
        done
    }

    fn mounts(&self) -> Vec<usize> {
        self.shared.mounts.borrow().clone()
    }
}

/// Bytes from 4 MiB on, which lie on targets 0..4 in turn.
const LEN: usize = 9 << 20;

fn bytes(seed: u8) -> Vec<u8> {
    (0..LEN).map(|i| (i >> 12) as u8 ^ seed).collect()
}

async fn write(client: &Client, name: &str, seed: u8) -> Result<()> {
    let root = Ctx::root();
    let made = client.create(&root, Ino::ROOT, name.as_bytes(), 0o644, OpenFlags::READ_WRITE).await?;
    let data = bytes(seed);
    for (i, part) in data.chunks(1 << 20).enumerate() {
        client.write(&root, &made.file, (i as u64) << 20, Buf::copy_of(part), Hints::default()).await?;
    }
    client.fsync(&root, &made.file, false).await
}

async fn check(client: &Client, name: &str, seed: u8) {
    let root = Ctx::root();
    let attr = client.lookup(&root, Ino::ROOT, name.as_bytes()).await.expect("lookup");
    let file = client.open(&root, attr.ino, OpenFlags::READ).await.expect("open");
    let back = client.read(&root, &file, 0, LEN, Hints::default()).await.expect("read").to_vec();
    assert!(back == bytes(seed), "{name}");
}

/// Goal: any server leads the mount to the master, which admits the session. Connections to others are opened on first
/// use. A server that is down delays only calls to its own targets, and they fail after the bound. After a restart the
/// mount presents its state only to that server. Method: three servers in the simulated environment, of which one is
/// killed and started again twice.
#[test]
fn each_server_has_its_own_connection() {
    let sim = Rc::new(Sim::new(7, Default::default()));
    sim.block_on(async {
        let site = Site::new(sim.clone(), &[&[0, 3], &[1], &[2]]);
        for at in 0..3 {
            site.start(at).await;
        }
        let (client, ended) = site.mount(&["tcp:nowhere:1", "tcp:s1:7000"]);
        client.getattr(&Ctx::root(), Ino::ROOT).await.expect("an answer");
        assert_eq!(site.mounts(), [0], "the master only");
        write(&client, "a", 1).await.expect("write");
        assert_eq!(site.mounts().iter().collect::<BTreeSet<_>>().len(), 3, "all by now");
        let status = client.getxattr(&Ctx::root(), Ino::ROOT, b"user.amphi.status").await.expect("status");
        assert_eq!(String::from_utf8(status).unwrap().matches("\"up\":true").count(), 3);

        site.sim.crash("s2", CrashKind::Process);
        let waiting = site.soon(client.statfs(&Ctx::root()));
        let root = Ctx::root();
        client.mkdir(&root, Ino::ROOT, b"meanwhile", 0o755).await.expect("the others go on");
        assert!(waiting.borrow().is_none(), "the space of a server that is down is waited for");
        site.start(2).await;
        while waiting.borrow().is_none() {
            site.env.sleep(Duration::from_millis(1)).await;
        }
        assert!(matches!(*waiting.borrow(), Some(Ok(_))));
        assert_eq!(*site.shared.represented.borrow(), [(2, TargetId(2))], "it alone, for its own target");
        check(&client, "a", 1).await;

        site.sim.crash("s2", CrashKind::Process);
        let begun = site.env.now();
        assert_eq!(client.statfs(&root).await.err(), Some(Errno::Io));
        let took = site.env.now().since(begun);
        assert!(took <= GIVE_UP + Duration::from_secs(1) && took >= GIVE_UP / 2, "{took:?}");
        let status = client.getxattr(&Ctx::root(), Ino::ROOT, b"user.amphi.status").await.expect("status");
        assert_eq!(String::from_utf8(status).unwrap().matches("\"up\":false").count(), 1);
        site.start(2).await;
        site.env.sleep(Duration::from_secs(3)).await;
        client.statfs(&root).await.expect("it is back");
        write(&client, "b", 2).await.expect("write");
        check(&client, "b", 2).await;
        site.stop(client, ended).await;
        assert_eq!(site.shared.server.borrow().log.last().map(String::as_str), Some("Goodbye"));
    })
    .expect("the simulation ends");
}

/// Goal: a mount has as many connections to each server as the server offers. It always sends the requests for a target
/// on the same connection, and presents its state of that target on it after a restart. If a server admits only the
/// first connection, or the mount may open no other, all requests use that one. The goodbye is sent last. Method: one
/// and two servers that offer 1 to 4 connections. There are writes over all targets, a restart of each server, and
/// writes again.
#[test]
fn each_worker_has_its_own_connection() {
    let one: &[&[u16]] = &[&[0, 1, 2, 3]];
    let two: &[&[u16]] = &[&[0, 3], &[1, 2]];
    for (servers, links, refuses) in
        [(one, 1, false), (one, 2, false), (one, 4, false), (one, 2, true), (two, 2, false)]
    {
        let sim = Rc::new(Sim::new(11 + u64::from(links), Default::default()));
        sim.block_on(async {
            let site = Site::new(sim.clone(), servers);
            site.shared.links.set(links);
            site.shared.refuses.set(refuses);
            for at in 0..servers.len() {
                site.start(at).await;
            }
            let (client, ended) = site.mount(&["tcp:s0:7000"]);
            write(&client, "a", 1).await.expect("write");
            for (at, own) in servers.iter().enumerate() {
                site.shared.represented.borrow_mut().clear();
                sim.crash(&format!("s{at}"), CrashKind::Process);
                site.start(at).await;
                check(&client, "a", 1).await;
                write(&client, "b", 2).await.expect("write");
                let mut told: Vec<TargetId> =
                    site.shared.represented.borrow().iter().map(|(_, target)| *target).collect();
                told.sort_unstable();
                assert_eq!(told, own.iter().map(|t| TargetId(*t)).collect::<Vec<_>>(), "each once");
            }
            let came = site.shared.came.borrow().clone();
            let expected = |at: usize, target: TargetId| {
                let place = servers[at].iter().position(|t| *t == target.0).expect("its own") as u16;
                if refuses { 0 } else { place % links }
            };
            for (at, link, target) in &came {
                assert_eq!(*link, expected(*at, *target), "{target} of server {at}, which says {links}");
            }
            for at in 0..servers.len() {
                let used: BTreeSet<u16> = came.iter().filter(|(a, ..)| *a == at).map(|(_, link, _)| *link).collect();
                assert_eq!(used.len(), if refuses { 1 } else { usize::from(links) }, "all are used");
            }
            site.stop(client, ended).await;
            assert_eq!(site.shared.server.borrow().log.last().map(String::as_str), Some("Goodbye"));
        })
        .expect("the simulation ends");
    }
}

/// Goal: if a session has ended and begun anew, none of its former state reaches a server until the master has
/// permitted the mount to continue. If the master does not permit it, none ever does (Promise S22). This holds even if
/// that answer was lost on its way. Method: all servers forget the session of a mount with dirty bytes. The master
/// welcomes the mount again only after a while; in one case another mount is admitted in between, in the other case
/// none. The connection breaks meanwhile, so that the next welcome is of a session that the master knows, or does not
/// know.
#[test]
fn a_session_begun_anew_waits_for_the_master() {
    for (disturbed, lost) in [(true, false), (false, false), (true, true), (false, true)] {
        let sim = Rc::new(Sim::new(8, Default::default()));
        sim.block_on(async {
            let site = Site::new(sim.clone(), &[&[0, 3], &[1, 2]]);
            site.start(0).await;
            site.start(1).await;
            let (client, ended) = site.mount(&["tcp:s0:7000"]);
            write(&client, "a", 1).await.expect("write");
            let root = Ctx::root();
            let ino = client.lookup(&root, Ino::ROOT, b"a").await.expect("lookup").ino;
            let file = client.open(&root, ino, OpenFlags::READ_WRITE).await.expect("open");
            for i in 4..9 {
                let data = Buf::copy_of(&[9; 100]);
                client.write(&root, &file, i << 20, data, Hints::default()).await.expect("a write to the cache");
            }
            let shared = &site.shared;
            shared.written.borrow_mut().clear();
            shared.mounts.borrow_mut().clear();
            shared.others.set(u64::from(disturbed));
            shared.pause.set(Duration::from_secs(2));
            sim.break_connections("mount", "s0");
            site.env.sleep(Duration::from_millis(500)).await;
            assert_eq!(site.mounts(), [0], "the master has begun the session again");
            if lost {
                sim.break_connections("mount", "s0");
            }
            sim.break_connections("mount", "s1");
            site.env.sleep(Duration::from_millis(500)).await;
            assert_eq!(site.mounts(), [0, 1], "so the other one lets the mount in");
            let synced = site.soon(client.fsync(&root, &file, false));
            site.env.sleep(Duration::from_millis(500)).await;
            if !lost {
                assert_eq!((&*shared.represented.borrow(), &*shared.written.borrow()), (&vec![], &vec![]), "not yet");
            }
            site.env.sleep(Duration::from_secs(2)).await;
            let synced = synced.borrow_mut().take().expect("an answer");
            if disturbed {
                assert_eq!((synced.err(), &*shared.written.borrow()), (Some(Errno::Io), &vec![]));
            } else {
                synced.expect("it was alone");
                assert!(shared.written.borrow().contains(&1));
                drop(file);
                site.stop(client, ended).await;
            }
        })
        .expect("the simulation ends");
    }
}

/// Goal: a call to a target that the mount's map does not contain makes the mount request the map. The call waits for a
/// server that has not joined yet. Method: a fourth target joins unannounced while a file with stripes on it is
/// written.
#[test]
fn a_growing_cluster_is_followed() {
    let sim = Rc::new(Sim::new(11, Default::default()));
    sim.block_on(async {
        let site = Site::new(sim.clone(), &[&[0], &[1], &[2]]);
        for at in 0..3 {
            site.start(at).await;
        }
        let (client, ended) = site.mount(&["tcp:s0:7000"]);
        client.getattr(&Ctx::root(), Ino::ROOT).await.expect("an answer");
        {
            let mut map = site.shared.map.borrow_mut();
            map.servers.push(info(3, &[3]));
            map.epoch = 2;
        }
        let client2 = client.clone();
        let done = Rc::new(RefCell::new(None));
        let told = done.clone();
        site.env.spawn(async move {
            let result = write(&client2, "a", 5).await;
            *told.borrow_mut() = Some(result);
        });
        site.env.sleep(Duration::from_millis(500)).await;
        assert!(done.borrow().is_none(), "the new server is waited for");
        site.start(3).await;
        while done.borrow().is_none() {
            site.env.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(*done.borrow(), Some(Ok(())));
        assert!(site.mounts().contains(&3));
        check(&client, "a", 5).await;
        site.stop(client, ended).await;
    })
    .expect("the simulation ends");
}

/// Goal: the error of a mount that can be connected to no address names the fault of each. Method: two wrong addresses.
#[test]
fn every_address_is_named() {
    let sim = Rc::new(Sim::new(3, Default::default()));
    sim.block_on(async {
        let site = Site::new(sim.clone(), &[&[0, 1, 2, 3]]);
        let (client, ended) = site.mount(&["tcp:nowhere:1", "tcp:s0:7000"]);
        assert_eq!(client.getattr(&Ctx::root(), Ino::ROOT).await.err(), Some(Errno::NotConnected));
        while ended.borrow().is_none() {
            site.env.sleep(Duration::from_millis(1)).await;
        }
        let line = ended.borrow_mut().take().expect("ended").expect_err("no server").to_string();
        assert!(line.contains("tcp:nowhere:1") && line.contains("tcp:s0:7000"), "{line}");
    })
    .expect("the simulation ends");
}
