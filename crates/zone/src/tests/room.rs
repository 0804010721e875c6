//! The behaviour of a zone when the local file system below is full, and the order in which a failure is reported.

use super::*;
use crate::layout::DOUBT_OFFSET;
use crate::{OnFailure, ZoneErrorKind};
use amphi_env::sim::DiskOpKind;
use amphi_types::Errno;
use std::cell::{Cell, RefCell};

/// Makes a zone with a metadata region that is larger than the part which has storage from the start on.
fn large() -> ZoneParams {
    ZoneParams { size_bytes: 256 * MIB, log_bytes: 2 * MIB, ..params() }
}

fn item(i: u64) -> Txn {
    txn(&format!("I{i:06}"), &[i as u8; 3000])
}

/// Goal: items grow as long as the local file system has space for their checkpoints; then growth is refused with
/// `NoSpace` and everything else continues: deletions, checkpoints, a restart; when there is space again, items can
/// grow. Method: a node with little space, and records until one is refused.
#[test]
fn items_grow_as_long_as_there_is_room_below() {
    let sim = sim(7);
    format(&sim, &large());
    let mut model = BTreeMap::new();
    let mut next = 0;
    for round in 0..2 {
        sim.set_room(NODE, Some(8 * MIB));
        let (zone, found) = open(&sim, &OpenOptions::default()).unwrap();
        assert_eq!(found.items, model, "round {round}");
        let grow = async |next: &mut u64, model: &mut BTreeMap<Key, Vec<u8>>, most: u64| {
            for _ in 0..most {
                zone.reserve(4000).await?;
                let t = item(*next);
                apply(model, &t);
                zone.written(zone.append(t, Order::Plain)).await?;
                *next += 1;
            }
            Ok::<(), Errno>(())
        };
        let before = next;
        let refused = sim.block_on(grow(&mut next, &mut model, 20_000)).unwrap();
        assert_eq!(refused, Err(Errno::NoSpace), "round {round}");
        assert!(round > 0 || next - before > 500, "only {} fitted", next - before);
        assert_eq!(zone.failure(), None);
        let goes_on = async {
            // Twice the log in changes that add nothing.
            for i in 0..1000 {
                zone.reserve(0).await?;
                let mut t = item(i % next);
                if i % 4 == 0 {
                    t = Txn::default();
                    t.delete(format!("I{:06}", i % next).into_bytes());
                }
                apply(&mut model, &t);
                zone.written(zone.append(t, Order::Plain)).await?;
            }
            zone.sync().await?;
            zone.checkpoint().await.map_err(Errno::from)
        };
        assert_eq!(sim.block_on(goes_on).unwrap(), Ok(()), "round {round}");
        sim.set_room(NODE, Some(64 * MIB));
        assert_eq!(sim.block_on(grow(&mut next, &mut model, 1000)).unwrap(), Ok(()), "round {round}");
        sim.block_on(zone.close()).unwrap().unwrap();
    }
    sim.set_room(NODE, None);
    assert_eq!(open(&sim, &OpenOptions::default()).unwrap().1.items, model);
}

/// Goal: a checkpoint that finds no room below, although its storage could not be reserved, is tried again and fails
/// nothing. Method: segment pages are refused for a while.
#[test]
fn a_checkpoint_without_room_below_is_tried_again() {
    let sim = sim(8);
    format(&sim, &params());
    let (zone, _) = open(&sim, &manual()).unwrap();
    sim.block_on(zone.written(zone.append(item(1), Order::Plain))).unwrap().unwrap();
    let is_full = Rc::new(Cell::new(true));
    let full = is_full.clone();
    let meta = crate::layout::Geometry::of(&params()).unwrap();
    sim.on_disk_op(NODE, move |op| {
        let segment = op.kind == DiskOpKind::Write && (meta.meta_offset..meta.data_offset).contains(&op.at);
        (segment && full.get()).then_some(std::io::ErrorKind::StorageFull)
    });
    assert_eq!(sim.block_on(zone.checkpoint()).unwrap().unwrap_err().kind, ZoneErrorKind::NoSpace);
    assert_eq!(zone.failure(), None);
    sim.block_on(zone.written(zone.append(item(2), Order::Plain))).unwrap().unwrap();
    is_full.set(false);
    sim.block_on(zone.checkpoint()).unwrap().unwrap();
    sim.block_on(zone.close()).unwrap().unwrap();
    drop(zone);
    assert_eq!(open(&sim, &manual()).unwrap().1.items.len(), 2);
}

/// Goal: when the failure callback is called, no task has received an answer yet, and after a failed sync the note for
/// the next opening is on the disk, or in memory if the disk refuses it. Method: a failing sync, with and without
/// failing writes; the process ends in the callback.
#[test]
fn a_failure_is_told_before_anybody_is_answered() {
    for writes_fail in [false, true] {
        let sim = sim(9);
        format(&sim, &params());
        let told = Rc::new(RefCell::new(Vec::new()));
        let answered = Rc::new(Cell::new(false));
        let (line, early) = (told.clone(), answered.clone());
        let on_failure = OnFailure(Some(Rc::new(move |text: &str| {
            assert!(!early.get(), "somebody was answered before");
            line.borrow_mut().push(text.to_string());
        })));
        let (zone, _) = open(&sim, &OpenOptions { on_failure, ..manual() }).unwrap();
        let lsn = zone.append(item(1), Order::AfterData);
        sim.block_on(zone.written(lsn)).unwrap().unwrap();
        sim.on_disk_op(NODE, move |op| {
            let fails = op.kind == DiskOpKind::Sync || (writes_fail && op.kind == DiskOpKind::Write);
            fails.then_some(std::io::ErrorKind::Other)
        });
        let waits = async {
            let result = zone.stable(lsn).await;
            answered.set(true);
            result
        };
        assert_eq!(sim.block_on(waits).unwrap(), Err(Errno::Io));
        assert_eq!(told.borrow().len(), 1, "{told:?}");
        assert!(told.borrow()[0].contains("syncing"), "{told:?}");
        let noted = sim.peek(NODE, PATH, DOUBT_OFFSET, 8).unwrap().iter().any(|b| *b != 0);
        assert!(noted || writes_fail);
        drop(zone);
        sim.crash(NODE, amphi_env::sim::CrashKind::Process);
        sim.clear_disk_hook(NODE);
        let (_, found) = open(&sim, &manual()).unwrap();
        assert!(found.lost, "a sync failed");
    }
}
