//! One server, several clients, a network that reorders all messages, and data that shows incoherence.
//!
//! Each step is the delivery of one message, the begin or end of one I/O, or the end of one direct request. After every
//! step no two holders may conflict, neither in the server's table nor in the clients' tables. Every read must see what
//! was written last.
//!
//! Faults are steps too, as many as a test permits: the server restarts, or a session ends, with all its messages under
//! way. A client whose session has ended uses nothing of it any more. (Leases and the order in which targets release
//! locks ensure that, and are not modelled.) The client has lost what it had not written back, and continues its
//! program in a new session.

use super::{PlantedBug, object};
use crate::client::{CacheLimits, CallbackPlan, Granted, Hit, LockAction, LockCache, LockRef, RequestId};
use crate::mode::{GroupId, Growth, LockId, Mode, Owner, conflict};
use crate::server::{Action, LockLimits, LockRequest, LockSpace, Refusal};
use amphi_types::{ByteRange, ObjectId, SessionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Bytes of each object.
pub(super) const BYTES: u64 = 6;

/// How wide a lock is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Extent {
    Grown,
    Exact,
    /// Lock-ahead: requested without waiting for the answer, and no I/O.
    Ahead,
}

/// One I/O or one lock-ahead of a client's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Op {
    pub object: u32,
    pub mode: Mode,
    pub range: ByteRange,
    pub direct: bool,
    pub extent: Extent,
    /// The I/O is done under the lock of this group. If the client does not hold it, it is taken before, and it is
    /// returned afterwards if the flag says so. Members of a group access separate bytes.
    pub group: Option<(u64, bool)>,
    /// Written value, unique in a world.
    pub value: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Enqueue { client: usize, request: u64, object: ObjectId, mode: Mode, range: ByteRange, extent: Extent },
    Group { client: usize, object: ObjectId, group: u64 },
    Direct { client: usize },
    Flush { client: usize, token: u64, pinned: bool, id: LockId, object: ObjectId, bytes: Vec<(u64, u32)> },
    Cancel { client: usize, ids: Vec<LockId> },
    Granted { client: usize, request: u64, id: LockId, range: ByteRange },
    Refused { client: usize, request: u64 },
    Joined { client: usize, id: LockId, object: ObjectId, group: u64 },
    Left { client: usize },
    Callback { client: usize, id: LockId, object: ObjectId },
    Flushed { client: usize, token: u64, pinned: bool, id: LockId },
    DirectDone { client: usize },
}

impl Message {
    /// The client that sends or gets the message.
    fn client(&self) -> usize {
        match *self {
            Message::Enqueue { client, .. }
            | Message::Group { client, .. }
            | Message::Direct { client }
            | Message::Flush { client, .. }
            | Message::Cancel { client, .. }
            | Message::Granted { client, .. }
            | Message::Refused { client, .. }
            | Message::Joined { client, .. }
            | Message::Left { client }
            | Message::Callback { client, .. }
            | Message::Flushed { client, .. }
            | Message::DirectDone { client } => client,
        }
    }
}

/// Most clients. The numbers of the sessions that one client has one after the other differ by this.
const CLIENTS_MAX: u64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Nothing,
    /// The operation waits for the answer to a lock-ahead that would cover it.
    Awaiting(Op),
    Waiting(Op, u64),
    Joining(Op),
    /// The client waits until the server has confirmed the return of the group lock, so that the following I/O is not
    /// done under it.
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
    /// Sessions that it had before.
    ended: u64,
    /// Locks requested ahead, unanswered.
    ahead: BTreeMap<u64, Op>,
    /// The group lock held.
    group: Option<(ObjectId, u64, LockId)>,
    /// Flushes under way, to be sent again after a restart.
    flushing: BTreeMap<u64, Message>,
    next_token: u64,
    /// Flushes that wait, since bytes of theirs are being flushed already.
    deferred: Vec<(LockId, ObjectId, Vec<ByteRange>)>,
}

impl Client {
    fn session(&self, n: usize) -> SessionId {
        SessionId(n as u64 + self.ended * CLIENTS_MAX)
    }

    /// Sends the dirty bytes of `ranges`, or waits for an earlier flush of the same bytes, because two flushes could
    /// reach the disk in the wrong order.
    fn flush(&mut self, n: usize, id: LockId, object: ObjectId, ranges: Vec<ByteRange>) -> Option<Message> {
        if ranges.iter().any(|&range| self.busy(object, range)) {
            self.deferred.push((id, object, ranges));
            return None;
        }
        Some(self.write_back(n, id, object, &ranges, false))
    }

    /// Returns whether a byte of the range is being flushed.
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

    /// Sends a direct request of a client that caches the same bytes. At the server its own locks do not conflict, so
    /// the client first writes back dirty bytes and drops what is cached. This also flushes a dirty byte whose lock is
    /// being returned.
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

/// The events that can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Deliver(usize),
    Begin(usize),
    End(usize),
    EndDirect(usize),
    /// The session of a client ends.
    Evict(usize),
    Restart,
}

#[derive(Clone)]
pub(super) struct World {
    server: LockSpace,
    generation: u16,
    disk: BTreeMap<(ObjectId, u64), u32>,
    truth: BTreeMap<(ObjectId, u64), u32>,
    clients: Vec<Client>,
    network: Vec<Message>,
    /// The requests at the server that have to be answered.
    asked: BTreeMap<LockId, (usize, u64)>,
    /// Granted direct requests whose I/O is in progress. Those of a session that has ended are finished too.
    directs: Vec<(LockId, SessionId, Op)>,
    /// Clients whose sessions may end, each of them once.
    pub evictable: BTreeSet<usize>,
    /// How often the server may restart.
    pub restarts: u32,
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
            ended: 0,
            ahead: BTreeMap::new(),
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
            evictable: BTreeSet::new(),
            restarts: 0,
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

    /// The faults that may happen next.
    pub fn faults(&self) -> Vec<Step> {
        let mut faults: Vec<Step> = self.evictable.iter().map(|&n| Step::Evict(n)).collect();
        faults.extend((self.restarts > 0).then_some(Step::Restart));
        faults
    }

    /// A state in which no step is possible. Every client must have got what it requested.
    pub fn check_end(&self) -> Result<(), String> {
        for (n, client) in self.clients.iter().enumerate() {
            if client.doing != Doing::Nothing || !client.program.is_empty() {
                return Err(format!("deadlock: client {n} is left with {:?}", client.doing));
            }
            if client.cache.seen().iter().any(|seen| seen.stage != 0 || seen.users != 0) {
                return Err(format!("client {n} never gave back {:?}", client.cache.seen()));
            }
            if !client.ahead.is_empty() {
                return Err(format!("client {n} was not answered {:?}", client.ahead));
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
                let (id, session, op) = self.directs.swap_remove(n);
                self.direct_io(op)?;
                self.server.release(self.now_ns, id);
                if let Some(client) = self.client_of(session) {
                    self.network.push(Message::DirectDone { client });
                }
            }
            Step::Evict(n) => {
                self.evictable.remove(&n);
                self.evict(n)?;
            }
            Step::Restart => {
                self.restarts -= 1;
                self.restart()?;
            }
        }
        self.serve();
        for n in 0..self.clients.len() {
            self.tend(n);
        }
        self.check()
    }

    /// The client of that session now.
    fn client_of(&self, session: SessionId) -> Option<usize> {
        let n = (session.0 % CLIENTS_MAX) as usize;
        (self.clients[n].session(n) == session).then_some(n)
    }

    fn deliver(&mut self, message: Message) -> Result<(), String> {
        let now_ns = self.now_ns;
        match message {
            Message::Enqueue { client, request, object, mode, range, extent } => {
                let growth = if extent == Extent::Grown { Growth::Largest } else { Growth::Exact };
                let owner = Owner::Cached(self.clients[client].session(client));
                let asked = LockRequest { owner, object, mode, range, growth };
                let id = match extent {
                    Extent::Ahead => self.server.enqueue_ahead(now_ns, asked),
                    Extent::Grown | Extent::Exact => self.server.enqueue(now_ns, asked),
                };
                match id {
                    Ok(id) => drop(self.asked.insert(id, (client, request))),
                    Err(Refusal::WouldBlock) => self.network.push(Message::Refused { client, request }),
                    Err(refusal) => return Err(refusal.to_string()),
                }
            }
            Message::Group { client, object, group } => {
                let owner = Owner::Group(self.clients[client].session(client), GroupId(group));
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
                let (owner, object) = (Owner::Direct(self.clients[client].session(client)), object(op.object));
                let request = LockRequest { owner, object, mode: op.mode, range: op.range, growth: Growth::Exact };
                let id = self.server.enqueue(now_ns, request).map_err(|refusal| refusal.to_string())?;
                self.asked.insert(id, (client, 0));
            }
            Message::Flush { client, token, pinned, id, object, bytes } => {
                for (byte, value) in bytes {
                    let session = self.clients[client].session(client);
                    if !self.server.holds(session, id, object, Mode::Write, ByteRange::at(byte, 1)) {
                        return Err(format!("client {client} flushes under {id:?}, which it does not hold"));
                    }
                    self.disk.insert((object, byte), value);
                }
                self.network.push(Message::Flushed { client, token, pinned, id });
            }
            Message::Cancel { client, ids } => {
                self.server.cancel(now_ns, self.clients[client].session(client), &ids);
                if matches!(self.clients[client].doing, Doing::Leaving(id) if ids.contains(&id)) {
                    self.network.push(Message::Left { client });
                }
            }
            Message::Granted { client: n, request, id, range } => {
                let client = &mut self.clients[n];
                let ahead = client.ahead.remove(&request).is_some();
                match client.cache.granted(now_ns, RequestId(request), id, range) {
                    Granted::Pinned(lock) if ahead => client.cache.unpin(lock),
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
            Message::Refused { client, request } => {
                let client = &mut self.clients[client];
                client.ahead.remove(&request).ok_or("refused, though it may wait")?;
                client.cache.withdraw(RequestId(request));
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
        if op.extent == Extent::Ahead {
            let known = client.cache.covers(object, op.mode, op.range).is_some()
                || client.cache.asked(object, op.mode, op.range).is_some();
            if !known {
                let RequestId(request) = client.cache.ask(object, op.mode, op.range);
                client.ahead.insert(request, op);
                self.network.push(enqueue(n, request, op));
            }
            return;
        }
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
            Hit::Miss if client.cache.asked(id, op.mode, op.range).is_some() => Doing::Awaiting(op),
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
                        Owner::Direct(session) | Owner::Holder(session) | Owner::Member(session, _) => {
                            let Doing::Direct(op) = self.clients[client].doing else { continue };
                            self.directs.push((id, session, op));
                        }
                        Owner::Group(_, GroupId(group)) => {
                            let Doing::Joining(op) = self.clients[client].doing else { continue };
                            self.network.push(Message::Joined { client, id, object: object(op.object), group });
                        }
                        Owner::Cached(_) => self.network.push(Message::Granted { client, request, id, range }),
                    }
                }
                Action::Callback { id, session, object, .. } => {
                    let client = self.client_of(session);
                    self.network.extend(client.map(|client| Message::Callback { client, id, object }));
                }
            }
        }
    }

    fn tend(&mut self, n: usize) {
        if let Doing::Awaiting(op) = self.clients[n].doing
            && self.clients[n].cache.asked(object(op.object), op.mode, op.range).is_none()
        {
            self.start(n, op);
        }
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

    /// The session of a client ends, and it begins another one. Bytes that it had not written back are lost, so the
    /// disk has the last write. No other client can have seen the lost bytes.
    pub fn evict(&mut self, n: usize) -> Result<(), String> {
        let mut lost: Vec<(ObjectId, u64)> = Vec::new();
        for message in self.network.iter().filter(|message| message.client() == n) {
            if let Message::Flush { object, bytes, .. } = message {
                lost.extend(bytes.iter().map(|&(byte, _)| (*object, byte)));
            }
        }
        self.network.retain(|message| message.client() != n);
        self.asked.retain(|_, (client, _)| *client != n);
        let client = &mut self.clients[n];
        lost.extend(client.data.iter().filter(|(_, (_, dirty))| *dirty).map(|(key, _)| *key));
        for key in lost {
            match self.disk.get(&key) {
                Some(&value) => self.truth.insert(key, value),
                None => self.truth.remove(&key),
            };
        }
        self.server.drop_session(self.now_ns, client.session(n));
        client.cache.lose_all();
        // The I/O under way under the lock fails.
        if let Doing::Running(_, id) = client.doing {
            client.cache.unpin(LockRef { id });
        }
        for message in std::mem::take(&mut client.flushing).into_values() {
            match message {
                Message::Flush { pinned: true, id, .. } => client.cache.unpin(LockRef { id }),
                Message::Flush { id, .. } => client.cache.flushed(id),
                other => return Err(format!("{other:?} is no flush")),
            }
        }
        std::mem::take(&mut client.deferred).into_iter().for_each(|(id, ..)| client.cache.flushed(id));
        while let Some(action) = client.cache.poll_action() {
            let LockAction::Drop { object, ranges, discard_dirty: true, .. } = action else {
                return Err(format!("client {n} has no session for {action:?}"));
            };
            for key in ranges.iter().flat_map(|&range| bytes(object, range)) {
                client.data.remove(&key);
            }
        }
        if !client.cache.is_empty() || !client.data.is_empty() {
            return Err(format!("client {n} keeps {:?} and {:?}", client.cache.seen(), client.data));
        }
        (client.doing, client.group) = (Doing::Nothing, None);
        client.ahead.clear();
        client.ended += 1;
        Ok(())
    }

    /// The server process dies and starts again. Messages and lock tables are lost, and the disk is not. Clients
    /// present their locks first, then send everything unanswered again.
    pub fn restart(&mut self) -> Result<(), String> {
        self.network.clear();
        self.asked.clear();
        self.generation += 1;
        self.server = LockSpace::new(LockLimits::default(), self.generation);
        self.server.planted_bug = self.bug;
        for (n, client) in self.clients.iter_mut().enumerate() {
            for held in client.cache.represent() {
                let session = client.session(n);
                let owner = held.group.map_or(Owner::Cached(session), |group| Owner::Group(session, group));
                self.server
                    .restore(owner, held.id, held.object, held.mode, held.range)
                    .map_err(|refusal| format!("client {n} presents {held:?}: {refusal}"))?;
            }
            self.network.extend(client.flushing.values().cloned());
            self.network.extend(client.ahead.iter().map(|(&request, &op)| enqueue(n, request, op)));
            match client.doing {
                Doing::Waiting(op, request) => self.network.push(enqueue(n, request, op)),
                Doing::Joining(op) => {
                    let group = op.group.map_or(0, |(group, _)| group);
                    self.network.push(Message::Group { client: n, object: object(op.object), group });
                }
                Doing::Direct(_) => self.network.push(Message::Direct { client: n }),
                // The lock was returned to the server that is gone.
                Doing::Leaving(id) if client.cache.extent(id).is_none() => client.doing = Doing::Nothing,
                Doing::Nothing | Doing::Awaiting(_) | Doing::Running(..) | Doing::Settling(_) | Doing::Leaving(_) => {}
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
        let left = |seen: &&crate::server::inspect::Seen| {
            let under_way = seen.granted && self.directs.iter().any(|&(id, ..)| id == seen.id);
            self.client_of(seen.owner.session()).is_none() && !under_way
        };
        if let Some(left) = seen.iter().find(left) {
            return Err(format!("the server keeps {left:?} of a session that has ended"));
        }
        for (n, client) in self.clients.iter().enumerate() {
            for one in client.cache.seen() {
                let lock = |n: usize, seen: &crate::client::inspect::Seen| {
                    let session = self.clients[n].session(n);
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

    /// A number for the state. Equal states have equal numbers, in whatever order they were reached.
    pub fn fingerprint(&self) -> u128 {
        let mut network = self.network.clone();
        network.sort();
        let mut directs = self.directs.clone();
        directs.sort_by_key(|&(id, ..)| id);
        let fingerprint = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, &network, &directs, &self.disk, &self.truth, &self.asked).hash(&mut hasher);
            (&self.evictable, self.restarts).hash(&mut hasher);
            self.server.seen().hash(&mut hasher);
            for client in &self.clients {
                client.cache.seen().hash(&mut hasher);
                client.cache.loose_ends().hash(&mut hasher);
                (&client.data, &client.program, &client.doing, &client.deferred, &client.group).hash(&mut hasher);
                (client.ended, &client.ahead).hash(&mut hasher);
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
    let Op { mode, range, extent, .. } = op;
    Message::Enqueue { client, request, object: object(op.object), mode, range, extent }
}
