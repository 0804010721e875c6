//! Reading all file data of a folder and comparing it with its checksums.
//!
//! Owns: the order of reading, and the report about a damaged block. Does not own: the checksums
//! (`amphi_data::Checksums`).
//!
//! At most `READ_BLOCKS` blocks are in memory. All damaged blocks are counted, and at most `FINDINGS_MAX` are named.

use super::{FINDINGS_MAX, Report, ZoneImage};
use amphi_data::{Checksum, DataStore};
use amphi_env::{Buf, Disk, DiskMode, Env};
use amphi_types::item::{ItemStore, Key, tag};
use amphi_types::limits::BLOCK;
use amphi_types::{Ino, ObjectId};
use std::collections::BTreeMap;

/// Blocks that are read at once.
const READ_BLOCKS: u64 = 256;
/// Most directories of a path.
const DEPTH_MAX: usize = 64;

/// The information for reading the data of a zone.
pub(super) struct ZoneData {
    pub store: DataStore,
    /// The byte at which the blocks of the zone begin.
    pub offset: u64,
}

impl ZoneData {
    /// Built from the items of a zone. Returns `None` if they are inconsistent, which other checks report.
    pub fn of(items: &BTreeMap<Key, Vec<u8>>, blocks: u64, offset: u64) -> Option<ZoneData> {
        let mut store = DataStore::new(blocks);
        let own = [tag::OBJECT, tag::EXTENT, tag::CHECKSUM];
        for (key, value) in items.iter().filter(|(key, _)| key.first().is_some_and(|tag| own.contains(tag))) {
            store.load(key, value).ok()?;
        }
        store.finish_load().ok()?;
        Some(ZoneData { store, offset })
    }
}

/// A block that does not have the bytes that were written to it.
struct Damaged {
    object: ObjectId,
    file_block: u64,
    zone: String,
    address: u64,
    why: String,
}

/// Reads and verifies the data of all zones that could be read.
pub(super) async fn check<E: Env>(env: &[E], images: &[ZoneImage], report: &mut Report) {
    let mut damaged = Vec::new();
    for image in images {
        let Some(data) = &image.store else { continue };
        match env[image.basis.folder].disk(&image.path, DiskMode::ReadOnly).await {
            Ok(disk) => check_zone(&*disk, image, data, &mut damaged, report).await,
            Err(e) => report.find(&image.path, format!("cannot be read: {e}")),
        }
    }
    if damaged.is_empty() {
        return;
    }
    let mut names: BTreeMap<Ino, (Ino, String)> = BTreeMap::new();
    for (dir, _, entry) in images.iter().flat_map(|image| image.meta.dentries()) {
        names.insert(entry.child, (dir, String::from_utf8_lossy(&entry.name).escape_debug().to_string()));
    }
    for d in damaged {
        let (ino, offset) = (d.object.ino, d.file_block * BLOCK);
        let place = path_of(&names, ino).map_or(format!("inode {ino}"), |path| format!("{path} (inode {ino})"));
        report
            .find(place, format!("the 4096 bytes from byte {offset} on {} (byte {} of {})", d.why, d.address, d.zone));
    }
}

async fn check_zone(
    disk: &impl Disk,
    image: &ZoneImage,
    data: &ZoneData,
    damaged: &mut Vec<Damaged>,
    report: &mut Report,
) {
    let objects: Vec<ObjectId> = image.data.objects.keys().copied().collect();
    for object in objects {
        for (file_block, extent) in data.store.extents(object).filter(|(_, e)| e.written) {
            let mut done = 0;
            while done < u64::from(extent.blocks) {
                let blocks = READ_BLOCKS.min(u64::from(extent.blocks) - done);
                let physical = extent.physical + done;
                let sums = data.store.checksums.of_run(physical, blocks);
                let address = data.offset + physical * BLOCK;
                let (result, buf) = disk.read(address, Buf::zeroed((blocks * BLOCK) as usize)).await;
                for (i, sum) in sums.into_iter().enumerate() {
                    let block = &buf[i * BLOCK as usize..(i + 1) * BLOCK as usize];
                    let place = address + i as u64 * BLOCK;
                    let why = if result.is_ok() && !sum.is_known() {
                        report.unverified_blocks += 1;
                        continue;
                    } else if result.is_ok() && Checksum::of(block) == sum {
                        report.verified_blocks += 1;
                        continue;
                    } else {
                        let (again, block) = disk.read(place, Buf::zeroed(BLOCK as usize)).await;
                        match again {
                            Err(e) => format!("cannot be read: {e}"),
                            Ok(()) if !sum.is_known() => {
                                report.unverified_blocks += 1;
                                continue;
                            }
                            Ok(()) if Checksum::of(&block) == sum => {
                                report.verified_blocks += 1;
                                report.notes.push(format!("{}: byte {place} read wrong once", image.path));
                                continue;
                            }
                            Ok(()) => "are not what was written".to_string(),
                        }
                    };
                    report.damaged_blocks += 1;
                    if damaged.len() < FINDINGS_MAX {
                        let (zone, file_block) = (image.path.clone(), file_block + done + i as u64);
                        damaged.push(Damaged { object, file_block, zone, address: place, why });
                    }
                }
                done += blocks;
            }
        }
    }
}

/// The path of an inode below the root, if all names on the way exist.
fn path_of(names: &BTreeMap<Ino, (Ino, String)>, ino: Ino) -> Option<String> {
    let (mut at, mut path) = (ino, String::new());
    for _ in 0..DEPTH_MAX {
        if at == Ino::ROOT {
            return Some(path);
        }
        let (dir, name) = names.get(&at)?;
        path.insert_str(0, &format!("/{name}"));
        at = *dir;
    }
    None
}
