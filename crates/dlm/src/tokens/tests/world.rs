//! One target, several clients, a network that reorders all messages, and values that show incoherence.
//!
//! A step is the begin of a call, the delivery of a message, the application or end of a change, the passing of time,
//! or a fault. After every step, whatever a client may use equals the target's value.

use crate::tokens::PlantedBug;
use crate::tokens::client::{Ask, OwnChange, TokenCache, TokenCacheLimits};
use crate::tokens::server::{ChangeId, Changed, SessionEnd, TokenAction, TokenLimits, TokenSpace};
use crate::tokens::{Grant, Revoke, RevokeId, TokenKey, TokenNumber};
use amphi_types::SessionId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// One call of a client's program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Op {
    Read(TokenKey),
    /// For each key: whether the client knows it, and whether it is joint.
    Change(Vec<(TokenKey, bool, bool)>),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    Request { client: usize, request: u32, op: Op },
    Reply { client: usize, request: u32, shown: Vec<(TokenKey, u32, Option<Grant>)>, number: Option<TokenNumber> },
    Revoke(Revoke),
    Answer { client: usize, id: RevokeId },
    Welcome { client: usize, generation: u16 },
    Present { client: usize, generation: u16 },
}

impl Message {
    fn client(&self) -> usize {
        match self {
            Message::Request { client, .. }
            | Message::Reply { client, .. }
            | Message::Answer { client, .. }
            | Message::Welcome { client, .. }
            | Message::Present { client, .. } => *client,
            Message::Revoke(revoke) => revoke.session.0 as usize,
        }
    }

    fn is_to_server(&self) -> bool {
        matches!(self, Message::Request { .. } | Message::Answer { .. } | Message::Present { .. })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Begin(usize),
    Deliver(usize),
    Apply(ChangeId),
    End(ChangeId),
    Tick,
    CutOff(usize),
    Stop(usize),
    Restart,
}

#[derive(Clone, Hash)]
struct Out {
    op: Op,
    ask: Ask,
    own: Option<OwnChange>,
}

#[derive(Clone, Hash)]
struct Client {
    cache: TokenCache<u32>,
    program: VecDeque<Op>,
    out: BTreeMap<u32, Out>,
    next_request: u32,
    /// The rate of the client's clock, in sixteenths.
    rate: u64,
    gone: bool,
}

#[derive(Clone, Hash)]
struct Running {
    client: usize,
    request: u32,
    keys: Vec<TokenKey>,
    applied: bool,
}

/// How often each fault may still happen.
#[derive(Clone, Copy, Default, Hash)]
pub(super) struct Faults {
    pub ticks: u32,
    pub cut_offs: u32,
    pub stops: u32,
    pub restarts: u32,
}

#[derive(Clone, Hash)]
pub(super) struct World {
    limits: TokenLimits,
    space: TokenSpace,
    generation: u16,
    values: BTreeMap<TokenKey, u32>,
    /// Changes of listings by each client. What a client caches of a listing shows the changes of others only.
    own: BTreeMap<(TokenKey, usize), u32>,
    running: BTreeMap<ChangeId, Running>,
    /// Changes executed: a request sent again is answered, not executed.
    executed: BTreeSet<(usize, u32)>,
    clients: Vec<Client>,
    /// Messages under way; they may arrive in any order.
    messages: Vec<Message>,
    now_ns: u64,
    faults: Faults,
    bug: Option<PlantedBug>,
    pub hits: u32,
    pub late_grants: u32,
}

impl World {
    pub fn new(
        programs: &[Vec<Op>],
        limits: TokenLimits,
        rates: &[u64],
        faults: Faults,
        bug: Option<PlantedBug>,
    ) -> World {
        let mut space = TokenSpace::new(limits, 1);
        space.bug = bug;
        let client = |(n, program): (usize, &Vec<Op>)| {
            let mut cache = TokenCache::new(TokenCacheLimits { max_values: 3, max_void: 2 });
            cache.bug = bug;
            let program = program.iter().cloned().collect();
            Client { cache, program, out: BTreeMap::new(), next_request: 0, rate: rates[n % rates.len()], gone: false }
        };
        World {
            limits,
            space,
            generation: 1,
            values: BTreeMap::new(),
            own: BTreeMap::new(),
            running: BTreeMap::new(),
            executed: BTreeSet::new(),
            clients: programs.iter().enumerate().map(client).collect(),
            messages: Vec::new(),
            now_ns: 1000,
            faults,
            bug,
            hits: 0,
            late_grants: 0,
        }
    }

    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut messages: Vec<&Message> = self.messages.iter().collect();
        messages.sort();
        messages.hash(&mut hasher);
        (&self.space, &self.values, &self.own, &self.running, &self.executed, &self.clients).hash(&mut hasher);
        (self.now_ns, self.faults, self.generation).hash(&mut hasher);
        hasher.finish()
    }

    fn client_now(&self, n: usize) -> u64 {
        self.now_ns * self.clients[n].rate / 16
    }

    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (n, client) in self.clients.iter().enumerate() {
            if !client.gone && !client.program.is_empty() && client.out.len() < 2 {
                steps.push(Step::Begin(n));
            }
            if !client.gone && self.faults.cut_offs > 0 {
                steps.push(Step::CutOff(n));
            }
            if !client.gone && self.faults.stops > 0 {
                steps.push(Step::Stop(n));
            }
        }
        for (&id, running) in &self.running {
            if running.applied {
                steps.push(Step::End(id));
            } else if self.space.is_ready(id) {
                steps.push(Step::Apply(id));
            }
        }
        if self.faults.restarts > 0 {
            steps.push(Step::Restart);
        }
        if self.faults.ticks > 0 {
            steps.push(Step::Tick);
        }
        steps.extend((0..self.messages.len()).map(Step::Deliver));
        steps
    }

    pub fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Begin(n) => self.begin(n),
            Step::Deliver(at) => {
                let message = self.messages.swap_remove(at);
                self.deliver(message);
            }
            Step::Apply(id) => self.apply(id),
            Step::End(id) => self.end(id),
            Step::Tick => {
                self.faults.ticks -= 1;
                self.pass(1);
            }
            Step::CutOff(n) => {
                self.faults.cut_offs -= 1;
                self.leave(n, SessionEnd::CutOff);
            }
            Step::Stop(n) => {
                self.faults.stops -= 1;
                self.clients[n].cache.lose_all();
                self.leave(n, SessionEnd::Stopped);
            }
            Step::Restart => {
                self.faults.restarts -= 1;
                self.restart();
            }
        }
        self.drain();
        self.check()
    }

    /// Time passes for the target and the clients.
    pub fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
        self.space.tick(self.now_ns);
    }

    fn leave(&mut self, n: usize, end: SessionEnd) {
        self.clients[n].gone = true;
        self.messages.retain(|message| message.client() != n);
        self.space.drop_session(SessionId(n as u64), end);
    }

    fn restart(&mut self) {
        self.generation += 1;
        self.space = TokenSpace::new(self.limits, self.generation);
        self.space.bug = self.bug;
        let sessions = (0..self.clients.len()).map(|n| SessionId(n as u64));
        self.space.recover(self.now_ns, sessions, self.limits.life_ns);
        self.running.clear();
        self.messages.retain(|message| !message.is_to_server());
        for (n, client) in self.clients.iter().enumerate() {
            if !client.gone {
                self.messages.push(Message::Welcome { client: n, generation: self.generation });
            }
        }
    }

    fn begin(&mut self, n: usize) {
        let now_ns = self.client_now(n);
        let client = &mut self.clients[n];
        let Some(op) = client.program.pop_front() else { return };
        let own = match &op {
            Op::Read(key) if client.cache.get(now_ns, *key).is_some() => {
                self.hits += 1;
                return;
            }
            Op::Read(_) => None,
            Op::Change(keys) => {
                let drops = |key: &&(TokenKey, bool, bool)| key.1 && !matches!(key.0, TokenKey::Listing(_));
                let known: Vec<TokenKey> = keys.iter().filter(drops).map(|key| key.0).collect();
                Some(client.cache.changing(&known))
            }
        };
        let ask = client.cache.ask(now_ns);
        let request = client.next_request;
        client.next_request += 1;
        client.out.insert(request, Out { op: op.clone(), ask, own });
        self.messages.push(Message::Request { client: n, request, op });
    }

    /// The values of these keys at the target, with grants.
    fn show(&mut self, n: usize, keys: &[TokenKey]) -> Vec<(TokenKey, u32, Option<Grant>)> {
        let show = |&key: &TokenKey| {
            let grant = self.space.grant(self.now_ns, SessionId(n as u64), key, false).ok();
            (key, self.value(key, n), grant)
        };
        keys.iter().map(show).collect()
    }

    /// What this client has to see of the key.
    fn value(&self, key: TokenKey, n: usize) -> u32 {
        let own = self.own.get(&(key, n)).copied().unwrap_or(0);
        self.values.get(&key).copied().unwrap_or(0) - own
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Request { client, request, op: Op::Read(key) } => {
                let shown = self.show(client, &[key]);
                self.messages.push(Message::Reply { client, request, shown, number: None });
            }
            Message::Request { client, request, op: Op::Change(keys) } => {
                if self.executed.contains(&(client, request)) {
                    let number = Some(self.space.number());
                    self.messages.push(Message::Reply { client, request, shown: Vec::new(), number });
                    return;
                }
                let changed: Vec<Changed> =
                    keys.iter().map(|&(key, known, joint)| Changed { key, known, joint }).collect();
                let id = self.space.begin_change(self.now_ns, SessionId(client as u64), &changed);
                let keys = keys.into_iter().map(|key| key.0).collect();
                self.running.insert(id, Running { client, request, keys, applied: false });
            }
            Message::Answer { client, id } => {
                self.space.revoked(SessionId(client as u64), id);
            }
            Message::Present { client, generation } => {
                if generation == self.generation {
                    self.space.present(SessionId(client as u64));
                }
            }
            Message::Reply { client: n, request, shown, number } => self.reply(n, request, shown, number),
            Message::Revoke(revoke) => {
                let client = revoke.session.0 as usize;
                self.clients[client].cache.revoke(&revoke);
                self.messages.push(Message::Answer { client, id: revoke.id });
            }
            Message::Welcome { client: n, generation } => {
                let client = &mut self.clients[n];
                client.cache.restarted(generation);
                for (&request, out) in &client.out {
                    self.messages.push(Message::Request { client: n, request, op: out.op.clone() });
                }
                self.messages.push(Message::Present { client: n, generation });
            }
        }
    }

    fn reply(
        &mut self,
        n: usize,
        request: u32,
        shown: Vec<(TokenKey, u32, Option<Grant>)>,
        number: Option<TokenNumber>,
    ) {
        let now_ns = self.client_now(n);
        let client = &mut self.clients[n];
        let Some(out) = client.out.remove(&request) else { return };
        if let Some(own) = out.own {
            client.cache.changed(own, number);
        }
        for (key, value, grant) in shown {
            if let Some(grant) = grant
                && !client.cache.store(now_ns, out.ask, key, grant, value)
            {
                self.late_grants += 1;
            }
        }
        client.cache.answered(out.ask);
    }

    fn apply(&mut self, id: ChangeId) {
        let Some(running) = self.running.get_mut(&id) else { return };
        running.applied = true;
        self.executed.insert((running.client, running.request));
        for &key in &running.keys {
            *self.values.entry(key).or_default() += 1;
            if matches!(key, TokenKey::Listing(_)) {
                *self.own.entry((key, running.client)).or_default() += 1;
            }
        }
    }

    fn end(&mut self, id: ChangeId) {
        let Some(Running { client, request, keys, .. }) = self.running.remove(&id) else { return };
        let number = Some(self.space.end_change(id));
        if !self.clients[client].gone {
            let shown = self.show(client, &keys);
            self.messages.push(Message::Reply { client, request, shown, number });
        }
    }

    fn drain(&mut self) {
        while let Some(action) = self.space.poll_action() {
            if let TokenAction::Revoke(revoke) = action
                && !self.clients[revoke.session.0 as usize].gone
            {
                self.messages.push(Message::Revoke(revoke));
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        for (n, client) in self.clients.iter().enumerate() {
            for key in self.values.keys() {
                if let Some(used) = client.cache.get(self.client_now(n), *key)
                    && *used != self.value(*key, n)
                {
                    return Err(format!("client {n} may use {used} of {key:?}, which is {}", self.value(*key, n)));
                }
            }
            let [ends, asks, void, order, own, changing] = client.cache.footprint();
            let changes = client.out.values().filter(|out| out.own.is_some()).count();
            if ends != client.cache.len() || asks != client.out.len() || own != changes || (own == 0 && changing > 0) {
                return Err(format!("client {n}: tables disagree"));
            }
            if client.cache.len() > 3 || order > 2 || void > 3 || (asks == 0 && void + order > 0) {
                return Err(format!("client {n}: {void} void numbers, {order} in order, {asks} asks"));
            }
        }
        let [tokens, ages, of_sessions, _, revokes, deadlines, changes, queues] = self.space.footprint();
        if (ages, of_sessions) != (tokens, tokens) || deadlines > revokes || tokens > self.limits.max_tokens {
            return Err(format!("{tokens} tokens, {ages} ages, {of_sessions} of sessions, {revokes} revocations"));
        }
        if changes != self.running.len() || (changes == 0 && queues > 0) {
            return Err(format!("{changes} changes, {queues} queues, {} running", self.running.len()));
        }
        Ok(())
    }

    /// All possible steps without faults are made. After that all calls have been answered and no state is left.
    pub fn finish(mut self) -> Result<(), String> {
        self.faults = Faults::default();
        loop {
            while let Some(step) = self.steps().first().copied() {
                self.take(step)?;
            }
            if self.space.next_deadline().is_none() {
                break;
            }
            self.pass(self.limits.life_ns + self.limits.margin_ns);
            while self.space.poll_overdue(self.now_ns + self.limits.callback_deadline_ns).is_some() {}
            self.drain();
        }
        let [tokens, .., revokes, _, changes, queues] = self.space.footprint();
        if tokens + revokes + changes + queues > 0 {
            return Err(format!(
                "{tokens} tokens, {revokes} revocations, {changes} changes, {queues} queues left over"
            ));
        }
        match self.clients.iter().position(|client| !client.gone && !client.out.is_empty()) {
            Some(n) => Err(format!("client {n} waits for ever")),
            None => Ok(()),
        }
    }
}
