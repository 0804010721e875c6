//! Simulated byte streams: latency, flow control, cuts, breaks, crashes of either end.
//!
//! Owns: connections, listeners, and the bytes in flight. Does not own: node life (`world`).
//!
//! Model. Bytes arrive reliably and in order, in arbitrary pieces, each after its own latency, until the connection
//! breaks. A break loses the bytes in flight and, at random, bytes that had arrived unread. A sender waits when
//! `net_window_bytes` are unread. A cut between two nodes delays everything until it heals, or breaks the connection
//! after `stall_timeout_ns`. When a process dies its peers see an orderly end or a break; when power fails they see a
//! break after `power_break_ns`.

mod moved;
mod passed;

pub use moved::SimMoved;
pub use passed::{SimEnds, SimMemory};

use super::courier::{Carried, Courier, Leg};
use super::world::{Core, Event, Kind, World};
use super::{CrashKind, SimEnv};
use crate::addr::Addr;
use crate::buf::arena;
use crate::{Buf, Conn, IoBuf, Listener, Rx, Time, Tx};
use amphi_types::Cred;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Connections that wait to be accepted; more are refused.
const BACKLOG_MAX: usize = 128;

pub(super) enum NetEvent {
    /// Bytes of the pipe that starts at `side` may have arrived.
    Deliver { conn: u64, side: usize },
    /// The connection breaks.
    Break { conn: u64 },
    /// The connection breaks if it is still cut.
    Stalled { conn: u64 },
    /// `Courier::due` has to be called for the pipe that starts at `side`.
    Due { conn: u64, side: usize },
}

enum Piece {
    Bytes(Vec<u8>),
    End,
}

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    flight: VecDeque<(u64, Piece)>,
    flight_bytes: usize,
    last_at: u64,
    arrived: VecDeque<u8>,
    ended: bool,
    /// The receiver has gone: sent bytes will not be read.
    unread: bool,
    sender: Option<Waker>,
    receiver: Option<Waker>,
}

impl Pipe {
    fn drop_bytes(&mut self) {
        self.flight.clear();
        self.flight_bytes = 0;
    }
}

pub(super) struct ConnState {
    nodes: [usize; 2],
    open: [bool; 2],
    /// Sides that have given the connection up.
    abandoned: [bool; 2],
    /// Sides that have passed the memory of their process.
    passed: [bool; 2],
    /// `pipes[s]` carries what side `s` sends.
    pipes: [Pipe; 2],
    broken: bool,
    stalled: bool,
}

impl ConnState {
    fn wakers(&mut self) -> Vec<Waker> {
        self.pipes.iter_mut().flat_map(|p| [p.sender.take(), p.receiver.take()]).flatten().collect()
    }
}

pub(super) struct ListenerState {
    id: u64,
    node: usize,
    backlog: VecDeque<u64>,
    waker: Option<Waker>,
}

fn link(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

fn reset() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the simulated connection broke")
}

impl Core {
    fn break_conn(&mut self, id: u64) -> Vec<Waker> {
        let forget = self.rng.coin();
        let Some(conn) = self.conns.get_mut(&id) else { return Vec::new() };
        if conn.broken {
            return Vec::new();
        }
        conn.broken = true;
        for pipe in &mut conn.pipes {
            pipe.drop_bytes();
            if forget {
                pipe.arrived.clear();
            }
        }
        let wakers = conn.wakers();
        self.note(Kind::Break, id, 0);
        wakers
    }

    /// Queues a piece on the pipe that starts at `side`.
    fn queue(&mut self, id: u64, side: usize, piece: Piece, net_ns: &std::ops::Range<u64>) {
        let delay = self.latency(net_ns);
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let pipe = &mut conn.pipes[side];
        pipe.last_at = pipe.last_at.max(now + delay);
        if let Piece::Bytes(bytes) = &piece {
            pipe.flight_bytes += bytes.len();
        }
        pipe.flight.push_back((pipe.last_at, piece));
        let at = pipe.last_at;
        self.at(at, Event::Net(NetEvent::Deliver { conn: id, side }));
    }

    /// Orderly end of one side.
    fn close(&mut self, id: u64, side: usize, net_ns: &std::ops::Range<u64>) -> Vec<Waker> {
        let Some(conn) = self.conns.get_mut(&id) else { return Vec::new() };
        if !conn.open[side] {
            return Vec::new();
        }
        conn.open[side] = false;
        let incoming = &mut conn.pipes[1 - side];
        incoming.unread = true;
        incoming.drop_bytes();
        incoming.arrived.clear();
        let wakers = incoming.sender.take().into_iter().collect();
        if conn.open[1 - side] {
            self.queue(id, side, Piece::End, net_ns);
        } else {
            self.conns.remove(&id);
        }
        wakers
    }
}

impl World {
    /// Asks the courier, if there is one, about a pipe that is open.
    fn ask_courier(
        &self,
        conn: u64,
        side: usize,
        ask: impl FnOnce(&mut dyn Courier, &Leg<'_>) -> Carried,
    ) -> Option<Carried> {
        let mut courier = self.courier.borrow_mut();
        let courier = courier.as_mut()?;
        let (from, to, now) = {
            let core = self.core.borrow();
            let state = core.conns.get(&conn).filter(|c| !c.broken && c.open[side])?;
            let name = |side: usize| core.nodes[state.nodes[side]].name.clone();
            (name(side), name(1 - side), Time(core.now))
        };
        Some(ask(&mut **courier, &Leg { conn, dialled: side == 0, from: &from, to: &to, now }))
    }

    /// Keeps the times that the courier has requested.
    fn note_times(core: &mut Core, conn: u64, side: usize, carried: &Carried) {
        if let Some(at) = carried.due_at {
            core.at(at.0, Event::Net(NetEvent::Due { conn, side }));
        }
        if let Some(at) = carried.break_at {
            core.at(at.0, Event::Net(NetEvent::Break { conn }));
        }
    }

    fn courier_due(&self, conn: u64, side: usize) {
        let Some(carried) = self.ask_courier(conn, side, |courier, leg| courier.due(leg)) else { return };
        let mut core = self.core.borrow_mut();
        Self::note_times(&mut core, conn, side, &carried);
        if !carried.bytes.is_empty() {
            core.queue(conn, side, Piece::Bytes(carried.bytes), &self.config.net_ns);
        }
    }

    fn cut_between(&self, core: &Core, nodes: [usize; 2]) -> bool {
        nodes[0] != nodes[1] && core.cuts.contains(&link(nodes[0], nodes[1]))
    }

    pub(super) fn net_event(&self, event: NetEvent) {
        if let NetEvent::Due { conn, side } = event {
            return self.courier_due(conn, side);
        }
        let mut guard = self.core.borrow_mut();
        let core: &mut Core = &mut guard;
        let wakers = match event {
            NetEvent::Due { .. } => Vec::new(),
            NetEvent::Break { conn } => core.break_conn(conn),
            NetEvent::Stalled { conn } => match core.conns.get(&conn).map(|c| (c.nodes, c.stalled)) {
                Some((nodes, true)) if self.cut_between(core, nodes) => core.break_conn(conn),
                _ => Vec::new(),
            },
            NetEvent::Deliver { conn: id, side } => {
                let Some(nodes) = core.conns.get(&id).map(|c| c.nodes) else { return };
                let cut = self.cut_between(core, nodes);
                let now = core.now;
                let Some(conn) = core.conns.get_mut(&id) else { return };
                if cut {
                    if !std::mem::replace(&mut conn.stalled, true) {
                        core.after(self.config.stall_timeout_ns, Event::Net(NetEvent::Stalled { conn: id }));
                    }
                    return;
                }
                let pipe = &mut conn.pipes[side];
                let mut bytes = 0;
                while pipe.flight.front().is_some_and(|(at, _)| *at <= now) {
                    match pipe.flight.pop_front() {
                        Some((_, Piece::Bytes(b))) => {
                            bytes += b.len();
                            pipe.flight_bytes -= b.len();
                            pipe.arrived.extend(b);
                        }
                        Some((_, Piece::End)) => pipe.ended = true,
                        None => {}
                    }
                }
                let waker = pipe.receiver.take();
                core.note(Kind::Deliver, id ^ ((side as u64) << 63), bytes as u64);
                waker.into_iter().collect()
            }
        };
        drop(guard);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Removes the connections of a crashed node; returns the tasks to wake.
    pub(super) fn crash_net(&self, node: usize, kind: CrashKind) -> Vec<Waker> {
        let mut guard = self.core.borrow_mut();
        let core: &mut Core = &mut guard;
        core.listeners.retain(|_, l| l.node != node);
        let ids: Vec<u64> = core.conns.iter().filter(|(_, c)| c.nodes.contains(&node)).map(|(id, _)| *id).collect();
        let mut wakers = Vec::new();
        for id in ids {
            let orderly = kind == CrashKind::Process && core.rng.coin();
            for side in 0..2 {
                let Some(conn) = core.conns.get_mut(&id) else { break };
                if conn.nodes[side] != node || !conn.open[side] {
                    continue;
                }
                wakers.extend(conn.pipes[side].sender.take());
                wakers.extend(conn.pipes[1 - side].receiver.take());
                if orderly {
                    wakers.extend(core.close(id, side, &self.config.net_ns));
                    continue;
                }
                conn.open[side] = false;
                conn.pipes[side].drop_bytes();
                if !conn.open[1 - side] {
                    core.conns.remove(&id);
                    continue;
                }
                let delay = match kind {
                    CrashKind::Process => core.latency(&self.config.net_ns),
                    CrashKind::Power => self.config.power_break_ns,
                };
                core.after(delay, Event::Net(NetEvent::Break { conn: id }));
            }
        }
        wakers
    }

    /// Breaks every connection between two nodes now.
    pub(super) fn break_between(&self, a: usize, b: usize) {
        let mut core = self.core.borrow_mut();
        let ids: Vec<u64> =
            core.conns.iter().filter(|(_, c)| link(c.nodes[0], c.nodes[1]) == link(a, b)).map(|(id, _)| *id).collect();
        let wakers: Vec<Waker> = ids.into_iter().flat_map(|id| core.break_conn(id)).collect();
        drop(core);
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn cut(&self, a: usize, b: usize) {
        self.core.borrow_mut().cuts.insert(link(a, b));
    }

    pub(super) fn heal(&self, a: usize, b: usize) {
        let mut core = self.core.borrow_mut();
        core.cuts.remove(&link(a, b));
        let ids: Vec<u64> =
            core.conns.iter().filter(|(_, c)| link(c.nodes[0], c.nodes[1]) == link(a, b)).map(|(id, _)| *id).collect();
        for id in ids {
            for side in 0..2 {
                let delay = core.latency(&self.config.net_ns);
                core.after(delay, Event::Net(NetEvent::Deliver { conn: id, side }));
            }
            if let Some(conn) = core.conns.get_mut(&id) {
                conn.stalled = false;
            }
        }
    }
}

/// One end of a connection; dropping it closes it.
struct End {
    env: SimEnv,
    id: u64,
    side: usize,
}

impl Drop for End {
    fn drop(&mut self) {
        let world = &self.env.world;
        let wakers = world.core.borrow_mut().close(self.id, self.side, &world.config.net_ns);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A simulated connection.
pub struct SimConn {
    end: Rc<End>,
    peer: String,
    cred: Option<Cred>,
}

impl SimConn {
    /// Takes a connection over.
    pub(super) fn adopt(moved: SimMoved) -> SimConn {
        moved.take().expect("a connection that was given up on this thread, once")
    }
}

impl Conn for SimConn {
    type Tx = SimTx;
    type Rx = SimRx;
    type Moved = SimMoved;

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn peer_cred(&self) -> Option<Cred> {
        self.cred.clone()
    }

    fn is_network(&self) -> bool {
        true
    }

    fn split(self) -> (SimTx, SimRx) {
        let SimConn { end, peer, cred } = self;
        (SimTx { end: end.clone(), peer, cred }, SimRx { end })
    }

    fn detach(tx: SimTx, rx: SimRx) -> io::Result<SimMoved> {
        drop(rx);
        let SimTx { end, peer, cred } = tx;
        Ok(SimMoved::new(SimConn { end, peer, cred }))
    }
}

/// Sending half.
pub struct SimTx {
    end: Rc<End>,
    peer: String,
    cred: Option<Cred>,
}

impl SimTx {
    async fn send_all(&self, bytes: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            sent += poll_fn(|cx| self.push(&bytes[sent..], cx.waker())).await?;
        }
        Ok(())
    }

    /// The payload, with one of its bits flipped if the network damages this payload.
    fn damaged(&self, payload: &[u8]) -> Option<Vec<u8>> {
        let env = &self.end.env;
        let mut core = env.world.core.borrow_mut();
        if payload.is_empty() || !core.rng.one_in(env.world.config.damage_one_in) {
            return None;
        }
        let bit = core.rng.below(payload.len() as u64 * 8);
        let mut damaged = payload.to_vec();
        damaged[(bit / 8) as usize] ^= 1 << (bit % 8);
        Some(damaged)
    }

    /// Puts as many of `bytes` in flight as the window permits.
    fn push(&self, bytes: &[u8], waker: &Waker) -> Poll<io::Result<usize>> {
        let End { env, id, side } = &*self.end;
        let config = &env.world.config;
        let mut core = env.world.core.borrow_mut();
        let Some(conn) = core.conns.get_mut(id) else { return Poll::Ready(Err(reset())) };
        if conn.broken || !conn.open[*side] {
            return Poll::Ready(Err(reset()));
        }
        let pipe = &mut conn.pipes[*side];
        if pipe.unread {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = config.net_window_bytes.saturating_sub(pipe.flight_bytes + pipe.arrived.len());
        if room == 0 {
            pipe.sender = Some(waker.clone());
            return Poll::Pending;
        }
        let n = room.min(bytes.len());
        drop(core);
        let carried = env.world.ask_courier(*id, *side, |courier, leg| courier.take(leg, &bytes[..n]));
        let mut core = env.world.core.borrow_mut();
        let sent = match &carried {
            Some(carried) => {
                World::note_times(&mut core, *id, *side, carried);
                &carried.bytes[..]
            }
            None => &bytes[..n],
        };
        // The bytes are cut into up to three pieces, at random places.
        let mut from = 0;
        for last in [false, false, true] {
            let to = if last { sent.len() } else { from + core.rng.below((sent.len() - from) as u64 + 1) as usize };
            let to = if core.rng.coin() { sent.len() } else { to };
            if to > from {
                core.queue(*id, *side, Piece::Bytes(sent[from..to].to_vec()), &config.net_ns);
                from = to;
            }
        }
        if core.rng.one_in(config.break_one_in) {
            let delay = core.latency(&config.net_ns);
            core.after(delay, Event::Net(NetEvent::Break { conn: *id }));
        }
        Poll::Ready(Ok(n))
    }
}

impl Tx for SimTx {
    type Ends = SimEnds;

    async fn send_with_memory(&mut self, head: Buf) -> (io::Result<bool>, Buf) {
        let End { env, id, side } = &*self.end;
        let passes = env.world.config.passes_memory && arena::passed_bytes() > 0;
        if passes && let Some(conn) = env.world.core.borrow_mut().conns.get_mut(id) {
            conn.passed[*side] = true;
        }
        let (sent, head, _) = self.send(head, None).await;
        (sent.map(|()| passes), head)
    }

    fn ends(&self) -> SimEnds {
        SimEnds::of(&self.end)
    }

    fn breaker(&self) -> impl Fn() + 'static {
        let end = self.end.clone();
        move || {
            let End { env, id, .. } = &*end;
            env.world.core.borrow_mut().after(0, Event::Net(NetEvent::Break { conn: *id }));
        }
    }

    async fn send(&mut self, head: Buf, payload: Option<Buf>) -> (io::Result<()>, Buf, Option<Buf>) {
        let mut result = self.send_all(&head).await;
        if let (Ok(()), Some(payload)) = (&result, &payload) {
            result = match self.damaged(payload) {
                Some(damaged) => self.send_all(&damaged).await,
                None => self.send_all(payload).await,
            };
        }
        (result, head, payload)
    }
}

/// Receiving half.
pub struct SimRx {
    end: Rc<End>,
}

impl SimRx {
    /// Takes what has arrived, up to the length of `out`.
    fn pull(&self, out: &mut [u8], waker: &Waker) -> Poll<io::Result<usize>> {
        let End { env, id, side } = &*self.end;
        let mut core = env.world.core.borrow_mut();
        let Some(conn) = core.conns.get_mut(id) else { return Poll::Ready(Err(reset())) };
        if !conn.open[*side] {
            return Poll::Ready(Err(reset()));
        }
        let broken = conn.broken;
        let pipe = &mut conn.pipes[1 - *side];
        let n = pipe.arrived.len().min(out.len());
        if n > 0 {
            let (front, back) = pipe.arrived.as_slices();
            let in_front = n.min(front.len());
            out[..in_front].copy_from_slice(&front[..in_front]);
            out[in_front..n].copy_from_slice(&back[..n - in_front]);
            pipe.arrived.drain(..n);
            let sender = pipe.sender.take();
            drop(core);
            if let Some(sender) = sender {
                sender.wake();
            }
            return Poll::Ready(Ok(n));
        }
        if broken {
            return Poll::Ready(Err(reset()));
        }
        if pipe.ended {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        pipe.receiver = Some(waker.clone());
        Poll::Pending
    }
}

impl Rx for SimRx {
    type Memory = SimMemory;

    fn memory(&mut self) -> Option<SimMemory> {
        let End { env, id, side } = &*self.end;
        let core = env.world.core.borrow();
        let conn = core.conns.get(id).filter(|conn| conn.passed[1 - side])?;
        let node = conn.nodes[1 - side];
        Some(SimMemory::of(env, node, core.nodes[node].life))
    }

    async fn recv_exact(&mut self, mut buf: Buf) -> IoBuf<()> {
        let mut filled = 0;
        while filled < buf.len() {
            match poll_fn(|cx| self.pull(&mut buf[filled..], cx.waker())).await {
                Ok(n) => filled += n,
                Err(e) => return (Err(e), buf),
            }
        }
        (Ok(()), buf)
    }
}

/// A simulated listener; one task at a time accepts.
pub struct SimListener {
    env: SimEnv,
    addr: String,
    id: u64,
}

impl SimEnv {
    fn check_alive(&self) -> io::Result<()> {
        if self.world.lives(self.node, self.life) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }

    pub(super) async fn bind(&self, text: &str) -> io::Result<SimListener> {
        let addr = Addr::parse(text)?;
        let delay = self.world.core.borrow_mut().latency(&self.world.config.net_ns);
        self.pause(delay).await;
        self.check_alive()?;
        let mut core = self.world.core.borrow_mut();
        let addr = match addr {
            Addr::Tcp(host, 0) => {
                core.ports = core.ports.checked_add(1).ok_or(io::ErrorKind::AddrNotAvailable)?;
                Addr::Tcp(host, core.ports)
            }
            addr => addr,
        }
        .to_string();
        if core.listeners.contains_key(&addr) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, format!("{addr}: another process serves it")));
        }
        let id = core.serial();
        core.note(Kind::Listen, id, self.node as u64);
        let state = ListenerState { id, node: self.node, backlog: VecDeque::new(), waker: None };
        core.listeners.insert(addr.clone(), state);
        Ok(SimListener { env: self.clone(), addr, id })
    }

    pub(super) async fn connect(&self, text: &str) -> io::Result<SimConn> {
        let parsed = Addr::parse(text)?;
        let addr = parsed.to_string();
        let world = &self.world;
        let delay = world.core.borrow_mut().latency(&world.config.net_ns);
        self.pause(delay).await;
        self.check_alive()?;
        let failed = |kind: io::ErrorKind| io::Error::new(kind, format!("{addr}: {kind}"));
        let (end, acceptor, back) = match self.knock(&parsed, &addr) {
            Ok(knocked) => knocked,
            Err(kind) => {
                if kind == io::ErrorKind::TimedOut {
                    self.pause(world.config.connect_timeout_ns).await;
                }
                return Err(failed(kind));
            }
        };
        if let Some(acceptor) = acceptor {
            acceptor.wake();
        }
        self.pause(back).await;
        Ok(SimConn { end, peer: addr, cred: None })
    }

    /// Puts a new connection into the backlog of `addr`; also returns the accepting task and the latency back.
    fn knock(&self, parsed: &Addr, addr: &str) -> Result<(Rc<End>, Option<Waker>, u64), io::ErrorKind> {
        let world = &self.world;
        let mut guard = world.core.borrow_mut();
        let core: &mut Core = &mut guard;
        let Some(node) = core.listeners.get(addr).map(|l| l.node) else {
            // A dead server may or may not have left its socket file behind.
            let gone = matches!(parsed, Addr::Unix(_)) && core.rng.coin();
            return Err(if gone { io::ErrorKind::NotFound } else { io::ErrorKind::ConnectionRefused });
        };
        if world.cut_between(core, [self.node, node]) {
            return Err(io::ErrorKind::TimedOut);
        }
        let id = core.serial();
        core.note(Kind::Dial, id, node as u64);
        let back = core.latency(&world.config.net_ns);
        let listener = core.listeners.get_mut(addr).filter(|l| l.backlog.len() < BACKLOG_MAX);
        let listener = listener.ok_or(io::ErrorKind::ConnectionRefused)?;
        listener.backlog.push_back(id);
        let acceptor = listener.waker.take();
        let state = ConnState {
            nodes: [self.node, node],
            open: [true; 2],
            abandoned: [false; 2],
            passed: [false; 2],
            pipes: Default::default(),
            broken: false,
            stalled: false,
        };
        core.conns.insert(id, state);
        Ok((Rc::new(End { env: self.clone(), id, side: 0 }), acceptor, back))
    }
}

impl Listener for SimListener {
    type Conn = SimConn;

    async fn accept(&self) -> io::Result<SimConn> {
        poll_fn(|cx| {
            let mut core = self.env.world.core.borrow_mut();
            let Some(listener) = core.listeners.get_mut(&self.addr).filter(|l| l.id == self.id) else {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            };
            let Some(id) = listener.backlog.pop_front() else {
                listener.waker = Some(cx.waker().clone());
                return Poll::Pending;
            };
            let from = core.conns.get(&id).map(|c| &core.nodes[c.nodes[0]]);
            let cred = from.map(|node| node.cred.clone()).filter(|_| self.addr.starts_with("unix:"));
            let peer = format!("sim:{}", from.map_or("", |node| &node.name));
            let end = Rc::new(End { env: self.env.clone(), id, side: 1 });
            Poll::Ready(Ok(SimConn { end, peer, cred }))
        })
        .await
    }

    fn local_addr(&self) -> String {
        self.addr.clone()
    }

    fn set_mode(&self, _mode: u32) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let world = &self.env.world;
        let mut guard = world.core.borrow_mut();
        let core: &mut Core = &mut guard;
        if core.listeners.get(&self.addr).is_none_or(|l| l.id != self.id) {
            return;
        }
        let Some(listener) = core.listeners.remove(&self.addr) else { return };
        let wakers: Vec<Waker> =
            listener.backlog.into_iter().flat_map(|id| core.close(id, 1, &world.config.net_ns)).collect();
        drop(guard);
        wakers.into_iter().for_each(Waker::wake);
    }
}
