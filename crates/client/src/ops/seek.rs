//! lseek for data and holes: dirty bytes are written first, and then the objects' targets report where they have data.
//!
//! An object is sparse outside its stripes, so the data of a file is the union of the data of its objects. An answer
//! contains thousands of runs, which are kept. So a program that looks for data and holes in turn causes one request
//! for all of them. (Before, each call took 0.3 to 2 ms; now it takes as long as a call of the mount.)
//!
//! Owns: when a map is requested and used, and its bound: `RUNS_MAX` runs of 16 bytes each. Does not own: the maps
//! (`inode::seek_maps`). Data and holes are whole blocks, as the disk has them: the end of a block that is written in
//! part is data.

use crate::api::{Ctx, Whence};
use crate::coherence::attributes;
use crate::conn::replies::unexpected;
use crate::inode::range_lock::Hold;
use crate::inode::seek_maps::{Found, Map};
use crate::inode::{Inode, OpenFile};
use crate::locks;
use crate::locks::group_lock;
use crate::mount::Mount;
use crate::telemetry::stats::Count;
use crate::writeback::flush;
use amphi_dlm::Mode;
use amphi_pagecache::push_joined;
use amphi_types::{ByteRange, Cred, Errno, ObjectId, Result};
use amphi_wire::{Reply, Request};
use futures_util::future::join_all;
use std::sync::Arc;

/// Runs of data that are requested at a time, of all objects of a file together.
const RUNS_MAX: u32 = 16_384;
/// At least this many runs are requested of one object, even if the file has many objects.
const RUNS_OF_OBJECT_MIN: u32 = 16;

/// Works as `lseek`, from kept maps and without waiting, or `None` if they are not sufficient.
pub(crate) fn try_lseek(mount: &Mount, open: &OpenFile, offset: u64, whence: Whence) -> Option<Result<u64>> {
    let file = &open.file;
    let map = mount.prefetch.seek_maps.of(file, offset)?;
    let alone = mount.coherence.sharing.is_alone();
    let counts = map.rule == mount.coherence.sharing.rule()
        && file.group.id() == 0
        && (alone || mount.coherence.sharing.leases.in_touch_for(mount.clock.boot_ns(), file, ByteRange::ALL));
    if !counts || offset >= map.size {
        return None;
    }
    let found = match map.find(offset, whence) {
        Found::At(at) => Ok(at),
        Found::Nothing => Err(Errno::NxIo),
        Found::Unknown(_) => return None,
    };
    // The file has not changed since the map was requested.
    if file.size.map.stamp() != map.stamp {
        return None;
    }
    mount.stats.count(Count::Seek);
    file.locks.note_use(mount.host.coarse_ns.load(std::sync::atomic::Ordering::Relaxed));
    Some(found)
}

pub(crate) async fn lseek(
    mount: Arc<Mount>,
    _ctx: Ctx,
    open: Arc<OpenFile>,
    offset: u64,
    whence: Whence,
) -> Result<u64> {
    mount.stats.count(Count::Seek);
    let file = &open.file;
    let ahead = ByteRange::new(offset, u64::MAX);
    // In shared mode no other mount changes the bytes ahead until the answer.
    let locks = move |mount: Arc<Mount>, file: Arc<Inode>| async move {
        locks::pin_objects(&mount, &file, Mode::Read, ahead).await
    };
    let (_guard, _begun, _pins) =
        group_lock::enter_pinned(&mount, file, open.member(), (ahead, Hold::Shared), locks).await?;
    let rule = mount.coherence.sharing.rule();
    let stamp = file.size.map.watch();
    let size = attributes::size_now(&mount, file).await?;
    if offset >= size {
        return Err(Errno::NxIo);
    }
    flush::flush(&mount, file, ByteRange::new(offset, size)).await;
    let mut at = offset;
    loop {
        let map = Arc::new(ask(&mount, file, at, size, (rule, stamp)).await?);
        let found = map.find(at, whence);
        // Members of a group on other mounts change the file as well, under the same lock.
        if file.group.id() == 0 && file.size.map.stamp() == stamp {
            mount.prefetch.seek_maps.keep(map);
        }
        match found {
            Found::At(at) => return Ok(at),
            Found::Nothing => return Err(Errno::NxIo),
            Found::Unknown(next) => at = next,
        }
    }
}

/// Requests from the objects of a file of `size` bytes where they have data, from `from` on.
async fn ask(mount: &Arc<Mount>, file: &Inode, from: u64, size: u64, (rule, stamp): (u64, u64)) -> Result<Map> {
    let layout = file.layout();
    let stripes = layout.stripes_below(size);
    let runs_max = (RUNS_MAX / stripes).max(RUNS_OF_OBJECT_MIN);
    let asked = (0..stripes).map(|stripe| {
        let object = ObjectId { ino: file.ino, stripe };
        let op = Request::DataMap { object, offset: from, runs_max };
        let answer = mount.call(layout.target(file.ino, stripe), &Cred::root(), op);
        async move {
            match answer.await? {
                Reply::DataMap { runs, known_to } => Ok((runs, known_to)),
                other => Err(unexpected(&other)),
            }
        }
    });
    let (mut runs, mut end) = (Vec::new(), u64::MAX);
    for answer in join_all(asked.collect::<Vec<_>>()).await {
        let (of_object, known_to) = answer?;
        // If a server knows no more of an object than was requested, it says so only once.
        end = end.min(known_to.filter(|to| *to > from).unwrap_or(u64::MAX));
        runs.extend(of_object);
    }
    let known = ByteRange::new(from, end);
    runs.sort_unstable_by_key(|run: &ByteRange| run.start);
    let mut data: Vec<ByteRange> = Vec::with_capacity(runs.len());
    for run in runs.into_iter().map(|run| run.intersect(&known)).filter(|run| !run.is_empty()) {
        let behind = data.last().map_or(0, |last| last.end);
        push_joined(&mut data, ByteRange::new(run.start.max(behind), run.end.max(behind)));
    }
    Ok(Map { ino: file.ino, known, data, size, rule, stamp })
}
