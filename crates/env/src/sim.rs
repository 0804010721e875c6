//! The simulated environment: processes, disks and network in one thread, with virtual time and one seed.
//!
//! Owns: `Sim`, the controller of tests, and `SimEnv`, what the code under test sees. Does not own: the code
//! under test, or a model of what is correct.
//!
//! Invariants: equal seeds and equal calls give equal traces (`Sim::trace_hash`). Virtual time passes only when no task
//! can run. If nothing can continue, this is an error that names the waiting tasks, never a hang. All of it runs on one
//! thread: a wake-up from another thread would break the determinism.

mod courier;
mod disk;
mod net;
mod rng;
mod world;

pub use courier::{Carried, Courier, Leg};
pub use disk::{DiskOp, DiskOpKind, DiskOps, SimDisk, SimKept};
pub use net::{SimConn, SimEnds, SimListener, SimMemory, SimMoved, SimRx, SimTx};

use crate::{DiskMode, Env, Time};
use amphi_types::{Cred, Timespec};
use std::fmt;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::panic::Location;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use world::{Event, Kind, ROOT, Stepped, World};

/// The losses of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashKind {
    /// The process is killed: tasks, connections and writes in flight.
    Process,
    /// The machine loses power: also any part of the writes since the last sync.
    Power,
}

/// Latencies and faults. Times are nanoseconds of virtual time, drawn evenly from half-open ranges.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Latency of a read, write or discard.
    pub disk_ns: Range<u64>,
    /// Latency of a sync.
    pub sync_ns: Range<u64>,
    /// Speed of a disk beyond its latency.
    pub disk_bytes_per_us: u64,
    /// Latency of a piece of a stream in one direction.
    pub net_ns: Range<u64>,
    /// Unread bytes after which a sender waits.
    pub net_window_bytes: usize,
    /// A connection breaks at one in this many sends; zero means never.
    pub break_one_in: u64,
    /// One bit is flipped in one of this many payloads; zero means never.
    pub damage_one_in: u64,
    /// How long a dial over a cut lasts before `TimedOut`.
    pub connect_timeout_ns: u64,
    /// How long a connection survives a cut while bytes wait.
    pub stall_timeout_ns: u64,
    /// When peers notice a power failure.
    pub power_break_ns: u64,
    /// Whether a random one of the runnable tasks runs next, or the oldest.
    pub shuffle: bool,
    /// Steps after which a simulation counts as endless.
    pub max_steps: u64,
    /// Wall-clock time at the start, seconds since 1970.
    pub wall_start_s: u64,
    /// Free bytes of every node's file system at the start.
    pub free_bytes: u64,
    /// Whether nodes have memory that outlives their process.
    pub keeps: bool,
    /// Whether processes pass their memory to others over connections, as over Unix sockets.
    pub passes_memory: bool,
    /// A planted bug for tests of tests: a sync reports success and makes nothing stable.
    pub sync_lies: bool,
}

impl Default for SimConfig {
    /// A fast SSD and a local network; no faults but those that the controller causes.
    fn default() -> SimConfig {
        SimConfig {
            disk_ns: 40_000..200_000,
            sync_ns: 100_000..1_000_000,
            disk_bytes_per_us: 2_000,
            net_ns: 5_000..60_000,
            net_window_bytes: 256 << 10,
            break_one_in: 0,
            damage_one_in: 0,
            connect_timeout_ns: 3_000_000_000,
            stall_timeout_ns: 30_000_000_000,
            power_break_ns: 2_000_000_000,
            shuffle: true,
            max_steps: 50_000_000,
            wall_start_s: 1_767_225_600,
            free_bytes: 1 << 40,
            keeps: true,
            passes_memory: false,
            sync_lies: false,
        }
    }
}

/// The reason why a simulation cannot continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimError {
    /// No task can run and no event is due.
    Deadlock {
        /// Virtual time.
        now_ns: u64,
        /// Seed of the simulation.
        seed: u64,
        /// The tasks that wait, with their nodes and places of birth.
        waiting: Vec<String>,
    },
    /// `SimConfig::max_steps` is spent.
    Endless {
        /// Virtual time.
        now_ns: u64,
        /// Steps taken.
        steps: u64,
    },
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SimError::Deadlock { now_ns, seed, waiting } => {
                write!(f, "deadlock at {now_ns} ns with seed {seed}; {} tasks wait:", waiting.len())?;
                waiting.iter().try_for_each(|task| write!(f, "\n  {task}"))
            }
            SimError::Endless { now_ns, steps } => write!(f, "no end after {steps} steps, at {now_ns} ns"),
        }
    }
}

impl std::error::Error for SimError {}

/// The controller of a simulation. Dropping it ends every task.
pub struct Sim {
    world: Rc<World>,
}

impl Sim {
    /// A world without nodes.
    pub fn new(seed: u64, config: SimConfig) -> Sim {
        crate::buf::plant_scratch();
        Sim { world: World::new(seed, config) }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.world.seed
    }

    /// Virtual time.
    pub fn now(&self) -> Time {
        Time(self.world.core.borrow().now)
    }

    /// Hash of every event so far.
    pub fn trace_hash(&self) -> u64 {
        self.world.hash()
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.world.core.borrow().nodes.iter().position(|n| n.name == name)
    }

    fn index(&self, name: &str) -> usize {
        self.find(name).unwrap_or_else(|| panic!("no node is named {name:?}"))
    }

    /// The environment of node `name`: makes it if there is none, restarts it (with its files) if it crashed.
    pub fn node(&self, name: &str) -> SimEnv {
        let found = self.find(name);
        let mut core = self.world.core.borrow_mut();
        let index = match found {
            Some(index) => index,
            None => {
                core.nodes.push(world::Node {
                    name: name.to_string(),
                    life: 0,
                    alive: true,
                    boots: 0,
                    files: disk::Files::new(self.world.config.free_bytes),
                    ops: Default::default(),
                    counts: DiskOps::default(),
                    crash_at: None,
                    hook: None,
                    clock_ahead_s: 0,
                    cred: Cred::root(),
                    stopped: None,
                });
                core.nodes.len() - 1
            }
        };
        if !core.nodes[index].alive {
            core.note(Kind::Restart, index as u64, 0);
            core.nodes[index].alive = true;
            core.nodes[index].life += 1;
        }
        SimEnv { world: self.world.clone(), node: index, life: core.nodes[index].life }
    }

    /// Returns whether the node runs (it does not from a crash to the next call of `node`).
    pub fn alive(&self, name: &str) -> bool {
        let index = self.index(name);
        self.world.core.borrow().nodes[index].alive
    }

    /// Sets the wall clock of a node to this many seconds ahead of the others.
    pub fn set_clock_ahead(&self, name: &str, seconds: i64) {
        let index = self.index(name);
        self.world.core.borrow_mut().nodes[index].clock_ahead_s = seconds;
    }

    /// Sets the user as whom the processes of a node connect to Unix sockets from now on. By default it is root.
    pub fn run_as(&self, name: &str, cred: Cred) {
        let index = self.index(name);
        self.world.core.borrow_mut().nodes[index].cred = cred;
    }

    /// Stops a node as SIGSTOP does: none of its tasks runs until `go_on`, or until it has crashed and is started
    /// again. Its connections, its disk and its clocks continue.
    pub fn stop(&self, name: &str) {
        let index = self.index(name);
        self.world.core.borrow_mut().nodes[index].stopped.get_or_insert_default();
    }

    /// Makes a stopped node continue.
    pub fn go_on(&self, name: &str) {
        self.world.go_on(self.index(name));
    }

    /// Crashes a node at once: drops its tasks at their await points and ends its connections.
    pub fn crash(&self, name: &str, kind: CrashKind) {
        self.world.crash_soon(self.index(name), kind);
        self.world.run_crashes();
    }

    /// Crashes a node while its `nth` write or sync from now (1: the next) is in flight.
    pub fn crash_at(&self, name: &str, nth: u64, kind: CrashKind) {
        assert!(nth > 0, "operations are counted from 1");
        let index = self.index(name);
        self.world.core.borrow_mut().nodes[index].crash_at = Some((nth, kind));
    }

    /// Takes a crash point back that has not been reached.
    pub fn clear_crash_at(&self, name: &str) {
        let index = self.index(name);
        self.world.core.borrow_mut().nodes[index].crash_at = None;
    }

    /// Disk operations that the node has started, over all its lives.
    pub fn disk_ops(&self, name: &str) -> DiskOps {
        let index = self.index(name);
        self.world.core.borrow().nodes[index].counts
    }

    /// Calls `hook` at the start of every disk operation of the node. An error that it returns becomes the result: a
    /// failed write leaves any part of its blocks, and a failed sync makes nothing stable.
    pub fn on_disk_op(&self, name: &str, hook: impl FnMut(&DiskOp) -> Option<io::ErrorKind> + 'static) {
        let index = self.index(name);
        let old = self.world.core.borrow_mut().nodes[index].hook.replace(Box::new(hook));
        drop(old);
    }

    /// Ends the injection of disk faults.
    pub fn clear_disk_hook(&self, name: &str) {
        let index = self.index(name);
        let old = self.world.core.borrow_mut().nodes[index].hook.take();
        drop(old);
    }

    /// From now on, the file system of the node has this number of bytes left for blocks of its disks that have no
    /// storage yet, and `free_bytes` returns it. `None` means no limit.
    pub fn set_room(&self, name: &str, bytes: Option<u64>) {
        let index = self.index(name);
        self.world.core.borrow_mut().nodes[index].files.set_room(bytes.map(|b| b / amphi_types::limits::BLOCK));
    }

    /// Bytes of a disk as the node would read them now, without an operation.
    pub fn peek(&self, name: &str, path: &str, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let index = self.index(name);
        self.world.core.borrow().nodes[index].files.peek(path, at, len)
    }

    /// Names of the memory of a node that outlives its process.
    pub fn kept_names(&self, name: &str) -> Vec<String> {
        self.world.core.borrow().nodes[self.index(name)].files.kept_names()
    }

    /// Destroys the memory of a node that outlives its process, as when a container ends together with its memory.
    pub fn forget_kept(&self, name: &str) {
        let index = self.index(name);
        self.world.core.borrow_mut().nodes[index].files.forget_all();
    }

    /// Damages a disk: overwrites bytes, stably, without an operation.
    pub fn poke(&self, name: &str, path: &str, at: u64, bytes: &[u8]) -> io::Result<()> {
        let index = self.index(name);
        self.world.core.borrow_mut().nodes[index].files.poke(path, at, bytes)
    }

    /// Stops everything between two nodes until `heal`.
    pub fn cut(&self, a: &str, b: &str) {
        self.world.cut(self.index(a), self.index(b));
    }

    /// Ends a cut; what waited arrives.
    pub fn heal(&self, a: &str, b: &str) {
        self.world.heal(self.index(a), self.index(b));
    }

    /// Breaks all connections between two nodes.
    pub fn break_connections(&self, a: &str, b: &str) {
        self.world.break_between(self.index(a), self.index(b));
    }

    /// From now on bytes of all connections go through `courier`.
    pub fn set_courier(&self, courier: impl Courier + 'static) {
        let old = self.world.courier.borrow_mut().replace(Box::new(courier));
        drop(old);
    }

    /// Runs one task or event; returns false if there is none left.
    pub fn step(&self) -> bool {
        !matches!(self.world.step(u64::MAX), Ok(Stepped::Idle) | Err(_))
    }

    /// Runs until `done` returns true; it is called after every step.
    pub fn run_until(&self, mut done: impl FnMut() -> bool) -> Result<(), SimError> {
        while !done() {
            if let Stepped::Idle = self.world.step(u64::MAX)? {
                return Err(self.world.deadlock());
            }
        }
        Ok(())
    }

    /// Runs for `d` of virtual time; idle time is skipped at once.
    pub fn run_for(&self, d: Duration) -> Result<(), SimError> {
        let end = (self.now() + d).0;
        self.world.core.borrow_mut().at(end, Event::Nothing);
        while !matches!(self.world.step(end)?, Stepped::Idle) {}
        Ok(())
    }

    /// Runs until `root` is done. `root` belongs to no node: it survives every crash. It is not reentrant.
    pub fn block_on<T>(&self, root: impl Future<Output = T>) -> Result<T, SimError> {
        let mut root = pin!(root);
        loop {
            // Each poll gets a fresh waker: an old one may still be in the queue, which costs one idle poll.
            let waker = Waker::from(self.world.waker(ROOT));
            if let Poll::Ready(value) = root.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.world.run_crashes();
                return Ok(value);
            }
            self.world.run_crashes();
            loop {
                match self.world.step(u64::MAX)? {
                    Stepped::Ran => {}
                    Stepped::Root => break,
                    Stepped::Idle => return Err(self.world.deadlock()),
                }
            }
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // During a panic destructors of half-run tasks could panic again, which would abort and hide the first.
        if !std::thread::panicking() {
            self.world.clear();
        }
    }
}

/// The environment of one life of one simulated process.
#[derive(Clone)]
pub struct SimEnv {
    world: Rc<World>,
    node: usize,
    life: u64,
}

impl SimEnv {
    fn pause(&self, ns: u64) -> world::Sleep {
        let at = self.world.core.borrow().now.saturating_add(ns);
        world::Sleep { world: self.world.clone(), at, key: None }
    }

    /// Name of the node.
    pub fn name(&self) -> String {
        self.world.core.borrow().nodes[self.node].name.clone()
    }

    fn files<T>(&self, f: impl FnOnce(&mut disk::Files) -> io::Result<T>) -> io::Result<T> {
        if !self.world.lives(self.node, self.life) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        f(&mut self.world.core.borrow_mut().nodes[self.node].files)
    }
}

impl Env for SimEnv {
    type Disk = SimDisk;
    type Conn = SimConn;
    type Listener = SimListener;
    type Kept = SimKept;

    fn now(&self) -> Time {
        Time(self.world.core.borrow().now)
    }

    fn wall(&self) -> Timespec {
        // Like a real clock, the simulated one advances between two readings, also where no virtual time has passed.
        let mut core = self.world.core.borrow_mut();
        core.last_wall_ns = (core.last_wall_ns + 1).max(self.world.config.wall_start_s * 1_000_000_000 + core.now);
        let wall = Timespec::from_ns(core.last_wall_ns);
        Timespec { sec: wall.sec + core.nodes[self.node].clock_ahead_s, ..wall }
    }

    fn rand(&self) -> u64 {
        let mut core = self.world.core.borrow_mut();
        let value = core.rng.next();
        core.note(Kind::Rand, value, 0);
        value
    }

    fn boot_id(&self) -> u64 {
        let boots = self.world.core.borrow().nodes[self.node].boots;
        rng::mix(self.world.seed ^ rng::mix((self.node as u64) << 32 | boots)).max(1)
    }

    fn sleep(&self, d: Duration) -> impl Future<Output = ()> + 'static {
        self.pause(d.as_nanos().min(u128::from(u64::MAX)) as u64)
    }

    #[track_caller]
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.world.spawn(self.node, self.life, Location::caller(), Box::pin(task));
    }

    async fn disk(&self, path: &str, mode: DiskMode) -> io::Result<Rc<SimDisk>> {
        self.open_disk(path, mode).await
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.files(|files| files.list(dir))
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        self.files(|files| files.make_dir(dir))
    }

    fn free_bytes(&self, dir: &str) -> io::Result<u64> {
        self.files(|files| files.free(dir))
    }

    fn keep(&self, name: &str, _of: &str) -> io::Result<SimKept> {
        if !self.world.config.keeps {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.make_kept(name)
    }

    fn kept(&self, name: &str, _of: &str, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = self.files(|files| files.kept(name))?;
        bytes.truncate(most);
        Ok(bytes)
    }

    fn forget(&self, name: &str) -> io::Result<()> {
        self.files(|files| {
            files.forget(name);
            Ok(())
        })
    }

    async fn listen(&self, addr: &str) -> io::Result<SimListener> {
        self.bind(addr).await
    }

    async fn dial(&self, addr: &str) -> io::Result<SimConn> {
        self.connect(addr).await
    }

    fn adopt(&self, moved: SimMoved) -> SimConn {
        SimConn::adopt(moved)
    }
}

#[cfg(test)]
mod tests;
