//! One server, several clients, a network that reorders everything, and data to see incoherence by.
//!
//! Each step is one message delivered, one I/O begun or ended, or one direct request ended. After every step no two
//! holders may conflict, neither in the server's table nor in the clients' tables; every read must see what was written last.

use super::{PlantedBug, object};
use crate::client::{CacheLimits, CallbackPlan, Granted, Hit, LockAction, LockCache, LockRef, RequestId};
use crate::mode::{GroupId, Growth, LockId, Mode, Owner, conflict};
use crate::server::{Action, LockLimits, LockRequest, LockSpace};
use amphi_types::{ByteRange, ObjectId, SessionId};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Bytes of each object.
pub(super) const BYTES: u64 = 6;

/// One I/O of a client's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Op {
    pub object: u32,
    pub mode: Mode,
    pub range: ByteRange,
    pub direct: bool,
    pub exact: bool,
    /// Under the lock of this group, which is taken before if the client does not hold it, and given back afterwards if the
    /// flag says so. Members of a group touch bytes of their own.
    pub group: Option<(u64, bool)>,
    /// Written value, unique in a world.
    pub value: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Enqueue { client: usize, request: u64, object: ObjectId, mode: Mode, range: ByteRange, exact: bool },
    Group { client: usize, object: ObjectId, group: u64 },
    Direct { client: usize },
    Flush { client: usize, token: u64, pinned: bool, id: LockId, object: ObjectId, bytes: Vec<(u64, u32)> },
    Cancel { client: usize, ids: Vec<LockId> },
    Granted { client: usize, request: u64, id: LockId, range: ByteRange },
    Joined { client: usize, id: LockId, object: ObjectId, group: u64 },
    Left { client: usize },
    Callback { client: usize, id: LockId, object: ObjectId },
    Flushed { client: usize, token: u64, pinned: bool, id: LockId },
    DirectDone { client: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Nothing,
    Waiting(Op, u64),
    Joining(Op),
    /// Until the server knows that the group lock is given back: what follows is not done under it.
    Leaving(LockId),
    Running(Op, LockId),
    /// A direct request that waits until none of its bytes is dirty in its own cache.
    Settling(Op),
    Direct(Op),
}

#[derive(Clone)]
struct Client {
    cache: LockCache,
    data: BTreeMap<(ObjectId, u64), (u32, bool)>,
    program: VecDeque<Op>,
    doing: Doing,
    /// The group lock held.
    group: Option<(ObjectId, u64, LockId)>,
    /// Flushes under way, to be sent again after a restart.
    flushing: BTreeMap<u64, Message>,
    next_token: u64,
    /// Flushes that wait, since bytes of theirs are being flushed already.
    deferred: Vec<(LockId, ObjectId, Vec<ByteRange>)>,
}

impl Client {
    /// Sends the dirty bytes of `ranges`, or waits for an earlier flush of the same bytes: two of them could land in
    /// the wrong order.
    fn flush(&mut self, n: usize, id: LockId, object: ObjectId, ranges: Vec<ByteRange>) -> Option<Message> {
        if ranges.iter().any(|&range| self.busy(object, range)) {
            self.deferred.push((id, object, ranges));
            return None;
        }
        Some(self.write_back(n, id, object, &ranges, false))
    }

    /// Whether a byte of the range is being flushed.
    fn busy(&self, object: ObjectId, range: ByteRange) -> bool {
        self.flushing.values().any(|message| {
            matches!(message, Message::Flush { object: other, bytes, .. }
                if *other == object && bytes.iter().any(|&(at, _)| range.contains(&ByteRange::at(at, 1))))
        })
    }

    /// An I/O is done. Gives the group lock back if it was the last under it.
    fn finish(&mut self, op: Op) {
        self.doing = Doing::Nothing;
        if op.group.is_some_and(|(_, last)| last)
            && let Some((_, _, id)) = self.group.take()
        {
            self.cache.give_back(id);
            self.doing = Doing::Leaving(id);
        }
    }

    fn write_back(&mut self, n: usize, id: LockId, object: ObjectId, ranges: &[ByteRange], pinned: bool) -> Message {
        let mut dirty_bytes = Vec::new();
        for key in ranges.iter().flat_map(|&range| bytes(object, range)) {
            if let Some((value, dirty)) = self.data.get_mut(&key)
                && *dirty
            {
                *dirty = false;
                dirty_bytes.push((key.1, *value));
            }
        }
        self.next_token += 1;
        let token = self.next_token;
        let message = Message::Flush { client: n, token, pinned, id, object, bytes: dirty_bytes };
        self.flushing.insert(token, message.clone());
        message
    }

    /// Brings a direct request of a client that caches the same bytes on its way: its own locks do not stand in its way
    /// at the server, so it first writes back what is dirty and forgets what is cached. A dirty byte whose lock is on
    /// its way back is flushed by that.
    fn settle(&mut self, n: usize, now_ns: u64) -> Vec<Message> {
        let Doing::Settling(op) = self.doing else { return Vec::new() };
        let id = object(op.object);
        let mut messages = Vec::new();
        for key in bytes(id, op.range) {
            let byte = ByteRange::at(key.1, 1);
            let dirty = self.data.get(&key).is_some_and(|&(_, dirty)| dirty);
            if dirty
                && !self.busy(id, byte)
                && let Hit::Hit(lock) = self.cache.pin(now_ns, id, Mode::Write, byte)
            {
                messages.push(self.write_back(n, lock.id, id, &[byte], true));
            }
        }
        let dirty = bytes(id, op.range).any(|key| self.data.get(&key).is_some_and(|&(_, dirty)| dirty));
        if messages.is_empty() && !dirty && !self.busy(id, op.range) {
            self.data.retain(|&(of, byte), _| of != id || !op.range.contains(&ByteRange::at(byte, 1)));
            self.doing = Doing::Direct(op);
            messages.push(Message::Direct { client: n });
        }
        messages
    }
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Deliver(usize),
    Begin(usize),
    End(usize),
    EndDirect(usize),
}

#[derive(Clone)]
pub(super) struct World {
    server: LockSpace,
    generation: u16,
    disk: BTreeMap<(ObjectId, u64), u32>,
    truth: BTreeMap<(ObjectId, u64), u32>,
    clients: Vec<Client>,
    network: Vec<Message>,
    /// Requests at the server: what to answer to.
    asked: BTreeMap<LockId, (usize, u64)>,
    /// Direct requests granted, I/O in progress.
    directs: Vec<(LockId, usize)>,
    /// Plants a mistake in the clients: cached data is not dropped.
    pub ignore_drop: bool,
    pub now_ns: u64,
    pub met_early_callback: usize,
    bug: Option<PlantedBug>,
}

fn bytes(object: ObjectId, range: ByteRange) -> impl Iterator<Item = (ObjectId, u64)> {
    (range.start..range.end.min(BYTES)).map(move |byte| (object, byte))
}

impl World {
    pub fn new(programs: &[Vec<Op>], limits: CacheLimits, bug: Option<PlantedBug>) -> World {
        let client = |program: &Vec<Op>| Client {
            cache: LockCache::new(limits),
            data: BTreeMap::new(),
            program: program.iter().copied().collect(),
            doing: Doing::Nothing,
            group: None,
            flushing: BTreeMap::new(),
            next_token: 0,
            deferred: Vec::new(),
        };
        let mut server = LockSpace::new(LockLimits::default(), 1);
        server.planted_bug = bug;
        World {
            server,
            generation: 1,
            disk: BTreeMap::new(),
            truth: BTreeMap::new(),
            clients: programs.iter().map(client).collect(),
            network: Vec::new(),
            asked: BTreeMap::new(),
            directs: Vec::new(),
            ignore_drop: false,
            now_ns: 0,
            met_early_callback: 0,
            bug,
        }
    }

    pub fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = (0..self.network.len()).map(Step::Deliver).collect();
        for (n, client) in self.clients.iter().enumerate() {
            match client.doing {
                Doing::Nothing if !client.program.is_empty() => steps.push(Step::Begin(n)),
                Doing::Running(..) => steps.push(Step::End(n)),
                _ => {}
            }
        }
        steps.extend((0..self.directs.len()).map(Step::EndDirect));
        steps
    }

    /// A state in which nothing can happen: everybody must have got what they asked for.
    pub fn check_end(&self) -> Result<(), String> {
        for (n, client) in self.clients.iter().enumerate() {
            if client.doing != Doing::Nothing || !client.program.is_empty() {
                return Err(format!("deadlock: client {n} is left with {:?}", client.doing));
            }
            if client.cache.seen().iter().any(|seen| seen.stage != 0 || seen.users != 0) {
                return Err(format!("client {n} never gave back {:?}", client.cache.seen()));
            }
            if !client.cache.loose_ends().0.is_empty() {
                return Err(format!("client {n} still remembers an early callback"));
            }
        }
        match self.server.seen().iter().find(|seen| !seen.granted || seen.called) {
            Some(seen) => Err(format!("the server is left with {seen:?}")),
            None => Ok(()),
        }
    }

    pub fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Deliver(n) => {
                let message = self.network.swap_remove(n);
                self.deliver(message)?;
            }
            Step::Begin(n) => self.begin(n),
            Step::End(n) => self.end(n)?,
            Step::EndDirect(n) => {
                let (id, client) = self.directs.swap_remove(n);
                let Doing::Direct(op) = self.clients[client].doing else { return Err("no direct request".into()) };
                self.direct_io(op)?;
                self.server.release(self.now_ns, id);
                self.network.push(Message::DirectDone { client });
            }
        }
        self.serve();
        for n in 0..self.clients.len() {
            self.tend(n);
        }
        self.check()
    }

    fn deliver(&mut self, message: Message) -> Result<(), String> {
        let now_ns = self.now_ns;
        match message {
            Message::Enqueue { client, request, object, mode, range, exact } => {
                let growth = if exact { Growth::Exact } else { Growth::Largest };
                let owner = Owner::Cached(SessionId(client as u64));
                let request_id = self.server.enqueue(now_ns, LockRequest { owner, object, mode, range, growth });
                let id = request_id.map_err(|refusal| refusal.to_string())?;
                self.asked.insert(id, (client, request));
            }
            Message::Group { client, object, group } => {
                let owner = Owner::Group(SessionId(client as u64), GroupId(group));
                let (mode, range, growth) = (Mode::Write, ByteRange::ALL, Growth::Exact);
                let asked = self.server.enqueue(now_ns, LockRequest { owner, object, mode, range, growth });
                let id = asked.map_err(|refusal| refusal.to_string())?;
                self.asked.insert(id, (client, group));
            }
            Message::Joined { client: n, id, object, group } => {
                let client = &mut self.clients[n];
                client.cache.hold_group(now_ns, id, object, GroupId(group));
                client.group = Some((object, group, id));
                let Doing::Joining(op) = client.doing else { return Err("nobody waits".into()) };
                self.start(n, op);
            }
            Message::Direct { client } => {
                let Doing::Direct(op) = self.clients[client].doing else { return Err("no direct request".into()) };
                let (owner, object) = (Owner::Direct(SessionId(client as u64)), object(op.object));
                let request = LockRequest { owner, object, mode: op.mode, range: op.range, growth: Growth::Exact };
                let id = self.server.enqueue(now_ns, request).map_err(|refusal| refusal.to_string())?;
                self.asked.insert(id, (client, 0));
            }
            Message::Flush { client, token, pinned, id, object, bytes } => {
                for (byte, value) in bytes {
                    let session = SessionId(client as u64);
                    if !self.server.holds(session, id, object, Mode::Write, ByteRange::at(byte, 1)) {
                        return Err(format!("client {client} flushes under {id:?}, which it does not hold"));
                    }
                    self.disk.insert((object, byte), value);
                }
                self.network.push(Message::Flushed { client, token, pinned, id });
            }
            Message::Cancel { client, ids } => {
                self.server.cancel(now_ns, SessionId(client as u64), &ids);
                if matches!(self.clients[client].doing, Doing::Leaving(id) if ids.contains(&id)) {
                    self.network.push(Message::Left { client });
                }
            }
            Message::Granted { client: n, request, id, range } => {
                let client = &mut self.clients[n];
                match client.cache.granted(now_ns, RequestId(request), id, range) {
                    Granted::Pinned(lock) => {
                        let Doing::Waiting(op, asked) = client.doing else { return Err("nobody waits".into()) };
                        if asked != request {
                            return Err("an answer to another request".into());
                        }
                        client.doing = Doing::Running(op, lock.id);
                    }
                    Granted::Unwanted => {}
                }
            }
            Message::Left { client } => self.clients[client].doing = Doing::Nothing,
            Message::Callback { client, id, object } => {
                let plan = self.clients[client].cache.callback(now_ns, id, object);
                self.met_early_callback += usize::from(plan == CallbackPlan::BeforeGrant);
            }
            Message::Flushed { client, token, pinned, id } => {
                let n = client;
                let client = &mut self.clients[n];
                client.flushing.remove(&token);
                match pinned {
                    true => client.cache.unpin(LockRef { id }),
                    false => client.cache.flushed(id),
                }
                for (id, object, ranges) in std::mem::take(&mut client.deferred) {
                    let message = client.flush(n, id, object, ranges);
                    self.network.extend(message);
                }
            }
            Message::DirectDone { client: n } => {
                let client = &mut self.clients[n];
                let Doing::Direct(op) = client.doing else { return Err("no direct request".into()) };
                client.finish(op);
            }
        }
        Ok(())
    }

    fn begin(&mut self, n: usize) {
        let client = &mut self.clients[n];
        let Some(op) = client.program.pop_front() else { return };
        let object = object(op.object);
        match (op.group, client.group) {
            (Some((group, _)), None) => {
                client.doing = Doing::Joining(op);
                self.network.push(Message::Group { client: n, object, group });
            }
            (group, held) => {
                assert_eq!(group.map(|(group, _)| (object, group)), held.map(|(object, group, _)| (object, group)));
                self.start(n, op);
            }
        }
    }

    fn start(&mut self, n: usize, op: Op) {
        let client = &mut self.clients[n];
        let id = object(op.object);
        if op.direct {
            client.doing = Doing::Settling(op);
            return;
        }
        client.doing = match client.cache.pin(self.now_ns, id, op.mode, op.range) {
            Hit::Hit(lock) => Doing::Running(op, lock.id),
            Hit::Miss => {
                let RequestId(request) = client.cache.ask(id, op.mode, op.range);
                self.network.push(enqueue(n, request, op));
                Doing::Waiting(op, request)
            }
        };
    }

    fn end(&mut self, n: usize) -> Result<(), String> {
        let client = &mut self.clients[n];
        let Doing::Running(op, id) = client.doing else { return Err("no I/O in progress".into()) };
        for key in bytes(object(op.object), op.range) {
            match op.mode {
                Mode::Write => {
                    client.data.insert(key, (op.value, true));
                    self.truth.insert(key, op.value);
                }
                Mode::Read => {
                    let on_disk = self.disk.get(&key).copied().unwrap_or(0);
                    let (value, _) = *client.data.entry(key).or_insert((on_disk, false));
                    let truth = self.truth.get(&key).copied().unwrap_or(0);
                    if value != truth {
                        return Err(format!("client {n} reads {value} at {key:?}, {truth} was written last"));
                    }
                }
            }
        }
        client.cache.unpin(LockRef { id });
        client.finish(op);
        Ok(())
    }

    fn direct_io(&mut self, op: Op) -> Result<(), String> {
        for key in bytes(object(op.object), op.range) {
            let (on_disk, truth) = (self.disk.get(&key), self.truth.get(&key));
            match op.mode {
                Mode::Read if on_disk != truth => {
                    return Err(format!("a direct read of {key:?} finds {on_disk:?}, {truth:?} was written last"));
                }
                Mode::Read => {}
                Mode::Write => {
                    self.disk.insert(key, op.value);
                    self.truth.insert(key, op.value);
                }
            }
        }
        Ok(())
    }

    fn serve(&mut self) {
        while let Some(action) = self.server.poll_action() {
            match action {
                Action::Granted { id, owner, range, .. } => {
                    let Some((client, request)) = self.asked.remove(&id) else { continue };
                    match owner {
                        Owner::Direct(_) | Owner::Member(..) => self.directs.push((id, client)),
                        Owner::Group(_, GroupId(group)) => {
                            let Doing::Joining(op) = self.clients[client].doing else { continue };
                            self.network.push(Message::Joined { client, id, object: object(op.object), group });
                        }
                        Owner::Cached(_) => self.network.push(Message::Granted { client, request, id, range }),
                    }
                }
                Action::Callback { id, session, object, .. } => {
                    self.network.push(Message::Callback { client: session.0 as usize, id, object });
                }
            }
        }
    }

    fn tend(&mut self, n: usize) {
        let client = &mut self.clients[n];
        client.cache.tick(self.now_ns);
        let messages = client.settle(n, self.now_ns);
        self.network.extend(messages);
        while let Some(action) = client.cache.poll_action() {
            match action {
                LockAction::Flush { id, object, ranges } => {
                    let message = client.flush(n, id, object, ranges);
                    self.network.extend(message);
                }
                LockAction::Drop { object, ranges, .. } => {
                    for key in ranges.iter().flat_map(|&range| bytes(object, range)) {
                        let dropped = if self.ignore_drop { None } else { client.data.remove(&key) };
                        assert!(!dropped.is_some_and(|(_, dirty)| dirty), "dirty data was dropped");
                    }
                }
                LockAction::Cancel { ids } => self.network.push(Message::Cancel { client: n, ids }),
            }
        }
    }

    /// The server process dies and starts again: messages and lock tables are gone, the disk is not. Clients present
    /// their locks first, then send everything unanswered again.
    pub fn restart(&mut self) -> Result<(), String> {
        self.network.clear();
        self.asked.clear();
        self.generation += 1;
        self.server = LockSpace::new(LockLimits::default(), self.generation);
        self.server.planted_bug = self.bug;
        for (n, client) in self.clients.iter_mut().enumerate() {
            for held in client.cache.represent() {
                let session = SessionId(n as u64);
                let owner = held.group.map_or(Owner::Cached(session), |group| Owner::Group(session, group));
                self.server
                    .restore(owner, held.id, held.object, held.mode, held.range)
                    .map_err(|refusal| format!("client {n} presents {held:?}: {refusal}"))?;
            }
            self.network.extend(client.flushing.values().cloned());
            match client.doing {
                Doing::Waiting(op, request) => self.network.push(enqueue(n, request, op)),
                Doing::Joining(op) => {
                    let group = op.group.map_or(0, |(group, _)| group);
                    self.network.push(Message::Group { client: n, object: object(op.object), group });
                }
                Doing::Direct(_) => self.network.push(Message::Direct { client: n }),
                // Given back to the server that is gone.
                Doing::Leaving(id) if client.cache.extent(id).is_none() => client.doing = Doing::Nothing,
                Doing::Nothing | Doing::Running(..) | Doing::Settling(_) | Doing::Leaving(_) => {}
            }
        }
        self.directs.clear();
        self.check()
    }

    fn check(&self) -> Result<(), String> {
        let seen = self.server.seen();
        let granted: Vec<_> = seen.iter().filter(|seen| seen.granted).collect();
        for (i, a) in granted.iter().enumerate() {
            let lock = |seen: &crate::server::inspect::Seen| (seen.owner, seen.mode, seen.range);
            if let Some(b) = granted[..i].iter().find(|b| a.object == b.object && conflict(lock(a), lock(b))) {
                return Err(format!("the server granted both {a:?} and {b:?}"));
            }
        }
        for (n, client) in self.clients.iter().enumerate() {
            for one in client.cache.seen() {
                let lock = |n: usize, seen: &crate::client::inspect::Seen| {
                    let session = SessionId(n as u64);
                    let owner = seen.group.map_or(Owner::Cached(session), |group| Owner::Group(session, group));
                    (owner, seen.mode, seen.range)
                };
                for (m, other) in self.clients[..n].iter().enumerate() {
                    for two in other.cache.seen() {
                        if one.object == two.object && conflict(lock(n, &one), lock(m, &two)) {
                            return Err(format!("clients {n} and {m} hold {one:?} and {two:?}"));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// A number for the state: equal states have equal numbers, whatever order they were reached in.
    pub fn fingerprint(&self) -> u128 {
        let mut network = self.network.clone();
        network.sort();
        let mut directs = self.directs.clone();
        directs.sort();
        let fingerprint = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, &network, &directs, &self.disk, &self.truth, &self.asked).hash(&mut hasher);
            self.server.seen().hash(&mut hasher);
            for client in &self.clients {
                client.cache.seen().hash(&mut hasher);
                client.cache.loose_ends().hash(&mut hasher);
                (&client.data, &client.program, &client.doing, &client.deferred, &client.group).hash(&mut hasher);
            }
            u128::from(hasher.finish())
        };
        (fingerprint(1) << 64) | fingerprint(2)
    }

    /// Locks in the clients' tables, and the bounds of their memory once every program is done.
    pub fn footprints(&self) -> Vec<(usize, [usize; 4])> {
        self.clients.iter().map(|client| (client.cache.len(), client.cache.footprint())).collect()
    }
}

fn enqueue(client: usize, request: u64, op: Op) -> Message {
    Message::Enqueue { client, request, object: object(op.object), mode: op.mode, range: op.range, exact: op.exact }
}
