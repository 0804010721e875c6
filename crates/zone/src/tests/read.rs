//! Reading items of an open zone, beside a map of what was written.

use super::*;
use crate::ZoneErrorKind;
use crate::planted::{Mistake, plant};
use amphi_env::Env;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

const KEYS: u64 = 300;

/// The state that the tasks of one run share.
#[derive(Default)]
struct Story {
    items: RefCell<BTreeMap<Key, Vec<u8>>>,
    /// Keys in the order in which they were changed.
    changed: RefCell<Vec<Key>>,
    wrong: RefCell<Option<String>>,
    running: Cell<u32>,
    reads: Cell<u64>,
}

fn key(n: u64) -> Key {
    format!("I{n:05}").into_bytes()
}

/// Appends records and takes checkpoints, some of which merge everything.
async fn write(env: SimEnv, zone: Zone<SimEnv>, story: Rc<Story>, seed: u64) {
    let mut rng = Lcg(seed);
    for _ in 0..120 {
        let mut t = Txn::default();
        for _ in 0..1 + rng.below(4) {
            let key = key(rng.below(KEYS));
            if rng.below(3) == 0 {
                t.delete(key);
            } else {
                let large = if rng.below(30) == 0 { 100_000 } else { 900 };
                t.put(key, vec![rng.below(256) as u8; rng.below(large) as usize]);
            }
        }
        story.changed.borrow_mut().extend(t.changes().map(|change| change.key().to_vec()));
        apply(&mut story.items.borrow_mut(), &t);
        let lsn = plain(&zone, t);
        match rng.below(8) {
            0 => zone.written(lsn).await.unwrap(),
            1 => zone.checkpoint().await.unwrap(),
            2 => zone.shared().request_checkpoint(true).await.unwrap(),
            3 | 4 => env.sleep(Duration::from_micros(rng.below(300))).await,
            _ => {}
        }
    }
    story.running.set(story.running.get() - 1);
}

/// Reads items while they are written, and compares each with what it is when the read returns.
async fn read(env: SimEnv, zone: Zone<SimEnv>, story: Rc<Story>, seed: u64) {
    let mut rng = Lcg(seed);
    while story.running.get() > 0 && story.wrong.borrow().is_none() {
        story.reads.set(story.reads.get() + 1);
        env.sleep(Duration::from_micros(rng.below(30))).await;
        let n = rng.below(KEYS);
        let found = zone.get(&key(n)).await;
        if found.as_ref().ok() != Some(&story.items.borrow().get(&key(n)).cloned()) {
            story.wrong.replace(Some(format!("item {n}: {:?}", found.map(|found| found.map(|value| value.len())))));
        }
    }
}

/// Scans ranges: items that did not change meanwhile must have their earlier values.
async fn scan(env: SimEnv, zone: Zone<SimEnv>, story: Rc<Story>, seed: u64) {
    let mut rng = Lcg(seed);
    while story.running.get() > 0 && story.wrong.borrow().is_none() {
        env.sleep(Duration::from_micros(rng.below(100))).await;
        let (from, max) = (rng.below(KEYS), 1 + rng.below(40) as usize);
        let end = key(from + rng.below(KEYS));
        let before = story.changed.borrow().len();
        let mut wanted = story.items.borrow().clone();
        let found = zone.scan(&key(from), &end, max).await;
        let Ok(mut found) = found else {
            story.wrong.replace(Some(format!("scan: {found:?}")));
            return;
        };
        let ended = if found.len() < max { end } else { [&found[max - 1].0, &b"\0"[..]].concat() };
        let changed: BTreeSet<Key> = story.changed.borrow()[before..].iter().cloned().collect();
        found.retain(|(key, _)| !changed.contains(key));
        wanted.retain(|k, _| (&key(from)..&ended).contains(&k) && !changed.contains(k));
        if !found.iter().map(|(key, value)| (key, value)).eq(&wanted) {
            story.wrong.replace(Some(format!("scan from {from}: {} of {} items", found.len(), wanted.len())));
        }
    }
}

/// Reads several items at once, some of which do not exist: what did not change meanwhile has to be what it was.
async fn scan_keys(env: SimEnv, zone: Zone<SimEnv>, story: Rc<Story>, seed: u64) {
    let mut rng = Lcg(seed);
    while story.running.get() > 0 && story.wrong.borrow().is_none() {
        env.sleep(Duration::from_micros(rng.below(100))).await;
        let from = rng.below(KEYS);
        let keys: Vec<Key> = (from..from + 64).filter(|_| rng.below(3) > 0).map(key).collect();
        let before = story.changed.borrow().len();
        let mut wanted = story.items.borrow().clone();
        let Ok(mut found) = zone.scan_keys(&keys).await else {
            story.wrong.replace(Some(format!("{} keys from {from} on cannot be read", keys.len())));
            return;
        };
        let changed: BTreeSet<Key> = story.changed.borrow()[before..].iter().cloned().collect();
        found.retain(|(key, _)| !changed.contains(key));
        wanted.retain(|k, _| keys.contains(k) && !changed.contains(k));
        if !found.iter().map(|(key, value)| (key, value)).eq(&wanted) {
            story.wrong.replace(Some(format!("keys from {from} on: {} of {} items", found.len(), wanted.len())));
        }
    }
}

/// Three lives of a zone that is read while it is written.
fn story(seed: u64) -> Result<u64, String> {
    let sim = sim(seed);
    format(&sim, &params());
    let story = Rc::new(Story::default());
    for life in 0..3 {
        let (zone, found) = open(&sim, &manual()).map_err(|e| e.to_string())?;
        assert!(found.items == *story.items.borrow());
        let env = sim.node(NODE);
        story.running.set(2);
        for task in 0..2 {
            let seed = seed * 100 + life * 10 + task;
            env.spawn(write(env.clone(), zone.clone(), story.clone(), seed));
            env.spawn(read(env.clone(), zone.clone(), story.clone(), seed + 1));
            env.spawn(scan(env.clone(), zone.clone(), story.clone(), seed + 2));
            env.spawn(scan_keys(env.clone(), zone.clone(), story.clone(), seed + 3));
        }
        sim.run_until(|| story.running.get() == 0).map_err(|e| e.to_string())?;
        if let Some(wrong) = story.wrong.take() {
            return Err(wrong);
        }
        sim.block_on(zone.close()).unwrap().map_err(|e| e.to_string())?;
    }
    let report = sim.block_on(crate::fsck(&sim.node(NODE), PATH)).unwrap().unwrap();
    assert!(report.problems.is_empty() && report.items == *story.items.borrow(), "{:?}", report.problems);
    Ok(story.reads.get())
}

/// Goal: an item is read with its value at that moment, and a scan has all records that were appended before it,
/// whatever is queued, being written, taken by a checkpoint or being merged. Method: tasks that read and scan beside
/// tasks that write, over restarts, with a map as the model.
#[test]
fn items_are_what_they_are() {
    let reads: u64 = (1..13).map(|seed| story(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"))).sum();
    assert!(reads > 1000, "{reads} reads");
}

/// Goal: that test can fail. Method: planted mistakes.
#[test]
fn planted_mistakes_of_reads_are_found() {
    for mistake in [Mistake::QueueUnread, Mistake::FrozenUnread, Mistake::ScansOld, Mistake::ReadsOld] {
        plant(Some(mistake));
        let found = (1..60).find_map(|seed| story(seed).err());
        plant(None);
        assert!(found.is_some(), "{mistake:?} was not noticed");
        println!("{mistake:?}: {found:?}");
    }
}

/// A zone with 20,000 small items in several segments, opened again.
fn zone_with_segments(sim: &Sim) -> Zone<SimEnv> {
    format(sim, &ZoneParams { size_bytes: 64 * MIB, log_bytes: 4 * MIB, ..params() });
    let (zone, _) = open(sim, &manual()).unwrap();
    for (from, to) in [(0, 15_500), (15_500, 19_000), (19_000, 19_800), (19_800, 20_000)] {
        for n in from..to {
            // Neighbours are in different segments.
            let lsn = plain(&zone, txn(&format!("I{:05}", n * 7919 % 20_000), &[n as u8; 80]));
            if n % 100 == 0 {
                sim.block_on(zone.written(lsn)).unwrap().unwrap();
            }
        }
        sim.block_on(zone.checkpoint()).unwrap().unwrap();
    }
    sim.block_on(zone.close()).unwrap().unwrap();
    drop(zone);
    open(sim, &manual()).unwrap().0
}

/// Goal: a read of an item takes one disk read, and seldom two, whatever the number of segments, and a read of an item
/// that does not exist mostly takes none. Method: every item and as many that are not there, with the reads counted.
#[test]
fn a_read_costs_one_disk_read() {
    let sim = sim(5);
    let zone = zone_with_segments(&sim);
    assert!(zone.state().medium.segments.len() > 2, "{}", zone.state().medium.segments.len());
    let reads = || sim.disk_ops(NODE).reads;
    let before = reads();
    let mut many = 0;
    for n in 0..20_000u64 {
        let at = reads();
        let found = sim.block_on(zone.get(&key(n))).unwrap().unwrap();
        assert_eq!(found.map(|value| value.len()), Some(80), "{n}");
        many += u64::from(reads() - at > 2);
    }
    let all = reads() - before;
    assert!(many < 20 && all < 20_600, "{all} disk reads for 20,000 items, more than two for {many}");
    let before = reads();
    for n in 0..20_000u64 {
        assert_eq!(sim.block_on(zone.get(&[&key(n), &b"-"[..]].concat())).unwrap().unwrap(), None);
    }
    let none = reads() - before;
    assert!(none < 1000, "{none} disk reads for 20,000 items that do not exist");
    let before = reads();
    let some = sim.block_on(zone.scan(&key(5000), &key(5064), 1000)).unwrap().unwrap();
    let scanned = reads() - before;
    assert!(some.len() == 64 && scanned <= 8, "{scanned} disk reads for a scan of {} neighbours", some.len());
}

/// Goal: a read of several items waits for queued records that may change one of them, and for no others. Method: reads
/// beside a queued record, of other items and of its own.
#[test]
fn a_read_of_keys_waits_for_them_alone() {
    let sim = sim(8);
    let zone = zone_with_segments(&sim);
    let keys: Vec<Key> = (100..164).map(key).collect();
    let lsn = plain(&zone, txn("I00099", b"anew"));
    assert_eq!(sim.block_on(zone.scan_keys(&keys)).unwrap().unwrap().len(), 64);
    assert!(zone.state().waiting.wanted_lsn < lsn.0, "a record of another item was waited for");
    let lsn = plain(&zone, txn("I00120", b"anew"));
    let found = sim.block_on(zone.scan_keys(&keys)).unwrap().unwrap();
    assert!(zone.written_lsn() >= lsn && found[20].1 == b"anew");
    sim.block_on(zone.close()).unwrap().unwrap();
}

/// Goal: a read of a damaged page is served and counted, and one that cannot be rebuilt is an error that names the
/// place, for this item alone. Method: one block of each page is damaged under an open zone, then a second one.
#[test]
fn damaged_pages_are_read() {
    let sim = sim(6);
    let zone = zone_with_segments(&sim);
    let slots: Vec<u32> = zone.state().medium.segments.iter().flat_map(|segment| segment.slots.clone()).collect();
    let spoil = |block: u64| {
        let at = |slot: &u32| zone.shared().geometry.slot_offset(*slot) + block * 4096;
        slots.iter().for_each(|slot| sim.poke(NODE, PATH, at(slot), &[0x77; 512]).unwrap());
    };
    spoil(3);
    for n in (0..20_000).step_by(500) {
        assert!(sim.block_on(zone.get(&key(n))).unwrap().unwrap().is_some(), "{n}");
    }
    assert_eq!(sim.block_on(zone.scan(b"I", b"J", 30_000)).unwrap().unwrap().len(), 20_000);
    let (rebuilt, pages) = (zone.stats().rebuilt_blocks, slots.len() as u64);
    assert!((pages / 2..=pages).contains(&rebuilt), "{rebuilt} blocks of {pages} pages: each is counted once");
    spoil(5);
    let e = sim.block_on(zone.get(&key(77))).unwrap().unwrap_err();
    assert!(e.kind == ZoneErrorKind::Corrupt && e.place.contains("segment"), "{e}");
    assert_eq!(sim.block_on(zone.scan(b"I", b"J", 9)).unwrap().unwrap_err().kind, ZoneErrorKind::Corrupt);
    let lsn = plain(&zone, txn("I00077", b"anew"));
    assert_eq!(sim.block_on(zone.get(&key(77))).unwrap().unwrap().as_deref(), Some(&b"anew"[..]));
    sim.block_on(zone.written(lsn)).unwrap().unwrap();
}

/// Goal: a check finds an index that is not that of the changes. Method: segments whose filters lack a key of each
/// page, with right checksums.
#[test]
fn a_wrong_index_is_found() {
    let sim = sim(7);
    plant(Some(Mistake::IndexWrong));
    let zone = zone_with_segments(&sim);
    plant(None);
    sim.block_on(zone.close()).unwrap().unwrap();
    drop(zone);
    let report = sim.block_on(crate::fsck(&sim.node(NODE), PATH)).unwrap().unwrap();
    let text = report.problems.first().map(ToString::to_string).unwrap_or_default();
    assert!(text.contains("index"), "{text:?}");
}
