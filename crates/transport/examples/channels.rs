//! The cost of protection: 1 MiB writes and reads, 4 KiB writes and whole handshakes over loopback TCP, at each level.
//!
//! Server and client have a thread each. The levels take turns within each round, so that other load of the machine
//! affects all of them. For each level the program prints the median of the rounds, beside the median of the level
//! `off` and the bound that the level has to meet (docs/design/channels.md).

use amphi_env::{Buf, Env, Listener, RealEnv};
use amphi_transport::{
    CallOptions, ClusterKey, ConnId, Connections, Guest, Handler, Incoming, Link, LinkConfig, LinkEvents, Peer,
    Recovery, Secure, ServerAuth, Timeouts, serve,
};
use amphi_types::{ByteRange, Cred, Errno, Ino, ObjectId, SessionId, TargetId, Timespec};
use amphi_wire::{Answer, Call, Hello, Lane, Push, Reply, Request, Role, VERSION, Welcome};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const KEY: &[u8] = b"a key for this measurement alone";
const SPIN: Duration = Duration::from_micros(200);
/// Rounds, and what each does at each level.
const ROUNDS: usize = 15;
const LARGE: usize = 200;
const SMALL: usize = 2000;
const HANDSHAKES: usize = 20;
/// Large calls under way at the same time.
const DEPTH: usize = 4;

struct Bytes {
    connections: Rc<Connections>,
}

impl Handler for Bytes {
    async fn hello(&self, _: &Hello, _: &Peer) -> Result<Welcome, String> {
        Ok(Welcome {
            version: VERSION,
            boot: 1,
            cluster: 1,
            resumed: false,
            begun: 0,
            normal_credits: 64,
            urgent_credits: 16,
            pool: 1,
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
        let (reply, payload) = match &request.call.op {
            Request::Read { range, .. } => (Reply::Data, Some(Buf::scratch(range.len() as usize))),
            _ => (Reply::Written { roomy: true }, None),
        };
        self.connections.reply(request.route, Answer::of(Ok(reply)), payload);
    }

    fn disconnected(&self, _: SessionId, _: ConnId, _: bool) {}
}

struct Nothing;

impl LinkEvents<RealEnv> for Nothing {
    fn push(&self, _: Push) {}

    async fn restarted(&self, _: Recovery<RealEnv>) -> Result<(), Errno> {
        Ok(())
    }
}

const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };

fn call(op: Request) -> Call {
    Call { target: TargetId(0), cred: Cred::root(), op }
}

fn write() -> Call {
    call(Request::Write {
        object: OBJECT,
        offset: 0,
        generation: 0,
        mtime: Timespec::default(),
        server_lock: true,
        kill_suidgid: false,
        checksums: Default::default(),
        cover: Default::default(),
    })
}

fn read(bytes: u64) -> Call {
    let range = ByteRange { start: 0, end: bytes };
    call(Request::Read { object: OBJECT, range, server_lock: true, advice: Default::default() })
}

/// Serves each level at an address of its own; the addresses are sent.
#[expect(clippy::disallowed_methods, reason = "the thread of the server")]
fn start_server() -> Vec<String> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        RealEnv::run(SPIN, async |env| {
            let connections = Connections::new();
            for secure in Secure::ALL {
                let listener = env.listen("tcp:127.0.0.1:0").await.expect("a port");
                tell.send(listener.local_addr()).expect("the client waits");
                let key = ClusterKey::new(KEY).ok();
                let auth = ServerAuth { key, secure, ..ServerAuth::default() };
                let handler = Rc::new(Bytes { connections: connections.clone() });
                let serving = serve(env.clone(), listener, handler, connections.clone(), auth);
                env.spawn(async move { serving.await.expect("it serves") });
            }
            env.sleep(Duration::from_secs(3600)).await;
        });
    });
    Secure::ALL.iter().map(|_| told.recv().expect("an address")).collect()
}

async fn connect(env: &RealEnv, addr: &str) -> Rc<Link<RealEnv>> {
    let config = LinkConfig {
        addrs: vec![addr.into()],
        session: SessionId(env.rand()),
        role: Role::Mount,
        name: "bench".into(),
        key: ClusterKey::new(KEY).ok(),
        identity: None,
        secure: Secure::Off,
        timeouts: Timeouts::default(),
    };
    Link::connect(env.clone(), config, Rc::new(Nothing)).await.expect("a connection")
}

async fn one(link: &Link<RealEnv>, call: Call, payload: Option<Buf>) {
    let options = CallOptions { lane: Lane::Normal, pad: 0, deadline: None, insist: false };
    let (answer, _) = link.call_with(options, call, payload).await.expect("an answer");
    assert!(answer.result.is_ok());
}

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a measurement")]
    Instant::now()
}

/// Seconds for each of `calls` calls, `DEPTH` at a time.
async fn large(link: &Link<RealEnv>, make: impl Fn() -> (Call, Option<Buf>)) -> f64 {
    let begun = now();
    let some = async || {
        for _ in 0..LARGE / DEPTH {
            let (call, payload) = make();
            one(link, call, payload).await;
        }
    };
    futures_util::future::join_all((0..DEPTH).map(|_| some())).await;
    begun.elapsed().as_secs_f64() / LARGE as f64
}

async fn small(link: &Link<RealEnv>) -> f64 {
    let begun = now();
    for _ in 0..SMALL {
        one(link, write(), Some(Buf::scratch(4096))).await;
    }
    begun.elapsed().as_secs_f64() / SMALL as f64
}

async fn handshakes(env: &RealEnv, addr: &str) -> f64 {
    let mut seconds = 0.0;
    for _ in 0..HANDSHAKES {
        let begun = now();
        let link = connect(env, addr).await;
        seconds += begun.elapsed().as_secs_f64();
        link.close().await;
    }
    seconds / HANDSHAKES as f64
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    let addrs = start_server();
    // Kind of measurement, level, round.
    let mut found = vec![vec![Vec::new(); Secure::ALL.len()]; 4];
    RealEnv::run(SPIN, async |env| {
        for round in 0..=ROUNDS {
            for (level, addr) in addrs.iter().enumerate() {
                let link = connect(&env, addr).await;
                let times = [
                    large(&link, || (write(), Some(Buf::scratch(1 << 20)))).await,
                    large(&link, || (read(1 << 20), None)).await,
                    small(&link).await,
                    handshakes(&env, addr).await,
                ];
                link.close().await;
                // The first round warms up.
                if round > 0 {
                    times.iter().enumerate().for_each(|(kind, seconds)| found[kind][level].push(*seconds));
                }
            }
        }
    });
    let names = ["1 MiB write", "1 MiB read", "4 KiB write", "handshake"];
    for (name, levels) in names.iter().zip(&mut found) {
        let off = median(&mut levels[0]);
        for (level, times) in Secure::ALL.iter().zip(levels) {
            let time = median(times);
            println!(
                "{name:<12} {level:<4} {:9.1} us  {:6.2} of off's speed  {:+8.1} us",
                time * 1e6,
                off / time,
                (time - off) * 1e6
            );
        }
    }
}
