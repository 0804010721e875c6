//! Targets that are full, or accounts that have used up their limit, while several mounts write.
//!
//! Method of all tests: tasks on two or three mounts fill small zones with files of their own and with cells of one
//! file that all of them write, buffered and direct, sync some, read each other's, and remove some, while servers are
//! killed and callbacks meet faults. The model knows for each cell the writes to which its bytes may belong: one that
//! was acknowledged and synced, or direct, is the only one; one that was refused, or accepted and not synced, may be
//! there in part or not at all. Accepted data has space: no sync is refused, and when all mounts have gone, the last
//! write of a cell is there as a whole, unless it was refused.

use amphi_client::{Client, Ctx, Hints, OpenFile, OpenFlags};
use amphi_env::sim::CrashKind;
use amphi_env::{Buf, Env};
use amphi_sim::callbacks::Callbacks;
use amphi_sim::cluster::{Cluster, Mount, Shape};
use amphi_sim::dice::{Dice, bytes_of};
use amphi_types::{Errno, Ino};
use amphi_wire::XattrMode;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a cell: whole blocks and parts of two.
const CELL: u64 = 300_003;
/// Calls of each task.
const CALLS: u64 = 250;
/// Cells of a file of one task at most.
const CELLS: u64 = 12;
/// Seeds of each number of servers.
const SEEDS: u64 = 6;

/// A file. Each cell has the numbers of the writes to which its bytes may belong; `None` is the state before any.
struct Model {
    name: String,
    ino: Ino,
    cells: BTreeMap<u64, Vec<Option<u64>>>,
    /// For each of these cells, the number of the last write, if that write was accepted as a whole.
    accepted: BTreeMap<u64, u64>,
    /// The program that made the file has it open.
    open: bool,
    gone: bool,
}

#[derive(Default)]
struct Told {
    files: Vec<Model>,
    tag: u64,
    /// Calls that found a target full.
    refused: u64,
    removed: u64,
    working: usize,
}

type Shared = Rc<RefCell<Told>>;

/// A file as a task has it open, with the cells that it wrote since it was opened.
struct Seat {
    file: Arc<OpenFile>,
    at: usize,
    unsynced: BTreeSet<u64>,
}

struct Task {
    calls: u64,
    client: Client,
    told: Shared,
    number: u64,
    dice: Dice,
    own: Option<Seat>,
    common: Option<Seat>,
}

/// Returns true if a call succeeded; only a full target may refuse one.
fn went(told: &Shared, what: &str, result: Result<(), Errno>) -> bool {
    match result {
        Ok(()) => true,
        Err(e) if e.is_no_room() => {
            told.borrow_mut().refused += 1;
            false
        }
        Err(e) => panic!("{what}: {e}"),
    }
}

impl Task {
    async fn run(mut self) {
        for _ in 0..self.calls {
            match self.dice.weighted(&[3, 14, 4, 4, 5, 1]) {
                0 => self.make().await,
                1 => self.write(false).await,
                2 => self.write(true).await,
                3 => self.sync().await,
                4 => self.look().await,
                _ => self.remove().await,
            }
        }
        self.close();
        self.told.borrow_mut().working -= 1;
    }

    fn close(&mut self) {
        if let Some(seat) = self.own.take() {
            self.told.borrow_mut().files[seat.at].open = false;
            self.client.release(seat.file);
        }
        if let Some(seat) = self.common.take() {
            self.client.release(seat.file);
        }
    }

    async fn make(&mut self) {
        self.close();
        let name = format!("{}.{}", self.number, self.told.borrow().files.len());
        let made = self.client.create(&Ctx::root(), Ino::ROOT, name.as_bytes(), 0o644, OpenFlags::READ_WRITE).await;
        let file = match made {
            Ok(made) => made.file,
            Err(e) => {
                went(&self.told, "create", Err(e));
                return;
            }
        };
        let mut told = self.told.borrow_mut();
        self.own = Some(Seat { file: file.clone(), at: told.files.len(), unsynced: BTreeSet::new() });
        told.files.push(Model {
            name,
            ino: file.ino(),
            cells: BTreeMap::new(),
            accepted: BTreeMap::new(),
            open: true,
            gone: false,
        });
    }

    /// Writes a cell of the task's own file, or one of its cells of the common file.
    async fn write(&mut self, common: bool) {
        let direct = self.dice.one_in(2);
        let (seat, cell) = if common {
            if self.common.is_none() {
                let ino = self.told.borrow().files[0].ino;
                let file = self.client.open(&Ctx::root(), ino, OpenFlags::READ_WRITE).await.expect("open");
                self.common = Some(Seat { file, at: 0, unsynced: BTreeSet::new() });
            }
            (self.common.as_mut(), self.number + 3 * self.dice.below(CELLS))
        } else {
            (self.own.as_mut(), self.dice.below(CELLS))
        };
        let Some(seat) = seat else { return self.make().await };
        let (file, at) = (seat.file.clone(), seat.at);
        // A sync settles nothing of a cell whose last write was refused.
        seat.unsynced.remove(&cell);
        let tag = {
            let mut told = self.told.borrow_mut();
            told.tag += 1;
            let tag = told.tag;
            told.files[at].cells.entry(cell).or_insert_with(|| vec![None]).push(Some(tag));
            told.files[at].accepted.remove(&cell);
            tag
        };
        let data = Buf::copy_of(&bytes_of(tag, CELL as usize));
        let hints = Hints { direct, ..Hints::default() };
        let written = self.client.write(&Ctx::root(), &file, cell * CELL, data, hints).await;
        let whole = matches!(written, Ok(n) if n as u64 == CELL);
        if !went(&self.told, "write", written.map(drop)) {
            return;
        }
        if whole {
            self.told.borrow_mut().files[at].accepted.insert(cell, tag);
        }
        if direct && whole {
            self.told.borrow_mut().files[at].cells.insert(cell, vec![Some(tag)]);
        } else if whole {
            seat.unsynced.insert(cell);
        }
    }

    async fn sync(&mut self) {
        let common = self.dice.one_in(3);
        let seat = if common { &mut self.common } else { &mut self.own };
        let Some(mut open) = seat.take() else { return };
        let synced = self.client.fsync(&Ctx::root(), &open.file, false).await;
        assert!(!synced.is_err_and(Errno::is_no_room), "what a write has accepted has room");
        if went(&self.told, "fsync", synced) {
            for cell in std::mem::take(&mut open.unsynced) {
                let mut told = self.told.borrow_mut();
                let allowed = told.files[open.at].cells.get_mut(&cell).expect("written");
                allowed.drain(..allowed.len() - 1);
            }
            *seat = Some(open);
        } else {
            // The check does not know which of the names exist.
            if !common {
                self.told.borrow_mut().files[open.at].open = false;
            }
            self.client.release(open.file);
        }
    }

    /// Reads a cell of any file.
    async fn look(&mut self) {
        let at = {
            let told = self.told.borrow();
            let there: Vec<usize> = (0..told.files.len()).filter(|at| !told.files[*at].gone).collect();
            *self.dice.pick(&there).expect("the common file is there")
        };
        let cells: Vec<u64> = self.told.borrow().files[at].cells.keys().copied().collect();
        if let Some(cell) = self.dice.pick(&cells).copied() {
            look_at(&self.client, &self.told, at, &[cell]).await;
        }
    }

    async fn remove(&mut self) {
        let chosen = {
            let told = self.told.borrow();
            let may = |at: &usize| !told.files[*at].gone && !told.files[*at].open;
            let closed: Vec<usize> = (1..told.files.len()).filter(may).collect();
            self.dice.pick(&closed).copied()
        };
        if let Some(at) = chosen {
            remove(&self.client, &self.told, at).await;
        }
    }
}

async fn remove(client: &Client, told: &Shared, at: usize) {
    let name = {
        let mut told = told.borrow_mut();
        told.files[at].gone = true;
        told.removed += 1;
        told.files[at].name.clone()
    };
    client.unlink(&Ctx::root(), Ino::ROOT, name.as_bytes()).await.expect("removing works on full targets");
}

/// Checks that each byte of these cells belongs to a write that may be there.
async fn look_at(client: &Client, told: &Shared, at: usize, cells: &[u64]) {
    let ctx = Ctx::root();
    let ino = told.borrow().files[at].ino;
    let file = match client.open(&ctx, ino, OpenFlags::READ).await {
        Ok(file) => file,
        Err(Errno::NoEnt | Errno::Stale) if told.borrow().files[at].gone => return,
        Err(e) => panic!("open: {e}"),
    };
    for cell in cells {
        let allowed = |told: &Shared| told.borrow().files[at].cells[cell].clone();
        let before = allowed(told);
        let bytes = client.read(&ctx, &file, cell * CELL, CELL as usize, Hints::default()).await;
        let mut bytes = bytes.expect("what is there can be read").to_vec();
        bytes.resize(CELL as usize, 0);
        let tags: BTreeSet<Option<u64>> = before.into_iter().chain(allowed(told)).collect();
        let texts: Vec<Vec<u8>> =
            tags.iter().map(|tag| tag.map_or(vec![0; CELL as usize], |tag| bytes_of(tag, CELL as usize))).collect();
        let wrong = bytes.iter().enumerate().find(|(i, byte)| texts.iter().all(|text| text[*i] != **byte));
        if let Some((i, _)) = wrong {
            let name = told.borrow().files[at].name.clone();
            panic!("cell {cell} of {name}: byte {i} is of none of the writes {tags:?}");
        }
    }
    client.release(file);
}

async fn look_at_all(client: &Client, told: &Shared) {
    let count = told.borrow().files.len();
    for at in 0..count {
        let (gone, cells) = {
            let told = told.borrow();
            (told.files[at].gone, told.files[at].cells.keys().copied().collect::<Vec<_>>())
        };
        if !gone {
            look_at(client, told, at, &cells).await;
        }
    }
}

/// The usage of the super-user's group, bytes, as the mount shows it.
async fn used_bytes(client: &Client) -> Result<u64, Errno> {
    let text = client.getxattr(&Ctx::root(), Ino::ROOT, b"user.amphi.quota.group.0").await?;
    let text = String::from_utf8(text).expect("it is text");
    let number = text.split("\"used_bytes\":").nth(1).and_then(|rest| rest.split(',').next());
    Ok(number.and_then(|n| n.parse().ok()).expect("it says what is used"))
}

/// Kills servers while tasks work.
async fn trouble(cluster: &Cluster, told: &Shared, mount: &Mount, limit: Option<u64>, dice: &mut Dice) {
    let mut last = (cluster.env.now(), told.borrow().tag);
    while told.borrow().working > 0 {
        cluster.env.sleep(Duration::from_micros(dice.within(1_000..200_000))).await;
        if told.borrow().tag != last.1 {
            last = (cluster.env.now(), told.borrow().tag);
        }
        assert!(cluster.env.now().since(last.0) < Duration::from_secs(240), "nothing is written any more");
        if let Some(limit) = limit
            && let Ok(used) = used_bytes(&mount.client).await
        {
            assert!(used <= limit, "{used} bytes are used of {limit}");
        }
        if dice.one_in(6) {
            let at = dice.below(cluster.shape.servers as u64) as usize;
            cluster.crash_server(at, CrashKind::Process);
            cluster.env.sleep(Duration::from_micros(dice.below(500_000))).await;
            cluster.start_server(at).await.expect("a server with a full zone starts");
        }
    }
}

/// There is space again after some files were removed: freed blocks may be used when the record of the removal is
/// durable.
async fn fits_again(cluster: &Cluster, mount: &Mount, name: &str) {
    let ctx = Ctx::root();
    let until = cluster.env.now() + Duration::from_secs(30);
    loop {
        let made = mount.client.create(&ctx, Ino::ROOT, name.as_bytes(), 0o644, OpenFlags::READ_WRITE).await;
        let done = match made {
            Ok(made) => {
                let data = Buf::copy_of(&bytes_of(0, CELL as usize));
                let written = mount.client.write(&ctx, &made.file, 0, data, Hints::default()).await;
                let synced = mount.client.fsync(&ctx, &made.file, false).await;
                mount.client.release(made.file);
                mount.client.unlink(&ctx, Ino::ROOT, name.as_bytes()).await.expect("unlink");
                written.and(synced)
            }
            Err(e) => Err(e),
        };
        match done {
            Ok(()) => return,
            Err(e) if e.is_no_room() && cluster.env.now() < until => cluster.env.sleep(Duration::from_secs(1)).await,
            Err(e) => panic!("there is room again, but: {e}"),
        }
    }
}

async fn story(cluster: &Cluster, seed: u64, tasks: usize, limit: Option<u64>) -> (u64, u64) {
    let ctx = Ctx::root();
    cluster.start_servers(&cluster.all_servers()).await.expect("the servers start");
    let mut mounts = Vec::new();
    for which in 0..cluster.shape.mounts {
        mounts.push(cluster.mount_at(which).await.expect("a mount"));
    }
    let free = mounts[0].client.statfs(&ctx).await.expect("statfs").blocks_free;
    if cluster.shape.targets > 1 {
        let client = &mounts[0].client;
        client
            .setxattr(&ctx, Ino::ROOT, b"user.amphi.layout", b"striped,size=64K", XattrMode::Set)
            .await
            .expect("a layout");
    }
    if let Some(limit) = limit {
        let text = format!("group 0 bytes={limit}");
        let client = &mounts[0].client;
        client.setxattr(&ctx, Ino::ROOT, b"user.amphi.quota", text.as_bytes(), XattrMode::Set).await.expect("a limit");
    }
    let told = Shared::default();
    let made = mounts[0].client.create(&ctx, Ino::ROOT, b"common", 0o644, OpenFlags::READ_WRITE).await.expect("create");
    let common = Model {
        name: "common".into(),
        ino: made.file.ino(),
        cells: BTreeMap::new(),
        accepted: BTreeMap::new(),
        open: true,
        gone: false,
    };
    told.borrow_mut().files.push(common);
    mounts[0].client.release(made.file);
    told.borrow_mut().working = tasks;
    for number in 0..tasks {
        let mount = &mounts[number % mounts.len()];
        let task = Task {
            calls: CALLS,
            client: mount.client.clone(),
            told: told.clone(),
            number: number as u64,
            dice: Dice::new(seed, 100 + number as u64),
            own: None,
            common: None,
        };
        mount.env.spawn(task.run());
    }
    trouble(cluster, &told, &mounts[0], limit, &mut Dice::new(seed, 99)).await;
    for mount in &mounts {
        look_at_all(&mount.client, &told).await;
    }
    let there: Vec<usize> = (1..told.borrow().files.len()).filter(|at| !told.borrow().files[*at].gone).collect();
    for (i, at) in there.iter().enumerate().filter(|(i, _)| i % 2 == 0) {
        remove(&mounts[i % mounts.len()].client, &told, *at).await;
    }
    for (i, mount) in mounts.iter().enumerate() {
        fits_again(cluster, mount, &format!("again{i}")).await;
    }
    for mount in mounts {
        // Bytes that were refused behind a close: the next sync reports them, and then the end has nothing to report.
        let _ = mount.client.sync_all(&ctx).await;
        cluster.unmount(mount).await.expect("the unmount");
    }
    for model in &mut told.borrow_mut().files {
        let Model { cells, accepted, .. } = model;
        cells.extend(accepted.iter().map(|(cell, tag)| (*cell, vec![Some(*tag)])));
    }
    cluster.stop_servers().await.expect("the servers stop");
    cluster.fsck().await.expect("the zones are whole");
    cluster.start_servers(&cluster.all_servers()).await.expect("the servers start");
    let mount = cluster.mount().await.expect("a mount");
    look_at_all(&mount.client, &told).await;
    let count = told.borrow().files.len();
    for at in 0..count {
        if !told.borrow().files[at].gone {
            remove(&mount.client, &told, at).await;
        }
    }
    let mut left = 0;
    for _ in 0..200 {
        left = mount.client.statfs(&ctx).await.expect("statfs").blocks_free;
        if left == free {
            break;
        }
        cluster.env.sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(left, free, "all blocks are free again");
    if limit.is_some() {
        assert_eq!(used_bytes(&mount.client).await, Ok(0), "and nobody is charged for them");
    }
    cluster.unmount(mount).await.expect("the unmount");
    let told = told.borrow();
    (told.refused, told.removed)
}

/// Each server has `targets` targets.
fn fill(servers: usize, targets: u16, mounts: usize, tasks: usize, seeds: std::ops::Range<u64>) {
    play(servers, targets, mounts, tasks, seeds, ZONE, None);
}

fn play(
    servers: usize,
    targets: u16,
    mounts: usize,
    tasks: usize,
    seeds: std::ops::Range<u64>,
    zone: u64,
    limit: Option<u64>,
) {
    let (mut refused, mut removed) = (0, 0);
    for seed in seeds {
        let mut shape = Shape::with(seed, Some(servers), Some(mounts));
        (shape.embedded, shape.zone_bytes, shape.targets) = (false, zone, targets);
        let cluster = Cluster::new(seed, shape);
        if seed % 2 == 0 {
            cluster.sim.set_courier(Callbacks::drawn(seed));
            cluster.loses_messages.set(true);
        }
        println!("seed {seed}, {servers} servers");
        let (r, d) = cluster.sim.block_on(story(&cluster, seed, tasks, limit)).expect("it ends");
        println!("  {r} calls refused, {d} files removed");
        (refused, removed) = (refused + r, removed + d);
    }
    assert!(refused > 10 && removed > 50, "hardly anything was full: {refused} calls refused, {removed} files removed");
}

/// Bytes of a zone.
const ZONE: u64 = 16 << 20;

/// Goal: Promise S15: full targets refuse data that does not fit, to some of several mounts, and lose no data that was
/// acknowledged before. Files can be removed, and then there is space again. The zones are sound. Method: above, on one
/// server with one target.
#[test]
fn one_server_is_full() {
    fill(1, 1, 3, 3, 8_000_000..8_000_000 + SEEDS);
}

/// The same as `one_server_is_full`, on two and three servers.
#[test]
fn several_servers_are_full() {
    fill(2, 1, 2, 2, 8_100_000..8_100_000 + SEEDS);
    fill(3, 1, 3, 3, 8_200_000..8_200_000 + SEEDS);
}

/// The same as `one_server_is_full`, with several targets, so that parts of a call fail: of several mounts, and of
/// tasks of a mount that is alone.
#[test]
fn some_targets_are_full() {
    fill(1, 2, 2, 3, 8_300_000..8_300_000 + SEEDS);
    fill(1, 2, 1, 3, 8_400_000..8_400_000 + SEEDS);
}

/// Goal: an account never uses more than its limit, wherever it writes, while servers are killed; data accepted within
/// the limit is kept; space of removed files is free again. Method: as above, with more space than the limit allows.
#[test]
fn a_limit_is_used_up() {
    play(1, 2, 2, 3, 8_500_000..8_500_000 + SEEDS / 2, 4 * ZONE, Some(8 << 20));
    play(3, 1, 3, 3, 8_600_000..8_600_000 + SEEDS / 2, 4 * ZONE, Some(8 << 20));
    play(1, 4, 1, 3, 8_700_000..8_700_000 + SEEDS / 2, 4 * ZONE, Some(8 << 20));
}
