//! A file that ranks on several nodes have open together.
//!
//! Each node has shared memory of its own and caches its part of the file: the run `r` of pages belongs to node
//! `r mod nodes`, but for pages that have moved to a node that continues to use them (`file/migrate.rs`). A rank does
//! itself what falls to its own node. For the rest it asks the leader of the node that has the pages, where a proxy
//! takes the locks in its name (`server`, `message`). So a page is cached once in the job.
//!
//! Invariants:
//! * A call locks its pages in ascending order over all nodes and releases none before it has locked all, as on one
//!   node. If a page has moved, the request is sent to the node that has it now; the call holds all earlier pages.
//! * The length and the shared pointer of node 0 count. The other nodes know a length that is never too large: between
//!   collective calls a file only grows. A write tells node 0 of a new length before it releases its locks.
//! * With one node, calls go directly to the node's cache, and nothing of this module runs.

use crate::error::{Error, Outcome};
use crate::file::idle::Looker;
use crate::file::migrate::{Handover, Stop};
use crate::file::{CachedFile, Extent, check, pieces};
use crate::stats::NAMES;
use link::Link;
use message::{Kind, MAX_EXTENTS, Message, WHOLE_CALL, receive, send};
use passing::{Passing, SILENCE, ToLeader};
use std::any::Any;
use std::borrow::Cow;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

mod copies;
pub mod handover;
pub mod link;
pub mod message;
pub mod passing;
pub mod server;

/// A step has at most this many bytes, unless one page is larger.
const STEP_BYTES: usize = 16 << 20;

/// How often a call follows a page that keeps moving, before the call gets it. Each time the page has moved once more,
/// so the bound is reached only for a page that no node has.
const CHASES_MAX: u32 = 1000;

/// After this many seconds of silence a connection is probed; it is given up after three probes.
const SILENCE_S: libc::c_int = 10;

/// How long a rank tries to reach a leader.
const CONNECT: Duration = Duration::from_secs(20);

/// The ranks of all nodes, from the view of one of them.
pub struct Team {
    local: CachedFile,
    node: usize,
    /// Connection to the leader of each node; none to our own.
    peers: Vec<Option<Box<dyn Link>>>,
    /// The value that serves the other nodes here until it is dropped: a `Server` or a `Dispatcher`.
    server: Option<Box<dyn Any + Send>>,
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

impl Step {
    /// The bytes of the step from the memory of the request.
    fn gather<'a>(&self, memory: &'a [u8]) -> Cow<'a, [u8]> {
        match self.memory.as_slice() {
            [one] => Cow::Borrowed(&memory[one.clone()]),
            many => many.iter().flat_map(|range| memory[range.clone()].iter().copied()).collect(),
        }
    }

    /// Copies the first bytes of the step to their places in the memory of the request.
    fn scatter(&self, mut data: &[u8], memory: &mut [u8]) {
        for range in &self.memory {
            let (part, rest) = data.split_at(range.len().min(data.len()));
            memory[range.start..range.start + part.len()].copy_from_slice(part);
            data = rest;
        }
    }
}

/// The content of a call: ranges, memory, and whether it reaches beyond the end of the file as this node knows it.
enum Request<'a> {
    Write(&'a [Extent], &'a [u8], bool),
    Read(&'a [Extent], &'a mut [u8], bool),
}

impl<'a> Request<'a> {
    fn reads(&self) -> bool {
        matches!(self, Request::Read(..))
    }

    fn extents(&self) -> &'a [Extent] {
        match self {
            Request::Write(extents, ..) | Request::Read(extents, ..) => extents,
        }
    }

    /// Returns whether a node that has all of its pages can execute the call without the other nodes.
    fn can_be_alone(&self, node: usize) -> bool {
        match self {
            Request::Write(.., beyond) => !beyond || node == 0,
            Request::Read(.., beyond) => !beyond,
        }
    }
}

/// The end of the last range that is not empty.
fn end_of(extents: &[Extent]) -> u64 {
    extents.iter().filter(|e| e.length > 0).map(|e| e.offset + e.length).max().unwrap_or(0)
}

impl Team {
    /// A team that has only one node at first.
    pub fn new(local: CachedFile) -> Team {
        Team { local, node: 0, peers: Vec::from([None]), server: None, looker: None, broken: None }
    }

    /// Serves the ranks of other nodes from now on, as leader, by what waits for them when it is dropped.
    pub fn serve(&mut self, server: impl Any + Send) {
        self.server = Some(Box::new(server));
    }

    /// From now on writes out idle pages, as the rank of the node that does so.
    pub fn look(&mut self, looker: Looker) {
        self.looker = Some(looker);
    }

    /// Shows the counters to outside observers; at the end of a call.
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
    /// at the first one that cannot be reached, so an unreachable node costs the time limit once; returns which it was.
    /// `references`: a page moves to another node after this many references in a row by that node; with 0 no page
    /// moves.
    pub fn connect(
        &mut self,
        node: usize,
        leaders: &[(String, u16, u32, u64)],
        references: u32,
    ) -> Result<(), (usize, Error)> {
        let mut links: Vec<Option<Box<dyn Link>>> = Vec::with_capacity(leaders.len());
        for (index, (host, port, rank, nonce)) in leaders.iter().enumerate() {
            let numbers = (u64::from(*rank), *nonce);
            let link = (index != node).then(|| greet(host, *port, numbers, node)).transpose();
            links.push(link.map_err(|error| (index, error))?.map(|stream| Box::new(stream) as Box<dyn Link>));
        }
        self.join(node, links, references);
        Ok(())
    }

    /// Works as `connect`, over messages of a library: `leaders` has the rank of each leader there, our proxy rank and
    /// nonce.
    pub fn connect_by_messages(
        &mut self,
        node: usize,
        leaders: &[(i32, u32, u64)],
        references: u32,
        passing: &Arc<dyn Passing>,
    ) -> Result<(), (usize, Error)> {
        let place = (node as u64, u64::from(self.local.memory().rank()));
        let mut links: Vec<Option<Box<dyn Link>>> = Vec::with_capacity(leaders.len());
        for (index, (leader, rank, nonce)) in leaders.iter().enumerate() {
            let greet = || ToLeader::greet(passing.clone(), *leader, (u64::from(*rank), *nonce), place, SILENCE);
            let link = (index != node).then(greet).transpose().map_err(|error| (index, error))?;
            links.push(link.map(|link| Box::new(link) as Box<dyn Link>));
        }
        self.join(node, links, references);
        Ok(())
    }

    /// Works as `connect`, over existing connections: one to the leader of each node, except our own.
    pub fn join(&mut self, node: usize, links: Vec<Option<Box<dyn Link>>>, references: u32) {
        self.local.join_nodes(node, links.len(), references);
        self.node = node;
        self.peers = links;
    }

    /// Busy nodes of this job give pages to those that have less to do, or not; as for `join_nodes`.
    pub fn balance(&self, least: u32) {
        self.local.balance(least);
    }

    /// The cache of this node.
    pub fn local(&mut self) -> &mut CachedFile {
        &mut self.local
    }

    fn ask(&mut self, node: usize, kind: Kind, number: u64, extents: &[Extent], data: &[u8]) -> Outcome<Message> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let Some(Some(link)) = self.peers.get_mut(node) else {
            return Err(Error::Refused("no connection to this node"));
        };
        self.local.count_asked();
        let load = if matches!(kind, Kind::Read | Kind::Write) { self.local.load().into() } else { 0 };
        let answer = link.send(kind, (number, load), extents, data).and_then(|()| link.receive());
        match answer {
            Ok(message) if message.number == 0 => Ok(message),
            Ok(message) => Err(Error::Os { doing: "ask another node", errno: message.number as i32 }),
            Err(error) => {
                self.broken = Some(error);
                Err(error)
            }
        }
    }

    /// Sends a request to all other nodes.
    fn ask_all(&mut self, kind: Kind, number: u64) -> Outcome {
        let others: Vec<usize> = (0..self.peers.len()).filter(|n| *n != self.node).collect();
        others.into_iter().try_for_each(|node| self.ask(node, kind, number, &[], &[]).map(|_| ()))
    }

    /// Divides the remaining part of a request, after its first `done` bytes, into steps in ascending order. Each step
    /// is sent to the node that has the pages, as far as this node knows, and no page is in two steps.
    fn steps(&self, request: &Request<'_>, limit: u64, done: u64) -> Vec<Step> {
        let page_bytes = u64::from(self.local.memory().geometry().page_bytes);
        let mut steps: Vec<Step> = Vec::new();
        let (mut last_page, mut node) = (None, 0);
        for piece in pieces(request.extents(), page_bytes, limit).skip_while(|piece| (piece.memory as u64) < done) {
            if last_page != Some(piece.page) {
                let copied = request.reads() && self.local.may_have_copy(piece.page);
                node = if copied { self.node } else { self.local.node_of(piece.page) };
            }
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

    /// Ends a call on all nodes that it reached.
    fn release(&mut self, reached: &[bool]) {
        self.local.release();
        for (peer, reached) in self.peers.iter_mut().zip(reached) {
            if *reached
                && let Some(link) = peer
                && let Err(error) = link.send(Kind::Release, (0, 0), &[], &[])
            {
                self.broken = Some(error);
            }
        }
    }

    /// Does the steps of a request, again from the step at which a page had moved. `reached` tells which nodes hold
    /// locks for it, unless the reply is `true`: then another node did all of it and has released the locks.
    fn all_steps(&mut self, request: &mut Request<'_>, limit: u64, reached: &mut [bool]) -> Outcome<(u64, bool)> {
        let (mut done, mut chases) = (0, 0);
        'moved: loop {
            let steps = self.steps(request, limit, done);
            // A part that another node can execute without other nodes takes one message there and one back, and its
            // locks are not held meanwhile.
            let alone = self.elsewhere(&steps).filter(|node| done == 0 && request.can_be_alone(*node)).is_some();
            for step in &steps {
                reached[step.node] = true;
                let (here, went_on) = self.step(step, alone, request)?;
                done += here;
                if !went_on {
                    chases = if here > 0 { 0 } else { chases + 1 };
                    if chases > CHASES_MAX {
                        return Err(Error::Os { doing: "find the node of a page", errno: libc::EIO });
                    }
                    continue 'moved;
                }
            }
            return Ok((done, alone));
        }
    }

    /// Executes one step; returns how many bytes were done, and whether the whole step was.
    fn step(&mut self, step: &Step, alone: bool, request: &mut Request<'_>) -> Outcome<(u64, bool)> {
        let all = step.bytes as u64;
        if step.node == self.node {
            let done = match request {
                Request::Write(_, memory, _) => {
                    let done = self.local.write_held(&step.extents, &step.gather(memory))?;
                    if done < all {
                        let stop = self.local.why_it_stopped(&step.extents, done)?;
                        self.recall(step.node, &stop)?;
                    }
                    done
                }
                Request::Read(_, memory, _) => match step.memory.as_slice() {
                    [one] => self.local.read_held(&step.extents, &mut memory[one.clone()])?,
                    _ => {
                        let mut data = vec![0; step.bytes];
                        let done = self.local.read_held(&step.extents, &mut data)?;
                        step.scatter(&data[..done as usize], memory);
                        done
                    }
                },
            };
            return Ok((done, done == all));
        }
        let strange = Error::Os { doing: "understand another node", errno: libc::EPROTO };
        let number = if alone { WHOLE_CALL } else { 0 };
        let answer = match request {
            Request::Write(_, memory, _) => {
                self.ask(step.node, Kind::Write, number, &step.extents, &step.gather(memory))?
            }
            Request::Read(..) => self.ask(step.node, Kind::Read, number, &step.extents, &[])?,
        };
        let done = answer.second;
        let (mut stop, mut extents, mut pages) = (None, answer.extents.as_slice(), answer.data.as_slice());
        if let Request::Read(_, memory, _) = request {
            let length = usize::try_from(done).map_err(|_| strange)?;
            let (data, rest) = answer.data.split_at_checked(length).ok_or(strange)?;
            step.scatter(data, memory);
            pages = rest;
        }
        if done < all {
            let (why, rest) = Stop::decode(extents).ok_or(strange)?;
            extents = rest;
            stop = Some(why);
        }
        if done > all {
            return Err(strange);
        }
        if !extents.is_empty() {
            self.take_over(step.node, &handover::decode(extents, pages)?, !alone || done < all)?;
        }
        match stop {
            Some(stop) if stop.copies != 0 => self.recall(step.node, &stop)?,
            Some(stop) => self.local.learn(stop.page, stop.place)?,
            None => {}
        }
        Ok((done, done == all))
    }

    /// Takes over pages that another node hands over, as far as there is space, and reports to that node which ones.
    fn take_over(&mut self, node: usize, pages: &[Handover], keep: bool) -> Outcome {
        let mut taken = Vec::new();
        for page in pages {
            // A page that cannot be taken over now is declined: nothing is lost, since the page stays where it is.
            if self.local.take_over(page, keep).unwrap_or(false) {
                taken.push(Extent { offset: page.page, length: 0 });
            }
        }
        let Some(Some(link)) = self.peers.get_mut(node) else { return Ok(()) };
        let sent = link.send(Kind::Taken, (0, 0), &taken, &[]);
        self.broken = self.broken.or(sent.err());
        sent
    }

    /// Writes the memory to the ranges, as one atomic step for all ranks.
    pub fn write(&mut self, extents: &[Extent], memory: &[u8]) -> Outcome<u64> {
        if self.peers.len() == 1 {
            return self.local.write(extents, memory);
        }
        let total = check(extents, memory.len())?;
        let wanted = end_of(extents);
        // A longer file concerns node 0, so only node 0 can execute such a write without other nodes.
        let grows = wanted > self.local.size();
        let mut reached = vec![false; self.peers.len()];
        let result = self.all_steps(&mut Request::Write(extents, memory, grows), u64::MAX, &mut reached);
        if let Ok((_, true)) = result {
            self.local.grow(wanted);
            self.local.count_call(None, Some(total));
            return Ok(total);
        }
        let mut result = result.map(|_| ());
        if result.is_ok() && wanted > self.local.size() {
            if self.node == 0 {
                self.local.grow(wanted);
                self.local.commit();
            } else {
                result = self.ask(0, Kind::Grow, wanted, &[], &[]).map(|_| ());
                self.local.grow(wanted);
            }
        } else if result.is_ok() {
            self.local.commit();
        }
        self.release(&reached);
        result?;
        self.local.count_call(None, Some(total));
        Ok(total)
    }

    /// Reads the ranges into the memory as one step that is atomic for all ranks; stops at the end of the file.
    pub fn read(&mut self, extents: &[Extent], memory: &mut [u8]) -> Outcome<u64> {
        if self.peers.len() == 1 {
            return self.local.read(extents, memory);
        }
        check(extents, memory.len())?;
        let wanted = end_of(extents);
        loop {
            let size = if wanted <= self.local.size() { self.local.size() } else { self.size()? };
            let mut reached = vec![false; self.peers.len()];
            let result = self.all_steps(&mut Request::Read(extents, memory, wanted > size), size, &mut reached);
            if let Ok((done, true)) = result {
                self.local.count_call(Some(done), None);
                return Ok(done);
            }
            let mut result = result.map(|(done, _)| done);
            // Every lock is held here: a write that made the file longer meanwhile may be in some of the pages.
            let mut grown = false;
            if result.is_ok() && wanted > size {
                match self.size() {
                    Ok(now) => grown = now > size,
                    Err(error) => result = Err(error),
                }
            } else if result.is_ok() {
                self.local.commit();
            }
            self.release(&reached);
            let done = result?;
            if !grown {
                self.local.count_call(Some(done), None);
                return Ok(done);
            }
        }
    }

    /// The length of the file.
    pub fn size(&mut self) -> Outcome<u64> {
        if self.node == 0 {
            self.local.commit();
            return Ok(self.local.size());
        }
        let size = self.ask(0, Kind::Size, 0, &[], &[])?.second;
        self.local.grow(size);
        Ok(size)
    }

    /// Adds to the shared pointer and returns its previous value.
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

    /// Writes the dirty bytes of all ranks on all nodes, without the cooperation of the other ranks; with `stable` it
    /// also makes them stable and drops clean pages.
    pub fn settle_alone(&mut self, stable: bool) -> Outcome {
        if self.peers.len() == 1 {
            return self.local.settle_alone(stable);
        }
        // A page that moved from a later node to an earlier one in the order would be left out. So no page moves
        // meanwhile; the first round waits for pages that were moving, and the second one writes their contents.
        self.local.keep_still(true);
        let mut result = self.ask_all(Kind::Still, 1);
        for _ in 0..2 {
            let own = self.local.settle_alone(stable);
            result = result.and(self.ask_all(Kind::Settle, u64::from(stable)).and(own));
        }
        self.local.keep_still(false);
        result.and(self.ask_all(Kind::Still, 0))
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

    /// The counters of this rank, with those of its proxies, at the end of the rank: nothing is written in the
    /// background any more.
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

    /// Leaves the other nodes; after this no request can be sent to them.
    pub fn part(&mut self) {
        self.broken = self.broken.or(Some(Error::Refused("the rank has taken leave of the other nodes")));
        for mut link in self.peers.iter_mut().filter_map(Option::take) {
            let _ = link.send(Kind::Bye, (0, 0), &[], &[]);
        }
    }

    /// Waits until the ranks of other nodes have taken leave, as leader.
    pub fn see_off(&mut self) {
        self.server = None;
    }

    /// Leaves the file in order. A leader waits until the ranks of other nodes have left, too.
    pub fn leave(mut self) {
        self.looker = None;
        self.part();
        if self.local.memory().rank() == 0 {
            self.local.leave_group();
        }
        self.local.leave();
        self.server = None;
    }
}

/// A connection with a leader that has taken us.
fn greet(host: &str, port: u16, rank_and_nonce: (u64, u64), node: usize) -> Outcome<TcpStream> {
    let mut stream = reach(host, port)?;
    prepare(&stream)?;
    let ours = [Extent { offset: node as u64, length: 0 }];
    send(&mut stream, Kind::Hello, rank_and_nonce, &ours, &[])?;
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
