//! Games of several mounts whose players append to one file, each through a descriptor that stays open, and rely on its
//! position.
//!
//! Owns: the cluster of a game, its players, and the check of positions. Does not own: the kernel's caches (`Kernel`),
//! the faults beside the players (`Story`).
//!
//! The file is a row of cells of one page. In half of the games each change is made under a file lock that all players
//! take. In these games the position after an append always has to be the end of the player's own bytes. In the other
//! games no player takes locks. There a position is checked only in this case: the kernel got the end (by `stat` while
//! this mount was not changing the file, or with the player's previous append) while no other mount was changing the
//! file, and no other mount has begun a change since. The place of the bytes is checked in all games: the place that
//! the mount reports has to be the end of the file at that moment.

use super::story::Story;
use super::{Failure, Kernel, Mistake, Opened, PAGE, Tally};
use crate::cluster::{Cluster, Mount, Shape};
use crate::dice::Dice;
use crate::linear::{CallId, CellOp, Cells, Linear};
use crate::shared::CellRow;
use amphi_client::{Ctx, FileLockFamily, FileLockOwner, FileLockSpec, LockMode, OpenFlags};
use amphi_env::Env;
use amphi_types::{ByteRange, Ino};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Calls of each player.
const CALLS: u64 = 30;
/// Players on each mount.
const PLAYERS: usize = 2;
/// A truncate leaves fewer cells than this.
const MANY: u64 = 10;

type Told<T = ()> = std::result::Result<T, String>;

/// The changes of one mount that may move the end of the file.
#[derive(Clone, Copy, Default)]
struct Changes {
    begun: u64,
    under_way: u64,
}

/// State that the players share.
struct Table {
    cluster: Rc<Cluster>,
    file: Ino,
    history: RefCell<Linear>,
    /// By mount.
    changes: RefCell<Vec<Changes>>,
    next_tag: Cell<u64>,
    /// Every change is made under a lock.
    locked: bool,
    story: Rc<Story>,
    /// Mounts at work.
    working: Cell<usize>,
    tally: RefCell<Tally>,
}

impl Table {
    /// Returns how many changes other mounts than this have begun, if none is under way.
    fn others(&self, mount: usize) -> Option<u64> {
        let changes = self.changes.borrow();
        let mut others = changes.iter().enumerate().filter(|(at, _)| *at != mount).map(|(_, changes)| changes);
        others.try_fold(0, |sum, c| (c.under_way == 0).then_some(sum + c.begun))
    }
}

/// Plays the game of a seed.
///
/// Errors: the first wrong result, with the last calls.
pub fn play(seed: u64, mistake: Option<Mistake>, talks: bool) -> Result<Tally, Failure> {
    let mut dice = Dice::new(seed, 34);
    let mut shape = Shape::with(seed, Some(1), Some(dice.within(2..4) as usize));
    (shape.embedded, shape.targets) = (false, dice.within(1..4) as u16);
    shape.holder_known_gone = true;
    let cluster = Rc::new(Cluster::new(seed, shape));
    let story = Story::new(&cluster, talks);
    let (own, own_story) = (cluster.clone(), story.clone());
    match cluster.sim.block_on(async move { whole(own, dice, mistake, own_story).await }) {
        Ok(played) => story.judge(played),
        Err(e) => story.judge(Err(format!("{e:?}"))),
    }
}

async fn whole(cluster: Rc<Cluster>, mut dice: Dice, mistake: Option<Mistake>, story: Rc<Story>) -> Told<Tally> {
    cluster.start_server(0).await?;
    let first = cluster.mount().await?;
    let made = first.client.create(&Ctx::root(), Ino::ROOT, b"log", 0o644, OpenFlags::WRITE).await;
    let mounts = cluster.shape.mounts;
    let table = Rc::new(Table {
        cluster: cluster.clone(),
        file: made.map_err(|e| e.to_string())?.attr.ino,
        history: RefCell::default(),
        changes: RefCell::new(vec![Changes::default(); mounts]),
        next_tag: Cell::new(1 << 40),
        locked: dice.one_in(2),
        story: story.clone(),
        working: Cell::new(mounts),
        tally: RefCell::default(),
    });
    let mut first = Some(first);
    for at in 0..mounts {
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

/// A mount is admitted, its players play, it leaves.
async fn stay(table: &Rc<Table>, at: usize, mut dice: Dice, mount: Option<Mount>, mistake: Option<Mistake>) -> Told {
    let cluster = table.cluster.clone();
    let mount = match mount {
        Some(mount) => mount,
        None => {
            cluster.env.sleep(Duration::from_millis(dice.below(600))).await;
            cluster.mount_at(at).await?
        }
    };
    table.story.note(&format!("m{at}"), "is there");
    let late_us = (15_000, dice.pick(&[100, 2_000, 60_000]).copied().unwrap_or(100));
    let kernel = Kernel::new(mount.client.clone(), cluster.env.clone(), Dice::new(dice.bits(), 3), late_us, mistake);
    let left = Rc::new(Cell::new(PLAYERS));
    for number in 0..PLAYERS {
        let (table, kernel, left) = (table.clone(), kernel.clone(), left.clone());
        let dice = Dice::new(dice.bits(), number as u64);
        cluster.env.spawn(async move {
            let thread = (100 + at * 10 + number) as u32;
            let (who, ctx) = (format!("m{at}p{number}"), Ctx { pid: thread, tid: thread, ..Ctx::root() });
            let mut player = Player { table: table.clone(), kernel, at, ctx, who, dice, open: None, told: None };
            if let Err(e) = player.play().await {
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
    cluster.unmount(mount).await
}

struct Player {
    table: Rc<Table>,
    kernel: Rc<Kernel>,
    at: usize,
    ctx: Ctx,
    who: String,
    dice: Dice,
    /// Open to append.
    open: Option<Rc<Opened>>,
    /// `Table::others` at the moment from which the kernel knows the end.
    told: Option<u64>,
}

impl Player {
    async fn play(&mut self) -> Told {
        for _ in 0..CALLS {
            if self.table.story.is_wrong() {
                break;
            }
            // Without locks, a position can be checked only while no other mount changes the file.
            if !self.table.locked || self.dice.one_in(3) {
                let us = if self.dice.one_in(6) { 300_000 } else { 8_000 };
                let us = if self.table.locked { us } else { us.max(100_000) };
                self.table.cluster.env.sleep(Duration::from_micros(self.dice.below(us))).await;
            }
            if self.dice.one_in(10) {
                self.open = None;
            }
            match self.dice.weighted(&[8, 2, 1, 2]) {
                0 => self.append_in_turn().await?,
                1 => self.stat().await?,
                2 => self.cut().await?,
                _ => self.read().await?,
            }
        }
        Ok(())
    }

    fn begin(&self, op: CellOp) -> CallId {
        self.table.story.note(&self.who, &format!("{op:x?} ..."));
        self.table.history.borrow_mut().begin(op)
    }

    fn end(&self, call: CallId, what: &str, cells: &Cells) -> Told {
        self.table.story.note(&self.who, &format!("  ... {what} gave {:x?}", cells.0));
        self.table.history.borrow_mut().end(call, cells).map_err(|e| format!("{what}: {e}"))
    }

    fn changes(&self, begins: bool) {
        let of = &mut self.table.changes.borrow_mut()[self.at];
        of.begun += u64::from(begins);
        of.under_way = if begins { of.under_way + 1 } else { of.under_way - 1 };
    }

    async fn opened(&mut self) -> Told<Rc<Opened>> {
        if let Some(open) = &self.open {
            return Ok(open.clone());
        }
        let flags = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
        let opened = self.kernel.open(&self.ctx, self.table.file, flags).await;
        let opened = Rc::new(opened.map_err(|e| format!("open: {e}"))?);
        self.open = Some(opened.clone());
        Ok(opened)
    }

    fn spec(&self) -> FileLockSpec {
        let pid = self.ctx.pid;
        FileLockSpec {
            ino: self.table.file,
            owner: FileLockOwner { family: FileLockFamily::Posix, id: u64::from(pid) },
            range: ByteRange::ALL,
            mode: LockMode::Write,
            pid,
        }
    }

    /// Takes the lock if this is a game of locks. Returns whether it did.
    async fn take_turn(&mut self) -> Told<bool> {
        if !self.table.locked {
            return Ok(false);
        }
        self.opened().await?;
        self.kernel.lock_file(&self.ctx, self.spec()).await.map_err(|e| format!("lock: {e}"))?;
        self.table.story.note(&self.who, "has the lock");
        Ok(true)
    }

    async fn end_turn(&self, taken: bool) -> Told {
        if taken {
            self.table.story.note(&self.who, "gives the lock up");
            self.kernel.unlock_file(self.spec()).await.map_err(|e| format!("unlock: {e}"))?;
        }
        Ok(())
    }

    async fn append_in_turn(&mut self) -> Told {
        let taken = self.take_turn().await?;
        if taken {
            self.told = self.table.others(self.at);
        }
        for _ in 0..self.dice.within(1..4) {
            self.append(taken).await?;
        }
        self.end_turn(taken).await
    }

    async fn append(&mut self, in_turn: bool) -> Told {
        let open = self.opened().await?;
        let tag = self.table.next_tag.get() + 1;
        self.table.next_tag.set(tag);
        let before = self.table.others(self.at);
        let call = self.begin(CellOp::AppendTold { tag });
        self.changes(true);
        let bytes = tag.to_le_bytes().repeat((PAGE / 8) as usize);
        let appended = self.kernel.append(&self.ctx, &open, &bytes).await.map_err(|e| format!("append: {e}"))?;
        self.changes(false);
        let others = self.table.others(self.at);
        let is_known = self.told.is_some() && self.told == others;
        if in_turn && !is_known {
            return Err("the lock keeps nobody away".into());
        }
        // If the append was made elsewhere than the kernel expected, the mount made the kernel take the end with this
        // answer.
        self.told = others.filter(|_| appended.told && before == others);
        let end = appended.at + PAGE;
        self.end(call, "append", &Cells(vec![end / PAGE]))?;
        if is_known && appended.position != end {
            return Err(format!("an append ended at {end:x}, and left the position at {:x}", appended.position));
        }
        let of = &mut self.table.tally.borrow_mut().positions;
        *if is_known { &mut of.0 } else { &mut of.1 } += 1;
        Ok(())
    }

    async fn stat(&mut self) -> Told {
        // The answer to an append of this mount from before a change elsewhere would move the kernel's end back.
        let is_quiet = self.table.changes.borrow()[self.at].under_way == 0;
        let others = self.table.others(self.at).filter(|_| is_quiet);
        let call = self.begin(CellOp::Size);
        let size = self.kernel.size(&self.ctx, self.table.file).await.map_err(|e| format!("stat: {e}"))?;
        self.told = others;
        self.end(call, "stat", &Cells(vec![size / PAGE]))
    }

    /// Cuts the file, or makes it longer.
    async fn cut(&mut self) -> Told {
        let taken = self.take_turn().await?;
        let n = self.dice.below(MANY);
        let call = self.begin(CellOp::Resize { n: n as usize });
        self.changes(true);
        let done = self.kernel.truncate(&self.ctx, self.table.file, n * PAGE).await;
        self.changes(false);
        done.map_err(|e| format!("truncate: {e}"))?;
        self.end(call, "truncate", &Cells::default())?;
        self.end_turn(taken).await
    }

    async fn read(&mut self) -> Told {
        let open = self.opened().await?;
        let (at, n) = (self.dice.below(MANY), 4);
        let call = self.begin(CellOp::Read { at: at as usize, n });
        let bytes = self.kernel.read_past(&self.ctx, &open, at * PAGE, n as u64 * PAGE).await;
        let row = CellRow { ino: self.table.file, len: PAGE };
        let cells = row.cells(&bytes.map_err(|e| format!("read: {e}"))?)?;
        self.end(call, "read", &cells)
    }
}
