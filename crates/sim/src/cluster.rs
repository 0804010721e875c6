//! `Cluster`: servers and mounts on simulated nodes, started, crashed and started again at will.
//!
//! Owns: the nodes, the configuration of the mounts, and waiting for them. `servers` has the same for the servers. Does
//! not own: when faults happen (`run`), what programs do.
//!
//! Two shapes: servers and mounts on nodes of their own with a network between, or the first server and the first mount
//! in one process as `amphi up` runs them. A mount's node has no files; a server's keeps its zones over every crash.
//! The first server is the master, the others join it.

mod servers;

use crate::dice::Dice;
use crate::plant::{self, Plant};
use amphi_client::{Client, ClientConfig, Clock, IoHalf, Way};
use amphi_env::sim::SimConfig;
use amphi_env::{Env, Sim, SimEnv};
use amphi_transport::{ClusterKey, LinkConfig, Secure, Timeouts};
use amphi_types::{SessionId, Timespec};
use amphi_wire::Role;
use servers::Running;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Node of the first server, the master.
pub const SERVER: &str = "server";
/// Nodes of the servers.
pub const SERVERS: [&str; 4] = [SERVER, "server1", "server2", "server3"];
/// Node of the first mount, unless it shares the server's.
pub const MOUNT: &str = "mount";
/// Nodes of the mounts.
pub const MOUNTS: [&str; 6] = [MOUNT, "mount1", "mount2", "mount3", "mount4", "mount5"];
/// Secret of the cluster: a listener on TCP needs one.
const KEY: &[u8] = b"the secret of the simulated cluster";
/// The most virtual time that a start, a stop, a mount or an unmount may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long the server keeps the session of a silent mount.
pub const GRACE: Duration = Duration::from_secs(30);
/// How long a mount may take to return a lock or token that another one waits for.
pub const CALLBACK_DEADLINE: Duration = Duration::from_secs(10);
/// How often the controller checks whether something has happened.
const LOOK: Duration = Duration::from_micros(500);

thread_local! {
    static TIME: RefCell<Option<SimEnv>> = const { RefCell::new(None) };
}

/// The virtual clock for the half of the client that has no environment.
struct SimClock;

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        TIME.with(|t| t.borrow().as_ref().map_or(0, |env| env.now().0))
    }
    fn wall(&self) -> Timespec {
        TIME.with(|t| t.borrow().as_ref().map_or(Timespec::default(), |env| env.wall()))
    }
}

/// Address of server `at`.
fn addr(at: usize) -> String {
    format!("tcp:{}:7000", SERVERS[at])
}

/// How a cluster is built.
#[derive(Clone, Debug)]
pub struct Shape {
    /// First server and first mount in one process.
    pub embedded: bool,
    /// Servers, at most as many as `SERVERS`.
    pub servers: usize,
    /// Mounts, at most as many as `MOUNTS`.
    pub mounts: usize,
    /// Targets of the server, if there is only one server.
    pub targets: u16,
    /// Workers of each server.
    pub workers: u16,
    /// Bytes of a zone.
    pub zone_bytes: u64,
    /// Tunables of the mount.
    pub tunables: Vec<(String, String)>,
    /// Tunables of the servers.
    pub server_tunables: Vec<(String, String)>,
    /// Memory of each target for inodes. 0: none stays longer than a request.
    pub inodes_bytes: Option<usize>,
    /// The environment.
    pub sim: SimConfig,
    /// How connections over the network are protected.
    pub secure: Secure,
    /// Whether a new mount learns that the old one has ended, or has to wait for the old one's grace time.
    pub holder_known_gone: bool,
}

impl Shape {
    /// A shape of seed `seed`: small caches and short times, so that everything happens within few calls.
    pub fn of_seed(seed: u64) -> Shape {
        Shape::with(seed, None, None)
    }

    /// Works as `of_seed`, with given numbers of servers and mounts, within the limits.
    pub fn with(seed: u64, servers: Option<usize>, mounts: Option<usize>) -> Shape {
        // These choices use separate random numbers, so that a seed with one server has the same meaning as before
        // there could be several.
        let mut several = Dice::new(seed, 8);
        let by_seed = [1, 1, 1, 2, 3, 4][several.below(6) as usize];
        let servers = servers.unwrap_or(by_seed).clamp(1, SERVERS.len());
        let by_seed = match servers {
            1 => [1, 2, 2, 3][Dice::new(seed, 7).below(4) as usize],
            _ => several.within(1..MOUNTS.len() as u64 + 1) as usize,
        };
        let mounts = mounts.unwrap_or(by_seed).clamp(1, MOUNTS.len());
        let mut dice = Dice::new(seed, 1);
        let mut one = |of: &[&str]| dice.pick(of).map_or(String::new(), |s| s.to_string());
        let tunables = [
            ("cache.max_bytes", one(&["4M", "4M", "16M"])),
            ("cache.dirty_percent", one(&["10", "50", "80"])),
            ("writeback.age_ms", one(&["10", "40", "5000"])),
            ("writeback.run_bytes", one(&["64K", "128K", "1M"])),
            ("writeback.flight_bytes", one(&["1M", "128M"])),
            ("hybrid.small_bytes", one(&["1K", "8K", "32K"])),
            ("hybrid.large_write_bytes", one(&["32K", "128K", "2M"])),
            ("hybrid.large_read_bytes", one(&["32K", "128K", "4M"])),
            ("hybrid.mode", one(&["auto", "auto", "auto", "buffered", "direct"])),
        ];
        // Two draws, whether anything is read ahead and how much.
        let (ahead, window) = (one(&["on", "on", "off"]), one(&["64K", "1M", "64M"]));
        let window = ("readahead.max_bytes", if ahead == "off" { "0".to_string() } else { window });
        let mut small = Dice::new(seed, 14);
        let mut one = |of: &[&str]| small.pick(of).map_or(String::new(), |s| s.to_string());
        let together = [
            ("writeback.batch", one(&["on", "on", "on", "off"])),
            ("writeback.small_bytes", one(&["4K", "64K", "1M"])),
            ("writeback.pipeline_bytes", one(&["64K", "1M", "16M", "0"])),
        ];
        let tunables = tunables.into_iter().chain([window]).chain(together).map(|(n, v)| (n.to_string(), v)).collect();
        let mut accepting = Dice::new(seed, 19);
        let mut one = |of: &[&str]| accepting.pick(of).map_or(String::new(), |s| s.to_string());
        let server_tunables = [
            ("server.write_back", one(&["on", "on", "off"])),
            ("server.write_back_bytes", one(&["1M", "4M", "64M"])),
            ("server.write_through_bytes", one(&["8K", "64K", "256K"])),
            ("server.write_back_age_ms", one(&["1", "30", "1000", "600000"])),
        ];
        let verified = Dice::new(seed, 20).pick(&["on", "on", "off"]).map_or("on", |on| on);
        let scrubbed = Dice::new(seed, 21).pick(&["0", "1M", "1G"]).map_or("0", |rate| rate);
        let kept = Dice::new(seed, 31).pick(&["0", "128K", "16M"]).map_or("0", |bytes| bytes);
        let verified = [
            ("server.checksums", verified.to_string()),
            ("server.scrub_bytes_per_s", scrubbed.to_string()),
            ("server.read_cache_bytes", kept.to_string()),
        ];
        let server_tunables = server_tunables.into_iter().chain(verified).map(|(n, v)| (n.to_string(), v)).collect();
        let sim = SimConfig {
            disk_ns: [20_000..30_000, 40_000..200_000, 1_000..2_000_000][dice.below(3) as usize].clone(),
            sync_ns: [50_000..100_000, 100_000..1_000_000, 1_000_000..20_000_000][dice.below(3) as usize].clone(),
            net_ns: [5_000..60_000, 5_000..60_000, 1_000..3_000_000][dice.below(3) as usize].clone(),
            // Mounts wake up every few ms of virtual time, for minutes after an interrupted call.
            max_steps: 150_000_000,
            keeps: !Dice::new(seed, 15).one_in(4),
            passes_memory: Dice::new(seed, 40).one_in(2),
            sync_lies: plant::active() == Some(Plant::SyncLies),
            ..SimConfig::default()
        };
        Shape {
            embedded: dice.one_in(4),
            servers,
            mounts,
            targets: dice.within(1..5) as u16,
            workers: dice.within(1..4) as u16,
            zone_bytes: 64 << 20,
            tunables,
            server_tunables,
            inodes_bytes: Dice::new(seed, 41).one_in(3).then_some(0),
            sim,
            secure: Secure::Off,
            holder_known_gone: dice.one_in(2),
        }
    }

    /// Lets contention decide how most requests go.
    pub fn make_windows_wide(&mut self, dice: &mut Dice) {
        for (name, value) in &mut self.tunables {
            let wide: &[&str] = match name.as_str() {
                "hybrid.mode" => &["auto", "auto", "auto", "buffered"],
                "hybrid.small_bytes" => &["0", "1K", "8K"],
                "hybrid.large_write_bytes" => &["64K", "2M"],
                "hybrid.large_read_bytes" => &["64K", "8M"],
                _ => continue,
            };
            *value = wide[dice.below(wide.len() as u64) as usize].into();
        }
    }

    /// Targets of server `at`: one or two where there are several servers.
    pub fn targets_of(&self, at: usize) -> u16 {
        if self.servers == 1 { self.targets } else { 1 + (self.targets + at as u16) % 2 }
    }
}

/// A mount.
pub struct Mount {
    /// The client of the mount.
    pub client: Client,
    /// Environment of the mount's node.
    pub env: SimEnv,
    name: String,
    ended: Rc<RefCell<Option<Result<(), String>>>>,
}

/// Servers and mounts.
pub struct Cluster {
    /// The world.
    pub sim: Sim,
    /// How the cluster is built.
    pub shape: Shape,
    /// Environment of the controller, which never crashes.
    pub env: SimEnv,
    servers: Vec<RefCell<Rc<Running>>>,
    gone: Arc<Mutex<BTreeSet<String>>>,
    dice: RefCell<Dice>,
    /// Choices that only several servers leave open.
    order: RefCell<Dice>,
    mounts: Cell<u64>,
    /// Single messages are lost or late on connections that continue, which no stream does: then a client that is
    /// silent about one message is not deaf.
    pub loses_messages: Cell<bool>,
}

impl Cluster {
    /// Nodes without anything running.
    pub fn new(seed: u64, shape: Shape) -> Cluster {
        let sim = Sim::new(seed, shape.sim.clone());
        let env = sim.node("controller");
        TIME.with(|t| *t.borrow_mut() = Some(env.clone()));
        sim.node(SERVER);
        for node in &MOUNTS[..shape.mounts] {
            sim.node(node);
        }
        for node in &SERVERS[1..shape.servers] {
            sim.node(node);
        }
        Cluster {
            servers: (0..shape.servers).map(|_| RefCell::default()).collect(),
            order: RefCell::new(Dice::new(seed, 9)),
            loses_messages: Cell::new(false),
            sim,
            shape,
            env,
            gone: Arc::default(),
            dice: RefCell::new(Dice::new(seed, 2)),
            mounts: Cell::new(0),
        }
    }

    /// Name of the node on which a mount runs.
    pub fn mount_node(&self, which: usize) -> &'static str {
        if self.shape.embedded && which == 0 { SERVER } else { MOUNTS[which] }
    }

    /// Waits until `done`.
    ///
    /// Errors: `what` took too long.
    pub async fn wait(&self, what: &str, done: impl Fn() -> bool) -> Result<(), String> {
        let end = self.env.now() + PATIENCE;
        while !done() {
            if self.env.now() > end {
                return Err(format!("{what} takes longer than {PATIENCE:?}"));
            }
            self.env.sleep(LOOK).await;
        }
        Ok(())
    }

    /// The first mount. A server that still waits for an earlier mount is asked until it admits this one.
    ///
    /// Errors: the line with which the mount ended.
    pub async fn mount(&self) -> Result<Mount, String> {
        self.mount_at(0).await
    }

    /// Works as `mount`, on the node of mount `which`.
    ///
    /// Errors: the line with which the mount ended.
    pub async fn mount_at(&self, which: usize) -> Result<Mount, String> {
        let end = self.env.now() + PATIENCE;
        loop {
            let mount = self.try_mount(which);
            let probe = mount.client.getattr(&amphi_client::Ctx::root(), amphi_types::Ino::ROOT);
            let answered = Rc::new(RefCell::new(None));
            let told = answered.clone();
            mount.env.spawn(async move {
                let result = probe.await;
                *told.borrow_mut() = Some(result);
            });
            self.wait("a mount", || answered.borrow().is_some() || mount.ended.borrow().is_some()).await?;
            let answer = answered.borrow_mut().take();
            if let Some(Ok(_)) = answer {
                if crate::shards::are_on() && self.mounts.get() == 1 {
                    let (client, done) = (mount.client.clone(), Rc::new(Cell::new(false)));
                    let told = done.clone();
                    mount.env.spawn(async move {
                        crate::shards::give(&client, amphi_types::Ino::ROOT).await;
                        told.set(true);
                    });
                    self.wait("shards of the root", || done.get() || mount.ended.borrow().is_some()).await?;
                }
                return Ok(mount);
            }
            if let Some(Err(e)) = answer
                && mount.ended.borrow().is_none()
            {
                return Err(format!("the first call of a mount: {e}"));
            }
            let why = mount.ended.borrow_mut().take();
            if self.env.now() > end {
                return Err(format!("no mount within {PATIENCE:?}: {why:?}"));
            }
            self.env.sleep(Duration::from_millis(100)).await;
        }
    }

    /// Addresses at which a mount can find the cluster: any server leads to the master.
    fn addrs_for_mount(&self) -> Vec<String> {
        let count = self.shape.servers;
        if count == 1 {
            return vec![addr(0)];
        }
        let first = self.order.borrow_mut().below(count as u64) as usize;
        (0..count).map(|i| addr((first + i) % count)).collect()
    }

    fn try_mount(&self, which: usize) -> Mount {
        let env = self.sim.node(self.mount_node(which));
        self.mounts.set(self.mounts.get() + 1);
        let name = format!("sim:{}", self.mounts.get());
        let mut config = ClientConfig::new(Arc::new(SimClock));
        config.tunables = self.shape.tunables.clone();
        let (client, half): (Client, IoHalf) = Client::new(config);
        let link = LinkConfig {
            addrs: self.addrs_for_mount(),
            session: SessionId(self.dice.borrow_mut().bits()),
            role: Role::Mount,
            name: name.clone(),
            key: ClusterKey::new(KEY).ok(),
            identity: None,
            secure: self.shape.secure,
            timeouts: Timeouts {
                first_connect: Duration::from_secs(30),
                // The back-off is short, so that a client meets a server that is killed again soon.
                backoff_max: Duration::from_millis(50),
                ..Timeouts::default()
            },
        };
        let ended = Rc::new(RefCell::new(None));
        let (told, own) = (ended.clone(), env.clone());
        let dialer = self.servers[0].borrow().dialer.borrow().clone();
        let embedded = self.shape.embedded && which == 0;
        env.spawn(async move {
            let result = match (embedded, dialer) {
                (false, _) => half.run(own, link, Way::Addresses).await,
                (true, Some(dialer)) => half.run(own, link, Way::Local(dialer)).await,
                (true, None) => Err(std::io::ErrorKind::NotConnected.into()),
            };
            *told.borrow_mut() = Some(result.map_err(|e| e.to_string()));
        });
        Mount { client, env, name, ended }
    }

    /// Unmounts in order.
    ///
    /// Errors: the line with which it failed.
    pub async fn unmount(&self, mount: Mount) -> Result<(), String> {
        mount.client.shutdown();
        self.wait("the unmount", || mount.ended.borrow().is_some()).await?;
        self.has_gone(&mount);
        mount.ended.borrow_mut().take().unwrap_or(Ok(()))
    }

    /// Says, where the shape wants that, that a mount that crashed is known to have ended.
    pub fn has_gone(&self, mount: &Mount) {
        if self.shape.holder_known_gone
            && let Ok(mut gone) = self.gone.lock()
        {
            gone.insert(mount.name.clone());
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        TIME.with(|t| t.borrow_mut().take());
    }
}
