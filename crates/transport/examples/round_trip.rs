//! Round trip of a small request against a bare ping-pong of the same bytes on the same kind of socket.
//!
//! Two threads, each with its own environment, both polling without end (`-- --park` parks instead; a name as argument
//! runs one socket type). Rounds of both kinds alternate within one run; the medians and the median of the ratios of
//! neighbours are printed as one JSON line per socket type. `cargo run --release -p amphi-transport --example
//! round_trip`

use amphi_env::{Buf, Conn, Env, Listener, RealEnv, Rx, Tx};
use amphi_transport::{
    ConnId, Connections, Handler, Incoming, Link, LinkConfig, LinkEvents, Peer, Recovery, ServerAuth, Timeouts, local,
    serve, serve_local,
};
use amphi_types::{Advice, Attr, Cred, Errno, Ino, Kind, Layout, SessionId, TargetId, Timespec};
use amphi_wire::frame::{FrameKind, Head};
use amphi_wire::{Answer, Call, Hello, InodeView, Lane, Push, Reply, Request, Role, VERSION, Welcome};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

/// Round trips of one measurement.
const TRIPS: u32 = 1000;
/// Measurements of each kind, alternating.
const ROUNDS: usize = 101;

fn view() -> InodeView {
    let t = Timespec { sec: 1_700_000_000, nsec: 123_456_789 };
    let attr = Attr {
        ino: Ino(77),
        kind: Kind::File,
        perm: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 1000,
        rdev: 0,
        size: 1 << 20,
        blocks: 2048,
        atime: t,
        mtime: t,
        ctime: t,
        btime: t,
    };
    InodeView {
        attr,
        layout: Layout::growing(4),
        advice: Advice::default(),
        generation: 3,
        spread: false,
        xattrs: false,
        capability: false,
    }
}

fn question() -> Call {
    Call { target: TargetId(1), cred: Cred::root(), op: Request::GetAttr { ino: Ino(77) } }
}

fn answer() -> Answer {
    Answer::of(Ok(Reply::Inode(view())))
}

struct Answering(Rc<Connections>);

impl Handler for Answering {
    async fn hello(&self, _: &Hello, _: &Peer) -> Result<Welcome, String> {
        let (normal_credits, urgent_credits) = (64, 32);
        let (version, boot, cluster, resumed, pool, token_ms) = (VERSION, 1, 1, false, 1, 0);
        Ok(Welcome {
            version,
            boot,
            cluster,
            resumed,
            begun: 0,
            normal_credits,
            urgent_credits,
            pool,
            token_ms,
            alone: true,
            map_epoch: 0,
            mounts: 1,
            rotating: Vec::new(),
        })
    }
    fn connected(&self, _: SessionId, _: Role, _: ConnId) {}
    fn call(self: Rc<Self>, request: Incoming) {
        self.0.reply(request.route, answer(), None);
    }
    fn disconnected(&self, _: SessionId, _: ConnId, _: bool) {}
}

struct Silent;

impl<E: Env> LinkEvents<E> for Silent {
    fn push(&self, _: Push) {}
    async fn restarted(&self, _: Recovery<E>) -> Result<(), Errno> {
        Ok(())
    }
}

fn sizes() -> (usize, usize) {
    let mut out = [0; 4096];
    let there = Head::new(FrameKind::Request).encode(&question(), &mut out).expect("it fits");
    let back = Head::new(FrameKind::Reply).encode(&answer(), &mut out).expect("it fits");
    (there, back)
}

fn config(addr: &str) -> LinkConfig {
    let timeouts = Timeouts { first_connect: Duration::from_secs(5), ..Timeouts::default() };
    LinkConfig {
        addrs: vec![addr.into()],
        session: SessionId(1),
        role: Role::Mount,
        name: "pingpong".into(),
        key: None,
        timeouts,
    }
}

/// Answers bare messages on one connection, and requests on the others.
fn server(spin: Duration, addr: String, bound: mpsc::Sender<(String, String)>) {
    RealEnv::run(spin, |env| async move {
        let bare = env.listen(&addr).await.expect("listen");
        let framed = env.listen(&addr.replace("bare", "framed")).await.expect("listen");
        bound.send((bare.local_addr(), framed.local_addr())).expect("the client waits");
        let connections = Connections::new();
        let handler = Rc::new(Answering(connections.clone()));
        env.spawn({
            let env = env.clone();
            async move {
                let _ = serve(env, framed, handler, connections, ServerAuth::default()).await;
            }
        });
        let (mut tx, mut rx) = bare.accept().await.expect("accept").split();
        let (there, back) = sizes();
        let (mut come, mut go) = (Buf::zeroed(there), Buf::zeroed(back));
        loop {
            let (got, buf) = rx.recv_exact(come).await;
            come = buf;
            if got.is_err() {
                return;
            }
            let (_, buf, _) = tx.send(go, None).await;
            go = buf;
        }
    });
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn per_trip(env: &RealEnv, began: amphi_env::Time) -> f64 {
    env.now().since(began).as_secs_f64() * 1e6 / f64::from(TRIPS)
}

fn client(spin: Duration, name: &str, bare_addr: &str, framed_addr: &str) {
    RealEnv::run(spin, |env| async move {
        let (mut tx, mut rx) = env.dial(bare_addr).await.expect("dial").split();
        let link = Link::connect(env.clone(), config(framed_addr), Rc::new(Silent)).await.expect("connect");
        let (there, back) = sizes();
        let (mut bare, mut framed) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (mut go, mut come) = (Buf::zeroed(there), Buf::zeroed(back));
            let began = env.now();
            for _ in 0..TRIPS {
                let (sent, buf, _) = tx.send(go, None).await;
                sent.expect("send");
                let (got, buf2) = rx.recv_exact(come).await;
                got.expect("receive");
                (go, come) = (buf, buf2);
            }
            bare.push(per_trip(&env, began));
            let began = env.now();
            for _ in 0..TRIPS {
                link.call(Lane::Normal, question(), None, 0).await.expect("an answer");
            }
            framed.push(per_trip(&env, began));
        }
        link.close().await;
        let ratio = median(framed.iter().zip(&bare).map(|(f, b)| f / b).collect());
        let (bare, framed) = (median(bare), median(framed));
        println!(
            r#"{{"socket":"{name}","bytes":[{there},{back}],"bare_us":{bare:.2},"call_us":{framed:.2},"ratio":{ratio:.2}}}"#
        );
    });
}

fn in_process() {
    RealEnv::run(Duration::MAX, |env| async move {
        let (dialer, listener) = local::pair();
        let connections = Connections::new();
        let handler = Rc::new(Answering(connections.clone()));
        env.spawn(serve_local(env.clone(), listener, handler, connections));
        let link = Link::local(env.clone(), dialer, config(""), Rc::new(Silent)).await.expect("connect");
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let began = env.now();
            for _ in 0..TRIPS {
                link.call(Lane::Normal, question(), None, 0).await.expect("an answer");
            }
            times.push(per_trip(&env, began));
        }
        println!(r#"{{"socket":"in-process","call_us":{:.2}}}"#, median(times));
    });
}

#[expect(clippy::disallowed_methods, reason = "a benchmark's second thread")]
fn pair(spin: Duration, name: &str, addr: String) {
    let (bound, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || server(spin, addr, bound));
    let (bare, framed) = wait.recv().expect("the server listens");
    client(spin, name, &bare, &framed);
    thread.join().expect("the server ends");
}

fn main() {
    let spin = if std::env::args().any(|a| a == "--park") { Duration::ZERO } else { Duration::MAX };
    let dir = std::env::temp_dir().join(format!("amphi-pingpong-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a temporary directory");
    let only = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let wanted = |name: &str| only.as_deref().is_none_or(|o| o == name);
    if wanted("unix") {
        pair(spin, "unix", format!("unix:{}/bare.sock", dir.display()));
    }
    if wanted("tcp") {
        pair(spin, "tcp", "tcp:127.0.0.1:0".into());
    }
    if wanted("in-process") {
        in_process();
    }
    let _ = std::fs::remove_dir_all(&dir);
}
