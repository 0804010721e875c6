//! Inodes that are not in the memory of the server.

use super::batch::part;
use super::locks::{ask, counter, locked, make};
use super::*;
use crate::planted::{Mistake, plant};
use amphi_env::sim::{CrashKind, DiskOpKind};
use amphi_types::{ByteRange, SetAttr, layout};
use amphi_wire::{FileLockFamily, FileLockOwner, LockExtent, LockMode, ReadPart};
use futures_util::future::{join, join3};

/// A small deterministic generator.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

/// What a file has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
struct File {
    ino: Ino,
    perm: u16,
    size: u64,
    nlink: u32,
}

impl File {
    fn of(attr: &amphi_types::Attr) -> File {
        File { ino: attr.ino, perm: attr.perm, size: attr.size, nlink: attr.nlink }
    }
}

/// Two directories on different targets, their names, and files that may have several of them.
#[derive(Default)]
struct Model {
    dirs: Vec<Ino>,
    names: BTreeMap<(usize, String), usize>,
    files: Vec<File>,
}

impl Model {
    fn place(&self, rng: &mut Lcg) -> (usize, String) {
        (rng.below(self.dirs.len()), format!("f{}", rng.below(8)))
    }

    /// A file that has a name.
    fn any(&self, rng: &mut Lcg) -> Option<usize> {
        let all: Vec<usize> = self.names.values().copied().collect();
        (!all.is_empty()).then(|| all[rng.below(all.len())])
    }

    fn drop_name(&mut self, at: &(usize, String)) {
        if let Some(file) = self.names.remove(at) {
            self.files[file].nlink -= 1;
        }
    }
}

/// A change of the model's file system, and of the model.
async fn change(c: &Client, model: &mut Model, rng: &mut Lcg) {
    let (at, to) = (model.place(rng), model.place(rng));
    let (dir, to_dir) = (model.dirs[at.0], model.dirs[to.0]);
    let there = model.names.get(&at).copied();
    match rng.below(6) {
        0 | 1 => match there {
            None => {
                let ino = c.create(dir, &at.1).await.unwrap();
                model.names.insert(at, model.files.len());
                let seen = File::of(&c.stat(ino).await.unwrap());
                assert_eq!((seen.size, seen.nlink), (0, 1));
                model.files.push(seen);
            }
            Some(_) => {
                c.unlink(dir, &at.1).await.unwrap();
                model.drop_name(&at);
            }
        },
        2 => {
            let done = c.rename((dir, &at.1), (to_dir, &to.1), RenameMode::Replace).await;
            match there {
                None => assert_eq!(done, Err(Errno::NoEnt)),
                Some(file) if model.names.get(&to) != Some(&file) => {
                    assert_eq!(done, Ok(()));
                    model.drop_name(&to);
                    model.names.remove(&at);
                    model.names.insert(to, file);
                }
                // Two names of one file: nothing happens.
                Some(_) => assert_eq!(done, Ok(())),
            }
        }
        3 => {
            let Some(file) = model.any(rng) else { return };
            let done = c.link(model.files[file].ino, dir, &at.1).await;
            assert_eq!(done.map(|_| ()), if there.is_some() { Err(Errno::Exist) } else { Ok(()) });
            if there.is_none() {
                model.names.insert(at, file);
                model.files[file].nlink += 1;
            }
        }
        _ => {
            let Some(file) = model.any(rng) else { return };
            let (perm, size) = (0o600 + rng.below(64) as u16, rng.below(100_000) as u64);
            let set = match rng.below(3) {
                0 => SetAttr { perm: Some(perm), ..SetAttr::default() },
                1 => SetAttr { size: Some(size), ..SetAttr::default() },
                _ => SetAttr { perm: Some(perm), size: Some(size), ..SetAttr::default() },
            };
            let known = &mut model.files[file];
            c.call(Request::SetAttr { ino: known.ino, set }).await.unwrap();
            (known.perm, known.size) = (set.perm.unwrap_or(known.perm), set.size.unwrap_or(known.size));
        }
    }
}

/// Every name and every file is what the model says; listings show nothing else.
async fn compare(c: &Client, model: &Model) {
    for (dir, ino) in model.dirs.iter().enumerate() {
        let op = Request::ReadDir { dir: *ino, cookie: 0, max: 1000, plus: true };
        let Reply::Entries { entries, .. } = c.call(op).await.unwrap() else { panic!("a listing") };
        for ((_, text), file) in model.names.range((dir, String::new())..(dir + 1, String::new())) {
            let wanted = model.files[*file];
            assert_eq!(File::of(&c.lookup(*ino, text).await.unwrap().attr), wanted);
            let entry = entries.iter().find(|entry| entry.name == name(text)).expect("it is listed");
            assert_eq!(entry.ino, wanted.ino);
            if let Some(view) = entry.inode.filter(|view| view.attr.ino.target() == ino.target()) {
                assert_eq!(File::of(&view.attr), wanted);
            }
        }
        let files = entries.iter().filter(|entry| entry.kind != Kind::Dir).count();
        assert_eq!(files, model.names.keys().filter(|(of, _)| *of == dir).count());
    }
}

/// Random changes of files, with reads at the same time, over kills of the server.
async fn story(place: &Place, seed: u64) {
    let mut server = Some(place.start().await.unwrap());
    let c = place.client(1).await.unwrap();
    let other = place.client(2).await.unwrap();
    let on_other = |n: &String| layout::directory_target(Ino::ROOT, n.as_bytes(), 2).0 == 1;
    let text = (0..).map(|n| format!("d{n}")).find(on_other).expect("a name");
    let mut model = Model { dirs: vec![Ino::ROOT, c.mkdir(Ino::ROOT, &text).await.unwrap()], ..Model::default() };
    let mut rng = Lcg(seed);
    for step in 0..120 {
        // A file that is read while others change, and is perhaps of the same block.
        let watched = model.any(&mut rng).map(|file| (file, model.files[file]));
        let read = async |c: &Client| match watched {
            Some((_, file)) => c.stat(file.ino).await.map(|attr| Some(File::of(&attr))),
            None => Ok(None),
        };
        let (_, first, second) = join3(change(&c, &mut model, &mut rng), read(&other), read(&c)).await;
        for seen in [first, second] {
            match (seen, watched) {
                (Ok(Some(seen)), Some((at, before))) => {
                    // A change of this file may have been seen in between, so only one that nobody changed is compared.
                    assert!(model.files[at] != before || seen == before, "step {step}: {seen:?}");
                }
                (Err(Errno::Stale), Some((at, _))) => assert_eq!(model.files[at].nlink, 0, "step {step}"),
                (seen, _) => assert_eq!(seen, Ok(None), "step {step}"),
            }
        }
        if step % 10 == 0 {
            compare(&other, &model).await;
        }
        if step % 40 == 39 {
            place.sim.crash("server", CrashKind::Process);
            drop(server.take());
            server = Some(place.start().await.unwrap());
        }
    }
    compare(&c, &model).await;
    drop(server);
}

fn run(seed: u64, forgets: bool) {
    let mut place = Place::new(720 + seed, 2, 1 + seed as u16 % 2);
    place.config.inodes_bytes = forgets.then_some(0);
    place.sim.block_on(story(&place, seed)).expect("no deadlock");
}

/// Goal: files are what they were changed to last, whether their inodes are in memory or not, also while others are
/// read, and after a start. Method: random operations on names and attributes of files in directories on two targets,
/// beside a map, with reads at the same time and kills of the server, which keeps no inode longer than a request; and
/// the same with one that keeps all.
#[test]
fn inodes_are_what_was_set() {
    for seed in 0..6 {
        run(seed, true);
        run(seed, false);
    }
}

/// Fills the log of target 0 until a checkpoint has put the inodes of `files` into a segment.
pub(super) async fn fill_log(place: &Place, c: &Client, file: Ino) {
    for n in 0..30 {
        let (value, mode) = (vec![n; 40_000], amphi_wire::XattrMode::Set);
        c.call(Request::SetXattr { ino: file, name: b"user.a".to_vec(), value, mode }).await.unwrap();
    }
    place.sim.node("client").sleep(Duration::from_secs(5)).await;
}

/// Files of one block are read and changed at once, on a disk whose requests overtake one another.
fn neighbours(seed: u64) {
    let mut place = Place::with_sim(seed, 1, 1, SimConfig { disk_ns: 5_000..5_000_000, ..SimConfig::default() });
    place.config.inodes_bytes = Some(0);
    let story = async {
        let server = place.start().await.unwrap();
        let (c, other) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
        let mut files = Vec::new();
        for n in 0..8 {
            files.push(c.create(Ino::ROOT, &format!("f{n}")).await.unwrap());
        }
        let mut rng = Lcg(seed);
        for round in 0..3 {
            // Every inode has to be read from a segment once more.
            fill_log(&place, &c, files[0]).await;
            for n in 1..files.len() {
                let perm = 0o600 + rng.below(64) as u16;
                let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
                // If the neighbour is read meanwhile, the late end of that read must not show here.
                let changed = async {
                    c.call(Request::SetAttr { ino: files[n], set }).await.unwrap();
                    c.stat(files[n]).await.unwrap().perm
                };
                let (seen, neighbour) = join(changed, other.stat(files[n - 1])).await;
                neighbour.unwrap();
                assert_eq!(seen, perm, "file {n} in round {round}");
            }
        }
        drop(server);
    };
    place.sim.block_on(story).expect("no deadlock");
}

/// Goal: a reader that brings the inodes of a block into memory brings back no value from before a change that ended
/// meanwhile. Method: inodes in a segment, of which one is read while another is changed, on a disk with requests of
/// very different duration.
#[test]
fn a_late_read_brings_nothing_old_back() {
    (0..4).for_each(neighbours);
}

/// Goal: these tests can fail. Method: planted mistakes; some run has to end with a wrong answer or an assertion.
#[test]
fn planted_mistakes_of_inodes_are_found() {
    let held = |seed| run(seed, true);
    for (mistake, story) in [(Mistake::HeldInodeLeaves, held as fn(u64)), (Mistake::OldInodeLoaded, neighbours)] {
        plant(Some(mistake));
        let found = (0..40).find(|seed| std::panic::catch_unwind(|| story(*seed)).is_err());
        plant(None);
        assert!(found.is_some(), "{mistake:?} was not noticed");
    }
}

/// Goal: an inode that cannot be read from the disk is an error for who needs it, and for nobody else, as long as it
/// cannot be read. Method: inodes beyond the log of a target, read while the disk refuses reads, and after that.
#[test]
fn an_unreadable_inode_is_an_error() {
    // A seed with which no inode is kept.
    with_server(729, 1, 1, async |place, c| {
        let mut files = Vec::new();
        for n in 0..30 {
            files.push(c.create(Ino::ROOT, &format!("f{n}")).await.unwrap());
        }
        fill_log(place, c, files[0]).await;
        place.sim.on_disk_op("server", |op| (op.kind == DiskOpKind::Read).then_some(std::io::ErrorKind::Other));
        assert_eq!(c.stat(files[1]).await.map(|attr| attr.nlink), Err(Errno::Io));
        assert_eq!(c.unlink(Ino::ROOT, "f1").await, Err(Errno::Io));
        assert!(c.list(Ino::ROOT).await.is_ok_and(|names| names.len() == 30));
        place.sim.on_disk_op("server", |_| None);
        for f in &files {
            assert_eq!(c.stat(*f).await.unwrap().nlink, 1);
        }
        c.unlink(Ino::ROOT, "f1").await.unwrap();
    });
}

/// From now on the disk refuses reads, or takes them again.
pub(super) fn refuse_reads(place: &Place, on: bool) {
    let is_read = move |kind| on && kind == DiskOpKind::Read;
    place.sim.on_disk_op("server", move |op| is_read(op.kind).then_some(std::io::ErrorKind::Other));
}

/// Opens that sessions have.
async fn opens(c: &Client) -> u64 {
    let Ok(Reply::Status { sessions, .. }) = c.call(Request::Status).await else { panic!("status") };
    sessions.iter().map(|session| session.opens).sum()
}

/// Goal: an inode that cannot be read is an error for its own part of a request, and not for the other files that the
/// request names: other parts of batches are written and opened, all files of the request are closed, and a session
/// that presents its state after a restart loses only the open for writing of that file. Opens for reading need no
/// inode. Method: the inode of one file is on the disk, which refuses reads, and that of another is in the log, whose
/// items are in memory.
#[test]
fn an_unreadable_inode_fails_its_own_part_only() {
    let mut place = Place::new(729, 1, 1);
    place.config.inodes_bytes = Some(0);
    let story = async {
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let mut files = Vec::new();
        for n in 0..30 {
            files.push(c.create(Ino::ROOT, &format!("f{n}")).await.unwrap());
        }
        fill_log(&place, &c, files[0]).await;
        let (lost, good) = (files[1], files[2]);
        let reading = Access { read: true, write: false };
        let opened = [(lost, RW), (good, RW), (files[3], reading)];
        let open_all = async || {
            for (ino, access) in opened {
                c.call(Request::Open { ino, access, exec: false }).await.unwrap();
            }
        };
        open_all().await;
        let set = SetAttr { perm: Some(0o640), ..SetAttr::default() };
        c.call(Request::SetAttr { ino: good, set }).await.unwrap();
        refuse_reads(&place, true);
        assert_eq!((c.stat(lost).await.map(drop), c.stat(good).await.map(drop)), (Err(Errno::Io), Ok(())));
        let write = async || c.batch(&[part(lost, 1, 0, 4096), part(good, 2, 0, 4096)]).await;
        assert_eq!(write().await, Ok(vec![Err(Errno::Io), Ok(())]));

        let ahead = |text: &str, ino| ReadPart { name: name(text), ino, data: false };
        let parts = vec![ahead("f1", lost), ahead("f2", good)];
        let op = Request::ReadBatch { dir: Ino::ROOT, parts, bytes_max: 4096, ask_back: false, tokens: false };
        let Ok(Reply::FilesAhead(found)) = c.call(op).await else { panic!("files") };
        assert_eq!((found[0].map(drop), found[1].map(drop)), (Err(Errno::Io), Ok(())));

        let atime = Timespec { sec: 3_000_000_000, nsec: 0 };
        let (to_lost, to_good) = ((lost, RW, Some(atime)), (good, RW, Some(atime)));
        let closes = vec![to_lost, to_good, (good, reading, None), (files[3], reading, None)];
        assert_eq!((opens(&c).await, c.call(Request::CloseBatch { closes }).await), (3, Ok(Reply::Done)));
        assert_eq!(opens(&c).await, 0, "all are closed");
        assert_eq!(c.stat(good).await.unwrap().atime, atime);

        refuse_reads(&place, false);
        open_all().await;
        c.held.opens.borrow_mut().extend(opened);
        let owner = FileLockOwner { family: FileLockFamily::Posix, id: 1 };
        let lock = FileLockSpec { ino: good, owner, pid: 1, mode: LockMode::Write, range: ByteRange::ALL };
        c.held.file_locks.borrow_mut().extend([FileLockSpec { ino: files[3], ..lock }, lock]);
        c.held.pause.set(Duration::from_secs(1));
        place.sim.crash("server", CrashKind::Process);
        drop(server);
        let server = place.start().await.unwrap();
        refuse_reads(&place, true);
        c.call(Request::StatFs).await.unwrap();
        assert_eq!((c.held.restarts.get(), opens(&c).await), (1, 2), "the session goes on without one open");
        c.opens.set(false);
        assert_eq!(write().await, Ok(vec![Err(Errno::Io), Ok(())]));
        refuse_reads(&place, false);
        assert_eq!(write().await, Ok(vec![Err(Errno::BadFd), Ok(())]));
        drop(server);
    };
    place.sim.block_on(story).expect("no deadlock");
}

/// Goal: a request that waits for a lock for long keeps no inode in memory. Method: a session waits for a lock that
/// another does not give back, while many files are made in little memory.
#[test]
fn a_waiting_lock_keeps_no_inode() {
    let mut place = Place::new(730, 1, 1);
    place.config.inodes_bytes = Some(20_000);
    let story = async {
        let server = place.start().await.unwrap();
        let (c, other) = (place.client(1).await.unwrap(), place.client(2).await.unwrap());
        let made = c.call(make("f")).await;
        let Ok(Reply::Made { inode, lock: Some(held), .. }) = made else { panic!("{made:?}") };
        let file = inode.attr.ino;
        other.call(Request::Open { ino: file, access: RW, exec: false }).await.unwrap();
        let lock = ask(ObjectId { ino: file, stripe: 0 }, LockMode::Write, 0, 4096, LockExtent::Exact);
        c.held.deaf.set(true);
        let waiting = async {
            let (_, range) = locked(&other, lock).await;
            assert_eq!(range.start, 0);
        };
        let making = async {
            for n in 0..4000 {
                c.call(Request::Make {
                    dir: Ino::ROOT,
                    name: name(&format!("f{n}")),
                    make: Make::File { open: None, exclusive: true },
                    perm: 0o600 + n % 8,
                    umask: 0,
                })
                .await
                .unwrap();
            }
            assert!(counter(&c, "inodes_away").await > 0, "inodes leave memory");
            c.call(Request::LockCancel { locks: vec![held] }).await.unwrap();
        };
        join(waiting, making).await;
        drop(server);
    };
    place.sim.block_on(story).expect("no deadlock");
}

/// Goal: a request that names inodes of many blocks reads them at the same time. Method: files of eight blocks are
/// closed with access times in one request, on a disk where each read takes the same time; and one file alone.
#[test]
fn blocks_of_inodes_are_read_at_the_same_time() {
    let sim = SimConfig { disk_ns: 5_000_000..5_000_001, ..SimConfig::default() };
    let mut place = Place::with_sim(732, 1, 1, sim);
    place.config.inodes_bytes = Some(0);
    let story = async {
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let mut files = Vec::new();
        for n in 0..600 {
            files.push(c.create(Ino::ROOT, &format!("f{n}")).await.unwrap());
        }
        fill_log(&place, &c, files[0]).await;
        let atime = Some(Timespec { sec: 3_000_000_000, nsec: 0 });
        let took_ns = async |files: Vec<Ino>| {
            let begun = place.sim.node("client").now().0;
            let closes = files.into_iter().map(|ino| (ino, RW, atime)).collect();
            c.call(Request::CloseBatch { closes }).await.unwrap();
            place.sim.node("client").now().0 - begun
        };
        let one = took_ns(vec![files[100]]).await;
        let all = took_ns((1..9).map(|block| files[64 * block]).collect()).await;
        assert!(one >= 5_000_000 && all < 3 * one, "{all} ns for eight blocks, {one} ns for one");
        drop(server);
    };
    place.sim.block_on(story).expect("no deadlock");
}

/// Goal: an operation over two targets that is decided is carried out although the disk refuses reads from the decision
/// on, and what it concerns can be used. Method: a link of a file of one target from a directory of another; the disk
/// refuses reads from its first write on.
#[test]
fn a_decided_operation_reads_nothing() {
    let mut place = Place::new(735, 2, 1);
    place.config.inodes_bytes = Some(0);
    let story = async {
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let on_other = |n: &String| layout::directory_target(Ino::ROOT, n.as_bytes(), 2).0 == 1;
        let text = (0..).map(|n| format!("d{n}")).find(on_other).expect("a name");
        let dir = c.mkdir(Ino::ROOT, &text).await.unwrap();
        let file = c.create(Ino::ROOT, "f").await.unwrap();
        let filler = c.create(Ino::ROOT, "filler").await.unwrap();
        assert_eq!((dir.target(), file.target()), (TargetId(1), TargetId(0)));
        fill_log(&place, &c, filler).await;
        let mut has_written = false;
        place.sim.on_disk_op("server", move |op| {
            has_written |= op.kind == DiskOpKind::Write;
            (has_written && op.kind == DiskOpKind::Read).then_some(std::io::ErrorKind::Other)
        });
        assert_eq!(c.link(file, dir, "g").await.map(|view| view.attr.nlink), Ok(2));
        refuse_reads(&place, false);
        assert_eq!(c.stat(file).await.map(|attr| attr.nlink), Ok(2));
        drop(server);
    };
    place.sim.block_on(story).expect("no deadlock");
}
