//! The simulator's executor: tasks, events in virtual time, nodes, crashes, the trace hash.
//!
//! Owns: which task runs next (random among the runnable ones), when time advances (only when none can run),
//! and the end of a node's tasks. Does not own: what disks and connections do (`disk`, `net`).
//!
//! Invariants: nothing except the seed and the calls of the controller influences the order of events. User code
//! (polls, drops, hooks) never runs while `core` is borrowed.

use super::courier::Courier;
use super::disk::{DiskOp, DiskOps, Files, PendingOp};
use super::net::{ConnState, ListenerState, NetEvent};
use super::rng::{Rng, mix};
use super::{CrashKind, SimConfig, SimError};
use amphi_types::Cred;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// The task id of the future that `block_on` runs.
pub(super) const ROOT: u64 = 0;

pub(super) type Task = Pin<Box<dyn Future<Output = ()>>>;
pub(super) type DiskHook = Box<dyn FnMut(&DiskOp) -> Option<std::io::ErrorKind>>;

/// Kinds of events, as they enter the trace hash.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Spawn = 1,
    Poll,
    Timer,
    Crash,
    Restart,
    DiskStart,
    DiskDone,
    Deliver,
    Break,
    Dial,
    Listen,
    Rand,
}

pub(super) struct TaskWaker {
    id: u64,
    queued: AtomicBool,
    queue: Arc<Mutex<Vec<u64>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.queue.lock().unwrap_or_else(|e| e.into_inner()).push(self.id);
        }
    }
}

pub(super) struct TaskState {
    pub(super) node: usize,
    /// It is `None` while the task is polled.
    task: Option<Task>,
    waker: Arc<TaskWaker>,
    born: &'static Location<'static>,
}

/// A process, its files included.
pub(super) struct Node {
    pub(super) name: String,
    /// Counts restarts. Everything that belongs to an earlier life is dead.
    pub(super) life: u64,
    pub(super) alive: bool,
    /// Counts losses of power.
    pub(super) boots: u64,
    pub(super) files: Files,
    pub(super) ops: BTreeMap<u64, PendingOp>,
    pub(super) counts: DiskOps,
    pub(super) crash_at: Option<(u64, CrashKind)>,
    pub(super) hook: Option<DiskHook>,
    /// How far its wall clock is ahead, s.
    pub(super) clock_ahead_s: i64,
    /// The user as whom the node's processes run.
    pub(super) cred: Cred,
    /// For a stopped process: the tasks that would run.
    pub(super) stopped: Option<Vec<u64>>,
}

pub(super) enum Event {
    Wake(Waker),
    Disk { node: usize, op: u64 },
    Net(NetEvent),
    Nothing,
}

pub(super) struct Core {
    pub(super) now: u64,
    /// The result of the last read of a wall clock, before the node's lead.
    pub(super) last_wall_ns: u64,
    pub(super) rng: Rng,
    hash: u64,
    serial: u64,
    steps: u64,
    pub(super) events: BTreeMap<(u64, u64), Event>,
    tasks: BTreeMap<u64, TaskState>,
    pub(super) nodes: Vec<Node>,
    pub(super) conns: BTreeMap<u64, ConnState>,
    pub(super) listeners: BTreeMap<String, ListenerState>,
    pub(super) cuts: BTreeSet<(usize, usize)>,
    pub(super) ports: u16,
    crashes: Vec<(usize, CrashKind)>,
}

impl Core {
    /// A number that was never returned before.
    pub(super) fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Folds an event into the trace.
    pub(super) fn note(&mut self, kind: Kind, a: u64, b: u64) {
        let mut h = mix(self.hash ^ self.now);
        h = mix(h ^ (kind as u64) ^ a.rotate_left(16));
        self.hash = mix(h ^ b);
    }

    /// Schedules `event` after `delay` nanoseconds and returns its key.
    pub(super) fn after(&mut self, delay: u64, event: Event) -> (u64, u64) {
        self.at(self.now.saturating_add(delay), event)
    }

    pub(super) fn at(&mut self, time: u64, event: Event) -> (u64, u64) {
        let key = (time, self.serial());
        self.events.insert(key, event);
        key
    }

    pub(super) fn latency(&mut self, range: &std::ops::Range<u64>) -> u64 {
        self.rng.range(range)
    }
}

pub(super) struct World {
    pub(super) core: RefCell<Core>,
    pub(super) courier: RefCell<Option<Box<dyn Courier>>>,
    pub(super) config: SimConfig,
    pub(super) seed: u64,
    queue: Arc<Mutex<Vec<u64>>>,
}

/// The result of a step.
pub(super) enum Stepped {
    /// Ran a task or an event.
    Ran,
    /// The root future is to be polled.
    Root,
    /// No task can run and no event is due.
    Idle,
}

impl World {
    pub(super) fn new(seed: u64, config: SimConfig) -> Rc<World> {
        let core = Core {
            now: 0,
            last_wall_ns: 0,
            rng: Rng::new(seed),
            hash: mix(seed),
            serial: ROOT,
            steps: 0,
            events: BTreeMap::new(),
            tasks: BTreeMap::new(),
            nodes: Vec::new(),
            conns: BTreeMap::new(),
            listeners: BTreeMap::new(),
            cuts: BTreeSet::new(),
            ports: 20_000,
            crashes: Vec::new(),
        };
        Rc::new(World { core: RefCell::new(core), courier: RefCell::default(), config, seed, queue: Arc::default() })
    }

    pub(super) fn hash(&self) -> u64 {
        self.core.borrow().hash
    }

    /// Returns whether `life` of node `node` still runs.
    pub(super) fn lives(&self, node: usize, life: u64) -> bool {
        let core = self.core.borrow();
        core.nodes[node].alive && core.nodes[node].life == life
    }

    pub(super) fn waker(&self, id: u64) -> Arc<TaskWaker> {
        Arc::new(TaskWaker { id, queued: AtomicBool::new(false), queue: self.queue.clone() })
    }

    pub(super) fn spawn(&self, node: usize, life: u64, born: &'static Location<'static>, task: Task) {
        if !self.lives(node, life) {
            return;
        }
        let mut core = self.core.borrow_mut();
        let id = core.serial();
        core.note(Kind::Spawn, id, node as u64);
        let waker = self.waker(id);
        core.tasks.insert(id, TaskState { node, task: Some(task), waker: waker.clone(), born });
        drop(core);
        waker.wake();
    }

    /// Lets the tasks of a stopped node run again.
    pub(super) fn go_on(&self, node: usize) {
        let waiting = self.core.borrow_mut().nodes[node].stopped.take().unwrap_or_default();
        self.queue.lock().unwrap_or_else(|e| e.into_inner()).extend(waiting);
    }

    /// Ends `node` at the end of the running poll.
    pub(super) fn crash_soon(&self, node: usize, kind: CrashKind) {
        self.core.borrow_mut().crashes.push((node, kind));
    }

    /// Ends the nodes that are to crash.
    pub(super) fn run_crashes(&self) {
        loop {
            let Some((node, kind)) = self.core.borrow_mut().crashes.pop() else { return };
            self.crash(node, kind);
        }
    }

    fn crash(&self, node: usize, kind: CrashKind) {
        let (tasks, ops) = {
            let mut guard = self.core.borrow_mut();
            let core = &mut *guard;
            if !core.nodes[node].alive {
                return;
            }
            core.note(Kind::Crash, node as u64, kind as u64);
            let n = &mut core.nodes[node];
            n.alive = false;
            n.stopped = None;
            n.boots += u64::from(kind == CrashKind::Power);
            n.crash_at = None;
            let ops = std::mem::take(&mut n.ops);
            n.files.crash(kind, ops.values(), &mut core.rng);
            let ids: Vec<u64> = core.tasks.iter().filter(|(_, t)| t.node == node).map(|(id, _)| *id).collect();
            let tasks: Vec<TaskState> = ids.iter().filter_map(|id| core.tasks.remove(id)).collect();
            (tasks, ops)
        };
        let wakers = self.crash_net(node, kind);
        // Destructors run here, outside of the borrow; all they can do is done by a dead node.
        drop(tasks);
        drop(ops);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Runs one task, or the next event if no task can run.
    pub(super) fn step(&self, until: u64) -> Result<Stepped, SimError> {
        let mut guard = self.core.borrow_mut();
        let core = &mut *guard;
        core.steps += 1;
        if core.steps > self.config.max_steps {
            return Err(SimError::Endless { now_ns: core.now, steps: core.steps });
        }
        let picked = {
            let mut queue = self.queue.lock().unwrap_or_else(|e| e.into_inner());
            let n = queue.len() as u64;
            (n > 0).then(|| queue.remove(if self.config.shuffle { core.rng.below(n) as usize } else { 0 }))
        };
        match picked {
            Some(ROOT) => {
                core.note(Kind::Poll, ROOT, 0);
                Ok(Stepped::Root)
            }
            Some(id) => {
                // A task of a crashed node may still be in the queue.
                let Some(state) = core.tasks.get_mut(&id) else { return Ok(Stepped::Ran) };
                if let Some(waiting) = &mut core.nodes[state.node].stopped {
                    waiting.push(id);
                    return Ok(Stepped::Ran);
                }
                state.waker.queued.store(false, Ordering::Relaxed);
                let Some(mut task) = state.task.take() else { return Ok(Stepped::Ran) };
                let waker = Waker::from(state.waker.clone());
                core.note(Kind::Poll, id, 0);
                drop(guard);
                let done = task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
                let mut core = self.core.borrow_mut();
                if done {
                    core.tasks.remove(&id);
                } else if let Some(state) = core.tasks.get_mut(&id) {
                    state.task = Some(task);
                    drop(core);
                    self.run_crashes();
                    return Ok(Stepped::Ran);
                }
                drop(core);
                drop(task);
                self.run_crashes();
                Ok(Stepped::Ran)
            }
            None => {
                let Some((&(time, _), _)) = core.events.first_key_value() else { return Ok(Stepped::Idle) };
                if time > until {
                    return Ok(Stepped::Idle);
                }
                let Some(((time, serial), event)) = core.events.pop_first() else { return Ok(Stepped::Idle) };
                core.now = core.now.max(time);
                match event {
                    Event::Wake(waker) => {
                        core.note(Kind::Timer, serial, 0);
                        drop(guard);
                        waker.wake();
                    }
                    Event::Disk { node, op } => {
                        drop(guard);
                        self.disk_done(node, op);
                    }
                    Event::Net(event) => {
                        drop(guard);
                        self.net_event(event);
                    }
                    Event::Nothing => drop(guard),
                }
                self.run_crashes();
                Ok(Stepped::Ran)
            }
        }
    }

    /// The report of a standstill: what waits, and where it was spawned.
    pub(super) fn deadlock(&self) -> SimError {
        let core = self.core.borrow();
        let waiting = core
            .tasks
            .iter()
            .map(|(id, t)| format!("{}: task {id} spawned at {}", core.nodes[t.node].name, t.born))
            .collect();
        SimError::Deadlock { now_ns: core.now, seed: self.seed, waiting }
    }

    /// Drops every task and connection, so that nothing keeps the world alive.
    pub(super) fn clear(&self) {
        let (tasks, nodes, events) = {
            let mut guard = self.core.borrow_mut();
            let core = &mut *guard;
            core.nodes.iter_mut().for_each(|n| n.alive = false);
            let ops: Vec<_> = core.nodes.iter_mut().map(|n| (std::mem::take(&mut n.ops), n.hook.take())).collect();
            (std::mem::take(&mut core.tasks), ops, std::mem::take(&mut core.events))
        };
        drop((tasks, nodes, events));
        let net = {
            let mut core = self.core.borrow_mut();
            (std::mem::take(&mut core.conns), std::mem::take(&mut core.listeners))
        };
        drop(net);
    }
}

/// Completes at a time.
pub(super) struct Sleep {
    pub(super) world: Rc<World>,
    pub(super) at: u64,
    pub(super) key: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let world = self.world.clone();
        let mut core = world.core.borrow_mut();
        if core.now >= self.at {
            return Poll::Ready(());
        }
        match self.key {
            Some(key) => {
                core.events.insert(key, Event::Wake(cx.waker().clone()));
            }
            None => self.key = Some(core.at(self.at, Event::Wake(cx.waker().clone()))),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let event = self.world.core.borrow_mut().events.remove(&key);
            drop(event);
        }
    }
}
