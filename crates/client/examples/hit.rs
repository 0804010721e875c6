//! Costs of the client alone, against a server that keeps nothing.
//!
//! Without arguments it measures a cached 4 KiB read and write, and the memcpy of the same bytes, on warm memory. It
//! prints nanoseconds and the bound (3 memcpy + 300 ns). With `stream`: MiB/s of sequential writes and reads by request
//! size, buffered with write-back and read-ahead, and direct.

use amphi_client::{Client, ClientConfig, Clock, Ctx, Hints, OpenFlags, Way};
use amphi_env::{Buf, Env, RealEnv};
use amphi_transport::{ConnId, Connections, Guest, Handler, Incoming, LinkConfig, Peer, Timeouts, local, serve_local};
use amphi_types::{Advice, Attr, ByteRange, Errno, Ino, Kind, Layout, SessionId, SetAttr, TargetId, Timespec};
use amphi_wire::{Answer, Grant, Hello, InodeView, Reply, Request, Role, VERSION, Welcome, XattrMode};
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
    InodeView {
        attr,
        layout: Layout::growing(1),
        advice: Advice::default(),
        generation: 0,
        spread: false,
        xattrs: false,
        capability: false,
        acl: false,
        flags: Default::default(),
        sharded: false,
    }
}

impl OneFile {
    fn payload(&self, op: &Request) -> Option<Buf> {
        match op {
            Request::Read { range, .. } => Some(Buf::padded((range.start % 4096) as usize, range.len() as usize)),
            _ => None,
        }
    }
}

impl Handler for OneFile {
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
        let result = match request.call.op {
            Request::Make { .. } => Ok(Reply::Made { inode: view(), created: true, lock: None }),
            Request::LockEnqueue { .. } => Ok(Reply::Locked { lock: 1, range: ByteRange::ALL }),
            Request::Write { .. } => Ok(Reply::Written { roomy: true }),
            Request::SetAttr { set, .. } => {
                let mut view = view();
                view.attr.size = set.size.unwrap_or(0);
                Ok(Reply::Inode(view))
            }
            Request::GetAttr { .. } => Ok(Reply::Inode(view())),
            Request::Read { .. } => Ok(Reply::Data),
            Request::Unlink { .. } => Err(Errno::NoEnt),
            _ => Ok(Reply::Done),
        };
        let payload = self.payload(&request.call.op);
        let grant = Some(Box::new(Grant { blocks: Some(u64::from(u32::MAX)), kept: 1, limits: Vec::new() }));
        self.connections.reply(request.route, Answer { grant, ..Answer::of(result) }, payload);
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

/// Bytes of a stream.
const STREAM: u64 = 1 << 30;

fn stream(client: &Client) {
    let ctx = Ctx::root();
    println!("{:>8} {:>10} {:>10} {:>10} {:>10}   MiB/s", "size", "write", "read", "d-write", "d-read");
    for size in [4096u64, 65_536, 1 << 20, 4 << 20] {
        let mut row = Vec::new();
        for direct in [false, true] {
            let flags = OpenFlags { direct, ..OpenFlags::READ_WRITE };
            let file = client.create(&ctx, Ino::ROOT, b"f", 0o644, flags).wait(None).expect("create").file;
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            client.setattr(&ctx, file.ino(), set, Some(&file)).wait(None).expect("truncate");
            // A direct stream pays a hop for each request, so a smaller number of bytes is enough to measure it.
            let total = if direct && size < 1 << 20 { STREAM / 32 } else { STREAM };
            let bytes = vec![1; size as usize];
            let hints = Hints::default();
            let start = now();
            for at in (0..total).step_by(size as usize) {
                if client.try_write(&ctx, &file, at, &bytes, hints).is_none() {
                    // A front end has the bytes in a buffer already.
                    let data = Buf::zeroed(size as usize);
                    client.write(&ctx, &file, at, data, hints).wait(None).expect("write");
                }
            }
            client.fsync(&ctx, &file, true).wait(None).expect("fsync");
            row.push(total as f64 / (1 << 20) as f64 / start.elapsed().as_secs_f64());
            client.setattr(&ctx, file.ino(), set, Some(&file)).wait(None).expect("truncate");
            let set = SetAttr { size: Some(total), ..SetAttr::default() };
            client.setattr(&ctx, file.ino(), set, Some(&file)).wait(None).expect("extend");
            let mut into = vec![0; size as usize];
            let start = now();
            for at in (0..total).step_by(size as usize) {
                if client.try_read(&ctx, &file, at, &mut into, hints).is_none() {
                    let data = client.read(&ctx, &file, at, size as usize, hints).wait(None).expect("read");
                    assert_eq!(data.len() as u64, size);
                    black_box(data);
                }
            }
            row.push(total as f64 / (1 << 20) as f64 / start.elapsed().as_secs_f64());
        }
        println!("{size:>8} {:>10.0} {:>10.0} {:>10.0} {:>10.0}", row[0], row[1], row[2], row[3]);
    }
    print!(
        "{}",
        client
            .getxattr(&ctx, Ino::ROOT, b"user.amphi.stats")
            .wait(None)
            .map(|v| String::from_utf8_lossy(&v).into_owned())
            .unwrap_or_default()
    );
}

fn main() {
    let mut config = ClientConfig::new(Arc::new(RealClock(now())));
    config.cache_bytes = Some(256 << 20);
    config.tunables = vec![
        ("writeback.age_ms".into(), "3600000".into()),
        // No write-back may begin while writes are timed.
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
                    identity: None,
                    secure: amphi_transport::Secure::Off,
                    timeouts: Timeouts::default(),
                };
                io.run(env, link, Way::Local(dialer)).await.expect("the I/O half runs");
            });
        });
        if std::env::args().nth(1).as_deref() == Some("stream") {
            for (name, value) in [("hybrid.mode", "buffered"), ("writeback.run_bytes", "1M")] {
                let set = format!("{name}={value}");
                let op = client.setxattr(&Ctx::root(), Ino::ROOT, b"user.amphi.set", set.as_bytes(), XattrMode::Set);
                op.wait(None).expect("set");
            }
            stream(&client);
        } else {
            measure(&client);
        }
        client.shutdown();
        worker.join().expect("the worker ends");
    });
}
