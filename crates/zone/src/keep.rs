//! Records on their way to the log, in memory that outlives the process.
//!
//! A record survives a kill of the process as soon as it is in this memory, so tasks that wait for it are woken then;
//! its disk write has begun or is about to, and takes a hundred times as long. A loss of power loses it like any record
//! that is not synced.
//!
//! Owns: the form of that memory, the place of each record, and reading it after a kill. Does not own: when a record
//! counts as safe (`state`), or how what is found gets into the log (`zone`).
//!
//! Invariants: records of a group go to one of two areas, which is used by no other group that is not on the disk yet;
//! a record in this memory is overwritten only when its group is on the disk. The memory names the opening that wrote
//! it, and so does the root, so older memory is never taken for it.

use crate::layout::block_crc;
use amphi_env::{Env, Kept};
use amphi_types::limits::BLOCK;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;

/// Bytes of an area, which holds the small records of some groups of the log. A record that does not fit is answered
/// when it is on the disk.
const AREA_BYTES: usize = 64 << 10;
/// There are two areas: one for the group that is being written, and one for the next group.
pub const AREAS: usize = 2;
const MAGIC: [u8; 4] = *b"AKEP";
/// Bytes in front of a record: checksum, length, number.
const RECORD_HEADER: usize = 16;

/// Bytes in front of the areas that are in use.
const HEADER: usize = 24;
/// Offset of the number of the last record on the disk: number (8), checksum (4).
const NOTE_AT: u64 = 64;
/// Offset of the note that a sync failed: the opening (8), checksum (4). The disk has such a note as well, if it could
/// be written.
const DOUBT_AT: u64 = 128;

/// The name of the memory of an opening: that of a copy of the zone, which may be open on the same machine, has another
/// one.
fn name_of(zone_id: u64, opening: u64) -> String {
    format!("{zone_id:016x}-{opening:016x}")
}

/// Removes the memory of an opening.
pub fn forget<E: Env>(env: &E, zone_id: u64, opening: u64) {
    let name = name_of(zone_id, opening);
    if let Err(e) = env.forget(&name) {
        tracing::warn!("kept memory {name} cannot be removed: {e}");
    }
}

fn area_offset(area: usize) -> usize {
    BLOCK as usize + area * AREA_BYTES
}

fn header(zone_id: u64, opening: u64) -> [u8; HEADER] {
    let mut head = [0; HEADER];
    head[..4].copy_from_slice(&MAGIC);
    head[8..16].copy_from_slice(&zone_id.to_le_bytes());
    head[16..].copy_from_slice(&opening.to_le_bytes());
    let crc = block_crc(zone_id, &head);
    head[4..8].copy_from_slice(&crc.to_le_bytes());
    head
}

/// Checksum of a record; `rest` is all behind the checksum.
fn record_crc(zone_id: u64, opening: u64, rest: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&zone_id.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &opening.to_le_bytes());
    crc32c::crc32c_append(crc, rest)
}

/// The memory of an open zone.
pub struct Keep<E: Env> {
    memory: E::Kept,
    zone_id: u64,
    opening: u64,
    /// A record as it is copied to the memory; the buffer is reused.
    staging: RefCell<Vec<u8>>,
    /// Writing has failed: nothing is kept any more.
    failed: Cell<bool>,
}

impl<E: Env> Keep<E> {
    /// Makes the memory of an opening of the zone at `path`.
    pub fn make(env: &E, path: &str, zone_id: u64, opening: u64) -> io::Result<Keep<E>> {
        let memory = env.keep(&name_of(zone_id, opening), path)?;
        memory.write(0, &header(zone_id, opening))?;
        Ok(Keep { memory, zone_id, opening, staging: RefCell::default(), failed: Cell::new(false) })
    }

    /// Returns whether no further record is kept: the memory has failed, or would not be found after a kill.
    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }

    fn fail(&self, why: &dyn std::fmt::Display) {
        if !self.failed.replace(true) {
            tracing::warn!("changes are answered when they are on the disk from now on: {why}");
        }
    }

    /// Checks whether the memory would be found after a kill: it may have been removed, and then it has failed.
    pub fn look(&self) {
        if !self.failed.get() && !self.memory.is_there() {
            self.fail(&format_args!("kept memory {} was removed", name_of(self.zone_id, self.opening)));
        }
    }

    /// Records up to `lsn` are on the disk. Looks as well whether the memory would be found.
    pub fn on_disk(&self, lsn: u64) {
        if self.failed.get() {
            return;
        }
        let mut note = [0; 12];
        note[..8].copy_from_slice(&lsn.to_le_bytes());
        note[8..].copy_from_slice(&record_crc(self.zone_id, self.opening, &lsn.to_le_bytes()).to_le_bytes());
        if let Err(e) = self.memory.write(NOTE_AT, &note) {
            self.fail(&format_args!("kept memory fails: {e}"));
        }
        self.look();
    }

    /// A sync failed: the next opening must treat it like lost power.
    pub fn note_doubt(&self) {
        if let Err(e) = self.memory.write(DOUBT_AT, &doubt_note(self.zone_id, self.opening)) {
            tracing::error!("noting that a sync failed failed too: {e}");
        }
    }

    /// Copies `record` (its changes, encoded) with number `lsn` into `area`, at `at` bytes from its beginning. Returns
    /// where the next one begins, or `None` if the record is not kept: there is no space, or the memory has failed.
    pub fn put(&self, area: usize, at: usize, lsn: u64, record: &[u8]) -> Option<usize> {
        assert!(area < AREAS, "area {area} of {AREAS}");
        let end = at + RECORD_HEADER + record.len();
        if end > AREA_BYTES || self.failed.get() {
            return None;
        }
        let mut staging = self.staging.borrow_mut();
        staging.clear();
        staging.extend_from_slice(&[0; 4]);
        staging.extend_from_slice(&(record.len() as u32).to_le_bytes());
        staging.extend_from_slice(&lsn.to_le_bytes());
        staging.extend_from_slice(record);
        let crc = record_crc(self.zone_id, self.opening, &staging[4..]);
        staging[..4].copy_from_slice(&crc.to_le_bytes());
        if let Err(e) = self.memory.write((area_offset(area) + at) as u64, &staging) {
            self.fail(&format_args!("kept memory fails: {e}"));
            return None;
        }
        Some(end)
    }
}

fn doubt_note(zone_id: u64, opening: u64) -> [u8; 12] {
    let mut note = [0; 12];
    note[..8].copy_from_slice(&opening.to_le_bytes());
    note[8..].copy_from_slice(&record_crc(zone_id, opening, &opening.to_le_bytes()).to_le_bytes());
    note
}

/// Returns whether the memory of `opening` of the zone at `path` says that a sync failed.
pub fn is_doubted<E: Env>(env: &E, path: &str, zone_id: u64, opening: u64) -> bool {
    let note = doubt_note(zone_id, opening);
    let bytes = env.kept(&name_of(zone_id, opening), path, BLOCK as usize);
    bytes.is_ok_and(|bytes| bytes.get(DOUBT_AT as usize..).is_some_and(|behind| behind.starts_with(&note)))
}

/// The contents of the memory of a killed process.
pub enum Found {
    /// The memory exists: its records by number, and the last one that was certainly on the disk. Records that are also
    /// in the log are among them.
    Records(BTreeMap<u64, Vec<u8>>, u64),
    /// The memory is gone: the last answered changes may be lost.
    Gone,
}

/// Reads the memory of `opening` of the zone at `path`.
///
/// Errors: the memory exists and cannot be read.
pub fn read<E: Env>(env: &E, path: &str, zone_id: u64, opening: u64) -> io::Result<Found> {
    let bytes = match env.kept(&name_of(zone_id, opening), path, area_offset(AREAS)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Found::Gone),
        other => other?,
    };
    if !bytes.starts_with(&header(zone_id, opening)) {
        return Ok(Found::Gone);
    }
    let note = bytes.get(NOTE_AT as usize..).and_then(|b| b.split_first_chunk::<8>());
    let noted = note.and_then(|(lsn, rest)| {
        let crc = u32::from_le_bytes(*rest.first_chunk::<4>()?);
        (record_crc(zone_id, opening, lsn) == crc).then_some(u64::from_le_bytes(*lsn))
    });
    let mut records = BTreeMap::new();
    for area in 0..AREAS {
        let (from, to) = (area_offset(area), area_offset(area + 1).min(bytes.len()));
        let mut rest = bytes.get(from..to).unwrap_or_default();
        let mut expected = None;
        while let Some((lsn, record, behind)) = take(rest, zone_id, opening) {
            // Behind the newest record of an area there may be remains of older records.
            if expected.is_some_and(|e| e != lsn) {
                break;
            }
            records.insert(lsn, record.to_vec());
            expected = Some(lsn + 1);
            rest = behind;
        }
    }
    Ok(Found::Records(records, noted.unwrap_or(0)))
}

/// Returns the record at the beginning of `bytes`, if its checksum is right: its number, the record itself, and the
/// bytes behind it.
fn take(bytes: &[u8], zone_id: u64, opening: u64) -> Option<(u64, &[u8], &[u8])> {
    let (crc, all) = bytes.split_first_chunk::<4>()?;
    let (len, rest) = all.split_first_chunk::<4>()?;
    let (lsn, rest) = rest.split_first_chunk::<8>()?;
    let (record, behind) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    let covered = &all[..RECORD_HEADER - 4 + record.len()];
    (record_crc(zone_id, opening, covered) == u32::from_le_bytes(*crc)).then_some(())?;
    Some((u64::from_le_bytes(*lsn), record, behind))
}
