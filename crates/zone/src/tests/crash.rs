//! Crash sweep: a scenario of appends, data writes and checkpoints is stopped at every write and sync.
//!
//! After a crash of the process every record whose `written` returned must be there, after power loss every one
//! whose `stable` returned. What is there is a prefix of what was appended, each record whole, and a record that
//! points at data comes with the data. Then a second life goes on and is stopped too, so that what the first
//! crash left behind the cut meets new groups.

use super::*;
use crate::planted::{Mistake, plant};
use amphi_env::sim::CrashKind;
use amphi_env::{Buf, Disk, Env};
use std::cell::RefCell;

/// What a scenario did, kept outside of the simulated process.
#[derive(Default)]
struct Track {
    txns: Vec<Txn>,
    written: u64,
    stable: u64,
    ended: bool,
}

const COUNT: &[u8] = b"Mcount";
const DATA: &[u8] = b"Cdata";

/// What a scenario is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Load {
    /// Small records, data, waits, checkpoints.
    Mixed,
    /// Records of 100 KB that fill the log until it makes its own room.
    Heavy,
}

/// Runs until the end or the crash. Record `n` counts itself; every fourth points at a fresh data block.
async fn scenario(zone: Zone<SimEnv>, track: Shared<Track>, seed: u64, load: Load, steps: u64) {
    let mut rng = Lcg(seed);
    for _ in 0..steps {
        let n = track.borrow().txns.len() as u64 + 1;
        let mut t = Txn::default();
        t.put(COUNT.to_vec(), n.to_le_bytes().to_vec());
        for _ in 0..rng.below(4) {
            let key = format!("I{}", rng.below(30)).into_bytes();
            let size = match load {
                Load::Heavy => 30_000 + rng.below(30_000),
                Load::Mixed if rng.below(6) == 0 => 40_000,
                Load::Mixed => rng.below(3000),
            };
            if rng.below(4) == 0 { t.delete(key) } else { t.put(key, vec![n as u8; size as usize]) }
        }
        let mut order = Order::Plain;
        if n.is_multiple_of(4) {
            let block = n % zone.data_blocks();
            let mut buf = Buf::zeroed(4096);
            buf.fill(n as u8);
            let (result, _) = zone.disk().write(zone.data_offset() + block * 4096, buf).await;
            result.unwrap();
            t.put(DATA.to_vec(), n.to_le_bytes().to_vec());
            order = Order::AfterData;
        }
        track.borrow_mut().txns.push(t.clone());
        let lsn = zone.append(t, order);
        assert_eq!(lsn.0, n);
        let choice = if load == Load::Heavy { rng.below(20) * 4 } else { rng.below(8) };
        match choice {
            0..4 => {
                zone.written(lsn).await.unwrap();
                track.borrow_mut().written = n;
            }
            4 => {
                zone.stable(lsn).await.unwrap();
                track.borrow_mut().stable = n;
            }
            5 => {
                zone.checkpoint().await.unwrap();
                // A checkpoint makes what it covers stable; nothing else was promised.
                let stable = zone.stable_lsn().0;
                track.borrow_mut().stable = stable;
            }
            _ => {}
        }
    }
    zone.close().await.unwrap();
    track.borrow_mut().ended = true;
}

/// Opens after a crash and compares; the zone and the number of records that are there.
fn verify(sim: &Sim, track: &Track, kind: CrashKind) -> Result<(Zone<SimEnv>, u64), String> {
    let (zone, found) = open(sim, &manual()).map_err(|e| format!("does not open: {e}"))?;
    let n = found.items.get(COUNT).map_or(0, |v| u64::from_le_bytes(v.as_slice().try_into().unwrap()));
    let promised = if kind == CrashKind::Process { track.written.max(track.stable) } else { track.stable };
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
    if zone.appended_lsn().0 != n {
        return Err(format!("record {n} has number {}", zone.appended_lsn().0));
    }
    if let Some(v) = found.items.get(DATA) {
        let stamp = u64::from_le_bytes(v.as_slice().try_into().unwrap());
        let at = zone.data_offset() + stamp % zone.data_blocks() * 4096;
        let block = sim.peek(NODE, PATH, at, 4096).unwrap();
        if block.iter().any(|&b| b != stamp as u8) {
            return Err(format!("record {stamp} is there but not its data"));
        }
    }
    Ok((zone, n))
}

/// One run with a crash at operation `nth` of the first life and, if that comes, a random one of the second.
/// `Ok(false)`: the first life ended before `nth` operations.
fn run(seed: u64, nth: u64, kind: CrashKind, load: Load, steps: u64) -> Result<bool, String> {
    let sim = sim(seed * 10_007 + nth);
    format(&sim, &params());
    let track: Shared<Track> = Rc::new(RefCell::new(Track::default()));
    let mut crashed_first = false;
    for life in 0..3u64 {
        let (zone, n) = verify(&sim, &track.borrow(), kind).map_err(|e| format!("life {life}: {e}"))?;
        {
            let mut t = track.borrow_mut();
            // What opening found is stable, and what it did not find never was.
            t.txns.truncate(n as usize);
            (t.written, t.stable, t.ended) = (n, n, false);
        }
        let at = if life == 0 { nth } else { 1 + (seed + nth * 7) % 60 };
        sim.crash_at(NODE, at, kind);
        let env = sim.node(NODE);
        env.spawn(scenario(zone, track.clone(), seed + life, load, if life == 0 { steps } else { steps / 3 }));
        sim.run_until(|| track.borrow().ended || !sim.alive(NODE)).map_err(|e| e.to_string())?;
        if life == 0 {
            crashed_first = !track.borrow().ended;
        }
        if sim.alive(NODE) {
            sim.clear_crash_at(NODE);
            // The process ends by itself; all is stable then.
            sim.crash(NODE, kind);
        }
        sim.node(NODE);
    }
    verify(&sim, &track.borrow(), kind).map_err(|e| format!("at the end: {e}"))?;
    Ok(crashed_first)
}

/// Every operation of the scenario of `seed`; stops at the first error.
fn sweep(seed: u64, kind: CrashKind, load: Load, steps: u64) -> Result<u64, String> {
    for nth in 1.. {
        if !run(seed, nth, kind, load, steps)
            .map_err(|e| format!("seed {seed}, {load:?}, {kind:?} at operation {nth}: {e}"))?
        {
            return Ok(nth - 1);
        }
    }
    unreachable!("the scenario ends");
}

/// Goal: no crash of the process loses or tears a record whose `written` returned. Method: see the head.
#[test]
fn a_killed_process_loses_nothing_written() {
    let mut points = sweep(1, CrashKind::Process, Load::Mixed, 60).unwrap();
    points += sweep(2, CrashKind::Process, Load::Heavy, 40).unwrap();
    assert!(points > 100, "{points} points");
}

/// Goal: no loss of power loses or tears a record whose `stable` returned. Method: see the head.
#[test]
fn a_power_loss_loses_nothing_stable() {
    let mut points = (20..23).map(|seed| sweep(seed, CrashKind::Power, Load::Mixed, 60).unwrap()).sum::<u64>();
    points += sweep(23, CrashKind::Power, Load::Heavy, 40).unwrap();
    assert!(points > 300, "{points} points");
}

/// Goal: the sweep finds mistakes. Method: planted ones; each must be found within some seeds.
#[test]
fn planted_mistakes_are_found() {
    for (mistake, load) in [
        (Mistake::RootBeforeSync, Load::Mixed),
        (Mistake::RecordBeforeData, Load::Mixed),
        (Mistake::NoChain, Load::Mixed),
        (Mistake::TrimBeforeRoot, Load::Heavy),
    ] {
        plant(Some(mistake));
        let found = (40..60).find_map(|seed| sweep(seed, CrashKind::Power, load, 40).err());
        plant(None);
        assert!(found.is_some(), "{mistake:?} was not noticed");
        println!("{mistake:?}: {found:?}");
    }
}
