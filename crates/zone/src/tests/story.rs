//! The behaviour of a zone without crashes: appending, waiting, checkpoints, rounds of the ring, full regions,
//! failures.

use super::*;
use crate::{ZoneErrorKind, fsck};
use amphi_env::Env;
use amphi_env::sim::{DiskOpKind, SimConfig};
use amphi_types::Errno;
use std::cell::Cell;
use std::time::Duration;

/// Goal: items survive close and open, from the log and from segments. Method: puts, overwrites and deletes
/// around checkpoints, compared with a map.
#[test]
fn items_survive_reopening() {
    let sim = sim(1);
    format(&sim, &params());
    let mut model = BTreeMap::new();
    let mut rng = Lcg(5);
    for round in 0..6u64 {
        let (zone, found) = open(&sim, &manual()).unwrap();
        assert_eq!(found.items, model, "round {round}");
        for i in 0..50u64 {
            let mut t = Txn::default();
            let key = format!("I{:03}", rng.below(60)).into_bytes();
            if rng.below(4) == 0 {
                t.delete(key)
            } else {
                t.put(key, vec![i as u8; rng.below(3000) as usize])
            }
            apply(&mut model, &t);
            let lsn = plain(&zone, t);
            if i == 25 && round % 2 == 0 {
                sim.block_on(zone.checkpoint()).unwrap().unwrap();
                assert!(zone.stable_lsn() < lsn || zone.stats().log_used_blocks < 20);
            }
        }
        sim.block_on(zone.close()).unwrap().unwrap();
        assert_eq!(zone.stable_lsn(), zone.appended_lsn());
    }
    let env = sim.node(NODE);
    let report = sim.block_on(fsck(&env, PATH)).unwrap().unwrap();
    assert!(report.problems.is_empty() && report.notes.is_empty(), "{report:?}");
    assert_eq!(report.items, model);
    assert_eq!((report.cluster, report.target), (0xC1, TargetId(3)));
}

/// Goal: a lone record costs one write; records that arrive during a write share the next one. Method: count
/// disk writes.
#[test]
fn records_share_groups() {
    let sim = sim(2);
    format(&sim, &params());
    let (zone, _) = open(&sim, &manual()).unwrap();
    let writes = |sim: &Sim| sim.disk_ops(NODE).writes;
    let before = writes(&sim);
    let lsn = plain(&zone, txn("Ia", b"1"));
    sim.block_on(zone.written(lsn)).unwrap().unwrap();
    assert_eq!(writes(&sim) - before, 1);
    for i in 0..100 {
        plain(&zone, txn(&format!("I{i}"), b"x"));
    }
    let last = zone.appended_lsn();
    sim.block_on(zone.written(last)).unwrap().unwrap();
    assert!(writes(&sim) - before <= 3, "100 records took {} writes", writes(&sim) - before - 1);
    assert!(zone.stable_lsn() < last);
    sim.block_on(zone.stable(last)).unwrap().unwrap();
    assert_eq!(zone.stable_lsn(), last);
}

/// Goal: a record for which no task waits costs no separate write if one follows for which a task waits, and is written
/// soon if none does. Method: count disk writes over virtual time.
#[test]
fn unasked_records_ride_along() {
    let sim = sim(4);
    format(&sim, &params());
    let (zone, _) = open(&sim, &manual()).unwrap();
    let before = sim.disk_ops(NODE).writes;
    let alone = plain(&zone, txn("Ia", b"1"));
    sim.run_for(Duration::from_micros(100)).unwrap();
    assert!(zone.written_lsn() < alone);
    let asked = plain(&zone, txn("Ib", b"2"));
    sim.block_on(zone.written(asked)).unwrap().unwrap();
    assert_eq!((zone.written_lsn(), sim.disk_ops(NODE).writes - before), (asked, 1));
    let last = plain(&zone, txn("Ic", b"3"));
    sim.run_for(Duration::from_millis(20)).unwrap();
    assert_eq!((zone.written_lsn(), sim.disk_ops(NODE).writes - before), (last, 2));
}

/// Goal: written records become stable by themselves, also those that point at fresh data, and then nothing is written
/// or synced any more. Method: no requests; intervals pass; count operations.
#[test]
fn records_become_stable_in_time() {
    for (order, intervals, marks) in [(Order::Plain, 1, 0), (Order::AfterData, 2, 1)] {
        let sim = sim(3);
        format(&sim, &params());
        let (zone, _) = open(&sim, &manual()).unwrap();
        let (start, before) = (sim.now(), sim.disk_ops(NODE));
        let lsn = zone.append(txn("Ia", b"1"), order);
        sim.block_on(zone.became_stable(lsn)).unwrap().unwrap();
        let waited = sim.now().since(start);
        let interval = manual().sync_interval;
        assert!(waited >= interval * intervals && waited < interval * (intervals + 1), "{order:?}: {waited:?}");
        sim.run_for(interval * 100).unwrap();
        let after = sim.disk_ops(NODE);
        assert_eq!((after.writes - before.writes, after.syncs - before.syncs), (1 + marks, u64::from(intervals)));
        assert_eq!(zone.stats().marks, marks);
    }
}

/// Goal: records that point at fresh data cost no sync as long as they take little of the log; for all of them
/// together, `sync` takes two syncs and one mark, and for records without data one sync; callers share these. Method:
/// count operations.
#[test]
fn fresh_records_share_two_syncs() {
    let sim = sim(8);
    format(&sim, &ZoneParams { size_bytes: 64 * MIB, log_bytes: 16 * MIB, ..params() });
    let (zone, _) = open(&sim, &manual()).unwrap();
    let ops = || sim.disk_ops(NODE);
    let before = ops();
    for i in 0..50 {
        let lsn = zone.append(txn(&format!("I{i}"), b"x"), Order::AfterData);
        sim.block_on(zone.written(lsn)).unwrap().unwrap();
    }
    assert_eq!((ops().writes - before.writes, ops().syncs - before.syncs), (50, 0));
    // A record without data before any fresh groups needs no proof; here it is behind a fresh group.
    let lsn = plain(&zone, txn("Iplain", b"x"));
    sim.block_on(zone.written(lsn)).unwrap().unwrap();
    let before = ops();
    let all = futures_util::future::join_all([(); 5].map(|()| zone.sync()));
    assert!(sim.block_on(all).unwrap().iter().all(Result::is_ok));
    assert_eq!(zone.stable_lsn(), lsn);
    assert_eq!((ops().writes - before.writes, ops().syncs - before.syncs), (1, 2));
    assert_eq!(zone.stats().marks, 1);

    let before = ops();
    let lsn = plain(&zone, txn("Iplain", b"y"));
    sim.block_on(zone.written(lsn)).unwrap().unwrap();
    let fresh = zone.append(txn("Ifresh", b"x"), Order::AfterData);
    sim.block_on(zone.stable(lsn)).unwrap().unwrap();
    assert_eq!(ops().syncs - before.syncs, 1);
    assert!(zone.stable_lsn() < fresh);
    // A record that is synced and lacks only its mark takes one more sync.
    sim.block_on(zone.written(fresh)).unwrap().unwrap();
    sim.block_on(zone.shared().request_sync()).unwrap().unwrap();
    let before = ops();
    sim.block_on(zone.sync()).unwrap().unwrap();
    assert_eq!((ops().writes - before.writes, ops().syncs - before.syncs), (1, 1));
    assert_eq!(zone.stable_lsn(), fresh);
}

/// Goal: a task that needs a stable record waits for a sync under way if that sync began after the record was written;
/// a task that wants everything before its call, or a later record, gets another sync. Method: such tasks start while
/// the first sync runs; operations are counted.
#[test]
fn syncs_under_way_are_shared() {
    let sim = sim(9);
    format(&sim, &params());
    let (zone, _) = open(&sim, &manual()).unwrap();
    let syncs = || sim.disk_ops(NODE).syncs;
    let (zone, sim, syncs) = (&zone, &sim, &syncs);
    for (what, more) in [("the same record", 0), ("everything", 1), ("a later record", 1)] {
        let lsn = plain(zone, txn("Ia", b"1"));
        sim.block_on(zone.written(lsn)).unwrap().unwrap();
        let before = syncs();
        let first = zone.stable(lsn);
        let second = async {
            // The first one has been requested and has begun, and is not over.
            while syncs() == before {
                sim.node(NODE).sleep(Duration::from_micros(1)).await;
            }
            assert!(zone.stable_lsn() < lsn, "{what}");
            match what {
                "the same record" => zone.stable(lsn).await,
                "everything" => zone.sync().await,
                _ => {
                    let later = plain(zone, txn("Ib", b"2"));
                    zone.stable(later).await.inspect(|()| assert!(zone.stable_lsn() >= later))
                }
            }
        };
        let (first, second) = sim.block_on(futures_util::future::join(first, second)).unwrap();
        assert_eq!((first, second), (Ok(()), Ok(())));
        assert_eq!(syncs() - before, 1 + more, "{what}");
    }
}

/// Goal: the mark for fresh data gets space in a full log through a checkpoint, or a root replaces it if there is no
/// space for a checkpoint either. Method: the log is filled to its last block, with and without space for segments.
#[test]
fn a_full_log_has_its_marks() {
    for full_region in [false, true] {
        let sim = sim(9);
        format(&sim, &params());
        let (zone, _) = open(&sim, &manual()).unwrap();
        let put = |key: &str, size: usize, order: Order| {
            let lsn = zone.append(txn(key, &vec![1; size]), order);
            sim.block_on(zone.written(lsn)).unwrap().unwrap();
        };
        for i in (0..14).filter(|_| full_region) {
            put(&format!("Ifill{i}"), 250_000, Order::Plain);
            if i % 3 == 2 {
                sim.block_on(zone.checkpoint()).unwrap().unwrap();
            }
        }
        let checkpoints = zone.stats().checkpoints;
        for i in 0.. {
            let left = zone.stats().log_blocks - zone.stats().log_used_blocks;
            if left == 0 {
                break;
            }
            // Groups of 17, 3 and 2 blocks.
            let size = match left {
                21.. => 15 * 4096,
                _ if left % 2 == 1 => 5000,
                _ => 100,
            };
            put(&format!("I{i}"), size, if left == 2 { Order::AfterData } else { Order::Plain });
        }
        assert_eq!(zone.stats().checkpoints, checkpoints);
        let last = zone.appended_lsn();
        sim.block_on(zone.sync()).unwrap().unwrap();
        assert_eq!(zone.stable_lsn(), last);
        assert_eq!(zone.stats().checkpoints - checkpoints, u64::from(!full_region));
        sim.block_on(zone.close()).unwrap().unwrap();
        drop(zone);
        sim.crash(NODE, amphi_env::sim::CrashKind::Power);
        let env = sim.node(NODE);
        let report = sim.block_on(fsck(&env, PATH)).unwrap().unwrap();
        assert!(report.problems.is_empty() && report.notes.is_empty(), "{report:?}");
    }
}

/// Goal: the record of fresh data survives a crash of the process, not one of the machine, and `fsck` and `open` agree
/// about this and report it. Method: a group that was synced, without a mark; both kinds of crash; then more records,
/// which follow the cut.
#[test]
fn a_fresh_group_without_a_mark_is_cut_after_power_loss() {
    use amphi_env::sim::CrashKind;
    for kind in [CrashKind::Process, CrashKind::Power] {
        let sim = sim(10);
        format(&sim, &params());
        let (zone, _) = open(&sim, &manual()).unwrap();
        for (key, order) in [("Ia", Order::Plain), ("Ib", Order::AfterData), ("Ic", Order::Plain)] {
            let lsn = zone.append(txn(key, b"1"), order);
            sim.block_on(zone.written(lsn)).unwrap().unwrap();
        }
        sim.block_on(zone.shared().request_sync()).unwrap().unwrap();
        assert_eq!(zone.stable_lsn(), crate::Lsn(1));
        drop(zone);
        sim.crash(NODE, kind);
        let power = kind == CrashKind::Power;
        for life in 0..3 {
            let env = sim.node(NODE);
            let report = sim.block_on(fsck(&env, PATH)).unwrap().unwrap();
            let (zone, found) = open(&sim, &manual()).unwrap();
            assert_eq!(report.items, found.items);
            assert_eq!(found.items.len(), if power { 1 } else { 3 });
            let noted = found.notes.iter().any(|n| n.contains("power was lost"));
            assert_eq!((noted, report.notes), (power && life == 0, found.notes));
            drop(zone);
            // Nothing was written: the groups that were cut stay cut, and the kept records stay.
            sim.crash(NODE, if life == 0 { CrashKind::Process } else { CrashKind::Power });
        }
    }
}

/// Goal: opening reports whether answered changes may be lost: after a loss of power and after a failed sync, but not
/// after a killed process, an orderly close or making the zone. Method: each of them, twice in a row where that may
/// matter.
#[test]
fn losses_are_told() {
    use amphi_env::sim::CrashKind;
    let sim = sim(12);
    format(&sim, &params());
    sim.crash(NODE, CrashKind::Power);
    let life = |closes: bool, then: CrashKind| {
        let (mut zone, found) = open(&sim, &manual()).unwrap();
        if found.lost {
            // The loss was not acknowledged, so it is reported again, after a kill and after a close.
            for closes in [false, true] {
                if closes {
                    sim.block_on(zone.close()).unwrap().unwrap();
                }
                drop(zone);
                sim.crash(NODE, CrashKind::Process);
                let (next, again) = open(&sim, &manual()).unwrap();
                assert!(again.lost);
                zone = next;
            }
            // After that the loss is not reported any more, also if a checkpoint has left nothing to do, or is under
            // way.
            let told = async {
                if closes {
                    zone.checkpoint().await.unwrap();
                    zone.losses_told().await
                } else {
                    let lsn = zone.append(txn("Ib", b"1"), Order::Plain);
                    zone.written(lsn).await.unwrap();
                    futures_util::future::join(zone.checkpoint(), zone.losses_told()).await.1
                }
            };
            sim.block_on(told).unwrap().unwrap();
            drop(zone);
            sim.crash(NODE, CrashKind::Process);
            let (next, again) = open(&sim, &manual()).unwrap();
            assert!(!again.lost);
            zone = next;
        }
        let lsn = zone.append(txn("Ia", b"1"), Order::Plain);
        sim.block_on(zone.written(lsn)).unwrap().unwrap();
        if closes {
            sim.block_on(zone.close()).unwrap().unwrap();
        }
        drop(zone);
        sim.crash(NODE, then);
        found.lost
    };
    assert!(!life(false, CrashKind::Process), "it was only made");
    assert!(!life(false, CrashKind::Power), "its process was killed");
    assert!(life(false, CrashKind::Power), "power was lost");
    assert!(life(true, CrashKind::Power), "again");
    assert!(!life(true, CrashKind::Process), "it had been closed");
    assert!(!life(false, CrashKind::Process), "so it had");
    assert!(!life(true, CrashKind::Power));
    let (zone, found) = open(&sim, &manual()).unwrap();
    assert!(!found.lost);
    drop(zone);
    sim.crash(NODE, CrashKind::Process);
    let env = sim.node(NODE);
    let noted = async {
        let disk = env.disk(PATH, amphi_env::DiskMode::Open).await.unwrap();
        let image = crate::recover::read_zone(&env, PATH, &*disk).await.unwrap();
        crate::commit::note_doubt(&*disk, image.root.zone_id.get(), env.boot_id()).await;
    };
    sim.block_on(noted).unwrap();
    let (_zone, found) = open(&sim, &manual()).unwrap();
    assert!(found.lost, "a sync failed");
}

/// Goal: the ring is used for many laps, by the agent's own checkpoints, at bounded fill, and merges keep few
/// segments. Method: 20 MiB of records over 200 keys through a log of 1 MiB.
#[test]
fn many_laps() {
    let sim = sim(4);
    format(&sim, &params());
    let (zone, _) = open(&sim, &OpenOptions::default()).unwrap();
    let mut model = BTreeMap::new();
    let mut rng = Lcg(9);
    let root = async {
        for i in 0..2000u64 {
            zone.reserve(12_000).await.unwrap();
            let mut t = txn(&format!("I{}", rng.below(200)), &vec![i as u8; rng.below(6000) as usize]);
            t.put(b"Mcount", i.to_le_bytes());
            apply(&mut model, &t);
            let lsn = plain(&zone, t);
            if rng.below(3) == 0 {
                zone.written(lsn).await.unwrap();
            }
        }
        zone.close().await.unwrap();
    };
    sim.block_on(root).unwrap();
    let stats = zone.stats();
    assert!(stats.checkpoints >= 5 && stats.log_bytes > 5 * MIB, "{stats:?}");
    assert!(stats.segment_bytes < 4 * stats.log_bytes, "{stats:?}");
    drop(zone);
    let (_zone, found) = open(&sim, &manual()).unwrap();
    assert!(found.items == model);
}

/// Goal: a full metadata region refuses growth, but never deletions, and has room again after them. Method: fill with
/// distinct items, delete most, fill again; everything compared after opening.
#[test]
fn a_full_metadata_region_can_shrink() {
    let sim = sim(5);
    format(&sim, &params());
    let (zone, _) = open(&sim, &OpenOptions::default()).unwrap();
    let mut model = BTreeMap::new();
    let fill = async |model: &mut BTreeMap<Key, Vec<u8>>, tag: &str| {
        for i in 0..100_000u64 {
            if let Err(e) = zone.reserve(1100).await {
                assert_eq!(e, Errno::NoSpace);
                return i;
            }
            let t = txn(&format!("I{tag}{i}"), &[7; 1000]);
            apply(model, &t);
            plain(&zone, t);
        }
        unreachable!("the region never filled");
    };
    let root = async {
        let first = fill(&mut model, "a").await;
        assert!(first > 1000, "only {first} items of 1 KB in 4 MiB");
        for i in 0..first {
            zone.reserve(0).await.unwrap();
            let mut t = Txn::default();
            t.delete(format!("Ia{i}").into_bytes());
            apply(&mut model, &t);
            plain(&zone, t);
        }
        let second = fill(&mut model, "b").await;
        assert!(second * 10 > first * 9, "{second} after {first}");
        zone.close().await.unwrap();
    };
    sim.block_on(root).unwrap();
    drop(zone);
    let (_zone, found) = open(&sim, &manual()).unwrap();
    assert!(found.items == model);
}

/// Goal: replacing items by others of the same size works on a full region, however many there are, and leaves space
/// for merges. Method: every item is overwritten ten times; the agent's own checkpoints never lack room.
#[test]
fn a_full_metadata_region_can_change() {
    let sim = sim(7);
    format(&sim, &params());
    let (zone, _) = open(&sim, &OpenOptions::default()).unwrap();
    let mut model = BTreeMap::new();
    let root = async {
        let mut items = 0u64;
        while zone.reserve(1100).await.is_ok() {
            let t = txn(&format!("I{items}"), &[7; 1000]);
            apply(&mut model, &t);
            plain(&zone, t);
            items += 1;
        }
        for i in 0..10 * items {
            zone.reserve(0).await.unwrap();
            let t = txn(&format!("I{}", i % items), &[i as u8; 1000]);
            apply(&mut model, &t);
            plain(&zone, t);
            let stats = zone.stats();
            assert!(stats.item_bytes * 4 < stats.item_bytes_max * 5, "half of the region: change {i}: {stats:?}");
        }
        zone.close().await.unwrap();
    };
    sim.block_on(root).unwrap();
    drop(zone);
    let (_zone, found) = open(&sim, &manual()).unwrap();
    assert!(found.items == model);
}

/// Goal: a full log holds up mutations, and a checkpoint lets them continue, also without planned checkpoints. Method:
/// records beyond three laps without `reserve` and without automatic checkpoints.
#[test]
fn a_full_log_makes_its_own_room() {
    let sim = sim(6);
    format(&sim, &params());
    let (zone, _) = open(&sim, &manual()).unwrap();
    let mut last = crate::Lsn(0);
    for i in 0..60u64 {
        last = plain(&zone, txn(&format!("I{}", i % 7), &vec![i as u8; 50_000]));
    }
    sim.block_on(zone.written(last)).unwrap().unwrap();
    assert!(zone.stats().checkpoints >= 2);
    sim.block_on(zone.close()).unwrap().unwrap();
}

/// Goal: the log is never further ahead of its last sync than permitted, although no task requests syncs, and seldom
/// waits for one; recovery reads little of a long ring. Method: records over many times that bound, as large as they
/// may be and small; a kill; bytes read are counted.
#[test]
fn a_start_reads_little_of_a_long_log() {
    let sim = sim(15);
    let (size_bytes, log_bytes) = (1 << 30, 64 * MIB);
    format(&sim, &ZoneParams { size_bytes, log_bytes, ..params() });
    let (zone, _) = open(&sim, &manual()).unwrap();
    let most = zone.shared().geometry.unsynced_max();
    assert_eq!((most * 4096, zone.record_bytes_max()), (4 * MIB, 4 * MIB - 4096 - 64));
    let append = |size: usize| {
        let lsn = plain(&zone, txn("Ia", &vec![1; size]));
        sim.block_on(zone.written(lsn)).unwrap().unwrap();
        assert!(zone.state().unsynced() <= most);
    };
    (0..3).for_each(|_| append(zone.record_bytes_max() as usize - 12));
    sim.block_on(zone.checkpoint()).unwrap().unwrap();
    let syncs = sim.disk_ops(NODE).syncs;
    (0..100).for_each(|_| append(200_000));
    let syncs = sim.disk_ops(NODE).syncs - syncs;
    assert!((5..=12).contains(&syncs), "{syncs} syncs of 20 MB");
    sim.block_on(zone.shared().request_checkpoint(true)).unwrap().unwrap();
    append(100);
    drop(zone);
    sim.crash(NODE, amphi_env::sim::CrashKind::Process);
    sim.node(NODE);
    let before = sim.disk_ops(NODE).read_bytes;
    let (_zone, found) = open(&sim, &manual()).unwrap();
    let read = sim.disk_ops(NODE).read_bytes - before;
    assert!(found.items.len() == 1 && read <= 10 * MIB, "{read} bytes were read");
}

/// Goal: the first failed write or sync ends the zone; no task waits for ever and none gets a wrong answer. Method:
/// each operation of a scenario fails once.
#[test]
fn a_failed_disk_is_told() {
    for nth in 0..12 {
        let sim = sim(100 + nth);
        format(&sim, &params());
        let (zone, _) = open(&sim, &manual()).unwrap();
        let left = Cell::new(nth);
        sim.on_disk_op(NODE, move |op| {
            let counts = op.kind == DiskOpKind::Write || op.kind == DiskOpKind::Sync;
            left.set(left.get().wrapping_sub(u64::from(counts)));
            (counts && left.get() == u64::MAX).then_some(std::io::ErrorKind::Other)
        });
        let root = async {
            for i in 0..8 {
                let lsn = zone.append(txn(&format!("I{i}"), b"v"), Order::AfterData);
                let stable = zone.stable(lsn).await;
                assert_eq!(stable.is_ok(), zone.stable_lsn() >= lsn);
                if zone.failure().is_some() {
                    assert_eq!(zone.reserve(0).await, Err(Errno::Io));
                    assert_eq!(zone.sync().await, Err(Errno::Io));
                    assert_eq!(zone.checkpoint().await.unwrap_err().kind, ZoneErrorKind::Io);
                    return;
                }
            }
            zone.checkpoint().await.unwrap();
        };
        sim.block_on(root).unwrap();
        let failed = zone.failure().is_some();
        assert!(failed, "the fault of operation {nth} was not noticed");
        assert_eq!(sim.block_on(zone.close()).unwrap().is_err(), failed);
    }
}

/// Goal: after a failed sync the next opening relies only on records that an earlier sync covered, and the one after
/// that is like any other. Method: a record with data and a sync that fails, in the open zone or in the opening one;
/// killed and opened; the same without a failure.
#[test]
fn a_failed_sync_is_remembered() {
    use amphi_env::sim::CrashKind;
    for in_opening in [false, true] {
        let sim = sim(13);
        format(&sim, &params());
        let fail_syncs = || {
            sim.on_disk_op(NODE, |op| (op.kind == DiskOpKind::Sync).then_some(std::io::ErrorKind::Other));
        };
        let append = |zone: &Zone<SimEnv>, key: &str, order: Order| {
            let lsn = zone.append(txn(key, b"v"), order);
            sim.block_on(zone.written(lsn)).unwrap().unwrap();
        };
        let (zone, _) = open(&sim, &manual()).unwrap();
        append(&zone, "Ia", Order::Plain);
        append(&zone, "Ib", Order::AfterData);
        if !in_opening {
            fail_syncs();
            assert_eq!(sim.block_on(zone.sync()).unwrap(), Err(Errno::Io));
            sim.run_for(manual().sync_interval).unwrap();
        }
        drop(zone);
        sim.crash(NODE, CrashKind::Process);
        if in_opening {
            fail_syncs();
            assert_eq!(open(&sim, &manual()).err().map(|e| e.kind), Some(ZoneErrorKind::Io));
            sim.crash(NODE, CrashKind::Process);
        }
        sim.clear_disk_hook(NODE);
        let (zone, found) = open(&sim, &manual()).unwrap();
        assert_eq!(found.items.len(), 1);
        assert!(found.notes.iter().any(|n| n.contains("a sync failed")), "{:?}", found.notes);
        append(&zone, "Ic", Order::AfterData);
        drop(zone);
        sim.crash(NODE, CrashKind::Process);
        let (_, found) = open(&sim, &manual()).unwrap();
        assert_eq!((found.items.len(), found.notes.len()), (2, 0));
    }
}

/// Goal: sizes that make no zone, existing files, and zones of others are refused by kind. Method: each case once.
#[test]
fn wrong_zones_are_refused() {
    let sim = Sim::new(7, SimConfig::default());
    let env = sim.node(NODE);
    let make = |p: ZoneParams| sim.block_on(Zone::format(&env, PATH, &p)).unwrap().map_err(|e| e.kind);
    assert_eq!(make(ZoneParams { size_bytes: 5 * MIB, ..params() }), Err(ZoneErrorKind::Params));
    assert_eq!(make(ZoneParams { log_bytes: 4096, ..params() }), Err(ZoneErrorKind::Params));
    assert_eq!(make(ZoneParams { log_bytes: MIB + 1, ..params() }), Err(ZoneErrorKind::Params));
    assert_eq!(open(&sim, &manual()).err().map(|e| e.kind), Some(ZoneErrorKind::Missing));
    make(params()).unwrap();
    assert_eq!(make(params()), Err(ZoneErrorKind::Exists));
    let kind = |o: OpenOptions| open(&sim, &o).err().map(|e| e.kind);
    assert_eq!(kind(OpenOptions { cluster: Some(1), ..manual() }), Some(ZoneErrorKind::Cluster));
    assert_eq!(kind(OpenOptions { target: Some(TargetId(4)), ..manual() }), Some(ZoneErrorKind::Target));
    let mine = OpenOptions { cluster: Some(0xC1), target: Some(TargetId(3)), ..manual() };
    let (zone, _) = open(&sim, &mine).unwrap();
    assert_eq!(kind(manual()), Some(ZoneErrorKind::Busy));
    assert_eq!(zone.data_offset() % 4096, 0);
    assert!(zone.data_offset() + zone.data_blocks() * 4096 <= 8 * MIB);
}
