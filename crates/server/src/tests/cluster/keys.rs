//! Keys with several servers: when each server learns of a change, and how a server behaves that has not learnt it.

use super::*;
use crate::tests::keys::{entry, identity};
use amphi_wire::keys::{Fingerprint, KeyChange, KeyEntry, KeyRegistry, KeyRole};

impl World {
    /// With a key pair of its own, whose key has the number of the server and 100.
    async fn start_with_identity(&self, at: usize) -> std::result::Result<Rc<Server<SimEnv>>, crate::ServerError> {
        self.start_as(at, self.config(at)).await
    }

    async fn start_as(
        &self,
        at: usize,
        mut config: ServerConfig,
    ) -> std::result::Result<Rc<Server<SimEnv>>, crate::ServerError> {
        config.identity = Some(identity(100 + at as u8).trusting(self.server_keys()));
        Server::start(self.node(at), config).await
    }

    fn server_keys(&self) -> Vec<Fingerprint> {
        (0..self.targets.len()).map(|at| identity(100 + at as u8).fingerprint()).collect()
    }

    /// A client with the key of `identity(n)`, which trusts all servers.
    async fn keyed(&self, node: &str, session: u64, at: usize, role: Role, n: u8) -> std::io::Result<Connected> {
        let config = LinkConfig {
            addrs: vec![addr(at)],
            session: SessionId(session),
            role,
            name: format!("{node}:{session}"),
            key: None,
            identity: Some(identity(n).trusting(self.server_keys())),
            secure: amphi_transport::Secure::Off,
            timeouts: Timeouts::default(),
        };
        let held = Rc::new(Held { targets: Some(Vec::new()), ..Held::default() });
        held.mortal.set(true);
        let env = self.sim.node(node);
        *held.env.borrow_mut() = Some(env.clone());
        let link = Link::connect(env, config, held.clone()).await?;
        *held.link.borrow_mut() = Rc::downgrade(&link);
        Ok((link, held))
    }
}

async fn ask((link, _): &Connected, target: u16, op: Request) -> Result<Reply> {
    let call = Call { target: TargetId(target), cred: Cred::root(), op };
    link.call(Lane::Normal, call, None, 0).await.map_err(|e| e.errno())?.0.result
}

async fn change(admin: &Connected, change: KeyChange) -> std::result::Result<KeyRegistry, String> {
    match ask(admin, 0, Request::Keys { change: Some(change) }).await.expect("an administrator") {
        Reply::Keys(registry) => Ok(*registry),
        Reply::Refused(why) => Err(why),
        other => panic!("{other:?}"),
    }
}

fn version(server: &Server<SimEnv>) -> u64 {
    server.cluster.keys.registry().version
}

/// Returns whether a call on the connection is refused, or has no answer within two seconds.
async fn is_over(world: &World, connected: &Connected, target: u16) -> bool {
    let looks = ask(connected, target, Request::StatFs);
    let asked = amphi_env::timeout(&world.sim.node("client"), Duration::from_secs(2), looks).await;
    !matches!(asked, Some(Ok(_)))
}

/// Goal: when a key is removed, its sessions end on every server within two seconds, and on a server that is cut off
/// from the master as soon as it learns of the removal. A server that was down admits no client with that key before it
/// knows, though it starts with the former registry. Method: three servers, of which one is cut off and one is down
/// when the key is removed.
#[test]
fn a_removal_reaches_every_server() {
    let world = World::new(720, &[1, 1, 1], 1);
    let run = async {
        let mut servers = Vec::new();
        for at in 0..3 {
            servers.push(Some(world.start_with_identity(at).await.expect("it starts, with the cluster key as well")));
            if at == 0 {
                let root = world.connect(900, 0, Role::Admin).await.unwrap();
                for (n, key) in world.server_keys().into_iter().enumerate() {
                    let entry = KeyEntry { fingerprint: key, ..entry(&format!("s{n}"), 0, KeyRole::Server) };
                    change(&root, KeyChange::Add(entry)).await.unwrap();
                }
                change(&root, KeyChange::Add(entry("boss", 3, KeyRole::Admin))).await.unwrap();
                change(&root, KeyChange::Add(entry("k", 1, KeyRole::Client))).await.unwrap();
                change(&root, KeyChange::Add(entry("l", 2, KeyRole::Client))).await.unwrap();
            }
        }
        let boss = world.keyed("client", 901, 0, Role::Admin, 3).await.expect("an administrator");
        let mut mounts = Vec::new();
        for (session, n) in [(1, 1), (2, 2)] {
            let mut links = Vec::new();
            for at in 0..3 {
                links.push(world.keyed("client", session, at, Role::Mount, n).await.expect("it mounts"));
            }
            mounts.push(links);
        }
        for at in 0..3 {
            let stolen = world.keyed("client", 1, at, Role::Mount, 2).await.err().expect("another's").to_string();
            assert!(stolen.contains("another user's"), "{at}: {stolen}");
        }
        let env = world.sim.node("client");
        let begun = env.now();
        change(&boss, KeyChange::Remove("k".into())).await.unwrap();
        for (at, (gone, stays)) in mounts[0].iter().zip(&mounts[1]).enumerate().take(3) {
            assert!(is_over(&world, gone, at as u16).await, "server {at}");
            assert!(!is_over(&world, stays, at as u16).await, "the other key's mount goes on");
        }
        assert!(env.now().since(begun) < Duration::from_secs(7), "three looks of at most two seconds each");
        for at in 0..3 {
            let refused = world.keyed("client", 5, at, Role::Mount, 1).await.err().expect("refused").to_string();
            assert!(refused.contains("is not one of this cluster's"), "{refused}");
        }
        world.sim.cut("s0", "s2");
        crash(&world, 1, CrashKind::Process);
        servers[1] = None;
        change(&boss, KeyChange::Remove("l".into())).await.unwrap();
        assert!(is_over(&world, &mounts[1][0], 0).await, "at the master");
        // The server cannot reach the master either: it starts with its copy of the registry, which still has the key.
        world.sim.cut("s0", "s1");
        servers[1] = Some(world.start_with_identity(1).await.expect("it starts without the master"));
        assert!(version(servers[1].as_ref().unwrap()) < version(servers[0].as_ref().unwrap()));
        let refused = world.keyed("client", 2, 1, Role::Mount, 2).await.err().expect("not yet").to_string();
        assert!(refused.contains("has not heard from the master"), "{refused}");
        world.sim.heal("s0", "s1");
        world.sim.heal("s0", "s2");
        sleep(&world, Duration::from_secs(15)).await;
        for at in 1..3 {
            assert_eq!(version(servers[at].as_ref().unwrap()), version(servers[0].as_ref().unwrap()), "{at}");
            let refused = world.keyed("client", 6, at, Role::Mount, 2).await.err().expect("refused").to_string();
            assert!(refused.contains("is not one of this cluster's"), "{at}: {refused}");
        }
        assert!(is_over(&world, &mounts[1][2], 2).await, "where it was cut off");
        world.stop_all(servers).await;
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: a master with older zones does not restore removed keys. As soon as another server connects to it, the later
/// registry is in force on all servers, and sessions admitted meanwhile end. Method: the former registry is put into
/// the master's zone. A mount of the removed key is admitted before the other server connects.
#[test]
fn a_registry_of_yesterday_is_replaced() {
    let world = World::new(721, &[1, 1], 1);
    let run = async {
        let mut servers = Vec::new();
        for at in 0..2 {
            servers.push(Some(world.start_with_identity(at).await.expect("it starts")));
            if at == 0 {
                let root = world.connect(900, 0, Role::Admin).await.unwrap();
                for (n, key) in world.server_keys().into_iter().enumerate() {
                    let entry = KeyEntry { fingerprint: key, ..entry(&format!("s{n}"), 0, KeyRole::Server) };
                    change(&root, KeyChange::Add(entry)).await.unwrap();
                }
            }
        }
        let root = world.connect(902, 0, Role::Admin).await.unwrap();
        let yesterday = change(&root, KeyChange::Add(entry("k", 1, KeyRole::Client))).await.unwrap();
        let today = change(&root, KeyChange::Remove("k".into())).await.unwrap();
        world.sim.cut("s0", "s1");
        let master = servers[0].take().unwrap();
        let put = crate::message::TargetRequest::PutKeys(Box::new(yesterday.clone()));
        master.worker.tell(TargetId(0), put).await.unwrap();
        master.stop().await.unwrap();
        servers[0] = Some(world.start_with_identity(0).await.expect("it starts"));
        assert_eq!(version(servers[0].as_ref().unwrap()), yesterday.version);
        let mount = world.keyed("client", 7, 0, Role::Mount, 1).await.expect("nobody knows better yet");
        world.sim.heal("s0", "s1");
        sleep(&world, Duration::from_secs(15)).await;
        for server in servers.iter().flatten() {
            assert_eq!(*server.cluster.keys.registry(), today);
        }
        assert!(is_over(&world, &mount, 0).await);
        let refused = world.keyed("client", 8, 0, Role::Mount, 1).await.err().expect("refused").to_string();
        assert!(refused.contains("is not one of this cluster's"), "{refused}");
        world.stop_all(servers).await;
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: if identities are required, the cluster key alone admits no client over the network, and sessions that were
/// admitted by it end. Servers are admitted by their keys, even one without the cluster key. The setting is refused
/// while servers have no keys. Method: a cluster that is switched over, and a server that starts with its identity
/// alone.
#[test]
fn the_cluster_key_is_switched_off() {
    let world = World::new(722, &[1, 1, 1], 1);
    let run = async {
        let mut servers = vec![Some(world.start_with_identity(0).await.unwrap())];
        let root = world.connect(900, 0, Role::Admin).await.unwrap();
        let keys = world.server_keys();
        let add = async |at: usize| {
            let entry = KeyEntry { fingerprint: keys[at], ..entry(&format!("s{at}"), 0, KeyRole::Server) };
            change(&root, KeyChange::Add(entry)).await.unwrap();
        };
        add(1).await;
        servers.push(Some(world.start_with_identity(1).await.unwrap()));
        change(&root, KeyChange::Add(entry("boss", 3, KeyRole::Admin))).await.unwrap();
        change(&root, KeyChange::Add(entry("k", 1, KeyRole::Client))).await.unwrap();
        let early = world.keyed("client", 902, 0, Role::Admin, 3).await.expect("an administrator");
        let refused = change(&early, KeyChange::RequireIdentity(true)).await.expect_err("one has no key");
        assert!(refused.contains("2 servers, but there are 1 keys of servers"), "{refused}");
        add(0).await;
        add(2).await;
        let mount = world.connect(10, 0, Role::Mount).await.expect("by the cluster key");
        let kept = world.keyed("client", 11, 0, Role::Mount, 1).await.expect("by its own");
        let refused = change(&root, KeyChange::RequireIdentity(true)).await.expect_err("he would shut himself out");
        assert!(refused.contains("came with the cluster key"), "{refused}");
        let boss = world.keyed("client", 901, 0, Role::Admin, 3).await.expect("an administrator");
        change(&boss, KeyChange::RequireIdentity(true)).await.unwrap();
        sleep(&world, Duration::from_secs(3)).await;
        assert!(is_over(&world, &mount, 0).await);
        assert!(!is_over(&world, &kept, 0).await);
        for (at, role) in [(0, Role::Mount), (1, Role::Mount), (0, Role::Admin), (0, Role::Server)] {
            let refused = world.connect(20, at, role).await.err().expect("refused").to_string();
            assert!(refused.contains("asks for more than the cluster key"), "{refused}");
        }
        let mut config = world.config(2);
        config.key = None;
        servers.push(Some(world.start_as(2, config).await.expect("it comes in by its own key")));
        sleep(&world, Duration::from_secs(5)).await;
        let Ok(Reply::Status { servers: seen, .. }) = ask(&boss, 0, Request::Status).await else { panic!("no status") };
        assert_eq!(seen.iter().filter(|s| s.up).count(), 3, "{seen:?}");
        let mut foreign = world.config(2);
        foreign.listen = vec!["tcp:x:7000".into()];
        (foreign.key, foreign.identity) = (None, Some(identity(1).trusting(world.server_keys())));
        let error = Server::start(world.sim.node("x"), foreign).await.err().expect("refused");
        assert!(error.line.contains("this is the key of a client"), "{error}");
        world.stop_all(servers).await;
    };
    world.sim.block_on(run).unwrap();
}
