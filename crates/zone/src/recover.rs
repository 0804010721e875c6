//! Reading a zone: superblock, log, segments. Changes nothing.
//!
//! Rules (docs/DISK_FORMAT.md): of two valid superblock copies the one with the higher sequence is used; one may be
//! invalid. All segments must verify completely; their items are passed on one by one, merged with the changes of the
//! log, so that no item is in memory twice. The log is replayed from the root's start while groups verify and name
//! their predecessor. The log is cut at the first group that does not verify, unless the root's mark or the mark of a
//! later group proves that this group was synced. In that case the zone is refused.
//!
//! If the machine was restarted since the root was made, there may have been a loss of power (or a failed sync), and a
//! fresh group may exist without the data that it points at. So the log is also cut at the first fresh group that no
//! mark covers. Marks name groups in front of every cut that was ever made there (a cut is behind all of them), so
//! marks in groups that are no longer valid are right about the valid groups. All of them are used, so that none
//! remains that contradicts the cut.

use crate::change::Changes;
use crate::image::{Copies, Damage, Image, KeptRecords};
use crate::keep::{self, Found};
use crate::layout::{DOUBT_OFFSET, GROUP_FRESH, GroupHeader, LOG_OFFSET, Superblock, VERSION_NEAR, doubt};
use crate::log_point::{Link, LogPoint};
use crate::log_reader::{LogBlocks, header_of};
use crate::merge::Merge;
use crate::parity::MendedBlocks;
use crate::planted::{self, Mistake};
use crate::segment::{IndexUse, SegmentReader, SlotMap};
use crate::{ZoneError, ZoneErrorKind};
use amphi_env::{Buf, Disk, Env};
use amphi_types::item::Change;
use amphi_types::limits::BLOCK;
use amphi_types::setting::words;

async fn read_at(disk: &impl Disk, at: u64, len: usize, place: &str) -> Result<Buf, ZoneError> {
    let (result, buf) = disk.read(at, Buf::zeroed(len)).await;
    result.map_err(|e| ZoneError::io(place, &e))?;
    Ok(buf)
}

/// Reads the zone on `disk`, the file `path`, except its segments, and the records that a killed process has kept in
/// memory.
pub async fn read_zone<E: Env>(env: &E, path: &str, disk: &E::Disk) -> Result<Image, ZoneError> {
    let boot = env.boot_id();
    let mut notes = Vec::new();
    let (root, copies) = read_root(disk, &mut notes).await?;
    let geometry = root.geometry();
    if disk.size() < geometry.size {
        let text = format!("the zone has {}, its storage {}", words(geometry.size), words(disk.size()));
        return Err(ZoneError::corrupt("superblock", text));
    }
    let zone_id = root.zone_id.get();
    let mut image = Image {
        end: LogPoint {
            position: root.start_position.get(),
            seq: root.start_seq.get() - 1,
            lsn: root.start_lsn.get() - 1,
            link: Link { opening: root.start_opening.get(), crc: root.start_crc.get() },
        },
        root,
        damage: Damage { copies, mended: MendedBlocks::new() },
        geometry,
        segments: Vec::new(),
        slots: SlotMap::new(geometry.meta_slots),
        dirty: Changes::default(),
        replayed: 0,
        left: KeptRecords { records: Vec::new(), gone: false, of_another: false },
        doubted: false,
        cut: Vec::new(),
        notes,
    };
    let noted = read_at(disk, DOUBT_OFFSET, BLOCK as usize, "note of failed syncs").await?;
    image.doubted = noted[..] == doubt(zone_id, boot)[..];
    let opening = image.root.kept.get();
    image.doubted |= opening != 0 && image.root.boot.get() == boot && keep::is_doubted(env, path, zone_id, opening);
    read_log(disk, &mut image, boot).await?;
    read_kept(env, path, &mut image)?;
    Ok(image)
}

/// Reads the segments of a zone whose log was read. `take` gets all items, segments merged and log replayed, in the
/// order of their keys. `index`: what becomes of the indexes of the segments.
pub async fn read_items(
    disk: &impl Disk,
    image: &mut Image,
    index: IndexUse,
    mut take: impl FnMut(&[u8], &[u8]),
) -> Result<(), ZoneError> {
    let (geometry, zone_id) = (image.geometry, image.root.zone_id.get());
    let named = image.root.named().rev();
    let readers = named.map(|named| SegmentReader::new(disk, geometry, zone_id, named, index)).collect();
    let mut merge = Merge::begin(image.dirty.sorted().await, readers).await?;
    while let Some(change) = merge.present() {
        if let Some(value) = change.value() {
            take(change.key(), value);
        }
        merge.advance().await?;
    }
    for reader in merge.segments().iter_mut().rev() {
        let segment = reader.finish()?;
        for &slot in &segment.slots {
            if !image.slots.mark(slot) {
                let place = format!("segment {}, slot {slot}", segment.id);
                return Err(ZoneError::corrupt(place, "the slot is in two places"));
            }
        }
        image.damage.mended.append(reader.mended());
        image.segments.push(segment);
    }
    for (address, mended) in &image.damage.mended {
        let (place, how) = (&mended.place, if mended.torn { "torn or damaged" } else { "damaged" });
        image.notes.push(format!("{place}: the block at byte {address} was {how}; it is rebuilt from the others"));
    }
    Ok(())
}

async fn read_root(disk: &impl Disk, notes: &mut Vec<String>) -> Result<(Superblock, Copies), ZoneError> {
    let nothing = || ZoneError::new(ZoneErrorKind::NotAZone, "superblock", "the storage is too small for a zone");
    if disk.size() < 2 * BLOCK {
        return Err(nothing());
    }
    let both = read_at(disk, 0, 2 * BLOCK as usize, "superblock").await?;
    if both.iter().all(|&b| b == 0) {
        // Making a zone writes the superblocks last: a log that was written to belongs to one that was made.
        let used = disk.size() >= LOG_OFFSET + BLOCK;
        if used && read_at(disk, LOG_OFFSET, BLOCK as usize, "log").await?.iter().any(|&b| b != 0) {
            return Err(ZoneError::corrupt("superblock", "both copies are empty, but the zone was in use"));
        }
        let text = "both superblocks are empty: making the zone did not end";
        return Err(ZoneError::new(ZoneErrorKind::Unfinished, "superblock", text));
    }
    let (a, b) = both.split_at(BLOCK as usize);
    let a = Superblock::decode(a, "superblock copy 0");
    let b = Superblock::decode(b, "superblock copy 1");
    match (a, b) {
        (Ok(a), Ok(b)) => {
            if a.zone_id != b.zone_id {
                return Err(ZoneError::corrupt("superblock", "its copies belong to different zones"));
            }
            if a == b {
                return Ok((a, Copies::Equal));
            }
            notes.push("the superblock copies differ: a checkpoint was being installed".into());
            Ok((if b.sequence > a.sequence { b } else { a }, Copies::Differ))
        }
        (Ok(root), Err(e)) | (Err(e), Ok(root)) => {
            if e.kind == ZoneErrorKind::Version {
                return Err(e);
            }
            notes.push(format!("{e}; the other copy is used"));
            Ok((root, Copies::OneDamaged))
        }
        // The more telling of the two errors.
        (Err(a), Err(b)) => Err(if a.kind == ZoneErrorKind::NotAZone { b } else { a }),
    }
}

/// Replays what counts of the log.
async fn read_log(disk: &impl Disk, image: &mut Image, boot: u64) -> Result<(), ZoneError> {
    let start = LogPoint { position: image.end.position, seq: image.end.seq, lsn: image.end.lsn, link: image.end.link };
    let ring_end = start.position + image.geometry.log_blocks;
    let mut log = LogBlocks::new(disk, &image.root);
    let same_life = (image.root.boot.get() == boot && !image.doubted) || planted::is(Mistake::FreshReplayed);
    let mut cut = u64::MAX;
    if !same_life {
        let (mut proven, mut fresh, mut last) = (image.root.stable_seq.get(), Vec::new(), start.seq);
        let survey = |_: LogPoint, header: &GroupHeader, _: &[u8]| {
            proven = proven.max(header.stable_seq.get());
            last = header.seq.get();
            if header.flags.get() & GROUP_FRESH != 0 {
                fresh.push(last);
            }
            Ok(true)
        };
        let end = log.follow(start, ring_end, survey).await?;
        proven = proven.max(read_tail(&mut log, image, end, ring_end).await?);
        if let Some(first) = fresh.into_iter().find(|&seq| seq > proven) {
            cut = first;
            let count = last - first + 1;
            let cause = if image.doubted { "a sync failed" } else { "power was lost" };
            image.notes.push(format!(
                "{cause}: the log ends before group {first}, whose data may not have been synced; {count} groups \
                 were cut"
            ));
        }
    }
    let (changes, replayed, cut_at, ring) =
        (&mut image.dirty, &mut image.replayed, &mut image.cut, image.geometry.log_blocks);
    let mut last = start.position;
    let replay = |at: LogPoint, header: &GroupHeader, body: &[u8]| {
        if header.seq.get() == cut {
            cut_at.push(at.position);
            cut_at.extend(header.has_parity().then(|| at.position + header.data_blocks()));
            return Ok(false);
        }
        replay_group(changes, header, body, || format!("log group {} at block {}", header.seq, at.position % ring))?;
        *replayed += u64::from(header.records.get());
        last = at.position;
        Ok(true)
    };
    // Blocks behind the cut are not repaired.
    log.forget();
    let end = log.follow(start, ring_end, replay).await?;
    (image.end.position, image.end.seq, image.end.lsn, image.end.link) = (end.position, end.seq, end.lsn, end.link);
    if same_life {
        read_tail(&mut log, image, end, ring_end).await?;
    }
    for position in last..end.position {
        if let Some(block) = log.mended.get_mut(&image.geometry.log_address(position)) {
            block.torn = true;
        }
    }
    image.damage.mended.append(&mut log.mended);
    log.check_readable()
}

/// Replays the records that a killed process has kept, behind the end of the log. After a restart of the machine, or a
/// failed sync, it does not: records before them may be missing, and the loss is reported.
fn read_kept<E: Env>(env: &E, path: &str, image: &mut Image) -> Result<(), ZoneError> {
    let (zone_id, opening) = (image.root.zone_id.get(), image.root.kept.get());
    if opening == 0 || image.root.boot.get() != env.boot_id() || image.doubted {
        return Ok(());
    }
    let read = keep::read(env, path, zone_id, opening).map_err(|e| ZoneError::io("memory of the last changes", &e))?;
    let mut records = match read {
        Found::Records(records, on_disk) if on_disk <= image.end.lsn => records,
        found => {
            let note = match found {
                Found::Gone => "the memory that has the last changes of a killed server is gone; they may be, too",
                // The storage has lost writes, or is an old copy, which data may be missing from.
                Found::Records(..) => "a killed server had written more than there is; what its memory has is not used",
            };
            image.left.gone = true;
            image.left.of_another = matches!(found, Found::Records(..));
            image.notes.push(note.into());
            return Ok(());
        }
    };
    let mut lsn = image.end.lsn;
    while let Some(record) = records.remove(&(lsn + 1)).filter(|_| !planted::is(Mistake::KeptIgnored)) {
        lsn += 1;
        replay_record(&mut image.dirty, &record, || format!("kept record {lsn}"))?;
        image.left.records.push(record);
    }
    if !image.left.records.is_empty() {
        image.notes.push(format!("{} records of a killed server were in memory only", image.left.records.len()));
    }
    Ok(())
}

fn replay_record(changes: &mut Changes, mut record: &[u8], place: impl Fn() -> String) -> Result<(), ZoneError> {
    while !record.is_empty() {
        let change = Change::take(&mut record);
        changes.insert(change.ok_or_else(|| ZoneError::corrupt(place(), "a change leaves its record"))?);
    }
    Ok(())
}

fn replay_group(
    changes: &mut Changes,
    header: &GroupHeader,
    mut body: &[u8],
    place: impl Fn() -> String,
) -> Result<(), ZoneError> {
    for _ in 0..header.records.get() {
        let record = body.split_first_chunk::<4>().and_then(|(len, rest)| {
            let (record, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            body = rest;
            Some(record)
        });
        let record = record.ok_or_else(|| ZoneError::corrupt(place(), "a record leaves its group"))?;
        replay_record(changes, record, &place)?;
    }
    if body.is_empty() { Ok(()) } else { Err(ZoneError::corrupt(place(), "bytes are left over behind its records")) }
}

/// Makes sure that the group at `end`, which does not verify, may be missing, and says whether something was cut.
/// Returns the highest mark behind it.
///
/// No group of the last opening ends further behind the missing one than the log may be ahead of its last sync, unless
/// the missing one was synced. If it was synced, each group that ends further behind has a mark that proves it, and the
/// first of them begins before that bound. So twice the bound is searched, and only zones of older versions are
/// searched to the end of the ring.
async fn read_tail<D: Disk>(
    log: &mut LogBlocks<'_, D>,
    image: &mut Image,
    end: LogPoint,
    ring_end: u64,
) -> Result<u64, ZoneError> {
    log.check_readable()?;
    let missing = end.seq + 1;
    let block = end.position % image.geometry.log_blocks;
    let lost = |proof: &str| {
        let place = format!("log group {missing} at block {block} (byte {})", image.geometry.log_address(end.position));
        Err(ZoneError::corrupt(place, format!("it does not verify, but {proof} says that it was stable")))
    };
    if image.root.stable_seq.get() >= missing {
        return lost("the superblock");
    }
    let (mut later, mut mark) = (0u64, 0);
    let mut at = end.position;
    let tail = match image.root.version.get() {
        VERSION_NEAR.. if planted::is(Mistake::TailTooShort) => image.geometry.unsynced_max() / 8,
        VERSION_NEAR.. => image.geometry.tail_blocks(),
        _ => image.geometry.log_blocks,
    };
    while at < ring_end.min(end.position + tail) {
        let mut step = 1;
        // Headers are read first: most blocks here are remains of an earlier round of the ring.
        let first = log.head(at).await?;
        if let Some(h) = header_of(first).filter(|h| h.seq.get() >= missing) {
            let blocks = h.blocks();
            if at + blocks <= ring_end
                && let Some((h, _)) = log.group(at).await?
            {
                if h.stable_seq.get() >= missing {
                    return lost(&format!("group {}", h.seq));
                }
                mark = mark.max(h.stable_seq.get());
                later += 1;
                step = blocks;
            }
        }
        at += step;
    }
    if later > 0 {
        image.notes.push(format!("the log ends before group {missing}; {later} unsynced groups behind it were cut"));
    }
    Ok(mark)
}
