//! Client, server and background tasks in one thread. A seed decides which of them makes the next step.

use super::server::Server;
use crate::api::{ClientConfig, Clock, Ctx, OpenFlags, ReadText};
use crate::conn::queue::{Item, Outgoing, Task};
use crate::{Client, OpenFile, Pending};
use amphi_types::{Ino, Layout, ObjectId, Result, TargetId, Timespec};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

/// Time that the test moves.
#[derive(Default)]
pub(crate) struct TestClock(pub(crate) AtomicU64);

impl Clock for TestClock {
    fn now_ns(&self) -> u64 {
        self.0.load(SeqCst)
    }
    fn wall(&self) -> Timespec {
        Timespec::from_ns(self.now_ns())
    }
}

pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) server: Server,
    pub(crate) clock: Arc<TestClock>,
    tasks: Vec<Task>,
    calls: Vec<Outgoing>,
    seed: u64,
    /// The probability that a held lock is called back at a step is 1 in this number; 0 means never.
    pub(crate) callbacks: u64,
    _io: crate::IoHalf,
}

/// Steps after which an operation counts as hanging.
const STEPS_MAX: usize = 200_000;

impl World {
    pub(crate) fn new(seed: u64, tunables: &[(&str, &str)]) -> World {
        World::with(seed, tunables, None)
    }

    /// A world in which the client reads the files of a machine by `read_text`.
    pub(crate) fn reading(seed: u64, tunables: &[(&str, &str)], read_text: ReadText) -> World {
        World::with(seed, tunables, Some(read_text))
    }

    fn with(seed: u64, tunables: &[(&str, &str)], read_text: Option<ReadText>) -> World {
        let clock = Arc::new(TestClock(AtomicU64::new(5_000_000_000)));
        let mut config = ClientConfig::new(clock.clone());
        config.cache_bytes = Some(64 << 20);
        config.read_text = read_text;
        config.tunables = tunables.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        let (client, io) = Client::new(config);
        client.mount.cluster.pool.store(4, SeqCst);
        client.mount.cluster.map.lock().servers.push(amphi_wire::ServerInfo {
            id: 1,
            name: "one".into(),
            addrs: Vec::new(),
            targets: (0..4).map(amphi_types::TargetId).collect(),
        });
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let server = Server::new(4);
        World { client, server, clock, tasks: Vec::new(), calls: Vec::new(), seed, callbacks: 0, _io: io }
    }

    pub(crate) fn rand(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.seed >> 33) % below.max(1)
    }

    /// One step of the background work: an answer, a task, or a callback. Returns whether there was anything to do.
    pub(crate) fn step(&mut self) -> bool {
        self.waiting_calls();
        self.clock.0.fetch_add(1000, SeqCst);
        let locks: Vec<(u64, _)> = self.server.locks.iter().map(|(id, (o, _))| (*id, *o)).collect();
        if self.callbacks > 0 && !locks.is_empty() && self.rand(self.callbacks) == 0 {
            let (id, object) = locks[self.rand(locks.len() as u64) as usize];
            // Locks whose grant has not reached the client yet are called back too, and some are called back twice.
            self.server.called_back.push(id);
            crate::locks::callback(&self.client.mount, self.client.mount.target_of(object), object, id);
        }
        for number in self.server.file_locks.take_news() {
            // Sometimes the report is sent twice, as it is after a connection was lost.
            (0..=self.rand(2)).for_each(|_| self.client.mount.coherence.file_locks.news(number));
        }
        let busy = !self.calls.is_empty() || !self.tasks.is_empty();
        if !self.calls.is_empty() && (self.tasks.is_empty() || self.rand(2) == 0) {
            let at = self.rand(self.calls.len() as u64) as usize;
            let out = self.calls.swap_remove(at);
            let answer = self.server.handle(out.call, out.payload);
            let _ = out.answer.send(Ok(answer));
        } else if !self.tasks.is_empty() {
            let at = self.rand(self.tasks.len() as u64) as usize;
            let mut cx = Context::from_waker(Waker::noop());
            if self.tasks[at].as_mut().poll(&mut cx).is_ready() {
                drop(self.tasks.swap_remove(at));
            }
        }
        busy
    }

    /// Requests that were sent and not answered.
    pub(crate) fn waiting_calls(&mut self) -> usize {
        while let Some(item) = self.client.mount.queue.pop() {
            match item {
                Item::Call(out) => self.calls.push(out),
                Item::Task(task) => self.tasks.push(task),
            }
        }
        self.calls.len()
    }

    /// Takes the requests that were sent and not answered away; `give_back` has them answered.
    pub(crate) fn hold_back(&mut self) -> Vec<Outgoing> {
        self.waiting_calls();
        std::mem::take(&mut self.calls)
    }

    pub(crate) fn give_back(&mut self, calls: Vec<Outgoing>) {
        self.calls.extend(calls);
    }

    /// Runs the background for a while.
    pub(crate) fn steps(&mut self, count: u64) {
        for _ in 0..count {
            self.step();
        }
    }

    /// Runs an operation to its end.
    pub(crate) fn run<T: Send + 'static>(&mut self, mut op: Pending<T>) -> Result<T> {
        for _ in 0..STEPS_MAX {
            match Pin::new(&mut op).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(result) => return result,
                Poll::Pending => self.step(),
            };
        }
        panic!("an operation hangs: {} calls, {} tasks", self.calls.len(), self.tasks.len());
    }

    /// Runs several operations at the same time, to their ends.
    pub(crate) fn run_all<T: Send + 'static>(&mut self, ops: Vec<Pending<T>>) -> Vec<Result<T>> {
        let mut ops: Vec<_> = ops.into_iter().map(Some).collect();
        let mut results: Vec<Option<Result<T>>> = ops.iter().map(|_| None).collect();
        for _ in 0..STEPS_MAX {
            let at = self.rand(ops.len() as u64) as usize;
            if let Some(op) = &mut ops[at]
                && let Poll::Ready(result) = Pin::new(op).poll(&mut Context::from_waker(Waker::noop()))
            {
                results[at] = Some(result);
                ops[at] = None;
            }
            if results.iter().all(Option::is_some) {
                return results.into_iter().flatten().collect();
            }
            self.step();
        }
        panic!("operations hang");
    }

    /// Runs the background until it has nothing to do.
    pub(crate) fn settle(&mut self) {
        let callbacks = std::mem::take(&mut self.callbacks);
        let mut idle = 0;
        for _ in 0..STEPS_MAX {
            // A step without progress is counted, because a task whose event never comes would otherwise keep this loop
            // running.
            idle = if self.step() { 0 } else { idle + 1 };
            if idle > 2 {
                self.callbacks = callbacks;
                return;
            }
        }
        panic!("the background hangs: {} calls, {} tasks", self.calls.len(), self.tasks.len());
    }

    /// Makes and opens a file in the root.
    pub(crate) fn create(&mut self, name: &str, flags: OpenFlags) -> Arc<OpenFile> {
        let op = self.client.create(&Ctx::root(), Ino::ROOT, name.as_bytes(), 0o644, flags);
        self.run(op).expect("create").file
    }

    pub(crate) fn unlink(&mut self, name: &str) {
        let op = self.client.unlink(&Ctx::root(), Ino::ROOT, name.as_bytes());
        self.run(op).expect("unlink");
    }

    /// Checks that nothing remains once all files are closed.
    pub(crate) fn check_clean(&mut self) {
        self.settle();
        crate::coherence::opened_ahead::lose(&self.client.mount, None);
        crate::coherence::closes::hurry_all(&self.client.mount);
        self.settle();
        let op = self.client.sync_all(&Ctx::root());
        let _ = self.run(op);
        self.settle();
        let mount = self.client.mount.clone();
        assert_eq!(mount.cache.dirty_bytes(), 0, "no dirty bytes");
        assert_eq!(mount.writeback.flight_bytes.load(SeqCst), 0, "nothing under way");
        mount.cache.check();
        for file in mount.files.all() {
            assert!(file.range.idle(), "no range lock is held");
            assert_eq!(file.access_count(), 0, "no open is left");
            assert_eq!(file.cached.dirty_bytes.load(SeqCst), 0);
            assert!(file.flights.lock().is_empty() && file.cached.dirty.lock().units.is_empty());
        }
        assert!(self.server.opens.values().all(|n| *n == 0), "every open was closed: {:?}", self.server.opens);
        for _ in 0..SHARDS_OF_A_STORY {
            mount.cache.evict(0).iter().for_each(|f| mount.files.reap(f));
        }
        // Write-back that waits for the rest of streams runs when there is no writer.
        mount.cache.rest();
        assert_eq!(mount.cache.used_bytes(), 0, "everything can be evicted");
        assert!(mount.files.all().is_empty(), "files without use are forgotten");
    }
}

/// Evictions look at part of the cache each time.
const SHARDS_OF_A_STORY: usize = 64;

impl crate::mount::Mount {
    /// The target of an object, of a file of the default layout unless the file is known.
    pub(crate) fn target_of(&self, object: ObjectId) -> TargetId {
        match self.files.get(object.ino) {
            Some(file) => file.layout().target(object.ino, object.stripe),
            None => Layout::growing(self.cluster.pool()).target(object.ino, object.stripe),
        }
    }
}
