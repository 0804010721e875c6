//! A file that ranks on several nodes have open together.
//!
//! Each node has shared memory of its own and caches its part of the file: the run `r` of pages belongs to node
//! `r mod nodes`. A rank does itself what falls to its own node. For the rest it asks the leader of the node that has
//! the pages, where a proxy takes the locks in its name (`server`, `message`). So a page is cached once in the job.
//!
//! Invariants:
//! * A call takes its pages in ascending order over all nodes and releases none before it has all, as on one node.
//! * The length and the shared pointer of node 0 count. The other nodes know a length that is never too large: between
//!   collective calls a file only grows. A write tells node 0 of a new length before it releases its locks.
//! * With one node nothing of this runs: calls go to the node's cache as they are.

use crate::error::{Error, Outcome};
use crate::file::idle::Looker;
use crate::file::{CachedFile, Extent, check, pieces};
use crate::stats::NAMES;
use message::{Kind, MAX_EXTENTS, Message, WHOLE_CALL, receive, send};
use server::Server;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::time::Duration;

pub mod message;
pub mod server;

/// So many bytes go into one step at most, unless one page is larger.
const STEP_BYTES: usize = 16 << 20;

/// After so many seconds of silence a connection is tried, and given up after three tries.
const SILENCE_S: libc::c_int = 10;

/// How long a rank tries to reach a leader.
const CONNECT: Duration = Duration::from_secs(20);

/// The ranks of all nodes, as one of them sees them.
pub struct Team {
    local: CachedFile,
    node: usize,
    /// Connection to the leader of each node; none to our own.
    peers: Vec<Option<TcpStream>>,
    server: Option<Server>,
    looker: Option<Looker>,
    /// A connection broke; every later call fails.
    broken: Option<Error>,
}

/// A part of a call that falls to one node.
struct Step {
    node: usize,
    extents: Vec<Extent>,
    memory: Vec<std::ops::Range<usize>>,
    bytes: usize,
}

impl Team {
    /// A team of one node, for now.
    pub fn new(local: CachedFile) -> Team {
        Team { local, node: 0, peers: vec![None], server: None, looker: None, broken: None }
    }

    /// Serves the ranks of other nodes from now on, as leader.
    pub fn serve(&mut self, server: Server) {
        self.server = Some(server);
    }

    /// Writes out what is idle from now on, as the rank of the node that does so.
    pub fn look(&mut self, looker: Looker) {
        self.looker = Some(looker);
    }

    /// Shows the counters to whoever looks from outside; at the end of a call.
    pub fn publish(&self) {
        self.local.memory().publish(&self.own_stats());
    }

    /// The counters of this rank on its node.
    fn own_stats(&self) -> [u64; NAMES.len()] {
        let mut all = self.local.stats().values();
        for (sum, value) in all.iter_mut().zip(self.looker.iter().flat_map(|looker| looker.stats().values())) {
            *sum += value;
        }
        all
    }

    /// Connects with the leaders: `leaders` has host, port, our proxy rank there and nonce of each node in turn. Ends
    /// at the first one that cannot be reached, so an unreachable node costs the time limit once; tells which it was.
    pub fn connect(&mut self, node: usize, leaders: &[(String, u16, u32, u64)]) -> Result<(), (usize, Error)> {
        self.node = node;
        self.peers = Vec::with_capacity(leaders.len());
        for (index, (host, port, rank, nonce)) in leaders.iter().enumerate() {
            if index == node {
                self.peers.push(None);
                continue;
            }
            let stream = greet(host, *port, (u64::from(*rank), *nonce)).map_err(|error| (index, error))?;
            self.peers.push(Some(stream));
        }
        Ok(())
    }

    /// What the node itself caches.
    pub fn local(&mut self) -> &mut CachedFile {
        &mut self.local
    }

    fn ask(&mut self, node: usize, kind: Kind, number: u64, extents: &[Extent], data: &[u8]) -> Outcome<Message> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let Some(Some(stream)) = self.peers.get_mut(node) else {
            return Err(Error::Refused("no connection to this node"));
        };
        self.local.count_asked();
        let answer = send(stream, kind, (number, 0), extents, data).and_then(|()| receive(stream));
        match answer {
            Ok(message) if message.number == 0 => Ok(message),
            Ok(message) => Err(Error::Os { doing: "ask another node", errno: message.number as i32 }),
            Err(error) => {
                self.broken = Some(error);
                Err(error)
            }
        }
    }

    /// Asks all other nodes.
    fn ask_all(&mut self, kind: Kind, number: u64) -> Outcome {
        let others: Vec<usize> = (0..self.peers.len()).filter(|n| *n != self.node).collect();
        others.into_iter().try_for_each(|node| self.ask(node, kind, number, &[], &[]).map(|_| ()))
    }

    /// Cuts a request into steps, each for one node, ascending; no page is in two steps.
    fn steps(&self, extents: &[Extent], limit: u64) -> Vec<Step> {
        let page_bytes = u64::from(self.local.memory().geometry().page_bytes);
        let run_pages = (self.local.settings().run_bytes / page_bytes).max(1);
        let nodes = self.peers.len() as u64;
        let mut steps: Vec<Step> = Vec::new();
        let mut last_page = None;
        for piece in pieces(extents, page_bytes, limit) {
            let node = (piece.page / run_pages % nodes) as usize;
            let full = steps.last().is_none_or(|s| {
                s.node != node
                    || (last_page != Some(piece.page)
                        && (s.bytes + piece.length() > STEP_BYTES || s.extents.len() + 1 >= MAX_EXTENTS / 2))
            });
            if full {
                steps.push(Step { node, extents: Vec::new(), memory: Vec::new(), bytes: 0 });
            }
            last_page = Some(piece.page);
            let Some(step) = steps.last_mut() else { continue };
            let offset = piece.page * page_bytes + u64::from(piece.start);
            let length = piece.length() as u64;
            match (step.extents.last_mut(), step.memory.last_mut()) {
                (Some(e), Some(m)) if e.offset + e.length == offset && m.end == piece.memory => {
                    e.length += length;
                    m.end += piece.length();
                }
                _ => {
                    step.extents.push(Extent { offset, length });
                    step.memory.push(piece.memory_range());
                }
            }
            step.bytes += piece.length();
        }
        steps
    }

    /// The other node that has all that a call needs.
    fn elsewhere(&self, steps: &[Step]) -> Option<usize> {
        match steps {
            [one] if one.node != self.node => Some(one.node),
            _ => None,
        }
    }

    /// Ends a call on all nodes that its steps reached.
    fn release(&mut self, steps: &[Step]) {
        self.local.release();
        for node in 0..self.peers.len() {
            if steps.iter().any(|s| s.node == node)
                && let Some(stream) = &mut self.peers[node]
                && let Err(error) = send(stream, Kind::Release, (0, 0), &[], &[])
            {
                self.broken = Some(error);
            }
        }
    }

    /// Writes the memory to the ranges, as one atomic step for all ranks.
    pub fn write(&mut self, extents: &[Extent], memory: &[u8]) -> Outcome<u64> {
        if self.peers.len() == 1 {
            return self.local.write(extents, memory);
        }
        let total = check(extents, memory.len())?;
        let steps = self.steps(extents, u64::MAX);
        // What another node can do alone takes one message there and one back, and its locks are not held meanwhile.
        // A longer file concerns node 0, so only that can do such a write alone.
        let wanted = extents.iter().filter(|e| e.length > 0).map(|e| e.offset + e.length).max().unwrap_or(0);
        let alone = self.elsewhere(&steps).filter(|node| *node == 0 || wanted <= self.local.size());
        let number = if alone.is_some() { WHOLE_CALL } else { 0 };
        let mut result = Ok(());
        let mut end = 0;
        for step in &steps {
            let gathered: Vec<u8>;
            let bytes = match step.memory.as_slice() {
                [one] => &memory[one.clone()],
                many => {
                    gathered = many.iter().flat_map(|range| memory[range.clone()].iter().copied()).collect();
                    &gathered
                }
            };
            result = if step.node == self.node {
                self.local.write_held(&step.extents, bytes)
            } else {
                self.ask(step.node, Kind::Write, number, &step.extents, bytes).map(|_| ())
            };
            if result.is_err() {
                break;
            }
            end = step.extents.last().map_or(end, |e| e.offset + e.length);
        }
        if alone.is_some() {
            self.local.grow(end);
            result?;
            self.local.count_call(None, Some(total));
            return Ok(total);
        }
        if end > self.local.size() {
            let grown = if self.node == 0 { Ok(()) } else { self.ask(0, Kind::Grow, end, &[], &[]).map(|_| ()) };
            self.local.grow(end);
            result = result.and(grown);
        }
        self.release(&steps);
        result?;
        self.local.count_call(None, Some(total));
        Ok(total)
    }

    /// Reads the ranges into the memory, as one atomic step for all ranks; ends at the end of the file.
    pub fn read(&mut self, extents: &[Extent], memory: &mut [u8]) -> Outcome<u64> {
        if self.peers.len() == 1 {
            return self.local.read(extents, memory);
        }
        check(extents, memory.len())?;
        let wanted = extents.iter().filter(|e| e.length > 0).map(|e| e.offset + e.length).max().unwrap_or(0);
        loop {
            let size = if wanted <= self.local.size() { self.local.size() } else { self.size()? };
            let steps = self.steps(extents, size);
            let alone = self.elsewhere(&steps).filter(|_| wanted <= size);
            let number = if alone.is_some() { WHOLE_CALL } else { 0 };
            let mut result = steps.iter().try_for_each(|step| self.read_step(step, number, memory));
            // Every lock is held here: a write that made the file longer meanwhile may be in some of the pages.
            let mut grown = false;
            if wanted > size && result.is_ok() {
                match self.size() {
                    Ok(now) => grown = now > size,
                    Err(error) => result = Err(error),
                }
            }
            if alone.is_none() {
                self.release(&steps);
            }
            result?;
            if !grown {
                let done = steps.iter().map(|s| s.bytes as u64).sum();
                self.local.count_call(Some(done), None);
                return Ok(done);
            }
        }
    }

    fn read_step(&mut self, step: &Step, number: u64, memory: &mut [u8]) -> Outcome {
        if step.node == self.node && step.memory.len() == 1 {
            return self.local.read_held(&step.extents, &mut memory[step.memory[0].clone()]);
        }
        let data = if step.node == self.node {
            let mut data = vec![0; step.bytes];
            self.local.read_held(&step.extents, &mut data)?;
            data
        } else {
            self.ask(step.node, Kind::Read, number, &step.extents, &[])?.data
        };
        if data.len() != step.bytes {
            return Err(Error::Os { doing: "understand another node", errno: libc::EPROTO });
        }
        let mut at = 0;
        for range in &step.memory {
            memory[range.clone()].copy_from_slice(&data[at..at + range.len()]);
            at += range.len();
        }
        Ok(())
    }

    /// The length of the file.
    pub fn size(&mut self) -> Outcome<u64> {
        if self.node == 0 {
            return Ok(self.local.size());
        }
        let size = self.ask(0, Kind::Size, 0, &[], &[])?.second;
        self.local.grow(size);
        Ok(size)
    }

    /// Adds to the shared pointer and returns what it was.
    pub fn pointer_add(&mut self, add: u64) -> Outcome<u64> {
        if self.node == 0 {
            return Ok(self.local.pointer_add(add));
        }
        Ok(self.ask(0, Kind::PointerAdd, add, &[], &[])?.second)
    }

    /// Sets the shared pointer.
    pub fn pointer_set(&mut self, value: u64) -> Outcome {
        if self.node == 0 {
            self.local.pointer_set(value);
            return Ok(());
        }
        self.ask(0, Kind::PointerSet, value, &[], &[]).map(|_| ())
    }

    /// The shared pointer.
    pub fn pointer(&mut self) -> Outcome<u64> {
        if self.node == 0 {
            return Ok(self.local.pointer());
        }
        Ok(self.ask(0, Kind::Pointer, 0, &[], &[])?.second)
    }

    /// Drops the clean pages of this rank, on all nodes.
    pub fn drop_clean(&mut self) -> Outcome {
        self.local.drop_clean()?;
        self.ask_all(Kind::DropClean, 0)
    }

    /// Drops all pages of this rank, on all nodes.
    pub fn discard(&mut self) -> Outcome {
        self.local.discard()?;
        self.ask_all(Kind::Discard, 0)
    }

    /// Writes the dirty bytes of all ranks on all nodes, without the other ranks; `stable`: and makes them stable and
    /// drops what is clean.
    pub fn settle_alone(&mut self, stable: bool) -> Outcome {
        let own = self.local.settle_alone(stable);
        self.ask_all(Kind::Settle, u64::from(stable)).and(own)
    }

    /// Sets the length, without the other ranks, which make no call on the file meanwhile.
    pub fn set_size_alone(&mut self, size: u64) -> Outcome {
        self.settle_alone(true)?;
        self.local.set_size(size)?;
        self.ask_all(Kind::AgreeSize, size)
    }

    /// Allocates the space of the first `size` bytes, without the other ranks.
    pub fn allocate_alone(&mut self, size: u64) -> Outcome {
        self.local.allocate(size)?;
        if self.node == 0 { Ok(()) } else { self.ask(0, Kind::Grow, size, &[], &[]).map(|_| ()) }
    }

    /// The counters of this rank, with those of its proxies, before it leaves: nothing is written in the background
    /// any more.
    pub fn stats(&mut self) -> [u64; NAMES.len()] {
        self.looker.iter_mut().for_each(Looker::stop);
        let mut all = self.own_stats();
        for node in (0..self.peers.len()).filter(|n| *n != self.node).collect::<Vec<_>>() {
            let Ok(answer) = self.ask(node, Kind::Stats, 0, &[], &[]) else { continue };
            for (sum, value) in all.iter_mut().zip(answer.data.chunks_exact(8)) {
                *sum += u64::from_le_bytes(value.try_into().unwrap_or_default());
            }
        }
        all
    }

    /// Leaves the file in order. A leader waits until the ranks of other nodes have left, too.
    pub fn leave(mut self) {
        self.looker = None;
        for stream in self.peers.iter_mut().flatten() {
            let _ = send(stream, Kind::Bye, (0, 0), &[], &[]);
        }
        self.peers.clear();
        if self.local.memory().rank() == 0 {
            self.local.leave_group();
        }
        self.local.leave();
        self.server = None;
    }
}

/// A connection with a leader that has taken us.
fn greet(host: &str, port: u16, rank_and_nonce: (u64, u64)) -> Outcome<TcpStream> {
    let mut stream = reach(host, port)?;
    prepare(&stream)?;
    send(&mut stream, Kind::Hello, rank_and_nonce, &[], &[])?;
    reply(&mut stream)?;
    Ok(stream)
}

fn reply(stream: &mut TcpStream) -> Outcome<Message> {
    let message = receive(stream)?;
    if message.number == 0 {
        Ok(message)
    } else {
        Err(Error::Os { doing: "ask another node", errno: message.number as i32 })
    }
}

fn reach(host: &str, port: u16) -> Outcome<TcpStream> {
    let failed = |e: std::io::Error| Error::Os {
        doing: "reach another node",
        errno: e.raw_os_error().unwrap_or(libc::EHOSTUNREACH),
    };
    let mut last = Error::Os { doing: "reach another node", errno: libc::EHOSTUNREACH };
    for address in (host, port).to_socket_addrs().map_err(failed)? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = failed(error),
        }
    }
    Err(last)
}

/// No delay, and a peer that vanished is noticed.
fn prepare(stream: &TcpStream) -> Outcome {
    let option = |level: libc::c_int, name: libc::c_int, value: libc::c_int| {
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the value lives through the call and has the length that is given.
        unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, (&raw const value).cast(), size) }
    };
    let done = [
        option(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
        option(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, SILENCE_S),
        option(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, SILENCE_S),
        option(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
        option(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, SILENCE_S * 4000),
    ];
    if done.iter().all(|r| *r == 0) { Ok(()) } else { Err(Error::last_os("options of a connection")) }
}
