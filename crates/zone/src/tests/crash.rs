//! Crash sweep: a scenario of appends, data writes and checkpoints is stopped at every write and sync.
//!
//! After a crash of the process every record whose `kept` returned must exist. If the memory that outlives the process
//! is lost as well, every record whose `written` returned must exist; and after a loss of power, every record whose
//! `stable` returned. The surviving records are a prefix of the appended ones, each complete, and a record that points
//! at data comes with the data; under `Load::Data` blocks are reused when the record that freed them is stable. Each
//! item is also read one by one, and all of them in scans. Then a second life continues and is stopped too, so that
//! groups which the first crash left behind the cut meet new groups.

use super::*;
use crate::layout::Superblock;
use crate::log_reader::header_of;
use crate::parity;
use crate::planted::{Mistake, plant};
use amphi_env::sim::CrashKind;
use amphi_env::{Buf, Disk, Env};
use std::cell::RefCell;

/// The steps of a scenario, recorded outside of the simulated process.
#[derive(Default)]
struct Track {
    txns: Vec<Txn>,
    kept: u64,
    written: u64,
    stable: u64,
    ended: bool,
    /// Changes may have been lost, and the zone does not know yet that all mounts were notified.
    lossy: bool,
}

const COUNT: &[u8] = b"Mcount";
/// Blocks that data goes to under `Load::Data`.
const BLOCKS: u64 = 12;
/// Items that point at data.
const HOLDERS: u64 = 5;

/// The kinds of operations of a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Load {
    /// Small records, data, waits, checkpoints.
    Mixed,
    /// Records of 100 KB that fill the log until it makes its own room.
    Heavy,
    /// The workload has mostly records that point at data, over few blocks, and pauses in which the zone works without
    /// requests.
    Data,
}

/// Writes a block of data for record `n` and points item `key` at it.
async fn write_data(zone: &Zone<SimEnv>, block: u64, n: u64, key: &str, t: &mut Txn) {
    let mut buf = Buf::zeroed(4096);
    buf.fill(n as u8);
    zone.disk().write(zone.data_offset() + block * 4096, buf).await.0.unwrap();
    t.put(key.as_bytes(), [block, n].map(u64::to_le_bytes).concat());
}

/// Block and stamp of an item that points at data.
fn pointed(value: &[u8]) -> (u64, u64) {
    let half = |i: usize| u64::from_le_bytes(value[i * 8..][..8].try_into().unwrap());
    (half(0), half(1))
}

/// Runs until the end or the crash. Record `n` counts itself; every fourth, or most, point at a fresh data block.
async fn scenario(env: SimEnv, zone: Zone<SimEnv>, track: Shared<Track>, seed: u64, load: Load, steps: u64) {
    let mut rng = Lcg(seed);
    let mut items = BTreeMap::new();
    track.borrow().txns.iter().for_each(|t| apply(&mut items, t));
    // Blocks that a record freed, until it is stable.
    let mut freed: Vec<(u64, u64)> = Vec::new();
    for _ in 0..steps {
        let n = track.borrow().txns.len() as u64 + 1;
        let mut t = Txn::default();
        t.put(COUNT, n.to_le_bytes());
        for _ in 0..rng.below(4) {
            let key = format!("I{}", rng.below(30)).into_bytes();
            let size = match load {
                Load::Heavy => 30_000 + rng.below(30_000),
                Load::Mixed if rng.below(6) == 0 => 40_000,
                Load::Mixed | Load::Data => rng.below(3000),
            };
            if rng.below(4) == 0 { t.delete(key) } else { t.put(key, vec![n as u8; size as usize]) }
        }
        let mut order = Order::Plain;
        if load == Load::Data && rng.below(4) > 0 {
            freed.retain(|(lsn, _)| *lsn > zone.stable_lsn().0);
            let held = |b: &u64| items.iter().any(|(k, v)| k[0] == b'C' && pointed(v).0 == *b);
            let free = (0..BLOCKS).filter(|b| !held(b) && freed.iter().all(|f| f.1 != *b)).collect::<Vec<u64>>();
            if let Some(&block) = free.get(rng.below(BLOCKS) as usize % free.len().max(1)) {
                let key = format!("C{}", rng.below(HOLDERS));
                if let Some(old) = items.get(key.as_bytes()) {
                    freed.push((n, pointed(old).0));
                }
                write_data(&zone, block, n, &key, &mut t).await;
                order = Order::AfterData;
            }
        } else if load != Load::Data && n.is_multiple_of(4) {
            write_data(&zone, n % zone.data_blocks(), n, "C", &mut t).await;
            order = Order::AfterData;
        }
        apply(&mut items, &t);
        track.borrow_mut().txns.push(t.clone());
        let lsn = zone.append(t, order);
        assert_eq!(lsn.0, n);
        if n.is_multiple_of(16) {
            // Memory is out of use for some records.
            zone.shared().kept.used.set(!n.is_multiple_of(32));
        }
        let choice = match load {
            Load::Heavy => rng.below(20) * 4,
            Load::Mixed => rng.below(8),
            Load::Data => rng.below(11),
        };
        match choice {
            0..2 => {
                zone.kept(lsn).await.unwrap();
                track.borrow_mut().kept = n;
                if rng.below(4) > 0 {
                    // A task waits for the record, so that it is being written while the next ones are kept.
                    let asked = std::pin::pin!(zone.written(lsn));
                    futures_util::future::select(asked, std::future::ready(())).await;
                }
            }
            2..4 => {
                zone.written(lsn).await.unwrap();
                track.borrow_mut().written = n;
            }
            4 => {
                zone.stable(lsn).await.unwrap();
                track.borrow_mut().stable = n;
            }
            5 => {
                zone.checkpoint().await.unwrap();
                // A checkpoint makes the records that it covers stable; nothing else was promised.
                let stable = zone.stable_lsn().0;
                track.borrow_mut().stable = stable;
            }
            8 => {
                zone.sync().await.unwrap();
                track.borrow_mut().stable = n;
            }
            9 => {
                zone.became_stable(lsn).await.unwrap();
                track.borrow_mut().stable = n;
            }
            10 => env.sleep(manual().sync_interval * 3 / 2).await,
            _ => {}
        }
    }
    zone.close().await.unwrap();
    track.borrow_mut().ended = true;
}

/// Opens after a crash and compares; the zone and the number of records that are there.
fn verify(sim: &Sim, track: &Track, crash: Crash) -> Result<(Zone<SimEnv>, u64), String> {
    let (zone, found) = open(sim, &manual()).map_err(|e| format!("does not open: {e}"))?;
    if crash == Crash::Kill && found.lost && !track.lossy {
        return Err("something is said to be lost".into());
    }
    let n = found.items.get(COUNT).map_or(0, |v| u64::from_le_bytes(v.as_slice().try_into().unwrap()));
    let promised = match crash {
        Crash::Gone if found.lost => track.written.max(track.stable),
        Crash::Kill | Crash::Gone => track.kept.max(track.written).max(track.stable),
        Crash::Power => track.stable,
    };
    if n < promised {
        return Err(format!("{promised} records were promised, {n} are there"));
    }
    if n > track.txns.len() as u64 {
        return Err(format!("{n} records are there, {} were appended", track.txns.len()));
    }
    let mut model = BTreeMap::new();
    track.txns[..n as usize].iter().for_each(|t| apply(&mut model, t));
    if model != found.items {
        return Err(format!("the items are not those after record {n}"));
    }
    // Reads take time, by which the sweeps with planted mistakes, which are others, would find theirs later.
    if crate::planted::is_none() {
        compare_reads(sim, &zone, &model);
    }
    if zone.appended_lsn().0 != n {
        return Err(format!("record {n} has number {}", zone.appended_lsn().0));
    }
    for (key, value) in found.items.iter().filter(|(k, _)| k[0] == b'C') {
        let (block, stamp) = pointed(value);
        let bytes = sim.peek(NODE, PATH, zone.data_offset() + block * 4096, 4096).unwrap();
        if bytes.iter().any(|&b| b != stamp as u8) {
            let key = String::from_utf8_lossy(key);
            return Err(format!("{key} of record {stamp} is there but not its data in block {block}"));
        }
    }
    Ok((zone, n))
}

/// How a life of the process ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Crash {
    Kill,
    /// The process is killed, and the memory that outlives it is lost too.
    Gone,
    Power,
}

impl Crash {
    fn kind(self) -> CrashKind {
        if self == Crash::Power { CrashKind::Power } else { CrashKind::Process }
    }
}

/// Damages one block of the metadata of a zone that is not open, or none that counts: a bit, a sector, or all of it.
fn damage(sim: &Sim, seed: u64) {
    let mut rng = Lcg(seed);
    let copy = |n: u64| Superblock::decode(&sim.peek(NODE, PATH, n * 4096, 4096).unwrap(), "copy").ok();
    let is_torn = copy(0).is_none() || copy(1).is_none();
    let root = copy(0).or(copy(1)).expect("one is valid");
    let g = root.geometry();
    let block = match rng.below(8) {
        // The crash may have torn one copy of the superblock.
        0 if !is_torn => rng.below(2),
        // Mostly near the begin of the log that counts.
        0..5 => g.log_address(root.start_position.get() + rng.below(24)) / 4096,
        _ => {
            let segments = root.segments();
            let slots = segments.iter().map(|s| s.first_slot.get()).chain([rng.below(g.meta_slots) as u32]);
            let slots: Vec<u32> = slots.collect();
            g.slot_offset(slots[rng.below(slots.len() as u64) as usize]) / 4096 + rng.below(4)
        }
    };
    let mut bytes = sim.peek(NODE, PATH, block * 4096, 4096).unwrap();
    match rng.below(3) {
        0 => bytes[rng.below(4096) as usize] ^= 1 << rng.below(8),
        1 => bytes[rng.below(8) as usize * 512..][..512].fill(0x3c),
        _ => bytes.fill(0),
    }
    sim.poke(NODE, PATH, block * 4096, &bytes).unwrap();
}

/// Crashes of a run, life by life, over and over.
type Kinds = &'static [Crash];
const KILL: Kinds = &[Crash::Kill];
const GONE: Kinds = &[Crash::Gone];
const POWER: Kinds = &[Crash::Power];
const POWER_THEN_KILL: Kinds = &[Crash::Power, Crash::Kill];
const KILL_THEN_POWER: Kinds = &[Crash::Kill, Crash::Power];
const KILL_THEN_GONE: Kinds = &[Crash::Kill, Crash::Gone];

/// One run with a crash at operation `nth` of the first life and, if that happens, at a random one of the second.
/// `Ok(false)`: the first life ended before `nth` operations.
fn run(seed: u64, nth: u64, kinds: Kinds, load: Load, steps: u64, rots: bool) -> Result<bool, String> {
    let sim = sim(seed * 10_007 + nth);
    format(&sim, &params());
    let track: Shared<Track> = Rc::new(RefCell::new(Track::default()));
    let mut crashed_first = false;
    let mut crash = Crash::Power;
    for life in 0..3u64 {
        if rots {
            damage(&sim, seed * 1009 + nth * 3 + life);
        }
        let (zone, n) = verify(&sim, &track.borrow(), crash).map_err(|e| format!("life {life}: {e}"))?;
        let lossy = crash != Crash::Kill && life > 0 || track.borrow().lossy;
        crash = kinds[life as usize % kinds.len()];
        let kind = crash.kind();
        {
            let mut t = track.borrow_mut();
            // Records found at the opening are stable, and others never were.
            t.txns.truncate(n as usize);
            (t.kept, t.written, t.stable, t.lossy) = (n, n, n, lossy);
            t.ended = false;
        }
        let at = if life == 0 { nth } else { 1 + (seed + nth * 7) % 60 };
        sim.crash_at(NODE, at, kind);
        let env = sim.node(NODE);
        let steps = if life == 0 { steps } else { steps / 3 };
        env.spawn(scenario(env.clone(), zone, track.clone(), seed + life, load, steps));
        sim.run_until(|| track.borrow().ended || !sim.alive(NODE)).map_err(|e| e.to_string())?;
        if life == 0 {
            crashed_first = !track.borrow().ended;
        }
        if sim.alive(NODE) {
            sim.clear_crash_at(NODE);
            // The process ends in the regular way; everything is stable then.
            sim.crash(NODE, kind);
        }
        if crash == Crash::Gone {
            sim.forget_kept(NODE);
        }
        if life == 1 {
            // Opening is interrupted too.
            sim.node(NODE);
            sim.crash_at(NODE, 1 + nth % 7, kind);
            let env = sim.node(NODE);
            let opened: Shared<Option<Result<(), ZoneError>>> = Rc::default();
            let (told, inner) = (opened.clone(), env.clone());
            env.spawn(async move {
                let result = Zone::open(&inner, PATH, &manual()).await;
                told.replace(Some(result.map(drop)));
            });
            sim.run_until(|| opened.borrow().is_some() || !sim.alive(NODE)).map_err(|e| e.to_string())?;
            if let Some(Err(e)) = opened.take() {
                return Err(format!("does not open again: {e}"));
            }
            sim.clear_crash_at(NODE);
            sim.crash(NODE, CrashKind::Process);
        }
        sim.node(NODE);
    }
    if rots {
        damage(&sim, seed * 1009 + nth * 3 + 3);
    }
    verify(&sim, &track.borrow(), crash).map_err(|e| format!("at the end: {e}"))?;
    Ok(crashed_first)
}

/// Every operation of the scenario of `seed`; stops at the first error.
fn sweep(seed: u64, kinds: Kinds, load: Load, steps: u64) -> Result<u64, String> {
    sweep_with(seed, kinds, load, steps, false)
}

/// The same; with `rots` a block of metadata is damaged before each opening.
fn sweep_with(seed: u64, kinds: Kinds, load: Load, steps: u64, rots: bool) -> Result<u64, String> {
    for nth in 1.. {
        if !run(seed, nth, kinds, load, steps, rots)
            .map_err(|e| format!("seed {seed}, {load:?}, {kinds:?} at operation {nth}: {e}"))?
        {
            return Ok(nth - 1);
        }
    }
    unreachable!("the scenario ends");
}

/// Goal: no crash of the process loses or damages a record whose `kept` returned, and none is treated as something
/// worse than a crash of the process. Method: see the head.
#[test]
fn a_killed_process_loses_nothing_kept() {
    let mut points = sweep(1, KILL, Load::Mixed, 60).unwrap();
    points += sweep(2, KILL, Load::Heavy, 40).unwrap();
    points += sweep(3, KILL, Load::Data, 60).unwrap();
    assert!(points > 100, "{points} points");
}

/// Goal: if the memory that outlives the process is lost with it, no record is lost whose `written` returned, and
/// opening reports that others may be. Method: see the head.
#[test]
fn lost_memory_loses_nothing_written() {
    let mut points = 0;
    for kinds in [GONE, KILL_THEN_GONE] {
        points += sweep(4, kinds, Load::Mixed, 60).unwrap();
        points += sweep(5, kinds, Load::Heavy, 40).unwrap();
        points += sweep(6, kinds, Load::Data, 60).unwrap();
    }
    assert!(points > 200, "{points} points");
}

/// Goal: no loss of power loses or tears a record whose `stable` returned. Method: see the head.
#[test]
fn a_power_loss_loses_nothing_stable() {
    let mut points = (20..23).map(|seed| sweep(seed, POWER, Load::Mixed, 60).unwrap()).sum::<u64>();
    points += sweep(23, POWER, Load::Heavy, 40).unwrap();
    points += (24..27).map(|seed| sweep(seed, POWER, Load::Data, 60).unwrap()).sum::<u64>();
    assert!(points > 300, "{points} points");
}

/// Goal: what power loss took back does not return when the process is killed next, and records that only the process's
/// death survived are made safe by opening. Method: both kinds of crashes in turn; see the head.
#[test]
fn kinds_of_crashes_in_turn() {
    let mut points = 0;
    for seed in 30..33 {
        points += sweep(seed, POWER_THEN_KILL, Load::Data, 40).unwrap();
        points += sweep(seed, KILL_THEN_POWER, Load::Data, 40).unwrap();
    }
    assert!(points > 300, "{points} points");
}

/// Goal: with a damaged block of metadata at every start everything above holds, wherever the crash has torn a write,
/// also a write of a rebuilt block. Method: see the head; `damage`.
#[test]
fn a_damaged_block_is_survived_after_any_crash() {
    let mut points = 0;
    for (seed, kinds, load, steps) in [
        (60, KILL, Load::Mixed, 40),
        (61, POWER, Load::Data, 40),
        (62, POWER_THEN_KILL, Load::Mixed, 40),
        (63, KILL_THEN_POWER, Load::Heavy, 25),
    ] {
        points += sweep_with(seed, kinds, load, steps, true).unwrap();
    }
    assert!(points > 150, "{points} points");
}

/// The whole groups of the log of a zone that is not open: where each begins, its blocks, its last record.
fn groups(sim: &Sim) -> Vec<(u64, u64, u64)> {
    let block = |at: u64| sim.peek(NODE, PATH, at, 4096).unwrap();
    let copies = (0..2).filter_map(|n| Superblock::decode(&block(n * 4096), "copy").ok());
    let root = copies.max_by_key(|root| root.sequence.get()).expect("one is valid");
    let (mut position, mut seq, mut found) = (root.start_position.get(), root.start_seq.get(), Vec::new());
    let bytes = |at: u64, blocks: u64| -> Vec<u8> {
        (at..at + blocks).flat_map(|at| block(root.geometry().log_address(at))).collect()
    };
    // The last one may be torn.
    while let Some(header) = header_of(&bytes(position, 1))
        && header.seq.get() == seq
        && parity::verifies(root.zone_id.get(), &bytes(position, header.data_blocks()))
    {
        let last = header.first_lsn.get() + u64::from(header.records.get()) - 1;
        found.push((position, header.blocks(), last));
        (position, seq) = (position + header.blocks(), seq + 1);
    }
    found
}

/// One run that is killed at operation `nth`; after it each group in turn is damaged so much that parity cannot rebuild
/// it. If the log was written further than may be unsynced behind the group's beginning, the group was synced, and
/// later groups must prove that: the zone is refused. Otherwise it may be refused, or the log ends before the group.
/// Returns how many groups were proven; `None`: the life ended before `nth` operations.
fn run_destroyed(seed: u64, nth: u64, load: Load) -> Result<Option<u64>, String> {
    let sim = sim(seed * 10_007 + nth);
    format(&sim, &params());
    let track: Shared<Track> = Rc::new(RefCell::new(Track::default()));
    let (zone, _) = open(&sim, &manual()).map_err(|e| e.to_string())?;
    let most = zone.shared().geometry.unsynced_max();
    sim.crash_at(NODE, nth, CrashKind::Process);
    let env = sim.node(NODE);
    env.spawn(scenario(env.clone(), zone, track.clone(), seed, load, 60));
    sim.run_until(|| track.borrow().ended || !sim.alive(NODE)).map_err(|e| e.to_string())?;
    if track.borrow().ended {
        return Ok(None);
    }
    let env = sim.node(NODE);
    let all = groups(&sim);
    let end = all.last().map_or(0, |(position, blocks, _)| position + blocks);
    let mut proven = 0;
    for &(position, blocks, last) in &all {
        let geometry = crate::layout::Geometry::of(&params()).unwrap();
        let at = [position, position + blocks - 1].map(|position| geometry.log_address(position));
        let whole = at.map(|at| sim.peek(NODE, PATH, at, 4096).unwrap());
        at.iter().for_each(|&at| sim.poke(NODE, PATH, at, &[0x5a; 4096]).unwrap());
        let report = sim.block_on(crate::fsck(&env, PATH)).map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        let is_proven = position + most < end;
        proven += u64::from(is_proven);
        if is_proven && report.problems.is_empty() {
            return Err(format!("record {last} was stable, its group at {position} is gone, and nobody is told"));
        }
        at.iter().zip(&whole).for_each(|(&at, bytes)| sim.poke(NODE, PATH, at, bytes).unwrap());
    }
    verify(&sim, &track.borrow(), Crash::Kill).map(|_| Some(proven))
}

/// Every seventh operation of a scenario that writes much and syncs little, up to its end.
fn sweep_destroyed(seed: u64, load: Load) -> Result<u64, String> {
    let mut proven = 0;
    for nth in (1..).step_by(7) {
        match run_destroyed(seed, nth, load).map_err(|e| format!("seed {seed}, {load:?}, operation {nth}: {e}"))? {
            Some(more) => proven += more,
            None => return Ok(proven),
        }
    }
    unreachable!("the scenario ends");
}

/// Goal: recovery that searches only twice the unsynced bound behind the end of the log misses no proof that a group
/// was stable. Method: see `run_destroyed`.
#[test]
fn a_destroyed_group_is_never_cut_off_silently() {
    let proven: u64 = [(70, Load::Heavy), (71, Load::Mixed), (72, Load::Heavy)]
        .map(|(seed, load)| sweep_destroyed(seed, load).unwrap())
        .iter()
        .sum();
    assert!(proven > 100, "{proven} groups were proven");
}

/// Goal: that sweep finds a writer that does not keep the bound, and a start that looks too near. Method: planted
/// mistakes.
#[test]
fn planted_mistakes_of_the_tail_are_found() {
    for mistake in [Mistake::SyncsLate, Mistake::TailTooShort] {
        plant(Some(mistake));
        let found = (80..90).find_map(|seed| sweep_destroyed(seed, Load::Heavy).err());
        plant(None);
        assert!(found.is_some(), "{mistake:?} was not noticed");
        println!("{mistake:?}: {found:?}");
    }
}

/// Goal: the sweep finds mistakes. Method: planted ones; each must be found within some seeds.
#[test]
fn planted_mistakes_are_found() {
    for (mistake, kinds, load) in [
        (Mistake::RootBeforeSync, POWER, Load::Mixed),
        (Mistake::FreshReplayed, POWER, Load::Data),
        (Mistake::StableUnproven, POWER, Load::Data),
        (Mistake::CutComesBack, POWER_THEN_KILL, Load::Data),
        (Mistake::CutKeepsParity, POWER_THEN_KILL, Load::Data),
        (Mistake::NoChain, POWER, Load::Mixed),
        (Mistake::TrimBeforeRoot, POWER, Load::Heavy),
        (Mistake::KeptIgnored, KILL, Load::Mixed),
        (Mistake::AreaReused, KILL, Load::Data),
    ] {
        plant(Some(mistake));
        let found = (40..60).find_map(|seed| sweep(seed, kinds, load, 40).err());
        plant(None);
        assert!(found.is_some(), "{mistake:?} was not noticed");
        println!("{mistake:?}: {found:?}");
    }
}
