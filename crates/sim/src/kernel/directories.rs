//! Games of several mounts with open directories: players make, remove, list and replace names in them, and each call
//! is judged.
//!
//! Owns: the cluster of a game, its players, and the check by `Linear`. Does not own: the kernel's caches (`Kernel`),
//! the faults beside the players (`Story`).
//!
//! A directory is a row of cells, one for each name, which hold 1 where the name is there. A removed one never has
//! names again, and a program that has it open continues to list it. One directory after the other has the same name.
//! In half of the games only players of one mount change names, because attributes of a directory that several mounts
//! change rarely get a timeout. Mounts beyond the first are admitted some time after it. In half of the games there are
//! more players, and they list more.

use super::listings::OpenDirectory;
use super::story::Story;
use super::{Failure, Kernel, Mistake, Tally};
use crate::cluster::{Cluster, Mount, Shape};
use crate::dice::Dice;
use crate::linear::{CallId, CellOp, Cells, Linear};
use amphi_client::Ctx;
use amphi_env::Env;
use amphi_types::{Errno, Ino};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Names that are made.
const NAMES: usize = 4;
/// The directory's own name.
const DIR: &[u8] = b"d";
/// Calls of each player.
const CALLS: u64 = 120;
/// Open directories of each player.
const OPEN: usize = 3;

type Told<T = ()> = std::result::Result<T, String>;

/// State that the players share.
struct Table {
    cluster: Rc<Cluster>,
    /// The history of each directory that ever existed.
    histories: RefCell<BTreeMap<Ino, Linear>>,
    /// The directory that has the name; only `replacing` gives the name to another one.
    now: Cell<Ino>,
    replacing: Cell<bool>,
    story: Rc<Story>,
    /// Mounts at work.
    working: Cell<usize>,
    /// Whether there are more players, which list more.
    crowded: bool,
    /// The mount whose players change names, if not all do.
    writer: Option<usize>,
    tally: RefCell<Tally>,
}

/// A call that is judged when it ends.
#[derive(Clone, Copy)]
struct Call {
    dir: Ino,
    id: CallId,
}

impl Table {
    /// A directory that was just made.
    fn begins(&self, dir: Ino) -> Told {
        let mut history = Linear::default();
        let call = history.begin(CellOp::Resize { n: NAMES });
        history.end(call, &Cells::default())?;
        self.histories.borrow_mut().insert(dir, history);
        self.now.set(dir);
        Ok(())
    }

    fn judge<T>(&self, dir: Ino, act: impl FnOnce(&mut Linear) -> Told<T>) -> Told<T> {
        let mut histories = self.histories.borrow_mut();
        let history = histories.get_mut(&dir).ok_or_else(|| format!("nobody has made {dir}"))?;
        act(history).map_err(|e| format!("{dir}: {e}"))
    }
}

/// Plays the game of a seed.
///
/// Errors: what is wrong, with the last calls.
pub fn play(seed: u64, mistake: Option<Mistake>, talks: bool) -> Result<Tally, Failure> {
    let mut dice = Dice::new(seed, 31);
    let mut shape = Shape::with(seed, Some(1), Some(dice.within(1..4) as usize));
    (shape.embedded, shape.targets) = (false, dice.within(1..4) as u16);
    shape.holder_known_gone = true;
    let cluster = Rc::new(Cluster::new(seed, shape));
    let story = Story::new(&cluster, talks);
    let (own, own_story) = (cluster.clone(), story.clone());
    let crowded = Dice::new(seed, 33).one_in(2);
    match cluster.sim.block_on(async move { whole(own, dice, mistake, (own_story, crowded)).await }) {
        Ok(played) => story.judge(played),
        Err(e) => story.judge(Err(format!("{e:?}"))),
    }
}

async fn whole(
    cluster: Rc<Cluster>,
    mut dice: Dice,
    mistake: Option<Mistake>,
    (story, crowded): (Rc<Story>, bool),
) -> Told<Tally> {
    cluster.start_server(0).await?;
    let first = cluster.mount().await?;
    let made = first.client.mkdir(&Ctx::root(), Ino::ROOT, DIR, 0o755).await.map_err(|e| e.to_string())?;
    let mounts = cluster.shape.mounts;
    let writer = dice.one_in(2).then(|| dice.below(mounts as u64) as usize);
    let table = Rc::new(Table {
        cluster: cluster.clone(),
        histories: RefCell::default(),
        now: Cell::new(made.ino),
        replacing: Cell::new(false),
        story: story.clone(),
        working: Cell::new(mounts),
        crowded,
        writer,
        tally: RefCell::default(),
    });
    table.begins(made.ino)?;
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
            cluster.env.sleep(Duration::from_millis(dice.below(8_000))).await;
            cluster.mount_at(at).await?
        }
    };
    table.story.note(&format!("m{at}"), "is there");
    let late_us = (15_000, dice.pick(&[100, 2_000, 60_000]).copied().unwrap_or(100));
    let kernel = Kernel::new(mount.client.clone(), cluster.env.clone(), Dice::new(dice.bits(), 3), late_us, mistake);
    let players = if table.crowded { 3 } else { 2 };
    let left = Rc::new(Cell::new(players));
    for number in 0..players {
        let (table, kernel, left) = (table.clone(), kernel.clone(), left.clone());
        let thread = (100 + at * 10 + number) as u32;
        let (ctx, dice) = (Ctx { pid: thread, tid: thread, ..Ctx::root() }, Dice::new(dice.bits(), number as u64));
        cluster.env.spawn(async move {
            let changes = table.writer.is_none_or(|writer| writer == at);
            let who = format!("m{at}p{number}");
            let mut player = Player { table: table.clone(), kernel, ctx, who, changes, dice, open: Vec::new() };
            if let Err(e) = player.play().await {
                table.story.complain(format!("{}: {e}", player.who));
            }
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
    ctx: Ctx,
    who: String,
    /// Whether the player makes and removes names.
    changes: bool,
    dice: Dice,
    open: Vec<OpenDirectory>,
}

fn name_of(at: usize) -> Vec<u8> {
    format!("n{at}").into_bytes()
}

/// Returns true if a call found nothing where something should have been: a directory or a name that was just removed.
fn is_gone(e: Errno) -> bool {
    matches!(e, Errno::NoEnt | Errno::Stale)
}

impl Player {
    async fn play(&mut self) -> Told {
        for _ in 0..CALLS {
            if self.table.story.is_wrong() {
                break;
            }
            if self.dice.one_in(3) {
                let us = if self.dice.one_in(20) { 8_000_000 } else { 5_000 };
                self.table.cluster.env.sleep(Duration::from_micros(self.dice.below(us))).await;
            }
            let (changes, crowded) = (u32::from(self.changes), self.table.crowded);
            let weights = match crowded {
                true => [16, 3, 3, 4 * changes, 3 * changes, 1],
                false => [12, 4, 3, 4 * changes, 3 * changes, changes],
            };
            match self.dice.weighted(&weights) {
                1 => self.open().await?,
                2 => self.look().await?,
                3 => self.make().await?,
                4 => {
                    let at = self.dice.below(NAMES as u64) as usize;
                    self.unlink(self.table.now.get(), at).await?;
                }
                5 if self.changes && (!crowded || self.dice.one_in(3)) => self.replace().await?,
                _ => self.list().await?,
            }
        }
        while let Some(directory) = self.open.pop() {
            self.kernel.close_directory(&directory);
        }
        Ok(())
    }

    fn begin(&self, dir: Ino, op: CellOp) -> Told<Call> {
        self.table.story.note(&self.who, &format!("{dir} {op:?} ..."));
        let id = self.table.judge(dir, |history| Ok(history.begin(op)))?;
        Ok(Call { dir, id })
    }

    fn end(&self, call: Call, what: &str, cells: &Cells) -> Told {
        self.table.story.note(&self.who, &format!("  ... {} {what} gave {:?}", call.dir, cells.0));
        self.table.judge(call.dir, |history| history.end(call.id, cells).map_err(|e| format!("{what}: {e}")))
    }

    fn refuse(&self, call: Call) -> Told {
        self.table.judge(call.dir, |history| history.refuse(call.id))
    }

    async fn make(&mut self) -> Told {
        let (dir, at) = (self.table.now.get(), self.dice.below(NAMES as u64) as usize);
        let call = self.begin(dir, CellOp::Write { at, n: 1, tag: 1 })?;
        match self.kernel.make(&self.ctx, dir, &name_of(at)).await {
            Ok(()) => self.end(call, "make", &Cells::default()),
            Err(e) if is_gone(e) => {
                self.table.story.note(&self.who, &format!("  ... {dir} make: {e}"));
                self.refuse(call)
            }
            Err(e) => Err(format!("make: {e}")),
        }
    }

    /// Removes a name, or finds that it is not there.
    async fn unlink(&mut self, dir: Ino, at: usize) -> Told {
        let removes = self.begin(dir, CellOp::Zero { at, n: 1 })?;
        let finds = self.table.judge(dir, |history| Ok(history.begin(CellOp::Read { at, n: 1 })))?;
        let finds = Call { dir, id: finds };
        match self.kernel.unlink(&self.ctx, dir, &name_of(at)).await {
            Ok(()) => {
                self.refuse(finds)?;
                self.end(removes, "unlink", &Cells::default())
            }
            Err(e) if is_gone(e) => {
                self.refuse(removes)?;
                self.end(finds, "unlink in vain", &Cells(vec![0]))
            }
            Err(e) => Err(format!("unlink: {e}")),
        }
    }

    /// Empties the directory, removes it and makes another one of its name.
    async fn replace(&mut self) -> Told {
        if self.table.replacing.replace(true) {
            return Ok(());
        }
        let done = self.replace_alone().await;
        self.table.replacing.set(false);
        done
    }

    async fn replace_alone(&mut self) -> Told {
        let dir = self.table.now.get();
        for at in 0..NAMES {
            self.unlink(dir, at).await?;
        }
        let call = self.begin(dir, CellOp::Read { at: 0, n: NAMES })?;
        match self.kernel.remove_directory(&self.ctx, (Ino::ROOT, DIR), dir).await {
            Ok(()) => self.end(call, "rmdir", &Cells(vec![0; NAMES]))?,
            Err(Errno::NotEmpty) => return self.refuse(call),
            Err(e) => return Err(format!("rmdir: {e}")),
        }
        let made = self.kernel.make_directory(&self.ctx, Ino::ROOT, DIR).await.map_err(|e| format!("mkdir: {e}"))?;
        self.table.story.note(&self.who, &format!("  ... {made} is there"));
        self.table.begins(made)
    }

    async fn open(&mut self) -> Told {
        if self.open.len() >= OPEN {
            let at = self.dice.below(OPEN as u64) as usize;
            self.kernel.close_directory(&self.open.remove(at));
        }
        let dir = self.table.now.get();
        let open = match self.kernel.open_directory(&self.ctx, dir).await {
            Ok(open) => open,
            // The directory has gone, and this mount never knew it: the name would be looked up again.
            Err(Errno::Stale) => return Ok(()),
            Err(e) => return Err(format!("open: {e}")),
        };
        self.table.story.note(&self.who, &format!("{dir} opened, kept: {}", open.keeps()));
        self.open.push(open);
        Ok(())
    }

    /// Reads the attributes of the directory: the kernel may have an answer beside that of a listing.
    async fn look(&mut self) -> Told {
        let dir = self.table.now.get();
        match self.kernel.size(&self.ctx, dir).await {
            Ok(_) | Err(Errno::Stale) => Ok(()),
            Err(e) => Err(format!("stat: {e}")),
        }
    }

    async fn list(&mut self) -> Told {
        if self.open.is_empty() {
            return self.open().await;
        }
        let at = self.dice.below(self.open.len() as u64) as usize;
        let directory = &self.open[at];
        let call = self.begin(directory.ino(), CellOp::Read { at: 0, n: NAMES })?;
        let cells = match self.kernel.list(&self.ctx, directory).await {
            Ok(names) => (0..NAMES).map(|at| u64::from(names.contains(&name_of(at)))).collect(),
            Err(Errno::NoEnt) => vec![0; NAMES],
            Err(e) => return Err(format!("list: {e}")),
        };
        self.end(call, "listing", &Cells(cells))
    }
}
