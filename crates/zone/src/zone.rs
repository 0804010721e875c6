//! The zone as its owner sees it: format, open, append, wait, checkpoint, close.

use crate::group::Group;
use crate::image::{Copies, Image};
use crate::keep::{self, Keep};
use crate::layout::{DOUBT_OFFSET, Geometry, LOG_OFFSET, SLOT_BYTES, Superblock, VERSION, VERSION_PARITY};
use crate::options::{OpenOptions, ZoneParams};
use crate::parity::MendedBlocks;
use crate::planted::{self, Mistake};
use crate::recover::{read_items, read_zone};
use crate::segment::IndexUse;
use crate::state::Shared;
use crate::stats::ZoneStats;
use crate::{ZoneError, ZoneErrorKind, checkpoint, commit};
use amphi_env::{Buf, Disk, DiskMode, Env};
use amphi_types::item::{Key, Txn};
use amphi_types::limits::BLOCK;
use amphi_types::{Errno, TargetId};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Number of a log record, from 1, without gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// The data on which a record relies. The record never waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing.
    Plain,
    /// Every disk write that returned before the `append`: the record points at fresh data blocks. After a loss of
    /// power, the record and all records behind it exist only if it is proven that this data was synced.
    AfterData,
}

/// The result of opening a zone.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Every item of the target, in key order; none if `Found::items` passed them elsewhere.
    pub items: BTreeMap<Key, Vec<u8>>,
    /// Records replayed from the log.
    pub replayed: u64,
    /// Damaged blocks of metadata that were rebuilt, with superblocks.
    pub rebuilt: u64,
    /// The machine lost power while the zone was open, or a sync failed: changes that were written and not stable may
    /// be lost. This is reported again until `losses_told` is called.
    pub lost: bool,
    /// Sentences for the log file: a torn tail that was cut, a superblock copy that was restored.
    pub notes: Vec<String>,
}

/// A zone that was found and is not open yet. Its lock is held.
pub struct Found<E: Env> {
    env: E,
    path: String,
    options: OpenOptions,
    disk: Rc<E::Disk>,
    image: Image,
}

impl<E: Env> Found<E> {
    /// Target of the zone.
    pub fn target(&self) -> TargetId {
        TargetId(self.image.root.target.get())
    }

    /// Blocks of the data region.
    pub fn data_blocks(&self) -> u64 {
        self.image.geometry.data_blocks
    }

    /// Reads every item of the target: `take` gets key and value, in the order of keys, and stores the parts that it
    /// needs. It may be called only once. The stored items are valid only if the zone can then be opened.
    ///
    /// Errors: `Corrupt`, `Io`; nothing was changed.
    pub async fn items(&mut self, take: impl FnMut(&[u8], &[u8])) -> Result<(), ZoneError> {
        read_items(&*self.disk, &mut self.image, IndexUse::Load, take).await.map_err(|e| e.at(&self.path))
    }

    /// Makes everything that was found stable and starts the agents of the zone. Its items must have been read before.
    /// After an error the zone is unchanged, except if the error is `Io`.
    pub async fn open(self) -> Result<(Zone<E>, Recovered), ZoneError> {
        let Found { env, path, options, disk, mut image } = self;
        assert_eq!(image.segments.len(), image.root.segments().len(), "the items were not read");
        let boot = env.boot_id();
        let other_life = ![0, boot].contains(&image.root.boot.get());
        let lost = image.doubted || image.left.gone || other_life || image.root.lost != 0;
        let (zone_id, last) = (image.root.zone_id.get(), image.root.kept.get());
        let opening = env.rand().max(1);
        if !image.left.records.is_empty() {
            // Whatever the result is, the memory exists for the next attempt.
            restore(&*disk, &mut image, opening).await.map_err(|e| ZoneError::io(&path, &e))?;
        }
        let keep = if options.keeps { make_keep(&env, &path, zone_id, opening) } else { None };
        let kept = if keep.is_some() { opening } else { 0 };
        let mut at = Step::Writing;
        if let Err(e) = make_stable(&*disk, &mut image, boot, lost, kept, &mut at).await {
            if at == Step::Syncing {
                commit::note_doubt(&*disk, zone_id, boot).await;
            }
            // The kept memory is forgotten, unless a root that names it may have been written.
            if keep.is_some() && at != Step::WritingRoot {
                keep::forget(&env, zone_id, kept);
            }
            return Err(ZoneError::io(&path, &e));
        }
        // The memory of a zone of which this one is a copy, and which may be open, stays.
        if last != 0 && !image.left.of_another {
            keep::forget(&env, zone_id, last);
        }
        let rebuilt = image.rebuilt_blocks();
        let (shared, replayed, notes) = Shared::new(&env, &path, disk, &options, image, opening, keep);
        let shared = Rc::new(shared);
        shared.state.borrow_mut().counters.rebuilt_blocks = rebuilt;
        shared.back_region().await;
        commit::start(&shared);
        checkpoint::start(&shared);
        Ok((Zone { shared }, Recovered { items: BTreeMap::new(), replayed, rebuilt, lost, notes }))
    }
}

/// An open zone; a cheap handle for use by one thread. Its agents keep the disk locked until `close`.
pub struct Zone<E: Env> {
    shared: Rc<Shared<E>>,
}

impl<E: Env> Clone for Zone<E> {
    fn clone(&self) -> Zone<E> {
        Zone { shared: self.shared.clone() }
    }
}

#[cfg(test)]
impl<E: Env> Zone<E> {
    /// The shared state of the agents, for tests that access internals.
    pub(crate) fn shared(&self) -> &Shared<E> {
        &self.shared
    }

    /// The state, for tests that look inside.
    pub(crate) fn state(&self) -> std::cell::Ref<'_, crate::state::State> {
        self.shared.state.borrow()
    }
}

/// Bytes of zeros written at once when a log is made.
const FORMAT_BYTES: usize = 1 << 20;

impl<E: Env> Zone<E> {
    /// Makes a zone at `path`, which must not exist or be the rest of an interrupted `format` of the same size.
    /// Stable when it returns.
    ///
    /// Errors: `Exists`, `Busy`, `Params`, `Io`.
    pub async fn format(env: &E, path: &str, params: &ZoneParams) -> Result<(), ZoneError> {
        let geometry = Geometry::of(params).map_err(|e| e.at(path))?;
        let io = |e: std::io::Error| ZoneError::io(path, &e);
        let disk = match env.disk(path, DiskMode::Create(geometry.size)).await {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                let disk = env.disk(path, DiskMode::Open).await.map_err(io)?;
                let exists = |text| ZoneError::new(ZoneErrorKind::Exists, path, text);
                if disk.size() != geometry.size {
                    return Err(exists("there is a file of another size"));
                }
                for (at, blocks) in [(0, 2), (LOG_OFFSET, 1)] {
                    let (result, first) = disk.read(at, Buf::zeroed((blocks * BLOCK) as usize)).await;
                    result.map_err(io)?;
                    if first.iter().any(|&b| b != 0) {
                        return Err(exists("there is a zone or something else already"));
                    }
                }
                disk
            }
            other => other.map_err(io)?,
        };
        // The log is written now, so that later groups overwrite blocks that the storage has allocated.
        let (mut at, end) = (LOG_OFFSET, LOG_OFFSET + geometry.log_blocks * BLOCK);
        let mut zeros = Buf::zeroed(FORMAT_BYTES);
        while at < end {
            zeros.set_window(0..FORMAT_BYTES.min((end - at) as usize));
            let (result, buf) = disk.write(at, zeros).await;
            result.map_err(io)?;
            zeros = buf;
            at += zeros.len() as u64;
        }
        // The place for the note that a sync failed is filled with zeros, too.
        disk.write(DOUBT_OFFSET, Buf::zeroed(BLOCK as usize)).await.0.map_err(io)?;
        disk.sync().await.map_err(io)?;
        let mut root = Superblock::first(&geometry, env.rand(), params);
        root.seal();
        let mut both = Buf::zeroed(2 * BLOCK as usize);
        both[..BLOCK as usize].copy_from_slice(root.as_bytes());
        both[BLOCK as usize..].copy_from_slice(root.as_bytes());
        disk.write(0, both).await.0.map_err(io)?;
        disk.sync().await.map_err(io)
    }

    /// Finds the zone at `path` and reads its log. Its items have to be read next, then it can be opened. This function
    /// changes nothing.
    pub async fn find(env: &E, path: &str, options: &OpenOptions) -> Result<Found<E>, ZoneError> {
        let disk = env.disk(path, DiskMode::Open).await.map_err(|e| ZoneError::io(path, &e))?;
        let image = read_zone(env, path, &*disk).await.map_err(|e| e.at(path))?;
        check_owner(&image, path, options)?;
        Ok(Found { env: env.clone(), path: path.to_string(), options: options.clone(), disk, image })
    }

    /// Opens the zone at `path`, with all of its items in a map. After an error the zone is unchanged, except if the
    /// error is `Io`.
    pub async fn open(env: &E, path: &str, options: &OpenOptions) -> Result<(Zone<E>, Recovered), ZoneError> {
        let mut found = Zone::find(env, path, options).await?;
        let mut items = BTreeMap::new();
        found.items(|key, value| drop(items.insert(key.to_vec(), value.to_vec()))).await?;
        let (zone, recovered) = found.open().await?;
        Ok((zone, Recovered { items, ..recovered }))
    }

    /// All mounts that got answers which may be lost have been informed: opening does not report it again. This fact is
    /// on the disk when the function returns.
    ///
    /// Errors: `Io` when the zone has failed.
    pub async fn losses_told(&self) -> Result<(), ZoneError> {
        self.shared.state.borrow_mut().medium.lost = false;
        self.checkpoint().await
    }

    /// Answered changes that were not stable may be lost: opening reports it until `losses_told`. This fact is on the
    /// disk when the function returns.
    ///
    /// Errors: `Io` when the zone has failed.
    pub async fn note_lost(&self) -> Result<(), ZoneError> {
        self.shared.state.borrow_mut().medium.lost = true;
        self.checkpoint().await
    }

    /// The name of memory that outlives the process and is this zone's, for its owner: that of a copy of the zone which
    /// is open on the same machine has another number.
    pub fn memory_name(&self, number: u64) -> String {
        format!("{:016x}-{number:016x}-data", self.shared.ids.zone)
    }

    /// The file in which the zone lies.
    pub fn path(&self) -> &str {
        &self.shared.path
    }

    /// Changes what `OpenOptions` set for syncs, checkpoints and kept records, from the next of each on.
    pub fn tune(&self, sync_interval: Duration, dirty_bytes: u64, keeps: bool) {
        let shared = &self.shared;
        shared.kept.used.set(keeps);
        if keeps && shared.kept.areas.borrow().is_none() {
            *shared.kept.areas.borrow_mut() = make_keep(&shared.env, &shared.path, shared.ids.zone, shared.ids.opening);
        }
        self.shared.bounds.sync_interval.set(sync_interval);
        self.shared.bounds.dirty_max.set(dirty_bytes.min(self.shared.geometry.meta_slots * SLOT_BYTES / 8));
        self.shared.events.checkpoint_asked.notify();
    }

    /// The disk, for the owner's data I/O inside the data region.
    pub fn disk(&self) -> Rc<E::Disk> {
        self.shared.disk.clone()
    }

    /// Byte address on the disk of data block 0.
    pub fn data_offset(&self) -> u64 {
        self.shared.geometry.data_offset
    }

    /// Blocks of the data region.
    pub fn data_blocks(&self) -> u64 {
        self.shared.geometry.data_blocks
    }

    /// Cluster of the zone.
    pub fn cluster(&self) -> u64 {
        self.shared.ids.cluster
    }

    /// Target of the zone.
    pub fn target(&self) -> TargetId {
        self.shared.ids.target
    }

    /// Waits until an operation whose items grow by about `growth_bytes` may be planned: there is log and
    /// metadata space. Called before an operation's state changes; operations that add nothing that stays, such as
    /// deletions, pass 0, which waits for log space, and on a full region for a merge, but is never refused; flushes
    /// and cancels skip the call.
    ///
    /// Errors: `NoSpace` when the metadata region is full, `Io` when the zone has failed. Dropping the future
    /// changes nothing.
    pub async fn reserve(&self, growth_bytes: u64) -> Result<(), Errno> {
        self.shared.reserve(growth_bytes).await
    }

    /// Queues `txn` as the next log record. Records become durable in order: when a record is durable, all earlier ones
    /// are durable too. Panics on an empty txn, one larger than `record_bytes_max`, or after `close`. In a failed zone
    /// the record is dropped and `kept` returns an error.
    pub fn append(&self, txn: Txn, order: Order) -> Lsn {
        Lsn(self.shared.append(txn, order == Order::AfterData))
    }

    /// Largest encoded record: 4 bytes, and 6 + key + value bytes for each change.
    pub fn record_bytes_max(&self) -> u64 {
        self.shared.bounds.record_bytes_max as u64
    }

    /// Waits until record `lsn` survives a kill of the process, and begins to write it: it is in memory that outlives
    /// the process, or on the disk.
    ///
    /// Errors: `Io` when the zone has failed. Dropping the future changes nothing.
    pub async fn kept(&self, lsn: Lsn) -> Result<(), Errno> {
        self.shared.wait_kept(lsn.0).await
    }

    /// Waits until record `lsn` is on the disk.
    ///
    /// Errors: `Io` when the zone has failed. Dropping the future changes nothing.
    pub async fn written(&self, lsn: Lsn) -> Result<(), Errno> {
        self.shared.wait_written(lsn.0).await
    }

    /// Waits until record `lsn` is stable: it survives a loss of power. As soon as the record is written, this function
    /// does the necessary work: one sync, or two syncs with a mark in between if data written since the last ones
    /// belongs to the record or to an earlier record.
    ///
    /// Errors: `Io` when the zone has failed. Dropping the future changes nothing.
    pub async fn stable(&self, lsn: Lsn) -> Result<(), Errno> {
        self.shared.wait_written(lsn.0).await?;
        self.shared.make_stable(lsn.0, false).await
    }

    /// Waits until record `lsn` is stable without requesting anything: it becomes stable without a request, within
    /// `sync_interval`, or within three times that interval if fresh data is concerned.
    ///
    /// Errors: `Io` when the zone has failed. Dropping the future changes nothing.
    pub async fn became_stable(&self, lsn: Lsn) -> Result<(), Errno> {
        self.shared.wait_stable(lsn.0).await
    }

    /// Makes every disk write that returned before the call, and every record appended before it, stable. Calls
    /// at the same time share syncs.
    ///
    /// Errors: `Io`. Dropping the future changes nothing.
    pub async fn sync(&self) -> Result<(), Errno> {
        let appended = self.appended_lsn();
        self.shared.wait_written(appended.0).await?;
        self.shared.make_stable(appended.0, true).await
    }

    /// The last appended record.
    pub fn appended_lsn(&self) -> Lsn {
        Lsn(self.shared.state.borrow().waiting.appended_lsn)
    }

    /// The last record that survives a kill of the process.
    pub fn kept_lsn(&self) -> Lsn {
        Lsn(self.shared.state.borrow().reached.kept_lsn)
    }

    /// The last written record.
    pub fn written_lsn(&self) -> Lsn {
        Lsn(self.shared.state.borrow().reached.written_lsn)
    }

    /// The last stable record.
    pub fn stable_lsn(&self) -> Lsn {
        Lsn(self.shared.state.borrow().reached.stable_lsn)
    }

    /// Puts the changes of all written records into a segment and gives their log space back. Other calls continue
    /// meanwhile. Calls during a checkpoint share the next checkpoint.
    ///
    /// Errors: `NoSpace` (nothing changed), `Io` (the zone has failed). Dropping the future changes nothing.
    pub async fn checkpoint(&self) -> Result<(), ZoneError> {
        self.shared.request_checkpoint(false).await
    }

    /// The value of an item, with every record that was appended before the call; `None` if there is none. It is the
    /// present value when the function returns. An item that is not among the changes of the log costs one disk read;
    /// one more if it spans pages, and one more for each segment that is taken for one that has it, one in 120.
    ///
    /// Errors: `Io` when the zone has failed or the item cannot be read, `Corrupt`. Dropping the future changes
    /// nothing.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ZoneError> {
        self.shared.get(key).await
    }

    /// The first `max` items with keys from `from` on and below `end`, ascending, with every record that was appended
    /// before the call. It takes a disk read for each page of each segment that has a part of the range; among the
    /// changes of the log it searches for those of the range. The first scan after a checkpoint sorts all of these
    /// changes.
    ///
    /// Errors: `Io` when the zone has failed or an item cannot be read, `Corrupt`. Dropping the future changes nothing.
    pub async fn scan(&self, from: &[u8], end: &[u8], max: usize) -> Result<Vec<(Key, Vec<u8>)>, ZoneError> {
        self.shared.scan(from, end, max).await
    }

    /// The items with these keys, which are ascending and near one another, ascending, with every record that was
    /// appended before the call; there are none for keys without an item. It costs what `scan` costs for the range from
    /// the first to the last key. Records that are queued are waited for only if they may change one of the keys.
    ///
    /// Errors: those of `scan`. Dropping the future changes nothing.
    pub async fn scan_keys(&self, keys: &[Key]) -> Result<Vec<(Key, Vec<u8>)>, ZoneError> {
        self.shared.scan_keys(keys).await
    }

    /// Counters.
    pub fn stats(&self) -> ZoneStats {
        self.shared.stats()
    }

    /// Returns the reason why the zone refuses everything, if it does.
    pub fn failure(&self) -> Option<String> {
        self.shared.state.borrow().life.failed.clone()
    }

    /// Writes and syncs what is queued, notes in the superblock how far the log is stable, and ends the agents.
    /// The disk is unlocked when the last handle and the last clone of `disk()` are dropped.
    ///
    /// Errors: `Io` when the zone has failed before or now.
    pub async fn close(&self) -> Result<(), ZoneError> {
        let shared = &self.shared;
        shared.state.borrow_mut().life.closing = true;
        shared.notify_all();
        shared.events.done.wait_until(|| shared.state.borrow().life.agents == 0).await;
        shared.healthy().map_err(|_| {
            let text = self.failure().unwrap_or_default();
            ZoneError::new(ZoneErrorKind::Io, &shared.path, text)
        })?;
        if shared.kept.areas.borrow().is_some() {
            keep::forget(&shared.env, shared.ids.zone, shared.ids.opening);
        }
        Ok(())
    }
}

fn make_keep<E: Env>(env: &E, path: &str, zone_id: u64, opening: u64) -> Option<Keep<E>> {
    let made = Keep::make(env, path, zone_id, opening);
    made.inspect_err(|e| match e.kind() {
        ErrorKind::Unsupported => tracing::info!(zone = %path, "changes are answered when they are on the disk: {e}"),
        _ => tracing::warn!(zone = %path, "changes are answered when they are on the disk: {e}"),
    })
    .ok()
}

fn check_owner(image: &Image, path: &str, options: &OpenOptions) -> Result<(), ZoneError> {
    let cluster = image.root.cluster.get();
    let target = TargetId(image.root.target.get());
    if let Some(want) = options.cluster.filter(|&want| want != cluster) {
        let text = format!("the zone belongs to cluster {cluster:016x}, not {want:016x}");
        return Err(ZoneError::new(ZoneErrorKind::Cluster, path, text));
    }
    if let Some(want) = options.target.filter(|&want| want != target) {
        let text = format!("the zone belongs to {target}, not {want}");
        return Err(ZoneError::new(ZoneErrorKind::Target, path, text));
    }
    Ok(())
}

/// Writes the records that a killed process has kept as one more group of the log.
async fn restore(disk: &impl Disk, image: &mut Image, opening: u64) -> std::io::Result<()> {
    let mut group = Group::new();
    group.first_lsn = image.end.lsn + 1;
    // Some of the records may point at data, which is synced with this group: until the root says that it is synced, a
    // loss of power must remove the group.
    group.fresh = true;
    group.parity &= image.root.version.get() >= VERSION_PARITY;
    let kept = std::mem::take(&mut image.left.records);
    kept.iter().for_each(|record| group.push(record));
    let (blocks, mark) = (group.blocks(), image.root.stable_seq.get());
    let (buf, link) = group.seal(image.root.zone_id.get(), opening, image.end.link, image.end.seq + 1, mark);
    commit::write_ring(disk, &image.geometry, image.end.position, buf).await?;
    image.end.position += blocks;
    image.end.seq += 1;
    image.end.lsn = group.last_lsn();
    image.end.link = link;
    image.replayed += kept.len() as u64;
    Ok(())
}

/// The step at which `make_stable` failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Writing,
    /// A sync is under way, so that it is not known which data is on the disk.
    Syncing,
    WritingRoot,
}

/// Makes replayed groups stable, prevents cut groups from returning, and writes both superblock copies with the present
/// boot id and the opening that keeps records in memory (0: none). Until then nothing that an older copy names may be
/// overwritten.
async fn make_stable(
    disk: &impl Disk,
    image: &mut Image,
    boot: u64,
    lost: bool,
    kept: u64,
    at: &mut Step,
) -> std::io::Result<()> {
    // The chosen copy may be written but not stable yet: sync first, so that one is whole at any moment.
    rewrite(disk, &image.damage.mended).await;
    sync(disk, at).await?;
    if image.damage.copies != Copies::Equal {
        // Both copies get the same bytes. Otherwise the chosen copy could be lost later, and the other one proves less.
        write_copies(disk, &image.root, at).await?;
    }
    if !image.cut.is_empty() && !planted::is(Mistake::CutComesBack) {
        // In this life of the machine the group would be replayed after a crash.
        *at = Step::Writing;
        let kept = usize::from(planted::is(Mistake::CutKeepsParity));
        for &position in &image.cut[..image.cut.len() - kept] {
            disk.write(image.geometry.log_address(position), Buf::zeroed(BLOCK as usize)).await.0?;
        }
        sync(disk, at).await?;
    }
    let proven = image.root.boot.get() == boot && image.root.stable_seq.get() == image.end.seq && !image.doubted;
    if !proven || image.root.kept.get() != kept || image.root.version.get() != VERSION {
        let root = &mut image.root;
        root.version = VERSION.into();
        root.kept = kept.into();
        root.sequence = (root.sequence.get() + 1).into();
        root.boot = boot.into();
        root.lost = lost.into();
        root.stable_seq = image.end.seq.into();
        root.seal();
        write_copies(disk, root, at).await?;
    }
    if image.doubted {
        *at = Step::WritingRoot;
        disk.write(DOUBT_OFFSET, Buf::zeroed(BLOCK as usize)).await.0?;
    }
    Ok(())
}

/// Writes the damaged blocks again with their right contents. If the disk refuses that, they are rebuilt again at the
/// next start.
async fn rewrite(disk: &impl Disk, mended: &MendedBlocks) {
    for (&address, mended) in mended {
        if let Err(e) = disk.write(address, Buf::copy_of(&mended.block)).await.0 {
            tracing::warn!("{}: the rebuilt block at byte {address} cannot be written: {e}", mended.place);
        }
    }
}

async fn write_copies(disk: &impl Disk, root: &Superblock, at: &mut Step) -> std::io::Result<()> {
    for copy in 0..2 {
        *at = Step::WritingRoot;
        disk.write(copy * BLOCK, Buf::copy_of(root.as_bytes())).await.0?;
        sync(disk, at).await?;
    }
    Ok(())
}

async fn sync(disk: &impl Disk, at: &mut Step) -> std::io::Result<()> {
    *at = Step::Syncing;
    disk.sync().await
}
