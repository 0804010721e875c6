//! Client, transport and the reference server together in the simulated environment.

use super::server::Server;
use crate::api::{ClientConfig, Clock, Ctx, Hints, OpenFlags};
use crate::{Client, Way};
use amphi_env::{Buf, Env, Sim, SimEnv};
use amphi_transport::{ConnId, Connections, Guest, Handler, Incoming, LinkConfig, Peer, Timeouts, local, serve_local};
use amphi_types::{Ino, SessionId, Timespec};
use amphi_wire::{Hello, Role, VERSION, Welcome};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

struct Served {
    env: SimEnv,
    server: RefCell<Server>,
    connections: Rc<Connections>,
}

impl Handler for Served {
    async fn hello(&self, _: &Hello, _: &Peer) -> Result<Welcome, String> {
        Ok(Welcome {
            version: VERSION,
            boot: 1,
            cluster: 0xc0ffee,
            resumed: false,
            begun: 0,
            normal_credits: 16,
            urgent_credits: 4,
            pool: 4,
            token_ms: 0,
            alone: true,
            map_epoch: 0,
            mounts: 1,
            links: 1,
            rotating: Vec::new(),
            root: Ino::ROOT,
        })
    }
    fn connected(&self, _: Guest, _: &Peer) {}
    fn call(self: Rc<Self>, request: Incoming) {
        let env = self.env.clone();
        env.clone().spawn(async move {
            env.sleep(Duration::from_nanos(1 + env.rand() % 300_000)).await;
            let (answer, payload) = self.server.borrow_mut().handle(request.call, request.payload);
            self.connections.reply(request.route, answer, payload);
        });
    }
    fn disconnected(&self, _: SessionId, _: ConnId, _: bool) {}
}

/// The time of the simulation for the half without environment, which a task updates.
#[derive(Default)]
pub(super) struct Told(AtomicU64);

impl Clock for Told {
    fn now_ns(&self) -> u64 {
        self.0.load(SeqCst)
    }
    fn wall(&self) -> Timespec {
        Timespec::from_ns(self.now_ns())
    }
}

fn play(seed: u64) -> u64 {
    let sim = Sim::new(seed, Default::default());
    let env = sim.node("a");
    let server = sim
        .block_on(async {
            let clock = Arc::new(Told(AtomicU64::new(0)));
            let mut config = ClientConfig::new(clock.clone());
            config.cache_bytes = Some(8 << 20);
            let (client, io) = Client::new(config);
            let connections = Connections::new();
            let server = RefCell::new(Server::new(4));
            let served = Rc::new(Served { env: env.clone(), server, connections: connections.clone() });
            let (dialer, listener) = local::pair();
            env.spawn(serve_local(env.clone(), listener, served.clone(), connections));
            let link = LinkConfig {
                addrs: Vec::new(),
                session: SessionId(env.rand()),
                role: Role::Mount,
                name: "test".into(),
                key: None,
                identity: None,
                secure: amphi_transport::Secure::Off,
                timeouts: Timeouts::default(),
            };
            let ended = Rc::new(RefCell::new(None));
            let (env2, ended2) = (env.clone(), ended.clone());
            env.spawn(async move {
                let result = io.run(env2, link, Way::Local(dialer)).await;
                *ended2.borrow_mut() = Some(result);
            });
            user(&client, &env, &clock).await;
            client.shutdown();
            while ended.borrow().is_none() {
                env.sleep(Duration::from_millis(1)).await;
            }
            assert!(matches!(*ended.borrow(), Some(Ok(()))), "{:?}", ended.borrow());
            assert!(client.is_stopped());
            let late = client.getattr(&Ctx::root(), Ino::ROOT).await;
            assert_eq!(late, Err(amphi_types::Errno::NotConnected));
            served
        })
        .expect("the simulation ends");
    let server = server.server.borrow();
    // The answers to closes are not waited for.
    let last = server.log.iter().rev().find(|name| !name.starts_with("Close"));
    assert_eq!(last.map(String::as_str), Some("Goodbye"));
    for i in 0..4u64 {
        let bytes = server.contents(server.names[&(Ino::ROOT, format!("f{i}").into_bytes())]);
        assert_eq!(bytes.len(), 3_000_000);
        assert!(bytes.chunks(100_000).enumerate().all(|(k, c)| c.iter().all(|b| *b == (k as u64 + i) as u8)));
    }
    sim.trace_hash()
}

async fn user(client: &Client, env: &SimEnv, clock: &Told) {
    let root = Ctx::root();
    let mut files = Vec::new();
    for i in 0..4u64 {
        let made = client.create(&root, Ino::ROOT, format!("f{i}").as_bytes(), 0o644, OpenFlags::READ_WRITE).await;
        files.push(made.expect("create").file);
    }
    for k in 0..30u64 {
        for (i, file) in files.iter().enumerate() {
            clock.0.store(env.now().0, SeqCst);
            let mut data = Buf::zeroed(100_000);
            data.fill((k + i as u64) as u8);
            assert_eq!(client.write(&root, file, k * 100_000, data, Hints::default()).await, Ok(100_000));
        }
    }
    for file in &files {
        let all = client.read(&root, file, 0, 4_000_000, Hints::default()).await.expect("read").to_vec();
        assert_eq!(all.len(), 3_000_000);
    }
}

/// Goal: the I/O half connects, serves, writes everything back at shutdown, says goodbye and ends. Equal seeds give
/// equal traces. Method: a user in the simulated environment over an in-process connection, with slow answers in random
/// order. At the end the server's bytes are compared.
#[test]
fn the_io_half_serves_and_ends() {
    for seed in 0..4 {
        assert_eq!(play(seed), play(seed), "seed {seed}");
    }
}
