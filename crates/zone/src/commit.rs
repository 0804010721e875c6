//! The commit agent, which writes groups, and the sync agent, the only one that syncs.
//!
//! All records that are queued when a group ends become the next group: a single record for which a task waits is
//! written at once, and under load groups grow without any delay. Tasks may be answered earlier, when their records are
//! kept (`keep`). A record for which no task waits, because it is kept or for other reasons, is written with the next
//! one for which a task does wait, or soon in any case. A group with a record that points at new data is written like
//! any other, and its header marks it as fresh. After a loss of power such a group is dropped unless a later mark
//! proves that it was synced; the data, which had been written before, is dropped with it. Every group contains a mark;
//! if a mark is wanted and no record is queued, an empty group is written for it. An idle zone writes and syncs
//! nothing: the last fresh group is synced after `sync_interval`, then marked, and the mark is synced an interval
//! later.
//!
//! Invariant: the part of the log that is written but not synced is never longer than `Geometry::unsynced_max`. A start
//! relies on this: it searches for groups behind the end of the log only as far as twice that distance (`recover`). A
//! sync begins when half of it is written, so the log seldom waits.
//!
//! These times were measured on ext4 on a virtual disk (examples/append_latency): a 4 KiB write without a log takes 60
//! us, a single record 70 us, and 16 records at a time 6 us each; a sync after a fresh 4 KiB block takes 125 us, and
//! after 1 MiB also 125 us.

use crate::group::Group;
use crate::layout::{DOUBT_OFFSET, Geometry, doubt};
use crate::log_point::LogPoint;
use crate::planted::{self, Mistake};
use crate::state::{Fresh, Shared, State};
use amphi_env::{Buf, Disk, Env};
use amphi_types::limits::BLOCK;
use futures_util::future::{Either, select};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// How long records for which no task waits stay queued, to be written with the next one for which a task waits. A
/// separate write would take 60 us, for which that next record would have to wait.
const UNASKED_PAUSE: Duration = Duration::from_millis(1);

/// The same holds if all queued records are kept: before this rule, records of 47,008 bytes from four writers produced
/// one group for each seven records, which was two thirds of all disk requests, while no task waited for any of the
/// records.
const KEPT_PAUSE: Duration = Duration::from_millis(5);

/// How often an idle zone checks whether its memory still exists.
const LOOK_PAUSE: Duration = Duration::from_secs(10);

/// How long a failing disk may take to note that a sync failed.
const NOTE_MAX: Duration = Duration::from_secs(5);

/// Starts the two agents, and the one that checks kept memory.
pub fn start<E: Env>(shared: &Rc<Shared<E>>) {
    let committer = shared.clone();
    shared.env.spawn(async move {
        commit_loop(&committer).await;
        committer.state.borrow_mut().life.committing = false;
        committer.agent_ended();
    });
    let syncer = shared.clone();
    shared.env.spawn(async move {
        sync_loop(&syncer).await;
        syncer.agent_ended();
    });
    let watcher = shared.clone();
    shared.env.spawn(async move {
        watch_kept(&watcher).await;
        watcher.agent_ended();
    });
}

/// Checks whether kept memory was removed, also while nothing is written: the root must not name memory that is gone.
async fn watch_kept<E: Env>(shared: &Shared<E>) {
    loop {
        let ended = pin!(shared.events.checkpoint_asked.wait_until(|| {
            let st = shared.state.borrow();
            st.life.failed.is_some() || st.life.closing
        }));
        if let Either::Left(_) = select(ended, pin!(shared.env.sleep(LOOK_PAUSE))).await {
            return;
        }
        if let Some(keep) = &*shared.kept.areas.borrow() {
            keep.look();
        }
        if shared.kept_differs(&shared.state.borrow()) {
            shared.events.checkpoint_asked.notify();
        }
    }
}

async fn commit_loop<E: Env>(shared: &Shared<E>) {
    loop {
        shared
            .events
            .queued
            .wait_until(|| {
                let st = shared.state.borrow();
                st.life.failed.is_some() || st.life.closing || !st.waiting.groups.is_empty() || st.mark_due()
            })
            .await;
        if !shared.state.borrow().write_due() {
            let asked = pin!(shared.events.queued.wait_until(|| shared.state.borrow().write_due()));
            let pause = if shared.state.borrow().is_all_kept() { KEPT_PAUSE } else { UNASKED_PAUSE };
            select(asked, pin!(shared.env.sleep(pause))).await;
        }
        let group = {
            let mut st = shared.state.borrow_mut();
            if st.life.failed.is_some() {
                st.waiting.groups.clear();
                return;
            }
            match st.waiting.groups.pop_front() {
                Some(mut group) => {
                    st.waiting.writing_area = group.area;
                    st.waiting.writing_hashes = std::mem::take(&mut group.hashes);
                    group
                }
                // All records are written; the root will say that all are stable.
                None if st.life.closing => return,
                None => {
                    let mut mark = st.waiting.spare.pop().unwrap_or_else(Group::new);
                    mark.reset();
                    mark.first_lsn = st.log.head.lsn + 1;
                    mark
                }
            }
        };
        if write_group(shared, group).await.is_none() {
            return;
        }
    }
}

/// Writes one group; `None` when the zone has failed. An empty group waits for log space only while its mark is due and
/// no record is queued.
async fn write_group<E: Env>(shared: &Shared<E>, mut group: Group) -> Option<()> {
    let blocks = group.blocks();
    let queued = group.changes_bytes();
    let has_room = |st: &State| st.log.head.position - st.log.start_position + blocks <= shared.geometry.log_blocks;
    let given_up =
        |st: &State| group.records == 0 && (st.life.closing || !st.waiting.groups.is_empty() || !st.mark_due());
    if !has_room(&shared.state.borrow()) {
        shared.state.borrow_mut().log.is_full = true;
        shared.wait_log_room(|st| has_room(st) || given_up(st)).await;
        shared.healthy().ok()?;
        let mut st = shared.state.borrow_mut();
        if !has_room(&st) {
            // This mark is given up. If it becomes due again in a moment, it waits for room as a new mark.
            Shared::<E>::recycle(&mut st, group);
            return Some(());
        }
    }
    if !shared.is_near(&shared.state.borrow(), blocks) && !planted::is(Mistake::SyncsLate) {
        shared.wait_near(blocks).await;
        shared.healthy().ok()?;
    }
    if given_up(&shared.state.borrow()) {
        Shared::<E>::recycle(&mut shared.state.borrow_mut(), group);
        return Some(());
    }
    let (head, mark) = {
        let st = shared.state.borrow();
        let near = shared.is_near(&st, blocks) || planted::is(Mistake::SyncsLate);
        assert!(near, "{blocks} blocks of the log, while {} before them are not synced", st.unsynced());
        let (start, head) = (st.log.start_position, st.log.head);
        assert!(has_room(&st), "{blocks} blocks at {} of a log that begins at {start}", head.position);
        assert_eq!(group.first_lsn, head.lsn + 1, "a group does not follow record {}", head.lsn);
        (head, st.reached.synced_seq)
    };
    let (buf, link) = group.seal(shared.ids.zone, shared.ids.opening, head.link, head.seq + 1, mark);
    let bytes = buf.len() as u64;
    assert_eq!(bytes, blocks * BLOCK, "a group takes as many blocks as were looked for");
    match write_ring(&*shared.disk, &shared.geometry, head.position, buf).await {
        Ok(buf) => group.restore(buf),
        Err(e) => {
            shared.fail("writing the log", &e);
            return None;
        }
    }
    {
        let mut st = shared.state.borrow_mut();
        let lsn = head.lsn + u64::from(group.records);
        st.log.head = LogPoint { position: head.position + blocks, seq: head.seq + 1, lsn, link };
        st.reached.written_lsn = lsn;
        st.reached.kept_lsn = st.reached.kept_lsn.max(lsn);
        st.waiting.writing_area = None;
        st.marks.written = mark;
        if group.fresh {
            st.marks.fresh.push_back(Fresh { seq: head.seq + 1, before: head.lsn });
        }
        assert!(queued <= st.waiting.bytes, "{queued} bytes were written of {} queued ones", st.waiting.bytes);
        st.waiting.bytes -= queued;
        st.counters.groups += 1;
        st.counters.marks += u64::from(group.records == 0);
        st.counters.log_bytes += bytes;
        Shared::<E>::absorb(&mut st, &mut group);
        Shared::<E>::recycle(&mut st, group);
        if let Some(keep) = &*shared.kept.areas.borrow() {
            keep.on_disk(lsn);
        }
        // Records for which no area was free now get one.
        shared.keep_queued(&mut st);
        let due = (shared.bounds.auto_checkpoint && shared.checkpoint_due(&st)) || shared.kept_differs(&st);
        drop(st);
        if due {
            shared.events.checkpoint_asked.notify();
        }
    }
    shared.events.written.notify();
    shared.events.room.notify();
    shared.events.sync_asked.notify();
    Some(())
}

/// Writes whole blocks at a log position: one write, two at the edge of the ring.
pub async fn write_ring(disk: &impl Disk, g: &Geometry, position: u64, mut buf: Buf) -> std::io::Result<Buf> {
    let all = buf.len();
    let first = ((g.log_blocks - position % g.log_blocks) * BLOCK).min(all as u64) as usize;
    let rest = (first < all).then(|| Buf::copy_of(&buf[first..]));
    buf.narrow(0..first);
    let (result, buf) = disk.write(g.log_address(position), buf).await;
    result?;
    if let Some(rest) = rest {
        disk.write(g.log_address(position + first as u64 / BLOCK), rest).await.0?;
    }
    Ok(buf)
}

async fn sync_loop<E: Env>(shared: &Shared<E>) {
    loop {
        shared
            .events
            .sync_asked
            .wait_until(|| {
                let st = shared.state.borrow();
                let ended = st.life.closing && !st.life.committing && !st.life.checkpointing;
                st.life.failed.is_some()
                    || ended
                    || st.syncs.wanted > st.syncs.started
                    || st.reached.stable_lsn < st.reached.written_lsn
                    || shared.sync_due(&st)
            })
            .await;
        let mut by_itself = false;
        let urgent = || {
            let st = shared.state.borrow();
            let wanted = st.syncs.wanted > st.syncs.started || shared.sync_due(&st);
            st.life.failed.is_some() || st.life.closing || wanted
        };
        if !urgent() {
            let asked = pin!(shared.events.sync_asked.wait_until(urgent));
            let pause = pin!(shared.env.sleep(shared.bounds.sync_interval.get()));
            if let Either::Right(((), _)) = select(asked, pause).await {
                shared.state.borrow_mut().syncs.wanted += 1;
                by_itself = true;
            }
        }
        let (head, mark, round) = {
            let mut st = shared.state.borrow_mut();
            let idle = st.syncs.wanted <= st.syncs.started && !shared.sync_due(&st);
            if st.life.failed.is_some() || (idle && st.life.closing && !st.life.committing && !st.life.checkpointing) {
                return;
            }
            st.syncs.hurried = false;
            st.syncs.started += 1;
            st.syncs.lsn = st.log.head.lsn;
            st.syncs.wanted = st.syncs.wanted.max(st.syncs.started);
            (st.log.head, st.marks.written, st.syncs.started)
        };
        if let Err(e) = shared.disk.sync().await {
            // This is done before any task is woken, since a task may end the process.
            let note = pin!(note_doubt(&*shared.disk, shared.ids.zone, shared.env.boot_id()));
            select(note, pin!(shared.env.sleep(NOTE_MAX))).await;
            if let Some(keep) = &*shared.kept.areas.borrow() {
                keep.note_doubt();
            }
            shared.fail("syncing", &e);
            return;
        }
        {
            let mut st = shared.state.borrow_mut();
            assert!(st.reached.synced_lsn <= head.lsn, "a sync up to {} ends behind a later one", head.lsn);
            st.syncs.done = round;
            st.reached.synced_lsn = head.lsn;
            st.reached.synced_seq = head.seq;
            st.reached.synced_position = head.position;
            st.settle(mark);
            st.counters.syncs += 1;
            if by_itself && st.marks.fresh.front().is_some_and(|f| f.seq <= head.seq) {
                st.marks.wanted = head.seq;
                shared.events.queued.notify();
            }
        }
        shared.events.synced.notify();
    }
}

/// After a failed sync it is not known which data is on the disk, and the next sync may succeed nevertheless. Therefore
/// this function notes that the next opening must treat the failure like a loss of power. The note may fail as well,
/// because the disk is failing.
pub async fn note_doubt(disk: &impl Disk, zone_id: u64, boot: u64) {
    if let Err(e) = disk.write(DOUBT_OFFSET, doubt(zone_id, boot)).await.0 {
        tracing::error!("noting that a sync failed failed too: {e}");
    }
}
