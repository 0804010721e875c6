//! The checkpoint agent: moves what the log changed into segments.
//!
//! The changes of written groups are in memory, by key. A checkpoint takes that map, sorts it, writes it as a segment,
//! together with the newest segments that are not much larger (so there are few segments, their sizes grow
//! geometrically, and the cost is proportional to the changes), and installs a root that names the new segment and the
//! corresponding log position. It needs no log space and does not stop appends.
//!
//! A root also proves that all groups which were synced when it was made are stable, fresh ones too (`state`).
//!
//! Installing: sync; copy 0; sync; copy 1; sync. Only then the space of the old segments and of the log before the new
//! start is freed: at every moment each valid superblock copy names only complete structures.

use crate::backing::is_full;
use crate::change::Changes;
use crate::layout::{NamedSegment, SEGMENTS_MAX, Superblock, VERSION};
use crate::log_point::LogPoint;
use crate::merge::Merge;
use crate::planted::{self, Mistake};
use crate::segment::{IndexUse, Segment, SegmentReader, SegmentWriter, WriteError};
use crate::state::{Shared, State};
use crate::{ZoneError, ZoneErrorKind};
use amphi_env::{Buf, Disk, Env};
use amphi_types::limits::BLOCK;
use std::rc::Rc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// The number of segments above which a checkpoint merges more of them.
const SEGMENTS_WANTED: usize = 8;
/// The pause after a checkpoint that found no space, before the agent tries again without a request.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

const _: () = assert!(SEGMENTS_WANTED < SEGMENTS_MAX);

/// Starts the agent.
pub fn start<E: Env>(shared: &Rc<Shared<E>>) {
    let shared = shared.clone();
    shared.env.clone().spawn(async move {
        run(&shared).await;
        shared.state.borrow_mut().life.checkpointing = false;
        shared.agent_ended();
    });
}

async fn run<E: Env>(shared: &Shared<E>) {
    loop {
        shared
            .events
            .checkpoint_asked
            .wait_until(|| {
                let st = shared.state.borrow();
                st.life.failed.is_some()
                    || (st.life.closing && !st.life.committing)
                    || st.checkpoints.wanted > st.checkpoints.started
                    || st.log.is_full
                    || (shared.bounds.auto_checkpoint && shared.checkpoint_due(&st))
                    || shared.kept_differs(&st)
            })
            .await;
        let (round, merge) = {
            let mut st = shared.state.borrow_mut();
            if st.life.failed.is_some() {
                return;
            }
            if st.life.closing && !st.life.committing && st.checkpoints.wanted <= st.checkpoints.started {
                break;
            }
            st.log.is_full = false;
            st.checkpoints.started += 1;
            st.checkpoints.wanted = st.checkpoints.wanted.max(st.checkpoints.started);
            (st.checkpoints.started, std::mem::take(&mut st.checkpoints.merge_wanted))
        };
        let mut result = checkpoint(shared, merge).await;
        let matters = || {
            let st = shared.state.borrow();
            !st.marks.fresh.is_empty() || st.is_told()
        };
        if result.is_err() && matters() {
            // A mark may be waiting for the log space that there will not be; the root proves as much.
            result = prove(shared, false).await.and(result);
        }
        if let Err(e) = &result {
            if e.kind != ZoneErrorKind::NoSpace {
                shared.fail("checkpoint", &std::io::Error::other(e.to_string()));
                return;
            }
            tracing::warn!(zone = %shared.path, "{e}");
            shared.back_after_refusal().await;
        }
        let full = result.is_err();
        {
            let mut st = shared.state.borrow_mut();
            st.checkpoints.done = round;
            st.checkpoints.error = result.err();
        }
        shared.events.room.notify();
        if full {
            let wanted = || {
                let st = shared.state.borrow();
                st.life.failed.is_some() || st.life.closing || st.checkpoints.wanted > st.checkpoints.started
            };
            let asked = std::pin::pin!(shared.events.checkpoint_asked.wait_until(wanted));
            let pause = std::pin::pin!(shared.env.sleep(RETRY_PAUSE));
            futures_util::future::select(asked, pause).await;
            let st = shared.state.borrow();
            if st.life.closing && st.log.is_full {
                drop(st);
                // Records that are still queued were not answered, or are kept; waiting for space that will never be
                // freed does not help.
                shared.fail("closing", &std::io::Error::other("the log and the metadata region are full"));
                return;
            }
        }
    }
    // Closing: all groups are written. The root learns that the whole log is stable, and that no life of the machine
    // has it open.
    if let Err(e) = prove(shared, true).await {
        shared.fail("closing", &std::io::Error::other(e.to_string()));
    }
}

/// Makes everything written stable without a checkpoint: the existing root is updated to say that the log is synced.
async fn prove<E: Env>(shared: &Shared<E>, closed: bool) -> Result<(), ZoneError> {
    sync(shared).await?;
    let mut root = shared.state.borrow().medium.root.clone();
    if closed {
        root.boot = 0.into();
        root.kept = 0.into();
    }
    install(shared, root).await
}

async fn checkpoint<E: Env>(shared: &Shared<E>, merge: bool) -> Result<(), ZoneError> {
    let idle = |st: &State| st.log.head.position == st.log.start_position && !(merge && st.medium.segments.len() > 1);
    let (kept_differs, told_only) = {
        let st = shared.state.borrow();
        (shared.kept_differs(&st), idle(&st) && st.is_told())
    };
    if kept_differs {
        prove(shared, false).await?;
    }
    if told_only {
        return prove(shared, false).await;
    }
    let (frozen, deletions, start, id, inputs) = {
        let mut st = shared.state.borrow_mut();
        if idle(&st) {
            return Ok(());
        }
        let deletions = std::mem::take(&mut st.changes.deletions);
        let frozen = Rc::new(std::mem::take(&mut st.changes.dirty));
        st.changes.frozen = Some(frozen.clone());
        let inputs = if merge { st.medium.segments.len() } else { to_merge(&st.medium.segments, frozen.cost()) };
        (frozen, deletions, st.log.head, st.medium.root.next_segment.get(), inputs)
    };
    let result = write_segment(shared, &frozen, id, inputs).await;
    let segment = match result {
        Ok(segment) => segment,
        Err((slots, e)) => {
            let mut st = shared.state.borrow_mut();
            st.medium.slots.release(&slots);
            st.changes.frozen = None;
            st.changes.deletions += deletions;
            let mut all = whole(frozen);
            all.extend(&st.changes.dirty);
            st.changes.dirty = all;
            return Err(e);
        }
    };
    install_segment(shared, segment, start, inputs).await?;
    whole(frozen).forget().await;
    Ok(())
}

/// The changes that a checkpoint took, which nothing else holds any more.
fn whole(frozen: Rc<Changes>) -> Changes {
    Rc::try_unwrap(frozen).unwrap_or_else(|shared| {
        let mut copy = Changes::default();
        copy.extend(&shared);
        copy
    })
}

/// Returns how many of the newest segments a new one of `bytes` takes in.
fn to_merge(segments: &[Rc<Segment>], bytes: u64) -> usize {
    let mut total = bytes;
    let mut count = 0;
    for s in segments.iter().rev() {
        if s.bytes >= total * 2 && segments.len() - count < SEGMENTS_WANTED {
            break;
        }
        total += s.bytes;
        count += 1;
    }
    count
}

/// Writes `frozen` over the `inputs` newest segments as one new segment; an error contains the slots that were taken.
async fn write_segment<E: Env>(
    shared: &Shared<E>,
    frozen: &Changes,
    id: u64,
    inputs: usize,
) -> Result<Option<Segment>, (Vec<u32>, ZoneError)> {
    let (g, zone_id, disk) = (shared.geometry, shared.ids.zone, &*shared.disk);
    let (named, oldest): (Vec<NamedSegment>, bool) = {
        let st = shared.state.borrow();
        let from = st.medium.segments.len() - inputs;
        (st.medium.segments[from..].iter().map(|segment| segment.named()).collect(), from == 0)
    };
    let mut writer = SegmentWriter::new(disk, g, zone_id, id);
    let mut take_slot = || shared.state.borrow_mut().medium.slots.take();
    let readers = named.into_iter().rev().map(|n| SegmentReader::new(disk, g, zone_id, n, IndexUse::Skip)).collect();
    let order = frozen.sorted().await;
    frozen.know_order(&order);
    let mut merge = Merge::begin(order, readers).await.map_err(|e| (Vec::new(), e))?;
    let result = loop {
        let Some(next) = merge.present() else { break Ok(()) };
        // A deletion is left out if there is no older segment from which it could delete something.
        if !(next.is_deletion() && oldest)
            && let Err(e) = writer.put(next, &mut take_slot).await
        {
            break Err(write_error(shared, e));
        }
        if let Err(e) = merge.advance().await {
            break Err(e);
        }
    };
    for (address, mended) in merge.segments().iter_mut().flat_map(|r| std::mem::take(r.mended())) {
        // The segment is written anew elsewhere, with the block as it has to be.
        tracing::warn!("{}: {}: the block at byte {address} was damaged and was rebuilt", shared.path, mended.place);
        shared.state.borrow_mut().counters.rebuilt_blocks += 1;
    }
    let result = match result {
        Ok(()) => writer.finish(&mut take_slot).await.map_err(|e| write_error(shared, e)),
        Err(e) => Err(e),
    };
    result.map_err(|e| (writer.slots().to_vec(), e))
}

fn write_error<E: Env>(shared: &Shared<E>, e: WriteError) -> ZoneError {
    match e {
        WriteError::Io(e) if is_full(&e) => {
            let place = format!("{}: metadata region", shared.path);
            ZoneError::new(ZoneErrorKind::NoSpace, place, "the file system below has no room for a checkpoint")
        }
        WriteError::Io(e) => ZoneError::io(format!("{}: metadata region", shared.path), &e),
        WriteError::Full => {
            let place = format!("{}: metadata region", shared.path);
            ZoneError::new(ZoneErrorKind::NoSpace, place, "there is no room for a checkpoint")
        }
    }
}

async fn install_segment<E: Env>(
    shared: &Shared<E>,
    segment: Option<Segment>,
    start: LogPoint,
    inputs: usize,
) -> Result<(), ZoneError> {
    // The segment and the log up to its position become stable.
    if !planted::is(Mistake::RootBeforeSync) {
        sync(shared).await?;
    }
    let (root, kept, replaced) = {
        let st = shared.state.borrow();
        let mut kept = Vec::clone(&st.medium.segments);
        let replaced = kept.split_off(kept.len() - inputs);
        kept.extend(segment.clone().map(Rc::new));
        assert!(kept.len() <= SEGMENTS_MAX, "a root of {} segments, at most {SEGMENTS_MAX}", kept.len());
        let mut root = st.medium.root.clone();
        root.start_position = start.position.into();
        root.start_seq = (start.seq + 1).into();
        root.start_lsn = (start.lsn + 1).into();
        root.start_opening = start.link.opening.into();
        root.start_crc = start.link.crc.into();
        root.next_segment = (root.next_segment.get() + 1).into();
        root.name(kept.iter().map(|segment| segment.named()));
        (root, kept, replaced)
    };
    if planted::is(Mistake::TrimBeforeRoot) {
        shared.state.borrow_mut().log.start_position = start.position;
        shared.events.room.notify();
    }
    install(shared, root).await?;
    let mut st = shared.state.borrow_mut();
    assert!(
        st.log.start_position <= start.position && start.position <= st.log.head.position,
        "the log from {} to {} is cut at {}",
        st.log.start_position,
        st.log.head.position,
        start.position
    );
    for s in &replaced {
        st.medium.slots.release(&s.slots);
    }
    st.medium.segments = Rc::new(kept);
    st.log.start_position = start.position;
    st.changes.frozen = None;
    st.counters.checkpoints += 1;
    st.counters.segment_bytes += segment.map_or(0, |s| s.bytes);
    Ok(())
}

/// Writes a root to both superblock copies, one after the other. The structures that it names must be stable.
async fn install<E: Env>(shared: &Shared<E>, mut root: Superblock) -> Result<(), ZoneError> {
    root.version = VERSION.into();
    root.sequence = (root.sequence.get() + 1).into();
    let (proven_seq, lost) = {
        let mut st = shared.state.borrow_mut();
        if root.boot.get() != 0 && shared.kept_differs(&st) {
            root.kept = shared.kept_wanted().into();
        }
        if root.kept.get() == 0 {
            // From here on no record is kept to which the new root would not lead.
            st.medium.root.kept = 0.into();
        }
        (st.reached.synced_seq, st.medium.lost)
    };
    root.stable_seq = proven_seq.into();
    root.lost = lost.into();
    root.seal();
    for copy in 0..2 {
        let place = || format!("{}: superblock copy {copy}", shared.path);
        let result = shared.disk.write(copy * BLOCK, Buf::copy_of(root.as_bytes())).await.0;
        result.map_err(|e| ZoneError::io(place(), &e))?;
        sync(shared).await?;
    }
    {
        let mut st = shared.state.borrow_mut();
        st.medium.root = root;
        st.settle(proven_seq);
        if st.medium.root.boot.get() != 0 && st.medium.root.kept.get() == 0 && shared.kept_wanted() == 0 {
            shared.forget_kept();
        }
    }
    shared.events.synced.notify();
    shared.events.written.notify();
    shared.events.room.notify();
    Ok(())
}

async fn sync<E: Env>(shared: &Shared<E>) -> Result<(), ZoneError> {
    shared.request_sync().await.map_err(|_| ZoneError::new(ZoneErrorKind::Io, &shared.path, "syncing failed"))
}
