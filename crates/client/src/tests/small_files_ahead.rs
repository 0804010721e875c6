//! Small files of a directory that are fetched ahead: which messages are sent, which callers get the files, and that
//! nothing outdated is shown.

use super::policy::sent;
use super::world::World;
use crate::OpenFile;
use crate::api::{Ctx, Hints, OpenFlags};
use crate::prefetch::small_files;
use crate::telemetry::stats::Count;
use amphi_env::Buf;
use amphi_types::{Cred, Errno, Ino, Pattern, Result, SetAttr};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

fn name(i: usize) -> String {
    format!("f{:04}", (i * 7919) % 10_000)
}

fn bytes(i: usize) -> Vec<u8> {
    (0..3000 + i % 1000).map(|k| (k * 31 + i * 7) as u8).collect()
}

/// Files of the root; their names are not in the order in which they were made.
fn planted(w: &mut World, count: usize) -> BTreeMap<String, (Ino, Vec<u8>)> {
    (0..count).map(|i| (name(i), (w.server.plant(&name(i), &bytes(i), Pattern::Growing), bytes(i)))).collect()
}

fn list(w: &mut World) -> Vec<(String, Ino)> {
    let mut all = Vec::new();
    let mut cookie = 0;
    loop {
        let op = w.client.readdir(&Ctx::root(), Ino::ROOT, cookie, 100, false);
        let listing = w.run(op).expect("readdir");
        cookie = listing.entries.last().map_or(cookie, |e| e.cookie);
        let named = listing.entries.iter().map(|e| (String::from_utf8_lossy(&e.name).into_owned(), e.ino));
        all.extend(named.filter(|(n, _)| !n.starts_with('.')));
        if listing.end {
            return all;
        }
    }
}

fn lookup(w: &mut World, ctx: &Ctx, name: &str) -> Result<Ino> {
    let op = w.client.lookup(ctx, Ino::ROOT, name.as_bytes());
    w.run(op).map(|attr| attr.ino)
}

fn open(w: &mut World, ctx: &Ctx, ino: Ino) -> Result<Arc<OpenFile>> {
    let op = w.client.open(ctx, ino, OpenFlags::READ);
    w.run(op)
}

fn contents(w: &mut World, file: &Arc<OpenFile>) -> Vec<u8> {
    let (ctx, mut into) = (Ctx::root(), vec![0; 100_000]);
    match w.client.try_read(&ctx, file, 0, &mut into, Hints::default()) {
        Some(n) => into[..n].to_vec(),
        None => {
            let op = w.client.read(&ctx, file, 0, 100_000, Hints::default());
            w.run(op).expect("read").to_vec()
        }
    }
}

/// Looks a file up, opens and reads it.
fn cat(w: &mut World, name: &str) -> Vec<u8> {
    let ctx = Ctx::root();
    let ino = lookup(w, &ctx, name).expect("it is there");
    let file = open(w, &ctx, ino).expect("open");
    contents(w, &file)
}

fn tick(w: &mut World, seconds: u64) {
    w.clock.0.fetch_add(seconds * 1_000_000_000, SeqCst);
    small_files::tick(&w.client.mount);
    w.settle();
}

fn count(w: &World, what: Count) -> u64 {
    w.client.mount.stats.of(what).1
}

fn messages(w: &World) -> usize {
    w.server.log.len()
}

/// Goal: if a program reads the files of a listed directory in the order of names or inodes, one message serves many of
/// them, and the bytes are right. With the feature turned off, each file needs several messages. Method: 300 files,
/// with the requests counted by kind.
#[test]
fn files_in_order_travel_together() {
    for by_inode in [false, true] {
        for on in [true, false] {
            let set: &[(&str, &str)] = if on { &[] } else { &[("readahead.small_files", "off")] };
            let mut w = World::new(1, set);
            let files = planted(&mut w, 300);
            let mut order: Vec<(String, Ino)> = list(&mut w);
            order.sort_by_key(|(n, ino)| if by_inode { (*ino, String::new()) } else { (Ino(0), n.clone()) });
            let before = messages(&w);
            for (name, _) in &order {
                assert!(cat(&mut w, name) == files[name].1, "{name}");
            }
            tick(&mut w, 1);
            let sent_in_all = messages(&w) - before;
            if on {
                assert!(sent_in_all < 60, "{sent_in_all} for 300 files: {:?}", &w.server.log[before..]);
                assert!(sent(&w, "Open") <= 8 && sent(&w, "Read") <= 8 && sent(&w, "Lookup") <= 8);
                assert!(count(&w, Count::SmallAheadUsed) >= 290);
                assert_eq!(count(&w, Count::SmallAheadWasted), 0);
            } else {
                assert!(sent_in_all >= 4 * 300 && sent(&w, "ReadBatch") == 0, "{sent_in_all}");
            }
            w.check_clean();
        }
    }
}

/// Goal: no listing of the directory is needed: after some files of it were looked up and opened, the mount requests
/// its names. Method: files are looked up first, as by `stat`, then opened by their inodes.
#[test]
fn names_are_asked_for() {
    let mut w = World::new(2, &[]);
    let files = planted(&mut w, 200);
    let ctx = Ctx::root();
    for name in files.keys() {
        lookup(&mut w, &ctx, name).expect("it is there");
    }
    for (ino, bytes) in files.values() {
        let file = open(&mut w, &ctx, *ino).expect("open");
        assert!(contents(&mut w, &file) == *bytes);
    }
    assert_eq!(sent(&w, "ReadDir"), 1);
    assert!(sent(&w, "Open") < 20, "{}", sent(&w, "Open"));
    w.check_clean();
}

/// Goal: if the bytes of a file are in the cache, the file is opened ahead without sending them. Method: a mount reads
/// files that it has read before.
#[test]
fn cached_files_are_just_opened() {
    let mut w = World::new(3, &[]);
    let files = planted(&mut w, 200);
    list(&mut w);
    files.keys().for_each(|name| drop(cat(&mut w, name)));
    tick(&mut w, 1);
    let (before, locks) = (messages(&w), w.server.locks.len());
    for (name, (_, bytes)) in &files {
        assert!(cat(&mut w, name) == *bytes);
    }
    tick(&mut w, 1);
    assert!(messages(&w) - before < 60, "{:?}", &w.server.log[before..]);
    assert_eq!(w.server.locks.len(), locks, "no further locks");
    w.check_clean();
}

/// Reads three files, after which the client has fetched others ahead. Returns all in order.
fn started(w: &mut World, count: usize) -> Vec<(String, Ino)> {
    planted(w, count);
    let mut order = list(w);
    order.sort();
    (0..3).for_each(|i| drop(cat(w, &order[i].0)));
    w.settle();
    order
}

/// Goal: a file that the server has opened ahead for one user is not given to another user (permission). Method: the
/// super-user reads in order. A user whom the server refuses requests files that were opened ahead.
#[test]
fn others_are_checked_by_the_server() {
    let mut w = World::new(4, &[]);
    let order = started(&mut w, 50);
    let user = Ctx { cred: Cred::new(7, 7, vec![]), ..Ctx::root() };
    let (opens, lookups) = (sent(&w, "Open"), sent(&w, "Lookup"));
    for (name, ino) in &order[3..6] {
        assert_eq!(lookup(&mut w, &user, name), Ok(*ino));
        drop(open(&mut w, &user, *ino).expect("the reference server lets everybody"));
    }
    assert_eq!((sent(&w, "Open"), sent(&w, "Lookup")), (opens + 3, lookups + 3));
    drop(open(&mut w, &Ctx::root(), order[3].1).expect("open"));
    assert_eq!(sent(&w, "Open"), opens + 3, "what was opened ahead is still there for whom it was");
    w.check_clean();
}

/// Goal: this mount's own changes of mode, size and name are seen, even while an answer is on its way. Method: each
/// change is made to a file that was fetched, and then to files that are being fetched.
#[test]
fn own_changes_are_seen() {
    let mut w = World::new(5, &[]);
    let (ctx, order) = (Ctx::root(), started(&mut w, 200));
    let set = |w: &mut World, ino: Ino, set: SetAttr| {
        let op = w.client.setattr(&Ctx::root(), ino, set, None);
        w.run(op).expect("setattr")
    };
    let opens = sent(&w, "Open");
    set(&mut w, order[3].1, SetAttr { perm: Some(0o600), ..SetAttr::default() });
    drop(open(&mut w, &ctx, order[3].1));
    assert_eq!(sent(&w, "Open"), opens + 1, "the server is asked");
    set(&mut w, order[4].1, SetAttr { size: Some(10), ..SetAttr::default() });
    assert_eq!(cat(&mut w, &order[4].0).len(), 10);
    w.unlink(&order[5].0);
    assert_eq!(lookup(&mut w, &ctx, &order[5].0), Err(Errno::NoEnt));
    w.settle();
    assert!(w.server.opens.iter().all(|((ino, ..), n)| *ino != order[5].1 || *n == 0), "it is closed at once");
    let (old, new) = ((Ino::ROOT, order[6].0.as_bytes()), (Ino::ROOT, order[7].0.as_bytes()));
    let op = w.client.rename(&ctx, old, new, amphi_wire::RenameMode::Replace);
    w.run(op).expect("rename");
    assert_eq!(lookup(&mut w, &ctx, &order[6].0), Err(Errno::NoEnt));
    assert_eq!(lookup(&mut w, &ctx, &order[7].0), Ok(order[6].1));
    // The next batch is entered with this open, and has not been sent.
    let asked = count(&w, Count::SmallAheadAsked);
    let mut i = 8;
    while w.client.mount.stats.of(Count::SmallAheadAsked).1 == asked && i < 50 {
        drop(w.client.open(&ctx, order[i].1, OpenFlags::READ));
        w.waiting_calls();
        if w.server.log.last().is_some_and(|l| l == "ReadBatch") {
            break;
        }
        i += 1;
        w.steps(1);
    }
    for (_, ino) in &order[100..110] {
        let cut = w.client.setattr(&ctx, *ino, SetAttr { size: Some(7), ..SetAttr::default() }, None);
        w.run(cut).expect("setattr");
    }
    w.settle();
    for (name, _) in &order[100..110] {
        assert_eq!(cat(&mut w, name).len(), 7);
    }
    w.check_clean();
}

/// Goal: a repeated answer has lost its bytes. Files that the server refused in order not to wait are requested once
/// more. Method: a server that sends no payloads, then one that refuses some files once.
#[test]
fn incomplete_answers() {
    let mut w = World::new(6, &[]);
    w.server.loses_payloads = true;
    let files = planted(&mut w, 100);
    list(&mut w);
    for (name, (_, bytes)) in &files {
        assert!(cat(&mut w, name) == *bytes);
    }
    assert!(sent(&w, "Open") < 10 && sent(&w, "Read") >= 100);
    assert!(sent(&w, "LockEnqueue") < 10, "locks came");
    w.check_clean();

    let mut w = World::new(7, &[]);
    let files = planted(&mut w, 200);
    w.server.kept_elsewhere = files.values().map(|(ino, _)| *ino).filter(|ino| ino.0 % 2 == 0).collect();
    list(&mut w);
    for (name, (_, bytes)) in &files {
        assert!(cat(&mut w, name) == *bytes);
    }
    assert!(count(&w, Count::SmallAheadLater) >= 50);
    assert!(sent(&w, "Open") < 40, "{}", sent(&w, "Open"));
    w.check_clean();
}

/// Goal: a file that is not opened is closed after a while, and a directory where that happens often is left alone.
/// Method: a few files each of many regions of a large directory are read in order.
#[test]
fn waste_ends_it() {
    let mut w = World::new(8, &[]);
    planted(&mut w, 2000);
    let mut order = list(&mut w);
    order.sort();
    let mut asked = Vec::new();
    for round in 0..8 {
        for (name, _) in &order[round * 200..round * 200 + 4] {
            cat(&mut w, name);
        }
        tick(&mut w, 30);
        asked.push(count(&w, Count::SmallAheadAsked));
        assert!(w.server.opens.values().all(|n| *n == 0), "all is closed");
    }
    assert!(count(&w, Count::SmallAheadWasted) > 32);
    assert!(asked[7] - asked[5] < asked[1], "{asked:?}");
    w.check_clean();
}

/// Goal: nothing outdated is ever shown, whatever comes between request and answer (all invariants of `small_files`).
/// Method: random runs of reads in order are mixed with writes, cuts, removals, renames and creates of the same files.
/// Locks are called back at any moment, and answers come in any order. Every read, size and look-up is compared with a
/// model.
#[test]
fn random_changes_match_a_model() {
    for seed in 0..60 {
        random(seed);
    }
}

fn random(seed: u64) {
    let mut w = World::new(seed, &[]);
    let ctx = Ctx::root();
    let planted = planted(&mut w, 40);
    let names: Vec<String> = planted.keys().cloned().collect();
    let mut model: BTreeMap<String, Vec<u8>> = planted.into_iter().map(|(n, (_, bytes))| (n, bytes)).collect();
    w.callbacks = [0, 20, 100][seed as usize % 3];
    list(&mut w);
    for _ in 0..150 {
        let name = names[w.rand(names.len() as u64) as usize].clone();
        match w.rand(8) {
            0..=2 => {
                let from = w.rand(names.len() as u64) as usize;
                for name in names.iter().skip(from).take(12) {
                    match model.get(name) {
                        Some(bytes) => assert!(cat(&mut w, name) == *bytes, "seed {seed}: {name}"),
                        None => assert_eq!(lookup(&mut w, &ctx, name), Err(Errno::NoEnt), "seed {seed}: {name}"),
                    }
                    let steps = w.rand(30);
                    w.steps(steps);
                }
            }
            3 => {
                let Some(bytes) = model.get_mut(&name) else { continue };
                let ino = lookup(&mut w, &ctx, &name).expect("it is there");
                let op = w.client.open(&ctx, ino, OpenFlags::READ_WRITE);
                let file = w.run(op).expect("open");
                let (at, len) = (w.rand(3000) as usize, 1 + w.rand(2000) as usize);
                let data = vec![w.rand(256) as u8; len];
                let op = w.client.write(&ctx, &file, at as u64, Buf::copy_of(&data), Hints::default());
                assert_eq!(w.run(op), Ok(len));
                if bytes.len() < at + len {
                    bytes.resize(at + len, 0);
                }
                bytes[at..at + len].copy_from_slice(&data);
            }
            4 => {
                let Some(bytes) = model.get_mut(&name) else { continue };
                let ino = lookup(&mut w, &ctx, &name).expect("it is there");
                let size = w.rand(5000);
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                let op = w.client.setattr(&ctx, ino, set, None);
                assert_eq!(w.run(op).expect("cut").size, size);
                bytes.resize(size as usize, 0);
            }
            5 => {
                if model.remove(&name).is_some() {
                    w.unlink(&name);
                } else {
                    drop(w.create(&name, OpenFlags::READ_WRITE));
                    model.insert(name, Vec::new());
                }
            }
            6 => {
                let to = names[w.rand(names.len() as u64) as usize].clone();
                if to == name {
                    continue;
                }
                let Some(bytes) = model.remove(&name) else { continue };
                model.insert(to.clone(), bytes);
                let (old, new) = ((Ino::ROOT, name.as_bytes()), (Ino::ROOT, to.as_bytes()));
                let op = w.client.rename(&ctx, old, new, amphi_wire::RenameMode::Replace);
                w.run(op).expect("rename");
            }
            _ => {
                if w.rand(4) == 0 {
                    tick(&mut w, 1);
                } else {
                    list(&mut w);
                }
            }
        }
    }
    w.callbacks = 0;
    for name in &names {
        match model.get(name) {
            Some(bytes) => assert!(cat(&mut w, name) == *bytes, "seed {seed}: {name}"),
            None => assert_eq!(lookup(&mut w, &ctx, name), Err(Errno::NoEnt)),
        }
    }
    assert!(count(&w, Count::SmallAheadUsed) > 0);
    w.check_clean();
}
