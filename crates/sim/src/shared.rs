//! `Shared`: files and directories that several tasks use at the same time, and the rules that hold nevertheless.
//!
//! Owns: the tasks (sharers), their calls with times, the rules. Does not own: files of one program alone (`program`),
//! where every result is known.
//!
//! The rules. Every record of a shared file is written and read as a whole: a read returns the record of one write,
//! never of one that was overwritten before the read began, and no later read returns an earlier one. Appended records
//! lie in the log whole, once, in an order that agrees with time. Calls on whole cells of a file are events in an order
//! that agrees with time. A task that made a name exclusively has it until it gives it up. A listing shows each entry
//! that exists throughout exactly once. Directories that are moved about stay reachable. Locks are held as `locks`
//! describes. In runs of contention the tasks only use the `arena`.

mod arena;
mod cells;
mod locks;
mod names;
mod records;

use crate::dice::Dice;
use crate::perform::{list, read, write};
use crate::plant;
use crate::reference::Reach;
use crate::survive::Level;
use amphi_client::{Client, Ctx, OpenFile, OpenFlags};
use amphi_env::{Env, SimEnv};
use amphi_types::{Errno, Ino, Kind, Result};
use amphi_wire::XattrMode;
pub use arena::{Arena, fight};
pub use cells::{CellFile, Row as CellRow};
use locks::Claims;
use names::Holdings;
use records::{Log, Record};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Name of the shared directory.
pub const DIR: &str = "shared";
/// Directories that are moved about.
const MOVED: [&str; 4] = ["t0", "t1", "t2", "t3"];
/// Files that always exist.
const KEPT: u64 = 12;
/// Records of the shared file.
const RECORDS: usize = 5;

/// The shared area, as tasks and the controller see it.
pub type SharedArea = Rc<RefCell<Shared>>;

/// Names that are fought for, and those that move between directories.
struct FoughtNames {
    /// The directory of names that are fought for.
    dir: Ino,
    /// Directory in which `MOVED` begin.
    move_dir: Ino,
    moved: BTreeMap<Ino, &'static str>,
    /// The directory in which each of them lies, as far as is known.
    lies_in: BTreeMap<&'static str, Ino>,
}

/// The file of records, and the records that were written into it.
struct RecordArea {
    file: Ino,
    records: Vec<Record>,
}

/// The file that tasks append to.
struct LogArea {
    file: Ino,
    log: Log,
    made: u64,
}

/// The tasks at work.
pub struct Tasks {
    /// Calls that each task still makes.
    pub left: Vec<u64>,
    /// Tasks asked to rest.
    pub stop: bool,
    /// Tasks at work; counted by the code that starts them.
    pub working: usize,
}

/// The events, for people.
pub struct Happened {
    /// Calls made.
    pub calls: u64,
    /// The length of the longest call that only others' calls can have delayed: waits for locks of applications and
    /// groups are excluded.
    pub longest: Duration,
    /// The first broken rule.
    pub wrong: Option<String>,
    /// The events of the run, newest last.
    pub history: VecDeque<String>,
    /// Print the history as it happens.
    pub talks: bool,
}

/// The known state of the shared area.
pub struct Shared {
    /// The directory.
    pub root: Ino,
    /// Names that are fought for.
    fought: FoughtNames,
    /// Records that tasks write.
    record_area: RecordArea,
    /// The log that tasks append to.
    log_area: LogArea,
    /// The file of cells, if tasks use one.
    pub cells: CellFile,
    /// Files that are fought for, if the run is one of contention.
    pub arena: Arena,
    holdings: Holdings,
    claims: Claims,
    /// Whether tasks take locks.
    pub locks: bool,
    /// Whether tasks that hold some locks wait for more, so that cycles arise.
    pub circles: bool,
    next_tag: u64,
    /// The tasks at work.
    pub tasks: Tasks,
    /// The events so far.
    pub told: Happened,
}

type Checked = std::result::Result<(), Vec<String>>;

impl Shared {
    /// An area without anything.
    pub fn new(talks: bool) -> Shared {
        Shared {
            root: Ino::ROOT,
            fought: FoughtNames {
                dir: Ino::ROOT,
                move_dir: Ino::ROOT,
                moved: BTreeMap::new(),
                lies_in: BTreeMap::new(),
            },
            record_area: RecordArea { file: Ino::ROOT, records: Vec::new() },
            log_area: LogArea { file: Ino::ROOT, log: Log::default(), made: 0 },
            cells: CellFile::default(),
            arena: Arena::default(),
            holdings: Holdings::default(),
            claims: Claims::default(),
            locks: false,
            circles: false,
            next_tag: 1 << 56,
            tasks: Tasks { left: Vec::new(), stop: false, working: 0 },
            told: Happened { calls: 0, longest: Duration::ZERO, wrong: None, history: VecDeque::new(), talks },
        }
    }

    fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    /// Waits that would have closed a circle.
    pub fn circles_found(&self) -> u64 {
        self.claims.circles
    }

    fn complain(&mut self, what: String) {
        self.told.wrong.get_or_insert(format!("shared area: {what}"));
        self.tasks.stop = true;
    }

    fn note(&mut self, at_ns: u64, task: usize, line: String) {
        let line = format!("{:>12.6} ms  s{task}  {line}", at_ns as f64 / 1e6);
        if self.told.talks {
            println!("{line}");
        }
        if self.told.history.len() == crate::program::HISTORY_LINES {
            self.told.history.pop_front();
        }
        self.told.history.push_back(line);
    }
}

/// Makes the area; its contents must be made stable before the tasks begin.
pub async fn set_up(client: &Client, area: &SharedArea, dice: &mut Dice) -> Result<()> {
    let ctx = Ctx::root();
    let root = client.mkdir(&ctx, Ino::ROOT, DIR.as_bytes(), 0o755).await?.ino;
    if dice.one_in(2) {
        client.setxattr(&ctx, root, b"user.amphi.layout", b"striped,size=64K,count=3", XattrMode::Set).await?;
    }
    let names_dir = client.mkdir(&ctx, root, b"names", 0o755).await?.ino;
    for i in 0..KEPT {
        client.mknod(&ctx, names_dir, format!("kept{i}").as_bytes(), Kind::Fifo.mode_bits() | 0o644, 0).await?;
    }
    let move_dir = client.mkdir(&ctx, root, b"moved", 0o755).await?.ino;
    let mut moved = BTreeMap::new();
    for name in MOVED {
        moved.insert(client.mkdir(&ctx, move_dir, name.as_bytes(), 0o755).await?.ino, name);
    }
    let record_file = client.create(&ctx, root, b"records", 0o644, OpenFlags::READ_WRITE).await?.attr.ino;
    let mut records = Vec::new();
    let mut at = dice.below(100);
    for _ in 0..RECORDS {
        let len = if dice.one_in(2) { dice.within(1..6000) } else { dice.within(1..150_000) };
        records.push(Record::new(at, len));
        at += len + dice.below(3) * dice.below(5000);
    }
    {
        let mut a = area.borrow_mut();
        (a.root, a.fought.dir, a.fought.move_dir, a.fought.moved) = (root, names_dir, move_dir, moved);
        a.fought.lies_in = MOVED.iter().map(|name| (*name, move_dir)).collect();
        (a.record_area.file, a.record_area.records) = (record_file, records);
    }
    cells::new_file(client, area).await?;
    arena::new_files(client, area).await?;
    new_log(client, area).await
}

async fn new_log(client: &Client, area: &SharedArea) -> Result<()> {
    let (root, name) = {
        let mut a = area.borrow_mut();
        a.log_area.made += 1;
        (a.root, format!("log{}", a.log_area.made))
    };
    let ino = client.create(&Ctx::root(), root, name.as_bytes(), 0o644, OpenFlags::WRITE).await?.attr.ino;
    let mut a = area.borrow_mut();
    (a.log_area.file, a.log_area.log) = (ino, Log::default());
    Ok(())
}

/// Counts one more call of a task; returns false when the task must make no more calls.
fn takes_call(area: &SharedArea, task: usize) -> bool {
    let mut a = area.borrow_mut();
    let goes_on = !a.tasks.stop && a.tasks.left[task] > 0;
    if goes_on {
        a.tasks.left[task] -= 1;
        a.told.calls += 1;
    }
    goes_on
}

/// Makes calls until none are left or the area is asked to rest.
pub async fn run(env: SimEnv, client: Client, area: SharedArea, task: usize, mut dice: Dice) {
    let mut sharer = Sharer::new(env.clone(), client, area.clone(), task);
    // These choices use separate random numbers, so that a seed without locks and cells has the same meaning as before
    // there were any.
    let mut lock_dice = Dice::new(dice.clone().bits(), task as u64);
    let mut cell_dice = Dice::new(dice.clone().bits(), 100 + task as u64);
    loop {
        if !takes_call(&area, task) {
            break;
        }
        if dice.one_in(5) {
            env.sleep(Duration::from_micros(dice.below(3000))).await;
        }
        let lock = area.borrow().locks && lock_dice.one_in(3);
        let locked = if lock { sharer.lock(&mut lock_dice).await } else { Ok(()) };
        let begin = env.now();
        let cell = area.borrow().cells.on && cell_dice.one_in(2);
        let celled = if cell { sharer.cell_call(&mut cell_dice).await } else { Ok(()) };
        let done = match dice.weighted(&[6, 6, 4, 6, 2, 2, 1]) {
            0 => sharer.write_record(&mut dice).await,
            1 => sharer.read_record(&mut dice).await,
            2 => sharer.append(&mut dice).await,
            3 => sharer.fight(&mut dice).await,
            4 => sharer.listing(&mut dice).await,
            5 => sharer.move_about(&mut dice).await,
            _ => sharer.sync(&mut dice).await,
        };
        {
            let mut a = area.borrow_mut();
            a.told.longest = a.told.longest.max(env.now().since(begin));
        }
        if let Err(e) = locked.and(celled).and(done) {
            area.borrow_mut().complain(format!("task {task}: {e}"));
        }
        if dice.one_in(12) {
            (sharer.record, sharer.log, sharer.cells) = (None, None, [None, None]);
        }
    }
    if let Err(e) = sharer.unlock_all().await {
        area.borrow_mut().complain(format!("task {task}: {e}"));
    }
    drop(sharer);
    area.borrow_mut().tasks.working -= 1;
}

struct Sharer {
    env: SimEnv,
    client: Client,
    area: SharedArea,
    task: usize,
    record: Option<Arc<OpenFile>>,
    /// The file of the records, as the owner of its locks has it open: from its first lock on.
    locked: Option<Arc<OpenFile>>,
    log: Option<Arc<OpenFile>>,
    /// The file of cells; for appending too.
    cells: [Option<Arc<OpenFile>>; 2],
}

type Told<T = ()> = std::result::Result<T, String>;

impl Sharer {
    /// A task that has no file open yet.
    fn new(env: SimEnv, client: Client, area: SharedArea, task: usize) -> Sharer {
        Sharer { env, client, area, task, record: None, locked: None, log: None, cells: [None, None] }
    }

    fn ctx(&self) -> Ctx {
        let thread = self.task as u32;
        Ctx { pid: 500 + thread, tid: 5000 + thread, ..Ctx::root() }
    }

    fn note(&self, line: impl Into<String>) {
        self.area.borrow_mut().note(self.env.now().0, self.task, line.into());
    }

    async fn open(&self, ino: Ino, flags: OpenFlags) -> Told<Arc<OpenFile>> {
        self.client.open(&self.ctx(), ino, flags).await.map_err(|e| format!("open {ino}: {e}"))
    }

    async fn record_file(&mut self, dice: &mut Dice) -> Told<Arc<OpenFile>> {
        if let Some(file) = &self.record {
            return Ok(file.clone());
        }
        let ino = self.area.borrow().record_area.file;
        let flags = OpenFlags { direct: dice.one_in(3), dsync: dice.one_in(8), ..OpenFlags::READ_WRITE };
        let file = self.open(ino, flags).await?;
        self.record = Some(file.clone());
        Ok(file)
    }

    async fn write_record(&mut self, dice: &mut Dice) -> Told {
        let file = self.record_file(dice).await?;
        let (i, direct) = (dice.below(RECORDS as u64) as usize, dice.one_in(4));
        let (offset, bytes, tag) = {
            let mut a = self.area.borrow_mut();
            let tag = a.tag();
            let bytes = a.record_area.records[i].begin_write(tag, self.env.now().0);
            (a.record_area.records[i].offset, bytes, tag)
        };
        let flags = file.flags();
        let reach = match (flags.dsync, direct || flags.direct) {
            (true, _) => Reach::Disk,
            (false, true) => Reach::Server,
            (false, false) => Reach::Cache,
        };
        self.note(format!("write record {i} with #{tag:x}, so that it reaches the {reach:?} ..."));
        let direct = direct && !plant::keeps_in_cache();
        let n = write(&self.client, &self.ctx(), &file, offset, &bytes, direct).await;
        let n = n.map_err(|e| format!("write of record {i}: {e}"))?;
        if n != bytes.len() as u64 {
            return Err(format!("write of record {i}: {n} of {} bytes", bytes.len()));
        }
        self.note(format!("  ... record {i} is #{tag:x}"));
        self.area.borrow_mut().record_area.records[i].end_write(tag, self.env.now().0, reach);
        Ok(())
    }

    async fn read_record(&mut self, dice: &mut Dice) -> Told {
        let file = self.record_file(dice).await?;
        let (i, direct) = (dice.below(RECORDS as u64) as usize, dice.one_in(4));
        let (offset, len) =
            (self.area.borrow().record_area.records[i].offset, self.area.borrow().record_area.records[i].len);
        let begin = self.env.now().0;
        self.note(format!("read record {i} ..."));
        let bytes = read(&self.client, &self.ctx(), &file, offset, len, direct).await;
        let bytes = bytes.map_err(|e| format!("read of record {i}: {e}"))?;
        let end = self.env.now().0;
        let found = self.area.borrow_mut().record_area.records[i].read(begin, end, &bytes);
        let tag = found.map_err(|e| format!("record {i}, read from {begin} to {end} ns: {e}"))?;
        self.note(format!("  ... record {i} was #{tag:x}"));
        Ok(())
    }

    async fn append(&mut self, dice: &mut Dice) -> Told {
        let file = match &self.log {
            Some(file) => file.clone(),
            None => {
                let flags = OpenFlags { append: true, direct: dice.one_in(3), ..OpenFlags::WRITE };
                let ino = self.area.borrow().log_area.file;
                let file = self.open(ino, flags).await?;
                self.log.insert(file).clone()
            }
        };
        let len = if dice.one_in(6) { dice.below(100_000) } else { dice.below(3000) };
        let (tag, bytes) = {
            let mut a = self.area.borrow_mut();
            let tag = a.tag();
            (tag, a.log_area.log.begin(tag, len, self.env.now().0))
        };
        self.note(format!("append #{tag:x} of {} bytes ...", bytes.len()));
        let n = write(&self.client, &self.ctx(), &file, 0, &bytes, dice.one_in(4)).await;
        let n = n.map_err(|e| format!("append: {e}"))?;
        if n != bytes.len() as u64 {
            return Err(format!("append of {} bytes wrote {n}", bytes.len()));
        }
        self.note(format!("  ... appended #{tag:x}"));
        self.area.borrow_mut().log_area.log.end(tag, self.env.now().0);
        Ok(())
    }

    async fn sync(&mut self, dice: &mut Dice) -> Told {
        let file = self.record_file(dice).await?;
        let begin = self.env.now().0;
        let synced = self.client.fsync(&self.ctx(), &file, dice.one_in(2)).await;
        synced.map_err(|e| format!("fsync of the records: {e}"))?;
        let mut a = self.area.borrow_mut();
        a.record_area.records.iter_mut().for_each(|r| r.synced(begin));
        Ok(())
    }
}

/// Judges the area when all tasks rest.
pub async fn check(client: &Client, area: &SharedArea, now: u64) -> Checked {
    let one = |e: String| vec![e];
    let ctx = Ctx::root();
    let (record_file, log_file) = (area.borrow().record_area.file, area.borrow().log_area.file);
    let bytes = whole(client, record_file).await.map_err(one)?;
    {
        let mut a = area.borrow_mut();
        for (i, record) in a.record_area.records.iter_mut().enumerate() {
            let part = part_of(&bytes, record.offset, record.len);
            record.read(now, now, &part).map_err(|e| vec![format!("shared record {i} at rest: {e}")])?;
        }
    }
    let bytes = whole(client, log_file).await.map_err(one)?;
    area.borrow().log_area.log.check(&bytes).map_err(|e| vec![format!("shared log: {e}")])?;
    cells::check(client, area).await.map_err(|e| vec![format!("shared cells at rest: {e}")])?;
    arena::check(client, area).await.map_err(|e| vec![format!("at rest: {e}")])?;
    names_check(client, &ctx, area, Names::Exact).await
}

/// The bytes of a record; beyond the end of the file they are zeros and were never written.
fn part_of(bytes: &[u8], offset: u64, len: u64) -> Vec<u8> {
    let mut part: Vec<u8> = bytes.iter().skip(offset as usize).take(len as usize).copied().collect();
    part.resize(len as usize, 0);
    part
}

async fn whole(client: &Client, ino: Ino) -> Told<Vec<u8>> {
    let (ctx, said) = (Ctx::root(), |e: Errno| format!("shared file {ino}: {e}"));
    let file = client.open(&ctx, ino, OpenFlags::READ).await.map_err(said)?;
    let mut bytes = Vec::new();
    loop {
        let part = read(client, &ctx, &file, bytes.len() as u64, 1 << 20, false).await.map_err(said)?;
        if part.is_empty() {
            return Ok(bytes);
        }
        bytes.extend(part);
    }
}

/// The requirement on names that tasks compete for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// The held names exist, and no others.
    Exact,
    /// The certainly held names exist.
    Least,
    /// Nothing.
    Any,
}

/// Judges the names: kept files are there, moved directories are reachable, and the requirement on those that tasks
/// compete for holds.
async fn names_check(client: &Client, ctx: &Ctx, area: &SharedArea, demand: Names) -> Checked {
    let said = |e: Errno| vec![format!("shared area: {e}")];
    let (names_dir, move_dir) = (area.borrow().fought.dir, area.borrow().fought.move_dir);
    let names = list(client, ctx, names_dir, 7, false).await.map_err(said)?;
    let mut wrong = Vec::new();
    for i in 0..KEPT {
        let kept = format!("kept{i}").into_bytes();
        if names.iter().filter(|(n, _)| *n == kept).count() != 1 {
            wrong.push(format!("shared area: kept{i} is not there once"));
        }
    }
    match demand {
        Names::Exact => wrong.extend(area.borrow().holdings.check(&names)),
        Names::Least => wrong.extend(area.borrow().holdings.missing(&names)),
        Names::Any => {}
    }
    let mut seen = Vec::new();
    let mut left = vec![move_dir];
    while let Some(dir) = left.pop() {
        for (_, ino) in list(client, ctx, dir, 7, true).await.map_err(said)? {
            let a = &mut *area.borrow_mut();
            if let Some(name) = a.fought.moved.get(&ino) {
                a.fought.lies_in.insert(name, dir);
            }
            seen.push(ino);
            left.push(ino);
            if seen.len() > MOVED.len() {
                break;
            }
        }
    }
    seen.sort();
    let want: Vec<Ino> = area.borrow().fought.moved.keys().copied().collect();
    if seen != want {
        wrong.push(format!("shared area: moved directories are {seen:?}, should be {want:?}"));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Judges the state after a crash of the mount, by the guarantees of that crash, and prepares the area to continue. It
/// must be made stable before the tasks begin.
pub async fn crashed(client: &Client, area: &SharedArea, level: Level) -> Checked {
    let one = |e: String| vec![e];
    let ctx = Ctx::root();
    let record_file = area.borrow().record_area.file;
    let bytes = whole(client, record_file).await.map_err(one)?;
    {
        let mut a = area.borrow_mut();
        for (i, record) in a.record_area.records.iter_mut().enumerate() {
            let part = part_of(&bytes, record.offset, record.len);
            record.crashed(level, part).map_err(|e| vec![format!("shared record {i} after a crash: {e}")])?;
        }
        a.tasks.working = 0;
        a.tasks.stop = false;
        a.claims.crashed();
    }
    // These names were not synced: lost power may remove them.
    let demand = if level == Level::Written { Names::Least } else { Names::Any };
    names_check(client, &ctx, area, demand).await?;
    area.borrow_mut().holdings = Holdings::default();
    cells::crashed(client, area).await.map_err(|e| vec![format!("shared cells after a crash: {e}")])?;
    arena::crashed(client, area).await.map_err(|e| vec![format!("after a crash: {e}")])?;
    let said = |e: Errno| vec![format!("shared area: {e}")];
    let names_dir = area.borrow().fought.dir;
    for (name, _) in list(client, &ctx, names_dir, 100, false).await.map_err(said)? {
        if !name.starts_with(b"kept") {
            client.unlink(&ctx, names_dir, &name).await.map_err(said)?;
        }
    }
    cells::new_file(client, area).await.map_err(said)?;
    arena::new_files(client, area).await.map_err(said)?;
    new_log(client, area).await.map_err(said)
}
