//! Connections at several workers: which worker serves which connection, which requests need no hop, and that a session
//! with several connections is one session.

use super::*;
use amphi_env::sim::CrashKind;
use amphi_transport::Numbered;
use amphi_types::{ByteRange, Layout, Pattern};
use amphi_wire::{LockExtent, LockMode};
use futures_util::future::join_all;

/// A session with as many connections as the server offers.
struct Spread {
    /// By number.
    lines: Vec<Client>,
}

impl Place {
    async fn numbered(
        &self,
        node: &str,
        session: u64,
        numbered: Numbered,
        own: Vec<TargetId>,
    ) -> std::io::Result<Client> {
        let config = LinkConfig {
            addrs: vec![ADDR.into()],
            session: SessionId(session),
            role: Role::Mount,
            name: format!("{node}:{session}"),
            key: None,
            identity: None,
            secure: amphi_transport::Secure::Off,
            timeouts: Timeouts::default(),
        };
        let held = Rc::new(Held { targets: Some(own), ..Held::default() });
        let env = self.sim.node(node);
        *held.env.borrow_mut() = Some(env.clone());
        let link = Link::connect_numbered(env, config, numbered, held.clone()).await?;
        *held.link.borrow_mut() = Rc::downgrade(&link);
        Ok(Client { link, held, cred: RefCell::new(Cred::root()), opens: Cell::new(true) })
    }

    /// A mount that opens up to `most` connections.
    async fn spread(&self, node: &str, session: u64, most: u16) -> Spread {
        let targets = self.config.targets.expect("chosen");
        let own = |link: u16, links: u16| (0..targets).filter(|t| t % links == link).map(TargetId).collect();
        let first = Numbered { link: 0, links: most };
        let first = self.numbered(node, session, first, own(0, 1)).await.expect("let in");
        let links = first.link.welcome().links;
        assert!((1..=most).contains(&links) && self.config.workers.is_multiple_of(links));
        first.link.close().await;
        let mut lines = Vec::new();
        for link in 0..links {
            lines.push(self.numbered(node, session, Numbered { link, links }, own(link, links)).await.expect("let in"));
        }
        Spread { lines }
    }
}

impl Spread {
    /// The connection for a target.
    fn of(&self, target: TargetId) -> &Client {
        &self.lines[usize::from(target.0) % self.lines.len()]
    }

    /// A directory on each target.
    async fn directories(&self, targets: u16) -> Vec<Ino> {
        let mut found: Vec<Option<Ino>> = vec![None; usize::from(targets)];
        found[0] = Some(Ino::ROOT);
        for n in 0.. {
            assert!(n < 1000, "a directory on each target");
            if found.iter().all(Option::is_some) {
                break;
            }
            let dir = self.of(TargetId(0)).mkdir(Ino::ROOT, &format!("d{n}")).await.expect("made");
            found[usize::from(dir.target().0)].get_or_insert(dir);
        }
        found.into_iter().flatten().collect()
    }
}

async fn counter(c: &Client, name: &str) -> u64 {
    let Ok(Reply::Counters(all)) = c.call(Request::Counters { reset: false }).await else { panic!("counters") };
    all.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("{name} is counted")).1
}

/// Goal: with a connection for each worker no request hops, and each worker answers the requests for its own targets.
/// With one connection the requests for other workers' targets hop, and so do requests on a wrong connection. Method:
/// the same requests to every target, with 1, 2 and 4 workers, over as many connections and over one. The hops are
/// counted.
#[test]
fn requests_make_no_hop() {
    const ROUNDS: u64 = 20;
    for workers in [1, 2, 4] {
        for most in [1, 32] {
            let place = Place::new(700 + u64::from(workers), 4, workers);
            let run = async {
                let server = place.start().await.expect("the server starts");
                let mount = place.spread("client", 8, most).await;
                assert_eq!(mount.lines.len(), if most == 1 { 1 } else { usize::from(workers) });
                let dirs = mount.directories(4).await;
                let before = counter(mount.of(TargetId(0)), "forwarded").await;
                let made = || server.worker.counters.make.get();
                let made_before = made();
                for round in 0..ROUNDS {
                    for dir in &dirs {
                        let client = mount.of(dir.target());
                        let (name, make) = (format!("f{round}"), Make::File { open: None, exclusive: true });
                        let f = client.make(*dir, &name, make).await.expect("made");
                        assert_eq!(f.target(), dir.target(), "a file is made beside its name");
                        client.stat(f).await.expect("there");
                        client.unlink(*dir, &name).await.expect("there");
                    }
                }
                let hops = counter(mount.of(TargetId(0)), "forwarded").await - before;
                // The only connection of session 8 is at worker 0; each request there for a target of another worker is
                // passed on.
                let expected = match most {
                    1 => 3 * ROUNDS * (4 - 4 / u64::from(workers)),
                    _ => 0,
                };
                assert_eq!(hops, expected, "{workers} workers, at most {most} connections");
                // A worker reads from the connection the requests that it executes itself, without passing them on.
                assert_eq!(made() - made_before, ROUNDS * 4 / u64::from(workers), "the share of worker 0");
                if mount.lines.len() > 1 {
                    mount.lines[1].stat(Ino::ROOT).await.expect("any connection reaches any target");
                    assert_eq!(counter(mount.of(TargetId(0)), "forwarded").await - before, 1);
                }
                server.stop().await.expect("in order");
            };
            place.sim.block_on(run).expect("no deadlock");
        }
    }
}

/// Goal: mounts with one connection are spread over the workers and have full service there: requests about the whole
/// server, callbacks between mounts at different workers, goodbyes, and the end of the server. Method: four mounts of a
/// server with four workers take the same lock from each other, each served by a different worker.
#[test]
fn one_connection_lives_at_any_worker() {
    let place = Place::new(710, 4, 4);
    let run = async {
        let server = place.start().await.expect("the server starts");
        let mut mounts = Vec::new();
        for session in 4..8 {
            mounts.push(place.client(session).await.expect("let in"));
        }
        let f = mounts[0].create(Ino::ROOT, "f").await.expect("made");
        let object = ObjectId { ino: f, stripe: 0 };
        for round in 0..3 {
            for mount in &mounts {
                let range = ByteRange::new(0, 4096);
                let op = Request::LockEnqueue { object, mode: LockMode::Write, range, extent: LockExtent::Exact };
                let locked = mount.call(op).await.expect("the holder gives it back");
                assert!(matches!(locked, Reply::Locked { .. } | Reply::LockWaits { .. }), "{round}: {locked:?}");
            }
        }
        assert!(counter(&mounts[1], "lock_callbacks").await >= 8);
        let Ok(Reply::Status { sessions, .. }) = mounts[3].call(Request::Status).await else { panic!("status") };
        assert_eq!(sessions.iter().filter(|s| s.connected).count(), 4);
        let Ok(Reply::Map(map)) = mounts[2].call(Request::Map).await else { panic!("a map") };
        assert_eq!(map.servers.len(), 1);
        mounts[3].call(Request::Goodbye).await.expect("goes");
        mounts[3].link.close().await;
        let Ok(Reply::Status { sessions, .. }) = mounts[1].call(Request::Status).await else { panic!("status") };
        assert_eq!(sessions.len(), 3);
        assert_eq!(mounts[1].stat(f).await.expect("there").nlink, 1);
        server.stop().await.expect("in order");
    };
    place.sim.block_on(run).expect("no deadlock");
}

/// Goal: slots of different connections of a session are different. No request gets the answer of another one, and each
/// change happens once, even when connections break and the server is killed. Method: requests for the same target are
/// sent over all connections, each of which uses the same few slots; they are exclusive creates.
#[test]
fn slots_of_connections_are_apart() {
    for seed in 0..10 {
        let place = Place::new(720 + seed, 2, 2);
        let run = async {
            let mut server = Some(place.start().await.expect("the server starts"));
            let mount = place.spread("client", 5, 2).await;
            assert_eq!(mount.lines.len(), 2);
            let env = place.sim.node("client");
            for round in 0..25 {
                let names = [format!("a{round}"), format!("b{round}")];
                let one = mount.lines[0].create(Ino::ROOT, &names[0]);
                let other = mount.lines[1].create(Ino::ROOT, &names[1]);
                let trouble = async {
                    env.sleep(Duration::from_micros(env.rand() % 700)).await;
                    if round % 3 == 1 {
                        place.sim.break_connections("client", "server");
                    } else if round % 8 == 5 {
                        server = None;
                        place.sim.crash("server", CrashKind::Process);
                        server = Some(place.start().await.expect("it starts again"));
                    }
                };
                let (one, other, ()) = futures_util::join!(one, other, trouble);
                let (one, other) = (one.expect("once"), other.expect("once"));
                assert_ne!(one, other);
                let (left, right) =
                    (mount.lines[1].lookup(Ino::ROOT, &names[0]), mount.lines[0].lookup(Ino::ROOT, &names[1]));
                let (left, right) = futures_util::join!(left, right);
                assert_eq!((left.expect("there").attr.ino, right.expect("there").attr.ino), (one, other));
            }
            assert_eq!(mount.lines[0].list(Ino::ROOT).await.expect("listed").len(), 50);
            drop(server);
        };
        place.sim.block_on(run).expect("no deadlock");
    }
}

/// Goal: a connection that is cut anywhere between the connect and the first answers leaves no state behind. The client
/// is admitted in the end, on all its connections, and each request is executed once. Method: connections are broken at
/// every moment of the first milliseconds, some of them repeatedly. Then the session ends, and another one is admitted.
#[test]
fn hand_over_is_cut_anywhere() {
    for cut in 0..60u64 {
        let place = Place::new(740 + cut, 2, 2);
        let run = async {
            let server = place.start().await.expect("the server starts");
            let env = place.sim.node("watch");
            let trouble = async {
                env.sleep(Duration::from_micros(cut * 25)).await;
                for _ in 0..1 + cut % 4 {
                    place.sim.break_connections("client", "server");
                    env.sleep(Duration::from_micros(40 + cut)).await;
                }
            };
            let story = async {
                let mut lines = Vec::new();
                for link in 0..2 {
                    let own = vec![TargetId(link)];
                    let client = loop {
                        // A dial that is broken is repeated by the mounting client.
                        let numbered = Numbered { link, links: 2 };
                        match place.numbered("client", 5, numbered, own.clone()).await {
                            Ok(client) => break client,
                            Err(_) => env.sleep(Duration::from_micros(100)).await,
                        }
                    };
                    client.create(Ino::ROOT, &format!("f{link}")).await.expect("once");
                    lines.push(client);
                }
                lines
            };
            let (lines, ()) = futures_util::join!(story, trouble);
            assert_eq!(lines[0].list(Ino::ROOT).await.expect("listed"), ["f0", "f1"]);
            lines[1].link.close().await;
            lines[0].call(Request::Goodbye).await.expect("goes");
            lines[0].link.close().await;
            let other = place.client(7).await.expect("let in");
            assert_eq!(other.list(Ino::ROOT).await.expect("listed"), ["f0", "f1"]);
            let Ok(Reply::Status { sessions, .. }) = other.call(Request::Status).await else { panic!("status") };
            assert_eq!(sessions.iter().map(|s| s.session).collect::<Vec<_>>(), [SessionId(7)], "cut at {cut}");
            server.stop().await.expect("in order");
        };
        place.sim.block_on(run).expect("no deadlock");
    }
}

/// Goal: a further connection can join only a session that exists and that belongs to the same owner. A number beyond
/// the bound is refused. Method: hellos of all kinds.
#[test]
fn further_connections_join_a_session() {
    let place = Place::new(790, 2, 2);
    let run = async {
        let _server = place.start().await.expect("the server starts");
        let hello = async |session, link| {
            let refused = place.numbered("client", session, Numbered { link, links: 32 }, vec![]).await;
            refused.map(drop).map_err(|e| e.to_string())
        };
        let why = hello(5, 1).await.expect_err("nobody has begun it");
        assert!(why.contains("has to come before its others"), "{why}");
        let first = place.numbered("client", 5, Numbered { link: 0, links: 32 }, vec![]).await.expect("let in");
        hello(5, 1).await.expect("it joins");
        hello(5, 31).await.expect("it joins");
        let why = hello(5, 32).await.expect_err("there are 32");
        assert!(why.contains("connection 32"), "{why}");
        assert!(hello(6, 1).await.is_err(), "another session");
        first.call(Request::Goodbye).await.expect("goes");
        assert!(hello(5, 1).await.is_err(), "it has ended");
    };
    place.sim.block_on(run).expect("no deadlock");
}

/// Goal: an eviction ends all connections of a session: no request of any of them takes effect after it, and its locks
/// are free. Method: an administrator evicts a mount with two connections while it makes names over both. Acknowledged
/// changes are there, and none takes effect later.
#[test]
fn eviction_ends_all_connections() {
    for seed in 0..6 {
        let place = Place::new(800 + seed, 2, 2);
        let run = async {
            let server = place.start().await.expect("the server starts");
            let mount = place.spread("client", 5, 2).await;
            mount.lines.iter().for_each(|line| line.held.mortal.set(true));
            let dirs = mount.directories(2).await;
            let admin = place.client_named(9, "admin:1", Role::Admin).await.expect("let in");
            let env = place.sim.node("watch");
            let works = |line: usize| {
                let (client, dir) = (&mount.lines[line], dirs[line]);
                async move {
                    let mut made = 0;
                    while client.create(dir, &format!("f{made}")).await.is_ok() {
                        made += 1;
                    }
                    made
                }
            };
            let evicts = async {
                env.sleep(Duration::from_millis(3 + seed)).await;
                let who = format!("{:016x}", 5);
                assert_eq!(admin.call(Request::Evict { who }).await, Ok(Reply::Evicted(1)));
            };
            let (one, other, ()) = futures_util::join!(works(0), works(1), evicts);
            let late = place.client_on("other", 6, "other:6", Role::Mount).await.expect("let in");
            let now = [late.list(dirs[0]).await.expect("listed"), late.list(dirs[1]).await.expect("listed")];
            let files = |n: usize| now[n].iter().filter(|name| name.starts_with('f')).count();
            // The answer to the last may have been lost.
            assert!((one..=one + 1).contains(&files(0)) && (other..=other + 1).contains(&files(1)), "{one} {other}");
            env.sleep(Duration::from_secs(5)).await;
            let then = [late.list(dirs[0]).await.expect("listed"), late.list(dirs[1]).await.expect("listed")];
            assert_eq!(now, then, "nothing comes later");
            assert!(!mount.lines[0].link.is_up() && !mount.lines[1].link.is_up());
            server.stop().await.expect("in order");
        };
        place.sim.block_on(run).expect("no deadlock");
    }
}

/// Goal: a mount that answers on its first connection and not on another one is as unresponsive as one that answers on
/// none. A mount that answers on all of them is not unresponsive. Method: the server sends a callback on connection 1,
/// because the target of the file uses this connection; the client reads the callback and does not answer. The same is
/// done with a client that reports that it is at work.
#[test]
fn deaf_on_one_connection() {
    for (seed, keeps) in [(820, false), (821, true)] {
        let mut place = Place::new(seed, 2, 2);
        place.config.tunables.clear();
        let run = async {
            let server = place.start().await.expect("the server starts");
            let other = place.client_on("other", 6, "other:6", Role::Mount).await.expect("let in");
            let mount = place.spread("client", 5, 2).await;
            mount.lines.iter().for_each(|line| line.held.mortal.set(true));
            let dirs = mount.directories(2).await;
            let f = other.create(dirs[1], "f").await.expect("made");
            let object = ObjectId { ino: f, stripe: 0 };
            let range = ByteRange::new(0, 4096);
            let op = Request::LockEnqueue { object, mode: LockMode::Write, range, extent: LockExtent::Exact };
            let Ok(Reply::Locked { lock, .. }) = mount.lines[1].call(op.clone()).await else { panic!("a lock") };
            mount.lines[1].held.deaf.set(true);
            let env = place.sim.node("watch");
            let begun = env.now();
            let waits = async {
                other.call(op).await.expect("granted");
                env.now().since(begun)
            };
            // About the lock, at the target that has it.
            let says = async |op| {
                let call = Call { target: f.target(), cred: Cred::root(), op };
                mount.lines[1].link.call(Lane::Urgent, call, None, 0).await.expect("alive").0.result.expect("heard");
            };
            let lives = async {
                let pushed = mount.lines[1].held.pushed(|p| matches!(p, Push::Callback { .. }).then_some(()));
                pushed.await;
                for _ in 0..if keeps { 4 } else { 0 } {
                    env.sleep(Duration::from_secs(2)).await;
                    says(Request::LockKept { locks: vec![lock] }).await;
                }
                if keeps {
                    says(Request::LockCancel { locks: vec![lock] }).await;
                }
            };
            let (took, ()) = futures_util::join!(waits, lives);
            if keeps {
                assert!(took >= Duration::from_secs(8), "{took:?}");
                assert!(mount.lines[0].lookup(Ino::ROOT, "d0").await.is_ok(), "its session goes on");
            } else {
                assert!(took <= Duration::from_secs(5), "{took:?}");
                assert!(mount.lines[0].lookup(Ino::ROOT, "d0").await.is_err(), "its session has ended");
            }
            assert_eq!(counter(&other, "evictions").await, u64::from(!keeps));
            server.stop().await.expect("in order");
        };
        place.sim.block_on(run).expect("no deadlock");
    }
}

/// Goal: a session keeps its rights on a file over a restart of the server, however much later it reconnects to the
/// file's target than to a target of the file's stripes: each request on a stripe is answered as if there had been no
/// restart. Method: a mount with two connections. After a kill of the server, the connection for the stripe's target is
/// back at once and repeats its requests; the one for the inode's target presents its opens seconds later.
#[test]
fn stripes_wait_for_the_opens_of_their_file() {
    const LATE: Duration = Duration::from_secs(4);
    let place = Place::new(840, 2, 2);
    let run = async {
        let server = place.start().await.expect("the server starts");
        let mount = place.spread("client", 5, 2).await;
        mount.lines.iter().for_each(|line| line.opens.set(false));
        let (of_inode, of_stripe) = (&mount.lines[0], &mount.lines[1]);
        let make = Make::File { open: Some(RW), exclusive: true };
        let f = of_inode.make(Ino::ROOT, "f", make).await.expect("made");
        assert_eq!(f.target(), TargetId(0), "a file lies beside its name");
        of_inode.held.opens.borrow_mut().push((f, RW));
        let layout = Layout { pattern: Pattern::Striped, stripe_size: 64 << 10, stripe_count: 2, pool: 2 };
        of_inode.call(Request::SetLayout { ino: f, layout: Some(layout), advice: None }).await.expect("set");
        of_inode.call(Request::Spread { ino: f }).await.expect("spread");
        drop(server);
        place.sim.crash("server", CrashKind::Process);
        of_inode.held.pause.set(LATE);
        let _server = place.start().await.expect("the server is back");
        let env = place.sim.node("watch");
        let begun = env.now();
        let (object, mtime) = (ObjectId { ino: f, stripe: 1 }, Timespec { sec: 2_000_000_000, nsec: 0 });
        let write = |block: u64, server_lock| Request::Write {
            object,
            offset: (64 << 10) + block * 4096,
            generation: 0,
            mtime,
            server_lock,
            kill_suidgid: false,
            checksums: Default::default(),
            cover: Default::default(),
        };
        let range = ByteRange::new(96 << 10, 100 << 10);
        let part = amphi_wire::BatchPart {
            object,
            offset: 80 << 10,
            len: 4096,
            generation: 0,
            mtime,
            checksums: Default::default(),
            cover: Default::default(),
        };
        let block = || Some(Buf::zeroed(4096));
        let requests = [
            (write(0, true), block()),
            (write(1, false), block()),
            (Request::WriteBatch { parts: vec![part] }, block()),
            (Request::Punch { object, range, generation: 0, mtime, server_lock: true }, None),
            (Request::Allocate { object, range, generation: 0, mtime, server_lock: true }, None),
            (Request::Read { object, range, server_lock: true, advice: Default::default() }, None),
            (Request::DataMap { object, offset: 64 << 10, runs_max: 8 }, None),
        ];
        let answers = requests.map(|(op, payload)| async {
            let call = Call { target: TargetId(1), cred: Cred::root(), op: op.clone() };
            let (answer, _) = of_stripe.link.call(Lane::Normal, call, payload, 0).await.expect("answered");
            (op, answer.result, env.now().since(begun))
        });
        for (op, result, after) in join_all(answers).await {
            let is_done = result.as_ref().is_ok_and(|reply| match reply {
                Reply::WrittenBatch(parts) => parts.iter().all(Result::is_ok),
                _ => true,
            });
            assert!(is_done, "{op:?}: {result:?}");
            assert!(after >= LATE, "{op:?} was carried out before it was known whether the file is open");
        }
    };
    place.sim.block_on(run).expect("no deadlock");
}
