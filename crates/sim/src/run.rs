//! `run_seed`: one run, from an empty cluster to a checked and emptied one.
//!
//! Owns: the order of events; `faults` has those that no program may notice, and their times. Does not own: what is
//! true (`reference`, `survive`).
//!
//! A run is a few episodes. In each episode, every program makes some calls while servers are killed and restarted and
//! the network fails; programs must not notice any of that. An episode ends in a quiet state, or with a crash that also
//! ends the mount; then the remaining state is checked, and the programs continue from it. At the end everything is
//! compared, the zones are checked, all is removed, and the space must be free again.

mod crash;
mod faults;
mod finish;
mod stops;

use crate::callbacks::{self, Callbacks, SharedCallbacks};
use crate::cluster::{Cluster, GRACE, Mount, SERVERS, Shape};
use crate::dice::Dice;
use crate::generate::Generator;
use crate::observe::Tree;
use crate::plant::{Plant, plant};
use crate::program::{self, Program, SharedProgram};
use crate::shards;
use crate::shared::{self, Arena, CellFile, Shared, SharedArea};
use crate::survive::Level;
use amphi_client::Ctx;
use amphi_env::sim::CrashKind;
use amphi_env::{Env, Time};
use amphi_transport::Secure;
use amphi_types::{Ino, SetAttr};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Virtual time without a finished call after which a run counts as stuck: beyond every time-out of the product.
const STUCK: Duration = Duration::from_secs(240);

/// The time for which a mount may use its cached values after its session has ended, and some time more.
const LIFE: Duration = Duration::from_secs(40);

/// Which faults a run may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Faults {
    /// None.
    None,
    /// Pushes of servers to mounts arrive late, twice or not at all.
    Callbacks,
    /// Processes are killed.
    Crashes,
    /// Also the network fails and power is lost; in some seeds callbacks meet faults of their own.
    All,
}

/// The run to make.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Faults.
    pub faults: Faults,
    /// Print the history as it happens.
    pub talk: bool,
    /// Calls of each program in each episode, at most.
    pub calls: u64,
    /// Number of servers, if not that of the seed.
    pub servers: Option<usize>,
    /// Number of mounts, if not that of the seed.
    pub mounts: Option<usize>,
    /// Whether tasks take locks of applications, if not by the seed.
    pub locks: Option<bool>,
    /// Whether tasks use the file of cells, if not by the seed.
    pub cells: Option<bool>,
    /// Whether servers keep no inode in memory longer than a request, if not by the seed.
    pub forgetful: Option<bool>,
    /// Whether mounts do nothing but fight for few files.
    pub contention: bool,
    /// A bug that the run must find.
    pub plant: Option<Plant>,
    /// The protection of connections. With protection, callbacks suffer no faults of their own, because these faults
    /// are applied to frames that the simulator reads on their way.
    pub secure: Secure,
}

impl Plan {
    /// The plan of a seed.
    pub fn of_seed(seed: u64) -> Plan {
        Plan {
            seed,
            faults: Faults::All,
            talk: false,
            calls: 120,
            servers: None,
            mounts: None,
            locks: None,
            cells: None,
            forgetful: None,
            contention: false,
            plant: None,
            secure: Secure::Off,
        }
    }
}

/// A run that agreed with everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Hash of every event.
    pub trace: u64,
    /// Calls.
    pub calls: u64,
    /// Virtual time, ns.
    pub virtual_ns: u64,
    /// Crashes of only one server.
    pub server_crashes: u64,
    /// Crashes that took the mount.
    pub mount_crashes: u64,
    /// Cuts and breaks.
    pub network_faults: u64,
    /// Parts of batches of write-back that mounts sent.
    pub batched: u64,
    /// Requests of write-back that took the cache's memory as it was.
    pub lent: u64,
    /// Locks that were called back from mounts.
    pub callbacks: u64,
    /// Requests that went direct since their file was contended.
    pub contended: u64,
    /// Lock-aheads that were granted.
    pub ahead: u64,
    /// Writes past the cache that returned before they had landed.
    pub piped: u64,
    /// Memberships of groups that were requested.
    pub grouped: u64,
    /// Mounts that were stopped for long.
    pub stopped: u64,
    /// Mounts that were killed while others continued.
    pub killed: u64,
    /// Requests that were repeated and answered as before, as servers reported before mounts left them.
    pub resent: u64,
    /// Longest call, without waits for locks of applications and for groups, ns.
    pub longest_ns: u64,
    /// Waits for locks of applications that would have closed a circle.
    pub circles: u64,
    /// Files that had been opened ahead when they were opened.
    pub opened_ahead: u64,
    /// Faults that callbacks and their answers met.
    pub faults_of_callbacks: callbacks::Counts,
}

/// A run that did not.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The error that was found.
    pub lines: Vec<String>,
    /// The events so far, oldest first.
    pub history: Vec<String>,
}

type Checked<T = ()> = Result<T, Vec<String>>;

fn line(e: String) -> Vec<String> {
    vec![e]
}

/// How an episode ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Programs rest, the mount stays.
    Rest,
    /// Programs rest, and then the mount is closed and opened again.
    Remount,
    /// As `Remount`, and the servers are stopped and started as well.
    Restart,
    /// The mount is killed.
    MountCrash,
    /// Mount and server are killed; if there are several servers, some of them.
    AllCrash,
    /// Power is lost; if there are several servers, perhaps only some of them lose it.
    Power,
    /// Power is lost while programs rest, and the mounts live on.
    PowerOutlived,
    /// A mount is killed, or stopped for so long that others need not wait for it; then programs are idle.
    Stopped,
}

/// The mounts of a cluster; the controller looks by the first.
type Mounts = Vec<Mount>;

struct Run {
    cluster: Cluster,
    plan: Plan,
    dice: RefCell<Dice>,
    programs: Vec<SharedProgram>,
    area: SharedArea,
    /// Tasks on the shared area.
    sharers: usize,
    /// End of the last pause without faults.
    quiet: Cell<Time>,
    /// Faults of callbacks, in runs that have any.
    callbacks: Option<SharedCallbacks>,
    summary: RefCell<Summary>,
    log: RefCell<Vec<String>>,
}

/// Runs a plan.
///
/// Errors: what was wrong, with the history.
pub fn run_plan(plan: &Plan) -> Result<Summary, Box<Failure>> {
    let _planted = plant(plan.plant);
    shards::switch(Dice::new(plan.seed, 31).one_in(3) && !plan.contention);
    let (mut mounts, mut area) = (plan.mounts, Shared::new(plan.talk));
    if plan.contention {
        let mut dice = Dice::new(plan.seed, 15);
        mounts = mounts.or(Some(dice.within(2..5) as usize));
        area.arena = Arena::drawn(&mut dice);
    }
    let mut shape = Shape::with(plan.seed, plan.servers, mounts);
    shape.secure = plan.secure;
    if let Some(forgetful) = plan.forgetful {
        shape.inodes_bytes = forgetful.then_some(0);
    }
    if plan.faults == Faults::All && Dice::new(plan.seed, 6).one_in(3) {
        shape.sim.break_one_in = if plan.contention { 80 } else { 300 };
    }
    if plan.faults == Faults::All && Dice::new(plan.seed, 24).one_in(8) {
        shape.sim.damage_one_in = 60;
    }
    if plan.contention {
        shape.make_windows_wide(&mut Dice::new(plan.seed, 17));
    }
    area.locks = plan.locks.unwrap_or(Dice::new(plan.seed, 10).one_in(2)) && !plan.contention;
    area.circles = area.locks && Dice::new(plan.seed, 21).one_in(2);
    let mut cell_dice = Dice::new(plan.seed, 11);
    let cells = cell_dice.one_in(2);
    if plan.cells.unwrap_or(cells) && !plan.contention {
        area.cells = CellFile::drawn(&mut cell_dice);
    }
    let sharers = match plan.contention {
        true => Dice::new(plan.seed, 16).within(2..7) as usize,
        false => Dice::new(plan.seed, 4).below(4) as usize,
    };
    let callbacks = match plan.faults {
        _ if plan.secure != Secure::Off => None,
        Faults::None | Faults::Crashes => None,
        Faults::Callbacks => Some(Callbacks::drawn(plan.seed)),
        Faults::All => (!Dice::new(plan.seed, 19).one_in(2)).then(|| Callbacks::drawn(plan.seed)),
    };
    let run = Run {
        callbacks,
        area: Rc::new(RefCell::new(area)),
        sharers,
        cluster: Cluster::new(plan.seed, shape),
        plan: plan.clone(),
        dice: RefCell::new(Dice::new(plan.seed, 3)),
        programs: Vec::new(),
        quiet: Cell::new(Time(0)),
        summary: RefCell::default(),
        log: RefCell::default(),
    };
    run.all()
}

impl Run {
    fn all(mut self) -> Result<Summary, Box<Failure>> {
        if let Some(callbacks) = &self.callbacks {
            self.cluster.sim.set_courier(callbacks.clone());
            self.cluster.loses_messages.set(true);
        }
        let count = self.dice.borrow_mut().within(1..5);
        let mut programs = Vec::new();
        // Programs with files of their own only leave less time for the contention.
        for index in (0..count).filter(|_| !self.plan.contention) {
            let generator = Generator::new(self.plan.seed, index);
            // The number of the directory is put in when it is made.
            let mount_dice = Dice::new(self.plan.seed, 5000 + index);
            let mut p = Program::new(index, generator, mount_dice, Ino::ROOT, 0o755);
            p.talks = self.plan.talk;
            programs.push(Rc::new(RefCell::new(p)));
        }
        self.programs = programs;
        let result = match self.cluster.sim.block_on(self.story()) {
            Ok(result) => result,
            Err(e) => Err(e.to_string().lines().map(str::to_string).collect()),
        };
        match result {
            Ok(()) => {
                let mut summary = *self.summary.borrow();
                summary.trace = self.cluster.sim.trace_hash();
                summary.virtual_ns = self.cluster.sim.now().0;
                summary.calls = self.calls_made();
                summary.circles = self.area.borrow().circles_found();
                summary.longest_ns = self.longest().as_nanos() as u64;
                if let Some(callbacks) = &self.callbacks {
                    summary.faults_of_callbacks = callbacks.0.borrow().counts;
                }
                Ok(summary)
            }
            Err(lines) => Err(Box::new(Failure { seed: self.plan.seed, lines, history: self.history() })),
        }
    }

    fn history(&self) -> Vec<String> {
        self.note_callbacks();
        let mut all: Vec<String> = self.log.borrow().clone();
        for p in &self.programs {
            all.extend(p.borrow().history.iter().cloned());
        }
        all.extend(self.area.borrow().told.history.iter().cloned());
        // Lines begin with the time in a field of fixed width; a stable sort keeps each program's order.
        all.sort_by(|a, b| a.get(..15).cmp(&b.get(..15)));
        all
    }

    fn note(&self, what: impl Into<String>) {
        self.note_callbacks();
        self.note_at(self.cluster.env.now(), what.into());
    }

    /// Notes what has met callbacks since the last time.
    fn note_callbacks(&self) {
        let Some(callbacks) = &self.callbacks else { return };
        let told = std::mem::take(&mut callbacks.0.borrow_mut().told);
        told.into_iter().for_each(|(at, what)| self.note_at(at, what));
    }

    fn note_at(&self, at: Time, what: String) {
        let line = format!("{:>12.6} ms  --  {what}", at.0 as f64 / 1e6);
        if self.plan.talk {
            println!("{line}");
        }
        self.log.borrow_mut().push(line);
    }

    fn roll(&self, n: u64) -> u64 {
        self.dice.borrow_mut().below(n)
    }

    async fn pause(&self, range: std::ops::Range<u64>) {
        let us = self.dice.borrow_mut().within(range);
        self.cluster.env.sleep(Duration::from_micros(us)).await;
    }

    async fn story(&self) -> Checked {
        let shape = &self.cluster.shape;
        self.note(format!(
            "{} servers with {:?} targets, {} workers, {} mounts, {} programs, {} sharers{}{}{}{}{}, {:?}",
            shape.servers,
            (0..shape.servers).map(|at| shape.targets_of(at)).collect::<Vec<_>>(),
            shape.workers,
            shape.mounts,
            self.programs.len(),
            self.sharers,
            match (self.area.borrow().locks, self.area.borrow().circles) {
                (false, _) => "",
                (true, false) => " with locks",
                (true, true) => " with locks and circles",
            },
            if self.area.borrow().cells.on { " with cells" } else { "" },
            if self.plan.contention { format!(" in {}", self.area.borrow().arena.describe()) } else { String::new() },
            self.callbacks.as_ref().map_or(String::new(), |c| format!(", {}", c.0.borrow().describe())),
            if shape.embedded { ", embedded" } else { "" },
            shape.tunables.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>()
        ));
        self.cluster.start_servers(&self.cluster.all_servers()).await.map_err(line)?;
        let mut mounts = self.mount_all().await?;
        let free = self.set_up(&mounts[0]).await?;
        let episodes = 1 + self.roll(3);
        for _ in 0..episodes {
            mounts = self.episode(mounts).await?;
        }
        self.finish(mounts, free).await
    }

    async fn mount_all(&self) -> Checked<Mounts> {
        let mut mounts = Mounts::new();
        for which in 0..self.cluster.shape.mounts {
            mounts.push(self.cluster.mount_at(which).await.map_err(line)?);
        }
        Ok(mounts)
    }

    /// Counts what these mounts, which are about to go, have done.
    async fn count(&self, mounts: &[Mount]) {
        for mount in mounts {
            let text = mount.client.getxattr(&Ctx::root(), Ino::ROOT, b"user.amphi.stats").await.unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            // Name, samples, `samples`, unit, and for some least, most, sum.
            let field = |name: &str, at| {
                let line = text.lines().filter(|l| l.split(' ').next().is_some_and(|n| n.ends_with(name)));
                line.filter_map(|l| l.split_whitespace().nth(at)?.parse::<u64>().ok()).sum::<u64>()
            };
            let mut summary = self.summary.borrow_mut();
            summary.batched += field("batch_files", 6);
            summary.lent += field("writeback_lent", 1);
            summary.callbacks += field("lock_callback", 1);
            summary.contended += field("direct_contention", 1);
            summary.ahead += field("lock_ahead_granted", 1);
            summary.piped += field("write_pipelined", 1);
            summary.grouped += field("group_lock", 1);
            summary.opened_ahead += field("readahead_small_used", 1);
        }
    }

    async fn unmount_all(&self, mounts: Mounts) -> Checked {
        self.count(&mounts).await;
        if let Some(mount) = mounts.first() {
            let text = mount.client.getxattr(&Ctx::root(), Ino::ROOT, b"user.amphi.counters.server").await;
            let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
            let rows = text.lines().filter_map(|l| l.trim().strip_prefix("resends_answered"));
            self.summary.borrow_mut().resent += rows.filter_map(|n| n.trim().parse::<u64>().ok()).sum::<u64>();
        }
        for mount in mounts {
            self.cluster.unmount(mount).await.map_err(line)?;
        }
        Ok(())
    }

    /// Makes the programs' directories; returns the free blocks of the empty cluster.
    async fn set_up(&self, mount: &Mount) -> Checked<u64> {
        let ctx = Ctx::root();
        let free = mount.client.statfs(&ctx).await.map_err(|e| line(format!("statfs: {e}")))?.blocks_free;
        for p in &self.programs {
            let index = p.borrow().index;
            let name = Program::dir_name(index);
            let made = mount.client.mkdir(&ctx, Ino::ROOT, name.as_bytes(), 0o755).await;
            let ino = made.map_err(|e| line(format!("mkdir {name}: {e}")))?.ino;
            let owner = p.borrow().generator.owner().clone();
            let set = SetAttr { uid: Some(owner.uid), gid: Some(owner.gid), ..SetAttr::default() };
            let set = mount.client.setattr(&ctx, ino, set, None).await;
            set.map_err(|e| line(format!("chown {name}: {e}")))?;
            let mut p = p.borrow_mut();
            p.reference = crate::reference::Reference::new(ino, 0o755, owner.uid, owner.gid);
            p.settle_all();
        }
        let mut dice = Dice::new(self.plan.seed, 5);
        let made = shared::set_up(&mount.client, &self.area, &mut dice).await;
        made.map_err(|e| line(format!("the shared area: {e}")))?;
        mount.client.sync_all(&ctx).await.map_err(|e| line(format!("sync: {e}")))?;
        Ok(free)
    }

    fn resting(&self) -> bool {
        self.programs.iter().all(|p| p.borrow().rests) && self.area.borrow().tasks.working == 0
    }

    fn complaints(&self) -> Checked {
        let wrong = self.programs.iter().filter_map(|p| p.borrow().wrong.clone());
        let wrong: Vec<String> = wrong.chain(self.area.borrow().told.wrong.clone()).collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    fn choose_end(&self) -> End {
        use End::*;
        let embedded = self.cluster.shape.embedded;
        let of: &[End] = match (self.plan.faults, embedded) {
            (Faults::None | Faults::Callbacks, false) => &[Rest, Remount, Restart],
            (Faults::None | Faults::Callbacks, true) => &[Rest, Restart],
            (Faults::Crashes, false) => &[Rest, Remount, Restart, MountCrash, MountCrash, AllCrash, AllCrash],
            (Faults::Crashes, true) => &[Rest, Restart, AllCrash, AllCrash],
            (Faults::All, false) => &[Remount, Restart, MountCrash, AllCrash, AllCrash, Power, Power, PowerOutlived],
            (Faults::All, true) => &[Restart, AllCrash, Power, Power],
        };
        of[self.roll(of.len() as u64) as usize]
    }

    async fn episode(&self, mut mounts: Mounts) -> Checked<Mounts> {
        let victim = self.draw_victim();
        let end = if victim.is_some() { End::Stopped } else { self.choose_end() };
        if let Some(victim) = victim {
            // Data that only it has in its cache would be lost with it.
            let synced = mounts[victim.mount].client.sync_all(&Ctx::root()).await;
            synced.map_err(|e| line(format!("sync: {e}")))?;
        }
        let calls = self.plan.calls / 4 + self.roll(self.plan.calls * 3 / 4 + 1);
        self.note(format!("an episode of {calls} calls of each program, to end with {end:?}"));
        for p in &self.programs {
            let mut program = p.borrow_mut();
            (program.left, program.stop, program.rests) = (calls, false, false);
            drop(program);
            let clients = mounts.iter().map(|m| m.client.clone()).collect();
            let env = &mounts[0].env;
            env.spawn(program::run(env.clone(), clients, p.clone()));
        }
        {
            let mut area = self.area.borrow_mut();
            (area.tasks.left, area.tasks.stop, area.tasks.working) = (vec![calls; self.sharers], false, self.sharers);
            area.arena.begin(self.sharers, mounts.len(), victim.map(|v| v.mount));
        }
        for task in 0..self.sharers {
            let dice = Dice::new(self.dice.borrow_mut().bits(), task as u64);
            let at = task % mounts.len();
            let (mount, area) = (&mounts[at], self.area.clone());
            let (env, client) = (mount.env.clone(), mount.client.clone());
            if self.plan.contention {
                mount.env.spawn(shared::fight(env, client, area, (task, at), dice));
            } else {
                mount.env.spawn(shared::run(env, client, area, task, dice));
            }
        }
        let crashes = matches!(end, End::MountCrash | End::AllCrash | End::Power);
        // After this many calls the mount crashes, if this episode ends with its crash.
        let limit = self.calls_made() + self.roll(calls * (self.programs.len() + self.sharers) as u64);
        let mut last = (self.calls_made(), self.cluster.env.now());
        let mut to_meet = victim;
        while !self.resting() {
            self.complaints()?;
            if crashes && self.calls_made() >= limit {
                break;
            }
            if self.calls_made() >= limit
                && let Some(victim) = to_meet.take()
            {
                self.meets_fate(victim, &mut mounts).await?;
                last.1 = self.cluster.env.now();
            }
            if self.calls_made() != last.0 {
                last = (self.calls_made(), self.cluster.env.now());
            } else if self.cluster.env.now().since(last.1) > STUCK {
                return Err(self.stuck());
            }
            self.pause(if crashes { 50..3_000 } else { 100..8_000 }).await;
            self.fault().await?;
        }
        self.complaints()?;
        let mounts = match victim {
            Some(victim) if to_meet.is_none() => self.replace(victim, mounts).await?,
            _ => mounts,
        };
        self.end_episode(end, mounts).await
    }

    fn calls_made(&self) -> u64 {
        self.programs.iter().map(|p| p.borrow().calls).sum::<u64>() + self.area.borrow().told.calls
    }

    /// Returns how long the longest call took, without waits for locks of applications and for groups.
    fn longest(&self) -> Duration {
        let of_programs = self.programs.iter().map(|p| p.borrow().longest).max().unwrap_or_default();
        of_programs.max(self.area.borrow().told.longest)
    }

    fn stuck(&self) -> Vec<String> {
        let mut lines = vec![format!("no call has ended for {STUCK:?} of virtual time")];
        for p in &self.programs {
            let p = p.borrow();
            lines.extend(p.under_way.iter().map(|(_, op)| format!("program {} waits for: {op}", p.index)));
        }
        lines
    }

    async fn end_episode(&self, end: End, mounts: Mounts) -> Checked<Mounts> {
        let crash = match end {
            End::Rest | End::Remount | End::Restart | End::Stopped => None,
            End::MountCrash | End::AllCrash => Some(CrashKind::Process),
            End::Power | End::PowerOutlived => Some(CrashKind::Power),
        };
        let Some(kind) = crash else {
            self.compare(&mounts).await?;
            if matches!(end, End::Rest | End::Stopped) {
                return Ok(mounts);
            }
            self.note("unmount");
            self.unmount_all(mounts).await?;
            if end == End::Restart {
                self.note("the servers stop");
                self.cluster.stop_servers().await.map_err(line)?;
                self.cluster.fsck().await?;
                self.cluster.start_servers(&self.cluster.all_servers()).await.map_err(line)?;
            }
            let mounts = self.mount_all().await?;
            self.compare(&mounts).await?;
            return Ok(mounts);
        };
        let victims = self.victims(end, kind);
        if !matches!(end, End::MountCrash | End::PowerOutlived) && self.roll(2) == 0 {
            self.crash_in_writes(&victims).await;
        }
        self.complaints()?;
        self.note(format!("{end:?}{}", self.names_of(&victims)));
        self.summary.borrow_mut().mount_crashes += 1;
        self.count(&mounts).await;
        for (at, kind) in &victims {
            self.cluster.crash_server(*at, *kind);
        }
        let mounts = if end == End::PowerOutlived { Some(mounts) } else { self.mounts_go(mounts, kind) };
        if end != End::MountCrash {
            self.pause(0..1_000_000).await;
            let again = SERVERS[victims[self.pick(victims.len())].0];
            if self.roll(3) == 0 {
                self.cluster.sim.crash_at(again, 1 + self.roll(10), kind);
            }
            let started: Vec<usize> = victims.iter().map(|(at, _)| *at).collect();
            let started = self.cluster.start_servers(&started).await;
            self.cluster.sim.clear_crash_at(again);
            started.map_err(line)?;
        }
        if let Some(mounts) = mounts {
            self.are_told(&mounts).await?;
            self.mounts_go(mounts, CrashKind::Process);
        }
        let mounts = self.mount_all().await?;
        let mount = &mounts[0];
        self.note("mounted again");
        if mounts.len() > 1 {
            // Requests of a crashed mount may wait for cached state of the others, until that has expired.
            self.cluster.env.sleep(GRACE + LIFE).await;
        }
        let level = if kind == CrashKind::Power { Level::Stable } else { Level::Written };
        for p in &self.programs {
            let (root, name) = (p.borrow().reference.root, Program::dir_name(p.borrow().index));
            let tree = Tree::read(&mount.client, root, &name).await.map_err(line)?;
            p.borrow_mut().crashed(level, &tree)?;
        }
        shared::crashed(&mount.client, &self.area, level).await?;
        mount.client.sync_all(&Ctx::root()).await.map_err(|e| line(format!("sync after a crash: {e}")))?;
        Ok(mounts)
    }

    /// The processes of the mounts end.
    fn mounts_go(&self, mounts: Mounts, kind: CrashKind) -> Option<Mounts> {
        for (which, mount) in mounts.iter().enumerate() {
            self.cluster.sim.crash(self.cluster.mount_node(which), kind);
            self.cluster.has_gone(mount);
        }
        None
    }

    /// Mounts that have outlived a loss of power do not get the answer that everything is stable (Promise S22).
    async fn are_told(&self, mounts: &Mounts) -> Checked {
        for (which, mount) in mounts.iter().enumerate() {
            self.note(format!("mount {which} outlived it"));
            if mount.client.sync_all(&Ctx::root()).await.is_ok() {
                return Err(line(format!("mount {which} was told that all is stable, after power was lost")));
            }
        }
        Ok(())
    }

    /// An index below `count`, without a throw if there is but one.
    fn pick(&self, count: usize) -> usize {
        if count == 1 { 0 } else { self.roll(count as u64) as usize }
    }

    /// Compares every program's directory, as each mount shows it, with its reference.
    async fn compare(&self, mounts: &Mounts) -> Checked {
        for (which, mount) in mounts.iter().enumerate() {
            for p in &self.programs {
                let (root, name) = (p.borrow().reference.root, Program::dir_name(p.borrow().index));
                let tree = Tree::read(&mount.client, root, &name).await.map_err(line)?;
                let wrong = tree.differences(&p.borrow().reference);
                if !wrong.is_empty() {
                    return Err(wrong.into_iter().map(|w| format!("mount {which}: {w}")).collect());
                }
            }
            shared::check(&mount.client, &self.area, self.cluster.env.now().0).await?;
        }
        Ok(())
    }
}
