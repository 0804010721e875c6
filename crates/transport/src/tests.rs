//! The suite runs in the simulator; tests that need no network also run over in-process connections.
//!
//! `Place` is a simulated world with one server (`TestServer`: it counts executions by request id, and delays the
//! requests that a test names). Requests carry a number in an inode, so that an answer shows its request.

mod beside;
mod calls;
mod channels;
mod faults;
mod identities;
mod moved;
mod strangers;

use crate::local::{LocalDialer, pair};
use crate::secure::Bound;
use crate::{
    ClusterKey, ConnId, Connections, Guest, Handler, Incoming, Link, LinkConfig, LinkEvents, Parcel, Peer, Proved,
    Recovery, ReplyRoute, Secure, ServerAuth, Timeouts, serve, serve_local,
};
use amphi_env::sim::SimConfig;
use amphi_env::{Buf, Env, Sim, SimEnv};
use amphi_types::{ByteRange, Cred, Errno, Ino, ObjectId, SessionId, TargetId, Timespec};
use amphi_wire::slots::{Begin, ReplyTable};
use amphi_wire::{Answer, Call, Hello, Push, Reply, Request, RequestId, Role, VERSION, Welcome};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Numbers from here on are held until `TestServer::release`.
pub(super) const HELD: u64 = 1000;
pub(super) const ADDR: &str = "unix:/run/server";

pub(super) fn call(op: Request) -> Call {
    Call { target: TargetId(3), cred: Cred::root(), op }
}

/// A request that is answered with `Reply::Ino(n)`.
pub(super) fn ask(n: u64) -> Call {
    call(Request::Parent { dir: Ino(n) })
}

pub(super) fn object(n: u64) -> ObjectId {
    ObjectId { ino: Ino(n), stripe: 0 }
}

/// The input of the proofs for a channel without protection, at a server without a cluster key.
pub(super) const CLEAR: Bound = [0; 34];

/// Bytes that depend on `n` and the place.
pub(super) fn pattern(n: u64, pad: usize, len: usize) -> Buf {
    let mut buf = Buf::padded(pad, len);
    for (i, b) in buf.iter_mut().enumerate() {
        *b = (n as usize * 31 + i * 7) as u8;
    }
    buf
}

pub(super) fn write(n: u64, offset: u64) -> Call {
    let mtime = Timespec::default();
    let op = Request::Write {
        object: object(n),
        offset,
        generation: 0,
        mtime,
        server_lock: true,
        kill_suidgid: false,
        checksums: Default::default(),
        cover: Default::default(),
    };
    call(op)
}

pub(super) fn read(n: u64, start: u64, end: u64) -> Call {
    call(Request::Read {
        object: object(n),
        range: ByteRange { start, end },
        server_lock: true,
        advice: Default::default(),
    })
}

pub(super) fn ino(result: Result<(Answer, Option<Buf>), crate::LinkError>) -> u64 {
    match result.expect("an answer").0.result {
        Ok(Reply::Ino(n)) => n.0,
        other => panic!("{other:?}"),
    }
}

/// The state that outlives a restart of the test server: replies kept per session, and a tally of executions.
#[derive(Default)]
pub(super) struct Durable {
    pub(super) tables: RefCell<BTreeMap<SessionId, ReplyTable<Answer>>>,
    pub(super) executions: RefCell<BTreeMap<(SessionId, RequestId), u32>>,
}

pub(super) struct TestServer {
    pub(super) connections: Rc<Connections>,
    pub(super) durable: Rc<Durable>,
    pub(super) boot: u64,
    pub(super) credits: Cell<(u16, u16)>,
    pub(super) refuse: RefCell<Option<String>>,
    held: RefCell<BTreeMap<u64, ReplyRoute>>,
    /// The deadline of each held request.
    pub(super) deadlines: RefCell<BTreeMap<u64, Option<std::time::Duration>>>,
    /// Numbers in the order of execution.
    pub(super) order: RefCell<Vec<u64>>,
    /// Numbers of writes in the order of execution.
    pub(super) written: RefCell<Vec<u64>>,
    pub(super) connected: RefCell<Vec<ConnId>>,
    /// The proof of each of them.
    pub(super) proved: RefCell<Vec<Proved>>,
    /// How each of them was protected.
    pub(super) secure: RefCell<Vec<Secure>>,
    /// `(connection, clean)`.
    pub(super) disconnected: RefCell<Vec<(ConnId, bool)>>,
    /// Address of the last payload, to see copies.
    pub(super) payload_at: Cell<usize>,
    /// For each session, the users as whom its client may act.
    pub(super) bounds: RefCell<BTreeMap<SessionId, Option<Arc<Cred>>>>,
    /// Whether a request with a payload closes the connection under its answer.
    pub(super) drop_answers: Cell<bool>,
    /// The thread that serves clients, if another one, and what it was given.
    pub(super) place: Cell<Option<usize>>,
    pub(super) parcels: RefCell<Vec<(usize, Parcel)>>,
}

impl TestServer {
    pub(super) fn new(boot: u64, durable: Rc<Durable>) -> Rc<TestServer> {
        Rc::new(TestServer {
            connections: Connections::new(),
            durable,
            boot,
            credits: Cell::new((8, 4)),
            refuse: RefCell::default(),
            held: RefCell::default(),
            deadlines: RefCell::default(),
            order: RefCell::default(),
            written: RefCell::default(),
            connected: RefCell::default(),
            proved: RefCell::default(),
            secure: RefCell::default(),
            disconnected: RefCell::default(),
            payload_at: Cell::new(0),
            bounds: RefCell::default(),
            drop_answers: Cell::new(false),
            place: Cell::new(None),
            parcels: RefCell::default(),
        })
    }

    /// Answers the held request `n`.
    pub(super) fn release(&self, n: u64) {
        let route = self.held.borrow_mut().remove(&n).expect("a held request");
        self.connections.reply(route, Answer::of(Ok(Reply::Ino(Ino(n)))), None);
    }

    /// Answers the held read `n` with this many bytes.
    pub(super) fn release_read(&self, n: u64, len: usize) {
        let route = self.held.borrow_mut().remove(&n).expect("a held request");
        self.connections.reply(route, Answer::of(Ok(Reply::Data)), Some(pattern(n, 0, len)));
    }

    pub(super) fn holds(&self, n: u64) -> bool {
        self.held.borrow().contains_key(&n)
    }

    fn execute(&self, op: &Request, payload: Option<&Buf>) -> (Result<Reply, Errno>, Option<Buf>) {
        let fill = |n: u64, start: u64, len: u64| pattern(n, (start % 4096) as usize, len as usize);
        match op {
            Request::Parent { dir } => {
                self.order.borrow_mut().push(dir.0);
                (Ok(Reply::Ino(*dir)), None)
            }
            Request::Write { object, offset, .. } => {
                let payload = payload.expect("a write has a payload");
                self.written.borrow_mut().push(object.ino.0);
                self.payload_at.set(payload.as_ptr() as usize);
                let good = payload[..] == fill(object.ino.0, *offset, payload.len() as u64)[..]
                    && payload.as_ptr() as usize % 4096 == (*offset % 4096) as usize;
                (if good { Ok(Reply::Written { roomy: true }) } else { Err(Errno::Io) }, None)
            }
            Request::Read { object, range, .. } => {
                let data = fill(object.ino.0, range.start, range.len());
                self.payload_at.set(data.as_ptr() as usize);
                (Ok(Reply::Data), Some(data))
            }
            Request::Represent { opens, .. } => {
                self.order.borrow_mut().push(opens[0].0.0);
                (Ok(Reply::Locks(Vec::new())), None)
            }
            Request::GetXattr { .. } => (Ok(Reply::Bytes(vec![7; (1 << 20) + 5])), None),
            Request::ListXattr { .. } => (Ok(Reply::Bytes(vec![7; 1 << 19])), None),
            _ => (Ok(Reply::Done), None),
        }
    }
}

impl Handler for TestServer {
    async fn hello(&self, hello: &Hello, _peer: &Peer) -> Result<Welcome, String> {
        if let Some(reason) = &*self.refuse.borrow() {
            return Err(reason.clone());
        }
        let resumed = self.durable.tables.borrow().contains_key(&hello.session);
        self.durable.tables.borrow_mut().entry(hello.session).or_default();
        let (normal_credits, urgent_credits) = self.credits.get();
        let (version, boot, cluster, pool, token_ms) = (VERSION, self.boot, 1, 4, 0);
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
            links: 1,
            rotating: Vec::new(),
            root: Ino::ROOT,
        })
    }

    fn place(&self, _: &Hello, _: &Welcome, _: &Peer) -> Option<usize> {
        self.place.get()
    }

    fn hand_over(&self, to: usize, _: Guest, _: &Peer, parcel: Parcel) {
        self.parcels.borrow_mut().push((to, parcel));
    }

    fn connected(&self, guest: Guest, peer: &Peer) {
        self.proved.borrow_mut().push(peer.proved);
        self.secure.borrow_mut().push(peer.secure);
        self.connected.borrow_mut().push(guest.conn);
    }

    fn call(self: Rc<Self>, request: Incoming) {
        self.bounds.borrow_mut().insert(request.session, request.bound.clone());
        if let Request::Parent { dir } = request.call.op
            && dir.0 >= HELD
        {
            self.order.borrow_mut().push(dir.0);
            self.held.borrow_mut().insert(dir.0, request.route);
            self.deadlines.borrow_mut().insert(dir.0, request.deadline);
            return;
        }
        if let Request::Read { object, .. } = &request.call.op
            && object.ino.0 >= HELD
        {
            self.held.borrow_mut().insert(object.ino.0, request.route);
            return;
        }
        let mut tables = self.durable.tables.borrow_mut();
        let table = tables.get_mut(&request.session).expect("a session that said hello");
        let keep = !matches!(request.call.op, Request::Read { .. });
        let (answer, payload) = match table.begin(request.id()) {
            Begin::Execute => {
                *self.durable.executions.borrow_mut().entry((request.session, request.id())).or_default() += 1;
                let (result, data) = self.execute(&request.call.op, request.payload.as_ref());
                let answer = Answer::of(result);
                if keep {
                    table.finish(request.id(), answer.clone())
                } else {
                    table.forget(request.id())
                }
                (answer, data)
            }
            Begin::Replay(answer) => (answer.clone(), None),
            Begin::InProgress | Begin::Old => return,
        };
        if self.drop_answers.get() {
            self.connections.cut(request.route.conn, "test");
        } else {
            self.connections.reply(request.route, answer, payload);
        }
    }

    fn disconnected(&self, _: SessionId, conn: ConnId, clean: bool) {
        self.disconnected.borrow_mut().push((conn, clean));
    }
}

/// A client's owner that records its notifications.
#[derive(Default)]
pub(super) struct TestOwner {
    pub(super) pushes: RefCell<Vec<Push>>,
    pub(super) recoveries: Cell<u32>,
    pub(super) recovery_fails: Cell<Option<Errno>>,
    pub(super) late: RefCell<Vec<(Call, Answer)>>,
    pub(super) ups: RefCell<Vec<bool>>,
}

/// The number under which `TestServer::order` shows a re-presentation.
pub(super) const REPRESENTED: u64 = 77;

impl<E: Env> LinkEvents<E> for TestOwner {
    fn push(&self, push: Push) {
        self.pushes.borrow_mut().push(push);
    }

    fn late(&self, call: Call, answer: Answer) {
        self.late.borrow_mut().push((call, answer));
    }

    async fn restarted(&self, recovery: Recovery<E>) -> Result<(), Errno> {
        self.recoveries.set(self.recoveries.get() + 1);
        if let Some(e) = self.recovery_fails.get() {
            return Err(e);
        }
        let again = || {
            let access = amphi_wire::Access { read: true, write: false };
            call(Request::Represent { opens: vec![(Ino(REPRESENTED), access)], locks: Vec::new() })
        };
        let (first, second) = futures_util::future::join(recovery.call(again()), recovery.call(again())).await;
        first?.result?;
        second?.result?;
        Ok(())
    }

    fn state_changed(&self, up: bool) {
        self.ups.borrow_mut().push(up);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Net {
    Socket,
    InProcess,
}

pub(super) const BOTH: [Net; 2] = [Net::Socket, Net::InProcess];

pub(super) struct Place {
    pub(super) sim: Sim,
    pub(super) server: Rc<TestServer>,
    pub(super) durable: Rc<Durable>,
    pub(super) owner: Rc<TestOwner>,
    net: Net,
    dialer: LocalDialer,
}

pub(super) fn key(text: &str) -> ClusterKey {
    ClusterKey::new(text.as_bytes()).expect("a long key")
}

impl Place {
    pub(super) fn new(seed: u64, net: Net) -> Place {
        Place::with(seed, net, SimConfig::default(), ServerAuth::default())
    }

    pub(super) fn with(seed: u64, net: Net, config: SimConfig, auth: ServerAuth) -> Place {
        let sim = Sim::new(seed, config);
        let durable = Rc::<Durable>::default();
        let server = TestServer::new(1, durable.clone());
        let (dialer, listener) = pair();
        let env = sim.node("server");
        let (handler, connections) = (server.clone(), server.connections.clone());
        env.spawn(serve_local(env.clone(), listener, handler, connections));
        let place = Place { sim, server, durable, owner: Rc::default(), net, dialer };
        place.listen(auth);
        place
    }

    fn listen(&self, auth: ServerAuth) {
        let env = self.sim.node("server");
        let server = self.server.clone();
        let task = env.clone();
        env.spawn(async move {
            let listener = task.listen(ADDR).await.expect("the address is free");
            let connections = server.connections.clone();
            serve(task, listener, server, connections, auth).await.expect("serving goes on");
        });
    }

    /// Kills the server.
    pub(super) fn crash(&self) {
        self.sim.crash("server", amphi_env::sim::CrashKind::Process);
    }

    /// Starts it again, as another run with its kept state.
    pub(super) fn restart(&mut self) {
        let boot = self.server.boot + 1;
        self.server = TestServer::new(boot, self.durable.clone());
        self.listen(ServerAuth::default());
    }

    pub(super) fn client_env(&self) -> SimEnv {
        self.sim.node(if self.net == Net::Socket { "client" } else { "server" })
    }

    pub(super) fn config(&self) -> LinkConfig {
        LinkConfig {
            addrs: vec![ADDR.into()],
            session: SessionId(5),
            role: Role::Mount,
            name: "test:1".into(),
            key: None,
            identity: None,
            secure: Secure::Off,
            timeouts: Timeouts { first_connect: Duration::from_secs(1), ..Timeouts::default() },
        }
    }

    pub(super) async fn try_connect(&self, config: LinkConfig) -> io::Result<Rc<Link<SimEnv>>> {
        let env = self.client_env();
        match self.net {
            Net::Socket => Link::connect(env, config, self.owner.clone()).await,
            Net::InProcess => Link::local(env, self.dialer.clone(), config, self.owner.clone()).await,
        }
    }

    pub(super) async fn connect(&self) -> Rc<Link<SimEnv>> {
        self.try_connect(self.config()).await.expect("a connection")
    }

    /// Runs a story to its end.
    pub(super) fn run<T>(&self, story: impl Future<Output = T>) -> T {
        self.sim.block_on(story).expect("the simulation goes on")
    }

    /// Virtual time passes until `done`.
    pub(super) async fn until(&self, done: impl Fn() -> bool) {
        while !done() {
            self.sim.node("watch").sleep(Duration::from_micros(50)).await;
        }
    }
}
