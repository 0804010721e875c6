//! The arena: few files for which several mounts compete with small records that overlap or are neighbours, so that the
//! files become contended, while the settings of the mounts and servers change.
//!
//! Owns: its files, each of which is a row of cells with its own history, and the calls on them. Does not own: which
//! histories are right (`Linear`), how a call is made (`Row`).
//!
//! Calls are buffered and direct, by open files that are set to a mode, request their locks ahead or exactly, and join
//! groups. A switching storm (`tunables`) changes thresholds, the size and growth of locks and the detection of
//! contention meanwhile. Programs must not notice any of this: each file has to stay linearizable.
//!
//! Groups. In a group of its own, a task is the only member and makes calls of all kinds. In the group of the common
//! file, each member has cells of its own, because members coordinate their calls themselves: it writes to these cells,
//! and reads its own writes since it joined. While a task is in a group it calls only through the open file that is a
//! member: through another open file it would wait for itself.
//!
//! Stopped and killed mounts. A mount that is to be killed, or stopped for longer than others wait for it, writes
//! directly only: data that is only in its cache would be lost with it. A call of it that fails after the stop ends its
//! task; it has happened or not, as have those that a kill cut off.

mod tunables;

use super::cells::Row;
use super::{SharedArea, Sharer, Told, whole};
use crate::dice::Dice;
use crate::linear::{CallId, CellOp, Linear};
use amphi_client::{Client, Ctx, Interrupt, OpenFile, OpenFlags};
use amphi_env::{Env, SimEnv};
use amphi_types::{ByteRange, Errno, Ino, IoMode, Result};
use amphi_wire::XattrMode;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Lengths of a cell, bytes: whole blocks, parts of blocks, records that reach over blocks and objects.
const LENGTHS: [u64; 7] = [512, 1000, 4096, 5003, 16_384, 24_000, 47_008];
/// Cells in which most calls lie.
const CELLS: u64 = 16;
/// More cells than this are cut off.
const MANY: usize = 24;
/// Most files.
const FILES: u64 = 3;
/// The group that all tasks may share.
const COMMON: u64 = 1000;

/// A file of the arena.
struct Pit {
    row: Row,
    linear: Linear,
    /// Calls that have not returned: under way, failed as their mount was stopped, or cut off as it was killed.
    without_result: BTreeSet<CallId>,
}

/// The files.
#[derive(Default)]
pub struct Arena {
    /// Whether tasks do nothing else.
    pub on: bool,
    /// Whether tasks change tunables.
    pub storms: bool,
    /// Whether a mount may be stopped for long or killed.
    pub stops: bool,
    /// Whether tasks join groups.
    groups: bool,
    lengths: Vec<u64>,
    made: u64,
    pits: Vec<Pit>,
    /// The mount that is to be stopped for long or killed.
    pub victim: Option<usize>,
    /// The mount has been stopped, so its calls may fail.
    pub was_stopped: bool,
    /// Calls that other mounts than the stopped one made.
    pub others_calls: u64,
    /// Tasks of other mounts at work.
    pub others_working: usize,
}

impl Arena {
    /// An arena by chance.
    pub fn drawn(dice: &mut Dice) -> Arena {
        let files = dice.within(1..FILES + 1);
        let lengths = (0..files).map(|_| LENGTHS[dice.below(LENGTHS.len() as u64) as usize]).collect();
        let (storms, groups, stops) = (dice.one_in(2), dice.one_in(2), dice.one_in(3));
        // The number also says which layouts the files have.
        let made = dice.below(3);
        Arena { on: true, storms, stops, groups, lengths, made, ..Arena::default() }
    }

    /// A description of the arena, for people.
    pub fn describe(&self) -> String {
        let with = |on, what| if on { what } else { "" };
        let (storms, groups) = (with(self.storms, ", storms"), with(self.groups, ", groups"));
        format!("an arena of cells of {:?} bytes{storms}{groups}{}", self.lengths, with(self.stops, ", stops"))
    }

    /// An episode of this many tasks on this many mounts begins.
    pub fn begin(&mut self, tasks: usize, mounts: usize, victim: Option<usize>) {
        (self.victim, self.was_stopped, self.others_calls) = (victim, false, 0);
        self.others_working = (0..tasks).filter(|task| Some(task % mounts) != victim).count();
    }

    /// All tasks rest, and no call of the stopped or killed mount happens any more.
    pub fn settle_victim(&mut self) {
        for pit in &mut self.pits {
            std::mem::take(&mut pit.without_result).into_iter().for_each(|call| pit.linear.give_up(call));
        }
        (self.victim, self.was_stopped) = (None, false);
    }
}

/// Makes new files with empty histories, and sets the initial tunables of the servers.
pub(super) async fn new_files(client: &Client, area: &SharedArea) -> Result<()> {
    if !area.borrow().arena.on {
        return Ok(());
    }
    let ctx = Ctx::root();
    let (root, lengths, stops, made) = {
        let mut a = area.borrow_mut();
        a.arena.made += 1;
        (a.root, a.arena.lengths.clone(), a.arena.stops, a.arena.made)
    };
    let mut pits = Vec::new();
    for (i, len) in lengths.into_iter().enumerate() {
        let name = format!("arena{made}.{i}");
        let ino = client.create(&ctx, root, name.as_bytes(), 0o644, OpenFlags::WRITE).await?.attr.ino;
        // A call that fails must have happened whole or not at all, which several objects would not promise.
        let layout: &[u8] = match (made + i as u64) % 3 {
            _ if stops => b"whole",
            0 => b"whole",
            1 => b"striped,size=64K,count=3",
            _ => b"growing",
        };
        client.setxattr(&ctx, ino, b"user.amphi.layout", layout, XattrMode::Set).await?;
        pits.push(Pit { row: Row { ino, len }, linear: Linear::default(), without_result: BTreeSet::new() });
    }
    area.borrow_mut().arena.pits = pits;
    for setting in tunables::AT_FIRST {
        client.setxattr(&ctx, Ino::ROOT, tunables::SET, setting.as_bytes(), XattrMode::Set).await?;
    }
    Ok(())
}

/// Judges the files that a crash of the mounts has left.
pub(super) async fn crashed(client: &Client, area: &SharedArea) -> Told {
    let count = area.borrow().arena.pits.len();
    for pit in 0..count {
        let row = area.borrow().arena.pits[pit].row;
        let bytes = whole(client, row.ino).await?;
        let judged = row.judge_left(&bytes, &area.borrow().arena.pits[pit].linear);
        judged.map_err(|e| format!("arena file {pit}: {e}"))?;
    }
    Ok(())
}

/// Judges whole files when all calls have returned.
pub(super) async fn check(client: &Client, area: &SharedArea) -> Told {
    let count = area.borrow().arena.pits.len();
    for pit in 0..count {
        let row = area.borrow().arena.pits[pit].row;
        let all = row.cells(&whole(client, row.ino).await?)?;
        let linear = &mut area.borrow_mut().arena.pits[pit].linear;
        let call = linear.begin(CellOp::Read { at: 0, n: 1 << 20 });
        linear.end(call, &all).map_err(|e| format!("arena file {pit}: {e}"))?;
    }
    Ok(())
}

/// The open file of a task in the arena.
struct Seat {
    file: Arc<OpenFile>,
    end_file: Arc<OpenFile>,
}

/// A task of the arena.
struct Fighter {
    sharer: Sharer,
    mount: usize,
    seats: Vec<Option<Seat>>,
}

/// Makes calls until none are left, the area is asked to rest, or the mount was stopped for too long. `mount`: the
/// number of its own.
pub async fn fight(env: SimEnv, client: Client, area: SharedArea, (task, mount): (usize, usize), mut dice: Dice) {
    let seats = area.borrow().arena.pits.iter().map(|_| None).collect();
    let sharer = Sharer::new(env.clone(), client, area.clone(), task);
    let mut fighter = Fighter { sharer, mount, seats };
    loop {
        if !super::takes_call(&area, task) {
            break;
        }
        if dice.one_in(6) {
            env.sleep(Duration::from_micros(dice.below(3000))).await;
        }
        let done = fighter.act(&mut dice).await;
        if let Err(e) = done {
            if fighter.may_fail() {
                fighter.sharer.note(format!("ends after its mount was stopped: {e}"));
                break;
            }
            area.borrow_mut().complain(format!("task {task}: {e}"));
        }
        if area.borrow().arena.victim != Some(mount) {
            area.borrow_mut().arena.others_calls += 1;
        }
    }
    drop(fighter);
    let mut a = area.borrow_mut();
    a.tasks.working -= 1;
    if a.arena.victim != Some(mount) {
        a.arena.others_working -= 1;
    }
}

impl Fighter {
    fn is_victim(&self) -> bool {
        self.sharer.area.borrow().arena.victim == Some(self.mount)
    }

    fn may_fail(&self) -> bool {
        self.is_victim() && self.sharer.area.borrow().arena.was_stopped
    }

    async fn act(&mut self, dice: &mut Dice) -> Told {
        let pit = (dice.below(self.seats.len() as u64) * dice.below(2)) as usize;
        let (storms, groups) = (self.sharer.area.borrow().arena.storms, self.sharer.area.borrow().arena.groups);
        if dice.one_in(12) {
            self.seats[pit] = None;
        }
        self.sit_down(pit, dice).await?;
        match dice.weighted(&[30, 3, 1, 2, 1, if storms { 3 } else { 0 }, 2, u32::from(groups)]) {
            0 => {
                let op = self.draw(pit, dice);
                self.call(pit, op, dice).await
            }
            1 => self.lock_ahead(pit, dice),
            2 => {
                let file = &self.seat(pit).file;
                file.set_no_expand(dice.one_in(2));
                Ok(())
            }
            3 => {
                let mode = [IoMode::Auto, IoMode::Auto, IoMode::Buffered, IoMode::Direct][dice.below(4) as usize];
                // A stopped mount loses the data that only it has in its cache.
                let mode = if self.is_victim() { IoMode::Auto } else { mode };
                self.seat(pit).file.set_io_mode(mode);
                Ok(())
            }
            4 => {
                let file = self.seat(pit).file.clone();
                let synced = self.sharer.client.fsync(&self.sharer.ctx(), &file, dice.one_in(2)).await;
                synced.map_err(|e| format!("fsync: {e}"))
            }
            5 => self.switch(dice).await,
            6 => self.records(pit, dice).await,
            _ => self.group(pit, dice).await,
        }
    }

    fn seat(&self, pit: usize) -> &Seat {
        self.seats[pit].as_ref().expect("taken before")
    }

    async fn sit_down(&mut self, pit: usize, dice: &mut Dice) -> Told {
        if self.seats[pit].is_some() {
            return Ok(());
        }
        let ino = self.sharer.area.borrow().arena.pits[pit].row.ino;
        let flags = OpenFlags { direct: dice.one_in(5), dsync: dice.one_in(12), ..OpenFlags::READ_WRITE };
        let file = self.sharer.open(ino, flags).await?;
        let end_file = self.sharer.open(ino, OpenFlags { append: true, ..flags }).await?;
        self.seats[pit] = Some(Seat { file, end_file });
        Ok(())
    }

    fn draw(&self, pit: usize, dice: &mut Dice) -> CellOp {
        let mut a = self.sharer.area.borrow_mut();
        let most = a.arena.pits[pit].linear.contents().iter().map(Vec::len).max().unwrap_or(0);
        if most > MANY {
            return CellOp::Resize { n: dice.below(CELLS) as usize };
        }
        let (at, n) = (dice.below(CELLS) as usize, dice.within(1..4) as usize);
        match dice.weighted(&[12, 1, 12, 1, 2, 1]) {
            0 => CellOp::Write { at, n, tag: a.tag() },
            1 => CellOp::Append { n: 1, tag: a.tag() },
            2 => CellOp::Read { at, n: n + 1 },
            3 => CellOp::Resize { n: at },
            4 => CellOp::Size,
            _ => CellOp::Zero { at, n },
        }
    }

    /// Makes one call on the cells, and checks its result.
    async fn call(&mut self, pit: usize, op: CellOp, dice: &mut Dice) -> Told {
        let writes = !matches!(op, CellOp::Read { .. } | CellOp::Size);
        let direct = dice.one_in(4) || (writes && self.is_victim());
        let by_open = dice.one_in(2);
        let (row, call) = {
            let pit = &mut self.sharer.area.borrow_mut().arena.pits[pit];
            let call = pit.linear.begin(op.clone());
            pit.without_result.insert(call);
            (pit.row, call)
        };
        let begin = self.sharer.env.now();
        let sharer = &self.sharer;
        sharer.note(format!("arena {pit}, cells of {}: {op:x?}{} ...", row.len, if direct { " direct" } else { "" }));
        let seat = self.seat(pit);
        let (by, files) = ((&sharer.client, &sharer.ctx()), (&seat.file, &seat.end_file));
        let returned = row.perform(by, &op, files, direct, by_open).await;
        match returned {
            Ok(cells) => {
                sharer.note(format!("  ... {op:x?} gave {:x?}", cells.0));
                let judged = {
                    let a = &mut *sharer.area.borrow_mut();
                    if !a.arena.groups {
                        a.told.longest = a.told.longest.max(sharer.env.now().since(begin));
                    }
                    a.arena.pits[pit].without_result.remove(&call);
                    a.arena.pits[pit].linear.end(call, &cells)
                };
                judged.map_err(|e| {
                    // A result on a stopped mount is judged as one on the others: this is no failure of the call.
                    let line = format!("arena file {pit} is not one file: {e}");
                    sharer.area.borrow_mut().complain(format!("task {}: {line}", sharer.task));
                    line
                })
            }
            Err(e) => Err(format!("arena file {pit}: {op:x?}: {e}")),
        }
    }

    /// Writes cells at equal distances, as a process of a parallel program does.
    async fn records(&mut self, pit: usize, dice: &mut Dice) -> Told {
        let (first, distance, count) = (dice.below(4), dice.within(1..4), dice.within(4..9));
        for n in 0..count {
            let tag = self.sharer.area.borrow_mut().tag();
            let at = ((first + n * distance) % CELLS) as usize;
            self.call(pit, CellOp::Write { at, n: 1, tag }, dice).await?;
        }
        Ok(())
    }

    fn lock_ahead(&self, pit: usize, dice: &mut Dice) -> Told {
        let len = self.sharer.area.borrow().arena.pits[pit].row.len;
        let file = &self.seat(pit).file;
        let shift = if dice.one_in(3) { dice.below(len) } else { 0 };
        let start = dice.below(CELLS) * len + shift;
        let range = ByteRange { start, end: start + dice.within(1..4) * len };
        let write = dice.one_in(2);
        let asked = self.sharer.client.lock_ahead(file, range, write);
        self.sharer.note(format!("arena {pit}: lock ahead {range:?}, write {write}: {asked:?}"));
        match asked {
            Ok(_) | Err(Errno::Busy) => Ok(()),
            Err(e) => Err(format!("lock ahead: {e}")),
        }
    }

    async fn switch(&mut self, dice: &mut Dice) -> Told {
        let setting = tunables::draw(dice);
        self.sharer.note(format!("sets {setting}"));
        let (ctx, client) = (self.sharer.ctx(), &self.sharer.client);
        let set = client.setxattr(&ctx, Ino::ROOT, tunables::SET, setting.as_bytes(), XattrMode::Set).await;
        set.map_err(|e| format!("set {setting}: {e}"))
    }

    /// Some calls as a member of a group.
    async fn group(&mut self, pit: usize, dice: &mut Dice) -> Told {
        let common = dice.one_in(2);
        let group = if common { COMMON } else { 1 + self.sharer.task as u64 };
        let (wait, interrupt) = (!dice.one_in(3), Arc::new(Interrupt::new()));
        let file = self.seat(pit).file.clone();
        let impatient = wait && dice.one_in(4);
        if impatient {
            let (env, fired, us) = (self.sharer.env.clone(), interrupt.clone(), dice.below(20_000));
            self.sharer.env.spawn(async move {
                env.sleep(Duration::from_micros(us)).await;
                fired.fire();
            });
        }
        self.sharer.note(format!("arena {pit}: joins group {group}, waits {wait} ..."));
        match self.sharer.client.group_lock(&file, group, wait, interrupt).await {
            Ok(()) => {}
            Err(Errno::Again) if !wait => return Ok(()),
            Err(Errno::Intr) if impatient => return Ok(()),
            Err(e) => return Err(format!("group lock: {e}")),
        }
        self.sharer.note(format!("  ... arena {pit}: is in group {group}"));
        let mut wrote = BTreeSet::new();
        for _ in 0..dice.within(1..8) {
            if dice.one_in(3) {
                self.sharer.env.sleep(Duration::from_micros(dice.below(2000))).await;
            }
            let op = if common { self.draw_own(&mut wrote, dice) } else { self.draw_alone(pit, dice) };
            if let Some(op) = op {
                self.call(pit, op, dice).await?;
            }
        }
        if dice.one_in(3) {
            self.sharer.note(format!("arena {pit}: closes as a member of group {group}"));
            self.seats[pit] = None;
            return Ok(());
        }
        let left = self.sharer.client.group_unlock(&file).await;
        self.sharer.note(format!("arena {pit}: has left group {group}"));
        left.map_err(|e| format!("group unlock: {e}"))
    }

    /// A call on a cell that no other member uses, because members coordinate their calls.
    fn draw_own(&self, wrote: &mut BTreeSet<usize>, dice: &mut Dice) -> Option<CellOp> {
        let mut a = self.sharer.area.borrow_mut();
        let tasks = a.tasks.left.len();
        let at = self.sharer.task + tasks * dice.below(CELLS.div_ceil(tasks as u64)) as usize;
        if dice.one_in(2) {
            wrote.insert(at);
            return Some(CellOp::Write { at, n: 1, tag: a.tag() });
        }
        let known: Vec<usize> = wrote.iter().copied().collect();
        dice.pick(&known).map(|at| CellOp::Read { at: *at, n: 1 })
    }

    /// A call of the only member: any but those that wait for its own group.
    fn draw_alone(&self, pit: usize, dice: &mut Dice) -> Option<CellOp> {
        let op = self.draw(pit, dice);
        (!matches!(op, CellOp::Resize { .. } | CellOp::Append { .. })).then_some(op)
    }
}
