//! Records in memory that outlives the process.

use super::*;
use crate::fsck;
use crate::keep::{Found, Keep, read};
use amphi_env::sim::{CrashKind, DiskOp, DiskOpKind};
use amphi_env::{Env, Kept};
use std::time::Duration;

fn name_of(zone: &Zone<SimEnv>) -> String {
    format!("{:016x}-{:016x}", zone.shared().ids.zone, zone.shared().ids.opening)
}

fn memory_of(sim: &Sim, zone: &Zone<SimEnv>) -> std::io::Result<Vec<u8>> {
    sim.node(NODE).kept(&name_of(zone), PATH, 24)
}

/// Goal: a record is kept without a disk write, is written soon, survives the process but not power loss, and opening
/// brings it to the disk; nothing is left of the memory of a closed zone. Method: crashes before the first disk write
/// ends.
#[test]
fn a_kept_record_survives_the_process_alone() {
    for (kind, survives) in [(CrashKind::Process, true), (CrashKind::Power, false)] {
        let sim = sim(1);
        format(&sim, &params());
        let (zone, _) = open(&sim, &manual()).unwrap();
        let mut openings = vec![zone.shared().ids.opening];
        let before = sim.disk_ops(NODE).writes;
        let lsn = plain(&zone, txn("Ia", b"1"));
        sim.block_on(zone.kept(lsn)).unwrap().unwrap();
        assert_eq!((sim.disk_ops(NODE).writes - before, zone.written_lsn() < lsn), (0, true));
        assert_eq!((zone.kept_lsn(), zone.stats().kept), (lsn, 1));
        drop(zone);
        sim.crash(NODE, kind);
        let env = sim.node(NODE);
        let report = sim.block_on(fsck(&env, PATH)).unwrap().unwrap();
        assert!(report.problems.is_empty(), "{report:?}");
        assert_eq!(
            (report.items.len(), report.notes.len()),
            (usize::from(survives), usize::from(survives)),
            "{report:?}"
        );
        let (zone, found) = open(&sim, &manual()).unwrap();
        assert_eq!((found.items.len(), found.lost), (usize::from(survives), !survives));
        let opened = zone.written_lsn();
        openings.push(zone.shared().ids.opening);
        drop(zone);
        // If the record survived, opening has written it to the disk and synced it, so it survives power loss as well.
        sim.crash(NODE, CrashKind::Power);
        let (zone, found) = open(&sim, &manual()).unwrap();
        assert_eq!((found.items.len(), zone.written_lsn()), (usize::from(survives), opened));
        let env = sim.node(NODE);
        let there =
            |opening: u64| env.kept(&format!("{:016x}-{opening:016x}", zone.shared().ids.zone), PATH, 24).is_ok();
        let openings = openings.iter().chain([&zone.shared().ids.opening]);
        assert_eq!(openings.clone().map(|o| there(*o)).collect::<Vec<bool>>(), [false, false, true]);
        sim.block_on(zone.close()).unwrap().unwrap();
        assert!(!openings.clone().any(|o| there(*o)));
    }
}

/// Goal: a kept record is written soon even if no task waits for it, together with others that are kept meanwhile, and
/// at once if a task does wait. Method: virtual time passes; groups are counted.
#[test]
fn a_kept_record_is_written_soon() {
    let sim = sim(2);
    format(&sim, &params());
    let (zone, _) = open(&sim, &manual()).unwrap();
    let groups = || zone.shared().state.borrow().counters.groups;
    let before = groups();
    let mut last = zone.written_lsn();
    for _ in 0..4 {
        last = plain(&zone, txn("Ia", b"1"));
        sim.block_on(zone.kept(last)).unwrap().unwrap();
        sim.run_for(Duration::from_micros(250)).unwrap();
    }
    assert_ne!(zone.written_lsn(), last, "nobody waits for it");
    sim.run_for(Duration::from_millis(6)).unwrap();
    assert_eq!((zone.written_lsn(), groups()), (last, before + 1));
    let lsn = plain(&zone, txn("Ib", b"1"));
    sim.block_on(zone.written(lsn)).unwrap().unwrap();
    assert_eq!((zone.written_lsn(), groups()), (lsn, before + 2));
}

/// Goal: if memory is switched off, before or after the opening, or was removed, the root no longer names it, so that
/// its loss does not count; records that were kept before are written first. If it is switched on again, records are
/// kept again. Method: kills that also lose the memory.
#[test]
fn memory_that_is_not_used_cannot_be_lost() {
    for (case, options) in [
        ("never", OpenOptions { keeps: false, ..manual() }),
        ("off", manual()),
        ("removed", manual()),
        ("off and on", manual()),
    ] {
        let sim = sim(7);
        format(&sim, &params());
        let (zone, _) = open(&sim, &options).unwrap();
        let kept = plain(&zone, txn("Ia", b"1"));
        assert_eq!(zone.kept_lsn() == kept, case != "never");
        let interval = Duration::from_secs(1);
        match case {
            "removed" => sim.forget_kept(NODE),
            "never" => {}
            _ => zone.tune(interval, 1 << 20, false),
        }
        sim.run_for(Duration::from_millis(50)).unwrap();
        if case == "off and on" {
            zone.tune(interval, 1 << 20, true);
            sim.run_for(Duration::from_millis(50)).unwrap();
        }
        assert_eq!(memory_of(&sim, &zone).is_ok(), case == "off and on", "{case}");
        let last = plain(&zone, txn("Ib", b"2"));
        assert_eq!(zone.kept_lsn() == last, case == "off and on", "{case}");
        sim.block_on(zone.kept(last)).unwrap().unwrap();
        drop(zone);
        sim.crash(NODE, CrashKind::Process);
        if case != "off and on" {
            sim.forget_kept(NODE);
        }
        let (_zone, found) = open(&sim, &manual()).unwrap();
        assert_eq!((found.items.len(), found.lost), (2, false), "{case}: {:?}", found.notes);
    }
}

/// Goal: memory with records of more writes than the storage has does not complete an old copy of it, whose data may be
/// missing. Method: the storage as it was one group before the kill, which is also the last that was kept.
#[test]
fn memory_does_not_complete_an_old_copy() {
    let sim = sim(6);
    format(&sim, &params());
    let (zone, _) = open(&sim, &manual()).unwrap();
    let mut old = Vec::new();
    for i in 0..4 {
        if i == 3 {
            old = sim.peek(NODE, PATH, 0, 8 << 20).unwrap();
        }
        let lsn = plain(&zone, txn(&format!("I{i}"), b"1"));
        sim.block_on(zone.written(lsn)).unwrap().unwrap();
    }
    let name = name_of(&zone);
    drop(zone);
    sim.crash(NODE, CrashKind::Process);
    sim.node(NODE);
    sim.poke(NODE, PATH, 0, &old).unwrap();
    let (_zone, found) = open(&sim, &manual()).unwrap();
    assert_eq!((found.items.len(), found.lost), (3, true), "{:?}", found.notes);
    // The zone of that memory may be open elsewhere.
    assert!(sim.node(NODE).kept(&name, PATH, 24).is_ok());
}

/// Goal: memory that is removed while nothing happens is missed, so that its loss is none. Method: a kill some seconds
/// later.
#[test]
fn memory_that_is_removed_while_idle_is_missed() {
    for seconds in [0, 15] {
        let sim = sim(8);
        format(&sim, &params());
        let (zone, _) = open(&sim, &manual()).unwrap();
        let lsn = plain(&zone, txn("Ia", b"1"));
        sim.block_on(zone.written(lsn)).unwrap().unwrap();
        sim.forget_kept(NODE);
        sim.run_for(Duration::from_secs(seconds)).unwrap();
        drop(zone);
        sim.crash(NODE, CrashKind::Process);
        let (_zone, found) = open(&sim, &manual()).unwrap();
        assert_eq!((found.items.len(), found.lost), (1, seconds == 0), "{:?}", found.notes);
    }
}

/// Goal: an opening that cannot write the kept records, or its root, leaves everything to the next one, and nothing is
/// lost. Method: each of the first writes of the opening fails once.
#[test]
fn an_opening_that_fails_leaves_what_is_kept() {
    for failing in 1..4 {
        let sim = sim(9);
        format(&sim, &params());
        let (zone, _) = open(&sim, &manual()).unwrap();
        let lsn = plain(&zone, txn("Ia", b"1"));
        assert_eq!((zone.kept_lsn(), zone.written_lsn() < lsn), (lsn, true));
        drop(zone);
        sim.crash(NODE, CrashKind::Process);
        sim.node(NODE);
        let mut writes = 0;
        sim.on_disk_op(NODE, move |op: &DiskOp| {
            writes += u32::from(op.kind == DiskOpKind::Write);
            (op.kind == DiskOpKind::Write && writes == failing).then_some(std::io::ErrorKind::StorageFull)
        });
        assert!(open(&sim, &manual()).is_err(), "write {failing}");
        sim.clear_disk_hook(NODE);
        sim.crash(NODE, CrashKind::Process);
        let (zone, found) = open(&sim, &manual()).unwrap();
        assert_eq!((found.items.len(), found.lost), (1, false), "write {failing}: {:?}", found.notes);
        // An opening that could not write its root cannot know which of the two memories the root names.
        let left = sim.kept_names(NODE).len() - 1;
        assert_eq!((left, memory_of(&sim, &zone).is_ok()), (usize::from(failing > 1), true), "write {failing}");
    }
}

/// Goal: records that do not fit, that are appended while memory is switched off, and that a node without such memory
/// appends count as kept when they are written. Method: records of 100 KB, the switch, another node.
#[test]
fn what_is_not_in_memory_waits_for_the_disk() {
    for (keeps_here, switched_on, bytes) in [(true, true, 100_000), (true, false, 10), (false, true, 10)] {
        let sim = Sim::new(3, SimConfig { keeps: keeps_here, ..SimConfig::default() });
        format(&sim, &params());
        let (zone, _) = open(&sim, &manual()).unwrap();
        zone.tune(Duration::from_secs(1), 1 << 20, switched_on);
        let lsn = plain(&zone, txn("Ia", &vec![7; bytes]));
        let behind = plain(&zone, txn("Ib", b"2"));
        assert!(zone.kept_lsn() < lsn);
        sim.block_on(zone.kept(behind)).unwrap().unwrap();
        assert!(zone.written_lsn() >= behind && zone.stats().kept == 0);
        if keeps_here && switched_on {
            // The large record is on the disk, so small ones are kept again.
            let small = plain(&zone, txn("Ic", b"3"));
            assert_eq!(zone.kept_lsn(), small);
        }
    }
}

/// Goal: records for which the log has no space are not kept, since after a kill they have to be written to the log.
/// Method: small records fill the log group by group; the process is killed right after each append near the end of the
/// log, before a checkpoint frees space; the zone is opened twice.
#[test]
fn nothing_is_kept_beyond_the_log() {
    let blocks = MIB / 4096;
    let mut refused = 0;
    for last in blocks - 12..blocks + 12 {
        let sim = sim(4);
        format(&sim, &params());
        let (zone, _) = open(&sim, &manual()).unwrap();
        for i in 0..last {
            sim.run_until(|| zone.written_lsn() == zone.appended_lsn()).unwrap();
            plain(&zone, txn(&format!("I{i:03}"), &[1; 3900]));
        }
        let kept = zone.kept_lsn();
        refused += u64::from(kept < zone.appended_lsn());
        drop(zone);
        sim.crash(NODE, CrashKind::Process);
        for _ in 0..2 {
            let (zone, found) = open(&sim, &manual()).unwrap();
            assert!(found.items.len() as u64 >= kept.0, "{} of {kept:?}", found.items.len());
            drop(zone);
            sim.crash(NODE, CrashKind::Process);
        }
    }
    assert!(refused > 0, "all were kept");
}

/// Goal: partly copied records after a kill, remains of older records, and memory of other openings are not taken for
/// records. Method: the test itself writes, truncates or changes the memory.
#[test]
fn only_whole_records_of_the_opening_count() {
    let sim = sim(5);
    let env = sim.node(NODE);
    let (zone_id, opening) = (77, 123);
    let keep = Keep::make(&env, PATH, zone_id, opening).unwrap();
    let records = |opening| match read(&env, PATH, zone_id, opening) {
        Ok(Found::Records(r, 9)) => Some(r.into_iter().collect::<Vec<(u64, Vec<u8>)>>()),
        Ok(Found::Records(r, 0)) if r.is_empty() => Some(Vec::new()),
        _ => None,
    };
    assert_eq!(records(opening), Some(Vec::new()));
    // Longer records are the first ones; their remains lie behind the later records.
    let mut at = 0;
    for lsn in 1..5 {
        at = keep.put(0, at, lsn, &[9; 40]).unwrap();
    }
    keep.on_disk(9);
    let mut at = 0;
    for lsn in 10..13 {
        at = keep.put(0, at, lsn, &[lsn as u8; 40]).unwrap();
    }
    keep.put(1, 0, 13, b"other area").unwrap();
    let whole: Vec<(u64, Vec<u8>)> =
        (10..13).map(|lsn| (lsn, vec![lsn as u8; 40])).chain([(13, b"other area".to_vec())]).collect();
    assert_eq!(records(opening), Some(whole.clone()));
    assert_eq!((records(opening + 2), records(opening + 1)), (None, None));
    let name = format!("{zone_id:016x}-{opening:016x}");
    let bytes = env.kept(&name, PATH, 1 << 20).unwrap();
    let third = 4096 + 2 * 56;
    for (from, to) in [(0, 4), (4, 8), (8, 16), (16, 56)] {
        let memory = env.keep(&name, PATH).unwrap();
        let mut torn = bytes.clone();
        torn[third + from..third + to].iter_mut().for_each(|b| *b ^= 0x55);
        memory.write(0, &torn).unwrap();
        let left: Vec<_> = whole.iter().filter(|(lsn, _)| *lsn != 12).cloned().collect();
        assert_eq!(records(opening), Some(left), "bytes {from} to {to}");
    }
    let memory = env.keep(&name, PATH).unwrap();
    memory.write(0, &bytes[..4096 + 56 + 20]).unwrap();
    assert_eq!(records(opening), Some(whole[..1].to_vec()));
    env.keep(&name, PATH).unwrap().write(0, &bytes[..20]).unwrap();
    assert_eq!(records(opening), None);
}
