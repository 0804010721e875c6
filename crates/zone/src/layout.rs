//! Byte layout of a zone: regions, superblock, headers of log groups and segment pages (docs/DISK_FORMAT.md).
//!
//! Owns: sizes, offsets, encoding and verification of single structures. Does not own: their order in time.
//! Everything is little-endian. Checksums are crc32c over the zone's id, then the structure's whole blocks with
//! the checksum field as zero, so a structure of another zone never verifies.

use crate::options::ZoneParams;
use crate::{ZoneError, ZoneErrorKind};
use amphi_env::Buf;
use amphi_types::limits::BLOCK;
use amphi_types::setting::words;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the format.
pub const VERSION: u32 = 6;
/// Oldest version that can be opened, which makes it one of the present version: it has no field `kept`, which is zero
/// there. Segments of versions before 6 have no index; it is made when they are read, and written when they are merged.
pub const VERSION_OLDEST: u32 = 2;
/// First version whose groups and pages have a parity block. Groups and pages of older versions are read without
/// parity.
pub const VERSION_PARITY: u32 = 4;
/// First version whose log never has more unsynced blocks than `Geometry::unsynced_max`.
pub const VERSION_NEAR: u32 = 5;
/// First bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"AMPHIZON";
/// First bytes of a log group.
pub const GROUP_MAGIC: u32 = u32::from_le_bytes(*b"AGRP");
/// Flag of a log group: a record points at data that may not have been synced when the group was written.
pub const GROUP_FRESH: u32 = 1;
/// Flag of a log group: a block of parity follows its blocks.
pub const GROUP_PARITY: u32 = 2;
/// Most blocks of a group of an older version, without its parity: a record of 16 MiB.
pub const GROUP_BLOCKS_OLD: u64 = (16 << 20) / BLOCK + 1;
/// Most blocks of the log that may be written and not synced, if the log is large enough: 4 MiB, which is a sync of
/// 125 us for each 2 ms of writing.
const UNSYNCED_BLOCKS_MAX: u64 = (4 << 20) / BLOCK;
/// First bytes of a segment page.
pub const PAGE_MAGIC: u32 = u32::from_le_bytes(*b"APAG");
/// Flag of a segment page: a block of parity follows its blocks.
pub const PAGE_PARITY: u32 = 1;
/// Most segments that a root names.
pub const SEGMENTS_MAX: usize = 16;
/// Bytes of a slot of the metadata region: one page of a segment.
pub const SLOT_BYTES: u64 = 64 << 10;
/// "No slot" in a page's chain.
pub const NO_SLOT: u32 = u32::MAX;
/// The offset at which the log begins.
pub const LOG_OFFSET: u64 = 64 << 10;
/// Smallest and default size of the log, bytes.
pub const LOG_MIN: u64 = 1 << 20;
const LOG_DEFAULT: u64 = 64 << 20;
const META_MIN: u64 = 4 << 20;
const MIB: u64 = 1 << 20;

/// The places of the regions of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub size: u64,
    pub log_blocks: u64,
    pub meta_offset: u64,
    pub meta_slots: u64,
    pub data_offset: u64,
    pub data_blocks: u64,
}

impl Geometry {
    /// The regions of a zone of given sizes.
    pub fn of(params: &ZoneParams) -> Result<Geometry, ZoneError> {
        let size = params.size_bytes / MIB * MIB;
        let bad = |text: String| Err(ZoneError::new(ZoneErrorKind::Params, "zone size", text));
        let log = match params.log_bytes {
            0 => LOG_DEFAULT.min(size / 8).max(LOG_MIN) / BLOCK * BLOCK,
            n => n,
        };
        if log < LOG_MIN || !log.is_multiple_of(BLOCK) || log > 16 << 30 {
            return bad(format!("a log of {}: it must be a multiple of 4096 bytes from 1 MiB to 16 GiB", words(log)));
        }
        let meta_offset = (LOG_OFFSET + log).next_multiple_of(MIB);
        let meta = (size / 8).max(META_MIN) / MIB * MIB;
        let data_offset = meta_offset + meta;
        if data_offset + MIB > size {
            let (all, own) = (words(size), words(data_offset));
            return bad(format!("{all} are too few: log and metadata alone take {own}"));
        }
        Ok(Geometry {
            size,
            log_blocks: log / BLOCK,
            meta_offset,
            meta_slots: meta / SLOT_BYTES,
            data_offset,
            data_blocks: (size - data_offset) / BLOCK,
        })
    }

    /// Most blocks from the end of the synced part of the log to the end of the written part, and so of a group with
    /// its parity.
    pub fn unsynced_max(&self) -> u64 {
        UNSYNCED_BLOCKS_MAX.min(self.log_blocks / 4)
    }

    /// The number of blocks behind the end of the log in which groups of two kinds begin: all groups that were written
    /// behind the end, and the groups that prove that a missing group was stable (docs/DISK_FORMAT.md, "Recovery").
    pub fn tail_blocks(&self) -> u64 {
        2 * self.unsynced_max()
    }

    /// Bytes of the largest record: alone in a group, with its header, its length and its parity.
    pub fn record_bytes_max(&self) -> usize {
        ((self.unsynced_max() - 1) * BLOCK) as usize - GROUP_HEADER
    }

    /// Byte address of slot `slot`.
    pub fn slot_offset(&self, slot: u32) -> u64 {
        self.meta_offset + u64::from(slot) * SLOT_BYTES
    }

    /// Byte address of log position `position`, which counts blocks without ever wrapping.
    pub fn log_address(&self, position: u64) -> u64 {
        LOG_OFFSET + position % self.log_blocks * BLOCK
    }
}

/// The reference of the root to a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SegmentRef {
    pub id: U64,
    pub bytes: U64,
    pub items: U64,
    pub first_slot: U32,
    pub slots: U32,
}

/// The index of a segment as the root names it, in the same place as the segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IndexRef {
    /// Slot of the page in which the index begins, behind the last change.
    pub slot: U32,
    /// Bytes of the index; 0: the segment has no index.
    pub bytes: U32,
}

/// The reference to a segment, with the place of its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedSegment {
    pub run: SegmentRef,
    pub index: IndexRef,
}

/// The superblock: block 0, and its copy in block 1.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Superblock {
    pub magic: [u8; 8],
    pub version: U32,
    pub crc: U32,
    pub sequence: U64,
    pub zone_id: U64,
    pub cluster: U64,
    pub target: U16,
    /// 1: changes that were written and not stable may be lost, and the sessions that got these answers have not been
    /// ended yet.
    pub lost: u8,
    pub reserved: [u8; 5],
    pub size: U64,
    pub log_offset: U64,
    pub log_blocks: U64,
    pub meta_offset: U64,
    pub meta_slots: U64,
    pub data_offset: U64,
    pub data_blocks: U64,
    pub start_position: U64,
    pub start_seq: U64,
    pub start_lsn: U64,
    pub start_opening: U64,
    pub start_crc: U32,
    pub segment_count: U32,
    pub stable_seq: U64,
    pub next_segment: U64,
    pub segments: [SegmentRef; SEGMENTS_MAX],
    /// Life of the machine in which the zone was opened (`Env::boot_id`); 0: it is closed, or was not opened yet.
    pub boot: U64,
    /// The number of the opening whose last records may be only in memory (`keep`); 0 if there are none.
    pub kept: U64,
    /// The indexes of the segments.
    pub indexes: [IndexRef; SEGMENTS_MAX],
    pub rest: [u8; 4096 - 176 - 40 * SEGMENTS_MAX],
}

const _: () = assert!(size_of::<Superblock>() == BLOCK as usize);

impl Superblock {
    /// The first superblock of a zone.
    pub fn first(g: &Geometry, zone_id: u64, params: &ZoneParams) -> Superblock {
        let mut s = Superblock::read_from_bytes(&[0; 4096][..]).unwrap_or_else(|_| unreachable!("4096 bytes"));
        s.magic = MAGIC;
        s.version = VERSION.into();
        s.sequence = 1.into();
        s.zone_id = zone_id.into();
        s.cluster = params.cluster.into();
        s.target = params.target.0.into();
        s.size = g.size.into();
        s.log_offset = LOG_OFFSET.into();
        s.log_blocks = g.log_blocks.into();
        s.meta_offset = g.meta_offset.into();
        s.meta_slots = g.meta_slots.into();
        s.data_offset = g.data_offset.into();
        s.data_blocks = g.data_blocks.into();
        s.start_seq = 1.into();
        s.start_lsn = 1.into();
        s.next_segment = 1.into();
        s
    }

    /// Computes the checksum and stores it.
    pub fn seal(&mut self) {
        self.crc = 0.into();
        self.crc = crc32c::crc32c(self.as_bytes()).into();
    }

    /// Returns the regions that the superblock describes.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size.get(),
            log_blocks: self.log_blocks.get(),
            meta_offset: self.meta_offset.get(),
            meta_slots: self.meta_slots.get(),
            data_offset: self.data_offset.get(),
            data_blocks: self.data_blocks.get(),
        }
    }

    /// The segments, oldest first.
    pub fn segments(&self) -> &[SegmentRef] {
        &self.segments[..(self.segment_count.get() as usize).min(SEGMENTS_MAX)]
    }

    /// The segments with their indexes, oldest first.
    pub fn named(&self) -> impl DoubleEndedIterator<Item = NamedSegment> + ExactSizeIterator {
        self.segments().iter().zip(&self.indexes).map(|(run, index)| NamedSegment { run: *run, index: *index })
    }

    /// Names these segments, oldest first.
    pub fn name(&mut self, segments: impl ExactSizeIterator<Item = NamedSegment>) {
        self.segment_count = (segments.len() as u32).into();
        self.segments = [SegmentRef::default(); SEGMENTS_MAX];
        self.indexes = [IndexRef::default(); SEGMENTS_MAX];
        for ((run, index), named) in self.segments.iter_mut().zip(&mut self.indexes).zip(segments) {
            (*run, *index) = (named.run, named.index);
        }
    }

    /// Decodes and verifies one copy. `place` names it in errors.
    pub fn decode(bytes: &[u8], place: &str) -> Result<Superblock, ZoneError> {
        let fail = |kind, text: &str| Err(ZoneError::new(kind, place, text));
        let Ok(s) = Superblock::read_from_bytes(bytes) else {
            return fail(ZoneErrorKind::Corrupt, "it is not 4096 bytes long");
        };
        if s.magic != MAGIC {
            let text = if bytes.iter().all(|&b| b == 0) { "it is empty" } else { "its magic bytes are wrong" };
            return fail(ZoneErrorKind::NotAZone, text);
        }
        let mut plain = s.clone();
        plain.seal();
        if plain.crc != s.crc {
            return fail(ZoneErrorKind::Corrupt, "its checksum is wrong");
        }
        if !(VERSION_OLDEST..=VERSION).contains(&s.version.get()) {
            let text = format!("its format version is {}, this program knows {VERSION}", s.version);
            return fail(ZoneErrorKind::Version, &text);
        }
        s.check_bounds().map_err(|text| ZoneError::corrupt(place, text))?;
        Ok(s)
    }

    fn check_bounds(&self) -> Result<(), String> {
        let g = self.geometry();
        let log_end = g.log_blocks.checked_mul(BLOCK).and_then(|n| n.checked_add(LOG_OFFSET));
        let meta_end = g.meta_slots.checked_mul(SLOT_BYTES).and_then(|n| n.checked_add(g.meta_offset));
        let data_end = g.data_blocks.checked_mul(BLOCK).and_then(|n| n.checked_add(g.data_offset));
        let ordered = log_end.is_some_and(|e| e <= g.meta_offset)
            && meta_end.is_some_and(|e| e <= g.data_offset)
            && data_end.is_some_and(|e| e <= g.size);
        let aligned = [g.meta_offset, g.data_offset].iter().all(|o| o.is_multiple_of(BLOCK));
        if self.log_offset.get() != LOG_OFFSET || !ordered || !aligned || g.log_blocks < LOG_MIN / BLOCK {
            return Err("its regions do not fit each other".into());
        }
        if g.meta_slots >= u64::from(NO_SLOT) || self.segment_count.get() as usize > SEGMENTS_MAX {
            return Err("its counts are out of bounds".into());
        }
        if self.start_seq.get() == 0 || self.start_lsn.get() == 0 || self.stable_seq.get() + 1 < self.start_seq.get() {
            return Err("its log start is out of bounds".into());
        }
        let slots = self.named().flat_map(|s| [s.run.first_slot, s.index.slot]);
        if slots.into_iter().any(|slot| u64::from(slot.get()) >= g.meta_slots) {
            return Err("a segment lies outside of the metadata region".into());
        }
        Ok(())
    }
}

/// Header of a log group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GroupHeader {
    pub magic: U32,
    pub crc: U32,
    /// Random number of the opening that wrote the group.
    pub opening: U64,
    /// The `opening` and `crc` of the group before.
    pub prev_opening: U64,
    pub prev_crc: U32,
    pub records: U32,
    pub body_bytes: U32,
    /// `GROUP_FRESH`, `GROUP_PARITY`.
    pub flags: U32,
    pub seq: U64,
    pub first_lsn: U64,
    /// The mark: groups up to this one, and the data that they point at, were synced when this one was made.
    pub stable_seq: U64,
}

impl GroupHeader {
    /// Blocks of the group without its parity.
    pub fn data_blocks(&self) -> u64 {
        blocks_for(GROUP_HEADER + self.body_bytes.get() as usize)
    }

    /// Returns whether a parity block follows the data blocks.
    pub fn has_parity(&self) -> bool {
        self.flags.get() & GROUP_PARITY != 0
    }

    /// All blocks of the group.
    pub fn blocks(&self) -> u64 {
        self.data_blocks() + u64::from(self.has_parity())
    }
}

/// Bytes of a group header.
pub const GROUP_HEADER: usize = size_of::<GroupHeader>();
const _: () = assert!(GROUP_HEADER == 64);

/// Header of a segment page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PageHeader {
    pub magic: U32,
    pub crc: U32,
    pub segment: U64,
    pub index: U32,
    pub next_slot: U32,
    pub payload_bytes: U32,
    /// `PAGE_PARITY`.
    pub flags: U32,
}

/// Bytes of a page header.
pub const PAGE_HEADER: usize = size_of::<PageHeader>();
const _: () = assert!(PAGE_HEADER == 32);
/// Most payload bytes of a page.
pub const PAGE_PAYLOAD: usize = SLOT_BYTES as usize - BLOCK as usize - PAGE_HEADER;
/// Most payload bytes of a page without parity.
pub const PAGE_PAYLOAD_BARE: usize = SLOT_BYTES as usize - PAGE_HEADER;

/// Checksum of whole blocks whose crc field (bytes 4..8) counts as zero.
pub fn block_crc(zone_id: u64, blocks: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&zone_id.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &blocks[..4]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &blocks[8..])
}

/// The offset of the note that a sync failed.
pub const DOUBT_OFFSET: u64 = 2 * BLOCK;
const DOUBT_MAGIC: [u8; 4] = *b"ADBT";

/// The note that in life `boot` of the machine writes may have been lost without a loss of power.
pub fn doubt(zone_id: u64, boot: u64) -> Buf {
    let mut block = Buf::zeroed(BLOCK as usize);
    block[..4].copy_from_slice(&DOUBT_MAGIC);
    block[8..16].copy_from_slice(&boot.to_le_bytes());
    let crc = block_crc(zone_id, &block);
    block[4..8].copy_from_slice(&crc.to_le_bytes());
    block
}

/// Whole blocks for `bytes`.
pub fn blocks_for(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(BLOCK)
}
