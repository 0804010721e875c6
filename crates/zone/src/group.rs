//! A log group under construction: records packed into aligned memory that is reused.

use crate::change::hash_of;
use crate::layout::{GROUP_FRESH, GROUP_HEADER, GROUP_MAGIC, GROUP_PARITY, GroupHeader, block_crc, blocks_for};
use crate::log_point::Link;
use crate::parity;
use crate::planted::{self, Mistake};
use amphi_env::Buf;
use amphi_types::item::{Change, EncodedChanges, Txn};
use amphi_types::limits::BLOCK;
use zerocopy::IntoBytes;

/// Records that will be written together.
pub struct Group {
    buf: Buf,
    len: usize,
    pub records: u32,
    pub first_lsn: u64,
    /// Whether a record points at data that may not be synced.
    pub fresh: bool,
    /// The area in which the records of the group are kept.
    pub area: Option<usize>,
    /// Bytes of that area in use.
    pub area_bytes: usize,
    /// The offset of the first record that is not kept.
    unkept: usize,
    /// Hashes of the keys of its changes, in their order: found without looking into `buf`, which the disk has while it
    /// is written, and needed when they are taken over into the map of changes.
    pub hashes: Vec<u32>,
    /// Whether the group gets a parity block: in every zone that has been opened.
    pub parity: bool,
}

/// First capacity of a group's memory, bytes.
const CAPACITY_FIRST: usize = 32 << 10;

impl Group {
    /// An empty group, with new memory.
    pub fn new() -> Group {
        let buf = Buf::zeroed(CAPACITY_FIRST);
        Group {
            buf,
            len: GROUP_HEADER,
            records: 0,
            first_lsn: 0,
            fresh: false,
            area: None,
            area_bytes: 0,
            unkept: GROUP_HEADER,
            hashes: Vec::new(),
            parity: !planted::is(Mistake::Version3),
        }
    }

    /// Empties the group, keeping its memory.
    pub fn reset(&mut self) {
        let all = 0..self.buf.capacity();
        self.buf.set_window(all);
        self.len = GROUP_HEADER;
        self.records = 0;
        self.fresh = false;
        self.area = None;
        self.area_bytes = 0;
        self.unkept = GROUP_HEADER;
        self.hashes.clear();
    }

    /// Number of the group's last record, or of the record before its first one if the group is empty.
    pub fn last_lsn(&self) -> u64 {
        self.first_lsn + u64::from(self.records) - 1
    }

    /// The first record that is not kept, without its length, if there is one.
    pub fn unkept(&self) -> Option<&[u8]> {
        let (len, rest) = self.buf[self.unkept..self.len].split_first_chunk::<4>()?;
        rest.get(..u32::from_le_bytes(*len) as usize)
    }

    /// The first record that was not kept is kept now; the area has `area_bytes` in use.
    pub fn is_kept(&mut self, area_bytes: usize) {
        self.unkept += 4 + self.unkept().map_or(0, <[u8]>::len);
        assert!(self.unkept <= self.len, "{} bytes are kept of a group of {}", self.unkept, self.len);
        self.area_bytes = area_bytes;
    }

    /// Bytes of the group so far, header included.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// Blocks that the group will take, with its parity.
    pub fn blocks(&self) -> u64 {
        blocks_for(self.len) + u64::from(self.parity)
    }

    /// Bytes of the group's records.
    pub fn changes_bytes(&self) -> u64 {
        (self.len - GROUP_HEADER) as u64
    }

    /// Size of `txn` as a record.
    pub fn record_bytes(txn: &Txn) -> usize {
        4 + txn.encoded().len()
    }

    /// Adds a record to the group: the changes of the record, encoded.
    pub fn push(&mut self, record: &[u8]) {
        self.grow(self.len + 4 + record.len());
        self.put(&(record.len() as u32).to_le_bytes());
        self.put(record);
        self.hashes.extend(EncodedChanges::of(record).map(|change| hash_of(change.key())));
        self.records += 1;
    }

    /// The changes of the group's records, in order.
    pub fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        let mut rest = &self.buf[GROUP_HEADER..self.len];
        let records = std::iter::from_fn(move || {
            let (len, behind) = rest.split_first_chunk::<4>()?;
            let (record, behind) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            rest = behind;
            Some(record)
        });
        records.flat_map(EncodedChanges::of)
    }

    fn grow(&mut self, need: usize) {
        if need > self.buf.len() {
            let mut larger = Buf::zeroed(need.max(self.buf.len() * 2));
            larger[..self.len].copy_from_slice(&self.buf[..self.len]);
            let all = 0..larger.capacity();
            larger.set_window(all);
            self.buf = larger;
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.buf[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Fills in the header and takes the memory out for writing: whole blocks. Returns the link for the next group.
    pub fn seal(&mut self, zone_id: u64, opening: u64, prev: Link, seq: u64, mark: u64) -> (Buf, Link) {
        let end = blocks_for(self.len) as usize * BLOCK as usize;
        let all = self.blocks() as usize * BLOCK as usize;
        self.grow(all);
        self.buf[self.len..end].fill(0);
        self.buf.set_window(0..all);
        let header = GroupHeader {
            magic: GROUP_MAGIC.into(),
            crc: 0.into(),
            opening: opening.into(),
            prev_opening: prev.opening.into(),
            prev_crc: prev.crc.into(),
            records: self.records.into(),
            body_bytes: ((self.len - GROUP_HEADER) as u32).into(),
            flags: (if self.fresh { GROUP_FRESH } else { 0 } | if self.parity { GROUP_PARITY } else { 0 }).into(),
            seq: seq.into(),
            first_lsn: self.first_lsn.into(),
            stable_seq: mark.into(),
        };
        self.buf[..GROUP_HEADER].copy_from_slice(header.as_bytes());
        let crc = block_crc(zone_id, &self.buf[..end]);
        self.buf[4..8].copy_from_slice(&crc.to_le_bytes());
        if self.parity {
            parity::seal(&mut self.buf);
        }
        (std::mem::take(&mut self.buf), Link { opening, crc })
    }

    /// Puts all of the memory back: of a group at the edge of the ring, only a part was written last.
    pub fn restore(&mut self, mut buf: Buf) {
        let all = 0..buf.capacity();
        buf.set_window(all);
        self.buf = buf;
    }
}
