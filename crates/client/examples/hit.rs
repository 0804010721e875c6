//! Cost of a cached 4 KiB read and write beside the memcpy of the same bytes.
//!
//! Runs the client against a minimal server in the same thread, then times hits on warm memory. Prints nanoseconds and
//! the bound (3 memcpy + 300 ns).

use amphi_client::{Client, ClientConfig, Clock, Ctx, Hints, OpenFlags, Way};
use amphi_env::{Buf, Env, RealEnv};
use amphi_types::{
    Attr, ByteRange, Errno, Ino, IoMode, Kind, Layout, SessionId, TargetId, Timespec,
};
use amphi_transport::{ConnId, Connections, Handler, Incoming, LinkConfig, Peer, Timeouts, local, serve_local};
use amphi_wire::{Answer, Hello, InodeView, Reply, Request, Role, VERSION, Welcome};
use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

struct RealClock(Instant);

impl Clock for RealClock {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
    fn wall(&self) -> Timespec {
        Timespec::from_ns(self.now_ns())
    }
}

struct OneFile {
    connections: Rc<Connections>,
}

fn view() -> InodeView {
    let t = Timespec::default();
    let attr = Attr {
        ino: Ino::new(TargetId(0), 2),
        kind: Kind::File,
        perm: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: t,
        mtime: t,
        ctime: t,
        btime: t,
    };
    InodeView { attr, layout: Layout::growing(1), io_mode: IoMode::Auto, generation: 0, spread: false }
}

impl Handler for OneFile {
    async fn hello(&self, _: &Hello, _: &Peer) -> Result<Welcome, String> {
        Ok(Welcome {
            version: VERSION,
            boot: 1,
            cluster: 1,
            resumed: false,
            normal_credits: 64,
            urgent_credits: 16,
            pool: 1,
            token_ms: 0,
        })
    }
    fn connected(&self, _: SessionId, _: Role, _: ConnId) {}
    fn call(self: Rc<Self>, request: Incoming) {
        let result = match request.call.op {
            Request::Make { .. } => Ok(Reply::Made { inode: view(), created: true }),
            Request::LockEnqueue { .. } => Ok(Reply::Locked { lock: 1, range: ByteRange::ALL }),
            Request::Write { .. } => Ok(Reply::Written),
            Request::GetAttr { .. } | Request::SetAttr { .. } => Ok(Reply::Inode(view())),
            Request::Read { .. } => Ok(Reply::Data),
            Request::Unlink { .. } => Err(Errno::NoEnt),
            _ => Ok(Reply::Done),
        };
        self.connections.reply(request.route, Answer { result, contended: false }, None);
    }
    fn disconnected(&self, _: SessionId, _: ConnId, _: bool) {}
}

const FILE: u64 = 32 << 20;
const ROUNDS: u64 = 400_000;

/// Median nanoseconds of one call over 9 passes.
fn time(mut f: impl FnMut(u64)) -> f64 {
    let mut passes: Vec<f64> = (0..9)
        .map(|_| {
            let start = now();
            for i in 0..ROUNDS {
                f(i);
            }
            start.elapsed().as_nanos() as f64 / ROUNDS as f64
        })
        .collect();
    passes.sort_by(f64::total_cmp);
    passes[4]
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

fn offset(i: u64) -> u64 {
    (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % (FILE / 4096) * 4096
}

fn measure(client: &Client) {
    let ctx = Ctx::root();
    let open = client.create(&ctx, Ino::ROOT, b"f", 0o644, OpenFlags::READ_WRITE).wait(None).expect("create");
    let file = open.file;
    for at in (0..FILE).step_by(1 << 20) {
        let data = Buf::zeroed(1 << 20);
        client.write(&ctx, &file, at, data, Hints::default()).wait(None).expect("write");
    }
    let (mut into, from) = (vec![0u8; 4096], vec![7u8; 4096]);
    let mut plain = vec![1u8; FILE as usize];
    let memcpy = time(|i| {
        let at = offset(i) as usize;
        into.copy_from_slice(black_box(&plain[at..at + 4096]));
        black_box(&mut into);
    });
    let memcpy_in = time(|i| {
        let at = offset(i) as usize;
        black_box(&mut plain[at..at + 4096]).copy_from_slice(black_box(&from));
    });
    let read = time(|i| {
        let n = client.try_read(&ctx, &file, offset(i), &mut into, Hints::default());
        assert_eq!(n, Some(4096));
    });
    let write = time(|i| {
        let n = client.try_write(&ctx, &file, offset(i), &from, Hints::default());
        assert_eq!(n, Some(4096));
    });
    println!("memcpy out {memcpy:.0} ns, in {memcpy_in:.0} ns");
    println!("cached 4 KiB read  {read:.0} ns, bound {:.0} ns", 3.0 * memcpy + 300.0);
    println!("cached 4 KiB write {write:.0} ns, bound {:.0} ns", 3.0 * memcpy_in + 300.0);
    let clock_ns = time(|_| {
        black_box(now());
    });
    println!("one look at the clock {clock_ns:.0} ns");
    for threads in [2usize, 4] {
        let start = now();
        std::thread::scope(|scope| {
            for t in 0..threads as u64 {
                let (client, file, ctx) = (client.clone(), file.clone(), Ctx { tid: t as u32, ..Ctx::root() });
                scope.spawn(move || {
                    let mut into = vec![0u8; 4096];
                    for i in 0..ROUNDS {
                        client.try_read(&ctx, &file, offset(i + t * ROUNDS), &mut into, Hints::default());
                    }
                });
            }
        });
        let each = start.elapsed().as_nanos() as f64 / ROUNDS as f64;
        println!("{threads} threads, one file: {each:.0} ns per read and thread");
    }
}

fn main() {
    let mut config = ClientConfig::new(Arc::new(RealClock(now())));
    config.cache_bytes = Some(256 << 20);
    config.tunables = vec![
        ("writeback.age_ms".into(), "3600000".into()),
        // Nothing may leave while writes are timed.
        ("writeback.run_bytes".into(), "64M".into()),
    ];
    let (client, io) = Client::new(config);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            RealEnv::run(Duration::from_micros(50), |env| async move {
                let (dialer, listener) = local::pair();
                let connections = Connections::new();
                let handler = Rc::new(OneFile { connections: connections.clone() });
                env.spawn(serve_local(env.clone(), listener, handler, connections));
                let link = LinkConfig {
                    addrs: Vec::new(),
                    session: SessionId(1),
                    role: Role::Mount,
                    name: "hit".into(),
                    key: None,
                    timeouts: Timeouts::default(),
                };
                io.run(env, link, Way::Local(dialer)).await.expect("the I/O half runs");
            });
        });
        measure(&client);
        client.shutdown();
        worker.join().expect("the worker ends");
    });
}
