//! Games of several mounts, each with a kernel that caches data under timeouts: players read, map, stat and change few
//! files and names, and each call is judged.
//!
//! Owns: the cluster of a game, its players, the faults that happen meanwhile, and the check by `Linear`. Does not own:
//! the kernel's caches (`Kernel`).
//!
//! A file is a row of cells of one page, so that a read of a cell by the kernel is one event; a name is a cell that
//! holds the inode to which it leads. Files are opened and closed all the time, since the kernel serves reads only of
//! files without a writer at the open. In half of the games only every second mount changes anything. The kernels of
//! the others then take up to 1.2 s to drop pages: longer than a lock waits for pages that may be dirty
//! (`PATIENCE_STEPS`), and shorter than it waits for clean ones (`STEPS_MAX`). Stores into a mapping are calls that end
//! with the `msync` behind them. Mounts beyond the first are admitted some time after it, leave, and return, so that
//! the first is in sole and in shared mode alternately.

use super::story::Story;
use super::{Failure, Kernel, Mistake, Opened, PAGE, Shown, Tally};
use crate::cluster::{Cluster, Mount, Shape};
use crate::dice::Dice;
use crate::linear::{CallId, CellOp, Cells, Linear};
use crate::shared::CellRow;
use amphi_client::{Ctx, OpenFlags};
use amphi_env::Env;
use amphi_types::{Errno, Ino};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Cells in which calls lie.
const CELLS: u64 = 6;
/// Files.
const FILES: usize = 2;
/// Names that are moved over.
const NAMES: usize = 2;
/// Players on each mount.
const PLAYERS: usize = 2;
/// Calls of each player.
const CALLS: u64 = 60;
/// A call takes no longer than this, except during faults.
const PATIENCE: Duration = Duration::from_secs(60);
/// A name has one cell.
const ONE: usize = 1;

type Told<T = ()> = std::result::Result<T, String>;

/// State that the players share.
struct Table {
    cluster: Rc<Cluster>,
    files: Vec<Ino>,
    histories: RefCell<Vec<Linear>>,
    names: RefCell<Vec<Linear>>,
    next_tag: Cell<u64>,
    story: Rc<Story>,
    /// Players at work.
    working: Cell<usize>,
    /// Mounts that write keep no pages for others, and kernels that keep pages drop them late.
    apart: bool,
    tally: RefCell<Tally>,
}

impl Table {
    fn tag(&self) -> u64 {
        self.next_tag.set(self.next_tag.get() + 1);
        self.next_tag.get()
    }
}

/// Plays the game of a seed.
///
/// Errors: what is wrong, with the last calls.
pub fn play(seed: u64, mistake: Option<Mistake>, talks: bool) -> Result<Tally, Failure> {
    let mut dice = Dice::new(seed, 30);
    let mut shape = Shape::with(seed, Some(1), Some(dice.within(2..4) as usize));
    (shape.embedded, shape.targets) = (false, dice.within(1..4) as u16);
    shape.holder_known_gone = true;
    shape.tunables.retain(|(name, _)| name != "hybrid.mode" && name != "hybrid.large_read_bytes");
    let cluster = Rc::new(Cluster::new(seed, shape));
    let story = Story::new(&cluster, talks);
    let (own, own_story, apart) = (cluster.clone(), story.clone(), dice.one_in(2));
    let ended = cluster.sim.block_on(async move { whole(own, dice, mistake, (own_story, apart)).await });
    match ended {
        Ok(played) => story.judge(played),
        Err(e) => story.judge(Err(format!("{e:?}"))),
    }
}

async fn whole(
    cluster: Rc<Cluster>,
    mut dice: Dice,
    mistake: Option<Mistake>,
    (story, apart): (Rc<Story>, bool),
) -> Told<Tally> {
    let said = |e: Errno| e.to_string();
    cluster.start_server(0).await?;
    let first = cluster.mount().await?;
    let ctx = Ctx::root();
    let mut files = Vec::new();
    for n in 0..FILES {
        let name = format!("f{n}");
        let made =
            first.client.create(&ctx, Ino::ROOT, name.as_bytes(), 0o644, OpenFlags::WRITE).await.map_err(said)?;
        files.push(made.attr.ino);
    }
    let mut names = vec![Linear::default(); NAMES];
    for (n, name) in names.iter_mut().enumerate() {
        let made = first.client.create(&ctx, Ino::ROOT, &name_of(n), 0o644, OpenFlags::WRITE).await.map_err(said)?;
        let call = name.begin(CellOp::Write { at: 0, n: ONE, tag: made.attr.ino.0 });
        name.end(call, &Cells::default())?;
    }
    let table = Rc::new(Table {
        cluster: cluster.clone(),
        histories: RefCell::new(vec![Linear::default(); FILES]),
        files,
        names: RefCell::new(names),
        next_tag: Cell::new(1 << 40),
        story: story.clone(),
        working: Cell::new(0),
        apart,
        tally: RefCell::default(),
    });
    let others = cluster.shape.mounts - 1;
    table.working.set(1 + others);
    let mut first = Some(first);
    for at in 0..=others {
        let (table, dice, mount) = (table.clone(), Dice::new(dice.bits(), at as u64), first.take());
        cluster.env.spawn(async move {
            if let Err(e) = stay(&table, at, dice, mount, mistake).await {
                table.story.complain(e);
            }
            table.working.set(table.working.get() - 1);
        });
    }
    story.faults(&cluster, &mut dice, || table.working.get() > 0).await;
    Ok(*table.tally.borrow())
}

/// A mount is admitted, its players play, it leaves; this happens twice unless it is the first mount.
async fn stay(table: &Rc<Table>, at: usize, mut dice: Dice, mount: Option<Mount>, mistake: Option<Mistake>) -> Told {
    let cluster = table.cluster.clone();
    let mut mount = mount;
    let visits = if at == 0 { 1 } else { 2 };
    for _ in 0..visits {
        if at > 0 {
            cluster.env.sleep(Duration::from_millis(dice.below(4_000))).await;
        }
        let mount = match mount.take() {
            Some(mount) => mount,
            None => cluster.mount_at(at).await?,
        };
        table.story.note(&format!("m{at}"), "is there");
        let back_us = if table.apart && !writes(table, at) { 1_200_000 } else { 15_000 };
        let late_us = (back_us, dice.pick(&[100, 2_000, 60_000]).copied().unwrap_or(100));
        let kernel =
            Kernel::new(mount.client.clone(), cluster.env.clone(), Dice::new(dice.bits(), 3), late_us, mistake);
        let left = Rc::new(Cell::new(PLAYERS));
        for player in 0..PLAYERS {
            let dice = Dice::new(dice.bits(), player as u64);
            let (table, kernel, left) = (table.clone(), kernel.clone(), left.clone());
            let calls = if at == 0 { 2 * CALLS } else { CALLS };
            cluster.env.spawn(async move {
                let mut player = Player::new(&table, kernel, (at, player), dice);
                if let Err(e) = player.play(calls).await {
                    table.story.complain(format!("{}: {e}", player.who));
                }
                drop(player);
                left.set(left.get() - 1);
            });
        }
        cluster.wait("the players", || left.get() == 0 || table.story.is_wrong()).await?;
        if table.story.is_wrong() {
            return Ok(());
        }
        kernel.unmounted();
        table.tally.borrow_mut().add(&kernel.tally());
        table.story.note(&format!("m{at}"), "goes");
        cluster.unmount(mount).await?;
    }
    Ok(())
}

/// Returns whether players of a mount change anything.
fn writes(table: &Table, at: usize) -> bool {
    !table.apart || at % 2 == 1
}

fn name_of(n: usize) -> Vec<u8> {
    format!("n{n}").into_bytes()
}

/// A call that is judged when it ends.
type Call = (usize, CallId);

struct Player {
    table: Rc<Table>,
    kernel: Rc<Kernel>,
    at: usize,
    number: usize,
    who: String,
    dice: Dice,
    /// Files that are open for reading.
    open: Vec<Option<Rc<Opened>>>,
}

impl Player {
    fn new(table: &Rc<Table>, kernel: Rc<Kernel>, (at, number): (usize, usize), dice: Dice) -> Player {
        let open = (0..FILES).map(|_| None).collect();
        Player { table: table.clone(), kernel, at, number, who: format!("m{at}p{number}"), dice, open }
    }

    fn ctx(&self) -> Ctx {
        let thread = (100 + self.at * 10 + self.number) as u32;
        Ctx { pid: thread, tid: thread, ..Ctx::root() }
    }

    async fn play(&mut self, calls: u64) -> Told {
        let writes = u32::from(writes(&self.table, self.at));
        for _ in 0..calls {
            if self.table.story.is_wrong() {
                break;
            }
            if self.dice.one_in(4) {
                let us = if self.dice.one_in(6) { 300_000 } else { 3_000 };
                self.table.cluster.env.sleep(Duration::from_micros(self.dice.below(us))).await;
            }
            let file = self.dice.below(FILES as u64) as usize;
            if self.dice.one_in(8) {
                self.open[file] = None;
            }
            let begin = self.table.cluster.env.now();
            match self.dice.weighted(&[10, 4, 3, 4 * writes, writes, 3, 2 * writes, 1, 4 * writes]) {
                0 => self.read(file, false).await?,
                1 => self.read(file, true).await?,
                2 => self.size(file).await?,
                3 => self.write(file).await?,
                4 => self.truncate(file).await?,
                5 => self.look().await?,
                6 => self.replace().await?,
                8 => self.store(file).await?,
                _ => self.kernel.evict(self.table.files[file]),
            }
            let took = self.table.cluster.env.now().since(begin);
            if took > PATIENCE {
                return Err(format!("a call took {took:?}"));
            }
        }
        Ok(())
    }

    fn begin(&self, file: usize, op: CellOp) -> Call {
        self.table.story.note(&self.who, &format!("f{file} {op:x?} ..."));
        (file, self.table.histories.borrow_mut()[file].begin(op))
    }

    fn end(&self, (file, call): Call, what: &str, cells: &Cells) -> Told {
        self.table.story.note(&self.who, &format!("  ... f{file} {what} gave {:x?}", cells.0));
        let judged = self.table.histories.borrow_mut()[file].end(call, cells);
        judged.map_err(|e| format!("{what} of f{file}: {e}"))
    }

    fn row(&self, file: usize) -> CellRow {
        CellRow { ino: self.table.files[file], len: PAGE }
    }

    async fn reader(&mut self, file: usize) -> Told<Rc<Opened>> {
        if let Some(open) = &self.open[file] {
            return Ok(open.clone());
        }
        let opened = self.kernel.open(&self.ctx(), self.table.files[file], OpenFlags::READ).await;
        let opened = Rc::new(opened.map_err(|e| format!("open: {e}"))?);
        self.table.story.note(&self.who, &format!("f{file} opened, by the kernel: {}", opened.serves));
        self.open[file] = Some(opened.clone());
        Ok(opened)
    }

    async fn read(&mut self, file: usize, mapped: bool) -> Told {
        let open = self.reader(file).await?;
        let at = self.dice.below(CELLS);
        let n = if open.serves { 1 } else { self.dice.within(1..4) };
        if mapped && !open.serves {
            return Ok(());
        }
        let call = self.begin(file, CellOp::Read { at: at as usize, n: n as usize });
        let read = if open.serves {
            self.kernel.read_page(&self.ctx(), &open, at, mapped).await
        } else {
            self.kernel.read_past(&self.ctx(), &open, at * PAGE, n * PAGE).await.map(Shown::Bytes)
        };
        let what = if mapped { "map" } else { "read" };
        match read.map_err(|e| format!("{what} of f{file}: {e}"))? {
            // A mapping ends at the size that the kernel got last.
            shown if matches!(shown, Shown::Cut | Shown::Unsynced) || (mapped && shown == Shown::Nothing) => {
                self.table.story.note(&self.who, &format!("  ... f{file} {what} shows nothing to judge: {shown:?}"));
                self.table.histories.borrow_mut()[file].give_up(call.1);
                Ok(())
            }
            Shown::Bytes(bytes) => self.end(call, what, &self.row(file).cells(&bytes)?),
            _ => self.end(call, what, &Cells::default()),
        }
    }

    async fn size(&mut self, file: usize) -> Told {
        let call = self.begin(file, CellOp::Size);
        let size = self.kernel.size(&self.ctx(), self.table.files[file]).await.map_err(|e| format!("size: {e}"))?;
        if !size.is_multiple_of(PAGE) {
            return Err(format!("{size} bytes"));
        }
        self.end(call, "size", &Cells(vec![size / PAGE]))?;
        self.touch(file, size / PAGE)
    }

    /// Touches the last of the `n` pages that a file has according to the last answer.
    fn touch(&self, file: usize, n: u64) -> Told {
        match n.checked_sub(1) {
            Some(at) if !self.kernel.reaches(self.table.files[file], at) => {
                let call = self.begin(file, CellOp::Read { at: at as usize, n: ONE });
                self.end(call, "touch", &Cells::default())
            }
            _ => Ok(()),
        }
    }

    async fn write(&mut self, file: usize) -> Told {
        let ctx = self.ctx();
        let open = self.kernel.open(&ctx, self.table.files[file], OpenFlags::READ_WRITE).await;
        let open = open.map_err(|e| format!("open: {e}"))?;
        let (at, n) = (self.dice.below(CELLS), self.dice.within(1..3));
        let tag = self.table.tag();
        let call = self.begin(file, CellOp::Write { at: at as usize, n: n as usize, tag });
        let bytes = tag.to_le_bytes().repeat((n * PAGE / 8) as usize);
        let written = self.kernel.write(&ctx, &open, at * PAGE, &bytes).await.map_err(|e| format!("write: {e}"))?;
        if written != bytes.len() {
            return Err(format!("{written} of {} bytes", bytes.len()));
        }
        self.end(call, "write", &Cells::default())
    }

    /// Stores into a page of a mapping, and makes it stable some time later: others see it between these moments.
    async fn store(&mut self, file: usize) -> Told {
        let ctx = self.ctx();
        let open = self.kernel.open(&ctx, self.table.files[file], OpenFlags::READ_WRITE).await;
        let open = open.map_err(|e| format!("open: {e}"))?;
        let (at, tag) = (self.dice.below(CELLS), self.table.tag());
        if self.dice.one_in(2) {
            self.kernel.read_page(&ctx, &open, at, true).await.map_err(|e| format!("map: {e}"))?;
        }
        let call = self.begin(file, CellOp::Store { at: at as usize, tag });
        let is_stored = self.kernel.store(&ctx, &open, at, &tag.to_le_bytes()).await;
        if !is_stored.map_err(|e| format!("store: {e}"))? {
            self.table.story.note(&self.who, &format!("  ... f{file} ends before the store"));
            self.table.histories.borrow_mut()[file].give_up(call.1);
            return Ok(());
        }
        self.table.story.note(&self.who, &format!("  ... f{file} stored {tag:x}"));
        let us = if self.dice.one_in(4) { 100_000 } else { 2_000 };
        self.table.cluster.env.sleep(Duration::from_micros(self.dice.below(us))).await;
        self.kernel.msync(&open, at).await.map_err(|e| format!("msync: {e}"))?;
        self.end(call, "msync", &Cells::default())
    }

    async fn truncate(&mut self, file: usize) -> Told {
        let n = self.dice.below(CELLS + 1);
        let call = self.begin(file, CellOp::Resize { n: n as usize });
        let done = self.kernel.truncate(&self.ctx(), self.table.files[file], n * PAGE).await;
        done.map_err(|e| format!("truncate: {e}"))?;
        self.end(call, "truncate", &Cells::default())
    }

    async fn look(&mut self) -> Told {
        let n = self.dice.below(NAMES as u64) as usize;
        let call = self.table.names.borrow_mut()[n].begin(CellOp::Read { at: 0, n: ONE });
        self.table.story.note(&self.who, &format!("n{n} ..."));
        let ino = self.kernel.lookup(&self.ctx(), Ino::ROOT, &name_of(n)).await;
        let ino = ino.map_err(|e| format!("lookup of n{n}: {e}"))?;
        self.table.story.note(&self.who, &format!("  ... n{n} is {ino}"));
        let judged = self.table.names.borrow_mut()[n].end(call, &Cells(vec![ino.0]));
        judged.map_err(|e| format!("n{n}: {e}"))
    }

    /// Moves a new file over a name.
    async fn replace(&mut self) -> Told {
        let n = self.dice.below(NAMES as u64) as usize;
        let (ctx, new) = (self.ctx(), format!("new{}", self.table.tag()).into_bytes());
        let made = self.kernel.client.create(&ctx, Ino::ROOT, &new, 0o644, OpenFlags::WRITE).await;
        let made = made.map_err(|e| format!("create: {e}"))?;
        if self.dice.one_in(2) {
            // The kernel has looked up the file under its first name.
            self.kernel.lookup(&ctx, Ino::ROOT, &new).await.map_err(|e| format!("lookup: {e}"))?;
        }
        let tag = made.attr.ino.0;
        let call = self.table.names.borrow_mut()[n].begin(CellOp::Write { at: 0, n: ONE, tag });
        self.table.story.note(&self.who, &format!("n{n} becomes {} ...", made.attr.ino));
        let done = self.kernel.rename(&ctx, Ino::ROOT, &new, &name_of(n)).await;
        done.map_err(|e| format!("rename: {e}"))?;
        self.table.story.note(&self.who, &format!("  ... n{n} became {}", made.attr.ino));
        self.table.names.borrow_mut()[n].end(call, &Cells::default())
    }
}
