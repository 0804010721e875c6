//! Checks of the data store's items as they lie in a zone. Changes nothing and reports everything.

use crate::checksums;
use crate::extent::{DataKey, decode_dirty, decode_extent, decode_logged, decode_object};
use crate::extents::Extent;
use crate::store::extent_name;
use amphi_types::item::tag;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, ObjectId};
use std::collections::BTreeMap;

/// The findings of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataReport {
    /// Objects, with their ends and generations.
    pub objects: BTreeMap<ObjectId, (u64, u64)>,
    /// Number of extents.
    pub extents: u64,
    /// Number of blocks in extents.
    pub blocks: u64,
    /// For each object, the bytes that a killed server had in memory or in its log. The next start writes them.
    pub delayed: BTreeMap<ObjectId, u64>,
    /// One sentence for each violated invariant.
    pub problems: Vec<String>,
}

/// Checks the data items among `items` (others are skipped) of a zone of `data_blocks` blocks. Each item must decode.
/// Each extent must belong to an object, lie in the zone, and overlap no other in the file or on the disk. No written
/// extent may begin behind the object's end.
pub fn fsck_items<'a>(items: impl IntoIterator<Item = (&'a [u8], &'a [u8])>, data_blocks: u64) -> DataReport {
    let mut report = DataReport::default();
    // Delayed and logged ranges, ordered by object and first byte, as their keys are.
    let mut delayed: Vec<(ObjectId, ByteRange)> = Vec::new();
    let mut logged: Vec<(ObjectId, ByteRange)> = Vec::new();
    let mut extents: BTreeMap<(ObjectId, u64), Extent> = BTreeMap::new();
    for (key, value) in items {
        let own = [tag::OBJECT, tag::EXTENT, tag::DELAYED, tag::LOGGED, tag::CHECKSUM, tag::GRANT];
        if !key.first().is_some_and(|tag| own.contains(tag)) {
            continue;
        }
        match DataKey::decode(key) {
            Some(DataKey::Object(id)) => match decode_object(value) {
                Some(o) => {
                    report.objects.insert(id, (o.end, o.generation));
                }
                None => report.problems.push(format!("object {} of {}: its value does not decode", id.stripe, id.ino)),
            },
            Some(DataKey::Extent(id, at)) => match decode_extent(at, value, data_blocks) {
                Ok(e) => {
                    extents.insert((id, at), e);
                }
                Err(text) => report.problems.push(format!("{}: {text}", extent_name(id, at))),
            },
            Some(DataKey::Checksums(group)) => {
                if let Err(text) = checksums::decode(group, value, data_blocks) {
                    report.problems.push(text);
                }
            }
            Some(DataKey::Memory) if value.len() == 8 => {}
            Some(DataKey::Memory) => report.problems.push("the number of the memory does not decode".into()),
            Some(DataKey::Dirty(id, at)) => match decode_dirty(at, value) {
                Some(e) => {
                    *report.delayed.entry(id).or_default() += e.end - at;
                    if delayed.last().is_some_and(|(before, last)| *before == id && at < last.end) {
                        report.problems.push(format!("{}: overlaps the one before it", delayed_name(id, at)));
                    }
                    delayed.push((id, ByteRange::new(at, e.end)));
                }
                None => report.problems.push(format!("{}: its value does not decode", delayed_name(id, at))),
            },
            Some(DataKey::Logged(id, at)) => match decode_logged(at, value) {
                Some(piece) => {
                    if logged.last().is_some_and(|(before, last)| *before == id && at < last.end) {
                        report.problems.push(format!("{}: overlap those before them", logged_name(id, at)));
                    }
                    logged.push((id, ByteRange::at(at, piece.bytes.len() as u64)));
                }
                None => report.problems.push(format!("{}: their value does not decode", logged_name(id, at))),
            },
            Some(DataKey::Grant(_)) if value.len() == 8 => {}
            Some(DataKey::Grant(session)) => {
                report.problems.push(format!("the grant of session {} does not decode", session.0));
            }
            None => report.problems.push(format!("a data key of {} bytes does not decode", key.len())),
        }
    }
    for (id, range) in logged {
        // Bytes that are both delayed and logged count once.
        let first = delayed.partition_point(|(other, extent)| (*other, extent.end) <= (id, range.start));
        let over = delayed[first..].iter().take_while(|(other, extent)| *other == id && extent.start < range.end);
        let shown = range.len() - over.map(|(_, extent)| extent.intersect(&range).len()).sum::<u64>().min(range.len());
        *report.delayed.entry(id).or_default() += shown;
    }
    for id in report.delayed.keys().filter(|id| !report.objects.contains_key(id)) {
        report.problems.push(format!("object {} of {} has delayed bytes but does not exist", id.stripe, id.ino));
    }
    let mut by_block: Vec<(u64, ObjectId, u64, u32)> = Vec::with_capacity(extents.len());
    let mut last: Option<(ObjectId, u64)> = None;
    for (&(id, at), e) in &extents {
        report.extents += 1;
        report.blocks += u64::from(e.blocks);
        match report.objects.get(&id) {
            None => report.problems.push(format!("{}: the object does not exist", extent_name(id, at))),
            Some(&(end, _)) if e.written && at * BLOCK >= end => {
                report.problems.push(format!("{}: lies behind the object's end {end}", extent_name(id, at)));
            }
            Some(_) => {}
        }
        if last.is_some_and(|(before, end)| before == id && at < end) {
            report.problems.push(format!("{}: overlaps the extent before it", extent_name(id, at)));
        }
        last = Some((id, at + u64::from(e.blocks)));
        by_block.push((e.physical, id, at, e.blocks));
    }
    by_block.sort_unstable();
    let mut taken_to = 0;
    for (physical, id, at, blocks) in by_block {
        if physical < taken_to {
            report
                .problems
                .push(format!("{}: physical block {physical} is in another extent too", extent_name(id, at)));
        }
        taken_to = taken_to.max(physical + u64::from(blocks));
    }
    report
}

fn logged_name(id: ObjectId, at: u64) -> String {
    format!("logged bytes at {at} of object {} of {}", id.stripe, id.ino)
}

fn delayed_name(id: ObjectId, at: u64) -> String {
    format!("delayed extent at byte {at} of object {} of {}", id.stripe, id.ino)
}
