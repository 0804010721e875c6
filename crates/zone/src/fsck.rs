//! Check of a zone that no process has open for writing.

use crate::image::Image;
use crate::recover::{read_items, read_zone};
use crate::segment::IndexUse;
use crate::{ZoneError, ZoneErrorKind};
use amphi_env::{DiskMode, Env};
use amphi_types::TargetId;
use amphi_types::item::Key;
use std::collections::BTreeMap;

/// The results of the check.
#[derive(Debug, Default)]
pub struct Report {
    /// Cluster of the zone.
    pub cluster: u64,
    /// Target of the zone.
    pub target: TargetId,
    /// Blocks of the data region.
    pub data_blocks: u64,
    /// The offset at which the data region begins, in bytes.
    pub data_offset: u64,
    /// Groups and records in the log.
    pub log_groups: u64,
    /// Records in the log.
    pub log_records: u64,
    /// Segments in the metadata region.
    pub segments: u64,
    /// All items, for the checks of their owners. Empty when the zone does not verify.
    pub items: BTreeMap<Key, Vec<u8>>,
    /// States that a crash may leave and that opening the zone repairs.
    pub notes: Vec<String>,
    /// The violations that the check found.
    pub problems: Vec<ZoneError>,
}

/// Reads the whole zone at `path` and checks the zone's invariants of docs/DISK_FORMAT.md; writes nothing.
///
/// Errors: only when there is nothing that could be checked (`Missing`, `Busy`, `Io`, and `Version`: this program does
/// not know the format); everything else is in the report.
pub async fn fsck<E: Env>(env: &E, path: &str) -> Result<Report, ZoneError> {
    let disk = env.disk(path, DiskMode::ReadOnly).await.map_err(|e| ZoneError::io(path, &e))?;
    let mut items = BTreeMap::new();
    match read_all(env, path, &*disk, &mut items).await {
        Ok(image) => Ok(Report {
            cluster: image.root.cluster.get(),
            target: TargetId(image.root.target.get()),
            data_blocks: image.geometry.data_blocks,
            data_offset: image.geometry.data_offset,
            log_groups: image.end.seq + 1 - image.root.start_seq.get(),
            log_records: image.replayed,
            segments: image.segments.len() as u64,
            items,
            notes: image.notes,
            problems: Vec::new(),
        }),
        Err(e) if matches!(e.kind, ZoneErrorKind::Io | ZoneErrorKind::Version) => Err(e.at(path)),
        Err(e) => Ok(Report { problems: vec![e.at(path)], ..Report::default() }),
    }
}

async fn read_all<E: Env>(
    env: &E,
    path: &str,
    disk: &E::Disk,
    items: &mut BTreeMap<Key, Vec<u8>>,
) -> Result<Image, ZoneError> {
    let mut image = read_zone(env, path, disk).await?;
    read_items(disk, &mut image, IndexUse::Check, |key, value| drop(items.insert(key.to_vec(), value.to_vec())))
        .await?;
    Ok(image)
}
